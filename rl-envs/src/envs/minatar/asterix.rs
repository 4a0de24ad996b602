//! Asterix: pick up gold and avoid enemies, which get faster and faster.
//!
//! Source: MinAtar 1.0.15's `Asterix` (Young and Tian, 2019).
//!
//! - Observation, u8 (4, 10, 10), 1 for yes: the player, the enemies, the cell behind each enemy or gold, the gold.
//! - Action, discrete (5), MinAtar's minimal set: nothing (0), left (1), up (2), right (3), down (4). With a chance of 0.1 the
//!   last action is repeated instead (sticky actions). The player stays in rows 1 to 8.
//! - Reward: 1 for each gold, the last step included.
//! - `terminated`: the player meets an enemy.
//! - `truncated`: at step 1000. A step may set both.
//! - Start: the player in row 5 and column 5, an empty board. Every 10 steps an enemy (two thirds) or gold enters a free row of
//!   1 to 8, from either side, uniformly; all move every 5 steps. Every 102 steps the first interval falls by one, and every
//!   other time the second too, to 1 at least.
//! - State, by field name (MinAtar's): `player_x`, `player_y`, `entities` (in row 1 and below; `null` or `x`, `right`, `gold`),
//!   `spawn_speed`, `spawn_timer`, `move_speed`, `move_timer`, `ramp_timer`, `ramp_index`, `last_action`, `elapsed`.
//!
//! Departures from the reference: a time limit (gymnax's; the reference has none); `last_action` starts at 0 (there it
//! outlives the episode); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use super::{CELLS, Game, MinAtar, SIZE};
use crate::{Color, Rng, Step};

/// Number of rows that an entity may be in, of which row 1 is the first.
const ROWS: usize = 8;
/// Steps between two levels of difficulty.
const RAMP: i8 = 100;
/// Steps between two entities in the beginning.
const SPAWN: u8 = 10;
/// Steps between two moves of the entities in the beginning.
const MOVE: u8 = 5;

/// Enemy or gold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entity {
    /// Column.
    pub x: u8,
    /// True if it moves to the right.
    pub right: bool,
    /// True for gold.
    pub gold: bool,
}

/// State of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Column of the player.
    pub player_x: u8,
    /// Row of the player.
    pub player_y: u8,
    /// Entity of each row, from row 1 on.
    pub entities: [Option<Entity>; ROWS],
    /// Steps between two entities.
    pub spawn_speed: u8,
    /// Steps until the next entity.
    pub spawn_timer: u8,
    /// Steps between two moves of the entities.
    pub move_speed: u8,
    /// Steps until the entities move.
    pub move_timer: u8,
    /// Counts down to -1; the step after that starts the next level.
    pub ramp_timer: i8,
    /// Number of levels passed.
    pub ramp_index: u8,
    /// The last action taken.
    pub last_action: u8,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            player_x: 5,
            player_y: 5,
            entities: [None; ROWS],
            spawn_speed: SPAWN,
            spawn_timer: SPAWN,
            move_speed: MOVE,
            move_timer: MOVE,
            ramp_timer: RAMP,
            ramp_index: 0,
            last_action: 0,
            elapsed: 0,
        }
    }
}

impl State {
    /// Places an enemy or gold in a free row.
    fn spawn(&mut self, rng: &mut Rng) {
        let (right, gold) = (rng.below(2) == 0, rng.below(3) == 0);
        let n_free = self.entities.iter().filter(|entity| entity.is_none()).count() as u32;
        let nth = rng.below(n_free) as usize;
        if let Some(free) = self.entities.iter_mut().filter(|entity| entity.is_none()).nth(nth) {
            *free = Some(Entity { x: if right { 0 } else { SIZE as u8 - 1 }, right, gold });
        }
    }

    /// Lets the player meet what is in its cell.
    #[inline(always)]
    fn meet(&mut self, outcome: &mut Step) {
        let entity = &mut self.entities[usize::from(self.player_y) - 1];
        if let Some(Entity { gold, .. }) = entity.filter(|entity| entity.x == self.player_x) {
            if gold {
                *entity = None;
                outcome.reward += 1.0;
            } else {
                outcome.terminated = true;
            }
        }
    }

    /// Makes the game harder where its time has come.
    #[inline(always)]
    fn ramp(&mut self) {
        if self.spawn_speed == 1 && self.move_speed == 1 {
            return;
        }
        if self.ramp_timer >= 0 {
            self.ramp_timer -= 1;
            return;
        }
        if self.move_speed > 1 && self.ramp_index % 2 == 1 {
            self.move_speed -= 1;
        }
        self.spawn_speed = (self.spawn_speed - 1).max(1);
        self.ramp_index += 1;
        self.ramp_timer = RAMP;
    }
}

/// The Asterix environment.
pub type Asterix = MinAtar<State>;

impl Game for State {
    const PLANES: usize = 4;
    const N_ACTIONS: u32 = 5;
    const COLORS: &'static [Color] = &[[60, 110, 160], [200, 55, 60], [225, 225, 225], [210, 170, 50]];

    fn start(&mut self, _: &mut Rng) {
        *self = Self::default();
    }

