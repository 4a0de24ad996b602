//! SAC on a device: the twin of [`Sac`](crate::Sac)'s updates.

use rl_cuda::learner::{Entropy, LearnerCounters, LearnerState, SquashedColumns, TemperatureStep, UpdateTotals};
use rl_cuda::{Buffer, Device};

use crate::Error;
use crate::algorithms::replayed::Experience;
use crate::device::descent::download;
use crate::device::replayed::actor_critics::{DeviceActorCritics, DeviceParts, DeviceUpdates, at_critics};
use crate::device::replayed::critics::DeviceCritics;
use crate::device::replayed::learnt::{begin, set_steps};
use crate::learner::optim::{Optimizer, Rule, StepCount, UNCLIPPED};
use crate::policy::squashed::SquashedGaussian;
use crate::policy::twin_q::TwinQ;

/// Actor, critics and temperature on a device.
#[derive(Debug)]
pub(crate) struct DeviceSac {
    pub(crate) both: DeviceActorCritics,
    /// Chains of means and of logarithms of deviations.
    chains: [usize; 2],
    noise: Buffer<f32>,       // (B, A)
    log_probs: Buffer<f32>,   // (B)
    temperature: Buffer<f32>, // (1)
    /// `None` if the temperature is a setting.
    learnt: Option<LearntTemperature>,
}

/// Logarithm of a temperature that is learnt, and its optimizer.
#[derive(Debug)]
struct LearntTemperature {
    log_alpha: Buffer<f32>,
    moments: [Buffer<f32>; 2],
    gradient: Buffer<f32>,
    square: Buffer<f64>,
    state: LearnerState,
    target_entropy: f32,
}

impl DeviceSac {
    /// Allocates memory for minibatches of transitions, and loads the kernels.
    ///
    /// With a copy of the replay memory if `copied`. The temperature is learnt if there is a `target_entropy`.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the networks; [`Error::Buffer`] and [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        policy: &SquashedGaussian,
        critics: DeviceCritics,
        experience: &Experience,
        copied: bool,
        seed: u64,
        target_entropy: Option<f32>,
    ) -> Result<Self, Error> {
        let both = DeviceActorCritics::new(device, policy, critics, experience, copied, seed)?;
        let (b, floats) = (both.batch_size(), |len: usize| Buffer::<f32>::zeros(device, len));
        let learnt = |target_entropy| -> Result<_, Error> {
            let [log_alpha, m, v, gradient] = [floats(1)?, floats(1)?, floats(1)?, floats(1)?];
            let (square, state) = (Buffer::zeros(device, 1)?, LearnerState::new(device)?);
            Ok(LearntTemperature { log_alpha, moments: [m, v], gradient, square, state, target_entropy })
        };
        Ok(Self {
            chains: policy.chains(),
            noise: floats(b * policy.n_actions())?,
            log_probs: floats(b)?,
            temperature: floats(1)?,
            learnt: target_entropy.map(learnt).transpose()?,
            both,
        })
    }

    /// Copies parameters, moments and counters to the device.
    ///
    /// `critics` are the critics and their targets; the optimizers are those of actor, critics and temperature, which is `alpha`.
    pub(crate) fn load(
        &mut self,
        policy: &SquashedGaussian,
        critics: [&TwinQ; 2],
        [of_actor, of_critics, of_alpha]: [&Optimizer; 3],
        [alpha, log_alpha]: [f32; 2],
    ) -> Result<(), Error> {
        self.both.load(policy.network(), critics, [of_actor, of_critics])?;
        let stream = &self.both.minibatches.stream;
        stream.upload(&self.temperature.view_mut(), &[alpha])?;
        let Some(LearntTemperature { log_alpha: to, moments, state, .. }) = &mut self.learnt else { return Ok(()) };
        stream.upload(&to.view_mut(), &[log_alpha])?;
        for (to, from) in moments.iter_mut().zip(of_alpha.vectors()) {
            stream.upload(&to.view_mut(), from)?;
        }
        set_steps(stream, state, of_alpha.steps(), 0)
    }

    /// Enqueues actions that the policy draws for the observations or the next ones.
    ///
    /// With noise of the stream `first` on.
    fn draw(&mut self, next: bool, first: usize) -> Result<(), Error> {
        self.both.act(None, next)?;
        let Self { both, chains, noise, log_probs, .. } = self;
        let (n, parts) = (both.batch_size(), both.parts());
        let from = parts.noise(first);
        let DeviceParts { launches, actor, actions, .. } = parts;
        let [means, log_stds] = chains.map(|chain| actor.net.outputs(chain, n));
        let to = [&noise.view_mut(), &actions.view_mut(), &log_probs.view_mut()];
        Ok(launches.continuous.squash(launches.queue.stream, &SquashedColumns { means, log_stds }, from, to)?)
    }

    /// Enqueues targets by the current temperature, or by that of the latest update.
    fn set_targets(&mut self, current: bool) -> Result<(), Error> {
        self.draw(true, 1 + self.both.batch_size())?;
        let Self { both, log_probs, temperature, learnt, .. } = self;
        let DeviceParts { launches, minibatches, critics, actions, .. } = both.parts();
        let log_alpha = learnt.as_ref().filter(|_| current).map(|learnt| learnt.log_alpha.view());
        let entropy = Entropy { log_probs: log_probs.view(), temperature: temperature.view(), log_alpha };
        critics.set_targets(launches, &minibatches.columns(), &actions.view(), Some(entropy))
    }

    /// Enqueues a step of a learnt temperature.
    fn step_temperature(&mut self) -> Result<(), Error> {
        let Self { both, log_probs, temperature, learnt, .. } = self;
        let Some(LearntTemperature { log_alpha, moments: [m, v], gradient, square, state, target_entropy }) = learnt else {
            return Ok(());
        };
        let DeviceParts { launches, actor, critics, .. } = both.parts();
        let (stream, kernels, others) = (launches.queue.stream, launches.queue.kernels, [&critics.online.state, &actor.state]);
        let (temperature, of_log) = (temperature.view_mut(), gradient.view_mut());
        let to = TemperatureStep { temperature, gradient: of_log, square: square.view_mut() };
        launches.continuous.temperature(stream, [&log_probs.view(), &log_alpha.view()], *target_entropy, &to, others, state)?;
        kernels.step(stream, &square.view(), state)?;
        Ok(kernels.adam(stream, &gradient.view(), &log_alpha.view_mut(), [&m.view_mut(), &v.view_mut()], state)?)
    }

    /// Enqueues the gradient of the actor, whose actions are drawn.
    fn actor_gradient(&mut self) -> Result<(), Error> {
        let n = self.both.batch_size();
        let Self { both, chains, noise, log_probs, temperature, .. } = self;
        let DeviceParts { launches, minibatches, actor, critics, actions, terms, .. } = both.parts();
        let (temperature, stream) = (temperature.view(), launches.queue.stream);
        let entropy = Entropy { log_probs: log_probs.view(), temperature, log_alpha: None };
        let (batch, terms) = (minibatches.columns(), &terms.view_mut());
        let d_rows = critics.value(launches, &batch, &actions.view(), Some(entropy), false, terms)?;
        let ([means, log_stds], [d_means, d_log_stds]) = actor.net.heads(*chains, n);
        let of = [&noise.view(), &d_rows, &temperature];
        let columns = SquashedColumns { means, log_stds };
        launches.continuous.squash_gradient(stream, &columns, of, n, [&d_means, &d_log_stds])?;
        both.actor_gradient()
    }

    /// Sums of the temperature's updates, if it is learnt, and its optimizer's steps.
    pub(crate) fn temperature(&self) -> Result<Option<(UpdateTotals, StepCount)>, Error> {
        let Some(LearntTemperature { state, .. }) = &self.learnt else { return Ok(None) };
        let stream = &self.both.minibatches.stream;
        let LearnerCounters { taken, skipped, .. } = state.counters(stream)?;
        Ok(Some((state.totals(stream)?, StepCount { taken, skipped })))
    }
}

