//! The newcomer's page, docs/your-environment.md, followed to the end.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{finish, python, rl, text};
use serde_json::Value;

/// Returns the page's blocks of code in a language.
fn blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string("../docs/your-environment.md").unwrap();
    let parts = page.split("\n```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(String::from)).collect()
}

/// Returns the arguments of the page's line with `words` in it, after `program`.
fn arguments(program: &str, words: &str) -> Vec<String> {
    let lines = blocks("sh").join("\n");
    let line = lines.lines().find(|line| line.contains(words)).unwrap();
    line.split_once(program).unwrap().1.split_whitespace().map(String::from).collect()
}

fn mean_return(mut command: Command, dir: &Path) -> f64 {
    let output = finish(command.arg("--json").current_dir(dir));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.rev().find_map(|line| line["return_mean"].as_f64()).unwrap()
}

#[test]
fn the_way_in_python_ends_with_an_agent_that_wins() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("my_env.py"), &blocks("python")[0]).unwrap();
    let checked = finish(rl(&arguments("rl ", "rl check-env gym:")).current_dir(dir.path()));
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    assert_eq!(mean_return(rl(&arguments("rl ", "rl train gym:my_env")), dir.path()), 1.0);
}

#[test]
fn the_way_over_http_ends_with_an_agent_that_wins() {
    let example = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/http_env");
    let source = fs::read_to_string("examples/http_env.rs").unwrap();
    assert!(source.contains(&blocks("rust")[1]), "the page shows the example's main");
    if !example.exists() {
        return eprintln!("skipped: {} has not been built", text(&example));
    }
    let mut command = Command::new(example);
    command.args(arguments("http_env -- ", "http_env")).stdin(Stdio::null());
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(mean_return(command, dir.path()), 1.0);
}

#[test]
fn the_way_in_rust_shows_the_program_that_is_tested_outside_the_workspace() {
    let page = |name: &str| fs::read_to_string(format!("../docs/{name}.md")).unwrap();
    let outside = |file: &str| fs::read_to_string(format!("../xtask/outside/program/src/{file}")).unwrap();
    let main = outside("main.rs");
    let main = main.split_once("\n\n").unwrap().1.trim_end();
    let algorithm = page("your-algorithm");
    assert!(algorithm.contains(&format!("```rust\n{main}\n```")));
    let settings = algorithm.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(outside("reinforce.rs").contains(settings));
    // The page about environments has no algorithm.
    let algo = ")],\n        &[Algo::of::<ReinforceConfig>(\"reinforce\", \"REINFORCE with a baseline\")],\n    )";
    let main = main.replace("use own_program::reinforce::ReinforceConfig;\n", "").replace("use rl_runtime::Algo;\n", "");
    assert_eq!(blocks("rust")[0], main.replace("main(\n        &", "main(&").replace(algo, ")], &[])"));
    assert!(Path::new("../xtask/outside/program/src/walk.rs").exists());
}
