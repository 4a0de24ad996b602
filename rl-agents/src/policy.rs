//! What every policy is.

use std::any::Any;

use rl_buffer::ObsSlice;
use rl_envs::ActionsMut;

use crate::params::Layout;
use crate::samples::TILE;
use crate::tile::Workspace;
use crate::{Error, Snapshot};

/// Rule by which a policy chooses its actions.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Drawn from the policy with environment i's stream [`Purpose::Policy`](rl_envs::Purpose::Policy): a discrete action with word `step & 3` of block 0 of
    /// counter step `step >> 2`, dimension j of a continuous one with normal number `j & 3` of block `j >> 2` of counter step
    /// `step` (see [`rl_envs::rng::normals`]).
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

/// What acts: an [`ActorCritic`](crate::ActorCritic) or a [`QNetwork`](crate::QNetwork).
pub trait Policy: Send + Sync {
    /// Which tensors lie where in the parameter vector.
    fn layout(&self) -> &Layout;

    /// The parameter vector (P).
    fn params(&self) -> &[f32];

    /// How often the policy has changed.
    fn version(&self) -> u64;

    /// What has to be known to act as this policy does: parameters, statistics and version.
    fn save(&self) -> Snapshot;

    /// A copy to act with while this one changes.
    fn copy(&self) -> Box<dyn Policy>;

    /// Becomes a copy of `other` in the memory that it has.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if `other` is of another kind or size.
    fn copy_from(&mut self, other: &dyn Policy) -> Result<(), Error>;

    /// Itself, for `copy_from`.
    fn as_any(&self) -> &dyn Any;

    /// Takes parameters and statistics from an agent's snapshot.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if they do not fit; then nothing has changed.
    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error>;

    /// Memory to act with.
    fn scratch(&self) -> Scratch;

    /// Acts on N observations: writes actions before any clipping for the environment, their log-probabilities (N) and the
    /// observations' values (N). `masks`, (N, A), is empty where there are none.
    ///
    /// # Errors
    /// [`Error::ActionKind`] if the policy's actions are of the other kind, and those of candle.
    ///
    /// # Panics
    /// If the actions are not contiguous.
    fn act(
        &self,
        obs: ObsSlice<'_>,
        masks: &[u8],
        choice: Choice,
        scratch: &mut Scratch,
        out: (ActionsMut<'_>, &mut [f32], &mut [f32]),
    ) -> Result<(), Error>;

    /// Writes the values (N) of N observations.
    ///
    /// # Errors
    /// Those of candle.
    fn values(&self, obs: ObsSlice<'_>, scratch: &mut Scratch, values: &mut [f32]) -> Result<(), Error>;
}

/// The memory that acting needs, so that it allocates nothing. See [`Policy::scratch`].
#[derive(Clone, Debug)]
pub struct Scratch {
    pub(crate) workspace: Option<Workspace>,
    pub(crate) outputs: Vec<f32>, // (A, TILE)
    pub(crate) row: Vec<f32>,     // (A), of discrete actions
    pub(crate) chosen: Vec<f32>,  // (A, TILE), of continuous ones
}

impl Scratch {
    pub(crate) fn new(workspace: Option<Workspace>, n_actions: usize) -> Self {
        let columns = vec![0.0; n_actions * TILE];
        Self { workspace, outputs: columns.clone(), row: vec![0.0; n_actions], chosen: columns }
    }
}
