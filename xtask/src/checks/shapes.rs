//! Code that hides a name: tuple parameters, pairs of equal closures.

use std::collections::BTreeSet;

use crate::checks::source::Source;

/// Functions that may have tuple parameters: lines `path function`.
///
/// The list may only get shorter.
const TUPLES: &str = include_str!("../../tuple_parameters.txt");

/// Functions with tuple parameters beside the list, and stale lines of it.
pub(crate) fn check(all: &[Source]) -> Vec<String> {
    check_except(all, TUPLES)
}

fn check_except(all: &[Source], list: &str) -> Vec<String> {
    let listed: BTreeSet<String> = list.lines().map(String::from).collect();
    let found: BTreeSet<String> = tuple_parameters(all).into_iter().collect();
    let new = found.difference(&listed).map(|function| format!("{function}: name the type of a tuple parameter"));
    let stale = listed.difference(&found).map(|function| format!("xtask/tuple_parameters.txt names {function} without need"));
    new.chain(stale).collect()
}

/// Functions with a parameter whose type is a tuple: path and name.
pub(crate) fn tuple_parameters(all: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in all {
        let code: String = source.code().map(|(_, line)| line.trim()).collect::<Vec<_>>().join(" ");
        for (at, _) in
            code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        {
            let rest = &code[at + 3..];
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let is_tuple = |parameter: &str| {
                let kind = parameter.rsplit_once("): ").or_else(|| parameter.split_once(": ")).map_or("", |(_, kind)| kind);
                let kind = kind.trim_start_matches('&').trim_start_matches("mut ");
                kind.starts_with('(') && !["()", "(dyn ", "(impl "].iter().any(|other| kind.starts_with(other))
            };
            if !name.is_empty() && parameters(&rest[name.len()..]).iter().any(|parameter| is_tuple(parameter)) {
                found.push(format!("{} {name}", source.path));
            }
        }
    }
    found
}

/// The parameters of a function, whose text begins after its name.
fn parameters(text: &str) -> Vec<String> {
    let mut parameters = vec![String::new()];
    let (mut generics, mut depth, mut before) = (0, 0, ' ');
    for c in text.chars() {
        let is_arrow = before == '-' && c == '>';
        before = c;
        match c {
            '<' => generics += 1,
            '>' if !is_arrow => generics -= 1,
            '(' | '[' | '{' if generics == 0 || depth > 0 => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            _ => {}
        }
        if depth == 0 && generics == 0 && (c == ')' || c == ';') {
            break;
        }
        match c {
            ',' if depth == 1 && generics == 0 => parameters.push(String::new()),
            _ if depth > 0 && !(depth == 1 && c == '(') => parameters.last_mut().into_iter().for_each(|last| last.push(c)),
            _ => {}
        }
    }
    parameters.into_iter().map(|parameter| parameter.trim().into()).collect()
}

/// Calls with two or three equal closures: path and closure.
///
/// `visit!` and `either!` need one.
pub(crate) fn equal_closures(all: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in all {
        let code: String = source.code().map(|(_, line)| line.trim()).collect::<Vec<_>>().join(" ");
        for method in [".map(|", ".either(|", ".try_map(|"] {
            for (at, _) in code.match_indices(method) {
                let closures = parameters(&code[at + method.len() - 2..]);
                if closures.len() > 1 && closures.iter().all(|closure| *closure == closures[0] && closure.starts_with('|')) {
                    found.push(format!("{} {}", source.path, closures[0]));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Vec<Source> {
        vec![Source { path: "x/src/a.rs".into(), text: text.into() }]
    }

    #[test]
    fn tuple_parameters_are_found_and_listed_once() {
        for tuple in [
            "fn f((a, b): (u8, u8)) {}",
            "fn f(&self, pair: (u8, u8), n: usize) -> Option<u8> {}",
            "pub(crate) fn f<T: Fn(u8) -> u8>(\n    n: Vec<(u8, u8)>,\n    pair: &mut (T, u8),\n) {}",
        ] {
            assert_eq!(tuple_parameters(&source(tuple)), ["x/src/a.rs f"], "{tuple}");
        }
        for other in [
            "fn f(n: Vec<(u8, u8)>, f: impl Fn((u8, u8)) -> u8) -> (u8, u8) {}",
            "fn f(each: &(dyn Fn(u8) + Send), (): ()) {}",
            "fn f(n: [(u8, u8); 2]) { let (a, b): (u8, u8) = n[0]; }",
            "// fn f(a: (u8, u8)) {}\n#[cfg(test)]\nmod tests {\n    fn f(a: (u8, u8)) {}\n}",
        ] {
            assert!(tuple_parameters(&source(other)).is_empty(), "{other}");
        }
        let all = source("fn f(pair: (u8, u8)) {}");
        assert_eq!(check_except(&all, "x/src/a.rs f\n").len(), 0);
        assert_eq!(check_except(&all, "").len(), 1);
        assert_eq!(check_except(&all, "x/src/a.rs f\nx/src/a.rs g\n").len(), 1);
    }

    #[test]
    fn equal_closures_are_found() {
        assert_eq!(equal_closures(&source("let x = obs.map(|x| f(x, 1), |x| f(x, 1));")).len(), 1);
        assert_eq!(equal_closures(&source("obs\n    .either(\n        |x| f(x),\n        |x| g(x),\n    );")).len(), 0);
        assert_eq!(equal_closures(&source("let x = list.iter().map(|(a, b)| a + b);")).len(), 0);
    }
}
