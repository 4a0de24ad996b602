//! Ranks: processes or devices that share the updates of one agent.
//!
//! A rank is a process, or a thread with a device.
//!
//! Every rank holds the same agent and updates it from the same rollout. It collects only the columns of its own share of the
//! environments' slices. It computes the gradients of its share of a minibatch's slices, already summed over whole subtrees of
//! the [tree of slices](crate::kernel::slices). All ranks gather these sums and add them by the rest of the tree, so the bits do
//! not depend on the number of ranks.

use std::ops::Range;
use std::sync::Arc;

use rl_buffer::Rollout;
use rl_envs::codec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// The ranks of a training, as one of them sees the others.
///
/// rl-runtime implements it over MPI and with threads, the tests of this crate with threads.
pub trait Ranks: Send + Sync {
    /// Index of this rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn n_ranks(&self) -> usize;

    /// Writes the bytes of all ranks to `all`, in order of rank.
    ///
    /// `own` are the bytes of this rank, `lens` the numbers of bytes of all ranks. Blocks until every rank has called it.
    ///
    /// # Errors
    /// [`Error::PeerEnded`] if another rank will not call it.
    fn all_gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), Error>;
}

/// Returns the range of `n` items that `rank` of `n_ranks` works on.
#[must_use]
pub fn share(n: usize, rank: usize, n_ranks: usize) -> Range<usize> {
    rank * n / n_ranks..(rank + 1) * n / n_ranks
}

/// Returns the environments of each rank, which has whole slices of them.
///
/// # Errors
/// [`Error::Ranks`] if there are fewer slices than ranks.
pub(crate) fn columns(slices: &[Range<usize>], n_ranks: usize) -> Result<Vec<Range<usize>>, Error> {
    let n_slices = slices.len();
    if n_ranks > n_slices {
        return Err(Error::Ranks { n_ranks, n_slices });
    }
    let own = |rank| &slices[share(n_slices, rank, n_ranks)];
    Ok((0..n_ranks).map(|rank| own(rank)[0].start..own(rank)[own(rank).len() - 1].end).collect())
}

/// Gathers a value from each rank, in order of rank.
///
/// Blocks until every rank has called it, also with an error.
///
/// # Errors
/// This rank's own, or [`Error::Rank`] with that of another.
pub fn gather<T: Serialize + DeserializeOwned>(ranks: &dyn Ranks, own: Result<T, Error>) -> Result<Vec<T>, Error> {
    gather_with(ranks, own, |_| {}, |_, _| {})
}

/// Gathers a value from each rank, and its columns of a rollout.
///
/// # Errors
/// The errors of [`gather`].
pub(crate) fn gather_rollout<T: Serialize + DeserializeOwned>(
    ranks: &dyn Ranks,
    own: Result<T, Error>,
    columns: &[Range<usize>],
    rollout: &mut Rollout,
) -> Result<Vec<T>, Error> {
    let mut own_columns = Vec::new();
    each_row(rollout, &columns[ranks.rank()], &mut |row| own_columns.extend_from_slice(row));
    gather_with(
        ranks,
        own,
        |message| message.append(&mut own_columns),
        |rank, message| {
            if rank != ranks.rank() {
                read_columns(rollout, &columns[rank], message);
            }
        },
    )
}

/// Visits the bytes of each row of some columns of a rollout.
fn each_row(rollout: &mut Rollout, columns: &Range<usize>, visit: &mut dyn FnMut(&mut [u8])) {
    let (_, rest) = rollout.columns().split_at(columns.start);
    rest.split_at(columns.len()).0.each_row(visit);
}

/// Reads some columns of a rollout from a message; returns the rest of it.
pub(crate) fn read_columns<'a>(rollout: &mut Rollout, columns: &Range<usize>, mut message: &'a [u8]) -> &'a [u8] {
    each_row(rollout, columns, &mut |row| {
        let (first, rest) = message.split_at(row.len());
        row.copy_from_slice(first);
        message = rest;
    });
    message
}

/// Gathers a value and further bytes from each rank.
///
/// `write` appends these bytes to a message, `read` reads those of a rank.
pub(crate) fn gather_with<T: Serialize + DeserializeOwned>(
    ranks: &dyn Ranks,
    own: Result<T, Error>,
    write: impl FnOnce(&mut Vec<u8>),
    mut read: impl FnMut(usize, &[u8]),
) -> Result<Vec<T>, Error> {
    const WORD: usize = size_of::<u64>();
    let mut message = codec::encode(&own.as_ref().map_err(ToString::to_string))?;
    if own.is_ok() {
        write(&mut message);
    }
    let n = ranks.n_ranks();
    let mut lens = vec![0; n * WORD];
    ranks.all_gather(&(message.len() as u64).to_le_bytes(), &vec![WORD; n], &mut lens)?;
    let lens: Vec<usize> = lens.as_chunks().0.iter().map(|&len| u64::from_le_bytes(len) as usize).collect();
    let mut all = vec![0; lens.iter().sum()];
    ranks.all_gather(&message, &lens, &mut all)?;
    own?;
    let (mut rest, mut values) = (&all[..], Vec::with_capacity(n));
    for (rank, len) in lens.into_iter().enumerate() {
        let (message, others) = rest.split_at(len);
        rest = others;
        let (value, left) = codec::decode_from::<Result<T, String>>(message, len as u64)?;
        values.push(value.map_err(|text| Error::Rank { rank, text })?);
        read(rank, &message[len - left as usize..]);
    }
    Ok(values)
}

