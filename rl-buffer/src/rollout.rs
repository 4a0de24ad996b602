//! Rollouts: T steps of N environments, filled in place.

use ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, ArrayViewMut3, Axis, s};

use rl_envs::{ActionKind, Actions, Dtype, Obs, ObsRows, ObsSlice};

use crate::Error;

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
}

/// Observations of a rollout, (T + 1, N, D).
///
/// Step t acts on row t; row T follows the last step.
pub type ObsBuffer = Obs<Array3<f32>, Array3<u8>>;

/// Actions (T, N) or (T, N, A) of the policy, before they are clipped.
pub type ActionBuffer = Actions<Array2<u32>, Array3<f32>>;

/// Columns of observations, (T + 1, n, D).
pub type ObsColumns<'a> = Obs<ArrayViewMut3<'a, f32>, ArrayViewMut3<'a, u8>>;

/// Columns of actions, (T, n) or (T, n, A).
pub type ActionColumns<'a> = Actions<ArrayViewMut2<'a, u32>, ArrayViewMut3<'a, f32>>;

/// T steps of N environments.
///
/// A column is a stretch of one environment's trajectory.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// Observations, (T + 1, N, D).
    pub obs: ObsBuffer,
    /// Actions, (T, N) or (T, N, A).
    pub actions: ActionBuffer,
    /// Log-probabilities of the actions under the acting policy, (T, N).
    pub log_probs: Array2<f32>,
    /// Values of the observations under the acting policy, (T, N).
    pub values: Array2<f32>,
    /// Rewards, (T, N).
    pub rewards: Array2<f32>,
    /// 1 where a step ended the task, (T, N).
    pub terminated: Array2<u8>,
    /// 1 where a step was cut off, (T, N).
    pub truncated: Array2<u8>,
    /// Legal actions at each observation, (T + 1, N, A), if there are masks.
    pub masks: Option<Array3<u8>>,
    /// Values of the observations after the last step, (N).
    pub last_values: Array1<f32>,
    /// Index of the environment of each column, (N).
    pub env_idx: Array1<u32>,
    /// True if every column continues the same environment's trajectory.
    ///
    /// False under first-come batching.
    pub contiguous: bool,
    /// True if an episode was dropped between the previous rollout and this one.
    ///
    /// Waiting steps of n-step returns and stacked frames have no continuation then.
    pub cut_before: bool,
    /// Version of the acting policy, (N).
    pub policy_version: Array1<u64>,
    /// Position (t, n) of each episode's end, in the order of `final_obs`.
    final_at: Vec<(usize, usize)>,
    /// Last observations of these episodes.
    final_obs: ObsRows,
    /// Legal actions at the last observations, A bytes each; empty without masks.
    final_masks: Vec<u8>,
    shape: RolloutShape,
}

/// Neighbouring columns of a rollout, n of N, for one thread to fill.
#[derive(Debug)]
pub struct RolloutColumns<'a> {
    /// Observations, (T + 1, n, D).
    pub obs: ObsColumns<'a>,
    /// Actions.
    pub actions: ActionColumns<'a>,
    /// (T, n)
    pub log_probs: ArrayViewMut2<'a, f32>,
    /// (T, n)
    pub values: ArrayViewMut2<'a, f32>,
    /// (T, n)
    pub rewards: ArrayViewMut2<'a, f32>,
    /// (T, n)
    pub terminated: ArrayViewMut2<'a, u8>,
    /// (T, n)
    pub truncated: ArrayViewMut2<'a, u8>,
    /// (T + 1, n, A), if there are masks.
    pub masks: Option<ArrayViewMut3<'a, u8>>,
    /// (n)
    pub last_values: ArrayViewMut1<'a, f32>,
}

