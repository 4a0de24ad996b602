//! Arithmetic opcodes: name in PTX, operand types and result, one line each.
//!
//! Semantics: NVIDIA, Parallel Thread Execution ISA 8.0, chapter 9.7. Opcodes that touch memory or control are in `exec`.

use crate::ptx::operand::Operand;

/// Bits of an opcode's result and operands; 1 for a predicate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    pub(crate) result: u8,
    pub(crate) operands: &'static [u8],
}

macro_rules! opcodes {
    ($($op:ident = $($text:literal)|+, ($($arg:ident: $of:ty),*) -> $to:ty { $value:expr })*) => {
        /// Opcode that computes a register from registers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the table below describes them")]
        pub enum Arithmetic { $($op),* }

        impl Arithmetic {
            /// Returns the opcode with this name, and its operands.
            pub(crate) fn find(text: &str) -> Option<(Self, Signature)> {
                match text {
                    $($($text)|+ => {
                        Some((Self::$op, Signature { result: <$to as Operand>::WIDTH, operands: &[$(<$of as Operand>::WIDTH),*] }))
                    })*
                    _ => None,
                }
            }

            /// Computes the result; `operand` reads the register of the operand with an index.
            #[inline(always)]
            pub(crate) fn apply(self, operand: impl Fn(usize) -> u64) -> u64 {
                let mut index = 0;
                let mut next = || {
                    index += 1;
                    operand(index - 1)
                };
                match self {
                    $(Self::$op => {
                        $(let $arg = <$of>::of(next());)*
                        let value: $to = $value;
                        value.register()
                    })*
                }
            }
        }
    };
}

