//! Words of a policy's file, read in order.

use core::fmt;

use crate::error::Error;

/// Maximum length of a field of a policy's file.
pub const MAX_LEN: usize = 1 << 28;

/// Numbers of a file: little-endian words.
#[derive(Clone, Copy)]
pub(crate) struct Floats<'a>(pub(crate) &'a [[u8; 4]]);

impl fmt::Debug for Floats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers", self.len())
    }
}

impl Floats<'_> {
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    pub(crate) fn at(self, i: usize) -> f32 {
        f32::from_le_bytes(self.0[i])
    }
}

impl<'a> Floats<'a> {
    #[inline(always)]
    pub(crate) fn iter(self) -> impl Iterator<Item = f32> + use<'a> {
        self.0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }
}

/// Words of a file that are still to be read.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a [[u8; 4]]);

impl<'a> Words<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [[u8; 4]], Error> {
        let (words, rest) = self.0.split_at_checked(n).ok_or(Error::Contents)?;
        self.0 = rest;
        Ok(words)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.take(1).map(|words| u32::from_le_bytes(words[0]))
    }

    /// A length of 1 or more.
    pub(crate) fn len(&mut self) -> Result<usize, Error> {
        let n = self.u32()? as usize;
        if (1..=MAX_LEN).contains(&n) { Ok(n) } else { Err(Error::Contents) }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Contents),
        }
    }

    pub(crate) fn floats(&mut self, n: usize) -> Result<Floats<'a>, Error> {
        self.take(n).map(Floats)
    }
}

/// Returns a product of lengths, unless it is more than [`MAX_LEN`].
pub(crate) fn product(lengths: &[usize]) -> Result<usize, Error> {
    let product = lengths.iter().try_fold(1usize, |product, n| product.checked_mul(*n).filter(|n| *n <= MAX_LEN));
    product.ok_or(Error::Contents)
}

/// Returns a sum of lengths, unless it is more than [`MAX_LEN`].
pub(crate) fn sum(lengths: impl Iterator<Item = u32>) -> Result<usize, Error> {
    let sum: u64 = lengths.map(u64::from).sum(); // of at most 2^30 lengths: a file has no more words
    if sum <= MAX_LEN as u64 { Ok(sum as usize) } else { Err(Error::Contents) }
}
