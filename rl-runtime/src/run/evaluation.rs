//! Evaluation: episodes that judge a policy.

use std::ops::ControlFlow;
use std::sync::Arc;

use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{Acted, Acting, Choice, Episode, EvalConfig, Played, Policy, Scratch, evaluate_with};
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, Actions, BlockingEnv, Element as _, Pool, either, math, pool};

use crate::pipeline::blocking::{BlockingEnvs, EnvEvent, POLL_INTERVAL};
use crate::pipeline::faults::FaultConfig;
use crate::{Error, interrupt};

/// Statistics of the episodes that judge a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Number of episodes.
    pub episodes: usize,
    /// Number of episodes cut by the step limit.
    pub cut: usize,
    /// Mean return.
    pub return_mean: f64,
    /// Standard deviation of returns.
    pub return_std: f64,
    /// Mean length.
    pub length_mean: f64,
}

impl Evaluation {
    /// Computes the statistics of these episodes; NaN if there are none.
    ///
    /// The step limit cut `cut` of them.
    #[must_use]
    pub fn new(episodes: &[Episode], cut: usize) -> Self {
        let n = episodes.len() as f64;
        let mean = |of: &dyn Fn(&Episode) -> f64| episodes.iter().map(of).sum::<f64>() / n;
        let return_mean = mean(&|e| e.episode_return);
        Self {
            episodes: episodes.len(),
            cut,
            return_mean,
            return_std: mean(&|e| (e.episode_return - return_mean).powi(2)).sqrt(),
            length_mean: mean(&|e| f64::from(e.length)),
        }
    }
}

/// Maximum environments of an evaluation, if they block.
pub(crate) const MAX_BLOCKING: usize = 64;

/// Episodes in a row, broken by faults, after which an evaluation gives up.
const MAX_BROKEN: u32 = 100;

/// Maximum environments per slice of an evaluation.
///
/// Few enough that Ctrl-C is answered within a second.
pub(crate) const MAX_EVAL_SLICE: usize = 256;

/// Returns the seed of the episodes that `rl eval` and `rl watch` play.
///
/// It is never a seed of training's environments.
#[must_use]
pub fn evaluation_seed(seed: u64) -> u64 {
    seed.wrapping_add(0x9E37_79B9_7F4A_7C15)
}

/// Returns the seed of the episodes that judge a policy during training.
///
/// It is never one of [`evaluation_seed`], whose episodes must not decide when training stops. Every evaluation of a run plays
/// the same episodes, so that chance in their starts does not move its curve.
pub(crate) fn training_evaluation_seed(seed: u64) -> u64 {
    seed.wrapping_add(0x5851_F42D_4C95_7F2D)
}

/// Plays `episodes` episodes, each in its own environment.
///
/// Returns `None` after an interrupt. Faults of environments that block are handled as by [`FaultConfig::default`].
///
/// # Errors
/// The errors of the environments and of candle.
pub fn evaluate_policy(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    config: &EvalConfig,
    pool: &Pool,
) -> Result<Option<Evaluation>, Error> {
    evaluate(policy, entry, episodes, config, FaultConfig::default(), pool)
}

/// Plays episodes as [`evaluate_policy`] does, with a handling of faults.
pub(crate) fn evaluate(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    config: &EvalConfig,
    faults: FaultConfig,
    pool: &Pool,
) -> Result<Option<Evaluation>, Error> {
    if let Some(make) = entry.make_blocking() {
        let (n_envs, spaces) = (episodes.clamp(1, MAX_BLOCKING), entry.spaces());
        let played = either!(Obs, make, |make| {
            let envs = BlockingEnvs::new(n_envs, spaces, Arc::new(move |_| Ok(make())), faults, config.seed)?;
            play_blocking(envs, policy, episodes, config)?
        });
        return Ok(played.map(|played| Evaluation::new(&played.episodes, played.cut)));
    }
    // Each slice is built by the thread that plays it, so that a million episodes need the memory of a few.
    let slices = pool::slices(episodes, MAX_SLICES.max(episodes.div_ceil(MAX_EVAL_SLICE)), MIN_SLICE);
    let mut work: Vec<_> = slices.map(|range| (range, Ok(Played::default()))).collect();
    let go_on = || if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    pool.each(&mut work, &|(range, played)| {
        if go_on().is_continue() {
            let play = |mut envs| evaluate_with(policy, &mut envs, config, &mut |_, _| go_on());
            *played = entry.slice(range.clone()).map_err(Into::into).and_then(play);
        }
    });
    let played = work.into_iter().map(|(_, played)| Ok(played?));
    let played = match played.collect::<Result<Vec<_>, Error>>() {
        Err(error) if !error.is_stop() => return Err(error),
        Ok(played) if !interrupt::requested() => played,
        _ => return Ok(None),
    };
    let cut = played.iter().map(|played| played.cut).sum();
    let episodes: Vec<Episode> = played.into_iter().flat_map(|played| played.episodes).collect();
    Ok(Some(Evaluation::new(&episodes, cut)))
}

