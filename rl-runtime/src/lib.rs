//! Time and place: the training loop, its files, and the `rl` program.
//!
//! Read [`train`](mod@train) first, the one training loop. [`config`] holds a user's settings; [`run_dir`], [`checkpoint`] and
//! [`metrics`] are the files of a run, [`resume`] continues it, and [`watch`](mod@watch) shows its policy. [`pipeline`] overlaps
//! collecting and learning, on [rings](mod@ring) of buffers; [`blocking`] and [`first_come`] collect from environments that
//! block, and survive their [`faults`]; [`worker`](mod@worker) steps environments in other processes; [`profile`] measures the
//! time of each phase. [`print`](mod@print) prints every line; [`file`](mod@file) writes every file that a user reads.
//!
//! The program is the default feature `cli`. The library without a command line, board, signal handler or GIF is the feature
//! `train`, with `default-features = false`. Without any feature there are only [`ring`](mod@ring) and [`thread`], and neither
//! agents nor candle are compiled. The default feature `cuda` lets the program open GPUs.

#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "train")]
pub mod blocking;
#[cfg(feature = "train")]
pub mod budget;
#[cfg(feature = "train")]
pub mod calls;
#[cfg(feature = "train")]
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "train")]
pub mod config;
#[cfg(feature = "crawl")]
pub mod crawl;
#[cfg(feature = "train")]
pub mod evaluation;
#[cfg(feature = "train")]
pub mod event;
#[cfg(feature = "train")]
pub mod faults;
#[cfg(feature = "train")]
pub mod file;
#[cfg(feature = "train")]
pub mod first_come;
#[cfg(feature = "train")]
pub mod interrupt;
#[cfg(feature = "train")]
pub mod metrics;
#[cfg(feature = "train")]
pub mod pipeline;
#[cfg(feature = "train")]
pub mod print;
#[cfg(feature = "train")]
pub mod profile;
#[cfg(feature = "train")]
pub mod resume;
pub mod ring;
#[cfg(feature = "train")]
pub mod run_dir;
#[cfg(feature = "train")]
pub mod site;
pub mod thread;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "train")]
pub mod watch;
#[cfg(all(unix, feature = "train"))]
pub mod worker;

#[cfg(feature = "cli")]
mod advice;
#[cfg(feature = "train")]
mod algo;
#[cfg(feature = "train")]
mod assemble;
#[cfg(feature = "train")]
mod auto;
#[cfg(feature = "train")]
mod catalog;
mod channel;
#[cfg(feature = "train")]
mod crew;
#[cfg(feature = "train")]
mod crossover;
#[cfg(feature = "train")]
mod diverged;
#[cfg(feature = "train")]
mod env_settings;
#[cfg(feature = "train")]
mod error;
#[cfg(feature = "train")]
mod latency;
#[cfg(feature = "train")]
mod mapped;
#[cfg(feature = "train")]
mod mode;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "train")]
mod progress;
#[cfg(feature = "train")]
mod recording;
#[cfg(feature = "train")]
mod resources;
#[cfg(feature = "train")]
mod saves;
#[cfg(feature = "train")]
mod slow_cartpole;
#[cfg(feature = "train")]
mod tensorboard;

#[cfg(feature = "train")]
pub use algo::{Algo, AlgoConfig};
#[cfg(feature = "train")]
pub use config::Config;
#[cfg(feature = "train")]
pub use error::Error;
#[cfg(feature = "train")]
pub use mode::Mode;
#[cfg(feature = "train")]
pub use progress::Progress;

/// Examples of the README, as tests.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
struct Readme;
