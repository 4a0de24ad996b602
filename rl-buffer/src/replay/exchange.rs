//! Batches from a replay memory of which several ranks store a shard each.
//!
//! All of them add the same transitions and draw the same indices. Each stores the rows of its own shard of the ring, and a drawn
//! batch is put together from the bytes of all shards. If observations are stacks, all store all rows, which hold the indices of
//! frames, and each stores its own shard of the frames.
//!
//! With P shards, C transitions and batches of B, a shard has this many bytes, and a batch passes these through messages:
//!
//! | | bytes of a shard | bytes of messages |
//! |---|---|---|
//! | rows of r bytes | C r / P | B r |
//! | stacks of k frames of F bytes, rows of r bytes | C (r + 8) + 9/8 C F / P | 2 k B F |

use rl_envs::ObsSliceMut;

use crate::replay::row::with_obs_len;
use crate::{Batch, ReplayBuffer};

/// Messages from which a drawn batch is put together, in reused memory.
#[derive(Clone, Debug, Default)]
pub struct ShardMessages {
    /// Message of this shard, which [`ReplayBuffer::write_shard`] writes.
    pub own: Vec<u8>,
    /// Bytes of the messages of all shards.
    ///
    /// [`ReplayBuffer::write_shard`] computes them.
    pub lens: Vec<usize>,
    /// Messages of all shards, one after the other, which the caller exchanges.
    pub all: Vec<u8>,
    /// Position of the next item in the message of each shard.
    at: Vec<usize>,
    /// Rows of words in the order of the batch, (B, row).
    words: Vec<u32>,
    /// Indices of these rows, (B).
    numbers: Vec<u32>,
}

impl ReplayBuffer {
    /// Items of which each shard has its own: places of frames, or rows.
    fn n_items(&self) -> usize {
        self.frames.as_ref().map_or(self.capacity, |frames| frames.places)
    }

    /// Bytes of an item in a message.
    fn item_bytes(&self) -> usize {
        self.frames.as_ref().map_or(4 * self.row.len + 2 * self.row.bytes, |frames| frames.len)
    }

    /// Visits the items of drawn transitions in their order.
    fn each_item(&self, indices: &[u32], mut visit: impl FnMut(usize)) {
        for &index in indices {
            match self.frames {
                Some(_) => self.stacks_of(index).iter().for_each(|&place| visit(place as usize)),
                None => visit(index as usize),
            }
        }
    }

    /// Returns the places of a transition's frames, (2, k).
    fn stacks_of(&self, index: u32) -> &[u32] {
        &self.words()[index as usize * self.row.len..][..2 * self.row.obs]
    }

    /// Writes what this shard has of a batch drawn by `draw`.
    ///
    /// Sets [`ShardMessages::own`] and [`ShardMessages::lens`]. The caller gathers the messages of all shards in
    /// [`ShardMessages::all`], and [`ReplayBuffer::read_shards`] completes the batch.
    pub fn write_shard(&self, batch: &Batch, messages: &mut ShardMessages) {
        let (n, bytes, shard) = (self.n_items(), self.item_bytes(), self.shard);
        let own = shard.of(n);
        messages.own.clear();
        messages.lens.clear();
        messages.lens.resize(shard.n_shards(), 0);
        self.each_item(batch.columns().indices, |item| {
            messages.lens[shard.owner(item, n)] += bytes;
            if !own.contains(&item) {
                return;
            }
            let (to, at) = (&mut messages.own, item - own.start);
            if let Some(frames) = &self.frames {
                to.extend_from_slice(&frames.data()[at * frames.len..][..frames.len]);
            } else {
                let (words, d) = (&self.words()[at * self.row.len..][..self.row.len], 2 * self.row.bytes);
                words.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
                to.extend_from_slice(&self.obs_bytes()[at * d..][..d]);
            }
        });
    }

