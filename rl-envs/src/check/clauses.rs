//! Clauses of the contract of an environment, one function each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::check::any_env::{AnyEnv, AnyState};
use crate::check::run::{ENDLESS, Frame, Run, compare, row};
use crate::check::trace::OwnedAction;
use crate::check::{Check, Found, Outcome};
use crate::{ActionSpace, Env, Space, Steps};

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Checks `env` against the contract.
///
/// Takes about a second for an environment whose steps take a few microseconds.
pub fn check_env<E: Env + 'static>(env: &E) -> Vec<Check> {
    let mut checks = Vec::new();
    check_env_each(env, &mut |check| checks.push(check));
    checks
}

/// Passes each of the checks of [`check_env`] to `each` once it is done.
pub(crate) fn check_env_each(env: &dyn AnyEnv, each: &mut dyn FnMut(Check)) {
    type Clause = (&'static str, &'static str, fn(&dyn AnyEnv) -> Found);
    let clauses: [Clause; 21] = [
        ("spaces", "the spaces are not empty, and their bounds are numbers in order", spaces),
        ("constant_spaces", "the spaces stay what they are", constant_spaces),
        ("finite_observations", "observations are finite", finite_observations),
        ("observations_in_space", "observations lie in their space, the last one of an episode too", observations_in_space),
        ("finite_rewards", "rewards are finite", finite_rewards),
        ("episodes_end", "episodes end", episodes_end),
        ("same_seed", "the same seed and actions give the same bits", same_seed),
        ("whole_row_at_reset", "reset writes all of the observation and does not read what was there", whole_row_at_reset),
        ("whole_row_at_step", "step writes all of the observation and does not read what was there", whole_row_at_step),
        ("other_seeds", "randomness comes from the generator passed in", other_seeds),
        ("reset_forgets", "nothing is left of an episode after a reset", reset_forgets),
        ("independent_clones", "clones share nothing that changes", independent_clones),
        ("every_action", "every action can be taken in a first state", every_action),
        ("mask_values", "masks hold 0 and 1", mask_values),
        ("legal_actions", "a running episode has a legal action", legal_actions),
        ("whole_mask", "mask writes all of the mask and does not read what was there", whole_mask),
        ("repeated_mask", "asking for the mask changes nothing", repeated_mask),
        ("saved_state", "an episode continues from its state", saved_state),
        ("state_as_bytes", "the state survives being written as bytes", state_as_bytes),
        ("state_as_json", "the state survives being written as JSON", state_as_json),
        ("batch", "an environment of a batch does what it does alone", batch),
    ];
    let run = |(name, about, clause): Clause| {
        let outcome = match catch_unwind(AssertUnwindSafe(|| clause(env))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(what)) => Outcome::Failed(what),
            Err(panic) => Outcome::Failed(format!("panicked: {}", panic_message(&*panic))),
        };
        Check { name, about, outcome }
    };
    clauses.into_iter().map(run).for_each(each);
}

/// Applies `look` to two long runs and to the first steps of many others.
fn look_at(env: &dyn AnyEnv, look: impl Fn(&Frame) -> Result<(), String>) -> Found {
    for seed in 0..100 {
        for frame in Run::new(env, seed).take(if seed < 2 { 5000 } else { 3 }) {
            look(&frame).map_err(|what| format!("{frame} of seed {seed}: {what}"))?;
        }
    }
    Ok(Outcome::Passed)
}

fn spaces(env: &dyn AnyEnv) -> Found {
    let space = env.observation_space();
    if space.dtype() != env.dtype() {
        let (a, b) = (space.dtype(), env.dtype());
        return Err(format!(
            "the observation space is of {a:?}, the environment's observations are of {b:?}: make them the same"
        ));
    }
    check_spaces(&space, &env.action_space())
}

