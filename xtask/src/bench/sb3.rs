//! PPO in worker processes beside Stable-Baselines3's: speed and returns.
//!
//! Both have Stable-Baselines3's default settings. `cargo xtask bench --sb3` measures speed in runs that alternate, and writes
//! `bench/sb3.md`. `cargo xtask bench --sb3-returns` trains over several seeds, two trainings at a time, and writes
//! `bench/sb3-returns.md`; it takes hours. Trainings in the journal
//! `target/sb3-runs/returns.jsonl` are not repeated: delete it after a change of what is trained.

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

/// Environment, env steps, seeds of its returns, settings that undo our preset.
const CASES: [Case; 3] = [
    ("LunarLander-v3", 500_000, 8, "--set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.ent_coef=0"),
    ("CartPole-v1", 500_000, 3, ""),
    ("HalfCheetah-v5", 300_000, 24, "--set normalize_obs=false --set ppo.normalize_reward=false --set ppo.learning_rate=3e-4"),
];
type Case = (&'static str, u64, u64, &'static str);
const SETTINGS: &str = "--envs 8 --threads 2 --set ppo.n_steps=256 --set ppo.batch_size=64 --set ppo.n_epochs=10";
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
const SEED_STRIDE: u64 = 1000;
/// Names of both in the journal of the returns.
const WHO: [&str; 2] = ["ours", "theirs"];
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
    for case in CASES {
        let _ = writeln!(text, "| {} | {} |", case.0, peers.speeds(case)?);
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/sb3.md"), text)?)
}

