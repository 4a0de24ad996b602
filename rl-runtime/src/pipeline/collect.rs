//! Collectors of rollouts, and a rollout that one of them has filled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use rl_agents::{Anomalies, Collector, CollectorState, DeviceCollector, Episode, Policy};
use rl_buffer::{Rollout, RolloutShape};

use crate::Error;
use crate::pipeline::calls::Calls;
use crate::pipeline::faults::FaultCounts;
use crate::report::profile::{Phase, Track};

/// Rollout in flight from a producer to the learner.
#[derive(Debug)]
pub struct Filled {
    /// The rollout.
    pub rollout: Rollout,
    /// Episodes that ended in the rollout.
    ///
    /// Environments on a device report the last ones alone. First-come batching includes those of dropped stretches.
    pub episodes: Vec<Episode>,
    /// Number of episodes that ended before these, and are not in `episodes`.
    pub n_unreported: usize,
    /// Rollouts that the policy of each column's first action had learnt from, (N).
    pub learnt: Vec<u64>,
    /// Faults of environments so far.
    pub faults: FaultCounts,
    /// Stretches dropped for their age so far.
    pub dropped: u64,
    /// Calls of environments that block, since the last rollout.
    pub calls: Calls,
    /// Invalid numbers from environments so far.
    pub anomalies: Anomalies,
    /// Full rollouts that waited for the learner when it asked for this one.
    pub waiting: usize,
    /// Fraction of training that remains before the rollout is learnt from.
    ///
    /// 1 at the start. Set before the rollout is collected, too.
    pub remaining: f32,
}

impl Filled {
    /// Wraps an empty rollout.
    #[must_use]
    pub fn new(rollout: Rollout) -> Self {
        let learnt = vec![0; rollout.shape().n_envs];
        Self {
            rollout,
            episodes: Vec::new(),
            n_unreported: 0,
            learnt,
            faults: FaultCounts::default(),
            dropped: 0,
            calls: Calls::default(),
            anomalies: Anomalies::default(),
            waiting: 0,
            remaining: 1.0,
        }
    }
}

/// Collector of rollouts.
///
/// Implementations step environments on the CPU, on a device, first come or in actors, or play back a recording.
pub trait Collect: Send + 'static {
    /// Fills `filled`, acting with `policy`, which has learnt from `learnt` rollouts.
    ///
    /// # Errors
    /// The errors of the environments and the policy.
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error>;

    /// Dimensions of a rollout of `n_steps` steps.
    fn shape(&self, n_steps: usize) -> RolloutShape;

    /// Carries a state of `len` elements for each environment.
    ///
    /// A policy with memory asks for it: see [`Policy::state_len`]. Called before the first rollout. By default, a collector
    /// carries none, and refuses.
    ///
    /// # Errors
    /// [`Error::Config`] if it carries none, [`Error::Agent`] if there is not enough memory.
    fn remember(&mut self, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        Err(Error::config("these environments are stepped where the state of a policy with memory cannot be carried"))
    }

    /// Returns the state to continue from; by default none, so new episodes begin.
    ///
    /// # Errors
    /// The errors of the environments.
    fn save(&self) -> Result<CollectorState, Error> {
        Ok(CollectorState::without_envs(0))
    }

    /// Restores a saved state.
    ///
    /// # Errors
    /// The errors of the environments if the state does not fit.
    fn load(&mut self, _state: CollectorState) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the stop flag, set when no more rollouts are wanted.
    ///
    /// A collector that blocks for long must then return, with any error.
    fn stopper(&self) -> Arc<AtomicBool> {
        Arc::default()
    }

    /// Returns a counter that no random number in flight has reached.
    ///
    /// A run that drops rollouts continues from it. By default none: the steps of the rollouts learnt from are enough.
    fn counter(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}

impl Collect for Collector {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let begin = Instant::now();
        filled.episodes = Collector::collect(self, policy, &mut filled.rollout)?;
        filled.learnt.fill(learnt);
        filled.anomalies = self.anomalies();
        // The threads' time divided by their number: the wall time if all threads did that all the time.
        let wall = |nanos| Duration::from_nanos(nanos / self.n_threads() as u64);
        let (policy, preprocessing) = (wall(self.acted()), wall(self.preprocessed()));
        let whole = begin.elapsed();
        let envs = whole.saturating_sub(policy);
        let preprocessing = preprocessing.min(envs);
        track.add(Phase::Envs, begin, envs - preprocessing);
        if !preprocessing.is_zero() {
            track.add(Phase::Preprocessing, begin + (envs - preprocessing), preprocessing);
        }
        track.add(Phase::Policy, begin + envs, whole - envs);
        Ok(())
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        Collector::shape(self, n_steps)
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        Collector::remember(self, len);
        Ok(())
    }

    fn save(&self) -> Result<CollectorState, Error> {
        Ok(Collector::save(self)?)
    }

    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        Ok(Collector::load(self, state)?)
    }
}

impl Collect for DeviceCollector {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let version = policy.weights().version;
        let (ended, latest) = track.time(Phase::Envs, || DeviceCollector::collect(self, version, &mut filled.rollout))?;
        (filled.n_unreported, filled.episodes) = (ended - latest.len(), latest);
        filled.learnt.fill(learnt);
        Ok(())
    }

    fn shape(&self, _: usize) -> RolloutShape {
        DeviceCollector::shape(self)
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        let carries = DeviceCollector::shape(self).state_len;
        if len == carries {
            Ok(())
        } else {
            Err(rl_agents::Error::StateLen { policy: len, rollout: carries, collector: carries }.into())
        }
    }

    fn save(&self) -> Result<CollectorState, Error> {
        Ok(DeviceCollector::save(self)?)
    }

    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        Ok(DeviceCollector::load(self, state)?)
    }
}

impl Collect for Box<dyn Collect> {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        (**self).collect(policy, learnt, filled, track)
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        (**self).shape(n_steps)
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        (**self).remember(len)
    }

    fn save(&self) -> Result<CollectorState, Error> {
        (**self).save()
    }

    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        (**self).load(state)
    }

    fn stopper(&self) -> Arc<AtomicBool> {
        (**self).stopper()
    }

    fn counter(&self) -> Option<Arc<AtomicU64>> {
        (**self).counter()
    }
}
