//! Processor time, memory and threads of this process, and its GPU's sensors.
//!
//! Time and memory include those of worker processes. The first three, and the processor's name, are read from `/proc`, which
//! only Linux has; the sensors by NVML.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rl_cuda::{Reading, Sensors};

use crate::report::metrics::Row;

/// Interval between two measurements; rows in between repeat the last one.
///
/// Reading the files takes about 20 us, an iteration of a small run 300 us.
const EVERY: Duration = Duration::from_millis(500);

/// Clock ticks per second in `/proc`, on every processor that this project runs on.
const TICKS: f64 = 100.0;

/// Worker processes that are alive.
static WORKERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Worker process whose resources count as this process's until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(u32);

impl Counted {
    pub(crate) fn new(pid: u32) -> Self {
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
        Self(pid)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|pid| *pid != self.0);
    }
}

/// Resources of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resources {
    /// Processor seconds of all threads and workers so far, in ticks of 10 ms.
    pub(crate) cpu_s: f64,
    /// Seconds for which the calling thread has waited for a core.
    waited_s: f64,
    /// Resident memory in bytes, workers included.
    pub(crate) rss: u64,
    /// Number of threads.
    pub(crate) threads: u64,
}

impl Resources {
    /// Reads the resources; `None` if the system does not report them.
    pub(crate) fn read() -> Option<Self> {
        let [cpu_s, rss, threads] = of_process(Path::new("/proc/self"))?;
        let [workers_cpu_s, workers_rss] = workers();
        let waits = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let waited = waits.split(' ').nth(1).and_then(|nanos| nanos.parse::<f64>().ok());
        Some(Self {
            cpu_s: cpu_s + workers_cpu_s,
            waited_s: 1e-9 * waited.unwrap_or(f64::NAN),
            rss: (rss + workers_rss) as u64,
            threads: threads as u64,
        })
    }
}

/// Returns processor seconds, bytes of resident memory and threads of a process.
fn of_process(dir: &Path) -> Option<[f64; 3]> {
    let cpu_s = cpu_s(&fs::read_to_string(dir.join("stat")).ok()?)?;
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let of = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some([cpu_s, 1024.0 * of("VmRSS:")?, of("Threads:")?])
}

/// Returns processor seconds and resident memory of all workers' trees.
fn workers() -> [f64; 2] {
    let pids = WORKERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    of_trees(pids)
}

/// Returns processor seconds and resident memory of trees of processes.
///
/// Memory that several processes share counts for each of them. A process that has ended counts as zeros.
pub(crate) fn of_trees(mut pids: Vec<u32>) -> [f64; 2] {
    let mut all = [0.0; 2];
    while let Some(pid) = pids.pop() {
        let [cpu_s, rss, _] = of_process(Path::new(&format!("/proc/{pid}"))).unwrap_or_default();
        all = [all[0] + cpu_s, all[1] + rss];
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    all
}

/// Resident memory of all workers, in bytes.
pub(crate) fn workers_rss() -> u64 {
    workers()[1] as u64
}

/// Name of the processor, where the system reports it.
pub(crate) fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
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
    process: Option<[(&'static str, f64); 4]>,
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
            process: resources.map(|resources| columns([f64::NAN; 2], &resources)),
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
                // The time of a worker that has ended is no longer counted.
                let of = |now: f64, before: f64| (now - before).max(0.0) / at.elapsed().as_secs_f64();
                let waited = if now.waited_s.is_nan() { f64::NAN } else { of(now.waited_s, before.waited_s) };
                self.process = Some(columns([of(now.cpu_s, before.cpu_s), waited], &now));
            }
            self.gpu = self.sensors.as_ref().map(|sensors| gpu_columns(&sensors.read()));
            self.measured = (Instant::now(), now);
        }
        row.insert(self.process.into_iter().flatten().chain(self.device).chain(self.gpu.into_iter().flatten()));
    }
}

fn columns([cores, waited]: [f64; 2], Resources { rss, threads, .. }: &Resources) -> [(&'static str, f64); 4] {
    [
        ("system/cpu_cores", cores),
        ("system/cpu_waited", waited),
        ("system/rss_mb", *rss as f64 / 1e6),
        ("system/threads", *threads as f64),
    ]
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
    #[cfg(target_os = "linux")]
    use std::{
        io::Read as _,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn processor_time_is_user_and_system_time_of_programs_of_any_name() {
        // Fields 14 and 15 of proc(5): 250 and 50 ticks.
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 3 4 250 50 8 9 20 0 12 0 500 1000 600 1844";
        assert_eq!(cpu_s(stat), Some(3.0));
        assert_eq!(cpu_s("7 (a) S 1 7"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_worker_and_what_it_has_started_count_until_it_is_dropped() {
        // The shell starts two programs, and waits.
        let line = "head -c 40000000 /dev/zero | tail -c 40000000 > /dev/null & sleep 60 & echo started; wait";
        let mut shell = Command::new("sh").args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
        let mut started = [0; 8];
        shell.stdout.take().unwrap().read_exact(&mut started).unwrap();
        let own = Resources::read().unwrap().rss;
        let counted = Counted::new(shell.id());
        let all = workers()[1];
        let [_, alone, _] = of_process(Path::new(&format!("/proc/{}", shell.id()))).unwrap();
        assert!(all > alone && alone > 1e5, "{all} bytes, the shell's own included");
        assert!(Resources::read().unwrap().rss as f64 > own as f64 + 0.5 * all);
        drop(counted);
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
        Command::new("kill").args(children.split_whitespace()).status().unwrap();
        assert_eq!(of_trees(vec![shell.id()]), [0.0; 2]);
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
            assert_eq!(names[1..5], ["system/cpu_cores", "system/cpu_waited", "system/rss_mb", "system/threads"]);
            assert!(of("system/threads") >= Some(1.0) && of("system/rss_mb") > Some(1.0), "{row:?}");
        }
    }
}
