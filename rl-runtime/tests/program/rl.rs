//! The `rl` program and its files, from outside.

use std::fs;
use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{TIME_LIMIT, entry, finish, load, metrics, newest, rl, text, wait};
use rl_runtime::checkpoint::{self, Checkpoint};
use rl_runtime::config::Layers;
use rl_runtime::run_dir::RunDir;
use rl_runtime::{Algo, Config, Error};
use serde_json::{Value, json};

/// Settings of a run small enough to damage its checkpoints byte by byte.
const SMALL: [&str; 6] = ["steps=256", "n_envs=4", "hidden=[2]", "ppo.n_steps=8", "ppo.batch_size=16", "checkpoint_every=64"];

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the arguments that train a small run in `dir`.
fn small_args<'a>(dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let settings = SMALL.iter().flat_map(|s| ["--set", *s]);
    ["train", "cartpole", "--run-dir", dir].into_iter().chain(settings).chain(more.iter().copied()).collect()
}

/// Returns everything of a checkpoint that must be equal, as bits.
fn contents(path: &Path) -> (Vec<u32>, Vec<Vec<u8>>) {
    let checkpoint = load(path).unwrap();
    let moments = checkpoint.agent.moments.iter().flat_map(|(_, values)| values);
    let floats = checkpoint.agent.params.iter().chain(moments).map(|x| x.to_bits()).collect();
    let progress = rl_runtime::Progress { elapsed_s: 0.0, ..checkpoint.progress };
    let rest = [
        rl_envs::codec::encode(&progress),
        rl_envs::codec::encode(&checkpoint.agent.counters),
        rl_envs::codec::encode(&checkpoint.collector),
    ];
    (floats, rest.into_iter().map(Result::unwrap).collect())
}

fn small_config(more: &[&str]) -> Config {
    let mut layers = Layers::default();
    SMALL.iter().chain(more).for_each(|s| layers.add_assignment(s));
    layers.resolve(rl_envs::catalog::find("cartpole").unwrap(), Algo::PPO).unwrap()
}

/// Trains a small run.
fn small_run(dir: &Path, more: &[&str]) {
    let more: Vec<&str> = more.iter().flat_map(|s| ["--set", s]).collect();
    let output = finish(&mut rl(&small_args(text(dir), &more)));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn train_then_eval_speak_json_with_the_documented_fields() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = finish(&mut rl(&small_args(text(&run), &["--json", "--seed", "7"])));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = lines.last().unwrap();
    assert_eq!((&done["event"], &done["env_steps"], &done["run_dir"]), (&json!("done"), &json!(256), &json!(text(&run))));
    for field in ["wall_s", "env_steps_per_s", "episode_return_mean"] {
        assert!(done[field].is_number(), "{field}: {done}");
    }
    assert_eq!(lines[0]["event"], "start");
    assert_eq!(lines.iter().filter(|line| line["event"] == "progress").count(), 8);

    for path in [&run, &newest(&run)] {
        let output = finish(&mut rl(&["eval", text(path), "--episodes", "7", "--json"]));
        let result: Value = serde_json::from_str(stdout(&output).trim()).unwrap();
        assert_eq!((&result["event"], &result["episodes"]), (&json!("eval"), &json!(7)));
        for field in ["return_mean", "return_std", "length_mean"] {
            assert!(result[field].is_number(), "{field}: {result}");
        }
    }
}

#[test]
fn watch_plays_what_eval_plays_and_prints_a_line_an_episode_where_there_is_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    small_run(&run, &["steps=64"]);
    let json = |verb: &str| -> Value {
        let output = finish(&mut rl(&[verb, text(&run), "--episodes", "3", "--seed", "5", "--json"]));
        serde_json::from_str(stdout(&output).trim()).unwrap()
    };
    let (watched, evaluated) = (json("watch"), json("eval"));
    assert_eq!((&watched["event"], &watched["frames"], &watched["gif"]), (&json!("watch"), &json!(0), &Value::Null));
    for field in ["env", "seed", "checkpoint", "episodes", "return_mean", "return_std", "length_mean"] {
        assert_eq!(watched[field], evaluated[field], "{field}");
    }
    let output = finish(&mut rl(&["watch", text(&run), "--episodes", "3", "--seed", "5"]));
    let lines = [0, 1, 2].map(|i| {
        let (episode_return, length) = (watched["returns"][i].as_f64().unwrap(), watched["lengths"][i].as_u64().unwrap());
        format!("episode {}: return {episode_return:.1}, length {length}\n", i + 1)
    });
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), lines.concat()));
}

#[test]
fn watch_writes_a_gif_of_every_state_that_was_acted_on() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("a.gif"));
    small_run(&run, &["steps=64"]);
    fs::write(&file, "something older").unwrap();
    let args = ["watch", text(&run), "--gif", text(&file), "--episodes", "2", "--size", "81", "--fps", "50", "--json"];
    let output = finish(&mut rl(&args));
    let result: Value = serde_json::from_str(stdout(&output).trim()).unwrap();
    let lengths: Vec<u64> = result["lengths"].as_array().unwrap().iter().map(|length| length.as_u64().unwrap()).collect();
    assert_eq!((result["frames"].as_u64(), &result["gif"]), (Some(lengths.iter().sum()), &json!(text(&file))));

    let mut decoder = gif::DecodeOptions::new().read_info(fs::File::open(&file).unwrap()).unwrap();
    assert_eq!((decoder.width(), decoder.height()), (81, 30), "CartPole's scene is 5.4 m by 2 m");
    let mut delays = Vec::new();
    while let Some(frame) = decoder.read_next_frame().unwrap() {
        delays.push(frame.delay);
    }
    let expected = lengths.iter().flat_map(|&n| (1..=n).map(move |t| if t == n { 100 } else { 2 }));
    assert_eq!(delays, expected.collect::<Vec<u16>>());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left over");
}

#[test]
fn the_same_seed_gives_the_same_bits_for_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    // Large enough for threads to matter: several slices of environments and of samples.
    let settings = ["n_envs=200", "ppo.n_steps=8", "ppo.batch_size=400", "steps=4800", "hidden=[64,64]"];
    let run = |name: &str, threads: &str, seed: &str| {
        let path = dir.path().join(name);
        let mut args = vec!["train", "cartpole", "--threads", threads, "--seed", seed, "--run-dir", text(&path)];
        args.extend(settings.iter().flat_map(|s| ["--set", s]));
        let output = finish(&mut rl(&args));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (contents(&newest(&path)), metrics(&path))
    };
    let one = run("a", "1", "5");
    assert_eq!(run("b", "2", "5"), one);
    assert_eq!(run("c", "3", "5"), one);
    assert_ne!(run("d", "1", "6").0.0, one.0.0);
}

