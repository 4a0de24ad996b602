//! Kernels compared with their Rust originals, bit for bit.
//!
//! Always on the emulated device, and on a GPU where there is one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;
#[path = "../../xtask/outside/cuda/src/corridor.rs"]
#[allow(missing_docs, unreachable_pub, unsafe_code, reason = "a module of another crate")]
mod corridor;

use beside::{Driven, Player, SIZES, compare, compare_batches};
use corridor::Params;
use rl_cuda::elementary::{self, Function};
use rl_cuda::{ActionSource, Constants, CudaVecEnv, Device, DeviceActions, DeviceSteps, EnvKernels, Module};
use rl_envs::cartpole::CartPole;
use rl_envs::catalog::Entry;
use rl_envs::grid_world::{self, GridWorld, Level};
use rl_envs::lanes::{Dynamics, Lane};
use rl_envs::minatar::{Game, MinAtar};
use rl_envs::wrappers::{Hidden, Wrappers};
use rl_envs::{
    ActionSpace, Actions, Env, Purpose, RandomActions, Rng, Space, Step, SyncVecEnv, VecEnv, asterix, breakout, catalog, codec,
    freeway, math, seaquest, space_invaders,
};

/// The kernels of the corridor.
static CORRIDOR: Module = Module::new("corridor", SOURCE, PTX);
const SOURCE: &str = include_str!("../../xtask/outside/cuda/kernels/corridor.cu");
const PTX: &str = include_str!("../../xtask/outside/cuda/kernels/corridor.ptx");

#[test]
fn every_environment_steps_as_its_original() {
    for device in Device::for_tests() {
        for entry in catalog::twinned() {
            let mut ended = 0;
            for n in SIZES {
                let is_slow = ["snake", "asterix", "seaquest", "space_invaders"].contains(&entry.name);
                let n_steps = if n == 1000 { 200 } else { 2500 } / if is_slow { 4 } else { 1 };
                ended +=
                    compare(&device, entry.name, n, 11 + n as u64, n_steps).unwrap_or_else(|error| panic!("{device}: {error}"));
            }
            println!("{device}: {}: the same bits, {ended} episodes ended", entry.name);
            assert!(ended > 100, "{}: {ended} episodes ended, too few to show anything", entry.name);
        }
    }
}

/// Numbers of which states are made.
struct Any(Rng);

impl Any {
    fn byte(&mut self, below: u8) -> u8 {
        self.0.below(below.into()) as u8
    }

    fn flag(&mut self) -> bool {
        self.byte(2) == 1
    }

    /// Ten rows of bits, of which a fourth are set.
    fn map(&mut self) -> [u16; 10] {
        std::array::from_fn(|_| (self.0.next_u32() & self.0.next_u32()) as u16 & 0x3FF)
    }

    /// Seaquest's swimmers: none, few, or as many as there may be.
    fn swimmers(&mut self) -> Vec<seaquest::Swimmer> {
        let n = [0, 1, 3, 7, 20, seaquest::MOST][self.0.below(6) as usize];
        let mut swimmer = || seaquest::Swimmer {
            x: self.byte(10),
            y: self.byte(10),
            right: self.flag(),
            move_timer: self.byte(6),
            shot_timer: self.byte(11),
        };
        (0..n).map(|_| swimmer()).collect()
    }
}

/// Steps a game beside its original from drawn states, reached in play or not.
fn compare_game<G: Game + 'static>(device: &Device, name: &str, mut draw: impl FnMut(&mut Any) -> G) {
    compare_from_any_state::<MinAtar<G>>(device, name, |any| {
        let mut state = draw(any);
        let elapsed = [0, 7, G::MAX_STEPS - 12, G::MAX_STEPS - 1][any.0.below(4) as usize];
        (*state.clock().0, *state.clock().1) = (any.byte(G::N_ACTIONS as u8), elapsed);
        state
    });
}

