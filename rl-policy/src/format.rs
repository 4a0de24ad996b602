//! The file format: numbers that its reader and its writers share.
//!
//! A file consists of little-endian words of 4 bytes: u32, except where f32 is written.
//!
//! | words | content |
//! |---|---|
//! | 2 | the bytes `rlpolicy` |
//! | 1 | version |
//! | 1 | length of the file in bytes |
//! | 1 | [`checksum`] of the rest, which is called the body |
//! | 1, n / 4 rounded up | n; origin of the policy: n bytes of UTF-8, padded with zeros |
//! | 1, n | n; shape of an observation of D elements |
//! | 1 | number of frames that an observation stacks |
//! | 1, 1 | 1 if elements are bytes, or 0; the f32 that bytes are multiplied by |
//! | 1 | 0, or 1 if observations are normalized; then follow, as f32, D means and D inverse standard deviations |
//! | 1, n | n, 0 or D; number of categories of each element, 0 for a number |
//! | 1, 1, 1 | kind of the head; n; flags; then follows what the table of heads says |
//! | 1 | number of parts of an observation, which follow; 0 if the first layer reads all elements |
//! | 1 | number of layers, which follow |
//!
//! | head | n | flags | f32, except sizes |
//! |---|---|---|---|
//! | 0: categorical | heads | 1: masked | sizes (n) |
//! | 1: action values | actions | 1: masked; 2: dueling | |
//! | 2: Gaussian | dimensions | | low (n), high (n), logarithms of standard deviations (n) |
//! | 3: squashed | dimensions | | low (n), high (n) |
//! | 4: deterministic | dimensions | | low (n), high (n) |
//!
//! | words of a part | content |
//! |---|---|
//! | 1, 1 | number of elements; number of its layers, which follow |
//!
//! | words of a layer | content |
//! |---|---|
//! | 3 | dense: 0; length and places of a run of inputs |
//! | 7 | or convolution: 1; channels, rows and columns of the input; kernel; stride; 1 if the input consists of planes, or 0 |
//! | 1 | or memory: 2 for a GRU, 3 for an LSTM; k is the number H of outputs, n that of all gates' sums |
//! | 1 | or normalization: 4; k is 1, weights are the gains, biases the offsets |
//! | 1 | activation: 0 for none, 1 for tanh, 2 for ReLU, 3 for ELU, 4 for SiLU, 5 for GELU |
//! | 1, 1 | number of terms k; number of outputs n |
//! | k n, n | f32 weights (k, n); f32 biases (n) |

/// First bytes of a file.
pub(crate) const MAGIC: [u8; 8] = *b"rlpolicy";
/// Version of the format.
pub(crate) const VERSION: u32 = 2;
/// Kinds of heads.
pub(crate) const CATEGORICAL: u32 = 0;
pub(crate) const VALUES: u32 = 1;
pub(crate) const GAUSSIAN: u32 = 2;
pub(crate) const SQUASHED: u32 = 3;
pub(crate) const DETERMINISTIC: u32 = 4;
/// Kinds of layers.
pub(crate) const DENSE: u32 = 0;
pub(crate) const CONV: u32 = 1;
pub(crate) const GRU: u32 = 2;
pub(crate) const LSTM: u32 = 3;
pub(crate) const NORM: u32 = 4;
/// Activations.
pub(crate) const IDENTITY: u32 = 0;
pub(crate) const TANH: u32 = 1;
pub(crate) const RELU: u32 = 2;
pub(crate) const ELU: u32 = 3;
pub(crate) const SILU: u32 = 4;
pub(crate) const GELU: u32 = 5;

/// Number of terms above which a sum is made of sums of [`PART`].
pub(crate) const LONG: usize = 96;
/// Terms of each part of a long sum.
pub(crate) const PART: usize = 32;
/// Partial sums of a normalization, and the number that it adds to variances.
pub(crate) const NORM_LANES: usize = 32;
pub(crate) const EPSILON: f32 = 1e-5;
/// Largest magnitude of a normalized element of an observation.
pub(crate) const LIMIT: f32 = 10.0;
/// Logit of an illegal action.
pub(crate) const MASKED: f32 = -1e30;
/// Range of the logarithms of standard deviations of squashed actions.
pub(crate) const LOG_STD_RANGE: [f32; 2] = [-20.0, 2.0];

/// Returns the CRC-32 (IEEE 802.3) of bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut i) = ([0; 256], 0);
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, &byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_has_its_known_answer() {
        assert_eq!(super::checksum(b"123456789"), 0xCBF4_3926);
    }
}
