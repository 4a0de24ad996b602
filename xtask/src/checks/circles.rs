//! Circles of imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::checks::source::Source;

/// Groups of a crate's files that import each other, directly or by way of others.
pub(crate) fn circles(all: &[Source]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in all {
        crates.entry(source.crate_name()).or_default().push(source);
    }
    let mut found = BTreeSet::new();
    for sources in crates.values() {
        let files = Files::new(sources);
        let imports: BTreeMap<&str, BTreeSet<&str>> =
            sources.iter().map(|source| (source.path.as_str(), files.imports(source))).collect();
        let reach: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|path| (*path, reached(&imports, path))).collect();
        for (path, seen) in reach.iter().filter(|(path, seen)| seen.contains(*path)) {
            let circle: Vec<&str> = seen.iter().filter(|other| reach[*other].contains(path)).copied().collect();
            found.insert(circle.join(", "));
        }
    }
    found.into_iter().collect()
}

/// Files of a crate by module, and the names that modules re-export.
struct Files<'a> {
    /// Path of a module's file; the crate's root has the name "".
    paths: BTreeMap<String, &'a str>,
    /// Full path of what a module re-exports under a name.
    exports: BTreeMap<(String, String), String>,
}

impl<'a> Files<'a> {
    fn new(sources: &[&'a Source]) -> Self {
        let paths = sources.iter().map(|source| (module(&source.path), source.path.as_str())).collect();
        let mut files = Self { paths, exports: BTreeMap::new() };
        for source in sources {
            let module = module(&source.path);
            let code = code(source);
            for list in code.match_indices("use ").filter(|(at, _)| is_export(&code[..*at])).map(|(at, _)| &code[at + 4..]) {
                for path in expand(list) {
                    let name = path.rsplit("::").next().unwrap_or_default().to_string();
                    files.exports.insert((module.clone(), name), files.absolute(&path, &module));
                }
            }
        }
        files
    }

    /// Path from the crate's root of a path in the file of `module`.
    fn absolute(&self, path: &str, module: &str) -> String {
        let inside = |module: &str, rest: &str| if module.is_empty() { rest.to_string() } else { format!("{module}::{rest}") };
        if let Some(rest) = path.strip_prefix("crate::") {
            return rest.into();
        }
        if let Some(rest) = path.strip_prefix("self::") {
            return inside(module, rest);
        }
        let (mut rest, mut parent) = (path, module);
        while let Some(inner) = rest.strip_prefix("super::") {
            (rest, parent) = (inner, parent.rsplit_once("::").map_or("", |(parent, _)| parent));
        }
        inside(parent, rest)
    }

    /// The files that one imports; re-exports of a module's own files are no imports.
    fn imports(&self, source: &Source) -> BTreeSet<&'a str> {
        let (own, code) = (module(&source.path), code(source));
        let mut found = BTreeSet::new();
        if own.is_empty() {
            return found;
        }
        for (at, c) in code.char_indices().filter(|(at, _)| !code[..*at].ends_with(is_word)) {
            let rest = &code[at..];
            let first = rest.split("::").next().unwrap_or_default();
            let is_path = first.len() < rest.len() && first.chars().all(is_word) && !code[..at].ends_with("::");
            // A child is a name that begins a path.
            let is_child = is_path && self.paths.contains_key(&format!("{own}::{first}"));
            let is_re_export = code[..at].strip_suffix("use ").is_some_and(is_export);
            if c.is_alphabetic() && is_path && !is_re_export && (is_child || ["crate", "self", "super"].contains(&first)) {
                found.extend(expand(rest).iter().filter_map(|path| self.file(&self.absolute(path, &own))));
            }
        }
        found.remove(source.path.as_str());
        found
    }

