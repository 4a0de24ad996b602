//! Every module of kernels on every device: the same bits.
//!
//! The emulated device compiles the sources; the stand-in driver and a GPU run the PTX. The other tests compare the devices with
//! Rust. `cargo xtask ptx --mutate` runs changed lines of the PTX beside these launches and expects other bits.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;
mod learner;

use std::hash::{Hash, Hasher};

use beside::{Driven, Player, check_bound, compare};
use rl_cuda::elementary::{self, Function};
use rl_cuda::learner::Episodes;
use rl_cuda::targets::{ObsSlices, PolicyStreams, Row, Steps, TargetKernels, WordBuffers};
use rl_cuda::{ActionSource, Buffer, CudaVecEnv, Device, DeviceSteps, Element, View};
use rl_envs::wrappers::{Hidden, Wrappers};
use rl_envs::{Actions, Dtype, Obs, Purpose, Rng, Spaces, VecEnv, breakout, catalog, codec};

/// Modules of kernels that belong to no environment.
const OTHERS: [&str; 27] = [
    "clock",
    "columns",
    "continuous",
    "conv",
    "dense",
    "episodes",
    "few",
    "gae",
    "gated",
    "gather",
    "hide",
    "layer_norm",
    "learner",
    "math",
    "memory",
    "narrow",
    "normalize",
    "off_policy",
    "permutation",
    "policy_gradient",
    "q_learning",
    "sample",
    "samples",
    "sums",
    "surrogate",
    "targets",
    "wide",
];

/// Hash of every module's results, a line each.
///
/// A device that is alone, on a machine without a C++ compiler or the stand-in, is compared with them.
const RECORDED: &str = include_str!("modules.txt");

/// FNV-1a, which is the same in every version of Rust.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Hash of what kernels wrote.
struct Bits<'a> {
    device: &'a Device,
    hash: Fnv,
}

impl Bits<'_> {
    fn add<T: Element>(&mut self, from: &View<'_, T>, bits: impl Fn(T) -> u64) {
        let mut to = vec![T::default(); from.len()];
        self.device.stream().unwrap().download(&mut to, from).unwrap();
        to.into_iter().for_each(|x| bits(x).hash(&mut self.hash));
    }

    fn floats(&mut self, from: &View<'_, f32>) {
        self.add(from, |x| x.to_bits().into());
    }

    fn words(&mut self, from: &View<'_, u32>) {
        self.add(from, u64::from);
    }

    fn bytes(&mut self, from: &View<'_, u8>) {
        self.add(from, u64::from);
    }

    fn steps(&mut self, steps: &DeviceSteps) {
        let steps = &steps.columns;
        for obs in [&steps.obs, &steps.final_obs] {
            match obs {
                Obs::F32(obs) => self.floats(&obs.view()),
                Obs::U8(obs) => self.bytes(&obs.view()),
            }
        }
        match &steps.actions {
            Actions::Discrete(actions) => self.words(&actions.view()),
            Actions::Continuous(actions) => self.floats(&actions.view()),
        }
        self.floats(&steps.rewards.view());
        self.bytes(&steps.terminated.view());
        self.bytes(&steps.truncated.view());
        steps.masks.iter().flatten().for_each(|masks| self.bytes(&masks.view()));
    }
}

/// Random numbers for the kernels' inputs.
struct Source(Rng);

impl Source {
    fn words(&mut self, n: usize, below: u32) -> Vec<u32> {
        (0..n).map(|_| self.0.below(below)).collect()
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.0.uniform_in(-3.0, 3.0)).collect()
    }

    fn flags(&mut self, n: usize) -> Vec<u8> {
        self.words(n, 8).into_iter().map(|word| u8::from(word == 0)).collect()
    }
}

fn upload<T: Element>(device: &Device, from: &[T]) -> Buffer<T> {
    Buffer::of(device, from).unwrap()
}

