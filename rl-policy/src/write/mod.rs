//! Writers of policies: files for the loader of this crate, C, ONNX.

pub mod c;

mod file;
#[cfg(feature = "onnx")]
mod onnx;

pub use file::file;
#[cfg(feature = "onnx")]
pub use onnx::onnx;
