//! CartPole: balance a pole on a cart by pushing the cart left or right.
//!
//! Source: Gymnasium 1.3 `CartPole-v1` (Barto, Sutton and Anderson, 1983), in f32 (the reference uses f64).
//!
//! - Observation, f32 (4): position of the cart (m), its velocity (m/s), angle of the pole from upright (rad), its angular
//!   velocity (rad/s).
//! - Action, discrete (2): push left (0) or right (1) with 10 N.
//! - Reward: 1 for every step, the last one included.
//! - `terminated`: the cart leaves +-2.4 m or the pole leaves +-12 degrees.
//! - `truncated`: at step 500. A step may set both.
//! - Start: each of the four uniform in +-0.05.
//! - State, by field name: `x`, `x_dot`, `theta`, `theta_dot`, `elapsed`.

use serde::{Deserialize, Serialize};

use crate::batch::lanes::{self, Dynamics, Lane};
use crate::{ActionSpace, Canvas, Rng, Space, Step, numerics::math};

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Gravity, m/s^2.
    pub gravity: f32,
    /// Mass of the cart, kg.
    pub cart_mass: f32,
    /// Mass of the pole, kg.
    pub pole_mass: f32,
    /// Half the length of the pole, m.
    pub half_length: f32,
    /// Force of a push, N.
    pub force: f32,
    /// Duration of a step, s.
    pub tau: f32,
    /// Distance from the centre beyond which the cart fails, m.
    pub x_limit: f32,
    /// Angle beyond which the pole fails, rad.
    pub theta_limit: f32,
    /// Steps after which an episode is truncated.
    pub max_steps: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            gravity: 9.8,
            cart_mass: 1.0,
            pole_mass: 0.1,
            half_length: 0.5,
            force: 10.0,
            tau: 0.02,
            x_limit: 2.4,
            theta_limit: 12.0 * 2.0 * std::f32::consts::PI / 360.0,
            max_steps: 500,
        }
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Position of the cart, m.
    pub x: f32,
    /// Velocity of the cart, m/s.
    pub x_dot: f32,
    /// Angle of the pole from upright, rad.
    pub theta: f32,
    /// Angular velocity of the pole, rad/s.
    pub theta_dot: f32,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

/// The CartPole environment.
pub type CartPole = Lane<Params, 5, 4>;

impl Dynamics<5, 4> for Params {
    type State = State;
    type Action = u32;

