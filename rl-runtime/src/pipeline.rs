//! Collecting and learning: in turn, or at the same time.
//!
//! [`Mode::Sync`] is the plain loop: a rollout is collected, then learnt from. [`Mode::Overlapped`] collects on a thread of its own:
//! rollout i is acted in by the policy as it was after update i - k, so while the learner learns from rollout i - k the producer is up
//! to k rollouts ahead, and never more: for rollout i it waits for that very policy. So the lag is bounded by how the threads are
//! joined, results do not depend on timing, and k = 0 is the plain loop on two threads.
//!
//! Two [rings](mod@crate::ring) join the threads. Rollouts go from the producer to the learner and back, policies from the learner to the
//! producer and back; there are k + 1 of each, made once.
//!
//! ```text
//!              policies: copies of the policy after update i - k
//!       .-------------------------------------------------------.
//!       v                                                        |
//!   producer (Collect: acts in the environments)              learner (gives back what it has learnt from)
//!       |                                                        ^
//!       '-------------------------------------------------------'
//!              rollouts: filled, then given back
//! ```
//!
//! A pipeline of another shape is made of the same parts, [`ring()`] and [`spawn`]: `xtask/outside/pipeline` is one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rl_agents::{Anomalies, Collector, Episode, Policy, Snapshot};
use rl_buffer::Rollout;
use rl_envs::pool::panic_text;

use crate::Error;
use crate::faults::FaultCounts;
use crate::profile::{Phase, Profile, Timed, Track};
use crate::ring::{Stage, ring};

/// A thread with a name.
#[derive(Debug)]
pub struct Thread<R> {
    name: String,
    handle: JoinHandle<R>,
}

/// Starts a thread.
///
/// # Errors
/// [`Error::Thread`] if the system refuses.
pub fn spawn<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> Result<Thread<R>, Error> {
    let handle = std::thread::Builder::new().name(name.into()).spawn(work);
    let handle = handle.map_err(|error| Error::Thread { name: name.into(), cause: format!("cannot be started: {error}") })?;
    Ok(Thread { name: name.into(), handle })
}

