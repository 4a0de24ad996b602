//! A custom loop on the single crates: `cargo run --release --example custom_loop`.
//!
//! The cross-entropy method (Rubinstein, 1999) needs no gradient. Each of 256 environments plays 500 steps with its own linear
//! policy; mean and standard deviation of the best 32 draw the next 256. The environments come from rl-envs, the memory from
//! rl-buffer.

use ndarray::{Array2, Axis};
use rl_buffer::{Rollout, RolloutShape};
use rl_envs::{Actions, ObsSlice, Pool, PooledVecEnv, Purpose, Rng, VecEnv, cartpole::CartPole};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (n, n_steps, n_best) = (256, 500, 32);
    let mut envs = PooledVecEnv::new(n, &CartPole::default(), &Pool::new(2)?);
    let mut rollout = Rollout::new(RolloutShape::new(n_steps, n, envs.observation_space(), envs.action_space()))?;
    let (mut mean, mut deviation) = ([0.0f32; 4], [1.0f32; 4]);

    for generation in 0..8u64 {
        let mut rng = Rng::new(0, 0, generation, Purpose::Init);
        let policies = Array2::from_shape_fn((n, 4), |(_, i)| mean[i] + deviation[i] * rng.normal());
        let mut columns = rollout.columns();
        envs.reset_into(generation, columns.start(0).0, None)?;
        for t in 0..n_steps {
            if let (ObsSlice::F32(obs), _, (Actions::Discrete(actions), ..)) = columns.act(t) {
                for ((action, obs), policy) in actions.iter_mut().zip(obs.chunks(4)).zip(policies.rows()) {
                    *action = u32::from(policy.iter().zip(obs).map(|(weight, x)| weight * x).sum::<f32>() > 0.0);
                }
            }
            envs.step_into(columns.step(t))?;
        }
        // Length of each policy's first episode.
        let lengths: Vec<usize> = (0..n)
            .map(|i| rollout.terminated().column(i).iter().position(|&over| over == 1).map_or(n_steps, |t| t + 1))
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
