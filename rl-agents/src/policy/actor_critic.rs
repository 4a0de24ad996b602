//! A policy and a value function: two heads of a network.

use std::ops::Range;

use candle_core::Tensor;
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::{ActionSpace, Actions, Pool, Purpose, Space, Spaces, rng};
use rl_policy::{Exported, Head};

use crate::kernel::fused::Fused;
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::samples::TILE;
use crate::kernel::tile::{self, Workspace};
use crate::network::normalize::Moments;
use crate::network::params::Layout;
use crate::network::recurrent::TensorSequences;
use crate::policy::distributions::{
    Distribution, add_noise, greedy, log_prob_of, log_softmax_heads, sample, standardize_columns,
};
use crate::policy::exported::bounds;
use crate::policy::mask_rows;
use crate::policy::network::{HeadLayers, Network, NetworkShape, TileScratch, each_reference_tile};
use crate::{Acted, Acting, Choice, Error, LearnerKind, NetConfig, NetSize, Policy, Scratch, Snapshot, Weights};

/// A policy and a value function, two heads of a network.
///
/// The networks `actor` and `critic` are separate, or follow a shared `trunk`; convolutions come first, then memory. The policy
/// is categorical or Gaussian, as the action space is discrete or continuous; a Gaussian one has its `log_std` at the end of the
/// parameters.
///
/// Default initialization: orthogonal, gain sqrt(2) in hidden layers, 0.01 in the policy's last layer, 1 in the value function's;
/// biases 0.
#[derive(Debug)]
pub struct ActorCritic {
    network: Network,
    distribution: Distribution,
    n_actions: usize,
}

/// Rows that acting writes beside the actions.
struct BesideActions<'a> {
    log_probs: &'a mut [f32],
    values: &'a mut [f32],
    states: &'a mut [f32],
}

/// Index of the policy among the heads.
const ACTOR: usize = 0;
/// Index of the value function among the heads.
const CRITIC: usize = 1;

over_network!(ActorCritic: distribution, n_actions);

