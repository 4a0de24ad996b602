//! Encoders before dense layers: parts, categories, convolutions, memory.

pub(crate) mod categories;
pub(crate) mod conv;
pub(crate) mod memory;
pub(crate) mod parts;
