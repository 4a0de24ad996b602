//! Kills runs at random moments, and compares them with uninterrupted ones.
//!
//! `cargo xtask kill9 --kills N` sends SIGKILL to runs that save after every iteration, and resumes them until they are done.
//! Parameters, optimizer and replay memory must be equal byte for byte, as must the state except the time spent, and every metric
//! except times.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::chaos::mutate::Random;
use crate::process::{Process, RlProgram, newest_checkpoint, scratch};

/// Name and arguments of each configuration.
const CASES: [(&str, &str); 8] = [
    (
        "PPO, normalizers",
        "cartpole --set ppo.n_steps=16 --set ppo.batch_size=32 --set normalize_obs=true --set ppo.normalize_reward=true",
    ),
    ("A2C", "acrobot --algo a2c --set normalize_obs=true"),
    ("PPO, memory", "pendulum --set ppo.n_steps=16 --set ppo.batch_size=32 --set memory=gru --set env.hide=velocities"),
    ("PPO, overlapped", "cartpole --set ppo.n_steps=16 --set ppo.batch_size=32 --set pipeline=overlapped --set max_lag=2"),
    ("A2C, overlapped", "cartpole --algo a2c --set pipeline=overlapped --set max_lag=1"),
    (
        "DQN, prioritized replay",
        "cartpole --algo dqn --set dqn.buffer_size=2000 --set dqn.learning_starts=200 --set dqn.prioritized=true --set \
         dqn.save_replay=true",
    ),
    (
        "TD3, noise that is the policy's memory",
        "pendulum --algo td3 --set hidden=[16] --set td3.buffer_size=2000 --set td3.learning_starts=200 --set td3.save_replay=true --set \
         td3.action_noise=ornstein_uhlenbeck",
    ),
    (
        "DQN, frames",
        "breakout --algo dqn --set conv=[] --set dqn.buffer_size=500 --set dqn.learning_starts=100 --set dqn.save_replay=true --set dqn.n_steps=3",
    ),
];
const LIMIT: Duration = Duration::from_secs(120);
/// Approximate number of kills before a run is done.
const KILLS_A_RUN: u32 = 10;

#[derive(clap::Args)]
pub(crate) struct Kill9Args {
    #[arg(long, value_name = "N")]
    kills: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    program: RlProgram,
}

/// Kills, and prints the table.
pub(crate) fn run(root: &Path, args: &Kill9Args) -> Result<()> {
    let kills = args.kills;
    let program = args.program.get(root, &[])?;
    let random = &mut Random::new(args.seed, 0);
    let dir = scratch(root, "kill9")?;
    println!("| run | kills | runs | resumed runs equal uninterrupted ones |\n|---|---|---|---|");
    let mut total = 0;
    for (i, (name, args)) in CASES.iter().enumerate() {
        let share = kills / CASES.len() + usize::from(i < kills % CASES.len());
        let (mut killed, mut runs) = (0, 0);
        while killed < share {
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir)?;
            let twins = Twins { program: &program, dir: &dir, args: format!("{args} --seed {runs}") };
            killed +=
                twins.compare(share - killed, random).with_context(|| format!("{name}, run {runs} in {}", dir.display()))?;
            runs += 1;
        }
        println!("| {name} | {killed} | {runs} | yes |");
        total += killed;
    }
    let _ = fs::remove_dir_all(&dir);
    println!("{total} kills");
    Ok(())
}

/// Two runs of one configuration: uninterrupted, and killed repeatedly.
struct Twins<'a> {
    program: &'a Path,
    dir: &'a Path,
    args: String,
}

