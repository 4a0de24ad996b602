//! Logic, shifts, bit fields, permutations and selections (manual, 9.7.1, 9.7.7 and 9.7.8).

use crate::machine::{agree, binary, column, compute, quaternary, ternary, unary};

#[test]
fn and_or_xor_not_work_bit_by_bit() {
    binary("and.b16", &[(0xf0f0_u16, 0xff00_u16, 0xf000_u16), (u16::MAX, 255, 255), (0, u16::MAX, 0)]);
    binary("and.b32", &[(0xf0f0_f0f0_u32, 0xffff_0000_u32, 0xf0f0_0000_u32), (u32::MAX, u32::MAX, u32::MAX), (1, 2, 0)]);
    binary(
        "and.b64",
        &[
            (0xf0f0_f0f0_0f0f_0f0f_u64, 0xffff_0000_0000_ffff_u64, 0xf0f0_0000_0000_0f0f_u64),
            (u64::MAX, 0xffff_ffff, 0xffff_ffff),
        ],
    );
    binary("or.b16", &[(0xf0f0_u16, 0x0f00_u16, 0xfff0_u16), (0, 0, 0), (u16::MAX, 1, u16::MAX)]);
    binary("or.b32", &[(0xf0f0_f0f0_u32, 0x0f0f_0000_u32, 0xffff_f0f0_u32), (0, 0, 0), (0x8000_0000, 1, 0x8000_0001)]);
    binary("xor.b32", &[(0xff00_ff00_u32, 0xffff_0000_u32, 0x00ff_ff00_u32), (u32::MAX, u32::MAX, 0), (u32::MAX, 0, u32::MAX)]);
    binary(
        "xor.b64",
        &[(0xff00_ff00_ff00_ff00_u64, 0xffff_0000_0000_ffff_u64, 0x00ff_ff00_ff00_00ff_u64), (u64::MAX, u64::MAX, 0)],
    );
    unary("not.b32", &[(0_u32, u32::MAX), (u32::MAX, 0), (0x0f0f_1234, 0xf0f0_edcb)]);
    unary("not.b64", &[(0_u64, u64::MAX), (u64::MAX, 0), (0x0f0f_1234_0000_ffff, 0xf0f0_edcb_ffff_0000)]);
}

/// Checks an instruction of predicates on all pairs.
fn predicates(instruction: &str, expected: [bool; 4]) {
    let columns = [column([0_u32, 0, 1, 1]), column([0_u32, 1, 0, 1])];
    let body = format!("setp.ne.s32 %p1, %r1, 0;\n    setp.ne.s32 %p2, %r2, 0;\n    {instruction}\n    selp.u32 %r9, 1, 0, %p3;");
    agree(instruction, &columns, &compute::<u32>(&columns, &body), &expected.map(u32::from));
}

#[test]
fn predicates_are_combined_as_booleans() {
    predicates("and.pred %p3, %p1, %p2;", [false, false, false, true]);
    predicates("or.pred %p3, %p1, %p2;", [false, true, true, true]);
    predicates("not.pred %p3, %p1;", [true, true, false, false]);
    predicates("xor.pred %p3, %p1, %p2;", [false, true, true, false]);
    predicates("mov.pred %p3, %p2;", [false, true, false, true]);
    predicates("mov.pred %p3, 0;", [false; 4]);
}

/// Shift amounts greater than the register width N are clamped to N.
#[test]
fn shl_beyond_the_width_is_zero() {
    binary(
        "shl.b32",
        &[
            (0x8000_0001_u32, 0_u32, 0x8000_0001_u32),
            (1, 31, 0x8000_0000),
            (3, 31, 0x8000_0000),
            (u32::MAX, 32, 0),
            (u32::MAX, 33, 0),
            (1, 64, 0),
            (1, u32::MAX, 0),
        ],
    );
    binary("shl.b16", &[(1_u16, 0_u32, 1_u16), (1, 15, 0x8000), (0x8003, 1, 6), (u16::MAX, 16, 0), (u16::MAX, 32, 0)]);
    binary(
        "shl.b64",
        &[
            (1_u64, 0_u32, 1_u64),
            (1, 32, 0x1_0000_0000),
            (3, 63, 1 << 63),
            (u64::MAX, 64, 0),
            (u64::MAX, 65, 0),
            (1, 128, 0),
            (1, u32::MAX, 0),
        ],
    );
}

