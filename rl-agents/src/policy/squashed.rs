//! A squashed Gaussian policy, whose actions are within bounds.
//!
//! The deviations depend on the observation. An action is `y = tanh(mean + std * noise)`, scaled to its bounds (Haarnoja et
//! al., "Soft Actor-Critic Algorithms and Applications", 2018, appendix C).

use std::ops::Range;

use candle_core::{D, Tensor};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Actions, Purpose, Space, Spaces, math, rng};
use rl_policy::{Exported, Head};

use crate::kernel::gradient::Slices;
use crate::kernel::samples::TILE;
use crate::kernel::tile::{self, Tile};
use crate::network::params::Layout;
use crate::network::precision::clamp;
use crate::policy::distributions::HALF_LN_2_PI;
use crate::policy::exported::bounds;
use crate::policy::is_among_first;
use crate::policy::network::{HeadLayers, NO_MEMORY, Network, NetworkShape, TileScratch, each_reference_tile};
use crate::probe::Threads;
use crate::{Acted, Acting, Choice, Error, NetConfig, Policy, Scratch, Snapshot, Weights};

/// Index of the means among the heads.
const MEAN: usize = 0;
/// Index of the logarithms of standard deviations among the heads.
const LOG_STD: usize = 1;
/// Range of the logarithms of standard deviations.
const LOG_STD_RANGE: (f32, f32) = (-20.0, 2.0);
/// Constant added to the derivative of tanh in a logarithm.
const EPSILON: f32 = 1e-6;

/// A policy of continuous actions over one network.
pub(crate) trait ContinuousPolicy: Policy {
    fn network(&self) -> &Network;

    fn network_mut(&mut self) -> &mut Network;

    /// Settings of the network.
    fn net(&self) -> &NetConfig;

    /// Middle and half of the range of each dimension of an action.
    fn bounds(&self) -> &[[f32; 2]];

    /// Makes all actions random in the first `steps` lifetime steps of an environment.
    fn act_randomly_until(&mut self, steps: u64);
}

/// A squashed Gaussian policy over one network with two heads.
///
/// The networks `mean` and `log_std` follow a shared `trunk`. Default initialization: orthogonal, gain sqrt(2) in hidden layers,
/// 0.01 in the last ones; biases 0.
#[derive(Debug)]
pub struct SquashedGaussian {
    network: Network,
    /// Middle and half of the range of each dimension of an action.
    bounds: Vec<[f32; 2]>,
    net: NetConfig,
    /// Number of lifetime steps in which all actions are uniformly random.
    random_steps: u64,
}

/// One dimension of a squashed action.
#[derive(Clone, Copy, Debug)]
struct Squashed {
    /// Between -1 and 1.
    y: f32,
    log_prob: f32,
    std: f32,
    /// True if the logarithm of the standard deviation is within its range.
    is_free: bool,
}

/// Acting and learning both call this function, so they get the same bits.
#[inline(always)]
fn squash(mean: f32, log_std: f32, noise: f32) -> Squashed {
    let is_free = (LOG_STD_RANGE.0..=LOG_STD_RANGE.1).contains(&log_std);
    let log_std = log_std.clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1);
    let std = math::exp(log_std);
    let y = math::tanh(mean + std * noise);
    let log_prob = -0.5 * (noise * noise) - log_std - HALF_LN_2_PI - math::ln(1.0 - y * y + EPSILON);
    Squashed { y, log_prob, std, is_free }
}

/// Middle and half of the range of each dimension of an action.
///
/// # Errors
/// [`Error::ActionKind`] for discrete actions.
pub(crate) fn bounds_of(actions: &ActionSpace) -> Result<Vec<[f32; 2]>, Error> {
    let ActionSpace::Continuous { low, high } = actions else { return Err(Error::ActionKind) };
    Ok(low.iter().zip(high).map(|(low, high)| [0.5 * (low + high), 0.5 * (high - low)]).collect())
}