#[test]
fn stopped_and_resumed_equals_uninterrupted_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let of_rollouts = |algo: &str| vec![format!("{algo}.n_steps=8"), format!("{algo}.batch_size=16")];
    let of_replay = |more: &[&str]| {
        let small =
            ["train_freq=32", "gradient_steps=3", "learning_starts=100", "buffer_size=300", "batch_size=16", "save_replay=true"];
        small.iter().chain(more).map(|setting| format!("dqn.{setting}")).collect()
    };
    for (algo, own) in [
        ("ppo", of_rollouts("ppo")),
        ("a2c", of_rollouts("a2c")),
        ("dqn", of_replay(&["n_steps=3", "target_update_interval=100"])),
        (
            "dqn",
            of_replay(&[
                "prioritized=true",
                "dueling=true",
                "tau=0.1",
                "target_update_interval=4",
                "exploration_spread=3",
                "acted_priorities=true",
                "n_steps=3",
            ]),
        ),
    ] {
        let train = |name: &str| {
            let path = dir.path().join(format!("{algo}-{}-{name}", own.len()));
            let settings = ["steps=1600", "n_envs=4", "hidden=[8]", "checkpoint_every=64", "log_interval=1"];
            let mut args = vec!["train", "cartpole", "--algo", algo, "--run-dir", text(&path)];
            args.extend(settings.into_iter().chain(own.iter().map(String::as_str)).flat_map(|s| ["--set", s]));
            let output = finish(&mut rl(&args));
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            path
        };
        let whole = train("whole");
        // After a crash, the newest checkpoint is missing, but metrics continue past the one before it.
        let crashed = train("crashed");
        fs::remove_dir_all(newest(&crashed)).unwrap();
        let output = finish(&mut rl(&["train", "--resume", text(&crashed)]));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains("resumed from 1,536 env steps"), "{}", stdout(&output));
        assert_eq!(contents(&newest(&crashed)), contents(&newest(&whole)));
        assert_eq!(metrics(&crashed), metrics(&whole));
    }
}

#[test]
fn a_save_stopped_at_any_step_leaves_a_complete_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    small_run(&dir.path().join("run"), &[]);
    let original = load(&newest(&dir.path().join("run"))).unwrap();
    let layout = original.config.layout(entry(&original.config)).unwrap();
    let save = |into: &Path, env_steps: u64, stop_at: usize| {
        let mut state = original.clone();
        (state.progress.env_steps, state.progress.iterations) = (env_steps, env_steps);
        let mut step = 0;
        // Unwinding acts like a crash: no cleanup runs afterwards.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut crash = |_: &str| {
                step += 1;
                if step == stop_at { std::panic::resume_unwind(Box::new(())) } else { Ok(()) }
            };
            checkpoint::save(into, &state, &layout, None, 2, &mut crash).unwrap();
        }));
        (result.is_ok(), step)
    };
    let steps = {
        let into = dir.path().join("count");
        (1..=2).for_each(|i| assert!(save(&into, i, 0).0));
        save(&into, 3, 0).1
    };
    assert!(steps >= 16, "five files written and synced, directories, renames: {steps}");
    for stop_at in 1..=steps {
        let into = dir.path().join(format!("stop-{stop_at}"));
        (1..=2).for_each(|i| assert!(save(&into, i, 0).0));
        assert!(!save(&into, 3, stop_at).0);
        let found = checkpoint::list(&into).unwrap();
        assert!(found.len() >= 2, "stopped at {stop_at}: {found:?}");
        for path in &found {
            load(path).unwrap_or_else(|e| panic!("stopped at {stop_at}: {e}"));
        }
        let last = found.last().unwrap();
        let expected = if last.ends_with("ckpt-000000000003") { 3 } else { 2 };
        assert_eq!(load(last).unwrap().progress.env_steps, expected);
        assert!(checkpoint::clean(&into).is_empty());
        assert!(save(&into, 4, 0).0, "the next save succeeds");
        assert_eq!(checkpoint::list(&into).unwrap().len(), 2);
        assert_eq!(fs::read_dir(&into).unwrap().count(), 2, "nothing is left over");
    }
}

#[test]
fn a_checkpoint_with_any_byte_changed_or_cut_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    small_run(&run, &["steps=64"]);
    let path = newest(&run);
    let refused = |what: &str| match load(&path) {
        Err(error @ Error::Checkpoint { .. }) => assert_eq!(error.exit_code(), 3),
        other => panic!("{what}: {:?}", other.map(|_| "loaded")),
    };
    let mut files = 0;
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let bytes = fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&file, &damaged).unwrap();
            refused(&format!("{} with byte {at} changed", file.display()));
            fs::write(&file, &bytes[..at]).unwrap();
            refused(&format!("{} cut at {at}", file.display()));
        }
        fs::remove_file(&file).unwrap();
        refused(&format!("without {}", file.display()));
        fs::write(&file, &bytes).unwrap();
        files += 1;
    }
    assert_eq!(files, 5);
    load(&path).unwrap();
}

#[test]
fn damage_is_told_with_the_exit_code_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (run, other) = (dir.path().join("run"), dir.path().join("other"));
    small_run(&run, &[]);
    small_run(&other, &["hidden=[3]"]);
    let file = newest(&run).join("params.safetensors");
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..good.len() - 1]).unwrap();
    for args in [["train", "--resume", text(&run)].as_slice(), &["eval", text(&run)]] {
        let before = metrics(&run);
        let output = finish(&mut rl(args));
        assert_eq!(output.status.code(), Some(3));
        let message = stderr(&output);
        assert!(message.contains("params.safetensors is damaged: it has"), "{message}");
        assert!(message.contains("remove this directory to go back"), "{message}");
        assert_eq!(message.lines().count(), 1, "one message: {message}");
        assert_eq!(metrics(&run), before);
    }

    // An intact checkpoint of another network.
    fs::remove_dir_all(newest(&run)).unwrap();
    let target = run.join("checkpoints").join("ckpt-000000000999");
    fs::rename(newest(&other), &target).unwrap();
    let output = finish(&mut rl(&["train", "--resume", text(&run)]));
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("hidden: [3] here, [2] there"), "{}", stderr(&output));

    // Parameters of another network with a valid manifest.
    let checkpoint = load(&target).unwrap();
    let layout = checkpoint.config.layout(entry(&checkpoint.config)).unwrap();
    let forged = Checkpoint { config: small_config(&["hidden=[5]"]), ..checkpoint };
    let forged = checkpoint::save(&dir.path().join("forged"), &forged, &layout, None, 2, &mut |_| Ok(())).unwrap();
    let output = finish(&mut rl(&["eval", text(&forged.path)]));
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("actor.0.weight is [4, 3], this network has [4, 5]"), "{}", stderr(&output));
}

