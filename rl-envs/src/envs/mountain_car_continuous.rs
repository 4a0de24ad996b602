//! MountainCarContinuous: drive a weak car out of a valley with little force.
//!
//! Source: Gymnasium 1.3 `MountainCarContinuous-v0` (Moore, 1990), in f32 (the reference uses f64).
//!
//! - Observation, f32 (2): position along the track (the valley's bottom is at -0.52), velocity (per step).
//! - Action, continuous (1): force, in +-1.
//! - Reward: -0.1 times the square of the force, and 100 more for the step that reaches the goal.
//! - `terminated`: the position reaches 0.45 and the car does not move backwards.
//! - `truncated`: at step 999. A step may set both.
//! - Start: position uniform in -0.6 to -0.4, at rest.
//! - State, by field name: `position`, `velocity`, `elapsed`.
//!
//! The car and its valley are those of [`mountain_car`]; engine, goal, limit and reward differ.

use crate::batch::lanes::{Dynamics, Lane};
use crate::envs::mountain_car;
use crate::{ActionSpace, Canvas, Rng, Space, Step};

pub use crate::envs::mountain_car::State;

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Constants of the car and its valley.
    pub car: mountain_car::Params,
}

impl Default for Params {
    fn default() -> Self {
        let car = mountain_car::Params { force: 0.0015, goal_position: 0.45, max_steps: 999, ..mountain_car::Params::default() };
        Self { car }
    }
}

/// The MountainCarContinuous environment.
pub type MountainCarContinuous = Lane<Params, 3, 2>;

impl Dynamics<3, 2> for Params {
    type State = State;
    type Action = [f32; 1];

    fn observation_space(&self) -> Space {
        self.car.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Continuous { low: vec![-1.0], high: vec![1.0] }
    }

    fn start(&self, rng: &mut Rng) -> State {
        self.car.start(rng)
    }

    #[inline(always)]
    fn advance(&self, state: State, [force]: [f32; 1]) -> (State, Step) {
        let (next, at_goal) = self.car.drive(state, force * self.car.force);
        let reward = if at_goal { 100.0 } else { 0.0 } - 0.1 * (force * force);
        (next, Step { reward, terminated: at_goal, truncated: next.elapsed >= self.car.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 2] {
        self.car.observe(state)
    }

    fn render(&self, state: &State, canvas: &mut Canvas) {
        self.car.render(state, canvas);
    }

    fn fault(&self, state: &State) -> Option<String> {
        self.car.fault(state)
    }

    #[inline(always)]
    fn pack(state: State) -> [u32; 3] {
        mountain_car::Params::pack(state)
    }

    #[inline(always)]
    fn unpack(words: [u32; 3]) -> State {
        mountain_car::Params::unpack(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_costs_and_the_goal_pays() {
        let params = Params::default();
        let state = State { position: -0.5, velocity: 0.0, elapsed: 0 };
        let (_, outcome) = params.advance(state, [0.5]);
        assert_eq!(outcome, Step { reward: -0.1 * 0.25, terminated: false, truncated: false });
        let (_, outcome) = params.advance(State { position: 0.44, velocity: 0.05, elapsed: 998 }, [-1.0]);
        assert_eq!(outcome, Step { reward: 100.0 - 0.1, terminated: true, truncated: true });
    }

    #[test]
    fn one_step_follows_the_equations() {
        // v' = 0.01 + 0.5 * 0.0015 - 0.0025 cos(-1.5), x' = -0.5 + v'
        let (next, _) = Params::default().advance(State { position: -0.5, velocity: 0.01, elapsed: 7 }, [0.5]);
        let velocity = 0.01075 - 0.0025 * (-1.5f64).cos();
        assert!((f64::from(next.velocity) - velocity).abs() < 1e-8);
        assert!((f64::from(next.position) - (velocity - 0.5)).abs() < 1e-7);
    }
}
