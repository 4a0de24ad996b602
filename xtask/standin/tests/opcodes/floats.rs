//! Floating-point arithmetic (manual, 9.7.3): IEEE 754, rounded to nearest even, subnormal numbers kept.

use crate::machine::{binary, ternary, unary};
use crate::numbers::{F32, F64};

/// Returns rows of all pairs of corner values, with results by Rust's operator.
fn pairs<T: Copy>(corners: &[T], result: impl Fn(T, T) -> T) -> Vec<(T, T, T)> {
    corners.iter().flat_map(|&a| corners.iter().map(move |&b| (a, b))).map(|(a, b)| (a, b, result(a, b))).collect()
}

/// Returns rows of all corner values, with results by Rust's operator.
fn each<T: Copy>(corners: &[T], result: impl Fn(T) -> T) -> Vec<(T, T)> {
    corners.iter().map(|&a| (a, result(a))).collect()
}

const TINY: f32 = f32::from_bits(1); // the smallest subnormal

#[test]
fn add_rounds_to_nearest_even() {
    binary(
        "add.rn.f32",
        &[
            (16_777_216.0_f32, 1.0_f32, 16_777_216.0_f32), // a tie, to even
            (16_777_218.0, 1.0, 16_777_220.0),             // a tie, to even
            (16_777_216.0, 1.000_000_1, 16_777_218.0),
            (f32::MAX, f32::MAX, f32::INFINITY),
            (f32::INFINITY, f32::NEG_INFINITY, f32::NAN),
            (TINY, TINY, f32::from_bits(2)), // not flushed
            (0.0, -0.0, 0.0),
            (-0.0, -0.0, -0.0),
            (1.0, -1.0, 0.0),
        ],
    );
    binary("add.rn.f32", &pairs(&F32, |a, b| a + b));
    binary("add.rn.f64", &pairs(&F64, |a, b| a + b));
}

#[test]
fn sub_rounds_to_nearest_even() {
    binary(
        "sub.rn.f32",
        &[
            (16_777_216.0_f32, -1.0_f32, 16_777_216.0_f32),
            (f32::MIN_POSITIVE, TINY, f32::from_bits(0x007f_ffff)), // a subnormal difference
            (f32::INFINITY, f32::INFINITY, f32::NAN),
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, -0.0),
            (1.0, 1.0, 0.0),
        ],
    );
    binary("sub.rn.f32", &pairs(&F32, |a, b| a - b));
    binary("sub.rn.f64", &pairs(&F64, |a, b| a - b));
}

#[test]
fn mul_rounds_to_nearest_even() {
    binary(
        "mul.rn.f32",
        &[
            (TINY, 0.5_f32, 0.0_f32),                    // a tie, to even
            (TINY, -0.5, -0.0),                          // a zero keeps its sign
            (f32::from_bits(3), 0.5, f32::from_bits(2)), // a tie, to even
            (f32::MIN_POSITIVE, 0.5, f32::from_bits(0x0040_0000)),
            (f32::INFINITY, 0.0, f32::NAN),
            (f32::MAX, -2.0, f32::NEG_INFINITY),
            (-0.0, 3.0, -0.0),
        ],
    );
    binary("mul.rn.f32", &pairs(&F32, |a, b| a * b));
    binary("mul.rn.f64", &pairs(&F64, |a, b| a * b));
}

#[test]
fn div_rounds_to_nearest_even() {
    binary(
        "div.rn.f32",
        &[
            (1.0_f32, 3.0_f32, f32::from_bits(0x3eaa_aaab)),
            (1.0, 0.0, f32::INFINITY),
            (1.0, -0.0, f32::NEG_INFINITY),
            (0.0, 0.0, f32::NAN),
            (f32::INFINITY, f32::INFINITY, f32::NAN),
            (f32::MIN_POSITIVE, 2.0, f32::from_bits(0x0040_0000)),
            (1.0, f32::INFINITY, 0.0),
        ],
    );
    binary("div.rn.f32", &pairs(&F32, |a, b| a / b));
    binary("div.rn.f64", &[(1.0_f64, 3.0_f64, f64::from_bits(0x3fd5_5555_5555_5555)), (1.0, -0.0, f64::NEG_INFINITY)]);
    binary("div.rn.f64", &pairs(&F64, |a, b| a / b));
}

