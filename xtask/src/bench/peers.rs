//! Speed compared with other libraries, in one interleaved run.
//!
//! `cargo xtask bench --peers` runs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process::machine;

/// Repetitions per measurement, alternating with the peer; medians are compared.
const ROUNDS: usize = 5;

/// One comparison with a peer.
///
/// The name, our arguments and the field of our output, the peer's script and its arguments.
struct Comparison {
    what: &'static str,
    ours: &'static str,
    field: &'static str,
    peer: &'static str,
    theirs: &'static str,
}

/// Comparisons that share installed peers and one record file.
struct Group {
    name: &'static str,
    venv: &'static str,
    requirements: &'static str,
    record: &'static str,
    unit: &'static str,
    /// Variables that limit the programs, ours and the peer's.
    limits: &'static [(&'static str, &'static str)],
    cases: &'static [Comparison],
}

const GROUPS: [Group; 10] = [
    Group {
        name: "envs",
        venv: "target/peers-envs",
        requirements: "requirements-envs.txt",
        record: "bench/peers-envs.md",
        unit: "Environment steps per second with random actions, drawn inside the clock; observations, masks, rewards and flags are written.\n\
               The peer's figure is that of its best size.",
        limits: &[],
        cases: ENVS,
    },
    Group {
        name: "minatar",
        venv: "target/peers-minatar",
        requirements: "requirements-minatar.txt",
        record: "bench/peers-minatar.md",
        unit: "Environment steps per second of MinAtar's games with random actions, two threads each, drawn inside the clock; observations, rewards\n\
               and flags are written. MinAtar's own games run in two bare loops, one in each process; gymnax's figure is that of its best size.\n\
               gymnax has no Seaquest.",
        limits: &[],
        cases: MINATAR,
    },
    Group {
        name: "minigrid",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-minigrid.md",
        unit: "Environment steps per second of MiniGrid's levels with random actions, two threads, drawn inside the clock; observations, rewards\n\
               and flags are written. MiniGrid's own levels run in two bare loops, one in each process.",
        limits: &[],
        cases: MINIGRID,
    },
    Group {
        name: "workers",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-workers.md",
        unit: "Environment steps per second of Gymnasium's environments with random actions, 16 environments in 2 worker processes. The best is \
               that of\nGymnasium's SyncVectorEnv and AsyncVectorEnv and Stable-Baselines3's DummyVecEnv and SubprocVecEnv; two bare loops are two \
               processes that\nstep one environment each and exchange nothing.",
        limits: &[],
        cases: WORKERS,
    },
    Group {
        name: "pictures",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-pictures.md",
        unit: "Environment steps per second of 16 environments that only show two pictures in turn: ours in 2 worker processes, the \
               peers' in one\nprocess each. Gymnasium's AsyncVectorEnv shares memory with its processes; two bare loops are two processes \
               that step and copy\neach picture twice, the least for a picture that another process reads.",
        limits: &[],
        cases: PICTURES,
    },
    Group {
        name: "learners",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers.md",
        unit: "Updates in samples per second, training in environment steps per second, everything included.",
        limits: &[],
        cases: LEARNERS,
    },
    Group {
        name: "avx2",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-avx2.md",
        unit: "Updates in samples per second, training in environment steps per second, everything included. Limited to AVX2 and fused multiply-add:\n\
               ours by `RL_ISA`; theirs by `ATEN_CPU_CAPABILITY`, `ONEDNN_MAX_CPU_ISA`, `MKL_ENABLE_INSTRUCTIONS` and XLA's `xla_cpu_max_isa`.",
        limits: &AVX2,
        cases: LEARNERS,
    },
    Group {
        name: "continuous",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-continuous.md",
        unit: "Environment steps per second of training on two threads, everything included: an update of 256 transitions for each step of\n\
               the environments, after the first 100 transitions. Hidden layers with ReLU, for actor and critics; Stable-Baselines3's default\n\
               settings. The peers train the same model before, which compiles SBX's update; RLtools compiles itself before, and uses MKL.",
        limits: &[],
        cases: CONTINUOUS,
    },
    Group {
        name: "replay",
        venv: "target/peers-replay",
        requirements: "requirements-replay.txt",
        record: "bench/peers-replay.md",
        unit: "Transitions per second on one thread: 4-float observations, a buffer of a million; by priorities, drawing and updating.",
        limits: &[],
        cases: REPLAY,
    },
    Group {
        name: "pipeline",
        venv: "target/peers",
        requirements: "requirements.txt",
        record: "bench/peers-pipeline.md",
        unit: "Environment steps per second. Each step sleeps an exponential time of mean 50 ms, so the environments alone reach 640.",
        limits: &[],
        cases: PIPELINE,
    },
];

