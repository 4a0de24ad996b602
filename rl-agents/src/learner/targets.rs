//! Targets of actor and critic: advantages and returns of a rollout.

use ndarray::{Array2, ArrayView2};
use rl_buffer::{Rollout, returns};
use rl_envs::{Pool, math};

use crate::kernel::sums;
use crate::learner::reevaluate::{Reevaluated, reevaluate};
use crate::{ActorCritic, Error, Policy, Scratch};

/// Targets of actor and critic, row by row from (0, 0) to (T - 1, N - 1).
#[derive(Default)]
pub struct Targets {
    /// Advantages, not normalized.
    pub advantages: Vec<f32>, // (T N)
    /// V-trace weight of each advantage; empty if all are 1.
    pub(crate) weights: Vec<f32>, // (T N)
    /// Targets of the values.
    pub returns: Vec<f32>, // (T N)
    /// Values of the observations before the update.
    pub values: Vec<f32>, // (T N)
    /// Log-probabilities before the update, if another policy acted, or empty.
    pub(crate) log_probs: Vec<f32>, // (T N)
}

/// Quantities that the learning policy computes for a stale rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refresh {
    Values,
    /// Values and log-probabilities, which need a pass through the actor.
    LogProbs,
    /// V-trace: importance ratios weight the targets.
    VTrace,
}

impl Targets {
    /// Computes generalized advantages, and returns as their sum with the values.
    ///
    /// `rewards`, (T, N), are the rollout's or made from them. `lambda` 1 gives discounted returns minus values.
    ///
    /// # Errors
    /// The errors of `policy`, which acted in the rollout.
    pub fn new(
        policy: &dyn Policy,
        rollout: &Rollout,
        rewards: ArrayView2<'_, f32>,
        gamma: f32,
        lambda: f32,
    ) -> Result<Self, Error> {
        let mut final_values = vec![0.0; rollout.final_at().len()];
        policy.values(
            rollout.final_obs(),
            rollout.final_masks(),
            rollout.final_states(),
            &mut final_values,
            &mut Scratch::default(),
        )?;
        let mut next_values = Array2::zeros(rollout.values().dim());
        rollout.next_values(&final_values, next_values.view_mut());
        let mut advantages = Array2::zeros(rollout.values().dim());
        let steps = returns::Outcomes { rewards, ..rollout.outcomes(next_values.view()) };
        returns::gae(&steps, rollout.values(), gamma, lambda, advantages.view_mut());
        let returns = &advantages + &rollout.values();
        let [advantages, returns, values] = [advantages, returns, rollout.values().to_owned()].map(flat);
        Ok(Self { advantages, weights: Vec::new(), returns, values, log_probs: Vec::new() })
    }

    /// Computes targets of another policy's rollout with current values of `policy`.
    pub(crate) fn off_policy(
        policy: &ActorCritic,
        rollout: &Rollout,
        rewards: ArrayView2<'_, f32>,
        gamma: f32,
        lambda: f32,
        refresh: Refresh,
        pool: &Pool,
    ) -> Result<Self, Error> {
        let Reevaluated { log_probs, values, last_values, final_values } =
            reevaluate(policy, rollout, refresh != Refresh::Values, pool)?;
        let corrected = refresh == Refresh::VTrace;
        let ratios = if corrected { ratios(&log_probs, rollout) } else { Array2::ones(rollout.values().dim()) };
        let [mut next_values, mut advantages, mut returns] = [(); 3].map(|()| Array2::zeros(values.dim()));
        rollout.next_values_of(values.view(), last_values.view(), &final_values, next_values.view_mut());
        let steps = returns::Outcomes { rewards, ..rollout.outcomes(next_values.view()) };
        returns::vtrace(&steps, values.view(), ratios.view(), gamma, lambda, advantages.view_mut(), returns.view_mut());
        let weights = if corrected { flat(ratios.mapv(returns::rho)) } else { Vec::new() };
        let [advantages, returns, values, log_probs] = [advantages, returns, values, log_probs].map(flat);
        Ok(Self { advantages, weights, returns, values, log_probs })
    }

    /// Writes the advantages of `rows`, optionally normalized, then weighted.
    pub(crate) fn advantages_of(&self, rows: &[u32], normalized: bool, advantages: &mut Vec<f32>) {
        advantages.clear();
        advantages.extend(rows.iter().map(|&row| self.advantages[row as usize]));
        if normalized {
            normalize(advantages);
        }
        if !self.weights.is_empty() {
            advantages.iter_mut().zip(rows).for_each(|(advantage, &row)| *advantage *= self.weights[row as usize]);
        }
    }

