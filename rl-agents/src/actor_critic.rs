//! A policy and a value function: networks over one parameter vector.

use std::any::Any;
use std::ops::Range;

use candle_core::{Device, Tensor};
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::{ActionSpace, ActionsMut, Isa, Pool, Purpose, Space, math, rng};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::conv::Conv;
use crate::distributions::{Distribution, add_noise, greedy, log_softmax_columns, sample, standardize_columns};
use crate::fused::Fused;
use crate::mlp::Mlp;
use crate::normalize::{Moments, Normalizer};
use crate::params::Layout;
use crate::samples::{Samples, TILE};
use crate::settings::{self, Kind};
use crate::tile::{self, Kernel, Net, Workspace};
use crate::{Counters, Error, NetSize, Policy, Scratch, Snapshot, Statistics};

/// What computes losses and gradients, and acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Learner {
    /// The tile kernel.
    #[default]
    Fused,
    /// candle's operations: slow, obvious, the referee of the other.
    Reference,
}

crate::settings! {
    /// Settings of the networks.
    pub struct NetConfig, "" {
        /// Convolutions before the hidden layers, each [channels, kernel, stride].
        ///
        /// Policy and value function share them. Observations are planes (channels, height, width).
        conv: Vec<[usize; 3]> = Vec::new(), Kind::Conv;
        /// Sizes of the hidden layers of each network.
        hidden: Vec<usize> = vec![64, 64], Kind::Sizes;
        /// Activation after each hidden layer.
        activation: Activation = Activation::Tanh, Kind::Choice(&["tanh", "relu"]);
        /// Shares the hidden layers between policy and value function.
        shared_trunk: bool = false, Kind::Bool;
        /// Implementation of networks: fused: the tile kernel; reference: candle, slow.
        learner: Learner = Learner::Fused, Kind::Choice(&["fused", "reference"]);
        /// Initial logarithm of the standard deviations of continuous actions.
        log_std_init: f32 = 0.0, Kind::Float(-20.0, 20.0);
        /// Normalizes observations by their running mean and variance.
        normalize_obs: bool = false, Kind::Bool;
    }
}

impl NetConfig {
    /// Checks every range, and that convolutions fit observations of this space.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Setting`].
    pub fn check(&self, obs: &Space) -> Result<(), Error> {
        settings::check(Self::KEYS, self)?;
        Conv::new(&mut Layout::default(), obs.shape(), &self.conv, self.activation).map(|_| ())
    }
}

/// How an action is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Drawn from the policy with environment i's stream [`Purpose::Policy`]: a discrete action with word `step & 3` of block 0 of
    /// counter step `step >> 2`, dimension j of a continuous one with normal number `j & 3` of block `j >> 2` of counter step
    /// `step` (see [`rng::normals`]).
    Sample {
        /// The seed of the generator.
        seed: u64,
        /// The lifetime step of the environments.
        step: u64,
        /// The index of the first environment.
        first_env: u32,
    },
    /// The most likely one.
    Greedy,
}

/// A policy and a value function: networks `actor` and `critic`, separate or after a shared `trunk`, all after `conv`, if there are
/// convolutions. The policy is categorical or Gaussian as the action space is discrete or continuous; a Gaussian one has its
/// `log_std` at the end of the parameters.
///
/// Initialisation: orthogonal, gain sqrt(2) in hidden layers, 0.01 in the policy's last, 1 in the value function's; biases 0.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    layout: Layout,
    conv: Conv,
    trunk: Option<Mlp>,
    actor: Mlp,
    critic: Mlp,
    params: Vec<f32>, // (P)
    distribution: Distribution,
    n_actions: usize,
    obs_len: usize,
    scale: f32,
    normalizer: Option<Normalizer>,
    version: u64,
    kernel: Option<Kernel>,
}

/// Networks without parameters.
struct Shape {
    layout: Layout,
    conv: Conv,
    trunk: Option<Mlp>,
    actor: Mlp,
    critic: Mlp,
    distribution: Distribution,
}