pub(crate) const TRAIN: &str = "train --set eval_episodes=1 --set checkpoint_every=1000000000 --json";

/// Hidden layers of the widest networks.
const WIDE: &str = "1024,1024,512,256";

const ENVS: &[Comparison] = &[
    env(
        "CartPole, 2 threads; gymnax",
        "cartpole --envs 4096 --threads 2",
        "env_gymnax.py",
        "CartPole-v1 rollout 2 8192 16384 65536",
    ),
    env(
        "the same against gymnax keeping nothing of a step",
        "cartpole --envs 4096 --threads 2",
        "env_gymnax.py",
        "CartPole-v1 nothing 2 8192 16384 65536",
    ),
    env("Snake, 2 threads; EnvPool", "snake --envs 1024 --threads 2", "env_envpool.py", "Jumanji/Snake-v1 2 2 256 1024"),
    env("CartPole, 2 threads; EnvPool", "cartpole --envs 4096 --threads 2", "env_envpool.py", "CartPole-v1 2 2 1024 4096"),
];

const MINIGRID: &[Comparison] = &[
    env("Empty-8x8, random start", "empty --envs 4096 --threads 2", "env_minigrid.py", "empty 2 2"),
    env("DoorKey-8x8", "door_key --envs 4096 --threads 2", "env_minigrid.py", "door_key 2 2"),
    env("MultiRoom-N2-S4", "multi_room --envs 4096 --threads 2", "env_minigrid.py", "multi_room 2 2"),
];

const MINATAR: &[Comparison] = &[
    env("Asterix; MinAtar", "asterix --envs 4096 --threads 2", "env_minatar.py", "asterix 2 2"),
    env("Breakout; MinAtar", "breakout --envs 4096 --threads 2", "env_minatar.py", "breakout 2 2"),
    env("Freeway; MinAtar", "freeway --envs 4096 --threads 2", "env_minatar.py", "freeway 2 2"),
    env("Seaquest; MinAtar", "seaquest --envs 4096 --threads 2", "env_minatar.py", "seaquest 2 2"),
    env("Space Invaders; MinAtar", "space_invaders --envs 4096 --threads 2", "env_minatar.py", "space_invaders 2 2"),
    env("Asterix; gymnax", "asterix --envs 4096 --threads 2", "env_gymnax.py", "Asterix-MinAtar rollout 2 1024 4096"),
    env("Breakout; gymnax", "breakout --envs 4096 --threads 2", "env_gymnax.py", "Breakout-MinAtar rollout 2 1024 4096"),
    env("Freeway; gymnax", "freeway --envs 4096 --threads 2", "env_gymnax.py", "Freeway-MinAtar rollout 2 1024 4096"),
    env(
        "Space Invaders; gymnax",
        "space_invaders --envs 4096 --threads 2",
        "env_gymnax.py",
        "SpaceInvaders-MinAtar rollout 2 1024 4096",
    ),
];

const WORKERS: &[Comparison] = &[
    workers("CartPole-v1", "gym:CartPole-v1 --envs 16 --threads 2", "CartPole-v1 16 1"),
    workers("FrozenLake-v1", "gym:FrozenLake-v1 --envs 16 --threads 2", "FrozenLake-v1 16 1"),
    workers("LunarLander-v3", "gym:LunarLander-v3 --envs 16 --threads 2", "LunarLander-v3 16 1"),
    workers("Acrobot-v1", "gym:Acrobot-v1 --envs 16 --threads 2", "Acrobot-v1 16 1"),
    workers("HalfCheetah-v5", "gym:HalfCheetah-v5 --envs 16 --threads 2", "HalfCheetah-v5 16 1"),
];

const PICTURES: &[Comparison] = &[
    workers("bytes of 4 x 84 x 84", "gym:pictures:atari --envs 16 --threads 2", "atari 16 2"),
    workers("bytes of 3 x 256 x 256", "gym:pictures:camera --envs 16 --threads 2", "camera 16 2"),
    workers("bytes of 4 x 512 x 512", "gym:pictures:megabyte --envs 16 --threads 2", "megabyte 16 2"),
];

