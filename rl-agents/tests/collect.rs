//! Collection and evaluation with misbehaving environments.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;

use rl_agents::settings::OnNonfinite;
use rl_agents::{
    A2c, A2cConfig, Acted, Acting, ActorCritic, Agent, Anomaly, Collector, CollectorState, Dqn, DqnConfig, Episode, EvalConfig,
    LearnerKind, MemoryKind, NetConfig, Policy, Ppo, PpoConfig, QNetwork, Scratch, Weights, evaluate, evaluate_with,
};
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::wrappers::{EpisodeStats, RewardClip};
use rl_envs::{
    Action, ActionSpace, Canvas, Env, Error, Obs, ObsSliceMut, Pool, Rng, Space, Step, StepSlicesMut, Steps, SyncVecEnv, VecEnv,
};

/// A walk on a line that pays 1 for every step right, and ends at x = 3, if ever.
///
/// The observation is x - 10, which keeps its sign.
#[derive(Clone, Debug, Default)]
struct Walk {
    x: f32,
}

impl Env for Walk {
    type Obs = f32;
    type State = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[f32::MIN], &[-6.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.x = -(rng.below(3) as f32);
        obs[0] = self.x - 10.0;
    }

    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        let right = action.discrete() == 1;
        self.x += if right { 1.0 } else { -1.0 };
        obs[0] = self.x - 10.0;
        Step { reward: right.into(), terminated: self.x >= 3.0, truncated: false }
    }

    fn state(&self) -> Option<f32> {
        Some(self.x)
    }

    fn set_state(&mut self, state: f32) -> Result<(), Error> {
        self.x = state;
        Ok(())
    }
}

/// Returns a policy for `env` that prefers `action` in every state.
fn policy(env: &impl Env, action: usize) -> ActorCritic {
    let net = NetConfig { hidden: vec![4], ..NetConfig::default() };
    let (space, actions) = (env.observation_space(), env.action_space());
    // Initial policies hardly prefer any action, so one of the first seeds prefers `action` in all states nearby.
    (0..100)
        .map(|seed| ActorCritic::new(&space, &actions, &net, seed).unwrap())
        .find(|policy| {
            let mut envs = SyncVecEnv::new(8, env.clone());
            let config = EvalConfig { max_steps: 8, ..EvalConfig::new(0) };
            let played = evaluate_with(policy, &mut envs, &config, &mut |_, _| ControlFlow::Continue(())).unwrap();
            if action == 0 { played.cut == 8 } else { played.cut == 0 }
        })
        .unwrap()
}

fn go_on(_: &dyn VecEnv, _: &[rl_agents::Episode]) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn an_evaluation_cuts_episodes_that_do_not_end_and_counts_them() {
    let env = Walk::default();
    let (left, right) = (policy(&env, 0), policy(&env, 1));
    let config = EvalConfig { max_steps: 20, ..EvalConfig::new(3) };
    let played = evaluate_with(&left, &mut SyncVecEnv::new(5, env.clone()), &config, &mut go_on).unwrap();
    assert_eq!(played.cut, 5);
    assert!(played.episodes.iter().all(|episode| episode.length == 20));
    let played = evaluate_with(&right, &mut SyncVecEnv::new(5, env.clone()), &config, &mut go_on).unwrap();
    assert_eq!(played.cut, 0);
    assert!(played.episodes.iter().all(|episode| (3..=5).contains(&episode.length)));
    // Without a limit in the settings, a default one applies.
    let episodes = evaluate(&left, &mut SyncVecEnv::new(1, env), 3).unwrap();
    assert_eq!(episodes[0].length, rl_agents::MAX_EVAL_STEPS);
}

#[test]
fn an_episode_that_ends_at_the_limit_is_not_cut() {
    let env = Walk::default();
    let right = policy(&env, 1);
    let play = |max_steps| {
        let config = EvalConfig { max_steps, ..EvalConfig::new(3) };
        evaluate_with(&right, &mut SyncVecEnv::new(1, env.clone()), &config, &mut go_on).unwrap()
    };
    let length = play(0).episodes[0].length;
    assert_eq!((play(length).cut, play(length - 1).cut), (0, 1));
}

