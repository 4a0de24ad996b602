//! Part of a run, from its start or resumption to its end.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rl_agents::ranks::{Ranks, gather};
use rl_agents::{ARITHMETIC, Agent, Anomalies, CollectorState, EvalConfig, Metrics, Precision, Snapshot};
use rl_envs::Pool;
use rl_envs::catalog::Entry;

use crate::config::{Mpi, RunConfig};
use crate::pipeline::calls::Calls;
use crate::pipeline::{Collect, Filled, Flow, Pipeline};
use crate::print::{grouped, program};
use crate::report::metrics::{EVALUATION, LagHistogram, Log, Row};
use crate::report::profile::{Phase, Profile, Track};
use crate::report::resources::Meter;
use crate::report::tensorboard::EventFile;
use crate::run::checkpoint::Checkpoint;
use crate::run::evaluation::{Evaluation, evaluate, training_evaluation_seed};
use crate::run::event::{Event, Listener, warn};
use crate::run::progress::WINDOW;
use crate::run::run_dir::RunDir;
use crate::run::saves::Saves;
use crate::{Config, Error, Mode, Progress, config::auto, interrupt, run::diverged};

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

/// Warns of the first invalid number of each kind.
fn warn_first(before: &Anomalies, now: &Anomalies, listener: Listener<'_>) {
    if let (None, Some(first)) = (&before.first_outside, &now.first_outside) {
        warn(listener, &format!("{first}; training continues, `{} check-env` tests an environment", program()));
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
    fn count(&mut self, update: &Metrics, precision: Precision) -> Option<String> {
        let before = self.n;
        self.n += update.get("train/skipped_updates").map_or(0, |n| n as u64);
        // Some are the way in which f16 finds its loss scale.
        let help = if precision == Precision::F16 { "precision = bf16" } else { "a smaller learning_rate" };
        (self.n > 0 && before.checked_ilog2() != self.n.checked_ilog2())
            .then(|| format!("loss or gradient was not finite; optimizer steps skipped so far: {} ({help} may help)", self.n))
    }
}

/// State of a run, except for its agent and its pipeline.
pub(super) struct Run {
    pub(super) config: Config,
    pub(super) entry: Entry,
    pub(super) pool: Pool,
    pub(super) progress: Progress,
    pub(super) saves: Saves,
    pub(super) profile: Profile,
    pub(super) track: Track,
    /// Other ranks that share the training, if there are any.
    pub(super) ranks: Option<Arc<dyn Ranks>>,
}

impl Run {
    /// Tells the other ranks what is next, and whether the run ends then.
    ///
    /// `own` is rank 0's decision. An interruption of any rank is one of all.
    pub(super) fn decide(&self, own: Option<(Flow, bool)>) -> Result<Option<(Flow, bool)>, Error> {
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let all = gather(&**ranks, Ok((own, interrupt::requested())))?;
        if all.iter().any(|(_, interrupted)| *interrupted) {
            interrupt::request();
        }
        Ok(all[0].0)
    }

    /// Counts a rollout that was learnt from; returns the env steps before it.
    pub(super) fn count(&mut self, filled: &mut Filled) -> u64 {
        let Self { config, progress, .. } = self;
        let before = progress.env_steps;
        progress.env_steps += (config.n_steps() * config.run.n_envs) as u64;
        progress.iterations += 1;
        progress.episodes += (filled.n_unreported + filled.episodes.len()) as u64;
        progress.recent.append(&mut filled.episodes);
        progress.recent.drain(..progress.recent.len().saturating_sub(WINDOW));
        before
    }

    fn evaluate(&self, agent: &dyn Agent) -> Result<Option<Evaluation>, Error> {
        let RunConfig { eval_episodes, eval_max_steps, seed, on_nonfinite, .. } = self.config.run;
        let seed = training_evaluation_seed(seed);
        let config = EvalConfig { seed, stochastic: false, max_steps: eval_max_steps, on_nonfinite };
        let faults = self.config.faults_of(&self.entry);
        let evaluate = || evaluate(agent.policy(), &self.entry, eval_episodes, &config, faults, &self.pool);
        self.track.time(Phase::Evaluation, evaluate)
    }

    fn checkpoint(&self, agent: &dyn Agent, collector: CollectorState, ahead: Vec<(u64, Snapshot)>) -> Result<Checkpoint, Error> {
        let (config, progress) = (self.config.clone(), self.progress.clone());
        let agent = agent.save()?;
        Ok(Checkpoint { config, progress, agent, replay: None, collector, ahead, arithmetic: ARITHMETIC })
    }

    /// Creates a checkpoint from which new episodes begin.
    ///
    /// Random numbers below `counter` may be in dropped rollouts.
    pub(super) fn without_envs(&self, agent: &dyn Agent, counter: u64) -> Result<Checkpoint, Error> {
        let collector = CollectorState::without_envs(counter.max(self.progress.iterations * self.config.n_steps() as u64));
        self.checkpoint(agent, collector, Vec::new())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.progress.env_steps >= self.config.run.steps
    }
}

/// Part of a run, from its start or resumption to its end.
pub(super) struct Part<'a> {
    pub(super) run: &'a mut Run,
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
    pub(super) end: End,
    /// Evaluation after the latest rollout.
    evaluation: Option<Evaluation>,
    lags: LagHistogram,
    /// Latest values of updates since the last row.
    latest: Metrics,
    /// Calls of environments that block, since the last row.
    calls: Calls,
    skipped: Skipped,
    anomalies: Anomalies,
}

