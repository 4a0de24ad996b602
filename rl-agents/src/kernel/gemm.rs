//! The matrix product of the network kernel: `C (m, n) = init + A (m, k) B (k, n)`.
//!
//! Rows of B and C are contiguous vectors; elements of A are read one by one at any offsets. One function therefore computes `x
//! W`, `dz W^T` (with a transposed copy of W) and `x^T dz` (with the two offsets of x swapped). The inner block keeps its sums in
//! registers (`vector`): 6 rows by 64 columns with AVX-512, 6 by 16 with AVX2 and NEON, 2 by 16 otherwise. Only this file knows
//! the blocking.
//!
//! Wide matrices are cut into panels of 64 columns, each of which is contiguous. A row of a panel has 256 bytes, so the rows that
//! a block reads spread over all sets of the cache; rows of 1,024 numbers would share a few. A product computes one panel.
//!
//! The order of operations of one element of C depends on k and n only, not on the other rows.
#![allow(unsafe_code)]

use std::ops::Range;

use rl_envs::isa::{Isa, Set, Work, dispatch};

#[cfg(target_arch = "aarch64")]
use crate::kernel::vector::float32x4_t;
#[cfg(target_arch = "x86_64")]
use crate::kernel::vector::{__m256, __m512};
use crate::kernel::vector::{LANES, Portable, Vector};

/// Number of terms above which a sum is made of sums of [`TERMS`].
const LONG: usize = 96;
/// Terms of each part of a long sum.
const TERMS: usize = 32;
/// Rows that pass the parts of long sums together.
///
/// Their sums, inputs and weights fit into an L1 cache of 32 KiB.
pub(crate) const CACHED_ROWS: usize = 48;

/// Floating-point operations of one round of [`multiply_adds`].
pub const ROUND_FLOPS: u64 = 2 * 8 * 64;

/// Runs `rounds` times 8 multiply-adds of 64 numbers: the machine's peak.
///
/// Returns a number that depends on all of them.
#[must_use]
pub fn multiply_adds(isa: Isa, rounds: u64) -> f32 {
    dispatch(isa, Spin(rounds))
}

/// The rounds of [`multiply_adds`].
struct Spin(u64);

impl Work for Spin {
    type Output = f32;

    #[inline(always)]
    fn run<S: Set>(self) -> f32 {
        // SAFETY: this code is compiled for the instruction set, which the machine has.
        unsafe {
            match S::ISA {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => spin::<__m512, 24>(self.0),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => spin::<__m256, 12>(self.0),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => spin::<float32x4_t, 24>(self.0),
                _ => spin::<Portable<S>, 2>(self.0),
            }
        }
    }
}

/// Keeps N vectors of sums in registers.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn spin<V: Vector, const N: usize>(rounds: u64) -> f32 {
    let (a, b) = std::hint::black_box((0.999, 1e-3));
    let mut last = [0.0f32; LANES];
    // SAFETY: guaranteed by the caller; a vector is at most as long as `last`.
    unsafe {
        let (a, b, mut sums) = (V::splat(a), V::splat(b), [V::splat(1.0); N]);
        for _ in 0..rounds * (ROUND_FLOPS / 2) / (N * V::LEN) as u64 {
            sums.iter_mut().for_each(|sum| *sum = sum.multiply_add(a, b));
        }
        let [first, rest @ ..] = &sums[..] else { return 0.0 };
        rest.iter().fold(*first, |sum, x| sum.add(*x)).store(last.as_mut_ptr());
    }
    last.iter().sum()
}

/// Columns of a panel.
pub(crate) const PANEL: usize = 64;

/// Pads a number of columns for the product.
pub(crate) fn pad(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Number of panels of a matrix with `n` columns.
pub(crate) fn panels(n: usize) -> usize {
    n.div_ceil(PANEL)
}

/// Cuts columns of row `s` of a matrix in panels where panels end.
///
/// The panels have `height` rows; the columns are `len` from `first` on. Yields the range of each piece within the matrix, and
/// within the columns.
#[inline(always)]
fn pieces(s: usize, first: usize, len: usize, height: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (p, column) = ((first + at) / PANEL, (first + at) % PANEL);
        let (begin, n) = ((p * height + s) * PANEL + column, (PANEL - column).min(len - at));
        at += n;
        (n > 0).then_some((begin..begin + n, at - n..at))
    })
}

