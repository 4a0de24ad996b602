//! Wrappers as settings of any environment, from command line to checkpoint.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{newest, text};
use rl_envs::Spaces;
use rl_envs::catalog::{self, ENVS};
use rl_envs::wrappers::Wrappers;
use rl_runtime::config::Layers;
use rl_runtime::{Algo, Config, Error};
use serde_json::Value;

const WRAPPED: [&str; 4] = ["env.frame_stack=3", "env.time_limit=20", "env.action_repeat=2", "env.reward_clip=0.5"];

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_rl")).args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn train(run_dir: &Path, algo: &str, steps: &str, more: &[&str]) {
    let own: &[&str] = match algo {
        "dqn" => &["dqn.learning_starts=16", "dqn.train_freq=8", "dqn.batch_size=8", "dqn.save_replay=true"],
        _ => &["ppo.n_steps=8", "ppo.batch_size=16"],
    };
    let settings =
        [&["n_envs=4", "hidden=[4]", "eval_episodes=2", "checkpoint_every=128", "keep_checkpoints=9"], own, &WRAPPED, more]
            .concat();
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let args = ["train", "cartpole", "--algo", algo, "--steps", steps, "--run-dir", text(run_dir)];
    run(&args.into_iter().chain(settings).collect::<Vec<_>>());
}

fn resolve(env: &str, assignments: &[&str]) -> Result<Config, Error> {
    let mut layers = Layers::default();
    assignments.iter().for_each(|assignment| layers.add_assignment(assignment));
    layers.resolve(catalog::find(env).unwrap(), Algo::PPO)
}

#[test]
fn a_resumed_run_in_wrappers_equals_an_uninterrupted_one() {
    for (algo, pixels) in [("ppo", 0), ("dqn", 0), ("ppo", 9), ("dqn", 9)] {
        let side = format!("env.pixels={pixels}");
        let seen: &[&str] = if pixels > 0 { &[&side, "conv=[[2,3,2]]"] } else { &[] };
        let dir = tempfile::tempdir().unwrap();
        let (whole, halved) = (dir.path().join("whole"), dir.path().join("halved"));
        train(&whole, algo, "256", seen);
        let rows = fs::read_to_string(whole.join("metrics.csv")).unwrap();
        let mut rows = rows.lines().map(|row| row.split(',').map(String::from).collect::<Vec<_>>());
        let column = rows.next().unwrap().iter().position(|name| name == "time/preprocessing").unwrap();
        let seconds: f64 = rows.next_back().unwrap()[column].parse().unwrap();
        assert!(seconds > 0.0, "{algo}, {pixels}: {seconds} s for stacks and pictures");
        let half = whole.join("checkpoints/ckpt-000000000128");
        run(&["train", "--resume", text(&half), "--run-dir", text(&halved)]);
        for file in ["params.safetensors", "optimizer.safetensors"] {
            let read = |run: &Path| fs::read(newest(run).join(file)).unwrap();
            assert!(read(&whole) == read(&halved), "{algo}, {pixels}: {file}");
        }
        let refused = Command::new(env!("CARGO_BIN_EXE_rl"))
            .args(["train", "--resume", text(&whole), "--set", "env.frame_stack=2"])
            .output()
            .unwrap();
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && error.contains("env.frame_stack: 2 here, 3 there"), "{error}");
    }
}

#[test]
fn evaluations_and_watching_have_the_wrappers_and_the_rewards_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", "64", &[]);
    for verb in ["eval", "watch"] {
        let line = run(&[verb, text(&run_dir), "--episodes", "5", "--json"]);
        let result: Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
        let (length, episode_return) = (result["length_mean"].as_f64().unwrap(), result["return_mean"].as_f64().unwrap());
        assert!(length <= 10.0, "20 steps, two an action: {result}");
        assert!(episode_return > length, "1 a step of the environment, not clipped to 0.5: {result}");
    }
}

#[test]
fn what_is_observed_is_the_stack_of_every_environment() {
    let wrappers = Wrappers { frame_stack: 3, ..Wrappers::default() };
    for entry in ENVS {
        let (wrapped, plain) = (entry.wrapped(wrappers).spaces(), entry.spaces());
        assert_eq!(wrapped, Spaces { obs: plain.obs.stacked(3), ..plain }, "{}", entry.name);
        assert!(entry.wrapped(wrappers).bytes_per_env() > entry.bytes_per_env(), "{}", entry.name);
    }
}

#[test]
fn wrappers_are_written_beside_the_name_and_absent_ones_are_off() {
    let plain = resolve("snake", &[]).unwrap();
    assert!(plain.to_toml().starts_with("env = \"snake\"\n"), "{}", plain.to_toml());
    assert_eq!(plain.env.wrappers, Wrappers::default());
    let wrapped = resolve("snake", &["env.frame_stack=2", "env.reward_clip=1"]).unwrap();
    assert_eq!(Config::from_toml(&wrapped.to_toml(), "config.toml").unwrap(), wrapped);
    assert_eq!(wrapped.env.wrappers, Wrappers { frame_stack: 2, reward_clip: 1.0, ..Wrappers::default() });
    let some = wrapped.to_toml().replace("frame_stack = 2\n", "");
    assert_eq!(Config::from_toml(&some, "config.toml").unwrap().env.wrappers.frame_stack, 1);
}

#[test]
fn wrappers_out_of_range_are_refused_with_the_range() {
    for (setting, allowed) in [
        ("env.frame_stack=0", "a whole number from 1 to 64"),
        ("env.action_repeat=0", "a whole number from 1 to 1000"),
        ("env.time_limit=-1", "a whole number from 0 to"),
        ("env.reward_clip=-0.5", "a number from 0 to"),
        ("env.frame_stak=2", "did you mean \"env.frame_stack\"?"),
    ] {
        let error = resolve("cartpole", &[setting]).unwrap_err().to_string();
        assert!(error.contains(allowed), "{setting}: {error}");
    }
}
