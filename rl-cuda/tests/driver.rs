//! Machines without a usable driver: one sentence each, and no panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

use rl_cuda::Device;
use standin::{DECOYS, Decoy};

/// Compiles a library under the driver's names.
fn compile(dir: &Path, decoy: Decoy) {
    std::fs::write(dir.join("driver.c"), decoy.source()).unwrap();
    let mut compiler = Command::new("cc");
    compiler.current_dir(dir).args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "driver.c"]);
    assert!(compiler.status().unwrap().success());
    std::fs::copy(dir.join("libcuda.so.1"), dir.join("libcuda.so")).unwrap(); // cudarc looks for this name first
}

/// Opens a device in a process whose driver is in `dir`; returns its output.
fn open(dir: &Path) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_device_is_opened", "--ignored", "--nocapture"]).env("LD_LIBRARY_PATH", dir);
    let output = child.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn each_reason_for_no_driver_is_one_sentence() {
    if Device::emulated().is_err() {
        println!("skipped: no compiler");
        return;
    }
    let dir = std::env::temp_dir().join(format!("rl-cuda-driver-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    if !open(&dir).contains("Ok(") {
        assert!(open(&dir).contains("no CUDA device: the driver library libcuda.so.1 is not installed"));
    }
    for &(decoy, expected) in DECOYS {
        compile(&dir, decoy);
        let said = open(&dir);
        assert!(said.contains(expected), "{said}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[ignore = "run by the test above, in processes of its own"]
fn a_device_is_opened() {
    match Device::open(0) {
        Ok(device) => println!("Ok({device})"),
        Err(error) => println!("{error}"),
    }
}
