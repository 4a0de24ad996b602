//! Minibatches of a rollout: tensors for the reference, columns for the kernel.

use candle_core::{Device, Tensor};
use rl_buffer::{Rollout, RolloutShape};
use rl_envs::{Actions, math};

use crate::agent::NamedTensor;
use crate::kernel::gradient::Slices;
use crate::kernel::samples::{Samples, Sequences, TILE};
use crate::kernel::slices::{MAX_SLICES, tree};
use crate::kernel::tile::{Stats, Tile, TileLoss};
use crate::learner::reevaluate::{CONTIGUOUS, ChosenActions, chosen_actions};
use crate::learner::targets::Targets;
use crate::network::recurrent::TensorSequences;
use crate::policy::distributions::{
    Distribution, choice_of, gaussian_entropy, log_prob_of, log_softmax_heads, standardize_columns,
};
use crate::probe::Threads;
use crate::{ActorCritic, Error};

/// Samples of a rollout as tensors, for losses written in candle.
pub struct TensorBatch {
    /// Observations, scaled and normalized: (B, D) f32.
    pub obs: Tensor,
    /// Legal actions: (B, A) u8.
    pub masks: Option<Tensor>,
    /// Actions: (B) u32, or (B, A) f32.
    pub actions: Tensor,
    /// Log-probabilities of the actions when they were chosen (B).
    pub log_probs: Tensor,
    /// Values of the observations before the update (B).
    pub values: Tensor,
    /// Advantages (B).
    pub advantages: Tensor,
    /// Targets of the values (B).
    pub returns: Tensor,
    /// Sequences that the samples are, if the policy has memory.
    pub(crate) sequences: Option<SequenceBatch>,
}

/// Sequences of a batch, for a policy with memory.
pub(crate) struct SequenceBatch {
    /// Samples in the order of time (B), and the place of each in it (B).
    order: Tensor,
    places: Tensor,
    pub(crate) tensors: TensorSequences,
}

impl SequenceBatch {
    /// Finds the columns of which `rows` are all samples.
    fn new(policy: &ActorCritic, rollout: &Rollout, rows: &[u32]) -> Result<Self, Error> {
        let device = policy.network().device();
        let all = sequences(policy, rollout);
        let (n_steps, n_envs, c) = (all.n_steps, all.n_envs, rows.len() / all.n_steps);
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by_key(|&i| rows[i as usize] as usize / n_envs);
        let row = |i: usize| order.get(i).map(|&i| rows[i as usize] as usize);
        let follows = |i: usize| i < c || row(i).zip(row(i - c)).is_some_and(|(row, before)| row == before + n_envs);
        let starts = (0..c).all(|i| row(i).is_some_and(|row| row < n_envs));
        if c == 0 || !starts || !rows.len().is_multiple_of(n_steps) || !(0..rows.len()).all(follows) {
            return Err(Error::Sequences);
        }
        let mut places = vec![0u32; rows.len()];
        order.iter().zip(0..).for_each(|(&i, place)| places[i as usize] = place);
        let columns: Vec<u32> = order[..c].iter().map(|&i| rows[i as usize]).collect();
        let first: Vec<f32> = columns.iter().flat_map(|&column| all.first_state(column)).copied().collect();
        let first = Tensor::from_vec(first, (c, policy.network().state_len()), device)?;
        let continues = (1..n_steps).map(|t| {
            let row = |&column: &u32| t as u32 * n_envs as u32 + column;
            let continues = columns.iter().map(|column| f32::from(u8::from(!all.begins(row(column)))));
            Tensor::from_vec(continues.collect(), (c, 1), device)
        });
        let continues = continues.collect::<candle_core::Result<_>>()?;
        let tensors = TensorSequences { first, continues, horizon: all.horizon };
        let b = rows.len();
        Ok(Self { order: Tensor::from_vec(order, b, device)?, places: Tensor::from_vec(places, b, device)?, tensors })
    }
}

#[cfg(test)]
impl SequenceBatch {
    /// A copy in f64.
    pub(crate) fn to_f64(&self) -> Self {
        let double = |t: &Tensor| t.to_dtype(candle_core::DType::F64).unwrap();
        let TensorSequences { first, continues, horizon } = &self.tensors;
        let continues = continues.iter().map(double).collect();
        let tensors = TensorSequences { first: double(first), continues, horizon: *horizon };
        Self { order: self.order.clone(), places: self.places.clone(), tensors }
    }
}

