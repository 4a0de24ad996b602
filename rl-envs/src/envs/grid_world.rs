//! Grid worlds: rooms with doors and keys, seen from where the agent stands.
//!
//! Source: MiniGrid 3.2.0 (Chevalier-Boisvert et al., 2023): `Empty-8x8` with a random start, `DoorKey-8x8`,
//! `MultiRoom-N2-S4`.
//!
//! - Observation, u8 (4, 7, 7), to be divided by 10: the cells around and ahead of the agent, which stands in the middle of the
//!   last row and faces the first one.
//!   - Plane 0, objects: unseen 0, empty 1, wall 2, door 4, key 5, goal 8. The agent's cell shows the key that it carries, or is
//!     empty.
//!   - Plane 1, colours: red 0, green 1, blue 2, purple 3, yellow 4, grey 5.
//!   - Plane 2, doors: open 0, closed 1, locked 2.
//!   - Plane 3, the agent's direction in every cell: right 0, down 1, left 2, up 3.
//!   - Walls and doors that are not open hide the cells behind them, except in [`Empty`]. Planes 0 to 2 of an unseen cell are 0.
//! - Action, discrete (7): turn left (0), turn right (1), forward (2), pick up (3), drop (4), toggle (5), nothing (6). Actions 2
//!   to 5 act on the cell ahead. An empty cell, an open door and the goal can be entered. A key is picked up by an agent that
//!   carries none, and dropped on an empty cell. A door opens or closes; a locked one opens with a key of its colour.
//! - Reward: `1 - 0.9 * (steps / limit)` in the step that reaches the goal, otherwise 0.
//! - `terminated`: at the goal.
//! - `truncated`: at the limit, step 256 ([`Empty`]), 640 ([`DoorKey`]), 40 ([`MultiRoom`]). A step may set both.
//! - Start: see the levels. The agent and what is drawn are on a free cell of their room, uniformly; so is the direction.
//! - State, by field name: `cells` (rows of `object + 16 * colour + 256 * state`), `agent_pos` (column and row), `agent_dir`,
//!   `carrying` (a key, or 0), `elapsed`.
//!
//! Departures from the reference: planes come first (there last); the direction is a plane (there a number); the mission, the
//! same in every episode of a level, is left out; outside the grid the nearest cell is seen (there a wall), which differs only in
//! states that no episode reaches.

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

/// Rules for the start of an episode: [`Empty`], [`DoorKey`] or [`MultiRoom`].
pub trait Level: Clone + Debug + Send + 'static {
    /// Rows and columns of the grid.
    const SIZE: usize;
    /// Steps after which an episode is truncated.
    const MAX_STEPS: u32;
    /// True if nothing hides what is behind it.
    const SEES_ALL: bool = false;
    /// Builds the grid, and places the agent.
    fn build(grid: &mut Grid, rng: &mut Rng);
}

/// Cells and the agent of an episode, which a [`Level`] fills.
#[derive(Clone, Debug)]
pub struct Grid {
    cells: Vec<u16>,
    size: usize,
    agent: [u8; 2],
    direction: u8,
}

/// Ranges of columns and of rows, each without its end.
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
        let nth = rng.below(all().count() as u32);
        all().nth(nth as usize).expect("an area has free cells")
    }

    /// Places the agent in an area, with a direction.
    fn place_agent(&mut self, area: Area, rng: &mut Rng) {
        self.agent = [u8::MAX; 2];
        self.agent = self.draw_free(area, rng).map(|x| x as u8);
        self.direction = rng.below(4) as u8;
    }
}

/// One room: the agent anywhere, the goal in the lower right corner.
#[derive(Clone, Debug)]
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

/// Two rooms of an 8 by 8 grid with a locked yellow door between them.
///
/// The wall is in column 2 to 5, the door in row 1 to 5, uniformly. The agent and the key start in the left room, the goal is in
/// the lower right corner.
#[derive(Clone, Debug)]
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

/// Two rooms of 4 by 4 cells that share a wall with a closed door.
///
/// The grid has 25 by 25 cells. The agent starts in the first room, the goal is in the second. The door's colour is uniform.
#[derive(Clone, Debug)]
pub struct MultiRoom;

/// A room of [`MultiRoom`], by the column and row of its upper left corner.
#[derive(Clone, Copy, Debug)]
struct Room([i32; 2]);

impl Room {
    /// Rows and columns, walls included.
    const SIZE: i32 = 4;
    /// Attempts to place the second room next to the first.
    const TRIES: usize = 8;

