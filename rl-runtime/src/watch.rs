//! Playing episodes in front of someone: greedily, one after the other, with a look at the environment before each step.
//!
//! They are the episodes that [`evaluate_policy`](crate::train::evaluate_policy) plays for the same seed. What is seen is every
//! state that the policy acted on, from the start state to the one before the last step. The state that an episode ends in cannot
//! be seen, because environments begin their next episode in the same step.

use std::ops::ControlFlow;

use rl_agents::{Episode, EvalConfig, Policy, evaluate_with};
use rl_envs::catalog::Entry;
use rl_envs::{Canvas, VecEnv};

use crate::train::evaluation_seed;
use crate::{Error, interrupt};

/// A moment of an episode that is watched.
pub enum Seen<'a> {
    /// The environment before a step.
    Step {
        /// A batch of this environment alone.
        envs: &'a dyn VecEnv,
        /// Number of the episode, from 0.
        number: usize,
        /// The episode so far.
        running: &'a Episode,
    },
    /// An episode that has ended.
    End(&'a Episode),
}

/// Plays `episodes` episodes one after the other, always taking the most likely action, and shows each moment to `look`. An interrupt
/// ends it early; an episode that it has cut short is not returned.
///
/// # Errors
/// Those of the environments and of candle.
pub fn play(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    seed: u64,
    look: &mut dyn FnMut(Seen<'_>),
) -> Result<Vec<Episode>, Error> {
    let mut played = Vec::new();
    for (number, mut envs) in entry.slices(episodes, episodes, 1)?.into_iter().enumerate() {
        let mut before_step = |envs: &dyn VecEnv, running: &[Episode]| {
            if interrupt::requested() {
                return ControlFlow::Break(());
            }
            look(Seen::Step { envs, number, running: &running[0] });
            ControlFlow::Continue(())
        };
        let config = EvalConfig::new(evaluation_seed(seed));
        let episode = evaluate_with(policy, &mut *envs, &config, &mut before_step)?.episodes;
        if interrupt::requested() {
            break;
        }
        episode.iter().for_each(|episode| look(Seen::End(episode)));
        played.extend(episode);
    }
    Ok(played)
}

/// Whether an environment draws itself. The policy is one for it.
///
/// # Errors
/// Those of the environments and of candle.
pub fn can_be_seen(policy: &dyn Policy, entry: &Entry) -> Result<bool, Error> {
    let mut canvas = Canvas::new(8, 8);
    let mut envs = entry.sync(1)?;
    evaluate_with(policy, &mut *envs, &EvalConfig::new(0), &mut |envs, _| {
        envs.render(0, &mut canvas);
        ControlFlow::Break(())
    })?;
    Ok(!canvas.is_empty())
}
