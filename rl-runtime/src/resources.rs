//! Processor time, memory and threads of this process, read from `/proc`.
//!
//! Only Linux has these files; elsewhere there are no values.

use std::fs;
use std::time::{Duration, Instant};

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

/// Columns of `metrics.csv` about this process.
#[derive(Debug)]
pub(crate) struct Meter {
    measured: Option<(Instant, Resources)>,
    columns: Vec<(&'static str, f64)>,
}

impl Meter {
    /// Begins to measure.
    ///
    /// `device` is the memory taken on a device that learns, in bytes.
    pub(crate) fn new(device: Option<usize>) -> Self {
        let measured = Resources::read().map(|resources| (Instant::now(), resources));
        let columns = measured.map(|(_, resources)| columns(f64::NAN, &resources));
        let device = device.map(|bytes| ("system/device_mb", bytes as f64 / 1e6));
        Self { measured, columns: columns.into_iter().flatten().chain(device).collect() }
    }

    /// Inserts the columns into a row, before the last two.
    pub(crate) fn extend(&mut self, row: &mut Row) {
        if let Some((at, before)) = self.measured.filter(|(at, _)| at.elapsed() >= EVERY)
            && let Some(now) = Resources::read()
        {
            let cores = (now.cpu_s - before.cpu_s) / at.elapsed().as_secs_f64();
            self.measured = Some((Instant::now(), now));
            self.columns.splice(..3, columns(cores, &now));
        }
        row.insert(self.columns.iter().copied());
    }
}

fn columns(cores: f64, Resources { rss, threads, .. }: &Resources) -> [(&'static str, f64); 3] {
    [("system/cpu_cores", cores), ("system/rss_mb", *rss as f64 / 1e6), ("system/threads", *threads as f64)]
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
        let mut meter = Meter::new(Some(3_000_000));
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
