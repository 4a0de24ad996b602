//! Columns of one step of a batch.
//!
//! [`Steps`] owns them, [`StepBatch`] borrows them for writing, [`StepRows`] are checked slices.

use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, Axis};

use crate::{ActionArray, ActionSpace, ActionsView, Element, Error, ObsArray, ObsViewMut, Space, VecEnv};

/// The columns of one step of N environments.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Observations to act on next, (N, D).
    ///
    /// Where an episode has ended, the first observation of the next one.
    pub obs: ObsArray,
    /// Actions of the next step, (N) or (N, A).
    pub actions: ActionArray,
    /// Rewards of the last step, (N).
    pub rewards: Array1<f32>,
    /// 1 where the task is over, (N); see [`Step`](crate::Step).
    pub terminated: Array1<u8>,
    /// 1 where the episode was cut off, (N).
    pub truncated: Array1<u8>,
    /// Last observations of episodes that have just ended, (N, D).
    ///
    /// Written only where either flag is set.
    pub final_obs: ObsArray,
    /// Legal actions at `obs` and at `final_obs`, (N, A) each.
    ///
    /// `None` if the action space has no masks.
    pub masks: Option<[Array2<u8>; 2]>,
}

impl Steps {
    /// Zeros for a batch of environments.
    #[must_use]
    pub fn new(envs: &(impl VecEnv + ?Sized)) -> Self {
        let (n, obs, actions) = (envs.n_envs(), envs.observation_space(), envs.action_space());
        let rows = || ObsArray::zeros(obs.dtype(), (n, obs.len()));
        let masks = || Array2::zeros((n, actions.len()));
        Self {
            obs: rows(),
            actions: ActionArray::zeros(actions, n),
            rewards: Array1::zeros(n),
            terminated: Array1::zeros(n),
            truncated: Array1::zeros(n),
            final_obs: rows(),
            masks: actions.masked().then(|| [masks(), masks()]),
        }
    }

    /// Borrows the actions, and the columns that a step writes.
    #[must_use]
    pub fn view_mut(&mut self) -> (ActionsView<'_>, StepBatch<'_>) {
        let out = StepBatch {
            obs: self.obs.view_mut(),
            rewards: self.rewards.view_mut(),
            terminated: self.terminated.view_mut(),
            truncated: self.truncated.view_mut(),
            final_obs: self.final_obs.view_mut(),
            masks: self
                .masks
                .as_mut()
                .map(|[masks, final_masks]| MaskBatch { masks: masks.view_mut(), final_masks: final_masks.view_mut() }),
        };
        (self.actions.view(), out)
    }

    /// True if the episode of environment `env_idx` ended in the last step.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    #[must_use]
    pub fn done(&self, env_idx: usize) -> bool {
        self.terminated[env_idx] | self.truncated[env_idx] != 0
    }
}

