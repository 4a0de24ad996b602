//! Rollouts, policies and gradient checks that the tests of the losses share.

use std::marker::PhantomData;

use candle_core::{DType, Device, Tensor, Var};
use rl_buffer::{ActionKind, Rollout, RolloutShape};
use rl_envs::{Action, ActionSpace, Element, Env, Part, Pool, Purpose, Rng, Space, Step, cartpole::CartPole, visit};

use crate::learner::batch::{Minibatch, SequenceBatch, TensorBatch};
use crate::learner::targets::Targets;
use crate::{ActorCritic, Collector, LearnerKind, MemoryKind, Metrics, NetConfig, Policy as _, Precision, Snapshot};

/// Kind of actions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Case {
    Discrete,
    Masked,
    Continuous,
    /// Three choices at once.
    Heads,
}

impl Case {
    pub(crate) const ALL: [Self; 4] = [Self::Discrete, Self::Masked, Self::Continuous, Self::Heads];
}

/// Euclidean norm of a difference, relative to the second vector.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b)))
}

/// Episodes of one step. What is seen tells the best action.
///
/// A picture (1, 4, 5) of one spot, in bytes; as f32 a picture between a category of 3 and a number, which tells which of the two
/// counts.
#[derive(Clone, Default)]
pub(crate) struct Gaze<T> {
    /// Category, spot, number.
    seen: [u8; 3],
    kind: PhantomData<T>,
}

impl<T: Element + From<u8>> Env for Gaze<T> {
    type Obs = T;
    type State = ();

    fn observation_space(&self) -> Space {
        if size_of::<T>() == 1 {
            return Space::bytes(&[1, 4, 5], 255, 0.5);
        }
        let part = |name: &str, shape: &[usize]| Part { name: name.into(), shape: shape.into() };
        let parts = [part("kind", &[1]), part("camera", &[1, 4, 5]), part("place", &[1])];
        let mut categories = [0; 22];
        categories[0] = 3;
        Space::vector(&[0.0; 22], &[2.0; 22]).with_categories(&categories).with_parts(&parts)
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Continuous { low: vec![-2.0], high: vec![2.0] }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [T]) {
        self.seen = [rng.below(3) as u8, rng.below(20) as u8, if size_of::<T>() == 1 { 1 } else { rng.below(2) as u8 }];
        let [kind, spot, place] = self.seen;
        obs.fill(0.into());
        let camera = if let [first, camera @ .., last] = obs
            && size_of::<T>() > 1
        {
            (*first, *last) = (kind.into(), place.into());
            camera
        } else {
            obs
        };
        camera[usize::from(spot)] = 2.into();
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [T]) -> Step {
        let Action::Continuous(action) = action else { panic!("continuous") };
        let [kind, spot, place] = self.seen;
        let best = if place == 0 { f32::from(kind) - 1.0 } else { f32::from(u8::from(spot >= 10)) * 2.0 - 1.0 };
        self.reset(rng, obs);
        Step { reward: -(action[0] - best).powi(2), terminated: true, truncated: false }
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
        Ok(())
    }
}

/// Four numbers that drift with three continuous actions and noise.
///
/// Every fifth step ends an episode, alternately terminated and truncated.
#[derive(Clone, Default)]
struct Drift {
    x: [f32; 4],
    elapsed: u32,
}

impl Env for Drift {
    type Obs = f32;
    type State = ();

    fn observation_space(&self) -> Space {
        Space::vector(&[f32::NEG_INFINITY; 4], &[f32::INFINITY; 4])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Continuous { low: vec![-1.0; 3], high: vec![0.5, 1.0, f32::INFINITY] }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.x = std::array::from_fn(|_| rng.normal());
        obs.copy_from_slice(&self.x);
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
        if let Action::Continuous(action) = action {
            self.x.iter_mut().zip(action).for_each(|(x, action)| *x += action);
        }
        self.x[3] += rng.normal();
        obs.copy_from_slice(&self.x);
        self.elapsed += 1;
        let (terminated, truncated) = (self.elapsed % 10 == 5, self.elapsed.is_multiple_of(10));
        Step { reward: self.x.iter().sum(), terminated, truncated }
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
        Ok(())
    }
}

/// [`Drift`] whose three numbers move by choices.
#[derive(Clone, Default)]
pub(crate) struct Choices(Drift);

impl Env for Choices {
    type Obs = f32;
    type State = ();

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::MultiDiscrete { sizes: vec![2, 3, 4] }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.0.reset(rng, obs);
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
        let action = action.discrete();
        let moves = [action / 12, action / 4 % 3, action % 4].map(|choice| 0.3 * choice as f32);
        self.0.step(Action::Continuous(&moves), rng, obs)
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
        Ok(())
    }
}

/// The fixture's policy, its parameters moved away from those that acted.
pub(crate) fn moved_policy(learner: LearnerKind, case: Case) -> ActorCritic {
    moved_policy_in(learner, Precision::F32, case)
}

