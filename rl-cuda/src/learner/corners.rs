//! The learner's kernels on numbers and counters that learning does not reach.

use std::hash::Hash;

use rl_envs::{Actions, Obs, math};

use super::*;
use crate::Buffer;
use crate::corners::{EXP, KernelBench, LN, LOG_PROBS, agree, rounds};
use crate::targets::Steps;

/// Arguments of a network's tanh that show the last bit of each coefficient.
///
/// Found by trying every float.
const TANH: [f32; 12] = [
    0.346_099_88,
    0.173_286_81,
    0.124_474_99,
    0.074_407_816,
    0.887_092_23,
    0.043_681_964,
    0.048_105_68,
    0.011_071_26,
    0.011_982_284_5,
    0.000_241_025_53,
    0.000_600_592_8,
    2.980_232_2e-8,
];

/// Seeds and lengths of orders in which two indices draw equal words.
///
/// The indices are 17 and 56, 7 and 48, 0 and 7.
const EQUAL: [(u64, usize); 4] = [(103_433, 64), (103_433, 57), (8_581_044, 49), (3_987_810, 8)];

impl KernelBench<'_, LearnerKernels> {
    /// Numbers within 1; with `wild`, any in every fifth place.
    fn numbers(&mut self, n: usize, wild: bool) -> Vec<f32> {
        let mut number = |_| if wild && self.corners.0.below(5) == 0 { self.any() } else { self.corners.0.uniform_in(-1.0, 1.0) };
        (0..n).map(&mut number).collect()
    }

    fn floats(&mut self, n: usize, wild: bool) -> Buffer<f32> {
        let numbers = self.numbers(n, wild);
        self.upload(&numbers)
    }

    fn any(&mut self) -> f32 {
        self.corners.float(&[0.0, 0.2, 0.5, 1.0, 10.0, 89.0, -104.0])
    }

    /// Logits or means of a sample.
    fn outputs(&mut self, a: usize, wild: bool) -> Vec<f32> {
        let mut row: Vec<f32> = (0..a).map(|_| if wild { self.any() } else { self.corners.0.uniform_in(-3.0, 3.0) }).collect();
        let (at, other) = (self.corners.0.below(a as u32) as usize, self.corners.0.below(a as u32) as usize);
        match self.corners.0.below(5) {
            _ if a == 0 => {}
            4 => row.fill(self.corners.pick(&[-1e30, -1e31, -3e38])), // as masked, or below
            0 => {
                row.iter_mut().for_each(|logit| *logit = -logit.abs());
                (row[at], row[other]) = (-self.corners.pick(&EXP).abs(), 0.0);
            }
            1 => {
                row.fill(-1000.0);
                let [of_ln, of_exp] = [self.corners.pick(&LN), self.corners.pick(&LOG_PROBS)];
                (row[at], row[other]) = (self.corners.pick(&[of_ln, of_exp]), 0.0);
            }
            2 if a > 2 => self.corners.tie(&mut row, at),
            _ => {}
        }
        row
    }

    /// Rows, some past the end.
    fn rows(&mut self, n: usize, len: usize) -> Buffer<u32> {
        let rows: Vec<u32> = (0..n)
            .map(|_| {
                let row = self.corners.0.below(len as u32);
                self.corners.pick(&[row, row, row, row, 0, len as u32 - 1, len as u32, u32::MAX])
            })
            .collect();
        self.upload(&rows)
    }

    /// Terminated and truncated flags, rare or frequent; any byte but 0 is true.
    fn flags(&mut self, len: usize) -> [Buffer<u8>; 2] {
        let of: &[u8] = self.corners.pick(&[&[0, 0, 0, 0, 0, 0, 0, 1], &[0, 1, 2, 128], &[0], &[1]]);
        [(); 2].map(|()| {
            let flags: Vec<u8> = (0..len).map(|_| self.corners.pick(of)).collect();
            self.upload(&flags)
        })
    }

    fn slices(&mut self, n: usize, len: usize) -> MinibatchSlices {
        let (count, most) = (self.corners.pick(&[1, 2, 4, 8, 16]), self.corners.pick(&[0, usize::MAX]));
        MinibatchSlices::new(n, count, len, most)
    }

    /// Settings, counters and sums from anywhere.
    fn state(&mut self) -> LearnerState {
        let mut state = LearnerState::new(self.device).unwrap();
        let mut setting = |of: &[f32]| {
            let any = self.corners.float(of);
            let [one, other] = [self.corners.pick(of), self.corners.pick(of)];
            self.corners.pick(&[one, other, any])
        };
        let settings = [
            setting(&[0.1, 1e-3]),
            setting(&[0.5, 1.0, f32::INFINITY]),
            setting(&[0.01, 0.3]),
            setting(&[0.5, 1.0]),
            setting(&[0.0, 0.25]),
            setting(&[0.2, 0.5]),
            setting(&[0.25, f32::INFINITY]),
            setting(&[0.9, 0.5]),
            setting(&[0.999, 0.99]),
            setting(&[1e-5, 1e-8]),
        ];
        self.stream.upload(&state.settings.view_mut(), &settings).unwrap();
        let any = u64::from(self.corners.0.next_u32());
        let [seed, epochs] = self.corners.clock();
        let steps = [0, 1, 2, 3, 100, any, 0x7FFF_FFFD, 0x7FFF_FFFE, 0x7FFF_FFFF, 1 << 32, u64::MAX];
        let counters = [
            seed,
            epochs,
            self.corners.pick(&steps),
            self.corners.pick(&[0, 1, 2, 3, u64::MAX]),
            self.corners.pick(&steps),
            self.corners.pick(&[0, 0, 0, 1, 2, 1 << 32]),
            self.corners.pick(&[0, 0, 0, 1, 63, u64::MAX]),
        ];
        self.stream.upload(&state.counters.view_mut(), &counters).unwrap();
        let mut totals: Vec<f32> = (0..state.totals.len()).map(|_| self.corners.float(&[0.0, 1.0])).collect();
        let kind = self.corners.0.below(8);
        if kind > 0 {
            totals.iter_mut().for_each(|total| *total = total.clamp(-4.0, 4.0));
            totals[15] = if kind == 1 { 0.0 } else { 1.0 }; // whether the optimizer steps
        }
        self.stream.upload(&state.totals.view_mut(), &totals).unwrap();
        state
    }

    /// Adds the gradients and the parts of a loss.
    fn objective(
        &mut self,
        objective: Objective,
        columns: &LossColumns<'_>,
        outputs: &Buffer<f32>,
        values: &Buffer<f32>,
        distribution: ActionDistribution<'_>,
        state: &LearnerState,
    ) {
        let n = values.len();
        let [mut d_outputs, mut std_terms] = [(); 2].map(|()| self.zeros(outputs.len()));
        let (mut d_values, mut terms) = (self.zeros(n), self.zeros(PARTS * n));
        let heads = LossHeads {
            outputs: outputs.view(),
            values: values.view(),
            d_outputs: d_outputs.view_mut(),
            d_values: d_values.view_mut(),
            terms: terms.view_mut(),
            std_terms: std_terms.view_mut(),
            distribution,
        };
        self.kernels.objective(&self.stream, objective, columns, &heads, state).unwrap();
        [&d_outputs, &d_values, &terms, &std_terms].into_iter().for_each(|floats| self.digest.floats(&self.stream, floats));
    }

    fn add_state(&mut self, state: &LearnerState) {
        self.digest.add(&self.stream, &state.counters, |word| word);
        self.digest.floats(&self.stream, &state.totals);
    }
}

