//! MountainCar: drive an underpowered car out of a valley by swinging to and fro.
//!
//! Source: Gymnasium 1.3 `MountainCar-v0` (Moore, 1990), in f32 (the reference uses f64).
//!
//! - Observation, f32 (2): position along the track (the valley's bottom is at -0.52), velocity (per step).
//! - Action, discrete (3): accelerate to the left (0), not at all (1), to the right (2).
//! - Reward: -1 for every step, the last one included.
//! - `terminated`: the position reaches 0.5 and the car does not move backwards.
//! - `truncated`: at step 200. A step may set both.
//! - Start: position uniform in -0.6 to -0.4, at rest.
//! - State, by field name: `position`, `velocity`, `elapsed`.

use serde::{Deserialize, Serialize};

use crate::batch::lanes::{self, Dynamics, Lane};
use crate::{ActionSpace, Canvas, Rng, Space, Step, numerics::math};

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Left end of the track, where the car stops.
    pub min_position: f32,
    /// Right end of the track.
    pub max_position: f32,
    /// Maximum speed, per step.
    pub max_speed: f32,
    /// Position of the goal.
    pub goal_position: f32,
    /// Minimum velocity at the goal.
    pub goal_velocity: f32,
    /// Acceleration by the engine at full force.
    pub force: f32,
    /// Acceleration by the steepest slope.
    pub gravity: f32,
    /// Steps after which an episode is truncated.
    pub max_steps: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            min_position: -1.2,
            max_position: 0.6,
            max_speed: 0.07,
            goal_position: 0.5,
            goal_velocity: 0.0,
            force: 0.001,
            gravity: 0.0025,
            max_steps: 200,
        }
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Position along the track.
    pub position: f32,
    /// Velocity, per step.
    pub velocity: f32,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

/// The MountainCar environment.
pub type MountainCar = Lane<Params, 3, 2>;

impl Params {
    /// Takes a step with engine acceleration `push`; returns true at the goal.
    #[inline(always)]
    pub(crate) fn drive(&self, state: State, push: f32) -> (State, bool) {
        let State { position, velocity, elapsed } = state;
        let velocity = velocity + (push - self.gravity * math::sin_cos(3.0 * position).1);
        let velocity = math::clamp(velocity, -self.max_speed, self.max_speed);
        let position = math::clamp(position + velocity, self.min_position, self.max_position);
        let stopped = (position == self.min_position) & (velocity < 0.0);
        let next = State { position, velocity: if stopped { 0.0 } else { velocity }, elapsed: elapsed + 1 };
        (next, (next.position >= self.goal_position) & (next.velocity >= self.goal_velocity))
    }
}

impl Dynamics<3, 2> for Params {
    type State = State;
    type Action = u32;

    fn observation_space(&self) -> Space {
        Space::vector(&[self.min_position, -self.max_speed], &[self.max_position, self.max_speed]).with_velocities(&[1])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 3, masked: false }
    }

    fn start(&self, rng: &mut Rng) -> State {
        State { position: rng.uniform_in(-0.6, -0.4), velocity: 0.0, elapsed: 0 }
    }

    #[inline(always)]
    fn advance(&self, state: State, action: u32) -> (State, Step) {
        let (next, at_goal) = self.drive(state, (action as f32 - 1.0) * self.force);
        (next, Step { reward: -1.0, terminated: at_goal, truncated: next.elapsed >= self.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 2] {
        [state.position, state.velocity]
    }

    fn render(&self, state: &State, canvas: &mut Canvas) {
        let height = |x: f32| 0.45 * math::sin_cos(3.0 * x).0 + 0.55;
        canvas.view(self.min_position..self.max_position, 0.0..1.3, [250, 250, 247]);
        let steps = 60;
        let at = |i: i32| self.min_position + (self.max_position - self.min_position) * (i as f32 / steps as f32);
        for i in 0..steps {
            canvas.line([at(i), height(at(i))], [at(i + 1), height(at(i + 1))], 0.02, [150, 150, 155]);
        }
        let goal = self.goal_position;
        canvas.line([goal, height(goal)], [goal, height(goal) + 0.2], 0.01, [45, 55, 72]);
        let flag = height(goal) + 0.2;
        canvas.polygon(&[[goal, flag], [goal, flag - 0.08], [goal + 0.08, flag - 0.04]], [221, 122, 53]);
        canvas.disc([state.position, height(state.position) + 0.05], 0.05, [45, 55, 72]);
    }

    fn fault(&self, state: &State) -> Option<String> {
        let State { position, velocity, elapsed } = *state;
        if !self.observation_space().contains(&[position, velocity]) {
            let Self { min_position, max_position, max_speed, .. } = self;
            return Some(format!("position must be in {min_position} to {max_position}, velocity in +-{max_speed}"));
        }
        lanes::elapsed_fault(elapsed, self.max_steps)
    }

    #[inline(always)]
    fn pack(state: State) -> [u32; 3] {
        [state.position.to_bits(), state.velocity.to_bits(), state.elapsed]
    }

    #[inline(always)]
    fn unpack([position, velocity, elapsed]: [u32; 3]) -> State {
        State { position: f32::from_bits(position), velocity: f32::from_bits(velocity), elapsed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_stops_the_car_and_the_goal_ends_the_episode() {
        let params = Params::default();
        let state = |position, velocity| State { position, velocity, elapsed: 0 };
        let (wall, outcome) = params.advance(state(-1.19, -0.06), 0);
        assert_eq!((wall.position, wall.velocity, outcome.terminated), (-1.2, 0.0, false));
        let (goal, outcome) = params.advance(state(0.48, 0.05), 2);
        assert!(goal.position > 0.5 && outcome.terminated && !outcome.truncated);
        let (_, outcome) = params.advance(State { elapsed: 199, ..state(-0.5, 0.0) }, 1);
        assert!(outcome.truncated && !outcome.terminated);
    }

    #[test]
    fn one_step_follows_the_equations() {
        // v' = 0.01 + 0.001 - 0.0025 cos(-1.5), x' = -0.5 + v'
        let (next, _) = Params::default().advance(State { position: -0.5, velocity: 0.01, elapsed: 7 }, 2);
        let velocity = 0.011 - 0.0025 * (-1.5f64).cos();
        assert!((f64::from(next.velocity) - velocity).abs() < 1e-8);
        assert!((f64::from(next.position) - (velocity - 0.5)).abs() < 1e-7);
        assert_eq!(next.elapsed, 8);
    }
}
