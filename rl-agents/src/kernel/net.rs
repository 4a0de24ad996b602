//! Networks in the layouts of the kernel: chains of dense layers.
//!
//! A chain starts at the observation, at the features of an encoder, at the outputs of the memory, or at the output of
//! another chain (a shared trunk).

use std::ops::Range;

use rl_envs::Pool;
use rl_envs::isa::Isa;

use crate::kernel::aligned::Aligned;
use crate::kernel::dense::{Dense, InputRuns, Part};
use crate::kernel::encoder::memory::MemoryStage;
use crate::kernel::encoder::parts::{Encoder, EncoderStage};
use crate::kernel::gemm::{PANEL, panels};
use crate::kernel::samples::TILE;
use crate::network::activation::Activation;
use crate::network::mlp::Mlp;
use crate::network::recurrent::Cells;
use crate::probe::{Stage, Threads};

/// Length of packed parameters from which several threads pack them.
const MANY: usize = 1 << 16;

/// A sequence of dense layers.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) layers: Range<usize>,
    /// Index of the chain that this chain starts from; `None` for the inputs.
    pub(crate) from: Option<usize>,
    /// Index of the cell whose outputs it starts from, if there is memory.
    pub(crate) cell: usize,
    /// Offset of its inputs in the matrix of a tile, where it starts from them.
    pub(crate) first: usize,
    /// True if the activation follows the last layer too, as in a trunk.
    pub(crate) activated: bool,
}

impl Chain {
    /// Index of the last layer.
    pub(crate) fn last(&self) -> usize {
        self.layers.end - 1
    }
}

/// Place of a layer among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Index of the layer that this layer reads; `None` for the observation.
    pub(crate) source: Option<usize>,
    /// Number of layers before this one.
    pub(crate) depth: usize,
    /// Activation after this layer.
    pub(crate) activation: Option<Activation>,
}

/// Networks in the layouts of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    /// Encoder of observations, if dense layers do not read these themselves.
    pub(crate) encoder: Option<EncoderStage>,
    pub(crate) memory: Option<MemoryStage>,
    pub(crate) layers: Vec<Dense>,
    pub(crate) places: Vec<Place>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) activation: Activation,
    /// Number of elements that a first chain reads.
    ///
    /// An input is an element of the observation, a padded feature, or an output of the memory.
    pub(crate) n_in: usize,
    pub(crate) packed_len: usize,
    pub(crate) grad_len: usize,
    /// False if only outputs are wanted.
    ///
    /// Transposed weights are then not packed.
    pub(crate) goes_back: bool,
}

