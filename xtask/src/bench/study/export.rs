//! Exported policies: time of an action, returns in Gymnasium, bits on targets.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::bench::peers::{peers_python, run};
use crate::bench::presets::last_line;
use crate::bench::study::programs::Study;

/// Rounds of the programs that act.
const ROUNDS: usize = 5;
/// Episodes of an evaluation, and of playing in Gymnasium.
const EPISODES: usize = 100;
/// Observations of each preset, and weighted multiply-adds of a target's program.
///
/// A slow target sees fewer observations.
const OBSERVATIONS: [&str; 2] = ["1000000", "200000000000"];

/// A run to export.
struct Leaving {
    /// Arguments of `rl train`.
    train: &'static str,
    /// Name of the exported files.
    name: &'static str,
    gymnasium: &'static str,
    /// Hidden layers and activation, for a network of PyTorch.
    network: &'static str,
    /// Rest of its name in the tables.
    about: &'static str,
}

/// CartPole without velocities, which an LSTM remembers.
const BLIND: &str = "cartpole --envs 32 --set env.hide=velocities --set memory=lstm --set ppo.n_steps=128 --set ppo.batch_size=1024 --steps 1_000_000";

const POLICIES: [Leaving; 4] = [
    Leaving { train: "cartpole", name: "cartpole", gymnasium: "CartPole-v1", network: "64,64 tanh", about: "" },
    Leaving {
        train: BLIND,
        name: "blind",
        gymnasium: "CartPole-v1",
        network: "64,64 tanh",
        about: " behind an LSTM of 64, without velocities",
    },
    Leaving { train: "pendulum --algo sac", name: "pendulum", gymnasium: "Pendulum-v1", network: "256,256 relu", about: "" },
    Leaving { train: "gym:LunarLander-v3", name: "lander", gymnasium: "LunarLander-v3", network: "64,64 tanh", about: "" },
];

/// Trains, exports, acts and plays.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let python = peers_python(study.root, "target/peers-export", "requirements-export.txt")?;
    let study = &Study { root: study.root, name: study.name, python };
    let mut text = study.head(
        "Exported policies",
        &format!(
            "Nanoseconds of a greedy action, one observation at a time, on one thread: medians of {ROUNDS} interleaved rounds, with the lowest and the\n\
             highest. PyTorch runs a network of the same sizes.\n"
        ),
    );
    let dir = study.root.join("target/study-export");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let mut returns = String::new();
    for case in &POLICIES {
        act_and_play(study, case, &dir, &mut text, &mut returns)?;
    }
    let _ = writeln!(
        text,
        "\nReturns of {EPISODES} greedy episodes, with their standard deviation: `rl eval` in our environment or in workers, and `tools/play_onnx.py`, which is\n\
         Gymnasium, NumPy and ONNX Runtime.\n\n| environment | rl eval | ONNX Runtime |\n|---|---|---|\n{returns}"
    );
    study.write(&text, None)
}

