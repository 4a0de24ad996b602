//! The contract of an agent, its metrics, schedules and saved state.

use std::fmt::{self, Display};
use std::io::{Read, Write};
use std::sync::Arc;

use candle_core::{DType, Tensor};
use rl_buffer::{Memory, Rollout};
use rl_envs::Pool;
use serde::{Deserialize, Serialize};

use crate::device::times::DeviceWatch;
use crate::learner::optim::{self, Optimizer, StepCount};
use crate::network::normalize::Statistics;
use crate::probe::Probe;
use crate::ranks::Ranks;
use crate::{Error, Layout, Policy, Weights};

/// An agent that learns from rollouts.
///
/// [`Ppo`](crate::Ppo), for example, or [`Dqn`](crate::Dqn), which has a replay memory.
pub trait Agent: Send {
    /// Returns the policy to evaluate and copy.
    ///
    /// Where environments step on the device that learns, its parameters are those of the last [`OnDevice::fetch_policy`]. Its
    /// exploration is that of the last [`Agent::acting`]; rollouts are collected with [`Agent::acting`].
    fn policy(&self) -> &dyn Policy;

    /// Returns the policy to collect the next rollout with.
    ///
    /// Exploration follows its schedule to `remaining`, which is as in [`Agent::update`]. The default explores by sampling alone.
    fn acting(&mut self, _remaining: f32) -> &dyn Policy {
        self.policy()
    }

    /// Returns names, shapes and order of the parameters in a snapshot.
    fn layout(&self) -> &Layout;

    /// Learns from one rollout, on the threads of `pool`.
    ///
    /// `remaining` is the fraction of training that remained before the rollout, 1 at the start; schedules depend on it.
    ///
    /// # Errors
    /// [`Error::Diverged`] if losses stay non-finite (single steps are skipped); errors of candle.
    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error>;

    /// Returns the state of the agent, apart from the replay memory.
    ///
    /// # Errors
    /// [`Error::Device`] if the state is on a device and cannot be read.
    fn save(&self) -> Result<Snapshot, Error>;

    /// Restores a saved state; a replay memory is empty until [`Replays::load_replay`].
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it does not fit; nothing has changed then.
    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error>;

    /// Ends the current trajectories: the next rollout does not continue them.
    ///
    /// Called between two updates if a rollout is dropped, or if the environments begin new episodes. The default tells the
    /// replay memory alone, as suits an agent that keeps nothing else of a trajectory from one rollout to the next.
    fn discontinue(&mut self) {
        if let Some(replay) = self.replay() {
            replay.discontinue();
        }
    }

    /// Returns the replay memory, for checkpoints; `None` without one.
    fn replay(&mut self) -> Option<&mut dyn Replays> {
        None
    }

    /// Returns the device that learns; `None` if the CPU learns.
    fn device(&mut self) -> Option<&mut dyn OnDevice> {
        None
    }

    /// Returns the seam to other ranks; `None` if every rank computes every gradient.
    fn shared(&mut self) -> Option<&mut dyn Shareable> {
        None
    }

    /// Returns the seam to a caller that measures; `None` if updates report nothing.
    fn observed(&mut self) -> Option<&mut dyn Observed> {
        None
    }
}

/// An agent with a replay memory, which a checkpoint can include.
pub trait Replays {
    /// Drops the steps that wait for the rest of their returns, or of their stacks.
    fn discontinue(&mut self);

    /// True if checkpoints include the replay memory.
    fn is_saved(&self) -> bool;

    /// Streams the replay memory to `out`.
    ///
    /// # Errors
    /// [`Error::Buffer`] if `out` cannot be written.
    fn save_replay(&self, out: &mut dyn Write) -> Result<(), Error>;

    /// Restores the replay memory saved along with `snapshot`, which has been loaded.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the input is damaged or another memory's. The replay memory is empty then.
    fn load_replay(&mut self, snapshot: &Snapshot, input: &mut dyn Read) -> Result<(), Error>;
}

/// An agent that learns on a device.
pub trait OnDevice {
    /// Returns the kind of memory to collect rollouts in.
    ///
    /// Rollouts in other memory are learnt from too, but the device may wait for them. `overlapped` is true if rollouts are
    /// filled while the agent learns.
    fn memory(&self, overlapped: bool) -> Arc<dyn Memory>;

