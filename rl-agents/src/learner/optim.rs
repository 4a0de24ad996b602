//! Optimizers: one pass over the flat parameter vector, with gradient clipping.

use std::sync::atomic::Ordering;

use candle_core::{Tensor, Var};
use rl_envs::Pool;
use rl_envs::isa::{Isa, Set, Work, dispatch};
use serde::{Deserialize, Serialize};

use crate::counts::OPTIMIZER_STEPS;
use crate::network::precision::LossScale;
use crate::probe::{Stage, Threads};
use crate::{Error, Precision, kernel::sums};

/// Number of consecutive skipped steps after which learning stops.
const MAX_SKIPPED: u64 = 3;
/// Parameters that one thread updates at a time; fewer are no work for two.
pub(crate) const CHUNK: usize = 1 << 15;
/// Smallest moment that is kept, 2^-100.
///
/// Moments of a parameter whose gradient is 0, as those of a ReLU that is never active, shrink until they are subnormal, and some
/// processors are far slower with such numbers.
const SMALLEST_MOMENT: f32 = f32::from_bits((127 - 100) << 23);

/// Largest norm of gradients that are not clipped: their squares are finite.
pub(crate) const UNCLIPPED: f32 = 1e18;

/// Update rule of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam (Kingma and Ba, 2015), without weight decay.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Constant added to the root of the second moment.
        epsilon: f32,
    },
    /// RMSprop (Tieleman and Hinton, 2012) as in PyTorch: not centred, no momentum.
    RmsProp {
        /// Decay of the second moment.
        alpha: f32,
        /// Constant added to the root of the second moment.
        epsilon: f32,
    },
}

impl Rule {
    /// Number of moments of each parameter.
    #[must_use]
    pub const fn n_moments(self) -> usize {
        match self {
            Self::Adam { .. } => 2,
            Self::RmsProp { .. } => 1,
        }
    }
}

/// An optimizer with its state.
///
/// It never applies gradients that are not finite.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    /// First moments; empty for RMSprop.
    m: Vec<f32>,
    /// Second moments.
    v: Vec<f32>,
    steps: StepCount,
    loss_scale: Option<LossScale>,
}

/// Steps of an optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCount {
    /// Number of steps taken.
    pub taken: u64,
    /// Number of consecutive steps skipped last.
    pub skipped: u64,
}

impl Optimizer {
    /// Creates an optimizer of `len` parameters.
    #[must_use]
    pub fn new(rule: Rule, len: usize) -> Self {
        let m = if rule.n_moments() == 2 { vec![0.0; len] } else { Vec::new() };
        Self { rule, m, v: vec![0.0; len], steps: StepCount::default(), loss_scale: None }
    }

    /// Sets the precision of the gradients.
    ///
    /// For f16, losses are scaled. The scale begins at 2^16. It halves when a gradient overflows, which skips the step, and
    /// doubles after 2000 steps in a row. A resumed run begins at 2^16 again.
    pub fn set_precision(&mut self, precision: Precision) {
        self.loss_scale = LossScale::of(precision);
    }

