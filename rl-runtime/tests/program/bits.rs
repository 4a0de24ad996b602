//! Short trainings give the bits recorded in `tests/data/bits.txt`.
//!
//! Each line of that file is the arguments of a training and the BLAKE3 hash of its parameters, optimizer and replay memory.
//! After a change that is meant to change bits, raise [`rl_agents::ARITHMETIC`] once a release and record again:
//!
//! ```text
//! RL_RECORD_BITS=1 cargo test --workspace --test program bits::
//! ```
//!
//! The hashes hold on every machine with fused multiply-add, and for any number of threads. The reference learner is left out,
//! because the sums of candle depend on the machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{finish, newest, rl, text};
use rl_envs::Isa;

/// Numbers of threads, of which each training takes the next.
const THREADS: [&str; 4] = ["1", "2", "3", "8"];

/// Trains in `dir` and hashes what the training leaves.
fn hash(dir: &Path, args: &str, threads: &str) -> String {
    let args = args.split_whitespace().chain(["--seed", "7", "--threads", threads, "--set", "eval_episodes=1"]);
    let args: Vec<&str> = ["train"].into_iter().chain(args).chain(["--run-dir", text(dir)]).collect();
    let output = finish(&mut rl(&args));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let mut hasher = blake3::Hasher::new();
    for name in ["params.safetensors", "optimizer.safetensors", "replay.bin"] {
        if let Ok(bytes) = fs::read(newest(dir).join(name)) {
            hasher.update(&bytes);
        }
    }
    hasher.finalize().to_hex()[..16].into()
}

#[test]
fn short_trainings_give_the_recorded_bits_for_any_number_of_threads() {
    if Isa::best() == Isa::Plain {
        eprintln!("skipped: no fused multiply-add on this machine, which gives other bits");
        return;
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/bits.txt");
    let recorded = fs::read_to_string(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut found = String::new();
    for (i, line) in recorded.lines().enumerate() {
        let (_, args) = line.split_once(' ').unwrap();
        let hash = hash(&dir.path().join(i.to_string()), args, THREADS[i % THREADS.len()]);
        found += &format!("{hash} {args}\n");
    }
    if std::env::var_os("RL_RECORD_BITS").is_some() {
        fs::write(&path, &found).unwrap();
        return;
    }
    let changed: Vec<&str> = recorded.lines().filter(|line| !found.contains(line)).collect();
    assert!(changed.is_empty(), "other bits than recorded (see the head of this file):\n{}", changed.join("\n"));
}
