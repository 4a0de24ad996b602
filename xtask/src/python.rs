//! Python packages for the tests, installed into target.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Gymnasium for worker processes, and the reader of event files.
const PACKAGES: [&str; 2] = ["gymnasium==1.3.0", "tensorboard==2.20.0"];

/// Variables that turn a skip for lack of a package into a failure.
const REQUIRED: [&str; 2] = ["RL_REQUIRE_GYM", "RL_REQUIRE_TENSORBOARD"];

/// Returns the value of `PYTHONPATH` with which `python3` imports the packages.
///
/// Installs them if necessary. `None` if that fails, unless a variable of [`REQUIRED`] is set.
pub(crate) fn python_path(root: &Path) -> Result<Option<PathBuf>> {
    let packages = PACKAGES.join(", ");
    let dir = root.join("target").join(PACKAGES.join("-").replace("==", "-"));
    // Written last, so that it shows a complete installation.
    let done = dir.join("installed");
    if !done.exists() {
        println!("\n==> installing {packages} into {}", dir.display());
        let pip = "-m pip install --quiet --disable-pip-version-check --retries 1 --upgrade --target";
        let output = Command::new("python3").args(pip.split(' ')).arg(&dir).args(PACKAGES).output().context("python3")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = format!("pip cannot install {packages}: {}", said.lines().last().unwrap_or_default());
            if REQUIRED.iter().any(|name| std::env::var_os(name).is_some()) {
                bail!("{why}");
            }
            println!("{why}: tests of worker processes and event files are skipped");
            return Ok(None);
        }
        std::fs::write(&done, "").with_context(|| done.display().to_string())?;
    }
    Ok(Some(dir))
}
