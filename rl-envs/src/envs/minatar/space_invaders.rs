//! Space Invaders: shoot aliens that come down, and avoid what they drop.
//!
//! Source: MinAtar 1.0.15's `SpaceInvaders` (Young and Tian, 2019).
//!
//! - Observation, u8 (6, 10, 10), 1 for yes: the cannon (bottom row), the aliens, the aliens if they move left, the aliens if
//!   they move right, the cannon's bullets, the aliens' bullets.
//! - Action, discrete (4), MinAtar's minimal set: nothing (0), left (1), right (2), fire (3). With a chance of 0.1 the last
//!   action is repeated instead (sticky actions). The cannon fires in every fifth step at most.
//! - Reward: 1 for each alien, the last step included.
//! - `terminated`: a bullet or an alien reaches the cannon, or aliens in the bottom row come down once more.
//! - `truncated`: at step 1000. A step may set both.
//! - Start: the cannon in column 5, aliens in rows 0 to 3 and columns 2 to 7, moving left. At a wall they come down a row and
//!   turn. They move every 12 steps, or every n steps where only n are left; one step less for each block shot, 6 at least.
//!   Every tenth step the lowest alien of the column nearest to the cannon fires, of two as near the left one.
//! - State, by field name (MinAtar's): `pos` (the cannon's column), `alien_map`, `f_bullet_map`, `e_bullet_map` (rows of bits,
//!   the lowest is column 0), `alien_dir` (-1 or 1), `enemy_move_interval`, `alien_move_timer`, `alien_shot_timer`,
//!   `shot_timer`, `last_action`, `elapsed`.
//!
//! Departures from the reference: a time limit (gymnax's; the reference has none); `last_action` starts at 0 (there it
//! outlives the episode); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use super::{CELLS, Game, MinAtar, SIZE};
use crate::{Color, Rng, Step};

/// Lowest row.
const BOTTOM: usize = SIZE - 1;
/// Steps between two shots of the cannon.
const COOL_DOWN: u8 = 5;
/// Most steps between two moves of the first aliens.
const MOVE: u8 = 12;
/// Most steps between two moves of the last aliens.
const FASTEST: u8 = 6;
/// Steps between two shots of the aliens.
const SHOT: u8 = 10;

/// Colour of aliens.
const ALIEN: Color = [84, 130, 53];

/// Cells of the board: a bit for each column of each row.
type Map = [u16; SIZE];

const NO_CELLS: Map = [0; SIZE];
/// Aliens of a new block.
const BLOCK: Map = [0xFC, 0xFC, 0xFC, 0xFC, 0, 0, 0, 0, 0, 0];

/// State of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Column of the cannon.
    pub pos: u8,
    /// Aliens, as bits of rows.
    pub alien_map: Map,
    /// Bullets of the cannon.
    pub f_bullet_map: Map,
    /// Bullets of the aliens.
    pub e_bullet_map: Map,
    /// Direction of the aliens: -1 left, 1 right.
    pub alien_dir: i8,
    /// Most steps between two moves of the aliens.
    pub enemy_move_interval: u8,
    /// Steps until the aliens move.
    pub alien_move_timer: u8,
    /// Steps until an alien fires.
    pub alien_shot_timer: u8,
    /// Steps until the cannon may fire.
    pub shot_timer: u8,
    /// The last action taken.
    pub last_action: u8,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            pos: 5,
            alien_map: BLOCK,
            f_bullet_map: NO_CELLS,
            e_bullet_map: NO_CELLS,
            alien_dir: -1,
            enemy_move_interval: MOVE,
            alien_move_timer: MOVE,
            alien_shot_timer: SHOT,
            shot_timer: 0,
            last_action: 0,
            elapsed: 0,
        }
    }
}

/// Returns all columns in which a map has a cell.
#[inline(always)]
fn columns(map: &Map) -> u16 {
    map.iter().fold(0, |all, row| all | row)
}