/// [`moved_policy`] with a precision.
pub(crate) fn moved_policy_in(learner: LearnerKind, precision: Precision, case: Case) -> ActorCritic {
    let (policy, ..) = rollout_of(case);
    let (space, actions) = match case {
        Case::Continuous => (Drift::default().observation_space(), Drift::default().action_space()),
        Case::Heads => (Choices::default().observation_space(), Choices::default().action_space()),
        _ => (CartPole::default().observation_space(), CartPole::default().action_space()),
    };
    let net = NetConfig { hidden: vec![8, 5], learner, precision, ..NetConfig::default() };
    let acted = policy.params().to_vec();
    let mut policy = ActorCritic::new(&space, &actions, &net, 1).unwrap();
    policy.network_mut().change(|params| params.copy_from_slice(&acted));
    let mut rng = Rng::new(5, 0, 0, Purpose::Init);
    // Densities change faster with the parameters than probabilities do.
    let distance = if case == Case::Continuous { 0.05 } else { 0.3 };
    policy.network_mut().change(|params| params.iter_mut().for_each(|p| *p += distance * rng.normal()));
    policy
}

/// Asserts that two vectors are equal but for rounding.
pub(crate) fn assert_near(got: &[f32], expected: &[f32]) {
    let error = relative_error(got, expected);
    assert!(error < 2e-6, "relative error {error}");
}

/// Asserts that a gradient has the errors of a precision of 16 bits, and no others.
///
/// A product rounds its operands and its sum by at most one half of the last bit, which is 2^-8 of a number in bf16 and 2^-11 in
/// f16. A gradient is the result of some products in a row, whose errors partly cancel.
pub(crate) fn assert_rounded(precision: Precision, got: &[f32], expected: &[f32]) {
    let (error, rounding) =
        (relative_error(got, expected), if precision == Precision::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) });
    assert!((0.25 * rounding..2.5 * rounding).contains(&error), "{precision:?}: relative error {error}");
}

/// Distance of two vectors relative to the second one.
fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    assert_eq!(got.len(), expected.len());
    assert!(size > 0.0);
    error / size
}

/// Copies the steps of a rollout, with masks that leave the actions taken legal.
fn masked(rollout: &mut Rollout) -> Rollout {
    let shape = RolloutShape { actions: ActionKind::Discrete { masked: Some(2) }, ..rollout.shape() };
    let mut copy = Rollout::new(shape).unwrap();
    let (mut to, from) = (copy.columns(), rollout.columns());
    let mut masks = to.steps.masks.take();
    for (t, n, a) in (0..9).flat_map(|t| (0..8).map(move |i| (t, i / 2, i % 2))) {
        let legal = t == 8
            || (if t < 8 { from.actions(t) } else { from.actions(0) }).row(n, 1).discrete() as usize == a
            || (t + n) % 3 > 0;
        masks.as_mut().unwrap()[0][[t, 2 * n + a]] = u8::from(legal);
    }
    let both = to.steps.zip(from.steps).unwrap();
    let _ = visit!(Steps, both, |(mut to, from)| to.assign(&from));
    to.log_probs.assign(&from.log_probs);
    to.values.assign(&from.values);
    copy
}

/// A minibatch of 29 of the rollout's 32 samples.
///
/// Masks leave the action that was taken legal.
pub(crate) fn with_minibatch(case: Case, f: impl Fn(&Minibatch<'_>)) {
    let (_, mut rollout, targets) = rollout_of(case);
    if case == Case::Masked {
        rollout = masked(&mut rollout);
    }
    let rows: Vec<u32> = (0..29).rev().collect();
    let mut advantages = Vec::new();
    targets.advantages_of(&rows, true, &mut advantages);
    f(&Minibatch { rollout: &rollout, targets: &targets, rows: &rows, advantages: &advantages, ent_coef: 0.1 });
}

/// [`rollout_of`] with discrete actions.
pub(crate) fn rollout() -> (ActorCritic, Rollout, Targets) {
    rollout_of(Case::Discrete)
}

/// A policy, a rollout of 8 steps of 4 environments under it, and its targets.
pub(crate) fn rollout_of(case: Case) -> (ActorCritic, Rollout, Targets) {
    let net = NetConfig { hidden: vec![8, 5], log_std_init: -0.3, ..NetConfig::default() };
    rollout_with(case, &net, 4, [8])
}

/// A policy, the last of its rollouts, one for each of `n_steps`, and targets.
pub(crate) fn rollout_with<const N: usize>(
    case: Case,
    net: &NetConfig,
    n_envs: usize,
    n_steps: [usize; N],
) -> (ActorCritic, Rollout, Targets) {
    let pool = Pool::new(1).unwrap();
    let mut collector = match case {
        Case::Continuous => Collector::new(n_envs, &Drift::default(), &pool, 1).unwrap(),
        Case::Heads => Collector::new(n_envs, &Choices::default(), &pool, 1).unwrap(),
        _ => Collector::new(n_envs, &CartPole::default(), &pool, 1).unwrap(),
    };
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), net, 1).unwrap();
    collector.remember(policy.state_len());
    let rollouts = n_steps.map(|n_steps| {
        let mut rollout = collector.rollout(n_steps).unwrap();
        collector.collect(&policy, &mut rollout).unwrap();
        rollout
    });
    let rollout = rollouts.into_iter().next_back().expect("one rollout at least");
    let targets = Targets::new(&policy, &rollout, rollout.rewards(), 0.99, 0.95).unwrap();
    (policy, rollout, targets)
}

