//! Wrappers against plain loops over single environments that record everything.

use rl_envs::cartpole::CartPole;
use rl_envs::check::{Check, check_env};
use rl_envs::wrappers::{
    ActionRepeat, Episode, EpisodeStats, FrameStack, FrameStackState, Hidden, Hide, Pixels, RewardClip, StackedVecEnv, TimeLimit,
    TimeLimitState, time_preprocessing,
};
use rl_envs::{
    Action, ActionSpace, Actions, Canvas, Element, Env, Error, ObsRows, Part, Pool, PooledVecEnv, Purpose, Rng, Space, Step,
    StepSlicesMut, Steps, SyncVecEnv, VecEnv,
};
use serde::{Deserialize, Serialize};

const SIZES: [usize; 4] = [1, 31, 33, 65];
const SEED: u64 = 3;
const STEPS: usize = 120;

/// Numbers that drift, with a reward from -3 to 3.
///
/// Terminates at random, once in twenty steps; truncates at step 25.
#[derive(Clone)]
struct Drift<O> {
    state: State,
    /// Converts a number from 0 to 200.
    element: fn(f32) -> O,
    space: Space,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    x: f32,
    elapsed: u32,
}

impl<O> Drift<O> {
    fn observe(&self, obs: &mut [O]) {
        let State { x, elapsed } = self.state;
        obs.iter_mut().zip([x, elapsed as f32, 200.0 - x, 7.0]).for_each(|(obs, x)| *obs = (self.element)(x));
    }
}

impl<O: Element> Env for Drift<O> {
    type Obs = O;
    type State = State;

    fn observation_space(&self) -> Space {
        self.space.clone()
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 3, masked: true }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) {
        self.state = State { x: rng.uniform_in(80.0, 120.0), elapsed: 0 };
        self.observe(obs);
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [O]) -> Step {
        let State { x, elapsed } = self.state;
        let by = action.discrete() as f32 - 1.0 + rng.uniform_in(-2.0, 2.0);
        self.state = State { x: x + by, elapsed: elapsed + 1 };
        self.observe(obs);
        Step { reward: by, terminated: rng.below(20) == 0, truncated: elapsed + 1 >= 25 }
    }

    fn mask(&self, mask: &mut [u8]) {
        mask.copy_from_slice(&[1, (self.state.x as u32 & 1) as u8, 1]);
    }

    fn state(&self) -> Option<State> {
        Some(self.state)
    }

    fn set_state(&mut self, state: State) -> Result<(), Error> {
        if state.elapsed >= 25 {
            return Err(Error::BadState("elapsed".into()));
        }
        self.state = state;
        Ok(())
    }
}

fn vectors() -> Drift<f32> {
    Drift { state: State::default(), element: |x| x, space: Space::vector(&[0.0; 4], &[200.0; 4]) }
}

fn planes() -> Drift<u8> {
    Drift { state: State::default(), element: |x| x as u8, space: Space::bytes(&[2, 2, 1], 200, 0.005) }
}

/// Output of one environment of a batch in a step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    obs: Vec<f32>,
    mask: Vec<u8>,
    reward: f32,
    terminated: bool,
    truncated: bool,
    /// Final observation and mask, where an episode has ended.
    last: Option<(Vec<f32>, Vec<u8>)>,
}

/// Action of environment `i` after `t` steps.
fn action(i: usize, t: usize) -> u32 {
    Rng::new(SEED, i as u32, t as u64, Purpose::RandomAction).below(3)
}

/// A batch of any kind, and its output.
struct Batch<V> {
    envs: V,
    t: usize,
    steps: Steps,
}

impl<V: VecEnv> Batch<V> {
    fn new(envs: V) -> Self {
        Self { steps: Steps::new(&envs), envs, t: 0 }
    }