/// Signed shifts fill with the sign bit, unsigned and untyped shifts with 0.
#[test]
fn shr_beyond_the_width_is_the_fill() {
    binary(
        "shr.u16",
        &[
            (0x8001_u16, 0_u32, 0x8001_u16),
            (0x8001, 1, 0x4000),
            (0x8000, 15, 1),
            (u16::MAX, 16, 0),
            (u16::MAX, 17, 0),
            (u16::MAX, 32, 0),
        ],
    );
    binary(
        "shr.u32",
        &[
            (0x8000_0001_u32, 0_u32, 0x8000_0001_u32),
            (0x8000_0001, 1, 0x4000_0000),
            (0x8000_0000, 31, 1),
            (u32::MAX, 32, 0),
            (u32::MAX, 33, 0),
            (u32::MAX, u32::MAX, 0),
        ],
    );
    binary(
        "shr.u64",
        &[
            (1_u64 << 63, 0_u32, 1_u64 << 63),
            (1 << 63, 1, 1 << 62),
            (1 << 63, 63, 1),
            (1 << 40, 32, 1 << 8),
            (u64::MAX, 64, 0),
            (u64::MAX, 65, 0),
            (u64::MAX, u32::MAX, 0),
        ],
    );
    binary(
        "shr.s32",
        &[
            (-8, 1_u32, -4),
            (-1, 1, -1),
            (7, 1, 3),
            (-7, 1, -4),
            (i32::MIN, 31, -1),
            (i32::MIN, 32, -1),
            (i32::MIN, 33, -1),
            (i32::MIN, u32::MAX, -1),
            (i32::MAX, 31, 0),
            (i32::MAX, 32, 0),
            (i32::MAX, u32::MAX, 0),
        ],
    );
}

/// Operands a, b, position, length. "If the bit field length is zero, the result is b. If the start position is beyond
/// the msb of the input, the result is b." Bits that would pass bit 31 are dropped.
#[test]
fn bfi_inserts_a_field_and_drops_what_passes_the_end() {
    quaternary(
        "bfi.b32",
        &[
            ([0xff_u32, 0, 8, 4], 0xf00_u32),
            ([0, u32::MAX, 8, 4], 0xffff_f0ff),
            ([0x1234_5678, 0xffff_ffff, 0, 32], 0x1234_5678),
            ([0x1234_5678, 0xabcd_ef01, 5, 0], 0xabcd_ef01),
            ([0x1234_5678, 0xabcd_ef01, 32, 8], 0xabcd_ef01),
            ([0x1234_5678, 0xabcd_ef01, 255, 8], 0xabcd_ef01),
            ([0x7f, 0x0123_4567, 25, 7], 0xff23_4567), // 7 bits at 25 keep bit 24
            ([0xff, 0x0123_4567, 28, 8], 0xf123_4567),
            ([0x1, 0, 31, 200], 0x8000_0000),
            ([0x1234_5678, 0xabcd_ef01, 16, 255], 0x5678_ef01),
            ([u32::MAX, 0, 0x100, 4], 0xf),  // pos = c & 0xff
            ([u32::MAX, 0, 4, 0x104], 0xf0), // len = d & 0xff
        ],
    );
}

/// Bytes 0 to 3 are those of a, 4 to 7 those of b; each nibble of c selects one.
#[test]
fn prmt_picks_bytes_of_both_operands() {
    let (a, b) = (0x3322_1100_u32, 0x7766_5544_u32);
    ternary(
        "prmt.b32",
        &[
            (a, b, 0x3210_u32, a),
            (a, b, 0x7654, b),
            (a, b, 0x0123, 0x0011_2233),
            (a, b, 0x5410, 0x5544_1100),
            (a, b, 0x7632, 0x7766_3322),
            (a, b, 0x4040, 0x4400_4400),
            (a, b, 0x3340, 0x3333_4400), // as in nvcc's packing of bytes
            (a, b, 0x1074, 0x1100_7744),
            (a, b, 0xabcd_3210, a), // only 16 bits of c matter
        ],
    );
}

