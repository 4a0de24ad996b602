//! A batch of environments in one worker process.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rl_envs::{
    ActionSlice, ActionSpace, Canvas, Error, ObsSliceMut, Purpose, Space, Spaces, StepLens, StepSlicesMut, VecEnv, rng, visit,
};
use serde_json::json;

use super::messages::{Answer, BEGIN, LIFE_LOST, RENDER, RESTART, STEP, STEP_ONE, Shape};
use super::process::{Failure, Limit, Process};
use super::workers::Workers;
use crate::interrupt;
use crate::pipeline::faults::{FaultConfig, Restarts, backoff};

/// Interval at which a wait looks for an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// Seed of an environment in a batch with `seed`, after `step` lifetime steps.
///
/// ```
/// use rl_runtime::worker::env_seed;
/// assert_ne!(env_seed(0, 0, 0), env_seed(0, 1, 0));
/// ```
///
/// Below 2^31, which every generator of random numbers accepts. It depends on the index in the whole batch, so that results do
/// not depend on the number of workers.
#[must_use]
pub fn env_seed(seed: u64, env_idx: u32, step: u64) -> u32 {
    rng::block(seed, env_idx, step, Purpose::Reset, 0)[0] >> 1
}

/// Environments in one worker process, which is replaced if it fails.
pub(super) struct WorkerVecEnv {
    workers: &'static Workers,
    /// `None` from a failure to the next restart.
    process: Option<Process>,
    shape: Shape,
    first_env: u32,
    seed: u64,
    /// Lifetime steps of every environment.
    steps: u64,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// True for episodes that have begun in a new process and not in the batch.
    ///
    /// Every reply of that process has its first observation.
    waiting: Vec<bool>,
    /// True for games that went on after the loss of a life in their last step, (k).
    lost_lives: Vec<bool>,
    faults: Vec<(usize, String)>,
    restarts: Restarts,
    /// Last exception or violation, until a step succeeds.
    last: Option<String>,
    /// Handling of faults, as of the last reset.
    config: FaultConfig,
}

