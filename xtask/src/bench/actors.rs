//! Actors and a learner, beside RLlib and beside one process.
//!
//! `cargo xtask bench --actors ppo` writes `bench/actors.md`, and `--actors dqn` writes `bench/actors-dqn.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, peers_python, run, spread};
use crate::bench::presets::{last_line, mean_and_error, with_error};
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

/// Env steps of DQN, seeds, and greedy episodes after each training.
const STEPS: u64 = 32_000;
const SEEDS: u64 = 5;
const EPISODES: &str = "50";
/// Name, ranks and arguments of trainings by DQN.
const WAYS: [(&str, usize, &str); 2] =
    [("one process", 1, "--set pipeline=overlapped --set max_lag=1"), ("two actors and a learner", 3, ACTORS)];

/// An algorithm that learns from actors.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Algorithm {
    /// PPO beside RLlib's.
    Ppo,
    /// DQN beside one process.
    Dqn,
}

/// Measures, and writes the record.
pub(crate) fn measure(root: &Path, algo: Algorithm) -> Result<()> {
    ranks::build(root)?;
    match algo {
        Algorithm::Ppo => beside_rllib(root),
        Algorithm::Dqn => beside_one_process(root),
    }
}

/// Measures DQN by both ways, alternately, and writes the record.
fn beside_one_process(root: &Path) -> Result<()> {
    let mut text = format!(
        "# DQN with two actors beside one process\n\nWritten by `cargo xtask bench --actors dqn` on {}. DQN with the settings of CartPole's \
         preset, {STEPS} env steps in CartPoles\nthat wait {LATENCY_MS} ms per step: {N_ENVS} in the process, and {N_ENVS} in each actor; seeds 0 to {}, \
         alternating runs. Medians with minimum and maximum;\n{EPISODES} greedy episodes after training, mean and standard error over seeds.\n\n\
         | processes | env steps/s | share of the environments' limit | seconds of a training | return |\n|---|---|---|---|---|\n",
        machine(root),
        SEEDS - 1,
    );
    // The program runs in the root.
    let args = format!(
        "slow_cartpole --algo dqn --config rl-runtime/presets/cartpole-dqn.toml --envs {N_ENVS} --steps {STEPS} \
         --set env.latency_ms={LATENCY_MS}"
    );
    let dir = root.join("target/ranks-runs");
    let mut found = WAYS.map(|_| (Vec::new(), Vec::new()));
    for seed in 0..SEEDS {
        for ((name, n_ranks, way), (rates, returns)) in WAYS.into_iter().zip(&mut found) {
            let rate = ranks::train(root, n_ranks, 1, &format!("{args} --seed {seed} {way}"), Path::new("python3"), &dir)?;
            let evaluated = last_line(
                Command::new(root.join("target/release/rl"))
                    .args(["eval", "--episodes", EPISODES, "--seed", &seed.to_string(), "--json"])
                    .arg(&dir),
            )?;
            let mean = evaluated["return_mean"].as_f64().context("return_mean")?;
            println!("{name}, seed {seed}: {rate:.0} env steps/s, return {mean:.1}");
            rates.push(rate);
            returns.push(mean);
        }
    }
    let _ = fs::remove_dir_all(&dir);
    for ((name, n_ranks, _), (rates, returns)) in WAYS.into_iter().zip(found) {
        let most = ((n_ranks - 1).max(1) * N_ENVS) as f64 / (1e-3 * LATENCY_MS);
        let (rate, low, high) = spread(rates);
        let _ = writeln!(
            text,
            "| {name} | {rate:.0} ({low:.0} to {high:.0}) | {:.1}% | {:.0} | {} |",
            100.0 * rate / most,
            STEPS as f64 / rate,
            with_error(mean_and_error(&returns))
        );
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/actors-dqn.md"), text)?)
}

/// Measures PPO in environments that wait, and beside RLlib's; writes the record.
fn beside_rllib(root: &Path) -> Result<()> {
    let python = peers_python(root, "target/peers", "requirements.txt")?;
    let rllib = peers_python(root, "target/peers-rllib", "requirements-rllib.txt")?;

    let ideal = (N_ACTORS * N_ENVS) as f64 / (1e-3 * LATENCY_MS);
    let args = format!("{WAITING} --set env.latency_ms={LATENCY_MS} --envs {N_ENVS} {ACTORS} {PPO}");
    let rates = (0..ROUNDS).map(|_| ranks::rate(root, N_ACTORS + 1, 1, &args, &python)).collect::<Result<Vec<_>>>()?;
    let waiting = spread(rates);
    let mut text = format!(
        "# Actors and a learner\n\nWritten by `cargo xtask bench --actors ppo` on {}; medians of {ROUNDS} runs, with minimum and maximum.\n\n\
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
