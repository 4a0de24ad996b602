//! Rules of the workspace that the compiler does not know.

pub(crate) mod circles;
pub(crate) mod counts;
pub(crate) mod figures;
pub(crate) mod packages;
pub(crate) mod public;
pub(crate) mod shapes;
pub(crate) mod source;
pub(crate) mod tidy;
