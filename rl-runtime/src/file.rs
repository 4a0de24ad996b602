//! Files that are complete or absent, and the one way to open a file.
//!
//! A [`Draft`] is checked before any work and published when the work is done: it is written beside its target under a unique
//! name, synced, and renamed. Until then nothing on disk changes.
//!
//! Files are regular files, so that no read or write waits for another process or never ends. A path that the user names may
//! lead through symbolic links ([`Draft::create`], [`read_small`]). The program's own files, whose names it chooses inside a
//! directory, such as `lock` or `metrics.csv` in a run's, are never links (`Draft::own`): the directory may be somebody
//! else's, and a link in it would lead the program to any file of the user's.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
#[cfg(unix)]
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::Error;

/// Largest configuration file.
pub(crate) const MAX_FILE: u64 = 1 << 20;

/// Maximum length of a chain of symbolic links, as in Linux.
const MAX_LINKS: usize = 40;

/// File to be written; dropping it before [`Draft::publish`] changes nothing.
#[derive(Debug)]
pub struct Draft {
    target: PathBuf,
}

impl Draft {
    /// Checks that `path` can be created, or replaced if it is a regular file.
    ///
    /// Symbolic links are followed; the target of a dangling link is created.
    ///
    /// # Errors
    /// [`Error::Config`] if `path` is a directory, a device, a FIFO or a socket; [`Error::Io`] if it is read-only or its
    /// directory accepts no new file.
    pub fn create(path: &Path) -> Result<Self, Error> {
        // Some files, such as the pipe behind /dev/stdout, have no path to resolve.
        let found = fs::metadata(path).map_or(Ok(()), |found| regular(&found));
        found.and_then(|()| resolve(path)).and_then(Self::at).map_err(refused(path, "; name another file"))
    }

    /// Checks that the program's own file at `path` can be created or replaced.
    ///
    /// # Errors
    /// Errors of [`Draft::create`]; [`Error::Config`] also if `path` is a symbolic link.
    pub(crate) fn own(path: &Path) -> Result<Self, Error> {
        in_parent(path).and_then(Self::at).map_err(refused(path, "; remove it"))
    }

    /// Checks that `target`, which is no link, can be created or replaced.
    fn at(target: PathBuf) -> io::Result<Self> {
        check(&target)?;
        // Only an attempt tests permissions, quotas and read-only file systems reliably.
        let (draft, _) = beside(&target)?;
        fs::remove_file(draft)?;
        Ok(Self { target })
    }

    /// Returns the absolute path of the file, without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes the file, keeping permissions and, if possible, owner of a replaced file.
    ///
    /// # Errors
    /// [`Error::Io`]; an older file is then unchanged, and nothing is left behind.
    pub fn publish(self, bytes: &[u8]) -> Result<(), Error> {
        self.publish_with(|file| file.write_all(bytes).map_err(Error::io(&self.target)))
    }

    /// Writes the file by `write`, as [`Draft::publish`] does.
    ///
    /// # Errors
    /// Those of `write`, and [`Error::Io`]; an older file is then unchanged, and nothing is left behind.
    pub(crate) fn publish_with(&self, write: impl FnOnce(&mut File) -> Result<(), Error>) -> Result<(), Error> {
        let io = || Error::io(&self.target);
        let (old, (draft, mut file)) = check(&self.target).and_then(|old| Ok((old, beside(&self.target)?))).map_err(io())?;
        let finish = |file: &File| {
            if let Some(old) = &old {
                keep_owner(file, old);
                file.set_permissions(old.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&draft, &self.target)
        };
        let written = write(&mut file).and_then(|()| finish(&file).map_err(io()));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written?;
        sync_dir(self.target.parent().unwrap_or(Path::new("/"))).map_err(io())
    }
}

/// Writes one of the program's own files completely or not at all.
///
/// # Errors
/// The errors of [`Draft::own`] and [`Draft::publish`].
pub(crate) fn write_own(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    Draft::own(path)?.publish(bytes)
}

/// Opens a regular file that the user has named; returns its size, too.
///
/// # Errors
/// The error of the system; [`ErrorKind::Other`] if the file is not a regular one.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    regular(&fs::metadata(path)?)?;
    let mut options = File::options();
    #[cfg(unix)]
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = options.read(true).open(path)?;
    let found = file.metadata()?;
    regular(&found)?;
    Ok((file, found.len()))
}

