//! Training in worker processes beside Stable-Baselines3's: speed and returns.
//!
//! Both have Stable-Baselines3's default settings, but SAC and TD3 learn after 1,000 env steps (default 100), and TD3 explores
//! with noise (default none). `cargo xtask bench --sb3` measures PPO's speed in runs that alternate, and
//! writes `bench/sb3.md`. `cargo xtask bench --sb3-returns ppo|continuous` trains over several seeds, two trainings at a time,
//! and writes `bench/sb3-returns.md` or `bench/sb3-continuous.md`; it takes hours. Each training is a line of the journal beside
//! the record, `bench/sb3-returns.jsonl` or `bench/sb3-continuous.jsonl`, and is not repeated: delete the journal after a change
//! of what is trained.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bench::peers::{TRAIN, k_range, peers_python, spread};
use crate::bench::presets::{last_line, mean_and_error, with_error};
use crate::process::machine;

/// A training that both programs run: ours and Stable-Baselines3's.
#[derive(Clone, Copy)]
struct Case {
    algo: &'static str,
    env: &'static str,
    /// Environments that step in turn.
    n_envs: u64,
    /// Env steps.
    steps: u64,
    /// Seeds of its returns.
    seeds: u64,
    /// Our settings that are Stable-Baselines3's, where our preset has others.
    settings: &'static [&'static str],
    /// True if ours begin with uniform weights, as their SAC and TD3 do.
    uniform: bool,
}

/// PPO in eight environments, and SAC and TD3 in one.
const PPO: Case = Case {
    algo: "ppo",
    env: "LunarLander-v3",
    n_envs: 8,
    steps: 500_000,
    seeds: 8,
    settings: &["--threads 2 --set ppo.n_steps=256 --set ppo.batch_size=64 --set ppo.n_epochs=10"],
    uniform: false,
};
const SAC: Case = Case {
    algo: "sac",
    n_envs: 1,
    steps: 30_000,
    seeds: 5,
    settings: &[
        "--threads 1 --set hidden=[256,256] --set activation=relu --set sac.learning_starts=1000 --set sac.learning_rate=3e-4 \
                 --set sac.tau=0.005 --set sac.buffer_size=1000000",
    ],
    ..PPO
};
const TD3: Case = Case {
    algo: "td3",
    settings: &[
        "--threads 1 --set hidden=[400,300] --set activation=relu --set td3.learning_starts=1000 --set td3.learning_rate=1e-3 \
                 --set td3.gamma=0.99 --set td3.buffer_size=1000000",
    ],
    ..SAC
};
const OWN_RATE: &str = "--set normalize_obs=false --set ppo.normalize_reward=false --set ppo.learning_rate=3e-4";
const OWN_DISCOUNT: &str = "--set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.ent_coef=0";

