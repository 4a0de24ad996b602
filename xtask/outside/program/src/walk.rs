//! A walk on a line: start in the middle, step left or right, 50 steps at most.
//!
//! Wins 1 at the right end, loses at the left one.

use rl_envs::{Action, ActionSpace, Canvas, Env, Error, Rng, Space, Step};
use serde::{Deserialize, Serialize};

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Walk {
    place: i32,
    elapsed: u32,
}

impl Env for Walk {
    type Obs = f32;
    type State = Self;

    fn observation_space(&self) -> Space {
        Space::vector(&[-4.0], &[4.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) {
        *self = Self::default();
        obs[0] = 0.0;
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Step {
        self.place += if action.discrete() == 1 { 1 } else { -1 };
        self.elapsed += 1;
        obs[0] = self.place as f32;
        let reward = if self.place == 4 { 1.0 } else { 0.0 };
        Step { reward, terminated: self.place.abs() == 4, truncated: self.elapsed == 50 }
    }

    fn render(&self, canvas: &mut Canvas) {
        canvas.view(-5.0..5.0, -1.0..1.0, [255, 255, 255]);
        let place = self.place as f32;
        canvas.rect(place - 0.5..place + 0.5, -0.5..0.5, [0, 0, 0]);
    }

    fn state(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn set_state(&mut self, state: Self) -> Result<(), Error> {
        if state.place.abs() >= 4 || state.elapsed >= 50 {
            return Err(Error::BadState("the walk is over".into()));
        }
        *self = state;
        Ok(())
    }
}
