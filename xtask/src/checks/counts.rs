//! Sizes of the workspace, printed by `cargo xtask tidy --counts`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::checks::circles::circles;
use crate::checks::shapes::{equal_closures, tuple_parameters};
use crate::checks::source::{Source, has_word, read_sources};
use crate::checks::tidy::library_sources;

/// Lines without tests above which a file is worth a second look.
const LONG: usize = 500;

/// Prints the counts.
pub(crate) fn print(root: &Path) -> Result<()> {
    let all = library_sources(root)?;
    let mut crates: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for source in &all {
        let (lines, items) = crates.entry(source.crate_name()).or_default();
        *lines += lines_of_code(source);
        *items += source.code().filter(|(_, line)| is_public_item(line)).count();
    }
    println!("{:<12} {:>13} {:>13}", "crate", "lines of code", "public items");
    for (name, (lines, items)) in &crates {
        println!("{name:<12} {lines:>13} {items:>13}");
    }
    let (lines, items) = crates.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    println!("{:<12} {lines:>13} {items:>13}", "all");
    let workshop = read_sources(root, "xtask/src")?.into_iter().chain(read_sources(root, "xtask/standin/src")?);
    println!("{:<12} {:>13}", "workshop", workshop.map(|source| lines_of_code(&source)).sum::<usize>());
    list("enums over element type or action kind", &declarations(&all, "enum", &[&["F32", "U8"], &["Discrete", "Continuous"]]));
    list("structs of a step's columns", &declarations(&all, "struct", &[&["rewards", "terminated", "truncated"]]));
    let long = all.iter().map(|source| (source.lines().count(), &source.path)).filter(|(n, _)| *n > LONG);
    list("files over 500 lines without tests", &long.map(|(n, path)| format!("{path} {n}")).collect::<Vec<_>>());
    list("circles of imports", &circles(&all));
    let mut rooms: BTreeMap<&str, usize> = BTreeMap::new();
    all.iter().for_each(|source| *rooms.entry(source.path.rsplit_once('/').map_or("", |(room, _)| room)).or_default() += 1);
    let largest = rooms.iter().max_by_key(|(_, n)| **n).map(|(room, n)| format!("{room} {n}"));
    list("largest room", &largest.into_iter().collect::<Vec<_>>());
    list("names of algorithms in rl-runtime", &names_of_algorithms(&all));
    let asks =
        |source: &&Source| source.path.starts_with("rl-agents/src/algorithms/") && source.text.contains("device.is_some()");
    list("algorithms that ask for a device", &all.iter().filter(asks).map(|source| source.path.clone()).collect::<Vec<_>>());
    println!("functions with tuple parameters: {}", tuple_parameters(&all).len());
    list("calls with equal closures", &equal_closures(&all));
    Ok(())
}

fn lines_of_code(source: &Source) -> usize {
    source.code().filter(|(_, line)| !line.trim().is_empty()).count()
}

/// Lines of rl-runtime that name an algorithm.
///
/// Its registration, presets and benches of one algorithm do not count.
fn names_of_algorithms(all: &[Source]) -> Vec<String> {
    const NAMES: [&str; 9] = ["Ppo", "PpoConfig", "PPO", "A2c", "A2cConfig", "A2C", "Dqn", "DqnConfig", "DQN"];
    const REGISTRY: [&str; 3] =
        ["rl-runtime/src/config/algorithms.rs", "rl-runtime/src/config/presets.rs", "rl-runtime/src/cli/bench/"];
    let runtime = all.iter().filter(|source| source.path.starts_with("rl-runtime/"));
    let runtime = runtime.filter(|source| !REGISTRY.iter().any(|place| source.path.starts_with(place)));
    let lines = runtime.flat_map(|source| source.code().map(move |(i, line)| (source, i, line)));
    let named = lines.filter(|(.., line)| NAMES.iter().any(|name| has_word(line, name)));
    named.map(|(source, i, line)| format!("{}:{i} {}", source.path, line.trim())).collect()
}

fn list(what: &str, found: &[String]) {
    println!("{what}: {}", found.len());
    found.iter().for_each(|line| println!("  {line}"));
}

/// True if a line of code declares a public item with its own name.
fn is_public_item(line: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix("pub ") else { return false };
    let words = ["const", "enum", "fn", "static", "struct", "trait", "type", "union", "unsafe"];
    rest.split(' ').next().is_some_and(|word| words.contains(&word))
}

/// Enums or structs with all members of one of the sets.
fn declarations(all: &[Source], keyword: &str, sets: &[&[&str]]) -> Vec<String> {
    let mut found = Vec::new();
    for source in all {
        let lines: Vec<&str> = source.code().map(|(_, line)| line).collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, line)| has_word(line, keyword) && line.contains('{')) {
            let indent = line.len() - line.trim_start().len();
            let ends = |line: &str| line.len() - line.trim_start().len() == indent && line.trim_start().starts_with('}');
            let body = if line.contains('}') { *line } else { "" };
            let members = lines[i + 1..].iter().take_while(|line| body.is_empty() && !ends(line)).copied();
            let text: String = members.chain([body]).collect::<Vec<_>>().join("\n");
            if sets.iter().any(|set| set.iter().all(|member| has_word(&text, member))) {
                let name = line.trim_start().split([' ', '<', '(', '{']).skip_while(|word| *word != keyword).nth(1);
                found.push(format!("{} {}", source.path, name.unwrap_or_default()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn public_items_and_nothing_else_count() {
        for line in ["pub fn f() {", "    pub const fn f() {", "pub struct S;", "pub enum E {"] {
            assert!(is_public_item(line), "{line}");
        }
        for line in ["pub(crate) fn f() {", "pub use x::y;", "pub mod x;", "    pub field: u8,", "fn f() {"] {
            assert!(!is_public_item(line), "{line}");
        }
    }

    #[test]
    fn enums_are_found_by_their_variants() {
        let text = "pub enum Obs<F, U> {\n    F32(F),\n    U8(U),\n}\nenum Other {\n    F32,\n    F64,\n}\nenum Kind { Discrete, Continuous }\n";
        let found = declarations(&[source("a/src/a.rs", text)], "enum", &[&["F32", "U8"], &["Discrete", "Continuous"]]);
        assert_eq!(found, ["a/src/a.rs Obs", "a/src/a.rs Kind"]);
    }
}