/// Columns of a rollout, for a policy with memory.
pub(crate) fn sequences<'a>(policy: &ActorCritic, rollout: &'a Rollout) -> Sequences<'a> {
    let RolloutShape { n_steps, n_envs, .. } = rollout.shape();
    let ends = [rollout.terminated(), rollout.truncated()].map(|ends| ends.to_slice().expect(CONTIGUOUS));
    let horizon = policy.network().memory_horizon();
    Sequences { n_steps, n_envs, ends, first_states: rollout.first_states(), horizon }
}

impl TensorBatch {
    /// Gathers the samples `rows`, numbered from (0, 0), with their advantages.
    ///
    /// For a policy with memory, they are all steps of some columns, in any order.
    ///
    /// # Errors
    /// [`Error::ActionKind`] if the rollout holds actions of the other kind; [`Error::Sequences`] if steps of a column are
    /// missing that the policy's memory needs; errors of candle.
    pub fn gather(
        policy: &ActorCritic,
        rollout: &Rollout,
        targets: &Targets,
        rows: &[u32],
        advantages: &[f32],
    ) -> Result<Self, Error> {
        let device = policy.network().device();
        let b = rows.len();
        let at = |row: &u32| *row as usize;
        let mut obs = Vec::with_capacity(b * policy.network().obs_len());
        for row in rows.iter().map(at) {
            policy.network().push_features(rollout.obs_rows(row..row + 1), &mut obs);
        }
        let floats = |all: &[f32]| Tensor::from_vec(rows.iter().map(|row| all[at(row)]).collect(), b, device);
        let a = policy.n_actions();
        let actions = match chosen_actions(policy, rollout)? {
            Actions::Discrete((actions, _)) => Tensor::from_vec(rows.iter().map(|row| actions[at(row)]).collect(), b, device),
            Actions::Continuous((actions, _)) => {
                let of_row = |row: usize| &actions[row * a..(row + 1) * a];
                Tensor::from_vec(rows.iter().map(at).flat_map(of_row).copied().collect(), (b, a), device)
            }
        };
        let masks = rollout.masks().map(|masks| {
            let all = masks.to_slice().expect(CONTIGUOUS);
            let rows: Vec<u8> = rows.iter().map(at).flat_map(|row| &all[row * a..(row + 1) * a]).copied().collect();
            Tensor::from_vec(rows, (b, a), device)
        });
        Ok(Self {
            obs: Tensor::from_vec(obs, (b, policy.network().obs_len()), device)?,
            masks: masks.transpose()?,
            actions: actions?,
            log_probs: floats(rollout.log_probs().to_slice().expect(CONTIGUOUS))?,
            values: floats(&targets.values)?,
            advantages: Tensor::from_slice(advantages, b, device)?,
            returns: floats(&targets.returns)?,
            sequences: (policy.network().state_len() > 0).then(|| SequenceBatch::new(policy, rollout, rows)).transpose()?,
        })
    }

    /// Computes logits or means (B, A) and values (B) of the samples.
    ///
    /// With candle operations. Gradients flow to `params` (P).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn forward(&self, policy: &ActorCritic, params: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let Some(SequenceBatch { order, places, tensors }) = &self.sequences else { return policy.forward(params, &self.obs) };
        let (outputs, values, _) = policy.forward_sequences(params, &self.obs.index_select(order, 0)?, tensors)?;
        Ok((outputs.index_select(places, 0)?, values.index_select(places, 0)?))
    }
}

/// Parts of the loss, as means over a minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) policy: f32,
    pub(crate) value: f32,
    /// Minus the mean entropy.
    pub(crate) entropy: f32,
    /// KL divergence from the old policy, if the loss measures it.
    pub(crate) kl: f32,
    pub(crate) clip_fraction: f32,
}

