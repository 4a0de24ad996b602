//! A policy as data: everything between an observation and an action.

use std::ops::Range;

/// A policy with all that it does before and after its network.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// Origin of the policy, in words.
    pub about: String,
    /// Observations that the policy reads.
    pub input: Input,
    /// Parts of an observation that have layers of their own.
    ///
    /// The first of `layers` reads the outputs of all parts, one after the other; without parts, it reads the observation.
    pub parts: Vec<Part>,
    /// Layers of the network, in order; each reads the outputs of the one before.
    pub layers: Vec<Layer>,
    /// Actions from the outputs of the last layer.
    pub head: Head,
}

/// Observations, and what is done to them before the first layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Shape of an observation: D elements.
    pub shape: Vec<usize>,
    /// Number of frames that an observation stacks along its first axis, oldest first.
    pub frames: usize,
    /// Scale of byte observations; `None` for elements that are f32.
    pub bytes: Option<f32>,
    /// Mean and inverse standard deviation of each element, (D) each.
    ///
    /// Where observations are normalized, an element becomes `(x - mean) * inv_std`, clipped to +-10.
    pub normalize: Option<[Vec<f32>; 2]>,
    /// Number of categories of each element (D), 0 for a number.
    ///
    /// Empty if all elements are numbers.
    pub categories: Vec<u32>,
}

/// Elements of an observation that follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Number of elements.
    pub len: usize,
    /// Convolutions of a picture; empty for numbers and categories.
    ///
    /// Without layers, a part's outputs are its numbers, and a one-hot vector for each category.
    pub layers: Vec<Layer>,
}

/// One layer with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Kind of the layer.
    pub kind: LayerKind,
    /// Weights, (terms, outputs): terms in the order of summation.
    pub weight: Vec<f32>,
    /// Biases, (outputs).
    pub bias: Vec<f32>,
    /// Activation of each output.
    pub activation: Activation,
}

/// Kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Every output reads every input.
    ///
    /// Inputs come in runs of `real` numbers; in the order of summation a run has `padded` places.
    Dense {
        /// Length of a run.
        real: usize,
        /// Places of a run.
        padded: usize,
    },
    /// Convolution with a square kernel and without padding.
    ///
    /// Outputs are (rows, columns, channels).
    Conv {
        /// Channels, rows and columns of the input.
        input: [usize; 3],
        /// Rows of the kernel, which has as many columns.
        kernel: usize,
        /// Distance between positions.
        stride: usize,
        /// True if the input is (channels, rows, columns), with terms in this order.
        ///
        /// False for (rows, columns, channels).
        planes: bool,
    },
    /// A step of a gated recurrent unit with H outputs, which are its state h, too.
    ///
    /// Inputs are the sums `a` of its gates r, z and n, (3 H). The layer's own sums are `u`, (3 H), of the state before the step.
    /// `r = sigmoid(a_r + u_r)`, `z = sigmoid(a_z + u_z)`, `n = tanh(a_n + r u_n)`, `h' = n + z (h - n)`.
    Gru,
    /// A step of a long short-term memory with H outputs h, whose state is (h, c).
    ///
    /// Inputs are the sums `a` of its gates i, f, g and o, (4 H). The layer's own sums are `u`, (4 H), of h before the step.
    /// `i = sigmoid(a_i + u_i)`, `f` and `o` likewise, `g = tanh(a_g + u_g)`, `c' = f c + i g`, `h' = o tanh(c')`.
    Lstm,
    /// Normalization of the inputs x, times the weights, plus the biases.
    ///
    /// Normalized, they are `(x - mean) / sqrt(variance + 1e-5)`.
    Norm,
}

impl LayerKind {
    /// Number of gates, and of vectors of H numbers that are the state.
    fn memory(self) -> [usize; 2] {
        match self {
            Self::Dense { .. } | Self::Conv { .. } | Self::Norm => [1, 0],
            Self::Gru => [3, 1],
            Self::Lstm => [4, 2],
        }
    }
}

/// Function after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// The greater of 0 and the number.
    Relu,
    /// The number above 0, else its exponential less 1.
    Elu,
    /// The number times its logistic function.
    Silu,
    /// The number times the normal distribution function, approximated with tanh.
    Gelu,
}

/// Distribution, or choice, of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Head {
    /// Outputs are logits, head after head; an action is a choice from each head.
    Categorical {
        /// Number of choices of each head.
        sizes: Vec<u32>,
        /// True if the environment says which actions are legal; there is one head then.
        masked: bool,
    },
    /// Outputs are action values, or advantages followed by a value.
    ///
    /// The action is the best legal one.
    Values {
        /// Number of actions.
        n: u32,
        /// True if the environment says which actions are legal.
        masked: bool,
        /// True if a value follows the advantages.
        dueling: bool,
    },
    /// Outputs are means.
    Gaussian {
        /// Logarithms of the standard deviations, (A).
        log_std: Vec<f32>,
        /// Least and greatest action, (A) each: the environment clips to them.
        bounds: [Vec<f32>; 2],
    },
    /// Outputs are means, followed by logarithms of standard deviations.
    ///
    /// The tanh of a draw is scaled to the bounds.
    Squashed {
        /// Least and greatest action, (A) each.
        bounds: [Vec<f32>; 2],
    },
    /// Outputs are pre-tanh actions; the tanh is scaled to the bounds.
    Deterministic {
        /// Least and greatest action, (A) each.
        bounds: [Vec<f32>; 2],
    },
}

