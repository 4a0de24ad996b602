//! Errors of new transitions, by the values of the policy that acted.
//!
//! Source: Horgan et al., "Distributed Prioritized Experience Replay" (Ape-X), 2018.
//!
//! Values pass through the windows of n steps like observations of one element, so that their errors `sum + discount V(s') -
//! Q(s, a)` come in the order of the transitions.

use rl_envs::{ActionKind, ActionSlice, Dtype, ObsRows, ObsSlice, StepSlices};

use crate::memory::{check, filled};
use crate::replay::transition::Windows;
use crate::rollout::columns::ActedValues;
use crate::{Error, TransitionShape};

/// Errors of the transitions that a step completes.
#[derive(Clone, Debug)]
pub(crate) struct ActedErrors {
    shape: TransitionShape,
    pub(crate) windows: Windows,
    unknown: Vec<f32>, // (N)
    errors: Vec<f32>,  // (transitions)
}

/// Shape of the transitions between values.
fn of_values(shape: &TransitionShape) -> TransitionShape {
    TransitionShape { obs_len: 1, obs: Dtype::F32, stack: 1, actions: ActionKind::Continuous { len: 0 }, ..*shape }
}

impl ActedErrors {
    /// Bytes of the windows, of the errors, and of as many indices and priorities.
    pub(crate) fn bytes(shape: &TransitionShape) -> u128 {
        let (n_envs, n_step) = (shape.n_envs as u128, shape.n_step as u128);
        let rest = n_envs.saturating_mul(4 + 12 * n_step);
        Windows::bytes(&of_values(shape)).saturating_add(rest)
    }

    /// Allocates windows for transitions of this shape.
    ///
    /// The values of `waiting` steps are not known.
    pub(crate) fn new(shape: &TransitionShape, waiting: Option<&Windows>) -> Result<Self, Error> {
        check(1, Self::bytes(shape), 0)?;
        let shape = of_values(shape);
        let mut windows = Windows::new(&shape)?;
        if let Some(steps) = waiting {
            windows.obs = ObsRows::F32(filled(shape.n_envs * shape.n_step, f32::NAN)?);
            windows.oldest.copy_from_slice(&steps.oldest);
            windows.waiting.copy_from_slice(&steps.waiting);
        }
        let (unknown, errors) = (filled(shape.n_envs, f32::NAN)?, filled(shape.n_envs * shape.n_step, 0.0)?);
        Ok(Self { shape, windows, unknown, errors })
    }