    /// Returns the bytes of the device's memory by purpose, environments included.
    fn memory_use(&self) -> Vec<(&'static str, usize)>;

    /// Brings the policy up to date, if the environments are on the device.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn fetch_policy(&mut self) -> Result<(), Error>;

    /// Reports spans of later work on the device to `watch`.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error>;
}

/// An agent whose gradients ranks can share.
pub trait Shareable {
    /// Shares the gradients of later updates with other ranks.
    ///
    /// All ranks call [`Agent::update`] with the same rollouts. The bits are those of an agent alone.
    fn share(&mut self, ranks: Arc<dyn Ranks>);
}

/// An agent that reports the progress of its updates.
pub trait Observed {
    /// Reports events of later updates to `watch`.
    fn watch(&mut self, watch: Watch);

    /// Reports the stages of later updates to `probe`; each thread reports its own.
    fn set_probe(&mut self, probe: Probe);
}

/// Event of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateEvent {
    /// Targets begin: advantages, returns, values of next states.
    TargetsBegin,
    /// All targets have been computed.
    ///
    /// PPO and A2C on a device: the update has been enqueued.
    TargetsEnd,
    /// A rollout is about to enter the statistics that normalize.
    StatisticsBegin,
    /// The statistics include the rollout.
    StatisticsEnd,
}

/// Receiver of [`UpdateEvent`]s, on the thread that updates.
pub type Watch = Box<dyn FnMut(UpdateEvent) + Send>;

/// Values that an update reports, under the names of Stable-Baselines3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// `None` where the update has no such value.
    values: Vec<(&'static str, Option<f32>)>,
}

impl Metrics {
    /// Appends a value.
    ///
    /// Push the same names in every update, NaN for none: the columns of `metrics.csv` are those of the first one. The runtime
    /// warns of `train/skipped_updates`, optimizer steps that were skipped because a number was not finite.
    pub fn push(&mut self, name: &'static str, value: f32) {
        self.values.push((name, Some(value)));
    }

    /// Appends the mean of `n` values with this sum; no value without any.
    pub(crate) fn push_mean(&mut self, name: &'static str, sum: f32, n: f32) {
        self.values.push((name, (n > 0.0).then(|| sum / n)));
    }

    /// Returns the value called `name`, NaN if the update has none.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f32> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Replaces values by those that a later update has.
    pub fn replace_by(&mut self, later: &Self) {
        for &(name, value) in &later.values {
            match self.values.iter_mut().find(|(n, _)| *n == name) {
                Some((_, earlier)) => *earlier = value.or(*earlier),
                None => self.values.push((name, value)),
            }
        }
    }

    /// Returns an iterator over names and values, in a fixed order; NaN is none.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f32)> {
        self.values.iter().map(|&(name, value)| (name, value.unwrap_or(f32::NAN)))
    }
}

/// Optimizer step at which learning stopped.
///
/// It was not taken: the policy keeps its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Number of steps taken by the optimizer.
    pub steps: u64,
    /// Number of consecutive skipped steps, including this one.
    pub skipped: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Parts of the minibatch's loss, by name.
    pub losses: Vec<(&'static str, f32)>,
    /// Norm of the gradient.
    pub grad_norm: f32,
    /// Tensors of the minibatch.
    pub minibatch: Vec<NamedTensor>,
}

/// A named tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Name.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Vec<f32>,
}

impl NamedTensor {
    /// Copies a candle tensor.
    pub(crate) fn new(name: &'static str, tensor: &Tensor) -> candle_core::Result<Self> {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(Self { name, shape: tensor.dims().into(), values })
    }
}

impl Divergence {
    /// Describes the last step of `optimizer`, along `gradient`.
    pub(crate) fn new(
        optimizer: &Optimizer,
        gradient: &[f32],
        learning_rate: f32,
        losses: &[(&'static str, f32)],
        minibatch: Vec<NamedTensor>,
    ) -> Self {
        let (StepCount { taken, skipped }, grad_norm) = (optimizer.steps(), optim::norm(gradient));
        Self { steps: taken, skipped, learning_rate, losses: losses.into(), grad_norm, minibatch }
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

/// A setting that may change over training.
///
/// Written as a number, or as `lin_X`: from X down to 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Schedule {
    /// Constant.
    Constant(f32),
    /// Proportional to the remaining fraction of training.
    Linear(f32),
}

impl Schedule {
    /// Returns the value when the fraction `remaining` of training remains.
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
            // Through its shortest decimal form, so that 0.3 is written as 0.3 instead of the f32's expansion.
            Schedule::Constant(value) => Self::Number(value.to_string().parse().unwrap_or(f64::from(value))),
            Schedule::Linear(start) => Self::Text(format!("lin_{start}")),
        }
    }
}

/// A number, or "auto".
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum OrAuto {
    /// The algorithm finds the number.
    Auto,
    /// The number.
    Number(f32),
}

impl TryFrom<Written> for OrAuto {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(number) => Ok(Self::Number(number as f32)),
            Written::Text(text) if text == "auto" => Ok(Self::Auto),
            Written::Text(text) => Err(format!("\"{text}\" is neither a number nor \"auto\"")),
        }
    }
}

