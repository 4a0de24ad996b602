//! Distributions of actions: categorical or, if continuous, diagonal Gaussian.
//!
//! Under a mask, illegal actions have probability 0; acting, log-probabilities and entropy use the same mask.
//!
//! The Gaussian's means are the network's outputs; its standard deviations are parameters that do not depend on the observation.
//! Actions are not clipped here: a learner sees the action that was drawn, with its density under the Gaussian.

use std::ops::Range;

use candle_core::{DType, Tensor};
use rl_envs::{Purpose, math, rng};

/// Masked logit: far below any other, yet finite: in the entropy, 0 times it is 0.
const MASKED: f32 = -1e30;

/// Converts the logits of one row (A) to log-probabilities, in place.
///
/// `mask` holds 1 for legal actions; an empty one allows all.
pub fn log_softmax(logits: &mut [f32], mask: &[u8]) {
    log_softmax_columns(logits, 1, mask, &mut [0.0; 2]);
}

/// Applies [`log_softmax`] to m rows stored as columns, (A, m), many rows at once.
///
/// `masks` is (m, A) or empty, `scratch` holds 2 m numbers.
#[inline(always)]
pub(crate) fn log_softmax_columns(logits: &mut [f32], m: usize, masks: &[u8], scratch: &mut [f32]) {
    let a = logits.len() / m;
    for (s, mask) in masks.chunks_exact(a).enumerate().take(m) {
        for (j, _) in mask.iter().enumerate().filter(|(_, legal)| **legal == 0) {
            logits[j * m + s] = MASKED;
        }
    }
    let (max, sum) = scratch[..2 * m].split_at_mut(m);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    for column in logits.chunks_exact(m) {
        max.iter_mut().zip(column).for_each(|(max, &logit)| *max = if logit > *max { logit } else { *max });
    }
    for column in logits.chunks_exact(m) {
        sum.iter_mut().zip(column).zip(&*max).for_each(|((sum, logit), max)| *sum += math::exp(logit - max));
    }
    sum.iter_mut().for_each(|sum| *sum = math::ln(*sum));
    for column in logits.chunks_exact_mut(m) {
        column.iter_mut().zip(&*max).zip(&*sum).for_each(|((logit, max), log_sum)| *logit = *logit - max - log_sum);
    }
}

/// Draws an action from log-probabilities (A) with one uniform number in [0, 1).
///
/// Returns the first action with a cumulative probability above that number.
#[must_use]
pub fn sample(log_probs: &[f32], uniform: f32) -> u32 {
    let mut cumulative = 0.0;
    let mut last = 0;
    for (action, &log_prob) in (0..).zip(log_probs) {
        let probability = math::exp(log_prob);
        if probability > 0.0 {
            last = action;
            cumulative += probability;
            if cumulative > uniform {
                break;
            }
        }
    }
    last // where rounding left the sum below `uniform`, the last possible action
}

/// Returns the most likely action, the first of equals.
#[must_use]
pub fn greedy(log_probs: &[f32]) -> u32 {
    let mut best = 0;
    for (action, &log_prob) in log_probs.iter().enumerate() {
        if log_prob > log_probs[best] {
            best = action;
        }
    }
    best as u32
}

/// Applies [`log_softmax_columns`] to the outputs of each head, (A, m).
///
/// Masks belong to a single head.
#[inline(always)]
pub(crate) fn log_softmax_heads(logits: &mut [f32], m: usize, heads: &[usize], masks: &[u8], scratch: &mut [f32]) {
    let mut rest = logits;
    for &n in heads {
        let (head, others) = rest.split_at_mut(n * m);
        log_softmax_columns(head, m, masks, scratch);
        rest = others;
    }
}

/// Choice of head `head` in an action.
///
/// An action is a number in mixed radix with the last head the fastest.
#[inline(always)]
pub(crate) fn choice_of(action: u32, heads: &[usize], head: usize) -> usize {
    // Division is slow, and one head needs none.
    if heads.len() == 1 { action as usize } else { action as usize / heads[head + 1..].iter().product::<usize>() % heads[head] }
}

/// Log-probability of an action in row `s`: the sum over the heads.
///
/// The log-probabilities of choices are columns, (A, m).
/// Acting and learning both call this function, so they get the same bits.
#[inline(always)]
pub(crate) fn log_prob_of(log_probs: &[f32], m: usize, s: usize, heads: &[usize], action: u32) -> f32 {
    let (mut sum, mut first) = (0.0, 0);
    for (head, &n) in heads.iter().enumerate() {
        sum += log_probs[(first + choice_of(action, heads, head)) * m + s];
        first += n;
    }
    sum
}