#[test]
fn killed_at_fifty_moments_a_run_goes_on_from_its_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let killed = dir.path().join("killed");
    let settings = ["steps=60000", "checkpoint_every=96", "log_interval=50", "ppo.n_epochs=1", "eval_episodes=1"];
    let more: Vec<&str> = settings.iter().flat_map(|s| ["--set", s]).collect();
    assert_eq!(finish(&mut rl(&small_args(text(&whole), &more))).status.code(), Some(0));

    let mut rng = rl_envs::Rng::new(0, 0, 0, rl_envs::Purpose::Shuffle);
    let (mut last, mut ended) = (0, 0);
    for kill in 0..50 {
        let resume = ["train", "--resume", text(&killed)];
        let args = if killed.join("config.toml").exists() { resume.to_vec() } else { small_args(text(&killed), &more) };
        let mut child = rl(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 + u64::from(rng.below(60))));
        let _ = child.kill();
        let output = wait(child);
        if let Some(code) = output.status.code() {
            assert_eq!(code, 0, "kill {kill}: {}", stderr(&output));
            ended += 1;
        }
        if let Some(path) = checkpoint::list(&killed.join("checkpoints")).unwrap().pop() {
            let now = load(&path).unwrap().progress.env_steps;
            assert!(now >= last, "never back");
            last = now;
        }
    }
    assert!(ended < 45, "the run was to be killed in its midst, but {ended} times it had ended");
    let output = finish(&mut rl(&["train", "--resume", text(&killed)]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(contents(&newest(&killed)), contents(&newest(&whole)));
    assert_eq!(metrics(&killed), metrics(&whole));
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_and_says_how_to_go_on_and_a_second_one_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let signal = |child: &Child, name: &str| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    let start = |name: &str, epochs: &str, hidden: &str| {
        let run = dir.path().join(name);
        let more = ["--steps", "1e9", "--set", "checkpoint_every=1000000000", "--set", epochs, "--set", hidden];
        let child = rl(&small_args(text(&run), &more)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while !run.join("metrics.csv").exists() {
            assert!(begin.elapsed() < TIME_LIMIT);
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        (run, child)
    };
    let (run, child) = start("one", "ppo.n_epochs=1", "hidden=[8]");
    signal(&child, "-INT");
    let output = wait(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(stdout(&output).contains(&format!("rl train --resume {}", run.display())), "{}", stdout(&output));
    load(&newest(&run)).unwrap();

    let (run, child) = start("two", "ppo.n_epochs=10000", "hidden=[256,256]");
    signal(&child, "-INT");
    std::thread::sleep(Duration::from_millis(1500));
    signal(&child, "-INT");
    let output = wait(child);
    assert_eq!(output.status.code(), Some(131));
    assert!(stderr(&output).contains("nothing was saved since the last checkpoint"), "{}", stderr(&output));
    assert!(checkpoint::list(&run.join("checkpoints")).unwrap().is_empty(), "the update was far from its end");

    let (_, child) = start("three", "ppo.n_epochs=1", "hidden=[8]");
    signal(&child, "-TERM");
    assert_eq!(wait(child).status.code(), Some(130), "SIGTERM saves too");
}

#[test]
fn an_interrupt_ends_the_last_evaluation_and_a_resumed_run_repeats_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let args = small_args(text(&run), &["--json", "--set", "eval_episodes=1000000"]);
    let mut child = rl(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    // The checkpoint of the last step is written before the evaluation.
    while !checkpoint::list(&run.join("checkpoints"))
        .is_ok_and(|list| list.iter().any(|path| path.ends_with("ckpt-000000000256")))
    {
        if begin.elapsed() > TIME_LIMIT || child.try_wait().unwrap().is_some() {
            child.kill().unwrap();
            panic!("no checkpoint at the end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = wait(child);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let last: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!((&last["end"], &last["eval"]), (&json!("interrupted"), &Value::Null));
    let output = finish(&mut rl(&["train", "--resume", text(&run), "--json", "--set", "eval_episodes=5"]));
    let last: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!((output.status.code(), &last["end"], &last["eval"]["episodes"]), (Some(0), &json!("steps"), &json!(5)));
}

#[test]
fn training_is_judged_by_other_episodes_than_those_of_eval() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = finish(&mut rl(&small_args(text(&run), &["--json", "--set", "eval_episodes=20"])));
    let done: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    let eval = |more: &[&str]| -> Value {
        let output = finish(&mut rl(&[&["eval", text(&run), "--episodes", "20", "--json"], more].concat()));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str(stdout(&output).trim()).unwrap()
    };
    let greedy = eval(&[]);
    // If mean and deviation of twenty returns agree to the last bit, the episodes are the same.
    assert_ne!(done["eval"]["return_std"], greedy["return_std"]);
    let sampled = eval(&["--stochastic"]);
    assert_ne!(sampled["return_std"], greedy["return_std"]);
    assert_eq!(sampled, eval(&["--stochastic"]), "the seed decides what is sampled");
    assert_eq!((&sampled["stochastic"], &greedy["stochastic"], &greedy["cut"]), (&json!(true), &json!(false), &json!(0)));
}

#[test]
fn eval_max_steps_cuts_evaluations_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    small_run(&run, &["eval_max_steps=3", "eval_episodes=5"]);
    let output = finish(&mut rl(&["eval", text(&run), "--episodes", "4"]));
    assert!(stdout(&output).contains("4 of them cut by eval_max_steps"), "{}", stdout(&output));
}

#[test]
fn an_overlapped_run_interrupted_at_any_moment_goes_on_as_if_it_had_not_been() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let overlapped =
        ["--set", "pipeline=overlapped", "--set", "max_lag=3", "--steps", "64000", "--set", "checkpoint_every=10000"];
    let whole = path("whole");
    assert_eq!(finish(&mut rl(&small_args(text(&whole), &overlapped))).status.code(), Some(0));
    for wait_ms in [0, 30, 130] {
        let run = path(&format!("interrupted-{wait_ms}"));
        let mut command = rl(&small_args(text(&run), &overlapped));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while !run.join("metrics.csv").exists() {
            assert!(begin.elapsed() < TIME_LIMIT);
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(wait_ms));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let code = wait(child).status.code();
        assert!(code == Some(130) || code == Some(0), "{code:?}");
        if code == Some(130) {
            assert_eq!(finish(&mut rl(&["train", "--resume", text(&run)])).status.code(), Some(0));
        }
        assert_eq!(contents(&newest(&run)), contents(&newest(&whole)));
    }
}

#[test]
fn a_profile_and_a_timeline_say_where_time_went() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, threads) in [("pipeline=sync", 1), ("pipeline=overlapped", 2)] {
        let (run, trace) = (dir.path().join(mode), dir.path().join(format!("{mode}.json")));
        let more = ["--set", mode, "--profile", "--json", "--timeline", text(&trace)];
        let output = finish(&mut rl(&small_args(text(&run), &more)));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let profile = lines.iter().find(|line| line["event"] == "profile").unwrap();
        assert_eq!(profile["threads"].as_object().unwrap().len(), threads);
        assert!(profile["threads"]["learner"]["update"].as_f64().unwrap() > 0.0);
        assert!(!profile["advice"].as_str().unwrap().is_empty());
        let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
        let updates = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "update").count();
        assert_eq!(updates, 8, "eight rollouts");
    }
}

#[test]
fn a_profile_shows_the_parts_of_updates_and_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let reference = ["learner=reference"];
    let dqn = ["dqn.learning_starts=64", "dqn.batch_size=16", "dqn.prioritized=true", "dqn.target_update_interval=64"];
    let normalized = ["normalize_obs=true", "ppo.normalize_reward=true"];
    let algos: [(&str, &[&str]); 5] =
        [("ppo", &normalized), ("ppo", &reference), ("a2c", &[]), ("a2c", &reference), ("dqn", &dqn)];
    for (i, (algo, settings)) in algos.into_iter().enumerate() {
        let train = |name: &str, more: &[&str]| {
            let run = dir.path().join(format!("{name}-{i}"));
            let steps =
                ["--algo", algo, "--steps", "512", "--envs", "8", "--set", "eval_episodes=2", "--set", "env.frame_stack=2"];
            let settings = settings.iter().flat_map(|setting| ["--set", setting]);
            let args = ["train", "cartpole", "--json", "--run-dir", text(&run)].into_iter().chain(steps).chain(settings);
            let output = finish(&mut rl(&args.chain(more.iter().copied()).collect::<Vec<_>>()));
            assert_eq!(output.status.code(), Some(0), "{algo}: {}", stderr(&output));
            (contents(&newest(&run)), stdout(&output))
        };
        let ((plain, _), (profiled, said)) = (train("plain", &[]), train("profiled", &["--profile"]));
        assert_eq!(plain, profiled, "{algo}");
        let mut lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let profile = lines.find(|line| line["event"] == "profile").unwrap();
        let seconds = |phase: &str| profile["threads"]["learner"][phase].as_f64().unwrap();
        let replay: &[&str] = if algo == "dqn" { &["adding", "drawing"] } else { &[] };
        let parts = [&["forward", "backward", "optimizer"], replay].concat();
        parts.iter().for_each(|part| assert!(seconds(part) > 0.0, "{algo} has no time for {part}: {profile}"));
        assert!(parts.iter().map(|part| seconds(part)).sum::<f64>() <= seconds("update"), "{profile}");
        assert!(seconds("preprocessing") > 0.0, "stacks and statistics: {profile}");
    }
}

