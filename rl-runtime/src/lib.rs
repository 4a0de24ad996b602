//! Time and place: the training loop, its files, and the `rl` program.
//!
//! Read [`train`](mod@train) first: the loop stands there once. [`config`] says what a user may choose, [`run_dir`] and
//! [`checkpoint`] what is written where, [`resume`] what a stopped run continues from, [`metrics`] what is measured; [`watch`](mod@watch)
//! lets a policy be seen. [`pipeline`] lets collecting and learning go on at the same time, on [rings](mod@ring) of buffers; [`blocking`] and
//! [`first_come`] collect from environments that block and survive their [`faults`]; [`profile`] says where time goes. Every line is printed by [`print`](mod@print),
//! every file that a user reads is written by [`file`](mod@file).
//!
//! The program is the default feature `cli`. A crate that needs the library alone depends on it with `default-features = false`, and
//! compiles no command line, progress bar, signal handler or GIF.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod blocking;
pub mod budget;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod faults;
pub mod file;
pub mod first_come;
pub mod interrupt;
pub mod metrics;
pub mod pipeline;
pub mod print;
pub mod profile;
pub mod resume;
pub mod ring;
pub mod run_dir;
pub mod train;
pub mod watch;

mod algo;
mod channel;
mod diverged;
mod error;

pub use algo::{Algo, AlgoConfig};
pub use config::Config;
pub use error::Error;
