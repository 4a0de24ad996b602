//! The board of `rl train`: pictures of it, and what it costs.
//!
//! `cargo xtask bench --board` trains at a terminal of util-linux's `script`, and writes `bench/board.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::{peers_python, run, spread};
use crate::process::machine;

/// Trainings whose board is shown.
const SHOWN: [(&str, &str); 2] = [
    ("CartPole", "cartpole --steps 600000"),
    ("32 environments that block, one millisecond a step", "slow_cartpole --steps 150000"),
];
const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];
/// Training with and without a board.
const MEASURED: &str = "cartpole --steps 2000000";
const SETTINGS: &str = "--set eval_episodes=1 --set checkpoint_every=1000000000";
const ROUNDS: usize = 9;

/// Captures, measures, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let python = peers_python(root, "target/peers-screen", "requirements-screen.txt")?;
    let mut text = format!(
        "# The board of `rl train`\n\nWritten by `cargo xtask bench --board` on {}.\n\n## Its cost\n\n\
         `rl train {MEASURED}` at a terminal, with the board and with `--plain`, in turn: medians of {ROUNDS} runs with minimum and\n\
         maximum, and of the ratios of neighbours.\n\n| terminal | board, env steps/s | `--plain` | ratio |\n|---|---|---|---|\n",
        machine(root)
    );
    for (columns, rows) in SIZES {
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..ROUNDS {
            let board = train(root, MEASURED, columns, rows)?;
            let plain = train(root, &format!("{MEASURED} --plain"), columns, rows)?;
            rates[0].push(board);
            rates[1].push(plain);
            ratios.push(board / plain);
        }
        let [board, plain] = rates.map(spread);
        let (ratio, low, high) = spread(ratios);
        let cell = |(median, low, high): (f64, f64, f64)| format!("{median:.0} ({low:.0} to {high:.0})");
        let row = format!("| {columns} x {rows} | {} | {} | {ratio:.3} ({low:.3} to {high:.3}) |", cell(board), cell(plain));
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    for (name, args) in SHOWN {
        for (columns, rows) in SIZES {
            train(root, args, columns, rows)?;
            let script = root.join("xtask/peers/screen.py");
            let mut command = Command::new(&python);
            command.arg(script).arg(root.join("target/board-written")).args([columns.to_string(), rows.to_string()]);
            let _ = writeln!(text, "\n## {name}, {columns} x {rows}\n\n```text\n{}\n```", run(&mut command)?.trim_end());
        }
    }
    Ok(fs::write(root.join("bench/board.md"), text)?)
}

/// Trains at a terminal of that size; returns env steps per second.
fn train(root: &Path, args: &str, columns: u16, rows: u16) -> Result<f64> {
    // Shown on the board.
    let run_dir = "target/board-runs";
    let dir = root.join(run_dir);
    let _ = fs::remove_dir_all(&dir);
    let program = root.join("target/release/rl");
    let line = format!("stty rows {rows} cols {columns}; {} train {args} {SETTINGS} --run-dir {run_dir}", program.display());
    let mut script = Command::new("script");
    script.args(["-qefc", &line]).arg(root.join("target/board-written"));
    run(script.current_dir(root).env("TERM", "xterm").env("SHELL", "/bin/sh").stdin(std::process::Stdio::null()))?;
    let metrics = fs::read_to_string(dir.join("metrics.csv"))?;
    let column =
        metrics.lines().next().and_then(|names| names.split(',').position(|name| name == "time/fps")).context("time/fps")?;
    let last = metrics.lines().filter_map(|row| row.split(',').nth(column)?.parse().ok()).next_back();
    last.context("a row of metrics.csv")
}
