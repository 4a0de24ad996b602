//! A policy and a value function: two networks over one parameter vector.

use candle_core::{Device, Tensor};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Purpose, Space, rng};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::distributions::{greedy, log_softmax, sample};
use crate::mlp::{Activation, Mlp};
use crate::params::Layout;

/// The networks that a user chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Sizes of the hidden layers of the policy, and of the value function.
    pub hidden: Vec<usize>,
    /// What follows each hidden layer.
    pub activation: Activation,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self { hidden: vec![64, 64], activation: Activation::Tanh }
    }
}

/// How an action is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Drawn from the policy: for environment i with word `step & 3` of block `step >> 2` of its stream [`Purpose::Policy`].
    Sample {
        /// The seed of the generator.
        seed: u64,
        /// The lifetime step of the environments.
        step: u64,
    },
    /// The most likely one.
    Greedy,
}

/// A categorical policy and a value function with separate networks (`actor`, `critic`).
///
/// Initialisation: orthogonal, gain sqrt(2) in hidden layers, 0.01 in the policy's last, 1 in the value function's; biases 0.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    layout: Layout,
    actor: Mlp,
    critic: Mlp,
    params: Vec<f32>, // (P)
    n_actions: usize,
    obs_len: usize,
    scale: f32,
    version: u64,
}

impl ActorCritic {
    /// With fresh parameters.
    ///
    /// # Errors
    /// [`Error::ContinuousActions`], or [`Error::Setting`] if a hidden layer is empty.
    pub fn new(observation_space: &Space, action_space: &ActionSpace, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let ActionSpace::Discrete { n, .. } = *action_space else { return Err(Error::ContinuousActions) };
        if net.hidden.contains(&0) {
            let value = format!("{:?}", net.hidden);
            return Err(Error::Setting { name: "hidden", value, allowed: "every layer needs one unit at least" });
        }
        let obs_len = observation_space.len();
        let n_actions = n as usize;
        let sizes = |n_out| [&[obs_len], &net.hidden[..], &[n_out]].concat();
        let mut layout = Layout::default();
        let actor = Mlp::new(&mut layout, "actor", &sizes(n_actions), net.activation);
        let critic = Mlp::new(&mut layout, "critic", &sizes(1), net.activation);
        let mut params = vec![0.0; layout.len()];
        actor.init(&mut params, 0.01, seed, 0);
        critic.init(&mut params, 1.0, seed, actor.n_layers());
        Ok(Self { layout, actor, critic, params, n_actions, obs_len, scale: observation_space.scale(), version: 0 })
    }

    /// Which tensors lie where in the parameter vector.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parameter vector (P).
    #[must_use]
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// How often the parameters have changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Changes the parameters, and with them the version.
    pub(crate) fn params_mut(&mut self) -> &mut [f32] {
        self.version += 1;
        &mut self.params
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
        Ok(())
    }

    /// Logits (B, A) and values (B) for observations (B, D), composed of candle's operations, with gradients with respect to
    /// `params` (P).
    ///
    /// # Errors
    /// Those of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        Ok((self.actor.forward(params, obs)?, self.critic.forward(params, obs)?.squeeze(1)?))
    }

    /// Acts on N observations: writes actions (N), their log-probabilities (N) and the observations' values (N). `masks`,
    /// (N, A), is empty where there are none.
    ///
    /// # Errors
    /// Those of candle.
    pub fn act(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        choice: Choice,
        actions: &mut [u32],
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), Error> {
        let (params, obs) = (self.params_tensor()?, self.features(obs)?);
        let (logits, value) = self.forward(&params, &obs)?;
        values.copy_from_slice(&value.to_vec1::<f32>()?);
        let mut logits = logits.flatten_all()?.to_vec1::<f32>()?;
        for (i, row) in logits.chunks_exact_mut(self.n_actions).enumerate() {
            log_softmax(row, masks.get(i * self.n_actions..(i + 1) * self.n_actions).unwrap_or_default());
            actions[i] = match choice {
                Choice::Sample { seed, step } => sample(row, rng::uniform(rng::word(seed, i as u32, step, Purpose::Policy))),
                Choice::Greedy => greedy(row),
            };
            log_probs[i] = row[actions[i] as usize];
        }
        Ok(())
    }

    /// The values of observations.
    ///
    /// # Errors
    /// Those of candle.
    pub fn values(&self, obs: ObsSlice<'_>) -> Result<Vec<f32>, Error> {
        let obs = self.features(obs)?;
        if obs.dim(0)? == 0 {
            return Ok(Vec::new());
        }
        Ok(self.critic.forward(&self.params_tensor()?, &obs)?.squeeze(1)?.to_vec1()?)
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
        match obs {
            ObsSlice::F32(obs) => features.extend_from_slice(obs),
            ObsSlice::U8(obs) => features.extend(obs.iter().map(|&x| f32::from(x) * self.scale)),
        }
    }

    pub(crate) fn n_actions(&self) -> usize {
        self.n_actions
    }

    pub(crate) fn obs_len(&self) -> usize {
        self.obs_len
    }
}
