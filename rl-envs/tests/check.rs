//! Checks of environments: sound ones pass, and the right check catches each fault.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rl_envs::cartpole::CartPole;
use rl_envs::catalog::{Batches, Entry};
use rl_envs::check::{Check, Outcome, check_env};
use rl_envs::lanes::Dynamics;
use rl_envs::{
    Action, ActionSpace, Canvas, Element, Env, Error, ObsSliceMut, Rng, Space, Spaces, Step, StepSlicesMut, SyncVecEnv, VecEnv,
    catalog,
};
use serde::{Deserialize, Serialize};

/// A fault of a [`Walk`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    CrossedBounds,
    NoScale,
    GrowingSpace,
    NanObs,
    ObsOutOfSpace,
    InfiniteReward,
    Endless,
    RowNotWrittenAtReset,
    RowNotWrittenAtStep,
    HiddenCounter,
    HiddenReward,
    IgnoredSeed,
    KeptElapsed,
    SharedByClones,
    PanicAtAction,
    PanicAtIllegalAction,
    MaskOfTwo,
    NothingLegal,
    MaskNotWritten,
    MaskThatCounts,
    StateWithoutElapsed,
    RefusedState,
    ElapsedOnlyRaised,
    FieldNotSerialized,
    StateThatJsonCannotHold,
}

/// Hidden counter of a fault: no reset sets it back.
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A walk on -4..=4, by -1, 0 or 1 (or by up to 1) a step.
///
/// It terminates off either end and is truncated after 12 steps.
#[derive(Clone)]
struct Walk<O> {
    fault: Fault,
    discrete: bool,
    /// Converts the numbers 0 to 20 to elements of observations.
    element: fn(f32) -> O,
    space: Space,
    state: State,
    shared: Arc<AtomicU32>,
    asked: Cell<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    x: f32,
    luck: f32,
    elapsed: u32,
    best: f32,
    #[serde(skip)]
    unsaved: f32,
}

impl<O> Walk<O> {
    fn new(fault: Fault, discrete: bool, element: fn(f32) -> O, space: Space) -> Self {
        let state = State { x: 0.0, luck: 0.0, elapsed: 0, best: 0.0, unsaved: 0.0 };
        Self { fault, discrete, element, space, state, shared: Arc::default(), asked: Cell::new(0) }
    }

    fn luck(&self, rng: &mut Rng) -> f32 {
        let luck = rng.uniform();
        match self.fault {
            Fault::HiddenCounter => (COUNTER.fetch_add(1, Ordering::Relaxed) % 7) as f32 / 7.0,
            Fault::IgnoredSeed => 0.5,
            _ => luck,
        }
    }

    fn observe(&self, obs: &mut [O]) {
        let State { x, luck, elapsed, unsaved, .. } = self.state;
        let extra = match self.fault {
            Fault::SharedByClones => (self.shared.load(Ordering::Relaxed) % 8) as f32,
            Fault::FieldNotSerialized => unsaved,
            Fault::NanObs if x > 2.0 => f32::NAN,
            Fault::ObsOutOfSpace if x.abs() > 4.0 => 10.0,
            _ => 0.0,
        };
        let row = [x + 8.0, 4.0 * luck, elapsed as f32, extra];
        obs.iter_mut().zip(row).for_each(|(obs, x)| *obs = (self.element)(x));
    }

    fn is_legal(&self, action: u32) -> bool {
        (self.state.x + action as f32 - 1.0).abs() <= 4.0 && self.fault != Fault::NothingLegal
    }
}

impl<O: Element> Env for Walk<O> {
    type Obs = O;
    type State = State;

    fn observation_space(&self) -> Space {
        match self.fault {
            Fault::CrossedBounds => Space::vector(&[0.0, 1.0, 0.0, 0.0], &[20.0, 0.0, 20.0, 8.0]),
            Fault::NoScale => Space::bytes(&[4], 20, 0.0),
            Fault::GrowingSpace if self.state.elapsed > 3 => Space::vector(&[0.0; 5], &[20.0; 5]),
            _ => self.space.clone(),
        }
    }

