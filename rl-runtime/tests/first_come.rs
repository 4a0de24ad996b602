//! Blocking environments that fail, hang and panic.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rl_agents::{
    Acted, Acting, ActorCritic, Agent, Choice, Collector, Layout, Metrics, NetConfig, Policy, Scratch, Snapshot, Weights,
};
use rl_buffer::{Memory, ObsSlice, Rollout, RolloutShape};
use rl_envs::cartpole::CartPole;
use rl_envs::{Action, ActionSpace, Actions, BlockingEnv, Env, EnvError, Obs, Pool, Rng, Space, Spaces, Step, catalog};
use rl_runtime::Error;
use rl_runtime::Mode;
use rl_runtime::blocking::{BlockingEnvs, EnvEvent, Make};
use rl_runtime::faults::{FaultConfig, FaultCounts};
use rl_runtime::first_come::{FirstComeCollector, FirstComeConfig};
use rl_runtime::pipeline::{Collect, Filled, Flow, Pipeline};
use rl_runtime::profile::{Profile, Track};

/// CartPole as a blocking environment.
struct Calls(CartPole);

impl BlockingEnv for Calls {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.0.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.reset(rng, obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        Ok(self.0.step(action, rng, obs))
    }
}

/// Behaviour of a call, by the number of calls over the environment's lives.
type Trouble = fn(call: u64) -> Result<Duration, EnvError>;

/// Environment that observes its life, episode and step.
///
/// Episodes take 7 steps and end alternately as terminated and as truncated.
struct Counting {
    trouble: Trouble,
    calls: Arc<Mutex<u64>>,
    life: f32,
    episode: f32,
    step: f32,
}

impl Counting {
    fn spaces() -> Spaces {
        let obs = Space::vector(&[0.0; 3], &[f32::MAX; 3]);
        Spaces { obs, actions: ActionSpace::Discrete { n: 2, masked: false } }
    }

    fn call(&mut self) -> Result<(), EnvError> {
        let call = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        std::thread::sleep((self.trouble)(call)?);
        Ok(())
    }
}

impl BlockingEnv for Counting {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        Self::spaces().obs
    }

    fn action_space(&self) -> ActionSpace {
        Self::spaces().actions
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.call()?;
        self.episode += 1.0;
        self.step = 0.0;
        obs.copy_from_slice(&[self.life, self.episode, 0.0]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.call()?;
        self.step += 1.0;
        obs.copy_from_slice(&[self.life, self.episode, self.step]);
        let done = self.step == 7.0;
        let odd = self.episode % 2.0 == 1.0;
        Ok(Step { reward: self.step, terminated: done && odd, truncated: done && !odd })
    }
}

fn fine(_: u64) -> Result<Duration, EnvError> {
    Ok(Duration::ZERO)
}

/// Calls of each environment so far.
type CallCounts = Vec<Arc<Mutex<u64>>>;

/// Creates environments, each with its own trouble, and counts their calls.
fn counted(troubles: Vec<Trouble>, config: FaultConfig) -> (BlockingEnvs<Counting>, CallCounts) {
    let calls: CallCounts = troubles.iter().map(|_| Arc::default()).collect();
    let (n, counts, lives) = (troubles.len(), calls.clone(), Mutex::new(vec![0.0; troubles.len()]));
    let make: Make<Counting> = Arc::new(move |env| {
        let mut lives = lives.lock().unwrap();
        lives[env] += 1.0;
        Ok(Counting { trouble: troubles[env], calls: calls[env].clone(), life: lives[env], episode: 0.0, step: 0.0 })
    });
    let mut envs = BlockingEnvs::new(n, Counting::spaces(), make, config, 0).unwrap();
    envs.on_fault(Box::new(|_, _, _| ()));
    (envs, counts)
}

fn envs(troubles: Vec<Trouble>, config: FaultConfig) -> BlockingEnvs<Counting> {
    counted(troubles, config).0
}

fn policy(spaces: &Spaces) -> ActorCritic {
    ActorCritic::new(&spaces.obs, &spaces.actions, &NetConfig { hidden: vec![4], ..NetConfig::default() }, 0).unwrap()
}

/// Policy that counts the steps of an episode of [`Counting`].
///
/// It panics where it disagrees with the environment.
#[derive(Clone)]
struct Counter;

impl Policy for Counter {
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), rl_agents::Error> {
        self.values(acting.obs, acting.masks, acted.states, acted.values, scratch)?;
        let Actions::Discrete(actions) = acted.actions else { panic!("discrete") };
        actions.fill(0);
        acted.states.iter_mut().for_each(|count| *count += 1.0);
        Ok(())
    }

    fn values(
        &self,
        obs: ObsSlice<'_>,
        _: &[u8],
        states: &[f32],
        values: &mut [f32],
        _: &mut Scratch,
    ) -> Result<(), rl_agents::Error> {
        let ObsSlice::F32(obs) = obs else { panic!("f32") };
        assert!(obs.chunks(3).map(|row| row[2]).eq(states.iter().copied()), "{obs:?} meet {states:?}");
        values.copy_from_slice(states);
        Ok(())
    }

    fn state_len(&self) -> usize {
        1
    }

    fn weights(&self) -> Weights<'_> {
        Weights { version: 0, params: Cow::Borrowed(&[]), obs: None }
    }
}

/// Agent that never changes.
struct Still(ActorCritic);

impl Agent for Still {
    fn policy(&self) -> &dyn Policy {
        &self.0
    }

    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn update(&mut self, _: &Rollout, _: f32, _: &Pool) -> Result<Metrics, rl_agents::Error> {
        Ok(Metrics::default())
    }

