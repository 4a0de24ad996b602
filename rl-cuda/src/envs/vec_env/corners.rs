//! Kernels on states, constants and clocks that playing does not reach.
//!
//! States and constants are given in the kernels' layout. Those of environments in lanes need not be valid: angles beyond the
//! range of `sin_cos`, NaN, a time step that is too small to move anything.

use std::hash::{Hash, Hasher};

use rl_envs::{Actions, Env, Obs, Purpose, Rng, Steps, SyncVecEnv, VecEnv, codec, rng, snake};

use super::*;
use crate::corners::{Corners, Digest, agree, carrying, rounds};

/// Name, floats in a state, and index of the time step among the constants.
const LANES: [(&str, usize, Option<usize>); 5] = [
    ("cartpole", 4, Some(5)),
    ("acrobot", 4, Some(6)),
    ("pendulum", 2, Some(3)),
    ("mountain_car", 2, None),
    ("mountain_car_continuous", 2, None),
];

/// Seeds of resets that show coefficients of sine or cosine.
///
/// The last bit of a coefficient shows at 1 to 101 of the 2^24 angles; one of 512 environments draws one of them.
const RESETS_OF: [(&str, u64); 8] = [
    ("acrobot", 1532),
    ("acrobot", 1523),
    ("acrobot", 666),
    ("acrobot", 1039),
    ("pendulum", 20_251),
    ("pendulum", 2653),
    ("pendulum", 102),
    ("pendulum", 626),
];

/// Angles whose height is 1, or just above 1.
///
/// The last bit of a coefficient of the second cosine decides whether the episode ends; found by trying every sum of angles up to
/// pi. The last six second angles are too large to be reduced well: the cosine's argument has hundreds of turns.
const HEIGHTS: [[f32; 2]; 26] = [
    [1.868_047_8, 0.488_146_66],
    [3.140_068, -1.569_270_5],
    [1.994_855_3, 0.205_188_87],
    [1.952_139_1, 0.297_434_57],
    [1.936_848_9, 0.331_139_8],
    [2.436_102_4, -0.624_272_6],
    [2.413_35, -0.586_096_9],
    [2.879_383_6, -1.274_400_2],
    [2.857_898_3, -1.247_116_7],
    [1.868_047_5, 0.488_147_5],
    [1.868_047_1, 0.488_148_33],
    [1.836_337_4, 0.563_921_6],
    [1.798_873_1, 0.656_892_66],
    [1.673_216_5, 1.924_517_5],
    [1.866_955_3, 0.490_717_9],
    [1.866_530_5, 0.491_718_17],
    [1.868_043_9, 0.488_155_84],
    [1.868_038_3, 0.488_169_07],
    [1.868_023_9, 0.488_170_62],
    [1.868_023_6, 0.488_171_1],
    [-1.885_649_7, 54_600_490_000.0],
    [-2.537_593_6, 37_101_195_000.0],
    [-2.981_734_3, 40_140_340_000.0],
    [2.642_492, 22_264_803_000.0],
    [-2.829_473, 15_917_792_000.0],
    [-2.867_462_4, -56_799_597_000.0],
];
/// Angle that is reduced to the float after [`rl_envs::math::SIN_COS_MAX`].
const BEYOND: f32 = 198_487_590_000.0;

impl Digest {
    fn steps(&mut self, stream: &Stream, steps: &DeviceSteps) {
        let steps = &steps.columns;
        for obs in [&steps.obs, &steps.final_obs] {
            match obs {
                Obs::F32(obs) => self.floats(stream, obs),
                Obs::U8(obs) => self.add(stream, obs, u32::from),
            }
        }
        match &steps.actions {
            Actions::Discrete(actions) => self.words(stream, actions),
            Actions::Continuous(actions) => self.floats(stream, actions),
        }
        self.floats(stream, &steps.rewards);
        self.add(stream, &steps.terminated, u32::from);
        self.add(stream, &steps.truncated, u32::from);
        steps.masks.iter().flatten().for_each(|masks| self.add(stream, masks, u32::from));
    }
}