    fn action_space(&self) -> ActionSpace {
        match self.discrete {
            true => ActionSpace::Discrete { n: 3, masked: true },
            false => ActionSpace::Continuous { low: vec![-1.0, f32::NEG_INFINITY], high: vec![1.0, f32::INFINITY] },
        }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) {
        let elapsed = if self.fault == Fault::KeptElapsed { self.state.elapsed } else { 0 };
        let best = if self.fault == Fault::StateThatJsonCannotHold { f32::NEG_INFINITY } else { 0.0 };
        let luck = self.luck(rng);
        let x = if self.fault == Fault::IgnoredSeed { 0.0 } else { rng.below(9) as f32 - 4.0 };
        self.state = State { x, luck, elapsed, best, unsaved: 0.0 };
        self.shared.store(0, Ordering::Relaxed);
        self.asked.set(0);
        let kept = obs[3];
        self.observe(obs);
        if self.fault == Fault::RowNotWrittenAtReset {
            obs[3] = kept;
        }
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [O]) -> Step {
        let by = match action {
            Action::Discrete(action) => {
                assert!(self.fault != Fault::PanicAtAction || action != 1 || self.state.x != 2.0, "no way to stay");
                assert!(self.fault != Fault::PanicAtIllegalAction || self.is_legal(action), "no way there");
                action as f32 - 1.0
            }
            Action::Continuous(action) => action[0] + 0.1 * action[1].clamp(-1.0, 1.0),
        };
        let luck = self.luck(rng);
        let State { x, elapsed, best, unsaved, .. } = self.state;
        let x = (x + by).clamp(-5.0, 5.0);
        self.state = State { x, luck, elapsed: elapsed + 1, best: best.max(x), unsaved: (unsaved + 1.0) % 8.0 };
        self.shared.fetch_add(1, Ordering::Relaxed);
        let kept = obs[3];
        self.observe(obs);
        if self.fault == Fault::RowNotWrittenAtStep {
            obs[3] = kept;
        }
        if self.fault == Fault::Endless {
            (self.state.x, self.state.elapsed) = (x.clamp(-4.0, 4.0), 1);
            self.observe(obs);
        }
        let reward = match self.fault {
            Fault::InfiniteReward if x == 4.0 => f32::INFINITY,
            Fault::HiddenReward => (COUNTER.fetch_add(1, Ordering::Relaxed) % 7) as f32,
            _ => x * luck,
        };
        Step { reward, terminated: self.state.x.abs() > 4.0, truncated: self.state.elapsed >= 12 }
    }

    fn mask(&self, mask: &mut [u8]) {
        let written = if self.fault == Fault::MaskNotWritten { 2 } else { 3 };
        for (i, legal) in (0..written).zip(mask.iter_mut()) {
            *legal = self.is_legal(i).into();
        }
        match self.fault {
            Fault::MaskOfTwo => mask[1] = 2,
            Fault::MaskThatCounts => {
                self.asked.set(self.asked.get() + 1);
                mask[0] = u8::from(self.asked.get() % 5 < 3);
            }
            _ => {}
        }
    }

    fn state(&self) -> Option<State> {
        let elapsed = if self.fault == Fault::StateWithoutElapsed { 0 } else { self.state.elapsed };
        Some(State { elapsed, ..self.state.clone() })
    }

    fn set_state(&mut self, state: State) -> Result<(), Error> {
        if state.elapsed >= 12 || (self.fault == Fault::RefusedState && state.elapsed > 2) {
            return Err(Error::BadState(format!("elapsed is {}", state.elapsed)));
        }
        let elapsed = if self.fault == Fault::ElapsedOnlyRaised { state.elapsed.max(self.state.elapsed) } else { state.elapsed };
        self.state = State { elapsed, ..state };
        Ok(())
    }
}

fn vector() -> Space {
    Space::vector(&[0.0; 4], &[20.0, 4.0, 20.0, 8.0])
}

fn masked(fault: Fault) -> Vec<Check> {
    check_env(&Walk::new(fault, true, |x| x, vector()))
}

fn continuous(fault: Fault) -> Vec<Check> {
    check_env(&Walk::new(fault, false, |x| x, vector()))
}