/// Returns the cells of a row, 1 for each bit.
#[inline(always)]
fn cells(row: u16) -> [u8; SIZE] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Byte i keeps bit i, and 127 more carry it into the byte's highest bit.
    let kept = (u64::from(row & 0xFF) * ONES) & 0x8040_2010_0804_0201;
    let low = ((kept + 127 * ONES) >> 7) & ONES;
    let mut cells = [0; SIZE];
    cells[..8].copy_from_slice(&low.to_le_bytes());
    cells[8] = (row >> 8 & 1) as u8;
    cells[9] = (row >> 9 & 1) as u8;
    cells
}

impl State {
    /// True if the cannon is in one of these cells.
    #[inline(always)]
    fn is_at_cannon(&self, map: &Map) -> bool {
        map[BOTTOM] >> self.pos & 1 == 1
    }

    /// Moves the aliens; returns true if that ends the game.
    #[inline(always)]
    fn move_aliens(&mut self) -> bool {
        let all = columns(&self.alien_map);
        let wall = if self.alien_dir < 0 { 1 } else { 1 << BOTTOM };
        if all & wall == 0 {
            self.alien_map = self.alien_map.map(|row| if self.alien_dir < 0 { row >> 1 } else { row << 1 });
            return false;
        }
        self.alien_dir = -self.alien_dir;
        let is_over = self.alien_map[BOTTOM] != 0;
        self.alien_map.rotate_right(1);
        is_over
    }

    /// Lets the lowest alien of the nearest column fire.
    #[inline(always)]
    fn alien_fires(&mut self) {
        let (all, pos) = (columns(&self.alien_map), usize::from(self.pos));
        let is_there = |x: usize| all >> x & 1 == 1;
        // Of two columns as near, the left one.
        let beside = |d: usize| [pos.checked_sub(d), Some(pos + d)].into_iter().flatten().find(|&x| x < SIZE && is_there(x));
        let Some(x) = (0..SIZE).find_map(beside) else { return };
        if let Some(row) = (0..SIZE).rev().find(|&row| self.alien_map[row] >> x & 1 == 1) {
            self.e_bullet_map[row] |= 1 << x;
        }
    }
}

/// The Space Invaders environment.
pub type SpaceInvaders = MinAtar<State>;

impl Game for State {
    const PLANES: usize = 6;
    const N_ACTIONS: u32 = 4;
    const COLORS: &'static [Color] = &[[60, 110, 160], ALIEN, ALIEN, ALIEN, [45, 55, 72], [200, 55, 60]];

    fn start(&mut self, _: &mut Rng) {
        *self = Self::default();
    }

    #[inline(always)]
    fn advance(&mut self, action: u8, _: &mut Rng) -> Step {
        let state = self;
        let mut outcome = Step::default();
        match action {
            1 => state.pos = state.pos.saturating_sub(1),
            2 => state.pos = (state.pos + 1).min(BOTTOM as u8),
            3 if state.shot_timer == 0 => {
                state.f_bullet_map[BOTTOM] |= 1 << state.pos;
                state.shot_timer = COOL_DOWN;
            }
            _ => {}
        }
        state.f_bullet_map.copy_within(1.., 0);
        state.f_bullet_map[BOTTOM] = 0;
        state.e_bullet_map.copy_within(..BOTTOM, 1);
        state.e_bullet_map[0] = 0;
        outcome.terminated = state.is_at_cannon(&state.e_bullet_map) | state.is_at_cannon(&state.alien_map);
        if state.alien_move_timer == 0 {
            let n_aliens: u32 = state.alien_map.iter().map(|row| row.count_ones()).sum();
            state.alien_move_timer = state.enemy_move_interval.min(n_aliens as u8);
            outcome.terminated |= state.move_aliens();
            outcome.terminated |= state.is_at_cannon(&state.alien_map);
        }
        if state.alien_shot_timer == 0 {
            state.alien_shot_timer = SHOT;
            state.alien_fires();
        }
        for (aliens, bullets) in state.alien_map.iter_mut().zip(&mut state.f_bullet_map) {
            let hit = *aliens & *bullets;
            outcome.reward += hit.count_ones() as f32;
            *aliens ^= hit;
            *bullets ^= hit;
        }
        state.shot_timer = state.shot_timer.saturating_sub(1);
        state.alien_move_timer -= 1;
        state.alien_shot_timer -= 1;
        if state.alien_map == NO_CELLS {
            state.enemy_move_interval = (state.enemy_move_interval - 1).max(FASTEST);
            state.alien_map = BLOCK;
        }
        outcome
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let State { pos, alien_map, f_bullet_map, e_bullet_map, alien_dir, .. } = self;
        obs[BOTTOM * SIZE + usize::from(*pos)] = 1;
        let moving = if *alien_dir < 0 { 2 } else { 3 };
        for (plane, map) in [(1, alien_map), (moving, alien_map), (4, f_bullet_map), (5, e_bullet_map)] {
            let rows = obs[plane * CELLS..][..CELLS].as_chunks_mut::<SIZE>().0;
            rows.iter_mut().zip(map).for_each(|(to, row)| *to = cells(*row));
        }
    }

