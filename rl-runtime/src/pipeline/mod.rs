//! Collecting and learning, one after the other or overlapped.
//!
//! [`Pipeline::drive`] owns the order of both; a loop only learns from the rollouts that it is given and answers a [`Flow`].
//!
//! [`Mode::Sync`] is the plain loop: it collects a rollout, then learns from it. [`Mode::Overlapped`] collects on threads of its
//! own. The policy of rollout i is the one after update i - k. While the learner learns from rollout i - k, the producers are up
//! to k rollouts ahead and never more, because for rollout i they wait for exactly that policy. The protocol itself therefore
//! bounds the lag, results do not depend on timing, and k = 0 is the plain loop on two threads.
//!
//! Two [rings](mod@crate::ring) connect a producer with the learner. Rollouts go from the producer to the learner and back,
//! policies from the learner to the producer and back. There are k + 1 of each, allocated once.
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
//! With P producers, producer i mod P collects rollout i. Each has (k + 1) / P rollouts and policies. The environments of
//! producer p are numbered from p N on, so the columns of successive rollouts belong to different ones, as with first-come
//! batching.
//!
//! Custom pipelines use the same parts, [`ring()`] and [`spawn`]; `xtask/outside/pipeline` is an example.

pub mod blocking;
pub mod calls;
pub mod faults;
pub mod first_come;

mod collect;
mod env_thread;
pub(crate) mod mode;
pub(crate) mod pauses;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rl_agents::{Agent, Anomalies, Counters, Policy, Snapshot, Statistics};
use rl_buffer::{Memory, Rollout};
use serde::{Deserialize, Serialize};

pub use crate::pipeline::collect::{Collect, Filled};
use crate::pipeline::faults::FaultCounts;
use crate::report::profile::{PRODUCER, Phase, Profile, Track};
use crate::ring::{Stage, ring};
use crate::thread::{Thread, ThreadError, spawn};
use crate::{Error, Mode};

/// Returns the kind of memory that an agent learns from without waiting.
pub(crate) fn rollout_memory(agent: &mut dyn Agent, mode: Mode) -> Arc<dyn Memory> {
    agent.device().map_or_else(<dyn Memory>::host, |device| device.memory(mode != Mode::Sync))
}

/// Answer of a loop to a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Flow {
    /// Continue.
    Continue,
    /// Come to a standstill: start no further rollouts, and learn from those in flight.
    Rest,
    /// Stop: start no further rollouts, and drop those in flight.
    Stop,
}

/// Policy for one rollout.
struct Order {
    policy: Box<dyn Policy>,
    learnt: u64,
    /// Fraction of training that remains when the rollout is learnt from.
    remaining: f32,
}

/// Producer's thread, with the learner's ends of the rings.
struct Running<C> {
    orders: Stage<Order>,
    rollouts: Stage<Filled>,
    thread: Thread<Result<Ended<C>, Error>>,
}

/// State that a producer's thread returns when it ends.
struct Ended<C> {
    collector: C,
    rollouts: Stage<Filled>,
}

/// Collector, on a thread of its own if collecting and learning overlap.
struct Producer<C> {
    name: String,
    /// `None` while the thread has it.
    collector: Option<C>,
    /// Rollouts that are free to fill; empty while the thread has them.
    buffers: Vec<Filled>,
    running: Option<Running<C>>,
    stopper: Arc<AtomicBool>,
    counter: Option<Arc<AtomicU64>>,
    track: Track,
    /// Counts of its latest rollout.
    faults: FaultCounts,
    dropped: u64,
    anomalies: Anomalies,
}

