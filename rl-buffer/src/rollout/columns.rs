//! Columns of a rollout: dimensions, places in the slab, rows to be filled.

use ndarray::{ArrayViewMut2, Axis};
use rl_envs::{
    ActionKind, ActionSlice, ActionSliceMut, ActionSpace, Dtype, ObsSlice, ObsSliceMut, Space, StepLens, StepSlicesMut, Steps,
    either, visit,
};

use crate::Error;
use crate::slab::{Layout, Span};

/// Dimensions of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutShape {
    /// Number of steps T.
    pub n_steps: usize,
    /// Number of environments N.
    pub n_envs: usize,
    /// Number of elements D of an observation.
    pub obs_len: usize,
    /// Element type of observations.
    pub obs: Dtype,
    /// Kind of actions.
    pub actions: ActionKind,
    /// Number of elements S of the policy's state; 0 without memory.
    pub state_len: usize,
}

impl RolloutShape {
    /// Dimensions of `n_steps` steps of `n_envs` environments of these spaces.
    #[must_use]
    pub fn new(n_steps: usize, n_envs: usize, obs: &Space, actions: &ActionSpace) -> Self {
        Self { n_steps, n_envs, obs_len: obs.len(), obs: obs.dtype(), actions: actions.kind(), state_len: 0 }
    }

    /// Dimensions for a policy whose state has `len` elements.
    #[must_use]
    pub fn with_state_len(self, len: usize) -> Self {
        Self { state_len: len, ..self }
    }

    /// Bytes of a rollout; lists of final observations do not count.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        Columns::new(self).1.bytes as u128
    }

    /// Rejects `n` rollouts of this shape if they do not fit into memory together.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if they do not fit.
    pub fn check_memory(&self, n: usize) -> Result<(), Error> {
        crate::memory::check(n, self.bytes(), 0)
    }
}

/// Positions of the columns in the slab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) steps: Steps<Span<f32>, Span<u8>, Span<u32>>,
    pub(crate) log_probs: Span<f32>,
    pub(crate) values: Span<f32>,
    pub(crate) last_values: Span<f32>,
    pub(crate) env_idx: Span<u32>,
    pub(crate) policy_version: Span<u64>,
    pub(crate) first_states: Span<f32>,
}

impl Columns {
    /// Places the columns of a rollout in the order of [`Rollout::columns`].
    pub(crate) fn new(shape: &RolloutShape) -> (Self, Layout) {
        let RolloutShape { n_steps, n_envs, obs_len, obs, actions, state_len } = *shape;
        let row = StepLens::rows(n_envs, obs, obs_len, actions);
        let after = n_steps.saturating_add(1);
        let steps = |len: usize| (n_steps, len);
        let of_rows = Steps {
            obs: visit!(Obs, row.obs, |len| (after, len)),
            actions: row.actions.map(steps, steps),
            rewards: steps(row.rewards),
            terminated: steps(row.terminated),
            truncated: steps(row.truncated),
            final_obs: visit!(Obs, row.final_obs, |len| (1, len)),
            masks: row.masks.map(|[masks, final_masks]| [(after, masks), (1, final_masks)]),
        };
        let mut layout = Layout::default();
        let columns = Self {
            steps: visit!(Steps, of_rows, |(rows, len)| layout.push(rows, len)),
            log_probs: layout.push(n_steps, n_envs),
            values: layout.push(n_steps, n_envs),
            last_values: layout.push(1, n_envs),
            env_idx: layout.push(1, n_envs),
            policy_version: layout.push(1, n_envs),
            first_states: layout.push(1, n_envs.saturating_mul(state_len)),
        };
        (columns, layout)
    }
}

/// Rows of the columns of a rollout: (T, n A), (T, n), and so on.
pub type StepColumns<'a> = Steps<ArrayViewMut2<'a, f32>, ArrayViewMut2<'a, u8>, ArrayViewMut2<'a, u32>>;