    /// True if the room is inside the grid, whose last row it may not touch.
    fn fits(&self) -> bool {
        let limit = MultiRoom::SIZE as i32 - Self::SIZE;
        (0..=limit).contains(&self.0[0]) && (0..limit).contains(&self.0[1])
    }

    /// Draws a door in any wall but the left one, and the room behind it.
    fn draw_next(&self, rng: &mut Rng) -> (Self, [i32; 2]) {
        let exit = (3 + rng.below(3)) & 3;
        let (along, across) = ((exit & 1) as usize, 1 - (exit & 1) as usize);
        let mut door = self.0;
        door[along] += if exit < 2 { Self::SIZE - 1 } else { 0 };
        door[across] += 1 + rng.below(Self::SIZE as u32 - 2) as i32;
        let mut corner = door;
        corner[along] -= if exit < 2 { 0 } else { Self::SIZE - 1 };
        corner[across] -= Self::SIZE - 2 - rng.below(Self::SIZE as u32 - 2) as i32;
        (Self(corner), door)
    }

    /// Draws both rooms and the door.
    ///
    /// Again from the first one if the second finds no space.
    fn draw_both(rng: &mut Rng) -> (Self, Self, [i32; 2]) {
        loop {
            let first = Self([0; 2].map(|_| rng.below(MultiRoom::SIZE as u32 - 2) as i32));
            let tries = if first.fits() { Self::TRIES } else { 0 };
            if let Some((second, door)) = (0..tries).map(|_| first.draw_next(rng)).find(|(second, _)| second.fits()) {
                return (first, second, door);
            }
        }
    }

    fn area(&self) -> Area {
        self.0.map(|x| [x as usize, (x + Self::SIZE) as usize])
    }
}

impl Level for MultiRoom {
    const SIZE: usize = 25;
    const MAX_STEPS: u32 = 20 * 2;

    fn build(grid: &mut Grid, rng: &mut Rng) {
        let (first, second, door) = Room::draw_both(rng);
        grid.wall_in(first.area());
        grid.wall_in(second.area());
        let color = rng.below(N_COLORS.into()) as u16;
        grid.put(door.map(|x| x as usize), DOOR | color << 4 | CLOSED);
        grid.place_agent(first.area(), rng);
        let goal = grid.draw_free(second.area(), rng);
        grid.put(goal, GOAL);
    }
}

/// True if the agent sees what is behind this cell.
///
/// It may enter such a cell, too, unless a key is there.
#[inline(always)]
fn is_transparent(cell: u16) -> bool {
    cell != WALL && cell < CLOSED
}

/// Returns `lit` and the columns to the right that it reaches.
///
/// Light passes the cells of `transparent` and ends in the first other cell, as a carry does in a sum.
#[inline(always)]
fn spread_right(lit: u8, transparent: u8) -> u8 {
    lit | (transparent + (lit & transparent)) ^ transparent
}

/// Returns `lit` and the columns to the left that it reaches.
#[inline(always)]
fn spread_left(lit: u8, transparent: u8) -> u8 {
    let (mut lit, mut path) = (lit, transparent >> 1);
    for shift in [1, 2, 4] {
        lit |= path & lit >> shift;
        path &= path >> shift;
    }
    lit
}

/// Returns the visible cells of a view, from its transparent cells.
///
/// A row is a byte; bit i is column i.
#[inline(always)]
fn visible(transparent: [u8; VIEW]) -> [u8; VIEW] {
    const ALL: u8 = (1 << VIEW) - 1;
    let mut rows = [0; VIEW];
    let mut lit = 1 << (VIEW / 2);
    for (row, transparent) in rows.iter_mut().zip(transparent).rev() {
        let transparent = transparent & ALL;
        let right = spread_right(lit, transparent) & ALL;
        *row = spread_left(right, transparent);
        // A transparent cell lights the three cells ahead of it.
        let from = *row & transparent;
        lit = from | from >> 1 | from << 1;
    }
    rows
}

