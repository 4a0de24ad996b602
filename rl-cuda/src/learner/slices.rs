//! Slices of a minibatch, and the rows of its partial gradients.

use crate::args::long;

/// Samples of a tile: the part of a gradient that is summed from zero.
pub const TILE: usize = 96;
/// Largest number of slices of a minibatch.
const MAX_SLICES: usize = 16;

/// Slices of a minibatch, and the rows of its partial gradients.
#[derive(Clone, Copy, Debug)]
pub struct MinibatchSlices {
    pub(super) n: usize,
    pub(super) count: usize,
    /// Rows of partial gradients of a slice.
    groups: usize,
    tiles_of_group: usize,
}

impl MinibatchSlices {
    /// Cuts `n` samples into `count` slices.
    ///
    /// Slice i holds samples `i n / count` to `(i + 1) n / count`. Each tile has a partial gradient of its own if all of them
    /// together have at most `max_numbers` numbers, `len` each; otherwise each slice has one.
    ///
    /// # Panics
    /// If `count` is not a power of two up to 16.
    #[must_use]
    pub fn new(n: usize, count: usize, len: usize, max_numbers: usize) -> Self {
        assert!(count.is_power_of_two() && count <= MAX_SLICES, "{count} slices");
        let tiles = n.div_ceil(count).div_ceil(TILE).max(1);
        let each = count.saturating_mul(tiles).saturating_mul(len) <= max_numbers;
        let (groups, tiles_of_group) = if each { (tiles, 1) } else { (1, tiles) };
        Self { n, count, groups, tiles_of_group }
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

    /// Returns the kernels' `Minibatch`.
    pub(super) fn minibatch(&self) -> [u32; 3] {
        [self.n as u32, self.count as u32, (self.tiles() / self.count) as u32]
    }

    /// Returns the kernels' `Slices`, with partial gradients `stride` numbers apart.
    pub(super) fn words(&self, stride: usize) -> [u32; 6] {
        let [low, high] = long(stride as u64);
        [low, high, self.n as u32, self.count as u32, self.groups as u32, self.tiles_of_group as u32]
    }
}