/// Plays episodes in environments that block.
///
/// Each environment plays a fixed number of episodes, so that short ones are not favoured.
fn play_blocking<E: BlockingEnv>(
    mut envs: BlockingEnvs<E>,
    policy: &dyn Policy,
    episodes: usize,
    config: &EvalConfig,
) -> Result<Option<Played>, Error> {
    let (n, a) = (envs.n_envs(), envs.action_space.len());
    let mut left: Vec<usize> = (0..n).map(|env| (episodes + n - 1 - env) / n).collect();
    let (mut running, mut played) = (vec![Episode::default(); n], Played::default());
    let mut broken = vec![0; n];
    let (mut events, mut scratch, mut step) = (Vec::new(), Scratch::default(), 0);
    let (mut vector, mut log_prob, mut value) = (vec![0.0; a], [0.0], [0.0]);
    let s = policy.state_len();
    let mut states = vec![0.0; n * s];
    while played.episodes.len() < episodes {
        if interrupt::requested() {
            return Ok(None);
        }
        match envs.recv_some(1, POLL_INTERVAL, &mut events) {
            Err(error) if error.is_stop() => return Ok(None),
            received => received?,
        }
        for (env, event) in events.drain(..) {
            let episode = &mut running[env];
            match event {
                EnvEvent::Started => {
                    *episode = Episode::default();
                    states[env * s..(env + 1) * s].fill(0.0);
                }
                EnvEvent::Stepped(step) => {
                    episode.episode_return += f64::from(step.reward);
                    episode.length += 1;
                    let cut = episode.length == config.max_steps && !step.done();
                    if step.done() || cut {
                        played.episodes.push(std::mem::take(episode));
                        broken[env] = 0;
                        played.cut += usize::from(cut);
                        left[env] -= 1;
                        if left[env] > 0 {
                            envs.reset(env);
                        }
                        continue;
                    }
                }
                EnvEvent::Faulted => {
                    broken[env] += u32::from(std::mem::take(episode).length > 0);
                    if broken[env] == MAX_BROKEN {
                        return Err(Error::EpisodesBroken { env_idx: env, n: MAX_BROKEN });
                    }
                    continue;
                }
            }
            if left[env] == 0 {
                continue;
            }
            step += 1;
            let seed = config.seed;
            let choice = if config.stochastic { Choice::Sample { seed, step, first_env: env as u32 } } else { Choice::Greedy };
            let acting = Acting { obs: E::Obs::slice(envs.obs(env)), masks: envs.mask(env), choice, envs: &[] };
            let mut discrete = [0];
            let actions = match envs.action_space {
                ActionSpace::Continuous { .. } => Actions::Continuous(&mut vector[..]),
                _ => Actions::Discrete(&mut discrete[..]),
            };
            let states = &mut states[env * s..(env + 1) * s];
            policy.act(acting, Acted { actions, log_probs: &mut log_prob, values: &mut value, states }, &mut scratch)?;
            if let ActionSpace::Continuous { low, high } = &envs.action_space {
                vector.iter_mut().zip(low.iter().zip(high)).for_each(|(x, (low, high))| *x = math::clamp(*x, *low, *high));
                envs.send(env, Action::Continuous(&vector))?;
            } else {
                envs.send(env, Action::Discrete(discrete[0]))?;
            }
        }
    }
    Ok(Some(played))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_purposes_share_a_seed() {
        let seeds = [evaluation_seed, training_evaluation_seed, |seed| seed];
        let all: std::collections::HashSet<u64> = seeds.iter().flat_map(|of| (0..10_000).map(of)).collect();
        assert_eq!(all.len(), 30_000);
    }
}
