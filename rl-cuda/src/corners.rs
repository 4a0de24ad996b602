//! Numbers near those at which kernels decide, for tests.
//!
//! Devices must agree in every bit; the payload of a NaN is no part of the bits.

use std::f64::consts::PI;
use std::hash::{DefaultHasher, Hash, Hasher};

use rl_envs::{Purpose, Rng};

use crate::elementary::Function;
use crate::{Buffer, Device, Element, Error, Stream, elementary};

/// Arguments of the exponential that show the last bit of each coefficient.
///
/// Found by trying every float, as the numbers below; some coefficients have few of them. The first results are near the bounds
/// of f32.
pub(crate) const EXP: [f32; 27] = [
    88.5,
    -87.5,
    -90.0,
    -100.0,
    -0.187_554_5,
    -0.143_013_31,
    -10.050_635,
    6.584_898,
    -0.222_606_17,
    2.549_982_5,
    3.243_129_7,
    -0.236_346_04,
    0.158_628_17,
    -0.164_566_53,
    0.157_795_03,
    -0.088_366_16,
    0.053_735_78,
    -0.033_323_9,
    0.018_689_778,
    -0.011_162_571,
    0.000_638_936_4,
    -0.692_546,
    0.692_203_46,
    -0.346_573_62,
    0.346_573_62,
    -0.000_415_918_3,
    -0.061_149_35,
];
/// Logits that, beside a logit of 0, show each coefficient of the logarithm.
pub(crate) const LN: [f32; 14] = [
    -0.958_521_54,
    -0.906_487_46,
    -1.470_503_2,
    -1.067_970_2,
    -1.135_803_2,
    -1.575_530_4,
    -1.802_823_9,
    -2.461_885_2,
    -2.962_430_2,
    -3.381_728_6,
    -4.981_307,
    -0.294_106_07,
    -7.615_021_7,
    -0.881_373_6,
];
/// Logits whose log-probability, beside a logit of 0, is as a number of [`EXP`].
pub(crate) const LOG_PROBS: [f32; 13] = [
    -10.050_592,
    -11.436_919,
    -0.881_373_2,
    -0.001_202_680_4,
    -1.321_958_7,
    -1.105_370_8,
    -1.721_028_7,
    -2.381_757_3,
    -3.384_770_6,
    -4.516_266,
    -4.489_597_3,
    -15.940_477,
    -15.247_331,
];
/// Logits whose exponentials, before that of 0, have a sum on a tie of rounding.
const TIES: [[f32; 2]; 5] = [
    [-10.050_635, -16.715_054],
    [-11.436_93, -10.405_088],
    [-15.595_813, -15.860_079],
    [-15.241_183, -9.008_491],
    [-0.222_606_17, -8.588_143],
];

/// Logits whose exponentials, after that of 0, have a sum on a tie of rounding.
const LAST_TIES: [[f32; 2]; 2] = [[-7.579_681_4, -4.859_727_4], [-8.588_143, -0.222_606_17]];
/// Arguments of the logarithm that show coefficients; the last one is subnormal.
const LN_OF: [f32; 9] = [
    0.680_398_7,
    0.664_622_4,
    0.615_396_7,
    0.563_992_14,
    0.545_843_5,
    0.538_413_9,
    0.512_406_1,
    0.750_432_8,
    f32::from_bits(0x007F_FFC5),
];
/// Arguments of the elementary tanh that show the last bit of each coefficient.
const TANH_OF: [f32; 10] =
    [0.624_846_3, 0.624_989_7, 0.624_999_76, 0.624_999_94, 5.886_888, 1.621_564_9, 1.888_951_4, 3.604_559_7, 5.723_37, 9.010_914];

/// Angles that show the last bit of each coefficient of sine or cosine.
const ANGLES: [f32; 24] = [
    2.356_194_5,
    3.926_991_5,
    0.785_398_3,
    5.497_787_5,
    0.785_398_24,
    3.140_616_2,
    1.570_308_1,
    3.141_589,
    1.570_794_5,
    0.362_823_22,
    0.371_736_8,
    0.785_619,
    0.787_063_9,
    0.035_369_705,
    0.093_940_675,
    0.785_409_15,
    0.787_179_35,
    0.796_350_5,
    0.456_141_32,
    0.561_649_8,
    0.213_177_32,
    0.785_590_7,
    0.249_666_8,
    0.052_963_14,
];

/// Number of rounds; `RL_CORNERS` multiplies them.
pub(crate) fn rounds(n: usize) -> usize {
    n * std::env::var("RL_CORNERS").map_or(1, |factor| factor.parse().expect("RL_CORNERS is a number"))
}

/// Source of numbers near those at which a kernel decides.
pub(crate) struct Corners(pub(crate) Rng);