    fn save(&self) -> Result<Snapshot, rl_agents::Error> {
        Ok(self.0.weights().into())
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), rl_agents::Error> {
        self.0.load(snapshot)
    }
}

fn filled(shape: RolloutShape) -> Filled {
    Filled::new(Rollout::new(shape).unwrap())
}

fn row(rollout: &Rollout, t: usize, n: usize) -> [f32; 3] {
    let Obs::F32(obs) = rollout.obs() else { panic!("f32") };
    [0, 1, 2].map(|i| obs[[t, n, i]])
}

#[test]
fn in_lockstep_it_is_the_plain_collector_bit_for_bit() {
    let n = 9;
    let pool = Pool::new(2).unwrap();
    let mut plain = Collector::new(n, &CartPole::default(), &pool, 3).unwrap();
    let spaces = Spaces { obs: plain.observation_space().clone(), actions: plain.action_space().clone() };
    let make: Make<Calls> = Arc::new(|_| Ok(Calls(CartPole::default())));
    let envs = BlockingEnvs::new(n, spaces.clone(), make, FaultConfig::default(), 3).unwrap();
    let config = FirstComeConfig { min_ready: n, deadline: Duration::from_secs(60), max_age: 100 };
    let mut ready = FirstComeCollector::new(envs, 40, config).unwrap();
    let policy = policy(&spaces);
    let (mut expected, mut found) = (plain.rollout(40).unwrap(), filled(ready.shape(40)));
    let track = Profile::new(false).track("test");
    for i in 0..4 {
        let mut episodes = plain.collect(&policy, &mut expected).unwrap();
        ready.collect(&policy, i, &mut found, &track).unwrap();
        assert_eq!(expected.obs(), found.rollout.obs(), "rollout {i}");
        assert_eq!(expected.actions(), found.rollout.actions());
        assert_eq!(expected.log_probs(), found.rollout.log_probs());
        assert_eq!(expected.values(), found.rollout.values());
        assert_eq!(expected.rewards(), found.rollout.rewards());
        assert_eq!(expected.terminated(), found.rollout.terminated());
        assert_eq!(expected.truncated(), found.rollout.truncated());
        assert_eq!(expected.last_values(), found.rollout.last_values());
        let ends = |rollout: &Rollout| {
            let ObsSlice::F32(obs) = rollout.final_obs() else { panic!("f32") };
            let mut ends: Vec<_> = rollout.final_at().iter().copied().zip(obs.chunks(4).map(<[f32]>::to_vec)).collect();
            ends.sort_by_key(|(at, _)| *at);
            ends
        };
        assert_eq!(ends(&expected), ends(&found.rollout));
        let key = |e: &rl_agents::Episode| e.length;
        episodes.sort_by_key(key);
        found.episodes.sort_by_key(key);
        assert_eq!(episodes, found.episodes);
    }
}

/// Checks that columns are stretches of single trajectories with the right ends.
///
/// `last` holds what each environment observed at the end of its previous stretch, if known.
fn check_columns(rollout: &Rollout, last: &mut [Option<[f32; 3]>]) {
    let ends = rollout.final_at();
    let ObsSlice::F32(final_obs) = rollout.final_obs() else { panic!("f32") };
    for n in 0..rollout.shape().n_envs {
        let env = rollout.env_idx()[n] as usize;
        assert_eq!(rollout.continues[n], last[env] == Some(row(rollout, 0, n)), "environment {env}");
        if let Some(before) = last[env] {
            assert!(
                before == row(rollout, 0, n) || row(rollout, 0, n)[2] == 0.0,
                "environment {env} runs on, or has failed between"
            );
        }
        for t in 0..rollout.shape().n_steps {
            let (here, next) = (row(rollout, t, n), row(rollout, t + 1, n));
            let (terminated, truncated) = (rollout.terminated()[[t, n]] == 1, rollout.truncated()[[t, n]] == 1);
            assert_eq!(rollout.rewards()[[t, n]], here[2] + 1.0);
            let after = [here[0], here[1], here[2] + 1.0];
            let end = ends.iter().position(|&at| at == (t, n));
            assert_eq!(end.is_some(), terminated || truncated, "a final observation for each end");
            if let Some(i) = end {
                assert_eq!(final_obs[3 * i..3 * i + 3], after, "the final observation is what the step led to");
                assert_eq!(next[2], 0.0, "an episode begins");
                assert_eq!(terminated, after[2] == 7.0 && here[1] % 2.0 == 1.0, "only what is over is terminated");
            } else {
                assert_eq!(next, after);
            }
        }
        last[env] = Some(row(rollout, rollout.shape().n_steps, n));
    }
}

#[test]
fn a_slow_environment_holds_up_nobody() {
    let slow: Trouble = |_| Ok(Duration::from_millis(30));
    let envs = envs(vec![slow, fine, fine, fine], FaultConfig::default());
    let mut ready =
        FirstComeCollector::new(envs, 5, FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() }).unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(5));
    let (mut columns, mut last) = ([0; 4], [None; 4]);
    let (mut rollouts, mut oldest) = (0, 0);
    while columns[0] < 3 {
        ready.collect(&policy, rollouts, &mut filled, &track).unwrap();
        check_columns(&filled.rollout, &mut last);
        filled.rollout.env_idx().iter().for_each(|&env| columns[env as usize] += 1);
        oldest = filled.learnt.iter().fold(oldest, |oldest, acted| oldest.max(rollouts - acted));
        rollouts += 1;
        assert!(rollouts < 100_000, "the slow one is never seen");
    }
    // In lockstep, the slow environment would fill as many columns as the others.
    assert!(columns[1..].iter().all(|&n| n > 2 * columns[0]), "{columns:?}");
    assert!(oldest > 1, "its columns are of older policies");
}

