//! Seaquest: shoot fish and submarines, save divers, surface before oxygen ends.
//!
//! Source: MinAtar 1.0.15's `Seaquest` (Young and Tian, 2019).
//!
//! - Observation, u8 (10, 10, 10), 1 for yes: the player's front and back, the player's bullets, the cell behind each fish,
//!   submarine or diver, the enemies' bullets, the fish, the enemies' submarines, the oxygen and the divers on board (bars in
//!   row 9), the divers.
//! - Action, discrete (6): nothing (0), left (1), up (2), right (3), down (4), fire (5). With a chance of 0.1 the last action is
//!   repeated instead (sticky actions). The player stays in rows 0 to 8 and fires in every fifth step at most.
//! - Reward: 1 for each enemy shot, the last step included; at the surface with six divers 1 for every 20 of oxygen left.
//! - `terminated`: the player meets an enemy or a bullet, surfaces with a `diver_count` of 0, or has no oxygen, of which each
//!   step below the surface takes one of 200.
//! - `truncated`: at step 1000. A step may set both.
//! - Start: the player at the surface in column 5, facing left. Every 20 steps an enemy enters, a third of them submarines,
//!   which fire every 11 steps; every 30 steps a diver; all in rows 1 to 8, from either side, uniformly. No enemy enters a row in
//!   which others move towards it. At the surface a diver leaves, or all six; then enemies enter a step sooner, and every other
//!   time move a step sooner.
//! - State, by field name (MinAtar's): `oxygen`, `diver_count`, `sub_x`, `sub_y`, `sub_or` (true to the right), `f_bullets`,
//!   `e_bullets`, `e_fish`, `e_subs`, `divers`, `e_spawn_speed`, `e_spawn_timer`, `d_spawn_timer`, `move_speed`, `ramp_index`,
//!   `shot_timer`, `surface`, `last_action`, `elapsed`. As in the reference, `diver_count` is -1 once six
//!   have left, and only 0 ends the game at the surface.
//!
//! Departures from the reference: a time limit (gymnax's; the reference has none); `last_action` starts at 0 (there it outlives
//! the episode); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use super::{CELLS, Game, MinAtar, SIZE};
use crate::{Color, Rng, Step};

/// Lowest row of the player.
const DEEPEST: u8 = 8;
/// Oxygen of a full tank.
const OXYGEN: i16 = 200;
/// Divers that the player has room for.
const ROOM: i16 = 6;
/// Steps between two enemies in the beginning.
const SPAWN: u8 = 20;
/// Steps between two divers.
const DIVER_SPAWN: u8 = 30;
/// Steps that enemies in the beginning, and divers, wait between two moves.
const MOVE: u8 = 5;
/// Steps that the fastest enemies wait between two moves.
const FASTEST: u8 = 2;
/// Steps between two shots of the player.
const COOL_DOWN: u8 = 5;
/// Steps that a submarine waits between two shots.
const SHOT: u8 = 10;
/// Most bullets, fish, submarines or divers.
///
/// Play from the start has fewer.
pub const MOST: usize = 64;
/// Least `diver_count`.
const FEWEST: i16 = -1000;

/// Fish, submarine, diver or bullet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swimmer {
    /// Column.
    pub x: u8,
    /// Row.
    pub y: u8,
    /// True if it moves to the right.
    pub right: bool,
    /// Steps until it moves; 0 for a bullet, which moves in each.
    pub move_timer: u8,
    /// Steps until it fires; 0 for all but submarines.
    pub shot_timer: u8,
}

impl Swimmer {
    /// Returns the column in front of it, 10 or 255 beyond the board.
    #[inline(always)]
    fn ahead(&self) -> u8 {
        if self.right { self.x + 1 } else { self.x.wrapping_sub(1) }
    }

    #[inline(always)]
    fn is_out(&self) -> bool {
        usize::from(self.x) >= SIZE
    }

    #[inline(always)]
    fn is_at(&self, cell: [u8; 2]) -> bool {
        [self.x, self.y] == cell
    }

