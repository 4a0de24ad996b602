//! The tile kernel as a candle operation, so that any candle loss can run on it.
//!
//! The operation takes the parameter vector (P) and observations (B, D) and returns logits and values packed into one tensor, (B,
//! A + 1). Backward repeats the forward pass, tile by tile, instead of keeping activations.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Shape, Tensor};
use rl_buffer::ObsSlice;
use rl_envs::{Isa, Pool};

use crate::kernel::aligned::Aligned;
use crate::kernel::gradient::Slices;
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::samples::{Samples, TILE};
use crate::kernel::tile::{Tile, TileLoss, Workspace, forward};
use crate::probe::Threads;

/// Outputs of policy and value function as a candle operation.
pub(crate) struct Fused {
    pub(crate) isa: Isa,
    pub(crate) net: Net,
    /// Indices of the policy's and the value function's chain.
    pub(crate) chains: (usize, usize),
    pub(crate) n_actions: usize,
    pub(crate) obs_len: usize,
}

/// Gradient with respect to the outputs, computed by candle.
struct GivenGradient<'a> {
    grad: &'a [f32], // (B, A + 1)
    chains: (usize, usize),
    n_actions: usize,
}

impl TileLoss<()> for GivenGradient<'_> {
    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, (): &mut ()) {
        let (samples, width) = (tile.samples.clone(), self.n_actions + 1);
        let mut column = [0.0; TILE];
        for j in 0..width {
            let rows = self.grad[samples.start * width..samples.end * width].chunks_exact(width);
            column.iter_mut().zip(rows).for_each(|(to, row)| *to = row[j]);
            let (chain, output) = if j < self.n_actions { (self.chains.0, j) } else { (self.chains.1, 0) };
            tile.set_grad(chain, output, &column[..samples.len()]);
        }
    }
}

/// Returns the elements of a contiguous f32 tensor.
fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => candle_core::bail!("fused: contiguous tensors are needed"),
    }
}

impl Fused {
    fn packed<'a>(&'a self, packed: &'a [f32]) -> PackedNet<'a> {
        PackedNet { isa: self.isa, net: &self.net, packed }
    }
}

