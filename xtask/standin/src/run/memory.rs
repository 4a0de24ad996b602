//! Device memory: allocations, what was written, and who accessed each word last.
//!
//! Addresses begin above 2^40 and are never reused, with 64 KiB between allocations. Races are found with vector clocks, as in
//! FastTrack (Flanagan and Freund, 2009): each 4-byte cell keeps the epochs of its last write and its last read.

use std::collections::HashMap;

use crate::fault::{Fault, How, Kind};
use crate::run::shared::Scratch;

/// First address.
const BASE: u64 = 7 << 40;
/// Unused bytes behind each allocation.
const GAP: u64 = 64 << 10;
/// Alignment of allocations.
const ALIGN: u64 = 512;
/// Contents of memory that was never written.
const NOISE: u8 = 0xC5;

/// Operation of a stream, with what is ordered before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor<'a> {
    pub(crate) stream: u32,
    /// Index of the operation in its stream, from 1 on.
    pub(crate) seq: u32,
    /// Operations of each stream that are ordered before this one.
    pub(crate) clock: &'a [u32],
}

/// Stream, operation, mark of an atomic, and thread of an access; 0 for none.
///
/// The fields take 12, 27, 1 and 24 bits.
type Epoch = u64;

/// Mark of an atomic operation.
const ATOMIC: Epoch = 1 << 24;

/// Thread of a copy.
const COPY: u32 = 0xFF_FFFE;
/// Mark for several threads of one launch.
const SEVERAL: u32 = THREADS;
/// Bits of a thread.
const THREADS: u32 = 0xFF_FFFF;
/// Maximum number of streams that an epoch can hold.
pub(crate) const MAX_STREAMS: usize = 1 << 12;

fn epoch(by: &Actor<'_>, thread: u32) -> Epoch {
    u64::from(by.stream) << 52 | u64::from(by.seq & 0x7FF_FFFF) << 25 | u64::from(thread & THREADS)
}

fn thread_of(epoch: Epoch) -> u32 {
    epoch as u32 & THREADS
}

/// True if both accesses belong to one launch.
fn same_operation(a: Epoch, b: Epoch) -> bool {
    a >> 25 == b >> 25
}

/// Replaces the thread of an access by the mark for several.
fn several(epoch: Epoch, phase: Phase) -> Epoch {
    epoch & !Epoch::from(THREADS) | Epoch::from(phase.several)
}

/// True if the access happened in an operation that is ordered before `by`.
fn is_before(epoch: Epoch, by: &Actor<'_>) -> bool {
    let (stream, seq) = ((epoch >> 52) as usize, (epoch >> 25) as u32 & 0x7FF_FFFF);
    by.clock.get(stream).is_some_and(|&known| known >= seq)
}

/// Order of a block's threads by the barriers that they have passed.
///
/// A thread that passes a barrier becomes another thread here, so that an access tells the barriers before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// First thread of the block.
    begin: u32,
    /// Number of threads from there on that have passed the latest barrier.
    passed: u32,
    /// Mark for several threads since the latest barrier.
    several: u32,
}

impl Default for Phase {
    /// No barriers: no thread is ordered before another.
    fn default() -> Self {
        Self { begin: 0, passed: 0, several: SEVERAL }
    }
}

impl Phase {
    /// Phase of a block of `n` threads that has passed `barriers` barriers.
    ///
    /// `begin` is the block's first thread before any barrier. The threads of the phase are those from [`Phase::first`] on.
    pub(crate) fn new(begin: u32, n: u32, barriers: u32) -> Self {
        let passed = barriers.wrapping_mul(n + 1);
        Self { begin, passed, several: begin.wrapping_add(passed).wrapping_add(n) & THREADS }
    }

    /// First thread since the latest barrier.
    pub(crate) fn first(self) -> u32 {
        self.begin.wrapping_add(self.passed)
    }

    fn has_passed(self, thread: u32) -> bool {
        thread.wrapping_sub(self.begin) & THREADS < self.passed
    }

    fn describe(self, epoch: Epoch) -> String {
        let by = format!("operation {} of stream {}", epoch >> 25 & 0x7FF_FFFF, epoch >> 52);
        match thread_of(epoch) {
            COPY => format!("{by}, a copy"),
            SEVERAL => format!("{by}, several threads"),
            thread if self.several == SEVERAL => format!("{by}, thread {thread}"),
            _ => format!("{by}, a thread"),
        }
    }
}

