//! Prioritized replay: transitions drawn in proportion to their error.
//!
//! Schaul et al., "Prioritized Experience Replay", 2016, the proportional variant: `p = (|error| + epsilon)^alpha`, `P = p / sum
//! p`, and weights `w = (N P)^-beta / max w` that correct the bias, with the maximum of the batch. New transitions get the
//! largest priority so far, so that each is likely to be drawn once; or, by choice, the priority of the error that the acting
//! policy saw. Draws are stratified: one from each of B equal shares of the sum.
//!
//! A transition takes 5 bytes more than in [`ReplayBuffer`].

use std::sync::Arc;

use rl_envs::{Rng, math};

use crate::memory::filled;
use crate::replay::acted::ActedErrors;
use crate::replay::shard::Shard;
use crate::replay::sum_tree::check_priority;
use crate::slab::Memory;
use crate::{ActedValues, Batch, Error, ObsSlice, ReplayBuffer, StepSlices, SumTree, TransitionShape, Transitions};

/// A ring of transitions with priorities.
#[derive(Clone, Debug)]
pub struct PrioritizedReplayBuffer {
    pub(crate) replay: ReplayBuffer,
    pub(crate) tree: SumTree,
    pub(crate) alpha: f32,
    pub(crate) epsilon: f32,
    pub(crate) max_priority: f32,
    /// Errors of new transitions, if they decide their priorities.
    pub(crate) acted: Option<Box<ActedErrors>>,
    /// Scratch of changes of priorities, kept for its memory.
    indices: Vec<u32>,
    priorities: Vec<f32>,
}

impl PrioritizedReplayBuffer {
    /// Creates an empty buffer for `capacity` transitions.
    ///
    /// With an `alpha` of 0, all are equally likely; `epsilon` keeps transitions without an error in play.
    ///
    /// # Errors
    /// Errors of [`ReplayBuffer::new`]; [`Error::Setting`] unless `alpha` and `epsilon` are between 0 and 1.
    pub fn new(shape: TransitionShape, capacity: usize, alpha: f32, epsilon: f32) -> Result<Self, Error> {
        Self::new_in(shape, capacity, alpha, epsilon, &<dyn Memory>::host())
    }

    /// Creates an empty buffer with its rows in memory of the given kind.
    ///
    /// Priorities stay in ordinary memory.
    ///
    /// # Errors
    /// Errors of [`PrioritizedReplayBuffer::new`] and [`ReplayBuffer::new_in`].
    pub fn new_in(
        shape: TransitionShape,
        capacity: usize,
        alpha: f32,
        epsilon: f32,
        memory: &Arc<dyn Memory>,
    ) -> Result<Self, Error> {
        Self::shard_in(shape, capacity, alpha, epsilon, Shard::default(), memory)
    }

