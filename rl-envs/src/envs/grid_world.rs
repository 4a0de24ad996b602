//! Grid worlds: rooms with doors and keys, seen from where the agent stands.
//!
//! Source: MiniGrid 3.2.0 (Chevalier-Boisvert et al., 2023): `Empty-Random` and `DoorKey` (8 by 8), `MultiRoom-N2-S4`.
//!
//! - Observation, u8 (4, 7, 7), to be divided by 10: objects, colours and states of doors in the cells before the agent. It
//!   stands in the middle of the last row and looks to the first one. Plane 3 is its direction, in every cell.
//!   - Objects: unseen 0, empty 1, wall 2, door 4, key 5, goal 8. Colours: red 0, green 1, blue 2, purple 3, yellow 4, grey 5.
//!     Doors: open 0, closed 1, locked 2. Directions: right 0, down 1, left 2, up 3.
//!   - Walls and doors that are not open hide what is behind them (not in [`Empty`]). The agent's cell shows what it carries.
//! - Action, discrete (7): turn left (0), turn right (1), forward (2), pick up (3), drop (4), toggle (5), nothing (6), each with
//!   the cell ahead. Toggling opens and closes a door; a locked one opens with a key of its colour.
//! - Reward: `1 - 0.9 * steps / limit` at the goal.
//! - `terminated`: at the goal.
//! - `truncated`: at the limit, step 256 ([`Empty`]), 640 ([`DoorKey`]), 40 ([`MultiRoom`]).
//! - Start, uniformly over what is free: see the levels.
//! - State, by field name: `cells` (rows of `object + 16 * colour + 256 * state`), `agent_pos` (column and row), `agent_dir`,
//!   `carrying` (a key, or 0), `elapsed`.
//!
//! Departures from the reference: planes come first (there last); the direction is a plane (there a number); the mission, the
//! same in every episode of a level, is left out.

use std::fmt::Debug;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::{Action, ActionSpace, Canvas, Color, Env, Error, Rng, Space, Step};

/// Rows and columns that the agent sees.
const VIEW: usize = 7;
/// Columns that are read; the last one is not seen.
///
/// A power of two fits vector instructions.
const WIDTH: usize = 8;
/// Cells that the agent sees.
const SEEN: usize = VIEW * VIEW;

const EMPTY: u16 = 1;
const WALL: u16 = 2 | 5 << 4;
const DOOR: u16 = 4;
const KEY: u16 = 5;
const GOAL: u16 = 8 | 1 << 4;
/// Colour of the door and the key of [`DoorKey`].
const YELLOW: u16 = 4 << 4;
/// State of a door; an open one has none.
const CLOSED: u16 = 1 << 8;
const LOCKED: u16 = 2 << 8;
const N_COLORS: u16 = 6;
/// Colours for pictures.
const COLORS: [Color; 6] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [112, 39, 195], [255, 255, 0], [100, 100, 100]];

/// State of an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Object, colour and state of each cell, row by row.
    pub cells: Vec<u16>,
    /// Column and row of the agent.
    pub agent_pos: [u8; 2],
    /// Direction of the agent.
    pub agent_dir: u8,
    /// Key that the agent carries, or 0.
    pub carrying: u16,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

/// Rules for the start of an episode.
pub trait Level: Clone + Debug + Default + Send + 'static {
    /// Rows and columns of the grid.
    const SIZE: usize;
    /// Steps after which an episode is truncated.
    const MAX_STEPS: u32;
    /// True if nothing hides what is behind it.
    const SEES_ALL: bool = false;
    /// Builds the grid, and places the agent.
    fn build(grid: &mut Grid, rng: &mut Rng);
}

/// Cells, and the agent among them.
#[derive(Clone, Debug)]
pub struct Grid {
    cells: Vec<u16>,
    size: usize,
    agent: [u8; 2],
    direction: u8,
}

/// Columns from the first to before the second, and rows likewise.
type Area = [[usize; 2]; 2];

