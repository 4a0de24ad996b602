//! Builds a training: environments, agent and pipeline, before anything is written.

use std::sync::Arc;

use rl_agents::Agent;
use rl_agents::ranks::{Ranks, gather};
use rl_envs::catalog::Entry;
use rl_envs::{Pool, VecEnv};

use crate::Mode;
use crate::config::algo::Built;
use crate::config::auto;
use crate::config::budget::Budget;
use crate::pipeline::{Collect, Pipeline, rollout_memory};
use crate::ranks::crew::Crew;
use crate::report::profile::Profile;
use crate::run::assemble::{agent, collector, of_slices, with_measured_drive};
use crate::run::checkpoint::Checkpoint;
use crate::run::train::{Parts, Peers, Training};
use crate::{Config, Error, interrupt};

/// Parts of a training that are given; all others follow from its configuration.
pub struct TrainingBuilder<'a> {
    config: &'a Config,
    entry: &'a Entry,
    profile: Profile,
    agent: Option<Box<dyn Agent>>,
    envs: Option<Vec<Box<dyn VecEnv>>>,
    checkpoint: Option<Checkpoint>,
    peers: Option<&'a Arc<dyn Peers>>,
    /// True if parameters are drawn; else they will be loaded.
    fresh: bool,
}

impl Training {
    /// Begins to build a training in the environment of `entry`.
    ///
    /// ```
    /// use rl_runtime::config::Layers;
    /// use rl_runtime::{Algo, train::Training};
    ///
    /// let entry = rl_envs::catalog::find("cartpole")?;
    /// let config = Layers::default().resolve(entry, Algo::PPO)?;
    /// let training = Training::builder(&config, entry).build()?;
    /// assert_eq!(training.progress().env_steps, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder<'a>(config: &'a Config, entry: &'a Entry) -> TrainingBuilder<'a> {
        let (profile, agent, envs, checkpoint) = (Profile::new(false), None, None, None);
        TrainingBuilder { config, entry, profile, agent, envs, checkpoint, peers: None, fresh: true }
    }
}

impl<'a> TrainingBuilder<'a> {
    /// Measures where the time goes; by default nothing is measured.
    #[must_use]
    pub fn profile(self, profile: Profile) -> Self {
        Self { profile, ..self }
    }

    /// Trains the caller's agent.
    ///
    /// It has settings of its own: those of the algorithm give only the steps of a rollout.
    #[must_use]
    pub fn agent(self, agent: Box<dyn Agent>) -> Self {
        Self { agent: Some(agent), ..self }
    }

    /// Trains in `envs` instead of the entry's environments.
    ///
    /// Their spaces are the entry's. Evaluations use the entry's environments.
    #[must_use]
    pub fn envs(self, envs: Vec<Box<dyn VecEnv>>) -> Self {
        Self { envs: Some(envs), ..self }
    }

    /// Continues from a checkpoint, with the settings of the configuration.
    #[must_use]
    pub fn checkpoint(self, checkpoint: Checkpoint) -> Self {
        Self { checkpoint: Some(checkpoint), ..self }
    }

    /// Shares the training with the other processes of a job.
    ///
    /// Rank 0 calls [`Training::run`], all others follow. If the others are actors, only rank 0 has a training.
    #[must_use]
    pub(crate) fn peers(self, peers: Option<&'a Arc<dyn Peers>>) -> Self {
        Self { peers, ..self }
    }

    /// Leaves the parameters unset, which will be loaded.
    ///
    /// Drawing takes seconds for wide layers.
    #[must_use]
    pub(crate) fn unset(self) -> Self {
        Self { fresh: false, ..self }
    }

