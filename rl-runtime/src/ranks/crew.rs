//! Ranks that are threads of one process, each with a device.
//!
//! Messages pass through memory. Once a thread has ended early, every exchange fails, so no other thread hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rl_agents::ranks::Ranks;
use rl_envs::pool::panic_text;

use crate::Error;
use crate::thread::{Thread, spawn};

/// Exchanges of some ranks, one after the other.
#[derive(Debug)]
struct Meeting {
    exchange: Mutex<MemoryExchange>,
    changed: Condvar,
}

/// State of an exchange.
#[derive(Debug)]
struct MemoryExchange {
    /// Number of exchanges before this one.
    round: u64,
    /// Latest message of each rank.
    messages: Vec<Vec<u8>>,
    /// Number of ranks whose messages are here.
    arrived: usize,
    /// Number of ranks that have not yet read the messages of the last round.
    reading: usize,
    /// Reason why there are no more exchanges.
    ended: Option<String>,
}

impl Meeting {
    fn exchange(&self) -> MutexGuard<'_, MemoryExchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a condition holds and exchanges go on.
    fn wait_while<'a>(
        &'a self,
        exchange: MutexGuard<'a, MemoryExchange>,
        waits: impl Fn(&MemoryExchange) -> bool,
    ) -> MutexGuard<'a, MemoryExchange> {
        let waits = |exchange: &mut MemoryExchange| exchange.ended.is_none() && waits(exchange);
        self.changed.wait_while(exchange, waits).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all exchanges that are not complete, unless they have ended.
    fn end(&self, why: String) {
        self.exchange().ended.get_or_insert(why);
        self.changed.notify_all();
    }
}

/// A rank of a meeting.
#[derive(Debug)]
struct Member {
    rank: usize,
    n_ranks: usize,
    meeting: Arc<Meeting>,
}

impl Ranks for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    fn all_gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), rl_agents::Error> {
        let ended = |exchange: &MemoryExchange| match &exchange.ended {
            Some(why) => Err(rl_agents::Error::PeerEnded(why.clone())),
            None => Ok(()),
        };
        let mut exchange = self.meeting.wait_while(self.meeting.exchange(), |exchange| exchange.reading > 0);
        ended(&exchange)?;
        let round = exchange.round;
        exchange.messages[self.rank].clear();
        exchange.messages[self.rank].extend_from_slice(own);
        exchange.arrived += 1;
        if exchange.arrived == self.n_ranks {
            (exchange.round, exchange.arrived, exchange.reading) = (round + 1, 0, self.n_ranks);
            self.meeting.changed.notify_all();
        }
        let mut exchange = self.meeting.wait_while(exchange, |exchange| exchange.round == round);
        if exchange.round == round {
            return ended(&exchange);
        }
        let mut rest = all;
        for (message, &len) in exchange.messages.iter().zip(lens) {
            assert_eq!(message.len(), len, "the lengths are those of the messages");
            let (to, others) = std::mem::take(&mut rest).split_at_mut(len);
            to.copy_from_slice(message);
            rest = others;
        }
        exchange.reading -= 1;
        if exchange.reading == 0 {
            self.meeting.changed.notify_all();
        }
        Ok(())
    }
}

/// Threads of the ranks beside this thread's, which is rank 0.
///
/// Dropping it ends all exchanges and waits for the threads.
#[derive(Debug)]
pub(crate) struct Crew {
    n_ranks: usize,
    meeting: Arc<Meeting>,
    threads: Vec<Thread<()>>,
}

impl Crew {
    /// Creates a meeting of `n_ranks` ranks.
    pub(crate) fn new(n_ranks: usize) -> Self {
        let messages = vec![Vec::new(); n_ranks];
        let exchange = MemoryExchange { round: 0, messages, arrived: 0, reading: 0, ended: None };
        let meeting = Arc::new(Meeting { exchange: Mutex::new(exchange), changed: Condvar::new() });
        Self { n_ranks, meeting, threads: Vec::new() }
    }

    /// Returns the ranks as one of them sees the others.
    pub(crate) fn member(&self, rank: usize) -> Arc<dyn Ranks> {
        Arc::new(Member { rank, n_ranks: self.n_ranks, meeting: self.meeting.clone() })
    }

    /// Spawns the thread of a rank.
    ///
    /// Its error or panic is an error of every other rank's next exchange, with `name`.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system refuses.
    pub(crate) fn spawn(
        &mut self,
        rank: usize,
        name: &str,
        work: impl FnOnce(Arc<dyn Ranks>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (ranks, meeting, of) = (self.member(rank), self.meeting.clone(), name.to_owned());
        self.threads.push(spawn(name, move || {
            let why = match catch_unwind(AssertUnwindSafe(|| work(ranks))) {
                Ok(Ok(())) => format!("{of} has ended"),
                Ok(Err(error)) => format!("{of}: {error}"),
                Err(panic) => format!("{of} panicked: {}", panic_text(&*panic)),
            };
            meeting.end(why);
        })?);
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.meeting.end("device 0 has ended".into());
        // Their panics have become errors of the exchange.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_agents::ranks::gather;

    /// Exchanges numbers `n` times; rank `fails` ends with `end` before the last exchange.
    fn meet(n_ranks: usize, n: usize, fails: usize, end: fn() -> Result<(), Error>) -> Result<(), Error> {
        let work = move |ranks: Arc<dyn Ranks>| {
            for i in 0..n {
                if i + 1 == n && ranks.rank() == fails {
                    end()?;
                }
                let all = gather(&*ranks, Ok(vec![ranks.rank() + i; i % 3]))?;
                assert!(all.iter().enumerate().all(|(rank, of)| *of == vec![rank + i; i % 3]));
            }
            Ok(())
        };
        let mut crew = Crew::new(n_ranks);
        for rank in 1..n_ranks {
            crew.spawn(rank, &format!("device {rank}"), work)?;
        }
        work(crew.member(0))
    }

    #[test]
    fn ranks_exchange_messages_in_order() {
        for n_ranks in [1, 2, 3, 5] {
            meet(n_ranks, 200, 0, || Ok(())).unwrap();
        }
    }

    #[test]
    fn an_error_or_a_panic_of_one_rank_ends_all() {
        let fail = || Err(Error::config("on purpose"));
        for n_ranks in [2, 3, 5] {
            for fails in 1..n_ranks {
                let error = meet(n_ranks, 3, fails, fail).unwrap_err().to_string();
                assert_eq!(error, format!("device {fails}: on purpose"));
                let error = meet(n_ranks, 3, fails, || panic!("on purpose")).unwrap_err().to_string();
                assert_eq!(error, format!("device {fails} panicked: on purpose"));
            }
            // The drop ends the others.
            assert_eq!(meet(n_ranks, 3, 0, fail).unwrap_err().to_string(), "on purpose");
        }
    }
}
