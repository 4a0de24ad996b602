//! The `rl` program with a custom environment and a custom algorithm.

use std::process::ExitCode;

use own_program::reinforce::ReinforceConfig;
use own_program::walk::Walk;
use rl_envs::catalog::Entry;
use rl_runtime::Algo;

fn main() -> ExitCode {
    rl_runtime::cli::main(
        &[Entry::of::<Walk>("walk", "reach the right end of a line")],
        &[Algo::of::<ReinforceConfig>("reinforce", "REINFORCE with a baseline")],
    )
}
