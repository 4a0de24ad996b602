//! Values to bytes and back: the project's only use of bincode.
//!
//! Fixed-width little-endian integers, so that the size of a value tells what it holds. Decoding never allocates more than
//! [`LIMIT`] bytes, whatever the input claims, and refuses bytes that are left over.

use serde::{Serialize, de::DeserializeOwned};

use crate::Error;

/// The most bytes that one decoded value may take.
pub const LIMIT: usize = 1 << 30;

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<LIMIT>()
}

/// The bytes of `value`.
///
/// # Errors
/// [`Error::BadState`] if the value refuses to be serialized.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    bincode::serde::encode_to_vec(value, config()).map_err(|e| Error::BadState(e.to_string()))
}

/// The value that `bytes` hold.
///
/// # Errors
/// [`Error::BadState`] if they are too few, too many, or not a value of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let (value, used) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|e| Error::BadState(format!("cannot be decoded: {e}")))?;
    if used == bytes.len() { Ok(value) } else { Err(Error::BadState(format!("{} bytes are left over", bytes.len() - used))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else_is() {
        let value = (7u32, vec![1.5f32, f32::NEG_INFINITY], String::from("x"));
        let bytes = encode(&value).expect("encodes");
        assert_eq!(decode::<(u32, Vec<f32>, String)>(&bytes).expect("decodes"), value);
        for cut in 0..bytes.len() {
            assert!(decode::<(u32, Vec<f32>, String)>(&bytes[..cut]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode::<(u32, Vec<f32>, String)>(&longer).unwrap_err().to_string().contains("1 bytes are left over"));
    }

    #[test]
    fn a_hostile_length_is_refused_without_allocating() {
        for claim in [u64::MAX, 1 << 63, 1 << 40] {
            assert!(decode::<Vec<f64>>(&claim.to_le_bytes()).is_err());
            assert!(decode::<String>(&claim.to_le_bytes()).is_err());
        }
    }
}
