//! A replay memory in a file, which may be larger than the machine's memory.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use memmap2::MmapMut;
use rl_buffer::{Block, Memory};

/// Memory of files in a directory, mapped into the address space.
///
/// The system keeps what fits in memory, and writes the rest to the disk. The files have no name, so they are gone with the
/// process, even if it is killed. Their space is reserved at once: a disk that fills up later cannot stop a training.
#[derive(Clone, Debug)]
struct Mapped {
    dir: PathBuf,
}

/// Returns the memory of files in `dir`, or ordinary memory if that is empty.
pub(crate) fn memory(dir: &str) -> Arc<dyn Memory> {
    if dir.is_empty() { <dyn Memory>::host() } else { Arc::new(Mapped { dir: dir.into() }) }
}

#[derive(Debug)]
struct Map(MmapMut);

impl Block for Map {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Mapped {
    fn map(&self, bytes: usize) -> std::io::Result<Map> {
        let file = tempfile::tempfile_in(&self.dir)?;
        #[cfg(unix)]
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        #[cfg(not(unix))]
        file.set_len(bytes as u64)?;
        // SAFETY: no other process can open a file without a name, and nothing here writes to it but the map.
        let map = unsafe { MmapMut::map_mut(&file)? };
        // Transitions are drawn from anywhere: what lies beside them is not read ahead.
        #[cfg(unix)]
        map.advise(memmap2::Advice::Random)?;
        Ok(Map(map))
    }
}

impl Memory for Mapped {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, rl_buffer::Error> {
        let map = self.map(bytes.max(1)).map_err(|reason| rl_buffer::Error::File { dir: self.dir.clone(), bytes, reason })?;
        Ok(Box::new(map))
    }

    fn available(&self) -> Option<u64> {
        #[cfg(unix)]
        let free = rustix::fs::statvfs(&self.dir).ok().map(|of| of.f_bavail.saturating_mul(of.f_frsize));
        #[cfg(not(unix))]
        let free = None;
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_zeros_in_a_file_that_is_gone_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Mapped { dir: dir.path().into() };
        for bytes in [0, 1, 100_000] {
            let mut block = memory.allocate(bytes).unwrap();
            assert!(block.bytes().len() >= bytes && block.bytes().iter().all(|&byte| byte == 0));
            block.bytes_mut().fill(7);
            assert!(block.bytes().iter().all(|&byte| byte == 7));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        }
        assert!(memory.available().is_some_and(|free| free > 0));
    }

    #[test]
    fn a_directory_that_cannot_hold_it_is_refused_by_its_name() {
        let missing = Mapped { dir: "/nowhere/at/all".into() };
        let said = missing.allocate(100).unwrap_err().to_string();
        assert!(said.contains("/nowhere/at/all") && said.contains("100 bytes"), "{said}");
        let dir = tempfile::tempdir().unwrap();
        let said = Mapped { dir: dir.path().into() }.allocate(1 << 60).unwrap_err().to_string();
        assert!(said.contains(&*dir.path().to_string_lossy()), "{said}");
    }
}
