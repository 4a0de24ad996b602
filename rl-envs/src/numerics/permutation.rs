//! Keyed permutations: an order of samples, any index on its own.
//!
//! An order is a pure function of a key and a counter, as random numbers are ([`rng`](crate::numerics::rng)): no state, no memory
//! of indices drawn before, so threads, devices and processes compute the parts that they need.
//!
//! More than 64 numbers are a rectangle of about as many rows as columns, number `i` in row `i / columns`. Four times, each
//! number moves along its column by a random distance that depends on the column, and along its row by one that depends on the
//! row, with wrap-around: a Feistel network over any domain, with random functions as its rounds (Black and Rogaway, "Ciphers
//! with Arbitrary Finite Domains", 2002; on GPUs: Mitchell et al., "Bandwidth-Optimal Random Shuffling for GPUs", 2022). The
//! rectangle has a few cells too many: a number that lands on one moves again (cycle walking).
//!
//! A Feistel network over few numbers misses some of their orders. Up to 64 numbers are therefore sorted by a random word each.
//!
//! The words are Philox blocks of the index `(column or row)`, the counter's step and purpose:
//!
//! | block | words |
//! |---|---|
//! | 0 | the distances in column `index`, one for each of the four rounds |
//! | 1 | the distances in row `index`, likewise |
//! | 2 | word 0: the word that number `index` is sorted by |

use crate::batch::pool::Pool;
use crate::numerics::rng::{self, Purpose};

/// Largest number of numbers that are sorted.
const SORTED: u32 = 64;
/// Maximum number of parts of an order, for as many threads.
const PARTS: usize = 16;
/// Minimum numbers of a part.
const MIN_PART: usize = 1024;

/// A permutation of the numbers below `n`.
///
/// The default is the permutation of no numbers.
///
/// ```
/// use rl_envs::{Permutation, Purpose};
///
/// let mut permutation = Permutation::default();
/// permutation.set(1000, 7, 0, Purpose::Shuffle);
/// let mut order: Vec<u32> = (0..1000).map(|i| permutation.at(i)).collect();
/// order.sort_unstable();
/// assert!(order.into_iter().eq(0..1000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Permutation {
    n: u32,
    rows: u32,
    columns: u32,
    /// Distances in each column, filled up with zeros to a power of two.
    in_columns: Vec<[u32; 4]>,
    /// Distances in each row, filled up likewise.
    in_rows: Vec<[u32; 4]>,
    /// Words to sort by, if there are few numbers.
    words: Vec<u32>,
}

/// Returns the distances at `index` of a table.
///
/// Its length is a power of two, so that the compiler needs no bounds check.
#[inline(always)]
fn distances(table: &[[u32; 4]], index: u32) -> &[u32; 4] {
    &table[index as usize & (table.len() - 1)]
}

/// Returns the remainder of a number below `2 n`.
#[inline(always)]
fn wrapped(x: u32, n: u32) -> u32 {
    x.min(x.wrapping_sub(n))
}

impl Permutation {
    /// Becomes the permutation of `n` numbers for a key and a counter.
    ///
    /// Allocates nothing if the last one had as many numbers.
    pub fn set(&mut self, n: u32, seed: u64, step: u64, purpose: Purpose) {
        self.n = n;
        self.words.clear();
        if n <= SORTED {
            self.words.extend((0..n).map(|i| rng::block(seed, i, step, purpose, 2)[0]));
            return;
        }
        self.columns = (n - 1).isqrt() + 1;
        self.rows = n.div_ceil(self.columns);
        for (table, block, n, below) in
            [(&mut self.in_columns, 0, self.columns, self.rows), (&mut self.in_rows, 1, self.rows, self.columns)]
        {
            table.clear();
            table.extend((0..n).map(|i| rng::block(seed, i, step, purpose, block).map(|word| rng::below(word, below))));
            table.resize(table.len().next_power_of_two(), [0; 4]);
        }
    }

    /// Returns the number at index `i`.
    ///
    /// # Panics
    /// If `i` is not below `n`.
    #[inline]
    #[must_use]
    pub fn at(&self, i: u32) -> u32 {
        assert!(i < self.n, "index {i} of {}", self.n);
        if self.n <= SORTED { self.rank(i) } else { self.walk([i])[0] }
    }

    /// Returns how many numbers are sorted before number `i`.
    fn rank(&self, i: u32) -> u32 {
        let word = self.words[i as usize];
        (0..self.n).zip(&self.words).map(|(j, &other)| u32::from((other, j) < (word, i))).sum()
    }

    /// Moves numbers side by side until they land on numbers below `n`.
    #[inline(always)]
    fn walk<const L: usize>(&self, numbers: [u32; L]) -> [u32; L] {
        let mut moved = self.moved(numbers);
        for number in &mut moved {
            while *number >= self.n {
                [*number] = self.moved([*number]);
            }
        }
        moved
    }

