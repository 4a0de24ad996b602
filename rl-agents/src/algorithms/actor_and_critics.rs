//! An actor and its critics, which learn continuous actions from replay.
//!
//! [`sac`](crate::sac) and [`td3`](crate::td3) share the memory of an update, the steps of both networks, updates on a device,
//! sums and snapshots. Their files have targets, the actor's loss, and when a network takes a step.

use std::sync::Arc;

use candle_core::{Tensor, Var};
use rl_buffer::{Batch, Rollout};
use rl_envs::{ActionSpace, Pool, Purpose, Space, rng};

use crate::agent::OnDevice;
use crate::algorithms::critics::{CriticSettings, Critics, LoadedCritics, moments, parts};
use crate::algorithms::replayed::{Experience, Learns, ReplaySettings, ReplayStorage, learn_from, optimizer, step};
use crate::device::replayed::actor_critics::{DeviceUpdates, at_critics};
use crate::kernel::gradient::Slices;
use crate::learner::descent::StepSums;
use crate::learner::optim::{Optimizer, Rule, StepCount, UNCLIPPED};
use crate::policy::squashed::ContinuousPolicy;
use crate::probe::{self, Stage, Threads};
use crate::ranks::Ranks;
use crate::{Error, Metrics, Scratch, Snapshot};

/// An actor and its critics, with the memory of an update of B samples.
pub(crate) struct ActorAndCritics<P, D> {
    pub(crate) policy: P,
    pub(crate) critics: Critics,
    pub(crate) experience: Experience,
    pub(crate) batch: Batch,
    pub(crate) noise: Vec<f32>,     // (B, A)
    pub(crate) actions: Vec<f32>,   // (B, A)
    pub(crate) d_actions: Vec<f32>, // (B, A)
    pub(crate) gradient: Vec<f32>,  // (P), of the actor
    pub(crate) scratches: Vec<Scratch>,
    pub(crate) slices: Slices<()>,
    /// Optimizer of the actor.
    pub(crate) optimizer: Optimizer,
    /// Rule of all optimizers.
    rule: Rule,
    pub(crate) seed: u64,
    /// Sums over the updates after a rollout.
    sums: UpdateSums,
    /// The device that learns, if any.
    ///
    /// The host's policy is a copy of the device's; other state lags behind.
    pub(crate) device: Option<D>,
}

/// Sums over updates.
#[derive(Clone, Copy, Debug, Default)]
struct UpdateSums {
    n: f32,
    n_actor: f32,
    actor: f32,
    critics: f32,
    of_actor: StepSums,
    of_critics: StepSums,
}

/// Critics and the actor's optimizer, found in a snapshot.
pub(crate) struct Loaded<'a> {
    critics: LoadedCritics<'a>,
    optimizer: Optimizer,
}

/// Samples whose noise a thread draws at a time.
const NOISE_ROWS: usize = 64;

/// Name of the counters of steps in a snapshot.
pub(crate) const STEPS: &str = "steps";

impl<P: ContinuousPolicy, D: DeviceUpdates> ActorAndCritics<P, D> {
    /// Creates critics and a replay memory.
    ///
    /// The replay memory holds transitions of `n_envs` environments.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`](crate::NetConfig::check); [`Error::Buffer`] if the replay memory does not fit.
    pub(crate) fn new(
        policy: P,
        critics: &CriticSettings,
        replay: ReplaySettings,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        storage: &ReplayStorage,
    ) -> Result<Self, Error> {
        let CriticSettings { rule, batch_size, seed, .. } = *critics;
        let critics = Critics::new(obs, actions, policy.net(), critics)?;
        let (experience, batch) = Experience::new(replay, obs, actions, n_envs, seed, storage)?;
        let columns = || vec![0.0; batch_size * actions.len()];
        Ok(Self {
            critics,
            experience,
            batch,
            noise: columns(),
            actions: columns(),
            d_actions: columns(),
            gradient: vec![0.0; policy.network().params().len()],
            scratches: Vec::new(),
            slices: Slices::new(),
            optimizer: optimizer(rule, policy.network()),
            policy,
            rule,
            seed,
            sums: UpdateSums::default(),
            device: None,
        })
    }

    /// Returns the policy to act with, at random until learning begins.
    pub(crate) fn acting(&mut self) -> &P {
        self.policy.act_randomly_until(self.experience.random_steps());
        &self.policy
    }

