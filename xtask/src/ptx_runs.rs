//! The committed PTX on the stand-in driver: coverage, mutations, counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Instructions that no test executes: lines `entry line # reason`.
const UNEXECUTED: &str = include_str!("../ptx_unexecuted.txt");
/// Mutations that change no result: lines `entry line text # reason`.
const EQUIVALENT: &str = include_str!("../ptx_equivalent.txt");
/// Record of the counts of each kernel.
const COUNTS: &str = "rl-cuda/ptx/counts.txt";
/// Environments and steps of the test whose kernels are counted.
const STEPS: f64 = 1024.0 * 16.0;

/// A kernel of the committed PTX.
struct Entry {
    name: String,
    module: String,
    text: String,
    lines: Vec<u32>,
}

/// Returns every kernel.
fn entries(root: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut paths = fs::read_dir(root.join("rl-cuda/ptx"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "ptx")) {
        let text = fs::read_to_string(path)?;
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        for kernel in standin::parse(&text).with_context(|| module.clone())? {
            let lines = kernel.code.iter().map(|instruction| instruction.line).collect();
            entries.push(Entry { name: kernel.name, module: module.clone(), text: text.clone(), lines });
        }
    }
    Ok(entries)
}

/// Builds a test of rl-cuda, and returns its program.
fn program(root: &Path, test: &str) -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let args = ["test", "--workspace", "--no-run", "--test", test, "--message-format=json-render-diagnostics"];
    let output = Command::new(cargo).args(args).current_dir(root).stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "the test does not compile");
    let messages = String::from_utf8(output.stdout)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let built = messages.filter(|message| message["target"]["name"] == test);
    built.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back().context("cargo built no test")
}

/// Runs tests of a program on the stand-in driver.
fn run(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied()).env("RL_SKIP_CXX", "1").env("RL_REQUIRE_STANDIN", "1");
    command.env("RUST_BACKTRACE", "0").output().with_context(|| program.display().to_string())
}

/// Runs tests, and returns what the stand-in counted.
fn counted(root: &Path, program: &Path, args: &[&str]) -> Result<String> {
    let file = root.join("target/ptx-counts.txt");
    if file.exists() {
        fs::remove_file(&file)?;
    }
    let output = run(program, args, &[("RL_STANDIN_COUNTS", &file.to_string_lossy())])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    fs::read_to_string(&file).context("the tests ran no kernel")
}

/// Lists the instructions that no test executes.
///
/// Fails if one is missing in [`UNEXECUTED`], or listed there without need.
pub(crate) fn coverage(root: &Path) -> Result<()> {
    println!("\n==> ptx --coverage");
    let mut text = String::new();
    for test in ["modules", "steps", "twins"] {
        text += &counted(root, &program(root, test)?, &[])?;
    }
    let mut executed = BTreeSet::new();
    for line in text.lines() {
        if let ["line", entry, line, times] = line.split(' ').collect::<Vec<_>>()[..]
            && times != "0"
        {
            executed.insert(format!("{entry} {line}"));
        }
    }
    let known: BTreeSet<&str> = UNEXECUTED.lines().filter_map(|line| line.split_once(" # ")).map(|(place, _)| place).collect();
    let (mut all, mut missed, mut new) = (0, 0, Vec::new());
    for entry in entries(root)? {
        for line in &entry.lines {
            let place = format!("{} {line}", entry.name);
            all += 1;
            missed += usize::from(!executed.contains(&place));
            match (executed.contains(&place), known.contains(&*place)) {
                (false, false) => new.push(format!("{place} is executed by no test")),
                (true, true) => new.push(format!("{place} is executed: xtask/ptx_unexecuted.txt names it without need")),
                _ => {}
            }
        }
    }
    println!("{} of {all} instructions are executed, {:.2}%", all - missed, 100.0 * (all - missed) as f64 / all as f64);
    println!("{} of the others are listed with a reason", known.len());
    if new.is_empty() { Ok(()) } else { bail!("{}", new.join("\n")) }
}

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
        changed.push(format!("{opcode} {};", exchanged.join(", ")));
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

