//! A deterministic policy, whose actions are within bounds, with noise to explore.
//!
//! An action is `y = tanh(f(obs))`, scaled to its bounds. In training, noise is added to y, which is clipped to -1 to 1.

use std::ops::Range;

use candle_core::Tensor;
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Actions, Purpose, Space, Spaces, math, rng};
use rl_policy::{Exported, Head};
use serde::{Deserialize, Serialize};

use crate::kernel::gradient::Slices;
use crate::kernel::samples::TILE;
use crate::kernel::tile::{self, Tile};
use crate::network::params::Layout;
use crate::policy::exported::bounds;
use crate::policy::is_among_first;
use crate::policy::network::{HeadLayers, Network, NetworkShape, TileScratch, each_reference_tile};
use crate::policy::squashed::{ContinuousPolicy, SquashedGaussian, bounds_of};
use crate::probe::Threads;
use crate::{Acted, Acting, Choice, Error, NetConfig, Policy, Scratch, Snapshot, Weights};

/// Kind of the noise that is added to actions in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionNoise {
    /// None.
    None,
    /// Independent normal numbers.
    #[default]
    Normal,
    /// A process of Ornstein and Uhlenbeck, which begins at 0 in each episode.
    OrnsteinUhlenbeck,
}

/// Rate at which the process returns to 0, and seconds of a step.
const OU_THETA: f32 = 0.15;
const OU_STEP: f32 = 1e-2;

/// A deterministic policy over one network `action`.
///
/// Default initialization: orthogonal, gain sqrt(2) in hidden layers, 0.01 in the last one; biases 0. With
/// [`ActionNoise::OrnsteinUhlenbeck`] it has memory: the noise of each dimension.
#[derive(Debug)]
pub struct DeterministicPolicy {
    network: Network,
    /// Middle and half of the range of each dimension of an action.
    bounds: Vec<[f32; 2]>,
    net: NetConfig,
    noise: ActionNoise,
    /// Standard deviation of the noise.
    noise_std: f32,
    /// Number of lifetime steps in which all actions are uniformly random.
    random_steps: u64,
}

over_network!(DeterministicPolicy: bounds, net, noise, noise_std, random_steps);
continuous_policy!(DeterministicPolicy);

