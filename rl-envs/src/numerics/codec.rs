//! Values to bytes and back: the project's only use of bincode.
//!
//! bincode's layout with fixed-width integers: numbers are little-endian, lengths are u64, an option or a bool is one byte, a
//! variant is a u32; structs, tuples and arrays are their fields in order. bincode encodes. The decoder is our own, because
//! bincode's either allocates whatever a length claims or refuses everything above a constant, including what bincode has
//! written. This one never allocates more than the input holds, and refuses bytes left over.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};

use serde::de::value::{Error as Failure, U32Deserializer};
use serde::de::{self, DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer as _, Visitor};
use serde::{Deserializer, Serialize};

use crate::Error;

/// Maximum number of elements of a sequence whose elements take no bytes.
const MAX_EMPTY: u64 = u32::MAX as u64;
/// Bytes written or read at a time.
const BUFFER: usize = 1 << 16;

/// Returns the bytes of `value`.
///
/// # Errors
/// [`Error::BadState`] if the value refuses to be serialized.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    encode_into(value, &mut bytes)?;
    Ok(bytes)
}

/// Writes the bytes of `value`.
///
/// # Errors
/// [`Error::BadState`] if the value refuses to be serialized or the bytes cannot be written.
pub fn encode_into<T: Serialize>(value: &T, out: &mut dyn Write) -> Result<(), Error> {
    let config = bincode::config::standard().with_fixed_int_encoding();
    // bincode writes number by number: into a buffer of a known type, each is a copy instead of a virtual call.
    let mut out = BufWriter::with_capacity(BUFFER, out);
    match bincode::serde::encode_into_std_write(value, &mut out, config) {
        Ok(_) => out.flush().map_err(|error| Error::BadState(error.to_string())),
        Err(bincode::error::EncodeError::Io { inner, .. }) => Err(Error::BadState(inner.to_string())),
        Err(error) => Err(Error::BadState(error.to_string())),
    }
}

/// Writes numbers as little-endian bytes.
///
/// Their number, u64, and they are the encoding of a `Vec<f32>`. [`encode_into`] is compiled in the crate that calls it, which
/// may be unoptimised; this function is compiled here.
///
/// # Errors
/// The errors of `out`.
pub fn write_floats(values: &[f32], out: &mut dyn Write) -> io::Result<()> {
    let mut bytes = vec![[0; 4]; values.len().min(BUFFER / 4)];
    for values in values.chunks(BUFFER / 4) {
        bytes.iter_mut().zip(values).for_each(|(to, x)| *to = x.to_le_bytes());
        out.write_all(bytes[..values.len()].as_flattened())?;
    }
    Ok(())
}

/// Reads numbers that [`write_floats`] has written.
///
/// # Errors
/// The errors of `input`, which may have fewer bytes.
pub fn read_floats(input: &mut dyn Read, values: &mut [f32]) -> io::Result<()> {
    let mut bytes = vec![[0; 4]; values.len().min(BUFFER / 4)];
    for values in values.chunks_mut(BUFFER / 4) {
        input.read_exact(bytes[..values.len()].as_flattened_mut())?;
        copy_floats(bytes[..values.len()].as_flattened(), values);
    }
    Ok(())
}

/// Copies numbers from the bytes that [`write_floats`] has written.
///
/// # Panics
/// If there are not four bytes for each number.
pub fn copy_floats(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 4 * values.len(), "four bytes for each number");
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, from)| *x = f32::from_le_bytes(*from));
}

/// Returns the value encoded in `bytes`.
///
/// # Errors
/// [`Error::BadState`] if there are too few or too many bytes, or they do not encode this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let (value, left) = decode_first(bytes, bytes.len() as u64)?;
    if left == 0 { Ok(value) } else { Err(Error::BadState(format!("{left} bytes are left over"))) }
}

/// Returns the first value of `input`, and how many of its `len` bytes follow it.
///
/// More bytes may have been read than the value takes.
///
/// # Errors
/// [`Error::BadState`] if the input ends too early, cannot be read, or does not encode this type.
pub fn decode_from<T: DeserializeOwned>(input: impl Read, len: u64) -> Result<(T, u64), Error> {
    decode_first(BufReader::with_capacity(BUFFER, input), len)
}

/// An input of which values are decoded one after the other.
pub struct Input<'a>(Decoder<BufReader<&'a mut dyn Read>>);

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("left", &self.0.left).finish_non_exhaustive()
    }
}

impl<'a> Input<'a> {
    /// Decodes the first `len` bytes of `input`.
    pub fn new(input: &'a mut dyn Read, len: u64) -> Self {
        Self(Decoder { input: BufReader::with_capacity(BUFFER, input), left: len })
    }

