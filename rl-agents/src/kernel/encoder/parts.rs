//! Encoder of an observation with several parts.
//!
//! Pictures have convolutions, categories one-hot vectors, numbers stay as they are. The features of the parts follow each other
//! in the order of the observation. Without convolutions, pictures are numbers too, and dense layers read the observation itself;
//! of a critic's categories, vectors are made anyway.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use rl_envs::Space;
use rl_envs::isa::Set;

use crate::kernel::aligned::Aligned;
use crate::kernel::dense::InputRuns;
use crate::kernel::encoder::categories::Categories;
use crate::kernel::encoder::conv::{Conv, ConvShape, ConvStage, ConvWorkspace, Pixels};
use crate::kernel::gemm::write_row;
use crate::kernel::samples::{Samples, TILE};
use crate::network::activation::Activation;
use crate::network::params::{Initialization, Layout};
use crate::{Error, Precision};

/// Elements of an observation that follow each other, and have one encoder.
#[derive(Clone, Debug)]
enum Segment {
    Picture(Conv),
    Numbers(Range<usize>),
}

/// Encoder of observations: features of their parts.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    segments: Vec<Segment>,
    /// Categories among the elements of an observation, if there are any.
    categories: Option<Arc<Categories>>,
    activation: Activation,
    /// Number D of elements of an observation.
    obs_len: usize,
    /// True if categories become one-hot vectors even without convolutions.
    one_hot: bool,
}

impl Encoder {
    /// Creates convolutions of [channels, kernel, stride] for every picture.
    ///
    /// Appends their tensors to `layout` as `conv.0.weight`, ..., or as `conv.NAME.0.weight`, ... for a picture that is a part.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no picture, or one that the layers do not fit.
    pub(crate) fn new(layout: &mut Layout, obs: &Space, sizes: &[[usize; 3]], activation: Activation) -> Result<Self, Error> {
        let (mut segments, mut begin) = (Vec::new(), 0);
        let mut push = |segment: Segment| match (segments.last_mut(), segment) {
            (Some(Segment::Numbers(all)), Segment::Numbers(more)) => all.end = more.end,
            (_, segment) => segments.push(segment),
        };
        if sizes.is_empty() {
            push(Segment::Numbers(0..obs.len()));
        } else if obs.parts().iter().all(|part| part.picture().is_none()) {
            push(Segment::Picture(Conv::new(layout, "", Pixels { shape: obs.shape(), first: 0 }, sizes, activation)?));
        } else {
            for part in obs.parts() {
                let name = format!("{}.", part.name);
                push(match part.picture() {
                    Some(shape) => {
                        Segment::Picture(Conv::new(layout, &name, Pixels { shape: &shape, first: begin }, sizes, activation)?)
                    }
                    None => Segment::Numbers(begin..begin + part.len()),
                });
                begin += part.len();
            }
        }
        let (categories, obs_len) = (Categories::new(obs).map(Arc::new), obs.len());
        Ok(Self { segments, categories, activation, obs_len, one_hot: false })
    }

    /// Makes one-hot vectors of categories, so that gradients reach the other inputs.
    ///
    /// Without convolutions, first layers gather rows of their weights instead, and have no gradients of their inputs.
    pub(crate) fn make_one_hot(&mut self) {
        self.one_hot = self.categories.is_some();
    }

    /// Convolutions of each picture, in order.
    fn convs(&self) -> impl Iterator<Item = &Conv> {
        self.segments.iter().filter_map(|segment| if let Segment::Picture(conv) = segment { Some(conv) } else { None })
    }

