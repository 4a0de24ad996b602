//! Frames of stacked observations, each kept once.
//!
//! An observation of k frames shares all but one with its predecessor, so transitions that held both observations would hold each
//! frame 2 k times. Here frames are in a separate ring, and a transition holds the indices of the frames of its two observations,
//! which are assembled when it is drawn. Frames are shared if they compare equal, whatever the flags of the step: what is drawn
//! is what was added, bit for bit, including the start of an episode (whose first frame appears k times and is kept once) and
//! restarted environments.
//!
//! The ring has room for the frames of all transitions if episodes last at least nine steps on average (a step adds a frame, and
//! an end one more). If it runs out of room, the oldest transitions are dropped with their frames.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::filled;
use crate::replay::shard::Shard;
use crate::rollout::returns::goes_on;
use crate::slab::{Layout, Memory, Slab, Span};
use crate::{Error, ObsSlice, StepSlices, TransitionShape};

/// Limit of frame indices, below the bits of an infinite f32.
///
/// Indices travel as the bits of numbers, and those of a NaN might change.
const MAX_PLACES: u128 = 0x7F80_0000;

/// A ring of frames, with the current observations of N environments.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    /// Number of frames k in an observation.
    k: usize,
    /// Length of a frame in bytes.
    pub(crate) len: usize,
    /// Number of steps that a transition may look back for its frames.
    steps_back: usize,
    /// One column of the frames that are stored here, (`own`, `len`).
    slab: Slab,
    frames: Span<u8>,
    /// Number of frames that there is room for, in all shards together.
    pub(crate) places: usize,
    /// Places of the frames that are stored here.
    own: std::ops::Range<usize>,
    /// Current observations, (N, k `len`); empty if all frames are here.
    stacks: Vec<u8>,
    /// Total number of frames added.
    pub(crate) pushed: u64,
    /// Frame indices of the next observations, (N, k).
    pub(crate) current: Vec<u32>,
    /// 1 where `current` is known, (N).
    pub(crate) known: Vec<u8>,
    /// Value of `pushed` before each of the last steps, oldest first.
    pub(crate) before: VecDeque<u64>,
    /// Lower bound of `pushed` for the frames of each transition, (C).
    pub(crate) lows: Vec<u64>,
    /// Frame indices of obs, next_obs and final_obs as bits of numbers, (N, k) each.
    step: [Vec<f32>; 3],
}

/// Returns row `i` of bytes.
fn bytes_row(obs: ObsSlice<'_>, i: usize, d: usize) -> &[u8] {
    obs.row(i, d).either(|_| unreachable!("stacks are of bytes"), |row| row)
}

fn numbers(places: &mut [f32], from: &[u32]) {
    places.iter_mut().zip(from).for_each(|(number, &place)| *number = f32::from_bits(place));
}

impl Frames {
    fn places(shape: &TransitionShape, capacity: usize) -> u128 {
        let slack = (shape.n_envs as u128).saturating_mul(2 * (shape.n_step as u128 + shape.stack as u128 + 2));
        (capacity as u128 + capacity as u128 / 8).saturating_add(slack)
    }

    /// Bytes per transition that every shard stores.
    pub(crate) const PLACE_BYTES: u128 = 8;

    /// Bytes per transition.
    pub(crate) fn bytes_each(shape: &TransitionShape) -> u128 {
        let len = (shape.obs_len / shape.stack) as u128;
        len + len.div_ceil(8) + Self::PLACE_BYTES
    }

    /// Bytes that do not depend on the capacity.
    pub(crate) fn bytes_fixed(shape: &TransitionShape) -> u128 {
        let len = (shape.obs_len / shape.stack) as u128;
        Self::places(shape, 0)
            .saturating_mul(len)
            .saturating_add((shape.n_envs as u128).saturating_mul(16 * shape.stack as u128 + 1))
    }

    /// Bytes of the frames themselves.
    pub(crate) fn block_bytes(shape: &TransitionShape, capacity: usize) -> u128 {
        Self::places(shape, capacity).saturating_mul((shape.obs_len / shape.stack) as u128)
    }

