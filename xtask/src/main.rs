//! Development tasks; `cargo xtask test` runs every check.

mod bench;
mod chaos;
mod checks;
mod dist;
mod plot;
mod process;
mod proof;
mod python;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::bench::{actors, board, grids, growth, http, lag, learning, peers, pipeline, presets, ranks, sb3, scale, study};
use crate::chaos::{behaviours, full_disk, fuzz, kill9, kills, soak, worker};
use crate::checks::{counts, packages, tidy};
use crate::proof::{candle_cuda, gpu_bundle, gpu_record, ptx, ptx_mutations, ptx_runs, standin};

const USAGE: &str = "\
usage: cargo xtask <command>

  test           run every check: tidy, format, clippy, all tests, examples, documentation, crates outside the workspace
  bench --peers [envs|minatar|workers|learners|avx2|continuous|replay|pipeline]
                 compare our speed with gymnax, EnvPool, MinAtar, Gymnasium, PyTorch, Stable-Baselines3, rejax and cpprb, which are
                 installed into target; all groups, or one
  bench --growth
                 measure step cost by number of environments and work per step; writes bench/growth.md and .svg
  bench --presets [dqn|continuous|gym]
                 train the presets over five or ten seeds, beside RL Baselines3 Zoo's agents; writes bench/presets.md,
                 presets-dqn.md and presets-continuous.md (SAC and TD3); `gym` trains those of PPO in Gymnasium's environments, too, and
                 writes presets-gym.md
  bench --learning
                 train PPO on CartPole with both learners over 5 seeds; writes bench/learning.svg
  bench --grids  train the presets of Snake over two seeds; writes bench/grids.md and its curves
  bench --minatar
                 train PPO in MinAtar's five games over two seeds; writes bench/minatar.md and its curves
  bench --lag    train PPO and A2C on CartPole with stale rollouts, ten seeds each; writes bench/lag.md and its curves
  bench --pipeline
                 measure how much waiting the pipeline hides; writes bench/pipeline.md
  bench --http [N]
                 train the workloads http-small and http-large; writes bench/http.md; with N, rollouts are N times shorter
  bench --board  train with and without the board of `rl train`, and take pictures of it; writes bench/board.md
  bench --ranks  train by two processes of a thread each (mpirun) beside two threads; writes bench/ranks.md
  bench --actors train with actors and a learner (mpirun), beside RLlib, which is installed into target; writes bench/actors.md
  bench --scale  train by 1, 2 and 4 processes (mpirun), and predict the time of up to 1,024; writes bench/scale.md
  bench --sb3    train PPO in Gymnasium's environments beside Stable-Baselines3's; writes bench/sb3.md
  bench --sb3-returns
                 train over many seeds beside Stable-Baselines3, for hours; writes bench/sb3-returns.md
  bench --study NAME
                 measure what settings, environments and threads cost or bring; writes bench/study-NAME.md. a2c: beside
                 Stable-Baselines3, with the use of the processor; envs: steps and seconds to solve CartPole; memory:
                 what policies that remember learn; recurrent: beside sb3-contrib's RecurrentPPO; inputs: several inputs
                 and Atari beside Stable-Baselines3; python: the
                 Python package beside EnvPool, gymnax, Gymnasium, cpprb and TorchRL; replay: a replay memory in a
                 file; sizes: throughput and memory by network, rollout and minibatch; snake: speed and what is learnt; threads: beyond the cores; time: return
                 over wall time beside Stable-Baselines3; vector: time of a step by number of environments, for each way to step
  ptx            compile rl-cuda/kernels to rl-cuda/ptx, and the kernels of xtask/outside/cuda
  ptx --check    check that rl-cuda/ptx is up to date, assembles, and spills no registers
  ptx --coverage list the instructions of rl-cuda/ptx that no test executes; fails on one that xtask/ptx_unexecuted.txt lacks
  ptx --mutate N [--seed S] [--entry NAME]
                 change N instructions of rl-cuda/ptx (or of one kernel), one at a time; fails if no test notices one,
                 xtask/ptx_equivalent.txt aside; `all` in place of N changes each instruction in each way
  ptx --counts [--write]
                 compare instructions and memory transactions of each kernel with rl-cuda/ptx/counts.txt, or write it and
                 bench/gpu-model.md
  standin COMMAND..
                 run a command with the stand-in driver in place of a GPU, for instance
                 `cargo xtask standin rl bench env cartpole --envs 64 --device cuda --seconds 1`
  standin --schedules
                 run the device tests on the stand-in driver under each of its schedules
  standin --waits
                 remove each wait of rl-cuda in turn: a test must notice it
  candle-cuda    build `rl` with candle's CUDA backend in target/candle-cuda, by a CUDA toolkit that is installed into target; needs
                 minutes, and no GPU
  dist           pack the program for Linux machines without Rust, with completions, manual pages and licences, into target/archive; tries
                 the archive in an empty root
  wheel          build the Python package into target/wheels; installs it into an empty virtual environment and trains there
  gpu-bundle     pack GPU tests and benchmarks into target/gpu-bundle.tar.gz, for a machine that has only a driver
  gpu-record DIR
                 write bench/gpu-NAME.md and its picture from the bundle's results in DIR
  fuzz --minutes N [--seed S] [--kind NAME] [--program FILE]
                 run rl on mutated configurations, checkpoints, traces and command lines, with workers and recordings that lie, and on
                 runs and sweeps of others; fails on a panic, a hang, an undocumented exit code, a process that is left or that a file
                 has started, and a changed file outside. --kind takes the inputs whose kind in the table at the end begins so, --replay FILE
                 runs a failed input again; the default program is the release build, the Python of gym: environments that of RL_PYTHON
  kill9 --kills N [--seed S] [--program FILE]
                 kill runs at random moments, resume them, and compare with uninterrupted runs
  kills --kills N [--seed S] [--program FILE] [--python FILE]
                 kill workers, programs and a website at random moments; runs must go on within ten seconds, without orphans
  behaviours --runs N [--seed S] [--program FILE] [--python FILE]
                 train with workers that misbehave at random, and send signals; fails on a process that is left, a hang, a wrong exit code
                 or count. --index I runs one of them again; with --python, some are environments of Gymnasium
  full-disk [--program FILE]
                 run on a disk that is full at the start, while saving, while logging, and at resume
  soak --hours N [--crawl yes] [--program FILE]
                 run six configurations (or crawlers on websites with faults) for N hours and watch memory, threads, child
                 processes and descriptors; writes bench/soak.md (or soak-crawl.md) and .svg
  tidy           check the workspace's rules: dependencies between crates, what each crate never does, unsafe code, names, prose,
                 the map of files, figures of documents against their records
  tidy --counts  print lines, public items, enums over element type or action kind, structs of a step, long files, circles of
                 imports