#[test]
fn bench_pipeline_gives_a_rate_beside_the_ideal_one() {
    let args =
        ["--envs", "4", "--latency", "fixed", "--latency-ms", "2", "--update-ms", "5", "--n-steps", "8", "--seconds", "0.2"];
    let output = finish(&mut rl(&[&["bench", "pipeline", "--json", "--batch", "32"][..], &args].concat()));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer: Value = serde_json::from_str(stdout(&output).trim()).unwrap();
    assert_eq!((answer["name"].as_str(), answer["ideal"].as_f64()), (Some("pipeline"), Some(2000.0)));
    assert!(answer["value"].as_f64().unwrap() > 0.0 && answer["learner_busy"].as_f64().unwrap() > 0.0);
    // A rollout may have been almost full when the clock started.
    assert!(answer["share_of_ideal"].as_f64().unwrap() < 1.2, "{}", answer["share_of_ideal"]);
    assert_eq!((&answer["max_lag"], &answer["faults"]["timeouts"], &answer["dropped"]), (&json!(1), &json!(0), &json!(0)));
}

#[test]
fn a_run_stopped_before_its_first_checkpoint_starts_afresh_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    drop(RunDir::create(Some(&run), &small_config(&[]), "cpu").unwrap());
    let output = finish(&mut rl(&["train", "--resume", text(&run)]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("before its first checkpoint: it starts from the beginning"), "{}", stdout(&output));
}

