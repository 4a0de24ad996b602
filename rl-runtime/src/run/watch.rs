//! Episodes played before an observer, greedily and one after the other.
//!
//! [`evaluate_policy`](crate::run::evaluation::evaluate_policy) plays the same episodes if it has the same settings. The
//! observer sees every state that the policy acts on, from the start state to the one before the last step. The state in which
//! an episode ends is not visible, because environments begin their next episode in the same step.

use std::ops::ControlFlow;

use rl_agents::{Episode, EvalConfig, Played, Policy, evaluate_with};
use rl_envs::catalog::Entry;
use rl_envs::{Canvas, VecEnv};

use crate::{Error, interrupt};

/// One moment of a watched episode.
pub enum Seen<'a> {
    /// The environment before a step.
    Step {
        /// A batch of this environment alone.
        envs: &'a dyn VecEnv,
        /// Index of the episode.
        number: usize,
        /// The episode so far.
        running: &'a Episode,
    },
    /// An ended episode.
    End(&'a Episode),
}

/// Plays `episodes` episodes one after the other, and passes each moment to `look`.
///
/// An interrupt stops early; the unfinished episode is not returned.
///
/// # Errors
/// Errors of the environments and of candle.
pub fn play(
    policy: &dyn Policy,
    entry: &Entry,
    episodes: usize,
    config: &EvalConfig,
    look: &mut dyn FnMut(Seen<'_>),
) -> Result<Played, Error> {
    let mut all = Played::default();
    for number in 0..episodes {
        let mut envs = entry.slice(number..number + 1)?;
        let mut before_step = |envs: &dyn VecEnv, running: &[Episode]| {
            if interrupt::requested() {
                return ControlFlow::Break(());
            }
            look(Seen::Step { envs, number, running: &running[0] });
            ControlFlow::Continue(())
        };
        let played = match evaluate_with(policy, &mut *envs, config, &mut before_step).map_err(Error::from) {
            Err(error) if !error.is_stop() => return Err(error),
            Ok(played) if !interrupt::requested() => played,
            _ => break,
        };
        played.episodes.iter().for_each(|episode| look(Seen::End(episode)));
        all.episodes.extend(played.episodes);
        all.cut += played.cut;
    }
    Ok(all)
}

/// True if the environment, to which the policy belongs, draws itself.
///
/// # Errors
/// Errors of the environments and of candle.
pub fn can_be_seen(policy: &dyn Policy, entry: &Entry) -> Result<bool, Error> {
    let mut canvas = Canvas::new(8, 8);
    let mut envs = entry.sync(1)?;
    evaluate_with(policy, &mut *envs, &EvalConfig::new(0), &mut |envs, _| {
        envs.render(0, &mut canvas);
        ControlFlow::Break(())
    })?;
    Ok(!canvas.is_empty())
}