/// Samples of a tile, one number each (m).
pub(crate) struct Columns<'a> {
    pub(crate) log_probs: &'a [f32],
    pub(crate) old_log_probs: &'a [f32],
    pub(crate) advantages: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) old_values: &'a [f32],
    pub(crate) returns: &'a [f32],
    /// Log-probabilities before the update, if `old_log_probs` are another policy's.
    pub(crate) start_log_probs: Option<&'a [f32]>,
}

/// Output of a loss: derivatives and parts, one number per sample (m).
pub(crate) struct Derivatives<'a> {
    /// Derivative of the policy loss by the action's log-probability.
    pub(crate) log_prob: &'a mut [f32],
    /// Derivative of the weighted value loss by the value.
    pub(crate) value: &'a mut [f32],
    pub(crate) policy_loss: &'a mut [f32],
    pub(crate) value_loss: &'a mut [f32],
    pub(crate) kl: &'a mut [f32],
    pub(crate) clipped: &'a mut [f32],
}

/// Sums over the tiles of a slice, and the policy's outputs for the current tile.
#[derive(Clone, Default)]
pub(crate) struct TileSums {
    sums: [f64; 5],
    log_std: Vec<f64>, // (A), the gradient of the logarithms of the standard deviations
    outputs: Vec<f32>, // (A, TILE)
    actions: Vec<f32>, // (A, TILE), continuous ones
}

impl Stats for TileSums {
    fn reset(&mut self) {
        self.sums = [0.0; 5];
        self.log_std.fill(0.0);
    }

    fn write(&self, message: &mut Vec<u8>) {
        self.sums.iter().chain(&self.log_std).for_each(|sum| message.extend(sum.to_le_bytes()));
    }

    fn read(&mut self, message: &[u8]) {
        let (sums, log_std) = message.as_chunks().0.split_at(self.sums.len());
        self.sums.iter_mut().zip(sums).for_each(|(to, &sum)| *to = f64::from_le_bytes(sum));
        self.log_std.clear();
        self.log_std.extend(log_std.iter().map(|&sum| f64::from_le_bytes(sum)));
    }
}

/// A minibatch of a rollout.
#[derive(Clone, Copy)]
pub(crate) struct Minibatch<'a> {
    pub(crate) rollout: &'a Rollout,
    pub(crate) targets: &'a Targets,
    /// Rows of the rollout.
    pub(crate) rows: &'a [u32],
    /// Advantages of these rows, normalized or not.
    pub(crate) advantages: &'a [f32],
    pub(crate) ent_coef: f32,
}

/// An algorithm's loss, sample by sample.
pub(crate) trait SampleLoss: Sync {
    /// Writes the parts of the loss, except for the entropy, and their derivatives.
    ///
    /// Must be `inline(always)`.
    fn derivatives(&self, columns: &Columns<'_>, out: &mut Derivatives<'_>);
}