/// Columns that a policy writes: actions, log-probabilities, values.
pub type ActColumns<'a> = (ActionSliceMut<'a>, &'a mut [f32], &'a mut [f32]);

/// Values of a step's environments (n) by a policy of action values.
#[derive(Clone, Copy, Debug)]
pub struct ActedValues<'a> {
    /// Values of the actions, Q(s, a).
    pub taken: &'a [f32],
    /// Values of the observations after the step; where an episode ended, any number.
    pub next: &'a [f32],
}

impl ActedValues<'_> {
    /// Returns the values of environment `env` alone.
    ///
    /// # Panics
    /// If there is no such environment.
    #[must_use]
    pub fn env(&self, env: usize) -> Self {
        Self { taken: &self.taken[env..=env], next: &self.next[env..=env] }
    }
}

/// Neighbouring columns of a rollout, n of N, for one thread to fill.
///
/// Arrays are of rows: an observation is D neighbouring elements of a row. Observations and masks have T + 1 rows, those after
/// the end of an episode one, the values after the last step one, all others T.
#[derive(Debug)]
pub struct RolloutColumns<'a> {
    /// Columns that environments read and write.
    pub steps: StepColumns<'a>,
    /// Log-probabilities of the actions, (T, n), or their values Q(s, a).
    pub log_probs: ArrayViewMut2<'a, f32>,
    /// Values of the observations, (T, n).
    pub values: ArrayViewMut2<'a, f32>,
    /// Values of the observations after the last step, (1, n).
    pub last_values: ArrayViewMut2<'a, f32>,
    /// States of the policy before step 0, (1, n S).
    pub first_states: ArrayViewMut2<'a, f32>,
}

const CONTIGUOUS: &str = "a row of columns is contiguous";

/// Returns row `t`.
#[inline]
fn row<'a, T>(columns: &'a ArrayViewMut2<'_, T>, t: usize) -> &'a [T] {
    columns.row(t).to_slice().expect(CONTIGUOUS)
}

/// Returns row `t` for writing.
#[inline]
fn row_mut<'a, T>(columns: &'a mut ArrayViewMut2<'_, T>, t: usize) -> &'a mut [T] {
    columns.row_mut(t).into_slice().expect(CONTIGUOUS)
}

