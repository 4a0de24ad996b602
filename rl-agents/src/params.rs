//! The parameters of an agent: one vector, in a fixed order.
//!
//! One vector means one gradient vector, one norm, one pass of the optimizer and one file.

use std::ops::Range;

use rl_envs::{Purpose, Rng};

/// One tensor within the vector, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, such as `actor.0.weight`.
    pub name: String,
    /// Its shape. Weights are (in, out), so that a layer is `x W + b`.
    pub shape: Vec<usize>,
    /// Where it lies in the vector.
    pub range: Range<usize>,
}

/// Which tensors lie where.
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

    /// The tensors in their order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The length P of the vector.
    #[expect(clippy::len_without_is_empty, reason = "a layout is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Fills `weight`, (rows, columns), with a random orthogonal matrix times `gain` (Saxe et al., 2014): the shorter of its rows
/// and columns are orthonormal before scaling. `index` tells tensors with the same seed apart.
pub fn orthogonal(weight: &mut [f32], rows: usize, columns: usize, gain: f32, seed: u64, index: u32) {
    assert_eq!(weight.len(), rows * columns, "weight is (rows, columns)");
    let mut rng = Rng::new(seed, index, 0, Purpose::Init);
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (0..len).map(|_| f64::from(rng.normal())).collect();
        // Gram and Schmidt, twice: once is not enough in finite precision.
        for _ in 0..2 {
            for u in &vectors {
                let dot: f64 = u.iter().zip(&v).map(|(a, b)| a * b).sum();
                v.iter_mut().zip(u).for_each(|(a, b)| *a -= dot * b);
            }
        }
        let norm = v.iter().map(|a| a * a).sum::<f64>().sqrt();
        if norm > 1e-6 {
            v.iter_mut().for_each(|a| *a /= norm);
            vectors.push(v);
        }
    }
    for row in 0..rows {
        for column in 0..columns {
            let entry = if rows < columns { vectors[row][column] } else { vectors[column][row] };
            weight[row * columns + column] = gain * entry as f32;
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