impl Minibatch<'_> {
    /// Returns samples and rewards as tensors, for a dump.
    pub(crate) fn tensors(&self, policy: &ActorCritic) -> Result<Vec<NamedTensor>, Error> {
        let batch = TensorBatch::gather(policy, self.rollout, self.targets, self.rows, self.advantages)?;
        let rewards = self.rollout.rewards().to_slice().expect(CONTIGUOUS);
        let rewards: Vec<f32> = self.rows.iter().map(|&row| rewards[row as usize]).collect();
        let rewards = Tensor::from_vec(rewards, self.rows.len(), &Device::Cpu)?;
        let mut tensors = vec![
            ("obs", &batch.obs),
            ("actions", &batch.actions),
            ("log_probs", &batch.log_probs),
            ("rewards", &rewards),
            ("values", &batch.values),
            ("advantages", &batch.advantages),
            ("returns", &batch.returns),
        ];
        tensors.extend(batch.masks.as_ref().map(|masks| ("masks", masks)));
        Ok(tensors.into_iter().map(|(name, tensor)| NamedTensor::new(name, tensor)).collect::<candle_core::Result<_>>()?)
    }

    /// Computes the gradient of the mean loss with the tile kernel; returns its parts.
    pub(crate) fn gradient(
        &self,
        policy: &ActorCritic,
        loss: impl SampleLoss,
        threads: Threads<'_>,
        slices: &mut Slices<TileSums>,
        gradient: &mut [f32],
    ) -> Result<Parts, Error> {
        let not_here = || Error::Setting { name: "learner", value: "reference".into(), allowed: "only fused has a kernel" };
        let kernel = policy.network().kernel().ok_or_else(not_here)?;
        let b = self.rows.len();
        let loss = ActorCriticLoss {
            minibatch: *self,
            loss,
            chosen_actions: chosen_actions(policy, self.rollout)?,
            old_log_probs: self.rollout.log_probs().to_slice().expect(CONTIGUOUS),
            masks: self.rollout.masks().map(|masks| masks.to_slice().expect(CONTIGUOUS)),
            chains: policy.chains(),
            n_actions: policy.n_actions(),
        };
        let obs = self.rollout.obs_rows(0..self.rollout.len());
        let samples = Samples {
            sequences: kernel.net.memory.as_ref().map(|_| sequences(policy, self.rollout)),
            ..policy.network().samples(obs, Some(self.rows))
        };
        let mut sums = [0.0f64; 5];
        let slices = slices.gradient(kernel, samples, b, threads, &loss, gradient)?;
        if let Distribution::Gaussian { log_std } = policy.distribution() {
            for (j, gradient) in gradient[log_std.clone()].iter_mut().enumerate() {
                let mut of_slices = [0.0; MAX_SLICES];
                of_slices.iter_mut().zip(slices.clone()).for_each(|(to, slice)| *to = slice.log_std[j]);
                *gradient = tree(of_slices, |a, b| a + b) as f32;
            }
        }
        for slice in slices {
            sums.iter_mut().zip(slice.sums).for_each(|(sum, x)| *sum += x);
        }
        let [policy, value, entropy, kl, clip_fraction] = sums.map(|sum| (sum / b as f64) as f32);
        Ok(Parts { policy, value, entropy: -entropy, kl, clip_fraction })
    }
}

/// Loss of policy and value function for the tile kernel.
struct ActorCriticLoss<'a, L> {
    minibatch: Minibatch<'a>,
    loss: L,
    chosen_actions: ChosenActions<'a>,
    old_log_probs: &'a [f32], // (T N)
    masks: Option<&'a [u8]>,  // (T N, A)
    chains: (usize, usize),
    n_actions: usize,
}

