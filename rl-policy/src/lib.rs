//! Trained policies outside of their training.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![forbid(unsafe_code)]

mod act;
#[cfg(feature = "write")]
mod exported;
mod format;
mod fused;
mod math;
mod read;
#[cfg(feature = "write")]
pub mod write;

pub use act::{Action, Choice, Obs, stack};
#[cfg(feature = "write")]
pub use exported::{Activation, Exported, Head, Input, Layer, LayerKind};
pub use read::{Error, Policy};