/// Scales a dimension of an action to -1 to 1.
pub(crate) fn to_unit([middle, half]: [f32; 2], action: f32) -> f32 {
    ((action - middle) / half).clamp(-1.0, 1.0)
}

/// Squashed actions (n, A), and their log-probabilities (n).
pub(crate) struct Draws<'a> {
    pub(crate) actions: &'a mut [f32],
    pub(crate) log_probs: &'a mut [f32],
}

/// Samples of an actor's loss, whose actions were drawn with `noise`, (n, A).
pub(crate) struct ActorSamples<'a> {
    pub(crate) noise: &'a [f32],
    /// Gradient of the critics' values with respect to the squashed actions, (n, A).
    pub(crate) d_actions: &'a [f32],
    /// Weight of the log-probabilities.
    pub(crate) alpha: f32,
}

over_network!(SquashedGaussian: bounds, net, random_steps);
continuous_policy!(SquashedGaussian);

impl SquashedGaussian {
    /// Checks that these settings and spaces allow a policy.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`]; [`Error::ActionKind`] for discrete actions; [`Error::Setting`] for actions without finite
    /// bounds, for normalized observations and for memory.
    pub fn check(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<(), Error> {
        let ActionSpace::Continuous { low, high } = actions else { return Err(Error::ActionKind) };
        let refuse = |name, value: String, allowed| Err(Error::Setting { name, value, allowed });
        net.check(obs)?;
        net.check_no_memory(NO_MEMORY)?;
        if let Some(j) = (0..low.len()).find(|&j| !(high[j] - low[j]).is_finite() || low[j] >= high[j]) {
            let value = format!("{} to {} in dimension {j}", low[j], high[j]);
            return refuse("the range of the actions", value, "but they are scaled to it: it must be finite, and not empty");
        }
        if net.normalize_obs {
            return refuse("normalize_obs", "true".into(), "where a replay memory holds observations as they were");
        }
        Ok(())
    }

    fn shape(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<NetworkShape, Error> {
        Self::check(obs, actions, net)?;
        let a = actions.len();
        let head = |name| HeadLayers { name, hidden: &[], n_out: a };
        NetworkShape::new(obs, net, &[head("mean"), head("log_std")], true)
    }

    /// Creates a policy with random parameters.
    ///
    /// # Errors
    /// Errors of [`SquashedGaussian::check`].
    pub fn new(obs: &Space, actions: &ActionSpace, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let mut policy = Self::unset(obs, actions, net)?;
        policy.network.init(&[0.01, 0.01], seed);
        Ok(policy)
    }

    /// Creates a policy with parameters still to be loaded: all are 0.
    ///
    /// # Errors
    /// Errors of [`SquashedGaussian::check`].
    pub fn unset(obs: &Space, actions: &ActionSpace, net: &NetConfig) -> Result<Self, Error> {
        let network = Network::unset(Self::shape(obs, actions, net)?, obs, net);
        Ok(Self { network, bounds: bounds_of(actions)?, net: net.clone(), random_steps: 0 })
    }

    /// Kernel's chains of the means and of `log_std`.
    pub(crate) fn chains(&self) -> [usize; 2] {
        [MEAN, LOG_STD].map(|head| self.network.chain(head))
    }

    /// Number A of dimensions of an action.
    pub(crate) fn n_actions(&self) -> usize {
        self.bounds.len()
    }

    /// Makes all actions random in the first `steps` lifetime steps of an environment.
    pub fn act_randomly_until(&mut self, steps: u64) {
        self.random_steps = steps;
    }

    /// Computes means and `log_std`, (B, A) each, with candle operations.
    ///
    /// Gradients flow to `params` (P).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<[Tensor; 2]> {
        let outputs = self.network.forward(params, obs)?;
        let log_std = clamp(&outputs[LOG_STD], LOG_STD_RANGE.0.into(), LOG_STD_RANGE.1.into())?;
        Ok([outputs[MEAN].clone(), log_std])
    }

    /// Computes squashed actions (B, A) and log-probabilities (B) with candle.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn sample_tensor(&self, params: &Tensor, obs: &Tensor, noise: &Tensor) -> candle_core::Result<[Tensor; 2]> {
        let [mean, log_std] = self.forward(params, obs)?;
        let y = (mean + (log_std.exp()? * noise)?)?.tanh()?;
        let density = ((noise.sqr()? * -0.5)? - log_std)?;
        let slope = ((y.sqr()?.neg()? + 1.0)? + f64::from(EPSILON))?.log()?;
        let log_prob = ((density - f64::from(HALF_LN_2_PI))? - slope)?.sum(D::Minus1)?;
        Ok([y, log_prob])
    }