impl<'a> ObsViewMut<'a> {
    /// Returns all elements as a slice, for implementations of [`VecEnv`].
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Shape`] if type or shape differ from those expected.
    pub fn into_slice<O: Element>(self, what: &'static str, expected: [usize; 2]) -> Result<&'a mut [O], Error> {
        let rows = O::rows(self).ok_or(Error::Kind {
            what,
            expected: if O::DTYPE == crate::Dtype::F32 { "f32" } else { "u8" },
            found: if O::DTYPE == crate::Dtype::F32 { "u8" } else { "f32" },
        })?;
        let (n, d) = rows.dim();
        let error = || Error::Shape { what, expected: expected.into(), found: vec![n, d] };
        if [n, d] == expected { rows.into_slice() } else { None }.ok_or_else(error)
    }
}

/// Action masks of a batch, borrowed for writing.
#[derive(Debug)]
pub struct MaskBatch<'a> {
    /// Legal actions at `obs`, (N, A).
    pub masks: ArrayViewMut2<'a, u8>,
    /// Legal actions at `final_obs`, (N, A).
    ///
    /// Written only where an episode has ended.
    pub final_masks: ArrayViewMut2<'a, u8>,
}

impl MaskBatch<'_> {
    fn split_at(self, row: usize) -> (Self, Self) {
        let (a, b) = self.masks.split_at(Axis(0), row);
        let (c, d) = self.final_masks.split_at(Axis(0), row);
        (Self { masks: a, final_masks: c }, Self { masks: b, final_masks: d })
    }
}

/// Outcome of a step, borrowed for writing; every array is contiguous.
#[derive(Debug)]
pub struct StepBatch<'a> {
    /// Observations to act on next, (N, D).
    ///
    /// Where an episode has ended, the first observation of the next one.
    pub obs: ObsViewMut<'a>,
    /// Rewards of this step, (N).
    pub rewards: ArrayViewMut1<'a, f32>,
    /// 1 where the task is over, (N); see [`Step`](crate::Step).
    pub terminated: ArrayViewMut1<'a, u8>,
    /// 1 where the episode was cut off, (N).
    pub truncated: ArrayViewMut1<'a, u8>,
    /// Last observations of episodes that have just ended, (N, D).
    ///
    /// Written only where either flag is set.
    pub final_obs: ObsViewMut<'a>,
    /// Masks, if the action space has them.
    pub masks: Option<MaskBatch<'a>>,
}

impl StepBatch<'_> {
    /// Borrows the columns again, for a wrapper that reads them afterwards.
    #[must_use]
    pub fn reborrow(&mut self) -> StepBatch<'_> {
        StepBatch {
            obs: self.obs.view_mut(),
            rewards: self.rewards.view_mut(),
            terminated: self.terminated.view_mut(),
            truncated: self.truncated.view_mut(),
            final_obs: self.final_obs.view_mut(),
            masks: self.masks.as_mut().map(|m| MaskBatch { masks: m.masks.view_mut(), final_masks: m.final_masks.view_mut() }),
        }
    }

    /// Splits before environment `row`.
    pub(crate) fn split_at(self, row: usize) -> (Self, Self) {
        let (obs_a, obs_b) = self.obs.split_at(Axis(0), row);
        let (rewards_a, rewards_b) = self.rewards.split_at(Axis(0), row);
        let (terminated_a, terminated_b) = self.terminated.split_at(Axis(0), row);
        let (truncated_a, truncated_b) = self.truncated.split_at(Axis(0), row);
        let (final_obs_a, final_obs_b) = self.final_obs.split_at(Axis(0), row);
        let (masks_a, masks_b) = self.masks.map(|masks| masks.split_at(row)).unzip();
        (
            Self {
                obs: obs_a,
                rewards: rewards_a,
                terminated: terminated_a,
                truncated: truncated_a,
                final_obs: final_obs_a,
                masks: masks_a,
            },
            Self {
                obs: obs_b,
                rewards: rewards_b,
                terminated: terminated_b,
                truncated: truncated_b,
                final_obs: final_obs_b,
                masks: masks_b,
            },
        )
    }
}

/// Checked slices of a [`StepBatch`], for implementations of [`VecEnv`].
#[derive(Debug)]
pub struct StepRows<'a, O> {
    /// Observations to act on next, (N, D).
    pub obs: &'a mut [O],
    /// Rewards of this step, (N).
    pub rewards: &'a mut [f32],
    /// 1 where the task is over, (N).
    pub terminated: &'a mut [u8],
    /// 1 where the episode was cut off, (N).
    pub truncated: &'a mut [u8],
    /// Last observations of episodes that have just ended, (N, D).
    pub final_obs: &'a mut [O],
    /// Legal actions at `obs`, (N, A), or empty without masks.
    pub masks: &'a mut [u8],
    /// Legal actions at `final_obs`, (N, A), or empty without masks.
    pub final_masks: &'a mut [u8],
}

impl<'a, O: Element> StepRows<'a, O> {
    /// Checks types and shapes for n environments.
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Shape`].
    pub fn of(out: StepBatch<'a>, n: usize, space: &Space, actions: &ActionSpace) -> Result<Self, Error> {
        let d = space.len();
        let (masks, final_masks) = out.masks.map(|m| (m.masks, m.final_masks)).unzip();
        Ok(Self {
            obs: out.obs.into_slice("obs", [n, d])?,
            rewards: flat("rewards", out.rewards, n)?,
            terminated: flat("terminated", out.terminated, n)?,
            truncated: flat("truncated", out.truncated, n)?,
            final_obs: out.final_obs.into_slice("final_obs", [n, d])?,
            masks: mask_rows("masks", masks, n, actions)?,
            final_masks: mask_rows("final_masks", final_masks, n, actions)?,
        })
    }
}

fn flat<'a, T>(what: &'static str, view: ArrayViewMut1<'a, T>, n: usize) -> Result<&'a mut [T], Error> {
    let len = view.len();
    let error = || Error::Shape { what, expected: vec![n], found: vec![len] };
    if len == n { view.into_slice() } else { None }.ok_or_else(error)
}

/// Returns masks (N, A) as a slice, empty if the space has none.
///
/// # Errors
/// [`Error::Kind`] or [`Error::Shape`].
pub fn mask_rows<'a>(
    what: &'static str,
    masks: Option<ArrayViewMut2<'a, u8>>,
    n: usize,
    space: &ActionSpace,
) -> Result<&'a mut [u8], Error> {
    match (space.masked(), masks) {
        (true, Some(masks)) => ObsViewMut::U8(masks).into_slice(what, [n, space.len()]),
        (false, None) => Ok(&mut []),
        (true, None) => Err(Error::Kind { what, expected: "masks", found: "none" }),
        (false, Some(_)) => Err(Error::Kind { what, expected: "none", found: "masks" }),
    }
}