#[test]
fn hanging_panicking_and_failing_environments_are_outlived_and_counted() {
    let hangs: Trouble = |call| Ok(if call == 9 { Duration::from_secs(3600) } else { Duration::ZERO });
    let panics: Trouble = |call| if call == 12 { panic!("the twelfth call") } else { Ok(Duration::from_micros(200)) };
    // Calls 20, 40, 60, ..: each is a step, because the call after a restart never has such a number.
    let fails: Trouble = |call| {
        let failed = EnvError { cause: "no luck".into(), may_repeat: false };
        if call % 20 == 0 { Err(failed) } else { Ok(Duration::from_micros(200)) }
    };
    let timeout = Duration::from_millis(1500);
    let config = FaultConfig { timeout, max_restarts: 1000, ..FaultConfig::default() };
    let slowly: Trouble = |_| Ok(Duration::from_micros(500));
    let (envs, calls) = counted(vec![slowly, hangs, panics, fails], config);
    let mut ready =
        FirstComeCollector::new(envs, 6, FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() }).unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(6));
    let mut last = [None; 4];
    let begin = Instant::now();
    let (mut by_fault, mut lives) = (0, [0.0f32; 4]);
    let mut rollouts = 0;
    while lives[1] < 2.0 || lives[2] < 2.0 || rollouts < 50 {
        ready.collect(&policy, rollouts, &mut filled, &track).unwrap();
        rollouts += 1;
        check_columns(&filled.rollout, &mut last);
        for &(t, n) in filled.rollout.final_at() {
            by_fault += u64::from(row(&filled.rollout, t, n)[2] < 6.0);
        }
        for n in 0..4 {
            let env = filled.rollout.env_idx()[n] as usize;
            lives[env] = lives[env].max(row(&filled.rollout, 6, n)[0]);
        }
        assert!(filled.episodes.iter().all(|e| e.length == 7), "an episode cut off by a fault is in no statistics");
        assert!(begin.elapsed() < Duration::from_secs(60), "it hangs");
    }
    let counts = ready.counts();
    assert_eq!((counts.timeouts, counts.panics), (1, 1));
    let failed = *calls[3].lock().unwrap() / 20; // one of them may still be in flight
    assert!(failed > 5 && (counts.failures == failed || counts.failures + 1 == failed), "{failed} failed, {counts:?}");
    assert_eq!((counts.quarantined, counts.retries), (0, 0));
    // A fault truncates an episode, unless it hits the first step of an episode or of a stretch.
    assert!(by_fault > 0 && by_fault <= counts.timeouts + counts.panics + counts.failures, "{by_fault}, {counts:?}");
    assert!(lives[0] == 1.0 && lives[1] == 2.0 && lives[2] == 2.0, "{lives:?}");
    assert!(counts.restarts >= 2);
}

#[test]
fn the_state_of_a_policy_with_memory_belongs_to_the_environment_not_to_the_column() {
    let fails: Trouble = |call| {
        let failed = EnvError { cause: "no luck".into(), may_repeat: false };
        if call % 11 == 0 { Err(failed) } else { Ok(Duration::from_micros(200)) }
    };
    let slow: Trouble = |_| Ok(Duration::from_millis(2));
    let config = FaultConfig { max_restarts: 1000, ..FaultConfig::default() };
    let any_age = FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() };
    let mut ready = FirstComeCollector::new(envs(vec![slow, fine, fails, fails], config), 5, any_age).unwrap();
    ready.remember(1).unwrap();
    let (track, mut filled, mut last) = (Profile::new(false).track("test"), filled(ready.shape(5)), [None; 4]);
    let (mut rollouts, mut begun, mut continued, mut by_fault) = (0, 0, 0, 0);
    // How many there are of each depends on time.
    while begun < 300 || continued < 300 || by_fault < 40 {
        ready.collect(&Counter, rollouts, &mut filled, &track).unwrap();
        check_columns(&filled.rollout, &mut last);
        let rollout = &filled.rollout;
        let ObsSlice::F32(final_obs) = rollout.final_obs() else { panic!("f32") };
        assert!(final_obs.chunks(3).map(|row| row[2]).eq(rollout.final_states().iter().copied()), "states at the ends");
        for n in 0..4 {
            assert_eq!(rollout.first_states()[n], row(rollout, 0, n)[2], "the state before step 0");
            begun += u32::from(rollout.first_states()[n] == 0.0);
            continued += u32::from(rollout.first_states()[n] > 0.0);
        }
        rollouts += 1;
        assert!(rollouts < 100_000, "{begun} {continued} {by_fault}");
        by_fault += final_obs.chunks(3).filter(|row| row[2] < 7.0).count();
    }
    let error = ready.collect(&policy(&Counting::spaces()), 0, &mut filled, &track).unwrap_err().to_string();
    assert!(error.contains("the policy's state has 0 elements, the rollout's 1 and the collector's 1"), "{error}");
}

