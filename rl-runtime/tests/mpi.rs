//! `mpirun rl train`: the files of one process, other ranks, faults.
//!
//! Without `mpirun`, the tests are skipped; `RL_REQUIRE_MPI=1` turns a skip into a failure.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "program/harness.rs"]
mod harness;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use harness::{finish, load, metrics, newest, text};
use rl_envs::codec;
use rl_runtime::Progress;
use rl_runtime::checkpoint::Checkpoint;

/// Command for the program as `n_ranks` ranks, or as one process without MPI.
fn rl(n_ranks: usize, args: &[&str]) -> Command {
    if n_ranks == 1 {
        return harness::rl(args);
    }
    let mut command = Command::new("mpirun");
    command.args(["--quiet", "--oversubscribe", "--bind-to", "none", "-n", &n_ranks.to_string(), env!("CARGO_BIN_EXE_rl")]);
    command.args(args).envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    // One job removes the directory that another is about to use, if they share it.
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi{}", JOBS.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&own).unwrap();
    command.env("OMPI_MCA_orte_tmpdir_base", own);
    // Ranks wait in turn on a machine with fewer cores.
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// True if ranks can be started here.
fn has_mpi() -> bool {
    let has = Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        assert!(std::env::var_os("RL_REQUIRE_MPI").is_none_or(|value| value != "1"), "RL_REQUIRE_MPI=1, but there is no mpirun");
        eprintln!("SKIPPED: there is no mpirun");
    }
    has
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Trains to the end, and refuses any message.
fn train(n_ranks: usize, args: &[&str]) {
    let output = finish(&mut rl(n_ranks, &[&["train", "--threads", "1"], args].concat()));
    assert!(output.status.success() && output.stderr.is_empty(), "{n_ranks} ranks, {args:?}: {}", said(&output));
}

/// Files and state of a checkpoint, and metrics, without times.
type Learnt = ([Vec<u8>; 4], [Vec<u8>; 2], Vec<Vec<String>>);

/// Reads the newest checkpoint and the metrics of a run.
fn learnt(run: &Path) -> Learnt {
    let checkpoint = newest(run);
    let files = ["params.safetensors", "optimizer.safetensors", "replay.bin", "config.toml"];
    let files = files.map(|name| fs::read(checkpoint.join(name)).unwrap_or_default());
    let Checkpoint { progress, collector, agent, .. } = load(&checkpoint).unwrap();
    let Progress { env_steps, iterations, episodes, recent, elapsed_s: _ } = progress;
    let progress = (env_steps, iterations, episodes, recent, agent.counters, agent.statistics);
    (files, [codec::encode(&progress).unwrap(), codec::encode(&collector).unwrap()], metrics(run))
}

const PPO: &[&str] = &["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=192", "--set", "ppo.n_epochs=2"];
const MEMORY: &[&str] =
    &["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=192", "--set", "memory=lstm", "--set", "memory_size=20"];
const A2C: &[&str] = &["--algo", "a2c", "--set", "a2c.n_steps=16"];
const DQN: &[&str] = &[
    "--algo",
    "dqn",
    "--set",
    "dqn.batch_size=128",
    "--set",
    "dqn.learning_starts=100",
    "--set",
    "dqn.train_freq=48",
    "--set",
    "dqn.save_replay=true",
];
const SAC: &[&str] = &[
    "--algo",
    "sac",
    "--set",
    "sac.batch_size=128",
    "--set",
    "sac.learning_starts=100",
    "--set",
    "sac.train_freq=48",
    "--set",
    "sac.save_replay=true",
];
/// With noise that is the policy's memory.
const TD3: &[&str] = &[
    "--algo",
    "td3",
    "--set",
    "td3.batch_size=128",
    "--set",
    "td3.learning_starts=100",
    "--set",
    "td3.train_freq=48",
    "--set",
    "td3.save_replay=true",
    "--set",
    "td3.action_noise=ornstein_uhlenbeck",
];
const SMALL: &[&str] =
    &["--envs", "12", "--seed", "7", "--set", "hidden=[32]", "--set", "eval_episodes=2", "--set", "eval_max_steps=50"];

#[test]
fn any_number_of_ranks_leaves_the_files_of_one_process() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for env in ["cartpole", "snake", "acrobot"] {
        for (name, algo) in [("ppo", PPO), ("a2c", A2C), ("dqn", DQN), ("memory", MEMORY)] {
            let of = |n_ranks: usize| {
                let run = dir.path().join(format!("{env}-{name}-{n_ranks}"));
                train(n_ranks, &[&[env, "--steps", "576", "--run-dir", text(&run)], SMALL, algo].concat());
                learnt(&run)
            };
            let alone = of(1);
            for n_ranks in [2, 3] {
                assert!(of(n_ranks) == alone, "{env}, {name}, {n_ranks} ranks");
            }
        }
    }
}

