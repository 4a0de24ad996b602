//! Records of a run: what other programs read of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead as _;
use std::path::Path;
use std::process::Command;

use crate::harness::{finish, python_with, rl, text};
use rl_runtime::checkpoint;

/// Values by env steps.
type Curve = Vec<(u64, f32)>;

/// Settings of a run that takes a few milliseconds.
const SMALL: [&str; 6] = ["steps=256", "n_envs=4", "hidden=[2]", "ppo.n_steps=8", "ppo.batch_size=16", "checkpoint_every=64"];

/// Runs `rl` to a successful end.
fn run(args: &[&str]) -> String {
    let output = finish(&mut rl(args));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Trains a small run in `dir`.
fn train(dir: &Path, more: &[&str]) {
    let settings = SMALL.iter().chain(more).flat_map(|setting| ["--set", setting]);
    run(&["train", "cartpole", "--run-dir", text(dir)].into_iter().chain(settings).collect::<Vec<_>>());
}

/// Reads the columns of metrics.csv, without empty values.
fn metrics(dir: &Path) -> BTreeMap<String, Curve> {
    let text = fs::read_to_string(dir.join("metrics.csv")).unwrap();
    let mut lines = text.lines().map(|line| line.split(','));
    let names: Vec<&str> = lines.next().unwrap().collect();
    let mut columns = BTreeMap::<String, Curve>::new();
    for row in lines.map(Iterator::collect::<Vec<_>>) {
        for (name, value) in names.iter().zip(&row).filter(|(_, value)| !value.is_empty()) {
            columns.entry((*name).into()).or_default().push((row[0].parse().unwrap(), value.parse().unwrap()));
        }
    }
    columns
}

/// Reads the event files of a run with TensorBoard's reader.
fn events(python: &Path, dir: &Path) -> BTreeMap<String, Curve> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/event_files.py");
    let output = finish(Command::new(python).arg(script).arg(dir.join("tb")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn tensorboard_reads_the_numbers_of_metrics_csv_before_and_after_a_resumption() {
    let Some(python) = python_with("tensorboard", "RL_REQUIRE_TENSORBOARD") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (first, fork) = (dir.path().join("first"), dir.path().join("fork"));
    train(&first, &["eval_every=64"]);
    let columns = metrics(&first);
    assert!(columns["rollout/ep_rew_mean"].len() > 4 && columns["eval/mean_reward"].len() == 4, "{columns:?}");
    assert_eq!(events(&python, &first), columns);
    // A new run from an earlier checkpoint has the earlier numbers, too.
    let [earlier, lost] = &checkpoint::list(&first.join("checkpoints")).unwrap()[..] else { panic!("two are kept") };
    run(&["train", "--resume", text(earlier), "--run-dir", text(&fork), "--steps", "224"]);
    assert_eq!(events(&python, &fork), metrics(&fork));
    // Numbers after the last checkpoint are replaced.
    fs::remove_dir_all(lost).unwrap();
    run(&["train", "--resume", text(&first), "--set", "log_interval=2", "--steps", "320"]);
    let resumed = metrics(&first);
    let steps: Vec<u64> = resumed["time/fps"].iter().map(|(steps, _)| *steps).collect();
    assert_eq!(steps, [32, 64, 96, 128, 160, 192, 256, 320]);
    assert_eq!(events(&python, &first), resumed);
}

#[cfg(target_os = "linux")]
#[test]
fn rows_have_the_memory_and_the_threads_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), &["threads=3"]);
    let columns = metrics(dir.path());
    assert_eq!(columns["system/rss_mb"].len(), 8);
    assert!(columns["system/rss_mb"].iter().all(|(_, mb)| (1.0..10_000.0).contains(mb)), "{columns:?}");
    // One is the caller of the pool; the listener for signals is another one.
    assert!(columns["system/threads"].iter().all(|(_, n)| (3.0..10.0).contains(n)), "{columns:?}");
    assert!(!columns.contains_key("system/device_mb"));
}