/// Checks that neither space is empty, and that their bounds are in order.
pub(super) fn check_spaces(space: &Space, actions: &ActionSpace) -> Found {
    if space.shape().is_empty() || space.len() == 0 {
        return Err(format!("the observation space has shape {:?}: give it at least one element", space.shape()));
    }
    if !(space.scale().is_finite() && space.scale() > 0.0) {
        return Err(format!("the observation space has scale {}: it must be positive and finite", space.scale()));
    }
    bounds("observation", space.low(), space.high())?;
    match actions {
        ActionSpace::Continuous { low, .. } if low.is_empty() => Err("the action space has no dimension: it needs one".into()),
        ActionSpace::Continuous { low, high } => bounds("action", low, high),
        space if space.n_discrete() == Some(0) => Err("the action space has no action: it needs one at least".into()),
        _ => Ok(Outcome::Passed),
    }
}

fn bounds(what: &str, low: &[f32], high: &[f32]) -> Found {
    if low.len() != high.len() {
        return Err(format!("the {what} space has {} lower bounds and {} upper ones", low.len(), high.len()));
    }
    for (dim, (low, high)) in low.iter().zip(high).enumerate() {
        if low.is_nan() || high.is_nan() {
            return Err(format!("the {what} space is [{low}, {high}] in dimension {dim}: a bound may be infinite, but not NaN"));
        }
        if low > high || *low == f32::INFINITY || *high == f32::NEG_INFINITY {
            return Err(format!("the {what} space is [{low}, {high}] in dimension {dim}, which is empty: swap the bounds?"));
        }
    }
    Ok(Outcome::Passed)
}

fn constant_spaces(env: &dyn AnyEnv) -> Found {
    let spaces = |env: &dyn AnyEnv| (env.observation_space(), env.action_space());
    let expected = spaces(env);
    let mut run = Run::new(env, 0);
    for _ in 0..300 {
        let Some(frame) = run.next() else { break };
        let found = spaces(&*run.env);
        if found != expected {
            return Err(format!("{frame} the spaces are {found:?}, before they were {expected:?}: pad, or use a mask"));
        }
    }
    Ok(Outcome::Passed)
}

fn finite_observations(env: &dyn AnyEnv) -> Found {
    look_at(env, |frame| match frame.obs.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(format!("obs[{i}] is {}: look for a division by 0, a root or a logarithm", frame.obs[i])),
        None => Ok(()),
    })
}

fn observations_in_space(env: &dyn AnyEnv) -> Found {
    let space = env.observation_space();
    let (low, high) = (space.low(), space.high());
    // Another check reports numbers that are not finite.
    let lies_outside = |(i, &x): (usize, &f32)| (x.is_finite() && !(low[i] <= x && x <= high[i])).then_some((i, x));
    let is_no_category = |(i, &x): (usize, &f32)| {
        let n = space.categories().get(i).copied().unwrap_or(0);
        (n > 0 && x.fract() != 0.0).then_some((i, x, n))
    };
    look_at(env, |frame| match frame.obs.iter().enumerate().find_map(is_no_category) {
        Some((i, x, n)) => Err(format!("obs[{i}] is {x}, the space has the categories 0 to {}: write an integer", n - 1)),
        None => Ok(()),
    })?;
    look_at(env, |frame| match frame.obs.iter().enumerate().find_map(lies_outside) {
        Some((i, x)) => {
            let (low, high, which) = (low[i], high[i], if frame.done() { ", the last of its episode," } else { "" });
            Err(format!("obs[{i}]{which} is {x}, the space is [{low}, {high}]: clip the observation or widen the space"))
        }
        None => Ok(()),
    })
}

fn finite_rewards(env: &dyn AnyEnv) -> Found {
    look_at(env, |frame| match frame.reward {
        reward if reward.is_finite() => Ok(()),
        reward => Err(format!("the reward is {reward}: look for a division by 0, a root or a logarithm")),
    })
}

fn episodes_end(env: &dyn AnyEnv) -> Found {
    if Run::new(env, 0).take(ENDLESS).any(|frame| frame.done()) {
        return Ok(Outcome::Passed);
    }
    Err(format!("no episode has ended in {ENDLESS} steps of random actions, so no return can be reported: add a time limit"))
}

fn same_seed(env: &dyn AnyEnv) -> Found {
    for seed in 0..3 {
        // One after the other: a hidden counter or clock has advanced in between.
        compare(&Run::new(env, seed).record(), Run::new(env, seed))
            .map_err(|what| format!("{what}, with the same seed {seed}: draw all randomness from the generator passed in"))?;
    }
    Ok(Outcome::Passed)
}

