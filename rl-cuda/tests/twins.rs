//! Kernels compared with their Rust originals, bit for bit.
//!
//! Always on the emulated device, and on a GPU where there is one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;
#[path = "../../xtask/outside/cuda/src/corridor.rs"]
#[allow(missing_docs, unreachable_pub, unsafe_code, reason = "a module of another crate")]
mod corridor;

use beside::{SIZES, compare, compare_batches};
use corridor::Params;
use rl_cuda::elementary::{self, Function};
use rl_cuda::{ActionSource, Constants, CudaVecEnv, Device, DeviceActions, DeviceSteps, Module};
use rl_envs::lanes::{Dynamics, Lane};
use rl_envs::{ActionSpace, Actions, Purpose, RandomActions, Rng, Space, Step, SyncVecEnv, VecEnv, catalog, math};

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
                let n_steps = if n == 1000 { 600 } else { 2500 } / if entry.name == "snake" { 4 } else { 1 }; // a slow one
                ended +=
                    compare(&device, entry.name, n, 11 + n as u64, n_steps).unwrap_or_else(|error| panic!("{device}: {error}"));
            }
            println!("{device}: {}: the same bits, {ended} episodes ended", entry.name);
            assert!(ended > 100, "{}: {ended} episodes ended, too few to show anything", entry.name);
        }
    }
}

#[test]
fn kernels_of_the_users_own_step_as_their_original() {
    for device in Device::for_tests() {
        for n in SIZES {
            let original = SyncVecEnv::new(n, Lane::<Params, 2, 1>::default());
            let twin = corridor::on_device(&device, n).unwrap();
            // Before step 100, where episodes are truncated, they end only by arriving.
            let ended = compare_batches("corridor", [Box::new(original), Box::new(twin)], n as u64, 99).unwrap();
            assert!(ended > 0 || n < 1000, "{device}: no episode arrived");
        }
        let mut envs = corridor::on_device(&device, 33).unwrap();
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
        let made = unsafe { CudaVecEnv::with_kernels::<Misfit<OBS, WORDS>, 2, 1>(device, &CORRIDOR, 3) };
        made.err().map(|error| error.to_string())
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
    for device in Device::for_tests() {
        // SAFETY: nothing is launched.
        let refused = unsafe { CudaVecEnv::with_kernels::<Params, 2, 1>(&device, &MISNAMED, 3) }.unwrap_err();
        assert_eq!(refused.to_string(), "the module passage has no kernel passage_reset", "{device}");
    }
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
