//! Every check of `cargo xtask test`, as jobs of which two run at a time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};

use crate::built::{Executable, executables};
use crate::checks::{packages, tidy};
use crate::proof::{ptx_runs, standin};
use crate::{cargo, python, root};

/// Jobs that run at once.
///
/// Tests and harnesses mostly wait for processes, and each runs several.
const AT_ONCE: usize = 2;
/// Jobs that take a minute or more, which begin first, in this order.
const LONG: [&str; 7] = [
    "rl-runtime/tests/program/main.rs",
    "rl-agents/src/lib.rs",
    "test-beside",
    "rl-runtime/tests/mpi.rs",
    "rl-agents/tests/exported.rs",
    "rl-cuda/tests/twins.rs",
    "fuzz",
];
/// Features, tests, examples and programs of every crate.
const ALL: [&str; 2] = ["--workspace", "--all-targets"];

/// Runs every check.
pub(crate) fn run() -> Result<()> {
    let root = root();
    tidy::check(&root)?;
    if has("fmt")? {
        cargo(&root, &["fmt", "--all", "--check"], &[])?;
    }
    // What downloads and compiles on one core runs beside the first compilation.
    let beside = thread::spawn(|| (this("ptx --check").and_then(Job::run), python::python_path(&self::root())));
    let features = features()?;
    if has("clippy")? {
        cargo(&root, &[&["clippy"], &ALL[..], features, &["--", "-D", "warnings"]].concat(), &[])?;
    }
    let (ptx, python) = beside.join().expect("checks return errors");
    ensure!(ptx?, "ptx --check failed");
    let python = python?.map(|path| [("PYTHONPATH", path), ("RL_PYTHON", python::interpreter())]);
    println!("\n==> cargo test --no-run");
    let mut jobs = Vec::new();
    for Executable { source, program } in executables(&root, &[&ALL[..], features].concat())? {
        let home = source.ancestors().find(|dir| dir.join("Cargo.toml").is_file()).context("a test has no package")?;
        let mut command = Command::new(program);
        command.args(["--test-threads", "4"]).current_dir(home).env("CARGO_MANIFEST_DIR", home);
        command.envs(python.clone().into_iter().flatten());
        // Otherwise hundreds of workers begin with a pool of threads that their small environments do not use.
        command.env("OPENBLAS_NUM_THREADS", "1");
        if home.ends_with("rl-agents") {
            command.env("RAYON_NUM_THREADS", "1"); // otherwise candle reads /proc/cpuinfo for each product; `rl` sets it itself
        }
        jobs.push(Job { name: source.strip_prefix(&root).unwrap_or(&source).display().to_string(), command });
    }
    jobs.push(this("test-beside")?);
    for harness in ["fuzz --minutes 0.5 --seed 1", "kill9 --kills 8", "behaviours --runs 30 --seed 1", "full-disk"] {
        jobs.push(this(&format!("{harness} --program target/debug/rl"))?);
    }
    jobs.sort_by_key(|job| LONG.iter().position(|name| job.name.starts_with(name)).unwrap_or(LONG.len()));
    let failed = run_all(jobs);
    ensure!(failed.is_empty(), "these failed: {}", failed.join(", "));
    println!("\nall checks passed");
    Ok(())
}

/// Process of a check.
struct Job {
    name: String,
    command: Command,
}

impl Job {
    /// Runs the process, and prints its output at its end; returns true if it succeeds.
    fn run(mut self) -> Result<bool> {
        println!("\n==> {} begins", self.name);
        let output = self.command.stdin(Stdio::null()).output().with_context(|| self.name.clone())?;
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        println!("\n==> {} ends: {}\n{stdout}{stderr}", self.name, output.status);
        Ok(output.status.success())
    }
}

/// Job that is a command of this program.
fn this(command: &str) -> Result<Job> {
    let mut process = Command::new(std::env::current_exe()?);
    process.args(command.split(' ')).current_dir(root());
    Ok(Job { name: command.into(), command: process })
}

