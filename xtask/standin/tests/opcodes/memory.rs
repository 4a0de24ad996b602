//! Loads, stores and atomics in global memory (manual, 6.4.1, 9.4 and 9.7.9).

use crate::machine::{machine, module};

/// Runs a kernel of one thread on these bytes, whose address is in `%rd1`, and returns the bytes after it.
fn transform(bytes: &[u8], body: &str) -> Vec<u8> {
    let mut machine = machine(&module(1, &format!("{body}\n    ret;")));
    let address = machine.upload(bytes);
    machine.run("probe", [1, 1, 1], [1, 1, 1], &[&address.to_le_bytes()]).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    machine.download(address, bytes.len()).expect("uploaded")
}

/// Numbers 0 to 31 as bytes.
fn count() -> [u8; 32] {
    std::array::from_fn(|i| i as u8)
}

/// Returns the numbers 0 to 31 with 8 bytes from 16 on replaced.
fn with_16_to_23(bytes: [u8; 8]) -> Vec<u8> {
    [&count()[..16], &bytes, &count()[24..]].concat()
}

#[test]
fn loads_and_stores_move_as_many_bytes_as_their_type() {
    let kept = [16, 17, 18, 19, 20, 21, 22, 23];
    for (suffix, register, n) in
        [("u8", "%rs1", 1), ("u16", "%rs1", 2), ("u32", "%r1", 4), ("f32", "%f1", 4), ("u64", "%rd5", 8), ("f64", "%fd1", 8)]
    {
        let body = format!("    ld.global.{suffix} {register}, [%rd1+8];\n    st.global.{suffix} [%rd1+16], {register};");
        let mut expected = kept;
        expected[..n].copy_from_slice(&[8, 9, 10, 11, 12, 13, 14, 15][..n]);
        assert_eq!(transform(&count(), &body), with_16_to_23(expected), "{suffix}");
    }
}

/// Narrow unsigned loads extend with zeros; destinations may be wider than the type (9.4.1).
#[test]
fn narrow_loads_extend_with_zeros() {
    let mut bytes = count();
    bytes[8..10].copy_from_slice(&[0x80, 0xff]);
    for (load, store, expected) in [
        ("ld.global.u8 %rs1", "st.global.u16 [%rd1+16], %rs1", vec![0x80, 0]),
        ("ld.global.u8 %r1", "st.global.u32 [%rd1+16], %r1", vec![0x80, 0, 0, 0]),
        ("ld.global.u16 %r1", "st.global.u32 [%rd1+16], %r1", vec![0x80, 0xff, 0, 0]),
    ] {
        let body = format!("    mov.u32 %r1, -1;\n    mov.u16 %rs1, -1;\n    {load}, [%rd1+8];\n    {store};");
        assert_eq!(transform(&bytes, &body)[16..][..expected.len()], expected, "{load}");
    }
}

#[test]
fn narrow_stores_take_the_low_bytes() {
    let constants = "    mov.u16 %rs1, 4660;\n    mov.u32 %r1, 305419896;\n"; // 0x1234 and 0x12345678
    for (store, low) in
        [("u8 [%rd1+16], %rs1", vec![0x34]), ("u8 [%rd1+16], %r1", vec![0x78]), ("u16 [%rd1+16], %r1", vec![0x78, 0x56])]
    {
        let mut expected = [16, 17, 18, 19, 20, 21, 22, 23];
        expected[..low.len()].copy_from_slice(&low);
        assert_eq!(transform(&count(), &format!("{constants}    st.global.{store};")), with_16_to_23(expected), "{store}");
    }
}

#[test]
fn addresses_take_offsets_of_either_sign() {
    let body = "    add.s64 %rd2, %rd1, 16;\n    ld.global.u32 %r1, [%rd2+-8];\n    st.global.u32 [%rd2+4], %r1;";
    assert_eq!(transform(&count(), body), with_16_to_23([16, 17, 18, 19, 8, 9, 10, 11]));
}

#[test]
fn stores_keep_the_bits_of_nans() {
    let bytes = [0x01, 0, 0x80, 0xff, 0, 0, 0, 0];
    let body = "    ld.global.f32 %f1, [%rd1];\n    st.global.f32 [%rd1+4], %f1;";
    assert_eq!(transform(&bytes, body), [0x01, 0, 0x80, 0xff, 0x01, 0, 0x80, 0xff]);
}