#[test]
fn continuous_actions_and_normalization_are_the_same_on_any_number_of_ranks() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |n_ranks: usize| {
        let run = dir.path().join(n_ranks.to_string());
        let normal = ["--set", "normalize_obs=true", "--set", "ppo.normalize_reward=true"];
        train(n_ranks, &[&["pendulum", "--steps", "576", "--run-dir", text(&run)], SMALL, PPO, &normal].concat());
        learnt(&run)
    };
    assert!(of(3) == of(1));
    for (name, algo) in [("sac", SAC), ("td3", TD3)] {
        let of = |n_ranks: usize| {
            let run = dir.path().join(format!("{name}-{n_ranks}"));
            train(n_ranks, &[&["pendulum", "--steps", "576", "--run-dir", text(&run)], SMALL, algo].concat());
            learnt(&run)
        };
        assert!(of(2) == of(1), "{name}");
    }
}

#[test]
fn ranks_with_a_shard_of_the_replay_memory_each_leave_the_files_of_one_with_all() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (env, algo, settings) in [
        ("cartpole", DQN, ["dqn.save_replay=false", "dqn.buffer_size=200", "dqn.prioritized=true"]),
        ("snake", DQN, ["dqn.save_replay=false", "dqn.buffer_size=200", "env.frame_stack=3"]),
        ("pendulum", SAC, ["sac.save_replay=false", "sac.buffer_size=200", "sac.n_steps=3"]),
    ] {
        let of = |n_ranks: usize| {
            let run = dir.path().join(format!("{env}-{n_ranks}"));
            let settings: Vec<&str> =
                settings.iter().chain(&["shard_replay=true"]).flat_map(|setting| ["--set", setting]).collect();
            train(n_ranks, &[&[env, "--steps", "576", "--run-dir", text(&run)], SMALL, algo, &settings].concat());
            learnt(&run)
        };
        let alone = of(1);
        for n_ranks in [2, 3] {
            assert!(of(n_ranks) == alone, "{env}, {n_ranks} ranks");
        }
    }
}

#[test]
fn a_dry_run_counts_the_shard_of_a_rank() {
    if !has_mpi() {
        return;
    }
    let replay = |n_ranks: usize| {
        let settings = ["--set", "shard_replay=true", "--set", "dqn.buffer_size=1000000"];
        let output = finish(&mut rl(n_ranks, &[&["train", "cartpole", "--algo", "dqn", "--dry-run"], &settings[..]].concat()));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        let of_replay = said.lines().find_map(|line| line.split_once("replay memory")).map(|(_, bytes)| bytes.trim().to_owned());
        of_replay.unwrap_or_else(|| panic!("{said}"))
    };
    assert_eq!([1, 2].map(replay), ["44.0 MB", "22.0 MB"]);
}

