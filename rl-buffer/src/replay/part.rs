//! A part of a replay memory that several processes share.

use std::ops::Range;

/// One of several parts of a replay memory.
///
/// The default is the only part: the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the part.
    index: usize,
    /// Number of parts.
    n_parts: usize,
}

impl Default for Part {
    fn default() -> Self {
        Self { index: 0, n_parts: 1 }
    }
}

impl Part {
    /// Returns part `index` of `n_parts`.
    ///
    /// # Panics
    /// Unless `index` is below `n_parts`.
    #[must_use]
    pub fn new(index: usize, n_parts: usize) -> Self {
        assert!(index < n_parts, "part {index} of {n_parts}");
        Self { index, n_parts }
    }

    /// True if there are no other parts.
    pub(crate) fn is_whole(self) -> bool {
        self.n_parts == 1
    }

    /// Number of parts.
    pub(crate) fn n_parts(self) -> usize {
        self.n_parts
    }

    /// Returns which of `n` items this part has.
    pub(crate) fn of(self, n: usize) -> Range<usize> {
        self.index * n / self.n_parts..(self.index + 1) * n / self.n_parts
    }

    /// Returns the index of the part that has item `i` of `n`.
    pub(crate) fn owner(self, i: usize, n: usize) -> usize {
        ((i + 1) * self.n_parts - 1) / n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_items_and_know_their_owners() {
        for n in [1, 2, 7, 16, 1000] {
            for n_parts in 1..18 {
                let mut next = 0;
                for part in (0..n_parts).map(|index| Part::new(index, n_parts)) {
                    for item in part.of(n) {
                        assert_eq!((item, part.owner(item, n)), (next, part.index), "{n} items, {n_parts} parts");
                        next += 1;
                    }
                }
                assert_eq!(next, n);
            }
        }
    }
}
