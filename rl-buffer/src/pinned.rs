//! Page-locked memory, from which slabs are copied to a device without waiting.

use rl_cuda::{CpuAccess, Device, PinnedSlab, Stream, ViewMut};

use crate::Error;
use crate::slab::{Block, Memory};

/// Page-locked memory of the host, for copies to a device that do not wait.
///
/// Ordinary memory for an emulated device.
#[derive(Clone, Debug)]
pub struct Pinned(pub Device);

impl Memory for Pinned {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        let slab = PinnedSlab::<u8>::zeros(Some(&self.0), bytes, CpuAccess::ReadWrite);
        slab.map(|slab| Box::new(slab) as Box<dyn Block>).map_err(|_| Error::Refused { bytes: bytes as u128 })
    }
}

impl Block for PinnedSlab<u8> {
    fn bytes(&self) -> &[u8] {
        self.read().expect("no copy writes a block")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // If the device is lost, the learner's next call says so; the copy in flight only reads.
        let _ = self.wait();
        self.write().expect("no copy is in flight")
    }

    fn upload(&self, stream: &Stream, to: &ViewMut<'_, u8>) -> Result<(), rl_cuda::Error> {
        stream.upload_async(to, self)
    }
}
