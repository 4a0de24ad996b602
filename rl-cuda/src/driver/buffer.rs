//! Device memory.

use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::ops::Range;

use crate::driver::Driver;
use crate::driver::allocation::Allocation;
use crate::driver::api::result;
use crate::driver::args::{arguments, long};
use crate::driver::captures::no_capture;
use crate::{Device, Error};

mod sealed {
    pub trait Sealed: Copy {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Element of device memory: a number type for which every bit pattern is valid.
pub trait Element: sealed::Sealed + Default + Send + Sync + std::fmt::Debug + 'static {}

impl<T: sealed::Sealed + Default + Send + Sync + std::fmt::Debug + 'static> Element for T {}

/// Owned device memory.
///
/// On drop, the memory is freed after all work that was queued on the device before has finished.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    device: Device,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

/// Device memory, borrowed for reading.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T: Element> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a [T]>,
}

/// Device memory, borrowed for writing.
#[derive(Debug)]
pub struct ViewMut<'a, T: Element> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

arguments! {
    [T: Element] Buffer<T>: |memory, args| args.push(&long(memory.address));
    [T: Element] View<'_, T>: |memory, args| args.push(&long(memory.address));
    [T: Element] ViewMut<'_, T>: |memory, args| args.push(&long(memory.address));
    // Address 0 is no memory.
    [T: Element] Option<View<'_, T>>: |memory, args| args.push(&long(memory.as_ref().map_or(0, View::address)));
    [T: Element] Option<&View<'_, T>>: |memory, args| args.push(&long(memory.map_or(0, View::address)));
}

/// Bytes behind each emulated buffer, which reveal writes past its end.
const GUARD: [u8; 4096] = [0xA5; 4096];

/// Layout of an emulated buffer and its guard, aligned to 256 bytes as on a GPU.
fn layout<T>(len: usize) -> Option<Layout> {
    let bytes = len.checked_mul(size_of::<T>())?.checked_add(GUARD.len())?;
    Layout::from_size_align(bytes, 256).ok()
}

impl<T: Element> Buffer<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn zeros(device: &Device, len: usize) -> Result<Self, Error> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let address = match device.driver() {
            Driver::Cuda { context, .. } => {
                let _lock = no_capture();
                context.bind_to_thread().map_err(Error::driver("taking memory"))?;
                // SAFETY: the memory is cleared below, before any read.
                let address = unsafe { result::malloc_sync(bytes) }.map_err(Error::memory("taking memory", bytes))?;
                // SAFETY: `bytes` bytes were allocated at `address` just above.
                let cleared = unsafe { result::memset_d8_sync(address, 0, bytes) };
                cleared.and_then(|()| context.synchronize()).map_err(Error::driver("clearing memory"))?;
                address
            }
            Driver::Emulated(_) => {
                let refused = || Error::Memory { bytes, reason: "out of host memory".into() };
                let layout = layout::<T>(len).ok_or_else(refused)?;
                // SAFETY: the layout includes the guard, so its size is not 0.
                let pointer = unsafe { alloc::alloc_zeroed(layout) };
                if pointer.is_null() {
                    return Err(refused());
                }
                // SAFETY: the layout has room for the guard behind the elements.
                unsafe { pointer.add(len * size_of::<T>()).copy_from(GUARD.as_ptr(), GUARD.len()) };
                pointer.expose_provenance() as u64
            }
        };
        device.add_allocated(len * size_of::<T>());
        Ok(Self { device: device.clone(), address, len, element: PhantomData })
    }

    /// Allocates memory for some numbers, and copies them.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Driver`].
    pub fn of(device: &Device, numbers: &[T]) -> Result<Self, Error> {
        let mut buffer = Self::zeros(device, numbers.len())?;
        device.stream()?.upload(&buffer.view_mut(), numbers)?;
        Ok(buffer)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the buffer has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Borrows the whole buffer for reading.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// Borrows the whole buffer for writing.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { address: self.address, len: self.len, buffer: PhantomData }
    }
}

impl<T: Element> Drop for Buffer<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let layout = if self.device.is_emulated() { layout::<T>(self.len) } else { None };
        let intact = layout.is_none() || {
            let memory: *const u8 = std::ptr::with_exposed_provenance(self.address as usize);
            // SAFETY: `zeros` put the guard behind the elements.
            unsafe { std::slice::from_raw_parts(memory.add(self.len * size_of::<T>()), GUARD.len()) == GUARD }
        };
        self.device.sub_allocated(self.bytes());
        self.device.free(Allocation { address: self.address, layout });
        assert!(intact || std::thread::panicking(), "a kernel wrote past the {} elements of its buffer", self.len);
    }
}

impl<'a, T: Element> View<'a, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the view has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> View<'a, T> {
        let (address, len) = part::<T>(self.address, self.len, range);
        View { address, len, buffer: PhantomData }
    }
}

impl<'a> View<'a, u8> {
    /// Returns the bytes from `at` on as `len` elements.
    ///
    /// # Panics
    /// If they are out of bounds, or their address is no multiple of an element's size.
    #[must_use]
    pub fn column<T: Element>(&self, at: usize, len: usize) -> View<'a, T> {
        let View { address, .. } = self.slice(at..at + len * size_of::<T>());
        assert!(address.is_multiple_of(size_of::<T>() as u64), "elements of {} bytes at {at}", size_of::<T>());
        View { address, len, buffer: PhantomData }
    }
}

impl<'a> ViewMut<'a, u8> {
    /// Returns the bytes from `at` on as `len` elements.
    ///
    /// # Panics
    /// As [`View::column`].
    #[must_use]
    pub fn into_column<T: Element>(self, at: usize, len: usize) -> ViewMut<'a, T> {
        let View { address, len, .. } = self.into_view().column::<T>(at, len);
        ViewMut { address, len, buffer: PhantomData }
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Borrows a buffer that several users share.
    ///
    /// The stream orders their work, so no two of them write at the same time.
    pub(crate) fn of_shared(buffer: &'a Buffer<T>) -> Self {
        Self { address: buffer.address, len: buffer.len, buffer: PhantomData }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the view has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Splits the view in two at an index.
    ///
    /// # Panics
    /// If the index is out of bounds.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (address, len) = part::<T>(self.address, self.len, at..self.len);
        (Self { len: at, ..self }, Self { address, len, buffer: PhantomData })
    }

    /// Gives up writing.
    #[must_use]
    pub fn into_view(self) -> View<'a, T> {
        View { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// Reborrows the elements in `range`.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[must_use]
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_, T> {
        let (address, len) = part::<T>(self.address, self.len, range);
        ViewMut { address, len, buffer: PhantomData }
    }

    /// Narrows the view to the elements in `range`.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[must_use]
    pub fn into_slice(self, range: Range<usize>) -> Self {
        let (address, len) = part::<T>(self.address, self.len, range);
        Self { address, len, buffer: PhantomData }
    }
}

fn part<T>(address: u64, len: usize, range: Range<usize>) -> (u64, usize) {
    assert!(range.start <= range.end && range.end <= len, "{range:?} of {len}");
    (address + (range.start * size_of::<T>()) as u64, range.len())
}
