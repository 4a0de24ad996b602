//! Page-locked host memory, for asynchronous copies to and from the device.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::{result, sys};

use crate::buffer::Element;
use crate::device::Driver;
use crate::{Device, Error, Event, Stream, View, ViewMut};

/// CPU access to a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuAccess {
    /// The CPU reads and writes.
    ReadWrite,
    /// The CPU only writes.
    ///
    /// The memory is write-combined: the device reads it faster, and CPU reads are very slow.
    WriteOnly,
}

/// Host memory that is page-locked, for asynchronous copies to and from the device.
///
/// The memory never moves and is never paged out. Without a device it is ordinary memory. While a copy is in flight, every access
/// to the slab waits for the copy.
#[derive(Debug)]
pub struct PinnedSlab<T: Element> {
    device: Option<Device>, // `None`: ordinary memory
    pointer: NonNull<T>,
    len: usize,
    access: CpuAccess,
    copy: Option<Event>,
}

// SAFETY: the slab owns its memory, and its elements are plain numbers, valid on any thread.
#[allow(unsafe_code)]
unsafe impl<T: Element> Send for PinnedSlab<T> {}

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len.max(1)).and_then(|layout| layout.align_to(64)).ok()
}

impl<T: Element> PinnedSlab<T> {
    /// Allocates `len` zeros, page-locked if there is a device.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[allow(unsafe_code)]
    pub fn zeros(device: Option<&Device>, len: usize, access: CpuAccess) -> Result<Self, Error> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let device = device.filter(|device| !device.is_emulated());
        let pointer = match device.map(Device::driver) {
            Some(Driver::Cuda { context, .. }) => {
                context.bind_to_thread().map_err(Error::driver("locking memory"))?;
                let combined = if access == CpuAccess::WriteOnly { sys::CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 };
                // SAFETY: the memory is cleared below, before any read.
                let pointer = unsafe { result::malloc_host(bytes, combined | sys::CU_MEMHOSTALLOC_PORTABLE) };
                let pointer = pointer.map_err(|error| Error::Memory { bytes, reason: crate::error::said(error) })?;
                // SAFETY: `bytes` bytes were allocated just above.
                unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
                pointer.cast()
            }
            _ => {
                let layout = layout::<T>(len).ok_or(Error::Memory { bytes, reason: "too long".into() })?;
                // SAFETY: `layout` never returns a layout of size 0.
                unsafe { alloc::alloc_zeroed(layout) }.cast()
            }
        };
        let pointer = NonNull::new(pointer).ok_or(Error::Memory { bytes, reason: "out of host memory".into() })?;
        Ok(Self { device: device.cloned(), pointer, len, access, copy: None })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the slab has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits for the copy in flight, if any.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait(&mut self) -> Result<(), Error> {
        self.copy.take().map_or(Ok(()), |copy| copy.synchronize())
    }

    /// Waits for the copy in flight, if any, then returns the elements.
    ///
    /// # Errors
    /// [`Error::Kind`] if the slab is [`CpuAccess::WriteOnly`], or [`Error::Driver`].
    pub fn read(&mut self) -> Result<&[T], Error> {
        if self.access == CpuAccess::WriteOnly {
            return Err(Error::Kind { what: "pinned slab", expected: "one that the CPU may read" });
        }
        self.wait()?;
        Ok(self.memory())
    }

    /// Waits for the copy in flight, if any, then writes `from` at offset `at`.
    ///
    /// # Errors
    /// [`Error::Length`] if `from` does not fit, or [`Error::Driver`].
    pub fn write(&mut self, at: usize, from: &[T]) -> Result<(), Error> {
        self.wait()?;
        let (found, expected) = (from.len(), self.len.saturating_sub(at));
        let to = self.memory().get_mut(at..at + found).ok_or(Error::Length { what: "pinned slab", expected, found })?;
        to.copy_from_slice(from);
        Ok(())
    }