impl RolloutColumns<'_> {
    /// Splits into the first `n` columns and the others.
    #[must_use]
    pub fn split_at(self, n: usize) -> (Self, Self) {
        let columns = Axis(1);
        let (obs_a, obs_b) = self.obs.split_at(columns, n);
        let (actions_a, actions_b) = self.actions.split_at(columns, n);
        let (log_probs_a, log_probs_b) = self.log_probs.split_at(columns, n);
        let (values_a, values_b) = self.values.split_at(columns, n);
        let (rewards_a, rewards_b) = self.rewards.split_at(columns, n);
        let (terminated_a, terminated_b) = self.terminated.split_at(columns, n);
        let (truncated_a, truncated_b) = self.truncated.split_at(columns, n);
        let (masks_a, masks_b) = self.masks.map(|masks| masks.split_at(columns, n)).unzip();
        let (last_a, last_b) = self.last_values.split_at(Axis(0), n);
        (
            Self {
                obs: obs_a,
                actions: actions_a,
                log_probs: log_probs_a,
                values: values_a,
                rewards: rewards_a,
                terminated: terminated_a,
                truncated: truncated_a,
                masks: masks_a,
                last_values: last_a,
            },
            Self {
                obs: obs_b,
                actions: actions_b,
                log_probs: log_probs_b,
                values: values_b,
                rewards: rewards_b,
                terminated: terminated_b,
                truncated: truncated_b,
                masks: masks_b,
                last_values: last_b,
            },
        )
    }
}

impl RolloutShape {
    /// Bytes of a rollout, rounded up; final observations do not count.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        let action_len = match self.actions {
            ActionKind::Discrete { masked } => masked.unwrap_or(1),
            ActionKind::Continuous { len } => len,
        };
        let per_step = self.obs_len as u128 * self.obs.size() as u128 + 4 * action_len as u128 + 14;
        (self.n_steps as u128 + 1).saturating_mul(self.n_envs as u128).saturating_mul(per_step)
    }

    /// Rejects `n` rollouts of this shape if they do not fit into memory together.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if they do not fit.
    pub fn check_memory(&self, n: usize) -> Result<(), Error> {
        crate::memory::check(n, self.bytes(), 0)
    }
}

impl Rollout {
    /// Creates an empty rollout, all zeros, for environments 0 to N - 1.
    ///
    /// # Errors
    /// [`Error::Empty`] if a dimension is 0, [`Error::TooLarge`] if it does not fit into memory.
    pub fn new(shape: RolloutShape) -> Result<Self, Error> {
        let RolloutShape { n_steps, n_envs, obs_len, .. } = shape;
        for (size, what) in [(n_steps, "step"), (n_envs, "environment"), (obs_len, "element of an observation")] {
            if size == 0 {
                return Err(Error::Empty(what));
            }
        }
        let bytes = shape.bytes();
        // A trial allocation: allocating arrays would abort the program instead of failing.
        let fits = usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
        if !fits {
            return Err(Error::TooLarge { n_steps, n_envs, bytes });
        }
        let steps = (n_steps, n_envs);
        Ok(Self {
            obs: ObsBuffer::zeros(shape.obs, (n_steps + 1, n_envs, obs_len)),
            actions: match shape.actions {
                ActionKind::Discrete { .. } => ActionBuffer::Discrete(Array2::zeros(steps)),
                ActionKind::Continuous { len } => ActionBuffer::Continuous(Array3::zeros((n_steps, n_envs, len))),
            },
            log_probs: Array2::zeros(steps),
            values: Array2::zeros(steps),
            rewards: Array2::zeros(steps),
            terminated: Array2::zeros(steps),
            truncated: Array2::zeros(steps),
            masks: match shape.actions {
                ActionKind::Discrete { masked: Some(a) } => Some(Array3::zeros((n_steps + 1, n_envs, a))),
                _ => None,
            },
            last_values: Array1::zeros(n_envs),
            env_idx: (0..n_envs as u32).collect(),
            contiguous: true,
            cut_before: false,
            policy_version: Array1::zeros(n_envs),
            final_at: Vec::new(),
            final_obs: ObsRows::zeros(shape.obs, 0),
            final_masks: Vec::new(),
            shape,
        })
    }

