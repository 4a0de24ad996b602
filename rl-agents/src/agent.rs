//! What every agent is, and what every agent that learns by gradient descent has.

use std::fmt::{self, Display};
use std::io::{Read, Write};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use ndarray::{CowArray, Ix2};
use rl_buffer::Rollout;
use rl_envs::Pool;
use serde::{Deserialize, Serialize};

use crate::batch::{Minibatch, Parts, TileSums};
use crate::normalize::{RunningReturns, Statistics, normalized_reward};
use crate::optim::{self, Optimizer, Rule, Steps};
use crate::tile::Slices;
use crate::{ActorCritic, Error, Policy};

/// An agent that learns from rollouts: [`Ppo`](crate::Ppo), [`A2c`](crate::A2c) or, through a replay memory, [`Dqn`](crate::Dqn).
pub trait Agent: Send {
    /// Returns the policy to evaluate, copy and save.
    ///
    /// Its exploration is that of the last [`Agent::acting`]; rollouts are collected with [`Agent::acting`].
    fn policy(&self) -> &dyn Policy;

    /// Returns the policy to collect the next rollout with.
    ///
    /// Exploration follows its schedule to `remaining`, which is as in [`Agent::update`]. The default explores by sampling alone.
    fn acting(&mut self, _remaining: f32) -> &dyn Policy {
        self.policy()
    }

    /// Learns from one rollout, on the threads of `pool`. `remaining` is the fraction of training
    /// that was still to come before the rollout, 1 at the start: schedules follow it.
    ///
    /// # Errors
    /// [`Error::Diverged`] when losses stay non-finite, and those of candle. Steps that are not finite are skipped.
    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error>;

    /// Ends the trajectories of the rollouts so far: the next rollout does not continue them. Called where a rollout is dropped,
    /// or the environments begin new episodes, between two updates.
    fn gap(&mut self) {}

    /// Everything to continue from, the replay memory excepted.
    fn save(&self) -> Snapshot;

    /// Continues from what `save` gave. A replay memory is empty then, until [`Agent::load_replay`] has filled it.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it does not fit; then nothing has changed.
    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error>;

    /// True if the replay memory belongs to what is saved.
    fn saves_replay(&self) -> bool {
        false
    }

    /// Writes the replay memory, without a copy of it; nothing where there is none.
    ///
    /// # Errors
    /// [`Error::Buffer`] if `out` fails.
    fn save_replay(&self, _out: &mut dyn Write) -> Result<(), Error> {
        Ok(())
    }

    /// Fills the replay memory with what `save_replay` wrote beside `snapshot`, which has been loaded.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if there is no replay memory, [`Error::Buffer`] if the input is damaged or another memory's; then the replay
    /// memory is empty.
    fn load_replay(&mut self, _snapshot: &Snapshot, _input: &mut dyn Read) -> Result<(), Error> {
        Err(Error::Snapshot("this agent has no replay memory".into()))
    }
}

/// What an update reports, under the names that users of Stable-Baselines3 know. Equal if its values are, however long it took.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    values: Vec<(&'static str, f32)>,
    targets: Duration,
}

impl PartialEq for Metrics {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Metrics {
    /// No values yet; `targets` is how long it took to compute the targets.
    pub(crate) fn new(targets: Duration) -> Self {
        Self { values: Vec::new(), targets }
    }

    pub(crate) fn push(&mut self, name: &'static str, value: f32) {
        self.values.push((name, value));
    }

    /// How much of the update's time the targets took: advantages, returns, values of next states.
    #[must_use]
    pub fn targets(&self) -> Duration {
        self.targets
    }

    /// The value under a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f32> {
        self.values.iter().find(|(n, _)| *n == name).map(|&(_, value)| value)
    }

    /// Names and values, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f32)> {
        self.values.iter().copied()
    }
}

/// The steps of the optimizer in an update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepSums {
    taken: u32,
    skipped: u32,
    norm: f32,
}

impl StepSums {
    /// Counts a step by its gradient's norm, or one that was skipped.
    pub(crate) fn push(&mut self, norm: Option<f32>) {
        match norm {
            Some(norm) => (self.taken, self.norm) = (self.taken + 1, self.norm + norm),
            None => self.skipped += 1,
        }
    }

    /// Reports the mean norm, NaN if no step was taken, and the number of skipped steps.
    pub(crate) fn report(self, metrics: &mut Metrics) {
        metrics.push("train/grad_norm", self.norm / self.taken as f32);
        metrics.push("train/skipped_updates", self.skipped as f32);
    }
}

/// The step of the optimizer at which learning was given up. It was not taken: the policy has the parameters from before.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Steps that the optimizer has taken.
    pub steps: u64,
    /// Steps skipped in a row, this one included.
    pub skipped: u64,
    /// The learning rate.
    pub learning_rate: f32,
    /// The parts of the minibatch's loss, by name.
    pub losses: Vec<(&'static str, f32)>,
    /// The gradient's norm.
    pub grad_norm: f32,
    /// The minibatch.
    pub minibatch: Vec<NamedTensor>,
}

/// A tensor with a name, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements.
    pub values: Vec<f32>,
}