    /// Draws normal numbers of the update's streams from `first` on, as noise.
    pub(crate) fn draw_noise(&mut self, update: u64, first: u32, pool: &Pool) {
        let (a, seed) = (self.policy.bounds().len(), self.seed);
        let mut slices: Vec<_> = (first..).step_by(NOISE_ROWS).zip(self.noise.chunks_mut(NOISE_ROWS * a)).collect();
        pool.each(&mut slices, &|(first, rows)| {
            for (i, row) in (*first..).zip(rows.chunks_exact_mut(a)) {
                for (block, part) in (0..).zip(row.chunks_mut(4)) {
                    let normals = rng::normals(rng::block(seed, i, update, Purpose::Replay, block));
                    part.copy_from_slice(&normals[..part.len()]);
                }
            }
        });
    }

    /// Takes a step of the critics towards their targets.
    ///
    /// # Errors
    /// Those of [`Critics::learn`].
    pub(crate) fn learn_critics(&mut self, rate: f32, pool: &Pool) -> Result<(), Error> {
        let Self { policy, critics, experience, batch, sums, .. } = self;
        let threads = Threads { pool, probe: experience.probe.as_ref() };
        let (loss, norm) = critics.learn(batch, policy.bounds(), rate, threads)?;
        sums.critics += loss;
        sums.of_critics.push(norm);
        Ok(())
    }

    /// Computes the actor's gradient with candle operations; returns the loss.
    ///
    /// `loss` receives the actor's parameters (P), and the observations (B, D).
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn gradient_by_candle(
        &mut self,
        loss: impl FnOnce(&Self, &Tensor, &Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<f32, Error> {
        let network = self.policy.network();
        let params = Var::from_slice(network.params(), network.params().len(), network.device())?;
        let loss = loss(self, &params, &network.features(self.batch.columns().obs)?)?;
        self.gradient = self.optimizer.gradient(&params, &loss)?;
        Ok(loss.to_scalar::<f32>()?)
    }

    /// Takes a step of the actor along its gradient.
    ///
    /// # Errors
    /// [`Error::Diverged`] if too many steps were skipped.
    pub(crate) fn step_actor(&mut self, loss: f32, rate: f32, pool: &Pool) -> Result<(), Error> {
        let Self { policy, critics, experience, batch, gradient, optimizer, sums, .. } = self;
        let threads = Threads { pool, probe: experience.probe.as_ref() };
        sums.n_actor += 1.0;
        sums.actor += loss;
        sums.of_actor.push(step(optimizer, loss, policy.network_mut(), gradient, rate, UNCLIPPED, threads));
        critics.check_diverged(optimizer, gradient, "actor_loss", loss, rate, batch)
    }

    /// Moves the targets of the critics by the fraction `tau` of the distance.
    pub(crate) fn critics_follow(&mut self, tau: f32, pool: &Pool) {
        self.critics.follow(tau, Threads { pool, probe: self.experience.probe.as_ref() });
    }

    /// Returns the metrics of the updates after a rollout.
    ///
    /// `own` are sums over these updates that one algorithm has.
    pub(crate) fn metrics(&self, own: &[(&'static str, f32)], rate: f32) -> Metrics {
        let UpdateSums { n, n_actor, actor, critics, of_actor, of_critics } = self.sums;
        let mut metrics = Metrics::default();
        metrics.push_mean("train/actor_loss", actor, n_actor);
        metrics.push_mean("train/critic_loss", critics, n);
        own.iter().for_each(|&(name, sum)| metrics.push_mean(name, sum, n));
        of_critics.and(of_actor).report(&mut metrics);
        metrics.push("train/learning_rate", rate);
        metrics.push("train/n_updates", self.critics.steps().taken as f32);
        metrics
    }

    /// Returns a snapshot with `arrays` and the `steps` of optimizers.
    ///
    /// The actor's steps are among the counters. A device replaces the arrays by its own, in order.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn snapshot(&self, mut arrays: Vec<(String, Vec<f32>)>, steps: &[StepCount]) -> Result<Snapshot, Error> {
        if let Some(device) = &self.device {
            arrays.iter_mut().zip(device.arrays()?).for_each(|((_, here), there)| *here = there);
        }
        let steps: Vec<_> = steps.iter().flat_map(|steps| [steps.taken, steps.skipped]).collect();
        arrays.push((STEPS.into(), parts(&steps)));
        let policy = Snapshot::from(self.policy.weights());
        let counters = self.experience.counters(self.optimizer.steps(), policy.counters.version);
        Ok(Snapshot { moments: arrays, counters, ..policy })
    }

    /// Finds critics and the actor's optimizer in a snapshot; `steps` are the critics'.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it does not fit.
    pub(crate) fn find<'a>(&self, snapshot: &'a Snapshot, steps: StepCount) -> Result<Loaded<'a>, Error> {
        snapshot.check()?;
        if snapshot.params.len() != self.policy.network().params().len() {
            return Err(Error::Snapshot("its networks do not fit this agent".into()));
        }
        let critics = self.critics.find(snapshot, steps)?;
        self.experience.check(&snapshot.counters)?;
        let mut optimizer = self.optimizer.clone();
        optimizer.load(&moments(snapshot, ["m", "v"])?, snapshot.counters.steps)?;
        Ok(Loaded { critics, optimizer })
    }

    /// Takes over a snapshot, and what was found in it.
    ///
    /// # Errors
    /// None, for networks of the same shapes.
    pub(crate) fn load(&mut self, snapshot: &Snapshot, loaded: Loaded<'_>) -> Result<(), Error> {
        self.policy.network_mut().set_params(&snapshot.params, snapshot.counters.version)?;
        self.critics.load(loaded.critics)?;
        self.optimizer = loaded.optimizer;
        self.experience.load(&snapshot.counters);
        Ok(())
    }

    /// The device that learns, if any.
    pub(crate) fn on_device(&mut self) -> Option<&mut dyn OnDevice> {
        self.device.as_mut().map(|device| device.both() as &mut dyn OnDevice)
    }

    /// Shares the gradients with other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.device.iter_mut().for_each(|device| device.both().share(ranks.clone()));
        self.slices.share(ranks.clone());
        self.critics.share(ranks);
    }
}