#[test]
fn dense_layers_agree_on_any_numbers() {
    agree("dense", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 21);
        for round in 0..rounds(24) {
            let mut size = |of: &[usize]| bench.corners.pick(of);
            let m = size(&[1, 2, 8, 63, 64, 65, 97, 130]);
            let (n_in, n_out) = (size(&[1, 2, 3, 4, 31, 33, 64, 65, 97, 130]), size(&[1, 2, 3, 4, 33, 64, 65, 97, 130]));
            let wild = round % 2 == 1;
            let params = bench.numbers((n_in + 1) * n_out, wild);
            let params = bench.upload(&params);
            let (x, dz) = (bench.floats(m * n_in, wild), bench.floats(m * n_out, wild));
            let activation = [Activation::None, Activation::Tanh, Activation::Relu][round % 3];
            let layer = DenseLayer { n_in, n_out, activation };
            let mut y = bench.floats(m * n_out, false);
            let of_layer = DenseParams { layer, params: params.view() };
            bench.kernels.forward(&bench.stream, of_layer, &x.view(), &y.view_mut()).unwrap();
            let mut dx = bench.floats(m * n_in, wild);
            for add in [true, false] {
                let x = x.view();
                let derive = (activation != Activation::None).then_some((activation, &x));
                bench.kernels.input_gradient(&bench.stream, of_layer, &dz.view(), derive, add, &dx.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &dx);
            }
            let slices = bench.slices(m, params.len());
            let mut partial = bench.floats(slices.rows() * params.len(), false);
            let mut gradient = bench.floats(params.len(), false);
            bench.kernels.gradient(&bench.stream, layer, &slices, &x.view(), &dz.view(), &partial.view_mut()).unwrap();
            bench.kernels.sum_gradients(&bench.stream, &slices, &partial.view(), &gradient.view_mut()).unwrap();
            [&y, &partial, &gradient].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        // Tiles of some of their 32 terms.
        let layers = [(8, 130), (10, 64), (15, 130), (18, 22), (26, 9), (45, 10), (130, 12), (131, 26), (64, 20), (13, 64)];
        for (round, (n_in, n_out)) in layers.into_iter().enumerate() {
            let (m, layer) = ([9, 70, 35, 12, 13, 14, 15][round % 7], DenseLayer { n_in, n_out, activation: Activation::None });
            let n_params = (n_in + 1) * n_out;
            let (mut params, mut x) = (bench.numbers(n_params, false), bench.numbers(m * n_in, false));
            // A sum of zeros.
            x[..n_in].fill(0.0);
            params[n_in * n_out] = 0.0;
            let (params, x, dz) = (bench.upload(&params), bench.upload(&x), bench.floats(m * n_out, false));
            let (mut y, mut dx) = (bench.zeros(m * n_out), bench.zeros(m * n_in));
            let of_layer = DenseParams { layer, params: params.view() };
            bench.kernels.forward(&bench.stream, of_layer, &x.view(), &y.view_mut()).unwrap();
            for add in [false, true] {
                bench.kernels.input_gradient(&bench.stream, of_layer, &dz.view(), None, add, &dx.view_mut()).unwrap();
            }
            let slices = MinibatchSlices::new(m, 1, n_params, 0);
            let mut partial = bench.zeros(slices.rows() * n_params);
            bench.kernels.gradient(&bench.stream, layer, &slices, &x.view(), &dz.view(), &partial.view_mut()).unwrap();
            [&y, &dx, &partial].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        // Several tiles in a slice, added in one row or in rows of their own; a column of zeros.
        let layer = DenseLayer { n_in: 2, n_out: 3, activation: Activation::None };
        for n in [3, 97, 200, 300, 400, 500, 800] {
            let (x, mut dz) = (bench.floats(2 * n, false), bench.numbers(3 * n, false));
            dz.iter_mut().step_by(3).for_each(|dz| *dz = 0.0);
            let dz = bench.upload(&dz);
            for (count, most) in [(1, 0), (1, usize::MAX), (2, 0), (2, usize::MAX)] {
                let slices = MinibatchSlices::new(n, count, 9, most);
                let mut partial = bench.floats(slices.rows() * 9, false);
                let mut gradient = bench.zeros(9);
                bench.kernels.gradient(&bench.stream, layer, &slices, &x.view(), &dz.view(), &partial.view_mut()).unwrap();
                bench.kernels.sum_gradients(&bench.stream, &slices, &partial.view(), &gradient.view_mut()).unwrap();
                [&partial, &gradient].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            }
        }
        bench.digest
    });
}