";

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("test") => test(),
        Some("bench") => match std::env::args().nth(2).as_deref() {
            Some("--peers") => peers::peers(&root(), std::env::args().nth(3).as_deref()),
            Some("--growth") => growth::measure(&root()),
            Some("--presets") => presets::measure(&root(), std::env::args().nth(3).as_deref()),
            Some("--lag") => lag::measure(&root()),
            Some("--ranks") => ranks::measure(&root()),
            Some("--actors") => actors::measure(&root()),
            Some("--scale") => scale::measure(&root()),
            Some("--pipeline") => pipeline::measure(&root()),
            Some("--http") => http::measure(&root(), std::env::args().nth(3).as_deref()),
            Some("--board") => board::measure(&root()),
            Some("--sb3") => sb3::measure(&root()),
            Some("--sb3-returns") => sb3::measure_returns(&root()),
            Some("--learning") => learning::compare(&root()),
            Some("--grids") => grids::snake(&root()),
            Some("--minatar") => grids::minatar(&root()),
            Some("--study") => study::measure(&root(), std::env::args().nth(3).as_deref()),
            _ => return usage(),
        },
        Some("ptx") => match std::env::args().nth(2).as_deref() {
            None => ptx::write(&root()),
            Some("--check") => ptx::check(&root()),
            Some("--coverage") => ptx_runs::coverage(&root()),
            Some("--mutate") => ptx_mutations::mutate(&root(), &args()[1..]),
            Some("--counts") => ptx_runs::counts(&root(), args().get(1).is_some_and(|arg| arg == "--write")),
            _ => return usage(),
        },
        Some("standin") => standin::run(&root(), &args()),
        // What `test` runs beside the tests.
        Some("test-beside") => beside(&root()),
        Some("candle-cuda") => candle_cuda::build(&root()),
        Some("dist") => dist::pack(&root()),
        Some("wheel") => wheel::pack(&root()),
        Some("gpu-bundle") => gpu_bundle::pack(&root()),
        Some("gpu-record") => match std::env::args().nth(2) {
            Some(dir) => gpu_record::write(&root(), Path::new(&dir)),
            None => return usage(),
        },
        Some("fuzz") => fuzz::run(&root(), &args()),
        Some("kill9") => kill9::run(&root(), &args()),
        Some("kills") => kills::run(&root(), &args()),
        Some("behaviours") => behaviours::run(&root(), &args()),
        // What `fuzz` and `behaviours` start as environments.
        Some("worker") => worker::serve(Path::new(&args().concat())),
        Some("full-disk") => full_disk::run(&root(), &args()),
        Some("soak") => soak::measure(&root(), &args()),
        Some("tidy") => match std::env::args().nth(2).as_deref() {
            None => tidy::check(&root()),
            Some("--counts") => counts::print(&root()),
            _ => return usage(),
        },
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

