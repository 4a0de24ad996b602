//! What can go wrong, and the exit code that says so.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings that cannot be, all of them.
    #[error("{}", problems.join("\n"))]
    Config {
        /// One line each: what, where, and what is allowed.
        problems: Vec<String>,
    },
    /// A run directory that is in use or holds something else.
    #[error("{path}: {why}")]
    RunDir {
        /// The directory.
        path: PathBuf,
        /// What is the matter, and what to do.
        why: String,
    },
    /// A checkpoint that is damaged or belongs to something else.
    #[error("checkpoint {path}: {why}")]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is the matter, and what to do.
        why: String,
    },
    /// Training was given up because no checkpoint could be saved.
    #[error(
        "training was given up: its checkpoint could not be saved {attempts} times running, last because: {cause}\n{}",
        what_to_do(run, *saved)
    )]
    NotSaved {
        /// The directory of the run.
        run: PathBuf,
        /// Number of attempts.
        attempts: u32,
        /// The last error.
        cause: Box<Error>,
        /// The env steps of the last checkpoint that was saved.
        saved: Option<u64>,
    },
    /// A file that cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A device that is not there.
    #[error("{0}; use --device cpu")]
    Device(#[from] rl_cuda::Error),
    /// A device that this build cannot train on.
    #[error("{0} is there, but training on it is not in this build, which trains on the CPU; use --device cpu")]
    DeviceUnsupported(String),
    /// A thread that could not be started, or that has ended too early.
    #[error("the thread \"{name}\" {cause}")]
    Thread {
        /// Its name.
        name: String,
        /// What happened to it.
        cause: String,
    },
    /// Losses that stayed not finite.
    #[error("{divergence}, in iteration {iteration} after {env_steps} env steps\n  {dump}\n  {advice}")]
    Diverged {
        /// The step of the optimizer at which learning was given up.
        divergence: Box<rl_agents::Divergence>,
        /// Environment steps before the rollout that was being learnt from.
        env_steps: u64,
        /// Number of that rollout, from 1.
        iteration: u64,
        /// Path of the dump, or the reason that there is none.
        dump: String,
        /// Settings that help, and a command.
        advice: String,
    },
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] rl_agents::Error),
    /// An environment breaks the contract.
    #[error("{env} fails {n_failed} of {n_checks} checks; begin with the first")]
    CheckFailed {
        /// The environment.
        env: String,
        /// How many.
        n_failed: usize,
        /// Of how many.
        n_checks: usize,
    },
    /// Environments that had to be replaced too often.
    #[error("environment {env_idx} had to be replaced too often, last because: {cause}; {n_failed} have failed for good")]
    EnvFailed {
        /// The last of them.
        env_idx: usize,
        /// Its last fault.
        cause: String,
        /// How many.
        n_failed: usize,
    },
    /// The environments failed.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
}

/// Advice after a run that could not save.
fn what_to_do(run: &Path, saved: Option<u64>) -> String {
    let run = crate::print::quoted(run);
    match saved {
        Some(env_steps) => format!(
            "make room or mend what is wrong, then `rl train --resume {run}` continues from the checkpoint at {env_steps} env steps"
        ),
        None => format!("no checkpoint was saved: make room or mend what is wrong, remove {run}, then start again"),
    }
}

impl Error {
    /// The exit code of the program: 1 failed at run time, 2 bad usage or configuration, 3 checkpoint unusable, 4 diverged,
    /// 5 environment failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        use rl_agents::Error as Agent;
        use rl_envs::Error as Env;
        match self {
            Self::Config { .. } | Self::RunDir { .. } => 2,
            Self::Checkpoint { .. } => 3,
            Self::Io { .. } | Self::NotSaved { .. } | Self::Thread { .. } | Self::Device(_) | Self::DeviceUnsupported(_) => 1,
            Self::Agent(
                Agent::BatchSize { .. } | Agent::Setting { .. } | Agent::Range { .. } | Agent::ActionKind | Agent::Buffer(_),
            ) => 2,
            Self::Agent(Agent::Snapshot(_)) => 3,
            Self::Agent(Agent::Diverged(_)) | Self::Diverged { .. } => 4,
            Self::Agent(Agent::Env(env)) | Self::Env(env) => match env {
                Env::UnknownEnv { .. } | Env::EnvCount { .. } | Env::Slices { .. } | Env::BadTrace(_) | Env::Threads { .. } => 2,
                Env::BadState(_) => 3,
                _ => 5,
            },
            Self::Agent(Agent::NotFinite(_) | Agent::NotFiniteAgain(_) | Agent::EnvPanicked { .. }) => 5,
            Self::CheckFailed { .. } | Self::EnvFailed { .. } => 5,
            Self::Agent(_) => 1,
        }
    }

    /// A closure that adds the path to what the system said.
    pub(crate) fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |error| Self::Io { path, error }
    }

    /// A single problem with the configuration.
    pub(crate) fn config(problem: impl Into<String>) -> Self {
        Self::Config { problems: vec![problem.into()] }
    }
}
