//! An action-value function: a network over one parameter vector, and the policy that follows from it.

use std::any::Any;

use candle_core::{Device, Tensor};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, ActionsMut, Isa, Pool, Purpose, Space, math, pool, rng};

use crate::actor_critic::{Choice, Learner, NetConfig};
use crate::conv::Conv;
use crate::mlp::Mlp;
use crate::params::Layout;
use crate::samples::{Samples, TILE};
use crate::tile::{self, Kernel, Net, Workspace};
use crate::{Counters, Error, NetSize, Policy, Scratch, Snapshot, Statistics};

/// Rows of a batch that one thread takes at a time, at least.
const MIN_SLICE: usize = TILE;
const MAX_SLICES: usize = 16;

/// Q(s, a) for each of A discrete actions: a network `q`, or a dueling one (Wang et al., 2016) where after a shared `trunk` the
/// networks `advantage` and `value` give `Q = V + A - mean A`.
///
/// After convolutions, if there are any. It acts greedily but for a share epsilon of the actions, which are uniform over the legal
/// ones, as are all of an agent's before it has begun to learn. Initialisation: orthogonal, gain sqrt(2) in hidden layers, 1 in the last; biases 0.
#[derive(Clone, Debug)]
pub struct QNetwork {
    layout: Layout,
    conv: Conv,
    mlps: Vec<Mlp>,   // q, or trunk, advantage, value
    params: Vec<f32>, // (P)
    n_actions: usize,
    obs_len: usize,
    scale: f32,
    /// The share of random actions of the first environment, and what its exponent grows by from environment to environment.
    epsilon: (f32, f32),
    /// Lifetime steps of an environment in which all of its actions are random.
    random_steps: u64,
    version: u64,
    kernel: Option<Kernel>,
}

/// The networks, each with the index of the one that it starts from.
fn chains(mlps: &[Mlp]) -> Vec<(&Mlp, Option<usize>)> {
    mlps.iter().enumerate().map(|(i, mlp)| (mlp, (i > 0).then_some(0))).collect()
}

