//! Losses: their parts, and the gradients of a network's outputs.

use rl_envs::{Actions, either};

use super::kernels::{BLOCK, LearnerKernels};
use super::slices::MinibatchSlices;
use super::state::LearnerState;
use crate::driver::args::args;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Number of parts of a loss.
///
/// Policy loss, value loss, entropy, KL divergence, fraction clipped.
pub const PARTS: usize = 5;
/// Threads that sum a tile.
const TILE_THREADS: u64 = 8;
/// Index of the KL divergence among the parts of a loss.
pub const KL_PART: usize = 3;

/// Policy's part of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The clipped surrogate: the probability ratio times the advantage.
    ClippedSurrogate,
    /// The policy gradient: the log-probability times the advantage.
    PolicyGradient,
}

/// Sizes of a policy's independent categorical heads, in device memory.
///
/// An action is a number in mixed radix whose last head is the fastest.
#[derive(Debug)]
pub struct HeadSizes {
    pub(super) sizes: Buffer<u32>,
    pub(super) outputs: usize,
}

impl HeadSizes {
    /// Copies the numbers of choices to the device.
    ///
    /// # Errors
    /// [`Error::Length`] for a head without choices; [`Error::Driver`].
    pub fn new(device: &Device, sizes: &[usize]) -> Result<Self, Error> {
        sizes.iter().try_for_each(|&size| length("choices of a head", 1, size.min(1)))?;
        let words: Vec<u32> = sizes.iter().map(|&size| size as u32).collect();
        Ok(Self { sizes: Buffer::of(device, &words)?, outputs: sizes.iter().sum() })
    }
}

/// Distribution of actions whose parameters are a network's outputs.
#[derive(Clone, Copy, Debug)]
pub enum ActionDistribution<'a> {
    /// Categorical; the outputs are logits.
    Categorical,
    /// Categorical in each of several heads; the outputs are logits, head after head.
    Heads(&'a HeadSizes),
    /// Gaussian; the outputs are means.
    ///
    /// Holds the logarithms of the standard deviations, (A).
    Gaussian(View<'a, f32>),
}

impl ActionDistribution<'_> {
    /// Returns the kernels' index, and the address of the actions.
    ///
    /// There are `len` actions, with `a` outputs each.
    pub(super) fn check(
        &self,
        actions: &Actions<View<'_, u32>, View<'_, f32>>,
        masked: bool,
        len: usize,
        a: usize,
    ) -> Result<(usize, u64), Error> {
        let (kind, expected) = match (actions, self) {
            (Actions::Discrete(_), Self::Categorical) => (0, len),
            (Actions::Continuous(_), Self::Gaussian(log_std)) => {
                length("log_std", a, log_std.len())?;
                (1, len * a)
            }
            (Actions::Discrete(_), Self::Heads(sizes)) if !masked => {
                length("outputs of all heads", a, sizes.outputs)?;
                (2, len)
            }
            _ => return Err(Error::Kind { what: "actions", expected: "those of the policy" }),
        };
        let (found, address) = either!(Actions, actions, |actions| (actions.len(), actions.address()));
        length("actions", expected, found)?;
        Ok((kind, address))
    }
}

/// Columns of a rollout, (T N), and the samples of a minibatch among them.
#[derive(Clone, Copy, Debug)]
pub struct LossColumns<'a> {
    /// Rows of the samples, (n).
    pub rows: View<'a, u32>,
    /// Actions, discrete or (T N, A).
    pub actions: Actions<View<'a, u32>, View<'a, f32>>,
    /// Legal actions, (T N, A), if there are masks.
    pub masks: Option<View<'a, u8>>,
    /// Log-probabilities of the actions under the acting policy.
    pub log_probs: View<'a, f32>,
    /// Advantages.
    pub advantages: View<'a, f32>,
    /// Values before the update.
    pub values: View<'a, f32>,
    /// Targets of the values.
    pub returns: View<'a, f32>,
    /// Sums from which the samples' advantages are normalized.
    ///
    /// The sum of the advantages, and of the squared distances from their mean.
    pub moments: Option<[View<'a, f64>; 2]>,
}

