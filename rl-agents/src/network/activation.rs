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
    /// x above 0, else exp(x) - 1.
    Elu,
    /// x / (1 + exp(-x))
    Silu,
    /// x times the normal distribution function of x, approximately.
    ///
    /// The function is approximated as (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
    Gelu,
}

impl Activation {
    /// Applies the activation to a tensor with candle operations.
    pub(crate) fn forward(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Tanh => x.tanh(),
            Self::Relu => x.relu(),
            Self::Elu => x.elu(1.0),
            Self::Silu => x.silu(),
            // candle's own has a gradient with constants of six digits.
            Self::Gelu => {
                let gate = (x * (x.sqr()?.affine(0.044_715, 1.0)? * std::f64::consts::FRAC_2_PI.sqrt())?)?;
                x * gate.tanh()?.affine(0.5, 0.5)?
            }
        }
    }

    /// True if the backward pass needs stored derivatives.
    pub(crate) fn keeps_slopes(self) -> bool {
        matches!(self, Self::Silu | Self::Gelu)
    }

    /// Applies the activation in place.
    ///
    /// Writes the derivatives to `slopes`, which is as long as `x`, or empty if none are kept.
    #[inline(always)]
    pub(crate) fn apply<S: Set>(self, x: &mut [f32], slopes: &mut [f32]) {
        match self {
            Self::Tanh => tanh::<S>(x),
            Self::Relu => x.iter_mut().for_each(|x| *x = if *x > 0.0 { *x } else { 0.0 }),
            Self::Elu => x.iter_mut().for_each(|x| *x = elu::<S>(*x)),
            Self::Silu => gated::<S>(x, slopes, |x| (x, 1.0)),
            Self::Gelu => gated::<S>(x, slopes, gelu_gate::<S>),
        }
    }

    /// Multiplies `dx` by the derivative.
    ///
    /// `kept` are the slopes where these are kept, else the activation's values.
    #[inline(always)]
    pub(crate) fn derive<S: Set>(self, kept: &[f32], dx: &mut [f32]) {
        match self {
            Self::Tanh => dx.iter_mut().zip(kept).for_each(|(dx, y)| *dx *= S::multiply_add(-y, *y, 1.0)),
            Self::Relu => dx.iter_mut().zip(kept).for_each(|(dx, &y)| *dx = if y > 0.0 { *dx } else { 0.0 }),
            Self::Elu => dx.iter_mut().zip(kept).for_each(|(dx, &y)| *dx *= if y > 0.0 { 1.0 } else { y + 1.0 }),
            Self::Silu | Self::Gelu => dx.iter_mut().zip(kept).for_each(|(dx, slope)| *dx *= slope),
        }
    }
}

/// Replaces numbers x by x / (1 + exp(-w)); `gate` returns w and its derivative.
///
/// Writes derivatives to `slopes` if there are any.
#[inline(always)]
fn gated<S: Set>(x: &mut [f32], slopes: &mut [f32], gate: impl Fn(f32) -> (f32, f32)) {
    if slopes.is_empty() {
        return x.iter_mut().for_each(|x| *x *= logistic::<S>(gate(*x).0).0);
    }
    for (x, slope) in x.iter_mut().zip(slopes) {
        let (w, dw) = gate(*x);
        let (share, rest) = logistic::<S>(w);
        *x *= share;
        *slope = S::multiply_add(*x * dw, rest, share);
    }
}

/// Returns 2 sqrt(2 / pi) (x + 0.044715 x^3) and its derivative.
///
/// x is clamped to -10..=10.
#[inline(always)]
fn gelu_gate<S: Set>(x: f32) -> (f32, f32) {
    const A: f32 = 1.595_769_2;
    const B: f32 = 0.071_354_814;
    let x = if x > 10.0 { 10.0 } else { x };
    let x = if x < -10.0 { -10.0 } else { x };
    let square = x * x;
    (x * S::multiply_add(B, square, A), S::multiply_add(3.0 * B, square, A))
}

/// Returns the logistic function of x and of -x, with x clamped to -86..=86.
#[inline(always)]
fn logistic<S: Set>(x: f32) -> (f32, f32) {
    let (biased, p) = exponential::<S>(-x.abs(), -86.0);
    let scale = power_of_two(biased);
    let power = S::multiply_add(scale, p, scale);
    let larger = 1.0 / (1.0 + power);
    if x > 0.0 { (larger, power * larger) } else { (power * larger, larger) }
}

