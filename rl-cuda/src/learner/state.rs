//! Settings, counters and sums of a learner in device memory.

use crate::{Buffer, CpuAccess, Device, Error, PinnedSlab, Stream};

/// Settings of an update; algorithms leave unused ones at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateSettings {
    /// Learning rate.
    pub learning_rate: f32,
    /// Largest norm of a gradient; longer ones are scaled down.
    pub max_norm: f32,
    /// Weight of the entropy in the loss.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// KL divergence that ends an update when exceeded 1.5 times; 0: off.
    pub target_kl: f32,
    /// Clip range of the probability ratio around 1.
    pub clip: f32,
    /// Clip range of values around the old values; infinite: off.
    pub clip_value: f32,
    /// Decay of Adam's first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Constant added to the root of the second moment.
    pub epsilon: f32,
}

/// Counters of a learner, which outlive an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnerCounters {
    /// Seed of the orders of samples.
    pub seed: u64,
    /// Orders of samples so far.
    pub epochs: u64,
    /// Optimizer steps.
    pub taken: u64,
    /// Consecutive optimizer steps skipped last.
    pub skipped: u64,
    /// Changes of the parameters.
    pub changes: u64,
    /// Reason why the rest of an update was skipped.
    ///
    /// 0 for none, 1 for the KL divergence, or [`LearnerCounters::DIVERGED`].
    pub stop: u64,
    /// Samples of the epoch so far.
    pub sample: u64,
}

impl LearnerCounters {
    /// Value of [`LearnerCounters::stop`] after several skipped steps in a row.
    pub const DIVERGED: u64 = 2;
    /// Number of counters.
    pub const LEN: usize = 7;

    /// Waits for the slab's copy, and returns the counters in it.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    pub fn read(slab: &PinnedSlab<u64>) -> Result<Self, Error> {
        let (expected, words) = (Self::LEN, slab.read()?);
        let words = words.try_into().map_err(|_| Error::Length { what: "counters", expected, found: words.len() })?;
        Ok(Self::of(words))
    }

    fn words(self) -> [u64; Self::LEN] {
        let Self { seed, epochs, taken, skipped, changes, stop, sample } = self;
        [seed, epochs, taken, skipped, changes, stop, sample]
    }

    fn of([seed, epochs, taken, skipped, changes, stop, sample]: [u64; Self::LEN]) -> Self {
        Self { seed, epochs, taken, skipped, changes, stop, sample }
    }
}

/// Sums over the minibatches of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateTotals {
    /// Sum of the means of the policy loss.
    ///
    /// With a replay memory: of the loss of Q-learning, of critics, of an actor, or of a temperature.
    pub policy: f32,
    /// Sum of the means of the value loss.
    ///
    /// With a replay memory: of Q, or of the temperature.
    pub value: f32,
    /// Sum of the means of the entropy loss.
    pub entropy: f32,
    /// Sum of the fractions clipped.
    pub clip_fraction: f32,
    /// Number of minibatches.
    pub minibatches: f32,
    /// Mean KL divergence of the last epoch.
    pub approx_kl: f32,
    /// Loss of the last minibatch.
    pub loss: f32,
    /// Policy loss, value loss and entropy loss of the last minibatch.
    pub last: [f32; 3],
    /// Sum of the gradients' norms.
    pub norm: f32,
    /// Number of optimizer steps taken.
    pub taken: f32,
    /// Number of optimizer steps skipped.
    pub skipped: f32,
    /// Share of the returns' variance explained by the values.
    pub explained_variance: f32,
}

/// Words of the kernels' `Totals`.
const TOTALS: usize = 20;

/// Settings, counters and sums of a learner in device memory.
#[derive(Debug)]
pub struct LearnerState {
    pub(super) counters: Buffer<u64>,
    pub(super) settings: Buffer<f32>,
    pub(super) totals: Buffer<f32>,
    host_settings: PinnedSlab<f32>,
}

impl LearnerState {
    /// Allocates the memory, zeros.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let (counters, settings) = (Buffer::zeros(device, LearnerCounters::LEN)?, Buffer::zeros(device, 10)?);
        let host_settings = PinnedSlab::zeros(Some(device), 10, CpuAccess::WriteOnly)?;
        Ok(Self { counters, settings, totals: Buffer::zeros(device, TOTALS)?, host_settings })
    }

    /// Replaces the counters.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn set_counters(&mut self, stream: &Stream, counters: &LearnerCounters) -> Result<(), Error> {
        stream.upload(&self.counters.view_mut(), &counters.words())
    }

    /// Replaces the settings without waiting.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn set_settings(&mut self, stream: &Stream, settings: &UpdateSettings) -> Result<(), Error> {
        let UpdateSettings { learning_rate, max_norm, ent_coef, vf_coef, target_kl, clip, clip_value, beta1, beta2, epsilon } =
            *settings;
        let words = [learning_rate, max_norm, ent_coef, vf_coef, target_kl, clip, clip_value, beta1, beta2, epsilon];
        self.host_settings.write()?.copy_from_slice(&words);
        stream.upload_async(&self.settings.view_mut(), &self.host_settings)
    }

    /// Waits for the stream and returns the counters.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn counters(&self, stream: &Stream) -> Result<LearnerCounters, Error> {
        let mut words = [0; LearnerCounters::LEN];
        stream.download(&mut words, &self.counters.view())?;
        Ok(LearnerCounters::of(words))
    }

    /// Copies the counters of this point in the stream without waiting.
    ///
    /// To a slab of [`LearnerCounters::LEN`] words.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    pub fn copy_counters(&self, stream: &Stream, to: &mut PinnedSlab<u64>) -> Result<(), Error> {
        stream.download_async(to, &self.counters.view())
    }

    /// Waits for the stream and returns the sums of the update.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn totals(&self, stream: &Stream) -> Result<UpdateTotals, Error> {
        let mut words = [0.0; TOTALS];
        stream.download(&mut words, &self.totals.view())?;
        let [policy, value, entropy, _, clip_fraction, minibatches, _, approx_kl, loss, rest @ ..] = words;
        let [last_policy, last_value, last_entropy, norm, taken, skipped, .., explained_variance] = rest;
        let last = [last_policy, last_value, last_entropy];
        Ok(UpdateTotals {
            policy,
            value,
            entropy,
            clip_fraction,
            minibatches,
            approx_kl,
            loss,
            last,
            norm,
            taken,
            skipped,
            explained_variance,
        })
    }
}
