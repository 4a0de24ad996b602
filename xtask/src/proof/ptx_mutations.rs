//! Mutations of the committed PTX: what one changed instruction changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::proof::ptx_runs::{Entry, entries, program, run, unexecuted};

/// Mutations that change no result: lines `entry line text # reason`.
///
/// A `*` in the entry is any text, and the line may be a range `first-last` or `*`. Registers are `%`.
const EQUIVALENT: &str = include_str!("../../ptx_equivalent.txt");
/// Tests whose launches the mutants join: target, name, `RL_CORNERS`.
const TESTS: [(&str, &str, &str); 3] =
    [("--lib", "corners", "1"), ("--test=modules", "every_module", "1"), ("--lib", "corners", "8")];

/// Numbers drawn by xorshift.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Opcodes that replace others, by prefix.
const OPCODES: [[&str; 2]; 19] = [
    ["add.", "sub."],
    ["sub.", "add."],
    ["mul.rn", "add.rn"],
    ["mul.lo", "add"],
    ["div.rn", "mul.rn"],
    ["and.", "or."],
    ["or.", "and."],
    ["xor.b32", "or.b32"],
    ["shl.b64", "shr.u64"],
    ["shl.b32", "shr.u32"],
    ["shr.u64", "shl.b64"],
    ["shr.u32", "shl.b32"],
    ["setp.eq.s32", "setp.ne.s32"],
    ["setp.ne.s32", "setp.eq.s32"],
    ["setp.lt", "setp.gt"],
    ["setp.gt", "setp.lt"],
    ["setp.ge", "setp.lt"],
    ["setp.le", "setp.gt"],
    ["max.u32", "min.u32"],
];

/// Returns every change of a line.
///
/// Another opcode, exchanged operands, another number, the opposite condition.
fn changes(line: &str) -> Vec<String> {
    let mut changed = Vec::new();
    let code = line.trim();
    if let Some(rest) = code.strip_prefix('@') {
        changed.push(rest.strip_prefix('!').map_or(format!("@!{rest}"), |rest| format!("@{rest}")));
    }
    for [from, to] in OPCODES {
        if let Some(rest) = code.strip_prefix(from) {
            changed.push(format!("{to}{rest}"));
        }
    }
    let Some((opcode, operands)) = code.trim_end_matches(';').split_once(char::is_whitespace) else { return changed };
    let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    let is_ordered = ["sub", "shl", "shr", "selp", "div", "setp.g", "setp.l"].iter().any(|prefix| opcode.starts_with(prefix));
    if is_ordered && operands.len() >= 3 {
        let mut exchanged = operands.clone();
        exchanged.swap(1, 2);
        if exchanged != operands {
            changed.push(format!("{opcode} {};", exchanged.join(", ")));
        }
    }
    for (i, operand) in operands.iter().enumerate().skip(1) {
        let other = if let Ok(number) = operand.parse::<i64>() {
            Some(number.wrapping_add(1).to_string())
        } else {
            let bits = operand.strip_prefix("0f").and_then(|hex| u32::from_str_radix(hex, 16).ok());
            bits.map(|bits| format!("0f{:08X}", bits ^ 1))
        };
        if let Some(other) = other {
            let mut operands = operands.clone();
            operands[i] = &other;
            changed.push(format!("{opcode} {};", operands.join(", ")));
        }
    }
    if opcode.starts_with("mov.") && operands[1].starts_with('%') {
        changed.push(format!("{opcode} {}, {};", operands[0], if opcode == "mov.f32" { "0f3F800000" } else { "1" }));
    }
    changed
}

/// A changed line of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mutant {
    entry: String,
    line: u32,
    text: String,
}

/// Number of low bits of a register that are always 0.
fn low_zeros(lines: &[Vec<&str>], register: &str) -> u32 {
    let mut definitions = lines.iter().filter(|line| line.get(1) == Some(&register));
    let (Some(definition), None) = (definitions.next(), definitions.next()) else { return 0 };
    match definition[..] {
        ["shl.b32", _, _, by] => by.parse().unwrap_or(0),
        ["add.s32", _, from, number] => {
            number.parse::<i64>().map_or(0, |number| low_zeros(lines, from).min(number.trailing_zeros()))
        }
        _ => 0,
    }
}

/// True if another number in a line changes no result.
///
/// The number differs only in bits that are 0 in the other operand, or that no instruction uses.
/// `lines` are the words of each line of the entry.
fn changes_nothing(lines: &[Vec<&str>], old: &[&str], new: &[&str]) -> bool {
    let ([opcode, result, from, a], [_, _, same, b]) = (old, new) else { return false };
    let (Ok(a), Ok(b)) = (a.parse::<i64>(), b.parse::<i64>()) else { return false };
    let zeros = low_zeros(lines, from);
    if from != same || opcode != &new[0] || (a ^ b) as u32 >= 1 << zeros {
        return false;
    }
    let uses_high_bits = |line: &Vec<&str>| matches!(line[..], ["and.b32", _, _, mask] if mask.parse::<i64>().is_ok_and(|mask| mask.trailing_zeros() >= zeros));
    let mut uses = lines.iter().filter(|line| line.iter().skip(2).any(|word| word.contains(result)));
    match *opcode {
        "and.b32" => true,
        "add.s32" => uses.all(uses_high_bits),
        _ => false,
    }
}

