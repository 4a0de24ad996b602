//! Samples of a batch, copied tile by tile from stored observations.

use std::ops::Range;

use rl_buffer::ObsSlice;

use crate::normalize::Normalizer;

/// Number of samples that pass through the networks together.
pub(crate) const TILE: usize = 96;

/// Samples of a batch: observations, and the rows to take of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<'a> {
    /// Observations, D elements each.
    pub(crate) obs: ObsSlice<'a>,
    /// Factor that bytes are multiplied by.
    pub(crate) scale: f32,
    /// Normalizer, applied after scaling.
    pub(crate) normalizer: Option<&'a Normalizer>,
    /// Rows of the samples; `None` takes all rows in order.
    pub(crate) rows: Option<&'a [u32]>,
}

impl Samples<'_> {
    /// Copies the observations of samples `range` into rows of `stride`.
    #[inline(always)]
    pub(crate) fn copy(&self, range: Range<usize>, d: usize, stride: usize, to: &mut [f32]) {
        for (to, sample) in to.chunks_exact_mut(stride).zip(range) {
            let row = self.rows.map_or(sample, |rows| rows[sample] as usize);
            match self.obs {
                ObsSlice::F32(obs) => to[..d].copy_from_slice(&obs[row * d..][..d]),
                ObsSlice::U8(obs) => {
                    to[..d].iter_mut().zip(&obs[row * d..][..d]).for_each(|(to, &x)| *to = f32::from(x) * self.scale);
                }
            }
            if let Some(normalizer) = self.normalizer {
                normalizer.apply(&mut to[..d]);
            }
        }
    }
}