/// Field of comparisons of updates that follow each env step.
const CONTINUOUSLY: &str = "continuous";
/// Env steps before the first update there.
const LEARNING_STARTS: f64 = 100.0;

const CONTINUOUS: &[Comparison] = &[
    continuous(
        "SAC, Pendulum, 256-256",
        "pendulum --envs 1 --steps 3000 --algo sac --set sac.learning_rate=3e-4 --set hidden=[256,256] --threads 2",
        "sac Pendulum-v1 1 256,256 2 1000",
    ),
    continuous(
        "SAC, 8 Pendulums, 256-256",
        "pendulum --envs 8 --steps 24000 --algo sac --set sac.learning_rate=3e-4 --set sac.train_freq=8 --set hidden=[256,256] --threads 2",
        "sac Pendulum-v1 8 256,256 2 8000",
    ),
    continuous(
        "SAC, Pendulum, 64-64",
        "pendulum --envs 1 --steps 12000 --algo sac --set sac.learning_rate=3e-4 --set hidden=[64,64] --threads 2",
        "sac Pendulum-v1 1 64,64 2 2000",
    ),
    continuous(
        "SAC, HalfCheetah, 256-256",
        "gym:HalfCheetah-v5 --envs 1 --steps 3000 --algo sac --set sac.learning_starts=100 --set hidden=[256,256] --threads 2",
        "sac HalfCheetah-v5 1 256,256 2 1000",
    ),
    continuous(
        "TD3, Pendulum, 256-256",
        "pendulum --envs 1 --steps 3000 --algo td3 --set td3.learning_starts=100 --set hidden=[256,256] --threads 2",
        "td3 Pendulum-v1 1 256,256 2 1000",
    ),
    continuous(
        "TD3, 8 Pendulums, 256-256",
        "pendulum --envs 8 --steps 24000 --algo td3 --set td3.learning_starts=100 --set td3.train_freq=8 --set hidden=[256,256] --threads 2",
        "td3 Pendulum-v1 8 256,256 2 8000",
    ),
    continuous(
        "TD3, Pendulum, 64-64",
        "pendulum --envs 1 --steps 12000 --algo td3 --set td3.learning_starts=100 --set hidden=[64,64] --threads 2",
        "td3 Pendulum-v1 1 64,64 2 2000",
    ),
    continuous(
        "TD3, HalfCheetah, 256-256",
        "gym:HalfCheetah-v5 --envs 1 --steps 3000 --algo td3 --set td3.learning_starts=100 --set hidden=[256,256] --threads 2",
        "td3 HalfCheetah-v5 1 256,256 2 1000",
    ),
    Comparison {
        what: "SAC, Pendulum, 64-64, minibatch 100, 1 thread; RLtools",
        ours: "pendulum --envs 1 --steps 12000 --algo sac --set sac.batch_size=100 --set hidden=[64,64] --threads 1",
        field: CONTINUOUSLY,
        peer: "train_rltools.py",
        theirs: "5000",
    },
    Comparison {
        what: "the same in Gymnasium's environment; RLtools",
        ours: "gym:Pendulum-v1 --envs 1 --steps 12000 --algo sac --set sac.batch_size=100 --set hidden=[64,64] --threads 1",
        field: CONTINUOUSLY,
        peer: "train_rltools.py",
        theirs: "5000",
    },
];

