//! Kernel arguments of each environment: constants, and states as columns of words.

use std::ops::Range;
use std::sync::OnceLock;

use rl_envs::grid_world::{self, GridWorld, Level};
use rl_envs::lanes::{Dynamics, Lane};
use rl_envs::{
    Canvas, Env, Error, SavedEnvs, Spaces, acrobot, asterix, breakout, cartpole, codec, freeway, mountain_car,
    mountain_car_continuous, pendulum, repeat_first, seaquest, snake, space_invaders,
};

use crate::Module;

/// Saves the states of a range of environments.
///
/// From the words and indices of all environments, seed and lifetime steps.
type Save = fn(&[u32], &Range<usize>, Range<usize>, u64, u64) -> Result<Vec<u8>, Error>;
/// Loads states of all environments, saved in consecutive ranges of their indices.
///
/// Returns seed, lifetime steps and words.
type Load = fn(&[&[u8]], Range<usize>) -> Result<(u64, u64, Vec<u32>), Error>;

/// Numbers of the columns that hold one environment's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateColumns {
    /// Columns of 32 bits.
    pub(crate) words: usize,
    /// Columns of 16 bits, which follow them.
    pub(crate) halves: usize,
}

impl StateColumns {
    /// Returns the number of words for the states of `n` environments.
    pub(crate) const fn len(self, n: usize) -> usize {
        n * self.words + (n * self.halves).div_ceil(2)
    }
}

/// Environment that has kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twin {
    /// Stem of the source file and prefix of the kernels.
    ///
    /// Also the name in the catalog, if the environment is there.
    pub(crate) name: &'static str,
    /// Observation space and action space.
    pub(crate) spaces: fn() -> Spaces,
    /// Constants, as the kernels' `Params`.
    pub(crate) params: fn() -> Vec<u32>,
    /// Columns of the states.
    pub(crate) columns: StateColumns,
    /// Saves the states in the format of `VecEnv::save`.
    pub(crate) save: Save,
    /// Loads saved seed, lifetime steps and states.
    pub(crate) load: Load,
    /// Draws one environment.
    pub(crate) render: fn(&[u32], usize, usize, &mut Canvas),
}

impl Twin {
    const fn of<E: Twinned + 'static>(name: &'static str) -> Self {
        Self {
            name,
            spaces: || Spaces { obs: E::default().observation_space(), actions: E::default().action_space() },
            params: E::params,
            columns: E::COLUMNS,
            save: save::<E>,
            load: load::<E>,
            render: render::<E>,
        }
    }
}

/// Rules and kernels of an environment of your own.
///
/// Given to an entry by [`Entry::with_kernels`](rl_envs::catalog::Entry::with_kernels), they step its environments on the device
/// that learns. `docs/gpu.md` has an example.
#[derive(Clone, Copy, Debug)]
pub struct EnvKernels {
    pub(crate) twin: Twin,
    pub(crate) module: &'static Module,
    /// Elements of an observation.
    pub(crate) n_observed: usize,
}

impl EnvKernels {
    /// Declares that the kernels of `module` step an environment with the rules `P`.
    ///
    /// The rules have their default constants. The file of kernels includes `lanes.cuh`, writes the rules again and ends with
    /// `ENV_KERNELS(NAME, Lane<Params>)`, where `NAME` is the module's name.
    ///
    /// # Safety
    /// Source and PTX have the kernels that `ENV_KERNELS` makes of rules with `W` words of state, `D` numbers observed, actions
    /// of the kind and number of `P`, and constants of 32 bits each as [`Constants::words`] returns them. The rules access no
    /// other memory than their arguments, and there are no global objects.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn of<P: Dynamics<W, D> + Constants + 'static, const W: usize, const D: usize>(
        module: &'static Module,
    ) -> Self {
        Self { twin: Twin::of::<Lane<P, W, D>>(module.name), module, n_observed: D }
    }
}