/// ln(2 pi) / 2
pub(crate) const HALF_LN_2_PI: f32 = 0.918_938_5;

/// Distribution of a policy's actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Categorical in each of several independent heads.
    ///
    /// The network's outputs are logits, head after head.
    Categorical {
        /// Number of choices of each head; a single one for plain discrete actions.
        heads: Vec<usize>,
    },
    /// Normal in each dimension of vectors of length A; the outputs are the means.
    Gaussian {
        /// Range of the logarithmic standard deviations (A) in the parameter vector.
        log_std: Range<usize>,
    },
}

impl Distribution {
    /// Creates the distributions of a batch.
    ///
    /// The distributions have gradients with respect to `params` (P) and the network's `outputs` (B, A).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn of_batch(&self, params: &Tensor, outputs: &Tensor, mask: Option<&Tensor>) -> candle_core::Result<Distributions> {
        Ok(match self {
            Self::Categorical { heads } => {
                let mut first = 0;
                let mut head = |n: &usize| {
                    first += n;
                    Categorical::new(&outputs.narrow(1, first - n, *n)?, mask)
                };
                Distributions::Categorical(heads.iter().map(&mut head).collect::<candle_core::Result<_>>()?)
            }
            Self::Gaussian { log_std } => {
                Distributions::Gaussian(Gaussian::new(outputs, &params.narrow(0, log_std.start, log_std.len())?))
            }
        })
    }
}

/// Distributions of a batch, with gradients.
#[derive(Clone, Debug)]
pub enum Distributions {
    /// Categorical, over discrete actions: one for each head.
    Categorical(Vec<Categorical>),
    /// Gaussian, over vectors.
    Gaussian(Gaussian),
}

impl Distributions {
    /// Log-probabilities or log-densities (B) of actions, (B) or (B, A).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn log_prob(&self, actions: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Categorical(heads) => {
                let sizes = heads.iter().map(|head| head.log_probs.dim(1)).collect::<candle_core::Result<Vec<_>>>()?;
                let actions: Vec<u32> = actions.to_vec1()?;
                let of_head = |(i, head): (usize, &Categorical)| {
                    let choices = actions.iter().map(|&action| choice_of(action, &sizes, i) as u32).collect();
                    head.log_prob(&Tensor::from_vec(choices, actions.len(), head.log_probs.device())?)
                };
                total(heads.iter().enumerate().map(of_head))
            }
            Self::Gaussian(gaussian) => gaussian.log_prob(actions),
        }
    }

    /// Entropies (B).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn entropy(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Categorical(heads) => total(heads.iter().map(Categorical::entropy)),
            Self::Gaussian(gaussian) => gaussian.entropy(),
        }
    }
}

/// Adds the numbers of each head, (B).
fn total(mut heads: impl Iterator<Item = candle_core::Result<Tensor>>) -> candle_core::Result<Tensor> {
    let first = heads.next().unwrap_or_else(|| candle_core::bail!("no head"))?;
    heads.try_fold(first, |sum, head| sum + head?)
}

/// Adds the noise of one step to means stored as columns, (A, m).
///
/// The noise of row s, dimension j is the standard deviation times number `j & 3` of block `j >> 2` of the stream
/// [`Purpose::Policy`] of environment `first_env + s`; see [`rng::normals`].
pub(crate) fn add_noise(means: &mut [f32], m: usize, log_std: &[f32], seed: u64, step: u64, first_env: u32) {
    for ((block, columns), log_std) in (0..).zip(means.chunks_mut(4 * m)).zip(log_std.chunks(4)) {
        let mut std = [0.0; 4];
        std.iter_mut().zip(log_std).for_each(|(std, &log_std)| *std = math::exp(log_std));
        for s in 0..m {
            let normals = rng::normals(rng::block(seed, first_env + s as u32, step, Purpose::Policy, block));
            for (j, column) in columns.chunks_exact_mut(m).enumerate() {
                column[s] += std[j] * normals[j];
            }
        }
    }
}

