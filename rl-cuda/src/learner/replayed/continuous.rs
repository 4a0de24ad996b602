//! Actors of continuous actions, and their critics.

use super::q_learning::TD_TERMS;
use crate::driver::args::{args, arguments, long};
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::learner::kernels::BLOCK;
use crate::learner::state::LearnerState;
use crate::{Device, Error, Stream, View, ViewMut};

/// Stream of the normal numbers of an update.
///
/// Row i of a matrix has stream `first` + i.
#[derive(Clone, Copy, Debug)]
pub struct Noise<'a> {
    /// Seed of the agent.
    pub seed: u64,
    /// Number of the update, (1).
    pub update: View<'a, u64>,
    /// Stream of the first row.
    pub first: u32,
}

arguments! {
    [] Noise<'_>: |noise, args| args.push(&noise.words());
}

impl Noise<'_> {
    /// Words of the kernels' `Noise`.
    fn words(&self) -> [u32; 6] {
        let ([seed, seed_high], [update, update_high]) = (long(self.seed), long(self.update.address()));
        [seed, seed_high, update, update_high, self.first, 0]
    }
}

/// Values of critics, (n) each; the second may be missing.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// Those of the first critic.
    pub one: View<'a, f32>,
    /// Those of the second critic.
    pub other: Option<View<'a, f32>>,
}

/// Gradients of [`Values`], (n) each.
#[derive(Debug)]
pub struct ValueGradients<'a> {
    /// Those of the first critic.
    pub one: ViewMut<'a, f32>,
    /// Those of the second critic.
    pub other: Option<ViewMut<'a, f32>>,
}

/// Columns of a squashed Gaussian policy's samples.
#[derive(Clone, Copy, Debug)]
pub struct SquashedColumns<'a> {
    /// Means, (n, A).
    pub means: View<'a, f32>,
    /// Logarithms of the standard deviations, (n, A).
    pub log_stds: View<'a, f32>,
}

/// Entropy of a policy's actions, which targets and actors weigh.
#[derive(Clone, Copy, Debug)]
pub struct Entropy<'a> {
    /// Log-probabilities of the actions, (n).
    pub log_probs: View<'a, f32>,
    /// Weight, (1).
    pub temperature: View<'a, f32>,
    /// Logarithm of the weight, (1), if it is learnt.
    pub log_alpha: Option<View<'a, f32>>,
}

/// Numbers of a step of a temperature that is learnt, (1) each.
#[derive(Debug)]
pub struct TemperatureStep<'a> {
    /// The temperature.
    pub temperature: ViewMut<'a, f32>,
    /// Gradient of its logarithm.
    pub gradient: ViewMut<'a, f32>,
    /// Square of the gradient.
    pub square: ViewMut<'a, f64>,
}

/// Noise that is added to a deterministic policy's actions.
#[derive(Clone, Copy, Debug)]
pub struct ClippedNoise<'a> {
    /// Normal numbers.
    pub noise: Noise<'a>,
    /// Their standard deviation.
    pub std: f32,
    /// Bound of what is added.
    pub clip: f32,
}

/// Loaded kernels of continuous actions.
#[derive(Debug)]
pub struct ContinuousKernels {
    rows: Kernel,
    squash: Kernel,
    squash_gradient: Kernel,
    choose: Kernel,
    choose_gradient: Kernel,
    targets: Kernel,
    loss: Kernel,
    value: Kernel,
    temperature: Kernel,
}

