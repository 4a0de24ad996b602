//! `rl train` with a learner on a device leaves the files that the CPU leaves.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{can_compare, finish, load, metrics, newest, python, rl, text};
use rl_envs::codec;
use rl_runtime::Progress;
use rl_runtime::checkpoint::Checkpoint;
use serde_json::Value;

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
    let on_device = |env| ["--set", if env == "breakout" { "dqn.replay_on_device=true" } else { "dqn.replay_on_device=false" }];
    let sac = ["--algo", "sac", "--set", "sac.learning_starts=100", "--set", "sac.save_replay=true"];
    let td3 = ["--algo", "td3", "--set", "td3.learning_starts=100", "--set", "td3.save_replay=true"];
    let td3 = [&td3[..], &["--set", "td3.replay_on_device=true"]].concat();
    for env in ["cartpole", "pendulum", "snake", "breakout"] {
        for (name, algo) in [("ppo", &ppo[..]), ("a2c", &a2c), ("dqn", &dqn), ("sac", &sac), ("td3", &td3)] {
            let replays = ["dqn", "sac", "td3"].contains(&name);
            if replays && (env == "pendulum") == (name == "dqn") {
                continue; // actions of the other kind
            }
            let of = |device: &str, env_device: &str| {
                let run = dir.path().join(format!("{env}-{name}-{device}-{env_device}"));
                let args = [env, "--device", device, "--steps", "384", "--seed", "7", "--envs", "8", "--run-dir", text(&run)];
                let env_device = format!("env_device={env_device}");
                let args = [&args[..], &["--set", &env_device]].concat();
                let conv = if env == "snake" { "conv=[[4, 3, 2], [16, 3, 2]]" } else { "conv=[]" };
                let normalize_obs = format!("normalize_obs={}", env == "pendulum" && !replays);
                let net = ["--set", "hidden=[32]", "--set", conv, "--set", &normalize_obs];
                let rest = ["--set", "eval_episodes=1", "--set", "eval_max_steps=50"];
                let replay = on_device(env);
                train(&run, &[&args[..], algo, &net, &rest, if name == "dqn" { &replay } else { &[] }].concat());
                learnt(&run)
            };
            let expected = of("cpu", "auto");
            if name != "a2c" {
                assert!(expected == of("emulated", "cpu"), "{env}, {name}, environments on the CPU");
            }
            if !replays {
                assert!(expected == of("emulated", "learner"), "{env}, {name}");
            }
        }
    }
}