#[test]
fn a_run_that_is_resumed_with_other_numbers_of_ranks_is_one_that_never_stopped() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, algo) in [("ppo", PPO), ("dqn", DQN)] {
        let of = |ranks: [usize; 3]| {
            let run = dir.path().join(format!("{name}-{ranks:?}"));
            for (i, n_ranks) in ranks.into_iter().enumerate() {
                let steps = (384 * (i + 1)).to_string();
                let begin = [&["cartpole", "--run-dir", text(&run)], SMALL, algo].concat();
                let args = if i == 0 { begin } else { vec!["--resume", text(&run)] };
                let output = finish(&mut rl(n_ranks, &[&["train", "--threads", "1", "--steps", &steps], &args[..]].concat()));
                assert!(output.status.success(), "{name}, {n_ranks} ranks: {}", said(&output));
            }
            learnt(&run)
        };
        assert!(of([2, 1, 3]) == of([1, 1, 1]), "{name}");
    }
}

/// Process ids of the ranks of a run that is being trained, in order of rank.
fn pids(run: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| fs::read(process.path().join(name)).unwrap_or_default();
        let is_rank = read("cmdline").split(|&byte| byte == 0).any(|arg| arg == text(run).as_bytes());
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let rank = environment.split('\0').find_map(|name| name.strip_prefix("OMPI_COMM_WORLD_RANK=")?.parse::<usize>().ok());
        if let (true, Some(rank), Ok(pid)) = (is_rank, rank, process.file_name().to_string_lossy().parse()) {
            found.push((rank, pid));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, pid)| pid).collect()
}

/// Trains with three ranks, and signals one of them.
///
/// The signal follows the first checkpoint. Returns the output once no process is left, within ten seconds.
fn signalled(run: &Path, rank: usize, signal: &str, args: &[&str]) -> Output {
    let all = [&["train", "--threads", "1", "cartpole", "--run-dir", text(run), "--set", "checkpoint_every=960"], args].concat();
    let mut job = rl(3, &all).spawn().unwrap();
    let begin = Instant::now();
    while !run.join("checkpoints").is_dir() || fs::read_dir(run.join("checkpoints")).unwrap().next().is_none() {
        assert!(job.try_wait().unwrap().is_none() && begin.elapsed() < harness::TIME_LIMIT, "no checkpoint");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ranks = pids(run);
    let pid = ranks[rank].to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let begin = Instant::now();
    let output = harness::wait(job);
    while !pids(run).is_empty() || !processes_of(&ranks).is_empty() {
        assert!(begin.elapsed() < harness::TIME_LIMIT, "processes are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{signal} to rank {rank}: {:?}", begin.elapsed());
    output
}

#[test]
fn a_rank_that_is_killed_ends_the_job_and_other_numbers_of_ranks_continue_it() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let all = [SMALL, PPO, &["--steps", "5760"]].concat();
    let uninterrupted = dir.path().join("uninterrupted");
    train(1, &[&["cartpole", "--run-dir", text(&uninterrupted), "--set", "checkpoint_every=960"], &all[..]].concat());
    for (rank, n_ranks) in [(0, 2), (1, 1), (2, 3)] {
        let run = dir.path().join(rank.to_string());
        let output = signalled(&run, rank, "-KILL", &all);
        assert_eq!(output.status.code(), Some(137), "rank {rank}: {}", said(&output));
        let output = finish(&mut rl(n_ranks, &["train", "--threads", "1", "--resume", text(&run)]));
        assert!(output.status.success(), "rank {rank}: {}", said(&output));
        assert!(learnt(&run) == learnt(&uninterrupted), "rank {rank} was killed");
    }
}

#[test]
fn a_rank_that_hangs_ends_the_job_with_one_message() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (rank, more) in [(0, &[][..]), (1, &[]), (2, &[]), (1, ACTORS)] {
        let run = dir.path().join(format!("{rank}-{}", more.len()));
        let output = signalled(&run, rank, "-STOP", &[SMALL, PPO, more, &["--steps", "10000000"]].concat());
        let said = said(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "rank {rank}: {said}");
        assert!(said.starts_with(&format!("error: rank {rank} has not been heard of for 6 seconds")), "{said}");
    }
}

