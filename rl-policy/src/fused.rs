//! Multiply-adds that round once, with the same bits on every machine.
//!
//! IEEE 754 defines them. They are an instruction of many processors; elsewhere, f64 replaces it. The product of two f32 is exact
//! in f64, so that only the sum rounds before it becomes an f32. Two roundings differ from one where the first hides on which
//! side of a midpoint between two f32 the sum is. There, the sum is rounded to odd instead, which keeps the side (Boldo and
//! Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 2008).

/// True if every processor of the target has a multiply-add.
const IS_INSTRUCTION: bool = cfg!(all(feature = "std", any(target_feature = "fma", target_arch = "aarch64")));

#[cfg(all(target_arch = "x86", not(target_feature = "sse2")))]
compile_error!("the x87 rounds to other bits: compile for a processor with SSE2");

/// Returns `a * b + c`, rounded once.
///
/// `CHOSEN` is true in functions compiled for processors that have the instruction.
#[inline(always)]
pub(crate) fn fused<const CHOSEN: bool>(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(feature = "std")]
    if CHOSEN || IS_INSTRUCTION {
        return a.mul_add(b, c);
    }
    in_software(a, b, c)
}

/// Adds `x` times a row of weights to sums.
#[inline(always)]
pub(crate) fn add_row<const CHOSEN: bool>(sums: &mut [f32], x: f32, row: &[[u8; 4]]) {
    if CHOSEN || IS_INSTRUCTION {
        sums.iter_mut().zip(row).for_each(|(sum, w)| *sum = fused::<CHOSEN>(x, f32::from_le_bytes(*w), *sum));
    } else {
        add_row_in_software(sums, x, row);
    }
}

/// Adds a row as [`add_row`] does, with one test for doubtful sums in several.
#[inline(always)]
fn add_row_in_software(sums: &mut [f32], x: f32, row: &[[u8; 4]]) {
    let (groups, sums) = sums.as_chunks_mut::<16>();
    let (rows, row) = row.as_chunks::<16>();
    for (sums, row) in groups.iter_mut().zip(rows) {
        let mut wide = [0.0; 16];
        for ((wide, sum), w) in wide.iter_mut().zip(&*sums).zip(row) {
            *wide = f64::from(x) * f64::from(f32::from_le_bytes(*w)) + f64::from(*sum);
        }
        if !wide.iter().fold(false, |any, sum| any | is_doubtful(*sum)) {
            sums.iter_mut().zip(wide).for_each(|(sum, wide)| *sum = wide as f32);
        } else {
            sums.iter_mut().zip(row).for_each(|(sum, w)| *sum = in_software(x, f32::from_le_bytes(*w), *sum));
        }
    }
    sums.iter_mut().zip(row).for_each(|(sum, w)| *sum = in_software(x, f32::from_le_bytes(*w), *sum));
}

/// Returns `a * b + c`, rounded once, without the instruction.
#[inline(always)]
fn in_software(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    if is_doubtful(sum) { to_odd(product, c) as f32 } else { sum as f32 }
}

/// True if a sum may be a midpoint between two f32, or is subnormal.
///
/// Midpoints between subnormal numbers have other bits, and are rare. Infinities are never doubtful, nor is NaN.
#[inline(always)]
fn is_doubtful(sum: f64) -> bool {
    let [low, high] = [sum.to_bits() as u32, (sum.to_bits() >> 32) as u32];
    (low & 0x1FFF_FFFF == 0x1000_0000) | (high & 0x7FFF_FFFF < 0x3810_0000)
}

