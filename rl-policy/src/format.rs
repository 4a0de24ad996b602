//! Numbers of the file format that its reader and its writer share.

/// First bytes of a file.
pub(crate) const MAGIC: [u8; 8] = *b"rlpolicy";
/// Version of the format.
pub(crate) const VERSION: u32 = 1;
/// Kinds of heads.
pub(crate) const CATEGORICAL: u32 = 0;
pub(crate) const VALUES: u32 = 1;
pub(crate) const GAUSSIAN: u32 = 2;
pub(crate) const SQUASHED: u32 = 3;
pub(crate) const DETERMINISTIC: u32 = 4;
/// Kinds of layers.
pub(crate) const DENSE: u32 = 0;
pub(crate) const CONV: u32 = 1;
/// Activations.
pub(crate) const IDENTITY: u32 = 0;
pub(crate) const TANH: u32 = 1;
pub(crate) const RELU: u32 = 2;

/// Number of terms above which a sum is made of sums of [`PART`].
pub(crate) const LONG: usize = 96;
/// Terms of each part of a long sum.
pub(crate) const PART: usize = 32;
/// Largest magnitude of a normalized number.
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