    #[inline(always)]
    fn advance(&mut self, action: u8, rng: &mut Rng) -> Step {
        let state = self;
        let mut outcome = Step::default();
        if state.spawn_timer == 0 {
            state.spawn(rng);
            state.spawn_timer = state.spawn_speed;
        }
        match action {
            1 => state.player_x = state.player_x.saturating_sub(1),
            2 => state.player_y = (state.player_y - 1).max(1),
            3 => state.player_x = (state.player_x + 1).min(SIZE as u8 - 1),
            4 => state.player_y = (state.player_y + 1).min(ROWS as u8),
            _ => {}
        }
        state.meet(&mut outcome);
        if state.move_timer == 0 {
            state.move_timer = state.move_speed;
            for entity in &mut state.entities {
                let moved = |it: Entity| Entity { x: if it.right { it.x + 1 } else { it.x.wrapping_sub(1) }, ..it };
                *entity = entity.map(moved).filter(|entity| usize::from(entity.x) < SIZE);
            }
            state.meet(&mut outcome);
        }
        state.spawn_timer -= 1;
        state.move_timer -= 1;
        state.ramp();
        outcome
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let State { player_x, player_y, entities, .. } = self;
        obs[usize::from(*player_y) * SIZE + usize::from(*player_x)] = 1;
        for (entity, row) in entities.iter().zip(1..) {
            let Some(Entity { x, right, gold }) = *entity else { continue };
            obs[if gold { 3 } else { 1 } * CELLS + row * SIZE + usize::from(x)] = 1;
            let back = usize::from(if right { x.wrapping_sub(1) } else { x + 1 });
            if back < SIZE {
                obs[2 * CELLS + row * SIZE + back] = 1;
            }
        }
    }

    fn clock(&mut self) -> (&mut u8, &mut u32) {
        (&mut self.last_action, &mut self.elapsed)
    }

    fn refused(&self) -> Option<&'static str> {
        let State { player_x, player_y, entities, spawn_speed, spawn_timer, move_speed, move_timer, .. } = *self;
        let State { ramp_timer, ramp_index, .. } = *self;
        let is_column = |x: u8| usize::from(x) < SIZE;
        if !is_column(player_x) || !(1..=ROWS as u8).contains(&player_y) {
            return Some("player_x must be 0 to 9, player_y 1 to 8");
        }
        let met = entities[usize::from(player_y) - 1].filter(|entity| entity.x == player_x && !entity.gold);
        if met.is_some() {
            return Some("the player is where an enemy is, and the episode is over");
        }
        if !entities.iter().flatten().all(|entity| is_column(entity.x)) {
            return Some("x of entities must be 0 to 9");
        }
        if !(1..=SPAWN).contains(&spawn_speed) || !(1..=MOVE).contains(&move_speed) {
            return Some("spawn_speed must be 1 to 10, move_speed 1 to 5");
        }
        if spawn_timer > SPAWN || move_timer > MOVE || !(-1..=RAMP).contains(&ramp_timer) || ramp_index > 100 {
            return Some("spawn_timer must be 0 to 10, move_timer 0 to 5, ramp_timer -1 to 100, ramp_index 0 to 100");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env as _, Purpose};

    #[test]
    fn entities_enter_at_both_sides_in_any_free_row_and_a_third_is_gold() {
        let (mut rows, mut n_right, mut n_gold) = ([0; ROWS], 0, 0);
        for step in 0..8_000 {
            let mut state = State::default();
            let taken = Entity { x: 3, right: true, gold: false };
            (state.entities[0], state.entities[5]) = (Some(taken), Some(taken));
            state.spawn(&mut Rng::new(0, 0, step, Purpose::Step));
            for (i, Entity { x, right, gold }) in state.entities.iter().enumerate().filter_map(|(i, it)| Some((i, (*it)?))) {
                if x != 3 {
                    (rows[i], n_right, n_gold) = (rows[i] + 1, n_right + u32::from(right), n_gold + u32::from(gold));
                    assert_eq!(x, if right { 0 } else { 9 });
                }
            }
        }
        assert_eq!((rows[0], rows[5], rows.iter().sum::<u32>()), (0, 0, 8_000));
        // Binomial: standard deviations 33, 45 and 42.
        assert!(rows.iter().enumerate().all(|(i, n)| [0, 5].contains(&i) || (1_200..1_466).contains(n)), "{rows:?}");
        assert!((3_820..4_180).contains(&n_right) && (2_498..2_835).contains(&n_gold), "{n_right} {n_gold}");
        let mut full = State { entities: [Some(Entity { x: 3, right: true, gold: false }); ROWS], ..State::default() };
        full.spawn(&mut Rng::new(0, 0, 0, Purpose::Step));
        assert!(full.entities.iter().flatten().all(|entity| entity.x == 3));
    }

    #[test]
    fn what_enters_is_met_in_the_same_step() {
        let taken = Some(Entity { x: 3, right: true, gold: false });
        let mut n_gold = 0;
        for step in 0..40 {
            let mut env = Asterix::default();
            let mut entities = [taken; ROWS];
            entities[4] = None;
            env.set_state(State { player_x: 1, spawn_timer: 0, entities, ..State::default() }).unwrap();
            let Step { reward, terminated, .. } = env.advance(1, &mut Rng::new(0, 0, step, Purpose::Step));
            assert_eq!(env.game.spawn_timer, SPAWN - 1);
            let entered = env.game.entities[4];
            // From the left it is in the player's cell.
            assert_eq!(terminated, entered.is_some_and(|it| it.right && !it.gold));
            assert_eq!(reward == 1.0, entered.is_none());
            n_gold += u32::from(reward == 1.0);
        }
        assert!((2..15).contains(&n_gold), "{n_gold}");
    }
}