fn bytes(fault: Fault) -> Vec<Check> {
    check_env(&Walk::new(fault, true, |x| x as u8, Space::bytes(&[4], 20, 0.05)))
}

fn report(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("{check}\n")).collect()
}

fn names(checks: &[Check], has: impl Fn(&Outcome) -> bool) -> Vec<&'static str> {
    checks.iter().filter(|check| has(&check.outcome)).map(|check| check.name).collect()
}

fn failed(checks: &[Check]) -> Vec<&'static str> {
    names(checks, |outcome| matches!(outcome, Outcome::Failed(_)))
}

#[test]
fn every_environment_of_the_catalog_keeps_the_contract() {
    for entry in catalog::ENVS {
        let checks = entry.check().expect("none blocks");
        assert!(failed(&checks).is_empty(), "{}:\n{}", entry.name, report(&checks));
    }
}

#[test]
fn sound_environments_pass_every_check() {
    for (checks, masks) in [(masked(Fault::None), true), (continuous(Fault::None), false), (bytes(Fault::None), true)] {
        assert!(failed(&checks).is_empty(), "{}", report(&checks));
        let no_masks: &[&str] = &["mask_values", "legal_actions", "whole_mask", "repeated_mask"];
        let skipped = names(&checks, |outcome| matches!(outcome, Outcome::Skipped(_)));
        assert_eq!(skipped, if masks { &[] } else { no_masks }, "{}", report(&checks));
    }
}

#[test]
fn the_same_environment_gets_the_same_answer() {
    assert_eq!(masked(Fault::NanObs), masked(Fault::NanObs));
}

/// An unusual but sound environment.
///
/// It has no randomness, no state to save, and episodes of a single step.
#[derive(Clone)]
struct Lamp;

impl Env for Lamp {
    type Obs = f32;
    type State = ();

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) {
        obs[0] = 0.0;
    }

    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        obs[0] = action.discrete() as f32;
        Step { reward: obs[0], terminated: true, truncated: true }
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), Error> {
        Err(Error::CannotSave)
    }
}

#[test]
fn what_an_environment_does_not_have_is_skipped() {
    let checks = check_env(&Lamp);
    assert!(failed(&checks).is_empty(), "{}", report(&checks));
    let skipped = names(&checks, |outcome| matches!(outcome, Outcome::Skipped(_)));
    let expected = [
        "other_seeds",
        "mask_values",
        "legal_actions",
        "whole_mask",
        "repeated_mask",
        "saved_state",
        "state_as_bytes",
        "state_as_json",
    ];
    assert_eq!(skipped, expected);
}

#[test]
fn every_fault_is_caught_by_the_check_that_names_it() {
    // Hidden randomness and shared state affect every check that compares two runs.
    let comparisons = &[
        "same_seed",
        "whole_row_at_reset",
        "whole_row_at_step",
        "reset_forgets",
        "independent_clones",
        "whole_mask",
        "repeated_mask",
        "saved_state",
        "state_as_bytes",
        "state_as_json",
        "batch",
    ];
    let any: Vec<&str> = masked(Fault::None).iter().map(|check| check.name).collect();
    // The fault, the check that names it, and the checks that may fail with it.
    let cases: &[(Fault, &str, &[&str])] = &[
        (Fault::CrossedBounds, "spaces", &["observations_in_space"]),
        (Fault::NoScale, "spaces", &[]),
        (Fault::GrowingSpace, "constant_spaces", &[]),
        (Fault::NanObs, "finite_observations", &[]),
        (Fault::ObsOutOfSpace, "observations_in_space", &[]),
        (Fault::InfiniteReward, "finite_rewards", &[]),
        (Fault::Endless, "episodes_end", &[]),
        (Fault::RowNotWrittenAtReset, "whole_row_at_reset", &[]),
        (Fault::RowNotWrittenAtStep, "whole_row_at_step", &[]),
        (Fault::HiddenCounter, "same_seed", comparisons),
        (Fault::HiddenReward, "same_seed", comparisons),
        (Fault::IgnoredSeed, "other_seeds", &[]),
        // Its steps add up beyond the space, and it refuses a state beyond the time limit.
        (Fault::KeptElapsed, "reset_forgets", &["observations_in_space", "saved_state"]),
        (Fault::SharedByClones, "independent_clones", comparisons),
        (Fault::SharedByClones, "batch", comparisons),
        (Fault::PanicAtAction, "every_action", &any),
        (Fault::PanicAtIllegalAction, "every_action", &any),
        (Fault::MaskOfTwo, "mask_values", &[]),
        (Fault::NothingLegal, "legal_actions", &[]),
        (Fault::MaskNotWritten, "whole_mask", &[]),
        // The counter is not part of its state.
        (Fault::MaskThatCounts, "repeated_mask", &["saved_state"]),
        (Fault::StateWithoutElapsed, "saved_state", &[]),
        (Fault::RefusedState, "saved_state", &[]),
        (Fault::ElapsedOnlyRaised, "saved_state", &[]),
        (Fault::FieldNotSerialized, "state_as_bytes", &["state_as_json"]),
        (Fault::StateThatJsonCannotHold, "state_as_json", &[]),
    ];
    for &(fault, name, others) in cases {
        let checks = if fault == Fault::NoScale { bytes(fault) } else { masked(fault) };
        let failed = failed(&checks);
        assert!(failed.contains(&name), "{fault:?} is not caught by {name}:\n{}", report(&checks));
        assert!(failed.iter().all(|f| *f == name || others.contains(f)), "{fault:?} fails more:\n{}", report(&checks));
    }
}

