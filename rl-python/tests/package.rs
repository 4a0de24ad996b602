//! The Python package, by its own tests: `tests/test_*.py`.
//!
//! Skipped without a `python3` that has gymnasium and pytest, unless `RL_REQUIRE_PYTHON=1`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Lays out the package as a wheel does.
///
/// Cargo has built its library for these tests.
fn lay_out(dir: &Path) {
    let package = dir.join("samebits");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/samebits")).unwrap() {
        let file = file.unwrap();
        if file.path().is_file() {
            fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    let tests = std::env::current_exe().unwrap();
    fs::copy(tests.with_file_name("lib_samebits.so"), package.join("_samebits.abi3.so")).unwrap();
}

#[test]
fn the_package_passes_its_tests() {
    let has =
        Command::new("python3").args(["-c", "import gymnasium, pytest"]).output().is_ok_and(|output| output.status.success());
    if !has {
        assert_ne!(std::env::var("RL_REQUIRE_PYTHON").as_deref(), Ok("1"), "python3 has no gymnasium or no pytest");
        eprintln!("skipped: no python3 with gymnasium and pytest");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    let path = std::env::var("PYTHONPATH").unwrap_or_default();
    let mut tests = Command::new("python3");
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations", "5"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    tests
        .env("PYTHONPATH", format!("{}:{path}", dir.path().display()))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(dir.path());
    assert!(tests.status().unwrap().success());
}
