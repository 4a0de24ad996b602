//! Memory: how much there is, and asking for it in a way that can fail.
//!
//! Everything here is ordinary memory of the host. Pinned memory and that of a device belong here as further kinds, chosen by a
//! value.

use std::fs;

use crate::Error;

/// The bytes that a program may still take without swapping (Linux: `MemAvailable`); `None` where nobody says.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

/// Refuses what does not fit before any of it is allocated: Linux gives out more memory than it has, and kills who uses it.
pub(crate) fn check(capacity: usize, bytes_each: u128, fixed: u128) -> Result<(), Error> {
    let needed = (capacity as u128).saturating_mul(bytes_each).saturating_add(fixed);
    let available = u128::from(available().unwrap_or(u64::MAX)).min(isize::MAX as u128);
    if needed <= available {
        return Ok(());
    }
    let largest = available.saturating_sub(fixed) / bytes_each.max(1);
    Err(Error::OutOfMemory { needed, available, largest: usize::try_from(largest).unwrap_or(usize::MAX) })
}

/// `len` elements, all of them `value`.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Error> {
    let mut vec = Vec::new();
    let needed = len as u128 * size_of::<T>() as u128;
    vec.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { needed, available: 0, largest: 0 })?;
    vec.resize(len, value);
    Ok(vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_largest_that_does() {
        assert!(check(1000, 44, 1 << 20).is_ok());
        let Err(Error::OutOfMemory { needed, available, largest }) = check(1 << 50, 1000, 500) else { panic!("fits") };
        assert_eq!(needed, (1 << 50) * 1000 + 500);
        assert!(largest as u128 * 1000 + 500 <= available && (largest as u128 + 1) * 1000 + 500 > available);
        assert!(check(usize::MAX, u128::MAX, u128::MAX).is_err());
        assert!(filled(usize::MAX, 0u8).is_err());
    }
}
