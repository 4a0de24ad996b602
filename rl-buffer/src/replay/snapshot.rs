//! Saving and loading of replay buffers.
//!
//! A buffer is the largest part of a checkpoint, so it is written row by row, without a second copy in memory: numbers of fixed
//! width, little-endian, first the buffer's settings, then its content. Loading creates a new buffer from the reader's settings;
//! a file's header must agree with them, so nothing is allocated on its word. [`ReplayBuffer::load_any`] alone takes the header's
//! settings, if they fit into memory.

use std::io::{ErrorKind, Read, Write};

use rl_envs::{ActionKind, Dtype, ObsRows};

use crate::memory::filled;
use crate::replay::frames::Frames;
use crate::replay::transition::Windows;
use crate::{Error, PrioritizedReplayBuffer, ReplayBuffer, TransitionShape};

/// First number of a file.
const MAGIC: u64 = u64::from_le_bytes(*b"rlreplay");
const VERSION: u64 = 1;
/// Numbers that are converted at a time.
const CHUNK: usize = 1 << 14;

/// A number of fixed width.
trait Number: Copy {
    fn put(self, out: &mut Vec<u8>);
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<Self>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
        }
    )*};
}

numbers!(u8, u32, u64, f32);

fn write<T: Number>(out: &mut impl Write, numbers: &[T]) -> Result<(), Error> {
    let mut bytes = Vec::new();
    for chunk in numbers.chunks(CHUNK) {
        bytes.clear();
        chunk.iter().for_each(|number| number.put(&mut bytes));
        out.write_all(&bytes)?;
    }
    Ok(())
}

fn read<T: Number>(input: &mut impl Read, numbers: &mut [T]) -> Result<(), Error> {
    let mut bytes = vec![0; CHUNK.min(numbers.len()) * size_of::<T>()];
    for chunk in numbers.chunks_mut(CHUNK) {
        let bytes = &mut bytes[..size_of_val(chunk)];
        input.read_exact(bytes).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => bad("ends too early"),
            _ => Error::Io(e),
        })?;
        chunk.iter_mut().zip(bytes.chunks(size_of::<T>())).for_each(|(number, bytes)| *number = T::get(bytes));
    }
    Ok(())
}

fn bad(what: impl Into<String>) -> Error {
    Error::BadState(what.into())
}

/// Returns an error unless `ok`.
fn ensure(ok: bool, what: &'static str) -> Result<(), Error> {
    if ok { Ok(()) } else { Err(bad(what)) }
}

/// Checks that nothing follows.
fn end(input: &mut impl Read) -> Result<(), Error> {
    match input.read_exact(&mut [0]) {
        Ok(()) => Err(bad("has bytes after its end")),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(()),
        Err(e) => Err(Error::Io(e)),
    }
}

