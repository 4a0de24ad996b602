//! Policies that remember: what they learn with each kind of memory.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k, spread};
use crate::bench::presets::mean_and_error;
use crate::bench::study::programs::{Study, Trained};
use crate::plot::{Axis, Chart, short};

const SEEDS: u64 = 10;
/// Greedy episodes after a training.
pub(super) const EPISODES: u64 = 100;
/// Memories, and their colours.
const MEMORIES: [(&str, &str); 3] = [("none", "#7570b3"), ("gru", "#1b9e77"), ("lstm", "#d95f02")];
/// Points of a curve.
const POINTS: usize = 100;

/// A task that needs memory.
struct Task {
    title: &'static str,
    args: &'static str,
    steps: f64,
    /// Returns that the picture shows.
    returns: [f64; 2],
    /// Title and arguments of a training to compare with.
    full: Option<(&'static str, &'static str)>,
}

const TASKS: [Task; 3] = [
    Task {
        title: "CartPole without velocities",
        args: "cartpole --envs 32 --set env.hide=velocities --set normalize_obs=true --set hidden=[64] --set ppo.n_steps=128 --set \
               ppo.batch_size=1024 --set ppo.n_epochs=4 --set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.learning_rate=lin_0.001 \
               --set ppo.ent_coef=0.003",
        steps: 3e6,
        returns: [0.0, 500.0],
        full: None,
    },
    Task {
        title: "Pendulum without velocities",
        args: "pendulum --envs 32 --set env.hide=velocities --set normalize_obs=true --set hidden=[64] --set ppo.n_steps=200 --set \
               ppo.batch_size=1600 --set ppo.n_epochs=10",
        steps: 1e6,
        returns: [-1500.0, 0.0],
        full: Some(("the preset, with velocities", "pendulum")),
    },
    Task { title: "repeat_first", args: "repeat_first", steps: 4e6, returns: [-1.0, 1.0], full: None },
];

/// Trains all tasks, and writes the record with its picture.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text =
        study.head("Policies that remember", "PPO with memory = none, gru and lstm, of 64 outputs, before a hidden layer of 64.");
    let mut chart = Chart::new();
    let _ = writeln!(
        text,
        "\n![Training episodes, mean and range over the seeds](study-memory.svg)\n\nMean return of {EPISODES} greedy episodes \
         after training, with the standard error over {SEEDS} seeds, and the least of them. Env\nsteps/s are medians.\n\n\
         | task | env steps | memory | return | least | env steps/s |\n|---|---|---|---|---|---|"
    );
    for task in TASKS {
        text.push_str(&learn(study, &task, &mut chart)?);
    }
    study.write(&text, Some(chart))
}

/// Trains a task with each memory and draws its panel; returns its rows.
fn learn(study: &Study<'_>, task: &Task, chart: &mut Chart) -> Result<String> {
    let [from, to] = task.returns;
    let ticks = (0..=4).map(|i| from + f64::from(i) * (to - from) / 4.0).map(|at| (at, short(at))).collect();
    let mut panel = chart.panel(Axis::linear("env steps", task.steps), Axis { label: task.title, from, to, log: false, ticks });
    let mut text = String::new();
    for (memory, color) in MEMORIES {
        let args = format!("{} --set memory={memory} --steps {}", task.args, task.steps);
        let runs = train(study, &args)?;
        let curves: Vec<_> = runs.iter().map(|run| run.metrics.rows(["time/total_timesteps", "rollout/ep_rew_mean"])).collect();
        let at = |curve: &[[f64; 2]], x: f64| {
            curve.iter().rev().find(|[steps, _]| *steps <= x).or(curve.first()).map_or(from, |p| p[1])
        };
        let xs: Vec<f64> = (0..POINTS).map(|i| task.steps * i as f64 / (POINTS - 1) as f64).collect();
        let over_seeds = |f: fn(f64, f64) -> f64, start: f64| -> Vec<(f64, f64)> {
            xs.iter().map(|&x| (x, curves.iter().map(|curve| at(curve, x)).fold(start, f))).collect()
        };
        panel.band(&over_seeds(f64::min, f64::INFINITY), &over_seeds(f64::max, f64::NEG_INFINITY), color);
        let mean = over_seeds(|a, b| a + b, 0.0).into_iter().map(|(x, sum)| (x, sum / curves.len() as f64));
        panel.line(mean, color);
        panel.label(memory, color);
        text.push_str(&row(task.title, memory, &runs)?);
    }
    if let Some((title, args)) = task.full {
        text.push_str(&row(task.title, title, &train(study, args)?)?);
    }
    Ok(text)
}

/// Trains with every seed.
fn train(study: &Study<'_>, args: &str) -> Result<Vec<Trained>> {
    (0..SEEDS).map(|seed| study.train(&format!("{args} --set eval_episodes={EPISODES}"), seed)).collect()
}

fn row(title: &str, memory: &str, runs: &[Trained]) -> Result<String> {
    let returns = runs.iter().map(return_of).collect::<Result<Vec<_>>>()?;
    let steps = runs[0].done["env_steps"].as_f64().context("env_steps")?;
    let least = returns.iter().copied().fold(f64::INFINITY, f64::min);
    let (rate, ..) = spread(runs.iter().map(|run| run.rate).collect());
    let (mean, error) = mean_and_error(&returns);
    let row = format!("| {title} | {steps:.0} | {memory} | {mean:.2} +- {error:.2} | {least:.2} | {} |\n", k(rate));
    print!("{row}");
    Ok(row)
}

pub(super) fn return_of(run: &Trained) -> Result<f64> {
    run.done["eval"]["return_mean"].as_f64().context("return_mean")
}
