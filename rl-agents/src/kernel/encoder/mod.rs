//! Encoders before dense layers: categories, convolutions, memory.

pub(crate) mod categories;
pub(crate) mod conv;
pub(crate) mod memory;
