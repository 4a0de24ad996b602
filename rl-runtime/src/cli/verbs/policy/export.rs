//! `rl export`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::cli::envs::{Envs, saved_policy};
use crate::run::checkpoint::{Export, ExportReport, export};
use crate::{Error, print};

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl export runs/cartpole-ppo-seed0-1 --as onnx --out cartpole.onnx
  rl export runs/cartpole-ppo-seed0-1 --as c --out cartpole.c --best   # and cartpole.h

The exported policy acts as `rl eval` does, from the observation to the action of the environment. docs/export.md uses it in C, Rust, Python
and a browser.")]
pub(crate) struct ExportArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// Format of the exported policy
    #[arg(long = "as")]
    form: Export,
    /// File to write, for C with a header beside it [default: named by environment]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &ExportArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    if let Some(out) = &args.out {
        args.form.check_name(out)?;
    }
    let saved = saved_policy(&args.path, args.best, 1, envs, false)?;
    let report = export(&saved, args.form, args.out.as_deref())?;
    let ExportReport { files, weights_bytes, memory_bytes, multiply_adds, loader_seconds, n_checked, n_differing, notes } =
        report;
    let (name, path) = (saved.entry.name, saved.path.display());
    if json {
        let object = json!({
            "event": "export", "env": name, "checkpoint": path.to_string(), "as": args.form.name(),
            "files": files.iter().map(|(file, _)| file.display().to_string()).collect::<Vec<_>>(),
            "bytes": files.iter().map(|(_, n)| n).collect::<Vec<_>>(), "weights_bytes": weights_bytes, "memory_bytes": memory_bytes,
            "multiply_adds": multiply_adds, "loader_seconds": loader_seconds, "checked": n_checked, "differing": n_differing,
        });
        print::out(&object.to_string());
    } else {
        for (file, n) in &files {
            print::out(&format!("{}: {n} bytes", file.display()));
        }
        let memory = memory_bytes.map_or(String::new(), |n| format!(", {n} bytes of memory"));
        let time = format!("{multiply_adds} multiply-adds per action ({:.1} us with rl-policy here)", 1e6 * loader_seconds);
        print::out(&format!("{name}, {path}: {weights_bytes} bytes of weights{memory}, {time}"));
        let same = n_checked - n_differing;
        print::out(&format!("check: {same} of {n_checked} random observations give the bits of the action of `rl eval`"));
    }
    notes.iter().for_each(|note| print::err(&format!("note: {note}")));
    Ok(ExitCode::SUCCESS)
}