impl TensorBatch {
    /// A copy in f64, with masks under which the actions taken are legal.
    fn to_f64(&self, masked: bool) -> Self {
        let double = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
        let mask = || {
            let actions: Vec<u32> = self.actions.to_vec1().unwrap();
            let rows = actions.iter().enumerate().flat_map(|(i, &a)| [0, 1].map(|b| u8::from(a == b || i % 3 > 0)));
            Tensor::from_vec(rows.collect::<Vec<u8>>(), (actions.len(), 2), &Device::Cpu).unwrap()
        };
        Self {
            obs: double(&self.obs),
            masks: masked.then(mask),
            actions: if self.actions.dtype() == DType::U32 { self.actions.clone() } else { double(&self.actions) },
            log_probs: double(&self.log_probs),
            values: double(&self.values),
            advantages: double(&self.advantages),
            returns: double(&self.returns),
            sequences: self.sequences.as_ref().map(SequenceBatch::to_f64),
        }
    }
}

/// Compares the gradient of `loss` with central differences.
///
/// In f64, with parameters away from those that acted.
pub(crate) fn check_gradient(loss: impl Fn(&ActorCritic, &Tensor, &TensorBatch) -> Tensor) {
    let plain = NetConfig { hidden: vec![8, 5], log_std_init: -0.3, ..NetConfig::default() };
    check_gradient_of(&plain, [8], &loss);
    for (memory, shared_trunk) in [(MemoryKind::Gru, false), (MemoryKind::Lstm, true)] {
        let net = NetConfig { hidden: vec![3], memory, memory_size: 2, shared_trunk, ..plain.clone() };
        check_gradient_of(&net, [7, 12], &loss);
    }
}

/// [`check_gradient`] of the last of several rollouts, for some networks.
fn check_gradient_of<const N: usize>(
    net: &NetConfig,
    n_steps: [usize; N],
    loss: &impl Fn(&ActorCritic, &Tensor, &TensorBatch) -> Tensor,
) {
    for (first, case) in Case::ALL.into_iter().enumerate() {
        let (policy, rollout, targets) = rollout_with(case, net, 4, n_steps);
        let rows: Vec<u32> = (0..rollout.len() as u32).collect();
        let mut rng = Rng::new(5, 0, 0, Purpose::Init);
        let params: Vec<f64> = policy.params().iter().map(|&p| f64::from(p + 0.3 * rng.normal())).collect();
        let masked = case == Case::Masked;
        let batch = TensorBatch::gather(&policy, &rollout, &targets, &rows, &targets.advantages).unwrap().to_f64(masked);
        let at = |params: &[f64]| {
            let params = Tensor::from_slice(params, params.len(), &Device::Cpu).unwrap();
            loss(&policy, &params, &batch).to_scalar::<f64>().unwrap()
        };
        let variable = Var::from_slice(&params, params.len(), &Device::Cpu).unwrap();
        let grads = loss(&policy, &variable, &batch).backward().unwrap();
        let grads: Vec<f64> = grads.get(&variable).unwrap().to_vec1().unwrap();
        let norm = grads.iter().map(|g| g * g).sum::<f64>().sqrt();
        let step = 1e-6;
        // All parameters are checked by some case.
        for (i, &grad) in grads.iter().enumerate().skip(first % 3).step_by(3) {
            let mut moved = params.clone();
            moved[i] += step;
            let above = at(&moved);
            moved[i] -= 2.0 * step;
            let difference = (above - at(&moved)) / (2.0 * step);
            assert!((difference - grad).abs() < 1e-6 * norm.max(1.0), "parameter {i}: {grad} but {difference}");
        }
    }
}

/// A machine without fused multiply-add computes other bits than a GPU.
pub(crate) fn has_fma() -> bool {
    let fused = rl_envs::Isa::best() != rl_envs::Isa::Plain;
    if !fused {
        eprintln!("SKIPPED: this machine has no fused multiply-add, so its bits are not those of a GPU");
    }
    fused
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Asserts that two agents have the same bits, and have reported the same metrics.
pub(crate) fn assert_same([a, b]: [&Snapshot; 2], [expected, found]: [&Metrics; 2], context: &str) {
    let context = format!("{context}\n{expected:?}\n{found:?}");
    assert_eq!(a.counters, b.counters, "{context}");
    assert!(bits(&a.params) == bits(&b.params), "parameters: {context}");
    assert_eq!(a.moments.len(), b.moments.len());
    for ((name, a), (_, b)) in a.moments.iter().zip(&b.moments) {
        assert!(bits(a) == bits(b), "{name}: {context}");
    }
    assert!(expected.iter().map(|(name, _)| name).eq(found.iter().map(|(name, _)| name)), "{context}");
    for ((name, expected), (_, found)) in expected.iter().zip(found.iter()) {
        assert!(expected.to_bits() == found.to_bits(), "{name}: {context}");
    }
}