    fn observation_space(&self) -> Space {
        // The last observation of an episode may exceed the limits, so the bounds are twice as wide.
        let high = [2.0 * self.x_limit, f32::INFINITY, 2.0 * self.theta_limit, f32::INFINITY];
        Space::vector(&high.map(|x| -x), &high).with_velocities(&[1, 3])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn start(&self, rng: &mut Rng) -> State {
        let [x, x_dot, theta, theta_dot] = std::array::from_fn(|_| rng.uniform_in(-0.05, 0.05));
        State { x, x_dot, theta, theta_dot, elapsed: 0 }
    }

    #[inline(always)]
    fn advance(&self, state: State, action: u32) -> (State, Step) {
        let State { x, x_dot, theta, theta_dot, elapsed } = state;
        let force = if action == 1 { self.force } else { -self.force };
        let total_mass = self.cart_mass + self.pole_mass;
        let pole_moment = self.pole_mass * self.half_length;
        let (sin, cos) = math::sin_cos(theta);
        let temp = (force + pole_moment * (theta_dot * theta_dot) * sin) / total_mass;
        let theta_acc =
            (self.gravity * sin - cos * temp) / (self.half_length * (4.0 / 3.0 - self.pole_mass * (cos * cos) / total_mass));
        let x_acc = temp - pole_moment * theta_acc * cos / total_mass;
        let next = State {
            x: x + self.tau * x_dot,
            x_dot: x_dot + self.tau * x_acc,
            theta: theta + self.tau * theta_dot,
            theta_dot: theta_dot + self.tau * theta_acc,
            elapsed: elapsed + 1,
        };
        let terminated = (next.x.abs() > self.x_limit) | (next.theta.abs() > self.theta_limit);
        (next, Step { reward: 1.0, terminated, truncated: next.elapsed >= self.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 4] {
        [state.x, state.x_dot, state.theta, state.theta_dot]
    }

    fn render(&self, state: &State, canvas: &mut Canvas) {
        let (limit, length, x) = (self.x_limit, 2.0 * self.half_length, state.x);
        let (sin, cos) = math::sin_cos(state.theta);
        canvas.view(-limit - 0.3..limit + 0.3, -0.5 * length..1.5 * length, [250, 250, 247]);
        canvas.rect(-limit..limit, -0.02..0.02, [150, 150, 155]);
        for end in [-limit, limit] {
            canvas.rect(end - 0.02..end + 0.02, -0.12..0.12, [150, 150, 155]);
        }
        canvas.rect(x - 0.25..x + 0.25, -0.14..0.14, [45, 55, 72]);
        canvas.line([x, 0.0], [x + length * sin, length * cos], 0.1, [221, 122, 53]);
        canvas.disc([x, 0.0], 0.04, [250, 250, 247]);
    }

    fn fault(&self, state: &State) -> Option<String> {
        let State { x, x_dot, theta, theta_dot, elapsed } = *state;
        let Self { x_limit, theta_limit, tau, .. } = *self;
        if !(x.abs() <= x_limit && theta.abs() <= theta_limit) {
            return Some(format!("x must be in +-{x_limit}, theta in +-{theta_limit}"));
        }
        // Anything faster leaves the observation space in one step.
        let (max_x_dot, max_theta_dot) = (x_limit / tau, theta_limit / tau);
        if !(x_dot.abs() <= max_x_dot && theta_dot.abs() <= max_theta_dot) {
            return Some(format!("x_dot must be in +-{max_x_dot}, theta_dot in +-{max_theta_dot}"));
        }
        lanes::elapsed_fault(elapsed, self.max_steps)
    }

    #[inline(always)]
    fn pack(state: State) -> [u32; 5] {
        let State { x, x_dot, theta, theta_dot, elapsed } = state;
        [x.to_bits(), x_dot.to_bits(), theta.to_bits(), theta_dot.to_bits(), elapsed]
    }

    #[inline(always)]
    fn unpack([x, x_dot, theta, theta_dot, elapsed]: [u32; 5]) -> State {
        let [x, x_dot, theta, theta_dot] = [x, x_dot, theta, theta_dot].map(f32::from_bits);
        State { x, x_dot, theta, theta_dot, elapsed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env as _;

    fn step_from(state: State) -> Step {
        Params::default().advance(state, 1).1
    }

    #[test]
    fn leaving_the_track_or_falling_terminates_and_the_limit_truncates() {
        let still = State::default();
        assert_eq!(step_from(still), Step { reward: 1.0, terminated: false, truncated: false });
        assert_eq!(step_from(State { elapsed: 498, ..still }), Step { reward: 1.0, terminated: false, truncated: false });
        assert_eq!(step_from(State { elapsed: 499, ..still }), Step { reward: 1.0, terminated: false, truncated: true });
        for fallen in [
            State { x: 2.39, x_dot: 1.0, ..still },
            State { x: -2.39, x_dot: -1.0, ..still },
            State { theta: 0.209, theta_dot: 1.0, ..still },
            State { theta: -0.209, theta_dot: -1.0, ..still },
        ] {
            assert_eq!(step_from(fallen), Step { reward: 1.0, terminated: true, truncated: false });
            assert!(step_from(State { elapsed: 499, ..fallen }).truncated, "a step may set both flags");
        }
    }

    #[test]
    fn one_step_from_rest_follows_the_equations() {
        // From rest: temp = 10 / 1.1, theta_acc = -temp / (0.5 (4/3 - 0.1 / 1.1)), x_acc = temp - 0.05 theta_acc / 1.1.
        let (next, _) = Params::default().advance(State::default(), 1);
        let temp = 10.0 / 1.1f64;
        let theta_acc = -temp / (0.5 * (4.0 / 3.0 - 0.1 / 1.1));
        let x_acc = temp - 0.05 * theta_acc / 1.1;
        assert!((f64::from(next.x_dot) - 0.02 * x_acc).abs() < 1e-7);
        assert!((f64::from(next.theta_dot) - 0.02 * theta_acc).abs() < 1e-7);
        assert_eq!((next.x, next.theta, next.elapsed), (0.0, 0.0, 1), "positions move by the old velocities");
    }

    #[test]
    fn it_is_drawn_with_the_pole_up_and_falling_to_its_side() {
        // 5.4 m by 2 m at 100 pixels a metre: the cart at x = 1 m is 370 pixels from the left, 150 from the top.
        let picture = |theta| {
            let mut env = CartPole::default();
            env.set_state(State { x: 1.0, theta, ..State::default() }).unwrap();
            let mut canvas = Canvas::new(540, 400);
            env.render(&mut canvas);
            assert_eq!((canvas.width(), canvas.height()), (540, 200));
            canvas
        };
        let (upright, right) = (picture(0.0), picture(0.2));
        let (pole, cart) = ([221, 122, 53], [45, 55, 72]);
        assert_eq!([upright.pixel(370, 60), upright.pixel(350, 150)], [pole, cart]);
        assert_ne!(right.pixel(370, 60), pole);
        assert_eq!(right.pixel(388, 60), pole, "sin 0.2 = 0.199: 18 pixels to the right at 0.9 m");
    }

    #[test]
    fn a_state_that_cannot_be_is_refused() {
        let mut env = CartPole::default();
        assert!(env.set_state(State { x: f32::NAN, ..State::default() }).is_err());
        assert!(env.set_state(State { theta_dot: 1e18, ..State::default() }).is_err());
        assert!(env.set_state(State { theta: -0.21, ..State::default() }).is_err(), "the pole has fallen");
        assert!(env.set_state(State { elapsed: 500, ..State::default() }).is_err());
        assert!(env.set_state(State { x: 1.0, elapsed: 499, ..State::default() }).is_ok());
    }
}
