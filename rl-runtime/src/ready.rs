//! First-come batching of blocking environments, each on its own thread.
//!
//! [`ReadyEnvs`] has `send` and `recv`: a call goes to one environment, and answers arrive in the order in which environments
//! finish. [`ReadyCollector`] builds rollouts from it. Each environment fills a stretch of T steps of its own trajectory. The first
//! N full stretches become the columns of a rollout, while their environments continue with the next stretch. A slow environment
//! therefore delays nothing; it only fills fewer columns. A stretch is dropped and counted if its policy is too old by the time it
//! is full.
//!
//! Faults are handled as described in [`faults`](crate::faults).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ndarray::{ArrayViewMut2, Axis};
use rl_agents::collect::rollout;
use rl_agents::{Choice, Episode, Policy, Scratch};
use rl_buffer::{ActionBuffer, ObsRows, Rollout};
use rl_envs::pool::panic_text;
use rl_envs::{Action, ActionSpace, ActionsMut, BlockingEnv, Element, EnvError, Purpose, Rng, Space, Step, math, rng};

use crate::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crate::faults::{Breaker, Fault, FaultConfig, FaultCounts, Restarts, after, backoff};
use crate::pipeline::{Collect, Filled, spawn};
use crate::profile::{Phase, Track};
use crate::{Error, print};

/// Poll interval for the stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// Minimum wait for a reply.
const SHORT: Duration = Duration::from_micros(50);

/// Creates environment i on its own thread; called again for a replacement.
pub type Make<E> = Arc<dyn Fn(usize) -> Result<E, EnvError> + Send + Sync>;

/// Callback for faults: environment index, fault, and the action taken.
pub type OnFault = Box<dyn FnMut(usize, &Fault, &str) + Send>;

/// Request to an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Reset,
    Step,
}

/// Buffers that travel to an environment and back.
#[derive(Debug)]
struct Cell<O> {
    obs: Vec<O>,      // (D)
    mask: Vec<u8>,    // (A), or empty without masks
    vector: Vec<f32>, // (A), or empty for discrete actions
    discrete: u32,
}

struct Call<O> {
    ask: Ask,
    /// Lifetime step, the counter of the random numbers.
    step: u64,
    cell: Cell<O>,
}

struct Reply<O> {
    env: usize,
    generation: u64,
    retries: u32,
    cell: Cell<O>,
    result: Result<Step, Fault>,
}

/// Event of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// An episode has started; [`ReadyEnvs::obs`] is its first observation.
    Started,
    /// A step is done; [`ReadyEnvs::obs`] is the next or final observation.
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
    Asked(Ask, Instant),
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
    /// Lifetime steps.
    steps: u64,
    /// Successful steps since the last start.
    since_start: u64,
    restarts: Restarts,
    /// `None` while the environment has it.
    cell: Option<Cell<O>>,
}

/// Blocking environments, each on its own thread.
pub struct ReadyEnvs<E: BlockingEnv> {
    make: Make<E>,
    config: FaultConfig,
    seed: u64,
    observation_space: Space,
    action_space: ActionSpace,
    slots: Vec<Slot<E::Obs>>,
    replies: Receiver<Reply<E::Obs>>,
    /// Cloned into every thread; also keeps the channel open.
    answer: Sender<Reply<E::Obs>>,
    breaker: Breaker,
    /// True once any call has succeeded.
    reached: bool,
    /// Start index of the search for environments to restart.
    ///
    /// The index rotates, so that each environment gets a turn while the breaker is open.
    first: usize,
    counts: FaultCounts,
    on_fault: OnFault,
    stop: Arc<AtomicBool>,
}

/// Body of an environment's thread.
fn serve<E: BlockingEnv>(
    env_idx: usize,
    generation: u64,
    seed: u64,
    config: &FaultConfig,
    make: &Make<E>,
    calls: &Receiver<Call<E::Obs>>,
    answer: &Sender<Reply<E::Obs>>,
) {
    let mut env: Option<E> = None;
    while let Ok(Call { ask, step, mut cell }) = calls.recv() {
        let (index, mut retries) = (env_idx as u32, 0);
        let call = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let outcome = attempt(&mut env, env_idx, make, ask, seed, step, &mut cell);
                match outcome {
                    Err(error) if error.may_repeat && retries < config.retries => {
                        let uniform = rng::uniform(rng::block(seed, index, step, Purpose::Retry, retries)[0]);
                        std::thread::sleep(backoff(config, retries, uniform));
                        retries += 1;
                    }
                    outcome => return outcome.map_err(|error| Fault::Failed(error.cause)),
                }
            }
        }));
        let panicked = call.is_err();
        let result = call.unwrap_or_else(|panic| Err(Fault::Panicked(panic_text(&*panic))));
        let told = answer.send(Reply { env: env_idx, generation, retries, cell, result });
        if panicked || told.is_err() {
            break;
        }
    }
    // An environment that has panicked may panic again in its destructor.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(env)));
}