impl DeterministicPolicy {
    /// Checks that these settings and spaces allow a policy.
    ///
    /// # Errors
    /// Errors of [`SquashedGaussian::check`].
    pub fn check(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<(), Error> {
        SquashedGaussian::check(obs, actions, net)
    }

    /// Creates a policy with random parameters.
    ///
    /// # Errors
    /// Errors of [`DeterministicPolicy::check`].
    pub fn new(obs: &Space, actions: &ActionSpace, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let mut policy = Self::unset(obs, actions, net)?;
        policy.network.init(&[0.01], seed);
        Ok(policy)
    }

    /// Creates a policy with parameters still to be loaded: all are 0.
    ///
    /// # Errors
    /// Errors of [`DeterministicPolicy::check`].
    pub fn unset(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<Self, Error> {
        Self::check(obs, actions, net)?;
        let head = HeadLayers { name: "action", hidden: &net.hidden, n_out: actions.len() };
        let network = Network::unset(NetworkShape::new(obs, net, &[head], false)?, obs, net);
        let (bounds, net) = (bounds_of(actions)?, net.clone());
        Ok(Self { network, bounds, net, noise: ActionNoise::None, noise_std: 0.0, random_steps: 0 })
    }

    /// Adds noise with this standard deviation to actions in training.
    pub fn explore(&mut self, noise: ActionNoise, std: f32) {
        (self.noise, self.noise_std) = (noise, std);
    }

    /// Makes all actions random in the first `steps` lifetime steps of an environment.
    pub fn act_randomly_until(&mut self, steps: u64) {
        self.random_steps = steps;
    }

    /// Number A of dimensions of an action.
    pub(crate) fn n_actions(&self) -> usize {
        self.bounds.len()
    }

    /// Computes actions between -1 and 1, (B, A), with candle operations.
    ///
    /// Gradients flow to `params` (P).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<Tensor> {
        self.network.forward(params, obs)?[0].tanh()
    }

    /// Passes outputs before tanh to `choose`, tile by tile: columns (A, m).
    fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        n: usize,
        scratch: &mut Scratch,
        choose: &mut impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        let (network, a) = (&self.network, self.n_actions());
        let TileScratch { workspace, outputs, .. } = network.tile_scratch(scratch, a);
        if let (Some(kernel), Some(workspace)) = (network.kernel(), workspace) {
            let chain = network.chain(0);
            tile::forward(kernel, network.samples(obs, None), n, None, &mut [], workspace, |tile: &mut Tile<'_>| {
                let range = tile.samples.clone();
                let outputs = &mut outputs[..a * range.len()];
                outputs.chunks_exact_mut(range.len()).enumerate().for_each(|(j, column)| tile.column(chain, j, column));
                choose(range, outputs);
            });
        } else if n > 0 {
            let outputs = network.forward(&network.params_tensor()?, &network.features(obs)?)?;
            each_reference_tile(&outputs[0], n, choose)?;
        }
        Ok(())
    }

    /// Writes actions between -1 and 1 (n, A), without noise.
    ///
    /// With `slices`, the pass is the first half of this minibatch's gradient, where the network suits that.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn choose(
        &self,
        obs: ObsSlice<'_>,
        threads: Threads<'_>,
        slices: Option<&mut Slices<()>>,
        scratches: &mut Vec<Scratch>,
        actions: &mut [f32],
    ) -> Result<(), Error> {
        let (network, a, d) = (&self.network, self.n_actions(), self.network.obs_len());
        let (n, mut actions) = (actions.len() / a, actions);
        let part = |len: usize| {
            let of_slice;
            (of_slice, actions) = std::mem::take(&mut actions).split_at_mut(len * a);
            of_slice
        };
        if let (Some(slices), Some(kernel)) = (slices, network.kernel())
            && let Some(layered) = slices.forward_first(kernel.net, n)
        {
            layered.run_forward(kernel, network.samples(obs, None), n, threads, part, &|tile, actions| {
                let mut column = [0.0; TILE];
                for j in 0..a {
                    tile.column(network.chain(0), j, &mut column[..tile.samples.len()]);
                    let actions = actions[j..].iter_mut().step_by(a);
                    actions.zip(&column).for_each(|(action, &output)| *action = math::tanh(output));
                }
            });
            return Ok(());
        }
        network.each_slice(n, threads.pool, scratches, part, &|range, actions, scratch| {
            self.each_tile(obs.rows(range.clone(), d), range.len(), scratch, &mut |samples, outputs| {
                let m = samples.len();
                for (s, i) in samples.enumerate() {
                    (0..a).for_each(|j| actions[i * a + j] = math::tanh(outputs[j * m + s]));
                }
            })
        })
    }

    /// Sets a tile's gradient of an actor's loss, `-mean Q`.
    ///
    /// `d_actions`, (n, A), is the gradient of Q with respect to the actions between -1 and 1.
    #[inline(always)]
    pub(crate) fn write_gradient(&self, tile: &mut Tile<'_>, d_actions: &[f32]) {
        let (range, a) = (tile.samples.clone(), self.n_actions());
        let share = 1.0 / (d_actions.len() / a) as f32;
        let ([mut output, mut d_output], m) = ([[0.0; TILE]; 2], range.len());
        for j in 0..a {
            tile.column(self.network.chain(0), j, &mut output[..m]);
            for (s, i) in range.clone().enumerate() {
                let y = math::tanh(output[s]);
                d_output[s] = -(1.0 - y * y) * d_actions[i * a + j] * share;
            }
            tile.set_grad(self.network.chain(0), j, &d_output[..m]);
        }
    }
}

