//! Orders of samples, targets, episodes, optimizer steps.

use std::hash::Hash;

use super::*;

/// Seeds and lengths of orders in which two indices draw equal words.
///
/// The indices are 17 and 56, 7 and 48, 0 and 7.
const EQUAL: [(u64, usize); 4] = [(103_433, 64), (103_433, 57), (8_581_044, 49), (3_987_810, 8)];

#[test]
fn orders_and_targets_agree_from_any_counter() {
    agree("orders", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 24);
        for round in 0..rounds(16) {
            let mut state = bench.state();
            for n in [1, bench.corners.pick(&[2, 3, 5, 33, 63]), 64, 65, bench.corners.pick(&[66, 67, 72, 99, 120])] {
                let mut order = bench.zeros(n);
                let shuffled = bench.corners.0.below(8) > 0;
                bench.kernels.epoch(&bench.stream, &mut state).unwrap();
                bench.kernels.rows(&bench.stream, &state, EpochOrder { n_samples: n, shuffled }, &order.view_mut()).unwrap();
                bench.digest.add(&bench.stream, &order, |index| index);
                bench.add_state(&state);
            }
            bench.kernels.begin(&bench.stream, &mut state).unwrap();
            bench.add_state(&state);
            let wild = round % 4 == 3;
            let (t, n) = (bench.corners.pick(&[1, 2, 9, 40]), bench.corners.pick(&[1, 2, 7, 31]));
            let (mut values, last_values) = (bench.floats(t * n, wild), bench.floats(n, wild));
            let mut advantages = bench.floats(t * n, wild);
            if round % 4 == 0 {
                // Returns without a variance.
                (values, advantages) = (bench.upload(&vec![0.5; t * n]), bench.upload(&vec![0.25; t * n]));
            }
            let len = (t * n) as u32;
            let at: Vec<u32> = match round % 2 {
                0 => [0, len - 1, len, u32::MAX][usize::from(len == 1)..].into(),
                _ => (0..len).step_by(2).chain([len, u32::MAX]).collect(),
            };
            let at = bench.upload(&at);
            let final_values = bench.floats(at.len(), wild);
            let (mut next_values, mut returns) = (bench.floats(t * n, false), bench.floats(t * n, false));
            let (values, last_values, final_values) = (values.view(), last_values.view(), final_values.view());
            let to = next_values.view_mut();
            bench.kernels.next_values(&bench.stream, &values, &last_values, &final_values, &at.view(), &to).unwrap();
            bench.kernels.returns(&bench.stream, &advantages.view(), &values, &returns.view_mut()).unwrap();
            let mut scratch = Buffer::zeros(device, LearnerKernels::variance_scratch(t * n)).unwrap();
            let of = [&returns.view(), &values];
            bench.kernels.explained_variance(&bench.stream, of, &scratch.view_mut(), &mut state).unwrap();
            [&next_values, &returns].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            bench.add_state(&state);
            let [terminated, truncated] = bench.flags(t * n);
            let (flags, final_values) = ([&terminated.view(), &truncated.view()], bench.floats(t * n, wild));
            bench.kernels.ended_values(&bench.stream, &final_values.view(), flags, &next_values.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &next_values);
            bench.kernels.continued_values(&bench.stream, &values, &last_values, flags, &next_values.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &next_values);
        }
        for (seed, n) in EQUAL {
            let mut state = LearnerState::new(bench.device).unwrap();
            bench.stream.upload(&state.counters.view_mut(), &[seed, 0, 0, 0, 0, 0, 0]).unwrap();
            let mut order = bench.zeros(n);
            bench.kernels.epoch(&bench.stream, &mut state).unwrap();
            bench.kernels.rows(&bench.stream, &state, EpochOrder { n_samples: n, shuffled: true }, &order.view_mut()).unwrap();
            bench.digest.add(&bench.stream, &order, |index| index);
        }
        bench.digest
    });
}

