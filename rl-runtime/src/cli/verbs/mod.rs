//! Verbs of the program, one file each.

pub(crate) mod check_env;
pub(crate) mod devices;
pub(crate) mod list;
pub(crate) mod monitor;
pub(crate) mod plot;
pub(crate) mod policy;
pub(crate) mod site;
pub(crate) mod sweep;
pub(crate) mod trace;
pub(crate) mod train;
pub(crate) mod tune;