    /// Builds the training.
    ///
    /// If the settings name several devices, each other one has a thread until the training is dropped.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that cannot be shared or do not fit what is given; the errors of [`Budget::check`], the
    /// environments, the agent and the rollout, and those of the latter three if the checkpoint does not fit.
    ///
    /// # Panics
    /// If given environments are empty.
    pub fn build(self) -> Result<Training, Error> {
        let Self { config, entry, profile, agent: given_agent, envs, checkpoint, peers, fresh } = self;
        let n_ranks = peers.map_or(1, |peers| peers.n_ranks());
        if let Some(problem) = config.unshared(entry, n_ranks) {
            return Err(Error::config(problem));
        }
        let given = [("agent", given_agent.is_some()), ("environments", envs.is_some())];
        if let Some((what, _)) = given.into_iter().find(|(_, given)| *given && config.n_devices() > 1) {
            return Err(Error::config(format!("device is {}, but given {what} need one device", config.run.device)));
        }
        let (config, entry) = (&with_measured_drive(config, entry)?, &config.wrapped(entry));
        let fresh = fresh && checkpoint.is_none();
        let (unit, ranks) = (Unit { config, entry, fresh, profile }, peers.map(|peers| peers.clone() as Arc<dyn Ranks>));
        let mut training = if let Some(peers) = peers.filter(|_| config.run.mpi.has_actors()) {
            interrupt::finish_rollouts();
            let actors = peers.actors(config, entry)?;
            let n_collectors = actors.len();
            let agent = || agent(config, entry, config.device().open()?, n_collectors, fresh, None);
            unit.assemble(|_| Ok(actors), agent, None)
        } else if given_agent.is_some() || envs.is_some() {
            // Given environments are on the CPU.
            let mut on_cpu = config.clone();
            on_cpu.run.env_device = "cpu".into();
            let agent = || match given_agent {
                Some(agent) => Ok((agent, None)),
                None => agent(&on_cpu, entry, config.device().open()?, 1, fresh, None),
            };
            let collectors = |pool: &Pool| match envs {
                Some(envs) => of_slices(config, envs, pool),
                None => collector(config, entry, pool, None),
            };
            unit.assemble(|pool| Ok(vec![collectors(pool)?]), agent, ranks)
        } else if ranks.is_some() {
            // To ranks, `auto` is the CPU.
            unit.of_thread(config.device().open()?, ranks)
        } else if config.n_devices() > 1 {
            unit.of_devices()
        } else {
            unit.of_thread(auto::choose(config, entry, 1).0.open()?, None)
        }?;
        if let Some(checkpoint) = checkpoint {
            training.load(checkpoint)?;
        }
        Ok(training)
    }
}

/// A training of one thread that learns.
struct Unit<'a> {
    config: &'a Config,
    entry: &'a Entry,
    fresh: bool,
    profile: Profile,
}

impl Unit<'_> {
    /// Builds a training that several devices share.
    ///
    /// This thread has the first device; the others have threads of their own.
    fn of_devices(self) -> Result<Training, Error> {
        let mut devices = self.config.open_devices()?.into_iter();
        let (mut crew, first) = (Crew::new(devices.len()), devices.next());
        for (i, device) in devices.enumerate() {
            let (rank, config, entry, fresh) = (i + 1, self.config.clone(), *self.entry, self.fresh);
            let name = format!("device {rank} of {}", config.run.device);
            crew.spawn(rank, &name, move |ranks| {
                let unit = Unit { config: &config, entry: &entry, fresh, profile: Profile::new(false) };
                let mut training = unit.of_thread(Some(device), Some(ranks.clone()))?;
                gather(&*ranks, Ok(()))?;
                training.follow()
            })?;
        }
        let mut training = self.of_thread(first, Some(crew.member(0)))?;
        // Each has been built, or this is the error of one that has not.
        gather(&*crew.member(0), Ok(()))?;
        training.crew = Some(crew);
        Ok(training)
    }

    /// Builds the training of a thread with a device, or with the CPU.
    fn of_thread(self, device: Option<rl_cuda::Device>, ranks: Option<Arc<dyn Ranks>>) -> Result<Training, Error> {
        if ranks.is_some() {
            interrupt::finish_rollouts();
        }
        let Self { config, entry, fresh, .. } = self;
        let envs = |pool: &Pool| Ok(vec![collector(config, entry, pool, ranks.as_ref())?]);
        self.assemble(envs, || agent(config, entry, device, 1, fresh, ranks.as_ref()), ranks.clone())
    }

    /// Makes agent, collectors and pipeline.
    fn assemble(
        self,
        collectors: impl FnOnce(&Pool) -> Result<Vec<Box<dyn Collect>>, Error>,
        agent: impl FnOnce() -> Result<Built, Error>,
        ranks: Option<Arc<dyn Ranks>>,
    ) -> Result<Training, Error> {
        let Self { config, entry, profile, .. } = self;
        let n_ranks = ranks.as_ref().map_or(1, |ranks| ranks.n_ranks());
        Budget::training(config, entry).of_rank(n_ranks).check()?;
        let pool = Pool::new(config.learner_threads(entry))?;
        let collecting = match config.mode() {
            Mode::Sync => pool.clone(),
            Mode::Overlapped { .. } => Pool::new(config.collector_threads())?,
        };
        let (mut agent, on_device) = agent()?;
        // What a device fills and learns from needs no page-locked memory here.
        let is_apart = on_device.is_none() || ranks.is_some();
        let mut collectors = match on_device {
            Some(collector) => vec![Box::new(collector) as Box<dyn Collect>],
            None => collectors(&collecting)?,
        };
        collectors.iter_mut().try_for_each(|collector| collector.remember(agent.policy().state_len()))?;
        let memory = if is_apart { rollout_memory(&mut *agent, config.mode()) } else { <dyn rl_buffer::Memory>::host() };
        let pipeline = Pipeline::new(config.mode(), collectors, config.n_steps(), &memory, &profile)?;
        Training::of_parts(Parts { config, entry, pool, agent, pipeline, profile, ranks })
    }
}