#[test]
fn an_interrupted_rank_saves_for_all_of_them() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, more) in [("sync", &[][..]), ("actors", ACTORS)] {
        let output = signalled(&dir.path().join(name), 2, "-USR1", &[SMALL, PPO, more, &["--steps", "10000000"]].concat());
        assert_eq!(output.status.code(), Some(130), "{name}: {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted and saved"), "{name}: {}", said(&output));
    }
}

#[test]
fn what_ranks_cannot_share_is_refused_with_one_message() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let train = ["train", "cartpole", "--run-dir", text(&run)];
    for (n_ranks, args, why) in [
        (2, &["--set", "pipeline=overlapped"][..], "pipeline is overlapped, which ranks of MPI cannot share"),
        (2, &["--device", "emulated"], "device is emulated, which ranks of MPI cannot share"),
        (3, &["--envs", "8"], "3 ranks share 2 slices of environments"),
        (2, &["--set", "ppo.gama=1"], "unknown setting \"ppo.gama\""),
        (1, &["--set", "mpi=actors"], "mpi is actors, which needs mpirun with 2 processes or more"),
        (
            3,
            &["--set", "mpi=actors"],
            "take turns: each needs as many of the max_lag + 1 rollouts in flight; use --set pipeline=overlapped",
        ),
        (4, ACTORS, "mpi is actors with 3 of them"),
        (2, &["--set", "mpi=central"], "mpi is central, which answers environments one by one, and cartpole does not block"),
    ] {
        let output = finish(&mut rl(n_ranks, &[&train[..], args].concat()));
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.lines().count() == 1 && said.contains(why), "{args:?}: {said}");
        assert!(!run.exists(), "{args:?}");
    }
    // Two programs with different arguments in one job.
    let mut command = rl(1, &[]);
    let program = command.get_program().to_owned();
    command = rl(2, &train);
    command.args([":", "-n", "1"]).arg(program).args(["train", "acrobot"]);
    let output = finish(&mut command);
    let said = said(&output);
    assert!(
        output.status.code() == Some(2) && said.contains("was started with \"train acrobot\", and rank 0 \"train cartpole"),
        "{said}"
    );
}

/// Settings of a learner with two actors.
const ACTORS: &[&str] = &["--set", "mpi=actors", "--set", "pipeline=overlapped", "--set", "max_lag=3"];

/// Values of a column of a run's metrics.
fn column(run: &Path, name: &str) -> Vec<f64> {
    let rows = metrics(run);
    let at = rows[0].iter().position(|of| of == name).unwrap_or_else(|| panic!("no column {name}: {:?}", rows[0]));
    rows[1..].iter().map(|row| row[at].parse().unwrap()).collect()
}

#[test]
fn actors_collect_for_a_learner_and_the_same_seed_gives_the_same_bits() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, env, algo) in [
        ("ppo", "cartpole", PPO),
        ("a2c", "cartpole", A2C),
        ("dqn", "cartpole", DQN),
        ("spread", "cartpole", &[DQN, &["--set", "dqn.exploration_spread=7"]].concat()),
        ("prioritized", "cartpole", &[DQN, &["--set", "dqn.prioritized=true"]].concat()),
        ("acted", "cartpole", &[DQN, &["--set", "dqn.prioritized=true", "--set", "dqn.acted_priorities=true"]].concat()),
        ("td3", "pendulum", TD3),
        ("memory", "cartpole", MEMORY),
    ] {
        let of = |i: usize| {
            let run = dir.path().join(format!("{name}-{i}"));
            train(3, &[&[env, "--steps", "3840", "--run-dir", text(&run)], SMALL, ACTORS, algo].concat());
            run
        };
        let [first, second] = [of(0), of(1)];
        assert!(learnt(&first) == learnt(&second), "{name}");
        let Checkpoint { progress, .. } = load(&newest(&first)).unwrap();
        assert!(progress.env_steps == 3840, "{name}: {progress:?}");
        assert!(env == "pendulum" || progress.episodes > 15, "{name}: {progress:?}");
        assert_eq!(column(&first, "faults/actors").last(), Some(&0.0), "{name}");
    }
    let [largest, acted] = ["prioritized-0", "acted-0"].map(|run| learnt(&dir.path().join(run)));
    assert!(largest != acted, "first priorities decide what is learnt from");
}