impl<C: Collect> Producer<C> {
    /// Collects on the calling thread.
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, remaining: f32) -> Result<Filled, Error> {
        let (Some(collector), Some(mut filled)) = (&mut self.collector, self.buffers.pop()) else { return Err(self.lost()) };
        filled.remaining = remaining;
        collector.collect(policy, learnt, &mut filled, &self.track)?;
        Ok(filled)
    }

    /// Spawns the thread, which circulates `orders`.
    fn spawn(&mut self, orders: Vec<Order>) -> Result<(), Error> {
        let Some(mut collector) = self.collector.take() else { return Err(self.lost()) };
        let [free, rollouts] = ring(self.buffers.drain(..));
        let [orders, to_act] = ring(orders);
        let track = self.track.clone();
        let thread = spawn(&self.name, move || {
            loop {
                let next = track.time(Phase::WaitLearner, || to_act.recv().and_then(|order| Ok((order, free.recv()?))));
                let Ok((order, mut filled)) = next else { return Ok(Ended { collector, rollouts: free }) };
                filled.remaining = order.remaining;
                collector.collect(&*order.policy, order.learnt, &mut filled, &track)?;
                filled.rollout.send().map_err(rl_agents::Error::from)?;
                if to_act.send(order).is_err() || free.send(filled).is_err() {
                    return Ok(Ended { collector, rollouts: free });
                }
            }
        })?;
        self.running = Some(Running { orders, rollouts, thread });
        Ok(())
    }

    /// Returns the number of full rollouts that wait for the learner.
    fn waiting(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.rollouts.waiting())
    }

    /// Starts a rollout with the policy of `order`.
    fn send(&mut self, order: Order) -> Result<(), Error> {
        let sent = self.running.as_ref().is_some_and(|running| running.orders.send(order).is_ok());
        if sent { Ok(()) } else { Err(self.failure()) }
    }

    /// Waits for the oldest rollout.
    fn receive(&mut self) -> Result<Filled, Error> {
        match self.running.as_ref().map(|running| running.rollouts.recv()) {
            Some(Ok(filled)) => Ok(filled),
            _ => Err(self.failure()),
        }
    }

    /// Returns a rollout to the thread, in exchange for the policy of its actions.
    fn exchange(&mut self, filled: Filled) -> Result<Order, Error> {
        // The thread returns the policy before it passes the rollout on.
        match self.running.as_ref().map(|running| (running.orders.try_recv(), running.rollouts.send(filled))) {
            Some((Ok(Some(order)), Ok(()))) => Ok(order),
            _ => Err(self.failure()),
        }
    }

    /// Ends the thread, which has no rollout in flight.
    fn join(&mut self) -> Result<(), Error> {
        let Some(Running { orders, rollouts, thread }) = self.running.take() else { return Ok(()) };
        drop(orders);
        let Ended { collector, rollouts: free } = thread.join()??;
        for stage in [rollouts, free] {
            while let Ok(Some(filled)) = stage.try_recv() {
                self.buffers.push(filled);
            }
        }
        self.collector = Some(collector);
        Ok(())
    }

    /// Returns the error of a thread that has ended early: its own, or its panic.
    fn failure(&mut self) -> Error {
        self.join().err().unwrap_or_else(|| self.lost())
    }

    fn lost(&self) -> Error {
        ThreadError { name: self.name.clone(), cause: "has ended".into() }.into()
    }
}

/// Collectors, and the rings between them and a learner.
pub struct Pipeline<C> {
    producers: Vec<Producer<C>>,
    /// Index of the producer of the next rollout to learn from.
    turn: usize,
    /// Rollouts that start before the first update; 0 if the learner's thread collects.
    n_ahead: usize,
    in_flight: usize,
    /// Policies for the rollouts that have not started, oldest first.
    orders: VecDeque<Order>,
    /// Rollouts that have been learnt from.
    learnt: u64,
    /// Environment steps of a rollout.
    samples: u64,
    track: Track,
}

