//! Shards of a replay memory, one for each rank.

use std::ops::Range;

/// One of the shards of a replay memory.
///
/// The default is the only shard: the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard.
    index: usize,
    /// Number of shards.
    n_shards: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 0, n_shards: 1 }
    }
}

impl Shard {
    /// Returns shard `index` of `n_shards`.
    ///
    /// # Panics
    /// Unless `index` is below `n_shards`.
    #[must_use]
    pub fn new(index: usize, n_shards: usize) -> Self {
        assert!(index < n_shards, "shard {index} of {n_shards}");
        Self { index, n_shards }
    }

    /// True if there are no other shards.
    pub(crate) fn is_whole(self) -> bool {
        self.n_shards == 1
    }

    /// Number of shards.
    pub(crate) fn n_shards(self) -> usize {
        self.n_shards
    }

    /// Returns which of `n` items this shard has.
    pub(crate) fn of(self, n: usize) -> Range<usize> {
        self.index * n / self.n_shards..(self.index + 1) * n / self.n_shards
    }

    /// Returns the index of the shard that has item `i` of `n`.
    pub(crate) fn owner(self, i: usize, n: usize) -> usize {
        ((i + 1) * self.n_shards - 1) / n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_items_and_know_their_owners() {
        for n in [1, 2, 7, 16, 1000] {
            for n_shards in 1..18 {
                let mut next = 0;
                for shard in (0..n_shards).map(|index| Shard::new(index, n_shards)) {
                    for item in shard.of(n) {
                        assert_eq!((item, shard.owner(item, n)), (next, shard.index), "{n} items, {n_shards} shards");
                        next += 1;
                    }
                }
                assert_eq!(next, n);
            }
        }
    }
}