impl From<OrAuto> for Written {
    fn from(value: OrAuto) -> Self {
        match value {
            OrAuto::Auto => Self::Text("auto".into()),
            // Through its shortest decimal form, so that 0.2 is written as 0.2.
            OrAuto::Number(number) => Self::Number(number.to_string().parse().unwrap_or(f64::from(number))),
        }
    }
}

/// State of an agent, apart from its replay memory, which is streamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Parameter vector.
    pub params: Vec<f32>,
    /// Optimizer moments, and target networks, critics and counters, by name.
    pub moments: Vec<(String, Vec<f32>)>,
    /// Running statistics.
    pub statistics: Statistics,
    /// Counters.
    pub counters: Counters,
}

impl From<Weights<'_>> for Snapshot {
    /// Creates a snapshot of the policy alone.
    fn from(Weights { version, params, obs }: Weights<'_>) -> Self {
        Self {
            params: params.into_owned(),
            moments: Vec::new(),
            statistics: Statistics { obs: obs.cloned(), returns: None },
            counters: Counters { version, ..Counters::default() },
        }
    }
}

impl Snapshot {
    /// Rejects an impossible state: non-finite numbers, counters that would overflow.
    ///
    /// # Errors
    /// [`Error::Snapshot`] with the first problem.
    pub fn check(&self) -> Result<(), Error> {
        let Self { params, moments, statistics, counters } = self;
        let named = moments.iter().map(|(name, values)| (&**name, values));
        for (name, values) in [("params", params)].into_iter().chain(named) {
            if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                return Err(Error::Snapshot(format!("number {at} of {name} is {}", values[at])));
            }
        }
        if !statistics.is_possible() {
            return Err(Error::Snapshot("its statistics are not finite, or impossible".into()));
        }
        let Counters { version, epochs, steps: StepCount { taken, skipped }, env_steps, credit, empty_at } = *counters;
        let counts = [("version", version), ("epochs", epochs), ("steps", taken), ("env_steps", env_steps), ("credit", credit)];
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > u64::MAX / 4) {
            return Err(Error::Snapshot(format!("its counter {name} is {count}, which no run reaches")));
        }
        if skipped > u64::MAX / 4 || empty_at > env_steps {
            let what = format!("its counters skipped {skipped} and empty_at {empty_at} of {env_steps} env steps are impossible");
            return Err(Error::Snapshot(what));
        }
        Ok(())
    }
}

/// Counters of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Version of the policy.
    pub version: u64,
    /// Number of passes over rollouts, which numbers shuffles, or of minibatches drawn.
    pub epochs: u64,
    /// Number of optimizer steps, and of consecutive skipped steps.
    pub steps: StepCount,
    /// Number of env steps so far, for an agent with a replay memory.
    pub env_steps: u64,
    /// Number of env steps without updates so far.
    pub credit: u64,
    /// Number of env steps when the replay memory was last empty.
    pub empty_at: u64,
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

    #[test]
    fn a_later_update_replaces_the_values_that_it_has() {
        let of = |actor: [f32; 2], critic: f32| {
            let mut metrics = Metrics::default();
            metrics.push_mean("actor", actor[0], actor[1]);
            metrics.push("critic", critic);
            metrics
        };
        let mut latest = Metrics::default();
        for update in [of([6.0, 2.0], 2.0), of([0.0, 0.0], f32::NAN)] {
            latest.replace_by(&update);
        }
        let found: Vec<_> = latest.iter().map(|(name, value)| (name, value.to_bits())).collect();
        assert_eq!(found, [("actor", 3.0f32.to_bits()), ("critic", f32::NAN.to_bits())], "a broken value stays visible");
    }
}