    fn rows(&self) -> Vec<Row> {
        let Steps { obs, rewards, terminated, truncated, final_obs, masks, .. } = &self.steps;
        let (d, a) = (self.envs.observation_space().len(), self.envs.action_space().len());
        let row = |obs: &ObsRows, i| -> Vec<f32> {
            obs.as_slice().row(i, d).either(<[f32]>::to_vec, |obs| obs.iter().map(|&x| f32::from(x)).collect())
        };
        let mask = |k: usize, i: usize| masks.iter().flat_map(|masks| masks[k][i * a..][..a].to_vec()).collect::<Vec<u8>>();
        let row = |i| Row {
            obs: row(obs, i),
            mask: mask(0, i),
            reward: rewards[i],
            terminated: terminated[i] == 1,
            truncated: truncated[i] == 1,
            last: self.steps.done(i).then(|| (row(final_obs, i), mask(1, i))),
        };
        (0..self.envs.n_envs()).map(row).collect()
    }

    fn reset(&mut self) -> Vec<Row> {
        self.t = 0;
        self.steps = Steps::new(&self.envs);
        self.envs.reset(SEED, &mut self.steps).expect("resets");
        self.rows()
    }

    fn step(&mut self) -> Vec<Row> {
        self.steps.actions = Actions::Discrete((0..self.envs.n_envs()).map(|i| action(i, self.t)).collect());
        self.t += 1;
        self.envs.step(&mut self.steps).expect("steps");
        self.rows()
    }
}

/// One environment stepped by hand.
struct Plain<O> {
    env: Drift<O>,
    i: usize,
    obs: Vec<O>,
}

impl<O: Element + Into<f32>> Plain<O> {
    fn new(env: Drift<O>, i: usize) -> Self {
        Self { env, i, obs: vec![O::default(); 4] }
    }

    fn reset(&mut self, t: usize) -> Vec<f32> {
        self.env.reset(&mut Rng::new(SEED, self.i as u32, t as u64, Purpose::Reset), &mut self.obs);
        self.obs.iter().map(|&x| x.into()).collect()
    }

    /// Takes the action of step t (from 1) with the random numbers of `rng`.
    fn step(&mut self, t: usize, rng: &mut Rng) -> (Vec<f32>, Step) {
        let step = self.env.step(Action::Discrete(action(self.i, t - 1)), rng, &mut self.obs);
        (self.obs.iter().map(|&x| x.into()).collect(), step)
    }

    fn rng(&self, t: usize) -> Rng {
        Rng::new(SEED, self.i as u32, t as u64, Purpose::Step)
    }

    fn mask(&self) -> Vec<u8> {
        let mut mask = vec![9; 3];
        self.env.mask(&mut mask);
        mask
    }
}

/// Returns the rows of environment `i`: the first one, then one per step.
///
/// `advance` takes a step; `see` computes an observation from those of the episode so far.
fn plain<O: Element + Into<f32>>(
    env: &Drift<O>,
    i: usize,
    advance: impl Fn(&mut Plain<O>, usize, usize) -> (Vec<f32>, Step),
    see: impl Fn(&[Vec<f32>]) -> Vec<f32>,
) -> Vec<Row> {
    let mut plain = Plain::new(env.clone(), i);
    let mut episode = vec![plain.reset(0)];
    let mut rows = vec![Row { obs: see(&episode), mask: plain.mask(), ..Row::default() }];
    for t in 1..=STEPS {
        let length = episode.len();
        let (obs, Step { reward, terminated, truncated }) = advance(&mut plain, t, length);
        episode.push(obs);
        let mut last = None;
        if terminated || truncated {
            last = Some((see(&episode), plain.mask()));
            episode = vec![plain.reset(t)];
        }
        rows.push(Row { obs: see(&episode), mask: plain.mask(), reward, terminated, truncated, last });
    }
    rows
}

/// Compares batches of `env`, one of them saved midway, with `expected` rows.
fn compare<E: Env + 'static>(env: &E, expected: impl Fn(usize) -> Vec<Row>) {
    let pool = Pool::new(2).expect("threads start");
    for n in SIZES {
        let expected: Vec<Vec<Row>> = (0..n).map(&expected).collect();
        let at = |t: usize| expected.iter().map(|rows| rows[t].clone()).collect::<Vec<_>>();
        let make: [&dyn Fn() -> Box<dyn VecEnv>; 2] =
            [&|| Box::new(SyncVecEnv::new(n, env.clone())), &|| Box::new(PooledVecEnv::new(n, env, &pool))];
        for make in make {
            let mut batch = Batch::new(make());
            assert_eq!(batch.reset(), at(0), "n={n}");
            for t in 1..=STEPS {
                assert_eq!(batch.step(), at(t), "n={n} t={t}");
                if t == STEPS / 2 {
                    let mut other = make();
                    other.load(&batch.envs.save().expect("saves")).expect("loads");
                    batch.envs = other;
                }
            }
        }
        assert!(expected.iter().flatten().any(|row| row.last.is_some()), "episodes end");
    }
}