#[test]
fn a_failure_says_where_and_what_to_do() {
    let find = |checks: &[Check], name: &str| checks.iter().find(|check| check.name == name).map(ToString::to_string);
    assert_eq!(
        find(&masked(Fault::MaskOfTwo), "mask_values").as_deref(),
        Some("FAIL mask_values: at the first reset of seed 0: mask[1] is 2: write 1 for a legal action, 0 for another")
    );
    assert_eq!(
        find(&masked(Fault::RefusedState), "saved_state").as_deref(),
        Some(
            "FAIL saved_state: the state at step 5: set_state of a fresh environment refuses it: saved state: elapsed is 5: \
             accept what state gives"
        )
    );
    let panic = find(&masked(Fault::PanicAtIllegalAction), "every_action").expect("is checked");
    assert!(panic.contains("the illegal action Discrete(") && panic.contains("panics: no way there"), "{panic}");
    assert_eq!(find(&continuous(Fault::None), "finite_rewards").as_deref(), Some("PASS finite_rewards: rewards are finite"));
}

#[test]
fn continuous_environments_are_checked_at_their_bounds() {
    /// Fails at the upper bound only.
    #[derive(Clone)]
    struct Brittle(Walk<f32>);

    impl Env for Brittle {
        type Obs = f32;
        type State = State;

        fn observation_space(&self) -> Space {
            self.0.observation_space()
        }

        fn action_space(&self) -> ActionSpace {
            self.0.action_space()
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
            self.0.reset(rng, obs);
        }

        fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
            assert!(action.continuous()[0] < 1.0, "a bound is an action too");
            self.0.step(action, rng, obs)
        }

        fn state(&self) -> Option<State> {
            self.0.state()
        }

        fn set_state(&mut self, state: State) -> Result<(), Error> {
            self.0.set_state(state)
        }
    }

    let failed = failed(&check_env(&Brittle(Walk::new(Fault::None, false, |x| x, vector()))));
    assert!(failed.contains(&"every_action") && failed.contains(&"finite_rewards"), "{failed:?}");
}

/// Steps of all [`Counted`] environments.
static STEPS: AtomicU32 = AtomicU32::new(0);

/// CartPole that counts its steps.
#[derive(Clone, Default)]
struct Counted(rl_envs::cartpole::CartPole);

impl Env for Counted {
    type Obs = f32;
    type State = <rl_envs::cartpole::CartPole as Env>::State;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.0.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.0.reset(rng, obs);
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
        STEPS.fetch_add(1, Ordering::Relaxed);
        self.0.step(action, rng, obs)
    }

    fn state(&self) -> Option<Self::State> {
        self.0.state()
    }

    fn set_state(&mut self, state: Self::State) -> Result<(), Error> {
        self.0.set_state(state)
    }
}

