//! Kernels and their launches.

use std::ffi::c_void;
use std::fmt;

use cudarc::driver::{CudaFunction, result, sys};

use crate::error::said;
use crate::stream::Work;
use crate::{Error, Stream, emulated};

/// Loaded kernel of a GPU or of the host.
#[derive(Clone)]
pub(crate) enum Loaded {
    Cuda(CudaFunction),
    Emulated(emulated::HostKernel),
}

/// Loaded kernel, with its name for messages.
#[derive(Clone)]
pub(crate) struct Kernel {
    name: String,
    function: Loaded,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The driver's figures for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Registers per thread.
    pub registers: i32,
    /// Bytes of local memory per thread; above 0 where registers were spilled.
    pub local_bytes: i32,
    /// Maximum number of threads per block.
    pub max_threads: i32,
    /// Block size with the best occupancy, as the driver computes it.
    pub suggested_block: u32,
}

/// Kernel arguments, copied.
///
/// Each is a 32-bit value or a struct of such values, aligned to 8 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    words: [u64; 40],
    starts: [u8; 12],
    len: usize,
    used: usize,
}

impl Args {
    pub(crate) fn new() -> Self {
        Self { words: [0; 40], starts: [0; 12], len: 0, used: 0 }
    }

    /// Appends an argument, given as 32-bit words, low word first.
    pub(crate) fn push(mut self, words: &[u32]) -> Self {
        self.starts[self.len] = self.used as u8;
        self.len += 1;
        for pair in words.chunks(2) {
            self.words[self.used] = pair.iter().rev().fold(0, |word, &half| word << 32 | u64::from(half));
            self.used += 1;
        }
        self
    }

    /// Appends a 64-bit argument, such as an address.
    pub(crate) fn push_long(self, word: u64) -> Self {
        self.push(&long(word))
    }

    fn pointers(&mut self) -> [*mut c_void; 12] {
        let mut pointers = [std::ptr::null_mut(); 12];
        for (pointer, &start) in pointers.iter_mut().zip(&self.starts[..self.len]) {
            *pointer = (&raw mut self.words[usize::from(start)]).cast();
        }
        pointers
    }
}

/// Splits 64 bits into two words, low word first.
pub(crate) fn long(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

impl Kernel {
    pub(crate) fn new(name: String, function: Loaded) -> Self {
        Self { name, function }
    }

    /// Returns the driver's figures, or `None` for an emulated kernel.
    pub(crate) fn info(&self) -> Result<Option<KernelInfo>, Error> {
        let Loaded::Cuda(function) = &self.function else { return Ok(None) };
        extern "C" fn no_shared_memory(_: i32) -> usize {
            0
        }
        let ask = || -> Result<_, cudarc::driver::DriverError> {
            let (_, block) = function.occupancy_max_potential_block_size(no_shared_memory, 0, 0, None)?;
            Ok(KernelInfo {
                registers: function.num_regs()?,
                local_bytes: function.local_size_bytes()?,
                max_threads: function.max_threads_per_block()?,
                suggested_block: block,
            })
        };
        ask().map(Some).map_err(Error::driver("asking about a kernel"))
    }

    /// Launches `n` threads on the stream, in blocks of `threads`; a no-op for `n` = 0.
    ///
    /// # Safety
    /// `args` have the types of the kernel's parameters. Addresses among them point to as much device memory as the kernel reads
    /// and writes, and that memory stays allocated until the stream has finished the launch.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn launch(&self, stream: &Stream, n: u64, threads: u32, mut args: Args) -> Result<(), Error> {
        let failed = |blocks, reason| Error::Launch { kernel: self.name.clone(), blocks, threads, reason };
        let blocks = n.div_ceil(u64::from(threads.max(1)));
        if threads == 0 || blocks > i32::MAX as u64 {
            return Err(failed(0, format!("{n} threads do not fit into a grid of such blocks")));
        }
        if n == 0 {
            return Ok(()); // the driver rejects an empty grid
        }
        let blocks = blocks as u32;
        match &self.function {
            Loaded::Cuda(function) => {
                let Some(cuda) = stream.cuda() else {
                    return Err(failed(blocks, "the stream belongs to another device".into()));
                };
                let (mut pointers, len) = (args.pointers(), args.len);
                cuda.context().bind_to_thread().map_err(|error| failed(blocks, said(error)))?;
                // SAFETY: the function stays loaded while `self` lives, the driver copies the arguments before it returns, and the
                // caller guarantees their types and their memory.
                let launched = unsafe {
                    result::launch_kernel(
                        function.cu_function(),
                        (blocks, 1, 1),
                        (threads, 1, 1),
                        0,
                        cuda.cu_stream(),
                        &mut pointers[..len],
                    )
                };
                launched.map_err(|error| match error.0 {
                    sys::CUresult::CUDA_ERROR_INVALID_VALUE | sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                        failed(blocks, format!("{}; try smaller blocks", said(error)))
                    }
                    _ => failed(blocks, said(error)),
                })
            }
            Loaded::Emulated(function) => {
                let work = Work { function: function.clone(), blocks, threads, args };
                stream.emulate(work).ok_or_else(|| failed(blocks, "the stream belongs to another device".into()))
            }
        }
    }
}

impl Work {
    /// Runs an emulated launch.
    #[allow(unsafe_code)]
    pub(crate) fn run(&mut self) {
        let (mut pointers, len) = (self.args.pointers(), self.args.len);
        // SAFETY: the caller of `Kernel::launch` guaranteed the arguments and their memory.
        unsafe { self.function.run(self.blocks, self.threads, &mut pointers[..len]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_as_the_kernel_reads_them() {
        let mut args = Args::new().push(&[1, 2, 3]).push_long(0x0123_4567_89AB_CDEF).push(&[7]);
        assert_eq!(args.words[..4], [0x2_0000_0001, 3, 0x0123_4567_89AB_CDEF, 7]);
        assert_eq!((&args.starts[..args.len], args.used), (&[0, 2, 3][..], 4));
        assert!(args.pointers()[..3].iter().all(|pointer| !pointer.is_null()));
    }
}
