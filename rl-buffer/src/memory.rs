//! Available memory of the host, and fallible allocation.

use std::fs;
use std::path::Path;

use crate::Error;

/// Bytes that this process can still use; `None` if the system does not report it.
///
/// Without swapping or being killed, that is. The minimum of the machine's available memory (Linux: `MemAvailable`), and of the
/// bytes left below the limits of the process's control groups, of either version, and of its address space.
#[must_use]
pub fn available() -> Option<u64> {
    let address_space = address_space(&read("/proc/self/limits"), &read("/proc/self/status"));
    [available_to_all(), address_space].into_iter().flatten().min()
}

/// Bytes that this process and others that it starts can still use together.
///
/// As [`available`], without the limit on the address space of one process.
#[must_use]
pub fn available_to_all() -> Option<u64> {
    let machine = kilobytes(&read("/proc/meminfo"), "MemAvailable:");
    let groups = in_groups(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup"));
    [machine, groups].into_iter().flatten().min()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the bytes after `name` in a file of /proc that counts kilobytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

/// Bytes left below the limit on address space.
///
/// An eighth of them is reserved for gaps, stacks and the allocator.
fn address_space(limits: &str, status: &str) -> Option<u64> {
    let limit: u64 =
        limits.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kilobytes(status, "VmSize:")?) / 8 * 7)
}

/// Bytes left below the limits of the control groups, including parent groups.
///
/// `groups` is the text of /proc/self/cgroup, `root` the mount point. Files that the system can drop from memory do not count.
fn in_groups(root: &Path, groups: &str) -> Option<u64> {
    let left = |dir: &Path, [limit, usage, dropped]: [&str; 3]| -> Option<u64> {
        let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let dropped = stat.lines().find_map(|line| line.strip_prefix(dropped)?.trim().parse().ok()).unwrap_or(0);
        Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(dropped)))
    };
    let of_line = |line: &str| -> Option<u64> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, Path::new(fields.next()?.trim_start_matches('/')));
        let (root, names) = if controllers.is_empty() {
            (root.to_path_buf(), ["memory.max", "memory.current", "inactive_file "])
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
        } else {
            return None;
        };
        path.ancestors().filter_map(|above| left(&root.join(above), names)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// Rejects a buffer that does not fit, before any of it is allocated.
///
/// Linux grants more memory than it has, and kills the process that uses it.
pub(crate) fn check(capacity: usize, bytes_each: u128, fixed: u128) -> Result<(), Error> {
    check_against(capacity, bytes_each, fixed, available())
}

/// Rejects a buffer that takes more than the `available` bytes.
pub(crate) fn check_against(capacity: usize, bytes_each: u128, fixed: u128, available: Option<u64>) -> Result<(), Error> {
    let needed = (capacity as u128).saturating_mul(bytes_each).saturating_add(fixed);
    let available = u128::from(available.unwrap_or(u64::MAX)).min(isize::MAX as u128);
    if needed <= available {
        return Ok(());
    }
    let largest = available.saturating_sub(fixed) / bytes_each.max(1);
    Err(Error::OutOfMemory { needed, available, largest: usize::try_from(largest).unwrap_or(usize::MAX) })
}

/// Allocates `len` copies of `value`.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Error> {
    let mut vec = Vec::new();
    let bytes = len as u128 * size_of::<T>() as u128;
    vec.try_reserve_exact(len).map_err(|_| Error::Refused { bytes })?;
    vec.resize(len, value);
    Ok(vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let dir = std::env::temp_dir().join(format!("rl-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // Version 2: the group itself has no limit, its parent leaves 1000 - (700 - 300).
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "600\n");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 400\ninactive_file 300\n");
        assert_eq!(in_groups(&dir, "0::/a/b\n"), Some(600));
        assert_eq!(in_groups(&dir, "0::/elsewhere\n"), None);
        // Version 1, in a container that sees its own group as the root.
        write("memory/memory.limit_in_bytes", "500\n");
        write("memory/memory.usage_in_bytes", "450\n");
        assert_eq!(in_groups(&dir, "5:cpu,cpuacct:/x\n4:memory:/docker/x\n0::/a/b\n"), Some(50));
        fs::remove_dir_all(&dir).unwrap();

        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         8192000      unlimited   bytes\n";
        assert_eq!(address_space(limits, "VmPeak:\t 9 kB\nVmSize:\t    4000 kB\n"), Some((8_192_000 - 4_096_000) / 8 * 7));
        assert_eq!(address_space("Max address space  unlimited  unlimited  bytes\n", "VmSize: 1 kB\n"), None);
        if cfg!(target_os = "linux") {
            assert!(available().is_some_and(|bytes| bytes > 1 << 20));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_largest_that_does() {
        assert!(check(1000, 44, 1 << 20).is_ok());
        let Err(Error::OutOfMemory { needed, available, largest }) = check(1 << 50, 1000, 500) else { panic!("fits") };
        assert_eq!(needed, (1 << 50) * 1000 + 500);
        assert!(largest as u128 * 1000 + 500 <= available && (largest as u128 + 1) * 1000 + 500 > available);
        assert!(check(usize::MAX, u128::MAX, u128::MAX).is_err());
        assert!(matches!(filled(usize::MAX, 0u8), Err(Error::Refused { .. })));
    }
}
