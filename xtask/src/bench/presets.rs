//! Returns of the presets, beside those of RL Baselines3 Zoo's published agents.
//!
//! `cargo xtask bench --presets` trains each preset over seeds that it was not tuned on, and writes `bench/presets.md`,
//! `bench/presets-dqn.md` and `bench/presets-continuous.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

const EPISODES: &str = "1000";
/// Episodes of an evaluation in worker processes.
const GYM_EPISODES: &str = "100";

/// Environment, algorithm, env steps, the Zoo's mean return and its steps.
///
/// The env steps are `None` for the preset's own.
type Preset = (&'static str, &'static str, Option<&'static str>, f64, &'static str);

const ACTOR_CRITIC: &[Preset] = &[
    ("cartpole", "ppo", None, 500.0, "100 k"),
    ("cartpole", "a2c", None, 500.0, "500 k"),
    ("acrobot", "ppo", None, -73.5, "1 M"),
    ("acrobot", "a2c", None, -83.4, "500 k"),
    ("mountain_car", "ppo", None, -110.4, "1 M"),
    ("mountain_car", "a2c", None, -111.3, "1 M"),
    ("mountain_car_continuous", "ppo", None, 88.3, "20 k"),
    ("mountain_car_continuous", "a2c", None, 91.2, "100 k"),
    ("pendulum", "ppo", None, -172.2, "100 k"),
    ("pendulum", "a2c", None, -163.0, "1 M"),
];

const DQN: &[Preset] = &[
    ("cartpole", "dqn", None, 500.0, "50 k"),
    ("cartpole", "dqn", Some("50000"), 500.0, "50 k"),
    ("acrobot", "dqn", None, -76.6, "100 k"),
    ("mountain_car", "dqn", None, -100.8, "120 k"),
];

const CONTINUOUS: &[Preset] = &[
    ("pendulum", "sac", None, -157.0, "20 k"),
    ("pendulum", "td3", None, -151.9, "20 k"),
    ("mountain_car_continuous", "td3", None, 93.5, "300 k"),
];

/// Environments with a preset of PPO, and what Gymnasium calls them.
const GYM: [(&str, &str); 3] = [("cartpole", "CartPole-v1"), ("acrobot", "Acrobot-v1"), ("pendulum", "Pendulum-v1")];

/// Trains all presets, those of DQN, of SAC and TD3, or of PPO in Gymnasium.
pub(crate) fn measure(root: &Path, only: Option<&str>) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    match only {
        None => table(root, ACTOR_CRITIC, 100..105, "bench/presets.md")?,
        Some("dqn" | "continuous") => {}
        Some("gym") => return gym(root, 100..105),
        Some(name) => bail!("unknown presets {name}; expected dqn, continuous or gym, or nothing for all but gym"),
    }
    if only != Some("continuous") {
        table(root, DQN, 100..110, "bench/presets-dqn.md")?;
    }
    if only != Some("dqn") {
        table(root, CONTINUOUS, 100..110, "bench/presets-continuous.md")?;
    }
    Ok(())
}

