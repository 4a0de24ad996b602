//! Rules that the compiler does not know: `cargo xtask tidy` checks them all.
//!
//! Rules about dependencies, words that a crate never has, unsafe code, imports, names, prose, the map of files, the table of
//! faults, figures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::checks::circles::circles;
use crate::checks::figures;
use crate::checks::public;
use crate::checks::shapes;
use crate::checks::source::{Source, has_word, read_sources};

/// Our crates, and those of our crates that each may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("rl-policy", &[]),
    ("rl-envs", &[]),
    ("rl-cuda", &["rl-envs"]),
    ("rl-buffer", &["rl-envs", "rl-cuda"]),
    ("rl-agents", &["rl-policy", "rl-envs", "rl-cuda", "rl-buffer"]),
    ("rl-runtime", &["rl-policy", "rl-envs", "rl-cuda", "rl-buffer", "rl-agents"]),
    ("rl-python", &["rl-policy", "rl-envs", "rl-cuda", "rl-buffer", "rl-agents", "rl-runtime"]),
    ("xtask", &[]),
];

/// Words that the code of a crate, or of one file, never contains, and the reason.
const NEVER: &[(&str, &[&str], &str)] = &[
    ("rl-envs/src", &["cudarc", "std::process", "std::net"], "an environment touches no device, process or socket"),
    (
        "rl-policy/src",
        &["std::fs", "std::net", "std::process", "std::time", "std::thread"],
        "a policy asks nothing of its machine",
    ),
    (
        "rl-agents/src",
        &["std::fs", "std::net", "std::process", "std::time", "thread::scope", "thread::spawn", "thread::Builder"],
        "an agent starts no thread, opens no file and reads no clock",
    ),
    ("rl-runtime/src", &["KernelInfo", "ptx"], "the runtime names no kernel"),
];

/// Files in a folder, those of its folders apart.
const ROOM: usize = 14;

/// Folders with source files.
///
/// Files of `rl-cuda/ptx` are written by the compiler, those of `xtask/peers` read one at a time.
const FOLDERS: [&str; 4] = ["src", "tests", "examples", "kernels"];

/// Calls that open a file by its path.
///
/// `File::create_new` is none of them, as it never follows a link.
const OPENING: [&str; 8] = [
    "File::create",
    "File::open",
    "File::options",
    "OpenOptions::new",
    "fs::copy",
    "fs::read",
    "fs::read_to_string",
    "fs::write",
];

/// Files of rl-runtime with those calls: `file` itself, and a reader of `/proc`.
const MAY_OPEN: [&str; 2] = ["rl-runtime/src/file.rs", "rl-runtime/src/report/resources.rs"];

/// Types that each environment's file has its own of.
const IN_EACH_ENVIRONMENT: [&str; 2] = ["Params", "State"];

/// Words that no doc comment begins with: its first line names a thing.
const NO_FIRST_WORD: [&str; 11] = ["How", "Of", "So", "These", "They", "What", "Whatever", "Whether", "Which", "Who", "Whoever"];

/// Words with a term of art in their place.
const NO_WORDS: [&str; 8] = ["anew", "as may be", "by turns", "goes on", "is to be", "nobody", "so many", "whoever"];

/// Characters of a doc comment's first line that an index of items shows.
const FIRST_LINE: usize = 80;

/// Characters of a line that is a comment, as many as rustfmt allows code.
const WIDTH: usize = 130;