#[test]
fn convolutions_agree_on_any_numbers() {
    agree("convolutions", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 28);
        // Channels in and out, columns, samples, samples together: tiles of some of their 32 terms.
        let layers = [(64, 64, 1, 65, 1), (37, 1, 1, 100, 4), (97, 1, 1, 35, 35), (7, 2, 2, 145, 49), (2, 3, 97, 2, 1)];
        for (n_in, n_out, columns, m, together) in layers {
            let (kernel, stride, in_size, planes, activation) = (1, 1, [1, columns], false, Activation::None);
            let shape = ConvShape { n_in, n_out, kernel, stride, in_size, planes, activation, together };
            let layer = ConvLayer::new(device, shape).unwrap();
            let (mut x, mut params) = (bench.numbers(m * shape.in_len(), false), bench.numbers(shape.n_params(), false));
            // A sum of zeros.
            x[..n_in].fill(0.0);
            params[n_in * n_out] = 0.0;
            let (x, params) = (bench.upload(&x), bench.upload(&params));
            let (dz, mut y) = (bench.floats(m * shape.out_len(), false), bench.zeros(m * shape.out_len()));
            layer.forward(&bench.stream, &params.view(), &x.view(), &y.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &y);
            for (count, most) in [(1, 0), (2, usize::MAX)] {
                let slices = MinibatchSlices::new(m, count, shape.n_params(), most);
                let mut partial = bench.floats(slices.rows() * shape.n_params(), false);
                layer.gradient(&bench.stream, &slices, &x.view(), &dz.view(), &partial.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &partial);
            }
        }
        bench.digest
    });
}

#[test]
fn activations_agree_on_any_number() {
    agree("activations", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 22);
        for round in 0..rounds(2) {
            let mut x: Vec<f32> = (0..60).map(|_| bench.any()).collect();
            if round == 0 {
                let near = |end: f32| (0..5).map(move |i| f32::from_bits((end.to_bits() + i).saturating_sub(2)));
                x.extend([0.0, 0.55, 1.0, 10.0, 20.0].into_iter().flat_map(near).flat_map(|x| [x, -x]));
                x.extend(TANH.into_iter().flat_map(|x| [x, -x]));
            }
            // y = f(x) in each of the 8 rows and 4 columns of a thread.
            let rows: Vec<f32> = x.iter().flat_map(|&x| [x; 8]).collect();
            let numbers = bench.upload(&rows.iter().flat_map(|&x| [x; 4]).collect::<Vec<_>>());
            let rows = bench.upload(&rows);
            // A weight of 1e-40 makes products that round to -0.
            for (weight, activation) in
                [(1.0, Activation::None), (1.0, Activation::Tanh), (1.0, Activation::Relu), (1e-40, Activation::None)]
            {
                let params = bench.upload(&[weight, weight, weight, weight, -0.0, -0.0, -0.0, -0.0]);
                let (mut y, mut dx) = (bench.zeros(numbers.len()), bench.zeros(numbers.len()));
                let layer = DenseLayer { n_in: 1, n_out: 4, activation };
                let layer = DenseParams { layer, params: params.view() };
                bench.kernels.forward(&bench.stream, layer, &rows.view(), &y.view_mut()).unwrap();
                let of_x = numbers.view();
                let derive = (activation != Activation::None).then_some((activation, &of_x));
                let layer = DenseLayer { n_in: 4, n_out: 1, activation };
                let layer = DenseParams { layer, params: params.view().slice(0..5) };
                bench.kernels.input_gradient(&bench.stream, layer, &rows.view(), derive, false, &dx.view_mut()).unwrap();
                [&y, &dx].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
                let (n_in, n_out, kernel, stride, in_size, planes, together) = (1, 4, 1, 1, [1, 1], false, 1);
                let shape = ConvShape { n_in, n_out, kernel, stride, in_size, planes, activation, together };
                let layer = ConvLayer::new(device, shape).unwrap();
                layer.forward(&bench.stream, &params.view(), &rows.view(), &y.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &y);
            }
        }
        bench.digest
    });
}

