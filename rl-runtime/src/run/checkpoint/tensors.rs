//! Tensors of f32 in the format safetensors.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use rl_envs::codec;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;

use crate::run::checkpoint::contents::{MAX_ENTRIES, unique};

/// Maximum size of a header, more than a network of hundreds of layers needs.
const MAX_HEADER: u64 = 1 << 20;

/// Header of a safetensors file.
#[derive(Deserialize)]
#[serde(transparent)]
struct Header {
    #[serde(deserialize_with = "unique")]
    tensors: BTreeMap<String, TensorInfo>,
}

/// Writes f32 tensors (name, shape, values) as safetensors.
pub(super) fn write_tensors(out: &mut dyn Write, mut tensors: Vec<(&str, Vec<usize>, &[f32])>) -> io::Result<()> {
    tensors.sort_by_key(|(name, ..)| *name);
    let (mut infos, mut begin) = (Vec::with_capacity(tensors.len()), 0);
    for (name, shape, values) in &tensors {
        let end = begin + size_of_val(*values);
        infos.push((String::from(*name), TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (begin, end) }));
        begin = end;
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER || tensors.len() > MAX_ENTRIES {
        return Err(io::Error::other(format!("{} tensors are too many for a checkpoint", tensors.len())));
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    tensors.iter().try_for_each(|(.., values)| codec::write_floats(values, out))
}

/// F32 tensors of a file: name, shape, values.
pub(super) type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// Reads the tensors of a file of `len` bytes.
pub(super) fn read_tensors(input: &mut dyn Read, len: u64) -> Result<Tensors, String> {
    let mut n = [0; 8];
    input.read_exact(&mut n).map_err(|e| e.to_string())?;
    let n = u64::from_le_bytes(n);
    if n > MAX_HEADER || n > len - 8 {
        return Err(format!("its header takes {n} bytes"));
    }
    let mut header = vec![0; n as usize];
    input.read_exact(&mut header).map_err(|e| e.to_string())?;
    let Header { tensors } = serde_json::from_slice(&header).map_err(|e| format!("its header is damaged: {e}"))?;
    let mut infos: Vec<(String, TensorInfo)> = tensors.into_iter().collect();
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let (mut at, mut read, data) = (0, Vec::with_capacity(infos.len()), len - 8 - n);
    for (name, TensorInfo { dtype, shape, data_offsets: (begin, end) }) in infos {
        if dtype != Dtype::F32 {
            return Err(format!("{name} is of type {dtype:?}, not F32"));
        }
        let bytes = shape.iter().try_fold(4usize, |bytes, &n| bytes.checked_mul(n));
        if begin != at || bytes.is_none_or(|bytes| end.checked_sub(begin) != Some(bytes)) || end as u64 > data {
            return Err(format!("{name} is {shape:?}, which does not fit the bytes from {begin} to {end}"));
        }
        let mut values = vec![0.0; (end - begin) / 4];
        codec::read_floats(input, &mut values).map_err(|e| e.to_string())?;
        at = end;
        read.push((name, shape, values));
    }
    if at as u64 == data { Ok(read) } else { Err(format!("{} bytes belong to no tensor", data - at as u64)) }
}
