//! Undefined behavior is a fault that names the kernel and the line. Unknown PTX is refused with its line.

use standin::{Kind, Machine};

use crate::machine::{machine, module};

/// Returns the line of a text, from 1 on, that contains this part.
fn line_of(text: &str, part: &str) -> usize {
    text.lines().position(|line| line.contains(part)).expect("a line with this part") + 1
}

/// Runs a kernel of one address, and asserts that the instruction with this part is at fault.
fn expect_fault(kind: Kind, body: &str, part: &str, grid: u32, block: u32, memory: impl Fn(&mut Machine) -> u64) {
    let ptx = module(1, &format!("{body}\n    ret;"));
    let mut machine = machine(&ptx);
    let address = memory(&mut machine);
    let fault = machine.run("probe", [grid, 1, 1], [block, 1, 1], &[&address.to_le_bytes()]).expect_err(body);
    assert_eq!(fault.kind, kind, "{fault}");
    let line = format!("line {}", line_of(&ptx, part));
    assert!(fault.text.contains("probe"), "no name in: {fault}");
    assert!(fault.text.split([',', ':']).any(|part| part.trim() == line), "no {line} in: {fault}");
}

const LOAD: &str = "    mov.u32 %r2, 1;\n    ld.global.u32 %r1, [%rd1];";
const STORE: &str = "    mov.u32 %r1, 1;\n    st.global.u32 [%rd1], %r1;";

#[test]
fn an_access_beyond_the_allocation_is_a_fault() {
    for (n, offset) in [(4, 4), (6, 4), (4, 1 << 20), (4, u64::MAX - 3)] {
        for (body, part) in [(LOAD, "ld.global"), (STORE, "st.global")] {
            expect_fault(Kind::OutOfBounds, body, part, 1, 1, |machine| machine.upload(&vec![0; n]).wrapping_add(offset));
        }
    }
}

#[test]
fn the_null_address_is_a_fault() {
    expect_fault(Kind::OutOfBounds, LOAD, "ld.global", 1, 1, |_| 0);
    expect_fault(Kind::OutOfBounds, STORE, "st.global", 1, 1, |_| 0);
}

#[test]
fn a_vector_that_passes_the_end_is_a_fault() {
    let body = "    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];";
    expect_fault(Kind::OutOfBounds, body, "ld.global", 1, 1, |machine| machine.upload(&[0; 12]));
}

#[test]
fn an_atomic_beyond_the_allocation_is_a_fault() {
    let body = "    atom.global.min.u32 %r1, [%rd1], 3;";
    expect_fault(Kind::OutOfBounds, body, "atom", 1, 1, |machine| machine.upload(&[0; 4]) + 4);
}

/// An address is a multiple of the size of the access.
#[test]
fn a_misaligned_access_is_a_fault() {
    for (suffix, operand, offset) in
        [("u16", "%rs1", 1), ("u32", "%r1", 2), ("f32", "%f1", 1), ("u64", "%rd5", 4), ("f64", "%fd1", 4)]
    {
        let body = format!("    ld.global.{suffix} {operand}, [%rd1+{offset}];");
        expect_fault(Kind::Misaligned, &body, "ld.global", 1, 1, |machine| machine.upload(&[0; 32]));
        let body = format!("    ld.global.{suffix} {operand}, [%rd1];\n    st.global.{suffix} [%rd1+{offset}], {operand};");
        expect_fault(Kind::Misaligned, &body, "st.global", 1, 1, |machine| machine.upload(&[0; 32]));
    }
    // Vectors are aligned to their whole size.
    let body = "    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8];";
    expect_fault(Kind::Misaligned, body, "v4", 1, 1, |machine| machine.upload(&[0; 32]));
    let body = "    mov.f32 %f1, 0f00000000;\n    st.global.v2.f32 [%rd1+4], {%f1, %f1};";
    expect_fault(Kind::Misaligned, body, "v2", 1, 1, |machine| machine.upload(&[0; 32]));
    let body = "    mov.u32 %r1, 0;\n    st.global.v4.u32 [%rd1+4], {%r1, %r1, %r1, %r1};";
    expect_fault(Kind::Misaligned, body, "v4", 1, 1, |machine| machine.upload(&[0; 32]));
}

