//! Draws from a replay memory, and the copies of drawn transitions to a batch.
//!
//! Speed: with D = 4, a row is 44 bytes. A random row covers 1.7 lines of 64 bytes on average, so a draw reads 108 bytes, and
//! writes 48 to the batch, which stays in the cache; an addition reads 44 bytes (and the row's lines before they are written) and
//! writes 44. Lines in memory are some 100 ns away, and a core fetches a dozen or more at once if it knows them early enough: 10
//! ns per transition. A short pass therefore first touches every line of the next rows, and other passes copy them. On one thread
//! with a million transitions, that gave 42 M/s, a single pass 20 M/s. (A loop for this shape alone gave 24 M/s in one pass, 56
//! to 66 M/s in two, and 59 to 71 M/s with prefetch instructions, which need unsafe code; rows padded to a line of 64 bytes gave
//! 60 to 76 M/s, not worth the memory.) Additions reached 100 M/s, 4.5 GB/s.

use std::hint::black_box;

use rl_envs::{ActionSliceMut, ObsSliceMut, Rng, rng};

use crate::replay::batch::TransitionSlicesMut;
use crate::replay::row::{load, load_mask, with_obs_len};
use crate::{Batch, Error, ReplayBuffer, Transitions};

/// Words of a cache line.
const LINE: usize = 16;
/// Words touched before they are copied: they stay in the first cache until then.
const AHEAD: usize = 4096;

impl ReplayBuffer {
    fn enough(&self, needed: usize) -> Result<(), Error> {
        if self.len() < needed { Err(Error::TooFew { needed, held: self.len() }) } else { Ok(()) }
    }

    /// Draws a batch uniformly with replacement, with one random word per transition.
    ///
    /// # Errors
    /// [`Error::TooFew`] if the buffer is empty.
    ///
    /// # Panics
    /// If the number of words differs from the batch size, the batch has another shape, or this is one of several shards.
    pub fn sample(&self, words: &[u32], batch: &mut Batch) -> Result<(), Error> {
        self.draw(words, batch)?;
        self.gather(batch);
        Ok(())
    }

    /// Draws a batch uniformly with replacement, with random words of `rng`.
    ///
    /// # Errors
    /// [`Error::TooFew`] if the buffer is empty.
    ///
    /// # Panics
    /// If the batch has another shape, or this is one of several shards.
    pub fn sample_with(&self, rng: &mut Rng, batch: &mut Batch) -> Result<(), Error> {
        batch.with_words(rng, |words, batch| self.sample(words, batch))
    }

    /// Draws the indices and weights of [`ReplayBuffer::sample`] alone.
    ///
    /// A [`DeviceReplay`](crate::DeviceReplay) gathers their transitions.
    ///
    /// # Errors
    /// [`Error::TooFew`] if the buffer is empty.
    ///
    /// # Panics
    /// If the number of words differs from the batch size.
    pub fn draw(&self, words: &[u32], batch: &mut Batch) -> Result<(), Error> {
        self.enough(1)?;
        assert_eq!(words.len(), batch.len(), "a word for each transition");
        let n = self.len() as u32; // at most the capacity, which fits
        let Transitions { weights, indices, .. } = batch.columns_mut();
        indices.iter_mut().zip(words).for_each(|(index, &word)| *index = rng::below(word, n));
        self.shift(indices);
        weights.fill(1.0);
        batch.drawn_at = self.added;
        Ok(())
    }

    /// Copies neighbouring transitions to a batch, from `first` on.
    ///
    /// That is an index of the ring, and with stacked frames the number of older transitions.
    ///
    /// # Errors
    /// [`Error::TooFew`] if there are not enough.
    ///
    /// # Panics
    /// If the batch has another shape, or this is one of several shards.
    pub fn copy_to(&self, first: usize, batch: &mut Batch) -> Result<(), Error> {
        self.enough(first.saturating_add(batch.len()))?;
        let Transitions { weights, indices, .. } = batch.columns_mut();
        indices.iter_mut().zip(first as u32..).for_each(|(index, number)| *index = number);
        self.shift(indices);
        weights.fill(1.0);
        self.gather(batch);
        Ok(())
    }

    /// Draws a batch uniformly without replacement, with one random word for each.
    ///
    /// Sets of transitions are equally likely, their orders are not (Floyd's algorithm; Bentley, "A Sample of Brilliance", 1987).
    ///
    /// # Errors
    /// [`Error::TooFew`] if the buffer holds fewer transitions than the batch.
    ///
    /// # Panics
    /// If the number of words differs from the batch size, the batch has another shape, or this is one of several shards.
    pub fn sample_distinct(&self, words: &[u32], batch: &mut Batch) -> Result<(), Error> {
        let len = batch.len();
        self.enough(len)?;
        assert_eq!(words.len(), len, "a word for each transition");
        // A hash table of indices + 1 with open addressing, at most half full.
        let slots = (2 * len).next_power_of_two();
        let mut seen = std::mem::take(&mut batch.seen);
        seen.clear();
        seen.resize(slots, 0);
        let shift = 32 - slots.trailing_zeros();
        let mut insert = |index: u32| {
            let mut slot = (index.wrapping_mul(0x9E37_79B9) >> shift) as usize;
            while seen[slot] != 0 {
                if seen[slot] == index + 1 {
                    return false;
                }
                slot = (slot + 1) % slots;
            }
            seen[slot] = index + 1;
            true
        };
        let first = self.len() - len;
        let Transitions { weights, indices, .. } = batch.columns_mut();
        for (i, (index, &word)) in indices.iter_mut().zip(words).enumerate() {
            let drawn = rng::below(word, (first + i + 1) as u32);
            *index = if insert(drawn) { drawn } else { (first + i) as u32 };
            if *index != drawn {
                insert(*index);
            }
        }
        self.shift(indices);
        weights.fill(1.0);
        batch.seen = seen;
        self.gather(batch);
        Ok(())
    }

