//! One training by two processes of one thread, beside one process of two threads.
//!
//! `cargo xtask bench --ranks` writes `bench/ranks.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::peers::{TRAIN, k_range, spread};
use crate::bench::presets::last_line;
use crate::process::machine;

/// Name, and arguments of a training of some seconds.
const CASES: [(&str, &str); 5] = [
    ("CartPole, PPO, networks 64-64, 256 environments, minibatches of 2,048", "cartpole --envs 256 --steps 4000000"),
    ("The same, networks 256-256", "cartpole --envs 256 --steps 500000 --set hidden=[256,256]"),
    ("The same, networks 1024-1024-512-256", "cartpole --envs 256 --steps 65536 --set hidden=[1024,1024,512,256]"),
    (
        "Acrobot, A2C, networks 256-256, 256 environments, whole rollouts",
        "acrobot --algo a2c --envs 256 --steps 1000000 --set hidden=[256,256] --set a2c.n_steps=16 --set a2c.batch_size=0",
    ),
    ("Snake, PPO, convolutions, 256 environments, minibatches of 2,048", "snake --envs 256 --steps 131072"),
];
const PPO: &str = "--set ppo.n_steps=32 --set ppo.batch_size=2048 --set ppo.n_epochs=4";
/// Alternating runs of each.
const ROUNDS: usize = 5;

/// Builds the program with MPI.
pub(crate) fn build(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl", "--features", "mpi"], &[])
}

/// Trains as several processes; returns env steps per second.
///
/// Each of `n_ranks` processes has `threads` threads.
/// `python` is that of Gymnasium's environments.
pub(crate) fn rate(root: &Path, n_ranks: usize, threads: usize, args: &str, python: &Path) -> Result<f64> {
    let dir = root.join("target/ranks-runs");
    let rate = train(root, n_ranks, threads, args, python, &dir)?;
    let _ = fs::remove_dir_all(&dir);
    Ok(rate)
}

/// Trains as [`rate`] does, and leaves the run in `dir`.
pub(crate) fn train(root: &Path, n_ranks: usize, threads: usize, args: &str, python: &Path, dir: &Path) -> Result<f64> {
    let _ = fs::remove_dir_all(dir);
    let rl = root.join("target/release/rl");
    let mut command = if n_ranks == 1 { Command::new(&rl) } else { Command::new("mpirun") };
    if n_ranks > 1 {
        command.args(["--quiet", "--oversubscribe", "--bind-to", "none", "-n", &n_ranks.to_string()]).arg(rl);
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command.current_dir(root).env("RL_PYTHON", python).args(TRAIN.split(' ')).args(args.split_whitespace());
    command.args(["--threads", &threads.to_string(), "--run-dir"]).arg(dir);
    last_line(&mut command)?["env_steps_per_s"].as_f64().context("env_steps_per_s")
}

/// Measures, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    build(root)?;
    let mut text = format!(
        "# Two processes beside two threads\n\nWritten by `cargo xtask bench --ranks` on {}: env steps per second of `mpirun -n 2 rl train` with a \
         thread each, and of\n`rl train` with two threads; medians of {ROUNDS} alternating runs, with minimum and maximum. Both leave the same \
         files. docs/mpi.md counts the\nbytes that the processes exchange.\n\n\
         | training | two threads | two processes | ratio |\n|---|---|---|---|\n",
        machine(root)
    );
    for (name, args) in CASES {
        let mut rates = [Vec::new(), Vec::new()];
        let args = if args.contains("a2c") { args.into() } else { format!("{args} {PPO}") };
        for _ in 0..ROUNDS {
            for (n_ranks, rates) in [1, 2].into_iter().zip(&mut rates) {
                rates.push(rate(root, n_ranks, 2 / n_ranks, &args, Path::new("python3"))?);
            }
        }
        let ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(two, one)| two / one).collect();
        let (ratio, low, high) = spread(ratios);
        let [one, two] = rates.map(|rates| k_range(spread(rates)));
        let row = format!("| {name} | {one} | {two} | {ratio:.2} ({low:.2} to {high:.2}) |");
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    Ok(fs::write(root.join("bench/ranks.md"), text)?)
}
