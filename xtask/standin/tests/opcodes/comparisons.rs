//! Comparisons (manual, 9.3.1 and 9.7.7).

use crate::machine::comparison;
use crate::numbers::Number;

/// Checks a comparison on all pairs of ascending numbers: its results for less, equal and greater.
fn ordered<T: Number>(opcode: &str, [less, equal, greater]: [bool; 3], ascending: &[T]) {
    let mut rows = Vec::new();
    for (i, &a) in ascending.iter().enumerate() {
        for (k, &b) in ascending.iter().enumerate() {
            rows.push((a, b, if i < k { less } else { [equal, greater][usize::from(i > k)] }));
        }
    }
    comparison(opcode, &rows);
}

const EQ: [bool; 3] = [false, true, false];
const NE: [bool; 3] = [true, false, true];
const LT: [bool; 3] = [true, false, false];
const LE: [bool; 3] = [true, true, false];
const GT: [bool; 3] = [false, false, true];
const GE: [bool; 3] = [false, true, true];

#[test]
fn signed_integers_are_ordered_by_sign() {
    let ascending = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX];
    ordered("setp.eq.s32", EQ, &ascending);
    ordered("setp.ne.s32", NE, &ascending);
    ordered("setp.lt.s32", LT, &ascending);
    ordered("setp.gt.s32", GT, &ascending);
    ordered("setp.eq.s16", EQ, &[i16::MIN, -1, 0, 1, i16::MAX]);
    ordered("setp.ne.s16", NE, &[i16::MIN, -1, 0, 1, i16::MAX]);
    ordered("setp.gt.s16", GT, &[i16::MIN, -1, 0, 1, i16::MAX]);
    // Pairs that agree in one half only.
    let ascending = [i64::MIN, -0x1_0000_0000, -1, 0, 1, 0x1_0000_0000, 0x1_0000_0001, i64::MAX];
    ordered("setp.eq.s64", EQ, &ascending);
    ordered("setp.ne.s64", NE, &ascending);
}

#[test]
fn unsigned_integers_are_ordered_by_magnitude() {
    let ascending = [0_u16, 1, 0x7fff, 0x8000, u16::MAX];
    ordered("setp.lt.u16", LT, &ascending);
    ordered("setp.gt.u16", GT, &ascending);
    let ascending = [0_u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    ordered("setp.eq.b32", EQ, &ascending);
    ordered("setp.lt.u32", LT, &ascending);
    ordered("setp.le.u32", LE, &ascending);
    ordered("setp.gt.u32", GT, &ascending);
    ordered("setp.ge.u32", GE, &ascending);
    let ascending = [0_u64, 1, 0xffff_ffff, 0x1_0000_0000, 0x7fff_ffff_ffff_ffff, 1 << 63, u64::MAX];
    ordered("setp.eq.b64", EQ, &ascending);
    ordered("setp.ge.u64", GE, &ascending);
    ordered("setp.lt.u64", LT, &ascending);
    ordered("setp.gt.u64", GT, &ascending);
}

/// With a NaN, ordered comparisons are false and unordered ones true; `num` is true if both operands are numbers.
#[test]
fn comparisons_with_nan_are_false_unless_unordered() {
    let tiny = f32::from_bits(1);
    let ascending = [f32::NEG_INFINITY, f32::MIN, -1.0, -tiny, 0.0, tiny, f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY];
    let nans = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)];
    // Results for less, equal, greater, and for a NaN.
    let table = [
        ("setp.eq.f32", EQ, false),
        ("setp.neu.f32", NE, true),
        ("setp.lt.f32", LT, false),
        ("setp.ltu.f32", LT, true),
        ("setp.le.f32", LE, false),
        ("setp.leu.f32", LE, true),
        ("setp.gt.f32", GT, false),
        ("setp.gtu.f32", GT, true),
        ("setp.ge.f32", GE, false),
        ("setp.geu.f32", GE, true),
        ("setp.num.f32", [true; 3], false),
    ];
    let rows = [(1.0, 2.0, true), (1.0, 1.0, true), (2.0, 1.0, false), (f64::NAN, 1.0, true), (1.0, f64::NAN, true)];
    comparison("setp.leu.f64", &rows);
    for (opcode, relation, unordered) in table {
        ordered(opcode, relation, &ascending);
        comparison(opcode, &[(0.0_f32, -0.0_f32, relation[1]), (-0.0, 0.0, relation[1])]);
        let mut rows = Vec::new();
        for nan in nans {
            rows.extend(ascending.map(|number| (nan, number, unordered)));
            rows.extend(ascending.map(|number| (number, nan, unordered)));
            rows.extend(nans.map(|other| (nan, other, unordered)));
        }
        comparison(opcode, &rows);
    }
}
