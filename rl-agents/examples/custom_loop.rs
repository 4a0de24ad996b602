//! A custom loop on the single crates: `cargo run --release --example custom_loop`.
//!
//! The cross-entropy method (Rubinstein, 1999) needs no gradient. Each of 256 environments plays 500 steps with its own linear
//! policy; mean and standard deviation of the best 32 draw the next 256. The environments come from rl-envs, the memory from rl-buffer.

use ndarray::{Array2, Axis, s};
use rl_agents::collect::rollout;
use rl_buffer::{ActionBuffer, ObsBuffer};
use rl_envs::{Actions, Pool, PooledVecEnv, Purpose, Rng, StepBatch, VecEnv, cartpole::CartPole};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (n, n_steps, n_best) = (256, 500, 32);
    let mut envs = PooledVecEnv::new(n, &CartPole::default(), &Pool::new(2)?);
    let mut rollout = rollout(n_steps, n, envs.observation_space(), envs.action_space())?;
    let mut final_obs = rollout.obs.clone();
    let (mut mean, mut deviation) = ([0.0f32; 4], [1.0f32; 4]);

    for generation in 0..8u64 {
        let mut rng = Rng::new(0, 0, generation, Purpose::Init);
        let policies = Array2::from_shape_fn((n, 4), |(_, i)| mean[i] + deviation[i] * rng.normal());
        envs.reset_into(generation, rollout.obs.index_axis_mut(Axis(0), 0), None)?;
        for t in 0..n_steps {
            let (ObsBuffer::F32(obs), ActionBuffer::Discrete(actions)) = (&rollout.obs, &mut rollout.actions) else {
                unreachable!("CartPole has f32 observations and discrete actions")
            };
            let scores = (&obs.index_axis(Axis(0), t) * &policies).sum_axis(Axis(1));
            actions.row_mut(t).assign(&scores.mapv(|score| u32::from(score > 0.0)));
            envs.step_into(
                Actions::Discrete(actions.row(t)),
                StepBatch {
                    obs: rollout.obs.index_axis_mut(Axis(0), t + 1),
                    rewards: rollout.rewards.row_mut(t),
                    terminated: rollout.terminated.row_mut(t),
                    truncated: rollout.truncated.row_mut(t),
                    final_obs: final_obs.index_axis_mut(Axis(0), 0),
                    masks: None,
                },
            )?;
        }
        // Length of each policy's first episode.
        let lengths: Vec<usize> = (0..n)
            .map(|i| rollout.terminated.slice(s![.., i]).iter().position(|&over| over == 1).map_or(n_steps, |t| t + 1))
            .collect();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));
        let best = policies.select(Axis(0), &order[..n_best]);
        for i in 0..4 {
            mean[i] = best.column(i).mean().unwrap_or(0.0);
            deviation[i] = best.column(i).std(0.0);
        }
        let average = lengths.iter().sum::<usize>() as f64 / n as f64;
        println!("generation {generation}: mean length {average:.0}, best {}", lengths[order[0]]);
    }
    Ok(())
}
