//! The loaded kernels, and their launches.

use rl_envs::Obs;

use super::state::LearnerState;
use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Threads per block.
pub(super) const BLOCK: u32 = 128;
/// Numbers that a block of a sum folds, with 128 threads.
const NUMBERS: usize = 256;
/// Numbers that a block of the explained variance adds up, with 256 threads.
const VARIANCE_PART: usize = 256 * 64;

/// Terms of a sum.
#[derive(Clone, Copy, Debug)]
pub enum Terms<'a> {
    /// The numbers.
    Numbers,
    /// The squares of the numbers.
    Squares,
    /// The squares of the numbers' distances from their mean, whose sum is given.
    SquaredDistances(View<'a, f64>),
}

/// Order of an epoch's samples.
#[derive(Clone, Copy, Debug)]
pub struct EpochOrder {
    /// Number of samples.
    pub n_samples: usize,
    /// False if they keep their order.
    pub shuffled: bool,
}

/// Inputs of a network for observations with categories, in device memory.
#[derive(Debug)]
pub struct OneHotInputs {
    places: Buffer<u32>, // (I, 2)
    n_elements: usize,
}

impl OneHotInputs {
    /// Lays out one input for each number, and one for each category.
    ///
    /// A number has 0 categories.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, categories: &[u32]) -> Result<Self, Error> {
        let of = |(element, &n): (usize, &u32)| {
            let inputs = if n == 0 { u32::MAX..=u32::MAX } else { 0..=n - 1 };
            inputs.flat_map(move |category| [element as u32, category])
        };
        let places: Vec<u32> = categories.iter().enumerate().flat_map(of).collect();
        Ok(Self { places: Buffer::of(device, &places)?, n_elements: categories.len() })
    }

    /// Number of inputs I.
    #[expect(clippy::len_without_is_empty, reason = "there is an input at least")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() / 2
    }
}

/// Kernels of a dense layer.
#[derive(Debug)]
pub(super) struct LayerKernels {
    pub(super) forward: Kernel,
    pub(super) input_gradient: Kernel,
    pub(super) weight_gradient: Kernel,
}

