//! How learning goes, over seeds: `cargo xtask bench --learning` trains PPO on CartPole with the kernel and with candle's operations,
//! and `cargo xtask bench --grids` trains the presets of Snake and Breakout. Curves are drawn.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::run;
use crate::plot::{Axis, Chart};

const SEEDS: std::ops::Range<u64> = 200..205;
const STEPS: f64 = 100_096.0;
const POINTS: usize = 60;

const GRID_SEEDS: std::ops::Range<u64> = 100..102;
const GRIDS: [Grid; 2] = [
    Grid { env: "snake", algos: &[("ppo", "#1b9e77"), ("dqn", "#d95f02")], what: "length", start: 1.0, to: 40.0, steps: 2e6 },
    Grid { env: "breakout", algos: &[("ppo", "#1b9e77")], what: "return", start: 0.0, to: 40.0, steps: 2e6 },
];

/// A grid whose presets are trained. What is shown is `start` and the return, up to `to`, over up to so many steps.
struct Grid {
    env: &'static str,
    algos: &'static [(&'static str, &'static str)],
    what: &'static str,
    start: f64,
    to: f64,
    steps: f64,
}

/// A line of a run's metrics: env steps, seconds, mean return of the last 100 episodes.
type Point = (f64, f64, f64);

/// Trains PPO on CartPole with both learners: `bench/learning.svg`.
pub(crate) fn compare(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut chart = Chart::new();
    let mut panel =
        chart.panel(Axis::linear("environment steps", STEPS.round()), Axis::linear("return: mean of 100 episodes", 500.0));
    for (learner, color) in [("reference", "#d95f02"), ("fused", "#1b9e77")] {
        let mut curves = Vec::new();
        for seed in SEEDS {
            curves.push(train(root, "cartpole", "ppo", seed, &[&format!("learner={learner}")])?);
        }
        let at = |curve: &[Point], x: f64| curve.iter().rev().find(|point| point.0 <= x).unwrap_or(&curve[0]).2;
        let over_seeds = |f: &dyn Fn(f64, f64) -> f64, start: f64| -> Vec<(f64, f64)> {
            let xs = (0..POINTS).map(|i| STEPS * i as f64 / (POINTS - 1) as f64);
            xs.map(|x| (x, curves.iter().map(|curve| at(curve, x)).fold(start, f))).collect()
        };
        panel.band(&over_seeds(&f64::min, f64::INFINITY), &over_seeds(&f64::max, 0.0), color);
        let sums = over_seeds(&|a, b| a + b, 0.0);
        panel.line(sums.into_iter().map(|(x, sum)| (x, sum / curves.len() as f64)), color);
        panel.label(&format!("{learner}: mean and range of 5 seeds"), color);
    }
    fs::write(root.join("bench/learning.svg"), chart.finish())?;
    println!("drawn to bench/learning.svg");
    Ok(())
}

/// Trains the presets of the grids: `bench/grids.md` and a picture for each grid.
pub(crate) fn grids(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut text = String::from(
        "# What is learnt on grids\n\nMade by `cargo xtask bench --grids`: the presets of Snake (12 x 12, up to 4,000 steps) and Breakout (10 x 10, up to \
         1,000 steps), on\nseeds 100 and 101, one line each: 100 greedy episodes after training, time as the whole training took it. \
         The curves are of the\nepisodes of training, with all its exploration: the mean of the last 100. Random: a policy whose \
         learning rate is 0.\n",
    );
    for grid in GRIDS {
        let Grid { env, algos, what, start, .. } = grid;
        let random =
            train(root, env, "ppo", 0, &["ppo.learning_rate=0", "steps=200000"])?.last().context("no episode has ended")?.2;
        let _ = writeln!(
            text,
            "\n## {env}\n\n![{env}]({env}.svg)\n\nRandom: mean {what} {:.2}.\n\n| algorithm | seed | env steps | time | mean {what} | \
             standard error |\n|---|---|---|---|---|---|",
            start + random
        );
        let mut curves = Vec::new();
        for (algo, color) in algos {
            for seed in GRID_SEEDS {
                let curve = train(root, env, algo, seed, &[])?;
                let answer = run(Command::new(root.join("target/release/rl")).args(["eval", "--json"]).arg(run_dir(root)))?;
                let answer: serde_json::Value = serde_json::from_str(answer.lines().last().unwrap_or_default())?;
                let figure = |name: &str| answer[name].as_f64().context("our figure");
                let (mean, deviation, episodes) = (figure("return_mean")?, figure("return_std")?, figure("episodes")?);
                let &(steps, seconds, _) = curve.last().context("no episode has ended")?;
                let row = format!(
                    "| {algo} | {seed} | {steps:.0} | {:.1} min | {:.1} | {:.1} |",
                    seconds / 60.0,
                    start + mean,
                    deviation / episodes.sqrt()
                );
                println!("{env} {row}");
                let _ = writeln!(text, "{row}");
                curves.push((*color, curve));
            }
        }
        draw(root, &grid, &curves)?;
    }
    fs::write(root.join("bench/grids.md"), text)?;
    Ok(())
}

/// Two panels: against env steps and against minutes.
fn draw(root: &Path, grid: &Grid, curves: &[(&str, Vec<Point>)]) -> Result<()> {
    let minutes = curves.iter().flat_map(|(_, curve)| curve.last()).map(|point| point.1 / 60.0).fold(0.0, f64::max).ceil();
    let mut chart = Chart::new();
    for (label, to, x) in [("environment steps", grid.steps, 0), ("minutes", minutes, 1)] {
        let mut panel = chart.panel(Axis::linear(label, to), Axis::linear(grid.what, grid.to));
        for (color, curve) in curves {
            let points =
                curve.iter().map(|&(steps, seconds, value)| (if x == 0 { steps } else { seconds / 60.0 }, grid.start + value));
            panel.line(points, color);
        }
        for (algo, color) in grid.algos {
            panel.label(algo, color);
        }
    }
    fs::write(root.join(format!("bench/{}.svg", grid.env)), chart.finish())?;
    Ok(())
}

fn run_dir(root: &Path) -> std::path::PathBuf {
    root.join("target/bench-runs")
}

/// Trains, and reads the metrics.
fn train(root: &Path, env: &str, algo: &str, seed: u64, sets: &[&str]) -> Result<Vec<Point>> {
    let dir = run_dir(root);
    let _ = fs::remove_dir_all(&dir);
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["train", env, "--algo", algo, "--seed", &seed.to_string(), "--run-dir"]).arg(&dir);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = run(&mut command)?;
    println!("{env} {algo} {seed} {}: {}", sets.join(" "), output.lines().last().unwrap_or_default());
    let metrics = fs::read_to_string(dir.join("metrics.csv"))?;
    let mut lines = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().context("empty metrics")?;
    let column = |name: &str| head.iter().position(|column| *column == name).with_context(|| format!("metrics lack {name}"));
    let columns = [column("time/total_timesteps")?, column("time/time_elapsed")?, column("rollout/ep_rew_mean")?];
    let point = |line: Vec<&str>| {
        let [steps, seconds, value] = columns.map(|i| line.get(i)?.parse().ok());
        Some((steps?, seconds?, value?))
    };
    Ok(lines.filter_map(point).collect())
}
