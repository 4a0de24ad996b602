//! Benches that a user can run.

use std::time::{Duration, Instant};

use ndarray::Axis;
use rl_agents::collect::{MAX_SLICES, MIN_SLICE, obs_view, rollout};
use rl_agents::tile::{Isa, ROUND_FLOPS, multiply_adds};
use rl_agents::{ActorCritic, Agent as _, Collector, Learner, NetConfig, Ppo, PpoConfig};
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
    let (median, min, max) = spread(rates);
    Ok(json!({
        "event": "bench", "name": "env", "env": name, "value": median, "unit": "env_steps/s", "min": min, "max": max,
        "envs": n_envs, "threads": threads, "device": "cpu", "seconds": seconds,
    }))
}

/// Median, least and greatest.
fn spread(mut rates: Vec<f64>) -> (f64, f64, f64) {
    rates.sort_unstable_by(f64::total_cmp);
    (rates[rates.len() / 2], rates[0], rates[rates.len() - 1])
}

/// What `bench update` measures.
#[derive(Clone, Debug)]
pub struct Update {
    /// Samples of a minibatch.
    pub minibatch: usize,
    /// Sizes of the hidden layers.
    pub hidden: Vec<usize>,
    /// Threads.
    pub threads: usize,
    /// What computes.
    pub learner: Learner,
    /// The instruction set of the tile kernel.
    pub isa: Isa,
    /// How long to measure.
    pub seconds: f64,
}

/// Samples a second of whole PPO updates on rollouts of CartPole, everything included: targets, shuffling, gathering,
/// normalization, losses, gradients, clipping, Adam. With it the share that the networks' products have of the multiply-adds
/// that the machine can do, measured beside it.
///
/// # Errors
/// Those of the environments and the agent.
pub fn update(bench: &Update) -> Result<Value, Error> {
    let Update { minibatch, hidden, threads, learner, isa, seconds } = bench;
    let pool = Pool::new(*threads)?;
    let n_envs = 16.min(*minibatch);
    // A rollout of 8,192 samples or more, of whole minibatches and of whole steps.
    let n_steps = (8192usize.div_ceil(*minibatch) * minibatch).div_ceil(n_envs);
    let n_samples = n_steps * n_envs / minibatch * minibatch;
    let mut collector = Collector::of(catalog::find("cartpole")?.slices(n_envs, MAX_SLICES, MIN_SLICE)?, &pool, 0)?;
    let net = NetConfig { hidden: hidden.clone(), learner: *learner, ..NetConfig::default() };
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 0)?.with_isa(*isa)?;
    let flops = policy.flops_per_sample() as f64;
    let config = PpoConfig { n_steps, batch_size: *minibatch, n_epochs: 1, ..PpoConfig::default() };
    let mut agent = Ppo::new(policy, config, n_envs, 0)?;
    let mut rollout = collector.rollout(n_steps)?;
    collector.collect(agent.policy(), &mut rollout)?;
    agent.update(&rollout, 1.0, &pool)?;
    let (mut rates, mut ceilings) = (Vec::new(), Vec::new());
    for _ in 0..PARTS {
        let (begin, mut updates) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs_f64(*seconds) / PARTS {
            agent.update(&rollout, 1.0, &pool)?;
            updates += 1;
        }
        rates.push((updates * n_samples) as f64 / begin.elapsed().as_secs_f64());
        ceilings.push(ceiling(*isa, &pool));
    }
    let (median, min, max) = spread(rates);
    let (ceiling, ..) = spread(ceilings);
    Ok(json!({
        "event": "bench", "name": "update", "value": median, "unit": "samples/s", "min": min, "max": max,
        "minibatch": minibatch, "hidden": hidden, "threads": threads, "learner": learner, "isa": isa, "seconds": seconds,
        "flops_per_sample": flops, "ceiling_flops": ceiling, "share_of_ceiling": median * flops / ceiling,
    }))
}

/// Floating-point operations a second that all threads together can do as multiply-adds in registers.
fn ceiling(isa: Isa, pool: &Pool) -> f64 {
    const ROUNDS: u64 = 1_000_000;
    let begin = Instant::now();
    let mut sums = vec![0.0; pool.n_threads()];
    pool.each(&mut sums, &|sum| *sum = multiply_adds(isa, ROUNDS));
    std::hint::black_box(sums);
    (ROUND_FLOPS * ROUNDS * pool.n_threads() as u64) as f64 / begin.elapsed().as_secs_f64()
}
