//! Checkpoints that are resumed, lost, forged, forked and compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{TIME_LIMIT, entry, load, metrics, newest, rl, saved_policy, text, wait};
use rl_agents::Episode;
use rl_envs::codec;
use rl_runtime::checkpoint;
use serde_json::{Value, json};

/// Settings of runs that take a few milliseconds.
const PPO: &[&str] = &[
    "steps=128",
    "n_envs=4",
    "hidden=[2]",
    "ppo.n_steps=8",
    "ppo.batch_size=16",
    "eval_episodes=1",
    "checkpoint_every=32",
    "keep_checkpoints=9",
];
const DQN: &[&str] = &[
    "steps=128",
    "n_envs=4",
    "hidden=[2]",
    "eval_episodes=1",
    "dqn.train_freq=8",
    "dqn.gradient_steps=1",
    "dqn.learning_starts=16",
    "dqn.buffer_size=64",
    "dqn.batch_size=4",
    "dqn.n_steps=3",
];

/// Returns exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    told(wait(rl(args).spawn().unwrap()))
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn train_args<'a>(dir: &'a Path, algo: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let own = if algo == "dqn" { DQN } else { PPO };
    let settings = own.iter().chain(settings).flat_map(|s| ["--set", s]);
    ["train", "cartpole", "--algo", algo, "--run-dir", text(dir)].into_iter().chain(settings).collect()
}

fn train(dir: &Path, algo: &str, settings: &[&str]) {
    let (code, _, stderr) = run(&train_args(dir, algo, settings));
    assert_eq!(code, 0, "{stderr}");
}

/// Returns every file below `dir` with its contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    all
}

/// Replaces or removes a file of a checkpoint, keeping the manifest valid.
fn forge(checkpoint: &Path, name: &str, bytes: Option<&[u8]>) {
    let path = checkpoint.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    match bytes {
        Some(bytes) => {
            fs::write(checkpoint.join(name), bytes).unwrap();
            manifest["files"][name] = json!({"bytes": bytes.len(), "blake3": blake3::hash(bytes).to_string()});
        }
        None => {
            fs::remove_file(checkpoint.join(name)).unwrap();
            manifest["files"].as_object_mut().unwrap().remove(name);
        }
    }
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn a_checkpoint_with_later_ones_is_resumed_in_a_new_run_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    train(&old, "ppo", &["eval_every=32"]);
    let before = files(&old);
    let from = old.join("checkpoints/ckpt-000000000064");
    let (code, out, err) = run(&["train", "--resume", text(&from), "--run-dir", text(&new)]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(&format!("continues in the new directory {}", new.display())), "{out}");
    assert_eq!(files(&old), before, "the run that it comes from");
    for file in ["params.safetensors", "optimizer.safetensors"] {
        assert_eq!(fs::read(newest(&new).join(file)).unwrap(), fs::read(newest(&old).join(file)).unwrap(), "{file}");
    }
    assert_eq!(metrics(&new), metrics(&old));
    assert!(new.join("checkpoints/ckpt-000000000064").is_dir(), "it begins with a copy");

    // Without a name, the run goes to the first free directory.
    let (code, out, err) = told(wait(rl(&["train", "--resume", text(&from)]).current_dir(dir.path()).spawn().unwrap()));
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("runs/cartpole-ppo-seed0-1") && dir.path().join("runs/cartpole-ppo-seed0-1/config.toml").exists(),
        "{out}"
    );
    assert_eq!(files(&old), before);

    // A resumed best checkpoint starts new episodes.
    let best = checkpoint::list(&old.join("checkpoints/best")).unwrap().pop().unwrap();
    let (code, out, err) = run(&["train", "--resume", text(&best), "--run-dir", text(&dir.path().join("from-best"))]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("new episodes begin"), "{out}");
    assert_eq!(files(&old), before);

    // The newest checkpoint resumes the run itself, in its own directory.
    let (code, out, err) = run(&["train", "--resume", text(&newest(&old)), "--steps", "160"]);
    assert_eq!(code, 0, "{err}");
    assert!(!out.contains("new directory") && newest(&old).ends_with("ckpt-000000000160"), "{out}");
    for (path, bytes) in before.iter().filter(|(path, _)| path.to_str().unwrap().contains("checkpoints/ckpt-")) {
        assert_eq!(fs::read(path).ok().as_ref(), Some(bytes), "{}", path.display());
    }
    let (code, _, err) = run(&["train", "--resume", text(&old), "--run-dir", text(&dir.path().join("other"))]);
    assert!(code == 2 && err.contains("stays in its directory"), "{code}: {err}");
}