/// Every environment that has kernels.
pub(crate) const TWINS: &[Twin] = &[
    Twin::of::<cartpole::CartPole>("cartpole"),
    Twin::of::<mountain_car::MountainCar>("mountain_car"),
    Twin::of::<mountain_car_continuous::MountainCarContinuous>("mountain_car_continuous"),
    Twin::of::<acrobot::Acrobot>("acrobot"),
    Twin::of::<pendulum::Pendulum>("pendulum"),
    Twin::of::<repeat_first::RepeatFirst>("repeat_first"),
    Twin::of::<GridWorld<grid_world::Empty>>("empty"),
    Twin::of::<GridWorld<grid_world::DoorKey>>("door_key"),
    Twin::of::<GridWorld<grid_world::MultiRoom>>("multi_room"),
    Twin::of::<snake::Snake>("snake"),
    Twin::of::<breakout::Breakout>("breakout"),
    Twin::of::<asterix::Asterix>("asterix"),
    Twin::of::<freeway::Freeway>("freeway"),
    Twin::of::<seaquest::Seaquest>("seaquest"),
    Twin::of::<space_invaders::SpaceInvaders>("space_invaders"),
];

/// Returns the twin with this name.
pub(crate) fn find(name: &str) -> Result<&'static Twin, crate::Error> {
    TWINS.iter().find(|twin| twin.name == name).ok_or_else(|| unknown(name))
}

/// Returns the error of an environment without kernels.
pub(crate) fn unknown(name: &str) -> crate::Error {
    static KNOWN: OnceLock<String> = OnceLock::new();
    let known = KNOWN.get_or_init(|| TWINS.iter().map(|twin| twin.name).collect::<Vec<_>>().join(", "));
    crate::Error::NoKernels { name: name.into(), known: known.clone() }
}

/// State of environment `i` of `n`, as columns.
pub(super) struct Columns<'a> {
    memory: &'a [u32],
    halves: usize, // offset of the 16-bit columns, in units of 16 bits
    n: usize,
    i: usize,
}

impl Columns<'_> {
    pub(super) fn word(&self, column: usize) -> u32 {
        self.memory[column * self.n + self.i]
    }

    pub(super) fn half(&self, column: usize) -> u16 {
        let at = self.halves + column * self.n + self.i;
        (self.memory[at / 2] >> (16 * (at % 2))) as u16
    }
}

/// State of environment `i` of `n`, for writing; the memory starts out zero.
pub(super) struct ColumnsMut<'a> {
    memory: &'a mut [u32],
    halves: usize,
    n: usize,
    i: usize,
}

impl ColumnsMut<'_> {
    pub(super) fn set_word(&mut self, column: usize, word: u32) {
        self.memory[column * self.n + self.i] = word;
    }

    pub(super) fn set_half(&mut self, column: usize, half: u16) {
        let at = self.halves + column * self.n + self.i;
        self.memory[at / 2] |= u32::from(half) << (16 * (at % 2));
    }
}