    /// Dimensions of the rollout.
    #[must_use]
    pub fn shape(&self) -> RolloutShape {
        self.shape
    }

    /// Borrows all columns, to be split and filled by several threads.
    pub fn columns(&mut self) -> RolloutColumns<'_> {
        RolloutColumns {
            obs: self.obs.view_mut(),
            actions: self.actions.view_mut(),
            log_probs: self.log_probs.view_mut(),
            values: self.values.view_mut(),
            rewards: self.rewards.view_mut(),
            terminated: self.terminated.view_mut(),
            truncated: self.truncated.view_mut(),
            masks: self.masks.as_mut().map(|masks| masks.view_mut()),
            last_values: self.last_values.view_mut(),
        }
    }

    /// Removes the final observations, so that the rollout can be filled again.
    pub fn clear(&mut self) {
        self.cut_before = false;
        self.final_at.clear();
        self.final_masks.clear();
        self.final_obs.clear();
    }

    /// Returns the observations of `rows`, numbered from (0, 0) to (T, N - 1).
    #[must_use]
    pub fn obs_rows(&self, rows: std::ops::Range<usize>) -> ObsSlice<'_> {
        self.obs.view().to_slice().rows(rows, self.shape.obs_len)
    }

    /// Records that step `t` ended an episode of column `n` with `obs` and `mask`.
    ///
    /// `mask` is empty without masks.
    ///
    /// # Panics
    /// If type or length of `obs` differ from the rollout's.
    pub fn push_final(&mut self, t: usize, n: usize, obs: ObsSlice<'_>, mask: &[u8]) {
        assert_eq!(obs.len(), self.shape.obs_len, "a final observation of another length");
        self.final_obs.extend(obs);
        self.final_masks.extend_from_slice(mask);
        self.final_at.push((t, n));
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

    /// Writes the value of the observation after each step, (T, N).
    ///
    /// Where an episode ended, that is the final observation's value, never that of the next episode's first one.
    ///
    /// # Panics
    /// If the number of `final_values` differs from that of final observations, or `next_values` is not (T, N).
    pub fn next_values(&self, final_values: &[f32], next_values: ArrayViewMut2<'_, f32>) {
        self.next_values_of(self.values.view(), self.last_values.view(), final_values, next_values);
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
        let columns = Axis(1);
        let both = self.obs.index_axis_mut(columns, n).zip(from.obs.index_axis(columns, from_n));
        let both = both.expect("observations of one element type");
        both.either(|(mut to, from)| to.assign(&from), |(mut to, from)| to.assign(&from));
        let both = self.actions.index_axis_mut(columns, n).zip(from.actions.index_axis(columns, from_n));
        let both = both.expect("actions of one kind");
        both.either(|(mut to, from)| to.assign(&from), |(mut to, from)| to.assign(&from));
        for (to, from) in
            [(&mut self.log_probs, &from.log_probs), (&mut self.values, &from.values), (&mut self.rewards, &from.rewards)]
        {
            to.column_mut(n).assign(&from.column(from_n));
        }
        for (to, from) in [(&mut self.terminated, &from.terminated), (&mut self.truncated, &from.truncated)] {
            to.column_mut(n).assign(&from.column(from_n));
        }
        let mut mask_len = 0;
        if let (Some(to), Some(from)) = (&mut self.masks, &from.masks) {
            to.index_axis_mut(Axis(1), n).assign(&from.index_axis(Axis(1), from_n));
            mask_len = from.len_of(Axis(2));
        }
        self.last_values[n] = from.last_values[from_n];
        self.env_idx[n] = from.env_idx[from_n];
        self.policy_version[n] = from.policy_version[from_n];
        let d = self.shape.obs_len;
        for (i, &(t, _)) in from.final_at.iter().enumerate().filter(|(_, (_, column))| *column == from_n) {
            self.push_final(t, n, from.final_obs().row(i, d), &from.final_masks[i * mask_len..(i + 1) * mask_len]);
        }
    }

    /// Returns the columns that targets are computed from.
    #[must_use]
    pub fn steps<'a>(&'a self, next_values: ArrayView2<'a, f32>) -> crate::returns::Steps<'a> {
        crate::returns::Steps {
            rewards: self.rewards.view(),
            terminated: self.terminated.view(),
            truncated: self.truncated.view(),
            next_values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    const SHAPE: RolloutShape =
        RolloutShape { n_steps: 3, n_envs: 2, obs_len: 1, obs: Dtype::F32, actions: ActionKind::Discrete { masked: None } };

    #[test]
    fn the_value_after_an_end_is_that_of_the_final_observation() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        rollout.values = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        rollout.last_values = array![7.0, 8.0];
        rollout.push_final(0, 1, ObsSlice::F32(&[0.5]), &[]);
        rollout.push_final(2, 0, ObsSlice::F32(&[0.25]), &[]);
        let mut next_values = Array2::zeros((3, 2));
        rollout.next_values(&[40.0, 70.0], next_values.view_mut());
        assert_eq!(next_values, array![[3.0, 40.0], [5.0, 6.0], [70.0, 8.0]]);
        assert!(matches!(rollout.final_obs(), ObsSlice::F32([0.5, 0.25])));
    }

    #[test]
    fn a_copied_column_brings_its_ends_along() {
        let (mut to, mut from) = (Rollout::new(SHAPE).expect("fits"), Rollout::new(SHAPE).expect("fits"));
        from.rewards = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        from.truncated[[1, 1]] = 1;
        from.env_idx[1] = 7;
        from.policy_version[1] = 9;
        from.push_final(0, 0, ObsSlice::F32(&[0.5]), &[]);
        from.push_final(1, 1, ObsSlice::F32(&[0.25]), &[]);
        to.copy_column(0, &from, 1);
        assert_eq!(to.rewards, array![[2.0, 0.0], [4.0, 0.0], [6.0, 0.0]]);
        assert_eq!((to.truncated[[1, 0]], to.env_idx[0], to.policy_version[0]), (1, 7, 9));
        assert_eq!(to.final_at(), [(1, 0)]);
        assert!(matches!(to.final_obs(), ObsSlice::F32([0.25])));
    }

    #[test]
    fn columns_are_those_of_the_whole() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let (mut a, mut b) = rollout.columns().split_at(1);
        a.rewards[[2, 0]] = 1.0;
        b.rewards[[2, 0]] = 2.0;
        b.last_values[0] = 3.0;
        let (ObsColumns::F32(a), ObsColumns::F32(b)) = (&mut a.obs, &mut b.obs) else { panic!("f32") };
        (a[[3, 0, 0]], b[[3, 0, 0]]) = (4.0, 5.0);
        assert_eq!(rollout.rewards.row(2), array![1.0, 2.0]);
        assert_eq!(rollout.last_values, array![0.0, 3.0]);
        assert!(matches!(rollout.obs_rows(6..8), ObsSlice::F32([4.0, 5.0])));
    }

    #[test]
    fn a_cleared_rollout_has_no_ends() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        rollout.push_final(0, 0, ObsSlice::F32(&[9.0]), &[]);
        rollout.clear();
        assert!(rollout.final_at().is_empty());
        assert!(matches!(rollout.final_obs(), ObsSlice::F32([])));
    }

    #[test]
    fn observations_are_read_by_row() {
        let mut rollout = Rollout::new(SHAPE).expect("fits");
        let ObsBuffer::F32(obs) = &mut rollout.obs else { panic!("f32") };
        obs[[1, 1, 0]] = 3.0;
        obs[[3, 0, 0]] = 6.0;
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
}
