//! Integer arithmetic (manual, 9.7.1).

use crate::machine::{binary, column, compute, ternary, unary};

#[test]
fn add_wraps() {
    binary("add.s32", &[(2, 3, 5), (-2, 2, 0), (i32::MAX, 1, i32::MIN), (i32::MIN, -1, i32::MAX), (i32::MIN, i32::MIN, 0)]);
    binary(
        "add.s64",
        &[
            (2_i64, 3_i64, 5_i64),
            (0xffff_ffff, 1, 0x1_0000_0000), // the carry crosses the halves
            (-1, 1, 0),
            (i64::MAX, 1, i64::MIN),
            (i64::MIN, -1, i64::MAX),
        ],
    );
}

#[test]
fn sub_wraps() {
    binary("sub.s32", &[(2, 3, -1), (3, 2, 1), (i32::MIN, 1, i32::MAX), (i32::MAX, -1, i32::MIN), (0, i32::MIN, i32::MIN)]);
    binary(
        "sub.s64",
        &[
            (2_i64, 3_i64, -1_i64),
            (0x1_0000_0000, 1, 0xffff_ffff), // the borrow crosses the halves
            (i64::MIN, 1, i64::MAX),
            (i64::MAX, -1, i64::MIN),
            (0, i64::MIN, i64::MIN),
        ],
    );
}

#[test]
fn neg_of_the_minimum_is_the_minimum() {
    unary("neg.s32", &[(0, 0), (1, -1), (-1, 1), (i32::MAX, -i32::MAX), (i32::MIN, i32::MIN)]);
    unary("neg.s64", &[(0_i64, 0_i64), (1, -1), (-0x1_0000_0000, 0x1_0000_0000), (i64::MAX, -i64::MAX), (i64::MIN, i64::MIN)]);
}

#[test]
fn mul_lo_keeps_the_low_half_of_the_product() {
    binary(
        "mul.lo.s32",
        &[
            (6, -7, -42),
            (0x1_0000, 0x1_0000, 0), // 2^32
            (0x1_0001, 0x1_0001, 0x2_0001),
            (i32::MAX, i32::MAX, 1), // 2^62 - 2^32 + 1
            (i32::MIN, -1, i32::MIN),
            (i32::MIN, i32::MIN, 0),
        ],
    );
    binary(
        "mul.lo.s64",
        &[
            (6_i64, -7_i64, -42_i64),
            (0xffff_ffff, 0xffff_ffff, 0xffff_fffe_0000_0001_u64.cast_signed()),
            (0x1_0000_0000, 0x1_0000_0000, 0), // 2^64
            (i64::MAX, i64::MAX, 1),
            (i64::MIN, -1, i64::MIN),
            (0xd251_1f53, 0x1_0000_0001, 0xd251_1f53_d251_1f53_u64.cast_signed()),
        ],
    );
}

#[test]
fn mul_hi_keeps_the_high_half_of_the_product() {
    binary(
        "mul.hi.s32",
        &[
            (6, -7, -1),
            (0x1_0000, 0x1_0000, 1), // 2^32
            (i32::MAX, i32::MAX, 0x3fff_ffff),
            (i32::MIN, -1, 0),
            (i32::MIN, i32::MIN, 0x4000_0000),
            (200, 0x6666_6667, 80),
        ],
    );
}

#[test]
fn mul_wide_keeps_the_whole_product() {
    binary(
        "mul.wide.u16",
        &[(2_u16, 3_u16, 6_u32), (0x8000, 2, 0x1_0000), (u16::MAX, u16::MAX, 0xfffe_0001), (u16::MAX, 1, 0xffff)],
    );
    binary(
        "mul.wide.u32",
        &[
            (0, u32::MAX, 0_u64),
            (2, 3, 6),
            (0x8000_0000, 2, 0x1_0000_0000),
            (u32::MAX, u32::MAX, 0xffff_fffe_0000_0001),
            (u32::MAX, 1, 0xffff_ffff), // unsigned: not sign-extended
        ],
    );
    binary(
        "mul.wide.s32",
        &[
            (2, 3, 6_i64),
            (-1, 1, -1), // sign-extended
            (-1, -1, 1),
            (i32::MIN, i32::MIN, 0x4000_0000_0000_0000),
            (i32::MIN, i32::MAX, -0x3fff_ffff_8000_0000),
            (i32::MIN, 1, -0x8000_0000),
            (i32::MAX, i32::MAX, 0x3fff_ffff_0000_0001),
        ],
    );
}