/// Converts means stored as columns, (A, m), to `z = (action - mean) / std`.
///
/// Also writes the actions' log-densities (m), `sum_j -z_j^2 / 2 - log_std_j - ln(2 pi) / 2`. Acting and learning both call this
/// function, so they get the same bits.
#[inline(always)]
pub(crate) fn standardize_columns(means: &mut [f32], actions: &[f32], m: usize, log_std: &[f32], log_probs: &mut [f32]) {
    log_probs.fill(0.0);
    for ((column, actions), &log_std) in means.chunks_exact_mut(m).zip(actions.chunks_exact(m)).zip(log_std) {
        let (inv_std, constant) = (math::exp(-log_std), log_std + HALF_LN_2_PI);
        for ((z, action), log_prob) in column.iter_mut().zip(actions).zip(&mut *log_probs) {
            *z = (action - *z) * inv_std;
            *log_prob -= 0.5 * (*z * *z) + constant;
        }
    }
}

/// Returns the entropy of a diagonal Gaussian, `sum_j log_std_j + ln(2 pi e) / 2`.
#[inline(always)]
#[must_use]
pub(crate) fn gaussian_entropy(log_std: &[f32]) -> f32 {
    let mut entropy = 0.0;
    for &log_std in log_std {
        entropy += log_std + (HALF_LN_2_PI + 0.5);
    }
    entropy
}

/// Diagonal Gaussians with common standard deviations, with gradients.
#[derive(Clone, Debug)]
pub struct Gaussian {
    means: Tensor,   // (B, A)
    log_std: Tensor, // (A)
}

impl Gaussian {
    /// Creates Gaussians from means (B, A) and logarithmic standard deviations (A).
    #[must_use]
    pub fn new(means: &Tensor, log_std: &Tensor) -> Self {
        Self { means: means.clone(), log_std: log_std.clone() }
    }

    /// Log-densities (B) of actions (B, A).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn log_prob(&self, actions: &Tensor) -> candle_core::Result<Tensor> {
        let z = (actions - &self.means)?.broadcast_mul(&self.log_std.neg()?.exp()?)?;
        let constant = (&self.log_std + f64::from(HALF_LN_2_PI))?;
        (z.sqr()? * -0.5)?.broadcast_sub(&constant)?.sum(1)
    }

    /// Entropies (B), which do not depend on the means.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn entropy(&self) -> candle_core::Result<Tensor> {
        let entropy = (&self.log_std + (f64::from(HALF_LN_2_PI) + 0.5))?.sum_all()?;
        entropy.broadcast_as(self.means.dim(0)?)
    }
}

/// Categorical distributions of a batch, with gradients.
#[derive(Clone, Debug)]
pub struct Categorical {
    log_probs: Tensor, // (B, A)
}

