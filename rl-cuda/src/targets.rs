//! Kernels of learning: advantages, replay gathers, action sampling, normalization.

#[cfg(test)]
mod corners;

use std::ops::Range;

use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Threads per block.
const BLOCK: u32 = 128;

/// Loaded kernels.
#[derive(Debug)]
pub struct TargetKernels {
    gae: Kernel,
    gather_words: Kernel,
    gather_bytes: Kernel,
    sample_categorical: Kernel,
    sample_gaussian: Kernel,
    normalize_apply: Kernel,
    normalize_moments: Kernel,
    clock_advance: Kernel,
}

/// Steps of N environments, every column (T, N).
///
/// The columns are in the storages `F` of f32 and `U` of u8.
#[derive(Clone, Copy, Debug)]
pub struct Steps<F, U> {
    /// Number N of environments.
    pub n_envs: usize,
    /// Rewards.
    pub rewards: F,
    /// 1 where the episode reached a terminal state.
    pub terminated: U,
    /// 1 where a time limit cut the episode off.
    pub truncated: U,
    /// Values of the next observations, or of the final ones where episodes ended.
    pub next_values: F,
    /// Values of the observations that the steps acted on.
    pub values: F,
}

impl Steps<View<'_, f32>, View<'_, u8>> {
    /// Returns the addresses of the columns, which have `len` elements each.
    pub(crate) fn addresses(&self, len: usize) -> Result<[u64; 5], Error> {
        length("rewards", len, self.rewards.len())?;
        length("terminated", len, self.terminated.len())?;
        length("truncated", len, self.truncated.len())?;
        length("next_values", len, self.next_values.len())?;
        length("values", len, self.values.len())?;
        let [terminated, truncated] = [&self.terminated, &self.truncated].map(View::address);
        Ok([self.rewards.address(), terminated, truncated, self.next_values.address(), self.values.address()])
    }
}

/// Layout of a replay row in 32-bit words.
///
/// The order is obs, next_obs, action, reward, discount, next mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Words per observation; 0 for byte observations, which have rows of their own.
    pub obs: usize,
    /// Words per action.
    pub action: usize,
    /// Bytes per mask, padded to whole words; 0 without masks.
    pub mask_len: usize,
}

impl Row {
    /// Returns the number of words per row.
    #[must_use]
    pub fn len(&self) -> usize {
        2 * self.obs + self.action + 2 + self.mask_len.div_ceil(4)
    }

    /// Returns false: every row holds a reward and a discount.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Columns of B transitions that rows of words are gathered into.
///
/// Numbers are the bits of f32.
#[derive(Debug)]
pub struct WordColumns<'a> {
    /// Observations, (B, D).
    pub obs: ViewMut<'a, u32>,
    /// Next observations, (B, D).
    pub next_obs: ViewMut<'a, u32>,
    /// Actions, (B) or (B, A).
    pub actions: ViewMut<'a, u32>,
    /// Rewards, (B).
    pub rewards: ViewMut<'a, u32>,
    /// Discounts, (B).
    pub discounts: ViewMut<'a, u32>,
    /// Legal actions at `next_obs`, (B, A).
    pub next_masks: ViewMut<'a, u8>,
}

/// Memory of [`WordColumns`].
#[derive(Debug)]
pub struct WordBuffers {
    /// Observations, next observations, actions, rewards and discounts.
    pub words: [Buffer<u32>; 5],
    /// Legal actions.
    pub next_masks: Buffer<u8>,
}

impl WordBuffers {
    /// Allocates memory for `len` transitions with rows of this layout.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn zeros(device: &Device, row: Row, len: usize) -> Result<Self, Error> {
        let words = |width: usize| Buffer::zeros(device, len * width);
        Ok(Self {
            words: [words(row.obs)?, words(row.obs)?, words(row.action)?, words(1)?, words(1)?],
            next_masks: Buffer::zeros(device, len * row.mask_len)?,
        })
    }

    /// Borrows the columns.
    pub fn columns(&mut self) -> WordColumns<'_> {
        let [obs, next_obs, actions, rewards, discounts] = &mut self.words;
        WordColumns {
            obs: obs.view_mut(),
            next_obs: next_obs.view_mut(),
            actions: actions.view_mut(),
            rewards: rewards.view_mut(),
            discounts: discounts.view_mut(),
            next_masks: self.next_masks.view_mut(),
        }
    }
}

/// Slices of a rollout's columns, and the moments of their observations.
///
/// In device memory.
#[derive(Debug)]
pub struct ObsSlices {
    starts: Buffer<u32>, // (S + 1)
    n_envs: usize,
    obs_len: usize,
    means: Buffer<f64>, // (S, D)
    m2s: Buffer<f64>,   // (S, D)
}

