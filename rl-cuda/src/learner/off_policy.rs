//! Corrections for rollouts of an older policy.

use rl_envs::Actions;

use super::kernels::BLOCK;
use super::loss::{ActionDistribution, HeadSizes};
use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::targets::Steps;
use crate::{Device, Error, Stream, View, ViewMut};

/// Samples of a rollout, and a network's outputs for them.
#[derive(Clone, Copy, Debug)]
pub struct JudgedSamples<'a> {
    /// Logits or means, (n, A).
    pub outputs: View<'a, f32>,
    /// Distribution with these parameters.
    pub distribution: ActionDistribution<'a>,
    /// Rows of the samples among the columns, (n); `None`: the first n.
    ///
    /// A row past the end counts as the last one.
    pub rows: Option<View<'a, u32>>,
    /// Actions, discrete or (rows, A).
    pub actions: Actions<View<'a, u32>, View<'a, f32>>,
    /// Legal actions, (rows, A), if there are masks.
    pub masks: Option<View<'a, u8>>,
}

/// Loaded kernels of off-policy corrections.
#[derive(Debug)]
pub struct OffPolicyKernels {
    /// Categorical, Gaussian, several heads.
    log_probs: [Kernel; 3],
    vtrace: Kernel,
    weigh: Kernel,
}

#[allow(unsafe_code)]
impl OffPolicyKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |name: &str| device.kernel("off_policy", format!("off_policy_{name}"));
        Ok(Self {
            log_probs: [kernel("categorical")?, kernel("gaussian")?, kernel("heads")?],
            vtrace: kernel("vtrace")?,
            weigh: kernel("weigh")?,
        })
    }

    /// Writes the log-probabilities of the samples' actions, (n).
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Kind`] or [`Error::Launch`].
    pub fn log_probs(&self, stream: &Stream, samples: &JudgedSamples<'_>, to: &ViewMut<'_, f32>) -> Result<(), Error> {
        self.judge(stream, samples, None, to)
    }

    /// Writes the samples' terms of the KL divergence from an older policy, (n).
    ///
    /// `start` are its log-probabilities of the rollout's actions.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Kind`] or [`Error::Launch`].
    pub fn divergence(
        &self,
        stream: &Stream,
        samples: &JudgedSamples<'_>,
        start: &View<'_, f32>,
        to: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        self.judge(stream, samples, Some(start), to)
    }

    fn judge(
        &self,
        stream: &Stream,
        samples: &JudgedSamples<'_>,
        start: Option<&View<'_, f32>>,
        to: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = to.len();
        let a = samples.outputs.len() / n.max(1);
        length("outputs", n * a, samples.outputs.len())?;
        let found = samples.actions.either(|actions| actions.len(), |actions| actions.len() / a.max(1));
        let len = start.map_or(found, View::len);
        match samples.rows {
            Some(rows) => length("rows", n, rows.len())?,
            None => length("samples", n, len.min(n))?,
        }
        length("columns", 1, len.min(1))?;
        length("masks", len * a, samples.masks.map_or(len * a, |masks| masks.len()))?;
        let (kind, actions) = samples.distribution.check(&samples.actions, samples.masks.is_some(), len, a)?;
        let (more, count) = match samples.distribution {
            ActionDistribution::Categorical => (samples.masks.map_or(0, |masks| masks.address()), None),
            ActionDistribution::Gaussian(log_std) => (log_std.address(), None),
            ActionDistribution::Heads(HeadSizes { sizes, .. }) => (sizes.view().address(), Some(sizes.len() as u32)),
        };
        let judged = [samples.outputs.address(), samples.rows.map_or(0, |rows| rows.address()), len as u64];
        let judgement = [start.map_or(0, View::address), to.address()];
        let args = args![judged, judgement, actions, more];
        let args = count.map_or(args.clone(), |count| args![args; count]);
        let args = args![args; n as u32, a as u32];
        // SAFETY: the parameters are those of the kernel of this kind; lengths were checked above, and the kernel bounds the
        // rows.
        unsafe { self.log_probs[kind].launch(stream, n as u64, BLOCK, args) }
    }

    /// Computes V-trace's advantages, returns and weights of the advantages.
    ///
    /// Each is (T, N). `log_probs` are those of the actions under the learning and the acting policy. The results equal those of
    /// `vtrace` of rl-buffer bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ or are not a multiple of N, or [`Error::Launch`].
    pub fn vtrace(
        &self,
        stream: &Stream,
        steps: &Steps<View<'_, f32>, View<'_, u8>>,
        log_probs: [&View<'_, f32>; 2],
        gamma: f32,
        lambda: f32,
        [advantages, returns, weights]: [&ViewMut<'_, f32>; 3],
    ) -> Result<(), Error> {
        let (len, n_envs) = (advantages.len(), steps.n_envs);
        let n_steps = len / n_envs.max(1);
        length("advantages", n_steps * n_envs, len)?;
        for (what, found) in [
            ("log_probs", log_probs[0].len()),
            ("old log_probs", log_probs[1].len()),
            ("returns", returns.len()),
            ("weights", weights.len()),
        ] {
            length(what, len, found)?;
        }
        let ([rewards, terminated, truncated, next_values, values], [new, old]) =
            (steps.addresses(len)?, log_probs.map(|log_probs| log_probs.address()));
        let columns = [rewards, terminated, truncated, next_values, values, new, old];
        let args = args![columns, advantages, returns, weights, n_steps as u32, n_envs as u32, gamma, lambda];
        // SAFETY: the parameters are those of `off_policy_vtrace`; lengths were checked above.
        unsafe { self.vtrace.launch(stream, n_envs as u64, BLOCK, args) }
    }

    /// Writes the weighted advantages of a minibatch to `weighted`, (T N), at its rows.
    ///
    /// Before that, they are normalized by the minibatch's `moments`, if there are any: the sum of the advantages, and of the
    /// squared distances from their mean. A row past the end is skipped.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn weigh(
        &self,
        stream: &Stream,
        rows: &View<'_, u32>,
        advantages: &View<'_, f32>,
        moments: Option<[View<'_, f64>; 2]>,
        weights: &View<'_, f32>,
        weighted: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (n, len) = (rows.len(), weighted.len());
        length("advantages", len, advantages.len())?;
        length("weights", len, weights.len())?;
        let [sum, squares] = moments.map_or([0; 2], |moments| moments.map(|sum| sum.address()));
        let args = args![rows, advantages, sum, squares, weights, weighted, n as u32, len as u64];
        // SAFETY: the parameters are those of `off_policy_weigh`; lengths were checked above, and the kernel bounds the rows.
        unsafe { self.weigh.launch(stream, n as u64, BLOCK, args) }
    }
}
