//! Uniform replay: a ring of transitions, drawn with equal probability.
//!
//! Source: Lin, "Self-Improving Reactive Agents Based On Reinforcement Learning, Planning and Teaching", 1992.
//!
//! A transition is one row of 32-bit words, `obs, next_obs, action, reward, discount, next_mask`, so drawing it costs one or two
//! cache lines. Byte observations are in separate rows, `obs, next_obs`. A transition takes
//!
//! | | f32 observations | bytes |
//! |---|---|---|
//! | observations | 8 D | 2 D |
//! | action | 4, or 4 A of a continuous one | the same |
//! | reward and discount | 8 | 8 |
//! | mask | A rounded up to a multiple of 4 | the same |
//!
//! Observations that are stacks of k frames of F bytes each, which are kept once (`frames.rs`), take 8 k + 9/8 F + 8 in place of
//! 2 D.

pub(crate) mod acted;
pub(crate) mod batch;
pub(crate) mod device;
mod draw;
pub(crate) mod exchange;
pub(crate) mod frames;
pub(crate) mod prioritized;
mod row;
pub(crate) mod shard;
pub(crate) mod snapshot;
pub(crate) mod sum_tree;
pub(crate) mod transition;

use std::ops::Range;
use std::sync::Arc;

use crate::memory::check_against;
use crate::replay::frames::Frames;
use crate::replay::row::{Row, store, store_mask, with_obs_len};
use crate::replay::shard::Shard;
use crate::replay::transition::{Windows, assert_shape, next};
use crate::rollout::returns::{discount, goes_on, has_future};
use crate::slab::{Layout, Memory, Slab, Span};
use crate::{ActionSlice, Batch, Error, ObsSlice, StepSlices, TransitionShape};

/// A ring of transitions, the newest of which replace the oldest.
///
/// ```
/// use rl_buffer::{Batch, ReplayBuffer, TransitionShape};
/// use rl_envs::{Purpose, RandomActions, Rng, Steps, SyncVecEnv, VecEnv, cartpole::CartPole};
///
/// let mut envs = SyncVecEnv::new(4, CartPole::default());
/// let shape = TransitionShape::new(4, envs.observation_space(), envs.action_space(), 1, 0.99);
/// let (mut replay, mut batch) = (ReplayBuffer::new(shape, 10_000)?, Batch::new(&shape, 32)?);
/// let mut random = RandomActions::new(7, 4, envs.action_space());
/// let mut steps = Steps::new(&envs);
/// envs.reset(7, &mut steps)?;
/// for _ in 0..64 {
///     let obs = steps.obs.clone(); // the policy acts on these
///     random.fill(steps.actions.as_mut_slice());
///     envs.step(&mut steps)?;
///     replay.push(obs.as_slice(), &steps.view())?;
/// }
/// replay.sample_with(&mut Rng::new(7, 0, 0, Purpose::Replay), &mut batch)?;
/// assert_eq!(batch.columns().rewards, [1.0; 32]);
///
/// let mut bytes = Vec::new();
/// replay.save(&mut bytes)?;
/// let mut again = ReplayBuffer::new(shape, 10_000)?;
/// again.restore(&mut &bytes[..])?;
/// assert_eq!(again.len(), 256);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReplayBuffer {
    shape: TransitionShape,
    capacity: usize,
    row: Row,
    shard: Shard,
    /// Indices of the rows that are stored here: all, unless other shards have some.
    own: Range<usize>,
    slab: Slab,
    /// Rows of words, (C of this shard, `row.len`).
    word_rows: Span<u32>,
    /// Rows of byte observations, (C of this shard, 2 D).
    byte_rows: Span<u8>,
    /// Total number of transitions added.
    pub(crate) added: u64,
    /// Waiting steps, if n is more than 1.
    pub(crate) windows: Option<Windows>,
    /// Frames, if observations are stacked.
    pub(crate) frames: Option<Frames>,
    /// Number of the first transition held, where frames may run out.
    pub(crate) oldest: u64,
}

/// Indices in a ring of the items with these numbers, in two ranges.
///
/// The ranges cover at most the capacity.
pub(crate) fn stretches(numbers: Range<u64>, capacity: usize) -> [Range<usize>; 2] {
    let n = (numbers.end - numbers.start.min(numbers.end)).min(capacity as u64) as usize;
    let start = (numbers.start % capacity as u64) as usize;
    let end = (start + n).min(capacity);
    [start..end, 0..start + n - end]
}