#[test]
fn stochastic_episodes_are_sampled_and_do_not_depend_on_slices() {
    let env = Walk::default();
    let right = policy(&env, 1);
    let play = |envs: &mut dyn VecEnv, seed, stochastic| {
        let config = EvalConfig { stochastic, max_steps: 50, ..EvalConfig::new(seed) };
        evaluate_with(&right, envs, &config, &mut go_on).unwrap().episodes
    };
    let whole = play(&mut SyncVecEnv::new(9, env.clone()), 3, true);
    let slices = [0..4, 4..9].map(|range| play(&mut SyncVecEnv::slice(range, env.clone()), 3, true));
    assert_eq!(whole, slices.concat());
    assert_ne!(whole, play(&mut SyncVecEnv::new(9, env.clone()), 3, false));
    assert_ne!(whole, play(&mut SyncVecEnv::new(9, env.clone()), 4, true));
}

#[test]
fn an_evaluation_can_be_broken_off_before_any_step() {
    let env = Walk::default();
    let left = policy(&env, 0);
    let mut steps = 0;
    let mut three = |_: &dyn VecEnv, _: &[rl_agents::Episode]| {
        steps += 1;
        if steps > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let played = evaluate_with(&left, &mut SyncVecEnv::new(2, env), &EvalConfig::new(0), &mut three).unwrap();
    assert_eq!(played.episodes.iter().map(|episode| episode.length).collect::<Vec<_>>(), [3, 3]);
}

/// Misbehaviour of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Fine,
    NanReward,
    InfReward,
    NanObs,
    NanFinalObs,
    NanFirstObs,
    OutsideObs,
    PanicStep,
    PanicReset,
    BothFlags,
}

/// Observes the number of steps taken, and pays 1 for each; an episode has 7 steps.
///
/// In bad episodes (one in three, or all) it misbehaves at its fourth step, at its first or at its last observation.
#[derive(Clone, Debug)]
struct Faulty {
    kind: Kind,
    always: bool,
    bad: bool,
    steps: u32,
}

impl Faulty {
    fn new(kind: Kind, always: bool) -> Self {
        Self { kind, always, bad: false, steps: 0 }
    }
}

impl Env for Faulty {
    type Obs = f32;
    type State = (bool, u32);

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0, f32::NEG_INFINITY], &[7.0, f32::INFINITY])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.steps = 0;
        self.bad = self.always || rng.below(3) == 0;
        assert!(!self.bad || self.kind != Kind::PanicReset, "no start");
        obs.fill(0.0);
        if self.bad && self.kind == Kind::NanFirstObs {
            obs[1] = f32::NAN;
        }
    }

    fn step(&mut self, _action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        self.steps += 1;
        obs.fill(self.steps as f32);
        let over = self.steps == 7;
        let mut step = Step { reward: 1.0, terminated: over, truncated: false };
        if self.bad && self.steps == 4 {
            match self.kind {
                Kind::NanReward => step.reward = f32::NAN,
                Kind::InfReward => step.reward = f32::INFINITY,
                Kind::NanObs => obs[1] = f32::NAN,
                Kind::OutsideObs => obs[0] = 7.5,
                Kind::PanicStep => panic!("no step"),
                _ => {}
            }
        }
        if self.bad && over {
            match self.kind {
                Kind::NanFinalObs => obs[1] = f32::NEG_INFINITY,
                Kind::BothFlags => step.truncated = true,
                _ => {}
            }
        }
        step
    }

    fn state(&self) -> Option<(bool, u32)> {
        Some((self.bad, self.steps))
    }

    fn set_state(&mut self, (bad, steps): (bool, u32)) -> Result<(), Error> {
        (self.bad, self.steps) = (bad, steps);
        Ok(())
    }
}

const N_ENVS: usize = 6;

fn agent(algo: &str, env: &Faulty) -> Box<dyn Agent> {
    let net = NetConfig { hidden: vec![8], ..NetConfig::default() };
    let (space, actions) = (env.observation_space(), env.action_space());
    let policy = || ActorCritic::new(&space, &actions, &net, 1).unwrap();
    match algo {
        "ppo" => {
            let config = PpoConfig { n_steps: 5, batch_size: 15, n_epochs: 2, normalize_reward: true, ..PpoConfig::default() };
            Box::new(Ppo::new(policy(), config, N_ENVS, 1).unwrap())
        }
        "a2c" => Box::new(A2c::new(policy(), A2cConfig { n_steps: 5, ..A2cConfig::default() }, N_ENVS, 1).unwrap()),
        _ => {
            let network = QNetwork::new(&space, &actions, &net, false, 1).unwrap();
            let config = DqnConfig {
                buffer_size: 500,
                batch_size: 8,
                learning_starts: 20,
                n_steps: 3,
                prioritized: true,
                ..DqnConfig::default()
            };
            Box::new(Dqn::new(network, config, &space, &actions, N_ENVS, 1).unwrap())
        }
    }
}

