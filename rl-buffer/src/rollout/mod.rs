//! Rollouts: T steps of N environments in one slab, filled in place.

pub(crate) mod columns;
pub(crate) mod device;
pub mod returns;

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayViewMut2, s};
use rl_envs::{Actions, Obs, ObsRows, ObsSlice, StepSlices, Steps, visit};

use crate::Error;
use crate::rollout::columns::{ActedValues, Columns, RolloutColumns, RolloutShape};
use crate::slab::{Memory, Slab, Span};

/// T steps of N environments.
///
/// A column is a segment of one environment's trajectory.
///
/// ```
/// use rl_buffer::{Rollout, RolloutShape};
/// use rl_envs::{SyncVecEnv, VecEnv, cartpole::CartPole};
///
/// let mut envs = SyncVecEnv::new(4, CartPole::default());
/// let shape = RolloutShape::new(32, 4, envs.observation_space(), envs.action_space());
/// let mut rollout = Rollout::new(shape)?;
/// let mut columns = rollout.columns();
/// let (obs, masks) = columns.start(0);
/// envs.reset_into(7, obs, masks)?;
/// for t in 0..32 {
///     envs.step_into(rollout.columns().step(t))?; // all actions are 0
///     rollout.record_ends(t);
/// }
/// assert!(rollout.final_at().len() > 4); // pushed to the left, a pole falls within 11 steps
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Columns in the order of the slab, each at a multiple of 64 bytes:
///
/// | column | shape | element |
/// |---|---|---|
/// | observations; step t acts on row t, row T follows the last step | (T + 1, N, D) | f32 or u8 |
/// | actions of the policy, before they are clipped | (T, N) or (T, N, A) | u32 or f32 |
/// | rewards | (T, N) | f32 |
/// | terminated, truncated | (T, N) each | u8 |
/// | final observations of the latest step, scratch of the environments | (N, D) | f32 or u8 |
/// | legal actions at each observation, if there are masks | (T + 1, N, A) | u8 |
/// | legal actions at the final observations of the latest step, if there are masks | (N, A) | u8 |
/// | log-probabilities and values under the acting policy | (T, N) each | f32 |
/// | values of the observations after the last step | (N) | f32 |
/// | index of each column's environment | (N) | u32 |
/// | version of the policy that acted first in each column | (N) | u64 |
/// | state of the policy before step 0, zeros at an episode's first step | (N, S) | f32 |
///
/// The lists of ended episodes are not part of the slab, because their lengths are known only afterwards.
#[derive(Clone, Debug)]
pub struct Rollout {
    slab: Slab,
    columns: Columns,
    shape: RolloutShape,
    /// True if every column continues the same environment's trajectory.
    ///
    /// False under first-come batching.
    pub contiguous: bool,
    /// True for each column that continues its environment's last column.
    ///
    /// The last column is an earlier one of this rollout, or of those before. Empty unless columns are filled first-come.
    pub continues: Vec<bool>,
    /// True if the learner's columns on a device are filled instead of these.
    pub on_device: bool,
    /// True if an episode was dropped between the previous rollout and this one.
    ///
    /// Waiting steps of n-step returns and stacked frames have no continuation then.
    pub cut_before: bool,
    /// Position (t, n) of each episode's end, in the order of `final_obs`.
    final_at: Vec<(usize, usize)>,
    /// Last observations of these episodes.
    final_obs: ObsRows,
    /// Legal actions at the last observations, A bytes each; empty without masks.
    final_masks: Vec<u8>,
    /// States of the policy at the last observations, S elements each.
    final_states: Vec<f32>,
}

impl Rollout {
    /// Creates an empty rollout in the host's memory.
    ///
    /// It is all zeros, for environments 0 to N - 1.
    ///
    /// # Errors
    /// [`Error::Empty`] if a dimension is 0, [`Error::TooLarge`] if it does not fit into memory.
    pub fn new(shape: RolloutShape) -> Result<Self, Error> {
        Self::new_in(shape, &<dyn Memory>::host())
    }

