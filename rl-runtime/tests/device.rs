//! `rl train` with a learner on a device leaves the files that the CPU leaves.

#![allow(clippy::unwrap_used, reason = "tests")]

mod program;

use std::fs;
use std::path::Path;
use std::process::Command;

use program::{can_compare, finish, load, metrics, newest, python, rl, text};
use rl_envs::codec;
use rl_runtime::Progress;
use rl_runtime::checkpoint::Checkpoint;

/// Trains in `dir`, which may hold a run to resume.
fn train(dir: &Path, args: &[&str]) {
    let output = finish(&mut rl(&[&["train"], args].concat()));
    assert!(output.status.success(), "{args:?} in {}: {}", dir.display(), String::from_utf8_lossy(&output.stderr));
}

/// Progress without the time, and environments.
type State = (Vec<u8>, Vec<u8>);

/// Reads the newest checkpoint: files of numbers, and the rest.
fn learnt(dir: &Path) -> ([Vec<u8>; 3], State) {
    (numbers(dir), state(dir))
}

/// Reads the newest checkpoint's files of numbers.
fn numbers(dir: &Path) -> [Vec<u8>; 3] {
    let checkpoint = newest(dir);
    let [params, moments] = ["params.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap());
    [params, moments, fs::read(checkpoint.join("replay.bin")).unwrap_or_default()]
}

/// Reads progress and environments of the newest checkpoint.
fn state(dir: &Path) -> State {
    let Checkpoint { progress, collector, .. } = load(&newest(dir)).unwrap();
    let Progress { env_steps, iterations, episodes, recent, elapsed_s: _ } = progress;
    let progress = codec::encode(&(env_steps, iterations, episodes, recent)).unwrap();
    (progress, codec::encode(&collector).unwrap())
}

#[test]
fn a_training_on_a_device_leaves_the_cpus_files() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=64", "--set", "ppo.n_epochs=2"];
    let a2c = ["--algo", "a2c", "--set", "a2c.n_steps=16", "--set", "a2c.batch_size=64"];
    let dqn =
        ["--algo", "dqn", "--set", "dqn.learning_starts=100", "--set", "dqn.train_freq=16", "--set", "dqn.save_replay=true"];
    for env in ["cartpole", "pendulum", "snake", "breakout"] {
        for (name, algo) in [("ppo", &ppo[..]), ("a2c", &a2c), ("dqn", &dqn)] {
            if (env, name) == ("pendulum", "dqn") {
                continue; // continuous actions
            }
            let of = |device: &str, env_device: &str| {
                let run = dir.path().join(format!("{env}-{name}-{device}-{env_device}"));
                let args = [env, "--device", device, "--steps", "384", "--seed", "7", "--envs", "8", "--run-dir", text(&run)];
                let env_device = format!("env_device={env_device}");
                let args = [&args[..], &["--set", &env_device]].concat();
                let conv = if env == "snake" { "conv=[[4, 3, 2], [16, 3, 2]]" } else { "conv=[]" };
                let net = ["--set", "hidden=[32]", "--set", conv, "--set", "normalize_obs=false"];
                let rest = ["--set", "eval_episodes=1", "--set", "eval_max_steps=50"];
                train(&run, &[&args[..], algo, &net, &rest].concat());
                learnt(&run)
            };
            let expected = of("cpu", "auto");
            if name != "a2c" {
                assert!(expected == of("emulated", "cpu"), "{env}, {name}, environments on the CPU");
            }
            if name != "dqn" {
                assert!(expected == of("emulated", "learner"), "{env}, {name}");
            }
        }
    }
}

#[test]
fn several_choices_at_once_are_learnt_on_a_device_as_on_the_cpu() {
    let Some(python) = python() else { return };
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", env!("CARGO_MANIFEST_DIR"), std::env::var("PYTHONPATH").unwrap_or_default());
    let ppo = ["--set", "ppo.n_steps=64", "--set", "ppo.batch_size=64"];
    let a2c = ["--algo", "a2c", "--set", "a2c.n_steps=8"];
    for (name, algo) in [("ppo", &ppo[..]), ("a2c", &a2c)] {
        let [cpu, device] = ["cpu", "emulated"].map(|device| {
            let run = dir.path().join(format!("{name}-{device}"));
            let args = ["train", "gym:tests.worker_envs:Multi-discrete-v0", "--device", device, "--run-dir", text(&run)];
            let few = ["--steps", "1024", "--set", "hidden=[16]", "--set", "eval_episodes=1"];
            let mut command = rl(&[&args[..], algo, &few].concat());
            let output = finish(command.env("RL_PYTHON", &python).env("PYTHONPATH", &path));
            assert!(output.status.success(), "{name}, {device}: {}", String::from_utf8_lossy(&output.stderr));
            numbers(&run)
        });
        assert!(cpu == device, "{name}");
    }
}

