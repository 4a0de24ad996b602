//! The contract of an environment: spaces, actions, observations, steps.

pub(crate) mod columns;
pub(crate) mod env;
pub(crate) mod error;
pub(crate) mod space;
pub(crate) mod steps;
pub(crate) mod visit;
