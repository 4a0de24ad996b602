//! TD3 on a device: the twin of [`Td3`](crate::Td3)'s updates.

use rl_cuda::learner::ClippedNoise;
use rl_cuda::{Buffer, Device};

use crate::Error;
use crate::algorithms::replayed::Experience;
use crate::device::descent::download;
use crate::device::replayed::actor_critics::{DeviceActorCritics, DeviceParts, DeviceUpdates, at_critics};
use crate::device::replayed::critics::DeviceCritics;
use crate::learner::optim::Optimizer;
use crate::policy::deterministic::DeterministicPolicy;
use crate::policy::twin_q::TwinQ;

/// Actor, its target, and critics on a device.
#[derive(Debug)]
pub(crate) struct DeviceTd3 {
    pub(crate) both: DeviceActorCritics,
    target: Buffer<f32>,
    /// Chain of the actions.
    chain: usize,
    /// Standard deviation and bound of the noise in targets' actions.
    noise: [f32; 2],
}

impl DeviceTd3 {
    /// Allocates memory for minibatches of transitions, and loads the kernels.
    ///
    /// With a copy of the replay memory if `copied`. `noise` is the standard deviation of the noise in targets' actions, and its
    /// bound.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the networks; [`Error::Buffer`] and [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        policy: &DeterministicPolicy,
        critics: DeviceCritics,
        experience: &Experience,
        copied: bool,
        seed: u64,
        noise: [f32; 2],
    ) -> Result<Self, Error> {
        let mut both = DeviceActorCritics::new(device, policy, critics, experience, copied, seed)?;
        let target = Buffer::<f32>::zeros(device, policy.network().params().len())?;
        both.beside = target.bytes();
        Ok(Self { both, target, chain: policy.network().chain(0), noise })
    }

    /// Copies parameters, moments and counters to the device.
    ///
    /// `critics` are the critics and their targets, `optimizers` those of actor and critics.
    pub(crate) fn load(
        &mut self,
        [policy, target]: [&DeterministicPolicy; 2],
        critics: [&TwinQ; 2],
        optimizers: [&Optimizer; 2],
    ) -> Result<(), Error> {
        self.both.minibatches.stream.upload(&self.target.view_mut(), target.network().params())?;
        self.both.load(policy.network(), critics, optimizers)
    }

    /// Enqueues the actor's actions for the observations.
    ///
    /// Or those of its target for the next ones, with noise.
    fn choose(&mut self, next: bool) -> Result<(), Error> {
        let Self { both, target, chain, noise: [std, clip] } = self;
        both.act(next.then_some(&target.view()), next)?;
        let (n, parts) = (both.batch_size(), both.parts());
        let noise = parts.noise(1);
        let DeviceParts { launches, actor, actions, .. } = parts;
        let (outputs, added) = (actor.net.outputs(*chain, n), next.then_some(ClippedNoise { noise, std: *std, clip: *clip }));
        Ok(launches.continuous.choose(launches.queue.stream, &outputs, added, n, &actions.view_mut())?)
    }

    /// Enqueues the targets of the current minibatch.
    fn set_targets(&mut self) -> Result<(), Error> {
        self.choose(true)?;
        let DeviceParts { launches, minibatches, critics, actions, .. } = self.both.parts();
        critics.set_targets(launches, &minibatches.columns(), &actions.view(), None)
    }

    /// Enqueues the gradient of the actor.
    fn actor_gradient(&mut self) -> Result<(), Error> {
        self.choose(false)?;
        let n = self.both.batch_size();
        let Self { both, chain, .. } = self;
        let DeviceParts { launches, minibatches, actor, critics, actions, terms, .. } = both.parts();
        let (batch, terms) = (minibatches.columns(), &terms.view_mut());
        let d_rows = critics.value(launches, &batch, &actions.view(), None, true, terms)?;
        let (outputs, d_outputs) = actor.net.head(*chain, n);
        launches.continuous.choose_gradient(launches.queue.stream, [&outputs, &d_rows], n, &d_outputs)?;
        both.actor_gradient()
    }

    /// Moves all targets by the fraction `tau` of their distance.
    fn follow(&mut self, tau: f32) -> Result<(), Error> {
        self.both.follow(tau)?;
        let Self { both, target, .. } = self;
        let DeviceParts { launches, actor, critics, .. } = both.parts();
        let (stream, target, others) = (launches.queue.stream, &target.view_mut(), Some(&critics.online.state));
        Ok(launches.q_learning.follow(stream, &actor.params.view(), target, tau, &actor.state, others)?)
    }
}

impl DeviceUpdates for DeviceTd3 {
    fn both(&mut self) -> &mut DeviceActorCritics {
        &mut self.both
    }

    fn arrays(&self) -> Result<Vec<Vec<f32>>, Error> {
        let stream = &self.both.minibatches.stream;
        let mut arrays = self.both.actor.moments(stream)?.to_vec();
        arrays.push(download(stream, &self.target.view())?);
        arrays.extend(self.both.critics.arrays(stream)?);
        Ok(arrays)
    }

    fn learn(&mut self, tau: Option<f32>) -> Result<(), Error> {
        self.set_targets()?;
        self.both.step_critics()?;
        let Some(tau) = tau else { return Ok(()) };
        self.actor_gradient()?;
        self.both.step_actor()?;
        self.follow(tau)
    }

    fn learn_again(&mut self, stopped: usize) -> Result<(), Error> {
        self.set_targets()?;
        if at_critics(stopped) { self.both.critics_gradient() } else { self.actor_gradient() }
    }
}