impl WorkerVecEnv {
    /// Takes a process for the environments `range` of a larger batch.
    pub(super) fn new(workers: &'static Workers, range: Range<usize>) -> Result<Self, Error> {
        let shape = Shape::new(range.len(), &workers.spaces, workers.lives, workers.has_memory);
        let process = workers.process().map_err(|failure| Error::Outside(failure.to_string()))?;
        workers.batches.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            process: Some(process),
            workers,
            first_env: range.start as u32,
            seed: 0,
            steps: 0,
            request: vec![0; shape.request],
            reply: vec![0; shape.longest_reply()],
            waiting: vec![false; shape.k],
            lost_lives: vec![false; shape.k],
            faults: Vec::with_capacity(shape.k),
            restarts: Restarts::default(),
            last: None,
            config: workers.faults(),
            shape,
        })
    }

    /// Starts an episode in every environment; the first observations are in `reply`.
    fn begin(&mut self) -> Result<(), Error> {
        let seed = |i| env_seed(self.seed, self.first_env + i, self.steps);
        let seeds: Vec<u32> = (0..self.shape.k as u32).map(seed).collect();
        while let Err(failure) = self.try_begin(&seeds) {
            self.lose(&failure)?;
        }
        Ok(())
    }

    /// Starts an episode with its seed in every environment.
    pub(super) fn try_begin(&mut self, seeds: &[u32]) -> Result<(), Failure> {
        let process = match &mut self.process {
            Some(process) => process,
            None => self.process.insert(self.workers.process()?),
        };
        let limit = Limit::of_start(&self.config);
        self.workers.greet(process, limit)?;
        process.spin = self.workers.spin();
        process.reserve(self.shape.memory()).map_err(|error| {
            Failure::Gone(format!(
                "gets no memory for observations, which this program cannot allocate: {error}; use fewer workers, or raise `ulimit -n`"
            ))
        })?;
        let text = json!({"seeds": seeds, "spin_us": process.spin.worker_us, "memory": self.shape.memory()}).to_string();
        let mut request = BEGIN.to_le_bytes().to_vec();
        request.resize(process.request_len, 0);
        request.extend_from_slice(&(text.len() as u32).to_le_bytes());
        request.extend_from_slice(text.as_bytes());
        let Shape { request: request_len, .. } = self.shape;
        let (shape, memory) = (&self.shape, process.memory.as_ref());
        process.call(&request, memory, &mut self.reply, shape.reply(), limit, |reply| shape.whole_reply(reply, 0..0))?;
        process.request_len = request_len;
        self.shape.check_masks(&self.reply).map_err(Failure::Garbage)
    }

    /// Sends a request with actions from environment `first` on, and reads the reply.
    pub(super) fn call(&mut self, what: u32, first: usize, actions: ActionSlice<'_>) -> Result<(), Failure> {
        let Self { process, shape, request, reply, .. } = self;
        let process = process.as_mut().expect("a process until it fails, and after a restart");
        let stepped = match what & 0xFF {
            STEP => 0..shape.k,
            STEP_ONE => first..first + 1,
            _ => 0..0,
        };
        shape.request(request, what, first, actions);
        let limit = Limit::of_call(&self.config);
        process.call(request, None, reply, shape.reply(), limit, |reply| shape.whole_reply(reply, stepped))?;
        shape.check_masks(reply).map_err(Failure::Garbage)
    }

    /// Reads the last reply.
    pub(super) fn answer(&self) -> Answer<'_> {
        self.shape.read(&self.reply, self.process.as_ref().and_then(|process| process.memory.as_ref()))
    }

    /// Time that the process has run, and has waited for a processor.
    pub(super) fn cpu_times(&self) -> Option<[Duration; 2]> {
        self.process.as_ref().and_then(Process::cpu_times)
    }

    /// Kills the process; returns its last lines.
    pub(super) fn kill(&mut self) -> Option<String> {
        self.process.take().map(|process| {
            let log = process.log();
            process.kill();
            log
        })
    }

    /// Kills the process; all of its environments have a fault.
    ///
    /// # Errors
    /// [`Error::Outside`] if it was replaced too often, [`Error::Stopped`] if the program is interrupted.
    fn lose(&mut self, failure: &Failure) -> Result<(), Error> {
        let log = self.kill();
        let (k, now, config) = (self.shape.k, Instant::now(), &self.config);
        let last = self.first_env as usize + k - 1;
        let which = match failure {
            Failure::Raised(raised) if let Some(env) = raised.env.filter(|env| (*env as usize) < k) => {
                format!("environment {}", self.first_env + env)
            }
            _ if k == 1 => format!("environment {last}"),
            _ => format!("environments {} to {last}", self.first_env),
        };
        if interrupt::drops_rollouts() {
            return Err(Error::Stopped);
        }
        let repeats = matches!(failure, Failure::Raised(_) | Failure::Garbage(_)).then(|| failure.to_string());
        if repeats.is_some() && self.last == repeats {
            self.workers.report(&which, failure, log, "it came again right after a restart, so its worker is given up");
            return Err(Error::Outside(format!("the worker of {which} fails in the same way after a restart: {failure}")));
        }
        self.last = repeats;
        if !self.restarts.allow(now, config) {
            self.workers.report(&which, failure, log, "its worker was restarted too often");
            return Err(Error::Outside(format!("the worker of {which} was restarted too often, last because: {failure}")));
        }
        self.workers.report(&which, failure, log, "the episodes of its worker are truncated, and it is restarted");
        self.waiting.fill(false);
        self.faults.clear();
        self.faults.extend((0..k).map(|i| (i, failure.to_string())));
        // Those of the last ten minutes, with this one.
        let attempt = self.restarts.len() - 1;
        if attempt > 0 {
            let uniform = rng::uniform(rng::block(self.seed, self.first_env, self.steps, Purpose::Retry, attempt)[0]);
            let until = now + backoff(config, attempt - 1, uniform);
            while Instant::now() < until && !interrupt::drops_rollouts() {
                std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK));
            }
        }
        Ok(())
    }

    /// Copies the environments `range` of the reply into their rows.
    fn outcome(&mut self, range: Range<usize>, steps: StepSlicesMut<'_>) {
        let reply = self.shape.read(&self.reply, self.process.as_ref().and_then(|process| process.memory.as_ref()));
        let (i, n) = (range.start, range.len());
        let d = self.workers.spaces.obs.len();
        let StepSlicesMut { obs, rewards, terminated, truncated, mut final_obs, masks, .. } = steps;
        rewards.iter_mut().zip(reply.rewards().skip(i)).for_each(|(to, from)| *to = from);
        let [over, cut] = reply.flags();
        for ((to, lost), &flag) in terminated.iter_mut().zip(&mut self.lost_lives[range.clone()]).zip(&over[range.clone()]) {
            (*to, *lost) = (flag.min(1), flag == LIFE_LOST);
        }
        truncated.copy_from_slice(&cut[range.clone()]);
        reply.obs(i, n, obs);
        let mut final_masks = masks.map(|[masks, final_masks]| {
            masks.copy_from_slice(reply.masks(i, n));
            final_masks
        });
        let is_over = |j: usize| over[j] | cut[j] != 0;
        let n_ended = (0..self.shape.k).filter(|&j| is_over(j)).count();
        for (ended, j) in (0..self.shape.k).filter(|&j| is_over(j)).enumerate().filter(|(_, j)| range.contains(j)) {
            let row = (j - i) * d..(j - i + 1) * d;
            let to = visit!(Obs, final_obs.as_mut(), |obs| &mut obs[row.clone()]);
            let mask = reply.last(ended, n_ended, j, to);
            if let Some(masks) = &mut final_masks {
                masks[(j - i) * mask.len()..][..mask.len()].copy_from_slice(mask);
            }
        }
    }

    /// Writes rows of environments whose process has failed: nothing happened.
    fn nothing(&mut self, steps: StepSlicesMut<'_>) {
        self.lost_lives.fill(false);
        steps.rewards.fill(0.0);
        steps.terminated.fill(0);
        steps.truncated.fill(0);
    }
}