impl<C: Collect> Pipeline<C> {
    /// Creates a pipeline of rollouts of `n_steps` steps, without collecting yet.
    ///
    /// The collectors take turns; each has an equal share of the rollouts in flight. An agent that follows environments, such as
    /// [`Dqn`](rl_agents::Dqn), is created for those of all collectors. Rollouts are in the given kind of memory: see
    /// [`OnDevice::memory`](rl_agents::OnDevice::memory).
    ///
    /// # Errors
    /// The errors of [`Rollout::new_in`]; [`Error::Config`] if there are no collectors, `max_lag + 1` is not a multiple of their
    /// number, or the rollouts do not fit into memory.
    pub fn new(
        mode: Mode,
        collectors: Vec<C>,
        n_steps: usize,
        memory: &Arc<dyn Memory>,
        profile: &Profile,
    ) -> Result<Self, Error> {
        let (n_ahead, n) = (mode.n_ahead(), collectors.len());
        if n == 0 || !n_ahead.is_multiple_of(n) {
            let text = "max_lag + 1 rollouts are in flight, which has to be a multiple of the number of collectors";
            return Err(Error::config(format!("{n} collectors, {n_ahead} rollouts in flight: {text}")));
        }
        let (mut samples, mut producers) = (0, Vec::with_capacity(n));
        for (i, collector) in collectors.into_iter().enumerate() {
            let (shape, all) = (collector.shape(n_steps), n_ahead.max(1));
            shape.check_memory(all).map_err(|error| match error {
                rl_buffer::Error::OutOfMemory { needed, available, .. } => Error::config(format!(
                    "max_lag needs {all} rollouts, which take {needed} bytes; {available} are available: lower max_lag, n_steps or n_envs"
                )),
                error => rl_agents::Error::from(error).into(),
            })?;
            samples = (shape.n_steps * shape.n_envs) as u64;
            // In turn, each collector has one.
            let rollouts = (0..(all / n).max(1)).map(|_| Rollout::new_in(shape, memory));
            let buffers = rollouts.map(|rollout| rollout.map(Filled::new)).collect::<Result<_, _>>();
            let buffers = buffers.map_err(rl_agents::Error::from)?;
            let name = if n == 1 { PRODUCER.into() } else { format!("{PRODUCER}-{i}") };
            let track = profile.track(if n_ahead == 0 { "learner" } else { &name });
            let (stopper, counter, running) = (collector.stopper(), collector.counter(), None);
            let (faults, dropped, anomalies) = (FaultCounts::default(), 0, Anomalies::default());
            let collector = Some(collector);
            producers.push(Producer { name, collector, buffers, running, stopper, counter, track, faults, dropped, anomalies });
        }
        let (orders, track) = (VecDeque::with_capacity(n_ahead), profile.track("learner"));
        Ok(Self { producers, turn: 0, n_ahead, in_flight: 0, orders, learnt: 0, samples, track })
    }

    /// Restores an agent and the older policies of the next rollouts.
    ///
    /// The run has learnt from `learnt` rollouts, and has `steps` environment steps. `older` is as [`Pipeline::older`] returned
    /// it.
    ///
    /// # Errors
    /// The errors of [`Agent::load`].
    pub fn resume(
        &mut self,
        agent: &mut dyn Agent,
        snapshot: &Snapshot,
        older: Vec<(u64, Snapshot)>,
        learnt: u64,
        steps: u64,
    ) -> Result<(), Error> {
        self.learnt = learnt;
        self.turn = (learnt % self.producers.len() as u64) as usize;
        self.orders.clear();
        for (i, (learnt, older)) in older.into_iter().take(self.n_ahead.saturating_sub(1)).enumerate() {
            let statistics = Statistics { obs: older.statistics.obs, ..snapshot.statistics.clone() };
            let counters = Counters { version: older.counters.version, ..snapshot.counters };
            agent.load(&Snapshot { params: older.params, moments: snapshot.moments.clone(), statistics, counters })?;
            let remaining = self.remaining(i, steps);
            self.orders.push_back(Order { policy: agent.acting(remaining).copy(), learnt, remaining });
        }
        Ok(agent.load(snapshot)?)
    }

    /// Returns the number of rollouts that have been learnt from.
    #[must_use]
    pub fn learnt(&self) -> u64 {
        self.learnt
    }