/// "The msb defines if the byte value should be copied, or if the sign (msb of the byte) should be replicated over all 8
/// bits of the target position."
#[test]
fn prmt_replicates_a_sign_for_selectors_from_8_on() {
    let (a, b) = (0x807f_ff01_u32, 0x01ff_7f80_u32);
    ternary("prmt.b32", &[(a, b, 0xba98_u32, 0xff00_ff00_u32), (a, b, 0xfedc, 0x00ff_00ff), (a, b, 0x3b2a, 0x80ff_7f00)]);
    // The selector in one place at a time; the others select byte 0 of a, 0x01.
    let signs: [u32; 8] = [0, 0xff, 0, 0xff, 0xff, 0, 0xff, 0];
    let bytes: [u32; 8] = [0x01, 0xff, 0x7f, 0x80, 0x80, 0x7f, 0xff, 0x01];
    let rows: Vec<_> = (0..16_u32)
        .flat_map(|selector| (0..4).map(move |place| (selector, place)))
        .map(|(selector, place)| {
            let byte = if selector < 8 { bytes[selector as usize] } else { signs[selector as usize - 8] };
            (a, b, selector << (4 * place), (0x0101_0101 & !(0xff << (8 * place))) | byte << (8 * place))
        })
        .collect();
    ternary("prmt.b32", &rows);
}

/// Selections copy bits, those of NaNs included.
#[test]
fn selp_copies_the_selected_operand() {
    let choose = [1_u32, 0];
    for opcode in ["selp.b32", "selp.u32", "selp.s32"] {
        let columns = [column([0x8000_0001_u32; 2]), column([0x7fff_fffe_u32; 2]), column(choose)];
        let body = format!("setp.ne.s32 %p1, %r3, 0;\n    {opcode} %r9, %r1, %r2, %p1;");
        agree(opcode, &columns, &compute(&columns, &body), &[0x8000_0001_u32, 0x7fff_fffe]);
        let body = format!("setp.ne.s32 %p1, %r3, 0;\n    {opcode} %r9, -1, %r2, %p1;");
        agree(opcode, &columns, &compute(&columns, &body), &[u32::MAX, 0x7fff_fffe]);
    }
    let columns = [column([0xfedc_u16; 2]), column([0x1234_u16; 2]), column(choose)];
    agree(
        "selp.u16",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.u16 %rs9, %rs1, %rs2, %p1;"),
        &[0xfedc_u16, 0x1234],
    );
    let columns = [column([0xfedc_ba98_7654_3210_u64; 2]), column([0x0123_4567_89ab_cdef_u64; 2]), column(choose)];
    agree(
        "selp.b64",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.b64 %rd9, %rd1, %rd2, %p1;"),
        &[0xfedc_ba98_7654_3210_u64, 0x0123_4567_89ab_cdef],
    );
    agree(
        "selp.b64",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.b64 %rd9, 0, %rd2, %p1;"),
        &[0_u64, 0x0123_4567_89ab_cdef],
    );
    let columns = [column([f32::from_bits(0xff80_0001); 2]), column([-0.0_f32; 2]), column(choose)];
    agree(
        "selp.f32",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.f32 %f8, %f1, %f2, %p1;\n    mov.b32 %r9, %f8;"),
        &[0xff80_0001_u32, 0x8000_0000],
    );
    agree(
        "selp.f32",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.f32 %f9, 0f3F800000, 0fBF800000, %p1;"),
        &[1.0_f32, -1.0],
    );
    let columns = [column([-0.0_f64; 2]), column([1.5_f64; 2]), column(choose)];
    agree(
        "selp.f64",
        &columns,
        &compute(&columns, "setp.ne.s32 %p1, %r3, 0;\n    selp.f64 %fd9, %fd1, %fd2, %p1;"),
        &[-0.0_f64, 1.5],
    );
}