    /// Adds a step of the environments from `first_env` on.
    ///
    /// Returns an error for each transition that the step completes. It is NaN if a value is not known: without `values`, and
    /// after a truncation, where the policy did not act.
    pub(crate) fn push(&mut self, first_env: usize, step: &StepSlices<'_>, values: Option<ActedValues<'_>>) -> &[f32] {
        let Self { shape, windows, unknown, errors } = self;
        let unknown = &unknown[..step.rewards.len()];
        let ActedValues { taken, next } = values.unwrap_or(ActedValues { taken: unknown, next: unknown });
        let (obs, final_obs) = (ObsSlice::F32(next), ObsSlice::F32(unknown));
        let step = StepSlices { obs, final_obs, actions: ActionSlice::Continuous(&[]), masks: None, ..*step };
        errors.clear();
        windows.push(shape, first_env, ObsSlice::F32(taken), &step, |transition| {
            let value = |obs: ObsSlice<'_>| obs.either(|values| values[0], |_| f32::NAN);
            let future = if transition.discount == 0.0 { 0.0 } else { transition.discount * value(transition.next_obs) };
            errors.push(transition.reward + future - value(transition.obs));
        });
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrioritizedReplayBuffer;
    use crate::testing::{History, Made, shape, shape_of};

    fn numbers(obs: ObsSlice<'_>) -> Vec<f32> {
        obs.either(<[f32]>::to_vec, |obs| obs.iter().map(|&x| f32::from(x)).collect())
    }

    /// Returns values by a function of observations that the reference computes, too.
    fn values(obs: ObsSlice<'_>, next_obs: ObsSlice<'_>, d: usize) -> [Vec<f32>; 2] {
        let [obs, next_obs] = [numbers(obs), numbers(next_obs)];
        let value = |row: &[f32]| -> f32 { row.iter().sum() };
        [obs.chunks(d).map(|row| 2.0 * value(row)).collect(), next_obs.chunks(d).map(value).collect()]
    }

    fn error(made: &Made) -> f32 {
        made.reward + made.discount * made.next_obs.iter().sum::<f32>() - 2.0 * made.obs.iter().sum::<f32>()
    }

    #[test]
    fn first_priorities_are_those_of_a_slow_reference() {
        let (mut known, mut unknown) = (0, 0);
        for shape in [
            shape(3, 1),
            shape(3, 4),
            TransitionShape { n_envs: 2, n_step: 3, ..shape_of(2, Some(3), 1) },
            TransitionShape { n_envs: 7, ..shape_of(3, None, 4) },
        ] {
            let capacity = 40;
            let buffer = PrioritizedReplayBuffer::new(shape, capacity, 1.0, 0.0).expect("fits");
            let mut buffer = buffer.with_acted_priorities().expect("fits");
            let (mut history, mut n_made, mut largest, mut expected) =
                (History::new(shape, 3, 0.2), 0, 1.0f32, vec![0.0; capacity]);
            for _ in 0..60 {
                let cut = history.step(|obs, step| {
                    let [taken, next] = values(obs, step.obs, shape.obs_len);
                    buffer.push_acted(None, obs, step, ActedValues { taken: &taken, next: &next }).expect("finite");
                    let final_obs = numbers(step.final_obs);
                    let rows = final_obs.chunks(shape.obs_len).map(<[f32]>::to_vec);
                    let flags = step.terminated.iter().zip(step.truncated);
                    rows.zip(flags).filter(|(_, flags)| *flags == (&0, &1)).map(|(row, _)| row).collect::<Vec<_>>()
                });
                for made in &history.made[n_made..] {
                    let is_known = !cut.contains(&made.next_obs);
                    *(if is_known { &mut known } else { &mut unknown }) += 1;
                    let priority = if is_known { error(made).abs() } else { largest };
                    largest = largest.max(priority);
                    expected[n_made % capacity] = priority;
                    n_made += 1;
                }
                for (i, (priority, expected)) in buffer.priorities().iter().zip(&expected).enumerate() {
                    if buffer.replay().holds(i) {
                        assert!((priority - expected).abs() <= 1e-5 * expected, "{priority} at {i} instead of {expected}");
                    }
                }
            }
        }
        assert!(known > 400 && unknown > 40, "{known} errors, {unknown} without a value");
    }

    #[test]
    fn environments_at_their_own_pace_have_the_same_priorities() {
        let shape = shape(3, 3);
        let [mut together, mut alone] = [0; 2].map(|_| {
            PrioritizedReplayBuffer::new(shape, 400, 1.0, 0.0)
                .and_then(PrioritizedReplayBuffer::with_acted_priorities)
                .expect("fits")
        });
        let mut history = History::new(shape, 3, 0.1);
        for _ in 0..40 {
            history.step(|obs, step| {
                let [taken, next] = values(obs, step.obs, 4);
                let values = ActedValues { taken: &taken, next: &next };
                together.push_acted(None, obs, step, values).expect("finite");
                for env in 0..3 {
                    alone.push_acted(Some(env), obs.row(env, 4), &step.env(env), values.env(env)).expect("finite");
                }
            });
        }
        assert_eq!(together.priorities().iter().collect::<Vec<_>>(), alone.priorities().iter().collect::<Vec<_>>());
        assert!(together.replay().len() > 110 && history.made.iter().any(|made| made.discount == 0.0));
    }

    #[test]
    fn waiting_values_are_forgotten_with_their_steps() {
        let shape = shape(2, 3);
        let buffer = PrioritizedReplayBuffer::new(shape, 100, 1.0, 0.0).expect("fits");
        let mut buffer = buffer.with_acted_priorities().expect("fits");
        let mut history = History::new(shape, 3, 0.0);
        let mut step = |buffer: &mut PrioritizedReplayBuffer, is_known: bool| {
            history.step(|obs, step| {
                let [taken, next] = values(obs, step.obs, 4);
                let values = ActedValues { taken: &taken, next: &next };
                if is_known { buffer.push_acted(None, obs, step, values) } else { buffer.push(obs, step) }.expect("finite")
            })
        };
        assert_eq!([0; 3].map(|_| step(&mut buffer, true)), [0, 0, 2]);
        buffer.forget_waiting_of(0);
        assert_eq!([0; 3].map(|_| step(&mut buffer, true)), [1, 1, 2], "environment 0 waits for three steps again");
        buffer.forget_waiting();
        assert_eq!([0; 3].map(|_| step(&mut buffer, true)), [0, 0, 2]);
        // Steps without values make transitions of the largest priority, here of the largest error before.
        let largest = buffer.priorities().iter().fold(1.0, f32::max);
        let n = buffer.replay().len();
        assert_eq!([0; 3].map(|_| step(&mut buffer, false)), [2; 3]);
        assert_eq!(buffer.priorities().iter().skip(n).take(6).collect::<Vec<_>>(), [largest; 6]);
        buffer.clear();
        assert_eq!([0; 3].map(|_| step(&mut buffer, true)), [0, 0, 2]);
        // Steps that wait when errors begin to count have no values.
        let mut late = PrioritizedReplayBuffer::new(shape, 100, 1.0, 0.0).expect("fits");
        assert_eq!([0; 2].map(|_| step(&mut late, true)), [0, 0]);
        let mut late = late.with_acted_priorities().expect("fits");
        assert_eq!([0; 3].map(|_| step(&mut late, true)), [2; 3]);
        let priorities: Vec<f32> = late.priorities().iter().take(6).collect();
        assert!(priorities[..4] == [1.0; 4] && priorities[4] != 1.0 && priorities[5] != 1.0, "{priorities:?}");
    }
}
