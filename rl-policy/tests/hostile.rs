//! Files that are damaged, or made to do harm, are refused or act without a panic.
#![cfg(feature = "write")]

mod kinds;

use rl_envs::{Purpose, Rng};
use rl_policy::write::file;
use rl_policy::{Action, Activation, Choice, Error, Exported, Head, LayerKind, Obs, Part, Policy};

use crate::kinds::policies;

/// Bytes before the body: magic number, version, length, checksum.
const HEADER: usize = 20;

/// Word of a file at a place in bytes.
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..].as_chunks().0[0])
}

/// Writes the length and the checksum of a changed body.
fn repair(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    let sum = !bytes[HEADER..].iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    });
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// Acts in every way, and returns true.
///
/// Returns false, without acting, if the file asks for much memory or time.
fn act(policy: &Policy<'_>, n_bytes: usize, rng: &mut Rng) -> bool {
    // A position of a layer reads each weight of the file at most once.
    if policy.memory_len() > 1 << 20 || policy.memory_len() * (n_bytes / 4) > 4_000_000 {
        return false;
    }
    let mut memory = vec![f32::NAN; policy.memory_len()];
    let special = [0.0, -0.0, 1.0, -1.0, 4.0, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 4e9, 1e-40];
    let floats: Vec<f32> = (0..policy.obs_len()).map(|_| special[rng.below(11) as usize]).collect();
    let bytes: Vec<u8> = (0..policy.obs_len()).map(|_| rng.next_u32() as u8).collect();
    let obs = if policy.reads_bytes() { Obs::U8(&bytes) } else { Obs::F32(&floats) };
    let mask: Vec<u8> = (0..policy.mask_len()).map(|_| rng.below(3) as u8).collect();
    let (mut choices, mut vector) = (vec![0; policy.action_len()], vec![0.0; policy.action_len()]);
    let sampled = Choice::Sample { seed: u64::MAX, env: rng.next_u32(), step: u64::from(rng.next_u32()) << 20 };
    for choice in [Choice::Greedy, sampled] {
        let action = if policy.is_discrete() { Action::Discrete(&mut choices) } else { Action::Continuous(&mut vector) };
        policy.act(obs, &mask, choice, &mut memory, action).expect("slices that fit");
        assert_eq!(policy.outputs(obs, &mut memory).map(|outputs| outputs.len()), Ok(policy.n_outputs()));
    }
    true
}

#[test]
fn whole_files_act() {
    let rng = &mut Rng::new(2, 0, 0, Purpose::Init);
    for exported in policies() {
        let bytes = file(&exported);
        let policy = Policy::new(&bytes).unwrap();
        assert_eq!(policy.about(), exported.about);
        assert!((0..100).all(|_| act(&policy, bytes.len(), rng)));
        let mut repaired = bytes.clone();
        repair(&mut repaired);
        assert_eq!(repaired, bytes);
    }
}

#[test]
fn calls_that_do_not_fit_are_errors() {
    for exported in policies() {
        let bytes = file(&exported);
        let policy = Policy::new(&bytes).unwrap();
        let (floats, octets) = (vec![0.5; policy.obs_len() + 1], vec![1; policy.obs_len() + 1]);
        let mask = vec![1; policy.mask_len() + 1];
        let call = |d: usize, n_flags: usize, memory: usize, n: usize, [other_obs, other_action]: [bool; 2]| {
            let obs = if policy.reads_bytes() != other_obs { Obs::U8(&octets[..d]) } else { Obs::F32(&floats[..d]) };
            let (mut choices, mut vector, mut memory) = (vec![0; n], vec![0.0; n], vec![0.0; memory]);
            let is_discrete = policy.is_discrete() != other_action;
            let action = if is_discrete { Action::Discrete(&mut choices) } else { Action::Continuous(&mut vector) };
            policy.act(obs, &mask[..n_flags], Choice::Greedy, &mut memory, action)
        };
        let (d, n_flags, memory, n) = (policy.obs_len(), policy.mask_len(), policy.memory_len(), policy.action_len());
        let refused = |what| Err(Error::Call(what));
        assert_eq!(call(d, n_flags, memory + 1, n, [false; 2]), Ok(()));
        assert_eq!(call(d + 1, n_flags, memory, n, [false; 2]), refused("observation"));
        assert_eq!(call(d - 1, n_flags, memory, n, [false; 2]), refused("observation"));
        assert_eq!(call(d, n_flags, memory, n, [true, false]), refused("observation"));
        assert_eq!(call(d, n_flags + 1, memory, n, [false; 2]), refused("mask"));
        if n_flags > 0 {
            assert_eq!(call(d, n_flags - 1, memory, n, [false; 2]), refused("mask"));
        }
        assert_eq!(call(d, n_flags, memory - 1, n, [false; 2]), refused("memory"));
        assert_eq!(call(d, n_flags, memory, n + 1, [false; 2]), refused("action"));
        assert_eq!(call(d, n_flags, memory, n - 1, [false; 2]), refused("action"));
        assert_eq!(call(d, n_flags, memory, n, [false, true]), refused("action"));
    }
}