/// Trains for 20 rollouts, or until the collector fails.
fn train(algo: &str, kind: Kind, on_nonfinite: OnNonfinite) -> (Collector, Box<dyn Agent>, Result<u32, rl_agents::Error>) {
    let (env, pool) = (Faulty::new(kind, false), Pool::new(2).unwrap());
    let mut agent = agent(algo, &env);
    let mut collector = match Collector::new(N_ENVS, &env, &pool, 5) {
        Ok(collector) => collector.with_on_nonfinite(on_nonfinite),
        Err(error) => {
            // Its environments no longer matter then.
            let fine = Collector::new(N_ENVS, &Faulty::new(Kind::Fine, false), &pool, 5).unwrap();
            return (fine, agent, Err(error));
        }
    };
    let mut rollout = collector.rollout(5).unwrap();
    let mut episodes = 0;
    for _ in 0..20 {
        match collector.collect(agent.acting(1.0), &mut rollout) {
            Ok(ended) => {
                assert!(ended.iter().all(|episode| episode.length == 7 && episode.episode_return == 7.0), "{kind:?} {ended:?}");
                episodes += ended.len() as u32;
            }
            Err(error) => return (collector, agent, Err(error)),
        }
        assert!(rollout.rewards().iter().all(|reward| *reward == 1.0), "{kind:?}");
        let Obs::F32(obs) = rollout.obs() else { panic!("observations are f32") };
        let ObsSlice::F32(finals) = rollout.final_obs() else { panic!("observations are f32") };
        assert!(obs.iter().chain(finals).all(|x| x.is_finite()), "{kind:?}");
        agent.update(&rollout, 1.0, &pool).unwrap();
    }
    (collector, agent, Ok(episodes))
}

#[test]
fn each_way_to_misbehave_ends_as_documented_with_each_algorithm() {
    // Panics are expected here, on every thread.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !rl_agents::catches_panics() {
            print(panic);
        }
    }));
    use rl_agents::Error as E;
    for algo in ["ppo", "a2c", "dqn"] {
        let fine = train(algo, Kind::Fine, OnNonfinite::Error).2.unwrap();
        for kind in [Kind::NanReward, Kind::InfReward, Kind::NanObs, Kind::NanFinalObs, Kind::NanFirstObs] {
            let what = match kind {
                Kind::NanReward => "the reward is NaN",
                Kind::InfReward => "the reward is inf",
                Kind::NanFinalObs => "element 1 of the observation is -inf",
                _ => "element 1 of the observation is NaN",
            };
            let before = agent(algo, &Faulty::new(kind, false)).save().unwrap();
            let (_, agent, result) = train(algo, kind, OnNonfinite::Error);
            let Err(error) = result else { panic!("{algo} {kind:?} goes unnoticed") };
            assert!(matches!(&error, E::NotFinite(anomaly) if anomaly.what == what), "{algo} {kind:?}: {error}");
            let text = error.to_string();
            assert!(text.starts_with("environment ") && text.contains("step "), "{text}");
            assert!(
                agent.save().unwrap().params.iter().all(|x| x.is_finite())
                    && before.params.len() == agent.save().unwrap().params.len()
            );

            let (collector, agent, result) = train(algo, kind, OnNonfinite::Truncate);
            let episodes = match result {
                // One in three restarts begins with the same fault.
                Err(error) if kind == Kind::NanFirstObs => {
                    assert!(matches!(error, E::NotFiniteAgain(_)), "{error}");
                    continue;
                }
                result => result.unwrap(),
            };
            let anomalies = collector.anomalies();
            assert!(anomalies.truncated > 5 && anomalies.outside == 0, "{algo} {kind:?} {anomalies:?}");
            assert_eq!(anomalies.first_truncated.unwrap().what, what);
            assert!(episodes > 10 && episodes < fine, "{algo} {kind:?}: {episodes} of {fine}");
            assert!(agent.save().unwrap().params.iter().all(|x| x.is_finite()));
            assert_eq!(agent.save().unwrap().counters.steps.skipped, 0, "no update was skipped");
        }
        let (collector, _, result) = train(algo, Kind::OutsideObs, OnNonfinite::Error);
        assert_eq!(result.unwrap(), fine);
        let anomalies = collector.anomalies();
        assert!(anomalies.outside > 5 && anomalies.truncated == 0, "{anomalies:?}");
        let Anomaly { action, what, .. } = anomalies.first_outside.unwrap();
        assert!(action.is_some());
        assert_eq!(what, "element 0 of the observation is 7.5, outside of [0, 7]");
        for (kind, text) in [(Kind::PanicStep, "no step"), (Kind::PanicReset, "no start")] {
            let (.., result) = train(algo, kind, OnNonfinite::Truncate);
            let Err(E::EnvPanicked { first, last, cause, .. }) = result else { panic!("{algo} {kind:?}: {result:?}") };
            assert!(first <= last && last < N_ENVS && cause == text, "{first} {last} {cause}");
        }
        assert_eq!(train(algo, Kind::BothFlags, OnNonfinite::Error).2.unwrap(), fine, "terminated counts");
    }
}