    /// Waits, or moves and waits `interval` steps; returns true if it moved.
    #[inline(always)]
    fn moves(&mut self, interval: u8) -> bool {
        if self.move_timer > 0 {
            self.move_timer -= 1;
            return false;
        }
        (self.move_timer, self.x) = (interval, self.ahead());
        true
    }
}

/// State of an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps that the oxygen lasts.
    pub oxygen: i16,
    /// Divers on board; negative after six have left.
    pub diver_count: i16,
    /// Column of the player's front.
    pub sub_x: u8,
    /// Row of the player.
    pub sub_y: u8,
    /// True if the player faces right.
    pub sub_or: bool,
    /// Bullets of the player.
    pub f_bullets: Vec<Swimmer>,
    /// Bullets of the enemies.
    pub e_bullets: Vec<Swimmer>,
    /// Fish.
    pub e_fish: Vec<Swimmer>,
    /// Submarines of the enemies.
    pub e_subs: Vec<Swimmer>,
    /// Divers.
    pub divers: Vec<Swimmer>,
    /// Steps between two enemies.
    pub e_spawn_speed: u8,
    /// Steps until the next enemy.
    pub e_spawn_timer: u8,
    /// Steps until the next diver.
    pub d_spawn_timer: u8,
    /// Steps that enemies wait between two moves.
    pub move_speed: u8,
    /// Number of levels passed.
    pub ramp_index: u8,
    /// Steps until the player may fire.
    pub shot_timer: u8,
    /// True if the last step ended at the surface.
    pub surface: bool,
    /// The last action taken.
    pub last_action: u8,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            oxygen: OXYGEN,
            diver_count: 0,
            sub_x: 5,
            sub_y: 0,
            sub_or: false,
            f_bullets: Vec::new(),
            e_bullets: Vec::new(),
            e_fish: Vec::new(),
            e_subs: Vec::new(),
            divers: Vec::new(),
            e_spawn_speed: SPAWN,
            e_spawn_timer: SPAWN,
            d_spawn_timer: DIVER_SPAWN,
            move_speed: MOVE,
            ramp_index: 0,
            shot_timer: 0,
            surface: true,
            last_action: 0,
            elapsed: 0,
        }
    }
}

impl State {
    fn player(&self) -> [u8; 2] {
        [self.sub_x, self.sub_y]
    }

    /// Lets enemies and divers enter whose time has come.
    fn spawn(&mut self, rng: &mut Rng) {
        let mut drawn = |move_timer: u8| {
            let right = rng.below(2) == 0;
            let y = 1 + rng.below(8) as u8;
            (Swimmer { x: if right { 0 } else { SIZE as u8 - 1 }, y, right, move_timer, shot_timer: 0 }, rng.below(3) == 0)
        };
        if self.e_spawn_timer == 0 {
            self.e_spawn_timer = self.e_spawn_speed;
            let (enemy, is_sub) = drawn(self.move_speed);
            let meets = |other: &Swimmer| other.y == enemy.y && other.right != enemy.right;
            let is_free = !self.e_subs.iter().chain(&self.e_fish).any(meets) && self.e_subs.len().max(self.e_fish.len()) < MOST;
            if is_free && is_sub {
                self.e_subs.push(Swimmer { shot_timer: SHOT, ..enemy });
            } else if is_free {
                self.e_fish.push(enemy);
            }
        }
        if self.d_spawn_timer == 0 {
            self.d_spawn_timer = DIVER_SPAWN;
            let diver = drawn(MOVE).0;
            if self.divers.len() < MOST {
                self.divers.push(diver);
            }
        }
    }

    /// Moves the player, or fires.
    fn act(&mut self, action: u8) {
        match action {
            1 => (self.sub_x, self.sub_or) = (self.sub_x.saturating_sub(1), false),
            2 => self.sub_y = self.sub_y.saturating_sub(1),
            3 => (self.sub_x, self.sub_or) = ((self.sub_x + 1).min(SIZE as u8 - 1), true),
            4 => self.sub_y = (self.sub_y + 1).min(DEEPEST),
            5 if self.shot_timer == 0 && self.f_bullets.len() < MOST => {
                let Self { sub_x: x, sub_y: y, sub_or: right, .. } = *self;
                self.f_bullets.push(Swimmer { x, y, right, move_timer: 0, shot_timer: 0 });
                self.shot_timer = COOL_DOWN;
            }
            _ => {}
        }
    }