#[test]
fn plot_draws_runs_of_the_same_settings_as_one_curve_and_refuses_what_has_no_return() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, setting) in
        [("a", "seed=0"), ("b", "seed=1"), ("c", "hidden=[3]"), ("d", "ppo.learning_rate=0.1"), ("short", "steps=32")]
    {
        train(&dir.path().join(name), &[setting, "eval_every=128"]);
    }
    let said = run(&["plot", &path("a")]);
    let svg = fs::read_to_string(path("a/plot.svg")).unwrap();
    assert!(said.contains("a/plot.svg: 1 curve of 1 run"), "{said}");
    let count = |svg: &str, text: &str| svg.matches(text).count();
    assert_eq!(["<polyline", "<polygon", "<circle"].map(|text| count(&svg, text)), [2, 0, 4], "{svg}");
    assert!(
        ["env steps</text>", "seconds of training</text>", "mean return</text>", ">a</text>"]
            .iter()
            .all(|text| svg.contains(text))
    );

    let said = run(&["plot", &path("a"), &path("b"), &path("c"), &path("d"), "--out", &path("all.svg"), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["curves"], serde_json::json!(["a and 1 other seed: mean and standard deviation", "c", "d"]));
    let svg = fs::read_to_string(path("all.svg")).unwrap();
    assert_eq!(["<polyline", "<polygon"].map(|text| count(&svg, text)), [6, 2], "{svg}");

    fs::create_dir(path("empty")).unwrap();
    for (args, why) in [
        (vec!["plot", &path("empty")], "has no metrics.csv; name the directory of a run"),
        (vec!["plot", &path("a"), &path("short")], "short: no episode has ended so far"),
        (vec!["plot", &path("a"), "--out", &path("b")], "is a directory, not a regular file"),
        (vec!["plot"], "required arguments were not provided"),
    ] {
        let output = finish(&mut rl(&args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn plot_leaves_out_an_axis_without_numbers_and_draws_huge_ones() {
    let dir = tempfile::tempdir().unwrap();
    let [odd, usual] = ["odd", "usual"].map(|name| dir.path().join(name));
    [&odd, &usual].iter().for_each(|path| train(path, &[]));
    let file = odd.join("metrics.csv");
    let text_of = fs::read_to_string(&file).unwrap();
    let plot = |args: &[&str]| {
        let output = finish(&mut rl(args));
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    fs::write(&file, text_of.replace("time/time_elapsed", "time/elapsed")).unwrap();
    let said = plot(&["plot", text(&odd)]);
    assert!(said.contains("no return with a number in time/time_elapsed: no curve over seconds of training"), "{said}");
    let svg = fs::read_to_string(odd.join("plot.svg")).unwrap();
    assert!(svg.contains("env steps</text>") && !svg.contains("seconds of training"), "{svg}");
    // Beside another run, the panel has that one's curve.
    let both = text(&dir.path().join("both.svg")).to_owned();
    plot(&["plot", text(&odd), text(&usual), "--out", &both]);
    assert!(fs::read_to_string(both).unwrap().contains("seconds of training"));
    let huge = |line: &str| ["nan", "-1e308", "1.7e308"].map(|x| line.replacen(line.split(',').next().unwrap(), x, 1)).join("\n");
    let rows: Vec<String> = text_of.lines().enumerate().map(|(i, line)| if i == 0 { line.into() } else { huge(line) }).collect();
    fs::write(&file, rows.join("\n") + "\n").unwrap();
    plot(&["plot", text(&odd)]);
    let svg = fs::read_to_string(odd.join("plot.svg")).unwrap();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn monitor_prints_the_latest_numbers_where_there_is_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    train(&path, &[]);
    let said = run(&["monitor", text(&path)]);
    assert!(said.starts_with("cartpole, ppo: 4 environments, "), "{said}");
    assert!(said.contains("100% of 256 env steps, 0:00 elapsed") && said.contains("env steps/s"), "{said}");
    let said: serde_json::Value = serde_json::from_str(&run(&["monitor", text(&path), "--json"])).unwrap();
    assert_eq!((&said["event"], &said["steps"], &said["time/total_timesteps"]), (&"monitor".into(), &256.into(), &256.0.into()));
    assert_eq!(finish(&mut rl(&["monitor", text(dir.path())])).status.code(), Some(2));
}

#[test]
fn monitor_follows_a_run_as_json_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let small = ["--set", "hidden=[2]", "--set", "ppo.n_steps=8", "--set", "ppo.batch_size=16", "--set", "eval_episodes=1"];
    let run = rl(&[&["train", "cartpole", "--steps", "1e9", "--run-dir", text(&path)], &small[..]].concat()).spawn().unwrap();
    crate::harness::until("a row is written", || {
        fs::read_to_string(path.join("metrics.csv")).is_ok_and(|text| text.lines().count() > 1)
    });
    let mut monitor = rl(&["monitor", text(&path), "--json"]).spawn().unwrap();
    let lines = std::io::BufReader::new(monitor.stdout.take().unwrap()).lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        row["time/total_timesteps"].as_f64().unwrap()
    });
    let mut steps: Vec<f64> = Vec::new();
    let mut run = Some(run);
    for step in lines {
        steps.push(step);
        if steps.len() == 3
            && let Some(run) = run.take()
        {
            crate::harness::signal(run.id(), "-INT");
            assert_eq!(crate::harness::wait(run).status.code(), Some(130));
        }
    }
    assert!(monitor.wait().unwrap().success() && steps.len() >= 3, "{steps:?}");
    // The last row is written again, with its evaluation.
    assert!(steps.windows(2).all(|pair| [0.0, 64.0].contains(&(pair[1] - pair[0]))), "no row is missing: {steps:?}");
    let csv = fs::read_to_string(path.join("metrics.csv")).unwrap();
    assert_eq!(steps.last(), csv.lines().last().unwrap().split(',').next().unwrap().parse().ok().as_ref());
}

/// Runs `prefix rl ..` in a terminal of 80 x 24; returns what it shows.
#[cfg(target_os = "linux")]
fn in_a_terminal(prefix: &str, args: &[&str]) -> Option<String> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no script of util-linux");
        return None;
    }
    let rl = format!("{prefix} {} {}", env!("CARGO_BIN_EXE_rl"), args.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &format!("stty rows 24 cols 80; {rl}"), "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
    Some(String::from_utf8_lossy(&finish(&mut script).stdout).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn at_a_terminal_a_board_is_drawn_and_the_terminal_restored_however_the_run_ends() {
    let (open, close) = ("\x1b[?1049h", "\x1b[?25h\x1b[?1049l");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let long =
        ["--steps 1e9 --eval-every 1000", "--set hidden=[2] --set eval_episodes=1 --set ppo.n_steps=8 --set ppo.batch_size=16"];
    let run_dir = |name: &str| format!("--run-dir {}", path(name));
    for (name, prefix, expected) in [
        ("int", "timeout --foreground -s INT 2", "interrupted and saved; continue with"),
        ("term", "NO_COLOR=1 timeout --foreground -s TERM 2", "interrupted and saved; continue with"),
        ("quit", "ulimit -c 0; timeout --foreground -s QUIT 2", ""),
    ] {
        let Some(shown) = in_a_terminal(prefix, &["train", "cartpole", &run_dir(name), long[0], long[1]]) else { return };
        let (before, rest) = shown.split_once(open).unwrap_or_else(|| panic!("{name}: {shown}"));
        let (board, after) = rest.split_once(close).unwrap_or_else(|| panic!("{name}: {shown}"));
        assert!(before.contains(&format!("run directory: {}", path(name))), "{shown}");
        assert!(board.contains("steps/s") && board.contains("environments"), "{name}: {board}");
        assert_eq!(board.contains("\x1b[0;32m"), name != "term", "colours: {board}");
        // Messages are held back while the board is shown.
        assert!(after.contains("evaluation after") && after.contains(expected) && !board.contains("\x1b[?1049"), "{after}");
    }
    // A run that is stopped leaves the screen meanwhile, and draws its whole board again.
    let stopped = "& pid=$!; sleep 2; kill -TSTP $pid; sleep 1; kill -CONT $pid; sleep 1; kill -TERM $pid; wait $pid";
    let shown = in_a_terminal("", &["train", "cartpole", &run_dir("stopped"), long[0], long[1], stopped]).unwrap();
    let parts: Vec<&str> = shown.split(open).collect();
    assert!(parts.len() == 3 && parts[1..].iter().all(|part| part.contains("steps/s") && part.contains(close)), "{shown}");
    assert!(parts[2].contains("environments") && parts[2].contains("interrupted and saved"), "{shown}");
    // A run that cannot start leaves no screen behind.
    let shown = in_a_terminal("", &["train", "cartpole", &run_dir("fails"), "--set", "hidden=[100000,100000]"]).unwrap();
    assert_eq!(shown.matches(open).count(), shown.matches(close).count(), "{shown}");
    assert!(shown.contains("error: "), "{shown}");
    // Without a board.
    for more in ["--plain", "--json"] {
        let shown = in_a_terminal("", &["train", "cartpole", &run_dir(more), "--steps 64", more]).unwrap();
        assert!(!shown.contains('\x1b') && shown.contains("env_steps") == (more == "--json"), "{shown}");
    }
    // A terminal may claim any size.
    let shown = in_a_terminal(
        "stty rows 65535 cols 65535; ulimit -v 4000000; timeout --foreground -s INT 2",
        &["train", "cartpole", &run_dir("wide"), long[0], long[1]],
    );
    let shown = shown.unwrap();
    assert!(shown.contains("interrupted and saved") && !shown.contains("allocation"), "{}", shown.len());
    // The board of the same run, from its files.
    let shown = in_a_terminal("timeout --foreground -s INT 1", &["monitor", &path("int")]).unwrap();
    assert!(shown.contains("steps/s") && shown.ends_with(close), "{shown}");
}

#[test]
fn event_files_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    train(&dir.path().join("run"), &["tensorboard=false"]);
    assert!(!dir.path().join("run/tb").exists());
}
