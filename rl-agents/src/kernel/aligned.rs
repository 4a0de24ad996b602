//! Numbers that begin at a cache line.

use std::ops::{Deref, DerefMut};

/// Numbers of a cache line.
const LINE: usize = 16;

/// A vector of numbers that begins at a cache line.
///
/// A vector register is as wide as a line with AVX-512. From an allocation of any alignment, every access would touch two lines:
/// an update of 64-64 networks takes 4% longer.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    /// The numbers, preceded by less than a line.
    numbers: Vec<f32>,
    start: usize,
}

impl Aligned {
    /// Allocates `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let mut numbers = vec![0.0; len + LINE - 1];
        let start = numbers.as_ptr().addr().wrapping_neg() / size_of::<f32>() % LINE;
        numbers.truncate(start + len);
        Self { numbers, start }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        &self.numbers[self.start..]
    }
}

impl DerefMut for Aligned {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.numbers[self.start..]
    }
}

impl Clone for Aligned {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len());
        copy.copy_from_slice(self);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_their_copies_begin_at_a_line() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut numbers = Aligned::zeros(len);
            assert_eq!(*numbers, *vec![0.0; len]);
            numbers.iter_mut().zip(1..).for_each(|(x, i)| *x = i as f32);
            let copy = numbers.clone();
            assert_eq!(*copy, *numbers);
            assert!([numbers, copy].iter().all(|numbers| numbers.as_ptr().addr().is_multiple_of(4 * LINE)), "{len} numbers");
        }
    }
}
