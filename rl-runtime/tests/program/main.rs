//! The `rl` program and its files, from outside.
//!
//! One binary, as each one would link everything once more.

#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(unix)]
mod bits;
#[cfg(target_os = "linux")]
mod commands;
#[cfg(target_os = "linux")]
#[path = "../../../rl-agents/tests/exported/compiled.rs"]
mod compiled;
mod devices;
#[cfg(unix)]
mod edges;
#[cfg(target_os = "linux")]
mod export;
mod harness;
#[cfg(target_os = "linux")]
mod newcomer;
mod pipeline;
mod records;
mod refused;
#[cfg(unix)]
mod resume;
mod rl;
mod sources;
#[cfg(target_os = "linux")]
mod trust;