impl RolloutColumns<'_> {
    /// Number of steps T.
    #[inline]
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.steps.rewards.nrows()
    }

    /// Splits into the first `n` columns and the others.
    ///
    /// # Panics
    /// If there are fewer columns.
    #[must_use]
    pub fn split_at(self, n: usize) -> (Self, Self) {
        fn split<T>(columns: ArrayViewMut2<'_, T>, n: usize, of: usize) -> (ArrayViewMut2<'_, T>, ArrayViewMut2<'_, T>) {
            let width = columns.ncols() / of.max(1);
            columns.split_at(Axis(1), n * width)
        }
        let all = self.steps.rewards.ncols();
        let (steps, other_steps) = visit!(Steps, self.steps, |column| split(column, n, all)).unzip();
        let floats = [self.log_probs, self.values, self.last_values, self.first_states];
        let [(log_probs, a), (values, b), (last_values, c), (first_states, d)] = floats.map(|column| split(column, n, all));
        let others = Self { steps: other_steps, log_probs: a, values: b, last_values: c, first_states: d };
        (Self { steps, log_probs, values, last_values, first_states }, others)
    }

    /// Visits the bytes of each row of each column, in a fixed order.
    ///
    /// Another process reads them in the same order. The scratch of the latest step is left out.
    pub fn each_row(&mut self, visit: &mut dyn FnMut(&mut [u8])) {
        fn rows<T: bytemuck::Pod>(columns: &mut ArrayViewMut2<'_, T>, visit: &mut dyn FnMut(&mut [u8])) {
            for t in 0..columns.nrows() {
                visit(bytemuck::cast_slice_mut(row_mut(columns, t)));
            }
        }
        let Steps { obs, actions, rewards, terminated, truncated, final_obs: _, masks } = &mut self.steps;
        either!(Obs, obs, |obs| rows(obs, visit));
        either!(Actions, actions, |actions| rows(actions, visit));
        for columns in [rewards, &mut self.log_probs, &mut self.values, &mut self.last_values, &mut self.first_states] {
            rows(columns, visit);
        }
        for columns in [terminated, truncated].into_iter().chain(masks.iter_mut().map(|[masks, _]| masks)) {
            rows(columns, visit);
        }
    }

    /// Returns the observations of row `t`, n D elements.
    #[inline]
    #[must_use]
    pub fn obs(&self, t: usize) -> ObsSlice<'_> {
        visit!(Obs, self.steps.obs.as_ref(), |obs| row(obs, t))
    }

    /// Returns the legal actions of row `t`, n A bytes; empty without masks.
    #[inline]
    #[must_use]
    pub fn masks(&self, t: usize) -> &[u8] {
        self.steps.masks.as_ref().map_or(&[], |[masks, _]| row(masks, t))
    }

    /// Returns the actions of row `t`, n or n A elements.
    #[must_use]
    pub fn actions(&self, t: usize) -> ActionSlice<'_> {
        visit!(Actions, self.steps.actions.as_ref(), |actions| row(actions, t))
    }

    /// Returns the final observations that the latest step wrote, n D elements.
    #[inline]
    #[must_use]
    pub fn final_obs(&self) -> ObsSlice<'_> {
        visit!(Obs, self.steps.final_obs.as_ref(), |obs| row(obs, 0))
    }

    /// Returns the legal actions at the final observations; empty without masks.
    #[inline]
    #[must_use]
    pub fn final_masks(&self) -> &[u8] {
        self.steps.masks.as_ref().map_or(&[], |[_, masks]| row(masks, 0))
    }

    /// Returns observations and masks of row `t` for writing, as a reset does.
    pub fn start(&mut self, t: usize) -> (ObsSliceMut<'_>, Option<&mut [u8]>) {
        let obs = visit!(Obs, self.steps.obs.as_mut(), |obs| row_mut(obs, t));
        (obs, self.steps.masks.as_mut().map(|[masks, _]| row_mut(masks, t)))
    }

    /// Returns what a policy reads and writes in step `t`.
    ///
    /// Observations and masks (empty without any) to read; actions, log-probabilities and values to write.
    pub fn act(&mut self, t: usize) -> (ObsSlice<'_>, &[u8], ActColumns<'_>) {
        let obs = visit!(Obs, self.steps.obs.as_ref(), |obs| row(obs, t));
        let masks = self.steps.masks.as_ref().map_or(&[][..], |[masks, _]| row(masks, t));
        let actions = visit!(Actions, self.steps.actions.as_mut(), |actions| row_mut(actions, t));
        (obs, masks, (actions, row_mut(&mut self.log_probs, t), row_mut(&mut self.values, t)))
    }

    /// Returns what environments read and write in step `t`: `obs` is row t + 1.
    pub fn step(&mut self, t: usize) -> StepSlicesMut<'_> {
        let Steps { obs, actions, rewards, terminated, truncated, final_obs, masks } = &mut self.steps;
        Steps {
            obs: visit!(Obs, obs.as_mut(), |obs| row_mut(obs, t + 1)),
            actions: visit!(Actions, actions.as_mut(), |actions| row_mut(actions, t)),
            rewards: row_mut(rewards, t),
            terminated: row_mut(terminated, t),
            truncated: row_mut(truncated, t),
            final_obs: visit!(Obs, final_obs.as_mut(), |obs| row_mut(obs, 0)),
            masks: masks.as_mut().map(|[masks, final_masks]| [row_mut(masks, t + 1), row_mut(final_masks, 0)]),
        }
    }
}
