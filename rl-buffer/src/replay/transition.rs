//! Transitions: a buffer's input, and n-step windows.
//!
//! A transition is an observation, an action, the discounted sum of up to n rewards, the discount of the next value, the next
//! observation and, if there are masks, the actions legal there. Transitions have no flags: after termination the discount is 0,
//! after truncation the next observation is the final one.

use rl_envs::{ActionKind, ActionSlice, ActionSpace, Dtype, ObsRows, ObsSlice, Space, StepLens, StepSlices, visit};

use crate::Error;
use crate::memory::filled;
use crate::rollout::returns::{goes_on, has_future};

/// Shape of a buffer's transitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransitionShape {
    /// Number of environments N that step together.
    pub n_envs: usize,
    /// Number of elements D of an observation.
    pub obs_len: usize,
    /// Element type of observations.
    pub obs: Dtype,
    /// Number of stacked frames k in a byte observation, oldest first; 1 for no stack.
    ///
    /// Each frame is kept once.
    pub stack: usize,
    /// Kind of actions.
    pub actions: ActionKind,
    /// Number of steps n in a transition.
    pub n_step: usize,
    /// Discount of one step.
    pub gamma: f32,
}

impl TransitionShape {
    /// Shape of transitions of `n_step` steps of `n_envs` environments of these spaces.
    #[must_use]
    pub fn new(n_envs: usize, obs: &Space, actions: &ActionSpace, n_step: usize, gamma: f32) -> Self {
        let stack = if obs.dtype() == Dtype::U8 { obs.stack() } else { 1 };
        Self { n_envs, obs_len: obs.len(), obs: obs.dtype(), stack, actions: actions.kind(), n_step, gamma }
    }

    /// Words of an action: A if continuous.
    pub(crate) fn action_len(&self) -> usize {
        match self.actions {
            ActionKind::Discrete { .. } => 1,
            ActionKind::Continuous { len } => len,
        }
    }

    /// Bytes A of a mask; 0 without masks.
    pub(crate) fn mask_len(&self) -> usize {
        match self.actions {
            ActionKind::Discrete { masked } => masked.unwrap_or(0),
            ActionKind::Continuous { .. } => 0,
        }
    }

    /// Shape as stored in rows.
    ///
    /// Stacked observations are stored as the indices of their frames, as bits of numbers.
    pub(crate) fn stored(&self) -> Self {
        if self.stack == 1 { *self } else { Self { obs: Dtype::F32, obs_len: self.stack, stack: 1, ..*self } }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        for (size, what) in [
            (self.n_envs, "environment"),
            (self.obs_len, "element of an observation"),
            (self.action_len(), "element of an action"),
            (self.n_step, "step of a transition"),
            (self.stack, "frame of an observation"),
        ] {
            if size == 0 {
                return Err(Error::Empty(what));
            }
        }
        if matches!(self.actions, ActionKind::Discrete { masked: Some(0) }) {
            return Err(Error::Empty("action in a mask"));
        }
        if self.stack > 1 && (self.obs != Dtype::U8 || !self.obs_len.is_multiple_of(self.stack)) {
            let range = "1 or, of observations that are bytes, a divisor of their length";
            return Err(Error::Setting { what: "stack", value: self.stack as f64, range });
        }
        if !(0.0..=1.0).contains(&self.gamma) {
            return Err(Error::Setting { what: "gamma", value: f64::from(self.gamma), range: "between 0 and 1" });
        }
        Ok(())
    }
}

/// Checks a step of N environments that acted on `obs`.
///
/// # Panics
/// If a type or a length differs from the shape's.
pub(crate) fn assert_shape(shape: &TransitionShape, n_envs: usize, obs: ObsSlice<'_>, step: &StepSlices<'_>) {
    let expected = StepLens::rows(n_envs, shape.obs, shape.obs_len, shape.actions);
    assert_eq!(step.lens(), expected, "kinds and lengths of columns");
    assert_eq!(obs.map(<[f32]>::len, <[u8]>::len), expected.obs, "type and length of observations");
}

/// Returns the final observations and masks if the episode ended, or the next ones.
#[inline(always)]
pub(crate) fn next<'a>(step: &StepSlices<'a>, ended: bool) -> (ObsSlice<'a>, &'a [u8]) {
    let [masks, final_masks] = step.masks.unwrap_or_default();
    if ended { (step.final_obs, final_masks) } else { (step.obs, masks) }
}

/// Allocates zeros; fails if the memory is not available.
fn filled_obs(dtype: Dtype, len: usize) -> Result<ObsRows, Error> {
    Ok(match dtype {
        Dtype::F32 => ObsRows::F32(filled(len, 0.0)?),
        Dtype::U8 => ObsRows::U8(filled(len, 0)?),
    })
}