/// Checks the rules and reports everything that breaks one.
pub(crate) fn check(root: &Path) -> Result<()> {
    println!("==> tidy");
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| file.to_string());
    let (map, may_be_unsafe) = (read("ARCHITECTURE.md")?, read("docs/design/unsafe-code.md")?);
    let mut problems = Vec::new();
    let mut all = Vec::new();
    for (name, may_use) in MAY_USE {
        problems.extend(dependencies(name, may_use, &read(&format!("{name}/Cargo.toml"))?)?);
        for folder in ["src", "tests", "examples"] {
            all.extend(read_sources(root, &format!("{name}/{folder}"))?);
        }
    }
    all.extend(read_sources(root, "xtask/outside")?);
    problems.extend(public::check(&all));
    all.extend(read_sources(root, "xtask/standin/src")?);
    for source in &all {
        if source.path.contains("/src/") && !source.path.starts_with("xtask/outside/") {
            problems.extend(mapped(source, &map, &may_be_unsafe));
            problems.extend(never(source));
            problems.extend(silent(source));
            problems.extend(opened(source));
        }
        problems.extend(prose(source));
    }
    problems.extend(links(root)?);
    problems.extend(foreign_names(&all));
    problems.extend(one_name_one_type(&all));
    for name in MAY_USE.iter().map(|(name, _)| *name).chain(["xtask/standin"]) {
        for folder in FOLDERS {
            problems.extend(crowded(&root.join(name).join(folder), root)?);
        }
    }
    let mut with_circles = library_sources(root)?;
    problems.extend(shapes::check(&with_circles));
    for folder in ["xtask/src", "xtask/standin/src"] {
        with_circles.extend(read_sources(root, folder)?);
    }
    let circles = circles(&with_circles).into_iter();
    problems.extend(circles.map(|circle| format!("files import each other: {circle}")));
    problems.extend(compiled_otherwise(&read("Cargo.toml")?, &read("xtask/outside/Cargo.toml")?)?);
    problems.extend(unproven(&read("docs/faults.md")?, &|file| read(file).unwrap_or_default()));
    problems.extend(misquoted("docs/how-ppo-runs.md", &read("docs/how-ppo-runs.md")?, &all));
    let sources = toml::from_str(&read("bench/figures.toml")?).context("bench/figures.toml")?;
    for path in documents(root)? {
        problems.extend(figures::check(&path, &read(&path)?, &sources, &|record| read(record).unwrap_or_default()));
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}\n{} problems", problems.join("\n"), problems.len()) }
}

/// Lists dependencies that `xtask/outside` would compile again, at another level.
fn compiled_otherwise(workspace: &str, outside: &str) -> Result<Vec<String>> {
    let levels = |manifest: &str| -> Result<toml::Table> {
        let manifest: toml::Table = manifest.parse()?;
        Ok(manifest["profile"]["dev"]["package"].as_table().context("profile.dev.package")?.clone())
    };
    let (ours, theirs) = (levels(workspace)?, levels(outside)?);
    let is_member = |name: &str| ["rl-", "standin", "xtask"].iter().any(|member| name.starts_with(member));
    let differing = ours.iter().filter(|(name, level)| !is_member(name) && theirs.get(*name) != Some(level));
    Ok(differing.map(|(name, _)| format!("xtask/outside/Cargo.toml: the profile of {name} differs from ours")).collect())
}

/// Functions that a page quotes and no file has, line by line.
fn misquoted(page: &str, text: &str, all: &[Source]) -> Vec<String> {
    let quotes = text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found = quotes.filter(|quote| quote.starts_with("fn ") && !all.iter().any(|source| source.text.contains(quote)));
    found.map(|quote| format!("{page}: no file has {}", quote.lines().next().unwrap_or_default())).collect()
}

/// Our crates among the dependencies of a manifest that the crate may not use.
fn dependencies(name: &str, may_use: &[&str], manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse()?;
    let used = manifest.get("dependencies").and_then(|d| d.as_table()).into_iter().flat_map(|table| table.keys());
    let ours = used.filter(|used| MAY_USE.iter().any(|(ours, _)| ours == used));
    Ok(ours.filter(|used| !may_use.contains(&used.as_str())).map(|used| format!("{name} may not use {used}")).collect())
}

/// Links out of the repository: a peer's library leaves one where it runs.
fn links(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git").args(["ls-files", "--stage"]).current_dir(root).output()?;
    let files = String::from_utf8_lossy(&listed.stdout);
    let links = files.lines().filter_map(|line| Some(line.strip_prefix("120000 ")?.split_once('\t')?.1));
    let leads_out = |path: &&str| fs::read_link(root.join(path)).is_ok_and(|to| to.is_absolute());
    Ok(links.filter(leads_out).map(|path| format!("{path} is a link to another place of this machine")).collect())
}

/// Folders with more files than a reader holds in mind.
fn crowded(dir: &Path, root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if !dir.exists() {
        return Ok(problems);
    }
    let mut n_files = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            problems.extend(crowded(&path, root)?);
        } else {
            n_files += 1;
        }
    }
    if n_files > ROOM {
        let dir = dir.strip_prefix(root)?.display();
        problems.push(format!("{dir} has {n_files} files: more than {ROOM} are several rooms"));
    }
    Ok(problems)
}

