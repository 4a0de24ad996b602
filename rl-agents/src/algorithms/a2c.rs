//! Advantage actor-critic (A2C): the synchronous form of A3C.
//!
//! Paper: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016.
//!
//! Discrete or continuous actions. Short rollouts, one pass over each, the policy gradient without clipping of ratios, RMSprop.
//! Settings, losses and metrics have the meanings of Stable-Baselines3 (n-step returns as generalized advantages with lambda 1,
//! value loss without the factor 1/2; `n_updates` counts rollouts). Differences: a rollout may be cut into minibatches, one
//! optimizer step each; truncated steps are bootstrapped from the final observation's value within the advantage; a rollout of an
//! older policy gets V-trace targets (Espeholt et al., "IMPALA", 2018), with advantages normalized before importance ratios
//! weight them; falling schedules have the value before the rollout, not after it.
//!
//! Read `on_policy` first, the update that PPO shares, then `loss`.
//! `rl train cartpole --algo a2c` runs it.

use candle_core::Tensor;
use rl_cuda::learner::{Objective, UpdateSettings, UpdateTotals};
use rl_envs::Pool;

use crate::algorithms::method::{Common, Method, Terms, common, method_settings};
use crate::algorithms::on_policy::OnPolicy;
use crate::learner::batch::{Columns, Derivatives, Minibatch, Parts, SampleLoss, TensorBatch};
use crate::learner::descent::Descent;
use crate::learner::optim::Rule;
use crate::learner::targets::{Refresh, Targets};
use crate::settings::Kind;
use crate::{ActorCritic, Error, MemoryKind, Metrics, NetConfig, Schedule};

crate::settings! {
    /// Settings of A2C.
    pub struct A2cConfig, "a2c." {
        /// Steps of a rollout.
        n_steps: usize = 5, Kind::Int(1, 1 << 24);
        /// Samples of a minibatch; 0: the whole rollout; "auto": halved until it fits.
        ///
        /// Divides n_steps x n_envs. `rl train` alone takes "auto", the whole rollout, halved until the training fits into
        /// memory.
        batch_size: usize = 0, Kind::Int(0, 1 << 32);
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Lambda of generalized advantage estimation; 1: n-step returns.
        gae_lambda: f32 = 1.0, Kind::Float(0.0, 1.0);
        /// Divides rewards by the running standard deviation of discounted returns.
        normalize_reward: bool = false, Kind::Bool;
        /// Normalizes advantages per minibatch.
        normalize_advantage: bool = false, Kind::Bool;
        /// Weight of the entropy in the loss.
        ent_coef: f32 = 0.0, Kind::Float(0.0, 1e3), resumable;
        /// Weight of the value loss.
        vf_coef: f32 = 0.5, Kind::Float(0.0, 1e3), resumable;
        /// Largest norm of a gradient; longer ones are scaled down.
        max_grad_norm: f32 = 0.5, Kind::Float(1e-9, 1e9), resumable;
        /// Learning rate of RMSprop.
        learning_rate: Schedule = Schedule::Constant(7e-4), Kind::Schedule(0.0, 10.0), resumable;
        /// Corrects the targets of stale rollouts by V-trace.
        vtrace: bool = true, Kind::Bool;
        /// Samples whose activations are held at the same time; 0: the minibatch.
        ///
        /// On a device or with learner = "reference"; the CPU's tile kernel holds few activations anyway. Gradients of the
        /// micro-batches add up. On a device a micro-batch has whole slices of the minibatch, of which there are at most 16, and
        /// the bits do not depend on it.
        micro_batch: usize = 0, Kind::Int(0, 1 << 32), resumable;
    }
}

method_settings!(A2cConfig, Rule::RmsProp { alpha: 0.99, epsilon: 1e-5 });

/// The A2C agent.
pub type A2c = OnPolicy<A2cConfig>;

/// Computes `L = L_policy + ent_coef L_entropy + vf_coef L_value`.
///
/// `L_policy = -mean A ln pi(a|s)`, `L_entropy = -mean H`, `L_value = mean (R - V)^2`.
fn loss(policy: &ActorCritic, params: &Tensor, batch: &TensorBatch, config: &A2cConfig) -> candle_core::Result<Terms> {
    let (outputs, values) = batch.forward(policy, params)?;
    let distribution = policy.distribution().of_batch(params, &outputs, batch.masks.as_ref())?;
    let policy_loss = (distribution.log_prob(&batch.actions)? * &batch.advantages)?.mean_all()?.neg()?;
    let value_loss = candle_nn::loss::mse(&values, &batch.returns)?;
    let entropy_loss = distribution.entropy()?.mean_all()?.neg()?;
    let total = ((&policy_loss + (&entropy_loss * f64::from(config.ent_coef))?)? + (&value_loss * f64::from(config.vf_coef))?)?;
    Ok(Terms { total, policy: policy_loss, value: value_loss, entropy: entropy_loss, kl: 0.0, clip_fraction: 0.0 })
}