#[test]
fn lost_checkpoints_are_an_error_and_nothing_is_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &[]);
    let (checkpoints, log) = (run_dir.join("checkpoints"), run_dir.join("metrics.csv"));
    fs::rename(&checkpoints, dir.path().join("elsewhere")).unwrap();
    for empty in [false, true] {
        if empty {
            fs::create_dir(&checkpoints).unwrap();
        }
        let before = files(&run_dir);
        let (code, _, err) = run(&["train", "--resume", text(&run_dir)]);
        assert_eq!(code, 3, "{err}");
        assert!(
            err.contains("there is no checkpoint, but") && err.contains("shows 128 env steps; put the checkpoints back"),
            "{err}"
        );
        assert_eq!(files(&run_dir), before);
    }
    // A run that was killed before its first checkpoint was due starts afresh.
    let text_before = fs::read_to_string(&log).unwrap();
    fs::write(&log, text_before.lines().take(2).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let (code, out, err) = run(&["train", "--resume", text(&run_dir)]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("before its first checkpoint: it starts from the beginning"), "{out}");
}

#[test]
fn a_resumed_sac_or_td3_is_one_that_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let shared = ["batch_size=64", "learning_starts=50", "train_freq=4", "save_replay=true", "n_steps=2"];
    // The noise of a process is the policy's memory, which the environments' state holds.
    for (algo, own) in [("sac", &[][..]), ("td3", &["action_noise=ornstein_uhlenbeck", "action_noise_std=0.5"])] {
        let settings: Vec<String> = shared.iter().chain(own).map(|setting| format!("{algo}.{setting}")).collect();
        for pipeline in ["pipeline=sync", "pipeline=overlapped"] {
            let [whole, cut] = ["whole", "cut"].map(|name| dir.path().join(format!("{algo}-{pipeline}-{name}")));
            let train = |run_dir: &Path, steps: &str| {
                let own = settings.iter().flat_map(|setting| ["--set", setting]);
                let args = ["train", "pendulum", "--algo", algo, "--envs", "4", "--steps", steps, "--run-dir", text(run_dir)];
                let more =
                    ["--set", "hidden=[17]", "--set", pipeline, "--set", "eval_episodes=1", "--set", "checkpoint_every=400"];
                let (code, _, err) = run(&args.into_iter().chain(more).chain(own).collect::<Vec<_>>());
                assert_eq!(code, 0, "{err}");
            };
            train(&whole, "800");
            let metrics = fs::read_to_string(whole.join("metrics.csv")).unwrap();
            assert!(metrics.contains("train/actor_loss") && (algo != "sac" || metrics.contains("train/ent_coef")), "{metrics}");
            train(&cut, "400");
            let (code, _, err) = run(&["train", "--resume", text(&cut), "--steps", "800"]);
            assert_eq!(code, 0, "{err}");
            for file in ["params.safetensors", "optimizer.safetensors", "replay.bin"] {
                let [one, other] = [&whole, &cut].map(|run_dir| fs::read(newest(run_dir).join(file)).unwrap());
                assert!(one == other, "{algo} {pipeline}: {file}");
            }
            let (code, _, err) = run(&["eval", text(&cut), "--episodes", "2"]);
            assert_eq!(code, 0, "{err}");
        }
        let no = dir.path().join("no");
        let (code, _, err) = run(&["train", "cartpole", "--algo", algo, "--run-dir", text(&no)]);
        let why = format!("algo is {algo}, which needs continuous actions, but cartpole's are discrete");
        assert!(code == 2 && err.contains(&why), "{code}: {err}");
    }
}