    /// Share of the returns' variance explained by the values.
    ///
    /// 1 is all, 0 no more than a constant explains, NaN without variance.
    pub(crate) fn explained_variance(&self) -> f32 {
        explained_variance(&self.returns, &self.values)
    }
}

/// Share of the returns' variance explained by the values.
pub(crate) fn explained_variance(returns: &[f32], values: &[f32]) -> f32 {
    let all = variance(returns.iter().map(|&r| f64::from(r)));
    let rest = variance(returns.iter().zip(values).map(|(&r, &v)| f64::from(r) - f64::from(v)));
    if all > 0.0 { (1.0 - rest / all) as f32 } else { f32::NAN }
}

/// Returns the variance of numbers, from the sums of parts of 16,384.
///
/// A part is summed in 256 interleaved sums, of which the second half is added to the first until one is left. The kernel
/// `targets_variance_parts` has this order.
fn variance(mut numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let (n, mut all) = (numbers.len() as f64, [0.0; 2]);
    while numbers.len() > 0 {
        let mut sums = [[0.0; 2]; 256];
        for (i, x) in numbers.by_ref().take(1 << 14).enumerate() {
            let [sum, squares] = &mut sums[i % 256];
            (*sum, *squares) = (*sum + x, *squares + x * x);
        }
        let mut half = 128;
        while half > 0 {
            let (first, second) = sums.split_at_mut(half);
            first.iter_mut().zip(second).for_each(|(a, b)| *a = [a[0] + b[0], a[1] + b[1]]);
            half /= 2;
        }
        all = [all[0] + sums[0][0], all[1] + sums[0][1]];
    }
    let [sum, squares] = all.map(|sum| sum / n);
    squares - sum * sum
}

/// Returns the elements in row-major order.
fn flat(array: Array2<f32>) -> Vec<f32> {
    array.into_iter().collect()
}

/// Importance ratios (T, N) of a rollout's actions: new over old probabilities.
fn ratios(log_probs: &Array2<f32>, rollout: &Rollout) -> Array2<f32> {
    let mut ratios = log_probs.clone();
    ratios.zip_mut_with(&rollout.log_probs(), |new, old| *new = math::exp(*new - old));
    ratios
}

