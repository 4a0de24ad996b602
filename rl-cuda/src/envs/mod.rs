//! Environments on the device.

mod minatar;
pub(crate) mod steps;
pub(crate) mod twins;
pub(crate) mod vec_env;
