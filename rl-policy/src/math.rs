//! Arithmetic in f32 that gives the same bits on every machine.
//!
//! IEEE additions, multiplications, divisions and integer operations in a fixed order. The functions repeat those of
//! `rl_envs::math` and `rl_envs::rng`, and the activation of the trainer's networks.

use crate::fused::fused;

/// 1.5 * 2^23: a sum with it holds the nearest integer in its low bits.
const ROUND: f32 = 12_582_912.0;
/// High part of ln 2: nine bits.
const LN_2_A: f32 = 0.693_359_4;
/// Low part of ln 2.
const LN_2_B: f32 = -2.121_944_4e-4;
/// Exponent whose power is negligible beside 1.
const LOW: f32 = -20.0;
/// Coefficients of the gate of GELU: of x and of x^3.
pub(crate) const GELU: [f32; 2] = [1.595_769_2, 0.071_354_814];

/// Clamps `x` to `low..=high`; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// e to the power of `x`.
pub(crate) fn exp(x: f32) -> f32 {
    let bounded = clamp(x, -104.0, 89.0);
    let shifted = bounded * core::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (bounded - k * LN_2_A) - k * LN_2_B;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1) * r + 0.5;
    let y = (p * (r * r) + r) + 1.0;
    let k = (shifted.to_bits() & 0x007F_FFFF) as i32 - 0x0040_0000;
    let half = k >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    if x.is_nan() { x } else { y * power(half) * power(k - half) }
}

/// The natural logarithm of a positive number.
pub(crate) fn ln(x: f32) -> f32 {
    const SQRT_1_2_BITS: u32 = 0x3F35_04F3;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let shifted = scaled.to_bits().wrapping_sub(SQRT_1_2_BITS);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007F_FFFF) + SQRT_1_2_BITS);
    let e = e as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = m - 1.0;
    let f2 = f * f;
    let mut p = 7.037_683_6e-2;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * f + c;
    }
    let p = p * f * f2;
    let y = ((p + e * LN_2_B) - 0.5 * f2 + f) + e * LN_2_A;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// The hyperbolic tangent of an action.
pub(crate) fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let x2 = x * x;
    let p = (((-5.704_988_7e-3 * x2 + 2.063_909e-2) * x2 - 5.373_971_6e-2) * x2 + 1.333_144_2e-1) * x2 - 3.333_328e-1;
    if magnitude < 0.625 { x + x * x2 * p } else { (1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0)).copysign(x) }
}

/// Returns `scale` and `p` with `exp(z) = scale (1 + p)`.
///
/// For z of at most 0; below `low` those of `low`.
#[inline(always)]
fn exponential<const CHOSEN: bool>(z: f32, low: f32) -> [f32; 2] {
    let z = if z < low { low } else { z };
    let shifted = fused::<CHOSEN>(z, core::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = fused::<CHOSEN>(-k, LN_2_B, fused::<CHOSEN>(-k, LN_2_A, z));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = fused::<CHOSEN>(p, r, c);
    }
    [f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23)), fused::<CHOSEN>(p, r * r, r)]
}

/// The number above 0, else its exponential less 1, between layers.
#[inline(always)]
pub(crate) fn activation_elu<const CHOSEN: bool>(x: f32) -> f32 {
    let [scale, p] = exponential::<CHOSEN>(if x > 0.0 { 0.0 } else { x }, LOW);
    if x > 0.0 { x } else { fused::<CHOSEN>(scale, p, scale - 1.0) }
}

/// The hyperbolic tangent between layers, whose multiply-adds are fused.
#[inline(always)]
pub(crate) fn activation_tanh<const CHOSEN: bool>(x: f32) -> f32 {
    let [scale, p] = exponential::<CHOSEN>(-2.0 * x.abs(), LOW);
    let y = if x.abs() > 0.55 {
        let t = fused::<CHOSEN>(scale, p, scale);
        1.0 + -2.0 * t / (1.0 + t)
    } else {
        let e = fused::<CHOSEN>(scale, p, scale - 1.0);
        0.0 + -e / (2.0 + e)
    };
    y.copysign(x)
}

/// A number times the logistic function of `gate`, between layers.
#[inline(always)]
fn gated<const CHOSEN: bool>(x: f32, gate: f32) -> f32 {
    let [scale, p] = exponential::<CHOSEN>(-gate.abs(), -86.0);
    let power = fused::<CHOSEN>(scale, p, scale);
    let larger = 1.0 / (1.0 + power);
    x * (if gate > 0.0 { larger } else { power * larger })
}

/// The number times its logistic function, between layers.
#[inline(always)]
pub(crate) fn activation_silu<const CHOSEN: bool>(x: f32) -> f32 {
    gated::<CHOSEN>(x, x)
}

/// The number times the normal distribution function, between layers.
///
/// The function is approximated with tanh.
#[inline(always)]
pub(crate) fn activation_gelu<const CHOSEN: bool>(x: f32) -> f32 {
    let bounded = clamp(x, -10.0, 10.0);
    gated::<CHOSEN>(x, bounded * fused::<CHOSEN>(GELU[1], bounded * bounded, GELU[0]))
}

/// `1 / (1 + exp(-x))` of a gate, whose multiply-adds are fused.
#[inline(always)]
pub(crate) fn gate_sigmoid<const CHOSEN: bool>(x: f32) -> f32 {
    fused::<CHOSEN>(activation_tanh::<CHOSEN>(0.5 * x), 0.5, 0.5)
}

