//! The `rl` program and its files, from outside.
//!
//! One binary, as each one would link everything once more.

#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(unix)]
mod bits;
#[cfg(target_os = "linux")]
mod commands;
mod crawl;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod crossover;
mod device;
#[cfg(unix)]
mod edges;
mod harness;
#[cfg(target_os = "linux")]
mod newcomer;
mod offline;
mod pipeline;
mod records;
mod refused;
#[cfg(unix)]
mod resume;
mod rl;
mod slow_cartpole;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stand_in;
#[cfg(target_os = "linux")]
mod trust;
#[cfg(target_os = "linux")]
mod worker;
mod wrapped;