#[test]
fn a_read_of_memory_never_written_is_a_fault() {
    expect_fault(Kind::Uninitialized, LOAD, "ld.global", 1, 1, |machine| machine.allocate(4));
    let partly = "    mov.u16 %rs1, 1;\n    st.global.u8 [%rd1], %rs1;\n    ld.global.u16 %rs2, [%rd1];";
    expect_fault(Kind::Uninitialized, partly, "ld.global", 1, 1, |machine| machine.allocate(4));
    let atomic = "    atom.global.min.u32 %r1, [%rd1], 3;";
    expect_fault(Kind::Uninitialized, atomic, "atom", 1, 1, |machine| machine.allocate(4));
}

#[test]
fn a_read_of_memory_just_written_is_none() {
    let ptx = module(
        1,
        "    mov.u32 %r1, 7;\n    st.global.u32 [%rd1], %r1;\n    ld.global.u32 %r2, [%rd1];\n    st.global.u32 [%rd1+4], %r2;\n    ret;",
    );
    let mut machine = machine(&ptx);
    let address = machine.allocate(8);
    machine.run("probe", [1, 1, 1], [1, 1, 1], &[&address.to_le_bytes()]).unwrap();
    assert_eq!(machine.download(address, 8).unwrap(), [7, 0, 0, 0, 7, 0, 0, 0]);
}

#[test]
fn downloads_are_checked_as_kernels_are() {
    let mut machine = machine(&module(0, "    ret;"));
    let address = machine.allocate(4);
    assert_eq!(machine.download(address, 4).unwrap_err().kind, Kind::Uninitialized);
    let address = machine.upload(&[1; 4]);
    assert_eq!(machine.download(address, 5).unwrap_err().kind, Kind::OutOfBounds);
}

#[test]
fn unordered_accesses_of_two_threads_are_a_race() {
    // Every thread writes its number to one word: within a block, and over blocks.
    let thread = "    mov.u32 %r1, %tid.x;\n    st.global.u32 [%rd1], %r1;";
    expect_fault(Kind::Race, thread, "st.global", 1, 2, |machine| machine.allocate(4));
    let block = "    mov.u32 %r1, %ctaid.x;\n    st.global.u32 [%rd1], %r1;";
    expect_fault(Kind::Race, block, "st.global", 2, 1, |machine| machine.allocate(4));
    // A barrier orders its own block only.
    let barrier = "    mov.u32 %r1, %ctaid.x;\n    bar.sync 0;\n    st.global.u32 [%rd1], %r1;";
    expect_fault(Kind::Race, barrier, "st.global", 2, 1, |machine| machine.allocate(4));
    // One block writes the word that the other reads; whichever is first, the second is at fault.
    let ptx = module(
        1,
        "    mov.u32 %r1, %ctaid.x;\n    setp.eq.s32 %p1, %r1, 0;\n    @%p1 bra $L_write;
    ld.global.u32 %r2, [%rd1];\n    ret;\n$L_write:\n    st.global.u32 [%rd1], %r1;\n    ret;",
    );
    let mut machine = machine(&ptx);
    let address = machine.upload(&[0; 4]);
    assert_eq!(machine.run("probe", [2, 1, 1], [1, 1, 1], &[&address.to_le_bytes()]).unwrap_err().kind, Kind::Race);
}

/// Conflicting accesses are a data race unless both are strong, as atomics are, or the causality order relates them (8.7):
/// of two threads, the first does one access and the second the other.
fn race_of_two_threads(first: &str, second: &str) -> Option<Kind> {
    let body = format!(
        "    mov.u32 %r1, %tid.x;
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $L_first;
    {second}
    ret;
$L_first:
    {first}
    ret;"
    );
    let mut machine = machine(&module(1, &body));
    let address = machine.upload(&u32::MAX.to_le_bytes());
    machine.run("probe", [1, 1, 1], [2, 1, 1], &[&address.to_le_bytes()]).err().map(|fault| fault.kind)
}

