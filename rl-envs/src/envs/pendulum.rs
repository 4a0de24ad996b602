//! Pendulum: swing a pendulum up and balance it with a torque too weak to lift it.
//!
//! Source: Gymnasium 1.3 `Pendulum-v1`, in f32 (the reference uses f64).
//!
//! - Observation, f32 (3): cosine and sine of the angle from upright, angular velocity (rad/s).
//! - Action, continuous (1): torque, in +-2 N m.
//! - Reward: minus (angle^2 + 0.1 velocity^2 + 0.001 torque^2), of the state before the step, the angle taken in +-pi.
//! - `terminated`: never.
//! - `truncated`: at step 200.
//! - Start: angle uniform in +-pi, velocity uniform in +-1.
//! - State, by field name: `theta`, `theta_dot`, `elapsed`; `theta` is not wrapped.

use serde::{Deserialize, Serialize};

use crate::batch::lanes::{self, Dynamics, Lane};
use crate::{ActionSpace, Canvas, Rng, Space, Step, numerics::math};

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Gravity, m/s^2.
    pub gravity: f32,
    /// Mass of the rod, kg.
    pub mass: f32,
    /// Length of the rod, m.
    pub length: f32,
    /// Duration of a step, s.
    pub tau: f32,
    /// Maximum angular speed, rad/s.
    pub max_speed: f32,
    /// Maximum torque, N m.
    pub max_torque: f32,
    /// Steps after which an episode is truncated.
    ///
    /// The angle is not wrapped: `max_steps * max_speed * tau` must stay below 4096.
    pub max_steps: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self { gravity: 10.0, mass: 1.0, length: 1.0, tau: 0.05, max_speed: 8.0, max_torque: 2.0, max_steps: 200 }
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Angle from upright, rad, not wrapped.
    pub theta: f32,
    /// Angular velocity, rad/s.
    pub theta_dot: f32,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

/// The Pendulum environment.
pub type Pendulum = Lane<Params, 3, 3>;

impl Dynamics<3, 3> for Params {
    type State = State;
    type Action = [f32; 1];

    fn observation_space(&self) -> Space {
        let high = [1.0, 1.0, self.max_speed];
        Space::vector(&high.map(|x| -x), &high).with_velocities(&[2])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Continuous { low: vec![-self.max_torque], high: vec![self.max_torque] }
    }

    fn start(&self, rng: &mut Rng) -> State {
        let theta = rng.uniform_in(-std::f32::consts::PI, std::f32::consts::PI);
        State { theta, theta_dot: rng.uniform_in(-1.0, 1.0), elapsed: 0 }
    }

    #[inline(always)]
    fn advance(&self, state: State, [torque]: [f32; 1]) -> (State, Step) {
        let State { theta, theta_dot, elapsed } = state;
        let angle = math::wrap_angle(theta);
        let reward = -(angle * angle + 0.1 * (theta_dot * theta_dot) + 0.001 * (torque * torque));
        let weight = 3.0 * self.gravity / (2.0 * self.length);
        let inertia = 3.0 / (self.mass * self.length * self.length);
        let theta_dot = theta_dot + (weight * math::sin_cos(theta).0 + inertia * torque) * self.tau;
        let theta_dot = math::clamp(theta_dot, -self.max_speed, self.max_speed);
        let next = State { theta: theta + theta_dot * self.tau, theta_dot, elapsed: elapsed + 1 };
        (next, Step { reward, terminated: false, truncated: next.elapsed >= self.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 3] {
        let (sin, cos) = math::sin_cos(state.theta);
        [math::clamp(cos, -1.0, 1.0), math::clamp(sin, -1.0, 1.0), state.theta_dot]
    }

    fn render(&self, state: &State, canvas: &mut Canvas) {
        let (length, (sin, cos)) = (self.length, math::sin_cos(state.theta));
        let side = 1.2 * length;
        canvas.view(-side..side, -side..side, [250, 250, 247]);
        canvas.line([0.0, 0.0], [length * -sin, length * cos], 0.16 * length, [221, 122, 53]);
        canvas.disc([0.0, 0.0], 0.05 * length, [45, 55, 72]);
    }

    fn fault(&self, state: &State) -> Option<String> {
        let State { theta, theta_dot, elapsed } = *state;
        let (max_theta, max_speed) = (math::SIN_COS_MAX / 2.0, self.max_speed);
        if !(theta.abs() <= max_theta && theta_dot.abs() <= max_speed) {
            return Some(format!("theta must be in +-{max_theta}, theta_dot in +-{max_speed}"));
        }
        lanes::elapsed_fault(elapsed, self.max_steps)
    }

    #[inline(always)]
    fn pack(state: State) -> [u32; 3] {
        [state.theta.to_bits(), state.theta_dot.to_bits(), state.elapsed]
    }

    #[inline(always)]
    fn unpack([theta, theta_dot, elapsed]: [u32; 3]) -> State {
        State { theta: f32::from_bits(theta), theta_dot: f32::from_bits(theta_dot), elapsed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_follows_the_equations() {
        // theta' = 1, one turn on: v' = 2 + (15 sin 1 + 3 * 0.5) 0.05; cost 1 + 0.1 * 4 + 0.001 * 0.25
        let theta = 1.0 + std::f32::consts::TAU;
        let (next, outcome) = Params::default().advance(State { theta, theta_dot: 2.0, elapsed: 198 }, [0.5]);
        let velocity = 2.0 + (15.0 * 1f64.sin() + 1.5) * 0.05;
        assert!((f64::from(next.theta_dot) - velocity).abs() < 1e-6);
        assert!((f64::from(next.theta - theta) - velocity * 0.05).abs() < 1e-6);
        assert!((outcome.reward + 1.40025).abs() < 2e-6);
        assert!(!outcome.truncated && Params::default().advance(next, [0.0]).1.truncated);
    }

    #[test]
    fn speed_is_bounded() {
        let (next, _) = Params::default().advance(State { theta: 1.5, theta_dot: 7.9, elapsed: 0 }, [2.0]);
        assert_eq!(next.theta_dot, 8.0);
    }
}
