//! `rl --version`, `rl completions` and the manual pages.

use std::sync::LazyLock;

use clap::Command;
use clap_complete::Shell;
use rl_envs::Isa;

use crate::print;

/// Features that change what the program can do.
const FEATURES: [(&str, bool); 4] = [
    ("cuda", cfg!(feature = "cuda")),
    ("crawl", cfg!(feature = "crawl")),
    ("mpi", cfg!(feature = "mpi")),
    ("candle-cuda", cfg!(feature = "candle-cuda")),
];

/// Version and commit.
pub(crate) static SHORT: LazyLock<String> = LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("RL_COMMIT")));

/// Version, commit, features, instruction set and target.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    let features: Vec<&str> = FEATURES.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    let features = if features.is_empty() { "none".into() } else { features.join(", ") };
    let isa = format!("{:?}", Isa::best()).to_lowercase();
    format!("{}\nfeatures: {features}\ninstruction set: {isa}\ntarget: {}", *SHORT, env!("RL_TARGET"))
});

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, mut program: Command) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "rl", &mut script);
    print::raw(&String::from_utf8_lossy(&script));
}

/// Writes a manual page for each verb to a directory.
#[cfg(feature = "man")]
pub(crate) fn man(dir: &std::path::Path, program: Command) -> Result<(), crate::Error> {
    clap_mangen::generate_to(program, dir).map_err(crate::Error::io(dir))
}
