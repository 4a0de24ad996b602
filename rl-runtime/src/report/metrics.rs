//! Rows of `metrics.csv`.
//!
//! There is a row for each logged iteration, for each iteration with an evaluation, and for the last one.
//!
//! Names shared with Stable-Baselines3 have the same meaning:
//!
//! | column | meaning |
//! |---|---|
//! | `time/total_timesteps` | environment steps: the x-axis of every curve |
//! | `time/iterations` | rollouts |
//! | `time/episodes` | episodes that have ended |
//! | `rollout/ep_rew_mean`, `rollout/ep_len_mean` | mean return and length of the last 100 episodes |
//! | `eval/mean_reward` | mean return of the evaluation after this iteration, if there was one |
//! | `train/loss` | PPO, A2C: loss of the last minibatch; DQN: mean over minibatches |
//! | `train/critic_loss`, `train/actor_loss` | SAC, TD3: mean over the steps of each; empty without one |
//! | `train/ent_coef`, `train/ent_coef_loss` | SAC: temperature before each update, and loss of an automatic one, mean over updates |
//! | `train/policy_gradient_loss` (PPO), `train/policy_loss` (A2C), `train/value_loss`, `train/entropy_loss` | mean over the minibatches of the update |
//! | `train/approx_kl` | PPO: KL divergence from the policy that acted (with `target_kl`, from that at the start of the update), mean over the last epoch |
//! | `train/clip_fraction` | PPO: share of clipped samples, mean over minibatches |
//! | `train/q_mean` | DQN: action value of the replayed actions, mean over minibatches |
//! | `train/grad_norm` | norm of the gradient before clipping, mean over the optimizer steps of the update; empty if there was none |
//! | `train/skipped_updates` | optimizer steps of the update that were skipped because loss or gradient was not finite |
//! | `train/explained_variance` | share of the returns' variance that the values explain |
//! | `train/std` | continuous actions: standard deviation of the policy, mean over dimensions |
//! | `train/learning_rate`, `train/clip_range` | schedules |
//! | `train/n_updates` | PPO: epochs so far; A2C: rollouts learnt from; DQN, SAC, TD3: updates |
//! | `rollout/exploration_rate` | DQN: epsilon |
//! | `pipeline/lag_0` .. `pipeline/lag_over_8` | overlapped runs: histogram of the policy lag, in columns of rollouts since the run began; the lag counts the rollouts that the agent has learnt from since the acting policy |
//! | `time/queue` | overlapped runs: mean number of rollouts that waited for the learner |
//! | `time/envs`, `time/preprocessing` (pictures as observations, stacks of observations, statistics that normalize), `time/policy`, `time/targets`, `time/update`, `time/evaluation`, `time/checkpoint` | seconds in each phase since the run began or was resumed; of threads that collect, their mean |
//! | `time/learner_waited`, `time/producer_waited` | overlapped runs: seconds that the learner waited for rollouts, and the producer for policies or buffers |
//! | `env/latency_p50_ms`, `env/latency_p95_ms`, `env/latency_max_ms` | blocking environments: latency of a step since the last row, the first two within 5% |
//! | `env/slowest_mean_ms` | blocking environments: mean latency of the slowest environment since the last row |
//! | `env/batch_mean`, `env/batch_max` | blocking environments: environments for which the policy acts at once, since the last row |
//! | `faults/timeouts`, `faults/panics`, `faults/failures`, `faults/retries`, `faults/restarts`, `faults/quarantined` | blocking environments: faults so far, since the run began or was resumed |
//! | `faults/dropped_stretches` | blocking environments: stretches of steps that were dropped for their age, so far |
//! | `system/cpu_cores` | Linux: cores in use by this process and its workers, mean over half a second |
//! | `system/cpu_waited` | Linux: share of that time for which the learner's thread waited for a core |
//! | `system/rss_mb`, `system/threads` | Linux: resident memory in MB (10^6 bytes) of this process and its workers, and threads of this process |
//! | `system/device_mb` | MB taken on the device that learns, if it is not the CPU |
//! | `system/gpu_percent`, `system/gpu_memory_mb`, `system/gpu_power_w`, `system/gpu_temperature_c` | the GPU that trains the agent, as NVML reports it: share of the time in which a kernel ran, memory in use by all processes, power in watts, degrees Celsius |
//! | `time/time_elapsed` | seconds of training |
//! | `time/fps` | environment steps per second since the run began or was resumed |
//!
//! Only columns under `time` and `system` differ between two runs of the same seed, except where environments block.
//!
//! Where environments block, `envs.csv` has a row for each of them: its steps since the last row, and their latency's p50, p95
//! and maximum.
//!
//! The directory `tb` holds the same numbers as TensorBoard event files, unless the setting `tensorboard` is false.
//!
//! Metrics never stop training. A row that cannot be written is lost, and the first such failure is reported. Writing is retried
//! with every later row, so a disk that is full for a while costs only the rows of that time.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::Mode;
use crate::Progress;
use crate::file::own;
use crate::report::profile::{Phase, Profile};