#[allow(unsafe_code)]
impl ContinuousKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |name: &str| device.kernel("continuous", format!("continuous_{name}"));
        Ok(Self {
            rows: kernel("rows")?,
            squash: kernel("squash")?,
            squash_gradient: kernel("squash_gradient")?,
            choose: kernel("choose")?,
            choose_gradient: kernel("choose_gradient")?,
            targets: kernel("targets")?,
            loss: kernel("loss")?,
            value: kernel("value")?,
            temperature: kernel("temperature")?,
        })
    }

    /// Writes the rows (n, D + A) that critics read.
    ///
    /// A row has an observation (D) and an action (A). `bounds`, (A, 2), are the middle and half of each dimension's range: with
    /// them, actions are scaled to -1 to 1; without them, they are there already.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn rows(
        &self,
        stream: &Stream,
        [obs, actions]: [&View<'_, f32>; 2],
        bounds: Option<&View<'_, f32>>,
        n: usize,
        rows: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (d, a) = (obs.len() / n.max(1), actions.len() / n.max(1));
        length("obs", n * d, obs.len())?;
        length("actions", n * a, actions.len())?;
        length("bounds", 2 * a, bounds.map_or(2 * a, |bounds| bounds.len()))?;
        length("rows", n * (d + a), rows.len())?;
        let args = args![obs, actions, bounds, rows, n as u32, d as u32, a as u32];
        // SAFETY: the parameters are those of `continuous_rows`; lengths were checked above.
        unsafe { self.rows.launch(stream, rows.len() as u64, BLOCK, args) }
    }

    /// Draws squashed actions (n, A).
    ///
    /// Also writes the noise that made them, (n, A), and their log-probabilities, (n).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn squash(
        &self,
        stream: &Stream,
        of: &SquashedColumns<'_>,
        from: Noise<'_>,
        [noise, actions, log_probs]: [&ViewMut<'_, f32>; 3],
    ) -> Result<(), Error> {
        let n = log_probs.len();
        let a = actions.len() / n.max(1);
        length("update", 1, from.update.len())?;
        for (what, len) in
            [("means", of.means.len()), ("log_stds", of.log_stds.len()), ("noise", noise.len()), ("actions", actions.len())]
        {
            length(what, n * a, len)?;
        }
        let args = args![of.means, of.log_stds, noise, actions, log_probs, from, n as u32, a as u32];
        // SAFETY: the parameters are those of `continuous_squash`; lengths were checked above.
        unsafe { self.squash.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes the gradients of an actor's loss, `mean alpha log_prob - Q`.
    ///
    /// Those with respect to means and logarithms of deviations, (n, A) each. `d_rows`, (n, D + A), is the gradient of Q with
    /// respect to the rows of the critics; `temperature`, (1), is alpha.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn squash_gradient(
        &self,
        stream: &Stream,
        of: &SquashedColumns<'_>,
        [noise, d_rows, temperature]: [&View<'_, f32>; 3],
        n: usize,
        [d_means, d_log_stds]: [&ViewMut<'_, f32>; 2],
    ) -> Result<(), Error> {
        let (a, width) = (d_means.len() / n.max(1), d_rows.len() / n.max(1));
        for (what, len) in [
            ("means", of.means.len()),
            ("log_stds", of.log_stds.len()),
            ("noise", noise.len()),
            ("d_means", d_means.len()),
            ("d_log_stds", d_log_stds.len()),
        ] {
            length(what, n * a, len)?;
        }
        length("d_rows", n * width.max(a), d_rows.len())?;
        length("temperature", 1, temperature.len())?;
        let args = args![of.means, of.log_stds, noise, d_rows, temperature, d_means, d_log_stds];
        let args = args![args; n as u32, (width - a) as u32, a as u32];
        // SAFETY: the parameters are those of `continuous_squash_gradient`; lengths were checked above.
        unsafe { self.squash_gradient.launch(stream, d_means.len() as u64, BLOCK, args) }
    }

    /// Writes actions (n, A) of a deterministic policy from its outputs, (n, A).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn choose(
        &self,
        stream: &Stream,
        outputs: &View<'_, f32>,
        added: Option<ClippedNoise<'_>>,
        n: usize,
        actions: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let a = actions.len() / n.max(1);
        length("actions", n * a, actions.len())?;
        length("outputs", n * a, outputs.len())?;
        length("update", 1, added.map_or(1, |added| added.noise.update.len()))?;
        // Without noise: a deviation that is negative, and no memory to read.
        let (noise, [std, clip]) = added.map_or(([0; 6], [-1.0, 0.0]), |added| (added.noise.words(), [added.std, added.clip]));
        let args = args![outputs, actions, noise, std, clip, n as u32, a as u32];
        // SAFETY: the parameters are those of `continuous_choose`; lengths were checked above.
        unsafe { self.choose.launch(stream, actions.len() as u64, BLOCK, args) }
    }

    /// Writes the gradient of an actor's loss, `-mean Q`.
    ///
    /// With respect to its outputs, (n, A). `d_rows`, (n, D + A), is the gradient of Q with respect to the rows of the critics.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn choose_gradient(
        &self,
        stream: &Stream,
        [outputs, d_rows]: [&View<'_, f32>; 2],
        n: usize,
        d_outputs: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (a, width) = (d_outputs.len() / n.max(1), d_rows.len() / n.max(1));
        length("d_outputs", n * a, d_outputs.len())?;
        length("outputs", n * a, outputs.len())?;
        length("d_rows", n * width.max(a), d_rows.len())?;
        let args = args![outputs, d_rows, d_outputs, n as u32, (width - a) as u32, a as u32];
        // SAFETY: the parameters are those of `continuous_choose_gradient`; lengths were checked above.
        unsafe { self.choose_gradient.launch(stream, d_outputs.len() as u64, BLOCK, args) }
    }

    /// Writes targets (n) of critics.
    ///
    /// From rewards (n), discounts (n) and the lesser of the next values.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn targets(
        &self,
        stream: &Stream,
        next: &Values<'_>,
        entropy: Option<Entropy<'_>>,
        [rewards, discounts]: [&View<'_, f32>; 2],
        targets: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = targets.len();
        next.check(n)?;
        length("rewards", n, rewards.len())?;
        length("discounts", n, discounts.len())?;
        let ([log_probs, temperature], log_alpha) = (weighed(entropy, n)?, entropy.and_then(|entropy| entropy.log_alpha));
        length("log_alpha", 1, log_alpha.map_or(1, |log_alpha| log_alpha.len()))?;
        let args = args![next.one, next.other, log_probs, log_alpha, temperature, rewards, discounts, targets, n as u32];
        // SAFETY: the parameters are those of `continuous_targets`; lengths were checked above.
        unsafe { self.targets.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes gradients of the critics' loss, `scale mean w sum (Q - y)^2`.
    ///
    /// With respect to their values. Also writes the mean distances from the targets, (n), and the terms of the loss, (2, n).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn loss(
        &self,
        stream: &Stream,
        q: &Values<'_>,
        [targets, weights]: [&View<'_, f32>; 2],
        scale: f32,
        gradients: &ValueGradients<'_>,
        [errors, terms]: [&ViewMut<'_, f32>; 2],
    ) -> Result<(), Error> {
        let n = errors.len();
        q.check(n)?;
        gradients.check(q, n)?;
        length("targets", n, targets.len())?;
        length("weights", n, weights.len())?;
        length("terms", TD_TERMS * n, terms.len())?;
        let [one, other] = gradients.addresses();
        let args = args![q.one, q.other, targets, weights, scale, one, other, errors, terms, n as u32];
        // SAFETY: the parameters are those of `continuous_loss`; lengths were checked above.
        unsafe { self.loss.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes the gradient of the value that an actor raises.
    ///
    /// That of the first critic, or of the lesser, with respect to the critics' values. Also writes the terms of the actor's
    /// loss, (2, n): `alpha log_prob - Q`, and Q.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn value(
        &self,
        stream: &Stream,
        q: &Values<'_>,
        entropy: Option<Entropy<'_>>,
        first: bool,
        gradients: &ValueGradients<'_>,
        terms: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = terms.len() / TD_TERMS;
        length("terms", TD_TERMS * n, terms.len())?;
        q.check(n)?;
        gradients.check(q, n)?;
        let ([log_probs, temperature], [one, other]) = (weighed(entropy, n)?, gradients.addresses());
        let args = args![q.one, q.other, log_probs, temperature, u32::from(first), one, other, terms, n as u32];
        // SAFETY: the parameters are those of `continuous_value`; lengths were checked above.
        unsafe { self.value.launch(stream, n as u64, BLOCK, args) }
    }

    /// Takes the temperature of this update, and computes its gradient.
    ///
    /// From the log-probabilities (n) of the policy's actions. Also writes the gradient's square, (1), adds the loss and the
    /// temperature to the sums of `state`, and decides whether its optimizer steps: not after learning stopped at `others`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn temperature(
        &self,
        stream: &Stream,
        [log_probs, log_alpha]: [&View<'_, f32>; 2],
        target_entropy: f32,
        TemperatureStep { temperature, gradient, square }: &TemperatureStep<'_>,
        others: [&LearnerState; 2],
        state: &mut LearnerState,
    ) -> Result<(), Error> {
        let n = log_probs.len();
        for (what, len) in [
            ("log_alpha", log_alpha.len()),
            ("temperature", temperature.len()),
            ("gradient", gradient.len()),
            ("square", square.len()),
        ] {
            length(what, 1, len)?;
        }
        let args = args![log_probs, log_alpha, temperature, target_entropy, gradient, square];
        let args = args![args; others[0].counters, others[1].counters, state.totals, n as u32];
        // SAFETY: the parameters are those of `continuous_temperature`; lengths were checked above.
        unsafe { self.temperature.launch(stream, 1, 1, args) }
    }
}

/// Returns log-probabilities and weight of an entropy, if there is one.
fn weighed<'a>(entropy: Option<Entropy<'a>>, n: usize) -> Result<[Option<View<'a, f32>>; 2], Error> {
    let Some(Entropy { log_probs, temperature, .. }) = entropy else { return Ok([None, None]) };
    length("log_probs", n, log_probs.len())?;
    length("temperature", 1, temperature.len())?;
    Ok([Some(log_probs), Some(temperature)])
}

impl Values<'_> {
    fn check(&self, n: usize) -> Result<(), Error> {
        length("q", n, self.one.len())?;
        length("q of the second critic", n, self.other.map_or(n, |other| other.len()))
    }
}

impl ValueGradients<'_> {
    /// Checks lengths, and that there are as many as values.
    fn check(&self, q: &Values<'_>, n: usize) -> Result<(), Error> {
        length("d_q", n, self.one.len())?;
        let found = self.other.as_ref().map_or(0, ViewMut::len);
        length("d_q of the second critic", q.other.map_or(0, |_| n), found)
    }

    /// Returns the addresses; that of a missing one is 0.
    fn addresses(&self) -> [u64; 2] {
        [self.one.address(), self.other.as_ref().map_or(0, ViewMut::address)]
    }
}