fn whole_row(env: &dyn AnyEnv, at_reset: bool) -> Found {
    let run = |byte| Run { poison: Some((at_reset, byte)), ..Run::new(env, 1) };
    let compared = compare(&run(0x55).record(), run(0xAA));
    compared.map_err(|what| format!("{what}, by what the row held before: write all of it, read none of it"))?;
    Ok(Outcome::Passed)
}

fn whole_row_at_reset(env: &dyn AnyEnv) -> Found {
    whole_row(env, true)
}

fn whole_row_at_step(env: &dyn AnyEnv) -> Found {
    whole_row(env, false)
}

fn other_seeds(env: &dyn AnyEnv) -> Found {
    let run = |seed| Run { action_seed: 0, ..Run::new(env, seed) };
    let expected = run(0).record();
    let mut has_drawn = false;
    for seed in 1..9 {
        let mut other = run(seed);
        if compare(&expected, other.by_ref()).is_err() {
            return Ok(Outcome::Passed);
        }
        has_drawn |= other.has_drawn;
    }
    if has_drawn {
        return Err("random numbers are drawn, but nothing that a learner sees depends on the seed: use what is drawn".into());
    }
    Ok(Outcome::Skipped("no random number is drawn and all seeds give the same: an environment without randomness".into()))
}

fn reset_forgets(env: &dyn AnyEnv) -> Found {
    let expected = Run::new(env, 3).record();
    // The longest run finds sums over episodes: a step counter that is not reset exceeds most time limits.
    for used in [2, 3, 8, 50, 5000] {
        let mut run = Run::new(env, 4);
        run.skip_frames(used);
        let again = Run { env: run.env, ..Run::new(env, 3) };
        compare(&expected, again).map_err(|what| {
            format!("{what}, in an environment fresh and then one reset after {} steps: set everything at a reset", run.step)
        })?;
    }
    Ok(Outcome::Passed)
}

fn independent_clones(env: &dyn AnyEnv) -> Found {
    let advice =
        |what| format!("{what}, alone and then beside a clone: share nothing mutable, neither by an Arc nor by a static");
    let (a, b) = (Run::new(env, 5).record(), Run::new(env, 6).record());
    let (mut beside_a, mut beside_b) = (Run::new(env, 5), Run::new(env, 6));
    for (a, b) in a.iter().zip(&b) {
        let differences = [beside_a.next().and_then(|x| a.difference(&x)), beside_b.next().and_then(|x| b.difference(&x))];
        if let Some(what) = differences.into_iter().flatten().next() {
            return Err(advice(what));
        }
    }
    for used in [1, 10, 100] {
        let mut run = Run::new(env, 7);
        run.skip_frames(used);
        let clone = run.clone();
        compare(&run.record(), clone).map_err(advice)?;
    }
    Ok(Outcome::Passed)
}

fn every_action(env: &dyn AnyEnv) -> Found {
    let middle = |low: f32, high: f32| if low.is_finite() && high.is_finite() { low / 2.0 + high / 2.0 } else { 0.0 };
    let space = env.action_space();
    let actions: Vec<OwnedAction> = match &space {
        // Of more than a few hundred, only the first and the last.
        ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => {
            let n = space.n_discrete().expect("discrete actions");
            (0..n.min(200)).chain(n.saturating_sub(200).max(n.min(200))..n).map(OwnedAction::Discrete).collect()
        }
        ActionSpace::Continuous { low, high } => {
            let extreme = |dim: usize, upper: bool| match if upper { high[dim] } else { low[dim] } {
                bound if bound.is_finite() => bound,
                _ => (if upper { 3.0f32 } else { -3.0 }).max(low[dim]).min(high[dim]),
            };
            let rest: Vec<f32> = low.iter().zip(high).map(|(&l, &h)| middle(l, h).max(l).min(h)).collect();
            let mut actions = vec![rest.clone()];
            for upper in [false, true] {
                actions.push((0..low.len()).map(|dim| extreme(dim, upper)).collect());
                for dim in 0..low.len().min(200) {
                    let mut action = rest.clone();
                    action[dim] = extreme(dim, upper);
                    actions.push(action);
                }
            }
            actions.into_iter().map(OwnedAction::Continuous).collect()
        }
    };
    for action in actions {
        for seed in 0..8 {
            let mut run = Run::new(env, seed);
            run.reset();
            let legal = match action {
                OwnedAction::Discrete(i) if run.mask.get(i as usize) == Some(&0) => "illegal ",
                _ => "",
            };
            let action = &action;
            catch_unwind(AssertUnwindSafe(|| run.take_action(action))).map_err(|panic| {
                let panic = panic_message(&*panic);
                format!(
                    "the {legal}action {:?} in the first state of seed {seed} panics: {panic}: a step may not",
                    action.borrow()
                )
            })?;
        }
    }
    Ok(Outcome::Passed)
}

