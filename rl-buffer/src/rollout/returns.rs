//! Advantages, returns and discounts: the definitions.
//!
//! This is the only module that reads the two flags at the end of an episode. After `terminated` nothing follows: its value is 0.
//! After `truncated` the episode would have continued: its value is that of the final observation. In both cases nothing flows
//! back from the next episode. A step that sets both flags is terminated.

use ndarray::{ArrayView2, ArrayViewMut2};

/// Outcomes of N environments, all (T, N).
#[derive(Clone, Copy, Debug)]
pub struct Outcomes<'a> {
    /// Rewards.
    pub rewards: ArrayView2<'a, f32>,
    /// 1 where the task is over.
    pub terminated: ArrayView2<'a, u8>,
    /// 1 where the episode was cut off.
    pub truncated: ArrayView2<'a, u8>,
    /// Value of the observation after the step; at an episode's end, the final one.
    ///
    /// Not read where `terminated`.
    pub next_values: ArrayView2<'a, f32>,
}

impl Outcomes<'_> {
    /// Value of the future of step t of column n.
    #[inline(always)]
    fn bootstrap(&self, at: [usize; 2]) -> f32 {
        if has_future(self.terminated[at]) { self.next_values[at] } else { 0.0 }
    }

    /// True if the episode continues after step t of column n.
    #[inline(always)]
    fn goes_on(&self, at: [usize; 2]) -> bool {
        goes_on(self.terminated[at], self.truncated[at])
    }

    fn assert_shape(&self, shape: &[usize]) {
        for found in [self.rewards.shape(), self.terminated.shape(), self.truncated.shape(), self.next_values.shape()] {
            assert_eq!(found, shape, "all arrays are (T, N)");
        }
    }
}

/// Generalized advantage estimation (Schulman et al., 2016, eq. 16), (T, N).
///
/// From "High-Dimensional Continuous Control Using Generalized Advantage Estimation":
///
/// `delta_t = r_t + gamma V(s_t+1) - V(s_t)`, `A_t = delta_t + gamma lambda A_t+1`.
///
/// The return that a critic learns is `A_t + V(s_t)`.
///
/// # Panics
/// If the arrays differ in shape.
pub fn gae(steps: &Outcomes<'_>, values: ArrayView2<'_, f32>, gamma: f32, lambda: f32, mut advantages: ArrayViewMut2<'_, f32>) {
    steps.assert_shape(values.shape());
    steps.assert_shape(advantages.shape());
    let (n_steps, n_envs) = values.dim();
    let mut next = vec![0.0; n_envs];
    for t in (0..n_steps).rev() {
        for (n, next) in next.iter_mut().enumerate() {
            let at = [t, n];
            let delta = steps.rewards[at] + gamma * steps.bootstrap(at) - values[at];
            *next = delta + if steps.goes_on(at) { gamma * lambda * *next } else { 0.0 };
            advantages[at] = *next;
        }
    }
}

/// V-trace (Espeholt et al., 2018, eq. 1), for steps of another policy, (T, N).
///
/// From "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", with both clips at 1 and
/// lambda as in remark 2:
///
/// `rho_t = min(1, pi(a_t|s_t) / mu(a_t|s_t))`, `x_t = rho_t (r_t + gamma V(s_t+1) - V(s_t)) + gamma lambda rho_t x_t+1`.
///
/// Writes the returns `V(s_t) + x_t` that a critic learns and the advantages `r_t + gamma V(s_t+1) - V(s_t) + gamma lambda
/// x_t+1`. The policy gradient weights each advantage by its [`rho`]; normalize advantages before that: subtracting a mean after
/// the weighting leaves a gradient where all actions are equally good. With ratios of 1, both equal those of [`gae`]. `values`
/// and `steps.next_values` are the learning policy's; `ratios` are `pi / mu`.
///
/// # Panics
/// If the arrays differ in shape.
pub fn vtrace(
    steps: &Outcomes<'_>,
    values: ArrayView2<'_, f32>,
    ratios: ArrayView2<'_, f32>,
    gamma: f32,
    lambda: f32,
    mut advantages: ArrayViewMut2<'_, f32>,
    mut returns: ArrayViewMut2<'_, f32>,
) {
    steps.assert_shape(values.shape());
    for found in [ratios.shape(), advantages.shape(), returns.shape()] {
        steps.assert_shape(found);
    }
    let (n_steps, n_envs) = values.dim();
    let mut next = vec![0.0; n_envs];
    for t in (0..n_steps).rev() {
        for (n, next) in next.iter_mut().enumerate() {
            let at = [t, n];
            let delta = steps.rewards[at] + gamma * steps.bootstrap(at) - values[at];
            advantages[at] = delta + if steps.goes_on(at) { gamma * lambda * *next } else { 0.0 };
            // With both clips at 1, rho equals c, and x is the weighted advantage.
            *next = rho(ratios[at]) * advantages[at];
            returns[at] = values[at] + *next;
        }
    }
}