/// Returns a finite `a + b`, rounded to odd.
///
/// It is exact, or the one with an odd significand of the two neighbours of the exact sum.
#[cold]
fn to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let back = sum - a;
    let error = (a - (sum - back)) + (b - back); // exact (Knuth)
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // The odd neighbour is the next number in the direction of the error.
    f64::from_bits(if (error > 0.0) == (sum > 0.0) { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::{Purpose, Rng};

    fn assert_rounds_once(a: f32, b: f32, c: f32) {
        let (got, exact) = (in_software(a, b, c), a.mul_add(b, c));
        let is_same = got.to_bits() == exact.to_bits() || got.is_nan() && exact.is_nan();
        assert!(is_same, "{a:e} * {b:e} + {c:e}: {got:e}, not {exact:e}");
    }

    #[test]
    fn special_numbers_and_their_neighbours_round_once() {
        let mut numbers = vec![0.0, f32::INFINITY, f32::NAN];
        for x in [f32::MIN_POSITIVE, f32::MAX, f32::EPSILON, 1.0, 2.0, 3.0, f32::from_bits(1), f32::from_bits(2), 1e-20, 1e20] {
            numbers.extend([x.next_down(), x, x.next_up()]);
        }
        numbers.extend(numbers.clone().into_iter().map(|x| -x));
        for a in &numbers {
            for b in &numbers {
                numbers.iter().for_each(|c| assert_rounds_once(*a, *b, *c));
            }
        }
    }

    #[test]
    fn random_numbers_round_once() {
        let mut rng = Rng::new(1, 0, 0, Purpose::Init);
        for _ in 0..1_000_000 {
            let [a, b, c] = [(); 3].map(|()| f32::from_bits(rng.next_u32()));
            assert_rounds_once(a, b, c);
            // A sum of any size beside the product: near it, it cancels.
            let (a, b) = (rng.uniform_in(-2.0, 2.0), rng.uniform_in(-2.0, 2.0));
            let c = -a * b * ((1 << rng.below(30)) as f32);
            assert_rounds_once(a, b, c);
            assert_rounds_once(a, b, c / (1u64 << rng.below(60)) as f32);
            // Products and sums between the subnormal numbers.
            let tiny = f32::from_bits(rng.next_u32() & 0x80FF_FFFF);
            assert_rounds_once(a, tiny, f32::from_bits(rng.below(1 << 24)));
            assert_rounds_once(1e-20 * a, 1e-20 * b, tiny);
        }
    }

    #[test]
    fn sums_beside_a_midpoint_round_to_its_side() {
        // 2^24 + 1 is a midpoint. The product is 1 - 2^-46, and the sum in f64 that midpoint.
        let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        assert_eq!(in_software(a, b, 16_777_216.0), 16_777_216.0);
        assert_eq!(in_software(a, b, 16_777_218.0), 16_777_218.0, "to nearest, ties to even: 16,777,220");
        let mut rng = Rng::new(2, 0, 0, Purpose::Init);
        for _ in 0..1_000_000 {
            let tail = (1 + rng.below(8)) as f32 * f32::EPSILON;
            let (a, b, c) = (1.0 + tail, 1.0 - tail, (1 << 24 | rng.below(1 << 24)) as f32);
            let scale = 2.0f32.powi(rng.below(200) as i32 - 100);
            for (a, b) in [(a, b), (1.0, 1.0), (1.0 + 2.0 * tail, b), (-a, b)] {
                assert_rounds_once(a * scale, b, c * scale);
                assert_rounds_once(a * scale, b, -c * scale);
                // Between the subnormal numbers, whose last place is 2^-149. There, musl's function rounds twice.
                let root = f32::from_bits(52 << 23); // 2^-75
                if cfg!(not(target_env = "musl")) {
                    assert_rounds_once(a * root, b * root, f32::from_bits(rng.below(1 << 23)));
                }
            }
        }
    }

    #[test]
    fn rows_of_any_length_are_added_as_single_numbers() {
        let mut rng = Rng::new(3, 0, 0, Purpose::Init);
        for n in (0..70).cycle().take(20_000) {
            // Products near a half of the last place of some sums.
            let tail = (1 + rng.below(8)) as f32 * f32::EPSILON;
            let x = 1.0 + tail;
            let row: Vec<_> = (0..n).map(|_| [1.0 - tail, tail - 1.0, 0.75][rng.below(3) as usize].to_le_bytes()).collect();
            let sums: Vec<_> = (0..n).map(|_| [rng.uniform(), (1 << 24 | rng.below(99)) as f32][rng.below(2) as usize]).collect();
            for add in [add_row::<true>, add_row::<false>, add_row_in_software] {
                let mut got = sums.clone();
                add(&mut got, x, &row);
                for ((got, sum), w) in got.iter().zip(&sums).zip(&row) {
                    assert_eq!(got.to_bits(), x.mul_add(f32::from_le_bytes(*w), *sum).to_bits());
                }
            }
        }
    }
}
