//! The training loop, once, for all pipelines.
//!
//! It learns from the rollouts of a [`Pipeline`], which collects in turn or at the same time.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rl_agents::collect::{MAX_SLICES, MIN_SLICE};
use rl_agents::{
    Agent, Anomalies, Collector, CollectorState, Counters, Episode, EvalConfig, Metrics, Played, Policy, Snapshot, Statistics,
    evaluate_with,
};
use rl_envs::catalog::Entry;
use rl_envs::{Pool, VecEnv, pool};

use crate::budget::Budget;
use crate::checkpoint::{self, Checkpoint, Progress, WriteReplay};
use crate::config::{Device, RunConfig, parse_device};
use crate::metrics::{LagHistogram, Log, Row, WINDOW};
use crate::pipeline::{Mode, Order, Pipeline};
use crate::print::{grouped, quoted};
use crate::profile::{Phase, Profile, Track, nanos};
use crate::run_dir::RunDir;
use crate::{Config, Error, diverged, interrupt};

/// Exit code of errors after which environments cannot be continued.
const ENV_FAILED: u8 = 5;

/// Consecutive failed saves after which training stops.
const MAX_FAILED_SAVES: u32 = 3;
/// Pauses before retries of the last save.
const PAUSES_MS: [u64; 3] = [100, 300, 1000];

/// Reason for the end of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps have been taken.
    Steps,
    /// An evaluation has reached the target.
    Target,
    /// The user has interrupted.
    Interrupted,
}

/// An event of training.
#[non_exhaustive]
pub enum Event<'a> {
    /// A row of metrics.
    Row {
        /// Values of the row.
        row: &'a Row,
        /// Progress of the run.
        progress: &'a Progress,
    },
    /// Result of an evaluation.
    Evaluation {
        /// Environment steps before the evaluation.
        env_steps: u64,
        /// Figures of the evaluation.
        result: &'a Evaluation,
    },
    /// Problem that does not end the run.
    Warning(&'a str),
}

/// Receiver of a training's events, on the thread that trains.
type Listener<'a> = &'a mut dyn FnMut(Event<'_>);

fn warn(listener: Listener<'_>, text: &str) {
    listener(Event::Warning(text));
}

/// Result of training.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Reason for the end.
    pub end: End,
    /// Progress of the run, including its earlier parts.
    pub progress: Progress,
    /// Environment steps of this part of the run.
    pub env_steps: u64,
    /// Seconds of this part, including evaluations and checkpoints except for the last.
    pub wall_s: f64,
    /// The last evaluation, unless interrupted.
    pub evaluation: Option<Evaluation>,
}

/// Figures of evaluation episodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Number of episodes.
    pub episodes: usize,
    /// Number of episodes cut by the step limit.
    pub cut: usize,
    /// Mean of the returns.
    pub return_mean: f64,
    /// Standard deviation of the returns.
    pub return_std: f64,
    /// Mean of the lengths.
    pub length_mean: f64,
}

impl Evaluation {
    /// Computes the figures of `episodes`; NaN if there are none.
    ///
    /// The step limit has cut `cut` of them.
    #[must_use]
    pub fn new(episodes: &[Episode], cut: usize) -> Self {
        let n = episodes.len() as f64;
        let mean = |of: &dyn Fn(&Episode) -> f64| episodes.iter().map(of).sum::<f64>() / n;
        let return_mean = mean(&|e| e.episode_return);
        Self {
            episodes: episodes.len(),
            cut,
            return_mean,
            return_std: mean(&|e| (e.episode_return - return_mean).powi(2)).sqrt(),
            length_mean: mean(&|e| f64::from(e.length)),
        }
    }
}

/// Returns a description of the device to train on.
///
/// # Errors
/// [`Error::Device`] if it does not exist, [`Error::DeviceUnsupported`] if this version cannot train on it.
pub fn device(config: &Config) -> Result<String, Error> {
    match parse_device(&config.run.device) {
        Some(Device::Cuda(ordinal)) => Err(Error::DeviceUnsupported(rl_cuda::Device::open(ordinal)?.to_string())),
        Some(Device::Auto) => Ok("cpu (chosen by auto)".into()),
        _ => Ok("cpu".into()),
    }
}