    /// Passes means and `log_std` of all observations to `choose`, tile by tile.
    ///
    /// A tile of m observations has 2 A columns: the means, then `log_std`.
    fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        n: usize,
        scratch: &mut Scratch,
        choose: &mut impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        let (network, a) = (&self.network, self.n_actions());
        let TileScratch { workspace, outputs, .. } = network.tile_scratch(scratch, 2 * a);
        if let (Some(kernel), Some(workspace)) = (network.kernel(), workspace) {
            tile::forward(kernel, network.samples(obs, None), n, None, &mut [], workspace, |tile: &mut Tile<'_>| {
                let range = tile.samples.clone();
                let outputs = &mut outputs[..2 * a * range.len()];
                self.columns(tile, outputs);
                choose(range, outputs);
            });
        } else if n > 0 {
            let [mean, log_std] = self.forward(&network.params_tensor()?, &network.features(obs)?)?;
            each_reference_tile(&Tensor::cat(&[mean, log_std], 1)?, n, choose)?;
        }
        Ok(())
    }

    /// Reads means and `log_std` of a tile, as columns (2 A, m).
    #[inline(always)]
    fn columns(&self, tile: &Tile<'_>, outputs: &mut [f32]) {
        let (m, a) = (tile.samples.len(), self.n_actions());
        let (means, log_stds) = outputs.split_at_mut(a * m);
        for (head, columns) in [(MEAN, means), (LOG_STD, log_stds)] {
            let chain = self.network.chain(head);
            columns.chunks_exact_mut(m).enumerate().for_each(|(j, column)| tile.column(chain, j, column));
        }
    }

    /// Draws squashed actions of a tile, (m, A), from its means and `log_std`.
    ///
    /// `column(head, j, to)` copies dimension j of the means or of `log_std`. Also writes the log-probabilities (m).
    #[inline(always)]
    fn draw(&self, column: impl Fn(usize, usize, &mut [f32]), noise: &[f32], actions: &mut [f32], log_probs: &mut [f32]) {
        let ([mut mean, mut log_std], m, a) = ([[0.0; TILE]; 2], log_probs.len(), self.n_actions());
        log_probs.fill(0.0);
        for j in 0..a {
            column(MEAN, j, &mut mean[..m]);
            column(LOG_STD, j, &mut log_std[..m]);
            for (s, log_prob) in log_probs.iter_mut().enumerate() {
                let drawn = squash(mean[s], log_std[s], noise[s * a + j]);
                actions[s * a + j] = drawn.y;
                *log_prob += drawn.log_prob;
            }
        }
    }

    /// Draws squashed actions (n, A) with `noise`, (n, A).
    ///
    /// Also writes their log-probabilities (n). With `slices`, the pass is the first half of this minibatch's gradient, where the
    /// networks suit that.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn sample(
        &self,
        obs: ObsSlice<'_>,
        noise: &[f32],
        threads: Threads<'_>,
        slices: Option<&mut Slices<()>>,
        scratches: &mut Vec<Scratch>,
        Draws { actions, log_probs }: Draws<'_>,
    ) -> Result<(), Error> {
        let (network, a, d) = (&self.network, self.n_actions(), self.network.obs_len());
        let n = log_probs.len();
        let (mut actions, mut log_probs) = (actions, log_probs);
        let parts = |len: usize| {
            let of_slice;
            (of_slice, actions) = std::mem::take(&mut actions).split_at_mut(len * a);
            let of_log_probs;
            (of_log_probs, log_probs) = std::mem::take(&mut log_probs).split_at_mut(len);
            (of_slice, of_log_probs)
        };
        if let (Some(slices), Some(kernel)) = (slices, network.kernel())
            && let Some(layered) = slices.forward_first(kernel.net, n)
        {
            layered.run_forward(kernel, network.samples(obs, None), n, threads, parts, &|tile, (actions, log_probs)| {
                let column = |head, j, to: &mut [f32]| tile.column(network.chain(head), j, to);
                self.draw(column, &noise[tile.samples.start * a..], actions, log_probs);
            });
            return Ok(());
        }
        network.each_slice(n, threads.pool, scratches, parts, &|range, (actions, log_probs), scratch| {
            let noise = &noise[range.start * a..range.end * a];
            self.each_tile(obs.rows(range.clone(), d), range.len(), scratch, &mut |samples, outputs| {
                let m = samples.len();
                let column = |head: usize, j: usize, to: &mut [f32]| to.copy_from_slice(&outputs[(head * a + j) * m..][..m]);
                let of = samples.start * a..samples.end * a;
                self.draw(column, &noise[of.clone()], &mut actions[of], &mut log_probs[samples]);
            })
        })
    }

    /// Sets a tile's gradient of an actor's loss, `mean alpha log_prob - Q`.
    #[inline(always)]
    pub(crate) fn write_gradient(&self, tile: &mut Tile<'_>, of: &ActorSamples<'_>) {
        let (range, a) = (tile.samples.clone(), self.n_actions());
        let share = 1.0 / (of.noise.len() / a) as f32;
        let [mut mean, mut log_std, mut d_mean, mut d_log_std] = [[0.0; TILE]; 4];
        let m = range.len();
        for j in 0..a {
            tile.column(self.network.chain(MEAN), j, &mut mean[..m]);
            tile.column(self.network.chain(LOG_STD), j, &mut log_std[..m]);
            for (s, i) in range.clone().enumerate() {
                let noise = of.noise[i * a + j];
                let Squashed { y, std, is_free, .. } = squash(mean[s], log_std[s], noise);
                let slope = 1.0 - y * y;
                let d_sum = slope * (of.alpha * 2.0 * y / (slope + EPSILON) - of.d_actions[i * a + j]) * share;
                d_mean[s] = d_sum;
                d_log_std[s] = if is_free { d_sum * std * noise - of.alpha * share } else { 0.0 };
            }
            tile.set_grad(self.network.chain(MEAN), j, &d_mean[..m]);
            tile.set_grad(self.network.chain(LOG_STD), j, &d_log_std[..m]);
        }
    }
}