/// Splits a line into opcode and operands.
fn words(line: &str) -> Vec<&str> {
    line.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()).collect()
}

/// Returns the changes that are still PTX and may change a result.
fn mutants(entry: &Entry) -> Vec<Mutant> {
    let (mut mutants, unexecuted) = (Vec::new(), unexecuted());
    let alone = standin::alone(&entry.text, &entry.name).unwrap_or_default();
    let lines: Vec<&str> = alone.lines().collect();
    let split: Vec<Vec<&str>> = lines.iter().map(|line| words(line)).collect();
    let executed = entry.lines.iter().filter(|line| !unexecuted.contains(&format!("{} {line}", entry.name)));
    for &line in executed {
        let at = line as usize - 1;
        let is_valid = |text: &String| standin::parse(&standin::with_line(&alone, line as usize, text)).is_ok();
        let texts = changes(lines[at]).into_iter().filter(|text| !changes_nothing(&split, &split[at], &words(text)));
        let texts = texts.filter(is_valid);
        mutants.extend(texts.map(|text| Mutant { entry: entry.name.clone(), line, text }));
    }
    mutants
}

/// Draws `n` changes without repetition: first a line, then one of its changes.
fn sample(all: &[Mutant], n: usize, seed: u64) -> Vec<Mutant> {
    let mut by_line = BTreeMap::<_, Vec<_>>::new();
    all.iter().for_each(|mutant| by_line.entry((&mutant.entry, mutant.line)).or_default().push(mutant));
    let mut lines: Vec<Vec<&Mutant>> = by_line.into_values().collect();
    let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let drawn = (0..n.min(lines.len())).map(|_| {
        let line = draw.below(lines.len());
        let changes = lines.swap_remove(line);
        changes[draw.below(changes.len())].clone()
    });
    drawn.collect()
}

