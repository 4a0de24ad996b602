//! Kernels around one opcode: operands are loaded, one row for each thread, and results compared with a table.

use std::fmt::Write;

use standin::Machine;

use crate::numbers::Number;

/// Begins each module.
pub(crate) const HEADER: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// Declares the registers that each kernel here may use.
pub(crate) const REGISTERS: &str = "    .reg .pred %p<10>;
    .reg .b16 %rs<10>;
    .reg .b32 %r<20>;
    .reg .f32 %f<10>;
    .reg .b64 %rd<20>;
    .reg .f64 %fd<10>;
";

/// Returns a module with one kernel, `probe`, whose parameters are `n_params` addresses.
///
/// The body finds the addresses, in the space global, in `%rd1` and upwards.
pub(crate) fn module(n_params: usize, body: &str) -> String {
    let params: Vec<_> = (0..n_params).map(|i| format!("    .param .u64 probe_param_{i}")).collect();
    let mut text = format!("{HEADER}.visible .entry probe(\n{}\n)\n{{\n{REGISTERS}", params.join(",\n"));
    for i in 0..n_params {
        let to = i + 1;
        writeln!(text, "    ld.param.u64 %rd10, [probe_param_{i}];").expect("a string");
        writeln!(text, "    cvta.to.global.u64 %rd{to}, %rd10;").expect("a string");
    }
    format!("{text}{body}\n}}\n")
}

/// Parses a module.
pub(crate) fn machine(ptx: &str) -> Machine {
    Machine::new(ptx).unwrap_or_else(|error| panic!("{error}\n{ptx}"))
}

/// Values of one operand, a row for each thread.
pub(crate) struct Column {
    register: &'static str,
    suffix: &'static str,
    size: usize,
    bytes: Vec<u8>,
    literals: Vec<String>,
}

/// Returns a column of these numbers.
pub(crate) fn column<T: Number>(numbers: impl IntoIterator<Item = T>) -> Column {
    let numbers: Vec<_> = numbers.into_iter().collect();
    Column {
        register: T::REGISTER,
        suffix: T::SUFFIX,
        size: T::SIZE,
        bytes: numbers.iter().flat_map(|number| number.bytes()).collect(),
        literals: numbers.iter().map(|number| number.literal()).collect(),
    }
}

/// Appends a kernel that loads column `i` into its register number `i + 1`, runs the body and stores register 9.
fn entry<R: Number>(text: &mut String, name: &str, columns: &[Column], body: &str) {
    let n = columns.len();
    let params: Vec<_> = (0..=n).map(|i| format!("    .param .u64 {name}_param_{i}")).collect();
    let mut line = |line: String| writeln!(text, "{line}").expect("a string");
    line(format!(".visible .entry {name}(\n{}\n)\n{{\n{REGISTERS}    mov.u32 %r10, %tid.x;", params.join(",\n")));
    for (i, size) in columns.iter().map(|column| column.size).chain([R::SIZE]).enumerate() {
        line(format!("    ld.param.u64 %rd10, [{name}_param_{i}];"));
        line("    cvta.to.global.u64 %rd11, %rd10;".into());
        line(format!("    mul.wide.u32 %rd12, %r10, {size};"));
        line("    add.s64 %rd13, %rd11, %rd12;".into());
        match columns.get(i) {
            Some(Column { register, suffix, .. }) => line(format!("    ld.global.{suffix} {register}{}, [%rd13];", i + 1)),
            None => line(format!("    {body}\n    st.global.{} [%rd13], {}9;", R::SUFFIX, R::REGISTER)),
        }
    }
    line("    ret;\n}".into());
}

/// Runs a body for each row: operands in registers 1, 2, .. of their types, the result in register 9.
pub(crate) fn compute<R: Number>(columns: &[Column], body: &str) -> Vec<R> {
    let n_rows = columns[0].literals.len();
    assert!(n_rows <= 1024, "a block has at most 1024 threads");
    let mut text = String::from(HEADER);
    entry::<R>(&mut text, "rows", columns, body);
    let mut machine = machine(&text);
    let mut addresses: Vec<_> = columns.iter().map(|column| machine.upload(&column.bytes).to_le_bytes()).collect();
    let results = machine.allocate(n_rows * R::SIZE);
    addresses.push(results.to_le_bytes());
    let params: Vec<_> = addresses.iter().map(<[u8; 8]>::as_slice).collect();
    machine
        .run("rows", [1, 1, 1], [n_rows.try_into().expect("few"), 1, 1], &params)
        .unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let bytes = machine.download(results, n_rows * R::SIZE).expect("each thread stored its result");
    bytes.chunks_exact(R::SIZE).map(R::from_bytes).collect()
}