#[test]
fn a_resumed_policy_with_memory_is_one_that_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    for (env, memory) in [("cartpole", "gru"), ("pendulum", "lstm"), ("slow_cartpole", "gru")] {
        for pipeline in ["pipeline=sync", "pipeline=overlapped"] {
            let [whole, cut] = ["whole", "cut"].map(|name| dir.path().join(format!("{env}-{pipeline}-{name}")));
            let memory = format!("memory={memory}");
            let train = |run_dir: &Path, steps: &str| {
                let args = ["train", env, "--envs", "8", "--steps", steps, "--run-dir", text(run_dir)];
                let settings = ["hidden=[9]", "memory_size=21", &memory, pipeline, "ppo.n_steps=25", "ppo.batch_size=100"];
                let constant = ["ppo.learning_rate=1e-3", "ppo.clip_range=0.2"];
                let more = ["eval_episodes=1", "checkpoint_every=400", "normalize_obs=true"].into_iter().chain(constant);
                let settings = settings.into_iter().chain(more).flat_map(|setting| ["--set", setting]);
                let (code, _, err) = run(&args.into_iter().chain(settings).collect::<Vec<_>>());
                assert_eq!(code, 0, "{err}");
            };
            train(&whole, "800");
            train(&cut, "400");
            let (code, _, err) = run(&["train", "--resume", text(&cut), "--steps", "800", "--threads", "1"]);
            assert_eq!(code, 0, "{err}");
            for file in ["params.safetensors", "optimizer.safetensors"] {
                let [one, other] = [&whole, &cut].map(|run_dir| fs::read(newest(run_dir).join(file)).unwrap());
                // Environments that block begin new episodes, and answer in no fixed order.
                assert!(one == other || env == "slow_cartpole", "{env} {pipeline}: {file}");
            }
            let (code, _, err) = run(&["eval", text(&cut), "--episodes", "2"]);
            assert_eq!(code, 0, "{err}");
            let out = dir.path().join("exported.policy");
            let (code, said, err) = run(&["export", text(&cut), "--as", "rust", "--out", text(&out)]);
            assert!(code == 0 && said.contains("check: 64 of 64"), "{code}: {said}{err}");
        }
    }
}

#[test]
fn a_missing_replay_memory_is_told_or_refused_and_a_forged_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (without, with) = (dir.path().join("without"), dir.path().join("with"));
    train(&without, "dqn", &[]);
    let (code, out, err) = run(&["train", "--resume", text(&without), "--steps", "160"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("the replay memory was not saved (dqn.save_replay is false): it is empty"), "{out}");
    assert!(out.contains("jump to their values at 128 of 160 env steps"), "{out}");

    train(&with, "dqn", &["dqn.save_replay=true"]);
    let good = fs::read(newest(&with).join("replay.bin")).unwrap();
    let mut bad = good.clone();
    bad[3] ^= 1;
    for (bytes, why) in [(&bad[..], "the kind of file"), (&good[..good.len() - 1], "ends too early"), (&[], "ends too early")] {
        forge(&newest(&with), "replay.bin", Some(bytes));
        let (code, _, err) = run(&["train", "--resume", text(&with), "--steps", "160"]);
        assert!(code == 3 && err.contains("replay.bin: ") && err.contains(why), "{code}: {err}");
        assert_eq!(run(&["eval", text(&with), "--episodes", "1"]).0, 0, "a policy needs no replay memory");
    }
    forge(&newest(&with), "replay.bin", None);
    let (code, _, err) = run(&["train", "--resume", text(&with), "--steps", "160"]);
    assert!(code == 3 && err.contains("its replay memory is missing, though dqn.save_replay is true"), "{code}: {err}");
    let (code, _, err) = run(&["eval", text(&with), "--episodes", "1"]);
    assert!(code == 0 && err.contains("lacks its replay memory"), "{code}: {err}");
}

#[test]
fn stray_entries_are_ignored_and_what_cannot_be_removed_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &["steps=32"]);
    let checkpoints = run_dir.join("checkpoints");
    for stray in ["ckpt-9", "ckpt-0000000000009", "ckpt-x", "other.tmp", "ckpt-9.tmp", "best.tmp"] {
        fs::create_dir(checkpoints.join(stray)).unwrap();
        fs::write(checkpoints.join(stray).join("precious"), "x").unwrap();
    }
    fs::write(checkpoints.join("file.tmp"), "x").unwrap();
    fs::write(checkpoints.join("ckpt-000000009999"), "a file").unwrap();
    let strays = 8;
    fs::create_dir(checkpoints.join("ckpt-000000000064.tmp")).unwrap();
    let (code, _, err) = run(&["train", "--resume", text(&run_dir), "--steps", "128", "--set", "keep_checkpoints=1"]);
    assert_eq!((code, &*err), (0, ""));
    assert!(newest(&run_dir).ends_with("ckpt-000000000128"));
    assert_eq!(fs::read_dir(&checkpoints).unwrap().count(), strays + 2, "the newest and the best beside them");

    // With a file in the way of a rename, the checkpoint stays and is counted.
    fs::write(checkpoints.join("ckpt-000000000128.tmp"), "x").unwrap();
    let (code, _, err) = run(&["train", "--resume", text(&run_dir), "--steps", "256"]);
    assert!(code == 0 && err.matches("1 old checkpoints cannot be removed, first: ").count() == 1, "{code}: {err}");
    assert!(!err.contains("not saved") && checkpoints.join("ckpt-000000000128").is_dir());
}