#[test]
fn sums_and_samples_agree_on_any_numbers() {
    agree("sums", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 23);
        for round in 0..rounds(16) {
            let wild = round % 3 == 2;
            let n = bench.corners.pick(&[1, 2, 127, 128, 129, 255, 256, 257, 600]);
            let x = if round % 4 == 1 { bench.zeros(n) } else { bench.floats(n, wild) };
            let rows = bench.rows(n, n);
            let rows = rows.view();
            let rows = (round % 2 == 0).then_some(&rows);
            let mut scratch = bench.zeros(LearnerKernels::sum_scratch(n));
            let (mut sum, mut to) = (bench.zeros::<f64>(1), bench.zeros::<f64>(1));
            for terms in [Terms::Numbers, Terms::Squares] {
                bench.kernels.sum(&bench.stream, &x.view(), rows, terms, &scratch.view_mut(), &sum.view_mut()).unwrap();
                bench.digest.doubles(&bench.stream, &sum);
                let terms = Terms::SquaredDistances(sum.view());
                bench.kernels.sum(&bench.stream, &x.view(), rows, terms, &scratch.view_mut(), &to.view_mut()).unwrap();
                bench.digest.doubles(&bench.stream, &to);
            }
            let (d, n) = (bench.corners.pick(&[1, 2, 3, 7, 31]), bench.corners.pick(&[1, 5, 33, 65]));
            let len = bench.corners.pick(&[n, n + 1, 2 * n]);
            let floats = bench.floats(len * d, wild);
            let bytes: Vec<u8> = (0..len * d).map(|_| bench.corners.0.next_u32() as u8).collect();
            let bytes = bench.upload(&bytes);
            let mut x = bench.zeros(n * d);
            let rows = bench.rows(n, len);
            let rows = rows.view();
            for obs in [Obs::F32(floats.view()), Obs::U8(bytes.view())] {
                for rows in [None, Some(&rows)] {
                    let scale = bench.corners.pick(&[1.0, 1.0 / 255.0, 0.37]);
                    bench.kernels.samples(&bench.stream, &obs, scale, d, rows, &x.view_mut()).unwrap();
                    bench.digest.floats(&bench.stream, &x);
                }
            }
            let categories = [0, bench.corners.pick(&[1, 2, 7, 300]), 0, bench.corners.pick(&[1, 5])];
            let inputs = OneHotInputs::new(bench.stream.device(), &categories).unwrap();
            let obs: Vec<f32> = (0..4 * len).map(|_| bench.corners.pick(&[0.0, 1.0, 4.0, 5.0, 0.5, -1.0, f32::NAN])).collect();
            let obs = bench.upload(&obs);
            let mut x = bench.zeros(n * inputs.len());
            for rows in [None, Some(&rows)] {
                bench.kernels.one_hot(&bench.stream, &obs.view(), &inputs, rows, &x.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &x);
            }
        }
        bench.digest
    });
}

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
fn objectives_agree_on_any_numbers() {
    agree("objectives", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 25);
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (n, mut a) = (bench.corners.pick(&[1, 3, 33, 130]), bench.corners.pick(&[1, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
            if [24, 29].contains(&round) {
                a = 0; // categorical, and Gaussian
            }
            let len = bench.corners.pick(&[1, n, 2 * n + 1]);
            let state = bench.state();
            let rows = bench.rows(n, len);
            let actions: Vec<u32> = (0..len).map(|_| bench.corners.0.below(a as u32)).collect();
            // Masked are any actions, or a single one.
            let single: Vec<usize> = (0..len).map(|_| bench.corners.0.below(2 * a as u32) as usize).collect();
            let mask = |i: usize| match (i % a, single[i / a]) {
                (at, _) if at == actions[i / a] as usize => 1,
                (at, single) if single < a => u8::from(at != single),
                _ => bench.corners.pick(&[0, 0, 1, 2, 128]),
            };
            let masks: Vec<u8> = (0..len * a).map(mask).collect();
            let (actions, masks) = (bench.upload(&actions), bench.upload(&masks));
            // Actions that are the means, and densities or entropies of exactly 0.
            let exact = round % 8 == 4;
            let vectors = if exact { bench.zeros(len * a) } else { bench.floats(len * a, wild) };
            // With one action, the logarithm of the ratio is any number.
            let log_probs: Vec<f32> = (0..len)
                .map(|_| {
                    let near = bench.corners.0.uniform_in(-1.5, 0.0);
                    let exact = bench.corners.pick(&EXP);
                    let any = bench.any();
                    let [plus, minus] = [exact, -exact];
                    if round % 8 == 4 {
                        bench.corners.pick(&[plus, minus])
                    } else {
                        bench.corners.pick(&[near, near, 0.0, plus, minus, any])
                    }
                })
                .collect();
            let log_probs = bench.upload(&log_probs);
            let [advantages, values, returns] = [(); 3].map(|()| bench.floats(len, wild));
            let mut outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, wild)).collect();
            let mut log_std: Vec<f32> = (0..a).map(|_| bench.corners.pick(&[1.0, -1.0]) * bench.corners.pick(&EXP)).collect();
            if exact {
                outputs.fill(0.0);
                log_std.fill(bench.corners.pick(&[-0.918_938_5, -1.418_938_5]));
            }
            let (outputs, new_values) = (bench.upload(&outputs), bench.floats(n, wild));
            let log_std = bench.upload(&log_std);
            let [sum, squares] = [(); 2].map(|()| {
                let moment = bench.corners.pick(&[0.0, 0.5, 3.0, f64::from(n as u32), 1e-20]);
                bench.upload(&[moment])
            });
            let of_rounds = round / 4;
            let (continuous, masked, normalized) = (of_rounds % 2 == 1, of_rounds % 3 > 0, of_rounds % 5 > 1);
            // The same logits in several heads.
            let several: Vec<_> = [vec![a], vec![a / 2, a - a / 2], vec![a - a / 3, a / 3]]
                .into_iter()
                .filter(|_| !continuous)
                .map(|sizes| {
                    let sizes: Vec<usize> = sizes.into_iter().filter(|&size| size > 0).collect();
                    let n_actions = sizes.iter().product::<usize>() as u32;
                    let actions: Vec<u32> = (0..len as u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 8) % n_actions).collect();
                    (HeadSizes::new(device, &sizes).unwrap(), bench.upload(&actions))
                })
                .collect();
            let objectives = [Objective::ClippedSurrogate, Objective::PolicyGradient];
            let cases = objectives.into_iter().flat_map(|objective| {
                std::iter::once((objective, None)).chain(several.iter().map(move |of_heads| (objective, Some(of_heads))))
            });
            for (objective, of_heads) in cases {
                let columns = LossColumns {
                    rows: rows.view(),
                    actions: match of_heads {
                        Some((_, actions)) => Actions::Discrete(actions.view()),
                        None if continuous => Actions::Continuous(vectors.view()),
                        None => Actions::Discrete(actions.view()),
                    },
                    masks: (masked && of_heads.is_none()).then_some(masks.view()),
                    log_probs: log_probs.view(),
                    advantages: advantages.view(),
                    values: values.view(),
                    returns: returns.view(),
                    moments: normalized.then_some([sum.view(), squares.view()]),
                };
                let distribution = match of_heads {
                    Some((sizes, _)) => ActionDistribution::Heads(sizes),
                    None if continuous => ActionDistribution::Gaussian(log_std.view()),
                    None => ActionDistribution::Categorical,
                };
                bench.objective(objective, &columns, &outputs, &new_values, distribution, &state);
            }
        }
        bench.digest
    });
}

