//! Memory of networks, computed from their shape before anything is allocated.

use crate::kernel::net::Lens;
use crate::kernel::samples::TILE;
use crate::network::params::init_bytes;
use crate::policy::network::NetworkShape;
use crate::{Activation, LearnerKind, NetConfig, Precision, kernel::layered, kernel::sequences, kernel::slices};

/// Bytes of the networks of one agent, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetSize {
    /// One parameter vector: parameters, a gradient, a moment, or a snapshot.
    pub params: u64,
    /// One policy that acts or learns: its parameters, and the kernel's packed copy.
    pub policy: u64,
    /// Scratch of one acting thread.
    pub acting: u64,
    /// Scratch of one slice of a minibatch that passes in tiles; 0 with the reference.
    ///
    /// It counts the workspace of a thread, although slices share those of fewer threads.
    ///
    /// For a wide network, these are the sums kept by a minibatch of several chunks.
    pub slice: u64,
    /// Additional memory while parameters are drawn.
    pub init: u64,
    /// Number of parameter-sized tensors in a reference update; 0 with the tile kernel.
    pub tensors: u64,
    /// One sample's activations and gradients; 0 if minibatches pass in tiles.
    pub sample: u64,
    /// One environment's state of the memory; 0 without memory.
    pub state: u64,
    /// One sample's numbers of the memory in a block of sequences, or 0.
    pub sequence: u64,
    /// True if minibatches without memory pass convolutions.
    convolves: bool,
}

impl NetSize {
    /// Scratch of a minibatch of `n` samples with the tile kernel.
    #[must_use]
    pub fn minibatch(&self, n: u64) -> u64 {
        let numbers = |bytes: u64| usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let n_samples = usize::try_from(n).unwrap_or(usize::MAX);
        if self.sample > 0 {
            let rows = layered::height(n_samples) as u64;
            rows.saturating_mul(self.sample) + if n_samples > layered::CHUNK { self.slice } else { 0 }
        } else {
            (slices::of_minibatch(n_samples, numbers(self.params), self.convolves) as u64).saturating_mul(self.slice)
        }
    }

    /// Scratch of the memory for a minibatch of `n` samples: 0 without memory.
    ///
    /// Each of `threads` holds a block of sequences of `n_steps`.
    #[must_use]
    pub fn sequences(&self, n: u64, n_steps: u64, threads: u64) -> u64 {
        n.min(threads.saturating_mul(sequences::BLOCK as u64).saturating_mul(n_steps)).saturating_mul(self.sequence)
    }
}

/// Copies of the parameters in candle's backward pass.
///
/// The variable, its gradient, and slices of both.
const TENSORS: u64 = 5;
/// Tensors of the activations' size in candle's backward pass.
///
/// Products, sums with biases, activations, and the gradient of each.
const ACTIVATIONS: u64 = 8;
/// Further tensors with GELU: six operations, and the gradient of each.
const OF_GELU: u64 = 12;
/// Further tensors with layer normalization: five operations and their gradients.
const OF_NORM: u64 = 10;

impl NetworkShape {
    /// Memory of the networks.
    pub(crate) fn size(&self, net: &NetConfig, n_actions: usize) -> NetSize {
        let (Self { layout, encoder, cells, .. }, mlps) = (self, self.mlps());
        let bytes = |numbers: usize| 4 * numbers as u64;
        let params = bytes(layout.len());
        let orthogonal = layout.tensors().iter().filter(|_| net.ortho_init);
        let init = orthogonal.map(|tensor| init_bytes(&tensor.shape)).max().unwrap_or(0);
        let columns = bytes(2 * n_actions * TILE);
        let size =
            NetSize { params, policy: params, acting: columns, init, state: bytes(cells.state_len()), ..NetSize::default() };
        match net.learner {
            LearnerKind::Fused => {
                let kernel = self.kernel(net.activation);
                let Lens { packed, forward, learning, sample, sequence } = kernel.lens();
                let wide = layered::suits(&kernel);
                let (slice, sample) = if wide { (layered::sums_len(&kernel), sample) } else { (learning, 0) };
                let (policy, acting) = (params + bytes(packed), columns + bytes(forward));
                let (slice, sample, sequence) = (bytes(slice), bytes(sample), bytes(sequence));
                let convolves = kernel.convolves() && kernel.memory.is_none();
                NetSize { policy, acting, slice, sample, sequence, convolves, ..size }
            }
            LearnerKind::Reference => {
                let outputs: usize = mlps.iter().flat_map(|(mlp, _)| mlp.layers()).map(|layer| layer.n_out).sum();
                // One-hot vectors as comparisons, as numbers, and beside the other inputs.
                let inputs = if encoder.categories().is_some() { 3 * encoder.n_out() } else { 0 };
                // Sums and values of the gates, and the states.
                let of_cells: usize = cells.0.iter().map(|cell| 4 * cell.inputs.len() * cell.size + 2 * cell.state_len()).sum();
                let activations = encoder.n_out() + encoder.patches() + of_cells + outputs;
                // Products in 16 bits have rounded copies of their operands, sums and gradients.
                let copies = if net.precision == Precision::F32 { 1 } else { 2 };
                let of_gelu = if net.activation == Activation::Gelu { OF_GELU } else { 0 };
                let tensors = ACTIVATIONS + of_gelu + if net.layer_norm { OF_NORM } else { 0 };
                NetSize {
                    tensors: copies * TENSORS * params,
                    sample: copies * tensors * bytes(activations) + bytes(inputs),
                    ..size
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActorCritic, QNetwork};
    use rl_envs::{ActionSpace, Space};

    #[test]
    fn a_size_is_that_of_the_network_and_huge_ones_are_counted_too() {
        let (obs, actions) = (Space::bytes(&[5, 12, 12], 1, 1.0), ActionSpace::Discrete { n: 4, masked: true });
        for (conv, hidden) in [(vec![], vec![33, 65]), (vec![[16, 3, 1], [31, 3, 2]], vec![64])] {
            for shared_trunk in [false, true] {
                let (conv, hidden, layer_norm) = (conv.clone(), hidden.clone(), conv.is_empty());
                let net = NetConfig { conv, hidden, shared_trunk, layer_norm, ..NetConfig::default() };
                let size = ActorCritic::size(&obs, &actions, &net).unwrap();
                let policy = ActorCritic::unset(&obs, &actions, &net).unwrap();
                assert_eq!(size.params, 4 * policy.params().len() as u64);
                let packed = policy.network().kernel().unwrap().packed;
                assert_eq!(size.policy - size.params, 4 * packed.len() as u64);
                let network = QNetwork::unset(&obs, &actions, &net, shared_trunk).unwrap();
                let size = QNetwork::size(&obs, &actions, &net, shared_trunk).unwrap();
                assert_eq!(size.params, 4 * network.params().len() as u64);
            }
        }
        let net = NetConfig { hidden: vec![65_536; 64], ..NetConfig::default() };
        assert!(ActorCritic::size(&obs, &actions, &net).unwrap().params > 1 << 40);
    }
}
