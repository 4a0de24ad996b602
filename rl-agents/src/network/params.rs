//! Parameters of an agent: one vector, in a fixed order.
//!
//! One vector means one gradient vector, one norm, one optimizer pass and one file.

use std::ops::Range;

use rl_envs::isa::{Isa, Set, Work, dispatch};
use rl_envs::{Pool, Purpose, Rng};

/// One tensor within the vector, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `actor.0.weight`.
    pub name: String,
    /// Shape. Weights are (in, out), so that a layer is `x W + b`.
    pub shape: Vec<usize>,
    /// Range within the vector.
    pub range: Range<usize>,
}

/// Names, shapes and ranges of the tensors of a parameter vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<TensorInfo>,
    len: usize,
}

impl Layout {
    /// Appends a tensor and returns its range.
    pub fn push(&mut self, name: String, shape: &[usize]) -> Range<usize> {
        let range = self.len..self.len + shape.iter().product::<usize>();
        self.len = range.end;
        self.tensors.push(TensorInfo { name, shape: shape.into(), range: range.clone() });
        range
    }

    /// Tensors, in order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Length P of the vector.
    #[expect(clippy::len_without_is_empty, reason = "a layout is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Number of vectors in the first block of a basis, made orthogonal one by one.
///
/// A layer with a shorter side has no other block.
const FIRST: usize = 256;
/// Number of vectors in each later block.
const BLOCK: usize = 64;
/// Rows of a product that one thread computes at a time.
const SLICE: usize = 96;

/// Fills `weight`, (rows, columns), with a random orthogonal matrix times `gain`.
///
/// (Saxe et al., 2014.) The shorter of its rows and columns are orthonormal before scaling. `index` distinguishes tensors with
/// the same seed.
///
/// A matrix with a shorter side above 256 is computed on all cores, by a [`Pool`] that ends with the call. The result does not
/// depend on their number. The call holds the shorter side's vectors in f64: 8 bytes per weight.
pub fn orthogonal(weight: &mut [f32], rows: usize, columns: usize, gain: f32, seed: u64, index: u32) {
    assert_eq!(weight.len(), rows * columns, "weight is (rows, columns)");
    let n_threads = if rows.min(columns) > FIRST { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let mut streams = Streams::new(seed, index, STREAM);
    let pool = Pool::new(n_threads).unwrap_or_default();
    let basis = orthonormal(rows.min(columns), rows.max(columns), &mut streams, &pool);
    if rows < columns {
        weight.iter_mut().zip(basis).for_each(|(to, x)| *to = gain * x as f32);
        return;
    }
    // A transpose in strips of rows: their cache lines stay in the cache.
    const ROWS: usize = 16;
    for (i, to) in weight.chunks_mut((ROWS * columns).max(1)).enumerate() {
        for column in 0..columns {
            let from = &basis[column * rows + i * ROWS..];
            to[column..].iter_mut().step_by(columns).zip(from).for_each(|(to, x)| *to = gain * *x as f32);
        }
    }
}

/// Bytes allocated by [`orthogonal`] for a weight of this shape; 0 for a bias.
pub(crate) fn init_bytes(shape: &[usize]) -> u64 {
    let Some((&rows, columns)) = shape.split_first().filter(|(_, columns)| !columns.is_empty()) else { return 0 };
    let columns: usize = columns.iter().product();
    let (count, len) = (rows.min(columns) as u64, rows.max(columns) as u64);
    8 * (count * len + 2 * len * BLOCK as u64 + count * BLOCK as u64 + FIRST as u64)
}

/// First parameters of a network's layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initialization {
    /// True if weights are orthogonal and biases 0; false if both are uniform.
    pub(crate) ortho: bool,
    pub(crate) seed: u64,
}

impl Initialization {
    /// Draws a layer's weight, (rows, columns), and the bias that follows it.
    ///
    /// `gain` is that of orthogonal weights. Uniform numbers lie within 1 / sqrt(`n_in`), as PyTorch draws them. `index`
    /// distinguishes layers.
    pub(crate) fn layer(self, params: &mut [f32], [rows, columns]: [usize; 2], n_in: usize, gain: f32, index: u32) {
        if self.ortho {
            let (weight, bias) = params.split_at_mut(rows * columns);
            orthogonal(weight, rows, columns, gain, self.seed, index);
            bias.fill(0.0);
        } else {
            let mut streams = Streams::new(self.seed, index, STREAM);
            let bound = (n_in as f32).sqrt().recip();
            params.iter_mut().for_each(|x| *x = streams.next().uniform_in(-bound, bound));
        }
    }
}

/// Numbers of a stream of random words before it repeats.
const STREAM: usize = 1 << 25;

/// Random numbers that do not repeat.
///
/// A stream that ends is followed by that of the next counter step.
struct Streams {
    seed: u64,
    index: u32,
    step: u64,
    rng: Rng,
    /// Numbers of a stream, and those left.
    len: usize,
    left: usize,
}

impl Streams {
    fn new(seed: u64, index: u32, len: usize) -> Self {
        Self { seed, index, step: 0, rng: Rng::new(seed, index, 0, Purpose::Init), len, left: len }
    }