impl CudaVecEnv {
    /// Replaces constants, states and clock; all in the kernels' layout, unchecked.
    fn put(&mut self, params: &[u32], words: &[u32], [seed, steps]: [u64; 2]) {
        self.params = params.to_vec();
        let stream = self.stream.clone();
        stream.upload(&ViewMut::of_shared(&self.memory.words), words).unwrap();
        self.set_clock(&stream, seed, steps).unwrap();
    }
}

/// Batch that is stepped from given states: with actions, then random ones.
struct Bench {
    envs: CudaVecEnv,
    /// One step and three.
    steps: [DeviceSteps; 2],
    digest: Digest,
}

impl Bench {
    fn new(envs: CudaVecEnv) -> Self {
        let zeros = |k| DeviceSteps::zeros(&envs.device, k, envs.n_envs, &envs.observation_space, &envs.action_space);
        let steps = [1, 3].map(|k| zeros(k).unwrap());
        Self { envs, steps, digest: Digest::default() }
    }

    fn run(&mut self, params: &[u32], words: &[u32], clock: [u64; 2], actions: &Actions<Vec<u32>, Vec<f32>>) {
        let Self { envs, steps: [once, thrice], digest } = self;
        let stream = envs.stream.clone();
        match (&mut once.columns.actions, actions) {
            (Actions::Discrete(to), Actions::Discrete(from)) => stream.upload(&to.view_mut(), from).unwrap(),
            (Actions::Continuous(to), Actions::Continuous(from)) => stream.upload(&to.view_mut(), from).unwrap(),
            _ => unreachable!("actions of the environment's kind"),
        }
        envs.put(params, words, clock);
        envs.step_on(&stream, 1, ActionSource::Given, &once.rows(0..1)).unwrap();
        digest.words(&stream, &envs.memory.words);
        envs.check_actions(&stream).is_ok().hash(&mut digest.0);
        envs.put(params, words, clock);
        envs.step_on(&stream, 3, ActionSource::Random, &thrice.rows(0..3)).unwrap();
        digest.words(&stream, &envs.memory.words);
        [&*once, thrice].into_iter().for_each(|steps| digest.steps(&stream, steps));
    }

    /// Resets from a few seeds.
    fn reset(&mut self, corners: &mut Corners) {
        let seeds: Vec<u64> = (0..10).map(carrying).chain((0..8).map(|_| corners.clock()[0])).collect();
        seeds.into_iter().for_each(|seed| self.reset_from(seed));
    }

    fn reset_from(&mut self, seed: u64) {
        let (stream, rows) = (self.envs.stream.clone(), self.steps[0].rows(0..1));
        self.envs.reset_on(&stream, seed, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks)).unwrap();
        self.digest.words(&stream, &self.envs.memory.words);
    }
}

/// Seed with which one of 512 environments draws the action 0 first.
const STILL: u64 = 100_977;

