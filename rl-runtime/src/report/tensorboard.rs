//! TensorBoard event files: the scalars of `metrics.csv`, in the directory `tb`.
//!
//! A file is a sequence of records (TFRecord): length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data. The
//! data is an `Event` in the wire format of protocol buffers. These are the fields in use:
//!
//! | field | type | meaning |
//! |---|---|---|
//! | `wall_time` = 1 | double | seconds since 1970 |
//! | `step` = 2 | int64 | env steps |
//! | `file_version` = 3 | string | `brain.Event:2`, in the first record |
//! | `summary` = 5 | message | repeats `value` = 1, a message of `tag` = 1 (string) and `simple_value` = 2 (float) |
//! | `session_log` = 7 | message | `status` = 1 is 1 (START): TensorBoard drops the events of earlier files from this step on |
//!
//! A run has one file for its start and one for each resumption. Files are never changed after their run has stopped, because
//! a TensorBoard that shows them keeps its place in each.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Error;
use crate::file::{copy_own, own, own_dir, refused};

/// Interval between writes to the file.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Start of the name of a file.
const PREFIX: &str = "events.out.tfevents.";

/// Event file of one part of a run.
///
/// After a failure, others are not returned until a write has succeeded.
#[derive(Debug)]
pub(crate) struct EventFile {
    dir: PathBuf,
    /// Env steps before the part.
    env_steps: u64,
    /// `None` before the first write.
    file: Option<File>,
    /// Size of the complete records in the file, in bytes.
    end: u64,
    /// Records that are not in the file yet.
    buffer: Vec<u8>,
    flushed: Instant,
    failing: bool,
}

impl EventFile {
    /// Creates a file in `dir` for a run that continues after `env_steps` env steps.
    ///
    /// The first write creates the file. TensorBoard then drops later events of earlier files.
    pub(crate) fn new(dir: PathBuf, env_steps: u64) -> Self {
        Self { dir, env_steps, file: None, end: 0, buffer: Vec::new(), flushed: Instant::now(), failing: false }
    }

    /// Adds the scalars of one moment, without those that are NaN.
    ///
    /// # Errors
    /// The error of the system; events since the last write are lost.
    pub(crate) fn add(&mut self, env_steps: u64, scalars: &[(&'static str, f64)]) -> io::Result<()> {
        event(&mut self.buffer, now(), env_steps, |event| summary(event, scalars));
        if self.flushed.elapsed() >= FLUSH_EVERY { self.flush() } else { Ok(()) }
    }

    /// Writes all events to the file.
    ///
    /// # Errors
    /// The error of the system; events since the last write are lost.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut bytes = if self.end == 0 { header(now(), self.env_steps) } else { Vec::new() };
        bytes.append(&mut self.buffer);
        self.flushed = Instant::now();
        let written = self.append(&bytes);
        let failing = std::mem::replace(&mut self.failing, written.is_err());
        if failing { Ok(()) } else { written }
    }

    /// Appends records, or leaves the file unchanged.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(create(&self.dir)?),
        };
        let written = file.write_all(bytes);
        match &written {
            Ok(()) => self.end += bytes.len() as u64,
            // No reader goes past a torn record.
            Err(_) => drop(file.set_len(self.end)),
        }
        written
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        // After a failure of the run, which has been reported.
        let _ = self.flush();
    }
}

/// Copies the event files of a run to a run that continues it.
///
/// # Errors
/// [`Error::Io`] if a file cannot be copied.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let copy = || {
        fs::create_dir_all(to)?;
        fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            if entry.file_type()?.is_file() { copy_own(&entry.path(), &to.join(entry.file_name())) } else { Ok(()) }
        })
    };
    let found = own_dir(from).map_err(refused(from, "; remove it"))?;
    if found { copy().map_err(Error::io(from)) } else { Ok(()) }
}

