//! First-come batching of blocking environments.
//!
//! [`FirstComeCollector`] builds rollouts from [`BlockingEnvs`]. Each environment fills a stretch of T steps of its own
//! trajectory. The first N full stretches become the columns of a rollout, while their environments continue with the next
//! stretch. A slow environment therefore delays nothing; it only fills fewer columns. A stretch is dropped and counted if its
//! policy is too old by the time it is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rl_agents::counts::ENV_STEPS;
use rl_agents::{Acted, Acting, Choice, CollectorState, Episode, Policy, Scratch};
use rl_buffer::{ActionRows, ObsRows, Rollout, RolloutShape};
use rl_envs::{Action, ActionSpace, Actions, BlockingEnv, Element, Step, math};

use crate::Error;
use crate::pipeline::blocking::{BlockingEnvs, EnvEvent};
use crate::pipeline::faults::FaultCounts;
use crate::pipeline::{Collect, Filled};
use crate::report::profile::{Phase, Track};

/// Batching of a [`FirstComeCollector`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstComeConfig {
    /// Number of environments to wait for before the policy acts.
    ///
    /// With half of the environments, two groups alternate: the policy acts for one while the other steps. That suits
    /// environments that compute instead of blocking.
    pub min_ready: usize,
    /// Maximum wait of the first environment in a batch for the others.
    pub deadline: Duration,
    /// Maximum age of a stretch, in rollouts.
    ///
    /// A stretch is dropped if, between its first action and its completion, the policy has learnt from more rollouts than this.
    pub max_age: u64,
}

impl Default for FirstComeConfig {
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
    /// True if the stretch continues the last one that was passed on.
    continues: bool,
    /// True while the environment waits for an action.
    waits: bool,
    /// True while the action of step `t` is in flight.
    acting: bool,
    /// State of the policy to act with next, (S).
    state: Vec<f32>,
    /// State that the latest action was chosen with, (S).
    before: Vec<f32>,
}

/// Builds rollouts from blocking environments; see the [module](self).
pub struct FirstComeCollector<E: BlockingEnv> {
    envs: BlockingEnvs<E>,
    config: FirstComeConfig,
    stretches: Vec<Stretch>,
    events: Vec<(usize, EnvEvent)>,
    scratch: Scratch,
    /// Environments of the current batch, with their observations and actions.
    batch: Vec<u32>,
    obs: ObsRows,        // (n, D)
    masks: Vec<u8>,      // (n, A), or empty without masks
    actions: ActionRows, // (N) or (N, A)
    log_probs: Vec<f32>, // (N)
    values: Vec<f32>,    // (N)
    states: Vec<f32>,    // (n, S)
    /// Actions chosen.
    acted: u64,
    /// Counter that no random number of the environments and of actions has reached.
    counter: Arc<AtomicU64>,
    dropped: u64,
}

impl Stretch {
    /// Writes an observation as row `t`.
    fn observe<O: Element>(&mut self, t: usize, obs: &[O], mask: &[u8]) {
        let mut columns = self.column.columns();
        let (to, masks) = columns.start(t);
        O::elements(to).expect("the environment's element type").copy_from_slice(obs);
        if let Some(masks) = masks {
            masks.copy_from_slice(mask);
        }
    }

    fn is_full(&self) -> bool {
        self.t == self.column.shape().n_steps
    }

    /// Clears the stretch, continuing the environment's current episode.
    fn begin(&mut self) {
        self.column.clear();
        self.ended.clear();
        self.t = 0;
        self.keep_state();
    }

    /// Writes the state of the policy before step 0.
    fn keep_state(&mut self) {
        self.column.columns().first_states.as_slice_mut().expect("one row of states").copy_from_slice(&self.state);
    }

    /// Records a step and the observation after it.
    fn step<O: Element>(&mut self, step: Step, obs: &[O], mask: &[u8]) {
        let t = self.t;
        let mut columns = self.column.columns();
        let row = columns.step(t);
        (row.rewards[0], row.terminated[0], row.truncated[0]) = (step.reward, step.terminated.into(), step.truncated.into());
        self.observe(t + 1, obs, mask);
        self.running.episode_return += f64::from(step.reward);
        self.running.length += 1;
        self.acting = false;
        self.t += 1;
        if step.done() {
            self.column.end(t, 0, &self.state);
            self.state.fill(0.0);
            self.ended.push(std::mem::take(&mut self.running));
        }
        self.waits = !step.done();
    }

