//! Freeway: cross a road of eight lanes again and again, between cars.
//!
//! Source: MinAtar 1.0.15's `Freeway` (Young and Tian, 2019).
//!
//! - Observation, u8 (7, 10, 10), 1 for yes: the chicken (column 4), the cars (rows 1 to 8), then the cell behind each car, in
//!   plane 1 + k for a car that moves in every (k + 1)-th step, k from 1 to 5.
//! - Action, discrete (3), MinAtar's minimal set: nothing (0), up (1), down (2). With a chance of 0.1 the last action is repeated
//!   instead (sticky actions). The chicken moves in every third step at most.
//! - Reward: 1 at the top row, from where the chicken returns to the bottom row, and all cars get new velocities.
//! - A car that meets the chicken sends it to the bottom row.
//! - `terminated`: never.
//! - `truncated`: at step 2500.
//! - Start: the chicken in row 9, all cars in column 0, each with one of ten velocities (five speeds, two directions),
//!   uniformly. Cars that leave the board return at its other side.
//! - State, by field name: `pos` (the chicken's row), `move_timer` (steps until it may move), `car_x`, `car_timer` (steps until
//!   the car moves), `car_speed` (k; negative to the left), `last_action`, `elapsed`.
//!
//! Departures from the reference: step 2500 truncates (there step 2501 terminates); `last_action` starts at 0 (there it
//! outlives the episode); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use super::{CELLS, Game, MinAtar, SIZE};
use crate::{Color, Rng, Step};

/// Number of lanes, of which row 1 is the first.
const LANES: usize = 8;
/// Column of the chicken.
const COLUMN: u8 = 4;
/// Row in which the chicken starts.
const BOTTOM: u8 = 9;
/// Steps between two moves of the chicken.
const COOL_DOWN: u8 = 3;
/// Colour of the cells behind cars.
const TRAIL: Color = [225, 225, 225];
/// Greatest k of a car's speed.
const SLOWEST: u8 = 5;

/// State of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Row of the chicken.
    pub pos: u8,
    /// Steps until the chicken may move.
    pub move_timer: u8,
    /// Columns of the cars.
    pub car_x: [u8; LANES],
    /// Steps until each car moves.
    pub car_timer: [u8; LANES],
    /// Steps that each car waits between two moves; negative to the left.
    pub car_speed: [i8; LANES],
    /// The last action taken.
    pub last_action: u8,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

impl Default for State {
    fn default() -> Self {
        let (pos, move_timer, last_action, elapsed) = (BOTTOM, COOL_DOWN, 0, 0);
        Self { pos, move_timer, car_x: [0; LANES], car_timer: [1; LANES], car_speed: [1; LANES], last_action, elapsed }
    }
}

impl State {
    fn draw_velocities(&mut self, rng: &mut Rng) {
        for (timer, speed) in self.car_timer.iter_mut().zip(&mut self.car_speed) {
            let velocity = rng.below(2 * u32::from(SLOWEST)) as i8;
            *speed = if velocity < SLOWEST as i8 { velocity - SLOWEST as i8 } else { velocity - SLOWEST as i8 + 1 };
            *timer = speed.unsigned_abs();
        }
    }
}

/// Returns the column next to `x`, around the board.
#[inline(always)]
fn beside(x: u8, right: bool) -> u8 {
    (x + if right { 1 } else { SIZE as u8 - 1 }) % SIZE as u8
}

/// The Freeway environment.
pub type Freeway = MinAtar<State>;

impl Game for State {
    const PLANES: usize = 7;
    const N_ACTIONS: u32 = 3;
    const COLORS: &'static [Color] = &[[221, 122, 53], [60, 110, 160], TRAIL, TRAIL, TRAIL, TRAIL, TRAIL];
    const MAX_STEPS: u32 = 2500;

    fn start(&mut self, rng: &mut Rng) {
        *self = Self::default();
        self.draw_velocities(rng);
    }