/// Runs an environment beside Rust, then with many steps per launch.
fn environment(device: &Device, name: &str, bits: &mut Bits<'_>) {
    let stream = device.stream().unwrap();
    let is_grid = matches!(catalog::find(name).unwrap().spaces().obs.dtype(), Dtype::U8);
    for (n, n_steps) in [(33, if is_grid { 500 } else { 1200 }), (200, if is_grid { 50 } else { 300 })] {
        compare(device, name, n, 3, n_steps).unwrap();
    }
    check_bound(device, name);
    // Seeds and counters that need more than 32 bits, and indices that need all of them.
    let (n, k, seed) = (33, if is_grid { 250 } else { 1100 }, u64::MAX - 5);
    let mut envs = CudaVecEnv::new(device, name, n).unwrap().with_block(16).with_first_env(0xFEDC_BA98);
    let Spaces { obs: observation_space, actions: action_space } = catalog::find(name).unwrap().spaces();
    let mut steps = DeviceSteps::zeros(device, k, n, &observation_space, &action_space).unwrap();
    for source in [ActionSource::Random, ActionSource::Given] {
        let rows = steps.rows(0..1);
        envs.reset_on(&stream, seed, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks)).unwrap();
        envs.step_on(&stream, 3, source, &steps.rows(0..3)).unwrap();
        envs.step_on(&stream, k as u32 - 3, source, &steps.rows(3..k)).unwrap();
        stream.synchronize().unwrap();
        bits.steps(&steps);
        // No steps at all.
        envs.step_on(&stream, 0, source, &steps.rows(0..1)).unwrap();
        envs.save().unwrap().hash(&mut bits.hash);
    }
    // Random actions from states that only a player reaches.
    let (n, k) = (33, 8);
    let mut played = Driven::new(catalog::find(name).unwrap().sync(n).unwrap());
    let mut player = Player::new(seed, n, played.envs.action_space());
    let mut envs = CudaVecEnv::new(device, name, n).unwrap();
    let mut steps = DeviceSteps::zeros(device, k, n, &observation_space, &action_space).unwrap();
    played.reset(seed).unwrap();
    for _ in 0..if name == "breakout" { 40 } else { 1 } {
        for _ in 0..20 {
            let actions = player.play(name, &played);
            played.step(actions).unwrap();
        }
        envs.load(&played.envs.save().unwrap()).unwrap();
        envs.step_on(&stream, k as u32, ActionSource::Random, &steps.rows(0..k)).unwrap();
        stream.synchronize().unwrap();
        bits.steps(&steps);
    }
    if name == "breakout" {
        for source in [ActionSource::Random, ActionSource::Given] {
            envs.load(&near_the_top_wall(n)).unwrap();
            envs.step_on(&stream, k as u32, source, &steps.rows(0..k)).unwrap();
            stream.synchronize().unwrap();
            bits.steps(&steps);
        }
    }
}

/// States of Breakout whose ball is about to reach the top wall.
fn near_the_top_wall(n: usize) -> Vec<u8> {
    let state = |i: usize| breakout::State {
        ball_x: (i % 10) as u8,
        ball_y: (i % 3) as u8,
        ball_dir: (i % 4) as u8,
        pos: 4,
        brick_map: [[u8::from(i % 5 > 2); 10]; 3],
        strike: i % 2 == 1,
        last_x: (i % 10) as u8,
        last_y: (i % 3) as u8,
        last_action: 0,
        elapsed: 3,
    };
    codec::encode(&(0u32, 7u64, 100u64, (0..n).map(state).collect::<Vec<_>>())).unwrap()
}

fn hide(device: &Device, bits: &mut Bits<'_>) {
    let (n, k, stream) = (100, 30, device.stream().unwrap());
    let hidden = Wrappers { hide: Hidden::Velocities, ..Wrappers::default() };
    let entry = catalog::find("cartpole").unwrap().wrapped(hidden);
    let (mut envs, Spaces { obs, actions }) = (CudaVecEnv::of_entry(device, &entry, n).unwrap(), entry.spaces());
    let mut steps = DeviceSteps::zeros(device, k, n, &obs, &actions).unwrap();
    let rows = steps.rows(0..1);
    envs.reset_on(&stream, 3, &rows.obs, None).unwrap();
    stream.synchronize().unwrap();
    bits.steps(&steps);
    envs.step_on(&stream, k as u32, ActionSource::Random, &steps.rows(0..k)).unwrap();
    stream.synchronize().unwrap();
    bits.steps(&steps);
}

fn gae(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) =
        (device.stream().unwrap(), TargetKernels::new(device).unwrap(), Source(Rng::new(1, 0, 0, Purpose::Init)));
    for (t, n, is_zero) in
        [(37, 33, false), (4, 300, false), (1, 1, false), (6, 65, false), (7, 65, false), (7, 65, true), (0, 3, false)]
    {
        // With rewards and values of zero, the smallest bootstrap is seen.
        let mut floats =
            || upload(device, &source.floats(t * n).iter().map(|x| if is_zero { 0.0 } else { *x }).collect::<Vec<_>>());
        let (rewards, next_values, values) = (floats(), floats(), floats());
        let (terminated, truncated) = (upload(device, &source.flags(t * n)), upload(device, &source.flags(t * n)));
        let mut advantages = Buffer::zeros(device, t * n).unwrap();
        let steps = Steps {
            n_envs: n,
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
            values: values.view(),
        };
        kernels.gae(&stream, &steps, 0.99, 0.95, &advantages.view_mut()).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&advantages.view());
    }
}