/// Changes N instructions, one at a time.
///
/// Fails if no test notices one that [`EQUIVALENT`] lacks.
pub(crate) fn mutate(root: &Path, args: &[String]) -> Result<()> {
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<u64>().ok());
    let n = number(0).context("ptx --mutate N [--seed S]")?;
    let seed = number(2).unwrap_or(1);
    println!("\n==> ptx --mutate {n} --seed {seed}");
    let (entries, program) = (entries(root)?, program(root, "modules")?);
    let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let places: Vec<(&Entry, u32)> =
        entries.iter().flat_map(|entry| entry.lines.iter().map(move |&line| (entry, line))).collect();
    let unexecuted: BTreeSet<&str> =
        UNEXECUTED.lines().filter_map(|line| line.split_once(" # ")).map(|(place, _)| place).collect();
    let equivalent: BTreeMap<&str, &str> = EQUIVALENT.lines().filter_map(|line| line.split_once(" # ")).collect();
    let one = |module: &str, replace: &str| -> Result<Option<String>> {
        let args = ["--exact", "one_module", "--ignored", "--nocapture"];
        let mut env = vec![("RL_MODULE", module)];
        if !replace.is_empty() {
            env.push(("RL_STANDIN_REPLACE", replace));
        }
        let output = run(&program, &args, &env)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let bits = said.lines().find_map(|line| line.split_once("bits ")).map(|(_, bits)| bits.to_owned());
        Ok(bits.filter(|_| output.status.success()))
    };
    let mut expected = BTreeMap::new();
    let (mut tried, mut noticed, mut unnoticed) = (0, 0, Vec::new());
    while tried < n {
        let (entry, line) = places[draw.below(places.len())];
        let original = entry.text.lines().nth(line as usize - 1).unwrap_or_default();
        let is_valid = |change: &String| {
            let replaced: Vec<&str> =
                entry.text.lines().enumerate().map(|(i, old)| if i + 1 == line as usize { change } else { old }).collect();
            standin::parse(&replaced.join("\n")).is_ok()
        };
        let mut valid: Vec<String> = changes(original).into_iter().filter(is_valid).collect();
        if valid.is_empty() || unexecuted.contains(&*format!("{} {line}", entry.name)) {
            continue;
        }
        let change = valid.swap_remove(draw.below(valid.len()));
        tried += 1;
        let expected = match expected.get(&entry.module) {
            Some(bits) => bits,
            None => {
                let bits = one(&entry.module, "")?.with_context(|| format!("{} fails without a change", entry.module))?;
                expected.entry(entry.module.clone()).or_insert(bits)
            }
        };
        let place = format!("{} {line} {change}", entry.name);
        if one(&entry.module, &format!("{}:{line}:{change}", entry.name))?.is_none_or(|bits| bits != *expected) {
            noticed += 1;
        } else if let Some(reason) = equivalent.get(&*place) {
            println!("{place}: {reason}");
        } else {
            println!("NOT NOTICED: {place} (in place of {})", original.trim());
            unnoticed.push(place);
        }
    }
    println!("{noticed} of {tried} changes are noticed, {} are listed as equivalent", tried - noticed - unnoticed.len() as u64);
    if unnoticed.is_empty() { Ok(()) } else { bail!("{} changes are not noticed", unnoticed.len()) }
}

/// Published figures of devices.
///
/// Name, multiprocessors, boost clock in Hz, bytes/s of the memory.
const DEVICES: [(&str, f64, f64, f64); 4] = [
    ("RTX 3080", 68.0, 1.71e9, 760e9),
    ("RTX 4090", 128.0, 2.52e9, 1008e9),
    ("A100 SXM 80 GB", 108.0, 1.41e9, 2039e9),
    ("H100 SXM", 132.0, 1.755e9, 3350e9),
];
/// Threads that a multiprocessor issues for in a cycle: 4 warps of 32.
const ISSUE: f64 = 128.0;

/// Compares the counts of each kernel with the record, or writes it.
pub(crate) fn counts(root: &Path, write: bool) -> Result<()> {
    println!("\n==> ptx --counts");
    let text = counted(root, &program(root, "modules")?, &["--exact", "sixteen_steps_of_1024_environments", "--ignored"])?;
    let counts: String = text.lines().filter(|line| line.starts_with("kernel ")).map(|line| format!("{line}\n")).collect();
    if !write {
        let recorded = fs::read_to_string(root.join(COUNTS)).context(COUNTS)?;
        ensure!(
            recorded == counts,
            "{COUNTS} says\n{recorded}but the kernels take\n{counts}run `cargo xtask ptx --counts --write`"
        );
        return Ok(());
    }
    fs::write(root.join(COUNTS), &counts)?;
    let mut model = String::from(
        "# Bounds on the speed of the kernels\n\nWritten by `cargo xtask ptx --counts --write`. **Estimates**: nothing here was \
         measured on a GPU.\n\nThe stand-in driver counts PTX instructions, and sectors of 32 bytes that warps touch, over 16 steps of \
         1024\nenvironments, one launch per step. The bound is the smaller of two: every multiprocessor issues instructions for 128\n\
         threads a cycle at the published boost clock, or every sector travels once at the published bandwidth. Latencies, caches,\n\
         divergence and the driver's translation of PTX are left out: a kernel cannot be faster, and is usually several times slower.\n\n",
    );
    let names: Vec<&str> = DEVICES.iter().map(|(name, ..)| *name).collect();
    let _ = writeln!(model, "Millions of environment steps per second at most:\n");
    let _ = writeln!(model, "| kernel | instructions per step | bytes per step | {} |", names.join(" | "));
    let _ = writeln!(model, "|---|---|---|{}", "---|".repeat(DEVICES.len()));
    for line in counts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let of = |key: &str| {
            let at = words.iter().position(|word| *word == key).and_then(|at| words.get(at + 1));
            at.and_then(|count| count.parse::<f64>().ok()).with_context(|| format!("{key}: {line}"))
        };
        if !words[1].contains("_step") {
            continue;
        }
        let (instructions, bytes) = (of("instructions")? / STEPS, 32.0 * of("sectors")? / STEPS);
        let bound = |(_, units, clock, bandwidth): &(&str, f64, f64, f64)| {
            format!("{:.0}", 1e-6 * (units * clock * ISSUE / instructions).min(bandwidth / bytes))
        };
        let bounds: Vec<String> = DEVICES.iter().map(bound).collect();
        let _ = writeln!(model, "| {} | {instructions:.0} | {bytes:.0} | {} |", words[1], bounds.join(" | "));
    }
    let _ = writeln!(model, "\n| device | multiprocessors | boost clock | memory |\n|---|---|---|---|");
    for (name, units, clock, bandwidth) in DEVICES {
        let _ = writeln!(model, "| {name} | {units} | {:.3} GHz | {:.0} GB/s |", clock * 1e-9, bandwidth * 1e-9);
    }
    fs::write(root.join("bench/gpu-model.md"), model).context("bench/gpu-model.md")
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
}
