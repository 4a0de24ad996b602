//! Normalization of observations and rewards by running statistics.
//!
//! Rollouts hold raw observations and raw rewards. Statistics do not change while a rollout is collected. Those of observations
//! are merged with the rollout's after learning from it, so that acting and learning see the same numbers; those of returns
//! before learning, because acting does not see rewards. Evaluation changes nothing.
//!
//! The first rollout is collected before any statistics exist: its observations are only clipped. It is merged before learning,
//! and then learnt from like every rollout by another policy: with the probabilities stored when the actions were drawn, and with
//! values of the normalized observations. Where rollouts lag, the same holds for every rollout that newer statistics meet.
//!
//! As in Stable-Baselines3's `VecNormalize`: an observation becomes `(x - mean) / sqrt(var + 1e-8)`, a reward `r / sqrt(var +
//! 1e-8)` with the variance of the running discounted return, both clipped to +-10. Difference: `VecNormalize` updates its
//! statistics at every step, including the first.

use std::borrow::Cow;

use rl_buffer::{ObsSlice, Rollout};
use rl_envs::{Pool, Space, math, pool};
use serde::{Deserialize, Serialize};

use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};

/// Constant added to variances.
const EPSILON: f64 = 1e-8;
/// Largest magnitude of a normalized number.
const LIMIT: f32 = 10.0;

/// Count, means and variances of vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    count: f64,
    mean: Vec<f64>,
    m2: Vec<f64>, // sums of squared distances from the mean
}

impl Moments {
    /// Creates moments of vectors of `len` numbers.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { count: 0.0, mean: vec![0.0; len], m2: vec![0.0; len] }
    }

    /// Wraps a count, means and sums of squared distances.
    pub(crate) fn of(count: f64, mean: &[f64], m2: &[f64]) -> Self {
        Self { count, mean: mean.into(), m2: m2.into() }
    }

    /// Number of vectors seen.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Mean of each number.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Population variance of each number; 0 before any vector was seen.
    pub fn variance(&self) -> impl Iterator<Item = f64> {
        self.m2.iter().map(|m2| m2 / self.count.max(1.0))
    }

    /// Adds one vector (Welford, 1962).
    pub fn push(&mut self, numbers: impl IntoIterator<Item = f64>) {
        self.count += 1.0;
        let share = 1.0 / self.count;
        for ((mean, m2), x) in self.mean.iter_mut().zip(&mut self.m2).zip(numbers) {
            let distance = x - *mean;
            *mean += distance * share;
            *m2 += distance * (x - *mean);
        }
    }

    /// Adds the vectors counted by `other` (Chan, Golub and LeVeque, 1979).
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.count == 0.0 {
            return;
        }
        let count = self.count + other.count;
        let (share, between) = (other.count / count, self.count * other.count / count);
        for (((mean, m2), other_mean), other_m2) in self.mean.iter_mut().zip(&mut self.m2).zip(&other.mean).zip(&other.m2) {
            let distance = other_mean - *mean;
            *mean += distance * share;
            *m2 += other_m2 + distance * distance * between;
        }
        self.count = count;
    }

    fn is_finite(&self) -> bool {
        self.mean.iter().chain(&self.m2).all(|x| x.is_finite())
    }

    /// True if the numbers can come from counting: finite, no negative variance.
    fn is_possible(&self) -> bool {
        let possible = |x: &f64| x.is_finite() && *x >= 0.0;
        self.is_finite() && possible(&self.count) && self.m2.iter().all(possible)
    }

    fn fits(&self, other: &Self) -> bool {
        self.mean.len() == other.mean.len() && self.m2.len() == other.m2.len()
    }

    /// Inverse standard deviation of each number; 1 before any vector was seen.
    fn inv_stds(&self) -> impl Iterator<Item = f32> {
        let seen = self.count > 0.0;
        self.variance().map(move |variance| if seen { (1.0 / (variance + EPSILON).sqrt()) as f32 } else { 1.0 })
    }
}

/// Statistics of observations, in the form read by [`Normalizer::apply`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Normalizer {
    moments: Moments,
    mean: Vec<f32>,
    inv_std: Vec<f32>,
    /// Number of categories of each element, 0 for a number.
    ///
    /// Empty if all elements are numbers.
    categories: Vec<u32>,
}

