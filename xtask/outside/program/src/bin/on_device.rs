//! The `rl` program with an environment that also steps on a GPU.

use std::process::ExitCode;

use uses_rl_cuda::corridor;

fn main() -> ExitCode {
    rl_runtime::cli::main(&[corridor::ENTRY], &[])
}
