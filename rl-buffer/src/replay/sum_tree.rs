//! Sums over priorities, to draw in proportion to them.
//!
//! Schaul et al., "Prioritized Experience Replay", 2016, appendix B.2.1.
//!
//! A node has 16 children: 16 priorities as f32, one cache line, or 16 sums as f64, two lines. A million priorities make five
//! levels instead of the twenty of a binary tree, and 4.6 MB. A sum is always recomputed from the node's children, in order, and
//! never adjusted by a difference, so errors do not accumulate. Several draws descend together, level by level: none waits for
//! another one's memory.

use std::hint::black_box;

use crate::Error;
use crate::memory::filled;

/// Number of children of a node.
const WIDE: usize = 16;

/// 16 priorities, one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Leaves([f32; WIDE]);

/// Sums of 16 nodes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Sums([f64; WIDE]);

/// Priorities, finite and not negative, with their sums.
#[derive(Clone, Debug)]
pub struct SumTree {
    len: usize,
    leaves: Vec<Leaves>,
    /// Levels from the one above the leaves to the root, which is a single node.
    levels: Vec<Vec<Sums>>,
    /// Nodes to recompute, kept for its memory.
    changed: Vec<u32>,
}

/// Returns the child whose share contains `target`, and the sum of those before it.
///
/// However `target` was rounded, the child is above zero if any is.
#[inline(always)]
fn pick(children: [f64; WIDE], target: f64) -> (u32, f64) {
    let mut sums = [0.0; WIDE + 1];
    for (j, child) in children.iter().enumerate() {
        sums[j + 1] = sums[j] + child;
    }
    // Counting needs no unpredictable branch.
    let below: u32 = sums[1..].iter().map(|&sum| u32::from(sum <= target)).sum();
    let picked = match below as usize {
        WIDE => children.iter().rposition(|&child| child > 0.0).unwrap_or(0),
        below => below,
    };
    (picked as u32, sums[picked])
}

