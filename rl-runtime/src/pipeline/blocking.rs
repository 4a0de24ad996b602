//! Blocking environments, each on its own thread.
//!
//! [`BlockingEnvs`] has `send` and `recv`: a call goes to one environment, and answers arrive in the order in which environments
//! finish. Faults are handled as described in [`faults`](crate::pipeline::faults).
//! [`FirstComeCollector`](crate::pipeline::first_come::FirstComeCollector) builds rollouts from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rl_envs::{Action, ActionSlice, ActionSpace, BlockingEnv, Purpose, Space, Spaces, Step, rng};

use crate::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crate::pipeline::calls::Calls;
pub use crate::pipeline::env_thread::Make;
use crate::pipeline::env_thread::{Call, Cell, Reply, Request, serve};
use crate::pipeline::faults::{Breaker, Fault, FaultConfig, FaultCounts, Restarts, after, backoff};
use crate::pipeline::pauses::{paused_since, watch};
use crate::thread::spawn;
use crate::{Error, interrupt, print};

/// Poll interval for the stop flag.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Minimum wait for a reply.
const SHORT: Duration = Duration::from_micros(50);

/// Callback for faults: environment index, fault, and the action taken.
pub type OnFault = Box<dyn FnMut(usize, &Fault, &str) + Send>;

/// Event of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EnvEvent {
    /// An episode has started; [`BlockingEnvs::obs`] is its first observation.
    Started,
    /// A step is done; [`BlockingEnvs::obs`] is the next or final observation.
    Stepped(Step),
    /// A call has failed and ended the episode.
    ///
    /// The environment is restarted without a request, which gives another `Started`.
    Faulted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Waiting for a request.
    Idle,
    /// Waiting for its answer since this time.
    Asked(Request, Instant),
    /// Waiting to be restarted.
    Down,
    /// Waiting to be replaced on a new thread, not before this time.
    Gone(Instant),
    Quarantined,
}

struct Slot<O> {
    calls: Sender<Call<O>>,
    generation: u64,
    state: SlotState,
    /// True until a call has succeeded, since the beginning or the last fault.
    starts: bool,
    /// Lifetime steps.
    steps: u64,
    /// Successful steps since the last start.
    since_start: u64,
    /// Successful starts since the last fault.
    n_starts: u64,
    /// Steps before the last fault, and its text.
    ///
    /// `None` unless it was in the first episode after the fault before.
    last: Option<(u64, String)>,
    restarts: Restarts,
    /// `None` while the environment has it.
    cell: Option<Cell<O>>,
}

/// Blocking environments, each on its own thread.
pub struct BlockingEnvs<E: BlockingEnv> {
    make: Make<E>,
    config: FaultConfig,
    pub(crate) seed: u64,
    pub(crate) observation_space: Space,
    pub(crate) action_space: ActionSpace,
    slots: Vec<Slot<E::Obs>>,
    replies: Receiver<Reply<E::Obs>>,
    /// Cloned into every thread; also keeps the channel open.
    answer: Sender<Reply<E::Obs>>,
    breaker: Breaker,
    /// True once any call has succeeded.
    reached: bool,
    /// True once the first episodes have been asked for.
    begun: bool,
    /// Start index of the search for environments to restart.
    ///
    /// The index rotates, so that each environment gets a turn while the breaker is open.
    first: usize,
    counts: FaultCounts,
    /// Calls since the last rollout.
    pub(crate) calls: Calls,
    on_fault: OnFault,
    stop: Arc<AtomicBool>,
}

/// Returns a callback that warns of each environment's faults 1, 2, 4, 8 and so on.
fn warn(n_envs: usize) -> OnFault {
    let mut counts = vec![0u64; n_envs];
    Box::new(move |env, fault, then| {
        counts[env] += 1;
        let n = counts[env];
        if n.is_power_of_two() {
            print::err(&format!("warning: environment {env}, fault {n}: {fault}; {then}"));
        }
    })
}

