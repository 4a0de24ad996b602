//! The training loop, once: it learns from the rollouts of a [`Pipeline`].

use std::io::{BufReader, Read};
use std::sync::Arc;
#[cfg(feature = "cli")]
use std::time::{Duration, Instant};

use rl_agents::ranks::{Ranks, gather};
use rl_agents::{Agent, CollectorState, Snapshot};
use rl_envs::Pool;
use rl_envs::catalog::Entry;

use crate::Progress;
use crate::config::{RunConfig, auto};
use crate::file::own;
#[cfg(feature = "cli")]
use crate::interrupt;
use crate::pipeline::{Collect, Flow, Pipeline};
use crate::ranks::crew::Crew;
use crate::report::profile::Profile;
use crate::run::checkpoint::Checkpoint;
use crate::run::event::Listener;
pub use crate::run::part::{End, Outcome};
use crate::run::part::{Part, Run};
use crate::run::run_dir::RunDir;
use crate::run::saves::Saves;
use crate::{Config, Error};

/// Exit code of errors after which environments cannot be continued.
const ENV_FAILED: u8 = 5;

/// The other processes of a job, as one of them sees them.
pub trait Peers: Ranks {
    /// Returns the collectors of their environments: they are actors then.
    ///
    /// # Errors
    /// The errors of the collectors.
    fn actors(&self, config: &Config, entry: &Entry) -> Result<Vec<Box<dyn Collect>>, Error>;
}

/// Describes the devices to train on, and the number of ranks.
///
/// `auto` says why it chose the device.
///
/// # Errors
/// [`Error::Device`] if one does not exist.
pub fn describe_device(config: &Config, entry: &Entry, ranks: Option<&Arc<dyn Peers>>) -> Result<String, Error> {
    let (device, why) = auto::choose(config, entry, ranks.map_or(1, |ranks| ranks.n_ranks()));
    let devices = if config.n_devices() > 1 { config.open_devices()? } else { device.open()?.into_iter().collect() };
    let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
    let name = if names.is_empty() { "cpu".into() } else { names.join(", ") };
    let device = why.map_or(name.clone(), |why| format!("{name} (chosen by auto: {why})"));
    Ok(ranks.map_or(device.clone(), |ranks| format!("{device}, {} ranks", ranks.n_ranks())))
}

/// State that ranks receive before they continue a run.
type Received = (Snapshot, Option<Vec<u8>>, CollectorState, Progress);

/// Parts of a training, of which nothing has been written.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) entry: &'a Entry,
    /// Threads that learn.
    pub(super) pool: Pool,
    pub(super) agent: Box<dyn Agent>,
    pub(super) pipeline: Pipeline<Box<dyn Collect>>,
    pub(super) profile: Profile,
    /// Other ranks that share the training, if there are any.
    pub(super) ranks: Option<Arc<dyn Ranks>>,
}

/// A run, with everything made before anything is written.
///
/// [`Training::builder`] makes it.
pub struct Training {
    run: Run,
    agent: Box<dyn Agent>,
    pipeline: Pipeline<Box<dyn Collect>>,
    /// Environments of all ranks that rank 0 has loaded, until it sends them.
    loaded: Option<CollectorState>,
    /// Threads of the other devices, if several share the training.
    pub(super) crew: Option<Crew>,
}

impl Training {
    pub(super) fn of_parts(parts: Parts<'_>) -> Result<Self, Error> {
        let Parts { config, entry, pool, mut agent, pipeline, profile, ranks } = parts;
        let (config, entry, track) = (config.clone(), *entry, profile.track("learner"));
        if let Some(observed) = agent.observed() {
            observed.watch(track.watch());
            profile.probe(&track).into_iter().for_each(|probe| observed.set_probe(probe));
        }
        if let (Some(device), Some(watch)) = (agent.device(), profile.device_watch()) {
            device.watch_device(watch)?;
        }
        if let (Some(shared), Some(ranks)) = (agent.shared(), &ranks) {
            shared.share(ranks.clone());
        }
        let (progress, saves) = (Progress::default(), Saves::default());
        let run = Run { config, entry, pool, progress, saves, profile, track, ranks };
        Ok(Self { run, agent, pipeline, loaded: None, crew: None })
    }

