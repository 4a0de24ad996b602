//! Edge cases of the `rl` program: odd files, full disks, closed pipes, signals.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{load, metrics, newest, rl, signal, until, wait};
use rl_runtime::checkpoint;
use serde_json::Value;

/// Settings of a run that takes a few milliseconds.
const SMALL: [&str; 6] = ["steps=64", "n_envs=4", "hidden=[2]", "ppo.n_steps=8", "ppo.batch_size=16", "eval_episodes=1"];

/// Builds `rl train cartpole` with the settings of [`SMALL`] in `dir`.
fn small(dir: &Path, more: &[&str]) -> Command {
    let mut command = rl(&["train", "cartpole", "--run-dir"]);
    command.arg(dir).args(SMALL.iter().flat_map(|setting| ["--set", setting])).args(more);
    command
}

/// Wraps `rl` so that no file may exceed `blocks` KiB, like a full disk.
fn on_a_full_disk(command: &Command, blocks: u64) -> Command {
    let mut limited = Command::new("bash");
    limited.arg("-c").arg(format!("ulimit -f {blocks}; exec \"$@\"")).arg("bash");
    limited.arg(command.get_program()).args(command.get_args());
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Runs to the end; returns exit code, stdout and stderr.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = wait(command.spawn().unwrap());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code(), stdout, stderr)
}