    /// Completes a batch by the messages of all shards.
    ///
    /// # Panics
    /// If [`ShardMessages::all`] has other lengths than [`ShardMessages::lens`], or the batch has another shape.
    pub fn read_shards(&self, batch: &mut Batch, messages: &mut ShardMessages) {
        let ShardMessages { lens, all, at, words, numbers, .. } = messages;
        assert_eq!(lens.iter().sum::<usize>(), all.len(), "the messages of all shards");
        batch.check(&self.shape);
        at.clear();
        at.extend(lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len)
        }));
        let (n, bytes, shard, row) = (self.n_items(), self.item_bytes(), self.shard, self.row);
        let mut next = |item: usize| {
            let at = &mut at[shard.owner(item, n)];
            *at += bytes;
            &all[*at - bytes..*at]
        };
        let mut columns = batch.columns_mut();
        let indices = std::mem::take(&mut columns.indices);
        if self.frames.is_some() {
            with_obs_len!(self.gather_words(self.words(), indices, &mut columns));
            let (ObsSliceMut::U8(obs), ObsSliceMut::U8(next_obs)) = (columns.obs, columns.next_obs) else { return };
            let d = self.shape.obs_len;
            for ((&index, obs), next_obs) in indices.iter().zip(obs.chunks_exact_mut(d)).zip(next_obs.chunks_exact_mut(d)) {
                let frames = obs.chunks_exact_mut(bytes).chain(next_obs.chunks_exact_mut(bytes));
                frames.zip(self.stacks_of(index)).for_each(|(frame, &place)| frame.copy_from_slice(next(place as usize)));
            }
            return;
        }
        words.resize(indices.len() * row.len, 0);
        numbers.clear();
        numbers.extend(0..indices.len() as u32);
        for (i, (words, &index)) in words.chunks_exact_mut(row.len).zip(&*indices).enumerate() {
            let (from, stacks) = next(index as usize).split_at(4 * row.len);
            words.iter_mut().zip(from.as_chunks().0).for_each(|(word, &bytes)| *word = u32::from_le_bytes(bytes));
            if let (ObsSliceMut::U8(obs), ObsSliceMut::U8(next_obs)) = (&mut columns.obs, &mut columns.next_obs) {
                let d = row.bytes;
                obs[i * d..][..d].copy_from_slice(&stacks[..d]);
                next_obs[i * d..][..d].copy_from_slice(&stacks[d..]);
            }
        }
        with_obs_len!(self.gather_words(words, numbers, &mut columns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{History, random, shape, shape_of};
    use crate::{Dtype, Memory, PrioritizedReplayBuffer, Shard, TransitionShape};
    use proptest::prelude::*;

    /// Draws the same batch from each of the shards, by their messages.
    fn drawn_from(shards: &[PrioritizedReplayBuffer], words: &[u32]) -> Vec<Batch> {
        let mut messages = vec![ShardMessages::default(); shards.len()];
        let mut batches: Vec<_> = shards.iter().map(|shard| shard.replay().batch(words.len()).expect("fits")).collect();
        for ((shard, batch), messages) in shards.iter().zip(&mut batches).zip(&mut messages) {
            shard.draw(words, 0.4, batch).expect("enough");
            shard.replay().write_shard(batch, messages);
        }
        let all: Vec<u8> = messages.iter().flat_map(|messages| messages.own.clone()).collect();
        let lens: Vec<usize> = messages.iter().map(|messages| messages.own.len()).collect();
        for ((shard, batch), messages) in shards.iter().zip(&mut batches).zip(&mut messages) {
            assert_eq!(messages.lens, lens, "every shard knows the lengths of all messages");
            messages.all.clone_from(&all);
            shard.replay().read_shards(batch, messages);
        }
        batches
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_batch_of_shards_is_that_of_the_whole(
            seed in any::<u64>(), n_envs in prop::sample::select(vec![1usize, 2, 33]), n_step in 1usize..4,
            d in prop::sample::select(vec![1usize, 4, 5]), bytes in any::<bool>(), action in 0usize..5,
            capacity in 1usize..150, n_shards in 1usize..6, ends in 0.0..0.5f64, stack in 1usize..4, restarts_at in 0usize..30,
        ) {
            let shape = TransitionShape { n_envs, n_step, ..shape_of(d, bytes.then_some(stack), action) };
            let host = <dyn Memory>::host();
            let mut whole = PrioritizedReplayBuffer::new(shape, capacity, 0.6, 0.01).expect("fits");
            let shard = |index| {
                PrioritizedReplayBuffer::shard_in(shape, capacity, 0.6, 0.01, Shard::new(index, n_shards), &host).expect("fits")
            };
            let mut shards: Vec<_> = (0..n_shards).map(shard).collect();
            let (mut history, mut rng) = (History::new(shape, seed, ends), random(seed));
            for t in 0..20 {
                if t == restarts_at {
                    history.start_anew();
                    whole.forget_waiting();
                    shards.iter_mut().for_each(PrioritizedReplayBuffer::forget_waiting);
                }
                history.step(|obs, step| {
                    let added = whole.push(obs, step).expect("finite");
                    shards.iter_mut().for_each(|shard| assert_eq!(shard.push(obs, step).expect("finite"), added));
                });
                prop_assert!(shards.iter().all(|shard| shard.replay().len() == whole.replay().len()));
                if whole.replay().is_empty() || t % 3 != 2 {
                    continue;
                }
                let words: Vec<u32> = (0..17).map(|_| rng.next_u32()).collect();
                let mut expected = whole.replay().batch(17).expect("fits");
                whole.sample(&words, 0.4, &mut expected).expect("enough");
                for (batch, shard) in drawn_from(&shards, &words).iter().zip(&mut shards) {
                    prop_assert_eq!(batch.columns(), expected.columns());
                    shard.update(batch, &[2.0; 17]).expect("finite");
                }
                whole.update(&expected, &[2.0; 17]).expect("finite");
            }
        }
    }

    #[test]
    fn a_part_takes_the_bytes_that_are_documented() {
        let host = <dyn Memory>::host();
        let shard = |shape, index| ReplayBuffer::shard_in(shape, 8000, Shard::new(index, 4), &host).expect("fits");
        let rows = shard(shape(1, 1), 3);
        assert_eq!(4 * rows.words().len(), 8000 * ReplayBuffer::bytes_per_transition(rows.shape()) / 4);
        let stacked = TransitionShape { obs: Dtype::U8, obs_len: 4 * 800, stack: 4, ..shape(1, 1) };
        let shards: Vec<_> = (0..4).map(|index| shard(stacked, index)).collect();
        let frames = |shard: &ReplayBuffer| shard.frames.as_ref().expect("stacked").data().len();
        // Room for the frames of waiting steps.
        assert_eq!(shards.iter().map(frames).sum::<usize>(), (8000 * 9 / 8 + 2 * (1 + 4 + 2)) * 800);
        assert!(shards.iter().all(|shard| frames(shard).abs_diff(frames(&shards[0])) <= 800));
        assert!(shards.iter().all(|shard| 4 * shard.words().len() == 8000 * (8 * 4 + 12)));
        for (shape, shared) in [(*rows.shape(), 8000 * 44), (stacked, (9000 + 14) * 800)] {
            assert_eq!(ReplayBuffer::sharded_bytes(&shape, 8000), shared);
        }
    }

    #[test]
    fn a_part_is_neither_saved_nor_drawn_from_alone() {
        let mut shard = ReplayBuffer::shard_in(shape(2, 1), 8, Shard::new(1, 2), &<dyn Memory>::host()).expect("fits");
        History::new(*shard.shape(), 5, 0.2).step(|obs, step| shard.push(obs, step).expect("finite"));
        let mut batch = shard.batch(1).expect("fits");
        let alone = std::panic::AssertUnwindSafe(|| shard.sample(&[0], &mut batch));
        assert!(std::panic::catch_unwind(alone).is_err());
        let mut file = Vec::new();
        let error = shard.save(&mut file).expect_err("refused").to_string();
        assert!(error.contains("shard") && file.is_empty(), "{error}");
        assert!(shard.restore(&mut &file[..]).expect_err("refused").to_string().contains("shard"));
    }
}