/// Replaces numbers x by 1 / (1 + exp(-x)), computed as (tanh(x / 2) + 1) / 2.
#[inline(always)]
pub(crate) fn sigmoid<S: Set>(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x *= 0.5);
    tanh::<S>(x);
    x.iter_mut().for_each(|x| *x = S::multiply_add(*x, 0.5, 0.5));
}

/// Numbers that pass each stage of [`tanh`] together.
const TOGETHER: usize = 512;
/// Exponent whose power is negligible beside 1.
const LOW: f32 = -20.0;

/// Replaces numbers by their hyperbolic tangents.
///
/// The error is less than 2.5 units in the last place.
///
/// With `t = exp(-2 |x|)` and `e = t - 1`, which is accurate where it is small, the result is `-e / (2 + e)` near 0 and `1 - 2 t
/// / (1 + t)` elsewhere, with the sign of x. Gradients need this accuracy: `1 - tanh^2` magnifies the error.
///
/// Many numbers pass in two stages: the operations of one number wait for each other, and a core holds too few of them to fill
/// that time with other numbers.
#[inline(always)]
pub(crate) fn tanh<S: Set>(x: &mut [f32]) {
    let (together, rest) = x.as_chunks_mut::<TOGETHER>();
    if !together.is_empty() {
        let (mut powers, mut fractions) = ([0; TOGETHER], [0.0; TOGETHER]);
        for x in together {
            for ((x, power), fraction) in x.iter().zip(&mut powers).zip(&mut fractions) {
                (*power, *fraction) = exponential::<S>(-2.0 * x.abs(), LOW);
            }
            for ((x, &power), &fraction) in x.iter_mut().zip(&powers).zip(&fractions) {
                *x = tangent::<S>(*x, power, fraction);
            }
        }
    }
    for x in rest {
        let (power, fraction) = exponential::<S>(-2.0 * x.abs(), LOW);
        *x = tangent::<S>(*x, power, fraction);
    }
}

/// Returns `n + 127` and `p` with `exp(z) = 2^n (1 + p)`.
///
/// For z of at most 0; below `low` those of `low`. Only the low 9 bits of the integer are those of `n + 127`.
#[inline(always)]
fn exponential<S: Set>(z: f32, low: f32) -> (u32, f32) {
    // Adding 1.5 * 2^23 rounds to an integer, in the low bits; 127 is the bias of an exponent.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    const LN_2_A: f32 = 0.693_359_4;
    const LN_2_B: f32 = -2.121_944_4e-4;
    let z = if z < low { low } else { z };
    let shifted = S::multiply_add(z, std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = S::multiply_add(-k, LN_2_B, S::multiply_add(-k, LN_2_A, z));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = S::multiply_add(p, r, c);
    }
    (shifted.to_bits(), S::multiply_add(p, r * r, r))
}

/// Returns 2^n from the low 9 bits of n + 127.
#[inline(always)]
fn power_of_two(biased: u32) -> f32 {
    f32::from_bits(biased << 23)
}

/// Returns x above 0, else exp(x) - 1.
///
/// The error is less than 1 unit in the last place.
#[inline(always)]
fn elu<S: Set>(x: f32) -> f32 {
    let (biased, p) = exponential::<S>(if x > 0.0 { 0.0 } else { x }, LOW);
    let scale = power_of_two(biased);
    let below = S::multiply_add(scale, p, scale - 1.0);
    if x > 0.0 { x } else { below }
}

