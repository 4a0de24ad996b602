//! PPO in worker processes beside Stable-Baselines3's: speed and returns.
//!
//! `cargo xtask bench --sb3` trains both with Stable-Baselines3's default settings over the same seeds, and writes `bench/sb3.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::bench::{TRAIN, k, peers_python, spread};
use crate::presets::{last_line, mean_and_error};
use crate::process::machine;

/// Environment, its env steps, and settings that undo our preset.
const CASES: [(&str, u64, &str); 3] = [
    ("CartPole-v1", 500_000, ""),
    ("LunarLander-v3", 500_000, "--set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.ent_coef=0"),
    ("HalfCheetah-v5", 300_000, "--set normalize_obs=false --set ppo.normalize_reward=false --set ppo.learning_rate=3e-4"),
];
const SETTINGS: &str = "--envs 8 --threads 2 --set ppo.n_steps=256 --set ppo.batch_size=64 --set ppo.n_epochs=10";
/// Their vector environments and numbers of threads; the fastest trains.
const WAYS: [(&str, &str); 4] = [("dummy", "1"), ("dummy", "2"), ("subproc", "1"), ("subproc", "2")];
/// Env steps that find the fastest.
const TRIED: u64 = 10_240;
const SEEDS: [u64; 3] = [100, 101, 102];
/// Greedy episodes after training.
const EPISODES: &str = "100";

/// Trains both, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let python = peers_python(root, "target/peers", "requirements.txt")?;
    let mut text = format!(
        "# PPO beside Stable-Baselines3's\n\nWritten by `cargo xtask bench --sb3` on {}: medians of the seeds {SEEDS:?}, which alternate, with \
         minimum and maximum. Both have\nStable-Baselines3's default settings in 8 environments of Gymnasium, 2,048 env steps a rollout; ours step \
         in 2 worker processes. Theirs is the\nfastest of DummyVecEnv and SubprocVecEnv with 1 and 2 threads of PyTorch, tried for {TRIED} env steps \
         each. Returns are those of {EPISODES} greedy\nepisodes after training, with the standard error over seeds.\n\n\
         | environment | env steps | ours, env steps/s | theirs | ratio | return, ours | theirs |\n|---|---|---|---|---|---|---|\n",
        machine(root)
    );
    for (env, steps, settings) in CASES {
        let theirs = |(kind, threads): (&str, &str), steps: u64, seed: u64, episodes: &str| -> Result<Value> {
            let mut command = Command::new(&python);
            command.arg(root.join("xtask/peers/study_sb3.py")).args([env, kind, threads]);
            last_line(command.args([&steps.to_string(), &seed.to_string(), episodes]))
        };
        let mut tried = Vec::new();
        for way in WAYS {
            let rate = figure(&theirs(way, TRIED, 0, "0")?, "env_steps_per_s")?;
            println!("{env}, {way:?}: {rate:.0} env steps/s");
            tried.push((rate, way));
        }
        let (_, way) = tried.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).context("a way")?;
        let (mut rates, mut returns) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for seed in SEEDS {
            let ours = train(root, &python, (env, steps, settings), seed)?;
            let theirs = theirs(way, steps, seed, EPISODES)?;
            let theirs = [figure(&theirs, "env_steps_per_s")?, figure(&theirs, "return_mean")?];
            println!("{env}, seed {seed}: ours {ours:.0?}, theirs {theirs:.0?}");
            for (i, [rate, of]) in [ours, theirs].into_iter().enumerate() {
                rates[i].push(rate);
                returns[i].push(of);
            }
        }
        let [(ours, low, high), (theirs, their_low, their_high)] = rates.map(spread);
        let [our_return, their_return] = returns.map(|returns| mean_and_error(&returns));
        let row = format!(
            "| {env} | {steps} | {} ({} to {}) | {} ({} to {}), {} and {} threads | {:.1} | {our_return} | {their_return} |",
            k(ours),
            k(low),
            k(high),
            k(theirs),
            k(their_low),
            k(their_high),
            way.0,
            way.1,
            ours / theirs
        );
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    Ok(fs::write(root.join("bench/sb3.md"), text)?)
}

/// Trains ours; returns env steps per second, and the mean return afterwards.
fn train(root: &Path, python: &Path, (env, steps, settings): (&str, u64, &str), seed: u64) -> Result<[f64; 2]> {
    let dir = root.join("target/sb3-runs");
    let _ = fs::remove_dir_all(&dir);
    let program = || {
        let mut command = Command::new(root.join("target/release/rl"));
        command.env("RL_PYTHON", python);
        command
    };
    let mut command = program();
    command.args(TRAIN.split(' ')).arg(format!("gym:{env}")).args(SETTINGS.split(' ')).args(settings.split_whitespace());
    command.args(["--steps", &steps.to_string(), "--seed", &seed.to_string(), "--run-dir"]).arg(&dir);
    let rate = figure(&last_line(&mut command)?, "env_steps_per_s")?;
    let evaluated = last_line(program().args(["eval", "--episodes", EPISODES, "--json"]).arg(&dir))?;
    Ok([rate, figure(&evaluated, "return_mean")?])
}

fn figure(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| name.to_string())
}