fn assert_passes<E: Env + 'static>(env: &E) {
    let failed: Vec<Check> = check_env(env).into_iter().filter(Check::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn newest(episode: &[Vec<f32>]) -> Vec<f32> {
    episode[episode.len() - 1].clone()
}

#[test]
fn a_time_limit_truncates_and_never_terminates() {
    for limit in [1, 2, 7, 40] {
        let env = vectors();
        let advance = |plain: &mut Plain<f32>, t: usize, length: usize| {
            let mut rng = plain.rng(t);
            let (obs, step) = plain.step(t, &mut rng);
            (obs, Step { truncated: step.truncated || length == limit as usize, ..step })
        };
        compare(&TimeLimit::new(env.clone(), limit), |i| plain(&env, i, advance, newest));
        assert_passes(&TimeLimit::new(env, limit));
    }
}

#[test]
fn a_time_limit_refuses_a_state_beyond_it_and_changes_nothing() {
    let mut env = TimeLimit::new(vectors(), 7);
    env.reset(&mut Rng::new(0, 0, 0, Purpose::Reset), &mut [0.0; 4]);
    let before = env.state();
    let state = State { x: 90.0, elapsed: 3 };
    assert!(env.set_state(TimeLimitState { env: state, elapsed: 7 }).is_err());
    assert!(env.set_state(TimeLimitState { env: State { elapsed: 25, ..state }, elapsed: 3 }).is_err());
    assert_eq!(env.state(), before);
    assert!(env.set_state(TimeLimitState { env: state, elapsed: 6 }).is_ok());
}

#[test]
fn a_repeated_action_sums_rewards_and_stops_at_the_first_end() {
    for n_repeats in [1, 2, 4] {
        let env = vectors();
        let advance = |plain: &mut Plain<f32>, t: usize, _: usize| {
            let mut rng = plain.rng(t);
            let mut steps = vec![];
            while steps.len() < n_repeats && !steps.last().is_some_and(|(_, step): &(_, Step)| step.done()) {
                steps.push(plain.step(t, &mut rng));
            }
            let reward = steps.iter().map(|(_, step)| step.reward).reduce(|a, b| a + b).expect("a step at least");
            let (obs, last) = steps.pop().expect("a step at least");
            (obs, Step { reward, ..last })
        };
        compare(&ActionRepeat::new(env.clone(), n_repeats as u32), |i| plain(&env, i, advance, newest));
        assert_passes(&ActionRepeat::new(env, n_repeats as u32));
    }
}

/// Returns the last k of `episode`, before which it repeats its first observation.
fn last_k(episode: &[Vec<f32>], k: usize) -> Vec<f32> {
    let last = episode.len() - 1;
    (0..k).rev().flat_map(|age| episode[last.saturating_sub(age)].clone()).collect()
}

#[test]
fn hidden_elements_are_zeros_in_every_observation() {
    fn one_step<O: Element + Into<f32>>(plain: &mut Plain<O>, t: usize, _: usize) -> (Vec<f32>, Step) {
        let mut rng = plain.rng(t);
        plain.step(t, &mut rng)
    }
    let named = |env: Drift<f32>| Drift { space: env.space.with_velocities(&[0, 2]), ..env };
    let env = named(vectors());
    let hidden = |episode: &[Vec<f32>]| episode.last().map_or(vec![], |obs| vec![0.0, obs[1], 0.0, obs[3]]);
    compare(&Hide::new(env.clone(), Hidden::Velocities), |i| plain(&env, i, one_step, hidden));
    compare(&Hide::new(env.clone(), Hidden::Nothing), |i| plain(&env, i, one_step, newest));
    // A stack of what is hidden, of which the space knows the places.
    let stack = FrameStack::new(Hide::new(env, Hidden::Velocities), 2);
    let space = stack.observation_space();
    assert_eq!((space.velocities(), space.low()[0], space.high()[6]), (&[0, 2, 4, 6][..], 0.0, 0.0));
    assert_passes(&stack);
}

#[test]
fn stacked_frames_are_the_last_ones_and_never_of_two_episodes() {
    fn one_step<O: Element + Into<f32>>(plain: &mut Plain<O>, t: usize, _: usize) -> (Vec<f32>, Step) {
        let mut rng = plain.rng(t);
        plain.step(t, &mut rng)
    }
    for k in [1, 2, 4] {
        let (vectors, planes) = (vectors(), planes());
        compare(&FrameStack::new(vectors.clone(), k), |i| plain(&vectors, i, one_step, |episode| last_k(episode, k)));
        compare(&FrameStack::new(planes.clone(), k), |i| plain(&planes, i, one_step, |episode| last_k(episode, k)));
        assert_passes(&FrameStack::new(vectors, k));
        assert_passes(&FrameStack::new(planes, k));
    }
}

/// Restarts an environment in the middle, and repeats its last step if `again`.
///
/// Returns both observations.
fn restarted(envs: &mut dyn VecEnv, steps: &Steps, again: bool) -> [Vec<f32>; 2] {
    let (mut steps, i) = (steps.clone(), envs.n_envs() / 2);
    let mut one = steps.view_mut().env(i);
    let numbers =
        |one: &StepSlicesMut<'_>| one.obs.as_ref().either(|obs| obs.to_vec(), |obs| obs.iter().map(|&x| f32::from(x)).collect());
    let view = one.view_mut();
    envs.restart(i, view.obs, view.masks.map(|[masks, _]| masks)).expect("restarts");
    let first = numbers(&one);
    if again {
        envs.repeat_step(i, one.view_mut()).expect("steps");
    }
    [first, numbers(&one)]
}

/// Compares a batch that is stacked with one of stacked environments.
fn compare_stacks<E: Env + 'static>(env: &E, n: usize, k: usize) {
    let make = || Batch::new(StackedVecEnv::new(SyncVecEnv::new(n, env.clone()), k));
    let mut expected = Batch::new(SyncVecEnv::new(n, FrameStack::new(env.clone(), k)));
    let mut batch = make();
    assert_eq!(batch.envs.observation_space(), expected.envs.observation_space());
    assert_eq!(batch.reset(), expected.reset());
    for t in 1..=STEPS {
        assert_eq!(batch.step(), expected.step(), "n={n} k={k} t={t}");
        if t == 50 {
            let saved = batch.envs.save().expect("saves");
            batch = make();
            batch.envs.load(&saved).expect("loads");
            batch.t = t;
        }
        if t % 40 == 0 {
            let again = t % 80 == 0;
            let found = restarted(&mut batch.envs, &batch.steps, again);
            assert_eq!(found, restarted(&mut expected.envs, &expected.steps, again), "n={n} k={k} t={t}");
        }
    }
    let mut other = Batch::new(StackedVecEnv::new(SyncVecEnv::new(n, env.clone()), k + 1));
    assert!(other.envs.load(&batch.envs.save().expect("saves")).is_err());
    assert!(batch.envs.step_into(other.steps.view_mut()).is_err(), "columns of another space");
}