#[test]
fn rollouts_of_older_policies_are_learnt_from_on_a_device_as_on_the_cpu() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=64", "--set", "ppo.n_epochs=2"];
    let bounded = [&ppo[..], &["--set", "ppo.target_kl=0.01"]].concat();
    let a2c = ["--algo", "a2c", "--set", "a2c.n_steps=16", "--set", "a2c.batch_size=64"];
    // Native environments; environments that block, all of which answer before the policy acts.
    let native = |env| [env, "--set", "max_lag=2"];
    let blocking = [
        "slow_cartpole",
        "--set",
        "env.latency_ms=0.1",
        "--set",
        "min_ready=8",
        "--set",
        "deadline_ms=10000",
        "--set",
        "max_lag=1",
    ];
    let remembers = [&ppo[..], &["--set", "memory=gru", "--set", "memory_size=9"]].concat();
    for (name, env, algo) in [
        ("cartpole-ppo", &native("cartpole")[..], &bounded[..]),
        ("cartpole-memory", &native("cartpole"), &remembers),
        ("pendulum-a2c", &native("pendulum"), &a2c),
        ("snake-ppo", &native("snake"), &ppo),
        ("blocking-ppo", &blocking, &ppo),
        ("blocking-a2c", &blocking, &a2c),
    ] {
        let of = |devices: [&str; 2]| {
            let run = dir.path().join(format!("{name}-{}", devices.join("-")));
            let rest = ["--seed", "7", "--envs", "8", "--set", "pipeline=overlapped", "--set", "hidden=[32]"];
            let normalize_obs = format!("normalize_obs={}", env[0] == "pendulum");
            let rest = [&rest[..], &["--set", "conv=[]", "--set", &normalize_obs, "--set", "eval_episodes=1"]].concat();
            let rest = [&rest[..], &["--set", "eval_max_steps=50", "--run-dir", text(&run)]].concat();
            let first = [env, algo, &rest].concat();
            train(&run, &[&first[..], &["--device", devices[0], "--steps", "512"]].concat());
            train(&run, &["--resume", text(&run), "--device", devices[1], "--steps", "1024"]);
            if env[0] == "slow_cartpole" { (numbers(&run), State::default()) } else { learnt(&run) }
        };
        let expected = of(["cpu", "cpu"]);
        assert!(expected == of(["emulated", "emulated"]), "{name}");
        if name == "cartpole-ppo" {
            assert!(expected == of(["cpu", "emulated"]) && expected == of(["emulated", "cpu"]), "moved");
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
    let ppo = ["cartpole", "--set", "ppo.n_steps=32", "--set", "ppo.batch_size=32"];
    let memory = ["--set", "memory=lstm", "--set", "memory_size=9"];
    let dqn = ["snake", "--algo", "dqn", "--set", "dqn.learning_starts=50", "--set", "dqn.save_replay=true"];
    let replay =
        ["--set", "dqn.replay_on_device=true", "--set", "dqn.prioritized=true", "--set", "env.frame_stack=2", "--set", "conv=[]"];
    let sac =
        ["pendulum", "--algo", "sac", "--set", "sac.learning_starts=50", "--set", "sac.save_replay=true", "--set", "hidden=[16]"];
    let sac = [&sac[..], &["--set", "sac.prioritized=true", "--set", "sac.replay_on_device=true"]].concat();
    let td3 =
        ["pendulum", "--algo", "td3", "--set", "td3.learning_starts=50", "--set", "td3.save_replay=true", "--set", "hidden=[16]"];
    let all = [&ppo[..], &[&ppo[..], &memory].concat(), &[&dqn[..], &replay].concat(), &sac, &td3];
    for (i, first) in all.into_iter().enumerate() {
        let of = |devices: [&str; 3]| {
            let run = dir.path().join(format!("{i}-{}", devices.join("-")));
            for (i, device) in devices.into_iter().enumerate() {
                let steps = (128 * (i + 1)).to_string();
                let start = [first, &["--envs", "4", "--seed", "7", "--run-dir", text(&run)]].concat();
                let begin = if i == 0 { start } else { vec!["--resume", text(&run)] };
                train(&run, &[&begin[..], &["--device", device, "--steps", &steps, "--set", "eval_episodes=1"]].concat());
            }
            learnt(&run)
        };
        assert!(of(["cpu", "emulated", "cpu"]) == of(["cpu"; 3]), "{first:?}");
    }
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
    let normalized = ["--set", "ppo.normalize_reward=true", "--set", "normalize_obs=true"];
    let normalized = [&half[..], &normalized].concat();
    let memory = [&half[..], &["--set", "memory=lstm", "--set", "memory_size=9"]].concat();
    let dqn = ["dqn.learning_starts=100", "dqn.train_freq=64", "dqn.batch_size=140", "dqn.save_replay=true"];
    let dqn = [&["--algo", "dqn"][..], &dqn.map(|setting| ["--set", setting]).concat()].concat();
    let prioritized = ["--set", "dqn.prioritized=true", "--set", "dqn.replay_on_device=true", "--set", "dqn.n_steps=3"];
    let sharded = ["dqn.save_replay=false", "dqn.buffer_size=300", "shard_replay=true"];
    let sharded = [&dqn[..], &sharded.map(|setting| ["--set", setting]).concat()].concat();
    let continuous = |algo: &'static str| {
        let settings = ["learning_starts=100", "train_freq=64", "batch_size=140", "save_replay=true"];
        let settings = settings.into_iter().flat_map(|setting| ["--set".to_string(), format!("{algo}.{setting}")]);
        ["--algo".into(), algo.into()].into_iter().chain(settings).collect::<Vec<_>>()
    };
    let [sac, td3] = ["sac", "td3"].map(continuous);
    let [sac, td3] = [&sac, &td3].map(|args| args.iter().map(|arg| &**arg).collect::<Vec<&str>>());
    for (env, name, algo, devices) in [
        ("cartpole", "whole", &whole[..], &["emulated:1", "emulated:2", "emulated:4"][..]),
        ("cartpole", "half", &half, &["emulated:2", "emulated:3"]),
        ("cartpole", "normalized", &normalized, &["emulated:3"]),
        ("cartpole", "memory", &memory, &["emulated:3"]),
        ("snake", "half", &half, &["emulated:2"]),
        ("pendulum", "quarter", &quarter, &["emulated:2"]),
        ("pendulum", "a2c", &a2c, &["emulated:2"]),
        ("breakout", "half", &half, &["emulated:2"]),
        ("breakout", "dqn", &dqn, &["emulated:2"]),
        ("cartpole", "dqn", &[&dqn[..], &prioritized].concat(), &["emulated:3"]),
        ("snake", "dqn", &sharded, &["emulated:3"]),
        ("pendulum", "sac", &sac, &["emulated:2"]),
        ("pendulum", "td3", &td3, &["emulated:3"]),
    ] {
        let of = |device: &str, env_device: &str| {
            let run = dir.path().join(format!("{env}-{name}-{device}-{env_device}"));
            let args = [env, "--device", device, "--steps", "1152", "--run-dir", text(&run), "--set", "eval_max_steps=50"];
            let (env_device, rest) = (format!("env_device={env_device}"), ["--set", "conv=[]"]);
            train(&run, &[&args[..], &["--set", &env_device], &rest, SHARED, algo].concat());
            (learnt(&run), metrics(&run))
        };
        let expected = of("cpu", "cpu");
        for device in devices {
            for &env_device in if ["dqn", "sac", "td3"].contains(&name) { &["cpu"][..] } else { &["cpu", "learner"] } {
                assert!(of(device, env_device) == expected, "{env}, {name}, {device}, environments: {env_device}");
            }
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
    let replay = ["--device", "emulated:2", "--algo", "dqn", "--set", "env_device=learner"];
    refused(&replay, 2, "dqn remembers the steps of environments on the CPU");
    refused(&["--device", "emulated:2", "--set", "pipeline=overlapped"], 2, "use pipeline = sync");
    refused(&["--device", "emulated:2", "--set", "learner=reference"], 2, "learner = \"reference\" learns on one device only");
    if can_compare() {
        refused(&["--device", "emulated", "--set", "learner=reference"], 2, "kernels do not support it yet; use --device cpu");
    }
    if can_compare() {
        for env_device in ["env_device=cpu", "env_device=learner"] {
            let few = ["--device", "emulated:4", "--envs", "8", "--set", env_device];
            refused(&few, 2, "4 ranks share 2 slices of environments");
        }
    }
}

#[test]
fn a_profile_has_the_phases_of_the_device_and_changes_nothing_else() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=64", "--set", "ppo.n_epochs=2", "--set", "hidden=[8]"];
    let dqn = ["--algo", "dqn", "--set", "dqn.learning_starts=100", "--set", "dqn.train_freq=16", "--set", "hidden=[8]"];
    for (name, env_device, algo, phases) in [
        ("on-device", "learner", &ppo[..], &["acting and environments", "copies", "update"][..]),
        ("on-cpu", "cpu", &ppo, &["copies", "targets", "update"]),
        ("dqn", "cpu", &dqn, &["update"]),
    ] {
        let run = |more: &[&str]| {
            let run = dir.path().join(format!("{name}-{}", more.len()));
            let env_device = format!("env_device={env_device}");
            let args = ["train", "cartpole", "--device", "emulated", "--steps", "384", "--seed", "7", "--envs", "8", "--json"];
            let rest = ["--set", &env_device, "--set", "eval_episodes=1", "--run-dir", text(&run)];
            let output = finish(&mut rl(&[&args[..], algo, &rest, more].concat()));
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            (run, String::from_utf8(output.stdout).unwrap())
        };
        let trace = dir.path().join(format!("{name}.json"));
        let ((plain, _), (profiled, said)) = (run(&[]), run(&["--profile", "--timeline", text(&trace)]));
        assert!(learnt(&plain) == learnt(&profiled) && metrics(&plain) == metrics(&profiled), "{name}");

        let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let profile = events.into_iter().find(|event| event["event"] == "profile").unwrap();
        let device = profile["threads"]["device"].as_object().unwrap();
        let busy: Vec<&str> = device.iter().filter(|(_, s)| s.as_f64() > Some(0.0)).map(|(name, _)| &**name).collect();
        assert_eq!(busy, phases, "{name}");
        let (seconds, whole) =
            (device.values().map(|s| s.as_f64().unwrap()).sum::<f64>(), profile["elapsed_s"].as_f64().unwrap());
        assert!(seconds <= whole, "{name}: {seconds} of {whole} s");

        let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let track = events.iter().find(|event| event["args"]["name"] == "device").unwrap();
        let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
        let spans: Vec<(f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == track["tid"])
            .map(|span| (number(span, "ts"), number(span, "ts") + number(span, "dur")))
            .collect();
        let sum: f64 = spans.iter().map(|(begin, end)| 1e-6 * (end - begin)).sum();
        assert!((sum - seconds).abs() < 1e-6 * spans.len() as f64, "{name}: {sum} and {seconds} s");
        assert!(spans[0].0 >= 0.0 && spans[spans.len() - 1].1 <= 1e6 * whole, "{name}: {spans:?}");
        // A microsecond for rounding.
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1.0), "{name}: {spans:?}");
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
