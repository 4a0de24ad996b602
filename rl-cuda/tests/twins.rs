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
use rl_cuda::{ActionSource, CudaVecEnv, Device, DeviceActions, DeviceSteps, Module};
use rl_envs::lanes::Lane;
use rl_envs::{Actions, Purpose, RandomActions, Rng, SyncVecEnv, VecEnv, catalog, math};

#[test]
fn every_environment_steps_as_its_original() {
    for device in Device::for_tests() {
        for entry in catalog::ENVS {
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

#[test]
#[allow(unsafe_code)]
fn kernels_that_do_not_fit_their_rules_are_refused() {
    static MISNAMED: Module = Module::new(
        "passage",
        include_str!("../../xtask/outside/cuda/kernels/corridor.cu"),
        include_str!("../../xtask/outside/cuda/kernels/corridor.ptx"),
    );
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
