//! Programs that a study runs, and its record.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::bench::learning::Metrics;
use crate::bench::peers::run;
use crate::bench::presets::last_line;
use crate::plot::Chart;
use crate::process::machine;

/// Name and programs of a study.
pub(crate) struct Study<'a> {
    pub(super) root: &'a Path,
    pub(super) name: &'static str,
    /// The peers' Python.
    pub(super) python: PathBuf,
}

/// Finished training.
pub(crate) struct Trained {
    /// Env steps per second.
    pub(super) rate: f64,
    /// Processor seconds per second, child processes included.
    pub(super) cores: f64,
    /// Last event.
    pub(super) done: Value,
    pub(super) metrics: Metrics,
}

impl Study<'_> {
    pub(super) fn rl(&self) -> Command {
        let mut command = Command::new(self.root.join("target/release/rl"));
        command.env("RL_PYTHON", &self.python);
        command
    }

    /// Trains with these arguments, without checkpoints before the end.
    pub(super) fn train(&self, args: &str, seed: u64) -> Result<Trained> {
        let dir = self.root.join("target/study-runs");
        let _ = fs::remove_dir_all(&dir);
        let mut command = self.rl();
        command.args(["train", "--json", "--set", "checkpoint_every=1000000000", "--seed", &seed.to_string()]);
        command.args(args.split_whitespace()).arg("--run-dir").arg(&dir);
        let (begin, used) = (Instant::now(), children_cpu_s()?);
        let done = last_line(&mut command)?;
        let cores = (children_cpu_s()? - used) / begin.elapsed().as_secs_f64();
        let rate = done["env_steps_per_s"].as_f64().context("env_steps_per_s")?;
        Ok(Trained { rate, cores, done, metrics: Metrics::read(&dir)? })
    }

    /// Returns env steps per second or updates per second of `rl bench`.
    pub(super) fn bench(&self, args: &str) -> Result<f64> {
        self.bench_answer(args, None)?["value"].as_f64().context("value")
    }

    /// Returns the last object that `rl bench` prints, with `RL_ISA` set to `isa`.
    pub(super) fn bench_answer(&self, args: &str, isa: Option<&str>) -> Result<Value> {
        let mut command = self.rl();
        command.envs(isa.map(|isa| ("RL_ISA", isa)));
        last_line(command.arg("bench").args(args.split_whitespace()).arg("--json"))
    }

    /// Runs a peer's script, which prints a JSON object.
    pub(super) fn peer(&self, script: &str, args: &str) -> Result<Value> {
        let mut command = Command::new(&self.python);
        let output = run(command.arg(self.root.join("xtask/peers").join(script)).args(args.split_whitespace()))?;
        serde_json::from_str(output.lines().last().unwrap_or_default()).with_context(|| format!("{script}'s answer"))
    }

    /// Returns the first lines of the record.
    pub(super) fn head(&self, title: &str, about: &str) -> String {
        format!("# {title}\n\nWritten by `cargo xtask bench --study {}` on {}.\n{about}\n", self.name, machine(self.root))
    }

    /// Writes the record, and its picture if there is one.
    pub(super) fn write(&self, text: &str, chart: Option<Chart>) -> Result<()> {
        let at = |end: &str| self.root.join(format!("bench/study-{}.{end}", self.name));
        if let Some(chart) = chart {
            fs::write(at("svg"), chart.finish())?;
        }
        fs::write(at("md"), text)?;
        println!("{text}");
        Ok(())
    }
}

/// Processor seconds of all ended child processes and their descendants.
fn children_cpu_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program may hold spaces and parentheses.
    let fields = stat.rsplit_once(')').context("/proc/self/stat")?.1.split_whitespace().skip(13).take(2);
    Ok(fields.map(str::parse::<f64>).sum::<Result<f64, _>>()? / 100.0)
}
