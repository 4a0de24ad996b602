//! `rl train slow_cartpole`: an environment that blocks, with a setting of its own.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{TIME_LIMIT, finish, newest, rl, text};
use rl_runtime::checkpoint;
use serde_json::Value;

#[test]
fn a_run_killed_in_the_middle_is_resumed_and_takes_all_steps() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = "train slow_cartpole --steps 8192 --json --set env.latency_ms=0.5 --set ppo.n_epochs=1 --set hidden=[8] \
                    --set checkpoint_every=1024 --set eval_episodes=2 --set eval_max_steps=20";
    let mut arguments: Vec<&str> = settings.split_whitespace().collect();
    arguments.extend(["--run-dir", text(&run)]);
    let mut child = rl(&arguments).spawn().unwrap();
    let begin = Instant::now();
    while checkpoint::list(&run.join("checkpoints")).is_ok_and(|list| list.is_empty()) || !run.join("checkpoints").exists() {
        assert!(begin.elapsed() < TIME_LIMIT && child.try_wait().unwrap().is_none(), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = fs::read_to_string(newest(&run).join("config.toml")).unwrap();
    assert!(before.contains("latency_ms = 0.5"), "{before}");

    let output = finish(&mut rl(&["train", "--resume", text(&run), "--json"]));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let done: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert!(done["event"] == "done" && done["env_steps"] == 8192, "{done}");
    let metrics = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let steps: Vec<u64> = metrics.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
    assert_eq!(steps, (1..=8).map(|i| 1024 * i).collect::<Vec<_>>(), "a row for each rollout, once");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_does_not_wait_for_environments() {
    let dir = tempfile::tempdir().unwrap();
    for pipeline in ["sync", "overlapped"] {
        let run = dir.path().join(pipeline);
        let pipeline = format!("pipeline={pipeline}");
        // A rollout takes two minutes.
        let settings = "train slow_cartpole --envs 4 --steps 4096 --set env.latency_ms=240 --set ppo.n_steps=512 \
                        --set ppo.batch_size=64 --set hidden=[8] --set eval_episodes=1 --set eval_max_steps=2 --set";
        let mut arguments: Vec<&str> = settings.split_whitespace().collect();
        arguments.extend([&pipeline, "--run-dir", text(&run)]);
        for arguments in [&arguments[..], &["train", "--resume", text(&run)]] {
            let child = rl(arguments).spawn().unwrap();
            crate::harness::until_it_trains(child.id());
            let begin = Instant::now();
            crate::harness::signal(child.id(), "-INT");
            let (output, took) = (crate::harness::wait(child), begin.elapsed());
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(130), "{said}{}", String::from_utf8_lossy(&output.stderr));
            assert!(took < Duration::from_secs(10) && said.contains("interrupted and saved"), "{took:?}: {said}");
            checkpoint::config(&newest(&run), false).unwrap();
        }
    }
}

#[test]
fn a_setting_of_one_environment_is_refused_for_another_and_out_of_range() {
    for (arguments, why) in [
        ("train cartpole --set env.latency_ms=3", "env.latency_ms has no effect: cartpole has no such setting"),
        ("train slow_cartpole --set env.latency_ms=-3", "env.latency_ms is -3; it must be a number from 0 to 60000"),
        ("train slow_cartpole --set env.latencie_ms=3", "(did you mean \"env.latency_ms\"?)"),
        ("train slow_cartpole --set env.frame_stack=2", "slow_cartpole blocks, and env.* puts wrappers only"),
    ] {
        let output = finish(&mut rl(&arguments.split(' ').collect::<Vec<_>>()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{arguments}: {said}");
    }
}

#[test]
fn a_workload_gives_its_settings_and_the_command_line_overrides_them() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = "train slow_cartpole --preset http-large --steps 64 --envs 4 --set hidden=[8] --set ppo.n_steps=16 \
                    --set ppo.batch_size=32 --set env.latency_ms=0 --set eval_episodes=1 --set eval_max_steps=9 --run-dir";
    let mut arguments: Vec<&str> = settings.split_whitespace().collect();
    arguments.push(text(&run));
    let output = finish(&mut rl(&arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    for line in ["n_envs = 4", "n_epochs = 30", "n_steps = 16", "pipeline = \"overlapped\"", "gamma = 0.98"] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let output = finish(&mut rl(&["train", "slow_cartpole", "--preset", "http-larg"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("(did you mean \"http-large\"?)"), "{said}");
}