impl SumTree {
    /// Creates `len` priorities, all 0.
    ///
    /// # Errors
    /// [`Error::Empty`] if `len` is 0, [`Error::Capacity`] if it exceeds 2^32 - 1, [`Error::OutOfMemory`] if it does not fit.
    pub fn new(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Err(Error::Empty("priority"));
        }
        if len > u32::MAX as usize {
            return Err(Error::Capacity { capacity: len, max: u32::MAX as usize });
        }
        crate::memory::check(len, Self::BYTES_EACH, Self::BYTES_FIXED)?;
        let leaves = filled(len.div_ceil(WIDE), Leaves::default())?;
        let mut levels = Vec::new();
        let mut nodes = leaves.len();
        while nodes > 1 || levels.is_empty() {
            nodes = nodes.div_ceil(WIDE);
            levels.push(filled(nodes, Sums::default())?);
        }
        Ok(Self { len, leaves, levels, changed: Vec::new() })
    }

    /// Maximum bytes per priority: 4, plus its share of sums and of nodes to recompute.
    pub(crate) const BYTES_EACH: u128 = 5;
    /// Bytes of the unused part of the last node, for at most nine levels.
    pub(crate) const BYTES_FIXED: u128 = 9 * 128;

    /// Number of priorities.
    #[expect(clippy::len_without_is_empty, reason = "a tree is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Sum of all priorities.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.levels.last().map_or(0.0, |root| root[0].0.iter().fold(0.0, |sum, child| sum + child))
    }

    /// Returns the priority at `index`.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> f32 {
        assert!(index < self.len, "priority {index} of {}", self.len);
        self.leaves[index / WIDE].0[index % WIDE]
    }

    /// Returns an iterator over all priorities.
    pub(crate) fn iter(&self) -> impl Iterator<Item = f32> {
        self.leaves.iter().flat_map(|leaves| leaves.0).take(self.len)
    }

    /// Sets priorities in order: of several for one index, the last one counts.
    ///
    /// # Errors
    /// [`Error::Priority`] if one is negative, infinite or NaN, [`Error::Index`] if an index is out of range; nothing has changed
    /// then.
    ///
    /// # Panics
    /// If the numbers of indices and priorities differ.
    pub fn set(&mut self, indices: &[u32], priorities: &[f32]) -> Result<(), Error> {
        assert_eq!(indices.len(), priorities.len(), "a priority for each index");
        for (&index, &priority) in indices.iter().zip(priorities) {
            if index as usize >= self.len {
                return Err(Error::Index { index: u64::from(index), len: self.len });
            }
            check_priority(index, priority)?;
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        for (&index, &priority) in indices.iter().zip(priorities) {
            self.leaves[index as usize / WIDE].0[index as usize % WIDE] = priority;
            changed.push(index / WIDE as u32);
        }
        changed.sort_unstable();
        for level in 0..self.levels.len() {
            changed.dedup();
            for node in &mut changed {
                self.sum(level, *node as usize);
                *node /= WIDE as u32;
            }
        }
        self.changed = changed;
        Ok(())
    }

    /// Sets a range of priorities to one that is finite and not negative.
    pub(crate) fn fill(&mut self, range: std::ops::Range<usize>, priority: f32) {
        if range.is_empty() {
            return;
        }
        assert!(range.end <= self.len && (0.0..f32::INFINITY).contains(&priority), "priorities {range:?} are {priority}");
        let (mut first, mut last) = (range.start / WIDE, (range.end - 1) / WIDE);
        for node in first..=last {
            let at = node * WIDE;
            self.leaves[node].0[range.start.max(at) - at..range.end.min(at + WIDE) - at].fill(priority);
        }
        for level in 0..self.levels.len() {
            (first..=last).for_each(|node| self.sum(level, node));
            (first, last) = (first / WIDE, last / WIDE);
        }
    }

    /// Recomputes the sum in `level` of the node below it.
    #[inline(always)]
    fn sum(&mut self, level: usize, node: usize) {
        let sum = match level {
            0 => self.leaves[node].0.iter().fold(0.0, |sum, &child| sum + f64::from(child)),
            _ => self.levels[level - 1][node].0.iter().fold(0.0, |sum, &child| sum + child),
        };
        self.levels[level][node / WIDE].0[node % WIDE] = sum;
    }

    /// Finds, for each target from 0 to the total, the index whose share contains it.
    ///
    /// Targets beyond the total give the last index with a priority. The priorities are not 0 unless all are.
    ///
    /// # Panics
    /// If the numbers of targets and indices differ.
    pub fn find(&self, targets: &mut [f64], indices: &mut [u32]) {
        assert_eq!(targets.len(), indices.len(), "an index for each target");
        indices.fill(0);
        for level in self.levels.iter().rev() {
            // Fetches all lines before the first one is needed.
            black_box(indices.iter().fold(0, |bits, &index| {
                let sums = &level[index as usize].0;
                bits ^ sums[0].to_bits() ^ sums[WIDE / 2].to_bits()
            }));
            for (target, index) in targets.iter_mut().zip(&mut *indices) {
                let (picked, base) = pick(level[*index as usize].0, *target);
                *target -= base;
                *index = *index * WIDE as u32 + picked;
            }
        }
        black_box(indices.iter().fold(0, |bits, &index| bits ^ self.leaves[index as usize].0[0].to_bits()));
        for (target, index) in targets.iter().zip(indices) {
            let (picked, _) = pick(self.leaves[*index as usize].0.map(f64::from), *target);
            *index = *index * WIDE as u32 + picked;
        }
    }
}

