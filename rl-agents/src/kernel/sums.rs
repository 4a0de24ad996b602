//! Sums over parameters and samples in one order.
//!
//! Vectors, threads, devices and processes can follow it (docs/design/numerics.md).
//!
//! A sum is in f64 over blocks of 256 numbers, the last filled up with zeros. A block is folded: its second half is added to its
//! first half, the result is folded again, until one number is left. The blocks' sums are then summed in the same way, until one
//! is left. No operation is fused, so all instruction sets give the same bits.

use rl_envs::isa::{Isa, Set, Work, dispatch};

/// Version of the arithmetic: trainings of different versions differ in their bits.
///
/// It covers the order of summation, the order of samples, and everything else that the bits of parameters depend on. Version 1
/// added slices of gradients in order and shuffled samples sequentially.
pub const ARITHMETIC: u32 = 2;

/// Numbers of a block.
const BLOCK: usize = 256;
/// Levels of blocks, enough for 2^40 numbers.
const LEVELS: usize = 5;

/// Returns the sum of `x`.
pub(crate) fn sum(x: &[f32]) -> f64 {
    dispatch(Isa::best(), Sum::<false> { x, from: 0.0 })
}

/// Returns the sum of the squared distances of `x` from a number.
pub(crate) fn squared_distances(x: &[f32], from: f64) -> f64 {
    dispatch(Isa::best(), Sum::<true> { x, from })
}

/// Sum of the distances from a number, or of their squares.
struct Sum<'a, const SQUARED: bool> {
    x: &'a [f32],
    from: f64,
}

impl<const SQUARED: bool> Work for Sum<'_, SQUARED> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Set>(self) -> f64 {
        let Self { x, from } = self;
        // Blocks that are being filled with sums of the level below.
        let (mut sums, mut filled) = ([[0.0f64; BLOCK]; LEVELS], [0; LEVELS]);
        for numbers in x.chunks(BLOCK) {
            let mut block = [0.0f64; BLOCK];
            for (term, &x) in block.iter_mut().zip(numbers) {
                let distance = f64::from(x) - from;
                *term = if SQUARED { distance * distance } else { distance };
            }
            let mut sum = fold(block);
            for (block, filled) in sums.iter_mut().zip(&mut filled) {
                block[*filled] = sum;
                *filled += 1;
                if *filled < BLOCK {
                    break;
                }
                sum = fold(std::mem::replace(block, [0.0; BLOCK]));
                *filled = 0;
            }
        }
        for level in 1..LEVELS {
            if filled[level - 1] > 0 {
                sums[level][filled[level]] = fold(sums[level - 1]);
                filled[level] += 1;
            }
        }
        fold(sums[LEVELS - 1])
    }
}

/// Adds the second half of a block to the first, until one number is left.
#[inline(always)]
fn fold(mut block: [f64; BLOCK]) -> f64 {
    let mut half = BLOCK / 2;
    while half > 0 {
        let (a, b) = block.split_at_mut(half);
        a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
        half /= 2;
    }
    block[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::{Purpose, Rng};

    /// The definition, a level at a time.
    fn slow(numbers: &[f64]) -> f64 {
        let folded = |block: &[f64]| {
            let mut block = block.to_vec();
            block.resize(BLOCK, 0.0);
            while block.len() > 1 {
                block = (0..block.len() / 2).map(|i| block[i] + block[i + block.len() / 2]).collect();
            }
            block[0]
        };
        let sums: Vec<f64> = numbers.chunks(BLOCK).map(folded).collect();
        if sums.len() > 1 { slow(&sums) } else { sums[0] }
    }

    #[test]
    fn sums_equal_their_definition_bit_for_bit_with_every_instruction_set() {
        let mut rng = Rng::new(3, 0, 0, Purpose::Init);
        for n in [1, 31, 255, 256, 257, 511, 512, 9_155, 65_535, 65_536, 65_537, 200_000] {
            let x: Vec<f32> = (0..n).map(|_| 3.0 + rng.normal()).collect();
            let terms = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(f64::from(x))).collect::<Vec<_>>();
            let expected = [slow(&terms(&|x| x)), slow(&terms(&|x| (x - 2.9) * (x - 2.9))), slow(&terms(&|x| x * x))];
            assert_eq!([sum(&x), squared_distances(&x, 2.9), squared_distances(&x, 0.0)], expected, "{n} numbers");
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                assert_eq!(dispatch(isa, Sum::<true> { x: &x, from: 2.9 }), expected[1], "{n} numbers, {isa:?}");
            }
        }
        assert_eq!(sum(&[]), 0.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!squared_distances(&[1.0, bad], 0.0).is_finite());
        }
    }
}