impl CustomOp2 for Fused {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn cpu_fwd(
        &self,
        params: &CpuStorage,
        params_layout: &Layout,
        obs: &CpuStorage,
        obs_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (params, obs) = (contiguous(params, params_layout)?, contiguous(obs, obs_layout)?);
        let (b, width) = (obs.len() / self.obs_len, self.n_actions + 1);
        let (mut packed, mut outputs) = (Aligned::zeros(self.net.packed_len), vec![0.0; b * width]);
        self.net.pack(params, &mut packed, Threads::of(&Pool::default()));
        let samples = Samples { obs: ObsSlice::F32(obs), scale: 1.0, normalizer: None, rows: None, sequences: None };
        forward(self.packed(&packed), samples, b, None, &mut [], &mut Workspace::forward(&self.net), |tile: &mut Tile<'_>| {
            let (samples, mut column) = (tile.samples.clone(), [0.0; TILE]);
            for j in 0..width {
                let (chain, output) = if j < self.n_actions { (self.chains.0, j) } else { (self.chains.1, 0) };
                tile.column(chain, output, &mut column[..samples.len()]);
                let rows = outputs[samples.start * width..samples.end * width].chunks_exact_mut(width);
                rows.zip(&column).for_each(|(row, &from)| row[j] = from);
            }
        });
        Ok((CpuStorage::F32(outputs), Shape::from((b, width))))
    }

    fn bwd(
        &self,
        params: &Tensor,
        obs: &Tensor,
        _outputs: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let flat = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let (vector, rows, grad) = (flat(params)?, flat(obs)?, flat(grad)?);
        let (mut packed, mut gradient) = (Aligned::zeros(self.net.packed_len), vec![0.0; vector.len()]);
        self.net.pack(&vector, &mut packed, Threads::of(&Pool::default()));
        let samples = Samples { obs: ObsSlice::F32(&rows), scale: 1.0, normalizer: None, rows: None, sequences: None };
        let loss = GivenGradient { grad: &grad, chains: self.chains, n_actions: self.n_actions };
        let pool = Pool::new(1).map_err(candle_core::Error::wrap)?;
        let kernel = self.packed(&packed);
        let n = rows.len() / self.obs_len;
        let gradients = Slices::new().gradient(kernel, samples, n, Threads::of(&pool), &loss, &mut gradient).map(drop);
        gradients.map_err(candle_core::Error::wrap)?;
        let len = gradient.len();
        Ok((Some(Tensor::from_vec(gradient, len, params.device())?), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, ActorCritic, NetConfig};
    use candle_core::{Device, Var};
    use rl_envs::{ActionSpace, Part, Purpose, Rng, Space};

    /// A candle loss that reads every output.
    fn loss(logits: &Tensor, values: &Tensor) -> Tensor {
        let entropy = (candle_nn::ops::log_softmax(logits, 1).unwrap() * logits.tanh().unwrap()).unwrap();
        (entropy.mean_all().unwrap() + values.sqr().unwrap().mean_all().unwrap()).unwrap()
    }

    fn gradient(
        forward: impl Fn(&Tensor, &Tensor) -> candle_core::Result<(Tensor, Tensor)>,
        params: &[f32],
        obs: &Tensor,
        dtype: DType,
    ) -> Vec<f64> {
        let params = Tensor::new(params, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let params = Var::from_tensor(&params).unwrap();
        let (logits, values) = forward(&params, &obs.to_dtype(dtype).unwrap()).unwrap();
        let grads = loss(&logits, &values).backward().unwrap();
        grads.get(&params).unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
    }

    /// Relative error of each tensor's gradient, in the Euclidean norm.
    fn errors(policy: &ActorCritic, got: &[f64], exact: &[f64]) -> Vec<f64> {
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let error = |tensor: &crate::TensorInfo| {
            let (got, exact) = (&got[tensor.range.clone()], &exact[tensor.range.clone()]);
            let size = norm(&mut exact.iter().copied());
            if size == 0.0 { 0.0 } else { norm(&mut got.iter().zip(exact).map(|(a, b)| a - b)) / size }
        };
        policy.layout().tensors().iter().map(error).collect()
    }

    /// Median of one tensor's errors over several draws.
    fn median(draws: &[Vec<f64>], tensor: usize) -> f64 {
        let mut errors: Vec<f64> = draws.iter().map(|errors| errors[tensor]).collect();
        errors.sort_unstable_by(f64::total_cmp);
        errors[errors.len() / 2]
    }

    fn compare(hidden: &[usize], shared_trunk: bool, activation: Activation, b: usize, isas: &[Isa], draws: u64) {
        let net = NetConfig { hidden: hidden.to_vec(), activation, shared_trunk, ..NetConfig::default() };
        // A number's GELU has two more roundings than candle's.
        let allowed: fn(Isa) -> f64 = if activation == Activation::Gelu { |_| 2.5 } else { |_| 2.0 };
        compare_nets(&Space::vector(&[-1.0; 5], &[1.0; 5]), &net, b, isas, draws, allowed);
    }

    /// Compares the errors of each instruction set with candle's, of which they may be `allowed` times as much.
    fn compare_nets(space: &Space, net: &NetConfig, b: usize, isas: &[Isa], draws: u64, allowed: fn(Isa) -> f64) {
        let (obs_len, n_actions) = (space.len(), 3);
        let actions = ActionSpace::Discrete { n: n_actions, masked: false };
        let policy = ActorCritic::new(space, &actions, net, 7).unwrap();
        let policies: Vec<_> = isas.iter().map(|&isa| policy.clone().with_isa(isa)).collect();
        // Single roundings are random, so medians over several draws are compared, and candle is allowed one unit in the last
        // place.
        let (mut fused, mut reference) = (vec![Vec::new(); isas.len()], Vec::new());
        for draw in 0..draws {
            let mut rng = Rng::new(b as u64, 0, draw, Purpose::Init);
            let params: Vec<f32> = policy.params().iter().map(|p| p + 0.1 * rng.normal()).collect();
            let obs: Vec<f32> = (0..b * obs_len).map(|_| rng.normal()).collect();
            let obs = Tensor::from_vec(obs, (b, obs_len), &Device::Cpu).unwrap();
            let exact = gradient(|p, x| policy.forward(p, x), &params, &obs, DType::F64);
            let candle = gradient(|p, x| policy.forward(p, x), &params, &obs, DType::F32);
            reference.push(errors(&policy, &candle, &exact));
            for (policy, fused) in policies.iter().zip(&mut fused) {
                let kernel = gradient(|p, x| policy.forward_fused(p, x), &params, &obs, DType::F32);
                fused.push(errors(policy, &kernel, &exact));
            }
        }
        for (isa, fused) in isas.iter().zip(&fused) {
            for (i, tensor) in policy.layout().tensors().iter().enumerate() {
                let (fused, reference) = (median(fused, i), median(&reference, i));
                let what = format!("{net:?}, B = {b}, {isa:?}, {}", tensor.name);
                assert!(fused <= allowed(*isa) * reference.max(1.2e-7), "{what}: {fused:.2e}, candle {reference:.2e}");
            }
        }
    }

    fn supported() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.supported()).collect()
    }

    #[test]
    fn a_value_function_of_its_own_size_has_gradients_as_near_to_f64_as_candle_s() {
        let space = Space::vector(&[-1.0; 5], &[1.0; 5]);
        for (hidden, critic, draws) in
            [(&[3, 3][..], &[100][..], 25), (&[64, 64], &[], 25), (&[], &[33, 5, 9], 25), (&[64], &[1024, 64], 9)]
        {
            let net = NetConfig { hidden: hidden.into(), critic_hidden: Some(critic.into()), ..NetConfig::default() };
            compare_nets(&space, &net, 65, &supported(), draws, |_| 2.0);
        }
    }

    #[test]
    fn gradients_are_as_near_to_f64_as_candle_s_for_odd_sizes() {
        let activations = [Activation::Tanh, Activation::Relu, Activation::Elu, Activation::Silu, Activation::Gelu];
        for (b, shared_trunk) in [(1, true), (31, false), (33, true), (65, false)] {
            for hidden in [&[1][..], &[3, 3], &[64, 64], &[100], &[3, 100, 17], &[]] {
                activations.iter().for_each(|activation| compare(hidden, shared_trunk, *activation, b, &supported(), 25));
            }
        }
        compare(&[1024], false, Activation::Tanh, 33, &[Isa::best()], 41);
        compare(&[1024, 64], true, Activation::Tanh, 65, &[Isa::best()], 25);
    }

    #[test]
    fn gradients_of_normalized_layers_are_as_near_to_f64_as_candle_s() {
        let space = Space::vector(&[-1.0; 5], &[1.0; 5]);
        // Without fused multiply-add, which candle has, errors of sums grow.
        let allowed = |isa| if isa == Isa::Plain { 4.0 } else { 2.5 };
        for (b, activation) in [(1, Activation::Tanh), (33, Activation::Relu), (65, Activation::Silu), (97, Activation::Elu)] {
            for (hidden, shared_trunk) in
                [(vec![3, 3], true), (vec![64, 64], false), (vec![100], true), (vec![3, 100, 17], false), (vec![], true)]
            {
                let net = NetConfig { hidden, activation, shared_trunk, layer_norm: true, ..NetConfig::default() };
                compare_nets(&space, &net, b, &supported(), 25, allowed);
            }
        }
    }

    /// Shapes of observations, and convolutions that fit them.
    const CONVS: [([usize; 3], &[[usize; 3]]); 5] = [
        ([1, 1, 1], &[[1, 1, 1]]),
        ([2, 7, 5], &[[3, 3, 2]]),
        ([3, 5, 8], &[[17, 2, 1], [5, 3, 2]]),
        ([5, 12, 12], &[[16, 3, 1], [32, 3, 1]]),
        ([4, 21, 19], &[[20, 5, 3], [33, 3, 2], [16, 2, 1]]),
    ];

    /// Spaces of one picture, and of pictures among numbers, with convolutions for them.
    fn pictured() -> Vec<(Space, Vec<[usize; 3]>)> {
        let mixed = |shapes: &[&[usize]]| {
            let part = |(i, shape): (usize, &&[usize])| Part { name: i.to_string(), shape: shape.to_vec() };
            let parts: Vec<_> = shapes.iter().enumerate().map(part).collect();
            let d = parts.iter().map(Part::len).sum();
            Space::vector(&vec![0.0; d], &vec![1.0; d]).with_parts(&parts)
        };
        let planes = CONVS.map(|(shape, conv)| (Space::bytes(&shape, 1, 1.0), conv.to_vec()));
        let mut all = Vec::from(planes);
        all.push((mixed(&[&[3], &[2, 7, 5]]), vec![[3, 3, 2]]));
        all.push((mixed(&[&[1, 9, 8], &[70], &[3, 5, 6], &[1], &[2]]), vec![[5, 2, 1], [17, 3, 1]]));
        all.push((mixed(&[&[2, 6, 6], &[3, 4, 4]]), vec![[33, 3, 1]]));
        all
    }

    #[test]
    fn gradients_of_convolutions_are_as_near_to_f64_as_candle_s() {
        let cases = [
            (1, Activation::Tanh, vec![3], false),
            (31, Activation::Relu, vec![10], true),
            (33, Activation::Tanh, vec![], false),
            (33, Activation::Silu, vec![70], false),
            (65, Activation::Relu, vec![3], true),
        ];
        // Without fused multiply-add, which candle has, errors grow with the number of layers.
        let allowed = |isa| if isa == Isa::Plain { 5.0 } else { 2.0 };
        for (i, (space, conv)) in pictured().into_iter().enumerate() {
            for (b, activation, hidden, shared_trunk) in cases.clone().into_iter().skip(i % 2).step_by(2) {
                let net = NetConfig { conv: conv.clone(), hidden, activation, shared_trunk, ..NetConfig::default() };
                compare_nets(&space, &net, b, &supported(), 17, allowed);
            }
        }
    }

    #[test]
    fn instruction_sets_with_fused_multiply_add_give_the_same_bits() {
        for (space, conv) in std::iter::once((Space::vector(&[-1.0; 100], &[1.0; 100]), Vec::new())).chain(pictured()) {
            let activation = if conv.is_empty() { Activation::Gelu } else { Activation::Tanh };
            let layer_norm = space.len() % 2 == 0;
            let net =
                NetConfig { conv, hidden: vec![100, 33], shared_trunk: true, activation, layer_norm, ..NetConfig::default() };
            let (b, d, actions) = (33, space.len(), ActionSpace::Discrete { n: 3, masked: false });
            let mut rng = Rng::new(1, 0, 0, Purpose::Init);
            let obs: Vec<f32> = (0..b * d).map(|_| rng.normal()).collect();
            let obs = Tensor::from_vec(obs, (b, d), &Device::Cpu).unwrap();
            let gradients = Isa::ALL.into_iter().filter(|isa| isa.supported() && *isa != Isa::Plain).map(|isa| {
                let policy = ActorCritic::new(&space, &actions, &net, 7).unwrap().with_isa(isa);
                gradient(|p, x| policy.forward_fused(p, x), policy.params(), &obs, DType::F32)
            });
            let gradients: Vec<Vec<f64>> = gradients.collect();
            assert!(gradients.windows(2).all(|pair| pair[0] == pair[1]), "{net:?}");
        }
    }

    #[test]
    fn gradients_of_convolutions_equal_finite_differences() {
        let all = pictured();
        for (space, conv) in all[1..3].iter().chain(&all[5..6]) {
            let net = NetConfig { conv: conv.clone(), hidden: vec![4], shared_trunk: true, ..NetConfig::default() };
            let actions = ActionSpace::Discrete { n: 3, masked: false };
            let policy = ActorCritic::new(space, &actions, &net, 7).unwrap();
            let mut rng = Rng::new(1, 0, 0, Purpose::Init);
            let obs: Vec<f32> = (0..3 * space.len()).map(|_| rng.normal()).collect();
            let obs = Tensor::from_vec(obs, (3, space.len()), &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
            let params: Vec<f32> = policy.params().iter().map(|p| p + 0.1 * rng.normal()).collect();
            let at = |i: usize, step: f64| {
                let moved = params.iter().enumerate().map(|(j, &p)| f64::from(p) + if i == j { step } else { 0.0 });
                let moved = Tensor::from_iter(moved, &Device::Cpu).unwrap();
                let (logits, values) = policy.forward(&moved, &obs).unwrap();
                loss(&logits, &values).to_scalar::<f64>().unwrap()
            };
            let exact = gradient(|p, x| policy.forward(p, x), &params, &obs, DType::F64);
            let norm = exact.iter().map(|g| g * g).sum::<f64>().sqrt();
            for (i, grad) in exact.into_iter().enumerate() {
                let difference = (at(i, 1e-6) - at(i, -1e-6)) / 2e-6;
                assert!((difference - grad).abs() < 1e-6 * norm.max(1.0), "parameter {i}: {grad} but {difference}");
            }
        }
    }

    #[test]
    fn a_sample_has_the_same_outputs_whatever_is_beside_it() {
        let vectors = (Space::vector(&[-1.0; 4], &[1.0; 4]), NetConfig::default());
        let planes =
            pictured().into_iter().map(|(space, conv)| (space, NetConfig { conv, hidden: vec![32], ..NetConfig::default() }));
        let actions = ActionSpace::Discrete { n: 2, masked: false };
        let isas = || Isa::ALL.into_iter().filter(|isa| isa.supported());
        for ((space, net), isa) in
            std::iter::once(vectors).chain(planes).flat_map(|case| isas().map(move |isa| (case.clone(), isa)))
        {
            let d = space.len();
            let policy = ActorCritic::new(&space, &actions, &net, 7).unwrap().with_isa(isa);
            let mut rng = Rng::new(1, 0, 0, Purpose::Init);
            let obs: Vec<f32> = (0..200 * d).map(|_| rng.normal()).collect();
            let params = Tensor::new(policy.params(), &Device::Cpu).unwrap();
            let outputs = |rows: std::ops::Range<usize>| {
                let x = Tensor::from_slice(&obs[rows.start * d..rows.end * d], (rows.len(), d), &Device::Cpu).unwrap();
                policy.forward_fused(&params, &x).unwrap().0.to_vec2::<f32>().unwrap()
            };
            let all = outputs(0..200);
            for rows in [0..1, 5..12, 90..100, 7..170] {
                assert_eq!(outputs(rows.clone()), all[rows], "{isa:?}");
            }
        }
    }
}