/// Returns the hyperbolic tangent of `x` from the [`exponential`] of `-2 |x|`.
#[inline(always)]
fn tangent<S: Set>(x: f32, biased: u32, p: f32) -> f32 {
    let scale = power_of_two(biased);
    // 1 or 0 by a mask instead of branches, which the compiler would turn into two divisions.
    let far = f32::from_bits(1.0f32.to_bits() & if x.abs() > 0.55 { u32::MAX } else { 0 });
    let near = 1.0 - far;
    let t_or_e = S::multiply_add(scale, p, scale - near);
    S::multiply_add(t_or_e / (t_or_e + (1.0 + near)), near - 2.0, far).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::isa::{Avx2, Plain};

    /// Returns the largest error of two functions in units in the last place.
    fn worst(functions: [fn(&mut [f32]); 2], exact: fn(f64) -> f64) -> f64 {
        let numbers: Vec<f32> = (0..=u32::MAX / 1009).map(|i| f32::from_bits(i * 1009)).filter(|x| x.is_finite()).collect();
        let mut worst: f64 = 0.0;
        for function in functions {
            let mut got = numbers.clone();
            function(&mut got);
            for (x, got) in numbers.iter().zip(got) {
                let exact = exact(f64::from(*x));
                let nearest = (exact as f32).abs().max(f32::MIN_POSITIVE);
                let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
                worst = worst.max((f64::from(got) - exact).abs() / ulp);
            }
        }
        println!("{worst:.3} ulp");
        worst
    }

    #[test]
    fn elu_is_accurate_to_one_ulp_and_keeps_nan() {
        fn apply<S: Set>(x: &mut [f32]) {
            Activation::Elu.apply::<S>(x, &mut []);
        }
        let worst = worst([apply::<Avx2>, apply::<Plain>], |x| if x > 0.0 { x } else { x.exp_m1() });
        assert!(worst < 1.0, "{worst}");
        let mut odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1e30];
        apply::<Avx2>(&mut odd);
        assert!(odd[0].is_nan() && odd[1..] == [f32::INFINITY, -1.0, 0.0, -1.0], "{odd:?}");
    }

    /// Returns the largest errors of values and slopes, each relative to the larger of 1 and the exact value.
    fn errors(activation: Activation, exact: fn(f64) -> f64) -> [f64; 2] {
        fn apply<S: Set>(activation: Activation, x: &mut [f32], slopes: &mut [f32]) {
            activation.apply::<S>(x, slopes);
        }
        let numbers: Vec<f32> = (-200_000..200_000).map(|i| i as f32 / 5000.0).collect();
        let mut errors = [0.0f64; 2];
        for apply in [apply::<Avx2>, apply::<Plain>] {
            let (mut values, mut slopes, mut alone) = (numbers.clone(), vec![f32::NAN; numbers.len()], numbers.clone());
            apply(activation, &mut values, &mut slopes);
            apply(activation, &mut alone, &mut []);
            assert_eq!(values, alone);
            for ((x, value), slope) in numbers.iter().map(|x| f64::from(*x)).zip(values).zip(slopes) {
                let derivative = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
                for (error, (got, exact)) in errors.iter_mut().zip([(value, exact(x)), (slope, derivative)]) {
                    *error = error.max((f64::from(got) - exact).abs() / exact.abs().max(1.0));
                }
            }
        }
        println!("{errors:?}");
        errors
    }

    #[test]
    fn silu_and_gelu_and_their_slopes_are_accurate_and_keep_nan() {
        let gelu = |x: f64| x * 0.5 * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
        for (activation, exact) in [(Activation::Silu, (|x| x / (1.0 + (-x).exp())) as fn(f64) -> f64), (Activation::Gelu, gelu)]
        {
            assert!(activation.keeps_slopes());
            let [value, slope] = errors(activation, exact);
            assert!(value < 1.5e-7 && slope < 5e-7, "{activation:?}: {value} {slope}");
            let mut odd = [f32::NAN, f32::INFINITY, 0.0, -1e30, 1e30];
            let mut slopes = [0.0; 5];
            activation.apply::<Avx2>(&mut odd, &mut slopes);
            assert!(odd[0].is_nan() && slopes[0].is_nan());
            assert!(odd[1..3] == [f32::INFINITY, 0.0] && odd[3].abs() < 1e-5 && odd[4] == 1e30, "{odd:?}");
            assert!(slopes[2] == 0.5 && slopes[3].abs() < 1e-5 && (slopes[4] - 1.0).abs() < 1e-5, "{slopes:?}");
        }
    }

    #[test]
    fn tanh_is_accurate_to_two_and_a_half_ulp() {
        let worst = worst([tanh::<Avx2>, tanh::<Plain>], f64::tanh);
        assert!(worst < 2.5, "{worst}");
        let mut nan = [f32::NAN; TOGETHER + 1];
        tanh::<Avx2>(&mut nan);
        assert!(nan.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn tanh_of_many_numbers_is_that_of_each() {
        let numbers: Vec<f32> = (0..3 * TOGETHER + 7).map(|i| (i as f32 - 700.0) / 97.0).collect();
        let (mut many, mut each) = (numbers.clone(), numbers);
        tanh::<Avx2>(&mut many);
        each.chunks_mut(1).for_each(tanh::<Avx2>);
        assert!(many.iter().zip(&each).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