/// Cuts a range of slices into the largest subtrees of the tree of slices.
fn subtrees(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        let most = (end - start).checked_ilog2()?;
        let len = 1 << most.min(start.trailing_zeros());
        start += len;
        Some(start - len..start)
    })
}

/// Exchange of the gradients of a minibatch, in reused buffers.
pub(crate) struct Exchange {
    ranks: Arc<dyn Ranks>,
    own: Vec<u8>,
    all: Vec<u8>,
    lens: Vec<usize>,
    /// Gradients of subtrees that wait for their neighbours.
    waiting: Vec<f32>,
    /// Numbers of slices of these subtrees.
    sizes: Vec<usize>,
}

impl Exchange {
    pub(crate) fn new(ranks: Arc<dyn Ranks>) -> Self {
        Self { ranks, own: Vec::new(), all: Vec::new(), lens: Vec::new(), waiting: Vec::new(), sizes: Vec::new() }
    }

    /// Range of `count` slices that a rank computes.
    fn slices(&self, count: usize, rank: usize) -> Range<usize> {
        share(count, rank, self.ranks.n_ranks())
    }

    /// Range of `count` slices that this rank computes.
    pub(crate) fn own(&self, count: usize) -> Range<usize> {
        self.slices(count, self.ranks.rank())
    }

    /// Begins a minibatch of `count` slices.
    ///
    /// Returns this rank's slices, and their subtrees.
    pub(crate) fn begin(&mut self, count: usize) -> (Range<usize>, impl Iterator<Item = Range<usize>> + use<>) {
        self.own.clear();
        let slices = self.own(count);
        (slices.clone(), subtrees(slices))
    }

    /// Appends the gradient (P) of a subtree of this rank.
    pub(crate) fn push(&mut self, gradient: &[f32]) {
        let begin = self.own.len();
        self.own.resize(begin + 4 * gradient.len(), 0);
        let to = self.own[begin..].as_chunks_mut().0;
        to.iter_mut().zip(gradient).for_each(|(to, x)| *to = x.to_le_bytes());
    }

