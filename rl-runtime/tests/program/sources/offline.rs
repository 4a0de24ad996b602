//! `rl record`, and training from what it wrote, from outside.

use std::fs;
use std::path::Path;

use crate::harness::{can_compare, finish, load, newest, rl, text};
use serde_json::Value;

/// Runs `rl`, which must exit with `code`; returns stdout and stderr.
fn run(args: &[&str], code: i32) -> (String, String) {
    let output = finish(&mut rl(args));
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{err}");
    (out, err)
}

/// Trains DQN from recorded steps, with more arguments, and returns its last event.
fn train(file: &Path, dir: &Path, more: &str) -> Value {
    let mut args = vec!["train", "cartpole", "--algo", "dqn", "--json", "--offline", text(file), "--run-dir", text(dir)];
    args.extend(more.split(' '));
    serde_json::from_str(run(&args, 0).0.lines().last().unwrap()).unwrap()
}

#[test]
fn dqn_learns_from_recorded_random_steps_without_an_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steps");
    let (out, _) = run(&["record", "cartpole", "--out", text(&file), "--steps", "20000", "--json"], 0);
    let recorded: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(recorded["env_steps"], 20_000);
    let chance = recorded["return_mean"].as_f64().unwrap();
    assert!((18.0..26.0).contains(&chance), "random actions: {chance}");
    let done = train(&file, &dir.path().join("run"), "--steps 16000 --set dqn.gradient_steps=8 --set dqn.batch_size=64");
    let learnt = done["eval"]["return_mean"].as_f64().unwrap();
    assert!(learnt > 4.0 * chance, "{learnt} after {chance}");
    // Its training episodes are those of the recording.
    let seen = done["episode_return_mean"].as_f64().unwrap();
    assert!((15.0..30.0).contains(&seen), "{seen}");
}

#[test]
fn td3_learns_from_recorded_random_steps_though_its_noise_is_a_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (file, dir) = (dir.path().join("steps"), dir.path().join("run"));
    run(&["record", "pendulum", "--out", text(&file), "--steps", "2000"], 0);
    let settings = "--envs 8 --steps 2000 --set hidden=[16] --set td3.learning_starts=100 --set td3.batch_size=32 --set eval_episodes=2 \
                    --set td3.action_noise=ornstein_uhlenbeck";
    let args = ["train", "pendulum", "--algo", "td3", "--json", "--offline", text(&file), "--run-dir", text(&dir)];
    let (out, _) = run(&args.into_iter().chain(settings.split_whitespace()).collect::<Vec<_>>(), 0);
    let done: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert!(done["env_steps"] == 2000 && done["eval"]["return_mean"].as_f64().is_some_and(|mean| mean < 0.0), "{done}");
}

