//! Replay memory on a device.
//!
//! The host adds, draws, saves and loads transitions. The device has a copy of their rows, so each transition crosses once, and a
//! minibatch crosses as its indices and weights: 8 bytes a transition in place of its row.

use std::ops::Range;

use rl_cuda::targets::{Row, TargetKernels, WordColumns};
use rl_cuda::{Buffer, CpuAccess, Device, Element, PinnedSlab, Stream, ViewMut};
use rl_envs::{Actions, Obs, visit};

use crate::replay::batch::each_column;
use crate::replay::stretches;
use crate::rollout::device::Rest;
use crate::{Batch, DeviceBatch, ReplayBuffer, Transitions};

/// Bytes of the page-locked memory through which rows are copied.
const STAGED: usize = 1 << 20;

/// Copy of a replay memory on a device, from which it gathers minibatches.
///
/// All work must go to one stream.
#[derive(Debug)]
pub struct DeviceReplay {
    kernels: TargetKernels,
    words: Ring<u32>,
    /// Rows of byte observations (C, 2 D), or frames.
    bytes: Ring<u8>,
    row: Row,
    /// Frame indices of a minibatch's two observations, (B, k) each.
    ///
    /// Empty unless observations are stacked.
    places: [Buffer<u32>; 2],
}

/// Copy of a ring of rows.
#[derive(Debug)]
struct Ring<T: Element> {
    rows: Buffer<T>,
    staged: PinnedSlab<T>,
    /// Length of a row.
    width: usize,
    /// Number of rows added until the last copy.
    added: u64,
}

impl<T: Element> Ring<T> {
    fn new(device: &Device, rows: &[T], width: usize) -> Result<Self, rl_cuda::Error> {
        let staged = rows.len().min(STAGED / size_of::<T>());
        Ok(Self {
            rows: Buffer::zeros(device, rows.len())?,
            staged: PinnedSlab::zeros(Some(device), staged, CpuAccess::ReadWrite)?,
            width,
            added: 0,
        })
    }

    /// Copies the rows added since the last copy.
    fn update(&mut self, stream: &Stream, rows: &[T], added: u64) -> Result<(), rl_cuda::Error> {
        let Self { rows: there, staged, width, added: before } = self;
        if *width == 0 {
            return Ok(());
        }
        for Range { start, end } in stretches(*before..added, rows.len() / *width) {
            let numbers = start * *width..end * *width;
            for (at, part) in numbers.clone().step_by(staged.len()).zip(rows[numbers].chunks(staged.len())) {
                staged.write()?[..part.len()].copy_from_slice(part);
                stream.upload_async(&there.view_mut().into_slice(at..at + part.len()), staged)?;
            }
        }
        *before = added;
        Ok(())
    }
}

impl DeviceReplay {
    /// Allocates memory for a copy of `replay`, and for minibatches of `b` transitions.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// If `replay` is one of several shards.
    pub fn new(device: &Device, replay: &ReplayBuffer, b: usize) -> Result<Self, rl_cuda::Error> {
        assert!(replay.shard.is_whole(), "a copy has all transitions");
        let (row, stack) = (replay.device_row(), replay.shape().stack);
        let places = if stack > 1 { b * stack } else { 0 };
        Ok(Self {
            kernels: TargetKernels::new(device)?,
            words: Ring::new(device, replay.words(), row.len())?,
            bytes: match &replay.frames {
                Some(frames) => Ring::new(device, frames.data(), replay.shape().obs_len / stack)?,
                None => Ring::new(device, replay.obs_bytes(), replay.rows(1).1)?,
            },
            row,
            places: [Buffer::zeros(device, places)?, Buffer::zeros(device, places)?],
        })
    }

