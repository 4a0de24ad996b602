//! The committed PTX on the stand-in driver: coverage and counts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};

use crate::built::executables;

/// Instructions that no test executes: lines `entry line # reason`.
///
/// The line may be a range `first-last`.
const UNEXECUTED: &str = include_str!("../../ptx_unexecuted.txt");
/// Record of the counts of each kernel.
const COUNTS: &str = "rl-cuda/ptx/counts.txt";
/// Environments and steps of the test whose kernels are counted.
const STEPS: f64 = 1024.0 * 16.0;

/// A kernel of the committed PTX.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Text of the module.
    pub(crate) text: String,
    pub(crate) lines: Vec<u32>,
}

/// Returns every kernel of rl-cuda/ptx, a new one without being named here.
///
/// Its tests are its launches in rl-cuda/tests/modules.rs and in the unit tests called `corners`.
pub(crate) fn entries(root: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut paths = fs::read_dir(root.join("rl-cuda/ptx"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "ptx")) {
        let text = fs::read_to_string(path)?;
        for kernel in standin::parse(&text).with_context(|| path.display().to_string())? {
            let lines = kernel.code.iter().map(|instruction| instruction.line).collect();
            entries.push(Entry { name: kernel.name, text: text.clone(), lines });
        }
    }
    Ok(entries)
}

/// Builds one test target of rl-cuda, and returns its program.
pub(crate) fn program(root: &Path, target: &[&str]) -> Result<PathBuf> {
    let built = executables(root, target)?.pop();
    Ok(built.context("cargo built no test")?.program)
}