/// Two slices; with a fault `kind`, the second misbehaves in every episode.
fn two_slices(kind: Kind) -> Collector {
    let fine = SyncVecEnv::slice(0..4, Faulty::new(Kind::Fine, true));
    let other = SyncVecEnv::slice(4..6, Faulty::new(kind, true));
    Collector::of(vec![Box::new(fine), Box::new(other)], &Pool::new(2).unwrap(), 5).unwrap()
}

fn column(rollout: &Rollout, n: usize) -> (Vec<f32>, Vec<u8>, Vec<u8>) {
    let Obs::F32(obs) = rollout.obs() else { panic!("observations are f32") };
    let obs = obs.index_axis(ndarray::Axis(1), n).column(0).to_vec();
    (obs, rollout.terminated().column(n).to_vec(), rollout.truncated().column(n).to_vec())
}

#[test]
fn a_fault_truncates_the_step_before_and_its_row_holds_a_new_episode() {
    let mut agent = agent("ppo", &Faulty::new(Kind::Fine, true));
    let mut healthy = two_slices(Kind::Fine);
    let mut faulty = two_slices(Kind::NanReward).with_on_nonfinite(OnNonfinite::Truncate);
    let (mut expected, mut found) = (healthy.rollout(6).unwrap(), faulty.rollout(6).unwrap());
    healthy.collect(agent.acting(1.0), &mut expected).unwrap();
    assert!(
        faulty.collect(agent.acting(1.0), &mut found).unwrap().is_empty(),
        "an episode that is given up counts in no statistics"
    );
    for n in 0..4 {
        assert_eq!(column(&found, n), column(&expected, n));
        assert_eq!(found.log_probs().column(n), expected.log_probs().column(n));
    }
    // The fourth step of each episode is faulty: those are rows 3 and 6, of which row 6 is in the next rollout.
    for n in [4, 5] {
        assert_eq!(column(&found, n), (vec![0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0], vec![0; 6], vec![0, 0, 1, 0, 0, 0]));
        let (same, log_prob) = (found.values()[[3, n]] == found.values()[[0, n]], found.log_probs()[[3, n]]);
        assert!(same && log_prob < 0.0, "the policy has acted on the new episode's start");
    }
    assert_eq!(found.final_at(), [(2, 4), (2, 5)]);
    let ObsSlice::F32(finals) = found.final_obs() else { panic!("observations are f32") };
    assert_eq!(finals, [3.0; 4], "what the step before led to");
    assert!(!found.cut_before);
    // The value after the last row is that of its observation, as for an episode cut off there.
    faulty.collect(agent.acting(1.0), &mut found).unwrap();
    assert!(found.cut_before);
    for n in [4, 5] {
        assert_eq!(column(&found, n).0[..4], [0.0, 1.0, 2.0, 0.0]);
    }
    assert_eq!(faulty.anomalies().truncated, 6);
    assert_eq!(faulty.anomalies().first_truncated.unwrap().to_string().split(", action").next(), Some("environment 4, step 4"));
}

/// A policy whose values are computed as it acts.
#[derive(Clone)]
struct AtOnce(ActorCritic);

impl Policy for AtOnce {
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), rl_agents::Error> {
        assert!(!acted.values.is_empty(), "a policy computes its values when it acts, unless it says otherwise");
        self.0.act(acting, acted, scratch)
    }

    fn values(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        states: &[f32],
        values: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), rl_agents::Error> {
        self.0.values(obs, masks, states, values, scratch)
    }

    fn weights(&self) -> Weights<'_> {
        self.0.weights()
    }
}

