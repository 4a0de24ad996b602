//! Collecting and learning, one after the other or overlapped.
//!
//! [`Mode::Sync`] is the plain loop: it collects a rollout, then learns from it. [`Mode::Overlapped`] collects on its own thread.
//! The policy of rollout i is the one after update i - k. While the learner learns from rollout i - k, the producer is up to k
//! rollouts ahead and never more, because for rollout i it waits for exactly that policy. The protocol itself therefore bounds the
//! lag, results do not depend on timing, and k = 0 is the plain loop on two threads.
//!
//! Two [rings](mod@crate::ring) connect the threads. Rollouts go from the producer to the learner and back, policies from the
//! learner to the producer and back. There are k + 1 of each, allocated once.
//!
//! ```text
//!              policies: copies of the policy after update i - k
//!       .-------------------------------------------------------.
//!       v                                                        |
//!   producer (Collect: acts in the environments)              learner (returns rollouts after learning)
//!       |                                                        ^
//!       '-------------------------------------------------------'
//!              rollouts: filled, then returned
//! ```
//!
//! Custom pipelines use the same parts, [`ring()`] and [`spawn`]; `xtask/outside/pipeline` is an example.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rl_agents::{Anomalies, Collector, Episode, Policy, Snapshot};
use rl_buffer::Rollout;
use rl_envs::pool::panic_text;

use crate::Error;
use crate::faults::FaultCounts;
use crate::profile::{Phase, Profile, Track};
use crate::ring::{Stage, ring};

/// Named thread.
#[derive(Debug)]
pub struct Thread<R> {
    name: String,
    handle: JoinHandle<R>,
}

/// Spawns a named thread.
///
/// # Errors
/// [`Error::Thread`] if the system refuses.
pub fn spawn<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> Result<Thread<R>, Error> {
    let handle = std::thread::Builder::new().name(name.into()).spawn(work);
    let handle = handle.map_err(|error| Error::Thread { name: name.into(), cause: format!("cannot be spawned: {error}") })?;
    Ok(Thread { name: name.into(), handle })
}

impl<R> Thread<R> {
    /// Waits for the thread to end.
    ///
    /// # Errors
    /// [`Error::Thread`] if the thread has panicked.
    pub fn join(self) -> Result<R, Error> {
        let Self { name, handle } = self;
        handle.join().map_err(|panic| Error::Thread { name, cause: format!("panicked: {}", panic_text(&*panic)) })
    }
}

/// Rollout in flight from a producer to the learner.
#[derive(Debug)]
pub struct Filled {
    /// The rollout.
    pub rollout: Rollout,
    /// Episodes that ended in the rollout.
    ///
    /// With first-come batching, those of dropped stretches too.
    pub episodes: Vec<Episode>,
    /// Rollouts that the policy of each column's first action had learnt from, (N).
    pub learnt: Vec<u64>,
    /// Faults of environments so far.
    pub faults: FaultCounts,
    /// Stretches dropped for their age so far.
    pub dropped: u64,
    /// Invalid numbers from environments so far.
    pub anomalies: Anomalies,
}

impl Filled {
    /// Wraps an empty rollout.
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

/// Collector of rollouts.
///
/// Implemented by [`Collector`] and [`FirstComeCollector`](crate::first_come::FirstComeCollector).
pub trait Collect: Send + 'static {
    /// Fills `filled`, acting with `policy`, which has learnt from `learnt` rollouts.
    ///
    /// # Errors
    /// The errors of the environments and the policy.
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error>;

    /// Creates an empty rollout of `n_steps` steps.
    ///
    /// # Errors
    /// The errors of [`Rollout::new`].
    fn rollout(&self, n_steps: usize) -> Result<Rollout, Error>;

    /// Returns the stop flag, set when no more rollouts are wanted.
    ///
    /// A collector that blocks for long must then return, with any error.
    fn stopper(&self) -> Arc<AtomicBool> {
        Arc::default()
    }
}

impl Collect for Collector {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let begin = Instant::now();
        filled.episodes = Collector::collect(self, policy, &mut filled.rollout)?;
        filled.learnt.fill(learnt);
        filled.anomalies = self.anomalies();
        // The threads' time divided by their number: the wall time if all threads acted all the time.
        let (whole, policy) = (begin.elapsed(), Duration::from_nanos(self.acted() / self.n_threads() as u64));
        let envs = whole.saturating_sub(policy);
        track.add(Phase::Envs, begin, envs);
        track.add(Phase::Policy, begin + envs, whole - envs);
        Ok(())
    }

    fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        Ok(Collector::rollout(self, n_steps)?)
    }
}

/// Schedule of collecting and learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, on one thread; the reference for the other mode.
    Sync,
    /// At the same time, with a stale policy.
    Overlapped {
        /// Policy lag k: how many updates old the acting policy is.
        max_lag: usize,
    },
}

impl Mode {
    /// Returns the number of rollouts that start before the first update.
    ///
    /// 0 for [`Mode::Sync`].
    #[must_use]
    pub fn n_ahead(self) -> usize {
        match self {
            Self::Sync => 0,
            Self::Overlapped { max_lag } => max_lag.saturating_add(1),
        }
    }
}

/// Policy for one rollout.
pub(crate) struct Order {
    pub(crate) policy: Box<dyn Policy>,
    /// Number of rollouts that the policy has learnt from.
    pub(crate) learnt: u64,
}

/// Producer thread, with the learner's ends of the rings.
struct Running<C> {
    orders: Stage<Order>,
    rollouts: Stage<Filled>,
    producer: Thread<Result<Ended<C>, Error>>,
}

