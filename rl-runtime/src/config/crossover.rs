//! Sizes of training at which a device begins to pay, measured and kept in a file.
//!
//! `rl bench crossover` writes the file, one for each device, in the user's cache directory; `device = auto` reads it. Speeds
//! depend on both sides, so a measurement counts only on the machine that made it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::file::{MAX_FILE, read_own};
use crate::print::quoted;
use crate::report::resources::cpu;

/// Version of the file; files of other versions are ignored.
const VERSION: u32 = 2;

/// Speed relative to the CPU from which a device pays.
///
/// Repeated measurements differ by a few percent.
pub(crate) const PAYS: f64 = 1.1;

/// Command that measures.
const COMMAND: &str = "rl bench crossover";

/// Speeds of training on the CPU and on a device, by size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crossover {
    version: u32,
    /// The driver's name of the device.
    device: String,
    /// Processor of the machine, and its cores.
    cpu: (String, usize),
    /// Threads of both sides.
    threads: usize,
    points: Vec<CrossoverPoint>,
}

/// Speeds at one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CrossoverPoint {
    /// Parameters of the networks, environments, and samples of a minibatch.
    pub(crate) size: [usize; 3],
    /// Env steps per second on the CPU.
    pub(crate) cpu: f64,
    /// Env steps per second on the device.
    pub(crate) device: f64,
}

impl CrossoverPoint {
    /// Returns the speed of the device, divided by the CPU's.
    pub(crate) fn ratio(&self) -> f64 {
        self.device / self.cpu
    }

    fn is_possible(&self) -> bool {
        self.size.iter().all(|size| *size > 0) && [self.cpu, self.device].iter().all(|rate| rate.is_finite() && *rate > 0.0)
    }
}

/// Processor and cores of this machine.
fn machine() -> (String, usize) {
    (cpu(), crate::thread::cores())
}

/// Returns the program's directory within the user's cache directory.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    // The specification of XDG_CACHE_HOME has programs ignore relative paths.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("rl"))
}

/// Returns the path of the file of a device.
fn path(device: &str) -> Option<PathBuf> {
    let name: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Some(cache_dir()?.join(format!("crossover-{name}.json")))
}

/// Reads the measurement of a device; the error says why there is none.
pub(crate) fn load(device: &str) -> Result<Crossover, String> {
    let missing = || format!("no measurement of this GPU; {COMMAND} makes one");
    let path = path(device).ok_or_else(missing)?;
    Crossover::read(&path, device).unwrap_or_else(|| Err(missing()))
}

impl Crossover {
    /// Creates the measurement of a device on this machine.
    #[cfg(feature = "cli")]
    pub(crate) fn new(device: &str, threads: usize, points: Vec<CrossoverPoint>) -> Self {
        Self { version: VERSION, device: device.into(), cpu: machine(), threads, points }
    }

    /// Reads the file of a device; `None` if there is none.
    fn read(path: &Path, device: &str) -> Option<Result<Self, String>> {
        let text = match read_own(path, MAX_FILE) {
            Err(Error::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => return None,
            text => text,
        };
        let useless = |what: &str| format!("the measurement in {} is {what}; {COMMAND} replaces it", quoted(path));
        let Ok(text) = text else { return Some(Err(useless("unreadable"))) };
        let version = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|all| all.get("version")?.as_u64());
        Some(match (version, serde_json::from_str::<Self>(&text)) {
            (Some(version), _) if version != u64::from(VERSION) => Err(useless("of another version of rl")),
            (_, Ok(found)) if found.device != device || found.cpu != machine() => Err(useless("another machine's")),
            (_, Ok(found)) if !found.points.is_empty() && found.points.iter().all(CrossoverPoint::is_possible) => Ok(found),
            _ => Err(useless("damaged")),
        })
    }

    /// Writes the file of the device, complete or not at all, and returns its path.
    ///
    /// # Errors
    /// [`Error::Config`] without a cache directory; [`Error::Io`].
    #[cfg(feature = "cli")]
    pub(crate) fn save(&self) -> Result<PathBuf, Error> {
        let path = path(&self.device)
            .ok_or_else(|| Error::config("there is no cache directory for the measurement; set XDG_CACHE_HOME or HOME"))?;
        self.write(&path)?;
        Ok(path)
    }

    #[cfg(feature = "cli")]
    fn write(&self, path: &Path) -> Result<(), Error> {
        let dir = path.parent().unwrap_or(path);
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let text = serde_json::to_string_pretty(self).expect("texts and numbers");
        crate::file::write_own(path, text.as_bytes())
    }

    /// Returns the speed of the device for a run, as a multiple of the CPU's.
    ///
    /// Uses the nearest measured size that is no larger than the run's in any dimension; `None` without one.
    pub(crate) fn ratio(&self, size: [usize; 3]) -> Option<f64> {
        let distance = |point: &CrossoverPoint| -> f64 {
            size.iter().zip(point.size).map(|(run, measured)| (*run as f64 / measured as f64).ln()).sum()
        };
        let below = self.points.iter().filter(|point| point.size.iter().zip(size).all(|(measured, run)| *measured <= run));
        below.min_by(|a, b| distance(a).total_cmp(&distance(b))).map(CrossoverPoint::ratio)
    }

    /// Says how much the device pays for a run; the error is the reason for the CPU.
    pub(crate) fn verdict(&self, size: [usize; 3], threads: usize) -> Result<String, String> {
        if threads != self.threads {
            return Err(format!(
                "the GPU was measured beside {} threads; {COMMAND} --threads {threads} measures again",
                self.threads
            ));
        }
        let ratio = self.ratio(size).ok_or("the run is smaller than all that was measured")?;
        let text = format!("measured {ratio:.2} times as fast as the CPU");
        if ratio >= PAYS { Ok(text) } else { Err(format!("the GPU was {text}")) }
    }