    /// Bytes of the device's memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.rows.bytes() + self.bytes.rows.bytes() + self.places.iter().map(Buffer::bytes).sum::<usize>()
    }

    /// Forgets all transitions, for a memory that was cleared or loaded.
    pub fn clear(&mut self) {
        (self.words.added, self.bytes.added) = (0, 0);
    }

    /// Copies what was added to `replay` since the last call, without waiting.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// If `replay` has another shape than the memory that this is a copy of.
    pub fn update(&mut self, stream: &Stream, replay: &ReplayBuffer) -> Result<(), rl_cuda::Error> {
        self.words.update(stream, replay.words(), replay.added())?;
        match &replay.frames {
            Some(frames) => self.bytes.update(stream, frames.data(), frames.pushed),
            None => self.bytes.update(stream, replay.obs_bytes(), replay.added()),
        }
    }

    /// Copies a batch's weights and indices, and gathers its transitions on the device.
    ///
    /// `batch` holds what [`ReplayBuffer::draw`] drew, in memory as for [`DeviceBatch::upload`].
    ///
    /// # Errors
    /// [`rl_cuda::Error::Kind`] or [`rl_cuda::Error::Length`] if shapes or lengths differ; errors of the device.
    pub fn gather(&mut self, stream: &Stream, batch: &Batch, to: &mut DeviceBatch) -> Result<(), rl_cuda::Error> {
        to.upload_drawn(stream, batch)?;
        let mut cut = Rest::of(&mut to.slab);
        let to = each_column!(to.spans, |span| cut.take_bits(span));
        let Transitions { rewards, discounts, next_masks, .. } = to;
        let (indices, Actions::Discrete(actions) | Actions::Continuous(actions)) = (to.indices.into_view(), to.actions);

        let Self { kernels, words, bytes, row, places } = self;
        let [at, next_at] = places;
        let (obs, obs_bytes) = in_words(to.obs, at);
        let (next_obs, next_bytes) = in_words(to.next_obs, next_at);
        let columns = WordColumns { obs, next_obs, actions, rewards, discounts, next_masks };
        kernels.gather_words(stream, &words.rows.view(), *row, &indices, &columns)?;
        let (rows, width) = (bytes.rows.view(), bytes.width);
        for (i, column) in [obs_bytes, next_bytes].into_iter().enumerate() {
            let Some(column) = column else { continue };
            let (part, indices) = match places[i].is_empty() {
                true => (i * width / 2..(i + 1) * width / 2, indices),
                false => (0..width, places[i].view()),
            };
            kernels.gather_bytes(stream, &rows, width, part, &indices, &column)?;
        }
        Ok(())
    }
}