impl Shape {
    fn new(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig) -> Result<Self, Error> {
        let NetConfig { conv, hidden, activation, shared_trunk, .. } = net;
        net.check(observation_space)?;
        let n_actions = action_space.len();
        let mut layout = Layout::default();
        let conv = Conv::new(&mut layout, observation_space.shape(), conv, *activation)?;
        let mut mlp = |name: &str, sizes: &[usize]| Mlp::new(&mut layout, name, sizes, *activation);
        let body = [&[conv.n_out()], &hidden[..]].concat();
        let (trunk, actor, critic) = match (shared_trunk, hidden.last()) {
            (true, Some(&last)) => {
                (Some(mlp("trunk", &body).into_trunk()), mlp("actor", &[last, n_actions]), mlp("critic", &[last, 1]))
            }
            _ => (None, mlp("actor", &[&body[..], &[n_actions]].concat()), mlp("critic", &[&body[..], &[1]].concat())),
        };
        let distribution = match action_space {
            ActionSpace::Discrete { .. } => Distribution::Categorical,
            ActionSpace::Continuous { .. } => Distribution::Gaussian { log_std: layout.push("log_std".into(), &[n_actions]) },
        };
        Ok(Self { layout, conv, trunk, actor, critic, distribution })
    }
}

/// The networks in their order, each with the index of the one that it starts from.
fn mlps<'a>(trunk: Option<&'a Mlp>, actor: &'a Mlp, critic: &'a Mlp) -> Vec<(&'a Mlp, Option<usize>)> {
    let from = trunk.map(|_| 0);
    trunk.into_iter().map(|mlp| (mlp, None)).chain([(actor, from), (critic, from)]).collect()
}

impl ActorCritic {
    /// Memory that networks of these settings take; nothing is allocated.
    ///
    /// # Errors
    /// Those of [`NetConfig::check`].
    pub fn size(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig) -> Result<NetSize, Error> {
        let Shape { layout, conv, trunk, actor, critic, .. } = Shape::new(observation_space, action_space, net)?;
        Ok(NetSize::new(&layout, &conv, &mlps(trunk.as_ref(), &actor, &critic), net, action_space.len()))
    }

    /// With fresh parameters.
    ///
    /// # Errors
    /// Those of [`NetConfig::check`].
    pub fn new(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let mut policy = Self::unset(observation_space, action_space, net)?;
        let Self { conv, trunk, actor, critic, params, .. } = &mut policy;
        conv.init(params, seed);
        let mut index = conv.n_layers();
        for (mlp, gain) in [(trunk.as_ref(), std::f32::consts::SQRT_2), (Some(&*actor), 0.01), (Some(&*critic), 1.0)] {
            if let Some(mlp) = mlp {
                mlp.init(params, gain, seed, index);
                index += mlp.n_layers();
            }
        }
        policy.pack();
        Ok(policy)
    }

    /// With parameters that are still to be loaded: weights and biases are 0.
    ///
    /// # Errors
    /// Those of [`ActorCritic::new`].
    pub fn unset(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig) -> Result<Self, Error> {
        let Shape { layout, conv, trunk, actor, critic, distribution } = Shape::new(observation_space, action_space, net)?;
        let NetConfig { activation, learner, log_std_init, normalize_obs, .. } = net;
        let (obs_len, n_actions) = (observation_space.len(), action_space.len());
        let mut params = vec![0.0; layout.len()];
        if let Distribution::Gaussian { log_std } = &distribution {
            params[log_std.clone()].fill(*log_std_init);
        }
        let kernel = match learner {
            Learner::Fused => {
                let mlps = mlps(trunk.as_ref(), &actor, &critic);
                Some(Kernel::new(Net::new(&conv, &mlps, *activation), &params))
            }
            Learner::Reference => None,
        };
        let scale = observation_space.scale();
        let normalizer = normalize_obs.then(|| Normalizer::new(obs_len));
        let policy = Self {
            layout,
            conv,
            trunk,
            actor,
            critic,
            params,
            distribution,
            n_actions,
            obs_len,
            scale,
            normalizer,
            version: 0,
            kernel,
        };
        Ok(policy)
    }

    /// Uses another instruction set than the best one.
    ///
    /// # Errors
    /// [`Error::Setting`] if this machine does not have it.
    pub fn with_isa(mut self, isa: Isa) -> Result<Self, Error> {
        if !isa.supported() {
            return Err(Error::Setting { name: "isa", value: format!("{isa:?}"), allowed: "this machine does not have it" });
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.isa = isa;
        }
        Ok(self)
    }