/// Start of the file.
const FIRST: &str = "time/total_timesteps,";

/// Longest row, in bytes; one of today's has fewer than 1000.
const MAX_LINE: u64 = 1 << 16;

/// Column of the evaluations.
pub(crate) const EVALUATION: &str = "eval/mean_reward";

/// One row of `metrics.csv`.
#[derive(Clone, Debug)]
pub struct Row {
    /// Names and values, in column order.
    pub values: Vec<(&'static str, f64)>,
}

impl Row {
    /// Creates a row from a run's progress, an evaluation, and values of updates.
    #[must_use]
    pub fn new(progress: &Progress, eval_return: Option<f64>, update: &rl_agents::Metrics, fps: f64) -> Self {
        let mut values = vec![
            ("time/total_timesteps", progress.env_steps as f64),
            ("time/iterations", progress.iterations as f64),
            ("time/episodes", progress.episodes as f64),
            ("rollout/ep_rew_mean", progress.return_mean()),
            ("rollout/ep_len_mean", progress.length_mean()),
            (EVALUATION, eval_return.unwrap_or(f64::NAN)),
        ];
        values.extend(update.iter().map(|(name, value)| (name, f64::from(value))));
        values.extend([("time/time_elapsed", progress.elapsed_s), ("time/fps", fps)]);
        Self { values }
    }

    /// Inserts the seconds of the phases before the last two columns.
    pub(crate) fn extend(&mut self, profile: &Profile, mode: Mode) {
        let waits = |phase| matches!(phase, Phase::WaitProducers | Phase::WaitLearner);
        let phases = PHASES.iter().filter(|(phase, _)| mode != Mode::Sync || !waits(*phase));
        self.insert(phases.map(|(phase, name)| (*name, profile.seconds(*phase))));
    }

    /// Inserts columns before the last two.
    pub(crate) fn insert(&mut self, columns: impl IntoIterator<Item = (&'static str, f64)>) {
        let at = self.values.len() - 2;
        let last = [self.values[at], self.values[at + 1]];
        self.values.truncate(at);
        self.values.extend(columns);
        self.values.extend(last);
    }

    /// Returns the value of a column, NaN if there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.values.iter().find(|(of, _)| *of == name).map_or(f64::NAN, |(_, value)| *value)
    }
}

/// Phases with their columns: seconds so far, by [`Profile::seconds`].
///
/// Only overlapped runs have the waits.
pub(crate) const PHASES: [(Phase, &str); 9] = [
    (Phase::Envs, "time/envs"),
    (Phase::Preprocessing, "time/preprocessing"),
    (Phase::Policy, "time/policy"),
    (Phase::Targets, "time/targets"),
    (Phase::Update, "time/update"),
    (Phase::Evaluation, "time/evaluation"),
    (Phase::Checkpoint, "time/checkpoint"),
    (Phase::WaitProducers, "time/learner_waited"),
    (Phase::WaitLearner, "time/producer_waited"),
];

/// Bins of the lag histogram: minimum lag and column name.
pub(crate) const LAGS: [(u64, &str); 6] = [
    (0, "pipeline/lag_0"),
    (1, "pipeline/lag_1"),
    (2, "pipeline/lag_2"),
    (3, "pipeline/lag_3_4"),
    (5, "pipeline/lag_5_8"),
    (9, "pipeline/lag_over_8"),
];

fn bin(lag: u64) -> usize {
    LAGS.iter().rposition(|(least, _)| lag >= *least).unwrap_or(0)
}

/// Metrics of overlapped collecting and learning.
#[derive(Clone, Debug, Default)]
pub struct LagHistogram {
    lags: [u64; LAGS.len()],
    waiting: usize,
    rollouts: usize,
}

impl LagHistogram {
    /// Returns the lag counts after `iterations` rollouts of `n_envs` columns.
    ///
    /// The policy of rollout i is the one after update i - `max_lag`.
    #[must_use]
    pub fn after(iterations: u64, n_envs: usize, max_lag: usize) -> Self {
        let mut overlap = Self::default();
        let (full, columns) = (iterations.saturating_sub(max_lag as u64), n_envs as u64);
        (0..iterations.min(max_lag as u64)).for_each(|lag| overlap.lags[bin(lag)] += columns);
        overlap.lags[bin(max_lag as u64)] += full * columns;
        overlap
    }