/// Returns a column of metrics.csv by env steps, without empty values.
fn column(dir: &Path, name: &str) -> Vec<(u64, f64)> {
    let rows = metrics(dir);
    let at = rows[0].iter().position(|column| column == name).unwrap();
    rows[1..].iter().filter_map(|row| Some((row[0].parse().unwrap(), row[at].parse().ok()?))).collect()
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
    // Without privileges, there is no device that the test could damage.
    let node = Command::new("mknod").arg(path("device")).args(["c", "1", "3"]).stderr(Stdio::null()).status();
    let device = node.unwrap().success().then_some("device");
    for name in ["fifo"].into_iter().chain(device) {
        let (code, _, stderr) = run(small(&path("refused"), &["--timeline"]).arg(path(name)));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{name}: is a")) && stderr.contains("not a regular file"), "{stderr}");
        assert!(!path("refused").exists(), "begun");
        let args = ["bench", "pipeline", "--envs", "2", "--seconds", "0.01", "--latency-ms", "1", "--timeline"];
        assert_eq!(run(rl(&args).arg(path(name))).0, Some(2));
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

/// Runs to the end; fails unless the exit code is `code` and stderr contains `why`.
fn ends(command: &mut Command, code: i32, why: &str) {
    let (found, _, stderr) = run(command);
    assert!(found == Some(code) && stderr.contains(why), "{command:?}: {found:?} {stderr}");
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_lies_in_the_directory_of_a_run_is_never_a_link_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("precious"), "precious").unwrap();
    // A new run, in a directory that somebody else has prepared.
    for (name, make) in [("fifo", (|to| fifo(to)) as fn(&Path)), ("link", |to| symlink("../elsewhere", to).unwrap())] {
        fs::create_dir(path(name)).unwrap();
        make(&path(name).join("lock"));
        ends(&mut small(&path(name), &[]), 2, "is not empty");
    }
    let original = path("original");
    assert_eq!(run(&mut small(&original, &["--set", "eval_every=32"])).0, Some(0));
    let (eval, resume): (&[&str], &[&str]) = (&["eval", "--episodes", "1"], &["train", "--steps", "128", "--resume"]);
    // Name, target of the link (none: a FIFO), command, exit code, what stderr says.
    type Case<'a> = (&'a str, Option<&'a str>, &'a [&'a str], i32, &'a str);
    let cases: [Case<'_>; 16] = [
        ("lock", None, resume, 2, "lock: is a FIFO, not a regular file; remove it"),
        ("lock", Some("../precious"), resume, 2, "lock: is a symbolic link, not a regular file; remove it"),
        ("lock", Some("../elsewhere"), resume, 2, "lock: is a symbolic link"),
        ("config.toml", Some("../precious"), resume, 2, "config.toml: is a symbolic link"),
        ("metrics.csv", Some("../precious"), resume, 0, "metrics.csv: is a symbolic link"),
        ("metrics.csv", Some("../elsewhere"), resume, 0, "metrics.csv: is a symbolic link"),
        ("tb", Some("../other"), resume, 0, "tb: is a symbolic link"),
        ("checkpoints", Some("../other"), resume, 2, "checkpoints: is a symbolic link, not a directory"),
        ("checkpoints", Some("../other"), eval, 2, "checkpoints: is a symbolic link, not a directory"),
        ("checkpoints/best", Some("../../other"), &["eval", "--best"], 2, "best: is a symbolic link"),
        ("metrics.csv", Some("../precious"), &["monitor"], 2, "metrics.csv: is a symbolic link"),
        ("metrics.csv", None, &["plot"], 2, "metrics.csv: is a FIFO"),
        ("metrics.csv", Some("/dev/zero"), &["plot"], 2, "metrics.csv: is a symbolic link"),
        ("plot.svg", Some("../precious"), &["plot"], 2, "plot.svg: is a symbolic link, not a regular file; remove it"),
        ("plot.svg", Some("../elsewhere"), &["plot"], 2, "plot.svg: is a symbolic link"),
        ("plot.svg", None, &["plot"], 2, "plot.svg: is a FIFO"),
    ];
    for (name, target, args, code, why) in cases {
        let run_dir = path("run");
        assert!(Command::new("cp").arg("-r").arg(&original).arg(&run_dir).status().unwrap().success());
        assert!(Command::new("cp").arg("-r").arg(original.join("checkpoints")).arg(path("other")).status().unwrap().success());
        let file = run_dir.join(name);
        let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir_all(&file));
        target.map_or_else(|| fifo(&file), |target| symlink(target, &file).unwrap());
        let before = entries(&path("other"));
        ends(rl(args).arg(&run_dir), code, why);
        assert!(fs::symlink_metadata(&file).unwrap().is_symlink() || target.is_none(), "{name}: the link is left as it is");
        assert_eq!(
            (fs::read_to_string(path("precious")).unwrap().as_str(), entries(&path("other"))),
            ("precious", before),
            "{name}"
        );
        assert!(!path("elsewhere").exists(), "{name}");
        ["run", "other"].iter().for_each(|name| fs::remove_dir_all(path(name)).unwrap());
    }
    // A checkpoint that is a link is not passed over for an older one.
    let checkpoint = newest(&original);
    let moved = path("moved");
    fs::rename(&checkpoint, &moved).unwrap();
    symlink(&moved, &checkpoint).unwrap();
    for args in [eval, resume] {
        ends(rl(args).arg(&original), 3, "is a symbolic link, which is not followed here");
    }
    ends(rl(eval).arg(&moved), 0, "");
    fs::remove_file(&checkpoint).unwrap();
    fs::rename(&moved, &checkpoint).unwrap();
    // Links that the user names are followed, also that of a run's directory.
    symlink("original", path("linked")).unwrap();
    symlink("original/curve.svg", path("curve")).unwrap();
    ends(rl(resume).arg(path("linked")), 0, "");
    ends(rl(&["plot"]).arg(path("linked")).arg("--out").arg(path("curve")), 0, "");
    assert!(original.join("curve.svg").is_file() && path("curve").is_symlink());
}

#[test]
fn what_lies_in_the_directory_of_a_sweep_is_never_a_link_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = "env = \"cartpole\"\nsteps = 64\nn_envs = 4\nhidden = [2]\neval_episodes = 1\n\
                [ppo]\nn_steps = 8\nbatch_size = 16\n[sweep]\ntrials = 1\n[sweep.settings]\n";
    fs::write(path("s.toml"), text).unwrap();
    fs::write(path("precious"), "precious").unwrap();
    let sweep = || {
        let mut command = rl(&["sweep", "s.toml", "--dir", "sweep"]);
        command.current_dir(dir.path());
        command
    };
    ends(&mut sweep(), 0, "");
    for name in ["lock", "trials.csv", "trial-000.toml", "trial-000-seed-0.log", "trial-000-seed-0", "best.toml", "sweep.svg"] {
        for target in [None, Some("../precious"), Some("../elsewhere"), Some("/dev/zero")] {
            let file = path("sweep").join(name);
            let old = file.is_file().then(|| fs::read(&file).unwrap());
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir_all(&file));
            // The training runs once more.
            let table = path("sweep/trials.csv");
            let rows = fs::read(&table).unwrap_or_default();
            if name.contains("seed") {
                fs::remove_file(&table).unwrap();
            }
            target.map_or_else(|| fifo(&file), |target| symlink(target, &file).unwrap());
            ends(&mut sweep(), 2, &format!("{name}: is a {}", if target.is_some() { "symbolic link" } else { "FIFO" }));
            assert!(fs::read_to_string(path("precious")).unwrap() == "precious" && !path("elsewhere").exists(), "{name}");
            fs::remove_file(&file).unwrap();
            if name.contains("seed") {
                fs::write(&table, rows).unwrap();
            }
            old.into_iter().for_each(|old| fs::write(&file, old).unwrap());
        }
    }
    ends(&mut sweep(), 0, "");
}

