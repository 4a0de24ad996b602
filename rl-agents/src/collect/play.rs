//! Evaluation: one episode in each environment.

use std::ops::ControlFlow;

use rl_envs::{Steps, VecEnv};

use crate::collect::anomaly::{Anomaly, Bounds, all_finite, bad_step, guarded, not_finite, text};
use crate::collect::memory::PolicyMemory;
use crate::collect::slice::{Clipped, Episode, of_env};
use crate::settings::OnNonfinite;
use crate::{Acted, Acting, Choice, Error, Policy, Scratch};

/// Default of [`EvalConfig::max_steps`], more than episodes with a time limit take.
pub const MAX_EVAL_STEPS: u32 = 100_000;

/// Settings of [`evaluate_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalConfig {
    /// Seed of the environments, and of the actions if they are sampled.
    pub seed: u64,
    /// Samples actions as in training instead of taking the most likely ones.
    pub stochastic: bool,
    /// Steps after which an episode is cut; 0 for no limit.
    pub max_steps: u32,
    /// Reaction to a non-finite number: an error, or a cut before it.
    pub on_nonfinite: OnNonfinite,
}

impl EvalConfig {
    /// Greedy episodes of at most [`MAX_EVAL_STEPS`] steps.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, stochastic: false, max_steps: MAX_EVAL_STEPS, on_nonfinite: OnNonfinite::Error }
    }
}

/// Result of [`evaluate_with`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// The first episode of each environment.
    pub episodes: Vec<Episode>,
    /// Number of episodes cut by the limit, or before a non-finite number.
    pub cut: usize,
}

/// Plays one greedy episode of at most [`MAX_EVAL_STEPS`] steps in each of `envs`.
///
/// `seed` resets the environments. The first episode of every environment counts, however long, so that short ones are not
/// favoured.
///
/// # Errors
/// Errors of the environments and of candle.
pub fn evaluate(policy: &dyn Policy, envs: &mut dyn VecEnv, seed: u64) -> Result<Vec<Episode>, Error> {
    Ok(evaluate_with(policy, envs, &EvalConfig::new(seed), &mut |_, _| ControlFlow::Continue(()))?.episodes)
}

/// Callback of [`evaluate_with`]: environments, and their unfinished episodes.
pub type BeforeStep<'a> = &'a mut dyn FnMut(&dyn VecEnv, &[Episode]) -> ControlFlow<()>;

/// Starts the next episode of environment `i`, before lifetime step `step`.
fn restart(envs: &mut dyn VecEnv, steps: &mut Steps, i: usize, step: u64) -> Result<(), Error> {
    let d = envs.observation_space().len();
    let masks = steps.masks.as_mut().map(|[masks, _]| &mut masks[..]);
    let (obs, masks) = of_env(steps.obs.as_mut_slice(), masks, i, d);
    guarded(envs, step, |envs| envs.restart(i, obs, masks))
}

