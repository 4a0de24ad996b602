//! Rust's numbers as operands of PTX.

use std::fmt::Debug;

/// A number that fits a register.
pub(crate) trait Number: Copy + Debug {
    /// Prefix of its registers, as nvcc names them.
    const REGISTER: &str;
    /// Suffix of the load and the store that move it.
    const SUFFIX: &str;
    /// Bytes.
    const SIZE: usize;

    /// Returns the bytes in memory.
    fn bytes(self) -> Vec<u8>;

    /// Returns the number in memory.
    fn from_bytes(bytes: &[u8]) -> Self;

    /// Returns the constant as nvcc writes it.
    fn literal(self) -> String;

    /// Returns true for the same bits, and for two NaNs of any payload.
    fn agrees(self, other: Self) -> bool;
}

macro_rules! number {
    ($type:ty, $register:literal, $suffix:literal, $literal:expr, $nan:expr) => {
        impl Number for $type {
            const REGISTER: &str = $register;
            const SUFFIX: &str = $suffix;
            const SIZE: usize = size_of::<$type>();

            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many bytes as the number has"))
            }

            fn literal(self) -> String {
                $literal(self)
            }

            fn agrees(self, other: Self) -> bool {
                self.bytes() == other.bytes() || ($nan(self) && $nan(other))
            }
        }
    };
}

number!(u16, "%rs", "u16", |n: u16| n.cast_signed().to_string(), |_| false);
number!(i16, "%rs", "u16", |n: i16| n.to_string(), |_| false);
number!(u32, "%r", "u32", |n: u32| n.cast_signed().to_string(), |_| false);
number!(i32, "%r", "u32", |n: i32| n.to_string(), |_| false);
number!(u64, "%rd", "u64", |n: u64| n.cast_signed().to_string(), |_| false);
number!(i64, "%rd", "u64", |n: i64| n.to_string(), |_| false);
number!(f32, "%f", "f32", |n: f32| format!("0f{:08X}", n.to_bits()), f32::is_nan);
number!(f64, "%fd", "f64", |n: f64| format!("0d{:016X}", n.to_bits()), f64::is_nan);

/// Corner values in f32: zeros, subnormals, both ends, infinities, NaNs, and numbers whose results round.
pub(crate) const F32: [f32; 24] = [
    0.0,
    -0.0,
    f32::from_bits(1),
    -f32::from_bits(1),
    f32::from_bits(0x007f_ffff), // the largest subnormal
    -f32::from_bits(0x0040_0001),
    f32::MIN_POSITIVE,
    1.0,
    -1.0,
    1.0 + f32::EPSILON,
    1.0 - f32::EPSILON / 2.0,
    1.5,
    -3.0,
    0.1,
    1e-20,
    -3.3e19,
    16_777_215.0,
    -16_777_216.0,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::from_bits(0xff80_0001), // a signalling NaN
];

/// Corner values in f64, as in [`F32`].
pub(crate) const F64: [f64; 24] = [
    0.0,
    -0.0,
    f64::from_bits(1),
    -f64::from_bits(1),
    f64::from_bits(0x000f_ffff_ffff_ffff), // the largest subnormal
    -f64::from_bits(0x0008_0000_0000_0001),
    f64::MIN_POSITIVE,
    1.0,
    -1.0,
    1.0 + f64::EPSILON,
    1.0 - f64::EPSILON / 2.0,
    1.5,
    -3.0,
    0.1,
    1e-160,
    -3.3e159,
    9_007_199_254_740_991.0,
    -9_007_199_254_740_992.0,
    f64::MAX,
    f64::MIN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::from_bits(0xfff0_0000_0000_0001), // a signalling NaN
];
