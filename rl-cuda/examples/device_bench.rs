//! Measures a device: `device_bench [SECONDS] [--emulated]`.
//!
//! Prints one JSON object per line. Each measurement takes SECONDS (default 0.05). Measured are environment steps by number of
//! environments, block size and work per step, as launches, graph and fused; the share of the copy bandwidth; advantages,
//! gathered batches, and copies between host and device; and the bars to meet. The emulated device, with few environments, shows
//! that the program works.

use std::fmt::Write as _;
use std::process::ExitCode;

use rl_cuda::measure::{self, Case, Mode};
use rl_cuda::{ActionSource, CudaVecEnv, Device, Error};
use rl_envs::catalog::Entry;

fn main() -> Result<ExitCode, Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let emulated = args.iter().any(|arg| arg == "--emulated");
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(0.05);
    let device = if emulated { Device::emulated()? } else { Device::open(0)? };
    if device.is_stand_in() {
        eprintln!("{device}: its speed means nothing");
        return Ok(ExitCode::FAILURE);
    }
    let top = if emulated { 6 } else { 22 };
    let (free, total) = device.memory()?;
    line("device", &[("device", text(&device.to_string())), ("free_bytes", int(free)), ("total_bytes", int(total))]);
    let cartpole = rl_envs::catalog::find("cartpole")?;
    let mut bench = Bench { device, cartpole, seconds, failed: 0 };

    let copy_bytes = if emulated { 1 << 16 } else { 1 << 30 };
    // The first measurement wakes the device up.
    let copies = [1.0, 5.0].map(|times| measure::copy_bandwidth(&bench.device, copy_bytes, times * seconds));
    let copy = bench.noted("copy", copies.into_iter().last().unwrap_or(Ok(0.0)));
    line("copy", &[("value", number(copy)), ("unit", text("bytes/s"))]);
    for entry in rl_envs::catalog::twinned() {
        let Some(info) = CudaVecEnv::of_entry(&bench.device, entry, 1)?.kernel_info(ActionSource::Random)? else { continue };
        let fields = [
            ("env", text(entry.name)),
            ("registers", info.registers.to_string()),
            ("local_bytes", info.local_bytes.to_string()),
            ("max_threads", info.max_threads.to_string()),
            ("suggested_block", info.suggested_block.to_string()),
        ];
        line("kernel", &fields);
    }

    // The bars come first, so that a failure further down cannot lose them.
    let n = 1 << top.min(20);
    let block = bench.sweep(n, Mode::Launches).unwrap_or(128);
    let long = |mode, source| {
        let case = Case { env: cartpole, n_envs: n, block, mode, source, repeat: 1 };
        measure::env_steps(&bench.device, &case, 5.0 * seconds)
    };
    let launches = [ActionSource::Given, ActionSource::Random].map(|source| long(Mode::Launches, source));
    let [graph, fused] = [Mode::Graph, Mode::Fused].map(|mode| long(mode, ActionSource::Random));
    let copy = copy.max(bench.noted("copy", measure::copy_bandwidth(&bench.device, copy_bytes, 5.0 * seconds)));
    let bytes = measure::step_bytes(&CudaVecEnv::of_entry(&bench.device, cartpole, 1)?) as f64;
    let [given, random] = launches.map(|rate| bench.noted("launches", rate) * bytes / copy);
    bar("one-launch CartPole, given actions, share of the copy bandwidth", given, Some(0.6));
    bar("one-launch CartPole, actions drawn by the kernel, share of the copy bandwidth", random, None);
    bar("graph-replayed CartPole with random actions, env steps/s", bench.noted("graph", graph), Some(1e9));
    bar("fused CartPole with random actions, env steps/s", bench.noted("fused", fused), Some(1e10));

    for power in 0..=top {
        for mode in [Mode::Launches, Mode::Graph] {
            if (1 << power, mode) != (n, Mode::Launches) {
                bench.sweep(1 << power, mode);
            }
        }
    }
    for power in [0, 4, 8, 10, 12, 14, 16, 18, 20].into_iter().filter(|power| *power <= top) {
        for repeat in (0..=8).map(|power| 1 << power) {
            Mode::ALL.into_iter().for_each(|mode| bench.steps(cartpole, 1 << power, block, mode, repeat));
        }
    }
    for entry in rl_envs::catalog::twinned() {
        for power in [16, 20].map(|power: i32| power.min(top)) {
            Mode::ALL.into_iter().for_each(|mode| bench.steps(entry, 1 << power, 128, mode, 1));
        }
    }

    for power in [16, 18, 20].map(|power: i32| power.min(top)) {
        let (n, t) = (1 << power, 128);
        let gae = bench.noted("gae", measure::gae_bandwidth(&bench.device, t, n, seconds));
        line("gae", &[("value", number(gae)), ("unit", text("bytes/s")), ("steps", int(t)), ("envs", int(n)), share(gae, copy)]);
    }
    let (capacity, batch) = if emulated { (1000, 65) } else { (1 << 24, 1 << 20) };
    let gather = bench.noted("gather", measure::gather_bandwidth(&bench.device, capacity, batch, seconds));
    let fields = [("value", number(gather)), ("unit", text("bytes/s")), ("capacity", int(capacity)), ("batch", int(batch))];
    line("gather", &[&fields[..], &[share(gather, copy)]].concat());
    for power in [12, 16, 20, 24, 28].into_iter().filter(|power| !emulated || *power < 20) {
        let copies = match measure::host_copies(&bench.device, 1 << power, seconds) {
            Ok(copies) => copies,
            Err(error) => {
                bench.failure("host_copies", &error);
                continue;
            }
        };
        let fields = [
            ("bytes", int(1 << power)),
            ("unit", text("bytes/s")),
            ("to_device_pageable", number(copies.to_device_pageable)),
            ("to_device_pinned", number(copies.to_device_pinned)),
            ("to_device_combined", number(copies.to_device_combined)),
            ("from_device_pageable", number(copies.from_device_pageable)),
            ("from_device_pinned", number(copies.from_device_pinned)),
            ("both_in_turn", number(copies.both_in_turn)),
            ("both_overlapped", number(copies.both_overlapped)),
        ];
        line("host_copies", &fields);
    }
    Ok(if bench.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measurements, any of which may fail without ending the others.
struct Bench {
    device: Device,
    cartpole: &'static Entry,
    seconds: f64,
    failed: usize,
}

impl Bench {
    fn failure(&mut self, what: &str, error: &Error) {
        self.failed += 1;
        line("failed", &[("what", text(what)), ("error", text(&error.to_string()))]);
    }

    /// Returns the measured value, or NaN if the measurement failed.
    fn noted(&mut self, what: &str, value: Result<f64, Error>) -> f64 {
        value.unwrap_or_else(|error| {
            self.failure(what, &error);
            f64::NAN
        })
    }

    /// Measures every block size for `envs` CartPoles and returns the best.
    fn sweep(&mut self, envs: usize, mode: Mode) -> Option<u32> {
        match measure::sweep_blocks(&self.device, self.cartpole, envs, mode, self.seconds) {
            Ok(rates) => {
                rates.iter().for_each(|(block, rate)| self.row(self.cartpole, envs, *block, mode, 1, *rate));
                measure::best_block(&rates)
            }
            Err(error) => {
                self.failure("sweep", &error);
                None
            }
        }
    }

    fn steps(&mut self, env: &Entry, envs: usize, block: u32, mode: Mode, repeat: u32) {
        let case = Case { env, n_envs: envs, block, mode, source: ActionSource::Random, repeat };
        let rate = self.noted(env.name, measure::env_steps(&self.device, &case, self.seconds));
        self.row(env, envs, block, mode, repeat, Some(rate));
    }

    fn row(&self, env: &Entry, envs: usize, block: u32, mode: Mode, repeat: u32, rate: Option<f64>) {
        let n_steps = CudaVecEnv::of_entry(&self.device, env, envs).and_then(|envs| measure::n_steps(&envs)).unwrap_or(0);
        let fields = [
            ("env", text(env.name)),
            ("envs", int(envs)),
            ("block", block.to_string()),
            ("mode", text(mode.name())),
            ("repeat", repeat.to_string()),
            ("n_steps", int(n_steps)),
            ("value", rate.map_or("null".into(), number)),
            ("unit", text("env_steps/s")),
            ("seconds_per_step", rate.map_or("null".into(), |rate| number(envs as f64 / rate))),
        ];
        line("steps", &fields);
    }
}

fn bar(what: &str, value: f64, least: Option<f64>) {
    let (least, met) = least.map_or(("null".into(), "null".into()), |least| (number(least), (value >= least).to_string()));
    line("bar", &[("what", text(what)), ("value", number(value)), ("least", least), ("met", met)]);
}

fn share(value: f64, of: f64) -> (&'static str, String) {
    ("share_of_copy", number(value / of))
}

fn text(text: &str) -> String {
    format!("{text:?}")
}

fn int(number: usize) -> String {
    number.to_string()
}

fn number(number: f64) -> String {
    if number.is_finite() { format!("{number:e}") } else { "null".into() }
}

fn line(name: &str, fields: &[(&str, String)]) {
    let mut line = format!("{{\"name\": {name:?}");
    for (key, value) in fields {
        let _ = write!(line, ", {key:?}: {value}");
    }
    println!("{line}}}");
}
