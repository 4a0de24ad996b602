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

/// Runs the program with the corridor to its end; returns exit code and output.
fn run_on_device(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_on_device")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Trains in the corridor, in `run`.
fn train_in_corridor(run: &Path, args: &[&str]) -> (i32, String) {
    let settings = ["n_envs=16", "hidden=[8]", "ppo.n_steps=16", "ppo.batch_size=64", "eval_episodes=4"];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    run_on_device(&[&["train", "corridor", "--run-dir", text(run)], &settings[..], args].concat())
}

#[test]
fn an_environment_with_kernels_of_ones_own_is_trained_on_a_device_with_the_bits_of_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let [on_cpu, on_device, moved] = ["cpu", "device", "moved"].map(|name| dir.path().join(name));
    let device = ["--device", "emulated", "--set", "env_device=learner"];
    let (code, output) = train_in_corridor(&on_device, &[&["--steps", "4096"], &device[..]].concat());
    if code != 0 && output.contains("emulated device: ") && std::env::var_os("RL_REQUIRE_CXX").is_none() {
        eprintln!("SKIPPED: {output}");
        return;
    }
    assert_eq!(code, 0, "{output}");
    assert_eq!(train_in_corridor(&on_cpu, &["--steps", "4096", "--device", "cpu"]).0, 0);
    assert_eq!(train_in_corridor(&moved, &["--steps", "2048", "--device", "cpu"]).0, 0);
    let (code, output) = run_on_device(&[&["train", "--resume", text(&moved), "--steps", "4096"], &device[..]].concat());
    assert_eq!(code, 0, "{output}");
    assert!(params(&on_device) == params(&on_cpu), "the device has other bits");
    assert!(params(&moved) == params(&on_cpu), "a run that moved to the device has other bits");
    let (code, output) = run_on_device(&["check-env", "corridor", "--device", "emulated"]);
    assert!(code == 0 && output.contains("PASS kernels: "), "{output}");

    let (code, text) = run(&["train", "walk", "--steps", "64", "--device", "emulated", "--set", "env_device=learner"]);
    assert!(code == 2 && text.contains("there are no kernels for walk"), "{text}");
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

#[test]
fn an_algorithm_of_ones_own_is_listed_checked_trained_resumed_and_swept_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let list = succeeds(&["list"]);
    assert!(list.contains("REINFORCE with a baseline") && list.contains("reinforce.gamma"), "{list}");
    let settings = ["n_envs=4", "eval_episodes=4", "reinforce.gamma=0.9"].iter().flat_map(|setting| ["--set", setting]);
    let settings: Vec<&str> = ["--algo", "reinforce"].into_iter().chain(settings).collect();
    for (args, why) in [
        (&["walk", "--set", "reinforce.gamma=2"][..], "reinforce.gamma is 2; it must be a number from 0 to 1"),
        (&["walk", "--set", "reinforce.gama=1"], "did you mean \"reinforce.gamma\"?"),
        (&["walk", "--set", "ppo.gamma=1"], "ppo.gamma has no effect, the algorithm is reinforce"),
        (&["cartpole"], "reinforce observes one number"),
        (
            &["walk", "--set", "offline=a.steps"],
            "offline is for dqn or sac or td3: reinforce learns from the steps of its own policy only",
        ),
    ] {
        let (code, text) = run(&[&["train"], &settings[..], args].concat());
        assert!(code == 2 && text.contains(why), "{args:?}: {text}");
    }
    let (whole, halved) = (dir.path().join("whole"), dir.path().join("halved"));
    let train = |run: &Path, steps: &str| {
        succeeds(&[&["train", "walk", "--steps", steps, "--run-dir", text(run)], &settings[..]].concat());
    };
    train(&whole, "8192");
    train(&halved, "4096");
    succeeds(&["train", "--resume", text(&halved), "--steps", "8192", "--set", "reinforce.learning_rate=0.01"]);
    assert!(params(&whole) == params(&halved), "a resumed run equals an uninterrupted one");
    let eval = last_json(&succeeds(&["eval", text(&whole), "--episodes", "8", "--json"]));
    assert_eq!((&eval["return_mean"], &eval["length_mean"]), (&1.0.into(), &4.0.into()));

    let sweep = dir.path().join("sweep.toml");
    let trials = "env = \"walk\"\nalgo = \"reinforce\"\nsteps = 512\neval_episodes = 1\n\n[sweep]\ntrials = 2\n\n\
                  [sweep.settings]\n\"reinforce.gamma\" = [0.5, 0.9]\n";
    std::fs::write(&sweep, trials).unwrap();
    succeeds(&["sweep", text(&sweep), "--dir", text(&dir.path().join("sw"))]);
}
