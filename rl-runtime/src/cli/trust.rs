//! Environments that files choose: shown and asked for before they are executed.
//!
//! A run, a checkpoint, settings and a sweep are data, which may come from somebody else. An environment `exec:COMMAND` or
//! `gym:MODULE:CALLABLE` in them is code of the file's choice. It is started if the command line names it, if `--trust` is given,
//! or after a yes at the terminal. All of these are remembered, as files in the user's cache directory whose names are hashes of
//! the environment, its arguments and the directory in which its command or module is looked up.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use serde_json::json;

use crate::cli::signals;
use crate::config::EnvConfig;
use crate::config::crossover::cache_dir;
use crate::file::write_own;
use crate::sources::worker::GYM;
use crate::{Error, print};

/// Origin of the choice of an environment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<'a> {
    /// The command line, or the process of ours that has sent the settings.
    Given,
    /// A file or directory, or a line of a file.
    Found(&'a str),
}

/// Decisions of the user about what files may execute.
#[derive(Debug)]
pub(crate) struct Trust {
    /// Accepts everything.
    all: bool,
    /// Hashes of what has been accepted, here or by the parent process.
    accepted: RefCell<BTreeSet<String>>,
    /// Directory of what is remembered, if there is a place for it.
    memory: Option<PathBuf>,
}

/// Describes what a file's choice of an environment executes.
///
/// `None` for environments of the catalog and of Gymnasium's registry, which execute nothing of the file's choice.
fn code(env: &EnvConfig) -> Option<String> {
    let EnvConfig { name, kwargs, path, .. } = env;
    let place = if path.is_empty() { String::new() } else { format!(" in {path}") };
    let arguments = if kwargs.is_empty() { String::new() } else { format!(" with env.kwargs = {kwargs}") };
    let text = format!("{name}{place}{arguments}");
    env.is_code().then(|| print::shown(&text).replace('\n', "\\n").replace('\t', "\\t"))
}

/// Returns the hash by which an environment that executes code is remembered.
pub(crate) fn hash(env: &EnvConfig) -> Option<String> {
    code(env)?;
    let dir = std::env::current_dir().unwrap_or_default();
    // A run names the directory in which it has found the module.
    let dir = if env.name.starts_with(GYM) && !env.path.is_empty() { without_dots(&dir.join(&env.path)) } else { dir };
    Some(blake3::hash(json!([env.name, env.kwargs, dir.to_string_lossy()]).to_string().as_bytes()).to_string())
}

/// Resolves `.` and `..` by the path's text, as Python does.
fn without_dots(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            component => resolved.push(component),
        }
    }
    resolved
}

/// True if a directory is this user's, and no other user can write to it.
fn is_private(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0)
}

impl Trust {
    /// Creates the decisions of a command line.
    ///
    /// `all` is `--trust`; `accepted` are the hashes of what the process that has started this one has accepted.
    pub(crate) fn new(all: bool, accepted: Vec<String>) -> Self {
        let memory = cache_dir().map(|cache| cache.join("trusted"));
        Self { all, accepted: RefCell::new(accepted.into_iter().collect()), memory }
    }

    /// Accepts environments, or asks for those that execute code which is not known.
    ///
    /// # Errors
    /// [`Error::Config`] if the answer is no, or there is no terminal to ask at.
    pub(crate) fn check(&self, envs: &[EnvConfig], choice: Choice<'_>) -> Result<(), Error> {
        let mut codes: Vec<(String, String)> = envs.iter().filter_map(|env| Some((hash(env)?, code(env)?))).collect();
        codes.dedup();
        let unknown: Vec<&str> = codes.iter().filter(|(hash, _)| !self.knows(hash)).map(|(_, code)| code.as_str()).collect();
        if let Choice::Found(place) = choice
            && !self.all
            && !unknown.is_empty()
        {
            ask(place, &unknown)?;
        }
        for (hash, code) in codes {
            self.remember(&hash, &code);
            self.accepted.borrow_mut().insert(hash);
        }
        Ok(())
    }

    fn knows(&self, hash: &str) -> bool {
        let is_remembered = |dir: &PathBuf| is_private(dir) && dir.join(hash).is_file();
        self.accepted.borrow().contains(hash) || self.memory.as_ref().is_some_and(is_remembered)
    }

    /// Keeps what was accepted; a failure means that it is asked for again.
    fn remember(&self, hash: &str, code: &str) {
        if let Some(dir) = self.memory.as_ref().filter(|_| !self.knows(hash)) {
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            let _ = write_own(&dir.join(hash), format!("{code}\n").as_bytes());
        }
    }
}