#[test]
fn stacks_of_a_batch_are_those_of_each_of_its_environments() {
    for (n, k) in SIZES.into_iter().flat_map(|n| [1, 2, 4].map(|k| (n, k))) {
        compare_stacks(&vectors(), n, k);
        compare_stacks(&planes(), n, k);
    }
}

#[test]
fn a_stack_is_k_times_as_long_in_its_first_axis() {
    let space = FrameStack::new(planes(), 3).observation_space();
    assert_eq!((space.shape(), space.scale(), space.high()), (&[6, 2, 1][..], 0.005, &[200.0; 12][..]));
    let parts = |shapes: &[&[usize]]| {
        let part = |(i, shape): (usize, &&[usize])| Part { name: i.to_string(), shape: shape.to_vec() };
        shapes.iter().enumerate().map(part).collect::<Vec<_>>()
    };
    let pictures = Space::vector(&[0.0; 12], &[1.0; 12]).with_parts(&parts(&[&[3, 2, 2]])).stacked(4);
    assert_eq!(pictures.parts(), parts(&[&[12, 2, 2]]));
    let mixed = Space::vector(&[0.0; 6], &[1.0; 6]).with_parts(&parts(&[&[1, 2, 2], &[2]]));
    assert_eq!(mixed.stacked(1), mixed);
    let names: Vec<_> = mixed.stacked(2).parts().iter().map(|part| part.name.clone()).collect();
    assert_eq!(names, ["0.0", "0.1", "1.0", "1.1"]);
    let space = Space::vector(&[0.0, -1.0], &[1.0, 2.0]).stacked(2);
    let twice: (&[usize], &[f32], &[f32]) = (&[4], &[0.0, -1.0, 0.0, -1.0], &[1.0, 2.0, 1.0, 2.0]);
    assert_eq!((space.shape(), space.low(), space.high()), twice);
}

