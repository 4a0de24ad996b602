//! Categories in observations: a first layer gathers rows of its weights.
//!
//! An element that is one of n categories has n inputs of a first layer, as a one-hot vector has. The vector is not made: the
//! row of the category is added in the place of its input in the order of summation, and only that row gets a gradient. The
//! products with zeros that are left out would not change a bit.

use std::ops::Range;

use candle_core::Tensor;
use rl_envs::Space;
use rl_envs::isa::{Set, Work, dispatch};

use crate::kernel::gemm::{PANEL, Rows, part_of};
use crate::kernel::samples::TILE;

/// Marks the end of a list of samples.
const END: u8 = u8::MAX;

/// Inputs of a first layer for the elements of an observation.
#[derive(Debug)]
pub(crate) struct Categories {
    /// Number of categories of each element, 0 for a number: (D).
    sizes: Vec<u32>,
    /// First input of each element, and the number of inputs: (D + 1).
    first: Vec<usize>,
}

impl Categories {
    /// Lays out the inputs; `None` if all elements are numbers.
    pub(crate) fn new(space: &Space) -> Option<Self> {
        let sizes = space.categories();
        let mut first = vec![0];
        first.extend(sizes.iter().scan(0, |end, &n| {
            *end += n.max(1) as usize;
            Some(*end)
        }));
        (!sizes.is_empty()).then(|| Self { sizes: sizes.into(), first })
    }

    /// Number of categories of each element, 0 for a number: (D).
    pub(crate) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// Number of elements D of an observation.
    pub(crate) fn n_elements(&self) -> usize {
        self.sizes.len()
    }

    /// Number of inputs of some elements.
    pub(crate) fn n_inputs(&self, elements: &Range<usize>) -> usize {
        self.first[elements.end] - self.first[elements.start]
    }

    /// Writes the inputs of some `elements` (n): numbers, and one-hot vectors.
    pub(crate) fn write(&self, elements: Range<usize>, numbers: &[f32], inputs: &mut [f32]) {
        inputs.fill(0.0);
        let begin = self.first[elements.start];
        for (i, x) in elements.zip(numbers).filter_map(|(element, &x)| self.input(element, x)) {
            inputs[i - begin] = x;
        }
    }

    /// Returns the input of an element that is not 0, and its value.
    ///
    /// `None` for a number that is not one of the categories.
    #[inline(always)]
    fn input(&self, element: usize, x: f32) -> Option<(usize, f32)> {
        let (first, n, category) = (self.first[element], self.sizes[element], x as u32);
        match n {
            0 => Some((first, x)),
            _ => (category < n && category as f32 == x).then_some((first + category as usize, 1.0)),
        }
    }

    /// Computes some rows of a panel of outputs from gathered weights.
    ///
    /// The weights (in, n) and biases (n) are the panel's.
    #[inline(always)]
    pub(crate) fn forward<S: Set>(&self, input: Rows<'_>, weights: &[f32], bias: &[f32], output: &mut [f32]) {
        dispatch(S::ISA, Gather { categories: self, input, weights, bias, output });
    }

    /// Adds a tile's gradient of the weights of panel `q` of the inputs, (64, n).
    ///
    /// `dz` is a panel of the gradient of the outputs, one row of 64 for each sample.
    #[inline(always)]
    pub(crate) fn weight_grad<S: Set>(&self, q: usize, input: Rows<'_>, dz: &[f32], grad: &mut [f32], n: usize) {
        dispatch(S::ISA, Scatter { categories: self, q, input, dz, grad, n });
    }

    /// True if all inputs of the samples in panel `q` of the inputs are 0.
    pub(crate) fn misses(&self, q: usize, input: Rows<'_>) -> bool {
        let (inputs, elements) = self.panel(q);
        let hit = |e, s| self.input(e, input.at(s, e)).is_some_and(|(i, _)| inputs.contains(&i));
        !elements.into_iter().any(|e| (0..input.m).any(|s| hit(e, s)))
    }