    /// Continues from a checkpoint of an agent of the same kind.
    ///
    /// # Errors
    /// The errors of the agent and the environments if the checkpoint does not fit.
    pub fn load(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let Checkpoint { config, agent, replay, collector, progress, ahead, .. } = checkpoint;
        let mut file = match &replay {
            Some(path) => Some(BufReader::new(own(path, |options| options.read(true)).map_err(Error::io(path))?)),
            None => None,
        };
        let name = replay.as_ref().and_then(|path| path.file_name()).unwrap_or_default().display().to_string();
        let replay = file.as_mut().map(|file| (file as &mut dyn Read, &*name));
        // Another recording, or the first one, is played from its start.
        let RunConfig { offline, .. } = &self.run.config.run;
        let collector =
            if offline.is_empty() || config.run.offline == *offline { collector } else { CollectorState::without_envs(0) };
        self.loaded = self.run.ranks.as_ref().map(|_| collector.clone());
        let env_steps = progress.env_steps;
        self.restore(&agent, replay, ahead, collector, progress, Some(&config.run.offline))?;
        self.run.saves = Saves::loaded(env_steps);
        Ok(())
    }

    /// Restores a state; the replay memory comes with the name of its source.
    ///
    /// `recording` is the file that the saved run was learning from, if any.
    fn restore(
        &mut self,
        agent: &Snapshot,
        replay: Option<(&mut dyn Read, &str)>,
        ahead: Vec<(u64, Snapshot)>,
        collector: CollectorState,
        progress: Progress,
        recording: Option<&String>,
    ) -> Result<(), Error> {
        self.pipeline.resume(&mut *self.agent, agent, ahead, progress.iterations, self.run.config.run.steps)?;
        match (replay, self.agent.replay()) {
            (Some((input, name)), Some(memory)) => {
                let named = |error| rl_agents::Error::Snapshot(format!("{name}: {error}"));
                memory.load_replay(agent, input).map_err(named)?;
            }
            (Some((_, name)), None) => {
                let why = format!("{name}: this agent has no replay memory");
                return Err(rl_agents::Error::Snapshot(why).into());
            }
            (None, Some(memory)) if memory.is_saved() => {
                let why = "its replay memory is missing, though";
                let (name, so) = (self.run.config.algo.name(), "it can be evaluated, but not continued");
                return Err(rl_agents::Error::Snapshot(format!("{why} {name}.save_replay is true: {so}")).into());
            }
            (None, _) => {}
        }
        // A recording continues where it was left.
        let RunConfig { offline, mpi, .. } = &self.run.config.run;
        let same_recording = !offline.is_empty() && recording == Some(offline);
        if !same_recording && !collector.has_envs() || mpi.has_actors() {
            self.agent.discontinue();
        }
        self.pipeline.collectors()?[0].load(collector)?;
        self.run.progress = progress;
        Ok(())
    }

