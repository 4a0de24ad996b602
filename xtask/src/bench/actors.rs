//! Actors and a learner: environments that wait, and RLlib beside us.
//!
//! `cargo xtask bench --actors` writes `bench/actors.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, peers_python, run, spread};
use crate::bench::ranks;
use crate::process::machine;

/// Actors, environments of each, and milliseconds that a step of these waits.
const N_ACTORS: usize = 2;
const N_ENVS: usize = 32;
const LATENCY_MS: f64 = 50.0;
const WAITING: &str = "slow_cartpole --steps 81920 --set ppo.n_steps=64";
const ACTORS: &str = "--set mpi=actors --set pipeline=overlapped --set max_lag=3";
const PPO: &str = "--set ppo.batch_size=256 --set ppo.n_epochs=4";
/// CartPole of Gymnasium; a rollout of all environments has 2,048 env steps.
const GYM: &str = "gym:CartPole-v1 --steps 400000 --set workers=1 --set ppo.n_steps=32";
/// Name, our ranks and arguments, RLlib's processes that collect and that learn.
const PEERS: [(&str, usize, &str, &str, &str); 2] =
    [("two processes, which all learn", 2, "--envs 64", "", "2 2"), ("two actors and a learner", 3, "--envs 32", ACTORS, "2 0")];
/// Arguments of RLlib: environments, steps, minibatch, epochs.
const RLLIB: &str = "64 32 256 4";
/// Iterations of RLlib that are measured.
const ITERATIONS: &str = "20";
/// Alternating runs of each.
const ROUNDS: usize = 3;

/// Measures, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    ranks::build(root)?;
    let python = peers_python(root, "target/peers", "requirements.txt")?;
    let rllib = peers_python(root, "target/peers-rllib", "requirements-rllib.txt")?;

    let ideal = (N_ACTORS * N_ENVS) as f64 / (1e-3 * LATENCY_MS);
    let args = format!("{WAITING} --set env.latency_ms={LATENCY_MS} --envs {N_ENVS} {ACTORS} {PPO}");
    let rates = (0..ROUNDS).map(|_| ranks::rate(root, N_ACTORS + 1, 1, &args, &python)).collect::<Result<Vec<_>>>()?;
    let waiting = spread(rates);
    let mut text = format!(
        "# Actors and a learner\n\nWritten by `cargo xtask bench --actors` on {}; medians of {ROUNDS} runs, with minimum and maximum.\n\n\
         PPO in CartPoles that wait {LATENCY_MS} ms per step, {N_ENVS} in each of {N_ACTORS} actors (`mpi = actors`), a learner in a third \
         process:\n{} env steps/s, {:.1}% of {ideal}, which is the number of environments divided by the wait.\n\n\
         CartPole-v1 of Gymnasium, 64 environments, PPO with networks 64-64, minibatches of 256, 4 epochs; alternating runs:\n\n\
         | processes | ours, env steps/s | RLlib | ratio |\n|---|---|---|---|\n",
        machine(root),
        k_range(waiting),
        100.0 * waiting.0 / ideal,
    );
    for (name, n_ranks, envs, mpi, processes) in PEERS {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            rates[0].push(ranks::rate(root, n_ranks, 1, &format!("{GYM} {envs} {mpi} {PPO}"), &python)?);
            let mut peer = Command::new(&rllib);
            peer.arg(root.join("xtask/peers/train_rllib.py")).args(RLLIB.split(' ')).args(processes.split(' ')).arg(ITERATIONS);
            rates[1].push(run(&mut peer)?.lines().last().unwrap_or_default().parse().context("RLlib's rate")?);
        }
        let [ours, theirs] = rates.map(spread);
        let _ = writeln!(text, "| {name} | {} | {} | {:.1} |", k_range(ours), k_range(theirs), ours.0 / theirs.0);
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/actors.md"), text)?)
}
