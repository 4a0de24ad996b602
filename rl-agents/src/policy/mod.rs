//! The contract of a policy, which acts in environments.

/// Implements [`Clone`] and what a policy over a network hands on.
///
/// The fields are those beside its [`Network`](network::Network).
macro_rules! over_network {
    ($policy:ty: $($field:ident),+) => {
        impl Clone for $policy {
            fn clone(&self) -> Self {
                Self { network: self.network.clone(), $($field: Clone::clone(&self.$field)),+ }
            }

            /// Copies without allocating if one policy is a copy of the other.
            fn clone_from(&mut self, source: &Self) {
                self.network.clone_from(&source.network);
                $(if self.$field != source.$field {
                    self.$field.clone_from(&source.$field);
                })+
            }
        }

        impl $policy {
            /// Names, shapes and ranges of the parameters.
            #[must_use]
            pub fn layout(&self) -> &Layout {
                self.network.layout()
            }

            /// Parameter vector (P).
            #[must_use]
            pub fn params(&self) -> &[f32] {
                self.network.params()
            }

            /// Loads parameters, statistics and version from a snapshot.
            ///
            /// # Errors
            /// [`Error::Snapshot`] if they do not fit; nothing has changed then.
            pub fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
                self.network.load(snapshot)
            }

            /// Network under the heads.
            pub(crate) fn network(&self) -> &Network {
                &self.network
            }

            /// Network under the heads, to change.
            pub(crate) fn network_mut(&mut self) -> &mut Network {
                &mut self.network
            }
        }
    };
}

/// Implements `ContinuousPolicy` by fields.
macro_rules! continuous_policy {
    ($policy:ty) => {
        impl ContinuousPolicy for $policy {
            fn network(&self) -> &Network {
                <$policy>::network(self)
            }

            fn network_mut(&mut self) -> &mut Network {
                <$policy>::network_mut(self)
            }

            fn net(&self) -> &NetConfig {
                &self.net
            }

            fn bounds(&self) -> &[[f32; 2]] {
                &self.bounds
            }

            fn act_randomly_until(&mut self, steps: u64) {
                <$policy>::act_randomly_until(self, steps);
            }
        }
    };
}

pub mod distributions;

pub(crate) mod actor_critic;
pub(crate) mod deterministic;
mod exported;
pub(crate) mod network;
pub(crate) mod q_network;
pub(crate) mod size;
pub(crate) mod squashed;
pub(crate) mod twin_q;

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;

use rl_buffer::ObsSlice;
use rl_envs::{ActionSliceMut, Actions, Purpose, Spaces, rng};
use rl_policy::Exported;

use crate::policy::distributions::{greedy, log_softmax, sample};
use crate::{Error, Moments};

/// Rule that selects an action from a policy's outputs.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// An action drawn from the policy.
    ///
    /// Environment i draws from its stream [`Purpose::Policy`]: a discrete action with [`rng::word`] of the step, dimension j of
    /// a continuous one with normal number `j & 3` of block `j >> 2` of counter step `step` (see [`rng::normals`]).
    Sample {
        /// Seed of the generator.
        seed: u64,
        /// Lifetime step of the environments.
        step: u64,
        /// Index of the first environment.
        first_env: u32,
    },
    /// The most likely action.
    Greedy,
}

/// Observations to act on, with the rule that selects actions.
#[derive(Clone, Copy, Debug)]
pub struct Acting<'a> {
    /// Observations (N, D).
    pub obs: ObsSlice<'a>,
    /// Legal actions (N, A), 1 if legal; empty without masks.
    pub masks: &'a [u8],
    /// Rule that selects actions.
    pub choice: Choice,
    /// Environment of each row (N), which exploration may depend on.
    ///
    /// Empty if row i is environment `first_env + i`.
    pub envs: &'a [u32],
}

/// Rows that a policy writes when it acts.
#[derive(Debug)]
pub struct Acted<'a> {
    /// Actions, (N) or (N, A), not clipped.
    pub actions: ActionSliceMut<'a>,
    /// Log-probabilities of the actions (N), or their values Q(s, a).
    pub log_probs: &'a mut [f32],
    /// Values of the observations (N); may be empty if [`Policy::values_apart`].
    pub values: &'a mut [f32],
    /// States of the policy (N, S), replaced by the next ones; empty without memory.
    pub states: &'a mut [f32],
}

