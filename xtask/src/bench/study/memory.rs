//! Policies that remember: what they learn, beside sb3-contrib's RecurrentPPO.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k, k_range, spread};
use crate::bench::presets::{mean_and_error, with_error};
use crate::bench::study::programs::{Study, Trained};
use crate::plot::{Axis, Chart, short};

/// Seeds of what is learnt, and of the returns beside the peer.
const SEEDS: u64 = 10;
const PEER_SEEDS: u64 = 5;
/// Env steps beside the peer.
const PEER_STEPS: u64 = 102_400;
const EPISODES: u64 = 100;
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
               ppo.batch_size=1024 --set ppo.n_epochs=4 --set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.learning_rate=lin_0.001",
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

/// Equal settings for both, in 8 environments: those of `train_recurrent.py`.
const EQUAL: &str = "--envs 8 --threads 2 --set memory=lstm --set hidden=[64] --set ppo.n_steps=128 --set ppo.batch_size=256 --set \
                     ppo.n_epochs=10 --set ppo.gamma=0.98 --set ppo.gae_lambda=0.9 --set ppo.learning_rate=lin_0.001 --set \
                     ppo.clip_range=0.2 --set ppo.ent_coef=0 --set ppo.normalize_reward=false --set log_std_init=0 --set eval_episodes=100";
/// Environment of ours, of theirs, and elements that theirs hides.
const CASES: [(&str, &str, &str); 2] =
    [("cartpole --set env.hide=velocities", "CartPole-v1", "1,3"), ("gym:Pendulum-v1", "Pendulum-v1", "-")];

/// Measures both, and writes the record with its picture.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text =
        study.head("Policies that remember", "PPO with memory = none, gru and lstm, of 64 outputs, before a hidden layer of 64.");
    text.push_str(&beside(study)?);
    let mut chart = Chart::new();
    let _ = writeln!(
        text,
        "\n## What is learnt\n\n![Training episodes, mean and range over the seeds](study-memory.svg)\n\nMean return of {EPISODES} greedy episodes \
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

fn return_of(run: &Trained) -> Result<f64> {
    run.done["eval"]["return_mean"].as_f64().context("return_mean")
}

/// Trains ours and theirs in turn; returns a section of the record.
fn beside(study: &Study<'_>) -> Result<String> {
    let mut text = format!(
        "\n## Beside sb3-contrib's RecurrentPPO\n\nEqual settings (`xtask/peers/train_recurrent.py`): LSTMs of 64 for policy and value function, 8 \
         environments, rollouts of 128 steps,\nminibatches of 256, 10 epochs, {PEER_STEPS} env steps, seeds 0 to {}; in turn. Theirs steps in this \
         process (DummyVecEnv) with one thread of\nPyTorch, which is faster than two here. Returns of {EPISODES} greedy episodes, with the standard \
         error over the seeds.\n\n\
         | environment | ours, env steps/s | theirs | ratio | our return | theirs |\n|---|---|---|---|---|---|\n",
        PEER_SEEDS - 1
    );
    for (ours, theirs, hide) in CASES {
        let (mut rates, mut returns) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for seed in 0..PEER_SEEDS {
            let run = study.train(&format!("{ours} {EQUAL} --steps {PEER_STEPS}"), seed)?;
            let peer = study.peer("train_recurrent.py", &format!("{theirs} {hide} {PEER_STEPS} {seed} {EPISODES} 1"))?;
            let figure = |name: &str| peer[name].as_f64().with_context(|| name.to_owned());
            for (rates, rate) in rates.iter_mut().zip([run.rate, figure("env_steps_per_s")?]) {
                rates.push(rate);
            }
            for (returns, mean) in returns.iter_mut().zip([return_of(&run)?, figure("return_mean")?]) {
                returns.push(mean);
            }
            println!("{theirs}, seed {seed}: {rates:?}, {returns:?}");
        }
        let [our_rates, their_rates] = rates.map(spread);
        let [our_returns, their_returns] = returns.map(|returns| with_error(mean_and_error(&returns)));
        let ratio = our_rates.0 / their_rates.0;
        let hidden = if hide == "-" { "" } else { " without velocities" };
        let _ = writeln!(
            text,
            "| {theirs}{hidden} | {} | {} | {ratio:.0} | {our_returns} | {their_returns} |",
            k_range(our_rates),
            k_range(their_rates)
        );
    }
    Ok(text)
}
