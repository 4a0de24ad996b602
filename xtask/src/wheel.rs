//! Builds the wheel of the Python package, and tries it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::python;

/// The builder, and Zig as a linker against the symbols of an old glibc.
const BUILDER: [&str; 2] = ["maturin==1.16.0", "ziglang==0.15.2"];
/// glibc 2.28, which every distribution since Debian 10 has.
const PLATFORM: &str = "manylinux_2_28";
/// Maximum number of bytes of the wheel.
const MAX_BYTES: u64 = 15_000_000;

/// Four lines of a user's: train CartPole until an evaluation is perfect.
const TRAINS: &str = "\
import samebits
run = samebits.train(\"cartpole\", settings={\"target_return\": 475}, run_dir=\"run\", progress=False)
print(run.evaluate(100))
assert run.outcome[\"end\"] == \"target\"
";

/// Builds the wheel into `target/wheels`, and trains from it.
pub(crate) fn pack(root: &Path) -> Result<()> {
    let wheel = build(root)?;
    let bytes = fs::metadata(&wheel)?.len();
    println!("{}: {:.1} MB", wheel.display(), bytes as f64 * 1e-6);
    ensure!(bytes <= MAX_BYTES, "more than {:.0} MB", MAX_BYTES as f64 * 1e-6);
    let place = root.join("target/wheel-venv");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    run(Command::new(place.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]).arg(&wheel))?;
    run(Command::new(place.join("bin/rl")).arg("--version"))?;
    let begin = Instant::now();
    run(Command::new(place.join("bin/python")).args(["-c", TRAINS]).current_dir(&place))?;
    println!("from the start of the interpreter to a solved CartPole, evaluated: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Builds the wheel; returns its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let tools = python::install(root, &BUILDER)?;
    let out = root.join("target/wheels");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tools.join("bin/maturin"));
    command.args(["build", "--locked", "--zig", "--compatibility", PLATFORM, "--out"]).arg(&out);
    command.current_dir(root.join("rl-python")).env("PYTHONPATH", &tools);
    run(command.env("PATH", format!("{}/bin:{path}", tools.display())))?;
    let wheel =
        fs::read_dir(&out)?.filter_map(|file| Some(file.ok()?.path())).find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.context("maturin has built no wheel")
}

/// Prints and runs a command.
fn run(command: &mut Command) -> Result<()> {
    println!("\n==> {command:?}");
    ensure!(command.status().with_context(|| format!("{command:?}"))?.success(), "{command:?} failed");
    Ok(())
}
