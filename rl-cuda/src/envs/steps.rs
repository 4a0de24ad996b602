//! Columns of steps in device memory, and their staging for the host.

use std::ops::Range;

use rl_envs::{ActionSpace, Actions, Dtype, Obs, Space, StepLens, Steps, visit};

use crate::{Buffer, CpuAccess, Device, Element, Error, PinnedSlab, ViewMut};

/// Observations in device memory, (k, N, D).
pub type DeviceObs = Obs<Buffer<f32>, Buffer<u8>>;

/// Actions in device memory, (k, N) or (k, N, A).
pub type DeviceActions = Actions<Buffer<u32>, Buffer<f32>>;

/// Observations, borrowed for writing.
pub type ObsViews<'a> = Obs<ViewMut<'a, f32>, ViewMut<'a, u8>>;

/// Actions, read by a step or written where the kernel draws them.
pub type ActionViews<'a> = Actions<ViewMut<'a, u32>, ViewMut<'a, f32>>;

/// Columns of k steps in device memory, borrowed for writing.
///
/// Rewards are (k, N), observations (k, N, D), and so on.
/// With the columns of one step, every step overwrites the step before.
pub type StepViews<'a> = Steps<ViewMut<'a, f32>, ViewMut<'a, u8>, ViewMut<'a, u32>>;

/// Columns of k steps of N environments, in device memory.
#[derive(Debug)]
pub struct DeviceSteps {
    n_steps: usize,
    /// Columns of k N rows.
    pub columns: Steps<Buffer<f32>, Buffer<u8>, Buffer<u32>>,
}

impl DeviceSteps {
    /// Allocates memory for `n_steps` steps of `n_envs` environments of these spaces.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Driver`].
    pub fn zeros(
        device: &Device,
        n_steps: usize,
        n_envs: usize,
        observation_space: &Space,
        action_space: &ActionSpace,
    ) -> Result<Self, Error> {
        let lens = StepLens::batch(n_steps * n_envs, observation_space, action_space);
        Ok(Self { n_steps, columns: visit!(Steps, lens, |len| Buffer::zeros(device, len)?) })
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Borrows the rows of `steps`.
    ///
    /// # Panics
    /// If `steps` is out of bounds.
    pub fn rows(&mut self, steps: Range<usize>) -> StepViews<'_> {
        fn rows<'a, T: Element>(buffer: &'a mut Buffer<T>, n_steps: usize, steps: &Range<usize>) -> ViewMut<'a, T> {
            let row = buffer.len() / n_steps;
            buffer.view_mut().into_slice(steps.start * row..steps.end * row)
        }
        let n = self.n_steps;
        visit!(Steps, self.columns.as_mut(), |b| rows(b, n, &steps))
    }
}

/// Staging memory of the host-side [`VecEnv`](rl_envs::VecEnv).
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) steps: DeviceSteps, // (1, N, ..)
    /// Final observations (N, D), and final masks (N, A).
    ///
    /// Staged because the caller's rows must keep their contents where no episode ended.
    pub(crate) finals: Obs<PinnedSlab<f32>, PinnedSlab<u8>>,
    pub(crate) masks: PinnedSlab<u8>,
}

impl Host {
    pub(crate) fn zeros(
        device: &Device,
        n_envs: usize,
        observation_space: &Space,
        action_space: &ActionSpace,
    ) -> Result<Self, Error> {
        let len = n_envs * observation_space.len();
        let masks = if action_space.masked() { n_envs * action_space.len() } else { 0 };
        Ok(Self {
            steps: DeviceSteps::zeros(device, 1, n_envs, observation_space, action_space)?,
            finals: match observation_space.dtype() {
                Dtype::F32 => Obs::F32(PinnedSlab::zeros(Some(device), len, CpuAccess::ReadWrite)?),
                Dtype::U8 => Obs::U8(PinnedSlab::zeros(Some(device), len, CpuAccess::ReadWrite)?),
            },
            masks: PinnedSlab::zeros(Some(device), masks, CpuAccess::ReadWrite)?,
        })
    }
}
