//! Register contents as numbers of each PTX type.

/// Number type of an operand.
pub(crate) trait Operand: Copy {
    /// Bits of a register of this type; 1 for a predicate.
    const WIDTH: u8;
    /// Reads the low bits of a register.
    fn of(register: u64) -> Self;
    /// Returns the register that holds the number, zero-extended.
    fn register(self) -> u64;
}

macro_rules! integers {
    ($($type:ty as $unsigned:ty),*) => { $(
        impl Operand for $type {
            const WIDTH: u8 = <$type>::BITS as u8;
            #[inline(always)]
            fn of(register: u64) -> Self {
                register as $type
            }
            #[inline(always)]
            fn register(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )* };
}
integers!(u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64);

impl Operand for bool {
    const WIDTH: u8 = 1;
    #[inline(always)]
    fn of(register: u64) -> Self {
        register & 1 != 0
    }
    #[inline(always)]
    fn register(self) -> u64 {
        self.into()
    }
}

impl Operand for f32 {
    const WIDTH: u8 = 32;
    #[inline(always)]
    fn of(register: u64) -> Self {
        Self::from_bits(register as u32)
    }
    /// A NaN becomes the canonical one, 0x7fffffff.
    #[inline(always)]
    fn register(self) -> u64 {
        if self.is_nan() { 0x7FFF_FFFF } else { self.to_bits().into() }
    }
}

impl Operand for f64 {
    const WIDTH: u8 = 64;
    #[inline(always)]
    fn of(register: u64) -> Self {
        Self::from_bits(register)
    }
    /// A NaN becomes a fixed one; PTX leaves its payload open.
    #[inline(always)]
    fn register(self) -> u64 {
        if self.is_nan() { 0x7FFF_FFFF_FFFF_FFFF } else { self.to_bits() }
    }
}
