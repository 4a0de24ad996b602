//! Numbers that the host writes and a device reads.

use rl_cuda::{Buffer, CpuAccess, Device, Element, Error, PinnedSlab, Stream};

/// Numbers in a device's memory, and page-locked memory to copy them from.
#[derive(Debug)]
pub(crate) struct Staged<T: Element> {
    here: PinnedSlab<T>,
    pub(crate) there: Buffer<T>,
}

impl<T: Element> Staged<T> {
    pub(crate) fn new(device: &Device, len: usize) -> Result<Self, Error> {
        let here = PinnedSlab::zeros(Some(device), len, CpuAccess::ReadWrite)?;
        Ok(Self { here, there: Buffer::zeros(device, len)? })
    }

    /// Copies `from` to the beginning without waiting.
    pub(crate) fn upload(&mut self, stream: &Stream, from: impl ExactSizeIterator<Item = T>) -> Result<(), Error> {
        let len = from.len();
        self.here.write()?.iter_mut().zip(from).for_each(|(to, from)| *to = from);
        stream.upload_async(&self.there.view_mut().into_slice(0..len), &self.here)
    }
}