#[test]
fn rcp_is_a_correctly_rounded_quotient() {
    unary(
        "rcp.rn.f64",
        &[
            (3.0_f64, f64::from_bits(0x3fd5_5555_5555_5555)),
            (0.0, f64::INFINITY),
            (-0.0, f64::NEG_INFINITY),
            (f64::NEG_INFINITY, -0.0),
            (f64::from_bits(1), f64::INFINITY),
            (f64::MAX, f64::from_bits(0x0004_0000_0000_0000)), // subnormal
        ],
    );
    unary("rcp.rn.f64", &each(&F64, |a| 1.0 / a));
    unary("rcp.rn.f32", &[(3.0_f32, f32::from_bits(0x3eaa_aaab)), (-0.0, f32::NEG_INFINITY)]);
    unary("rcp.rn.f32", &each(&F32, |a| 1.0 / a));
}

#[test]
fn sqrt_is_correctly_rounded_and_keeps_the_sign_of_zero() {
    unary(
        "sqrt.rn.f32",
        &[
            (2.0_f32, f32::from_bits(0x3fb5_04f3)),
            (-0.0, -0.0),
            (-TINY, f32::NAN),
            (f32::NEG_INFINITY, f32::NAN),
            (f32::INFINITY, f32::INFINITY),
        ],
    );
    unary("sqrt.rn.f32", &each(&F32, f32::sqrt));
    unary("sqrt.rn.f64", &[(2.0_f64, f64::from_bits(0x3ff6_a09e_667f_3bcd)), (-0.0, -0.0), (-1.0, f64::NAN)]);
    unary("sqrt.rn.f64", &each(&F64, f64::sqrt));
}

/// "fma.f32 computes the product of a and b to infinite precision and then adds c to this product, again in infinite
/// precision. The resulting value is then rounded."
#[test]
fn fma_rounds_once() {
    let a = 1.0 + 2.0_f32.powi(-12); // a * a = 1 + 2^-11 + 2^-24, a tie in f32
    let c = -(1.0 + 2.0_f32.powi(-11));
    assert_eq!(a * a + c, 0.0, "two roundings lose the last term");
    let almost_one = 1.0 - f32::EPSILON / 2.0;
    ternary(
        "fma.rn.f32",
        &[
            (a, a, c, 2.0_f32.powi(-24)),
            (f32::MAX, 2.0, f32::NEG_INFINITY, f32::NEG_INFINITY),
            (f32::MAX, 2.0, -f32::MAX, f32::MAX), // the product alone overflows
            (f32::INFINITY, 0.0, 1.0, f32::NAN),
            (f32::INFINITY, 1.0, f32::NEG_INFINITY, f32::NAN),
            (1.0, 1.0, f32::NAN, f32::NAN),
            (1.0, -1.0, 1.0, 0.0),
            (-0.0, 1.0, -0.0, -0.0),
            (TINY, 0.5, TINY, f32::from_bits(2)), // 1.5 of the smallest: a tie, to even
            (almost_one, almost_one, -almost_one, almost_one.mul_add(almost_one, -almost_one)),
        ],
    );
    let rows: Vec<_> = pairs(&F32, |a, b| b.mul_add(0.1, a)).into_iter().map(|(c, a, result)| (a, 0.1_f32, c, result)).collect();
    ternary("fma.rn.f32", &rows);
}

#[test]
fn neg_changes_the_sign_alone() {
    unary(
        "neg.f32",
        &[(0.0_f32, -0.0_f32), (-0.0, 0.0), (TINY, -TINY), (f32::INFINITY, f32::NEG_INFINITY), (f32::NAN, f32::NAN)],
    );
    unary("neg.f32", &each(&F32, |a| -a));
}

/// The operand that is no NaN wins, and "+0.0 > -0.0".
#[test]
fn min_and_max_prefer_numbers_to_nans_and_order_zeros() {
    let smaller = [
        (1.0_f32, 2.0_f32, 1.0_f32),
        (2.0, 1.0, 1.0),
        (-0.0, 0.0, -0.0),
        (0.0, -0.0, -0.0),
        (f32::NAN, 1.0, 1.0),
        (1.0, f32::NAN, 1.0),
        (f32::NAN, f32::INFINITY, f32::INFINITY),
        (f32::NAN, f32::NAN, f32::NAN),
        (TINY, 0.0, 0.0),
        (-TINY, 0.0, -TINY), // not flushed
        (f32::NEG_INFINITY, f32::MIN, f32::NEG_INFINITY),
    ];
    binary("min.f32", &smaller);
    binary("max.f32", &smaller.map(|(a, b, result)| (-a, -b, -result)));
    binary("max.f32", &[(f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY), (1.0, 2.0, 2.0), (2.0, 1.0, 2.0)]);
}