/// Creates the environments of a run, if all of its memory is available.
fn slices(config: &Config, entry: &Entry) -> Result<Vec<Box<dyn VecEnv>>, Error> {
    Budget::training(config, entry).check()?;
    Ok(entry.slices(config.run.n_envs, MAX_SLICES, MIN_SLICE)?)
}

/// Creates the agent of a run; if not `fresh`, its parameters will be loaded.
fn agent(config: &Config, entry: &Entry, fresh: bool) -> Result<Box<dyn Agent>, Error> {
    config.algo.settings().agent(&config.build(entry, fresh))
}

/// Maximum number of environments that an evaluation steps together.
///
/// It is small enough that a step answers Ctrl-C within a second.
const MAX_EVAL_SLICE: usize = 256;

/// Seed of the episodes of `rl eval` and `rl watch` for a `--seed`.
///
/// Never a seed of training's environments.
#[must_use]
pub fn evaluation_seed(seed: u64) -> u64 {
    seed.wrapping_add(0x9E37_79B9_7F4A_7C15)
}

/// Seed of the evaluation episodes during training.
///
/// Never one of [`evaluation_seed`], whose episodes must not have decided when training stops. Every evaluation of a run plays
/// the same episodes, so that randomness in the starts does not move its curve.
fn training_evaluation_seed(seed: u64) -> u64 {
    seed.wrapping_add(0x5851_F42D_4C95_7F2D)
}

/// Plays `episodes` episodes, each in its own environment; `None` if interrupted.
///
/// # Errors
/// Errors of the environments and of candle.
pub fn evaluate_policy(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    config: &EvalConfig,
    pool: &Pool,
) -> Result<Option<Evaluation>, Error> {
    // The thread that plays a slice also builds it, so that a million episodes need the memory of a few.
    let slices = pool::slices(episodes, MAX_SLICES.max(episodes.div_ceil(MAX_EVAL_SLICE)), MIN_SLICE);
    let mut work: Vec<_> = slices.map(|range| (range, Ok(Played::default()))).collect();
    let go_on = || if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    pool.each(&mut work, &|(range, played)| {
        if go_on().is_continue() {
            let play = |mut envs| evaluate_with(policy, &mut envs, config, &mut |_, _| go_on());
            *played = entry.slice(range.clone()).map_err(Into::into).and_then(play);
        }
    });
    let played = work.into_iter().map(|(_, played)| played).collect::<Result<Vec<_>, _>>()?;
    if interrupt::requested() {
        return Ok(None);
    }
    let cut = played.iter().map(|played| played.cut).sum();
    let episodes: Vec<Episode> = played.into_iter().flat_map(|played| played.episodes).collect();
    Ok(Some(Evaluation::new(&episodes, cut)))
}

/// Warns of the first invalid number of each kind.
fn warn_first(before: &Anomalies, now: &Anomalies, listener: Listener<'_>) {
    if let (None, Some(first)) = (&before.first_outside, &now.first_outside) {
        warn(listener, &format!("{first}; training continues, `rl check-env` tests an environment"));
    }
    if let (None, Some(first)) = (&before.first_truncated, &now.first_truncated) {
        warn(listener, &format!("{first}; its episode is truncated and the environment restarted"));
    }
}

/// Reports the counts of invalid numbers.
fn warn_all(all: &Anomalies, listener: Listener<'_>) {
    if all.outside > 0 {
        warn(listener, &format!("{} observations were outside of their space", grouped(all.outside)));
    }
    if all.truncated > 0 {
        warn(listener, &format!("{} episodes were truncated because of numbers that are not finite", grouped(all.truncated)));
    }
}