/// Copies `row` to columns of row `s` of a matrix in panels: see [`pieces`].
#[inline(always)]
pub(crate) fn write_row(row: &[f32], s: usize, first: usize, height: usize, matrix: &mut [f32]) {
    pieces(s, first, row.len(), height).for_each(|(to, from)| matrix[to].copy_from_slice(&row[from]));
}

/// Copies columns of row `s` of a matrix in panels to `row`: see [`pieces`].
#[inline(always)]
pub(crate) fn read_row(matrix: &[f32], s: usize, first: usize, height: usize, row: &mut [f32]) {
    pieces(s, first, row.len(), height).for_each(|(from, to)| row[to].copy_from_slice(&matrix[from]));
}

/// Padded number of columns of panel `p` of a matrix with `n` columns.
pub(crate) fn width(n: usize, p: usize) -> usize {
    pad(n - p * PANEL).min(PANEL)
}

/// Reserves `more` numbers at the end of a buffer of `len`; returns their offset.
pub(crate) fn reserve(len: &mut usize, more: usize) -> usize {
    std::mem::replace(len, *len + more)
}

/// Part of a sum of `k` terms that a term belongs to.
///
/// [`multiply`] adds up the sums of the parts.
#[inline(always)]
pub(crate) fn part_of(term: usize, k: usize) -> usize {
    if k > LONG { term / TERMS } else { 0 }
}

/// Adds the rows of `from`, `stride` numbers apart, to `to`, `some` rows at a time.
///
/// The number of columns is a multiple of 16.
#[inline(always)]
pub(crate) fn add_rows(from: &[f32], stride: usize, some: usize, to: &mut [f32]) {
    for from in from.chunks_exact(some * stride) {
        let (panels, rest) = to.as_chunks_mut::<PANEL>();
        let begin = panels.len() * PANEL;
        for (to, column) in panels.iter_mut().zip((0..).step_by(PANEL)) {
            add_columns(&from[column..], stride, to);
        }
        for (to, column) in rest.as_chunks_mut::<LANES>().0.iter_mut().zip((begin..).step_by(LANES)) {
            add_columns(&from[column..], stride, to);
        }
    }
}

/// Adds the first N columns of the rows of `from` to `to`.
#[inline(always)]
fn add_columns<const N: usize>(from: &[f32], stride: usize, to: &mut [f32; N]) {
    let mut sums = [0.0f32; N];
    for row in from.chunks(stride) {
        // A copy, as in `block`: it keeps the sums in registers.
        let mut numbers = [0.0f32; N];
        numbers.copy_from_slice(&row[..N]);
        sums.iter_mut().zip(&numbers).for_each(|(sum, x)| *sum += x);
    }
    to.iter_mut().zip(&sums).for_each(|(to, sum)| *to += sum);
}

/// Offsets of the rows, or of the columns, of a matrix.
pub(crate) trait Axis: Copy {
    /// True if the axis has at least `n` offsets, the largest of which is the last.
    fn ascend(self, n: usize) -> bool;

    /// The offset at index `i`.
    ///
    /// # Safety
    /// [`Self::ascend`] is true for some `n > i`.
    unsafe fn at(self, i: usize) -> usize;

    /// Number of indices from `i` on, at most `n`, for which [`Self::along`] holds.
    #[inline(always)]
    fn run(self, _i: usize, n: usize) -> usize {
        n
    }

    /// The offset at index `i + j` of the run from `i` on.
    ///
    /// `first` is the offset at `i`.
    ///
    /// # Safety
    /// [`Self::ascend`] is true for some `n > i + j`.
    #[inline(always)]
    unsafe fn along(self, _first: usize, i: usize, j: usize) -> usize {
        // SAFETY: guaranteed by the caller.
        unsafe { self.at(i + j) }
    }
}

/// Offsets at a stride that the compiler knows, and makes part of instructions.
#[derive(Clone, Copy)]
pub(crate) struct Fixed<const N: usize>;

impl<const N: usize> Axis for Fixed<N> {
    #[inline(always)]
    fn ascend(self, _: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        i * N
    }

    #[inline(always)]
    unsafe fn along(self, first: usize, _: usize, j: usize) -> usize {
        first + j * N
    }
}

/// Offsets at a constant stride.
#[derive(Clone, Copy)]
pub(crate) struct Stride(pub(crate) usize);