/// Creates the file that readers take as the latest in `dir`.
fn create(dir: &Path) -> io::Result<File> {
    own_dir(dir)?;
    fs::create_dir_all(dir)?;
    let number = |name: &str| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
    let mut latest = 0;
    for entry in fs::read_dir(dir)? {
        latest = latest.max(entry?.file_name().to_str().and_then(number).unwrap_or(0));
    }
    // In order of names, even if the clock is set back.
    let number = (now() as u64).max(latest + 1);
    own(&dir.join(format!("{PREFIX}{number:010}.rl")), |options| options.append(true).create_new(true))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Encodes the first records of a file that continues after `env_steps` env steps.
fn header(wall_time: f64, env_steps: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    event(&mut bytes, wall_time, 0, |event| field(event, 3, b"brain.Event:2"));
    event(&mut bytes, wall_time, env_steps + 1, |event| field(event, 7, &[key(1, VARINT), 1]));
    bytes
}

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

/// Encodes number and wire type of a field.
const fn key(number: u8, wire: u8) -> u8 {
    number << 3 | wire
}

/// Appends the record of an event, whose other fields `what` appends.
fn event(out: &mut Vec<u8>, wall_time: f64, step: u64, what: impl FnOnce(&mut Vec<u8>)) {
    let mut data = vec![key(1, FIXED_64)];
    data.extend(wall_time.to_le_bytes());
    if step > 0 {
        data.push(key(2, VARINT));
        varint(&mut data, step);
    }
    what(&mut data);
    let length = (data.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked(crc32c(&length)).to_le_bytes());
    out.extend(&data);
    out.extend(masked(crc32c(&data)).to_le_bytes());
}

/// Appends the field of scalars, without those that are NaN.
fn summary(event: &mut Vec<u8>, scalars: &[(&'static str, f64)]) {
    let (mut summary, mut scalar) = (Vec::new(), Vec::new());
    for (tag, value) in scalars.iter().filter(|(_, value)| !value.is_nan()) {
        scalar.clear();
        field(&mut scalar, 1, tag.as_bytes());
        scalar.push(key(2, FIXED_32));
        scalar.extend_from_slice(&(*value as f32).to_le_bytes());
        field(&mut summary, 1, &scalar);
    }
    field(event, 5, &summary);
}

/// Appends a field of bytes.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(key(number, BYTES));
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// CRC-32C of each byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// CRC-32C (Castagnoli) of bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0;
    for byte in bytes {
        crc = crc >> 8 ^ TABLE[usize::from(crc as u8 ^ *byte)];
    }
    !crc
}

/// Masks a CRC as TFRecord does.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_check_value_of_crc_32c_is_the_published_one() {
        // RFC 3720, B.4, and the check value of CRC-32C/ISCSI.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn records_are_the_bytes_that_tensorboard_writes() {
        // By tensorboard.summary.writer.record_writer.RecordWriter of TensorBoard 2.20.0.
        let start = "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c\
                     100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4";
        assert_eq!(hex(&header(1.5, 300)), start);
        let scalars = "3b000000000000001a23ac5c0900000000000004401080042a2d0a0f0a0874696d652f66707315cdcccc3d0a1a0a13726f6c6c6f75\
                       742f65705f7265775f6d65616e150000807ffbf677c7";
        let mut bytes = Vec::new();
        let values = [("time/fps", 0.1), ("none", f64::NAN), ("rollout/ep_rew_mean", f64::INFINITY)];
        event(&mut bytes, 2.5, 512, |event| summary(event, &values));
        assert_eq!(hex(&bytes), scalars);
    }

    #[test]
    fn a_file_per_part_is_in_the_order_of_names_and_torn_records_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tb = dir.path().join("tb");
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&tb).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let mut file = EventFile::new(tb.clone(), 0);
        file.add(8, &[("a", 1.0)]).unwrap();
        assert!(!tb.exists(), "written at once");
        file.flush().unwrap();
        drop(file);
        let first = names();
        // From a clock in the future.
        let late = format!("{PREFIX}9000000000.rl");
        fs::write(tb.join(&late), "").unwrap();
        let mut file = EventFile::new(tb.clone(), 8);
        file.add(16, &[("a", 1.0), ("b", f64::NAN)]).unwrap();
        drop(file);
        assert_eq!(names(), [first[0].clone(), late.into(), format!("{PREFIX}9000000001.rl").into()]);
        assert_eq!(fs::metadata(tb.join(&names()[2])).unwrap().len(), fs::metadata(tb.join(&first[0])).unwrap().len());
    }

    #[test]
    fn events_that_cannot_be_written_are_reported_once_and_later_ones_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let tb = dir.path().join("tb");
        fs::write(&tb, "").unwrap();
        let mut file = EventFile::new(tb.clone(), 0);
        let mut write = || file.add(8, &[("a", 1.0)]).and_then(|()| file.flush());
        assert!(write().is_err());
        write().unwrap();
        fs::remove_file(&tb).unwrap();
        write().unwrap();
        assert_eq!(fs::read_dir(&tb).unwrap().count(), 1);
    }
}
