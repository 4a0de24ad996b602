//! How the cost of environment steps grows: `cargo xtask bench --growth` measures CartPole and Snake against the number of environments
//! and against work that is repeated, and writes `bench/growth.md` with the picture `bench/growth.svg`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

const ENVS: [(&str, usize, &str); 2] = [("cartpole", 4096, "#1b9e77"), ("snake", 1024, "#d95f02")];
const SIZES: [usize; 11] = [1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_000_000];
const REPEATS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const PANEL: f64 = 320.0;
const MARGIN: f64 = 45.0;

/// Name, colour, and points.
type Curve = (&'static str, &'static str, Vec<(f64, f64)>);

/// Measures, writes the tables and draws.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut text = String::from(
        "# How the cost of a step grows\n\nMade by `cargo xtask bench --growth`: random actions, two threads, medians with the least and the \
         greatest of five parts. The time\nof one step of all N environments together, and what it comes to for each.\n\n![growth](growth.svg)\n",
    );
    let (mut sizes, mut repeats) = (Vec::new(), Vec::new());
    for (env, n_envs, color) in ENVS {
        let _ =
            writeln!(text, "\n## {env}, against the number of environments\n\n| N | a step of all | for each |\n|---|---|---|");
        let mut points = Vec::new();
        for n in SIZES {
            let (low, median, high) = seconds(root, env, n, 1)?;
            let all = [median, low, high].map(|s| duration(s * n as f64));
            let _ = writeln!(text, "| {n} | {} ({} to {}) | {} |", all[0], all[1], all[2], duration(median));
            println!("{env} {n}: {} for all, {} for each", all[0], duration(median));
            points.push((n as f64, median * n as f64));
        }
        sizes.push((env, color, points));
        let _ = writeln!(
            text,
            "\n## {env}, {n_envs} environments, against work repeated in place\n\n| repeated | a step of all | against once |\n|---|---|---|"
        );
        let mut points: Vec<(f64, f64)> = Vec::new();
        for repeat in REPEATS {
            let (low, median, high) = seconds(root, env, n_envs, repeat)?;
            let all = [median, low, high].map(|s| duration(s * n_envs as f64));
            points.push((repeat as f64, median * n_envs as f64));
            let ratio = points[points.len() - 1].1 / points[0].1;
            let _ = writeln!(text, "| {repeat} | {} ({} to {}) | {ratio:.1} |", all[0], all[1], all[2]);
            println!("{env} repeated {repeat}: {}", all[0]);
        }
        repeats.push((env, color, points));
    }
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join("bench/growth.md"), text)?;
    let (width, height) = (2.0 * PANEL, PANEL);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    panel(&mut svg, 0.0, "number of environments", (1.0, 1e6), &sizes);
    panel(&mut svg, PANEL, "times the work is repeated", (1.0, 64.0), &repeats);
    svg.push_str("</svg>\n");
    fs::write(root.join("bench/growth.svg"), svg)?;
    println!("written to bench/growth.md and bench/growth.svg");
    Ok(())
}

/// Seconds a step of one environment: least, median, greatest.
fn seconds(root: &Path, env: &str, n_envs: usize, repeat: usize) -> Result<(f64, f64, f64)> {
    let mut command = Command::new(root.join("target/release/rl"));
    command.args(["bench", "env", env, "--threads", "2", "--seconds", "1", "--json"]);
    command.args(["--envs", &n_envs.to_string(), "--repeat", &repeat.to_string()]);
    let output = crate::bench::run(&mut command)?;
    let answer: serde_json::Value = serde_json::from_str(&output).context("our answer")?;
    let second = |key: &str| answer[key].as_f64().map(|rate| 1.0 / rate).context("our figure");
    Ok((second("max")?, second("value")?, second("min")?))
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}

/// Curves of seconds over `x`, both logarithmic, with a line of proportional growth.
fn panel(svg: &mut String, left: f64, what: &str, (from, to): (f64, f64), curves: &[Curve]) {
    let all = || curves.iter().flat_map(|(.., points)| points).map(|point| point.1);
    let low = 10f64.powf(all().fold(f64::INFINITY, f64::min).log10().floor());
    let high = 10f64.powf(all().fold(0.0, f64::max).log10().ceil());
    let size = PANEL - 2.0 * MARGIN;
    let x = |value: f64| left + MARGIN + size * (value / from).ln() / (to / from).ln();
    let y = |value: f64| MARGIN + size * (high / value).ln() / (high / low).ln();
    let (bottom, right) = (MARGIN + size, left + MARGIN + size);
    let _ = writeln!(svg, "<path d=\"M{} {MARGIN}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>", left + MARGIN);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{what}</text>", left + PANEL / 2.0, bottom + 32.0);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">time of a step of all</text>", left + 5.0, MARGIN - 25.0);
    let mut power = low;
    while power <= high * 1.01 {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + MARGIN - 4.0,
            y(power) + 4.0,
            duration(power).replace(".00", "").replace(".0", "")
        );
        power *= 10.0;
    }
    for tick in curves.first().iter().flat_map(|(.., points)| points).map(|point| point.0).step_by(2) {
        let label = if tick >= 1e6 {
            "1 M".into()
        } else if tick >= 1e3 {
            format!("{:.0} k", tick / 1e3)
        } else {
            tick.to_string()
        };
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", x(tick), bottom + 15.0);
    }
    for (i, (env, color, points)) in curves.iter().enumerate() {
        let line: String = points.iter().map(|&(a, b)| format!("{:.1},{:.1} ", x(a), y(b))).collect();
        let _ = writeln!(svg, "<polyline points=\"{line}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"{color}\">{env}</text>",
            left + MARGIN + 12.0,
            MARGIN + 14.0 * i as f64
        );
    }
}