impl Axis for Stride {
    #[inline(always)]
    fn ascend(self, _: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        i * self.0
    }
}

/// Offsets of the columns of a matrix in panels with the given number of rows.
#[derive(Clone, Copy)]
pub(crate) struct PanelColumns(pub(crate) usize);

impl Axis for PanelColumns {
    #[inline(always)]
    fn ascend(self, _: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        i / PANEL * PANEL * self.0 + i % PANEL
    }

    #[inline(always)]
    fn run(self, i: usize, n: usize) -> usize {
        n.min(PANEL - i % PANEL)
    }

    #[inline(always)]
    unsafe fn along(self, first: usize, _: usize, j: usize) -> usize {
        first + j
    }
}

/// A table of ascending offsets.
#[derive(Clone, Debug)]
pub(crate) struct OffsetTable(Vec<u32>);

impl OffsetTable {
    /// Collects offsets.
    ///
    /// # Panics
    /// If they do not ascend.
    pub(crate) fn new(offsets: impl Iterator<Item = usize>) -> Self {
        let offsets: Vec<u32> = offsets.map(|at| u32::try_from(at).expect("fewer than 2^32 numbers")).collect();
        assert!(offsets.is_sorted(), "ascending offsets");
        Self(offsets)
    }

    /// The table as an axis of a matrix.
    pub(crate) fn offsets(&self) -> Offsets<'_> {
        Offsets(&self.0)
    }
}

/// Offsets from an [`OffsetTable`].
#[derive(Clone, Copy)]
pub(crate) struct Offsets<'a>(&'a [u32]);

impl Axis for Offsets<'_> {
    #[inline(always)]
    fn ascend(self, n: usize) -> bool {
        n <= self.0.len()
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        // SAFETY: the caller has compared `i` with the length.
        unsafe { *self.0.get_unchecked(i) as usize }
    }
}

/// A matrix whose element's index is the sum of its row's and its column's offset.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, R, C> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: R,
    pub(crate) columns: C,
}

/// Rows of a matrix in panels, one for each sample.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Data of all panels from the first of these rows on.
    pub(crate) data: &'a [f32],
    /// Number of rows that each panel has in the data.
    pub(crate) height: usize,
    /// Number of these rows.
    pub(crate) m: usize,
}

impl<'a> Rows<'a> {
    /// A range of the rows of a matrix with `height` rows.
    pub(crate) fn new(matrix: &'a [f32], height: usize, range: Range<usize>) -> Self {
        Self { data: &matrix[range.start * PANEL..], height, m: range.len() }
    }

    /// A range of these rows.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        Self { data: &self.data[range.start * PANEL..], m: range.len(), ..self }
    }

    /// Rows of panel `p`, 64 numbers each.
    pub(crate) fn panel(self, p: usize) -> &'a [f32] {
        &self.data[p * PANEL * self.height..][..self.m * PANEL]
    }

    /// Number in column `j` of row `i`.
    #[inline(always)]
    pub(crate) fn at(self, i: usize, j: usize) -> f32 {
        self.data[(j / PANEL * self.height + i) * PANEL + j % PANEL]
    }

    /// The rows as a matrix of a product.
    pub(crate) fn matrix(self) -> Matrix<'a, Fixed<PANEL>, PanelColumns> {
        Matrix { data: self.data, rows: Fixed, columns: PanelColumns(self.height) }
    }
}

/// A matrix whose rows are `stride` numbers apart.
#[derive(Clone, Copy)]
pub(crate) struct RowMajor<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

/// Sizes of a product: A is (m, k), and B is (k, n).
#[derive(Clone, Copy)]
pub(crate) struct ProductSize {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Initial value of a product.
#[derive(Clone, Copy)]
pub(crate) enum Init<'a> {
    /// The given row, for every row of C.
    Bias(&'a [f32]),
    /// Zeros.
    Zero,
    /// Zeros, to which a sum is added as to a cleared C: a sum of -0 becomes 0.
    Cleared,
    /// The current contents of C.
    Add,
}

/// Computes `C (m, n) = init + A (m, k) B (k, n)`.
///
/// The rows of C are at the offsets `to`, and do not overlap. n is a multiple of 16. Long sums are made of short ones, which
/// keeps their error small.
#[inline(always)]
pub(crate) fn multiply<S: Set>(
    c: &mut [f32],
    to: impl Axis,
    a: Matrix<'_, impl Axis, impl Axis>,
    b: RowMajor<'_>,
    size: ProductSize,
    init: Init<'_>,
) {
    // A separate call: inlined everywhere, products would be most of the compiled code.
    dispatch(S::ISA, Product { c, to, a, b, size, init });
}

/// The operands of a product.
struct Product<'a, T, R, C> {
    c: &'a mut [f32],
    to: T,
    a: Matrix<'a, R, C>,
    b: RowMajor<'a>,
    size: ProductSize,
    init: Init<'a>,
}