    /// Says whether the other device would help a run.
    ///
    /// `None` if no size near the run's was measured, or with another number of threads, or if the run is on the GPU and that
    /// is the faster one.
    #[cfg(feature = "cli")]
    pub(crate) fn advice(&self, size: [usize; 3], threads: usize, on_gpu: bool) -> Option<String> {
        let ratio = self.ratio(size).filter(|_| threads == self.threads)?;
        let measured = format!("was measured {ratio:.2} times as fast as the CPU");
        match on_gpu {
            false if ratio >= PAYS => Some(format!("the GPU {measured}: try --device cuda")),
            false => Some(format!("the GPU would hardly help: it {measured}")),
            true if ratio < 1.0 => Some(format!("the GPU {measured}: try --device cpu")),
            true => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn point(size: [usize; 3], cpu: f64, device: f64) -> CrossoverPoint {
        CrossoverPoint { size, cpu, device }
    }

    fn table() -> Crossover {
        let points = vec![
            point([9_000, 8, 256], 5e5, 5e4),
            point([9_000, 4096, 131_072], 1e6, 8e6),
            point([2_000_000, 8, 256], 1e3, 9e2),
            point([2_000_000, 4096, 131_072], 2e3, 1e5),
        ];
        Crossover::new("a GPU", 2, points)
    }

    #[test]
    fn the_nearest_smaller_size_decides() {
        let (pays, does_not) = (
            |size, ratio: &str| assert_eq!(table().verdict(size, 2), Ok(format!("measured {ratio} times as fast as the CPU"))),
            |size, why: &str| assert_eq!(table().verdict(size, 2), Err(why.into())),
        );
        pays([9_000, 4096, 131_072], "8.00");
        pays([2_000_000, 4096, 131_072], "50.00");
        pays([3_000_000, 100_000, 1 << 20], "50.00");
        pays([1_999_999, 4096, 131_072], "8.00");
        does_not([9_000, 8, 256], "the GPU was measured 0.10 times as fast as the CPU");
        // Large networks on few environments are not near the point of many.
        does_not([2_000_000, 4095, 131_072], "the GPU was measured 0.90 times as fast as the CPU");
        does_not([2_000_000, 4096, 131_071], "the GPU was measured 0.90 times as fast as the CPU");
        for smaller in [[8_999, 4096, 131_072], [9_000, 7, 131_072], [9_000, 8, 255]] {
            does_not(smaller, "the run is smaller than all that was measured");
        }
        let other = table().verdict([9_000, 4096, 131_072], 3).unwrap_err();
        assert_eq!(other, "the GPU was measured beside 2 threads; rl bench crossover --threads 3 measures again");
        assert_eq!(table().advice([9_000, 4096, 131_072], 3, false), None);
    }

    #[test]
    fn advice_names_the_faster_device_and_never_the_runs_own() {
        let of = |ratio: f64, on_gpu| {
            Crossover::new("a GPU", 2, vec![point([9, 9, 9], 1e3, 1e3 * ratio)]).advice([9, 9, 9], 2, on_gpu)
        };
        assert!(of(8.0, false).unwrap().ends_with("8.00 times as fast as the CPU: try --device cuda"));
        assert!(of(0.4, false).unwrap().starts_with("the GPU would hardly help: it was measured 0.40"));
        assert!(of(0.4, true).unwrap().ends_with("0.40 times as fast as the CPU: try --device cpu"));
        assert_eq!((of(8.0, true), of(1.05, true)), (None, None));
        assert_eq!(table().advice([1, 1, 1], 2, false), None, "smaller than all that was measured");
    }

    #[test]
    fn a_device_that_is_hardly_faster_does_not_pay() {
        let of = |device| Crossover::new("a GPU", 2, vec![point([1, 1, 1], 1e3, device)]).verdict([1, 1, 1], 2).is_ok();
        assert_eq!([of(1000.0), of(1099.0), of(1100.0)], [false, false, true]);
    }

    #[test]
    fn a_file_survives_and_a_damaged_or_foreign_one_is_no_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rl/crossover.json");
        let why = |path: &Path| Crossover::read(path, "a GPU").map(|found| found.unwrap_err());
        assert_eq!(why(&path), None, "no file");
        table().write(&path).unwrap();
        assert_eq!(Crossover::read(&path, "a GPU"), Some(Ok(table())));
        let text = fs::read_to_string(&path).unwrap();
        let damaged = |text: &str, expected: &str| {
            fs::write(&path, text).unwrap();
            let why = why(&path).unwrap();
            assert!(why.contains(expected) && why.ends_with("; rl bench crossover replaces it"), "{why}: {text}");
        };
        for len in 0..text.len() {
            damaged(&text[..len], "damaged");
        }
        damaged(&text.replace("\"version\": 2", "\"version\": 1"), "of another version");
        damaged("{\"version\": 1, \"sizes\": []}", "of another version");
        damaged(&text.replace("a GPU", "another GPU"), "another machine's");
        damaged(&text.replace(&machine().0, "another CPU"), "another machine's");
        damaged(&text.replacen("500000.0", "0.0", 1), "damaged");
        damaged(&text.replacen("500000.0", "-1.0", 1), "damaged");
        damaged(&text.replacen("500000.0", "1e999", 1), "damaged");
        damaged(&text.replacen("\"size\"", "\"sizes\"", 1), "damaged");
        fs::write(&path, [0xff; 4]).unwrap();
        assert!(why(&path).unwrap().contains("unreadable"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(why(&path).unwrap().contains("unreadable"));
    }
}