impl DeviceUpdates for DeviceSac {
    fn both(&mut self) -> &mut DeviceActorCritics {
        &mut self.both
    }

    fn begin(&mut self, rate: f32, rule: Rule) -> Result<(), Error> {
        self.both.begin(rate, rule)?;
        let DeviceParts { launches, .. } = self.both.parts();
        self.learnt.as_mut().map_or(Ok(()), |learnt| begin(launches.queue, &mut learnt.state, rate, UNCLIPPED, rule))
    }

    /// A temperature that is not learnt is left out.
    fn arrays(&self) -> Result<Vec<Vec<f32>>, Error> {
        let stream = &self.both.minibatches.stream;
        let mut arrays = self.both.actor.moments(stream)?.to_vec();
        arrays.extend(self.both.critics.arrays(stream)?);
        if let Some(LearntTemperature { log_alpha, moments: [m, v], .. }) = &self.learnt {
            for of in [log_alpha, m, v] {
                arrays.push(download(stream, &of.view())?);
            }
        }
        Ok(arrays)
    }

    fn learn(&mut self, tau: Option<f32>) -> Result<(), Error> {
        self.set_targets(true)?;
        self.draw(false, 1)?;
        self.step_temperature()?;
        self.both.step_critics()?;
        self.actor_gradient()?;
        self.both.step_actor()?;
        tau.map_or(Ok(()), |tau| self.both.follow(tau))
    }

    fn learn_again(&mut self, stopped: usize) -> Result<(), Error> {
        self.set_targets(false)?;
        self.draw(false, 1)?;
        if at_critics(stopped) { self.both.critics_gradient() } else { self.actor_gradient() }
    }
}
