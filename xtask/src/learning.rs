//! Whether the kernel learns as candle's operations do: `cargo xtask bench --learning` trains PPO on CartPole with both over the same
//! seeds and draws the returns to `bench/learning.svg`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::run;
use crate::plot::{Axis, Chart};

const SEEDS: std::ops::Range<u64> = 200..205;
const STEPS: f64 = 100_096.0;
const POINTS: usize = 60;

/// A line of a run's metrics: env steps, seconds, mean return of the last 100 episodes.
pub(crate) type Point = (f64, f64, f64);

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

/// Trains, and reads the metrics.
pub(crate) fn train(root: &Path, env: &str, algo: &str, seed: u64, sets: &[&str]) -> Result<Vec<Point>> {
    let dir = root.join("target/bench-runs");
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