/// Wraps `rl` so that no file may exceed `blocks` KiB, like a full disk.
fn on_a_full_disk(args: &[&str], blocks: u32) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_rl")]).args(args);
    wait(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn a_failed_save_leaves_nothing_behind_and_giving_up_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let settings = ["hidden=[64,64]", "steps=100000", "log_interval=100000"];
    let (code, _, err) = told(on_a_full_disk(&train_args(&run_dir, "ppo", &settings), 8));
    assert_eq!(code, 1, "{err}");
    assert_eq!(err.matches("checkpoint not saved, training continues").count(), 2, "{err}");
    assert!(
        err.contains("training stopped: the checkpoint could not be saved 3 times in a row") && err.contains("free some space"),
        "{err}"
    );
    assert_eq!(fs::read_dir(run_dir.join("checkpoints")).unwrap().count(), 0, "half a checkpoint would keep the disk full");

    train(&run_dir.with_file_name("saved"), "ppo", &["hidden=[64,64]"]);
    let saved = run_dir.with_file_name("saved");
    let more = ["train", "--resume", text(&saved), "--steps", "160", "--set", "log_interval=100000"];
    let (code, _, err) = told(on_a_full_disk(&more, 8));
    assert_eq!(code, 1, "{err}");
    assert_eq!(err.matches("the last checkpoint is not saved").count(), 3, "{err}");
    let advice = format!("then `rl train --resume {}` continues from the checkpoint at 128 env steps", saved.display());
    assert!(err.contains(&advice), "{err}");
    assert_eq!(run(&more).0, 0, "when there is room again");
}

#[test]
fn the_best_evaluation_is_kept_evaluated_and_known_after_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let checkpoints = run_dir.join("checkpoints");
    let evaluations = |out: &str| -> Vec<(f64, u64)> {
        let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let evaluations = lines.filter(|line| line["event"] == "evaluation");
        evaluations.map(|line| (line["return_mean"].as_f64().unwrap(), line["env_steps"].as_u64().unwrap())).collect()
    };
    let best_of = |all: &[(f64, u64)]| {
        let mut best = all[0];
        all.iter().for_each(|&one| best = if one.0 > best.0 { one } else { best });
        best
    };
    let mut args = train_args(&run_dir, "ppo", &["steps=512", "eval_every=32", "keep_checkpoints=1", "eval_episodes=3"]);
    args.push("--json");
    let (code, out, err) = run(&args);
    assert_eq!(code, 0, "{err}");
    let mut all = evaluations(&out);
    assert!(all.len() >= 16);
    for resumed in [false, true] {
        if resumed {
            let (code, out, err) = run(&["train", "--resume", text(&run_dir), "--steps", "1024", "--json"]);
            assert_eq!(code, 0, "{err}");
            all.extend(evaluations(&out));
        }
        let (best, at) = best_of(&all);
        let saved = saved_policy(&run_dir, true).unwrap();
        assert_eq!(checkpoint::best_return(&checkpoints, &saved.config).unwrap(), Some(best));
        assert_eq!(saved.progress.env_steps, at);
        assert!(saved.path.starts_with(checkpoints.join("best")));
        assert_eq!(checkpoint::list(&checkpoints).unwrap().len(), 1, "others are pruned");
    }
    let (code, out, err) = run(&["eval", text(&run_dir), "--best", "--episodes", "2"]);
    assert!(code == 0 && out.contains("checkpoints/best/ckpt-"), "{out} {err}");
    assert_eq!(run(&["watch", text(&run_dir), "--best"]).0, 0);
    assert_eq!(run(&["eval", text(&newest(&run_dir)), "--best"]).0, 2);
    fs::remove_dir_all(checkpoints.join("best")).unwrap();
    let (code, _, err) = run(&["eval", text(&run_dir), "--best"]);
    assert!(code == 3 && err.contains("leave out --best"), "{code}: {err}");
}

#[test]
fn an_evaluation_that_was_cut_off_is_done_at_the_resume() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &["steps=256", "eval_every=128", "eval_episodes=3"]);
    let table = fs::read_to_string(run_dir.join("metrics.csv")).unwrap();
    let column = table.lines().next().unwrap().split(',').position(|name| name == "eval/mean_reward").unwrap();
    let last = table.lines().next_back().unwrap();
    let mut cells: Vec<_> = last.split(',').collect();
    let evaluated = std::mem::take(&mut cells[column]);
    assert!(!evaluated.is_empty());
    fs::write(run_dir.join("metrics.csv"), table.replace(last, &cells.join(","))).unwrap();
    for steps in ["384", "512"] {
        let (code, out, err) = run(&["train", "--resume", text(&run_dir), "--steps", steps, "--json"]);
        assert_eq!(code, 0, "{err}");
        let at = |line: &str| {
            serde_json::from_str::<Value>(line).ok().filter(|line| line["event"] == "evaluation")?["env_steps"].as_u64()
        };
        let owed = out.lines().filter_map(at).filter(|steps| *steps == 256).count();
        assert_eq!(owed, usize::from(steps == "384"), "once: {out}");
        let table = fs::read_to_string(run_dir.join("metrics.csv")).unwrap();
        let of_256 = table.lines().find(|line| line.starts_with("256,")).unwrap();
        assert_eq!(of_256.split(',').nth(column), Some(evaluated));
    }
}