    /// Number of bytes that have not been decoded.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.0.left
    }

    /// Returns the next value.
    ///
    /// # Errors
    /// [`Error::BadState`] if the input ends too early, cannot be read, or does not encode this type.
    pub fn value<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        T::deserialize(&mut self.0).map_err(refused)
    }

    /// Returns the next value, a `Vec<f32>`: compiled here, as [`write_floats`] is.
    ///
    /// # Errors
    /// The errors of [`Input::value`].
    pub fn floats(&mut self) -> Result<Vec<f32>, Error> {
        let n = self.0.length().map_err(refused)?;
        let Decoder { input, left } = &mut self.0;
        *left = n.checked_mul(4).and_then(|len| left.checked_sub(len)).ok_or_else(|| refused(ends()))?;
        let mut values = vec![0.0; usize::try_from(n).map_err(refused)?];
        read_floats(input, &mut values).map_err(refused)?;
        Ok(values)
    }
}

fn refused(error: impl fmt::Display) -> Error {
    Error::BadState(format!("cannot be decoded: {error}"))
}

fn decode_first<T: DeserializeOwned>(input: impl Read, len: u64) -> Result<(T, u64), Error> {
    let mut decoder = Decoder { input, left: len };
    let value = T::deserialize(&mut decoder).map_err(refused)?;
    Ok((value, decoder.left))
}

/// An input and the number of bytes left in it.
struct Decoder<R> {
    input: R,
    left: u64,
}

impl<R: Read> Decoder<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(ends)?;
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ends(),
            _ => Failure::custom(error),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn length(&mut self) -> Result<u64, Failure> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a length, then as many bytes.
    fn bytes(&mut self) -> Result<Vec<u8>, Failure> {
        let length = self.length()?;
        if length > self.left {
            return Err(ends());
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(Failure::custom)?];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn char(&mut self) -> Result<char, Failure> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes[..1])?;
        let len = match bytes[0] {
            0..0x80 => 1,
            0x80..0xE0 => 2,
            0xE0..0xF0 => 3,
            0xF0.. => 4,
        };
        self.fill(&mut bytes[1..len])?;
        let text = std::str::from_utf8(&bytes[..len]).map_err(Failure::custom)?;
        text.chars().next().ok_or_else(ends)
    }
}

fn ends() -> Failure {
    Failure::custom("it ends too early")
}

fn unsupported<T>() -> Result<T, Failure> {
    Err(Failure::custom("the type cannot be read from the bytes"))
}