fn sample(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) =
        (device.stream().unwrap(), TargetKernels::new(device).unwrap(), Source(Rng::new(2, 0, 0, Purpose::Init)));
    for (round, n_actions) in [0, 1, 2, 3, 5, 8, 33, 2, 3, 4, 6, 7].into_iter().cycle().take(48).enumerate() {
        for masked in [false, true] {
            let (n, scale) = (300, [1.0, 1.0, 0.01, 12.0, 40.0][round % 5]);
            let mut logits: Vec<f32> = source.floats(n * n_actions).iter().map(|logit| scale * logit).collect();
            if n_actions > 0 {
                (logits[0], logits[n_actions]) = (-1000.0, 1000.0);
            }
            let logits = upload(device, &logits);
            let legal = |i: usize, flag: u8| if i % n_actions == (i / n_actions) % n_actions { 1 } else { flag };
            let masks: Vec<u8> = source.flags(n * n_actions).into_iter().enumerate().map(|(i, flag)| legal(i, flag)).collect();
            let masks = upload(device, &masks);
            let seed = [u64::MAX - 7, 1, source.0.next_u32().into()][round % 3] ^ u64::from(source.0.next_u32()) << 32;
            let step = [u64::from(u32::MAX) - 1, 5, (1 << 34) - 2, u64::MAX - 8][round % 4] + round as u64 % 4;
            let clock = upload(device, &[seed, step]);
            let (mut actions, mut log_probs) = (Buffer::zeros(device, n).unwrap(), Buffer::zeros(device, n).unwrap());
            let masks = masks.view();
            let masks = masked.then_some(&masks);
            let streams = PolicyStreams { clock: clock.view(), t: 3, first_env: 77 };
            kernels
                .sample_categorical(&stream, &logits.view(), masks, streams, &actions.view_mut(), &log_probs.view_mut())
                .unwrap();
            stream.synchronize().unwrap();
            bits.words(&actions.view());
            bits.floats(&log_probs.view());
        }
        if n_actions > 0 {
            let n = 300;
            let mut spread = || source.floats(n_actions);
            let (log_std, bounds) = (upload(device, &spread()), upload(device, &[spread(), spread()].concat()));
            let means = upload(device, &source.floats(n * n_actions));
            let clock = upload(device, &[u64::MAX - 7 - round as u64, (1 << 34) - 2]);
            let [mut actions, mut clipped] = [(); 2].map(|()| Buffer::zeros(device, n * n_actions).unwrap());
            let mut log_probs = Buffer::zeros(device, n).unwrap();
            let (means, log_std, bounds) = (means.view(), log_std.view(), bounds.view());
            let to = [&actions.view_mut(), &clipped.view_mut(), &log_probs.view_mut()];
            let streams = PolicyStreams { clock: clock.view(), t: 3, first_env: 77 };
            kernels.sample_gaussian(&stream, &means, &log_std, &bounds, streams, to).unwrap();
            stream.synchronize().unwrap();
            [&actions, &clipped, &log_probs].iter().for_each(|floats| bits.floats(&floats.view()));
        }
    }
}

fn episodes(device: &Device, bits: &mut Bits<'_>) {
    let (stream, mut source) = (device.stream().unwrap(), Source(Rng::new(7, 0, 0, Purpose::Init)));
    for (t, n, keep, divisor) in [(1, 1, 3, 1), (7, 5, 100, 3), (40, 33, 100, 4), (9, 300, 10, 2), (700, 2, 5, 50)] {
        let mut all = Episodes::new(device, n, keep).unwrap();
        for _ in 0..3 {
            let rewards = upload(device, &source.floats(t * n));
            let mut flags = || {
                let rare: Vec<u8> = source.words(t * n, divisor).into_iter().map(|word| u8::from(word == 0)).collect();
                upload(device, &rare)
            };
            let (terminated, truncated) = (flags(), flags());
            all.add(&stream, &rewards.view(), &terminated.view(), &truncated.view()).unwrap();
            let (ended, latest) = all.ended(&stream).unwrap();
            ended.hash(&mut bits.hash);
            for (episode_return, length) in latest.into_iter().chain(all.running(&stream).unwrap()) {
                (episode_return.to_bits(), length).hash(&mut bits.hash);
            }
        }
    }
}