#[test]
fn environments_in_lanes_step_alike_from_any_state() {
    for (name, n_floats, tau) in LANES {
        agree(name, |device| {
            let (n, mut corners) = (512, Corners::new(5));
            let mut bench = Bench::new(CudaVecEnv::new(device, name, n).unwrap());
            bench.reset(&mut corners);
            RESETS_OF.into_iter().filter(|(of, _)| *of == name).for_each(|(_, seed)| bench.reset_from(seed));
            let params = bench.envs.params.clone();
            let max_steps = params[params.len() - 1];
            for round in 0..rounds(96) {
                let mut params = params.clone();
                let bounds: Vec<f32> =
                    params[..params.len() - 1].iter().flat_map(|&p| [f32::from_bits(p), -f32::from_bits(p)]).collect();
                match (round % 4, tau) {
                    (1 | 2, Some(tau)) => params[tau] = 1e-12f32.to_bits(),
                    (3, _) => {
                        let last = params.len() - 1;
                        for param in &mut params[..last] {
                            let x = f32::from_bits(*param);
                            let other = corners.0.uniform_in(0.5, 2.0);
                            *param = corners.pick(&[x, x, x, -x, 0.0, 1.0, other * x]).to_bits();
                        }
                    }
                    _ => {}
                }
                let mut words: Vec<u32> = (0..n_floats * n).map(|_| corners.float(&bounds).to_bits()).collect();
                if round % 4 == 2 {
                    words[n_floats / 2 * n..].fill(0); // at rest
                }
                words[n..2 * n].iter_mut().step_by(4).for_each(|word| *word = 0); // a sum of angles is the first one
                if name == "acrobot" && round % 4 == 2 {
                    for (i, angles) in HEIGHTS.into_iter().chain([[BEYOND, 0.0], [0.0, BEYOND]]).enumerate() {
                        [words[i], words[n + i]] = angles.map(f32::to_bits);
                    }
                }
                words.extend(
                    (0..n).map(|_| corners.pick(&[0, 7, max_steps - 3, max_steps - 2, max_steps - 1, max_steps, u32::MAX])),
                );
                let actions = match bench.steps[0].columns.actions {
                    Actions::Discrete(_) => {
                        Actions::Discrete((0..n).map(|_| corners.pick(&[0, 1, 2, 0, 1, 2, 3, u32::MAX])).collect())
                    }
                    Actions::Continuous(_) => {
                        Actions::Continuous((0..n).map(|_| corners.float(&[1.0, -1.0, 2.0, -2.0])).collect())
                    }
                };
                bench.run(&params, &words, corners.clock(), &actions);
                if name == "mountain_car_continuous" && round == 0 {
                    bench.run(&params, &words, [STILL, 0], &actions);
                }
            }
            bench.digest
        });
    }
}

/// Seeds, and a number that decides for one environment, times 2^24.
///
/// One of 512 environments draws it, or just less, in Breakout's first step.
///
/// A multiplier of the last round, or of the round two before it, that is greater by 1 moves the number across the given one.
const DRAWN: [(u64, u32); 11] = [
    (0, 1_100_387),
    (2, 6_580_446),
    (4, 7_770_341),
    (5, 1_166_886),
    (7, 3_600_369),
    (8, 3_151_481),
    (0, 9_341_779),
    (1, 3_030_255),
    (1, 13_880_182),
    (1, 8_322_028),
    (1, 15_956_611),
];

/// Seeds with which one of 512 environments draws 0 in Breakout's first step.
const DRAWN_0: [u64; 8] = [88_952, 117_041, 168_743, 196_037, 212_295, 271_491, 321_725, 365_020];
/// Seeds whose resets show a multiplier of Philox that is greater by 1.
///
/// In rounds 8, 9 and 10: the carry reaches the highest bit in one of 512 environments.
/// With the last one an environment draws 0, of all 32-bit numbers.
const RESETS: [u64; 4] = [125_651, 1_812_917, 3_043_900, 19_447_082];
/// Seeds like [`RESETS`], in the resets after a lifetime's first step.
///
/// With the last one an environment draws 0, of all 32-bit numbers.
const RESETS_AFTER_A_STEP: [u64; 3] = [181_588, 27_685_707, 2_884_190];