#[test]
fn a_crash_while_the_best_is_replaced_leaves_the_old_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    train(&dir.path().join("run"), "ppo", &["steps=64"]);
    let original = load(&newest(&dir.path().join("run"))).unwrap();
    let layout = original.config.layout(entry(&original.config)).unwrap();
    let save = |into: &Path, mean: f64, env_steps: u64, stop_at: usize| {
        let mut state = original.clone();
        state.progress.env_steps = env_steps;
        let mut step = 0;
        let saved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut crash = |_: &str| {
                step += 1;
                if step == stop_at { std::panic::resume_unwind(Box::new(())) } else { Ok(()) }
            };
            checkpoint::save_best(into, &state, &layout, mean, &mut crash).unwrap();
        }));
        (saved.is_ok(), step)
    };
    let steps = {
        let into = dir.path().join("count");
        assert!(save(&into, 1.0, 64, 0).0);
        save(&into, 2.0, 96, 0).1
    };
    assert!(steps >= 16, "{steps}");
    // The new best may have fewer steps if the run was resumed from an older checkpoint.
    for (stop_at, env_steps) in (1..=steps).flat_map(|stop_at| [(stop_at, 96), (stop_at, 64), (stop_at, 32)]) {
        let into = dir.path().join(format!("stop-{stop_at}-{env_steps}"));
        assert!(save(&into, 1.0, 64, 0).0 && !save(&into, 2.0, env_steps, stop_at).0);
        let mean = checkpoint::best_return(&into, &original.config).unwrap();
        assert!(mean == Some(1.0) || mean == Some(2.0), "stopped at {stop_at}: {mean:?}");
        let found = saved_policy(&into.join("best"), false).unwrap();
        assert_eq!(found.progress.env_steps, if mean == Some(1.0) { 64 } else { env_steps });
        assert!(checkpoint::clean(&into).is_empty());
        assert!(save(&into, 3.0, 16, 0).0);
        assert_eq!(checkpoint::best_return(&into, &original.config).unwrap(), Some(3.0));
        assert_eq!(fs::read_dir(into.join("best")).unwrap().count(), 1, "nothing is left over");
    }
}

#[test]
fn what_is_changed_at_a_resume_stays_changed() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &[]);
    assert_eq!(run(&["train", "--resume", text(&run_dir), "--steps", "192", "--set", "keep_checkpoints=3"]).0, 0);
    let config = fs::read_to_string(run_dir.join("config.toml")).unwrap();
    assert!(config.contains("steps = 192\n") && config.contains("keep_checkpoints = 3\n"), "{config}");
    fs::remove_dir_all(newest(&run_dir)).unwrap();
    let (code, out, err) = run(&["train", "--resume", text(&run_dir)]);
    assert_eq!(code, 0, "{err}");
    assert!(newest(&run_dir).ends_with("ckpt-000000000192"), "{out}");
}

#[test]
fn a_policy_is_read_while_its_run_replaces_the_only_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let settings = ["steps=1000000000", "keep_checkpoints=1", "ppo.n_epochs=1", "log_interval=100000"];
    let mut child = rl(&train_args(&run_dir, "ppo", &settings)).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while checkpoint::list(&run_dir.join("checkpoints")).unwrap().is_empty() {
        assert!(begin.elapsed() < TIME_LIMIT);
        std::thread::sleep(Duration::from_millis(2));
    }
    let read: Vec<_> = (0..300).map(|_| saved_policy(&run_dir, false).map(|saved| saved.progress.env_steps)).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let failed = read.iter().filter_map(|read| read.as_ref().err()).next();
    assert!(failed.is_none(), "{failed:?}");
    assert!(read.first().unwrap().as_ref().unwrap() < read.last().unwrap().as_ref().unwrap(), "the run went on");
}

/// Returns the parameters' file with an extra header entry, or with other values.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut String)) -> Vec<u8> {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = String::from_utf8(bytes[8..8 + n].to_vec()).unwrap();
    change(&mut header);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + n..]].concat()
}

