//! Breakout: keep a ball in play with a paddle and break all bricks.
//!
//! Source: MinAtar 1.0.15's `Breakout` (Young and Tian, 2019).
//!
//! - Observation, u8 (4, 10, 10), 1 for yes: the paddle (bottom row), the ball, its trail (where it was before), the bricks.
//! - Action, discrete (3), MinAtar's minimal set: nothing (0), left (1), right (2). With a chance of 0.1 the last action is
//!   repeated instead (sticky actions).
//! - Reward: 1 for each brick, the last step included.
//! - `terminated`: the ball passes the paddle.
//! - `truncated`: at step 1000. A step may set both.
//! - Start: the paddle in column 4, all of rows 1 to 3 bricks, the ball in row 3, at the left or at the right wall with equal
//!   chances, moving down and inwards. When all bricks are gone, new ones come as the ball reaches the bottom.
//! - State, by field name (MinAtar's): `ball_x`, `ball_y`, `ball_dir` (0 up left, 1 up right, 2 down right, 3 down left), `pos`
//!   (the paddle's column), `brick_map` (rows 1 to 3), `strike` (true if a brick was just hit), `last_x`, `last_y`,
//!   `last_action`, `elapsed`.
//!
//! Departures from the reference: a time limit (gymnax's; the reference has none); `last_action` starts at 0 (there it
//! outlives the episode); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use super::{CELLS, Game, MinAtar, SIZE};
use crate::{Canvas, Rng, Step};

/// State of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Column of the ball.
    pub ball_x: u8,
    /// Row of the ball.
    pub ball_y: u8,
    /// Direction of the ball: 0 up left, 1 up right, 2 down right, 3 down left.
    pub ball_dir: u8,
    /// Column of the paddle.
    pub pos: u8,
    /// 1 for each brick in rows 1 to 3.
    pub brick_map: [[u8; SIZE]; 3],
    /// True if the last step hit a brick; the ball passes through the next one.
    pub strike: bool,
    /// Column of the ball before the last step.
    pub last_x: u8,
    /// Row of the ball before the last step.
    pub last_y: u8,
    /// The last action taken.
    pub last_action: u8,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

const BRICKS: [[u8; SIZE]; 3] = [[1; SIZE]; 3];

impl State {
    /// Starts with the ball in a column of row 3.
    fn at(ball_x: u8, ball_dir: u8) -> Self {
        let (ball_y, last_x, last_y) = (3, ball_x, 3);
        let (pos, brick_map, strike, last_action, elapsed) = (4, BRICKS, false, 0, 0);
        Self { ball_x, ball_y, ball_dir, pos, brick_map, strike, last_x, last_y, last_action, elapsed }
    }
}

/// The Breakout environment.
pub type Breakout = MinAtar<State>;

impl Default for State {
    fn default() -> Self {
        Self::at(0, 2)
    }
}

impl Game for State {
    const PLANES: usize = 4;
    const N_ACTIONS: u32 = 3;

    fn start(&mut self, rng: &mut Rng) {
        *self = if rng.below(2) == 0 { Self::at(0, 2) } else { Self::at(9, 3) };
    }

    #[inline(always)]
    fn advance(&mut self, action: u8, _: &mut Rng) -> Step {
        let State { ball_x, ball_y, ball_dir, pos, brick_map, strike, last_x, last_y, .. } = self;
        let mut outcome = Step::default();
        match action {
            1 => *pos = pos.saturating_sub(1),
            2 => *pos = (*pos + 1).min(SIZE as u8 - 1),
            _ => {}
        }
        (*last_x, *last_y) = (*ball_x, *ball_y);
        let right = (*ball_dir == 1) | (*ball_dir == 2);
        let down = *ball_dir >= 2;
        let mut x = *ball_x as i8 + if right { 1 } else { -1 };
        let mut y = *ball_y as i8 + if down { 1 } else { -1 };
        // Directions after a bounce off a side wall, off anything flat, and off both.
        let (sideways, flat, back) = ([1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 0, 1]);
        let turn = |ball_dir: &mut u8, to: [u8; 4]| *ball_dir = to[usize::from(*ball_dir & 3)];
        if !(0..SIZE as i8).contains(&x) {
            x = x.clamp(0, SIZE as i8 - 1);
            turn(ball_dir, sideways);
        }
        let mut hit = false;
        let brick = (1..4).contains(&y).then(|| &mut brick_map[y as usize - 1][x as usize]).filter(|brick| **brick == 1);
        if y < 0 {
            y = 0;
            turn(ball_dir, flat);
        } else if let Some(brick) = brick {
            hit = true;
            if !*strike {
                outcome.reward = 1.0;
                *brick = 0;
                y = *last_y as i8;
                turn(ball_dir, flat);
            }
        } else if y == SIZE as i8 - 1 {
            if *brick_map == [[0; SIZE]; 3] {
                *brick_map = BRICKS;
            }
            if *ball_x == *pos {
                y = *last_y as i8;
                turn(ball_dir, flat);
            } else if x == *pos as i8 {
                y = *last_y as i8;
                turn(ball_dir, back);
            } else {
                outcome.terminated = true;
            }
        }
        *strike = hit;
        (*ball_x, *ball_y) = (x as u8, y as u8);
        outcome
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let State { ball_x, ball_y, pos, brick_map, last_x, last_y, .. } = self;
        let cell = |x: &u8, y: &u8| usize::from(*y) * SIZE + usize::from(*x);
        obs[cell(pos, &9)] = 1;
        obs[CELLS + cell(ball_x, ball_y)] = 1;
        obs[2 * CELLS + cell(last_x, last_y)] = 1;
        obs[3 * CELLS + SIZE..][..3 * SIZE].copy_from_slice(brick_map.as_flattened());
    }

