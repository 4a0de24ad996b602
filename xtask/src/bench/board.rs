//! The board of `rl train`: pictures of it, and what it costs.
//!
//! `cargo xtask bench --board` trains at a terminal of util-linux's `script`, and writes `bench/board.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bench::peers::{peers_python, run, spread};
use crate::process::{Process, machine};

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
         maximum, and of the ratios of neighbours. The share is that of the thread that draws in the processor time of the program.\n\n\
         | terminal | board, env steps/s | `--plain` | ratio | share |\n|---|---|---|---|---|\n",
        machine(root)
    );
    for (columns, rows) in SIZES {
        let (mut rates, mut ratios, mut shares) = ([Vec::new(), Vec::new()], Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (board, share) = train(root, MEASURED, columns, rows)?;
            let (plain, _) = train(root, &format!("{MEASURED} --plain"), columns, rows)?;
            rates[0].push(board);
            rates[1].push(plain);
            ratios.push(board / plain);
            shares.push(100.0 * share.context("no thread has drawn the board")?);
        }
        let cell = |values, digits| {
            let (median, low, high) = spread(values);
            format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
        };
        let [board, plain] = rates.map(|rates| cell(rates, 0));
        let (ratio, share) = (cell(ratios, 3), cell(shares, 2));
        let row = format!("| {columns} x {rows} | {board} | {plain} | {ratio} | {share}% |");
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

/// Trains at a terminal of that size.
///
/// Returns env steps per second, and the share of the board's thread in the processor time.
fn train(root: &Path, args: &str, columns: u16, rows: u16) -> Result<(f64, Option<f64>)> {
    // Shown on the board.
    let run_dir = "target/board-runs";
    let dir = root.join(run_dir);
    let _ = fs::remove_dir_all(&dir);
    let program = root.join("target/release/rl");
    let line = format!("stty rows {rows} cols {columns}; {} train {args} {SETTINGS} --run-dir {run_dir}", program.display());
    let mut script = Command::new("script");
    script.args(["-qefc", &line]).arg(root.join("target/board-written"));
    script.current_dir(root).env("TERM", "xterm").env("SHELL", "/bin/sh");
    let mut process = Process::start(&mut script, &root.join("target/board-stderr"))?;
    let mut share = None;
    let status = loop {
        if let Some(status) = process.ended_within(Duration::from_millis(500))? {
            break status;
        }
        share = share_of_board(&program).or(share);
    };
    if !status.success() {
        bail!("{line} failed:\n{}", process.complaint());
    }
    let metrics = fs::read_to_string(dir.join("metrics.csv"))?;
    let column =
        metrics.lines().next().and_then(|names| names.split(',').position(|name| name == "time/fps")).context("time/fps")?;
    let last = metrics.lines().filter_map(|row| row.split(',').nth(column)?.parse().ok()).next_back();
    Ok((last.context("a row of metrics.csv")?, share))
}

/// Returns the share of the board's thread in a program's processor time.
fn share_of_board(program: &Path) -> Option<f64> {
    let mut processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let process = processes.find(|process| fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program))?;
    let (mut all, mut board) = (0.0, 0.0);
    for thread in fs::read_dir(process.join("task")).ok()?.flatten().map(|entry| entry.path()) {
        let nanoseconds = fs::read_to_string(thread.join("schedstat")).ok()?.split(' ').next()?.parse::<f64>().ok()?;
        all += nanoseconds;
        if fs::read_to_string(thread.join("comm")).ok()?.trim_end() == "board" {
            board += nanoseconds;
        }
    }
    (board > 0.0).then_some(board / all)
}