#[test]
fn a_learner_on_a_device_with_actors_leaves_the_files_of_the_cpu() {
    if !has_mpi() || !harness::can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |device: &str| {
        let run = dir.path().join(device);
        let on = ["--device", device, "--set", "env_device=cpu"];
        train(3, &[&["cartpole", "--steps", "1920", "--run-dir", text(&run)], SMALL, ACTORS, DQN, &on].concat());
        let ([params, optimizer, replay, _], state, _) = learnt(&run);
        ([params, optimizer, replay], state)
    };
    assert!(of("emulated") == of("cpu"));
}

#[test]
fn actors_do_not_repeat_each_other() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // Without learning, rollouts differ by their environments alone.
    let frozen = ["--set", "ppo.learning_rate=0", "--set", "ppo.n_steps=64"];
    train(3, &[&["cartpole", "--steps", "3072", "--run-dir", text(&run)], SMALL, ACTORS, PPO, &frozen].concat());
    let returns = column(&run, "rollout/ep_rew_mean");
    assert!(returns.len() == 4 && returns.windows(2).all(|pair| pair[0] != pair[1]), "{returns:?}");
}

#[test]
fn the_process_of_an_actor_that_dies_or_hangs_is_replaced_and_counted() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for signal in ["-KILL", "-STOP"] {
        let run = dir.path().join(signal);
        let settings =
            ["train", "--threads", "1", "slow_cartpole", "--steps", "4096", "--envs", "8", "--set", "env.latency_ms=5"];
        let small =
            ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=128", "--set", "eval_episodes=2", "--run-dir", text(&run)];
        let job = rl(3, &[&settings[..], &small, ACTORS].concat()).spawn().unwrap();
        await_rows(&run);
        let ranks = pids(&run);
        let of_actors = processes_of(&ranks);
        assert_eq!(of_actors.len(), 2, "{of_actors:?}");
        assert!(Command::new("kill").args([signal, &of_actors[0].to_string()]).status().unwrap().success());
        let output = harness::wait(job);
        let said = said(&output);
        let why = if signal == "-KILL" { "was killed by signal 9" } else { "has not been heard of for 6 seconds" };
        assert!(output.status.success() && said.lines().count() == 1 && said.contains(why), "{signal}: {said}");
        assert_eq!(column(&run, "faults/actors").last(), Some(&1.0), "{signal}");
        assert_eq!(column(&run, "time/total_timesteps").last(), Some(&4096.0), "{signal}");
        assert!(processes_of(&ranks).is_empty(), "{signal}: a process is left");
    }
}

#[test]
fn stretches_of_actors_age_by_the_rollouts_of_their_actor() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // Between two rollouts of an actor the learner learns from two, one of each: a stretch from one to the next is not too old.
    let settings = ["slow_cartpole", "--steps", "3072", "--envs", "8", "--set", "env.latency_ms=1", "--set", "max_age=1"];
    let small = ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=128", "--set", "eval_episodes=2", "--run-dir", text(&run)];
    train(3, &[&settings[..], &small, ACTORS].concat());
    let dropped = *column(&run, "faults/dropped_stretches").last().unwrap();
    // Of 192 stretches, an environment that was slow twice may lose some.
    assert!(dropped < 30.0, "{dropped}");
}

