//! Snake: eat fruit, grow, and neither leave the board nor bite yourself.
//!
//! Source: Jumanji's `Snake-v1` (Bonnet et al., 2023) with the rules that EnvPool 1.2.5's `Jumanji/Snake-v1` shows.
//!
//! - Observation, u8 (5, rows, columns), to be divided by 255; 255 stands for yes:
//!   - plane 0: the body; 1: its head; 2: its tail; 3: the fruit;
//!   - plane 4: the order of the body, `floor(ticks * (255 / length) + 0.5)` in f32, where `ticks` is the number of steps without
//!     fruit until the cell is left: the length at the head, 1 at the tail. The cells of a body of up to 255 all differ.
//! - Action, discrete (4), masked: up (0), right (1), down (2), left (3). Legal is a cell of the board that is empty or the
//!   tail's (which leaves as the head enters).
//! - Reward: 1 for eating a fruit, the last step included.
//! - `terminated`: an illegal action (nothing moves, the observation stays); no legal action is left; the board is full.
//! - `truncated`: at step 4000. A step may set both.
//! - Start: a head anywhere and a fruit on any other cell, uniformly. An eaten fruit reappears on a free cell, uniformly; on a
//!   full board it stays under the head.
//! - State, by field name: `body` (pairs of row and column, head first), `fruit` (row and column), `elapsed`.
//!
//! Departures from the reference: step 4000 truncates (there it terminates); planes come first (there last) and are u8.

use serde::{Deserialize, Serialize};

use crate::{Action, ActionSpace, Canvas, Env, Error, Rng, Space, Step, numerics::math};

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Rows of the board, 4 to 64.
    pub rows: u8,
    /// Columns of the board, 4 to 64.
    pub columns: u8,
    /// Steps after which an episode is truncated, 1 to 60,000.
    pub max_steps: u16,
}

impl Default for Params {
    fn default() -> Self {
        Self { rows: 12, columns: 12, max_steps: 4000 }
    }
}

/// State of an episode, as a person would write it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Rows and columns of the body's cells, head first.
    pub body: Vec<[u8; 2]>,
    /// Row and column of the fruit.
    pub fruit: [u8; 2],
    /// Steps taken in this episode.
    pub elapsed: u16,
}

/// The Snake environment.
///
/// The snake's clock stops while the snake eats. Each cell holds the clock at which the body leaves it, so a step writes one
/// cell.
#[derive(Clone, Debug)]
pub struct Snake {
    params: Params,
    vacated: Vec<u16>, // (rows * columns)
    clock: u16,
    head: [u8; 2],
    length: u16,
    fruit: u16,
    elapsed: u16,
    mask: [u8; 4],
}

impl Default for Snake {
    fn default() -> Self {
        Self::new(Params::default())
    }
}

impl Snake {
    /// Creates an environment with the given constants.
    ///
    /// # Panics
    /// If a constant is out of range.
    #[must_use]
    pub fn new(params: Params) -> Self {
        let Params { rows, columns, max_steps } = params;
        assert!((4..=64).contains(&rows) && (4..=64).contains(&columns), "a board of 4 to 64 rows and columns");
        assert!((1..=60_000).contains(&max_steps), "1 to 60,000 steps");
        let vacated = vec![0; usize::from(rows) * usize::from(columns)];
        let mut snake = Self { params, vacated, clock: 0, head: [0; 2], length: 1, fruit: 1, elapsed: 0, mask: [0; 4] };
        snake.place(&[[0, 0]]);
        snake
    }

    #[inline(always)]
    fn cell(&self, [row, column]: [u8; 2]) -> usize {
        usize::from(row) * usize::from(self.params.columns) + usize::from(column)
    }

    fn position(&self, cell: usize) -> [u8; 2] {
        let columns = usize::from(self.params.columns);
        [(cell / columns) as u8, (cell % columns) as u8]
    }

    /// Returns the cell next to the head.
    ///
    /// Off the board, a coordinate wraps around to a number that no board has.
    #[inline(always)]
    fn ahead(&self, action: usize) -> [u8; 2] {
        const MOVES: [[u8; 2]; 4] = [[u8::MAX, 0], [0, 1], [1, 0], [0, u8::MAX]];
        let ([row, column], [down, right]) = (self.head, MOVES[action & 3]);
        [row.wrapping_add(down), column.wrapping_add(right)]
    }