impl<E: BlockingEnv> BlockingEnvs<E> {
    /// Starts `n_envs` environments, made by `make`, with randomness from `seed`.
    ///
    /// The first wait for events begins their first episodes. Each environment gives a `Started` event. Faults are reported on
    /// stderr, for each environment the first, second, fourth and so on; [`BlockingEnvs::on_fault`] replaces that report.
    ///
    /// # Errors
    /// [`Error::Thread`] if a thread cannot be spawned, [`rl_envs::Error::EnvCount`] if `n_envs` is 0.
    pub fn new(n_envs: usize, spaces: Spaces, make: Make<E>, config: FaultConfig, seed: u64) -> Result<Self, Error> {
        if n_envs == 0 {
            return Err(rl_envs::Error::EnvCount { n_envs }.into());
        }
        watch();
        // Twice the size, because abandoned threads may still answer.
        let (answer, replies) = bounded(2 * n_envs);
        let Spaces { obs: observation_space, actions: action_space } = spaces;
        let mut envs = Self {
            make,
            breaker: Breaker::new(&config, n_envs),
            reached: false,
            begun: false,
            first: 0,
            config,
            seed,
            observation_space,
            action_space,
            slots: Vec::with_capacity(n_envs),
            replies,
            answer,
            counts: FaultCounts::default(),
            calls: Calls::default(),
            on_fault: warn(n_envs),
            stop: Arc::default(),
        };
        for env in 0..n_envs {
            let (cell, calls) = (Some(envs.cell()), envs.thread(env, 0)?);
            let (state, restarts) = (SlotState::Idle, Restarts::default());
            envs.slots.push(Slot {
                calls,
                generation: 0,
                state,
                starts: true,
                steps: 0,
                since_start: 0,
                n_starts: 0,
                last: None,
                restarts,
                cell,
            });
        }
        Ok(envs)
    }

    /// Replaces the report on stderr by a callback, which receives every fault.
    pub fn on_fault(&mut self, told: OnFault) {
        self.on_fault = told;
    }

    /// Returns the number of environments.
    #[must_use]
    pub fn n_envs(&self) -> usize {
        self.slots.len()
    }

    /// Skips lifetime steps, and their random numbers.
    pub(crate) fn skip(&mut self, steps: u64) {
        self.slots.iter_mut().for_each(|slot| slot.steps += steps);
    }

    /// Returns the largest number of lifetime steps of an environment.
    pub(crate) fn most_steps(&self) -> u64 {
        self.slots.iter().map(|slot| slot.steps).max().unwrap_or(0)
    }

