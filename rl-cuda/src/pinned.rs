//! Page-locked memory of the host, from which and to which the device copies by itself.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::{result, sys};

use crate::buffer::Element;
use crate::device::Driver;
use crate::{Device, Error, Event};

/// What the CPU does with a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuAccess {
    /// It reads and writes.
    ReadWrite,
    /// It only writes: memory that is write-combined, which the device reads faster and the CPU could hardly read.
    WriteOnly,
}

/// Memory of the host that does not move and cannot be paged out, so that copies to and from the device go on by themselves. Without
/// a device, ordinary memory. While a copy is under way, whoever touches the slab waits for it.
#[derive(Debug)]
pub struct PinnedSlab<T: Element> {
    device: Option<Device>, // none: ordinary memory
    pointer: NonNull<T>,
    len: usize,
    access: CpuAccess,
    copy: Option<Event>,
}

// SAFETY: the slab owns its memory, and numbers may be used on any thread.
#[allow(unsafe_code)]
unsafe impl<T: Element> Send for PinnedSlab<T> {}

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len.max(1)).and_then(|layout| layout.align_to(64)).ok()
}

impl<T: Element> PinnedSlab<T> {
    /// `len` zeros, page-locked if there is a device.
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
                // SAFETY: it is cleared below, before anybody sees it.
                let pointer = unsafe { result::malloc_host(bytes, combined | sys::CU_MEMHOSTALLOC_PORTABLE) };
                let pointer = pointer.map_err(|error| Error::Memory { bytes, reason: crate::error::said(error) })?;
                // SAFETY: so many bytes were taken just now.
                unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
                pointer.cast()
            }
            _ => {
                let layout = layout::<T>(len).ok_or(Error::Memory { bytes, reason: "too long".into() })?;
                // SAFETY: the layout is not of size 0.
                unsafe { alloc::alloc_zeroed(layout) }.cast()
            }
        };
        let pointer = NonNull::new(pointer).ok_or(Error::Memory { bytes, reason: "the host has too little".into() })?;
        Ok(Self { device: device.cloned(), pointer, len, access, copy: None })
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits for the copy that is under way, if there is one.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait(&mut self) -> Result<(), Error> {
        self.copy.take().map_or(Ok(()), |copy| copy.synchronize())
    }

    /// What it holds, once a copy that is under way is done.
    ///
    /// # Errors
    /// [`Error::Kind`] if the CPU is only to write, or [`Error::Driver`].
    pub fn read(&mut self) -> Result<&[T], Error> {
        if self.access == CpuAccess::WriteOnly {
            return Err(Error::Kind { what: "pinned slab", expected: "one that the CPU may read" });
        }
        self.wait()?;
        Ok(self.memory())
    }

    /// Writes from element `at` on, once a copy that is under way is done.
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
        // SAFETY: the slab owns so many initialized elements, and no copy is under way where this is called.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }

    /// Where a copy of `len` elements begins, after the copy before it is done.
    pub(crate) fn begin_copy(&mut self, what: &'static str, len: usize) -> Result<NonNull<T>, Error> {
        self.wait()?;
        if len > self.len { Err(Error::Length { what, expected: len, found: self.len }) } else { Ok(self.pointer) }
    }

    /// Says when the copy that began is done.
    pub(crate) fn end_copy(&mut self, event: Event) {
        self.copy = Some(event);
    }
}

impl<T: Element> Drop for PinnedSlab<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.wait().is_err() {
            return; // better lost than freed under a copy
        }
        match self.device.as_ref().map(Device::driver) {
            Some(Driver::Cuda { context, .. }) => {
                if context.bind_to_thread().is_ok() {
                    // SAFETY: taken in `zeros` from the driver, and no copy is under way.
                    let _ = unsafe { result::free_host(self.pointer.as_ptr().cast::<c_void>()) };
                }
            }
            _ => {
                if let Some(layout) = layout::<T>(self.len) {
                    // SAFETY: taken in `zeros` with this layout.
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
