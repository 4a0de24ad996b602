//! `rl monitor`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::show::board::Board;
use crate::cli::show::full_screen::FullScreen;
use crate::cli::show::live::{EVERY, Painter};
use crate::cli::show::recorded::{Recorded, settings};
use crate::cli::signals;
use crate::{Error, interrupt, print, run::run_dir};

#[derive(Args)]
#[command(after_help = "\
Example:
  rl monitor runs/cartpole-ppo-seed0-1

Shows the board of `rl train` from the files of the run, in any terminal on the same disk, until Ctrl-C. If stdout is not a
terminal, it prints the latest numbers and ends. With --json, it prints the latest row, and every newer one until the run ends.")]
pub(crate) struct MonitorArgs {
    /// The directory of a run
    run: PathBuf,
}

pub(crate) fn run(args: &MonitorArgs, json: bool) -> Result<ExitCode, Error> {
    let run = &args.run;
    let mut recorded = Recorded::open(run)?;
    let config = settings(run)?;
    if json {
        follow(run, recorded, config.run.steps);
        return Ok(ExitCode::SUCCESS);
    }
    let mut board = Board::new(&config, run.display().to_string());
    recorded.take(|value| board.push(value));
    if !FullScreen::is_possible() {
        board.lines().iter().for_each(|line| print::out(line));
        return Ok(ExitCode::SUCCESS);
    }
    signals::listen();
    let _screen = FullScreen::open();
    let mut painter = Painter::new(run);
    while !interrupt::requested() {
        // What cannot be read now is read later.
        let _ = recorded.refresh();
        recorded.take(|value| board.push(value));
        board.age = age(run);
        painter.paint(&mut board);
        std::thread::sleep(EVERY);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the latest row as JSON, and all later ones until the run ends.
fn follow(run: &Path, mut recorded: Recorded, steps: u64) {
    signals::listen();
    recorded.forget_all_but_last(1);
    let print = |recorded: &mut Recorded| {
        recorded.take_named(|values| {
            let mut object = json!({"event": "monitor", "run": run.display().to_string(), "steps": steps});
            values.for_each(|(name, value)| object[name] = Value::from(value));
            print::out(&object.to_string());
        });
    };
    print(&mut recorded);
    loop {
        // Rows that a run writes before it ends are read after it has ended.
        let ends = interrupt::requested() || !run_dir::is_in_use(run);
        let _ = recorded.refresh();
        print(&mut recorded);
        if ends {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

/// Returns the time since the last row was written.
fn age(run: &Path) -> Option<Duration> {
    run.join("metrics.csv").metadata().ok()?.modified().ok()?.elapsed().ok()
}
