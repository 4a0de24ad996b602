//! Environments in worker processes: the steps of Gymnasium's own loop; faults.
//!
//! Needs a Python with Gymnasium: `RL_PYTHON`, or `python3`. `RL_REQUIRE_GYM=1` turns a skip into a failure.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod program;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::{finish, python, rl, text};
use rl_envs::catalog::Entry;
use rl_envs::{ActionSpace, Actions, BlockingEnv as _, MakeBlocking, ObsRows, Purpose, RandomActions, Rng, Space, Steps, VecEnv};
use rl_runtime::budget::Budget;
use rl_runtime::checkpoint;
use rl_runtime::config::{Layers, PRESETS};
use rl_runtime::profile::Profile;
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::Training;
use rl_runtime::worker::{GYM, WorkerOptions, env_seed, exec, gym};
use rl_runtime::{Algo, AlgoConfig};
use serde_json::{Value, json};

/// Opens an environment of Gymnasium, or of `worker_envs.py`.
fn open(id: &str, kwargs: &Value) -> Entry {
    let is_own = ["Spaces", "Faulty", "Multi", "Slow", "Table", "Unfit", "wrapped"].iter().any(|own| id.starts_with(own));
    let id = if is_own { format!("tests.worker_envs:{id}") } else { id.into() };
    gym(&id, &WorkerOptions { kwargs: kwargs.to_string(), python: python(), ..WorkerOptions::default() }).unwrap()
}

fn numbers(rows: &ObsRows, i: usize, d: usize) -> Vec<f64> {
    match rows {
        ObsRows::F32(rows) => rows[i * d..][..d].iter().map(|&x| f64::from(x)).collect(),
        ObsRows::U8(rows) => rows[i * d..][..d].iter().map(|&x| f64::from(x)).collect(),
    }
}

/// Writes an observation as Gymnasium flattens it, with one-hot vectors.
fn flat(space: &Space, row: &[f64]) -> Vec<f64> {
    let categories = space.categories();
    let of = |(i, &x): (usize, &f64)| match categories.get(i) {
        None | Some(0) => vec![x],
        Some(&n) => (0..n).map(|category| f64::from(u8::from(f64::from(category) == x))).collect(),
    };
    row.iter().enumerate().flat_map(of).collect()
}

