//! Test support: a slow and obvious buffer, other memory, random words.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rl_envs::{ActionKind, ActionSlice, Dtype, ObsSlice, Purpose, Rng};

use crate::slab::{Block, Memory};
use crate::{Batch, Error, StepSlices, TransitionShape};

/// Returns a generator of random words.
pub(crate) fn random(seed: u64) -> Rng {
    Rng::new(seed, 0, 0, Purpose::Init)
}

/// Returns a shape with four f32 numbers and a discrete action.
pub(crate) fn shape(n_envs: usize, n_step: usize) -> TransitionShape {
    TransitionShape {
        n_envs,
        obs_len: 4,
        obs: Dtype::F32,
        stack: 1,
        actions: ActionKind::Discrete { masked: None },
        n_step,
        gamma: 0.99,
    }
}

/// Returns a shape with observations of `d` numbers, or stacks of as many bytes.
///
/// `action` selects the kind of actions.
pub(crate) fn shape_of(d: usize, stack: Option<usize>, action: usize) -> TransitionShape {
    let actions = match action {
        0 => ActionKind::Discrete { masked: None },
        1..=2 => ActionKind::Discrete { masked: Some(3 * action) },
        _ => ActionKind::Continuous { len: action - 2 },
    };
    let obs = if stack.is_some() { Dtype::U8 } else { Dtype::F32 };
    let stack = stack.unwrap_or(1);
    TransitionShape { obs_len: d * stack, obs, stack, actions, gamma: 0.9, ..shape(1, 1) }
}

/// Fails if counts deviate more than chance allows, once in some thousands.
pub(crate) fn chi_square(counts: &[f64], expected: &[f64]) {
    let chi: f64 = counts.iter().zip(expected).map(|(count, expected)| (count - expected).powi(2) / expected.max(1e-9)).sum();
    let freedom = counts.len() as f64 - 1.0;
    assert!(chi <= freedom + 4.0 * (2.0 * freedom).sqrt() + 1e-6, "chi-square {chi} at {freedom} degrees of freedom");
}

/// A transition in a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Made {
    pub(crate) obs: Vec<f32>,
    pub(crate) action: Vec<f32>,
    pub(crate) reward: f32,
    pub(crate) discount: f32,
    pub(crate) next_obs: Vec<f32>,
    pub(crate) mask: Vec<u8>,
}

/// One step of one environment.
#[derive(Clone)]
struct Did {
    obs: Vec<f32>,
    action: Vec<f32>,
    reward: f32,
    terminated: bool,
    ended: bool,
    led_to: Vec<f32>,
    mask: Vec<u8>,
}

/// Random environments, their whole history, and the transitions expected from it.
pub(crate) struct History {
    shape: TransitionShape,
    words: Rng,
    ends: f64,
    /// Current episode of each environment.
    episodes: Vec<Vec<Did>>,
    obs: Vec<Vec<f32>>,
    pub(crate) made: Vec<Made>,
}

impl History {
    /// Creates environments whose episodes end at each step with probability `ends`.
    pub(crate) fn new(shape: TransitionShape, seed: u64, ends: f64) -> Self {
        let mut words = random(seed);
        let obs = (0..shape.n_envs).map(|_| Self::first_obs(&mut words, &shape)).collect();
        Self { shape, words, ends, episodes: vec![Vec::new(); shape.n_envs], obs, made: Vec::new() }
    }

    fn any_obs(words: &mut Rng, d: usize) -> Vec<f32> {
        (0..d).map(|_| words.below(256) as f32).collect()
    }

    /// Draws the first observation of an episode: its first frame in all places.
    fn first_obs(words: &mut Rng, shape: &TransitionShape) -> Vec<f32> {
        Self::any_obs(words, shape.obs_len / shape.stack).repeat(shape.stack)
    }

    /// Draws the next observation: a new frame, or the last one again, enters `obs`.
    fn next_obs(words: &mut Rng, shape: &TransitionShape, obs: &[f32]) -> Vec<f32> {
        let len = shape.obs_len / shape.stack;
        let frame = if words.below(5) == 0 { obs[obs.len() - len..].to_vec() } else { Self::any_obs(words, len) };
        [&obs[len..], &frame].concat()
    }

    /// Restarts the environments without ending their episodes.
    pub(crate) fn start_anew(&mut self) {
        self.episodes.iter_mut().for_each(Vec::clear);
        self.obs.iter_mut().for_each(|obs| *obs = Self::first_obs(&mut self.words, &self.shape));
    }