#[derive(Debug, Default)]
struct Allocation {
    base: u64,
    len: usize,
    is_freed: bool,
    data: Vec<u8>,
    /// 1 for each written byte; empty once the whole allocation was written.
    written: Vec<u8>,
    writes: Vec<Epoch>,
    reads: Vec<Epoch>,
    /// Reads of a cell in other streams, at the same time as the one in `reads`.
    further_reads: HashMap<usize, Vec<Epoch>>,
}

/// Memory of a device.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    allocations: Vec<Allocation>,
    next: u64,
    /// Bytes allocated now.
    pub(crate) used: usize,
    /// Threads of the running launch.
    pub(crate) phase: Phase,
    /// Memory of the running block.
    pub(crate) scratch: Scratch,
    /// Writes of an attempt, which are undone.
    journal: Option<Vec<Written>>,
}

/// Write of an attempt: its bytes before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) allocation: u32,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) before: [u8; 16],
    pub(crate) after: [u8; 16],
}

impl Memory {
    /// Allocates `len` uninitialized bytes.
    pub(crate) fn allocate(&mut self, len: usize) -> u64 {
        let base = self.next.max(BASE);
        self.next = (base + len as u64 + GAP).next_multiple_of(ALIGN);
        let cells = len.div_ceil(4);
        self.allocations.push(Allocation {
            base,
            len,
            data: vec![NOISE; len],
            written: vec![0; len],
            writes: vec![0; cells],
            reads: vec![0; cells],
            ..Allocation::default()
        });
        self.used += len;
        base
    }

    /// Frees the allocation that begins at `address`.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), Box<Fault>> {
        let index = self.find(address, 0)?;
        let found = &mut self.allocations[index];
        if found.base != address {
            return Err(Fault::new(Kind::OutOfBounds, format!("{address:#x} is not where an allocation begins")));
        }
        self.used -= found.len;
        *found = Allocation { base: found.base, len: found.len, is_freed: true, ..Allocation::default() };
        Ok(())
    }

    /// Returns the index of the live allocation that holds `len` bytes at `address`.
    fn find(&self, address: u64, len: usize) -> Result<usize, Box<Fault>> {
        let after = self.allocations.partition_point(|allocation| allocation.base <= address);
        let Some(found) = self.allocations[..after].last() else {
            return Err(Fault::new(Kind::OutOfBounds, format!("{address:#x} is no device memory")));
        };
        let Allocation { base, len: size, .. } = *found;
        if found.is_freed && address < base + size as u64 {
            return Err(Fault::new(Kind::Freed, format!("{address:#x} in {size} freed bytes at {base:#x}")));
        }
        if found.is_freed || address + len as u64 > base + size as u64 {
            return Err(Fault::new(Kind::OutOfBounds, format!("{len} bytes at {address:#x}, beyond {size} bytes at {base:#x}")));
        }
        Ok(after - 1)
    }

    /// Checks an access by a thread, and returns the bytes.
    ///
    /// The address must be a multiple of `len`.
    /// `hint` is the index of the allocation that the instruction used last.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        hint: &mut u32,
        address: u64,
        len: usize,
        how: How,
        by: &Actor<'_>,
        thread: u32,
    ) -> Result<&mut [u8], Box<Fault>> {
        if !address.is_multiple_of(len as u64) {
            return Err(Fault::new(Kind::Misaligned, format!("{len} bytes at {address:#x}")));
        }
        let is_inside = |a: &Allocation| !a.is_freed && address >= a.base && address + len as u64 <= a.base + a.len as u64;
        if !self.allocations.get(*hint as usize).is_some_and(is_inside) {
            *hint = self.find(address, len)? as u32;
        }
        let found = &mut self.allocations[*hint as usize];
        let at = (address - found.base) as usize;
        found.mark(at, len, how)?;
        if let Some(journal) = &mut self.journal {
            if how != How::Read {
                let mut before = [0; 16];
                before[..len].copy_from_slice(&found.data[at..at + len]);
                journal.push(Written { allocation: *hint, at, len, before, after: before });
            }
            return Ok(&mut found.data[at..at + len]);
        }
        let me = epoch(by, thread);
        for cell in at / 4..(at + len).div_ceil(4) {
            found.order(cell, how, by, me, len < 4, self.phase)?;
        }
        Ok(&mut found.data[at..at + len])
    }

    /// Runs a launch, undoes what it wrote and returns that.
    ///
    /// Accesses are checked, but not for races.
    pub(crate) fn attempt(
        &mut self,
        launch: impl FnOnce(&mut Self) -> Result<(), Box<Fault>>,
    ) -> Result<Vec<Written>, Box<Fault>> {
        self.journal = Some(Vec::new());
        let ran = launch(self);
        let mut journal = self.journal.take().unwrap_or_default();
        for Written { allocation, at, len, after, .. } in &mut journal {
            after[..*len].copy_from_slice(&self.allocations[*allocation as usize].data[*at..*at + *len]);
        }
        for Written { allocation, at, len, before, .. } in journal.iter().rev() {
            self.allocations[*allocation as usize].data[*at..*at + *len].copy_from_slice(&before[..*len]);
        }
        ran.map(|()| journal)
    }

    /// Checks an access of a copy or a fill to a whole range, and returns its bytes.
    pub(crate) fn range(&mut self, address: u64, len: usize, how: How, by: &Actor<'_>) -> Result<&mut [u8], Box<Fault>> {
        let index = self.find(address, len)?;
        let found = &mut self.allocations[index];
        let at = (address - found.base) as usize;
        found.mark(at, len, how)?;
        for cell in at / 4..(at + len).div_ceil(4) {
            found.order(cell, how, by, epoch(by, COPY), false, Phase::default())?;
        }
        Ok(&mut found.data[at..at + len])
    }
}