#[test]
fn breakout_steps_alike_from_any_state() {
    agree("breakout", |device| {
        let (n, mut corners) = (512, Corners::new(6));
        let mut bench = Bench::new(CudaVecEnv::new(device, "breakout", n).unwrap());
        bench.reset(&mut corners);
        RESETS.into_iter().for_each(|seed| bench.reset_from(seed));
        let max_steps = bench.envs.params[1];
        for round in 0..rounds(36) {
            let mut clock = DRAWN.get(round).map_or_else(|| corners.clock(), |&(seed, _)| [seed, 0]);
            let left = round.checked_sub(DRAWN.len());
            let reset = left.and_then(|i| RESETS_AFTER_A_STEP.get(i));
            let zero = left.and_then(|i| i.checked_sub(RESETS_AFTER_A_STEP.len())).and_then(|i| DRAWN_0.get(i));
            if let Some(&seed) = reset.or(zero) {
                clock = [seed, 0];
            }
            let [seed, step] = clock;
            // A chance that is the number drawn by one environment, or the next one.
            let drawn = |i: u32| Rng::new(seed, i, step.wrapping_add(1), Purpose::Step).next_u32();
            let ends = |byte: u32| (0..n as u32).map(drawn).find(|word| word & 0xFF == byte);
            let chance = |word: Option<u32>, more: u32| word.map_or(0.5, |word| ((word >> 8) + more) as f32 / 16_777_216.0);
            let sticky = [0.1, 0.0, 1.0, chance(ends(0xFF), 1), chance(ends(0), 0)][round % 5];
            let sticky = DRAWN.get(round).map_or(sticky, |&(_, drawn)| drawn as f32 / 16_777_216.0);
            let sticky = if zero.is_some() { f32::from_bits(1) } else { sticky };
            let params = [sticky.to_bits(), max_steps];
            let mut words = Vec::new();
            for column in 0..10 {
                words.extend((0..n).map(|_| match column {
                    0 | 1 | 3 | 6 | 7 => corners.0.below(10),
                    2 => corners.0.below(4),
                    4 => {
                        let (some, one) = (corners.0.next_u32() & ((1 << 30) - 1), 1 << corners.0.below(30));
                        corners.pick(&[0, (1 << 30) - 1, some, some, one])
                    }
                    5 => corners.0.below(2),
                    8 => corners.0.below(3),
                    _ if reset.is_some() => max_steps - 1,
                    _ => corners.pick(&[0, 7, max_steps - 3, max_steps - 2, max_steps - 1]),
                }));
            }
            let actions = Actions::Discrete((0..n).map(|_| corners.pick(&[0, 1, 2, 0, 1, 2, 3, u32::MAX])).collect());
            bench.run(&params, &words, clock, &actions);
        }
        bench.digest
    });
}

/// Next cell of each cell on a closed path through the board.
///
/// The number of rows or that of columns is even.
fn path(rows: usize, columns: usize) -> Vec<usize> {
    let is_flipped = rows % 2 == 1;
    let (m, n) = if is_flipped { (columns, rows) } else { (rows, columns) };
    let cell = |(r, c): (usize, usize)| if is_flipped { c * columns + r } else { r * columns + c };
    // Row by row without the first column, which leads back.
    let forth = (0..m).flat_map(|r| (1..n).map(move |c| (r, if r % 2 == 0 { c } else { n - c })));
    let places: Vec<usize> = forth.chain((0..m).rev().map(|r| (r, 0))).map(cell).collect();
    let mut next = vec![0; rows * columns];
    places.iter().zip(places.iter().cycle().skip(1)).for_each(|(&from, &to)| next[from] = to);
    next
}

/// Creates `n` boards of Snake of any size.
///
/// `load` and `save` know only the default size.
fn boards(device: &Device, params: snake::Params, n: usize) -> CudaVecEnv {
    let mut envs = CudaVecEnv::new(device, "snake", n).unwrap().with_block(32);
    envs.params = vec![params.rows.into(), params.columns.into(), params.max_steps.into()];
    envs.observation_space = snake::Snake::new(params).observation_space();
    let cells = usize::from(params.rows) * usize::from(params.columns);
    let mut memory = Memory {
        words: Buffer::zeros(device, 7 * n + (n * cells).div_ceil(2)).unwrap(),
        clock: Buffer::zeros(device, 2).unwrap(),
        fault: Buffer::zeros(device, 1).unwrap(),
    };
    envs.stream.upload(&memory.fault.view_mut(), &[NO_FAULT]).unwrap();
    envs.memory = Arc::new(memory);
    envs
}