    /// Moves the player's bullets; returns the number of enemies hit.
    fn move_bullets(&mut self) -> u32 {
        let mut hits = 0;
        for i in (0..self.f_bullets.len()).rev() {
            let bullet = &mut self.f_bullets[i];
            bullet.x = bullet.ahead();
            let cell = [bullet.x, bullet.y];
            let mut hit = bullet.is_out();
            for enemies in [&mut self.e_fish, &mut self.e_subs] {
                if hit {
                    break;
                }
                if let Some(at) = enemies.iter().position(|enemy| enemy.is_at(cell)) {
                    enemies.remove(at);
                    (hit, hits) = (true, hits + 1);
                }
            }
            if hit {
                self.f_bullets.remove(i);
            }
        }
        hits
    }

    /// Moves the divers, and takes those on board that meet the player.
    fn move_divers(&mut self) {
        for i in (0..self.divers.len()).rev() {
            let (player, has_room) = (self.player(), self.diver_count < ROOM);
            let diver = &mut self.divers[i];
            let is_saved = has_room && diver.is_at(player) || diver.moves(MOVE) && has_room && diver.is_at(player);
            self.diver_count += i16::from(is_saved);
            if is_saved || self.divers[i].is_out() {
                self.divers.remove(i);
            }
        }
    }

    /// Moves the fish, or the submarines, which also fire.
    ///
    /// Returns whether one meets the player, and the number of those that are hit.
    fn move_enemies(&mut self, subs: bool) -> (bool, u32) {
        let (player, mut meets, mut hits) = (self.player(), false, 0);
        let mut enemies = std::mem::take(if subs { &mut self.e_subs } else { &mut self.e_fish });
        for i in (0..enemies.len()).rev() {
            let enemy = &mut enemies[i];
            meets |= enemy.is_at(player);
            let mut is_gone = false;
            if enemy.moves(self.move_speed) {
                meets |= enemy.is_at(player);
                is_gone = enemy.is_out();
                let bullet = self.f_bullets.iter().position(|bullet| enemy.is_at([bullet.x, bullet.y]));
                if let Some(bullet) = bullet.filter(|_| !enemy.is_at(player)) {
                    self.f_bullets.remove(bullet);
                    (is_gone, hits) = (true, hits + 1);
                }
            }
            if subs && enemy.shot_timer == 0 {
                enemy.shot_timer = SHOT;
                if self.e_bullets.len() < MOST {
                    self.e_bullets.push(Swimmer { move_timer: 0, shot_timer: 0, ..*enemy });
                }
            } else if subs {
                enemy.shot_timer -= 1;
            }
            if is_gone {
                enemies.remove(i);
            }
        }
        *(if subs { &mut self.e_subs } else { &mut self.e_fish }) = enemies;
        (meets, hits)
    }

    /// Moves the enemies' bullets; returns true if one meets the player.
    fn move_enemies_bullets(&mut self) -> bool {
        let (player, mut meets) = (self.player(), false);
        self.e_bullets.retain_mut(|bullet| {
            meets |= bullet.is_at(player);
            bullet.x = bullet.ahead();
            meets |= bullet.is_at(player);
            !bullet.is_out()
        });
        meets
    }

    /// Uses oxygen, or surfaces; returns the reward.
    ///
    /// `None` if it ends the game.
    fn breathe(&mut self) -> Option<f32> {
        if self.sub_y > 0 {
            self.oxygen -= 1;
            self.surface = false;
            return Some(0.0);
        }
        if self.surface {
            return Some(0.0);
        }
        if self.diver_count == 0 {
            return None;
        }
        let mut reward = 0;
        if self.diver_count == ROOM {
            (reward, self.diver_count) = (self.oxygen * 10 / OXYGEN, 0);
        }
        (self.surface, self.oxygen, self.diver_count) = (true, OXYGEN, (self.diver_count - 1).max(FEWEST));
        if self.e_spawn_speed > 1 || self.move_speed > FASTEST {
            if self.move_speed > FASTEST && self.ramp_index % 2 == 1 {
                self.move_speed -= 1;
            }
            self.e_spawn_speed = (self.e_spawn_speed - 1).max(1);
            self.ramp_index += 1;
        }
        Some(f32::from(reward))
    }
}