#[test]
fn files_of_another_length_are_refused() {
    for exported in policies() {
        let bytes = file(&exported);
        for len in 0..bytes.len() {
            let expected = if len < 8 { Error::Magic } else { Error::Length };
            assert_eq!(Policy::new(&bytes[..len]).unwrap_err(), expected, "{len} bytes");
        }
        for more in 1..70 {
            assert_eq!(Policy::new(&[&bytes[..], &vec![0; more]].concat()).unwrap_err(), Error::Length, "{more} more");
        }
        // A right length of a body that is shorter, or longer, than its parts.
        for n_words in 1..=(bytes.len() - HEADER) / 4 {
            let mut short = bytes[..bytes.len() - 4 * n_words].to_vec();
            let mut long = [&bytes[..], &vec![0; 4 * n_words]].concat();
            for bytes in [&mut short, &mut long] {
                repair(bytes);
                assert_eq!(Policy::new(bytes).unwrap_err(), Error::Contents, "{n_words} words");
            }
        }
    }
}

#[test]
fn a_file_with_any_bit_changed_is_refused() {
    for exported in policies() {
        let mut bytes = file(&exported);
        for i in 0..bytes.len() {
            for bit in 0..8 {
                bytes[i] ^= 1 << bit;
                let expected = match i {
                    0..8 => Error::Magic,
                    8..12 => Error::Version(word_at(&bytes, 8)),
                    12..16 => Error::Length,
                    _ => Error::Checksum,
                };
                assert_eq!(Policy::new(&bytes).unwrap_err(), expected, "bit {bit} of byte {i}");
                bytes[i] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    type Change = fn(&mut Exported);
    let changes: [(&str, usize, Change); 26] = [
        ("no layers", 6, |policy| policy.layers.clear()),
        ("no dimensions", 0, |policy| policy.input.shape.clear()),
        ("no elements", 0, |policy| policy.input.shape.push(0)),
        ("frames", 0, |policy| policy.input.frames = 2),
        ("no frames", 0, |policy| policy.input.frames = 0),
        ("statistics", 5, |policy| policy.input.normalize = Some([vec![0.0; 2], vec![1.0; 2]])),
        ("categories", 2, |policy| policy.input.categories = vec![7, 7]),
        ("numbers of categories", 2, |policy| policy.input.categories[1] = u32::MAX),
        ("runs of categories", 2, |policy| policy.layers[0].kind = LayerKind::Dense { real: 7, padded: 7 }),
        ("runs", 0, |policy| policy.layers[0].kind = LayerKind::Dense { real: 2, padded: 2 }),
        ("places of a run", 0, |policy| policy.layers[0].kind = LayerKind::Dense { real: 3, padded: 2 }),
        ("many places", 0, |policy| policy.layers[0].kind = LayerKind::Dense { real: 1, padded: 1 << 28 }),
        ("a large kernel", 4, |policy| {
            policy.layers[0].kind = LayerKind::Conv { input: [1, 5, 5], kernel: 6, stride: 5, planes: true };
        }),
        ("a layer between", 0, |policy| policy.layers.swap(0, 1)),
        ("gates", 7, |policy| policy.layers[1].kind = LayerKind::Lstm),
        ("sums of inputs", 7, |policy| drop(policy.layers.remove(0))),
        ("a memory's activation", 8, |policy| policy.layers[1].activation = Activation::Tanh),
        ("gains", 11, |policy| policy.layers[1].weight = vec![1.0; 80]),
        ("elements without a part", 9, |policy| policy.parts[1].len = 1),
        ("more parts than elements", 9, |policy| policy.parts[1].len = 3),
        ("a part without elements", 9, |policy| policy.parts.push(Part { len: 0, layers: vec![] })),
        ("a picture of categories", 9, |policy| policy.input.categories[0] = 2),
        ("a part's layers", 9, |policy| policy.parts[1].layers = vec![policy.layers[0].clone()]),
        ("a head without choices", 1, |policy| {
            policy.head = Head::Categorical { sizes: vec![3, 0, 3], masked: false };
        }),
        ("masks of several heads", 1, |policy| {
            policy.head = Head::Categorical { sizes: vec![3, 3], masked: true };
        }),
        ("outputs", 0, |policy| policy.head = Head::Categorical { sizes: vec![3], masked: true }),
    ];
    for (name, i, change) in changes {
        let mut policy = policies().remove(i);
        change(&mut policy);
        assert_eq!(Policy::new(&file(&policy)).unwrap_err(), Error::Contents, "{name}");
    }
}

#[test]
fn words_without_a_meaning_are_refused() {
    // Two policies that differ in one word tell where it is.
    type Change = fn(&mut Exported);
    let changes: [(&str, Change, u32); 4] = [
        ("activation", |policy| policy.layers[0].activation = Activation::Gelu, 6),
        ("flags", |policy| policy.head = Head::Categorical { sizes: vec![2], masked: false }, 2),
        ("runs", |policy| policy.layers[0].kind = LayerKind::Dense { real: 1, padded: 1 }, 0),
        ("bytes", |policy| policy.input.bytes = Some(1.0), 2),
    ];
    for (name, change, word) in changes {
        let mut policy = policies().remove(0);
        let mut bytes = file(&policy);
        change(&mut policy);
        let other = file(&policy);
        let at = (HEADER..bytes.len()).step_by(4).find(|&at| word_at(&bytes, at) != word_at(&other, at)).unwrap();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        repair(&mut bytes);
        assert_eq!(Policy::new(&bytes).unwrap_err(), Error::Contents, "{name}");
    }
}

#[test]
fn lengths_have_a_limit() {
    let mut policy = policies().remove(4);
    let mut load = |n: usize| {
        policy.input.shape = vec![n, n];
        policy.layers[0].kind = LayerKind::Conv { input: [1, n, n], kernel: 2, stride: n, planes: true };
        Policy::new(&file(&policy)).map(|policy| policy.memory_len())
    };
    assert_eq!(load(1 << 14), Ok(2 * (1 << 28) + 3));
    for n in [1 << 14 | 1, 1 << 16, 1 << 28, 1 << 31, u32::MAX as usize] {
        assert_eq!(load(n), Err(Error::Contents));
    }
}

/// Changes words of a file.
///
/// Prefers lengths and kinds to weights, and writes numbers that are hard to parse.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    // Most lengths come before most weights.
    let place = |rng: &mut Rng, bytes: &[u8]| {
        let n_words = (bytes.len() - HEADER) / 4;
        let n_words = if rng.below(2) == 0 { n_words.min(40) } else { n_words };
        HEADER + 4 * rng.below(n_words as u32) as usize
    };
    for _ in 0..1 + rng.below(3) {
        let (at, other) = (place(rng, bytes), place(rng, bytes));
        let old = word_at(bytes, at);
        let word = match rng.below(10) {
            0 => 0,
            1 => 1,
            2 => 1 << 31,
            3 => u32::MAX,
            4 => rng.below(20),
            5 => 1 << rng.below(32),
            6 => old.wrapping_add(1),
            7 => old.wrapping_sub(1),
            8 => word_at(bytes, other),
            _ => rng.next_u32(),
        };
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        if rng.below(4) == 0 {
            // A length that several parts of the file agree on.
            let same = bytes[HEADER..].as_chunks_mut().0.iter_mut().filter(|other| **other == old.to_le_bytes());
            same.for_each(|other| *other = word.to_le_bytes());
        }
        match rng.below(12) {
            0 => bytes.truncate(at + 4),
            1 => drop(bytes.splice(at..at, [0; 4])),
            2 if bytes.len() > HEADER + 4 => drop(bytes.drain(at..at + 4)),
            _ => {}
        }
    }
}

#[test]
fn bodies_of_any_words_under_a_right_checksum_never_panic() {
    const N: u64 = 200_000;
    let files: Vec<_> = policies().iter().map(file).collect();
    let (mut n_acted, mut n_skipped) = (0, 0);
    for i in 0..N {
        let rng = &mut Rng::new(3, 0, i, Purpose::Init);
        let mut bytes = files[i as usize % files.len()].clone();
        mutate(&mut bytes, rng);
        repair(&mut bytes);
        match Policy::new(&bytes) {
            Ok(policy) if act(&policy, bytes.len(), rng) => n_acted += 1,
            Ok(_) => n_skipped += 1,
            Err(error) => assert_eq!(error, Error::Contents, "mutant {i}"),
        }
    }
    // Both are tested: parsing, and acting with what has been parsed.
    println!("{n_acted} of {N} acted, {n_skipped} are too large to act");
    assert!((N / 5..N * 4 / 5).contains(&n_acted), "{n_acted} of {N} acted");
}