/// Steps an environment beside its original from drawn states.
fn compare_from_any_state<E: Env<State: Clone> + Default>(
    device: &Device,
    name: &str,
    mut draw: impl FnMut(&mut Any) -> E::State,
) {
    let (n, mut any) = (65, Any(Rng::new(4, 0, 0, Purpose::Init)));
    let mut env = E::default();
    let original = catalog::find(name).unwrap().sync(n).unwrap();
    let mut player = Player::new(8, n, original.action_space());
    let mut both = [original, Box::new(CudaVecEnv::new(device, name, n).unwrap())].map(Driven::new);
    for round in 0..8 {
        let mut states: Vec<E::State> = Vec::new();
        while states.len() < n {
            let state = draw(&mut any);
            if env.set_state(state.clone()).is_ok() {
                states.push(state);
            }
        }
        let saved = codec::encode(&(0u32, round as u64, 100u64, states)).unwrap();
        both.iter_mut().for_each(|driven| driven.envs.load(&saved).unwrap());
        assert!(both[1].envs.save().unwrap() == saved, "{device}: {name}: loaded and saved");
        for t in 0..12 {
            let actions = player.play("", &both[0]);
            both.iter_mut().for_each(|driven| driven.step(actions).unwrap());
            let [a, b] = both.each_ref().map(|driven| (driven.rows(), driven.envs.save().unwrap()));
            assert!(a == b, "{device}: {name}: round {round}, step {t}");
        }
        // With random actions, in one launch.
        let mut original = Driven::new(catalog::find(name).unwrap().sync(n).unwrap());
        let (stream, mut twin) = (device.stream().unwrap(), CudaVecEnv::new(device, name, n).unwrap());
        let mut steps = DeviceSteps::zeros(device, 12, n, twin.observation_space(), twin.action_space()).unwrap();
        twin.load(&saved).unwrap();
        twin.step_on(&stream, 12, ActionSource::Random, &steps.rows(0..12)).unwrap();
        let DeviceActions::Discrete(drawn) = &steps.columns.actions else { unreachable!("discrete") };
        let (mut actions, mut rewards) = (vec![0; 12 * n], vec![0.0; 12 * n]);
        stream.download(&mut actions, &drawn.view()).unwrap();
        stream.download(&mut rewards, &steps.columns.rewards.view()).unwrap();
        original.envs.load(&saved).unwrap();
        for (actions, rewards) in actions.chunks_exact(n).zip(rewards.chunks_exact(n)) {
            original.step(Actions::Discrete(actions)).unwrap();
            assert!(original.rewards() == rewards, "{device}: {name}: round {round}, random actions: rewards");
        }
        assert!(original.envs.save().unwrap() == twin.save().unwrap(), "{device}: {name}: round {round}, random actions: states");
    }
}

#[test]
fn games_of_minatar_step_as_their_originals_from_any_state() {
    for device in Device::for_tests() {
        compare_game(&device, "asterix", |any| {
            let mut entity = || asterix::Entity { x: any.byte(10), right: any.flag(), gold: any.flag() };
            let entities = std::array::from_fn::<_, 8, _>(|_| entity());
            asterix::State {
                player_x: any.byte(10),
                player_y: 1 + any.byte(8),
                entities: entities.map(|entity| any.flag().then_some(entity)),
                spawn_speed: 1 + any.byte(10),
                spawn_timer: any.byte(3),
                move_speed: 1 + any.byte(5),
                move_timer: any.byte(3),
                ramp_timer: any.byte(4) as i8 - 1,
                ramp_index: any.byte(12),
                ..asterix::State::default()
            }
        });
        compare_game(&device, "breakout", |any| breakout::State {
            ball_x: any.byte(10),
            ball_y: any.byte(9),
            ball_dir: any.byte(4),
            pos: any.byte(10),
            brick_map: std::array::from_fn(|_| std::array::from_fn(|_| any.byte(2))),
            strike: any.flag(),
            last_x: any.byte(10),
            last_y: any.byte(10),
            ..breakout::State::default()
        });
        compare_game(&device, "freeway", |any| {
            let car_speed = std::array::from_fn(|_| (1 + any.byte(5) as i8) * if any.flag() { 1 } else { -1 });
            freeway::State {
                pos: 1 + any.byte(9),
                move_timer: any.byte(4),
                car_x: std::array::from_fn(|_| any.byte(10)),
                car_timer: car_speed.map(|speed| any.byte(1 + speed.unsigned_abs())),
                car_speed,
                ..freeway::State::default()
            }
        });
        compare_game(&device, "space_invaders", |any| space_invaders::State {
            pos: any.byte(10),
            alien_map: if any.flag() { any.map() } else { std::array::from_fn(|y| if y == 2 { 1 << any.byte(10) } else { 0 }) },
            f_bullet_map: any.map(),
            e_bullet_map: any.map(),
            alien_dir: if any.flag() { 1 } else { -1 },
            enemy_move_interval: 6 + any.byte(7),
            alien_move_timer: any.byte(3),
            alien_shot_timer: any.byte(3),
            shot_timer: any.byte(6),
            ..space_invaders::State::default()
        });
        compare_game(&device, "seaquest", |any| seaquest::State {
            oxygen: [0, 1, 2, 19, 20, 199, 200][any.0.below(7) as usize],
            diver_count: [-1000, -999, -1, 0, 1, 5, 6][any.0.below(7) as usize],
            sub_x: any.byte(10),
            sub_y: [0, 0, 1, any.byte(9)][any.0.below(4) as usize],
            sub_or: any.flag(),
            f_bullets: any.swimmers(),
            e_bullets: any.swimmers(),
            e_fish: any.swimmers(),
            e_subs: any.swimmers(),
            divers: any.swimmers(),
            e_spawn_speed: 1 + any.byte(3),
            e_spawn_timer: any.byte(3),
            d_spawn_timer: any.byte(3),
            move_speed: 2 + any.byte(4),
            ramp_index: any.byte(4),
            shot_timer: any.byte(6),
            surface: any.flag(),
            ..seaquest::State::default()
        });
    }
}