/// Snake along the path from its tail on.
///
/// The fruit is on a free cell, `ahead` free cells in front of the first one.
fn along(params: snake::Params, tail: usize, length: usize, ahead: usize, elapsed: u16) -> snake::State {
    let (columns, next) = (usize::from(params.columns), path(params.rows.into(), params.columns.into()));
    let position = |cell: usize| [(cell / columns) as u8, (cell % columns) as u8];
    let cells: Vec<usize> = std::iter::successors(Some(tail), |&cell| Some(next[cell])).take(next.len()).collect();
    let body = cells[..length].iter().rev().map(|&cell| position(cell)).collect();
    snake::State { body, fruit: position(cells[length + ahead % (next.len() - length)]), elapsed }
}

/// States in the kernels' layout.
fn words(params: snake::Params, states: &[snake::State]) -> Vec<u32> {
    let (columns, cells, n) = (usize::from(params.columns), usize::from(params.rows) * usize::from(params.columns), states.len());
    let mut words = vec![0; 7 * n + (n * cells).div_ceil(2)];
    for (i, state) in states.iter().enumerate() {
        let mut env = snake::Snake::new(params);
        env.set_state(state.clone()).unwrap();
        let mut mask = [0; 4];
        env.mask(&mut mask);
        let legal = (0..).zip(mask).fold(0, |legal, (action, bit)| legal | u32::from(bit) << action);
        let cell = |[row, column]: [u8; 2]| usize::from(row) * columns + usize::from(column);
        let [row, column] = state.body[0].map(u32::from);
        let scalars = [0, state.body.len() as u32, row, column, cell(state.fruit) as u32, state.elapsed.into(), legal];
        scalars.into_iter().enumerate().for_each(|(w, word)| words[w * n + i] = word);
        for (&place, ticks) in state.body.iter().zip((1..=state.body.len() as u32).rev()) {
            let at = 14 * n + cell(place) * n + i;
            words[at / 2] |= ticks << (16 * (at % 2));
        }
    }
    words
}

/// Seeds with which a fruit shows a multiplier of Philox that is greater by 1.
///
/// In rounds 8, 9 and 10: one of 96 snakes of one cell eats in its first step, and the number drawn lies on the border of two
/// cells.
const FRUITS: [u64; 2] = [12_234, 572_605];

/// Snakes of one cell that eat in the direction that their random action has.
fn about_to_eat(seed: u64, n: usize) -> (Vec<snake::State>, Vec<u32>) {
    let actions = (0..n as u32).map(|i| rng::below(rng::word(seed, i, 0, Purpose::RandomAction), 4));
    let state = |action: u32| {
        let fruit = [[4, 5], [5, 6], [6, 5], [5, 4]][action as usize];
        (snake::State { body: vec![[5, 5]], fruit, elapsed: 0 }, action)
    };
    actions.map(state).unzip()
}

#[test]
fn snake_steps_alike_from_bodies_of_every_length() {
    agree("snake", |device| {
        let mut corners = Corners::new(7);
        let mut digest = Digest::default();
        for (rows, columns, n, n_rounds) in [(12, 12, 96, 10), (5, 4, 65, 10), (4, 7, 33, 5), (64, 64, 5, 2)] {
            let params = snake::Params { rows, columns, max_steps: 4000 };
            let (cells, next) = (u32::from(rows) * u32::from(columns), path(rows.into(), columns.into()));
            let mut bench = Bench::new(boards(device, params, n));
            bench.reset(&mut corners);
            let params_words = bench.envs.params.clone();
            for seed in FRUITS.into_iter().filter(|_| n == 96) {
                let (states, actions) = about_to_eat(seed, n);
                bench.run(&params_words, &words(params, &states), [seed, 0], &Actions::Discrete(actions));
            }
            for _ in 0..rounds(n_rounds) {
                let state = |_| {
                    let short = 1 + corners.0.below(5);
                    let any = 1 + corners.0.below(cells - 1);
                    let length = corners.pick(&[short, any, any, cells - 1, cells - 2]) as usize;
                    let (tail, ahead) = (corners.0.below(cells) as usize, corners.0.below(cells) as usize);
                    along(params, tail, length, corners.pick(&[0, 1, ahead]), corners.pick(&[0, 7, 3996, 3997, 3998, 3999]))
                };
                let states: Vec<_> = (0..n).map(state).collect();
                let action = |state: &snake::State| {
                    let [row, column] = state.body[0].map(usize::from);
                    let head = row * usize::from(columns) + column;
                    let onward = onward(head, next[head]);
                    corners.pick(&[onward, onward, 0, 1, 2, 3, 4])
                };
                let actions = Actions::Discrete(states.iter().map(action).collect());
                bench.run(&params_words, &words(params, &states), corners.clock(), &actions);
            }
            bench.digest.0.finish().hash(&mut digest.0);
        }
        digest
    });
}

