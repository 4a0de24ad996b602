//! Programs of tests, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Program of tests that cargo has built.
pub(crate) struct Executable {
    /// Source file of its root.
    pub(crate) source: PathBuf,
    pub(crate) program: PathBuf,
}

/// Compiles a selection of tests, and returns their programs.
pub(crate) fn executables(root: &Path, selection: &[&str]) -> Result<Vec<Executable>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(selection);
    // What is built is looked for below `target`.
    let output = command.env_remove("CARGO_TARGET_DIR").current_dir(root).stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let messages = String::from_utf8(output.stdout)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let executable = |message: Value| {
        let [source, program] =
            [&message["target"]["src_path"], &message["executable"]].map(|path| path.as_str().map(PathBuf::from));
        Some(Executable { source: source?, program: program? })
    };
    Ok(tests.filter_map(executable).collect())
}