#[test]
fn a_stack_refuses_frames_of_another_number_and_changes_nothing() {
    let mut env = FrameStack::new(vectors(), 2);
    env.reset(&mut Rng::new(0, 0, 0, Purpose::Reset), &mut [0.0; 8]);
    let before = env.state();
    let state = State { x: 90.0, elapsed: 3 };
    assert!(env.set_state(FrameStackState { env: state, frames: vec![0.0; 12] }).is_err());
    assert!(env.set_state(FrameStackState { env: State { elapsed: 25, ..state }, frames: vec![0.0; 8] }).is_err());
    assert_eq!(env.state(), before);
    assert!(env.set_state(FrameStackState { env: state, frames: vec![0.0; 8] }).is_ok());
}

#[test]
fn the_time_of_pictures_and_stacks_is_measured_on_request() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static READINGS: AtomicU64 = AtomicU64::new(0);
    fn clock() -> u64 {
        READINGS.fetch_add(1, Relaxed)
    }
    let mut rng = Rng::new(5, 0, 0, Purpose::Reset);
    let (mut pixels, mut plain) = (Pixels::new(CartPole::default(), 9), CartPole::default());
    let (mut obs, mut numbers) = (vec![0; 81], vec![0.0; 4]);
    pixels.reset(&mut rng, &mut obs);
    assert_eq!(READINGS.load(Relaxed), 0);
    // Two readings a picture, one after the other.
    let ((), spent) = time_preprocessing(clock, || {
        (0..3).for_each(|_| _ = pixels.step(Action::Discrete(0), &mut rng, &mut obs));
        plain.reset(&mut rng, &mut numbers);
        plain.step(Action::Discrete(0), &mut rng, &mut numbers);
    });
    assert_eq!((spent, READINGS.load(Relaxed)), (3, 6));
    pixels.step(Action::Discrete(0), &mut rng, &mut obs);
    assert_eq!((time_preprocessing(clock, || ()).1, READINGS.load(Relaxed)), (0, 6));
    // A stack moves its frames before the step, and copies them after it.
    let (mut stack, mut four) = (FrameStack::new(pixels, 4), vec![0; 4 * 81]);
    let (_, spent) = time_preprocessing(clock, || stack.step(Action::Discrete(0), &mut rng, &mut four));
    assert_eq!((spent, READINGS.load(Relaxed)), (3, 12));
    let (_, spent) = time_preprocessing(clock, || stack.reset(&mut rng, &mut four));
    assert_eq!((spent, READINGS.load(Relaxed)), (2, 16));
}

