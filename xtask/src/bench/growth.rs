//! Cost of environment steps by number of environments and work per step.
//!
//! `cargo xtask bench --growth` measures CartPole and Snake, and writes `bench/growth.md` and `bench/growth.svg`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::plot::{Axis, Chart, short};
use crate::process::machine;

const ENVS: [(&str, usize, &str); 2] = [("cartpole", 4096, "#1b9e77"), ("snake", 1024, "#d95f02")];
const SIZES: [usize; 11] = [1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_000_000];
const REPEATS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Name, colour and points.
pub(crate) type Curve = (&'static str, &'static str, Vec<(f64, f64)>);

/// Measures, writes the tables and draws.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut text = format!(
        "# Cost of a step\n\nWritten by `cargo xtask bench --growth` on {}: random actions, two threads, medians of five parts\nof one run, \
         with minimum and maximum. The time of one step of all N environments together, and per environment. A step takes as long as \
         the slower\nthread, so a run beside another program's may be slower than one thread alone; the minimum is the part that was \
         disturbed least.\nstudy-vector.md has medians of three runs of the same command, and one thread beside two.\n\n![growth](growth.svg)\n",
        machine(root)
    );
    let (mut sizes, mut repeats) = (Vec::new(), Vec::new());
    for (env, n_envs, color) in ENVS {
        let _ =
            writeln!(text, "\n## {env}, against the number of environments\n\n| N | a step of all | for each |\n|---|---|---|");
        let mut points = Vec::new();
        for n in SIZES {
            let (of_all, figure) = step_of_all(root, env, n, 1)?;
            let each = duration(of_all / n as f64);
            let _ = writeln!(text, "| {n} | {figure} | {each} |");
            println!("{env} {n}: {figure} for all, {each} for each");
            points.push((n as f64, of_all));
        }
        sizes.push((env, color, points));
        let grid = [1, 64, n_envs];
        let _ = writeln!(
            text,
            "\n## {env}, work repeated in place by number of environments\n\n| repeated | {} | the last against once |\n|---|---|---|---|---|",
            grid.map(|n| format!("N = {n}")).join(" | ")
        );
        let mut points: Vec<(f64, f64)> = Vec::new();
        for repeat in REPEATS {
            let _ = write!(text, "| {repeat} |");
            for n in grid {
                let (of_all, figure) = step_of_all(root, env, n, repeat)?;
                let _ = write!(text, " {figure} |");
                println!("{env} {n} repeated {repeat}: {figure}");
                if n == n_envs {
                    points.push((repeat as f64, of_all));
                }
            }
            let _ = writeln!(text, " {:.1} |", points[points.len() - 1].1 / points[0].1);
        }
        repeats.push((env, color, points));
    }
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join("bench/growth.md"), text)?;
    let mut chart = Chart::new();
    panel(&mut chart, "number of environments", 1e6, &sizes);
    panel(&mut chart, "times the work is repeated", 64.0, &repeats);
    fs::write(root.join("bench/growth.svg"), chart.finish())?;
    println!("written to bench/growth.md and bench/growth.svg");
    Ok(())
}

/// Measures a step of all environments: seconds, and a cell of the table.
fn step_of_all(root: &Path, env: &str, n_envs: usize, repeat: usize) -> Result<(f64, String)> {
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["bench", "env", env, "--threads", "2", "--seconds", "1", "--json"]);
    command.args(["--envs", &n_envs.to_string(), "--repeat", &repeat.to_string()]);
    let output = crate::bench::peers::run(&mut command)?;
    let answer: serde_json::Value = serde_json::from_str(&output).context("our answer")?;
    let seconds = |key: &str| answer[key].as_f64().map(|rate| n_envs as f64 / rate).context("our figure");
    let (median, low, high) = (seconds("value")?, seconds("max")?, seconds("min")?);
    Ok((median, format!("{} ({} to {})", duration(median), duration(low), duration(high))))
}

pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}

/// Draws curves of seconds over `x`, with logarithmic axes.
pub(crate) fn panel(chart: &mut Chart, what: &'static str, to: f64, curves: &[Curve]) {
    let all = || curves.iter().flat_map(|(.., points)| points).map(|point| point.1);
    let (low, high) = (all().fold(f64::INFINITY, f64::min).log10().floor(), all().fold(0.0, f64::max).log10().ceil());
    let power = |i: i32| 10f64.powi(i);
    let y_ticks = (low as i32..=high as i32).map(|i| (power(i), duration(power(i)).replace(".00", "").replace(".0", "")));
    let x_ticks = curves.iter().take(1).flat_map(|(.., points)| points).step_by(2).map(|&(x, _)| (x, short(x)));
    let mut panel = chart.panel(
        Axis { label: what, from: 1.0, to, log: true, ticks: x_ticks.collect() },
        Axis {
            label: "time of a step of all",
            from: power(low as i32),
            to: power(high as i32),
            log: true,
            ticks: y_ticks.collect(),
        },
    );
    for (env, color, points) in curves {
        panel.line(points.iter().copied(), color);
        panel.label(env, color);
    }
}