    #[allow(unsafe_code)]
    fn memory(&mut self) -> &mut [T] {
        // SAFETY: the slab owns `len` initialized elements, and every caller has waited for the copy in flight.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }

    /// Waits for the copy in flight, if any, then returns the address for a new copy.
    pub(crate) fn begin_copy(&mut self, what: &'static str, len: usize) -> Result<NonNull<T>, Error> {
        self.wait()?;
        if len > self.len { Err(Error::Length { what, expected: len, found: self.len }) } else { Ok(self.pointer) }
    }

    /// Registers the event that marks the end of the copy that was just started.
    pub(crate) fn end_copy(&mut self, event: Event) {
        self.copy = Some(event);
    }
}

impl Stream {
    /// Copies the beginning of a slab to the device without waiting.
    ///
    /// The slab's next access waits.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn upload_async<T: Element>(&self, to: &ViewMut<'_, T>, from: &mut PinnedSlab<T>) -> Result<(), Error> {
        let source = from.begin_copy("upload_async", to.len())?;
        // SAFETY: the slab owns at least this many initialized elements, never moves them, and waits for the event below before it
        // writes or frees them.
        let source = unsafe { std::slice::from_raw_parts(source.as_ptr(), to.len()) };
        match self.cuda() {
            Some(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying to the device"))?;
                // SAFETY: `to` borrows device memory of this length; the source stays valid as shown above.
                unsafe { result::memcpy_htod_async(to.address(), source, stream.cu_stream()) }
                    .map_err(Error::driver("copying to the device"))?;
                from.end_copy(self.record()?);
                Ok(())
            }
            None => self.upload(to, source),
        }
    }

    /// Copies from the device to the beginning of a slab without waiting.
    ///
    /// The slab's next access waits.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn download_async<T: Element>(&self, to: &mut PinnedSlab<T>, from: &View<'_, T>) -> Result<(), Error> {
        let target = to.begin_copy("download_async", from.len())?;
        // SAFETY: the slab owns at least this many initialized elements, never moves them, and waits for the event below before it
        // reads or frees them.
        let target = unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), from.len()) };
        match self.cuda() {
            Some(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying from the device"))?;
                // SAFETY: `from` borrows device memory of this length; the target stays valid as shown above.
                unsafe { result::memcpy_dtoh_async(target, from.address(), stream.cu_stream()) }
                    .map_err(Error::driver("copying from the device"))?;
                to.end_copy(self.record()?);
                Ok(())
            }
            None => self.download(target, from),
        }
    }
}

impl<T: Element> Drop for PinnedSlab<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.wait().is_err() {
            return; // a leak is better than freeing memory under a copy
        }
        match self.device.as_ref().map(Device::driver) {
            Some(Driver::Cuda { context, .. }) => {
                if context.bind_to_thread().is_ok() {
                    // SAFETY: `zeros` got this memory from the driver, and no copy is in flight.
                    let _ = unsafe { result::free_host(self.pointer.as_ptr().cast::<c_void>()) };
                }
            }
            _ => {
                if let Some(layout) = layout::<T>(self.len) {
                    // SAFETY: `zeros` allocated this memory with the same layout.
                    unsafe { alloc::dealloc(self.pointer.as_ptr().cast(), layout) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_a_slab_is_ordinary_memory() {
        let mut slab = PinnedSlab::<f32>::zeros(None, 5, CpuAccess::ReadWrite).unwrap();
        slab.write(2, &[1.0, 2.0]).unwrap();
        assert_eq!(slab.read().unwrap(), [0.0, 0.0, 1.0, 2.0, 0.0]);
        assert!(matches!(slab.write(4, &[1.0, 2.0]), Err(Error::Length { .. })));
    }

    #[test]
    fn a_slab_that_the_cpu_only_writes_cannot_be_read() {
        let mut slab = PinnedSlab::<u8>::zeros(None, 3, CpuAccess::WriteOnly).unwrap();
        slab.write(0, &[1, 2, 3]).unwrap();
        assert!(matches!(slab.read(), Err(Error::Kind { .. })));
    }
}