#[test]
fn a_checkpoint_of_another_run_is_neither_played_nor_the_best_to_beat() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    train(&ours, "ppo", &["eval_every=64"]);
    let settings = PPO.iter().chain(&["eval_every=64"]).flat_map(|setting| ["--set", *setting]);
    let args: Vec<&str> = ["train", "acrobot", "--run-dir", text(&theirs)].into_iter().chain(settings).collect();
    assert_eq!(run(&args).0, 0);
    let best = |run: &Path| run.join("checkpoints/best");
    fs::remove_dir_all(best(&theirs)).unwrap();
    fs::rename(best(&ours), best(&theirs)).unwrap();
    for args in [&["eval", text(&theirs), "--best"][..], &["watch", text(&theirs), "--best"]] {
        let (code, _, err) = run(args);
        assert!(code == 3 && err.contains("/best/ckpt-000000000064: it belongs to another run:\n"), "{code}: {err}");
        assert!(err.contains("\n  env.name: \"cartpole\" here, \"acrobot\" there\n"), "{err}");
        assert!(!err.contains("remove this directory"), "{err}");
    }
    assert_eq!(run(&["eval", text(&theirs), "--episodes", "1"]).0, 0, "its own newest one");
    // Its mean return, which Acrobot cannot reach, is not the one to beat.
    let (code, _, err) = run(&["train", "--resume", text(&theirs), "--steps", "256"]);
    assert!(code == 0 && err.contains("the best checkpoint is not known any more"), "{code}: {err}");
    let (code, out, err) = run(&["eval", text(&theirs), "--best", "--episodes", "1"]);
    assert!(code == 0 && out.starts_with("acrobot, "), "{out}{err}");
    fs::rename(newest(&ours), theirs.join("checkpoints/ckpt-000000000999")).unwrap();
    assert_eq!(run(&["eval", text(&theirs)]).0, 3);
}

#[test]
fn a_whole_checkpoint_is_not_advised_to_be_removed_where_the_environment_has_changed() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no python3");
    }
    let dir = tempfile::tempdir().unwrap();
    let (walk, run_dir) = (dir.path().join("walk.py"), dir.path().join("run"));
    let source = fs::read_to_string("examples/worker/walk.py").unwrap();
    fs::write(&walk, &source).unwrap();
    let env = format!("exec:python3 {}", text(&walk));
    let settings = PPO.iter().flat_map(|setting| ["--set", *setting]);
    let args: Vec<&str> = ["train", &env, "--run-dir", text(&run_dir)].into_iter().chain(settings).collect();
    let (code, _, err) = run(&args);
    assert_eq!(code, 0, "{err}");
    // Two numbers an observation.
    let space =
        source.replace("\"shape\": [1], \"low\": [-5], \"high\": [5]", "\"shape\": [2], \"low\": [-5, -5], \"high\": [5, 5]");
    let obs = "*(walk.place for walk in walks), *final";
    let twice = format!("*(place for place in [{obs}] for _ in range(2))");
    let changed = space.replace(&format!("{{k + len(final)}}f\", {obs}"), &format!("{{2 * (k + len(final))}}f\", {twice}"));
    assert!(changed.contains(&twice) && space != source);
    fs::write(&walk, changed).unwrap();
    for args in [&["eval", text(&run_dir)][..], &["train", "--resume", text(&run_dir), "--steps", "256"]] {
        let (code, _, err) = run(args);
        assert!(code == 3 && err.contains("actor.0.weight is [1, 2], this network has [2, 2]"), "{code}: {err}");
        assert!(err.contains("or the spaces of exec:python3 ") && !err.contains("remove this directory"), "{err}");
    }
    fs::write(&walk, source).unwrap();
    assert_eq!(run(&["train", "--resume", text(&run_dir), "--steps", "256"]).0, 0);
}

#[test]
fn a_checkpoint_of_an_algorithm_of_another_program_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &["steps=64"]);
    let saved = newest(&run_dir);
    let config = fs::read_to_string(saved.join("config.toml")).unwrap();
    let other = config.replace("algo = \"ppo\"", "algo = \"mine\"").replace("[ppo]", "[mine]");
    assert_ne!(config, other);
    forge(&saved, "config.toml", Some(other.as_bytes()));
    let (code, _, err) = run(&["eval", text(&saved)]);
    assert!(code == 3 && err.contains("\"mine\"") && err.contains("use the program that has saved it"), "{code}: {err}");
    assert!(!err.contains("damaged") && !err.contains("remove this directory"), "{err}");
}