impl NamedTensor {
    /// The values of one of candle's tensors.
    pub(crate) fn new(name: &'static str, tensor: &Tensor) -> candle_core::Result<Self> {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(Self { name, shape: tensor.dims().into(), values })
    }
}

impl Divergence {
    /// The last step of `optimizer`, which was to follow `gradient`.
    pub(crate) fn new(
        optimizer: &Optimizer,
        gradient: &[f32],
        learning_rate: f32,
        losses: &[(&'static str, f32)],
        minibatch: Vec<NamedTensor>,
    ) -> Self {
        let ((steps, skipped), grad_norm) = (optimizer.steps(), optim::norm(gradient));
        Self { steps, skipped, learning_rate, losses: losses.into(), grad_norm, minibatch }
    }
}

impl Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, skipped, learning_rate, losses, grad_norm, .. } = self;
        write!(
            f,
            "diverged after {steps} optimizer steps: the loss or gradient of {skipped} steps in a row was not finite, all skipped;"
        )?;
        losses.iter().try_for_each(|(name, loss)| write!(f, " {name} {loss},"))?;
        write!(f, " gradient norm {grad_norm}, learning_rate {learning_rate}")
    }
}

/// A setting that may change over training. Written as a number, or as `lin_X`: from X down to 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Schedule {
    /// Always the same.
    Constant(f32),
    /// Proportional to what remains of training.
    Linear(f32),
}

impl Schedule {
    /// The value when this fraction of training remains.
    #[must_use]
    pub fn at(self, remaining: f32) -> f32 {
        match self {
            Self::Constant(value) => value,
            Self::Linear(start) => start * remaining,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

impl TryFrom<Written> for Schedule {
    type Error = String;
    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(value) => Ok(Self::Constant(value as f32)),
            Written::Text(text) => {
                let start = text.strip_prefix("lin_").and_then(|start| start.parse().ok());
                start.map(Self::Linear).ok_or_else(|| format!("\"{text}\" is neither a number nor \"lin_\" and a number"))
            }
        }
    }
}

impl From<Schedule> for Written {
    fn from(schedule: Schedule) -> Self {
        match schedule {
            // Through its shortest decimal form, so that 0.3 is written as 0.3 and not as the nearest f32's expansion.
            Schedule::Constant(value) => Self::Number(value.to_string().parse().unwrap_or(f64::from(value))),
            Schedule::Linear(start) => Self::Text(format!("lin_{start}")),
        }
    }
}

/// An agent's state, but for its replay memory, which is written and read as a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The parameter vector.
    pub params: Vec<f32>,
    /// The optimizer's moments, and the target network's parameters, by name, each as long as the parameter vector.
    pub moments: Vec<(String, Vec<f32>)>,
    /// The running statistics.
    pub statistics: Statistics,
    /// The rest.
    pub counters: Counters,
}

impl Snapshot {
    /// Refuses a state that no agent can have: numbers that are not finite, counters that would overflow.
    ///
    /// # Errors
    /// [`Error::Snapshot`], which names the first.
    pub fn check(&self) -> Result<(), Error> {
        let Self { params, moments, statistics, counters } = self;
        let named = moments.iter().map(|(name, values)| (&**name, values));
        for (name, values) in [("params", params)].into_iter().chain(named) {
            if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                return Err(Error::Snapshot(format!("number {at} of {name} is {}", values[at])));
            }
        }
        if !statistics.is_possible() {
            return Err(Error::Snapshot("its statistics are not finite, or no statistics of anything".into()));
        }
        let Counters { version, epochs, steps: (steps, skipped), env_steps, credit, empty_at } = *counters;
        let counts = [("version", version), ("epochs", epochs), ("steps", steps), ("env_steps", env_steps), ("credit", credit)];
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > u64::MAX / 4) {
            return Err(Error::Snapshot(format!("its counter {name} is {count}, which no run reaches")));
        }
        if skipped > u64::MAX / 4 || empty_at > env_steps {
            let what = format!("its counters skipped {skipped} and empty_at {empty_at} of {env_steps} env steps cannot be");
            return Err(Error::Snapshot(what));
        }
        Ok(())
    }
}

/// An agent's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Version of the policy.
    pub version: u64,
    /// Passes over rollouts, which number the shuffles; minibatches drawn from a replay memory.
    pub epochs: u64,
    /// Steps of the optimizer, and steps skipped running.
    pub steps: Steps,
    /// Of an agent with a replay memory: env steps so far.
    pub env_steps: u64,
    /// Env steps for which no update has been done yet.
    pub credit: u64,
    /// Env steps at which its memory was last empty.
    pub empty_at: u64,
}

/// Refuses a rollout whose columns do not continue the last one's trajectories; `what` needs them to.
pub(crate) fn check_contiguous(rollout: &Rollout, what: &'static str) -> Result<(), Error> {
    if rollout.contiguous { Ok(()) } else { Err(Error::Columns(what)) }
}