/// Makes one attempt at a call.
fn attempt<E: BlockingEnv>(
    env: &mut Option<E>,
    env_idx: usize,
    make: &Make<E>,
    ask: Ask,
    seed: u64,
    step: u64,
    cell: &mut Cell<E::Obs>,
) -> Result<Step, EnvError> {
    let env = match env {
        Some(env) => env,
        None => env.insert(make(env_idx)?),
    };
    let index = env_idx as u32;
    let outcome = match ask {
        Ask::Reset => {
            env.reset(&mut Rng::new(seed, index, step, Purpose::Reset), &mut cell.obs)?;
            Step::default()
        }
        Ask::Step => {
            let action = if cell.vector.is_empty() { Action::Discrete(cell.discrete) } else { Action::Continuous(&cell.vector) };
            env.step(action, &mut Rng::new(seed, index, step, Purpose::Step), &mut cell.obs)?
        }
    };
    let cause = if !outcome.reward.is_finite() {
        format!("the reward is {}", outcome.reward)
    } else if let Some(dim) = cell.obs.iter().position(|x| !x.is_finite()) {
        format!("element {dim} of the observation is not finite")
    } else {
        if !cell.mask.is_empty() {
            env.mask(&mut cell.mask);
        }
        return Ok(outcome);
    };
    Err(EnvError { cause, may_repeat: false })
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

impl<E: BlockingEnv> ReadyEnvs<E> {
    /// Starts `n_envs` environments, made by `make`, with randomness from `seed`.
    ///
    /// Each gives a `Started` event. Faults are reported on stderr, for each environment the first, second, fourth and so on;
    /// [`ReadyEnvs::on_fault`] replaces that report.
    ///
    /// # Errors
    /// [`Error::Thread`] if a thread cannot be spawned, [`rl_envs::Error::EnvCount`] if `n_envs` is 0.
    pub fn new(
        n_envs: usize,
        spaces: (Space, ActionSpace),
        make: Make<E>,
        config: FaultConfig,
        seed: u64,
    ) -> Result<Self, Error> {
        if n_envs == 0 {
            return Err(rl_envs::Error::EnvCount { n_envs }.into());
        }
        // Twice the size, because abandoned threads may still answer.
        let (answer, replies) = bounded(2 * n_envs);
        let (observation_space, action_space) = spaces;
        let mut envs = Self {
            make,
            breaker: Breaker::new(&config, n_envs),
            reached: false,
            first: 0,
            config,
            seed,
            observation_space,
            action_space,
            slots: Vec::with_capacity(n_envs),
            replies,
            answer,
            counts: FaultCounts::default(),
            on_fault: warn(n_envs),
            stop: Arc::default(),
        };
        for env in 0..n_envs {
            let (cell, calls) = (Some(envs.cell()), envs.thread(env, 0)?);
            let (state, restarts) = (SlotState::Idle, Restarts::default());
            envs.slots.push(Slot { calls, generation: 0, state, steps: 0, since_start: 0, restarts, cell });
            envs.ask(env, Ask::Reset);
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

    /// Returns the fault counts.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Returns the stop flag, which makes a waiting [`ReadyEnvs::recv`] return soon.
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
    fn ask(&mut self, env: usize, ask: Ask) {
        let fresh = self.slots[env].cell.is_none().then(|| self.cell());
        let slot = &mut self.slots[env];
        let Some(cell) = slot.cell.take().or(fresh) else { return };
        slot.steps += u64::from(ask == Ask::Step);
        slot.state = SlotState::Asked(ask, Instant::now());
        // If the thread has ended, the request times out.
        let _ = slot.calls.send(Call { ask, step: slot.steps, cell });
    }

    /// Sends an action, already clipped to the bounds, to an idle environment.
    ///
    /// # Panics
    /// If the environment is not idle.
    pub fn send(&mut self, env: usize, action: Action<'_>) {
        let slot = &mut self.slots[env];
        let Some(cell) = slot.cell.as_mut().filter(|_| slot.state == SlotState::Idle) else {
            panic!("environment {env} is not ready")
        };
        match action {
            Action::Discrete(action) => cell.discrete = action,
            Action::Continuous(action) => cell.vector.copy_from_slice(action),
        }
        self.ask(env, Ask::Step);
    }

    /// Starts a new episode in an environment whose last one has ended.
    ///
    /// # Panics
    /// If the environment is not idle.
    pub fn reset(&mut self, env: usize) {
        assert_eq!(self.slots[env].state, SlotState::Idle, "environment {env} is not ready");
        self.ask(env, Ask::Reset);
    }

    /// Waits for `min_ready` events, or for one once `deadline` has passed.
    ///
    /// Appends the events to `events`, and restarts environments that have failed.
    ///
    /// # Errors
    /// The errors of [`ReadyEnvs::recv_some`].
    pub fn recv(&mut self, min_ready: usize, deadline: Duration, events: &mut Vec<(usize, Event)>) -> Result<(), Error> {
        let (until, wanted) = (after(Instant::now(), deadline), events.len() + min_ready.clamp(1, self.slots.len()));
        let before = events.len();
        while events.len() < wanted && (events.len() == before || Instant::now() < until) {
            let left = if events.len() == before { LOOK } else { until.saturating_duration_since(Instant::now()) };
            self.recv_some(wanted - events.len(), left, events)?;
        }
        Ok(())
    }

    /// Waits for `enough` events, but never longer than `deadline`.
    ///
    /// Appends the events to `events`, and restarts environments that have failed.
    ///
    /// # Errors
    /// [`Error::EnvFailed`] if too many environments are in quarantine, [`Error::Thread`] if [`ReadyEnvs::stopper`] is set or a
    /// thread cannot be spawned.
    pub fn recv_some(&mut self, enough: usize, deadline: Duration, events: &mut Vec<(usize, Event)>) -> Result<(), Error> {
        let (until, before) = (after(Instant::now(), deadline), events.len());
        loop {
            while let Ok(reply) = self.replies.try_recv() {
                self.answered(reply, events)?;
            }
            let now = Instant::now();
            let soonest = self.look_after(now, events)?;
            if events.len() - before >= enough || now >= until {
                return Ok(());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Thread { name: "collect".into(), cause: "was asked to stop".into() });
            }
            let wait = soonest.min(until).saturating_duration_since(now).max(SHORT);
            match self.replies.recv_timeout(wait) {
                Ok(reply) => self.answered(reply, events)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn answered(&mut self, reply: Reply<E::Obs>, events: &mut Vec<(usize, Event)>) -> Result<(), Error> {
        let Reply { env, generation, retries, cell, result } = reply;
        let slot = &mut self.slots[env];
        let SlotState::Asked(ask, _) = slot.state else { return Ok(()) };
        if generation != slot.generation {
            return Ok(()); // from an abandoned thread
        }
        slot.cell = Some(cell);
        self.counts.retries += u64::from(retries);
        match result {
            Ok(step) => {
                self.reached = true;
                slot.state = SlotState::Idle;
                slot.since_start = if ask == Ask::Step { slot.since_start + 1 } else { 0 };
                self.breaker.success();
                events.push((env, if ask == Ask::Step { Event::Stepped(step) } else { Event::Started }));
                Ok(())
            }
            Err(fault) => self.fault(env, ask, &fault, events),
        }
    }

    /// Records a fault and decides between restart, replacement and quarantine.
    fn fault(&mut self, env: usize, ask: Ask, fault: &Fault, events: &mut Vec<(usize, Event)>) -> Result<(), Error> {
        let now = Instant::now();
        self.counts.count(fault);
        // During an outage one environment tries on behalf of all, so its restarts do not count.
        let outage = self.breaker.open_for(now).filter(|_| self.reached);
        self.counts.breaker_opened += u64::from(self.breaker.fault(now));
        let slot = &mut self.slots[env];
        // Restart an environment that answers and has taken a step since its last start; replace any other.
        let replaced = !matches!(fault, Fault::Failed(_)) || ask == Ask::Reset || slot.since_start == 0;
        slot.steps += 1;
        slot.since_start = 0;
        events.push((env, Event::Faulted));
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
    fn look_after(&mut self, now: Instant, events: &mut Vec<(usize, Event)>) -> Result<Instant, Error> {
        let mut soonest = now + LOOK;
        let n = self.slots.len();
        for env in (self.first..self.first + n).map(|env| env % n) {
            match self.slots[env].state {
                SlotState::Asked(ask, since) => {
                    let due = after(since, self.config.timeout);
                    if now >= due {
                        self.slots[env].cell = None;
                        self.fault(env, ask, &Fault::Timeout(self.config.timeout), events)?;
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
                    self.ask(env, Ask::Reset);
                }
                SlotState::Idle | SlotState::Down | SlotState::Gone(_) | SlotState::Quarantined => {}
            }
        }
        Ok(soonest)
    }
}

/// Batching of a [`ReadyCollector`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadyConfig {
    /// Number of environments to wait for before the policy acts.
    ///
    /// With half of the environments, two groups alternate: the policy acts for one while the other steps. That suits environments
    /// that compute instead of blocking.
    pub min_ready: usize,
    /// Maximum wait of the first environment in a batch for the others.
    pub deadline: Duration,
    /// Maximum age of a stretch, in rollouts.
    ///
    /// A stretch is dropped if, between its first action and its completion, the policy has learnt from more rollouts than this.
    pub max_age: u64,
}

impl Default for ReadyConfig {
    fn default() -> Self {
        Self { min_ready: 1, deadline: Duration::from_millis(1), max_age: 4 }
    }
}

/// T steps of one environment, partly filled.
struct Stretch {
    column: Rollout, // (T, 1)
    /// Number of filled steps.
    t: usize,
    /// Rollouts that the policy of the first action had learnt from.
    learnt: u64,
    /// Maximum of `learnt` over the policies of all actions.
    newest: u64,
    /// Current episode, and episodes that ended in this stretch.
    running: Episode,
    ended: Vec<Episode>,
    /// True while the environment waits for an action.
    waits: bool,
    /// True while the action of step `t` is in flight.
    acting: bool,
}

/// Builds rollouts from blocking environments; see the [module](self).
pub struct ReadyCollector<E: BlockingEnv> {
    envs: ReadyEnvs<E>,
    config: ReadyConfig,
    stretches: Vec<Stretch>,
    events: Vec<(usize, Event)>,
    scratch: Option<Scratch>,
    /// Environments of the current batch, with their observations and actions.
    batch: Vec<usize>,
    obs: ObsRows,        // (n, D)
    masks: Vec<u8>,      // (n, A), or empty without masks
    discrete: Vec<u32>,  // (N)
    vectors: Vec<f32>,   // (N, A)
    log_probs: Vec<f32>, // (N)
    values: Vec<f32>,    // (N)
    batches: u64,
    dropped: u64,
}

impl Stretch {
    /// Writes an observation as row `t`.
    fn observe<O: rl_envs::Element>(&mut self, t: usize, obs: &[O], mask: &[u8]) {
        let mut columns = self.column.columns();
        if let Some(mut rows) = O::rows(columns.obs.index_axis_mut(Axis(0), t)) {
            rows.iter_mut().zip(obs).for_each(|(to, &from)| *to = from);
        }
        if let Some(masks) = &mut columns.masks {
            masks.index_axis_mut(Axis(0), t).iter_mut().zip(mask).for_each(|(to, &from)| *to = from);
        }
    }

    /// Records that step `t` ended an episode whose final observation is row `row`.
    fn end(&mut self, t: usize, row: usize) {
        let mut obs = ObsRows::zeros(self.column.obs.dtype(), 0);
        obs.extend(self.column.obs_rows(row..row + 1));
        let masks = self.column.masks.as_ref();
        let mask: Vec<u8> = masks.map_or_else(Vec::new, |masks| masks.index_axis(Axis(0), row).iter().copied().collect());
        self.column.push_final(t, 0, obs.as_slice(), &mask);
    }

    fn is_full(&self) -> bool {
        self.t == self.column.shape().n_steps
    }

    /// Clears the stretch, continuing the environment's current episode.
    fn begin(&mut self) {
        self.column.clear();
        self.ended.clear();
        self.t = 0;
    }

    /// Records a step and the observation after it.
    fn step<O: rl_envs::Element>(&mut self, step: Step, obs: &[O], mask: &[u8]) {
        let t = self.t;
        self.column.rewards[[t, 0]] = step.reward;
        self.column.terminated[[t, 0]] = step.terminated.into();
        self.column.truncated[[t, 0]] = step.truncated.into();
        self.observe(t + 1, obs, mask);
        self.running.episode_return += f64::from(step.reward);
        self.running.length += 1;
        self.acting = false;
        self.t += 1;
        if step.done() {
            self.end(t, t + 1);
            self.ended.push(std::mem::take(&mut self.running));
        }
        self.waits = !step.done();
    }

    /// Records a fault: the failed call gives no transition, the one before is cut.
    fn fault(&mut self) {
        let t = self.t;
        if self.acting && t > 0 && self.column.terminated[[t - 1, 0]] | self.column.truncated[[t - 1, 0]] == 0 {
            self.column.truncated[[t - 1, 0]] = 1;
            self.end(t - 1, t);
        }
        // The return of a broken episode is left out of the statistics.
        self.running = Episode::default();
        (self.acting, self.waits) = (false, false);
    }
}

impl<E: BlockingEnv> ReadyCollector<E> {
    /// Creates a collector of stretches of `n_steps` steps.
    ///
    /// # Errors
    /// The errors of [`Rollout::new`].
    pub fn new(envs: ReadyEnvs<E>, n_steps: usize, config: ReadyConfig) -> Result<Self, Error> {
        let (n, a) = (envs.n_envs(), envs.action_space.len());
        let stretch = |env| -> Result<Stretch, Error> {
            let mut column = rollout(n_steps, 1, &envs.observation_space, &envs.action_space)?;
            column.env_idx[0] = env as u32;
            let (running, ended) = (Episode::default(), Vec::new());
            Ok(Stretch { column, t: 0, learnt: 0, newest: 0, running, ended, waits: false, acting: false })
        };
        let stretches = (0..n).map(stretch).collect::<Result<_, _>>()?;
        let d = envs.observation_space.len();
        let obs = ObsRows::new(envs.observation_space.dtype(), || Vec::with_capacity(n * d), || Vec::with_capacity(n * d));
        Ok(Self {
            stretches,
            config,
            events: Vec::with_capacity(2 * n),
            scratch: None,
            batch: Vec::with_capacity(n),
            obs,
            masks: Vec::with_capacity(n * a),
            discrete: vec![0; n],
            vectors: vec![0.0; n * a],
            log_probs: vec![0.0; n],
            values: vec![0.0; n],
            batches: 0,
            dropped: 0,
            envs,
        })
    }

    /// Returns the fault counts.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.envs.counts()
    }

    /// Returns the number of stretches dropped for their age.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Moves full stretches into the columns from `n`; returns the next free column.
    ///
    /// The order is that of the environments.
    fn place(&mut self, mut n: usize, policy: &dyn Policy, learnt: u64, filled: &mut Filled) -> Result<usize, Error> {
        let scratch = self.scratch.get_or_insert_with(|| policy.scratch());
        for (env, stretch) in self.stretches.iter_mut().enumerate().filter(|(_, s)| s.waits && s.is_full()) {
            if n == filled.rollout.shape().n_envs {
                break;
            }
            filled.episodes.append(&mut stretch.ended);
            // If a newer policy has acted in it, the learner was rolled back in the meantime.
            if stretch.newest > learnt || learnt - stretch.learnt > self.config.max_age {
                self.dropped += 1;
            } else {
                let last = stretch.t;
                let mut value = [0.0];
                policy.values(stretch.column.obs_rows(last..last + 1), scratch, &mut value)?;
                stretch.column.last_values[0] = value[0];
                filled.rollout.copy_column(n, &stretch.column, 0);
                filled.learnt[n] = stretch.learnt;
                n += 1;
            }
            stretch.begin();
            stretch.observe(0, self.envs.obs(env), self.envs.mask(env));
        }
        Ok(n)
    }

    /// Runs the policy for all waiting environments as one batch.
    fn act(&mut self, policy: &dyn Policy, learnt: u64) -> Result<(), Error> {
        let Self { envs, stretches, batch, obs, masks, discrete, vectors, log_probs, values, .. } = self;
        batch.clear();
        masks.clear();
        obs.clear();
        for (env, stretch) in stretches.iter().enumerate().filter(|(_, stretch)| stretch.waits && !stretch.is_full()) {
            batch.push(env);
            obs.extend(stretch.column.obs_rows(stretch.t..stretch.t + 1));
            masks.extend_from_slice(envs.mask(env));
        }
        let n = batch.len();
        if n == 0 {
            return Ok(());
        }
        let a = envs.action_space.len();
        self.batches += 1;
        let choice = Choice::Sample { seed: envs.seed, step: self.batches, first_env: 0 };
        let actions = match envs.action_space {
            ActionSpace::Discrete { .. } => ActionsMut::Discrete((&mut discrete[..n]).into()),
            ActionSpace::Continuous { .. } => {
                let rows = ArrayViewMut2::from_shape((n, a), &mut vectors[..n * a]);
                ActionsMut::Continuous(rows.map_err(|error| Error::Thread { name: "collect".into(), cause: error.to_string() })?)
            }
        };
        let scratch = self.scratch.get_or_insert_with(|| policy.scratch());
        policy.act(obs.as_slice(), masks, choice, scratch, (actions, &mut log_probs[..n], &mut values[..n]))?;
        for (i, &env) in batch.iter().enumerate() {
            let stretch = &mut stretches[env];
            let t = stretch.t;
            if t == 0 {
                (stretch.learnt, stretch.newest) = (learnt, learnt);
                stretch.column.policy_version[0] = policy.version();
            }
            stretch.newest = stretch.newest.max(learnt);
            stretch.column.log_probs[[t, 0]] = log_probs[i];
            stretch.column.values[[t, 0]] = values[i];
            (stretch.waits, stretch.acting) = (false, true);
            match (&mut stretch.column.actions, &envs.action_space) {
                (ActionBuffer::Continuous(actions), ActionSpace::Continuous { low, high }) => {
                    let vector = &mut vectors[i * a..(i + 1) * a];
                    for (j, x) in vector.iter_mut().enumerate() {
                        actions[[t, 0, j]] = *x;
                        *x = math::clamp(*x, low[j], high[j]);
                    }
                    envs.send(env, Action::Continuous(vector));
                }
                (ActionBuffer::Discrete(actions), _) => {
                    actions[[t, 0]] = discrete[i];
                    envs.send(env, Action::Discrete(discrete[i]));
                }
                (ActionBuffer::Continuous(_), ActionSpace::Discrete { .. }) => return Err(rl_agents::Error::ActionKind.into()),
            }
        }
        Ok(())
    }

    /// Waits for enough environments that wait for an action.
    ///
    /// That is `min_ready` environments, or one once the deadline has passed.
    fn wait(&mut self) -> Result<(), Error> {
        let ReadyConfig { min_ready, deadline, .. } = self.config;
        let alive = self.stretches.len() - self.envs.counts.quarantined as usize;
        let min_ready = min_ready.clamp(1, alive.max(1));
        let mut first = None;
        loop {
            let ready = self.stretches.iter().filter(|stretch| stretch.waits).count();
            if ready > 0 {
                let waited = first.get_or_insert_with(Instant::now).elapsed();
                if ready >= min_ready || waited >= deadline {
                    return Ok(());
                }
                self.envs.recv_some(min_ready - ready, deadline - waited, &mut self.events)?;
            } else {
                self.envs.recv(1, Duration::ZERO, &mut self.events)?;
            }
            self.take_events();
        }
    }

    /// Applies the environments' events to their stretches.
    fn take_events(&mut self) {
        let Self { envs, stretches, events, .. } = self;
        for &(env, event) in &*events {
            let stretch = &mut stretches[env];
            match event {
                Event::Started => {
                    stretch.waits = true;
                    stretch.observe(stretch.t, envs.obs(env), envs.mask(env));
                }
                Event::Stepped(step) => {
                    stretch.step(step, envs.obs(env), envs.mask(env));
                    if step.done() {
                        envs.reset(env);
                    }
                }
                Event::Faulted => stretch.fault(),
            }
        }
        events.clear();
    }
}

impl<E: BlockingEnv> Collect for ReadyCollector<E> {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let n_columns = filled.rollout.shape().n_envs;
        filled.rollout.clear();
        filled.rollout.contiguous = false;
        filled.episodes.clear();
        let mut n = 0;
        loop {
            track.time(Phase::Policy, || {
                n = self.place(n, policy, learnt, filled)?;
                // Act before passing on a full rollout, so that the environments keep running.
                self.act(policy, learnt)
            })?;
            if n == n_columns {
                (filled.faults, filled.dropped) = (self.envs.counts, self.dropped);
                return Ok(());
            }
            track.time(Phase::Envs, || self.wait())?;
        }
    }

    fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        Ok(rollout(n_steps, self.envs.n_envs(), &self.envs.observation_space, &self.envs.action_space)?)
    }

    fn stopper(&self) -> Arc<AtomicBool> {
        self.envs.stopper()
    }
}