/// A piece of the packed parameters.
enum Piece<'a> {
    Encoder(&'a EncoderStage),
    Dense(&'a Dense, Part),
}

impl Net {
    /// Builds a chain for each network of `mlps`.
    ///
    /// Each network comes with the index of the network that it starts from; `None` is the features of the `encoder`, or without
    /// its stage the observation, of which some elements may be categories. If there are `cells`, they read the features, and
    /// a network reads the outputs of one of them. A network that another one starts from must be a trunk.
    pub(crate) fn new(encoder: &Encoder, cells: &Cells, mlps: &[(&Mlp, Option<usize>)], activation: Activation) -> Self {
        let (mut packed_len, mut grad_len) = (0, 0);
        let stage = EncoderStage::new(encoder, &mut packed_len, &mut grad_len);
        // The stage makes one-hot vectors; without it, first layers gather rows of their weights.
        let categories = encoder.categories().filter(|_| stage.is_none());
        let features = stage.as_ref().map_or_else(|| InputRuns::one(encoder.n_out()), |stage| stage.features().clone());
        let n_features = categories.map_or(features.len(), |all| all.n_elements());
        let memory = MemoryStage::new(cells, &features, n_features, categories, &mut packed_len, &mut grad_len);
        let n_in = memory.as_ref().map_or(n_features, MemoryStage::n_out);
        let (mut layers, mut places, mut chains) = (Vec::new(), Vec::<Place>::new(), Vec::<Chain>::new());
        for (head, (mlp, from)) in mlps.iter().enumerate() {
            let first = layers.len();
            let mut source = from.map(|from| chains[from].last());
            for (i, linear) in mlp.layers().iter().enumerate() {
                let reads_features = source.is_none() && memory.is_none();
                let inputs = if reads_features { features.clone() } else { InputRuns::one(linear.n_in) };
                let categories = categories.filter(|_| reads_features).cloned();
                layers.push(Dense::new(linear, inputs, categories, &mut packed_len, &mut grad_len));
                let activated = i + 1 < mlp.layers().len() || mlp.is_trunk();
                let depth = source.map_or(0, |source| places[source].depth + 1);
                places.push(Place { source, depth, activation: activated.then_some(activation) });
                source = Some(layers.len() - 1);
            }
            let cell = memory.as_ref().map_or(0, |_| cells.of_head(head));
            let column = memory.as_ref().map_or(0, |memory| memory.first_column(cell));
            let layers = first..layers.len();
            chains.push(Chain { layers, from: *from, cell, first: column * TILE, activated: mlp.is_trunk() });
        }
        Self { encoder: stage, memory, layers, places, chains, activation, n_in, packed_len, grad_len, goes_back: true }
    }

    /// Copies the parameters into the layouts of the kernel.
    pub(crate) fn pack(&self, params: &[f32], packed: &mut [f32], threads: Threads<'_>) {
        let pack = |(piece, to): &mut (Piece<'_>, &mut [f32])| match piece {
            Piece::Encoder(encoder) => encoder.pack(params, to),
            Piece::Dense(_, Part::Transpose(_)) if !self.goes_back => {}
            Piece::Dense(layer, part) => layer.pack(*part, params, to),
        };
        if self.packed_len < MANY {
            self.pieces(packed, |piece, to| pack(&mut (piece, to)));
            threads.report(Stage::Packing);
        } else {
            let mut pieces = Vec::new();
            self.pieces(packed, |piece, to| pieces.push((piece, to)));
            threads.each(Stage::Packing, &mut pieces, &pack);
        }
    }

    /// Cuts the packed parameters into pieces, and passes each to `take`.
    fn pieces<'a>(&'a self, packed: &'a mut [f32], mut take: impl FnMut(Piece<'a>, &'a mut [f32])) {
        let mut rest = packed;
        if let Some(encoder) = &self.encoder {
            let (to, more) = rest.split_at_mut(encoder.packed_len());
            take(Piece::Encoder(encoder), to);
            rest = more;
        }
        for layer in self.all_layers() {
            rest = layer.pieces(rest, |part, to| take(Piece::Dense(layer, part), to));
        }
    }

    /// Copies a gradient from the layout of the kernel into the flat gradient.
    pub(crate) fn unpack_gradient(&self, grads: &[f32], flat: &mut [f32]) {
        if let Some(encoder) = &self.encoder {
            encoder.unpack_gradient(grads, flat);
        }
        self.all_layers().for_each(|layer| layer.unpack(grads, flat));
    }

    /// Layers of the memory, and the dense layers after it.
    fn all_layers(&self) -> impl Iterator<Item = &Dense> {
        self.memory.iter().flat_map(MemoryStage::layers).chain(&self.layers)
    }

    /// True if convolutions come before the dense layers.
    pub(crate) fn convolves(&self) -> bool {
        self.encoder.as_ref().is_some_and(EncoderStage::convolves)
    }

    /// Number of layers from the observation to the farthest output.
    pub(crate) fn depth(&self) -> usize {
        self.places.iter().map(|place| place.depth + 1).max().unwrap_or(0)
    }

    /// Indices of the layers that read layer `l`, the last one first.
    pub(crate) fn readers(&self, l: usize) -> impl Iterator<Item = usize> {
        (0..self.layers.len()).rev().filter(move |&reader| self.places[reader].source == Some(l))
    }

    /// True if the slopes of the activation after layer `l` are kept to learn with.
    pub(crate) fn keeps_slopes(&self, l: usize) -> bool {
        self.places[l].activation.is_some_and(Activation::keeps_slopes)
    }

    /// Allocates a matrix for the slopes after each layer that keeps them.
    ///
    /// `matrix` gets the layer's number of outputs. Those of other layers are empty.
    pub(crate) fn slopes(&self, matrix: impl Fn(usize) -> Aligned) -> Vec<Aligned> {
        let of = |(l, layer): (usize, &Dense)| if self.keeps_slopes(l) { matrix(layer.n_out) } else { Aligned::default() };
        self.layers.iter().enumerate().map(of).collect()
    }

    /// Allocates a matrix for each layer whose sums are normalized.
    ///
    /// `matrix` gets the layer's number of outputs. Those of other layers are empty.
    pub(crate) fn normed(&self, matrix: impl Fn(usize) -> Aligned) -> Vec<Aligned> {
        let of = |layer: &Dense| if layer.norm.is_some() { matrix(layer.n_out) } else { Aligned::default() };
        self.layers.iter().map(of).collect()
    }

    /// Lengths of the buffers.
    pub(crate) fn lens(&self) -> Lens {
        let encoder = |learning| self.encoder.as_ref().map_or(0, |encoder| encoder.workspace_len(learning));
        let columns = |n: usize| panels(n) * PANEL;
        let outputs: usize = self.layers.iter().map(|layer| columns(layer.n_out)).sum();
        let (of_step, sequence) = self.memory.as_ref().map_or((0, 0), MemoryStage::lens);
        let of_memory = self.memory.as_ref().map_or(0, |memory| TILE * columns(memory.n_features()));
        let forward = TILE * (columns(self.n_in) + outputs) + of_memory + of_step;
        let input_grads = if self.convolves() || self.memory.is_some() { TILE * columns(self.n_in) } else { 0 };
        let features = input_grads + if self.convolves() { of_memory } else { 0 };
        let slopes: usize = (0..self.layers.len()).filter(|&l| self.keeps_slopes(l)).map(|l| columns(self.layers[l].n_out)).sum();
        let norms = self.layers.iter().filter(|layer| layer.norm.is_some());
        let (inv_stds, normed) = (norms.clone().count(), norms.map(|layer| columns(layer.n_out)).sum::<usize>());
        let kept = slopes + normed + inv_stds;
        let gradients = TILE * (columns(self.widest()) * (self.chains.len() + 1) + kept) + features + self.grad_len;
        Lens {
            packed: self.packed_len,
            forward: forward + encoder(false),
            learning: forward + encoder(true) + gradients,
            sample: columns(self.n_in) + 2 * outputs + kept + normed,
            sequence,
        }
    }

    /// Largest number of outputs of a layer.
    pub(crate) fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.n_out).max().unwrap_or(1)
    }
}

