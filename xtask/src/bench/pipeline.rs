//! Pipeline efficiency: the share of waiting that is hidden behind updates.
//!
//! `cargo xtask bench --pipeline` measures the presets of `rl bench pipeline` and a CPU-bound environment, and writes
//! `bench/pipeline.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::bench::peers::{run, spread};

/// Repetitions per measurement, interleaved.
const ROUNDS: usize = 3;

/// Name, and the arguments of `rl bench pipeline`.
const CASES: [(&str, &str); 4] = [
    ("32 environments, 64 steps, updates half as long as collecting", "--preset half-busy --seconds 60"),
    ("the same, collecting and updates in turn", "--preset half-busy --sync --seconds 30"),
    ("256 environments, 32 steps, updates half as long as collecting", "--preset wide --seconds 30"),
    ("32 environments, updates as long as collecting", "--preset balanced --seconds 60"),
];
/// Case that takes minutes and is measured once.
const LARGE: (&str, &str) = (
    "32 environments, 256 steps, PPO with batch 512, 30 epochs, nets of 1024-1024-512-256; one run",
    "--preset large-nets --threads 2 --seconds 100",
);

/// CPU-bound training, where collecting and updates cost about the same.
const BOUND: &str = "train acrobot --envs 64 --steps 6e6 --set ppo.n_steps=128 --set ppo.batch_size=8192 --set ppo.n_epochs=4 \
                     --set hidden=[16] --set normalize_obs=false --set eval_episodes=1 --set checkpoint_every=1000000000 --json";
const IN_TURN: &str = "--threads 1";
const AT_ONCE: &str = "--threads 2 --set pipeline=overlapped";

/// Measures, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let load = || {
        fs::read_to_string("/proc/loadavg")
            .map_or("unknown".into(), |text| text.split(' ').take(2).collect::<Vec<_>>().join(", "))
    };
    let before = load();
    let mut results = vec![Vec::new(); CASES.len()];
    let (mut in_turn, mut at_once, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for ((what, args), results) in CASES.iter().zip(&mut results) {
            let result = rl(root, &format!("bench pipeline --json {args}"))?;
            println!("{what}: {} env steps/s", result["value"]);
            results.push(result);
        }
        let (a, b) = (train(root, IN_TURN)?, train(root, AT_ONCE)?);
        println!("bound by the CPU: {a:.0} and {b:.0} env steps/s");
        in_turn.push(a);
        at_once.push(b);
        ratios.push(b / a);
    }
    results.push(vec![rl(root, &format!("bench pipeline --json {}", LARGE.1))?]);
    let mut text = format!(
        "# The pipeline\n\nWritten by `cargo xtask bench --pipeline`: medians of {ROUNDS} interleaved runs each, with minimum and maximum. \
         Load averages over\none and five minutes: {before} before, {} after. An environment's step sleeps an exponential time of mean \
         50 ms; the ideal rate is the\nnumber of environments divided by that mean. Updates of adjustable cost compute on one thread.\n\n\
         | what | `rl bench pipeline` | env steps/s | of the ideal | the learner computed | and waited |\n|---|---|---|---|---|---|\n",
        load()
    );
    for ((what, args), results) in CASES.iter().chain([&LARGE]).zip(&results) {
        let of = |key: &str| spread(results.iter().map(|result| result[key].as_f64().unwrap_or(f64::NAN)).collect());
        let (rate, least, most) = of("value");
        let percent = |key| {
            let (median, least, most) = of(key);
            format!("{:.1}% ({:.1} to {:.1})", 100.0 * median, 100.0 * least, 100.0 * most)
        };
        let [ideal, busy, waited] = ["share_of_ideal", "learner_busy", "learner_waited"].map(percent);
        let _ = writeln!(text, "| {what} | `{args}` | {rate:.0} ({least:.0} to {most:.0}) | {ideal} | {busy} | {waited} |");
    }
    let k = |values: Vec<f64>| {
        let (median, least, most) = spread(values);
        format!("{:.0} k ({:.0} to {:.0})", median / 1e3, least / 1e3, most / 1e3)
    };
    let (ratio, least, most) = spread(ratios);
    let _ = write!(
        text,
        "\nCPU-bound environments, with a thread each for collecting and updates, which cost about the same: `rl {}`.\n\
         One after the other (`{IN_TURN}`) {} env steps/s, overlapped (`{AT_ONCE}`) {}: {ratio:.2} times ({least:.2} to {most:.2}).\n",
        BOUND.trim_end_matches(" --json"),
        k(in_turn),
        k(at_once),
    );
    fs::write(root.join("bench/pipeline.md"), &text)?;
    println!("{text}");
    Ok(())
}

/// Runs `rl` and parses the last line of its output.
fn rl(root: &Path, args: &str) -> Result<Value> {
    let output = run(Command::new(root.join("target/release/rl")).args(args.split(' ')))?;
    serde_json::from_str(output.lines().last().unwrap_or_default()).context("the answer of rl")
}

fn train(root: &Path, how: &str) -> Result<f64> {
    let dir = root.join("target/bench-runs");
    let _ = fs::remove_dir_all(&dir);
    let result = rl(root, &format!("{BOUND} {how} --run-dir {}", dir.display()))?;
    result["env_steps_per_s"].as_f64().context("env steps a second")
}
