//! Policies as data for other programs: see [`rl_policy`].

use rl_envs::{ActionSpace, Dtype, Space};
use rl_policy::{Exported, Head, Input, Layer, LayerKind, Part};

use crate::kernel::encoder::conv::ConvShape;
use crate::kernel::gemm::pad;
use crate::network::activation::Activation;
use crate::network::mlp::{Linear, Mlp};
use crate::network::recurrent::MemoryKind;
use crate::policy::network::Network;

impl From<Activation> for rl_policy::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Tanh => Self::Tanh,
            Activation::Relu => Self::Relu,
            Activation::Elu => Self::Elu,
            Activation::Silu => Self::Silu,
            Activation::Gelu => Self::Gelu,
        }
    }
}

/// Least and greatest action, (A) each; `None` for discrete actions.
pub(crate) fn bounds(actions: &ActionSpace) -> Option<[Vec<f32>; 2]> {
    let ActionSpace::Continuous { low, high } = actions else { return None };
    Some([low.clone(), high.clone()])
}

/// Joins layers that read the same inputs: their outputs follow each other.
fn joined(layers: &[&Linear], params: &[f32], kind: LayerKind) -> Layer {
    let rows = (0..layers[0].n_in)
        .flat_map(|i| layers.iter().flat_map(move |layer| &params[layer.weight.clone()][i * layer.n_out..(i + 1) * layer.n_out]));
    let weight = rows.copied().collect();
    let bias = layers.iter().flat_map(|layer| &params[layer.bias.clone()]).copied().collect();
    Layer { kind, weight, bias, activation: rl_policy::Activation::Identity }
}

fn convolution(shape: &ConvShape, planes: bool, params: &[f32], activation: Activation) -> Layer {
    let &ConvShape { n_in, n_out, kernel, stride, in_size: [rows, columns], .. } = shape;
    let weight = &params[shape.weight.clone()]; // (out, in, kernel, kernel)
    let square = kernel * kernel;
    let term = |i: usize| if planes { i } else { i % n_in * square + i / n_in };
    let terms = n_in * square;
    let weight = (0..terms).flat_map(|i| (0..n_out).map(move |o| weight[o * terms + term(i)])).collect();
    let kind = LayerKind::Conv { input: [n_in, rows, columns], kernel, stride, planes };
    Layer { kind, weight, bias: params[shape.bias.clone()].to_vec(), activation: activation.into() }
}

/// Appends channels of zeros to a convolution, up to the padded number.
fn widen(layer: &mut Layer) {
    let (n, padded) = (layer.bias.len(), pad(layer.bias.len()));
    layer.weight = layer.weight.chunks_exact(n).flat_map(|row| row.iter().copied().chain(vec![0.0; padded - n])).collect();
    layer.bias.resize(padded, 0.0);
}

/// Inserts rows of zeros into a dense layer, for inputs that are padding.
fn spread(layer: &mut Layer, is_real: &[bool]) {
    let n = layer.bias.len();
    let mut rows = layer.weight.chunks_exact(n);
    let row = |&is_real: &bool| if is_real { rows.next().expect("a row of each input").to_vec() } else { vec![0.0; n] };
    layer.weight = is_real.iter().flat_map(row).collect();
    layer.kind = LayerKind::Dense { real: is_real.len(), padded: is_real.len() };
}

impl Network {
    /// Exports the network with some of its heads, and the policy's `head`.
    ///
    /// The outputs of `heads` follow each other. All of `heads` read a common trunk or memory, or there is one.
    pub(crate) fn exported(&self, obs: &Space, heads: &[usize], head: Head) -> Exported {
        let shape = self.shape();
        let (params, activation) = (self.params(), shape.encoder.activation());
        let convolutions = |layers: &[ConvShape]| -> Vec<_> {
            layers.iter().enumerate().map(|(i, conv)| convolution(conv, i == 0, params, activation)).collect()
        };
        // Inputs of the first dense layer come in runs of channels.
        let run = |layers: &[ConvShape]| layers.last().map(|conv| (conv.n_out, pad(conv.n_out)));
        let (mut parts, mut layers, mut runs, mut inputs) = (Vec::new(), Vec::new(), None, Vec::new());
        match &shape.encoder.segments().collect::<Vec<_>>()[..] {
            [(_, picture)] => (layers, runs) = (convolutions(picture), run(picture)),
            segments => {
                for (elements, picture) in segments {
                    let mut part = Part { len: elements.len(), layers: convolutions(picture) };
                    part.layers.last_mut().into_iter().for_each(widen);
                    let n = part.n_out(obs.categories(), elements.start);
                    let (real, padded) = run(picture).unwrap_or((n, n));
                    inputs.extend((0..n).map(|i| i % padded < real));
                    parts.push(part);
                }
            }
        }
        let mut add = |linears: &[&Linear], memory: Option<LayerKind>, activation: Option<Activation>| {
            let (real, padded) = runs.take().unwrap_or((linears[0].n_in, linears[0].n_in));
            let mut layer = joined(linears, params, memory.unwrap_or(LayerKind::Dense { real, padded }));
            layer.activation = activation.map_or(rl_policy::Activation::Identity, Into::into);
            if !inputs.is_empty() {
                spread(&mut layer, &std::mem::take(&mut inputs));
            }
            let norm = linears[0].norm.as_ref().map(|norm| {
                let [weight, bias] = [&norm.gain, &norm.offset].map(|range| params[range.clone()].to_vec());
                let activation = std::mem::replace(&mut layer.activation, rl_policy::Activation::Identity);
                Layer { kind: LayerKind::Norm, weight, bias, activation }
            });
            layers.push(layer);
            layers.extend(norm);
        };
        if !shape.cells.0.is_empty() {
            let cell = &shape.cells.0[shape.cells.of_head(heads[0])];
            let kind = if cell.kind == MemoryKind::Gru { LayerKind::Gru } else { LayerKind::Lstm };
            add(&cell.inputs.iter().collect::<Vec<_>>(), None, None);
            add(&cell.hidden.iter().collect::<Vec<_>>(), Some(kind), None);
        }
        for linear in shape.trunk().into_iter().flat_map(Mlp::layers) {
            add(&[linear], None, Some(activation));
        }
        // Several heads have one layer each.
        let of_heads: Vec<_> = heads.iter().map(|&head| shape.heads()[head].layers()).collect();
        let n_layers = of_heads[0].len();
        for i in 0..n_layers {
            let linears: Vec<_> = of_heads.iter().map(|layers| &layers[i]).collect();
            add(&linears, None, (i + 1 < n_layers).then_some(activation));
        }
        Exported { about: String::new(), input: self.input(obs), parts, layers, head }
    }

    fn input(&self, obs: &Space) -> Input {
        let normalize = self.normalizer().map(|normalizer| normalizer.of_elements().map(<[f32]>::to_vec));
        Input {
            shape: obs.shape().to_vec(),
            frames: obs.stack(),
            bytes: (obs.dtype() == Dtype::U8).then_some(obs.scale()),
            normalize,
            categories: obs.categories().to_vec(),
        }
    }
}
