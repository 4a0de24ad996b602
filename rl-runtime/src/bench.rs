//! Benches that a user can run.

use std::time::{Duration, Instant};

use ndarray::{Array1, Axis};
use rl_agents::collect::{obs_view, rollout};
use rl_buffer::ActionBuffer;
use rl_envs::{ActionSpace, Actions, MaskBatch, Pool, RandomActions, StepBatch, catalog};
use serde_json::{Value, json};

use crate::Error;

/// Steps of the rollout that the bench writes to: enough that it is written to memory and not to one cached row.
const N_STEPS: usize = 128;
/// The time is cut into this many parts, whose median is reported.
const PARTS: u32 = 5;

/// Environment steps a second with random actions, which are drawn inside the clock; observations, rewards and flags are
/// written to a rollout of 128 steps, and episodes begin anew where they end.
///
/// # Errors
/// Those of the environments.
pub fn env(name: &str, n_envs: usize, threads: usize, seconds: f64) -> Result<Value, Error> {
    let pool = Pool::new(threads)?;
    let mut envs = catalog::find(name)?.pooled(n_envs, &pool)?;
    let ActionSpace::Discrete { n, masked } = *envs.action_space() else {
        return Err(Error::config(format!("{name} has continuous actions, which this bench cannot draw")));
    };
    let mut rollout = rollout(N_STEPS, n_envs, envs.observation_space(), envs.action_space())?;
    let mut random = RandomActions::new(0, n_envs, n);
    let mut final_obs = rollout.obs.clone();
    let mut final_masks = masked.then(|| ndarray::Array2::<u8>::zeros((n_envs, n as usize)));
    let masks = rollout.masks.as_mut().map(|masks| masks.index_axis_mut(Axis(0), 0));
    envs.reset(0, obs_view(&mut rollout.obs, 0), masks)?;
    let mut once = || -> Result<(), Error> {
        let ActionBuffer::Discrete(actions) = &mut rollout.actions else { return Ok(()) };
        for t in 0..N_STEPS {
            random.fill(actions.row_mut(t));
            envs.step(
                Actions::Discrete(actions.row(t)),
                StepBatch {
                    obs: obs_view(&mut rollout.obs, t + 1),
                    rewards: rollout.rewards.row_mut(t),
                    terminated: rollout.terminated.row_mut(t),
                    truncated: rollout.truncated.row_mut(t),
                    final_obs: obs_view(&mut final_obs, 0),
                    masks: rollout.masks.as_mut().zip(final_masks.as_mut()).map(|(masks, final_masks)| MaskBatch {
                        masks: masks.index_axis_mut(Axis(0), t + 1),
                        final_masks: final_masks.view_mut(),
                    }),
                },
            )?;
        }
        Ok(())
    };
    once()?; // touches all memory before the clock starts
    let mut rates = Vec::new();
    for _ in 0..PARTS {
        let (begin, mut rollouts) = (Instant::now(), 0u64);
        while begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS {
            once()?;
            rollouts += 1;
        }
        rates.push((rollouts * (N_STEPS * n_envs) as u64) as f64 / begin.elapsed().as_secs_f64());
    }
    rates.sort_unstable_by(f64::total_cmp);
    let rates = Array1::from(rates);
    Ok(json!({
        "event": "bench", "name": "env", "env": name, "value": rates[PARTS as usize / 2], "unit": "env_steps/s",
        "min": rates[0], "max": rates[PARTS as usize - 1],
        "envs": n_envs, "threads": threads, "device": "cpu", "seconds": seconds,
    }))
}
