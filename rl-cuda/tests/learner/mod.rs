//! Every kernel of the learner, on inputs that reach each of its branches.

pub(crate) mod memory;

use std::hash::Hash;

use rl_cuda::learner::{
    ActionDistribution, Activation, ClippedNoise, ContinuousKernels, ConvLayer, ConvShape, DenseLayer, DenseParams, Entropy,
    EpochOrder, Gate, HeadSizes, JudgedSamples, LearnerCounters, LearnerKernels, LearnerState, LossColumns, LossHeads,
    MatrixColumns, MinibatchSlices, NarrowLayer, NarrowNet, NarrowNumbers, NarrowSamples, NextColumns, Noise, NormParams,
    Objective, OffPolicyKernels, PARTS, QLearningKernels, SquashedColumns, TD_TERMS, TdColumns, TemperatureStep, Terms,
    UpdateSettings, ValueGradients, Values,
};
use rl_cuda::targets::Steps;
use rl_cuda::{Buffer, Device};
use rl_envs::{Actions, Obs, Purpose, Rng};

use crate::{Bits, Source, upload};

fn source(index: u32) -> Source {
    Source(Rng::new(11, index, 0, Purpose::Init))
}

/// Runs layers of (samples, inputs, outputs) forward and back.
///
/// Each has twice as many slices as the one before, up to 16.
fn layers(device: &Device, bits: &mut Bits<'_>, sizes: &[(usize, usize, usize)], activations: &[Activation], slices: usize) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(0));
    for (i, &(m, n_in, n_out)) in (slices.ilog2()..).zip(sizes) {
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (params, x, dz) = (floats((n_in + 1) * n_out), floats(m * n_in), floats(m * n_out));
        let mut y = Buffer::zeros(device, m * n_out).unwrap();
        let mut dx = floats(m * n_in);
        for &activation in activations {
            let layer = DenseLayer { n_in, n_out, activation };
            let layer = DenseParams { layer, params: params.view() };
            kernels.forward(&stream, layer, &x.view(), &y.view_mut()).unwrap();
            for add in [true, false] {
                let derive = (activation != Activation::None).then_some(activation);
                let x = x.view();
                let derive = derive.map(|derive| (derive, &x));
                kernels.input_gradient(&stream, layer, &dz.view(), derive, add, &dx.view_mut()).unwrap();
                stream.synchronize().unwrap();
                bits.floats(&dx.view());
            }
            bits.floats(&y.view());
        }
        let layer = DenseLayer { n_in, n_out, activation: Activation::None };
        let in_columns = |max_numbers| MinibatchSlices::of_columns(m / 5, 5, 7, 1 << (i % 2), params.len(), max_numbers);
        for (max_numbers, has_columns) in [(0, false), (usize::MAX, false), (0, true), (usize::MAX, true)] {
            let slices = MinibatchSlices::new(m, 1 << (i % 5), params.len(), max_numbers);
            let slices = match has_columns {
                true if i % 2 == 0 || m < 10 => continue,
                true => in_columns(max_numbers),
                false => slices,
            };
            let n = slices.samples(0..slices.count()).len();
            let mut partial = Buffer::zeros(device, slices.rows() * params.len()).unwrap();
            let mut gradient = Buffer::zeros(device, params.len()).unwrap();
            let (x, dz) = (x.view().slice(0..n * n_in), dz.view().slice(0..n * n_out));
            kernels.gradient(&stream, layer, &slices, &x, &dz, &partial.view_mut()).unwrap();
            kernels.sum_gradients(&stream, &slices, &partial.view(), &gradient.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&gradient.view());
        }
    }
}

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Tanh, Activation::Relu, Activation::Elu];

pub(crate) fn dense(device: &Device, bits: &mut Bits<'_>) {
    // The last two are loaded four numbers at a time.
    let sizes = [(1, 1, 1), (97, 33, 65), (65, 130, 31), (33, 31, 130), (200, 96, 97), (900, 132, 68), (70, 8, 128)];
    layers(device, bits, &sizes, &ACTIVATIONS, 1);
}

pub(crate) fn few(device: &Device, bits: &mut Bits<'_>) {
    // Parts of a sum of their own, and one; loads of four numbers, and of one; one block of columns, and several.
    let sizes = [(33, 132, 1), (70, 100, 8), (45, 31, 3), (1700, 4, 41), (97, 8, 64), (300, 3, 33), (64, 1, 9), (40, 8, 8)];
    layers(device, bits, &sizes, &ACTIVATIONS, 1);
}