/// Runs a body as [`compute`] does, but the last operand is a constant in the body.
///
/// `body` makes the body for a constant.
fn compute_with_constant<R: Number>(columns: &[Column], body: impl Fn(&str) -> String) -> Vec<R> {
    let (last, others) = columns.split_last().expect("an operand");
    let mut text = String::from(HEADER);
    for (row, literal) in last.literals.iter().enumerate() {
        entry::<R>(&mut text, &format!("row_{row}"), others, &body(literal));
    }
    let mut machine = machine(&text);
    let addresses: Vec<_> = others.iter().map(|column| machine.upload(&column.bytes)).collect();
    let result = machine.allocate(R::SIZE);
    (0..last.literals.len())
        .map(|row| {
            let mut places: Vec<_> = addresses.iter().zip(others).map(|(at, column)| at + (row * column.size) as u64).collect();
            places.push(result);
            let bytes: Vec<_> = places.iter().map(|at| at.to_le_bytes()).collect();
            let params: Vec<_> = bytes.iter().map(<[u8; 8]>::as_slice).collect();
            machine.run(&format!("row_{row}"), [1, 1, 1], [1, 1, 1], &params).unwrap_or_else(|fault| panic!("{fault}"));
            R::from_bytes(&machine.download(result, R::SIZE).expect("stored"))
        })
        .collect()
}

/// Panics at the first row whose result is not the expected one.
pub(crate) fn agree<R: Number>(what: &str, columns: &[Column], results: &[R], expected: &[R]) {
    assert_eq!(results.len(), expected.len(), "{what}");
    for (row, (result, expected)) in results.iter().zip(expected).enumerate() {
        let operands: Vec<_> = columns.iter().map(|column| column.literals[row].as_str()).collect();
        assert!(result.agrees(*expected), "{what} {}: {result:?} ({}), not {expected:?}", operands.join(", "), result.literal());
    }
}

/// Checks an instruction with operands in registers, then with its last operand as a constant.
///
/// `body` makes the body from the list of operands.
fn check<R: Number>(what: &str, columns: &[Column], expected: &[R], body: impl Fn(&str) -> String) {
    let registers: Vec<_> = columns.iter().enumerate().map(|(i, column)| format!("{}{}", column.register, i + 1)).collect();
    agree(what, columns, &compute(columns, &body(&registers.join(", "))), expected);
    if let Some((_, others @ [_, ..])) = registers.split_last() {
        let constant = |literal: &str| body(&format!("{}, {literal}", others.join(", ")));
        agree(&format!("{what} with a constant"), columns, &compute_with_constant(columns, constant), expected);
    }
}

fn instruction<R: Number>(opcode: &str) -> impl Fn(&str) -> String {
    move |operands| format!("{opcode} {}9, {operands};", R::REGISTER)
}

/// Checks rows (a, result).
pub(crate) fn unary<A: Number, R: Number>(opcode: &str, rows: &[(A, R)]) {
    let columns = [column(rows.iter().map(|row| row.0))];
    let expected: Vec<_> = rows.iter().map(|row| row.1).collect();
    check(opcode, &columns, &expected, instruction::<R>(opcode));
}

/// Checks rows (a, b, result).
pub(crate) fn binary<A: Number, B: Number, R: Number>(opcode: &str, rows: &[(A, B, R)]) {
    let columns = [column(rows.iter().map(|row| row.0)), column(rows.iter().map(|row| row.1))];
    let expected: Vec<_> = rows.iter().map(|row| row.2).collect();
    check(opcode, &columns, &expected, instruction::<R>(opcode));
}

/// Checks rows (a, b, c, result).
pub(crate) fn ternary<A: Number, B: Number, C: Number, R: Number>(opcode: &str, rows: &[(A, B, C, R)]) {
    let columns =
        [column(rows.iter().map(|row| row.0)), column(rows.iter().map(|row| row.1)), column(rows.iter().map(|row| row.2))];
    let expected: Vec<_> = rows.iter().map(|row| row.3).collect();
    check(opcode, &columns, &expected, instruction::<R>(opcode));
}

/// Checks rows ([a, b, c, d], result).
pub(crate) fn quaternary<T: Number, R: Number>(opcode: &str, rows: &[([T; 4], R)]) {
    let columns: [_; 4] = std::array::from_fn(|i| column(rows.iter().map(|row| row.0[i])));
    let expected: Vec<_> = rows.iter().map(|row| row.1).collect();
    check(opcode, &columns, &expected, instruction::<R>(opcode));
}

/// Checks rows (a, b, true or false) of a comparison.
pub(crate) fn comparison<T: Number>(opcode: &str, rows: &[(T, T, bool)]) {
    let columns = [column(rows.iter().map(|row| row.0)), column(rows.iter().map(|row| row.1))];
    let expected: Vec<_> = rows.iter().map(|row| u32::from(row.2)).collect();
    check(opcode, &columns, &expected, |operands| format!("{opcode} %p1, {operands};\n    selp.u32 %r9, 1, 0, %p1;"));
}