/// Trains presets of PPO in our environments and in Gymnasium's.
fn gym(root: &Path, seeds: std::ops::Range<u64>) -> Result<()> {
    let Some(python_path) = crate::python::python_path(root)? else { bail!("no Gymnasium") };
    let [ours, theirs] = ["ours", "theirs"].map(|name| root.join("target/gym-runs").join(name));
    let mut text = format!(
        "# Presets in Gymnasium\n\nWritten by `cargo xtask bench --presets gym`: mean return of {GYM_EPISODES} greedy episodes after training \
         PPO for seeds 100 to {}, with the\nstandard error over seeds and the minimum. Both columns have the preset of our environment; \
         Gymnasium's own runs in worker processes.\n\n| environment | env steps | ours | minimum | Gymnasium's | minimum |\n|---|---|---|---|---|---|\n",
        seeds.end - 1
    );
    for (env, id) in GYM {
        let ([mut in_ours, mut in_theirs], mut steps) = ([Vec::new(), Vec::new()], 0.0);
        for seed in seeds.clone() {
            let settings = root.join("target/gym-runs/settings.toml");
            for (returns, dir, name) in [(&mut in_ours, &ours, env.to_owned()), (&mut in_theirs, &theirs, format!("gym:{id}"))] {
                let _ = fs::remove_dir_all(dir);
                let program = || {
                    let mut command = Command::new(root.join("target/release/rl"));
                    command.env("PYTHONPATH", &python_path);
                    command
                };
                let mut command = program();
                command.args(["train", &name, "--seed", &seed.to_string(), "--json", "--run-dir"]).arg(dir);
                if name != env {
                    command.arg("--config").arg(&settings);
                }
                steps = last_line(&mut command)?["env_steps"].as_f64().context("env_steps")?;
                if name == env {
                    let config = fs::read_to_string(dir.join("config.toml"))?;
                    let others = config.lines().filter(|line| !line.starts_with("env = ") && !line.starts_with("seed = "));
                    fs::write(&settings, others.collect::<Vec<_>>().join("\n"))?;
                }
                let evaluated = last_line(
                    program().args(["eval", "--episodes", GYM_EPISODES, "--seed", &seed.to_string(), "--json"]).arg(dir),
                )?;
                returns.push(evaluated["return_mean"].as_f64().context("return_mean")?);
            }
        }
        let row = format!("| {env} | {steps:.0} | {} | {} |", spread(&in_ours), spread(&in_theirs));
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    Ok(fs::write(root.join("bench/presets-gym.md"), text)?)
}

/// Returns mean, standard error and minimum, as two cells.
fn spread(returns: &[f64]) -> String {
    let least = returns.iter().copied().fold(f64::INFINITY, f64::min);
    format!("{} | {least:.1}", with_error(mean_and_error(returns)))
}

/// Returns mean and standard error.
pub(crate) fn mean_and_error(returns: &[f64]) -> (f64, f64) {
    let n = returns.len() as f64;
    let mean = returns.iter().sum::<f64>() / n;
    let error = (returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0) / n).sqrt();
    (mean, error)
}

/// Formats a mean with its standard error.
pub(crate) fn with_error((mean, error): (f64, f64)) -> String {
    format!("{mean:.1} +- {error:.1}")
}

fn table(root: &Path, presets: &[Preset], seeds: std::ops::Range<u64>, record: &str) -> Result<()> {
    let program = root.join("target/release/rl");
    let dir = root.join("target/presets-runs");
    let mut text = format!(
        "# Returns of the presets\n\nWritten by `cargo xtask bench --presets`: mean return of {EPISODES} greedy episodes after training, for \
         seeds 100 to {}, which were not\nused for tuning, with the standard error over seeds and the minimum. RL Zoo's is the return of the \
         agent that RL Baselines3 Zoo publishes,\nwith its steps.\n\n\
         | environment | algorithm | env steps | ours | minimum | RL Zoo's |\n|---|---|---|---|---|---|\n",
        seeds.end - 1
    );
    for (env, algo, steps_set, zoo, zoo_steps) in presets {
        let (mut returns, mut steps) = (Vec::new(), 0.0);
        for seed in seeds.clone() {
            let _ = fs::remove_dir_all(&dir);
            let mut command = Command::new(&program);
            command.args(["train", env, "--algo", algo, "--seed", &seed.to_string(), "--json", "--run-dir"]).arg(&dir);
            command.args(steps_set.iter().flat_map(|steps| ["--steps", steps]));
            let done = last_line(&mut command)?;
            steps = done["env_steps"].as_f64().context("env_steps")?;
            let mut command = Command::new(&program);
            command.args(["eval", "--episodes", EPISODES, "--seed", &seed.to_string(), "--json"]).arg(&dir);
            returns.push(last_line(&mut command)?["return_mean"].as_f64().context("return_mean")?);
        }
        let row = format!("| {env} | {algo} | {steps:.0} | {} | {zoo} at {zoo_steps} |", spread(&returns));
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join(record), text)?;
    Ok(())
}

/// Runs a program whose last line is a JSON object.
pub(crate) fn last_line(command: &mut Command) -> Result<serde_json::Value> {
    let output = crate::bench::peers::run(command)?;
    serde_json::from_str(output.lines().last().unwrap_or_default()).context("an answer in JSON")
}
