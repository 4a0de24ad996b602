//! Elementary functions in f32 that give the same bits everywhere.
//!
//! The functions use IEEE additions, multiplications, divisions, comparisons and integer operations in a fixed order, no fused
//! multiply-add and no table, so scalar code, vector code and a CUDA twin (compiled without contraction) agree to the last bit.
//! All are branch-free, so a loop over them vectorizes. Errors are against the exact value, in units in the last place of the
//! result; the tests measure them. The polynomials are those of Moshier's Cephes library (single precision).
//!
//! | function | error | over |
//! |---|---|---|
//! | [`sin_cos`] | < 2 ulp | \|x\| <= 128; absolute error < 2^-23 up to [`SIN_COS_MAX`] |
//! | [`exp`] | < 1.5 ulp | all normal results; subnormal ones within 1 ulp more |
//! | [`ln`] | < 1.5 ulp | all positive numbers |
//! | [`tanh`] | < 2 ulp | all numbers |
//! | [`wrap_angle`] | < 1e-6 absolute | \|x\| <= 100 |

/// Largest magnitude that [`sin_cos`] accepts; it treats larger arguments as 0.
pub const SIN_COS_MAX: f32 = 8192.0;

/// 1.5 * 2^23: a sum with it holds the nearest integer in its low bits.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// Sine and cosine of `x` radians.
///
/// Beyond [`SIN_COS_MAX`], where neighbouring arguments are far apart, finite arguments count as 0; infinities and NaN give NaN.
#[inline(always)]
#[must_use]
pub fn sin_cos(x: f32) -> (f32, f32) {
    // pi / 2 in three parts with few enough bits that a product with a quadrant number is exact.
    const PI_2_A: f32 = 1.570_312_5;
    const PI_2_B: f32 = 4.837_513e-4;
    const PI_2_C: f32 = 7.549_79e-8;
    let x = select(x.abs() <= SIN_COS_MAX, x, x * 0.0);
    let shifted = x * std::f32::consts::FRAC_2_PI + ROUND;
    let quadrant = shifted.to_bits();
    let k = shifted - ROUND;
    let r = ((x - k * PI_2_A) - k * PI_2_B) - k * PI_2_C;
    let r2 = r * r;
    let sin = r + r * r2 * ((-1.951_529_6e-4 * r2 + 8.332_161e-3) * r2 - 1.666_665_5e-1);
    let cos = (1.0 - 0.5 * r2) + r2 * r2 * ((2.443_315_7e-5 * r2 - 1.388_731_6e-3) * r2 + 4.166_664_6e-2);
    let swap = quadrant & 1 != 0;
    let (s, c) = (select(swap, cos, sin), select(swap, sin, cos));
    let sin_sign = (quadrant & 2) << 30;
    let cos_sign = (quadrant.wrapping_add(1) & 2) << 30;
    (f32::from_bits(s.to_bits() ^ sin_sign), f32::from_bits(c.to_bits() ^ cos_sign))
}

/// Wraps the angle `x` (radians, of a magnitude up to [`SIN_COS_MAX`]) into +-pi.
///
/// Rounding may exceed pi; an angle already in +-pi is returned unchanged.
#[inline(always)]
#[must_use]
pub fn wrap_angle(x: f32) -> f32 {
    // 2 pi in three parts with few enough bits that a product with a number of turns is exact.
    const TAU_A: f32 = 6.281_25;
    const TAU_B: f32 = 1.935_005_2e-3;
    const TAU_C: f32 = 3.019_916e-7;
    let k = (x * (0.5 * std::f32::consts::FRAC_1_PI) + ROUND) - ROUND;
    ((x - k * TAU_A) - k * TAU_B) - k * TAU_C
}

/// Clamps `x` to `low..=high`; NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// Returns `floor(x + 0.5)` for `x` from 0 to 255.
///
/// `as u8` tests each number for NaN, which does not vectorize.
#[inline(always)]
#[must_use]
pub fn round_to_byte(x: f32) -> u8 {
    const INTEGERS: f32 = 8_388_608.0; // 2^23: the low bits of a sum with it hold the nearest integer
    let x = x + 0.5;
    let shifted = x + INTEGERS;
    (shifted.to_bits() as u8).wrapping_sub(u8::from(shifted - INTEGERS > x))
}

/// e to the power of `x`: 0 for -infinity, infinity from 88.73 on, NaN for NaN.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    const LN_2_A: f32 = 0.693_359_4; // nine bits
    const LN_2_B: f32 = -2.121_944_4e-4;
    // Comparisons rather than min and max, so that NaN stays NaN.
    let bounded = select(x > 89.0, 89.0, x);
    let bounded = select(bounded < -104.0, -104.0, bounded);
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (bounded - k * LN_2_A) - k * LN_2_B;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1) * r + 0.5;
    let y = (p * (r * r) + r) + 1.0;
    // 2^k in two factors: k runs from -150 to 128, an exponent only from -126 to 127.
    let k = (shifted.to_bits() & 0x007F_FFFF) as i32 - 0x0040_0000;
    let half = k >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    select(x.is_nan(), x, y * power(half) * power(k - half))
}

