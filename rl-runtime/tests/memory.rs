//! Memory budgets compared with the memory that `rl` really uses.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rl_runtime::Algo;
use rl_runtime::budget::Budget;
use rl_runtime::config::Layers;

/// Time limit of everything that these tests start.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Returns a run's budget and its peak resident set.
fn budget_and_peak(env: &str, algo: Algo, settings: &[&str], dir: &Path) -> (u64, u64) {
    let mut layers = Layers::default();
    settings.iter().for_each(|setting| layers.add_assignment(setting));
    let entry = rl_envs::catalog::find(env).unwrap();
    let budget = Budget::training(&layers.resolve(entry, algo).unwrap(), entry).bytes().unwrap();
    let run = dir.join("run");
    let _ = fs::remove_dir_all(&run);
    let args = settings.iter().flat_map(|setting| ["--set", *setting]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_rl"))
        .args(["train", env, "--algo", algo.name(), "--run-dir"])
        .arg(&run)
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (begin, mut peak) = (Instant::now(), 0);
    let status = loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let kilobytes =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(1024 * kilobytes.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success(), "{env} {settings:?}");
    (u64::try_from(budget).unwrap(), peak)
}

fn close(budget: u64, peak: u64) -> bool {
    budget >= peak && (budget as f64) <= 1.3 * peak as f64 + f64::from(64 << 20)
}

#[test]
fn a_run_takes_what_its_budget_says() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["n_envs=4096", "ppo.n_steps=16", "ppo.batch_size=65536", "ppo.n_epochs=1", "hidden=[512]"];
    let ends = ["steps=65536", "eval_episodes=1", "eval_max_steps=1"];
    let (budget, peak) = budget_and_peak("cartpole", Algo::PPO, &[&settings[..], &ends].concat(), dir.path());
    assert!(close(budget, peak), "{budget} bytes by the budget, {peak} at the peak");
}

/// Prints a table of budgets and peaks.
///
/// `cargo test --release -p rl-runtime --test memory -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes and gigabytes"]
fn every_kind_of_run_takes_what_its_budget_says() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, Algo, &[&str]); 17] = [
        ("cartpole", Algo::PPO, &["steps=1024"]),
        (
            "cartpole",
            Algo::PPO,
            &["steps=1", "memory=lstm", "memory_size=256", "n_envs=512", "ppo.n_steps=64", "ppo.batch_size=32768"],
        ),
        ("cartpole", Algo::A2C, &["steps=1024"]),
        ("cartpole", Algo::DQN, &["steps=4096"]),
        ("snake", Algo::PPO, &["steps=20000"]),
        ("breakout", Algo::PPO, &["steps=20000", "learner=reference"]),
        ("cartpole", Algo::PPO, &["steps=1", "n_envs=1048576", "ppo.n_steps=8", "ppo.batch_size=1048576", "ppo.n_epochs=1"]),
        (
            "cartpole",
            Algo::PPO,
            &["steps=1", "hidden=[2048, 2048]", "ppo.n_steps=8", "n_envs=64", "ppo.batch_size=512", "ppo.n_epochs=1"],
        ),
        ("cartpole", Algo::A2C, &["steps=1", "hidden=[1024, 1024]", "learner=reference", "n_envs=1024", "a2c.batch_size=1024"]),
        ("snake", Algo::A2C, &["steps=1", "n_envs=262144", "a2c.n_steps=4"]),
        (
            "cartpole",
            Algo::PPO,
            &[
                "steps=65536",
                "pipeline=overlapped",
                "max_lag=15",
                "hidden=[1024, 1024]",
                "n_envs=128",
                "ppo.n_steps=32",
                "ppo.batch_size=4096",
                "ppo.n_epochs=1",
            ],
        ),
        (
            "snake",
            Algo::PPO,
            &[
                "steps=2097152",
                "pipeline=overlapped",
                "max_lag=3",
                "n_envs=4096",
                "ppo.n_steps=64",
                "ppo.batch_size=65536",
                "ppo.n_epochs=1",
                "conv=[]",
                "hidden=[32]",
            ],
        ),
        (
            "snake",
            Algo::DQN,
            &[
                "steps=1000000",
                "n_envs=4096",
                "dqn.buffer_size=1000000",
                "dqn.train_freq=65536",
                "dqn.save_replay=true",
                "conv=[]",
                "hidden=[32]",
                "dqn.learning_starts=900000",
            ],
        ),
        (
            "cartpole",
            Algo::DQN,
            &[
                "steps=4000000",
                "n_envs=4096",
                "dqn.buffer_size=4000000",
                "dqn.train_freq=1000000",
                "dqn.prioritized=true",
                "dqn.n_steps=1",
            ],
        ),
        (
            "pendulum",
            Algo::PPO,
            &["steps=1", "n_envs=65536", "ppo.n_steps=16", "ppo.batch_size=65536", "ppo.n_epochs=1", "eval_episodes=100000"],
        ),
        ("pendulum", Algo::find("td3").unwrap(), &["steps=1010", "td3.learning_starts=1000", "hidden=[1024, 1024]"]),
        (
            "pendulum",
            Algo::find("sac").unwrap(),
            &["steps=130", "n_envs=1", "sac.buffer_size=20000", "env.pixels=84", "env.frame_stack=4"],
        ),
    ];
    let mut far = Vec::new();
    for (env, algo, settings) in cases {
        let (budget, peak) = budget_and_peak(env, algo, &[settings, &["eval_max_steps=20"]].concat(), dir.path());
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let row = format!(
            "{:8.1} {:8.1} {:5.2}  {env} {} {settings:?}",
            mb(budget),
            mb(peak),
            budget as f64 / peak as f64,
            algo.name()
        );
        println!("{row}");
        far.extend((!close(budget, peak)).then_some(row));
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}
