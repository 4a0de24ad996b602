//! Packs the program for Linux machines without Rust.
//!
//! `cargo xtask dist` runs it, and tries the archive in an empty root.
//!
//! Zig links against the symbols of an old glibc. A static build could not open the CUDA driver: musl's static programs have no
//! `dlopen`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{cargo, python};

/// Features: websites as environments, and the verb that writes manual pages.
const FEATURES: &str = "crawl man";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Version of glibc that Debian 11 has.
const GLIBC: &str = "2.31";
/// Maximum number of bytes of the unpacked archive.
const MAX_BYTES: u64 = 30_000_000;
/// Zig as a linker, and what lets cargo use it.
const LINKER: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.15.2"];
/// Version of cargo-about, which collects licences.
const ABOUT: &str = "0.9.3";
const SHELLS: [(&str, &str); 3] = [("bash", "rl"), ("zsh", "_rl"), ("fish", "rl.fish")];

/// Libraries of glibc that the program may load, from the machine that tries it.
const LIBRARIES: [&str; 5] = ["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"];

/// Builds and packs the program, and trains CartPole from the archive.
pub(crate) fn pack(root: &Path) -> Result<()> {
    for (tool, package) in [("strip", "binutils"), ("objdump", "binutils"), ("sha256sum", "coreutils"), ("unshare", "util-linux")]
    {
        output(Command::new(tool).arg("--version")).with_context(|| format!("{tool} comes with Debian's package {package}"))?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("rl-{version}-x86_64-linux");
    let folder = root.join("target/archive");
    let dir = folder.join(&name);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(dir.join("man"))?;
    fs::create_dir_all(dir.join("completions"))?;
    let program = dir.join("rl");
    // Zig's linker leaves the symbols in.
    output(Command::new("strip").arg("-o").arg(&program).arg(build(root)?))?;
    let glibc = newest_glibc(&program)?;
    println!("needs glibc {glibc} or newer");
    ensure!(parts(&glibc) <= parts(GLIBC), "glibc {glibc} is newer than {GLIBC}");
    for (shell, file) in SHELLS {
        fs::write(dir.join("completions").join(file), output(Command::new(&program).args(["completions", shell]))?)?;
    }
    output(Command::new(&program).arg("man").arg(dir.join("man")))?;
    fs::write(dir.join("LICENCES.txt"), licences(root)?)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root.join(file), dir.join(file))?;
    }
    let bytes = size(&dir)?;
    println!("{}: {:.1} MB unpacked", dir.display(), bytes as f64 * 1e-6);
    ensure!(bytes <= MAX_BYTES, "more than {:.0} MB", MAX_BYTES as f64 * 1e-6);
    let archive = folder.join(format!("{name}.tar.gz"));
    let tar = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"];
    output(Command::new("tar").arg("-C").arg(&folder).args(tar).arg(&archive).arg(&name))?;
    let sum = output(Command::new("sha256sum").arg(format!("{name}.tar.gz")).current_dir(&folder))?;
    fs::write(folder.join(format!("{name}.tar.gz.sha256")), &sum)?;
    print!("{sum}");
    try_it(&folder, &archive, &name)
}

/// Builds the program with the profile `dist`; returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let tools = python::install(root, &LINKER)?;
    let features = FEATURES.replace(' ', ",");
    let args = format!("zigbuild --locked --profile dist --target {TARGET}.{GLIBC} -p rl-runtime --bin rl --features {features}");
    println!("\n==> cargo {args}");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tools.join("bin/cargo-zigbuild"));
    command.args(args.split(' ')).current_dir(root);
    command.env("PATH", format!("{}/bin:{path}", tools.display())).env("PYTHONPATH", &tools);
    ensure!(command.status().context("cargo-zigbuild")?.success(), "cargo {args} failed");
    Ok(root.join("target").join(TARGET).join("dist/rl"))
}

/// Texts of the licences of all crates that the program is built from.
///
/// Fails on a licence that `xtask/dist/about.toml` does not accept.
fn licences(root: &Path) -> Result<String> {
    let tool = root.join("target").join(format!("cargo-about-{ABOUT}"));
    if !tool.exists() {
        let to = tool.to_string_lossy();
        cargo(root, &["install", "cargo-about", "--version", ABOUT, "--features", "cli", "--locked", "--root", &to], &[])?;
    }
    let mut command = Command::new(tool.join("bin/cargo-about"));
    command.args(["generate", "--offline", "--features", FEATURES, "--target", TARGET]).current_dir(root.join("rl-runtime"));
    output(command.arg("--config").arg(root.join("xtask/dist/about.toml")).arg(root.join("xtask/dist/licences.hbs")))
}

/// Newest version of glibc whose symbols a program needs.
fn newest_glibc(program: &Path) -> Result<String> {
    let symbols = output(Command::new("objdump").arg("-T").arg(program))?;
    let versions =
        symbols.split("GLIBC_").skip(1).filter_map(|rest| rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next());
    versions.max_by_key(|version| parts(version)).map(String::from).context("objdump lists no symbol of glibc")
}

fn parts(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Bytes of all files of a directory.
fn size(dir: &Path) -> Result<u64> {
    fs::read_dir(dir)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        Ok(sum + if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() })
    })
}

/// Trains CartPole from the archive, in a root that has nothing but glibc.
fn try_it(folder: &Path, archive: &Path, name: &str) -> Result<()> {
    let empty = folder.join("empty-root");
    if empty.exists() {
        fs::remove_dir_all(&empty)?;
    }
    fs::create_dir_all(empty.join("lib64"))?;
    fs::create_dir_all(empty.join("tmp"))?;
    for library in LIBRARIES {
        let places = ["/lib64", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"];
        let found = places.into_iter().map(|place| Path::new(place).join(library)).find(|path| path.exists());
        let found = found.with_context(|| format!("this machine has no {library}"))?;
        fs::copy(found, empty.join("lib64").join(library))?;
    }
    let begin = Instant::now();
    output(Command::new("tar").arg("-C").arg(&empty).arg("-xzf").arg(archive))?;
    fs::set_permissions(empty.join("tmp"), fs::Permissions::from_mode(0o777))?;
    let train = format!("/{name}/rl train cartpole --target-return 475 --run-dir /tmp/run --json");
    println!("\n==> chroot {}: {train}", empty.display());
    // Without a user namespace, only root may change the root.
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "chroot"]).arg(&empty).args(train.split(' ')).env_clear();
    command.env("LD_LIBRARY_PATH", "/lib64").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let said = output(&mut command)?;
    let last = said.lines().last().unwrap_or_default();
    ensure!(last.contains("\"end\":\"target\""), "it was not solved: {last}");
    println!("{last}\nfrom the archive to a solved CartPole in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a command and returns its output.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
