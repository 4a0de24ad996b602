//! The library crates as packages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cargo;

/// Packages in the order in which they are published.
const PACKAGES: [&str; 6] = ["rl-policy", "rl-envs", "rl-cuda", "rl-buffer", "rl-agents", "rl-runtime"];

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
        // With the time of now: that in the package is always the same, and cargo would take old results for new ones.
        let status = Command::new("tar").arg("-C").arg(&dir).arg("-xmzf").arg(&file).status().context("tar")?;
        ensure!(status.success(), "tar cannot unpack {}", file.display());
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            ensure!(dir.join(&unpacked).join(file).exists(), "the package {unpacked} has no {file}");
        }
        let package: toml::Table = fs::read_to_string(dir.join(&unpacked).join("Cargo.toml"))?.parse()?;
        let keywords = package["package"]["keywords"].as_array().context("keywords")?;
        // What crates.io refuses, but `cargo package` does not.
        let fits = |keyword: &toml::Value| keyword.as_str().is_some_and(|keyword| keyword.len() <= 20);
        ensure!(keywords.len() <= 5 && keywords.iter().all(fits), "{unpacked}: at most 5 keywords of at most 20 characters");
        writeln!(dependencies, "{name} = \"{version}\"")?;
        writeln!(patches, "{name} = {{ path = \"{unpacked}\" }}")?;
    }
    // With the profile of our workspace, what is compiled there serves here, too.
    let workspace: toml::Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let profile = toml::Table::from_iter([("profile".to_string(), workspace["profile"].clone())]);
    manifest += &format!("{dependencies}{patches}{profile}");
    fs::write(dir.join("Cargo.toml"), manifest)?;
    fs::write(dir.join("src/lib.rs"), "//! Depends on the packages.\n")?;
    fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    cargo(&dir, &["check"], &[("CARGO_TARGET_DIR", &root.join("target").to_string_lossy())])
}
