//! Environments on the device.

pub(crate) mod steps;
pub(crate) mod twins;
pub(crate) mod vec_env;