    /// Moves numbers of the rectangle once.
    #[inline(always)]
    fn moved<const L: usize>(&self, mut numbers: [u32; L]) -> [u32; L] {
        if self.in_columns.is_empty() || self.in_rows.is_empty() {
            return numbers;
        }
        let mut rows = numbers.map(|number| number / self.columns);
        let mut columns = numbers.map(|number| number % self.columns);
        for round in 0..4 {
            for (row, &column) in rows.iter_mut().zip(&columns) {
                *row = wrapped(*row + distances(&self.in_columns, column)[round], self.rows);
            }
            for (column, &row) in columns.iter_mut().zip(&rows) {
                *column = wrapped(*column + distances(&self.in_rows, row)[round], self.columns);
            }
        }
        for ((number, row), column) in numbers.iter_mut().zip(rows).zip(columns) {
            *number = row * self.columns + column;
        }
        numbers
    }

    /// Writes the whole order.
    ///
    /// # Panics
    /// If `order` has another length than `n`.
    pub fn write(&self, order: &mut [u32], pool: &Pool) {
        assert_eq!(order.len(), self.n as usize, "an index for each number");
        if self.n <= SORTED {
            order.iter_mut().zip(0..).for_each(|(to, i)| *to = self.rank(i));
            return;
        }
        let len = order.len().div_ceil(PARTS).max(MIN_PART);
        let mut parts = (0u32..).step_by(len).zip(order.chunks_mut(len));
        let mut parts: [_; PARTS] = std::array::from_fn(|_| parts.next());
        pool.each(&mut parts, &|part| {
            let Some((first, part)) = part else { return };
            part.iter_mut().zip(*first..).for_each(|(to, i)| *to = i);
            let (lanes, rest) = part.as_chunks_mut::<16>();
            lanes.iter_mut().for_each(|numbers| *numbers = self.walk(*numbers));
            rest.iter_mut().for_each(|number| *number = self.walk([*number])[0]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, without tables.
    fn slow(i: u32, n: u32, seed: u64, step: u64) -> u32 {
        let words = |index, block| rng::block(seed, index, step, Purpose::Shuffle, block);
        if n <= SORTED {
            let mut sorted: Vec<u32> = (0..n).collect();
            sorted.sort_by_key(|&j| words(j, 2)[0]); // stable
            return sorted.iter().position(|&j| j == i).unwrap() as u32;
        }
        let columns = f64::from(n).sqrt().ceil() as u32;
        let rows = n.div_ceil(columns);
        let mut number = i;
        loop {
            let (mut row, mut column) = (number / columns, number % columns);
            for round in 0..4 {
                row = (row + rng::below(words(column, 0)[round], rows)) % rows;
                column = (column + rng::below(words(row, 1)[round], columns)) % columns;
            }
            number = row * columns + column;
            if number < n {
                return number;
            }
        }
    }

    fn of(n: u32, seed: u64, step: u64) -> Permutation {
        let mut permutation = Permutation::default();
        permutation.set(n, seed, step, Purpose::Shuffle);
        permutation
    }

    /// The index of a number: all moves backwards.
    fn index_of(permutation: &Permutation, mut number: u32) -> u32 {
        let Permutation { n, rows, columns, .. } = *permutation;
        loop {
            let (mut row, mut column) = (number / columns, number % columns);
            for round in (0..4).rev() {
                column = (column + columns - permutation.in_rows[row as usize][round]) % columns;
                row = (row + rows - permutation.in_columns[column as usize][round]) % rows;
            }
            number = row * columns + column;
            if number < n {
                return number;
            }
        }
    }

    #[test]
    fn it_equals_its_definition_for_any_number_of_threads() {
        let pools = [1, 2, 3, 8].map(|threads| Pool::new(threads).unwrap());
        for n in [1, 2, 31, 33, 64, 65, 66, 1000, 8191, 8192, 8193, 20_000] {
            let (seed, step) = (0x0123_4567_89ab_cdef + u64::from(n), 1 << 33 | u64::from(n));
            let permutation = of(n, seed, step);
            for pool in &pools {
                let mut order = vec![u32::MAX; n as usize];
                permutation.write(&mut order, pool);
                assert!((0..n).all(|i| order[i as usize] == permutation.at(i)), "{n} numbers");
            }
            for i in (0..n).step_by(1 + n as usize / 500) {
                assert_eq!(permutation.at(i), slow(i, n, seed, step), "number {i} of {n}");
            }
        }
        of(0, 1, 1).write(&mut [], &pools[0]);
    }

    #[test]
    fn every_number_up_to_4096_appears_once() {
        let (mut permutation, mut seen) = (Permutation::default(), vec![0; 4096]);
        for n in 1..=4096 {
            permutation.set(n, 5, u64::from(n), Purpose::Shuffle);
            for i in 0..n {
                let number = permutation.at(i);
                assert!(number < n && seen[number as usize] != n, "{number} appears twice among {n}");
                seen[number as usize] = n;
            }
        }
    }

    #[test]
    fn every_number_has_one_index_among_up_to_2_to_the_31() {
        let mut rng = rng::Rng::new(9, 0, 0, Purpose::Init);
        let random: Vec<u32> = (0..30).map(|bits| (rng.next_u32() >> 1) >> (bits / 2)).collect();
        for n in random.into_iter().chain([1 << 31, (1 << 31) - 1, 46_341 * 46_341, 1 << 16, (1 << 16) + 1, u32::MAX]) {
            let permutation = of(n, 5, u64::from(n));
            for j in 0..2000 {
                let i = if j < 1000 { j } else { rng.below(n) };
                let number = permutation.at(i);
                assert!(number < n && index_of(&permutation, number) == i, "index {i} of {n}");
            }
        }
    }

    /// Asserts that counts with equal expectation do not differ more than by chance.
    ///
    /// The normal approximation by Wilson and Hilferty is below 4 with a probability of 0.99997.
    fn assert_uniform(counts: &[u32], freedom: usize, what: &str) {
        let n: u32 = counts.iter().sum();
        let expected = f64::from(n) / counts.len() as f64;
        assert!(expected >= 5.0, "{what}: too few draws");
        let chi: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let (k, v) = (freedom as f64, 2.0 / (9.0 * freedom as f64));
        let z = ((chi / k).cbrt() - (1.0 - v)) / v.sqrt();
        assert!(z.abs() < 4.0, "{what}: chi-square {chi} with {freedom} degrees of freedom, z = {z}");
    }

    #[test]
    fn every_place_is_as_likely() {
        for n in (2..=34).chain([63, 64, 65, 66, 67, 72, 73, 81, 100]) {
            let cells = (n * n) as usize;
            let (mut counts, mut permutation) = (vec![0; cells], Permutation::default());
            for step in 0..u64::from(n * 20).max(2000) {
                permutation.set(n, 3, step, Purpose::Shuffle);
                (0..n).for_each(|i| counts[(i * n + permutation.at(i)) as usize] += 1);
            }
            assert_uniform(&counts, (n as usize - 1).pow(2), &format!("{n} numbers"));
        }
    }

    /// Counts the pairs of numbers at two indices, different ones, and asserts that they are as likely.
    fn check_pairs(n: u32, draws: u64, numbers: impl Fn(u64) -> [u32; 2]) {
        let mut counts = vec![0; (n * (n - 1)) as usize];
        for step in 0..draws {
            let [a, b] = numbers(step);
            counts[(a * (n - 1) + b - u32::from(b > a)) as usize] += 1;
        }
        assert_uniform(&counts, counts.len() - 1, &format!("pairs of {n} numbers"));
    }

    #[test]
    fn every_pair_of_numbers_is_as_likely_at_any_two_indices() {
        for n in (2u32..=33).chain([64, 65, 66, 67, 72, 73, 100]) {
            let columns = n.isqrt() + 1;
            // Neighbours in a row and in a column of the rectangle, the two ends, and any two.
            for (i, j) in [(0, 1), (0, columns.min(n - 1)), (0, n - 1), (n / 3, n - 1 - n / 3)] {
                if i != j {
                    let draws = u64::from(n * n * 10).max(2000);
                    check_pairs(n, draws, |step| {
                        let permutation = of(n, u64::from(n * 1000 + i * 10 + j), step);
                        [permutation.at(i), permutation.at(j)]
                    });
                }
            }
        }
    }

    #[test]
    fn every_order_of_up_to_six_numbers_is_as_likely() {
        for n in 2..=6 {
            let factorial: usize = (2..=n as usize).product();
            let mut counts = vec![0; factorial];
            for step in 0..20 * factorial as u64 + 2000 {
                let permutation = of(n, 17, step);
                let order: Vec<u32> = (0..n).map(|i| permutation.at(i)).collect();
                // The order's number in the factorial system.
                let smaller = |i: usize| order[i + 1..].iter().filter(|&&x| x < order[i]).count();
                counts[(0..n as usize).fold(0, |sum, i| sum * (n as usize - i) + smaller(i))] += 1;
            }
            assert_uniform(&counts, factorial - 1, &format!("orders of {n} numbers"));
        }
    }

    #[test]
    fn orders_of_neighbouring_steps_and_seeds_have_nothing_in_common() {
        for (n, of_other) in [(20, 1), (67, 1), (67, 0)] {
            let mut counts = vec![0; (n * n) as usize];
            for step in 0..u64::from(20 * n) {
                let (a, b) = (of(n, 21, 2 * step), if of_other == 1 { of(n, 21, 2 * step + 1) } else { of(n, 22, 2 * step) });
                (0..n).for_each(|i| counts[(a.at(i) * n + b.at(i)) as usize] += 1);
            }
            assert_uniform(&counts, (n as usize - 1).pow(2), &format!("two orders of {n} numbers"));
        }
    }
}
