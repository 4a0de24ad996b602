//! PPO in worker processes beside Stable-Baselines3's: speed and returns.
//!
//! `cargo xtask bench --sb3` gives both Stable-Baselines3's default settings, and writes `bench/sb3.md`. It measures speed first, in runs that
//! alternate; then it trains over several seeds, two trainings at a time, and measures returns.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::bench::{TRAIN, k_range, peers_python, spread};
use crate::presets::{last_line, mean_and_error};
use crate::process::machine;

/// Environment, env steps, seeds of its returns, settings that undo our preset.
const CASES: [Case; 3] = [
    ("LunarLander-v3", 500_000, 12, "--set ppo.gamma=0.99 --set ppo.gae_lambda=0.95 --set ppo.ent_coef=0"),
    ("CartPole-v1", 500_000, 3, ""),
    ("HalfCheetah-v5", 300_000, 12, "--set normalize_obs=false --set ppo.normalize_reward=false --set ppo.learning_rate=3e-4"),
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
/// First seed of the returns.
const FIRST_SEED: u64 = 100;
/// Greedy episodes after training.
const EPISODES: &str = "100";

/// Measures both, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let python = peers_python(root, "target/peers", "requirements.txt")?;
    let peers = Peers { root, python: &python };
    let speeds = CASES.iter().map(|case| peers.speeds(*case)).collect::<Result<Vec<_>>>()?;
    let returns = peers.returns()?;
    let mut text = format!(
        "# PPO beside Stable-Baselines3's\n\nWritten by `cargo xtask bench --sb3` on {}. Both have Stable-Baselines3's default settings in 8\n\
         environments of Gymnasium, 2,048 env steps a rollout; ours step in 2 worker processes. Speed: medians of {ROUNDS} alternating runs of \
         {TIMED}\nenv steps, with minimum and maximum; theirs is the fastest of DummyVecEnv and SubprocVecEnv with 1 and 2 threads of PyTorch, \
         tried for\n{TRIED} env steps each. Returns: {EPISODES} greedy episodes after the env steps named, mean and standard error over the seeds from\n{FIRST_SEED} on, \
         trained two at a time.\n\n\
         | environment | ours, env steps/s | theirs | ratio | return after | seeds | ours | theirs |\n|---|---|---|---|---|---|---|---|\n",
        machine(root)
    );
    for (i, (env, steps, seeds, _)) in CASES.into_iter().enumerate() {
        let [ours, theirs] = [0, 1]
            .map(|who| mean_and_error(&returns.iter().filter(|(of, ..)| *of == [i, who]).map(|(_, r)| *r).collect::<Vec<_>>()));
        let _ = writeln!(text, "| {env} | {} | {steps} | {seeds} | {ours} | {theirs} |", speeds[i]);
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/sb3.md"), text)?)
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

    /// Trains over all seeds, two trainings at a time.
    ///
    /// Returns mean returns, each with the index of its case and who trained: 0 for ours, 1 for theirs.
    fn returns(self) -> Result<Vec<([usize; 2], f64)>> {
        let jobs = (0..CASES.len()).flat_map(|i| (0..CASES[i].2).flat_map(move |k| [1, 0].map(|who| ([i, who], FIRST_SEED + k))));
        let jobs = Mutex::new(jobs);
        let work = || -> Result<Vec<([usize; 2], f64)>> {
            let next = || jobs.lock().ok()?.next();
            let mut done = Vec::new();
            while let Some(([i, who], seed)) = next() {
                let case = CASES[i];
                let (_, of) = if who == 0 {
                    self.ours(case, seed, Some(EPISODES))?
                } else {
                    self.theirs(case.0, WAYS[0], case.1, seed, EPISODES)?
                };
                let of = of.context("return_mean")?;
                println!("{}, seed {seed}: {} {of:.1}", case.0, ["ours", "theirs"][who]);
                done.push(([i, who], of));
            }
            Ok(done)
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(work);
            let mut done = work()?;
            done.extend(second.join().ok().context("a training panicked")??);
            Ok(done)
        })
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

fn figure(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| name.to_string())
}
