//! Opcodes of PTX against the manual: one table of operands and results for each.
//!
//! Written from NVIDIA's PTX ISA manual, version 8.0, without a look at the interpreter. Expected values are literals
//! from the manual, or computed by Rust's own arithmetic.
//! A NaN is compared as a NaN only: the manual leaves the payload of single precision unspecified (9.7.3), and does not
//! say which operand's payload survives in double precision. Moves and selections are compared bit by bit.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod bits;
mod comparisons;
mod control;
mod conversions;
mod faults;
mod floats;
mod integers;
mod machine;
mod memory;
mod numbers;
mod shared;