pub(crate) fn wide(device: &Device, bits: &mut Bits<'_>) {
    // Blocks enough for the large kernels: of several tiles for each slice; of rounds of 32 terms and a rest; of a rest alone.
    let sizes = [(3400, 132, 68), (4100, 100, 132), (8300, 12, 60)];
    layers(device, bits, &sizes, &[Activation::Tanh], 16);
}

pub(crate) fn columns(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(17));
    for (n, width, first, len) in [(1, 1, 0, 1), (33, 20, 3, 16), (129, 7, 6, 1)] {
        let [from, y] = [n * width, n * len].map(|numbers| upload(device, &source.floats(numbers)));
        let from = || MatrixColumns { matrix: from.view(), width, first };
        let (mut to, mut dz) = (Buffer::zeros(device, n * (len + 2)).unwrap(), Buffer::zeros(device, n * len).unwrap());
        let columns = MatrixColumns { matrix: to.view_mut(), width: len + 2, first: 1 };
        kernels.copy_columns(&stream, &from(), &columns, len).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&to.view());
        for activation in ACTIVATIONS {
            kernels.derive_columns(&stream, &from(), activation, &y.view(), &dz.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&dz.view());
        }
    }
}

pub(crate) fn layer_norm(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(18));
    for (i, (m, n)) in [(1, 1), (7, 31), (4, 32), (97, 33), (300, 100)].into_iter().enumerate() {
        let [mut z, mut alone, mut dy] = [(); 3].map(|()| upload(device, &source.floats(m * n)));
        let [gains, offsets, mut inv_stds] = [n, n, m].map(|len| upload(device, &source.floats(len)));
        let params = NormParams { gains: gains.view(), offsets: offsets.view() };
        let mut normed = Buffer::zeros(device, m * n).unwrap();
        let activation = ACTIVATIONS[i % ACTIVATIONS.len()];
        let kept = (normed.view_mut(), inv_stds.view_mut());
        kernels.normalize_sums(&stream, params, activation, &z.view_mut(), Some([&kept.0, &kept.1])).unwrap();
        kernels.normalize_sums(&stream, params, activation, &alone.view_mut(), None).unwrap();
        stream.synchronize().unwrap();
        [&z, &alone, &normed, &inv_stds].into_iter().for_each(|numbers| bits.floats(&numbers.view()));
        kernels.normalized_gradient(&stream, params, &dy.view_mut(), &normed.view_mut(), &inv_stds.view()).unwrap();
        let slices = MinibatchSlices::new(m, 1, n, n);
        let mut partial = Buffer::zeros(device, slices.rows() * n).unwrap();
        kernels.term_gradient(&stream, &slices, &normed.view(), &partial.view_mut()).unwrap();
        stream.synchronize().unwrap();
        [&dy, &normed, &partial].into_iter().for_each(|numbers| bits.floats(&numbers.view()));
    }
}

pub(crate) fn gated(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(16));
    for gate in [Gate::Silu, Gate::Gelu] {
        for n in [1, 129, 3000] {
            let numbers: Vec<f32> = source.floats(n).iter().map(|x| 6.0 * x).collect();
            let [mut x, mut alone, mut dx] = [(); 3].map(|()| upload(device, &numbers));
            let mut slopes = Buffer::zeros(device, n).unwrap();
            kernels.gate(&stream, gate, &x.view_mut(), Some(&slopes.view_mut())).unwrap();
            kernels.gate(&stream, gate, &alone.view_mut(), None).unwrap();
            kernels.gate_gradient(&stream, &dx.view_mut(), &slopes.view()).unwrap();
            stream.synchronize().unwrap();
            [&x, &alone, &slopes, &dx].into_iter().for_each(|numbers| bits.floats(&numbers.view()));
        }
    }
}

