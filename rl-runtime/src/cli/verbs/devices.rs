//! `rl devices`.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use rl_buffer::memory;
use rl_envs::{Isa, Pool};
use serde_json::json;

use crate::cli::bench;
use crate::config::budget::in_words;
use crate::report::resources::cpu;
use crate::{Error, print};

/// Bytes that are copied to measure the memory, unless there are fewer.
const COPIED: u64 = 1 << 30;

/// Prints the processor, the memory, and each device with a driver.
pub(crate) fn run(json: bool) -> Result<ExitCode, Error> {
    let cores = crate::thread::cores();
    let (name, isa) = (cpu(), Isa::best());
    if !json {
        print::out(&format!("{name}: {cores} cores, {}", format!("{isa:?}").to_lowercase()));
    }
    let pool = Pool::new(cores)?;
    let [one, all] = [bench::ceiling(isa, &Pool::default()), bench::ceiling(isa, &pool)];
    let available = memory::available();
    let copied = available.map_or(COPIED, |available| (available / 8).min(COPIED));
    let rate = copy_rate(copied as usize, &pool);
    if json {
        print::out(
            &json!({
                "event": "cpu", "name": name, "cores": cores, "isa": isa, "flops_one_thread": one, "flops": all,
                "copied_bytes": copied, "copy_bytes_per_s": rate, "available_bytes": available,
            })
            .to_string(),
        );
    } else {
        print::out(&format!("  multiply-adds: {:.0} GFLOP/s on one thread, {:.0} on all (measured)", 1e-9 * one, 1e-9 * all));
        print::out(&format!("  copies of {}: {}/s read and written (measured)", in_words(copied.into()), in_words(rate as u128)));
        print::out(&format!(
            "  memory: {} available",
            available.map_or("an unknown size".into(), |bytes| in_words(bytes.into()))
        ));
    }
    for ordinal in 0.. {
        match rl_cuda::Device::open(ordinal) {
            Ok(device) => {
                let (free, total) = device.memory()?;
                let sensors = device.sensors().map(|sensors| sensors.read());
                if json {
                    let reading = sensors.ok();
                    print::out(
                        &json!({
                            "event": "device", "ordinal": ordinal, "name": device.to_string(), "free_bytes": free, "total_bytes": total,
                            "utilization": reading.map(|reading| reading.utilization), "power_w": reading.map(|reading| reading.power_w),
                            "temperature_c": reading.map(|reading| reading.temperature_c),
                        })
                        .to_string(),
                    );
                } else {
                    let [free, total] = [free, total].map(|bytes| in_words(bytes as u128));
                    print::out(&format!("{device}: {free} free of {total}"));
                    print::out(&format!(
                        "  {}",
                        sensors.map_or_else(|error| error.to_string(), |reading| reading.texts().collect::<Vec<_>>().join(", "))
                    ));
                }
            }
            Err(rl_cuda::Error::NoSuchDevice { .. }) if ordinal > 0 => break,
            Err(error) if json => {
                print::out(&json!({"event": "no_device", "reason": error.to_string()}).to_string());
                break;
            }
            Err(error) => {
                print::out(&error.to_string());
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures bytes read and written per second while all threads copy `bytes` bytes.
fn copy_rate(bytes: usize, pool: &Pool) -> f64 {
    let each = bytes / 8 / pool.n_threads();
    let mut parts: Vec<_> = (0..pool.n_threads()).map(|_| (vec![1u64; each], vec![0u64; each])).collect();
    let copy = |(from, to): &mut (Vec<u64>, Vec<u64>)| {
        to.copy_from_slice(from);
        black_box(to);
    };
    pool.each(&mut parts, &copy); // the first pass makes the pages
    let begin = Instant::now();
    pool.each(&mut parts, &copy);
    (2 * 8 * each * pool.n_threads()) as f64 / begin.elapsed().as_secs_f64()
}