/// Problems of a file with its header, its room's place on the map, or unsafe code.
fn mapped(source: &Source, map: &str, may_be_unsafe: &str) -> Vec<String> {
    let Source { path, text } = source;
    let (room, file) = path.rsplit_once('/').unwrap_or_default();
    let mut problems = Vec::new();
    if ["lib.rs", "main.rs", "mod.rs"].contains(&file) && !map.contains(&format!("| `{room}` |")) {
        problems.push(format!("ARCHITECTURE.md has no row for the room `{room}`"));
    }
    if text.contains(concat!("allow(unsafe", "_code)")) && !may_be_unsafe.contains(&format!("`{path}`")) {
        problems.push(format!("{path} allows unsafe code, but docs/design/unsafe-code.md does not name it"));
    }
    if !text.starts_with("//! ") {
        problems.push(format!("{path} does not begin with a header"));
    }
    problems
}

/// Words in code that [`NEVER`] forbids.
fn never(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    for (place, words, reason) in NEVER.iter().filter(|(place, ..)| source.path.starts_with(place)) {
        for (i, line) in source.code() {
            let found = words.iter().filter(|word| has_word(line, word));
            problems.extend(found.map(|word| format!("{}:{i} has `{word}`, but in {place} {reason}", source.path)));
        }
    }
    problems
}

/// Files of rl-agents' algorithms that are none: what several of them share.
const BASES: &[&str] = &["mod", "actor_and_critics", "critics", "method", "on_policy", "replayed"];

/// Names of environments and algorithms where they do not belong.
fn foreign_names(all: &[Source]) -> Vec<String> {
    let stems = |folder: &'static str| {
        let stem =
            move |source: &'_ Source| Some(source.path.strip_prefix(folder)?.strip_suffix(".rs")?.rsplit('/').next()?.to_owned());
        all.iter().filter_map(stem).filter(|stem| !BASES.contains(&stem.as_str())).collect::<Vec<_>>()
    };
    let (envs, algos) = (stems("rl-envs/src/envs/"), stems("rl-agents/src/algorithms/"));
    let types = algos.iter().map(|name| name[..1].to_uppercase() + &name[1..]);
    let of_algorithms: Vec<String> = types.chain(algos.iter().cloned()).collect();
    let mut problems = Vec::new();
    let mut search = |source: &Source, names: &[String], reason: &str| {
        for (i, line) in source.code() {
            let found = names.iter().filter(|name| has_word(line, name));
            problems.extend(found.map(|name| format!("{}:{i} has `{name}`, but {reason}", source.path)));
        }
    };
    for source in all {
        if source.path.starts_with("rl-buffer/src/") {
            search(source, &envs, "a buffer names no environment");
        } else if source.path.starts_with("rl-cuda/src/") {
            search(source, &of_algorithms, "the device knows no algorithm");
        } else if let Some(own) = source.path.strip_prefix("rl-agents/src/algorithms/").filter(|own| *own != "mod.rs") {
            let others = algos.iter().filter(|name| Some(name.as_str()) != own.strip_suffix(".rs"));
            let others: Vec<String> = others.map(|name| format!("algorithms::{name}")).collect();
            search(source, &others, "no algorithm and no base imports an algorithm");
        }
    }
    problems
}

/// Lines of rl-runtime that open a file without its module `file`.
fn opened(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    if !source.path.starts_with("rl-runtime/src/") || MAY_OPEN.contains(&source.path.as_str()) {
        return problems;
    }
    for (i, line) in source.code().filter(|(_, line)| !line.contains("\"/proc/")) {
        if OPENING.iter().any(|call| has_word(line, call)) {
            problems.push(format!(
                "{}:{i}: a file is opened by `file::open` or `file::own`, which refuse links and FIFOs",
                source.path
            ));
        }
    }
    problems
}

/// Slices that become empty where their array or range is wrong.
///
/// `as_slice().unwrap_or_default()` and `get(a..b).unwrap_or_default()` hide a wrong layout; `expect` names it.
fn silent(source: &Source) -> Vec<String> {
    let code: Vec<(usize, &str)> = source.code().map(|(i, line)| (i, line.trim())).collect();
    let mut problems = Vec::new();
    for (at, (i, line)) in code.iter().enumerate().filter(|(_, (_, line))| line.contains(".unwrap_or")) {
        // Long chains have a call on each line.
        let chain = if line.starts_with('.') && at > 0 { format!("{}{line}", code[at - 1].1) } else { (*line).to_string() };
        let found = chain.match_indices(".unwrap_or").any(|(end, _)| {
            let call = &chain[..end];
            let is_slice = call.ends_with("slice()") || call.ends_with("slice_mut()");
            is_slice || call.rsplit_once(".get").is_some_and(|(_, range)| range.contains(".."))
        });
        if found {
            problems.push(format!("{}:{i}: a wrong slice becomes an empty one: use `expect`, or an index", source.path));
        }
    }
    problems
}