pub(crate) fn narrow(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(9));
    let (tanh, relu, none) = (Activation::Tanh, Activation::Relu, Activation::None);
    // Widths of each chain, samples, slices: every way in which the threads of a block share a layer.
    let nets: [(&[&[usize]], usize, usize); 5] = [
        (&[&[4, 64, 64, 2], &[4, 64, 64, 1]], 200, 2),
        (&[&[1, 1]], 1, 1),
        (&[&[9, 33, 3, 6, 5], &[9, 4]], 97, 1),
        (&[&[8, 61, 7]], 33, 4),
        (&[&[63, 62, 10], &[63, 5, 2], &[63, 3]], 291, 2),
    ];
    for (i, (widths, m, n_slices)) in nets.into_iter().enumerate() {
        let (mut n_params, mut n_outputs, mut n_deltas) = (0, 0, 0);
        let mut chain = |widths: &&[usize]| -> Vec<NarrowLayer> {
            let layers = widths.windows(2).enumerate().map(|(l, sizes)| {
                let is_last = l + 2 == widths.len();
                let activation = if is_last { none } else { [tanh, relu, Activation::Elu][i % 3] };
                let layer = DenseLayer { n_in: sizes[0], n_out: sizes[1], activation };
                let layer = NarrowLayer { layer, params: n_params, outputs: n_outputs, deltas: n_deltas };
                n_params += (sizes[0] + 1) * sizes[1];
                n_outputs += ((m + 3) * sizes[1]).next_multiple_of(4);
                n_deltas += if is_last { (m + 3) * sizes[1] } else { 0 };
                layer
            });
            layers.collect()
        };
        let chains: Vec<_> = widths.iter().map(&mut chain).collect();
        let net = NarrowNet::new(device, chains).unwrap().unwrap();
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (params, inputs, deltas) = (floats(n_params), floats((m + 2) * widths[0][0]), floats(n_deltas));
        let mut outputs = Buffer::zeros(device, n_outputs).unwrap();
        for (chains, keeps) in [(0..1, false), (0..1, true), (0..widths.len(), true), (widths.len() - 1..widths.len(), true)] {
            let (inputs, y) = (inputs.view().slice(0..m * widths[0][0]), outputs.view_mut());
            let samples = NarrowSamples { params: params.view(), inputs, outputs: y, keeps, first: 3, needed: None };
            kernels.narrow_forward(&stream, &net, chains, samples).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&outputs.view());
        }
        for max_numbers in [0, usize::MAX] {
            let slices = MinibatchSlices::new(m, n_slices, n_params, max_numbers);
            let mut partial = Buffer::zeros(device, slices.rows() * n_params).unwrap();
            let [params, inputs, outputs, deltas] = [params.view(), inputs.view(), outputs.view(), deltas.view()];
            let numbers = NarrowNumbers { params, inputs, outputs, deltas, held: 0, first: 2 };
            kernels.narrow_gradient(&stream, &net, &slices, numbers, &partial.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&partial.view());
        }
    }
    // As many samples as blocks of twice as many take, with an incomplete last one.
    let m = (1 << 14) + 37;
    let sizes = [(5, 7, relu), (7, 3, none), (5, 9, relu), (9, 10, none)];
    let (mut n_params, mut n_outputs) = (0, 0);
    let layers = sizes.map(|(n_in, n_out, activation)| {
        let layer = DenseLayer { n_in, n_out, activation };
        let layer = NarrowLayer { layer, params: n_params, outputs: n_outputs, deltas: 0 };
        (n_params, n_outputs) = (n_params + (n_in + 1) * n_out, n_outputs + (m * n_out).next_multiple_of(4));
        layer
    });
    let net = NarrowNet::new(device, layers.chunks(2).map(<[_]>::to_vec).collect()).unwrap().unwrap();
    let (inputs, params) = (upload(device, &source.floats(5 * m)), upload(device, &source.floats(n_params)));
    let mut outputs = Buffer::zeros(device, n_outputs).unwrap();
    let (inputs, y) = (inputs.view(), outputs.view_mut());
    let samples = NarrowSamples { params: params.view(), inputs, outputs: y, keeps: true, first: 0, needed: None };
    kernels.narrow_forward(&stream, &net, 0..2, samples).unwrap();
    stream.synchronize().unwrap();
    bits.floats(&outputs.view());
    // Divisions of tanh; the first two are wrong if the divisor's reciprocal is not the nearest.
    let numbers: Vec<f32> =
        [0x3380_0001, 0x3455_5556].into_iter().chain((0..4094).map(|i| 0x2D00_0000 + 80_021 * i)).map(f32::from_bits).collect();
    let layer = DenseLayer { n_in: 1, n_out: 1, activation: tanh };
    let net = NarrowNet::new(device, vec![vec![NarrowLayer { layer, params: 0, outputs: 0, deltas: 0 }]]).unwrap().unwrap();
    let (inputs, params, mut outputs) =
        (upload(device, &numbers), upload(device, &[1.0, 0.0]), Buffer::zeros(device, 4096).unwrap());
    // A block whose samples, 64 to 95, are not needed leaves its outputs.
    let flags = [40, 100].map(|at| (0..4096).map(|i| u8::from(i == at || i >= 128)).collect::<Vec<u8>>());
    let flags = flags.map(|flags| upload(device, &flags));
    for needed in [Some([flags[0].view(), flags[1].view()]), None] {
        let y = outputs.view_mut();
        let samples = NarrowSamples { params: params.view(), inputs: inputs.view(), outputs: y, keeps: true, first: 0, needed };
        kernels.narrow_forward(&stream, &net, 0..1, samples).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&outputs.view());
    }
}

