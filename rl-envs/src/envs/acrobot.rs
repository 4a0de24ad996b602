//! Acrobot: swing the end of two linked rods above a line by a torque on the joint.
//!
//! Source: Gymnasium 1.3 `Acrobot-v1` (Sutton, 1996; the equations of the book of Sutton and Barto), in f32 (the reference uses
//! f64).
//!
//! - Observation, f32 (6): cosine and sine of the first rod's angle from hanging, cosine and sine of the second's relative to the
//!   first, the two angular velocities (rad/s).
//! - Action, discrete (3): torque of -1, 0 or 1 N m.
//! - Reward: -1 for every step but one that terminates, which gives 0.
//! - `terminated`: the free end is more than a rod's length above the fixed joint.
//! - `truncated`: at step 500. A step may set both.
//! - Start: both angles and both velocities uniform in +-0.1.
//! - State, by field name: `theta1`, `theta2`, `theta1_dot`, `theta2_dot`, `elapsed`.

use serde::{Deserialize, Serialize};

use crate::batch::lanes::{self, Dynamics, Lane};
use crate::{ActionSpace, Canvas, Rng, Space, Step, numerics::math};

use std::f32::consts::PI;

/// Constants of the environment. Both rods are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Gravity, m/s^2.
    pub gravity: f32,
    /// Length of a rod, m.
    pub length: f32,
    /// Mass of a rod, kg.
    pub mass: f32,
    /// Distance from a rod's joint to its centre of mass, m.
    pub center: f32,
    /// Moment of inertia of a rod, kg m^2.
    pub moment: f32,
    /// Torque of an action, N m.
    pub torque: f32,
    /// Duration of a step, s.
    pub tau: f32,
    /// Maximum angular speed of the first rod, rad/s.
    pub max_speed1: f32,
    /// Maximum angular speed of the second rod, rad/s.
    pub max_speed2: f32,
    /// Steps after which an episode is truncated.
    pub max_steps: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            gravity: 9.8,
            length: 1.0,
            mass: 1.0,
            center: 0.5,
            moment: 1.0,
            torque: 1.0,
            tau: 0.2,
            max_speed1: 4.0 * PI,
            max_speed2: 9.0 * PI,
            max_steps: 500,
        }
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Angle of the first rod from hanging, rad, in +-pi.
    pub theta1: f32,
    /// Angle of the second rod relative to the first, rad, in +-pi.
    pub theta2: f32,
    /// Angular velocity of the first rod, rad/s.
    pub theta1_dot: f32,
    /// Angular velocity of the second rod relative to the first, rad/s.
    pub theta2_dot: f32,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

/// The Acrobot environment.
pub type Acrobot = Lane<Params, 5, 6>;

impl Params {
    /// Time derivative of the state (angles, then velocities).
    #[inline(always)]
    fn derivative(&self, [theta1, theta2, theta1_dot, theta2_dot]: [f32; 4], torque: f32) -> [f32; 4] {
        let Self { gravity, length, mass, center, moment, .. } = *self;
        let (sin2, cos2) = math::sin_cos(theta2);
        let coupling = mass * length * center;
        let centered = mass * center * center + moment;
        let d1 = 2.0 * centered + mass * length * length + 2.0 * coupling * cos2;
        let d2 = centered + coupling * cos2;
        let phi2 = mass * center * gravity * math::sin_cos(theta1 + theta2).0;
        let phi1 = -coupling * (theta2_dot * theta2_dot) * sin2 - 2.0 * coupling * theta2_dot * theta1_dot * sin2
            + (mass * center + mass * length) * gravity * math::sin_cos(theta1).0
            + phi2;
        let theta2_acc =
            (torque + d2 / d1 * phi1 - coupling * (theta1_dot * theta1_dot) * sin2 - phi2) / (centered - d2 * d2 / d1);
        let theta1_acc = -(d2 * theta2_acc + phi1) / d1;
        [theta1_dot, theta2_dot, theta1_acc, theta2_acc]
    }
}

/// Returns `y + h k`, element by element.
#[inline(always)]
fn ahead(y: [f32; 4], h: f32, k: [f32; 4]) -> [f32; 4] {
    std::array::from_fn(|i| y[i] + h * k[i])
}

impl Dynamics<5, 6> for Params {
    type State = State;
    type Action = u32;

