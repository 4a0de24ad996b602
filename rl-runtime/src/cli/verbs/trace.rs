//! `rl trace`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::cli::envs::Envs;
use crate::{Error, config, print};

#[derive(Args)]
#[command(after_help = "\
Example:
  echo '{\"x\": 0, \"x_dot\": 0, \"theta\": 0.05, \"theta_dot\": 0, \"elapsed\": 0}' > init.json
  echo '[0, 1, 1]' > actions.json
  rl trace cartpole --init init.json --actions actions.json

From one initial state, the trace ends with the episode: actions after a step that terminates or truncates are ignored.")]
pub(crate) struct TraceArgs {
    /// The environment
    env: String,
    /// JSON: the state by field name, or an array of states, one for each action
    #[arg(long, value_name = "FILE")]
    init: PathBuf,
    /// JSON: an array of actions
    #[arg(long, value_name = "FILE")]
    actions: PathBuf,
}

/// Maximum size of a file of states or actions.
const MAX_TRACE: u64 = 256 << 20;

pub(crate) fn run(args: &TraceArgs, envs: &Envs) -> Result<ExitCode, Error> {
    let read = |path: &Path| -> Result<Value, Error> {
        let text = config::read_small(path, MAX_TRACE)?;
        serde_json::from_str(&text).map_err(|e| Error::Config { problems: vec![format!("{}: {e}", path.display())] })
    };
    let entry = envs.find(&args.env)?;
    let actions = read(&args.actions)?;
    let steps = entry.trace(&read(&args.init)?, &actions).map_err(|error| match error {
        rl_envs::Error::BadState(why) => Error::Config { problems: vec![format!("the initial state: {why}")] },
        other => other.into(),
    })?;
    for step in &steps {
        print::out(&serde_json::to_string(step).unwrap_or_default());
    }
    let (taken, given) = (steps.len(), actions.as_array().map_or(0, Vec::len));
    if taken < given {
        print::err(&format!("note: step {taken} ends the episode; the {} actions after it are left out", given - taken));
    }
    Ok(ExitCode::SUCCESS)
}