impl Twins<'_> {
    fn start(&self, name: &str) -> Result<Process> {
        let run = self.dir.join(name);
        let mut command = Command::new(self.program);
        if run.join("config.toml").exists() {
            command.arg("train").arg("--resume").arg(run);
        } else {
            let settings = "--steps 12000 --threads 2 --set hidden=[8] --set n_envs=2 --set checkpoint_every=1 --set keep_checkpoints=2 --set \
                            log_interval=1 --set eval_episodes=1 --eval-every 1000";
            let args = self.args.split_whitespace().chain(settings.split_whitespace());
            command.arg("train").args(args).arg("--run-dir").arg(run);
        }
        Process::start(&mut command, &self.dir.join(format!("{name}.err")))
    }

    /// Kills one run up to `kills` times, compares both, and counts the kills.
    fn compare(&self, kills: usize, random: &mut Random) -> Result<usize> {
        let begin = Instant::now();
        let mut whole = self.start("whole")?;
        let status = whole.wait(LIMIT)?;
        ensure!(status.success(), "{status}: {}", whole.complaint());
        let longest = 2 * begin.elapsed() / KILLS_A_RUN;
        let mut killed = 0;
        loop {
            let mut process = self.start("killed")?;
            let life = longest.mul_f64(random.below(1000) as f64 / 1000.0);
            let status = if killed < kills { process.ended_within(life)? } else { Some(process.wait(LIMIT)?) };
            match status {
                Some(status) if status.success() => break,
                Some(status) => bail!("after {killed} kills: {status}: {}", process.complaint()),
                None => {
                    process.kill();
                    killed += 1;
                }
            }
            // The kill came before anything was written: nothing to resume, and nothing lost.
            let run = self.dir.join("killed");
            if !run.join("config.toml").exists() {
                let _ = fs::remove_dir_all(run);
            }
        }
        self.same()?;
        Ok(killed)
    }

    fn same(&self) -> Result<()> {
        let [a, b] = ["whole", "killed"].map(|name| self.dir.join(name));
        let [(a_checkpoint, a_steps), (b_checkpoint, b_steps)] =
            [newest_checkpoint(&a).context("no checkpoint")?, newest_checkpoint(&b).context("no checkpoint")?];
        ensure!(a_steps == b_steps, "the runs end at {a_steps} and {b_steps} env steps");
        let mut names: Vec<_> = fs::read_dir(&a_checkpoint)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
        names.sort();
        for name in &names {
            let [a, b] = [fs::read(a_checkpoint.join(name))?, fs::read(b_checkpoint.join(name)).context(format!("{name:?}"))?];
            match name.to_str() {
                Some("manifest.json") => {}
                Some("state.bin") => ensure!(differ_in_one_number(&a, &b), "state.bin differs in more than the time spent"),
                _ => ensure!(a == b, "{} differs", name.display()),
            }
        }
        let [a, b] = [metrics(&a)?, metrics(&b)?];
        if let Some(line) = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i)) {
            bail!("metrics.csv differs in line {}: {:?} and {:?}", line + 1, a.get(line), b.get(line));
        }
        let leftover = fs::read_dir(self.dir.join("killed/checkpoints"))?
            .flatten()
            .find(|entry| entry.path().extension().is_some_and(|extension| extension == "tmp"));
        ensure!(leftover.is_none(), "{leftover:?} was left behind");
        Ok(())
    }
}

/// Returns true if all differing bytes fit into one 8-byte number.
///
/// That number is the time spent, the only time in a state.
fn differ_in_one_number(a: &[u8], b: &[u8]) -> bool {
    let mut differences = (0..a.len().min(b.len())).filter(|&i| a[i] != b[i]);
    let first = differences.next();
    let last = differences.next_back().or(first);
    a.len() == b.len() && first.zip(last).is_none_or(|(first, last)| last - first < 8)
}

/// Reads metrics.csv without times and counts that restart with the process.
fn metrics(run: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(run.join("metrics.csv"))?;
    let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    let counts = ["time/total_timesteps", "time/iterations", "time/episodes"];
    let kept =
        |name: &str| counts.contains(&name) || !["time/", "system/", "pipeline/"].iter().any(|section| name.starts_with(section));
    let line = |line: &str| {
        let cells = line.split(',').zip(&header).filter(|(_, name)| kept(name)).map(|(cell, _)| cell);
        cells.collect::<Vec<_>>().join(",")
    };
    Ok(text.lines().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_may_differ_in_one_number_only() {
        let a = [0u8; 40];
        let with = |places: &[usize]| {
            let mut b = a;
            places.iter().for_each(|&i| b[i] = 1);
            differ_in_one_number(&a, &b)
        };
        assert!(with(&[]) && with(&[8]) && with(&[8, 11, 15]));
        assert!(!with(&[8, 16]) && !with(&[0, 39]) && !differ_in_one_number(&a, &a[1..]));
    }
}