macro_rules! numbers {
    ($($deserialize:ident $visit:ident $number:ty),* $(,)?) => {$(
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            visitor.$visit(<$number>::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'de, R: Read> Deserializer<'de> for &mut Decoder<R> {
    type Error = Failure;

    numbers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128,
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128,
        deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.array()? {
            [0] => visitor.visit_bool(false),
            [1] => visitor.visit_bool(true),
            [other] => Err(Failure::custom(format_args!("{other} is neither true nor false"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.array()? {
            [0] => visitor.visit_none(),
            [1] => visitor.visit_some(self),
            [other] => Err(Failure::custom(format_args!("{other} is neither some nor none"))),
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_char(self.char()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_string(String::from_utf8(self.bytes()?).map_err(Failure::custom)?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_string(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_byte_buf(self.bytes()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_byte_buf(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let left = self.length()?;
        visitor.visit_seq(Items { decoder: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_seq(Items { decoder: self, left: len as u64 })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _: &'static str, len: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let left = self.length()?;
        visitor.visit_map(Items { decoder: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_enum(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Failure> {
        unsupported()
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Failure> {
        unsupported()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Failure> {
        unsupported()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Remaining elements of a sequence or a map.
struct Items<'a, R> {
    decoder: &'a mut Decoder<R>,
    left: u64,
}

impl<R: Read> Items<'_, R> {
    fn next<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        if self.left == 0 {
            return Ok(None);
        }
        let before = self.decoder.left;
        let item = seed.deserialize(&mut *self.decoder)?;
        if self.decoder.left == before && self.left > MAX_EMPTY {
            return Err(ends()); // a loop that consumes no bytes
        }
        self.left -= 1;
        Ok(Some(item))
    }
}

impl<'de, R: Read> de::SeqAccess<'de> for Items<'_, R> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        self.next(seed)
    }

    // Unverified: serde allocates at most a megabyte on this hint.
    fn size_hint(&self) -> Option<usize> {
        usize::try_from(self.left.min(self.decoder.left)).ok()
    }
}

impl<'de, R: Read> de::MapAccess<'de> for Items<'_, R> {
    type Error = Failure;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Failure> {
        seed.deserialize(&mut *self.decoder)
    }
}

impl<'de, R: Read> de::EnumAccess<'de> for &mut Decoder<R> {
    type Error = Failure;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Failure> {
        let variant: U32Deserializer<Failure> = u32::from_le_bytes(self.array()?).into_deserializer();
        Ok((seed.deserialize(variant)?, self))
    }
}

impl<'de, R: Read> de::VariantAccess<'de> for &mut Decoder<R> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Failure> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_tuple(fields.len(), visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

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

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    enum Kind {
        #[default]
        Unit,
        Newtype(i16),
        Tuple(u8, bool),
        Struct {
            a: char,
            b: Option<u64>,
        },
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Empty;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct All {
        kinds: Vec<Kind>,
        map: BTreeMap<String, (i8, u128)>,
        array: [f64; 3],
        nothing: (),
        empty: Vec<Empty>,
        chars: Vec<char>,
        nested: Vec<Vec<u8>>,
        boxed: Option<Box<str>>,
        size: usize,
    }

    #[test]
    fn every_kind_of_type_is_decoded_as_bincode_does() {
        let value = All {
            kinds: vec![
                Kind::Unit,
                Kind::Newtype(-3),
                Kind::Tuple(9, true),
                Kind::Struct { a: 'é', b: Some(1 << 60) },
                Kind::Struct { a: 'a', b: None },
            ],
            map: [("x".into(), (-1, u128::MAX)), ("".into(), (0, 1))].into(),
            array: [0.5, -0.0, f64::MAX],
            nothing: (),
            empty: vec![Empty, Empty],
            chars: "aß€😀".chars().collect(),
            nested: vec![vec![], vec![1, 2, 3]],
            boxed: Some("text".into()),
            size: usize::MAX,
        };
        let bytes = encode(&value).expect("encodes");
        assert_eq!(decode::<All>(&bytes).expect("decodes"), value);
        let config = bincode::config::standard().with_fixed_int_encoding();
        let (by_bincode, used): (All, usize) = bincode::serde::decode_from_slice(&bytes, config).expect("decodes");
        assert_eq!((by_bincode, used), (value, bytes.len()));
        for at in 0..bytes.len() {
            assert!(decode::<All>(&bytes[..at]).is_err());
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x81;
            let _ = decode::<All>(&damaged);
        }
    }

    #[test]
    fn values_are_decoded_one_after_the_other_as_they_are_together() {
        let floats = [1.0f32, -0.0, f32::MIN_POSITIVE, f32::NAN];
        let whole = encode(&(7u16, &floats[..], "end")).unwrap();
        let mut parts = encode(&(7u16, floats.len() as u64)).unwrap();
        write_floats(&floats, &mut parts).unwrap();
        encode_into(&"end", &mut parts).unwrap();
        assert_eq!(parts, whole);
        let (mut bytes, len) = (&whole[..], whole.len() as u64);
        let mut input = Input::new(&mut bytes, len);
        assert_eq!((input.value::<u16>().unwrap(), input.left()), (7, len - 2));
        assert_eq!(input.floats().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), floats.map(f32::to_bits));
        assert_eq!((input.value::<String>().unwrap(), input.left()), ("end".into(), 0));
        for n in [u64::MAX, 1 << 62, 5] {
            let claim = [&n.to_le_bytes()[..], &[0; 16]].concat();
            let mut bytes = &claim[..];
            assert!(Input::new(&mut bytes, 24).floats().is_err(), "{n} numbers in 16 bytes");
        }
        let many: Vec<f32> = (0..BUFFER).map(|i| i as f32).collect();
        let mut bytes = Vec::new();
        write_floats(&many, &mut bytes).unwrap();
        let mut found = vec![0.0; many.len()];
        read_floats(&mut &bytes[..], &mut found).unwrap();
        assert_eq!(found, many);
    }

    #[test]
    fn a_hostile_length_is_refused_without_allocating() {
        for claim in [u64::MAX, 1 << 63, 1 << 40, 1 << 33] {
            let claim = claim.to_le_bytes();
            assert!(decode::<Vec<f64>>(&claim).is_err());
            assert!(decode::<String>(&claim).is_err());
            assert!(decode::<Vec<()>>(&claim).is_err());
            assert!(decode::<BTreeMap<u8, u8>>(&claim).is_err());
            assert!(decode::<Vec<Vec<u8>>>(&[1u64.to_le_bytes(), claim].concat()).is_err());
        }
    }

    /// An input that fails as soon as it is read.
    struct Fails;

    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("was read"))
        }
    }

    #[test]
    fn a_length_is_believed_if_the_input_is_as_long_however_long_that_is() {
        let claim = 1u64 << 31;
        let bytes = claim.to_le_bytes();
        let input = || bytes[..].chain(Fails);
        let error = decode_from::<String>(input(), 8 + claim).expect_err("fails").to_string();
        assert!(error.contains("was read"), "{error}");
        let error = decode_from::<String>(input(), 7 + claim).expect_err("too short").to_string();
        assert!(error.contains("ends too early"), "{error}");
        assert_eq!(decode_from::<u64>(input(), 8 + claim).expect("decodes"), (claim, claim));
    }
}