/// Scales advantages to mean 0 and (unbiased) standard deviation 1.
///
/// Equal advantages become 0.
fn normalize(advantages: &mut [f32]) {
    let n = advantages.len() as f64;
    let mean = sums::sum(advantages) / n;
    let variance = sums::squared_distances(advantages, mean) / (n - 1.0);
    let (mean, scale) = (mean as f32, (1.0 / (variance.sqrt() + 1e-8)) as f32);
    advantages.iter_mut().for_each(|a| *a = (*a - mean) * scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::learner::batch::TensorBatch;
    use crate::{Collector, LearnerKind};
    use candle_core::{Device, Tensor};
    use rl_envs::cartpole::CartPole;

    #[test]
    fn targets_of_the_policy_that_acted_are_the_same_with_v_trace() {
        for case in fixture::Case::ALL {
            let (policy, rollout, expected) = fixture::rollout_of(case);
            let pool = Pool::new(2).unwrap();
            let found = Targets::off_policy(&policy, &rollout, rollout.rewards(), 0.99, 0.95, Refresh::VTrace, &pool).unwrap();
            fixture::assert_near(&found.advantages, &expected.advantages);
            fixture::assert_near(&found.returns, &expected.returns);
        }
    }

    #[test]
    fn targets_of_an_older_policy_s_rollout_are_made_of_what_candle_says_now() {
        let (pool, shape) = (Pool::new(2).unwrap(), (120, 4));
        let mut collector = Collector::new(shape.1, &CartPole::default(), &pool, 1).unwrap();
        let mut rollout = collector.rollout(shape.0).unwrap();
        collector.collect(&fixture::rollout().0, &mut rollout).unwrap();
        let policy = |learner| fixture::moved_policy(learner, fixture::Case::Discrete);
        let (now, fused) = (policy(LearnerKind::Reference), policy(LearnerKind::Fused));
        let valued = |obs, n| {
            let mut values = vec![0.0; n];
            now.values(obs, &[], &[], &mut values, &mut Scratch::default()).unwrap();
            values
        };
        let n_ends = rollout.final_at().len();
        assert!(n_ends > 4, "episodes end on the way");
        let (all, finals) = (valued(rollout.obs_rows(0..121 * 4), 121 * 4), valued(rollout.final_obs(), n_ends));
        let values = Array2::from_shape_fn(shape, |(t, n)| all[4 * t + n]);
        let next_values = Array2::from_shape_fn(shape, |at| {
            let end = rollout.final_at().iter().position(|end| *end == at);
            end.map_or(all[4 * (at.0 + 1) + at.1], |i| finals[i])
        });
        let Reevaluated { log_probs, .. } = reevaluate(&now, &rollout, true, &pool).unwrap();
        for refresh in [Refresh::Values, Refresh::LogProbs, Refresh::VTrace] {
            let corrected = refresh == Refresh::VTrace;
            let ratios = if corrected { ratios(&log_probs, &rollout) } else { Array2::ones(shape) };
            let [mut advantages, mut returns] = [(); 2].map(|()| Array2::zeros(shape));
            let steps = rollout.outcomes(next_values.view());
            returns::vtrace(&steps, values.view(), ratios.view(), 0.99, 0.95, advantages.view_mut(), returns.view_mut());
            let rewards = rollout.rewards();
            let found = Targets::off_policy(&fused, &rollout, rewards, 0.99, 0.95, refresh, &pool).unwrap();
            fixture::assert_near(&found.advantages, advantages.as_slice().unwrap());
            fixture::assert_near(&found.returns, returns.as_slice().unwrap());
            fixture::assert_near(&found.values, values.as_slice().unwrap());
            match refresh {
                Refresh::Values => assert!(found.log_probs.is_empty()),
                _ => fixture::assert_near(&found.log_probs, log_probs.as_slice().unwrap()),
            }
        }
    }

    #[test]
    fn ratios_and_values_of_another_policy_are_candle_s() {
        for case in fixture::Case::ALL {
            fixture::with_minibatch(case, |minibatch| {
                let policy = fixture::moved_policy(LearnerKind::Reference, case);
                let fused = fixture::moved_policy(LearnerKind::Fused, case);
                let rollout = minibatch.rollout;
                let Reevaluated { log_probs, values, .. } = reevaluate(&fused, rollout, true, &Pool::new(2).unwrap()).unwrap();
                let found = ratios(&log_probs, rollout);
                let rows: Vec<u32> = (0..32).collect();
                let batch = TensorBatch::gather(&policy, rollout, minibatch.targets, &rows, &[0.0; 32]).unwrap();
                let params = Tensor::new(policy.params(), &Device::Cpu).unwrap();
                let (outputs, expected_values) = policy.forward(&params, &batch.obs).unwrap();
                let distribution = policy.distribution().of_batch(&params, &outputs, batch.masks.as_ref()).unwrap();
                let log_probs = distribution.log_prob(&batch.actions).unwrap();
                let expected = (log_probs - &batch.log_probs).unwrap().exp().unwrap();
                fixture::assert_near(found.as_slice().unwrap(), &expected.to_vec1::<f32>().unwrap());
                fixture::assert_near(values.as_slice().unwrap(), &expected_values.to_vec1::<f32>().unwrap());
                assert!(found.iter().any(|&ratio| ratio > 1.1) && found.iter().any(|&ratio| ratio < 0.9));
            });
        }
    }

    #[test]
    fn normalized_advantages_equal_the_case_worked_out_by_hand() {
        let mut advantages = [1.0, 2.0, 3.0]; // mean 2, unbiased standard deviation 1
        normalize(&mut advantages);
        assert!(advantages.iter().zip([-1.0, 0.0, 1.0]).all(|(g, e)| (g - e).abs() < 1e-6), "{advantages:?}");
    }

    #[test]
    fn advantages_are_normalized_before_v_trace_weights_them() {
        // Two actions, mu = (1/2, 1/2), pi = (0.6, 0.4): weights min(1, pi / mu) = (1, 0.8). Where both actions are equally good,
        // there is nothing to learn: (0, 0). Normalized after the weighting, 0.01 and 0.008 would become +-0.71.
        let of = |advantages: [f32; 2]| {
            let (advantages, weights) = (advantages.to_vec(), vec![1.0, 0.8]);
            let targets = Targets { advantages, weights, returns: Vec::new(), values: Vec::new(), log_probs: Vec::new() };
            let mut found = Vec::new();
            targets.advantages_of(&[0, 1], true, &mut found);
            found
        };
        assert_eq!(of([0.01, 0.01]), [0.0, 0.0]);
        // Mean 2, unbiased standard deviation sqrt(2): (-0.70711, 0.70711), weighted (-0.70711, 0.56569).
        let found = of([1.0, 3.0]);
        assert!((found[0] + 0.5f32.sqrt()).abs() < 1e-6 && (found[1] - 0.8 * 0.5f32.sqrt()).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn equal_advantages_become_zero_and_not_nan() {
        let mut advantages = [5.0; 4];
        normalize(&mut advantages);
        assert_eq!(advantages, [0.0; 4]);
    }
}
