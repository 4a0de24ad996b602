//! Studies: what settings, environments and threads cost or bring.
//!
//! `cargo xtask bench --study NAME` runs one, and writes `bench/study-NAME.md` with its picture.

mod a2c;
mod envs;
mod export;
mod in_turn;
mod memory;
mod programs;
mod python;
mod replay;
mod sizes;
mod snake;
mod threads;
mod time;
mod vector;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::bench::peers::peers_python;
use crate::bench::study::programs::Study;

type Measure = fn(&Study<'_>) -> Result<()>;

/// All studies by name; true if they run in the peers' Python.
const STUDIES: [(&str, bool, Measure); 15] = [
    ("a2c", true, a2c::measure),
    ("bits", false, export::measure_bits),
    ("ceiling", false, sizes::measure_ceiling),
    ("envs", false, envs::measure),
    ("export", false, export::measure),
    ("inputs", true, in_turn::inputs),
    ("memory", false, memory::measure),
    ("python", false, python::measure),
    ("recurrent", true, in_turn::recurrent),
    ("replay", false, replay::measure),
    ("sizes", false, sizes::measure),
    ("snake", false, snake::measure),
    ("threads", true, threads::measure),
    ("time", true, time::measure),
    ("vector", true, vector::measure),
];

/// Names of the studies.
pub(crate) fn names() -> [&'static str; STUDIES.len()] {
    STUDIES.map(|(name, ..)| name)
}

/// Runs the study of this name.
pub(crate) fn measure(root: &Path, name: &str) -> Result<()> {
    let (name, has_peers, measure) = STUDIES.into_iter().find(|study| study.0 == name).context("a study of that name")?;
    crate::cargo(root, &["build", "--release", "--package", "rl-runtime", "--bin", "rl"], &[])?;
    let python = if has_peers { peers_python(root, "target/peers", "requirements.txt")? } else { "python3".into() };
    measure(&Study { root, name, python })
}