impl<'a> Part<'a> {
    pub(super) fn new(run: &'a mut Run, agent: &mut dyn Agent, dir: &'a RunDir, listener: Listener<'a>) -> Self {
        run.saves.begin(dir, &run.config, listener);
        let RunConfig { steps, n_envs, max_lag, tensorboard, eval_every, target_return, .. } = run.config.run;
        let log = Log::new(&dir.metrics(), run.progress.iterations);
        let env_log = Log::new(&dir.envs(), run.progress.iterations);
        let events = tensorboard.then(|| EventFile::new(dir.events(), run.progress.env_steps));
        let on_device = agent.device().map_or_else(Vec::new, |device| device.memory_use());
        let taken = (!on_device.is_empty()).then(|| on_device.iter().map(|(_, bytes)| bytes).sum());
        let sensors = taken.and_then(|_| auto::choose(&run.config, &run.entry, 1).0.sensors());
        let meter = Meter::new(taken, sensors);
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
            latest: Metrics::default(),
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
        agent.device().map_or(Ok(()), |device| device.fetch_policy())?;
        self.evaluation = self.run.evaluate(agent)?;
        let Some(result) = self.evaluation else { return Ok(()) };
        (self.listener)(Event::Evaluation { env_steps: self.run.progress.env_steps, result: &result });
        if self.run.saves.is_best(result.return_mean) {
            let checkpoint = self.run.without_envs(agent, 0)?;
            self.run.saves.save_best(self.dir, &checkpoint, agent, result.return_mean, self.listener);
        }
        Ok(())
    }

    /// Does the evaluation that an interrupt has cut off before the run was saved.
    ///
    /// A run that others share ends at the next evaluation that reaches the target, not at this one.
    pub(super) fn catch_up(&mut self, agent: &mut dyn Agent) -> Result<(), Error> {
        let (every, Progress { env_steps, iterations, .. }) = (self.eval_every, self.run.progress.clone());
        let before = env_steps.saturating_sub((self.run.config.n_steps() * self.run.config.run.n_envs) as u64);
        let was_due = every > 0 && before / every < env_steps / every && !self.run.is_complete();
        if !was_due || self.log.has_evaluation(iterations) {
            return Ok(());
        }
        self.evaluate(agent)?;
        let Some(result) = self.evaluation else {
            self.end = End::Interrupted;
            return Ok(());
        };
        self.write_evaluation(result);
        let has_target = self.run.config.run.target_return.is_some_and(|target| result.return_mean >= target);
        if has_target && self.run.ranks.is_none() {
            self.end = End::Target;
        }
        Ok(())
    }