    /// Creates an empty buffer that stores one shard of the transitions.
    ///
    /// It has all priorities.
    ///
    /// # Errors
    /// Those of [`PrioritizedReplayBuffer::new_in`].
    pub fn shard_in(
        shape: TransitionShape,
        capacity: usize,
        alpha: f32,
        epsilon: f32,
        shard: Shard,
        memory: &Arc<dyn Memory>,
    ) -> Result<Self, Error> {
        for (what, value) in [("alpha", alpha), ("epsilon", epsilon)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Setting { what, value: f64::from(value), range: "between 0 and 1" });
            }
        }
        Ok(Self {
            replay: ReplayBuffer::with_more(shape, capacity, shard, [SumTree::BYTES_EACH, SumTree::BYTES_FIXED], memory)?,
            tree: SumTree::new(capacity)?,
            alpha,
            epsilon,
            max_priority: 1.0,
            acted: None,
            indices: Vec::new(),
            priorities: Vec::new(),
        })
    }

    /// Gives new transitions the priorities of their errors.
    ///
    /// The errors are computed from the values of [`PrioritizedReplayBuffer::push_acted`]. The largest priority remains where a
    /// value is not known, for instance after a truncation. A file saved by such a buffer loads into such a buffer only.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the values of waiting steps do not fit.
    pub fn with_acted_priorities(self) -> Result<Self, Error> {
        let acted = ActedErrors::new(self.replay.shape(), self.replay.windows.as_ref())?;
        let n = self.replay.shape().n_envs * self.replay.shape().n_step;
        let (indices, priorities) = (filled(n, 0)?, filled(n, 0.0)?);
        Ok(Self { acted: Some(Box::new(acted)), indices, priorities, ..self })
    }

    /// Bytes of memory that [`PrioritizedReplayBuffer::with_acted_priorities`] adds.
    #[must_use]
    pub fn acted_bytes(shape: &TransitionShape) -> u128 {
        ActedErrors::bytes(shape)
    }

    /// Bytes of memory of a buffer for `capacity` transitions.
    #[must_use]
    pub fn bytes(shape: &TransitionShape, capacity: usize) -> u128 {
        let tree = (capacity as u128).saturating_mul(SumTree::BYTES_EACH).saturating_add(SumTree::BYTES_FIXED);
        ReplayBuffer::bytes(shape, capacity).saturating_add(tree)
    }

    /// Transitions of the buffer.
    #[must_use]
    pub fn replay(&self) -> &ReplayBuffer {
        &self.replay
    }

    /// Priorities by index.
    #[must_use]
    pub fn priorities(&self) -> &SumTree {
        &self.tree
    }

    /// Adds a step of N environments; see [`ReplayBuffer::push`].
    ///
    /// # Errors
    /// [`Error::Reward`] if a reward is not finite; nothing has changed then.
    ///
    /// # Panics
    /// If a type or a length differs from the shape's.
    pub fn push(&mut self, obs: ObsSlice<'_>, step: &StepSlices<'_>) -> Result<usize, Error> {
        self.add(None, obs, step, None)
    }

    /// Adds a step of one environment; see [`ReplayBuffer::push_env`].
    ///
    /// # Errors
    /// The errors of [`ReplayBuffer::push_env`].
    ///
    /// # Panics
    /// If a type or a length differs from the shape's, or there is no such environment.
    pub fn push_env(&mut self, env_idx: usize, obs: ObsSlice<'_>, step: &StepSlices<'_>) -> Result<usize, Error> {
        self.add(Some(env_idx), obs, step, None)
    }

    /// Adds a step with the values of the policy that acted.
    ///
    /// The step is of N environments, or of the one at `env_idx`. Values count after
    /// [`PrioritizedReplayBuffer::with_acted_priorities`].
    ///
    /// # Errors
    /// The errors of [`ReplayBuffer::push`] and [`ReplayBuffer::push_env`].
    ///
    /// # Panics
    /// If a type or a length differs from the shape's, or there is no such environment.
    pub fn push_acted(
        &mut self,
        env_idx: Option<usize>,
        obs: ObsSlice<'_>,
        step: &StepSlices<'_>,
        values: ActedValues<'_>,
    ) -> Result<usize, Error> {
        let lens = [values.taken.len(), values.next.len()];
        assert_eq!(lens, [step.rewards.len(); 2], "two values for each environment");
        self.add(env_idx, obs, step, Some(values))
    }

    /// Adds a step, and sets the priorities of the transitions that it completes.
    fn add(
        &mut self,
        env_idx: Option<usize>,
        obs: ObsSlice<'_>,
        step: &StepSlices<'_>,
        values: Option<ActedValues<'_>>,
    ) -> Result<usize, Error> {
        let (before, oldest) = (self.replay.added(), self.replay.oldest);
        let added = match env_idx {
            None => self.replay.push(obs, step)?,
            Some(env_idx) => self.replay.push_env(env_idx, obs, step)?,
        };
        match &mut self.acted {
            None => {
                for places in self.replay.stretches(before..self.replay.added()) {
                    self.tree.fill(places, self.max_priority);
                }
            }
            Some(acted) => {
                let errors = acted.push(env_idx.unwrap_or(0), step, values);
                assert_eq!(errors.len(), added, "an error for each transition");
                self.indices.clear();
                self.priorities.clear();
                for (number, error) in (before..self.replay.added()).zip(errors) {
                    let priority = match error.is_finite() {
                        true => power(error.abs() + self.epsilon, self.alpha),
                        false => self.max_priority,
                    };
                    self.max_priority = self.max_priority.max(priority);
                    self.indices.push((number % self.replay.capacity() as u64) as u32);
                    self.priorities.push(priority);
                }
                self.tree.set(&self.indices, &self.priorities)?;
            }
        }
        // Dropped for lack of frames.
        let overwritten = self.replay.added().saturating_sub(self.replay.capacity() as u64);
        for places in self.replay.stretches(oldest.max(overwritten)..self.replay.oldest) {
            self.tree.fill(places, 0.0);
        }
        Ok(added)
    }

    /// Drops the waiting steps; see [`ReplayBuffer::forget_waiting`].
    pub fn forget_waiting(&mut self) {
        self.replay.forget_waiting();
        if let Some(acted) = &mut self.acted {
            acted.windows.clear();
        }
    }

    /// Drops the waiting steps of an environment.
    ///
    /// See [`ReplayBuffer::forget_waiting_of`].
    ///
    /// # Panics
    /// If there is no such environment.
    pub fn forget_waiting_of(&mut self, env_idx: usize) {
        self.replay.forget_waiting_of(env_idx);
        if let Some(acted) = &mut self.acted {
            acted.windows.clear_env(env_idx);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.tree.fill(0..self.replay.used(), 0.0);
        self.forget_waiting();
        self.replay.clear();
        self.max_priority = 1.0;
    }

    /// Returns the largest action: see [`ReplayBuffer::max_action`].
    #[must_use]
    pub fn max_action(&self) -> u32 {
        self.replay.max_action()
    }

    /// Draws a batch in proportion to priorities, with one random word per transition.
    ///
    /// Importance weights correct the bias: fully with a `beta` of 1, not at all with 0. If all priorities are 0, all transitions
    /// are equally likely.
    ///
    /// # Errors
    /// [`Error::TooFew`] if the buffer is empty, [`Error::Setting`] unless `beta` is between 0 and 1.
    ///
    /// # Panics
    /// If the number of words differs from the batch size, the batch has another shape, or this is one of several shards.
    pub fn sample(&self, words: &[u32], beta: f32, batch: &mut Batch) -> Result<(), Error> {
        self.draw(words, beta, batch)?;
        self.replay.gather(batch);
        Ok(())
    }

    /// Draws a batch in proportion to priorities, with random words of `rng`.
    ///
    /// # Errors
    /// Those of [`PrioritizedReplayBuffer::sample`].
    ///
    /// # Panics
    /// If the batch has another shape, or this is one of several shards.
    pub fn sample_with(&self, rng: &mut Rng, beta: f32, batch: &mut Batch) -> Result<(), Error> {
        batch.with_words(rng, |words, batch| self.sample(words, beta, batch))
    }

    /// Draws the indices and weights of [`PrioritizedReplayBuffer::sample`] alone.
    ///
    /// A [`DeviceReplay`](crate::DeviceReplay) gathers their transitions.
    ///
    /// # Errors
    /// Those of [`PrioritizedReplayBuffer::sample`].
    ///
    /// # Panics
    /// If the number of words differs from the batch size.
    pub fn draw(&self, words: &[u32], beta: f32, batch: &mut Batch) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&beta) {
            return Err(Error::Setting { what: "beta", value: f64::from(beta), range: "between 0 and 1" });
        }
        let total = self.tree.total();
        if total == 0.0 {
            return self.replay.draw(words, batch);
        }
        let len = batch.len();
        assert_eq!(words.len(), len, "a word for each transition");
        if batch.targets.len() != len {
            batch.targets = filled(len, 0.0)?;
        }
        let share = total / len as f64;
        for (i, (target, &word)) in batch.targets.iter_mut().zip(words).enumerate() {
            *target = (i as f64 + f64::from(word) / 4_294_967_296.0) * share;
        }
        let mut targets = std::mem::take(&mut batch.targets);
        let Transitions { weights, indices, .. } = batch.columns_mut();
        self.tree.find(&mut targets, indices);
        // (N P_i)^-beta / max_j (N P_j)^-beta = (min_j p_j / p_i)^beta
        let mut least = f32::INFINITY;
        for (weight, &index) in weights.iter_mut().zip(&*indices) {
            *weight = self.tree.get(index as usize);
            least = least.min(*weight);
        }
        weights.iter_mut().for_each(|weight| *weight = power(least / *weight, beta));
        batch.targets = targets;
        batch.drawn_at = self.replay.added();
        Ok(())
    }

    /// Sets the priorities of a batch's transitions from their errors, (B).
    ///
    /// # Errors
    /// Those of [`PrioritizedReplayBuffer::update_priorities`].
    ///
    /// # Panics
    /// If the number of errors differs from the batch size.
    pub fn update(&mut self, batch: &Batch, errors: &[f32]) -> Result<usize, Error> {
        self.update_priorities(batch.columns().indices, batch.drawn_at(), errors)
    }

    /// Sets the priorities of drawn transitions from their errors, of either sign.
    ///
    /// The transitions were drawn at `indices` when `drawn_at` had been added ([`Batch::drawn_at`]). Indices that have been
    /// overwritten since are skipped; of several errors for one transition, the last one counts. Returns the number of priorities
    /// set.
    ///
    /// # Errors
    /// [`Error::Priority`] if an error is infinite or NaN, [`Error::Index`] if an index is out of range; nothing has changed
    /// then.
    ///
    /// # Panics
    /// If the numbers of indices and errors differ.
    pub fn update_priorities(&mut self, indices: &[u32], drawn_at: u64, errors: &[f32]) -> Result<usize, Error> {
        assert_eq!(indices.len(), errors.len(), "an error for each index");
        self.indices.clear();
        self.priorities.clear();
        let known = drawn_at <= self.replay.added();
        let [a, b] = self.replay.stretches(drawn_at..self.replay.added());
        let holds = |index: usize| known && !a.contains(&index) && !b.contains(&index) && self.replay.holds(index);
        let mut max_priority = self.max_priority;
        for (&index, &error) in indices.iter().zip(errors) {
            if index as usize >= self.replay.used() {
                return Err(Error::Index { index: u64::from(index), len: self.replay.used() });
            }
            let priority = power(error.abs() + self.epsilon, self.alpha);
            check_priority(index, if error.is_finite() { priority } else { error })?;
            if holds(index as usize) {
                max_priority = max_priority.max(priority);
                self.indices.push(index);
                self.priorities.push(priority);
            }
        }
        self.tree.set(&self.indices, &self.priorities)?;
        self.max_priority = max_priority;
        Ok(self.indices.len())
    }
}