    /// Computes the gradient (P) of `loss` with respect to `params`.
    ///
    /// With [`Precision::F16`], it is that of the scaled loss, scaled back.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn gradient(&self, params: &Var, loss: &Tensor) -> candle_core::Result<Vec<f32>> {
        LossScale::gradient(self.loss_scale, params, loss)
    }

    /// Takes one step along `grads`, first scaled down to a norm of at most `max_norm`.
    ///
    /// Returns the norm before scaling, or `None` if it is not finite: the step is skipped then, and parameters and moments keep
    /// their bits. A step that is skipped to lower the loss scale does not count as one of [`StepCount::skipped`].
    pub fn step(&mut self, params: &mut [f32], grads: &[f32], learning_rate: f32, max_norm: f32) -> Option<f32> {
        self.step_with(Threads::of(&Pool::default()), params, grads, learning_rate, max_norm)
    }

    /// Takes one step as [`Optimizer::step`] does, on several threads.
    pub(crate) fn step_with(
        &mut self,
        threads: Threads<'_>,
        params: &mut [f32],
        grads: &[f32],
        learning_rate: f32,
        max_norm: f32,
    ) -> Option<f32> {
        assert!(params.len() == self.v.len() && grads.len() == self.v.len(), "one gradient and one moment a parameter");
        let norm = norm(grads);
        if !norm.is_finite() {
            if !self.loss_scale.as_mut().is_some_and(LossScale::halve) {
                self.skip();
            }
            return None;
        }
        self.loss_scale.iter_mut().for_each(LossScale::count);
        self.steps.skipped = 0;
        self.steps.taken += 1;
        OPTIMIZER_STEPS.fetch_add(1, Ordering::Relaxed);
        let scale = if norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 };
        let pass = OptimizerPass { rule: self.rule, taken: self.steps.taken, scale, learning_rate };
        let m = self.m.chunks_mut(CHUNK).chain(std::iter::repeat_with(Default::default));
        let chunks = params.chunks_mut(CHUNK).zip(grads.chunks(CHUNK)).zip(m.zip(self.v.chunks_mut(CHUNK)));
        let mut chunks = chunks.map(|((params, grads), (m, v))| Chunk { params, grads, m, v });
        let step = |chunk: &mut Chunk<'_>| dispatch(Isa::best(), ChunkPass { pass, chunk });
        match (chunks.next(), chunks.next()) {
            (Some(only), None) => threads.each(Stage::Optimizer, &mut [only], &step),
            (first, second) => {
                let mut all: Vec<_> = first.into_iter().chain(second).chain(chunks).collect();
                threads.each(Stage::Optimizer, &mut all, &step);
            }
        }
        Some(norm)
    }

    /// Counts a step skipped because its loss is not finite.
    pub fn skip(&mut self) {
        self.steps.skipped += 1;
    }

    /// True after three consecutive skipped steps.
    #[must_use]
    pub(crate) fn has_diverged(&self) -> bool {
        self.steps.skipped >= MAX_SKIPPED
    }

    /// Copies the moments, by name, for a [`Snapshot`](crate::Snapshot).
    #[must_use]
    pub fn moments(&self) -> Vec<(String, Vec<f32>)> {
        self.named().map(|(name, values)| (name.into(), values.clone())).collect()
    }

    /// Returns the moments, in the order of their names.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        self.named().map(|(_, values)| &values[..])
    }

    /// Replaces the counters of steps.
    pub(crate) fn set_steps(&mut self, steps: StepCount) {
        self.steps = steps;
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Vec<f32>)> {
        let first = matches!(self.rule, Rule::Adam { .. }).then_some(("m", &self.m));
        first.into_iter().chain([("v", &self.v)])
    }

    /// Update rule.
    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    /// Counters of steps.
    #[must_use]
    pub fn steps(&self) -> StepCount {
        self.steps
    }

    /// Restores saved moments and counters.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if they belong to another optimizer; nothing has changed then.
    pub fn load(&mut self, moments: &[(String, Vec<f32>)], steps: StepCount) -> Result<(), Error> {
        let same = self.named().map(|(name, values)| (name, values.len())).eq(moments.iter().map(|(n, v)| (&**n, v.len())));
        if !same {
            let found: Vec<String> = moments.iter().map(|(name, values)| format!("{name} ({})", values.len())).collect();
            return Err(Error::Snapshot(format!("the optimizer's moments are {}", found.join(", "))));
        }
        for (name, values) in moments {
            let target = if name == "m" { &mut self.m } else { &mut self.v };
            target.copy_from_slice(values);
        }
        self.steps = steps;
        Ok(())
    }
}

/// One pass over parameters, gradients and moments.
///
/// No operation is fused, so all instruction sets give the same bits.
#[derive(Clone, Copy)]
struct OptimizerPass {
    rule: Rule,
    /// Number of steps taken, including this one.
    taken: u64,
    scale: f32,
    learning_rate: f32,
}

/// Some parameters, with what belongs to them.
struct Chunk<'a> {
    params: &'a mut [f32],
    grads: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