#[test]
fn forged_and_odd_files_are_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "dqn", &["steps=64"]);
    let (path, good) = (newest(&run_dir), files(&newest(&run_dir)));
    let restore = || good.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let refused = |name: &str, why: &str| match load(&path) {
        Err(error) => assert!(error.exit_code() == 3 && error.to_string().contains(why), "{name}: {error}"),
        Ok(_) => panic!("{name}: loaded"),
    };
    // A FIFO and a device never reach an end of file.
    for name in ["manifest.json", "config.toml", "params.safetensors", "optimizer.safetensors", "state.bin"] {
        fs::remove_file(path.join(name)).unwrap();
        assert!(Command::new("mkfifo").arg(path.join(name)).status().unwrap().success());
        refused(name, "not a regular file");
        assert_eq!(run(&["eval", text(&run_dir)]).0, if name == "optimizer.safetensors" { 0 } else { 3 });
        fs::remove_file(path.join(name)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path.join(name)).unwrap();
        refused(name, "not a regular file");
        fs::remove_file(path.join(name)).unwrap();
        restore();
    }
    // The sparse file is longer than the manifest says, and is not read.
    fs::File::options().write(true).open(path.join("state.bin")).unwrap().set_len(6 << 30).unwrap();
    refused("sparse", "it has 6442450944 bytes instead of");
    // Nor is one of which the manifest says so, and which no memory holds.
    let manifest = String::from_utf8(good[&path.join("manifest.json")].clone()).unwrap();
    let size = good[&path.join("state.bin")].len();
    assert_eq!(manifest.matches(&format!("\"bytes\": {size},")).count(), 1, "{manifest}");
    fs::write(
        path.join("manifest.json"),
        manifest.replace(&format!("\"bytes\": {size},"), &format!("\"bytes\": {},", 6u64 << 40)),
    )
    .unwrap();
    if fs::File::options().write(true).open(path.join("state.bin")).unwrap().set_len(6 << 40).is_ok() {
        refused("more than memory", "state.bin has 6597069766656 bytes, and");
    }
    restore();

    let params = &good[&path.join("params.safetensors")];
    let repeated = with_header(params, |header| {
        let first = header[1..].split_inclusive('}').next().unwrap().to_string();
        header.insert_str(1, &format!("{first},"));
    });
    let many = with_header(params, |header| {
        let empty = |i| format!("\"x{i}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},");
        header.insert_str(1, &(0..5000).map(empty).collect::<String>());
    });
    let of_header = |len: u64| [&len.to_le_bytes()[..], &params[8..]].concat();
    let with_number = |bytes: &[u8], x: f32| [&bytes[..bytes.len() - 4], &x.to_le_bytes()[..]].concat();
    let moments = &good[&path.join("optimizer.safetensors")];
    for (name, bytes, why) in [
        ("params.safetensors", repeated, "is there twice"),
        ("params.safetensors", many, "more than 4096 entries"),
        ("params.safetensors", of_header(u64::MAX), "its header takes"),
        ("params.safetensors", of_header(1 << 20), "its header takes"),
        ("params.safetensors", with_number(params, f32::NAN), "of params is NaN"),
        ("params.safetensors", with_number(params, f32::INFINITY), "of params is inf"),
        ("optimizer.safetensors", with_number(moments, f32::NAN), "of v is NaN"),
    ] {
        forge(&path, name, Some(&bytes));
        refused(name, why);
        let expected = if name == "params.safetensors" { 3 } else { 0 };
        assert_eq!(run(&["eval", text(&run_dir), "--episodes", "1"]).0, expected, "{name}: {why}");
        restore();
    }

    // Counters after the progress: version, epochs, steps, skipped, env_steps, credit, empty_at.
    let state = &good[&path.join("state.bin")];
    let (_, left): ((u64, u64, u64, Vec<Episode>, f64), u64) = codec::decode_from(&state[..], state.len() as u64).unwrap();
    let at = state.len() - left as usize;
    for (counter, claim, why) in
        [(5, 1 << 60, "wait for their updates"), (6, 65, "empty_at 65 of 64"), (0, u64::MAX, "no run reaches")]
    {
        let mut bytes = state.clone();
        bytes[at + 8 * counter..][..8].copy_from_slice(&u64::to_le_bytes(claim));
        forge(&path, "state.bin", Some(&bytes));
        let (code, _, err) = run(&["train", "--resume", text(&run_dir), "--steps", "160"]);
        assert!(code == 3 && err.contains(why), "{code}: {err}");
        restore();
    }

    // A duplicate key in the manifest.
    let manifest = String::from_utf8(good[&path.join("manifest.json")].clone()).unwrap();
    let twice = manifest.replacen("\"config.toml\"", "\"config.toml\": {\"bytes\": 1, \"blake3\": \"\"}, \"config.toml\"", 1);
    fs::write(path.join("manifest.json"), twice).unwrap();
    refused("manifest.json", "\"config.toml\" is there twice");
}