impl Policy for SquashedGaussian {
    /// Writes actions, log-probabilities of the squashed ones, and zeros for values.
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error> {
        let (Acting { obs, choice, .. }, Acted { actions, log_probs, values, states: _ }) = (acting, acted);
        let Actions::Continuous(actions) = actions else { return Err(Error::ActionKind) };
        let a = self.n_actions();
        values.fill(0.0);
        self.each_tile(obs, log_probs.len(), scratch, &mut |range, outputs| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                log_probs[i] = 0.0;
                for j in 0..a {
                    let (mean, log_std) = (outputs[j * m + s], outputs[(a + j) * m + s]);
                    let y = match choice {
                        Choice::Greedy => math::tanh(mean),
                        Choice::Sample { seed, step, first_env } => {
                            let block = rng::block(seed, first_env + i as u32, step, Purpose::Policy, j as u32 >> 2);
                            if is_among_first(self.random_steps, step) {
                                2.0 * rng::uniform(block[j & 3]) - 1.0
                            } else {
                                let drawn = squash(mean, log_std, rng::normals(block)[j & 3]);
                                log_probs[i] += drawn.log_prob;
                                drawn.y
                            }
                        }
                    };
                    let [middle, half] = self.bounds[j];
                    actions[i * a + j] = middle + half * y;
                }
            }
        })
    }

    fn values(&self, _: ObsSlice<'_>, _: &[u8], _: &[f32], values: &mut [f32], _: &mut Scratch) -> Result<(), Error> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> Weights<'_> {
        self.network.weights()
    }

    fn exported(&self, spaces: &Spaces) -> Option<Exported> {
        let head = Head::Squashed { bounds: bounds(&spaces.actions)? };
        Some(self.network.exported(&spaces.obs, &[MEAN, LOG_STD], head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn densities_of_squashed_actions_add_up_to_one() {
        for (mean, log_std) in [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.3)] {
            // Of noise in steps of 0.001: the width in y times the density at its middle.
            let at = |i: i32| squash(mean, log_std, i as f32 * 1e-3);
            let total: f64 = (-6000..6000)
                .map(|i| {
                    let width = f64::from(at(i + 1).y) - f64::from(at(i).y);
                    width * f64::from(0.5 * (at(i).log_prob + at(i + 1).log_prob)).exp()
                })
                .sum();
            assert!((total - 1.0).abs() < 2e-3, "mean {mean}, log_std {log_std}: {total}");
        }
    }

    #[test]
    fn actions_are_within_asymmetric_bounds_and_random_ones_fill_them() {
        let (obs, actions) =
            (Space::vector(&[-1.0; 2], &[1.0; 2]), ActionSpace::Continuous { low: vec![-3.0, 0.5], high: vec![1.0, 0.75] });
        let mut policy = SquashedGaussian::new(&obs, &actions, &NetConfig::default(), 3).unwrap();
        policy.act_randomly_until(1);
        let n = 200;
        let range = |step: u64, choice: Option<Choice>| {
            let (mut drawn, mut log_probs, mut values) = (vec![0.0; 2 * n], vec![0.0; n], vec![1.0; n]);
            let choice = choice.unwrap_or(Choice::Sample { seed: 1, step, first_env: 0 });
            let acted = Acted {
                actions: Actions::Continuous(&mut drawn),
                log_probs: &mut log_probs,
                values: &mut values,
                states: &mut [],
            };
            policy
                .act(
                    Acting { obs: ObsSlice::F32(&vec![0.3; 2 * n]), masks: &[], choice, envs: &[] },
                    acted,
                    &mut Scratch::default(),
                )
                .unwrap();
            [0, 1].map(|j| {
                let of = || drawn.iter().skip(j).step_by(2).copied();
                (of().fold(f32::MAX, f32::min), of().fold(f32::MIN, f32::max))
            })
        };
        for (step, share) in [(1, 0.95), (2, 0.7)] {
            for ((low, high), (least, most)) in [(-3.0, 1.0), (0.5, 0.75)].into_iter().zip(range(step, None)) {
                assert!(least >= low && most <= high && most - least > share * (high - low), "step {step}: {least} to {most}");
            }
        }
        let [(one, other), _] = range(2, Some(Choice::Greedy));
        assert!(one == other && (one + 1.0).abs() < 0.1, "small outputs at first: the middle");
        for j in 0..2 {
            let [middle, half] = policy.bounds[j];
            assert_eq!(to_unit([middle, half], middle + 0.5 * half), 0.5);
        }
    }

    #[test]
    fn what_cannot_be_scaled_is_refused() {
        let obs = Space::vector(&[-1.0; 2], &[1.0; 2]);
        let refused = |low: f32, high: f32| {
            let actions = ActionSpace::Continuous { low: vec![-1.0, low], high: vec![1.0, high] };
            SquashedGaussian::check(&obs, &actions, &NetConfig::default()).unwrap_err().to_string()
        };
        assert!(refused(f32::NEG_INFINITY, 1.0).contains("-inf to 1 in dimension 1"));
        assert!(refused(1.0, 1.0).contains("1 to 1 in dimension 1"));
        let discrete = ActionSpace::Discrete { n: 2, masked: false };
        assert!(matches!(SquashedGaussian::check(&obs, &discrete, &NetConfig::default()), Err(Error::ActionKind)));
    }
}