    /// Collects with `agent`'s policies, and hands each rollout to `learn`.
    ///
    /// Returns after `steps` environment steps of the whole run, or after an answer other than [`Flow::Continue`], once no
    /// rollouts are in flight; another call continues. Exploration follows its schedule over `steps`.
    ///
    /// # Errors
    /// The errors of `learn` and of the collectors, and [`Error::Thread`] if a producer has panicked. The pipeline must not be
    /// used again then.
    pub fn drive(
        &mut self,
        agent: &mut dyn Agent,
        steps: u64,
        mut learn: impl FnMut(&mut Filled, &mut dyn Agent) -> Result<Flow, Error>,
    ) -> Result<(), Error> {
        let total = steps.div_ceil(self.samples);
        let (mut flow, mut dropped) = (Flow::Continue, false);
        self.order_first(agent, steps)?;
        loop {
            if flow == Flow::Continue {
                self.start(total)?;
            }
            if self.in_flight == 0 {
                break;
            }
            let mut filled = self.next(agent, steps)?;
            if flow == Flow::Stop {
                dropped = true;
            } else {
                flow = flow.max(learn(&mut filled, agent)?);
                self.learnt += 1;
            }
            self.give_back(filled, agent, steps)?;
        }
        if dropped {
            // The environments continue behind the dropped rollouts.
            agent.discontinue();
        }
        Ok(())
    }

    /// Returns the fraction of a run that remains after `rollouts` more rollouts.
    fn remaining(&self, rollouts: usize, steps: u64) -> f32 {
        let env_steps = (self.learnt + rollouts as u64) * self.samples;
        (1.0 - env_steps as f64 / steps as f64).max(0.0) as f32
    }

    /// Spawns the producers; queues policies for the rollouts before any update.
    fn order_first(&mut self, agent: &mut dyn Agent, steps: u64) -> Result<(), Error> {
        let (n, n_ahead) = (self.producers.len(), self.n_ahead);
        for i in self.orders.len()..n_ahead {
            let remaining = self.remaining(i, steps);
            self.orders.push_back(Order { policy: agent.acting(remaining).copy(), learnt: self.learnt, remaining });
        }
        if n_ahead == 0 || self.producers.iter().all(|producer| producer.running.is_some()) {
            return Ok(());
        }
        let turn = |i: usize| (self.turn + i) % n;
        let mut shares: Vec<Vec<Order>> = (0..n).map(|_| Vec::with_capacity(n_ahead / n)).collect();
        self.orders.drain(..).enumerate().for_each(|(i, order)| shares[turn(i)].push(order));
        for (producer, share) in self.producers.iter_mut().zip(shares) {
            producer.spawn(share)?;
        }
        for i in 0..n_ahead {
            // All orders begin on the learner's side of their ring.
            let running = self.producers[turn(i)].running.as_ref();
            self.orders.extend(running.and_then(|running| running.orders.try_recv().ok().flatten()));
        }
        Ok(())
    }

