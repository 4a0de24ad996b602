//! Checks of environments made at run time, one per clause of the contract.
//!
//! Only a batch of them can be looked at: see [`Batches`]. As in [`check`](crate::check), actions are drawn
//! uniformly from the legal ones, seeds are fixed, and everything a learner sees is compared bit for bit.

use std::ops::Range;

use crate::batch::outside::Batches;
use crate::check::clauses::check_spaces;
use crate::check::run::{ENDLESS, row};
use crate::check::{Check, Found, Outcome};
use crate::{Actions, Error, RandomActions, Spaces, Steps, VecEnv};

/// Environments of a recorded batch.
const N_ENVS: usize = 3;
/// Steps of a recording.
const N_STEPS: usize = 300;
/// Numbers of a recording's observations, which bound its steps.
const MAX_NUMBERS: usize = 4_000_000;
/// Fewest steps of a recording.
const MIN_STEPS: usize = 20;
/// Steps between restarts of an environment.
const RESTART_EVERY: usize = 10;
/// Seed of the actions, which is the same for every seed of environments.
const ACTION_SEED: u64 = 17;

/// Recorded batch: the columns after the reset and after each step.
struct Recording {
    rows: Vec<Steps>,
    /// Index of the first environment.
    first: usize,
    /// State after the last step, if the environments have one.
    saved: Option<Vec<u8>>,
}

/// Everything a learner sees of one environment after a step.
struct Seen {
    obs: Vec<f32>,
    reward: f32,
    terminated: u8,
    truncated: u8,
    final_obs: Option<Vec<f32>>,
    mask: Vec<u8>,
}

impl Seen {
    /// Returns all of it as bits, in which NaN equals itself.
    fn bits(&self) -> Vec<u32> {
        let numbers = self.obs.iter().chain([&self.reward]).chain(self.final_obs.iter().flatten()).map(|x| x.to_bits());
        numbers.chain([&self.terminated, &self.truncated].into_iter().chain(&self.mask).map(|&x| x.into())).collect()
    }
}