pub(crate) fn conv(device: &Device, bits: &mut Bits<'_>) {
    let (stream, mut source) = (device.stream().unwrap(), source(6));
    let kernels = LearnerKernels::new(device).unwrap();
    let activations = [Activation::None, Activation::Tanh, Activation::Relu];
    // Channels in and out, kernel, stride, rows, columns, samples; the longest sums over terms and over outputs have parts.
    let shapes = [
        [1, 1, 1, 1, 1, 1, 3],
        [6, 66, 3, 1, 3, 5, 3],
        [11, 7, 3, 2, 8, 7, 5],
        [1, 97, 2, 1, 4, 35, 2],
        [1, 3, 2, 1, 3, 3, 2],
        [2, 4, 2, 3, 6, 5, 193],
    ];
    for (i, [n_in, n_out, kernel, stride, rows, columns, m]) in shapes.into_iter().enumerate() {
        for (planes, together) in [(true, 1), (false, 2), (false, 40)] {
            let activation = activations[(i + together) % 3];
            let shape = ConvShape { n_in, n_out, kernel, stride, in_size: [rows, columns], planes, activation, together };
            let layer = ConvLayer::new(device, shape).unwrap();
            let (mut x, mut dz) = (source.floats(m * shape.in_len()), source.floats(m * shape.out_len()));
            x.iter_mut().step_by(5).for_each(|x| *x = f32::from_bits(1));
            dz[..shape.out_len()].fill(0.0);
            let mut floats = |n: usize| upload(device, &source.floats(n));
            let params = floats(shape.n_params());
            let (mut y, mut dx) = (floats(m * shape.out_len()), floats(m * shape.in_len()));
            let (x, dz) = (upload(device, &x), upload(device, &dz));
            layer.forward(&stream, &params.view(), &x.view(), &y.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&y.view());
            for (count, max_numbers) in [(1, 0), (2, usize::MAX)] {
                let slices = MinibatchSlices::new(m, count, params.len(), max_numbers);
                let mut partial = Buffer::zeros(device, slices.rows() * params.len()).unwrap();
                let mut gradient = Buffer::zeros(device, params.len()).unwrap();
                let (x, dz) = (x.view(), dz.view());
                layer.gradient(&stream, &slices, &x, &dz, &partial.view_mut()).unwrap();
                kernels.sum_gradients(&stream, &slices, &partial.view(), &gradient.view_mut()).unwrap();
                stream.synchronize().unwrap();
                bits.floats(&gradient.view());
                if !planes {
                    layer.input_gradient(&stream, &params.view(), &dz, activation, &x, &dx.view_mut()).unwrap();
                    stream.synchronize().unwrap();
                    bits.floats(&dx.view());
                }
            }
        }
    }
}

pub(crate) fn samples(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(1));
    let (n_rows, d, n) = (50, 7, 33);
    let floats = upload(device, &source.floats(n_rows * d));
    let bytes = upload(device, &source.words(n_rows * d, 256).into_iter().map(|word| word as u8).collect::<Vec<_>>());
    let rows = upload(device, &source.words(n, 60)); // some past the end
    let mut x = Buffer::zeros(device, n * d).unwrap();
    for obs in [Obs::F32(floats.view()), Obs::U8(bytes.view())] {
        for rows in [None, Some(&rows.view())] {
            kernels.samples(&stream, &obs, 1.0 / 255.0, d, rows, &x.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&x.view());
        }
    }
}

pub(crate) fn sums(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(2));
    for n in [1, 255, 256, 257, 70_000] {
        let x = upload(device, &source.floats(n));
        let rows = upload(device, &source.words(n, n as u32 + 3));
        let mut scratch = Buffer::zeros(device, LearnerKernels::sum_scratch(n)).unwrap();
        let (mut sum, mut to) = (Buffer::<f64>::zeros(device, 1).unwrap(), Buffer::<f64>::zeros(device, 1).unwrap());
        for rows in [None, Some(&rows.view())] {
            let x = &x.view();
            kernels.sum(&stream, x, rows, Terms::Numbers, &scratch.view_mut(), &sum.view_mut()).unwrap();
            for terms in [Terms::Squares, Terms::SquaredDistances(sum.view())] {
                kernels.sum(&stream, x, rows, terms, &scratch.view_mut(), &to.view_mut()).unwrap();
                stream.synchronize().unwrap();
                bits.add(&to.view(), f64::to_bits);
            }
            bits.add(&sum.view(), f64::to_bits);
        }
    }
}