#[test]
fn a_late_answer_is_not_taken_for_that_of_the_replacement() {
    // Call 5 returns long after it was abandoned, during the replacement's slow episodes.
    let late: Trouble = |call| Ok(Duration::from_millis(if call == 5 { 200 } else { 10 }));
    let (timeout, backoff) = (Duration::from_millis(100), Duration::from_millis(1));
    let config = FaultConfig { timeout, backoff, max_restarts: 1000, ..FaultConfig::default() };
    let mut ready =
        FirstComeCollector::new(envs(vec![late], config), 4, FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() })
            .unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(4));
    let (mut last, begin, mut rollouts) = ([None], Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(600) {
        ready.collect(&policy, rollouts, &mut filled, &track).unwrap();
        check_columns(&filled.rollout, &mut last);
        rollouts += 1;
    }
    assert!(ready.counts().timeouts > 0);
    assert!(last[0].unwrap()[0] > 1.0, "the replacement plays");
}

#[test]
fn calls_that_may_be_repeated_are_and_nobody_notices() {
    let twice: Trouble = |call| {
        if call % 3 == 0 { Ok(Duration::ZERO) } else { Err(EnvError { cause: "busy".into(), may_repeat: true }) }
    };
    let config = FaultConfig { retries: 2, backoff: Duration::from_micros(10), ..FaultConfig::default() };
    let mut ready = FirstComeCollector::new(
        envs(vec![twice, fine], config),
        4,
        FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() },
    )
    .unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(4));
    let (mut last, mut seen, mut rollouts) = ([None; 2], 0, 0);
    while seen < 3 {
        ready.collect(&policy, rollouts, &mut filled, &track).unwrap();
        check_columns(&filled.rollout, &mut last);
        seen += filled.rollout.env_idx().iter().filter(|&&env| env == 0).count();
        rollouts += 1;
    }
    let counts = ready.counts();
    // At least a start, twelve steps, and another start per seven steps; every call was made three times.
    assert!(counts.retries >= 2 * 14 && counts.retries.is_multiple_of(2), "{counts:?}");
    assert_eq!(FaultCounts { retries: 0, ..counts }, FaultCounts::default());
}

#[test]
fn beyond_the_cap_the_run_ends_and_names_the_environment() {
    let dead: Trouble = |_| Err(EnvError { cause: "connection refused".into(), may_repeat: false });
    let config = FaultConfig { max_restarts: 3, breaker_faults: 1000, ..FaultConfig::default() };
    let mut envs = envs(vec![fine, dead], config);
    let mut events = Vec::new();
    let error = loop {
        if let Err(error) = envs.recv(2, Duration::from_millis(5), &mut events) {
            break error;
        }
    };
    assert_eq!(error.exit_code(), 5);
    assert!(error.to_string().contains("environment 1") && error.to_string().contains("connection refused"), "{error}");
    assert_eq!((envs.counts().restarts, envs.counts().quarantined, envs.counts().failures), (3, 1, 4));
    assert_eq!(events.iter().filter(|event| **event == (1, EnvEvent::Faulted)).count(), 4);
}

#[test]
fn failing_alike_after_each_start_is_no_progress_and_failing_otherwise_is() {
    let config = FaultConfig { max_restarts: 3, backoff: Duration::from_millis(1), ..FaultConfig::default() };
    fn failure(cause: &str) -> Result<Duration, EnvError> {
        Err(EnvError { cause: cause.into(), may_repeat: false })
    }
    let run = |trouble: Trouble, n: u64| {
        let mut ready =
            FirstComeCollector::new(envs(vec![trouble, fine], config.clone()), 4, FirstComeConfig::default()).unwrap();
        let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
        let mut filled = filled(ready.shape(4));
        loop {
            let collected = ready.collect(&policy, 0, &mut filled, &track);
            let counts = ready.counts();
            if collected.is_err() || counts.failures >= n {
                return (collected.map_err(|error| error.to_string()), counts);
            }
        }
    };
    // A start and two steps, then a failure: the first two are not known to be alike.
    let (error, counts) = run(|call| if call % 4 == 0 { failure("no luck") } else { Ok(Duration::ZERO) }, 100);
    assert!(error.unwrap_err().contains("replaced too often, last because: no luck"));
    assert_eq!((counts.failures, counts.restarts, counts.quarantined), (5, 3, 1));
    // After other numbers of steps, with other texts, or in a later episode.
    let otherwise: [Trouble; 3] = [
        |call| if call % 9 == 4 || call % 9 == 0 { failure("no luck") } else { Ok(Duration::ZERO) },
        |call| if call % 4 == 0 { failure(["a", "b"][(call / 4 % 2) as usize]) } else { Ok(Duration::ZERO) },
        |call| if call % 11 == 0 { failure("no luck") } else { Ok(Duration::ZERO) },
    ];
    for trouble in otherwise {
        let (collected, counts) = run(trouble, 20);
        assert_eq!((collected, counts.restarts), (Ok(()), 0), "{counts:?}");
    }
}