impl<T: Axis, R: Axis, C: Axis> Work for Product<'_, T, R, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { c, to, a, b, size, init } = self;
        // SAFETY: this code is compiled for the instruction set, which the machine has.
        unsafe {
            match S::ISA {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => product::<__m512, 6, 4>(c, to, a, b, size, init),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => product::<__m256, 6, 2>(c, to, a, b, size, init),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => product::<float32x4_t, 6, 4>(c, to, a, b, size, init),
                _ => product::<Portable<S>, 2, 1>(c, to, a, b, size, init),
            }
        }
    }
}

/// Computes a product, ROWS rows by WIDE vectors at a time.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn product<V: Vector, const ROWS: usize, const WIDE: usize>(
    c: &mut [f32],
    to: impl Axis,
    a: Matrix<'_, impl Axis, impl Axis>,
    b: RowMajor<'_>,
    ProductSize { m, n, k }: ProductSize,
    init: Init<'_>,
) {
    assert!(n.is_multiple_of(LANES) && m > 0 && k > 0);
    assert!(to.ascend(m) && a.rows.ascend(m) && a.columns.ascend(k) && b.data.len() >= (k - 1) * b.stride + n);
    // SAFETY: the assertion above guarantees that the rows and columns exist.
    let (c_end, a_end) = unsafe { (to.at(m - 1) + n, a.rows.at(m - 1) + a.columns.at(k - 1)) };
    assert!(c.len() >= c_end && a.data.len() > a_end);
    if let Init::Bias(bias) = init {
        assert!(bias.len() >= n);
    }
    let (rows, terms) = if k > LONG { (CACHED_ROWS, TERMS) } else { (m, k) };
    for row in (0..m).step_by(rows) {
        for term in (0..k).step_by(terms) {
            let range = (row..(row + rows).min(m), term..(term + terms).min(k));
            let init = if term == 0 { init } else { Init::Add };
            let mut column = 0;
            while column < n {
                let left = n - column;
                // SAFETY: the assertions above guarantee that rows 0..m, columns 0..n and terms 0..k are within their arrays; a
                // panel covers no more than the columns that are left. The caller guarantees the instruction set.
                column += unsafe {
                    if const { WIDE >= 4 } && left >= 4 * V::LEN {
                        panel::<V, ROWS, 4>(c, to, a, b, range.clone(), init, column)
                    } else if const { WIDE >= 2 } && left >= 2 * V::LEN {
                        panel::<V, ROWS, 2>(c, to, a, b, range.clone(), init, column)
                    } else {
                        panel::<V, ROWS, 1>(c, to, a, b, range.clone(), init, column)
                    }
                };
            }
        }
    }
}

/// Computes a range of rows and terms, N vectors of columns from `column` on.
///
/// Returns the number of columns.
///
/// # Safety
/// The ranges of rows, columns and terms are within the arrays, and the machine has the instruction set of `V`.
#[inline(always)]
unsafe fn panel<V: Vector, const ROWS: usize, const N: usize>(
    c: &mut [f32],
    to: impl Axis,
    a: Matrix<'_, impl Axis, impl Axis>,
    b: RowMajor<'_>,
    (rows, terms): (Range<usize>, Range<usize>),
    init: Init<'_>,
    column: usize,
) -> usize {
    let mut i = rows.start;
    while i < rows.end {
        let left = rows.end - i;
        let terms = terms.clone();
        // SAFETY: guaranteed by the caller; a block covers no more than the rows that are left.
        i += unsafe {
            if left >= ROWS {
                block::<V, ROWS, N>(c, to, a, b, terms, init, (i, column))
            } else if const { ROWS > 4 } && left >= 4 {
                block::<V, 4, N>(c, to, a, b, terms, init, (i, column))
            } else if left >= 2 {
                block::<V, 2, N>(c, to, a, b, terms, init, (i, column))
            } else {
                block::<V, 1, N>(c, to, a, b, terms, init, (i, column))
            }
        };
    }
    N * V::LEN
}