/// State of training, created before anything is written.
pub struct Training {
    config: Config,
    entry: Entry,
    pool: Pool,
    pipeline: Pipeline<Collector>,
    agent: Box<dyn Agent>,
    progress: Progress,
    /// Policies of the next rollouts, where they lag behind the agent's.
    ahead: Vec<Order>,
    /// Env steps of the last saved or loaded checkpoint.
    saved: Option<u64>,
    /// Mean return of the best evaluation.
    best: Option<f64>,
    /// Number of old checkpoints that could not be removed last time.
    stuck: usize,
    profile: Profile,
    track: Track,
}

/// Warns of checkpoints that cannot be removed, with the first error.
fn warn_of_stuck(stuck: &[Error], listener: Listener<'_>) {
    if let Some(first) = stuck.first() {
        warn(listener, &format!("{} old checkpoints cannot be removed, first: {first}", stuck.len()));
    }
}

/// Number of optimizer steps skipped since the run began or was resumed.
#[derive(Default)]
struct Skipped {
    n: u64,
}

impl Skipped {
    /// Counts an update's skipped steps; returns a warning each time the count doubles.
    fn count(&mut self, update: &Metrics) -> Option<String> {
        let before = self.n;
        self.n += update.get("train/skipped_updates").map_or(0, |n| n as u64);
        (self.n > 0 && before.checked_ilog2() != self.n.checked_ilog2()).then(|| {
            format!(
                "loss or gradient was not finite; optimizer steps skipped so far: {} (a smaller learning_rate may help)",
                self.n
            )
        })
    }
}

impl Training {
    /// Creates a training at its beginning, in the environment of `entry`.
    ///
    /// # Errors
    /// Errors of [`Budget::check`], the environments, the agent and the rollout.
    pub fn new(config: &Config, entry: &Entry, profile: Profile) -> Result<Self, Error> {
        let entry = &config.wrapped(entry);
        Self::build(config, entry, slices(config, entry)?, || agent(config, entry, true), profile)
    }

    /// Creates a training at its beginning with the caller's agent.
    ///
    /// Of the algorithm's settings, only the number of steps of a rollout counts.
    ///
    /// # Errors
    /// Errors of [`Training::new`].
    pub fn with_agent(config: &Config, entry: &Entry, agent: Box<dyn Agent>, profile: Profile) -> Result<Self, Error> {
        let entry = &config.wrapped(entry);
        Self::build(config, entry, slices(config, entry)?, || Ok(agent), profile)
    }

    /// Creates a training with parameters still to be loaded.
    pub(crate) fn unset(config: &Config, entry: &Entry, profile: Profile) -> Result<Self, Error> {
        let entry = &config.wrapped(entry);
        Self::build(config, entry, slices(config, entry)?, || agent(config, entry, false), profile)
    }

    /// Creates a training at its beginning in `envs` instead of the entry's.
    ///
    /// They have the same spaces; they may be wrapped, for example. Evaluations use the entry's environments.
    ///
    /// # Errors
    /// Errors of [`Training::new`] and [`Collector::of`].
    ///
    /// # Panics
    /// If `envs` is empty.
    pub fn with_envs(config: &Config, entry: &Entry, envs: Vec<Box<dyn VecEnv>>, profile: Profile) -> Result<Self, Error> {
        let entry = &config.wrapped(entry);
        Budget::training(config, entry).check()?;
        Self::build(config, entry, envs, || agent(config, entry, true), profile)
    }

    /// Creates a training that continues a checkpoint, with the settings of `config`.
    ///
    /// # Errors
    /// Errors of [`Training::new`]; errors of the agent and the environments if the checkpoint does not fit.
    pub fn resume(config: &Config, entry: &Entry, checkpoint: Checkpoint, profile: Profile) -> Result<Self, Error> {
        let mut training = Self::unset(config, entry, profile)?;
        training.load(checkpoint)?;
        Ok(training)
    }

