//! A stand-in for the CUDA driver: PTX runs on the host and is checked.
//!
//! The library takes the place of `libcuda.so.1` and exports the functions of the driver that rl-cuda uses. Loaded before cudarc
//! looks for the driver, it executes the committed PTX, streams, events and graphs. It reports what a GPU leaves undefined:
//! accesses out of bounds, freed or uninitialized memory, races between threads, streams and the host, illegal calls during a
//! capture. It says nothing about speed.
//!
//! | variable | meaning |
//! |---|---|
//! | `RL_STANDIN_SCHEDULE` | `latest` (the default): work runs when the host needs it; `eager`: at once; `random:SEED` |
//! | `RL_STANDIN_MEMORY` | bytes of device memory, 4 GiB by default |
//! | `RL_STANDIN_MULTIPROCESSORS` | multiprocessors that a device claims to have, 1 by default |
//! | `RL_STANDIN_NODES` | maximum nodes of a graph, 10,000 by default |
//! | `RL_STANDIN_DEVICES` | number of devices, 1 by default |
//! | `RL_STANDIN_LAUNCHES` | number of launches after which the device is lost; none by default |
//! | `RL_STANDIN_COUNTS` | file to which each process appends counts of its kernels; see [`counts`] |
//! | `RL_STANDIN_MUTANTS` | file of changed lines of PTX: those that no launch notices stay in it; see `mutants` |
//!
//! Under the name `libnvidia-ml.so.1` it stands in for NVML, too, with fixed readings.
//!
//! Tests of opcodes need no driver: [`Machine`] runs a kernel of a PTX text on memory of its own.
//!
//! Linux on x86-64 only; elsewhere the crate is empty.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod api;
mod decoy;
mod driver;
mod fault;
mod nvml;
mod pinned;
mod ptx;
mod run;
mod settings;

pub use api::FUNCTIONS;
pub use decoy::{DECOYS, Decoy};
pub use fault::{Fault, Kind};
pub use ptx::opcode::Arithmetic;
pub use ptx::{Access, Instruction, Kernel, Operation, Param, PtxError, Space, alone, parse, with_line};
pub use run::counts;
pub use run::machine::Machine;