#[test]
fn a_check_is_passed_on_before_the_next_one_begins() {
    let mut steps = Vec::new();
    let entry = catalog::Entry::of::<Counted>("counted", "a pole");
    entry.check_each(&mut |check| steps.push((check.name, STEPS.load(Ordering::Relaxed)))).unwrap();
    assert_eq!(steps.len(), entry.check().unwrap().len());
    assert!(steps[0].0 == "spaces" && steps[0].1 == 0, "{steps:?}");
    assert!(steps.windows(2).filter(|pair| pair[0].1 < pair[1].1).count() > 10, "{steps:?}");
}

/// A sum of actions, which the packed state forgets.
#[derive(Clone, Debug, Default)]
struct Forgets;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sum {
    steps: u32,
    sum: u32,
}

impl Dynamics<1, 1> for Forgets {
    type State = Sum;
    type Action = u32;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[10.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn start(&self, _: &mut Rng) -> Sum {
        Sum { steps: 0, sum: 0 }
    }

    fn advance(&self, Sum { steps, sum }: Sum, action: u32) -> (Sum, Step) {
        let next = Sum { steps: steps + 1, sum: sum + action };
        (next, Step { reward: next.sum as f32, terminated: next.steps == 10, truncated: false })
    }

    fn observe(&self, state: &Sum) -> [f32; 1] {
        [state.steps as f32]
    }

    fn fault(&self, _: &Sum) -> Option<String> {
        None
    }

    fn pack(state: Sum) -> [u32; 1] {
        [state.steps]
    }

    fn unpack([steps]: [u32; 1]) -> Sum {
        Sum { steps, sum: 0 }
    }
}

/// Returns the lines of the checks that an environment fails.
fn failures(entry: &Entry) -> Vec<String> {
    entry.check().expect("it steps").iter().filter(|check| check.failed()).map(ToString::to_string).collect()
}

#[test]
fn lanes_that_forget_a_part_of_the_state_are_caught() {
    let failed = failures(&Entry::lanes::<Forgets, 1, 1>("forgets", "a sum of actions"));
    assert!(failed.len() == 1 && failed[0].contains("lanes: environment 0 differs at step"), "{failed:?}");
}

/// CartPoles in a batch that restarts all of them for one, if it is told to.
#[derive(Debug)]
struct Together {
    envs: SyncVecEnv<CartPole>,
    restarts_all: bool,
}

impl VecEnv for Together {
    fn n_envs(&self) -> usize {
        self.envs.n_envs()
    }

    fn first_env(&self) -> u32 {
        self.envs.first_env()
    }

    fn observation_space(&self) -> &Space {
        self.envs.observation_space()
    }

    fn action_space(&self) -> &ActionSpace {
        self.envs.action_space()
    }

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.reset_into(seed, obs, masks)
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.step_into(steps)
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        if self.restarts_all {
            self.envs.restart(2, ObsSliceMut::F32(&mut [0.0; 4]), None)?;
        }
        self.envs.restart(env_idx, obs, masks)
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.repeat_step(env_idx, steps)
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        self.envs.render(env_idx, canvas);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        self.envs.save()
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.envs.load(bytes)
    }
}

#[derive(Debug)]
struct Worker {
    restarts_all: bool,
}

impl Batches for Worker {
    fn spaces(&self) -> Spaces {
        catalog::find("cartpole").expect("in the catalog").spaces()
    }

    fn slice(&'static self, range: Range<usize>) -> Result<Box<dyn VecEnv>, Error> {
        let envs = SyncVecEnv::slice(range, CartPole::default());
        Ok(Box::new(Together { envs, restarts_all: self.restarts_all }))
    }
}

#[test]
fn a_restart_that_changes_other_environments_is_caught() {
    let [one, all] = [false, true]
        .map(|restarts_all| failures(&Entry::outside("together", "CartPoles", Box::leak(Box::new(Worker { restarts_all })))));
    assert!(one.is_empty(), "{one:?}");
    assert!(all.len() == 1 && all[0].contains("restarts: environment 2 differs at step"), "{all:?}");
}