    /// Updates the mask: the cells next to the head that it may enter.
    #[inline(always)]
    fn look(&mut self) {
        let leaves = self.clock + 1;
        self.mask = std::array::from_fn(|action| {
            let next = self.ahead(action);
            let inside = (next[0] < self.params.rows) & (next[1] < self.params.columns);
            (inside && self.vacated[self.cell(next)] <= leaves).into()
        });
    }

    /// Places a body, head first, on an empty board.
    fn place(&mut self, body: &[[u8; 2]]) {
        self.vacated.fill(0);
        self.clock = 0;
        self.length = body.len() as u16;
        self.head = body[0];
        for (&position, ticks) in body.iter().zip((1..=self.length).rev()) {
            let cell = self.cell(position);
            self.vacated[cell] = ticks;
        }
        self.look();
    }

    /// Draws a free cell uniformly, by its rank.
    #[inline(always)]
    fn free_cell(&self, rng: &mut Rng) -> u16 {
        let rank = rng.below(self.vacated.len() as u32 - u32::from(self.length)) as u16;
        let (mut seen, mut cell) = (0, 0);
        for &vacated in &self.vacated {
            seen += u16::from(vacated <= self.clock);
            cell += u16::from(seen <= rank);
        }
        cell
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        let n = self.vacated.len();
        let (body, rest) = obs.split_at_mut(n);
        let (head, rest) = rest.split_at_mut(n);
        let (tail, rest) = rest.split_at_mut(n);
        let (fruit, order) = rest.split_at_mut(n);
        let (clock, scale) = (self.clock, 255.0 / f32::from(self.length));
        for (((&vacated, body), tail), order) in self.vacated.iter().zip(body).zip(tail).zip(order) {
            let ticks = vacated.saturating_sub(clock);
            *body = if ticks > 0 { 255 } else { 0 };
            *tail = if ticks == 1 { 255 } else { 0 };
            *order = math::round_to_byte(f32::from(ticks) * scale);
        }
        head.fill(0);
        head[self.cell(self.head)] = 255;
        fruit.fill(0);
        fruit[usize::from(self.fruit)] = 255;
    }
}

impl Env for Snake {
    type Obs = u8;
    type State = State;