/// Sine and cosine of an angle from 0 to 2 pi.
fn sin_cos(x: f32) -> [f32; 2] {
    const PI_2_A: f32 = 1.570_312_5;
    const PI_2_B: f32 = 4.837_513e-4;
    const PI_2_C: f32 = 7.549_79e-8;
    let shifted = x * core::f32::consts::FRAC_2_PI + ROUND;
    let quadrant = shifted.to_bits();
    let k = shifted - ROUND;
    let r = ((x - k * PI_2_A) - k * PI_2_B) - k * PI_2_C;
    let r2 = r * r;
    let sin = r + r * r2 * ((-1.951_529_6e-4 * r2 + 8.332_161e-3) * r2 - 1.666_665_5e-1);
    let cos = (1.0 - 0.5 * r2) + r2 * r2 * ((2.443_315_7e-5 * r2 - 1.388_731_6e-3) * r2 + 4.166_664_6e-2);
    let (s, c) = if quadrant & 1 != 0 { (cos, sin) } else { (sin, cos) };
    let (sin_sign, cos_sign) = ((quadrant & 2) << 30, (quadrant.wrapping_add(1) & 2) << 30);
    [f32::from_bits(s.to_bits() ^ sin_sign), f32::from_bits(c.to_bits() ^ cos_sign)]
}

/// The square root of a normal positive number, rounded to nearest.
///
/// 0, infinity and NaN stay.
pub(crate) fn sqrt(x: f32) -> f32 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let significand = u64::from(bits & 0x007F_FFFF | 0x0080_0000);
    let square = significand << (23 + (exponent & 1));
    let mut root = 0;
    for bit in (0..24).rev() {
        let with = root | 1u64 << bit;
        root = if with * with <= square { with } else { root };
    }
    let up = u32::from(square - root * root > root); // may carry into the exponent
    f32::from_bits(((((exponent >> 1) + 127) as u32) << 23 | root as u32 & 0x007F_FFFF) + up)
}

/// Returns a block of the random words of a step of an environment.
///
/// It is that of `rl_envs::rng` (Philox4x32-10) for the purpose of acting.
pub(crate) fn words(seed: u64, env: u32, step: u64, block: u32) -> [u32; 4] {
    const POLICY: u32 = 3;
    let mut counter = [env, step as u32, (step >> 32) as u32, POLICY << 24 | block];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
    }
    counter
}

/// A uniform number in [0, 1) from a word.
pub(crate) fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Normal number `index` of the four that a block of words makes.
pub(crate) fn normal(block: [u32; 4], index: usize) -> f32 {
    let [radius, angle] = [block[index & 2], block[index & 2 | 1]];
    let radius = sqrt(-2.0 * ln(1.0 - uniform(radius)));
    radius * sin_cos(core::f32::consts::TAU * uniform(angle))[index & 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::{Purpose, Rng, math, rng};

    /// Numbers of every sign and exponent, the special ones among them.
    fn numbers() -> impl Iterator<Item = f32> {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE];
        special.into_iter().chain((0..=u32::MAX / 2039).map(|i| f32::from_bits(i * 2039)))
    }

    fn assert_same(name: &str, x: f32, got: f32, expected: f32) {
        assert!(
            got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(),
            "{name}({x:e}): {got:e}, not {expected:e}"
        );
    }

    #[test]
    fn functions_have_the_bits_of_the_environments_mathematics() {
        for x in numbers() {
            assert_same("exp", x, exp(x), math::exp(x));
            assert_same("ln", x, ln(x), math::ln(x));
            assert_same("tanh", x, tanh(x), math::tanh(x));
            assert_same("clamp", x, clamp(x, -1.0, 2.0), math::clamp(x, -1.0, 2.0));
        }
        for x in numbers().filter(|x| (0.0..=core::f32::consts::TAU).contains(x)) {
            let [sin, cos] = sin_cos(x);
            assert_same("sin", x, sin, math::sin_cos(x).0);
            assert_same("cos", x, cos, math::sin_cos(x).1);
        }
        // Each significand with an even and an odd exponent, and each exponent with some.
        let significands = (1.0f32.to_bits()..4.0f32.to_bits()).map(f32::from_bits);
        for x in significands
            .chain(numbers().step_by(8))
            .filter(|x| *x == 0.0 || x.is_normal() && *x > 0.0 || x.is_nan())
            .chain([f32::INFINITY])
        {
            assert_same("sqrt", x, sqrt(x), x.sqrt());
        }
    }

    #[test]
    fn words_and_numbers_are_those_of_the_trainer() {
        for i in 0..100_000u32 {
            let (seed, env, step) = (u64::from(i).wrapping_mul(0x9E37_79B9_7F4A_7C15), i ^ 77, u64::from(i) << (i % 33));
            let mut stream = Rng::new(seed, env, step, Purpose::Policy);
            for block in 0..2 {
                let got = words(seed, env, step, block);
                assert_eq!(got, [(); 4].map(|()| stream.next_u32()));
                got.iter().for_each(|word| assert_same("uniform", *word as f32, uniform(*word), rng::uniform(*word)));
                for (i, expected) in rng::normals(got).into_iter().enumerate() {
                    assert_same("normal", i as f32, normal(got, i), expected);
                }
            }
        }
    }
}
