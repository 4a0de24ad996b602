//! The training loop, once: it learns from the rollouts of a [`Pipeline`].

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::time::Instant;

use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{ARITHMETIC, Agent, Anomalies, Collector, CollectorState, EvalConfig, Metrics, Snapshot};
use rl_envs::catalog::Entry;
use rl_envs::{Pool, VecEnv};

use crate::Mode;
use crate::Progress;
use crate::algo::{Build, Built};
use crate::budget::Budget;
use crate::calls::Calls;
use crate::checkpoint::Checkpoint;
use crate::config::{Device, Drive, RunConfig};
use crate::evaluation::{Evaluation, evaluate_policy, training_evaluation_seed};
use crate::event::{Event, Listener, warn};
use crate::faults::FaultConfig;
use crate::metrics::{EVALUATION, LagHistogram, Log, Row};
use crate::pipeline::{Collect, Filled, Flow, Pipeline};
use crate::print::grouped;
use crate::profile::{Phase, Profile, Track, nanos};
use crate::progress::WINDOW;
use crate::resources::Meter;
use crate::run_dir::RunDir;
use crate::saves::Saves;
use crate::tensorboard::EventFile;
use crate::{Config, Error, diverged, first_come, interrupt, print};

/// Exit code of errors after which environments cannot be continued.
const ENV_FAILED: u8 = 5;

/// Reason for the end of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps were taken.
    Steps,
    /// An evaluation reached the target.
    Target,
    /// The user asked for it.
    Interrupted,
}

/// Result of a training.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Reason for the end.
    pub end: End,
    /// Progress of the run, earlier parts included.
    pub progress: Progress,
    /// Environment steps of this part of the run.
    pub env_steps: u64,
    /// Seconds of this part of the run, except for the last evaluation.
    pub wall_s: f64,
    /// The last evaluation, unless interrupted.
    pub evaluation: Option<Evaluation>,
}

/// Describes the device to train on.
///
/// # Errors
/// [`Error::Device`] if it does not exist.
pub fn device(config: &Config) -> Result<String, Error> {
    let cpu = if config.device() == Device::Auto { "cpu (chosen by auto)" } else { "cpu" };
    Ok(config.device().open()?.map_or_else(|| cpu.into(), |device| device.to_string()))
}

/// Makes the environments of a run on the CPU.
fn collector(config: &Config, entry: &Entry, pool: &Pool) -> Result<Box<dyn Collect>, Error> {
    let FaultConfig { timeout, max_restarts, .. } = config.faults();
    entry.batches().into_iter().for_each(|batches| batches.limit(timeout, max_restarts));
    let first_come = || entry.batches().filter(|_| config.blocks(entry))?.blocking();
    if let Some(make) = entry.make_blocking().or_else(first_come) {
        let (n_envs, n_steps, seed) = (config.run.n_envs, config.n_steps(), config.run.seed);
        let (faults, ready) = (config.faults(), config.first_come());
        return first_come::collector((make, entry.spaces()), n_envs, n_steps, faults, ready, seed);
    }
    let n_envs = config.run.n_envs;
    if entry.batches().is_none() {
        return of_slices(config, entry.slices(n_envs, MAX_SLICES, MIN_SLICE)?, pool);
    }
    // A thread for each worker, which it mostly waits for.
    let workers = config.workers();
    of_slices(
        config,
        entry.slices(n_envs, workers, 1)?,
        &if pool.n_threads() < workers { Pool::new(workers)? } else { pool.clone() },
    )
}

fn of_slices(config: &Config, envs: Vec<Box<dyn VecEnv>>, pool: &Pool) -> Result<Box<dyn Collect>, Error> {
    let RunConfig { seed, on_nonfinite, .. } = config.run;
    Ok(Box::new(Collector::of(envs, pool, seed)?.with_on_nonfinite(on_nonfinite).with_clock(nanos)))
}

/// Share of its time below which an environment mostly waits.
const MOSTLY_WAITS: f64 = 0.5;

/// Returns the settings of a run, with the order of environments that was measured.
fn settled(config: &Config, entry: &Entry) -> Result<Config, Error> {
    let mut config = config.clone();
    if let (Drive::Auto, Some(batches)) = (config.run.drive, entry.batches()) {
        let busy = batches.busy(config.run.seed)?;
        let waits = busy.is_some_and(|busy| busy < MOSTLY_WAITS);
        config.run.drive = if waits { Drive::FirstCome } else { Drive::Lockstep };
        let (order, share) = (if waits { "first_come" } else { "lockstep" }, busy.map_or(f64::NAN, |busy| 100.0 * busy));
        print::err(&format!("drive = {order}: an environment computes for {share:.0}% of its time"));
    }
    Ok(config)
}

