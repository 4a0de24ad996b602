//! Slabs: blocks of memory of any kind, cut into typed columns.
//!
//! A rollout, the rows of a replay buffer and a batch are one slab each, so copying one is one copy. Every column begins at a
//! multiple of [`ALIGN`] bytes. The kind of memory is a value: [`Host`], or any other [`Memory`] that hands out aligned blocks.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ndarray::{ArrayView2, ArrayViewMut2};
use rl_cuda::{Element, Stream, View, ViewMut};

use crate::Error;
use crate::memory::filled;

/// Alignment of a slab and of each of its columns in bytes: one cache line.
pub const ALIGN: usize = 64;

/// Block of memory that the host can read and write; dropping it frees it.
pub trait Block: Debug + Send + Sync {
    /// Returns the bytes, which never move.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes for writing.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Begins to copy the block to where [`Block::upload`] takes it from.
    ///
    /// By default there is no such place.
    ///
    /// # Errors
    /// Errors of the device.
    fn send(&mut self) -> Result<(), rl_cuda::Error> {
        Ok(())
    }

    /// Copies the beginning to a device.
    ///
    /// The copy may end later, but before the block is written. By default it ends at once.
    ///
    /// # Errors
    /// Errors of the device.
    fn upload(&self, stream: &Stream, to: &ViewMut<'_, u8>) -> Result<(), rl_cuda::Error> {
        stream.upload(to, &self.bytes()[..to.len()])
    }
}

/// Kind of memory that slabs are allocated in.
pub trait Memory: Debug + Send + Sync {
    /// Allocates at least `bytes` zeros at an address that is a multiple of [`ALIGN`].
    ///
    /// # Errors
    /// [`Error::Refused`] if there is not enough memory, or errors of the device or file that it is in.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error>;

    /// Returns the bytes that can still be allocated, if that is known.
    fn available(&self) -> Option<u64> {
        crate::memory::available()
    }
}

impl dyn Memory {
    /// Returns [`Host`].
    #[must_use]
    pub fn host() -> Arc<Self> {
        Arc::new(Host)
    }
}

/// Ordinary memory of the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

#[derive(Debug)]
struct HostBlock {
    /// The block, preceded by less than [`ALIGN`] bytes.
    bytes: Vec<u8>,
    start: usize,
}

impl Block for HostBlock {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl Memory for Host {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        let bytes = filled(bytes.saturating_add(ALIGN - 1), 0u8)?;
        let start = bytes.as_ptr().addr().wrapping_neg() % ALIGN;
        Ok(Box::new(HostBlock { bytes, start }))
    }
}

/// Aligned block of memory, read and written as typed columns.
#[derive(Debug)]
pub(crate) struct Slab {
    block: Box<dyn Block>,
    bytes: usize,
    memory: Arc<dyn Memory>,
}

impl Slab {
    /// Allocates zeros for a layout.
    pub(crate) fn new(layout: &Layout, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        let bytes = layout.bytes;
        let block = memory.allocate(bytes)?;
        let (address, found) = (block.bytes().as_ptr().addr(), block.bytes().len());
        if found < bytes || !address.is_multiple_of(ALIGN) {
            return Err(Error::Block { bytes, found, address });
        }
        Ok(Self { block, bytes, memory: memory.clone() })
    }

    /// Bytes of all columns.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a column.
    #[inline]
    pub(crate) fn get<T: Pod>(&self, span: Span<T>) -> &[T] {
        cast_slice(&self.block.bytes()[span.at..][..span.len() * size_of::<T>()])
    }

    /// Returns a column for writing.
    #[inline]
    pub(crate) fn get_mut<T: Pod>(&mut self, span: Span<T>) -> &mut [T] {
        cast_slice_mut(&mut self.block.bytes_mut()[span.at..][..span.len() * size_of::<T>()])
    }

    /// Returns a column as an array of its rows.
    pub(crate) fn array<T: Pod>(&self, span: Span<T>) -> ArrayView2<'_, T> {
        ArrayView2::from_shape((span.rows, span.width), self.get(span)).expect(FITS)
    }

    /// Returns the bytes of all columns for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.block.bytes_mut()[..self.bytes]
    }

    /// Copies the bytes into memory of the given kind.
    pub(crate) fn copy_in(&self, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        let mut copy = Self::new(&Layout { bytes: self.bytes }, memory)?;
        copy.bytes_mut().copy_from_slice(&self.block.bytes()[..self.bytes]);
        Ok(copy)
    }

    /// Begins to copy the block, as [`Block::send`] does.
    pub(crate) fn send(&mut self) -> Result<(), rl_cuda::Error> {
        self.block.send()
    }

    /// Copies all columns to a device, as [`Block::upload`] does.
    pub(crate) fn upload(&self, stream: &Stream, to: &ViewMut<'_, u8>) -> Result<(), rl_cuda::Error> {
        self.block.upload(stream, to)
    }

    /// Lends all columns for writing, in the order of their layout.
    pub(crate) fn cut(&mut self) -> Cut<'_> {
        Cut { rest: self.block.bytes_mut(), at: 0 }
    }
}