impl Grid {
    fn put(&mut self, [x, y]: [usize; 2], cell: u16) {
        self.cells[y * self.size + x] = cell;
    }

    /// Surrounds an area with walls.
    fn wall_in(&mut self, [[left, right], [top, bottom]]: Area) {
        for x in left..right {
            self.put([x, top], WALL);
            self.put([x, bottom - 1], WALL);
        }
        for y in top..bottom {
            self.put([left, y], WALL);
            self.put([right - 1, y], WALL);
        }
    }

    /// Draws an empty cell of an area that is not the agent's.
    fn draw_free(&self, [[left, right], [top, bottom]]: Area, rng: &mut Rng) -> [usize; 2] {
        let agent = self.agent.map(usize::from);
        let is_free = |at: &[usize; 2]| self.cells[at[1] * self.size + at[0]] == EMPTY && *at != agent;
        let all = || (top..bottom).flat_map(|y| (left..right).map(move |x| [x, y])).filter(is_free);
        let rank = rng.below(all().count() as u32);
        all().nth(rank as usize).unwrap_or_default()
    }

    /// Places the agent in an area, with a direction.
    fn place_agent(&mut self, area: Area, rng: &mut Rng) {
        self.agent = [u8::MAX; 2];
        self.agent = self.draw_free(area, rng).map(|x| x as u8);
        self.direction = rng.below(4) as u8;
    }
}

/// One room: the agent anywhere, the goal in the lower right corner.
#[derive(Clone, Debug, Default)]
pub struct Empty;

impl Level for Empty {
    const SIZE: usize = 8;
    const MAX_STEPS: u32 = 4 * 8 * 8;
    const SEES_ALL: bool = true;

    fn build(grid: &mut Grid, rng: &mut Rng) {
        let all = [[0, Self::SIZE]; 2];
        grid.wall_in(all);
        grid.put([Self::SIZE - 2; 2], GOAL);
        grid.place_agent(all, rng);
    }
}

/// Two rooms with a locked door between them.
///
/// The agent and a key are in the left one, the goal is in the lower right corner.
#[derive(Clone, Debug, Default)]
pub struct DoorKey;

impl Level for DoorKey {
    const SIZE: usize = 8;
    const MAX_STEPS: u32 = 10 * 8 * 8;

    fn build(grid: &mut Grid, rng: &mut Rng) {
        grid.wall_in([[0, Self::SIZE]; 2]);
        grid.put([Self::SIZE - 2; 2], GOAL);
        let wall = 2 + rng.below(Self::SIZE as u32 - 4) as usize;
        (0..Self::SIZE).for_each(|y| grid.put([wall, y], WALL));
        let left = [[0, wall], [0, Self::SIZE]];
        grid.place_agent(left, rng);
        grid.put([wall, 1 + rng.below(Self::SIZE as u32 - 3) as usize], DOOR | YELLOW | LOCKED);
        let key = grid.draw_free(left, rng);
        grid.put(key, KEY | YELLOW);
    }
}

/// Two rooms of 4 by 4 cells (walls included) anywhere, with a closed door.
///
/// The agent is in the first, the goal in the second.
#[derive(Clone, Debug, Default)]
pub struct MultiRoom;

/// A room of [`MultiRoom`].
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Column and row of the upper left corner.
    top: [i32; 2],
    /// Columns and rows, walls included.
    size: [i32; 2],
    /// Wall through which the room is entered, by the direction from its centre.
    entry: u32,
    /// Column and row of the door.
    door: [i32; 2],
}

impl Room {
    const N: usize = 2;
    const MIN: i32 = 4;
    const MAX: i32 = 4;
    /// Attempts to place a room next to another.
    const TRIES: usize = 8;