#[test]
fn vector_stores_write_elements_in_order() {
    let words: [u32; 4] = [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut body: String = (0..4).map(|i| format!("    ld.global.u32 %r{}, [%rd1+{}];\n", i + 1, 4 * i)).collect();
    body += "    mov.b32 %f1, %r1;\n    mov.b32 %f2, %r2;\n    mov.b32 %f3, %r3;\n    mov.b32 %f4, %r4;\n";
    let after = |store: &str| transform(&count(), &format!("{body}    {store};"))[16..].to_vec();
    assert_eq!(after("st.global.v4.u32 [%rd1+16], {%r1, %r2, %r3, %r4}"), bytes);
    assert_eq!(after("st.global.v4.f32 [%rd1+16], {%f1, %f2, %f3, %f4}"), bytes);
    assert_eq!(after("st.global.v4.u32 [%rd1+16], {%r4, %r4, %r1, %r2}"), [&bytes[12..], &bytes[12..], &bytes[..8]].concat());
    assert_eq!(after("st.global.v2.f32 [%rd1+16], {%f2, %f1}"), [&bytes[4..8], &bytes[..4], &count()[24..]].concat());
}

#[test]
fn vector_loads_read_elements_in_order() {
    let body = "    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
    st.global.f32 [%rd1+16], %f4;
    st.global.f32 [%rd1+20], %f3;
    st.global.f32 [%rd1+24], %f2;
    st.global.f32 [%rd1+28], %f1;";
    let expected = [&count()[..16], &[12, 13, 14, 15], &[8, 9, 10, 11], &[4, 5, 6, 7], &[0, 1, 2, 3]].concat();
    assert_eq!(transform(&count(), body), expected);
}

/// "Atomically loads the original value at location a into destination register d, performs a reduction operation with
/// operand b and the value in location a, and stores the result": here in a cell for each row.
#[test]
fn atom_min_returns_the_old_value_and_keeps_the_unsigned_minimum() {
    for (cell, operand, kept) in
        [(5_u32, 3_u32, 3_u32), (3, 5, 3), (4, 4, 4), (u32::MAX, 1, 1), (1, u32::MAX, 1), (0x8000_0000, 0x7fff_ffff, 0x7fff_ffff)]
    {
        let bytes = [cell.to_le_bytes(), operand.to_le_bytes(), [0; 4]].concat();
        let body =
            "    ld.global.u32 %r1, [%rd1+4];\n    atom.global.min.u32 %r2, [%rd1], %r1;\n    st.global.u32 [%rd1+8], %r2;";
        let expected = [kept.to_le_bytes(), operand.to_le_bytes(), cell.to_le_bytes()].concat();
        assert_eq!(transform(&bytes, body), expected, "min({cell:#x}, {operand:#x})");
    }
}

/// 33 blocks of 65 threads take the minimum of one cell; each gets an old value from which the cell only sank.
#[test]
fn atom_min_over_many_threads_keeps_the_minimum_of_all() {
    let ptx = module(
        3,
        "    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd4, %r4, 4;
    add.s64 %rd5, %rd2, %rd4;
    add.s64 %rd6, %rd3, %rd4;
    ld.global.u32 %r5, [%rd5];
    atom.global.min.u32 %r6, [%rd1], %r5;
    st.global.u32 [%rd6], %r6;
    ret;",
    );
    let operands: Vec<u32> = (0..33 * 65).map(|i: u32| i.wrapping_mul(0x9e37_79b9) | 1 << 16).collect();
    let minimum = *operands.iter().min().unwrap();
    let mut machine = machine(&ptx);
    let cell = machine.upload(&u32::MAX.to_le_bytes());
    let bytes: Vec<u8> = operands.iter().flat_map(|n| n.to_le_bytes()).collect();
    let from = machine.upload(&bytes);
    let to = machine.allocate(bytes.len());
    machine.run("probe", [33, 1, 1], [65, 1, 1], &[&cell.to_le_bytes(), &from.to_le_bytes(), &to.to_le_bytes()]).unwrap();
    assert_eq!(machine.download(cell, 4).unwrap(), minimum.to_le_bytes());
    let olds: Vec<u32> = machine
        .download(to, bytes.len())
        .unwrap()
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert!(olds.iter().all(|old| *old == u32::MAX || operands.contains(old)));
    // The first of the threads sees the initial value. An operand that lowers the cell is what a later thread sees, unless
    // it stays the minimum to the end.
    assert_eq!(olds.iter().filter(|old| **old == u32::MAX).count(), 1, "one thread comes first");
    for (old, operand) in olds.iter().zip(&operands) {
        assert!(
            operand >= old || *operand == minimum || olds.contains(operand),
            "{operand} lowered the cell, and a later thread saw it"
        );
    }
}