    fn build(
        config: &Config,
        entry: &Entry,
        envs: Vec<Box<dyn VecEnv>>,
        agent: impl FnOnce() -> Result<Box<dyn Agent>, Error>,
        profile: Profile,
    ) -> Result<Self, Error> {
        let pool = Pool::new(config.learner_threads())?;
        let collecting = match config.mode() {
            Mode::Sync => pool.clone(),
            Mode::Overlapped { .. } => Pool::new(config.collector_threads())?,
        };
        let collector =
            Collector::of(envs, &collecting, config.run.seed)?.with_on_nonfinite(config.run.on_nonfinite).with_clock(nanos);
        let mut agent = agent()?;
        let pipeline = Pipeline::new(config.mode(), collector, config.n_steps(), &profile)?;
        let track = profile.track("learner");
        agent.watch(track.watch());
        let (config, progress) = (config.clone(), Progress::default());
        let (ahead, saved, best, stuck) = (Vec::new(), None, None, 0);
        Ok(Self { config, entry: *entry, pool, pipeline, agent, progress, ahead, saved, best, stuck, profile, track })
    }

    /// Loads a checkpoint of an agent of the same kind.
    ///
    /// # Errors
    /// Errors of the agent and the environments if the checkpoint does not fit.
    pub fn load(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let Checkpoint { agent, replay, collector, progress, ahead, .. } = checkpoint;
        (self.saved, self.progress) = (Some(progress.env_steps), progress);
        self.ahead = self.older_policies(&agent, ahead)?;
        self.agent.load(&agent)?;
        match replay {
            Some(path) => {
                let mut input = BufReader::new(File::open(&path).map_err(Error::io(&path))?);
                self.agent.load_replay(&agent, &mut input).map_err(|e| {
                    let name = path.file_name().unwrap_or_default().display();
                    rl_agents::Error::Snapshot(format!("{name}: {e}"))
                })?;
            }
            None if self.agent.saves_replay() => {
                let why = "its replay memory is missing, though dqn.save_replay is true: it can be evaluated, but not continued";
                return Err(rl_agents::Error::Snapshot(why.into()).into());
            }
            None => {}
        }
        if !collector.has_envs() {
            self.agent.gap();
        }
        self.pipeline.rest()?.load(collector)?;
        Ok(())
    }

    /// Makes the policies of `ahead`.
    ///
    /// Loads the agent's snapshot with their parameters and statistics.
    fn older_policies(&mut self, agent: &Snapshot, ahead: Vec<(u64, Snapshot)>) -> Result<Vec<Order>, Error> {
        let mut policies = Vec::new();
        for (i, (learnt, older)) in ahead.into_iter().enumerate() {
            let statistics = Statistics { obs: older.statistics.obs, ..agent.statistics.clone() };
            let counters = Counters { version: older.counters.version, ..agent.counters };
            self.agent.load(&Snapshot { params: older.params, moments: agent.moments.clone(), statistics, counters })?;
            let remaining = self.remaining(i);
            policies.push(Order { policy: self.agent.acting(remaining).copy(), learnt });
        }
        Ok(policies)
    }

    /// Agent of the training.
    #[must_use]
    pub fn agent(&self) -> &dyn Agent {
        &*self.agent
    }