#[test]
fn a_sweep_ranks_by_the_last_rung_that_succeeded_and_trains_again_what_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = "env = \"cartpole\"\nsteps = 128\nn_envs = 4\nhidden = [2]\neval_episodes = 1\n\
                [ppo]\nn_steps = 8\nbatch_size = 16\n[sweep]\ntrials = 2\nhalving = 2\nmin_steps = 64\n\
                [sweep.settings]\n\"ppo.n_epochs\" = [1, 2]\n";
    fs::write(path("s.toml"), text).unwrap();
    let sweep = || {
        let mut command = rl(&["sweep", "s.toml", "--dir", "sweep"]);
        command.current_dir(dir.path());
        command
    };
    ends(&mut sweep(), 0, "");
    let table = path("sweep/trials.csv");
    let rows = fs::read_to_string(&table).unwrap();
    let failed = |rung: &str| {
        let row = |line: &str| {
            let mut cells: Vec<_> = line.split(',').collect();
            if cells[1] == rung {
                cells[4] = "NaN";
            }
            cells.join(",")
        };
        rows.lines().map(row).collect::<Vec<_>>().join("\n") + "\n"
    };
    fs::write(&table, failed("1")).unwrap();
    fs::remove_file(path("sweep/best.toml")).unwrap();
    ends(&mut sweep(), 0, "warning: no training beyond 64 env steps succeeded");
    assert!(path("sweep/best.toml").is_file());
    // No row is left but the heading, and trainings are killed.
    fs::write(&table, rows.lines().next().unwrap().to_string() + "\n").unwrap();
    (0..2).for_each(|i| fs::remove_dir_all(path(&format!("sweep/trial-00{i}-seed-0"))).unwrap());
    let sweeping = sweep().spawn().unwrap();
    let id = sweeping.id();
    let children = || {
        let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        threads.map(of).collect::<String>().split_whitespace().filter_map(|id| id.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    until("a training starts", || !children().is_empty());
    children().into_iter().for_each(|id| _ = Command::new("kill").args(["-KILL", &id.to_string()]).status());
    let output = wait(sweeping);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && error.contains("the same command trains it again"), "{error}");
    ends(&mut sweep(), 0, "");
    assert!(!fs::read_to_string(&table).unwrap().contains("NaN"));
}