/// A grid of any cells, and the agent in an empty one.
fn grid<L: Level>(any: &mut Any) -> grid_world::State {
    let key = |any: &mut Any| 5 | u16::from(any.byte(6)) << 4;
    let door = |any: &mut Any| 4 | u16::from(any.byte(6)) << 4 | u16::from(any.byte(3)) << 8;
    let mut cells: Vec<u16> = (0..L::SIZE * L::SIZE)
        .map(|_| match any.byte(16) {
            0..=2 => 2 | 5 << 4,
            3 => 8 | 1 << 4,
            4 | 5 => key(any),
            6 | 7 => door(any),
            _ => 1,
        })
        .collect();
    let agent_pos = [0; 2].map(|_| any.byte(L::SIZE as u8));
    cells[usize::from(agent_pos[1]) * L::SIZE + usize::from(agent_pos[0])] = 1;
    let carrying = if any.flag() { key(any) } else { 0 };
    let elapsed = [0, 7, L::MAX_STEPS - 12, L::MAX_STEPS - 1][any.0.below(4) as usize];
    grid_world::State { cells, agent_pos, agent_dir: any.byte(4), carrying, elapsed }
}

#[test]
fn grid_worlds_step_as_their_originals_from_any_state() {
    for device in Device::for_tests() {
        compare_from_any_state::<GridWorld<grid_world::Empty>>(&device, "empty", grid::<grid_world::Empty>);
        compare_from_any_state::<GridWorld<grid_world::DoorKey>>(&device, "door_key", grid::<grid_world::DoorKey>);
        compare_from_any_state::<GridWorld<grid_world::MultiRoom>>(&device, "multi_room", grid::<grid_world::MultiRoom>);
    }
}

#[test]
fn kernels_of_the_users_own_step_as_their_original() {
    for device in Device::for_tests() {
        for n in SIZES {
            let original = SyncVecEnv::new(n, Lane::<Params, 2, 1>::default());
            let twin = CudaVecEnv::of_entry(&device, &corridor::ENTRY, n).unwrap();
            // Before step 100, where episodes are truncated, they end only by arriving.
            let ended = compare_batches("corridor", [Box::new(original), Box::new(twin)], n as u64, 99).unwrap();
            assert!(ended > 0 || n < 1000, "{device}: no episode arrived");
        }
        let mut envs = CudaVecEnv::of_entry(&device, &corridor::ENTRY, 33).unwrap();
        let stream = device.stream().unwrap();
        let mut steps = DeviceSteps::zeros(&device, 1, 33, envs.observation_space(), envs.action_space()).unwrap();
        envs.reset_on(&stream, 5, &steps.rows(0..1).obs, None).unwrap();
        envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1)).unwrap();
        let DeviceActions::Discrete(drawn) = &steps.columns.actions else { unreachable!("discrete") };
        let (mut taken, mut expected) = (vec![0; 33], vec![0; 33]);
        stream.download(&mut taken, &drawn.view()).unwrap();
        RandomActions::new(5, 33, envs.action_space()).fill(Actions::Discrete(&mut expected));
        assert_eq!(taken, expected, "{device}");
    }
}

/// The rules of the corridor, with other spaces and constants.
#[derive(Clone, Debug, Default)]
struct Misfit<const OBS: usize, const WORDS: usize>(Params);

