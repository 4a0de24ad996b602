//! Branches, guards, special registers and parameters (manual, 9.1, 9.7.12 and 10).

use crate::machine::{HEADER, REGISTERS, agree, column, compute, machine, module};

#[test]
fn bra_loops_until_its_guard_fails() {
    let body = "mov.u32 %r9, 0;
    mov.u32 %r2, 0;
$L_again:
    add.s32 %r2, %r2, 1;
    add.s32 %r9, %r9, %r2;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra $L_again;";
    let n = [1_u32, 2, 10, 100]; // threads of one warp leave the loop at different times
    agree("bra", &[column(n)], &compute(&[column(n)], body), &[1_u32, 3, 55, 5050]);
}

#[test]
fn bra_uni_jumps_forward_and_back() {
    let body = "bra.uni $L_first;
$L_second:
    add.s32 %r9, %r9, 5;
    bra.uni $L_third;
$L_first:
    mov.u32 %r9, %r1;
    bra.uni $L_second;
$L_third:";
    agree("bra.uni", &[column([7_u32])], &compute(&[column([7_u32])], body), &[12_u32]);
}

#[test]
fn guards_execute_an_instruction_where_they_hold() {
    let n = [0_u32, 1];
    let jump = |guard: &str| {
        format!("mov.u32 %r9, 10;\n    setp.ne.s32 %p1, %r1, 0;\n    {guard} bra $L_end;\n    mov.u32 %r9, 20;\n$L_end:")
    };
    agree("@%p1 bra", &[column(n)], &compute(&[column(n)], &jump("@%p1")), &[20_u32, 10]);
    agree("@!%p1 bra", &[column(n)], &compute(&[column(n)], &jump("@!%p1")), &[10_u32, 20]);
}

#[test]
fn guards_apply_to_every_instruction() {
    let n = [0_u32, 1];
    let body = "mov.u32 %r9, 10;\n    setp.ne.s32 %p1, %r1, 0;\n    @%p1 add.s32 %r9, %r9, 1;\n    @!%p1 mov.u32 %r9, 7;";
    agree("guards", &[column(n)], &compute(&[column(n)], body), &[7_u32, 11]);
}

#[test]
fn ret_ends_its_thread_alone() {
    let ptx = module(
        1,
        "    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    setp.gt.u32 %p1, %r1, 1;
    @%p1 bra $L_store;
    ret;
$L_store:
    st.global.u32 [%rd4], %r1;
    ret;",
    );
    let mut machine = machine(&ptx);
    let numbers = machine.upload(&[9; 16]);
    machine.run("probe", [1, 1, 1], [4, 1, 1], &[&numbers.to_le_bytes()]).unwrap();
    assert_eq!(machine.download(numbers, 16).unwrap(), [9, 9, 9, 9, 9, 9, 9, 9, 2, 0, 0, 0, 3, 0, 0, 0]);
}

/// Each thread of a grid of 2 x 3 x 2 blocks of 3 x 2 x 2 threads writes its number, made of the special registers.
#[test]
fn special_registers_number_each_thread_once() {
    let mut text = String::from("    mov.u32 %r9, 0;\n");
    for axis in ["z", "y", "x"] {
        text +=
            &format!("    mov.u32 %r1, %nctaid.{axis};\n    mov.u32 %r2, %ctaid.{axis};\n    mad.lo.s32 %r9, %r9, %r1, %r2;\n");
    }
    for axis in ["z", "y", "x"] {
        text += &format!("    mov.u32 %r1, %ntid.{axis};\n    mov.u32 %r2, %tid.{axis};\n    mad.lo.s32 %r9, %r9, %r1, %r2;\n");
    }
    text += "    mul.wide.u32 %rd3, %r9, 4;\n    add.s64 %rd4, %rd1, %rd3;\n    st.global.u32 [%rd4], %r9;\n    ret;";
    let mut machine = machine(&module(1, &text));
    let numbers = machine.allocate(144 * 4);
    machine.run("probe", [2, 3, 2], [3, 2, 2], &[&numbers.to_le_bytes()]).unwrap();
    let expected: Vec<u8> = (0..144_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(machine.download(numbers, 144 * 4).unwrap(), expected);
}

/// Parameters of each type, and a struct as an array of bytes, read at offsets.
#[test]
fn ld_param_reads_scalars_and_fields_of_structs() {
    let ptx = format!(
        "{HEADER}.visible .entry probe(
    .param .u32 probe_param_0,
    .param .align 8 .b8 probe_param_1[24],
    .param .f32 probe_param_2,
    .param .u64 probe_param_3
)
{{
{REGISTERS}    ld.param.u32 %r1, [probe_param_0];
    ld.param.u64 %rd1, [probe_param_1];
    ld.param.u32 %r2, [probe_param_1+8];
    ld.param.f32 %f1, [probe_param_1+12];
    ld.param.u64 %rd2, [probe_param_1+16];
    ld.param.f32 %f2, [probe_param_2];
    ld.param.u64 %rd3, [probe_param_3];
    cvta.to.global.u64 %rd4, %rd3;
    st.global.u32 [%rd4], %r1;
    st.global.u32 [%rd4+4], %r2;
    st.global.u64 [%rd4+8], %rd1;
    st.global.u64 [%rd4+16], %rd2;
    st.global.f32 [%rd4+24], %f1;
    st.global.f32 [%rd4+28], %f2;
    ret;
}}
"
    );
    let mut machine = machine(&ptx);
    let results = machine.allocate(32);
    let whole = 0x1122_3344_5566_7788_u64;
    let record = [&whole.to_le_bytes()[..], &7_u32.to_le_bytes(), &1.5_f32.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
    let params: [&[u8]; 4] = [&42_u32.to_le_bytes(), &record, &(-2.5_f32).to_le_bytes(), &results.to_le_bytes()];
    machine.run("probe", [1, 1, 1], [1, 1, 1], &params).unwrap();
    let expected = [
        &42_u32.to_le_bytes()[..],
        &7_u32.to_le_bytes(),
        &whole.to_le_bytes(),
        &u64::MAX.to_le_bytes(),
        &1.5_f32.to_le_bytes(),
        &(-2.5_f32).to_le_bytes(),
    ]
    .concat();
    assert_eq!(machine.download(results, 32).unwrap(), expected);
}

#[test]
fn a_bound_of_a_block_is_read() {
    let with = |bound: &str| module(0, "    ret;").replace("\n)\n{", &format!("\n)\n{bound}{{"));
    assert_eq!(machine(&with("")).kernels()[0].max_threads, 1024);
    assert_eq!(machine(&with(".maxntid 64, 2, 1\n")).kernels()[0].max_threads, 128);
    assert!(standin::Machine::new(&with(".maxntid many\n")).is_err());
}