#[test]
fn values_computed_apart_are_those_computed_in_acting() {
    let env = Faulty::new(Kind::NanReward, false);
    for (learner, shared_trunk, apart) in
        [(LearnerKind::Fused, false, true), (LearnerKind::Fused, true, false), (LearnerKind::Reference, false, false)]
    {
        let net = NetConfig { hidden: vec![33, 65], shared_trunk, learner, ..NetConfig::default() };
        let policy = ActorCritic::new(&env.observation_space(), &env.action_space(), &net, 1).unwrap();
        assert_eq!(policy.values_apart(), apart);
        for n_envs in [1, 5, 30, 600, 768, 2000] {
            let run = |policy: &dyn Policy| {
                let mut collector = Collector::new(n_envs, &env, &Pool::new(2).unwrap(), 5).unwrap();
                collector = collector.with_on_nonfinite(OnNonfinite::Truncate);
                let mut rollout = collector.rollout(37).unwrap();
                collector.collect(policy, &mut rollout).unwrap();
                assert!(n_envs == 1 || collector.anomalies().truncated > 0, "steps are repeated, too");
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let [values, log_probs] =
                    [rollout.values(), rollout.log_probs()].map(|x| bits(&x.iter().copied().collect::<Vec<_>>()));
                let unset = rollout.values().iter().filter(|&&value| value == 0.0).count();
                assert!(2 * unset < rollout.values().len(), "only an episode's first observation has the value 0");
                (values, log_probs, bits(rollout.last_values()))
            };
            assert!(run(&policy) == run(&AtOnce(policy.clone())), "{n_envs} environments, {learner:?}, {shared_trunk}");
        }
    }
}

#[test]
fn a_fault_in_the_last_step_gives_up_the_episode_and_one_right_after_a_restart_is_an_error() {
    let mut agent = agent("ppo", &Faulty::new(Kind::Fine, true));
    let mut faulty = two_slices(Kind::NanFinalObs).with_on_nonfinite(OnNonfinite::Truncate);
    let mut rollout = faulty.rollout(8).unwrap();
    assert_eq!(faulty.collect(agent.acting(1.0), &mut rollout).unwrap().len(), 4, "those of the other slice");
    assert_eq!(column(&rollout, 5).0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0]);
    assert_eq!(column(&rollout, 5).2, [0, 0, 0, 0, 0, 1, 0, 0]);

    let mut faulty = two_slices(Kind::NanFirstObs).with_on_nonfinite(OnNonfinite::Truncate);
    let error = faulty.collect(agent.acting(1.0), &mut rollout).unwrap_err();
    assert!(matches!(&error, rl_agents::Error::NotFiniteAgain(anomaly) if anomaly.env_idx == 4), "{error}");
    let mut faulty = two_slices(Kind::NanFirstObs);
    let error = faulty.collect(agent.acting(1.0), &mut rollout).unwrap_err().to_string();
    assert!(error.starts_with("environment 4, start of an episode after step 0: element 1 of the observation is NaN"), "{error}");
}

#[test]
fn a_state_without_environments_begins_new_episodes() {
    let mut agent = agent("ppo", &Faulty::new(Kind::Fine, true));
    let mut collector = two_slices(Kind::Fine);
    let mut rollout = collector.rollout(5).unwrap();
    collector.collect(agent.acting(1.0), &mut rollout).unwrap();
    let state = CollectorState::without_envs(40);
    assert!(!state.has_envs() && collector.save().unwrap().has_envs());
    collector.load(state).unwrap();
    collector.collect(agent.acting(1.0), &mut rollout).unwrap();
    assert_eq!(column(&rollout, 0).0[..3], [0.0, 1.0, 2.0]);
}

#[test]
fn evaluations_name_what_is_not_finite_or_cut_its_episode() {
    let play = |kind, on_nonfinite| {
        let config = EvalConfig { on_nonfinite, ..EvalConfig::new(3) };
        let envs = &mut SyncVecEnv::slice(4..10, Faulty::new(kind, true));
        let net = NetConfig { hidden: vec![4], ..NetConfig::default() };
        let policy = ActorCritic::new(envs.observation_space(), envs.action_space(), &net, 0).unwrap();
        evaluate_with(&policy, envs, &config, &mut go_on)
    };
    for kind in [Kind::NanReward, Kind::InfReward, Kind::NanObs] {
        let error = play(kind, OnNonfinite::Error).unwrap_err().to_string();
        assert!(error.starts_with("environment 4, step 4, action "), "{error}");
        let played = play(kind, OnNonfinite::Truncate).unwrap();
        assert_eq!(played.cut, 6);
        assert!(played.episodes.iter().all(|episode| episode.length == 3 && episode.episode_return == 3.0));
    }
    assert_eq!(play(Kind::OutsideObs, OnNonfinite::Error).unwrap().cut, 0);
    let error = play(Kind::PanicStep, OnNonfinite::Error).unwrap_err();
    assert!(matches!(error, rl_agents::Error::EnvPanicked { first: 4, last: 9, step: 4, .. }), "{error}");
}