const ATOM: &str = "atom.global.min.u32 %r2, [%rd1], %r1;";
const READ: &str = "ld.global.u32 %r2, [%rd1];";
const WRITE: &str = "st.global.u32 [%rd1], %r1;";

#[test]
fn atomics_of_two_threads_are_no_race_and_neither_are_reads() {
    assert_eq!(race_of_two_threads(ATOM, ATOM), None);
    assert_eq!(race_of_two_threads(READ, READ), None);
}

#[test]
fn a_plain_access_after_an_atomic_is_a_race() {
    assert_eq!(race_of_two_threads(ATOM, READ), Some(Kind::Race));
    assert_eq!(race_of_two_threads(ATOM, WRITE), Some(Kind::Race));
}

#[test]
fn an_atomic_after_a_plain_access_is_a_race() {
    assert_eq!(race_of_two_threads(READ, ATOM), Some(Kind::Race));
    assert_eq!(race_of_two_threads(WRITE, ATOM), Some(Kind::Race));
}

#[test]
fn an_access_whose_guard_is_false_does_not_happen() {
    let body = "    mov.u32 %r1, 0;
    setp.eq.b64 %p1, %rd1, 1;
    @%p1 st.global.u32 [%rd1], %r1;
    @!%p1 bra $L_end;
    ld.global.u32 %r1, [%rd1];
$L_end:
    ret;";
    machine(&module(1, body)).run("probe", [1, 1, 1], [1, 1, 1], &[&0_u64.to_le_bytes()]).unwrap();
}

#[test]
fn two_threads_may_write_neighbouring_bytes() {
    let body = "    mov.u32 %r1, %tid.x;\n    cvt.u64.u32 %rd2, %r1;\n    add.s64 %rd3, %rd1, %rd2;\n    st.global.u8 [%rd3], %r1;\n    ret;";
    let mut machine = machine(&module(1, body));
    let address = machine.allocate(65);
    machine.run("probe", [1, 1, 1], [65, 1, 1], &[&address.to_le_bytes()]).unwrap();
    assert_eq!(machine.download(address, 65).unwrap(), (0..65).collect::<Vec<u8>>());
}

#[test]
fn a_kernel_without_an_end_is_a_fault() {
    let ptx = module(0, "$L_again:\n    bra.uni $L_again;");
    assert_eq!(machine(&ptx).run("probe", [1, 1, 1], [1, 1, 1], &[]).unwrap_err().kind, Kind::Endless);
}

#[test]
fn a_kernel_that_passes_barriers_without_an_end_is_a_fault() {
    let body = "$L_again:
    mov.u32 %r1, 0;
$L_count:
    add.s32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 1000000;
    @%p1 bra $L_count;
    bar.sync 0;
    bra.uni $L_again;";
    let ptx = module(0, body);
    assert_eq!(machine(&ptx).run("probe", [1, 1, 1], [1, 1, 1], &[]).unwrap_err().kind, Kind::Endless);
}

#[test]
fn an_instruction_that_is_not_known_is_refused_with_its_line() {
    for instruction in [
        "tanh.approx.f32 %f1, %f2;",
        "add.f13 %f1, %f2, %f3;",
        "add.rz.f32 %f1, %f2, %f3;", // another rounding must not pass for .rn
        "add.rn.ftz.f32 %f1, %f2, %f3;",
        "min.NaN.f32 %f1, %f2, %f3;",
        "prmt.b32.f4e %r1, %r2, %r3, %r4;",
        "nonsense %r1;",
        "mov.u32 %r1, %clock;",
        "bra $L_nowhere;",
        "add.s32 %r1, %r2, %nobody;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %r3, %r4;",
    ] {
        let ptx = module(0, &format!("    mov.u32 %r1, 1;\n    {instruction}\n    ret;"));
        let error = match Machine::new(&ptx) {
            Err(error) => error,
            Ok(_) => panic!("accepted: {instruction}"),
        };
        assert_eq!(error.line, line_of(&ptx, instruction), "{instruction}: {error}");
    }
}
