//! Environments in worker processes: the steps of Gymnasium's own loop; faults.
//!
//! Needs a Python with Gymnasium: `RL_PYTHON`, or `python3`. `RL_REQUIRE_GYM=1` turns a skip into a failure.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{finish, python, python_with, rl, signal, text, until_it_trains, wait};
use rl_envs::catalog::{Entry, Limits};
use rl_envs::{
    ActionSpace, Actions, BlockingEnv as _, Dtype, MakeBlocking, ObsRows, Purpose, RandomActions, Rng, Space, Spaces, Steps,
    VecEnv,
};
use rl_runtime::budget::Budget;
use rl_runtime::checkpoint;
use rl_runtime::config::{Layers, PRESETS};
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::Training;
use rl_runtime::worker::{GYM, WorkerOptions, env_seed, exec, gym};
use rl_runtime::{Algo, AlgoConfig};
use serde_json::{Value, json};

/// Opens an environment of Gymnasium, or of `worker_envs.py`.
pub(super) fn open(id: &str, kwargs: &Value) -> Entry {
    try_open(id, kwargs).unwrap()
}

fn try_open(id: &str, kwargs: &Value) -> Result<Entry, rl_runtime::Error> {
    let is_own = ["Spaces", "Faulty", "Multi", "Slow", "Table", "Unfit", "wrapped"].iter().any(|own| id.starts_with(own));
    let id = if is_own { format!("tests.worker_envs:{id}") } else { id.into() };
    gym(&id, &WorkerOptions { kwargs: kwargs.to_string(), python: python(), ..WorkerOptions::default() })
}

/// Opens what a callable of `worker_envs.py` makes.
fn open_own(name: &str, kwargs: &Value) -> Result<Entry, rl_runtime::Error> {
    try_open(&format!("tests.worker_envs:{name}"), kwargs)
}

pub(super) fn numbers(rows: &ObsRows, i: usize, d: usize) -> Vec<f64> {
    match rows {
        ObsRows::F32(rows) => rows[i * d..][..d].iter().map(|&x| f64::from(x)).collect(),
        ObsRows::U8(rows) => rows[i * d..][..d].iter().map(|&x| f64::from(x)).collect(),
    }
}

/// Flattens an observation as Gymnasium does: a one-hot vector for each category.
fn flat(space: &Space, row: &[f64]) -> Vec<f64> {
    let categories = space.categories();
    let of = |(i, &x): (usize, &f64)| match categories.get(i) {
        None | Some(0) => vec![x],
        Some(&n) => (0..n).map(|category| f64::from(u8::from(f64::from(category) == x))).collect(),
    };
    row.iter().enumerate().flat_map(of).collect()
}

