//! Packs GPU tests, trainings and benchmarks for a machine with only a driver.
//!
//! `cargo xtask gpu-bundle` runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Packages, and their tests that compare kernels with Rust.
const TESTS: &[(&str, &[&str])] =
    &[("rl-cuda", &["modules", "twins", "steps", "copies"]), ("rl-buffer", &["on_device"]), ("rl-agents", &["on_device"])];
/// Maximum size of the archive.
const MAX_BYTES: u64 = 30 << 20;

const RUN: &str = include_str!("../../bundle/run.sh");
const KERNELS: &str = include_str!("../../bundle/kernels.awk");
const PEERS: [(&str, &str); 2] = [
    ("device_cartpole.py", include_str!("../../bundle/device_cartpole.py")),
    ("device_ppo.py", include_str!("../../bundle/device_ppo.py")),
];

/// Builds, strips and packs the programs, and prints the size of the archive.
pub(crate) fn pack(root: &Path) -> Result<()> {
    let dir = root.join("target/gpu-bundle");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(dir.join("bin"))?;
    fs::create_dir_all(dir.join("peers"))?;
    for (package, tests) in TESTS {
        for test in *tests {
            let built = build(root, &["test", "--no-run", "-p", package, "--test", test], test)?;
            add(&built, &dir.join(format!("bin/test-{package}-{test}")))?;
        }
    }
    for (package, name) in [("rl-cuda", "rl_cuda"), ("rl-buffer", "rl_buffer"), ("rl-agents", "rl_agents")] {
        let built = build(root, &["test", "--no-run", "-p", package, "--lib"], name)?;
        add(&built, &dir.join(format!("bin/test-{package}-lib")))?;
    }
    let built = build(root, &["build", "-p", "rl-cuda", "--example", "device_bench"], "device_bench")?;
    add(&built, &dir.join("bin/device_bench"))?;
    add(&build(root, &["build", "-p", "rl-runtime", "--bin", "rl"], "rl")?, &dir.join("bin/rl"))?;
    fs::write(dir.join("run.sh"), RUN)?;
    fs::write(dir.join("kernels.awk"), KERNELS)?;
    for (name, program) in PEERS {
        fs::write(dir.join("peers").join(name), program)?;
    }
    let archive = root.join("target/gpu-bundle.tar.gz");
    run(Command::new("tar").arg("-C").arg(root.join("target")).arg("-czf").arg(&archive).arg("gpu-bundle"))?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{}: {:.1} MiB; run it on a machine with an NVIDIA driver:", archive.display(), bytes as f64 / f64::from(1 << 20));
    println!("  tar -xzf gpu-bundle.tar.gz && sh gpu-bundle/run.sh");
    ensure!(bytes < MAX_BYTES, "the archive has {bytes} bytes, more than {MAX_BYTES}");
    Ok(())
}

/// Builds one executable in the release profile.
fn build(root: &Path, args: &[&str], name: &str) -> Result<PathBuf> {
    println!("==> cargo {} --release", args.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).args(["--release", "--message-format=json-render-diagnostics"]).current_dir(root);
    let output = command.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "cargo {} failed", args.join(" "));
    let messages = String::from_utf8(output.stdout)?;
    let executable = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let built = message["target"]["name"] == name && message["executable"].is_string();
        built.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    executable.with_context(|| format!("cargo built no {name}"))
}

/// Copies a program without its symbols.
fn add(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("strip").arg("-o").arg(to).arg(from)).context("strip comes with the C compiler's linker")
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?} failed") }
}