    /// Progress of the run.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    fn evaluate(&self) -> Result<Option<Evaluation>, Error> {
        let RunConfig { eval_episodes, eval_max_steps, seed, on_nonfinite, .. } = self.config.run;
        let seed = training_evaluation_seed(seed);
        let config = EvalConfig { seed, stochastic: false, max_steps: eval_max_steps, on_nonfinite };
        evaluate_policy(self.agent.policy(), &self.entry, eval_episodes, &config, &self.pool)
    }

    /// Fraction of training that remains after `rollouts` more rollouts.
    fn remaining(&self, rollouts: usize) -> f32 {
        let env_steps = self.progress.env_steps + (rollouts * self.config.n_steps() * self.config.run.n_envs) as u64;
        (1.0 - env_steps as f64 / self.config.run.steps as f64).max(0.0) as f32
    }

    /// Orders the rollouts that begin before another one has been learnt from.
    fn order_first(&mut self) -> Result<(), Error> {
        let n = self.pipeline.n_ahead();
        for i in 0..n {
            // The last one is the agent's current policy; at the very start, all are.
            let (learnt, policy) = match self.ahead.get(i).filter(|_| i + 1 < n) {
                Some(order) => (order.learnt, order.policy.copy()),
                None => {
                    let remaining = self.remaining(i);
                    (self.progress.iterations, self.agent.acting(remaining).copy())
                }
            };
            self.pipeline.order(policy, learnt);
        }
        Ok(())
    }

    fn checkpoint(&self, collector: CollectorState, ahead: Vec<(u64, Snapshot)>) -> Checkpoint {
        let (config, progress) = (self.config.clone(), self.progress.clone());
        Checkpoint { config, progress, agent: self.agent.save(), replay: None, collector, ahead }
    }

    fn save(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<(), Error> {
        let collector = self.pipeline.rest()?.save()?;
        let mut ahead = self.pipeline.ordered();
        ahead.pop(); // the agent's own
        self.save_with(dir, collector, ahead, listener)
    }

    fn save_with(
        &mut self,
        dir: &RunDir,
        collector: CollectorState,
        ahead: Vec<(u64, Snapshot)>,
        listener: Listener<'_>,
    ) -> Result<(), Error> {
        let checkpoint = self.checkpoint(collector, ahead);
        let (agent, keep) = (&*self.agent, self.config.run.keep_checkpoints);
        let write_replay = |out: &mut dyn Write| agent.save_replay(out);
        let replay: Option<WriteReplay<'_>> = if agent.saves_replay() { Some(&write_replay) } else { None };
        let layout = agent.layout();
        let saved = checkpoint::save(&dir.checkpoints(), &checkpoint, layout, replay, keep, &mut |_| Ok(()))?;
        self.saved = Some(self.progress.env_steps);
        if saved.stuck.len() > self.stuck {
            warn_of_stuck(&saved.stuck, listener);
        }
        self.stuck = saved.stuck.len();
        Ok(())
    }

    /// Saves the state before the fault of an environment.
    ///
    /// The rollout and all environments are lost, so loading the checkpoint begins new episodes.
    fn save_after_fault(&mut self, dir: &RunDir, listener: Listener<'_>) {
        let Progress { env_steps, iterations, .. } = self.progress;
        if env_steps == 0 {
            return;
        }
        let collector = CollectorState::without_envs(iterations * self.config.n_steps() as u64);
        match self.save_with(dir, collector, Vec::new(), listener) {
            Ok(()) => {
                let (steps, dir) = (grouped(env_steps), quoted(dir.path()));
                warn(
                    listener,
                    &format!("an environment has failed; {steps} env steps are saved, continue with: rl train --resume {dir}"),
                );
            }
            Err(error) => warn(listener, &format!("an environment has failed, and no checkpoint is saved: {error}")),
        }
    }

    /// Saves for the last time, with retries after pauses.
    fn save_last(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<(), Error> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match (self.save(dir, listener), pauses.next()) {
                (Ok(()), _) => return Ok(()),
                (Err(error), Some(&ms)) => {
                    warn(listener, &format!("the last checkpoint is not saved: {error}; trying again in {ms} ms"));
                    std::thread::sleep(Duration::from_millis(ms));
                }
                (Err(error), None) => return Err(self.gave_up(dir, PAUSES_MS.len() as u32 + 1, error)),
            }
        }
    }

    fn gave_up(&self, dir: &RunDir, attempts: u32, cause: Error) -> Error {
        Error::NotSaved { run: dir.path().into(), attempts, cause: Box::new(cause), saved: self.saved }
    }

    /// Saves the agent as the best one if its evaluation is; failures are warnings.
    fn keep_if_best(&mut self, dir: &RunDir, evaluation: &Evaluation, listener: Listener<'_>) {
        let mean = evaluation.return_mean;
        if mean.is_nan() || self.best.is_some_and(|best| mean <= best) {
            return;
        }
        let collector = CollectorState::without_envs(self.progress.iterations * self.config.n_steps() as u64);
        let checkpoint = self.checkpoint(collector, Vec::new());
        let layout = self.agent.layout();
        match checkpoint::save_best(&dir.checkpoints(), &checkpoint, layout, mean, &mut |_| Ok(())) {
            Ok(saved) => {
                self.best = Some(mean);
                warn_of_stuck(&saved.stuck, listener);
            }
            Err(error) => warn(listener, &format!("the best checkpoint is not saved, training continues: {error}")),
        }
    }

    /// Trains to the end, writes metrics and checkpoints into `dir`, and evaluates.
    ///
    /// If collecting and learning overlap, a checkpoint waits until every rollout in flight has been learnt from. It holds the
    /// agent, the environments, and the older policies of the next rollouts at that moment, so that a resumed run equals an
    /// uninterrupted one. If a target is reached, rollouts in flight are dropped instead.
    ///
    /// # Errors
    /// Errors of the agent, the environments and the files. The last good checkpoint stays. If an environment has failed, the
    /// progress before it is saved, too.
    pub fn run(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let outcome = self.run_to_end(dir, listener);
        if outcome.as_ref().is_err_and(|error| error.exit_code() == ENV_FAILED) {
            self.save_after_fault(dir, listener);
        }
        outcome
    }

    fn run_to_end(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let config = self.config.clone();
        let overlapped = config.mode() != Mode::Sync;
        let samples = (config.n_steps() * config.run.n_envs) as u64;
        warn_of_stuck(&checkpoint::clean(&dir.checkpoints()), listener);
        self.best = checkpoint::best_return(&dir.checkpoints()).unwrap_or_else(|error| {
            warn(listener, &format!("the best checkpoint is not known any more, the next evaluation replaces it: {error}"));
            None
        });
        let mut log = Log::new(&dir.metrics(), self.progress.iterations);
        let tell = |listener: Listener<'_>, written: io::Result<()>| {
            if let Err(error) = written {
                let path = dir.metrics();
                warn(
                    listener,
                    &format!("{}: {error}; training continues, rows are lost until it can be written", path.display()),
                );
            }
        };
        tell(listener, log.open());
        // A target without an evaluation interval is checked twenty times.
        let no_cadence = config.run.eval_every == 0 && config.run.target_return.is_some();
        let eval_every = if no_cadence { config.run.steps.div_ceil(20) } else { config.run.eval_every };
        let (mut failed_saves, mut skipped) = (0, Skipped::default());
        let (begin, begin_steps, begin_s) = (Instant::now(), self.progress.env_steps, self.progress.elapsed_s);
        let mut evaluation = None;
        let mut end = End::Steps;
        let RunConfig { n_envs, max_lag, .. } = config.run;
        let (mut overlap, mut save_due) = (LagHistogram::after(self.progress.iterations, n_envs, max_lag), false);
        let mut anomalies = Anomalies::default();
        self.pipeline.limit(config.run.steps.saturating_sub(begin_steps).div_ceil(samples));
        self.order_first()?;

        while self.progress.env_steps < config.run.steps {
            let remaining = self.remaining(0);
            let waiting = self.pipeline.waiting();
            let mut filled = self.pipeline.next(self.agent.acting(remaining), self.progress.iterations)?;
            warn_first(&anomalies, &filled.anomalies, listener);
            anomalies.clone_from(&filled.anomalies);
            let (agent, pool) = (&mut self.agent, &self.pool);
            let update = match self.track.time_update(|| agent.update(&filled.rollout, remaining, pool)) {
                Ok(update) => update,
                Err(rl_agents::Error::Diverged(divergence)) => {
                    return Err(diverged::error(divergence, &**agent, &config, &self.progress, dir));
                }
                Err(error) => return Err(error.into()),
            };
            skipped.count(&update).into_iter().for_each(|warning| warn(listener, &warning));
            overlap.count(waiting, &filled.learnt, self.progress.iterations);

            let before = self.progress.env_steps;
            self.progress.env_steps += samples;
            self.progress.iterations += 1;
            self.progress.episodes += filled.episodes.len() as u64;
            self.progress.recent.append(&mut filled.episodes);
            self.progress.recent.drain(..self.progress.recent.len().saturating_sub(WINDOW));
            let passed = |every: u64| every > 0 && before / every < self.progress.env_steps / every;
            let (evaluate, save) = (passed(eval_every), passed(config.run.checkpoint_every));

            evaluation = None;
            if evaluate {
                evaluation = self.track.time(Phase::Evaluation, || self.evaluate())?;
                if let Some(result) = &evaluation {
                    listener(Event::Evaluation { env_steps: self.progress.env_steps, result });
                    self.keep_if_best(dir, result, listener);
                }
            }
            let wall_s = begin.elapsed().as_secs_f64();
            self.progress.elapsed_s = begin_s + wall_s;
            if evaluation.is_some_and(|e| config.run.target_return.is_some_and(|target| e.return_mean >= target)) {
                end = End::Target;
            } else if interrupt::requested() && self.progress.env_steps < config.run.steps {
                end = End::Interrupted;
            }
            let all = self.progress.env_steps >= config.run.steps;
            if self.progress.iterations.is_multiple_of(config.run.log_interval) || evaluation.is_some() || all {
                let fps = (self.progress.env_steps - begin_steps) as f64 / wall_s;
                let mut row = Row::new(&self.progress, evaluation.map(|e| e.return_mean), &update, fps);
                if overlapped {
                    overlap.extend(&mut row, &self.profile);
                }
                tell(listener, log.write(&row));
                listener(Event::Row { row: &row, progress: &self.progress });
            }

            let last = end != End::Steps || all;
            save_due |= last || save;
            if save_due {
                self.pipeline.hold();
            }
            let remaining = self.remaining(self.pipeline.n_ahead().saturating_sub(1));
            let (agent, learnt) = (&mut self.agent, self.progress.iterations);
            self.pipeline.give_back(filled, agent.acting(remaining), learnt)?;
            if end == End::Target && self.pipeline.in_flight() > 0 {
                while self.pipeline.in_flight() > 0 {
                    let dropped = self.pipeline.next(agent.acting(remaining), learnt)?;
                    self.pipeline.give_back(dropped, agent.acting(remaining), learnt)?;
                }
                // The environments are ahead by the dropped rollouts.
                agent.gap();
            }
            if save_due && self.pipeline.in_flight() == 0 {
                save_due = false;
                let track = self.track.clone();
                let save = || if last { self.save_last(dir, listener) } else { self.save(dir, listener) };
                match track.time(Phase::Checkpoint, save) {
                    Ok(()) => failed_saves = 0,
                    Err(error) if last => return Err(error),
                    Err(error) => {
                        failed_saves += 1;
                        if failed_saves == MAX_FAILED_SAVES {
                            return Err(self.gave_up(dir, failed_saves, error));
                        }
                        warn(listener, &format!("checkpoint not saved, training continues: {error}"));
                    }
                }
                if end != End::Steps {
                    break;
                }
            }
        }

        let wall_s = begin.elapsed().as_secs_f64();
        warn_all(&anomalies, listener);
        if end == End::Interrupted && self.progress.env_steps >= config.run.steps {
            end = End::Steps; // the rollouts in flight were the last
        }
        if end == End::Interrupted {
            evaluation = None;
        } else if evaluation.is_none() {
            evaluation = self.track.time(Phase::Evaluation, || self.evaluate())?;
            match &evaluation {
                Some(result) => {
                    listener(Event::Evaluation { env_steps: self.progress.env_steps, result });
                    self.keep_if_best(dir, result, listener);
                    tell(listener, log.evaluated(&self.progress, result.return_mean));
                }
                None => end = End::Interrupted,
            }
        }
        Ok(Outcome { end, env_steps: self.progress.env_steps - begin_steps, progress: self.progress.clone(), wall_s, evaluation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_purposes_share_a_seed() {
        let seeds = [evaluation_seed, training_evaluation_seed, |seed| seed];
        let all: std::collections::HashSet<u64> = seeds.iter().flat_map(|of| (0..10_000).map(of)).collect();
        assert_eq!(all.len(), 30_000);
    }
}
