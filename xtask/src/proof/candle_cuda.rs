//! A build of `rl` with candle's CUDA backend, without a GPU.
//!
//! The CUDA toolkit is assembled from pinned wheels of CUDA 13, since those of CUDA 12 have no `nvcc`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo;

const WHEELS: [&str; 8] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cublas==13.0.2.14",
    "nvidia-curand==10.4.0.35",
];
/// Libraries to link with, and their versions.
///
/// The wheels lack the names without a version.
const LIBRARIES: [(&str, u32); 5] = [("cudart", 13), ("cublas", 13), ("cublasLt", 13), ("curand", 10), ("nvrtc", 13)];

/// Returns the folder of a toolkit in `target`, installed if necessary.
fn toolkit(root: &Path) -> Result<PathBuf> {
    let dir = root.join("target/cuda-13.0");
    let home = dir.join("nvidia/cu13");
    // Written last, so that it shows a complete installation of these wheels.
    let (done, wheels) = (dir.join("installed"), WHEELS.join(", "));
    if fs::read_to_string(&done).is_ok_and(|text| text == wheels) {
        return Ok(home);
    }
    println!("\n==> installing {wheels} into {}", dir.display());
    let pip = "-m pip install --quiet --no-deps --disable-pip-version-check --retries 1 --upgrade --target";
    let status = Command::new("python3").args(pip.split(' ')).arg(&dir).args(WHEELS).status().context("python3")?;
    if !status.success() {
        bail!("pip cannot install the toolkit");
    }
    let lib = home.join("lib");
    for (name, version) in LIBRARIES {
        fs::write(lib.join(format!("lib{name}.so")), format!("INPUT(lib{name}.so.{version})"))?;
    }
    // Machines without a GPU lack the driver's library. The linker needs its name, and those of its functions.
    let header = fs::read_to_string(home.join("include/cuda.h"))?;
    let words = header.split(|c: char| !c.is_alphanumeric() && c != '_');
    let functions = words.filter(|word| word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase)));
    let stubs: BTreeSet<String> = functions.map(|function| format!("void {function}(void) {{}}\n")).collect();
    let source = dir.join("stubs.c");
    fs::write(&source, stubs.into_iter().collect::<String>())?;
    let cc =
        Command::new("cc").args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"]).arg(lib.join("libcuda.so")).arg(source).status();
    if !cc.context("cc")?.success() {
        bail!("cc cannot link stubs of the driver");
    }
    fs::write(&done, wheels)?;
    Ok(home)
}

/// Builds the program for GPUs of compute capability 8.0 and newer.
pub(crate) fn build(root: &Path) -> Result<()> {
    let home = toolkit(root)?;
    let (nvcc, home) = (home.join("bin/nvcc").display().to_string(), home.display().to_string());
    let args = "build -p rl-runtime --features candle-cuda --target-dir target/candle-cuda --bin rl";
    let env = [("CUDA_HOME", &*home), ("NVCC", &*nvcc), ("CUDA_COMPUTE_CAP", "80")];
    cargo(root, &args.split(' ').collect::<Vec<_>>(), &env)
}
