//! PTX text to instructions; anything unknown is an error with its line.

pub(crate) mod constants;
pub(crate) mod opcode;
pub(crate) mod operand;

use std::collections::HashMap;
use std::fmt;

use crate::ptx::opcode::Arithmetic;

/// Memory that an instruction accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Memory of the device.
    Global,
    /// Memory of a block.
    Shared,
}

/// A load's or store's memory, and its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Memory.
    pub space: Space,
    /// Bytes of an element.
    pub bytes: u8,
    /// Number of elements: 1, 2 or 4.
    pub count: u8,
}

/// Operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Computes a register from registers.
    Arithmetic(Arithmetic),
    /// Loads registers.
    Load(Access),
    /// Stores registers.
    Store(Access),
    /// Loads a register from the parameters; the number of bytes.
    LoadParam(u8),
    /// Stores the smaller number in global memory, and returns the old one.
    AtomicMin,
    /// Jumps.
    Branch,
    /// Waits for the threads of the block.
    Barrier,
    /// Ends the thread.
    Return,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// Operation.
    pub operation: Operation,
    /// Register of the predicate that must hold; [`TRUE`] without one.
    pub(crate) guard: u16,
    /// True if the predicate must not hold.
    pub(crate) unless: bool,
    /// Register of an arithmetic result, or of an address.
    pub(crate) main: u16,
    /// Registers of operands, or of loaded or stored elements.
    pub(crate) registers: [u16; 4],
    /// Offset from the address or in the parameters; or index to jump to.
    pub(crate) offset: i32,
    /// Line of the text, from 1 on.
    pub line: u32,
}

/// Register that always holds 1.
pub(crate) const TRUE: u16 = 0;
/// Special registers, from register 1 on.
pub(crate) const SPECIAL: [&str; 12] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
];

/// Place of a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// Maximum number of threads per block of any kernel.
const MAX_THREADS: u32 = 1024;

/// Decoded kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Instructions.
    pub code: Vec<Instruction>,
    /// Bytes of shared memory.
    pub shared_bytes: usize,
    /// Maximum number of threads per block.
    pub max_threads: u32,
    /// Registers at the beginning of a thread; constants behind the declared registers.
    pub(crate) registers: Vec<u64>,
    pub(crate) has_barriers: bool,
}

impl Kernel {
    /// Returns the bytes of all parameters.
    #[must_use]
    pub fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |param| param.offset + param.size)
    }
}

/// Text that is no PTX, or PTX that the interpreter does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line, from 1 on.
    pub line: usize,
    /// Problem.
    pub what: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for PtxError {}

/// Parses a PTX module and returns its kernels.
///
/// # Errors
/// [`PtxError`].
pub fn parse(text: &str) -> Result<Vec<Kernel>, PtxError> {
    let (mut kernels, mut header) = (Vec::new(), [false; 3]);
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.split("//").next().unwrap_or_default().trim()));
    let mut last = 0;
    while let Some((number, line)) = lines.next() {
        last = number;
        let fail = |what: String| PtxError { line: number, what };
        match line.split_whitespace().next() {
            None => {}
            Some(".version") if line == ".version 8.0" => header[0] = true,
            Some(".version") => return Err(fail(format!("{line}: driver 525 loads PTX 8.0"))),
            Some(".target") if line == ".target sm_75" => header[1] = true,
            Some(".target") => return Err(fail(format!("{line}: the device has compute capability 7.5"))),
            Some(".address_size") if line == ".address_size 64" => header[2] = true,
            Some(".global") if line.ends_with(';') => {} // constants of the compiler; an instruction that names one is refused
            Some(".visible") if header == [true; 3] => kernels.push(kernel(number, line, &mut lines)?),
            Some(_) => return Err(fail(format!("unknown: {line}"))),
        }
    }
    if header == [true; 3] {
        Ok(kernels)
    } else {
        Err(PtxError { line: last, what: "no version, target or address size".into() })
    }
}

/// Returns a module whose lines of all other entries are empty.
///
/// `None` if the module lacks the entry.
#[must_use]
pub fn alone(module: &str, entry: &str) -> Option<String> {
    let begin = format!(".visible .entry {entry}(");
    let (mut kept, mut keep, mut found) = (String::new(), true, false);
    for line in module.lines() {
        if line.starts_with(".visible .entry ") {
            keep = line == begin;
            found |= keep;
        }
        kept += if keep { line } else { "" };
        kept.push('\n');
    }
    found.then_some(kept)
}