/// The Seaquest environment.
pub type Seaquest = MinAtar<State>;

impl Game for State {
    const PLANES: usize = 10;
    const N_ACTIONS: u32 = 6;
    const COLORS: &'static [Color] = &[
        [60, 110, 160],
        [150, 185, 215],
        [45, 55, 72],
        [225, 225, 225],
        [200, 55, 60],
        [221, 122, 53],
        [200, 55, 60],
        [150, 185, 215],
        [60, 110, 160],
        [84, 130, 53],
    ];
    const HEAP_BYTES: usize = 5 * MOST * size_of::<Swimmer>();

    fn start(&mut self, _: &mut Rng) {
        // Lists keep their memory.
        let Self { f_bullets, e_bullets, e_fish, e_subs, divers, .. } = self;
        let [f_bullets, e_bullets, e_fish, e_subs, divers] = [f_bullets, e_bullets, e_fish, e_subs, divers].map(|list| {
            list.clear();
            std::mem::take(list)
        });
        *self = Self { f_bullets, e_bullets, e_fish, e_subs, divers, ..Self::default() };
    }

    fn advance(&mut self, action: u8, rng: &mut Rng) -> Step {
        let state = self;
        state.spawn(rng);
        state.act(action);
        let shot = state.move_bullets();
        state.move_divers();
        let (meets_sub, subs) = state.move_enemies(true);
        let is_shot = state.move_enemies_bullets();
        let (meets_fish, fish) = state.move_enemies(false);
        let timers = [&mut state.e_spawn_timer, &mut state.d_spawn_timer, &mut state.shot_timer];
        timers.into_iter().for_each(|timer| *timer = timer.saturating_sub(1));
        let is_over = meets_sub | is_shot | meets_fish | (state.oxygen <= 0);
        let surfaced = state.breathe();
        Step {
            reward: (shot + subs + fish) as f32 + surfaced.unwrap_or(0.0),
            terminated: is_over | surfaced.is_none(),
            truncated: false,
        }
    }

    fn observe(&self, obs: &mut [u8]) {
        let state = self;
        let mut set = |plane: usize, x: u8, y: u8| {
            if usize::from(x) < SIZE {
                obs[plane * CELLS + usize::from(y) * SIZE + usize::from(x)] = 1;
            }
        };
        set(0, state.sub_x, state.sub_y);
        set(1, if state.sub_or { state.sub_x.wrapping_sub(1) } else { state.sub_x + 1 }, state.sub_y);
        (0..state.oxygen.max(0) * 10 / OXYGEN).for_each(|x| set(7, x as u8, 9));
        (0..state.diver_count.max(0)).for_each(|x| set(8, 8 - x as u8, 9));
        for (plane, bullets) in [(2, &state.f_bullets), (4, &state.e_bullets)] {
            bullets.iter().for_each(|bullet| set(plane, bullet.x, bullet.y));
        }
        for (plane, swimmers) in [(5, &state.e_fish), (6, &state.e_subs), (9, &state.divers)] {
            for swimmer in swimmers {
                set(plane, swimmer.x, swimmer.y);
                set(3, Swimmer { right: !swimmer.right, ..*swimmer }.ahead(), swimmer.y);
            }
        }
    }

    fn clock(&mut self) -> (&mut u8, &mut u32) {
        (&mut self.last_action, &mut self.elapsed)
    }

    fn refused(&self) -> Option<&'static str> {
        let State { oxygen, diver_count, sub_x, sub_y, sub_or, e_spawn_speed, e_spawn_timer, d_spawn_timer, .. } = *self;
        let State { move_speed, ramp_index, shot_timer, .. } = *self;
        if sub_x >= SIZE as u8 || sub_y > DEEPEST {
            return Some("sub_x must be 0 to 9, sub_y 0 to 8");
        }
        if sub_x == if sub_or { 0 } else { 9 } {
            return Some("the player's back, behind sub_x, must be on the board");
        }
        if !(0..=OXYGEN).contains(&oxygen) || !(FEWEST..=ROOM).contains(&diver_count) {
            return Some("oxygen must be 0 to 200, diver_count -1000 to 6");
        }
        let lists = [&self.f_bullets, &self.e_bullets, &self.e_fish, &self.e_subs, &self.divers];
        let fits = |it: &Swimmer| !it.is_out() && it.y < SIZE as u8 && it.move_timer <= MOVE && it.shot_timer <= SHOT;
        if !lists.iter().all(|list| list.len() <= MOST && list.iter().all(fits)) {
            return Some("lists hold 64 at most, with x and y 0 to 9, move_timer 0 to 5, shot_timer 0 to 10");
        }
        if !(1..=SPAWN).contains(&e_spawn_speed) || !(FASTEST..=MOVE).contains(&move_speed) || ramp_index > 100 {
            return Some("e_spawn_speed must be 1 to 20, move_speed 2 to 5, ramp_index 0 to 100");
        }
        if e_spawn_timer > SPAWN || d_spawn_timer > DIVER_SPAWN || shot_timer > COOL_DOWN {
            return Some("e_spawn_timer must be 0 to 20, d_spawn_timer 0 to 30, shot_timer 0 to 5");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    #[test]
    fn enemies_and_divers_enter_at_both_sides_in_any_row_and_a_third_of_the_enemies_are_submarines() {
        let (mut rows, mut n_right, mut n_subs, mut diver_rows) = ([0; SIZE], 0, 0, [0; SIZE]);
        for step in 0..8_000 {
            let mut state = State { e_spawn_timer: 0, d_spawn_timer: 0, move_speed: 3, e_spawn_speed: 7, ..State::default() };
            state.spawn(&mut Rng::new(0, 0, step, Purpose::Step));
            assert_eq!((state.e_spawn_timer, state.d_spawn_timer), (7, DIVER_SPAWN));
            let enemy = *state.e_fish.iter().chain(&state.e_subs).next().unwrap();
            let shot_timer = if state.e_subs.is_empty() { 0 } else { SHOT };
            let x = |right| if right { 0 } else { 9 };
            assert_eq!((enemy.x, enemy.move_timer, enemy.shot_timer), (x(enemy.right), 3, shot_timer));
            let diver = state.divers[0];
            assert_eq!((diver.x, diver.move_timer, diver.shot_timer), (x(diver.right), MOVE, 0));
            (rows[usize::from(enemy.y)], n_right) = (rows[usize::from(enemy.y)] + 1, n_right + u32::from(enemy.right));
            (n_subs, diver_rows[usize::from(diver.y)]) = (n_subs + state.e_subs.len(), diver_rows[usize::from(diver.y)] + 1);
        }
        // Binomial: standard deviations 30, 45 and 42.
        for rows in [rows, diver_rows] {
            assert!([rows[0], rows[9]] == [0, 0] && rows[1..9].iter().all(|n| (880..1_120).contains(n)), "{rows:?}");
        }
        assert!((3_820..4_180).contains(&n_right) && (2_498..2_835).contains(&n_subs), "{n_right} {n_subs}");
    }

    #[test]
    fn no_enemy_enters_a_row_in_which_others_move_towards_it() {
        let swimmer = |y: u8, right| Swimmer { x: 5, y, right, move_timer: 0, shot_timer: 0 };
        for right in [false, true] {
            let e_fish = (1..9).map(|y| swimmer(y, right)).collect();
            let mut n_entered = 0;
            for step in 0..200 {
                let mut state = State { e_spawn_timer: 0, e_fish: Vec::clone(&e_fish), ..State::default() };
                state.spawn(&mut Rng::new(0, 0, step, Purpose::Step));
                assert!(state.e_fish.iter().chain(&state.e_subs).all(|enemy| enemy.right == right));
                assert_eq!(state.e_spawn_timer, SPAWN);
                n_entered += state.e_fish.len() + state.e_subs.len() - 8;
            }
            assert!((60..140).contains(&n_entered), "{n_entered}");
        }
    }
}