#[test]
fn while_all_of_them_fail_one_at_a_time_tries_again() {
    let down: Trouble =
        |call| if call <= 6 { Err(EnvError { cause: "down".into(), may_repeat: false }) } else { Ok(Duration::ZERO) };
    let pause = Duration::from_millis(30);
    let config = FaultConfig {
        max_restarts: 1000,
        breaker_faults: 8,
        breaker_pause: pause,
        backoff: Duration::from_micros(100),
        ..FaultConfig::default()
    };
    let begin = Instant::now();
    let (mut envs, calls) = counted(vec![down; 4], config);
    let mut events = Vec::new();
    let mut started = Vec::new();
    while started.len() < 4 {
        events.clear();
        envs.recv(1, Duration::ZERO, &mut events).unwrap();
        started.extend(events.iter().filter(|(_, event)| *event == EnvEvent::Started).map(|(env, _)| *env));
        if envs.counts().breaker_opened == 1 && started.is_empty() {
            // Eight faults have opened the breaker. Since then there is one call per pause, the first after one pause.
            let since = calls.iter().map(|calls| *calls.lock().unwrap()).sum::<u64>().saturating_sub(8);
            assert!(since <= 4 + (begin.elapsed().as_millis() / pause.as_millis()) as u64, "{since} calls");
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "it hangs");
    }
    started.sort_unstable();
    assert_eq!(started, [0, 1, 2, 3]);
    assert!(envs.counts().breaker_opened > 0 && begin.elapsed() >= 4 * pause, "{:?}", begin.elapsed());
    assert_eq!((envs.counts().failures, envs.counts().quarantined), (24, 0));
}

#[test]
fn whoever_waits_for_environments_that_hang_closes_within_a_second() {
    let hangs: Trouble = |_| Ok(Duration::from_secs(3600));
    let envs = envs(vec![hangs, hangs], FaultConfig::default());
    let ready = FirstComeCollector::new(envs, 4, FirstComeConfig::default()).unwrap();
    let policy = policy(&Counting::spaces());
    let mut pipeline =
        Pipeline::new(Mode::Overlapped { max_lag: 1 }, vec![ready], 4, &<dyn Memory>::host(), &Profile::new(false)).unwrap();
    let stoppers = pipeline.stoppers();
    let waiting = std::thread::spawn(move || pipeline.drive(&mut Still(policy), u64::MAX, |_, _| Ok(Flow::Continue)));
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    stoppers[0].store(true, std::sync::atomic::Ordering::Relaxed);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert!(matches!(error, Error::Env(rl_envs::Error::Stopped)), "{error}");
}

#[test]
fn stretches_that_are_too_old_are_dropped_and_counted() {
    let slow: Trouble = |_| Ok(Duration::from_millis(5));
    let envs = envs(vec![slow, fine], FaultConfig::default());
    let mut ready = FirstComeCollector::new(envs, 4, FirstComeConfig { max_age: 2, ..FirstComeConfig::default() }).unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(4));
    for learnt in 0..100_000 {
        ready.collect(&policy, learnt, &mut filled, &track).unwrap();
        assert!(filled.learnt.iter().all(|acted| learnt - acted <= 2), "no column is older than allowed");
        if ready.dropped() > 1 {
            return;
        }
    }
    panic!("nothing was dropped");
}

#[test]
fn stretches_of_a_learner_that_was_put_back_are_dropped() {
    let mut ready = FirstComeCollector::new(envs(vec![fine; 2], FaultConfig::default()), 4, FirstComeConfig::default()).unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(4));
    ready.collect(&policy, 10, &mut filled, &track).unwrap();
    // The environment of the last column continued under the policy of 10 rollouts, so its next stretch is dropped.
    for _ in 0..10_000 {
        ready.collect(&policy, 3, &mut filled, &track).unwrap();
        assert_eq!(filled.learnt, [3, 3]);
        if ready.dropped() > 0 {
            return;
        }
    }
    panic!("nothing was dropped");
}

/// Environment that observes its index, its step and its last action.
///
/// The higher the index, the slower the environment, so that batches keep changing.
struct Echo {
    index: usize,
    step: usize,
    kind: ActionSpace,
}

impl BlockingEnv for Echo {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[-10.0; 3], &[10.0; 3])
    }

    fn action_space(&self) -> ActionSpace {
        self.kind.clone()
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.step = 0;
        obs.copy_from_slice(&[self.index as f32, 0.0, -5.0]);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        std::thread::sleep(Duration::from_micros(100 * (self.index as u64 + 1)));
        self.step += 1;
        let action = match action {
            Action::Discrete(action) => action as f32,
            Action::Continuous(action) => action[0],
        };
        obs.copy_from_slice(&[self.index as f32, self.step as f32, action]);
        Ok(Step { reward: self.index as f32, terminated: false, truncated: self.step == 9 })
    }

    fn mask(&self, mask: &mut [u8]) {
        (0..mask.len()).for_each(|action| mask[action] = u8::from(action != (self.index + self.step) % 3));
    }
}