#[test]
fn slices_that_are_the_same_environments_twice_are_refused() {
    let env = Faulty::new(Kind::Fine, true);
    let boxed = |range| Box::new(SyncVecEnv::slice(range, env.clone())) as Box<dyn VecEnv>;
    let of = |ranges: Vec<std::ops::Range<usize>>| {
        Collector::of(ranges.into_iter().map(boxed).collect(), &Pool::new(1).unwrap(), 0).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(of(vec![0..4, 4..6, 6..7]), Ok(()));
    let error = of(vec![0..4, 0..4]).unwrap_err();
    assert!(error.starts_with("slice 1 of the batch begins with environment 0, expected 4"), "{error}");
    assert!(of(vec![4..8, 8..9]).is_err() && of(vec![0..4, 5..6]).is_err());
}

#[test]
fn clipped_rewards_are_learnt_from_and_raw_ones_are_told() {
    let mut agent = agent("ppo", &Faulty::new(Kind::Fine, true));
    let clipped = |range| RewardClip::new(SyncVecEnv::slice(range, Faulty::new(Kind::Fine, true)), -0.5, 0.5);
    let envs: [Box<dyn VecEnv>; 2] = [Box::new(clipped(0..4)), Box::new(EpisodeStats::new(clipped(4..6)))];
    let mut collector = Collector::of(envs.into(), &Pool::new(1).unwrap(), 5).unwrap();
    let mut rollout = collector.rollout(8).unwrap();
    let episodes = collector.collect(agent.acting(1.0), &mut rollout).unwrap();
    assert!(episodes.len() == 6 && episodes.iter().all(|episode| episode.episode_return == 7.0), "{episodes:?}");
    assert!(rollout.rewards().iter().all(|reward| *reward == 0.5));
    let episodes = evaluate(agent.policy(), &mut clipped(0..3), 0).unwrap();
    assert!(episodes.iter().all(|episode| episode.episode_return == 7.0), "{episodes:?}");
}

#[test]
fn an_infinite_reward_is_noticed_though_it_is_clipped() {
    let mut agent = agent("ppo", &Faulty::new(Kind::Fine, true));
    let envs = RewardClip::new(SyncVecEnv::new(6, Faulty::new(Kind::InfReward, true)), -1.0, 1.0);
    let mut collector = Collector::of(vec![Box::new(envs)], &Pool::new(1).unwrap(), 5).unwrap();
    let mut rollout = collector.rollout(5).unwrap();
    let error = collector.collect(agent.acting(1.0), &mut rollout).unwrap_err();
    assert!(error.to_string().contains("the reward is inf"), "{error}");
}

#[test]
fn no_environment_of_the_catalog_misbehaves() {
    for entry in rl_envs::catalog::ENVS {
        let mut collector = Collector::of(entry.slices(32, 2, 1).unwrap(), &Pool::new(2).unwrap(), 9).unwrap();
        let net = NetConfig { hidden: vec![4], ..NetConfig::default() };
        let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 0).unwrap();
        let mut rollout = collector.rollout(300).unwrap();
        collector.collect(&policy, &mut rollout).unwrap();
        assert_eq!(collector.anomalies(), rl_agents::Anomalies::default(), "{}", entry.name);
    }
}

/// Two environments in one process, one of which observes NaN once.
///
/// The process is lost, and both episodes with it, at a restart or at a repeated step. Episodes take 5 steps; a game of two lives
/// has two. The first observation is NaN if the first environment is `sick_at` step 0.
struct Lost {
    obs: Space,
    actions: ActionSpace,
    t: [u32; 2],
    lives: [u32; 2],
    goes_on: [bool; 2],
    /// Step of the first environment, over its episodes.
    sick_at: u32,
    step: u32,
    at_restart: bool,
    at_repeat: bool,
    faults: Vec<(usize, String)>,
}