fn with_masks(env: &dyn AnyEnv, check: impl Fn() -> Found) -> Found {
    if env.action_space().masked() { check() } else { Ok(Outcome::Skipped("the action space has no masks".into())) }
}

fn mask_values(env: &dyn AnyEnv) -> Found {
    with_masks(env, || {
        look_at(env, |frame| match frame.mask.iter().position(|&x| x > 1) {
            Some(i) => Err(format!("mask[{i}] is {}: write 1 for a legal action, 0 for another", frame.mask[i])),
            None => Ok(()),
        })
    })
}

fn legal_actions(env: &dyn AnyEnv) -> Found {
    with_masks(env, || {
        look_at(env, |frame| match frame.terminated || frame.mask.iter().any(|&x| x != 0) {
            true => Ok(()),
            false => Err("the mask is all 0, but the task is not over: terminate it, or add an action that does nothing".into()),
        })
    })
}

fn whole_mask(env: &dyn AnyEnv) -> Found {
    with_masks(env, || {
        let run = |mask_fill| Run { mask_fill, ..Run::new(env, 1) };
        compare(&run(0x55).record(), run(0xAA))
            .map_err(|what| format!("{what}, by what the mask held before: write all of it, read none of it"))?;
        Ok(Outcome::Passed)
    })
}

fn repeated_mask(env: &dyn AnyEnv) -> Found {
    with_masks(env, || {
        let run = |mask_asks| Run { mask_asks, ..Run::new(env, 1) };
        compare(&run(1).record(), run(3)).map_err(|what| {
            format!("{what}, with the mask asked for once and then three times: make it depend on the state alone")
        })?;
        Ok(Outcome::Passed)
    })
}

/// Calls `check` at a few points of running episodes, if the state can be saved.
fn with_states(env: &dyn AnyEnv, check: impl Fn(&Run, AnyState) -> Result<(), String>) -> Found {
    let mut run = Run::new(env, 7);
    for (frames, i) in [1, 1, 1, 3, 8, 27, 110].into_iter().zip(0..) {
        run.skip_frames(frames);
        // The state of an ended episode need not be accepted.
        if run.over {
            run.reset();
        }
        match run.env.state() {
            Some(state) => check(&run, state).map_err(|what| format!("the state at step {}: {what}", run.step))?,
            None if i == 0 => return Ok(Outcome::Skipped("this environment has no state that can be saved".into())),
            None => {
                return Err(format!(
                    "there was a state to save before, but none at step {}: always give one, or never",
                    run.step
                ));
            }
        }
    }
    Ok(Outcome::Passed)
}

fn saved_state(env: &dyn AnyEnv) -> Found {
    with_states(env, |run, state| {
        let expected = run.clone().record();
        let mut used = Run::new(env, 8);
        used.skip_frames(20);
        let again = run.env.state().ok_or("a second call gives none: always give one, or never")?;
        for (mut env, state, which) in [(env.boxed_clone(), state, "a fresh"), (used.env, again, "a used")] {
            env.set_state(state)
                .map_err(|e| format!("set_state of {which} environment refuses it: {e}: accept what state gives"))?;
            compare(&expected, Run { env, ..run.clone() }).map_err(|what| {
                format!("{what}, continued and then restored into {which} environment: save and set every field")
            })?;
        }
        Ok(())
    })
}

