//! The `rl` program with a custom environment in addition to the built-in ones.

use std::process::ExitCode;

use own_program::walk::Walk;
use rl_envs::catalog::Entry;

fn main() -> ExitCode {
    rl_runtime::cli::main(&[Entry::of::<Walk>("walk", "reach the right end of a line")])
}