impl Lost {
    fn new(at_restart: bool, at_repeat: bool) -> Self {
        let (obs, actions) = (Space::vector(&[0.0], &[10.0]), ActionSpace::Discrete { n: 2, masked: false });
        let (t, lives, goes_on, sick_at) = ([0; 2], [1; 2], [false; 2], 3);
        Self { obs, actions, t, lives, goes_on, sick_at, step: 0, at_restart, at_repeat, faults: Vec::new() }
    }

    fn lose(&mut self, all: &[usize]) {
        self.t = [0; 2];
        self.faults = all.iter().map(|&i| (i, "lost".into())).collect();
    }

    /// Steps environment `i`, whose row is `row`.
    fn advance(&mut self, i: usize, row: usize, steps: &mut StepSlicesMut<'_>) {
        let Obs::F32(obs) = &mut steps.obs else { panic!("f32") };
        self.t[i] += 1;
        self.step += u32::from(i == 0);
        let is_sick = i == 0 && self.step == self.sick_at;
        let ended = self.t[i].is_multiple_of(5);
        if ended {
            let Obs::F32(final_obs) = &mut steps.final_obs else { panic!("f32") };
            final_obs[row] = self.t[i] as f32;
        }
        self.goes_on[i] = ended && self.t[i] < 5 * self.lives[i];
        self.t[i] %= 5 * self.lives[i];
        obs[row] = if is_sick { f32::NAN } else { self.t[i] as f32 };
        (steps.rewards[row], steps.terminated[row], steps.truncated[row]) = (1.0, u8::from(ended), 0);
    }
}

impl VecEnv for Lost {
    fn n_envs(&self) -> usize {
        2
    }

    fn first_env(&self) -> u32 {
        0
    }

    fn observation_space(&self) -> &Space {
        &self.obs
    }

    fn action_space(&self) -> &ActionSpace {
        &self.actions
    }

    fn reset_into(&mut self, _: u64, obs: ObsSliceMut<'_>, _: Option<&mut [u8]>) -> Result<(), Error> {
        let Obs::F32(obs) = obs else { panic!("f32") };
        self.t = [0; 2];
        obs.fill(0.0);
        if self.sick_at == 0 {
            obs[0] = f32::NAN;
        }
        Ok(())
    }

    fn step_into(&mut self, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.faults.clear();
        (0..2).for_each(|i| self.advance(i, i, &mut steps));
        Ok(())
    }

    fn faults(&self) -> &[(usize, String)] {
        &self.faults
    }

    fn goes_on(&self, i: usize) -> bool {
        self.goes_on[i]
    }

    fn restart(&mut self, i: usize, obs: ObsSliceMut<'_>, _: Option<&mut [u8]>) -> Result<(), Error> {
        let Obs::F32(obs) = obs else { panic!("f32") };
        self.faults.retain(|(j, _)| *j != i);
        (self.t[i], self.goes_on[i]) = (0, false);
        obs[0] = 0.0;
        if std::mem::take(&mut self.at_restart) {
            self.lose(&[1 - i]);
        }
        Ok(())
    }

    fn repeat_step(&mut self, i: usize, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        if std::mem::take(&mut self.at_repeat) {
            self.lose(&[0, 1]);
            (steps.rewards[0], steps.terminated[0], steps.truncated[0]) = (0.0, 0, 0);
        } else {
            self.advance(i, 0, &mut steps);
        }
        Ok(())
    }

    fn render(&self, _: usize, _: &mut Canvas) {}

    fn save(&self) -> Result<Vec<u8>, Error> {
        Err(Error::CannotSave)
    }

    fn load(&mut self, _: &[u8]) -> Result<(), Error> {
        Err(Error::CannotSave)
    }
}