    /// Draws a room behind a door, or `None` if there is no space for it.
    ///
    /// The first one begins at its door.
    fn draw(before: &[Self], entry: u32, door: [i32; 2], rng: &mut Rng) -> Option<Self> {
        let limit = MultiRoom::SIZE as i32;
        let size = [0; 2].map(|_| Self::MIN + rng.below((Self::MAX - Self::MIN + 1) as u32) as i32);
        let mut top = door;
        if !before.is_empty() {
            let (along, across) = ((entry & 1) as usize, 1 - (entry & 1) as usize);
            top[along] -= if entry < 2 { size[along] - 1 } else { 0 };
            top[across] -= size[across] - 2 - rng.below(size[across] as u32 - 2) as i32;
        }
        let is_inside = top[0] >= 0 && top[1] >= 0 && top[0] + size[0] <= limit && top[1] + size[1] < limit;
        let apart = |of: &Self, axis: usize| top[axis] + size[axis] < of.top[axis] || of.top[axis] + of.size[axis] <= top[axis];
        let others = &before[..before.len().saturating_sub(1)];
        (is_inside && others.iter().all(|of| apart(of, 0) || apart(of, 1))).then_some(Self { top, size, entry, door })
    }

    /// Draws a door in another wall, and the room behind it.
    fn draw_next(before: &[Self], rng: &mut Rng) -> Option<Self> {
        let Self { top, size, entry, .. } = *before.last()?;
        let exit = (entry + 1 + rng.below(3)) & 3;
        let (along, across) = ((exit & 1) as usize, 1 - (exit & 1) as usize);
        let mut door = top;
        door[along] += if exit < 2 { size[along] - 1 } else { 0 };
        door[across] += 1 + rng.below(size[across] as u32 - 2) as i32;
        Self::draw(before, (exit + 2) & 3, door, rng)
    }

    /// Draws all rooms, again from the first one where there is no space for the next.
    fn draw_all(rng: &mut Rng) -> [Self; Self::N] {
        let mut rooms = [Self::default(); Self::N];
        let mut n = 0;
        while n < Self::N {
            let corner = [0; 2].map(|_| rng.below(MultiRoom::SIZE as u32 - 2) as i32);
            let first = Self::draw(&[], 2, corner, rng);
            n = 0;
            let mut next = first;
            while let Some(room) = next {
                rooms[n] = room;
                n += 1;
                next = if n < Self::N { (0..Self::TRIES).find_map(|_| Self::draw_next(&rooms[..n], rng)) } else { None };
            }
        }
        rooms
    }

    fn area(&self) -> Area {
        [0, 1].map(|axis| [self.top[axis] as usize, (self.top[axis] + self.size[axis]) as usize])
    }
}

impl Level for MultiRoom {
    const SIZE: usize = 25;
    const MAX_STEPS: u32 = 20 * Room::N as u32;

    fn build(grid: &mut Grid, rng: &mut Rng) {
        let rooms = Room::draw_all(rng);
        let mut color = 0;
        for (k, room) in rooms.iter().enumerate() {
            grid.wall_in(room.area());
            if k > 0 {
                // Another colour than the last door's.
                let n = u32::from(N_COLORS);
                color = if k == 1 { rng.below(n) } else { (color + 1 + rng.below(n - 1)) % n };
                grid.put(room.door.map(|x| x as usize), DOOR | (color as u16) << 4 | CLOSED);
            }
        }
        grid.place_agent(rooms[0].area(), rng);
        let goal = grid.draw_free(rooms[Room::N - 1].area(), rng);
        grid.put(goal, GOAL);
    }
}

/// True if the agent sees what is behind this cell.
///
/// It may enter such a cell, too, unless a key is there.
#[inline(always)]
fn is_transparent(cell: u16) -> bool {
    cell & 15 != 2 && cell < CLOSED
}

/// Returns the bits that light reaches from `lit` in ascending order.
///
/// It passes the bits of `clear`, and lights the first that is not set: so does a carry in a sum.
#[inline(always)]
fn spread_up(lit: u8, clear: u8) -> u8 {
    lit | (clear + (lit & clear)) ^ clear
}

