//! A run: its training loop, its files, its policy shown.

pub(crate) mod assemble;
pub(crate) mod builder;
pub mod checkpoint;
pub(crate) mod diverged;
pub mod evaluation;
pub mod event;
pub(crate) mod mapped;
mod part;
pub(crate) mod progress;
pub mod resume;
pub mod run_dir;
pub(crate) mod saves;
pub mod train;
pub mod watch;