    /// Range of the inputs of panel `q`, and of the elements that have some of them.
    fn panel(&self, q: usize) -> (Range<usize>, Range<usize>) {
        let inputs = q * PANEL..(q + 1) * PANEL;
        let (_, first) = self.first.split_last().expect("the number of inputs");
        let begin = first.partition_point(|&first| first <= inputs.start) - 1;
        (inputs.clone(), begin..first.partition_point(|&first| first < inputs.end))
    }

    /// Returns the inputs (B, in) of elements of observations (B, D).
    ///
    /// With candle operations. Each category becomes a one-hot vector.
    pub(crate) fn one_hot(&self, obs: &Tensor, elements: Range<usize>) -> candle_core::Result<Tensor> {
        let (mut parts, mut element) = (Vec::new(), elements.start);
        for run in self.sizes[elements].chunk_by(|a, b| (*a, *b) == (0, 0)) {
            let x = obs.narrow(1, element, run.len())?;
            element += run.len();
            parts.push(if run[0] == 0 {
                x
            } else {
                let all = Tensor::arange(0, run[0], obs.device())?.to_dtype(obs.dtype())?.unsqueeze(0)?;
                x.broadcast_eq(&all)?.to_dtype(obs.dtype())?
            });
        }
        Tensor::cat(&parts, 1)
    }
}

/// Adds `x` times a row.
#[inline(always)]
fn add_row<S: Set>(sums: &mut [f32], x: f32, row: &[f32]) {
    sums.iter_mut().zip(row).for_each(|(sum, &y)| *sum = S::multiply_add(x, y, *sum));
}

/// Rows of a panel of outputs.
struct Gather<'a> {
    categories: &'a Categories,
    input: Rows<'a>,
    weights: &'a [f32],
    bias: &'a [f32],
    output: &'a mut [f32],
}

impl Work for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { categories, input, weights, bias, output } = self;
        let (n, k) = (bias.len(), categories.first[categories.n_elements()]);
        for (s, output) in output.chunks_exact_mut(PANEL).enumerate() {
            // As in a product, a long sum is made of short ones, the first of which begins with the bias.
            let (output, mut sums, mut part) = (&mut output[..n], [0.0; PANEL], 0);
            output.copy_from_slice(bias);
            for element in 0..categories.n_elements() {
                let Some((i, x)) = categories.input(element, input.at(s, element)) else { continue };
                if part_of(i, k) != part {
                    output.iter_mut().zip(&sums).for_each(|(to, sum)| *to += sum);
                    (sums, part) = ([0.0; PANEL], part_of(i, k));
                }
                add_row::<S>(if part == 0 { output } else { &mut sums[..n] }, x, &weights[i * n..][..n]);
            }
            output.iter_mut().zip(&sums).for_each(|(to, sum)| *to += sum);
        }
    }
}

/// Gradient of the weights of a panel of the inputs.
struct Scatter<'a> {
    categories: &'a Categories,
    q: usize,
    input: Rows<'a>,
    dz: &'a [f32],
    grad: &'a mut [f32],
    n: usize,
}

