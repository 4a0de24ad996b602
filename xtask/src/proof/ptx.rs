//! Compiles the kernels to PTX, and checks the committed PTX.
//!
//! `cargo xtask ptx` writes rl-cuda/ptx, and xtask/outside/cuda's PTX; `--check` compiles again and compares. Only one version of
//! NVRTC serves, because other versions write different text. It is taken from `CUDA_HOME` or `CUDA_PATH` if the version matches,
//! else from PyPI's wheels, installed into target. (nvcc has no wheel of this version, and its text differs from NVRTC's.)

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::proof::nvrtc::Nvrtc;

/// Number of compilations, one of which must equal the committed PTX.
///
/// NVRTC orders the instructions of some loops differently from run to run.
const ATTEMPTS: usize = 4;

/// Version of NVRTC.
///
/// CUDA 12.0 writes PTX 8.0, which drivers from 525 on load; a later version would only require newer drivers.
const VERSION: (i32, i32) = (12, 0);
const WHEELS: &[&str] = &["nvidia-cuda-nvrtc-cu12==12.0.140", "nvidia-cuda-nvcc-cu12==12.0.140"];
/// Compiler options: Turing or newer; no contraction, to round like Rust.
const OPTIONS: &[&str] = &["--gpu-architecture=compute_75", "--fmad=false", "--std=c++17"];
/// Architectures that the check assembles the PTX for.
const ASSEMBLED: &[&str] = &["sm_75", "sm_80", "sm_90"];
/// Record of the hashes of sources and of their PTX.
///
/// A line with the name separates the files, so that git merges changes of neighbours; two changes of a shared header conflict.
const RECORD: &str = "rl-cuda/ptx/hashes.txt";

/// NVRTC of the right version, and the assembler.
struct Compiler {
    nvrtc: Nvrtc,
    ptxas: PathBuf,
}

/// One file of kernels.
struct Kernels {
    name: String,
    source: String,
    /// Hash of the source, the headers that it includes, and the compiler options.
    hash: String,
    ptx: PathBuf,
}

/// Compiles every file of kernels and writes the PTX and the record.
pub(crate) fn write(root: &Path) -> Result<()> {
    let compiler = compiler(root)?;
    let mut record = String::new();
    fs::create_dir_all(root.join("rl-cuda/ptx"))?;
    for kernels in kernels(root)? {
        let ptx = compile(root, &compiler, &kernels)?;
        fs::write(&kernels.ptx, &ptx).with_context(|| kernels.ptx.display().to_string())?;
        record += &lines(&kernels, &ptx);
    }
    fs::write(root.join(RECORD), record)?;
    assemble(root, &compiler)
}

/// Compares hashes, and compiles every file again if a compiler is available.
pub(crate) fn check(root: &Path) -> Result<()> {
    println!("\n==> ptx --check");
    let stale = "run `cargo xtask ptx` and commit the PTX";
    let recorded = fs::read_to_string(root.join(RECORD)).with_context(|| RECORD.to_owned())?;
    let (mut expected, all) = (String::new(), kernels(root)?);
    for kernels in &all {
        let ptx = fs::read_to_string(&kernels.ptx).with_context(|| format!("{}: {stale}", kernels.ptx.display()))?;
        expected += &lines(kernels, &ptx);
    }
    ensure!(recorded == expected, "the PTX was compiled from other sources: {stale}");
    for entry in fs::read_dir(root.join("rl-cuda/ptx"))? {
        let path = entry?.path();
        let known = path.ends_with("hashes.txt") || path.ends_with("counts.txt") || all.iter().any(|kernels| kernels.ptx == path);
        ensure!(known, "{}: rl-cuda/kernels has no source for it", path.display());
    }
    match compiler(root) {
        Ok(compiler) => {
            for kernels in &all {
                let committed = fs::read_to_string(&kernels.ptx)?;
                let mut same = false;
                for _ in 0..ATTEMPTS {
                    same = same || compile(root, &compiler, kernels)? == committed;
                }
                ensure!(same, "{} differs: {stale}", kernels.ptx.display());
            }
            println!("{} files of kernels compiled again: the same PTX", all.len());
            assemble(root, &compiler)
        }
        Err(error) if std::env::var("RL_REQUIRE_NVRTC").as_deref() == Ok("1") => Err(error),
        Err(error) => {
            println!("NOT COMPILED AGAIN, only hashes of sources and PTX were compared: {error:#}");
            Ok(())
        }
    }
}