/// Conversion between an environment's state and the kernels' columns.
pub(super) trait Twinned: Env + Default {
    /// Columns of the states.
    const COLUMNS: StateColumns;
    /// Returns the constants, as the kernels' `Params`.
    fn params() -> Vec<u32>;
    /// Writes the environment's current state.
    fn put(&self, columns: &mut ColumnsMut<'_>);
    /// Reads a state.
    fn take(columns: &Columns<'_>) -> Self::State;
}

fn take<E: Twinned>(memory: &[u32], n: usize, i: usize) -> E::State {
    E::take(&Columns { memory, halves: 2 * n * E::COLUMNS.words, n, i })
}

fn save<E: Twinned>(memory: &[u32], all: &Range<usize>, range: Range<usize>, seed: u64, steps: u64) -> Result<Vec<u8>, Error> {
    let first_env = range.start as u32;
    let states = range.map(|i| take::<E>(memory, all.len(), i - all.start)).collect();
    codec::encode(&SavedEnvs::<E::State> { first_env, seed, steps, states })
}

fn load<E: Twinned>(ranges: &[&[u8]], all: Range<usize>) -> Result<(u64, u64, Vec<u32>), Error> {
    let (n, Range { start, end }) = (all.len(), all);
    let mut memory = vec![0; E::COLUMNS.len(n)];
    let (mut env, mut i, mut clock) = (E::default(), start, None);
    for bytes in ranges {
        let SavedEnvs::<E::State> { first_env, seed, steps, states } = codec::decode(bytes)?;
        let fits =
            (first_env as usize, true) == (i, states.len() <= end - i) && *clock.get_or_insert((seed, steps)) == (seed, steps);
        if !fits {
            let found = states.len();
            return Err(Error::BadState(format!(
                "it holds {found} environments from {first_env} on, not {} from {i} on",
                end - i
            )));
        }
        for state in states {
            env.set_state(state)?;
            env.put(&mut ColumnsMut { memory: &mut memory, halves: 2 * n * E::COLUMNS.words, n, i: i - start });
            i += 1;
        }
    }
    match clock {
        Some((seed, steps)) if i == end => Ok((seed, steps, memory)),
        _ => Err(Error::BadState(format!("it holds {} environments, not {n}", i - start))),
    }
}

fn render<E: Twinned>(memory: &[u32], n: usize, i: usize, canvas: &mut Canvas) {
    let mut env = E::default();
    // The kernels hold only valid states, so `set_state` succeeds.
    if env.set_state(take::<E>(memory, n, i)).is_ok() {
        env.render(canvas);
    }
}

/// Constants of an environment's rules, for its kernels.
pub trait Constants {
    /// Returns the constants as words, in the order of the kernels' `Params`.
    fn words(&self) -> Vec<u32>;
}

pub(super) fn bits<const N: usize>(numbers: [f32; N], last: u32) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).chain([last]).collect()
}

impl Constants for cartpole::Params {
    fn words(&self) -> Vec<u32> {
        let Self { gravity, cart_mass, pole_mass, half_length, force, tau, x_limit, theta_limit, max_steps } = *self;
        bits([gravity, cart_mass, pole_mass, half_length, force, tau, x_limit, theta_limit], max_steps)
    }
}

impl Constants for mountain_car::Params {
    fn words(&self) -> Vec<u32> {
        let Self { min_position, max_position, max_speed, goal_position, goal_velocity, force, gravity, max_steps } = *self;
        bits([min_position, max_position, max_speed, goal_position, goal_velocity, force, gravity], max_steps)
    }
}

impl Constants for mountain_car_continuous::Params {
    fn words(&self) -> Vec<u32> {
        self.car.words()
    }
}

impl Constants for acrobot::Params {
    fn words(&self) -> Vec<u32> {
        let Self { gravity, length, mass, center, moment, torque, tau, max_speed1, max_speed2, max_steps } = *self;
        bits([gravity, length, mass, center, moment, torque, tau, max_speed1, max_speed2], max_steps)
    }
}

impl Constants for pendulum::Params {
    fn words(&self) -> Vec<u32> {
        let Self { gravity, mass, length, tau, max_speed, max_torque, max_steps } = *self;
        bits([gravity, mass, length, tau, max_speed, max_torque], max_steps)
    }
}

impl<P: Dynamics<W, D> + Constants, const W: usize, const D: usize> Twinned for Lane<P, W, D> {
    const COLUMNS: StateColumns = StateColumns { words: W, halves: 0 };

    fn params() -> Vec<u32> {
        P::default().words()
    }

    fn put(&self, columns: &mut ColumnsMut<'_>) {
        let words = self.state().map_or([0; W], P::pack);
        words.into_iter().enumerate().for_each(|(column, word)| columns.set_word(column, word));
    }

    fn take(columns: &Columns<'_>) -> P::State {
        P::unpack(std::array::from_fn(|column| columns.word(column)))
    }
}

impl Twinned for repeat_first::RepeatFirst {
    const COLUMNS: StateColumns = StateColumns { words: 6, halves: 0 };

    fn params() -> Vec<u32> {
        vec![repeat_first::Params::default().cards_per_suit.into()]
    }

    fn put(&self, columns: &mut ColumnsMut<'_>) {
        let Some(repeat_first::State { first, card, left }) = self.state() else { return };
        let words = [first.into(), card.into()].into_iter().chain(left.map(u32::from));
        words.enumerate().for_each(|(column, word)| columns.set_word(column, word));
    }