fn normalize(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) =
        (device.stream().unwrap(), TargetKernels::new(device).unwrap(), Source(Rng::new(3, 0, 0, Purpose::Init)));
    for (t, n, d) in [(9, 12, 4), (1, 200, 1), (33, 7, 3), (0, 7, 2), (2, 300, 257)] {
        let mut obs = upload(device, &source.floats(t * n * d));
        let mut precision = source.floats(d);
        precision[0] = 100.0; // clipped
        let (mean, precision) = (upload(device, &source.floats(d)), upload(device, &precision));
        let (means, m2s) =
            kernels.moments(&stream, &obs.view(), &mut ObsSlices::new(device, &[0, 0, 1, 5, n as u32], d).unwrap()).unwrap();
        means.iter().chain(&m2s).for_each(|x| x.to_bits().hash(&mut bits.hash));
        kernels.normalize(&stream, &obs.view_mut(), &mean.view(), &precision.view()).unwrap();
        stream.synchronize().unwrap();
        bits.floats(&obs.view());
    }
}

fn gather(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) =
        (device.stream().unwrap(), TargetKernels::new(device).unwrap(), Source(Rng::new(4, 0, 0, Purpose::Init)));
    for (obs, action, mask_len) in [(4, 1, 0), (3, 2, 6), (0, 1, 4), (1, 1, 9)] {
        let (row, n_rows, n) = (Row { obs, action, mask_len }, 100, 65);
        let words = upload(device, &source.words(n_rows * row.len(), u32::MAX));
        let mut indices = source.words(n, n_rows as u32);
        (indices[0], indices[1], indices[2], indices[3]) = (n_rows as u32 - 1, n_rows as u32, u32::MAX, 0);
        let indices = upload(device, &indices);
        let mut to = WordBuffers::zeros(device, row, n).unwrap();
        kernels.gather_words(&stream, &words.view(), row, &indices.view(), &to.columns()).unwrap();
        let len = 7 * obs + 1;
        let rows = upload(device, &source.words(n_rows * 2 * len, 256).into_iter().map(|word| word as u8).collect::<Vec<_>>());
        let mut halves = [Buffer::zeros(device, n * len).unwrap(), Buffer::zeros(device, n * len).unwrap()];
        for (half, part) in halves.iter_mut().zip([0..len, len..2 * len]) {
            kernels.gather_bytes(&stream, &rows.view(), 2 * len, part, &indices.view(), &half.view_mut()).unwrap();
        }
        stream.synchronize().unwrap();
        to.words.iter().for_each(|words| bits.words(&words.view()));
        bits.bytes(&to.next_masks.view());
        halves.iter().for_each(|bytes| bits.bytes(&bytes.view()));
    }
}

fn math(device: &Device, bits: &mut Bits<'_>) {
    let mut numbers: Vec<f32> = (0..=u32::MAX / 400_009).map(|i| f32::from_bits(i * 400_009)).collect();
    numbers.extend((-4000..4000).map(|i| i as f32 / 64.0));
    // Where a quadrant, a period or a range ends, and the floats around.
    let ends = (0..=10_432)
        .map(|i| (f64::from(i) * std::f64::consts::FRAC_PI_4) as f32)
        .chain([8192.0, 88.72284, 89.0, 103.97208, 104.0, 0.625]);
    let near = |end: f32| (0..7).map(move |i| f32::from_bits((end.to_bits() + i).saturating_sub(3)));
    ends.flat_map(near).for_each(|x| numbers.extend([x, -x]));
    let small: Vec<f32> = (0..=255 * 64).map(|i| i as f32 / 64.0).chain((0..255).flat_map(|i| near(i as f32 + 0.5))).collect();
    use Function::{Cos, Exp, Ln, RoundToByte, Sin, Tanh, WrapAngle};
    for function in [Sin, Cos, WrapAngle, Exp, Ln, Tanh, RoundToByte] {
        let x = if function == RoundToByte { &small } else { &numbers };
        // The payload of a NaN is not part of the bits.
        let canonical = |y: f32| if y.is_nan() { u32::MAX } else { y.to_bits() };
        elementary::apply(device, function, x).unwrap().into_iter().for_each(|y| canonical(y).hash(&mut bits.hash));
    }
    // Seeds whose keys are 0x7FFFFFFF in a round of Philox: one more carries into the highest bit.
    let key = |round: u32, increment: u32| u64::from(0x7FFF_FFFFu32.wrapping_sub(increment.wrapping_mul(round)));
    let carrying = (0..10).map(|round| (key(round, 0xBB67_AE85) << 32 | key(round, 0x9E37_79B9), 3));
    for (seed, step) in [(0, 0), (u64::MAX, u64::MAX), (1 << 33, 1 << 34)].into_iter().chain(carrying) {
        elementary::random(device, seed, step, Purpose::Step, 11, 133).unwrap().hash(&mut bits.hash);
    }
}