#[test]
fn what_is_stored_of_a_batch_is_that_of_each_environment() {
    let continuous = ActionSpace::Continuous { low: vec![-0.5], high: vec![0.5] };
    for kind in [ActionSpace::Discrete { n: 3, masked: false }, ActionSpace::Discrete { n: 3, masked: true }, continuous] {
        let spaces = Spaces { obs: Space::vector(&[-10.0; 3], &[10.0; 3]), actions: kind.clone() };
        let made = kind.clone();
        let make: Make<Echo> = Arc::new(move |index| Ok(Echo { index, step: 0, kind: made.clone() }));
        let envs = BlockingEnvs::new(5, spaces.clone(), make, FaultConfig::default(), 3).unwrap();
        let mut ready = FirstComeCollector::new(envs, 6, FirstComeConfig::default()).unwrap();
        let (mut policy, track) = (policy(&spaces), Profile::new(false).track("test"));
        let mut of_version = Snapshot::from(policy.weights());
        of_version.counters.version = 7;
        policy.load(&of_version).unwrap();
        let (mut filled, mut scratch) = (filled(ready.shape(6)), Scratch::default());
        for learnt in 0..8 {
            ready.collect(&policy, learnt, &mut filled, &track).unwrap();
            let rollout = &filled.rollout;
            assert!(!rollout.contiguous);
            for (t, n) in (0..6).flat_map(|t| (0..5).map(move |n| (t, n))) {
                let (here, next) = (row(rollout, t, n), row(rollout, t + 1, n));
                assert_eq!([here[0], rollout.rewards()[[t, n]]], [rollout.env_idx()[n] as f32; 2]);
                assert_eq!((rollout.policy_version()[n], policy.version()), (7, 7));
                let legal: Vec<u8> =
                    rollout.masks().iter().flat_map(|masks| (0..3).map(|a| masks[[t, n, a]]).collect::<Vec<_>>()).collect();
                for (action, &legal) in legal.iter().enumerate() {
                    assert_eq!(legal == 1, action != (here[0] + here[1]) as usize % 3, "the mask of this state");
                }
                let mut value = [0.0];
                policy.values(ObsSlice::F32(&here), &legal, &[], &mut value, &mut scratch).unwrap();
                assert!((rollout.values()[[t, n]] - value[0]).abs() < 1e-5, "the value of this state");
                let taken = match rollout.actions() {
                    Actions::Discrete(actions) => {
                        let action = actions[[t, n]];
                        assert!(legal.is_empty() || legal[action as usize] == 1);
                        // Draw until the same action comes again, for its log-probability.
                        let again = (0..1000).find_map(|step| {
                            let (mut drawn, mut log_prob) = ([0], [0.0]);
                            let choice = Choice::Sample { seed: 1, step, first_env: 0 };
                            let actions = Actions::Discrete(&mut drawn[..]);
                            let acting = Acting { obs: ObsSlice::F32(&here), masks: &legal, choice, envs: &[] };
                            let acted = Acted { actions, log_probs: &mut log_prob, values: &mut value, states: &mut [] };
                            policy.act(acting, acted, &mut scratch).unwrap();
                            (drawn[0] == action).then_some(log_prob[0])
                        });
                        assert!((rollout.log_probs()[[t, n]] - again.unwrap()).abs() < 1e-5, "its probability in this state");
                        action as f32
                    }
                    Actions::Continuous(actions) => actions[[t, n, 0]].clamp(-0.5, 0.5),
                };
                if rollout.truncated()[[t, n]] == 0 {
                    assert_eq!(next, [here[0], here[1] + 1.0, taken], "what followed this action");
                }
            }
        }
    }
}

#[test]
fn a_saved_state_counts_steps_of_environments_not_batches() {
    let waits = [200, 310, 420, 530].map(|micros| match micros {
        200 => |_| Ok(Duration::from_micros(200)),
        310 => |_| Ok(Duration::from_micros(310)),
        420 => |_| Ok(Duration::from_micros(420)),
        _ => (|_| Ok(Duration::from_micros(530))) as Trouble,
    });
    let config = FirstComeConfig { min_ready: 1, deadline: Duration::ZERO, ..FirstComeConfig::default() };
    let mut ready = FirstComeCollector::new(envs(waits.to_vec(), FaultConfig::default()), 5, config).unwrap();
    let (mut filled, track) = (filled(ready.shape(5)), Profile::new(false).track("test"));
    let policy = policy(&Counting::spaces());
    let (mut most, mut counts) = (0, [0; 4]);
    for learnt in 0..20 {
        ready.collect(&policy, learnt, &mut filled, &track).unwrap();
        filled.rollout.env_idx().iter().for_each(|&env| counts[env as usize] += 5);
        most = *counts.iter().max().unwrap();
    }
    // The quickest environment may have two more segments that no rollout has yet.
    let steps = ready.save().unwrap().steps();
    assert!((most..=most + 10).contains(&steps), "{steps} of {counts:?}");
}

/// Policy that checks the environments' indices, which [`Echo`] observes.
#[derive(Clone)]
struct Indexing;

impl Policy for Indexing {
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, _: &mut Scratch) -> Result<(), rl_agents::Error> {
        let ObsSlice::F32(obs) = acting.obs else { panic!("f32") };
        assert!(obs.chunks(3).map(|row| row[0] as u32).eq(acting.envs.iter().copied()), "{obs:?} of {:?}", acting.envs);
        let Actions::Discrete(actions) = acted.actions else { panic!("discrete") };
        actions.fill(0);
        Ok(())
    }

    fn values(&self, _: ObsSlice<'_>, _: &[u8], _: &[f32], values: &mut [f32], _: &mut Scratch) -> Result<(), rl_agents::Error> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> Weights<'_> {
        Weights { version: 0, params: Cow::Borrowed(&[]), obs: None }
    }
}

#[test]
fn the_policy_knows_whose_observations_a_batch_has() {
    let kind = ActionSpace::Discrete { n: 3, masked: false };
    let spaces = Spaces { obs: Space::vector(&[-10.0; 3], &[10.0; 3]), actions: kind.clone() };
    let make: Make<Echo> = Arc::new(move |index| Ok(Echo { index, step: 0, kind: kind.clone() }));
    let envs = BlockingEnvs::new(5, spaces, make, FaultConfig::default(), 3).unwrap();
    let mut ready = FirstComeCollector::new(envs, 6, FirstComeConfig::default()).unwrap();
    let (mut filled, track) = (filled(ready.shape(6)), Profile::new(false).track("test"));
    (0..20).for_each(|learnt| ready.collect(&Indexing, learnt, &mut filled, &track).unwrap());
}