#[test]
fn objectives_of_several_heads_agree_on_any_numbers() {
    agree("heads", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 29);
        let mut state = LearnerState::new(bench.device).unwrap();
        bench.stream.upload(&state.settings.view_mut(), &[0.1, 0.5, 1.0, 0.5, 0.0, 0.2, 1.0, 0.9, 0.999, 1e-5]).unwrap();
        // Loops that are unrolled over heads and over choices, with and without a rest; heads of a single choice.
        for sizes in [&[2, 3, 2, 2, 3, 2, 2, 2, 2][..], &[2, 2, 2, 3], &[3, 8], &[4, 9, 2], &[2, 5, 4], &[7, 6], &[1, 1]] {
            let (a, n_actions) = (sizes.iter().sum(), sizes.iter().product::<usize>() as u32);
            let of_heads = HeadSizes::new(device, sizes).unwrap();
            for n in [1, 65] {
                let outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, false)).collect();
                let actions: Vec<u32> = (0..n).map(|_| bench.corners.0.below(n_actions)).collect();
                // Without an advantage, the gradient is that of the entropy.
                let advantages = if n == 1 { bench.zeros(1) } else { bench.floats(n, false) };
                let (outputs, actions, log_probs) = (bench.upload(&outputs), bench.upload(&actions), bench.floats(n, false));
                let (rows, values) = (bench.rows(n, n), bench.floats(n, false));
                for objective in [Objective::ClippedSurrogate, Objective::PolicyGradient] {
                    let columns = LossColumns {
                        rows: rows.view(),
                        actions: Actions::Discrete(actions.view()),
                        masks: None,
                        log_probs: log_probs.view(),
                        advantages: advantages.view(),
                        values: values.view(),
                        returns: values.view(),
                        moments: None,
                    };
                    let distribution = ActionDistribution::Heads(&of_heads);
                    bench.objective(objective, &columns, &outputs, &values, distribution, &state);
                }
            }
        }
        bench.digest
    });
}

