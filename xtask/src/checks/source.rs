//! Source files of the workspace, read as text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A source file.
pub(crate) struct Source {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn crate_name(&self) -> &str {
        let end = if self.path.starts_with("xtask/standin/") { "xtask/standin".len() } else { self.path.find('/').unwrap_or(0) };
        &self.path[..end]
    }

    /// The lines before the test module, with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let modules = self.text.match_indices("#[cfg(test)]\nmod ").map(|(i, _)| i);
        let has_body = |i: &usize| self.text[*i..].lines().nth(1).is_some_and(|line| line.ends_with('{') || line.ends_with('}'));
        let end = modules.into_iter().find(has_body).unwrap_or(self.text.len());
        self.text[..end].lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    /// The same lines without comments.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().map(|(i, line)| (i, line.split("//").next().unwrap_or_default()))
    }
}

/// True if `line` contains `word` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(i, _)| {
        !line[..i].chars().next_back().is_some_and(part_of_word)
            && !line[i + word.len()..].chars().next().is_some_and(part_of_word)
    })
}

/// The Rust files in a folder of the workspace, with their texts.
pub(crate) fn read_sources(root: &Path, folder: &str) -> Result<Vec<Source>> {
    let read = |file: PathBuf| {
        let path = file.strip_prefix(root)?.display().to_string();
        Ok(Source { text: fs::read_to_string(&file).with_context(|| path.clone())?, path })
    };
    sources(&root.join(folder))?.into_iter().map(read).collect()
}

/// The Rust files in a folder and its folders, in order; none if it is absent.
fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !dir.exists() {
        return Ok(found);
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