impl Normalizer {
    pub(crate) fn new(space: &Space) -> Self {
        let (d, categories) = (space.len(), space.categories().into());
        Self { moments: Moments::new(d), mean: vec![0.0; d], inv_std: vec![1.0; d], categories }
    }

    pub(crate) fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Means and inverse standard deviations of the elements of an observation.
    pub(crate) fn of_elements(&self) -> [&[f32]; 2] {
        [&self.mean, &self.inv_std]
    }

    /// Means of the inputs of a network.
    ///
    /// Each category has an input.
    pub(crate) fn mean(&self) -> Cow<'_, [f32]> {
        self.of_inputs(&self.mean, 0.0)
    }

    /// Inverse standard deviations of the inputs of a network.
    ///
    /// Each category has an input.
    pub(crate) fn inv_std(&self) -> Cow<'_, [f32]> {
        self.of_inputs(&self.inv_std, 1.0)
    }

    /// Repeats statistics of elements for their inputs.
    ///
    /// Inputs of categories have the given one.
    fn of_inputs<'a>(&self, statistics: &'a [f32], of_category: f32) -> Cow<'a, [f32]> {
        if self.categories.is_empty() {
            return Cow::Borrowed(statistics);
        }
        let of = |(x, n): (&f32, &u32)| if *n == 0 { vec![*x] } else { vec![of_category; *n as usize] };
        Cow::Owned(statistics.iter().zip(&self.categories).flat_map(of).collect())
    }

    /// Replaces the statistics; returns false, and changes nothing, if lengths differ.
    pub(crate) fn set(&mut self, moments: &Moments) -> bool {
        let fits = moments.fits(&self.moments);
        if fits {
            self.moments = moments.clone();
            self.refresh();
        }
        fits
    }

    /// Copies `other`, of the same length, without allocating.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.moments.count = other.moments.count;
        self.moments.mean.copy_from_slice(&other.moments.mean);
        self.moments.m2.copy_from_slice(&other.moments.m2);
        self.mean.copy_from_slice(&other.mean);
        self.inv_std.copy_from_slice(&other.inv_std);
    }

    fn refresh(&mut self) {
        self.mean.iter_mut().zip(&self.moments.mean).for_each(|(to, &mean)| *to = mean as f32);
        self.inv_std.iter_mut().zip(self.moments.inv_stds()).for_each(|(to, inv_std)| *to = inv_std);
    }

    /// Normalizes the elements of one observation from index `first` on, in place.
    ///
    /// Categories stay as they are.
    #[inline(always)]
    pub(crate) fn apply(&self, first: usize, obs: &mut [f32]) {
        let normalized = |x: f32, mean: f32, inv_std: f32| math::clamp((x - mean) * inv_std, -LIMIT, LIMIT);
        let all = obs.iter_mut().zip(&self.mean[first..]).zip(&self.inv_std[first..]);
        if self.categories.is_empty() {
            all.for_each(|((x, mean), inv_std)| *x = normalized(*x, *mean, *inv_std));
        } else {
            let numbers = all.zip(&self.categories[first..]).filter(|(_, n)| **n == 0);
            numbers.for_each(|(((x, mean), inv_std), _)| *x = normalized(*x, *mean, *inv_std));
        }
    }

    /// Adds the observations that a rollout's steps acted on, if all are finite.
    ///
    /// Bytes are multiplied by `scale`.
    pub(crate) fn merge(&mut self, rollout: &Rollout, scale: f32, pool: &Pool) {
        let (n_envs, len) = (rollout.shape().n_envs, rollout.shape().obs_len);
        let obs = rollout.obs_rows(0..rollout.len());
        let mut parts: Vec<_> = pool::slices(n_envs, MAX_SLICES, MIN_SLICE).map(|columns| (columns, Moments::new(len))).collect();
        pool.each(&mut parts, &|(columns, moments)| {
            for t in 0..rollout.shape().n_steps {
                for n in columns.clone() {
                    let at = (t * n_envs + n) * len..(t * n_envs + n + 1) * len;
                    match obs {
                        ObsSlice::F32(obs) => moments.push(obs[at].iter().map(|&x| f64::from(x))),
                        ObsSlice::U8(obs) => moments.push(obs[at].iter().map(|&x| f64::from(f32::from(x) * scale))),
                    }
                }
            }
        });
        self.merge_slices(parts.iter().map(|(_, moments)| moments));
    }

    /// Adds the moments of a rollout's slices, in order, if all are finite.
    pub(crate) fn merge_slices<'a>(&mut self, slices: impl IntoIterator<Item = &'a Moments>) {
        let mut merged = self.moments.clone();
        slices.into_iter().for_each(|moments| merged.merge(moments));
        if merged.is_finite() {
            self.moments = merged;
            self.refresh();
        }
    }
}