/// Returns `x^y`, without computing it where the result is known.
///
/// The bits are the same on every machine.
#[inline(always)]
fn power(x: f32, y: f32) -> f32 {
    if y == 1.0 {
        x
    } else if y == 0.0 {
        1.0
    } else {
        math::exp(y * math::ln(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{History, chi_square, random, shape};

    /// Returns a full buffer of one-step transitions.
    fn full(capacity: usize, alpha: f32, epsilon: f32) -> (PrioritizedReplayBuffer, History) {
        let mut buffer = PrioritizedReplayBuffer::new(shape(1, 1), capacity, alpha, epsilon).expect("fits");
        let mut history = History::new(shape(1, 1), 5, 0.2);
        (0..capacity).for_each(|_| _ = history.step(|obs, step| buffer.push(obs, step).expect("finite")));
        (buffer, history)
    }

    fn drawn(buffer: &PrioritizedReplayBuffer, len: usize, beta: f32, rng: &mut rl_envs::Rng) -> Batch {
        let mut batch = buffer.replay().batch(len).expect("fits");
        let words: Vec<u32> = (0..len).map(|_| rng.next_u32()).collect();
        buffer.sample(&words, beta, &mut batch).expect("enough");
        batch
    }

    #[test]
    fn priorities_and_weights_equal_the_case_worked_out_by_hand() {
        // p = (|error| + 0.5)^0.5: errors 0.5, -3.5, 15.5, 8.5 make 1, 2, 4, 3, with the sum 10. Of 10 draws, one from each
        // tenth, the first is at 0, the next two at 1, four at 2, three at 3. N P = 0.4, 0.8, 1.6, 1.2, to the power -1: 2.5,
        // 1.25, 0.625, 0.8333; divided by the largest: 1, 0.5, 0.25, 0.3333.
        let (mut buffer, history) = full(4, 0.5, 0.5);
        let updated = buffer.update_priorities(&[0, 1, 2, 3], 4, &[0.5, -3.5, 15.5, 8.5]);
        assert_eq!(updated.expect("fine"), 4);
        let batch = drawn(&buffer, 10, 1.0, &mut random(1));
        assert_eq!(batch.columns().indices, [0, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
        for (weight, index) in batch.columns().weights.iter().zip(batch.columns().indices) {
            assert!((weight - [1.0, 0.5, 0.25, 1.0 / 3.0][*index as usize]).abs() < 1e-6);
        }
        history.assert_holds(&batch, 4);
        // Half of it: the square roots.
        let batch = drawn(&buffer, 10, 0.5, &mut random(1));
        assert!((batch.columns().weights[1] - 0.5f32.sqrt()).abs() < 1e-6);
        assert_eq!(drawn(&buffer, 10, 0.0, &mut random(1)).columns().weights, [1.0; 10]);
    }

    #[test]
    fn transitions_are_drawn_in_proportion_to_their_priorities() {
        for capacity in [1, 31, 33, 65] {
            let (mut buffer, _) = full(capacity, 1.0, 0.0);
            let errors: Vec<f32> = (0..capacity).map(|i| (i % 5) as f32 + f32::from(u8::from(capacity == 1))).collect();
            let indices: Vec<u32> = (0..capacity as u32).collect();
            buffer.update_priorities(&indices, capacity as u64, &errors).expect("fine");
            let (mut rng, mut counts) = (random(2), vec![0.0; capacity]);
            for _ in 0..3000 {
                drawn(&buffer, 7, 0.4, &mut rng).columns().indices.iter().for_each(|&index| counts[index as usize] += 1.0);
            }
            let total: f32 = errors.iter().sum();
            let expected: Vec<f64> = errors.iter().map(|&error| f64::from(error / total) * 21_000.0).collect();
            assert!(counts.iter().zip(&errors).all(|(&count, &error)| error > 0.0 || count == 0.0), "zero was drawn");
            chi_square(&counts, &expected);
        }
    }

    #[test]
    fn all_are_drawn_if_all_priorities_are_zero() {
        let (mut buffer, _) = full(33, 1.0, 0.0);
        let indices: Vec<u32> = (0..33).collect();
        buffer.update_priorities(&indices, 33, &[0.0; 33]).expect("fine");
        let batch = drawn(&buffer, 1000, 0.4, &mut random(2));
        assert!((0..33).all(|index| batch.columns().indices.contains(&index)));
        assert!(batch.columns().weights.iter().all(|&weight| weight == 1.0));
    }

    #[test]
    fn new_transitions_get_the_largest_priority_seen() {
        let (mut buffer, mut history) = full(5, 1.0, 0.0);
        assert!(buffer.priorities().iter().all(|p| p == 1.0));
        buffer.update_priorities(&[0, 1, 2, 3, 4], 5, &[0.5, 8.0, 0.5, 0.5, 0.5]).expect("fine");
        buffer.update_priorities(&[1], 5, &[0.25]).expect("fine");
        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
        assert_eq!(buffer.priorities().iter().collect::<Vec<_>>(), [8.0, 0.25, 0.5, 0.5, 0.5]);
        // Across the end of the ring, and more than fit.
        let mut buffer = PrioritizedReplayBuffer::new(shape(3, 1), 5, 1.0, 0.0).expect("fits");
        let mut history = History::new(shape(3, 1), 5, 0.0);
        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
        assert_eq!(buffer.priorities().iter().collect::<Vec<_>>(), [1.0, 1.0, 1.0, 0.0, 0.0]);
        buffer.update_priorities(&[0, 1, 2], 3, &[2.0; 3]).expect("fine");
        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
        assert_eq!(buffer.priorities().iter().collect::<Vec<_>>(), [2.0; 5]);
        let mut buffer = PrioritizedReplayBuffer::new(shape(33, 1), 5, 1.0, 0.0).expect("fits");
        History::new(shape(33, 1), 5, 0.0).step(|obs, step| buffer.push(obs, step).expect("finite"));
        assert_eq!(buffer.priorities().total(), 5.0);
    }

    #[test]
    fn a_late_update_does_not_touch_a_place_that_was_written_again() {
        let (mut buffer, mut history) = full(4, 1.0, 0.0);
        let drawn_at = buffer.replay().added();
        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
        assert_eq!(buffer.update_priorities(&[0, 1, 2, 3], drawn_at, &[9.0; 4]).expect("fine"), 2);
        assert_eq!(buffer.priorities().iter().collect::<Vec<_>>(), [1.0, 1.0, 9.0, 9.0]);
        (0..4).for_each(|_| _ = history.step(|obs, step| buffer.push(obs, step).expect("finite")));
        assert_eq!(buffer.update_priorities(&[0, 1, 2, 3], drawn_at, &[7.0; 4]).expect("fine"), 0);
        assert_eq!(buffer.priorities().iter().collect::<Vec<_>>(), [9.0; 4]);
    }

    #[test]
    fn bad_errors_and_settings_are_refused_and_change_nothing() {
        let (mut buffer, _) = full(4, 0.6, 0.01);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(buffer.update_priorities(&[0, 2], 4, &[50.0, bad]), Err(Error::Priority { index: 2, .. })));
        }
        assert!(matches!(buffer.update_priorities(&[0, 4], 4, &[50.0, 1.0]), Err(Error::Index { .. })));
        assert_eq!(buffer.priorities().total(), 4.0);
        assert_eq!(buffer.max_priority, 1.0);
        for bad in [f32::NAN, -0.1, 1.5] {
            assert!(PrioritizedReplayBuffer::new(shape(1, 1), 4, bad, 0.1).is_err());
            assert!(PrioritizedReplayBuffer::new(shape(1, 1), 4, 0.1, bad).is_err());
            let mut batch = buffer.replay().batch(1).expect("fits");
            assert!(buffer.sample(&[0], bad, &mut batch).is_err());
        }
        let empty = PrioritizedReplayBuffer::new(shape(1, 1), 4, 0.6, 0.01).expect("fits");
        let mut batch = empty.replay().batch(1).expect("fits");
        assert!(matches!(empty.sample(&[0], 0.4, &mut batch), Err(Error::TooFew { .. })));
        // The largest possible errors.
        let (mut buffer, _) = full(4, 1.0, 1.0);
        buffer.update_priorities(&[0, 1, 2, 3], 4, &[f32::MAX, 0.0, f32::MAX, 0.0]).expect("fine");
        let batch = drawn(&buffer, 8, 1.0, &mut random(2));
        assert!(batch.columns().weights.iter().all(|weight| weight.is_finite()));
    }
}