/// Steps that wait for later rewards: a ring of at most n per environment.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// gamma^k for k from 0 to n.
    pub(crate) powers: Vec<f32>,
    /// Observations, (N, n, D).
    pub(crate) obs: ObsRows,
    /// Actions as words, (N, n, A).
    pub(crate) actions: Vec<u32>,
    /// Sums of the rewards so far, (N, n).
    pub(crate) sums: Vec<f32>,
    /// Index of the oldest step in each ring, (N).
    pub(crate) oldest: Vec<u32>,
    /// Number of waiting steps, (N).
    pub(crate) waiting: Vec<u32>,
}

/// A complete transition.
pub(crate) struct Complete<'a> {
    pub(crate) obs: ObsSlice<'a>,
    pub(crate) action: &'a [u32],
    pub(crate) reward: f32,
    pub(crate) discount: f32,
    pub(crate) next_obs: ObsSlice<'a>,
    pub(crate) next_mask: &'a [u8],
}

impl Windows {
    /// Bytes of the windows.
    pub(crate) fn bytes(shape: &TransitionShape) -> u128 {
        let obs_size = shape.obs.size() as u128;
        let each = obs_size * shape.obs_len as u128 + 4 * shape.action_len() as u128 + 4;
        let steps = (shape.n_envs as u128).saturating_mul(shape.n_step as u128);
        steps.saturating_mul(each).saturating_add(8 * shape.n_envs as u128 + 4 * shape.n_step as u128 + 4)
    }

    pub(crate) fn new(shape: &TransitionShape) -> Result<Self, Error> {
        let (n, d) = (shape.n_envs * shape.n_step, shape.obs_len);
        let mut powers = filled(shape.n_step + 1, 1.0)?;
        for k in 1..powers.len() {
            powers[k] = powers[k - 1] * shape.gamma;
        }
        Ok(Self {
            powers,
            obs: filled_obs(shape.obs, n * d)?,
            actions: filled(n * shape.action_len(), 0)?,
            sums: filled(n, 0.0)?,
            oldest: filled(shape.n_envs, 0)?,
            waiting: filled(shape.n_envs, 0)?,
        })
    }

    /// Drops the waiting steps.
    pub(crate) fn clear(&mut self) {
        self.oldest.fill(0);
        self.waiting.fill(0);
        self.actions.fill(0);
    }

    /// Drops the waiting steps of one environment.
    pub(crate) fn clear_env(&mut self, env_idx: usize) {
        (self.oldest[env_idx], self.waiting[env_idx]) = (0, 0);
    }

    /// Adds a step of the environments from `first_env` on.
    ///
    /// Emits the transitions that the step completes.
    pub(crate) fn push(
        &mut self,
        shape: &TransitionShape,
        first_env: usize,
        obs: ObsSlice<'_>,
        step: &StepSlices<'_>,
        mut emit: impl FnMut(Complete<'_>),
    ) {
        let TransitionShape { obs_len: d, n_step: n, .. } = *shape;
        let (a, m) = (shape.action_len(), shape.mask_len());
        for env in 0..step.rewards.len() {
            let env_idx = first_env + env;
            let ring = env_idx * n;
            let (oldest, waiting) = (self.oldest[env_idx] as usize, self.waiting[env_idx] as usize + 1);
            let place = |j: usize| ring + if oldest + j < n { oldest + j } else { oldest + j - n };
            let at = place(waiting - 1);
            let waiting_obs = visit!(Obs, self.obs.as_mut(), |obs| &mut obs[at * d..][..d]);
            obs.row(env, d).copy_to(waiting_obs);
            match step.actions {
                ActionSlice::Discrete(actions) => self.actions[at] = actions[env],
                ActionSlice::Continuous(actions) => {
                    let row = &mut self.actions[at * a..][..a];
                    row.iter_mut().zip(&actions[env * a..][..a]).for_each(|(word, action)| *word = action.to_bits());
                }
            }
            self.sums[at] = 0.0;
            for j in 0..waiting {
                self.sums[place(j)] += self.powers[waiting - 1 - j] * step.rewards[env];
            }
            let ended = !goes_on(step.terminated[env], step.truncated[env]);
            let complete = if ended { waiting } else { usize::from(waiting == n) };
            let (next_obs, next_masks) = next(step, ended);
            for j in 0..complete {
                let at = place(j);
                emit(Complete {
                    obs: self.obs.as_slice().row(at, d),
                    action: &self.actions[at * a..][..a],
                    reward: self.sums[at],
                    discount: if has_future(step.terminated[env]) { self.powers[waiting - j] } else { 0.0 },
                    next_obs: next_obs.row(env, d),
                    next_mask: &next_masks[env * m..][..m],
                });
            }
            self.oldest[env_idx] = ((oldest + complete) % n) as u32;
            self.waiting[env_idx] = (waiting - complete) as u32;
        }
    }
}