    /// Records a fault: the failed call gives no transition, the one before is cut.
    fn fault(&mut self) {
        let t = self.t;
        // At t = 0 the step before is already in a rollout, without an end, so that this stretch cannot continue it.
        self.continues &= t > 0;
        if self.acting && t > 0 {
            let mut columns = self.column.columns();
            let row = columns.step(t - 1);
            if row.terminated[0] | row.truncated[0] == 0 {
                row.truncated[0] = 1;
                self.column.end(t - 1, 0, &self.before);
            }
        }
        self.state.fill(0.0);
        if t == 0 {
            self.keep_state();
        }
        // The return of a broken episode is left out of the statistics.
        self.running = Episode::default();
        (self.acting, self.waits) = (false, false);
    }
}

impl<E: BlockingEnv> FirstComeCollector<E> {
    /// Creates a collector of stretches of `n_steps` steps.
    ///
    /// # Errors
    /// The errors of [`Rollout::new`].
    pub fn new(envs: BlockingEnvs<E>, n_steps: usize, config: FirstComeConfig) -> Result<Self, Error> {
        let (n, a) = (envs.n_envs(), envs.action_space.len());
        let stretch = |env| -> Result<Stretch, Error> {
            let shape = RolloutShape::new(n_steps, 1, &envs.observation_space, &envs.action_space);
            let mut column = Rollout::new(shape).map_err(rl_agents::Error::from)?;
            column.env_idx_mut()[0] = env as u32;
            Ok(Stretch {
                column,
                t: 0,
                learnt: 0,
                newest: 0,
                running: Episode::default(),
                ended: Vec::new(),
                continues: false,
                waits: false,
                acting: false,
                state: Vec::new(),
                before: Vec::new(),
            })
        };
        let stretches = (0..n).map(stretch).collect::<Result<_, _>>()?;
        let d = envs.observation_space.len();
        let obs = ObsRows::new(envs.observation_space.dtype(), || Vec::with_capacity(n * d), || Vec::with_capacity(n * d));
        Ok(Self {
            stretches,
            config,
            events: Vec::with_capacity(2 * n),
            scratch: Scratch::default(),
            batch: Vec::with_capacity(n),
            obs,
            masks: Vec::with_capacity(n * a),
            actions: ActionRows::zeros(&envs.action_space, n),
            log_probs: vec![0.0; n],
            values: vec![0.0; n],
            states: Vec::new(),
            acted: 0,
            counter: Arc::default(),
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
        for (env, stretch) in self.stretches.iter_mut().enumerate().filter(|(_, s)| s.waits && s.is_full()) {
            if n == filled.rollout.shape().n_envs {
                break;
            }
            filled.episodes.append(&mut stretch.ended);
            // If a newer policy has acted in it, the learner was rolled back in the meantime.
            if stretch.newest > learnt || learnt - stretch.learnt > self.config.max_age {
                self.dropped += 1;
                stretch.continues = false;
            } else {
                let last = stretch.t;
                let mut value = [0.0];
                let (obs, mask) = (stretch.column.obs_rows(last..last + 1), self.envs.mask(env));
                policy.values(obs, mask, &stretch.state, &mut value, &mut self.scratch)?;
                stretch.column.columns().last_values[[0, 0]] = value[0];
                filled.rollout.copy_column(n, &stretch.column, 0);
                filled.rollout.continues.push(std::mem::replace(&mut stretch.continues, true));
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
        let Self { envs, stretches, batch, obs, masks, actions, log_probs, values, states, scratch, .. } = self;
        batch.clear();
        masks.clear();
        obs.clear();
        states.clear();
        for (env, stretch) in stretches.iter().enumerate().filter(|(_, stretch)| stretch.waits && !stretch.is_full()) {
            batch.push(env as u32);
            obs.extend(stretch.column.obs_rows(stretch.t..stretch.t + 1));
            masks.extend_from_slice(envs.mask(env));
            states.extend_from_slice(&stretch.state);
        }
        let n = batch.len();
        if n == 0 {
            return Ok(());
        }
        let a = envs.action_space.len();
        // As if environments acted in turn: a policy that depends on the step counts actions, however small the batches are.
        let n_envs = stretches.len() as u64;
        let (step, first_env) = (1 + self.acted / n_envs, (self.acted % n_envs) as u32);
        self.acted += n as u64;
        self.counter.store(self.acted.div_ceil(n_envs).max(envs.most_steps()), Ordering::Relaxed);
        envs.calls.batch(n);
        let choice = Choice::Sample { seed: envs.seed, step, first_env };
        let out = actions.as_mut_slice().map(|actions| &mut actions[..n], |actions| &mut actions[..n * a]);
        let acted = Acted { actions: out, log_probs: &mut log_probs[..n], values: &mut values[..n], states };
        policy.act(Acting { obs: obs.as_slice(), masks, choice, envs: batch }, acted, scratch)?;
        for (i, &env) in batch.iter().enumerate() {
            let env = env as usize;
            let stretch = &mut stretches[env];
            let t = stretch.t;
            if t == 0 {
                (stretch.learnt, stretch.newest) = (learnt, learnt);
                stretch.column.policy_version_mut()[0] = policy.weights().version;
            }
            stretch.newest = stretch.newest.max(learnt);
            let s = stretch.state.len();
            std::mem::swap(&mut stretch.state, &mut stretch.before);
            stretch.state.copy_from_slice(&states[i * s..(i + 1) * s]);
            (stretch.waits, stretch.acting) = (false, true);
            let mut columns = stretch.column.columns();
            let (.., (to, to_log_probs, to_values)) = columns.act(t);
            (to_log_probs[0], to_values[0]) = (log_probs[i], values[i]);
            match (to, &mut *actions, &envs.action_space) {
                (Actions::Continuous(to), Actions::Continuous(actions), ActionSpace::Continuous { low, high }) => {
                    let action = &mut actions[i * a..(i + 1) * a];
                    to.copy_from_slice(action);
                    action.iter_mut().zip(low).zip(high).for_each(|((x, &low), &high)| *x = math::clamp(*x, low, high));
                    envs.send(env, Action::Continuous(action))?;
                }
                (Actions::Discrete(to), Actions::Discrete(actions), _) => {
                    to[0] = actions[i];
                    envs.send(env, Action::Discrete(actions[i]))?;
                }
                _ => return Err(rl_agents::Error::ActionKind.into()),
            }
        }
        Ok(())
    }

    /// Waits for enough environments that wait for an action.
    ///
    /// That is `min_ready` environments, or one once the deadline has passed.
    fn wait(&mut self) -> Result<(), Error> {
        let FirstComeConfig { min_ready, deadline, .. } = self.config;
        let alive = self.stretches.len() - self.envs.counts().quarantined as usize;
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
                EnvEvent::Started => {
                    stretch.waits = true;
                    stretch.observe(stretch.t, envs.obs(env), envs.mask(env));
                }
                EnvEvent::Stepped(step) => {
                    stretch.step(step, envs.obs(env), envs.mask(env));
                    ENV_STEPS.fetch_add(1, Ordering::Relaxed);
                    if step.done() {
                        envs.reset(env);
                    }
                }
                EnvEvent::Faulted => stretch.fault(),
            }
        }
        events.clear();
    }
}

impl<E: BlockingEnv> Collect for FirstComeCollector<E> {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let RolloutShape { n_envs: n_columns, state_len: rollout, .. } = filled.rollout.shape();
        let (collector, of_policy) = (self.stretches[0].state.len(), policy.state_len());
        if [of_policy, rollout] != [collector; 2] {
            return Err(rl_agents::Error::StateLen { policy: of_policy, rollout, collector }.into());
        }
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
                (filled.faults, filled.dropped) = (self.envs.counts(), self.dropped);
                std::mem::swap(&mut filled.calls, &mut self.envs.calls);
                self.envs.calls.clear();
                return Ok(());
            }
            track.time(Phase::Envs, || self.wait())?;
        }
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        let shape = RolloutShape::new(n_steps, self.envs.n_envs(), &self.envs.observation_space, &self.envs.action_space);
        shape.with_state_len(self.stretches[0].state.len())
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        for stretch in &mut self.stretches {
            let shape = stretch.column.shape().with_state_len(len);
            let env_idx = stretch.column.env_idx()[0];
            stretch.column = Rollout::new(shape).map_err(rl_agents::Error::from)?;
            stretch.column.env_idx_mut()[0] = env_idx;
            (stretch.state, stretch.before) = (vec![0.0; len], vec![0.0; len]);
        }
        Ok(())
    }

    fn save(&self) -> Result<CollectorState, Error> {
        // No counter of the policy's or the environments' randomness is used twice.
        Ok(CollectorState::without_envs(self.counter.load(Ordering::Relaxed).max(self.envs.most_steps())))
    }

    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        self.acted = state.steps() * self.stretches.len() as u64;
        self.counter.store(state.steps(), Ordering::Relaxed);
        self.envs.skip(state.steps());
        Ok(())
    }

    fn stopper(&self) -> Arc<AtomicBool> {
        self.envs.stopper()
    }

    fn counter(&self) -> Option<Arc<AtomicU64>> {
        Some(self.counter.clone())
    }
}