/// Passes each check of the environments of `batches` to `each` once it is done.
pub(crate) fn check_batches(batches: &'static dyn Batches, each: &mut dyn FnMut(Check)) {
    type Clause = (&'static str, &'static str, fn(&'static dyn Batches) -> Found);
    let clauses: [Clause; 10] = [
        ("spaces", "the spaces are not empty, and their bounds are numbers in order", spaces),
        ("steps", "resets and steps succeed", |batches| record(batches, 0..N_ENVS, 0).map(|_| Outcome::Passed)),
        ("finite", "observations and rewards are finite", finite),
        ("observations_in_space", "observations lie in their space, the last one of an episode too", observations_in_space),
        ("episodes_end", "episodes end", episodes_end),
        ("same_seed", "the same seed and actions give the same bits", same_seed),
        ("other_seeds", "randomness comes from the seed", other_seeds),
        ("batch", "an environment of a batch does what it does alone", batch),
        ("restarts", "a restart of one environment changes no other", restarts),
        ("legal_actions", "a running episode has a legal action", legal_actions),
    ];
    let run = |(name, about, clause): Clause| {
        let outcome = clause(batches).unwrap_or_else(Outcome::Failed);
        Check { name, about, outcome }
    };
    clauses.into_iter().map(run).for_each(each);
}

/// Maker of a batch of n environments.
pub(crate) type Make<'a> = &'a dyn Fn(usize) -> Result<Box<dyn VecEnv>, Error>;

/// Checks that environments in vector lanes do what they do one at a time.
///
/// `make` creates batches of n environments, one at a time and in lanes.
pub(crate) fn check_lanes(make: [Make<'_>; 2]) -> Check {
    let about = "vector lanes give what environments one at a time give";
    let advice = ["in lanes and alone: pack every field of the state, and step lanes alike"; 2];
    Check { name: "lanes", about, outcome: same(make, advice).unwrap_or_else(Outcome::Failed) }
}

/// Checks that kernels on a device do what the environments do on the CPU.
///
/// `make` creates batches of n environments, on the CPU and on the device.
pub(crate) fn check_kernels(make: [Make<'_>; 2]) -> Check {
    let about = "the kernels give what the environment gives";
    let advice = [
        "on the device and on the CPU: write the same operations in the same order, and compile without fused multiply-adds",
        "on the device and on the CPU: pack the words in the same order in both",
    ];
    Check { name: "kernels", about, outcome: same(make, advice).unwrap_or_else(Outcome::Failed) }
}

/// Compares all bits of two makers' batches, and their saved states.
///
/// `advice` follows a difference of steps, and of states.
fn same(make: [Make<'_>; 2], advice: [&str; 2]) -> Found {
    for n in [1, 31, 33, 65] {
        let [a, b] = make.map(|make| record_batch(make(n).map_err(text)?, 0..n, 8));
        let (a, b) = (a?, b?);
        (0..n).try_for_each(|i| compare(&a, &b, i)).map_err(|what| format!("{what} in a batch of {n}, {}", advice[0]))?;
        if a.saved != b.saved {
            return Err(format!("the states of a batch of {n} differ after the last step, {}", advice[1]));
        }
    }
    Ok(Outcome::Passed)
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Steps environments with random actions.
///
/// `stepped` gets the batch, its columns and the number of steps, first after the reset; it returns true if it has enough.
fn play(
    mut envs: Box<dyn VecEnv>,
    range: Range<usize>,
    seed: u64,
    mut stepped: impl FnMut(&mut dyn VecEnv, &mut Steps, usize) -> Result<bool, String>,
) -> Result<(), String> {
    let mut random = RandomActions::slice(ACTION_SEED, range.clone(), envs.action_space());
    let mut steps = Steps::new(&*envs);
    envs.reset(seed, &mut steps).map_err(text)?;
    let mut t = 0;
    while !stepped(&mut *envs, &mut steps, t)? {
        t += 1;
        random.fill_legal(&mut steps);
        envs.step(&mut steps).map_err(text)?;
        if let Some((i, why)) = envs.faults().first() {
            return Err(format!("environment {}, step {t}: {why}", range.start + i));
        }
    }
    Ok(())
}

/// Returns the steps of a recording that fits into memory.
fn n_steps(envs: &dyn VecEnv) -> usize {
    (MAX_NUMBERS / (envs.n_envs() * envs.observation_space().len()).max(1)).clamp(MIN_STEPS, N_STEPS)
}

fn record(batches: &'static dyn Batches, range: Range<usize>, seed: u64) -> Result<Recording, String> {
    record_batch(batches.slice(range.clone()).map_err(text)?, range, seed)
}

fn record_batch(envs: Box<dyn VecEnv>, range: Range<usize>, seed: u64) -> Result<Recording, String> {
    let (mut rows, mut saved, first, n_steps) = (Vec::new(), None, range.start, n_steps(&*envs));
    play(envs, range, seed, |envs, steps, t| {
        rows.push(steps.clone());
        if t == n_steps {
            saved = match envs.save() {
                Ok(saved) => Some(saved),
                Err(Error::CannotSave) => None,
                Err(error) => return Err(text(error)),
            };
        }
        Ok(t == n_steps)
    })?;
    Ok(Recording { rows, first, saved })
}

impl Recording {
    /// Returns each environment's rows, with a description of their place.
    fn seen(&self) -> impl Iterator<Item = (String, Seen)> {
        self.rows.iter().enumerate().flat_map(move |(t, steps)| {
            (0..steps.rewards.len()).map(move |i| (format!("environment {}, step {t}", self.first + i), seen(steps, i)))
        })
    }

    /// Returns the rows of environment `i`.
    fn of(&self, i: usize) -> impl Iterator<Item = Seen> {
        self.rows.iter().map(move |steps| seen(steps, i - self.first))
    }
}

/// Returns row `i` of a step.
fn seen(steps: &Steps, i: usize) -> Seen {
    let n = steps.rewards.len();
    let d = steps.obs.len() / n;
    let mask = steps.masks.as_ref().map(|[masks, _]| masks[i * masks.len() / n..(i + 1) * masks.len() / n].to_vec());
    Seen {
        obs: row(&steps.obs, i, d),
        reward: steps.rewards[i],
        terminated: steps.terminated[i],
        truncated: steps.truncated[i],
        final_obs: steps.done(i).then(|| row(&steps.final_obs, i, d)),
        mask: mask.unwrap_or_default(),
    }
}

fn spaces(batches: &'static dyn Batches) -> Found {
    let Spaces { obs, actions } = batches.spaces();
    check_spaces(&obs, &actions)
}

fn finite(batches: &'static dyn Batches) -> Found {
    for (place, seen) in record(batches, 0..N_ENVS, 1)?.seen() {
        let numbers = seen.obs.iter().chain(seen.final_obs.iter().flatten()).chain([&seen.reward]);
        if let Some(x) = numbers.into_iter().find(|x| !x.is_finite()) {
            return Err(format!("{place}: {x}: look for a division by 0, a root or a logarithm"));
        }
    }
    Ok(Outcome::Passed)
}

fn observations_in_space(batches: &'static dyn Batches) -> Found {
    let space = batches.spaces().obs;
    for (place, seen) in record(batches, 0..N_ENVS, 2)?.seen() {
        for obs in [Some(&seen.obs), seen.final_obs.as_ref()].into_iter().flatten() {
            let categories = space.categories().iter().zip(obs).enumerate();
            if let Some((i, (n, x))) = categories.filter(|(_, (n, _))| **n > 0).find(|(_, (_, x))| x.fract() != 0.0) {
                return Err(format!("{place}: obs[{i}] is {x}, the space has the categories 0 to {}: send an integer", n - 1));
            }
            let outside = |i: &usize| obs[*i] < space.low()[*i] || obs[*i] > space.high()[*i];
            if let Some(i) = (0..obs.len()).find(outside) {
                let (low, high) = (space.low()[i], space.high()[i]);
                return Err(format!(
                    "{place}: obs[{i}] is {}, the space is [{low}, {high}]: clip the observation or widen the space",
                    obs[i]
                ));
            }
        }
    }
    Ok(Outcome::Passed)
}

fn episodes_end(batches: &'static dyn Batches) -> Found {
    let mut ended = false;
    play(batches.slice(0..1).map_err(text)?, 0..1, 3, |_, steps, t| {
        ended = steps.done(0);
        Ok(ended || t >= ENDLESS)
    })?;
    if ended {
        return Ok(Outcome::Passed);
    }
    Err(format!("no episode has ended in {ENDLESS} steps of random actions, so no return can be reported: add a time limit"))
}

/// Compares environment `i` of two recordings.
fn compare(a: &Recording, b: &Recording, i: usize) -> Result<(), String> {
    match a.of(i).zip(b.of(i)).position(|(a, b)| a.bits() != b.bits()) {
        Some(t) => Err(format!("environment {i} differs at step {t}")),
        None => Ok(()),
    }
}

fn same_seed(batches: &'static dyn Batches) -> Found {
    let play = || record(batches, 0..N_ENVS, 4);
    let (a, b) = (play()?, play()?);
    for i in 0..N_ENVS {
        compare(&a, &b, i).map_err(|what| format!("{what}, with the same seed: draw all randomness from the seed of reset"))?;
    }
    Ok(Outcome::Passed)
}

fn other_seeds(batches: &'static dyn Batches) -> Found {
    let play = |seed| record(batches, 0..1, seed);
    let a = play(5)?;
    for seed in 6..10 {
        if compare(&a, &play(seed)?, 0).is_err() {
            return Ok(Outcome::Passed);
        }
    }
    Ok(Outcome::Skipped("all seeds give the same: an environment without randomness".into()))
}

fn batch(batches: &'static dyn Batches) -> Found {
    let all = record(batches, 0..N_ENVS, 6)?;
    for i in 0..N_ENVS {
        let alone = record(batches, i..i + 1, 6)?;
        compare(&all, &alone, i).map_err(|what| format!("{what} from the same one alone: share nothing between environments"))?;
    }
    Ok(Outcome::Passed)
}

fn restarts(batches: &'static dyn Batches) -> Found {
    let others = |restarts: bool| -> Result<Vec<[Vec<u32>; 2]>, String> {
        let (envs, mut rows) = (batches.slice(0..N_ENVS).map_err(text)?, Vec::new());
        let n_steps = n_steps(&*envs);
        play(envs, 0..N_ENVS, 8, |envs, steps, t| {
            if restarts && t % RESTART_EVERY == 1 {
                let one = steps.view_mut().env(1);
                envs.restart(1, one.obs, one.masks.map(|[masks, _]| masks)).map_err(text)?;
                if let (Actions::Discrete(actions), Some([masks, _])) = (&mut steps.actions, &steps.masks) {
                    let a = masks.len() / N_ENVS;
                    actions[1] = masks[a..2 * a].iter().position(|&legal| legal == 1).unwrap_or(0) as u32;
                }
                envs.repeat_step(1, steps.view_mut().env(1)).map_err(text)?;
                if let Some((i, why)) = envs.faults().first() {
                    return Err(format!("environment {i}, after a restart at step {t}: {why}"));
                }
            }
            rows.push([0, 2].map(|i| seen(steps, i).bits()));
            Ok(t >= n_steps)
        })?;
        Ok(rows)
    };
    let (plain, restarted) = (others(false)?, others(true)?);
    for (t, (a, b)) in plain.iter().zip(&restarted).enumerate() {
        if let Some(i) = (0..2).find(|&i| a[i] != b[i]) {
            let advice = "where environment 1 was restarted: restart that one alone";
            return Err(format!("environment {} differs at step {t}, {advice}", 2 * i));
        }
    }
    Ok(Outcome::Passed)
}

fn legal_actions(batches: &'static dyn Batches) -> Found {
    let actions = batches.spaces().actions;
    if !actions.masked() {
        return Ok(Outcome::Skipped("the action space has no masks".into()));
    }
    for (place, seen) in record(batches, 0..N_ENVS, 7)?.seen() {
        if let Some(x) = seen.mask.iter().find(|&&x| x > 1) {
            return Err(format!("{place}: the mask has a {x}: write 1 for a legal action, 0 for another"));
        }
        if !seen.mask.contains(&1) {
            return Err(format!("{place}: no action is legal: end the episode, or add an action that does nothing"));
        }
    }
    Ok(Outcome::Passed)
}