impl ActorCritic {
    /// Memory of networks with these settings, computed without allocating parameters.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub fn size(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig) -> Result<NetSize, Error> {
        let (shape, _) = Self::shape(observation_space, action_space, net)?;
        Ok(shape.size(net, action_space.len()))
    }

    /// Lays out the networks without parameters.
    fn shape(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<(NetworkShape, Distribution), Error> {
        if let (Some(sizes), true) = (&net.critic_hidden, net.shared_trunk) {
            let allowed = "but the value function shares the policy's hidden layers; set shared_trunk = false, or leave it out";
            return Err(Error::Setting { name: "critic_hidden", value: format!("{sizes:?}"), allowed });
        }
        let n_actions = actions.len();
        let actor = HeadLayers { name: "actor", hidden: &net.hidden, n_out: n_actions };
        let critic = HeadLayers { name: "critic", hidden: net.hidden_of_critic(), n_out: 1 };
        let mut shape = NetworkShape::new(obs, net, &[actor, critic], net.shared_trunk)?;
        let distribution = match actions {
            ActionSpace::Discrete { n, .. } => Distribution::Categorical { heads: vec![*n as usize] },
            ActionSpace::MultiDiscrete { sizes } => {
                Distribution::Categorical { heads: sizes.iter().map(|&size| size as usize).collect() }
            }
            ActionSpace::Continuous { .. } => {
                Distribution::Gaussian { log_std: shape.layout.push("log_std".into(), &[n_actions]) }
            }
        };
        Ok((shape, distribution))
    }

    /// Creates networks with random parameters.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub fn new(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let mut policy = Self::unset(observation_space, action_space, net)?;
        policy.network.init(&[0.01, 1.0], seed);
        Ok(policy)
    }

    /// Creates networks with parameters still to be loaded: weights and biases are 0.
    ///
    /// # Errors
    /// Errors of [`ActorCritic::new`].
    pub fn unset(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig) -> Result<Self, Error> {
        let (shape, distribution) = Self::shape(observation_space, action_space, net)?;
        let mut network = Network::unset(shape, observation_space, net);
        if let Distribution::Gaussian { log_std } = &distribution {
            let mut params = network.params().to_vec();
            params[log_std.clone()].fill(net.log_std_init);
            network.set_params(&params, 0)?;
        }
        Ok(Self { network, distribution, n_actions: action_space.len() })
    }

    /// Replaces the instruction set, which this machine has.
    #[cfg(test)]
    pub(crate) fn with_isa(mut self, isa: rl_envs::Isa) -> Self {
        self.network.set_isa(isa);
        self
    }

    /// Implementation of losses, gradients and acting.
    #[must_use]
    pub fn learner(&self) -> LearnerKind {
        self.network.learner()
    }

    /// Distribution of the actions.
    #[must_use]
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Floating-point operations of the networks to learn from one sample.
    ///
    /// Forward, gradients of the weights, and gradients of the inputs except for the first layers count two for each product.
    #[must_use]
    pub fn flops_per_sample(&self) -> usize {
        self.network.flops_per_sample()
    }

    /// Running statistics of observations, if they are normalized.
    #[must_use]
    pub(crate) fn obs_moments(&self) -> Option<&Moments> {
        self.network.obs_moments()
    }

    /// True if observations are normalized and no statistics exist yet.
    pub(crate) fn awaits_obs(&self) -> bool {
        self.obs_moments().is_some_and(|moments| moments.count() == 0.0)
    }

    /// Number of changes of parameters and statistics so far.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.network.version()
    }

    /// Changes the parameters, and with them the version.
    pub fn change<R>(&mut self, f: impl FnOnce(&mut [f32]) -> R) -> R {
        self.network.change(f)
    }

    /// Adds a rollout's observations to the statistics that normalize them.
    ///
    /// Does nothing unless `normalize_obs` of [`NetConfig`](crate::NetConfig) is set. The version changes, because the
    /// outputs do.
    pub fn merge_obs(&mut self, rollout: &Rollout, pool: &Pool) {
        self.network.merge_obs(rollout, pool);
    }

    /// Replaces the parameters.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if their number differs.
    pub fn set_params(&mut self, params: &[f32], version: u64) -> Result<(), Error> {
        self.network.set_params(params, version)
    }

    /// Computes logits or means (B, A) and values (B) with candle operations.
    ///
    /// The observations (B, D) are scaled and normalized. Gradients flow to `params` (P). The policy has no memory.
    ///
    /// # Errors
    /// Errors of candle; an error if the policy has memory: see [`TensorBatch::forward`](crate::TensorBatch::forward).
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        if self.state_len() > 0 {
            candle_core::bail!("a policy with memory acts on sequences: use TensorBatch::forward");
        }
        let outputs = self.network.forward(params, obs)?;
        Ok((outputs[ACTOR].clone(), outputs[CRITIC].squeeze(1)?))
    }

    /// [`ActorCritic::forward`] of sequences, with their last states (C, S).
    ///
    /// For a policy with memory; the samples (T C) are time-major.
    pub(crate) fn forward_sequences(
        &self,
        params: &Tensor,
        obs: &Tensor,
        sequences: &TensorSequences,
    ) -> candle_core::Result<(Tensor, Tensor, Tensor)> {
        let (outputs, states) = self.network.forward_sequences(params, obs, sequences)?;
        Ok((outputs[ACTOR].clone(), outputs[CRITIC].squeeze(1)?, states))
    }

    /// Computes [`ActorCritic::forward`] on the tile kernel, for losses in candle.
    ///
    /// It is one operation. The gradient flows to `params`, not to `obs`.
    ///
    /// # Errors
    /// Errors of candle; an error if the learner is the reference, or if the policy has memory.
    pub fn forward_fused(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let Some(PackedNet { isa, net, .. }) = self.network.kernel().filter(|kernel| kernel.net.memory.is_none()) else {
            candle_core::bail!("the reference learner and a policy with memory have no kernel of samples on their own")
        };
        let (n_actions, obs_len) = (self.n_actions, self.network.obs_len());
        let op = Fused { isa, net: net.clone(), chains: self.chains(), n_actions, obs_len };
        let outputs = params.apply_op2(obs, op)?;
        Ok((outputs.narrow(1, 0, n_actions)?, outputs.narrow(1, n_actions, 1)?.squeeze(1)?))
    }

    fn act_discrete(
        &self,
        Acting { obs, masks, choice, .. }: Acting<'_>,
        heads: &[usize],
        TileScratch { workspace, outputs, row, .. }: &mut TileScratch,
        actions: &mut [u32],
        BesideActions { log_probs, values, states }: BesideActions<'_>,
    ) -> Result<(), Error> {
        let a = self.n_actions;
        self.each_tile(obs, states, workspace, outputs, values, &mut |range, logits| {
            let m = range.len();
            let masks = mask_rows(masks, range.clone(), a);
            log_softmax_heads(logits, m, heads, masks, &mut [0.0; 2 * TILE]);
            for (s, i) in range.enumerate() {
                row.iter_mut().zip(logits[s..].iter().step_by(m)).for_each(|(to, &log_prob)| *to = log_prob);
                actions[i] = 0;
                let mut rest = &row[..];
                for (head, &n) in (0..).zip(heads) {
                    let (log_probs, others) = rest.split_at(n);
                    rest = others;
                    let chosen = match choice {
                        // Head h draws from block h: `rng::word` is the number of block 0.
                        Choice::Sample { seed, step, first_env } => {
                            let words = rng::block(seed, first_env + i as u32, step >> 2, Purpose::Policy, head);
                            sample(log_probs, rng::uniform(words[(step & 3) as usize]))
                        }
                        Choice::Greedy => greedy(log_probs),
                    };
                    actions[i] = actions[i] * n as u32 + chosen;
                }
                log_probs[i] = log_prob_of(row, 1, 0, heads, actions[i]);
            }
        })
    }

    fn act_continuous(
        &self,
        Acting { obs, choice, .. }: Acting<'_>,
        log_std: &[f32],
        TileScratch { workspace, outputs, chosen, .. }: &mut TileScratch,
        actions: &mut [f32],
        BesideActions { log_probs, values, states }: BesideActions<'_>,
    ) -> Result<(), Error> {
        let a = self.n_actions;
        self.each_tile(obs, states, workspace, outputs, values, &mut |range, means| {
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

    /// Runs N observations forward, and passes the policy's outputs to `choose`.
    ///
    /// Writes the values (N), unless `values` is empty, and the next `states` (N, S). `choose` gets the policy's outputs tile by
    /// tile, as columns (A, m).
    pub(crate) fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        states: &mut [f32],
        workspace: &mut Option<Workspace>,
        outputs: &mut [f32],
        values: &mut [f32],
        choose: &mut impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        let network = &self.network;
        let n = obs.len() / network.obs_len();
        if let (Some(kernel), Some(workspace)) = (network.kernel(), workspace) {
            let (actor, critic) = self.chains();
            let skip = values.is_empty().then_some(critic);
            tile::forward(kernel, network.samples(obs, None), n, skip, states, workspace, |tile: &mut tile::Tile<'_>| {
                let range = tile.samples.clone();
                let outputs = &mut outputs[..self.n_actions * range.len()];
                outputs.chunks_exact_mut(range.len()).enumerate().for_each(|(j, column)| tile.column(actor, j, column));
                if skip.is_none() {
                    tile.column(critic, 0, &mut values[range.clone()]);
                }
                choose(range, outputs);
            });
        } else {
            let (outputs, value) = self.reference_step(obs, states)?;
            values.copy_from_slice(&value.to_vec1::<f32>()?);
            each_reference_tile(&outputs, n, choose)?;
        }
        Ok(())
    }

    /// [`ActorCritic::forward`] of N observations; replaces the `states` (N, S).
    fn reference_step(&self, obs: ObsSlice<'_>, states: &mut [f32]) -> candle_core::Result<(Tensor, Tensor)> {
        let (params, obs) = (self.network.params_tensor()?, self.network.features(obs)?);
        if states.is_empty() {
            return self.forward(&params, &obs);
        }
        let first = Tensor::from_slice(states, (obs.dim(0)?, self.network.state_len()), self.network.device())?;
        let sequences = TensorSequences { first, continues: Vec::new(), horizon: 0 };
        let (outputs, value, next) = self.forward_sequences(&params, &obs, &sequences)?;
        states.copy_from_slice(&next.flatten_all()?.to_vec1::<f32>()?);
        Ok((outputs, value))
    }

    /// Returns the kernel's chains of policy and value function.
    pub(crate) fn chains(&self) -> (usize, usize) {
        (self.network.chain(ACTOR), self.network.chain(CRITIC))
    }

    pub(crate) fn n_actions(&self) -> usize {
        self.n_actions
    }
}