impl VecEnv for WorkerVecEnv {
    fn n_envs(&self) -> usize {
        self.shape.k
    }

    fn first_env(&self) -> u32 {
        self.first_env
    }

    fn observation_space(&self) -> &Space {
        &self.workers.spaces.obs
    }

    fn action_space(&self) -> &ActionSpace {
        &self.workers.spaces.actions
    }

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        let Spaces { obs: space, actions } = &self.workers.spaces;
        StepLens::check_reset(self.shape.k, space, actions, &obs, masks.as_deref())?;
        (self.seed, self.steps, self.config) = (seed, 0, self.workers.faults());
        self.begin()?;
        self.faults.clear();
        self.waiting.fill(false);
        let reply = self.answer();
        reply.obs(0, self.shape.k, obs);
        if let Some(masks) = masks {
            masks.copy_from_slice(reply.masks(0, self.shape.k));
        }
        Ok(())
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        let (k, Spaces { obs: space, actions }) = (self.shape.k, &self.workers.spaces);
        steps.check(k, space, actions)?;
        if interrupt::drops_rollouts() {
            return Err(Error::Stopped);
        }
        self.steps += 1;
        self.faults.clear();
        match self.call(STEP, 0, steps.actions.as_slice()) {
            Ok(()) => {
                self.last = None;
                self.outcome(0..k, steps);
            }
            Err(failure) => {
                self.lose(&failure)?;
                self.nothing(steps);
            }
        }
        Ok(())
    }

    fn faults(&self) -> &[(usize, String)] {
        &self.faults
    }

    fn goes_on(&self, env_idx: usize) -> bool {
        self.lost_lives[env_idx]
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        let Spaces { obs: space, actions } = &self.workers.spaces;
        StepLens::check_reset(1, space, actions, &obs, masks.as_deref())?;
        assert!(env_idx < self.shape.k, "environment {env_idx} of {}", self.shape.k);
        if self.process.is_some() && !self.waiting[env_idx] {
            let none = ActionSlice::Discrete(&[]);
            if let Err(failure) = self.call(RESTART | (env_idx as u32) << 8, 0, none) {
                self.lose(&failure)?;
            }
        }
        if self.process.is_none() {
            self.begin()?;
            self.waiting.fill(true);
        }
        (self.waiting[env_idx], self.lost_lives[env_idx]) = (false, false);
        self.faults.retain(|(i, _)| *i != env_idx);
        let reply = self.answer();
        reply.obs(env_idx, 1, obs);
        if let Some(masks) = masks {
            masks.copy_from_slice(reply.masks(env_idx, 1));
        }
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        let Spaces { obs: space, actions } = &self.workers.spaces;
        steps.check(1, space, actions)?;
        assert!(env_idx < self.shape.k, "environment {env_idx} of {}", self.shape.k);
        match self.call(STEP_ONE | (env_idx as u32) << 8, env_idx, steps.actions.as_slice()) {
            Ok(()) => {
                self.last = None;
                self.outcome(env_idx..env_idx + 1, steps);
            }
            Err(failure) => {
                self.lose(&failure)?;
                self.nothing(steps);
            }
        }
        Ok(())
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        let Some(process) = &self.process else { return };
        match process.picture(RENDER | (env_idx as u32) << 8, Limit::of_call(&self.config)) {
            Ok(Some((width, height, pixels))) => canvas.picture(width, height, &pixels),
            Ok(None) => {}
            Err(failure) => {
                let which = format!("environment {}", self.first_env as usize + env_idx);
                self.workers.report(&which, &failure, None, "it is not drawn");
            }
        }
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        Err(Error::CannotSave)
    }

    fn load(&mut self, _: &[u8]) -> Result<(), Error> {
        Err(Error::CannotSave)
    }
}

impl Drop for WorkerVecEnv {
    fn drop(&mut self) {
        self.workers.batches.fetch_sub(1, Ordering::Relaxed);
        self.process.take().into_iter().for_each(|process| self.workers.put_back(process));
    }
}