    /// Counts a rollout.
    ///
    /// The policies of its columns had learnt from `acted` rollouts, the learner has from `learnt`, and `waiting` rollouts are
    /// queued.
    pub fn count(&mut self, waiting: usize, acted: &[u64], learnt: u64) {
        for acted in acted {
            self.lags[bin(learnt.saturating_sub(*acted))] += 1;
        }
        self.waiting += waiting;
        self.rollouts += 1;
    }

    /// Returns the columns counted by lag: 0, 1, 2, 3 to 4, 5 to 8, more.
    #[must_use]
    pub fn lags(&self) -> [u64; LAGS.len()] {
        self.lags
    }

    /// Inserts the columns into a row, before the last two.
    pub fn extend(&self, row: &mut Row) {
        let lags = LAGS.iter().zip(self.lags).map(|((_, name), n)| (*name, n as f64));
        row.insert(lags.chain([("time/queue", self.waiting as f64 / self.rollouts as f64)]));
    }
}

/// Returns the env steps of the last complete row of a log.
#[must_use]
pub(crate) fn last_env_steps(path: &Path) -> Option<u64> {
    let mut file = BufReader::new(own(path, |options| options.read(true)).ok()?);
    let (mut last, mut line) = (None, Vec::new());
    while next_line(&mut file, &mut line).ok()? {
        last = String::from_utf8_lossy(&line).split(',').next().and_then(|steps| steps.parse().ok()).or(last);
    }
    last
}

/// Reads the next line, with its end; false if none is complete.
///
/// A line of more than [`MAX_LINE`] bytes is no row, whatever follows.
fn next_line(file: &mut BufReader<File>, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    file.take(MAX_LINE).read_until(b'\n', line)?;
    Ok(line.ends_with(b"\n"))
}

/// Writer of `metrics.csv`.
///
/// After a failure, others are not returned until a write has succeeded.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// Rows of later iterations are removed when the file is opened.
    iterations: u64,
    table: Option<Table>,
    failing: bool,
}

impl Log {
    /// Creates the log at `path` of a run after `iterations` iterations.
    #[must_use]
    pub fn new(path: &Path, iterations: u64) -> Self {
        Self { path: path.into(), iterations, table: None, failing: false }
    }

    /// Opens the file, and removes a torn last line and rows after the last checkpoint.
    ///
    /// # Errors
    /// The error of the system; [`Log::write`] retries.
    pub fn open(&mut self) -> io::Result<()> {
        let opened = self.table().map(drop);
        self.first(opened)
    }

    /// Appends a row.
    ///
    /// # Errors
    /// The error of the system; the row is lost.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        let written = self.table().and_then(|table| table.append(row));
        self.first(written)
    }

    /// Adds an evaluation made after the last iteration to that iteration's row.
    ///
    /// # Errors
    /// The error of the system; the evaluation is lost.
    pub fn evaluated(&mut self, progress: &Progress, eval_return: f64) -> io::Result<()> {
        let written = self.table().and_then(|table| table.evaluated(progress, eval_return));
        self.first(written)
    }

    /// Waits until the rows are on the disk, before the checkpoint that follows them.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        match &self.table {
            // Rows that could not be written are not there.
            Some(table) if !self.failing => {
                let synced = table.file.sync_data();
                self.first(synced)
            }
            _ => Ok(()),
        }
    }

    /// True if the row of an iteration is the last one and has an evaluation.
    pub(crate) fn has_evaluation(&mut self, iterations: u64) -> bool {
        let table = self.table().ok();
        let evaluated = table.filter(|table| iteration(&table.last) == Some(iterations)).and_then(|table| {
            let column = table.columns.iter().position(|name| name == EVALUATION)?;
            table.last.split(',').nth(column)
        });
        evaluated.is_some_and(|value| !value.is_empty())
    }

    fn table(&mut self) -> io::Result<&mut Table> {
        Ok(match &mut self.table {
            Some(table) => table,
            none => none.insert(Table::open(&self.path, self.iterations)?),
        })
    }

    fn first(&mut self, result: io::Result<()>) -> io::Result<()> {
        let failing = std::mem::replace(&mut self.failing, result.is_err());
        if failing { Ok(()) } else { result }
    }
}