    pub(crate) fn new(shape: &TransitionShape, capacity: usize, shard: Shard, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        let places = Self::places(shape, capacity);
        if places > MAX_PLACES {
            return Err(Error::Capacity { capacity, max: (MAX_PLACES * 8 / 9) as usize });
        }
        let (places, len, n) = (places as usize, shape.obs_len / shape.stack, shape.n_envs * shape.stack);
        let own = shard.of(places);
        let mut layout = Layout::default();
        let frames = layout.push::<u8>(own.len(), len);
        Ok(Self {
            k: shape.stack,
            len,
            steps_back: shape.n_step + shape.stack,
            slab: Slab::new(&layout, memory)?,
            frames,
            places,
            own,
            stacks: filled(if shard.is_whole() { 0 } else { n * len }, 0)?,
            pushed: 0,
            current: filled(n, 0)?,
            known: filled(shape.n_envs, 0)?,
            before: VecDeque::new(),
            lows: filled(capacity, 0)?,
            step: [filled(n, 0.0)?, filled(n, 0.0)?, filled(n, 0.0)?],
        })
    }

    /// Number of steps that a transition may look back for its frames.
    pub(crate) fn steps_back(&self) -> usize {
        self.steps_back
    }

    /// Bytes of the stored frames.
    pub(crate) fn used_bytes(&self) -> usize {
        usize::try_from(self.pushed).map_or(self.places, |pushed| pushed.min(self.places)) * self.len
    }

    /// Returns the frames that are stored here, (`own`, `len`).
    pub(crate) fn data(&self) -> &[u8] {
        self.slab.get(self.frames)
    }

