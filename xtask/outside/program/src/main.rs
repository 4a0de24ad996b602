//! The `rl` program with a custom environment in addition to the built-in ones.

mod walk;

use std::process::ExitCode;

use rl_envs::catalog::Entry;

fn main() -> ExitCode {
    rl_runtime::cli::main(&[Entry::of::<walk::Walk>("walk", "reach the right end of a line")])
}
