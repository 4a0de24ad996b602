//! Machines without a usable driver: one sentence each, and no panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

use rl_cuda::Device;

/// Compiles a library with the driver's functions except `without`.
///
/// `cuInit` returns `init`, and the version is `version`.
fn compile(dir: &Path, without: &str, init: i32, version: i32) {
    let mut source = format!("int cuInit(unsigned flags) {{ return {init}; }}\n");
    source += &format!("int cuDriverGetVersion(int* version) {{ *version = {version}; return {init}; }}\n");
    for name in standin::FUNCTIONS.iter().filter(|name| ![without, "cuInit", "cuDriverGetVersion"].contains(name)) {
        source += &format!("int {name}(void) {{ return 100; }}\n");
    }
    std::fs::write(dir.join("driver.c"), source).unwrap();
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
    for (without, init, version, expected) in [
        ("", 34, 12000, "no CUDA device: a toolkit's stub is loaded in place of the driver"),
        ("", 0, 11040, "no CUDA device: the driver supports CUDA 11.4, but driver 525 (CUDA 12.0) or newer is needed"),
        ("cuGraphInstantiateWithFlags", 0, 12000, "no CUDA device: the driver library lacks cuGraphInstantiateWithFlags;"),
        ("", 100, 12000, "no CUDA device: the driver finds none"),
    ] {
        compile(&dir, without, init, version);
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
