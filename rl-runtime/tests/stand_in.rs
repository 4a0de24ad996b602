//! `rl` with `--device cuda`: on the stand-in, and on drivers that are no use.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod program;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use program::{finish, rl};
use serde_json::Value;

/// Runs `rl bench env` on the device of a driver in `dir`.
fn bench(dir: &Path, name: &str, options: &[&str]) -> Output {
    let args = ["bench", "env", name, "--envs", "33", "--device", "cuda", "--seconds", "1"];
    finish(rl(&args).args(options).env("LD_LIBRARY_PATH", dir))
}

/// Copies a library to both names under which the driver is looked for.
fn install(library: &Path, dir: &Path) {
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::copy(library, dir.join(name)).unwrap();
    }
}

#[test]
fn every_environment_is_benched_on_the_stand_in_without_a_rate() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    for entry in rl_envs::catalog::ENVS {
        let output = bench(dir.path(), entry.name, &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{}: {}", entry.name, String::from_utf8_lossy(&output.stderr));
        let event: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&event["env"], &event["stand_in"], &event["value"]), (&entry.name.into(), &true.into(), &Value::Null));
    }
    let said = bench(dir.path(), "cartpole", &[]).stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("stand-in") && !said.contains("env_steps/s"), "{said}");
}

#[test]
fn a_driver_that_is_no_use_is_one_sentence_and_exit_1() {
    if Command::new("cc").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("RL_REQUIRE_CXX").is_none_or(|value| value != "1"),
            "RL_REQUIRE_CXX=1, but there is no compiler"
        );
        println!("skipped: no compiler");
        return;
    }
    let refused = |dir: &Path, expected: &str| {
        let output = bench(dir, "cartpole", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with(&format!("error: {expected}")), "{said}");
    };
    let dir = tempfile::tempdir().unwrap();
    for (decoy, expected) in standin::DECOYS {
        let (source, library) = (dir.path().join("driver.c"), dir.path().join("driver.so"));
        fs::write(&source, decoy.source()).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        install(&library, dir.path());
        refused(dir.path(), expected);
    }
    fs::write(dir.path().join("driver.so"), "no library").unwrap();
    install(&dir.path().join("driver.so"), dir.path());
    refused(dir.path(), "no CUDA device: ");
    let is_installed = rl_cuda::Device::open(0).is_ok();
    if !is_installed {
        refused(tempfile::tempdir().unwrap().path(), "no CUDA device: ");
    }
}
