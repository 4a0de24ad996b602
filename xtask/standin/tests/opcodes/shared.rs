//! Shared memory and barriers (manual, 5.1.6, 8 and 9.7.13).

use standin::{Fault, Kind};

use crate::machine::{HEADER, REGISTERS, machine};

/// Returns a kernel of two addresses, in `%rd1` and `%rd2`, with shared memory whose address is in `%r1`; `%r2` is the
/// thread, and `%r3` the mirrored one.
fn module(body: &str) -> String {
    format!(
        "{HEADER}.visible .entry probe(
    .param .u64 probe_param_0,
    .param .u64 probe_param_1
)
{{
    .shared .align 16 .b8 probe_shared[2048];
{REGISTERS}    ld.param.u64 %rd10, [probe_param_0];
    cvta.to.global.u64 %rd1, %rd10;
    ld.param.u64 %rd10, [probe_param_1];
    cvta.to.global.u64 %rd2, %rd10;
    mov.u32 %r1, probe_shared;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    sub.s32 %r3, %r3, %r2;
    add.s32 %r3, %r3, -1;
{body}    ret;
}}
"
    )
}

/// Loads element `%r2` of this suffix, leaves it at its place in shared memory, and stores the mirrored one.
fn reversal(suffix: &str, register: &str, size: usize, barrier: &str) -> String {
    module(&format!(
        "    mul.wide.u32 %rd3, %r2, {size};
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.{suffix} {register}, [%rd4];
    mad.lo.s32 %r4, %r2, {size}, %r1;
    mad.lo.s32 %r5, %r3, {size}, %r1;
    st.shared.{suffix} [%r4], {register};
    {barrier}
    ld.shared.{suffix} {register}, [%r5];
    st.global.{suffix} [%rd5], {register};
"
    ))
}

/// Returns elements of different bytes.
fn elements(n: usize, size: usize) -> Vec<Vec<u8>> {
    (0..n).map(|i| (0..size).map(|byte| (7 * i + 13 * byte) as u8).collect()).collect()
}

#[test]
fn a_block_reverses_an_array_through_shared_memory() {
    for (suffix, register, size) in [("f32", "%f1", 4), ("f64", "%fd1", 8)] {
        for n in [1, 31, 33, 65, 128] {
            let elements = elements(n, size);
            let mut machine = machine(&reversal(suffix, register, size, "bar.sync 0;"));
            let from = machine.upload(&elements.concat());
            let to = machine.allocate(n * size);
            machine.run("probe", [1, 1, 1], [n as u32, 1, 1], &[&from.to_le_bytes(), &to.to_le_bytes()]).unwrap();
            let reversed: Vec<_> = elements.into_iter().rev().collect();
            assert_eq!(machine.download(to, n * size).unwrap(), reversed.concat(), "{n} x {suffix}");
        }
    }
}