    /// Bytes of the memory of the device that learns, by purpose; empty without one.
    #[cfg(feature = "cli")]
    pub(crate) fn device_memory(&mut self) -> Vec<(&'static str, usize)> {
        self.agent.device().map_or_else(Vec::new, |device| device.memory_use())
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
    /// If collecting and learning overlap, a checkpoint waits until every rollout in flight has been learnt from. It holds the
    /// agent, the environments, and the older policies of the next rollouts, so a resumed run continues like an uninterrupted
    /// one. Where a target is reached, the rollouts in flight are dropped instead.
    ///
    /// # Errors
    /// The errors of the agent, the environments and the files. The last good checkpoint remains. If an environment has failed,
    /// what was learnt before is saved, too.
    pub fn run(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let outcome = self.run_to_end(dir, listener);
        let offline = !self.run.config.run.offline.is_empty();
        // A thread is spawned for an environment that hangs, or to evaluate.
        let environments = |error: &Error| match error {
            Error::Thread(_) => true,
            Error::Io { .. } => offline,
            _ => error.exit_code() == ENV_FAILED,
        };
        let failed = outcome.as_ref().is_err_and(environments);
        if failed && self.run.progress.env_steps > 0 {
            let checkpoint = self.run.without_envs(&*self.agent, self.pipeline.counter())?;
            self.run.saves.save_after_fault(dir, &checkpoint, &mut *self.agent, listener);
        }
        outcome
    }

    /// Trains along with rank 0, which alone evaluates the agent and writes files.
    ///
    /// # Errors
    /// The errors of the agent and the environments; [`rl_agents::Error::Rank`] for those of other ranks.
    pub(crate) fn follow(&mut self) -> Result<(), Error> {
        if let Some((snapshot, replay, collector, progress)) = self.exchange(None)? {
            let mut replay = replay.as_deref();
            let replay = replay.as_mut().map(|bytes| (bytes as &mut dyn Read, "replay memory"));
            // If the recording is another one than before, rank 0 has dropped what waited for its rest.
            let recording = self.run.config.run.offline.clone();
            self.restore(&snapshot, replay, Vec::new(), collector, progress, Some(&recording))?;
        }
        let Self { run, agent, pipeline, .. } = self;
        let mut ends = run.is_complete();
        while !ends {
            let driven = pipeline.drive(&mut **agent, run.config.run.steps, |filled, agent| {
                agent.update(&filled.rollout, filled.remaining, &run.pool)?;
                run.count(filled);
                let (flow, last) = run.decide(None)?.unwrap_or((Flow::Rest, true));
                ends = last;
                Ok(flow)
            });
            driven.map_err(|error| match &run.ranks {
                // Every rank has it, and rank 0 saves.
                Some(ranks) if error.exit_code() == ENV_FAILED => {
                    rl_agents::Error::Rank { rank: ranks.rank(), text: error.to_string() }.into()
                }
                _ => error,
            })?;
            pipeline.collectors()?[0].save()?;
        }
        Ok(())
    }

    /// Trains without writing files, and returns env steps per second.
    ///
    /// Skips the first `n_warmup` rollouts, then measures at least one rollout and at least `least`. Ends early at an interrupt.
    ///
    /// With several devices it can be called once, because it ends their threads.
    ///
    /// # Errors
    /// The errors of the agent and the environments.
    #[cfg(feature = "cli")]
    pub(crate) fn rate(&mut self, n_warmup: u64, least: Duration) -> Result<f64, Error> {
        self.exchange(None)?;
        let Self { run, agent, pipeline, .. } = self;
        let warm_after = run.progress.iterations + n_warmup;
        let (mut begin, mut begin_steps, mut rate) = (Instant::now(), run.progress.env_steps, 0.0);
        let driven = pipeline.drive(&mut **agent, u64::MAX, |filled, agent| {
            agent.update(&filled.rollout, filled.remaining, &run.pool)?;
            run.count(filled);
            if run.progress.iterations <= warm_after {
                (begin, begin_steps) = (Instant::now(), run.progress.env_steps);
            } else {
                rate = (run.progress.env_steps - begin_steps) as f64 / begin.elapsed().as_secs_f64();
            }
            let done = rate > 0.0 && begin.elapsed() >= least || interrupt::requested();
            let flow = if done { Flow::Stop } else { Flow::Continue };
            run.decide(Some((flow, done)))?;
            Ok(flow)
        });
        match driven {
            Err(error) if !error.is_stop() => Err(error),
            _ => Ok(rate),
        }
    }

    /// Sends the state that rank 0 has loaded to the other ranks.
    fn exchange(&self, own: Option<Received>) -> Result<Option<Received>, Error> {
        let Some(ranks) = &self.run.ranks else { return Ok(None) };
        Ok(gather(&**ranks, Ok(own))?.swap_remove(0))
    }

    /// Returns the state that other ranks continue from.
    ///
    /// `None` without other ranks, or if no checkpoint was loaded.
    fn take_loaded(&mut self) -> Result<Option<Received>, Error> {
        let Some(collector) = self.loaded.take() else { return Ok(None) };
        let snapshot = self.agent.save()?;
        let replay = match self.agent.replay().filter(|memory| memory.is_saved()) {
            Some(memory) => {
                let mut bytes = Vec::new();
                memory.save_replay(&mut bytes)?;
                Some(bytes)
            }
            None => None,
        };
        Ok(Some((snapshot, replay, collector, self.run.progress.clone())))
    }

    fn run_to_end(&mut self, dir: &RunDir, listener: Listener<'_>) -> Result<Outcome, Error> {
        let sent = self.take_loaded()?;
        self.exchange(sent)?;
        let Self { run, agent, pipeline, .. } = self;
        let steps = run.config.run.steps;
        let mut part = Part::new(run, &mut **agent, dir, listener);
        part.catch_up(&mut **agent)?;
        while !part.run.is_complete() && part.end == End::Steps {
            match pipeline.drive(&mut **agent, steps, |filled, agent| part.learn(filled, agent)) {
                Err(error) if error.is_stop() => part.stop(pipeline.counter(), &mut **agent)?,
                driven => driven.and_then(|()| part.save(pipeline, &mut **agent))?,
            }
        }
        part.finish(&mut **agent)
    }
}