#[test]
fn pixels_are_the_picture_in_grey_in_the_middle_of_black() {
    const SIDE: usize = 30;
    let mut env = Pixels::new(CartPole::default(), SIDE);
    assert_passes(&env);
    assert_passes(&FrameStack::new(env.clone(), 2));
    assert_eq!((env.observation_space().shape(), env.observation_space().scale()), (&[1, SIDE, SIDE][..], 1.0 / 255.0));
    let (mut rng, mut obs) = (Rng::new(5, 0, 0, Purpose::Reset), vec![7; SIDE * SIDE]);
    env.reset(&mut rng, &mut obs);
    let first = obs.clone();
    for _ in 0..8 {
        let mut canvas = Canvas::new(SIDE, SIDE);
        env.render(&mut canvas);
        assert!(canvas.width() == SIDE && canvas.height() < SIDE, "a cart is wider than high");
        let top = (SIDE - canvas.height()) / 2;
        for (i, grey) in obs.iter().enumerate() {
            let (x, y) = (i % SIDE, i / SIDE);
            let expected = match y.checked_sub(top).filter(|row| *row < canvas.height()) {
                Some(row) => {
                    let [r, g, b] = canvas.pixel(x, row).map(f64::from);
                    0.299 * r + 0.587 * g + 0.114 * b
                }
                None => 0.0,
            };
            assert!((f64::from(*grey) - expected).abs() <= 1.5, "({x}, {y}): {grey}, {expected}");
        }
        assert!(!env.step(Action::Discrete(1), &mut rng, &mut obs).done());
    }
    assert!(obs != first, "the cart moves");
}

#[test]
fn wrappers_nest_and_a_time_limit_counts_what_it_is_around() {
    assert_passes(&FrameStack::new(ActionRepeat::new(TimeLimit::new(planes(), 10), 4), 3));
    let length = |env: &mut dyn FnMut() -> Step| (1..).find(|_| env().done());
    let mut rng = Rng::new(0, 0, 1, Purpose::Step);
    let (mut inside, mut outside) =
        (ActionRepeat::new(TimeLimit::new(Endless, 10), 4), TimeLimit::new(ActionRepeat::new(Endless, 4), 10));
    assert_eq!(length(&mut || inside.step(Action::Discrete(0), &mut rng, &mut [0.0])), Some(3));
    assert_eq!(length(&mut || outside.step(Action::Discrete(0), &mut rng, &mut [0.0])), Some(10));
}

/// An environment without randomness or change.
#[derive(Clone)]
struct Endless;

impl Env for Endless {
    type Obs = f32;
    type State = ();

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[0.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 1, masked: false }
    }

    fn reset(&mut self, _rng: &mut Rng, _obs: &mut [f32]) {}

    fn step(&mut self, _action: Action<'_>, _rng: &mut Rng, _obs: &mut [f32]) -> Step {
        Step::default()
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), Error> {
        Err(Error::CannotSave)
    }
}

#[test]
fn what_cannot_be_saved_cannot_be_saved_in_a_wrapper() {
    assert!(TimeLimit::new(Endless, 3).state().is_none());
    assert!(FrameStack::new(ActionRepeat::new(Endless, 3), 2).state().is_none());
    assert!(matches!(EpisodeStats::new(SyncVecEnv::new(2, Endless)).save(), Err(Error::CannotSave)));
}

/// Returns the episodes that end in each step, from lists of rewards.
fn plain_episodes(rows: &[Vec<Row>]) -> Vec<Vec<Episode>> {
    let mut rewards: Vec<Vec<f32>> = vec![vec![]; rows.len()];
    let mut ends = vec![];
    for t in 1..=STEPS {
        let mut ended = vec![];
        for (env_idx, (rewards, rows)) in rewards.iter_mut().zip(rows).enumerate() {
            rewards.push(rows[t].reward);
            if rows[t].last.is_some() {
                let episode_return = rewards.iter().map(|&reward| f64::from(reward)).sum();
                ended.push(Episode { env_idx, episode_return, length: rewards.len() as u32 });
                rewards.clear();
            }
        }
        ends.push(ended);
    }
    ends
}

/// Returns the rows of `n` bare environments.
fn bare(n: usize) -> Vec<Vec<Row>> {
    let mut batch = Batch::new(SyncVecEnv::new(n, vectors()));
    let mut rows: Vec<Vec<Row>> = batch.reset().into_iter().map(|row| vec![row]).collect();
    for _ in 0..STEPS {
        rows.iter_mut().zip(batch.step()).for_each(|(rows, row)| rows.push(row));
    }
    rows
}

fn boxed_and_reset(n: usize) -> Vec<u8> {
    let mut batch = Batch::new(boxed(n));
    batch.reset();
    batch.envs.save().expect("saves")
}

fn boxed(n: usize) -> Box<dyn VecEnv> {
    Box::new(SyncVecEnv::new(n, vectors()))
}