    fn clock(&mut self) -> (&mut u8, &mut u32) {
        (&mut self.last_action, &mut self.elapsed)
    }

    fn refused(&self) -> Option<&'static str> {
        let State { pos, alien_map, f_bullet_map, e_bullet_map, alien_dir, .. } = *self;
        let State { enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer, .. } = *self;
        if usize::from(pos) > BOTTOM || ![-1, 1].contains(&alien_dir) {
            return Some("pos must be 0 to 9, alien_dir -1 or 1");
        }
        if [alien_map, f_bullet_map, e_bullet_map].as_flattened().iter().any(|row| row >> SIZE != 0) {
            return Some("rows of alien_map, f_bullet_map and e_bullet_map must be 0 to 1023");
        }
        if alien_map == NO_CELLS {
            return Some("alien_map must have an alien");
        }
        if self.is_at_cannon(&alien_map) | self.is_at_cannon(&e_bullet_map) {
            return Some("alien_map or e_bullet_map has the cannon's cell, where the episode is over");
        }
        if !(FASTEST..=MOVE).contains(&enemy_move_interval) || alien_move_timer > MOVE {
            return Some("enemy_move_interval must be 6 to 12, alien_move_timer 0 to 12");
        }
        if alien_shot_timer > SHOT || shot_timer > COOL_DOWN {
            return Some("alien_shot_timer must be 0 to 10, shot_timer 0 to 5");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env as _, Purpose};

    #[test]
    fn a_row_of_cells_has_its_bits() {
        for row in 0..1 << SIZE {
            assert_eq!(cells(row), std::array::from_fn(|x| (row >> x & 1) as u8), "{row:b}");
        }
    }

    #[test]
    fn the_nearest_column_fires_and_of_two_the_left_one() {
        for (pos, row, expected) in
            [(5, 0b00_0010_0000, 5), (5, 0b01_0000_1000, 3), (5, 0b00_1000_1000, 3), (0, 0b10_0000_0000, 9)]
        {
            let mut state = State { pos, alien_map: [row, 0, row, 0, 0, 0, 0, 0, 0, 0], ..State::default() };
            state.alien_fires();
            assert_eq!(state.e_bullet_map, [0, 0, 1 << expected, 0, 0, 0, 0, 0, 0, 0], "{pos} {row:b}");
        }
    }

    #[test]
    fn a_block_that_is_shot_is_followed_by_a_faster_one() {
        let mut env = SpaceInvaders::default();
        let (alien, bullet) = ([0, 0, 1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        env.set_state(State { alien_map: alien, f_bullet_map: bullet, ..State::default() }).unwrap();
        assert_eq!(
            env.advance(0, &mut Rng::new(0, 0, 0, Purpose::Step)),
            Step { reward: 1.0, terminated: false, truncated: false }
        );
        assert_eq!((env.game.alien_map, env.game.f_bullet_map, env.game.enemy_move_interval), (BLOCK, NO_CELLS, MOVE - 1));
    }
}
