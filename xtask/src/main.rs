//! Development tasks; `cargo xtask test` runs every check.

mod bench;
mod built;
mod chaos;
mod checks;
mod dist;
mod plot;
mod process;
mod proof;
mod python;
mod suite;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};

use crate::bench::{actors, board, grids, growth, http, lag, learning, peers, pipeline, presets, ranks, sb3, scale, study};
use crate::chaos::{behaviours, full_disk, fuzz, kill9, kills, soak, worker};
use crate::checks::{counts, tidy};
use crate::process::RlProgram;
use crate::proof::{candle_cuda, gpu_bundle, gpu_record, ptx, ptx_mutations, ptx_runs, standin};

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

/// Commands; `cargo xtask COMMAND --help` tells more.
#[derive(Subcommand)]
enum Verb {
    /// Run every check
    ///
    /// Tidy, format, clippy, all tests, examples, documentation, crates outside the workspace.
    Test,
    /// Run what `test` runs beside the tests
    #[command(hide = true)]
    TestBeside,
    /// Measure, and write a record below bench
    Bench(Bench),
    /// Compile rl-cuda/kernels to rl-cuda/ptx, or check the PTX
    ///
    /// Compiles the kernels of xtask/outside/cuda, too.
    Ptx(Ptx),
    /// Run a command with the stand-in driver in place of a GPU
    Standin(standin::StandinArgs),
    /// Build `rl` with candle's CUDA backend in target/candle-cuda
    ///
    /// A CUDA toolkit is installed into target. Needs minutes, and no GPU.
    CandleCuda,
    /// Pack the program for Linux machines without Rust into target/archive
    ///
    /// With completions, manual pages and licences; tries the archive in an empty root.
    Dist,
    /// Build the Python package into target/wheels
    ///
    /// Installs it into an empty virtual environment, and trains there.
    Wheel,
    /// Pack GPU tests and benchmarks into target/gpu-bundle.tar.gz
    ///
    /// For a machine that has only a driver.
    GpuBundle,
    /// Write bench/gpu-NAME.md and its picture from the results of the bundle
    GpuRecord {
        /// Directory of the results
        dir: PathBuf,
    },
    /// Run `rl` on mutated inputs
    ///
    /// Configurations, checkpoints, traces and command lines, workers and recordings that lie, runs and sweeps of others.
    /// Fails on a panic, a hang, an undocumented exit code, a process that is left or that a file has started, and a changed
    /// file outside. The Python of gym: environments is that of RL_PYTHON.
    Fuzz(fuzz::FuzzArgs),
    /// Kill runs at random moments, resume them, and compare with uninterrupted runs
    Kill9(kill9::Kill9Args),
    /// Kill workers, programs and a website at random moments
    ///
    /// Runs must go on within ten seconds, without orphans.
    Kills(kills::KillsArgs),
    /// Train with workers that misbehave at random, and send signals
    ///
    /// Fails on a process that is left, a hang, a wrong exit code or count.
    Behaviours(behaviours::BehavioursArgs),
    /// Be the environment that `fuzz` and `behaviours` start
    #[command(hide = true)]
    Worker { script: PathBuf },
    /// Run on a disk that is full
    ///
    /// At the start, while saving, while logging, and at resume.
    FullDisk(RlProgram),
    /// Run six configurations for hours; writes bench/soak.md and its picture
    ///
    /// Watches memory, threads, child processes and descriptors.
    Soak(soak::SoakArgs),
    /// Check the workspace's rules
    ///
    /// Dependencies between crates, what each crate never does, unsafe code, names, prose, the map of files, figures of
    /// documents against their records.
    Tidy {
        /// Print counts of the code
        ///
        /// Lines, public items, enums over element type or action kind, structs of a step, long files, circles of imports.
        #[arg(long)]
        counts: bool,
    },
}

/// One measurement.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Bench {
    /// Compare speed with others [default: all groups]
    ///
    /// Groups are envs, minatar, minigrid, workers, pictures, learners, avx2, continuous, replay and pipeline. The others are
    /// installed into target.
    #[arg(long, value_name = "GROUP", num_args = 0..=1)]
    peers: Option<Option<String>>,
    /// Cost of a step by number of environments and work per step
    #[arg(long)]
    growth: bool,
    /// Train presets over five or ten seeds [default: all but gym]
    ///
    /// Beside RL Baselines3 Zoo's agents. Groups are dqn, continuous (SAC and TD3) and gym (in Gymnasium's environments).
    #[arg(long, value_name = "GROUP", num_args = 0..=1)]
    presets: Option<Option<String>>,
    /// Train PPO on CartPole with both learners over five seeds
    #[arg(long)]
    learning: bool,
    /// Train the presets of Snake over two seeds
    #[arg(long)]
    grids: bool,
    /// Train PPO in MinAtar's five games over two seeds
    #[arg(long)]
    minatar: bool,
    /// Train PPO in MiniGrid's levels over two seeds
    #[arg(long)]
    minigrid: bool,
    /// Train PPO and A2C on CartPole with stale rollouts, ten seeds each
    #[arg(long)]
    lag: bool,
    /// Waiting that the pipeline hides
    #[arg(long)]
    pipeline: bool,
    /// Train http-small and http-large [default: 1]
    ///
    /// Rollouts are N times shorter.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..=64))]
    http: Option<u64>,
    /// Train with and without the board of `rl train`, and take pictures of it
    #[arg(long)]
    board: bool,
    /// Train by two processes of a thread each (mpirun) beside two threads
    #[arg(long)]
    ranks: bool,
    /// Train with actors (mpirun): PPO beside RLlib, DQN beside one process
    #[arg(long, value_name = "ALGO", num_args = 0..=1, default_missing_value = "ppo")]
    actors: Option<actors::Algorithm>,
    /// Train by 1, 2 and 4 processes (mpirun), and predict the time of up to 1,024
    #[arg(long)]
    scale: bool,
    /// Train PPO in Gymnasium's environments beside Stable-Baselines3's
    #[arg(long)]
    sb3: bool,
    /// Train over many seeds beside Stable-Baselines3, for hours [default: ppo]
    #[arg(long, value_name = "GROUP", num_args = 0..=1, default_missing_value = "ppo")]
    sb3_returns: Option<sb3::ReturnsOf>,
    /// Cost or gain of settings, environments or threads
    #[arg(long, value_name = "NAME", value_parser = study::names())]
    study: Option<String>,
}