impl Categorical {
    /// Creates distributions from logits (B, A) and an optional mask.
    ///
    /// The mask is (B, A), with 1 for legal actions.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn new(logits: &Tensor, mask: Option<&Tensor>) -> candle_core::Result<Self> {
        let logits = match mask {
            Some(mask) => {
                mask.where_cond(logits, &Tensor::full(MASKED, logits.shape(), logits.device())?.to_dtype(logits.dtype())?)?
            }
            None => logits.clone(),
        };
        Ok(Self { log_probs: candle_nn::ops::log_softmax(&logits, 1)? })
    }

    /// Log-probabilities (B) of actions (B).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn log_prob(&self, actions: &Tensor) -> candle_core::Result<Tensor> {
        debug_assert_eq!(actions.dtype(), DType::U32);
        self.log_probs.gather(&actions.unsqueeze(1)?, 1)?.squeeze(1)
    }

    /// Entropies (B).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn entropy(&self) -> candle_core::Result<Tensor> {
        (self.log_probs.exp()? * &self.log_probs)?.sum(1)?.neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use rl_envs::{Purpose, Rng};

    #[test]
    fn log_probabilities_equal_the_case_worked_out_by_hand() {
        // Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8. Without the last: 1/3, 2/3.
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let probabilities = |mask: &[u8]| {
            let mut row = logits;
            log_softmax(&mut row, mask);
            row.map(f32::exp)
        };
        for (got, expected) in probabilities(&[]).iter().zip([0.125, 0.25, 0.625]) {
            assert!((got - expected).abs() < 1e-6);
        }
        for (got, expected) in probabilities(&[1, 1, 0]).iter().zip([1.0 / 3.0, 2.0 / 3.0, 0.0]) {
            assert!((got - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn heads_are_independent_as_worked_out_by_hand() {
        // Heads of 2 and 3 choices with probabilities 1/4, 3/4 and 1/8, 2/8, 5/8. Action 5 is choice 1 of the first head and 2 of
        // the second.
        let (heads, mut row) = ([2, 3], [0.0, 3f32.ln(), 0.0, 2f32.ln(), 5f32.ln()]);
        log_softmax_heads(&mut row, 1, &heads, &[], &mut [0.0; 2]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|action| (choice_of(action, &heads, 0), choice_of(action, &heads, 1))),
            [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        );
        for (action, probability) in (0..).zip([1.0, 2.0, 5.0, 3.0, 6.0, 15.0]) {
            assert!((log_prob_of(&row, 1, 0, &heads, action).exp() - probability / 32.0).abs() < 1e-6);
        }
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let mut row = [1e4, -1e4, 1e4];
        log_softmax(&mut row, &[]);
        assert!((row[0] - 0.5f32.ln()).abs() < 1e-6 && row[1] < -1e4);
    }

    #[test]
    fn samples_follow_the_probabilities_and_never_a_mask() {
        let mut row = [0.0, 2f32.ln(), 5f32.ln(), 3.0];
        log_softmax(&mut row, &[1, 1, 1, 0]);
        let mut rng = Rng::new(0, 0, 0, Purpose::Policy);
        let mut counts = [0; 4];
        for _ in 0..80_000 {
            counts[sample(&row, rng.uniform()) as usize] += 1;
        }
        // Expected 10,000, 20,000, 50,000; standard deviations 94, 122, 137.
        for (count, expected) in counts.iter().zip([10_000i32, 20_000, 50_000, 0]) {
            assert!((count - expected).abs() < 600, "{counts:?}");
        }
        assert_eq!(counts[3], 0);
        assert_eq!(sample(&row, 1.0 - f32::EPSILON / 2.0), 2, "the largest uniform number");
        assert_eq!(greedy(&row), 2);
        assert_eq!(greedy(&[0.5, 0.5]), 0);
    }

    #[test]
    fn tensors_agree_with_the_scalar_form_masked_or_not() {
        let logits = [0.3f32, -1.0, 2.0, 0.0, 0.0, 0.5];
        let masks = [1u8, 0, 1, 1, 1, 1];
        let mut rows = logits;
        rows.chunks_mut(3).zip(masks.chunks(3)).for_each(|(row, mask)| log_softmax(row, mask));
        let tensor = Tensor::from_slice(&logits, (2, 3), &Device::Cpu).unwrap();
        let mask = Tensor::from_slice(&masks, (2, 3), &Device::Cpu).unwrap();
        let distribution = Categorical::new(&tensor, Some(&mask)).unwrap();
        let actions = Tensor::new(&[2u32, 1], &Device::Cpu).unwrap();
        let got: Vec<f32> = distribution.log_prob(&actions).unwrap().to_vec1().unwrap();
        assert!((got[0] - rows[2]).abs() < 1e-6 && (got[1] - rows[4]).abs() < 1e-6);
        let entropy: Vec<f32> = distribution.entropy().unwrap().to_vec1().unwrap();
        for (got, row) in entropy.iter().zip(rows.chunks(3)) {
            let expected: f32 = row.iter().filter(|l| **l > -1e29).map(|l| -l.exp() * l).sum();
            assert!((got - expected).abs() < 1e-6, "{got} is not {expected}");
        }
    }

    /// Log-density and entropy, directly from the definition.
    fn gaussian(means: &[f32], log_std: &[f32], action: &[f32]) -> (f64, f64) {
        let tau = 2.0 * std::f64::consts::PI;
        let mut both = (0.0, 0.0);
        for ((&mean, &log_std), &action) in means.iter().zip(log_std).zip(action) {
            let std = f64::from(log_std).exp();
            let density = (-0.5 * ((f64::from(action) - f64::from(mean)) / std).powi(2)).exp() / (tau.sqrt() * std);
            both.0 += density.ln();
            both.1 += 0.5 * (tau * std::f64::consts::E * std * std).ln();
        }
        both
    }

    #[test]
    fn a_gaussian_equals_the_case_worked_out_by_hand() {
        // Means 1 and -1, standard deviations 1 and 2, action (3, 0): z = (2, 1/2).
        // ln p = -2 - 1/8 - ln 2 - ln(2 pi); H = 1 + ln(2 pi) + ln 2.
        let log_std = [0.0, 2f32.ln()];
        let (mut columns, mut log_prob) = ([1.0, -1.0], [0.0]);
        standardize_columns(&mut columns, &[3.0, 0.0], 1, &log_std, &mut log_prob);
        assert!((columns[0] - 2.0).abs() < 1e-6 && (columns[1] - 0.5).abs() < 1e-6, "{columns:?}");
        let ln_2_pi = std::f32::consts::TAU.ln();
        assert!((log_prob[0] - (-2.125 - 2f32.ln() - ln_2_pi)).abs() < 1e-6, "{log_prob:?}");
        assert!((gaussian_entropy(&log_std) - (1.0 + ln_2_pi + 2f32.ln())).abs() < 1e-6);
    }

    #[test]
    fn gaussians_as_columns_and_as_tensors_agree_with_f64() {
        let mut rng = Rng::new(4, 0, 0, Purpose::Init);
        for (m, a) in [(1, 1), (31, 2), (33, 5), (65, 17)] {
            let mut draw = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f32>>();
            let (means, actions, log_std) = (draw(m * a), draw(m * a), draw(a));
            let column = |rows: &[f32]| (0..m * a).map(|i| rows[i % m * a + i / m]).collect::<Vec<f32>>();
            let (mut z, mut log_probs) = (column(&means), vec![0.0; m]);
            standardize_columns(&mut z, &column(&actions), m, &log_std, &mut log_probs);
            let tensor = |rows: &[f32]| Tensor::from_slice(rows, (m, a), &Device::Cpu).unwrap();
            let gaussians = Gaussian::new(&tensor(&means), &Tensor::new(&log_std[..], &Device::Cpu).unwrap());
            let tensor_log_probs: Vec<f32> = gaussians.log_prob(&tensor(&actions)).unwrap().to_vec1().unwrap();
            let tensor_entropies: Vec<f32> = gaussians.entropy().unwrap().to_vec1().unwrap();
            for s in 0..m {
                let (log_prob, entropy) = gaussian(&means[s * a..][..a], &log_std, &actions[s * a..][..a]);
                let near =
                    |x: f32, exact: f64| assert!((f64::from(x) - exact).abs() < 3e-6 * exact.abs().max(1.0), "{x} {exact}");
                near(log_probs[s], log_prob);
                near(tensor_log_probs[s], log_prob);
                near(gaussian_entropy(&log_std), entropy);
                near(tensor_entropies[s], entropy);
            }
        }
    }

    #[test]
    fn noise_has_the_moments_of_its_gaussian_and_does_not_depend_on_the_rows_around_it() {
        let (m, log_std) = (96, [0.0, -1.0, 0.5, 1.0, 0.2]);
        let a = log_std.len();
        let draw = |first: u32, m: usize, step: u64| {
            let mut columns = vec![0.0; a * m];
            add_noise(&mut columns, m, &log_std, 9, step, first);
            columns
        };
        let (mut sums, mut squares, mut n) = ([0.0; 5], [0.0; 5], 0.0);
        for step in 0..400 {
            let all = draw(3, m, step);
            for (first, len) in [(0, 1), (5, 31), (63, 33)] {
                let part = draw(3 + first as u32, len, step);
                (0..a).for_each(|j| assert_eq!(part[j * len..][..len], all[j * m + first..][..len], "dimension {j}"));
            }
            for (j, column) in all.chunks_exact(m).enumerate() {
                let std = f64::from(log_std[j]).exp();
                sums[j] += column.iter().map(|&x| f64::from(x) / std).sum::<f64>();
                squares[j] += column.iter().map(|&x| (f64::from(x) / std).powi(2)).sum::<f64>();
            }
            n += m as f64;
        }
        // 38,400 numbers each: standard errors of 0.005 and 0.007.
        assert!(sums.iter().all(|sum| (sum / n).abs() < 0.025), "{sums:?}");
        assert!(squares.iter().all(|sum| (sum / n - 1.0).abs() < 0.035), "{squares:?}");
    }

    #[test]
    fn uniform_logits_have_the_entropy_of_their_number() {
        let logits = Tensor::zeros((1, 4), DType::F32, &Device::Cpu).unwrap();
        let entropy: Vec<f32> = Categorical::new(&logits, None).unwrap().entropy().unwrap().to_vec1().unwrap();
        assert!((entropy[0] - 4f32.ln()).abs() < 1e-6);
    }
}
