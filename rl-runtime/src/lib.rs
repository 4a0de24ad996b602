//! Time and place: the training loop, its files, and the `rl` program.
//!
//! Read [`train`](mod@train) first, the one training loop. [`config`] holds a user's settings; [`run_dir`], [`checkpoint`] and
//! [`metrics`] are the files of a run, [`resume`] continues it, and [`watch`](mod@watch) shows its policy. [`pipeline`] overlaps
//! collecting and learning, on [rings](mod@ring) of buffers; [`blocking`] and [`first_come`] collect from environments that
//! block, and survive their [`faults`]; [`worker`](mod@worker) steps environments in other processes; [`profile`] measures the
//! time of each phase. [`print`](mod@print) prints every line; [`file`](mod@file) writes every file that a user reads.
//!
//! The program is the default feature `cli`. A crate that needs only the library depends on it with `default-features = false`,
//! and compiles no command line, board, signal handler or GIF.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod blocking;
pub mod budget;
pub mod calls;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
#[cfg(feature = "crawl")]
pub mod crawl;
pub mod evaluation;
pub mod event;
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
pub mod site;
pub mod thread;
pub mod train;
pub mod watch;
#[cfg(unix)]
pub mod worker;

#[cfg(feature = "cli")]
mod advice;
mod algo;
mod assemble;
mod auto;
mod catalog;
mod channel;
mod crew;
mod crossover;
mod diverged;
mod env_settings;
mod error;
mod latency;
mod mapped;
mod mode;
#[cfg(feature = "mpi")]
mod mpi;
mod progress;
mod recording;
mod resources;
mod saves;
mod slow_cartpole;
mod tensorboard;

pub use algo::{Algo, AlgoConfig};
pub use config::Config;
pub use error::Error;
pub use mode::Mode;
pub use progress::Progress;