impl Acted<'_> {
    /// Writes discrete actions, selected by logits (N, A), and their log-probabilities.
    ///
    /// # Errors
    /// [`Error::ActionKind`] if the actions are continuous.
    pub fn choose(&mut self, acting: &Acting<'_>, logits: &[f32]) -> Result<(), Error> {
        let Actions::Discrete(actions) = &mut self.actions else { return Err(Error::ActionKind) };
        let a = logits.len() / actions.len().max(1);
        let mut row = vec![0.0; a];
        for (i, (action, log_prob)) in actions.iter_mut().zip(&mut *self.log_probs).enumerate() {
            row.copy_from_slice(&logits[i * a..(i + 1) * a]);
            log_softmax(&mut row, mask_rows(acting.masks, i..i + 1, a));
            *action = match acting.choice {
                Choice::Sample { seed, step, first_env } => {
                    sample(&row, rng::uniform(rng::word(seed, first_env + i as u32, step, Purpose::Policy)))
                }
                Choice::Greedy => greedy(&row),
            };
            *log_prob = row[*action as usize];
        }
        Ok(())
    }
}

/// True in the first `n` lifetime steps of an environment, counted from 1.
pub(crate) fn is_among_first(n: u64, step: u64) -> bool {
    step.wrapping_sub(1) < n
}

/// Returns rows of masks (N, A); empty without masks.
///
/// # Panics
/// If there are masks, but not of these rows.
#[inline]
pub(crate) fn mask_rows(masks: &[u8], rows: Range<usize>, a: usize) -> &[u8] {
    if masks.is_empty() { masks } else { &masks[rows.start * a..rows.end * a] }
}

/// Parameters, statistics and version of a policy.
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    /// Number of changes of the policy so far.
    pub version: u64,
    /// Parameter vector (P), in the order of [`Agent::layout`](crate::Agent::layout).
    pub params: Cow<'a, [f32]>,
    /// Running statistics of observations, if they are normalized.
    pub obs: Option<&'a Moments>,
}

/// A policy: selects actions and values observations.
///
/// Implemented by [`ActorCritic`](crate::ActorCritic) and [`QNetwork`](crate::QNetwork). A custom policy implements it and
/// [`Clone`]: see the example `own_network`.
pub trait Policy: CopyPolicy + Send + Sync {
    /// Acts on N observations.
    ///
    /// # Errors
    /// [`Error::ActionKind`] if the policy's actions are of the other kind; errors of candle.
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error>;

    /// Writes the values (N) of N observations.
    ///
    /// `masks` (N, A) are the legal actions there; empty without masks. `states` (N, S) are the states that the policy would act
    /// with; it leaves them as they are.
    ///
    /// # Errors
    /// Errors of candle.
    fn values(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        states: &[f32],
        values: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), Error>;

    /// Number of elements S of the policy's state; 0 without memory.
    ///
    /// The state is carried from step to step. The caller keeps a row of it for each environment, with zeros at the first step of
    /// an episode: see [`Acted::states`].
    fn state_len(&self) -> usize {
        0
    }

    /// True if [`Policy::values`] may compute values after acting.
    ///
    /// It computes them for many observations at once, which is faster if the value function shares no layers with the policy.
    /// A policy with memory returns false.
    fn values_apart(&self) -> bool {
        false
    }

    /// Returns the parameters, statistics and version for a checkpoint.
    fn weights(&self) -> Weights<'_>;

    /// Returns the policy as data for other programs, if it can be exported.
    ///
    /// `spaces` are those that it was created for.
    fn exported(&self, spaces: &Spaces) -> Option<Exported> {
        let _ = spaces;
        None
    }
}

/// Copies of a policy behind `dyn Policy`, to act while the original learns.
///
/// Implemented for every [`Policy`] that is [`Clone`].
pub trait CopyPolicy: Any {
    /// Copies the policy.
    fn copy(&self) -> Box<dyn Policy>;

    /// Copies the policy into `copy`, by [`Clone::clone_from`] if the types agree.
    fn copy_to(&self, copy: &mut Box<dyn Policy>);
}

impl<P: Policy + Clone> CopyPolicy for P {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn copy_to(&self, copy: &mut Box<dyn Policy>) {
        match (&mut **copy as &mut dyn Any).downcast_mut::<P>() {
            Some(same) => same.clone_from(self),
            None => *copy = self.copy(),
        }
    }
}

/// Memory for a policy to act in, without allocations after the first call.
#[derive(Debug, Default)]
pub struct Scratch(Option<Box<dyn Any + Send>>);

impl Scratch {
    /// Returns the memory; a default one if there is none of this type yet.
    pub fn get<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|memory| memory.is::<T>()) {
            self.0 = Some(Box::<T>::default());
        }
        self.0.as_mut().and_then(|memory| memory.downcast_mut()).expect("memory of this type is there")
    }
}
