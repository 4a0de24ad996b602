//! The workshop: `cargo xtask test` runs every check there is.

mod bench;
mod full_disk;
mod fuzz;
mod gpu_bundle;
mod gpu_record;
mod grids;
mod growth;
mod kill9;
mod lag;
mod learning;
mod nvrtc;
mod pipeline;
mod plot;
mod presets;
mod process;
mod ptx;
mod soak;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

const USAGE: &str = "\
usage: cargo xtask <command>

  test   every check: tidy, format, clippy, unit, integration and doc tests, examples, documentation, crates from outside
  bench --peers [envs|learners|replay|pipeline]   our speed beside gymnax's, EnvPool's, PyTorch's, Stable-Baselines3's, rejax's and cpprb's, which
                 are installed into target; all, or one group
  bench --growth   how the cost of a step grows with the number of environments and with its work: bench/growth.md and .svg
  bench --presets [dqn]   what the presets learn over five or ten seeds, beside RL Baselines3 Zoo's agents: bench/presets.md and presets-dqn.md
  bench --learning   PPO on CartPole with the tile kernel and with candle's operations over 5 seeds, drawn to bench/learning.svg
  bench --grids   what the presets of Snake and Breakout learn over two seeds: bench/grids.md with its curves
  bench --lag   PPO and A2C on CartPole with rollouts that lag, ten seeds each: bench/lag.md and two curves
  bench --pipeline   how well the pipeline hides waiting: bench/pipeline.md
  ptx    compiles the kernels in rl-cuda/kernels to rl-cuda/ptx
  ptx --check   whether that is what lies there, whether it can be assembled, and whether registers are spilled
  gpu-bundle   packs what wants a GPU into target/gpu-bundle.tar.gz, for a machine with nothing but a driver
  gpu-record DIR   makes bench/gpu-NAME.md and its picture of what the bundle measured
  fuzz --minutes N [--seed S]   mutated configurations, checkpoints, traces and command lines; a panic, a hang or an exit code that is
                 not documented fails; --replay FILE runs one again; --program FILE in place of the release build
  kill9 --kills N [--seed S]   runs killed at random moments, resumed, and compared with uninterrupted ones
  full-disk   runs on a disk that is full at the start, while saving, while logging and at resume
  soak --hours N   six configurations side by side for N hours, memory, threads and descriptors watched: bench/soak.md and .svg
  tidy   who may use whom, where unsafe code may stand, whether the map is complete
";

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("test") => test(),
        Some("bench") => match std::env::args().nth(2).as_deref() {
            Some("--peers") => bench::peers(&root(), std::env::args().nth(3).as_deref()),
            Some("--growth") => growth::measure(&root()),
            Some("--presets") => presets::measure(&root(), std::env::args().nth(3).as_deref()),
            Some("--lag") => lag::measure(&root()),
            Some("--pipeline") => pipeline::measure(&root()),
            Some("--learning") => learning::compare(&root()),
            Some("--grids") => grids::measure(&root()),
            _ => return usage(),
        },
        Some("ptx") => match std::env::args().nth(2).as_deref() {
            None => ptx::write(&root()),
            Some("--check") => ptx::check(&root()),
            _ => return usage(),
        },
        Some("gpu-bundle") => gpu_bundle::pack(&root()),
        Some("gpu-record") => match std::env::args().nth(2) {
            Some(dir) => gpu_record::write(&root(), Path::new(&dir)),
            None => return usage(),
        },
        Some("fuzz") => fuzz::run(&root(), &args()),
        Some("kill9") => kill9::run(&root(), &args()),
        Some("full-disk") => full_disk::run(&root(), &args()),
        Some("soak") => soak::measure(&root(), &args()),
        Some("tidy") => tidy::check(&root()),
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}

/// The arguments after the command.
fn args() -> Vec<String> {
    std::env::args().skip(2).collect()
}

/// The workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Runs cargo in `dir`, saying what is run.
fn cargo(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    println!("\n==> cargo {}", args.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo).args(args).envs(env.iter().copied()).current_dir(dir).status().context("cargo")?;
    if status.success() { Ok(()) } else { bail!("cargo {} failed", args.join(" ")) }
}

/// Whether a cargo subcommand is installed.
fn has(subcommand: &str) -> bool {
    let installed = Command::new("cargo").args([subcommand, "--version"]).output().is_ok_and(|output| output.status.success());
    if !installed {
        println!("\n==> cargo {subcommand} is not installed: skipped");
    }
    installed
}

fn test() -> Result<()> {
    let root = root();
    tidy::check(&root)?;
    ptx::check(&root)?;
    if has("fmt") {
        cargo(&root, &["fmt", "--all", "--check"], &[])?;
    }
    if has("clippy") {
        cargo(&root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    }
    cargo(&root, &["test", "--workspace", "--all-targets"], &[])?;
    cargo(&root, &["test", "--workspace", "--doc"], &[])?;
    cargo(&root, &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    for name in ["envs", "buffer", "pipeline"] {
        let outside = root.join("xtask/outside").join(name);
        // The same versions as the workspace's, and its compiled dependencies.
        std::fs::copy(root.join("Cargo.lock"), outside.join("Cargo.lock"))?;
        let target = root.join("target/outside");
        cargo(&outside, &["test"], &[("CARGO_TARGET_DIR", &target.to_string_lossy())])?;
    }
    // The program that the tests have built.
    for (harness, args) in [
        (fuzz::run as fn(&Path, &[String]) -> Result<()>, "--minutes 1 --seed 1 --program target/debug/rl"),
        (kill9::run, "--kills 12 --program target/debug/rl"),
        (full_disk::run, "--program target/debug/rl"),
    ] {
        println!("\n==> {args}");
        harness(&root, &args.split(' ').map(String::from).collect::<Vec<_>>())?;
    }
    println!("\nall checks passed");
    Ok(())
}
