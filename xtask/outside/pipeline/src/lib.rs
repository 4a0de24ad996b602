//! A custom pipeline in one screen, from a crate outside the workspace.
//!
//! A producer, a transform and a consumer run on a thread each, and four buffers circulate between them.

use rl_envs::{Action, Env as _, Purpose, Rng, pendulum::Pendulum};
use rl_runtime::ring::ring;
use rl_runtime::thread::{ThreadError, spawn};

/// One episode of Pendulum.
#[derive(Clone, Default)]
struct Episode {
    actions: Vec<f32>,
    rewards: Vec<f32>,
    /// Discounted return after each step.
    returns: Vec<f32>,
}

/// Returns the best first action of `n` random episodes, and its return.
pub fn best_of(n: u64) -> Result<(f32, f32), ThreadError> {
    let [source, transform, sink] = ring(vec![Episode::default(); 4]);

    let producer = spawn("play", move || {
        let (mut env, mut obs) = (Pendulum::default(), [0.0; 3]);
        for i in 0..n {
            // The consumer is gone: nothing is left to do.
            let Ok(mut episode) = source.recv() else { return };
            let mut rng = Rng::new(7, i as u32, 0, Purpose::RandomAction);
            env.reset(&mut Rng::new(7, 0, 0, Purpose::Reset), &mut obs);
            episode.actions.clear();
            episode.rewards.clear();
            loop {
                let action = rng.uniform_in(-2.0, 2.0);
                let step = env.step(Action::Continuous(&[action]), &mut rng, &mut obs);
                episode.actions.push(action);
                episode.rewards.push(step.reward);
                if step.done() {
                    break;
                }
            }
            if source.send(episode).is_err() {
                return;
            }
        }
    })?;

    let discounting = spawn("discount", move || {
        while let Ok(mut episode) = transform.recv() {
            episode.returns.clone_from(&episode.rewards);
            for t in (1..episode.returns.len()).rev() {
                episode.returns[t - 1] += 0.9 * episode.returns[t];
            }
            if transform.send(episode).is_err() {
                return;
            }
        }
    })?;

    let mut best = (0.0, f32::NEG_INFINITY);
    while let Ok(episode) = sink.recv() {
        if episode.returns[0] > best.1 {
            best = (episode.actions[0], episode.returns[0]);
        }
        if sink.send(episode).is_err() {
            continue; // the producer has finished, but some episodes are still in flight
        }
    }
    producer.join()?;
    discounting.join()?;
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_episodes_find_no_worse_a_start_and_always_the_same() {
        let few = best_of(10).unwrap();
        let many = best_of(300).unwrap();
        assert_eq!(many, best_of(300).unwrap());
        assert!(many.1 >= few.1 && many.1 < 0.0 && many.0.abs() <= 2.0, "{few:?} {many:?}");
    }
}