impl<const OBS: usize, const WORDS: usize> Constants for Misfit<OBS, WORDS> {
    fn words(&self) -> Vec<u32> {
        vec![0; WORDS]
    }
}

impl<const OBS: usize, const WORDS: usize> Dynamics<2, 1> for Misfit<OBS, WORDS> {
    type State = corridor::State;
    type Action = u32;

    fn observation_space(&self) -> Space {
        if OBS == 0 { Space::bytes(&[1], 255, 1.0) } else { Space::vector(&[0.0; OBS], &[1.0; OBS]) }
    }

    fn action_space(&self) -> ActionSpace {
        self.0.action_space()
    }

    fn start(&self, rng: &mut Rng) -> corridor::State {
        self.0.start(rng)
    }

    fn advance(&self, state: corridor::State, action: u32) -> (corridor::State, Step) {
        self.0.advance(state, action)
    }

    fn observe(&self, state: &corridor::State) -> [f32; 1] {
        self.0.observe(state)
    }

    fn fault(&self, state: &corridor::State) -> Option<String> {
        self.0.fault(state)
    }

    fn pack(state: corridor::State) -> [u32; 2] {
        Params::pack(state)
    }

    fn unpack(words: [u32; 2]) -> corridor::State {
        Params::unpack(words)
    }
}

#[test]
#[allow(unsafe_code)]
fn kernels_whose_rules_have_other_spaces_or_too_many_constants_are_refused() {
    fn refused<const OBS: usize, const WORDS: usize>(device: &Device) -> Option<String> {
        // SAFETY: nothing is launched.
        let kernels: &'static EnvKernels = Box::leak(Box::new(unsafe { EnvKernels::of::<Misfit<OBS, WORDS>, 2, 1>(&CORRIDOR) }));
        let entry = Entry::lanes::<Misfit<OBS, WORDS>, 2, 1>("misfit", "other spaces or constants").with_kernels(kernels);
        CudaVecEnv::of_entry(device, &entry, 3).err().map(|error| error.to_string())
    }
    for device in Device::for_tests() {
        let no_numbers = Some("the rules of corridor: the observation space does not have D numbers".into());
        assert_eq!((refused::<0, 4>(&device), refused::<2, 4>(&device)), (no_numbers.clone(), no_numbers));
        let too_many = Some("the rules of corridor: more than 48 constants".into());
        assert_eq!((refused::<1, 48>(&device), refused::<1, 49>(&device)), (None, too_many));
    }
}

#[test]
#[allow(unsafe_code)]
fn kernels_that_do_not_fit_their_rules_are_refused() {
    static MISNAMED: Module = Module::new("passage", SOURCE, PTX);
    // SAFETY: nothing is launched.
    static KERNELS: EnvKernels = unsafe { EnvKernels::of::<Params, 2, 1>(&MISNAMED) };
    for device in Device::for_tests() {
        let entry = Entry::lanes::<Params, 2, 1>("passage", "kernels of another name").with_kernels(&KERNELS);
        let refused = CudaVecEnv::of_entry(&device, &entry, 3).unwrap_err();
        assert_eq!(refused.to_string(), "the module passage has no kernel passage_reset", "{device}");
    }
}

#[test]
fn an_entry_has_the_kernels_that_step_it_or_none() {
    let stacked = Wrappers { frame_stack: 2, ..Wrappers::default() };
    let refused = [
        (Entry::of::<CartPole>("cartpole", "without kernels"), "environment \"cartpole\" has no kernels"),
        (corridor::ENTRY.wrapped(stacked), "wrappers on a device: expected none but env.hide"),
        (Entry::of::<CartPole>("other", "").with_kernels(&CORRIDOR), "kernels of the entry: expected an EnvKernels"),
        (
            Entry::of::<CartPole>("other", "").with_kernels(&corridor::KERNELS),
            "the rules of corridor: the spaces are not those of the entry with these kernels",
        ),
    ];
    for device in Device::for_tests() {
        for (entry, reason) in &refused {
            let error = CudaVecEnv::of_entry(&device, entry, 3).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{device}: {error}");
        }
    }
}

/// Returns the report of `check_kernels`.
fn checked(device: &Device, entry: &Entry) -> String {
    let on_device = |n| {
        let envs = CudaVecEnv::of_entry(device, entry, n).map_err(|error| rl_envs::Error::Device(error.to_string()))?;
        Ok(Box::new(envs) as Box<dyn VecEnv>)
    };
    entry.check_kernels(&on_device).to_string()
}