/// Changes N instructions, or all in every way, one at a time.
///
/// Fails if the tests' launches notice one that [`EQUIVALENT`] has, or do not notice one that it lacks.
pub(crate) fn mutate(root: &Path, n: &str, seed: u64, only: Option<&str>) -> Result<()> {
    let mut entries = entries(root)?;
    entries.retain(|entry| only.is_none_or(|only| entry.name == only));
    ensure!(!entries.is_empty(), "no kernel has the name that --entry gives");
    let all: Vec<Mutant> = entries.iter().flat_map(mutants).collect();
    let tried = if n == "all" { all } else { sample(&all, n.parse().context("ptx --mutate N")?, seed) };
    println!("\n==> ptx --mutate {n} --seed {seed}{}", only.map(|name| format!(" --entry {name}")).unwrap_or_default());
    let file = root.join("target/ptx-mutants.txt");
    let lines = tried.iter().map(|Mutant { entry, line, text }| format!("{entry}:{line}:{text}\n"));
    fs::write(&file, lines.collect::<String>())?;
    for (target, test, corners) in TESTS {
        let program = program(root, &["--package=rl-cuda", target])?;
        let output = run(&program, &[test], &[("RL_STANDIN_MUTANTS", &file.to_string_lossy()), ("RL_CORNERS", corners)])?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let left = fs::read_to_string(&file)?;
    let left: BTreeSet<&str> = left.lines().collect();
    let equivalent = equivalent(EQUIVALENT)?;
    let (mut noticed, mut problems) = (0, Vec::new());
    for mutant in &tried {
        let Mutant { entry, line, text } = mutant;
        let is_noticed = !left.contains(&*format!("{entry}:{line}:{text}"));
        let is_listed = equivalent.iter().any(|equivalent| equivalent.covers(mutant));
        noticed += usize::from(is_noticed);
        match (is_noticed, is_listed) {
            (false, false) => problems.push(format!("{entry} {line} {text} is not noticed")),
            (true, true) => problems.push(format!("{entry} {line} {text} is noticed, but xtask/ptx_equivalent.txt has it")),
            _ => {}
        }
    }
    println!("{noticed} of {} changes are noticed", tried.len());
    println!("{} are listed as equivalent", tried.len() - noticed - problems.len());
    if problems.is_empty() { Ok(()) } else { bail!("{}\n{} problems", problems.join("\n"), problems.len()) }
}

/// Changes that the list calls equivalent.
struct Equivalent {
    entry: &'static str,
    lines: RangeInclusive<u32>,
    text: String,
}

impl Equivalent {
    fn covers(&self, mutant: &Mutant) -> bool {
        let is_entry = match self.entry.split_once('*') {
            Some((begin, end)) => mutant.entry.starts_with(begin) && mutant.entry.ends_with(end),
            None => self.entry == mutant.entry,
        };
        is_entry && self.lines.contains(&mutant.line) && self.text == without_registers(&mutant.text)
    }
}

/// Returns an instruction with `%` for each register, and one space between words.
fn without_registers(text: &str) -> String {
    let plain = |word: &str| {
        word.split_once('%').map_or(word.to_owned(), |(before, after)| {
            format!("{before}%{}", after.trim_start_matches(|c: char| c.is_ascii_alphanumeric()))
        })
    };
    text.split_whitespace().map(plain).collect::<Vec<_>>().join(" ")
}

/// Parses lines `entry line text # reason`.
fn equivalent(list: &'static str) -> Result<Vec<Equivalent>> {
    let parse = |line: &'static str| {
        let (change, _) = line.split_once(" # ")?;
        let (entry, rest) = change.split_once(' ')?;
        let (lines, text) = rest.split_once(' ')?;
        let (first, last) = if lines == "*" { ("0", "4294967295") } else { lines.split_once('-').unwrap_or((lines, lines)) };
        Some(Equivalent { entry, lines: first.parse().ok()?..=last.parse().ok()?, text: without_registers(text) })
    };
    list.lines().map(|line| parse(line).with_context(|| format!("xtask/ptx_equivalent.txt: {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_changed_in_each_way_that_it_allows() {
        assert_eq!(changes("\t@%p1 bra \t$L;"), ["@!%p1 bra \t$L;"]);
        assert_eq!(changes("sub.s32 \t%r1, %r2, 7;"), ["add.s32 \t%r1, %r2, 7;", "sub.s32 %r1, 7, %r2;", "sub.s32 %r1, %r2, 8;"]);
        assert_eq!(
            changes("mul.rn.f32 %f1, %f2, 0f3F800000;"),
            ["add.rn.f32 %f1, %f2, 0f3F800000;", "mul.rn.f32 %f1, %f2, 0f3F800001;"]
        );
        assert!(changes("ret;").is_empty());
    }

    #[test]
    fn a_number_is_not_changed_where_only_zero_bits_change() {
        let lines =
            ["shl.b32 %r2, %r1, 30;", "add.s32 %r3, %r2, 1073741824;", "and.b32 %r4, %r3, -2147483648;", "or.b32 %r5, %r2, 1;"];
        let lines: Vec<Vec<&str>> = lines.iter().map(|line| words(line)).collect();
        let is_nothing = |at: usize, new: &str| changes_nothing(&lines, &lines[at], &words(new));
        assert!(is_nothing(1, "add.s32 %r3, %r2, 1073741825;"));
        assert!(is_nothing(2, "and.b32 %r4, %r3, -2147483647;"));
        assert!(!is_nothing(2, "and.b32 %r4, %r3, 1;"), "the highest bit");
        assert!(!is_nothing(3, "or.b32 %r5, %r2, 2;"), "the bits are set");
        assert!(!is_nothing(0, "shl.b32 %r2, %r1, 31;"), "no mask");
    }

    #[test]
    fn a_line_of_the_list_covers_any_registers() {
        let list = "a_*_b * add.f32 %, %, 2; # reason\na 3-4 ret; # reason";
        let list = equivalent(list).unwrap();
        let covers = |entry: &str, line, text: &str| {
            let mutant = Mutant { entry: entry.into(), line, text: text.into() };
            list.iter().any(|equivalent| equivalent.covers(&mutant))
        };
        assert!(covers("a_x_b", 7, "add.f32 \t%f1, %f22, 2;"));
        assert!(!covers("a_x_b", 7, "add.f32 %f1, %f22, 3;"));
        assert!(!covers("a_x", 7, "add.f32 %f1, %f22, 2;"));
        assert!(covers("a", 4, "ret;"));
        assert!(!covers("a", 5, "ret;"));
    }

    #[test]
    fn every_line_of_the_list_covers_a_change() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let entries = entries(root).unwrap();
        let mutants = entries.iter().flat_map(|entry| {
            let lines: Vec<&str> = entry.text.lines().collect();
            let texts = |&line: &u32| changes(lines[line as usize - 1]).into_iter().map(move |text| (line, text));
            let texts: Vec<(u32, String)> = entry.lines.iter().flat_map(texts).collect();
            texts.into_iter().map(|(line, text)| Mutant { entry: entry.name.clone(), line, text })
        });
        let mutants: Vec<Mutant> = mutants.collect();
        let list = equivalent(EQUIVALENT).unwrap().into_iter().zip(EQUIVALENT.lines());
        let idle = list.filter(|(equivalent, _)| !mutants.iter().any(|mutant| equivalent.covers(mutant)));
        assert_eq!(idle.map(|(_, line)| line).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_line_of_the_list_is_read() {
        assert_eq!(equivalent(EQUIVALENT).unwrap().len(), EQUIVALENT.lines().count());
        assert!(equivalent("entry 12 no reason").is_err());
    }
}