    /// Takes a step and passes it on.
    pub(crate) fn step<R>(&mut self, push: impl FnOnce(ObsSlice<'_>, &StepSlices<'_>) -> R) -> R {
        let TransitionShape { n_envs, n_step, gamma, .. } = self.shape;
        let (a, m) = (self.shape.action_len(), self.shape.mask_len());
        let (mut obs, mut next_obs, mut final_obs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut actions, mut rewards, mut terminated, mut truncated) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut masks, mut final_masks) = (Vec::new(), Vec::new());
        for env in 0..n_envs {
            let words = &mut self.words;
            let ended = f64::from(words.uniform()) < self.ends;
            let terminates = ended && words.below(2) == 0;
            let truncates = ended && (!terminates || words.below(2) == 0);
            let action: Vec<f32> = (0..a).map(|_| words.below(5) as f32).collect();
            let reward = words.below(1000) as f32 / 7.0;
            let last = Self::next_obs(words, &self.shape, &self.obs[env]);
            let next = if ended { Self::first_obs(words, &self.shape) } else { last.clone() };
            let mask: Vec<u8> = (0..2 * m).map(|_| words.below(2) as u8).collect();
            let did = Did {
                obs: self.obs[env].clone(),
                action: action.clone(),
                reward,
                terminated: terminates,
                ended,
                led_to: if ended { last.clone() } else { next.clone() },
                mask: if ended { mask[m..].to_vec() } else { mask[..m].to_vec() },
            };
            obs.extend(&self.obs[env]);
            actions.extend(action);
            rewards.push(reward);
            terminated.push(u8::from(terminates));
            truncated.push(u8::from(truncates));
            next_obs.extend(&next);
            final_obs.extend(&last);
            masks.extend(&mask[..m]);
            final_masks.extend(&mask[m..]);
            self.obs[env] = next;
            let episode = &mut self.episodes[env];
            episode.push(did);
            let first = episode.len().saturating_sub(n_step);
            let complete = if ended { first..episode.len() } else { first..first + usize::from(episode.len() >= n_step) };
            for start in complete {
                let (mut reward, mut power) = (0.0, 1.0);
                for did in &episode[start..] {
                    reward += power * did.reward;
                    power *= gamma;
                }
                let last = &episode[episode.len() - 1];
                self.made.push(Made {
                    obs: episode[start].obs.clone(),
                    action: episode[start].action.clone(),
                    reward,
                    discount: if last.terminated { 0.0 } else { power },
                    next_obs: last.led_to.clone(),
                    mask: last.mask.clone(),
                });
            }
            if episode[episode.len() - 1].ended {
                episode.clear();
            }
        }
        let bytes = |obs: &[f32]| obs.iter().map(|&x| x as u8).collect::<Vec<_>>();
        let as_bytes = [bytes(&obs), bytes(&next_obs), bytes(&final_obs)];
        let [obs, next_obs, final_obs] = match self.shape.obs {
            Dtype::F32 => [ObsSlice::F32(&obs), ObsSlice::F32(&next_obs), ObsSlice::F32(&final_obs)],
            Dtype::U8 => [ObsSlice::U8(&as_bytes[0]), ObsSlice::U8(&as_bytes[1]), ObsSlice::U8(&as_bytes[2])],
        };
        let numbers: Vec<u32> = actions.iter().map(|&action| action as u32).collect();
        let step = StepSlices {
            obs: next_obs,
            actions: match self.shape.actions {
                ActionKind::Discrete { .. } => ActionSlice::Discrete(&numbers),
                ActionKind::Continuous { .. } => ActionSlice::Continuous(&actions),
            },
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            final_obs,
            masks: (m > 0).then_some([&masks, &final_masks]),
        };
        push(obs, &step)
    }

    /// Fails if the batch differs from a ring of `capacity` at its indices.
    pub(crate) fn assert_holds(&self, batch: &Batch, capacity: usize) {
        let (d, a, m) = (self.shape.obs_len, self.shape.action_len(), self.shape.mask_len());
        let row = |rows: ObsSlice<'_>, i: usize| {
            rows.row(i, d).either(<[f32]>::to_vec, |row| row.iter().map(|&x| f32::from(x)).collect())
        };
        let batch = batch.columns();
        for (i, &index) in batch.indices.iter().enumerate() {
            let expected = (0..self.made.len()).rev().find(|number| number % capacity == index as usize);
            let drawn = Made {
                obs: row(batch.obs, i),
                action: match batch.actions {
                    ActionSlice::Discrete(actions) => vec![actions[i] as f32],
                    ActionSlice::Continuous(actions) => actions[i * a..][..a].to_vec(),
                },
                reward: batch.rewards[i],
                discount: batch.discounts[i],
                next_obs: row(batch.next_obs, i),
                mask: batch.next_masks[i * m..][..m].to_vec(),
            };
            assert_eq!(Some(&drawn), expected.map(|number| &self.made[number]), "at {index}");
        }
    }
}

/// Memory that counts its blocks, on pages of their own.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    alive: Arc<AtomicUsize>,
    allocated: AtomicUsize,
}

#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    start: usize,
    alive: Arc<AtomicUsize>,
}

impl Block for Page {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

impl Pages {
    /// Number of blocks allocated so far, and of those not yet freed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.allocated.load(Relaxed), self.alive.load(Relaxed))
    }
}

impl Memory for Pages {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        let bytes = vec![0; bytes + 4096];
        let start = bytes.as_ptr().addr().wrapping_neg() % 4096;
        self.alive.fetch_add(1, Relaxed);
        self.allocated.fetch_add(1, Relaxed);
        Ok(Box::new(Page { bytes, start, alive: self.alive.clone() }))
    }
}