impl QNetwork {
    /// Checks that there can be a network of these settings for these spaces.
    ///
    /// # Errors
    /// Those of [`NetConfig::check`]; [`Error::ActionKind`] for continuous actions, [`Error::Setting`] for a dueling network without a
    /// hidden layer and for observations to be normalized.
    pub fn check(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<(), Error> {
        let refuse = |name, value: String, allowed| Err(Error::Setting { name, value, allowed });
        if !matches!(actions, ActionSpace::Discrete { .. }) {
            return Err(Error::ActionKind);
        }
        net.check(obs)?;
        if net.normalize_obs {
            return refuse("normalize_obs", "true".into(), "DQN does not normalize observations");
        }
        if dueling && net.hidden.is_empty() {
            return refuse("hidden", "[]".into(), "a dueling network needs a hidden layer");
        }
        Ok(())
    }

    /// Memory that a network of these settings takes; nothing is allocated.
    ///
    /// # Errors
    /// Those of [`QNetwork::check`].
    pub fn size(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<NetSize, Error> {
        let (layout, conv, mlps) = Self::shape(obs, actions, net, dueling)?;
        Ok(NetSize::new(&layout, &conv, &chains(&mlps), net, actions.len()))
    }

    /// The networks without parameters.
    fn shape(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<(Layout, Conv, Vec<Mlp>), Error> {
        Self::check(obs, actions, net, dueling)?;
        let n_actions = actions.len();
        let mut layout = Layout::default();
        let conv = Conv::new(&mut layout, obs.shape(), &net.conv, net.activation)?;
        let body = [&[conv.n_out()], &net.hidden[..]].concat();
        let mut mlp = |name: &str, sizes: &[usize]| Mlp::new(&mut layout, name, sizes, net.activation);
        let mlps = match (dueling, net.hidden.last()) {
            (true, Some(&last)) => {
                vec![mlp("trunk", &body).into_trunk(), mlp("advantage", &[last, n_actions]), mlp("value", &[last, 1])]
            }
            _ => vec![mlp("q", &[&body[..], &[n_actions]].concat())],
        };
        Ok((layout, conv, mlps))
    }

    /// With fresh parameters.
    ///
    /// # Errors
    /// Those of [`QNetwork::check`].
    pub fn new(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool, seed: u64) -> Result<Self, Error> {
        let mut network = Self::unset(obs, actions, net, dueling)?;
        let Self { conv, mlps, params, .. } = &mut network;
        conv.init(params, seed);
        let mut index = conv.n_layers();
        for mlp in &*mlps {
            mlp.init(params, if mlp.is_trunk() { std::f32::consts::SQRT_2 } else { 1.0 }, seed, index);
            index += mlp.n_layers();
        }
        network.pack();
        Ok(network)
    }

    /// With parameters that are still to be loaded: all are 0.
    ///
    /// # Errors
    /// Those of [`QNetwork::check`].
    pub fn unset(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<Self, Error> {
        let (layout, conv, mlps) = Self::shape(obs, actions, net, dueling)?;
        let (obs_len, n_actions) = (obs.len(), actions.len());
        let params = vec![0.0; layout.len()];
        let kernel = match net.learner {
            Learner::Fused => Some(Kernel::new(Net::new(&conv, &chains(&mlps), net.activation), &params)),
            Learner::Reference => None,
        };
        let scale = obs.scale();
        let network = Self {
            layout,
            conv,
            mlps,
            params,
            n_actions,
            obs_len,
            scale,
            epsilon: (0.0, 0.0),
            random_steps: 0,
            version: 0,
            kernel,
        };
        Ok(network)
    }

    fn pack(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.pack(&self.params);
        }
    }

    /// What computes.
    #[must_use]
    pub fn learner(&self) -> Learner {
        if self.kernel.is_some() { Learner::Fused } else { Learner::Reference }
    }

    /// Lets environment i of N take a share `epsilon^(1 + spread i / (N - 1))` of random actions where actions are sampled.
    pub fn explore(&mut self, epsilon: f32, spread: f32, n_envs: usize) {
        self.epsilon = (epsilon, if n_envs > 1 { spread / (n_envs - 1) as f32 } else { 0.0 });
    }

    /// Makes all actions random in the first `steps` lifetime steps of each environment.
    pub(crate) fn act_randomly_until(&mut self, steps: u64) {
        self.random_steps = steps;
    }

    /// The share of random actions of an environment at a lifetime step.
    fn epsilon_of(&self, env_idx: u32, step: u64) -> f32 {
        match self.epsilon {
            _ if step < self.random_steps => 1.0,
            (epsilon, 0.0) => epsilon,
            (epsilon, growth) => math::exp(math::ln(epsilon) * (1.0 + growth * env_idx as f32)),
        }
    }

    pub(crate) fn n_actions(&self) -> usize {
        self.n_actions
    }

    /// Changes the parameters, and with them the version.
    pub(crate) fn change<R>(&mut self, f: impl FnOnce(&mut [f32]) -> R) -> R {
        let result = f(&mut self.params);
        self.version += 1;
        self.pack();
        result
    }

    pub(crate) fn set_params(&mut self, params: &[f32], version: u64) -> Result<(), Error> {
        if params.len() != self.params.len() {
            let (found, expected) = (params.len(), self.params.len());
            return Err(Error::Snapshot(format!("it has {found} parameters, this network has {expected}")));
        }
        self.params.copy_from_slice(params);
        self.version = version;
        self.pack();
        Ok(())
    }

    /// Q (B, A) for observations (B, D) as the network takes them, composed of candle's operations, with gradients with respect to
    /// `params` (P).
    ///
    /// # Errors
    /// Those of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<Tensor> {
        let features = self.conv.forward(params, obs)?;
        let [trunk, advantage, value] = &self.mlps[..] else { return self.mlps[0].forward(params, &features) };
        let features = trunk.forward(params, &features)?;
        let advantage = advantage.forward(params, &features)?;
        let centered = advantage.broadcast_sub(&advantage.mean_keepdim(1)?)?;
        centered.broadcast_add(&value.forward(params, &features)?)
    }

    /// The kernel's view of the network as it is now, if it is the learner.
    pub(crate) fn kernel(&self) -> Option<(Isa, &Net, &[f32])> {
        self.kernel.as_ref().map(Kernel::view)
    }

    /// Whether the network is a dueling one.
    pub(crate) fn is_dueling(&self) -> bool {
        self.mlps.len() > 1
    }

    pub(crate) fn samples<'a>(&self, obs: ObsSlice<'a>) -> Samples<'a> {
        Samples { obs, scale: self.scale, normalizer: None, rows: None }
    }