impl Corners {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed, 0, 0, Purpose::Init))
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u32) as usize]
    }

    /// A neighbour of `x`, at most 3 floats away.
    pub(crate) fn near(&mut self, x: f32) -> f32 {
        f32::from_bits(x.to_bits().wrapping_add(self.0.below(7)).wrapping_sub(3))
    }

    /// A float: near a bound, near a multiple of an angle, extreme, or anywhere.
    pub(crate) fn float(&mut self, bounds: &[f32]) -> f32 {
        const EXTREMES: [f32; 14] =
            [0.0, -0.0, 1e-45, -1e-40, 8192.0, -8192.0, 1e5, 1e12, -1e14, 1e20, 3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        match self.0.below(11) {
            0 => {
                let bound = self.pick(bounds);
                self.near(bound)
            }
            1 => {
                let extreme = self.pick(&EXTREMES);
                if extreme.is_finite() { self.near(extreme) } else { extreme }
            }
            2..=4 => {
                let (multiple, part) = (f64::from(self.0.below(49)) - 24.0, self.pick(&[4.0, 4.0, 12.0]));
                self.near((multiple * PI / part) as f32)
            }
            5 => self.0.uniform_in(-3.2, 3.2),
            6 => self.0.uniform_in(-80.0, 80.0),
            7 => self.0.uniform_in(-1.0, 1.0),
            8 | 9 => {
                let (angle, sign) = (self.pick(&ANGLES), self.pick(&[1.0, -1.0]));
                let third = self.near(angle / 3.0); // Mountain Car's position
                sign * self.pick(&[angle, angle, third])
            }
            _ => self.0.uniform_in(-1.0, 1.0) * 0.1f32.powi(self.0.below(12) as i32),
        }
    }

    /// Replaces three or more logits; their sum of exponentials is on a tie.
    pub(crate) fn tie(&mut self, row: &mut [f32], at: usize) {
        let n = row.len();
        row.fill(-1000.0);
        if self.0.below(3) == 0 {
            row[0] = 0.0;
            row[n - 2..].copy_from_slice(&self.pick(&LAST_TIES));
        } else {
            row[at.min(n - 3)..][..2].copy_from_slice(&self.pick(&TIES));
            row[n - 1] = 0.0;
        }
    }

    pub(crate) fn clock(&mut self) -> [u64; 2] {
        let seeds = [0, u64::MAX, 1 << 32, carrying(self.0.below(10)), u64::from(self.0.next_u32()) << 20];
        let steps = [0, 1, 2, 3, (1 << 32) - 2, (1 << 34) - 3, (1 << 34) - 2, (1 << 34) - 1, 1 << 63, self.0.next_u32().into()];
        [self.pick(&seeds), self.pick(&steps)]
    }
}

/// Seed whose keys are 0x7FFFFFFF in a round of Philox.
///
/// One more carries into the highest bit.
pub(crate) fn carrying(round: u32) -> u64 {
    let key = |increment: u32| u64::from(0x7FFF_FFFFu32.wrapping_sub(increment.wrapping_mul(round)));
    key(0xBB67_AE85) << 32 | key(0x9E37_79B9)
}

/// Hash of everything that kernels wrote.
#[derive(Default)]
pub(crate) struct Digest(pub(crate) DefaultHasher);

impl Digest {
    pub(crate) fn add<T: Element, B: Hash>(&mut self, stream: &Stream, buffer: &Buffer<T>, bits: impl Fn(T) -> B) {
        let mut found = vec![T::default(); buffer.len()];
        stream.download(&mut found, &buffer.view()).unwrap();
        found.into_iter().for_each(|x| bits(x).hash(&mut self.0));
    }

    pub(crate) fn doubles(&mut self, stream: &Stream, buffer: &Buffer<f64>) {
        self.add(stream, buffer, |x| if x.is_nan() { u64::MAX } else { x.to_bits() });
    }

    pub(crate) fn words(&mut self, stream: &Stream, buffer: &Buffer<u32>) {
        self.add(stream, buffer, |word| if f32::from_bits(word).is_nan() { u32::MAX } else { word });
    }

    pub(crate) fn floats(&mut self, stream: &Stream, buffer: &Buffer<f32>) {
        self.add(stream, buffer, |x| if x.is_nan() { u32::MAX } else { x.to_bits() });
    }
}

/// Kernels, the stream that they run on, and what they wrote.
pub(crate) struct KernelBench<'a, K> {
    pub(crate) device: &'a Device,
    pub(crate) stream: Stream,
    pub(crate) kernels: K,
    pub(crate) corners: Corners,
    pub(crate) digest: Digest,
}

impl<'a, K> KernelBench<'a, K> {
    pub(crate) fn new(device: &'a Device, kernels: impl Fn(&Device) -> Result<K, Error>, seed: u64) -> Self {
        let (stream, kernels) = (device.stream().unwrap(), kernels(device).unwrap());
        Self { device, stream, kernels, corners: Corners::new(seed), digest: Digest::default() }
    }

    pub(crate) fn upload<T: Element>(&self, from: &[T]) -> Buffer<T> {
        Buffer::of(self.device, from).unwrap()
    }

    pub(crate) fn zeros<T: Element>(&self, len: usize) -> Buffer<T> {
        Buffer::zeros(self.device, len).unwrap()
    }
}

/// Runs `work` on every device; the digests must be equal.
pub(crate) fn agree(what: &str, work: impl Fn(&Device) -> Digest) {
    let devices = Device::for_tests();
    let digests: Vec<u64> = devices.iter().map(|device| work(device).0.finish()).collect();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{what}: {digests:x?} on {devices:?}");
}

#[test]
fn elementary_functions_agree_where_coefficients_show() {
    let numbers: Vec<f32> = [&EXP[..], &TANH_OF, &LN_OF, &ANGLES, &[f32::INFINITY, f32::NAN, 0.0]].concat();
    let numbers: Vec<f32> = numbers.into_iter().flat_map(|x| [x, -x, x / 2.0]).collect();
    agree("elementary", |device| {
        let mut digest = Digest::default();
        use Function::{Cos, Exp, Ln, Sin, Tanh};
        for function in [Sin, Cos, Exp, Ln, Tanh] {
            let found = elementary::apply(device, function, &numbers).unwrap();
            found.into_iter().for_each(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }.hash(&mut digest.0));
        }
        digest
    });
}

#[test]
fn words_agree_for_any_count() {
    agree("random", |device| {
        let mut digest = Digest::default();
        for (count, n) in [(1, 1), (1, 133), (2, 5), (4, 33), (5, 1)] {
            elementary::random(device, 7, 3, Purpose::Step, count, n).unwrap().hash(&mut digest.0);
        }
        digest
    });
}