    /// Returns the stream of the next number.
    fn next(&mut self) -> &mut Rng {
        if self.left == 0 {
            self.step += 1;
            (self.rng, self.left) = (Rng::new(self.seed, self.index, self.step, Purpose::Init), self.len);
        }
        self.left -= 1;
        &mut self.rng
    }

    fn normal(&mut self) -> f64 {
        self.next().normal().into()
    }
}

/// Returns `count` random orthonormal vectors of `len` numbers, by Gram-Schmidt.
///
/// The result is (count, len). The vectors of a block are first projected against all earlier blocks, by matrix products, then
/// against each other, one by one. Everything is done twice: once is not enough in finite precision.
fn orthonormal(count: usize, len: usize, streams: &mut Streams, pool: &Pool) -> Vec<f64> {
    let mut draw = || (0..len).map(|_| streams.normal()).collect::<Vec<f64>>();
    let mut basis: Vec<f64> = Vec::with_capacity(count * len);
    while basis.len() < count * len {
        let begin = basis.len();
        let n = (if begin == 0 { FIRST } else { BLOCK }).min(count - begin / len);
        let mut block: Vec<_> = if begin == 0 { Vec::new() } else { (0..n).map(|_| draw()).collect() };
        project(&mut block, &basis, len, pool);
        let mut block = block.into_iter();
        while basis.len() < begin + n * len {
            // One by one: the first block, and replacements of vectors almost within the span of the others.
            let mut v = block.next().unwrap_or_else(|| {
                let mut v = draw();
                subtract(&mut v, &basis[..begin], len);
                v
            });
            subtract(&mut v, &basis[begin..], len);
            let norm = v.iter().map(|a| a * a).sum::<f64>().sqrt();
            if norm > 1e-6 {
                basis.extend(v.iter().map(|a| a / norm));
            }
        }
    }
    basis
}

/// Removes the components of `v` along the vectors of `basis`, one by one, twice.
fn subtract(v: &mut [f64], basis: &[f64], len: usize) {
    for _ in 0..2 {
        for u in basis.chunks_exact(len) {
            let dot: f64 = u.iter().zip(&*v).map(|(a, b)| a * b).sum();
            v.iter_mut().zip(u).for_each(|(a, b)| *a -= dot * b);
        }
    }
}

/// Removes the components of `block` along `basis`, (k, len), by products, twice.
fn project(block: &mut [Vec<f64>], basis: &[f64], len: usize, pool: &Pool) {
    if block.is_empty() {
        return;
    }
    let mut vectors = vec![0.0; len * BLOCK]; // (len, BLOCK)
    for (s, v) in block.iter().enumerate() {
        vectors[s..].iter_mut().step_by(BLOCK).zip(v).for_each(|(to, x)| *to = *x);
    }
    let mut dots = vec![0.0; basis.len() / len * BLOCK]; // (k, BLOCK)
    for _ in 0..2 {
        dots.fill(0.0);
        add_product(&mut dots, 1.0, basis, [len, 1], &vectors, pool);
        add_product(&mut vectors, -1.0, basis, [1, len], &dots, pool);
    }
    for (s, v) in block.iter_mut().enumerate() {
        v.iter_mut().zip(vectors[s..].iter().step_by(BLOCK)).for_each(|(to, x)| *to = *x);
    }
}

/// Computes `out += sign a b` with out (M, BLOCK) and b (P, BLOCK).
///
/// `a[m, p]` is `a[m strides[0] + p strides[1]]`. Sums run in the order of p, so their bits depend neither on threads nor on the
/// instruction set.
fn add_product(out: &mut [f64], sign: f64, a: &[f64], strides: [usize; 2], b: &[f64], pool: &Pool) {
    let mut slices: Vec<_> = out.chunks_mut(SLICE * BLOCK).enumerate().collect();
    pool.each(&mut slices, &|(i, out)| {
        let a = &a[*i * SLICE * strides[0]..];
        dispatch(Isa::best(), ProductRows { out, sign, a, strides, b });
    });
}

/// A slice of rows of [`add_product`].
struct ProductRows<'a> {
    out: &'a mut [f64],
    sign: f64,
    a: &'a [f64],
    strides: [usize; 2],
    b: &'a [f64],
}