    /// Returns the buffer to which the statistics of this rank's slices are appended.
    pub(crate) fn stats_mut(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// Writes the sum of all slices' gradients, and reads their statistics.
    ///
    /// Blocks until every rank has called it. `stats_len` is the number of bytes of a slice's statistics.
    ///
    /// # Errors
    /// [`Error::PeerEnded`].
    pub(crate) fn gather(
        &mut self,
        count: usize,
        stats_len: impl Fn(usize) -> usize,
        gradient: &mut [f32],
        mut read: impl FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        let row = 4 * gradient.len();
        let len = |slices: Range<usize>| row * subtrees(slices.clone()).count() + slices.map(&stats_len).sum::<usize>();
        self.lens.clear();
        for rank in 0..self.ranks.n_ranks() {
            self.lens.push(len(self.slices(count, rank)));
        }
        self.all.resize(self.lens.iter().sum(), 0);
        self.ranks.all_gather(&self.own, &self.lens, &mut self.all)?;

        let mut rest = &self.all[..];
        let mut next = |len: usize| {
            let (first, others) = rest.split_at(len);
            rest = others;
            first
        };
        self.waiting.clear();
        self.sizes.clear();
        for rank in 0..self.ranks.n_ranks() {
            let slices = share(count, rank, self.ranks.n_ranks());
            for subtree in subtrees(slices.clone()) {
                self.waiting.extend(next(row).as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)));
                let mut size = subtree.len();
                // Subtrees come in order, so the one before of the same size is the left neighbour.
                while self.sizes.last() == Some(&size) {
                    let at = self.waiting.len() - gradient.len();
                    let (left, right) = self.waiting.split_at_mut(at);
                    left[at - gradient.len()..].iter_mut().zip(right).for_each(|(left, right)| *left += *right);
                    self.waiting.truncate(at);
                    self.sizes.pop();
                    size *= 2;
                }
                self.sizes.push(size);
            }
            slices.for_each(|slice| read(slice, next(stats_len(slice))));
        }
        gradient.copy_from_slice(&self.waiting);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rl_envs::Pool;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex, PoisonError};

    /// Ranks that are threads of one process.
    struct Meeting {
        messages: Vec<Mutex<Vec<u8>>>,
        round: Mutex<Round>,
        ended: Condvar,
    }

    /// Ranks that wait for the others.
    #[derive(Default)]
    struct Round {
        number: u64,
        n_waiting: usize,
        has_failed: bool,
    }

    impl Meeting {
        /// Waits for all ranks.
        fn wait(&self) {
            let mut round = self.round.lock().unwrap();
            let number = round.number;
            round.n_waiting += 1;
            if round.n_waiting == self.messages.len() {
                *round = Round { number: number + 1, ..Round::default() };
                self.ended.notify_all();
            }
            let waits = |round: &mut Round| round.number == number && !round.has_failed;
            let round = self.ended.wait_while(round, waits).unwrap();
            let is_alone = round.number == number;
            drop(round);
            assert!(!is_alone, "another rank has panicked");
        }
    }

    struct OfThreads {
        rank: usize,
        meeting: Arc<Meeting>,
    }

    impl Ranks for OfThreads {
        fn rank(&self) -> usize {
            self.rank
        }

        fn n_ranks(&self) -> usize {
            self.meeting.messages.len()
        }

        fn all_gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), Error> {
            *self.meeting.messages[self.rank].lock().unwrap() = own.to_vec();
            self.meeting.wait();
            let messages: Vec<Vec<u8>> = self.meeting.messages.iter().map(|message| message.lock().unwrap().clone()).collect();
            assert!(messages.iter().map(Vec::len).eq(lens.iter().copied()), "every rank knows the lengths of all");
            all.copy_from_slice(&messages.concat());
            self.meeting.wait();
            Ok(())
        }
    }

    /// Notifies the other ranks of a panic: they would wait forever.
    struct NotifiesAll(Arc<Meeting>);

    impl Drop for NotifiesAll {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.round.lock().unwrap_or_else(PoisonError::into_inner).has_failed = true;
                self.0.ended.notify_all();
            }
        }
    }

    /// Runs `work` as each of `n` ranks; returns their results in order.
    pub(crate) fn on_ranks<T: Send>(n: usize, work: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
        let messages = (0..n).map(|_| Mutex::default()).collect();
        let meeting = Arc::new(Meeting { messages, round: Mutex::default(), ended: Condvar::new() });
        let mut results: Vec<_> = (0..n).map(|rank| (rank, None)).collect();
        Pool::new(n).unwrap().each(&mut results, &|(rank, result)| {
            let _notifies_all = NotifiesAll(meeting.clone());
            *result = Some(work(Arc::new(OfThreads { rank: *rank, meeting: meeting.clone() })));
        });
        results.into_iter().filter_map(|(_, result)| result).collect()
    }

    #[test]
    fn a_rank_that_panics_ends_the_others() {
        let ends = |ranks: Arc<dyn Ranks>| {
            assert!(ranks.rank() > 0, "on purpose");
            ranks.all_gather(&[1], &[1; 3], &mut [0; 3])
        };
        assert!(std::panic::catch_unwind(|| on_ranks(3, ends)).is_err());
    }

    /// Ranks that count the bytes they receive.
    pub(crate) struct Counted {
        ranks: Arc<dyn Ranks>,
        received: AtomicUsize,
    }

    impl Counted {
        pub(crate) fn new(ranks: Arc<dyn Ranks>) -> Self {
            Self { ranks, received: AtomicUsize::new(0) }
        }

        /// Bytes from other ranks so far.
        pub(crate) fn received(&self) -> usize {
            self.received.load(Ordering::Relaxed)
        }
    }

    impl Ranks for Counted {
        fn rank(&self) -> usize {
            self.ranks.rank()
        }

        fn n_ranks(&self) -> usize {
            self.ranks.n_ranks()
        }

        fn all_gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), Error> {
            self.received.fetch_add(all.len() - own.len(), Ordering::Relaxed);
            self.ranks.all_gather(own, lens, all)
        }
    }

    #[test]
    fn an_error_of_one_rank_is_an_error_of_all() {
        let results = on_ranks(3, |ranks| {
            let own = if ranks.rank() == 1 { Err(Error::ActionKind) } else { Ok(ranks.rank()) };
            gather(&*ranks, own)
        });
        assert!(matches!(results[1], Err(Error::ActionKind)));
        for i in [0, 2] {
            assert!(matches!(&results[i], Err(Error::Rank { rank: 1, text }) if *text == Error::ActionKind.to_string()));
        }
        assert!(on_ranks(3, |ranks| gather(&*ranks, Ok(ranks.rank())).unwrap()).iter().all(|all| *all == [0, 1, 2]));
    }

    #[test]
    fn subtrees_cover_a_share_in_order_and_are_whole() {
        assert!(subtrees(5..10).eq([5..6, 6..8, 8..10]));
        assert!(subtrees(0..16).eq(std::iter::once(0..16)) && subtrees(3..3).count() == 0);
        for n_ranks in 1..20 {
            let mut next = 0;
            for subtree in (0..n_ranks).flat_map(|rank| subtrees(share(16, rank, n_ranks))) {
                assert!(subtree.start == next && subtree.len().is_power_of_two() && next.is_multiple_of(subtree.len()));
                next = subtree.end;
            }
            assert_eq!(next, 16);
        }
    }
}
