//! Sizes of a dense layer, its activation, its parameters.

use crate::View;

/// Function after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// The identity.
    None = 0,
    /// Hyperbolic tangent.
    Tanh = 1,
    /// max(0, x)
    Relu = 2,
    /// x above 0, else exp(x) - 1.
    Elu = 3,
}

/// A dense layer: its sizes, and the activation after it.
#[derive(Clone, Copy, Debug)]
pub struct DenseLayer {
    /// Number of inputs K.
    pub n_in: usize,
    /// Number of outputs N.
    pub n_out: usize,
    /// Activation after the layer.
    pub activation: Activation,
}

/// A dense layer and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct DenseParams<'a> {
    /// The layer.
    pub layer: DenseLayer,
    /// Weights (K, N), then biases (N).
    pub params: View<'a, f32>,
}

/// A normalization of a layer's sums: gains and offsets, (N) each.
#[derive(Clone, Copy, Debug)]
pub struct NormParams<'a> {
    /// Factors of the normalized sums.
    pub gains: View<'a, f32>,
    /// Numbers added to them.
    pub offsets: View<'a, f32>,
}

impl DenseLayer {
    /// Returns the kernels' `Size` of a layer with `m` samples.
    pub(super) fn words(self, m: usize, activation: Activation) -> [u32; 4] {
        [m as u32, self.n_in as u32, self.n_out as u32, activation as u32]
    }
}
