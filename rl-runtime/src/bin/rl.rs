//! The `rl` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    rl_runtime::cli::main(&[], &[])
}
