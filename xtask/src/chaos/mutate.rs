//! Random mutations of bytes, numbers and texts.

use serde_json::{Value, json};

/// Numbers that tend to break programs, as text.
pub(crate) const NUMBERS: [&str; 26] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "64",
    "65",
    "100",
    "1000",
    "65536",
    "16777217",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e9",
    "1e999",
    "-0.0",
    "0.5",
    "1e-45",
    "nan",
    "inf",
    "1e18",
];

/// Other values, in the syntax of TOML or of the command line.
const VALUES: [&str; 33] = [
    "true",
    "false",
    "\"\"",
    "\"x\"",
    "[]",
    "[4]",
    "[4, 4]",
    "[0]",
    "[[2, 3, 1]]",
    "[[0, 0, 0]]",
    "[[1, 99, 1]]",
    "{}",
    "\"lin_0.1\"",
    "\"lin_nan\"",
    "\"lin_\"",
    "tanh",
    "relu",
    "elu",
    "silu",
    "gelu",
    "overlapped",
    "sync",
    "fused",
    "reference",
    "auto",
    "cpu",
    "cuda",
    "cuda:7",
    "dqn",
    "ppo",
    "1979-05-27",
    "'''",
    "\"\\u0000\"",
];

/// Counter-based random generator.
pub(crate) struct Random {
    key: u64,
    n: u64,
}

impl Random {
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        Self { key: mix(mix(seed) ^ index), n: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.n += 1;
        mix(self.key.wrapping_add(self.n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Draws a range within `len`; short ranges are more likely than long ones.
    pub(crate) fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        let most = (len - start).min(1 << self.below(12));
        start..start + self.below(most + 1)
    }

    pub(crate) fn value(&mut self) -> &'static str {
        let from: &[&str] = if self.percent(60) { &NUMBERS } else { &VALUES };
        from[self.below(from.len())]
    }
}

/// Draws a value that matches the description of a setting's range.
///
/// The value may still conflict with other settings.
pub(crate) fn plausible(allowed: &str, random: &mut Random) -> String {
    if let Some((low, _)) = allowed.strip_prefix("a whole number from ").and_then(|range| range.split_once(' ')) {
        return (low.parse().unwrap_or(0) + random.below(40)).to_string();
    }
    if allowed.contains("number") {
        let lists = ["[4]", "[8, 4]", "[[2, 3, 1]]", "[[2, 2, 2], [2, 2, 1]]", "[]"];
        return (*random.pick(if allowed.contains("list") { &lists } else { &["0.5", "1", "0.01", "0", "\"lin_0.1\""] })).into();
    }
    let choices: Vec<&str> = allowed.split([',', ' ']).filter(|word| !["", "or"].contains(word)).collect();
    (*random.pick(&choices)).into()
}

/// Mixes with SplitMix64's finalizer.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

pub(crate) fn mutate_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let (at, range) = (random.below(bytes.len()), random.range(bytes.len()));
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => drop(bytes.drain(range)),
            3 => {
                let copy = bytes[range].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => bytes.truncate(at),
            _ => {
                let new: Vec<u8> = (0..random.below(9)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, new);
            }
        }
    }
}

/// Mutates numbers in a fixed layout.
pub(crate) fn mutate_numbers(bytes: &mut Vec<u8>, random: &mut Random) {
    if random.percent(15) || bytes.len() < 8 {
        return mutate_bytes(bytes, random);
    }
    for _ in 0..1 + random.below(3) {
        let integers = [0, 1, 2, 99, 1 << 31, u64::from(u32::MAX), 1 << 40, 1 << 62, 1 << 63, u64::MAX];
        let floats = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, 1e-45, 1e6];
        let new: Vec<u8> = match random.below(5) {
            0 | 1 => random.pick(&integers).to_le_bytes().into(),
            2 => random.pick(&floats).to_le_bytes().into(),
            3 => f64::from(*random.pick(&floats)).to_le_bytes().into(),
            _ => (random.next() as u32 >> random.below(32)).to_le_bytes().into(),
        };
        let at = random.below(bytes.len() - new.len() + 1);
        let at = if random.percent(70) { at & !3 } else { at };
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}

/// Mutates the header of a safetensors file, or the numbers after it.
pub(crate) fn mutate_safetensors(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let Some(header) = bytes.get(8..8 + length) else { return mutate_bytes(bytes, random) };
    let header = mutate_json_text(header, random);
    let length = if random.percent(90) { header.len() as u64 } else { random.next() >> random.below(64) };
    let data = bytes.split_off(8 + u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8])) as usize);
    *bytes = [&length.to_le_bytes()[..], &header, &data].concat();
}

pub(crate) fn mutate_json_text(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = match serde_json::from_slice::<Value>(text) {
        Ok(mut json) => {
            (0..1 + random.below(3)).for_each(|_| mutate_json(&mut json, random));
            json.to_string().into_bytes()
        }
        Err(_) => text.into(),
    };
    if random.percent(15) {
        mutate_bytes(&mut bytes, random);
    }
    bytes
}

/// Replaces, removes or duplicates a value at a random depth.
pub(crate) fn mutate_json(json: &mut Value, random: &mut Random) {
    let deeper = random.percent(80);
    match json {
        Value::Array(items) if deeper && !items.is_empty() => {
            let i = random.below(items.len());
            match random.below(8) {
                0 => drop(items.remove(i)),
                1 => items.insert(i, items[i].clone()),
                _ => mutate_json(&mut items[i], random),
            }
        }
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            match random.below(8) {
                0 => drop(fields.remove(&key)),
                1 => {
                    let value = fields[&key].clone();
                    fields.insert(format!("{key}{}", random.value()), value);
                }
                _ => {
                    if let Some(value) = fields.get_mut(&key) {
                        mutate_json(value, random);
                    }
                }
            }
        }
        _ => {
            let number = random.pick(&NUMBERS).parse::<f64>().unwrap_or(0.0);
            *json = match random.below(10) {
                0..4 => json!(random.pick(&[0u64, 1, 2, 3, 9, 10, 255, 256, 65_536, 1 << 32, 1 << 63, u64::MAX])),
                4 => json!(-1 - (random.next() >> random.below(64)) as i64 / 2),
                5..7 => json!(number),
                7 => json!(random.value()),
                8 => Value::Null,
                _ => (0..random.below(200)).fold(json!([]), |inner, _| json!([inner])),
            };
        }
    }
}