#[test]
fn a_sweep_that_was_killed_while_its_directory_was_made_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = "env = \"cartpole\"\nsteps = 64\nn_envs = 4\nhidden = [2]\neval_episodes = 1\n\
                [ppo]\nn_steps = 8\nbatch_size = 16\n[sweep]\ntrials = 4\n\
                [sweep.settings]\n\"ppo.n_epochs\" = [1, 2]\nhidden = [[2, 2], [3, 3]]\n";
    fs::write(path("s.toml"), text).unwrap();
    let sweep = || {
        let mut command = rl(&["sweep", "s.toml", "--dir", "sweep"]);
        command.current_dir(dir.path());
        command
    };
    fs::create_dir(path("sweep")).unwrap();
    fs::write(path("sweep/lock"), "").unwrap();
    fs::write(path("sweep/.sweep.toml.123-0.tmp"), "env = ").unwrap();
    ends(&mut sweep(), 0, "");
    let files = ["trials.csv", "best.toml", "trial-001.toml", "trial-003.toml"].map(|name| path("sweep").join(name));
    let expected = files.each_ref().map(|file| fs::read_to_string(file).unwrap());
    assert!(!path("sweep/.sweep.toml.123-0.tmp").exists());
    assert!(expected[0].contains(",\"[2, 2]\"") || expected[0].contains(",\"[3, 3]\""), "{}", expected[0]);
    // Files of trials are missing or cut, and one is being written.
    fs::remove_file(&files[2]).unwrap();
    fs::write(&files[3], "env = ").unwrap();
    fs::write(path("sweep/.trial-003.toml.123-0.tmp"), "env = ").unwrap();
    ends(&mut sweep(), 0, "");
    assert_eq!(files.each_ref().map(|file| fs::read_to_string(file).unwrap()), expected);
    assert!(!path("sweep/.trial-003.toml.123-0.tmp").exists());
    // A problem has its line in the file; a first rung that is too short to learn is refused.
    let sac = "# Of continuous actions.\nenv = \"pendulum\"\nalgo = \"sac\"\nsteps = 40_000\n";
    for (more, why) in [
        ("[sac]\ngamma = 1.5\n[sweep]\ntrials = 2\n[sweep.settings]\n", "bad.toml:6: sac.gamma is 1.5"),
        (
            "[sac]\nlearning_starts = 10_000\n[sweep]\ntrials = 2\nhalving = 2\nmin_steps = 10_000\n[sweep.settings]\n",
            "nothing would be learnt",
        ),
    ] {
        fs::write(path("bad.toml"), format!("{sac}{more}\"sac.tau\" = [0.01, 0.02]\n")).unwrap();
        ends(rl(&["sweep", "bad.toml"]).current_dir(dir.path()), 2, why);
        assert!(!path("sweeps").exists(), "{why}");
    }
    // A directory with anything else is no sweep's.
    fs::create_dir(path("other")).unwrap();
    fs::write(path("other/notes.txt"), "").unwrap();
    ends(rl(&["sweep", "s.toml", "--dir", "other"]).current_dir(dir.path()), 2, "is not empty, and not a sweep");
    assert_eq!(entries(&path("other")), 1);
}

#[test]
fn messages_that_cannot_be_printed_change_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(rl(&["train", "nope"]).stderr(full())).0, Some(2));
    assert_eq!(run(rl(&["train", "--nope"]).stderr(full())).0, Some(2), "clap's own message");
    // Nothing reads stdout or stderr.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = rl(&["train", "cartpole", "--set", "x=1"]);
    assert_eq!(run(command.stdout(writer.try_clone().unwrap()).stderr(writer)).0, Some(2));
    // Checkpoints and metrics cannot be written. Each failed save is reported, and the third ends the run.
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
    assert_eq!((code, stderr.as_str()), (Some(1), told), "training continues to its end");
    assert_eq!(load(&newest(&run_dir)).unwrap().progress.env_steps, 64);
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
    // A directory with other contents is not treated as a run.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("lock"), "a file of another program").unwrap();
    let (code, _, stderr) = run(&mut small(&other, &[]));
    assert_eq!((code, entries(&other)), (Some(2), 1));
    assert!(stderr.contains("is not empty; choose another --run-dir"), "{stderr}");
}

#[test]
fn every_evaluation_is_in_the_metrics_the_last_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let small =
        ["hidden=[4]", "n_envs=2", "eval_episodes=1", "dqn.learning_starts=64", "dqn.batch_size=8", "dqn.buffer_size=500"];
    for (name, more) in [("preset", &[][..]), ("often", &["log_interval=1"])] {
        let run_dir = dir.path().join(name);
        let mut command = rl(&["train", "acrobot", "--algo", "dqn", "--json", "--steps", "1040", "--eval-every", "200"]);
        command.args(small.iter().chain(more).flat_map(|setting| ["--set", setting])).arg("--run-dir").arg(&run_dir);
        let (code, stdout, stderr) = run(&mut command);
        assert_eq!(code, Some(0), "{stderr}");
        let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let made: Vec<(u64, f64)> = events
            .iter()
            .filter(|event| event["event"] == "evaluation")
            .map(|event| (event["env_steps"].as_u64().unwrap(), event["return_mean"].as_f64().unwrap()))
            .collect();
        assert_eq!(made.len(), 6, "five on the way, one at the end");
        assert_eq!(column(&run_dir, "eval/mean_reward"), made);
        // A second evaluation adds no row.
        let before = metrics(&run_dir);
        assert_eq!(run(rl(&["train", "--resume"]).arg(&run_dir)).0, Some(0));
        assert_eq!(metrics(&run_dir), before);
        assert!(before[1..].windows(2).all(|rows| rows[0][1] != rows[1][1]), "one row an iteration");
    }
}