/// Weight of a step in V-trace: its importance ratio `pi / mu`, clipped at 1.
#[inline]
#[must_use]
pub fn rho(ratio: f32) -> f32 {
    ratio.min(1.0)
}

/// n-step returns (Sutton and Barto, 2018, eq. 7.1), (T, N).
///
/// Up to `n` rewards and the value of what follows them; fewer where the episode or the rollout ends, with the discount of the
/// steps actually taken.
///
/// # Panics
/// If the arrays differ in shape or `n` is 0.
pub fn n_step_returns(steps: &Outcomes<'_>, n: usize, gamma: f32, mut returns: ArrayViewMut2<'_, f32>) {
    assert!(n > 0, "at least one step");
    steps.assert_shape(returns.shape());
    let (n_steps, n_envs) = steps.rewards.dim();
    for t in 0..n_steps {
        for column in 0..n_envs {
            let (mut sum, mut discount, mut u) = (0.0, 1.0, t);
            loop {
                sum += discount * steps.rewards[[u, column]];
                discount *= gamma;
                if u + 1 == n_steps || u + 1 == t + n || !steps.goes_on([u, column]) {
                    break;
                }
                u += 1;
            }
            returns[[t, column]] = sum + discount * steps.bootstrap([u, column]);
        }
    }
}

/// True if the value of what follows a step counts: it did not terminate.
#[inline(always)]
pub(crate) fn has_future(terminated: u8) -> bool {
    terminated == 0
}

/// True if the episode continues after a step.
#[inline(always)]
pub(crate) fn goes_on(terminated: u8, truncated: u8) -> bool {
    terminated | truncated == 0
}