impl Work for ProductRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        match S::ISA {
            Isa::Avx512 => self.add::<64>(),
            Isa::Avx2 | Isa::Neon | Isa::Plain => self.add::<16>(),
        }
    }
}

impl ProductRows<'_> {
    /// Adds the product, `WIDE` columns at a time.
    #[inline(always)]
    fn add<const WIDE: usize>(self) {
        // `HIGH` rows keep all sums in registers; `DEPTH` terms read `a` in long stretches and keep `b` in the cache.
        const HIGH: usize = 3;
        const DEPTH: usize = 256;
        let Self { out, sign, a, strides, b } = self;
        let n_rows = out.len() / BLOCK;
        let mut packed = [[[0.0; HIGH]; DEPTH]; SLICE / HIGH];
        for (terms, b) in b.chunks(DEPTH * BLOCK).enumerate() {
            let (a, n_terms) = (&a[terms * DEPTH * strides[1]..], b.len() / BLOCK);
            // In the order of `a` in memory.
            if strides[1] == 1 {
                for m in 0..n_rows {
                    for p in 0..n_terms {
                        packed[m / HIGH][p][m % HIGH] = sign * a[m * strides[0] + p];
                    }
                }
            } else {
                for p in 0..n_terms {
                    for m in 0..n_rows {
                        packed[m / HIGH][p][m % HIGH] = sign * a[m * strides[0] + p * strides[1]];
                    }
                }
            }
            for (columns, out) in packed.iter().zip(out.chunks_mut(HIGH * BLOCK)) {
                for s in (0..BLOCK).step_by(WIDE) {
                    let mut sums = [[0.0; WIDE]; HIGH];
                    for (sums, out) in sums.iter_mut().zip(out.chunks_exact(BLOCK)) {
                        sums.copy_from_slice(&out[s..s + WIDE]);
                    }
                    for (column, b) in columns.iter().zip(b.chunks_exact(BLOCK)) {
                        // A copy keeps the sums in registers.
                        let mut row = [0.0; WIDE];
                        row.copy_from_slice(&b[s..s + WIDE]);
                        for (sums, a) in sums.iter_mut().zip(column) {
                            for (sum, b) in sums.iter_mut().zip(&row) {
                                *sum += a * b;
                            }
                        }
                    }
                    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(BLOCK)) {
                        out[s..s + WIDE].copy_from_slice(sums);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_without_gaps_and_in_order() {
        let mut layout = Layout::default();
        assert_eq!(layout.push("w".into(), &[3, 2]), 0..6);
        assert_eq!(layout.push("b".into(), &[2]), 6..8);
        assert_eq!(layout.len(), 8);
        assert_eq!(layout.tensors()[1].name, "b");
    }

    #[test]
    fn orthogonal_weights_have_orthogonal_rows_or_columns_of_the_gain_s_length() {
        for (rows, columns) in [(1, 1), (4, 64), (64, 2), (33, 33)] {
            let mut w = vec![0.0; rows * columns];
            orthogonal(&mut w, rows, columns, 2.0, 3, 1);
            let at = |i: usize, k: usize| if rows < columns { w[i * columns + k] } else { w[k * columns + i] };
            for i in 0..rows.min(columns) {
                for j in 0..=i {
                    let dot: f32 = (0..rows.max(columns)).map(|k| at(i, k) * at(j, k)).sum();
                    let expected = if i == j { 4.0 } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-5, "{rows}x{columns}: {i}.{j} is {dot}");
                }
            }
        }
    }

    /// Gram-Schmidt without blocks, on one thread.
    fn one_by_one(count: usize, len: usize, seed: u64, index: u32) -> Vec<f64> {
        let mut rng = Rng::new(seed, index, 0, Purpose::Init);
        let mut basis: Vec<Vec<f64>> = Vec::new();
        while basis.len() < count {
            let mut v: Vec<f64> = (0..len).map(|_| f64::from(rng.normal())).collect();
            for _ in 0..2 {
                for u in &basis {
                    let dot: f64 = u.iter().zip(&v).map(|(a, b)| a * b).sum();
                    v.iter_mut().zip(u).for_each(|(a, b)| *a -= dot * b);
                }
            }
            let norm = v.iter().map(|a| a * a).sum::<f64>().sqrt();
            v.iter_mut().for_each(|a| *a /= norm);
            basis.push(v);
        }
        basis.concat()
    }

    #[test]
    fn uniform_weights_and_biases_fill_the_range_of_pytorch_s() {
        let draw = |seed, index| {
            let mut params = vec![7.0; 40 * 30 + 30];
            Initialization { ortho: false, seed }.layer(&mut params, [40, 30], 16, 5.0, index);
            params
        };
        let params = draw(3, 1);
        for numbers in [&params[..1200], &params[1200..]] {
            let (n, max) = (numbers.len() as f32, numbers.iter().fold(0.0, |max: f32, x| max.max(x.abs())));
            let (mean, square) = (numbers.iter().sum::<f32>() / n, numbers.iter().map(|x| x * x).sum::<f32>() / n);
            assert!(max <= 0.25 && max > 0.2, "{max}");
            // Four standard errors: the variance is 1 / (3 n_in), that of a square 4 / (45 n_in^2).
            assert!(mean.abs() < 4.0 * (1.0 / 48.0 / n).sqrt(), "{mean}");
            assert!((square - 1.0 / 48.0).abs() < 4.0 * (4.0 / 45.0 / 256.0 / n).sqrt(), "{square}");
        }
        assert!(params == draw(3, 1) && params != draw(4, 1) && params != draw(3, 2));
    }

    #[test]
    fn up_to_256_vectors_have_the_bits_of_the_method_without_blocks() {
        for (count, len) in [(1, 1), (31, 33), (65, 300), (256, 257)] {
            let found = orthonormal(count, len, &mut Streams::new(3, 1, STREAM), &Pool::default());
            assert!(found == one_by_one(count, len, 3, 1), "{count} vectors of {len}");
        }
    }

    #[test]
    fn blocks_are_what_the_method_without_blocks_gives_but_for_rounding() {
        for (count, len) in [(257, 300), (321, 321), (389, 401)] {
            let (found, expected) =
                (orthonormal(count, len, &mut Streams::new(3, 1, STREAM), &Pool::new(2).unwrap()), one_by_one(count, len, 3, 1));
            assert_eq!(found.len(), count * len);
            let distance = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(distance < 1e-9, "{count} vectors of {len}: {distance}");
        }
    }

    #[test]
    fn blocks_have_the_same_bits_for_any_number_of_threads() {
        let of = |n_threads| orthonormal(330, 335, &mut Streams::new(3, 1, STREAM), &Pool::new(n_threads).unwrap());
        let expected = of(1);
        [2, 3].into_iter().for_each(|n_threads| assert!(of(n_threads) == expected, "{n_threads} threads"));
    }

    #[test]
    fn more_vectors_than_a_stream_of_random_numbers_has_are_orthonormal() {
        // With one stream that repeats, vector 32 would be vector 0, and no replacement another.
        for (count, len) in [(40, 64), (300, 320), (3, 5000)] {
            let found = orthonormal(count, len, &mut Streams::new(3, 1, 2048), &Pool::default());
            for (i, a) in found.chunks(len).enumerate() {
                for (j, b) in found.chunks(len).enumerate() {
                    let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-9, "{count} of {len}: {i}, {j}: {dot}");
                }
            }
        }
    }

    #[test]
    fn seed_and_index_decide() {
        let draw = |seed, index| {
            let mut w = vec![0.0; 6];
            orthogonal(&mut w, 2, 3, 1.0, seed, index);
            w
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
    }
}