    #[inline(always)]
    fn advance(&mut self, action: u8, rng: &mut Rng) -> Step {
        let state = self;
        let mut outcome = Step::default();
        if action != 0 && state.move_timer == 0 {
            state.move_timer = COOL_DOWN;
            state.pos = if action == 1 { state.pos.saturating_sub(1) } else { (state.pos + 1).min(BOTTOM) };
        }
        if state.pos == 0 {
            outcome.reward = 1.0;
            state.pos = BOTTOM;
            state.draw_velocities(rng);
        }
        let State { pos, car_x, car_timer, car_speed, .. } = state;
        for (((x, timer), speed), row) in car_x.iter_mut().zip(car_timer).zip(car_speed).zip(1..) {
            let mut is_hit = (*x, row) == (COLUMN, *pos);
            if *timer == 0 {
                *timer = speed.unsigned_abs();
                *x = beside(*x, *speed > 0);
                is_hit |= (*x, row) == (COLUMN, *pos);
            } else {
                *timer -= 1;
            }
            *pos = if is_hit { BOTTOM } else { *pos };
        }
        state.move_timer = state.move_timer.saturating_sub(1);
        outcome
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let State { pos, car_x, car_speed, .. } = self;
        obs[usize::from(*pos) * SIZE + usize::from(COLUMN)] = 1;
        for ((&x, speed), row) in car_x.iter().zip(car_speed).zip(1..) {
            obs[CELLS + row * SIZE + usize::from(x)] = 1;
            let plane = 1 + usize::from(speed.unsigned_abs());
            obs[plane * CELLS + row * SIZE + usize::from(beside(x, *speed < 0))] = 1;
        }
    }

    fn clock(&mut self) -> (&mut u8, &mut u32) {
        (&mut self.last_action, &mut self.elapsed)
    }

    fn refused(&self) -> Option<&'static str> {
        let State { pos, move_timer, car_x, car_timer, car_speed, .. } = *self;
        if !(1..=BOTTOM).contains(&pos) || move_timer > COOL_DOWN {
            return Some("pos must be 1 to 9, move_timer 0 to 3");
        }
        if car_x.iter().any(|&x| usize::from(x) >= SIZE) {
            return Some("car_x must be 0 to 9");
        }
        let waits = |(timer, speed): (&u8, &i8)| (*timer).max(1) <= speed.unsigned_abs() && speed.unsigned_abs() <= SLOWEST;
        if !car_timer.iter().zip(&car_speed).all(waits) {
            return Some("car_speed must be 1 to 5 or -5 to -1, car_timer no longer than that");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env as _, Purpose};

    #[test]
    fn velocities_are_uniform() {
        let mut counts = [0; 11];
        for step in 0..5_000 {
            let mut state = State::default();
            state.start(&mut Rng::new(0, 0, step, Purpose::Reset));
            assert_eq!(state.car_timer, state.car_speed.map(i8::unsigned_abs));
            state.car_speed.iter().for_each(|speed| counts[(speed + 5) as usize] += 1);
        }
        assert_eq!(counts[5], 0, "no car stands still");
        // Binomial with mean 4000 and standard deviation 60.
        assert!(counts.iter().enumerate().all(|(i, n)| i == 5 || (3_760..4_240).contains(n)), "{counts:?}");
    }

    #[test]
    fn the_top_row_gives_a_reward_and_new_velocities() {
        let mut env = Freeway::default();
        let rng = &mut Rng::new(1, 0, 0, Purpose::Step);
        env.set_state(State { pos: 1, move_timer: 0, car_x: [0; LANES], ..env.game }).unwrap();
        let speeds = env.game.car_speed;
        assert_eq!(env.advance(1, rng), Step { reward: 1.0, terminated: false, truncated: false });
        assert_eq!((env.game.pos, env.game.move_timer), (BOTTOM, COOL_DOWN - 1));
        assert_ne!(env.game.car_speed, speeds);
        // The cars are where they were, and have waited a step.
        assert_eq!((env.game.car_x, env.game.car_timer), ([0; LANES], env.game.car_speed.map(|k| k.unsigned_abs() - 1)));
    }
}
