//! One environment in a worker process of its own, for first-come batching.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use rl_envs::{Action, ActionSpace, Actions, BlockingEnv, Element, EnvError, Rng, Space, Step};

use super::messages::STEP;
use super::process::Failure;
use super::vec_env::WorkerVecEnv;
use super::workers::Workers;
use crate::interrupt;

/// Environment in a worker process of its own.
///
/// After a failure, the next reset replaces the process.
pub(super) struct WorkerEnv<O> {
    workers: &'static Workers,
    /// Batch of one; `None` until the first reset, and after a failure.
    envs: Option<WorkerVecEnv>,
    /// True if the last reply holds the first observation of the next episode.
    begun: bool,
    /// Legal actions at the latest observation.
    mask: Vec<u8>,
    element: PhantomData<O>,
}

impl<O: Element> WorkerEnv<O> {
    pub(super) fn new(workers: &'static Workers) -> Self {
        workers.alone.fetch_add(1, Ordering::AcqRel);
        Self { workers, envs: None, begun: false, mask: Vec::new(), element: PhantomData }
    }

    /// Ends the process after a failure.
    fn lose(&mut self, failure: &Failure) -> EnvError {
        let log = self.envs.take().and_then(|mut envs| envs.kill());
        if !interrupt::drops_rollouts() {
            self.workers.count(failure, log);
        }
        EnvError { cause: failure.to_string(), may_repeat: false }
    }
}

impl<O: Element> BlockingEnv for WorkerEnv<O> {
    type Obs = O;

    fn observation_space(&self) -> Space {
        self.workers.spaces.obs.clone()
    }

    fn action_space(&self) -> ActionSpace {
        self.workers.spaces.actions.clone()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        let envs = match &mut self.envs {
            Some(envs) => envs,
            None => {
                let envs = WorkerVecEnv::new(self.workers, 0..1);
                self.envs.insert(envs.map_err(|error| EnvError { cause: error.to_string(), may_repeat: false })?)
            }
        };
        // After the end of an episode, its process has begun the next one.
        if !std::mem::take(&mut self.begun)
            && let Err(failure) = envs.try_begin(&[rng.next_u32() >> 1])
        {
            return Err(self.lose(&failure));
        }
        let reply = envs.answer();
        reply.obs(0, 1, O::slice_mut(obs));
        self.mask.clear();
        self.mask.extend_from_slice(reply.masks(0, 1));
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        let envs = self.envs.as_mut().expect("a step follows a reset");
        let actions = match &action {
            Actions::Discrete(action) => Actions::Discrete(std::slice::from_ref(action)),
            Actions::Continuous(action) => Actions::Continuous(*action),
        };
        if let Err(failure) = envs.call(STEP, 0, actions) {
            return Err(self.lose(&failure));
        }
        let reply = envs.answer();
        let [terminated, truncated] = reply.flags().map(|flags| flags[0] == 1);
        let step = Step { reward: reply.rewards().next().unwrap_or(f32::NAN), terminated, truncated };
        self.begun = step.done();
        self.mask.clear();
        if self.begun {
            self.mask.extend_from_slice(reply.last(0, 1, 0, O::slice_mut(obs)));
        } else {
            reply.obs(0, 1, O::slice_mut(obs));
            self.mask.extend_from_slice(reply.masks(0, 1));
        }
        Ok(step)
    }

    fn mask(&self, mask: &mut [u8]) {
        mask.copy_from_slice(&self.mask);
    }
}

impl<O> Drop for WorkerEnv<O> {
    fn drop(&mut self) {
        drop(self.envs.take());
        self.workers.alone.fetch_sub(1, Ordering::AcqRel);
    }
}