/// Outputs of the networks for a minibatch, and the gradients of a loss.
#[derive(Debug)]
pub struct LossHeads<'a> {
    /// Logits or means, (n, A).
    pub outputs: View<'a, f32>,
    /// Values, (n).
    pub values: View<'a, f32>,
    /// Gradient of the logits or means, (n, A).
    pub d_outputs: ViewMut<'a, f32>,
    /// Gradient of the values, (n).
    pub d_values: ViewMut<'a, f32>,
    /// Parts of the loss, (5, n).
    pub terms: ViewMut<'a, f32>,
    /// Terms of the gradient of a Gaussian's log standard deviations, (A, n).
    pub std_terms: ViewMut<'a, f32>,
    /// Distribution of the actions.
    pub distribution: ActionDistribution<'a>,
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Computes the parts of a loss, and the gradients of the outputs.
    ///
    /// A row past the end counts as the last one.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Kind`] or [`Error::Launch`].
    pub fn objective(
        &self,
        stream: &Stream,
        objective: Objective,
        columns: &LossColumns<'_>,
        heads: &LossHeads<'_>,
        state: &LearnerState,
    ) -> Result<(), Error> {
        let (n, len) = (columns.rows.len(), columns.log_probs.len());
        let a = heads.outputs.len() / n.max(1);
        length("log_probs", 1, len.min(1))?;
        length("outputs", n * a, heads.outputs.len())?;
        length("d_outputs", n * a, heads.d_outputs.len())?;
        length("values of the minibatch", n, heads.values.len())?;
        length("d_values", n, heads.d_values.len())?;
        length("terms", PARTS * n, heads.terms.len())?;
        length("masks", len * a, columns.masks.map_or(len * a, |masks| masks.len()))?;
        for (what, column) in [("advantages", &columns.advantages), ("values", &columns.values), ("returns", &columns.returns)] {
            length(what, len, column.len())?;
        }
        let (kind, actions) = heads.distribution.check(&columns.actions, columns.masks.is_some(), len, a)?;
        let more = match heads.distribution {
            ActionDistribution::Categorical => None,
            ActionDistribution::Gaussian(log_std) => {
                length("terms of log_std", a * n, heads.std_terms.len())?;
                Some([log_std.address(), heads.std_terms.address()])
            }
            ActionDistribution::Heads(HeadSizes { sizes, .. }) => Some([sizes.view().address(), sizes.len() as u64]),
        };
        let places = [
            columns.rows.address(),
            actions,
            columns.masks.map_or(0, |masks| masks.address()),
            columns.log_probs.address(),
            columns.advantages.address(),
            columns.values.address(),
            columns.returns.address(),
            len as u64,
        ];
        let moments = columns.moments.map_or([0; 2], |moments| moments.map(|sum| sum.address()));
        let of_heads = [
            heads.outputs.address(),
            heads.values.address(),
            heads.d_outputs.address(),
            heads.d_values.address(),
            heads.terms.address(),
        ];
        let args = args![places, moments, of_heads];
        let args = more.map_or(args.clone(), |more| args![args; more]);
        let args = args![args; state.settings, n as u32, a as u32];
        let kernel = &self.objectives[objective as usize][kind];
        // SAFETY: the parameters are those of both objectives' kernels of this kind; lengths were checked above.
        unsafe { kernel.launch(stream, n as u64, BLOCK, args) }
    }

    /// Adds a minibatch's loss to the sums of the update.
    ///
    /// Also decides whether the optimizer steps. `tiles` holds `PARTS` numbers for each tile.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn loss(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        terms: &View<'_, f32>,
        tiles: &ViewMut<'_, f64>,
        state: &mut LearnerState,
    ) -> Result<(), Error> {
        length("terms", PARTS * slices.n, terms.len())?;
        length("tiles", PARTS * slices.tiles(), tiles.len())?;
        self.tiles(stream, slices, terms, PARTS, tiles)?;
        let args = args![tiles, slices.minibatch(), state.settings, state.counters, state.totals];
        // SAFETY: the parameters are those of `learner_loss`; lengths were checked above.
        unsafe { self.loss.launch(stream, 1, BLOCK, args) }
    }

    /// Sums the tiles of `parts` numbers per sample.
    fn tiles(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        terms: &View<'_, f32>,
        parts: usize,
        tiles: &ViewMut<'_, f64>,
    ) -> Result<(), Error> {
        let args = args![terms, tiles, slices.minibatch(), parts as u32];
        // SAFETY: the parameters are those of `learner_tiles`; the callers checked the lengths.
        unsafe { self.tiles.launch(stream, TILE_THREADS * tiles.len() as u64, BLOCK, args) }
    }

    /// Sums the gradient of the logarithms of standard deviations, (A).
    ///
    /// `terms` are (A, n), and `tiles` holds a number for each dimension and tile.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn log_std(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        terms: &View<'_, f32>,
        tiles: &ViewMut<'_, f64>,
        gradient: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let a = gradient.len();
        length("terms", a * slices.n, terms.len())?;
        length("tiles", a * slices.tiles(), tiles.len())?;
        self.tiles(stream, slices, terms, a, tiles)?;
        let args = args![tiles, slices.minibatch(), gradient];
        // SAFETY: the parameters are those of `learner_log_std`; lengths were checked above.
        unsafe { self.log_std.launch(stream, a as u64 * u64::from(BLOCK), BLOCK, args) }
    }
}
