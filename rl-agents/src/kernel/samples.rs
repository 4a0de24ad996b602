//! Samples of a batch, copied tile by tile from stored observations.

use std::ops::Range;

use rl_buffer::ObsSlice;

use crate::network::normalize::Normalizer;

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
    /// Sequences that the samples are, for networks with memory that learn.
    pub(crate) sequences: Option<Sequences<'a>>,
}

/// Sequences of samples: whole columns of a rollout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequences<'a> {
    /// Number T of steps.
    pub(crate) n_steps: usize,
    /// Number N of columns of the rollout, of which a row (t, n) is row t N + n.
    pub(crate) n_envs: usize,
    /// Flags of steps that end an episode, (T N) each.
    pub(crate) ends: [&'a [u8]; 2],
    /// States before the first step (N, S).
    pub(crate) first_states: &'a [f32],
    /// Steps that a gradient goes back over; 0: all.
    pub(crate) horizon: usize,
}

impl Sequences<'_> {
    /// True if an episode begins at a row after the first step's.
    #[inline(always)]
    pub(crate) fn begins(&self, row: u32) -> bool {
        let before = row as usize - self.n_envs;
        self.ends.iter().any(|ends| ends[before] != 0)
    }

    /// State before the first step of a column (S).
    pub(crate) fn first_state(&self, column: u32) -> &[f32] {
        let len = self.first_states.len() / self.n_envs;
        &self.first_states[column as usize * len..][..len]
    }
}

impl Samples<'_> {
    /// Copies `columns` of the observations (D) of samples `range`.
    ///
    /// The rows of `to` are `stride` numbers apart.
    #[inline(always)]
    pub(crate) fn copy(&self, range: Range<usize>, d: usize, columns: Range<usize>, stride: usize, to: &mut [f32]) {
        // With a length that the compiler knows, a row is one or two moves instead of a call.
        match columns.len() {
            1 => self.copy_rows::<1>(range, d, columns, stride, to),
            2 => self.copy_rows::<2>(range, d, columns, stride, to),
            3 => self.copy_rows::<3>(range, d, columns, stride, to),
            4 => self.copy_rows::<4>(range, d, columns, stride, to),
            6 => self.copy_rows::<6>(range, d, columns, stride, to),
            8 => self.copy_rows::<8>(range, d, columns, stride, to),
            _ => self.copy_rows::<0>(range, d, columns, stride, to),
        }
    }

    /// [`Samples::copy`] of N columns, or of any number if N is 0.
    #[inline(always)]
    fn copy_rows<const N: usize>(&self, range: Range<usize>, d: usize, columns: Range<usize>, stride: usize, to: &mut [f32]) {
        let n = if N == 0 { columns.len() } else { N };
        for (to, sample) in to.chunks_exact_mut(stride).zip(range) {
            let row = self.rows.map_or(sample, |rows| rows[sample] as usize);
            let (to, from) = (&mut to[..n], row * d + columns.start..row * d + columns.start + n);
            match self.obs {
                ObsSlice::F32(obs) => to.copy_from_slice(&obs[from]),
                ObsSlice::U8(obs) => to.iter_mut().zip(&obs[from]).for_each(|(to, &x)| *to = f32::from(x) * self.scale),
            }
            if let Some(normalizer) = self.normalizer {
                normalizer.apply(columns.start, to);
            }
        }
    }
}