impl ReplayBuffer {
    /// Creates an empty buffer for `capacity` transitions, with all of its memory.
    ///
    /// # Errors
    /// [`Error::Empty`] or [`Error::Setting`] if the shape is impossible, [`Error::Capacity`] for more than 2^32 - 1 transitions;
    /// [`Error::OutOfMemory`], before anything is allocated, if the buffer does not fit into the available memory.
    pub fn new(shape: TransitionShape, capacity: usize) -> Result<Self, Error> {
        Self::new_in(shape, capacity, &<dyn Memory>::host())
    }

    /// Creates an empty buffer with its rows in memory of the given kind.
    ///
    /// # Errors
    /// The errors of [`ReplayBuffer::new`], or [`Error::Block`] if the memory does not keep its promise.
    pub fn new_in(shape: TransitionShape, capacity: usize, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        Self::with_more(shape, capacity, Shard::default(), [0; 2], memory)
    }

    /// Creates an empty buffer that stores one shard of the transitions.
    ///
    /// # Errors
    /// Those of [`ReplayBuffer::new_in`].
    pub fn shard_in(shape: TransitionShape, capacity: usize, shard: Shard, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        Self::with_more(shape, capacity, shard, [0; 2], memory)
    }

    /// Creates a buffer that leaves room for other memory, per transition and in total.
    pub(crate) fn with_more(
        shape: TransitionShape,
        capacity: usize,
        shard: Shard,
        [each, fixed]: [u128; 2],
        memory: &Arc<dyn Memory>,
    ) -> Result<Self, Error> {
        shape.check()?;
        if capacity == 0 {
            return Err(Error::Empty("transition of capacity"));
        }
        if capacity > u32::MAX as usize {
            return Err(Error::Capacity { capacity, max: u32::MAX as usize });
        }
        let (stored, stacked) = (shape.stored(), shape.stack > 1);
        let windows = if shape.n_step > 1 { Windows::bytes(&stored) } else { 0 };
        let frames = if stacked { Frames::bytes_fixed(&shape) } else { 0 };
        let stacks = if stacked && !shard.is_whole() { (shape.n_envs as u128).saturating_mul(shape.obs_len as u128) } else { 0 };
        let fixed = windows.saturating_add(frames).saturating_add(stacks).saturating_add(fixed);
        let sharded = Self::sharded_bytes_each(&shape);
        let of_shard = Self::bytes_each(&shape) - sharded + sharded.div_ceil(shard.n_shards() as u128);
        check_against(capacity, of_shard + each, fixed, memory.available())?;
        let row = Row::new(&stored);
        let own = if stacked { 0..capacity } else { shard.of(capacity) };
        let mut layout = Layout::default();
        let (word_rows, byte_rows) = (layout.push(own.len(), row.len), layout.push(own.len(), 2 * row.bytes));
        Ok(Self {
            slab: Slab::new(&layout, memory)?,
            word_rows,
            byte_rows,
            windows: if shape.n_step > 1 { Some(Windows::new(&stored)?) } else { None },
            frames: if stacked { Some(Frames::new(&shape, capacity, shard, memory)?) } else { None },
            oldest: 0,
            added: 0,
            shape,
            capacity,
            row,
            shard,
            own,
        })
    }

    /// Bytes of memory of a buffer for `capacity` transitions.
    #[must_use]
    pub fn bytes(shape: &TransitionShape, capacity: usize) -> u128 {
        let windows = if shape.n_step > 1 { Windows::bytes(&shape.stored()) } else { 0 };
        let frames = if shape.stack > 1 { Frames::bytes_fixed(shape) } else { 0 };
        (capacity as u128).saturating_mul(Self::bytes_each(shape)).saturating_add(windows).saturating_add(frames)
    }

    /// Bytes of the blocks in the memory that [`ReplayBuffer::new_in`] is given.
    #[must_use]
    pub fn block_bytes(shape: &TransitionShape, capacity: usize) -> u128 {
        let rows = (capacity as u128).saturating_mul(Self::bytes_each(&shape.stored()));
        if shape.stack > 1 { rows.saturating_add(Frames::block_bytes(shape, capacity)) } else { rows }
    }

    /// Bytes that are divided among shards: of rows, or of the frames of stacks.
    #[must_use]
    pub fn sharded_bytes(shape: &TransitionShape, capacity: usize) -> u128 {
        let rows = (capacity as u128).saturating_mul(Self::sharded_bytes_each(shape));
        if shape.stack > 1 { Frames::block_bytes(shape, capacity) } else { rows }
    }