#[test]
fn objectives_agree_where_coefficients_show() {
    agree("coefficients", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 28);
        let [state, with_entropy] = [0.0, 1.0].map(|ent_coef| {
            let mut state = LearnerState::new(bench.device).unwrap();
            let settings = [0.1, 0.5, ent_coef, 0.5, 0.0, 0.2, 1.0, 0.9, 0.999, 1e-5];
            bench.stream.upload(&state.settings.view_mut(), &settings).unwrap();
            state
        });
        let logits = [&LN[..], &LOG_PROBS, &EXP.map(|x| -x.abs())].concat();
        for a in [2, 3, 4, 5, 7] {
            // Every logit in every place, and one of 0 after it, whose action is taken: with a ratio and an advantage of 1 the
            // gradients are the probabilities, divided by a power of two.
            let n = (logits.len() * a).next_power_of_two();
            let (mut outputs, mut actions, mut log_probs) = (vec![-1000.0; n * a], Vec::new(), Vec::new());
            for (i, row) in outputs.chunks_mut(a).enumerate() {
                let (logit, taken) = (logits[i / a % logits.len()], (i + 1) % a);
                (row[i % a], row[taken]) = (logit, 0.0);
                actions.push(taken as u32);
                log_probs.push(-math::ln(math::exp(logit) + 1.0));
            }
            let (outputs, actions, log_probs) = (bench.upload(&outputs), bench.upload(&actions), bench.upload(&log_probs));
            let (rows, ones) = (bench.upload(&(0..n as u32).collect::<Vec<_>>()), bench.upload(&vec![1.0; n]));
            let one_head = HeadSizes::new(device, &[a]).unwrap();
            let objectives = [Objective::ClippedSurrogate, Objective::PolicyGradient];
            let zeros = bench.zeros(n);
            // Without an advantage, the gradient is that of the entropy.
            let runs = |objective| {
                [(objective, &state, &ones, false), (objective, &state, &ones, true), (objective, &with_entropy, &zeros, true)]
            };
            for (objective, state, advantages, in_heads) in objectives.into_iter().flat_map(runs) {
                let columns = LossColumns {
                    rows: rows.view(),
                    actions: Actions::Discrete(actions.view()),
                    masks: None,
                    log_probs: log_probs.view(),
                    advantages: advantages.view(),
                    values: ones.view(),
                    returns: ones.view(),
                    moments: None,
                };
                let distribution = if in_heads { ActionDistribution::Heads(&one_head) } else { ActionDistribution::Categorical };
                bench.objective(objective, &columns, &outputs, &ones, distribution, state);
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

#[test]
fn off_policy_corrections_agree_on_any_numbers() {
    agree("off-policy", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 35);
        let kernels = OffPolicyKernels::new(device).unwrap();
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (t, n_envs) = (bench.corners.pick(&[1, 2, 3, 5, 9]), bench.corners.pick(&[1, 3, 33, 130]));
            let (len, a) = (t * n_envs, bench.corners.pick(&[1, 2, 3, 4, 5, 7, 9]));
            let sizes = match a {
                2 => vec![1, 1],
                5 => vec![2, 3],
                7 => vec![1, 1, 1, 2, 2],
                9 => vec![4, 5],
                _ => vec![a],
            };
            let n_actions = sizes.iter().product::<usize>() as u32;
            let actions: Vec<u32> = (0..len)
                .map(|_| {
                    let action = bench.corners.0.below(a as u32);
                    bench.corners.pick(&[action, action, action, a as u32 - 1, a as u32, u32::MAX])
                })
                .collect();
            let of_heads: Vec<u32> = (0..len).map(|_| bench.corners.0.below(n_actions)).collect();
            let masks: Vec<u8> = (0..len * a).map(|_| bench.corners.pick(&[0, 1, 1, 2])).collect();
            let (actions, of_heads, masks) = (bench.upload(&actions), bench.upload(&of_heads), bench.upload(&masks));
            let outputs: Vec<f32> = (0..len).flat_map(|_| bench.outputs(a, wild)).collect();
            let log_std: Vec<f32> = (0..a).map(|_| bench.corners.pick(&[1.0, -1.0]) * bench.corners.pick(&EXP)).collect();
            let start: Vec<f32> = (0..len)
                .map(|_| {
                    let (near, any) = (bench.corners.0.uniform_in(-2.0, 0.0), bench.any());
                    let exact = -bench.corners.pick(&EXP).abs();
                    if wild { any } else { bench.corners.pick(&[near, exact]) }
                })
                .collect();
            let (outputs, log_std, start) = (bench.upload(&outputs), bench.upload(&log_std), bench.upload(&start));
            let (vectors, heads) = (bench.floats(len * a, wild), HeadSizes::new(device, &sizes).unwrap());
            let rows = bench.rows(len, len);
            let (mut log_probs, mut terms) = (bench.zeros(len), bench.zeros(len));
            let (one_head, many) = (Actions::Discrete(actions.view()), Actions::Discrete(of_heads.view()));
            for (distribution, actions, masks) in [
                (ActionDistribution::Categorical, one_head, None),
                (ActionDistribution::Heads(&heads), many, None),
                (ActionDistribution::Gaussian(log_std.view()), Actions::Continuous(vectors.view()), None),
                (ActionDistribution::Categorical, one_head, Some(masks.view())),
            ] {
                let all = JudgedSamples { outputs: outputs.view(), distribution, rows: None, actions, masks };
                kernels.log_probs(&bench.stream, &all, &log_probs.view_mut()).unwrap();
                let some = JudgedSamples { rows: Some(rows.view()), ..all };
                kernels.divergence(&bench.stream, &some, &start.view(), &terms.view_mut()).unwrap();
                [&log_probs, &terms].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            }

            let [mut rewards, next_values, mut values] = [(); 3].map(|()| bench.floats(len, wild));
            if round % 8 == 5 {
                (rewards, values) = (bench.zeros(len), bench.zeros(len)); // the smallest number is noticed
            }
            let [terminated, truncated] = bench.flags(len);
            let steps = Steps {
                n_envs,
                rewards: rewards.view(),
                terminated: terminated.view(),
                truncated: truncated.view(),
                next_values: next_values.view(),
                values: values.view(),
            };
            let [mut advantages, mut returns, mut weights, mut weighted] = [(); 4].map(|()| bench.zeros(len));
            let (gamma, lambda) = (bench.corners.pick(&[0.99, 1.0, 0.5]), bench.corners.pick(&[0.95, 1.0, 0.0]));
            let of_both = if round % 2 == 0 { [&log_probs.view(), &start.view()] } else { [&start.view(), &log_probs.view()] };
            let to = [&advantages.view_mut(), &returns.view_mut(), &weights.view_mut()];
            kernels.vtrace(&bench.stream, &steps, of_both, gamma, lambda, to).unwrap();
            // Each row once, and one past the end.
            let order: Vec<u32> = (1..=len as u32).rev().collect();
            let order = bench.upload(&order);
            let [sum, squares] = [(); 2].map(|()| {
                let moment = bench.corners.pick(&[0.0, 0.5, 3.0, f64::from(len as u32), 1e-20]);
                bench.upload(&[moment])
            });
            for moments in [None, Some([sum.view(), squares.view()])] {
                kernels
                    .weigh(&bench.stream, &order.view(), &advantages.view(), moments, &weights.view(), &weighted.view_mut())
                    .unwrap();
                bench.digest.floats(&bench.stream, &weighted);
            }
            [&advantages, &returns, &weights].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        // Loops that are unrolled over heads and over choices, with and without a rest.
        for sizes in [&[2, 3, 2, 2, 3, 2, 2, 2, 2][..], &[2, 2, 2, 3], &[3, 8], &[4, 9, 2], &[2, 5, 4], &[7, 6]] {
            let (a, n_actions) = (sizes.iter().sum(), sizes.iter().product::<usize>() as u32);
            let heads = HeadSizes::new(device, sizes).unwrap();
            for n in [1, 65, 130] {
                let outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, false)).collect();
                let actions: Vec<u32> = (0..n).map(|_| bench.corners.0.below(n_actions)).collect();
                let (outputs, actions, mut to) = (bench.upload(&outputs), bench.upload(&actions), bench.zeros(n));
                let (outputs, actions) = (outputs.view(), Actions::Discrete(actions.view()));
                let distribution = ActionDistribution::Heads(&heads);
                let samples = JudgedSamples { outputs, distribution, rows: None, actions, masks: None };
                kernels.log_probs(&bench.stream, &samples, &to.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &to);
            }
        }
        // One dimension at a time decides the log-probability, by the last bits of its deviation.
        for (a, at) in (1..=6).flat_map(|a| (0..a).map(move |at| (a, at))) {
            let all = EXP.into_iter().flat_map(|x| [x, -x]).filter(|x| x.abs() < 16.0);
            for (log_std, distance) in all.flat_map(|x| [1000.0, 777.0, 3100.0].map(|distance| (x, distance))) {
                let [mut vector, mut deviations] = [vec![0.0; a], vec![0.0; a]];
                (vector[at], deviations[at]) = (distance, log_std);
                let [vector, outputs] = [&vector, &vec![0.0; a]].map(|numbers| bench.upload(numbers));
                let (deviations, mut to) = (bench.upload(&deviations), bench.zeros(1));
                let distribution = ActionDistribution::Gaussian(deviations.view());
                let (outputs, actions) = (outputs.view(), Actions::Continuous(vector.view()));
                let samples = JudgedSamples { outputs, distribution, rows: None, actions, masks: None };
                kernels.log_probs(&bench.stream, &samples, &to.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &to);
            }
        }
        bench.digest
    });
}

