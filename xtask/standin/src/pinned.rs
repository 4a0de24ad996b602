//! Page-locked host memory that the host may not touch while a copy is in flight.
//!
//! Each slab is mapped twice: the driver copies through its own mapping, and the program's mapping loses its permissions until
//! the host knows that the copy is done. A touch too early ends the process with a message.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of slabs at one time.
const MAX_SLABS: usize = 4096;
/// Addresses and sizes of the program's mappings, for the signal handler.
static PLACES: [[AtomicUsize; 2]; MAX_SLABS] = [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MAX_SLABS];

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The copy reads the slab: the host may read, too.
    FromHost,
    /// The copy writes the slab.
    ToHost,
}

/// A copy in flight.
#[derive(Clone, Copy, Debug)]
struct Pending {
    stream: usize,
    seq: u32,
    direction: Direction,
}

/// Page-locked memory.
#[derive(Debug)]
pub(crate) struct Slab {
    /// The program's mapping.
    pub(crate) address: usize,
    /// The driver's mapping.
    own: usize,
    len: usize,
    pending: Vec<Pending>,
    place: usize,
}

impl Slab {
    /// Allocates at least `len` bytes; `None` if the system refuses.
    pub(crate) fn new(len: usize) -> Option<Self> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install_handler);
        let len = len.next_multiple_of(4096);
        // SAFETY: creates a file in memory.
        let file = unsafe { libc::memfd_create(c"standin".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: sets the length of that file.
        if file < 0 || unsafe { libc::ftruncate(file, len as libc::off_t) } != 0 {
            return None;
        }
        let map = || {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: maps the whole file at a free address.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, 0) };
            (at != libc::MAP_FAILED).then_some(at.expose_provenance())
        };
        let (address, own) = (map()?, map()?);
        // SAFETY: the mappings keep the file.
        unsafe { libc::close(file) };
        let place = PLACES.iter().position(|[at, _]| at.load(Ordering::Relaxed) == 0)?;
        PLACES[place][1].store(len, Ordering::Relaxed);
        PLACES[place][0].store(address, Ordering::Relaxed);
        Some(Self { address, own, len, pending: Vec::new(), place })
    }

    /// Returns the driver's address of the program's address, if it lies in the slab.
    pub(crate) fn own_address(&self, address: usize) -> Option<usize> {
        (self.address..self.address + self.len).contains(&address).then(|| address - self.address + self.own)
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Forbids the host what would race with a copy that was just queued.
    pub(crate) fn begin_copy(&mut self, stream: usize, seq: u32, direction: Direction) {
        self.pending.push(Pending { stream, seq, direction });
        self.protect();
    }

    /// Returns the stream of a copy that this one races with.
    ///
    /// That copy has run, the two have no order, and one of them writes the slab.
    pub(crate) fn overlapping(
        &self,
        stream: usize,
        clock: &[u32],
        done: impl Fn(usize) -> u32,
        direction: Direction,
    ) -> Option<usize> {
        let overlaps = |copy: &&Pending| {
            copy.stream != stream
                && (copy.direction == Direction::ToHost || direction == Direction::ToHost)
                && copy.seq <= done(copy.stream)
                && clock.get(copy.stream).is_none_or(|&known| known < copy.seq)
        };
        self.pending.iter().find(overlaps).map(|copy| copy.stream)
    }

    /// Allows again what no copy forbids that the host does not know to be done.
    pub(crate) fn refresh(&mut self, host: &[u32]) {
        let before = self.pending.len();
        self.pending.retain(|copy| host.get(copy.stream).is_none_or(|&known| known < copy.seq));
        if self.pending.len() != before {
            self.protect();
        }
    }

    /// Allows everything again, as no copy will run.
    pub(crate) fn drop_copies(&mut self) {
        self.pending.clear();
        self.protect();
    }

    fn protect(&self) {
        let access = if self.pending.iter().any(|copy| copy.direction == Direction::ToHost) {
            libc::PROT_NONE
        } else if self.is_pending() {
            libc::PROT_READ
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        // SAFETY: the slab's own mapping; a touch that is now forbidden is the fault to report.
        unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(self.address), self.len, access) };
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        PLACES[self.place][0].store(0, Ordering::Relaxed);
        for at in [self.address, self.own] {
            // SAFETY: both mappings belong to the slab, and the program has freed it.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at), self.len) };
        }
    }
}

/// The handler that was installed before.
static PREVIOUS: std::sync::OnceLock<libc::sigaction> = std::sync::OnceLock::new();

fn install_handler() {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: all zeros are a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the present handler.
    unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut before) };
    let _ = PREVIOUS.set(before);
    // SAFETY: the handler calls nothing that is not safe in a signal handler.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
}

/// Reports a touch of pinned memory; leaves the rest to the previous handler.
extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes the fault's address.
    let address = unsafe { (*info).si_addr() }.addr();
    let is_ours = PLACES.iter().any(|[at, len]| {
        let at = at.load(Ordering::Relaxed);
        at != 0 && (at..at + len.load(Ordering::Relaxed)).contains(&address)
    });
    if is_ours {
        let text = b"STAND-IN: pinned memory in flight: the host touched a slab before it waited for a copy\n";
        // SAFETY: writes a constant to standard error.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(70) };
    }
    if let Some(before) = PREVIOUS.get() {
        // SAFETY: restores the handler; the instruction runs again and reaches it.
        unsafe { libc::sigaction(libc::SIGSEGV, before, std::ptr::null_mut()) };
    }
}
