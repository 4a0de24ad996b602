//! States of MinAtar's games as columns of words.

use std::array::from_fn;

use rl_envs::minatar::{Game, MinAtar, Params};
use rl_envs::seaquest::{MOST, Swimmer};
use rl_envs::{Env, asterix, breakout, freeway, seaquest, space_invaders};

use super::twins::{Columns, ColumnsMut, StateColumns, Twinned, bits};

/// Conversion between a game's state and the kernels' columns.
///
/// [`Twinned`] adds the last action and the steps of the episode.
trait Packed: Game {
    /// Columns of 32 bits.
    const WORDS: usize;
    /// Columns of 16 bits.
    const HALVES: usize = 0;
    /// Writes the state.
    fn pack(&self, columns: &mut ColumnsMut<'_>);
    /// Reads a state.
    fn unpack(columns: &Columns<'_>) -> Self;
}

impl<G: Packed> Twinned for MinAtar<G> {
    const COLUMNS: StateColumns = StateColumns { words: G::WORDS + 2, halves: G::HALVES };

    fn params() -> Vec<u32> {
        let Params { sticky, max_steps } = Self::PARAMS;
        bits([sticky], max_steps)
    }

    fn put(&self, columns: &mut ColumnsMut<'_>) {
        let Some(mut game) = self.state() else { return };
        game.pack(columns);
        let (last_action, elapsed) = game.clock();
        columns.set_word(G::WORDS, (*last_action).into());
        columns.set_word(G::WORDS + 1, *elapsed);
    }

    fn take(columns: &Columns<'_>) -> G {
        let mut game = G::unpack(columns);
        let (last_action, elapsed) = game.clock();
        (*last_action, *elapsed) = (columns.word(G::WORDS) as u8, columns.word(G::WORDS + 1));
        game
    }
}

fn set_words(columns: &mut ColumnsMut<'_>, words: impl IntoIterator<Item = u32>) {
    words.into_iter().enumerate().for_each(|(column, word)| columns.set_word(column, word));
}

impl Packed for breakout::State {
    const WORDS: usize = 8;

    fn pack(&self, columns: &mut ColumnsMut<'_>) {
        let Self { ball_x, ball_y, ball_dir, pos, brick_map, strike, last_x, last_y, .. } = *self;
        let bricks = (0..).zip(brick_map.as_flattened()).fold(0, |bricks, (j, &brick)| bricks | u32::from(brick) << j);
        let [x, y, direction, pos, last_x, last_y] = [ball_x, ball_y, ball_dir, pos, last_x, last_y].map(u32::from);
        set_words(columns, [x, y, direction, pos, bricks, strike.into(), last_x, last_y]);
    }

    fn unpack(columns: &Columns<'_>) -> Self {
        let [ball_x, ball_y, ball_dir, pos, _, _, last_x, last_y] = from_fn(|column| columns.word(column) as u8);
        let bricks = columns.word(4);
        let brick_map = from_fn(|row| from_fn(|column| (bricks >> (10 * row + column) & 1) as u8));
        let strike = columns.word(5) != 0;
        Self { ball_x, ball_y, ball_dir, pos, brick_map, strike, last_x, last_y, ..Self::default() }
    }
}

impl Packed for asterix::State {
    const WORDS: usize = 10;

    fn pack(&self, columns: &mut ColumnsMut<'_>) {
        let Self { player_x, player_y, entities, spawn_speed, spawn_timer, move_speed, move_timer, .. } = *self;
        let byte = |it: asterix::Entity| 0x80 | u8::from(it.gold) << 5 | u8::from(it.right) << 4 | it.x;
        let [first, last] = u64_halves(u64::from_le_bytes(entities.map(|entity| entity.map_or(0, byte))));
        let [x, y, spawn_speed, spawn_timer, move_speed, move_timer] =
            [player_x, player_y, spawn_speed, spawn_timer, move_speed, move_timer].map(u32::from);
        let ramp_timer = i32::from(self.ramp_timer).cast_unsigned();
        let ramp = [ramp_timer, self.ramp_index.into()];
        set_words(columns, [x, y, first, last, spawn_speed, spawn_timer, move_speed, move_timer].into_iter().chain(ramp));
    }

    fn unpack(columns: &Columns<'_>) -> Self {
        let [player_x, player_y, _, _, spawn_speed, spawn_timer, move_speed, move_timer, ramp_timer, ramp_index] =
            from_fn(|column| columns.word(column) as u8);
        let bytes = (u64::from(columns.word(2)) | u64::from(columns.word(3)) << 32).to_le_bytes();
        let entity = |byte: u8| asterix::Entity { x: byte & 15, right: byte & 0x10 != 0, gold: byte & 0x20 != 0 };
        let entities = bytes.map(|byte| (byte != 0).then(|| entity(byte)));
        let ramp_timer = ramp_timer.cast_signed();
        Self {
            player_x,
            player_y,
            entities,
            spawn_speed,
            spawn_timer,
            move_speed,
            move_timer,
            ramp_timer,
            ramp_index,
            ..Self::default()
        }
    }
}

fn u64_halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Packs eight numbers of four bits, the first one lowest.
fn nibbles(numbers: [u8; 8]) -> u32 {
    (0..).zip(numbers).fold(0, |word, (lane, number)| word | u32::from(number) << (4 * lane))
}

impl Packed for freeway::State {
    const WORDS: usize = 5;

    fn pack(&self, columns: &mut ColumnsMut<'_>) {
        let speeds = self.car_speed.map(|speed| speed.unsigned_abs() | u8::from(speed > 0) << 3);
        let numbers = [self.car_x, self.car_timer, speeds].map(nibbles);
        set_words(columns, [self.pos.into(), self.move_timer.into()].into_iter().chain(numbers));
    }

    fn unpack(columns: &Columns<'_>) -> Self {
        let nibble = |column: usize, lane: usize| (columns.word(column) >> (4 * lane) & 15) as u8;
        let speed = |bits: u8| if bits & 8 == 0 { -(bits as i8) } else { (bits & 7) as i8 };
        Self {
            pos: columns.word(0) as u8,
            move_timer: columns.word(1) as u8,
            car_x: from_fn(|lane| nibble(2, lane)),
            car_timer: from_fn(|lane| nibble(3, lane)),
            car_speed: from_fn(|lane| speed(nibble(4, lane))),
            ..Self::default()
        }
    }
}

impl Packed for space_invaders::State {
    const WORDS: usize = 21;

    fn pack(&self, columns: &mut ColumnsMut<'_>) {
        let Self { pos, alien_map, f_bullet_map, e_bullet_map, alien_dir, .. } = *self;
        let Self { enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer, .. } = *self;
        let pairs = |map: [u16; 10]| from_fn::<u32, 5, _>(|p| u32::from(map[2 * p]) | u32::from(map[2 * p + 1]) << 10);
        let others = [pos, u8::from(alien_dir > 0), enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer];
        let maps = [alien_map, f_bullet_map, e_bullet_map].map(pairs);
        set_words(columns, maps.into_iter().flatten().chain(others.map(u32::from)));
    }

    fn unpack(columns: &Columns<'_>) -> Self {
        let map = |first: usize| from_fn(|row| (columns.word(first + row / 2) >> (10 * (row % 2)) & 1023) as u16);
        let [pos, moves_right, enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer] =
            from_fn(|column| columns.word(15 + column) as u8);
        Self {
            pos,
            alien_map: map(0),
            f_bullet_map: map(5),
            e_bullet_map: map(10),
            alien_dir: if moves_right == 0 { -1 } else { 1 },
            enemy_move_interval,
            alien_move_timer,
            alien_shot_timer,
            shot_timer,
            ..Self::default()
        }
    }
}

impl Packed for seaquest::State {
    const WORDS: usize = 17;
    const HALVES: usize = 5 * MOST;

    fn pack(&self, columns: &mut ColumnsMut<'_>) {
        let Self { oxygen, diver_count, sub_x, sub_y, sub_or, f_bullets, e_bullets, e_fish, e_subs, divers, .. } = self;
        let Self { e_spawn_speed, e_spawn_timer, d_spawn_timer, move_speed, ramp_index, shot_timer, surface, .. } = *self;
        let lists = [f_bullets, e_bullets, e_fish, e_subs, divers];
        let half = |it: &Swimmer| {
            let [x, y, right, moves, shoots] = [it.x, it.y, it.right.into(), it.move_timer, it.shot_timer].map(u16::from);
            x | y << 4 | right << 8 | moves << 9 | shoots << 12
        };
        for (list, first) in lists.iter().zip((0..).step_by(MOST)) {
            list.iter().zip(first..).for_each(|(swimmer, place)| columns.set_half(place, half(swimmer)));
        }
        let signed = [*oxygen, *diver_count].map(|x| i32::from(x).cast_unsigned());
        let timers = [e_spawn_speed, e_spawn_timer, d_spawn_timer, move_speed, ramp_index, shot_timer, u8::from(surface)];
        let player = [*sub_x, *sub_y, u8::from(*sub_or)];
        let lens = lists.map(|list| list.len() as u32);
        let bytes = player.into_iter().chain(timers).map(u32::from);
        set_words(columns, lens.into_iter().chain(signed).chain(bytes));
    }

    fn unpack(columns: &Columns<'_>) -> Self {
        let list = |which: usize| {
            let places = MOST * which..MOST * which + columns.word(which) as usize;
            places.map(|place| swimmer(columns.half(place))).collect()
        };
        let signed = |column: usize| columns.word(column).cast_signed() as i16;
        let byte = |column: usize| columns.word(column) as u8;
        Self {
            oxygen: signed(5),
            diver_count: signed(6),
            sub_x: byte(7),
            sub_y: byte(8),
            sub_or: byte(9) != 0,
            f_bullets: list(0),
            e_bullets: list(1),
            e_fish: list(2),
            e_subs: list(3),
            divers: list(4),
            e_spawn_speed: byte(10),
            e_spawn_timer: byte(11),
            d_spawn_timer: byte(12),
            move_speed: byte(13),
            ramp_index: byte(14),
            shot_timer: byte(15),
            surface: byte(16) != 0,
            ..Self::default()
        }
    }
}

fn swimmer(half: u16) -> Swimmer {
    let bits = |first: u32, n: u32| (half >> first & ((1 << n) - 1)) as u8;
    Swimmer { x: bits(0, 4), y: bits(4, 4), right: bits(8, 1) != 0, move_timer: bits(9, 3), shot_timer: bits(12, 4) }
}