/// Cases of PPO.
const ON_POLICY: [Case; 3] = [
    Case { settings: &[PPO.settings[0], OWN_DISCOUNT], ..PPO },
    Case { env: "CartPole-v1", seeds: 3, ..PPO },
    Case { env: "HalfCheetah-v5", steps: 300_000, seeds: 24, settings: &[PPO.settings[0], OWN_RATE], ..PPO },
];
const LUNAR_LANDER: &str = "LunarLanderContinuous-v3";
/// Cases of SAC and TD3.
const CONTINUOUS: [Case; 16] = [
    Case { env: "HalfCheetah-v5", seeds: 10, ..SAC },
    Case { env: "Hopper-v5", ..SAC },
    Case { env: "Walker2d-v5", seeds: 20, ..SAC },
    Case { env: LUNAR_LANDER, seeds: 10, ..SAC },
    Case { env: "HalfCheetah-v5", ..TD3 },
    Case { env: "Hopper-v5", ..TD3 },
    Case { env: "Walker2d-v5", ..TD3 },
    Case { env: LUNAR_LANDER, seeds: 20, ..TD3 },
    Case { env: LUNAR_LANDER, seeds: 20, uniform: true, ..TD3 },
    Case { env: "HalfCheetah-v5", uniform: true, ..SAC },
    Case { env: "Hopper-v5", uniform: true, ..SAC },
    Case { env: "Walker2d-v5", uniform: true, ..SAC },
    Case { env: LUNAR_LANDER, uniform: true, ..SAC },
    Case { env: "HalfCheetah-v5", uniform: true, ..TD3 },
    Case { env: "Hopper-v5", uniform: true, ..TD3 },
    Case { env: "Walker2d-v5", uniform: true, ..TD3 },
];
/// Their vector environments and numbers of threads; the fastest is compared.
const WAYS: [(&str, &str); 4] = [("dummy", "1"), ("dummy", "2"), ("subproc", "1"), ("subproc", "2")];
/// Env steps that find the fastest.
const TRIED: u64 = 10_240;
/// Env steps of a run that measures speed, and the number of such runs.
const TIMED: u64 = 102_400;
const ROUNDS: u64 = 3;
/// Distance between the seeds of the returns.
///
/// Environment i of a run has its seed + i.
pub(super) const SEED_STRIDE: u64 = 1000;
/// Their name in the journal of the returns.
const THEIRS: &str = "theirs";
/// Greedy episodes after training.
const EPISODES: &str = "100";

/// Measures the speed of both, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    let python = prepare(root)?;
    let peers = Peers { root, python: &python };
    let mut text = format!(
        "# PPO beside Stable-Baselines3's: speed\n\nWritten by `cargo xtask bench --sb3` on {}. Both have Stable-Baselines3's default settings in 8\n\
         environments of Gymnasium, 2,048 env steps a rollout; ours step in 2 worker processes. Medians of {ROUNDS} alternating runs of \
         {TIMED}\nenv steps, with minimum and maximum; theirs is the fastest of DummyVecEnv and SubprocVecEnv with 1 and 2 threads of PyTorch, \
         tried for\n{TRIED} env steps each.\n\n\
         | environment | ours, env steps/s | theirs | ratio |\n|---|---|---|---|\n",
        machine(root)
    );
    for case in ON_POLICY {
        let _ = writeln!(text, "| {} | {} |", case.env, peers.speeds(case)?);
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/sb3.md"), text)?)
}

/// A record of returns.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum ReturnsOf {
    /// PPO's.
    Ppo,
    /// SAC's and TD3's.
    Continuous,
}

/// Measures the returns of both, and writes the record.
pub(crate) fn measure_returns(root: &Path, of: ReturnsOf) -> Result<()> {
    let (cases, file, title, name, both): (&[Case], _, _, _, _) = match of {
        ReturnsOf::Ppo => (
            &ON_POLICY,
            "bench/sb3-returns.md",
            "PPO",
            "ppo",
            "settings in 8\nenvironments of Gymnasium, 2,048 env steps a rollout",
        ),
        ReturnsOf::Continuous => (
            &CONTINUOUS,
            "bench/sb3-continuous.md",
            "SAC and TD3",
            "continuous",
            "settings in one\nenvironment of Gymnasium, an update of 256 transitions after each env step, but learn after 1,000 random \
             env steps (default 100); TD3\nexplores with noise of deviation 0.1 (default none)",
        ),
    };
    let python = prepare(root)?;
    let heading = format!(
        "# {title} beside Stable-Baselines3's: returns\n\nWritten by `cargo xtask bench --sb3-returns {name}`. Both have \
         Stable-Baselines3's default {both}. {EPISODES} greedy episodes after training: mean and standard error over the seeds \
         0, {SEED_STRIDE} and so on.\n\n\
         | algorithm | environment | env steps | seeds | ours | theirs | difference |\n|---|---|---|---|---|---|---|\n"
    );
    let record = root.join(file);
    let write = |returns: &[Value]| {
        let rows: String = cases.iter().filter_map(|case| case.row(returns)).collect();
        let mut counts = BTreeMap::<&str, usize>::new();
        for of in returns {
            *counts.entry(of["machine"].as_str().unwrap_or("a machine that was not recorded")).or_default() += 1;
        }
        let machines: String = counts.iter().map(|(machine, n)| format!("- {n} on {machine}\n")).collect();
        Ok(fs::write(&record, format!("{heading}{rows}\nTrainings:\n\n{machines}"))?)
    };
    Peers { root, python: &python }.returns(cases, &record.with_extension("jsonl"), &write)
}