#[test]
fn mad_lo_wraps_in_the_product_and_in_the_sum() {
    ternary(
        "mad.lo.s32",
        &[
            (2, 3, 4, 10),
            (-2, 3, 4, -2),
            (1, i32::MAX, 1, i32::MIN),
            (0x1_0000, 0x1_0000, 7, 7), // the product is 2^32
            (i32::MIN, -1, -1, i32::MAX),
            (i32::MAX, i32::MAX, -2, -1),
        ],
    );
}

#[test]
fn min_and_max_of_u32_are_unsigned() {
    binary(
        "max.u32",
        &[(1_u32, 2, 2_u32), (2, 1, 2), (7, 7, 7), (u32::MAX, 0, u32::MAX), (0x8000_0000, 0x7fff_ffff, 0x8000_0000)],
    );
    binary("min.u32", &[(1_u32, 2, 1_u32), (2, 1, 1), (7, 7, 7), (u32::MAX, 0, 0), (0x8000_0000, 0x7fff_ffff, 0x7fff_ffff)]);
}

#[test]
fn min_and_max_of_s32_are_signed() {
    binary("max.s32", &[(1, 2, 2), (2, 1, 2), (-1, 0, 0), (0, -1, 0), (i32::MIN, i32::MAX, i32::MAX)]);
    binary("min.s32", &[(1, 2, 1), (2, 1, 1), (-1, 0, -1), (0, -1, -1), (i32::MIN, i32::MAX, i32::MIN)]);
}

#[test]
fn min_and_max_of_u64_are_unsigned() {
    let large = 1_u64 << 63;
    binary("max.u64", &[(1_u64, 2, 2_u64), (2, 1, 2), (7, 7, 7), (u64::MAX, 0, u64::MAX), (large, large - 1, large)]);
    binary("min.u64", &[(1_u64, 2, 1_u64), (2, 1, 1), (7, 7, 7), (u64::MAX, 0, 0), (large, large - 1, large - 1)]);
}

#[test]
fn div_is_unsigned_and_rounds_down() {
    binary(
        "div.u32",
        &[(7_u32, 2, 3_u32), (6, 7, 0), (u32::MAX, 1, u32::MAX), (u32::MAX, u32::MAX, 1), (u32::MAX, 2, 0x7fff_ffff), (0, 5, 0)],
    );
    binary(
        "div.u64",
        &[
            (7_u64, 2_u64, 3_u64),
            (6, 7, 0),
            (u64::MAX, 2, 0x7fff_ffff_ffff_ffff),
            (u64::MAX, u64::MAX, 1),
            (u64::MAX, 0x1_0000_0000, 0xffff_ffff),
        ],
    );
}

#[test]
fn rem_is_unsigned() {
    binary("rem.u32", &[(7_u32, 2, 1_u32), (6, 7, 6), (u32::MAX, 1, 0), (u32::MAX, 10, 5), (0x8000_0000, 3, 2), (0, 5, 0)]);
    binary(
        "rem.u64",
        &[(7_u64, 2_u64, 1_u64), (6, 7, 6), (u64::MAX, 10, 5), (u64::MAX, 0x1_0000_0000, 0xffff_ffff), (1 << 63, 3, 2)],
    );
}

/// Division by zero yields an unspecified value; the kernel ends.
#[test]
fn division_by_zero_yields_some_value() {
    for opcode in ["div.u32", "rem.u32"] {
        let columns = [column([0_u32, 1, u32::MAX]), column([0_u32, 0, 0])];
        assert_eq!(compute::<u32>(&columns, &format!("{opcode} %r9, %r1, %r2;")).len(), 3);
    }
    for opcode in ["div.u64", "rem.u64"] {
        let columns = [column([0_u64, 1, u64::MAX]), column([0_u64, 0, 0])];
        assert_eq!(compute::<u64>(&columns, &format!("{opcode} %rd9, %rd1, %rd2;")).len(), 3);
    }
}