#[test]
fn an_outage_of_all_of_them_is_outlived() {
    // Each environment works at first, then fails in nine calls.
    let outage: Trouble = |call| {
        if (4..=12).contains(&call) { Err(EnvError { cause: "down".into(), may_repeat: false }) } else { Ok(Duration::ZERO) }
    };
    // If the same environment always tried first, it would need more replacements than allowed.
    let (pause, backoff) = (Duration::from_millis(2), Duration::from_millis(3));
    let config = FaultConfig { max_restarts: 6, breaker_pause: pause, backoff, ..FaultConfig::default() };
    let (mut envs, calls) = counted(vec![outage; 3], config);
    let (mut events, begin) = (Vec::new(), Instant::now());
    while calls.iter().any(|calls| *calls.lock().unwrap() < 30) {
        envs.recv(1, Duration::ZERO, &mut events).unwrap();
        for (env, event) in events.drain(..) {
            match event {
                EnvEvent::Stepped(step) if step.done() => envs.reset(env),
                EnvEvent::Started | EnvEvent::Stepped(_) => envs.send(env, Action::Discrete(0)).unwrap(),
                EnvEvent::Faulted => {}
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "it hangs");
    }
    let counts = envs.counts();
    assert_eq!((counts.failures, counts.quarantined), (27, 0), "{counts:?}");
    assert!(counts.breaker_opened > 0 && counts.restarts > 9, "{counts:?}");
}

#[test]
fn an_outage_that_does_not_end_ends_the_run() {
    let outage: Trouble =
        |call| if call > 3 { Err(EnvError { cause: "down".into(), may_repeat: false }) } else { Ok(Duration::ZERO) };
    let (pause, window) = (Duration::from_millis(1), Duration::from_millis(60));
    let config = FaultConfig { max_restarts: 1000, breaker_pause: pause, window, ..FaultConfig::default() };
    let mut envs = envs(vec![outage; 3], FaultConfig { backoff: pause, ..config });
    let (mut events, begin) = (Vec::new(), Instant::now());
    let error = loop {
        if let Err(error) = envs.recv(1, Duration::ZERO, &mut events) {
            break error;
        }
        for (env, event) in events.drain(..) {
            if matches!(event, EnvEvent::Started | EnvEvent::Stepped(_)) {
                envs.send(env, Action::Discrete(0)).unwrap();
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "it goes on for ever");
    };
    assert!(begin.elapsed() > window && error.exit_code() == 5, "{error}");
}

#[test]
fn a_pipeline_that_is_dropped_ends_its_producer_though_environments_hang() {
    /// Collector that sends a message when it is dropped.
    struct Told(FirstComeCollector<Counting>, std::sync::mpsc::Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }

    impl Collect for Told {
        fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
            self.0.collect(policy, learnt, filled, track)
        }

        fn shape(&self, n_steps: usize) -> RolloutShape {
            self.0.shape(n_steps)
        }

        fn stopper(&self) -> Arc<AtomicBool> {
            self.0.stopper()
        }
    }

    // Two rollouts take sixteen steps; the environments hang after twenty.
    let hangs: Trouble = |call| Ok(if call > 12 { Duration::from_secs(3600) } else { Duration::ZERO });
    let ready = FirstComeCollector::new(envs(vec![hangs; 2], FaultConfig::default()), 4, FirstComeConfig::default()).unwrap();
    let (told, dropped) = std::sync::mpsc::channel();
    let policy = policy(&Counting::spaces());
    let mut pipeline =
        Pipeline::new(Mode::Overlapped { max_lag: 1 }, vec![Told(ready, told)], 4, &<dyn Memory>::host(), &Profile::new(false))
            .unwrap();
    let mut learnt = 0;
    let driven = pipeline.drive(&mut Still(policy), u64::MAX, |_, _| {
        learnt += 1;
        if learnt < 2 { Ok(Flow::Continue) } else { Err(Error::Config { problems: Vec::new() }) }
    });
    assert!(driven.is_err());
    std::thread::sleep(Duration::from_millis(50)); // until they hang
    drop(pipeline);
    assert_eq!(dropped.recv_timeout(Duration::from_secs(1)), Ok(()), "the producer has ended");
}

/// Environment that steps on command only.
struct Led {
    inner: Counting,
    steps: Option<Arc<Mutex<std::sync::mpsc::Receiver<()>>>>,
    begins: Arc<Mutex<Vec<f32>>>,
}

impl BlockingEnv for Led {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        Counting::spaces().obs
    }

    fn action_space(&self) -> ActionSpace {
        Counting::spaces().actions
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.begins.lock().unwrap().push(rng.uniform());
        self.inner.reset(rng, obs)
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        if let Some(steps) = &self.steps {
            let _ = steps.lock().unwrap().recv();
        }
        self.inner.step(action, rng, obs)
    }
}

fn led(trouble: Trouble, steps: Option<Arc<Mutex<std::sync::mpsc::Receiver<()>>>>, begins: Arc<Mutex<Vec<f32>>>) -> Led {
    Led { inner: Counting { trouble, calls: Arc::default(), life: 1.0, episode: 0.0, step: 0.0 }, steps, begins }
}