/// The file, and its state when it was opened.
#[derive(Debug)]
struct Table {
    file: File,
    /// Columns of the header, which a resumed run keeps; empty before the first row.
    columns: Vec<String>,
    /// Size of the complete rows, in bytes.
    end: u64,
    /// The last row without its line end.
    last: String,
}

impl Table {
    fn open(path: &Path, iterations: u64) -> io::Result<Self> {
        let file = own(path, |options| options.read(true).append(true).create(true))?;
        let mut start = Vec::new();
        (&file).take(FIRST.len() as u64).read_to_end(&mut start)?;
        if !FIRST.as_bytes().starts_with(&start) {
            let why = "is not a metrics file; move it away, and a new one is written";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut rows = BufReader::new(file);
        rows.rewind()?;
        let (mut columns, mut end, mut last, mut line) = (Vec::new(), 0, String::new(), Vec::new());
        while iterations > 0 && next_line(&mut rows, &mut line)? {
            let text = String::from_utf8_lossy(&line);
            let row = iteration(&text);
            if row.is_some_and(|row| row > iterations) {
                break;
            }
            if end == 0 {
                columns = text.trim_end().split(',').map(String::from).collect();
            } else if row.is_some() {
                last = text.trim_end().into();
            }
            end += line.len() as u64;
        }
        let file = rows.into_inner();
        if end < file.metadata()?.len() {
            file.set_len(end)?;
        }
        Ok(Self { file, columns, end, last })
    }

    fn append(&mut self, row: &Row) -> io::Result<()> {
        let header: Option<Vec<String>> =
            self.columns.is_empty().then(|| row.values.iter().map(|(name, _)| String::from(*name)).collect());
        let mut text = header.as_ref().map_or_else(String::new, |names| names.join(",") + "\n");
        let begin = text.len();
        for (i, name) in header.as_ref().unwrap_or(&self.columns).iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            // A row has its columns in the header's order, unless the run was resumed with others.
            let here = row.values.get(i).filter(|(of, _)| of == name);
            text.push_str(&shortest(here.map_or_else(|| row.value(name), |(_, value)| *value)));
        }
        text.push('\n');
        self.put(&text)?;
        self.last = text[begin..].trim_end().into();
        header.into_iter().for_each(|header| self.columns = header);
        Ok(())
    }

    fn evaluated(&mut self, progress: &Progress, eval_return: f64) -> io::Result<()> {
        let column = self.columns.iter().position(|name| name == EVALUATION);
        let (Some(column), true) = (column, iteration(&self.last) == Some(progress.iterations)) else {
            return self.append(&Row::new(progress, Some(eval_return), &rl_agents::Metrics::default(), f64::NAN));
        };
        let line =
            self.last.split(',').enumerate().map(|(i, value)| if i == column { shortest(eval_return) } else { value.into() });
        let line = line.collect::<Vec<_>>().join(",");
        let old = std::mem::take(&mut self.last);
        self.end -= old.len() as u64 + 1;
        self.file.set_len(self.end)?;
        let written = self.put(&format!("{line}\n"));
        if written.is_err() {
            // Restore the old row.
            self.put(&format!("{old}\n"))?;
        }
        self.last = if written.is_ok() { line } else { old };
        written
    }

    /// Appends text, or leaves the file unchanged.
    fn put(&mut self, text: &str) -> io::Result<()> {
        let written = self.file.write_all(text.as_bytes());
        match &written {
            Ok(()) => self.end += text.len() as u64,
            // A torn row would corrupt the next one.
            Err(_) => drop(self.file.set_len(self.end)),
        }
        written
    }
}

/// Returns the iteration of a row, or `None` for a header.
fn iteration(line: &str) -> Option<u64> {
    line.split(',').nth(1)?.parse().ok()
}