    fn observation_space(&self) -> Space {
        Space::bytes(&[5, self.params.rows.into(), self.params.columns.into()], 255, 1.0 / 255.0)
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 4, masked: true }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) {
        let head = self.position(rng.below(self.vacated.len() as u32) as usize);
        self.place(&[head]);
        self.elapsed = 0;
        self.fruit = self.free_cell(rng);
        self.observe(obs);
    }

    #[inline(always)]
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [u8]) -> Step {
        let action = action.discrete() as usize;
        let mut outcome = Step { reward: 0.0, terminated: true, truncated: false };
        if self.mask[action & 3] == 1 {
            self.head = self.ahead(action);
            let head = self.cell(self.head);
            let ate = head == usize::from(self.fruit);
            let (clock, length) = (self.clock + u16::from(!ate), self.length + u16::from(ate));
            // Computed before the fields are written; otherwise the compiler reads them back.
            self.vacated[head] = clock + length;
            (self.clock, self.length) = (clock, length);
            let full = usize::from(self.length) == self.vacated.len();
            if ate & !full {
                self.fruit = self.free_cell(rng);
            }
            self.look();
            outcome.reward = if ate { 1.0 } else { 0.0 };
            outcome.terminated = full | (self.mask == [0; 4]);
        }
        self.elapsed += 1;
        outcome.truncated = self.elapsed >= self.params.max_steps;
        self.observe(obs);
        outcome
    }

    fn mask(&self, mask: &mut [u8]) {
        mask.copy_from_slice(&self.mask);
    }

    fn heap_bytes(&self) -> usize {
        self.vacated.capacity() * size_of::<u16>() + 16 // plus the allocator's overhead
    }

    fn render(&self, canvas: &mut Canvas) {
        let (rows, columns) = (f32::from(self.params.rows), f32::from(self.params.columns));
        canvas.view(0.0..columns, 0.0..rows, [250, 250, 247]);
        let mut square = |[row, column]: [u8; 2], color| {
            let (x, y) = (f32::from(column), rows - f32::from(row));
            canvas.rect(x + 0.05..x + 0.95, y - 0.95..y - 0.05, color);
        };
        square(self.position(self.fruit.into()), [200, 55, 60]);
        for (cell, &vacated) in self.vacated.iter().enumerate().filter(|(_, vacated)| **vacated > self.clock) {
            // Eight shades from tail to head, so that a picture has few colours.
            let shade = (8 * u32::from(vacated - self.clock) / u32::from(self.length)) as u8;
            square(self.position(cell), [100 - 8 * shade, 180 - 8 * shade, 110 - 8 * shade]);
        }
        square(self.head, [45, 55, 72]);
    }

    fn state(&self) -> Option<State> {
        let mut body = vec![[0; 2]; self.length.into()];
        for (cell, &vacated) in self.vacated.iter().enumerate().filter(|(_, vacated)| **vacated > self.clock) {
            body[usize::from(self.length - (vacated - self.clock))] = self.position(cell);
        }
        Some(State { body, fruit: self.position(self.fruit.into()), elapsed: self.elapsed })
    }

    fn set_state(&mut self, state: State) -> Result<(), Error> {
        let bad = |why: String| Err(Error::BadState(why));
        let State { body, fruit, elapsed } = state;
        let Params { rows, columns, max_steps } = self.params;
        if let Some([row, column]) = body.iter().chain([&fruit]).find(|[row, column]| *row >= rows || *column >= columns) {
            return bad(format!("row {row}, column {column} is not on a board of {rows} by {columns}"));
        }
        if body.is_empty() || body.len() == self.vacated.len() {
            return bad(format!("body has {} cells, 1 to {} are possible", body.len(), self.vacated.len() - 1));
        }
        let next_to = |[a, b]: [u8; 2], [c, d]: [u8; 2]| a.abs_diff(c) + b.abs_diff(d) == 1;
        if let Some(i) = (1..body.len()).find(|&i| !next_to(body[i - 1], body[i]) || body[..i].contains(&body[i])) {
            return bad(format!("cell {i} of body is not next to the one before it, or is there twice"));
        }
        if body.contains(&fruit) {
            return bad("the fruit is on the body".into());
        }
        // The tail leaves its cell as the head moves.
        let blocked = &body[..body.len() - 1];
        let [row, column] = body[0];
        let around = [[row.wrapping_sub(1), column], [row, column + 1], [row + 1, column], [row, column.wrapping_sub(1)]];
        if around.iter().all(|next| next[0] >= rows || next[1] >= columns || blocked.contains(next)) {
            return bad("the head is shut in, so the episode is over".into());
        }
        if elapsed >= max_steps {
            return bad(format!("elapsed is {elapsed}, an episode ends at step {max_steps}"));
        }
        self.place(&body);
        self.fruit = self.cell(fruit) as u16;
        self.elapsed = elapsed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    fn act(snake: &mut Snake, action: u32) -> (Step, Vec<u8>) {
        let mut obs = vec![7; snake.observation_space().len()];
        let outcome = snake.step(Action::Discrete(action), &mut Rng::new(0, 0, 1, Purpose::Step), &mut obs);
        (outcome, obs)
    }

    fn snake(body: &[[u8; 2]], fruit: [u8; 2]) -> Snake {
        let mut snake = Snake::new(Params { rows: 4, columns: 4, max_steps: 50 });
        snake.set_state(State { body: body.into(), fruit, elapsed: 0 }).unwrap();
        snake
    }

    #[test]
    fn eating_grows_at_the_head_and_moving_leaves_at_the_tail() {
        let mut snake = snake(&[[1, 1], [1, 0]], [1, 2]);
        let (outcome, obs) = act(&mut snake, 1);
        assert_eq!(outcome, Step { reward: 1.0, terminated: false, truncated: false });
        let state = snake.state().unwrap();
        assert_eq!(state.body, [[1, 2], [1, 1], [1, 0]]);
        assert!(!state.body.contains(&state.fruit));
        assert_eq!(obs[..16].iter().filter(|&&x| x == 255).count(), 3);
        assert_eq!((obs[16 + 6], obs[32 + 4], obs[64 + 6], obs[64 + 5], obs[64 + 4]), (255, 255, 255, 170, 85));
        let (outcome, _) = act(&mut snake, 0);
        assert_eq!(outcome.reward, 0.0);
        assert_eq!(snake.state().unwrap().body, [[0, 2], [1, 2], [1, 1]]);
    }

    #[test]
    fn an_illegal_action_ends_the_episode_and_moves_nothing() {
        let before = snake(&[[0, 1], [0, 0], [1, 0]], [3, 3]);
        let mut after = before.clone();
        let mut mask = [7; 4];
        before.mask(&mut mask);
        assert_eq!(mask, [0, 1, 1, 0]);
        for action in [0, 3] {
            after.set_state(before.state().unwrap()).unwrap();
            let (outcome, _) = act(&mut after, action);
            assert_eq!(outcome, Step { reward: 0.0, terminated: true, truncated: false });
            assert_eq!(after.state().unwrap().body, before.state().unwrap().body);
        }
    }

    #[test]
    fn the_head_may_follow_into_the_cell_that_the_tail_leaves() {
        let mut snake = snake(&[[0, 0], [0, 1], [1, 1], [1, 0]], [3, 3]);
        let (outcome, _) = act(&mut snake, 2);
        assert!(!outcome.terminated);
        assert_eq!(snake.state().unwrap().body, [[1, 0], [0, 0], [0, 1], [1, 1]]);
    }

    #[test]
    fn a_full_board_ends_the_episode_with_a_reward() {
        let board: Vec<[u8; 2]> = (0..4).flat_map(|r| (0..4).map(move |c| [r, if r % 2 == 0 { c } else { 3 - c }])).collect();
        let mut snake = snake(&board[1..], board[0]);
        let (outcome, obs) = act(&mut snake, 3);
        assert_eq!(outcome, Step { reward: 1.0, terminated: true, truncated: false });
        assert!(obs[..16].iter().all(|&x| x == 255));
    }

    #[test]
    fn fruit_is_uniform_over_the_free_cells() {
        let snake = snake(&[[0, 0], [0, 1], [0, 2], [1, 2]], [3, 3]);
        let mut counts = [0; 16];
        for step in 0..12_000 {
            counts[usize::from(snake.free_cell(&mut Rng::new(0, 0, step, Purpose::Step)))] += 1;
        }
        for (cell, &count) in counts.iter().enumerate() {
            // Each count is binomial with mean 1000 and standard deviation 30.
            let expected = if [0, 1, 2, 6].contains(&cell) { 0..1 } else { 850..1150 };
            assert!(expected.contains(&count), "{cell}: {count}");
        }
    }

    #[test]
    fn bodies_of_up_to_255_cells_can_be_read_back_from_their_order() {
        for length in 1..=255u16 {
            let scale = 255.0 / f32::from(length);
            let codes: Vec<u8> = (0..=length).map(|ticks| math::round_to_byte(f32::from(ticks) * scale)).collect();
            assert!(codes.is_sorted_by(|a, b| a < b), "{length}");
            assert_eq!((codes[0], codes[usize::from(length)]), (0, 255));
        }
    }

    #[test]
    fn boards_of_other_sizes_play_and_bad_states_are_refused() {
        for (rows, columns) in [(4, 4), (5, 9), (64, 64)] {
            let mut snake = Snake::new(Params { rows, columns, max_steps: 200 });
            let mut obs = vec![0; snake.observation_space().len()];
            for step in 0..2000 {
                let mut rng = Rng::new(1, 0, step, Purpose::Step);
                let action = (0..4).map(|_| rng.below(4)).find(|&a| snake.mask[a as usize] == 1).unwrap_or(0);
                let state = snake.state().unwrap();
                let outcome = snake.step(Action::Discrete(action), &mut rng, &mut obs);
                if outcome.done() || step == 0 {
                    snake.reset(&mut rng, &mut obs);
                } else {
                    let mut again = snake.clone();
                    again.set_state(snake.state().unwrap()).unwrap();
                    assert_eq!(again.state(), snake.state(), "{state:?}");
                }
            }
        }
        let mut snake = Snake::default();
        let state = |body: &[[u8; 2]], fruit| State { body: body.into(), fruit, elapsed: 0 };
        for bad in [
            state(&[], [0, 0]),
            state(&[[0, 12]], [0, 0]),
            state(&[[0, 0]], [0, 0]),
            state(&[[0, 0], [0, 2]], [5, 5]),
            state(&[[0, 0], [0, 1], [0, 0]], [5, 5]),
            State { elapsed: 4000, ..state(&[[0, 0]], [5, 5]) },
        ] {
            assert!(snake.set_state(bad).is_err());
        }
    }
}
