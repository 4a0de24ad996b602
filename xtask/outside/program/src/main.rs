//! The `rl` program with an environment of one's own beside the built-in ones.

mod walk;

use std::process::ExitCode;

use rl_envs::catalog::Entry;

fn main() -> ExitCode {
    rl_runtime::cli::main(&[Entry::of::<walk::Walk>("walk", "reach the right end of a line")])
}