/// Returns a text with another text in a line, counted from 1.
#[must_use]
pub fn with_line(text: &str, line: usize, new: &str) -> String {
    let lines = text.lines().enumerate().map(|(i, old)| if i + 1 == line { new } else { old });
    lines.collect::<Vec<_>>().join("\n")
}

/// Parses the rest of a kernel whose first line is `line`.
fn kernel<'a>(number: usize, line: &str, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Result<Kernel, PtxError> {
    let name = line.strip_prefix(".visible .entry ").and_then(|rest| rest.strip_suffix('('));
    let name = name.ok_or_else(|| PtxError { line: number, what: format!("unknown: {line}") })?;
    let mut body = Body::default();
    let (mut params, mut max_threads) = (Vec::new(), MAX_THREADS);
    for (number, line) in lines.by_ref() {
        match line {
            "" | ")" => {}
            "{" => break,
            _ if line.starts_with(".minnctapersm ") => {} // registers, which nothing here runs out of
            _ if line.starts_with(".maxntid ") => {
                max_threads = bound(line).ok_or_else(|| PtxError { line: number, what: format!("unknown: {line}") })?;
            }
            _ => params.push(body.param(line.trim_end_matches(',')).map_err(|what| PtxError { line: number, what })?),
        }
    }
    body.registers = vec![1];
    for special in SPECIAL {
        body.declare(special.into(), 32);
    }
    let mut end = number;
    for (number, line) in lines.by_ref() {
        end = number;
        if line == "}" {
            break;
        }
        body.line(number as u32, line).map_err(|what| PtxError { line: number, what: format!("{what}: {line}") })?;
    }
    for (at, label, number) in std::mem::take(&mut body.jumps) {
        let target = body.labels.get(&label).copied();
        body.code[at].offset =
            target.ok_or_else(|| PtxError { line: number as usize, what: format!("no label {label}") })? as i32;
    }
    let is_end = |instruction: &Instruction| {
        matches!(instruction.operation, Operation::Return | Operation::Branch) && instruction.guard == TRUE
    };
    if !body.code.last().is_some_and(is_end) || body.labels.values().any(|&at| at >= body.code.len()) {
        return Err(PtxError { line: end, what: format!("{name} does not end in ret") });
    }
    if body.registers.len() > usize::from(u16::MAX) {
        return Err(PtxError { line: end, what: format!("{name} has too many registers and constants") });
    }
    let has_barriers = body.code.iter().any(|instruction| instruction.operation == Operation::Barrier);
    let (code, shared_bytes, registers) = (body.code, body.shared_bytes, body.registers);
    Ok(Kernel { name: name.into(), params, code, shared_bytes, max_threads, registers, has_barriers })
}

/// Parses `.maxntid X, Y, Z`: the number of threads of such a block.
fn bound(line: &str) -> Option<u32> {
    let sides = line.strip_prefix(".maxntid ")?.split(", ").map(|side| side.parse::<u32>().ok());
    sides.collect::<Option<Vec<_>>>().map(|sides| sides.into_iter().product())
}

/// Parser of one kernel.
#[derive(Default)]
struct Body {
    /// Offsets of parameters, by name.
    params: HashMap<String, usize>,
    param_bytes: usize,
    /// Indices and bits of registers, by name.
    names: HashMap<String, (u16, u8)>,
    registers: Vec<u64>,
    /// Addresses in shared memory, by name.
    symbols: HashMap<String, usize>,
    shared_bytes: usize,
    labels: HashMap<String, usize>,
    /// Branches: index, label, line.
    jumps: Vec<(usize, String, u32)>,
    code: Vec<Instruction>,
}

/// Bytes of a type of memory.
fn type_bytes(text: &str) -> Result<usize, String> {
    Ok(match text {
        "u8" | "b8" => 1,
        "u16" => 2,
        "u32" | "f32" | "b32" => 4,
        "u64" | "f64" | "b64" => 8,
        _ => return Err(format!("unknown type {text}")),
    })
}

/// Sizes of registers that may hold `bytes`.
fn at_least(bytes: usize) -> &'static [u8] {
    const SIZES: &[u8] = &[16, 32, 64];
    &SIZES[SIZES.partition_point(|&bits| usize::from(bits) < 8 * bytes)..]
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("no number: {text}"))
}