/// [`loss`] for the tile kernel.
struct A2cLoss {
    vf_coef: f32,
}

impl SampleLoss for A2cLoss {
    #[inline(always)]
    fn derivatives(&self, columns: &Columns<'_>, out: &mut Derivatives<'_>) {
        for s in 0..columns.log_probs.len() {
            let (log_prob, advantage) = (columns.log_probs[s], columns.advantages[s]);
            out.policy_loss[s] = -log_prob * advantage;
            out.log_prob[s] = -advantage;
            let error = columns.values[s] - columns.returns[s];
            out.value_loss[s] = error * error;
            out.value[s] = 2.0 * self.vf_coef * error;
        }
    }
}

impl Method for A2cConfig {
    const OPTIMIZER: Rule = Self::RULE;
    const OBJECTIVE: Objective = Objective::PolicyGradient;
    const POLICY_LOSS: &'static str = "train/policy_loss";

    fn common(&self) -> Common {
        common!(self)
    }

    fn check(&self, n_envs: usize) -> Result<(), Error> {
        self.check(n_envs)
    }

    fn refresh(&self) -> Refresh {
        if self.vtrace { Refresh::VTrace } else { Refresh::Values }
    }

    fn n_epochs(&self) -> usize {
        1
    }

    fn shuffles(&self, n_samples: usize) -> bool {
        self.samples(n_samples) < n_samples
    }

    fn fused(&self, descent: &mut Descent, minibatch: &Minibatch<'_>, _: f32, pool: &Pool) -> Result<Parts, Error> {
        descent.fused(minibatch, A2cLoss { vf_coef: self.vf_coef }, pool)
    }

    fn reference(
        &self,
        policy: &ActorCritic,
        params: &Tensor,
        batch: &TensorBatch,
        _: &Targets,
        _: &[u32],
        _: f32,
    ) -> Result<Terms, Error> {
        Ok(loss(policy, params, batch, self)?)
    }

    fn on_device(&self, _: f32, common: UpdateSettings) -> UpdateSettings {
        common
    }

    fn ends_at(&self, _: f32) -> bool {
        false
    }

    fn report_sums(&self, _: &UpdateTotals, _: &mut Metrics) {}

    fn report_schedules(&self, _: f32, _: &mut Metrics) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::descent::Descent;
    use crate::{Agent, LearnerKind, Precision, Snapshot, fixture};
    use rl_buffer::Rollout;
    use rl_envs::Pool;

    #[test]
    fn the_gradient_of_the_loss_equals_finite_differences() {
        let config = A2cConfig { ent_coef: 0.1, ..A2cConfig::default() };
        fixture::check_gradient(|policy, params, batch| loss(policy, params, batch, &config).unwrap().total);
    }

    #[test]
    fn the_kernel_s_gradient_equals_candle_s_and_so_do_micro_batches() {
        for case in fixture::Case::ALL {
            fixture::with_minibatch(case, |minibatch| {
                let agent = |learner, micro_batch| {
                    let config = A2cConfig { ent_coef: 0.1, micro_batch, ..A2cConfig::default() };
                    A2c::new(fixture::moved_policy(learner, case), config, 4, 0).unwrap()
                };
                let mut reference = agent(LearnerKind::Reference, 0);
                reference.reference(minibatch, 1.0).unwrap();
                let mut fused = agent(LearnerKind::Fused, 0);
                fused.fused(minibatch, 1.0, &Pool::new(2).unwrap()).unwrap();
                let mut micro = agent(LearnerKind::Reference, 7);
                micro.reference(minibatch, 1.0).unwrap();
                fixture::assert_near(&fused.descent.gradient, &reference.descent.gradient);
                fixture::assert_near(&micro.descent.gradient, &reference.descent.gradient);
            });
        }
    }

    #[test]
    fn a_gradient_of_16_bits_is_that_of_f32_but_for_rounding() {
        for case in fixture::Case::ALL {
            fixture::with_minibatch(case, |minibatch| {
                let gradient = |precision, micro_batch| {
                    let config = A2cConfig { ent_coef: 0.1, micro_batch, ..A2cConfig::default() };
                    let policy = fixture::moved_policy_in(LearnerKind::Reference, precision, case);
                    let mut agent = A2c::new(policy, config, 4, 0).unwrap();
                    // The first loss scales are too large, and skipped steps halve them.
                    let finite = (0..16).any(|_| {
                        agent.reference(minibatch, 1.0).unwrap();
                        let Descent { optimizer, gradient, .. } = &mut agent.descent;
                        optimizer.step(&mut vec![0.0; gradient.len()], gradient, 0.0, 1.0).is_some()
                    });
                    assert!(finite);
                    agent.descent.gradient
                };
                let expected = gradient(Precision::F32, 0);
                for (precision, micro_batch) in [(Precision::Bf16, 0), (Precision::F16, 0), (Precision::F16, 7)] {
                    fixture::assert_rounded(precision, &gradient(precision, micro_batch), &expected);
                }
            });
        }
    }