    /// Returns these frames for writing.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        self.slab.get_mut(self.frames)
    }

    fn frame(&self, place: u32) -> &[u8] {
        &self.data()[place as usize * self.len..][..self.len]
    }

    fn push(&mut self, frame: &[u8]) -> u32 {
        let place = (self.pushed % self.places as u64) as usize;
        if self.own.contains(&place) {
            let (len, at) = (self.len, place - self.own.start);
            self.data_mut()[at * len..][..len].copy_from_slice(frame);
        }
        self.pushed += 1;
        place as u32
    }

    /// Adds a whole new stack, in which equal consecutive frames share an index.
    fn push_stack(&mut self, stack: &[u8], places: &mut [u32]) {
        for (j, frame) in stack.chunks_exact(self.len).enumerate() {
            let same = j > 0 && *frame == stack[(j - 1) * self.len..][..self.len];
            places[j] = if same { places[j - 1] } else { self.push(frame) };
        }
    }

    /// Adds `next`, which shares its frames with `stack` if it is one frame ahead.
    fn push_next(&mut self, stack: &[u8], next: &[u8], places: &mut [u32]) {
        if next[..next.len() - self.len] == stack[self.len..] {
            places.rotate_left(1);
            places[self.k - 1] = self.push(&next[next.len() - self.len..]);
        } else {
            self.push_stack(next, places);
        }
    }

    /// True if an environment's current observation, with these frames, is `stack`.
    fn shows(&self, env: usize, stack: &[u8], places: &[u32]) -> bool {
        match self.stacks.chunks_exact(stack.len()).nth(env) {
            Some(current) => current == stack,
            None => stack.chunks_exact(self.len).zip(places).all(|(frame, &place)| *frame == *self.frame(place)),
        }
    }

    /// Adds the frames of a step, and calls `then` with their indices in place of them.
    ///
    /// Indices are passed as the bits of numbers.
    pub(crate) fn take_in<R>(
        &mut self,
        obs: ObsSlice<'_>,
        step: &StepSlices<'_>,
        then: impl FnOnce(ObsSlice<'_>, &StepSlices<'_>) -> R,
    ) -> R {
        if self.before.len() > self.steps_back {
            self.before.pop_front();
        }
        self.before.push_back(self.pushed);
        let (k, d) = (self.k, self.k * self.len);
        let mut current = std::mem::take(&mut self.current);
        let [mut before, mut next_obs, mut final_obs] = std::mem::take(&mut self.step);
        for (env, places) in current.chunks_exact_mut(k).enumerate() {
            let stack = bytes_row(obs, env, d);
            if self.known[env] == 0 || !self.shows(env, stack, places) {
                self.push_stack(stack, places);
                self.known[env] = 1;
            }
            numbers(&mut before[env * k..][..k], places);
            if goes_on(step.terminated[env], step.truncated[env]) {
                self.push_next(stack, bytes_row(step.obs, env, d), places);
            } else {
                self.push_next(stack, bytes_row(step.final_obs, env, d), places);
                numbers(&mut final_obs[env * k..][..k], places);
                self.push_stack(bytes_row(step.obs, env, d), places);
            }
            numbers(&mut next_obs[env * k..][..k], places);
            if let Some(stack) = self.stacks.chunks_exact_mut(d).nth(env) {
                stack.copy_from_slice(bytes_row(step.obs, env, d));
            }
        }
        let (obs, final_rows) = (ObsSlice::F32(&next_obs), ObsSlice::F32(&final_obs));
        let result = then(ObsSlice::F32(&before), &StepSlices { obs, final_obs: final_rows, ..*step });
        self.current = current;
        self.step = [before, next_obs, final_obs];
        result
    }

    /// Records the transitions made by the last step; returns the new `oldest`.
    ///
    /// `oldest` is the number of the first transition held; it moves past those whose frames are gone.
    pub(crate) fn note(&mut self, numbers: std::ops::Range<u64>, oldest: u64) -> u64 {
        let capacity = self.lows.len() as u64;
        let low = self.before.front().copied().unwrap_or(0);
        for number in numbers.clone() {
            self.lows[(number % capacity) as usize] = low;
        }
        let mut oldest = oldest.max(numbers.end.saturating_sub(capacity));
        let gone = self.pushed.saturating_sub(self.places as u64);
        while oldest < numbers.end && self.lows[(oldest % capacity) as usize] < gone {
            oldest += 1;
        }
        oldest
    }

    /// Copies the frames at `places` (bits of numbers, as in rows) into a stack.
    pub(crate) fn copy(&self, places: &[u32], stack: &mut [u8]) {
        for (frame, &place) in stack.chunks_exact_mut(self.len).zip(places) {
            frame.copy_from_slice(self.frame(place));
        }
    }

    /// Invalidates the current observations.
    pub(crate) fn forget_current(&mut self) {
        self.known.fill(0);
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.forget_current();
        self.pushed = 0;
        self.before.clear();
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{History, random, shape};
    use crate::{ActionSlice, Dtype, Error, ObsSlice, PrioritizedReplayBuffer, ReplayBuffer, StepSlices, TransitionShape};

    fn stacked(n_envs: usize, n_step: usize, stack: usize) -> TransitionShape {
        TransitionShape { obs: Dtype::U8, obs_len: 3 * stack, stack, ..shape(n_envs, n_step) }
    }

    #[test]
    fn a_frame_is_kept_once() {
        for (n_envs, stack) in [(1, 4), (31, 2), (33, 3)] {
            let mut replay = ReplayBuffer::new(stacked(n_envs, 1, stack), 1000).expect("fits");
            let mut history = History::new(*replay.shape(), 3, 0.0);
            (0..20).for_each(|_| _ = history.step(|obs, step| replay.push(obs, step).expect("finite")));
            // The first frame, and one more per step.
            let pushed = |replay: &ReplayBuffer| replay.frames.as_ref().map_or(0, |frames| frames.pushed);
            assert_eq!(pushed(&replay), 21 * n_envs as u64);
            // After a restart: the first frame of the next episode, and one more per step.
            history.start_anew();
            (0..20).for_each(|_| _ = history.step(|obs, step| replay.push(obs, step).expect("finite")));
            assert_eq!(pushed(&replay), 42 * n_envs as u64);
        }
    }

    #[test]
    fn stacks_that_share_nothing_are_kept_as_they_are() {
        let shape = TransitionShape { obs_len: 2, ..stacked(1, 1, 2) };
        let mut replay = ReplayBuffer::new(shape, 4).expect("fits");
        for obs in [[1, 2], [3, 4], [7, 7]] {
            let next = [obs[0] + 10, obs[1] + 10];
            let step = StepSlices {
                obs: ObsSlice::U8(&next),
                actions: ActionSlice::Discrete(&[0]),
                rewards: &[0.0],
                terminated: &[0],
                truncated: &[0],
                final_obs: ObsSlice::U8(&[0, 0]),
                masks: None,
            };
            replay.push(ObsSlice::U8(&obs), &step).expect("finite");
        }
        let mut batch = replay.batch(3).expect("fits");
        batch.columns_mut().indices.copy_from_slice(&[0, 1, 2]);
        replay.gather(&mut batch);
        let batch = batch.columns();
        assert_eq!(batch.obs, ObsSlice::U8(&[1, 2, 3, 4, 7, 7]));
        assert_eq!(batch.next_obs, ObsSlice::U8(&[11, 12, 13, 14, 17, 17]));
    }

    #[test]
    fn long_episodes_find_room_and_short_ones_are_given_up_from_the_oldest() {
        for (ends, all) in [(0.0, true), (0.1, true), (0.9, false)] {
            for (n_envs, n_step, stack) in [(1, 1, 4), (2, 3, 2), (5, 5, 3)] {
                let shape = stacked(n_envs, n_step, stack);
                let mut buffer = PrioritizedReplayBuffer::new(shape, 2000, 1.0, 0.0).expect("fits");
                let mut history = History::new(shape, 3, ends);
                let mut rng = random(1);
                for t in 0..6000 / n_envs {
                    history.step(|obs, step| buffer.push(obs, step).expect("finite"));
                    let replay = buffer.replay();
                    assert_eq!(buffer.priorities().total(), replay.len() as f64);
                    if t % 100 == 99 {
                        let mut batch = replay.batch(65).expect("fits");
                        let words: Vec<u32> = (0..65).map(|_| rng.next_u32()).collect();
                        for way in 0..3 {
                            match way {
                                0 => replay.sample(&words, &mut batch),
                                1 => replay.sample_distinct(&words, &mut batch),
                                _ => buffer.sample(&words, 0.4, &mut batch),
                            }
                            .expect("enough");
                            history.assert_holds(&batch, 2000);
                            assert!(batch.columns().indices.iter().all(|&index| replay.holds(index as usize)));
                        }
                        let added = replay.added();
                        assert_eq!(buffer.update_priorities(batch.columns().indices, added, &[1.0; 65]).expect("fine"), 65);
                    }
                }
                assert_eq!(buffer.replay().len() == 2000, all, "{} with ends {ends}", buffer.replay().len());
                assert!(buffer.replay().len() > 1000);
            }
        }
    }

    #[test]
    fn a_stacked_transition_takes_the_bytes_that_are_documented() {
        let shape = TransitionShape { obs_len: 4 * 800, ..stacked(1, 1, 4) };
        // 8 k + 9/8 F + 8, action, reward and discount.
        assert_eq!(ReplayBuffer::bytes_per_transition(&shape), 32 + 900 + 8 + 12);
        let replay = ReplayBuffer::new(shape, 8000).expect("fits");
        let frames = replay.frames.as_ref().expect("stacked");
        let bytes = 4 * replay.words().len() + replay.obs_bytes().len() + frames.data().len() + 8 * frames.lows.capacity();
        // Room for the frames of waiting steps.
        assert_eq!(bytes, 8000 * 952 + 2 * (1 + 4 + 2) * 800);
    }

    #[test]
    fn stacks_that_cannot_be_are_refused() {
        for shape in [
            TransitionShape { stack: 0, ..stacked(1, 1, 2) },
            TransitionShape { stack: 4, ..stacked(1, 1, 2) },
            TransitionShape { stack: 2, ..shape(1, 1) },
        ] {
            assert!(matches!(ReplayBuffer::new(shape, 10), Err(Error::Setting { .. } | Error::Empty(_))));
        }
    }
}
