//! Runs, files and workers of somebody else.
//!
//! `rl` asks before it executes their commands, and shows their messages without escape sequences.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::harness::{finish, newest, rl, text};

const SMALL: [&str; 12] = [
    "--set",
    "n_envs=2",
    "--set",
    "hidden=[4]",
    "--set",
    "ppo.n_steps=8",
    "--set",
    "ppo.batch_size=16",
    "--set",
    "eval_episodes=1",
    "--steps",
    "64",
];

/// Two users with a directory to work in, and a cache directory each.
struct Place {
    dir: tempfile::TempDir,
    walk: String,
}

impl Place {
    /// Returns `None` without a Python.
    fn new() -> Option<Self> {
        if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no python3");
            return None;
        }
        let walk = format!("python3 {}/examples/worker/walk.py", env!("CARGO_MANIFEST_DIR"));
        Some(Self { dir: tempfile::tempdir().unwrap(), walk })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `rl` as a user, in this directory.
    fn run(&self, user: &str, args: &[&str]) -> Output {
        finish(rl(args).env("XDG_CACHE_HOME", self.path(user)).current_dir(self.dir.path()))
    }

    /// A command that leaves a file behind.
    fn evil(&self) -> String {
        format!("exec:sh -c 'touch PWNED; exec {}'", self.walk)
    }

    /// True if the command of [`Place::evil`] has been executed since the last call.
    fn was_executed(&self) -> bool {
        fs::remove_file(self.path("PWNED")).is_ok()
    }