/// Formats a number in its shortest form, and NaN as an empty string.
///
/// Numbers that fit an f32 are written as one, so that 0.3 is not 0.30000001192092896.
fn shortest(value: f64) -> String {
    match value as f32 {
        single if single.is_nan() => String::new(),
        single if f64::from(single) == value => single.to_string(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(iterations: u64) -> Row {
        Row::new(&Progress { iterations, env_steps: 10 * iterations, ..Progress::default() }, None, &Default::default(), 5.0)
    }

    #[test]
    fn what_is_measured_of_an_overlapped_run_stands_in_its_columns() {
        let (profile, mut overlap) = (Profile::new(false), LagHistogram::default());
        let begin = std::time::Instant::now();
        for (phase, s) in [(Phase::WaitProducers, 3), (Phase::WaitLearner, 2)] {
            profile.track("t").add(phase, begin, std::time::Duration::from_secs(s));
        }
        overlap.count(3, &[5, 4, 1], 5);
        overlap.count(0, &[0, 9], 10);
        assert_eq!(overlap.lags(), [1, 2, 0, 1, 0, 1]);
        let mut row = row(1);
        overlap.extend(&mut row);
        row.extend(&profile, Mode::Overlapped { max_lag: 1 });
        let of = |name| row.values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        assert_eq!(["time/queue", "time/learner_waited", "time/producer_waited"].map(of), [Some(1.5), Some(3.0), Some(2.0)]);
        assert_eq!(row.values.last().unwrap().0, "time/fps");
    }

    #[test]
    fn rows_after_the_checkpoint_and_a_torn_line_are_dropped_on_resume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut log = Log::new(&path, 0);
        (1..=4).for_each(|i| log.write(&row(i)).unwrap());
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut log = Log::new(&path, 2);
        log.open().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
        (3..=4).for_each(|i| log.write(&row(i)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        assert!(whole.starts_with("time/total_timesteps,time/iterations,time/episodes,rollout/ep_rew_mean,"));
        assert_eq!(whole.lines().nth(1), Some("10,1,0,,,,0,5"));
    }

    #[test]
    fn an_evaluation_after_the_last_iteration_is_in_that_iteration_s_row_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let lines = || fs::read_to_string(&path).unwrap().lines().skip(1).map(String::from).collect::<Vec<_>>();
        let progress = |iterations| Progress { iterations, env_steps: 10 * iterations, ..Progress::default() };
        let mut log = Log::new(&path, 0);
        log.write(&row(1)).unwrap();
        log.write(&row(2)).unwrap();
        log.evaluated(&progress(2), 7.5).unwrap();
        assert_eq!(lines(), ["10,1,0,,,,0,5", "20,2,0,,,7.5,0,5"]);
        // Resume there, and evaluate again.
        let mut log = Log::new(&path, 2);
        log.evaluated(&progress(2), 8.0).unwrap();
        assert_eq!(lines(), ["10,1,0,,,,0,5", "20,2,0,,,8,0,5"]);
        // The row of an iteration may be missing.
        log.evaluated(&progress(3), 9.0).unwrap();
        assert_eq!(lines()[2], "30,3,0,,,9,0,");
    }

    #[test]
    fn rows_that_cannot_be_written_are_told_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        fs::create_dir(&path).unwrap();
        let mut log = Log::new(&path, 5);
        assert!(log.open().unwrap_err().to_string().contains("not a regular file"));
        (6..8).for_each(|i| log.write(&row(i)).unwrap());
        fs::remove_dir(&path).unwrap();
        log.write(&row(8)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().nth(1), Some("80,8,0,,,,0,5"));
        // A file of another kind is left alone until it is moved away.
        fs::write(&path, b"\xff\xfeprecious\n").unwrap();
        let mut log = Log::new(&path, 8);
        assert!(log.write(&row(9)).unwrap_err().to_string().contains("move it away"));
        log.write(&row(10)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"\xff\xfeprecious\n");
        fs::remove_file(&path).unwrap();
        log.write(&row(11)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_resumed_run_keeps_the_columns_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        fs::write(&path, b"time/total_timesteps,time/iterations,old,time/fps\n10,1,3,4\nodd\xff\n10,1,3").unwrap();
        let mut log = Log::new(&path, 1);
        log.write(&row(2)).unwrap();
        assert!(fs::read(&path).unwrap().ends_with(b"\n10,1,3,4\nodd\xff\n20,2,,5\n"));
    }

    #[test]
    fn lags_counted_from_the_beginning_are_those_counted_on_the_way() {
        for max_lag in [0, 1, 4, 12] {
            let mut overlap = LagHistogram::default();
            for i in 0..20u64 {
                assert_eq!(LagHistogram::after(i, 3, max_lag).lags(), overlap.lags(), "{max_lag}, {i}");
                overlap.count(0, &[i.saturating_sub(max_lag as u64); 3], i);
            }
        }
    }
}