/// Waits for two rows of a run's metrics.
fn await_rows(run: &Path) {
    let begin = Instant::now();
    while fs::read_to_string(run.join("metrics.csv")).unwrap_or_default().lines().count() < 3 {
        assert!(begin.elapsed() < harness::TIME_LIMIT, "no metrics");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Process ids of the processes that the ranks of actors have started.
fn processes_of(ranks: &[u32]) -> Vec<u32> {
    let ranks: Vec<Vec<u8>> = ranks.iter().map(|pid| pid.to_string().into_bytes()).collect();
    let is_actor = |line: &[u8]| {
        let args: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        args.windows(3).any(|args| args[..2] == [&b"actor-process"[..], b"--parent"] && ranks.iter().any(|rank| rank == args[2]))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let actors = processes.filter(|process| fs::read(process.path().join("cmdline")).is_ok_and(|line| is_actor(&line)));
    actors.filter_map(|process| process.file_name().to_string_lossy().parse().ok()).collect()
}

#[test]
fn the_learner_acts_in_the_environments_of_actors_and_outlives_a_killed_process() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["--set", "ppo.n_steps=16", "--set", "ppo.batch_size=112"];
    let memory = [&ppo[..], &["--set", "memory=gru"]].concat();
    for (name, algo) in [("ppo", &ppo[..]), ("memory", &memory), ("dqn", DQN)] {
        let run = dir.path().join(name);
        let settings =
            ["train", "--threads", "1", "slow_cartpole", "--steps", "5600", "--envs", "7", "--set", "env.latency_ms=5"];
        let small = ["--set", "mpi=central", "--set", "eval_episodes=2", "--set", "log_interval=1", "--run-dir", text(&run)];
        let job = rl(3, &[&settings[..], &small, algo].concat()).spawn().unwrap();
        await_rows(&run);
        let ranks = pids(&run);
        let processes = processes_of(&ranks);
        assert_eq!(processes.len(), 2, "{processes:?}");
        // The first actor has three environments, the second four.
        let of_second = processes_of(&ranks[2..]);
        assert!(Command::new("kill").args(["-KILL", &of_second[0].to_string()]).status().unwrap().success());
        let output = harness::wait(job);
        let said = said(&output);
        let warned = said.matches("the process of actor 2 was killed by signal 9; it is replaced").count();
        assert!(output.status.success() && warned == 1, "{name}: {said}");
        // Of its four environments, one between two episodes loses nothing.
        let failures = *column(&run, "faults/failures").last().unwrap();
        assert!((1.0..=4.0).contains(&failures), "{name}: {failures}, {said}");
        assert!(column(&run, "time/total_timesteps").last() >= Some(&5600.0), "{name}");
        assert!(processes_of(&ranks).is_empty(), "{name}: a process is left");
    }
}

#[test]
fn a_run_whose_actor_s_rank_was_killed_continues_with_another_number_of_actors_or_alone() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = signalled(&run, 1, "-KILL", &[SMALL, PPO, ACTORS, &["--steps", "10000000"]].concat());
    assert_eq!(output.status.code(), Some(137), "{}", said(&output));
    let steps = || load(&newest(&run)).unwrap().progress.env_steps;
    let before = steps();
    for (n_ranks, more) in [(2, &[][..]), (1, &["--set", "mpi=sync"])] {
        let until = (steps() + 1920).to_string();
        let output = finish(&mut rl(n_ranks, &[&["train", "--resume", text(&run), "--steps", &until], more].concat()));
        assert!(output.status.success(), "{n_ranks} ranks: {}", said(&output));
    }
    assert_eq!(steps(), before + 3840);
}

/// Runs a command, and fails if it does.
fn run(program: &str, args: &str) {
    let output = Command::new(program).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {args}: {}", said(&output));
}

/// Two network namespaces with a cable between them, in place of two machines.
struct Machines([String; 2]);

impl Machines {
    /// Returns `None` where the system has no such namespaces, or not for this user.
    fn new() -> Option<Self> {
        let names = ["a", "b"].map(|end| format!("rl-{}-{end}", std::process::id()));
        let add = |name: &String| Command::new("ip").args(["netns", "add", name]).output().is_ok_and(|out| out.status.success());
        if !add(&names[0]) {
            return None;
        }
        let machines = Self(names);
        let [a, b] = &machines.0;
        assert!(add(b));
        run("ip", &format!("link add wire netns {a} type veth peer name wire netns {b}"));
        for (i, name) in [a, b].into_iter().enumerate() {
            run("ip", &format!("-n {name} addr add 10.231.0.{}/24 dev wire", i + 1));
            run("ip", &format!("-n {name} link set lo up"));
            run("ip", &format!("-n {name} link set wire up"));
        }
        Some(machines)
    }

    /// Bytes that the first machine has received.
    fn received(&self) -> u64 {
        let output = Command::new("ip").args(["netns", "exec", &self.0[0], "cat", "/proc/net/dev"]).output().unwrap();
        let devices = String::from_utf8(output.stdout).unwrap();
        let wire = devices.lines().find_map(|line| line.trim().strip_prefix("wire:")).unwrap();
        wire.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(Command::new("ip").args(["netns", "del", name]).output()));
    }
}