fn lines(kernels: &Kernels, ptx: &str) -> String {
    format!("{}\n    source {}\n    ptx {}\n", kernels.name, kernels.hash, blake3::hash(ptx.as_bytes()).to_hex())
}

/// Folders of kernels and headers, which find each other by name.
const FOLDERS: [&str; 6] = [
    "rl-cuda/kernels/envs",
    "rl-cuda/kernels/grid",
    "rl-cuda/kernels/minatar",
    "rl-cuda/kernels/learner",
    "rl-cuda/kernels/net",
    "rl-cuda/kernels/sums",
];
/// Folder of an environment outside of rl-cuda, and of its PTX.
const OUTSIDE: &str = "xtask/outside/cuda/kernels";

/// Returns every file of kernels, sorted by name, those of [`OUTSIDE`] last.
fn kernels(root: &Path) -> Result<Vec<Kernels>> {
    let mut all = Vec::new();
    for (dir, ptx) in FOLDERS.map(|dir| (dir, "rl-cuda/ptx")).into_iter().chain([(OUTSIDE, OUTSIDE)]) {
        let mut paths = fs::read_dir(root.join(dir))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
        all.extend(paths.into_iter().map(|path| (path, ptx)));
    }
    all.sort_by_key(|(path, ptx)| (*ptx == OUTSIDE, path.file_name().map(ToOwned::to_owned)));
    all.iter()
        .map(|(path, ptx)| {
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
            let mut files = BTreeMap::new();
            with_headers(root, path, &mut files)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update(format!("{VERSION:?} {OPTIONS:?}").as_bytes());
            files.values().for_each(|text| {
                hasher.update(text.as_bytes());
            });
            let hash = hasher.finalize().to_hex().to_string();
            Ok(Kernels { ptx: root.join(ptx).join(format!("{name}.ptx")), name, source: fs::read_to_string(path)?, hash })
        })
        .collect()
}

/// Reads a file and the headers that it includes, directly or not.
fn with_headers(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    if files.contains_key(path) {
        return Ok(());
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    files.insert(path.to_owned(), text.clone());
    let headers = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    for header in headers {
        let mut places = FOLDERS.iter().map(|dir| root.join(dir).join(header));
        let found = places.find(|place| place.exists()).with_context(|| format!("{}: no {header}", path.display()))?;
        with_headers(root, &found, files)?;
    }
    Ok(())
}

fn compile(root: &Path, compiler: &Compiler, kernels: &Kernels) -> Result<String> {
    let include = FOLDERS.map(|dir| format!("--include-path={}", root.join(dir).display()));
    let options: Vec<&str> = OPTIONS.iter().copied().chain(include.iter().map(String::as_str)).collect();
    compiler.nvrtc.compile(&format!("{}.cu", kernels.name), &kernels.source, &options)
}

/// Properties of a kernel, as reported by the assembler.
#[derive(Debug, PartialEq)]
struct Properties {
    kernel: String,
    /// Local memory: stack frame and spilled registers.
    memory: String,
    registers: u32,
}

/// Report of a kernel without local memory.
const NO_MEMORY: &str = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";

/// Parses the output of `ptxas -v`.
fn properties(said: &str) -> Result<Vec<Properties>> {
    let (mut found, mut kernel, mut memory) = (Vec::new(), None, None);
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().map(str::to_owned);
        } else if line.contains("bytes stack frame") {
            memory = Some(line.trim().to_owned());
        } else if let Some((_, rest)) = line.split_once("Used ") {
            let registers = rest.split(' ').next().and_then(|count| count.parse().ok());
            let all = kernel.take().zip(memory.take()).zip(registers);
            let ((kernel, memory), registers) = all.with_context(|| format!("ptxas says: {line}"))?;
            found.push(Properties { kernel, memory, registers });
        }
    }
    Ok(found)
}