    /// Reads Q from a tile, as columns (A, m).
    #[inline(always)]
    pub(crate) fn read(&self, tile: &tile::Tile<'_>, q: &mut [f32]) {
        let m = tile.samples().len();
        let chain = usize::from(self.is_dueling());
        q.chunks_exact_mut(m).enumerate().for_each(|(j, column)| tile.column(chain, j, column));
        if self.is_dueling() {
            let mut offset = [0.0; TILE];
            let offset = &mut offset[..m];
            for column in q.chunks_exact(m) {
                offset.iter_mut().zip(column).for_each(|(sum, x)| *sum += x);
            }
            let mut value = [0.0; TILE];
            tile.column(2, 0, &mut value[..m]);
            let share = 1.0 / self.n_actions as f32;
            offset.iter_mut().zip(&value).for_each(|(offset, value)| *offset = value - *offset * share);
            for column in q.chunks_exact_mut(m) {
                column.iter_mut().zip(&*offset).for_each(|(q, offset)| *q += offset);
            }
        }
    }

    /// Sets the gradient of a tile from that with respect to Q, as columns (A, m).
    #[inline(always)]
    pub(crate) fn write_gradient(&self, tile: &mut tile::Tile<'_>, d_q: &[f32]) {
        let m = tile.samples().len();
        if !self.is_dueling() {
            d_q.chunks_exact(m).enumerate().for_each(|(j, column)| tile.set_grad(0, j, column));
            return;
        }
        // dQ_k/dA_j = [j = k] - 1 / A, dQ_k/dV = 1.
        let mut total = [0.0; TILE];
        for column in d_q.chunks_exact(m) {
            total.iter_mut().zip(column).for_each(|(sum, x)| *sum += x);
        }
        tile.set_grad(2, 0, &total[..m]);
        let share = 1.0 / self.n_actions as f32;
        let mut d = [0.0; TILE];
        for (j, column) in d_q.chunks_exact(m).enumerate() {
            d.iter_mut().zip(column).zip(&total).for_each(|((d, x), total)| *d = x - total * share);
            tile.set_grad(1, j, &d[..m]);
        }
    }

    /// Shows `choose` Q of all observations, tile by tile: that of the samples of a range, as columns (A, m).
    fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        n: usize,
        Scratch { workspace, outputs, .. }: &mut Scratch,
        choose: &mut impl FnMut(std::ops::Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        if let (Some(kernel), Some(workspace)) = (self.kernel(), workspace) {
            tile::forward(kernel, self.samples(obs), n, None, workspace, |tile: &mut tile::Tile<'_>| {
                let range = tile.samples();
                let q = &mut outputs[..self.n_actions * range.len()];
                self.read(tile, q);
                choose(range, q);
            });
        } else if n > 0 {
            let params = Tensor::from_slice(&self.params, self.params.len(), &Device::Cpu)?;
            let all = self.forward(&params, &self.features(obs)?)?.t()?.contiguous()?.to_vec2::<f32>()?;
            for start in (0..n).step_by(TILE) {
                let range = start..(start + TILE).min(n);
                let mut columns: Vec<f32> = all.iter().flat_map(|column| &column[range.clone()]).copied().collect();
                choose(range, &mut columns);
            }
        }
        Ok(())
    }

    /// Observations as the network takes them, (B, D).
    pub(crate) fn features(&self, obs: ObsSlice<'_>) -> candle_core::Result<Tensor> {
        let features: Vec<f32> = match obs {
            ObsSlice::F32(obs) => obs.to_vec(),
            ObsSlice::U8(obs) => obs.iter().map(|&x| f32::from(x) * self.scale).collect(),
        };
        let n = features.len() / self.obs_len;
        Tensor::from_vec(features, (n, self.obs_len), &Device::Cpu)
    }

    /// Writes Q (n, A) of n observations, on the threads of `pool`. `scratches` is memory that is kept from call to call.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn q_values(
        &self,
        obs: ObsSlice<'_>,
        pool: &Pool,
        scratches: &mut Vec<Scratch>,
        q: &mut [f32],
    ) -> Result<(), Error> {
        let (a, d) = (self.n_actions, self.obs_len);
        let n = q.len() / a;
        let slices = pool::slices(n, MAX_SLICES, MIN_SLICE);
        let mut work = Vec::with_capacity(MAX_SLICES);
        let mut rest = q;
        for (i, range) in slices.enumerate() {
            if scratches.len() == i {
                scratches.push(self.scratch());
            }
            let (part, others) = rest.split_at_mut(range.len() * a);
            rest = others;
            work.push((range, part, Ok(())));
        }
        let mut work: Vec<_> = work.into_iter().zip(scratches).collect();
        pool.each(&mut work, &|((range, part, result), scratch)| {
            let obs = match obs {
                ObsSlice::F32(obs) => ObsSlice::F32(&obs[range.start * d..range.end * d]),
                ObsSlice::U8(obs) => ObsSlice::U8(&obs[range.start * d..range.end * d]),
            };
            *result = self.each_tile(obs, range.len(), scratch, &mut |samples, columns| {
                let m = samples.len();
                for (s, row) in part[samples.start * a..samples.end * a].chunks_exact_mut(a).enumerate() {
                    row.iter_mut().zip(columns[s..].iter().step_by(m)).for_each(|(to, &q)| *to = q);
                }
            });
        });
        work.into_iter().try_for_each(|((.., result), _)| result)
    }
}

