//! Whether the kernel learns as candle's operations do: `cargo xtask bench --learning` trains PPO on CartPole with both over the same
//! seeds and draws the returns to `bench/learning.svg`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const POINTS: usize = 60;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 40.0;

/// Mean return of the last 100 episodes at evenly spaced environment steps, one curve a seed.
type Curves = Vec<Vec<f64>>;

/// Runs of CartPole that differ in the seed alone.
pub(crate) struct Arm {
    pub(crate) label: &'static str,
    pub(crate) color: &'static str,
    pub(crate) args: &'static str,
}

/// Arms to be drawn over each other.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) seeds: std::ops::Range<u64>,
    pub(crate) steps: f64,
    pub(crate) arms: &'static [Arm],
}

const LEARNERS: Plot = Plot {
    title: "PPO on CartPole",
    seeds: 200..205,
    steps: 100_096.0,
    arms: &[
        Arm { label: "reference", color: "#d95f02", args: "--set learner=reference" },
        Arm { label: "fused", color: "#1b9e77", args: "--set learner=fused" },
    ],
};

/// Trains with both learners and draws their curves.
pub(crate) fn compare(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    draw_all(root, &LEARNERS, "bench/learning.svg").map(drop)
}

/// Greedy mean returns of a run: the best of its evaluations, and the last.
pub(crate) struct Returns {
    pub(crate) best: f64,
    pub(crate) last: f64,
}

/// Trains every arm with every seed, draws the curves to `file`, and returns each arm's returns, seed by seed.
pub(crate) fn draw_all(root: &Path, plot: &Plot, file: &str) -> Result<Vec<Vec<Returns>>> {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut returns = Vec::new();
    for (i, Arm { label, color, args }) in plot.arms.iter().enumerate() {
        let runs = plot.seeds.clone().map(|seed| curve(root, args, seed, plot.steps)).collect::<Result<Vec<_>>>()?;
        let (curves, ends): (Curves, Vec<Returns>) = runs.into_iter().unzip();
        draw(&mut svg, &curves, color);
        let (y, n) = (60 + 20 * i, ends.len());
        let _ = writeln!(svg, "<text x=\"60\" y=\"{y}\" fill=\"{color}\">{label}: mean and range of {n} seeds</text>");
        returns.push(ends);
    }
    let (bottom, right) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    let _ = writeln!(
        svg,
        "<path d=\"M{MARGIN} {MARGIN}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{MARGIN}\" y=\"25\">{}: return (0 to 500), mean of the last 100 episodes</text>\n\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">0 to {} environment steps</text>\n</svg>",
        plot.title,
        HEIGHT - 15.0,
        plot.steps
    );
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join(file), svg)?;
    println!("drawn to {file}");
    Ok(returns)
}

/// A run's curve and returns.
fn curve(root: &Path, args: &str, seed: u64, steps: f64) -> Result<(Vec<f64>, Returns)> {
    let dir = root.join("target/bench-runs");
    let _ = fs::remove_dir_all(&dir);
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["train", "cartpole", "--json", "--seed", &seed.to_string()]).args(args.split(' '));
    let output = command.arg("--run-dir").arg(&dir).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let events =
        text.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>().context("the run's events")?;
    let evaluations =
        events.iter().filter(|event| event["event"] == "evaluation").filter_map(|event| event["return_mean"].as_f64());
    let last = events.last().and_then(|done| done["eval"]["return_mean"].as_f64()).context("the last evaluation")?;
    let best = evaluations.fold(last, f64::max);
    println!("{args}, seed {seed}: {last:.1}, best {best:.1}");
    let metrics = fs::read_to_string(dir.join("metrics.csv"))?;
    let rows: Vec<(f64, f64)> = metrics
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut columns = line.split(',');
            Some((columns.next()?.parse().ok()?, columns.nth(2)?.parse().ok()?))
        })
        .collect();
    let at = |steps: f64| rows.iter().rev().find(|(s, _)| *s <= steps).or(rows.first()).map(|(_, value)| *value);
    let curve: Option<Vec<f64>> = (0..POINTS).map(|i| at(steps * i as f64 / (POINTS - 1) as f64)).collect();
    Ok((curve.context("no episode has ended")?, Returns { best, last }))
}

fn draw(svg: &mut String, curves: &Curves, color: &str) {
    let point = |i: usize, value: f64| {
        let x = MARGIN + (WIDTH - 2.0 * MARGIN) * i as f64 / (POINTS - 1) as f64;
        format!("{x:.1},{:.1} ", HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * value / 500.0)
    };
    let over_seeds = |f: &dyn Fn(f64, f64) -> f64, start: f64, i: usize| curves.iter().map(|c| c[i]).fold(start, f);
    let line = |f: &dyn Fn(usize) -> f64| (0..POINTS).map(|i| point(i, f(i))).collect::<String>();
    let low = line(&|i| over_seeds(&f64::min, f64::INFINITY, i));
    let mean = line(&|i| over_seeds(&|a, b| a + b, 0.0, i) / curves.len() as f64);
    let high: String = (0..POINTS).rev().map(|i| point(i, over_seeds(&f64::max, 0.0, i))).collect();
    let _ = writeln!(svg, "<polygon points=\"{low}{high}\" fill=\"{color}\" opacity=\"0.2\"/>");
    let _ = writeln!(svg, "<polyline points=\"{mean}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>");
}
