//! Page-locked host memory, for asynchronous copies to and from the device.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::Driver;
use crate::driver::api::{result, sys};
use crate::driver::buffer::Element;
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
/// to the slab that could disturb the copy waits for it.
#[derive(Debug)]
pub struct PinnedSlab<T: Element> {
    device: Option<Device>, // `None`: ordinary memory
    pointer: NonNull<T>,
    len: usize,
    access: CpuAccess,
    copies: Mutex<Copies>,
}

/// The copy of a slab in flight, if any.
#[derive(Debug, Default)]
struct Copies {
    in_flight: Option<InFlight>,
    /// True if a wait has failed: the device is lost, and copies nothing more.
    is_lost: bool,
}

impl Copies {
    /// Waits for the copy in flight, if any.
    fn wait(&mut self) -> Result<(), Error> {
        let Some(InFlight { end, .. }) = self.in_flight.take() else { return Ok(()) };
        end.synchronize().inspect_err(|_| self.is_lost = true)
    }
}

/// Copy in flight, with the event that marks its end.
#[derive(Debug)]
struct InFlight {
    end: Event,
    /// True if the copy writes the slab.
    writes: bool,
}

// SAFETY: the slab owns its memory, and its elements are plain numbers, valid on any thread.
#[allow(unsafe_code)]
unsafe impl<T: Element> Send for PinnedSlab<T> {}

// SAFETY: shared slabs are only read, after the copies that write them.
#[allow(unsafe_code)]
unsafe impl<T: Element> Sync for PinnedSlab<T> {}

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len.max(1)).and_then(|layout| layout.align_to(64)).ok()
}

impl<T: Element> PinnedSlab<T> {
    /// Allocates `len` zeros, page-locked if there is a device.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Driver`].
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
                let pointer = pointer.map_err(Error::memory("locking memory", bytes))?;
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
        Ok(Self { device: device.cloned(), pointer, len, access, copies: Mutex::default() })
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

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the copy in flight, if any.
    ///
    /// # Errors
    /// [`Error::Driver`], once: a device that is lost copies nothing more.
    pub fn wait(&self) -> Result<(), Error> {
        // Others wait for the lock, not for the event alone.
        self.copies().wait()
    }

    /// Waits for the copy in flight if it writes the slab, then returns the elements.
    ///
    /// # Errors
    /// [`Error::Kind`] if the slab is [`CpuAccess::WriteOnly`], or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn read(&self) -> Result<&[T], Error> {
        if self.access == CpuAccess::WriteOnly {
            return Err(Error::Kind { what: "pinned slab", expected: "one that the CPU may read" });
        }
        let mut copies = self.copies();
        if copies.in_flight.as_ref().is_some_and(|copy| copy.writes) {
            copies.wait()?;
        }
        drop(copies);
        // SAFETY: the slab owns `len` initialized elements. No copy writes them: a new one needs the slab for itself alone.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) })
    }

    /// Waits for the copy in flight, if any, then returns the elements for writing.
    ///
    /// # Errors
    /// [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn write(&mut self) -> Result<&mut [T], Error> {
        self.wait()?;
        // SAFETY: the slab owns `len` initialized elements, and no copy is in flight.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) })
    }

    /// Waits for the copy in flight, if any, and starts another one with `copy`.
    ///
    /// `copy` gets the address of at least `len` elements.
    fn begin(
        &self,
        what: &'static str,
        len: usize,
        writes: bool,
        copy: impl FnOnce(NonNull<T>) -> Result<Option<Event>, Error>,
    ) -> Result<(), Error> {
        if len > self.len {
            return Err(Error::Length { what, expected: len, found: self.len });
        }
        let mut copies = self.copies();
        copies.wait()?;
        copies.in_flight = copy(self.pointer)?.map(|end| InFlight { end, writes });
        Ok(())
    }
}

impl Stream {
    /// Records the end of a copy; if that fails, waits for it.
    fn end_of_copy(&self) -> Result<Event, Error> {
        self.record().or_else(|error| {
            self.synchronize()?;
            Err(error)
        })
    }

    /// Copies the beginning of a slab to the device without waiting.
    ///
    /// The slab waits before it is written.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn upload_async<T: Element>(&self, to: &ViewMut<'_, T>, from: &PinnedSlab<T>) -> Result<(), Error> {
        from.begin("upload_async", to.len(), false, |source| {
            // SAFETY: the slab owns at least this many initialized elements, never moves them, and waits for the event below
            // before it writes or frees them.
            let source = unsafe { std::slice::from_raw_parts(source.as_ptr(), to.len()) };
            let Some(stream) = self.cuda() else { return self.upload(to, source).map(|()| None) };
            stream.context().bind_to_thread().map_err(Error::driver("copying to the device"))?;
            // SAFETY: `to` borrows device memory of this length; the source stays valid as shown above.
            unsafe { result::memcpy_htod_async(to.address(), source, stream.cu_stream()) }
                .map_err(Error::driver("copying to the device"))?;
            self.end_of_copy().map(Some)
        })
    }

    /// Copies from the device to the beginning of a slab without waiting.
    ///
    /// The slab's next access waits.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn download_async<T: Element>(&self, to: &mut PinnedSlab<T>, from: &View<'_, T>) -> Result<(), Error> {
        to.begin("download_async", from.len(), true, |target| {
            // SAFETY: the slab owns at least this many initialized elements, never moves them, and waits for the event below
            // before it reads or frees them.
            let target = unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), from.len()) };
            let Some(stream) = self.cuda() else { return self.download(target, from).map(|()| None) };
            stream.context().bind_to_thread().map_err(Error::driver("copying from the device"))?;
            // SAFETY: `from` borrows device memory of this length; the target stays valid as shown above.
            unsafe { result::memcpy_dtoh_async(target, from.address(), stream.cu_stream()) }
                .map_err(Error::driver("copying from the device"))?;
            self.end_of_copy().map(Some)
        })
    }
}

impl<T: Element> Drop for PinnedSlab<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.wait().is_err() || self.copies().is_lost {
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
        slab.write().unwrap()[2..4].copy_from_slice(&[1.0, 2.0]);
        assert_eq!(slab.read().unwrap(), [0.0, 0.0, 1.0, 2.0, 0.0]);
    }

    #[test]
    fn a_slab_that_the_cpu_only_writes_cannot_be_read() {
        let mut slab = PinnedSlab::<u8>::zeros(None, 3, CpuAccess::WriteOnly).unwrap();
        slab.write().unwrap().fill(1);
        assert!(matches!(slab.read(), Err(Error::Kind { .. })));
    }
}
