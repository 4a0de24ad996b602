//! Calls of MPI, through `calls.c`.
//!
//! `build.rs` compiles that with MPI's own compiler.
//! Errors of MPI end the job with a message of its own: that is its default.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use rl_agents::ranks::Ranks;

use crate::ranks::mpi::remote::Mail;

/// Maximum bytes of one call of MPI, which counts in 32 bits.
const MAX_LEN: usize = i32::MAX as usize;

unsafe extern "C" {
    fn rl_mpi_init(rank: *mut i32, n_ranks: *mut i32) -> i32;
    fn rl_mpi_host(name: *mut u8, len: i32);
    fn rl_mpi_all_gather(own: *const u8, len: i32, all: *mut u8, lens: *const i32, begins: *const i32);
    fn rl_mpi_broadcast(bytes: *mut u8, len: i32, root: i32);
    fn rl_mpi_barrier();
    fn rl_mpi_send(byte: u8, to: i32);
    fn rl_mpi_try_receive(from: i32) -> i32;
    fn rl_mpi_send_bytes(bytes: *const u8, len: i32, to: i32);
    fn rl_mpi_probe(from: i32) -> i32;
    fn rl_mpi_receive_bytes(bytes: *mut u8, len: i32, from: i32);
    fn rl_mpi_abort(code: i32);
    fn rl_mpi_finalize();
}

/// This process among the others; proof that MPI is initialized.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    rank: usize,
    n_ranks: usize,
}

impl World {
    /// Initializes MPI for calls of several threads.
    ///
    /// Returns `None` if it cannot be initialized, or has been.
    pub(super) fn init() -> Option<Self> {
        static CALLED: AtomicBool = AtomicBool::new(false);
        if CALLED.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (mut rank, mut n_ranks) = (0, 0);
        // SAFETY: called once in the process; it writes the two numbers.
        let ready = unsafe { rl_mpi_init(&raw mut rank, &raw mut n_ranks) } != 0;
        ready.then_some(Self { rank: rank as usize, n_ranks: n_ranks as usize })
    }

    /// Returns the name of this host.
    pub(super) fn host(self) -> String {
        let mut name = [0; 256];
        // SAFETY: `name` has that length.
        unsafe { rl_mpi_host(name.as_mut_ptr(), name.len() as i32) };
        CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Blocks until every rank has called it.
    pub(super) fn barrier(self) {
        // SAFETY: MPI is initialized, as `self` proves.
        unsafe { rl_mpi_barrier() }
    }

    /// Sends a byte to another rank.
    pub(super) fn send(self, byte: u8, to: usize) {
        // SAFETY: MPI is initialized, as `self` proves.
        unsafe { rl_mpi_send(byte, to as i32) }
    }

    /// Receives a byte from another rank, if one has arrived.
    pub(super) fn try_receive(self, from: usize) -> Option<u8> {
        // SAFETY: MPI is initialized, as `self` proves.
        u8::try_from(unsafe { rl_mpi_try_receive(from as i32) }).ok()
    }

    /// Ends all ranks with an exit code.
    pub(super) fn abort(self, code: u8) -> ! {
        // SAFETY: MPI is initialized, as `self` proves.
        unsafe { rl_mpi_abort(code.into()) };
        std::process::abort()
    }

    /// Ends MPI; blocks until every rank has called it.
    ///
    /// No copy of `self` may be used afterwards.
    pub(super) fn finalize(self) {
        // SAFETY: MPI is initialized, as `self` proves.
        unsafe { rl_mpi_finalize() }
    }
}

impl Mail for World {
    fn send_message(&self, message: &[u8], to: usize) {
        // The last part, the only one shorter than MAX_LEN, is empty if need be.
        let end = message.len().is_multiple_of(MAX_LEN).then_some(&[][..]);
        for part in message.chunks(MAX_LEN).chain(end) {
            // SAFETY: MPI is initialized, as `self` proves; `part` has that length.
            unsafe { rl_mpi_send_bytes(part.as_ptr(), part.len() as i32, to as i32) }
        }
    }

    fn try_receive_message(&self, from: usize) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            // SAFETY: MPI is initialized, as `self` proves.
            let len = unsafe { rl_mpi_probe(from as i32) };
            match usize::try_from(len) {
                Err(_) if message.is_empty() => return None,
                Err(_) => std::thread::yield_now(),
                Ok(n) => {
                    let begin = message.len();
                    message.resize(begin + n, 0);
                    // SAFETY: the part has the length of the message that was probed, which only this thread receives.
                    unsafe { rl_mpi_receive_bytes(message[begin..].as_mut_ptr(), len, from as i32) };
                    if n < MAX_LEN {
                        return Some(message);
                    }
                }
            }
        }
    }
}

impl Ranks for World {
    fn rank(&self) -> usize {
        self.rank
    }

    fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    fn all_gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), rl_agents::Error> {
        assert!(lens.len() == self.n_ranks && lens[self.rank] == own.len(), "the lengths are not those of the ranks");
        assert_eq!(lens.iter().sum::<usize>(), all.len(), "the lengths do not add up");
        if all.len() <= MAX_LEN {
            let counts: Vec<i32> = lens.iter().map(|&len| len as i32).collect();
            let begins: Vec<i32> = counts.iter().scan(0, |begin, len| Some(std::mem::replace(begin, *begin + len))).collect();
            // SAFETY: `own` has its length, and the parts of `all` lie within it: both are checked above.
            unsafe {
                rl_mpi_all_gather(own.as_ptr(), own.len() as i32, all.as_mut_ptr(), counts.as_ptr(), begins.as_ptr());
            }
            return Ok(());
        }
        let mut rest = all;
        for (rank, &len) in lens.iter().enumerate() {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            if rank == self.rank {
                part.copy_from_slice(own);
            }
            for chunk in part.chunks_mut(MAX_LEN) {
                // SAFETY: `chunk` has that length, on every rank.
                unsafe { rl_mpi_broadcast(chunk.as_mut_ptr(), chunk.len() as i32, rank as i32) };
            }
        }
        Ok(())
    }
}
