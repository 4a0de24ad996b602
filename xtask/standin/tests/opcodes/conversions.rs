//! Conversions and moves (manual, 6.5 and 9.7.9).

use crate::machine::{agree, column, compute, unary};
use crate::numbers::{F32, F64};

#[test]
fn integers_are_truncated_or_extended() {
    unary("cvt.u16.u32", &[(0x1234_5678_u32, 0x5678_u16), (u32::MAX, u16::MAX), (0x1_0000, 0)]);
    unary("cvt.u16.u64", &[(0x1234_5678_9abc_def0_u64, 0xdef0_u16), (u64::MAX, u16::MAX), (1 << 16, 0)]);
    unary("cvt.u32.u64", &[(0x1234_5678_9abc_def0_u64, 0x9abc_def0_u32), (u64::MAX, u32::MAX), (1 << 32, 0)]);
    unary("cvt.u64.u32", &[(0_u32, 0_u64), (0x8000_0000, 0x8000_0000), (u32::MAX, 0xffff_ffff)]);
    unary("cvt.s64.s32", &[(0_i32, 0_i64), (-1, -1), (i32::MIN, -0x8000_0000), (i32::MAX, 0x7fff_ffff)]);
}

#[test]
fn integers_become_the_nearest_f32() {
    unary("cvt.rn.f32.u16", &[(0_u16, 0.0_f32), (1, 1.0), (0x8000, 32_768.0), (u16::MAX, 65_535.0)]);
    unary(
        "cvt.rn.f32.s32",
        &[
            (0, 0.0_f32),
            (-1, -1.0),
            (16_777_216, 16_777_216.0),
            (16_777_217, 16_777_216.0), // a tie, to even
            (16_777_219, 16_777_220.0), // a tie, to even
            (-16_777_217, -16_777_216.0),
            (-16_777_219, -16_777_220.0),
            (i32::MAX, 2_147_483_648.0),
            (i32::MIN, -2_147_483_648.0),
        ],
    );
    unary(
        "cvt.rn.f32.u32",
        &[
            (0_u32, 0.0_f32),
            (16_777_217, 16_777_216.0), // a tie, to even
            (16_777_219, 16_777_220.0), // a tie, to even
            (0x8000_0000, 2_147_483_648.0),
            (0xffff_ff7f, 4_294_967_040.0), // just below the tie
            (0xffff_ff80, 4_294_967_296.0), // a tie, to even
            (u32::MAX, 4_294_967_296.0),
        ],
    );
    let integers = (0..1000_u32).map(|i| i.wrapping_mul(0x9e37_79b9));
    unary("cvt.rn.f32.u32", &integers.clone().map(|n| (n, n as f32)).collect::<Vec<_>>());
    unary("cvt.rn.f32.s32", &integers.map(|n| (n.cast_signed(), n.cast_signed() as f32)).collect::<Vec<_>>());
}

#[test]
fn integers_become_f64_rounded_to_nearest_even() {
    unary("cvt.rn.f64.u32", &[(0_u32, 0.0_f64), (u32::MAX, 4_294_967_295.0), (0x8000_0000, 2_147_483_648.0)]);
    // 2^53 + 1 is a tie, to even.
    unary(
        "cvt.rn.f64.u64",
        &[(0_u64, 0.0_f64), ((1 << 53) + 1, 9_007_199_254_740_992.0), (u64::MAX, 18_446_744_073_709_551_616.0)],
    );
}

#[test]
fn f32_becomes_f64_exactly() {
    unary("cvt.f64.f32", &[(f32::from_bits(1), 2.0_f64.powi(-149)), (-0.0, -0.0), (0.1, 0.100_000_001_490_116_12)]);
    unary("cvt.f64.f32", &F32.map(|a| (a, f64::from(a))));
}