/// Plays one episode in each of `envs`.
///
/// `before_step` runs before every step; if it breaks, the unfinished episodes are returned.
///
/// `before_step` never sees the state in which an episode ends: that step has already begun the environment's next episode, which
/// is stepped but not counted until the last environment has ended its first.
///
/// # Errors
/// [`Error::NotFinite`] or [`Error::EnvPanicked`] if an environment misbehaves; errors of the environments and of candle.
pub fn evaluate_with(
    policy: &dyn Policy,
    envs: &mut dyn VecEnv,
    config: &EvalConfig,
    before_step: BeforeStep<'_>,
) -> Result<Played, Error> {
    let EvalConfig { seed, stochastic, max_steps, on_nonfinite } = *config;
    let (n, d, first_env) = (envs.n_envs(), envs.observation_space().len(), envs.first_env());
    let mut steps = Steps::new(&*envs);
    guarded(envs, 0, |envs| envs.reset(seed, &mut steps))?;
    let mut running = vec![Episode::default(); n];
    let mut clipped = Clipped::new(envs.action_space(), n);
    let (mut log_probs, mut values, mut raw_rewards) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let bounds = Bounds::new(envs.observation_space());
    let (mut over, mut replayed, mut cut) = (vec![false; n], vec![false; n], 0);
    let mut scratch = Scratch::default();
    let mut memory = PolicyMemory::new(n, policy.state_len());
    let mut step = 0;
    let not_finite_at = |env_idx: usize, step, action, what| {
        Error::NotFinite(Anomaly { env_idx: first_env as usize + env_idx, step, action, what })
    };
    if !bounds.hold(steps.obs.as_slice()) {
        for i in 0..n {
            if on_nonfinite == OnNonfinite::Truncate && not_finite(steps.obs.as_slice().row(i, d)).is_some() {
                restart(envs, &mut steps, i, 0)?;
            }
            if let Some(what) = not_finite(steps.obs.as_slice().row(i, d)) {
                return Err(not_finite_at(i, 0, None, what));
            }
        }
    }
    while over.contains(&false) && before_step(&*envs, &running).is_continue() {
        step += 1;
        let choice = if stochastic { Choice::Sample { seed, step, first_env } } else { Choice::Greedy };
        let masks = steps.masks.as_ref().map_or(&[][..], |[masks, _]| masks);
        let acted = Acted {
            actions: steps.actions.as_mut_slice(),
            log_probs: &mut log_probs,
            values: &mut values,
            states: memory.states_mut(),
        };
        policy.act(Acting { obs: steps.obs.as_slice(), masks, choice, envs: &[] }, acted, &mut scratch)?;
        let columns = clipped.clip(steps.view_mut());
        guarded(envs, step, |envs| envs.step_into(columns))?;
        let mut replay_failed = |envs: &mut dyn VecEnv, steps: &mut Steps, memory: &mut PolicyMemory, over: &[bool]| {
            while let Some(&(i, _)) = envs.faults().first() {
                // The episode is played again, from another start.
                if !over[i] {
                    running[i] = Episode::default();
                }
                restart(envs, steps, i, step)?;
                memory.state_mut(i).fill(0.0);
                replayed[i] = true;
            }
            Ok::<_, Error>(())
        };
        replay_failed(envs, &mut steps, &mut memory, &over)?;
        raw_rewards.copy_from_slice(&steps.rewards);
        envs.raw_rewards(&mut raw_rewards);
        if !all_finite(&raw_rewards) || !bounds.hold(steps.obs.as_slice()) {
            for i in 0..n {
                let Some(what) = bad_step(raw_rewards[i], steps.obs.as_slice().row(i, d)) else { continue };
                // Later episodes do not count.
                if on_nonfinite == OnNonfinite::Error && !over[i] {
                    let action = text(steps.actions.as_slice().row(i, envs.action_space().len()));
                    return Err(not_finite_at(i, step, Some(action), what));
                }
                // The first observation of the next episode does not cut this one.
                if !raw_rewards[i].is_finite() || !steps.done(i) {
                    cut += usize::from(!std::mem::replace(&mut over[i], true));
                }
                restart(envs, &mut steps, i, step)?;
                memory.state_mut(i).fill(0.0);
                if let Some(what) = not_finite(steps.obs.as_slice().row(i, d)) {
                    return Err(not_finite_at(i, step, None, what));
                }
            }
            // A restart may have failed, and other environments with it.
            replay_failed(envs, &mut steps, &mut memory, &over)?;
        }
        for (i, episode) in running.iter_mut().enumerate().filter(|(i, _)| !over[*i] && !std::mem::take(&mut replayed[*i])) {
            episode.episode_return += f64::from(raw_rewards[i]);
            episode.length += 1;
        }
        for (i, over) in over.iter_mut().enumerate() {
            *over |= steps.done(i) && !envs.goes_on(i);
            if steps.done(i) {
                memory.state_mut(i).fill(0.0);
            }
        }
        if step == u64::from(max_steps) {
            cut += over.iter().filter(|over| !**over).count();
            break;
        }
    }
    Ok(Played { episodes: running, cut })
}
