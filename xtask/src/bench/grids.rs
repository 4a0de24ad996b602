//! Learning curves of the presets of Snake, MinAtar's games and MiniGrid's levels.
//!
//! `cargo xtask bench --grids`, `--minatar` and `--minigrid` train them, and write `bench/grids.md`, `bench/minatar.md` and
//! `bench/minigrid.md` with pictures.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::bench::learning::{Point, TrainedRun, train};
use crate::plot::{Axis, Chart};
use crate::process::machine;

const SEEDS: std::ops::Range<u64> = 100..102;
const SNAKE: &[Grid] =
    &[Grid { env: "snake", algos: &[("ppo", "#1b9e77"), ("dqn", "#d95f02")], what: "length", start: 1.0, to: 40.0, steps: 2e6 }];
const MINATAR: &[Grid] = &[
    Grid::of_minatar("asterix", 40.0),
    Grid::of_minatar("breakout", 20.0),
    Grid::of_minatar("freeway", 80.0),
    Grid::of_minatar("seaquest", 20.0),
    Grid::of_minatar("space_invaders", 120.0),
];

const MINIGRID: &[Grid] =
    &[Grid::of_minigrid("empty", 5e5), Grid::of_minigrid("multi_room", 5e5), Grid::of_minigrid("door_key", 2e6)];

/// Environment on a grid, its presets, and the axes of its plot.
///
/// The plot shows `start` to `to` over `steps`.
struct Grid {
    env: &'static str,
    algos: &'static [(&'static str, &'static str)],
    what: &'static str,
    start: f64,
    to: f64,
    steps: f64,
}

impl Grid {
    const fn of_minatar(env: &'static str, to: f64) -> Self {
        Self { env, algos: &[("ppo", "#1b9e77")], what: "return", start: 0.0, to, steps: 2e6 }
    }

    const fn of_minigrid(env: &'static str, steps: f64) -> Self {
        Self { env, algos: &[("ppo", "#1b9e77")], what: "return", start: 0.0, to: 1.0, steps }
    }
}

/// Trains PPO in MiniGrid's levels and writes `bench/minigrid.md`.
pub(crate) fn minigrid(root: &Path) -> Result<()> {
    record(root, "minigrid", "MiniGrid's levels (up to 256, 40 and 640 steps)", MINIGRID)
}

/// Trains the presets of Snake and writes `bench/grids.md` with its pictures.
pub(crate) fn snake(root: &Path) -> Result<()> {
    record(root, "grids", "Snake (12 x 12, up to 4,000 steps)", SNAKE)
}

/// Trains PPO in MinAtar's games and writes `bench/minatar.md` with its pictures.
pub(crate) fn minatar(root: &Path) -> Result<()> {
    record(root, "minatar", "MinAtar's games (10 x 10, up to 1,000 steps, Freeway 2,500)", MINATAR)
}

/// Trains presets and writes `bench/NAME.md`.
fn record(root: &Path, name: &str, about: &str, grids: &[Grid]) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut text = format!(
        "# Learning curves on grids\n\nWritten by `cargo xtask bench --{name}` on {}: the presets of {about}. Seeds 100 and 101, a line \
         each:\nthe mean of 100 greedy episodes after training, and the time of the whole training. The curves are the mean of the last \
         100 training\nepisodes, exploration included. Random is a policy with learning rate 0.\n",
        machine(root)
    );
    for grid in grids {
        let &Grid { env, algos, what, start, .. } = grid;
        let random = train(root, &format!("{env} --algo ppo --steps 200000 --set ppo.learning_rate=0"), 0)?;
        let random = random.curve.last().context("no episode has ended")?.value;
        let _ = writeln!(
            text,
            "\n## {env}\n\n![{env}]({env}.svg)\n\nRandom: mean {what} {:.2}.\n\n| algorithm | seed | env steps | time | mean {what} | \
             standard error |\n|---|---|---|---|---|---|",
            start + random
        );
        let mut curves = Vec::new();
        for (algo, color) in algos {
            for seed in SEEDS {
                let TrainedRun { curve, events } = train(root, &format!("{env} --algo {algo}"), seed)?;
                let figure =
                    |name: &str| events.last().and_then(|done| done["eval"][name].as_f64()).context("the last evaluation");
                let (mean, deviation, episodes) = (figure("return_mean")?, figure("return_std")?, figure("episodes")?);
                let &Point { steps, seconds, .. } = curve.last().context("no episode has ended")?;
                let decimals = if grid.to > 1.0 { 1 } else { 3 };
                let row = format!(
                    "| {algo} | {seed} | {steps:.0} | {:.1} min | {:.decimals$} | {:.decimals$} |",
                    seconds / 60.0,
                    start + mean,
                    deviation / episodes.sqrt()
                );
                println!("{env} {row}");
                let _ = writeln!(text, "{row}");
                curves.push((*color, curve));
            }
        }
        draw(root, grid, &curves)?;
    }
    fs::write(root.join(format!("bench/{name}.md")), text)?;
    Ok(())
}

/// Draws two panels: return over env steps, and over minutes.
fn draw(root: &Path, grid: &Grid, curves: &[(&str, Vec<Point>)]) -> Result<()> {
    let minutes = curves.iter().flat_map(|(_, curve)| curve.last()).map(|point| point.seconds / 60.0).fold(0.0, f64::max).ceil();
    let mut chart = Chart::new();
    for (label, to, by_time) in [("environment steps", grid.steps, false), ("minutes", minutes, true)] {
        let mut panel = chart.panel(Axis::linear(label, to), Axis::linear(grid.what, grid.to));
        for (color, curve) in curves {
            let x = |point: &Point| if by_time { point.seconds / 60.0 } else { point.steps };
            panel.line(curve.iter().map(|point| (x(point), grid.start + point.value)), color);
        }
        for (algo, color) in grid.algos {
            panel.label(algo, color);
        }
    }
    fs::write(root.join(format!("bench/{}.svg", grid.env)), chart.finish())?;
    Ok(())
}