    /// The file that has what a path names; none for the crate's root and its `Error`.
    fn file(&self, path: &str) -> Option<&'a str> {
        let mut path = path.to_string();
        loop {
            let mut module = path.as_str();
            while !module.is_empty() && !self.paths.contains_key(module) {
                module = module.rsplit_once("::").map_or("", |(parent, _)| parent);
            }
            let name = path[module.len()..].trim_start_matches("::").split("::").next().unwrap_or_default();
            if module.is_empty() && name == "Error" {
                return None;
            }
            match self.exports.get(&(module.to_string(), name.to_string())) {
                Some(exported) if !path.starts_with(exported.as_str()) => path = exported.clone(),
                _ if module.is_empty() => return None,
                _ => return self.paths.get(module).copied(),
            }
        }
    }
}

/// A file's code as one line, without the imports of modules within the file.
fn code(source: &Source) -> String {
    let lines = source
        .code()
        .map(|(_, line)| line)
        .filter(|line| !line.starts_with(' ') || !line.trim_start().starts_with("use super::"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// True if the words before `use` make it a re-export.
fn is_export(before: &str) -> bool {
    let before = before.trim_end();
    before.ends_with("pub") || before.ends_with("pub(crate)") || before.ends_with("pub(super)")
}

/// True for a character of a name.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of a tree such as `a::{b, c::{d, e}}` at the beginning of a text.
fn expand(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !is_word(c) && c != ':').unwrap_or(text.len());
    let (prefix, rest) = text.split_at(end);
    let Some(inner) = rest.strip_prefix('{').filter(|_| prefix.ends_with("::")) else {
        return vec![prefix.trim_end_matches(':').to_string()];
    };
    let mut paths = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let item = inner[from..at].trim();
                paths.extend(expand(item).iter().filter(|_| !item.is_empty()).map(|path| match path.as_str() {
                    "self" => prefix.trim_end_matches(':').to_string(),
                    path => format!("{prefix}{path}"),
                }));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

/// The files that one imports, directly or by way of others.
fn reached<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(path) = next.pop() {
        next.extend(imports[path].iter().filter(|path| seen.insert(**path)));
    }
    seen
}

/// The path of a file's module within its crate; empty for the crate's root.
fn module(path: &str) -> String {
    let inside = path.split_once("/src/").map_or("", |(_, inside)| inside);
    let name = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    if ["lib", "main"].contains(&name) || name.starts_with("bin/") { String::new() } else { name.replace('/', "::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_circle_is_found_once_and_a_chain_is_none() {
        let all = |c: &str| {
            [
                source("x/src/a.rs", "use crate::b::B;\n"),
                source("x/src/b.rs", "use crate::{\n    Error,\n    c::C,\n};\n"),
                source("x/src/c.rs", c),
                source("x/src/lib.rs", "pub use a::{A, Other};\n"),
                source("y/src/c.rs", "use crate::a;\n"),
            ]
        };
        assert!(circles(&all("use crate::Another;\n")).is_empty());
        assert_eq!(circles(&all("use crate::{Error, Other};\n")).len(), 1, "by a name that the root exports");
        assert_eq!(circles(&all("use crate::a::A;\n")), ["x/src/a.rs, x/src/b.rs, x/src/c.rs"]);
    }

    #[test]
    fn a_circle_by_super_is_found() {
        let found = |a: &str, b: &str, room: &str| {
            circles(&[
                source("x/src/lib.rs", "mod room;\n"),
                source("x/src/room/mod.rs", room),
                source("x/src/room/a.rs", a),
                source("x/src/room/b.rs", b),
            ])
            .len()
        };
        assert_eq!(found("use super::b::B;\n", "use super::{BEAT, a};\n", "mod a;\nmod b;\n"), 1);
        assert_eq!(found("use super::b;\n", "use super::BEAT;\n", "mod a;\nmod b;\n"), 0);
        assert_eq!(found("use crate::room::{b::{C, D}, E};\n", "fn f() { crate::room::a::g() }\n", ""), 1);
        // A room that uses its own file, which uses the room.
        assert_eq!(found("use super::BEAT;\n", "", "mod a;\nfn f() { a::g() }\n"), 1);
        assert_eq!(found("use super::BEAT;\n", "", "mod a;\npub use a::{A, B};\n"), 0, "a re-export is no import");
        assert_eq!(found("use super::B;\n", "use super::A;\n", "pub(crate) use a::A;\npub(crate) use b::B;\n"), 1);
    }
}