/// Compares an environment restored from the state itself with one from a copy.
///
/// `saved_state` reports losses in `state` or `set_state`.
fn copied_state(env: &dyn AnyEnv, copy: impl Fn(&AnyState) -> Result<AnyState, String>) -> Found {
    with_states(env, |run, state| {
        let copied = copy(&state)?;
        let (mut original, mut other) = (env.boxed_clone(), env.boxed_clone());
        if original.set_state(state).is_err() {
            return Ok(());
        }
        other.set_state(copied).map_err(|e| format!("set_state refuses the copy: {e}: serialize every field, and in full"))?;
        let expected = Run { env: original, ..run.clone() }.record();
        compare(&expected, Run { env: other, ..run.clone() })
            .map_err(|what| format!("{what}, restored and then restored from the copy: serialize every field, and in full"))
    })
}

fn state_as_bytes(env: &dyn AnyEnv) -> Found {
    copied_state(env, |state| {
        env.state_through_bytes(state).map_err(|e| {
            format!("{e}: avoid attributes of serde that need a self-describing format, such as untagged or flatten")
        })
    })
}

fn state_as_json(env: &dyn AnyEnv) -> Found {
    copied_state(env, |state| {
        env.state_through_json(state)
            .map_err(|e| format!("{e}: JSON has neither NaN nor infinity (take an Option), and only string keys"))
    })
}

fn batch(env: &dyn AnyEnv) -> Found {
    let (d, a) = (env.observation_space().len(), env.action_space().len());
    for n in [1, 31, 33, 65] {
        let seed = 9;
        let mut alone: Vec<Run> = (0..n).map(|i| Run { index: i as u32, ..Run::new(env, seed) }).collect();
        let mut envs = env.batch(n);
        let mut steps = Steps::new(&*envs);
        let mask = |steps: &Steps, k: usize, i: usize| {
            steps.masks.iter().flat_map(|masks| masks[k][i * a..][..a].to_vec()).collect::<Vec<u8>>()
        };
        let tell = |env_idx: usize, what: String| {
            format!("environment {env_idx} of {n}: {what}, alone and then in the batch: depend on nothing but seed and actions")
        };

        let first: Vec<Frame> = alone.iter_mut().map(Run::reset).collect();
        // As in a run alone: see `mask_fill`.
        let fill_masks = |steps: &mut Steps| steps.masks.iter_mut().flatten().for_each(|masks| masks.fill(1));
        fill_masks(&mut steps);
        envs.reset(seed, &mut steps).map_err(|e| e.to_string())?;
        for (i, first) in first.iter().enumerate() {
            let found = Frame { obs: row(&steps.obs, i, d), mask: mask(&steps, 0, i), ..first.clone() };
            first.difference(&found).map_or(Ok(()), |what| Err(tell(i, what)))?;
        }

        let mut ends = 0;
        for t in 1..=(8_000_000 / (n * d)).clamp(20, 500) {
            let actions: Vec<OwnedAction> = alone.iter().map(Run::action).collect();
            for (i, action) in actions.iter().enumerate() {
                let both = steps.actions.as_mut().zip(action.as_ref()).expect("actions are of the space's kind");
                both.either(
                    |(actions, &action)| actions[i] = action,
                    |(actions, action)| actions[i * a..][..a].copy_from_slice(action),
                );
            }
            fill_masks(&mut steps);
            envs.step(&mut steps).map_err(|e| e.to_string())?;
            for (i, run) in alone.iter_mut().enumerate() {
                let expected = run.take_action(&actions[i]);
                let (rows, k) = if expected.done() { (&steps.final_obs, 1) } else { (&steps.obs, 0) };
                let found = Frame {
                    step: t as u64,
                    first: false,
                    obs: row(rows, i, d),
                    reward: steps.rewards[i],
                    terminated: steps.terminated[i] == 1,
                    truncated: steps.truncated[i] == 1,
                    mask: mask(&steps, k, i),
                };
                expected.difference(&found).map_or(Ok(()), |what| Err(tell(i, what)))?;
                if expected.done() {
                    ends += 1;
                    let first = run.reset();
                    let found = Frame { obs: row(&steps.obs, i, d), mask: mask(&steps, 0, i), ..first.clone() };
                    first.difference(&found).map_or(Ok(()), |what| Err(tell(i, what)))?;
                }
            }
            if t >= 50 && ends >= n {
                break;
            }
        }
    }
    Ok(Outcome::Passed)
}
