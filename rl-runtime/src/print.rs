//! Printing: the only way to stdout and stderr.
//!
//! `println!` and `eprintln!` panic if the stream cannot be written, but a run must outlive its log. Here
//!
//! - a stdout whose reader has exited (`| head`) asks the run to save and stop;
//! - any other failure of stdout, such as a full disk, is reported once on stderr, and the program finally exits with 1
//!   ([`lost`]);
//! - a stderr that cannot be written is ignored.
//!
//! Lines contain names, messages and logs of environments, which may be somebody else's. Every line passes through [`shown`], so
//! none of them sends a sequence of its own to the terminal.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::interrupt;

static LOST: AtomicBool = AtomicBool::new(false);

/// Lines held back, with true for stderr, or `None` while lines are printed.
static HELD: Mutex<Option<VecDeque<(bool, String)>>> = Mutex::new(None);

/// Number of lines held back; older ones are dropped.
const MAX_HELD: usize = 1000;

/// Holds lines back from now on, while the terminal shows something else.
#[cfg(feature = "cli")]
pub(crate) fn hold() {
    held().get_or_insert_default();
}

/// Prints the lines held back, and from now on every line at once.
#[cfg(feature = "cli")]
pub(crate) fn release() {
    let lines = held().take();
    lines.into_iter().flatten().for_each(|(to_stderr, line)| if to_stderr { err(&line) } else { out(&line) });
}

/// Returns the last `n` lines held back.
#[cfg(feature = "cli")]
pub(crate) fn last_held(n: usize) -> Vec<String> {
    held()
        .as_ref()
        .map_or_else(Vec::new, |lines| lines.iter().skip(lines.len().saturating_sub(n)).map(|(_, line)| line.clone()).collect())
}

fn held() -> MutexGuard<'static, Option<VecDeque<(bool, String)>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces characters that steer a terminal by their code, such as `\u001b`.
///
/// Escapes control characters except newlines and tabs, marks that turn the direction of text, and those that XML rejects. The
/// form is JSON's, so a line of JSON keeps its meaning.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    let steers = |c: char| match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{fffe}' | '\u{ffff}' => true,
        _ => c.is_control(),
    };
    if !text.contains(steers) {
        return text.into();
    }
    let code = |c: char| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    text.chars().map(code).collect::<String>().into()
}

/// Holds a line back; returns false if lines are printed.
fn is_held(line: &str, to_stderr: bool) -> bool {
    let mut held = held();
    let Some(lines) = &mut *held else { return false };
    if lines.len() == MAX_HELD {
        lines.pop_front();
    }
    lines.push_back((to_stderr, line.into()));
    true
}

/// Writes a line to stdout.
pub fn out(line: &str) {
    let line = &*shown(line);
    if is_held(line, false) {
        return;
    }
    raw(&format!("{line}\n"));
}

/// Writes text to stdout, unchanged, and flushes.
pub fn raw(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    drop(stdout);
    if let Err(error) = written {
        failed(&error);
    }
}

/// Handles a failure to write to stdout.
pub fn failed(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        interrupt::request();
    } else if !LOST.swap(true, Ordering::Relaxed) {
        err(&format!("error: stdout: {error}; output is lost"));
    }
}

/// Writes a line to stderr.
pub fn err(line: &str) {
    let line = &*shown(line);
    if is_held(line, true) {
        return;
    }
    // One call, so that lines of several threads do not mix. A failure cannot be reported anywhere.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// True if output was lost for another reason than a reader that has exited.
#[must_use]
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Quotes a path for a POSIX shell, for commands that a message suggests.
///
/// A leading `-` becomes `./-`.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    let plain = |c: char| c.is_alphanumeric() || "/._-+:=@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Name of the program, for commands that a message suggests.
static PROGRAM: OnceLock<String> = OnceLock::new();

/// Returns the name of the program: `rl`, or that of a user's own.
pub(crate) fn program() -> &'static str {
    PROGRAM.get().map_or("rl", String::as_str)
}

/// Sets the name of the program, once.
#[cfg(feature = "cli")]
pub(crate) fn set_program(name: &str) {
    let _ = PROGRAM.set(quoted(Path::new(name)));
}

/// Formats 1234567 as 1,234,567.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the nearest of `known` as a question, or nothing if none is near.
///
/// Without the program, and so without strsim, it is always nothing.
#[cfg(feature = "cli")]
pub(crate) fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let similarity = |name: &str| {
        // "learning_rate" is as near to "ppo.learning_rate" as to itself.
        let bare = name.rsplit('.').next().unwrap_or(name);
        strsim::jaro_winkler(text, name).max(strsim::jaro_winkler(text, bare))
    };
    let best = known.into_iter().map(|name| (similarity(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity > 0.8).map(|(_, name)| format!(" (did you mean \"{name}\"?)")).unwrap_or_default()
}

#[cfg(not(feature = "cli"))]
pub(crate) fn did_you_mean<'a>(_: &str, _: impl IntoIterator<Item = &'a str>) -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_commands_quote_paths_for_a_posix_shell() {
        for (path, expected) in [
            ("runs/cartpole-ppo-seed0-1", "runs/cartpole-ppo-seed0-1"),
            ("a b", "'a b'"),
            ("$(id)", "'$(id)'"),
            ("-dash", "./-dash"),
            ("- d", "'./- d'"),
            ("it's", r"'it'\''s'"),
            ("~x", "'~x'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }

    #[test]
    fn characters_that_steer_a_terminal_are_shown_and_lines_stay() {
        assert!(matches!(shown("a\n\tb \u{e9} \u{4e2d} \u{1f600} \\u001b"), Cow::Borrowed(_)));
        assert_eq!(shown("\x1b]0;title\x07\r\x08\0\x7f"), r"\u001b]0;title\u0007\u000d\u0008\u0000\u007f");
        assert_eq!(shown("\u{9b}31m\u{85} \u{202e}\u{2066}\u{200f} \u{ffff}"), r"\u009b31m\u0085 \u202e\u2066\u200f \uffff");
        let text = "a\x1b[2J\u{9b}\x7f\u{202e}\nb";
        let json = serde_json::to_string(text).unwrap();
        assert!(!shown(&json).contains(char::is_control));
        assert_eq!(serde_json::from_str::<String>(&shown(&json)).unwrap(), text);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