#[test]
fn episodes_agree_from_any_returns() {
    agree("episodes", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 27);
        for round in 0..rounds(16) {
            let (t, n) = match round {
                0 => (5227, 16), // long
                1 => (20, 31),   // three steps in a part
                2 => (32, 31),   // four
                3 => (0, 7),
                _ => (bench.corners.pick(&[1, 2, 9, 40]), bench.corners.pick(&[1, 2, 7, 31])),
            };
            let keep = if round == 2 { 600 } else { bench.corners.pick(&[1, 2, 5, 100, 600]) };
            let mut episodes = Episodes::new(device, n, keep).unwrap();
            let lengths = [0, 1, 7, u32::MAX];
            let running: Vec<(f64, u32)> = (0..n).map(|_| (bench.any().into(), bench.corners.pick(&lengths))).collect();
            episodes.set_running(&bench.stream, &running).unwrap();
            for _ in 0..2 {
                let (rewards, [terminated, truncated]) = (bench.floats(t * n, round % 4 == 3), bench.flags(t * n));
                episodes.add(&bench.stream, &rewards.view(), &terminated.view(), &truncated.view()).unwrap();
                let (ended, latest) = episodes.ended(&bench.stream).unwrap();
                ended.hash(&mut bench.digest.0);
                for (sum, length) in latest.into_iter().chain(episodes.running(&bench.stream).unwrap()) {
                    (if sum.is_nan() { u64::MAX } else { sum.to_bits() }, length).hash(&mut bench.digest.0);
                }
            }
        }
        bench.digest
    });
}

#[test]
fn steps_agree_from_any_state() {
    agree("steps", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 26);
        for round in 0..rounds(96) {
            let wild = round % 4 == 3;
            let (n, slices) = match round {
                0 => (13_000, MinibatchSlices::new(13_000, 16, 1, 0)), // more tiles than threads
                1..=4 => (96 * [4, 5, 8, 9][round - 1], MinibatchSlices::new(96 * [4, 5, 8, 9][round - 1], 1, 1, 0)),
                12 => (1, bench.slices(1, 1)),
                _ => {
                    let n = bench.corners.pick(&[1, 7, 8, 9, 33, 96, 97, 200, 500]);
                    (n, bench.slices(n, 1))
                }
            };
            let mut state = bench.state();
            let mut terms = bench.numbers(PARTS * n, wild);
            if round % 4 == 0 {
                // The divergence is 1.5 times the bound, and so not above it.
                let divergence = if round == 12 { 0.375_000_03 } else { 0.375 }; // or just above
                terms[3 * n..4 * n].fill(divergence);
                bench.stream.upload(&state.settings.view_mut().slice_mut(4..5), &[0.25f32]).unwrap();
            }
            if round % 4 < 2 {
                bench.stream.upload(&state.counters.view_mut().slice_mut(5..6), &[0u64]).unwrap(); // nothing has stopped it
            }
            if round % 4 == 1 {
                // No sum of tiles is above 0, and the bound is the smallest one.
                terms.fill(0.0);
                terms[3 * n..4 * n].fill(5e-45);
                bench.stream.upload(&state.settings.view_mut().slice_mut(4..5), &[1e-45f32]).unwrap();
            }
            let terms = bench.upload(&terms);
            let mut tiles = bench.zeros(PARTS * slices.tiles());
            bench.kernels.loss(&bench.stream, &slices, &terms.view(), &tiles.view_mut(), &mut state).unwrap();
            bench.digest.doubles(&bench.stream, &tiles);
            bench.add_state(&state);
            let a = PARTS;
            let (mut gradient, mut tiles) = (bench.zeros(a), bench.zeros(a * slices.tiles()));
            bench.kernels.log_std(&bench.stream, &slices, &terms.view(), &tiles.view_mut(), &gradient.view_mut()).unwrap();
            bench.digest.doubles(&bench.stream, &tiles);
            bench.digest.floats(&bench.stream, &gradient);
            let mut state = bench.state();
            let square = bench.corners.pick(&[0.0, 0.25, 1.0, 0.3, 7.0, 1e-300, f64::INFINITY, f64::NAN, f64::MAX]);
            let squares = bench.upload(&[square]);
            bench.kernels.step(&bench.stream, &squares.view(), &mut state).unwrap();
            bench.add_state(&state);
            let n = bench.corners.pick(&[1, 33, 130]);
            let gradient = bench.floats(n, wild);
            let [mut params, mut m, mut v] = [(); 3].map(|()| bench.floats(n, wild));
            let state = bench.state();
            let moments = [&m.view_mut(), &v.view_mut()];
            bench.kernels.adam(&bench.stream, &gradient.view(), &params.view_mut(), moments, &state).unwrap();
            [&params, &m, &v].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            bench.kernels.rms_prop(&bench.stream, &gradient.view(), &params.view_mut(), &v.view_mut(), &state).unwrap();
            [&params, &v].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        bench.digest
    });
}