pub(crate) fn permutation(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap());
    let mut state = LearnerState::new(device).unwrap();
    let counters = LearnerCounters { seed: u64::MAX - 3, epochs: u64::from(u32::MAX) - 1, ..LearnerCounters::default() };
    state.set_counters(&stream, &counters).unwrap();
    for n in [1, 2, 64, 65, 66, 1000] {
        let mut order = Buffer::zeros(device, n).unwrap();
        for shuffled in [true, false, true] {
            kernels.epoch(&stream, &mut state).unwrap();
            kernels.rows(&stream, &state, EpochOrder { n_samples: n, shuffled }, &order.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.words(&order.view());
        }
    }
}

pub(crate) fn targets(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(3));
    for (t, n) in [(2, 1), (9, 5), (33, 31), (129, 130)] {
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (values, last_values, advantages) = (floats(t * n), floats(n), floats(t * n));
        let final_values = floats(3);
        let at = upload(device, &[0, (t * n) as u32 - 1, (t * n) as u32]); // one past the end
        let (mut next_values, mut returns) = (Buffer::zeros(device, t * n).unwrap(), Buffer::zeros(device, t * n).unwrap());
        let mut state = LearnerState::new(device).unwrap();
        let (values, last_values) = (values.view(), last_values.view());
        let to = next_values.view_mut();
        kernels.next_values(&stream, &values, &last_values, &final_values.view(), &at.view(), &to).unwrap();
        kernels.returns(&stream, &advantages.view(), &values, &returns.view_mut()).unwrap();
        let mut scratch = Buffer::zeros(device, LearnerKernels::variance_scratch(t * n)).unwrap();
        kernels.explained_variance(&stream, [&returns.view(), &values], &scratch.view_mut(), &mut state).unwrap();
        let totals = state.totals(&stream).unwrap();
        bits.floats(&next_values.view());
        let rare = |source: &mut Source| {
            upload(device, &source.words(t * n, 3).into_iter().map(|x| u8::from(x == 0)).collect::<Vec<_>>())
        };
        let (terminated, truncated) = (rare(&mut source), rare(&mut source));
        let flags = [&terminated.view(), &truncated.view()];
        kernels.ended_values(&stream, &values, flags, &next_values.view_mut()).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&next_values.view());
        kernels.continued_values(&stream, &values, &last_values, flags, &next_values.view_mut()).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&next_values.view());
        bits.floats(&returns.view());
        // A single return has no variance, and the payload of a NaN is not part of the bits.
        let explained = totals.explained_variance;
        (if explained.is_nan() { u32::MAX } else { explained.to_bits() }).hash(&mut bits.hash);
    }
}

/// Updates of action values of which only the outputs exist.
pub(crate) fn q_learning(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), QLearningKernels::new(device).unwrap(), source(5));
    let mut state = LearnerState::new(device).unwrap();
    for (n, a, count) in [(1, 1, 1), (33, 6, 1), (130, 3, 4)] {
        let flags: Vec<u8> = (0..n * a).map(|i| u8::from(i % 7 > 2)).collect();
        let (masks, actions) = (upload(device, &flags), upload(device, &source.words(n, a as u32)));
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (advantages, values, by, rewards, discounts, weights) =
            (floats(n * a), floats(n), floats(n * a), floats(n), floats(n), floats(n));
        let (mut q, mut d_q, mut d_advantages, mut target) = (floats(n * a), floats(n * a), floats(n * a), floats(n * a));
        let [mut targets, mut errors, mut d_values] = [(); 3].map(|()| Buffer::zeros(device, n).unwrap());
        let mut terms = Buffer::zeros(device, TD_TERMS * n).unwrap();
        kernels.dueling(&stream, [&advantages.view(), &values.view()], &q.view_mut()).unwrap();
        for masks in [None, Some(masks.view())] {
            let next = NextColumns { q: q.view(), by: by.view(), masks, rewards: rewards.view(), discounts: discounts.view() };
            kernels.targets(&stream, &next, &targets.view_mut()).unwrap();
            let columns = TdColumns { q: q.view(), actions: actions.view(), targets: targets.view(), weights: weights.view() };
            let to = [&d_q.view_mut(), &errors.view_mut(), &terms.view_mut()];
            kernels.loss(&stream, &columns, to).unwrap();
            let slices = MinibatchSlices::new(n, count, 1, 1);
            kernels.totals(&stream, &slices, &terms.view(), &mut state, None).unwrap();
            kernels.dueling_gradient(&stream, &d_q.view(), [&d_advantages.view_mut(), &d_values.view_mut()]).unwrap();
            kernels.follow(&stream, &advantages.view(), &target.view_mut(), 0.3, &state, None).unwrap();
            stream.synchronize().unwrap();
            let written = [&targets, &d_q, &errors, &terms, &d_advantages, &d_values, &target];
            written.into_iter().for_each(|column| bits.floats(&column.view()));
            let totals = state.totals(&stream).unwrap();
            format!("{totals:?}").hash(&mut bits.hash);
        }
    }
}