/// The greatest of the legal action values, and its action; the first of equals. `mask` is empty where all are legal.
#[must_use]
pub(crate) fn best(q: impl Iterator<Item = f32>, mask: &[u8]) -> (usize, f32) {
    let legal = |j: usize| mask.get(j).is_none_or(|&legal| legal == 1);
    let better =
        |best: (usize, f32), (j, q): (usize, f32)| if legal(j) && (q > best.1 || best.0 == usize::MAX) { (j, q) } else { best };
    let (action, value) = q.enumerate().fold((usize::MAX, 0.0), better);
    if action == usize::MAX { (0, 0.0) } else { (action, value) }
}

impl Policy for QNetwork {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn scratch(&self) -> Scratch {
        let workspace = self.kernel.as_ref().map(|kernel| Workspace::forward(&kernel.net));
        Scratch::new(workspace, self.n_actions)
    }

    fn save(&self) -> Snapshot {
        Snapshot {
            params: self.params.clone(),
            moments: Vec::new(),
            statistics: Statistics::default(),
            counters: Counters { version: self.version, ..Counters::default() },
        }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn copy_from(&mut self, other: &dyn Policy) -> Result<(), Error> {
        let other_kind = || Error::Snapshot("the other policy is not an action-value function".into());
        let other: &Self = other.as_any().downcast_ref().ok_or_else(other_kind)?;
        (self.epsilon, self.random_steps) = (other.epsilon, other.random_steps);
        self.set_params(&other.params, other.version)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.set_params(&snapshot.params, snapshot.counters.version)
    }

    /// Writes actions, zeros for log-probabilities, and the greatest action values. An action is random where word 0 of block 0 of the
    /// environment's stream [`Purpose::Policy`] at this step, as a uniform number, is below epsilon; word 1 says which.
    fn act(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        choice: Choice,
        scratch: &mut Scratch,
        (actions, log_probs, values): (ActionsMut<'_>, &mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        let ActionsMut::Discrete(actions) = actions else { return Err(Error::ActionKind) };
        let actions = actions.into_slice().expect("actions to be written are contiguous");
        let a = self.n_actions;
        log_probs.fill(0.0);
        self.each_tile(obs, values.len(), scratch, &mut |range, q| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                let mask = masks.get(i * a..(i + 1) * a).unwrap_or_default();
                let (action, value) = best(q[s..].iter().step_by(m).copied(), mask);
                (actions[i], values[i]) = (action as u32, value);
                if let Choice::Sample { seed, step, first_env } = choice {
                    let env_idx = first_env + i as u32;
                    let words = rng::block(seed, env_idx, step, Purpose::Policy, 0);
                    if rng::uniform(words[0]) < self.epsilon_of(env_idx, step) {
                        actions[i] = uniform_legal(words[1], a as u32, mask);
                    }
                }
            }
        })
    }

