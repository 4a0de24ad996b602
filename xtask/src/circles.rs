//! Circles of imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, has_word};

/// Groups of a crate's files that import each other, directly or by way of others.
pub(crate) fn circles(all: &[Source]) -> Vec<String> {
    let mut found = BTreeSet::new();
    let imports: BTreeMap<&str, BTreeSet<&str>> = all
        .iter()
        .map(|source| {
            let others = all.iter().filter(|other| other.crate_name() == source.crate_name() && other.path != source.path);
            let code: String = source.code().map(|(_, line)| line).collect::<Vec<_>>().join(" ");
            let groups: Vec<&str> = code.split("use crate::{").skip(1).filter_map(|rest| rest.split(';').next()).collect();
            let used = others.filter(|other| {
                let module = module(&other.path);
                let names = reexports(all, source.crate_name(), &module);
                let imported =
                    |name: &&str| groups.iter().any(|group| has_word(group, name)) || has_word(&code, &format!("crate::{name}"));
                !module.is_empty() && [module.as_str()].iter().chain(&names).any(imported)
            });
            (source.path.as_str(), used.map(|other| other.path.as_str()).collect())
        })
        .collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|path| (*path, reached(&imports, path))).collect();
    for (path, seen) in &reach {
        let circle: Vec<&str> = seen.iter().filter(|other| reach[*other].contains(path)).copied().collect();
        if seen.contains(path) {
            found.insert(circle.join(", "));
        }
    }
    found.into_iter().collect()
}

/// Names of a module that its crate's root exports, except `Error`.
fn reexports<'a>(all: &'a [Source], name: &str, module: &str) -> Vec<&'a str> {
    let root = all.iter().find(|source| source.path == format!("{name}/src/lib.rs"));
    let lists = root.into_iter().flat_map(|root| root.text.split("pub use ").skip(1)).filter_map(|list| {
        let list = list.split(';').next()?.strip_prefix(module)?;
        list.strip_prefix("::")
    });
    let words = lists.flat_map(|list| list.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty() && *word != "Error").collect()
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
}