/// Updates of an actor and critics of which only the outputs exist.
pub(crate) fn continuous(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), ContinuousKernels::new(device).unwrap(), source(7));
    let (others, mut state) = ([(); 2].map(|()| LearnerState::new(device).unwrap()), LearnerState::new(device).unwrap());
    for (n, d, a) in [(1, 1, 1), (33, 3, 6), (130, 8, 2)] {
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (obs, outputs, log_stds, bounds, alpha) = (floats(n * d), floats(n * a), floats(n * a), floats(2 * a), floats(1));
        let (one, other, rewards, discounts) = (floats(n), floats(n), floats(n), floats(n));
        let zeros = |len: usize| Buffer::<f32>::zeros(device, len).unwrap();
        let (mut rows, mut terms, mut square) = (zeros(n * (d + a)), zeros(2 * n), Buffer::<f64>::zeros(device, 1).unwrap());
        let [mut noise, mut actions, mut d_outputs, mut d_log_stds] = [(); 4].map(|()| zeros(n * a));
        let [mut log_probs, mut targets, mut errors, mut d_one, mut d_other] = [(); 5].map(|()| zeros(n));
        let [mut temperature, mut gradient] = [zeros(1), zeros(1)];
        let update = upload(device, &[n as u64]);
        let from = Noise { seed: 3, update: update.view(), first: 1 };
        let columns = SquashedColumns { means: outputs.view(), log_stds: log_stds.view() };
        let to = [&noise.view_mut(), &actions.view_mut(), &log_probs.view_mut()];
        kernels.squash(&stream, &columns, from, to).unwrap();
        let bounds = bounds.view();
        kernels.rows(&stream, [&obs.view(), &actions.view()], Some(&bounds), n, &rows.view_mut()).unwrap();
        let q = Values { one: one.view(), other: Some(other.view()) };
        let entropy = Entropy { log_probs: log_probs.view(), temperature: alpha.view(), log_alpha: Some(alpha.view()) };
        let of_step = [&rewards.view(), &discounts.view()];
        kernels.targets(&stream, &q, Some(entropy), of_step, &targets.view_mut()).unwrap();
        let gradients = ValueGradients { one: d_one.view_mut(), other: Some(d_other.view_mut()) };
        let (of, to) = ([&targets.view(), &discounts.view()], [&errors.view_mut(), &terms.view_mut()]);
        kernels.loss(&stream, &q, of, 0.5, &gradients, to).unwrap();
        stream.synchronize().unwrap();
        [&d_one, &d_other, &terms].into_iter().for_each(|column| bits.floats(&column.view()));
        let gradients = ValueGradients { one: d_one.view_mut(), other: Some(d_other.view_mut()) };
        kernels.value(&stream, &q, Some(entropy), false, &gradients, &terms.view_mut()).unwrap();
        let (of, to) = ([&noise.view(), &rows.view(), &alpha.view()], [&d_outputs.view_mut(), &d_log_stds.view_mut()]);
        kernels.squash_gradient(&stream, &columns, of, n, to).unwrap();
        let (of_alpha, of_log) = (temperature.view_mut(), gradient.view_mut());
        let to = TemperatureStep { temperature: of_alpha, gradient: of_log, square: square.view_mut() };
        let of = [&log_probs.view(), &alpha.view()];
        kernels.temperature(&stream, of, -1.0, &to, [&others[0], &others[1]], &mut state).unwrap();
        stream.synchronize().unwrap();
        let written = [&noise, &actions, &log_probs, &rows, &targets, &errors, &d_one, &d_other, &terms, &d_outputs, &d_log_stds];
        written.into_iter().chain([&temperature, &gradient]).for_each(|column| bits.floats(&column.view()));
        let added = Some(ClippedNoise { noise: from, std: 0.3, clip: 0.5 });
        kernels.choose(&stream, &outputs.view(), added, n, &actions.view_mut()).unwrap();
        kernels.choose_gradient(&stream, [&outputs.view(), &rows.view()], n, &d_outputs.view_mut()).unwrap();
        stream.synchronize().unwrap();
        [&actions, &d_outputs].into_iter().for_each(|column| bits.floats(&column.view()));
        let totals = state.totals(&stream).unwrap();
        format!("{totals:?}").hash(&mut bits.hash);
    }
}

