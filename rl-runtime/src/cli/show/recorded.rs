//! Metrics of a run, read back from its `metrics.csv`.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use crate::file::MAX_FILE;
use crate::file::{own, read_own, refused};
use crate::{Config, Error};

/// Reads the settings of the run in the directory `run`.
///
/// # Errors
/// [`Error::Io`] if they cannot be read, [`Error::Config`] if they are damaged.
pub(crate) fn settings(run: &Path) -> Result<Config, Error> {
    let path = run.join("config.toml");
    let text = read_own(&path, MAX_FILE)?;
    Config::from_toml(&text, &path.display().to_string())
}

/// Largest part of a table that is read at a time, in bytes.
///
/// A table of more than 1,000,000 rows of `metrics.csv`; a file of another's may be as large as its disk.
pub(crate) const MAX_TABLE: u64 = 1 << 29;
/// Maximum number of columns; `metrics.csv` has fewer than 100.
const MAX_COLUMNS: usize = 4096;

/// Rows of a `metrics.csv`, which may still grow.
#[derive(Debug)]
pub(crate) struct Recorded {
    path: PathBuf,
    /// Size of the rows that were read, in bytes.
    end: u64,
    /// Size of those before the last one.
    before_last: u64,
    names: Vec<String>,
    rows: Vec<Vec<f64>>,
}

impl Recorded {
    /// Reads the metrics of the run in the directory `run`.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it has none, [`Error::Io`] if they cannot be read.
    pub(crate) fn open(run: &Path) -> Result<Self, Error> {
        let path = run.join("metrics.csv");
        Self::of(path.clone()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                let why = "has no metrics.csv; name the directory of a run, such as runs/cartpole-ppo-seed0-1".into();
                Error::RunDir { path: run.into(), why }
            }
            _ => refused(&path, "")(error),
        })
    }

    /// Reads the rows of a file with the format of `metrics.csv`.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn of(path: PathBuf) -> io::Result<Self> {
        let mut recorded = Self { path, end: 0, before_last: 0, names: Vec::new(), rows: Vec::new() };
        recorded.refresh()?;
        Ok(recorded)
    }

    /// Forgets all rows but the last `n`.
    pub(crate) fn forget_all_but_last(&mut self, n: usize) {
        self.rows.drain(..self.rows.len().saturating_sub(n));
    }

    /// Reads the rows that were written since.
    ///
    /// Rows that a resumed run has removed are forgotten. A row that was written again, with its evaluation, replaces the old
    /// one.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        let mut file = own(&self.path, |options| options.read(true))?;
        let size = file.metadata()?.len();
        if size < self.end {
            (self.end, self.before_last, self.names, self.rows) = (0, 0, Vec::new(), Vec::new());
        }
        if self.end > 0 {
            let mut last = [0];
            file.seek(SeekFrom::Start(self.end - 1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                self.end = self.before_last;
                self.rows.pop();
            }
        }
        if size - self.end > MAX_TABLE {
            return Err(io::Error::other(format!("is larger than {MAX_TABLE} bytes; a larger log_interval writes fewer rows")));
        }
        file.seek(SeekFrom::Start(self.end))?;
        let mut bytes = Vec::new();
        file.take(MAX_TABLE).read_to_end(&mut bytes)?;
        // A last row without its end is still being written.
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
        if whole > 0 {
            let before = bytes[..whole - 1].iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
            self.before_last = self.end + before as u64;
        }
        self.end += whole as u64;
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            if self.names.is_empty() {
                self.names = line.split(',').take(MAX_COLUMNS).map(String::from).collect();
            } else {
                let values: Vec<f64> = line.split(',').map(|value| value.parse().unwrap_or(f64::NAN)).collect();
                // Part of a row, where a resumed run has cut the file and written on.
                if values.len() == self.names.len() {
                    self.rows.push(values);
                }
            }
        }
        Ok(())
    }

    /// Passes each row as a function from columns to values, and forgets it.
    pub(crate) fn take(&mut self, mut row: impl FnMut(&dyn Fn(&str) -> f64)) {
        for values in self.rows.drain(..) {
            row(&|name| {
                self.names.iter().position(|other| other == name).and_then(|at| values.get(at)).copied().unwrap_or(f64::NAN)
            });
        }
    }

    /// Passes names and values of each row, without empty values, and forgets it.
    pub(crate) fn take_named(&mut self, mut row: impl FnMut(&mut dyn Iterator<Item = (&str, f64)>)) {
        for values in self.rows.drain(..) {
            row(&mut self.names.iter().map(String::as_str).zip(values).filter(|(_, value)| !value.is_nan()));
        }
    }

    /// Returns the values of a column, NaN where they are empty.
    ///
    /// A column that does not exist is empty.
    pub(crate) fn column(&self, name: &str) -> impl Iterator<Item = f64> {
        let at = self.names.iter().position(|other| other == name);
        self.rows.iter().map(move |row| at.and_then(|at| row.get(at)).copied().unwrap_or(f64::NAN))
    }

    /// Returns a column over another one, without empty values.
    pub(crate) fn curve(&self, x: &str, y: &str) -> Vec<(f64, f64)> {
        self.column(x).zip(self.column(y)).filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rows_are_read_once_complete_and_again_after_a_resumption() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Recorded::open(dir.path()).unwrap_err().to_string().contains("has no metrics.csv"));
        let path = dir.path().join("metrics.csv");
        fs::write(&path, "a,b\n1,2\n2,\n3,4").unwrap();
        let mut recorded = Recorded::open(dir.path()).unwrap();
        assert_eq!((recorded.curve("a", "a"), recorded.curve("a", "b")), (vec![(1.0, 1.0), (2.0, 2.0)], vec![(1.0, 2.0)]));
        assert!(recorded.column("c").all(f64::is_nan));
        fs::write(&path, "a,b\n1,2\n2,\n3,45\n").unwrap();
        recorded.refresh().unwrap();
        assert_eq!(recorded.curve("a", "b"), [(1.0, 2.0), (3.0, 45.0)]);
        fs::write(&path, "a,b\n1,2\n2,\n3,500\n").unwrap();
        recorded.refresh().unwrap();
        assert_eq!((recorded.curve("a", "b"), recorded.rows.len()), (vec![(1.0, 2.0), (3.0, 500.0)], 3), "written again");
        fs::write(&path, "a,b\n1,7\n").unwrap();
        recorded.refresh().unwrap();
        assert_eq!(recorded.curve("a", "b"), [(1.0, 7.0)]);
        fs::write(&path, "a,b\n1,7\n8\n9,10\n").unwrap();
        recorded.refresh().unwrap();
        assert_eq!(recorded.curve("a", "b"), [(1.0, 7.0), (9.0, 10.0)], "without half a row");
    }
}
