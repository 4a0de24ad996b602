//! The `rl` program at the edges: files that are not what they should be, full disks, readers that go away, signals.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rl_runtime::checkpoint::{self, Checkpoint};
use serde_json::Value;

/// Nothing that these tests start takes longer.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Settings of a run that takes a few milliseconds.
const SMALL: [&str; 6] = ["steps=64", "n_envs=4", "hidden=[2]", "ppo.n_steps=8", "ppo.batch_size=16", "eval_episodes=1"];

fn rl<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rl"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `rl train cartpole` with the settings of [`SMALL`] in `dir`.
fn small(dir: &Path, more: &[&str]) -> Command {
    let mut command = rl(&["train", "cartpole", "--run-dir"]);
    command.arg(dir).args(SMALL.iter().flat_map(|setting| ["--set", setting])).args(more);
    command
}

/// `rl` where a file takes no byte more than `blocks` times 1024: a disk that is full.
fn on_a_full_disk(command: &Command, blocks: u64) -> Command {
    let mut limited = Command::new("bash");
    limited.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"")).arg("bash");
    limited.arg(command.get_program()).args(command.get_args());
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Waits for the end, or fails after the time limit. What is printed must fit the pipes' buffers.
fn wait(mut child: Child) -> Output {
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

/// Runs to the end; returns exit code, stdout and stderr.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = wait(command.spawn().unwrap());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code(), stdout, stderr)
}

fn newest(dir: &Path) -> PathBuf {
    checkpoint::list(&dir.join("checkpoints")).unwrap().pop().unwrap()
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn is_trace(path: &Path) -> bool {
    serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap()["traceEvents"].is_array()
}

#[test]
fn a_timeline_replaces_regular_files_only_and_nothing_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    // Without privileges there is no device that may be harmed.
    let node = Command::new("mknod").arg(path("device")).args(["c", "1", "3"]).stderr(Stdio::null()).status();
    let device = node.unwrap().success().then_some("device");
    for name in ["fifo"].into_iter().chain(device) {
        let (code, _, stderr) = run(small(&path("refused"), &["--timeline"]).arg(path(name)));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&format!("{name}: is a")) && stderr.contains("not a regular file"), "{stderr}");
        assert!(!path("refused").exists(), "begun");
        let args = ["bench", "pipeline", "--envs", "2", "--seconds", "0.01", "--latency-ms", "1", "--timeline"];
        assert_eq!(run(rl(&args).arg(path(name))).0, Some(1));
    }
    assert!(fs::metadata(path("fifo")).unwrap().file_type().is_fifo());
    assert!(device.is_none_or(|device| fs::metadata(path(device)).unwrap().file_type().is_char_device()));

    fs::write(path("t.part"), "precious").unwrap();
    fs::write(path("target.json"), "old").unwrap();
    symlink("target.json", path("t.json")).unwrap();
    let (code, _, stderr) = run(small(&path("run"), &["--timeline"]).arg(path("t.json")));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(fs::read(path("t.part")).unwrap(), b"precious");
    assert!(path("t.json").is_symlink() && is_trace(&path("target.json")));
    assert_eq!(entries(dir.path()), 5 + usize::from(device.is_some()));
}

