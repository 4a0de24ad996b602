//! Errors, and their exit codes.

use std::io;
use std::path::{Path, PathBuf};

/// Error of this crate; each variant carries the facts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid settings, all of them at once.
    #[error("{}", problems.join("\n"))]
    Config {
        /// One line per problem: the setting, its source, and the allowed values.
        problems: Vec<String>,
    },
    /// Run directory in use, or with other contents.
    #[error("{path}: {why}")]
    RunDir {
        /// The directory.
        path: PathBuf,
        /// The problem, and the remedy.
        why: String,
    },
    /// Checkpoint that is damaged or belongs to something else.
    #[error("checkpoint {path}: {why}")]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// The problem, and the remedy.
        why: String,
    },
    /// Training stopped because no checkpoint could be saved.
    #[error(
        "training stopped: the checkpoint could not be saved {attempts} times in a row, last because: {cause}\n{}",
        what_to_do(run, *saved)
    )]
    NotSaved {
        /// The run directory.
        run: PathBuf,
        /// Number of attempts.
        attempts: u32,
        /// The last error.
        cause: Box<Error>,
        /// Environment steps of the last saved checkpoint.
        saved: Option<u64>,
    },
    /// Training stopped because the agent's own numbers are not finite any more.
    #[error("training stopped, and this agent is not saved: {cause}\n{}", how_to_go_back(run, *saved))]
    NotFinite {
        /// The run directory.
        run: PathBuf,
        /// The first of the numbers.
        cause: String,
        /// Environment steps of the last saved checkpoint.
        saved: Option<u64>,
    },
    /// File that cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Device that cannot be opened.
    #[error("{0}; use --device cpu")]
    Device(#[from] rl_cuda::Error),
    /// Thread that cannot be spawned, or that has ended early.
    #[error(transparent)]
    Thread(#[from] crate::thread::ThreadError),
    /// Losses that stayed non-finite.
    #[error("{divergence}, in iteration {iteration} after {env_steps} env steps\n  {dump}\n  {advice}")]
    Diverged {
        /// Optimizer step at which training stopped.
        divergence: Box<rl_agents::Divergence>,
        /// Environment steps before the rollout that was being learnt from.
        env_steps: u64,
        /// Number of that rollout, from 1.
        iteration: u64,
        /// Path of the dump, or the reason for its absence.
        dump: String,
        /// Settings that help, and a command.
        advice: String,
    },
    /// Training that does not fit into a device's memory.
    #[error("{error}; {fits}")]
    DeviceMemory {
        /// Error of the device.
        error: rl_cuda::Error,
        /// Settings that fit.
        fits: String,
    },
    /// Error of the agent.
    #[error(transparent)]
    Agent(#[from] rl_agents::Error),
    /// Environment that breaks its contract.
    #[error("{env} fails {n_failed} of {n_checks} checks; start with the first")]
    CheckFailed {
        /// Name of the environment.
        env: String,
        /// Number of failed checks.
        n_failed: usize,
        /// Number of checks.
        n_checks: usize,
    },
    /// Environment of an evaluation that ends no episode without a fault.
    #[error("environment {env_idx} broke off {n} episodes in a row with a fault, so that its policy cannot be evaluated")]
    EpisodesBroken {
        /// Index of the environment.
        env_idx: usize,
        /// Number of episodes.
        n: u32,
    },
    /// Environments that failed permanently.
    #[error("environment {env_idx} was replaced too often, last because: {cause}; {n_failed} have failed permanently")]
    EnvFailed {
        /// Index of the last of them.
        env_idx: usize,
        /// Last fault of that environment.
        cause: String,
        /// Number of failed environments.
        n_failed: usize,
    },
    /// Process of an actor that failed too often.
    #[error("the process of an actor was replaced too often, the last one {cause}")]
    Actor {
        /// Cause of the last failure, as the rest of a sentence about the process.
        cause: String,
    },
    /// Error of an environment.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
}

/// Returns advice after a run that could not save.
fn what_to_do(run: &Path, saved: Option<u64>) -> String {
    let (run, program) = (crate::print::quoted(run), crate::print::program());
    match saved {
        Some(env_steps) => format!(
            "free some space or fix the cause, then `{program} train --resume {run}` continues from the checkpoint at {env_steps} env steps"
        ),
        None => format!("no checkpoint was saved: free some space or fix the cause, remove {run}, then start again"),
    }
}

/// Returns advice after a run whose agent has numbers that are not finite.
fn how_to_go_back(run: &Path, saved: Option<u64>) -> String {
    let (run, program) = (crate::print::quoted(run), crate::print::program());
    match saved {
        Some(env_steps) => format!(
            "`{program} train --resume {run}` continues from the checkpoint at {env_steps} env steps; use a smaller learning rate, or, if that ends here again, remove this checkpoint to continue from the one before it"
        ),
        None => format!("no checkpoint was saved: remove {run}, then start again with a smaller learning rate"),
    }
}

impl Error {
    /// Returns the exit code of the program.
    ///
    /// 1 failed at run time, 2 bad usage or configuration, 3 unusable checkpoint, 4 diverged, 5 environment failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        use rl_agents::Error as Agent;
        use rl_envs::Error as Env;
        match self {
            Self::Config { .. } | Self::RunDir { .. } => 2,
            Self::Checkpoint { .. } => 3,
            Self::Io { .. } | Self::NotSaved { .. } | Self::Thread(_) | Self::Device(_) | Self::DeviceMemory { .. } => 1,
            Self::Agent(Agent::Buffer(rl_buffer::Error::Device(_))) => 1,
            Self::Agent(
                Agent::BatchSize { .. }
                | Agent::Setting { .. }
                | Agent::Range { .. }
                | Agent::ActionKind
                | Agent::Ranks { .. }
                | Agent::Buffer(_),
            ) => 2,
            Self::Agent(Agent::Snapshot(_)) => 3,
            Self::Agent(Agent::Diverged(_)) | Self::Diverged { .. } | Self::NotFinite { .. } => 4,
            Self::Agent(Agent::Env(env)) | Self::Env(env) => match env {
                Env::UnknownEnv { .. }
                | Env::Blocking { .. }
                | Env::EnvCount { .. }
                | Env::Slices { .. }
                | Env::BadTrace(_)
                | Env::Threads { .. } => 2,
                Env::BadState(_) => 3,
                Env::Stopped => crate::interrupt::EXIT_CODE,
                _ => 5,
            },
            Self::Agent(Agent::NotFinite(_) | Agent::NotFiniteAgain(_) | Agent::EnvPanicked { .. } | Agent::Rank { .. }) => 5,
            Self::Actor { .. } | Self::CheckFailed { .. } | Self::EnvFailed { .. } | Self::EpisodesBroken { .. } => 5,
            Self::Agent(_) => 1,
        }
    }

    /// True if environments have stopped because the program is interrupted.
    pub(crate) fn is_stop(&self) -> bool {
        use rl_envs::Error::Stopped;
        matches!(self, Self::Env(Stopped) | Self::Agent(rl_agents::Error::Env(Stopped)))
    }

    /// Returns a closure that adds the path to a system error.
    pub(crate) fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |error| Self::Io { path, error }
    }

    /// Creates an error for a single configuration problem.
    pub fn config(problem: impl Into<String>) -> Self {
        Self::Config { problems: vec![problem.into()] }
    }
}
