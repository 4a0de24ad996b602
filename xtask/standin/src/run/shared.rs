//! Shared memory of a block, and the barriers that order its threads.

use crate::fault::{Fault, How, Kind};

/// Memory of the block that runs now, kept for the next one.
///
/// To allocate a megabyte for each block took half of the time.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) shared: Shared,
    /// Registers of all threads, one thread after the other.
    pub(crate) registers: Vec<u64>,
}

/// Mark for several threads.
const SEVERAL: u32 = u32::MAX;

/// Bytes of a cell, whose accesses are remembered together.
///
/// No kernel shares smaller numbers.
const CELL: usize = 4;

/// Last access to a cell: its thread and its phase.
///
/// The phase is 0 before the first access.
#[derive(Clone, Copy, Debug, Default)]
struct Touch {
    phase: u32,
    thread: u32,
}

/// Last write and last read of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Touches {
    write: Touch,
    read: Touch,
}

/// Shared memory of the block that runs now.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Bytes of this block.
    len: usize,
    data: Vec<u8>,
    cells: Vec<Touches>,
    /// First phase of this block; accesses before it were other blocks'.
    first: u32,
    /// Increases with each block and each barrier.
    phase: u32,
}

impl Shared {
    /// Begins a block with `len` uninitialized bytes.
    pub(crate) fn begin_block(&mut self, len: usize) {
        // Phases begin again before they run out.
        if self.data.len() < len || self.phase > u32::MAX / 2 {
            *self = Self { data: vec![0; len], cells: vec![Touches::default(); len.div_ceil(CELL)], ..Self::default() };
        }
        self.phase += 1;
        (self.first, self.len) = (self.phase, len);
    }

    /// Notes that all threads have passed a barrier.
    pub(crate) fn pass_barrier(&mut self) {
        self.phase += 1;
    }

    /// Checks an access by a thread, and returns the bytes.
    pub(crate) fn access(&mut self, address: u64, len: usize, how: How, thread: u32) -> Result<&mut [u8], Box<Fault>> {
        if !address.is_multiple_of(len as u64) {
            return Err(Fault::new(Kind::Misaligned, format!("{len} bytes of shared memory at {address}")));
        }
        let size = self.len;
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        if at.checked_add(len).is_none_or(|end| end > size) {
            let text = format!("{len} bytes of shared memory at {address}, beyond its {size} bytes");
            return Err(Fault::new(Kind::OutOfBounds, text));
        }
        let (first, mine) = (self.first, Touch { phase: self.phase, thread });
        let is_now = |touch: Touch| touch.phase == mine.phase && touch.thread != thread;
        for (i, Touches { write, read }) in self.cells[at / CELL..(at + len).div_ceil(CELL)].iter_mut().enumerate() {
            let byte = at / CELL * CELL + i * CELL;
            if how != How::Write && write.phase < first {
                return Err(Fault::new(Kind::Uninitialized, format!("shared memory at {byte}")));
            }
            if is_now(*write) || (how != How::Read && is_now(*read)) {
                let text = format!("shared memory at {byte}: thread {thread} and another since the last barrier");
                return Err(Fault::new(Kind::Race, text));
            }
            if how == How::Read {
                *read = if is_now(*read) { Touch { thread: SEVERAL, ..mine } } else { mine };
            } else {
                *write = mine;
            }
        }
        Ok(&mut self.data[at..at + len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_where_its_memory_ends_whatever_the_block_before_had() {
        let mut shared = Shared::default();
        shared.begin_block(64);
        shared.access(8, 4, How::Write, 0).unwrap();
        shared.begin_block(8);
        assert_eq!(shared.access(8, 4, How::Write, 0).unwrap_err().kind, Kind::OutOfBounds);
    }

    #[test]
    fn phases_that_begin_again_forget_all_accesses() {
        let mut shared = Shared::default();
        shared.begin_block(8);
        shared.phase = u32::MAX / 2 + 1;
        shared.access(0, 4, How::Write, 0).unwrap();
        shared.begin_block(8);
        assert_eq!(shared.access(0, 4, How::Read, 0).unwrap_err().kind, Kind::Uninitialized);
        assert!(shared.phase < 3);
    }
}