    fn take(columns: &Columns<'_>) -> repeat_first::State {
        let [first, card] = [0, 1].map(|column| columns.word(column) as u8);
        repeat_first::State { first, card, left: std::array::from_fn(|suit| columns.word(2 + suit) as u16) }
    }
}

impl<L: Level> Twinned for GridWorld<L> {
    const COLUMNS: StateColumns = StateColumns { words: 5, halves: L::SIZE * L::SIZE };

    fn params() -> Vec<u32> {
        vec![L::MAX_STEPS]
    }

    fn put(&self, columns: &mut ColumnsMut<'_>) {
        let Some(grid_world::State { cells, agent_pos: [x, y], agent_dir, carrying, elapsed }) = self.state() else { return };
        let words = [x.into(), y.into(), agent_dir.into(), carrying.into(), elapsed];
        words.into_iter().enumerate().for_each(|(column, word)| columns.set_word(column, word));
        cells.into_iter().enumerate().for_each(|(column, cell)| columns.set_half(column, cell));
    }

    fn take(columns: &Columns<'_>) -> grid_world::State {
        let [x, y, agent_dir] = [0, 1, 2].map(|column| columns.word(column) as u8);
        let cells = (0..Self::COLUMNS.halves).map(|column| columns.half(column)).collect();
        let (carrying, elapsed) = (columns.word(3) as u16, columns.word(4));
        grid_world::State { cells, agent_pos: [x, y], agent_dir, carrying, elapsed }
    }
}

impl Twinned for snake::Snake {
    const COLUMNS: StateColumns = {
        let cells = 12 * 12;
        assert!(cells % 4 == 0, "the kernels visit four cells at a time");
        StateColumns { words: 7, halves: cells }
    };

    fn params() -> Vec<u32> {
        let snake::Params { rows, columns, max_steps } = snake::Params::default();
        vec![rows.into(), columns.into(), max_steps.into()]
    }

    fn put(&self, columns: &mut ColumnsMut<'_>) {
        let Some(snake::State { body, fruit, elapsed }) = self.state() else { return };
        let cell =
            |[row, column]: [u8; 2]| usize::from(row) * usize::from(snake::Params::default().columns) + usize::from(column);
        let mut mask = [0; 4];
        self.mask(&mut mask);
        let legal = (0..).zip(mask).fold(0, |legal, (action, bit)| legal | u32::from(bit) << action);
        let [row, column] = body[0].map(u32::from);
        let words = [0, body.len() as u32, row, column, cell(fruit) as u32, elapsed.into(), legal];
        words.into_iter().enumerate().for_each(|(column, word)| columns.set_word(column, word));
        for (&position, ticks) in body.iter().zip((1..=body.len() as u16).rev()) {
            columns.set_half(cell(position), ticks);
        }
    }

    fn take(columns: &Columns<'_>) -> snake::State {
        let [clock, length, _, _, fruit, elapsed] = std::array::from_fn(|column| columns.word(column));
        let width = u32::from(snake::Params::default().columns);
        let position = |cell: u32| [(cell / width) as u8, (cell % width) as u8];
        let mut body = vec![[0; 2]; length as usize];
        for cell in 0..Self::COLUMNS.halves {
            let vacated = u32::from(columns.half(cell));
            if vacated > clock {
                body[(length - (vacated - clock)) as usize] = position(cell as u32);
            }
        }
        snake::State { body, fruit: position(fruit), elapsed: elapsed as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_environments_of_the_catalog_that_say_so_have_a_twin_with_their_spaces() {
        for entry in rl_envs::catalog::ENVS {
            let twin = find(entry.name).ok();
            assert_eq!(twin.is_some(), entry.is_twinned(), "{}", entry.name);
            assert!(twin.is_none_or(|twin| (twin.spaces)() == entry.spaces()), "{}", entry.name);
        }
        assert!(find("chess").err().unwrap().to_string().contains("these have: cartpole, "));
    }
}