impl Clone for Slab {
    /// Copies the bytes into memory of the same kind.
    ///
    /// # Panics
    /// If there is not enough memory.
    fn clone(&self) -> Self {
        self.copy_in(&self.memory).expect("memory for a copy")
    }
}

const FITS: &str = "a column is its rows";

/// Position of a column of `T`: byte offset, number of rows, elements per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span<T> {
    at: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    element: PhantomData<T>,
}

impl<T: Copy> Span<T> {
    /// Number of elements.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.rows * self.width
    }

    /// Offset in bytes.
    pub(crate) fn at(self) -> usize {
        self.at
    }

    /// Returns the column of a slab in a device's memory.
    pub(crate) fn of(self, slab: View<'_, u8>) -> View<'_, T>
    where
        T: Element,
    {
        slab.column(self.at, self.len())
    }
}

/// Layout of a slab: columns one after the other, each aligned.
///
/// Sizes saturate, so a shape that no memory holds has a length that no memory grants.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Bytes of the columns so far, rounded up to [`ALIGN`].
    pub(crate) bytes: usize,
}

impl Layout {
    /// Appends a column of `rows` rows of `width` elements.
    pub(crate) fn push<T: Pod>(&mut self, rows: usize, width: usize) -> Span<T> {
        let at = self.bytes;
        let end = rows.saturating_mul(width).saturating_mul(size_of::<T>()).saturating_add(at);
        self.bytes = end.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        Span { at, rows, width, element: PhantomData }
    }
}

/// Rest of a slab from which columns are taken for writing.
pub(crate) struct Cut<'a> {
    rest: &'a mut [u8],
    at: usize,
}

impl<'a> Cut<'a> {
    /// Takes the next column.
    ///
    /// # Panics
    /// If a later column of the slab was taken before.
    pub(crate) fn take<T: Pod>(&mut self, span: Span<T>) -> &'a mut [T] {
        let len = span.len() * size_of::<T>();
        let (_, rest) = std::mem::take(&mut self.rest).split_at_mut(span.at - self.at);
        let (column, rest) = rest.split_at_mut(len);
        (self.rest, self.at) = (rest, span.at + len);
        cast_slice_mut(column)
    }

    /// Takes the next column as an array of its rows.
    ///
    /// # Panics
    /// As [`Cut::take`].
    pub(crate) fn array<T: Pod>(&mut self, span: Span<T>) -> ArrayViewMut2<'a, T> {
        ArrayViewMut2::from_shape((span.rows, span.width), self.take(span)).expect(FITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_do_not_overlap() {
        let mut layout = Layout::default();
        let (bytes, words) = (layout.push::<u8>(3, 5), layout.push::<u32>(1, 17));
        let (none, longs) = (layout.push::<u64>(2, 0), layout.push::<u64>(2, 2));
        assert_eq!((layout.bytes, [bytes.at, words.at, none.at, longs.at]), (256, [0, 64, 192, 192]));
        let mut slab = Slab::new(&layout, &<dyn Memory>::host()).expect("fits");
        let mut cut = slab.cut();
        cut.take(bytes).fill(1);
        cut.take(words).fill(2);
        assert!(cut.take(none).is_empty());
        cut.array(longs)[[1, 0]] = 3;
        for slab in [&slab, &slab.clone()] {
            assert_eq!(slab.get(bytes), [1; 15]);
            assert_eq!(slab.get(words), [2; 17]);
            assert_eq!(slab.array(longs), ndarray::array![[0, 0], [3, 0]]);
            assert!(slab.get(words).as_ptr().addr().is_multiple_of(ALIGN));
        }
    }

    #[test]
    fn a_layout_that_no_memory_holds_is_refused() {
        let mut layout = Layout::default();
        layout.push::<u32>(usize::MAX, 7);
        assert_eq!(layout.bytes, usize::MAX);
        assert!(matches!(Slab::new(&layout, &<dyn Memory>::host()), Err(Error::Refused { .. })));
    }

    #[derive(Debug)]
    struct Crooked;

    impl Memory for Crooked {
        fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
            let mut block = HostBlock { bytes: filled(bytes + 2 * ALIGN, 0)?, start: 0 };
            block.start = block.bytes.as_ptr().addr().wrapping_neg() % ALIGN + 4;
            Ok(Box::new(block))
        }
    }

    #[test]
    fn memory_that_is_not_aligned_is_refused() {
        let mut layout = Layout::default();
        layout.push::<u32>(1, 1);
        let crooked: Arc<dyn Memory> = Arc::new(Crooked);
        let error = Slab::new(&layout, &crooked).expect_err("is 4 bytes off");
        assert!(error.to_string().contains("multiple of 64"), "{error}");
    }
}