/// Loaded kernels.
#[derive(Debug)]
pub struct LearnerKernels {
    samples: [Kernel; 2],
    one_hot: Kernel,
    pub(super) dense: LayerKernels,
    pub(super) wide: LayerKernels,
    pub(super) few: LayerKernels,
    pub(super) bias_gradient: Kernel,
    pub(super) sum_gradients: Kernel,
    /// Forward and backward.
    pub(super) gated: [Kernel; 2],
    /// Forward and backward.
    pub(super) layer_norm: [Kernel; 2],
    /// Forward and backward.
    pub(super) columns: [Kernel; 2],
    pub(super) narrow_forward: Kernel,
    pub(super) narrow_forward_many: Kernel,
    pub(super) narrow_gradient: Kernel,
    sums_of: Kernel,
    sums_fold: Kernel,
    rows: Kernel,
    begin: Kernel,
    epoch: Kernel,
    /// Kernels of each objective: categorical, Gaussian, several heads.
    pub(super) objectives: [[Kernel; 3]; 2],
    pub(super) tiles: Kernel,
    pub(super) loss: Kernel,
    pub(super) log_std: Kernel,
    pub(super) step: Kernel,
    pub(super) adam: Kernel,
    pub(super) rms_prop: Kernel,
    next_values: Kernel,
    ended: Kernel,
    continued: Kernel,
    scatter: Kernel,
    returns: Kernel,
    variance_parts: Kernel,
    explained_variance: Kernel,
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |module, name: &str| device.kernel(module, format!("{module}_{name}"));
        let objective = |module| -> Result<[Kernel; 3], Error> {
            Ok([kernel(module, "categorical")?, kernel(module, "gaussian")?, kernel(module, "heads")?])
        };
        let layer = |module| -> Result<LayerKernels, Error> {
            Ok(LayerKernels {
                forward: kernel(module, "forward")?,
                input_gradient: kernel(module, "input_gradient")?,
                weight_gradient: kernel(module, "weight_gradient")?,
            })
        };
        Ok(Self {
            samples: [kernel("samples", "f32")?, kernel("samples", "u8")?],
            one_hot: kernel("samples", "one_hot")?,
            dense: layer("dense")?,
            wide: layer("wide")?,
            few: layer("few")?,
            bias_gradient: kernel("dense", "bias_gradient")?,
            sum_gradients: kernel("dense", "sum_gradients")?,
            gated: [kernel("gated", "forward")?, kernel("gated", "backward")?],
            layer_norm: [kernel("layer_norm", "forward")?, kernel("layer_norm", "backward")?],
            columns: [kernel("columns", "copy")?, kernel("columns", "derive")?],
            narrow_forward: kernel("narrow", "forward")?,
            narrow_forward_many: kernel("narrow", "forward_many")?,
            narrow_gradient: kernel("narrow", "gradient")?,
            sums_of: kernel("sums", "of")?,
            sums_fold: kernel("sums", "fold")?,
            rows: kernel("permutation", "rows")?,
            begin: kernel("learner", "begin")?,
            epoch: kernel("learner", "epoch")?,
            objectives: [objective("surrogate")?, objective("policy_gradient")?],
            tiles: kernel("learner", "tiles")?,
            loss: kernel("learner", "loss")?,
            log_std: kernel("learner", "log_std")?,
            step: kernel("learner", "step")?,
            adam: kernel("learner", "adam")?,
            rms_prop: kernel("learner", "rms_prop")?,
            next_values: kernel("targets", "next_values")?,
            ended: kernel("targets", "ended")?,
            continued: kernel("targets", "continued")?,
            scatter: kernel("targets", "scatter")?,
            returns: kernel("targets", "returns")?,
            variance_parts: kernel("targets", "variance_parts")?,
            explained_variance: kernel("targets", "explained_variance")?,
        })
    }

    /// Copies observations (rows, D) at `rows`, or the first of them, to `x`, (n, D).
    ///
    /// Bytes are multiplied by `scale`. A row past the end counts as the last one.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn samples(
        &self,
        stream: &Stream,
        obs: &Obs<View<'_, f32>, View<'_, u8>>,
        scale: f32,
        d: usize,
        rows: Option<&View<'_, u32>>,
        x: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = x.len() / d.max(1);
        length("x", n * d, x.len())?;
        let (kernel, found, address) = match obs {
            Obs::F32(obs) => (&self.samples[0], obs.len(), obs.address()),
            Obs::U8(obs) => (&self.samples[1], obs.len(), obs.address()),
        };
        match rows {
            Some(rows) => length("rows", n, rows.len())?,
            None => length("obs", x.len(), found.min(x.len()))?,
        }
        length("obs", d, found.min(d))?;
        let args = args![address, rows, scale, x, n as u32, d as u32, (found / d.max(1)) as u64];
        // SAFETY: the parameters are those of `samples_*`; lengths were checked above, and the kernel bounds the rows.
        unsafe { kernel.launch(stream, x.len() as u64, BLOCK, args) }
    }

    /// Writes the inputs (n, I) of observations (rows, D) with categories to `x`.
    ///
    /// The observations are those at `rows`, or the first ones. A category becomes a one-hot vector. A row past the end counts as
    /// the last one.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn one_hot(
        &self,
        stream: &Stream,
        obs: &View<'_, f32>,
        inputs: &OneHotInputs,
        rows: Option<&View<'_, u32>>,
        x: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (d, n_inputs) = (inputs.n_elements, inputs.len());
        let n = x.len() / n_inputs;
        length("x", n * n_inputs, x.len())?;
        match rows {
            Some(rows) => length("rows", n, rows.len())?,
            None => length("obs", n * d, obs.len().min(n * d))?,
        }
        length("obs", d, obs.len().min(d))?;
        let args = args![obs, rows, inputs.places, x, n as u32, n_inputs as u32, d as u32, (obs.len() / d) as u64];
        // SAFETY: the parameters are those of `samples_one_hot`; lengths were checked above, the elements of the inputs when they
        // were made, and the kernel bounds the rows.
        unsafe { self.one_hot.launch(stream, x.len() as u64, BLOCK, args) }
    }

    /// Returns the length of the scratch memory for sums of `n` numbers.
    #[must_use]
    pub fn sum_scratch(n: usize) -> usize {
        n.div_ceil(NUMBERS) + n.div_ceil(NUMBERS * NUMBERS)
    }

    /// Writes the sum of the terms of `x`, at `rows` if there are any, to `to`, (1).
    ///
    /// A row past the end counts as the last one. `scratch` holds [`LearnerKernels::sum_scratch`] numbers at least.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn sum(
        &self,
        stream: &Stream,
        x: &View<'_, f32>,
        rows: Option<&View<'_, u32>>,
        terms: Terms<'_>,
        scratch: &ViewMut<'_, f64>,
        to: &ViewMut<'_, f64>,
    ) -> Result<(), Error> {
        let mut n = rows.map_or(x.len(), View::len);
        length("to", 1, to.len())?;
        length("x", 1, x.len().min(1))?;
        length("scratch", Self::sum_scratch(n), scratch.len().min(Self::sum_scratch(n)))?;
        let (sum, squared) = match terms {
            Terms::Numbers => (None, false),
            Terms::Squares => (None, true),
            Terms::SquaredDistances(sum) => (Some(sum), true),
        };
        // The blocks' sums go to the first part of the scratch memory, those of theirs to the second, and so on in turn.
        let parts = [scratch.address(), scratch.address() + 8 * n.div_ceil(NUMBERS) as u64];
        let place = |n: usize, level: usize| if n <= NUMBERS { to.address() } else { parts[level % 2] };
        let args = args![x, rows, n as u64, x.len() as u64, sum, u32::from(squared), place(n, 0)];
        let threads = |n: usize| n.div_ceil(NUMBERS) as u64 * u64::from(BLOCK);
        // SAFETY: the parameters are those of `sums_of`; lengths were checked above, and the kernel bounds the rows.
        unsafe { self.sums_of.launch(stream, threads(n), BLOCK, args)? };
        let mut level = 0;
        while n > NUMBERS {
            n = n.div_ceil(NUMBERS);
            level += 1;
            let args = args![parts[(level - 1) % 2], n as u64, place(n, level)];
            // SAFETY: the parameters are those of `sums_fold`; the scratch memory holds each level beside the one before.
            unsafe { self.sums_fold.launch(stream, threads(n), BLOCK, args)? };
        }
        Ok(())
    }

    /// Clears the sums of an update.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub fn begin(&self, stream: &Stream, state: &mut LearnerState) -> Result<(), Error> {
        let args = args![state.counters, state.totals];
        // SAFETY: the parameters are those of `learner_begin`.
        unsafe { self.begin.launch(stream, 1, 1, args) }
    }

    /// Begins an epoch, and counts it.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub fn epoch(&self, stream: &Stream, state: &mut LearnerState) -> Result<(), Error> {
        let args = args![state.counters, state.totals];
        // SAFETY: the parameters are those of `learner_epoch`.
        unsafe { self.epoch.launch(stream, 1, 1, args) }
    }

    /// Writes the rows of the next minibatch, in the epoch's order.
    ///
    /// [`LearnerKernels::loss`] ends a minibatch.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub fn rows(
        &self,
        stream: &Stream,
        state: &LearnerState,
        EpochOrder { n_samples, shuffled }: EpochOrder,
        rows: &ViewMut<'_, u32>,
    ) -> Result<(), Error> {
        let n = n_samples as u32;
        if n == 0 {
            return Ok(());
        }
        let columns = (n - 1).isqrt() + 1;
        let rectangle = if shuffled { [n, n.div_ceil(columns), columns] } else { [n, 0, 0] };
        let args = args![state.counters, rows, rectangle, rows.len() as u32];
        // SAFETY: the parameters are those of `permutation_rows`.
        unsafe { self.rows.launch(stream, rows.len() as u64, BLOCK, args) }
    }

    /// Writes the values of the next observations, (T, N).
    ///
    /// A row takes the values of the row after it; the last row takes `last_values`, (N). Steps at `final_at`, which ended an
    /// episode, take `final_values`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn next_values(
        &self,
        stream: &Stream,
        values: &View<'_, f32>,
        last_values: &View<'_, f32>,
        final_values: &View<'_, f32>,
        final_at: &View<'_, u32>,
        next_values: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (len, n_envs) = (next_values.len(), last_values.len());
        length("values", len, values.len())?;
        let args = args![values, last_values, next_values, len as u64, n_envs as u32];
        // SAFETY: the parameters are those of `targets_next_values`; lengths were checked above.
        unsafe { self.next_values.launch(stream, len as u64, BLOCK, args)? };
        self.replace_values(stream, final_values, final_at, next_values)
    }

    /// Replaces numbers of a column at some steps, each of which appears once.
    ///
    /// Steps past the end are skipped.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn replace_values(
        &self,
        stream: &Stream,
        values: &View<'_, f32>,
        at: &View<'_, u32>,
        column: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = at.len();
        length("values", n, values.len())?;
        let args = args![values, at, column, n as u32, column.len() as u64];
        // SAFETY: the parameters are those of `targets_scatter`; the kernel bounds the steps.
        unsafe { self.scatter.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes values of final observations, (N), where a step ended an episode.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn ended_values(
        &self,
        stream: &Stream,
        final_values: &View<'_, f32>,
        [terminated, truncated]: [&View<'_, u8>; 2],
        next_values: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = next_values.len();
        length("final_values", n, final_values.len())?;
        length("terminated", n, terminated.len())?;
        length("truncated", n, truncated.len())?;
        let args = args![final_values, terminated, truncated, next_values, n as u32];
        // SAFETY: the parameters are those of `targets_ended`; lengths were checked above.
        unsafe { self.ended.launch(stream, n as u64, BLOCK, args) }
    }

    /// Writes the values of the next observations, (T, N), where episodes continue.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn continued_values(
        &self,
        stream: &Stream,
        values: &View<'_, f32>,
        last_values: &View<'_, f32>,
        [terminated, truncated]: [&View<'_, u8>; 2],
        next_values: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (len, n_envs) = (next_values.len(), last_values.len());
        length("values", len, values.len())?;
        length("terminated", len, terminated.len())?;
        length("truncated", len, truncated.len())?;
        let args = args![values, last_values, terminated, truncated, next_values, len as u64, n_envs as u32];
        // SAFETY: the parameters are those of `targets_continued`; lengths were checked above.
        unsafe { self.continued.launch(stream, len as u64, BLOCK, args) }
    }

    /// Writes returns, the sums of advantages and values.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn returns(
        &self,
        stream: &Stream,
        advantages: &View<'_, f32>,
        values: &View<'_, f32>,
        returns: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let len = returns.len();
        length("advantages", len, advantages.len())?;
        length("values", len, values.len())?;
        let args = args![advantages, values, returns, len as u64];
        // SAFETY: the parameters are those of `targets_returns`; lengths were checked above.
        unsafe { self.returns.launch(stream, len as u64, BLOCK, args) }
    }

    /// Returns the length of the explained variance's scratch memory for `n` returns.
    #[must_use]
    pub fn variance_scratch(n: usize) -> usize {
        4 * n.div_ceil(VARIANCE_PART)
    }

    /// Writes the share of the returns' variance that the values explain.
    ///
    /// `scratch` holds [`LearnerKernels::variance_scratch`] numbers at least.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn explained_variance(
        &self,
        stream: &Stream,
        [returns, values]: [&View<'_, f32>; 2],
        scratch: &ViewMut<'_, f64>,
        state: &mut LearnerState,
    ) -> Result<(), Error> {
        let (len, parts) = (returns.len(), returns.len().div_ceil(VARIANCE_PART));
        length("values", len, values.len())?;
        length("scratch", 4 * parts, scratch.len().min(4 * parts))?;
        let args = args![returns, values, len as u64, scratch];
        // SAFETY: the parameters are those of `targets_variance_parts`; lengths were checked above.
        unsafe { self.variance_parts.launch(stream, parts as u64 * 256, 256, args) }?;
        let args = args![scratch, len as u64, state.totals];
        // SAFETY: the parameters are those of `targets_explained_variance`; lengths were checked above.
        unsafe { self.explained_variance.launch(stream, 1, 1, args) }
    }
}
