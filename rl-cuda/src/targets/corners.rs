//! Targets, batches and samples from numbers that playing does not reach.

use std::hash::Hash;

use rl_envs::{Purpose, math, rng};

use super::*;
use crate::corners::{EXP, KernelBench, LN, LOG_PROBS, agree, carrying, rounds};

/// Environment, seed and logit: the number drawn is the probability of 0.
///
/// A logit of 0 stands before the given one. The last bit of a coefficient of the exponential moves the probability of 0 above
/// the number drawn, or down to it.
const DRAWN: [(usize, u64, f32); 11] = [
    (2, 2_869_752, -0.881_373_2),
    (0, 9_501_963, -0.001_202_680_4),
    (0, 14_117_155, -1.321_958_7),
    (3, 2_323_500, -1.105_370_8),
    (1, 202_602, -1.721_028_7),
    (3, 2_319_362, -2.381_757_3),
    (2, 1_334_355, -3.384_770_6),
    (2, 1_546_358, -4.516_266),
    (1, 1_627_012, -4.489_597_3),
    (0, 145_681, -15.940_477),
    (2, 2_894_165, -15.247_331),
];

/// Environment, seed and the logits before one of 0, as [`DRAWN`].
///
/// The number drawn is the cumulative probability of the first two actions, or just below it: the last bit of log2(e) in the
/// second exponential decides.
const SECOND: [(usize, u64, [f32; 2]); 3] = [
    (2, 416_014, [-8.402_845, -10.050_368]),
    (3, 1_870_978, [-9.834_207, -11.436_866]),
    (2, 143_060, [-18.398_258, -15.595_813]),
];

impl KernelBench<'_, TargetKernels> {
    fn floats(&mut self, n: usize, bounds: &[f32], wild: bool) -> Buffer<f32> {
        let mut number = |_| if wild { self.corners.float(bounds) } else { self.corners.0.uniform_in(-3.0, 3.0) };
        let numbers: Vec<f32> = (0..n).map(&mut number).collect();
        self.upload(&numbers)
    }

    fn bytes(&mut self, n: usize, of: &[u8]) -> Buffer<u8> {
        let bytes: Vec<u8> = (0..n).map(|_| self.corners.pick(of)).collect();
        self.upload(&bytes)
    }

    fn words(&mut self, n: usize) -> Buffer<u32> {
        let words: Vec<u32> = (0..n).map(|_| self.corners.0.next_u32()).collect();
        self.upload(&words)
    }

    /// Draws normal numbers around the means.
    fn normals(&mut self, [means, log_std, bounds]: [&Buffer<f32>; 3], clock: [u64; 2], t: u64) {
        let clock = self.upload(&clock);
        let [mut actions, mut clipped] = [(); 2].map(|()| self.zeros(means.len()));
        let mut log_probs = self.zeros(means.len().checked_div(log_std.len()).unwrap_or(3));
        let [means, log_std, bounds] = [means, log_std, bounds].map(|numbers| numbers.view());
        let streams = PolicyStreams { clock: clock.view(), t, first_env: 0 };
        let to = [&actions.view_mut(), &clipped.view_mut(), &log_probs.view_mut()];
        self.kernels.sample_gaussian(&self.stream, &means, &log_std, &bounds, streams, to).unwrap();
        [&actions, &clipped, &log_probs].into_iter().for_each(|floats| self.digest.floats(&self.stream, floats));
    }

    fn sample(&mut self, logits: &[f32], masks: Option<&[u8]>, n: usize, clock: [u64; 2], t: u64) {
        let (logits, clock) = (self.upload(logits), self.upload(&clock));
        let masks = masks.map(|masks| self.upload(masks));
        let masks = masks.as_ref().map(Buffer::view);
        let (mut actions, mut log_probs) = (self.zeros(n), self.zeros(n));
        let to = (&actions.view_mut(), &log_probs.view_mut());
        self.kernels
            .sample_categorical(
                &self.stream,
                &logits.view(),
                masks.as_ref(),
                PolicyStreams { clock: clock.view(), t, first_env: 0 },
                to.0,
                to.1,
            )
            .unwrap();
        self.digest.words(&self.stream, &actions);
        self.digest.floats(&self.stream, &log_probs);
    }
}

/// Seeds of normal numbers that show the last bit of each coefficient.
///
/// One of the first four environments draws it; the last one draws a radius of 0.
const NORMALS: [u64; 8] = [31_086, 21_686, 4_970, 200_094, 86_885, 22_332, 24_557, 7_805_606];

/// Cumulative probability of the first `count` actions, as the kernel computes it.
fn cumulative(row: &[f32], count: usize) -> f32 {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max });
    let log_sum = math::ln(row.iter().fold(0.0, |sum, &logit| sum + math::exp(logit - max)));
    row[..count].iter().fold(0.0, |sum, &logit| sum + math::exp(logit - max - log_sum))
}

/// Floats in order, as integers.
fn ordered(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    if bits < 0 { i32::MIN - bits } else { bits }
}

fn float(ordered: i32) -> f32 {
    f32::from_bits((if ordered < 0 { i32::MIN - ordered } else { ordered }) as u32)
}

