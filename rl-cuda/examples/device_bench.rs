//! What a device does, as one JSON object a line: `device_bench [SECONDS] [--emulated]`. Each measurement takes SECONDS (0.05).
//!
//! Steps of environments against their number and the block size, against work per step, per launch, as a graph and fused; the share of
//! the copy bandwidth; advantages, gathered batches, copies between host and device; and the bars that they are held against. The emulated
//! device, with few environments, shows that the program works.

use std::fmt::Write as _;

use rl_cuda::measure::{self, Mode};
use rl_cuda::{ActionSource, CudaVecEnv, Device, Error};

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let emulated = args.iter().any(|arg| arg == "--emulated");
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(0.05);
    let device = if emulated { Device::emulated()? } else { Device::open(0)? };
    let top = if emulated { 6 } else { 22 };
    let (free, total) = device.memory()?;
    line("device", &[("device", text(&device.to_string())), ("free_bytes", int(free)), ("total_bytes", int(total))]);

    let copy = measure::copy_bandwidth(&device, if emulated { 1 << 16 } else { 1 << 30 }, seconds)?;
    line("copy", &[("value", number(copy)), ("unit", text("bytes/s"))]);
    for entry in rl_envs::catalog::ENVS {
        let envs = CudaVecEnv::new(&device, entry.name, 1)?;
        if let Some(info) = envs.kernel_info(ActionSource::Random)? {
            let fields = [
                ("env", text(entry.name)),
                ("registers", info.registers.to_string()),
                ("local_bytes", info.local_bytes.to_string()),
                ("max_threads", info.max_threads.to_string()),
                ("suggested_block", info.suggested_block.to_string()),
            ];
            line("kernel", &fields);
        }
    }

    let mut block = CudaVecEnv::new(&device, "cartpole", 1)?.block();
    for power in 0..=top {
        for mode in [Mode::Launches, Mode::Graph] {
            let rates = measure::sweep_blocks(&device, "cartpole", 1 << power, mode, seconds)?;
            for (block, rate) in &rates {
                steps("cartpole", 1 << power, *block, mode, 1, *rate);
            }
            if mode == Mode::Launches && power == top.min(20) {
                block = measure::best_block(&rates).unwrap_or(block);
            }
        }
    }
    for power in [0, 4, 8, 10, 12, 14, 16, 18, 20].into_iter().filter(|power| *power <= top) {
        for repeat in (0..=8).map(|power| 1 << power) {
            for mode in Mode::ALL {
                let rate = measure::env_steps(&device, "cartpole", 1 << power, block, mode, repeat, seconds)?;
                steps("cartpole", 1 << power, block, mode, repeat, Some(rate));
            }
        }
    }
    for entry in rl_envs::catalog::ENVS {
        for power in [16, 20].map(|power: i32| power.min(top)) {
            for mode in Mode::ALL {
                let rate = measure::env_steps(&device, entry.name, 1 << power, block, mode, 1, seconds)?;
                steps(entry.name, 1 << power, block, mode, 1, Some(rate));
            }
        }
    }

    let (n, t) = (1 << top.min(16), 128);
    let gae = measure::gae_bandwidth(&device, t, n, seconds)?;
    line("gae", &[("value", number(gae)), ("unit", text("bytes/s")), ("steps", int(t)), ("envs", int(n)), share(gae, copy)]);
    let (capacity, batch) = if emulated { (1000, 65) } else { (1 << 24, 1 << 20) };
    let gather = measure::gather_bandwidth(&device, capacity, batch, seconds)?;
    let fields = [("value", number(gather)), ("unit", text("bytes/s")), ("capacity", int(capacity)), ("batch", int(batch))];
    line("gather", &[&fields[..], &[share(gather, copy)]].concat());
    for power in [12, 16, 20, 24, 28].into_iter().filter(|power| !emulated || *power < 20) {
        let copies = measure::host_copies(&device, 1 << power, seconds)?;
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

    let n = 1 << top.min(20);
    let rate = |mode| measure::env_steps(&device, "cartpole", n, block, mode, 1, 5.0 * seconds);
    let bytes = measure::step_bytes(&CudaVecEnv::new(&device, "cartpole", 1)?) as f64;
    bar("one-launch CartPole, share of the copy bandwidth", rate(Mode::Launches)? * bytes / copy, 0.6);
    bar("graph-replayed CartPole with random actions, env steps/s", rate(Mode::Graph)?, 1e9);
    bar("fused CartPole with random actions, env steps/s", rate(Mode::Fused)?, 1e10);
    Ok(())
}

fn steps(env: &str, envs: usize, block: u32, mode: Mode, repeat: u32, rate: Option<f64>) {
    let fields = [
        ("env", text(env)),
        ("envs", int(envs)),
        ("block", block.to_string()),
        ("mode", text(mode.name())),
        ("repeat", repeat.to_string()),
        ("value", rate.map_or("null".into(), number)),
        ("unit", text("env_steps/s")),
        ("seconds_per_step", rate.map_or("null".into(), |rate| number(envs as f64 / rate))),
    ];
    line("steps", &fields);
}

fn bar(what: &str, value: f64, least: f64) {
    line(
        "bar",
        &[("what", text(what)), ("value", number(value)), ("least", number(least)), ("met", (value >= least).to_string())],
    );
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
    format!("{number:e}")
}

fn line(name: &str, fields: &[(&str, String)]) {
    let mut line = format!("{{\"name\": {name:?}");
    for (key, value) in fields {
        let _ = write!(line, ", {key:?}: {value}");
    }
    println!("{line}}}");
}
