//! Targets and loss of Q-learning.

use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::learner::kernels::BLOCK;
use crate::learner::slices::MinibatchSlices;
use crate::learner::state::LearnerState;
use crate::{Device, Error, Stream, View, ViewMut};

/// Number of terms of a transition's loss: the weighted loss, and Q.
pub const TD_TERMS: usize = 2;
/// Threads per block of the sums of terms.
const TOTALS_THREADS: u32 = 32;

/// Columns of a minibatch of transitions, from which targets are computed.
#[derive(Clone, Copy, Debug)]
pub struct NextColumns<'a> {
    /// Q of the next observations, (n, A), of which a target takes one.
    pub q: View<'a, f32>,
    /// Values whose greatest legal one selects the action, (n, A).
    pub by: View<'a, f32>,
    /// Legal actions, (n, A), if there are masks.
    pub masks: Option<View<'a, u8>>,
    /// Rewards, (n).
    pub rewards: View<'a, f32>,
    /// Discounts, (n).
    pub discounts: View<'a, f32>,
}

/// Columns of a minibatch of transitions, of which the loss is computed.
#[derive(Clone, Copy, Debug)]
pub struct TdColumns<'a> {
    /// Q of the observations, (n, A).
    pub q: View<'a, f32>,
    /// Actions, (n).
    pub actions: View<'a, u32>,
    /// Targets, (n).
    pub targets: View<'a, f32>,
    /// Weights of the transitions, (n).
    pub weights: View<'a, f32>,
}

/// Loaded kernels of Q-learning.
#[derive(Debug)]
pub struct QLearningKernels {
    dueling: Kernel,
    dueling_gradient: Kernel,
    targets: Kernel,
    loss: Kernel,
    totals: Kernel,
    follow: Kernel,
}

#[allow(unsafe_code)]
impl QLearningKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |name: &str| device.kernel("q_learning", format!("q_learning_{name}"));
        Ok(Self {
            dueling: kernel("dueling")?,
            dueling_gradient: kernel("dueling_gradient")?,
            targets: kernel("targets")?,
            loss: kernel("loss")?,
            totals: kernel("totals")?,
            follow: kernel("follow")?,
        })
    }

    /// Writes Q of a dueling network, (n, A), from advantages (n, A) and values (n).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn dueling(&self, stream: &Stream, [advantages, values]: [&View<'_, f32>; 2], q: &ViewMut<'_, f32>) -> Result<(), Error> {
        let n = values.len();
        let a = q.len() / n.max(1);
        length("q", n * a, q.len())?;
        length("advantages", n * a, advantages.len())?;
        let args = args![advantages, values, q, n as u32, a as u32];
        // SAFETY: the parameters are those of `q_learning_dueling`; lengths were checked above.
        unsafe { self.dueling.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes the gradients of a dueling network's outputs from that of Q, (n, A).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn dueling_gradient(
        &self,
        stream: &Stream,
        d_q: &View<'_, f32>,
        [d_advantages, d_values]: [&ViewMut<'_, f32>; 2],
    ) -> Result<(), Error> {
        let n = d_values.len();
        let a = d_q.len() / n.max(1);
        length("d_q", n * a, d_q.len())?;
        length("d_advantages", n * a, d_advantages.len())?;
        let args = args![d_q, d_advantages, d_values, n as u32, a as u32];
        // SAFETY: the parameters are those of `q_learning_dueling_gradient`; lengths were checked above.
        unsafe { self.dueling_gradient.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes targets, (n).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn targets(&self, stream: &Stream, next: &NextColumns<'_>, targets: &ViewMut<'_, f32>) -> Result<(), Error> {
        let n = targets.len();
        let a = next.q.len() / n.max(1);
        length("q", n * a, next.q.len())?;
        length("by", n * a, next.by.len())?;
        length("masks", n * a, next.masks.map_or(n * a, |masks| masks.len()))?;
        length("rewards", n, next.rewards.len())?;
        length("discounts", n, next.discounts.len())?;
        let args = args![next.q, next.by, next.masks, next.rewards, next.discounts, targets, n as u32, a as u32];
        // SAFETY: the parameters are those of `q_learning_targets`; lengths were checked above.
        unsafe { self.targets.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes the gradient of Q, the errors and the terms of the loss.
    ///
    /// (n, A), (n) and (2, n). An action past the end counts as the last one.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn loss(
        &self,
        stream: &Stream,
        columns: &TdColumns<'_>,
        [d_q, errors, terms]: [&ViewMut<'_, f32>; 3],
    ) -> Result<(), Error> {
        let n = errors.len();
        let a = columns.q.len() / n.max(1);
        length("q", n * a, columns.q.len())?;
        length("an action of q", 1, a.min(1))?;
        length("actions", n, columns.actions.len())?;
        length("targets", n, columns.targets.len())?;
        length("weights", n, columns.weights.len())?;
        length("d_q", n * a, d_q.len())?;
        length("terms", TD_TERMS * n, terms.len())?;
        let args = args![columns.q, columns.actions, columns.targets, columns.weights, d_q, errors, terms, n as u32, a as u32];
        // SAFETY: the parameters are those of `q_learning_loss`; lengths were checked above.
        unsafe { self.loss.launch(stream, n as u64, BLOCK, args) }
    }

    /// Adds a minibatch's loss to the sums of the update.
    ///
    /// Also decides whether the optimizer steps: not after learning stopped, here or at `other`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn totals(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        terms: &View<'_, f32>,
        state: &mut LearnerState,
        other: Option<&LearnerState>,
    ) -> Result<(), Error> {
        length("terms", TD_TERMS * slices.n, terms.len())?;
        let other = other.map(|other| other.counters.view());
        let args = args![terms, slices.minibatch(), state.counters, other, state.totals];
        // SAFETY: the parameters are those of `q_learning_totals`; lengths were checked above.
        unsafe { self.totals.launch(stream, 1, TOTALS_THREADS, args) }
    }

    /// Moves the target network's parameters by `tau` towards the online ones.
    ///
    /// 1 copies them. Not after learning stopped, at `state` or at `other`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn follow(
        &self,
        stream: &Stream,
        online: &View<'_, f32>,
        target: &ViewMut<'_, f32>,
        tau: f32,
        state: &LearnerState,
        other: Option<&LearnerState>,
    ) -> Result<(), Error> {
        let len = target.len();
        length("online", len, online.len())?;
        let other = other.map(|other| other.counters.view());
        let args = args![online, target, tau, state.counters, other, len as u64];
        // SAFETY: the parameters are those of `q_learning_follow`; lengths were checked above.
        unsafe { self.follow.launch(stream, len as u64, BLOCK, args) }
    }
}
