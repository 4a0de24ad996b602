//! Time and place: the training loop, its files, and the `rl` program.
//!
//! Read [`train`](mod@train) first, the one training loop. [`config`] holds a user's settings; [`run_dir`], [`checkpoint`] and
//! [`metrics`] are the files of a run, [`resume`] continues it, and [`watch`](mod@watch) shows its policy. [`pipeline`] overlaps
//! collecting and learning, on [rings](mod@ring) of buffers; [`blocking`] and [`first_come`] collect from environments that
//! block, and survive their [`faults`]; [`worker`](mod@worker) steps environments in other processes; [`profile`] measures the
//! time of each phase. [`print`](mod@print) prints every line; [`file`](mod@file) writes every file that a user reads.
//!
//! ```
//! # #[cfg(feature = "train")] {
//! use rl_runtime::{Algo, config::Layers, run_dir::RunDir, train::Training};
//!
//! let mut layers = Layers::default();
//! let settings = ["steps=512", "ppo.n_steps=32", "ppo.batch_size=64", "eval_episodes=1"];
//! settings.iter().for_each(|setting| layers.add_assignment(setting));
//! let entry = rl_envs::catalog::find("cartpole")?;
//! let config = layers.resolve(entry, Algo::PPO)?;
//! # let place = std::env::temp_dir().join(format!("rl-runtime-doc-{}", std::process::id()));
//! let dir = RunDir::create(Some(&place), &config, "cpu")?; // config.toml, metrics.csv, checkpoints
//! let mut training = Training::builder(&config, entry).build()?;
//! training.run(&dir, &mut |_| ())?; // calls back with each row of metrics
//! # std::fs::remove_dir_all(place)?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The program is the default feature `cli`. The library without a command line, board, signal handler or GIF is the feature
//! `train`, with `default-features = false`. Without any feature there are only [`ring`](mod@ring) and [`thread`], and neither
//! agents nor candle are compiled. The default feature `cuda` lets the program open GPUs.

#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "train")]
pub mod config;
#[cfg(feature = "train")]
pub mod file;
#[cfg(feature = "train")]
pub mod interrupt;
#[cfg(feature = "train")]
pub mod pipeline;
#[cfg(feature = "train")]
pub mod print;
pub mod ring;
pub mod thread;

mod channel;
#[cfg(feature = "train")]
mod error;
#[cfg(feature = "train")]
mod ranks;
#[cfg(feature = "train")]
mod report;
#[cfg(feature = "train")]
mod run;
#[cfg(feature = "train")]
mod sources;

#[cfg(feature = "train")]
pub use config::algo;
#[cfg(feature = "train")]
pub use config::algo::{Algo, AlgoConfig};
#[cfg(feature = "train")]
pub use config::{Config, budget};
#[cfg(feature = "train")]
pub use error::Error;
#[cfg(feature = "train")]
pub use pipeline::mode::Mode;
#[cfg(feature = "train")]
pub use pipeline::{blocking, calls, faults, first_come};
#[cfg(feature = "train")]
pub use report::{metrics, profile};
#[cfg(feature = "train")]
pub use run::builder::TrainingBuilder;
#[cfg(feature = "train")]
pub use run::progress::Progress;
#[cfg(feature = "train")]
pub use run::{checkpoint, evaluation, event, resume, run_dir, train, watch};
#[cfg(feature = "crawl")]
pub use sources::crawl;
#[cfg(feature = "train")]
pub use sources::site;
#[cfg(all(unix, feature = "train"))]
pub use sources::{open_env, worker};

/// Examples of the README, as tests.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
struct Readme;