/// Asks at the terminal whether a file's code may be executed.
fn ask(place: &str, codes: &[&str]) -> Result<(), Error> {
    let refused = |why: &str| Error::config(format!("{place} would execute {}{why}", codes.join(", ")));
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(refused("; nothing was started; if you trust it, add --trust"));
    }
    print::err(&format!("{place} executes code that was not started from here before:"));
    codes.iter().for_each(|code| print::err(&format!("  {code}")));
    print::err("Do you trust it? [y/N]");
    let mut answer = String::new();
    signals::while_waiting(|| io::stdin().read_line(&mut answer)).map_err(Error::io("stdin"))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(refused(", which was not accepted; nothing was started")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str, kwargs: &str) -> EnvConfig {
        EnvConfig { kwargs: kwargs.into(), ..EnvConfig::new(name) }
    }

    #[test]
    fn commands_and_callables_are_code_and_registered_names_are_not() {
        for name in ["exec:true", "exec:", "gym:os:system", "gym:a.b:Env-v0", "gym::x"] {
            assert_eq!(code(&env(name, "")).as_deref(), Some(name));
        }
        for name in ["cartpole", "gym:CartPole-v1", "gym:ALE/Pong-v5", "gymnasium:a", "crawl"] {
            assert_eq!((code(&env(name, "{\"a\": 1}")), hash(&env(name, ""))), (None, None), "{name}");
        }
    }

    #[test]
    fn code_is_shown_in_one_line_without_control_characters() {
        let shown = code(&env("exec:a\nb\x1b]0;t\x07", "{\"a\":\t\"\u{202e}\"}")).unwrap();
        assert_eq!(shown, "exec:a\\nb\\u001b]0;t\\u0007 with env.kwargs = {\"a\":\\t\"\\u202e\"}");
    }

    #[test]
    fn a_hash_tells_names_from_arguments() {
        let of = |name: &str, kwargs: &str| hash(&env(name, kwargs)).unwrap();
        assert_eq!(of("exec:a", "{}"), of("exec:a", "{}"));
        let at = |path: &str| hash(&EnvConfig { path: path.into(), ..env("gym:a:b", "") }).unwrap();
        assert!(at("/x/y") == at("/x/z/.././y/") && at("/x/y") != at("/x/z"));
        let different = [of("exec:a", ""), of("exec:a", "{}"), of("exec:a{}", ""), of("gym:a:b", ""), of("gym:a:b", "{}")];
        for (i, a) in different.iter().enumerate() {
            assert!(different[..i].iter().all(|b| a != b), "{i}");
        }
    }

    #[test]
    fn what_is_found_is_refused_until_it_was_given_or_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let trust = |all, accepted: &[&str], memory: &str| Trust {
            all,
            accepted: RefCell::new(accepted.iter().map(|hash| (*hash).into()).collect()),
            memory: Some(dir.path().join(memory)),
        };
        let (code, found) = ([env("exec:a", "{}")], Choice::Found("runs/x"));
        let hash = &*hash(&code[0]).unwrap();
        let refused = trust(false, &[], "not/there").check(&code, found).unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        let text = "runs/x would execute exec:a with env.kwargs = {}; nothing was started; if you trust it, add --trust";
        assert_eq!(refused.to_string(), text);
        trust(false, &[], "not/there").check(&[EnvConfig::new("gym:CartPole-v1")], found).unwrap();
        for (memory, all, accepted, choice) in
            [("given", false, &[][..], Choice::Given), ("flag", true, &[], found), ("inherited", false, &[hash], found)]
        {
            trust(all, accepted, memory).check(&code, choice).unwrap();
            assert!(trust(false, accepted, memory).check(&[env("exec:a", "")], found).is_err(), "{memory}: other arguments");
        }
        for (memory, is_kept) in [("given", true), ("flag", true), ("inherited", false)] {
            assert_eq!(trust(false, &[], memory).check(&code, found).is_ok(), is_kept, "{memory}");
        }
    }

    #[test]
    fn what_cannot_be_remembered_is_accepted_for_this_process() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        for memory in [None, Some(dir.path().join("file")), Some(dir.path().join("file/below"))] {
            let trust = Trust { all: false, accepted: RefCell::default(), memory };
            trust.check(&[env("exec:a", "")], Choice::Given).unwrap();
            trust.check(&[env("exec:a", "")], Choice::Found("runs/x")).unwrap();
        }
    }

    #[test]
    fn only_a_directory_that_nobody_else_can_write_to_is_believed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_private(dir.path()), expected, "{mode:o}");
        }
        assert!(!is_private(&dir.path().join("none")));
    }
}