#[test]
fn a_stretch_with_actions_of_a_learner_that_was_put_back_is_dropped_though_it_began_before() {
    let (go, steps) = std::sync::mpsc::channel();
    let steps = Arc::new(Mutex::new(steps));
    let slowly: Trouble = |_| Ok(Duration::from_millis(2));
    let make: Make<Led> = Arc::new(move |env| Ok(led(slowly, (env == 1).then(|| steps.clone()), Arc::default())));
    let envs = BlockingEnvs::new(2, Counting::spaces(), make, FaultConfig::default(), 0).unwrap();
    let config = FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() };
    let mut ready = FirstComeCollector::new(envs, 4, config).unwrap();
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let mut filled = filled(ready.shape(4));
    // The first action is by the policy of 2 rollouts, the second by that of 10, the others by that of 3.
    ready.collect(&policy, 2, &mut filled, &track).unwrap();
    go.send(()).unwrap();
    ready.collect(&policy, 10, &mut filled, &track).unwrap();
    (0..100).for_each(|_| go.send(()).unwrap());
    let mut seen = false;
    for _ in 0..8 {
        ready.collect(&policy, 3, &mut filled, &track).unwrap();
        assert_eq!(filled.learnt, [3, 3]);
        seen |= filled.rollout.env_idx().contains(&1);
    }
    assert!(seen && ready.dropped() > 1, "{} dropped", ready.dropped());
}

#[test]
fn a_resumed_run_begins_with_other_random_numbers() {
    let (policy, track) = (policy(&Counting::spaces()), Profile::new(false).track("test"));
    let begin = |state| {
        let begins: Arc<Mutex<Vec<f32>>> = Arc::default();
        let told = begins.clone();
        let make: Make<Led> = Arc::new(move |_| Ok(led(fine, None, told.clone())));
        let envs = BlockingEnvs::new(1, Counting::spaces(), make, FaultConfig::default(), 0).unwrap();
        let mut ready = FirstComeCollector::new(envs, 4, FirstComeConfig::default()).unwrap();
        if let Some(state) = state {
            ready.load(state).unwrap();
        }
        let mut filled = filled(ready.shape(4));
        ready.collect(&policy, 0, &mut filled, &track).unwrap();
        let first = begins.lock().unwrap()[0];
        (first, ready.save().unwrap())
    };
    let (first, state) = begin(None);
    assert!(begin(None).0 == first && begin(Some(state)).0 != first);
}

#[test]
fn a_start_after_one_that_failed_has_randomness_of_its_own() {
    let late: Trouble =
        |call| if call <= 3 { Err(EnvError { cause: "not yet".into(), may_repeat: false }) } else { Ok(Duration::ZERO) };
    let begins: Arc<Mutex<Vec<f32>>> = Arc::default();
    let (calls, told) = (Arc::new(Mutex::new(0)), begins.clone());
    let make: Make<Led> = Arc::new(move |_| {
        let mut env = led(late, None, told.clone());
        env.inner.calls = calls.clone();
        Ok(env)
    });
    let config = FaultConfig { backoff: Duration::from_micros(10), ..FaultConfig::default() };
    let mut envs = BlockingEnvs::new(1, Counting::spaces(), make, config, 0).unwrap();
    envs.on_fault(Box::new(|_, _, _| ()));
    let mut events = Vec::new();
    while !events.contains(&(0, EnvEvent::Started)) {
        envs.recv(1, Duration::ZERO, &mut events).unwrap();
    }
    let begins = begins.lock().unwrap();
    assert!(begins.len() == 4 && (1..4).all(|i| !begins[..i].contains(&begins[i])), "{begins:?}");
}

/// CartPole with a non-finite number in every tenth call.
///
/// Reward and observation alternate.
struct Sick(CartPole, u32);

impl BlockingEnv for Sick {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.0.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.reset(rng, obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let mut step = self.0.step(action, rng, obs);
        self.1 += 1;
        match self.1 % 20 {
            10 => step.reward = f32::NAN,
            0 => obs[2] = f32::INFINITY,
            _ => {}
        }
        Ok(step)
    }
}

#[test]
fn an_action_outside_of_its_space_is_not_sent() {
    let mut envs = envs(vec![fine; 2], FaultConfig::default());
    let mut events = Vec::new();
    envs.recv(2, Duration::from_secs(10), &mut events).unwrap();
    let error = envs.send(1, Action::Discrete(2)).unwrap_err().to_string();
    assert!(error.contains("environment 1"), "{error}");
    assert!(envs.send(1, Action::Continuous(&[f32::NAN])).is_err());
    envs.send(1, Action::Discrete(1)).unwrap();
}

#[test]
fn a_number_that_is_not_finite_is_a_failure_and_gives_no_transition() {
    let spaces = catalog::find("cartpole").unwrap().spaces();
    let make: Make<Sick> = Arc::new(|_| Ok(Sick(CartPole::default(), 0)));
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut envs = BlockingEnvs::new(2, spaces.clone(), make, FaultConfig::default(), 0).unwrap();
    let all = told.clone();
    envs.on_fault(Box::new(move |_, fault, _| all.lock().unwrap().push(fault.to_string())));
    let mut ready =
        FirstComeCollector::new(envs, 50, FirstComeConfig { max_age: u64::MAX, ..FirstComeConfig::default() }).unwrap();
    let mut filled = filled(ready.shape(50));
    let policy = policy(&spaces);
    ready.collect(&policy, 0, &mut filled, &Profile::new(false).track("test")).unwrap();
    let Obs::F32(obs) = filled.rollout.obs() else { panic!("f32") };
    assert!(obs.iter().all(|x| x.is_finite()) && filled.rollout.rewards().iter().all(|reward| *reward == 1.0));
    let told = told.lock().unwrap();
    assert!(told.iter().any(|text| text == "the reward is NaN"), "{told:?}");
    assert!(told.iter().any(|text| text == "element 2 of the observation is not finite"), "{told:?}");
    assert!(filled.faults.failures >= 6 && filled.faults.panics == 0, "{:?}", filled.faults);
}