/// Returns the arguments after the command.
fn args() -> Vec<String> {
    std::env::args().skip(2).collect()
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

/// Returns true if a cargo subcommand is installed.
fn has(subcommand: &str) -> bool {
    let installed = Command::new("cargo").args([subcommand, "--version"]).output().is_ok_and(|output| output.status.success());
    if !installed {
        println!("\n==> cargo {subcommand} is not installed: skipped");
    }
    installed
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

/// Runs commands of this program; prints the output of each at its end.
fn captured(commands: &[&str]) -> Result<()> {
    for command in commands {
        let output = Command::new(std::env::current_exe()?).args(command.split(' ')).current_dir(root()).output()?;
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        println!("\n==> {command}\n{stdout}{stderr}");
        if !output.status.success() {
            bail!("{command} failed");
        }
    }
    Ok(())
}

/// Runs checks that mostly compile or count, after the tests have been compiled.
fn beside(root: &Path) -> Result<()> {
    standin::check(root)?;
    ptx_runs::counts(root, false)?;
    documentation_and_crates(root, features()?)
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

/// Runner of the tests, which tells those of rl-agents how many threads candle has.
///
/// Otherwise candle reads /proc/cpuinfo for each product. The program sets the variable itself.
const RUNNER: &str = r#"target.'cfg(unix)'.runner = ["sh", "-c", 'case "$PWD" in */rl-agents) export RAYON_NUM_THREADS=1;; esac; exec "$@"', "sh"]"#;

fn test() -> Result<()> {
    let root = root();
    tidy::check(&root)?;
    if has("fmt") {
        cargo(&root, &["fmt", "--all", "--check"], &[])?;
    }
    // What downloads and compiles on one core runs beside the first compilation.
    let ptx = std::thread::spawn(|| captured(&["ptx --check"]));
    let python = std::thread::spawn(move || python::python_path(&self::root()));
    let features = features()?;
    let all = ["--workspace", "--all-targets"];
    if has("clippy") {
        cargo(&root, &[&["clippy"], &all[..], features, &["--", "-D", "warnings"]].concat(), &[])?;
    }
    ptx.join().expect("checks return errors")?;
    let python = python.join().expect("installations return errors")?.map(|path| path.to_string_lossy().into_owned());
    let gym: Vec<_> = python.iter().map(|path| ("PYTHONPATH", &**path)).collect();
    cargo(&root, &[&["test", "--no-run"], &all[..], features].concat(), &gym)?;
    // Tests and harnesses mostly wait for processes, the rest mostly compiles.
    let beside = std::thread::spawn(|| {
        captured(&["test-beside"])?;
        let fuzz = std::thread::spawn(|| captured(&["fuzz --minutes 0.5 --seed 1 --program target/debug/rl"]));
        let program = "--program target/debug/rl";
        let others = captured(&[
            &format!("kill9 --kills 12 {program}"),
            &format!("behaviours --runs 30 --seed 1 {program}"),
            &format!("full-disk {program}"),
        ]);
        fuzz.join().expect("harnesses return errors").and(others)
    });
    let tests = cargo(&root, &[&["test", "--config", RUNNER], &all[..], features, &["--", "--test-threads", "4"]].concat(), &gym);
    // Not before they have ended: they would go on alone.
    let beside = beside.join().expect("checks return errors");
    tests.and(beside)?;
    println!(
        "
all checks passed"
    );
    Ok(())
}