/// Runs tests of a program on the stand-in driver.
pub(crate) fn run(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Output> {
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

/// Returns the instructions that no test executes, `entry line` each.
pub(crate) fn unexecuted() -> BTreeSet<String> {
    let places = UNEXECUTED.lines().filter_map(|line| line.split_once(" # ")?.0.split_once(' '));
    let each = places.filter_map(|(entry, lines)| {
        let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
        Some((first.parse::<u32>().ok()?..=last.parse().ok()?).map(move |line| format!("{entry} {line}")))
    });
    each.flatten().collect()
}

/// Lists the instructions that no test executes.
///
/// Fails if one is missing in [`UNEXECUTED`], or listed there without need.
pub(crate) fn coverage(root: &Path) -> Result<()> {
    println!("\n==> ptx --coverage");
    let mut text = String::new();
    for target in ["--lib", "--test=modules", "--test=steps", "--test=twins"] {
        text += &counted(root, &program(root, &["--package=rl-cuda", target])?, &[])?;
    }
    let mut executed = BTreeSet::new();
    for line in text.lines() {
        if let ["line", entry, line, times] = line.split(' ').collect::<Vec<_>>()[..]
            && times != "0"
        {
            executed.insert(format!("{entry} {line}"));
        }
    }
    let known = unexecuted();
    let (mut all, mut missed, mut new) = (0, 0, Vec::new());
    for entry in entries(root)? {
        for line in &entry.lines {
            let place = format!("{} {line}", entry.name);
            all += 1;
            missed += usize::from(!executed.contains(&place));
            match (executed.contains(&place), known.contains(&place)) {
                (false, false) => new.push(format!("{place} is executed by no test")),
                (true, true) => new.push(format!("{place} is executed: xtask/ptx_unexecuted.txt names it without need")),
                _ => {}
            }
        }
    }
    println!("{} of {all} instructions are executed, {:.2}%", all - missed, 100.0 * (all - missed) as f64 / all as f64);
    println!("{} of the others are listed with a reason", missed - new.len().min(missed));
    if new.is_empty() { Ok(()) } else { bail!("{}", new.join("\n")) }
}

/// Published figures of devices.
///
/// Name, multiprocessors, boost clock in Hz, bytes/s of the memory.
const DEVICES: [(&str, f64, f64, f64); 4] = [
    ("RTX 3080", 68.0, 1.71e9, 760e9),
    ("RTX 4090", 128.0, 2.52e9, 1008e9),
    ("A100 SXM 80 GB", 108.0, 1.41e9, 2039e9),
    ("H100 SXM", 132.0, 1.980e9, 3350e9),
];
/// Threads that a multiprocessor issues for in a cycle: 4 warps of 32.
const ISSUE: f64 = 128.0;

/// Counts of an iteration.
#[derive(Default)]
struct Totals {
    launches: f64,
    instructions: f64,
    sectors: f64,
}

/// Bytes of a sector.
const SECTOR: f64 = 32.0;
/// Env steps of the iteration that is counted.
const ITERATION: f64 = 2048.0;
/// Environments of a large iteration, of as many steps each.
const ENVS: f64 = 4096.0;
/// Assumed seconds from one node of a graph to the next that depends on it.
const NODE: f64 = 1.5e-6;

/// Returns the figure after `key` in a line of counts.
fn figure(line: &str, key: &str) -> Result<f64> {
    let mut words = line.split(' ').skip_while(|word| *word != key);
    words.nth(1).and_then(|count| count.parse().ok()).with_context(|| format!("{key}: {line}"))
}

/// Writes bounds on the speed of training.
fn write_training(model: &mut String, training: &Totals) {
    let (instructions, bytes) = (training.instructions / ITERATION, SECTOR * training.sectors / ITERATION);
    let node = ENVS / 64.0 * ITERATION / (training.launches * NODE);
    let _ = writeln!(
        model,
        "\n## Training\n\nPPO on CartPole, environments on the device: 32 steps a rollout, 4 epochs of 4 minibatches, two networks of 64-64. An \
         iteration with 64\nenvironments, as counted: {} launches, {instructions:.0} instructions and {bytes:.0} bytes per env step. With \
         {ENVS:.0} environments and minibatches 64\ntimes as large, the launches are as many, and the counts per env step are taken as the \
         same. A second bound assumes {:.1} us from one node\nof a graph to the next: {:.0} M env steps/s with {ENVS:.0} environments on any \
         device. Layers read\nthe same weights again and write a row in several instructions, which caches serve; the second column, in which \
         every sector comes\nfrom memory, is therefore no bound. Millions of env steps per second:\n\n\
         | device | at most, by instructions | without caches | at most, by instructions and nodes |\n|---|---|---|---|",
        training.launches,
        1e6 * NODE,
        1e-6 * node,
    );
    for (name, units, clock, bandwidth) in DEVICES {
        let (issued, moved) = (units * clock * ISSUE / instructions, bandwidth / bytes);
        let least = issued.min(node);
        let _ = writeln!(model, "| {name} | {:.0} | {:.0} | {:.0} |", 1e-6 * issued, 1e-6 * moved, 1e-6 * least);
    }
    let _ = writeln!(
        model,
        "\nPublished, of other networks and measured: PufferLib's Breakout 20 to 22 M steps/s on an RTX 3080 Ti, craftax.cu 8.3 M steps/s."
    );
}

/// Compares the counts of each kernel with the record, or writes it.
pub(crate) fn counts(root: &Path, write: bool) -> Result<()> {
    println!("\n==> ptx --counts");
    let count = |target: &str, test: &str| {
        let text = counted(root, &program(root, &["--workspace", target])?, &["--exact", test, "--ignored"])?;
        Ok::<_, anyhow::Error>(text.lines().filter(|line| line.starts_with("kernel ")).map(str::to_owned).collect::<Vec<_>>())
    };
    let environments = count("--test=modules", "sixteen_steps_of_1024_environments")?;
    let mut training = Totals::default();
    for line in count("--test=iteration", "with_64_environments")? {
        let of = |key| figure(&line, key);
        training.launches += of("launches")?;
        training.instructions += of("instructions")?;
        training.sectors += of("sectors")?;
    }
    let Totals { launches, instructions, sectors } = training;
    let mut counts: String = environments.iter().map(|line| format!("{line}\n")).collect();
    let _ = writeln!(counts, "training launches {launches} instructions {instructions} sectors {sectors}");
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
    for line in &environments {
        let Some(name) = line.split(' ').nth(1).filter(|name| name.contains("_step")) else { continue };
        let (instructions, bytes) = (figure(line, "instructions")? / STEPS, SECTOR * figure(line, "sectors")? / STEPS);
        let bound = |(_, units, clock, bandwidth): &(&str, f64, f64, f64)| {
            format!("{:.0}", 1e-6 * (units * clock * ISSUE / instructions).min(bandwidth / bytes))
        };
        let bounds: Vec<String> = DEVICES.iter().map(bound).collect();
        let _ = writeln!(model, "| {name} | {instructions:.0} | {bytes:.0} | {} |", bounds.join(" | "));
    }
    write_training(&mut model, &training);
    let _ = writeln!(model, "\n| device | multiprocessors | boost clock | memory |\n|---|---|---|---|");
    for (name, units, clock, bandwidth) in DEVICES {
        let _ = writeln!(model, "| {name} | {units} | {:.3} GHz | {:.0} GB/s |", clock * 1e-9, bandwidth * 1e-9);
    }
    fs::write(root.join("bench/gpu-model.md"), model).context("bench/gpu-model.md")
}