/// Corrections of rollouts of which only the policy's outputs exist.
pub(crate) fn off_policy(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), OffPolicyKernels::new(device).unwrap(), source(6));
    for (t, n_envs, a) in [(1, 1, 1), (9, 7, 3), (5, 33, 4)] {
        let len = t * n_envs;
        let flags: Vec<u8> = (0..len * a).map(|i| u8::from(i % 5 > 0)).collect();
        let (masks, actions) = (upload(device, &flags), upload(device, &source.words(len, a as u32)));
        let rows = upload(device, &source.words(len, len as u32 + 2));
        let [terminated, truncated] = [(); 2].map(|()| upload(device, &source.flags(len)));
        let heads = HeadSizes::new(device, &if a == 4 { vec![2, 2] } else { vec![a] }).unwrap();
        // Each row once, and one past the end.
        let order = upload(device, &(1..=len as u32).rev().collect::<Vec<_>>());
        let mut floats = |n: usize| upload(device, &source.floats(n));
        let (outputs, vectors, log_std) = (floats(len * a), floats(len * a), floats(a));
        let (start, rewards, next_values, values) = (floats(len), floats(len), floats(len), floats(len));
        let [mut log_probs, mut terms, mut advantages, mut returns, mut weights, mut weighted] =
            [(); 6].map(|()| Buffer::zeros(device, len).unwrap());
        let discrete = Actions::Discrete(actions.view());
        for (distribution, actions, masks) in [
            (ActionDistribution::Categorical, discrete, None),
            (ActionDistribution::Categorical, discrete, Some(masks.view())),
            (ActionDistribution::Heads(&heads), discrete, None),
            (ActionDistribution::Gaussian(log_std.view()), Actions::Continuous(vectors.view()), None),
        ] {
            let all = JudgedSamples { outputs: outputs.view(), distribution, rows: None, actions, masks };
            kernels.log_probs(&stream, &all, &log_probs.view_mut()).unwrap();
            let some = JudgedSamples { rows: Some(rows.view()), ..all };
            kernels.divergence(&stream, &some, &start.view(), &terms.view_mut()).unwrap();
            stream.synchronize().unwrap();
            [&log_probs, &terms].into_iter().for_each(|column| bits.floats(&column.view()));
        }
        let steps = Steps {
            n_envs,
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
            values: values.view(),
        };
        let to = [&advantages.view_mut(), &returns.view_mut(), &weights.view_mut()];
        kernels.vtrace(&stream, &steps, [&log_probs.view(), &start.view()], 0.99, 0.9, to).unwrap();
        let (sum, squares) = (upload(device, &[3.5]), upload(device, &[7.25]));
        for moments in [None, Some([sum.view(), squares.view()])] {
            kernels.weigh(&stream, &order.view(), &advantages.view(), moments, &weights.view(), &weighted.view_mut()).unwrap();
            stream.synchronize().unwrap();
            [&advantages, &returns, &weights, &weighted].into_iter().for_each(|column| bits.floats(&column.view()));
        }
    }
}