/// Runs all jobs; returns the names of those that fail.
fn run_all(jobs: Vec<Job>) -> Vec<String> {
    let (left, failed) = (Mutex::new(jobs.into_iter()), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(job) = next() {
            let name = job.name.clone();
            let problem = match job.run() {
                Ok(true) => continue,
                Ok(false) => name,
                Err(error) => format!("{error:#}"),
            };
            failed.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs checks that mostly compile or count, after the tests have been compiled.
pub(crate) fn beside(root: &Path) -> Result<()> {
    standin::check(root)?;
    ptx_runs::counts(root, false)?;
    documentation_and_crates(root, features()?)
}

/// Checks documentation, crates outside the workspace, features and packages.
fn documentation_and_crates(root: &Path, features: &[&str]) -> Result<()> {
    cargo(root, &[&["test", "--workspace", "--doc"], features].concat(), &[])?;
    cargo(root, &[&["doc", "--workspace", "--no-deps"], features].concat(), &[("RUSTDOCFLAGS", "-D warnings")])?;
    let outside = root.join("xtask/outside");
    // Use the versions of the workspace's lock file.
    std::fs::copy(root.join("Cargo.lock"), outside.join("Cargo.lock"))?;
    // Dependencies compiled for the workspace serve here, too.
    let target = root.join("target");
    let env = [("CARGO_TARGET_DIR", &*target.to_string_lossy())];
    cargo(&outside, &["test", "--workspace"], &env)?;
    // Each crate alone gets no feature that another has asked for.
    for name in ["envs", "cuda", "buffer", "agents", "pipeline"] {
        cargo(&outside.join(name), &["check"], &env)?;
    }
    // Without features, the loader of policies has no standard library.
    cargo(root, &["check", "-p", "rl-policy"], &[])?;
    compiles_no(&outside.join("pipeline"), "tree", &["candle-core", "clap", "cudarc", "rl-agents", "rl-cuda"])?;
    compiles_no(&outside.join("buffer"), "tree", &["candle-core", "cudarc", "nvml-wrapper"])?;
    compiles_no(&outside.join("agents"), "tree", &["cudarc", "nvml-wrapper"])?;
    // Not strsim: a macro that candle uses brings it.
    let library = "tree -p rl-runtime --no-default-features --features train";
    compiles_no(root, library, &["clap", "console", "cudarc", "gif", "nvml-wrapper", "ratatui", "signal-hook"])?;
    packages::check(root)
}

/// Checks that a selection of `cargo tree` in `dir` has no forbidden crate.
fn compiles_no(dir: &Path, tree: &str, forbidden: &[&str]) -> Result<()> {
    println!("\n==> cargo {tree} in {}", dir.display());
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let args = format!("{tree} --edges normal --prefix none");
    let output = Command::new(cargo).args(args.split(' ')).current_dir(dir).output()?;
    let listed = String::from_utf8(output.stdout)?;
    let crates: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    if !crates.contains(&"rl-envs") {
        bail!("cargo {tree} in {} does not list rl-envs: {}", dir.display(), String::from_utf8_lossy(&output.stderr));
    }
    match crates.iter().find(|name| forbidden.contains(name)) {
        Some(name) => bail!("{} ({tree}) compiles {name}", dir.display()),
        None => Ok(()),
    }
}

/// Features that this machine can compile: `mpi` needs an MPI installation.
///
/// The crates outside of the workspace compile the program without it.
fn features() -> Result<&'static [&'static str]> {
    let has = Command::new("mpicc").arg("-v").output().is_ok_and(|output| output.status.success());
    if !has && std::env::var_os("RL_REQUIRE_MPI").is_some_and(|value| value == "1") {
        bail!("RL_REQUIRE_MPI=1, but there is no mpicc");
    }
    if !has {
        println!("\n==> no MPI installation: the feature mpi is skipped");
    }
    Ok(if has { &["--features", "mpi"] } else { &[] })
}

/// Returns true if a cargo subcommand is installed.
///
/// # Errors
/// An error if it is not, and `RL_REQUIRE_TOOLS` is 1.
fn has(subcommand: &str) -> Result<bool> {
    let installed = Command::new("cargo").args([subcommand, "--version"]).output().is_ok_and(|output| output.status.success());
    if !installed {
        ensure!(std::env::var_os("RL_REQUIRE_TOOLS").is_none_or(|value| value != "1"), "cargo {subcommand} is not installed");
        println!("\n==> cargo {subcommand} is not installed: skipped");
    }
    Ok(installed)
}