/// State that a producer returns when it ends.
struct Ended<C> {
    collector: C,
    rollouts: Stage<Filled>,
}

/// Collector and the rings between it and a learner.
pub struct Pipeline<C> {
    mode: Mode,
    /// `None` while a producer has it.
    collector: Option<C>,
    /// Rollouts that are free to fill.
    buffers: Vec<Filled>,
    /// Policies for the rollouts that have not started, oldest first.
    orders: VecDeque<Order>,
    running: Option<Running<C>>,
    in_flight: usize,
    /// Number of rollouts that may still start.
    left: u64,
    held: bool,
    stopper: Arc<AtomicBool>,
    track: Track,
    producer_track: Track,
}

impl<C: Collect> Pipeline<C> {
    /// Creates a pipeline of rollouts of `n_steps` steps, without collecting yet.
    ///
    /// # Errors
    /// The errors of [`Collect::rollout`], and [`Error::Config`] if the rollouts do not fit into memory.
    pub fn new(mode: Mode, collector: C, n_steps: usize, profile: &Profile) -> Result<Self, Error> {
        let ahead = match mode {
            Mode::Sync => 0,
            Mode::Overlapped { max_lag } => max_lag,
        };
        let first = collector.rollout(n_steps)?;
        let n = ahead.saturating_add(1);
        first.shape().check_memory(n).map_err(|error| match error {
            rl_buffer::Error::OutOfMemory { needed, available, .. } => Error::config(format!(
                "max_lag needs {n} rollouts, which take {needed} bytes; {available} are available: lower max_lag, n_steps or n_envs"
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

    /// Returns how many policies to [order](Pipeline::order) before the first rollout.
    ///
    /// One for each rollout that starts before the first update; 0 for [`Mode::Sync`].
    #[must_use]
    pub fn n_ahead(&self) -> usize {
        self.mode.n_ahead()
    }

    /// Queues `policy` for the next rollout that has none.
    ///
    /// `learnt` is the number of rollouts that it has learnt from.
    pub fn order(&mut self, policy: Box<dyn Policy>, learnt: u64) {
        self.orders.push_back(Order { policy, learnt });
    }

    /// Limits the number of rollouts that may still start to `left`.
    pub fn limit(&mut self, left: u64) {
        self.left = left;
    }

    /// Starts no further rollouts until [`Pipeline::next`] finds none in flight.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Returns the number of rollouts in flight.
    ///
    /// They have started, and [`Pipeline::next`] has not returned them yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the collector's stop flag; see [`Collect::stopper`].
    #[must_use]
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.stopper.clone()
    }

    /// Returns the number of full rollouts that wait for the learner.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.rollouts.waiting())
    }

    /// Returns the next rollout.
    ///
    /// [`Mode::Sync`] collects it now with `policy`; otherwise the call waits for the producer.
    ///
    /// # Errors
    /// The errors of the collector, and [`Error::Thread`] if the producer has panicked or has nothing to do.
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
            // The producer has ended early: with an error, or in a panic.
            Err(_) => Err(self.join().err().unwrap_or_else(lost)),
        }
    }

    /// Returns a rollout to the pipeline, to be filled again.
    ///
    /// `policy`, which has learnt from `learnt` rollouts, acts in the rollout k + 1 later.
    ///
    /// # Errors
    /// Those of the producer if it has ended.
    pub fn give_back(&mut self, filled: Filled, policy: &dyn Policy, learnt: u64) -> Result<(), Error> {
        let Some(running) = &self.running else {
            self.buffers.push(filled);
            return Ok(());
        };
        // The producer returns its copy of the policy before it passes the rollout on.
        let (Ok(Some(mut order)), Ok(())) = (running.orders.try_recv(), running.rollouts.send(filled)) else {
            return Err(self.join().err().unwrap_or_else(lost));
        };
        policy.copy_to(&mut order.policy);
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

    /// Spawns the producer if necessary, and sends it the queued orders.
    fn start(&mut self) -> Result<(), Error> {
        if self.running.is_none() {
            if self.orders.is_empty() {
                return Err(lost());
            }
            let Some(mut collector) = self.collector.take() else { return Err(lost()) };
            let [free, rollouts] = ring(self.buffers.drain(..));
            // All orders start on the learner's side.
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

    /// Joins the producer's thread.
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

    /// Stops the producer and returns the collector, as it is after the latest rollout.
    ///
    /// The next call of [`Pipeline::next`] continues as if the pipeline had not stopped.
    ///
    /// # Errors
    /// The errors of the producer.
    ///
    /// # Panics
    /// If rollouts are in flight.
    pub fn rest(&mut self) -> Result<&mut C, Error> {
        assert_eq!(self.in_flight, 0, "all rollouts have been given back");
        self.join()?;
        self.collector.as_mut().ok_or_else(lost)
    }

    /// Returns the queued policies, oldest first.
    ///
    /// Each comes with the number of rollouts that it has learnt from.
    #[must_use]
    pub fn ordered(&self) -> Vec<(u64, Snapshot)> {
        self.orders.iter().map(|order| (order.learnt, order.policy.weights().into())).collect()
    }
}

impl<C> Drop for Pipeline<C> {
    fn drop(&mut self) {
        self.stopper.store(true, Ordering::Relaxed);
    }
}

/// Error for a missing producer.
fn lost() -> Error {
    Error::Thread { name: "collect".into(), cause: "has ended, or was given nothing to do".into() }
}