impl ObsSlices {
    /// Allocates memory for observations of `obs_len` numbers.
    ///
    /// Slice s is columns `starts[s]` to `starts[s + 1]`.
    ///
    /// # Errors
    /// [`Error::Kind`] if the slices are not in order, [`Error::Memory`] or [`Error::Driver`].
    pub fn new(device: &Device, starts: &[u32], obs_len: usize) -> Result<Self, Error> {
        let n_envs = starts.last().map_or(0, |&end| end as usize);
        if !starts.is_sorted() || n_envs == 0 || obs_len == 0 {
            return Err(Error::Kind { what: "starts", expected: "slices of columns in order" });
        }
        let len = (starts.len() - 1) * obs_len;
        Ok(Self {
            starts: Buffer::of(device, starts)?,
            n_envs,
            obs_len,
            means: Buffer::zeros(device, len)?,
            m2s: Buffer::zeros(device, len)?,
        })
    }
}

/// Random numbers of the policies of consecutive environments, at one step.
#[derive(Clone, Copy, Debug)]
pub struct PolicyStreams<'a> {
    /// Seed and lifetime steps, (2).
    pub clock: View<'a, u64>,
    /// Steps after the clock's.
    pub t: u64,
    /// Index of the environment of row 0.
    pub first_env: u32,
}