/// Opens one of the program's own files with the options that `set` sets.
///
/// # Errors
/// The error of the system; [`ErrorKind::Other`] if the file is a symbolic link, or not a regular file.
pub(crate) fn own(path: &Path, set: impl FnOnce(&mut OpenOptions) -> &mut OpenOptions) -> io::Result<File> {
    // Looked at before it is opened, too: opening a device may already have an effect.
    match fs::symlink_metadata(path) {
        Ok(found) => regular(&found)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = File::options();
    #[cfg(unix)]
    options.custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32);
    let file = set(&mut options).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Returns true if there is one of the program's own directories at `path`.
///
/// # Errors
/// The error of the system; [`ErrorKind::Other`] if it is a symbolic link or any other file.
pub(crate) fn own_dir(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(found) => Err(io::Error::other(format!("is {}, not a directory", kind(&found)))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Copies one of the program's own files to a new one.
pub(crate) fn copy_own(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = own(from, |options| options.read(true))?;
    let mut to = File::create_new(to)?;
    io::copy(&mut from, &mut to)?;
    to.sync_all()
}

/// Reads a text file of at most `limit` bytes that the user has named.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Config`] if it is not a regular file, larger, or not UTF-8.
pub fn read_small(path: &Path, limit: u64) -> Result<String, Error> {
    text(open(path).map(|(file, _)| file), path, limit)
}

/// Reads one of the program's own text files, of at most `limit` bytes.
///
/// # Errors
/// Errors of [`read_small`]; [`Error::Config`] also if it is a symbolic link.
pub(crate) fn read_own(path: &Path, limit: u64) -> Result<String, Error> {
    text(own(path, |options| options.read(true)), path, limit)
}

/// Reads a file as text.
fn text(opened: io::Result<File>, path: &Path, limit: u64) -> Result<String, Error> {
    let bad = |why: String| Error::config(format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    opened.and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(refused(path, ""))?;
    if bytes.len() as u64 > limit {
        return Err(bad(format!("is larger than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| bad(format!("is not UTF-8 text ({})", error.utf8_error())))
}

/// Returns a closure that adds the path to an error.
///
/// `advice` follows where this module has refused the file.
pub(crate) fn refused(path: &Path, advice: &str) -> impl FnOnce(io::Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::Other => Error::config(format!("{}: {error}{advice}", path.display())),
        _ => Error::io(path)(error),
    }
}

/// Makes the names in a directory durable, on Unix; elsewhere the rename has to do.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Follows the symbolic links at `path`, where the directory must exist.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let target = in_parent(&path)?;
        match fs::read_link(&target) {
            Ok(link) => path = target.with_file_name(link),
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Follows the symbolic links of the parent of `path` alone.
fn in_parent(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("has no file name"))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(parent)?.join(name))
}

/// Checks that the file at `target`, if any, may be replaced, and returns it.
fn check(target: &Path) -> io::Result<Option<Metadata>> {
    let found = match fs::symlink_metadata(target) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    regular(&found)?;
    if found.permissions().readonly() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    // Fails for an immutable file; writes nothing.
    own(target, |options| options.write(true))?;
    Ok(Some(found))
}

/// Rejects everything except regular files.
fn regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() { Ok(()) } else { Err(io::Error::other(format!("is {}, not a regular file", kind(found)))) }
}

/// Returns the kind of a file, in words.
fn kind(found: &Metadata) -> &'static str {
    match found.file_type() {
        kind if kind.is_file() => "a regular file",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        #[cfg(unix)]
        kind if kind.is_fifo() => "a FIFO",
        #[cfg(unix)]
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Creates a new file beside `target` under a unique name.
fn beside(target: &Path) -> io::Result<(PathBuf, File)> {
    let name = target.file_name().filter(|name| name.len() <= 200).unwrap_or("rl".as_ref());
    for number in 0.. {
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}-{number}.tmp", std::process::id()));
        let path = target.with_file_name(draft);
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("one of all numbers is free")
}

/// Returns true if `name` is a draft of `target`, left behind by a killed process.
pub(crate) fn is_draft_of(name: &str, target: &str) -> bool {
    name.strip_prefix('.').and_then(|rest| rest.strip_prefix(target)).is_some_and(|rest| {
        let middle = rest.strip_prefix('.').and_then(|rest| rest.strip_suffix(".tmp"));
        middle.is_some_and(|numbers| numbers.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
    })
}

/// Copies the owner of another file, if the process is privileged.
fn keep_owner(file: &File, old: &Metadata) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let _ = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
        Draft::create(path)?.publish(bytes)
    }

    fn refusal(path: &Path) -> String {
        Draft::create(path).unwrap_err().to_string()
    }

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_draft_changes_nothing_until_it_is_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        fs::write(&path, "old").unwrap();
        fs::write(dir.path().join("t.part"), "precious").unwrap();
        let draft = Draft::create(&path).unwrap();
        assert_eq!((fs::read(&path).unwrap(), entries(dir.path())), (b"old".to_vec(), 2));
        drop(draft);
        assert_eq!((fs::read(&path).unwrap(), entries(dir.path())), (b"old".to_vec(), 2));
        write_whole(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), entries(dir.path())), (b"new".to_vec(), 2));
        assert_eq!(fs::read(dir.path().join("t.part")).unwrap(), b"precious");
        write_whole(&dir.path().join("x".repeat(255)), b"a long name").unwrap();
    }

    #[test]
    fn a_name_that_is_taken_is_not_used_for_a_draft() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join(format!(".t.{}-0.tmp", std::process::id()));
        fs::write(&taken, "precious").unwrap();
        write_whole(&dir.path().join("t"), b"new").unwrap();
        assert_eq!((fs::read(&taken).unwrap(), entries(dir.path())), (b"precious".to_vec(), 2));
        assert!(is_draft_of(taken.file_name().unwrap().to_str().unwrap(), "t"));
        assert!(!is_draft_of(".t.json.tmp", "t") && !is_draft_of("t.1-0.tmp", "t"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_what_is_no_regular_file_is_refused() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/target"), "old").unwrap();
        fs::set_permissions(path("d/target"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("d/target", path("link")).unwrap();
        symlink("link", path("second")).unwrap();
        symlink("d/absent", path("dangling")).unwrap();
        symlink("loop", path("loop")).unwrap();
        write_whole(&path("second"), b"new").unwrap();
        assert_eq!(fs::read(path("d/target")).unwrap(), b"new");
        assert_eq!(fs::metadata(path("d/target")).unwrap().permissions().mode() & 0o777, 0o640);
        write_whole(&path("dangling"), b"made").unwrap();
        assert_eq!(fs::read(path("d/absent")).unwrap(), b"made");
        assert!(["link", "second", "dangling"].iter().all(|link| path(link).is_symlink()));

        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        symlink("fifo", path("to-fifo")).unwrap();
        for (name, message) in [
            ("d", "d: is a directory, not a regular file; name another file"),
            ("socket", "is a socket"),
            ("fifo", "is a FIFO"),
            ("to-fifo", "is a FIFO"),
            ("loop", "too many symbolic links"),
            ("d/..", "is a directory"),
            ("nowhere/..", "has no file name; name another file"),
            ("nowhere/t", "No such file or directory"),
            ("d/target/t", "Not a directory"),
        ] {
            assert!(refusal(&path(name)).contains(message), "{name}: {}", refusal(&path(name)));
        }
        fs::set_permissions(path("d/target"), fs::Permissions::from_mode(0o440)).unwrap();
        assert!(refusal(&path("link")).contains("permission denied"));
        assert_eq!((entries(dir.path()), entries(&path("d"))), (8, 2), "nothing is left over");
    }

    #[cfg(unix)]
    #[test]
    fn a_name_that_the_program_has_chosen_is_a_regular_file_and_no_link() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("run")).unwrap();
        fs::write(path("precious"), "precious").unwrap();
        symlink("../precious", path("run/link")).unwrap();
        symlink("../absent", path("run/dangling")).unwrap();
        symlink("/dev/zero", path("run/zeros")).unwrap();
        symlink("run", path("linked")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("run/fifo")).status().unwrap().success());
        for (name, what) in
            [("link", "a symbolic link"), ("dangling", "a symbolic link"), ("zeros", "a symbolic link"), ("fifo", "a FIFO")]
        {
            let path = path("run").join(name);
            let said = format!("{name}: is {what}, not a regular file");
            let opened = [
                own(&path, |options| options.read(true)),
                own(&path, |options| options.append(true).create(true)),
                own(&path, |options| options.write(true).create(true).truncate(true)),
            ];
            let mut errors: Vec<Error> = opened.into_iter().map(|opened| refused(&path, "")(opened.unwrap_err())).collect();
            errors.extend([read_own(&path, 100).unwrap_err(), write_own(&path, b"new").unwrap_err()]);
            for error in errors {
                assert!(error.exit_code() == 2 && error.to_string().contains(&said), "{name}: {error}");
            }
            assert!(copy_own(&path, &dir.path().join(format!("copy of {name}"))).is_err());
        }
        assert!(own_dir(&path("linked")).unwrap_err().to_string().contains("is a symbolic link, not a directory"));
        assert!(own_dir(&path("run")).unwrap() && !own_dir(&path("run/nothing")).unwrap());
        assert!(!path("absent").exists() && fs::read(path("precious")).unwrap() == b"precious");
        // The directory itself may be a link.
        write_own(&path("linked/new"), b"text").unwrap();
        assert_eq!(
            (read_own(&path("linked/new"), 4).unwrap(), fs::read(path("run/new")).unwrap()),
            ("text".into(), b"text".into())
        );
        assert!(read_own(&path("run/new"), 3).unwrap_err().to_string().contains("new: is larger than 3 bytes"));
    }
}
