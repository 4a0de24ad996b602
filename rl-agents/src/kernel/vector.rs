//! Vector registers of each instruction set, for the matrix product.
//!
//! The product names its registers instead of leaving them to the compiler, which splits arrays that should stay in registers as
//! the code around them changes: the same loop ran at 0.94 and at 0.26 of the machine's peak with AVX2.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use rl_envs::isa::Set;

/// Numbers of the widest register, and of [`Portable`].
pub(crate) const LANES: usize = 16;

/// A vector register of numbers.
///
/// Every operation rounds as that of [`Set`] does, element by element.
pub(crate) trait Vector: Copy {
    /// Numbers that it holds, a divisor of [`LANES`].
    const LEN: usize;

    /// Reads [`Self::LEN`] numbers.
    ///
    /// # Safety
    /// The numbers are readable, and the machine has the instruction set.
    unsafe fn load(from: *const f32) -> Self;

    /// Returns a vector of equal numbers.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn splat(x: f32) -> Self;

    /// Returns `self * y + sum`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn multiply_add(self, y: Self, sum: Self) -> Self;

    /// Returns `self + y`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add(self, y: Self) -> Self;

    /// Fetches a line of numbers into the cache; any address will do.
    fn prefetch(_from: *const f32) {}

    /// Writes [`Self::LEN`] numbers.
    ///
    /// # Safety
    /// The numbers are writable, and the machine has the instruction set.
    unsafe fn store(self, to: *mut f32);
}

/// An array that the compiler keeps in registers, for sets without a type here.
#[derive(Clone, Copy)]
pub(crate) struct Portable<S>([f32; LANES], PhantomData<S>);

impl<S: Set> Vector for Portable<S> {
    const LEN: usize = LANES;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() }, PhantomData)
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES], PhantomData)
    }

    #[inline(always)]
    unsafe fn multiply_add(self, y: Self, mut sum: Self) -> Self {
        sum.0.iter_mut().zip(self.0).zip(y.0).for_each(|((sum, x), y)| *sum = S::multiply_add(x, y, *sum));
        sum
    }

    #[inline(always)]
    unsafe fn add(mut self, y: Self) -> Self {
        self.0.iter_mut().zip(y.0).for_each(|(x, y)| *x += y);
        self
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
}

/// Implements [`Vector`] for a register of x86-64.
#[cfg(target_arch = "x86_64")]
macro_rules! x86 {
    ($register:ident, $len:literal, $load:ident, $splat:ident, $multiply_add:ident, $add:ident, $store:ident) => {
        pub(crate) use std::arch::x86_64::$register;

        impl Vector for $register {
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: guaranteed by the caller, here and below.
                unsafe { std::arch::x86_64::$load(from) }
            }

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$splat(x) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, y: Self, sum: Self) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$multiply_add(self, y, sum) }
            }

            #[inline(always)]
            unsafe fn add(self, y: Self) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$add(self, y) }
            }

            #[inline(always)]
            fn prefetch(from: *const f32) {
                // SAFETY: a prefetch of any address is allowed.
                unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$store(to, self) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
x86!(__m512, 16, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_storeu_ps);
#[cfg(target_arch = "x86_64")]
x86!(__m256, 8, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, _mm256_storeu_ps);

#[cfg(target_arch = "aarch64")]
pub(crate) use std::arch::aarch64::float32x4_t;

#[cfg(target_arch = "aarch64")]
impl Vector for float32x4_t {
    const LEN: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller, here and below.
        unsafe { std::arch::aarch64::vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: as above.
        unsafe { std::arch::aarch64::vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, y: Self, sum: Self) -> Self {
        // SAFETY: as above.
        unsafe { std::arch::aarch64::vfmaq_f32(sum, self, y) }
    }

    #[inline(always)]
    unsafe fn add(self, y: Self) -> Self {
        // SAFETY: as above.
        unsafe { std::arch::aarch64::vaddq_f32(self, y) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { std::arch::aarch64::vst1q_f32(to, self) }
    }
}