#[allow(unsafe_code)]
impl TargetKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |module, name: &str| device.kernel(module, name.into());
        Ok(Self {
            gae: kernel("gae", "gae")?,
            gather_words: kernel("gather", "gather_words")?,
            gather_bytes: kernel("gather", "gather_bytes")?,
            sample_categorical: kernel("sample", "sample_categorical")?,
            sample_gaussian: kernel("sample", "sample_gaussian")?,
            normalize_apply: kernel("normalize", "normalize_apply")?,
            normalize_moments: kernel("normalize", "normalize_moments")?,
            clock_advance: kernel("clock", "clock_advance")?,
        })
    }

    /// Computes generalized advantage estimates, (T, N).
    ///
    /// The results equal those of `gae` of rl-buffer bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ or are not a multiple of N, or [`Error::Launch`].
    pub fn gae(
        &self,
        stream: &Stream,
        steps: &Steps<View<'_, f32>, View<'_, u8>>,
        gamma: f32,
        lambda: f32,
        advantages: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (len, n_envs) = (advantages.len(), steps.n_envs);
        let n_steps = len / n_envs.max(1);
        length("advantages", n_steps * n_envs, len)?;
        let [rewards, terminated, truncated, next_values, values] = steps.addresses(len)?;
        let args = args![rewards, terminated, truncated, next_values, values, advantages];
        let args = args![args; n_steps as u32, n_envs as u32, gamma, lambda];
        // SAFETY: the parameters are those of `gae`; lengths were checked above.
        unsafe { self.gae.launch(stream, n_envs as u64, BLOCK, args) }
    }

    /// Gathers rows of `words` (C, row) at `indices` (B).
    ///
    /// An index past the end counts as the last row.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gather_words(
        &self,
        stream: &Stream,
        words: &View<'_, u32>,
        row: Row,
        indices: &View<'_, u32>,
        to: &WordColumns<'_>,
    ) -> Result<(), Error> {
        let (n, n_rows) = (indices.len(), words.len() / row.len());
        length("words", n_rows.max(1) * row.len(), words.len())?;
        length("obs", n * row.obs, to.obs.len())?;
        length("next_obs", n * row.obs, to.next_obs.len())?;
        length("actions", n * row.action, to.actions.len())?;
        length("rewards", n, to.rewards.len())?;
        length("discounts", n, to.discounts.len())?;
        length("next_masks", n * row.mask_len, to.next_masks.len())?;
        let numbers = [&to.obs, &to.next_obs, &to.actions, &to.rewards, &to.discounts].map(|column| column.address());
        let [obs, next_obs, actions, rewards, discounts] = numbers;
        let columns = [obs, next_obs, actions, rewards, discounts, to.next_masks.address()];
        let row_lens = [row.obs, row.action, row.mask_len].map(|len| len as u32);
        let args = args![words, n_rows as u32, indices, row_lens, columns, n as u32];
        // SAFETY: the parameters are those of `gather_words`; lengths were checked above.
        unsafe { self.gather_words.launch(stream, (n * row.len()) as u64, BLOCK, args) }
    }

    /// Gathers a part of rows of `bytes` at `indices` (B) into a column (B, L).
    ///
    /// Rows are (C, `stride`), and `part` is a range of a row's bytes. An index past the end counts as the last row.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gather_bytes(
        &self,
        stream: &Stream,
        bytes: &View<'_, u8>,
        stride: usize,
        part: Range<usize>,
        indices: &View<'_, u32>,
        to: &ViewMut<'_, u8>,
    ) -> Result<(), Error> {
        let (n, n_rows) = (indices.len(), bytes.len() / stride.max(1));
        length("bytes", n_rows.max(1) * stride, bytes.len())?;
        length("part", part.len().min(stride.saturating_sub(part.start)), part.len())?;
        length("to", n * part.len(), to.len())?;
        let args = args![bytes, n_rows as u32, indices, [stride as u32, part.start as u32, part.len() as u32], to, n as u32];
        // SAFETY: the parameters are those of `gather_bytes`; lengths were checked above.
        unsafe { self.gather_bytes.launch(stream, to.len() as u64, BLOCK, args) }
    }

    /// Draws actions (N) and their log-probabilities (N) from logits (N, A).
    ///
    /// `masks` (N, A) hold 1 for legal actions. The results equal those of `log_softmax` and `sample` of rl-agents bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn sample_categorical(
        &self,
        stream: &Stream,
        logits: &View<'_, f32>,
        masks: Option<&View<'_, u8>>,
        PolicyStreams { clock, t, first_env }: PolicyStreams<'_>,
        actions: &ViewMut<'_, u32>,
        log_probs: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = actions.len();
        let a = logits.len() / n.max(1);
        length("logits", n * a, logits.len())?;
        length("masks", n * a, masks.map_or(n * a, View::len))?;
        length("clock", 2, clock.len())?;
        length("log_probs", n, log_probs.len())?;
        let args = args![logits, masks, clock, t, actions, log_probs, n as u32, a as u32, first_env];
        // SAFETY: the parameters are those of `sample_categorical`; lengths were checked above.
        unsafe { self.sample_categorical.launch(stream, n as u64, BLOCK, args) }
    }

    /// Adds `steps` to the step of a clock, (2).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn advance_clock(&self, stream: &Stream, clock: &ViewMut<'_, u64>, steps: u64) -> Result<(), Error> {
        length("clock", 2, clock.len())?;
        // SAFETY: the parameters are those of `clock_advance`; the length was checked above.
        unsafe { self.clock_advance.launch(stream, 1, 1, args![clock, steps]) }
    }

    /// Draws continuous actions (N, A) and their log-densities (N) around means (N, A).
    ///
    /// `log_std` are the logarithms of the standard deviations (A). Environments take `clipped`, (N, A): the actions within
    /// `bounds`, (2, A), lower ones first. The results equal those of rl-agents bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn sample_gaussian(
        &self,
        stream: &Stream,
        means: &View<'_, f32>,
        log_std: &View<'_, f32>,
        bounds: &View<'_, f32>,
        PolicyStreams { clock, t, first_env }: PolicyStreams<'_>,
        [actions, clipped, log_probs]: [&ViewMut<'_, f32>; 3],
    ) -> Result<(), Error> {
        let (n, a) = (log_probs.len(), log_std.len());
        length("means", n * a, means.len())?;
        length("bounds", 2 * a, bounds.len())?;
        length("clock", 2, clock.len())?;
        length("actions", n * a, actions.len())?;
        length("clipped", n * a, clipped.len())?;
        let args = args![means, log_std, bounds, clock, t, actions, clipped, log_probs, n as u32, a as u32, first_env];
        // SAFETY: the parameters are those of `sample_gaussian`; lengths were checked above.
        unsafe { self.sample_gaussian.launch(stream, n as u64, BLOCK, args) }
    }

    /// Normalizes observations (N, D) in place.
    ///
    /// With means and precisions (D): `(x - mean) precision`, clipped to +-10.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn normalize(
        &self,
        stream: &Stream,
        obs: &ViewMut<'_, f32>,
        mean: &View<'_, f32>,
        precision: &View<'_, f32>,
    ) -> Result<(), Error> {
        let d = mean.len();
        length("precision", d, precision.len())?;
        length("obs", obs.len() / d.max(1) * d, obs.len())?;
        let args = args![obs, mean, precision, obs.len() as u64, d as u32];
        // SAFETY: the parameters are those of `normalize_apply`; lengths were checked above.
        unsafe { self.normalize_apply.launch(stream, obs.len() as u64, BLOCK, args) }
    }

    /// Computes means and sums of squared deviations of each slice, (S, D).
    ///
    /// The observations are (T, N, D). The results equal those of `Moments` of rl-agents bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Launch`] or [`Error::Driver`].
    pub fn moments(&self, stream: &Stream, obs: &View<'_, f32>, slices: &mut ObsSlices) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let ObsSlices { starts, n_envs, obs_len, means, m2s } = slices;
        let n_steps = obs.len() / (*n_envs * *obs_len);
        length("obs", n_steps * *n_envs * *obs_len, obs.len())?;
        let args = args![obs, starts, starts.len() as u32 - 1, n_steps as u32, *n_envs as u32, *obs_len as u32, means, m2s];
        // SAFETY: the parameters are those of `normalize_moments`; lengths were checked above.
        unsafe { self.normalize_moments.launch(stream, means.len() as u64, BLOCK, args)? };
        let mut result = (vec![0.0; means.len()], vec![0.0; m2s.len()]);
        stream.download(&mut result.0, &means.view())?;
        stream.download(&mut result.1, &m2s.view())?;
        Ok(result)
    }
}
