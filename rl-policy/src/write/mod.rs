//! Writers of policies: files for the loader of this crate, C, ONNX.

mod file;

pub use file::file;