    /// Bytes of a transition that are divided among shards.
    fn sharded_bytes_each(shape: &TransitionShape) -> u128 {
        Self::bytes_each(shape) - if shape.stack > 1 { Self::bytes_each(&shape.stored()) + Frames::PLACE_BYTES } else { 0 }
    }

    /// Bytes of a transition.
    #[must_use]
    pub fn bytes_per_transition(shape: &TransitionShape) -> usize {
        usize::try_from(Self::bytes_each(shape)).unwrap_or(usize::MAX)
    }

    /// Bytes of a transition's row, as in [`Row::new`], computed without overflow.
    fn bytes_each(shape: &TransitionShape) -> u128 {
        if shape.stack > 1 {
            return Self::bytes_each(&shape.stored()) + Frames::bytes_each(shape);
        }
        let obs_size = shape.obs.size() as u128;
        let words = shape.action_len() as u128 + 2 + shape.mask_len().div_ceil(4) as u128;
        2 * obs_size * shape.obs_len as u128 + 4 * words
    }

    /// Shape of the transitions.
    #[must_use]
    pub fn shape(&self) -> &TransitionShape {
        &self.shape
    }

    /// Maximum number of transitions.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of transitions held.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.frames {
            Some(_) => (self.added - self.oldest) as usize,
            None => self.used(),
        }
    }

    /// True if the buffer holds no transition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of indices that have been written.
    pub(crate) fn used(&self) -> usize {
        usize::try_from(self.added).map_or(self.capacity, |added| added.min(self.capacity))
    }

    /// Index of the oldest transition held.
    fn start(&self) -> usize {
        (self.oldest % self.capacity as u64) as usize
    }

    /// True if there is a transition at `index`.
    pub(crate) fn holds(&self, index: usize) -> bool {
        let start = self.start();
        index < self.capacity && (if index < start { index + self.capacity } else { index }) - start < self.len()
    }

    /// Indices of the transitions with these numbers, in two ranges.
    pub(crate) fn stretches(&self, numbers: Range<u64>) -> [Range<usize>; 2] {
        stretches(numbers, self.capacity)
    }

    /// Returns the layout of a row for the kernels of a device.
    pub(crate) fn device_row(&self) -> rl_cuda::targets::Row {
        let Row { obs, action, reward, mask_len, .. } = self.row;
        rl_cuda::targets::Row { obs, action: reward - action, mask_len }
    }

    /// Returns the rows of words.
    pub(crate) fn words(&self) -> &[u32] {
        self.slab.get(self.word_rows)
    }

    /// Returns the rows of byte observations.
    pub(crate) fn obs_bytes(&self) -> &[u8] {
        self.slab.get(self.byte_rows)
    }

    /// Returns the rows of words and of byte observations for writing.
    pub(crate) fn rows_mut(&mut self) -> (&mut [u32], &mut [u8]) {
        let mut cut = self.slab.cut();
        (cut.take(self.word_rows), cut.take(self.byte_rows))
    }

    /// Total number of transitions added.
    #[must_use]
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Allocates a batch of `len` transitions of this buffer.
    ///
    /// # Errors
    /// [`Error::Empty`] if `len` is 0, [`Error::OutOfMemory`] if it does not fit.
    pub fn batch(&self, len: usize) -> Result<Batch, Error> {
        Batch::new(&self.shape, len)
    }

    /// Lengths in words and in bytes of the first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> (usize, usize) {
        (n * self.row.len, n * 2 * self.row.bytes)
    }

    /// Frame indices of all transitions.
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> {
        let rows = self.words().chunks_exact(self.row.len).take(self.used());
        rows.flat_map(|words| words[..2 * self.row.obs].iter().copied())
    }

    /// Reward and discount of each transition.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (f32, f32)> {
        let at = self.row.reward;
        let rows = self.words().chunks_exact(self.row.len).take(self.used());
        rows.map(move |words| (f32::from_bits(words[at]), f32::from_bits(words[at + 1])))
    }

    /// Returns the largest discrete action, including waiting steps; 0 if empty.
    ///
    /// Steps that have just become transitions, or that were dropped, may count, too. A shard looks at its own rows alone.
    /// Meaningless for continuous actions.
    #[must_use]
    pub fn max_action(&self) -> u32 {
        let rows = self.words().chunks_exact(self.row.len).take(self.used()).map(|words| words[self.row.action]);
        let waiting = self.windows.iter().flat_map(|windows| windows.actions.iter().copied());
        rows.chain(waiting).max().unwrap_or(0)
    }

    /// Index of the next transition.
    pub(crate) fn head(&self) -> usize {
        (self.added % self.capacity as u64) as usize
    }

    /// Adds a step of N environments; returns the number of transitions added.
    ///
    /// If n is 1, these are N. Otherwise they are the transitions that the step completes, environment by environment: all
    /// waiting ones where an episode ended.
    ///
    /// # Errors
    /// [`Error::Reward`] if a reward is not finite; nothing has changed then.
    ///
    /// # Panics
    /// If a type or a length differs from the shape's.
    pub fn push(&mut self, obs: ObsSlice<'_>, step: &StepSlices<'_>) -> Result<usize, Error> {
        assert_shape(&self.shape, self.shape.n_envs, obs, step);
        if let Some(env_idx) = step.rewards.iter().position(|reward| !reward.is_finite()) {
            return Err(Error::Reward { env_idx, reward: step.rewards[env_idx] });
        }
        let before = self.added;
        match self.frames.take() {
            None => self.push_stored(0, obs, step),
            Some(mut frames) => {
                frames.take_in(obs, step, |obs, step| self.push_stored(0, obs, step));
                self.oldest = frames.note(before..self.added, self.oldest);
                self.frames = Some(frames);
            }
        }
        Ok((self.added - before) as usize)
    }

    /// Adds a step of one environment; returns the number of transitions added.
    ///
    /// For environments that step at their own pace. The columns hold that environment alone.
    ///
    /// # Errors
    /// [`Error::Reward`] if the reward is not finite, [`Error::Setting`] if observations are stacked: frames are kept for steps
    /// of all environments. Nothing has changed then.
    ///
    /// # Panics
    /// If a type or a length differs from the shape's, or there is no such environment.
    pub fn push_env(&mut self, env_idx: usize, obs: ObsSlice<'_>, step: &StepSlices<'_>) -> Result<usize, Error> {
        assert_shape(&self.shape, 1, obs, step);
        assert!(env_idx < self.shape.n_envs, "environment {env_idx} of {}", self.shape.n_envs);
        if self.frames.is_some() {
            let allowed = "1, where environments step at their own pace";
            return Err(Error::Setting { what: "stack", value: self.shape.stack as f64, range: allowed });
        }
        if !step.rewards[0].is_finite() {
            return Err(Error::Reward { env_idx, reward: step.rewards[0] });
        }
        let before = self.added;
        self.push_stored(env_idx, obs, step);
        Ok((self.added - before) as usize)
    }

    /// Adds a step of the environments from `first_env` on.
    ///
    /// Observations are as stored in rows.
    fn push_stored(&mut self, first_env: usize, obs: ObsSlice<'_>, step: &StepSlices<'_>) {
        match self.windows.take() {
            None => with_obs_len!(self.push_single(obs, step)),
            Some(mut windows) => {
                let stored = self.shape.stored();
                let (row, capacity, mut added) = (self.row, self.capacity as u64, self.added);
                let own = self.own.clone();
                let (words, bytes) = self.rows_mut();
                windows.push(&stored, first_env, obs, step, |transition| {
                    let index = (added % capacity) as usize;
                    if own.contains(&index) {
                        row.write(index - own.start, words, bytes, &transition);
                    }
                    added += 1;
                });
                self.added = added;
                self.windows = Some(windows);
            }
        }
    }

    /// Drops the waiting steps, for environments that do not continue their episodes.
    pub fn forget_waiting(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.clear();
        }
        if let Some(frames) = &mut self.frames {
            frames.forget_current();
        }
    }

    /// Drops the waiting steps of an environment that does not continue its episode.
    ///
    /// # Panics
    /// If there is no such environment.
    pub fn forget_waiting_of(&mut self, env_idx: usize) {
        if let Some(windows) = &mut self.windows {
            windows.clear_env(env_idx);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.forget_waiting();
        if let Some(frames) = &mut self.frames {
            frames.clear();
        }
        self.added = 0;
        self.oldest = 0;
    }

    /// Adds one-step transitions.
    fn push_single<const D: usize>(&mut self, obs: ObsSlice<'_>, step: &StepSlices<'_>) {
        let mut env = 0;
        let n_envs = step.rewards.len();
        while env < n_envs {
            let at = self.head();
            let n = (n_envs - env).min(self.capacity - at);
            self.write_rows::<D>(at, obs, step, env..env + n);
            env += n;
            self.added += n as u64;
        }
    }

    /// Writes rows from index `at` on, without wrapping around.
    ///
    /// Skips rows of other shards.
    fn write_rows<const D: usize>(&mut self, at: usize, obs: ObsSlice<'_>, step: &StepSlices<'_>, envs: Range<usize>) {
        let (row, a, gamma) = (self.row, self.shape.action_len(), self.shape.gamma);
        let d = row.obs.max(row.bytes);
        let (from, to) = (at.max(self.own.start), (at + envs.len()).min(self.own.end));
        if from >= to {
            return;
        }
        let envs = envs.start + from - at..envs.start + to - at;
        let at = from - self.own.start;
        let (words, bytes) = self.rows_mut();
        let words = words[at * row.len..].chunks_exact_mut(row.len);
        for (words, env) in words.zip(envs.clone()) {
            let ended = !goes_on(step.terminated[env], step.truncated[env]);
            let (next_obs, masks) = next(step, ended);
            if let (ObsSlice::F32(obs), ObsSlice::F32(next_obs)) = (obs, next_obs) {
                let d = if D == 0 { d } else { D };
                store::<D>(words, &obs[env * d..][..d]);
                store::<D>(&mut words[d..], &next_obs[env * d..][..d]);
            }
            match step.actions {
                ActionSlice::Discrete(actions) => words[row.action] = actions[env],
                ActionSlice::Continuous(actions) => store::<0>(&mut words[row.action..], &actions[env * a..][..a]),
            }
            words[row.reward] = step.rewards[env].to_bits();
            words[row.reward + 1] = discount(!has_future(step.terminated[env]), gamma, 1).to_bits();
            if row.mask_len > 0 {
                store_mask(&mut words[row.mask..], &masks[env * row.mask_len..][..row.mask_len]);
            }
        }
        if row.bytes > 0 {
            for (bytes, env) in bytes[at * 2 * d..].chunks_exact_mut(2 * d).zip(envs) {
                let ended = !goes_on(step.terminated[env], step.truncated[env]);
                if let (ObsSlice::U8(obs), ObsSlice::U8(next_obs)) = (obs, next(step, ended).0) {
                    bytes[..d].copy_from_slice(&obs[env * d..][..d]);
                    bytes[d..].copy_from_slice(&next_obs[env * d..][..d]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{History, chi_square, random, shape, shape_of};
    use crate::{ActionKind, Dtype};
    use proptest::prelude::*;

    #[test]
    #[should_panic(expected = "the batch is for transitions of another shape")]
    fn a_batch_of_another_shape_is_refused() {
        let of_four = shape(1, 1);
        let mut replay = ReplayBuffer::new(of_four, 8).expect("fits");
        History::new(of_four, 3, 0.1).step(|obs, step| replay.push(obs, step).expect("finite"));
        let mut batch = Batch::new(&TransitionShape { obs_len: 8, ..of_four }, 2).expect("fits");
        let _ = replay.sample(&[1, 2], &mut batch);
    }

    #[test]
    fn environments_at_their_own_pace_make_the_same_transitions() {
        for n_step in [1, 3, 5] {
            let shape = shape(3, n_step);
            let (mut together, mut alone) =
                (ReplayBuffer::new(shape, 400).expect("fits"), ReplayBuffer::new(shape, 400).expect("fits"));
            let (mut history, mut steps) = (History::new(shape, 3, 0.1), Vec::new());
            for _ in 0..40 {
                history.step(|obs, step| {
                    together.push(obs, step).expect("finite");
                    let ObsSlice::F32(obs) = obs else { panic!("f32") };
                    steps.push((obs.to_vec(), step.map(<[f32]>::to_vec, <[u8]>::to_vec, <[u32]>::to_vec)));
                });
            }
            // One environment after the other.
            for env in 0..3 {
                for (obs, step) in &steps {
                    alone.push_env(env, ObsSlice::F32(obs).row(env, 4), &step.view().env(env)).expect("finite");
                }
            }
            let rows = |replay: &ReplayBuffer| {
                let mut rows: Vec<Vec<u32>> =
                    replay.words().chunks(replay.row.len).take(replay.len()).map(<[u32]>::to_vec).collect();
                rows.sort();
                rows
            };
            assert_eq!(rows(&together), rows(&alone), "{n_step} steps");
            let (obs, step) = &steps[0];
            let mut wrong = step.clone();
            wrong.rewards[1] = f32::NAN;
            let refused = alone.push_env(1, ObsSlice::F32(obs).row(1, 4), &wrong.view().env(1));
            assert!(matches!(refused, Err(Error::Reward { env_idx: 1, .. })));
        }
    }

    #[test]
    fn the_waiting_steps_of_one_environment_are_forgotten_alone() {
        let shape = shape(2, 3);
        let mut replay = ReplayBuffer::new(shape, 100).expect("fits");
        let mut history = History::new(shape, 3, 0.0);
        (0..2).for_each(|_| _ = history.step(|obs, step| replay.push(obs, step).expect("finite")));
        replay.forget_waiting_of(0);
        let added: Vec<usize> = (0..3).map(|_| history.step(|obs, step| replay.push(obs, step).expect("finite"))).collect();
        assert_eq!(added, [1, 1, 2], "environment 0 waits for three steps again");
    }

    #[test]
    fn a_transition_takes_the_bytes_that_are_documented() {
        let discrete = ActionKind::Discrete { masked: None };
        let masked = ActionKind::Discrete { masked: Some(6) };
        for (obs, d, actions, bytes) in
            [(Dtype::F32, 4, discrete, 44), (Dtype::F32, 3, ActionKind::Continuous { len: 2 }, 40), (Dtype::U8, 84, masked, 188)]
        {
            let shape = TransitionShape { obs_len: d, obs, actions, ..shape(1, 1) };
            let replay = ReplayBuffer::new(shape, 1000).expect("fits");
            assert_eq!(ReplayBuffer::bytes_per_transition(&shape), bytes);
            assert_eq!(4 * replay.words().len() + replay.obs_bytes().len(), 1000 * bytes);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_allocated() {
        let ok = shape(2, 3);
        assert!(matches!(ReplayBuffer::new(ok, 0), Err(Error::Empty("transition of capacity"))));
        assert!(matches!(ReplayBuffer::new(ok, 1 << 40), Err(Error::Capacity { .. })));
        assert!(matches!(ReplayBuffer::new(TransitionShape { n_step: 0, ..ok }, 9), Err(Error::Empty(_))));
        for gamma in [f32::NAN, -0.1, 1.1] {
            assert!(matches!(ReplayBuffer::new(TransitionShape { gamma, ..ok }, 9), Err(Error::Setting { .. })));
        }
        let huge = TransitionShape { obs_len: 1 << 30, ..ok };
        let Err(Error::OutOfMemory { needed, available, largest }) = ReplayBuffer::new(huge, 1 << 30) else { panic!("fits") };
        assert!(needed > available && largest < 1 << 30);
        assert!(
            ReplayBuffer::new(TransitionShape { obs_len: usize::MAX, n_envs: usize::MAX, n_step: usize::MAX, ..ok }, 1 << 30)
                .is_err()
        );
        assert!(ReplayBuffer::new(ok, 9).expect("fits").batch(usize::MAX).is_err());
    }

    #[test]
    fn n_step_transitions_equal_the_case_worked_out_by_hand() {
        // One environment, observations 0, 1, 2, .., rewards 1, 2, 4, gamma 1/2, n = 3; the third step ends the episode with
        // observation 100. Windows: 1 + 2 / 2 + 4 / 4 = 3 after 3 steps, 2 + 4 / 2 = 4 after 2, 4 after 1. The fourth step begins
        // another episode, of which nothing is complete.
        for (terminated, discounts) in [(0, [0.125, 0.25, 0.5]), (1, [0.0; 3])] {
            let mut replay = ReplayBuffer::new(TransitionShape { gamma: 0.5, obs_len: 1, ..shape(1, 3) }, 8).expect("fits");
            let mut added = Vec::new();
            for (t, reward) in [1.0, 2.0, 4.0, 64.0].into_iter().enumerate() {
                let ended = t == 2;
                let (obs, actions, next_obs) = ([t as f32], [10 + t as u32], [t as f32 + 1.0]);
                let step = StepSlices {
                    obs: ObsSlice::F32(&next_obs),
                    actions: ActionSlice::Discrete(&actions),
                    rewards: &[reward],
                    terminated: &[u8::from(ended) & terminated],
                    truncated: &[u8::from(ended)], // both flags: terminated
                    final_obs: ObsSlice::F32(&[100.0]),
                    masks: None,
                };
                added.push(replay.push(ObsSlice::F32(&obs), &step).expect("finite"));
            }
            assert_eq!(added, [0, 0, 3, 0]);
            let mut batch = replay.batch(3).expect("fits");
            batch.columns_mut().indices.copy_from_slice(&[0, 1, 2]);
            replay.gather(&mut batch);
            let batch = batch.columns();
            assert_eq!(batch.obs, ObsSlice::F32(&[0.0, 1.0, 2.0]));
            assert_eq!(batch.actions, ActionSlice::Discrete(&[10, 11, 12]));
            assert_eq!(batch.rewards, [3.0, 4.0, 4.0]);
            assert_eq!(batch.discounts, discounts);
            assert_eq!(batch.next_obs, ObsSlice::F32(&[100.0; 3]));
        }
    }

    #[test]
    fn a_transition_is_never_put_together_from_two_stretches() {
        let mut replay = ReplayBuffer::new(shape(2, 3), 64).expect("fits");
        let mut history = History::new(*replay.shape(), 5, 0.0);
        for _ in 0..2 {
            assert_eq!(history.step(|obs, step| replay.push(obs, step).expect("finite")), 0);
        }
        replay.forget_waiting();
        for _ in 0..2 {
            assert_eq!(history.step(|obs, step| replay.push(obs, step).expect("finite")), 0);
        }
        assert_eq!(history.step(|obs, step| replay.push(obs, step).expect("finite")), 2);
    }

    #[test]
    fn a_reward_that_is_not_finite_is_refused_and_nothing_changes() {
        for n_step in [1, 3] {
            let shape = TransitionShape { obs_len: 1, n_step, ..shape(2, 1) };
            let mut replay = ReplayBuffer::new(shape, 4).expect("fits");
            let mut push = |rewards: &[f32]| {
                let step = StepSlices {
                    obs: ObsSlice::F32(&[1.0; 2]),
                    actions: ActionSlice::Discrete(&[0; 2]),
                    rewards,
                    terminated: &[0; 2],
                    truncated: &[0; 2],
                    final_obs: ObsSlice::F32(&[0.0; 2]),
                    masks: None,
                };
                replay.push(ObsSlice::F32(&[0.0; 2]), &step)
            };
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(matches!(push(&[1.0, bad]), Err(Error::Reward { env_idx: 1, .. })));
            }
            assert_eq!((0..3).map(|_| push(&[1.0; 2]).expect("finite")).sum::<usize>(), if n_step == 1 { 6 } else { 2 });
        }
    }

    #[test]
    fn too_few_transitions_are_not_drawn_from() {
        let mut replay = ReplayBuffer::new(shape(1, 1), 8).expect("fits");
        let mut history = History::new(*replay.shape(), 5, 0.2);
        let mut batch = replay.batch(2).expect("fits");
        assert!(matches!(replay.sample(&[0, 0], &mut batch), Err(Error::TooFew { needed: 1, held: 0 })));
        history.step(|obs, step| replay.push(obs, step).expect("finite"));
        assert!(replay.sample(&[0, u32::MAX], &mut batch).is_ok());
        assert!(matches!(replay.sample_distinct(&[0, 0], &mut batch), Err(Error::TooFew { needed: 2, held: 1 })));
        history.step(|obs, step| replay.push(obs, step).expect("finite"));
        assert!(replay.sample_distinct(&[0, 0], &mut batch).is_ok());
    }

    #[test]
    fn every_set_of_distinct_transitions_is_drawn_as_often() {
        let mut replay = ReplayBuffer::new(shape(5, 1), 5).expect("fits");
        History::new(*replay.shape(), 5, 0.2).step(|obs, step| replay.push(obs, step).expect("finite"));
        let (mut rng, mut counts) = (random(7), vec![0.0; 32]);
        let mut batch = replay.batch(2).expect("fits");
        for _ in 0..10_000 {
            replay.sample_distinct(&[rng.next_u32(), rng.next_u32()], &mut batch).expect("enough");
            counts[batch.columns().indices.iter().fold(0, |set, index| set | 1 << index)] += 1.0;
        }
        let pairs: Vec<f64> = (0..32usize).filter(|set| set.count_ones() == 2).map(|set| counts[set]).collect();
        chi_square(&pairs, &[1000.0; 10]);
    }

    #[test]
    fn every_transition_is_drawn_as_often() {
        for capacity in [1, 31, 33, 65] {
            let mut replay = ReplayBuffer::new(shape(1, 1), capacity).expect("fits");
            let mut history = History::new(*replay.shape(), 5, 0.2);
            (0..capacity + 3).for_each(|_| _ = history.step(|obs, step| replay.push(obs, step).expect("finite")));
            let (mut rng, draws) = (random(7), 2000);
            for distinct in [false, true] {
                let len = if distinct { capacity.div_ceil(2) } else { 50 };
                let mut batch = replay.batch(len).expect("fits");
                let mut counts = vec![0.0; capacity];
                for _ in 0..draws {
                    let words: Vec<u32> = (0..len).map(|_| rng.next_u32()).collect();
                    if distinct { replay.sample_distinct(&words, &mut batch) } else { replay.sample(&words, &mut batch) }
                        .expect("enough");
                    batch.columns().indices.iter().for_each(|&index| counts[index as usize] += 1.0);
                    if distinct {
                        let mut sorted = batch.columns().indices.to_vec();
                        sorted.sort_unstable();
                        sorted.dedup();
                        assert_eq!(sorted.len(), len, "one is drawn twice");
                    }
                }
                let expected = vec![(draws * len) as f64 / capacity as f64; capacity];
                chi_square(&counts, &expected);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_buffer_holds_what_a_list_of_transitions_holds(
            seed in any::<u64>(), n_envs in prop::sample::select(vec![1usize, 2, 31, 33, 65]), n_step in 1usize..6,
            d in prop::sample::select(vec![1usize, 4, 5, 17, 33]), bytes in any::<bool>(), action in 0usize..6,
            capacity in 1usize..200,
            ends in 0.0..0.5f64, stack in 1usize..5, anew in 0usize..20,
        ) {
            let shape = TransitionShape { n_envs, n_step, ..shape_of(d, bytes.then_some(stack), action) };
            let mut replay = ReplayBuffer::new(shape, capacity).expect("fits");
            let mut history = History::new(shape, seed, ends);
            let mut rng = random(seed);
            for t in 0..12 {
                if t == anew {
                    replay.forget_waiting();
                    history.start_anew();
                }
                let expected = history.made.len();
                let added = history.step(|obs, step| replay.push(obs, step).expect("finite"));
                prop_assert_eq!(added, history.made.len() - expected);
                let held = history.made.len().min(capacity);
                // Short episodes have more frames than fit.
                prop_assert!(replay.len() == held || (stack > 1 && ends > 0.1 && replay.len() < held));
                if replay.is_empty() || t % 3 != 2 {
                    continue;
                }
                let mut batch = replay.batch(replay.len()).expect("fits");
                let drawn: Vec<u32> = (0..batch.len()).map(|_| rng.next_u32()).collect();
                replay.sample_distinct(&drawn, &mut batch).expect("enough");
                history.assert_holds(&batch, capacity);
                replay.sample(&drawn, &mut batch).expect("enough");
                history.assert_holds(&batch, capacity);
            }
        }
    }

    #[test]
    fn rows_frames_and_batches_are_one_block_each_of_any_memory() {
        for (obs, stack, blocks) in [(Dtype::F32, 1, 1), (Dtype::U8, 1, 1), (Dtype::U8, 2, 2)] {
            let shape = TransitionShape { obs, stack, obs_len: 4, ..shape(7, 2) };
            let pages = Arc::new(crate::testing::Pages::default());
            let mut paged = ReplayBuffer::new_in(shape, 30, &(pages.clone() as Arc<dyn Memory>)).expect("fits");
            let mut replay = ReplayBuffer::new(shape, 30).expect("fits");
            let mut history = History::new(shape, 3, 0.2);
            for _ in 0..9 {
                history.step(|obs, step| {
                    assert_eq!(paged.push(obs, step).expect("finite"), replay.push(obs, step).expect("finite"))
                });
            }
            assert_eq!((paged.words(), paged.obs_bytes()), (replay.words(), replay.obs_bytes()));
            assert_eq!(pages.counts(), (blocks, blocks));
            let mut drawn = Batch::new_in(&shape, 9, &(pages.clone() as Arc<dyn Memory>)).expect("fits");
            assert_eq!(pages.counts(), (blocks + 1, blocks + 1));
            let mut expected = replay.batch(9).expect("fits");
            let words = [u32::MAX / 9; 9].map(|word| word.wrapping_mul(5));
            paged.sample(&words, &mut drawn).expect("enough");
            replay.sample(&words, &mut expected).expect("enough");
            assert_eq!(drawn.columns(), expected.columns());
            drop((paged, drawn));
            assert_eq!(pages.counts(), (blocks + 1, 0));
        }
    }
}