const LEARNERS: &[Comparison] = &[
    update("PPO update, minibatch 64, 2 threads", "--minibatch 64 --threads 2", "64 2 2"),
    update("PPO update, minibatch 512, 2 threads", "--minibatch 512 --threads 2", "512 2 2"),
    update("PPO update, minibatch 2048, 2 threads", "--minibatch 2048 --threads 2", "2048 2 2"),
    update("the same against PyTorch without normalization and clipping, 64", "--minibatch 64 --threads 2", "64 2 2 plain"),
    update("the same against PyTorch without normalization and clipping, 512", "--minibatch 512 --threads 2", "512 2 2 plain"),
    update("the same against PyTorch without normalization and clipping, 2048", "--minibatch 2048 --threads 2", "2048 2 2 plain"),
    update("the same with hidden layers of 256-256, 64", "--hidden 256,256 --minibatch 64 --threads 2", "64 2 2 256,256"),
    update("the same with hidden layers of 256-256, 512", "--hidden 256,256 --minibatch 512 --threads 2", "512 2 2 256,256"),
    update("the same with hidden layers of 256-256, 4096", "--hidden 256,256 --minibatch 4096 --threads 2", "4096 2 2 256,256"),
    update("the same with hidden layers of 512-512, 64", "--hidden 512,512 --minibatch 64 --threads 2", "64 2 2 512,512"),
    update("the same with hidden layers of 512-512, 512", "--hidden 512,512 --minibatch 512 --threads 2", "512 2 2 512,512"),
    update("the same with hidden layers of 512-512, 4096", "--hidden 512,512 --minibatch 4096 --threads 2", "4096 2 2 512,512"),
    update(
        "the same with hidden layers of 1024-1024-512-256, 64",
        "--hidden 1024,1024,512,256 --minibatch 64 --threads 2",
        "64 2 2 1024,1024,512,256",
    ),
    update(
        "the same with hidden layers of 1024-1024-512-256, 512",
        "--hidden 1024,1024,512,256 --minibatch 512 --threads 2",
        "512 2 2 1024,1024,512,256",
    ),
    update(
        "the same with hidden layers of 1024-1024-512-256, 4096",
        "--hidden 1024,1024,512,256 --minibatch 4096 --threads 2",
        "4096 2 2 1024,1024,512,256",
    ),
    Comparison {
        what: "PPO update of convolutions on 12 x 12 x 5, minibatch 256, 2 threads",
        ours: "--env snake --conv 16x3x1,32x3x1 --hidden 128 --shared-trunk --activation relu --minibatch 256 --threads 2",
        field: "value",
        peer: "update_torch_conv.py",
        theirs: "256 2 4",
    },
    nature(
        "the same of Mnih et al. (2015) on 84 x 84 x 4, minibatch 32, 2 threads",
        "--obs 84x84x4 --conv 32x8x4,64x4x2,64x3x1 --hidden 512 --shared-trunk --activation relu --minibatch 32 --threads 2",
        "32 2 4 nature",
    ),
    nature(
        "the same of Mnih et al. (2015) on 84 x 84 x 4, minibatch 256, 2 threads",
        "--obs 84x84x4 --conv 32x8x4,64x4x2,64x3x1 --hidden 512 --shared-trunk --activation relu --minibatch 256 --threads 2",
        "256 2 4 nature",
    ),
    act("acting of hidden layers of 1024-1024-512-256 in 1 environment, 2 threads", "--envs 1", "1 2 2 1024,1024,512,256"),
    act("the same in 8 environments", "--envs 8", "8 2 2 1024,1024,512,256"),
    act("the same in 32 environments", "--envs 32", "32 2 2 1024,1024,512,256"),
    train(
        "PPO, 64 environments, 128 steps, batch 2048, 4 epochs, 2 threads; rejax",
        "--envs 64 --threads 2 --steps 2e6 --set ppo.n_steps=128 --set ppo.batch_size=2048 --set ppo.n_epochs=4",
        "train_rejax.py",
        "64 128 4 4 2000000",
    ),
    train(
        "PPO, 64 environments, 128 steps, batch 512, 4 epochs, 2 threads; rejax",
        "--envs 64 --threads 2 --steps 2e6 --set ppo.n_steps=128 --set ppo.batch_size=512 --set ppo.n_epochs=4",
        "train_rejax.py",
        "64 128 16 4 2000000",
    ),
    train(
        "PPO, 8 environments, 128 steps, batch 256, 4 epochs, 2 threads; Stable-Baselines3",
        "--envs 8 --threads 2 --steps 1e6 --set ppo.n_steps=128 --set ppo.batch_size=256 --set ppo.n_epochs=4",
        "train_sb3.py",
        "8 128 256 4 2 40000",
    ),
    train(
        "PPO, 8 environments, 256 steps, batch 64, 10 epochs, 1 thread; Stable-Baselines3",
        "--envs 8 --threads 1 --steps 4e5 --set ppo.n_steps=256 --set ppo.batch_size=64 --set ppo.n_epochs=10",
        "train_sb3.py",
        "8 256 64 10 1 16384",
    ),
    train(
        "DQN, 1 environment, batch 64, update every 4 steps, target every 1,000, 1 thread; Stable-Baselines3",
        "--algo dqn --envs 1 --threads 1 --steps 4e5 --set dqn.batch_size=64 --set dqn.train_freq=4 --set dqn.gradient_steps=1 \
         --set dqn.target_update_interval=1000 --set dqn.tau=1 --set dqn.n_steps=1 --set dqn.double=false --set dqn.dueling=false \
         --set dqn.learning_rate=1e-4",
        "train_sb3_dqn.py",
        "64 4 1000 1 20000",
    ),
];

