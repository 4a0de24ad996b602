//! Python packages for the tests, installed into target.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Packages that tests need.
///
/// Gymnasium for worker processes, with an Atari game and what prepares its pictures; the reader of event files; pytest for the
/// Python package; a runtime and a checker for ONNX models.
const PACKAGES: [&str; 7] = [
    "gymnasium==1.3.0",
    "ale-py==0.12.1",
    "opencv-python-headless==5.0.0.93",
    "tensorboard==2.20.0",
    "pytest==9.2.0",
    "onnxruntime==1.32.0",
    "onnx==1.23.2",
];

/// Variables that turn a skip for lack of a package into a failure.
const REQUIRED: [&str; 4] = ["RL_REQUIRE_GYM", "RL_REQUIRE_TENSORBOARD", "RL_REQUIRE_PYTHON", "RL_REQUIRE_ONNX"];

/// Returns the value of `PYTHONPATH` with which `python3` imports the packages.
///
/// Installs them if necessary. `None` if that fails, unless a variable of [`REQUIRED`] is set.
pub(crate) fn python_path(root: &Path) -> Result<Option<PathBuf>> {
    match install(root, &PACKAGES) {
        Ok(dir) => Ok(Some(dir)),
        Err(why) if REQUIRED.iter().any(|name| std::env::var_os(name).is_some()) => Err(why),
        Err(why) => {
            println!("{why:#}: tests of worker processes, event files, the Python package and ONNX models are skipped");
            Ok(None)
        }
    }
}

/// Installs Python packages into a directory below target, and returns it.
///
/// Packages that are there are kept.
pub(crate) fn install(root: &Path, packages: &[&str]) -> Result<PathBuf> {
    let dir = root.join("target").join(packages.join("-").replace("==", "-"));
    // Written last, so that it shows a complete installation.
    let done = dir.join("installed");
    if !done.exists() {
        let all = packages.join(", ");
        println!("\n==> installing {all} into {}", dir.display());
        let pip = "-m pip install --quiet --disable-pip-version-check --retries 1 --upgrade --target";
        let output = Command::new("python3").args(pip.split(' ')).arg(&dir).args(packages).output().context("python3")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("pip cannot install {all}: {}", said.lines().last().unwrap_or_default());
        }
        std::fs::write(&done, "").with_context(|| done.display().to_string())?;
    }
    Ok(dir)
}

/// Returns the interpreter that `python3` starts, or `RL_PYTHON`.
///
/// `python3` may be a script that looks for it, and hundreds of workers begin with it.
pub(crate) fn interpreter() -> PathBuf {
    let given = std::env::var_os("RL_PYTHON").map(PathBuf::from);
    let found = || {
        let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
        String::from_utf8(output.stdout).ok().map(|path| PathBuf::from(path.trim())).filter(|path| path.is_file())
    };
    given.or_else(found).unwrap_or_else(|| "python3".into())
}