/// Types in two files of a crate with one name.
fn one_name_one_type(all: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for source in all.iter().filter(|source| source.path.contains("/src/")) {
        let is_environment = source.path.starts_with("rl-envs/");
        for (_, line) in source.code() {
            let Some(name) = type_name(line) else { continue };
            if !(is_environment && IN_EACH_ENVIRONMENT.contains(&name)) {
                files.entry((source.crate_name(), name)).or_default().push(&source.path);
            }
        }
    }
    let twice = files.into_iter().filter(|(_, paths)| paths.len() > 1);
    twice.map(|((_, name), paths)| format!("two types are called {name}: {}", paths.join(", "))).collect()
}

/// Name of the type that a line of code declares outside of an `impl`.
fn type_name(line: &str) -> Option<&str> {
    let (visibility, item) = line.split_once("pub").map_or(("", line), |(indent, rest)| (indent, rest));
    let item = item.strip_prefix('(').map_or(item, |rest| rest.split_once(')').map_or(rest, |(_, rest)| rest)).trim_start();
    let (keyword, rest) = item.split_once(' ')?;
    let is_alias_of_a_trait = keyword == "type" && line.starts_with(' ');
    if !visibility.trim().is_empty() || !["enum", "struct", "trait", "type", "union"].contains(&keyword) || is_alias_of_a_trait {
        return None;
    }
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Doc comments whose first line names nothing, long lines, forbidden words.
fn prose(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let mut in_doc = false;
    for (i, line) in source.lines() {
        let Some((code, comment)) = comment(line) else {
            in_doc = false;
            continue;
        };
        let doc = comment.strip_prefix(['/', '!']).filter(|_| code.is_empty());
        let text = doc.unwrap_or(comment).trim();
        let mut problem = |what: String| problems.push(format!("{}:{i}: {what}", source.path));
        if doc.is_some() && !in_doc {
            let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if NO_FIRST_WORD.contains(&first) {
                problem(format!("a doc comment begins with \"{first}\": name the thing"));
            }
            if text.chars().count() > FIRST_LINE {
                problem(format!("the first line of a doc comment has more than {FIRST_LINE} characters"));
            }
        }
        in_doc = doc.is_some();
        // A row of a table cannot be broken, nor can an address.
        if code.is_empty() && line.chars().count() > WIDTH && !text.starts_with('|') && !text.contains("://") {
            problem(format!("a comment's line has more than {WIDTH} characters"));
        }
        let lower = text.to_lowercase();
        for word in NO_WORDS.iter().filter(|word| has_word(&lower, word)) {
            problem(format!("\"{word}\": use the term of art"));
        }
    }
    problems
}

/// Splits a line with a comment into its code and the text after the slashes.
fn comment(line: &str) -> Option<(&str, &str)> {
    // Slashes in a string are no comment: an address has a colon before them.
    let (code, comment) = line.split_once("//").filter(|(code, _)| !code.ends_with(':'))?;
    Some((code.trim(), comment))
}

/// Rows of docs/faults.md without a test, and tests named there that do not exist.
///
/// A row marked absent needs none; `read` returns a file's text.
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

/// Documents whose figures have sources.
fn documents(root: &Path) -> Result<Vec<String>> {
    let mut paths = vec!["README.md".to_string(), "bench/README.md".into()];
    for entry in fs::read_dir(root.join("docs"))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        paths.extend(name.ends_with(".md").then(|| format!("docs/{name}")));
    }
    paths.sort();
    Ok(paths)
}

