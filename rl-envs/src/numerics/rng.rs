//! Counter-based random numbers: Philox4x32-10.
//!
//! Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
//!
//! A random number is a pure function of a key and a counter, so it does not matter where, when, or on which thread it is drawn.
//! The key is the 64-bit seed. The counter is
//!
//! | word | holds |
//! |---|---|
//! | 0 | index of the environment (or of another owner of a stream) |
//! | 1, 2 | lifetime step of that environment, low word first |
//! | 3 | purpose `<< 24` \| block |
//!
//! where a block is four words of output. A step that needs a single word shares a block with three others: see [`word`].

use crate::numerics::math;

/// Purpose of random numbers: no two purposes share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Start of an episode.
    Reset = 0,
    /// Randomness in the dynamics.
    Step = 1,
    /// Actions drawn uniformly, without a policy.
    RandomAction = 2,
    /// Actions drawn from a policy.
    Policy = 3,
    /// Initial parameters of a network.
    Init = 4,
    /// Order of samples in an update.
    Shuffle = 5,
    /// Choice of replayed transitions.
    Replay = 6,
    /// Delay before a call is retried.
    Retry = 7,
    /// Start of an episode after one that gave a non-finite number.
    Restart = 8,
    /// Seed of a process that collects for another one.
    Actor = 9,
}

/// Computes ten rounds of Philox4x32.
#[inline(always)]
#[must_use]
pub(crate) fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
    }
    counter
}

/// Returns one block: four words.
#[inline(always)]
#[must_use]
pub fn block(seed: u64, index: u32, step: u64, purpose: Purpose, block: u32) -> [u32; 4] {
    let counter = [index, step as u32, (step >> 32) as u32, (purpose as u32) << 24 | block];
    philox4x32(counter, [seed as u32, (seed >> 32) as u32])
}

/// Returns the single random word of a step.
///
/// It is word `step & 3` of the block of counter step `step >> 2`.
#[inline(always)]
#[must_use]
pub fn word(seed: u64, index: u32, step: u64, purpose: Purpose) -> u32 {
    block(seed, index, step >> 2, purpose, 0)[(step & 3) as usize]
}

/// Converts a word to a uniform number in [0, 1): its upper 24 bits.
#[inline(always)]
#[must_use]
pub fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Returns the number at the fraction `u` of the way from `low` to `high`.
///
/// The bounds are finite, their difference may not be.
#[inline(always)]
pub(crate) fn between(low: f32, high: f32, u: f32) -> f32 {
    let range = high - low;
    if range.is_finite() { low + range * u } else { low * (1.0 - u) + high * u }
}

/// Converts a block to four standard normal numbers (Box and Muller, 1958).
///
/// Words 0 and 1 make the first two, words 2 and 3 the others; each pair is the sine and the cosine half of one radius.
#[inline(always)]
#[must_use]
pub fn normals(block: [u32; 4]) -> [f32; 4] {
    let pair = |radius: u32, angle: u32| {
        let radius = (-2.0 * math::ln(1.0 - uniform(radius))).sqrt();
        let (sin, cos) = math::sin_cos(std::f32::consts::TAU * uniform(angle));
        (radius * sin, radius * cos)
    };
    let ((a, b), (c, d)) = (pair(block[0], block[1]), pair(block[2], block[3]));
    [a, b, c, d]
}

/// Converts a word to a uniform integer in 0..n by multiplication.
///
/// Some values are favoured by at most n / 2^32.
#[inline(always)]
#[must_use]
pub fn below(word: u32, n: u32) -> u32 {
    ((u64::from(word) * u64::from(n)) >> 32) as u32
}

/// Stream of random numbers of one environment, one step and one purpose.
///
/// It costs nothing until it is used.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    index: u32,
    step: u64,
    purpose: Purpose,
    next_block: u32,
    words: [u32; 4],
    left: usize,
}

impl Rng {
    /// Creates the stream at its beginning.
    #[inline]
    #[must_use]
    pub fn new(seed: u64, index: u32, step: u64, purpose: Purpose) -> Self {
        Self { seed, index, step, purpose, next_block: 0, words: [0; 4], left: 0 }
    }