#[test]
fn bad_input_gets_one_message_and_its_exit_code_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("file"));
    fs::write(&file, "x").unwrap();
    let below = file.join("run");
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("precious"), "x").unwrap();
    let trained = dir.path().join("trained");
    small_run(&trained, &["steps=64"]);
    let set = |setting: &'static str| vec!["train", "cartpole", "--set", setting];
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (
            vec!["train", "cartpool"],
            2,
            "space_invaders, empty, door_key, multi_room, repeat_first, slow_cartpole, crawl (did you mean \"cartpole\"?)",
        ),
        (vec!["train"], 2, "no environment given"),
        (vec!["train", "cartpole", "--timeline", text(&below)], 1, "file"),
        (vec!["train", "cartpole", "--set", "threads=2", "--set", "collect_threads=3"], 2, "collect_threads is 3, more than"),
        (
            vec![
                "train",
                "cartpole",
                "--set",
                "n_envs=65536",
                "--set",
                "ppo.n_steps=4096",
                "--set",
                "max_lag=1000",
                "--set",
                "ppo.batch_size=4096",
                "--set",
                "pipeline=overlapped",
            ],
            2,
            "it would fit with n_envs = ",
        ),
        (vec!["bench", "pipeline", "--fail", "nan"], 2, "not a number from 0 to below 1"),
        (vec!["bench", "pipeline", "--max-lag", "1001"], 2, "1001 is not in 0..=1000"),
        (vec!["bench", "pipeline", "--sync", "--max-lag", "2"], 2, "cannot be used with"),
        (vec!["bench", "pipeline", "--latency-ms", "0"], 2, "both 0"),
        (vec!["bench", "pipeline", "--envs", "4", "--min-ready", "5"], 2, "there are 4 environments"),
        (
            vec!["train", "cartpole", "--algo", "ppq"],
            2,
            "unknown algorithm \"ppq\"; there are: ppo, a2c, dqn, sac, td3 (did you mean \"ppo\"?)",
        ),
        (set("ppo.learning_rte=1"), 2, "(did you mean \"ppo.learning_rate\"?)"),
        (set("ppo.learning_rate=-1"), 2, "ppo.learning_rate is -1; it must be"),
        (set("ppo.batch_size=512"), 2, "batch_size 512 does not divide the rollout of 256 samples (32 steps x 8 environments)"),
        (vec!["train", "cartpole", "--envs", "0"], 2, "--envs: n_envs is 0; it must be a whole number from 1"),
        (vec!["train", "cartpole", "--steps", "many"], 2, "not a whole number"),
        (vec!["train", "cartpole", "--envs", "16777216", "--set", "ppo.n_steps=128"], 2, "it would fit with n_envs = "),
        (vec!["train", "cartpole", "--device", "cuda:77"], 1, "no CUDA device"),
        (vec!["train", "cartpole", "--config", "/nowhere.toml"], 1, "/nowhere.toml: No such file"),
        (vec!["train", "cartpole", "--run-dir", text(&below)], 1, "Not a directory"),
        (vec!["train", "cartpole", "--run-dir", text(&full)], 2, "is not empty"),
        (vec!["train", "--resume", text(&full)], 2, "is not the directory of a run"),
        (vec!["eval", text(&full)], 3, "neither a checkpoint nor the directory of a run"),
        (vec!["eval", "/nowhere"], 3, "there is no such directory"),
        (vec!["eval", text(&full), "--episodes", "0"], 2, "0 is not in 1..="),
        (vec!["watch"], 2, "<PATH>"),
        (vec!["watch", "/nowhere"], 3, "there is no such directory"),
        (vec!["watch", text(&trained), "--gif", "/nowhere/a.gif"], 1, "/nowhere/a.gif: No such file"),
        (vec!["watch", text(&trained), "--gif", text(&below)], 1, "Not a directory"),
        (vec!["watch", text(&trained), "--gif", text(&full)], 2, "is a directory, not a regular file"),
        (vec!["watch", text(&trained), "--size", "0"], 2, "0 is not in 1..=4096"),
        (vec!["watch", text(&trained), "--size", "4097"], 2, "4097 is not in 1..=4096"),
        (vec!["watch", text(&trained), "--fps", "0"], 2, "0 is not in 1..=50"),
        (vec!["bench", "env", "cartpole", "--envs", "0"], 2, "0 is not in 1.."),
        (vec!["bench", "env", "cartpole", "--device", "cuda:77"], 1, "no CUDA device"),
        (vec!["bench", "env", "cartpole", "--device", "gpu"], 2, "cpu, cuda or cuda:i"),
        (vec!["bench", "env", "cartpole", "--sweep-block"], 2, "--sweep-block: a CPU has no blocks"),
        (vec!["bench", "replay", "--capacity", "0"], 2, "0 is not in 1.."),
        (vec!["bench", "replay", "--capacity", "1000000000000"], 2, "is not in 1..=4294967295"),
        (vec!["trace", "cartpole", "--init", text(&file), "--actions", text(&file)], 2, "expected value at line 1"),
    ];
    for (mut args, code, message) in cases {
        if args[0] == "train" && !args.contains(&"--run-dir") && !args.contains(&"--resume") {
            args.extend(["--run-dir", text(&run)]);
        }
        let output = finish(&mut rl(&args));
        let shown = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {shown}");
        assert!(shown.contains(message), "{args:?}: {shown}");
        assert!(!shown.contains("panicked") && output.stdout.is_empty(), "{args:?}: {shown}");
        assert!(!run.exists(), "{args:?} has begun to work");
    }
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1, "nothing was written");
}