    /// Elements that have an encoder each; those of a picture with its convolutions.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (Range<usize>, &[ConvShape])> {
        self.segments.iter().map(|segment| match segment {
            Segment::Picture(conv) => (conv.elements(), conv.layers()),
            Segment::Numbers(elements) => (elements.clone(), &[][..]),
        })
    }

    /// Shapes of all convolutions, in order.
    pub(crate) fn conv_layers(&self) -> impl Iterator<Item = &ConvShape> {
        self.convs().flat_map(Conv::layers)
    }

    /// Activation after each convolution.
    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    /// True if pictures have convolutions.
    pub(crate) fn has_convs(&self) -> bool {
        self.convs().next().is_some()
    }

    /// Categories among the elements of an observation, if there are any.
    pub(crate) fn categories(&self) -> Option<&Arc<Categories>> {
        self.categories.as_ref()
    }

    /// Number of inputs of some elements.
    fn n_inputs(&self, elements: &Range<usize>) -> usize {
        self.categories.as_ref().map_or(elements.len(), |all| all.n_inputs(elements))
    }

    /// Number F of features.
    pub(crate) fn n_out(&self) -> usize {
        let of = |segment: &Segment| match segment {
            Segment::Picture(conv) => conv.n_out(),
            Segment::Numbers(elements) => self.n_inputs(elements),
        };
        self.segments.iter().map(of).sum()
    }

    /// Numbers of one sample's outputs and patches in all convolutions.
    pub(crate) fn patches(&self) -> usize {
        self.convs().map(Conv::patches).sum()
    }

    /// Number of convolutions.
    pub(crate) fn n_layers(&self) -> u32 {
        self.conv_layers().count() as u32
    }

    /// Multiplications of one sample's forward pass through convolutions.
    ///
    /// The first number counts all layers, the second the first layer of each picture.
    pub(crate) fn products(&self) -> [usize; 2] {
        [self.convs().flat_map(Conv::products).sum(), self.convs().filter_map(|conv| conv.products().next()).sum()]
    }

    /// Draws weights and biases of the convolutions.
    pub(crate) fn init(&self, params: &mut [f32], init: Initialization) {
        let mut index = 0;
        for conv in self.convs() {
            conv.init(params, init, index);
            index += conv.layers().len() as u32;
        }
    }

    /// Computes features (B, F) of observations (B, D) with candle operations.
    pub(crate) fn forward(&self, params: &Tensor, obs: &Tensor, precision: Precision) -> candle_core::Result<Tensor> {
        let of = |segment: &Segment| match (segment, &self.categories) {
            (Segment::Picture(conv), _) => conv.forward(params, obs, precision),
            (Segment::Numbers(elements), Some(categories)) => categories.one_hot(obs, elements.clone()),
            (Segment::Numbers(elements), None) => obs.narrow(1, elements.start, elements.len()),
        };
        match &self.segments[..] {
            [segment] => of(segment),
            all => Tensor::cat(&all.iter().map(of).collect::<candle_core::Result<Vec<_>>>()?, 1),
        }
    }
}

/// Numbers and categories on their way to the features.
#[derive(Clone, Debug)]
struct Numbers {
    elements: Range<usize>,
    /// Index of the first feature.
    first: usize,
    n_features: usize,
}

/// An encoder with convolutions or one-hot vectors as a stage of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct EncoderStage {
    convs: Vec<ConvStage>,
    numbers: Vec<Numbers>,
    categories: Option<Arc<Categories>>,
    obs_len: usize,
    runs: InputRuns,
    /// Length of the packed parameters, whose offsets begin at 0.
    packed_len: usize,
}

/// A segment of an observation, with its inputs and its features.
///
/// Inputs are numbers, one-hot vectors of categories, and pixels.
pub(crate) struct SegmentStage<'a> {
    pub(crate) inputs: Range<usize>,
    /// Index of the first feature.
    pub(crate) first: usize,
    /// Convolutions; `None` if the features are the inputs.
    pub(crate) conv: Option<&'a ConvStage>,
}

/// Buffers of one thread for the stage.
#[derive(Clone, Debug)]
pub(crate) struct EncoderWorkspace {
    convs: Vec<ConvWorkspace>,
    numbers: Aligned, // (TILE, longest)
    inputs: Aligned,  // one sample's
}

impl EncoderStage {
    /// Reserves space in packed parameters and gradient.
    ///
    /// `None` if dense layers read the observation itself.
    pub(crate) fn new(encoder: &Encoder, packed_len: &mut usize, grad_len: &mut usize) -> Option<Self> {
        let (mut convs, mut numbers, mut runs) = (Vec::new(), Vec::new(), InputRuns::default());
        for segment in &encoder.segments {
            let first = runs.len();
            match segment {
                Segment::Picture(conv) => {
                    let stage = ConvStage::new(conv, encoder.obs_len, first, packed_len, grad_len);
                    runs.push(stage.features());
                    convs.push(stage);
                }
                Segment::Numbers(elements) => {
                    let n_features = encoder.n_inputs(elements);
                    runs.push([n_features; 3]);
                    numbers.push(Numbers { elements: elements.clone(), first, n_features });
                }
            }
        }
        let (categories, obs_len, packed_len) = (encoder.categories.clone(), encoder.obs_len, *packed_len);
        (encoder.one_hot || !convs.is_empty()).then_some(Self { convs, numbers, categories, obs_len, runs, packed_len })
    }

