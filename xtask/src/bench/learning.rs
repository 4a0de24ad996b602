//! Learning curves of the two learners: the tile kernel and candle's operations.
//!
//! `cargo xtask bench --learning` trains PPO on CartPole with both over the same seeds, and draws the returns to
//! `bench/learning.svg`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::bench::peers::run;
use crate::plot::{Axis, Chart};

const POINTS: usize = 60;

/// Configuration that is trained once per seed.
pub(crate) struct Variant {
    pub(crate) label: &'static str,
    pub(crate) color: &'static str,
    pub(crate) args: &'static str,
}

/// Variants drawn into one plot.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) seeds: std::ops::Range<u64>,
    pub(crate) steps: f64,
    pub(crate) variants: &'static [Variant],
}

const LEARNERS: Plot = Plot {
    title: "PPO on CartPole: return, mean of 100 episodes",
    seeds: 200..205,
    steps: 100_000.0,
    variants: &[
        Variant { label: "reference", color: "#d95f02", args: "cartpole --set learner=reference" },
        Variant { label: "fused", color: "#1b9e77", args: "cartpole --set learner=fused" },
    ],
};

/// Trains with both learners and draws their curves.
pub(crate) fn compare(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    draw_all(root, &LEARNERS, "bench/learning.svg").map(drop)
}

/// Mean returns of a run's greedy evaluations: the best, and the last.
pub(crate) struct Returns {
    pub(crate) best: f64,
    pub(crate) last: f64,
}

/// Trains every variant with every seed and draws the curves to `file`.
///
/// Returns each variant's returns, seed by seed.
pub(crate) fn draw_all(root: &Path, plot: &Plot, file: &str) -> Result<Vec<Vec<Returns>>> {
    let mut chart = Chart::new();
    let mut panel = chart.panel(Axis::linear("environment steps", plot.steps), Axis::linear(plot.title, 500.0));
    let mut returns = Vec::new();
    for Variant { label, color, args } in plot.variants {
        let (mut curves, mut ends) = (Vec::new(), Vec::new());
        for seed in plot.seeds.clone() {
            let run = train(root, args, seed)?;
            ensure!(!run.curve.is_empty(), "no episode has ended");
            let last = run.events.last().and_then(|done| done["eval"]["return_mean"].as_f64()).context("the last evaluation")?;
            let evaluations = run.events.iter().filter(|event| event["event"] == "evaluation");
            let best = evaluations.filter_map(|event| event["return_mean"].as_f64()).fold(last, f64::max);
            println!("{args}, seed {seed}: {last:.1}, best {best:.1}");
            curves.push(run.curve);
            ends.push(Returns { best, last });
        }
        let at = |curve: &[Point], x: f64| curve.iter().rev().find(|point| point.steps <= x).unwrap_or(&curve[0]).value;
        let over_seeds = |f: &dyn Fn(f64, f64) -> f64, start: f64| -> Vec<(f64, f64)> {
            let xs = (0..POINTS).map(|i| plot.steps * i as f64 / (POINTS - 1) as f64);
            xs.map(|x| (x, curves.iter().map(|curve| at(curve, x)).fold(start, f))).collect()
        };
        panel.band(&over_seeds(&f64::min, f64::INFINITY), &over_seeds(&f64::max, 0.0), color);
        let n = curves.len();
        panel.line(over_seeds(&|a, b| a + b, 0.0).into_iter().map(|(x, sum)| (x, sum / n as f64)), color);
        panel.label(&format!("{label}: mean and range of {n} seeds"), color);
        returns.push(ends);
    }
    fs::write(root.join(file), chart.finish())?;
    println!("drawn to {file}");
    Ok(returns)
}

/// One row of a run's metrics.
pub(crate) struct Point {
    /// Environment steps.
    pub(crate) steps: f64,
    pub(crate) seconds: f64,
    /// Mean return of the last 100 episodes.
    pub(crate) value: f64,
}

/// Finished run; its directory stays until the next one starts.
pub(crate) struct TrainedRun {
    pub(crate) curve: Vec<Point>,
    /// Events that the run printed.
    pub(crate) events: Vec<Value>,
}

/// Trains with these arguments.
pub(crate) fn train(root: &Path, args: &str, seed: u64) -> Result<TrainedRun> {
    let dir = root.join("target/bench-runs");
    let _ = fs::remove_dir_all(&dir);
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["train", "--json", "--seed", &seed.to_string()]).args(args.split(' ')).arg("--run-dir").arg(&dir);
    let output = run(&mut command)?;
    let events = output.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("the run's events")?;
    let rows = Metrics::read(&dir)?.rows(["time/total_timesteps", "time/time_elapsed", "rollout/ep_rew_mean"]);
    Ok(TrainedRun { curve: rows.into_iter().map(|[steps, seconds, value]| Point { steps, seconds, value }).collect(), events })
}

/// Metrics of a run, by column.
pub(crate) struct Metrics {
    names: Vec<String>,
    lines: Vec<Vec<Option<f64>>>,
}

impl Metrics {
    /// Reads `metrics.csv` in a run's directory.
    pub(crate) fn read(run: &Path) -> Result<Self> {
        let text = fs::read_to_string(run.join("metrics.csv"))?;
        let mut lines = text.lines().map(|line| line.split(','));
        let names = lines.next().context("empty metrics")?.map(str::to_owned).collect();
        Ok(Self { names, lines: lines.map(|line| line.map(|cell| cell.parse().ok()).collect()).collect() })
    }

    /// Returns the rows in which none of these columns is empty.
    pub(crate) fn rows<const N: usize>(&self, columns: [&str; N]) -> Vec<[f64; N]> {
        let columns = columns.map(|name| self.names.iter().position(|of| of == name));
        let row = |line: &Vec<Option<f64>>| {
            let cells = columns.map(|column| *line.get(column?)?);
            cells.iter().all(Option::is_some).then(|| cells.map(Option::unwrap_or_default))
        };
        self.lines.iter().filter_map(row).collect()
    }

    /// Returns the values of a column.
    pub(crate) fn values(&self, column: &str) -> impl Iterator<Item = f64> {
        self.rows([column]).into_iter().map(|[value]| value)
    }

    /// Returns the mean of a column.
    pub(crate) fn mean(&self, column: &str) -> Result<f64> {
        let values: Vec<f64> = self.values(column).collect();
        ensure!(!values.is_empty(), "metrics have no {column}");
        Ok(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the last value of a column.
    pub(crate) fn last(&self, column: &str) -> Result<f64> {
        self.values(column).last().with_context(|| format!("metrics have no {column}"))
    }
}