#[test]
fn a_resumed_run_keeps_its_settings_but_those_that_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    small_run(&run, &[]);
    let output = finish(&mut rl(&["train", "--resume", text(&run), "--set", "ppo.gamma=0.5"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("ppo.gamma: 0.5 here, 0.98 there"), "{}", stderr(&output));
    let output = finish(&mut rl(&["train", "acrobot", "--resume", text(&run)]));
    assert_eq!(output.status.code(), Some(2));
    let output = finish(&mut rl(&["train", "--resume", text(&run), "--steps", "512", "--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let done: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!(done["env_steps"], 512);
}

#[test]
fn one_run_directory_serves_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let held = RunDir::create(Some(&run), &small_config(&[]), "cpu").unwrap();
    let output = finish(&mut rl(&["train", "--resume", text(&run)]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is in use by another process"), "{}", stderr(&output));
    drop(held);
    assert_eq!(finish(&mut rl(&["train", "--resume", text(&run)])).status.code(), Some(0));
}

#[test]
fn a_target_return_ends_training() {
    let dir = tempfile::tempdir().unwrap();
    // Rollouts in flight at that moment are dropped.
    for (name, how) in [("sync", &[][..]), ("overlapped", &["--set", "pipeline=overlapped", "--set", "max_lag=2"][..])] {
        let run = dir.path().join(name);
        let more = [&["--eval-every", "32", "--target-return", "1", "--json"][..], how].concat();
        let output = finish(&mut rl(&small_args(text(&run), &more)));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let done: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
        assert_eq!((&done["end"], &done["env_steps"]), (&json!("target"), &json!(32)), "{name}");
        let evaluated = finish(&mut rl(&["eval", text(&run), "--episodes", "2", "--json"]));
        assert_eq!(evaluated.status.code(), Some(0), "what was reached is saved: {}", stderr(&evaluated));
    }
}

#[test]
fn trace_follows_from_one_state_or_starts_each_step_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (init, actions) = (dir.path().join("init.json"), dir.path().join("actions.json"));
    let state = json!({"x": 0.0, "x_dot": 0.0, "theta": 0.0, "theta_dot": 0.0, "elapsed": 0});
    fs::write(&actions, "[1, 1]").unwrap();
    let run = |init_json: Value| {
        fs::write(&init, init_json.to_string()).unwrap();
        let output = finish(&mut rl(&["trace", "cartpole", "--init", text(&init), "--actions", text(&actions)]));
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let (code, following, _) = run(state.clone());
    assert_eq!((code, following.lines().count()), (Some(0), 2));
    let (_, anew, _) = run(json!([state, state]));
    let lines: Vec<&str> = anew.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(following.lines().next(), Some(lines[0]));
    assert_ne!(following.lines().nth(1), Some(lines[1]));
    let (code, _, message) = run(json!({"x": 0.0, "speed": 1.0}));
    assert_eq!(code, Some(2));
    assert!(message.contains("unknown field `speed`"), "{message}");
    let (code, _, message) = run(json!({"x": 0.0, "x_dot": 0.0, "theta": 0.0, "theta_dot": 1e18, "elapsed": 0}));
    assert_eq!(code, Some(2));
    assert!(message.contains("theta_dot in +-"), "{message}");
}

#[test]
fn a_trace_from_one_state_ends_with_its_episode() {
    let dir = tempfile::tempdir().unwrap();
    let (init, actions) = (dir.path().join("init.json"), dir.path().join("actions.json"));
    let bricks = [[1; 10]; 3];
    let state = json!({"ball_x": 3, "ball_y": 8, "ball_dir": 2, "pos": 9, "brick_map": bricks, "strike": false, "last_x": 2,
        "last_y": 7, "last_action": 0, "elapsed": 0});
    fs::write(&init, state.to_string()).unwrap();
    fs::write(&actions, json!(vec![0; 60]).to_string()).unwrap();
    let output = finish(&mut rl(&["trace", "breakout", "--init", text(&init), "--actions", text(&actions)]));
    assert_eq!(output.status.code(), Some(0));
    let steps: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((steps.len(), &steps[0]["terminated"]), (1, &json!(true)));
    assert_eq!(stderr(&output), "note: step 1 ends the episode; the 59 actions after it are left out\n");
}

#[test]
fn a_reader_that_goes_away_stops_the_run_and_saves() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut child = rl(&small_args(text(&run), &["--steps", "1e9", "--json"])).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(wait(child).status.code(), Some(130));
    load(&newest(&run)).unwrap();
}

#[test]
fn bench_env_gives_a_rate_with_its_settings() {
    let args = ["bench", "env", "cartpole", "--envs", "100", "--threads", "2", "--seconds", "0.05", "--json"];
    let result: Value = serde_json::from_str(stdout(&finish(&mut rl(&args))).trim()).unwrap();
    assert_eq!((&result["event"], &result["name"], &result["unit"]), (&json!("bench"), &json!("env"), &json!("env_steps/s")));
    assert!(result["value"].as_f64().unwrap() > 0.0);
    assert_eq!((&result["envs"], &result["threads"]), (&json!(100), &json!(2)));
}

#[test]
fn bench_env_draws_continuous_actions_and_repeats_work() {
    for env in ["pendulum", "snake"] {
        let args = ["bench", "env", env, "--envs", "70", "--threads", "2", "--seconds", "0.05", "--repeat", "3", "--json"];
        let result: Value = serde_json::from_str(stdout(&finish(&mut rl(&args))).trim()).unwrap();
        assert!(result["value"].as_f64().unwrap() > 0.0, "{env}");
        assert_eq!((&result["repeat"], &result["n_steps"]), (&json!(3), &json!(128)));
    }
}

#[test]
fn the_first_line_names_environments_pipeline_minibatch_and_networks() {
    let dir = tempfile::tempdir().unwrap();
    for (name, more, expected) in [
        ("sync", &[][..], "4 environments in this program, "),
        ("sync2", &[], ", collecting and learning in turn, minibatches of 16, networks of 2"),
        ("overlapped", &["--set", "pipeline=overlapped"], "learning overlapped (max_lag 1), minibatches of 16, networks of 2"),
        ("shared", &["--set", "hidden=[8,4]", "--set", "shared_trunk=true"], "networks of 8-4 with a shared trunk"),
        ("critic", &["--set", "hidden=[8]", "--set", "critic_hidden=[9,3]"], "networks of 8, critic of 9-3"),
        ("memory", &["--set", "memory=lstm", "--set", "memory_size=5"], ", after an LSTM of 5"),
    ] {
        let output = finish(&mut rl(&small_args(text(&dir.path().join(name)), more)));
        let first = stdout(&output).lines().next().unwrap_or_default().to_owned();
        assert!(first.starts_with("cartpole, ppo: 256 env steps, ") && first.contains(expected), "{first}");
    }
}

#[test]
fn steps_that_are_rounded_up_and_a_resumption_that_has_nothing_left_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let said = stdout(&finish(&mut rl(&small_args(text(&run), &["--steps", "250"]))));
    assert!(said.contains("the run takes 256 env steps, whole rollouts of 32: steps is 250\n"), "{said}");
    let said = stdout(&finish(&mut rl(&small_args(text(&dir.path().join("whole")), &[]))));
    assert!(!said.contains("whole rollouts"), "{said}");
    let output = finish(&mut rl(&["train", "--resume", text(&run), "--steps", "100"]));
    let expected = "the run has taken 256 env steps, and steps is 100: nothing is left to train; --steps continues it\n";
    assert!(output.status.success() && stdout(&output).starts_with(expected), "{}", stdout(&output));
}

#[test]
fn a_rollout_that_takes_long_shows_progress_and_a_request_to_stop_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let slow = ["--set", "env.latency_ms=1000", "--set", "ppo.n_steps=100", "--set", "ppo.batch_size=100"];
    for json in [false, true] {
        let run = dir.path().join(format!("json-{json}"));
        let mut command = rl(&[&["train", "slow_cartpole", "--envs", "1", "--run-dir", text(&run)], &slow[..]].concat());
        let mut child = command.args(json.then_some("--json")).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().unwrap().contains("collecting: ")).unwrap().unwrap();
        let line = if json { serde_json::from_str::<Value>(&line).unwrap()["text"].as_str().unwrap().to_owned() } else { line };
        assert!(line.contains(" of 100 env steps (") && line.ends_with(" s since the last row)"), "{line}");
        crate::harness::signal(child.id(), "-TERM");
        assert!(lines.map(Result::unwrap).any(|line| line.contains("interrupted")));
        let output = wait(child);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("warning: a rollout of 100 env steps takes about ") && said.contains("ppo.n_steps"), "{said}");
        assert_eq!(said.matches("asked to stop: finishing the update, then saving").count(), 1, "{said}");
    }
}

#[test]
fn check_env_prints_a_line_a_check() {
    let output = finish(&mut rl(&["check-env", "snake"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).lines().count() >= 16);
    assert!(stdout(&output).lines().all(|line| line.starts_with("PASS ")), "{}", stdout(&output));
    let output = stdout(&finish(&mut rl(&["check-env", "pendulum", "--json"])));
    let last: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["failed"]), (&json!("check-env"), &json!(0)));
    assert_eq!(last["checks"].as_u64(), Some(output.lines().count() as u64 - 1));
    assert_eq!(finish(&mut rl(&["check-env", "snail"])).status.code(), Some(2));
}