#[test]
fn a_resumed_run_continues_its_recording_and_a_replay_memory_is_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    run(&["record", "cartpole", "--out", text(&at("steps")), "--steps", "1000"], 0);
    let settings = "--set dqn.learning_rate=1e-3 --set dqn.learning_starts=200 --set dqn.gradient_steps=2 --set dqn.batch_size=32 \
                    --set dqn.save_replay=true --set dqn.buffer_size=600 --set eval_episodes=2";
    train(&at("steps"), &at("whole"), &format!("--steps 2400 {settings}"));
    train(&at("steps"), &at("parts"), &format!("--steps 1400 {settings}"));
    run(&["train", "--resume", text(&at("parts")), "--steps", "2400"], 0);
    let [whole, parts] = ["whole", "parts"].map(|name| load(&newest(&at(name))).unwrap());
    assert_eq!(whole.progress.env_steps, parts.progress.env_steps);
    let replay = |name: &str| fs::read(newest(&at(name)).join("replay.bin")).unwrap();
    assert!(replay("whole") == replay("parts"), "the same transitions in the same order");
    assert!(whole.agent.params == parts.agent.params, "the same bits as without a pause");
    if can_compare() {
        // Each computes a slice of a minibatch, from a replay memory of its own.
        let settings = format!("{settings} --set dqn.batch_size=140");
        train(&at("steps"), &at("one"), &format!("--steps 2400 {settings}"));
        train(&at("steps"), &at("two"), &format!("--steps 1400 --device emulated:2 {settings}"));
        run(&["train", "--resume", text(&at("two")), "--steps", "2400"], 0);
        let [one, two] = ["one", "two"].map(|name| load(&newest(&at(name))).unwrap().agent.params);
        assert!(one == two, "the same bits on two devices");
    }
    // What waits for the rest of its return is not completed by a recording.
    let n_added = |name: &str| {
        let replay = replay(name);
        u64::from_le_bytes(replay[12 * 8..][..8].try_into().unwrap())
    };
    train(&at("steps"), &at("alone"), &format!("--steps 800 {settings}"));
    let online = format!("train cartpole --algo dqn --run-dir {} --steps 400 {settings}", text(&at("online")));
    run(&online.split_whitespace().collect::<Vec<_>>(), 0);
    let before = n_added("online");
    run(&["train", "--resume", text(&at("online")), "--steps", "1200", "--offline", text(&at("steps"))], 0);
    assert_eq!(n_added("online"), before + n_added("alone"));
    // A recording that has moved is named again; another one may follow it.
    fs::rename(at("steps"), at("moved")).unwrap();
    run(&["train", "--resume", text(&at("parts")), "--steps", "2600"], 1);
    run(&["train", "--resume", text(&at("parts")), "--steps", "2600", "--offline", text(&at("moved"))], 0);
    fs::rename(at("moved"), at("steps")).unwrap();
    // Its 8-step returns cannot be played; 1-step transitions can.
    let played = newest(&at("whole")).join("replay.bin");
    let said = run(&["train", "cartpole", "--algo", "dqn", "--offline", text(&played)], 2).1;
    assert!(said.contains("sums of 8 rewards"), "{said}");
    let single = format!("{settings} --set dqn.n_steps=1");
    train(&at("steps"), &at("single"), &format!("--steps 1600 {single}"));
    let played = newest(&at("single")).join("replay.bin");
    let done = train(&played, &at("again"), &format!("--steps 1600 {single}"));
    assert_eq!(done["env_steps"], 1600);
    assert!(done["episode_return_mean"].is_null(), "transitions are no episodes: {done}");
    let said = run(&["train", "cartpole", "--algo", "dqn", "--offline", text(&played)], 2).1;
    assert!(said.contains("use --set dqn.n_steps=1"), "{said}");
}

#[test]
fn a_recording_that_cannot_be_learnt_from_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (file, out) = (at("steps"), at("run"));
    run(&["record", "cartpole", "--out", text(&file), "--steps", "500"], 0);
    fs::write(at("text"), "steps = 5").unwrap();
    let nowhere = at("nowhere");
    for (env, algo, file, more, why) in [
        ("cartpole", "ppo", &file, "", "offline is for dqn"),
        ("snake", "dqn", &file, "", "its observations have 4 elements of F32"),
        ("cartpole", "dqn", &file, "--envs 4", "use --envs 8"),
        ("cartpole", "dqn", &file, "--set env.time_limit=100", "was recorded in \"cartpole\"; the environment is {"),
        ("cartpole", "dqn", &dir.path().to_path_buf(), "", "not a regular file"),
        ("cartpole", "dqn", &at("text"), "", "is neither what `rl record` wrote nor the replay.bin"),
    ] {
        let args = ["train", env, "--algo", algo, "--offline", text(file), "--run-dir", text(&out)];
        let said = run(&args.into_iter().chain(more.split_whitespace()).collect::<Vec<_>>(), 2).1;
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    run(&["train", "cartpole", "--algo", "dqn", "--offline", text(&nowhere), "--run-dir", text(&out)], 1);
    for (args, code, why) in [
        (["record", "slow_cartpole", "--out", text(&out)], 2, "blocks"),
        (["record", "cartpole", "--out", text(dir.path())], 2, "is a directory"),
        (["record", "cartpol", "--out", text(&out)], 2, "did you mean"),
    ] {
        let said = run(&args, code).1;
        assert!(said.contains(why), "{said}");
    }
    // A block that is damaged ends the training, which says where.
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(!out.exists());
    let args = ["train", "cartpole", "--algo", "dqn", "--offline", text(&file), "--run-dir", text(&out), "--steps", "2000"];
    let said = run(&args, 1).1;
    assert!(said.contains("steps: is damaged: the hash of a block differs"), "{said}");
}