/// A grid world of the level `L`.
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
        // The index of a cell is an offset for its row in the view and one for its column. Outside the grid the nearest cell is
        // read: a wall, or a cell that a room's walls hide.
        let column_offset = |x: i32| x.clamp(0, limit) as usize;
        let row_offset = |y: i32| y.clamp(0, limit) as usize * L::SIZE;
        let (mut depth_offsets, mut side_offsets) = ([0; VIEW], [0; WIDTH]);
        for (offset, depth) in depth_offsets.iter_mut().zip((0..VIEW as i32).rev()) {
            *offset = if dy == 0 { column_offset(x + dx * depth) } else { row_offset(y + dy * depth) };
        }
        for (offset, side) in side_offsets.iter_mut().zip(-(VIEW as i32) / 2..) {
            *offset = if dy == 0 { row_offset(y + dx * side) } else { column_offset(x - dy * side) };
        }
        // Loops, because closures passed to `map` are not compiled for the instruction set.
        let mut view = [[0u16; WIDTH]; VIEW];
        let mut transparent = [0u8; VIEW];
        for ((cells, transparent), depth) in view.iter_mut().zip(&mut transparent).zip(depth_offsets) {
            for (cell, side) in cells.iter_mut().zip(side_offsets) {
                *cell = self.grid.cells[depth + side];
            }
            for (i, &cell) in cells.iter().enumerate() {
                *transparent |= u8::from(is_transparent(cell)) << i;
            }
        }
        let visible = if L::SEES_ALL { [u8::MAX; VIEW] } else { visible(transparent) };
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
        let mut outside = WALL;
        let cell = match front {
            Some([x, y]) => &mut self.grid.cells[usize::from(y) * L::SIZE + usize::from(x)],
            None => &mut outside,
        };
        match (action.discrete(), front) {
            (0, _) => self.grid.direction = (self.grid.direction + 3) & 3,
            (1, _) => self.grid.direction = (self.grid.direction + 1) & 3,
            (2, Some(to)) if is_transparent(*cell) && *cell & 15 != KEY => {
                outcome.terminated = *cell == GOAL;
                self.grid.agent = to;
            }
            (3, _) if *cell & 15 == KEY && self.carrying == 0 => self.carrying = std::mem::replace(cell, EMPTY),
            (4, _) if *cell == EMPTY && self.carrying != 0 => *cell = std::mem::take(&mut self.carrying),
            (5, _) if *cell & 15 == DOOR => {
                let color = *cell & 0xf0;
                if *cell < CLOSED {
                    *cell |= CLOSED;
                } else if *cell < LOCKED || self.carrying == KEY | color {
                    *cell = DOOR | color;
                }
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
            let color = COLORS[usize::from(cell >> 4 & 15)];
            match cell & 15 {
                _ if cell == WALL || cell == GOAL => canvas.rect(x..x + 1.0, y..y + 1.0, color),
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
            return bad(format!("cells has {} numbers, not {} ({size} rows of {size})", cells.len(), size * size));
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
    fn slowly_visible(transparent: [u8; VIEW]) -> [u8; VIEW] {
        let mut rows = [0u8; VIEW];
        rows[VIEW - 1] = 1 << 3;
        for j in (0..VIEW).rev() {
            let mut pass = |i: usize, to: usize| {
                if rows[j] >> i & 1 == 1 && transparent[j] >> i & 1 == 1 {
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
    fn a_view_equals_minigrid_s_process_vis() {
        let rng = &mut Rng::new(0, 0, 0, Purpose::Step);
        for round in 0..20_000 {
            // From many to few cells that hide others.
            let transparent = [0; VIEW].map(|_| (0..round % 4).fold(rng.below(128), |bits, _| bits | rng.below(128)) as u8);
            assert_eq!(visible(transparent), slowly_visible(transparent), "{transparent:?}");
        }
    }

    #[test]
    fn the_wall_and_the_door_are_uniform_and_the_key_is_on_the_agent_s_side() {
        let (mut walls, mut rows) = ([0; 8], [0; 8]);
        for state in starts::<DoorKey>(6_000) {
            let [door] = find(&state, 8, |cell| cell == DOOR | YELLOW | LOCKED)[..] else { panic!("{state:?}") };
            let [key] = find(&state, 8, |cell| cell == KEY | YELLOW)[..] else { panic!("{state:?}") };
            assert_eq!(find(&state, 8, |cell| cell == GOAL), [[6, 6]]);
            assert!(key[0] < door[0] && usize::from(state.agent_pos[0]) < door[0] && (1..6).contains(&door[1]));
            walls[door[0]] += 1;
            rows[door[1]] += 1;
        }
        // Binomial with means 1500 and 1200, standard deviations 34 and 31.
        assert!(walls[2..6].iter().all(|n| (1_350..1_650).contains(n)), "{walls:?}");
        assert!(rows[1..6].iter().all(|n| (1_050..1_350).contains(n)), "{rows:?}");
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
