//! Page-locked memory, from which slabs are copied to a device without waiting.

use std::sync::{Mutex, PoisonError};

use rl_cuda::{Buffer, CpuAccess, Device, Event, PinnedSlab, Stream, ViewMut};

use crate::Error;
use crate::slab::{Block, Memory};

/// Page-locked memory of the host, for copies to a device that do not wait.
///
/// Ordinary memory for an emulated device.
#[derive(Clone, Debug)]
pub struct Pinned(pub Device);

/// Page-locked memory with a copy on the device, filled on a stream of its own.
///
/// A producer [sends](crate::Rollout::send) a rollout while the learner's stream works on the one before it; the learner's own
/// copy is then one within the device.
#[derive(Clone, Debug)]
pub struct Streamed {
    stream: Stream,
}

fn slab(device: &Device, bytes: usize) -> Result<PinnedSlab<u8>, Error> {
    let slab = PinnedSlab::zeros(Some(device), bytes, CpuAccess::ReadWrite);
    slab.map_err(|error| match error {
        rl_cuda::Error::Memory { .. } => Error::Refused { bytes: bytes as u128 },
        error => Error::Device(error),
    })
}

impl Memory for Pinned {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        Ok(Box::new(slab(&self.0, bytes)?))
    }
}

impl Streamed {
    /// Copies on `stream`, which does nothing else.
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        Self { stream }
    }
}

impl Memory for Streamed {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        let device = self.stream.device();
        let (here, there) = (slab(device, bytes)?, Buffer::zeros(device, bytes)?);
        Ok(Box::new(StreamedBlock { here, there, stream: self.stream.clone(), sent: None, read: Mutex::default() }))
    }
}

impl Block for PinnedSlab<u8> {
    fn bytes(&self) -> &[u8] {
        self.read().expect("no copy writes a block")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // If the device is lost, it copies nothing more, and the learner's next call says so.
        let _ = self.wait();
        self.write().expect("no copy is in flight")
    }

    fn upload(&self, stream: &Stream, to: &ViewMut<'_, u8>) -> Result<(), rl_cuda::Error> {
        stream.upload_async(to, self)
    }
}

/// Block of [`Streamed`] memory.
#[derive(Debug)]
struct StreamedBlock {
    here: PinnedSlab<u8>,
    there: Buffer<u8>,
    stream: Stream,
    /// End of the copy to the device, if it has what is here.
    sent: Option<Event>,
    /// End of the last copy from there.
    read: Mutex<Option<Event>>,
}

impl Block for StreamedBlock {
    fn bytes(&self) -> &[u8] {
        self.here.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.sent = None;
        self.here.bytes_mut()
    }

    fn send(&mut self) -> Result<(), rl_cuda::Error> {
        if let Some(read) = self.read.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.stream.wait(&read)?;
        }
        self.stream.upload_async(&self.there.view_mut(), &self.here)?;
        self.sent = Some(self.stream.record()?);
        Ok(())
    }

    fn upload(&self, stream: &Stream, to: &ViewMut<'_, u8>) -> Result<(), rl_cuda::Error> {
        let Some(sent) = &self.sent else { return self.here.upload(stream, to) };
        stream.wait(sent)?;
        stream.copy(to, &self.there.view().slice(0..to.len()))?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.record()?);
        Ok(())
    }
}
