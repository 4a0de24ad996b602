//! The categorical distribution over discrete actions.
//!
//! Illegal actions, where there is a mask, have probability 0: acting, log-probabilities and entropy all see the same mask.

use candle_core::{DType, Tensor};
use rl_envs::math;

/// What masked logits become: far below any other, yet finite, so that 0 times it is 0 in the entropy and its gradient.
const MASKED: f32 = -1e30;

/// Turns the logits of one row (A) into log-probabilities, in place. `mask` holds 1 for legal actions; empty means all.
pub fn log_softmax(logits: &mut [f32], mask: &[u8]) {
    log_softmax_columns(logits, 1, mask, &mut [0.0; 2]);
}

/// The same for m rows that lie as columns, (A, m), so that the compiler can take many rows at once. `masks` is (m, A) or empty,
/// `scratch` holds 2 m numbers.
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

/// Draws an action from log-probabilities (A) with one uniform number in [0, 1): the first whose cumulative probability
/// exceeds it.
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

/// The most likely action, the first of equals.
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

/// The distribution of a batch, with gradients.
#[derive(Clone, Debug)]
pub struct Categorical {
    log_probs: Tensor, // (B, A)
}

impl Categorical {
    /// From logits (B, A) and, where there are masks, (B, A) with 1 for legal actions.
    ///
    /// # Errors
    /// Those of candle.
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
    /// Those of candle.
    pub fn log_prob(&self, actions: &Tensor) -> candle_core::Result<Tensor> {
        debug_assert_eq!(actions.dtype(), DType::U32);
        self.log_probs.gather(&actions.unsqueeze(1)?, 1)?.squeeze(1)
    }

    /// Entropies (B).
    ///
    /// # Errors
    /// Those of candle.
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

    #[test]
    fn uniform_logits_have_the_entropy_of_their_number() {
        let logits = Tensor::zeros((1, 4), DType::F32, &Device::Cpu).unwrap();
        let entropy: Vec<f32> = Categorical::new(&logits, None).unwrap().entropy().unwrap().to_vec1().unwrap();
        assert!((entropy[0] - 4f32.ln()).abs() < 1e-6);
    }
}