/// Assembles rl-cuda/ptx for each architecture, and rejects local memory.
fn assemble(root: &Path, compiler: &Compiler) -> Result<()> {
    let mut spills = Vec::new();
    println!("registers per thread, {}:", ASSEMBLED.join(", "));
    for kernels in kernels(root)? {
        let mut registers = BTreeMap::<String, Vec<String>>::new();
        for arch in ASSEMBLED {
            let mut command = Command::new(&compiler.ptxas);
            command.args(["-v", "-arch", arch, "-o", "/dev/null"]).arg(&kernels.ptx);
            let output = command.output().with_context(|| compiler.ptxas.display().to_string())?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{} for {arch}: {said}", kernels.name);
            for Properties { kernel, memory, registers: used } in properties(&said)? {
                if memory != NO_MEMORY {
                    spills.push(format!("{kernel} for {arch}: {memory}"));
                }
                registers.entry(kernel).or_default().push(used.to_string());
            }
        }
        let entries = fs::read_to_string(&kernels.ptx)?.matches(".visible .entry").count();
        let complete = registers.len() == entries && registers.values().all(|of| of.len() == ASSEMBLED.len());
        ensure!(complete, "{}: ptxas reports {registers:?}, but the file has {entries} kernels", kernels.name);
        for (kernel, registers) in registers {
            println!("  {kernel}: {}", registers.join(", "));
        }
    }
    if spills.is_empty() {
        println!("no registers spilled");
        return Ok(());
    }
    bail!("registers spilled:\n{}", spills.join("\n"))
}

/// Returns the compiler, installing it if necessary.
fn compiler(root: &Path) -> Result<Compiler> {
    let places = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for home in places {
        let (library, ptxas) = (home.join("lib64/libnvrtc.so.12"), home.join("bin/ptxas"));
        if let Ok(nvrtc) = Nvrtc::load(&library)
            && nvrtc.version()? == VERSION
            && ptxas.exists()
        {
            return Ok(Compiler { nvrtc, ptxas });
        }
    }
    let dir = root.join(format!("target/cuda-{}.{}", VERSION.0, VERSION.1));
    let (library, ptxas) = (dir.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"), dir.join("nvidia/cuda_nvcc/bin/ptxas"));
    if !ptxas.exists() || !library.exists() {
        println!("installing {} into {}", WHEELS.join(" and "), dir.display());
        let pip = "-m pip install --quiet --no-deps --disable-pip-version-check --retries 1 --upgrade --target";
        let output = Command::new("python3").args(pip.split(' ')).arg(&dir).args(WHEELS).output().context("python3")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("pip cannot install {}: {}", WHEELS.join(" and "), said.lines().last().unwrap_or_default());
        }
    }
    let nvrtc = Nvrtc::load(&library)?;
    ensure!(nvrtc.version()? == VERSION, "{} is not version {VERSION:?}", library.display());
    Ok(Compiler { nvrtc, ptxas })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_assembler_says_is_read() {
        let said = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a_step' for 'sm_90'
ptxas info    : Function properties for a_step
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 46 registers
ptxas info    : Compiling entry function 'b_step' for 'sm_75'
ptxas info    : Function properties for b_step
    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 16 registers, 504 bytes cmem[0]
";
        let expected =
            [("a_step", NO_MEMORY, 46), ("b_step", "40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads", 16)];
        let expected =
            expected.map(|(kernel, memory, registers)| Properties { kernel: kernel.into(), memory: memory.into(), registers });
        assert_eq!(properties(said).unwrap(), expected);
        assert!(properties("ptxas info    : Used 16 registers").is_err());
    }
}