impl<R> Thread<R> {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Thread`] if it has panicked.
    pub fn join(self) -> Result<R, Error> {
        let Self { name, handle } = self;
        handle.join().map_err(|panic| Error::Thread { name, cause: format!("panicked: {}", panic_text(&*panic)) })
    }
}

/// A rollout on its way from a producer to the learner.
#[derive(Debug)]
pub struct Filled {
    /// The rollout.
    pub rollout: Rollout,
    /// The episodes that ended in it; where whichever environments come first fill the columns, those of stretches that were dropped, too.
    pub episodes: Vec<Episode>,
    /// For each column, how many rollouts the policy of its first action had learnt from, (N).
    pub learnt: Vec<u64>,
    /// Faults of environments until then.
    pub faults: FaultCounts,
    /// Stretches that were dropped for their age until then.
    pub dropped: u64,
    /// Numbers that environments should not have given until then.
    pub anomalies: Anomalies,
}

impl Filled {
    /// One that is to be filled.
    #[must_use]
    pub fn new(rollout: Rollout) -> Self {
        let learnt = vec![0; rollout.shape().n_envs];
        Self {
            rollout,
            episodes: Vec::new(),
            learnt,
            faults: FaultCounts::default(),
            dropped: 0,
            anomalies: Anomalies::default(),
        }
    }
}

/// What collects: [`Collector`], or [`ReadyCollector`](crate::ready::ReadyCollector) for environments that block.
pub trait Collect: Send + 'static {
    /// Fills `filled`, acting with `policy`, which has learnt from `learnt` rollouts.
    ///
    /// # Errors
    /// Those of the environments and the policy.
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error>;

    /// An empty rollout of `n_steps` steps.
    ///
    /// # Errors
    /// Those of [`Rollout::new`].
    fn rollout(&self, n_steps: usize) -> Result<Rollout, Error>;

    /// Set when nobody wants its rollouts any more: one that waits for long returns then, with any error.
    fn stopper(&self) -> Arc<AtomicBool> {
        Arc::default()
    }
}

impl Collect for Collector {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let (begin, timed) = (Instant::now(), Timed::new(policy));
        filled.episodes = Collector::collect(self, &timed, &mut filled.rollout)?;
        filled.learnt.fill(learnt);
        filled.anomalies = self.anomalies();
        // The threads' sum over their number, which is as long as it would have taken had they all acted all the time.
        let (whole, policy) = (begin.elapsed(), timed.acted() / self.n_threads() as u32);
        let envs = whole.saturating_sub(policy);
        track.add(Phase::Envs, begin, envs);
        track.add(Phase::Policy, begin + envs, whole - envs);
        Ok(())
    }

    fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        Ok(Collector::rollout(self, n_steps)?)
    }
}

/// How collecting and learning take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, on one thread: the referee.
    Sync,
    /// At the same time: rollouts are acted in by the policy of so many updates before.
    Overlapped {
        /// k.
        max_lag: usize,
    },
}

impl Mode {
    /// Rollouts that are begun before anything has been learnt from them, each acted in by a policy of its own; 0 in turn.
    #[must_use]
    pub fn n_ahead(self) -> usize {
        match self {
            Self::Sync => 0,
            Self::Overlapped { max_lag } => max_lag.saturating_add(1),
        }
    }
}

/// A policy to act with in one rollout.
struct Order {
    policy: Box<dyn Policy>,
    learnt: u64,
}

/// The producer's thread and the learner's ends of the rings.
struct Running<C> {
    orders: Stage<Order>,
    rollouts: Stage<Filled>,
    producer: Thread<Result<Ended<C>, Error>>,
}

/// What a producer leaves behind when it is asked to stop.
struct Ended<C> {
    collector: C,
    rollouts: Stage<Filled>,
}

/// A collector and the way that its rollouts take to a learner.
pub struct Pipeline<C> {
    mode: Mode,
    /// Here unless a producer has it.
    collector: Option<C>,
    /// Rollouts that nobody fills.
    buffers: Vec<Filled>,
    /// For the rollouts that have not been begun, oldest first.
    orders: VecDeque<Order>,
    running: Option<Running<C>>,
    in_flight: usize,
    /// How many rollouts may still be begun.
    left: u64,
    held: bool,
    stopper: Arc<AtomicBool>,
    track: Track,
    producer_track: Track,
}

impl<C: Collect> Pipeline<C> {
    /// A pipeline whose rollouts have `n_steps` steps. Nothing is collected yet.
    ///
    /// # Errors
    /// Those of [`Collect::rollout`], and [`Error::Config`] if all of them together do not fit into memory.
    pub fn new(mode: Mode, collector: C, n_steps: usize, profile: &Profile) -> Result<Self, Error> {
        let ahead = match mode {
            Mode::Sync => 0,
            Mode::Overlapped { max_lag } => max_lag,
        };
        let first = collector.rollout(n_steps)?;
        let n = ahead.saturating_add(1);
        first.shape().check_memory(n).map_err(|error| match error {
            rl_buffer::Error::OutOfMemory { needed, available, .. } => Error::config(format!(
                "{n} rollouts, as max_lag wants, take {needed} bytes, {available} are available; lower max_lag, n_steps or n_envs"
            )),
            error => rl_agents::Error::from(error).into(),
        })?;
        let more = (0..ahead).map(|_| collector.rollout(n_steps));
        let buffers =
            [Ok(first)].into_iter().chain(more).map(|rollout| rollout.map(Filled::new)).collect::<Result<_, Error>>()?;
        let track = profile.track("learner");
        let producer_track = if mode == Mode::Sync { track.clone() } else { profile.track("collect") };
        Ok(Self {
            mode,
            stopper: collector.stopper(),
            collector: Some(collector),
            buffers,
            orders: VecDeque::with_capacity(ahead + 1),
            running: None,
            in_flight: 0,
            left: u64::MAX,
            held: false,
            track,
            producer_track,
        })
    }

    /// How many policies are wanted before the first rollout, by [`Pipeline::order`]: one for each of the rollouts that are begun
    /// before anything has been learnt from them; none for [`Mode::Sync`].
    #[must_use]
    pub fn n_ahead(&self) -> usize {
        self.mode.n_ahead()
    }

    /// Lets `policy` act in the rollout after those that have been ordered. It has learnt from `learnt` rollouts.
    pub fn order(&mut self, policy: Box<dyn Policy>, learnt: u64) {
        self.orders.push_back(Order { policy, learnt });
    }

    /// Begins no more than `left` rollouts from here on.
    pub fn limit(&mut self, left: u64) {
        self.left = left;
    }

    /// Begins no further rollouts until the next call of [`Pipeline::next`] that finds none begun.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// How many rollouts have been begun and not been returned by [`Pipeline::next`].
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// See [`Collect::stopper`].
    #[must_use]
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.stopper.clone()
    }

    /// How many rollouts wait for the learner.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.rollouts.waiting())
    }

    /// The next rollout: collected now with `policy` if in turn, else the next that the producer has, which is waited for.
    ///
    /// # Errors
    /// Those of the collector, and [`Error::Thread`] if the producer has panicked or there is nothing to wait for.
    pub fn next(&mut self, policy: &dyn Policy, learnt: u64) -> Result<Filled, Error> {
        if self.mode == Mode::Sync {
            let (Some(collector), Some(mut filled)) = (&mut self.collector, self.buffers.pop()) else { return Err(lost()) };
            let result = collector.collect(policy, learnt, &mut filled, &self.producer_track);
            if let Err(error) = result {
                self.buffers.push(filled);
                return Err(error);
            }
            return Ok(filled);
        }
        if self.in_flight == 0 {
            self.held = false;
            self.start()?;
        }
        let Some(running) = &self.running else { return Err(lost()) };
        if self.in_flight == 0 {
            return Err(lost());
        }
        match self.track.time(Phase::WaitProducers, || running.rollouts.recv()) {
            Ok(filled) => {
                self.in_flight -= 1;
                Ok(filled)
            }
            // The producer has ended before it was asked to: with an error, or in a panic.
            Err(_) => Err(self.join().err().unwrap_or_else(lost)),
        }
    }

    /// Gives a rollout back, to be filled again. `policy`, which has learnt from `learnt` rollouts, acts in the one that is k + 1 later.
    ///
    /// # Errors
    /// Those of [`Policy::copy_from`], and those of the producer if it has ended.
    pub fn give_back(&mut self, filled: Filled, policy: &dyn Policy, learnt: u64) -> Result<(), Error> {
        let Some(running) = &self.running else {
            self.buffers.push(filled);
            return Ok(());
        };
        // The producer has returned the copy that it acted with before it passed the rollout on.
        let (Ok(Some(mut order)), Ok(())) = (running.orders.try_recv(), running.rollouts.send(filled)) else {
            return Err(self.join().err().unwrap_or_else(lost));
        };
        order.policy.copy_from(policy)?;
        order.learnt = learnt;
        self.orders.push_back(order);
        if self.held { Ok(()) } else { self.send_orders() }
    }

    fn send_orders(&mut self) -> Result<(), Error> {
        let Some(running) = &self.running else { return Err(lost()) };
        while self.left > 0 {
            let Some(order) = self.orders.pop_front() else { break };
            if running.orders.send(order).is_err() {
                return Err(self.join().err().unwrap_or_else(lost));
            }
            self.left -= 1;
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Starts the producer if it does not run, and sends it what has been ordered.
    fn start(&mut self) -> Result<(), Error> {
        if self.running.is_none() {
            if self.orders.is_empty() {
                return Err(lost());
            }
            let Some(mut collector) = self.collector.take() else { return Err(lost()) };
            let [free, rollouts] = ring(self.buffers.drain(..));
            // All orders begin with the learner.
            let [orders, to_act] = ring(self.orders.drain(..));
            while let Ok(Some(order)) = orders.try_recv() {
                self.orders.push_back(order);
            }
            let track = self.producer_track.clone();
            let producer = spawn("collect", move || {
                loop {
                    let next = track.time(Phase::WaitLearner, || to_act.recv().and_then(|order| Ok((order, free.recv()?))));
                    let Ok((order, mut filled)) = next else { return Ok(Ended { collector, rollouts: free }) };
                    collector.collect(&*order.policy, order.learnt, &mut filled, &track)?;
                    if to_act.send(order).is_err() || free.send(filled).is_err() {
                        return Ok(Ended { collector, rollouts: free });
                    }
                }
            })?;
            self.running = Some(Running { orders, rollouts, producer });
        }
        self.send_orders()
    }

    /// Ends the producer's thread.
    fn join(&mut self) -> Result<(), Error> {
        let Some(Running { orders, rollouts, producer }) = self.running.take() else { return Ok(()) };
        drop(orders);
        let Ended { collector, rollouts: free } = producer.join()??;
        for stage in [rollouts, free] {
            while let Ok(Some(filled)) = stage.try_recv() {
                self.buffers.push(filled);
            }
        }
        self.collector = Some(collector);
        Ok(())
    }

    /// Stops the producer, all of whose rollouts have been given back, and shows the collector as it stands after them. The next call
    /// of [`Pipeline::next`] goes on as if nothing had been.
    ///
    /// # Errors
    /// Those of the producer.
    ///
    /// # Panics
    /// If rollouts are in flight.
    pub fn rest(&mut self) -> Result<&mut C, Error> {
        assert_eq!(self.in_flight, 0, "all rollouts have been given back");
        self.join()?;
        self.collector.as_mut().ok_or_else(lost)
    }

    /// The policies that the rollouts which have not been begun are to be acted in by, oldest first, and how many rollouts each has learnt
    /// from.
    #[must_use]
    pub fn ordered(&self) -> Vec<(u64, Snapshot)> {
        self.orders.iter().map(|order| (order.learnt, order.policy.save())).collect()
    }
}

impl<C> Drop for Pipeline<C> {
    fn drop(&mut self) {
        self.stopper.store(true, Ordering::Relaxed);
    }
}

/// The producer is not there.
fn lost() -> Error {
    Error::Thread { name: "collect".into(), cause: "has ended, or was given nothing to do".into() }
}