/// The pass over one chunk.
struct ChunkPass<'a, 'b> {
    pass: OptimizerPass,
    chunk: &'a mut Chunk<'b>,
}

impl Work for ChunkPass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let OptimizerPass { rule, taken, scale, learning_rate } = self.pass;
        let Chunk { params, grads, m, v } = self.chunk;
        match rule {
            Rule::Adam { beta1, beta2, epsilon } => {
                let power = i32::try_from(taken).unwrap_or(i32::MAX);
                let correction1 = 1.0 - f64::from(beta1).powi(power);
                let correction2 = 1.0 - f64::from(beta2).powi(power);
                let rate = (f64::from(learning_rate) / correction1) as f32;
                let root_scale = (1.0 / correction2.sqrt()) as f32;
                for (((p, g), m), v) in params.iter_mut().zip(*grads).zip(&mut **m).zip(&mut **v) {
                    let g = g * scale;
                    *m = settled(beta1 * *m + (1.0 - beta1) * g);
                    *v = settled(beta2 * *v + (1.0 - beta2) * (g * g));
                    *p -= rate * *m / (v.sqrt() * root_scale + epsilon);
                }
            }
            Rule::RmsProp { alpha, epsilon } => {
                for ((p, g), v) in params.iter_mut().zip(*grads).zip(&mut **v) {
                    let g = g * scale;
                    *v = settled(alpha * *v + (1.0 - alpha) * (g * g));
                    *p -= learning_rate * g / (v.sqrt() + epsilon);
                }
            }
        }
    }
}

/// Returns a moment, or 0 if it is below [`SMALLEST_MOMENT`].
#[inline(always)]
fn settled(moment: f32) -> f32 {
    if moment.abs() < SMALLEST_MOMENT { 0.0 } else { moment }
}