    /// Adds an evaluation to the row of the latest iteration.
    fn write_evaluation(&mut self, result: Evaluation) {
        let written = self.log.evaluated(&self.run.progress, result.return_mean);
        self.tell(&self.dir.metrics(), written);
        self.events(|events, progress| events.add(progress.env_steps, &[(EVALUATION, result.return_mean)]));
    }

    /// Learns from a rollout, and evaluates, logs and decides what is next.
    pub(super) fn learn(&mut self, filled: &mut Filled, agent: &mut dyn Agent) -> Result<Flow, Error> {
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
        let warning = self.skipped.count(&update, config.net.precision);
        warning.into_iter().for_each(|warning| warn(self.listener, &warning));
        self.latest.replace_by(&update);
        self.lags.count(filled.waiting, &filled.learnt, progress.iterations);
        self.calls.merge(&filled.calls);

        let before = self.run.count(filled);
        let (every, env_steps) = (self.eval_every, self.run.progress.env_steps);
        self.evaluation = None;
        if every > 0 && before / every < env_steps / every {
            self.evaluate(agent)?;
        }
        let save = self.run.saves.is_due(Instant::now(), self.run.config.run.checkpoint_every, before, env_steps);

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
            let mut row = Row::new(progress, self.evaluation.map(|e| e.return_mean), &std::mem::take(&mut self.latest), fps);
            if config.mode() != Mode::Sync {
                self.lags.extend(&mut row);
            }
            row.extend(profile, config.mode());
            if config.run.mpi == Mpi::Actors {
                row.insert([("faults/actors", filled.faults.actors as f64)]);
            }
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
        let flow = match self.end {
            End::Target => Flow::Stop,
            End::Steps if !all && !save => Flow::Continue,
            End::Steps | End::Interrupted => Flow::Rest,
        };
        self.run.decide(Some((flow, all || self.end != End::Steps)))?;
        Ok(flow)
    }

    /// Saves what was learnt before an interrupt.
    ///
    /// The rollouts in flight are dropped with their environments.
    pub(super) fn stop(&mut self, counter: u64, agent: &mut dyn Agent) -> Result<(), Error> {
        self.end = End::Interrupted;
        let Self { run, dir, listener, .. } = self;
        let checkpoint = run.without_envs(agent, counter)?;
        run.saves.save_last(dir, &checkpoint, agent, &mut **listener)
    }

    /// Saves a checkpoint while no rollouts are in flight.
    pub(super) fn save(&mut self, pipeline: &mut Pipeline<Box<dyn Collect>>, agent: &mut dyn Agent) -> Result<(), Error> {
        // A run resumed from this checkpoint starts a new event file.
        self.events(|events, _| events.flush());
        let synced = self.log.sync();
        self.tell(&self.dir.metrics(), synced);
        let Self { run, dir, listener, end, .. } = self;
        let (last, track) = (*end != End::Steps || run.is_complete(), run.track.clone());
        track.time(Phase::Checkpoint, || {
            let collectors = pipeline.collectors()?;
            let mut collector = collectors[0].save()?;
            if run.config.run.mpi.has_actors() {
                // Actors keep no count; environments that continue elsewhere must not repeat random numbers.
                collector =
                    CollectorState::without_envs(collector.steps().max(run.progress.iterations * run.config.n_steps() as u64));
            }
            let checkpoint = run.checkpoint(agent, collector, pipeline.older())?;
            let saves = &mut run.saves;
            let save = if last { Saves::save_last } else { Saves::save };
            save(saves, dir, &checkpoint, agent, &mut **listener)
        })
    }

    /// Evaluates at the end of training.
    pub(super) fn finish(mut self, agent: &mut dyn Agent) -> Result<Outcome, Error> {
        agent.device().map_or(Ok(()), |device| device.fetch_policy())?;
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
                Some(result) => self.write_evaluation(result),
                None => self.end = End::Interrupted,
            }
        }
        self.events(|events, _| events.flush());
        let Self { run, end, evaluation, begin_steps, .. } = self;
        let progress = run.progress.clone();
        Ok(Outcome { end, env_steps: progress.env_steps - begin_steps, progress, wall_s, evaluation })
    }
}
