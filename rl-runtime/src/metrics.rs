//! What is measured: one row of `metrics.csv` for each iteration that is logged.
//!
//! Names that Stable-Baselines3 has, too, have its meaning:
//!
//! | column | meaning |
//! |---|---|
//! | `time/total_timesteps` | environment steps: the x-axis of every curve |
//! | `time/iterations` | rollouts |
//! | `time/episodes` | episodes that have ended |
//! | `rollout/ep_rew_mean`, `rollout/ep_len_mean` | mean return and length of the last 100 episodes |
//! | `eval/mean_reward` | mean return of the evaluation after this iteration, if there was one |
//! | `train/loss` | loss of the last minibatch; DQN: mean over minibatches |
//! | `train/policy_gradient_loss` (PPO), `train/policy_loss` (A2C), `train/value_loss`, `train/entropy_loss` | mean over the minibatches of the update |
//! | `train/approx_kl` | PPO: KL divergence from the policy at the start of the update, mean over the last epoch |
//! | `train/clip_fraction` | PPO: share of clipped samples, mean over minibatches |
//! | `train/q_mean` | DQN: action value of the replayed actions, mean over minibatches |
//! | `train/grad_norm` | norm of the gradient before clipping, mean over the optimizer steps of the update; empty if there was none |
//! | `train/skipped_updates` | optimizer steps of the update that were skipped because loss or gradient was not finite |
//! | `train/explained_variance` | share of the returns' variance that the values explain |
//! | `train/std` | continuous actions: standard deviation of the policy, mean over dimensions |
//! | `train/learning_rate`, `train/clip_range` | schedules |
//! | `train/n_updates` | PPO: epochs so far; A2C: rollouts learnt from; DQN: optimizer steps |
//! | `rollout/exploration_rate` | DQN: epsilon |
//! | `pipeline/lag_0` .. `pipeline/lag_over_8` | of overlapped runs: columns of rollouts, since the run began or was resumed, by how many rollouts the agent had learnt from since it had the policy that acted there |
//! | `time/queue` | of overlapped runs: rollouts that waited for the learner, on average |
//! | `time/learner_waited`, `time/producer_waited` | of overlapped runs: seconds so far |
//! | `time/time_elapsed` | seconds of training |
//! | `time/fps` | environment steps a second since the run began or was resumed |
//!
//! Columns under `time` are the only ones that differ between two runs of the same seed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::Error;
use crate::checkpoint::Progress;
use crate::file::write_whole;
use crate::profile::{Phase, Profile};

/// How many episodes the means of returns and lengths are taken over.
pub const WINDOW: usize = 100;

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Names and values, in the order of the columns.
    pub values: Vec<(&'static str, f64)>,
}

impl Row {
    /// From where a run stands, its last evaluation and its last update.
    #[must_use]
    pub fn new(progress: &Progress, eval_return: Option<f64>, update: &rl_agents::Metrics, fps: f64) -> Self {
        let mut values = vec![
            ("time/total_timesteps", progress.env_steps as f64),
            ("time/iterations", progress.iterations as f64),
            ("time/episodes", progress.episodes as f64),
            ("rollout/ep_rew_mean", progress.return_mean()),
            ("rollout/ep_len_mean", progress.length_mean()),
            ("eval/mean_reward", eval_return.unwrap_or(f64::NAN)),
        ];
        values.extend(update.iter().map(|(name, value)| (name, f64::from(value))));
        values.extend([("time/time_elapsed", progress.elapsed_s), ("time/fps", fps)]);
        Self { values }
    }
}

/// The bins of the lag's histogram, by their least lag.
const LAGS: [(u64, &str); 6] = [
    (0, "pipeline/lag_0"),
    (1, "pipeline/lag_1"),
    (2, "pipeline/lag_2"),
    (3, "pipeline/lag_3_4"),
    (5, "pipeline/lag_5_8"),
    (9, "pipeline/lag_over_8"),
];

/// What is measured where collecting and learning overlap.
#[derive(Clone, Debug, Default)]
pub struct Overlap {
    lags: [u64; LAGS.len()],
    waiting: usize,
    rollouts: usize,
}

impl Overlap {
    /// Counts a rollout whose columns were acted in by policies that had learnt from `acted` rollouts, as its learner has from `learnt`.
    /// `waiting` rollouts lay before the learner.
    pub fn count(&mut self, waiting: usize, acted: &[u64], learnt: u64) {
        for acted in acted {
            let lag = learnt.saturating_sub(*acted);
            let bin = LAGS.iter().rposition(|(least, _)| lag >= *least).unwrap_or(0);
            self.lags[bin] += 1;
        }
        self.waiting += waiting;
        self.rollouts += 1;
    }

    /// Columns counted so far by lag: 0, 1, 2, 3 and 4, 5 to 8, more.
    #[must_use]
    pub fn lags(&self) -> [u64; LAGS.len()] {
        self.lags
    }