/// Statistics of discounted returns, which run on from one rollout to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunningReturns {
    moments: Moments,
    running: Vec<f64>, // (N)
}

impl Default for RunningReturns {
    fn default() -> Self {
        Self { moments: Moments::new(1), running: Vec::new() }
    }
}

impl RunningReturns {
    /// Statistics of the returns.
    #[must_use]
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    pub(crate) fn fits(&self) -> bool {
        self.moments.fits(&Moments::new(1))
    }

    /// Adds the steps of a rollout, if all rewards are finite.
    pub(crate) fn merge(&mut self, rollout: &Rollout, gamma: f32, pool: &Pool) {
        let n_envs = rollout.shape().n_envs;
        if !rollout.contiguous {
            return self.merge_columns(rollout, gamma);
        }
        self.running.resize(n_envs, 0.0);
        let running = if rollout.cut_before { vec![0.0; n_envs] } else { self.running.clone() };
        let (mut running, mut rest) = (running, Vec::with_capacity(MAX_SLICES));
        let mut left = &mut running[..];
        for columns in pool::slices(n_envs, MAX_SLICES, MIN_SLICE) {
            let (first, others) = left.split_at_mut(columns.len());
            rest.push((columns, first, Moments::new(1)));
            left = others;
        }
        let (rewards, terminated, truncated) = (rollout.rewards(), rollout.terminated(), rollout.truncated());
        pool.each(&mut rest, &|(columns, running, moments)| {
            for t in 0..rollout.shape().n_steps {
                for (running, n) in running.iter_mut().zip(columns.clone()) {
                    *running = f64::from(gamma) * *running + f64::from(rewards[[t, n]]);
                    moments.push([*running]);
                    if terminated[[t, n]] | truncated[[t, n]] == 1 {
                        *running = 0.0;
                    }
                }
            }
        });
        let mut merged = self.moments.clone();
        rest.iter().for_each(|(.., moments)| merged.merge(moments));
        if merged.is_finite() {
            (self.moments, self.running) = (merged, running);
        }
    }

    /// Adds the steps of columns in the order in which environments have filled them.
    fn merge_columns(&mut self, rollout: &Rollout, gamma: f32) {
        let (mut running, mut moments) = (self.running.clone(), Moments::new(1));
        let n_envs = rollout.env_idx().iter().max().map_or(0, |&env_idx| env_idx as usize + 1);
        running.resize(n_envs.max(running.len()), 0.0);
        let (rewards, terminated, truncated) = (rollout.rewards(), rollout.terminated(), rollout.truncated());
        for (n, continues) in rollout.continues.iter().enumerate() {
            let running = &mut running[rollout.env_idx()[n] as usize];
            if !continues {
                *running = 0.0;
            }
            for t in 0..rollout.shape().n_steps {
                *running = f64::from(gamma) * *running + f64::from(rewards[[t, n]]);
                moments.push([*running]);
                if terminated[[t, n]] | truncated[[t, n]] == 1 {
                    *running = 0.0;
                }
            }
        }
        let mut merged = self.moments.clone();
        merged.merge(&moments);
        if merged.is_finite() {
            (self.moments, self.running) = (merged, running);
        }
    }

    /// Resets the running returns: the next rollout does not continue them.
    pub(crate) fn forget_running(&mut self) {
        self.running.fill(0.0);
    }

    /// Inverse standard deviation of the returns: factor of rewards before clipping.
    pub(crate) fn inv_std(&self) -> f32 {
        self.moments.inv_stds().next().unwrap_or(1.0)
    }
}

/// Scales and clips a reward.
pub(crate) fn normalized_reward(reward: f32, inv_std: f32) -> f32 {
    math::clamp(reward * inv_std, -LIMIT, LIMIT)
}

/// Running statistics of an agent; `None` for statistics that it does not keep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Statistics of observations.
    pub obs: Option<Moments>,
    /// Statistics of discounted returns.
    pub returns: Option<RunningReturns>,
}