    /// What computes.
    #[must_use]
    pub fn learner(&self) -> Learner {
        if self.kernel.is_some() { Learner::Fused } else { Learner::Reference }
    }

    /// Which distribution actions are drawn from.
    #[must_use]
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Changes the parameters, and with them the version.
    pub(crate) fn change<R>(&mut self, f: impl FnOnce(&mut [f32]) -> R) -> R {
        let result = f(&mut self.params);
        self.version += 1;
        self.pack();
        result
    }

    fn pack(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.pack(&self.params);
        }
    }

    /// Floating-point operations of learning from one sample with the networks alone: forward, gradients of the weights, and
    /// gradients of the inputs but for the first layers, two for each product.
    #[must_use]
    pub fn flops_per_sample(&self) -> usize {
        let first = |mlp: &Mlp| self.trunk.as_ref().is_none_or(|trunk| trunk.layers()[0].weight == mlp.layers()[0].weight);
        let mlps = self.trunk.iter().chain([&self.actor, &self.critic]);
        let dense: usize = mlps.clone().flat_map(Mlp::layers).map(|layer| 6 * layer.weight.len()).sum();
        let conv: usize = self.conv.products().map(|products| 6 * products).sum();
        let of_first = match self.conv.products().next() {
            Some(products) => products,
            None => mlps.filter(|mlp| first(mlp)).map(|mlp| mlp.layers()[0].weight.len()).sum(),
        };
        conv + dense - 2 * of_first
    }

    /// The running statistics of observations, if they are normalized.
    #[must_use]
    pub fn obs_moments(&self) -> Option<&Moments> {
        self.normalizer.as_ref().map(Normalizer::moments)
    }

    /// Merges the statistics with those of a rollout's observations, if they are normalized. It is another policy then.
    pub(crate) fn merge_obs(&mut self, rollout: &Rollout, pool: &Pool) {
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.merge(rollout, self.scale, pool);
            self.version += 1;
        }
    }

    /// True if observations are normalized and none has been seen yet.
    pub(crate) fn awaits_obs(&self) -> bool {
        self.obs_moments().is_some_and(|moments| moments.count() == 0.0)
    }

    /// The mean standard deviation of continuous actions.
    pub(crate) fn mean_std(&self) -> Option<f32> {
        let Distribution::Gaussian { log_std } = &self.distribution else { return None };
        let log_std = &self.params[log_std.clone()];
        Some(log_std.iter().map(|&x| math::exp(x)).sum::<f32>() / log_std.len() as f32)
    }

    /// Replaces the parameters.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if their number is another.
    pub fn set_params(&mut self, params: &[f32], version: u64) -> Result<(), Error> {
        if params.len() != self.params.len() {
            let (found, expected) = (params.len(), self.params.len());
            return Err(Error::Snapshot(format!("it has {found} parameters, this network has {expected}")));
        }
        self.params.copy_from_slice(params);
        self.version = version;
        self.pack();
        Ok(())
    }

    /// Logits or means (B, A) and values (B) for observations (B, D) as the networks take them, scaled and normalized, composed of
    /// candle's operations, with gradients with respect to `params` (P).
    ///
    /// # Errors
    /// Those of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let features = self.conv.forward(params, obs)?;
        let features = match &self.trunk {
            Some(trunk) => trunk.forward(params, &features)?,
            None => features,
        };
        Ok((self.actor.forward(params, &features)?, self.critic.forward(params, &features)?.squeeze(1)?))
    }

    /// The same as one operation on the tile kernel: any loss can be written in candle on top of it. The gradient flows to
    /// `params`, not to `obs`.
    ///
    /// # Errors
    /// Those of candle, and if the learner is the reference.
    pub fn forward_fused(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let Some(Kernel { isa, net, .. }) = &self.kernel else { candle_core::bail!("the reference learner has no kernel") };
        let (n_actions, obs_len) = (self.n_actions, self.obs_len);
        let op = Fused { isa: *isa, net: net.clone(), chains: self.chains(), n_actions, obs_len };
        let outputs = params.apply_op2(obs, op)?;
        Ok((outputs.narrow(1, 0, n_actions)?, outputs.narrow(1, n_actions, 1)?.squeeze(1)?))
    }

    fn act_discrete(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        choice: Choice,
        Scratch { workspace, outputs, row, .. }: &mut Scratch,
        (actions, log_probs, values): (&mut [u32], &mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        let a = self.n_actions;
        self.each_tile(obs, workspace, outputs, values, &mut |range, logits| {
            let m = range.len();
            let masks = masks.get(range.start * a..range.end * a).unwrap_or_default();
            log_softmax_columns(logits, m, masks, &mut [0.0; 2 * TILE]);
            for (s, i) in range.enumerate() {
                row.iter_mut().zip(logits[s..].iter().step_by(m)).for_each(|(to, &log_prob)| *to = log_prob);
                actions[i] = match choice {
                    Choice::Sample { seed, step, first_env } => {
                        sample(row, rng::uniform(rng::word(seed, first_env + i as u32, step, Purpose::Policy)))
                    }
                    Choice::Greedy => greedy(row),
                };
                log_probs[i] = row[actions[i] as usize];
            }
        })
    }

    fn act_continuous(
        &self,
        obs: ObsSlice<'_>,
        choice: Choice,
        log_std: &[f32],
        Scratch { workspace, outputs, chosen, .. }: &mut Scratch,
        (actions, log_probs, values): (&mut [f32], &mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        let a = self.n_actions;
        self.each_tile(obs, workspace, outputs, values, &mut |range, means| {
            let m = range.len();
            let chosen = &mut chosen[..a * m];
            chosen.copy_from_slice(means);
            if let Choice::Sample { seed, step, first_env } = choice {
                add_noise(chosen, m, log_std, seed, step, first_env + range.start as u32);
            }
            standardize_columns(means, chosen, m, log_std, &mut log_probs[range.clone()]);
            let rows = actions[range.start * a..range.end * a].chunks_exact_mut(a);
            for (s, row) in rows.enumerate() {
                row.iter_mut().zip(chosen[s..].iter().step_by(m)).for_each(|(to, &action)| *to = action);
            }
        })
    }

    /// Puts N observations through the networks, writes their values (N), and shows `choose` the policy's outputs tile by tile:
    /// those of the samples of a range, as columns (A, m).
    pub(crate) fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        workspace: &mut Option<Workspace>,
        outputs: &mut [f32],
        values: &mut [f32],
        choose: &mut impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        if let (Some(kernel), Some(workspace)) = (self.kernel(), workspace) {
            let (actor, critic) = self.chains();
            tile::forward(kernel, self.samples(obs, None), values.len(), None, workspace, |tile: &mut tile::Tile<'_>| {
                let range = tile.samples();
                let outputs = &mut outputs[..self.n_actions * range.len()];
                outputs.chunks_exact_mut(range.len()).enumerate().for_each(|(j, column)| tile.column(actor, j, column));
                tile.column(critic, 0, &mut values[range.clone()]);
                choose(range, outputs);
            });
        } else {
            let (outputs, value) = self.forward(&self.params_tensor()?, &self.features(obs)?)?;
            values.copy_from_slice(&value.to_vec1::<f32>()?);
            let all = outputs.t()?.contiguous()?.to_vec2::<f32>()?;
            for start in (0..values.len()).step_by(TILE) {
                let range = start..(start + TILE).min(values.len());
                let mut columns: Vec<f32> = all.iter().flat_map(|column| &column[range.clone()]).copied().collect();
                choose(range, &mut columns);
            }
        }
        Ok(())
    }

    /// The kernel's view of the networks as they are now, if it is the learner.
    pub(crate) fn kernel(&self) -> Option<(Isa, &Net, &[f32])> {
        self.kernel.as_ref().map(Kernel::view)
    }

    /// The kernel's chains of policy and value function.
    pub(crate) fn chains(&self) -> (usize, usize) {
        if self.trunk.is_some() { (1, 2) } else { (0, 1) }
    }

    /// Observations as the kernel takes them.
    pub(crate) fn samples<'a>(&'a self, obs: ObsSlice<'a>, rows: Option<&'a [u32]>) -> Samples<'a> {
        Samples { obs, scale: self.scale, normalizer: self.normalizer.as_ref(), rows }
    }

    fn params_tensor(&self) -> candle_core::Result<Tensor> {
        Tensor::from_slice(&self.params, self.params.len(), &Device::Cpu)
    }

    /// Observations as the networks take them, (B, D).
    fn features(&self, obs: ObsSlice<'_>) -> candle_core::Result<Tensor> {
        let mut features = Vec::new();
        self.push_features(obs, &mut features);
        let n = features.len() / self.obs_len;
        Tensor::from_vec(features, (n, self.obs_len), &Device::Cpu)
    }

    /// Appends observations as the networks take them.
    pub(crate) fn push_features(&self, obs: ObsSlice<'_>, features: &mut Vec<f32>) {
        let begin = features.len();
        match obs {
            ObsSlice::F32(obs) => features.extend_from_slice(obs),
            ObsSlice::U8(obs) => features.extend(obs.iter().map(|&x| f32::from(x) * self.scale)),
        }
        if let Some(normalizer) = &self.normalizer {
            features[begin..].chunks_exact_mut(self.obs_len).for_each(|row| normalizer.apply(row));
        }
    }

    pub(crate) fn n_actions(&self) -> usize {
        self.n_actions
    }

    pub(crate) fn obs_len(&self) -> usize {
        self.obs_len
    }
}