/// Replaces a logit: the cumulative probability is just above `drawn`, or not.
fn decide(row: &mut [f32], at: usize, drawn: f32, is_above: bool) {
    let (mut low, mut high) = (i64::from(ordered(-80.0)), i64::from(ordered(80.0)));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        row[at] = float(middle as i32);
        if cumulative(row, at + 1) > drawn { high = middle } else { low = middle }
    }
    row[at] = float(if is_above { high } else { low } as i32);
}

#[test]
fn samples_agree_where_a_number_decides() {
    agree("sample", |device| {
        let mut bench = KernelBench::new(device, TargetKernels::new, 31);
        for round in 0..rounds(24) {
            let (n, a) = (192, [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 13][round % 12]);
            let (clock @ [seed, step], t) = (bench.corners.clock(), bench.corners.pick(&[0, 1, 2, 3, 1 << 33]));
            let mut logits = Vec::new();
            for i in 0..n {
                let drawn = rng::uniform(rng::word(seed, i as u32, step.wrapping_add(t), Purpose::Policy));
                let scale = bench.corners.pick(&[0.1, 1.0, 5.0]);
                let mut row: Vec<f32> = (0..a).map(|_| scale * bench.corners.0.uniform_in(-3.0, 3.0)).collect();
                let (at, other) = (bench.corners.0.below(a as u32) as usize, bench.corners.0.below(a as u32) as usize);
                match i % 4 {
                    0 | 1 => decide(&mut row, at, drawn, i % 2 == 0),
                    2 => {
                        row.iter_mut().for_each(|logit| *logit = -logit.abs());
                        (row[at], row[other]) = (-bench.corners.pick(&EXP).abs(), 0.0);
                        if bench.corners.0.below(3) > 0 {
                            row.fill(-1000.0);
                            let [of_ln, of_exp] = [bench.corners.pick(&LN), bench.corners.pick(&LOG_PROBS)];
                            (row[at], row[other]) = (bench.corners.pick(&[of_ln, of_exp]), 0.0);
                        }
                        if a > 2 && bench.corners.0.below(4) == 0 {
                            bench.corners.tie(&mut row, at);
                        }
                    }
                    3 if i % 8 == 3 => row.fill(bench.corners.pick(&[-1e30, -1e31, -3e38])), // as masked, or below
                    _ => row[at] = bench.corners.float(&[0.0, 89.0, -104.0, -1e30]),
                }
                logits.extend(row);
            }
            let legal = |i: usize, of: u8| if i % a == i / a % a { 1 } else { of };
            let masks: Vec<u8> = (0..n * a).map(|i| legal(i, bench.corners.pick(&[0, 1, 1, 2, 128]))).collect();
            bench.sample(&logits, (round % 3 == 0).then_some(&masks), n, clock, t);
        }
        for (index, seed, logit) in DRAWN {
            let mut logits = vec![0.0; 8];
            logits[2 * index + 1] = logit;
            bench.sample(&logits, None, 4, [seed, 1], 2);
        }
        for (index, seed, logits) in SECOND {
            let mut rows = vec![0.0; 12];
            rows[3 * index..][..2].copy_from_slice(&logits);
            bench.sample(&rows, None, 4, [seed, 1], 2);
        }
        // Each key of Philox, and each word of a block.
        for (round, t) in (0..10).flat_map(|round| (0..4).map(move |t| (round, t))) {
            let logits: Vec<f32> = (0..64).map(|_| bench.corners.0.uniform_in(-1.0, 1.0)).collect();
            bench.sample(&logits, None, 8, [carrying(round), 0], t);
        }
        // The largest number drawn, and a last action of almost no probability.
        for last in [-90.0, -103.5] {
            bench.sample(&[0.0, -3.181_790_8, last].repeat(4), None, 4, [3_069_733, 1], 2);
        }
        bench.digest
    });
}

#[test]
fn normal_numbers_agree_around_any_means() {
    agree("normals", |device| {
        let mut bench = KernelBench::new(device, TargetKernels::new, 34);
        for round in 0..rounds(24) {
            let (n, a) = (192, [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 13][round % 12]);
            let (clock, t) = (bench.corners.clock(), bench.corners.pick(&[0, 1, 2, 3, 1 << 33]));
            let wild = round % 4 == 3;
            let log_std: Vec<f32> = (0..a).map(|_| bench.corners.pick(&[1.0, -1.0]) * bench.corners.pick(&EXP)).collect();
            let plain = bench.upload(&vec![0.0; n * a]);
            let (means, any) = (bench.floats(n * a, &[0.0, 1.0], wild), bench.floats(a, &[89.0, -104.0], wild));
            let bounds = bench.floats(2 * a, &[0.0, 1.0], wild);
            let log_std = bench.upload(&log_std);
            bench.normals([&means, &any, &bounds], clock, t);
            bench.normals([&plain, &log_std, &bounds], clock, t);
        }
        let (plain, ones) = (bench.zeros(16), bench.zeros(4));
        let bounds = bench.upload(&[-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]);
        for seed in NORMALS {
            bench.normals([&plain, &ones, &bounds], [seed, 1], 2);
        }
        let none = bench.zeros(0);
        bench.normals([&none; 3], [7, 1], 2);
        // Log-densities of exactly 0: the means absorb the deviations, of ln(std) = -ln(2 pi) / 2.
        let (means, log_std) = (bench.upload(&[1e12; 16]), bench.upload(&[-0.918_938_5; 4]));
        bench.normals([&means, &log_std, &bounds], [7, 1], 2);
        bench.digest
    });
}

