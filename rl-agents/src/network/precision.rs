//! Precision of candle's operations, and the device that they run on.
//!
//! Mixed precision (Micikevicius et al., 2018): matrix products take and give numbers of 16 bits and add in f32. Parameters,
//! activations, losses, all other sums and the optimizer are f32. f16 has a narrow exponent range, so its losses are scaled
//! before the backward pass; bf16 has the range of f32.

use candle_core::{DType, Device, Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Type of the numbers in matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 24 significant bits.
    #[default]
    F32,
    /// 8 significant bits, the range of f32.
    Bf16,
    /// 11 significant bits, numbers up to 65,504.
    F16,
}

impl Precision {
    /// Name of the type in candle.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Multiplies matrices, rounded to this precision; the product has the type of `a`.
    ///
    /// The gradients are rounded, too. With [`Precision::F32`] it is [`Tensor::matmul`].
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn matmul(self, a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
        if self == Self::F32 {
            return a.matmul(b);
        }
        let (rounded_a, rounded_b) = (a.to_dtype(self.dtype())?, b.to_dtype(self.dtype())?);
        let product = if self == Self::Bf16 && a.device().is_cpu() {
            // candle has no product of bf16 on the CPU. That of the rounded numbers in f32 is the GPU's, which adds in f32.
            rounded_a.to_dtype(DType::F32)?.matmul(&rounded_b.to_dtype(DType::F32)?)?.to_dtype(self.dtype())?
        } else {
            rounded_a.matmul(&rounded_b)?
        };
        product.to_dtype(a.dtype())
    }
}

/// Limits every element, as [`Tensor::clamp`] does.
///
/// That method is generic, as is [`Tensor::minimum`]: a crate that calls one compiles it for all of candle's types. Methods that
/// broadcast are not.
pub(crate) fn clamp(x: &Tensor, low: f64, high: f64) -> candle_core::Result<Tensor> {
    let bound = |bound: f64| Tensor::new(bound, x.device())?.to_dtype(x.dtype());
    x.broadcast_maximum(&bound(low)?)?.broadcast_minimum(&bound(high)?)
}

/// Opens a GPU for candle, with a stream that threads may share.
///
/// # Errors
/// [`Error::Setting`] in a program without the feature `candle-cuda`; errors of candle, for instance without a GPU.
pub fn candle_device(ordinal: usize) -> Result<Device, Error> {
    if !cfg!(feature = "candle-cuda") {
        let allowed = "but this program has no candle for it; build it with --features candle-cuda, or use --device cpu";
        return Err(Error::Setting { name: "device", value: format!("cuda:{ordinal}"), allowed });
    }
    Ok(Device::new_cuda_with_stream(ordinal)?)
}

/// Largest loss scale; without it, gradients of 0 would let it grow to infinity.
const MAX_SCALE: f32 = (1 << 24) as f32;
/// Consecutive finite gradients after which the loss scale doubles.
const GROWTH_INTERVAL: u32 = 2000;

/// Factor of the losses of [`Precision::F16`].
///
/// As in PyTorch's `GradScaler`, but between 1 and 2^24. A resumed run starts at 2^16, so its bits differ from those of an
/// uninterrupted one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossScale {
    scale: f32,
    /// Finite gradients since the scale changed.
    n_finite: u32,
}

impl LossScale {
    /// Returns the first scale of a precision; `None` if it needs none.
    pub(crate) fn of(precision: Precision) -> Option<Self> {
        (precision == Precision::F16).then_some(Self { scale: 65_536.0, n_finite: 0 })
    }

    /// Computes the gradient (P) of a loss through the scaled loss.
    pub(crate) fn gradient(scale: Option<Self>, params: &Var, loss: &Tensor) -> candle_core::Result<Vec<f32>> {
        let scale = scale.map_or(1.0, |scale| scale.scale);
        let grads = (loss * f64::from(scale))?.backward()?;
        let grads = grads.get(params).ok_or_else(|| candle_core::Error::Msg("the loss does not depend on params".into()))?;
        let mut gradient = grads.to_vec1::<f32>()?;
        // Exact: the scale is a power of two.
        gradient.iter_mut().for_each(|x| *x /= scale);
        Ok(gradient)
    }

    /// Halves the scale after an overflow; returns false if it is 1 already.
    pub(crate) fn halve(&mut self) -> bool {
        let can = self.scale > 1.0;
        *self = Self { scale: (self.scale / 2.0).max(1.0), n_finite: 0 };
        can
    }