impl Input {
    /// Number of elements D of an observation.
    #[expect(clippy::len_without_is_empty, reason = "observations are not containers")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Layer {
    /// Number of terms of an output.
    #[must_use]
    pub fn n_terms(&self) -> usize {
        self.weight.len() / self.bias.len().max(1)
    }

    /// Number of outputs: of a convolution, at all positions.
    #[must_use]
    pub fn n_out(&self) -> usize {
        match self.kind {
            LayerKind::Dense { .. } | LayerKind::Gru | LayerKind::Lstm | LayerKind::Norm => {
                self.bias.len() / self.kind.memory()[0]
            }
            LayerKind::Conv { input: [_, rows, columns], kernel, stride, .. } => {
                ((rows - kernel) / stride + 1) * ((columns - kernel) / stride + 1) * self.bias.len()
            }
        }
    }

    /// Number of elements of the layer's state; 0 without memory.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.kind.memory()[1] * self.n_out()
    }
}

/// Number of inputs of a layer for some elements.
///
/// One for a number, and one for each category.
fn n_inputs(categories: &[u32], elements: Range<usize>) -> usize {
    elements.map(|i| categories.get(i).map_or(1, |&n| n.max(1) as usize)).sum()
}

impl Part {
    /// Number of outputs.
    ///
    /// `categories` are those of all elements, of which `first` is the part's first.
    #[must_use]
    pub fn n_out(&self, categories: &[u32], first: usize) -> usize {
        self.layers.last().map_or_else(|| n_inputs(categories, first..first + self.len), Layer::n_out)
    }
}

impl Head {
    /// True if actions are drawn from a distribution.
    #[must_use]
    pub fn draws(&self) -> bool {
        !matches!(self, Self::Values { .. } | Self::Deterministic { .. })
    }

    /// Number of outputs of the last layer.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        match self {
            Self::Categorical { sizes, .. } => sizes.iter().map(|&n| n as usize).sum(),
            Self::Values { n, dueling, .. } => *n as usize + usize::from(*dueling),
            Self::Gaussian { bounds, .. } | Self::Deterministic { bounds } => bounds[0].len(),
            Self::Squashed { bounds } => 2 * bounds[0].len(),
        }
    }

    /// Number of choices, or of dimensions, of an action.
    #[must_use]
    pub fn action_len(&self) -> usize {
        match self {
            Self::Categorical { sizes, .. } => sizes.len(),
            Self::Values { .. } => 1,
            Self::Gaussian { bounds, .. } | Self::Squashed { bounds } | Self::Deterministic { bounds } => bounds[0].len(),
        }
    }

    /// Length of the action mask; 0 without masks.
    #[must_use]
    pub fn mask_len(&self) -> usize {
        match self {
            Self::Categorical { sizes, masked: true } => sizes[0] as usize,
            Self::Values { n, masked: true, .. } => *n as usize,
            _ => 0,
        }
    }
}

impl Exported {
    /// Layers of all parts, and of the network behind them.
    pub fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        self.parts.iter().flat_map(|part| &part.layers).chain(&self.layers)
    }

    /// Number of outputs of all parts; 0 without parts.
    #[must_use]
    pub fn n_features(&self) -> usize {
        let (mut first, mut n) = (0, 0);
        for part in &self.parts {
            n += part.n_out(&self.input.categories, first);
            first += part.len;
        }
        n
    }

    /// Index of the first layer's input for an element of the observation.
    ///
    /// The first of them for a category; `None` within a picture that has convolutions.
    #[must_use]
    pub fn input_of(&self, element: usize) -> Option<usize> {
        let inputs = |elements| n_inputs(&self.input.categories, elements);
        let (mut first, mut n) = (0, 0);
        for part in &self.parts {
            if element < first + part.len {
                return part.layers.is_empty().then(|| n + inputs(first..element));
            }
            n += part.n_out(&self.input.categories, first);
            first += part.len;
        }
        Some(n + inputs(first..element))
    }

    /// True if each category selects a row of the first layer's weights.
    pub(crate) fn gathers(&self) -> bool {
        self.parts.is_empty() && !self.input.categories.is_empty()
    }

    /// Number of parameters.
    #[must_use]
    pub fn n_params(&self) -> usize {
        self.all_layers().map(|layer| layer.weight.len() + layer.bias.len()).sum()
    }

    /// Number of elements of the state; 0 without memory.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.layers.iter().map(Layer::state_len).sum()
    }

    /// Number of multiply-adds of an action.
    #[must_use]
    pub fn multiply_adds(&self) -> usize {
        let of = |layer: &Layer| match layer.kind {
            LayerKind::Conv { .. } => layer.weight.len() * layer.n_out() / layer.bias.len().max(1),
            _ => layer.weight.len(),
        };
        // A category reads one row of the weights.
        let gathers = if self.gathers() { self.layers.first() } else { None };
        let saved = gathers.map_or(0, |layer| of(layer) - self.input.len() * layer.n_out());
        self.all_layers().map(of).sum::<usize>() - saved
    }
}