/// Builds both programs; returns the Python of theirs.
fn prepare(root: &Path) -> Result<PathBuf> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    peers_python(root, "target/peers", "requirements.txt")
}

/// Programs of both.
#[derive(Clone, Copy)]
struct Peers<'a> {
    root: &'a Path,
    python: &'a Path,
}

impl Peers<'_> {
    /// Returns three cells: our env steps per second, theirs, and the ratio.
    fn speeds(self, case: Case) -> Result<String> {
        let env = case.env;
        let tried = Case { steps: TRIED, ..case };
        let timed = Case { steps: TIMED, ..case };
        let mut rates_of = Vec::new();
        for way in WAYS {
            let (rate, _) = self.theirs(tried, way, 0, "0")?;
            println!("{env}, {way:?}: {rate:.0} env steps/s");
            rates_of.push((rate, way));
        }
        let (_, way) = rates_of.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).context("a way")?;
        let mut rates = [Vec::new(), Vec::new()];
        for seed in 0..ROUNDS {
            let (ours, _) = self.ours(timed, seed, None)?;
            let (theirs, _) = self.theirs(timed, way, seed, "0")?;
            println!("{env}: ours {ours:.0} env steps/s, theirs {theirs:.0}");
            rates[0].push(ours);
            rates[1].push(theirs);
        }
        let [ours, theirs] = rates.map(spread);
        let theirs_of = format!("{}, {} and {} threads", k_range(theirs), way.0, way.1);
        Ok(format!("{} | {theirs_of} | {:.1}", k_range(ours), ours.0 / theirs.0))
    }

    /// Trains over all seeds that the journal lacks, two trainings at a time.
    ///
    /// It is at `path`. `write` receives it whenever a training has ended.
    fn returns(self, cases: &[Case], path: &Path, write: &(dyn Fn(&[Value]) -> Result<()> + Sync)) -> Result<()> {
        let (before, machine) = (read(path)?, machine(self.root));
        let open = cases
            .iter()
            .flat_map(|case| (0..case.seeds).map(move |k| (*case, k * SEED_STRIDE)))
            .flat_map(|(case, seed)| [case.ours(), THEIRS].map(|who| (case, who, seed)))
            .filter(|(case, who, _)| *who != THEIRS || !case.uniform) // another case has theirs
            .filter(|(case, who, seed)| case.return_of(&before, who, *seed).is_none());
        let jobs = Mutex::new(open);
        let journal = Mutex::new(before.clone());
        let work = || -> Result<()> {
            let next = || jobs.lock().ok()?.next();
            while let Some((case, who, seed)) = next() {
                let (_, mean) = match who {
                    THEIRS => self.theirs(case, WAYS[0], seed, EPISODES)?,
                    _ => self.ours(case, seed, Some(EPISODES))?,
                };
                let Case { algo, env, steps, .. } = case;
                let mean = mean.context("return_mean")?;
                let line = json!({"algo": algo, "env": env, "env_steps": steps, "who": who, "seed": seed, "return_mean": mean, "machine": machine});
                println!("{line}");
                let mut journal = journal.lock().ok().context("a training panicked")?;
                let mut file = OpenOptions::new().create(true).append(true).open(path)?;
                file.write_all(format!("{line}\n").as_bytes())?;
                journal.push(line);
                write(&journal)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(work);
            work()?;
            second.join().ok().context("a training panicked")?
        })
    }

    /// Returns env steps per second and, after `episodes` episodes, their mean return.
    fn theirs(self, case: Case, (kind, threads): (&str, &str), seed: u64, episodes: &str) -> Result<(f64, Option<f64>)> {
        let mut command = Command::new(self.python);
        command.arg(self.root.join("xtask/peers/study_sb3.py")).args([
            case.algo,
            case.env,
            &case.n_envs.to_string(),
            kind,
            threads,
        ]);
        let answer = last_line(command.args([&case.steps.to_string(), &seed.to_string(), episodes]))?;
        Ok((figure(&answer, "env_steps_per_s")?, answer["return_mean"].as_f64()))
    }

    /// Returns env steps per second and, after `episodes` episodes, their mean return.
    fn ours(self, case: Case, seed: u64, episodes: Option<&str>) -> Result<(f64, Option<f64>)> {
        let Case { algo, env, n_envs, steps, settings, uniform, .. } = case;
        let dir = self.root.join(format!("target/sb3-runs/{env}-{algo}-{uniform}-{seed}"));
        let _ = fs::remove_dir_all(&dir);
        let program = || {
            let mut command = Command::new(self.root.join("target/release/rl"));
            command.env("RL_PYTHON", self.python);
            command
        };
        let mut command = program();
        command.args(TRAIN.split(' ')).arg(format!("gym:{env}")).args(["--algo", algo, "--envs", &n_envs.to_string()]);
        command.args(settings.iter().flat_map(|settings| settings.split_whitespace()));
        command.args(uniform.then_some(["--set", "ortho_init=false"]).into_iter().flatten());
        command.args(["--steps", &steps.to_string(), "--seed", &seed.to_string(), "--run-dir"]).arg(&dir);
        let rate = figure(&last_line(&mut command)?, "env_steps_per_s")?;
        let Some(episodes) = episodes else { return Ok((rate, None)) };
        let evaluated =
            last_line(program().args(["eval", "--episodes", episodes, "--seed", &seed.to_string(), "--json"]).arg(&dir))?;
        Ok((rate, Some(figure(&evaluated, "return_mean")?)))
    }
}