#[test]
fn a_resumed_overlapped_run_has_the_metrics_of_an_uninterrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, resumed] = ["whole", "resumed"].map(|name| {
        let path = dir.path().join(name);
        let settings =
            ["pipeline=overlapped", "max_lag=4", "log_interval=3", "checkpoint_every=100", "steps=800", "eval_every=160"];
        let (code, _, stderr) = run(small(&path, &[]).args(settings.iter().flat_map(|setting| ["--set", setting])));
        assert_eq!(code, Some(0), "{stderr}");
        path
    });
    // Metrics that a crashed run wrote after its last checkpoint.
    fs::remove_dir_all(newest(&resumed)).unwrap();
    assert_eq!(run(rl(&["train", "--resume"]).arg(&resumed)).0, Some(0));
    assert_eq!(metrics(&resumed), metrics(&whole));
    assert_eq!(column(&whole, "pipeline/lag_3_4").last(), Some(&(800, 4.0 * 22.0)), "25 rollouts, of lag 0, 1, 2, 3, 4, 4, ..");
}

#[test]
fn metrics_that_cannot_be_written_never_stop_a_resumed_run() {
    let dir = tempfile::tempdir().unwrap();
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &str); 4] = [
        (
            "directory",
            |path| fs::remove_file(path).and_then(|()| fs::create_dir(path)).unwrap(),
            "is a directory, not a regular file",
        ),
        ("garbage", |path| fs::write(path, [0xff; 100]).unwrap(), "is not a metrics file"),
        (
            "fifo",
            |path| {
                fs::remove_file(path).unwrap();
                assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
            },
            "is a FIFO, not a regular file",
        ),
        // The metrics exceed the disk, so that no row can be added; checkpoints still fit.
        (
            "full",
            |path| {
                let header = fs::read_to_string(path).unwrap().lines().next().unwrap().to_owned();
                fs::write(path, format!("{header}\n{}", ",1\n".repeat(30_000))).unwrap();
            },
            "File too large",
        ),
    ];
    for (name, damage, message) in cases {
        let run_dir = dir.path().join(name);
        assert_eq!(run(&mut small(&run_dir, &["--set", "log_interval=1"])).0, Some(0));
        damage(&run_dir.join("metrics.csv"));
        let size = fs::metadata(run_dir.join("metrics.csv")).unwrap().len();
        let mut command = rl(&["train", "--steps", "256", "--resume"]);
        command.arg(&run_dir);
        let command = if name == "full" { &mut on_a_full_disk(&command, 64) } else { &mut command };
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(0), "{name}: {stderr}");
        assert!(stderr.contains(message) && stderr.lines().count() == 1, "{name}: one warning: {stderr}");
        assert_eq!(fs::metadata(run_dir.join("metrics.csv")).unwrap().len(), size, "{name}: nothing is destroyed");
        assert_eq!(load(&newest(&run_dir)).unwrap().progress.env_steps, 256, "{name}");
    }
}

#[test]
fn each_signal_saves_and_stops_and_an_ignored_hup_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str, first: &str| {
        let run_dir = dir.path().join(name);
        let endless = small(&run_dir, &["--steps", "1e9", "--set", "log_interval=1000"]);
        let mut command = Command::new("bash");
        // The tests themselves may ignore HUP, as by nohup.
        command.args(["-c", &format!("{first} \"$@\""), "bash"]).arg(endless.get_program()).args(endless.get_args());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("metrics.csv", || run_dir.join("metrics.csv").exists());
        (run_dir, child)
    };
    for name in ["-INT", "-TERM", "-HUP", "-USR1"] {
        let (run_dir, child) = start(name, "exec env --default-signal=HUP");
        signal(child.id(), name);
        let output = wait(child);
        assert_eq!(output.status.code(), Some(130), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        load(&newest(&run_dir)).unwrap();
    }
    let (_, mut child) = start("nohup", "trap '' HUP; exec");
    signal(child.id(), "-HUP");
    std::thread::sleep(Duration::from_millis(150));
    assert!(child.try_wait().unwrap().is_none(), "nohup");
    signal(child.id(), "-TERM");
    assert_eq!(wait(child).status.code(), Some(130));
}