/// Returns the bits that light reaches from `lit` in descending order.
#[inline(always)]
fn spread_down(lit: u8, clear: u8) -> u8 {
    let (mut lit, mut path) = (lit, clear >> 1);
    for shift in [1, 2, 4] {
        lit |= path & lit >> shift;
        path &= path >> shift;
    }
    lit
}

/// Returns the cells that the agent sees, from those that hide nothing.
///
/// A row is a byte with a bit for each column.
#[inline(always)]
fn visible(clear: [u8; VIEW]) -> [u8; VIEW] {
    const ALL: u8 = (1 << VIEW) - 1;
    let mut rows = [0; VIEW];
    let mut lit = 1 << (VIEW / 2);
    for (row, clear) in rows.iter_mut().zip(clear).rev() {
        let clear = clear & ALL;
        let right = spread_up(lit, clear) & ALL;
        *row = spread_down(right, clear);
        // A cell that hides nothing lights the three before it.
        let from = *row & clear;
        lit = from | from >> 1 | from << 1;
    }
    rows
}

/// A grid world with the levels `L`.
#[derive(Clone, Debug)]
pub struct GridWorld<L> {
    grid: Grid,
    carrying: u16,
    elapsed: u32,
    level: PhantomData<L>,
}

impl<L: Level> Default for GridWorld<L> {
    fn default() -> Self {
        let grid = Grid { cells: vec![EMPTY; L::SIZE * L::SIZE], size: L::SIZE, agent: [1; 2], direction: 0 };
        Self { grid, carrying: 0, elapsed: 0, level: PhantomData }
    }
}

/// Column and row of a step in a direction.
#[inline(always)]
fn ahead(direction: u8) -> [i32; 2] {
    [[1, 0], [0, 1], [-1, 0], [0, -1]][usize::from(direction & 3)]
}

impl<L: Level> GridWorld<L> {
    /// Returns the position of the cell ahead, or `None` outside the grid.
    #[inline(always)]
    fn front(&self) -> Option<[u8; 2]> {
        let ([x, y], [dx, dy]) = (self.grid.agent.map(i32::from), ahead(self.grid.direction));
        let is_inside = |x: i32| (0..L::SIZE as i32).contains(&x);
        (is_inside(x + dx) && is_inside(y + dy)).then_some([(x + dx) as u8, (y + dy) as u8])
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let limit = L::SIZE as i32 - 1;
        let ([x, y], [dx, dy]) = (self.grid.agent.map(i32::from), ahead(self.grid.direction));
        // A cell is found by its row and its column in the view. Outside the grid it is one of the border, past which the agent
        // does not see.
        let column = |x: i32| x.clamp(0, limit) as usize;
        let row = |y: i32| y.clamp(0, limit) as usize * L::SIZE;
        let (mut rows, mut columns) = ([0; VIEW], [0; WIDTH]);
        for (at, depth) in rows.iter_mut().zip((0..VIEW as i32).rev()) {
            *at = if dy == 0 { column(x + dx * depth) } else { row(y + dy * depth) };
        }
        for (at, side) in columns.iter_mut().zip(-(VIEW as i32) / 2..) {
            *at = if dy == 0 { row(y + dx * side) } else { column(x - dy * side) };
        }
        // Loops, for `map` is not compiled for the instruction set.
        let mut view = [[0u16; WIDTH]; VIEW];
        let mut clear = [0u8; VIEW];
        for ((cells, clear), row) in view.iter_mut().zip(&mut clear).zip(rows) {
            for (cell, column) in cells.iter_mut().zip(columns) {
                *cell = self.grid.cells[row + column];
            }
            for (i, &cell) in cells.iter().enumerate() {
                *clear |= u8::from(is_transparent(cell)) << i;
            }
        }
        let visible = if L::SEES_ALL { [u8::MAX; VIEW] } else { visible(clear) };
        view[VIEW - 1][VIEW / 2] = if self.carrying == 0 { EMPTY } else { self.carrying };
        for (j, (cells, visible)) in view.iter_mut().zip(visible).enumerate() {
            for (i, cell) in cells.iter_mut().enumerate() {
                *cell &= if visible >> i & 1 == 1 { u16::MAX } else { 0 };
            }
            for (plane, shift) in [0, 4, 8].into_iter().enumerate() {
                let at = plane * SEEN + j * VIEW;
                for (x, &cell) in obs[at..at + VIEW].iter_mut().zip(&*cells) {
                    *x = (cell >> shift & 15) as u8;
                }
            }
        }
        obs[3 * SEEN..].fill(self.grid.direction);
    }
}