opcodes! {
    // Floating point, rounded to the nearest even number; subnormal numbers are kept.
    AddF32 = "add.rn.f32", (a: f32, b: f32) -> f32 { a + b }
    SubF32 = "sub.rn.f32", (a: f32, b: f32) -> f32 { a - b }
    MulF32 = "mul.rn.f32", (a: f32, b: f32) -> f32 { a * b }
    DivF32 = "div.rn.f32", (a: f32, b: f32) -> f32 { a / b }
    FmaF32 = "fma.rn.f32", (a: f32, b: f32, c: f32) -> f32 { a.mul_add(b, c) }
    SqrtF32 = "sqrt.rn.f32", (a: f32) -> f32 { a.sqrt() }
    NegF32 = "neg.f32", (a: u32) -> u32 { a ^ 0x8000_0000 }
    MinF32 = "min.f32", (a: f32, b: f32) -> f32 { min(a, b) }
    MaxF32 = "max.f32", (a: f32, b: f32) -> f32 { -min(-a, -b) }
    AddF64 = "add.rn.f64", (a: f64, b: f64) -> f64 { a + b }
    SubF64 = "sub.rn.f64", (a: f64, b: f64) -> f64 { a - b }
    MulF64 = "mul.rn.f64", (a: f64, b: f64) -> f64 { a * b }
    RcpF32 = "rcp.rn.f32", (a: f32) -> f32 { 1.0 / a }
    RcpApproxF32 = "rcp.approx.ftz.f32", (a: f32) -> f32 { 1.0 / a }
    RcpF64 = "rcp.rn.f64", (a: f64) -> f64 { 1.0 / a }
    DivF64 = "div.rn.f64", (a: f64, b: f64) -> f64 { a / b }
    SqrtF64 = "sqrt.rn.f64", (a: f64) -> f64 { a.sqrt() }

    // Integers wrap around. Division by zero has no specified result; this is the hardware's.
    AddU32 = "add.s32", (a: u32, b: u32) -> u32 { a.wrapping_add(b) }
    SubU32 = "sub.s32", (a: u32, b: u32) -> u32 { a.wrapping_sub(b) }
    MulLoU32 = "mul.lo.s32", (a: u32, b: u32) -> u32 { a.wrapping_mul(b) }
    MulHiS32 = "mul.hi.s32", (a: i32, b: i32) -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 }
    MadLoU32 = "mad.lo.s32", (a: u32, b: u32, c: u32) -> u32 { a.wrapping_mul(b).wrapping_add(c) }
    NegU32 = "neg.s32", (a: u32) -> u32 { a.wrapping_neg() }
    MinU32 = "min.u32", (a: u32, b: u32) -> u32 { a.min(b) }
    MaxU32 = "max.u32", (a: u32, b: u32) -> u32 { a.max(b) }
    MinS32 = "min.s32", (a: i32, b: i32) -> i32 { a.min(b) }
    MaxS32 = "max.s32", (a: i32, b: i32) -> i32 { a.max(b) }
    DivU32 = "div.u32", (a: u32, b: u32) -> u32 { a.checked_div(b).unwrap_or(u32::MAX) }
    RemU32 = "rem.u32", (a: u32, b: u32) -> u32 { a.checked_rem(b).unwrap_or(a) }
    AddU64 = "add.s64", (a: u64, b: u64) -> u64 { a.wrapping_add(b) }
    SubU64 = "sub.s64", (a: u64, b: u64) -> u64 { a.wrapping_sub(b) }
    MulLoU64 = "mul.lo.s64", (a: u64, b: u64) -> u64 { a.wrapping_mul(b) }
    NegU64 = "neg.s64", (a: u64) -> u64 { a.wrapping_neg() }
    MinU64 = "min.u64", (a: u64, b: u64) -> u64 { a.min(b) }
    MaxU64 = "max.u64", (a: u64, b: u64) -> u64 { a.max(b) }
    DivU64 = "div.u64", (a: u64, b: u64) -> u64 { a.checked_div(b).unwrap_or(u64::MAX) }
    RemU64 = "rem.u64", (a: u64, b: u64) -> u64 { a.checked_rem(b).unwrap_or(a) }
    MulWideU16 = "mul.wide.u16", (a: u16, b: u16) -> u32 { u32::from(a) * u32::from(b) }
    MulWideU32 = "mul.wide.u32", (a: u32, b: u32) -> u64 { u64::from(a) * u64::from(b) }
    MulWideS32 = "mul.wide.s32", (a: i32, b: i32) -> i64 { i64::from(a) * i64::from(b) }

    // Bits. A shift beyond the width shifts every bit out.
    And16 = "and.b16", (a: u16, b: u16) -> u16 { a & b }
    And32 = "and.b32", (a: u32, b: u32) -> u32 { a & b }
    And64 = "and.b64", (a: u64, b: u64) -> u64 { a & b }
    AndPred = "and.pred", (a: bool, b: bool) -> bool { a & b }
    Or16 = "or.b16", (a: u16, b: u16) -> u16 { a | b }
    Or32 = "or.b32", (a: u32, b: u32) -> u32 { a | b }
    Or64 = "or.b64", (a: u64, b: u64) -> u64 { a | b }
    OrPred = "or.pred", (a: bool, b: bool) -> bool { a | b }
    Xor32 = "xor.b32", (a: u32, b: u32) -> u32 { a ^ b }
    Xor64 = "xor.b64", (a: u64, b: u64) -> u64 { a ^ b }
    Not32 = "not.b32", (a: u32) -> u32 { !a }
    NotPred = "not.pred", (a: bool) -> bool { !a }
    Not64 = "not.b64", (a: u64) -> u64 { !a }
    XorPred = "xor.pred", (a: bool, b: bool) -> bool { a ^ b }
    Shl16 = "shl.b16", (a: u16, b: u32) -> u16 { a.checked_shl(b).unwrap_or(0) }
    Shl32 = "shl.b32", (a: u32, b: u32) -> u32 { a.checked_shl(b).unwrap_or(0) }
    Shl64 = "shl.b64", (a: u64, b: u32) -> u64 { a.checked_shl(b).unwrap_or(0) }
    ShrU16 = "shr.u16", (a: u16, b: u32) -> u16 { a.checked_shr(b).unwrap_or(0) }
    ShrU32 = "shr.u32", (a: u32, b: u32) -> u32 { a.checked_shr(b).unwrap_or(0) }
    ShrU64 = "shr.u64", (a: u64, b: u32) -> u64 { a.checked_shr(b).unwrap_or(0) }
    ShrS32 = "shr.s32", (a: i32, b: u32) -> i32 { a >> b.min(31) }
    Bfi32 = "bfi.b32", (a: u32, b: u32, c: u32, d: u32) -> u32 { insert_bits(a, b, c, d) }
    Prmt32 = "prmt.b32", (a: u32, b: u32, c: u32) -> u32 { permute_bytes(a, b, c) }

    // Conversions.
    CvtF64F32 = "cvt.f64.f32", (a: f32) -> f64 { a.into() }
    CvtF32F64 = "cvt.rn.f32.f64", (a: f64) -> f32 { a as f32 }
    CvtF32S32 = "cvt.rn.f32.s32", (a: i32) -> f32 { a as f32 }
    CvtF32U16 = "cvt.rn.f32.u16", (a: u16) -> f32 { a.into() }
    CvtF32U32 = "cvt.rn.f32.u32", (a: u32) -> f32 { a as f32 }
    CvtF64U32 = "cvt.rn.f64.u32", (a: u32) -> f64 { a.into() }
    CvtF64U64 = "cvt.rn.f64.u64", (a: u64) -> f64 { a as f64 }
    CvtS64S32 = "cvt.s64.s32", (a: i32) -> i64 { a.into() }
    CvtU16U32 = "cvt.u16.u32", (a: u32) -> u16 { a as u16 }
    CvtU16U64 = "cvt.u16.u64", (a: u64) -> u16 { a as u16 }
    CvtU32U16 = "cvt.u32.u16", (a: u16) -> u32 { a.into() }
    CvtU32U64 = "cvt.u32.u64", (a: u64) -> u32 { a as u32 }
    CvtU64U32 = "cvt.u64.u32", (a: u32) -> u64 { a.into() }
    // Global memory has the generic addresses.
    Mov64 = "mov.b64" | "mov.u64" | "mov.f64" | "cvta.to.global.u64", (a: u64) -> u64 { a }
    Mov32 = "mov.b32" | "mov.u32" | "mov.f32", (a: u32) -> u32 { a }
    Mov16 = "mov.u16", (a: u16) -> u16 { a }
    MovPred = "mov.pred", (a: bool) -> bool { a }

    // Selection and comparison. Ordered comparisons of a NaN are false, unordered ones (..u) true.
    Selp16 = "selp.u16", (a: u16, b: u16, c: bool) -> u16 { if c { a } else { b } }
    Selp32 = "selp.b32" | "selp.u32" | "selp.s32" | "selp.f32", (a: u32, b: u32, c: bool) -> u32 { if c { a } else { b } }
    Selp64 = "selp.b64" | "selp.u64" | "selp.f64", (a: u64, b: u64, c: bool) -> u64 { if c { a } else { b } }
    Eq16 = "setp.eq.s16", (a: u16, b: u16) -> bool { a == b }
    Eq32 = "setp.eq.b32" | "setp.eq.s32", (a: u32, b: u32) -> bool { a == b }
    Eq64 = "setp.eq.b64" | "setp.eq.s64", (a: u64, b: u64) -> bool { a == b }
    Ne32 = "setp.ne.s32", (a: u32, b: u32) -> bool { a != b }
    Ne16 = "setp.ne.s16", (a: u16, b: u16) -> bool { a != b }
    Ne64 = "setp.ne.s64", (a: u64, b: u64) -> bool { a != b }
    LtS32 = "setp.lt.s32", (a: i32, b: i32) -> bool { a < b }
    GtS16 = "setp.gt.s16", (a: i16, b: i16) -> bool { a > b }
    GtS32 = "setp.gt.s32", (a: i32, b: i32) -> bool { a > b }
    LtU16 = "setp.lt.u16", (a: u16, b: u16) -> bool { a < b }
    GtU16 = "setp.gt.u16", (a: u16, b: u16) -> bool { a > b }
    LtU32 = "setp.lt.u32", (a: u32, b: u32) -> bool { a < b }
    LeU32 = "setp.le.u32", (a: u32, b: u32) -> bool { a <= b }
    GtU32 = "setp.gt.u32", (a: u32, b: u32) -> bool { a > b }
    GeU32 = "setp.ge.u32", (a: u32, b: u32) -> bool { a >= b }
    GeU64 = "setp.ge.u64", (a: u64, b: u64) -> bool { a >= b }
    LtU64 = "setp.lt.u64", (a: u64, b: u64) -> bool { a < b }
    GtU64 = "setp.gt.u64", (a: u64, b: u64) -> bool { a > b }
    EqF32 = "setp.eq.f32", (a: f32, b: f32) -> bool { a == b }
    LtF32 = "setp.lt.f32", (a: f32, b: f32) -> bool { a < b }
    LeF32 = "setp.le.f32", (a: f32, b: f32) -> bool { a <= b }
    GtF32 = "setp.gt.f32", (a: f32, b: f32) -> bool { a > b }
    GeF32 = "setp.ge.f32", (a: f32, b: f32) -> bool { a >= b }
    NeuF32 = "setp.neu.f32", (a: f32, b: f32) -> bool { a != b }
    LtuF32 = "setp.ltu.f32", (a: f32, b: f32) -> bool { a < b || a.is_nan() || b.is_nan() }
    LeuF32 = "setp.leu.f32", (a: f32, b: f32) -> bool { a <= b || a.is_nan() || b.is_nan() }
    GtuF32 = "setp.gtu.f32", (a: f32, b: f32) -> bool { a > b || a.is_nan() || b.is_nan() }
    GeuF32 = "setp.geu.f32", (a: f32, b: f32) -> bool { a >= b || a.is_nan() || b.is_nan() }
    NumF32 = "setp.num.f32", (a: f32, b: f32) -> bool { !a.is_nan() && !b.is_nan() }
    NanF32 = "setp.nan.f32", (a: f32, b: f32) -> bool { a.is_nan() || b.is_nan() }
    LeuF64 = "setp.leu.f64", (a: f64, b: f64) -> bool { a <= b || a.is_nan() || b.is_nan() }
}

/// The smaller number; of a number and a NaN, the number; -0 is smaller than +0.
fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a }
}

/// `b` with the low `len` bits of `a` from bit `start` on.
///
/// Both counts are taken modulo 256.
fn insert_bits(a: u32, b: u32, start: u32, len: u32) -> u32 {
    let (start, len) = ((start & 0xFF).min(32), (len & 0xFF).min(32));
    let mask = (((1u64 << len) - 1) << start) as u32;
    ((u64::from(a) << start) as u32 & mask) | (b & !mask)
}

/// Four bytes of `a` and `b`, chosen by the low hexadecimal digits of `selector`.
///
/// The high bit of a digit replicates the sign of the byte.
fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |permuted, i| {
        let digit = selector >> (4 * i) & 0xF;
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        let byte = if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        permuted | u32::from(byte) << (8 * i)
    })
}