/// Reads the journal of trainings that have ended.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let read = |line| serde_json::from_str(line).with_context(|| format!("{}: {line}: delete this line", path.display()));
    text.lines().map(read).collect()
}

impl Case {
    /// Our name in the journal of the returns.
    fn ours(&self) -> &'static str {
        if self.uniform { "ours, uniform" } else { "ours" }
    }

    /// Returns the record's row, once both have been trained twice.
    fn row(&self, journal: &[Value]) -> Option<String> {
        let Self { algo, env, steps, seeds, uniform, .. } = *self;
        let returns = [self.ours(), THEIRS]
            .map(|who| (0..seeds).filter_map(|k| self.return_of(journal, who, k * SEED_STRIDE)).collect::<Vec<_>>());
        if returns.iter().any(|returns| returns.len() < 2) {
            return None;
        }
        let trained = match returns.each_ref().map(Vec::len) {
            [ours, theirs] if ours == theirs => ours.to_string(),
            [ours, theirs] => format!("{ours} and {theirs}"),
        };
        let [ours, theirs] = returns.map(|returns| mean_and_error(&returns));
        let difference = with_error((ours.0 - theirs.0, ours.1.hypot(theirs.1)));
        let [ours, theirs] = [ours, theirs].map(with_error);
        let (algo, settings) = (algo.to_uppercase(), if uniform { ", uniform" } else { "" });
        Some(format!("| {algo}{settings} | {env} | {steps} | {trained} | {ours} | {theirs} | {difference} |\n"))
    }

    /// Returns the return of a training in the journal.
    fn return_of(&self, journal: &[Value], who: &str, seed: u64) -> Option<f64> {
        let is_it = |trained: &&Value| {
            trained["algo"] == self.algo
                && trained["env"] == self.env
                && trained["env_steps"] == self.steps
                && trained["who"] == who
                && trained["seed"] == seed
        };
        journal.iter().find(is_it)?["return_mean"].as_f64()
    }
}

fn figure(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| name.to_string())
}