    fn render(&self, canvas: &mut Canvas) {
        let State { ball_x, ball_y, pos, brick_map, last_x, last_y, .. } = *self;
        let side = SIZE as f32;
        canvas.view(0.0..side, 0.0..side, [250, 250, 247]);
        let mut square = |x: u8, y: u8, color| {
            let (x, y) = (f32::from(x), side - f32::from(y));
            canvas.rect(x + 0.03..x + 0.97, y - 0.97..y - 0.03, color);
        };
        for (row, y) in brick_map.iter().zip(1..) {
            for (_, x) in row.iter().zip(0..).filter(|(brick, _)| **brick == 1) {
                square(x, y, [[200, 55, 60], [221, 122, 53], [190, 160, 60]][usize::from(y) - 1]);
            }
        }
        square(last_x, last_y, [215, 215, 215]);
        square(ball_x, ball_y, [45, 55, 72]);
        square(pos, 9, [60, 110, 160]);
    }

    fn clock(&mut self) -> (&mut u8, &mut u32) {
        (&mut self.last_action, &mut self.elapsed)
    }

    fn refused(&self) -> Option<&'static str> {
        let State { ball_x, ball_y, ball_dir, pos, brick_map, last_x, last_y, .. } = *self;
        if [ball_x, ball_y, pos, last_x, last_y].iter().any(|&x| usize::from(x) >= SIZE) {
            return Some("ball_x, ball_y, pos, last_x and last_y must be 0 to 9");
        }
        if ball_dir > 3 {
            return Some("ball_dir must be 0 to 3");
        }
        if ball_y == 9 {
            return Some("ball_y is 9, where the episode is over");
        }
        if brick_map.as_flattened().iter().any(|&brick| brick > 1) {
            return Some("brick_map must hold zeros and ones");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Env as _, Purpose};

    #[test]
    fn a_brick_gives_a_reward_and_turns_the_ball() {
        let mut env = Breakout::default();
        let state = State { ball_x: 4, ball_y: 4, ball_dir: 1, ..State::at(0, 2) };
        env.set_state(state).unwrap();
        assert_eq!(
            env.advance(0, &mut Rng::new(0, 0, 0, Purpose::Step)),
            Step { reward: 1.0, terminated: false, truncated: false }
        );
        let State { ball_x, ball_y, ball_dir, brick_map, strike, .. } = env.game;
        assert_eq!((ball_x, ball_y, ball_dir, strike, brick_map[2][5]), (5, 4, 2, true, 0));
    }

    #[test]
    fn the_ball_bounces_off_the_paddle_or_is_lost() {
        let mut env = Breakout::default();
        let state = State { ball_x: 4, ball_y: 8, ball_dir: 2, ..State::at(0, 2) };
        for (pos, action, terminated, ball) in [(4, 0, false, (5, 8, 1)), (6, 1, false, (5, 8, 0)), (6, 0, true, (5, 9, 2))] {
            env.set_state(State { pos, ..state }).unwrap();
            assert_eq!(env.advance(action, &mut Rng::new(0, 0, 0, Purpose::Step)).terminated, terminated);
            assert_eq!((env.game.ball_x, env.game.ball_y, env.game.ball_dir), ball);
        }
        assert!(env.set_state(env.game).is_err(), "the episode is over");
    }

    #[test]
    fn a_tenth_of_the_actions_stick() {
        let mut env = Breakout::default();
        let mut obs = [0; 4 * CELLS];
        let mut stuck = 0;
        for step in 0..10_000 {
            env.set_state(State { last_action: 1, ..State::at(0, 2) }).unwrap();
            env.step(Action::Discrete(2), &mut Rng::new(0, 0, step, Purpose::Step), &mut obs);
            stuck += u32::from(env.game.last_action == 1);
        }
        // Binomial with mean 1000 and standard deviation 30.
        assert!((880..1120).contains(&stuck), "{stuck}");
    }
}
