//! The workloads `http-large` and `http-small`, beside each other.
//!
//! `cargo xtask bench --http [N]` trains CartPole that answers after 50 ms (exponential) and writes `bench/http.md`. With N,
//! rollouts are N times shorter, and the record says so: whole ones take most of an hour.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bench::learning::Metrics;
use crate::process::{self, Process, machine};

/// Workload, with its steps of a rollout and its environments.
const WORKLOADS: [(&str, u64, u64); 2] = [("http-small", 4096, 8), ("http-large", 8192, 32)];
/// Rollouts that are learnt from; the first is collected while nothing is learnt.
const ROLLOUTS: u64 = 3;
const SETTINGS: &str = "--set env.latency=exp --set env.latency_ms=50 --set eval_episodes=1 --set eval_max_steps=10 --set \
                        checkpoint_every=1000000000";

/// Measures, and writes the record.
pub(crate) fn measure(root: &Path, divisor: u64) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let [argument, shorter] = if divisor == 1 {
        [String::new(), String::new()]
    } else {
        [format!(" {divisor}"), format!(", {divisor} times shorter than its own")]
    };
    let mut text = format!(
        "# Workloads of environments over HTTP\n\nWritten by `cargo xtask bench --http{argument}` on {}: each workload trains CartPole that \
         answers after 50 ms\n(exponential mean) for {ROLLOUTS} rollouts{shorter}; one is learnt from while the next is collected. The ideal is \
         the number of\nenvironments divided by 50 ms. Peak memory is that of the whole program; power that of the processor's package, where the machine reports it.\n\n\
         | workload | environments, steps of a rollout | env steps/s | of the ideal | learner computes | cores used | power | peak memory |\n\
         |---|---|---|---|---|---|---|---|\n",
        machine(root)
    );
    let dir = root.join("target/http-runs");
    for (name, n_steps, n_envs) in WORKLOADS {
        let n_steps = n_steps / divisor;
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        let mut command = Command::new(root.join("target/release/rl"));
        command.args(["train", "slow_cartpole", "--preset", name]).args(SETTINGS.split(' '));
        command.args(["--set", &format!("ppo.n_steps={n_steps}"), "--steps", &(ROLLOUTS * n_steps * n_envs).to_string()]);
        let mut process = Process::start(command.arg("--run-dir").arg(dir.join("run")), &dir.join("err"))?;
        let (mut peak, begin, energy) = (0.0f64, Instant::now(), process::energy_j());
        let status = loop {
            if let Some(status) = process.ended_within(Duration::from_millis(200))? {
                break status;
            }
            // A process that has just ended has no memory.
            peak = peak.max(process::status(process.id(), "VmHWM:").map_or(0.0, |kib| f64::from(kib) / 1024.0));
        };
        ensure!(status.success(), "{name}: {status}\n{}", process.complaint());
        let energy = energy.zip(process::energy_j()).map(|(before, after)| after - before);
        let power = energy.map_or("not reported".into(), |joules| format!("{:.1} W", joules / begin.elapsed().as_secs_f64()));
        let metrics = Metrics::read(&dir.join("run"))?;
        let (rate, elapsed) = (metrics.last("time/fps")?, metrics.last("time/time_elapsed")?);
        let row = format!(
            "| {name} | {n_envs}, {n_steps} | {rate:.0} | {:.0}% | {:.0}% of the time | {:.2} | {power} | {peak:.0} MiB |",
            100.0 * rate * 0.05 / n_envs as f64,
            100.0 * (1.0 - metrics.last("time/learner_waited")? / elapsed),
            metrics.mean("system/cpu_cores")?
        );
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    let _ = fs::remove_dir_all(&dir);
    Ok(fs::write(root.join("bench/http.md"), text)?)
}