impl Policy for ActorCritic {
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error> {
        let (scratch, Acted { actions, log_probs, values, states }) = (self.network.tile_scratch(scratch, self.n_actions), acted);
        let beside = BesideActions { log_probs, values, states };
        match (actions, &self.distribution) {
            (Actions::Discrete(actions), Distribution::Categorical { heads }) => {
                self.act_discrete(acting, heads, scratch, actions, beside)
            }
            (Actions::Continuous(actions), Distribution::Gaussian { log_std }) => {
                self.act_continuous(acting, &self.params()[log_std.clone()], scratch, actions, beside)
            }
            _ => Err(Error::ActionKind),
        }
    }

    fn values(
        &self,
        obs: ObsSlice<'_>,
        _: &[u8],
        states: &[f32],
        values: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let TileScratch { workspace, states: next, .. } = self.network.tile_scratch(scratch, self.n_actions);
        next.clear();
        next.extend_from_slice(states);
        if let (Some(kernel), Some(workspace)) = (self.network.kernel(), workspace) {
            let (actor, critic) = self.chains();
            let samples = self.network.samples(obs, None);
            tile::forward(kernel, samples, values.len(), Some(actor), next, workspace, |tile: &mut tile::Tile<'_>| {
                tile.column(critic, 0, &mut values[tile.samples.clone()]);
            });
        } else if !values.is_empty() {
            values.copy_from_slice(&self.reference_step(obs, next)?.1.to_vec1::<f32>()?);
        }
        Ok(())
    }

    fn state_len(&self) -> usize {
        self.network.state_len()
    }

    fn values_apart(&self) -> bool {
        let (_, critic) = self.chains();
        let apart = |net: &Net| net.encoder.is_none() && net.memory.is_none() && net.chains[critic].from.is_none();
        self.network.kernel().is_some_and(|PackedNet { net, .. }| apart(net))
    }

    fn weights(&self) -> Weights<'_> {
        self.network.weights()
    }

    fn exported(&self, spaces: &Spaces) -> Option<Exported> {
        let head = match &self.distribution {
            Distribution::Categorical { heads } => {
                Head::Categorical { sizes: heads.iter().map(|&n| n as u32).collect(), masked: spaces.actions.masked() }
            }
            Distribution::Gaussian { log_std } => {
                Head::Gaussian { log_std: self.params()[log_std.clone()].to_vec(), bounds: bounds(&spaces.actions)? }
            }
        };
        Some(self.network.exported(&spaces.obs, &[ACTOR], head))
    }
}