#[test]
fn normalization_agrees_on_any_numbers() {
    agree("normalize", |device| {
        let mut bench = KernelBench::new(device, TargetKernels::new, 32);
        for round in 0..rounds(24) {
            let wild = round % 2 == 1;
            let (t, d) = (bench.corners.pick(&[1, 2, 3, 9]), bench.corners.pick(&[1, 2, 3, 5, 130]));
            let n = bench.corners.pick(&[1, 8, 11, 12, 33]);
            let mut starts: Vec<u32> = [0, 3, 7, n, n, n, n].into_iter().map(|start| start.min(n)).collect();
            starts.truncate(bench.corners.pick(&[4, 5, 7]));
            let mut obs = bench.floats(t * n as usize * d, &[10.0, -10.0, 1.0], wild);
            let (means, m2s) =
                bench.kernels.moments(&bench.stream, &obs.view(), &mut ObsSlices::new(device, &starts, d).unwrap()).unwrap();
            let bits = |x: &f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
            means.iter().chain(&m2s).for_each(|x| bits(x).hash(&mut bench.digest.0));
            let (mut mean, mut precision) = (bench.floats(d, &[0.0], false), bench.floats(d, &[1.0], false));
            if wild {
                (mean, precision) = (bench.zeros(d), bench.upload(&vec![1.0; d])); // bounds are met exactly
            }
            bench.kernels.normalize(&bench.stream, &obs.view_mut(), &mean.view(), &precision.view()).unwrap();
            bench.digest.floats(&bench.stream, &obs);
        }
        bench.digest
    });
}

#[test]
fn advantages_and_batches_agree_on_any_numbers() {
    agree("gae", |device| {
        let mut bench = KernelBench::new(device, TargetKernels::new, 33);
        for round in 0..rounds(32) {
            let (t, n) = (bench.corners.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 21]), bench.corners.pick(&[1, 2, 33, 300]));
            let wild = round % 4 == 3;
            let [rewards, next_values, values] = [(); 3].map(|()| bench.floats(t * n, &[0.0, 1.0], wild));
            let flags: &[u8] = if round % 2 == 0 { &[0, 0, 0, 1] } else { &[0, 1, 2, 128] };
            let [terminated, truncated] = [(); 2].map(|()| bench.bytes(t * n, flags));
            let steps = Steps {
                n_envs: n,
                rewards: rewards.view(),
                terminated: terminated.view(),
                truncated: truncated.view(),
                next_values: next_values.view(),
                values: values.view(),
            };
            let mut advantages = bench.floats(t * n, &[], false);
            let (gamma, lambda) = (bench.corners.pick(&[0.99, 1.0, 0.5]), bench.corners.pick(&[0.95, 1.0, 0.0]));
            bench.kernels.gae(&bench.stream, &steps, gamma, lambda, &advantages.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &advantages);

            let row = Row {
                obs: bench.corners.pick(&[0, 1, 2, 5]),
                action: bench.corners.pick(&[1, 1, 2, 3]),
                mask_len: bench.corners.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            };
            let (n_rows, n) = (bench.corners.pick(&[1, 2, 50]), bench.corners.pick(&[1, 5, 65]));
            let words = bench.words(n_rows * row.len());
            let indices: Vec<u32> = (0..n)
                .map(|_| {
                    let index = bench.corners.0.below(n_rows as u32);
                    bench.corners.pick(&[index, index, 0, n_rows as u32 - 1, n_rows as u32, u32::MAX])
                })
                .collect();
            let indices = bench.upload(&indices);
            let mut to = WordBuffers::zeros(bench.device, row, n).unwrap();
            bench.kernels.gather_words(&bench.stream, &words.view(), row, &indices.view(), &to.columns()).unwrap();
            to.words.iter().for_each(|words| bench.digest.add(&bench.stream, words, |word| word));
            bench.digest.add(&bench.stream, &to.next_masks, |byte| byte);
            let len = bench.corners.pick(&[1, 2, 7, 33]);
            let (first, rest) = (bench.corners.pick(&[0, 1, len]), bench.corners.pick(&[0, 1, len]));
            let stride = first + len + rest;
            let rows = bench.bytes(n_rows * stride, &[0, 1, 7, 31, 200, 255]);
            let mut to = bench.zeros::<u8>(n * len);
            let part = first..first + len;
            bench.kernels.gather_bytes(&bench.stream, &rows.view(), stride, part, &indices.view(), &to.view_mut()).unwrap();
            bench.digest.add(&bench.stream, &to, |byte| byte);
        }
        bench.digest
    });
}
