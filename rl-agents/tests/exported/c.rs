//! The policies in C, compiled and run.
//!
//! Skipped without gcc and clang, unless `RL_REQUIRE_CC=1`.

use std::path::Path;

use rl_policy::write::c::{Sources, TestVectors, c};
use rl_policy::{Obs, Policy as Loaded, write};

use crate::cases::{Case, Seen, cases};
use crate::compiled::{Streams, targets};

#[test]
fn a_policy_in_c_acts_as_the_original() {
    const N_TESTED: usize = 64;
    let targets = targets();
    if targets.is_empty() {
        assert_ne!(std::env::var("RL_REQUIRE_CC").as_deref(), Ok("1"), "there is neither gcc nor clang");
        eprintln!("skipped: no gcc, no clang");
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exported-c");
    std::fs::create_dir_all(&dir).unwrap();
    for Case { name, spaces, policy } in cases() {
        let exported = policy.exported(&spaces).unwrap();
        let file = write::file(&exported);
        let loaded = Loaded::new(&file).unwrap();
        // Enough draws of small policies to cover the range of logarithms.
        let n = (6_000_000 / exported.multiply_adds()).clamp(100, 20_000);
        let (d, m, seen) = (loaded.obs_len(), loaded.mask_len(), Seen::of(&spaces, n));
        let obs = |i: usize| {
            if loaded.reads_bytes() { Obs::U8(&seen.bytes[i * d..][..d]) } else { Obs::F32(&seen.floats[i * d..][..d]) }
        };
        let mut memory = vec![0.0; loaded.memory_len()];
        loaded.reset(&mut memory);
        let outputs: Vec<f32> = (0..N_TESTED).flat_map(|i| loaded.outputs(obs(i), &mut memory).unwrap().to_vec()).collect();
        let (floats, bytes) = (&seen.floats[..N_TESTED * d], &seen.bytes[..N_TESTED * d]);
        let Sources { header, source, .. } = c(&exported, name, &TestVectors { n: N_TESTED, floats, bytes, outputs: &outputs });
        std::fs::write(dir.join(format!("{name}.h")), header).unwrap();
        std::fs::write(dir.join(format!("{name}.c")), source).unwrap();
        let mut streams = Streams::new(loaded, exported.head.draws());
        (0..n).for_each(|i| streams.push(obs(i), &seen.masks[i * m..(i + 1) * m]));
        for target in &targets {
            streams.check(&dir, name, target, exported.multiply_adds());
        }
    }
}