/// Action that moves a head to the next cell of the path.
fn onward(head: usize, next: usize) -> u32 {
    match next as isize - head as isize {
        1 => 1,
        -1 => 3,
        by => {
            if by > 0 {
                2
            } else {
                0
            }
        }
    }
}

/// Steps boards of Snake beside Rust.
///
/// Half of the snakes follow the path, which fills the board.
/// Returns the number of full boards.
fn snakes(device: &Device, params: snake::Params, n: usize, n_steps: usize, begin: Option<Vec<u8>>) -> usize {
    let (rows, columns) = (usize::from(params.rows), usize::from(params.columns));
    let (cells, what) = (rows * columns, format!("{device}, {params:?}"));
    let mut rust = SyncVecEnv::new(n, snake::Snake::new(params));
    let mut twin = boards(device, params, n);
    let mut steps = [Steps::new(&rust), Steps::new(&twin)];
    let [expected, found] = &mut steps;
    rust.reset(3, expected).unwrap();
    twin.reset(3, found).unwrap();
    assert!(expected == found, "{what}: reset");
    if let Some(begin) = begin {
        rust.load(&begin).unwrap();
        twin.load(&begin).unwrap();
    }
    let (next, mut rng, mut full) = (path(rows, columns), Rng::new(9, 0, 0, Purpose::Init), 0);
    let mut heads: Vec<Option<usize>> = vec![None; n];
    for t in 0..n_steps {
        let action = |i: usize| match heads[i].filter(|_| i.is_multiple_of(2)) {
            Some(head) => onward(head, next[head]),
            None => rng.below(4),
        };
        let actions: Vec<u32> = (0..n).map(action).collect();
        for steps in [&mut *expected, &mut *found] {
            steps.actions = Actions::Discrete(actions.clone());
        }
        rust.step(expected).unwrap();
        twin.step(found).unwrap();
        assert!(expected == found, "{what}: step {t}");
        let Obs::U8(obs) = &expected.obs else { unreachable!("Snake's observations are bytes") };
        let Obs::U8(last) = &expected.final_obs else { unreachable!("Snake's observations are bytes") };
        for i in 0..n {
            heads[i] = obs[(5 * i + 1) * cells..][..cells].iter().position(|&cell| cell == 255);
            full += usize::from(expected.done(i) && last[5 * i * cells..][..cells].iter().all(|&cell| cell == 255));
        }
    }
    full
}

#[test]
fn snake_steps_as_in_rust_on_boards_of_other_sizes() {
    for device in Device::for_tests() {
        let board = |rows, columns, max_steps| snake::Params { rows, columns, max_steps };
        assert!(snakes(&device, board(4, 4, 4000), 33, 600, None) > 10);
        assert!(snakes(&device, board(4, 5, 4000), 33, 600, None) > 10);
        assert!(snakes(&device, board(5, 4, 300), 33, 600, None) > 10);
        assert!(snakes(&device, board(7, 8, 4000), 9, 1800, None) > 0);
        snakes(&device, board(64, 64, 40), 2, 60, None);
        // Long snakes on the default board: one after the other along the path, the fruit anywhere behind.
        let params = snake::Params::default();
        let state = |i: usize| along(params, 17 * i % 144, 143 - 2 * i, i / 2, [0, 3990][i % 2]);
        let states: Vec<_> = (0..65).map(state).collect();
        let full = snakes(&device, params, 65, 40, Some(codec::encode(&(0u32, 7u64, 100u64, states)).unwrap()));
        assert!(full > 0);
    }
}
