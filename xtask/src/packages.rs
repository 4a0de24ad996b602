//! The library crates as packages, and the licences of what they depend on.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;

/// Packages in the order in which they are published.
const PACKAGES: [&str; 5] = ["rl-envs", "rl-cuda", "rl-buffer", "rl-agents", "rl-runtime"];

/// Packs the library crates, and compiles a crate that depends on the packages.
pub(crate) fn check(root: &Path) -> Result<()> {
    let select: Vec<&str> = PACKAGES.iter().flat_map(|name| ["-p", name]).collect();
    // The packages are compiled below, with dependencies that are compiled already.
    cargo(root, &[&["package", "--quiet", "--no-verify", "--allow-dirty"], &select[..]].concat(), &[])?;
    let dir = root.join("target/packages");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(dir.join("src"))?;
    let mut manifest = "[workspace]\n[package]\nname = \"uses-packages\"\nedition = \"2024\"\n".to_string();
    let (mut dependencies, mut patches) = ("[dependencies]\n".to_string(), "[patch.crates-io]\n".to_string());
    for name in PACKAGES {
        let version = env!("CARGO_PKG_VERSION");
        let unpacked = format!("{name}-{version}");
        let file = root.join("target/package").join(format!("{unpacked}.crate"));
        let status = Command::new("tar").arg("-C").arg(&dir).arg("-xzf").arg(&file).status().context("tar")?;
        ensure!(status.success(), "tar cannot unpack {}", file.display());
        for file in ["README.md", "Cargo.toml.orig"] {
            ensure!(dir.join(&unpacked).join(file).exists(), "the package {unpacked} has no {file}");
        }
        writeln!(dependencies, "{name} = \"{version}\"")?;
        writeln!(patches, "{name} = {{ path = \"{unpacked}\" }}")?;
    }
    manifest += &format!("{dependencies}{patches}");
    fs::write(dir.join("Cargo.toml"), manifest)?;
    fs::write(dir.join("src/lib.rs"), "//! Depends on the packages.\n")?;
    fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    cargo(&dir, &["check"], &[("CARGO_TARGET_DIR", &root.join("target").to_string_lossy())])
}

/// Texts of the licences of the packages that the program is built from.
///
/// `select` are arguments of `cargo tree`. Our own packages are left out. A package without a file of its licence has its name
/// alone.
pub(crate) fn licences(root: &Path, select: &str) -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let run = |args: &str| -> Result<String> {
        let output = Command::new(&cargo).args(args.split(' ')).current_dir(root).output().context("cargo")?;
        ensure!(output.status.success(), "cargo {args}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let tree = run(&format!("tree {select} --edges normal --prefix none --format {{p}} --locked"))?;
    let used: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let metadata: Value = serde_json::from_str(&run("metadata --format-version 1 --locked")?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut all = String::from("Licences of the packages that the program is built from.\n");
    for (name, version) in used.into_iter().filter(|(name, _)| !PACKAGES.contains(name)) {
        let is_it = |package: &&Value| package["name"] == name && package["version"] == version;
        let package = packages.iter().find(is_it).with_context(|| format!("cargo metadata lacks {name} {version}"))?;
        let Some(licence) = package["license"].as_str().or(package["license_file"].as_str()) else {
            bail!("{name} {version} names no licence");
        };
        writeln!(all, "\n{}\n{name} {version}: {licence}", "=".repeat(80))?;
        let manifest = Path::new(package["manifest_path"].as_str().context("manifest_path")?);
        for file in licence_files(manifest.parent().context("a manifest is in a directory")?)? {
            let text = fs::read(&file).with_context(|| file.display().to_string())?;
            writeln!(all, "\n{}", String::from_utf8_lossy(&text).trim())?;
        }
    }
    Ok(all)
}

/// Files of a directory that hold licences or notices.
fn licence_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_licence =
            ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT"].iter().any(|word| name.starts_with(word));
        files.extend((is_licence && path.is_file()).then_some(path));
    }
    files.sort();
    Ok(files)
}