    /// Creates an agent and two steps of a bandit with equally good actions.
    ///
    /// A policy with probabilities (1/2, 1/2) took each action once; the agent has (0.6, 0.4), and its critic says 0.
    fn bandit(config: A2cConfig) -> (A2c, Rollout) {
        use rl_buffer::{ActionKind, Dtype, RolloutShape};
        let (space, actions) = (rl_envs::Space::vector(&[0.0], &[1.0]), rl_envs::ActionSpace::Discrete { n: 2, masked: false });
        let net = crate::NetConfig { hidden: Vec::new(), ..crate::NetConfig::default() };
        let mut policy = ActorCritic::unset(&space, &actions, &net).unwrap();
        let bias = policy.layout().tensors().iter().find(|tensor| tensor.name == "actor.0.bias").unwrap().range.start;
        policy.network_mut().change(|params| params[bias..bias + 2].copy_from_slice(&[0.6f32.ln(), 0.4f32.ln()]));
        let actions = ActionKind::Discrete { masked: None };
        let shape = RolloutShape { n_steps: 1, n_envs: 2, obs_len: 1, obs: Dtype::F32, actions, state_len: 0 };
        let mut rollout = Rollout::new(shape).unwrap();
        let mut columns = rollout.columns();
        columns.step(0).actions.either(|actions| actions[1] = 1, |_| panic!("discrete"));
        columns.log_probs.fill(0.5f32.ln());
        columns.steps.rewards.fill(0.01);
        columns.steps.terminated.fill(1);
        (A2c::new(policy, config, 2, 0).unwrap(), rollout)
    }

    #[test]
    fn equally_good_actions_teach_an_agent_nothing_with_lag() {
        let config = A2cConfig { n_steps: 1, vf_coef: 0.0, normalize_advantage: true, ..A2cConfig::default() };
        let (mut agent, rollout) = bandit(config);
        let before = agent.save().unwrap().params;
        let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
        // Normalized after the weighting with (1, 0.8), the advantages would be +-0.71 and the gradient's norm 0.5.
        assert_eq!(metrics.get("train/grad_norm"), Some(0.0));
        assert_eq!(agent.save().unwrap().params, before);
    }

    #[test]
    fn without_v_trace_all_values_are_today_s() {
        let config = A2cConfig { n_steps: 8, vtrace: false, ..A2cConfig::default() };
        let pool = Pool::new(1).unwrap();
        let (_, rollout, _) = fixture::rollout();
        let policy = || fixture::moved_policy(LearnerKind::Fused, fixture::Case::Discrete);
        let (rewards, gamma, lambda) = (rollout.rewards(), config.gamma, config.gae_lambda);
        let expected = Targets::off_policy(&policy(), &rollout, rewards, gamma, lambda, Refresh::Values, &pool).unwrap();
        let metrics = A2c::new(policy(), config, 4, 0).unwrap().update(&rollout, 1.0, &pool).unwrap();
        assert_eq!(metrics.get("train/explained_variance"), Some(expected.explained_variance()));
    }

    #[test]
    fn an_update_that_is_not_finite_is_skipped_counted_and_changes_nothing() {
        let (mut agent, mut rollout) = bandit(A2cConfig { n_steps: 1, ..A2cConfig::default() });
        let pool = Pool::new(1).unwrap();
        for bad in [f32::NAN, 1e30] {
            rollout.columns().steps.rewards[[0, 1]] = bad;
            let before = agent.save().unwrap();
            let metrics = agent.update(&rollout, 1.0, &pool).unwrap();
            assert_eq!(metrics.get("train/skipped_updates"), Some(1.0));
            assert!(metrics.get("train/grad_norm").unwrap().is_nan());
            let bits = |snapshot: &Snapshot| snapshot.params.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!((bits(&agent.save().unwrap()), agent.save().unwrap().moments), (bits(&before), before.moments));
        }
        rollout.columns().steps.rewards[[0, 1]] = 1.0;
        assert_eq!(agent.update(&rollout, 1.0, &pool).unwrap().get("train/skipped_updates"), Some(0.0));
    }

    #[test]
    fn minibatches_take_a_step_each() {
        for (batch_size, steps) in [(0, 1), (32, 1), (8, 4)] {
            let (policy, rollout, _) = fixture::rollout();
            let config = A2cConfig { n_steps: 8, batch_size, ..A2cConfig::default() };
            let mut agent = A2c::new(policy, config, 4, 0).unwrap();
            let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
            assert_eq!((agent.save().unwrap().counters.steps.taken, metrics.get("train/n_updates")), (steps, Some(1.0)));
        }
        assert!(matches!(A2cConfig { batch_size: 3, ..A2cConfig::default() }.check(8), Err(Error::BatchSize { .. })));
    }
}
