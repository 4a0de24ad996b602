//! The choices of PPO and A2C within the update that they share.
//!
//! Settings, the loss in three forms, the optimizer.

use candle_core::Tensor;
use rl_cuda::learner::{Objective, UpdateSettings, UpdateTotals};
use rl_envs::Pool;

use crate::learner::batch::{Minibatch, Parts, TensorBatch};
use crate::learner::descent::Descent;
use crate::learner::optim::Rule;
use crate::learner::targets::{Refresh, Targets};
use crate::{ActorCritic, Error, LearnerKind, Metrics, Schedule};

/// Settings that PPO and A2C have.
pub(crate) struct Common {
    pub(crate) n_steps: usize,
    pub(crate) batch_size: usize,
    pub(crate) gamma: f32,
    pub(crate) gae_lambda: f32,
    pub(crate) normalize_reward: bool,
    pub(crate) normalize_advantage: bool,
    pub(crate) ent_coef: f32,
    pub(crate) vf_coef: f32,
    pub(crate) max_grad_norm: f32,
    pub(crate) learning_rate: Schedule,
    pub(crate) micro_batch: usize,
}

/// Copies those fields of a struct of settings to [`Common`].
macro_rules! common {
    ($settings:expr) => {{
        let settings = $settings;
        $crate::algorithms::method::Common {
            n_steps: settings.n_steps,
            batch_size: settings.batch_size,
            gamma: settings.gamma,
            gae_lambda: settings.gae_lambda,
            normalize_reward: settings.normalize_reward,
            normalize_advantage: settings.normalize_advantage,
            ent_coef: settings.ent_coef,
            vf_coef: settings.vf_coef,
            max_grad_norm: settings.max_grad_norm,
            learning_rate: settings.learning_rate,
            micro_batch: settings.micro_batch,
        }
    }};
}
pub(crate) use common;

/// Implements what the settings of every method have.
macro_rules! method_settings {
    ($config:ty, $rule:expr) => {
        impl $config {
            /// Rule of the optimizer.
            pub const RULE: Rule = $rule;

            /// Checks every range, and conditions between settings.
            ///
            /// # Errors
            /// [`Error::Range`], [`Error::BatchSize`] or [`Error::Setting`] for the first that fails.
            pub fn check(&self, n_envs: usize) -> Result<(), Error> {
                $crate::settings::check(Self::KEYS, self)?;
                self.common().check(n_envs)
            }

            /// Checks conditions between these settings and those of the networks.
            ///
            /// # Errors
            /// [`Error::Setting`] for minibatches that the policy's memory does not allow.
            pub fn check_net(&self, net: &NetConfig) -> Result<(), Error> {
                self.common().check_memory(net.memory != MemoryKind::None, net.learner)
            }

            /// Samples of a minibatch, for a rollout of `rollout` samples.
            #[must_use]
            pub fn samples(&self, rollout: usize) -> usize {
                self.common().samples(rollout)
            }
        }
    };
}
pub(crate) use method_settings;

impl Common {
    /// Checks conditions between settings, for rollouts of `n_envs` environments.
    pub(crate) fn check(&self, n_envs: usize) -> Result<(), Error> {
        let n_steps = self.n_steps;
        let rollout = n_steps.saturating_mul(n_envs);
        if rollout > u32::MAX as usize {
            let allowed = "but a rollout has 2^32 - 1 samples at most";
            return Err(Error::Setting { name: "n_steps", value: n_steps.to_string(), allowed });
        }
        let batch_size = self.samples(rollout);
        if rollout == 0 || !rollout.is_multiple_of(batch_size) {
            return Err(Error::BatchSize { batch_size, rollout, n_steps, n_envs });
        }
        if self.normalize_advantage && batch_size == 1 {
            let allowed = "normalize_advantage needs at least 2 samples";
            return Err(Error::Setting { name: "batch_size", value: "1".into(), allowed });
        }
        Ok(())
    }

    /// Checks that minibatches are whole columns, if the policy `remembers`.
    pub(crate) fn check_memory(&self, remembers: bool, learner: LearnerKind) -> Result<(), Error> {
        let refuse = |name, value: usize, allowed| Err(Error::Setting { name, value: value.to_string(), allowed });
        if remembers && !self.batch_size.is_multiple_of(self.n_steps) {
            let allowed = "but with memory a minibatch is made of whole columns of a rollout: choose a multiple of n_steps, or 0";
            return refuse("batch_size", self.batch_size, allowed);
        }
        if remembers && self.micro_batch > 0 && learner == LearnerKind::Reference {
            let allowed = "but with memory learner = \"reference\" holds whole minibatches; leave it at 0";
            return refuse("micro_batch", self.micro_batch, allowed);
        }
        Ok(())
    }

    /// Samples of a minibatch, for a rollout of `rollout` samples.
    pub(crate) fn samples(&self, rollout: usize) -> usize {
        if self.batch_size == 0 { rollout } else { self.batch_size }
    }
}

/// A loss in candle operations, and what else a minibatch reports.
pub(crate) struct Terms {
    pub(crate) total: Tensor,
    pub(crate) policy: Tensor,
    pub(crate) value: Tensor,
    pub(crate) entropy: Tensor,
    pub(crate) kl: f32,
    pub(crate) clip_fraction: f32,
}

/// Settings of an algorithm: its choices within the update.
///
/// That is [`OnPolicy`](crate::algorithms::on_policy::OnPolicy). Implemented by [`PpoConfig`](crate::PpoConfig) and
/// [`A2cConfig`](crate::A2cConfig). `remaining` is as in [`Agent::update`](crate::Agent::update).
pub(crate) trait Method: Send {
    /// The optimizer.
    const OPTIMIZER: Rule;
    /// Kernel of the loss on a device.
    const OBJECTIVE: Objective;
    /// Name of the policy's loss among the metrics.
    const POLICY_LOSS: &'static str;

    /// Copies the settings that every method has.
    fn common(&self) -> Common;

    /// Checks all settings, for rollouts of `n_envs` environments.
    fn check(&self, n_envs: usize) -> Result<(), Error>;

    /// Selects what the latest policy computes for a rollout of an older one.
    fn refresh(&self) -> Refresh;

    /// Passes over a rollout.
    fn n_epochs(&self) -> usize;

    /// True if a pass over `n_samples` samples takes them in random order.
    fn shuffles(&self, n_samples: usize) -> bool;

    /// Computes the gradient of a minibatch with the tile kernel.
    ///
    /// Calls [`Descent::fused`]. A method of each algorithm, not a generic function: the crate of a caller would compile that,
    /// three hundred times slower where it is not optimised.
    fn fused(&self, descent: &mut Descent, minibatch: &Minibatch<'_>, remaining: f32, pool: &Pool) -> Result<Parts, Error>;

    /// Computes the loss of the samples `rows` with candle operations.
    fn reference(
        &self,
        policy: &ActorCritic,
        params: &Tensor,
        batch: &TensorBatch,
        targets: &Targets,
        rows: &[u32],
        remaining: f32,
    ) -> Result<Terms, Error>;

    /// Adds the settings of the loss on a device.
    fn on_device(&self, remaining: f32, common: UpdateSettings) -> UpdateSettings;

    /// True if an update ends before the step along a minibatch of this KL divergence.
    fn ends_at(&self, kl: f32) -> bool;

    /// Reports sums over minibatches that this method alone has.
    fn report_sums(&self, totals: &UpdateTotals, metrics: &mut Metrics);

    /// Reports schedules that this method alone has.
    fn report_schedules(&self, remaining: f32, metrics: &mut Metrics);
}