fn f32s(rows: &ObsRows, i: usize, d: usize) -> Vec<f32> {
    numbers(rows, i, d).into_iter().map(|x| x as f32).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn a_worker_takes_the_steps_of_gymnasium_s_own_loop_bit_for_bit() {
    let Some(python) = python() else { return };
    for (id, n_steps) in [
        ("CartPole-v1", 300),
        ("Pendulum-v1", 250),
        ("Acrobot-v1", 60),
        ("FrozenLake-v1", 60),
        ("Blackjack-v1", 60),
        ("Taxi-v4", 60),
        ("Spaces-f32-v0", 40),
        ("Spaces-i64-v0", 40),
        ("Spaces-one_hot-v0", 40),
        ("Spaces-mixed-v0", 40),
        ("Spaces-image-v0", 40),
    ] {
        let (entry, n, seed) = (open(id, &json!({})), 3, 11);
        let mut envs = entry.slices(n, 1, 1).unwrap().remove(0);
        let (space, d, a) = (entry.spaces().0, envs.observation_space().len(), envs.action_space().len());
        let numbers = |rows: &ObsRows, i: usize, d: usize| flat(&space, &numbers(rows, i, d));
        let mut random = RandomActions::new(5, n, envs.action_space());
        let mut steps = Steps::new(&*envs);
        envs.reset(seed, &mut steps).unwrap();
        let firsts: Vec<_> = (0..n).map(|i| numbers(&steps.obs, i, d)).collect();
        let (mut actions, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..n_steps {
            random.fill(steps.actions.as_mut_slice());
            actions.push(match &steps.actions {
                Actions::Discrete(actions) => json!(actions),
                Actions::Continuous(actions) => json!(actions.chunks(a).collect::<Vec<_>>()),
            });
            envs.step(&mut steps).unwrap();
            ours.push(steps.clone());
        }
        let seeds: Vec<u32> = (0..n as u32).map(|i| env_seed(seed, i, 0)).collect();
        let mut child = Command::new(&python);
        let mut child = child
            .arg("tests/gymnasium_loop.py")
            .env("PYTHONPATH", with_tests())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asked = json!({"id": id, "seeds": seeds, "actions": actions}).to_string();
        child.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut ends = 0;
        for i in 0..n {
            assert_eq!(firsts[i], floats(&theirs[i]["first"]), "{id}, environment {i}, first");
            for (t, steps) in ours.iter().enumerate() {
                let step = &theirs[i]["steps"][t];
                let place = format!("{id}, environment {i}, step {t}");
                assert_eq!(numbers(&steps.obs, i, d), floats(&step[0]), "{place}");
                assert_eq!(f64::from(steps.rewards[i]), step[1].as_f64().unwrap(), "{place}");
                assert_eq!(
                    [steps.terminated[i] == 1, steps.truncated[i] == 1].map(Value::from),
                    [&step[2], &step[3]].map(Value::clone),
                    "{place}"
                );
                if steps.done(i) {
                    ends += 1;
                    assert_eq!(numbers(&steps.final_obs, i, d), floats(&step[4]), "{place}, final");
                }
                if let Some([masks, _]) = &steps.masks {
                    assert_eq!(
                        masks[i * a..][..a].iter().map(|&x| f64::from(x)).collect::<Vec<_>>(),
                        floats(&step[5]),
                        "{place}, mask"
                    );
                }
            }
        }
        assert!(ends > 0 || ["Acrobot-v1", "Taxi-v4"].contains(&id), "{id}: episodes end");
        assert_eq!(steps.masks.is_some(), id == "Taxi-v4");
    }
}

#[test]
fn categories_cross_the_socket_as_numbers() {
    if python().is_none() {
        return;
    }
    let space = |id: &str, kwargs| open(id, &kwargs).spaces().0;
    assert_eq!((space("FrozenLake-v1", json!({})).len(), space("FrozenLake-v1", json!({})).n_inputs()), (1, 16));
    // A tuple of Discrete(3) and MultiBinary(2), MultiDiscrete([2, 3]), a box of 2 x 2.
    assert_eq!(space("Spaces-mixed-v0", json!({})).categories(), [3, 0, 0, 2, 3, 0, 0, 0, 0]);
    let (entry, n) = (open("Table", &json!({"n": 100_000})), 3);
    assert_eq!((entry.spaces().0.categories(), entry.spaces().0.high()), (&[100_000][..], &[99_999.0][..]));
    let mut envs = entry.slices(n, 1, 1).unwrap().remove(0);
    let mut steps = Steps::new(&*envs);
    envs.reset(1, &mut steps).unwrap();
    for _ in 0..30 {
        envs.step(&mut steps).unwrap();
        let seen: Vec<f64> = (0..n).map(|i| numbers(&steps.obs, i, 1)[0]).collect();
        assert!(seen.iter().all(|x| x.fract() == 0.0 && (0.0..100_000.0).contains(x)), "{seen:?}");
    }
    let error = gym(
        "tests.worker_envs:Table",
        &WorkerOptions { kwargs: json!({"n": 1 << 25}).to_string(), python: python(), ..WorkerOptions::default() },
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("element 0 of the observations is one of 33554432 categories"), "{error}");
}

#[test]
fn an_observation_that_is_no_category_is_a_fault_that_names_the_value_and_the_bounds() {
    if python().is_none() {
        return;
    }
    for (bad, why) in [
        (json!(7), "observation 7 is not in Discrete(7): it must be a whole number from 0 to 6"),
        (json!(-1), "observation -1 is not in"),
        (json!(2.5), "observation 2.5 is not in"),
        (Value::Null, "observation None is not in"),
        (json!([1, 2]), "observation [1, 2] is not in"),
    ] {
        let mut envs = open("Table", &json!({"n": 7, "bad": [bad]})).slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(1, &mut steps).unwrap();
        while envs.faults().is_empty() {
            envs.step(&mut steps).unwrap();
        }
        let fault = &envs.faults()[0].1;
        assert!(fault.contains(why), "{fault}");
    }
    let mut envs = open("Table", &json!({"n": [2, 3], "bad": [[1, 3]]})).slices(1, 1, 1).unwrap().remove(0);
    let mut steps = Steps::new(&*envs);
    envs.reset(1, &mut steps).unwrap();
    while envs.faults().is_empty() {
        envs.step(&mut steps).unwrap();
    }
    let (fault, why) = (&envs.faults()[0].1, "element 1 of the observation is 3, not in MultiDiscrete([2 3])");
    assert!(fault.contains(why) && fault.contains("it must be a whole number from 0 to 2"), "{fault}");
}

/// Peak resident set of a process in bytes; 0 once it has ended.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    1024 * line.unwrap_or(0)
}

#[test]
fn a_table_of_20000_states_trains_in_the_memory_of_its_budget() {
    let Some(python) = python() else { return };
    let (dir, kwargs) = (tempfile::tempdir().unwrap(), r#"env.kwargs={"n": 20000}"#);
    let settings = ["n_envs=4", "workers=1", "ppo.n_steps=32", "ppo.batch_size=128", "ppo.n_epochs=1", "eval_episodes=1", kwargs];
    let mut layers = Layers::default();
    settings.iter().chain(&["steps=512"]).for_each(|setting| layers.add_assignment(setting));
    let entry = open("Table", &json!({"n": 20_000}));
    let budget = Budget::training(&layers.resolve(&entry, Algo::Ppo).unwrap(), &entry).bytes().unwrap();
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let args = ["train", "gym:tests.worker_envs:Table", "--steps", "512", "--run-dir", "run", "--python", text(&python)];
    let mut command = rl(&[&args[..], &settings].concat());
    let command = command.env("PYTHONPATH", with_tests()).current_dir(dir.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (mut own, mut workers) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        own = own.max(peak(child.id()));
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
        let children: String = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
        workers = workers.max(children.split_whitespace().map(|pid| peak(pid.parse().unwrap())).max().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    assert!(u128::from(own) <= budget && budget < 200 << 20, "{budget} bytes by the budget, {own} at the peak");
    // Python and numpy, without a table of n x n numbers.
    assert!((1..200 << 20).contains(&workers), "{workers} bytes of a worker");
}

#[test]
fn categories_train_alike_on_the_cpu_and_on_a_device() {
    let Some(python) = python().filter(|_| program::can_compare()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["ppo.n_steps=32", "ppo.batch_size=64", "ppo.n_epochs=2", "normalize_obs=true"];
    for (algo, settings) in [("ppo", &ppo[..]), ("dqn", &["dqn.learning_starts=100", "dqn.buffer_size=1000"])] {
        let settings = settings.iter().chain(&["hidden=[16]", "eval_episodes=1"]).flat_map(|setting| ["--set", setting]);
        let settings: Vec<&str> = settings.collect();
        let [cpu, device] = ["cpu", "emulated"].map(|device| {
            let run = format!("{algo}-{device}");
            let args =
                ["train", "gym:tests.worker_envs:mixed", "--algo", algo, "--device", device, "--envs", "8", "--steps", "1024"];
            let args = [&args[..], &["--python", text(&python), "--run-dir", &run], &settings].concat();
            let output = finish(rl(&args).env("PYTHONPATH", with_tests()).current_dir(dir.path()));
            assert!(output.status.success(), "{run}: {}", String::from_utf8_lossy(&output.stderr));
            fs::read(dir.path().join(run).join("checkpoints/ckpt-000000001024/params.safetensors")).unwrap()
        });
        assert!(cpu == device, "{algo}");
    }
}

/// Search path of Python with this crate in front.
fn with_tests() -> String {
    format!("{}:{}", env!("CARGO_MANIFEST_DIR"), std::env::var("PYTHONPATH").unwrap_or_default())
}

#[test]
fn every_combination_of_choices_reaches_the_environment() {
    if python().is_none() {
        return;
    }
    for (name, sizes, starts) in [
        ("discrete", vec![2, 3, 4], vec![0.0, -1.0, 5.0]),
        ("table", vec![2, 3, 4, 2], vec![0.0; 4]),
        ("binary", vec![2; 5], vec![0.0; 5]),
    ] {
        let entry = open(&format!("Multi-{name}-v0"), &json!({}));
        let (_, actions) = entry.spaces();
        assert_eq!(actions, ActionSpace::MultiDiscrete { sizes: sizes.clone() });
        let n = actions.n_discrete().unwrap();
        let mut envs = entry.slices(n as usize, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        steps.actions = Actions::Discrete((0..n).collect());
        envs.step(&mut steps).unwrap();
        for action in 0..n {
            let mut rest = action;
            let mut expected: Vec<f64> = Vec::new();
            for (size, start) in sizes.iter().zip(&starts).rev() {
                expected.insert(0, f64::from(rest % size) + start);
                rest /= size;
            }
            assert_eq!(numbers(&steps.obs, action as usize, sizes.len()), expected, "{name}, action {action}");
        }
    }
    let refused = gym("tests.worker_envs:Multi-huge-v0", &WorkerOptions { python: python(), ..WorkerOptions::default() });
    assert!(refused.unwrap_err().to_string().contains("MultiBinary(32) are not supported"));
}

#[test]
fn several_choices_at_once_are_learnt_and_refused_by_name_where_they_cannot_be() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let entry = open("Multi-discrete-v0", &json!({}));
    let resolve = |algo, settings: &[&str]| {
        let mut layers = Layers::default();
        settings.iter().for_each(|setting| layers.add_assignment(setting));
        layers.resolve(&entry, algo)
    };
    let refused = |algo, settings: &[&str]| resolve(algo, settings).unwrap_err().to_string();
    assert!(refused(Algo::Dqn, &[]).contains("actions, but gym:tests.worker_envs:Multi-discrete-v0's are several at once"));
    for (algo, name) in [(Algo::Ppo, "ppo"), (Algo::A2c, "a2c")] {
        let few = ["steps=8192", "hidden=[16]", "eval_episodes=4"];
        let own = if algo == Algo::Ppo {
            ["ppo.n_steps=64", "ppo.batch_size=64", "ppo.learning_rate=0.01"]
        } else {
            ["a2c.n_steps=8", "a2c.learning_rate=0.01", "log_interval=100"]
        };
        let config = resolve(algo, &[few, own].concat()).unwrap();
        let mut training = Training::new(&config, &entry, Profile::new(false)).unwrap();
        let run = RunDir::create(Some(&dir.path().join(name)), &config, "cpu").unwrap();
        let outcome = training.run(&run, &mut |_| ()).unwrap();
        // Nine steps, with a reward of 1 for each of two right choices.
        assert_eq!(outcome.evaluation.unwrap().return_mean, 18.0, "{name}");
    }
}

#[test]
fn trajectories_do_not_depend_on_the_number_of_workers() {
    if python().is_none() {
        return;
    }
    let play = |n_workers: usize| {
        let entry = open("CartPole-v1", &json!({}));
        let mut random = RandomActions::new(1, 5, &entry.spaces().1);
        let mut slices = entry.slices(5, n_workers, 1).unwrap();
        assert_eq!(slices.len(), n_workers);
        let mut all: Vec<Steps> = slices.iter().map(|envs| Steps::new(&**envs)).collect();
        let mut seen = Vec::new();
        for t in 0..100 {
            let mut actions = vec![0; 5];
            random.fill(Actions::Discrete(&mut actions));
            let mut row = Vec::new();
            for (envs, steps) in slices.iter_mut().zip(&mut all) {
                if t == 0 {
                    envs.reset(3, steps).unwrap();
                } else {
                    let first = envs.first_env() as usize;
                    steps.actions = Actions::Discrete(actions[first..first + envs.n_envs()].to_vec());
                    envs.step(steps).unwrap();
                }
                let ObsRows::F32(obs) = &steps.obs else { unreachable!() };
                row.extend_from_slice(obs);
            }
            seen.push(row);
        }
        seen
    };
    let one = play(1);
    assert_eq!(play(2), one[..].to_vec());
    assert_eq!(play(5), one);
}

#[test]
fn environments_that_answer_on_their_own_take_the_steps_of_those_in_lock_step() {
    if python().is_none() {
        return;
    }
    for id in ["CartPole-v1", "Pendulum-v1", "Taxi-v4"] {
        let (entry, n, seed) = (open(id, &json!({})), 2, 7);
        let (space, actions) = entry.spaces();
        let (d, a) = (space.len(), actions.len());
        let mut envs = entry.slices(n, 1, 1).unwrap().remove(0);
        let mut random = RandomActions::new(3, n, &actions);
        let mut steps = Steps::new(&*envs);
        envs.reset(seed, &mut steps).unwrap();
        let MakeBlocking::F32(make) = entry.batches().unwrap().blocking().unwrap() else { unreachable!() };
        let mut alone: Vec<_> = (0..n).map(|_| make()).collect();
        let (mut obs, mut mask) = (vec![0.0; d], vec![0; if actions.masked() { a } else { 0 }]);
        let mut rngs: Vec<Rng> = (0..n as u32).map(|i| Rng::new(seed, i, 0, Purpose::Reset)).collect();
        let mask_of = |masks: &[u8], i: usize| masks.chunks(a).nth(i).unwrap_or_default().to_vec();
        for i in 0..n {
            alone[i].reset(&mut rngs[i], &mut obs).unwrap();
            assert_eq!(obs, f32s(&steps.obs, i, d), "{id}");
        }
        for t in 0..300 {
            random.fill(steps.actions.as_mut_slice());
            let acted = steps.actions.clone();
            envs.step(&mut steps).unwrap();
            for i in 0..n {
                let place = format!("{id}, environment {i}, step {t}");
                let step = alone[i].step(acted.as_slice().row(i, a), &mut rngs[i], &mut obs).unwrap();
                let flags = [steps.terminated[i] == 1, steps.truncated[i] == 1];
                assert_eq!((step.reward, [step.terminated, step.truncated]), (steps.rewards[i], flags), "{place}");
                let masks = steps.masks.as_ref().map_or([&[][..]; 2], |[masks, last]| [masks, last]);
                if step.done() {
                    assert_eq!(obs, f32s(&steps.final_obs, i, d), "{place}, final");
                    alone[i].mask(&mut mask);
                    assert_eq!(mask, mask_of(masks[1], i), "{place}, final");
                    alone[i].reset(&mut rngs[i], &mut obs).unwrap();
                }
                assert_eq!(obs, f32s(&steps.obs, i, d), "{place}");
                alone[i].mask(&mut mask);
                assert_eq!(mask, mask_of(masks[0], i), "{place}");
            }
        }
    }
}

#[test]
fn environments_that_answer_on_their_own_are_trained_in_and_replaced() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let once = json!({"once": text(&dir.path().join("once"))});
    let run = dir.path().join("faulty");
    train("Faulty-kill-v0", &once, &["drive=first_come"], &run);
    let metrics = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let mut lines = metrics.lines();
    let column = lines.next().unwrap().split(',').position(|name| name == "faults/failures").unwrap();
    let failures: f64 = lines.last().unwrap().split(',').nth(column).unwrap().parse().unwrap();
    // Environments that reach step 20 together may all find that none has failed yet.
    assert!((1.0..=4.0).contains(&failures), "{failures} failures");
}

#[test]
fn an_environment_that_waits_is_told_from_one_that_computes() {
    if python().is_none() {
        return;
    }
    let busy = |id: &str| open(id, &json!({})).batches().unwrap().busy(0).unwrap().unwrap();
    let (sleeps, computes) = (busy("Slow-sleeps-v0"), busy("Slow-computes-v0"));
    assert!(sleeps < 0.5 && computes > 0.5, "{sleeps} and {computes}");
}

#[test]
fn a_worker_that_fails_is_replaced_and_its_environments_start_again() {
    if python().is_none() {
        return;
    }
    for (how, what) in [
        ("raise", "ValueError in step: the ball left the table"),
        ("exit", "SystemExit in step: 7"),
        ("interrupt", "KeyboardInterrupt in step"),
        ("kill", "its process has ended: signal: 9 (SIGKILL)"),
        ("crash", "signal: 11 (SIGSEGV)"),
        ("child", "signal: 9 (SIGKILL)"),
        ("fork", "signal: 9 (SIGKILL)"),
        ("shape", "ValueError in step: observation of shape (1,), the space has (2,)"),
        ("reward", "TypeError in step"),
    ] {
        let begin = Instant::now();
        let mut envs = open(&format!("Faulty-{how}-v0"), &json!({})).slices(2, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        for _ in 1..20 {
            envs.step(&mut steps).unwrap();
            assert!(envs.faults().is_empty());
        }
        envs.step(&mut steps).unwrap();
        let faults = envs.faults().to_vec();
        assert_eq!(faults.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1], "{how}");
        assert!(faults[0].1.contains(what), "{how}: {}", faults[0].1);
        assert_eq!((&steps.rewards, &steps.terminated, &steps.truncated), (&vec![0.0; 2], &vec![0; 2], &vec![0; 2]));
        for i in 0..2 {
            let mut obs = [9.0; 2];
            envs.restart(i, rl_envs::ObsSliceMut::F32(&mut obs), None).unwrap();
            assert_eq!(obs, [0.0, 1.0], "{how}: the first observation of a new episode");
            assert_eq!(envs.faults().len(), 1 - i);
        }
        envs.step(&mut steps).unwrap();
        assert_eq!((&steps.obs, &steps.rewards), (&ObsRows::F32(vec![1.0, 1.0, 1.0, 1.0]), &vec![1.0; 2]), "{how}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{how} takes {:?}", begin.elapsed());
    }
}

/// Trains, and returns the run's episodes and parameters.
fn train(id: &str, kwargs: &Value, settings: &[&str], dir: &Path) -> (u64, Vec<f32>) {
    let entry = open(id, kwargs);
    let mut layers = Layers::default();
    let small = ["steps=480", "n_envs=4", "threads=2", "hidden=[8]", "eval_episodes=3", "ppo.n_steps=40", "ppo.batch_size=40"];
    small.iter().chain(settings).for_each(|setting| layers.add_assignment(setting));
    let config = layers.resolve(&entry, Algo::Ppo).unwrap();
    let mut training = Training::new(&config, &entry, Profile::new(false)).unwrap();
    let run = RunDir::create(Some(dir), &config, "cpu").unwrap();
    let outcome = training.run(&run, &mut |_| ()).unwrap();
    assert_eq!((outcome.progress.env_steps, outcome.evaluation.unwrap().episodes), (480, 3));
    let saved = checkpoint::policy(dir, false, &entry).unwrap();
    (outcome.progress.episodes, saved.policy.weights().params.to_vec())
}

#[test]
fn training_continues_after_a_fault_and_does_not_depend_on_the_number_of_workers() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cartpole = |name: &str, settings: &[&str]| train("CartPole-v1", &json!({}), settings, &dir.path().join(name));
    let one = cartpole("one", &["workers=1"]);
    assert_eq!(cartpole("three", &["workers=3"]), one);
    assert_eq!(cartpole("overlapped", &["workers=3", "pipeline=overlapped", "max_lag=0"]), one);
    // Four environments end an episode every 7 of 120 steps. A worker that dies at its step 20 costs its two environments one
    // each.
    let once = json!({"once": text(&dir.path().join("once"))});
    let (episodes, _) = train("Faulty-kill-v0", &once, &["workers=2"], &dir.path().join("faulty"));
    assert!((64..68).contains(&episodes), "{episodes} episodes");
}

#[test]
fn what_cannot_be_opened_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let refused = |id: &str, python: &Path, code: i32, what: &str| {
        let output = finish(rl(&["train", id, "--steps", "100", "--python", text(python)]).current_dir(dir.path()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(what), "{id}, {}: {said}", output.status);
        assert!(!dir.path().join("runs").exists());
    };
    refused("gym:CartPole-v1", &dir.path().join("none"), 2, "name one with --python or the variable RL_PYTHON");
    let hello =
        r#"{"protocol":2,"observation":{"dtype":"f32","shape":[1],"low":[0],"high":[1]},"action":{"kind":"discrete","n":2}}"#;
    let greet = format!("printf '\\000\\000\\000\\240\\{:03o}\\000\\000\\000%s' '{hello}' >&0", hello.len());
    refused("gym:CartPole-v1", &script("other", &greet), 2, "it speaks version 2 of the protocol, this program version 1");
    refused("gym:CartPole-v1", &script("garbage", "echo Hello there >&0"), 5, "its answer begins with \"Hello there\\n\"");
    refused("gym:CartPole-v1", &script("silent", "echo what a pity >&2; exit 3"), 5, "has ended: exit status: 3\nwhat a pity");
    let Some(python) = python() else { return };
    let lacks = script("lacks", &format!("exec {} -S -E \"$@\"", text(&python)));
    refused("gym:CartPole-v1", &lacks, 2, "-m pip install gymnasium");
    refused("gym:CartPool-v1", &python, 2, "Near names: CartPole-v1");
    refused("gym:no_such_module:Env-v0", &python, 2, "No module named 'no_such_module'");
}

#[test]
fn presets_of_gymnasium_s_environments_are_allowed() {
    if python().is_none() {
        return;
    }
    let presets: Vec<_> = PRESETS.iter().filter(|(env, ..)| env.starts_with(GYM)).collect();
    assert_eq!(presets.len(), 2);
    for (env, algo, _) in presets {
        // Spaces of the same kind, from environments that Gymnasium has without further packages.
        let like = if env.contains("HalfCheetah") { "Pendulum-v1" } else { "CartPole-v1" };
        let entry = Entry::outside(env, "", open(like, &json!({})).batches().unwrap());
        let config = Layers::default().resolve(&entry, *algo).unwrap();
        assert_ne!(config.algo, AlgoConfig::new(*algo), "{env}");
    }
}

#[test]
fn a_maker_in_a_module_needs_no_registration() {
    if python().is_none() {
        return;
    }
    let mut envs = open("wrapped", &json!({})).slices(1, 1, 1).unwrap().remove(0);
    let mut steps = Steps::new(&*envs);
    envs.reset(0, &mut steps).unwrap();
    envs.step(&mut steps).unwrap();
    assert_eq!(steps.rewards, [2.0]);
}

/// Processes with `mark` in their environment variables.
fn marked(mark: &str) -> Vec<String> {
    let of = |pid: &str, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let alive = |pid: &String| !String::from_utf8_lossy(&of(pid, "stat")).contains(") Z ");
    let has_mark = |pid: &String| of(pid, "environ").windows(mark.len()).any(|part| part == mark.as_bytes());
    pids.filter(|pid| pid.parse::<u32>().is_ok() && has_mark(pid) && alive(pid)).collect()
}

/// Waits until enough processes have the mark, or fails after the time.
fn wait_until_marked(mark: &str, seconds: u64, is_enough: impl Fn(usize) -> bool) {
    let begin = Instant::now();
    while !is_enough(marked(mark).len()) {
        assert!(begin.elapsed() < Duration::from_secs(seconds), "{mark}: {:?}", marked(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_process_is_left_when_the_program_is_killed_whatever_its_environments_do() {
    let Some(python) = python() else { return };
    for how in ["hang", "hang_in_c", "none"] {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("RL_TEST_MARK={how}-{}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        let id = format!("gym:tests.worker_envs:Faulty-{how}-v0");
        let mut command = rl(&["train", &id, "--steps", "100000000", "--envs", "2", "--python", text(&python)]);
        let mut child = command.env(name, value).env("PYTHONPATH", with_tests()).current_dir(dir.path()).spawn().unwrap();
        // The program, two workers, their guards, and the program that an environment that hangs has started.
        let expected = if how == "hang" { 7 } else { 5 };
        wait_until_marked(&mark, 60, |n| n >= expected);
        std::thread::sleep(Duration::from_millis(300));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until_marked(&mark, 10, |n| n == 0);
    }
}

#[test]
fn an_interrupt_does_not_wait_for_workers() {
    let Some(python) = python() else { return };
    for drive in ["drive=lockstep", "drive=first_come"] {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("RL_TEST_MARK={drive}-{}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        let id = "gym:tests.worker_envs:Faulty-hang-v0";
        let mut command = rl(&["train", id, "--envs", "2", "--run-dir", "run", "--set", drive, "--python", text(&python)]);
        let child = command.env(name, value).env("PYTHONPATH", with_tests()).current_dir(dir.path()).spawn().unwrap();
        // Both environments hang, each with a program that it has started.
        wait_until_marked(&mark, 60, |n| n >= 7);
        let begin = Instant::now();
        program::signal(child.id(), "-INT");
        let output = program::wait(child);
        assert_eq!(output.status.code(), Some(130), "{drive}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(begin.elapsed() < Duration::from_secs(10), "{drive} takes {:?}", begin.elapsed());
        checkpoint::config(&program::newest(&dir.path().join("run")), false).unwrap();
        wait_until_marked(&mark, 10, |n| n == 0);
    }
}

#[test]
fn an_environment_that_cannot_be_drawn_says_why() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let rl = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        let mut command = rl(&[&args[..], &["--python", text(&python)]].concat());
        finish(command.env("PYTHONPATH", with_tests()).current_dir(dir.path()))
    };
    let small = "--envs 2 --steps 64 --set ppo.n_steps=32 --set hidden=[8] --set eval_episodes=1 --run-dir run";
    let output = rl(&format!("train gym:tests.worker_envs:Undrawn-v0 {small}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = rl("watch run --gif run.gif");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ModuleNotFoundError in render: No module named 'pygame'; it is not drawn"), "{said}");
    let output = rl("watch run --episodes 2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("fault 1") && !said.contains("fault 2"), "{said}");
}

#[test]
fn a_run_is_evaluated_and_resumed_with_its_arguments() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = finish(rl(args).args(["--python", text(&python)]).current_dir(dir.path()));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{args:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let kwargs = r#"env.kwargs={"is_slippery": false}"#;
    let settings = ["ppo.n_steps=32", "ppo.batch_size=64", "hidden=[8]", "eval_episodes=4", kwargs];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    run(&[&["train", "gym:FrozenLake-v1", "--steps", "512"], &settings[..]].concat());
    let path = "runs/gym-FrozenLake-v1-ppo-seed0-1";
    assert!(run(&["eval", path, "--episodes", "3"]).contains("3 greedy episodes"));
    for args in [&["eval", path][..], &["train", "--resume", path, "--steps", "1024"]] {
        let output = finish(rl(args).args(["--python", "/bin/false"]).current_dir(dir.path()));
        assert_eq!(output.status.code(), Some(5), "a worker that ends: {}", String::from_utf8_lossy(&output.stderr));
    }
    run(&["train", "--resume", path, "--steps", "1024"]);
    let config = fs::read_to_string(dir.path().join(path).join("config.toml")).unwrap();
    assert!(config.contains("is_slippery"), "{config}");
    let rate = run(&["bench", "env", "gym:FrozenLake-v1", "--envs", "4", "--seconds", "0.1", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&rate).unwrap()["env"], "gym:FrozenLake-v1");
}

/// Program of an example, if its language is there.
fn example(program: &str, dir: &Path) -> Option<String> {
    let source = format!("{}/examples/worker/walk.{program}", env!("CARGO_MANIFEST_DIR"));
    let runs = |command: &str| Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success());
    match program {
        "c" => runs("cc").then(|| {
            let walk = dir.join("walk");
            assert!(Command::new("cc").args(["-O2", "-Wall", "-Werror", "-o", text(&walk), &source]).status().unwrap().success());
            text(&walk).into()
        }),
        "js" => runs("node").then(|| format!("node {source}")),
        _ => runs("python3").then(|| format!("python3 {source}")),
    }
}

#[test]
fn an_example_in_each_language_walks_the_same_line() {
    let (dir, n) = (tempfile::tempdir().unwrap(), 5);
    for program in ["py", "c", "js"] {
        let Some(command) = example(program, dir.path()) else {
            eprintln!("skipped: no language for walk.{program}");
            continue;
        };
        let entry = exec(&command, &WorkerOptions::default()).unwrap();
        let mut envs = entry.slices(n, 1, 1).unwrap().remove(0);
        let mut random = RandomActions::new(2, n, envs.action_space());
        let mut steps = Steps::new(&*envs);
        envs.reset(1, &mut steps).unwrap();
        let mut walks: Vec<(i64, u32)> = (0..n as u32).map(|i| (i64::from(env_seed(1, i, 0)) % 3 - 1, 0)).collect();
        let places = |steps: &Steps| (0..n).map(|i| numbers(&steps.obs, i, 1)[0] as i64).collect::<Vec<_>>();
        assert_eq!(places(&steps), walks.iter().map(|walk| walk.0).collect::<Vec<_>>(), "{program}");
        let (mut ends, mut cuts) = (0, 0);
        for _ in 0..400 {
            random.fill(steps.actions.as_mut_slice());
            let Actions::Discrete(actions) = steps.actions.clone() else { unreachable!() };
            envs.step(&mut steps).unwrap();
            assert!(envs.faults().is_empty(), "{:?}", envs.faults());
            for (i, (place, t)) in walks.iter_mut().enumerate() {
                *place += if actions[i] == 1 { 1 } else { -1 };
                *t += 1;
                let (over, cut) = (place.abs() == 5, *t == 50 && place.abs() < 5);
                assert_eq!((steps.terminated[i] == 1, steps.truncated[i] == 1), (over, cut), "{program}");
                assert_eq!(steps.rewards[i], f32::from(*place == 5), "{program}");
                ends += u32::from(over);
                cuts += u32::from(cut);
                if over || cut {
                    assert_eq!(numbers(&steps.final_obs, i, 1), [*place as f64], "{program}");
                    (*place, *t) = (0, 0);
                }
            }
            assert_eq!(places(&steps), walks.iter().map(|walk| walk.0).collect::<Vec<_>>(), "{program}");
        }
        assert!(ends > 20 && cuts > 0, "{program}: {ends} ends, {cuts} cuts");
        let mut obs = [9.0];
        envs.restart(3, rl_envs::ObsSliceMut::F32(&mut obs), None).unwrap();
        assert_eq!(obs, [0.0], "{program}");
        let output = finish(
            rl(&["train", &format!("exec:{command}"), "--steps", "256", "--set", "ppo.n_steps=32", "--set", "ppo.batch_size=64"])
                .current_dir(dir.path()),
        );
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_clause_that_an_environment_breaks_is_named() {
    if python().is_none() {
        return;
    }
    let failed = |id: &str| {
        let checks = open(id, &json!({})).check().unwrap();
        checks.into_iter().filter(|check| check.failed()).map(|check| check.name).collect::<Vec<_>>()
    };
    for id in ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Unfit-none-v0"] {
        assert_eq!(failed(id), [""; 0], "{id}");
    }
    for how in ["finite", "observations_in_space", "episodes_end", "batch"] {
        assert_eq!(failed(&format!("Unfit-{how}-v0")), [how]);
    }
    assert!(failed("Unfit-steps-v0").contains(&"steps"));
    assert!(failed("Unfit-same_seed-v0").contains(&"same_seed"));
}