#[test]
fn an_evaluation_is_interrupted_and_what_was_trained_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let child = small(&run_dir, &["--set", "eval_episodes=1000000"]).spawn().unwrap();
    until("the last checkpoint", || checkpoint::list(&run_dir.join("checkpoints")).is_ok_and(|found| !found.is_empty()));
    signal(child.id(), "-INT");
    assert_eq!(wait(child).status.code(), Some(130));
    assert_eq!(load(&newest(&run_dir)).unwrap().progress.env_steps, 64);

    let child = rl(&["eval", "--episodes", "1000000"]).arg(&run_dir).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    signal(child.id(), "-INT");
    let output = wait(child);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted: the evaluation is not complete"));
}

#[test]
fn signals_within_a_second_are_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let child = small(&run_dir, &["--steps", "1e9", "--set", "ppo.n_epochs=3000"]).spawn().unwrap();
    until("metrics.csv", || run_dir.join("metrics.csv").exists());
    let kill = format!("kill -TERM {0}; sleep 0.05; kill -TERM {0}; kill -INT {0}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().is_ok());
    let output = wait(child);
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    load(&newest(&run_dir)).unwrap();
}

#[test]
fn the_first_signal_ends_what_has_nothing_to_save_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("new/run");
    let wide = small(&run_dir, &["--set", "hidden=[6000,6000]"]).spawn().unwrap();
    until("the run's directory", || run_dir.join("config.toml").exists());
    let bench = rl(&["bench", "env", "cartpole", "--seconds", "1000"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    for child in [wide, bench] {
        signal(child.id(), "-INT");
        let output = wait(child);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(130) && said.contains("interrupted: nothing is kept"),
            "{:?}: {said}",
            output.status
        );
    }
    assert_eq!(entries(dir.path()), 0, "the directories that were created are removed");
}

#[test]
fn watch_gives_the_terminal_back_whatever_ends_it() {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: no `script` to make a terminal with");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    assert_eq!(run(&mut small(&run_dir, &[])).0, Some(0));
    for (name, signals, code) in
        [("int", &["-INT"][..], 130), ("usr1", &["-USR1"], 130), ("two", &["-INT", "-TERM"], 131), ("quit", &["-QUIT"], 128 + 3)]
    {
        let (id, seen) = (dir.path().join(format!("{name}.id")), dir.path().join(name));
        let watch = format!(
            "ulimit -c 0; echo $$ > '{}'; TERM=xterm exec '{}' watch '{}' --episodes 1000 --fps 1",
            id.display(),
            env!("CARGO_BIN_EXE_rl"),
            run_dir.display()
        );
        let mut command = Command::new("script");
        command.arg("-qefc").arg(format!("bash -c \"{}\"", watch.replace('$', "\\$"))).arg(&seen);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("a picture", || fs::read(&seen).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("episode 1, step 0")));
        let id: u32 = fs::read_to_string(id).unwrap().trim().parse().unwrap();
        signals.iter().for_each(|name| signal(id, name));
        let output = wait(child);
        let shown = String::from_utf8_lossy(&fs::read(&seen).unwrap()).into_owned();
        let (begin, end) = (shown.rfind("\x1b[?1049h").unwrap(), shown.rfind("\x1b[?25h\x1b[?1049l"));
        assert!(end.is_some_and(|end| end > begin), "{name}: {shown:?}");
        assert!(
            output.status.code() == Some(code) || code == 131 && output.status.code() == Some(130),
            "{name}: {:?}",
            output.status
        );
    }
}

#[test]
fn odd_paths_are_printed_and_suggested_commands_quote_them() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(&mut small(&dir.path().join(OsStr::from_bytes(b"r\xff")), &["--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && stdout.contains("r\u{fffd}"));
    for (name, quoted) in [("a b", "rl eval 'a b'"), ("$(id)", "rl eval '$(id)'"), ("./-dash", "rl eval ./-dash")] {
        let (code, stdout, stderr) = run(small(Path::new(name), &[]).current_dir(dir.path()));
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.lines().any(|line| line.ends_with(quoted)), "{stdout}");
        let (_, _, stderr) = run(small(Path::new(name), &[]).current_dir(dir.path()));
        assert!(stderr.contains(&quoted.replace("rl eval", "--resume")), "{stderr}");
    }
}
