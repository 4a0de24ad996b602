//! Memory of the device.

use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::ops::Range;

use cudarc::driver::result;

use crate::device::Driver;
use crate::error::said;
use crate::{Device, Error};

mod sealed {
    pub trait Sealed: Copy {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// What memory of the device may hold: numbers, of which any bits are one.
pub trait Element: sealed::Sealed + Default + Send + Sync + std::fmt::Debug + 'static {}

impl<T: sealed::Sealed + Default + Send + Sync + std::fmt::Debug + 'static> Element for T {}

/// Memory of a device, freed when it is dropped, after everything that was given to the device before is done.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    device: Device,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

/// Memory of the device that is read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T: Element> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a [T]>,
}

/// Memory of the device that is written.
#[derive(Debug)]
pub struct ViewMut<'a, T: Element> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

/// What lies behind memory of an emulated device, so that a kernel which writes beyond it is noticed.
const GUARD: [u8; 4096] = [0xA5; 4096];

/// Memory of an emulated device, its guard included; it begins where a driver's would, at multiples of 256.
fn layout<T>(len: usize) -> Option<Layout> {
    let bytes = len.checked_mul(size_of::<T>())?.checked_add(GUARD.len())?;
    Layout::from_size_align(bytes, 256).ok()
}

impl<T: Element> Buffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn zeros(device: &Device, len: usize) -> Result<Self, Error> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let address = match device.driver() {
            Driver::Cuda { context, .. } => {
                context.bind_to_thread().map_err(Error::driver("taking memory"))?;
                // SAFETY: the memory is cleared below, before anybody sees it.
                let address =
                    unsafe { result::malloc_sync(bytes) }.map_err(|error| Error::Memory { bytes, reason: said(error) })?;
                // SAFETY: this memory was taken just now, and is so long.
                let cleared = unsafe { result::memset_d8_sync(address, 0, bytes) };
                cleared.and_then(|()| context.synchronize()).map_err(Error::driver("clearing memory"))?;
                address
            }
            Driver::Emulated(_) => {
                let refused = || Error::Memory { bytes, reason: "the host has too little".into() };
                let layout = layout::<T>(len).ok_or_else(refused)?;
                // SAFETY: the layout is not of size 0.
                let pointer = unsafe { alloc::alloc_zeroed(layout) };
                if pointer.is_null() {
                    return Err(refused());
                }
                // SAFETY: so many bytes follow the elements in the layout.
                unsafe { pointer.add(len * size_of::<T>()).copy_from(GUARD.as_ptr(), GUARD.len()) };
                pointer.expose_provenance() as u64
            }
        };
        Ok(Self { device: device.clone(), address, len, element: PhantomData })
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

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// All of it, to be read.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// All of it, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { address: self.address, len: self.len, buffer: PhantomData }
    }
}

impl<T: Element> Drop for Buffer<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        match self.device.driver() {
            Driver::Cuda { context, .. } => {
                // After what still may use it. Errors have been, or will be, seen by whoever waits for that.
                if context.synchronize().is_ok() {
                    // SAFETY: this memory was taken in `zeros`, and nothing uses it any more.
                    let _ = unsafe { result::free_sync(self.address) };
                }
            }
            Driver::Emulated(_) => {
                let Some(layout) = layout::<T>(self.len) else { return };
                let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
                // SAFETY: the guard lies there, as `zeros` made it.
                let intact = unsafe { std::slice::from_raw_parts(memory.add(self.len * size_of::<T>()), GUARD.len()) } == GUARD;
                // SAFETY: this memory was taken in `zeros` with this layout.
                unsafe { alloc::dealloc(memory, layout) };
                assert!(intact || std::thread::panicking(), "a kernel wrote beyond its {} elements of memory", self.len);
            }
        }
    }
}

impl<'a, T: Element> View<'a, T> {
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

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it does not have that part.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> View<'a, T> {
        let (address, len) = part::<T>(self.address, self.len, range);
        View { address, len, buffer: PhantomData }
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// All of a buffer that is shared by those who give the device work on it, in the order in which they do.
    pub(crate) fn of_shared(buffer: &'a Buffer<T>) -> Self {
        Self { address: buffer.address, len: buffer.len, buffer: PhantomData }
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

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it does not have that part.
    #[must_use]
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_, T> {
        let (address, len) = part::<T>(self.address, self.len, range);
        ViewMut { address, len, buffer: PhantomData }
    }

    /// A part of it, in its place.
    ///
    /// # Panics
    /// If it does not have that part.
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