impl Bench {
    fn run(&self, root: &Path) -> Result<()> {
        match self {
            Self { growth: true, .. } => growth::measure(root),
            Self { learning: true, .. } => learning::compare(root),
            Self { grids: true, .. } => grids::snake(root),
            Self { minatar: true, .. } => grids::minatar(root),
            Self { minigrid: true, .. } => grids::minigrid(root),
            Self { lag: true, .. } => lag::measure(root),
            Self { pipeline: true, .. } => pipeline::measure(root),
            Self { board: true, .. } => board::measure(root),
            Self { ranks: true, .. } => ranks::measure(root),
            Self { actors: Some(algo), .. } => actors::measure(root, *algo),
            Self { scale: true, .. } => scale::measure(root),
            Self { sb3: true, .. } => sb3::measure(root),
            Self { sb3_returns: Some(group), .. } => sb3::measure_returns(root, *group),
            Self { peers: Some(group), .. } => peers::peers(root, group.as_deref()),
            Self { presets: Some(group), .. } => presets::measure(root, group.as_deref()),
            Self { http: Some(n), .. } => http::measure(root, *n),
            Self { study: Some(name), .. } => study::measure(root, name),
            _ => bail!("no measurement"),
        }
    }
}

/// Without an option, compiles.
#[derive(clap::Args)]
struct Ptx {
    /// Check that rl-cuda/ptx is up to date, assembles, and spills no registers
    #[arg(long, group = "way")]
    check: bool,
    /// List the instructions that no test executes
    ///
    /// Fails on one that xtask/ptx_unexecuted.txt lacks.
    #[arg(long, group = "way")]
    coverage: bool,
    /// Compare each kernel with rl-cuda/ptx/counts.txt
    ///
    /// By instructions and memory transactions.
    #[arg(long, group = "way")]
    counts: bool,
    /// Write rl-cuda/ptx/counts.txt and bench/gpu-model.md
    #[arg(long, requires = "counts")]
    write: bool,
    /// Change N instructions, one at a time, or each in each way (all)
    ///
    /// Fails if no test notices one, xtask/ptx_equivalent.txt aside.
    #[arg(long, value_name = "N", group = "way")]
    mutate: Option<String>,
    #[arg(long, requires = "mutate", default_value_t = 1)]
    seed: u64,
    /// Change this kernel alone
    #[arg(long, value_name = "NAME", requires = "mutate")]
    entry: Option<String>,
}

impl Ptx {
    fn run(&self, root: &Path) -> Result<()> {
        match self {
            Self { check: true, .. } => ptx::check(root),
            Self { coverage: true, .. } => ptx_runs::coverage(root),
            Self { counts: true, write, .. } => ptx_runs::counts(root, *write),
            Self { mutate: Some(n), .. } => ptx_mutations::mutate(root, n, self.seed, self.entry.as_deref()),
            _ => ptx::write(root),
        }
    }
}

fn main() -> ExitCode {
    let root = &root();
    let result = match Cli::parse().command {
        Verb::Test => suite::run(),
        Verb::TestBeside => suite::beside(root),
        Verb::Bench(bench) => bench.run(root),
        Verb::Ptx(ptx) => ptx.run(root),
        Verb::Standin(args) => standin::run(root, &args),
        Verb::CandleCuda => candle_cuda::build(root),
        Verb::Dist => dist::pack(root),
        Verb::Wheel => wheel::pack(root),
        Verb::GpuBundle => gpu_bundle::pack(root),
        Verb::GpuRecord { dir } => gpu_record::write(root, &dir),
        Verb::Fuzz(args) => fuzz::run(root, &args),
        Verb::Kill9(args) => kill9::run(root, &args),
        Verb::Kills(args) => kills::run(root, &args),
        Verb::Behaviours(args) => behaviours::run(root, &args),
        Verb::Worker { script } => worker::serve(&script),
        Verb::FullDisk(program) => full_disk::run(root, &program),
        Verb::Soak(args) => soak::measure(root, &args),
        Verb::Tidy { counts: false } => tidy::check(root),
        Verb::Tidy { counts: true } => counts::print(root),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Prints and runs a cargo command in `dir`.
fn cargo(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    println!("\n==> cargo {}", args.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    // What is built is looked for below `target`.
    command.args(args).env_remove("CARGO_TARGET_DIR").envs(env.iter().copied()).current_dir(dir);
    let status = command.status().context("cargo")?;
    if status.success() { Ok(()) } else { bail!("cargo {} failed", args.join(" ")) }
}
