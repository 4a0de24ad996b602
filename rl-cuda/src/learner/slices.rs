//! Slices of a minibatch, and the rows of its partial gradients.

use std::ops::Range;

use crate::driver::args::long;

/// Samples of a tile: the part of a gradient that is summed from zero.
pub const TILE: usize = 96;
/// Largest number of slices of a minibatch.
const MAX_SLICES: usize = 16;

/// Slices of a minibatch, and the rows of its partial gradients.
#[derive(Clone, Copy, Debug)]
pub struct MinibatchSlices {
    pub(super) n: usize,
    pub(super) count: usize,
    /// Samples of a column: slices have whole ones.
    column: usize,
    /// Samples of a block: tiles are those of each block of a slice.
    block: usize,
    /// Numbers of a row of partial gradients.
    pub(super) len: usize,
    /// Rows of partial gradients of a slice.
    groups: usize,
    tiles_of_group: usize,
}

impl MinibatchSlices {
    /// Cuts `n` samples into `count` slices.
    ///
    /// Slice i holds samples `i n / count` to `(i + 1) n / count`. A partial gradient has `len` numbers. Each tile has its
    /// own if all of them together have at most `max_numbers` numbers; otherwise each slice has one.
    ///
    /// # Panics
    /// If `count` is not a power of two up to 16.
    #[must_use]
    pub fn new(n: usize, count: usize, len: usize, max_numbers: usize) -> Self {
        let largest = n.div_ceil(count).max(1);
        Self {
            n,
            count,
            column: 1,
            block: largest.next_multiple_of(TILE),
            len,
            groups: 1,
            tiles_of_group: largest.div_ceil(TILE),
        }
        .with_rows(max_numbers)
    }

    /// Cuts `n_columns` columns of `n_steps` samples into `count` slices of them.
    ///
    /// The tiles are those of each block of `block` columns. Otherwise as [`MinibatchSlices::new`].
    ///
    /// # Panics
    /// If `count` is not a power of two up to 16, or `block` is 0.
    #[must_use]
    pub fn of_columns(n_columns: usize, n_steps: usize, block: usize, count: usize, len: usize, max_numbers: usize) -> Self {
        let tiles = |n_columns: usize| (n_columns * n_steps).div_ceil(TILE);
        let largest = n_columns.div_ceil(count);
        let tiles_of_group = largest / block * tiles(block) + tiles(largest % block);
        let (n, block) = (n_columns * n_steps, block.min(largest) * n_steps);
        Self { n, count, column: n_steps, block, len, groups: 1, tiles_of_group }.with_rows(max_numbers)
    }

    /// Gives each tile a row, if all of them have at most `max_numbers` numbers.
    fn with_rows(self, max_numbers: usize) -> Self {
        let Self { count, len, tiles_of_group: tiles, .. } = self;
        assert!(count.is_power_of_two() && count <= MAX_SLICES, "{count} slices");
        let each = count.saturating_mul(tiles).saturating_mul(len) <= max_numbers;
        if each { Self { groups: tiles, tiles_of_group: 1, ..self } } else { self }
    }

    /// Returns the number of partial gradients.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.count * self.groups
    }

    /// Returns the number of tiles, empty ones included.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.rows() * self.tiles_of_group
    }

    /// Returns the number of slices.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of samples of a column: 1 without columns.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.column
    }

    /// Returns the samples of neighbouring slices.
    #[must_use]
    pub fn samples(&self, slices: Range<usize>) -> Range<usize> {
        let first = |slice: usize| slice * (self.n / self.column) / self.count * self.column;
        first(slices.start)..first(slices.end)
    }

    /// Returns the number of samples of the largest slice.
    #[must_use]
    pub fn largest(&self) -> usize {
        (self.n / self.column).div_ceil(self.count) * self.column
    }

    /// Returns a minibatch of the first `count` slices, with as many rows for each.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self { n: self.samples(0..count).len(), count, ..*self }
    }

    /// Cuts neighbouring slices into minibatches of their own.
    ///
    /// The slices of each minibatch are those of this one: all slices are in one minibatch if their samples allow that, else each
    /// slice is in its own.
    pub fn parts(&self, slices: Range<usize>) -> impl Iterator<Item = (Range<usize>, Self)> {
        let of = |slices: Range<usize>| Self { n: self.samples(slices.clone()).len(), count: slices.len(), ..*self };
        let (whole, begin) = (of(slices.clone()), self.samples(slices.clone()).start);
        let is_even = (1..=whole.count).all(|i| begin + whole.samples(0..i).end == self.samples(0..slices.start + i).end);
        let len = if is_even { slices.len() } else { 1 };
        slices.clone().step_by(len.max(1)).map(move |first| first..first + len).map(move |part| (part.clone(), of(part)))
    }

    /// Returns the kernels' `Cut`.
    pub(super) fn cut(&self) -> [u32; 4] {
        [self.n, self.count, self.column, self.block].map(|n| n as u32)
    }

    /// Returns the kernels' `Minibatch`.
    pub(super) fn minibatch(&self) -> [u32; 5] {
        let [n, slices, column, block] = self.cut();
        [n, slices, column, block, (self.tiles() / self.count) as u32]
    }

    /// Returns the kernels' `Slices`.
    pub(super) fn words(&self) -> [u32; 8] {
        let [low, high] = long(self.len as u64);
        let [n, slices, column, block] = self.cut();
        [low, high, n, slices, column, block, self.groups as u32, self.tiles_of_group as u32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_minibatch_have_its_slices() {
        for (n, count) in [(512, 8), (515, 8), (195, 2), (287, 4), (1100, 16), (97, 1)] {
            let all = MinibatchSlices::new(n, count, 1, usize::MAX);
            let whole = |i: usize| i * n / count..(i + 1) * n / count;
            for (first, end) in (0..=count).flat_map(|end| (0..end).map(move |first| (first, end))) {
                let mut next = first;
                for (part, of) in all.parts(first..end) {
                    assert!(part.start == next && part.len() == of.count && of.rows() == part.len() * all.rows() / count);
                    let begin = all.samples(part.clone()).start;
                    for i in 0..of.count {
                        let Range { start, end } = of.samples(i..i + 1);
                        assert_eq!(begin + start..begin + end, whole(part.start + i), "{n} samples, {first}..{end}");
                    }
                    next = part.end;
                }
                assert_eq!(next, end);
            }
            assert_eq!(all.parts(count / 2..count / 2).count(), 0);
        }
        // Slices pass together if their sizes are those of one minibatch: 64, 65 and 64 samples are not 64, 64 and 65.
        assert_eq!(MinibatchSlices::new(512, 8, 1, usize::MAX).parts(3..6).count(), 1);
        assert_eq!(MinibatchSlices::new(195, 2, 1, usize::MAX).parts(0..2).count(), 1);
        assert_eq!(MinibatchSlices::new(515, 8, 1, usize::MAX).parts(1..4).count(), 3);
    }
}