    fn values(&self, obs: ObsSlice<'_>, scratch: &mut Scratch, values: &mut [f32]) -> Result<(), Error> {
        self.each_tile(obs, values.len(), scratch, &mut |range, q| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                values[i] = best(q[s..].iter().step_by(m).copied(), &[]).1;
            }
        })
    }
}

/// One of the legal actions of `n`, uniformly; of all if none is legal.
fn uniform_legal(word: u32, n: u32, mask: &[u8]) -> u32 {
    let n_legal = mask.iter().filter(|&&legal| legal == 1).count() as u32;
    if n_legal == 0 {
        return rng::below(word, n);
    }
    let rank = rng::below(word, n_legal) as usize;
    (0..n).filter(|&j| mask[j as usize] == 1).nth(rank).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_action_is_legal_and_the_first_of_equals() {
        assert_eq!(best([1.0, 3.0, 3.0].into_iter(), &[]), (1, 3.0));
        assert_eq!(best([1.0, 3.0, 3.0].into_iter(), &[1, 0, 0]), (0, 1.0));
        assert_eq!(best([-5.0, 3.0].into_iter(), &[1, 0]), (0, -5.0));
        assert_eq!(best([-5.0, 3.0].into_iter(), &[0, 0]), (0, 0.0), "the episode is over");
    }

    #[test]
    fn an_unset_network_is_what_a_fresh_one_s_parameters_are_loaded_into() {
        let (space, actions) = (Space::vector(&[-1.0; 3], &[1.0; 3]), ActionSpace::Discrete { n: 4, masked: false });
        let net = NetConfig { hidden: vec![17, 33], ..NetConfig::default() };
        let fresh: [Box<dyn Policy>; 2] = [
            Box::new(crate::ActorCritic::new(&space, &actions, &net, 3).unwrap()),
            Box::new(QNetwork::new(&space, &actions, &net, true, 3).unwrap()),
        ];
        let unset: [Box<dyn Policy>; 2] = [
            Box::new(crate::ActorCritic::unset(&space, &actions, &net).unwrap()),
            Box::new(QNetwork::unset(&space, &actions, &net, true).unwrap()),
        ];
        for (fresh, mut unset) in fresh.into_iter().zip(unset) {
            assert!(unset.params().iter().all(|&x| x == 0.0), "nothing is drawn");
            unset.load(&fresh.save()).unwrap();
            let value = |policy: &dyn Policy| {
                let mut value = [0.0; 2];
                policy.values(ObsSlice::F32(&[0.3, -0.4, 0.5, 0.6, 0.7, -0.8]), &mut policy.scratch(), &mut value).unwrap();
                value
            };
            assert_eq!(value(&*unset), value(&*fresh));
        }
    }

    #[test]
    fn random_actions_are_uniform_over_the_legal_ones() {
        let mut counts = [0; 5];
        for step in 0..3000 {
            let word = rng::word(0, 0, step, Purpose::Policy);
            counts[uniform_legal(word, 5, &[1, 0, 1, 0, 1]) as usize] += 1;
        }
        // Binomial with mean 1000 and standard deviation 26.
        assert!(counts[1] + counts[3] == 0 && [0, 2, 4].iter().all(|&j| (880..1120).contains(&counts[j])), "{counts:?}");
    }

    #[test]
    fn the_kernel_agrees_with_candle_for_plain_and_dueling_networks() {
        let space = Space::vector(&[-1.0; 3], &[1.0; 3]);
        let actions = ActionSpace::Discrete { n: 4, masked: false };
        for dueling in [false, true] {
            let net = |learner| NetConfig { hidden: vec![17, 33], learner, ..NetConfig::default() };
            let fused = QNetwork::new(&space, &actions, &net(Learner::Fused), dueling, 3).unwrap();
            let reference = QNetwork::new(&space, &actions, &net(Learner::Reference), dueling, 3).unwrap();
            assert_eq!(fused.params(), reference.params());
            let obs: Vec<f32> = (0..3 * 200).map(|i| (i as f32 * 0.37).sin()).collect();
            let pool = Pool::new(2).unwrap();
            let [a, b] = [fused, reference].map(|network| {
                let mut q = vec![0.0; 200 * 4];
                network.q_values(ObsSlice::F32(&obs), &pool, &mut Vec::new(), &mut q).unwrap();
                q
            });
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "dueling {dueling}");
        }
    }
}