impl<L: Level> Env for GridWorld<L> {
    type Obs = u8;
    type State = State;

    fn observation_space(&self) -> Space {
        Space::bytes(&[4, VIEW, VIEW], 10, 0.1)
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 7, masked: false }
    }

    fn heap_bytes(&self) -> usize {
        self.grid.cells.capacity() * size_of::<u16>() + 16 // plus the allocator's overhead
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) {
        self.grid.cells.fill(EMPTY);
        L::build(&mut self.grid, rng);
        (self.carrying, self.elapsed) = (0, 0);
        self.observe(obs);
    }

    #[inline(always)]
    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [u8]) -> Step {
        let mut outcome = Step::default();
        self.elapsed += 1;
        let front = self.front();
        let mut nothing = WALL;
        let cell = match front {
            Some([x, y]) => &mut self.grid.cells[usize::from(y) * L::SIZE + usize::from(x)],
            None => &mut nothing,
        };
        match action.discrete() {
            0 => self.grid.direction = (self.grid.direction + 3) & 3,
            1 => self.grid.direction = (self.grid.direction + 1) & 3,
            2 if is_transparent(*cell) && *cell & 15 != KEY => {
                outcome.terminated = *cell == GOAL;
                self.grid.agent = front.unwrap_or(self.grid.agent);
            }
            3 if *cell & 15 == KEY && self.carrying == 0 => self.carrying = std::mem::replace(cell, EMPTY),
            4 if *cell == EMPTY && self.carrying != 0 => *cell = std::mem::take(&mut self.carrying),
            5 if *cell & 15 == DOOR => {
                let (color, state) = (*cell & 0xf0, *cell & !0xff);
                *cell = match state {
                    0 => DOOR | color | CLOSED,
                    LOCKED if self.carrying != KEY | color => *cell,
                    _ => DOOR | color,
                };
            }
            _ => {}
        }
        if outcome.terminated {
            outcome.reward = 1.0 - 0.9 * (self.elapsed as f32 / L::MAX_STEPS as f32);
        }
        outcome.truncated = self.elapsed >= L::MAX_STEPS;
        self.observe(obs);
        outcome
    }

    fn render(&self, canvas: &mut Canvas) {
        let size = L::SIZE as f32;
        canvas.view(0.0..size, 0.0..size, [0, 0, 0]);
        for (i, &cell) in self.grid.cells.iter().enumerate() {
            let (x, y) = ((i % L::SIZE) as f32, size - 1.0 - (i / L::SIZE) as f32);
            let color = COLORS[usize::from(cell >> 4 & 15).min(5)];
            match cell & 15 {
                2 | 8 => canvas.rect(x..x + 1.0, y..y + 1.0, color),
                DOOR => {
                    let rim = if cell < CLOSED { 0.85..1.0 } else { 0.05..0.95 };
                    canvas.rect(x + rim.start..x + rim.end, y + 0.05..y + 0.95, color);
                    if cell & LOCKED != 0 {
                        canvas.rect(x + 0.15..x + 0.85, y + 0.15..y + 0.85, color.map(|c| c / 2));
                    }
                }
                KEY => {
                    canvas.disc([x + 0.5, y + 0.7], 0.18, color);
                    canvas.line([x + 0.5, y + 0.7], [x + 0.5, y + 0.2], 0.12, color);
                }
                _ => {}
            }
        }
        let ([dx, dy], [x, y]) = (ahead(self.grid.direction).map(|d| d as f32), self.grid.agent.map(f32::from));
        let (x, y, dy) = (x + 0.5, size - 0.5 - y, -dy);
        let corner = |along: f32, across: f32| [x + along * dx - across * dy, y + along * dy + across * dx];
        canvas.polygon(&[corner(0.4, 0.0), corner(-0.35, 0.35), corner(-0.35, -0.35)], [255, 0, 0]);
    }

    fn state(&self) -> Option<State> {
        let Self { grid: Grid { cells, agent, direction, .. }, carrying, elapsed, .. } = self;
        let (agent_pos, agent_dir, carrying, elapsed) = (*agent, *direction, *carrying, *elapsed);
        Some(State { cells: cells.clone(), agent_pos, agent_dir, carrying, elapsed })
    }

    fn set_state(&mut self, state: State) -> Result<(), Error> {
        let State { cells, agent_pos: [x, y], agent_dir, carrying, elapsed } = state;
        let bad = |why: String| Err(Error::BadState(why));
        let size = L::SIZE;
        if cells.len() != size * size {
            return bad(format!("cells has {} numbers, the grid has {size} rows and columns", cells.len()));
        }
        let is_key = |cell: u16| cell & 15 == KEY && cell >> 4 < N_COLORS;
        let is_door = |cell: u16| cell & 15 == DOOR && (cell >> 4 & 15) < N_COLORS && cell <= LOCKED + 0xff;
        let is_known = |cell: u16| [EMPTY, WALL, GOAL].contains(&cell) || is_key(cell) || is_door(cell);
        if let Some(i) = cells.iter().position(|&cell| !is_known(cell)) {
            return bad(format!("cell {i} is {}, which is no object", cells[i]));
        }
        if usize::from(x) >= size || usize::from(y) >= size || agent_dir > 3 {
            return bad(format!("agent_pos must be 0 to {}, agent_dir 0 to 3", size - 1));
        }
        let under = cells[usize::from(y) * size + usize::from(x)];
        if under != EMPTY && !(is_door(under) && under < CLOSED) {
            return bad("the agent must be in an empty cell or an open door".into());
        }
        if carrying != 0 && !is_key(carrying) {
            return bad(format!("carrying is {carrying}, which is neither a key nor 0"));
        }
        if elapsed >= L::MAX_STEPS {
            return bad(format!("elapsed is {elapsed}, an episode ends at step {}", L::MAX_STEPS));
        }
        self.grid = Grid { cells, size, agent: [x, y], direction: agent_dir };
        (self.carrying, self.elapsed) = (carrying, elapsed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    /// Draws starts of a level.
    fn starts<L: Level>(n: u64) -> impl Iterator<Item = State> {
        let mut env = GridWorld::<L>::default();
        (0..n).map(move |step| {
            let mut obs = vec![0; env.observation_space().len()];
            env.reset(&mut Rng::new(3, 0, step, Purpose::Reset), &mut obs);
            let state = env.state().unwrap();
            assert!(env.set_state(state.clone()).is_ok(), "{state:?}");
            state
        })
    }

    fn find(state: &State, size: usize, is_it: impl Fn(u16) -> bool) -> Vec<[usize; 2]> {
        (0..size * size).filter(|&i| is_it(state.cells[i])).map(|i| [i % size, i / size]).collect()
    }

    /// MiniGrid's `process_vis`, cell by cell.
    fn slowly_visible(clear: [u8; VIEW]) -> [u8; VIEW] {
        let mut rows = [0u8; VIEW];
        rows[VIEW - 1] = 1 << 3;
        for j in (0..VIEW).rev() {
            let mut pass = |i: usize, to: usize| {
                if rows[j] >> i & 1 == 1 && clear[j] >> i & 1 == 1 {
                    rows[j] |= 1 << to;
                    if j > 0 {
                        rows[j - 1] |= 1 << to | 1 << i;
                    }
                }
            };
            (0..VIEW - 1).for_each(|i| pass(i, i + 1));
            (1..VIEW).rev().for_each(|i| pass(i, i - 1));
        }
        rows
    }

    #[test]
    fn a_view_is_that_of_the_reference_s_loops() {
        let rng = &mut Rng::new(0, 0, 0, Purpose::Step);
        for round in 0..20_000 {
            // From few to many cells that hide others.
            let clear = [0; VIEW].map(|_| (0..round % 4).fold(rng.below(128), |bits, _| bits | rng.below(128)) as u8);
            assert_eq!(visible(clear), slowly_visible(clear), "{clear:?}");
        }
    }

    #[test]
    fn door_and_key_are_drawn_uniformly_on_the_agent_s_side() {
        let mut walls = [0; 8];
        for state in starts::<DoorKey>(6_000) {
            let [door] = find(&state, 8, |cell| cell == DOOR | YELLOW | LOCKED)[..] else { panic!("{state:?}") };
            let [key] = find(&state, 8, |cell| cell == KEY | YELLOW)[..] else { panic!("{state:?}") };
            assert_eq!(find(&state, 8, |cell| cell == GOAL), [[6, 6]]);
            assert!(key[0] < door[0] && usize::from(state.agent_pos[0]) < door[0] && (1..6).contains(&door[1]));
            walls[door[0]] += 1;
        }
        // Binomial with mean 1500 and standard deviation 34.
        assert!(walls[2..6].iter().all(|n| (1_350..1_650).contains(n)) && walls[2..6].iter().sum::<i32>() == 6_000, "{walls:?}");
    }

    #[test]
    fn the_second_of_two_rooms_is_entered_by_a_closed_door() {
        let (mut directions, mut colors) = ([0; 4], [0; 6]);
        for state in starts::<MultiRoom>(6_000) {
            let [door] = find(&state, 25, |cell| cell & 15 == DOOR)[..] else { panic!("{state:?}") };
            let cell = state.cells[25 * door[1] + door[0]];
            assert_eq!(cell & !0xff, CLOSED);
            colors[usize::from(cell >> 4 & 15)] += 1;
            directions[usize::from(state.agent_dir)] += 1;
            assert_eq!(find(&state, 25, |cell| cell == GOAL).len(), 1);
            // A way from the agent to the goal.
            let mut reached = vec![state.agent_pos.map(usize::from)];
            for next in 0.. {
                let Some(&[x, y]) = reached.get(next) else { break };
                for to in [[x + 1, y], [x, y + 1], [x - 1, y], [x, y - 1]] {
                    if state.cells[25 * to[1] + to[0]] != WALL && !reached.contains(&to) {
                        reached.push(to);
                    }
                }
            }
            assert_eq!(reached.len(), 4 + 1 + 4, "two rooms and the door: {state:?}");
        }
        // Binomial with mean 1500 and 1000, standard deviation 34 and 29.
        assert!(directions.iter().all(|n| (1_350..1_650).contains(n)), "{directions:?}");
        assert!(colors.iter().all(|n| (870..1_130).contains(n)), "{colors:?}");
    }

    #[test]
    fn a_door_opens_with_a_key_of_its_color_alone() {
        let mut env = GridWorld::<DoorKey>::default();
        let mut state = starts::<DoorKey>(1).next().unwrap();
        let [[x, y]] = find(&state, 8, |cell| cell & 15 == DOOR)[..] else { panic!("{state:?}") };
        (state.agent_pos, state.agent_dir) = ([x as u8 - 1, y as u8], 0);
        state.cells[8 * y + x - 1] = EMPTY;
        for (carrying, opens) in [(0, false), (KEY | 1 << 4, false), (KEY | YELLOW, true)] {
            env.set_state(State { carrying, ..state.clone() }).unwrap();
            env.step(Action::Discrete(5), &mut Rng::new(0, 0, 0, Purpose::Step), &mut [0; 4 * SEEN]);
            assert_eq!(env.grid.cells[8 * y + x], DOOR | YELLOW | if opens { 0 } else { LOCKED }, "{carrying}");
        }
    }
}