fn act_and_play(study: &Study<'_>, case: &Leaving, dir: &Path, text: &mut String, returns: &mut String) -> Result<()> {
    let Leaving { train, name, gymnasium, network, about } = case;
    study.train(train, 0)?;
    let saved = study.root.join("target/study-runs");
    for (form, extension) in [("c", "c"), ("onnx", "onnx")] {
        let out = dir.join(format!("{name}.{extension}"));
        last_line(study.rl().args(["export", "--json", "--as", form]).arg(&saved).arg("--out").arg(&out))?;
    }
    let times = study.peer("acting.py", &format!("{} {name} {network} {ROUNDS}", dir.display()))?;
    let times = times.as_object().context("times by program")?;
    if text.lines().all(|line| !line.starts_with('|')) {
        let names: Vec<_> = times.keys().map(String::as_str).collect();
        let _ = writeln!(text, "| policy | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    }
    let cell = |spread: &serde_json::Value| {
        let of = |i: usize| spread[i].as_f64().unwrap_or(f64::NAN);
        format!("{:.0} ({:.0} to {:.0})", of(0), of(1), of(2))
    };
    let cells: Vec<_> = times.values().map(cell).collect();
    let _ = writeln!(text, "| {gymnasium}, {network}{about} | {} |", cells.join(" | "));
    let ours = last_line(study.rl().args(["eval", "--json", "--episodes", &EPISODES.to_string()]).arg(&saved))?;
    let number = |key: &str| ours[key].as_f64().with_context(|| key.to_string());
    let script = study.root.join("tools/play_onnx.py");
    let model = dir.join(format!("{name}.onnx"));
    let mut play = Command::new(&study.python);
    let played = run(play.arg(script).arg(model).args([gymnasium, "--episodes", &EPISODES.to_string()]))?;
    let played = played.lines().last().and_then(|line| line.rsplit_once("return ")).context("a return")?.1;
    let _ =
        writeln!(returns, "| {gymnasium}{about} | {:.1} +- {:.1} | {played} |", number("return_mean")?, number("return_std")?);
    Ok(())
}

/// Runs the test of all presets, and sums up what it prints.
///
/// The record is written after each preset: a study that is stopped leaves what it has seen.
pub(crate) fn measure_bits(study: &Study<'_>) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--release", "--package", "rl-runtime", "--test", "program", "--target-dir"]);
    cargo.arg(study.root.join("target/native")).args(["on_observations_of_rollouts", "--", "--nocapture"]);
    // Software multiply-adds take ten times as long.
    cargo.env("RUSTFLAGS", "-C target-cpu=native").stdout(Stdio::piped());
    let [n, cost] = OBSERVATIONS;
    cargo.current_dir(study.root).envs([("RL_EXPORT_ALL", "1"), ("RL_EXPORT_N", n), ("RL_EXPORT_COST", cost)]);
    let mut test = cargo.spawn().context("cargo test")?;
    let head = study.head(
        "Bits of exported policies",
        "Observations of rollouts on which actions, drawn and greedy, and the network's outputs have the bits of the run, by compiler: presets of built-in\n\
         environments, those that saw a million, the observations of each, and the differing ones. Large networks see fewer on slow targets.\n",
    );
    let mut targets: Vec<(String, Vec<usize>)> = Vec::new();
    for line in BufReader::new(test.stdout.take().context("the test's output")?).lines() {
        let line = line?;
        eprintln!("{line}");
        // "cartpole ppo: 1000000 observations, gcc -O2: 0 differ, 0.1 s"
        if !line.contains(" 0 differ, ") {
            continue;
        }
        let (_, rest) = line.split_once(": ").context("a preset")?;
        let (seen, rest) = rest.split_once(" observations, ").context("observations")?;
        let (target, _) = rest.rsplit_once(": ").context("a target")?;
        let at = targets.iter().position(|row| row.0 == target).unwrap_or(targets.len());
        if at == targets.len() {
            targets.push((target.into(), Vec::new()));
        } else if at == 0 {
            study.write(&format!("{head}{}", table(&targets, n)), None)?;
        }
        targets[at].1.push(seen.parse()?);
    }
    ensure!(test.wait()?.success(), "the test failed: see its output");
    study.write(&format!("{head}{}", table(&targets, n)), None)
}

/// Tabulates the numbers of observations that each target saw of each preset.
///
/// `whole` is all of them.
fn table(targets: &[(String, Vec<usize>)], whole: &str) -> String {
    let mut text =
        String::from("| target | presets | with a million | observations of each | differing |\n|---|---|---|---|---|\n");
    for (target, seen) in targets {
        let n_whole = seen.iter().filter(|seen| seen.to_string() == whole).count();
        let (least, most) = (seen.iter().min().unwrap_or(&0), seen.iter().max().unwrap_or(&0));
        let _ = writeln!(text, "| `{target}` | {} | {n_whole} | {least} to {most} | 0 |", seen.len());
    }
    text
}
