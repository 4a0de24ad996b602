//! A device without a driver: kernels of one PTX text, run on memory of their own.

use crate::fault::{Fault, How};
use crate::ptx::{self, Kernel, PtxError};
use crate::run::exec::{self, Launch, Nothing};
use crate::run::memory::{Actor, Memory};

/// Device that runs one launch at a time, for tests of opcodes and kernels.
///
/// ```
/// let ptx = "
/// .version 8.0
/// .target sm_75
/// .address_size 64
/// .visible .entry twice(
///     .param .u64 twice_param_0
/// )
/// {
///     .reg .b32 %r<3>;
///     .reg .b64 %rd<3>;
///     ld.param.u64 %rd1, [twice_param_0];
///     cvta.to.global.u64 %rd2, %rd1;
///     ld.global.u32 %r1, [%rd2];
///     add.s32 %r2, %r1, %r1;
///     st.global.u32 [%rd2], %r2;
///     ret;
/// }";
/// let mut machine = standin::Machine::new(ptx).unwrap();
/// let number = machine.upload(&21u32.to_le_bytes());
/// machine.run("twice", [1, 1, 1], [1, 1, 1], &[&number.to_le_bytes()]).unwrap();
/// assert_eq!(machine.download(number, 4).unwrap(), 42u32.to_le_bytes());
/// ```
#[derive(Debug)]
pub struct Machine {
    kernels: Vec<Kernel>,
    memory: Memory,
    /// Operations so far.
    seq: u32,
}

impl Machine {
    /// Parses a PTX module.
    ///
    /// # Errors
    /// [`PtxError`].
    pub fn new(ptx: &str) -> Result<Self, PtxError> {
        Ok(Self { kernels: ptx::parse(ptx)?, memory: Memory::default(), seq: 0 })
    }

    /// Returns the kernels of the module.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Allocates `len` uninitialized bytes; returns an address aligned to 512.
    pub fn allocate(&mut self, len: usize) -> u64 {
        self.memory.allocate(len)
    }

    /// Allocates memory with these contents, and returns its address.
    ///
    /// # Panics
    /// Never: the memory was just allocated.
    pub fn upload(&mut self, bytes: &[u8]) -> u64 {
        let address = self.memory.allocate(bytes.len());
        self.seq += 1;
        let actor = Actor { stream: 1, seq: self.seq, clock: &[u32::MAX; 2] };
        self.memory.range(address, bytes.len(), How::Write, &actor).expect("just allocated").copy_from_slice(bytes);
        address
    }

    /// Reads memory.
    ///
    /// # Errors
    /// [`Fault`] for bytes that are not allocated, or were never written.
    pub fn download(&mut self, address: u64, len: usize) -> Result<Vec<u8>, Fault> {
        self.seq += 1;
        let actor = Actor { stream: 1, seq: self.seq, clock: &[u32::MAX; 2] };
        self.memory.range(address, len, How::Read, &actor).map(|bytes| bytes.to_vec()).map_err(|fault| *fault)
    }

    /// Runs a kernel with the bytes of each parameter, little-endian.
    ///
    /// # Errors
    /// [`Fault`].
    ///
    /// # Panics
    /// If there is no such kernel, or the parameters have other sizes.
    pub fn run(&mut self, kernel: &str, grid: [u32; 3], block: [u32; 3], params: &[&[u8]]) -> Result<(), Fault> {
        let kernel = self.kernels.iter().find(|known| known.name == kernel).expect("a kernel of the module");
        assert!(kernel.params.iter().map(|param| param.size).eq(params.iter().map(|param| param.len())), "sizes of parameters");
        let mut bytes = vec![0; kernel.param_bytes()];
        for (place, param) in kernel.params.iter().zip(params) {
            bytes[place.offset..][..place.size].copy_from_slice(param);
        }
        self.seq += 1;
        let actor = Actor { stream: 1, seq: self.seq, clock: &[u32::MAX; 2] };
        let launch = Launch { kernel, grid, block, params: &bytes, limit: exec::MAX_INSTRUCTIONS };
        exec::run(launch, &mut self.memory, actor, &mut Nothing).map_err(|fault| *fault)
    }
}