const REPLAY: &[Comparison] = &[
    replay("replay_add", "replay, adding 4,096 at once; cpprb", "--batch 4096", "add 1000000 4096 1"),
    replay("replay_sample", "replay, drawing 256; cpprb", "--batch 256", "sample 1000000 256 1"),
    replay("replay_sample", "replay, drawing 4,096; cpprb", "--batch 4096", "sample 1000000 4096 1"),
    replay(
        "replay_sample",
        "by priorities, drawing and updating 256; cpprb",
        "--batch 256 --prioritized",
        "update 1000000 256 1",
    ),
    replay(
        "replay_sample",
        "by priorities, drawing and updating 4,096; cpprb",
        "--batch 4096 --prioritized",
        "update 1000000 4096 1",
    ),
];

const PIPELINE: &[Comparison] = &[
    pipeline(
        "PPO, 32 environments of 50 ms, 64 steps, batch 512, 30 epochs, 512-512 nets, which are half of the time for ours; \
         Stable-Baselines3, SubprocVecEnv",
        "--envs 32 --latency exp --latency-ms 50 --n-steps 64 --batch 512 --epochs 30 --hidden 512,512 --seconds 40",
        "32 50 64 512 30 512,512 2 2",
    ),
    pipeline(
        "the same with 256-256 nets, which are a tenth",
        "--envs 32 --latency exp --latency-ms 50 --n-steps 64 --batch 512 --epochs 30 --hidden 256,256 --seconds 40",
        "32 50 64 512 30 256,256 2 2",
    ),
];

const fn pipeline(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "pipeline", peer: "latency_sb3.py", theirs }
}

const fn env(what: &'static str, ours: &'static str, peer: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "env", peer, theirs }
}

const fn workers(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "env", peer: "env_vector.py", theirs }
}

const fn update(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "value", peer: "update_torch.py", theirs }
}

const fn nature(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "value", peer: "update_torch_conv.py", theirs }
}

/// Compares acting; the hidden layers of ours are [`WIDE`].
const fn act(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "act", peer: "act_torch.py", theirs }
}

const fn replay(field: &'static str, what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field, peer: "replay_cpprb.py", theirs }
}

const fn train(what: &'static str, ours: &'static str, peer: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: "env_steps_per_s", peer, theirs }
}

const fn continuous(what: &'static str, ours: &'static str, theirs: &'static str) -> Comparison {
    Comparison { what, ours, field: CONTINUOUSLY, peer: "train_continuous.py", theirs }
}

/// Runs all comparisons, or those of one group, and writes the tables.
pub(crate) fn peers(root: &Path, only: Option<&str>) -> Result<()> {
    if let Some(name) = only.filter(|name| !GROUPS.iter().any(|group| group.name == *name)) {
        bail!(
            "unknown group {name}; expected envs, minatar, minigrid, workers, pictures, learners, avx2, continuous, replay or pipeline"
        );
    }
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    GROUPS.iter().filter(|group| only.is_none_or(|name| name == group.name)).try_for_each(|group| compare(root, group))
}

/// Returns the Python of a virtual environment, making that if necessary.
pub(crate) fn peers_python(root: &Path, venv: &str, requirements: &str) -> Result<PathBuf> {
    let venv = root.join(venv);
    let python = venv.join("bin/python");
    if !python.exists() {
        println!("\n==> installing the peers into {} (up to some gigabytes)", venv.display());
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let requirements = root.join("xtask/peers").join(requirements);
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
    }
    Ok(python)
}

/// Reads the last line of a peer: a rate, or an object of several by name.
fn peers_rates(line: &str) -> Result<Vec<(String, f64)>> {
    match serde_json::from_str(line).context("the peer's figure")? {
        serde_json::Value::Object(rates) => {
            let named = |(name, rate): (String, serde_json::Value)| Some((format!("; {name}"), rate.as_f64()?));
            rates.into_iter().map(named).collect::<Option<_>>().context("the peer's figures")
        }
        rate => Ok(vec![(String::new(), rate.as_f64().context("the peer's figure")?)]),
    }
}

