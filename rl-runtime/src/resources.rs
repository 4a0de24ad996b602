//! Processor time, memory and threads of this process, and its GPU's sensors.
//!
//! The first three are read from `/proc`, which only Linux has; the sensors by NVML.

use std::fs;
use std::time::{Duration, Instant};

use rl_cuda::{Reading, Sensors};

use crate::metrics::Row;

/// Interval between two measurements; rows in between repeat the last one.
///
/// Reading the files takes about 20 us, an iteration of a small run 300 us.
const EVERY: Duration = Duration::from_millis(500);

/// Clock ticks per second in `/proc`, on every processor that this project runs on.
const TICKS: f64 = 100.0;

/// Resources of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resources {
    /// Processor seconds of all threads so far, in ticks of 10 ms.
    pub(crate) cpu_s: f64,
    /// Resident memory in bytes.
    pub(crate) rss: u64,
    /// Number of threads.
    pub(crate) threads: u64,
}

impl Resources {
    /// Reads the resources; `None` if the system does not report them.
    pub(crate) fn read() -> Option<Self> {
        let (cpu_s, status) =
            (cpu_s(&fs::read_to_string("/proc/self/stat").ok()?)?, fs::read_to_string("/proc/self/status").ok()?);
        let of = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self { cpu_s, rss: 1024 * of("VmRSS:")?, threads: of("Threads:")? })
    }
}

/// Returns the processor seconds in the text of a file `stat`.
fn cpu_s(stat: &str) -> Option<f64> {
    // The name of the program may hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// Processor time of each thread of this process.
#[cfg(feature = "cli")]
#[derive(Debug, Default)]
pub(crate) struct ThreadMeter {
    measured: Option<Instant>,
    /// Thread, name, and processor seconds.
    threads: Vec<(std::ffi::OsString, String, f64)>,
}

#[cfg(feature = "cli")]
impl ThreadMeter {
    /// Returns each thread's name and share of a core, the busiest first.
    ///
    /// Shares are those since the last measurement.
    ///
    /// `None` if the last measurement is less than a second old.
    pub(crate) fn busiest(&mut self) -> Option<Vec<(String, f64)>> {
        let elapsed = self.measured.map(|measured| measured.elapsed());
        if elapsed.is_some_and(|elapsed| elapsed < 2 * EVERY) {
            return None;
        }
        let read = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let name = String::from(stat.split_once('(')?.1.rsplit_once(')')?.0);
            Some((entry.file_name(), name, cpu_s(&stat)?))
        };
        let threads: Vec<_> = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(read).collect();
        let mut busiest: Vec<(String, f64)> = Vec::new();
        for (id, name, cpu_s) in &threads {
            let before = self.threads.iter().find(|(other, ..)| other == id).map_or(0.0, |(.., before)| *before);
            if let Some(elapsed) = elapsed {
                busiest.push((name.clone(), (cpu_s - before) / elapsed.as_secs_f64()));
            }
        }
        busiest.sort_by(|a, b| b.1.total_cmp(&a.1));
        (self.measured, self.threads) = (Some(Instant::now()), threads);
        Some(busiest)
    }
}

/// Columns of `metrics.csv` about this process and its GPU.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Moment of the last measurement, and this process's resources then.
    measured: (Instant, Option<Resources>),
    process: Option<[(&'static str, f64); 3]>,
    /// Memory taken on a device that learns.
    device: Option<(&'static str, f64)>,
    sensors: Option<Sensors>,
    gpu: Option<[(&'static str, f64); 4]>,
}

impl Meter {
    /// Begins to measure.
    ///
    /// `device` is the memory taken on a device that learns, in bytes; `sensors` are those of a GPU that learns.
    pub(crate) fn new(device: Option<usize>, sensors: Option<Sensors>) -> Self {
        let resources = Resources::read();
        Self {
            measured: (Instant::now(), resources),
            process: resources.map(|resources| columns(f64::NAN, &resources)),
            device: device.map(|bytes| ("system/device_mb", bytes as f64 / 1e6)),
            gpu: sensors.as_ref().map(|sensors| gpu_columns(&sensors.read())),
            sensors,
        }
    }

    /// Inserts the columns into a row, before the last two.
    pub(crate) fn extend(&mut self, row: &mut Row) {
        let (at, before) = self.measured;
        if at.elapsed() >= EVERY {
            let now = Resources::read();
            if let (Some(before), Some(now)) = (before, now) {
                let cores = (now.cpu_s - before.cpu_s) / at.elapsed().as_secs_f64();
                self.process = Some(columns(cores, &now));
            }
            self.gpu = self.sensors.as_ref().map(|sensors| gpu_columns(&sensors.read()));
            self.measured = (Instant::now(), now);
        }
        row.insert(self.process.into_iter().flatten().chain(self.device).chain(self.gpu.into_iter().flatten()));
    }
}

fn columns(cores: f64, Resources { rss, threads, .. }: &Resources) -> [(&'static str, f64); 3] {
    [("system/cpu_cores", cores), ("system/rss_mb", *rss as f64 / 1e6), ("system/threads", *threads as f64)]
}

fn gpu_columns(reading: &Reading) -> [(&'static str, f64); 4] {
    let Reading { utilization, memory_used, power_w, temperature_c } = *reading;
    [
        ("system/gpu_percent", 100.0 * utilization),
        ("system/gpu_memory_mb", memory_used / 1e6),
        ("system/gpu_power_w", power_w),
        ("system/gpu_temperature_c", temperature_c),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_user_and_system_time_of_programs_of_any_name() {
        // Fields 14 and 15 of proc(5): 250 and 50 ticks.
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 3 4 250 50 8 9 20 0 12 0 500 1000 600 1844";
        assert_eq!(cpu_s(stat), Some(3.0));
        assert_eq!(cpu_s("7 (a) S 1 7"), None);
    }

    #[test]
    fn rows_have_the_columns_before_their_last_two() {
        let mut meter = Meter::new(Some(3_000_000), None);
        let mut row = Row { values: vec![("first", 0.0), ("time/time_elapsed", 0.0), ("time/fps", 0.0)] };
        meter.extend(&mut row);
        let names: Vec<&str> = row.values.iter().map(|(name, _)| *name).collect();
        let of = |name: &str| row.values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        assert_eq!((names[0], names[names.len() - 1], of("system/device_mb")), ("first", "time/fps", Some(3.0)));
        if cfg!(target_os = "linux") {
            assert_eq!(names[1..4], ["system/cpu_cores", "system/rss_mb", "system/threads"]);
            assert!(of("system/threads") >= Some(1.0) && of("system/rss_mb") > Some(1.0), "{row:?}");
        }
    }
}