#[test]
fn two_machines_leave_the_files_of_one_process() {
    if !has_mpi() {
        return;
    }
    let Some(machines) = Machines::new() else {
        eprintln!("SKIPPED: `ip netns add` is refused or missing, so there is no network for two machines");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    // Starts the other machine's part, as ssh would.
    let agent = dir.path().join("agent");
    fs::write(&agent, format!("#!/bin/sh\nshift\nexec ip netns exec {} sh -c \"$*\"\n", machines.0[1])).unwrap();
    run("chmod", &format!("+x {}", text(&agent)));
    let train_args = |run: &Path| {
        let args = [&["train", "--threads", "1", "cartpole", "--steps", "1920", "--run-dir", text(run)], SMALL, PPO].concat();
        args.into_iter().map(String::from).collect::<Vec<_>>()
    };
    let [alone, apart] = ["alone", "apart"].map(|name| dir.path().join(name));
    assert!(finish(&mut harness::rl(&train_args(&alone))).status.success());
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &machines.0[0], "mpirun", "--quiet", "--host", "10.231.0.1,10.231.0.2", "-n", "2"]);
    command.args([
        "--bind-to",
        "none",
        "--mca",
        "plm_rsh_agent",
        text(&agent),
        "--mca",
        "btl",
        "tcp,self",
        "--mca",
        "pml",
        "ob1",
    ]);
    command.args(["--mca", "btl_tcp_if_include", "wire", "--mca", "oob_tcp_if_include", "wire", env!("CARGO_BIN_EXE_rl")]);
    command.args(train_args(&apart)).envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let before = machines.received();
    let output = finish(&mut command);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    let received = machines.received() - before;
    assert!(received > 20_000, "only {received} bytes have passed through the wire");
    assert!(learnt(&apart) == learnt(&alone));
}

#[test]
fn an_actor_that_fails_too_often_ends_the_job_and_what_was_learnt_is_saved() {
    if !has_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = ["train", "--threads", "1", "slow_cartpole", "--steps", "1000000", "--envs", "4", "--run-dir", text(&run)];
    let small = ["--set", "max_restarts=1", "--set", "ppo.n_steps=16", "--set", "ppo.batch_size=64"];
    let job = rl(3, &[&settings[..], &small, ACTORS].concat()).spawn().unwrap();
    let begin = Instant::now();
    await_rows(&run);
    let (ranks, mut killed) = (pids(&run), Vec::new());
    while killed.len() < 4 && begin.elapsed() < Duration::from_secs(60) {
        for pid in processes_of(&ranks).into_iter().filter(|pid| !killed.contains(pid)).collect::<Vec<_>>() {
            if Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success() {
                killed.push(pid);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = harness::wait(job);
    let said = said(&output);
    assert!(
        output.status.code() == Some(5)
            && said.contains("the process of an actor was replaced too often, the last one was killed by signal 9"),
        "{said}"
    );
    assert!(newest(&run).join("params.safetensors").is_file(), "{said}");
}