impl Policy for DeterministicPolicy {
    /// Writes actions, and zeros for log-probabilities and values.
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error> {
        let (Acting { obs, choice, .. }, Acted { actions, log_probs, values, states }) = (acting, acted);
        let Actions::Continuous(actions) = actions else { return Err(Error::ActionKind) };
        let (a, std) = (self.n_actions(), self.noise_std);
        values.fill(0.0);
        log_probs.fill(0.0);
        self.each_tile(obs, log_probs.len(), scratch, &mut |range, outputs| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                for j in 0..a {
                    let mut y = math::tanh(outputs[j * m + s]);
                    if let Choice::Sample { seed, step, first_env } = choice {
                        let block = rng::block(seed, first_env + i as u32, step, Purpose::Policy, j as u32 >> 2);
                        if is_among_first(self.random_steps, step) {
                            y = 2.0 * rng::uniform(block[j & 3]) - 1.0;
                        } else {
                            let noise = match self.noise {
                                ActionNoise::None => 0.0,
                                ActionNoise::Normal => std * rng::normals(block)[j & 3],
                                ActionNoise::OrnsteinUhlenbeck => {
                                    let noise = &mut states[i * a + j];
                                    *noise += std * OU_STEP.sqrt() * rng::normals(block)[j & 3] - OU_THETA * OU_STEP * *noise;
                                    *noise
                                }
                            };
                            y = (y + noise).clamp(-1.0, 1.0);
                        }
                    }
                    let [middle, half] = self.bounds[j];
                    actions[i * a + j] = middle + half * y;
                }
            }
        })
    }

    /// Writes zeros.
    fn values(&self, _: ObsSlice<'_>, _: &[u8], _: &[f32], values: &mut [f32], _: &mut Scratch) -> Result<(), Error> {
        values.fill(0.0);
        Ok(())
    }

    fn state_len(&self) -> usize {
        if self.noise == ActionNoise::OrnsteinUhlenbeck { self.n_actions() } else { 0 }
    }

    fn weights(&self) -> Weights<'_> {
        self.network.weights()
    }

    fn exported(&self, spaces: &Spaces) -> Option<Exported> {
        let head = Head::Deterministic { bounds: bounds(&spaces.actions)? };
        Some(self.network.exported(&spaces.obs, &[0], head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::squashed::to_unit;

    /// Acts for `n` environments from given states; returns actions between -1 and 1.
    fn acted(policy: &DeterministicPolicy, n: usize, choice: Choice, states: &mut [f32]) -> Vec<f32> {
        let (mut actions, mut log_probs, mut values) = (vec![0.0; n], vec![1.0; n], vec![1.0; n]);
        let acted = Acted { actions: Actions::Continuous(&mut actions), log_probs: &mut log_probs, values: &mut values, states };
        let obs = vec![0.3; 2 * n];
        policy.act(Acting { obs: ObsSlice::F32(&obs), masks: &[], choice, envs: &[] }, acted, &mut Scratch::default()).unwrap();
        assert!(log_probs.iter().chain(&values).all(|&x| x == 0.0));
        actions.iter().map(|&action| to_unit(policy.bounds[0], action)).collect()
    }

    #[test]
    fn noise_is_added_to_actions_in_training_alone_and_the_process_goes_back_to_zero() {
        let obs = Space::vector(&[-1.0; 2], &[1.0; 2]);
        let actions = ActionSpace::Continuous { low: vec![-3.0], high: vec![1.0] };
        let mut policy = DeterministicPolicy::new(&obs, &actions, &NetConfig::default(), 3).unwrap();
        let (n, sample) = (2000, |step| Choice::Sample { seed: 1, step, first_env: 0 });
        let plain = acted(&policy, n, Choice::Greedy, &mut []);
        let spread = |found: &[f32]| {
            let squares = found.iter().zip(&plain).map(|(x, y)| f64::from(x - y).powi(2));
            (squares.sum::<f64>() / n as f64).sqrt()
        };
        assert_eq!(acted(&policy, n, sample(5), &mut []), plain, "no noise unless asked for");

        policy.explore(ActionNoise::Normal, 0.1);
        policy.act_randomly_until(3);
        assert_eq!((policy.state_len(), spread(&acted(&policy, n, Choice::Greedy, &mut []))), (0, 0.0));
        assert!((spread(&acted(&policy, n, sample(5), &mut [])) - 0.1).abs() < 5e-3);
        let random = spread(&acted(&policy, n, sample(3), &mut []));
        assert!((random - (1.0f64 / 3.0).sqrt()).abs() < 0.02, "uniform at first: {random}");
        policy.explore(ActionNoise::Normal, 100.0);
        policy.act_randomly_until(0);
        assert!(acted(&policy, n, sample(5), &mut []).iter().all(|x| (-1.0..=1.0).contains(x)));

        policy.explore(ActionNoise::OrnsteinUhlenbeck, 0.5);
        let mut states = vec![0.0; n];
        assert_eq!(policy.state_len(), 1);
        for step in 1..=400 {
            let found = acted(&policy, n, sample(step), &mut states);
            if step == 1 {
                assert!((spread(&found) - 0.5 * 0.1).abs() < 3e-3, "one step: std sqrt(dt)");
            }
        }
        // Stationary: std / sqrt(2 theta), of which 1 - exp(-2 theta t) is reached, t = 4 s.
        let expected = 0.5 / (2.0f64 * 0.15).sqrt() * (1.0 - (-2.0f64 * 0.15 * 4.0).exp()).sqrt();
        let found = (states.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64).sqrt();
        assert!((found / expected - 1.0).abs() < 0.07, "{found}, not {expected}");
    }
}
