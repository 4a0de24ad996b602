//! The file that [`Policy::new`](crate::Policy::new) reads.

use crate::exported::{Activation, Exported, Head, Layer, LayerKind};
use crate::format::{self, MAGIC, VERSION, checksum};

/// Bytes of a file, as it grows.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&mut self, x: usize) {
        self.0.extend(u32::try_from(x).expect("a length below 2^32").to_le_bytes());
    }

    fn u32s(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|x| self.0.extend(x.to_le_bytes()));
    }

    fn f32s(&mut self, numbers: &[f32]) {
        numbers.iter().for_each(|x| self.0.extend(x.to_le_bytes()));
    }
}

/// Returns the policy as a file for this crate's loader.
///
/// The module `format` of the source has the layout.
///
/// # Panics
/// If a length exceeds 32 bits.
#[must_use]
pub fn file(policy: &Exported) -> Vec<u8> {
    let Exported { about, input, parts, layers, head } = policy;
    let mut body = Bytes::default();
    body.u32(about.len());
    body.0.extend(about.bytes());
    body.0.resize(body.0.len().next_multiple_of(4), 0);
    body.u32(input.shape.len());
    input.shape.iter().for_each(|&n| body.u32(n));
    body.u32(input.frames);
    body.u32(usize::from(input.bytes.is_some()));
    body.f32s(&[input.bytes.unwrap_or(1.0)]);
    body.u32(usize::from(input.normalize.is_some()));
    input.normalize.iter().flatten().for_each(|numbers| body.f32s(numbers));
    body.u32(input.categories.len());
    body.u32s(&input.categories);
    match head {
        Head::Categorical { sizes, masked } => {
            [format::CATEGORICAL as usize, sizes.len(), usize::from(*masked)].into_iter().for_each(|x| body.u32(x));
            body.u32s(sizes);
        }
        Head::Values { n, masked, dueling } => {
            let flags = usize::from(*masked) + 2 * usize::from(*dueling);
            [format::VALUES as usize, *n as usize, flags].into_iter().for_each(|x| body.u32(x));
        }
        Head::Gaussian { bounds, .. } | Head::Squashed { bounds } | Head::Deterministic { bounds } => {
            let kind = match head {
                Head::Gaussian { .. } => format::GAUSSIAN,
                Head::Squashed { .. } => format::SQUASHED,
                _ => format::DETERMINISTIC,
            };
            [kind as usize, bounds[0].len(), 0].into_iter().for_each(|x| body.u32(x));
            bounds.iter().for_each(|numbers| body.f32s(numbers));
            if let Head::Gaussian { log_std, .. } = head {
                body.f32s(log_std);
            }
        }
    }
    body.u32(parts.len());
    for part in parts {
        body.u32(part.len);
        write_layers(&mut body, &part.layers);
    }
    write_layers(&mut body, layers);
    let mut whole = Bytes(MAGIC.to_vec());
    whole.u32s(&[VERSION]);
    whole.u32(MAGIC.len() + 12 + body.0.len());
    whole.u32s(&[checksum(&body.0)]);
    whole.0.extend(body.0);
    whole.0
}

fn write_layers(body: &mut Bytes, layers: &[Layer]) {
    body.u32(layers.len());
    for layer in layers {
        match layer.kind {
            LayerKind::Dense { real, padded } => [format::DENSE as usize, real, padded].into_iter().for_each(|x| body.u32(x)),
            LayerKind::Conv { input: [channels, rows, columns], kernel, stride, planes } => {
                let numbers = [format::CONV as usize, channels, rows, columns, kernel, stride, usize::from(planes)];
                numbers.into_iter().for_each(|x| body.u32(x));
            }
            LayerKind::Gru => body.u32s(&[format::GRU]),
            LayerKind::Lstm => body.u32s(&[format::LSTM]),
            LayerKind::Norm => body.u32s(&[format::NORM]),
        }
        body.u32s(&[match layer.activation {
            Activation::Identity => format::IDENTITY,
            Activation::Tanh => format::TANH,
            Activation::Relu => format::RELU,
            Activation::Elu => format::ELU,
            Activation::Silu => format::SILU,
            Activation::Gelu => format::GELU,
        }]);
        body.u32(layer.n_terms());
        body.u32(layer.bias.len());
        body.f32s(&layer.weight);
        body.f32s(&layer.bias);
    }
}