/// Computes rows `i..i + M`, N vectors of columns from `column` on, in registers.
///
/// Returns M.
///
/// # Safety
/// The ranges of rows, columns and terms are within the arrays, and the machine has the instruction set of `V`.
#[inline(always)]
unsafe fn block<V: Vector, const M: usize, const N: usize>(
    c: &mut [f32],
    to: impl Axis,
    a: Matrix<'_, impl Axis, impl Axis>,
    b: RowMajor<'_>,
    terms: Range<usize>,
    init: Init<'_>,
    (i, column): (usize, usize),
) -> usize {
    // SAFETY: guaranteed by the caller: the columns are within the bias, the rows and terms within A, the terms and columns
    // within B, the rows and columns within C.
    unsafe {
        // The inputs of the next part of a long sum.
        if column == 0 && terms.end - terms.start == TERMS && a.columns.ascend(terms.end + 1) {
            for r in 0..M {
                let next = a.data.as_ptr().wrapping_add(a.rows.at(i + r) + a.columns.at(terms.end));
                (0..TERMS).step_by(LANES).for_each(|at| V::prefetch(next.wrapping_add(at)));
            }
        }
        // The weights of the next part, some of them with each block.
        if terms.end - terms.start == TERMS {
            let next = b.data.as_ptr().wrapping_add(terms.end * b.stride + column);
            for row in i / 2..(i + M) / 2 {
                (0..N * V::LEN).step_by(LANES).for_each(|at| V::prefetch(next.wrapping_add(row % TERMS * b.stride + at)));
            }
        }
        let mut sums = [[V::splat(0.0); N]; M];
        if let Init::Bias(bias) = init {
            sums = [std::array::from_fn(|v| V::load(bias.as_ptr().add(column + v * V::LEN))); M];
        }
        let mut k = terms.start;
        while k < terms.end {
            let run = a.columns.run(k, terms.end - k);
            let first = a.columns.at(k);
            for j in 0..run {
                let row = b.data.as_ptr().add((k + j) * b.stride + column);
                let row: [V; N] = std::array::from_fn(|v| V::load(row.add(v * V::LEN)));
                let term = a.columns.along(first, k, j);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(*a.data.get_unchecked(a.rows.at(i + r) + term));
                    for (sum, y) in sums.iter_mut().zip(row) {
                        *sum = x.multiply_add(y, *sum);
                    }
                }
            }
            k += run;
        }
        for (r, sums) in sums.into_iter().enumerate() {
            let c = c.as_mut_ptr().add(to.at(i + r) + column);
            for (v, sum) in sums.into_iter().enumerate() {
                let c = c.add(v * V::LEN);
                let sum = match init {
                    Init::Add => V::load(c).add(sum),
                    Init::Cleared => V::splat(0.0).add(sum),
                    Init::Bias(_) | Init::Zero => sum,
                };
                sum.store(c);
            }
        }
    }
    M
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_instruction_sets_agree_on_a_product_but_for_rounding() {
        struct Product<'a>(&'a mut [f32], &'a [f32], &'a [f32], ProductSize);
        impl Work for Product<'_> {
            type Output = ();
            #[inline(always)]
            fn run<S: Set>(self) {
                let Self(c, a, b, size) = self;
                let a = Matrix { data: a, rows: Stride(size.k), columns: Stride(1) };
                multiply::<S>(c, Stride(size.n), a, RowMajor { data: b, stride: size.n }, size, Init::Zero);
            }
        }
        for (m, n, k) in [(1, 16, 1), (7, 48, 3), (13, 112, 33), (96, 64, 65)] {
            let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                let mut c = vec![f32::NAN; m * n];
                dispatch(isa, Product(&mut c, &a, &b, ProductSize { m, n, k }));
                for (i, row) in c.chunks(n).enumerate() {
                    for (j, &c) in row.iter().enumerate() {
                        // Small integers: exact in any order.
                        let exact: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                        assert_eq!(c, exact, "{isa:?} {m}x{n}x{k} at {i}, {j}");
                    }
                }
            }
        }
    }
}