#[test]
fn an_agent_whose_numbers_are_not_finite_ends_as_diverged_and_not_as_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    train(&run_dir, "ppo", &["steps=64", "ppo.n_epochs=1"]);
    let path = newest(&run_dir);
    // No second moment is negative: the next step of that parameter is not a number.
    let moments = fs::read(path.join("optimizer.safetensors")).unwrap();
    forge(&path, "optimizer.safetensors", Some(&[&moments[..moments.len() - 4], &(-1.0f32).to_le_bytes()].concat()));
    let (code, _, err) = run(&["train", "--resume", text(&run_dir), "--steps", "128"]);
    assert_eq!(code, 4, "{err}");
    assert!(err.contains("training stopped, and this agent is not saved: number ") && err.contains(" of params is NaN"), "{err}");
    assert!(err.contains("continues from the checkpoint at 64 env steps") && !err.contains("space"), "{err}");
    assert_eq!(newest(&run_dir), path);
}

#[test]
fn no_transition_crosses_the_rollouts_that_a_target_drops() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = |mode: &str, target: &str| {
        let run_dir = dir.path().join(mode);
        let more = ["dqn.save_replay=true", "eval_every=32", "max_lag=2", target, &format!("pipeline={mode}")];
        train(&run_dir, "dqn", &more);
        let bytes = fs::read(newest(&run_dir).join("replay.bin")).unwrap();
        // The file ends with the waiting steps: oldest and waiting (N), sums and actions (N, n), observations (N, n, D).
        let (n_envs, n_steps, obs_len) = (4, 3, 4);
        let at = bytes.len() - 4 * (2 * n_envs + n_envs * n_steps * (2 + obs_len)) + 4 * n_envs;
        let waiting: Vec<u32> = bytes[at..][..4 * n_envs].as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let (code, _, err) = run(&["train", "--resume", text(&run_dir), "--target-return", "1e9"]);
        assert_eq!(code, 0, "{err}");
        waiting
    };
    assert_eq!(waiting("overlapped", "target_return=1"), [0; 4], "rollouts have been dropped");
    assert!(waiting("sync", "target_return=1").iter().any(|&n| n > 0), "none has");
}

#[test]
fn checkpoints_that_an_older_program_wrote_are_evaluated_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (algo, same_arithmetic) in [("format-4/ppo", false), ("format-4/dqn", false), ("format-5/ppo", true)] {
        for (path, bytes) in files(&data.join(algo)) {
            let to = dir.path().join(path.strip_prefix(&data).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, bytes).unwrap();
        }
        let run_dir = dir.path().join(algo);
        let (code, out, err) = run(&["eval", text(&run_dir), "--episodes", "2"]);
        assert!(code == 0 && err.is_empty(), "{out} {err}");
        let (code, out, err) = run(&["train", "--resume", text(&run_dir), "--steps", "96"]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("resumed from") && !out.contains("replay memory"), "{out}");
        assert_eq!(!out.contains("rounds differently: the run will differ from an uninterrupted one"), same_arithmetic, "{out}");
        assert!(newest(&run_dir).ends_with("ckpt-000000000096"));
    }
}

#[test]
fn a_replay_memory_in_a_file_leaves_the_files_of_one_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let in_file = format!("replay_dir={}", text(&disk));
    for prioritized in ["dqn.prioritized=false", "dqn.prioritized=true"] {
        let [memory, file] = [&[][..], &[&*in_file]].map(|place: &[&str]| {
            let run = dir.path().join(format!("{prioritized}-{}", place.len()));
            train(&run, "dqn", &[&["dqn.save_replay=true", prioritized], place].concat());
            ["params.safetensors", "optimizer.safetensors", "replay.bin"].map(|file| fs::read(newest(&run).join(file)).unwrap())
        });
        assert!(memory == file, "{prioritized}");
    }
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "no file is left");

    let (run_dir, missing) = (dir.path().join("refused"), dir.path().join("missing"));
    let (code, _, said) = run(&train_args(&run_dir, "dqn", &[&format!("replay_dir={}", text(&missing))]));
    assert!(code == 2 && said.contains(text(&missing)) && said.lines().count() == 1, "{code}: {said}");
    let (code, _, said) = run(&train_args(&run_dir, "ppo", &[&in_file]));
    assert!(code == 2 && said.contains("replay_dir has no effect: ppo has no replay memory"), "{code}: {said}");
    assert!(!run_dir.exists());
}