    /// Creates an empty rollout as [`Rollout::new`] does, in memory of the given kind.
    ///
    /// # Errors
    /// The errors of [`Rollout::new`], or [`Error::Block`] if the memory does not keep its promise.
    pub fn new_in(shape: RolloutShape, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        let RolloutShape { n_steps, n_envs, obs_len, .. } = shape;
        for (size, what) in [(n_steps, "step"), (n_envs, "environment"), (obs_len, "element of an observation")] {
            if size == 0 {
                return Err(Error::Empty(what));
            }
        }
        let (columns, layout) = Columns::new(&shape);
        let fits = crate::memory::check(1, layout.bytes as u128, 0);
        let slab = fits.and_then(|()| Slab::new(&layout, memory)).map_err(|error| match error {
            Error::OutOfMemory { .. } | Error::Refused { .. } => Error::TooLarge { n_steps, n_envs, bytes: layout.bytes as u128 },
            error => error,
        })?;
        let mut rollout = Self {
            slab,
            columns,
            shape,
            contiguous: true,
            continues: Vec::new(),
            cut_before: false,
            on_device: false,
            final_at: Vec::new(),
            final_obs: ObsRows::zeros(shape.obs, 0),
            final_masks: Vec::new(),
            final_states: Vec::new(),
        };
        rollout.env_idx_mut().iter_mut().zip(0..).for_each(|(to, env_idx)| *to = env_idx);
        Ok(rollout)
    }

    /// Copies the rollout into ordinary memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it does not fit.
    pub fn copy_on_host(&self) -> Result<Self, Error> {
        crate::memory::check(1, self.slab.bytes() as u128, 0)?;
        let slab = self.slab.copy_in(&<dyn Memory>::host())?;
        let Self { columns, shape, contiguous, on_device, cut_before, .. } = *self;
        Ok(Self {
            slab,
            columns,
            shape,
            contiguous,
            continues: self.continues.clone(),
            on_device,
            cut_before,
            final_at: self.final_at.clone(),
            final_obs: self.final_obs.clone(),
            final_masks: self.final_masks.clone(),
            final_states: self.final_states.clone(),
        })
    }

    /// Dimensions of the rollout.
    #[must_use]
    pub fn shape(&self) -> RolloutShape {
        self.shape
    }