#[test]
fn a_process_that_is_lost_while_a_number_is_mended_is_a_fault_of_all_its_environments() {
    let obs = Lost::new(false, false);
    let policy = ActorCritic::new(&obs.obs, &obs.actions, &NetConfig::default(), 3).unwrap();
    for (at_restart, at_repeat) in [(false, false), (true, false), (false, true), (true, true)] {
        let lost = || Lost::new(at_restart, at_repeat);
        let mut collector = Collector::of(vec![Box::new(lost())], &Pool::new(1).unwrap(), 5).unwrap();
        collector = collector.with_on_nonfinite(OnNonfinite::Truncate);
        let mut rollout = collector.rollout(8).unwrap();
        collector.collect(&policy, &mut rollout).unwrap();
        let ObsSlice::F32(seen) = rollout.obs_rows(0..18) else { panic!("f32") };
        assert!(seen.iter().all(|x| x.is_finite()), "{seen:?}");
        // The second loss is of both, before the first has been seen.
        let faults = if at_repeat { 2 } else { u64::from(at_restart) };
        assert_eq!((collector.anomalies().truncated, collector.anomalies().faults), (1, faults), "{at_restart}, {at_repeat}");

        let config = EvalConfig { on_nonfinite: OnNonfinite::Truncate, ..EvalConfig::new(0) };
        let played = evaluate_with(&policy, &mut lost(), &config, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let [cut, whole] = [&played.episodes[0], &played.episodes[1]];
        assert_eq!((played.cut, cut.length, whole.length, whole.episode_return), (1, 2, 5, 5.0), "no episode is two");
    }
}

#[test]
fn the_loss_of_a_life_ends_an_episode_that_is_learnt_from_and_no_game() {
    let never = u32::MAX;
    let game = |sick_at| Lost { lives: [2; 2], sick_at, ..Lost::new(false, false) };
    let net = NetConfig { memory: MemoryKind::Gru, ..NetConfig::default() };
    let policy = ActorCritic::new(&game(0).obs, &game(0).actions, &net, 3).unwrap();
    let collect = |sick_at, n_steps| {
        let collector = Collector::of(vec![Box::new(game(sick_at))], &Pool::new(1).unwrap(), 5).unwrap();
        let mut collector = collector.with_on_nonfinite(OnNonfinite::Truncate);
        collector.remember(policy.state_len());
        let mut rollout = collector.rollout(n_steps).unwrap();
        let episodes = collector.collect(&policy, &mut rollout).unwrap();
        let mut ends = rollout.final_at().to_vec();
        ends.sort_unstable();
        let flags = (0..n_steps).map(|t| rollout.terminated()[[t, 0]] + 2 * rollout.truncated()[[t, 0]]);
        let of_first: Vec<_> = (0..).zip(flags).filter(|(_, flags)| *flags != 0).collect();
        (episodes, ends, of_first)
    };
    let whole = Episode { episode_return: 10.0, length: 10 };
    let (episodes, ends, of_first) = collect(never, 12);
    assert_eq!((episodes, ends), (vec![whole; 2], vec![(4, 0), (4, 1), (9, 0), (9, 1)]));
    assert_eq!(of_first, [(4, 1), (9, 1)]);
    // The step after a lost life fails: the game is dropped, and its episode has ended before.
    let (episodes, ends, of_first) = collect(6, 11);
    assert_eq!((episodes, ends), (vec![whole], vec![(4, 0), (4, 1), (9, 0), (9, 1)]));
    assert_eq!(of_first, [(4, 1), (9, 1)]);

    let played = evaluate_with(&policy, &mut game(never), &EvalConfig::new(0), &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((played.episodes, played.cut), (vec![whole; 2], 0));
    let mut stats = EpisodeStats::new(game(never));
    let mut steps = Steps::new(&stats);
    stats.reset(0, &mut steps).unwrap();
    (0..12).for_each(|_| stats.step(&mut steps).unwrap());
    let lengths: Vec<_> = stats.take_finished().iter().map(|episode| episode.length).collect();
    assert_eq!(lengths, [10, 10]);
}

#[test]
fn an_evaluation_outlives_bad_numbers_that_it_need_not_count() {
    let play = |sick_at, on_nonfinite| {
        let mut envs = Lost { lives: [1, 2], sick_at, ..Lost::new(false, false) };
        let policy = ActorCritic::new(&envs.obs, &envs.actions, &NetConfig::default(), 3).unwrap();
        let config = EvalConfig { on_nonfinite, ..EvalConfig::new(0) };
        let played = evaluate_with(&policy, &mut envs, &config, &mut |_, _| ControlFlow::Continue(()))?;
        Ok::<_, rl_agents::Error>((played.cut, played.episodes.iter().map(|episode| episode.length).collect::<Vec<_>>()))
    };
    for (on_nonfinite, sick_at, expected) in [
        (OnNonfinite::Error, 7, Some((0, vec![5, 10]))),
        (OnNonfinite::Error, 3, None),
        (OnNonfinite::Error, 0, None),
        (OnNonfinite::Truncate, 3, Some((1, vec![2, 10]))),
        (OnNonfinite::Truncate, 0, Some((0, vec![5, 10]))),
    ] {
        assert_eq!(play(sick_at, on_nonfinite).ok(), expected, "{on_nonfinite:?} at step {sick_at}");
    }
}