/// Builds the agent of a run, with parameters that are drawn or will be loaded.
///
/// Its environments come with it if they are on the device that learns.
fn agent(config: &Config, entry: &Entry, fresh: bool) -> Result<Built, Error> {
    let (device, env) = (config.device().open()?, config.env_on_device(entry)?);
    let build = Build { device, env, ..config.build(entry, fresh) };
    config.algo.settings().agent(&build).map_err(|error| match error {
        Error::Agent(rl_agents::Error::Device(error @ rl_cuda::Error::Memory { .. })) => {
            Error::DeviceMemory { error, fits: fitting(config, &build) }
        }
        error => error,
    })
}

/// Returns the largest smaller number of environments that fits the device.
fn fitting(config: &Config, build: &Build<'_>) -> Option<usize> {
    let settings = config.algo.settings();
    let allowed: Vec<usize> = (1..build.n_envs).filter(|&n_envs| settings.check(n_envs).is_none()).collect();
    let fits = |n_envs| settings.agent(&Build { n_envs, fresh: false, ..build.clone() }).is_ok();
    let n_fitting = allowed.partition_point(|&n_envs| fits(n_envs));
    allowed[..n_fitting].last().copied()
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

/// Warns of the number of invalid numbers.
fn warn_all(all: &Anomalies, listener: Listener<'_>) {
    if all.faults > 0 {
        warn(listener, &format!("{} episodes were truncated because a worker failed", grouped(all.faults)));
    }
    if all.outside > 0 {
        warn(listener, &format!("{} observations were outside of their space", grouped(all.outside)));
    }
    if all.truncated > 0 {
        warn(listener, &format!("{} episodes were truncated because of numbers that are not finite", grouped(all.truncated)));
    }
}

/// Optimizer steps skipped in this part of the run.
#[derive(Default)]
struct Skipped {
    n: u64,
}

impl Skipped {
    /// Counts the steps skipped in an update.
    ///
    /// Returns a warning each time that the count has doubled.
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

/// State of a run, except for its agent and its pipeline.
struct Run {
    config: Config,
    entry: Entry,
    pool: Pool,
    progress: Progress,
    saves: Saves,
    profile: Profile,
    track: Track,
}

impl Run {
    fn evaluate(&self, agent: &dyn Agent) -> Result<Option<Evaluation>, Error> {
        let RunConfig { eval_episodes, eval_max_steps, seed, on_nonfinite, .. } = self.config.run;
        let seed = training_evaluation_seed(seed);
        let config = EvalConfig { seed, stochastic: false, max_steps: eval_max_steps, on_nonfinite };
        let evaluate = || evaluate_policy(agent.policy(), &self.entry, eval_episodes, &config, &self.pool);
        self.track.time(Phase::Evaluation, evaluate)
    }

    fn checkpoint(&self, agent: &dyn Agent, collector: CollectorState, ahead: Vec<(u64, Snapshot)>) -> Result<Checkpoint, Error> {
        let (config, progress) = (self.config.clone(), self.progress.clone());
        let agent = agent.save()?;
        Ok(Checkpoint { config, progress, agent, replay: None, collector, ahead, arithmetic: ARITHMETIC })
    }

    /// Creates a checkpoint from which new episodes begin.
    fn without_envs(&self, agent: &dyn Agent) -> Result<Checkpoint, Error> {
        let collector = CollectorState::without_envs(self.progress.iterations * self.config.n_steps() as u64);
        self.checkpoint(agent, collector, Vec::new())
    }

    fn is_complete(&self) -> bool {
        self.progress.env_steps >= self.config.run.steps
    }
}

/// Part of a run, from its start or resumption to its end.
struct Part<'a> {
    run: &'a mut Run,
    dir: &'a RunDir,
    listener: Listener<'a>,
    log: Log,
    /// Latencies of each environment that blocks.
    env_log: Log,
    events: Option<EventFile>,
    meter: Meter,
    begin: Instant,
    begin_steps: u64,
    begin_s: f64,
    eval_every: u64,
    end: End,
    /// Evaluation after the latest rollout.
    evaluation: Option<Evaluation>,
    lags: LagHistogram,
    /// Calls of environments that block, since the last row.
    calls: Calls,
    skipped: Skipped,
    anomalies: Anomalies,
}

impl<'a> Part<'a> {
    fn new(run: &'a mut Run, agent: &dyn Agent, dir: &'a RunDir, listener: Listener<'a>) -> Self {
        run.saves.begin(dir, listener);
        let RunConfig { steps, n_envs, max_lag, tensorboard, eval_every, target_return, .. } = run.config.run;
        let log = Log::new(&dir.metrics(), run.progress.iterations);
        let env_log = Log::new(&dir.envs(), run.progress.iterations);
        let events = tensorboard.then(|| EventFile::new(dir.events(), run.progress.env_steps));
        let on_device = agent.device_memory();
        let meter = Meter::new((!on_device.is_empty()).then(|| on_device.iter().map(|(_, bytes)| bytes).sum()));
        let lags = LagHistogram::after(run.progress.iterations, n_envs, max_lag);
        // A target without a cadence is checked twenty times.
        let eval_every = if eval_every == 0 && target_return.is_some() { steps.div_ceil(20) } else { eval_every };
        let (begin, begin_steps, begin_s) = (Instant::now(), run.progress.env_steps, run.progress.elapsed_s);
        let mut part = Self {
            run,
            dir,
            listener,
            log,
            env_log,
            events,
            meter,
            begin,
            begin_steps,
            begin_s,
            eval_every,
            end: End::Steps,
            evaluation: None,
            lags,
            calls: Calls::default(),
            skipped: Skipped::default(),
            anomalies: Anomalies::default(),
        };
        let opened = part.log.open();
        part.tell(&dir.metrics(), opened);
        part
    }

    fn warn(&mut self, text: &str) {
        warn(self.listener, text);
    }

    /// Warns if a row could not be written.
    fn tell(&mut self, path: &Path, written: io::Result<()>) {
        if let Err(error) = written {
            self.warn(&format!("{}: {error}; training continues, rows are lost until it can be written", path.display()));
        }
    }

    /// Writes events for TensorBoard, and warns if that fails.
    fn events(&mut self, write: impl FnOnce(&mut EventFile, &Progress) -> io::Result<()>) {
        if let Some(events) = &mut self.events {
            let written = write(events, &self.run.progress);
            self.tell(&self.dir.events(), written);
        }
    }

    /// Evaluates the agent, and keeps it if it is the best one.
    fn evaluate(&mut self, agent: &mut dyn Agent) -> Result<(), Error> {
        agent.fetch_policy()?;
        self.evaluation = self.run.evaluate(agent)?;
        let Some(result) = self.evaluation else { return Ok(()) };
        (self.listener)(Event::Evaluation { env_steps: self.run.progress.env_steps, result: &result });
        if self.run.saves.is_best(result.return_mean) {
            let checkpoint = self.run.without_envs(agent)?;
            self.run.saves.save_best(self.dir, &checkpoint, agent, result.return_mean, self.listener);
        }
        Ok(())
    }

    /// Learns from a rollout, and evaluates, logs and decides what is next.
    fn learn(&mut self, filled: &mut Filled, agent: &mut dyn Agent) -> Result<Flow, Error> {
        warn_first(&self.anomalies, &filled.anomalies, self.listener);
        self.anomalies.clone_from(&filled.anomalies);
        let Run { config, pool, progress, track, .. } = &mut *self.run;
        let update = match track.time_update(|| agent.update(&filled.rollout, filled.remaining, pool)) {
            Ok(update) => update,
            Err(rl_agents::Error::Diverged(divergence)) => {
                return Err(diverged::error(divergence, agent, config, progress, self.dir));
            }
            Err(error) => return Err(error.into()),
        };
        self.skipped.count(&update).into_iter().for_each(|warning| warn(self.listener, &warning));
        self.lags.count(filled.waiting, &filled.learnt, progress.iterations);
        self.calls.merge(&filled.calls);

        let before = progress.env_steps;
        progress.env_steps += (config.n_steps() * config.run.n_envs) as u64;
        progress.iterations += 1;
        progress.episodes += (filled.earlier + filled.episodes.len()) as u64;
        progress.recent.append(&mut filled.episodes);
        progress.recent.drain(..progress.recent.len().saturating_sub(WINDOW));
        let passed = |every: u64| every > 0 && before / every < progress.env_steps / every;
        let (evaluate, save) = (passed(self.eval_every), passed(config.run.checkpoint_every));
        self.evaluation = None;
        if evaluate {
            self.evaluate(agent)?;
        }

        let (wall_s, all) = (self.begin.elapsed().as_secs_f64(), self.run.is_complete());
        let Run { config, entry, progress, profile, .. } = &mut *self.run;
        progress.elapsed_s = self.begin_s + wall_s;
        if self.evaluation.is_some_and(|e| config.run.target_return.is_some_and(|target| e.return_mean >= target)) {
            self.end = End::Target;
        } else if interrupt::requested() && !all {
            self.end = End::Interrupted;
        }
        if progress.iterations.is_multiple_of(config.run.log_interval) || self.evaluation.is_some() || all {
            let fps = (progress.env_steps - self.begin_steps) as f64 / wall_s;
            let mut row = Row::new(progress, self.evaluation.map(|e| e.return_mean), &update, fps);
            if config.mode() != Mode::Sync {
                self.lags.extend(&mut row);
            }
            row.extend(profile, config.mode());
            if config.blocks(entry) {
                self.calls.extend(&mut row, &filled.faults, filled.dropped);
                let mut rows = self.calls.rows(progress.env_steps, progress.iterations);
                let written = rows.try_for_each(|row| self.env_log.write(&row));
                drop(rows);
                self.calls.clear();
                self.tell(&self.dir.envs(), written);
            }
            self.meter.extend(&mut row);
            let written = self.log.write(&row);
            self.tell(&self.dir.metrics(), written);
            self.events(|events, progress| events.add(progress.env_steps, &row.values));
            (self.listener)(Event::Row { row: &row, progress: &self.run.progress });
        }
        Ok(match self.end {
            End::Target => Flow::Stop,
            End::Steps if !all && !save => Flow::Continue,
            End::Steps | End::Interrupted => Flow::Rest,
        })
    }

    /// Saves a checkpoint while no rollouts are in flight.
    fn save(&mut self, pipeline: &mut Pipeline<Box<dyn Collect>>, agent: &dyn Agent) -> Result<(), Error> {
        // A resumed run continues them.
        self.events(|events, _| events.flush());
        let Self { run, dir, listener, end, .. } = self;
        let (last, track) = (*end != End::Steps || run.is_complete(), run.track.clone());
        track.time(Phase::Checkpoint, || {
            let collectors = pipeline.collectors()?;
            let collector = collectors[0].save()?;
            let checkpoint = run.checkpoint(agent, collector, pipeline.older())?;
            let saves = &mut run.saves;
            let save = if last { Saves::save_last } else { Saves::save };
            save(saves, dir, &checkpoint, agent, &mut **listener)
        })
    }

    /// Evaluates at the end of training.
    fn finish(mut self, agent: &mut dyn Agent) -> Result<Outcome, Error> {
        agent.fetch_policy()?;
        let wall_s = self.begin.elapsed().as_secs_f64();
        warn_all(&self.anomalies, self.listener);
        if self.end == End::Interrupted && self.run.is_complete() {
            self.end = End::Steps; // the rollouts in flight were the last
        }
        if self.end == End::Interrupted {
            self.evaluation = None;
        } else if self.evaluation.is_none() {
            self.evaluate(agent)?;
            match self.evaluation {
                Some(result) => {
                    let written = self.log.evaluated(&self.run.progress, result.return_mean);
                    self.tell(&self.dir.metrics(), written);
                    self.events(|events, progress| events.add(progress.env_steps, &[(EVALUATION, result.return_mean)]));
                }
                None => self.end = End::Interrupted,
            }
        }
        self.events(|events, _| events.flush());
        let Self { run, end, evaluation, begin_steps, .. } = self;
        let progress = run.progress.clone();
        Ok(Outcome { end, env_steps: progress.env_steps - begin_steps, progress, wall_s, evaluation })
    }
}

/// A run, with everything made before anything is written.
pub struct Training {
    run: Run,
    agent: Box<dyn Agent>,
    pipeline: Pipeline<Box<dyn Collect>>,
}

impl Training {
    /// Creates a training in the environment of `entry`.
    ///
    /// # Errors
    /// The errors of [`Budget::check`], the environments, the agent and the rollout.
    pub fn new(config: &Config, entry: &Entry, profile: Profile) -> Result<Self, Error> {
        let (config, entry) = (&settled(config, entry)?, &config.wrapped(entry));
        Self::build(config, entry, |pool| collector(config, entry, pool), || agent(config, entry, true), profile)
    }

    /// Creates a training of the caller's agent.
    ///
    /// Of the algorithm's settings, only the steps of a rollout count.
    ///
    /// # Errors
    /// The errors of [`Training::new`].
    pub fn with_agent(config: &Config, entry: &Entry, agent: Box<dyn Agent>, profile: Profile) -> Result<Self, Error> {
        let (config, entry) = (&settled(config, entry)?, &config.wrapped(entry));
        Self::build(config, entry, |pool| collector(config, entry, pool), || Ok((agent, None)), profile)
    }

    /// Creates a training whose parameters will be loaded.
    pub(crate) fn unset(config: &Config, entry: &Entry, profile: Profile) -> Result<Self, Error> {
        let (config, entry) = (&settled(config, entry)?, &config.wrapped(entry));
        Self::build(config, entry, |pool| collector(config, entry, pool), || agent(config, entry, false), profile)
    }

    /// Creates a training in `envs` instead of the entry's environments.
    ///
    /// They have the same spaces. Evaluations are played in the entry's environments.
    ///
    /// # Errors
    /// The errors of [`Training::new`] and [`Collector::of`].
    ///
    /// # Panics
    /// If `envs` is empty.
    pub fn with_envs(config: &Config, entry: &Entry, envs: Vec<Box<dyn VecEnv>>, profile: Profile) -> Result<Self, Error> {
        let entry = &config.wrapped(entry);
        let mut on_cpu = config.clone();
        on_cpu.run.env_device = "cpu".into();
        let agent = || agent(&on_cpu, entry, true);
        Self::build(config, entry, |pool| of_slices(config, envs, pool), agent, profile)
    }

    /// Creates a training that continues from a checkpoint.
    ///
    /// The settings are those of `config`.
    ///
    /// # Errors
    /// The errors of [`Training::new`], and those of the agent and the environments if the checkpoint does not fit.
    pub fn resume(config: &Config, entry: &Entry, checkpoint: Checkpoint, profile: Profile) -> Result<Self, Error> {
        let mut training = Self::unset(config, entry, profile)?;
        training.load(checkpoint)?;
        Ok(training)
    }

    fn build(
        config: &Config,
        entry: &Entry,
        collector: impl FnOnce(&Pool) -> Result<Box<dyn Collect>, Error>,
        agent: impl FnOnce() -> Result<Built, Error>,
        profile: Profile,
    ) -> Result<Self, Error> {
        Budget::training(config, entry).check()?;
        let pool = Pool::new(config.learner_threads())?;
        let collecting = match config.mode() {
            Mode::Sync => pool.clone(),
            Mode::Overlapped { .. } => Pool::new(config.collector_threads())?,
        };
        let (mut agent, on_device) = agent()?;
        let collector = match on_device {
            Some(collector) => Box::new(collector),
            None => collector(&collecting)?,
        };
        let pipeline = Pipeline::new(config.mode(), vec![collector], config.n_steps(), &agent.memory(), &profile)?;
        let (config, entry, track) = (config.clone(), *entry, profile.track("learner"));
        agent.watch(track.watch());
        let (progress, saves) = (Progress::default(), Saves::default());
        Ok(Self { run: Run { config, entry, pool, progress, saves, profile, track }, agent, pipeline })
    }

    /// Continues from a checkpoint of an agent of the same kind.
    ///
    /// # Errors
    /// The errors of the agent and the environments if the checkpoint does not fit.
    pub fn load(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let Checkpoint { agent, replay, collector, progress, ahead, .. } = checkpoint;
        self.pipeline.resume(&mut *self.agent, &agent, ahead, progress.iterations, self.run.config.run.steps)?;
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
        self.pipeline.collectors()?[0].load(collector)?;
        (self.run.saves, self.run.progress) = (Saves::loaded(progress.env_steps), progress);
        Ok(())
    }

    /// Returns the agent.
    #[must_use]
    pub fn agent(&self) -> &dyn Agent {
        &*self.agent
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.run.progress
    }

    /// Trains to the end, writes metrics and checkpoints, evaluates the agent.
    ///
    /// If collecting and learning overlap, a checkpoint waits until every rollout in flight has been learnt from. It holds the agent, the
    /// environments, and the older policies of the next rollouts, so a resumed run continues like an uninterrupted one. Where a target is
    /// reached, the rollouts in flight are dropped instead.
    ///
    /// # Errors
    /// The errors of the agent, the environments and the files. The last good checkpoint remains. If an environment has failed, what
    /// was learnt before is saved, too.
    pub fn run(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let outcome = self.run_to_end(dir, listener);
        let failed = outcome.as_ref().is_err_and(|error| error.exit_code() == ENV_FAILED);
        if failed && self.run.progress.env_steps > 0 {
            let checkpoint = self.run.without_envs(&*self.agent)?;
            self.run.saves.save_after_fault(dir, &checkpoint, &*self.agent, listener);
        }
        outcome
    }

    fn run_to_end(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let Self { run, agent, pipeline } = self;
        let steps = run.config.run.steps;
        let mut part = Part::new(run, &**agent, dir, listener);
        while !part.run.is_complete() && part.end == End::Steps {
            pipeline.drive(&mut **agent, steps, |filled, agent| part.learn(filled, agent))?;
            part.save(pipeline, &**agent)?;
        }
        part.finish(&mut **agent)
    }
}
