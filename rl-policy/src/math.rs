//! Arithmetic in f32 that gives the same bits on every machine.
//!
//! IEEE additions, multiplications, divisions and integer operations in a fixed order; multiply-adds round once. The functions are
//! those of `rl_envs::math` and of the network kernel.

/// 1.5 * 2^23: a sum with it holds the nearest integer in its low bits.
const ROUND: f32 = 12_582_912.0;
/// High part of ln 2: nine bits.
const LN_2_A: f32 = 0.693_359_4;
/// Low part of ln 2.
const LN_2_B: f32 = -2.121_944_4e-4;

/// Returns `a * b + c`, rounded once.
///
/// The product of two f32 is exact in f64. The sum in f64 is rounded to odd: a later rounding to f32 then gives the result of a
/// single rounding.
#[inline(always)]
#[must_use]
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(all(feature = "std", any(target_feature = "fma", target_arch = "aarch64")))]
    return a.mul_add(b, c);
    #[cfg(not(all(feature = "std", any(target_feature = "fma", target_arch = "aarch64"))))]
    {
        let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + c;
        let back = sum - product;
        let error = (product - (sum - back)) + (c - back);
        let mut bits = sum.to_bits();
        if error != 0.0 && bits & 1 == 0 && sum.is_finite() {
            // Toward the error: to the odd one of the two neighbours of the exact sum.
            bits = if (error > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 };
        }
        f64::from_bits(bits) as f32
    }
}

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

/// The hyperbolic tangent between layers, whose multiply-adds are fused.
pub(crate) fn activation_tanh(x: f32) -> f32 {
    let z = -2.0 * x.abs();
    let z = if z < -20.0 { -20.0 } else { z };
    let shifted = fused(z, core::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = fused(-k, LN_2_B, fused(-k, LN_2_A, z));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = fused(p, r, c);
    }
    let p = fused(p, r * r, r);
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let y = if x.abs() > 0.55 {
        let t = fused(scale, p, scale);
        1.0 + -2.0 * t / (1.0 + t)
    } else {
        let e = fused(scale, p, scale - 1.0);
        0.0 + -e / (2.0 + e)
    };
    y.copysign(x)
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

/// The square root of a normal positive number, rounded to nearest; 0 for 0.
fn sqrt(x: f32) -> f32 {
    if x == 0.0 {
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

/// Block `block` of the random words with which the policy of environment `env` acts in step `step` (Philox4x32-10).
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
