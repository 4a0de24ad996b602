//! Evaluation: episodes that judge a policy.

use std::ops::ControlFlow;

use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{Episode, EvalConfig, Played, Policy, evaluate_with};
use rl_envs::catalog::Entry;
use rl_envs::{Pool, pool};

use crate::pipeline::faults::FaultConfig;
use crate::{Error, interrupt, pipeline::first_come};

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

/// Maximum environments per slice of an evaluation.
///
/// Few enough that Ctrl-C is answered within a second.
const MAX_EVAL_SLICE: usize = 256;

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
    evaluate(policy, entry, episodes, (config, FaultConfig::default()), pool)
}

/// Plays episodes as [`evaluate_policy`] does, with a handling of faults.
pub(crate) fn evaluate(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    (config, faults): (&EvalConfig, FaultConfig),
    pool: &Pool,
) -> Result<Option<Evaluation>, Error> {
    if let Some(make) = entry.make_blocking() {
        let played = first_come::play((make, entry.spaces()), policy, episodes, (config, faults))?;
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