    /// Checks that a command of the victim is refused, with nothing executed.
    fn refuses(&self, args: &[&str]) {
        let output = self.run("victim", args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(!self.was_executed() && output.stdout.is_empty(), "{args:?}: {said}");
        let shown = said.contains(" would execute exec:sh -c 'touch PWNED; ") && said.ends_with("add --trust\n");
        assert!(shown && said.lines().count() == 1, "{args:?}: {said}");
    }

    fn accepts(&self, user: &str, args: &[&str]) {
        let output = self.run(user, args);
        assert!(output.status.success() && self.was_executed(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn what_a_file_would_execute_is_refused_by_every_verb_until_it_is_trusted() {
    let Some(place) = Place::new() else { return };
    place.accepts("owner", &[&["train", &place.evil(), "--run-dir", "run"], &SMALL[..]].concat());
    fs::write(place.path("sweep.toml"), {
        let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
        format!("{config}\n[sweep]\ntrials = 1\n[sweep.settings]\n\"ppo.gamma\" = [0.9, 0.99]\n")
    })
    .unwrap();
    let arguments = "env.kwargs = '{\"a\": 1}'\n";
    fs::write(place.path("arguments.toml"), arguments).unwrap();
    let checkpoint = newest(&place.path("run"));
    let (checkpoint, evil) = (text(&checkpoint), &*place.evil());
    let verbs: [&[&str]; 15] = [
        &["eval", "run", "--episodes", "1"],
        &["eval", "run", "--best", "--episodes", "1"],
        &["eval", checkpoint, "--episodes", "1"],
        &["watch", "run"],
        &["watch", "run", "--gif", "run.gif", "--json"],
        &["record", "run", "--out", "run.steps", "--steps", "100"],
        &["train", "--resume", "run", "--steps", "128"],
        &["train", "--resume", checkpoint],
        &["train", "--resume", checkpoint, "--run-dir", "fork"],
        &["train", "--config", "run/config.toml", "--run-dir", "new"],
        &["train", "--config", "run/config.toml", "--dry-run"],
        &["sweep", "sweep.toml"],
        // The name is the user's, the arguments are the file's.
        &["train", evil, "--config", "arguments.toml", "--dry-run"],
        &["tune", evil, "--config", "arguments.toml", "--seconds", "0.1"],
        &["--json", "eval", "run"],
    ];
    for args in verbs {
        place.refuses(args);
    }
    // Nothing was started, so that nothing was written.
    for name in ["run.gif", "run.steps", "fork", "new", "sweeps", "victim"] {
        assert!(!place.path(name).exists(), "{name}");
    }
    for args in [&["plot", "run"][..], &["monitor", "run"]] {
        assert!(place.run("victim", args).status.success() && !place.was_executed(), "{args:?}");
    }
    // Its owner is asked nothing, nor is who has accepted it once.
    place.accepts("owner", &["eval", "run", "--episodes", "1"]);
    place.accepts("owner", &["train", "--resume", "run", "--steps", "128"]);
    place.accepts("owner", &["sweep", "sweep.toml"]);
    fs::remove_dir_all(place.path("sweeps")).unwrap();
    place.accepts("victim", &["eval", "run", "--episodes", "1", "--trust"]);
    place.accepts("victim", &["watch", "run"]);
    place.refuses(&["train", evil, "--config", "arguments.toml", "--dry-run"]);
    // The same words mean another program in another directory.
    fs::create_dir(place.path("elsewhere")).unwrap();
    let mut elsewhere = rl(&["eval", "../run", "--episodes", "1"]);
    elsewhere.env("XDG_CACHE_HOME", place.path("victim")).current_dir(place.path("elsewhere"));
    assert_eq!(finish(&mut elsewhere).status.code(), Some(2));
    assert!(!place.path("elsewhere/PWNED").exists());
}

#[test]
fn a_callable_of_a_module_is_refused_with_its_arguments_and_a_registered_name_is_not() {
    let Some(place) = Place::new() else { return };
    let config = |name: &str, kwargs: &str| {
        fs::write(place.path("config.toml"), format!("[env]\nname = \"{name}\"\nkwargs = '{kwargs}'\n")).unwrap();
        let output = place.run("victim", &["train", "--config", "config.toml", "--dry-run"]);
        assert!(!place.was_executed());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        config("gym:os:system", "{\"command\": \"touch PWNED\"}"),
        "error: config.toml:2 would execute gym:os:system with env.kwargs = {\"command\": \"touch PWNED\"}; nothing was started; \
         if you trust it, add --trust\n"
    );
    let said = config("gym:No-v9", "{}");
    assert!(!said.contains("--trust"), "{said}");
    // The name is the user's, the module's directory is the file's.
    fs::write(place.path("place.toml"), "env.path = '/theirs'\n").unwrap();
    let output = place.run("victim", &["train", "gym:walk:make", "--config", "place.toml", "--dry-run"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("place.toml:1 would execute gym:walk:make in /theirs; nothing was started"), "{said}");
}

#[test]
fn an_edited_run_is_refused_before_anything_of_it_is_started() {
    let Some(place) = Place::new() else { return };
    let train = |env: &str, dir: &str| {
        let args = [&["train", env, "--run-dir", dir], &SMALL[..]].concat();
        assert!(place.run("victim", &args).status.success(), "{env}");
    };
    train(&format!("exec:{}", place.walk), "run");
    train(&place.evil(), "other");
    assert!(place.was_executed());
    // Even though the victim has started both commands itself.
    fs::copy(place.path("other/config.toml"), place.path("run/config.toml")).unwrap();
    let checkpoint = newest(&place.path("run"));
    for args in [&["train", "--resume", "run"][..], &["train", "--resume", text(&checkpoint)]] {
        let output = place.run("victim", &[args, &["--trust"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains("it belongs to another run:\n  env.name: "), "{args:?}: {said}");
        assert!(!place.was_executed(), "{args:?}");
    }
}

#[test]
fn trainings_of_a_sweep_inherit_what_was_accepted_and_nothing_else() {
    let Some(place) = Place::new() else { return };
    let env = format!("env = \"exec:{}\"\nsteps = 64\nn_envs = 2\nhidden = [4]\neval_episodes = 1\n", place.walk);
    let plan = "[sweep]\ntrials = 2\n[sweep.settings]\n\"env.kwargs\" = ['{\"a\": 1}']\n";
    fs::write(place.path("sweep.toml"), format!("{env}{plan}[ppo]\nn_steps = 8\nbatch_size = 16\n")).unwrap();
    // A user without a cache directory.
    fs::write(place.path("victim"), "").unwrap();
    let refused = place.run("victim", &["sweep", "sweep.toml"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("walk.py with env.kwargs = {\"a\": 1}; nothing"), "{said}");
    let output = place.run("victim", &["sweep", "sweep.toml", "--trust"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("failed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    // A trial in the directory names something else by now.
    let dir = place.path("sweeps/sweep");
    fs::remove_file(dir.join("trials.csv")).unwrap();
    fs::remove_dir_all(dir.join("trial-001-seed-0")).unwrap();
    let trial = fs::read_to_string(dir.join("trial-001.toml")).unwrap();
    fs::write(dir.join("trial-001.toml"), trial.replace("exec:", "exec:touch PWNED; ")).unwrap();
    let output = place.run("victim", &["sweep", "sweep.toml", "--trust"]);
    assert!(output.status.success() && !place.was_executed());
    assert_eq!(fs::read_to_string(dir.join("trial-001.toml")).unwrap(), trial, "the sweep's file counts");
}

/// Runs `rl` in a terminal in which `typed` is typed.
///
/// Returns its exit code and what it shows.
fn in_a_terminal(place: &Place, typed: &str, args: &[&str]) -> Option<(i32, String)> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no script of util-linux");
        return None;
    }
    // A test in the background inherits that interrupts are ignored.
    let rl = format!("stty rows 24 cols 200; env --default-signal=INT {} {}", env!("CARGO_BIN_EXE_rl"), args.join(" "));
    let script = format!("(sleep 1; printf '{typed}'; sleep 1) | script -qec \"{rl}\" /dev/null");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("TERM", "xterm").env("SHELL", "/bin/sh").env("XDG_CACHE_HOME", place.path("victim"));
    let output = finish(command.current_dir(place.dir.path()));
    Some((output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn at_a_terminal_it_is_asked_once_and_anything_but_yes_is_no() {
    let Some(place) = Place::new() else { return };
    place.accepts("owner", &[&["train", &place.evil(), "--run-dir", "run"], &SMALL[..]].concat());
    let eval = ["eval", "run", "--episodes", "1"];
    for (typed, code, expected) in
        [("\\n", 2, "was not accepted"), ("n\\n", 2, "was not accepted"), ("\\003", 130, "nothing is kept")]
    {
        let Some((found, said)) = in_a_terminal(&place, typed, &eval) else { return };
        assert!(found == code && said.contains("Do you trust it? [y/N]") && said.contains(expected), "{typed}: {found}, {said}");
        assert!(said.contains("\n  exec:sh -c 'touch PWNED; ") && !place.was_executed(), "{typed}: {said}");
    }
    let (code, said) = in_a_terminal(&place, "y\\n", &eval).unwrap();
    assert!(code == 0 && said.contains("[y/N]") && place.was_executed(), "{code}, {said}");
    let (code, said) = in_a_terminal(&place, "", &eval).unwrap();
    assert!(code == 0 && !said.contains("[y/N]") && place.was_executed(), "{code}, {said}");
}

/// Sequence that sets a terminal's title, as in names and messages of the tests.
const TITLE: &str = "\x1b]0;title\x07";

/// Writes a worker that says [`TITLE`] wherever it can.
///
/// Its argument is the way in which it fails.
fn loud(place: &Place) -> String {
    let walk = fs::read_to_string("examples/worker/walk.py").unwrap();
    let title = "TITLE = '\\x1b]0;title\\x07\\x9b2J\\u202e'\n";
    let say = "import sys\nos.write(2, ('log ' + TITLE + '\\nsecond line\\n').encode())\nHOW = sys.argv[1]\n";
    let raise = "def fail(at):\n    what = {'at': at, 'env': None, 'kind': 'E' + TITLE, 'message': TITLE, 'traceback': TITLE + '\\n' + TITLE}\n    \
                 text = json.dumps(what).encode()\n    write(struct.pack('<II', 0xE0000000, len(text)) + text)\n    sys.exit(1)\n";
    let begin = "if HOW == 'find':\n    fail('find')\nif HOW == 'make':\n    fail('make')\nif HOW == 'garbage':\n    write(TITLE.encode() * 9)\n\
                 if HOW == 'ends':\n    sys.exit(3)\n";
    let source = walk
        .replace("read_text()\ngreeting", &format!("{title}{say}{raise}read_text()\n{begin}greeting"))
        .replace("\"a walk in Python\"", "TITLE")
        .replace("    k = len(walks)\n", "    k = len(walks)\n    if HOW == 'step' and kind == STEP:\n        fail('step')\n");
    let path = place.path("loud.py");
    fs::write(&path, source).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("exec:python3 {} ", text(&path))
}

fn is_plain(bytes: &[u8]) -> bool {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
    !String::from_utf8_lossy(bytes).contains(steers)
}

#[test]
fn names_and_messages_of_workers_are_shown_and_steer_no_terminal() {
    let Some(place) = Place::new() else { return };
    let loud = loud(&place);
    let (named, run) = (format!("{loud}fine '{TITLE}'"), format!("run{TITLE}"));
    let train = |env: &str, more: &[&str]| [&["train", env], &SMALL[..], more].concat().iter().map(|s| s.to_string()).collect();
    let of = |args: &[&str]| args.iter().map(|arg| (*arg).to_string()).collect::<Vec<_>>();
    let failing = |how: &str| format!("{loud}{how}");
    let commands: Vec<(i32, Vec<String>)> = vec![
        (0, train(&named, &["--run-dir", &run])),
        (0, train(&named, &["--run-dir", "json", "--json"])),
        (0, of(&["train", "--resume", &run, "--steps", "128"])),
        (0, of(&["eval", &run, "--episodes", "2"])),
        (0, of(&["eval", &run, "--episodes", "2", "--json"])),
        (0, of(&["watch", &run])),
        (2, of(&["watch", &run, "--gif", "run.gif"])),
        (0, of(&["record", &run, "--out", "run.steps", "--steps", "100"])),
        (0, of(&["monitor", &run])),
        (0, of(&["monitor", &run, "--json"])),
        (0, of(&["plot", &run])),
        (0, of(&["check-env", &named])),
        (0, of(&["bench", "env", &named, "--envs", "2", "--seconds", "0.1"])),
        (2, of(&["train", &format!("{named}nv{TITLE}"), "--algo", TITLE])),
        (2, of(&["eval", TITLE])),
        (2, train(&failing("find"), &[])),
        (5, train(&failing("make"), &[])),
        (5, train(&failing("garbage"), &[])),
        (5, train(&failing("ends"), &[])),
        (5, train(&failing("step"), &["--run-dir", "step", "--set", "max_restarts=1"])),
        (5, train(&failing("step"), &["--run-dir", "json-step", "--set", "max_restarts=1", "--json"])),
    ];
    for (code, args) in &commands {
        let output = place.run("owner", &args.iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        assert!(is_plain(&output.stdout) && is_plain(&output.stderr), "{args:?}: {said:?}");
        assert!(output.status.code() == Some(*code) || *code == 2 && output.status.code() == Some(3), "{args:?}: {said}");
        if args.last().unwrap() == "--json" {
            let objects = String::from_utf8(output.stdout).unwrap();
            assert!(objects.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{objects}");
        }
        let names = args.iter().any(|arg| arg.contains(TITLE) || arg.starts_with(&loud));
        let is_measured = ["check-env", "watch"].contains(&&*args[0]);
        // A log may come too late to be shown, but the answer is.
        let is_shown = said.contains("\\u001b]0;title\\u0007") || said.contains("\\u{1b}]0;title\\u{7}");
        assert!(!names || is_measured || is_shown, "{args:?}: {said}");
    }
    let svg = fs::read(place.path(&run).join("plot.svg")).unwrap();
    assert!(is_plain(&svg) && String::from_utf8(svg).unwrap().contains("run\\u001b]0;title\\u0007"));
    // A log keeps its lines.
    let output = place.run("owner", &["check-env", &failing("ends")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("\\u0007\\u009b2J\\u202e\nsecond line"));
    // What a file would execute, too.
    let refused = place.run("victim", &["eval", &run]);
    assert!(is_plain(&refused.stderr) && refused.status.code() == Some(2));
}

#[test]
fn a_board_shows_names_and_steers_no_terminal() {
    let Some(place) = Place::new() else { return };
    let env = format!("{}fine '{TITLE}'", loud(&place));
    let args = [&["train", &env, "--run-dir", "run"], &SMALL[..]].concat();
    assert!(place.run("victim", &args).status.success());
    // Long enough for a picture of the board.
    let resumed = ["train", "--resume", "run", "--steps", "20000"];
    let Some((code, said)) = in_a_terminal(&place, "", &resumed) else { return };
    assert!(code == 0 && said.contains("\x1b[?1049h"), "{code}, {said:?}");
    assert!(said.contains("fine '\\u001b]0;title\\u0007'") && !said.contains(TITLE), "{said:?}");
    let monitor = in_a_terminal(&place, "\\003", &["monitor", "run"]).unwrap().1;
    assert!(monitor.contains("\\u001b]0;title\\u0007") && !monitor.contains(TITLE), "{monitor:?}");
}