#[test]
fn bench_replay_gives_two_rates() {
    for (more, name) in [(&[][..], "replay_sample"), (&["--prioritized"][..], "replay_sample_update")] {
        let args = [&["bench", "replay", "--capacity", "100", "--batch", "33", "--seconds", "0.05", "--json"][..], more].concat();
        let output = finish(&mut rl(&args));
        let results: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(results.iter().map(|result| result["name"].as_str().unwrap()).collect::<Vec<_>>(), ["replay_add", name]);
        assert!(results.iter().all(|result| result["value"].as_f64().unwrap() > 0.0 && result["batch"] == json!(33)));
    }
}

/// Returns arguments of an A2C run whose deep network overflows.
///
/// A learning rate of 10 is enough.
fn deep_args<'a>(dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let settings =
        ["steps=2000", "n_envs=4", "hidden=[16, 16, 16, 16, 16, 16, 16, 16]", "activation=\"relu\"", "eval_episodes=1"];
    let settings = settings.into_iter().flat_map(|s| ["--set", s]);
    ["train", "cartpole", "--algo", "a2c", "--run-dir", dir].into_iter().chain(settings).chain(more.iter().copied()).collect()
}

#[test]
fn a_divergence_leaves_a_dump_and_a_command_that_continues() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("a run");
    let output = finish(&mut rl(&deep_args(text(&run), &["--set", "steps=400", "--set", "checkpoint_every=100"])));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let before = newest(&run);
    let again = ["train", "--resume", text(&run), "--set", "steps=2000", "--set", "a2c.learning_rate=10"];
    for _ in 0..2 {
        // The second dump replaces the first.
        let output = finish(&mut rl(&again));
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    }
    let said = stderr(&finish(&mut rl(&again)));
    assert!(said.contains("the loss or gradient of 3 steps in a row was not finite"), "{said}");
    assert!(said.contains("value_loss") && said.contains("env steps") && said.contains("max_grad_norm"), "{said}");
    assert_eq!(newest(&run), before, "the last good checkpoint stays the last");
    let dump = run.join("diverged");
    let metrics: Value = serde_json::from_slice(&fs::read(dump.join("metrics.json")).unwrap()).unwrap();
    assert_eq!((&metrics["skipped_in_a_row"], &metrics["learning_rate"]), (&json!(3), &json!(10.0)));
    let read = |name: &str| fs::read(dump.join(name)).unwrap();
    let (params, minibatch) = (read("params.safetensors"), read("minibatch.safetensors"));
    let params = safetensors::SafeTensors::deserialize(&params).unwrap();
    assert_eq!(params.tensor("actor.0.weight").unwrap().shape(), [4, 16]);
    let minibatch = safetensors::SafeTensors::deserialize(&minibatch).unwrap();
    assert_eq!(minibatch.tensor("obs").unwrap().shape()[1], 4);
    assert!(!run.join("diverged.tmp").exists());
    // Parse the command at the end of the message as a shell would.
    let command = said.trim_end().rsplit("rl train ").next().unwrap();
    assert_eq!(command, format!("--resume '{}' --set a2c.learning_rate=1e0", text(&run)));
    let output = finish(&mut rl(&["train", "--resume", text(&run), "--set", "a2c.learning_rate=1e-4", "--set", "steps=500"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    let first = dir.path().join("first");
    let output =
        finish(&mut rl(&deep_args(text(&first), &["--set", "a2c.learning_rate=10", "--set", "checkpoint_every=100000"])));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("no checkpoint has been saved: train again"), "{}", stderr(&output));
    assert!(first.join("diverged/metrics.json").exists());
}

#[test]
fn settings_are_tuned_and_taken_by_a_training() {
    let dir = tempfile::tempdir().unwrap();
    let tune = |more: &[&str]| {
        let args = [&["tune", "cartpole", "--seconds", "4", "--set", "hidden=[8]", "--json"], more].concat();
        finish(rl(&args).current_dir(dir.path()))
    };
    let output = tune(&["--threads", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (tuned, trials) = lines.split_last().unwrap();
    assert!(tuned["env_steps_per_s"].as_f64() >= tuned["preset_env_steps_per_s"].as_f64(), "{tuned}");
    assert_eq!(trials[0]["settings"], json!({}));
    assert!(trials.len() > 3 && trials.iter().all(|trial| trial["settings"].get("threads").is_none()), "{trials:?}");
    let samples = |trial: &Value| -> Option<u64> {
        let settings = &trial["settings"];
        Some(settings["n_envs"].as_u64()? * settings["ppo.n_steps"].as_u64()?)
    };
    let samples: Vec<u64> = trials.iter().filter_map(samples).collect();
    assert!(!samples.is_empty() && samples.iter().all(|n| *n == 8 * 32), "{samples:?}");
    let file = dir.path().join("tuned-cartpole-ppo.toml");
    assert_eq!(tuned["file"], "tuned-cartpole-ppo.toml");

    let before = fs::read(&file).unwrap();
    let output = tune(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--out tuned-cartpole-ppo.toml replaces it"), "{}", stderr(&output));
    assert_eq!(fs::read(&file).unwrap(), before);

    let run = dir.path().join("run");
    let train = ["train", "--config", text(&file), "--steps", "512", "--set", "eval_episodes=2", "--run-dir", text(&run)];
    let output = finish(&mut rl(&train));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("hidden = [8]") && config.contains("threads = 1"), "{config}");
}

#[test]
fn what_cannot_be_tuned_is_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    for (args, what) in [
        (&["no_such"][..], "unknown environment"),
        (&["cartpole", "--set", "ppo.gama=1"], "did you mean \"ppo.gamma\""),
        (&["cartpole", "--seconds", "0"], "a number from 0.1 to 86400"),
        (&["cartpole", "--out", "."], "."),
    ] {
        let output = finish(rl(&[&["tune"], args].concat()).current_dir(dir.path()));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(what) && output.stdout.is_empty(), "{args:?}: {}", stderr(&output));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// A sweep of trainings small enough to be killed often.
const SWEEP: &str = r#"
env = "cartpole"
steps = 4096
n_envs = 4
hidden = [4]
eval_episodes = 4
checkpoint_every = 256

[ppo]
n_steps = 16
batch_size = 32
n_epochs = 2

[sweep]
trials = 5
seed = 3
seeds = 2
halving = 2
min_steps = 1024

[sweep.settings]
"ppo.learning_rate" = { from = 1e-4, to = 1e-2, log = true }
"ppo.n_steps" = [8, 16, 24]
"ppo.n_epochs" = { from = 1, to = 3 }
"#;

/// Returns the table of a sweep, times aside.
fn table(dir: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(dir.join("trials.csv")).unwrap();
    let row = |line: &str| line.split(',').enumerate().filter(|(i, _)| *i != 5).map(|(_, cell)| cell.to_owned()).collect();
    text.lines().map(row).collect()
}

#[test]
fn a_second_sweep_in_one_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("long.toml");
    fs::write(&file, SWEEP.replace("\nsteps = 4096", "\nsteps = 1_000_000_000")).unwrap();
    let sweep = || {
        let mut command = rl(&["sweep", text(&file), "--parallel", "1", "--dir", "sweep"]);
        command.current_dir(dir.path());
        command
    };
    let mut first = sweep().spawn().unwrap();
    let begin = Instant::now();
    while !dir.path().join("sweep/sweep.toml").exists() {
        assert!(begin.elapsed() < TIME_LIMIT && first.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = finish(&mut sweep());
    let is_alone = first.try_wait().unwrap().is_none();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second.status.code() == Some(2) && stderr(&second).contains("is in use by another process"), "{}", stderr(&second));
    assert!(is_alone, "the first goes on");
}

#[test]
fn a_sweep_that_is_killed_again_and_again_ends_with_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("small.toml");
    fs::write(&file, SWEEP).unwrap();
    let sweep = |name: &str| {
        let mut command = rl(&["sweep", text(&file), "--parallel", "2", "--dir", name]);
        command.current_dir(dir.path());
        command
    };
    let output = finish(&mut sweep("whole"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected = table(&dir.path().join("whole"));
    let count = |rung: &str, seed: &str| expected.iter().filter(|row| row[1] == rung && row[2] == seed).count();
    assert_eq!(["0", "1", "2"].map(|rung| (count(rung, "0"), count(rung, "1"))), [(5, 5), (3, 3), (2, 2)]);
    assert_eq!(expected.len(), 21);
    assert!(expected[1..].iter().all(|row| row[4].parse::<f64>().unwrap() > 0.0), "{expected:?}");
    assert_eq!(expected[0][5..], ["ppo.learning_rate", "ppo.n_epochs", "ppo.n_steps"]);
    let mean = |rung: &str, trial: &str| {
        let rows = expected.iter().filter(|row| row[0] == trial && row[1] == rung);
        rows.map(|row| row[4].parse::<f64>().unwrap()).sum::<f64>() / 2.0
    };
    let trials = |rung: &str| -> Vec<String> {
        expected.iter().filter(|row| row[1] == rung && row[2] == "0").map(|row| row[0].clone()).collect()
    };
    for (from, to) in [("0", "1"), ("1", "2")] {
        let (best, all) = (trials(to), trials(from));
        let worst = best.iter().map(|trial| mean(from, trial)).fold(f64::INFINITY, f64::min);
        assert!(all.iter().all(|trial| best.contains(trial) || mean(from, trial) <= worst), "rung {to}: {expected:?}");
    }
    assert!(stdout(&output).contains("rl train --config whole/best.toml"), "{}", stdout(&output));
    assert!(fs::read_to_string(dir.path().join("whole/sweep.svg")).unwrap().contains("trial-000"));
    let best =
        finish(rl(&["train", "--config", "whole/best.toml", "--steps", "64", "--run-dir", "best"]).current_dir(dir.path()));
    assert_eq!(best.status.code(), Some(0), "{}", stderr(&best));

    let (killed, mut kills) = (dir.path().join("killed/trials.csv"), 0);
    let rows = |file: &Path| fs::read_to_string(file).map_or(0, |text| text.lines().count());
    loop {
        // Once it has written a row itself, it handles signals.
        let written = rows(&killed).max(1);
        let mut child = sweep("killed").spawn().unwrap();
        let begin = Instant::now();
        let ended = loop {
            match child.try_wait().unwrap() {
                Some(_) => break true,
                None if kills < 6 && rows(&killed) > written => break false,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(begin.elapsed() < TIME_LIMIT);
        };
        // Other moments of a training each time.
        std::thread::sleep(Duration::from_millis(7 * kills as u64));
        if ended {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            break;
        }
        if kills % 2 == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
            let output = wait(child);
            assert!(matches!(output.status.code(), Some(0 | 130)), "{}: {}", output.status, stderr(&output));
        }
        kills += 1;
    }
    assert!(kills > 0);
    assert_eq!(table(&dir.path().join("killed")), expected);
}

#[test]
fn what_cannot_be_swept_is_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&str) -> String, what: &str| {
        let file = dir.path().join("bad.toml");
        fs::write(&file, change(SWEEP)).unwrap();
        let output = finish(rl(&["sweep", "bad.toml"]).current_dir(dir.path()));
        assert_eq!(output.status.code(), Some(2), "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains(what), "{what}: {}", stderr(&output));
        fs::remove_file(file).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{what}");
    };
    refused(&|text| text.split("[sweep]").next().unwrap().into(), "has no section [sweep]");
    refused(&|text| text.replace("env = \"cartpole\"", ""), "names no environment");
    refused(&|text| text.replace("from = 1e-4", "from = 1"), "sweep.settings.ppo.learning_rate: a range with log goes up");
    refused(&|text| text.replace("[8, 16, 24]", "[]"), "sweep.settings.ppo.n_steps: a list of no values");
    refused(&|text| text.replace("\"ppo.n_steps\"", "\"ppo.n_stepz\""), "did you mean \"ppo.n_steps\"");
    refused(&|text| text.replace("[8, 16, 24]", "[7]"), "none of 1000 draws of sweep.settings is allowed");
    refused(&|text| text.replace("\"ppo.n_steps\" = [8, 16, 24]", "steps = [64, 128]"), "sweep.settings.steps: cannot vary");
    refused(&|text| text.replace("\"ppo.n_steps\" = [8, 16, 24]", "threads = [1, 2]"), "sweep.settings.threads: cannot vary");
    refused(&|text| text.replace("halving = 2", ""), "sweep.halving and sweep.min_steps belong together");
    refused(&|text| text.replace("trials = 5", "trials = 0"), "sweep.trials is from 1 to 10000");
    refused(&|text| text.replace("seeds = 2", "seeds = 0"), "sweep.seeds is from 1 to 1000");
    refused(&|text| format!("seed = {}\n{text}", i64::MAX), "leaves no room for 2 seeds");
    refused(&|text| text.replace("trials = 5", "trials = 5\ntrial = 6"), "unknown field `trial`");
}
