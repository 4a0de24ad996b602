//! Overlapped collecting and learning, compared with the plain loop.

use std::any::Any;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{A2c, A2cConfig, ActorCritic, Agent, Collector, Dqn, DqnConfig, Policy, Ppo, PpoConfig, QNetwork, Snapshot};
use rl_buffer::{Memory, Rollout, RolloutShape};
use rl_envs::cartpole::CartPole;
use rl_envs::{Action, ActionSpace, Env, Pool, Rng, Space, Spaces, Step, SyncVecEnv, catalog};
use rl_runtime::Mode;
use rl_runtime::checkpoint::{self, Checkpoint};
use rl_runtime::config::Layers;
use rl_runtime::pipeline::{Collect, Filled, Flow, Pipeline};
use rl_runtime::profile::{Profile, Track};
use rl_runtime::ring::{Closed, ring};
use rl_runtime::run_dir::RunDir;
use rl_runtime::thread::{ThreadError, spawn};
use rl_runtime::train::Training;
use rl_runtime::{Algo, Config, Error};

use crate::harness::{entry, load};

/// Time limit of every wait.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn config(algo: Algo, more: &[&str]) -> Config {
    let own: &[&str] = match algo.name() {
        "ppo" => &["steps=640", "ppo.n_steps=8", "ppo.batch_size=16", "ppo.n_epochs=2", "normalize_obs=true"],
        "a2c" => &["steps=640"],
        _ => {
            let learning = [
                "dqn.learning_starts=40",
                "dqn.train_freq=4",
                "dqn.gradient_steps=1",
                "dqn.batch_size=8",
                "dqn.target_update_interval=50",
                "dqn.save_replay=true",
            ];
            &[&learning[..], &["steps=200", "dqn.exploration_fraction=0.9", "dqn.exploration_spread=2"]].concat()
        }
    };
    let mut layers = Layers::default();
    for setting in [&["n_envs=8", "threads=3", "hidden=[5]", "eval_episodes=2", "log_interval=1"], own, more].concat() {
        layers.add_assignment(setting);
    }
    layers.resolve(catalog::find("cartpole").unwrap(), algo).unwrap()
}

fn agent(config: &Config) -> Box<dyn Agent> {
    let Spaces { obs, actions } = catalog::find(&config.env.name).unwrap().spaces();
    let (n_envs, seed) = (config.run.n_envs, config.run.seed);
    let policy = || ActorCritic::new(&obs, &actions, &config.net, seed).unwrap();
    if let Some(ppo) = config.algo.get::<PpoConfig>() {
        Box::new(Ppo::new(policy(), ppo.clone(), n_envs, seed).unwrap())
    } else if let Some(a2c) = config.algo.get::<A2cConfig>() {
        Box::new(A2c::new(policy(), a2c.clone(), n_envs, seed).unwrap())
    } else {
        let dqn = config.algo.get::<DqnConfig>().unwrap();
        let network = QNetwork::new(&obs, &actions, &config.net, dqn.dueling, seed).unwrap();
        Box::new(Dqn::new(network, dqn.clone(), &obs, &actions, n_envs, seed).unwrap())
    }
}