/// Returns the Euclidean norm.
pub(crate) fn norm(x: &[f32]) -> f32 {
    sums::squared_distances(x, 0.0).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAM: Rule = Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 };
    const RMS_PROP: Rule = Rule::RmsProp { alpha: 0.99, epsilon: 1e-5 };

    fn close(got: &[f32], expected: &[f64]) {
        for (g, e) in got.iter().zip(expected) {
            assert!((f64::from(*g) - e).abs() < 1e-6, "{got:?} is not {expected:?}");
        }
    }

    #[test]
    fn adam_follows_its_equations() {
        let mut optimizer = Optimizer::new(ADAM, 2);
        let mut params = [1.0, -1.0];
        // The first step is learning_rate * sign(g), except for epsilon: m / c1 = g, v / c2 = g^2.
        optimizer.step(&mut params, &[0.5, -2.0], 0.1, f32::INFINITY).expect("finite");
        close(&params, &[1.0 - 0.1 * 0.5 / (0.5 + 1e-5), -1.0 + 0.1 * 2.0 / (2.0 + 1e-5)]);
        // Second step with g = (1, 0): m = 0.9 * 0.05 + 0.1 = 0.145, c1 = 0.19; v = 0.999 * 0.00025 + 0.001, c2 = 0.001999.
        let before = f64::from(params[0]);
        optimizer.step(&mut params, &[1.0, 0.0], 0.1, f32::INFINITY).expect("finite");
        let v: f64 = (0.999 * 0.00025 + 0.001) / 0.001999;
        close(&params[..1], &[before - 0.1 * (0.145 / 0.19) / (v.sqrt() + 1e-5)]);
    }

    #[test]
    fn rmsprop_follows_its_equations() {
        let mut optimizer = Optimizer::new(RMS_PROP, 1);
        let mut params = [1.0];
        // v = 0.01 * 4 = 0.04, step = 0.1 * 2 / (0.2 + 1e-5)
        optimizer.step(&mut params, &[2.0], 0.1, f32::INFINITY).expect("finite");
        close(&params, &[1.0 - 0.2 / (0.2 + 1e-5)]);
    }

    #[test]
    fn moments_that_shrink_end_at_zero_before_they_are_subnormal() {
        for (rule, n_steps) in [(ADAM, 700), (RMS_PROP, 8_000)] {
            let mut optimizer = Optimizer::new(rule, 2);
            let mut params = [1.0, 1.0];
            optimizer.step(&mut params, &[0.1, 0.1], 1e-3, f32::INFINITY).expect("finite");
            let seen = params;
            for _ in 0..n_steps {
                optimizer.step(&mut params, &[0.0, 0.1], 1e-3, f32::INFINITY).expect("finite");
                assert!(optimizer.vectors().flatten().all(|x| *x == 0.0 || x.is_normal()));
            }
            let first = optimizer.vectors().next().expect("a moment");
            assert!(first[0] == 0.0 && first[1] > 0.0, "{first:?}");
            assert!((params[0] - seen[0]).abs() < 0.02 && params[1] < seen[1] - 0.5, "{params:?}");
        }
    }

    #[test]
    fn a_long_gradient_is_scaled_to_the_largest_norm() {
        let (mut clipped, mut scaled) = ([0.0, 0.0], [0.0, 0.0]);
        let norm = Optimizer::new(RMS_PROP, 2).step(&mut clipped, &[3.0, 4.0], 0.1, 0.5).expect("finite");
        assert_eq!(norm, 5.0);
        Optimizer::new(RMS_PROP, 2).step(&mut scaled, &[0.3, 0.4], 0.1, f32::INFINITY).expect("finite");
        for (a, b) in clipped.iter().zip(&scaled) {
            assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn gradients_that_are_not_finite_change_nothing_and_the_third_in_a_row_is_the_last() {
        for rule in [ADAM, RMS_PROP] {
            let mut optimizer = Optimizer::new(rule, 2);
            let mut params = [1.0, 2.0];
            for bad in [f32::NAN, f32::INFINITY] {
                assert_eq!(optimizer.step(&mut params, &[0.0, bad], 0.1, 0.5), None);
                assert!(!optimizer.has_diverged());
            }
            assert_eq!(optimizer.step(&mut params, &[f32::NEG_INFINITY, 0.0], 0.1, 0.5), None);
            assert!(optimizer.has_diverged());
            assert_eq!(params, [1.0, 2.0]);
            assert!(optimizer.moments().iter().all(|(_, values)| values.iter().all(|&x| x == 0.0)));
            assert_eq!(optimizer.steps().taken, 0);
            optimizer.step(&mut params, &[1.0, 1.0], 0.1, 0.5).expect("finite");
            assert!(!optimizer.has_diverged(), "they were not in a row");
        }
    }

    #[test]
    fn gradients_whose_squares_overflow_leave_finite_moments() {
        for rule in [ADAM, RMS_PROP] {
            let (mut optimizer, mut params) = (Optimizer::new(rule, 2), [1.0, 2.0]);
            optimizer.step(&mut params, &[3e37, -1e20], 0.1, UNCLIPPED).expect("finite");
            assert!(optimizer.moments().iter().all(|(_, values)| values.iter().all(|x| x.is_finite())));
            assert!(params[0] < 1.0 && params[1] > 2.0, "{params:?}");
        }
    }

    #[test]
    fn a_loaded_optimizer_continues_bit_for_bit() {
        for rule in [ADAM, RMS_PROP] {
            let (mut a, mut params) = (Optimizer::new(rule, 3), [1.0, 2.0, 3.0]);
            a.step(&mut params, &[0.1, 0.2, 0.3], 0.1, 0.5).expect("finite");
            let mut b = Optimizer::new(rule, 3);
            let (moments, one) = (a.moments(), StepCount { taken: 1, skipped: 0 });
            b.load(&moments, a.steps()).expect("fits");
            let mut other = params;
            a.step(&mut params, &[0.3, 0.1, 0.2], 0.1, 0.5).expect("finite");
            b.step(&mut other, &[0.3, 0.1, 0.2], 0.1, 0.5).expect("finite");
            assert_eq!(params, other);
            assert!(b.load(&moments[1..], one).is_err() || matches!(rule, Rule::RmsProp { .. }));
            assert!(Optimizer::new(rule, 4).load(&moments, one).is_err());
        }
    }
}