/// The source files of the library crates, modules for tests left out.
pub(crate) fn library_sources(root: &Path) -> Result<Vec<Source>> {
    let libraries = MAY_USE.iter().filter(|(name, _)| *name != "xtask");
    let all: Vec<_> = libraries.map(|(name, _)| read_sources(root, &format!("{name}/src"))).collect::<Result<_>>()?;
    let all: Vec<Source> = all.into_iter().flatten().collect();
    let is_test = |file: &Source| {
        all.iter().any(|root| {
            let folder = root.path.strip_suffix("lib.rs").filter(|folder| file.path.starts_with(folder));
            let module = folder.and_then(|folder| file.path[folder.len()..].strip_suffix(".rs"));
            module.is_some_and(|module| root.text.contains(&format!("#[cfg(test)]\nmod {module};")))
        })
    };
    let tests: Vec<bool> = all.iter().map(is_test).collect();
    Ok(all.into_iter().zip(tests).filter(|(_, is_test)| !is_test).map(|(source, _)| source).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_function_is_that_of_a_file() {
        let all = [source("rl-envs/src/a.rs", "fn f() {\n    g();\n}\n")];
        let found = |body: &str| misquoted("a.md", &format!("x\n```rust\nfn f() {{\n    {body}\n}}\n```\n"), &all).len();
        assert_eq!((found("g();"), found("h();")), (0, 1));
    }

    #[test]
    fn the_outside_has_the_profile_of_our_dependencies() {
        let manifest = |packages: &str| format!("[profile.dev.package]\n{packages}");
        let ours = manifest("rl-envs = { opt-level = 1 }\nzip = { opt-level = 0 }\n");
        let problems = |theirs: &str| compiled_otherwise(&ours, &manifest(theirs)).unwrap().len();
        assert_eq!((problems("zip = { opt-level = 0 }\n"), problems("zip = { opt-level = 1 }\n"), problems("")), (0, 1, 1));
    }

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

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_dependency_that_the_table_lacks_is_found() {
        let found = |manifest| dependencies("rl-buffer", &["rl-envs"], manifest).unwrap();
        assert!(found("[dependencies]\nserde = \"1\"\nrl-envs.workspace = true").is_empty());
        assert_eq!(found("[dependencies]\nrl-agents.workspace = true"), ["rl-buffer may not use rl-agents"]);
    }

    #[test]
    fn a_file_needs_a_header_its_room_a_place_on_the_map_and_unsafe_code_leave() {
        let found = |file: &str, text: &str, may_be_unsafe: &str| {
            mapped(&source(&format!("rl-envs/src/{file}.rs"), text), "| `rl-envs/src/room` | a room |", may_be_unsafe).len()
        };
        assert_eq!(found("room/mod", "//! Header.\n", ""), 0);
        assert_eq!(found("another/mod", "//! Header.\n", ""), 1);
        assert_eq!(found("another/file", "//! Header.\n", ""), 0);
        assert_eq!(found("new", "use std::fmt;\n", ""), 1);
        let allowed = concat!("//! Header.\n#![allow(unsafe", "_code)]\n");
        assert_eq!(found("new", allowed, "`rl-envs/src/old.rs`"), 1);
        assert_eq!(found("new", allowed, "`rl-envs/src/new.rs`"), 0);
    }

    #[test]
    fn a_crowded_folder_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-crowded-{}", std::process::id()));
        let room = root.join("src/room");
        fs::create_dir_all(&room).unwrap();
        let found = || crowded(&root.join("src"), &root).unwrap();
        for i in 0..=ROOM {
            assert!(found().is_empty(), "{i} files");
            fs::write(room.join(format!("{i}.rs")), "").unwrap();
        }
        assert_eq!(found(), ["src/room has 15 files: more than 14 are several rooms"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_word_that_a_crate_never_has_is_found_in_code_alone() {
        for (place, words, _) in NEVER {
            for word in *words {
                let path = if place.ends_with(".rs") { (*place).to_string() } else { format!("{place}/file.rs") };
                let found = |text: String| never(&source(&path, &text)).len();
                assert_eq!(found(format!("use x::{word};\n")), 1, "{place}: {word}");
                assert_eq!(found(format!("// {word}\nuse x_{word}_y;\n#[cfg(test)]\nmod tests {{ use {word}; }}\n")), 0);
            }
        }
    }

    #[test]
    fn names_of_environments_and_algorithms_are_found_where_they_do_not_belong() {
        let bases = [
            ("rl-envs/src/envs/maze.rs", ""),
            ("rl-agents/src/algorithms/reinforce.rs", ""),
            ("rl-agents/src/algorithms/mod.rs", ""),
        ];
        let found = |path: &str, text: &str| {
            let all = bases.iter().copied().chain([("rl-agents/src/algorithms/sarsa.rs", ""), (path, text)]);
            foreign_names(&all.map(|(path, text)| source(path, text)).collect::<Vec<_>>())
        };
        assert_eq!(
            found("rl-buffer/src/a.rs", "use rl_envs::maze;\n"),
            ["rl-buffer/src/a.rs:1 has `maze`, but a buffer names no environment"]
        );
        assert_eq!(found("rl-cuda/src/a.rs", "struct Reinforce;\n").len(), 1);
        assert_eq!(found("rl-cuda/src/a.rs", "fn reinforce() {}\n").len(), 1);
        assert_eq!(found("rl-agents/src/algorithms/sarsa.rs", "use crate::algorithms::reinforce::X;\n").len(), 1);
        assert_eq!(found("rl-agents/src/algorithms/sarsa.rs", "use crate::algorithms::mod::X;\n").len(), 0);
        assert_eq!(found("rl-agents/src/algorithms/replayed.rs", "use crate::algorithms::sarsa::X;\n").len(), 1);
        assert_eq!(found("rl-agents/src/agent.rs", "use crate::algorithms::reinforce::X;\n").len(), 0);
    }

    #[test]
    fn a_slice_that_becomes_empty_silently_is_found() {
        let found = |text: &str| silent(&source("rl-buffer/src/a.rs", text)).len();
        for bad in [
            "let x = array.as_slice().unwrap_or_default();",
            "let x = f(rows.into_slice().unwrap_or(&mut []), 1);",
            "let x = array\n    .as_slice_mut()\n    .unwrap_or_default();",
            "let x = masks.get(i * a..(i + 1) * a).unwrap_or_default();",
            "let x = masks.get_mut(..n).unwrap_or(&mut []);",
        ] {
            assert_eq!(found(bad), 1, "{bad}");
        }
        for good in [
            "let x = array.as_slice().expect(CONTIGUOUS);",
            "let x = lines.get(3).unwrap_or_default();",
            "// as_slice().unwrap_or_default()",
            "let x = masks.unwrap_or_default();",
            "#[cfg(test)]\nmod tests {\n    let x = array.as_slice().unwrap_or_default();\n}",
        ] {
            assert_eq!(found(good), 0, "{good}");
        }
    }

    #[test]
    fn a_file_of_the_runtime_is_opened_in_one_place() {
        let found = |path: &str, call: &str| opened(&source(path, &format!("//! Header.\nlet file = {call};\n"))).len();
        for call in
            ["File::open(path)", "fs::read(path)", "std::fs::read_to_string(path)", "fs::write(path, text)", "File::options()"]
        {
            assert_eq!(found("rl-runtime/src/cli/verbs/plot.rs", call), 1, "{call}");
            assert_eq!(found("rl-runtime/src/file.rs", call) + found("rl-envs/src/a.rs", call), 0, "{call}");
        }
        for call in
            ["fs::read_to_string(\"/proc/self/stat\")", "own(path, |options| options.read(true))", "File::create_new(path)"]
        {
            assert_eq!(found("rl-runtime/src/cli/verbs/plot.rs", call), 0, "{call}");
        }
    }

    #[test]
    fn a_name_is_of_one_type_in_a_crate() {
        let found = |a: &str, b: &str, path: &str| one_name_one_type(&[source("rl-envs/src/a.rs", a), source(path, b)]).len();
        for declaration in
            ["struct Row;", "pub struct Row<'a> {", "pub(crate) enum Row {", "type Row = u8;", "    struct Row(u8);"]
        {
            assert_eq!(found("trait Row {", declaration, "rl-envs/src/b.rs"), 1, "{declaration}");
            assert_eq!(found("trait Row {", declaration, "rl-cuda/src/b.rs"), 0, "another crate");
        }
        for other in ["struct Rows;", "    type Row = u8;", "// struct Row;", "#[cfg(test)]\nmod tests {\n    struct Row;"] {
            assert_eq!(found("trait Row {", other, "rl-envs/src/b.rs"), 0, "{other}");
        }
        assert_eq!(found("struct State {", "struct State {", "rl-envs/src/b.rs"), 0, "each environment has a state");
        assert_eq!(found("trait Row {", "struct Row;", "rl-envs/tests/b.rs"), 0, "tests are crates of their own");
    }

    #[test]
    fn a_doc_comment_names_a_thing_in_a_line_that_an_index_shows() {
        let found = |text: &str| prose(&source("rl-envs/src/a.rs", text)).len();
        assert_eq!(found("/// Number of rows.\n/// What else there is.\nfn f() {}\n"), 0);
        for first in NO_FIRST_WORD {
            assert_ne!(found(&format!("/// {first} it is.\nfn f() {{}}\n")), 0, "{first}");
        }
        assert_eq!(found(&format!("/// {}\n", "a".repeat(80))), 0);
        assert_eq!(found(&format!("/// {}\n", "a".repeat(81))), 1);
        for word in NO_WORDS {
            assert_eq!(found(&format!("let a = 1; // it {word} here\n")), 1, "{word}");
            assert_eq!(found(&format!("let a = \"it {word} here\";\n")), 0, "{word}");
        }
    }
}