pub(crate) fn check_priority(index: u32, priority: f32) -> Result<(), Error> {
    if (0.0..f32::INFINITY).contains(&priority) { Ok(()) } else { Err(Error::Priority { index, priority }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use proptest::prelude::*;

    /// Finds an index by adding up.
    fn slow_find(priorities: &[f32], target: f64) -> usize {
        let mut sum = 0.0;
        for (i, &priority) in priorities.iter().enumerate() {
            sum += f64::from(priority);
            if target < sum {
                return i;
            }
        }
        priorities.iter().rposition(|&p| p > 0.0).unwrap_or(0)
    }

    #[test]
    fn sums_do_not_drift_in_ten_million_updates() {
        let len = 5000;
        let mut tree = SumTree::new(len).expect("fits");
        let mut rng = random(3);
        let (mut indices, mut priorities) = (vec![0; 2500], vec![0.0; 2500]);
        for _ in 0..4000 {
            indices.fill_with(|| rng.next_u32() % len as u32);
            priorities.fill_with(|| (f64::from(rng.uniform()) * 20.0 - 10.0).exp() as f32);
            tree.set(&indices, &priorities).expect("fine");
        }
        let exact: f64 = tree.iter().map(f64::from).sum();
        assert!((tree.total() / exact - 1.0).abs() < 1e-12);
        // Large priorities leave no residue either.
        tree.fill(0..len, 1e38);
        tree.fill(0..len, 0.0);
        assert_eq!(tree.total(), 0.0);
    }

    #[test]
    fn any_target_is_found_at_a_place_that_has_a_priority() {
        for len in [1, 15, 16, 17, 31, 33, 65, 256, 257, 5000] {
            let mut tree = SumTree::new(len).expect("fits");
            for only in [0, len / 2, len - 1] {
                tree.fill(0..len, 0.0);
                for priority in [1e-45, 0.3, 1e38] {
                    tree.set(&[only as u32], &[priority]).expect("fine");
                    let total = tree.total();
                    assert_eq!(total, f64::from(priority));
                    let mut targets = [0.0, total / 2.0, total.next_down(), total, total * 2.0, f64::INFINITY];
                    let mut indices = [9; 6];
                    tree.find(&mut targets, &mut indices);
                    assert_eq!(indices, [only as u32; 6]);
                }
            }
            tree.fill(0..len, 0.1);
            let mut targets = [tree.total().next_down(), tree.total(), f64::MAX];
            let mut indices = [0; 3];
            tree.find(&mut targets, &mut indices);
            assert_eq!(indices, [len as u32 - 1; 3]);
        }
    }

    #[test]
    fn bad_priorities_are_refused_and_change_nothing() {
        let mut tree = SumTree::new(33).expect("fits");
        tree.fill(0..33, 1.0);
        for bad in [f32::NAN, f32::INFINITY, -1.0, -1e-45] {
            assert!(matches!(tree.set(&[3, 4], &[5.0, bad]), Err(Error::Priority { index: 4, .. })));
        }
        assert!(matches!(tree.set(&[3, 33], &[5.0, 5.0]), Err(Error::Index { index: 33, len: 33 })));
        assert_eq!(tree.total(), 33.0);
        assert_eq!(tree.get(3), 1.0);
        tree.set(&[4, 4, 4], &[9.0, 0.0, 3.0]).expect("fine");
        assert_eq!((tree.get(4), tree.total()), (3.0, 35.0));
    }

    #[test]
    fn a_tree_takes_no_more_than_is_counted() {
        for len in [1, 33, 4097, 100_000] {
            let mut tree = SumTree::new(len).expect("fits");
            tree.fill(0..len, 1.0);
            let bytes = size_of_val(&tree.leaves[..]) + tree.levels.iter().map(|level| size_of_val(&level[..])).sum::<usize>();
            assert!(bytes as u128 <= len as u128 * SumTree::BYTES_EACH + SumTree::BYTES_FIXED, "{bytes} for {len}");
        }
        assert!(matches!(SumTree::new(0), Err(Error::Empty(_))));
        assert!(SumTree::new(1 << 40).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_tree_finds_what_adding_up_finds(
            seed in any::<u64>(), len in prop::sample::select(vec![1usize, 31, 33, 65, 300, 5000]),
        ) {
            let mut rng = random(seed);
            let mut tree = SumTree::new(len).expect("fits");
            let mut priorities = vec![0f32; len];
            for _ in 0..5 {
                // Integers, so that sums are exact in any order.
                let start = rng.next_u32() as usize % len;
                let end = start + rng.next_u32() as usize % (len - start + 1);
                let all = (rng.next_u32() % 4) as f32;
                priorities[start..end].fill(all);
                tree.fill(start..end, all);
                let indices: Vec<u32> = (0..50).map(|_| rng.next_u32() % len as u32).collect();
                let new: Vec<f32> = (0..50).map(|_| (rng.next_u32() % 5) as f32).collect();
                indices.iter().zip(&new).for_each(|(&index, &priority)| priorities[index as usize] = priority);
                tree.set(&indices, &new).expect("fine");
                prop_assert_eq!(tree.iter().collect::<Vec<_>>(), priorities.clone());
                let total: f64 = priorities.iter().map(|&p| f64::from(p)).sum();
                prop_assert_eq!(tree.total(), total);
                let mut targets: Vec<f64> = (0..50).map(|_| f64::from(rng.uniform()) * total).collect();
                let expected: Vec<u32> = targets.iter().map(|&target| slow_find(&priorities, target) as u32).collect();
                let mut found = vec![0; 50];
                tree.find(&mut targets, &mut found);
                if total > 0.0 {
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