impl Work for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { categories, q, input, dz, grad, n } = self;
        let (inputs, elements) = categories.panel(q);
        for element in elements {
            // Lists of the samples of each input, in order: a tile's sum is made before it is added.
            let (mut heads, mut tails, mut next) = ([END; PANEL], [END; PANEL], [END; TILE]);
            let mut values = [0.0; TILE];
            for (s, value) in values.iter_mut().enumerate().take(input.m) {
                let found = categories.input(element, input.at(s, element)).filter(|(i, _)| inputs.contains(i));
                let Some((i, x)) = found else { continue };
                let (head, tail) = (&mut heads[i - inputs.start], &mut tails[i - inputs.start]);
                match *tail {
                    END => *head = s as u8,
                    last => next[last as usize] = s as u8,
                }
                (*tail, *value) = (s as u8, x);
            }
            for (head, grad) in heads.into_iter().zip(grad.chunks_exact_mut(n)).filter(|(head, _)| *head != END) {
                let (mut sums, mut s) = ([0.0; PANEL], head);
                while s != END {
                    add_row::<S>(&mut sums[..n], values[s as usize], &dz[s as usize * PANEL..][..n]);
                    s = next[s as usize];
                }
                grad.iter_mut().zip(&sums).for_each(|(to, sum)| *to += sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gradient::Slices;
    use crate::kernel::tile::{Tile, TileLoss};
    use crate::probe::Threads;
    use crate::{Acted, Acting, Activation, ActorCritic, Choice, LearnerKind, NetConfig, Policy as _, Scratch};
    use rl_buffer::ObsSlice;
    use rl_envs::{ActionSpace, Actions, Isa, Pool, Purpose, Rng};

    /// Half the sum of the squared outputs.
    struct Squares {
        heads: [(usize, usize); 2],
    }

    impl TileLoss<()> for Squares {
        #[inline(always)]
        fn tile(&self, tile: &mut Tile<'_>, (): &mut ()) {
            let (m, mut column) = (tile.samples.len(), [0.0; TILE]);
            for (chain, n_out) in self.heads {
                for j in 0..n_out {
                    tile.column(chain, j, &mut column[..m]);
                    tile.set_grad(chain, j, &column[..m]);
                }
            }
        }
    }

    /// Spaces of categories, alone and among numbers, with inputs of one part of a sum and of many.
    const SPACES: [&[u32]; 6] = [&[1], &[16], &[500], &[3, 7, 2, 900, 33], &[0, 0, 5, 0], &[0, 70, 0, 0, 4, 0, 300, 1, 0]];

    /// Returns a space with these categories, and the space of its one-hot vectors.
    fn spaces(categories: &[u32]) -> [Space; 2] {
        let d = categories.len();
        let space = Space::vector(&vec![-9.0; d], &vec![9.0; d]).with_categories(categories);
        let n = space.n_inputs();
        [space, Space::vector(&vec![-9.0; n], &vec![9.0; n])]
    }

    /// Draws observations, and the same as one-hot vectors.
    fn draw(categories: &[u32], n: usize) -> [Vec<f32>; 2] {
        let (mut rng, mut obs, mut one_hot) = (Rng::new(3, 0, 0, Purpose::Init), Vec::new(), Vec::new());
        for _ in 0..n {
            for &n in categories {
                if n == 0 {
                    obs.push(rng.normal());
                    one_hot.extend(obs.last());
                } else {
                    // Few of many, so that samples share some.
                    let category = rng.below(n.min(40)) * (n / n.min(40));
                    obs.push(category as f32);
                    one_hot.extend((0..n).map(|i| f32::from(u8::from(i == category))));
                }
            }
        }
        [obs, one_hot]
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }

    /// Returns actions, log-probabilities and values of a policy.
    fn acted(policy: &ActorCritic, obs: &[f32], n: usize) -> [Vec<u32>; 3] {
        let (mut actions, mut log_probs, mut values) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
        let acting = Acting { obs: ObsSlice::F32(obs), masks: &[], choice: Choice::Greedy, envs: &[] };
        let acted =
            Acted { actions: Actions::Discrete(&mut actions), log_probs: &mut log_probs, values: &mut values, states: &mut [] };
        policy.act(acting, acted, &mut Scratch::default()).unwrap();
        [actions, bits(&log_probs), bits(&values)]
    }

    #[test]
    fn categories_have_the_parameters_and_the_outputs_of_one_hot_vectors_bit_for_bit() {
        for (categories, learner) in SPACES.into_iter().flat_map(|of| [(of, LearnerKind::Fused), (of, LearnerKind::Reference)]) {
            let n = 101;
            let (spaces, obs) = (spaces(categories), draw(categories, n));
            for (hidden, shared_trunk) in [(vec![], false), (vec![33], true), (vec![64, 8], false)] {
                let net = NetConfig { hidden, shared_trunk, learner, ..NetConfig::default() };
                let actions = ActionSpace::Discrete { n: 3, masked: false };
                let [mut policy, mut expected] = [0, 1].map(|i| ActorCritic::new(&spaces[i], &actions, &net, 7).unwrap());
                assert!(policy.params() == expected.params() && policy.layout() == expected.layout());
                let mut rng = Rng::new(5, 0, 0, Purpose::Init);
                let params: Vec<f32> = policy.params().iter().map(|p| p + 0.1 * rng.normal()).collect();
                [&mut policy, &mut expected].into_iter().for_each(|policy| policy.set_params(&params, 1).unwrap());
                assert_eq!(acted(&policy, &obs[0], n), acted(&expected, &obs[1], n), "{categories:?}, {net:?}");
            }
        }
    }

    #[test]
    fn categories_have_the_gradients_of_one_hot_vectors_bit_for_bit() {
        for categories in SPACES {
            let (spaces, n) = (spaces(categories), 800);
            let obs = draw(categories, n);
            for (hidden, activation) in
                [(vec![], Activation::Tanh), (vec![33], Activation::Relu), (vec![100, 8], Activation::Tanh)]
            {
                let net = NetConfig { hidden, activation, ..NetConfig::default() };
                let actions = ActionSpace::Discrete { n: 3, masked: false };
                let policies = [0, 1].map(|i| ActorCritic::new(&spaces[i], &actions, &net, 7).unwrap());
                for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                    // One slice of a tile, several tiles, several slices, several chunks.
                    for n in [1, 110, 300, n] {
                        let [got, expected] = [0, 1].map(|i| {
                            let (actor, critic) = policies[i].chains();
                            let loss = Squares { heads: [(actor, 3), (critic, 1)] };
                            let network = policies[i].network();
                            let crate::kernel::net::PackedNet { net, packed, .. } = network.kernel().unwrap();
                            let samples = network.samples(ObsSlice::F32(&obs[i]), None);
                            let (pool, mut gradient) = (Pool::new(2).unwrap(), vec![f32::NAN; policies[i].params().len()]);
                            let mut slices = Slices::new();
                            let done = slices.gradient(
                                crate::kernel::net::PackedNet { isa, net, packed },
                                samples,
                                n,
                                Threads::of(&pool),
                                &loss,
                                &mut gradient,
                            );
                            done.map(drop).unwrap();
                            bits(&gradient)
                        });
                        assert!(got == expected, "{categories:?}, {net:?}, {n} samples, {isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_no_category_has_no_input_with_either_learner() {
        let [space, one_hot] = spaces(&[5, 0]);
        for learner in [LearnerKind::Fused, LearnerKind::Reference] {
            let net = NetConfig { learner, ..NetConfig::default() };
            let actions = ActionSpace::Discrete { n: 3, masked: false };
            let policy = ActorCritic::new(&space, &actions, &net, 7).unwrap();
            let expected = ActorCritic::new(&one_hot, &actions, &net, 7).unwrap();
            let nothing = acted(&expected, &[0.0, 0.0, 0.0, 0.0, 0.0, 0.5], 1);
            for x in [-1.0, 5.0, 2.5, 1e30, f32::NAN] {
                assert_eq!(acted(&policy, &[x, 0.5], 1), nothing, "{x}, {learner:?}");
            }
        }
    }

    #[test]
    fn categories_are_not_normalized() {
        let [space, _] = spaces(&[0, 50]);
        let mut normalizer = crate::network::normalize::Normalizer::new(&space);
        let mut moments = crate::network::normalize::Moments::new(2);
        moments.push([1.0, 10.0]);
        moments.push([3.0, 40.0]);
        assert!(normalizer.set(&moments));
        let mut obs = [4.0, 49.0];
        normalizer.apply(0, &mut obs);
        // Mean 2, variance 1.
        assert!((obs[0] - 2.0).abs() < 1e-6 && obs[1] == 49.0, "{obs:?}");
        normalizer.apply(1, &mut obs[1..]);
        assert_eq!(obs[1], 49.0);
    }
}
