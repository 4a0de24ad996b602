//! Writers of policies: files for the loader of this crate, C, ONNX.

pub mod c;

mod file;

pub use file::file;