impl Body {
    /// Parses `.param .u64 NAME` or `.param .align A .b8 NAME[N]`.
    fn param(&mut self, line: &str) -> Result<Param, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (align, size, name) = match words[..] {
            [".param", of, name] => {
                let size = type_bytes(of.trim_start_matches('.'))?;
                (size, size, name)
            }
            [".param", ".align", align, ".b8", name] => {
                let (name, len) = name.trim_end_matches(']').split_once('[').ok_or("no array")?;
                (number(align)?, number(len)?, name)
            }
            _ => return Err(format!("unknown parameter: {line}")),
        };
        let offset = self.param_bytes.next_multiple_of(align);
        self.param_bytes = offset + size;
        self.params.insert(name.into(), offset);
        Ok(Param { offset, size })
    }

    fn declare(&mut self, name: String, bits: u8) {
        self.names.insert(name, (self.registers.len() as u16, bits));
        self.registers.push(0);
    }

    /// Parses `.reg .b32 %r<N>;`.
    fn declare_registers(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        let [".reg", of, names] = words[..] else { return Err("unknown declaration".into()) };
        let bits = match of {
            ".pred" => 1,
            ".b16" => 16,
            ".b32" | ".f32" => 32,
            ".b64" | ".f64" => 64,
            _ => return Err("unknown type".into()),
        };
        let (name, count) = names.trim_end_matches('>').split_once('<').ok_or("no number of registers")?;
        let count = number::<usize>(count)?;
        (0..count).for_each(|i| self.declare(format!("{name}{i}"), bits));
        if self.registers.len() > usize::from(u16::MAX) / 2 { Err("too many registers".into()) } else { Ok(()) }
    }

    /// Parses `.shared .align A .b8 NAME[N];`.
    fn declare_shared(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        let [".shared", ".align", align, of, name] = words[..] else { return Err("unknown declaration".into()) };
        let (name, count) = match name.trim_end_matches(']').split_once('[') {
            Some((name, count)) => (name, number(count)?),
            None => (name, 1),
        };
        let size = count * type_bytes(of.trim_start_matches('.'))?;
        let offset = self.shared_bytes.next_multiple_of(number(align)?);
        self.symbols.insert(name.into(), offset);
        self.shared_bytes = offset + size;
        Ok(())
    }

    /// Returns the register of an operand, which has one of the sizes in `bits`.
    fn operand(&mut self, text: &str, bits: &[u8]) -> Result<u16, String> {
        if let Some(&(register, found)) = self.names.get(text) {
            let fits = bits.contains(&found);
            return if fits { Ok(register) } else { Err(format!("{text} has {found} bits, not {bits:?}")) };
        }
        let symbol = self.symbols.get(text).map(|&address| address as u64);
        let value = symbol.or_else(|| constants::bits(text)).ok_or_else(|| format!("unknown operand {text}"))?;
        self.registers.push(value);
        Ok((self.registers.len() - 1) as u16)
    }

    /// Parses `[base]`, `[base+N]` or `[base-N]` to base and offset.
    fn address(text: &str) -> Result<(&str, i32), String> {
        let inner = text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).ok_or("no address")?;
        match inner.find(['+', '-']).filter(|&at| at > 0) {
            Some(at) => {
                let offset = constants::bits(inner[at..].trim_start_matches('+')).map(|bits| bits as i64);
                let offset = offset.and_then(|offset| offset.try_into().ok()).ok_or_else(|| format!("no offset: {inner}"))?;
                Ok((&inner[..at], offset))
            }
            None => Ok((inner, 0)),
        }
    }

    /// Parses a line between the braces of a kernel.
    fn line(&mut self, number: u32, line: &str) -> Result<(), String> {
        if let Some(label) = line.strip_suffix(':') {
            self.labels.insert(label.into(), self.code.len());
            return Ok(());
        }
        match line.split_whitespace().next() {
            None | Some(".pragma") => return Ok(()),
            Some(".reg") => return self.declare_registers(line),
            Some(".shared") => return self.declare_shared(line),
            Some(_) => {}
        }
        let mut rest = line.strip_suffix(';').ok_or("unknown")?;
        let (mut guard, mut unless) = (TRUE, false);
        if let Some(predicate) = rest.strip_prefix('@') {
            let (name, after) = predicate.split_once(char::is_whitespace).ok_or("no instruction")?;
            unless = name.starts_with('!');
            guard = self.operand(name.trim_start_matches('!'), &[1])?;
            rest = after.trim();
        }
        let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let operation = Operation::Return;
        let mut instruction = Instruction { operation, guard, unless, main: TRUE, registers: [TRUE; 4], offset: 0, line: number };
        self.decode(opcode, operands.trim(), &mut instruction)?;
        self.code.push(instruction);
        Ok(())
    }

    /// Decodes a load of the element with an index from a parameter.
    fn load_param(&mut self, value: &str, address: &str, (of, index): (&str, usize), to: &mut Instruction) -> Result<(), String> {
        let (base, offset) = Self::address(address)?;
        let start = self.params.get(base).ok_or_else(|| format!("unknown parameter {base}"))?;
        let bytes = type_bytes(of)?;
        to.offset = *start as i32 + offset + (index * bytes) as i32;
        if to.offset < 0 || to.offset as usize + bytes > self.param_bytes {
            return Err("beyond the parameters".into());
        }
        to.main = self.operand(value, at_least(bytes))?;
        to.operation = Operation::LoadParam(bytes as u8);
        Ok(())
    }

    fn decode(&mut self, opcode: &str, operands: &str, to: &mut Instruction) -> Result<(), String> {
        let parts: Vec<&str> = opcode.split('.').collect();
        match (&parts[..], operands) {
            (["ret"], "") => to.operation = Operation::Return,
            (["bar", "sync"], "0") => to.operation = Operation::Barrier,
            (["bra"] | ["bra", "uni"], label) => {
                to.operation = Operation::Branch;
                self.jumps.push((self.code.len(), label.into(), to.line));
            }
            (["ld", "param", of], _) => {
                let (value, address) = operands.split_once(',').ok_or("no address")?;
                self.load_param(value.trim(), address, (of, 0), to)?;
            }
            (["ld", "param", "v2", of], _) => {
                let (values, address) = operands.split_once("},").ok_or("no address")?;
                let values = values.strip_prefix('{').and_then(|values| values.split_once(','));
                let (first, second) = values.ok_or("two elements")?;
                self.load_param(first.trim(), address, (of, 0), to)?;
                self.code.push(*to);
                self.load_param(second.trim(), address, (of, 1), to)?;
            }
            (["atom", "global", "min", "u32"], _) => {
                let [old, address, value] = operands.split(", ").collect::<Vec<_>>()[..] else {
                    return Err("three operands".into());
                };
                let (base, offset) = Self::address(address)?;
                (to.main, to.offset) = (self.operand(base, &[64])?, offset);
                to.registers = [self.operand(old, &[32])?, self.operand(value, &[32])?, TRUE, TRUE];
                to.operation = Operation::AtomicMin;
            }
            (["ld", rest @ ..], _) => {
                let at = operands.find('[').ok_or("no address")?;
                let (values, address) = operands.split_at(at);
                to.operation = Operation::Load(self.access(rest, address, values.trim_end().trim_end_matches(','), to)?);
            }
            (["st", rest @ ..], _) => {
                let at = operands.find(']').ok_or("no address")?;
                let (address, values) = operands.split_at(at + 1);
                to.operation = Operation::Store(self.access(rest, address, values.trim_start_matches(','), to)?);
            }
            _ => {
                let (arithmetic, signature) = Arithmetic::find(opcode).ok_or_else(|| format!("unknown instruction {opcode}"))?;
                let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
                if operands.len() != signature.operands.len() + 1 {
                    return Err(format!("{opcode} has {} operands", signature.operands.len() + 1));
                }
                let is_register = self.names.get(operands[0]).is_some_and(|&(register, _)| usize::from(register) > SPECIAL.len());
                if !is_register {
                    return Err(format!("{} is no register that can be written", operands[0]));
                }
                to.main = self.operand(operands[0], &[signature.result])?;
                for ((register, text), bits) in to.registers.iter_mut().zip(&operands[1..]).zip(signature.operands) {
                    *register = self.operand(text, &[*bits])?;
                }
                to.operation = Operation::Arithmetic(arithmetic);
            }
        }
        Ok(())
    }

    /// Parses the suffixes and operands of a load or a store.
    fn access(&mut self, suffixes: &[&str], address: &str, values: &str, to: &mut Instruction) -> Result<Access, String> {
        let (space, count, of) = match *suffixes {
            [space, of] => (space, 1, of),
            [space, "v2", of] => (space, 2, of),
            [space, "v4", of] => (space, 4, of),
            _ => return Err("unknown access".into()),
        };
        let (space, address_bits): (_, &[u8]) = match space {
            "global" => (Space::Global, &[64]),
            "shared" => (Space::Shared, &[32, 64]),
            _ => return Err(format!("unknown memory {space}")),
        };
        let bytes = type_bytes(of)?;
        let (base, offset) = Self::address(address)?;
        (to.main, to.offset) = (self.operand(base, address_bits)?, offset);
        let values = values.trim();
        let values = values.strip_prefix('{').map_or(values, |rest| rest.trim_end_matches('}'));
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if values.len() != count {
            return Err(format!("{count} elements"));
        }
        for (register, value) in to.registers.iter_mut().zip(values) {
            *register = self.operand(value, at_least(bytes))?;
        }
        Ok(Access { space, bytes: bytes as u8, count: count as u8 })
    }
}