#[test]
fn a_refused_command_touches_no_timeline_and_the_run_s_own_files_are_never_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (r, inside, old) = (path("run"), path("run/t.json"), path("old.json"));
    fs::write(&old, "old").unwrap();
    assert_eq!(run(rl(&["train", "nope", "--timeline"]).arg(&old)).0, Some(2));
    let (code, _, stderr) = run(small(&r, &["--timeline"]).arg(&inside));
    assert_eq!(code, Some(0), "a timeline in the run directory: {stderr}");
    assert!(is_trace(&inside));
    assert_eq!(run(small(&r, &["--timeline"]).arg(&old)).0, Some(2), "the directory is not empty");
    for own in ["config.toml", "machine.toml", "metrics.csv", "lock", "checkpoints", "checkpoints/t.json"] {
        let before = fs::read(r.join(own)).ok();
        let (code, _, stderr) = run(rl(&["train", "--resume"]).arg(&r).arg("--timeline").arg(r.join(own)));
        assert_eq!(code, Some(2), "{own}: {stderr}");
        assert!(stderr.contains("belongs to the run"), "{stderr}");
        assert_eq!(fs::read(r.join(own)).ok(), before);
        let new = path("new/below");
        assert_eq!(run(small(&new, &["--timeline"]).arg(new.join(own))).0, Some(2), "{own}");
        assert!(!path("new").exists(), "the directories that were created are removed");
    }
    let existing = path("run/../run/checkpoints").join(newest(&r).file_name().unwrap()).join("manifest.json");
    assert_eq!(run(rl(&["train", "--resume"]).arg(&r).arg("--timeline").arg(existing)).0, Some(2));
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(run(rl(&["train", "--steps", "128", "--resume"]).arg(&r)).0, Some(0), "it can still be resumed");
}

#[test]
fn messages_that_cannot_be_printed_change_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(rl(&["train", "nope"]).stderr(full())).0, Some(2));
    assert_eq!(run(rl(&["train", "--nope"]).stderr(full())).0, Some(2), "clap's own message");
    // Both streams lead to a reader that has gone.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = rl(&["train", "cartpole", "--set", "x=1"]);
    assert_eq!(run(command.stdout(writer.try_clone().unwrap()).stderr(writer)).0, Some(2));
    // No checkpoint can be saved, each of which is told, and no metrics written: the third failure ends the run.
    let run_dir = dir.path().join("run");
    let command = small(&run_dir, &["--set", "checkpoint_every=32", "--set", "hidden=[64,64]", "--steps", "1000"]);
    let mut command = on_a_full_disk(&command, 8);
    assert_eq!(run(command.stderr(full())).0, Some(1));
}

#[test]
fn output_that_is_lost_is_told_once_and_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let told = "error: stdout: No space left on device (os error 28); output is lost\n";
    let (code, _, stderr) = run(small(&run_dir, &["--json"]).stdout(full()));
    assert_eq!((code, stderr.as_str()), (Some(1), told), "training goes on to its end");
    assert_eq!(Checkpoint::load(&newest(&run_dir)).unwrap().progress.env_steps, 64);
    let eval = ["eval", run_dir.to_str().unwrap(), "--episodes", "1"];
    for args in [&["list"][..], &["check-env", "cartpole"], &["--help"], &["--version"], &eval] {
        let (code, _, stderr) = run(rl(args).stdout(full()));
        assert_eq!((code, stderr.as_str()), (Some(1), told), "{args:?}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for args in [&["list"][..], &["--help"]] {
        let (code, _, stderr) = run(rl(args).stdout(writer.try_clone().unwrap()));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}: a reader that goes away has what it wants");
    }
}

#[test]
fn a_run_directory_that_cannot_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (new, empty) = (dir.path().join("a/b/run"), dir.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    for path in [&new, &empty] {
        let (code, _, stderr) = run(&mut on_a_full_disk(&small(path, &[]), 0));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("config.toml: File too large"), "{stderr}");
    }
    assert_eq!((entries(dir.path()), entries(&empty)), (1, 0));
    // A process that is killed while it creates the directory leaves a lock and a draft.
    fs::write(empty.join("lock"), "").unwrap();
    fs::write(empty.join(".config.toml.123-0.tmp"), "env = ").unwrap();
    let (code, _, stderr) = run(rl(&["train", "--resume"]).arg(&empty));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("is not the directory of a run") && stderr.contains("begin a run with --run-dir"), "{stderr}");
    let (code, _, stderr) = run(&mut small(&empty, &[]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!empty.join(".config.toml.123-0.tmp").exists());
    // A directory that holds something else is not called a run.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("lock"), "a file of another program").unwrap();
    let (code, _, stderr) = run(&mut small(&other, &[]));
    assert_eq!((code, entries(&other)), (Some(2), 1));
    assert!(stderr.contains("is not empty; choose another --run-dir"), "{stderr}");
}