    /// Returns the fault counts.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Returns the stop flag, which makes a waiting [`BlockingEnvs::recv`] return soon.
    #[must_use]
    pub fn stopper(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Returns the latest observation (D) of environment `env`; empty during a call.
    #[must_use]
    pub fn obs(&self, env: usize) -> &[E::Obs] {
        self.slots[env].cell.as_ref().map_or(&[], |cell| &cell.obs)
    }

    /// Returns the legal actions at the latest observation, (A); empty without masks.
    #[must_use]
    pub fn mask(&self, env: usize) -> &[u8] {
        self.slots[env].cell.as_ref().map_or(&[], |cell| &cell.mask)
    }

    fn cell(&self) -> Cell<E::Obs> {
        let a = self.action_space.len();
        let vector = if matches!(self.action_space, ActionSpace::Continuous { .. }) { vec![0.0; a] } else { Vec::new() };
        let mask = vec![0; if self.action_space.masked() { a } else { 0 }];
        Cell { obs: vec![E::Obs::default(); self.observation_space.len()], mask, vector, discrete: 0 }
    }

    fn thread(&self, env: usize, generation: u64) -> Result<Sender<Call<E::Obs>>, Error> {
        let (calls, answered) = bounded(1);
        let (make, config, answer, seed) = (self.make.clone(), self.config.clone(), self.answer.clone(), self.seed);
        // Never joined, because an environment may hang forever.
        spawn(&format!("env-{env}"), move || serve(env, generation, seed, &config, &make, &answered, &answer))?;
        Ok(calls)
    }

    /// Sends a request to an idle environment.
    fn ask(&mut self, env: usize, ask: Request) {
        let fresh = self.slots[env].cell.is_none().then(|| self.cell());
        let slot = &mut self.slots[env];
        let Some(cell) = slot.cell.take().or(fresh) else { return };
        slot.steps += u64::from(ask == Request::Step);
        slot.state = SlotState::Asked(ask, Instant::now());
        // If the thread has ended, the request times out.
        let _ = slot.calls.send(Call { ask, step: slot.steps, cell });
    }

    /// Sends an action, already clipped to the bounds, to an idle environment.
    ///
    /// # Errors
    /// Errors of [`ActionSlice::check`], for instance if the action is not finite; nothing is sent then.
    ///
    /// # Panics
    /// If the environment is not idle.
    pub fn send(&mut self, env: usize, action: Action<'_>) -> Result<(), Error> {
        let one = match action {
            Action::Discrete(action) => ActionSlice::Discrete(&[action]).check(&self.action_space, 1),
            Action::Continuous(action) => ActionSlice::Continuous(action).check(&self.action_space, 1),
        };
        one.map_err(|error| match error {
            rl_envs::Error::ActionOutOfRange { action, n, .. } => rl_envs::Error::ActionOutOfRange { env_idx: env, action, n },
            rl_envs::Error::ActionOutOfBounds { dim, action, low, high, .. } => {
                rl_envs::Error::ActionOutOfBounds { env_idx: env, dim, action, low, high }
            }
            error => error,
        })?;
        let slot = &mut self.slots[env];
        let Some(cell) = slot.cell.as_mut().filter(|_| slot.state == SlotState::Idle) else {
            panic!("environment {env} is not ready")
        };
        match action {
            Action::Discrete(action) => cell.discrete = action,
            Action::Continuous(action) => cell.vector.copy_from_slice(action),
        }
        self.ask(env, Request::Step);
        Ok(())
    }

    /// Starts a new episode in an environment whose last one has ended.
    ///
    /// # Panics
    /// If the environment is not idle.
    pub fn reset(&mut self, env: usize) {
        assert_eq!(self.slots[env].state, SlotState::Idle, "environment {env} is not ready");
        self.ask(env, Request::Reset);
    }

    /// Waits for `min_ready` events, or for one once `deadline` has passed.
    ///
    /// Appends the events to `events`, and restarts environments that have failed.
    ///
    /// # Errors
    /// [`Error::EnvFailed`] if too many environments are in quarantine, [`rl_envs::Error::Stopped`] if [`BlockingEnvs::stopper`]
    /// is set or the program is interrupted, [`Error::Thread`] if a thread cannot be spawned.
    pub fn recv(&mut self, min_ready: usize, deadline: Duration, events: &mut Vec<(usize, EnvEvent)>) -> Result<(), Error> {
        let (until, wanted) = (after(Instant::now(), deadline), events.len() + min_ready.clamp(1, self.slots.len()));
        let before = events.len();
        while events.len() < wanted && (events.len() == before || Instant::now() < until) {
            let left = if events.len() == before { POLL_INTERVAL } else { until.saturating_duration_since(Instant::now()) };
            self.recv_some(wanted - events.len(), left, events)?;
        }
        Ok(())
    }

    /// Waits for `enough` events, but never longer than `deadline`.
    ///
    /// Appends the events to `events`, and restarts environments that have failed.
    ///
    /// # Errors
    /// As [`BlockingEnvs::recv`].
    pub(crate) fn recv_some(
        &mut self,
        enough: usize,
        deadline: Duration,
        events: &mut Vec<(usize, EnvEvent)>,
    ) -> Result<(), Error> {
        let (until, before) = (after(Instant::now(), deadline), events.len());
        // Not before: a resumed run first skips random numbers.
        if !std::mem::replace(&mut self.begun, true) {
            (0..self.slots.len()).for_each(|env| self.ask(env, Request::Reset));
        }
        loop {
            if self.stop.load(Ordering::Relaxed) || interrupt::drops_rollouts() {
                return Err(rl_envs::Error::Stopped.into());
            }
            while let Ok(reply) = self.replies.try_recv() {
                self.answered(reply, events)?;
            }
            let now = Instant::now();
            let soonest = self.supervise(now, events)?;
            if events.len() - before >= enough || now >= until {
                return Ok(());
            }
            let wait = soonest.min(until).saturating_duration_since(now).max(SHORT);
            match self.replies.recv_timeout(wait) {
                Ok(reply) => self.answered(reply, events)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn answered(&mut self, reply: Reply<E::Obs>, events: &mut Vec<(usize, EnvEvent)>) -> Result<(), Error> {
        let Reply { env, generation, retries, cell, result } = reply;
        let slot = &mut self.slots[env];
        let SlotState::Asked(ask, since) = slot.state else { return Ok(()) };
        if generation != slot.generation {
            return Ok(()); // from an abandoned thread
        }
        slot.cell = Some(cell);
        self.counts.retries += u64::from(retries);
        match result {
            Ok(step) => {
                self.reached = true;
                slot.starts = false;
                if ask == Request::Step {
                    self.calls.step(env, since.elapsed());
                }
                slot.state = SlotState::Idle;
                slot.since_start = if ask == Request::Step { slot.since_start + 1 } else { 0 };
                slot.n_starts += u64::from(ask == Request::Reset);
                self.breaker.success();
                events.push((env, if ask == Request::Step { EnvEvent::Stepped(step) } else { EnvEvent::Started }));
                Ok(())
            }
            Err(fault) => self.fault(env, ask, &fault, events),
        }
    }

    /// Records a fault and decides between restart, replacement and quarantine.
    fn fault(&mut self, env: usize, ask: Request, fault: &Fault, events: &mut Vec<(usize, EnvEvent)>) -> Result<(), Error> {
        let now = Instant::now();
        self.counts.count(fault);
        // During an outage one environment tries on behalf of all, so its restarts do not count.
        let outage = self.breaker.open_for(now).filter(|_| self.reached);
        self.counts.breaker_opened += u64::from(self.breaker.fault(now));
        let slot = &mut self.slots[env];
        // Restart an environment that answers and has taken a step since its last start; replace any other. One that fails alike
        // after each start would be restarted forever, for nothing.
        let this = (slot.n_starts <= 1).then(|| (slot.since_start, fault.to_string()));
        let is_alike = this.is_some() && this == slot.last;
        let replaced = !matches!(fault, Fault::Failed(_)) || ask == Request::Reset || slot.since_start == 0 || is_alike;
        slot.steps += 1;
        (slot.since_start, slot.n_starts, slot.last) = (0, 0, this);
        // A worker's process has ended, and the next start begins another.
        slot.starts = true;
        events.push((env, EnvEvent::Faulted));
        if !replaced {
            slot.state = SlotState::Down;
            (self.on_fault)(env, fault, "its episode is truncated and it is restarted");
            return Ok(());
        }
        // The old thread may hang with its cell, and may still answer.
        slot.generation += 1;
        let uniform = rng::uniform(rng::block(self.seed, env as u32, slot.steps, Purpose::Retry, 0)[0]);
        let wait = backoff(&self.config, slot.restarts.len(), uniform);
        if outage.map_or_else(|| slot.restarts.allow(now, &self.config), |time| time <= self.config.window) {
            slot.state = SlotState::Gone(if outage.is_some() { now } else { after(now, wait) });
            (self.on_fault)(env, fault, "its episode is truncated and it is replaced");
            return Ok(());
        }
        slot.state = SlotState::Quarantined;
        slot.calls = bounded(0).0; // closes the channel, so the thread ends and drops its environment
        self.counts.quarantined += 1;
        (self.on_fault)(env, fault, "it was replaced too often and is quarantined");
        let n = self.counts.quarantined as usize;
        if outage.is_some() || n > self.config.max_quarantined || n == self.slots.len() {
            return Err(Error::EnvFailed { env_idx: env, cause: fault.to_string(), n_failed: n });
        }
        Ok(())
    }

    /// Abandons hung environments and restarts failed ones; returns the next due time.
    fn supervise(&mut self, now: Instant, events: &mut Vec<(usize, EnvEvent)>) -> Result<Instant, Error> {
        let mut soonest = now + POLL_INTERVAL;
        let n = self.slots.len();
        for env in (self.first..self.first + n).map(|env| env % n) {
            match self.slots[env].state {
                SlotState::Asked(ask, since) => {
                    let FaultConfig { timeout, start_timeout, .. } = self.config;
                    let is_start = self.slots[env].starts && start_timeout > timeout;
                    let (limit, setting) = if is_start { (start_timeout, "start_timeout_s") } else { (timeout, "timeout_s") };
                    let mut due = after(since, limit);
                    if now >= due {
                        due = after(due, paused_since(since));
                    }
                    if now >= due {
                        self.slots[env].cell = None;
                        self.fault(env, ask, &Fault::Timeout(limit, setting), events)?;
                    }
                    soonest = soonest.min(due.max(now));
                }
                SlotState::Gone(at) if now < at => soonest = soonest.min(at),
                state @ (SlotState::Down | SlotState::Gone(_)) if self.breaker.may_start(now) => {
                    if state != SlotState::Down {
                        self.counts.restarts += 1;
                        self.slots[env].calls = self.thread(env, self.slots[env].generation)?;
                    }
                    self.first = env + 1;
                    self.ask(env, Request::Reset);
                }
                SlotState::Idle | SlotState::Down | SlotState::Gone(_) | SlotState::Quarantined => {}
            }
        }
        Ok(soonest)
    }
}