impl Allocation {
    /// Marks bytes as written, or checks that they were.
    #[inline(always)]
    fn mark(&mut self, at: usize, len: usize, how: How) -> Result<(), Box<Fault>> {
        if self.written.is_empty() {
            return Ok(());
        }
        let written = &mut self.written[at..at + len];
        if how == How::Write {
            written.fill(1);
            if len == self.len {
                self.written = Vec::new();
            }
        } else if let Some(first) = written.iter().position(|&byte| byte == 0) {
            let address = self.base + (at + first) as u64;
            return Err(Fault::new(Kind::Uninitialized, format!("{address:#x}, in {} bytes at {:#x}", self.len, self.base)));
        }
        Ok(())
    }

    /// Checks that an access to a cell is ordered after those before.
    ///
    /// Accesses to a part of a cell may belong to threads of one launch that use different parts.
    #[inline(always)]
    fn order(&mut self, cell: usize, how: How, by: &Actor<'_>, me: Epoch, is_part: bool, phase: Phase) -> Result<(), Box<Fault>> {
        let is_atomic = how == How::Atomic;
        let is_ordered = |other: Epoch| {
            if other == 0 || other & !ATOMIC == me {
                true
            } else if same_operation(other, me) {
                is_atomic && other & ATOMIC != 0 || is_part || phase.has_passed(thread_of(other))
            } else {
                is_before(other, by)
            }
        };
        let (write, read) = (self.writes[cell], self.reads[cell]);
        if !is_ordered(write) {
            return Err(self.race(cell, how, me, "a write", write, phase));
        }
        if how == How::Read {
            let alone = read == me || !same_operation(read, me) || phase.has_passed(thread_of(read));
            let mine = if alone { me } else { several(me, phase) };
            if read != 0 && !same_operation(read, me) && !is_before(read, by) {
                self.further_reads.entry(cell).or_default().push(read);
            }
            self.reads[cell] = mine;
            return Ok(());
        }
        if !is_ordered(read) {
            return Err(self.race(cell, how, me, "a read", read, phase));
        }
        if !self.further_reads.is_empty()
            && let Some(others) = self.further_reads.remove(&cell)
            && let Some(&other) = others.iter().find(|&&other| !is_ordered(other))
        {
            return Err(self.race(cell, how, me, "a read", other, phase));
        }
        self.writes[cell] = match is_atomic {
            true if same_operation(write, me) && write != me | ATOMIC => several(me, phase) | ATOMIC,
            true => me | ATOMIC,
            false => me,
        };
        Ok(())
    }

    #[cold]
    fn race(&self, cell: usize, how: How, me: Epoch, what: &str, other: Epoch, phase: Phase) -> Box<Fault> {
        let mine = match how {
            How::Read => "read",
            How::Write => "write",
            How::Atomic => "atomic operation",
        };
        let address = self.base + 4 * cell as u64;
        let text = format!(
            "{mine} of {address:#x} by {}, without an order after {what} by {}",
            phase.describe(me),
            phase.describe(other)
        );
        Fault::new(Kind::Race, text)
    }
}