    /// Number of transitions, T times N.
    #[expect(clippy::len_without_is_empty, reason = "a rollout has one step at least")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.n_steps * self.shape.n_envs
    }

    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(crate) fn column_mut<T: bytemuck::Pod>(&mut self, span: Span<T>) -> &mut [T] {
        self.slab.get_mut(span)
    }

    pub(crate) fn slab_bytes(&mut self) -> &mut [u8] {
        self.slab.bytes_mut()
    }

    /// Borrows all columns, to be split and filled by several threads.
    pub fn columns(&mut self) -> RolloutColumns<'_> {
        let Columns { steps, log_probs, values, last_values, env_idx: _, policy_version: _, first_states } = self.columns;
        let mut cut = self.slab.cut();
        RolloutColumns {
            steps: visit!(Steps, steps, |span| cut.array(span)),
            log_probs: cut.array(log_probs),
            values: cut.array(values),
            last_values: cut.array(last_values),
            first_states: cut.array(first_states),
        }
    }

    /// Removes the final observations, so that the rollout can be filled again.
    pub fn clear(&mut self) {
        self.cut_before = false;
        self.on_device = false;
        self.continues.clear();
        self.final_at.clear();
        self.final_masks.clear();
        self.final_states.clear();
        self.final_obs.clear();
    }

    /// Returns an array (rows, N, len) of a column.
    fn array3<T: bytemuck::Pod>(&self, span: Span<T>) -> ArrayView3<'_, T> {
        let n = self.shape.n_envs;
        ArrayView3::from_shape((span.rows, n, span.width / n), self.slab.get(span)).expect("a column is its rows")
    }

    /// Returns the observations, (T + 1, N, D).
    ///
    /// Step t acts on row t; row T follows the last step.
    #[must_use]
    pub fn obs(&self) -> Obs<ArrayView3<'_, f32>, ArrayView3<'_, u8>> {
        visit!(Obs, self.columns.steps.obs, |span| self.array3(span))
    }

    /// Returns the observations of `rows`, numbered from (0, 0) to (T, N - 1).
    #[must_use]
    pub fn obs_rows(&self, rows: Range<usize>) -> ObsSlice<'_> {
        let obs: ObsSlice<'_> = visit!(Obs, self.columns.steps.obs, |span| self.slab.get(span));
        obs.rows(rows, self.shape.obs_len)
    }

    /// Returns the columns of step `t`: its `obs` and `masks` are row t + 1.
    ///
    /// Final observations and masks are scratch: those of the latest step.
    #[must_use]
    pub fn step(&self, t: usize) -> StepSlices<'_> {
        fn row<T: bytemuck::Pod>(slab: &Slab, span: Span<T>, t: usize) -> &[T] {
            &slab.get(span)[t * span.width..][..span.width]
        }
        let (slab, steps) = (&self.slab, self.columns.steps);
        Steps {
            obs: visit!(Obs, steps.obs, |span| row(slab, span, t + 1)),
            actions: visit!(Actions, steps.actions, |span| row(slab, span, t)),
            rewards: row(slab, steps.rewards, t),
            terminated: row(slab, steps.terminated, t),
            truncated: row(slab, steps.truncated, t),
            final_obs: visit!(Obs, steps.final_obs, |span| row(slab, span, 0)),
            masks: steps.masks.map(|[masks, final_masks]| [row(slab, masks, t + 1), row(slab, final_masks, 0)]),
        }
    }

    /// Returns the actions before they are clipped, (T, N) or (T, N, A).
    #[must_use]
    pub fn actions(&self) -> Actions<ArrayView2<'_, u32>, ArrayView3<'_, f32>> {
        self.columns.steps.actions.map(|span| self.slab.array(span), |span| self.array3(span))
    }

    /// Returns the log-probabilities of the actions under the acting policy, (T, N).
    ///
    /// A policy of action values writes Q(s, a) in their place.
    #[must_use]
    pub fn log_probs(&self) -> ArrayView2<'_, f32> {
        self.slab.array(self.columns.log_probs)
    }

    /// Returns the values of the observations under the acting policy, (T, N).
    #[must_use]
    pub fn values(&self) -> ArrayView2<'_, f32> {
        self.slab.array(self.columns.values)
    }

    /// Returns the rewards, (T, N).
    #[must_use]
    pub fn rewards(&self) -> ArrayView2<'_, f32> {
        self.slab.array(self.columns.steps.rewards)
    }

    /// Returns 1 where a step ended the task, (T, N).
    #[must_use]
    pub fn terminated(&self) -> ArrayView2<'_, u8> {
        self.slab.array(self.columns.steps.terminated)
    }

    /// Returns 1 where a step was cut off, (T, N).
    #[must_use]
    pub fn truncated(&self) -> ArrayView2<'_, u8> {
        self.slab.array(self.columns.steps.truncated)
    }

    /// Returns the legal actions at each observation, (T + 1, N, A).
    ///
    /// `None` without masks.
    #[must_use]
    pub fn masks(&self) -> Option<ArrayView3<'_, u8>> {
        self.columns.steps.masks.map(|[masks, _]| self.array3(masks))
    }

    /// Returns the values of the last observations, (N).
    #[must_use]
    pub fn last_values(&self) -> &[f32] {
        self.slab.get(self.columns.last_values)
    }

    /// Returns the values of step `t`, of a policy of action values.
    ///
    /// # Panics
    /// If there is no such step.
    #[must_use]
    pub fn acted_values(&self, t: usize) -> ActedValues<'_> {
        let RolloutShape { n_steps, n_envs, .. } = self.shape;
        let [taken, values] = [self.columns.log_probs, self.columns.values].map(|column| self.slab.get(column));
        let next = if t + 1 < n_steps { &values[(t + 1) * n_envs..] } else { self.last_values() };
        ActedValues { taken: &taken[t * n_envs..][..n_envs], next: &next[..n_envs] }
    }

    /// Returns the index of the environment of each column, (N).
    #[must_use]
    pub fn env_idx(&self) -> &[u32] {
        self.slab.get(self.columns.env_idx)
    }

    /// Returns the environment of each column, (N), for writing.
    pub fn env_idx_mut(&mut self) -> &mut [u32] {
        self.slab.get_mut(self.columns.env_idx)
    }

    /// Returns the version of the policy that acted in each column, (N).
    #[must_use]
    pub fn policy_version(&self) -> &[u64] {
        self.slab.get(self.columns.policy_version)
    }

    /// Returns the policy version of each column, (N), for writing.
    pub fn policy_version_mut(&mut self) -> &mut [u64] {
        self.slab.get_mut(self.columns.policy_version)
    }

    /// Returns the states of the policy before step 0, (N, S).
    #[must_use]
    pub fn first_states(&self) -> &[f32] {
        self.slab.get(self.columns.first_states)
    }

    /// Begins to copy the rollout to its device.
    ///
    /// Does nothing unless the memory is [`Streamed`](crate::Streamed). A later
    /// [`DeviceRollout::upload`](crate::DeviceRollout::upload) takes this copy, unless the rollout is written before.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn send(&mut self) -> Result<(), Error> {
        Ok(self.slab.send()?)
    }

    /// True if a policy of another version acted in a column.
    #[must_use]
    pub fn is_stale(&self, latest: u64) -> bool {
        self.policy_version().iter().any(|&version| version != latest)
    }

    /// Records the episodes that step `t`, the latest one, has ended.
    ///
    /// Called after each step of a [`VecEnv`](rl_envs::VecEnv), which resets an environment within the step that ends its
    /// episode. Final observations and masks are read from the scratch, where the environments have written them; the next
    /// step overwrites it.
    ///
    /// # Panics
    /// If there is no such step, or the policy has a state: that is [`Rollout::push_final`]'s.
    pub fn record_ends(&mut self, t: usize) {
        assert_eq!(self.shape.state_len, 0, "the states at the ends are not known");
        let d = self.shape.obs_len;
        let Steps { obs: _, actions: _, rewards: _, terminated, truncated, final_obs, masks } = self.columns.steps;
        let flags = |span: Span<u8>| &self.slab.get(span)[t * span.width..][..span.width];
        let (terminated, truncated) = (flags(terminated), flags(truncated));
        let obs: ObsSlice<'_> = visit!(Obs, final_obs, |span| self.slab.get(span));
        let masks = masks.map(|[_, masks]| (self.slab.get::<u8>(masks), masks.width / self.shape.n_envs));
        for n in (0..self.shape.n_envs).filter(|&n| (terminated[n] | truncated[n]) != 0) {
            self.final_obs.extend(obs.row(n, d));
            if let Some((masks, a)) = masks {
                self.final_masks.extend_from_slice(&masks[n * a..][..a]);
            }
            self.final_at.push((t, n));
        }
    }

    /// Records the last observation of an episode of column `n` that step `t` ended.
    ///
    /// `mask` is empty without masks. `state` is the policy's after it has acted in step `t`, empty without memory.
    ///
    /// # Panics
    /// If there is no such step or column, or if type or length of `obs`, or the length of `mask` or `state`, differ from the
    /// rollout's.
    pub fn push_final(&mut self, t: usize, n: usize, obs: ObsSlice<'_>, mask: &[u8], state: &[f32]) {
        let RolloutShape { n_steps, n_envs, obs_len, .. } = self.shape;
        assert!(t < n_steps && n < n_envs, "step {t} of column {n}, of {n_steps} steps of {n_envs} columns");
        assert_eq!(obs.len(), obs_len, "a final observation of another length");
        let mask_len = self.columns.steps.masks.map_or(0, |[_, masks]| masks.width / n_envs);
        assert_eq!(mask.len(), mask_len, "a final mask of another length");
        self.final_obs.extend(obs);
        self.final_masks.extend_from_slice(mask);
        self.push_end(t, n, state);
    }

    fn push_end(&mut self, t: usize, n: usize, state: &[f32]) {
        assert_eq!(state.len(), self.shape.state_len, "a final state of another length");
        self.final_states.extend_from_slice(state);
        self.final_at.push((t, n));
    }

    /// Records that step `t` ended an episode of column `n`.
    ///
    /// `state` is as in [`Rollout::push_final`]. The final observation is row t + 1, so the environment must not have been reset
    /// yet. After a step of a
    /// [`VecEnv`](rl_envs::VecEnv), which resets within the step, that row is the next episode's first observation: use
    /// [`Rollout::record_ends`].
    ///
    /// # Panics
    /// If there is no such step, or the length of `state` differs from the rollout's.
    pub fn end(&mut self, t: usize, n: usize, state: &[f32]) {
        let (d, n_envs, Steps { obs, masks, .. }) = (self.shape.obs_len, self.shape.n_envs, self.columns.steps);
        let obs: ObsSlice<'_> = visit!(Obs, obs, |span| self.slab.get(span));
        self.final_obs.extend(obs.row((t + 1) * n_envs + n, d));
        if let Some([masks, _]) = masks {
            let a = masks.width / n_envs;
            self.final_masks.extend_from_slice(&self.slab.get(masks)[(t + 1) * masks.width + n * a..][..a]);
        }
        self.push_end(t, n, state);
    }

    /// Position (t, n) of each episode's end, in the order of final observations.
    #[must_use]
    pub fn final_at(&self) -> &[(usize, usize)] {
        &self.final_at
    }

    /// Returns the final observations of all ended episodes, D elements each.
    #[must_use]
    pub fn final_obs(&self) -> ObsSlice<'_> {
        self.final_obs.as_slice()
    }

    /// Returns the legal actions at the final observations; empty without masks.
    #[must_use]
    pub fn final_masks(&self) -> &[u8] {
        &self.final_masks
    }

    /// Returns the states of the policy at the final observations, S elements each.
    #[must_use]
    pub fn final_states(&self) -> &[f32] {
        &self.final_states
    }

    /// Writes the value of the observation after each step, (T, N).
    ///
    /// Where an episode ended, that is the final observation's value, never that of the next episode's first one.
    ///
    /// # Panics
    /// If the number of `final_values` differs from that of final observations, or `next_values` is not (T, N).
    pub fn next_values(&self, final_values: &[f32], next_values: ArrayViewMut2<'_, f32>) {
        self.next_values_of(self.values(), self.last_values().into(), final_values, next_values);
    }

    /// Writes [`Rollout::next_values`] for the values of another policy.
    ///
    /// `values` are (T, N), `last_values` of the observations after the last step are (N).
    ///
    /// # Panics
    /// If a shape or a number of values differs.
    pub fn next_values_of(
        &self,
        values: ArrayView2<'_, f32>,
        last_values: ArrayView1<'_, f32>,
        final_values: &[f32],
        mut next_values: ArrayViewMut2<'_, f32>,
    ) {
        assert_eq!(final_values.len(), self.final_at.len(), "a value for each final observation");
        let t_last = self.shape.n_steps - 1;
        next_values.slice_mut(s![..t_last, ..]).assign(&values.slice(s![1.., ..]));
        next_values.row_mut(t_last).assign(&last_values);
        for (&(t, n), &value) in self.final_at.iter().zip(final_values) {
            next_values[[t, n]] = value;
        }
    }

    /// Copies column `from_n` of another rollout into column `n`, with episodes' ends.
    ///
    /// # Panics
    /// If a column is out of range, or the rollouts differ in steps or kinds.
    pub fn copy_column(&mut self, n: usize, from: &Self, from_n: usize) {
        fn copy<T: bytemuck::Pod>(
            to: &mut Slab,
            from: &Slab,
            [to_span, from_span]: [Span<T>; 2],
            [n, from_n]: [usize; 2],
            of: [usize; 2],
        ) {
            let (width, from_width) = (to_span.width, from_span.width);
            let len = width / of[0];
            assert_eq!((to_span.rows, len), (from_span.rows, from_width / of[1]), "columns of one shape");
            let (to, from) = (to.get_mut::<T>(to_span), from.get::<T>(from_span));
            for (to, from) in to.chunks_exact_mut(width.max(1)).zip(from.chunks_exact(from_width.max(1))) {
                to[n * len..][..len].copy_from_slice(&from[from_n * len..][..len]);
            }
        }
        let (at, of) = ([n, from_n], [self.shape.n_envs, from.shape.n_envs]);
        let pairs = self.columns.steps.zip(from.columns.steps).expect("columns of one kind");
        let _ = visit!(Steps, pairs, |(to, other)| copy(&mut self.slab, &from.slab, [to, other], at, of));
        let (columns, others) = (self.columns, from.columns);
        for both in [
            [columns.log_probs, others.log_probs],
            [columns.values, others.values],
            [columns.last_values, others.last_values],
            [columns.first_states, others.first_states],
        ] {
            copy::<f32>(&mut self.slab, &from.slab, both, at, of);
        }
        copy::<u32>(&mut self.slab, &from.slab, [columns.env_idx, others.env_idx], at, of);
        copy::<u64>(&mut self.slab, &from.slab, [columns.policy_version, others.policy_version], at, of);
        let (d, a) = (self.shape.obs_len, columns.steps.masks.map_or(0, |[_, masks]| masks.width / of[0]));
        for (i, &(t, _)) in from.final_at.iter().enumerate().filter(|(_, (_, column))| *column == from_n) {
            let state = &from.final_states[i * from.shape.state_len..][..from.shape.state_len];
            self.push_final(t, n, from.final_obs().row(i, d), &from.final_masks[i * a..(i + 1) * a], state);
        }
    }

    /// Returns the columns that targets are computed from.
    #[must_use]
    pub fn outcomes<'a>(&'a self, next_values: ArrayView2<'a, f32>) -> returns::Outcomes<'a> {
        returns::Outcomes { rewards: self.rewards(), terminated: self.terminated(), truncated: self.truncated(), next_values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pages;
    use ndarray::{Array2, array};
    use rl_envs::{Action, ActionKind, ActionSliceMut, ActionSpace, Dtype, Env, Rng, Space, Step, SyncVecEnv, VecEnv};

    const SHAPE: RolloutShape = RolloutShape {
        n_steps: 3,
        n_envs: 2,
        obs_len: 1,
        obs: Dtype::F32,
        actions: ActionKind::Discrete { masked: None },
        state_len: 0,
    };

    #[test]
    fn the_value_after_an_end_is_that_of_the_final_observation() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let mut columns = rollout.columns();
        columns.values.assign(&array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        columns.last_values.assign(&array![[7.0, 8.0]]);
        rollout.push_final(0, 1, ObsSlice::F32(&[0.5]), &[], &[]);
        rollout.push_final(2, 0, ObsSlice::F32(&[0.25]), &[], &[]);
        let mut next_values = Array2::zeros((3, 2));
        rollout.next_values(&[40.0, 70.0], next_values.view_mut());
        assert_eq!(next_values, array![[3.0, 40.0], [5.0, 6.0], [70.0, 8.0]]);
        assert!(matches!(rollout.final_obs(), ObsSlice::F32([0.5, 0.25])));
    }

    #[test]
    fn the_values_of_a_step_are_those_of_its_actions_and_of_the_observations_after_it() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let mut columns = rollout.columns();
        columns.log_probs.assign(&array![[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]);
        columns.values.assign(&array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        columns.last_values.assign(&array![[7.0, 8.0]]);
        for (t, taken, next) in [(0, [0.1, 0.2], [3.0, 4.0]), (1, [0.3, 0.4], [5.0, 6.0]), (2, [0.5, 0.6], [7.0, 8.0])] {
            let values = rollout.acted_values(t);
            assert_eq!((values.taken, values.next), (&taken[..], &next[..]));
            let second = values.env(1);
            assert_eq!((second.taken, second.next), (&taken[1..], &next[1..]));
        }
    }

    /// Counts its steps until action 0; action 1 is illegal on odd counts.
    #[derive(Clone, Default)]
    struct Count(u8);

    impl Env for Count {
        type Obs = u8;
        type State = ();

        fn observation_space(&self) -> Space {
            Space::bytes(&[1], 255, 1.0)
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 2, masked: true }
        }

        fn reset(&mut self, _: &mut Rng, obs: &mut [u8]) {
            self.0 = 0;
            obs[0] = 0;
        }

        fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [u8]) -> Step {
            self.0 += 1;
            obs[0] = self.0;
            Step { reward: 1.0, terminated: action.discrete() == 0, truncated: false }
        }

        fn mask(&self, mask: &mut [u8]) {
            mask.copy_from_slice(&[1, 1 - self.0 % 2]);
        }

        fn state(&self) -> Option<()> {
            None
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    #[test]
    fn ends_after_a_reset_in_the_same_step_have_the_observations_before_it() {
        let mut envs = SyncVecEnv::new(2, Count::default());
        let mut rollout = Rollout::new(RolloutShape::new(4, 2, envs.observation_space(), envs.action_space())).expect("fits");
        let mut columns = rollout.columns();
        let (obs, masks) = columns.start(0);
        envs.reset_into(0, obs, masks).expect("fits");
        for (t, chosen) in [[1, 1], [1, 0], [0, 1], [1, 0]].into_iter().enumerate() {
            let mut columns = rollout.columns();
            let step = columns.step(t);
            let ActionSliceMut::Discrete(actions) = step.actions else { panic!("discrete") };
            actions.copy_from_slice(&chosen);
            envs.step_into(columns.step(t)).expect("actions of the space");
            rollout.record_ends(t);
        }
        assert_eq!(rollout.final_at(), [(1, 1), (2, 0), (3, 1)]);
        assert_eq!(rollout.final_obs(), ObsSlice::U8(&[2, 3, 2]));
        assert_eq!(rollout.final_masks(), [1, 1, 1, 0, 1, 1]);
        // Row t + 1 is the next episode's.
        let at = (1 + 1) * 2 + 1;
        assert_eq!(rollout.obs_rows(at..at + 1), ObsSlice::U8(&[0]));
    }

    #[test]
    fn a_copied_column_brings_its_ends_along() {
        let (mut to, mut from) = (Rollout::new(SHAPE).expect("fits"), Rollout::new(SHAPE).expect("fits"));
        let mut columns = from.columns();
        columns.steps.rewards.assign(&array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        columns.steps.truncated[[1, 1]] = 1;
        from.env_idx_mut()[1] = 7;
        from.policy_version_mut()[1] = 9;
        from.push_final(0, 0, ObsSlice::F32(&[0.5]), &[], &[]);
        from.push_final(1, 1, ObsSlice::F32(&[0.25]), &[], &[]);
        to.copy_column(0, &from, 1);
        assert_eq!(to.rewards(), array![[2.0, 0.0], [4.0, 0.0], [6.0, 0.0]]);
        assert_eq!((to.truncated()[[1, 0]], to.env_idx()[0], to.policy_version()[0]), (1, 7, 9));
        assert_eq!(to.final_at(), [(1, 0)]);
        assert!(matches!(to.final_obs(), ObsSlice::F32([0.25])));
    }

    #[test]
    fn columns_are_those_of_the_whole() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let (mut a, mut b) = rollout.columns().split_at(1);
        a.steps.rewards[[2, 0]] = 1.0;
        b.steps.rewards[[2, 0]] = 2.0;
        b.last_values[[0, 0]] = 3.0;
        let (Obs::F32(a), Obs::F32(b)) = (a.step(2).obs, b.step(2).obs) else { panic!("f32") };
        (a[0], b[0]) = (4.0, 5.0);
        assert_eq!(rollout.rewards().row(2), array![1.0, 2.0]);
        assert_eq!(rollout.last_values(), [0.0, 3.0]);
        assert!(matches!(rollout.obs_rows(6..8), ObsSlice::F32([4.0, 5.0])));
    }

    #[test]
    fn a_cleared_rollout_has_no_ends() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        rollout.push_final(0, 0, ObsSlice::F32(&[9.0]), &[], &[]);
        rollout.clear();
        assert!(rollout.final_at().is_empty());
        assert!(matches!(rollout.final_obs(), ObsSlice::F32([])));
    }

    #[test]
    fn an_end_of_another_rollout_is_refused() {
        let refused = |t, n, mask: &[u8]| {
            let mut rollout = Rollout::new(SHAPE).expect("fits");
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rollout.push_final(t, n, ObsSlice::F32(&[9.0]), mask, &[])))
                .is_err()
        };
        assert_eq!([refused(2, 1, &[]), refused(3, 1, &[]), refused(2, 2, &[]), refused(2, 1, &[1])], [false, true, true, true]);
    }

    #[test]
    fn observations_are_read_by_row() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let Obs::F32(mut obs) = rollout.columns().steps.obs else { panic!("f32") };
        obs[[1, 1]] = 3.0;
        obs[[3, 0]] = 6.0;
        assert!(matches!(rollout.obs_rows(3..4), ObsSlice::F32([3.0])));
        assert!(matches!(rollout.obs_rows(6..8), ObsSlice::F32([6.0, 0.0])));
    }

    #[test]
    fn impossible_sizes_are_refused_without_allocating() {
        assert!(matches!(Rollout::new(RolloutShape { n_envs: 0, ..SHAPE }), Err(Error::Empty("environment"))));
        for n_steps in [1 << 60, usize::MAX] {
            assert!(matches!(Rollout::new(RolloutShape { n_steps, ..SHAPE }), Err(Error::TooLarge { .. })));
        }
    }

    #[test]
    fn a_rollout_is_one_block_of_any_memory() {
        let shape = RolloutShape { n_envs: 33, obs_len: 5, actions: ActionKind::Discrete { masked: Some(3) }, ..SHAPE };
        let pages = Arc::new(Pages::default());
        let memory: Arc<dyn Memory> = pages.clone();
        let mut rollout = Rollout::new_in(shape, &memory).expect("fits");
        let mut other = Rollout::new(shape).expect("fits");
        for rollout in [&mut rollout, &mut other] {
            let mut columns = rollout.columns();
            for t in 0..3 {
                let step = columns.step(t);
                step.rewards.fill(t as f32);
                step.truncated[32] = 1;
                step.masks.expect("masked")[0].fill(7);
            }
            rollout.push_final(2, 32, ObsSlice::F32(&[0.5; 5]), &[1, 0, 1], &[]);
        }
        let copy = rollout.clone();
        for rollout in [&rollout, &copy] {
            assert_eq!((rollout.rewards(), rollout.truncated()), (other.rewards(), other.truncated()));
            assert_eq!(rollout.masks(), other.masks());
            let addresses = [
                rollout.rewards().as_ptr().addr(),
                rollout.truncated().as_ptr().addr(),
                rollout.policy_version().as_ptr().addr(),
            ];
            assert!(addresses.iter().all(|address| address.is_multiple_of(64)), "{addresses:?}");
            let within = addresses.iter().all(|address| address - addresses[0] < shape.bytes() as usize);
            assert!(within, "{addresses:?}");
        }
        assert_eq!(pages.counts(), (2, 2), "one each");
        drop((rollout, copy));
        assert_eq!(pages.counts(), (2, 0));
    }

    #[test]
    fn a_rollout_takes_the_bytes_of_its_columns() {
        // T = 128, N = 8, D = 4: observations 129 * 8 * 16, actions, rewards, log-probabilities and values 128 * 8 * 4 each, two
        // flags 128 * 8 each, final observations 8 * 16, last values and indices 32 each, rounded up to 64, versions 64.
        let shape = RolloutShape { n_steps: 128, n_envs: 8, obs_len: 4, ..SHAPE };
        assert_eq!(shape.bytes(), 16512 + 4 * 4096 + 2 * 1024 + 128 + 64 + 64 + 64);
    }
}
