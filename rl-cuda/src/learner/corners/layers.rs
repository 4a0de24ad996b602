//! Layers, sums and samples.

use rl_envs::Obs;

use super::*;

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

/// Arguments of ELU that show the last bit of a coefficient.
///
/// Found by trying 30 million numbers.
const ELU: [f32; 10] = [
    -1.101_852_8,
    -0.465_796_74,
    -2.363_349_4,
    -0.218_918_95,
    -5.188_335_4,
    -2.772_465_2,
    -5.543_477_5,
    -2.775_354_9,
    -0.313_692_3,
    -0.257_583_77,
];

/// Arguments of activations near their limits, and those of [`TANH`] and [`ELU`].
fn arguments() -> impl Iterator<Item = f32> {
    let near = |end: f32| (0..5).map(move |i| f32::from_bits((end.to_bits() + i).saturating_sub(2)));
    let limits = [0.0, 0.55, 1.0, 10.0, 20.0, 86.0].into_iter().flat_map(near);
    limits.chain(TANH).chain(ELU).flat_map(|x| [x, -x])
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
            let activation = [Activation::None, Activation::Tanh, Activation::Relu, Activation::Elu][round % 4];
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
            for (i, (count, most)) in [(1, 0), (1, usize::MAX), (2, 0), (2, usize::MAX), (2, 0)].into_iter().enumerate() {
                let mut slices = MinibatchSlices::new(n, count, 9, most);
                if i == 4 && n >= 10 {
                    // Blocks of 32 columns of the samples, if they are columns of five steps.
                    slices = MinibatchSlices::of_columns(n / 5, 5, 32, count, 9, most);
                }
                let n = slices.samples(0..count).len();
                let (x, dz) = (x.view().slice(0..2 * n), dz.view().slice(0..3 * n));
                let mut partial = bench.floats(slices.rows() * 9, false);
                let mut gradient = bench.zeros(9);
                bench.kernels.gradient(&bench.stream, layer, &slices, &x, &dz, &partial.view_mut()).unwrap();
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
                x.extend(arguments());
            }
            // y = f(x) in each of the 8 rows and 4 columns of a thread.
            x.resize(x.len().next_multiple_of(16), 0.0);
            let rows: Vec<f32> = x.iter().flat_map(|&x| [x; 8]).collect();
            let rows_of_wide: Vec<f32> = x.chunks(16).flat_map(|x| [x; 2]).flatten().flat_map(|&x| [x; 4]).collect();
            // A weight of 1e-40 makes products that round to -0.
            let each =
                [Activation::None, Activation::Tanh, Activation::Relu, Activation::Elu].map(|activation| (1.0, activation));
            for (weight, activation) in each.into_iter().chain([(1e-40, Activation::None)]) {
                [[1, 8], [1, 12], [12, 12]].into_iter().for_each(|sizes| bench.layer(&rows, sizes, weight, activation));
                if round == 0 {
                    // Each of the 16 groups of rows of a large block has one number, in all its 8 rows.
                    bench.layer(&rows_of_wide, [12, 512], weight, activation);
                }
                let params = bench.upload(&[weight, weight, weight, weight, -0.0, -0.0, -0.0, -0.0]);
                let rows = bench.upload(&rows);
                let mut y = bench.zeros(4 * rows.len());
                let (n_in, n_out, kernel, stride, in_size, planes, together) = (1, 4, 1, 1, [1, 1], false, 1);
                let shape = ConvShape { n_in, n_out, kernel, stride, in_size, planes, activation, together };
                let layer = ConvLayer::new(device, shape).unwrap();
                layer.forward(&bench.stream, &params.view(), &rows.view(), &y.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &y);
            }
            for gate in [Gate::Silu, Gate::Gelu] {
                let [mut y, mut alone, mut dx] = [(); 3].map(|()| bench.upload(&x));
                let mut slopes = bench.zeros(x.len());
                bench.kernels.gate(&bench.stream, gate, &y.view_mut(), Some(&slopes.view_mut())).unwrap();
                bench.kernels.gate(&bench.stream, gate, &alone.view_mut(), None).unwrap();
                bench.kernels.gate_gradient(&bench.stream, &dx.view_mut(), &slopes.view()).unwrap();
                [&y, &alone, &slopes, &dx].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            }
        }
        bench.digest
    });
}

#[test]
fn normalizations_agree_on_any_numbers() {
    agree("normalizations", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 24);
        for round in 0..rounds(24) {
            let wild = round % 3 == 2;
            let (m, n) = (bench.corners.pick(&[1, 3, 4, 5, 33]), bench.corners.pick(&[1, 2, 31, 32, 33, 64, 130]));
            let (gains, offsets) = (bench.floats(n, wild), bench.floats(n, wild));
            let params = NormParams { gains: gains.view(), offsets: offsets.view() };
            let activation = [Activation::None, Activation::Tanh, Activation::Relu, Activation::Elu][round % 4];
            let [mut z, mut alone, mut dy] = [(); 3].map(|()| bench.floats(m * n, wild));
            let (mut normed, mut inv_stds) = (bench.zeros(m * n), bench.zeros(m));
            let (kernels, stream) = (&bench.kernels, &bench.stream);
            kernels.normalize_sums(stream, params, activation, &alone.view_mut(), None).unwrap();
            let kept = [&normed.view_mut(), &inv_stds.view_mut()];
            kernels.normalize_sums(stream, params, activation, &z.view_mut(), Some(kept)).unwrap();
            [&z, &alone, &normed, &inv_stds].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            let (dx, x) = (dy.view_mut(), normed.view_mut());
            bench.kernels.normalized_gradient(&bench.stream, params, &dx, &x, &inv_stds.view()).unwrap();
            [&dy, &normed].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        // Gains of 0 leave the offsets to the activation.
        let offsets: Vec<f32> = arguments().chain((0..200).map(|_| bench.any())).collect();
        let n = offsets.len();
        let (gains, offsets, numbers) = (bench.zeros(n), bench.upload(&offsets), bench.numbers(n, false));
        for activation in [Activation::None, Activation::Tanh, Activation::Relu, Activation::Elu] {
            let params = NormParams { gains: gains.view(), offsets: offsets.view() };
            let [mut z, mut alone] = [(); 2].map(|()| bench.upload(&numbers));
            let (mut normed, mut inv_std) = (bench.zeros(n), bench.zeros(1));
            let kept = [&normed.view_mut(), &inv_std.view_mut()];
            bench.kernels.normalize_sums(&bench.stream, params, activation, &z.view_mut(), Some(kept)).unwrap();
            bench.kernels.normalize_sums(&bench.stream, params, activation, &alone.view_mut(), None).unwrap();
            [&z, &alone].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
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