#[test]
fn a_run_that_moves_to_a_device_and_back_is_one_that_never_moved() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |devices: [&str; 3]| {
        let run = dir.path().join(devices.join("-"));
        for (i, device) in devices.into_iter().enumerate() {
            let steps = (128 * (i + 1)).to_string();
            let first = ["cartpole", "--envs", "4", "--set", "ppo.n_steps=32", "--set", "ppo.batch_size=32", "--seed", "7"];
            let resumed = ["--resume", text(&run)];
            let begin = if i == 0 { [&first[..], &["--run-dir", text(&run)]].concat() } else { resumed.to_vec() };
            train(&run, &[&begin[..], &["--device", device, "--steps", &steps, "--set", "eval_episodes=1"]].concat());
        }
        learnt(&run)
    };
    assert!(of(["cpu", "emulated", "cpu"]) == of(["cpu"; 3]));
}

/// Settings of a small training with four slices of environments.
const SHARED: &[&str] =
    &["--envs", "16", "--seed", "7", "--set", "hidden=[32]", "--set", "normalize_obs=false", "--set", "eval_episodes=1"];

#[test]
fn several_devices_leave_the_files_of_one() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Minibatches of four slices, of two, and of one.
    let ppo = |batch_size: &'static str| ["--set", "ppo.n_steps=24", "--set", "ppo.n_epochs=2", "--set", batch_size];
    let a2c = ["--algo", "a2c", "--set", "a2c.n_steps=24"];
    let [whole, half, quarter] = ["ppo.batch_size=384", "ppo.batch_size=192", "ppo.batch_size=96"].map(ppo);
    for (env, name, algo, devices) in [
        ("cartpole", "whole", &whole[..], &["emulated:1", "emulated:2", "emulated:4"][..]),
        ("cartpole", "half", &half, &["emulated:2", "emulated:3"]),
        ("pendulum", "quarter", &quarter, &["emulated:2"]),
        ("pendulum", "a2c", &a2c, &["emulated:2"]),
    ] {
        let of = |device: &str| {
            let run = dir.path().join(format!("{env}-{name}-{device}"));
            let args = [env, "--device", device, "--steps", "1152", "--run-dir", text(&run), "--set", "eval_max_steps=50"];
            train(&run, &[&args[..], SHARED, algo].concat());
            (learnt(&run), metrics(&run))
        };
        let expected = of("cpu");
        for device in devices {
            assert!(of(device) == expected, "{env}, {name}, {device}");
        }
    }
}

#[test]
fn a_run_that_moves_between_numbers_of_devices_is_one_that_never_moved() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |devices: [&str; 4]| {
        let run = dir.path().join(devices.join("-"));
        for (i, device) in devices.into_iter().enumerate() {
            let steps = (512 * (i + 1)).to_string();
            let first = ["cartpole", "--set", "ppo.n_steps=32", "--set", "ppo.batch_size=256", "--run-dir", text(&run)];
            let begin = if i == 0 { [&first[..], SHARED].concat() } else { vec!["--resume", text(&run)] };
            train(&run, &[&begin[..], &["--device", device, "--steps", &steps]].concat());
        }
        learnt(&run)
    };
    assert!(of(["emulated:2", "emulated", "emulated:3", "cpu"]) == of(["cpu"; 4]));
}

#[test]
fn a_list_of_devices_that_cannot_be_is_refused_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let refused = |args: &[&str], code: i32, why: &str| {
        let output = finish(&mut rl(&[&["train", "cartpole", "--run-dir", text(&run)], args].concat()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count(), run.exists()), (Some(code), 1, false), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    };
    for device in ["cuda:", "cuda:0,", "cuda:0,0", "cuda:0,1,x", "emulated:0", "emulated:17", "emulated:x"] {
        refused(&["--device", device], 2, "it must be auto, cpu, cuda, cuda:i, a list of different GPUs");
    }
    refused(&["--device", "emulated:2", "--algo", "dqn"], 2, "dqn learns on one device only so far");
    refused(&["--device", "emulated:2", "--set", "env_device=learner"], 2, "environments step on the CPU so far");
    refused(&["--device", "emulated:2", "--set", "pipeline=overlapped"], 2, "use pipeline = sync");
    if can_compare() {
        refused(&["--device", "emulated:4", "--envs", "8"], 2, "4 ranks share 2 slices of environments");
    }
}

#[test]
fn a_policy_learnt_on_a_device_solves_cartpole() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = finish(&mut rl(&[
        "train",
        "cartpole",
        "--device",
        "emulated",
        "--seed",
        "1",
        "--target-return",
        "475",
        "--run-dir",
        text(&run),
    ]));
    let said = String::from_utf8_lossy(&output.stdout);
    let mean = said.lines().last().and_then(|line| line.strip_prefix("mean return ")?.split(';').next()?.parse::<f64>().ok());
    assert!(output.status.success() && mean.is_some_and(|mean| mean >= 475.0), "{said}");

    // The same policy in the original environment.
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/play_in_gymnasium.py");
    let played = Command::new(python).arg(script).args([text(&run), "CartPole-v1", "--episodes", "20"]).output().unwrap();
    let said = String::from_utf8_lossy(&played.stdout);
    let mean = said.split("return ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(mean.is_some_and(|mean| mean >= 475.0), "{said}{}", String::from_utf8_lossy(&played.stderr));
}