/// Plain loop on one thread, with a policy that is `lag` updates old.
fn by_hand(config: &Config, lag: usize) -> Snapshot {
    let pool = Pool::new(1).unwrap();
    let slices = catalog::find(&config.env.name).unwrap().slices(config.run.n_envs, MAX_SLICES, MIN_SLICE).unwrap();
    let mut collector = Collector::of(slices, &pool, config.run.seed).unwrap();
    let mut rollout = collector.rollout(config.n_steps()).unwrap();
    let mut agent = agent(config);
    let samples = (config.n_steps() * config.run.n_envs) as u64;
    let mut policies: VecDeque<Vec<f32>> = VecDeque::new();
    let mut statistics = VecDeque::new();
    for i in 0..config.run.steps.div_ceil(samples) {
        let remaining = (1.0 - (i * samples) as f64 / config.run.steps as f64) as f32;
        let now = Snapshot::from(agent.acting(remaining).weights());
        policies.push_back(now.params.clone());
        statistics.push_back((now.statistics.clone(), now.counters));
        if policies.len() > lag + 1 {
            policies.pop_front();
            statistics.pop_front();
        }
        // The current policy and its exploration, with the old parameters and statistics.
        let mut acting = agent.acting(remaining).copy();
        let (then, counters) = statistics[0].clone();
        let older = Snapshot { params: policies[0].clone(), statistics: then, counters, ..now };
        let any: &mut dyn Any = &mut *acting;
        match any.downcast_mut::<ActorCritic>() {
            Some(policy) => policy.load(&older).unwrap(),
            None => any.downcast_mut::<QNetwork>().unwrap().load(&older).unwrap(),
        }
        collector.collect(&*acting, &mut rollout).unwrap();
        agent.update(&rollout, remaining, &pool).unwrap();
    }
    // The order of a checkpoint.
    let mut all = agent.save().unwrap();
    all.moments.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Compares two agents without printing them.
#[track_caller]
fn assert_same(found: &Snapshot, expected: &Snapshot, what: &str) {
    let parts = [
        ("parameters", found.params == expected.params),
        ("moments", found.moments == expected.moments),
        ("statistics", found.statistics == expected.statistics),
        ("counters", found.counters == expected.counters),
    ];
    let differ: Vec<&str> = parts.iter().filter(|(_, same)| !same).map(|(part, _)| *part).collect();
    assert!(differ.is_empty(), "{what}: {} differ", differ.join(", "));
}

/// Trains in `dir`, from a checkpoint or from scratch; returns the last checkpoint.
fn trained(config: &Config, dir: &Path, from: Option<Checkpoint>) -> Checkpoint {
    let profile = Profile::new(false);
    let training = match from {
        Some(checkpoint) => Training::builder(config, entry(config)).profile(profile).checkpoint(checkpoint).build(),
        None => Training::builder(config, entry(config)).profile(profile).build(),
    };
    let mut training = training.unwrap();
    let dir = RunDir::create(Some(dir), config, "cpu").unwrap();
    training.run(&dir, &mut |_| ()).unwrap();
    load(&checkpoint::list(&dir.checkpoints()).unwrap().pop().unwrap()).unwrap()
}

#[test]
fn in_turn_it_is_the_plain_loop_bit_for_bit() {
    for algo in [Algo::PPO, Algo::A2C, Algo::DQN] {
        let config = config(algo, &[]);
        let dir = tempfile::tempdir().unwrap();
        assert_same(&trained(&config, &dir.path().join("run"), None).agent, &by_hand(&config, 0), algo.name());
    }
}

#[test]
fn overlapped_it_is_the_plain_loop_with_older_policies_bit_for_bit() {
    for algo in [Algo::PPO, Algo::A2C, Algo::DQN] {
        for lag in [0, 1, 4] {
            let config = config(algo, &["pipeline=overlapped", &format!("max_lag={lag}")]);
            let dir = tempfile::tempdir().unwrap();
            let found = trained(&config, &dir.path().join("run"), None).agent;
            assert_same(&found, &by_hand(&config, lag), &format!("{algo:?}, lag {lag}"));
            // DQN explores so much here that its policy hardly matters.
            assert!(
                lag == 0 || algo == Algo::DQN || found.params != by_hand(&config, 0).params,
                "{algo:?}: lag {lag} changes nothing"
            );
        }
    }
}

#[test]
fn a_resumed_overlapped_run_equals_an_uninterrupted_one() {
    for algo in [Algo::PPO, Algo::A2C, Algo::DQN] {
        let every = if algo == Algo::DQN { 64 } else { 192 };
        let more = ["pipeline=overlapped", "max_lag=2", "keep_checkpoints=99", &format!("checkpoint_every={every}")];
        let config = config(algo, &more);
        let dir = tempfile::tempdir().unwrap();
        let whole = trained(&config, &dir.path().join("whole"), None);
        assert_same(&whole.agent, &by_hand(&config, 2), &format!("{algo:?}, with checkpoints on the way"));
        let checkpoints = checkpoint::list(&dir.path().join("whole/checkpoints")).unwrap();
        assert!(checkpoints.len() > 2);
        for (i, path) in checkpoints[..checkpoints.len() - 1].iter().enumerate() {
            let from = load(path).unwrap();
            assert_eq!(from.ahead.len(), 2, "two policies lag");
            let resumed = trained(&config, &dir.path().join(format!("resumed-{i}")), Some(from));
            assert_same(&resumed.agent, &whole.agent, &format!("{algo:?}, from {}", path.display()));
            assert_eq!(
                (resumed.progress.env_steps, resumed.progress.episodes),
                (whole.progress.env_steps, whole.progress.episodes)
            );
        }
    }
}

#[test]
fn lag_is_counted_and_never_above_its_bound() {
    for (lag, expected) in [("max_lag=1", [8.0, 72.0, 0.0, 0.0]), ("max_lag=4", [8.0, 8.0, 8.0, 56.0])] {
        let config = config(Algo::PPO, &["pipeline=overlapped", lag]);
        let dir = tempfile::tempdir().unwrap();
        trained(&config, &dir.path().join("run"), None);
        let text = std::fs::read_to_string(dir.path().join("run/metrics.csv")).unwrap();
        let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let (names, last) = (rows.next().unwrap(), rows.next_back().unwrap());
        let of = |name: &str| last[names.iter().position(|n| *n == name).unwrap()].parse::<f64>().unwrap();
        let found = ["pipeline/lag_0", "pipeline/lag_1", "pipeline/lag_2", "pipeline/lag_3_4"].map(of);
        assert_eq!(found, expected, "ten rollouts of eight columns, {lag}");
        assert_eq!(of("pipeline/lag_5_8") + of("pipeline/lag_over_8"), 0.0);
    }
}

/// Collector that only calls `what` in rollout `at`.
struct Odd {
    at: usize,
    done: usize,
    what: fn(),
    ended: Arc<AtomicBool>,
    like: Rollout,
}

impl Odd {
    fn new(at: usize, what: fn()) -> (Self, Arc<AtomicBool>) {
        let pool = Pool::new(1).unwrap();
        let slices = catalog::find("cartpole").unwrap().slices(4, MAX_SLICES, MIN_SLICE).unwrap();
        let like = Collector::of(slices, &pool, 0).unwrap().rollout(2).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        (Self { at, done: 0, what, ended: ended.clone(), like }, ended)
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

impl Collect for Odd {
    fn collect(&mut self, _: &dyn Policy, learnt: u64, filled: &mut Filled, _: &Track) -> Result<(), Error> {
        filled.learnt.fill(learnt);
        if self.done == self.at {
            (self.what)();
            return Err(ThreadError { name: "odd".into(), cause: "came to its end".into() }.into());
        }
        self.done += 1;
        Ok(())
    }

    fn shape(&self, _: usize) -> RolloutShape {
        self.like.shape()
    }
}

fn within_a_second(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(1), "{what} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_producer_that_fails_or_panics_ends_the_learner_s_wait() {
    for (what, text) in [((|| ()) as fn(), "came to its end"), (|| panic!("out of luck"), "panicked: out of luck")] {
        for at in [0, 1, 5] {
            let (odd, ended) = Odd::new(at, what);
            let config = config(Algo::PPO, &[]);
            let mut agent = agent(&config);
            let mut pipeline =
                Pipeline::new(Mode::Overlapped { max_lag: 2 }, vec![odd], 2, &<dyn Memory>::host(), &Profile::new(false))
                    .unwrap();
            let mut learnt = 0;
            let driven = pipeline.drive(&mut *agent, u64::MAX, |_, _| {
                learnt += 1;
                Ok(Flow::Continue)
            });
            let error = driven.unwrap_err().to_string();
            assert!(learnt <= at);
            assert!(error.contains(text), "{error}");
            within_a_second("the producer", || ended.load(Ordering::SeqCst));
        }
    }
}

#[test]
fn a_learner_that_goes_ends_the_producer() {
    for taken in 1..5 {
        let (odd, ended) = Odd::new(usize::MAX, || ());
        let config = config(Algo::PPO, &[]);
        let mut agent = agent(&config);
        let mut pipeline =
            Pipeline::new(Mode::Overlapped { max_lag: 1 }, vec![odd], 2, &<dyn Memory>::host(), &Profile::new(false)).unwrap();
        let mut left = taken;
        let driven = pipeline.drive(&mut *agent, u64::MAX, |_, _| {
            left -= 1;
            if left > 0 { Ok(Flow::Continue) } else { Err(Error::Config { problems: Vec::new() }) }
        });
        assert!(driven.is_err());
        drop(pipeline);
        within_a_second("the producer", || ended.load(Ordering::SeqCst));
    }
}

/// Collector that dawdles in a pattern of its own.
struct Dawdling {
    collector: Collector,
    pattern: u64,
    /// Index of its next rollout among those of all `n` collectors.
    next: u64,
    n: u64,
    /// Number of rollouts of all collectors.
    rollouts: u64,
}

impl Collect for Dawdling {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let remaining = 1.0 - self.next as f64 / self.rollouts as f64;
        assert!((f64::from(filled.remaining) - remaining).abs() < 1e-6, "rollout {}: {}", self.next, filled.remaining);
        self.next += self.n;
        self.pattern = self.pattern.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(self.pattern >> 53));
        Collect::collect(&mut self.collector, policy, learnt, filled, track)
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        self.collector.shape(n_steps)
    }
}

#[test]
fn several_producers_take_turns_and_equal_the_plain_loop_bit_for_bit() {
    let config = config(Algo::PPO, &["ppo.normalize_reward=true"]);
    let (n_envs, n_steps, pool) = (config.run.n_envs, config.n_steps(), Pool::new(1).unwrap());
    let collectors = |n: u64| (0..n).map(|i| Collector::new(n_envs, &CartPole::default(), &pool, 100 + i).unwrap());
    let rollouts = config.run.steps / (n_steps * n_envs) as u64;
    for (n, max_lag) in [(2, None), (2, Some(1)), (2, Some(3)), (3, Some(2))] {
        let lag = max_lag.unwrap_or(0);
        let mut expected = agent(&config);
        let mut plain: Vec<Collector> = collectors(n).collect();
        let mut policies: VecDeque<Box<dyn Policy>> = VecDeque::new();
        let mut rollout = plain[0].rollout(n_steps).unwrap();
        for i in 0..rollouts {
            let remaining = (1.0 - i as f64 / rollouts as f64) as f32;
            policies.push_back(expected.acting(remaining).copy());
            if policies.len() > lag + 1 {
                policies.pop_front();
            }
            let turn = (i % n) as usize;
            plain[turn].collect(&*policies[0], &mut rollout).unwrap();
            (rollout.contiguous, rollout.continues) = (false, vec![true; n_envs]);
            rollout.env_idx_mut().iter_mut().for_each(|env_idx| *env_idx += (turn * n_envs) as u32);
            expected.update(&rollout, remaining, &pool).unwrap();
        }

        for seed in 0..3 {
            let mut found = agent(&config);
            let mode = max_lag.map_or(Mode::Sync, |max_lag| Mode::Overlapped { max_lag });
            let dawdling = |(next, collector)| Dawdling { collector, pattern: seed + 10 * next, next, n, rollouts };
            let dawdling = (0..).zip(collectors(n)).map(dawdling).collect();
            let mut pipeline = Pipeline::new(mode, dawdling, n_steps, &<dyn Memory>::host(), &Profile::new(false)).unwrap();
            let mut i = 0;
            let mut learn = |filled: &mut Filled, agent: &mut dyn Agent| {
                assert!(filled.learnt.iter().all(|&learnt| i - learnt <= lag as u64 && !filled.rollout.contiguous));
                agent.update(&filled.rollout, filled.remaining, &pool)?;
                i += 1;
                Ok(if i % 5 == 2 { Flow::Rest } else { Flow::Continue })
            };
            let mut rests = 0;
            while rests < 100 && pipeline.learnt() < rollouts {
                pipeline.drive(&mut *found, config.run.steps, &mut learn).unwrap();
                assert_eq!(pipeline.collectors().unwrap().len() as u64, n, "nothing is in flight");
                rests += 1;
            }
            assert_same(&found.save().unwrap(), &expected.save().unwrap(), &format!("{n} producers, {mode:?}"));
        }
    }
    let mode = Mode::Overlapped { max_lag: 1 };
    let error = Pipeline::new(mode, collectors(3).collect(), n_steps, &<dyn Memory>::host(), &Profile::new(false)).err().unwrap();
    assert!(error.to_string().contains("multiple"), "{error}");
}

#[test]
fn every_order_of_dropping_a_pipeline_s_stages_closes_it() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let stages = ring::<u64, 4>(0..3);
        let [mut a, mut b, mut c] = [None, None, None];
        let [first, second, third, mine] = stages;
        let running = Arc::new(AtomicUsize::new(3));
        let mut threads = Vec::new();
        let gates = [&mut a, &mut b, &mut c].map(|slot| {
            let (open, gate) = ring::<(), 2>([()]).into();
            *slot = Some(open);
            gate
        });
        for (stage, gate) in [first, second, third].into_iter().zip(gates) {
            let running = running.clone();
            threads.push(spawn("stage", move || {
                // Ends when its gate does, or when a neighbour does.
                while gate.recv_timeout(Duration::ZERO).is_ok() {
                    let Ok(buffer) = stage.recv_timeout(Duration::from_millis(5)) else { break };
                    if buffer.is_some_and(|buffer| stage.send(buffer + 1).is_err()) {
                        break;
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        for _ in 0..10 {
            mine.send(mine.recv().unwrap()).unwrap();
        }
        let mut gates = [a, b, c];
        order.into_iter().for_each(|i| gates[i] = None);
        within_a_second("a stage", || running.load(Ordering::SeqCst) == 0);
        assert!(threads.into_iter().all(|thread| thread.unwrap().join().is_ok()));
        let begin = Instant::now();
        while mine.recv().is_ok() {
            assert!(begin.elapsed() < TIME_LIMIT);
        }
    }
}

#[test]
fn a_buffer_goes_round_in_order() {
    let [a, b, c] = ring([1, 2]);
    assert_eq!((a.waiting(), b.waiting(), c.waiting()), (2, 0, 0));
    assert_eq!((a.recv(), a.recv(), a.try_recv()), (Ok(1), Ok(2), Ok(None)));
    a.send(10).unwrap();
    a.send(20).unwrap();
    assert_eq!((b.recv(), b.recv()), (Ok(10), Ok(20)));
    b.send(30).unwrap();
    c.send(c.recv().unwrap() + 1).unwrap();
    assert_eq!(a.recv_timeout(Duration::ZERO), Ok(Some(31)));
    assert_eq!(a.recv_timeout(Duration::ZERO), Ok(None));
}

#[test]
fn what_was_passed_on_is_still_taken_when_its_sender_has_gone() {
    let [a, b] = ring([1, 2]);
    a.send(a.recv().unwrap()).unwrap();
    drop(a);
    assert_eq!((b.recv(), b.recv()), (Ok(1), Err(Closed)));
    assert_eq!(b.send(1), Err(Closed));
}

/// CartPole that fails at a given step of its life.
#[derive(Clone)]
struct Failing {
    env: CartPole,
    steps_left: u32,
    panics: bool,
}

impl Env for Failing {
    type Obs = f32;
    type State = <CartPole as Env>::State;

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.env.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.env.reset(rng, obs);
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
        let step = self.env.step(action, rng, obs);
        self.steps_left -= 1;
        assert!(!self.panics || self.steps_left > 0, "it fell off the table");
        Step { reward: if self.steps_left == 0 { f32::NAN } else { step.reward }, ..step }
    }

    fn state(&self) -> Option<Self::State> {
        self.env.state()
    }

    fn set_state(&mut self, state: Self::State) -> Result<(), rl_envs::Error> {
        self.env.set_state(state)
    }
}

#[test]
fn what_was_learnt_before_an_environment_failed_is_saved_and_can_be_continued() {
    for (algo, pipeline, panics) in [
        (Algo::PPO, "pipeline=sync", false),
        (Algo::PPO, "pipeline=overlapped", true),
        (Algo::A2C, "pipeline=overlapped", false),
        (Algo::DQN, "pipeline=sync", true),
        (Algo::DQN, "pipeline=overlapped", false),
    ] {
        let config = config(algo, &[pipeline, "dqn.n_steps=3"][..if algo == Algo::DQN { 2 } else { 1 }]);
        let samples = (config.n_steps() * config.run.n_envs) as u64;
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("run");
        // The failure is in rollout 4, counted from 0, after four have been learnt from.
        let steps_left = 4 * config.n_steps() as u32 + 1;
        let env = Failing { env: CartPole::default(), steps_left, panics };
        let envs = Box::new(SyncVecEnv::new(config.run.n_envs, env));
        let mut training = Training::builder(&config, entry(&config)).envs(vec![envs]).build().unwrap();
        let dir = RunDir::create(Some(&path), &config, "cpu").unwrap();
        let error = training.run(&dir, &mut |_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 5, "{algo:?} {error}");
        let text = error.to_string();
        let expected = if panics { "panicked at step" } else { "the reward is NaN" };
        assert!(text.contains(expected) && text.contains(&steps_left.to_string()), "{text}");
        if panics {
            assert_eq!(text.matches("it fell off the table").count(), 1, "{text}");
        }

        let newest = checkpoint::list(&dir.checkpoints()).unwrap().pop().unwrap();
        let saved = load(&newest).unwrap();
        let learnt = saved.progress.env_steps / samples;
        // The learner may notice the failure before it has learnt from every full rollout.
        assert!(if pipeline == "pipeline=sync" { learnt == 4 } else { (1..=4).contains(&learnt) }, "{algo:?}: {learnt}");
        assert!(!saved.collector.has_envs() && saved.agent.params.iter().all(|x| x.is_finite()));
        let mut training = Training::builder(&config, entry(&config)).checkpoint(saved).build().unwrap();
        let outcome = training.run(&dir, &mut |_| ()).unwrap();
        assert!(outcome.progress.env_steps >= config.run.steps);
    }
}

#[test]
fn a_training_whose_agent_is_given_equals_one_that_makes_it_and_goes_on_from_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let train = |name: &str, config: &Config, from: Option<&Path>| {
        let mut training = Training::builder(config, entry(config)).agent(agent(config)).build().unwrap();
        if let Some(path) = from {
            let checkpoint = Checkpoint::load(path, training.agent().layout()).unwrap();
            training.load(checkpoint).unwrap();
        }
        let dir = RunDir::create(Some(&dir.path().join(name)), config, "cpu").unwrap();
        training.run(&dir, &mut |_| ()).unwrap();
        checkpoint::list(&dir.checkpoints()).unwrap().pop().unwrap()
    };
    let config = config(Algo::PPO, &["checkpoint_every=320", "keep_checkpoints=9"]);
    let expected = by_hand(&config, 0);
    let last = train("whole", &config, None);
    assert_same(&load(&last).unwrap().agent, &expected, "given");
    let first = last.with_file_name("ckpt-000000000320");
    assert_same(&load(&train("resumed", &config, Some(&first))).unwrap().agent, &expected, "given and resumed");
}