/// An agent with an actor of continuous actions and critics: SAC or TD3.
///
/// Its methods return [`Error::Diverged`] if learning has stopped, and errors of the replay memory and of a device.
pub(crate) trait Continuous: Learns + Sized {
    type Actor: ContinuousPolicy;
    type Device: DeviceUpdates;

    fn both(&mut self) -> &mut ActorAndCritics<Self::Actor, Self::Device>;

    /// Copies what this agent alone has from the device: sums and counters.
    fn fetch_own(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Does the updates that are due after a rollout.
    ///
    /// `rate` is the learning rate at its end.
    fn learn_due(&mut self, rollout: &Rollout, remaining: f32, rate: f32, pool: &Pool) -> Result<(), Error> {
        self.both().sums = UpdateSums::default();
        learn_from(self, rollout, 1.0 - remaining, pool)?;
        // The device may still work on both minibatches.
        self.turn(rate)?;
        self.turn(rate)?;
        if self.both().sums.n > 0.0 { self.fetch() } else { Ok(()) }
    }

    /// Draws the next minibatch, after the fraction `done` of training.
    fn draw(&mut self, done: f32, rate: f32) -> Result<(), Error> {
        self.both().sums.n += 1.0;
        self.turn(rate)?;
        let ActorAndCritics { experience, batch, rule, sums, device, .. } = self.both();
        let Some(device) = device else { return experience.draw(done, batch, false) };
        probe::report(experience.probe.as_ref(), Stage::Waiting);
        if sums.n == 1.0 {
            device.begin(rate, *rule)?;
        }
        device.both().minibatches.draw(experience, done)
    }

    /// Ends the update, with priorities by its errors.
    fn end(&mut self, rate: f32) -> Result<(), Error> {
        let ActorAndCritics { critics, experience, batch, device, .. } = self.both();
        let stopped = critics.end(experience, batch, device.as_mut().map(DeviceUpdates::both))?;
        stopped.map_or(Ok(()), |at| self.stopped(at, rate))
    }

    /// Turns to the device's other minibatch, and waits for its last update.
    fn turn(&mut self, rate: f32) -> Result<(), Error> {
        let stopped = self.both().device.as_mut().map_or(Ok(None), |device| device.both().minibatches.turn())?;
        stopped.map_or(Ok(()), |at| self.stopped(at, rate))
    }

    /// Waits for the device's updates, and copies the policy to act with, and sums.
    fn fetch(&mut self) -> Result<(), Error> {
        let ActorAndCritics { policy, critics, optimizer, sums, device: Some(device), .. } = self.both() else { return Ok(()) };
        let learnt = device.both().fetch(policy.network_mut())?;
        let [of_actor, of_critics] = learnt.steps();
        optimizer.set_steps(of_actor);
        critics.set_steps(of_critics);
        let [of_actor, of_critics] = [&learnt.actor, &learnt.critics];
        *sums = UpdateSums {
            n: of_critics.minibatches,
            n_actor: of_actor.minibatches,
            actor: of_actor.policy,
            critics: of_critics.policy,
            of_actor: StepSums::of(of_actor),
            of_critics: StepSums::of(of_critics),
        };
        self.fetch_own()
    }

    /// Returns the error of learning that stopped at an optimizer.
    fn stopped(&mut self, at: usize, rate: f32) -> Result<(), Error> {
        self.fetch()?;
        let ActorAndCritics { critics, optimizer, device: Some(device), .. } = self.both() else { return Ok(()) };
        let actor = (!at_critics(at)).then_some(&*optimizer);
        critics.stopped(device.repeat(at)?, actor, rate)
    }
}