    /// Returns 32 random bits; the stream repeats after 2^26 words.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.left == 0 {
            self.words = block(self.seed, self.index, self.step, self.purpose, self.next_block);
            self.next_block = (self.next_block + 1) & 0x00FF_FFFF;
            self.left = 4;
        }
        let word = self.words[4 - self.left];
        self.left -= 1;
        word
    }

    /// Fills `words` with the next words of the stream.
    pub fn fill(&mut self, words: &mut [u32]) {
        let left = self.left.min(words.len());
        let (first, words) = words.split_at_mut(left);
        first.fill_with(|| self.next_u32());
        let (blocks, last) = words.as_chunks_mut();
        for (words, i) in blocks.iter_mut().zip(self.next_block..) {
            *words = block(self.seed, self.index, self.step, self.purpose, i & 0x00FF_FFFF);
        }
        self.next_block = (self.next_block + blocks.len() as u32) & 0x00FF_FFFF;
        last.fill_with(|| self.next_u32());
    }

    /// Returns a uniform number in [0, 1), a multiple of 2^-24.
    #[inline]
    pub fn uniform(&mut self) -> f32 {
        uniform(self.next_u32())
    }

    /// Returns a uniform number in [low, high) (rounding may give `high`).
    #[inline]
    pub fn uniform_in(&mut self, low: f32, high: f32) -> f32 {
        between(low, high, self.uniform())
    }

    /// Returns a uniform integer in 0..n; see [`below`].
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        below(self.next_u32(), n)
    }

    /// Returns a standard normal number (Box and Muller, 1958).
    ///
    /// The sine half of the pair is discarded.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * math::ln(1.0 - self.uniform())).sqrt();
        radius * math::sin_cos(std::f32::consts::TAU * self.uniform()).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers_of_random123() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_counter_is_laid_out_as_documented() {
        let (seed, index, step) = (0x0123_4567_89ab_cdef, 5, 0x0000_0007_0000_0009);
        let expected = philox4x32([5, 9, 7, 3 << 24 | 2], [0x89ab_cdef, 0x0123_4567]);
        assert_eq!(block(seed, index, step, Purpose::Policy, 2), expected);
        let mut rng = Rng::new(seed, index, step, Purpose::Policy);
        let words: Vec<u32> = (0..12).map(|_| rng.next_u32()).collect();
        assert_eq!(words[8..], expected);
        assert_eq!(word(seed, index, 11, Purpose::Policy), block(seed, index, 2, Purpose::Policy, 0)[3]);
    }

    #[test]
    fn filling_takes_the_words_one_by_one() {
        for (before, n) in [(0, 0), (0, 3), (0, 33), (1, 2), (1, 31), (3, 65)] {
            let [mut one, mut many] = [Rng::new(1, 2, 3, Purpose::Policy), Rng::new(1, 2, 3, Purpose::Policy)];
            (0..before).for_each(|_| assert_eq!(one.next_u32(), many.next_u32()));
            let mut words = vec![0; n];
            many.fill(&mut words);
            words.push(many.next_u32());
            assert!(words.into_iter().all(|word| word == one.next_u32()), "{n} words after {before}");
        }
    }

    #[test]
    fn uniform_numbers_stay_below_one() {
        assert_eq!(uniform(0), 0.0);
        assert!(uniform(u32::MAX) < 1.0);
        assert_eq!(below(u32::MAX, 7), 6);
        assert_eq!(below(0, 7), 0);
    }

    #[test]
    fn normal_numbers_have_the_moments_of_a_standard_normal() {
        let mut rng = Rng::new(1, 0, 0, Purpose::Init);
        let n = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let z = f64::from(rng.normal());
            sum += z;
            squares += z * z;
        }
        // The standard error of the mean is 0.003, that of the variance 0.0045.
        assert!((sum / f64::from(n)).abs() < 0.015);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.02);
    }

    #[test]
    fn the_four_normal_numbers_of_a_block_are_standard_and_independent() {
        let n = 50_000;
        let (mut sums, mut products) = ([0.0; 4], [[0.0; 4]; 4]);
        for step in 0..n {
            let z = normals(block(1, 2, step, Purpose::Policy, 3)).map(f64::from);
            for i in 0..4 {
                sums[i] += z[i] / n as f64;
                (0..4).for_each(|j| products[i][j] += z[i] * z[j] / n as f64);
            }
        }
        // Standard errors: of means and of products of two 0.0045, of squares 0.0063.
        for i in 0..4 {
            assert!(sums[i].abs() < 0.02, "{sums:?}");
            (0..4).for_each(|j| assert!((products[i][j] - f64::from(u8::from(i == j))).abs() < 0.025, "{products:?}"));
        }
        // Radius sqrt(2 ln 2) at the angles 0 and pi / 2.
        let radius = (2.0 * 2f32.ln()).sqrt();
        let got = normals([1 << 31, 0, 1 << 31, 1 << 30]);
        for (got, expected) in got.iter().zip([0.0, radius, radius, 0.0]) {
            assert!((got - expected).abs() < 1e-6, "{got} is not {expected}");
        }
    }
}