/// Returns where the words of observations go, and the column of their bytes.
///
/// The words of byte observations are the indices of frames.
fn in_words<'a: 'b, 'b>(
    obs: Obs<ViewMut<'a, u32>, ViewMut<'a, u8>>,
    places: &'b mut Buffer<u32>,
) -> (ViewMut<'b, u32>, Option<ViewMut<'a, u8>>) {
    match obs {
        Obs::F32(words) => (words, None),
        Obs::U8(bytes) => (places.view_mut(), Some(bytes)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use rl_cuda::targets::WordBuffers;
    use rl_envs::{ActionKind, Dtype};

    use super::*;
    use crate::testing::{History, random, shape};
    use crate::{Memory, Pinned, TransitionShape};

    fn shapes() -> Vec<TransitionShape> {
        let masked = |a| ActionKind::Discrete { masked: Some(a) };
        let bytes = TransitionShape { obs: Dtype::U8, obs_len: 6, ..shape(7, 1) };
        vec![
            shape(7, 1),
            TransitionShape { actions: ActionKind::Continuous { len: 3 }, ..shape(3, 3) },
            TransitionShape { actions: masked(4), ..shape(1, 1) },
            TransitionShape { actions: masked(6), ..bytes },
            TransitionShape { actions: masked(5), stack: 3, ..bytes },
            TransitionShape { n_step: 3, stack: 2, ..bytes },
        ]
    }

    /// Compares minibatches gathered on a device with the transitions that were added.
    fn compare(device: &Device, lens: &[usize]) {
        let stream = device.stream().unwrap();
        let memory: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
        for shape in shapes() {
            let capacity = 49;
            let mut replay = ReplayBuffer::new(shape, capacity).unwrap();
            for &n in lens {
                let mut there = DeviceReplay::new(device, &replay, n).unwrap();
                let mut drawn = Batch::new_in(&shape, n, &memory).unwrap();
                let mut on_device = DeviceBatch::new(device, &shape, n).unwrap();
                let (mut rng, mut history) = (random(n as u64), History::new(shape, n as u64, 0.2));
                replay.clear();
                // The last rounds are longer than the ring, and as long as it.
                for steps in [1, 4, 3, 2 * capacity, capacity] {
                    for _ in 0..steps {
                        history.step(|obs, step| replay.push(obs, step).unwrap());
                    }
                    if replay.is_empty() {
                        continue;
                    }
                    let words: Vec<u32> = (0..n).map(|_| rng.next_u32()).collect();
                    replay.draw(&words, &mut drawn).unwrap();
                    there.update(&stream, &replay).unwrap();
                    there.gather(&stream, &drawn, &mut on_device).unwrap();
                    let mut found = replay.batch(n).unwrap();
                    on_device.download(&stream, &mut found).unwrap();
                    history.assert_holds(&found, capacity);
                    let mut expected = replay.batch(n).unwrap();
                    replay.sample(&words, &mut expected).unwrap();
                    assert_eq!(found.columns(), expected.columns(), "{device}, {shape:?}, {n} of {steps} steps");
                    assert_eq!(drawn.drawn_at(), expected.drawn_at());
                }
            }
        }
        // An index beyond the last row reads the last row.
        let (kernels, row) = (TargetKernels::new(device).unwrap(), Row { obs: 0, action: 1, mask_len: 0 });
        let (mut words, mut indices) = (Buffer::zeros(device, 6).unwrap(), Buffer::zeros(device, 2).unwrap());
        stream.upload(&words.view_mut(), &[1, 2, 3, 4, 5, 6]).unwrap();
        stream.upload(&indices.view_mut(), &[9, 0]).unwrap();
        let mut to = WordBuffers::zeros(device, row, 2).unwrap();
        kernels.gather_words(&stream, &words.view(), row, &indices.view(), &to.columns()).unwrap();
        let mut actions = [0; 2];
        stream.download(&mut actions, &to.words[2].view()).unwrap();
        assert_eq!(actions, [4, 1]);
    }

    #[test]
    fn minibatches_gathered_on_a_device_are_the_hosts() {
        Device::for_tests().iter().for_each(|device| compare(device, &[1, 31, 33, 65]));
    }

    #[test]
    fn rows_beyond_the_page_locked_memory_are_copied_in_parts() {
        for device in &Device::for_tests() {
            let stream = device.stream().unwrap();
            let rows: Vec<u32> = (0..100).collect();
            let mut ring = Ring::new(device, &rows, 5).unwrap();
            ring.staged = PinnedSlab::zeros(Some(device), 7, CpuAccess::ReadWrite).unwrap();
            for added in [3, 20, 26] {
                ring.update(&stream, &rows, added).unwrap();
            }
            let mut found = vec![0; 100];
            stream.download(&mut found, &ring.rows.view()).unwrap();
            assert_eq!(found, rows, "{device}");
        }
    }

    #[test]
    fn a_memory_that_was_loaded_is_copied_again() {
        for device in &Device::for_tests() {
            let (stream, shape) = (device.stream().unwrap(), shape(3, 1));
            let mut replays = [1, 2].map(|seed| {
                let (mut replay, mut history) = (ReplayBuffer::new(shape, 30).unwrap(), History::new(shape, seed, 0.2));
                (0..9).for_each(|_| _ = history.step(|obs, step| replay.push(obs, step).unwrap()));
                replay
            });
            let mut there = DeviceReplay::new(device, &replays[0], 8).unwrap();
            there.update(&stream, &replays[0]).unwrap();
            let mut saved = Vec::new();
            replays[1].save(&mut saved).unwrap();
            replays[0].restore(&mut &saved[..]).unwrap();
            there.clear();
            there.update(&stream, &replays[0]).unwrap();
            let mut found = vec![0; replays[1].words().len()];
            stream.download(&mut found, &there.words.rows.view()).unwrap();
            assert!(found[..27 * there.words.width] == replays[1].words()[..27 * there.words.width], "{device}");
        }
    }

    #[test]
    fn mistakes_planted_into_gather_are_noticed() {
        let mistakes = [
            ["index < n_rows ? index : n_rows - 1", "index < n_rows ? index : n_rows - 2"],
            ["index < n_rows ? index : n_rows - 1", "index < n_rows ? index : 0"],
            ["(row.mask_len + 3) / 4", "row.mask_len / 4"],
            ["if (i >= (u64)n * len) return;", "if (i >= (u64)n * len - 1) return;"],
            ["8 * (m & 3)", "8 * (m & 1)"],
            ["m < row.mask_len", "m < row.mask_len - 1"],
            [
                "batch.rewards[b] = word;\n    } else if (j == 1) {\n        batch.discounts[b]",
                "batch.discounts[b] = word;\n    } else if (j == 1) {\n        batch.rewards[b]",
            ],
            ["batch.next_obs[b * row.obs + j] = word;", "batch.obs[b * row.obs + j] = word;"],
            ["if (i >= (u64)n * part.len) return;", "if (i >= (u64)n * part.len - 1) return;"],
            ["row * part.stride + part.first", "row * part.stride"],
            ["row * part.stride", "row * part.len"],
            ["indices[i / part.len]", "indices[i / part.stride]"],
        ];
        let unnoticed = Device::unnoticed("gather.cu", &mistakes, |device| compare(device, &[33]));
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