#[test]
fn kernels_that_differ_from_their_rules_fail_the_check_that_names_the_step() {
    for device in Device::for_tests() {
        assert_eq!(checked(&device, &corridor::ENTRY), "PASS kernels: the kernels give what the environment gives", "{device}");
        let hidden = catalog::find("pendulum").unwrap().wrapped(Wrappers { hide: Hidden::Velocities, ..Wrappers::default() });
        assert!(checked(&device, &hidden).starts_with("PASS "), "{device}");
    }
    let Some(device) = Device::for_tests().into_iter().find(Device::is_emulated) else { return };
    let planted = |changes: &[(&str, &str)]| {
        let mut source = SOURCE.to_string();
        for (from, to) in changes {
            assert!(source.contains(from), "{from}");
            source = source.replace(from, to);
        }
        let module: &'static Module = Box::leak(Box::new(Module::new("corridor", source.leak(), PTX)));
        // SAFETY: the kernels have the arguments of the rules of `Params`.
        #[allow(unsafe_code)]
        let kernels: &'static EnvKernels = Box::leak(Box::new(unsafe { EnvKernels::of::<Params, 2, 1>(module) }));
        checked(&device, &Entry::lanes::<Params, 2, 1>("corridor", "with a mistake").with_kernels(kernels))
    };
    let start = planted(&[("rng.uniform_in(0.0f, 1.0f)", "rng.uniform_in(0.0f, 0.9f)")]);
    assert!(
        start.starts_with("FAIL kernels: environment 0 differs at step 0 in a batch of 1, on the device and on the CPU"),
        "{start}"
    );
    let end = planted(&[("state.elapsed >= max_steps", "state.elapsed > max_steps")]);
    assert!(end.starts_with("FAIL kernels: environment ") && end.contains(" differs at step "), "{end}");
    // All steps are the same with the words of a state in another order, but no run could move between device and CPU.
    let order = planted(&[
        ("words[0] = math::to_bits(state.x);", "words[1] = math::to_bits(state.x);"),
        ("words[1] = state.elapsed;", "words[0] = state.elapsed;"),
        ("{math::from_bits(words[0]), words[1]}", "{math::from_bits(words[1]), words[0]}"),
    ]);
    assert!(order.starts_with("FAIL kernels: the states of a batch of 1 differ after the last step"), "{order}");
}

#[test]
fn elementary_functions_give_the_same_bits() {
    let numbers: Vec<f32> = (0..=u32::MAX / 4001).map(|i| f32::from_bits(i * 4001)).collect();
    let small: Vec<f32> = (0..=255 * 64).map(|i| i as f32 / 64.0).collect();
    type Original = fn(f32) -> f32;
    let rows: [(Function, Original, &[f32]); 7] = [
        (Function::Sin, |x| math::sin_cos(x).0, &numbers),
        (Function::Cos, |x| math::sin_cos(x).1, &numbers),
        (Function::WrapAngle, math::wrap_angle, &numbers),
        (Function::Exp, math::exp, &numbers),
        (Function::Ln, math::ln, &numbers),
        (Function::Tanh, math::tanh, &numbers),
        (Function::RoundToByte, |x| math::round_to_byte(x).into(), &small),
    ];
    for device in Device::for_tests() {
        for (function, original, x) in rows {
            let y = elementary::apply(&device, function, x).unwrap();
            for (&x, &y) in x.iter().zip(&y) {
                let expected = original(x);
                let same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
                assert!(same, "{device}: {function:?}({x:e}) is {y:e}, not {expected:e}");
            }
        }
    }
}

#[test]
fn random_numbers_are_the_same_words() {
    for device in Device::for_tests() {
        for (seed, step, purpose) in [
            (0, 0, Purpose::Reset),
            (u64::MAX, u64::MAX, Purpose::Step),
            (0x0123_4567_89AB_CDEF, 1 << 33, Purpose::RandomAction),
            (7, 1001, Purpose::Policy),
        ] {
            let (count, n) = (11, 333);
            let words = elementary::random(&device, seed, step, purpose, count, n).unwrap();
            for i in 0..n {
                let mut rng = Rng::new(seed, i as u32, step, purpose);
                for j in 0..count {
                    assert_eq!(words[j * n + i], rng.next_u32(), "{device}: seed {seed}, step {step}, index {i}, word {j}");
                }
            }
        }
    }
}