/// The natural logarithm of `x`: -infinity for 0, NaN for negative numbers and NaN.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    const SQRT_1_2_BITS: u32 = 0x3F35_04F3;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = select(subnormal, x * 8_388_608.0, x); // 2^23
    // x = m 2^e with m in [sqrt(1/2), sqrt(2))
    let shifted = scaled.to_bits().wrapping_sub(SQRT_1_2_BITS);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007F_FFFF) + SQRT_1_2_BITS);
    let e = e as f32 - select(subnormal, 23.0, 0.0);
    let f = m - 1.0;
    let f2 = f * f;
    let p = ((((((((7.037_683_6e-2 * f - 1.151_461e-1) * f + 1.167_699_9e-1) * f - 1.242_014_1e-1) * f + 1.424_932_3e-1) * f
        - 1.666_805_8e-1)
        * f
        + 2.000_071_5e-1)
        * f
        - 2.499_999_4e-1)
        * f
        + 3.333_333e-1)
        * f
        * f2;
    let y = ((p + e * -2.121_944_4e-4) - 0.5 * f2 + f) + e * 0.693_359_4;
    let y = select(x == f32::INFINITY, x, y);
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    select(x >= 0.0, y, f32::NAN)
}

/// The hyperbolic tangent of `x`: -1 and 1 for the infinities, NaN for NaN.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let x2 = x * x;
    let p = (((-5.704_988_7e-3 * x2 + 2.063_909e-2) * x2 - 5.373_971_6e-2) * x2 + 1.333_144_2e-1) * x2 - 3.333_328e-1;
    let near = x + x * x2 * p;
    let far = (1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0)).copysign(x);
    select(magnitude < 0.625, near, far)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error of `got` in units in the last place of the f32 nearest to `exact`.
    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = (exact as f32).abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        let error = (f64::from(got) - exact).abs() / ulp;
        // NaN would vanish in a maximum.
        if error.is_nan() { f64::INFINITY } else { error }
    }

    /// The largest error over numbers of every magnitude and sign within [low, high]. The stride is prime to every power of two.
    fn worst(low: f32, high: f32, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        let numbers = (0..=u32::MAX / 1009).map(|i| f32::from_bits(i * 1009)).filter(|x| (low..=high).contains(x));
        numbers.map(|x| ulps(f(x), exact(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn bytes_are_rounded_half_up() {
        for i in 0..=255 * 64 {
            let x = i as f32 / 64.0;
            assert_eq!(f32::from(round_to_byte(x)), (x + 0.5).floor(), "{x}");
        }
    }

    #[test]
    fn wrapped_angles_are_the_same_angles() {
        for i in -100_000..100_000 {
            let x = i as f32 * 1e-3;
            let wrapped = wrap_angle(x);
            let turns = ((f64::from(x) - f64::from(wrapped)) / std::f64::consts::TAU).round();
            let exact = f64::from(x) - turns * std::f64::consts::TAU;
            assert!((f64::from(wrapped) - exact).abs() < 1e-6, "{x}");
            assert!(wrapped.abs() <= std::f32::consts::PI + 1e-5, "{x}");
            assert!(x.abs() >= std::f32::consts::PI || wrapped == x, "{x}");
        }
    }

    #[test]
    fn errors_stay_within_the_documented_bounds() {
        let rows = [
            ("sin", worst(-128.0, 128.0, |x| sin_cos(x).0, f64::sin), 2.0),
            ("cos", worst(-128.0, 128.0, |x| sin_cos(x).1, f64::cos), 2.0),
            ("exp", worst(-87.3, 88.72, exp, f64::exp), 1.5),
            ("ln", worst(f32::from_bits(1), f32::MAX, ln, f64::ln), 1.5),
            ("tanh", worst(-f32::MAX, f32::MAX, tanh, f64::tanh), 2.0),
        ];
        for (name, error, bound) in rows {
            println!("{name}: {error:.3} ulp");
            assert!(error < bound, "{name}: {error} ulp");
        }
    }

    #[test]
    fn sin_cos_holds_its_absolute_error_up_to_its_limit() {
        let mut worst: f64 = 0.0;
        for i in 0..1_000_000 {
            let x = (i as f32 - 500_000.0) * (SIN_COS_MAX / 500_000.0);
            let (s, c) = sin_cos(x);
            let (es, ec) = f64::from(x).sin_cos();
            worst = worst.max((f64::from(s) - es).abs()).max((f64::from(c) - ec).abs());
        }
        assert!(worst < 2f64.powi(-23), "{worst}");
    }

    #[test]
    fn special_arguments_have_defined_results() {
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert_eq!(sin_cos(1e30), (0.0, 1.0));
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(sin_cos(x).0.is_nan() && sin_cos(x).1.is_nan());
        }

        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(ulps(exp(-95.0), (-95f64).exp()) < 2.0, "subnormal results lose bits, not more");

        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f32::NEG_INFINITY).is_nan() && ln(f32::NAN).is_nan());

        assert_eq!(tanh(0.0), 0.0);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
    }
}