#[test]
fn q_learning_agrees_on_any_numbers() {
    agree("Q-learning", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 27);
        let kernels = QLearningKernels::new(device).unwrap();
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (n, a) = (bench.corners.pick(&[1, 3, 33, 130]), bench.corners.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
            let [advantages, values] = [n * a, n].map(|len| bench.floats(len, wild));
            let mut q = bench.zeros(n * a);
            kernels.dueling(&bench.stream, [&advantages.view(), &values.view()], &q.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &q);

            // Equal values, values around 0, and rows without a legal action.
            let by: Vec<f32> = (0..n * a)
                .map(|_| {
                    let any = bench.any();
                    let few = [0.0, -0.0, -1.0, 1.0, 1.0, f32::NEG_INFINITY, 1.0 + f32::EPSILON];
                    if wild { any } else { bench.corners.pick(&few) }
                })
                .collect();
            let of_round = bench.corners.pick(&[&[1, 1, 0][..], &[0, 2, 129, 1], &[0, 0, 0, 2, 1], &[0]]);
            let masks: Vec<u8> = (0..n * a).map(|_| bench.corners.pick(of_round)).collect();
            let (by, masks) = (bench.upload(&by), bench.upload(&masks));
            let [rewards, discounts] = [(); 2].map(|()| bench.floats(n, wild));
            let mut targets = bench.zeros(n);
            for masks in [None, Some(masks.view())] {
                let next =
                    NextColumns { q: q.view(), by: by.view(), masks, rewards: rewards.view(), discounts: discounts.view() };
                kernels.targets(&bench.stream, &next, &targets.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &targets);
            }

            // Errors near 1.
            let q: Vec<f32> = (0..n * a)
                .map(|_| {
                    let one = bench.corners.pick(&[1.0, -1.0, 0.5, 3.0]);
                    let (near, any) = (bench.corners.near(one), bench.any());
                    if wild { any } else { near }
                })
                .collect();
            let actions: Vec<u32> = (0..n)
                .map(|_| {
                    let (action, a) = (bench.corners.0.below(a as u32), a as u32);
                    bench.corners.pick(&[action, action, action, a - 1, a, u32::MAX])
                })
                .collect();
            let wanted: Vec<f32> = (0..n).map(|_| bench.corners.pick(&[0.0, 0.0, 2.0, -1e-3])).collect();
            let weights: Vec<f32> = (0..n).map(|_| bench.corners.pick(&[1.0, 1.0, 0.3, 1e-30])).collect();
            let (q, actions, wanted, weights) =
                (bench.upload(&q), bench.upload(&actions), bench.upload(&wanted), bench.upload(&weights));
            let (mut d_q, mut errors, mut terms) = (bench.zeros(n * a), bench.zeros(n), bench.zeros(TD_TERMS * n));
            let columns = TdColumns { q: q.view(), actions: actions.view(), targets: wanted.view(), weights: weights.view() };
            kernels.loss(&bench.stream, &columns, [&d_q.view_mut(), &errors.view_mut(), &terms.view_mut()]).unwrap();
            [&d_q, &errors, &terms].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let gradient = bench.floats(n * a, wild);
            let (mut d_advantages, mut d_values) = (bench.zeros(n * a), bench.zeros(n));
            let to = [&d_advantages.view_mut(), &d_values.view_mut()];
            kernels.dueling_gradient(&bench.stream, &gradient.view(), to).unwrap();
            [&d_advantages, &d_values].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let (slices, mut state) = (bench.slices(n, 1), bench.state());
            let terms = bench.floats(TD_TERMS * n, wild);
            kernels.totals(&bench.stream, &slices, &terms.view(), &mut state).unwrap();
            bench.add_state(&state);

            let mut target = bench.floats(n * a, wild);
            let tau = bench.corners.pick(&[0.0, 1.0, 0.3, 1e-9]);
            kernels.follow(&bench.stream, &gradient.view(), &target.view_mut(), tau).unwrap();
            bench.digest.floats(&bench.stream, &target);
        }
        // No actions.
        let (none, values, mut q) = (bench.zeros(0), bench.floats(3, false), bench.zeros(0));
        let mut d_values = bench.floats(3, false);
        kernels.dueling(&bench.stream, [&none.view(), &values.view()], &q.view_mut()).unwrap();
        kernels.dueling_gradient(&bench.stream, &none.view(), [&q.view_mut(), &d_values.view_mut()]).unwrap();
        bench.digest.floats(&bench.stream, &d_values);
        bench.digest
    });
}