    /// Counts a finite gradient, and doubles the scale after many.
    pub(crate) fn count(&mut self) {
        self.n_finite += 1;
        if self.n_finite == GROWTH_INTERVAL {
            *self = Self { scale: (self.scale * 2.0).min(MAX_SCALE), n_finite: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::optim::{Optimizer, Rule, StepCount};

    #[test]
    fn a_product_and_its_gradients_are_rounded_as_worked_out_by_hand() {
        // bf16 has every second number from 256 to 512, f16 from 2048 to 4096; halfway, the even one of them wins. So x + 3
        // becomes x + 4, its sum with 1 becomes x + 4, too, and the gradient x + 1 becomes x.
        for (precision, x, got) in
            [(Precision::F32, 256.0, 260.0), (Precision::Bf16, 256.0, 260.0), (Precision::F16, 2048.0, 2052.0)]
        {
            let numbers = |numbers: [f32; 2], shape: (usize, usize)| Var::from_slice(&numbers, shape, &Device::Cpu).unwrap();
            let (a, b) = (numbers([x + 3.0, 1.0], (1, 2)), numbers([1.0, 1.0], (2, 1)));
            let product = precision.matmul(&a, &b).unwrap();
            let grads = (&product * f64::from(x + 1.0)).unwrap().sum_all().unwrap().backward().unwrap();
            let grad = |var: &Var| grads.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(product.to_vec2::<f32>().unwrap(), [[got]], "{precision:?}");
            let rounded = if precision == Precision::F32 { x + 1.0 } else { x };
            assert_eq!((grad(&a), grad(&b)[1]), (vec![rounded; 2], rounded), "{precision:?}");
        }
    }

    /// Creates an optimizer of one parameter.
    fn optimizer(precision: Precision) -> Optimizer {
        let mut optimizer = Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 }, 1);
        optimizer.set_precision(precision);
        optimizer
    }

    /// Takes a step down `weight` times a parameter that is 1, multiplied by 1 in f16.
    ///
    /// Returns the gradient, the parameter, and the norm.
    fn step(optimizer: &mut Optimizer, weight: f64) -> (f32, f32, Option<f32>) {
        let params = Var::from_slice(&[1.0f32], 1, &Device::Cpu).unwrap();
        let one = Tensor::from_slice(&[1.0f32], (1, 1), &Device::Cpu).unwrap();
        let product = Precision::F16.matmul(&params.reshape((1, 1)).unwrap(), &one).unwrap();
        let gradient = optimizer.gradient(&params, &(product.sum_all().unwrap() * weight).unwrap()).unwrap();
        let mut param = [1.0];
        let norm = optimizer.step(&mut param, &gradient, 0.1, f32::INFINITY);
        (gradient[0], param[0], norm)
    }

    #[test]
    fn a_gradient_below_the_range_of_f16_survives_by_the_loss_scale() {
        // The smallest number of f16 is 2^-24; 2^16 2^-26 is 2^-10.
        let small = 2f32.powi(-26);
        assert_eq!(step(&mut optimizer(Precision::F32), small.into()).0, 0.0);
        assert_eq!(step(&mut optimizer(Precision::F16), small.into()).0, small);
    }

    #[test]
    fn an_overflow_skips_the_step_and_halves_the_scale_and_is_no_divergence() {
        // The largest number of f16 is 65,504: 2^16 2 and 2^15 2 are beyond it, 2^14 2 is not.
        let mut optimizer = optimizer(Precision::F16);
        for _ in 0..2 {
            assert_eq!(step(&mut optimizer, 2.0), (f32::INFINITY, 1.0, None));
        }
        assert!(optimizer.steps() == StepCount::default() && optimizer.moments().iter().all(|(_, x)| x == &[0.0]));
        let (gradient, param, norm) = step(&mut optimizer, 2.0);
        assert!((gradient, norm) == (2.0, Some(2.0)) && param < 1.0);
    }

    #[test]
    fn gradients_that_no_scale_makes_finite_are_a_divergence() {
        // 16 steps halve the scale from 2^16 to 1.
        let mut optimizer = optimizer(Precision::F16);
        for n in 1..=19 {
            assert_eq!(step(&mut optimizer, f64::NAN).2, None);
            assert_eq!((optimizer.steps().skipped, optimizer.has_diverged()), (u64::max(n, 16) - 16, n == 19), "step {n}");
        }
    }

    #[test]
    fn the_loss_scale_doubles_after_2000_finite_gradients_in_a_row_and_is_bounded() {
        assert_eq!([Precision::F32, Precision::Bf16].map(LossScale::of), [None; 2]);
        let mut scale = LossScale::of(Precision::F16).unwrap();
        let mut after = |n: usize| {
            (0..n).for_each(|_| scale.count());
            scale.scale
        };
        assert_eq!([after(1999), after(1), after(2000)], [65_536.0, 131_072.0, 262_144.0]);
        assert_eq!(after(2000 * 100), 16_777_216.0);
        scale.count();
        assert!(scale.halve() && scale == LossScale { scale: 8_388_608.0, n_finite: 0 }, "an overflow begins the count again");
    }
}
