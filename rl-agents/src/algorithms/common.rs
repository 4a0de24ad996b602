//! Settings that PPO and A2C have, with the rules between them.

use crate::{Error, LearnerKind, Schedule};

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
        $crate::algorithms::common::Common {
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

impl Common {
    /// Checks conditions between settings, for rollouts of `n_envs` environments.
    pub(crate) fn check(&self, n_envs: usize) -> Result<(), Error> {
        let n_steps = self.n_steps;
        let rollout = n_steps.saturating_mul(n_envs);
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
