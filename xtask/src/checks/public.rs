//! Public items of the library crates that nothing outside of their crate uses.
//!
//! A use is the item's name as a word in the code of another crate (a crate of `xtask/outside` among them), of the program, of an
//! example, or of an example in a doc comment. A type is also used by the signatures of its crate's other items. Tests of the
//! item's own crate do not count.

use crate::checks::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Public items that stay without a use: lines `path name # reason`.
const LEFT: &str = include_str!("../../public_without_use.txt");

/// The program within rl-runtime.
const PROGRAM: [&str; 2] = ["rl-runtime/src/bin/", "rl-runtime/src/cli/"];

/// Folder of crates that are no libraries.
const NO_LIBRARY: &str = "xtask/";

/// Public items that should be private, or that [`LEFT`] names without need.
pub(crate) fn check(all: &[Source]) -> Vec<String> {
    check_except(all, LEFT)
}

fn check_except(all: &[Source], left: &str) -> Vec<String> {
    let left: BTreeSet<&str> = left.lines().filter_map(|line| line.split(" #").next()).collect();
    let found: BTreeMap<String, String> = unused(all).into_iter().collect();
    let unneeded = left.iter().filter(|item| !found.contains_key(**item));
    let unneeded = unneeded.map(|item| format!("xtask/public_without_use.txt names {item} without need"));
    let unused = found.iter().filter(|(item, _)| !left.contains(item.as_str())).map(|(_, problem)| problem.clone());
    unused.chain(unneeded).collect()
}

/// Public items without a use, each with a message.
fn unused(all: &[Source]) -> Vec<(String, String)> {
    let mut outside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut signatures: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let is_program = |path: &str| PROGRAM.iter().any(|program| path.starts_with(program));
    let libraries: BTreeSet<&str> = all.iter().map(Source::crate_name).filter(|name| !NO_LIBRARY.starts_with(name)).collect();
    for source in all {
        let own = source.crate_name();
        let example = source.path.contains("/examples/") || is_program(&source.path);
        for library in libraries.iter().filter(|library| **library != own || example) {
            outside.entry(library).or_default().extend(source.code().flat_map(|(_, line)| words(line)));
        }
        outside.entry(own).or_default().extend(documented(source));
        if source.path.contains("/src/") {
            signatures.entry(own).or_default().extend(source.code().filter(|(_, line)| is_signature(line)).flat_map(
                |(_, line)| {
                    let declared = declared(line).filter(|(keyword, _)| *keyword != "fn").map(|(_, name)| name);
                    words(line).filter(move |word| Some(*word) != declared)
                },
            ));
        }
    }
    let mut found = Vec::new();
    for source in all.iter().filter(|source| source.path.contains("/src/") && libraries.contains(source.crate_name())) {
        for (i, line) in source.code().filter(|_| !is_program(&source.path)) {
            let Some((keyword, name)) = declared(line).filter(|_| line.trim_start().starts_with("pub ")) else { continue };
            let own = source.crate_name();
            let in_signature = keyword != "fn" && signatures.get(own).is_some_and(|words| words.contains(name));
            if !in_signature && !outside.get(own).is_some_and(|words| words.contains(name)) {
                let problem = format!("{}:{i}: `{name}` is public, but nothing outside of {own} uses it", source.path);
                found.push((format!("{} {name}", source.path), problem));
            }
        }
    }
    found
}

/// Keyword and name of the item that a line declares.
fn declared(line: &str) -> Option<(&str, &str)> {
    let item = line.trim_start().strip_prefix("pub ").unwrap_or(line.trim_start());
    let mut words = words(item).skip_while(|word| ["async", "unsafe"].contains(word)).peekable();
    let mut keyword = words.next()?;
    if keyword == "const" && words.peek() == Some(&"fn") {
        keyword = words.next()?;
    }
    ["const", "enum", "fn", "static", "struct", "trait", "type", "union"].contains(&keyword).then_some(())?;
    Some((keyword, words.next()?))
}

/// True if a line may name types of a signature.
///
/// Lines of functions, their parameters and results, fields, `impl` blocks.
fn is_signature(line: &str) -> bool {
    let line = line.trim_start();
    let before_colon = line.split(": ").next().unwrap_or_default();
    let is_field = line.contains(": ") && before_colon.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_field || ["pub ", "fn ", "impl", ") -> ", "type "].iter().any(|start| line.starts_with(start))
}

/// Words of the examples in a file's doc comments.
fn documented(source: &Source) -> impl Iterator<Item = &str> {
    let docs = source.lines().filter_map(|(_, line)| {
        let doc = line.trim_start();
        doc.strip_prefix("///").or_else(|| doc.strip_prefix("//!"))
    });
    let mut in_example = false;
    let code = docs.filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_example ^= fence;
        in_example && !fence
    });
    code.flat_map(words)
}

/// The identifiers and keywords of a line.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    /// Number of problems of a library with one file, and of a second file.
    fn found(text: &str, path: &str, other: &str) -> usize {
        check_except(&[source("rl-envs/src/a.rs", text), source(path, other)], "").len()
    }

    #[test]
    fn a_public_item_needs_a_use_outside_of_its_crate() {
        for item in ["pub fn step() {}", "    pub const fn step() {}", "pub struct step;", "pub const step: u8 = 1;"] {
            assert_eq!(found(item, "rl-envs/src/b.rs", "let x = step;"), 1, "{item}");
            assert_eq!(found(item, "rl-envs/tests/b.rs", "let x = step;"), 1, "{item}");
            for user in ["rl-cuda/src/b.rs", "rl-envs/examples/b.rs", "xtask/outside/b/src/main.rs", "rl-runtime/src/cli/b.rs"] {
                assert_eq!(found(item, user, "let x = step;"), 0, "{item} {user}");
                assert_eq!(found(item, user, "// step\nlet x = steps;"), 1, "{item} {user}");
            }
        }
        assert_eq!(found("pub(crate) fn step() {}\nfn other() {}", "rl-envs/src/b.rs", ""), 0);
    }

    #[test]
    fn a_type_is_used_by_a_signature_and_an_item_by_a_documented_example() {
        let user = ("rl-cuda/src/b.rs", "run()");
        assert_eq!(found("pub struct Row;\npub fn run() -> Row {", user.0, user.1), 0);
        assert_eq!(found("pub struct Row;\npub fn run() -> Rows {", user.0, user.1), 1);
        assert_eq!(found("/// ```\n/// step();\n/// ```\npub fn step() {}", user.0, user.1), 0);
        assert_eq!(found("/// ```\n/// stop();\n/// ```\n/// step\npub fn step() {}", user.0, user.1), 1);
    }

    #[test]
    fn an_item_that_is_left_is_named_only_while_it_has_no_use() {
        let check = |user: &str| {
            let all = [source("rl-envs/src/a.rs", "pub fn step() {}"), source("rl-cuda/src/b.rs", user)];
            check_except(&all, "rl-envs/src/a.rs step # for the tests\n").len()
        };
        assert_eq!(check(""), 0);
        assert_eq!(check("step();"), 1);
    }
}