/// Numbers that must agree when a buffer is loaded, each with its name.
fn header(shape: &TransitionShape, capacity: usize) -> [(&'static str, u64); 12] {
    let (kind, masked) = match shape.actions {
        ActionKind::Discrete { masked } => (0, masked),
        ActionKind::Continuous { .. } => (1, None),
    };
    [
        ("the kind of file", MAGIC),
        ("the version", VERSION),
        ("the number of environments", shape.n_envs as u64),
        ("the length of an observation", shape.obs_len as u64),
        ("the type of observations", u64::from(shape.obs == Dtype::U8)),
        ("the number of stacked frames", shape.stack as u64),
        ("the kind of actions", kind),
        ("the length of an action", shape.action_len() as u64),
        ("the length of a mask", masked.unwrap_or(0) as u64),
        ("n_step", shape.n_step as u64),
        ("gamma (its bits)", u64::from(shape.gamma.to_bits())),
        ("the capacity", capacity as u64),
    ]
}

impl ReplayBuffer {
    /// Writes the whole buffer, including waiting steps.
    ///
    /// # Errors
    /// [`Error::Io`] if `out` cannot be written, [`Error::BadState`] for one of several shards.
    pub fn save(&self, out: &mut impl Write) -> Result<(), Error> {
        self.check_whole()?;
        write(out, &header(self.shape(), self.capacity()).map(|(_, value)| value))?;
        write(out, &[self.added, self.oldest])?;
        let (words, bytes) = self.rows(self.used());
        write(out, &self.words()[..words])?;
        write(out, &self.obs_bytes()[..bytes])?;
        if let Some(windows) = &self.windows {
            windows.save(out)?;
        }
        if let Some(frames) = &self.frames {
            frames.save(self.used(), out)?;
        }
        Ok(())
    }

    /// Loads a saved buffer, which must end where the input does.
    ///
    /// # Errors
    /// Errors of [`ReplayBuffer::new`]; [`Error::BadState`] if the input is damaged or its shape or capacity differs;
    /// [`Error::Io`] if it cannot be read.
    pub fn load(shape: TransitionShape, capacity: usize, input: &mut impl Read) -> Result<Self, Error> {
        let mut buffer = Self::new(shape, capacity)?;
        buffer.restore(input)?;
        Ok(buffer)
    }

    /// Loads the transitions of a saved buffer of any shape and capacity.
    ///
    /// The buffer may be a prioritized one. `len` is the length of the input in bytes.
    ///
    /// # Errors
    /// Errors of [`ReplayBuffer::new`], for instance if it does not fit into memory; [`Error::BadState`] if the input is damaged
    /// or no saved buffer; [`Error::Io`] if it cannot be read.
    pub fn load_any(input: &mut impl Read, len: u64) -> Result<Self, Error> {
        let mut numbers = [0; 12];
        read(input, &mut numbers)?;
        let [magic, version, n_envs, obs_len, bytes, stack, kind, action_len, mask_len, n_step, gamma, capacity] = numbers;
        ensure([magic, version] == [MAGIC, VERSION], "is no replay memory of this version")?;
        let size = |number: u64| usize::try_from(number).map_err(|_| bad("is larger than this machine can address"));
        let (mask_len, action_len) = (size(mask_len)?, size(action_len)?);
        let shape = TransitionShape {
            n_envs: size(n_envs)?,
            obs_len: size(obs_len)?,
            obs: if bytes == 1 { Dtype::U8 } else { Dtype::F32 },
            stack: size(stack)?,
            actions: match kind {
                0 => ActionKind::Discrete { masked: (mask_len > 0).then_some(mask_len) },
                _ => ActionKind::Continuous { len: action_len },
            },
            n_step: size(n_step)?,
            gamma: f32::from_bits(gamma as u32),
        };
        let capacity = size(capacity)?;
        ensure(header(&shape, capacity).map(|(_, number)| number) == numbers, "has an impossible header")?;
        shape.check()?;
        let mut counts = [0; 2];
        read(input, &mut counts)?;
        // Rows up to the number that were written are all that the file can fill.
        let used = counts[0].min(capacity as u64);
        let bytes = used.saturating_mul(Self::bytes_per_transition(&shape.stored()) as u64);
        ensure(used > 0 && bytes <= len, "holds nothing, or ends too early")?;
        // Those of windows, less the powers of gamma, are in the file.
        let windows = if shape.n_step > 1 { Windows::bytes(&shape.stored()) - 4 * (shape.n_step as u128 + 1) } else { 0 };
        ensure(windows <= u128::from(len), "ends too early")?;
        let mut buffer = Self::new(shape, if stack > 1 { capacity } else { used as usize })?;
        buffer.fill_content(counts, input)?;
        Ok(buffer)
    }

    /// Replaces the content by a saved one, without allocating; empty after an error.
    ///
    /// # Errors
    /// Errors of [`ReplayBuffer::load`].
    pub fn restore(&mut self, input: &mut impl Read) -> Result<(), Error> {
        let read = self.fill_from(input).and_then(|()| end(input));
        if read.is_err() {
            self.clear();
        }
        read
    }

    /// Refuses a shard: a file has all transitions.
    fn check_whole(&self) -> Result<(), Error> {
        ensure(self.shard.is_whole(), "has all transitions, but this one is a shard of several")
    }

    fn fill_from(&mut self, input: &mut impl Read) -> Result<(), Error> {
        self.check_whole()?;
        for (what, expected) in header(self.shape(), self.capacity()) {
            let mut found = [0];
            read(input, &mut found)?;
            if found != [expected] {
                return Err(bad(format!("has another value for {what}: {} instead of {expected}", found[0])));
            }
        }
        let mut counts = [0; 2];
        read(input, &mut counts)?;
        self.fill_content(counts, input)
    }

    /// Reads what follows the header and the counts of transitions.
    fn fill_content(&mut self, counts: [u64; 2], input: &mut impl Read) -> Result<(), Error> {
        let [added, oldest] = counts;
        ensure(added <= u64::MAX / 2, "counts too many transitions")?;
        let oldest_possible = if self.frames.is_some() { added.saturating_sub(self.capacity() as u64)..=added } else { 0..=0 };
        ensure(oldest_possible.contains(&oldest), "begins with a transition that it cannot hold")?;
        [self.added, self.oldest] = counts;
        let (words, bytes) = self.rows(self.used());
        let (word_rows, byte_rows) = self.rows_mut();
        read(input, &mut word_rows[..words])?;
        read(input, &mut byte_rows[..bytes])?;
        ensure(self.numbers().all(|(reward, _)| reward.is_finite()), "holds a reward that is not finite")?;
        ensure(
            self.numbers().all(|(_, discount)| (0.0..=1.0).contains(&discount)),
            "holds a discount that is not between 0 and 1",
        )?;
        if let Some(windows) = &mut self.windows {
            windows.fill_from(input)?;
        }
        let used = self.used();
        if let Some(frames) = &mut self.frames {
            frames.fill_from(used, input)?;
            let places = frames.places as u32;
            let mut waiting = self.windows.iter().flat_map(|windows| windows.obs.as_ref().either(|obs| &obs[..], |_| &[]));
            let fine = self.places().all(|place| place < places) && waiting.all(|place| place.to_bits() < places);
            ensure(fine, "refers to a frame that does not exist")?;
        }
        Ok(())
    }
}

impl Windows {
    fn save(&self, out: &mut impl Write) -> Result<(), Error> {
        write(out, &self.oldest)?;
        write(out, &self.waiting)?;
        write(out, &self.sums)?;
        write(out, &self.actions)?;
        match &self.obs {
            ObsRows::F32(obs) => write(out, obs),
            ObsRows::U8(obs) => write(out, obs),
        }
    }

    fn fill_from(&mut self, input: &mut impl Read) -> Result<(), Error> {
        read(input, &mut self.oldest)?;
        read(input, &mut self.waiting)?;
        read(input, &mut self.sums)?;
        read(input, &mut self.actions)?;
        match &mut self.obs {
            ObsRows::F32(obs) => read(input, obs)?,
            ObsRows::U8(obs) => read(input, obs)?,
        }
        let n_step = self.powers.len() as u32 - 1;
        ensure(self.oldest.iter().chain(&self.waiting).all(|&x| x < n_step), "has too many steps waiting")?;
        ensure(self.sums.iter().all(|sum| sum.is_finite()), "holds a reward that is not finite")
    }
}

impl Frames {
    fn save(&self, transitions: usize, out: &mut impl Write) -> Result<(), Error> {
        let before: Vec<u64> = self.before.iter().copied().collect();
        write(out, &[self.pushed, before.len() as u64])?;
        write(out, &before)?;
        write(out, &self.lows[..transitions])?;
        write(out, &self.current)?;
        write(out, &self.known)?;
        write(out, &self.data()[..self.used_bytes()])
    }

    fn fill_from(&mut self, transitions: usize, input: &mut impl Read) -> Result<(), Error> {
        let mut counts = [0; 2];
        read(input, &mut counts)?;
        ensure(counts[0] <= u64::MAX / 2 && counts[1] <= self.steps_back() as u64 + 1, "counts too many frames or steps")?;
        let mut before = filled(counts[1] as usize, 0)?;
        read(input, &mut before)?;
        self.pushed = counts[0];
        self.before = before.into();
        read(input, &mut self.lows[..transitions])?;
        read(input, &mut self.current)?;
        read(input, &mut self.known)?;
        ensure(self.current.iter().all(|&place| (place as usize) < self.places), "refers to a frame that does not exist")?;
        let used = self.used_bytes();
        read(input, &mut self.data_mut()[..used])
    }
}

impl PrioritizedReplayBuffer {
    /// Writes the whole buffer; see [`ReplayBuffer::save`].
    ///
    /// # Errors
    /// [`Error::Io`] if `out` cannot be written.
    pub fn save(&self, out: &mut impl Write) -> Result<(), Error> {
        self.replay.save(out)?;
        write(out, &[self.alpha, self.epsilon, self.max_priority])?;
        if let Some(acted) = &self.acted {
            acted.windows.save(out)?;
        }
        let mut priorities = self.tree.iter().take(self.replay.used());
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            chunk.extend(priorities.by_ref().take(CHUNK));
            if chunk.is_empty() {
                return Ok(());
            }
            write(out, &chunk)?;
        }
    }

    /// Loads a saved buffer; see [`ReplayBuffer::load`].
    ///
    /// # Errors
    /// Errors of [`PrioritizedReplayBuffer::new`]; [`Error::BadState`] if the input is damaged or its settings differ;
    /// [`Error::Io`] if it cannot be read.
    pub fn load(shape: TransitionShape, capacity: usize, alpha: f32, epsilon: f32, input: &mut impl Read) -> Result<Self, Error> {
        let mut buffer = Self::new(shape, capacity, alpha, epsilon)?;
        buffer.restore(input)?;
        Ok(buffer)
    }

    /// Replaces the content by a saved one; see [`ReplayBuffer::restore`].
    ///
    /// # Errors
    /// Errors of [`PrioritizedReplayBuffer::load`].
    pub fn restore(&mut self, input: &mut impl Read) -> Result<(), Error> {
        self.clear();
        let read = self.fill_from(input).and_then(|()| end(input));
        if read.is_err() {
            self.clear();
        }
        read
    }

    fn fill_from(&mut self, input: &mut impl Read) -> Result<(), Error> {
        self.replay.fill_from(input)?;
        let mut numbers = [0.0; 3];
        read(input, &mut numbers)?;
        ensure(numbers[..2] == [self.alpha, self.epsilon], "has another alpha or epsilon")?;
        ensure(numbers[2] > 0.0 && numbers[2].is_finite(), "has an impossible largest priority")?;
        self.max_priority = numbers[2];
        if let Some(acted) = &mut self.acted {
            acted.windows.fill_from(input)?;
            let fine = match &self.replay.windows {
                Some(steps) => steps.waiting == acted.windows.waiting,
                None => acted.windows.waiting.iter().all(|&waiting| waiting == 0),
            };
            ensure(fine, "has waiting values without their steps")?;
        }
        let len = self.replay.used();
        let mut priorities = filled(CHUNK.min(len), 0.0)?;
        for start in (0..len).step_by(CHUNK) {
            let end = (start + CHUNK).min(len);
            let priorities = &mut priorities[..end - start];
            read(input, priorities)?;
            let indices: Vec<u32> = (start as u32..end as u32).collect();
            self.tree.set(&indices, priorities).map_err(|e| bad(e.to_string()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;
    use crate::testing::{History, random, shape};
    use proptest::prelude::*;

    fn drawn(buffer: &PrioritizedReplayBuffer) -> Batch {
        let (mut batch, mut rng) = (buffer.replay().batch(33).expect("fits"), random(4));
        let words: Vec<u32> = (0..33).map(|_| rng.next_u32()).collect();
        buffer.sample(&words, 0.4, &mut batch).expect("enough");
        batch
    }

    fn load(shape: TransitionShape, bytes: &[u8]) -> Result<PrioritizedReplayBuffer, Error> {
        PrioritizedReplayBuffer::load(shape, 40, 0.6, 0.01, &mut &bytes[..])
    }

    /// Buffers of all kinds after a few steps, with their history.
    fn cases() -> impl Iterator<Item = (PrioritizedReplayBuffer, History)> {
        let shapes = [
            shape(1, 1),
            TransitionShape { obs: Dtype::U8, actions: ActionKind::Discrete { masked: Some(5) }, ..shape(3, 4) },
            TransitionShape { actions: ActionKind::Continuous { len: 2 }, ..shape(5, 3) },
            TransitionShape { obs: Dtype::U8, obs_len: 6, stack: 3, ..shape(2, 1) },
            TransitionShape { obs: Dtype::U8, obs_len: 6, stack: 2, ..shape(2, 3) },
        ];
        shapes.into_iter().flat_map(|shape| {
            [7, 60].map(|steps| {
                let mut buffer = PrioritizedReplayBuffer::new(shape, 40, 0.6, 0.01).expect("fits");
                let mut history = History::new(shape, 8, 0.1);
                (0..steps).for_each(|_| _ = history.step(|obs, step| buffer.push(obs, step).expect("finite")));
                let added = buffer.replay().added();
                buffer.update_priorities(&[0, 2, 1], added, &[3.0, 0.5, 1.0]).expect("fine");
                (buffer, history)
            })
        })
    }

    fn saved(buffer: &PrioritizedReplayBuffer) -> Vec<u8> {
        let mut bytes = Vec::new();
        buffer.save(&mut bytes).expect("writes");
        bytes
    }

    #[test]
    fn a_buffer_that_was_read_back_goes_on_as_the_one_that_was_saved() {
        for (mut buffer, mut history) in cases() {
            let bytes = saved(&buffer);
            let mut again = load(*buffer.replay().shape(), &bytes).expect("reads");
            assert_eq!(saved(&again), bytes);
            for _ in 0..9 {
                history.step(|obs, step| {
                    assert_eq!(buffer.push(obs, step).expect("finite"), again.push(obs, step).expect("finite"))
                });
                assert_eq!(drawn(&again).columns(), drawn(&buffer).columns());
            }
            history.assert_holds(&drawn(&again), 40);
            let mut plain = Vec::new();
            buffer.replay().save(&mut plain).expect("writes");
            let again = ReplayBuffer::load(*buffer.replay().shape(), 40, &mut &plain[..]).expect("reads");
            assert_eq!(again.added(), buffer.replay().added());
        }
    }

    #[test]
    fn a_buffer_is_restored_in_place_whatever_it_held_and_is_empty_after_a_failure() {
        let other = |at: usize| cases().nth(at).expect("there are ten").0;
        for (at, (mut buffer, _)) in cases().enumerate() {
            // The shapes come in pairs: one buffer is filled, one nearly empty.
            let bytes = saved(&other(at ^ 1));
            buffer.restore(&mut &bytes[..]).expect("restores");
            assert_eq!(saved(&buffer), bytes);
            assert_eq!(drawn(&buffer).columns(), drawn(&other(at ^ 1)).columns());
            buffer.restore(&mut &bytes[..bytes.len() - 1]).expect_err("cut");
            assert!(buffer.replay().is_empty() && buffer.priorities().total() == 0.0);
            buffer.restore(&mut &bytes[..]).expect("restores after a failure");
            assert_eq!(saved(&buffer), bytes);
            let mut plain = buffer.replay().clone();
            plain.restore(&mut &bytes[..9]).expect_err("cut");
            assert!(plain.is_empty());
        }
    }

    #[test]
    fn waiting_values_are_saved_with_their_steps() {
        let new = |shape| PrioritizedReplayBuffer::new(shape, 40, 0.6, 0.01).expect("fits");
        let acted = |shape| new(shape).with_acted_priorities().expect("fits");
        for shape in [shape(2, 1), shape(3, 4)] {
            let [mut buffer, mut again] = [acted(shape), acted(shape)];
            let mut history = History::new(shape, 8, 0.1);
            let mut step = |buffers: &mut [&mut PrioritizedReplayBuffer]| {
                history.step(|obs, step| {
                    let values = [step.rewards, step.rewards].map(|rewards| rewards.iter().map(|x| x / 3.0).collect::<Vec<_>>());
                    let values = crate::ActedValues { taken: &values[0], next: &values[1] };
                    for buffer in buffers {
                        buffer.push_acted(None, obs, step, values).expect("finite");
                    }
                });
            };
            (0..9).for_each(|_| step(&mut [&mut buffer]));
            let bytes = saved(&buffer);
            again.restore(&mut &bytes[..]).expect("reads");
            assert_eq!(saved(&again), bytes);
            for _ in 0..9 {
                step(&mut [&mut buffer, &mut again]);
                assert_eq!(saved(&again), saved(&buffer));
            }
            for cut in 0..bytes.len() {
                assert!(again.restore(&mut &bytes[..cut]).is_err());
            }
            // With and without values, neither loads the other.
            assert!(load(shape, &bytes).is_err());
            if shape.n_step > 1 {
                let waiting = &mut buffer.acted.as_mut().expect("values").windows.waiting[0];
                *waiting = (*waiting + 1) % 4;
                let error = again.restore(&mut &saved(&buffer)[..]).expect_err("refused").to_string();
                assert!(error.contains("without their steps"), "{error}");
            }
            let mut plain = new(shape);
            history.step(|obs, step| plain.push(obs, step).expect("finite"));
            assert!(again.restore(&mut &saved(&plain)[..]).is_err());
        }
    }

    #[test]
    fn a_file_of_another_buffer_or_length_is_refused() {
        for (buffer, _) in cases() {
            let (bytes, shape) = (saved(&buffer), *buffer.replay().shape());
            for cut in 0..bytes.len() {
                assert!(load(shape, &bytes[..cut]).is_err());
            }
            assert!(load(shape, &[&bytes[..], &[0]].concat()).is_err());
            for other in [
                TransitionShape { n_envs: shape.n_envs + 1, ..shape },
                TransitionShape { obs_len: 2 * shape.obs_len, ..shape },
                TransitionShape { gamma: 0.5, ..shape },
                TransitionShape { n_step: 2, ..shape },
            ] {
                let error = load(other, &bytes).expect_err("refused").to_string();
                assert!(error.contains("has another value for"), "{error}");
            }
            assert!(PrioritizedReplayBuffer::load(shape, 41, 0.6, 0.01, &mut &bytes[..]).is_err());
            assert!(PrioritizedReplayBuffer::load(shape, 40, 0.5, 0.01, &mut &bytes[..]).is_err());
        }
    }

    #[test]
    fn hostile_numbers_are_refused() {
        for (buffer, _) in cases() {
            let (bytes, shape) = (saved(&buffer), *buffer.replay().shape());
            for at in 0..14 {
                for claim in [u64::MAX, 1 << 63, 1 << 40] {
                    let mut bytes = bytes.clone();
                    bytes[8 * at..][..8].copy_from_slice(&claim.to_le_bytes());
                    // 2^40 transitions may have been added, but other claims disagree with the rest of the file.
                    assert!(load(shape, &bytes).is_err() || (at == 12 && claim == 1 << 40));
                }
            }
            for bad in [f32::NAN, f32::INFINITY, -1.0] {
                let mut bytes = bytes.clone();
                let at = bytes.len() - 4;
                bytes[at..].copy_from_slice(&bad.to_le_bytes());
                assert!(load(shape, &bytes).is_err());
            }
        }
    }

    #[test]
    fn more_steps_than_can_wait_are_refused() {
        for (buffer, _) in cases().filter(|(buffer, _)| buffer.replay().shape().n_step > 1) {
            let (replay, bytes) = (buffer.replay(), saved(&buffer));
            let (words, obs) = replay.rows(replay.used());
            let n_envs = replay.shape().n_envs;
            let [oldest, waiting] = [0, n_envs].map(|at| 14 * 8 + 4 * words + obs + 4 * at);
            for at in [oldest, waiting + 4 * (n_envs - 1)] {
                let mut bytes = bytes.clone();
                bytes[at..][..4].copy_from_slice(&(replay.shape().n_step as u32).to_le_bytes());
                let error = load(*replay.shape(), &bytes).expect_err("refused").to_string();
                assert!(error.contains("steps waiting"), "{error}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_file_is_refused_or_makes_a_buffer_that_works(
            changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        ) {
            for (buffer, mut history) in cases() {
                let mut bytes = saved(&buffer);
                let len = bytes.len();
                changes.iter().for_each(|&(at, value)| bytes[at % len] = value);
                if let Ok(mut buffer) = load(*buffer.replay().shape(), &bytes) {
                    for _ in 0..5 {
                        history.step(|obs, step| buffer.push(obs, step).expect("finite"));
                        if !buffer.replay().is_empty() {
                            drawn(&buffer);
                        }
                    }
                }
            }
        }
    }
}
