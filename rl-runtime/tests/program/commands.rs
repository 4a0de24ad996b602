//! Every `rl` command of the README and docs as written; version, completions.
//!
//! Long ones get fewer steps or seconds. Those that need a GPU, a package or a file that is not here are only parsed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{finish, rl, text};

/// Parts of commands that cannot run everywhere.
const ONLY_PARSED: [&str; 5] = ["gym:", "--device cuda", "mine.toml", "RUN", "walk"];
/// Parts that shorten a command, by its first words.
const SHORTER: [(&str, &str); 15] = [
    ("train --resume", "--steps 2048"),
    ("train pendulum --algo sac", "--steps 200 --set hidden=[64] --set eval_episodes=2"),
    (
        "train gym:ALE/",
        "--steps 256 --set ppo.n_steps=32 --set ppo.n_epochs=1 --set conv=[] --set hidden=[16] --set eval_episodes=1 \
         --set env.time_limit=100",
    ),
    (
        "train gym:CarRacing",
        "--steps 128 --set ppo.n_steps=16 --set ppo.batch_size=64 --set ppo.n_epochs=1 --set eval_episodes=1 --set eval_max_steps=20",
    ),
    ("train gym:FrozenLake", "--steps 1024 --set ppo.n_steps=128 --set eval_episodes=2"),
    (
        "train pendulum --envs 32",
        "--steps 1024 --set ppo.n_steps=32 --set ppo.batch_size=256 --set ppo.n_epochs=1 --set eval_episodes=2",
    ),
    (
        "train cartpole --envs 32",
        "--steps 1024 --set ppo.n_steps=32 --set ppo.batch_size=256 --set ppo.n_epochs=1 --set eval_episodes=2",
    ),
    ("train", "--steps 1024 --set eval_episodes=2"),
    ("record", "--steps 4000"),
    ("tune", "--seconds 1"),
    ("bench env", "--seconds 0.1"),
    ("bench update", "--seconds 0.1"),
    ("bench act", "--seconds 0.1"),
    ("bench replay", "--seconds 0.1"),
    ("bench pipeline", "--seconds 0.5 --n-steps 8"),
];

/// Returns the commands of a page's blocks for the shell, without comments.
fn commands(page: &Path) -> Vec<String> {
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    let lines = blocks.flat_map(str::lines).map(|line| line.split("  #").next().unwrap().trim());
    lines.filter_map(|line| line.strip_prefix("cargo rl ").or_else(|| line.strip_prefix("rl "))).map(String::from).collect()
}

/// Returns the command with fewer steps or seconds.
fn shortened(command: &str) -> String {
    let Some((_, shorter)) = SHORTER.iter().find(|(words, _)| command.starts_with(words)) else { return command.into() };
    let mut words: Vec<&str> = command.split(' ').collect();
    let option = shorter.split(' ').next().unwrap();
    if let Some(at) = words.iter().position(|word| *word == option) {
        words.drain(at..at + 2);
    }
    format!("{} {shorter}", words.join(" "))
}

#[test]
fn every_command_of_the_readme_and_the_docs_works_as_written() {
    let mut pages = vec!["../README.md".into()];
    pages.extend(fs::read_dir("../docs").unwrap().map(|file| file.unwrap().path()).filter(|path| text(path).ends_with(".md")));
    let mut n = 0;
    for page in pages {
        let dir = tempfile::tempdir().unwrap();
        for command in commands(&page) {
            let run = format!("{} {}", env!("CARGO_BIN_EXE_rl"), shortened(&command));
            let output = finish(Command::new("sh").args(["-c", &run]).env("XDG_CACHE_HOME", dir.path()).current_dir(dir.path()));
            let said = String::from_utf8_lossy(&output.stderr);
            let is_parsed = ONLY_PARSED.iter().any(|part| command.contains(part)) && !said.contains("Usage:");
            assert!(output.status.success() || is_parsed, "{}: rl {command}: {}\n{said}", page.display(), output.status);
            n += 1;
        }
    }
    assert!(n > 20, "{n} commands");
}

#[test]
fn the_version_names_commit_features_instructions_and_target() {
    let said = |args: &[&str]| String::from_utf8(finish(&mut rl(args)).stdout).unwrap();
    let lines = said(&["--version"]);
    let lines: Vec<&str> = lines.lines().collect();
    let commit = lines[0].strip_prefix(concat!("rl ", env!("CARGO_PKG_VERSION"), " (")).unwrap();
    assert!(commit == "unreleased)" || !cfg!(debug_assertions), "{lines:?}");
    assert_eq!((lines[1].starts_with("features: "), lines[1].contains("cuda")), (true, cfg!(feature = "cuda")));
    let isa = format!("instruction set: {:?}", rl_envs::Isa::best()).to_lowercase();
    assert_eq!((lines[2], lines.len()), (isa.as_str(), 4));
    assert!(lines[3].starts_with("target: ") && lines[3].contains(std::env::consts::ARCH), "{lines:?}");
    assert_eq!(said(&["-V"]).trim(), lines[0]);
    // The instruction set can be limited, to one that exists.
    let limited = |isa: &str| finish(rl(&["--version"]).env("RL_ISA", isa));
    assert!(String::from_utf8(limited("plain").stdout).unwrap().contains("instruction set: plain\n"));
    let refused = limited("avx3");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().starts_with("error: the variable RL_ISA: unknown variant `avx3`"));
}

#[test]
fn completions_are_scripts_of_their_shell_with_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let output = finish(&mut rl(&["completions", shell]));
        let script = String::from_utf8(output.stdout).unwrap();
        for verb in ["train", "check-env", "completions", "--target-return"] {
            assert!(script.contains(verb.trim_start_matches("--")), "{shell}: {verb}");
        }
        // Not every machine has every shell.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        fs::write(&path, script).unwrap();
        if let Ok(status) = Command::new(shell).arg("-n").arg(&path).status() {
            assert!(status.success(), "{shell}");
        }
    }
    assert_eq!(finish(&mut rl(&["completions", "cmd"])).status.code(), Some(2));
}
