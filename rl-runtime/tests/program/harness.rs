//! Shared code of the `rl` program's tests: running it, and reading its files.

#![allow(clippy::unwrap_used, dead_code, reason = "tests of MPI use some of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rl_envs::Isa;
use rl_envs::catalog::{self, Entry};
use rl_runtime::checkpoint::{self, Checkpoint, SavedPolicy};
use rl_runtime::{Config, Error};

/// Time limit of every process.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// True on a machine on which the kernels can run, and whose bits are a GPU's.
pub(crate) fn can_compare() -> bool {
    if Isa::best() == Isa::Plain {
        eprintln!("skipped: no fused multiply-add on this machine, which gives other bits");
        return false;
    }
    if let Err(error) = rl_cuda::Device::emulated() {
        assert!(std::env::var_os("RL_REQUIRE_CXX").is_none_or(|value| value != "1"), "RL_REQUIRE_CXX=1, but {error}");
        eprintln!("SKIPPED: {error}");
        return false;
    }
    true
}

/// Command for the program with these arguments, its output in pipes.
pub(crate) fn rl<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rl"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The user's own cache directory stays as it is, and the user limits no instruction set.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("RL_ISA");
    command
}

/// Waits for the end, or fails after the time limit.
pub(crate) fn wait(mut child: Child) -> Output {
    // A program blocks once a pipe is full.
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > TIME_LIMIT {
            let command = fs::read_to_string(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
            child.kill().unwrap();
            panic!("it hangs: {}", command.replace('\0', " "));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Output { status: child.wait().unwrap(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Waits until `condition` holds, or fails after the time limit.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TIME_LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
}

/// Waits until the process has its metrics open, which it has while it trains.
pub(crate) fn until_it_trains(id: u32) {
    let files = || fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    until("it trains", || files().any(|file| file.ends_with("metrics.csv")));
}

/// Reads a pipe to its end on another thread.
fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes)).transpose().unwrap();
        bytes
    })
}

/// Runs to the end, or fails after the time limit.
pub(crate) fn finish(command: &mut Command) -> Output {
    wait(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Formats a path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the newest checkpoint of a run.
pub(crate) fn newest(run: &Path) -> PathBuf {
    checkpoint::list(&run.join("checkpoints")).unwrap().pop().unwrap()
}

/// Reads the reproducible columns of metrics.csv, header first.
pub(crate) fn metrics(run: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let counters = ["time/total_timesteps", "time/iterations", "time/episodes"];
    let varies = |name: &str| name.starts_with("time/") && !counters.contains(&name) || name.starts_with("system/");
    let row = |line: &str| line.split(',').zip(&names).filter(|(_, name)| !varies(name)).map(|(v, _)| v.into()).collect();
    text.lines().map(row).collect()
}

/// Returns the built-in environment of a run.
pub(crate) fn entry(config: &Config) -> &'static Entry {
    catalog::find(&config.env.name).unwrap()
}

/// Reads the checkpoint at `path`.
pub(crate) fn load(path: &Path) -> Result<Checkpoint, Error> {
    let config = checkpoint::config(path, false)?;
    Checkpoint::load(path, &config.layout(entry(&config))?)
}

/// Reads the policy of the CartPole checkpoint or run at `path`.
pub(crate) fn saved_policy(path: &Path, best: bool) -> Result<SavedPolicy, Error> {
    checkpoint::policy(path, best, catalog::find("cartpole").unwrap())
}

/// Returns a Python with Gymnasium, or reports a skip.
pub(crate) fn python() -> Option<PathBuf> {
    python_with("gymnasium", "RL_REQUIRE_GYM")
}

/// Returns a Python with `package`, or reports a skip.
///
/// The skip is a failure if the variable `required` is set.
pub(crate) fn python_with(package: &str, required: &str) -> Option<PathBuf> {
    static HAS: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
    let python = std::env::var_os("RL_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let import = || Command::new(&python).args(["-c", &format!("import {package}")]).stderr(Stdio::null()).status();
    let mut has = HAS.lock().unwrap_or_else(PoisonError::into_inner);
    if *has.entry(package.into()).or_insert_with(|| import().is_ok_and(|status| status.success())) {
        return Some(python);
    }
    drop(has);
    assert!(std::env::var_os(required).is_none(), "{required} is set, but {} lacks {package}", python.display());
    eprintln!("skipped: no Python with {package}");
    None
}