pub(super) fn f32s(rows: &ObsRows, i: usize, d: usize) -> Vec<f32> {
    numbers(rows, i, d).into_iter().map(|x| x as f32).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn a_worker_takes_the_steps_of_gymnasium_s_own_loop_bit_for_bit() {
    let Some(python) = python() else { return };
    // A game of Pong may take longer.
    let atari = python_with("ale_py, cv2", "RL_REQUIRE_GYM").map(|_| ("ALE/Pong-v5", 30));
    for (id, n_steps) in atari.into_iter().chain([
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
        ("Spaces-counts-v0", 40),
        ("Spaces-board-v0", 40),
        ("Spaces-bytes-v0", 40),
        ("Spaces-among-v0", 40),
    ]) {
        let (entry, n, seed) = (open(id, &json!({})), 3, 11);
        let mut envs = entry.slices(n, 1, 1).unwrap().remove(0);
        let (space, d, a) = (entry.spaces().obs, envs.observation_space().len(), envs.action_space().len());
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
        assert!(ends > 0 || ["Acrobot-v1", "Taxi-v4", "ALE/Pong-v5"].contains(&id), "{id}: episodes end");
        assert_eq!(steps.masks.is_some(), id == "Taxi-v4");
    }
}

#[test]
fn categories_cross_the_socket_as_numbers() {
    if python().is_none() {
        return;
    }
    let space = |id: &str, kwargs| open(id, &kwargs).spaces().obs;
    assert_eq!((space("FrozenLake-v1", json!({})).len(), space("FrozenLake-v1", json!({})).n_inputs()), (1, 16));
    // A tuple of Discrete(3) and MultiBinary(2), MultiDiscrete([2, 3]), a box of 2 x 2.
    assert_eq!(space("Spaces-mixed-v0", json!({})).categories(), [3, 0, 0, 2, 3, 0, 0, 0, 0]);
    let (entry, n) = (open("Table", &json!({"n": 100_000})), 3);
    assert_eq!((entry.spaces().obs.categories(), entry.spaces().obs.high()), (&[100_000][..], &[99_999.0][..]));
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
    let budget = Budget::training(&layers.resolve(&entry, Algo::PPO).unwrap(), &entry).bytes().unwrap();
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
    let Some(python) = python().filter(|_| crate::harness::can_compare()) else { return };
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
pub(super) fn with_tests() -> String {
    with_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// Search path of Python with `dir` in front.
fn with_dir(dir: &Path) -> String {
    format!("{}:{}", text(dir), std::env::var("PYTHONPATH").unwrap_or_default())
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
        let actions = entry.spaces().actions;
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
    assert!(refused(Algo::DQN, &[]).contains("actions, but gym:tests.worker_envs:Multi-discrete-v0's are several at once"));
    for (algo, name) in [(Algo::PPO, "ppo"), (Algo::A2C, "a2c")] {
        let few = ["steps=8192", "hidden=[16]", "eval_episodes=4"];
        let own = if algo == Algo::PPO {
            ["ppo.n_steps=64", "ppo.batch_size=64", "ppo.learning_rate=0.01"]
        } else {
            ["a2c.n_steps=8", "a2c.learning_rate=0.01", "log_interval=100"]
        };
        let config = resolve(algo, &[few, own].concat()).unwrap();
        let mut training = Training::builder(&config, &entry).build().unwrap();
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
        let mut random = RandomActions::new(1, 5, &entry.spaces().actions);
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

/// Everything that a step of one environment writes, as bits.
type Row = (Vec<f64>, f32, [u8; 2], Option<Vec<f64>>, Vec<u8>);

/// Plays environments with large observations in batches of `sizes`.
///
/// Restarts what fails. The entry keeps the processes.
fn play_large(entry: &Entry, sizes: &[usize]) -> Vec<Vec<Row>> {
    let mut first = 0;
    let mut batches: Vec<_> = sizes
        .iter()
        .map(|&size| {
            first += size;
            let envs = entry.slice(first - size..first).unwrap();
            let (steps, random) = (Steps::new(&*envs), RandomActions::slice(1, first - size..first, envs.action_space()));
            (envs, steps, random, first - size)
        })
        .collect();
    let d = entry.spaces().obs.len();
    let mut rows = vec![Vec::new(); first];
    for t in 0..40 {
        let mut played = rows.iter_mut();
        for (envs, steps, random, first) in &mut batches {
            if t == 0 {
                envs.reset(3, steps).unwrap();
            } else {
                random.fill_legal(steps);
                envs.step(steps).unwrap();
            }
            let restart_failed = |envs: &mut Box<dyn VecEnv>, steps: &mut Steps| {
                for i in envs.faults().iter().map(|(i, _)| *i).collect::<Vec<_>>() {
                    let obs = rl_envs::visit!(Obs, steps.obs.as_mut(), |obs| &mut obs[i * d..(i + 1) * d]);
                    let [masks, _] = steps.masks.as_mut().unwrap();
                    envs.restart(i, obs, Some(&mut masks[3 * i..3 * i + 3])).unwrap();
                }
            };
            restart_failed(envs, steps);
            // Every second environment takes another step alone.
            for i in (0..envs.n_envs()).filter(|i| t % 5 == 4 && (*first + i) % 2 == 0) {
                let [masks, _] = steps.masks.as_ref().unwrap();
                let Actions::Discrete(actions) = &mut steps.actions else { unreachable!() };
                actions[i] = masks[3 * i..3 * i + 3].iter().position(|&legal| legal == 1).unwrap() as u32;
                envs.repeat_step(i, steps.view_mut().env(i)).unwrap();
                restart_failed(envs, steps);
            }
            for i in 0..envs.n_envs() {
                let [masks, last_masks] = steps.masks.as_ref().unwrap();
                let last = steps.done(i).then(|| numbers(&steps.final_obs, i, d));
                let mask = [&masks[3 * i..3 * i + 3], if last.is_some() { &last_masks[3 * i..3 * i + 3] } else { &[] }].concat();
                let flags = [steps.terminated[i], steps.truncated[i]];
                played.next().unwrap().push((numbers(&steps.obs, i, d), steps.rewards[i], flags, last, mask));
            }
        }
    }
    rows
}

#[test]
fn large_observations_in_memory_are_those_that_cross_a_socket() {
    if python().is_none() {
        return;
    }
    for kind in ["numbers", "picture"] {
        let entry = open_own("Large", &json!({"kind": kind})).unwrap();
        let sent = play_large(&entry, &[1, 1, 1, 2]);
        assert!(sent.iter().flatten().filter(|row| row.3.is_some()).count() > 20, "{kind}: few episodes end");
        // The processes are kept, and have memory of another length or none each time.
        for sizes in [&[5][..], &[3, 2], &[1, 4], &[2, 3], &[1, 1, 1, 1, 1], &[5]] {
            assert!(play_large(&entry, sizes) == sent, "{kind}, {sizes:?}");
        }
        if cfg!(target_os = "linux") {
            // The process of five environments is idle, and its memory kept.
            let files = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|file| fs::read_link(file.path()).ok());
            assert!(files.filter(|file| text(file).contains("memfd:observations")).count() > 0, "{kind}: no worker has memory");
        }
    }
}

#[test]
fn a_worker_with_large_observations_is_replaced() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let play = |name: &str, sizes: &[usize]| {
        let once = text(&dir.path().join(name)).to_string();
        play_large(&open_own("Large", &json!({"kind": "picture", "once": once})).unwrap(), sizes)
    };
    let (in_memory, sent) = (play("memory", &[3]), play("socket", &[1]));
    assert!(["memory", "socket"].iter().all(|name| dir.path().join(name).exists()), "no worker was killed");
    // Before the fault of its first environment, and with the seeds of the restart after it.
    assert!(in_memory[0] == sent[0], "the first environment plays on as behind a socket");
}

#[test]
fn environments_that_answer_on_their_own_take_the_steps_of_those_in_lock_step() {
    if python().is_none() {
        return;
    }
    // A process has large observations in memory, one environment's from the third case of them on.
    let large = [1, 2, 3].map(|times| ("tests.worker_envs:Large", json!({"kind": "numbers", "times": times})));
    for (id, kwargs) in ["CartPole-v1", "Pendulum-v1", "Taxi-v4"].map(|id| (id, json!({}))).into_iter().chain(large) {
        let (entry, n, seed) = (open(id, &kwargs), 2, 7);
        let Spaces { obs: space, actions } = entry.spaces();
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
        for t in 0..if d > 1000 { 60 } else { 300 } {
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
fn a_pause_of_the_program_is_no_hang_of_its_environments() {
    let Some(python) = python() else { return };
    for drive in ["lockstep", "first_come"] {
        let dir = tempfile::tempdir().unwrap();
        let drive = format!("drive={drive}");
        let settings = ["timeout_s=1", "ppo.n_steps=64", "ppo.batch_size=64", "eval_episodes=1", "hidden=[4]", &drive];
        let mut command =
            rl(&["train", "gym:tests.worker_envs:Slow-sleeps-v0", "--envs", "2", "--steps", "1024", "--run-dir", "run"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting])).current_dir(dir.path());
        let child = command.env("RL_PYTHON", &python).env("PYTHONPATH", with_tests()).spawn().unwrap();
        let id = child.id();
        until_it_trains(id);
        signal(id, "-STOP");
        std::thread::sleep(Duration::from_millis(2500));
        signal(id, "-CONT");
        let output = wait(child);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !error.contains("warning"), "{drive}: {error}");
    }
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
        ("shape", "TypeError in step: step() returned array([20.], dtype=float32) (ndarray) as observation; it must be in Box("),
        ("reward", "TypeError in step: step() returned None (NoneType) as reward; it must be a number"),
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
pub(super) fn train(id: &str, kwargs: &Value, settings: &[&str], dir: &Path) -> (u64, Vec<f32>) {
    let entry = open(id, kwargs);
    let mut layers = Layers::default();
    let small = ["steps=480", "n_envs=4", "threads=2", "hidden=[8]", "eval_episodes=3", "ppo.n_steps=40", "ppo.batch_size=40"];
    small.iter().chain(settings).for_each(|setting| layers.add_assignment(setting));
    let config = layers.resolve(&entry, Algo::PPO).unwrap();
    let mut training = Training::builder(&config, &entry).build().unwrap();
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
    let refused_with = |more: &[&str], id: &str, python: &Path, code: i32, what: &str| {
        let output = finish(rl(&["train", id, "--steps", "100", "--python", text(python)]).args(more).current_dir(dir.path()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(what), "{id}, {}: {said}", output.status);
        assert!(!dir.path().join("runs").exists());
    };
    let refused = |id: &str, python: &Path, code: i32, what: &str| refused_with(&[], id, python, code, what);
    refused("gym:CartPole-v1", &dir.path().join("none"), 2, "name one with --python or the variable RL_PYTHON");
    let hello =
        r#"{"protocol":2,"observation":{"dtype":"f32","shape":[1],"low":[0],"high":[1]},"action":{"kind":"discrete","n":2}}"#;
    let greet = format!("printf '\\000\\000\\000\\240\\{:03o}\\000\\000\\000%s' '{hello}' >&0", hello.len());
    let speaks = "it speaks version 2 of the protocol, this program version 1";
    refused("gym:CartPole-v1", &script("other", &greet), 2, speaks);
    // One that has ended, and left more unread than a socket holds.
    let long = dir.path().join("long.toml");
    fs::write(&long, format!("[env]\nkwargs = '{{\"name\": \"{}\"}}'\n", "x".repeat(1_000_000))).unwrap();
    refused_with(&["--config", text(&long), "--trust"], "gym:CartPole-v1", &script("deaf", &greet), 2, speaks);
    refused("gym:CartPole-v1", &script("garbage", "echo Hello there >&0"), 5, "its answer begins with \"Hello there\\n\"");
    refused("gym:CartPole-v1", &script("silent", "echo what a pity >&2; exit 3"), 5, "has ended: exit status: 3\nwhat a pity");
    let Some(python) = python() else { return };
    let lacks = script("lacks", &format!("exec {} -S -E \"$@\"", text(&python)));
    refused("gym:CartPole-v1", &lacks, 2, "-m pip install gymnasium");
    refused("gym:CartPool-v1", &python, 2, "Near names: CartPole-v1");
    refused("gym:no_such_module:Env-v0", &python, 2, "No module named 'no_such_module'");
    refused("gym:No/Such-v0", &python, 2, "The id of a package is gym:MODULE:No/Such-v0.");
    refused("gym:json:make", &python, 2, "The module json has no callable make.");
    let module = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let with = |path: &str| {
        let path = dir.path().join(path);
        script(
            &format!("with-{}", path.file_name().unwrap().display()),
            &format!("PYTHONPATH={} exec {} \"$@\"", with_dir(&path), text(&python)),
        )
    };
    module("old/gymnasium/__init__.py", "__version__ = '0.28.1'");
    refused("gym:CartPole-v1", &with("old"), 2, "Gymnasium 0.28.1 is too old; 0.29 or later is needed");
    module("broken/ale_py.py", "raise OSError('no library')");
    refused("gym:No/Such-v0", &with("broken"), 2, "The package ale_py cannot be imported: no library.");
}

/// Runs the program in `dir` for a Python.
fn run_in(dir: &Path, python: &Path, args: &[&str]) -> (String, String) {
    let output = finish(rl(args).args(["--python", text(python)]).current_dir(dir));
    let [said, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {said}{errors}");
    (said, errors)
}

const WALK: &str = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n";

#[test]
fn the_current_directory_is_imported_from_for_a_module_that_is_named_only() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    for name in ["json", "struct", "gymnasium", "numpy"] {
        fs::write(dir.path().join(format!("{name}.py")), "raise SystemExit('it is not the library')\n").unwrap();
    }
    fs::write(dir.path().join("walk.py"), WALK).unwrap();
    for id in ["gym:CartPole-v1", "gym:walk:make"] {
        run_in(dir.path(), &python, &["bench", "env", id, "--envs", "1", "--seconds", "0.05"]);
    }
}

#[test]
fn an_id_is_found_in_the_package_that_registers_it() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let registers = "import gymnasium\ngymnasium.register('plugged/Pole-v0', lambda: gymnasium.make('CartPole-v1'))\n";
    fs::write(dir.path().join("highway_env.py"), registers).unwrap();
    let id = "gym:plugged/Pole-v0";
    let output = finish(
        rl(&["bench", "env", id, "--envs", "1", "--seconds", "0.05", "--python", text(&python)])
            .env("PYTHONPATH", with_dir(dir.path())),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_run_remembers_where_its_environment_s_module_is() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (project, elsewhere) = (dir.path().join("project"), dir.path().join("elsewhere"));
    [&project, &elsewhere].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(project.join("walk.py"), WALK).unwrap();
    let small = ["--steps", "64", "--envs", "2", "--set", "ppo.n_steps=32", "--set", "hidden=[8]", "--set", "eval_episodes=1"];
    run_in(&project, &python, &[&["train", "gym:walk:make", "--run-dir", "run"], &small[..]].concat());
    let run = project.join("run");
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    let path = format!("path = \"{}\"", project.canonicalize().unwrap().display());
    assert!(config.contains(&path), "{config}");
    for args in [vec!["eval", text(&run), "--episodes", "1"], vec!["train", "--resume", text(&run), "--steps", "128"]] {
        let (_, errors) = run_in(&elsewhere, &python, &args);
        assert!(errors.contains("note: the module of gym:walk:make is that in "), "{errors}");
    }
    // A project that has moved is found from its new place.
    let moved = dir.path().join("moved");
    fs::rename(&project, &moved).unwrap();
    run_in(&moved, &python, &["eval", "run", "--episodes", "1"]);
    let set = ["--set", "env.path=../moved"];
    run_in(&elsewhere, &python, &[&["train", "gym:walk:make", "--run-dir", "run"], &small[..], &set].concat());
    run_in(dir.path(), &python, &["eval", "elsewhere/run", "--episodes", "1"]);
    let output = finish(rl(&["train", "cartpole", "--set", "env.path=."]).current_dir(&elsewhere));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("env.path has no effect: cartpole names no module"), "{said}");
}

#[test]
fn bytes_that_are_no_picture_are_learnt_from_as_numbers() {
    if python().is_none() {
        return;
    }
    let bounds = |name: &str| {
        let space = open(name, &json!({})).spaces().obs;
        (space.dtype(), space.shape().to_vec(), space.low()[0], space.high()[0])
    };
    assert_eq!(bounds("Spaces-counts-v0"), (Dtype::F32, vec![4], 0.0, 3.0));
    assert_eq!(bounds("Spaces-board-v0"), (Dtype::F32, vec![6], 0.0, 7.0));
    assert_eq!(bounds("Spaces-bytes-v0"), (Dtype::F32, vec![5], 0.0, 255.0));
    assert_eq!(bounds("Spaces-image-v0"), (Dtype::U8, vec![3, 6, 5], 0.0, 255.0));
    let among = open("Spaces-among-v0", &json!({})).spaces().obs;
    assert_eq!((among.high()[1], among.high()[2]), (3.0, 1.0), "a picture among numbers is scaled");
    let dir = tempfile::tempdir().unwrap();
    let learnt = |dtype: &str| train("tests.worker_envs:Counts", &json!({"dtype": dtype}), &[], &dir.path().join(dtype));
    let floats = learnt("float32");
    assert_eq!(learnt("uint8"), floats);
    assert_eq!(learnt("int64"), floats);
}

#[test]
fn an_action_is_inside_its_space_in_the_space_s_own_type() {
    if python().is_none() {
        return;
    }
    let ends = [("-0.1", "0.7"), ("0.1", "0.30000001"), ("0.1", "inf"), ("-inf", "-0.1"), ("-inf", "inf")];
    for (i, dtype) in ["float16", "float32", "float64"].into_iter().enumerate() {
        // Every other pair of a bound and a shape: each starts two workers.
        for (j, shape) in [json!([]), json!([2, 3])].into_iter().enumerate() {
            for (low, high) in ends.into_iter().skip((i + j) % 2).step_by(2) {
                let kwargs = json!({"dtype": dtype, "shape": shape, "low": low, "high": high});
                let entry = open_own("Bounded", &kwargs).unwrap();
                let ActionSpace::Continuous { low, high } = entry.spaces().actions else { unreachable!() };
                let mut envs = entry.slices(2, 1, 1).unwrap().remove(0);
                let mut steps = Steps::new(&*envs);
                envs.reset(0, &mut steps).unwrap();
                for ends in [&low, &high] {
                    let actions = ends.iter().map(|end| if end.is_finite() { *end } else { end.signum() * 9.0 });
                    steps.actions = Actions::Continuous(actions.cycle().take(2 * ends.len()).collect());
                    envs.step(&mut steps).unwrap();
                    assert!(envs.faults().is_empty(), "{kwargs}: {:?}", envs.faults());
                }
            }
        }
    }
}

#[test]
fn what_an_environment_returns_is_taken_or_refused_in_a_sentence() {
    if python().is_none() {
        return;
    }
    let answered = |what: &str| {
        let mut envs = open_own("Answers", &json!({"what": what})).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        (0..if what == "four" { 1 } else { 2 }).for_each(|_| envs.step(&mut steps).unwrap());
        (envs.faults().first().map(|(_, what)| what.clone()), steps)
    };
    for what in ["reward_of_shape_1", "reward_of_shape_0", "numpy", "zeros", "list", "list_of_flag"] {
        let (fault, steps) = answered(what);
        let flags = (&steps.terminated[..], &steps.truncated[..]);
        assert_eq!((fault, &steps.rewards[..], flags), (None, &[2.0][..], (&[0][..], &[0][..])), "{what}");
        assert_eq!(steps.obs, ObsRows::F32(vec![0.5; 2]), "{what}");
    }
    for (what, sentence) in [
        ("two_rewards", "step() returned array([1., 2.]) (ndarray) as reward; it must be a number"),
        ("no_reward", "step() returned None (NoneType) as reward; it must be a number"),
        ("reward_in_words", "step() returned '1' (str) as reward; it must be a number"),
        ("rewards_of_agents", "step() returned {'a': 1.0} (dict) as reward; it must be a number"),
        ("flag_in_words", "step() returned 'False' (str) as truncated; it must be True or False"),
        ("two_flags", "step() returned array([ True, False]) (ndarray) as terminated; it must be True or False"),
        ("flag_of_2", "step() returned 2 (int) as terminated; it must be True or False"),
        ("no_obs", "step() returned None (NoneType) as observation; it must be in Box(-1.0, 1.0, (2,), float32)"),
        (
            "obs_of_shape_1_2",
            "(ndarray) as observation; it must be in Box(-1.0, 1.0, (2,), float32) (ValueError: float32 of shape (1, 2)",
        ),
        ("last_obs", "step() returned array([0., 0., 0.]) (ndarray) as observation"),
        (
            "four",
            "step() returned 4 values; it must return 5: observation, reward, terminated, truncated, info; environments of the old",
        ),
    ] {
        let fault = answered(what).0.unwrap();
        assert!(fault.contains(sentence) && !fault.contains('\n'), "{what}: {fault}");
    }
    let old = json!({"what": ""});
    for (name, kwargs, sentence) in [
        ("OldReset", &old, "reset() takes no seed; it must be reset(seed=None, options=None); environments of the old Gym"),
        (
            "ResetOfObs",
            &old,
            "reset() returned array([0., 0.], dtype=float32) (ndarray); it must return observation and info, a dict",
        ),
        ("Agents", &json!({}), "an environment of PettingZoo for several agents (parallel API), and rl trains one; wrap it in"),
        ("vector", &json!({}), "it is a vector of environments (SyncVectorEnv); rl makes copies of a single one"),
        ("nothing", &json!({}), "it makes a NoneType, which is no environment of Gymnasium: it has no observation_space"),
        ("Spaces-words-v0", &json!({}), "Text(1, 8, "),
        ("Spaces-text-v0", &json!({}), "leave out 'words' by --set env.keys=place,speed"),
    ] {
        let error = open_own(name, kwargs).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(sentence), "{name}: {error}");
    }
    open_own("without_words", &json!({})).unwrap();
}

#[test]
fn masks_come_by_each_convention_or_are_refused() {
    if python().is_none() {
        return;
    }
    for (name, how) in [("Masked", "info"), ("Masked", "method"), ("masked_in_a_wrapper", ""), ("Masked", "observation")] {
        let kwargs = if how.is_empty() { json!({}) } else { json!({"how": how}) };
        let entry = open_own(name, &kwargs).unwrap();
        assert_eq!(entry.spaces().obs.len(), 1, "{how}: a mask is no observation");
        let mut envs = entry.slices(2, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        for t in 0..12 {
            let legal: Vec<u8> = (0..3).map(|action| u8::from(action == t % 5 % 3)).collect();
            assert_eq!(steps.masks.as_ref().unwrap()[0], legal.repeat(2), "{name} {how}, step {t}");
            steps.actions = Actions::Discrete(vec![t % 5 % 3; 2]);
            envs.step(&mut steps).unwrap();
            assert!(envs.faults().is_empty(), "{name} {how}: {:?}", envs.faults());
        }
    }
    let refused = open_own("Masked", &json!({"how": "several"})).unwrap_err();
    assert!(refused.to_string().contains("it has masks (info['action_mask']) of MultiDiscrete([3 2]), but only"), "{refused}");
    for (how, sentence) in [
        ("late", "step() returned info['action_mask'], which the first reset() did not: return it from both"),
        ("lost", "step() returned None (NoneType) as info['action_mask']; it must be 3 numbers, 1 for each legal action"),
    ] {
        let mut envs = open_own("Masked", &json!({"how": how})).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        for t in 0..2 {
            steps.actions = Actions::Discrete(vec![t]);
            envs.step(&mut steps).unwrap();
            if !envs.faults().is_empty() {
                break;
            }
        }
        assert!(envs.faults()[0].1.contains(sentence), "{how}: {:?}", envs.faults());
    }
}

#[test]
fn an_environment_s_simulator_starts_processes_as_without_a_worker() {
    if python().is_none() {
        return;
    }
    for method in ["fork", "spawn", "forkserver"] {
        let mut envs = open_own("Nested", &json!({"method": method})).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(0, &mut steps).unwrap();
        envs.step(&mut steps).unwrap();
        assert!(envs.faults().is_empty(), "{method}: {:?}", envs.faults());
        assert_eq!(steps.obs, ObsRows::F32(vec![4.0]), "{method}");
    }
}

#[test]
fn an_environment_sees_neither_variables_about_drawing_nor_children_of_its_worker() {
    if python().is_none() {
        return;
    }
    let mut envs = open_own("Looks", &json!({})).unwrap().slices(1, 1, 1).unwrap().remove(0);
    let mut steps = Steps::new(&*envs);
    envs.reset(0, &mut steps).unwrap();
    envs.step(&mut steps).unwrap();
    let own = std::env::vars_os().filter(|(name, _)| text(name.as_ref()).starts_with("SDL_")).count();
    assert_eq!(steps.obs, ObsRows::F32(vec![own as f32]));
}

#[test]
fn only_what_takes_a_render_mode_is_given_one() {
    if python().is_none() {
        return;
    }
    for name in ["wrapped", "Counts", "drawn", "passes_on", "Undrawn-v0"] {
        let kwargs = if name == "Counts" { r#"{"dtype": "uint8"}"# } else { "" };
        let options = WorkerOptions { kwargs: kwargs.into(), render: true, python: python(), ..WorkerOptions::default() };
        gym(&format!("tests.worker_envs:{name}"), &options).unwrap();
    }
}

#[test]
fn presets_of_gymnasium_s_environments_are_allowed() {
    if python().is_none() {
        return;
    }
    let presets: Vec<_> = PRESETS.iter().filter(|(env, ..)| env.starts_with(GYM)).collect();
    assert_eq!(presets.len(), 13);
    for (env, algo, _) in presets {
        // Spaces of the same kind, from environments that Gymnasium has without further packages.
        let like = match *env {
            env if env.contains("ALE") => "Spaces-frame-v0",
            "gym:LunarLander-v3" => "CartPole-v1",
            _ => "Pendulum-v1",
        };
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
        std::thread::sleep(Duration::from_millis(20));
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
        // The program, two workers, their keepers, and the program that an environment that hangs has started.
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
        let is_sleep = |pid: &String| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
        wait_until_marked(&mark, 60, |_| marked(&mark).iter().filter(|pid| is_sleep(pid)).count() == 2);
        let begin = Instant::now();
        crate::harness::signal(child.id(), "-INT");
        let output = crate::harness::wait(child);
        assert_eq!(output.status.code(), Some(130), "{drive}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(begin.elapsed() < Duration::from_secs(10), "{drive} takes {:?}", begin.elapsed());
        checkpoint::config(&crate::harness::newest(&dir.path().join("run")), false).unwrap();
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
    // The order is measured; a checkpoint has what was found.
    run(&[&["train", "gym:FrozenLake-v1", "--steps", "512", "--set", "drive=auto", "--run-dir", "auto"], &settings[..]].concat());
    run(&["eval", "auto", "--episodes", "3"]);
    run(&["train", "--resume", "auto", "--steps", "1024"]);
    for (drive, code) in [("auto", 0), ("lockstep", 2)] {
        let drive = format!("drive={drive}");
        let args = ["train", "--resume", "auto", "--steps", "1536", "--set", &drive, "--python", text(&python)];
        assert_eq!(finish(rl(&args).current_dir(dir.path())).status.code(), Some(code), "{drive}");
    }
    let sweep =
        "env = \"gym:FrozenLake-v1\"\nsteps = 256\neval_episodes = 1\nhidden = [4]\n[ppo]\nn_steps = 32\nbatch_size = 64\n";
    fs::write(dir.path().join("s.toml"), format!("{sweep}[sweep]\ntrials = 2\n[sweep.settings]\n\"ppo.n_epochs\" = [1, 2]\n"))
        .unwrap();
    run(&["sweep", "s.toml"]);
    assert!(!fs::read_to_string(dir.path().join("sweeps/s/trials.csv")).unwrap().contains("NaN"));
}

#[test]
fn a_bench_ends_with_the_fault_of_a_worker() {
    let env = format!("exec:{}", hostile_command("raise", ""));
    let output = finish(&mut rl(&["bench", "env", &env, "--envs", "2", "--seconds", "0.1"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(5) && said.contains("ValueError in step: always"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
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
    for how in ["finite", "observations_in_space", "episodes_end"] {
        assert_eq!(failed(&format!("Unfit-{how}-v0")), [how]);
    }
    assert_eq!(failed("Unfit-batch-v0"), ["batch", "restarts"], "environments that share a state");
    assert!(failed("Unfit-steps-v0").contains(&"steps"));
    assert!(failed("Unfit-same_seed-v0").contains(&"same_seed"));
}

#[test]
fn worker_processes_count_in_the_resources_and_the_memory_of_a_run() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let args =
        ["train", "gym:CartPole-v1", "--envs", "4", "--set", "workers=2", "--set", "ppo.n_steps=64", "--set", "hidden=[4]"];
    let rest = ["--steps", "256", "--set", "eval_episodes=1", "--run-dir", text(&run)];
    let with = |more: &[&str]| finish(rl(&[&args[..], &rest, more].concat()).env("RL_PYTHON", &python));
    let output = with(&["--dry-run", "--json"]);
    let said = String::from_utf8(output.stdout).unwrap();
    // With one core, a line warns of the workers.
    let event: Value = serde_json::from_str(said.lines().find(|line| line.contains("host_bytes")).unwrap()).unwrap();
    // A Python with numpy takes more than 10 MB.
    let workers = event["host_bytes"]["worker processes"].as_f64().unwrap();
    assert!((2e7..1e9).contains(&workers), "{event}");
    let output = with(&[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(": 256 env steps, 4 environments in 2 worker processes, "), "{said}");
    let csv = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let [names, .., last] = &csv.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>()[..] else {
        panic!("{csv}")
    };
    let rss: f64 = last[names.iter().position(|name| *name == "system/rss_mb").unwrap()].parse().unwrap();
    assert!(1e6 * rss > 0.8 * workers, "{rss} MB with workers of {workers} bytes");
}

#[test]
fn check_env_warns_of_what_trains_badly() {
    let Some(python) = python() else { return };
    let check = |id: &str, more: &[&str]| {
        let mut command = rl(&[&["check-env", id], more].concat());
        finish(command.env("RL_PYTHON", &python).env("PYTHONPATH", with_tests()))
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let output = check("gym:tests.worker_envs:Unscaled", &[]);
    let warnings = said(&output.stderr);
    assert!(output.status.success() && warnings.lines().count() == 3, "{warnings}");
    for expected in ["action 0 is from 5 to 10", "RescaleAction", "normalize_obs = true", "rewards reach "] {
        assert!(warnings.contains(expected), "{expected}: {warnings}");
    }
    let output = check("gym:tests.worker_envs:Grey", &["--json"]);
    let events = said(&output.stdout);
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let warning = events.find(|event| event["event"] == "warning").unwrap();
    assert!(warning["text"].as_str().unwrap().contains("pictures of 1 x 300 x 240 are 72,000 numbers each"), "{warning}");
    assert_eq!(said(&check("gym:CartPole-v1", &[]).stderr), "");
    let parts = "gym:tests.worker_envs:Spaces-parts-v0";
    assert!(check(parts, &["--set", "env.keys=arm,view", "--set", "env.time_limit=3"]).status.success());
    for (setting, expected) in [
        ("env.keys=arm,vew", "env.keys has 'vew'"),
        ("env.resize=-1", "env.resize is -1; it must be"),
        ("gamma=1", "--set gamma=1: no setting of gym:tests.worker_envs:Spaces-parts-v0; there are env.keys, "),
    ] {
        let output = check(parts, &["--set", setting]);
        let error = said(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(expected), "{setting}: {error}");
    }
}

/// Opens environments of `hostile_worker.py`, with short limits.
fn hostile(fault: &str, argument: &str, start: Duration, max_restarts: u32) -> Result<Entry, rl_runtime::Error> {
    let entry =
        exec(&hostile_command(fault, argument), &WorkerOptions { start_timeout: Some(start), ..WorkerOptions::default() })?;
    let limits = Limits { start, call: Duration::from_secs(1), close: Duration::from_secs(1), max_restarts };
    entry.batches().unwrap().limit(&limits);
    Ok(entry)
}

fn hostile_command(fault: &str, argument: &str) -> String {
    format!("python3 {}/tests/hostile_worker.py {fault} '{argument}'", env!("CARGO_MANIFEST_DIR"))
}

/// Settings of a small run.
const SMALL: &str = "--envs 2 --set hidden=[4] --set ppo.n_steps=8 --set ppo.batch_size=16 --set ppo.n_epochs=1 \
                     --set eval_episodes=1 --set max_restarts=0 --run-dir run";

/// Command that trains in `hostile_worker.py`.
fn train_hostile(fault: &str, argument: &str, more: &str, dir: &Path) -> Command {
    let env = format!("exec:{}", hostile_command(fault, argument));
    let mut command = rl(&["train", &env]);
    command.args(SMALL.split_whitespace()).args(more.split_whitespace()).current_dir(dir);
    command
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_worker_that_sends_or_reads_too_slowly_hangs_at_its_limit_which_is_named() {
    let begin = Instant::now();
    let error = hostile("slow_greeting", "", Duration::from_secs(1), 0).unwrap_err().to_string();
    assert!(error.contains("no answer within 1s (start_timeout_s)"), "{error}");
    for (fault, start, what) in
        [("slow", LONG, "within 1s (timeout_s)"), ("deaf", Duration::from_secs(3), "within 3s (start_timeout_s)")]
    {
        let mut envs = hostile(fault, "", start, 0).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        let error = envs.reset(0, &mut steps).and_then(|()| envs.step(&mut steps)).unwrap_err().to_string();
        assert!(error.contains(what), "{fault}: {error}");
    }
    assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
}

#[test]
fn each_byte_of_an_answer_is_checked_in_either_drive() {
    let masks = "a mask of its environment 0";
    for (fault, argument, what) in [
        ("flag", "2", "a flag is 2; it must be 0 or 1"),
        ("flag", "255", "a flag is 255; it must be 0 or 1"),
        ("begin", "", "the episode of its environment 0 ends without a step"),
        ("mask", "[1, 2]", masks),
        ("mask", "[0, 0]", masks),
    ] {
        let entry = hostile(fault, argument, LONG, 0).unwrap();
        let mut envs = entry.slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        let error = envs.reset(0, &mut steps).and_then(|()| envs.step(&mut steps)).unwrap_err().to_string();
        assert!(error.contains("does not speak the protocol") && error.contains(what), "{fault}: {error}");
        let MakeBlocking::F32(make) = entry.batches().unwrap().blocking().unwrap() else { unreachable!() };
        let (mut alone, mut rng, mut obs) = (make(), Rng::new(0, 0, 0, Purpose::Reset), [0.0]);
        let stepped = alone.reset(&mut rng, &mut obs).and_then(|()| alone.step(Actions::Discrete(0), &mut rng, &mut obs));
        let error = stepped.unwrap_err().to_string();
        assert!(error.contains("does not speak the protocol") && error.contains(what), "{fault}: {error}");
    }
}

#[test]
fn spaces_without_a_number_are_refused_with_the_greeting() {
    for (action, what) in [
        (json!({"kind": "box", "low": [0, 1], "high": [1, -1]}), "element 1 of an action has the bounds 1 and -1"),
        (json!({"kind": "box", "low": [1e60], "high": [1e60]}), "element 0 of an action has the bounds inf and inf"),
        (json!({"kind": "multi_discrete", "sizes": vec![1; 5000]}), "actions of 5000 choices; there may be 1 to 1024"),
        (json!({"kind": "multi_discrete", "sizes": [65536, 65536]}), "with 1 to 2^32 - 1 combinations"),
    ] {
        let error = hostile("action", &action.to_string(), LONG, 0).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(what), "{error}");
    }
    let wide = hostile("action", r#"{"kind": "multi_discrete", "sizes": [4294967295, 1]}"#, LONG, 0).unwrap();
    assert_eq!(wide.spaces().actions.len(), 1 << 32, "no overflow: the memory budget refuses it");
}

#[test]
fn parts_that_do_not_fit_are_refused_with_the_greeting() {
    for (parts, what) in [
        (json!([{"name": "a", "shape": [2]}]), "parts with 2 of 1 elements of an observation"),
        (json!([{"name": "a", "shape": [1, 1]}]), "a part \"a\" of the shape [1, 1]; numbers have 1 axis, pictures 3"),
        (json!([{"name": "a", "shape": [0]}, {"name": "b", "shape": [1]}]), "a part \"a\" of the shape [0]"),
        (json!([{"name": "a", "shape": [u64::MAX, 2, 1]}]), "a part \"a\" of the shape"),
        (json!([{"name": "a", "shape": [u64::MAX]}, {"name": "b", "shape": [u64::MAX]}]), "parts with"),
    ] {
        let error = hostile("observation", &json!({"parts": parts}).to_string(), LONG, 0).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(what), "{error}");
    }
    let two =
        json!({"shape": [2], "low": [0, 0], "high": [1, 1], "parts": [{"name": "a", "shape": [1]}, {"name": "a", "shape": [1]}]});
    let error = hostile("observation", &two.to_string(), LONG, 0).unwrap_err().to_string();
    assert!(error.contains("two parts of an observation with the name \"a\""), "{error}");
    let picture = json!({
        "shape": [2], "low": [0, 0], "high": [1, 1], "categories": [0, 2], "parts": [{"name": "a", "shape": [1, 1, 2]}]
    });
    let error = hostile("observation", &picture.to_string(), LONG, 0).unwrap_err().to_string();
    assert!(error.contains("categories in the picture \"a\""), "{error}");
    let bytes = json!({"dtype": "u8", "scale": 0.0});
    let error = hostile("observation", &bytes.to_string(), LONG, 0).unwrap_err().to_string();
    assert!(error.contains("bytes with the scale 0; it is above 0 and at most 1"), "{error}");
}

#[test]
fn an_exception_that_comes_again_after_a_restart_ends_the_run() {
    let mut envs = hostile("raise", "", LONG, 1000).unwrap().slices(1, 1, 1).unwrap().remove(0);
    let mut steps = Steps::new(&*envs);
    envs.reset(0, &mut steps).unwrap();
    envs.step(&mut steps).unwrap();
    assert_eq!(envs.faults().len(), 1);
    envs.restart(0, rl_envs::ObsSliceMut::F32(&mut [0.0]), None).unwrap();
    let error = envs.step(&mut steps).unwrap_err().to_string();
    assert!(error.contains("fails in the same way after a restart: ValueError in step: always"), "{error}");
}

#[test]
fn environments_are_closed_before_the_program_ends_and_what_is_cut_off_is_told() {
    for drive in ["lockstep", "first_come"] {
        for (limit, end, told) in [("60", "whole", "to close their environments"), ("0.5", "part", "may be cut off")] {
            let dir = tempfile::tempdir().unwrap();
            let more = format!("--steps 64 --set drive={drive} --set close_timeout_s={limit}");
            let output = finish(&mut train_hostile("close", "3", &more, dir.path()));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.contains(told), "{drive}, {limit}: {said}");
            let files = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path());
            let ends: Vec<_> = files.filter_map(|path| path.extension().map(|end| end.to_owned())).collect();
            assert!(ends.len() >= 2 && ends.iter().all(|found| found == end), "{drive}, {limit}: {ends:?}");
        }
    }
}

/// Processes with `mark` among their arguments.
fn with_argument(mark: &str) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let arguments = |pid: &String| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has_mark = |pid: &String| String::from_utf8_lossy(&arguments(pid)).contains(mark);
    pids.filter(|pid| pid.parse::<u32>().is_ok() && has_mark(pid)).collect()
}

#[test]
fn orphans_and_sessions_of_hung_workers_end_with_the_program_however_it_ends() {
    for drive in ["lockstep", "first_come"] {
        for (end, code) in [("limit", Some(5)), ("-INT", Some(130)), ("-TERM", Some(130)), ("-KILL", None)] {
            let dir = tempfile::tempdir().unwrap();
            let mark = format!("hostile-{drive}{end}-{}", std::process::id());
            let more = format!("--steps 1000000 --set drive={drive} --set timeout_s={}", if end == "limit" { 2 } else { 1000 });
            let child = train_hostile("hang", &mark, &more, dir.path()).spawn().unwrap();
            // The program, two workers with a keeper each, and the two processes that each has started.
            crate::harness::until("the workers hang", || end == "limit" || with_argument(&mark).len() >= 9);
            if end != "limit" {
                crate::harness::signal(child.id(), end);
            }
            let output = crate::harness::wait(child);
            assert_eq!(output.status.code(), code, "{drive}, {end}: {}", String::from_utf8_lossy(&output.stderr));
            crate::harness::until("no process is left", || with_argument(&mark).is_empty());
        }
    }
}

#[test]
fn a_command_is_one_for_the_shell_and_what_cannot_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let walk = format!("python3 {}/examples/worker/walk.py", env!("CARGO_MANIFEST_DIR"));
    for command in [format!("PLACE=1 {walk}"), format!("cd ..; {walk}")] {
        assert!(exec(&command, &WorkerOptions::default()).is_ok(), "{command}");
    }
    let refused = exec("no_such_program --fast", &WorkerOptions::default()).unwrap_err();
    assert!(refused.exit_code() == 2 && refused.to_string().contains("the shell cannot run the command of exec:no_such_program"));
    for kwargs in ["[]", "null", "1", "\"x\""] {
        let setting = format!("env.kwargs='{kwargs}'");
        let output =
            finish(rl(&["train", "gym:CartPole-v1", "--python", "no-python", "--set", &setting]).current_dir(dir.path()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("it must be a JSON object"), "{kwargs}: {said}");
    }
}
