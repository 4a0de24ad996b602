//! Whether the kernel learns as candle's operations do: `cargo xtask bench --learning` trains PPO on CartPole with both over the same
//! seeds and draws the returns to `bench/learning.svg`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const SEEDS: std::ops::Range<u64> = 200..205;
const STEPS: f64 = 100_096.0;
const POINTS: usize = 60;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 40.0;

/// Mean return of the last 100 episodes at evenly spaced environment steps, one curve a seed.
type Curves = Vec<Vec<f64>>;

/// Trains with both learners and draws their curves.
pub(crate) fn compare(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (learner, color, y) in [("reference", "#d95f02", 60.0), ("fused", "#1b9e77", 80.0)] {
        let curves = SEEDS.map(|seed| curve(root, learner, seed)).collect::<Result<Curves>>()?;
        draw(&mut svg, &curves, color);
        let _ = writeln!(svg, "<text x=\"60\" y=\"{y}\" fill=\"{color}\">{learner}: mean and range of 5 seeds</text>");
    }
    let (bottom, right) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    let _ = writeln!(
        svg,
        "<path d=\"M{MARGIN} {MARGIN}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{MARGIN}\" y=\"25\">PPO on CartPole: return (0 to 500), mean of the last 100 episodes</text>\n\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">0 to 100,096 environment steps</text>\n</svg>",
        HEIGHT - 15.0
    );
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join("bench/learning.svg"), svg)?;
    println!("drawn to bench/learning.svg");
    Ok(())
}

fn curve(root: &Path, learner: &str, seed: u64) -> Result<Vec<f64>> {
    let dir = root.join("target/bench-runs");
    let _ = fs::remove_dir_all(&dir);
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["train", "cartpole", "--seed", &seed.to_string(), "--set", &format!("learner={learner}")]);
    let output = command.arg("--run-dir").arg(&dir).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{learner}, seed {seed}: {}", text.lines().last().unwrap_or_default());
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
    (0..POINTS).map(|i| at(STEPS * i as f64 / (POINTS - 1) as f64).context("no episode has ended")).collect()
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
