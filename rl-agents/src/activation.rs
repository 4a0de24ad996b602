//! Activations: as candle operations, and in place for the network kernel.

use candle_core::Tensor;
use rl_envs::isa::Set;
use serde::{Deserialize, Serialize};

/// Function after each hidden layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// max(0, x)
    Relu,
}

impl Activation {
    /// Applies the activation to a tensor with candle operations.
    pub(crate) fn forward(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Tanh => x.tanh(),
            Self::Relu => x.relu(),
        }
    }

    /// Applies the activation in place.
    #[inline(always)]
    pub(crate) fn apply<S: Set>(self, x: &mut [f32]) {
        match self {
            Self::Tanh => x.iter_mut().for_each(|x| *x = tanh::<S>(*x)),
            Self::Relu => x.iter_mut().for_each(|x| *x = if *x > 0.0 { *x } else { 0.0 }),
        }
    }

    /// Multiplies `dx` by the derivative, computed from the activation's value `y`.
    #[inline(always)]
    pub(crate) fn derive<S: Set>(self, y: &[f32], dx: &mut [f32]) {
        match self {
            Self::Tanh => dx.iter_mut().zip(y).for_each(|(dx, y)| *dx *= S::multiply_add(-y, *y, 1.0)),
            Self::Relu => dx.iter_mut().zip(y).for_each(|(dx, &y)| *dx = if y > 0.0 { *dx } else { 0.0 }),
        }
    }
}

/// Returns the hyperbolic tangent, within 2.5 units in the last place.
///
/// With `t = exp(-2 |x|)` and `e = t - 1`, which is accurate where it is small, the result is `-e / (2 + e)` near 0 and `1 - 2 t
/// / (1 + t)` elsewhere, with the sign of x. Gradients need this accuracy: `1 - tanh^2` magnifies the error.
#[inline(always)]
fn tanh<S: Set>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding and subtracting it rounds to an integer
    const LN_2_A: f32 = 0.693_359_4;
    const LN_2_B: f32 = -2.121_944_4e-4;
    let z = -2.0 * x.abs();
    let z = if z < -20.0 { -20.0 } else { z };
    let shifted = S::multiply_add(z, std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = S::multiply_add(-k, LN_2_B, S::multiply_add(-k, LN_2_A, z));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = S::multiply_add(p, r, c);
    }
    let p = S::multiply_add(p, r * r, r);
    let scale = f32::from_bits(((((shifted.to_bits() & 0x007F_FFFF) as i32) - 0x0040_0000 + 127) << 23) as u32);
    let e = S::multiply_add(scale, p, scale - 1.0);
    let t = S::multiply_add(scale, p, scale);
    let far = z < -1.1;
    let q = (if far { 2.0 * t } else { -e }) / (if far { 1.0 + t } else { 2.0 + e });
    (if far { 1.0 - q } else { q }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::isa::{Avx2, Plain};

    #[test]
    fn tanh_is_accurate_to_two_and_a_half_ulp() {
        let mut worst: f64 = 0.0;
        for bits in (0..=u32::MAX / 1009).map(|i| i * 1009) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                continue;
            }
            let exact = f64::from(x).tanh();
            let nearest = (exact as f32).abs().max(f32::MIN_POSITIVE);
            let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
            for got in [tanh::<Avx2>(x), tanh::<Plain>(x)] {
                worst = worst.max((f64::from(got) - exact).abs() / ulp);
            }
        }
        println!("{worst:.3} ulp");
        assert!(worst < 2.5, "{worst}");
        assert!(tanh::<Avx2>(f32::NAN).is_nan());
    }
}
