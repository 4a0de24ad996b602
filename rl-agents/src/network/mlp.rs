//! Multilayer perceptrons over slices of the flat parameter vector.

use std::ops::Range;

use candle_core::Tensor;

use crate::Precision;
use crate::network::activation::Activation;
use crate::network::layer_norm::LayerNorm;
use crate::network::params::{Initialization, Layout};

/// A linear layer, `x W + b`, as ranges of the parameter vector.
///
/// Its sums may be normalized.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Range<usize>, // (n_in, n_out)
    pub(crate) bias: Range<usize>,   // (n_out)
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    pub(crate) norm: Option<LayerNorm>,
}

impl Linear {
    /// Creates a layer.
    ///
    /// Appends its tensors to `layout` as `name.weight` and `name.bias`.
    pub(crate) fn new(layout: &mut Layout, name: &str, n_in: usize, n_out: usize) -> Self {
        let weight = layout.push(format!("{name}.weight"), &[n_in, n_out]);
        Self { weight, bias: layout.push(format!("{name}.bias"), &[n_out]), n_in, n_out, norm: None }
    }

    /// Range of weight and bias.
    pub(crate) fn range(&self) -> Range<usize> {
        self.weight.start..self.bias.end
    }

    /// Computes outputs (B, out) of inputs (B, in) with candle operations.
    pub(crate) fn forward(&self, params: &Tensor, x: &Tensor, precision: Precision) -> candle_core::Result<Tensor> {
        let weight = params.narrow(0, self.weight.start, self.weight.len())?.reshape((self.n_in, self.n_out))?;
        let bias = params.narrow(0, self.bias.start, self.bias.len())?;
        let z = precision.matmul(x, &weight)?.broadcast_add(&bias)?;
        self.norm.as_ref().map_or(Ok(z.clone()), |norm| norm.forward(params, &z))
    }
}

/// Functions after a hidden layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hidden {
    pub(crate) activation: Activation,
    /// True if the layer's sums are normalized.
    pub(crate) layer_norm: bool,
}

/// Linear layers, of which all but the last are hidden.
///
/// In a trunk, the last one is hidden too.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
    trunk: bool,
}

impl Mlp {
    /// Creates layers of `sizes` (inputs first).
    ///
    /// Appends their tensors to `layout` as `name.0.weight`, `name.0.bias`, with a normalization `name.0.norm.weight`,
    /// `name.0.norm.bias`, ...
    pub(crate) fn new(layout: &mut Layout, name: &str, sizes: &[usize], hidden: Hidden, trunk: bool) -> Self {
        let Hidden { activation, layer_norm } = hidden;
        let n_hidden = sizes.len().saturating_sub(if trunk { 1 } else { 2 });
        let layer = |(i, size): (usize, &[usize])| {
            let mut linear = Linear::new(layout, &format!("{name}.{i}"), size[0], size[1]);
            let is_normed = layer_norm && i < n_hidden;
            linear.norm = is_normed.then(|| LayerNorm::new(layout, &format!("{name}.{i}.norm"), size[1]));
            linear
        };
        Self { layers: sizes.windows(2).enumerate().map(layer).collect(), activation, trunk }
    }

    /// Layers, in order.
    pub(crate) fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// True if the activation follows the last layer too.
    pub(crate) fn is_trunk(&self) -> bool {
        self.trunk
    }

    /// Draws weights and biases.
    ///
    /// The gain of orthogonal weights is sqrt(2), in the last layer `last_gain`. `first_index` is the index of the first layer
    /// among all layers drawn from one seed.
    pub(crate) fn init(&self, params: &mut [f32], last_gain: f32, init: Initialization, first_index: u32) {
        for ((i, layer), index) in self.layers.iter().enumerate().zip(first_index..) {
            let gain = if i + 1 == self.layers.len() { last_gain } else { std::f32::consts::SQRT_2 };
            init.layer(&mut params[layer.range()], [layer.n_in, layer.n_out], layer.n_in, gain, index);
            layer.norm.iter().for_each(|norm| norm.init(params));
        }
    }

    /// Number of layers.
    pub(crate) fn n_layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Computes outputs (B, out) of inputs (B, in) with candle operations.
    ///
    /// `params` is the whole vector (P); `precision` is that of the products.
    pub(crate) fn forward(&self, params: &Tensor, inputs: &Tensor, precision: Precision) -> candle_core::Result<Tensor> {
        let mut x = inputs.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(params, &x, precision)?;
            if i + 1 < self.layers.len() || self.trunk {
                x = self.activation.forward(&x)?;
            }
        }
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn a_network_equals_the_case_worked_out_by_hand() {
        let mut layout = Layout::default();
        let hidden = Hidden { activation: Activation::Relu, layer_norm: false };
        let relu = Mlp::new(&mut layout, "net", &[2, 2, 1], hidden, false);
        let names: Vec<&str> = layout.tensors().iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"]);
        // Hidden: (1, 2) [[1, -1], [2, 1]] + (0.5, -3) = (5.5, -2); after ReLU (5.5, 0). Output: 5.5 * 2 + 0 * 7 + 1 = 12.
        let params = [1.0f32, -1.0, 2.0, 1.0, 0.5, -3.0, 2.0, 7.0, 1.0];
        let params = Tensor::from_slice(&params, 9, &Device::Cpu).unwrap();
        let inputs = Tensor::from_slice(&[1.0f32, 2.0], (1, 2), &Device::Cpu).unwrap();
        assert_eq!(relu.forward(&params, &inputs, Precision::F32).unwrap().to_vec2::<f32>().unwrap(), [[12.0]]);
        let tanh = Mlp { activation: Activation::Tanh, ..relu };
        let expected = 2.0 * 5.5f32.tanh() + 7.0 * (-2.0f32).tanh() + 1.0;
        let got = tanh.forward(&params, &inputs, Precision::F32).unwrap().to_vec2::<f32>().unwrap()[0][0];
        assert!((got - expected).abs() < 1e-6);
    }
}