    /// Starts rollouts, up to `total` in the whole run.
    fn start(&mut self, total: u64) -> Result<(), Error> {
        let n = self.producers.len();
        while self.in_flight < self.n_ahead.max(1) && self.learnt + (self.in_flight as u64) < total {
            if let Some(order) = self.orders.pop_front() {
                self.producers[(self.turn + self.in_flight) % n].send(order)?;
            }
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Takes the next rollout, or collects it where the learner's thread does that.
    fn next(&mut self, agent: &mut dyn Agent, steps: u64) -> Result<Filled, Error> {
        let (remaining, waiting) = (self.remaining(0, steps), self.producers.iter().map(Producer::waiting).sum());
        let producer = &mut self.producers[self.turn];
        let mut filled = if self.n_ahead == 0 {
            producer.collect(agent.acting(remaining), self.learnt, remaining)?
        } else {
            self.track.time(Phase::WaitProducers, || producer.receive())?
        };
        (filled.remaining, filled.waiting) = (remaining, waiting);
        if self.producers.len() > 1 {
            self.number(&mut filled);
        }
        self.in_flight -= 1;
        Ok(filled)
    }

    /// Numbers the environments of one of several producers.
    ///
    /// Adds the counts of the others.
    fn number(&mut self, filled: &mut Filled) {
        let Filled { rollout, calls, faults, dropped, anomalies, .. } = filled;
        let n_envs = rollout.shape().n_envs;
        let first_env = self.turn * n_envs;
        if std::mem::take(&mut rollout.contiguous) {
            let continues = !std::mem::take(&mut rollout.cut_before);
            rollout.continues.clear();
            rollout.continues.resize(n_envs, continues);
        }
        rollout.env_idx_mut().iter_mut().for_each(|env_idx| *env_idx += first_env as u32);
        calls.shift(first_env);
        let producer = &mut self.producers[self.turn];
        (producer.faults, producer.dropped) = (*faults, *dropped);
        producer.anomalies.clone_from(anomalies);
        (*faults, *dropped, *anomalies) = (FaultCounts::default(), 0, Anomalies::default());
        for producer in &self.producers {
            faults.add(&producer.faults);
            *dropped += producer.dropped;
            anomalies.add(&producer.anomalies);
        }
    }

    /// Returns a rollout to its producer.
    ///
    /// Queues the policy of the rollout `n_ahead` later.
    fn give_back(&mut self, filled: Filled, agent: &mut dyn Agent, steps: u64) -> Result<(), Error> {
        let remaining = self.remaining(self.n_ahead.saturating_sub(1), steps);
        let n = self.producers.len();
        let producer = &mut self.producers[self.turn];
        self.turn = (self.turn + 1) % n;
        if self.n_ahead == 0 {
            producer.buffers.push(filled);
            return Ok(());
        }
        let mut order = producer.exchange(filled)?;
        agent.acting(remaining).copy_to(&mut order.policy);
        (order.learnt, order.remaining) = (self.learnt, remaining);
        self.orders.push_back(order);
        Ok(())
    }

    /// Ends the producers and returns the collectors.
    ///
    /// No rollouts are in flight while [`Pipeline::drive`] does not run.
    /// [`Pipeline::drive`] continues as if the pipeline had not been interrupted.
    ///
    /// # Errors
    /// The errors of the producers.
    pub fn collectors(&mut self) -> Result<Vec<&mut C>, Error> {
        self.producers.iter_mut().try_for_each(Producer::join)?;
        let collectors = self.producers.iter_mut().map(|producer| producer.collector.as_mut());
        collectors.collect::<Option<_>>().ok_or_else(|| ThreadError { name: "collect".into(), cause: "has ended".into() }.into())
    }

    /// Returns the older policies of the next rollouts, oldest first.
    ///
    /// The last policy, which is the agent's own, is left out. Each comes with the number of rollouts that it has learnt from.
    #[must_use]
    pub fn older(&self) -> Vec<(u64, Snapshot)> {
        let n = self.orders.len().saturating_sub(1);
        self.orders.iter().take(n).map(|order| (order.learnt, order.policy.weights().into())).collect()
    }
}

impl<C> Pipeline<C> {
    /// Returns a counter that no random number in flight has reached, or 0.
    ///
    /// See [`Collect::counter`].
    pub(crate) fn counter(&self) -> u64 {
        let counters = self.producers.iter().filter_map(|producer| producer.counter.as_ref());
        counters.map(|counter| counter.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Returns the stop flags of the collectors; see [`Collect::stopper`].
    #[must_use]
    pub fn stoppers(&self) -> Vec<Arc<AtomicBool>> {
        self.producers.iter().map(|producer| producer.stopper.clone()).collect()
    }
}

impl<C> Drop for Pipeline<C> {
    fn drop(&mut self) {
        self.producers.iter().for_each(|producer| producer.stopper.store(true, Ordering::Relaxed));
    }
}