impl Policy for ActorCritic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn save(&self) -> Snapshot {
        Snapshot {
            params: self.params.clone(),
            moments: Vec::new(),
            statistics: Statistics { obs: self.obs_moments().cloned(), returns: None },
            counters: Counters { version: self.version, ..Counters::default() },
        }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn copy_from(&mut self, other: &dyn Policy) -> Result<(), Error> {
        let other_kind = || Error::Snapshot("the other policy is not an actor-critic of this kind".into());
        let other: &Self = other.as_any().downcast_ref().ok_or_else(other_kind)?;
        let fits = match (&mut self.normalizer, &other.normalizer) {
            (Some(normalizer), Some(other)) => normalizer.copy_from(other),
            (None, None) => true,
            _ => false,
        };
        if fits { self.set_params(&other.params, other.version) } else { Err(other_kind()) }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let mut normalizer = self.normalizer.clone();
        let fits = match (&mut normalizer, &snapshot.statistics.obs) {
            (Some(normalizer), Some(moments)) => normalizer.set(moments),
            (None, None) => true,
            _ => false,
        };
        if !fits {
            return Err(Error::Snapshot("the statistics of its observations are not those that this policy keeps".into()));
        }
        self.set_params(&snapshot.params, snapshot.counters.version)?;
        self.normalizer = normalizer;
        Ok(())
    }