#[test]
fn each_block_has_shared_memory_of_its_own() {
    let body = "    mov.u32 %r6, %ctaid.x;
    cvt.rn.f32.u32 %f1, %r6;
    st.shared.f32 [%r1], %f1;
    bar.sync 0;
    ld.shared.u32 %r7, [%r1];
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r7;
";
    let mut machine = machine(&module(body));
    let to = machine.allocate(4 * 5);
    machine.run("probe", [5, 1, 1], [1, 1, 1], &[&to.to_le_bytes(), &to.to_le_bytes()]).unwrap();
    let expected: Vec<u8> = [0.0_f32, 1.0, 2.0, 3.0, 4.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(machine.download(to, 20).unwrap(), expected);
}

#[test]
fn what_another_block_or_launch_has_written_is_uninitialized() {
    // The block with an index that is 0, and the others.
    let body = "    mov.u32 %r6, %ctaid.x;
    ld.global.u32 %r7, [%rd1];
    add.s32 %r6, %r6, %r7;
    setp.eq.s32 %p1, %r6, 0;
    cvt.rn.f32.u32 %f1, %r6;
    @%p1 st.shared.f32 [%r1], %f1;
    bar.sync 0;
    ld.shared.u32 %r7, [%r1];
";
    let mut machine = machine(&module(body));
    let mut run = |first: u32, n_blocks| {
        let at = machine.upload(&first.to_le_bytes()).to_le_bytes();
        machine.run("probe", [n_blocks, 1, 1], [1, 1, 1], &[&at, &at]).map_err(|fault| fault.kind)
    };
    assert_eq!(run(0, 1), Ok(()));
    assert_eq!(run(1, 1), Err(Kind::Uninitialized));
    assert_eq!(run(0, 2), Err(Kind::Uninitialized));
}

#[test]
fn vectors_in_shared_memory_keep_their_order() {
    let reversed: Vec<u8> = [4.0_f32, 3.0, 2.0, 1.0, 2.0, 1.0, 4.0, 3.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let store_words = "mov.b32 %r4, %f1;\n    mov.b32 %r5, %f2;\n    mov.b32 %r6, %f3;\n    mov.b32 %r7, %f4;
    st.shared.v4.u32 [%r1+16], {%r4, %r5, %r6, %r7};";
    for store in ["st.shared.v4.f32 [%r1+16], {%f1, %f2, %f3, %f4};", store_words] {
        let body = format!(
            "    ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd1];
    {store}
    ld.shared.v4.f32 {{%f5, %f6, %f7, %f8}}, [%r1+16];
    st.global.v4.f32 [%rd2], {{%f8, %f7, %f6, %f5}};
    ld.shared.v2.f32 {{%f1, %f2}}, [%r1+16];
    ld.shared.v2.f32 {{%f3, %f4}}, [%r1+24];
    st.global.v4.f32 [%rd2+16], {{%f2, %f1, %f4, %f3}};
"
        );
        let mut machine = machine(&module(&body));
        let from = machine.upload(&[1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
        let to = machine.allocate(32);
        machine.run("probe", [1, 1, 1], [1, 1, 1], &[&from.to_le_bytes(), &to.to_le_bytes()]).unwrap();
        assert_eq!(machine.download(to, 32).unwrap(), reversed, "{store}");
    }
}

/// Runs a kernel that leaves global memory alone, and returns its fault.
fn fault(body: &str, n_threads: u32) -> Fault {
    let mut machine = machine(&module(body));
    let unused = machine.allocate(4);
    machine.run("probe", [1, 1, 1], [n_threads, 1, 1], &[&unused.to_le_bytes()[..]; 2]).expect_err(body)
}

/// Addresses of the thread's own word, in `%r4`, and of the mirrored one, in `%r5`; the own word is written.
const WORDS: &str = "    mad.lo.s32 %r4, %r2, 4, %r1;
    mad.lo.s32 %r5, %r3, 4, %r1;
    cvt.rn.f32.u32 %f1, %r2;
    st.shared.f32 [%r4], %f1;
";

#[test]
fn without_the_barrier_the_reversal_is_a_fault() {
    let mut machine = machine(&reversal("f32", "%f1", 4, ""));
    let from = machine.upload(&[0; 64 * 4]);
    let to = machine.allocate(64 * 4);
    let fault = machine.run("probe", [1, 1, 1], [64, 1, 1], &[&from.to_le_bytes(), &to.to_le_bytes()]).unwrap_err();
    // A thread may read before its mirror has written: then the memory holds nothing yet.
    assert!(matches!(fault.kind, Kind::Race | Kind::Uninitialized), "{fault}");
    assert!(fault.text.contains("probe"), "{fault}");
}

#[test]
fn a_read_and_a_write_between_two_barriers_are_a_race() {
    // The write again, then the mirror's read.
    let read_after = format!("{WORDS}    bar.sync 0;\n    st.shared.f32 [%r4], %f1;\n    ld.shared.f32 %f2, [%r5];\n");
    // The read, then the mirror's write: the barrier at the end of a loop is forgotten.
    let write_after = format!("{WORDS}    bar.sync 0;\n    ld.shared.f32 %f2, [%r5];\n    st.shared.f32 [%r4], %f1;\n");
    // All write one word.
    let writes = "    cvt.rn.f32.u32 %f1, %r2;\n    st.shared.f32 [%r1], %f1;\n";
    for body in [&read_after, &write_after, writes] {
        for n_threads in [2, 32, 64] {
            let fault = fault(body, n_threads);
            assert_eq!(fault.kind, Kind::Race, "{fault}\n{body}");
        }
    }
}

#[test]
fn barriers_between_reads_and_writes_prevent_the_race() {
    let body = format!("{WORDS}    bar.sync 0;\n    ld.shared.f32 %f2, [%r5];\n    bar.sync 0;\n    st.shared.f32 [%r4], %f2;\n");
    let mut machine = machine(&module(&body));
    let unused = machine.allocate(4);
    machine.run("probe", [1, 1, 1], [64, 1, 1], &[&unused.to_le_bytes()[..]; 2]).unwrap();
}

#[test]
fn accesses_of_shared_memory_are_checked() {
    for (kind, body) in [
        (Kind::OutOfBounds, "    ld.shared.u32 %r4, [%r1+2048];\n"),
        (Kind::OutOfBounds, "    st.shared.f64 [%r1+2048], %fd1;\n"),
        (Kind::OutOfBounds, "    ld.shared.f32 %f1, [%r1+-4];\n"),
        (Kind::Misaligned, "    ld.shared.u32 %r4, [%r1+2];\n"),
        (Kind::Misaligned, "    ld.shared.f64 %fd1, [%r1+4];\n"),
        (Kind::Misaligned, "    ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1+8];\n"),
        (Kind::Misaligned, "    st.shared.v4.u32 [%r1+4], {%r2, %r2, %r2, %r2};\n"),
        (Kind::Uninitialized, "    ld.shared.f32 %f1, [%r1];\n"),
        (Kind::Uninitialized, "    ld.shared.v2.f32 {%f1, %f2}, [%r1+8];\n"),
    ] {
        let fault = fault(&format!("    mov.f64 %fd1, 0d0000000000000000;\n{body}"), 1);
        assert_eq!(fault.kind, kind, "{fault}\n{body}");
    }
}

/// "bar.sync .. guarantees that all memory accesses requested by this thread prior to the barrier are performed relative
/// to all threads participating": the threads update one word in turn, with a barrier between each two.
#[test]
fn a_barrier_orders_global_memory_within_its_block() {
    let body = "    mov.u32 %r4, 0;
$L_turn:
    setp.eq.s32 %p1, %r4, %r2;
    @!%p1 bra $L_wait;
    ld.global.u32 %r5, [%rd2];
    mul.lo.s32 %r5, %r5, 3;
    add.s32 %r5, %r5, %r2;
    st.global.u32 [%rd2], %r5;
$L_wait:
    bar.sync 0;
    add.s32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 33;
    @%p1 bra $L_turn;
";
    let mut machine = machine(&module(body));
    let sum = machine.upload(&1_u32.to_le_bytes());
    machine.run("probe", [1, 1, 1], [33, 1, 1], &[&sum.to_le_bytes(), &sum.to_le_bytes()]).unwrap();
    let expected = (0..33).fold(1_u32, |sum, i| sum.wrapping_mul(3).wrapping_add(i));
    assert_eq!(machine.download(sum, 4).unwrap(), expected.to_le_bytes());
}

/// "bar.sync .. will not succeed until reached by all non-exited threads in the block" (CUDA C++ Programming Guide, compute
/// capability 7.x).
#[test]
fn a_barrier_does_not_wait_for_threads_that_have_returned() {
    let body = "    cvt.rn.f32.u32 %f1, %r2;
    mad.lo.s32 %r4, %r2, 4, %r1;
    st.shared.f32 [%r4], %f1;
    setp.ge.u32 %p1, %r2, 32;
    @%p1 bra $L_end;
    bar.sync 0;
    setp.ge.u32 %p1, %r2, 1;
    @%p1 bra $L_end;
    bar.sync 0;
    ld.shared.f32 %f2, [%r4+0x7C];
    st.global.f32 [%rd2], %f2;
$L_end:
";
    let mut machine = machine(&module(body));
    let last = machine.allocate(4);
    machine.run("probe", [1, 1, 1], [64, 1, 1], &[&last.to_le_bytes(), &last.to_le_bytes()]).unwrap();
    assert_eq!(machine.download(last, 4).unwrap(), 31.0_f32.to_le_bytes());
}

/// All threads of a warp must execute the same aligned barrier instruction.
#[test]
fn threads_of_a_warp_at_different_barriers_are_a_fault() {
    let body = "    setp.lt.u32 %p1, %r2, 16;
    @%p1 bra $L_other;
    bar.sync 0;
    bra.uni $L_end;
$L_other:
    bar.sync 0;
$L_end:
";
    assert_eq!(fault(body, 32).kind, Kind::Barrier);
}