    /// True if pictures have convolutions.
    pub(crate) fn convolves(&self) -> bool {
        !self.convs.is_empty()
    }

    /// One sample's padded features.
    pub(crate) fn features(&self) -> &InputRuns {
        &self.runs
    }

    /// Length of the packed parameters.
    pub(crate) fn packed_len(&self) -> usize {
        self.packed_len
    }

    /// Segments of an observation: pictures, then all else.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentStage<'_>> {
        let n_inputs = |elements: Range<usize>| self.categories.as_ref().map_or(elements.len(), |all| all.n_inputs(&elements));
        let segment = move |elements: Range<usize>, first, conv| {
            let begin = n_inputs(0..elements.start);
            SegmentStage { inputs: begin..begin + n_inputs(elements), first, conv }
        };
        let pictures = self.convs.iter().map(move |conv| segment(conv.elements(), conv.first(), Some(conv)));
        pictures.chain(self.numbers.iter().map(move |numbers| segment(numbers.elements.clone(), numbers.first, None)))
    }

    /// Lengths of the buffers of numbers, and of one sample's inputs.
    fn lens(&self) -> [usize; 2] {
        let longest = |len: fn(&Numbers) -> usize| self.numbers.iter().map(len).max().unwrap_or(0);
        [TILE * longest(|numbers| numbers.elements.len()), longest(|numbers| numbers.n_features)]
    }

    /// Length of the buffers of [`EncoderStage::workspace`].
    pub(crate) fn workspace_len(&self, learning: bool) -> usize {
        self.convs.iter().map(|conv| conv.workspace_len(learning)).sum::<usize>() + self.lens().iter().sum::<usize>()
    }

    /// Allocates buffers to act with or to learn with.
    pub(crate) fn workspace(&self, learning: bool) -> EncoderWorkspace {
        let [numbers, inputs] = self.lens().map(Aligned::zeros);
        EncoderWorkspace { convs: self.convs.iter().map(|conv| conv.workspace(learning)).collect(), numbers, inputs }
    }

    /// Copies the parameters into the layouts of the kernel.
    pub(crate) fn pack(&self, params: &[f32], packed: &mut [f32]) {
        self.convs.iter().for_each(|conv| conv.pack(params, packed));
    }

    /// Copies a gradient from the layout of the kernel into the flat gradient.
    pub(crate) fn unpack_gradient(&self, grads: &[f32], flat: &mut [f32]) {
        self.convs.iter().for_each(|conv| conv.unpack_gradient(grads, flat));
    }

    /// Writes the padded features (TILE, F) of a tile's samples, in panels.
    ///
    /// With `learning`, it keeps the data that the backward pass needs.
    #[inline(always)]
    pub(crate) fn forward<S: Set>(
        &self,
        samples: &Samples<'_>,
        tile: Range<usize>,
        packed: &[f32],
        learning: bool,
        workspace: &mut EncoderWorkspace,
        features: &mut [f32],
    ) {
        for (conv, workspace) in self.convs.iter().zip(&mut workspace.convs) {
            conv.forward::<S>(samples, tile.clone(), packed, learning, workspace, features);
        }
        let EncoderWorkspace { numbers, inputs, .. } = workspace;
        for Numbers { elements, first, n_features } in &self.numbers {
            let n = elements.len();
            samples.copy(tile.clone(), self.obs_len, elements.clone(), n, numbers);
            for (s, row) in numbers.chunks_exact(n).take(tile.len()).enumerate() {
                match &self.categories {
                    Some(categories) => {
                        let inputs = &mut inputs[..*n_features];
                        categories.write(elements.clone(), row, inputs);
                        write_row(inputs, s, *first, TILE, features);
                    }
                    None => write_row(row, s, *first, TILE, features),
                }
            }
        }
    }

    /// Adds the gradient of the weights, from that of the features, after `forward`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "buffers of a tile")]
    pub(crate) fn backward<S: Set>(
        &self,
        samples: &Samples<'_>,
        tile: Range<usize>,
        packed: &[f32],
        features: &[f32],
        feature_grads: &[f32],
        workspace: &mut EncoderWorkspace,
        grads: &mut [f32],
    ) {
        for (conv, workspace) in self.convs.iter().zip(&mut workspace.convs) {
            conv.backward::<S>(samples, tile.clone(), packed, features, feature_grads, workspace, grads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::bits;
    use crate::{ActorCritic, Agent as _, LearnerKind, NetConfig, Ppo, PpoConfig};
    use rl_envs::{Action, ActionSpace, Env, Part, Pool, Rng, Step};

    /// A picture between a category of 3 and a number, which tells which of the two counts.
    ///
    /// The category is a one-hot vector instead if `wide`.
    #[derive(Clone)]
    struct Sight {
        wide: bool,
        seen: [f32; 3],
    }

    impl Env for Sight {
        type Obs = f32;
        type State = ();

        fn observation_space(&self) -> Space {
            let n = if self.wide { 3 } else { 1 };
            let part = |name: &str, shape: &[usize]| Part { name: name.into(), shape: shape.into() };
            let parts = [part("kind", &[n]), part("camera", &[1, 4, 5]), part("place", &[1])];
            let (d, mut categories) = (n + 21, vec![0; n + 21]);
            categories[0] = if self.wide { 0 } else { 3 };
            Space::vector(&vec![0.0; d], &vec![1.0; d]).with_categories(&categories).with_parts(&parts)
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 3, masked: false }
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
            self.seen = [rng.below(3) as f32, rng.below(20) as f32, rng.below(2) as f32];
            obs.fill(0.0);
            let [kind, at, place] = self.seen;
            let first = if self.wide { 3 } else { 1 };
            if self.wide {
                obs[kind as usize] = 1.0;
            } else {
                obs[0] = kind;
            }
            obs[first + at as usize] = 1.0;
            obs[first + 20] = place;
        }

        fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
            let [kind, at, place] = self.seen;
            let right = if place == 0.0 { kind as u32 } else { u32::from(at >= 10.0) };
            let reward = f32::from(u8::from(action.discrete() == right));
            self.reset(rng, obs);
            Step { reward, terminated: true, truncated: false }
        }

        fn state(&self) -> Option<()> {
            None
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    fn net(learner: LearnerKind) -> NetConfig {
        NetConfig { conv: vec![[5, 2, 1], [6, 2, 2]], hidden: vec![32], learner, ..NetConfig::default() }
    }

    /// Trains, and returns the parameters and the share of right actions in the last rollout.
    fn trained(wide: bool, net: &NetConfig, n_iterations: usize) -> (Vec<f32>, f32) {
        let (pool, env) = (Pool::new(2).unwrap(), Sight { wide, seen: [0.0; 3] });
        let mut collector = crate::Collector::new(16, &env, &pool, 1).unwrap();
        let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), net, 1).unwrap();
        let learning_rate = crate::Schedule::Constant(3e-3);
        let config = PpoConfig { n_steps: 16, batch_size: 64, n_epochs: 4, learning_rate, gamma: 0.0, ..PpoConfig::default() };
        let mut agent = Ppo::new(policy, config, 16, 0).unwrap();
        let mut rollout = collector.rollout(16).unwrap();
        for _ in 0..n_iterations {
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            agent.update(&rollout, 1.0, &pool).unwrap();
        }
        let rewards = rollout.rewards().to_slice().unwrap();
        (agent.save().unwrap().params, rewards.iter().sum::<f32>() / rewards.len() as f32)
    }

    #[test]
    fn every_part_is_learnt_from() {
        let (_, right) = trained(false, &net(LearnerKind::Fused), 60);
        // Without the category or the picture, two thirds or three quarters could be right.
        assert!(right > 0.9, "{right}");
    }

    #[test]
    fn categories_beside_pictures_have_the_bits_of_one_hot_vectors() {
        let [category, one_hot] = [false, true].map(|wide| trained(wide, &net(LearnerKind::Fused), 3).0);
        assert_eq!(bits(&category), bits(&one_hot));
    }

    #[test]
    fn candle_learns_the_same_from_parts() {
        let (fused, _) = trained(false, &net(LearnerKind::Fused), 1);
        let (reference, _) = trained(false, &net(LearnerKind::Reference), 1);
        let largest = fused.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest < 1e-4, "{largest}");
    }

    #[test]
    fn tensors_have_the_names_of_their_parts() {
        let env = Sight { wide: false, seen: [0.0; 3] };
        let (obs, actions) = (env.observation_space(), env.action_space());
        let policy = ActorCritic::new(&obs, &actions, &net(LearnerKind::Fused), 1).unwrap();
        let names: Vec<_> = policy.layout().tensors().iter().map(|tensor| tensor.name.clone()).collect();
        assert_eq!(names[..2], ["conv.camera.0.weight", "conv.camera.0.bias"]);
        assert_eq!(policy.layout().tensors()[4].shape, [3 + 6 * 2 + 1, 32]);
    }
}