/// Lengths of buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lens {
    /// Packed parameters.
    pub(crate) packed: usize,
    /// Workspace to act with.
    pub(crate) forward: usize,
    /// Workspace to learn from a slice with.
    pub(crate) learning: usize,
    /// One sample of a minibatch that passes layer by layer.
    pub(crate) sample: usize,
    /// One sample of a minibatch of sequences.
    pub(crate) sequence: usize,
}

/// A network with its packed parameters, for an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct PackedNet<'a> {
    pub(crate) isa: Isa,
    pub(crate) net: &'a Net,
    /// Parameters in the layout of the kernel.
    pub(crate) packed: &'a [f32],
}

/// Networks with their current parameters, and the instruction set to run with.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) isa: Isa,
    pub(crate) net: Net,
    packed: Aligned,
}

impl Kernel {
    pub(crate) fn new(net: Net, params: &[f32]) -> Self {
        let packed = Aligned::zeros(net.packed_len);
        let mut kernel = Self { isa: Isa::best(), net, packed };
        kernel.pack(params, Threads::of(&Pool::default()));
        kernel
    }

    /// Copies the parameters and the instruction set of a kernel of the same network.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.isa = other.isa;
        self.packed.copy_from_slice(&other.packed);
    }

    /// Replaces the parameters, on several threads if they are many.
    pub(crate) fn pack(&mut self, params: &[f32], threads: Threads<'_>) {
        self.net.pack(params, &mut self.packed, threads);
    }

    /// Borrows the network with its parameters.
    pub(crate) fn view(&self) -> PackedNet<'_> {
        PackedNet { isa: self.isa, net: &self.net, packed: &self.packed }
    }
}
