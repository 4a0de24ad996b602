//! Kernels compared with their Rust originals, bit for bit.
//!
//! Always on the emulated device, and on a GPU where there is one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;

use beside::{SIZES, compare};
use rl_cuda::Device;
use rl_cuda::elementary::{self, Function};
use rl_envs::{Purpose, Rng, catalog, math};

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