/// Measures the returns of both, and writes the record.
pub(crate) fn measure_returns(root: &Path) -> Result<()> {
    let python = prepare(root)?;
    let returns = Peers { root, python: &python }.returns()?;
    let mut text = format!(
        "# PPO beside Stable-Baselines3's: returns\n\nWritten by `cargo xtask bench --sb3-returns` on {}. Both have Stable-Baselines3's default settings in 8\n\
         environments of Gymnasium, 2,048 env steps a rollout. {EPISODES} greedy episodes after training: mean and standard error over the seeds \
         0, {SEED_STRIDE} and so on.\n\n\
         | environment | env steps | seeds | ours | theirs | difference |\n|---|---|---|---|---|---|\n",
        machine(root)
    );
    for (env, steps, seeds, _) in CASES {
        let [ours, theirs] = WHO.map(|who| {
            let returns = (0..seeds).filter_map(|k| return_of(&returns, env, who, k * SEED_STRIDE));
            mean_and_error(&returns.collect::<Vec<_>>())
        });
        let difference = with_error((ours.0 - theirs.0, ours.1.hypot(theirs.1)));
        let [ours, theirs] = [ours, theirs].map(with_error);
        let _ = writeln!(text, "| {env} | {steps} | {seeds} | {ours} | {theirs} | {difference} |");
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/sb3-returns.md"), text)?)
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
        let env = case.0;
        let mut tried = Vec::new();
        for way in WAYS {
            let (rate, _) = self.theirs(env, way, TRIED, 0, "0")?;
            println!("{env}, {way:?}: {rate:.0} env steps/s");
            tried.push((rate, way));
        }
        let (_, way) = tried.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).context("a way")?;
        let mut rates = [Vec::new(), Vec::new()];
        for seed in 0..ROUNDS {
            let (ours, _) = self.ours((env, TIMED, 0, case.3), seed, None)?;
            let (theirs, _) = self.theirs(env, way, TIMED, seed, "0")?;
            println!("{env}: ours {ours:.0} env steps/s, theirs {theirs:.0}");
            rates[0].push(ours);
            rates[1].push(theirs);
        }
        let [ours, theirs] = rates.map(spread);
        let theirs_of = format!("{}, {} and {} threads", k_range(theirs), way.0, way.1);
        Ok(format!("{} | {theirs_of} | {:.1}", k_range(ours), ours.0 / theirs.0))
    }

    /// Trains over all seeds that are not in the journal yet, two trainings at a time.
    ///
    /// Returns the whole journal.
    fn returns(self) -> Result<Vec<Value>> {
        let dir = self.root.join("target/sb3-runs");
        fs::create_dir_all(&dir)?;
        let path = dir.join("returns.jsonl");
        let before = read(&path)?;
        let journal = Mutex::new(OpenOptions::new().create(true).append(true).open(&path)?);
        let both = |case: Case| (0..case.2).flat_map(move |k| WHO.map(|who| (case, who, k * SEED_STRIDE)));
        let is_open = |(case, who, seed): &(Case, &str, u64)| return_of(&before, case.0, who, *seed).is_none();
        let jobs = Mutex::new(CASES.into_iter().flat_map(both).filter(is_open));
        let work = || -> Result<()> {
            let next = || jobs.lock().ok()?.next();
            while let Some((case, who, seed)) = next() {
                let (_, mean) = match who {
                    "ours" => self.ours(case, seed, Some(EPISODES))?,
                    _ => self.theirs(case.0, WAYS[0], case.1, seed, EPISODES)?,
                };
                let line = json!({"env": case.0, "who": who, "seed": seed, "return_mean": mean.context("return_mean")?});
                println!("{line}");
                journal.lock().ok().context("a training panicked")?.write_all(format!("{line}\n").as_bytes())?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(work);
            work()?;
            second.join().ok().context("a training panicked")?
        })?;
        read(&path)
    }

    /// Returns env steps per second and, after `episodes` episodes, their mean return.
    fn theirs(
        self,
        env: &str,
        (kind, threads): (&str, &str),
        steps: u64,
        seed: u64,
        episodes: &str,
    ) -> Result<(f64, Option<f64>)> {
        let mut command = Command::new(self.python);
        command.arg(self.root.join("xtask/peers/study_sb3.py")).args(["ppo", env, "8", kind, threads]);
        let answer = last_line(command.args([&steps.to_string(), &seed.to_string(), episodes]))?;
        Ok((figure(&answer, "env_steps_per_s")?, answer["return_mean"].as_f64()))
    }

    /// Returns env steps per second and, after `episodes` episodes, their mean return.
    fn ours(self, (env, steps, _, settings): Case, seed: u64, episodes: Option<&str>) -> Result<(f64, Option<f64>)> {
        let dir = self.root.join(format!("target/sb3-runs/{env}-{seed}"));
        let _ = fs::remove_dir_all(&dir);
        let program = || {
            let mut command = Command::new(self.root.join("target/release/rl"));
            command.env("RL_PYTHON", self.python);
            command
        };
        let mut command = program();
        command.args(TRAIN.split(' ')).arg(format!("gym:{env}")).args(SETTINGS.split(' ')).args(settings.split_whitespace());
        command.args(["--steps", &steps.to_string(), "--seed", &seed.to_string(), "--run-dir"]).arg(&dir);
        let rate = figure(&last_line(&mut command)?, "env_steps_per_s")?;
        let Some(episodes) = episodes else { return Ok((rate, None)) };
        let evaluated = last_line(program().args(["eval", "--episodes", episodes, "--json"]).arg(&dir))?;
        Ok((rate, Some(figure(&evaluated, "return_mean")?)))
    }
}

/// Reads the journal of trainings that have ended.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let read = |line| serde_json::from_str(line).with_context(|| format!("{}: {line}: delete this line", path.display()));
    text.lines().map(read).collect()
}

/// Returns the return of a training in the journal.
fn return_of(journal: &[Value], env: &str, who: &str, seed: u64) -> Option<f64> {
    let trained = journal.iter().find(|trained| trained["env"] == env && trained["who"] == who && trained["seed"] == seed)?;
    trained["return_mean"].as_f64()
}

fn figure(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| name.to_string())
}