/// Updates of a policy of which only the outputs exist.
///
/// Steps are taken, skipped or stopped.
pub(crate) fn update(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap(), source(4));
    let (len, n, a, n_params) = (130, 97, 3, 300);
    let flags: Vec<u8> = (0..len * a).map(|i| u8::from(i % a == i / a % a || i % 5 > 0)).collect();
    let masks = upload(device, &flags);
    // The action of a row is legal.
    let actions: Vec<u32> = (0..len as u32).map(|i| i % a as u32).collect();
    let actions = upload(device, &actions);
    let vectors = upload(device, &source.floats(len * a));
    let log_std = upload(device, &[-0.5f32, 0.0, 0.3]);
    let rows = upload(device, &source.words(n, len as u32 + 2));
    let log_probs: Vec<f32> = source.floats(len).into_iter().map(|x| x * 0.3 - 1.0).collect();
    let mut floats = |n: usize| upload(device, &source.floats(n));
    let (log_probs, advantages, values, returns) = (upload(device, &log_probs), floats(len), floats(len), floats(len));
    let (outputs, new_values, gradient) = (floats(n * a), floats(n), floats(n_params));
    let bad = upload(device, &vec![f32::NAN; n]);
    let (mut params, mut m, mut v) = (floats(n_params), floats(n_params), Buffer::zeros(device, n_params).unwrap());
    let mut scratch = Buffer::zeros(device, LearnerKernels::sum_scratch(n_params)).unwrap();
    let [mut sum, mut squares, mut norm] = [(); 3].map(|()| Buffer::<f64>::zeros(device, 1).unwrap());
    let mut state = LearnerState::new(device).unwrap();
    let settings = UpdateSettings {
        learning_rate: 1e-2,
        max_norm: 0.5,
        ent_coef: 0.1,
        vf_coef: 0.5,
        clip: 0.2,
        clip_value: f32::INFINITY,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-5,
        ..UpdateSettings::default()
    };
    let bounded = UpdateSettings { clip_value: 0.5, max_norm: 1e9, ..settings };
    let stopped = UpdateSettings { target_kl: 1e-6, ..settings };
    let (surrogate, policy_gradient) = (Objective::ClippedSurrogate, Objective::PolicyGradient);
    let two_heads = HeadSizes::new(device, &[2, 1]).unwrap();
    // Settings, objective, actions, masks, normalization, and whether the values are not finite.
    let cases = [
        (settings, surrogate, "discrete", false, true, false),
        (bounded, surrogate, "discrete", true, false, false),
        (settings, surrogate, "continuous", false, true, false),
        (settings, policy_gradient, "discrete", true, true, false),
        (settings, policy_gradient, "continuous", false, false, false),
        (stopped, surrogate, "discrete", true, true, false),
        (settings, surrogate, "discrete", false, true, true),
        (settings, surrogate, "in two heads", false, true, false),
        (settings, policy_gradient, "in two heads", false, false, false),
    ];
    for (settings, objective, kind, masked, normalized, is_bad) in cases {
        let continuous = kind == "continuous";
        let slices = MinibatchSlices::new(n, if masked { 4 } else { 1 }, n_params, usize::MAX);
        let mut tiles = Buffer::zeros(device, PARTS * slices.tiles()).unwrap();
        state.set_settings(&stream, &settings).unwrap();
        kernels.begin(&stream, &mut state).unwrap();
        kernels.epoch(&stream, &mut state).unwrap();
        for _ in 0..5 {
            let (of_rows, x) = (Some(&rows.view()), &advantages.view());
            kernels.sum(&stream, x, of_rows, Terms::Numbers, &scratch.view_mut(), &sum.view_mut()).unwrap();
            let distances = Terms::SquaredDistances(sum.view());
            kernels.sum(&stream, x, of_rows, distances, &scratch.view_mut(), &squares.view_mut()).unwrap();
            let columns = LossColumns {
                rows: rows.view(),
                actions: if continuous { Actions::Continuous(vectors.view()) } else { Actions::Discrete(actions.view()) },
                masks: masked.then_some(masks.view()),
                log_probs: log_probs.view(),
                advantages: advantages.view(),
                values: values.view(),
                returns: returns.view(),
                moments: normalized.then_some([sum.view(), squares.view()]),
            };
            let mut terms = Buffer::zeros(device, PARTS * n).unwrap();
            let (mut of_std, mut std_tiles) =
                (Buffer::zeros(device, a * n).unwrap(), Buffer::zeros(device, a * slices.tiles()).unwrap());
            let mut std_gradient = Buffer::zeros(device, a).unwrap();
            let (mut d_outputs, mut d_values) = (Buffer::zeros(device, n * a).unwrap(), Buffer::zeros(device, n).unwrap());
            let heads = LossHeads {
                outputs: outputs.view(),
                values: if is_bad { bad.view() } else { new_values.view() },
                d_outputs: d_outputs.view_mut(),
                d_values: d_values.view_mut(),
                terms: terms.view_mut(),
                std_terms: of_std.view_mut(),
                distribution: match kind {
                    "continuous" => ActionDistribution::Gaussian(log_std.view()),
                    "discrete" => ActionDistribution::Categorical,
                    _ => ActionDistribution::Heads(&two_heads),
                },
            };
            kernels.objective(&stream, objective, &columns, &heads, &state).unwrap();
            kernels.loss(&stream, &slices, &terms.view(), &tiles.view_mut(), &mut state).unwrap();
            kernels.sum(&stream, &gradient.view(), None, Terms::Squares, &scratch.view_mut(), &norm.view_mut()).unwrap();
            kernels.step(&stream, &norm.view(), &mut state).unwrap();
            if objective == surrogate {
                let moments = [&m.view_mut(), &v.view_mut()];
                kernels.adam(&stream, &gradient.view(), &params.view_mut(), moments, &state).unwrap();
            } else {
                kernels.rms_prop(&stream, &gradient.view(), &params.view_mut(), &v.view_mut(), &state).unwrap();
            }
            kernels.log_std(&stream, &slices, &of_std.view(), &std_tiles.view_mut(), &std_gradient.view_mut()).unwrap();
            stream.synchronize().unwrap();
            if !is_bad {
                [&terms, &d_outputs, &d_values, &std_gradient].iter().for_each(|numbers| bits.floats(&numbers.view()));
            }
        }
        kernels.epoch(&stream, &mut state).unwrap();
        let (totals, counters) = (state.totals(&stream).unwrap(), state.counters(&stream).unwrap());
        [&params, &m, &v].iter().for_each(|numbers| bits.floats(&numbers.view()));
        format!("{totals:?} {counters:?}").hash(&mut bits.hash);
    }
}
