//! What the tests of the `rl` program share: running it, and reading what it leaves.

#![allow(clippy::unwrap_used, dead_code, reason = "each of the tests uses some of it")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rl_envs::catalog::{self, Entry};
use rl_runtime::checkpoint::{self, Checkpoint, SavedPolicy};
use rl_runtime::{Config, Error, train};

/// Nothing that these tests start takes longer.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The program with these arguments, its output in pipes.
pub(crate) fn rl<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rl"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end, or fails after the time limit. What is printed must fit the pipes' buffers.
pub(crate) fn wait(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Runs to the end, or fails after the time limit.
pub(crate) fn finish(command: &mut Command) -> Output {
    wait(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The newest checkpoint of a run.
pub(crate) fn newest(run: &Path) -> PathBuf {
    checkpoint::list(&run.join("checkpoints")).unwrap().pop().unwrap()
}

/// Metrics of a run without the two columns of time.
pub(crate) fn metrics(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.csv")).unwrap();
    text.lines().filter_map(|line| line.rsplitn(3, ',').last().map(String::from)).collect()
}

/// The built-in environment of a run.
pub(crate) fn entry(config: &Config) -> &'static Entry {
    catalog::find(&config.env.name).unwrap()
}

/// Reads the checkpoint at `path`.
pub(crate) fn load(path: &Path) -> Result<Checkpoint, Error> {
    let config = checkpoint::config(path, false)?;
    let policy = train::policy(&config, entry(&config))?;
    Checkpoint::load(path, policy.layout())
}

/// Reads the policy of the checkpoint or run at `path`, of CartPole.
pub(crate) fn saved_policy(path: &Path, best: bool) -> Result<SavedPolicy, Error> {
    checkpoint::policy(path, best, catalog::find("cartpole").unwrap())
}