    /// Adds its columns to a row, before the last two.
    pub fn extend(&self, row: &mut Row, profile: &Profile) {
        let at = row.values.len() - 2;
        let lags = LAGS.iter().zip(self.lags).map(|((_, name), n)| (*name, n as f64));
        let times = [
            ("time/queue", self.waiting as f64 / self.rollouts as f64),
            ("time/learner_waited", profile.seconds(Phase::WaitProducers)),
            ("time/producer_waited", profile.seconds(Phase::WaitLearner)),
        ];
        row.values.splice(at..at, lags.chain(times));
    }
}

/// The env steps of the last whole row of a log, if there is one.
#[must_use]
pub fn last_env_steps(path: &Path) -> Option<u64> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.filter_map(|line| line.split(',').next()?.parse().ok()).next_back()
}

impl Progress {
    /// Mean return of the last episodes; NaN before the first has ended.
    #[must_use]
    pub fn return_mean(&self) -> f64 {
        self.recent.iter().map(|e| e.episode_return).sum::<f64>() / self.recent.len() as f64
    }

    /// Mean length of the last episodes; NaN before the first has ended.
    #[must_use]
    pub fn length_mean(&self) -> f64 {
        self.recent.iter().map(|e| f64::from(e.length)).sum::<f64>() / self.recent.len() as f64
    }
}

/// `metrics.csv`. If it cannot be written, training goes on and the first failure is told.
#[derive(Debug)]
pub struct Log {
    file: Option<File>,
    empty: bool,
}

impl Log {
    /// Opens the log and keeps what belongs to the first `iterations` iterations: rows that a crashed run wrote after its last
    /// checkpoint are dropped, a torn last line too.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(path: &Path, iterations: u64) -> Result<Self, Error> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io(path)(error)),
        };
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let belongs = |line: &&str| {
            let iteration = line.split(',').nth(1);
            iteration.is_some_and(|i| i == "time/iterations" || i.parse().is_ok_and(|i: u64| i <= iterations))
        };
        let kept: String = if iterations == 0 { String::new() } else { whole.filter(belongs).collect() };
        write_whole(path, kept.as_bytes())?;
        let file = File::options().append(true).open(path).map_err(Error::io(path))?;
        Ok(Self { file: Some(file), empty: kept.is_empty() })
    }

    /// Appends a row. After a failure, which is returned once, nothing more is written.
    ///
    /// # Errors
    /// What the system said.
    pub fn write(&mut self, row: &Row) -> Result<(), std::io::Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut text = String::new();
        if self.empty {
            let names: Vec<&str> = row.values.iter().map(|(name, _)| *name).collect();
            let _ = writeln!(text, "{}", names.join(","));
            self.empty = false;
        }
        let values: Vec<String> = row.values.iter().map(|(_, value)| shortest(*value)).collect();
        let _ = writeln!(text, "{}", values.join(","));
        let written = file.write_all(text.as_bytes());
        if written.is_err() {
            self.file = None;
        }
        written
    }
}

/// A number in its shortest form; nothing for NaN. What is an f32 is written as one, so that 0.3 is not 0.30000001192092896.
fn shortest(value: f64) -> String {
    match value as f32 {
        single if single.is_nan() => String::new(),
        single if f64::from(single) == value => single.to_string(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(iterations: u64) -> Row {
        Row::new(&Progress { iterations, env_steps: 10 * iterations, ..Progress::default() }, None, &Default::default(), 5.0)
    }

    #[test]
    fn what_is_measured_of_an_overlapped_run_stands_in_its_columns() {
        let (profile, mut overlap) = (Profile::new(false), Overlap::default());
        let begin = std::time::Instant::now();
        for (phase, s) in [(Phase::WaitProducers, 3), (Phase::WaitLearner, 2)] {
            profile.track("t").add(phase, begin, std::time::Duration::from_secs(s));
        }
        overlap.count(3, &[5, 4, 1], 5);
        overlap.count(0, &[0, 9], 10);
        assert_eq!(overlap.lags(), [1, 2, 0, 1, 0, 1]);
        let mut row = row(1);
        overlap.extend(&mut row, &profile);
        let of = |name| row.values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        assert_eq!(["time/queue", "time/learner_waited", "time/producer_waited"].map(of), [Some(1.5), Some(3.0), Some(2.0)]);
        assert_eq!(row.values.last().unwrap().0, "time/fps");
    }

    #[test]
    fn rows_after_the_checkpoint_and_a_torn_line_are_dropped_on_resume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut log = Log::open(&path, 0).unwrap();
        (1..=4).for_each(|i| log.write(&row(i)).unwrap());
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut log = Log::open(&path, 2).unwrap();
        (3..=4).for_each(|i| log.write(&row(i)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        assert!(whole.starts_with("time/total_timesteps,time/iterations,time/episodes,rollout/ep_rew_mean,"));
        assert_eq!(whole.lines().nth(1), Some("10,1,0,,,,0,5"));
    }
}