/// A policy, its optimizer, and the counters that make its randomness.
pub(crate) struct Descent {
    pub(crate) policy: ActorCritic,
    pub(crate) optimizer: Optimizer,
    pub(crate) epochs: u64,
    pub(crate) seed: u64,
    /// The gradient of the minibatch at hand (P).
    pub(crate) gradient: Vec<f32>,
    pub(crate) slices: Slices<TileSums>,
    /// What rewards are normalized by, if they are.
    returns: Option<RunningReturns>,
}

impl Descent {
    pub(crate) fn new(policy: ActorCritic, rule: Rule, seed: u64, normalize_reward: bool) -> Self {
        let len = policy.params().len();
        Self {
            policy,
            optimizer: Optimizer::new(rule, len),
            epochs: 0,
            seed,
            gradient: vec![0.0; len],
            slices: Slices::new(),
            returns: normalize_reward.then(RunningReturns::default),
        }
    }

    /// The rewards of a rollout as they are learnt from, (T, N). The rollout counts in the statistics that normalize them.
    pub(crate) fn rewards<'a>(&mut self, rollout: &'a Rollout, gamma: f32, pool: &Pool) -> Result<CowArray<'a, f32, Ix2>, Error> {
        let Some(returns) = &mut self.returns else { return Ok(rollout.rewards.view().into()) };
        check_contiguous(rollout, "normalize_reward sums up returns")?;
        returns.merge(rollout, gamma, pool);
        let inv_std = returns.inv_std();
        Ok(rollout.rewards.mapv(|reward| normalized_reward(reward, inv_std)).into())
    }

    /// The parameters as a variable that gradients are taken of.
    pub(crate) fn variable(&self) -> candle_core::Result<Var> {
        Var::from_slice(self.policy.params(), self.policy.params().len(), &Device::Cpu)
    }

    /// Adds the gradient of `loss` with respect to `params` to the minibatch's.
    pub(crate) fn add_gradient(&mut self, params: &Var, loss: &Tensor) -> candle_core::Result<()> {
        let grads = loss.backward()?;
        let grads = grads.get(params).ok_or_else(|| candle_core::Error::Msg("the loss does not depend on params".into()))?;
        self.gradient.iter_mut().zip(grads.to_vec1::<f32>()?).for_each(|(sum, grad)| *sum += grad);
        Ok(())
    }

    /// Takes one step down the gradient of `minibatch`, whose loss has these parts. Returns the gradient's norm before clipping, or
    /// `None` if the step was skipped because loss or gradient is not finite.
    pub(crate) fn step(
        &mut self,
        minibatch: &Minibatch<'_>,
        (loss, parts): (f32, &Parts),
        learning_rate: f32,
        max_norm: f32,
    ) -> Result<Option<f32>, Error> {
        let Self { policy, optimizer, gradient, .. } = self;
        let norm = if loss.is_finite() {
            policy.network_mut().change(|params| optimizer.step(params, gradient, learning_rate, max_norm))
        } else {
            optimizer.skip();
            None
        };
        if optimizer.has_diverged() {
            let losses = [("policy_loss", parts.policy), ("value_loss", parts.value), ("entropy_loss", parts.entropy)];
            let minibatch = minibatch.tensors(policy)?;
            return Err(Error::Diverged(Box::new(Divergence::new(optimizer, gradient, learning_rate, &losses, minibatch))));
        }
        Ok(norm)
    }

    /// Ends the trajectories of the rollouts so far.
    pub(crate) fn gap(&mut self) {
        if let Some(returns) = &mut self.returns {
            returns.forget_running();
        }
    }

    pub(crate) fn save(&self) -> Snapshot {
        let policy = self.policy.save();
        Snapshot {
            moments: self.optimizer.moments().into_iter().map(|(name, values)| (name.into(), values.to_vec())).collect(),
            statistics: Statistics { returns: self.returns.clone(), ..policy.statistics },
            counters: Counters { epochs: self.epochs, steps: self.optimizer.steps(), ..policy.counters },
            ..policy
        }
    }

    pub(crate) fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        snapshot.check()?;
        let returns = &snapshot.statistics.returns;
        if returns.is_some() != self.returns.is_some() || returns.as_ref().is_some_and(|returns| !returns.fits()) {
            return Err(Error::Snapshot("the statistics of its returns are not those that this agent keeps".into()));
        }
        let mut policy = self.policy.clone();
        policy.load(snapshot)?;
        self.optimizer.load(&snapshot.moments, snapshot.counters.steps)?;
        self.policy = policy;
        self.returns.clone_from(returns);
        self.epochs = snapshot.counters.epochs;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_constant_or_fall_to_zero() {
        assert_eq!(Schedule::Constant(0.5).at(0.25), 0.5);
        assert_eq!(Schedule::Linear(0.5).at(0.25), 0.125);
        assert_eq!(Schedule::try_from(Written::Text("lin_0.001".into())), Ok(Schedule::Linear(0.001)));
        assert!(Schedule::try_from(Written::Text("cos_1".into())).is_err());
        assert!(matches!(Written::from(Schedule::Constant(0.3)), Written::Number(x) if x == 0.3));
        assert!(matches!(Written::from(Schedule::Linear(0.001)), Written::Text(t) if t == "lin_0.001"));
    }
}