    fn observation_space(&self) -> Space {
        let high = [1.0, 1.0, 1.0, 1.0, self.max_speed1, self.max_speed2];
        Space::vector(&high.map(|x| -x), &high).with_velocities(&[4, 5])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 3, masked: false }
    }

    fn start(&self, rng: &mut Rng) -> State {
        let [theta1, theta2, theta1_dot, theta2_dot] = std::array::from_fn(|_| rng.uniform_in(-0.1, 0.1));
        State { theta1, theta2, theta1_dot, theta2_dot, elapsed: 0 }
    }

    #[inline(always)]
    fn advance(&self, state: State, action: u32) -> (State, Step) {
        let y = [state.theta1, state.theta2, state.theta1_dot, state.theta2_dot];
        let torque = (action as f32 - 1.0) * self.torque;
        // One step of the classical Runge-Kutta method.
        let k1 = self.derivative(y, torque);
        let k2 = self.derivative(ahead(y, self.tau / 2.0, k1), torque);
        let k3 = self.derivative(ahead(y, self.tau / 2.0, k2), torque);
        let k4 = self.derivative(ahead(y, self.tau, k3), torque);
        let slope = std::array::from_fn(|i| k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
        let [theta1, theta2, theta1_dot, theta2_dot] = ahead(y, self.tau / 6.0, slope);
        let next = State {
            theta1: math::wrap_angle(theta1),
            theta2: math::wrap_angle(theta2),
            theta1_dot: math::clamp(theta1_dot, -self.max_speed1, self.max_speed1),
            theta2_dot: math::clamp(theta2_dot, -self.max_speed2, self.max_speed2),
            elapsed: state.elapsed + 1,
        };
        let height = -math::sin_cos(next.theta1).1 - math::sin_cos(next.theta2 + next.theta1).1;
        let terminated = height > 1.0;
        let reward = if terminated { 0.0 } else { -1.0 };
        (next, Step { reward, terminated, truncated: next.elapsed >= self.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 6] {
        let ((sin1, cos1), (sin2, cos2)) = (math::sin_cos(state.theta1), math::sin_cos(state.theta2));
        let [cos1, sin1, cos2, sin2] = [cos1, sin1, cos2, sin2].map(|x| math::clamp(x, -1.0, 1.0));
        [cos1, sin1, cos2, sin2, state.theta1_dot, state.theta2_dot]
    }

    fn render(&self, state: &State, canvas: &mut Canvas) {
        let length = self.length;
        let along = |[x, y]: [f32; 2], theta: f32| {
            let (sin, cos) = math::sin_cos(theta);
            [x + length * sin, y - length * cos]
        };
        let joint = along([0.0; 2], state.theta1);
        let end = along(joint, state.theta1 + state.theta2);
        let side = 2.2 * length;
        canvas.view(-side..side, -side..side, [250, 250, 247]);
        canvas.rect(-side..side, length - 0.02..length + 0.02, [150, 150, 155]);
        canvas.line([0.0; 2], joint, 0.2 * length, [45, 55, 72]);
        canvas.line(joint, end, 0.2 * length, [221, 122, 53]);
        for center in [[0.0; 2], joint] {
            canvas.disc(center, 0.06 * length, [250, 250, 247]);
        }
    }

    fn fault(&self, state: &State) -> Option<String> {
        let State { theta1, theta2, theta1_dot, theta2_dot, elapsed } = *state;
        let Self { max_speed1, max_speed2, .. } = *self;
        let turn = PI + 1e-5;
        if !(theta1.abs() <= turn && theta2.abs() <= turn) {
            return Some("theta1 and theta2 must be in +-pi".into());
        }
        if !(theta1_dot.abs() <= max_speed1 && theta2_dot.abs() <= max_speed2) {
            return Some(format!("theta1_dot must be in +-{max_speed1}, theta2_dot in +-{max_speed2}"));
        }
        lanes::elapsed_fault(elapsed, self.max_steps)
    }

    #[inline(always)]
    fn pack(state: State) -> [u32; 5] {
        let State { theta1, theta2, theta1_dot, theta2_dot, elapsed } = state;
        [theta1.to_bits(), theta2.to_bits(), theta1_dot.to_bits(), theta2_dot.to_bits(), elapsed]
    }

    #[inline(always)]
    fn unpack([theta1, theta2, theta1_dot, theta2_dot, elapsed]: [u32; 5]) -> State {
        let [theta1, theta2, theta1_dot, theta2_dot] = [theta1, theta2, theta1_dot, theta2_dot].map(f32::from_bits);
        State { theta1, theta2, theta1_dot, theta2_dot, elapsed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_still_stays_and_standing_ends_the_episode() {
        let params = Params::default();
        let (next, outcome) = params.advance(State::default(), 1);
        assert_eq!(next, State { elapsed: 1, ..State::default() });
        assert_eq!(outcome, Step { reward: -1.0, terminated: false, truncated: false });
        let (_, outcome) = params.advance(State { theta1: PI, elapsed: 499, ..State::default() }, 1);
        assert_eq!(outcome, Step { reward: 0.0, terminated: true, truncated: true });
    }

    #[test]
    fn the_derivative_at_rest_follows_the_equations() {
        // Hanging: d1 = 2 * 1.25 + 1 + 1 = 4.5, d2 = 1.25 + 0.5 = 1.75, phi1 = phi2 = 0, so with torque 1
        // theta2_acc = 1 / (1.25 - 1.75^2 / 4.5), theta1_acc = -1.75 theta2_acc / 4.5.
        let [.., acc1, acc2] = Params::default().derivative([0.0; 4], 1.0);
        let expected = 1.0 / (1.25 - 1.75f64 * 1.75 / 4.5);
        assert!((f64::from(acc2) - expected).abs() < 1e-6);
        assert!((f64::from(acc1) + 1.75 * expected / 4.5).abs() < 1e-6);
    }
}