/// Discount of a transition over `n` steps: `gamma^n`, or 0 if it terminated.
#[inline]
#[must_use]
pub fn discount(terminated: bool, gamma: f32, n: u32) -> f32 {
    if terminated { 0.0 } else { (0..n).fold(1.0, |product, _| product * gamma) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};

    const GAMMA: f32 = 0.5;
    const LAMBDA: f32 = 0.5;

    /// Three steps with rewards 1, 2, 4, and one column for each end of the second step.
    ///
    /// The values of the observations acted on are 8, 4, 2, of the following ones 4, 2, 6. An episode that ends at the second
    /// step has a final observation with value 10.
    fn case<R>(f: impl FnOnce(&Outcomes<'_>, ArrayView2<'_, f32>) -> R) -> R {
        let rewards = array![[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0]];
        let values = array![[8.0, 8.0, 8.0, 8.0], [4.0, 4.0, 4.0, 4.0], [2.0, 2.0, 2.0, 2.0]];
        let next_values = array![[4.0, 4.0, 4.0, 4.0], [2.0, f32::NAN, 10.0, f32::NAN], [6.0, 6.0, 6.0, 6.0]];
        let terminated = array![[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]];
        let truncated = array![[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]];
        let steps = Outcomes {
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
        };
        f(&steps, values.view())
    }

    #[test]
    fn gae_equals_the_case_worked_out_by_hand() {
        let advantages = case(|steps, values| {
            let mut advantages = Array2::zeros((3, 4));
            gae(steps, values, GAMMA, LAMBDA, advantages.view_mut());
            advantages
        });
        // Last step, all columns: 4 + 0.5 * 6 - 2 = 5.
        // Second step: delta = 2 + 0.5 V' - 4.
        //   runs on: V' = 2, delta = -1, A = -1 + 0.25 * 5 = 0.25; terminated: V' = 0, A = delta = -2;
        //   truncated: V' = 10, A = delta = 3; both: as terminated.
        // First step: delta = 1 + 0.5 * 4 - 8 = -5, A = -5 + 0.25 A'.
        let expected = array![[-4.9375, -5.5, -4.25, -5.5], [0.25, -2.0, 3.0, -2.0], [5.0, 5.0, 5.0, 5.0]];
        assert_eq!(advantages, expected);
    }

    #[test]
    fn n_step_returns_equal_the_case_worked_out_by_hand() {
        let returns = |n| {
            case(|steps, _| {
                let mut returns = Array2::zeros((3, 4));
                n_step_returns(steps, n, GAMMA, returns.view_mut());
                returns
            })
        };
        // One step: r + 0.5 V'.
        assert_eq!(returns(1), array![[3.0, 3.0, 3.0, 3.0], [3.0, 2.0, 7.0, 2.0], [7.0, 7.0, 7.0, 7.0]]);
        // Two steps. First row: runs on: 1 + 0.5 * 2 + 0.25 * 2 = 2.5; terminated: 1 + 0.5 * 2 = 2; truncated: 2 + 0.25 * 10 =
        // 4.5. Second row: runs on: 2 + 0.5 * 4 + 0.25 * 6 = 5.5; the others have ended. Third row: the rollout ends.
        assert_eq!(returns(2), array![[2.5, 2.0, 4.5, 2.0], [5.5, 2.0, 7.0, 2.0], [7.0, 7.0, 7.0, 7.0]]);
        // Three steps. First row, runs on: 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 6 = 3.75.
        assert_eq!(returns(3), array![[3.75, 2.0, 4.5, 2.0], [5.5, 2.0, 7.0, 2.0], [7.0, 7.0, 7.0, 7.0]]);
        assert_eq!(returns(9), returns(3));
    }

    #[test]
    fn gae_with_lambda_one_is_the_longest_n_step_return() {
        case(|steps, values| {
            let (mut advantages, mut returns) = (Array2::zeros((3, 4)), Array2::zeros((3, 4)));
            gae(steps, values, GAMMA, 1.0, advantages.view_mut());
            n_step_returns(steps, 3, GAMMA, returns.view_mut());
            assert_eq!(advantages + values, returns);
        });
    }

    #[test]
    fn vtrace_equals_the_case_worked_out_by_hand() {
        let ratios = array![[0.5, 0.5, 0.5, 0.5], [2.0, 2.0, 2.0, 2.0], [0.25, 0.25, 0.25, 0.25]];
        case(|steps, values| {
            let (mut advantages, mut returns) = (Array2::zeros((3, 4)), Array2::zeros((3, 4)));
            vtrace(steps, values, ratios.view(), GAMMA, LAMBDA, advantages.view_mut(), returns.view_mut());
            // Last step: 0.25 * (4 + 3 - 2) = 1.25. Second step, with the ratio 2 clipped to 1: runs on: -1 + 0.25 * 1.25 =
            // -0.6875; terminated: -2; truncated: 3. First step: 0.5 * (-5 + 0.25 x') = -2.5 + 0.125 x'.
            let expected = array![[-2.5859375, -2.75, -2.125, -2.75], [-0.6875, -2.0, 3.0, -2.0], [1.25, 1.25, 1.25, 1.25]];
            assert_eq!(&advantages * &ratios.mapv(rho), expected);
            assert_eq!(returns, &expected + &values);
        });
    }

    #[test]
    fn vtrace_without_lag_is_gae_bit_for_bit() {
        case(|steps, values| {
            let [mut expected, mut advantages, mut returns] = [(); 3].map(|()| Array2::zeros((3, 4)));
            gae(steps, values, 0.99, 0.95, expected.view_mut());
            vtrace(steps, values, Array2::ones((3, 4)).view(), 0.99, 0.95, advantages.view_mut(), returns.view_mut());
            assert_eq!(advantages, expected);
            assert_eq!(returns, &expected + &values);
        });
    }

    /// Sum of eq. 1 of IMPALA, term by term.
    fn vtrace_return(steps: &Outcomes<'_>, values: ArrayView2<'_, f32>, ratios: ArrayView2<'_, f32>, t: usize, n: usize) -> f64 {
        let (gamma, lambda) = (0.9, 0.8);
        let (mut sum, mut weight) = (f64::from(values[[t, n]]), 1.0);
        for u in t..values.nrows() {
            let at = [u, n];
            let rho = f64::from(ratios[at]).min(1.0);
            let next = if steps.terminated[at] == 1 { 0.0 } else { f64::from(steps.next_values[at]) };
            sum += weight * rho * (f64::from(steps.rewards[at]) + gamma * next - f64::from(values[at]));
            weight *= gamma * lambda * rho;
            if steps.terminated[at] | steps.truncated[at] == 1 {
                break;
            }
        }
        sum
    }

    #[test]
    fn vtrace_is_the_sum_of_its_definition() {
        let mut rng = crate::testing::random(7);
        let shape = (31, 33);
        let mut random = |low: f32, high: f32| Array2::from_shape_simple_fn(shape, || rng.uniform_in(low, high));
        let (rewards, values, next_values, ratios) = (random(-1.0, 1.0), random(-2.0, 2.0), random(-2.0, 2.0), random(0.0, 2.0));
        let (terminated, truncated) =
            (random(0.0, 1.0).mapv(|x| u8::from(x < 0.1)), random(0.0, 1.0).mapv(|x| u8::from(x < 0.1)));
        let steps = Outcomes {
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
        };
        let (mut advantages, mut returns) = (Array2::zeros(shape), Array2::zeros(shape));
        vtrace(&steps, values.view(), ratios.view(), 0.9, 0.8, advantages.view_mut(), returns.view_mut());
        for ((t, n), &found) in returns.indexed_iter() {
            let expected = vtrace_return(&steps, values.view(), ratios.view(), t, n);
            assert!((f64::from(found) - expected).abs() < 1e-5, "({t}, {n}): {found} is not {expected}");
        }
    }

    #[test]
    fn a_terminated_transition_has_no_future() {
        assert_eq!(discount(false, 0.5, 3), 0.125);
        assert_eq!(discount(true, 0.5, 3), 0.0);
    }
}