#[test]
fn f64_becomes_the_nearest_f32() {
    let ulp = 2.0_f64.powi(-23); // of f32 at 1
    let half = 2.0_f64.powi(103); // of the ulp of f32::MAX
    let tiny = 2.0_f64.powi(-149); // the smallest subnormal of f32
    unary(
        "cvt.rn.f32.f64",
        &[
            (1.0 + ulp / 2.0, 1.0_f32), // a tie, to even
            (1.0 + ulp / 2.0 + f64::EPSILON, 1.0 + f32::EPSILON),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * f32::EPSILON), // a tie, to even
            (-0.0, -0.0),
            (f64::from(f32::MAX) + half, f32::INFINITY), // a tie, to even
            ((f64::from(f32::MAX) + half).next_down(), f32::MAX),
            (f64::MIN, f32::NEG_INFINITY),
            (tiny, f32::from_bits(1)),
            (tiny * 1.5, f32::from_bits(2)), // a tie, to even
            (tiny / 2.0, 0.0),               // a tie, to even
            ((tiny / 2.0).next_up(), f32::from_bits(1)),
            (-tiny / 2.0, -0.0),
        ],
    );
    unary("cvt.rn.f32.f64", &F64.map(|a| (a, a as f32)));
    unary("cvt.rn.f32.f64", &F32.map(|a| (f64::from(a), a)));
}

/// Moves copy bits, those of NaNs included.
#[test]
fn moves_copy_bits() {
    let words = [0_u32, 0x8000_0000, 0x7f80_0001, 0xffff_ffff, 0x1234_5678];
    for opcode in ["mov.b32", "mov.u32"] {
        unary(opcode, &words.map(|word| (word, word)));
    }
    let moved = compute::<u32>(&[column(words.map(f32::from_bits))], "mov.f32 %f9, %f1;\n    mov.b32 %r9, %f9;");
    agree("mov.f32", &[column(words)], &moved, &words);
    let floats = compute::<f32>(&[column(words)], "mov.b32 %f9, %r1;");
    agree("mov.b32", &[column(words)], &floats.into_iter().map(f32::to_bits).collect::<Vec<_>>(), &words);
    unary("mov.u16", &[(0_u16, 0_u16), (0x8001, 0x8001), (u16::MAX, u16::MAX)]);
    unary("mov.u64", &[(0_u64, 0_u64), (0xfedc_ba98_7654_3210, 0xfedc_ba98_7654_3210), (u64::MAX, u64::MAX)]);
    unary("mov.f64", &F64.map(|a| (a, a)));
}

/// "0f" and "0d" stand before the bits of a float in hexadecimal digits (manual, 4.5.2).
#[test]
fn constants_are_numbers_of_their_type() {
    let row = [column([0_u32])];
    for (constant, expected) in
        [("5", 5), ("-5", -5), ("-2147483648", i32::MIN), ("2147483647", i32::MAX), ("0x1F", 31), ("0b11U", 3), ("017", 15)]
    {
        agree(constant, &row, &compute(&row, &format!("mov.u32 %r9, {constant};")), &[expected]);
    }
    agree("-1", &row, &compute(&row, "mov.u16 %rs9, -1;"), &[u16::MAX]);
    agree("-1", &row, &compute(&row, "mov.u64 %rd9, -1;"), &[u64::MAX]);
    agree("64 bits", &row, &compute(&row, "mov.u64 %rd9, -9223372036854775808;"), &[1_u64 << 63]);
    for (constant, expected) in [("0f40490FDB", std::f32::consts::PI), ("0f80000000", -0.0), ("0fFF800000", f32::NEG_INFINITY)] {
        agree(constant, &row, &compute(&row, &format!("mov.f32 %f9, {constant};")), &[expected]);
    }
    agree("0f3F800000", &row, &compute(&row, "add.rn.f32 %f9, 0f3F800000, 0f40000000;"), &[3.0_f32]);
    agree("0d3FF8", &row, &compute(&row, "mov.f64 %fd9, 0d3FF8000000000000;"), &[1.5_f64]);
}

/// Constants may stand before registers, too.
#[test]
fn first_operands_may_be_constants() {
    let row = [column([3_u32])];
    agree("sub.s32", &row, &compute(&row, "sub.s32 %r9, 10, %r1;"), &[7_u32]);
    agree("shl.b32", &row, &compute(&row, "shl.b32 %r9, 1, %r1;"), &[8_u32]);
    let row = [column([4.0_f32])];
    agree("sub.rn.f32", &row, &compute(&row, "sub.rn.f32 %f9, 0f3F800000, %f1;"), &[-3.0_f32]);
    agree("div.rn.f32", &row, &compute(&row, "div.rn.f32 %f9, 0f3F800000, %f1;"), &[0.25_f32]);
}