    fn scratch(&self) -> Scratch {
        let workspace = self.kernel.as_ref().map(|kernel| Workspace::forward(&kernel.net));
        Scratch::new(workspace, self.n_actions)
    }

    fn act(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        choice: Choice,
        scratch: &mut Scratch,
        (actions, log_probs, values): (ActionsMut<'_>, &mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        const CONTIGUOUS: &str = "actions to be written are contiguous";
        match (actions, &self.distribution) {
            (ActionsMut::Discrete(actions), Distribution::Categorical) => {
                let actions = actions.into_slice().expect(CONTIGUOUS);
                self.act_discrete(obs, masks, choice, scratch, (actions, log_probs, values))
            }
            (ActionsMut::Continuous(actions), Distribution::Gaussian { log_std }) => {
                let actions = actions.into_slice().expect(CONTIGUOUS);
                self.act_continuous(obs, choice, &self.params[log_std.clone()], scratch, (actions, log_probs, values))
            }
            _ => Err(Error::ActionKind),
        }
    }

    fn values(&self, obs: ObsSlice<'_>, scratch: &mut Scratch, values: &mut [f32]) -> Result<(), Error> {
        if let (Some(kernel), Some(workspace)) = (self.kernel(), &mut scratch.workspace) {
            let (actor, critic) = self.chains();
            tile::forward(kernel, self.samples(obs, None), values.len(), Some(actor), workspace, |tile: &mut tile::Tile<'_>| {
                tile.column(critic, 0, &mut values[tile.samples()]);
            });
        } else if !values.is_empty() {
            let (_, value) = self.forward(&self.params_tensor()?, &self.features(obs)?)?;
            values.copy_from_slice(&value.to_vec1::<f32>()?);
        }
        Ok(())
    }
}
