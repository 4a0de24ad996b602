//! Rules that the compiler does not know: who may use whom, where unsafe code may stand, whether the map is complete.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Who may depend on whom among our own crates.
const MAY_USE: &[(&str, &[&str])] = &[
    ("rl-envs", &[]),
    ("rl-cuda", &["rl-envs"]),
    ("rl-buffer", &["rl-envs", "rl-cuda"]),
    ("rl-agents", &["rl-envs", "rl-cuda", "rl-buffer"]),
    ("rl-runtime", &["rl-envs", "rl-cuda", "rl-buffer", "rl-agents"]),
    ("xtask", &[]),
];

/// Checks the rules and reports everything that breaks one.
pub(crate) fn check(root: &Path) -> Result<()> {
    println!("==> tidy");
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let mut problems = Vec::new();
    for (name, may_use) in MAY_USE {
        let manifest: toml::Table = fs::read_to_string(root.join(name).join("Cargo.toml"))?.parse()?;
        let dependencies = manifest.get("dependencies").and_then(|d| d.as_table()).into_iter().flat_map(|table| table.keys());
        for used in dependencies.filter(|used| MAY_USE.iter().any(|(ours, _)| ours == used) && !may_use.contains(&used.as_str()))
        {
            problems.push(format!("{name} may not use {used}"));
        }
        for file in sources(&root.join(name).join("src"))? {
            let path = file.strip_prefix(root)?.display().to_string();
            let text = fs::read_to_string(&file)?;
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if !["lib", "main", "mod"].contains(&stem) && !map.contains(&format!("`{stem}`")) {
                problems.push(format!("ARCHITECTURE.md does not mention `{stem}` ({path})"));
            }
            if text.contains(concat!("allow(unsafe", "_code)")) && !map.contains(&format!("`{path}`")) {
                problems.push(format!("{path} allows unsafe code, but ARCHITECTURE.md does not name it"));
            }
            if !text.starts_with("//! ") {
                problems.push(format!("{path} does not begin with a header"));
            }
        }
    }
    let faults = fs::read_to_string(root.join("docs/faults.md")).context("docs/faults.md")?;
    problems.extend(unproven(&faults, &|file| fs::read_to_string(root.join(file)).unwrap_or_default()));
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// Rows of docs/faults.md that name no test and are not marked absent, and tests that they name and that `read` does not find.
fn unproven(faults: &str, read: &dyn Fn(&str) -> String) -> Vec<String> {
    let mut problems = Vec::new();
    for row in faults.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| fault |")) {
        let tests: Vec<_> = row.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect();
        if tests.is_empty() && !row.contains("| Absent: ") {
            problems.push(format!("docs/faults.md names no test: {row}"));
        }
        for (file, name) in tests {
            let text = read(file);
            let mut before = text.lines().take_while(|line| !line.trim_start().starts_with(&format!("fn {name}()")));
            let attributes: Vec<&str> = before.by_ref().map(str::trim).collect();
            let found = attributes.len() < text.lines().count();
            let attributes = attributes.iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
            if !found || !attributes.into_iter().any(|line| *line == "#[test]") {
                problems.push(format!("docs/faults.md names a test that does not exist: {file}::{name}"));
            }
        }
    }
    problems
}

fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_needs_a_test_that_exists() {
        let read = |file: &str| match file {
            "a.rs" => "#[test]\nfn shown() {}\n\nfn helper() {}\n".into(),
            _ => String::new(),
        };
        let unproven = |row: &str| unproven(&format!("| fault | what | shown by |\n{row}"), &read).len();
        assert_eq!(unproven("| x | y | `a.rs::shown` |"), 0);
        assert_eq!(unproven("| x | Absent: there is none. | |"), 0);
        for row in
            ["| x | y | |", "| x | y | `a.rs::helper` |", "| x | y | `a.rs::shown`, `b.rs::shown` |", "| x | y | `a.rs::show` |"]
        {
            assert_eq!(unproven(row), 1, "{row}");
        }
    }
}
