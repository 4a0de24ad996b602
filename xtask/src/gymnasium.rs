//! Gymnasium for the tests of worker processes, installed into target.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Version whose steps the worker repeats.
const PACKAGE: &str = "gymnasium==1.3.0";

/// Returns the value of `PYTHONPATH` with which `python3` imports Gymnasium.
///
/// Installs it if necessary. `None` if that fails, unless `RL_REQUIRE_GYM` is set.
pub(crate) fn python_path(root: &Path) -> Result<Option<PathBuf>> {
    let dir = root.join("target").join(PACKAGE.replace("==", "-"));
    // Written last, so that it shows a complete installation.
    let done = dir.join("installed");
    if !done.exists() {
        println!("\n==> installing {PACKAGE} into {}", dir.display());
        let pip = "-m pip install --quiet --disable-pip-version-check --retries 1 --upgrade --target";
        let output = Command::new("python3").args(pip.split(' ')).arg(&dir).arg(PACKAGE).output().context("python3")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = format!("pip cannot install {PACKAGE}: {}", said.lines().last().unwrap_or_default());
            if std::env::var_os("RL_REQUIRE_GYM").is_some() {
                bail!("{why}");
            }
            println!("{why}: tests of worker processes are skipped");
            return Ok(None);
        }
        std::fs::write(&done, "").with_context(|| done.display().to_string())?;
    }
    Ok(Some(dir))
}