impl Statistics {
    /// True if all numbers are possible: see [`Moments::is_possible`].
    pub(crate) fn is_possible(&self) -> bool {
        self.obs.as_ref().is_none_or(Moments::is_possible)
            && self.returns.as_ref().is_none_or(|of| of.moments.is_possible() && of.running.iter().all(|x| x.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acted, Acting, ActorCritic, Choice, LearnerKind, NetConfig, Policy as _, Scratch};
    use rl_buffer::{ActionKind, Dtype, RolloutShape};
    use rl_envs::{ActionSpace, Purpose, Rng, Space};
    use rl_envs::{Actions, Obs};

    #[test]
    fn a_merge_equals_the_case_worked_out_by_hand() {
        // (1, 2): mean 3/2, m2 1/2. (4): mean 4, m2 0. Together: mean 3/2 + 5/2 * 1/3 = 7/3, m2 1/2 + (5/2)^2 * 2/3 = 14/3, which
        // is three times the variance of (1, 2, 4).
        let (mut a, mut b) = (Moments::new(1), Moments::new(1));
        a.push([1.0]);
        a.push([2.0]);
        b.push([4.0]);
        assert_eq!((a.mean[0], a.m2[0], b.mean[0], b.m2[0]), (1.5, 0.5, 4.0, 0.0));
        a.merge(&b);
        assert_eq!(a.count, 3.0);
        assert!((a.mean[0] - 7.0 / 3.0).abs() < 1e-15 && (a.m2[0] - 14.0 / 3.0).abs() < 1e-14, "{a:?}");
        let before = a.clone();
        a.merge(&Moments::new(1));
        assert_eq!(a, before);
        let mut empty = Moments::new(1);
        empty.merge(&before);
        assert_eq!(empty, before);
    }

    fn rollout(n_steps: usize, n_envs: usize, obs: Dtype) -> Rollout {
        let actions = ActionKind::Discrete { masked: None };
        Rollout::new(RolloutShape { n_steps, n_envs, obs_len: 3, obs, actions, state_len: 0 }).unwrap()
    }

    #[test]
    fn returns_run_on_over_rollouts_and_begin_again_with_episodes() {
        [false, true].into_iter().for_each(returns_are_those_of(33, 0.9));
    }

    /// Checks sums over rollouts of `n_envs` columns, filled in step or first-come.
    fn returns_are_those_of(n_envs: usize, gamma: f32) -> impl Fn(bool) {
        move |first_come| {
            let pool = Pool::new(2).unwrap();
            let (mut returns, mut rng) = (RunningReturns::default(), Rng::new(1, 0, 0, Purpose::Init));
            let (mut running, mut seen) = (vec![0.0f64; n_envs], Vec::new());
            // A permutation of the odd number of environments.
            let env_of = |n: usize| if first_come { 2 * n % n_envs } else { n };
            for i in 0..3 {
                let mut rollout = rollout(7, n_envs, Dtype::F32);
                rollout.contiguous = !first_come;
                rollout.env_idx_mut().iter_mut().enumerate().for_each(|(n, env)| *env = env_of(n) as u32);
                rollout.cut_before = !first_come && i == 2;
                if first_come {
                    rollout.continues.extend(vec![i != 2; n_envs]);
                }
                if i == 2 {
                    running.fill(0.0);
                }
                for t in 0..7 {
                    for (n, running) in running.iter_mut().enumerate() {
                        let (reward, end) = (2.0 + rng.normal(), rng.below(10));
                        let steps = rollout.columns().steps;
                        let (mut rewards, mut terminated, mut truncated) = (steps.rewards, steps.terminated, steps.truncated);
                        rewards[[t, n]] = reward;
                        terminated[[t, n]] = u8::from(end == 0);
                        truncated[[t, n]] = u8::from(end == 1);
                        *running = f64::from(gamma) * *running + f64::from(reward);
                        seen.push(*running);
                        if end < 2 {
                            *running = 0.0;
                        }
                    }
                }
                returns.merge(&rollout, gamma, &pool);
            }
            let n = seen.len() as f64;
            let mean = seen.iter().sum::<f64>() / n;
            let variance = seen.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let by_env = |env: usize| running[(0..n_envs).find(|&n| env_of(n) == env).unwrap()];
            assert_eq!(returns.running, (0..n_envs).map(by_env).collect::<Vec<_>>());
            assert!((returns.moments.mean[0] - mean).abs() < 1e-12 * mean);
            let got = returns.moments.variance().next().unwrap();
            assert!((got - variance).abs() < 1e-12 * variance, "{got} is not {variance}");
            assert!((returns.inv_std() - variance.sqrt().recip() as f32).abs() < 1e-6);
            // No mean is subtracted, and outliers are clipped.
            assert_eq!(normalized_reward(3.0, 0.5), 1.5);
            assert_eq!((normalized_reward(-30.0, 0.5), normalized_reward(30.0, 0.5)), (-10.0, 10.0));

            let before = returns.clone();
            let mut bad = rollout(7, n_envs, Dtype::F32);
            bad.columns().steps.rewards[[3, 3]] = f32::NAN;
            returns.merge(&bad, gamma, &pool);
            assert_eq!(returns, before, "what is not finite is left out");
        }
    }

    #[test]
    fn both_learners_normalize_floats_and_bytes_alike() {
        let pool = Pool::new(1).unwrap();
        for (space, kind) in
            [(Space::vector(&[f32::MIN; 3], &[f32::MAX; 3]), Dtype::F32), (Space::bytes(&[3], 255, 1.0 / 255.0), Dtype::U8)]
        {
            let mut rollout = rollout(5, 8, kind);
            let mut rng = Rng::new(2, 0, 0, Purpose::Init);
            match rollout.columns().steps.obs {
                Obs::F32(mut obs) => obs.mapv_inplace(|_| 1000.0 + 50.0 * rng.normal()),
                Obs::U8(mut obs) => obs.mapv_inplace(|_| 100 + rng.below(50) as u8),
            }
            let policies = [LearnerKind::Fused, LearnerKind::Reference].map(|learner| {
                let net = NetConfig { learner, normalize_obs: true, ..NetConfig::default() };
                let mut policy = ActorCritic::new(&space, &ActionSpace::Discrete { n: 2, masked: false }, &net, 0).unwrap();
                policy.network_mut().merge_obs(&rollout, &pool);
                policy
            });
            // The networks see the numbers of the definition.
            let mut features = Vec::new();
            policies[0].network().push_features(rollout.obs_rows(0..40), &mut features);
            for j in 0..3 {
                let raw = |i: usize| match rollout.obs_rows(0..40) {
                    ObsSlice::F32(obs) => f64::from(obs[3 * i + j]),
                    ObsSlice::U8(obs) => f64::from(obs[3 * i + j]) / 255.0,
                };
                let mean = (0..40).map(raw).sum::<f64>() / 40.0;
                let variance = (0..40).map(|i| (raw(i) - mean).powi(2)).sum::<f64>() / 40.0;
                for i in 0..40 {
                    let expected = (raw(i) - mean) / (variance + 1e-8).sqrt();
                    assert!((f64::from(features[3 * i + j]) - expected).abs() < 1e-4, "{kind:?}: {expected}");
                }
            }
            let values = policies.map(|policy| {
                let (mut actions, mut log_probs, mut values) = ([0; 40], [0.0; 40], [0.0; 40]);
                let actions = Actions::Discrete(&mut actions[..]);
                let acting = Acting { obs: rollout.obs_rows(0..40), masks: &[], choice: Choice::Greedy, envs: &[] };
                let acted = Acted { actions, log_probs: &mut log_probs, values: &mut values, states: &mut [] };
                policy.act(acting, acted, &mut Scratch::default()).unwrap();
                values
            });
            for (fused, reference) in values[0].iter().zip(&values[1]) {
                assert!((fused - reference).abs() < 1e-5, "{kind:?}: {fused} is not {reference}");
            }
        }
    }

    #[test]
    fn far_observations_are_clipped_and_nan_stays() {
        let mut normalizer = Normalizer::new(&Space::vector(&[-1.0; 3], &[1.0; 3]));
        let mut obs = [1e9, f32::NAN, -3.0];
        normalizer.apply(0, &mut obs);
        assert!(obs[0] == 10.0 && obs[1].is_nan() && obs[2] == -3.0, "before any merge: {obs:?}");
        let mut moments = Moments::new(3);
        moments.push([1.0, 0.0, 5.0]);
        moments.push([3.0, 0.0, 5.0]);
        assert!(normalizer.set(&moments) && !normalizer.set(&Moments::new(2)));
        let mut obs = [4.0, 1.0, 5.0];
        normalizer.apply(0, &mut obs);
        assert!((obs[0] - 2.0).abs() < 1e-6 && obs[1..] == [10.0, 0.0], "{obs:?}");
    }
}