    /// Converts indices counted from the oldest transition to indices of the ring.
    fn shift(&self, indices: &mut [u32]) {
        let (start, capacity) = (self.start(), self.capacity);
        if start > 0 {
            for index in indices {
                let at = *index as usize + start;
                *index = if at < capacity { at } else { at - capacity } as u32;
            }
        }
    }

    /// Copies the transitions at the batch's indices, which must be held.
    ///
    /// # Panics
    /// If other shards have some of them, or the batch has another shape.
    pub(crate) fn gather(&self, batch: &mut Batch) {
        assert!(self.shard.is_whole(), "other shards have some of the transitions: exchange them by write_shard and read_shards");
        batch.check(&self.shape);
        batch.drawn_at = self.added;
        let mut batch = batch.columns_mut();
        let (all, indices) = (self.words(), std::mem::take(&mut batch.indices));
        with_obs_len!(self.gather_words(all, indices, &mut batch));
        let (ObsSliceMut::U8(obs), ObsSliceMut::U8(next_obs)) = (batch.obs, batch.next_obs) else { return };
        if let Some(frames) = &self.frames {
            let (d, k) = (self.shape.obs_len, self.row.obs);
            let stacks = obs.chunks_exact_mut(d).zip(next_obs.chunks_exact_mut(d));
            for (&index, (obs, next_obs)) in indices.iter().zip(stacks) {
                let words = &all[index as usize * self.row.len..][..2 * k];
                frames.copy(&words[..k], obs);
                frames.copy(&words[k..], next_obs);
            }
        } else {
            let (d, all) = (self.row.bytes, self.obs_bytes());
            for (i, &index) in indices.iter().enumerate() {
                let bytes = &all[index as usize * 2 * d..][..2 * d];
                obs[i * d..][..d].copy_from_slice(&bytes[..d]);
                next_obs[i * d..][..d].copy_from_slice(&bytes[d..]);
            }
        }
    }

    /// Copies rows of words, `all`, at `indices` to a batch.
    pub(crate) fn gather_words<const D: usize>(&self, all: &[u32], indices: &[u32], batch: &mut TransitionSlicesMut<'_>) {
        let row = self.row;
        let d = if D == 0 { row.obs } else { D };
        let a = row.reward - row.action;
        let chunk = (AHEAD / row.len).clamp(1, 128);
        for start in (0..indices.len()).step_by(chunk) {
            let end = (start + chunk).min(indices.len());
            let indices = &indices[start..end];
            self.touch(all, indices);
            let rows = indices.iter().map(|&index| &all[index as usize * row.len..][..row.len]);
            if let (ObsSliceMut::F32(obs), ObsSliceMut::F32(next_obs)) = (&mut batch.obs, &mut batch.next_obs) {
                let obs = obs[start * d..end * d].chunks_exact_mut(d);
                let next_obs = next_obs[start * d..end * d].chunks_exact_mut(d);
                for ((words, obs), next_obs) in rows.clone().zip(obs).zip(next_obs) {
                    load::<D>(obs, &words[..d]);
                    load::<D>(next_obs, &words[d..2 * d]);
                }
            }
            match &mut batch.actions {
                ActionSliceMut::Discrete(actions) => {
                    actions[start..end].iter_mut().zip(rows.clone()).for_each(|(action, words)| *action = words[row.action]);
                }
                ActionSliceMut::Continuous(actions) => {
                    for (actions, words) in actions[start * a..end * a].chunks_exact_mut(a).zip(rows.clone()) {
                        load::<0>(actions, &words[row.action..][..a]);
                    }
                }
            }
            let numbers = batch.rewards[start..end].iter_mut().zip(&mut batch.discounts[start..end]);
            for ((reward, discount), words) in numbers.zip(rows.clone()) {
                *reward = f32::from_bits(words[row.reward]);
                *discount = f32::from_bits(words[row.reward + 1]);
            }
            if row.mask_len > 0 {
                let masks = batch.next_masks[start * row.mask_len..].chunks_exact_mut(row.mask_len);
                masks.zip(rows).for_each(|(mask, words)| load_mask(mask, &words[row.mask..]));
            }
        }
    }

    /// Reads a word of each line of the rows at `indices`, to fetch them all at once.
    ///
    /// A core fetches as many lines at once as instructions in flight ask for, so each row costs few of them.
    #[inline(always)]
    fn touch(&self, all: &[u32], indices: &[u32]) {
        let len = self.row.len;
        let ends = indices.iter().fold(0, |touched, &index| {
            let first = index as usize * len;
            touched ^ all[first] ^ all[first + len - 1]
        });
        black_box(ends);
        if len > LINE {
            let row = |index| &all[index as usize * len..][..len];
            let inner = indices.iter().flat_map(|&index| row(index)[1..].iter().skip(LINE - 1).step_by(LINE));
            black_box(inner.fold(0, |touched, word| touched ^ word));
        }
    }
}
