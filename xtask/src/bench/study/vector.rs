//! Time of a step by number of environments, for each way to step CartPole.

use anyhow::{Context as _, Result};
use std::fmt::Write as _;

use crate::bench::growth::{Curve, duration, panel};
use crate::bench::peers::spread;
use crate::bench::study::programs::Study;
use crate::plot::Chart;

const SIZES: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];
/// Most environments that get a process each.
const PROCESSES: usize = 64;
const ROUNDS: usize = 3;

/// A peer's kind, or our environment and its threads.
enum How {
    Peer(&'static str),
    Ours(&'static str),
}

const METHODS: [(&str, &str, How); 8] = [
    ("Gymnasium, SyncVectorEnv", "#1f78b4", How::Peer("sync")),
    ("Gymnasium, AsyncVectorEnv", "#a6cee3", How::Peer("async")),
    ("Gymnasium, CartPoleVectorEnv (NumPy)", "#6a3d9a", How::Peer("vector")),
    ("Stable-Baselines3, DummyVecEnv", "#b2df8a", How::Peer("dummy")),
    ("Stable-Baselines3, SubprocVecEnv", "#33a02c", How::Peer("subproc")),
    ("ours, Gymnasium in 2 workers", "#ff7f00", How::Ours("gym:CartPole-v1 --threads 2")),
    ("ours, 1 thread", "#e31a1c", How::Ours("cartpole --threads 1")),
    ("ours, 2 threads", "#000000", How::Ours("cartpole --threads 2")),
];

/// Measures all ways, and computes their turning points.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut curves: Vec<Curve> = METHODS.iter().map(|&(name, color, _)| (name, color, Vec::new())).collect();
    for n in SIZES {
        for ((name, _, how), (.., points)) in METHODS.iter().zip(&mut curves) {
            if n > PROCESSES && matches!(how, How::Peer("async" | "subproc")) {
                continue;
            }
            let mut rates = Vec::new();
            for _ in 0..ROUNDS {
                rates.push(match how {
                    How::Peer(kind) => {
                        study.peer("env_vector.py", &format!("CartPole-v1 {n} 1 {kind}"))?.as_f64().context("a rate")?
                    }
                    How::Ours(env) => study.bench(&format!("env {env} --envs {n} --seconds 1"))?,
                });
            }
            let seconds = n as f64 / spread(rates).0;
            println!("{name}, {n}: {}", duration(seconds));
            points.push((n as f64, seconds));
        }
    }
    let mut text = study.head(
        "Time of a step by number of environments",
        &format!(
            "CartPole, random actions: the time of one step of all N environments, medians of {ROUNDS} runs. Methods with a process per environment run up \
             to {PROCESSES}\nenvironments. The time is modelled as `a + b N`, least squares of relative errors; the turning point `a / b` is the number of environments\nwhose cost equals the fixed cost: below \
             it, additional environments are nearly free.\n\n![time of a step](study-vector.svg)\n"
        ),
    );
    let sizes: String = SIZES.iter().map(|n| format!(" {n} |")).collect();
    let _ = writeln!(text, "| way |{sizes} a | b | turning point |\n|---|{}---|---|---|", "---|".repeat(SIZES.len()));
    for (name, _, points) in &curves {
        let cells: String =
            (0..SIZES.len()).map(|i| points.get(i).map_or(" |".into(), |point| format!(" {} |", duration(point.1)))).collect();
        let (a, b) = fit(points);
        let _ = writeln!(text, "| {name} |{cells} {} | {} | {:.0} |", duration(a), duration(b), a / b);
    }
    let mut chart = Chart::new();
    panel(&mut chart, "number of environments", 4096.0, &curves);
    study.write(&text, Some(chart))
}

/// Fits `a + b n` to points (n, seconds) by relative errors; neither is negative.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let sum = |f: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(n, s)| f(1.0 / s, n / s)).sum::<f64>();
    let (aa, ab, bb, a1, b1) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y), sum(&|x, _| x), sum(&|_, y| y));
    let det = aa * bb - ab * ab;
    let (a, b) = ((a1 * bb - b1 * ab) / det, (aa * b1 - ab * a1) / det);
    (a.max(0.0), b.max(f64::MIN_POSITIVE))
}
