//! An environment, a network and an algorithm outside the workspace, in every verb.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Runs the program to its end; returns exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_own-program")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn succeeds(args: &[&str]) -> String {
    let (code, text) = run(args);
    assert_eq!(code, 0, "{args:?}: {text}");
    text
}

fn last_json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Trains in `run`.
fn train(run: &Path, steps: &str) {
    let settings = ["n_envs=4", "hidden=[8]", "ppo.n_steps=16", "ppo.batch_size=32", "ppo.learning_rate=0.01", "eval_episodes=4"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let args: Vec<&str> = ["train", "walk", "--steps", steps, "--run-dir", text(run)].into_iter().chain(settings).collect();
    succeeds(&args);
}

fn params(run: &Path) -> Vec<u8> {
    let mut checkpoints: Vec<PathBuf> =
        std::fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()).collect();
    checkpoints.retain(|path| path.file_name().unwrap() != "best");
    checkpoints.sort();
    std::fs::read(checkpoints.last().unwrap().join("params.safetensors")).unwrap()
}

#[test]
fn an_environment_of_ones_own_is_trained_resumed_evaluated_and_watched() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, halved) = (dir.path().join("whole"), dir.path().join("halved"));
    train(&whole, "4096");
    train(&halved, "2048");
    succeeds(&["train", "--resume", text(&halved), "--steps", "4096"]);
    assert!(params(&whole) == params(&halved), "a resumed run equals an uninterrupted one");

    let eval = last_json(&succeeds(&["eval", text(&whole), "--episodes", "8", "--json"]));
    assert_eq!((&eval["env"], &eval["return_mean"], &eval["length_mean"]), (&"walk".into(), &1.0.into(), &4.0.into()));
    let gif = dir.path().join("walk.gif");
    let watch = last_json(&succeeds(&["watch", text(&whole), "--gif", text(&gif), "--json"]));
    assert_eq!(watch["frames"], 4);
    assert!(gif.is_file());
}

#[test]
fn an_environment_of_ones_own_is_listed_checked_traced_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let list = succeeds(&["list"]);
    assert!(list.contains("reach the right end of a line") && list.contains("cartpole"), "{list}");
    succeeds(&["check-env", "walk"]);
    let (init, actions) = (dir.path().join("init.json"), dir.path().join("actions.json"));
    std::fs::write(&init, r#"{"place": 2, "elapsed": 0}"#).unwrap();
    std::fs::write(&actions, "[1, 1]").unwrap();
    assert_eq!(succeeds(&["trace", "walk", "--init", text(&init), "--actions", text(&actions)]).lines().count(), 2);
    succeeds(&["bench", "env", "walk", "--envs", "33", "--seconds", "0.05"]);
    let (code, error) = run(&["train", "wlak"]);
    assert!(code == 2 && error.contains("did you mean \"walk\"?"), "{error}");
}

/// Trains the custom agent in `run`; returns its report on the policy.
fn train_own_agent(run: &Path, steps: &str, max_lag: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_own_agent")).args([text(run), steps, max_lag]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_network_and_an_algorithm_of_ones_own_are_trained_resumed_evaluated_and_watched() {
    for max_lag in ["0", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let (whole, halved) = (dir.path().join("whole"), dir.path().join("halved"));
        let of_whole = train_own_agent(&whole, "8192", max_lag);
        train_own_agent(&halved, "4096", max_lag);
        let of_halved = train_own_agent(&halved, "8192", max_lag);
        assert!(params(&whole) == params(&halved), "a resumed run equals an uninterrupted one, with lag {max_lag}");
        assert_eq!(of_whole, "mean return 1, mean length 4\nwatched 4 frames\n");
        assert_eq!(of_halved, of_whole);
    }
}
