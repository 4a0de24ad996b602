//! The thread of one blocking environment: calls arrive, replies leave.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rl_envs::pool::panic_text;
use rl_envs::{Action, BlockingEnv, Element as _, EnvError, Purpose, Rng, Step, rng};

use crate::channel::{Receiver, Sender};
use crate::pipeline::faults::{Fault, FaultConfig, backoff};

/// Creates environment i on its own thread; called again for a replacement.
pub type Make<E> = Arc<dyn Fn(usize) -> Result<E, EnvError> + Send + Sync>;

/// Call of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Reset,
    Step,
}

/// Buffers that travel to an environment and back.
#[derive(Debug)]
pub(super) struct Cell<O> {
    pub(super) obs: Vec<O>,      // (D)
    pub(super) mask: Vec<u8>,    // (A), or empty without masks
    pub(super) vector: Vec<f32>, // (A), or empty for discrete actions
    pub(super) discrete: u32,
}

pub(super) struct Call<O> {
    pub(super) ask: Request,
    /// Lifetime step, the counter of the random numbers.
    pub(super) step: u64,
    pub(super) cell: Cell<O>,
}

pub(super) struct Reply<O> {
    pub(super) env: usize,
    pub(super) generation: u64,
    pub(super) retries: u32,
    pub(super) cell: Cell<O>,
    pub(super) result: Result<Step, Fault>,
}

/// Body of an environment's thread.
pub(super) fn serve<E: BlockingEnv>(
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
    ask: Request,
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
        Request::Reset => {
            env.reset(&mut Rng::new(seed, index, step, Purpose::Reset), &mut cell.obs)?;
            Step::default()
        }
        Request::Step => {
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