impl<L: SampleLoss> TileLoss<TileSums> for ActorCriticLoss<'_, L> {
    fn stats_len(&self, _n_samples: usize) -> usize {
        let continuous = matches!(self.chosen_actions, Actions::Continuous(_));
        size_of::<f64>() * (5 + if continuous { self.n_actions } else { 0 })
    }

    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, state: &mut TileSums) {
        let Minibatch { targets, rows, advantages, ent_coef, .. } = self.minibatch;
        let ((actor, critic), a) = (self.chains, self.n_actions);
        let weight = 1.0 / rows.len() as f32;
        let range = tile.samples.clone();
        let m = range.len();
        let rows = &rows[range.clone()];
        let [mut new, mut old, mut start, mut value, mut old_value, mut wanted] = [[0.0f32; TILE]; 6];
        let mut chosen = [0u32; TILE];
        let [mut d_log_prob, mut d_value, mut policy_loss, mut value_loss, mut kl, mut clipped] = [[0.0f32; TILE]; 6];
        state.outputs.resize(a * TILE, 0.0);
        let outputs = &mut state.outputs[..a * m];
        outputs.chunks_exact_mut(m).enumerate().for_each(|(j, column)| tile.column(actor, j, column));
        tile.column(critic, 0, &mut value[..m]);
        // The outputs become log-probabilities of discrete actions, or distances of continuous ones from the means.
        match self.chosen_actions {
            Actions::Discrete((actions, heads)) => {
                let mut legal = Vec::new();
                if let Some(masks) = self.masks {
                    legal.extend(rows.iter().flat_map(|&row| &masks[row as usize * a..][..a]));
                }
                log_softmax_heads(outputs, m, heads, &legal, &mut [0.0; 2 * TILE]);
                for (s, &row) in rows.iter().enumerate() {
                    chosen[s] = actions[row as usize];
                    new[s] = log_prob_of(outputs, m, s, heads, chosen[s]);
                }
            }
            Actions::Continuous((actions, log_std)) => {
                state.actions.resize(a * TILE, 0.0);
                state.log_std.resize(a, 0.0);
                let columns = &mut state.actions[..a * m];
                for (s, &row) in rows.iter().enumerate() {
                    for (j, &action) in actions[row as usize * a..][..a].iter().enumerate() {
                        columns[j * m + s] = action;
                    }
                }
                standardize_columns(outputs, columns, m, log_std, &mut new[..m]);
            }
        }
        for (s, row) in rows.iter().map(|&row| row as usize).enumerate() {
            old[s] = self.old_log_probs[row];
            old_value[s] = targets.values[row];
            wanted[s] = targets.returns[row];
        }
        let start_log_probs = (!targets.log_probs.is_empty()).then(|| {
            rows.iter().zip(&mut start).for_each(|(&row, start)| *start = targets.log_probs[row as usize]);
            &start[..m]
        });
        self.loss.derivatives(
            &Columns {
                log_probs: &new[..m],
                old_log_probs: &old[..m],
                advantages: &advantages[range],
                values: &value[..m],
                old_values: &old_value[..m],
                returns: &wanted[..m],
                start_log_probs,
            },
            &mut Derivatives {
                log_prob: &mut d_log_prob[..m],
                value: &mut d_value[..m],
                policy_loss: &mut policy_loss[..m],
                value_loss: &mut value_loss[..m],
                kl: &mut kl[..m],
                clipped: &mut clipped[..m],
            },
        );

        let mut entropy = [0.0f32; TILE];
        let mut d_output = [0.0f32; TILE];
        match self.chosen_actions {
            // With p = exp(log p): H = -sum p log p, dH/dz_j = -p_j (log p_j + H), d(log p_a)/dz_j = [j = a] - p_j, in each head.
            Actions::Discrete((_, heads)) => {
                let (mut rest, mut first) = (&*outputs, 0);
                for (head, &n) in heads.iter().enumerate() {
                    let (of_head, others) = rest.split_at(n * m);
                    rest = others;
                    let (mut h, mut choice) = ([0.0f32; TILE], [0usize; TILE]);
                    choice.iter_mut().zip(&chosen[..m]).for_each(|(choice, &action)| *choice = choice_of(action, heads, head));
                    for column in of_head.chunks_exact(m) {
                        h.iter_mut().zip(column).for_each(|(sum, &log_prob)| *sum -= math::exp(log_prob) * log_prob);
                    }
                    for (j, column) in of_head.chunks_exact(m).enumerate() {
                        for s in 0..m {
                            let p = math::exp(column[s]);
                            let other = weight * (ent_coef * p * (column[s] + h[s]) - d_log_prob[s] * p);
                            d_output[s] = if choice[s] == j { other + weight * d_log_prob[s] } else { other };
                        }
                        tile.set_grad(actor, first + j, &d_output[..m]);
                    }
                    entropy.iter_mut().zip(h).for_each(|(sum, h)| *sum += h);
                    first += n;
                }
            }
            // With z = (a - mean) / std: d(log p)/d mean = z / std, d(log p)/d log_std = z^2 - 1, dH/d log_std = 1.
            Actions::Continuous((_, log_std)) => {
                entropy[..m].fill(gaussian_entropy(log_std));
                let mut d_log_std = [0.0f32; TILE];
                for (j, column) in outputs.chunks_exact(m).enumerate() {
                    let inv_std = math::exp(-log_std[j]);
                    for s in 0..m {
                        d_output[s] = weight * d_log_prob[s] * column[s] * inv_std;
                        d_log_std[s] = weight * (d_log_prob[s] * (column[s] * column[s] - 1.0) - ent_coef);
                    }
                    state.log_std[j] += f64::from(total(&d_log_std[..m]));
                    tile.set_grad(actor, j, &d_output[..m]);
                }
            }
        }
        d_value[..m].iter_mut().for_each(|d| *d *= weight);
        tile.set_grad(critic, 0, &d_value[..m]);
        let columns = [&policy_loss, &value_loss, &entropy, &kl, &clipped];
        state.sums.iter_mut().zip(columns).for_each(|(sum, column)| *sum += f64::from(total(&column[..m])));
    }
}

/// Returns the sum, in eight interleaved parts to vectorize in a fixed order.
#[inline(always)]
fn total(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}