/// Replays graphs, which advance the clock in device memory.
fn clock(device: &Device, bits: &mut Bits<'_>) {
    let stream = device.stream().unwrap();
    let mut envs = CudaVecEnv::new(device, "pendulum", 3).unwrap();
    let Spaces { obs: observation_space, actions: action_space } = catalog::find("pendulum").unwrap().spaces();
    let mut steps = DeviceSteps::zeros(device, 4, 3, &observation_space, &action_space).unwrap();
    let rows = steps.rows(0..1);
    envs.reset_on(&stream, 9, &rows.obs, None).unwrap();
    let mut graph = envs.capture(&stream, ActionSource::Random, 1, steps).unwrap();
    for _ in 0..3 {
        envs.replay(&mut graph).unwrap();
        stream.synchronize().unwrap();
        bits.steps(graph.steps());
    }
}

/// Runs everything of a module, and returns the hash of what it wrote.
fn run(device: &Device, module: &str) -> u64 {
    let mut bits = Bits { device, hash: Fnv(0xcbf2_9ce4_8422_2325) };
    match module {
        "clock" => clock(device, &mut bits),
        "columns" => learner::columns(device, &mut bits),
        "continuous" => learner::continuous(device, &mut bits),
        "conv" => learner::conv(device, &mut bits),
        "dense" => learner::dense(device, &mut bits),
        "episodes" => episodes(device, &mut bits),
        "few" => learner::few(device, &mut bits),
        "gae" => gae(device, &mut bits),
        "gated" => learner::gated(device, &mut bits),
        "gather" => gather(device, &mut bits),
        "hide" => hide(device, &mut bits),
        "layer_norm" => learner::layer_norm(device, &mut bits),
        "learner" | "policy_gradient" | "surrogate" => learner::update(device, &mut bits),
        "math" => math(device, &mut bits),
        "memory" => learner::memory::memory(device, &mut bits),
        "narrow" => learner::narrow(device, &mut bits),
        "normalize" => normalize(device, &mut bits),
        "off_policy" => learner::off_policy(device, &mut bits),
        "permutation" => learner::permutation(device, &mut bits),
        "q_learning" => learner::q_learning(device, &mut bits),
        "sample" => sample(device, &mut bits),
        "samples" => learner::samples(device, &mut bits),
        "sums" => learner::sums(device, &mut bits),
        "targets" => learner::targets(device, &mut bits),
        "wide" => learner::wide(device, &mut bits),
        name => environment(device, name, &mut bits),
    }
    bits.hash.finish()
}

#[test]
fn every_module_gives_the_recorded_bits_on_every_device() {
    let modules = catalog::twinned().map(|entry| entry.name).chain(OTHERS);
    let modules: Vec<&str> = modules.collect();
    for device in Device::for_tests() {
        let found: String = modules.iter().map(|module| format!("{module} {:016x}\n", run(&device, module))).collect();
        let others: Vec<_> = found.lines().zip(RECORDED.lines()).filter(|(found, recorded)| found != recorded).collect();
        assert!(found == RECORDED, "{device}: found and recorded: {others:?}; all, for tests/modules.txt:\n{found}");
    }
}

#[test]
#[ignore = "run by `cargo xtask ptx --counts`"]
fn sixteen_steps_of_1024_environments() {
    let device = Device::for_tests().pop().unwrap();
    for entry in catalog::twinned() {
        let (n, stream) = (1024, device.stream().unwrap());
        let mut envs = CudaVecEnv::new(&device, entry.name, n).unwrap();
        let Spaces { obs: observation_space, actions: action_space } = entry.spaces();
        let mut steps = DeviceSteps::zeros(&device, 16, n, &observation_space, &action_space).unwrap();
        for source in [ActionSource::Random, ActionSource::Given] {
            let rows = steps.rows(0..1);
            envs.reset_on(&stream, 1, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks)).unwrap();
            (0..16).for_each(|t| envs.step_on(&stream, 1, source, &steps.rows(t..t + 1)).unwrap());
        }
        stream.synchronize().unwrap();
    }
}
