//! Learning with stale rollouts, with and without the correction.
//!
//! `cargo xtask bench --lag` trains on CartPole and writes `bench/lag.md`, `bench/lag-ppo.svg` and `bench/lag-a2c.svg`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::bench::learning::{Plot, Returns, Variant, draw_all};

/// Return from which CartPole counts as solved.
const SOLVED: f64 = 475.0;

const PLOTS: [(Plot, &str); 2] = [
    (
        Plot {
            title: "PPO on CartPole, rollouts that lag: return, mean of 100 episodes",
            seeds: 300..310,
            steps: 100_000.0,
            variants: &[
                Variant { label: "lag 0", color: "#555555", args: "cartpole --eval-every 5000 --set pipeline=sync" },
                Variant {
                    label: "lag 1",
                    color: "#1b9e77",
                    args: "cartpole --eval-every 5000 --set pipeline=overlapped --set max_lag=1",
                },
                Variant {
                    label: "lag 4",
                    color: "#7570b3",
                    args: "cartpole --eval-every 5000 --set pipeline=overlapped --set max_lag=4",
                },
            ],
        },
        "bench/lag-ppo.svg",
    ),
    (
        Plot {
            title: "A2C on CartPole, rollouts that lag: return, mean of 100 episodes",
            seeds: 300..310,
            steps: 500_000.0,
            variants: &[
                Variant { label: "lag 0", color: "#555555", args: "cartpole --algo a2c --eval-every 25000 --set pipeline=sync" },
                Variant {
                    label: "lag 1",
                    color: "#1b9e77",
                    args: "cartpole --algo a2c --eval-every 25000 --set pipeline=overlapped --set max_lag=1",
                },
                Variant {
                    label: "lag 4",
                    color: "#7570b3",
                    args: "cartpole --algo a2c --eval-every 25000 --set pipeline=overlapped --set max_lag=4",
                },
                Variant {
                    label: "lag 4, not corrected",
                    color: "#d95f02",
                    args: "cartpole --algo a2c --eval-every 25000 --set pipeline=overlapped --set max_lag=4 --set a2c.vtrace=false",
                },
            ],
        },
        "bench/lag-a2c.svg",
    ),
];

/// Trains all variants and writes the table.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let mut text = String::from(
        "# Learning with stale rollouts\n\nWritten by `cargo xtask bench --lag`: CartPole with the presets, ten seeds that were not used for \
         tuning. Returns are greedy means over\n100 episodes, evaluated twenty times during training and at the end. Solved means a return \
         of 475.\n\n\
         | runs | solved during training | solved at the end | mean at the end | minimum at the end |\n|---|---|---|---|---|\n",
    );
    for (plot, file) in &PLOTS {
        for (Variant { label, .. }, returns) in plot.variants.iter().zip(draw_all(root, plot, file)?) {
            let solved = |of: fn(&Returns) -> f64| returns.iter().filter(|r| of(r) >= SOLVED).count();
            let (ever, at_end) = (solved(|r| r.best), solved(|r| r.last));
            let mean = returns.iter().map(|r| r.last).sum::<f64>() / returns.len() as f64;
            let least = returns.iter().map(|r| r.last).fold(f64::INFINITY, f64::min);
            let n = returns.len();
            let algo = plot.title.split(' ').next().unwrap_or_default();
            let _ = writeln!(text, "| {algo}, {label} | {ever} of {n} | {at_end} of {n} | {mean:.1} | {least:.1} |");
        }
    }
    text.push_str("\n![PPO](lag-ppo.svg)\n\n![A2C](lag-a2c.svg)\n");
    fs::write(root.join("bench/lag.md"), &text)?;
    println!("{text}");
    Ok(())
}