/// Limits to AVX2 for `rl`, PyTorch with its libraries, and XLA.
const AVX2: [(&str, &str); 5] = [
    ("RL_ISA", "avx2"),
    ("ATEN_CPU_CAPABILITY", "avx2"),
    ("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
    ("XLA_FLAGS", "--xla_cpu_max_isa=AVX2"),
];

fn compare(root: &Path, group: &Group) -> Result<()> {
    let limits = || group.limits.iter().copied();
    let python = peers_python(root, group.venv, group.requirements)?;
    let scripts = root.join("xtask/peers");
    let mut table = String::from("| what | ours | peer's | ratio |\n|---|---|---|---|\n");
    println!("\n{}", table.trim_end());
    for case in group.cases {
        let (mut ours, mut theirs) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
        for _ in 0..ROUNDS {
            ours.push(our_rate(Command::new(root.join("target/release/rl")).envs(limits()), root, &python, case)?);
            let mut peer = Command::new(&python);
            let output = run(peer.envs(limits()).arg(scripts.join(case.peer)).args(case.theirs.split(' ')))?;
            for (name, rate) in peers_rates(output.lines().last().unwrap_or_default())? {
                theirs.entry(name).or_default().push(rate);
            }
        }
        let (a, a_low, a_high) = spread(ours);
        for (name, rates) in theirs {
            let (b, b_low, b_high) = spread(rates);
            let row = format!(
                "| {}{name} | {} ({} to {}) | {} ({} to {}) | {:.2} |",
                case.what,
                k(a),
                k(a_low),
                k(a_high),
                k(b),
                k(b_low),
                k(b_high),
                a / b
            );
            println!("{row}");
            table.push_str(&row);
            table.push('\n');
        }
    }
    let head = format!(
        "# Comparisons with other libraries\n\nWritten by `cargo xtask bench --peers {}` on {}: medians of {ROUNDS} alternating runs \
         each, with minimum\nand maximum. {}\n\n",
        group.name,
        machine(root),
        group.unit
    );
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join(group.record), format!("{head}{table}"))?;
    Ok(())
}

/// Measures our rate by the program `command`.
///
/// Environments of Gymnasium, and those of our scripts, run in the peers' `python`.
fn our_rate(command: &mut Command, root: &Path, python: &Path, case: &Comparison) -> Result<f64> {
    command.env("RL_PYTHON", python).env("PYTHONPATH", root.join("xtask/peers"));
    let field = match case.field {
        "env" => {
            command.args(["bench", "env", "--json", "--seconds", "2"]);
            "value"
        }
        "value" => {
            command.args(["bench", "update", "--json", "--seconds", "2"]);
            "value"
        }
        "act" => {
            command.args(["bench", "act", "--json", "--seconds", "2", "--threads", "2", "--hidden", WIDE]);
            "value"
        }
        "pipeline" => {
            command.args(["bench", "pipeline", "--json"]);
            "value"
        }
        "replay_add" | "replay_sample" => {
            command.args(["bench", "replay", "--json", "--seconds", "2"]);
            "value"
        }
        field => {
            // `rl train` refuses to overwrite a run directory.
            let runs = root.join("target/bench-runs");
            let _ = fs::remove_dir_all(&runs);
            command.args(TRAIN.split(' ')).arg("--run-dir").arg(&runs);
            if field == CONTINUOUSLY {
                command.args(["--set", "activation=relu"]);
                "env_steps_per_s"
            } else {
                command.arg("cartpole");
                field
            }
        }
    };
    let output = run(command.args(case.ours.split(' ')))?;
    let line = if case.field == "replay_add" { output.lines().next() } else { output.lines().last() };
    let answer: serde_json::Value = serde_json::from_str(line.unwrap_or_default()).context("our answer")?;
    let rate = answer[field].as_f64().context("our figure")?;
    if case.field == CONTINUOUSLY {
        // Peers are timed after theirs.
        let steps = answer["env_steps"].as_f64().context("our env steps")?;
        return Ok(rate * (steps - LEARNING_STARTS) / steps);
    }
    Ok(rate)
}

/// Formats a rate, in thousands or millions from 10,000 of them on.
pub(crate) fn k(x: f64) -> String {
    match x {
        _ if x < 1e4 => format!("{x:.0}"),
        _ if x < 1e7 => format!("{:.0} k", x / 1e3),
        _ if x < 1e8 => format!("{:.1} M", x / 1e6),
        _ => format!("{:.0} M", x / 1e6),
    }
}

/// Formats a median rate with minimum and maximum.
pub(crate) fn k_range((median, low, high): (f64, f64, f64)) -> String {
    format!("{} ({} to {})", k(median), k(low), k(high))
}

pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns median, minimum and maximum.
pub(crate) fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}