#[test]
fn episode_stats_tell_return_and_length_of_every_episode() {
    for n in SIZES {
        let rows = bare(n);
        let expected = plain_episodes(&rows);
        let mut batch = Batch::new(EpisodeStats::new(boxed(n)));
        batch.reset();
        let (mut saved, mut early) = (vec![], vec![]);
        for t in 1..=STEPS {
            let found = batch.step();
            assert!(found.iter().zip(&rows).all(|(found, rows)| *found == rows[t]), "what is inside is not changed");
            assert_eq!(batch.envs.take_finished(), expected[t - 1], "n={n} t={t}");
            if t == STEPS / 2 {
                // The other batch is saved before its episodes are taken.
                saved = batch.envs.save().expect("saves");
                let mut other = Batch::new(EpisodeStats::new(boxed(n)));
                other.envs.load(&saved).expect("loads");
                other.t = t;
                (0..30).for_each(|_| drop(other.step()));
                early = other.envs.save().expect("saves");
            }
        }
        let mut other = Batch::new(EpisodeStats::new(boxed(n)));
        for (bytes, steps) in [(&saved, STEPS / 2), (&early, STEPS / 2 - 30)] {
            other.envs.load(bytes).expect("loads");
            other.t = STEPS - steps;
            (0..steps).for_each(|_| drop(other.step()));
            assert_eq!(other.envs.take_finished(), expected[STEPS / 2..].concat(), "n={n}");
        }
        // A reset drops running episodes, and keeps ended ones.
        other.step();
        other.reset();
        other.envs.take_finished();
        (0..STEPS).for_each(|_| drop(other.step()));
        other.reset();
        assert_eq!(other.envs.take_finished(), expected.concat());
    }
}

#[test]
fn episode_stats_of_another_batch_are_refused_and_nothing_changes() {
    let mut batch = Batch::new(EpisodeStats::new(boxed(31)));
    batch.reset();
    (0..30).for_each(|_| drop(batch.step()));
    let before = batch.envs.save().expect("saves");
    let mut other = Batch::new(EpisodeStats::new(boxed(33)));
    other.reset();
    assert!(matches!(batch.envs.load(&other.envs.save().expect("saves")), Err(Error::BadState(_))));
    // Saved like a batch, but with episodes of other environments.
    let episodes = |n| (0..n).map(|env_idx| Episode { env_idx, episode_return: 0.0, length: 1 }).collect::<Vec<_>>();
    let inner = boxed_and_reset(31);
    for (running, finished) in [(episodes(33), vec![]), (episodes(31), episodes(32))] {
        let bytes = rl_envs::codec::encode(&(&inner, running, finished)).expect("encodes");
        assert!(matches!(batch.envs.load(&bytes), Err(Error::BadState(_))));
    }
    assert!(batch.envs.load(&rl_envs::codec::encode(&(&inner, episodes(31), episodes(31))).expect("encodes")).is_ok());
    batch.envs.load(&before).expect("loads");
    for cut in 0..before.len() {
        assert!(batch.envs.load(&before[..cut]).is_err(), "cut at {cut}");
    }
    assert_eq!(batch.envs.save().expect("saves"), before);
}

#[test]
fn clipped_rewards_lie_within_their_bounds_and_returns_outside_are_as_they_were() {
    for n in SIZES {
        let rows = bare(n);
        let expected = plain_episodes(&rows);
        let make = || Batch::new(RewardClip::new(EpisodeStats::new(boxed(n)), -1.0, 0.5));
        let mut batch = make();
        batch.reset();
        let mut is_clipped = false;
        for t in 1..=STEPS {
            for (found, rows) in batch.step().into_iter().zip(&rows) {
                let reward = rows[t].reward;
                let clipped = reward.clamp(-1.0, 0.5);
                is_clipped |= clipped != reward;
                assert_eq!(found, Row { reward: clipped, ..rows[t].clone() }, "n={n} t={t}");
            }
            assert_eq!(batch.envs.envs_mut().take_finished(), expected[t - 1], "n={n} t={t}");
            if t == STEPS / 2 {
                let saved = batch.envs.save().expect("saves");
                batch = make();
                batch.envs.load(&saved).expect("loads");
                batch.t = t;
            }
        }
        assert!(is_clipped);
    }
}
