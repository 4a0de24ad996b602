//! Kernels compiled by the host's C++ compiler, for tests without a GPU.
//!
//! A library is code, so what is loaded is what this user has compiled: directories belong to the user (or to root), no other
//! user may write to them, and a file that stays ends with the BLAKE3 hash of its library, which is checked before it is loaded.

use std::collections::HashMap;
use std::error::Error as _;
use std::ffi::{OsString, c_void};
use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, atomic};

use libloading::Library;

use crate::Error;
use crate::driver::args::Args;
use crate::driver::sources::{HEADERS, Module};

/// Entry point that runs all threads: blocks, threads per block, argument pointers.
type Run = unsafe extern "C" fn(u32, u32, *mut *mut c_void);

/// Kernel compiled for the host.
#[derive(Clone)]
pub(crate) struct HostKernel {
    run: Run,
    _library: Arc<Library>, // keeps `run` loaded
}

impl HostKernel {
    /// Runs the kernel on this thread.
    ///
    /// # Safety
    /// `args` point to values of the types of the kernel's parameters, and addresses among them point to enough memory for all
    /// threads.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn run(&self, blocks: u32, threads: u32, args: &mut [*mut c_void]) {
        // SAFETY: the caller guarantees the arguments, and the library stays loaded while `self` lives.
        unsafe { (self.run)(blocks, threads, args.as_mut_ptr()) };
    }
}

/// Libraries of this process by the text that they are compiled from.
///
/// They stay loaded. Each has its own lock, so that one text is compiled once, while others are.
type Libraries = Mutex<HashMap<String, Arc<Mutex<Option<Arc<Library>>>>>>;

static LIBRARIES: LazyLock<Libraries> = LazyLock::new(Mutex::default);

/// Variable with the directory in which libraries stay for other processes.
const KEPT: &str = "RL_EMULATED_KERNELS";

/// Header that the compiler includes before all others.
const BUILT_INS: &str = "cuda_on_host.h";

/// Kernels for the host.
pub(crate) struct Emulated {
    /// Texts that replace embedded source files, by file name.
    replaced: HashMap<String, String>,
    /// Libraries of this device by the address of their module's source.
    ///
    /// Finding the headers of a module takes as long as many launches.
    loaded: Mutex<HashMap<usize, Arc<Library>>>,
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulated").finish_non_exhaustive()
    }
}

impl Emulated {
    pub(crate) fn new(replaced: HashMap<String, String>) -> Result<Self, Error> {
        Compiler::find()?;
        Ok(Self { replaced, loaded: Mutex::default() })
    }

    /// Returns kernel `name` of `module`, compiling the module at first use.
    #[allow(unsafe_code)]
    pub(crate) fn function(&self, module: &Module, name: &str) -> Result<HostKernel, Error> {
        let library = self.library(module)?;
        // SAFETY: HOST_KERNEL in cuda_on_host.h gives every function with this prefix the type `Run`; `EnvKernels::of`
        // asks that of other modules.
        let symbol = unsafe { library.get::<Run>(format!("host_{name}").as_bytes()) };
        let run = *symbol.map_err(|_| Error::NoKernel { module: module.name, kernel: name.into() })?;
        Ok(HostKernel { run, _library: library })
    }

    /// Returns the library of `module`, compiling it at first use.
    pub(crate) fn library(&self, module: &Module) -> Result<Arc<Library>, Error> {
        let loaded = || self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let source = module.source.as_ptr().addr();
        if let Some(library) = loaded().get(&source) {
            return Ok(library.clone());
        }
        let library = self.load(module)?;
        loaded().insert(source, library.clone());
        Ok(library)
    }

    /// Returns the library of `module`, which a process compiles once.
    fn load(&self, module: &Module) -> Result<Arc<Library>, Error> {
        let files = self.files(module);
        let text: String = files.iter().flat_map(|(name, text)| [name.as_str(), "\n", text, "\n"]).collect();
        let library = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner).entry(text.clone()).or_default().clone();
        let mut library = library.lock().unwrap_or_else(PoisonError::into_inner);
        match &*library {
            Some(library) => Ok(library.clone()),
            None => {
                let compiler = Compiler::find()?;
                let dir = kept_dir(std::env::var_os(KEPT))?;
                let kept = dir.map(|dir| dir.join(compiler.file_name(module.name, &text)));
                Ok(library.insert(Arc::new(compiler.load(kept.as_deref(), module.name, &files)?)).clone())
            }
        }
    }

    /// Returns the file of `module` and all headers that it includes: (name, text).
    fn files<'a>(&'a self, module: &'a Module) -> Vec<(String, &'a str)> {
        let file = |name: String, text: &'a str| (name.clone(), self.replaced.get(&name).map_or(text, String::as_str));
        let mut files = vec![file(format!("{}.cu", module.name), module.source)];
        loop {
            let is_in = |name: &str, text: &str| text.contains(&format!("\"{name}\""));
            let included = |name: &str| name == BUILT_INS || files.iter().any(|(_, text)| is_in(name, text));
            let missing = |(name, _): &&(&str, &str)| included(name) && files.iter().all(|(known, _)| known != name);
            match HEADERS.iter().find(missing) {
                Some((name, text)) => files.push(file((*name).into(), text)),
                None => return files,
            }
        }
    }
}

/// Returns the directory in which libraries stay, made for this user alone.
///
/// `None` if `given` is unset or empty, or cannot be made.
///
/// # Errors
/// [`Error::Emulation`] if others own it or may write to it.
fn kept_dir(given: Option<OsString>) -> Result<Option<PathBuf>, Error> {
    let given = given.filter(|dir| !dir.is_empty()).map(PathBuf::from);
    // Absolute: a library with a bare name would be searched for.
    let made = given.and_then(|dir| private_dir(&dir, true).and_then(|()| dir.canonicalize()).ok());
    let Some(dir) = made else { return Ok(None) };
    let found = fs::metadata(&dir).map_err(|error| failed(&dir, error))?;
    if is_ours(&found) {
        return Ok(Some(dir));
    }
    let why = "others own it or may write to it, and what lies there is executed; `chmod go-w` it, or set another directory";
    Err(Error::Emulation(format!("{KEPT}: {}: {why}", dir.display())))
}

/// Makes a directory that only this user may enter.
///
/// With `all`, its parents too, and one that exists is left as it is.
fn private_dir(dir: &Path, all: bool) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(all).create(dir)
}

/// True if only this user, or root, can change a file.
fn is_ours(found: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        [0, rustix::process::geteuid().as_raw()].contains(&found.uid()) && found.mode() & 0o022 == 0
    }
    #[cfg(not(unix))]
    true
}

/// True if the file at `path` is a library of this user, as it was written.
fn is_intact(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && is_ours(&found));
    let bytes = if is_file { fs::read(path).unwrap_or_default() } else { Vec::new() };
    bytes.split_last_chunk().is_some_and(|(library, hash)| blake3::hash(library) == *hash)
}

/// Moves a library to `kept`, with its hash, whole or not at all.
fn keep(library: &Path, kept: &Path) -> std::io::Result<()> {
    let hash = blake3::hash(&fs::read(library)?);
    // A loader reads what the headers name, and nothing behind it.
    let mut file = File::options().append(true).open(library)?;
    file.write_all(hash.as_bytes())?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.sync_all()?;
    fs::rename(library, kept)?;
    let dir = kept.parent().unwrap_or(kept);
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// C++ compiler of the host.
struct Compiler {
    command: OsString,
    version: Vec<u8>,
    flags: Vec<&'static str>,
}

impl Compiler {
    /// Finds `CXX`, or the first of the usual names that runs.
    fn find() -> Result<Self, Error> {
        // Without contraction, so that each operation rounds once.
        let mut flags =
            vec!["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden", "-fPIC", "-shared"];
        // Without the instruction, a fused multiply-add of the learner's kernels is a slow function with the same result.
        #[cfg(target_arch = "x86_64")]
        let has_flag = std::arch::is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let has_flag = false;
        flags.extend(has_flag.then_some("-mfma"));
        let names = std::env::var_os("CXX").into_iter().chain(["c++", "g++", "clang++"].map(OsString::from));
        for command in names {
            match Command::new(&command).arg("--version").output() {
                Ok(output) if output.status.success() => return Ok(Self { command, version: output.stdout, flags }),
                _ => {}
            }
        }
        Err(Error::Emulation("no C++ compiler: install g++ or set CXX".into()))
    }

    /// Returns the name of the file in which the library of a text stays.
    fn file_name(&self, module: &str, text: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let flags = self.flags.join(" ");
        for part in [self.command.as_encoded_bytes(), &self.version, flags.as_bytes(), std::env::consts::ARCH.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        format!("{module}-{}.so", hasher.update(text.as_bytes()).finalize())
    }

    /// Loads the library of these files, compiled unless `kept` is one.
    fn load(&self, kept: Option<&Path>, module: &str, files: &[(String, &str)]) -> Result<Library, Error> {
        let Some(kept) = kept else { return self.compile(&std::env::temp_dir(), module, files, open) };
        if !is_intact(kept) {
            let parent = kept.parent().unwrap_or(kept);
            self.compile(parent, module, files, |path| keep(path, kept).map_err(|error| failed(path, error)))?;
        }
        open(kept)
    }

    /// Compiles files below `parent`, and hands the library's path to `then`.
    fn compile<T>(
        &self,
        parent: &Path,
        module: &str,
        files: &[(String, &str)],
        then: impl FnOnce(&Path) -> Result<T, Error>,
    ) -> Result<T, Error> {
        static COUNT: atomic::AtomicU32 = atomic::AtomicU32::new(0);
        let dir = loop {
            let count = COUNT.fetch_add(1, atomic::Ordering::Relaxed);
            let dir = std::path::absolute(parent).map_err(|error| failed(parent, error))?;
            let dir = dir.join(format!("rl-cuda-{}-{count}", std::process::id()));
            match private_dir(&dir, false) {
                Ok(()) => break dir,
                // Left by a process that was killed, and had the same number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&dir, error)),
            }
        };
        let written = files.iter().try_for_each(|(name, text)| fs::write(dir.join(name), text));
        let result = written.map_err(|error| failed(&dir, error)).and_then(|()| self.run(&dir, module));
        let result = result.and_then(|()| then(&dir.join(LIBRARY)));
        // A loaded library no longer needs its file, and a kept one has been moved.
        fs::remove_dir_all(&dir).map_err(|error| failed(&dir, error))?;
        result
    }

    fn run(&self, dir: &Path, module: &str) -> Result<(), Error> {
        let mut command = Command::new(&self.command);
        command.current_dir(dir).args(&self.flags).args(["-x", "c++", "-include", BUILT_INS, "-o", LIBRARY]);
        let output = command.arg(format!("{module}.cu")).output().map_err(|error| failed(dir, error))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Emulation(format!("{module}.cu does not compile:\n{}", String::from_utf8_lossy(&output.stderr))))
    }
}

/// File name of a library while it is compiled.
const LIBRARY: &str = "kernels.so";

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::Emulation(format!("{}: {error}", path.display()))
}

#[allow(unsafe_code)]
fn open(path: &Path) -> Result<Library, Error> {
    // SAFETY: the library has no initialisers of its own, which `EnvKernels::of` asks of other modules.
    unsafe { Library::new(path) }.map_err(|error| {
        let why = error.source().map_or_else(String::new, |why| format!(": {why}"));
        Error::Emulation(format!("{}: {error}{why}", path.display()))
    })
}

/// Work of an emulated device.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "most work is a launch, and a box would be an allocation per launch")]
pub(crate) enum Work {
    /// Launch of a kernel.
    Launch { function: HostKernel, blocks: u32, threads: u32, args: Args },
    /// Copy within the device, between addresses that a stream has checked.
    Copy { to: u64, from: u64, bytes: usize },
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch { blocks, threads, .. } => {
                f.debug_struct("Launch").field("blocks", blocks).field("threads", threads).finish_non_exhaustive()
            }
            Self::Copy { bytes, .. } => f.debug_struct("Copy").field("bytes", bytes).finish_non_exhaustive(),
        }
    }
}

impl Work {
    /// Runs the work.
    #[allow(unsafe_code)]
    pub(crate) fn run(&mut self) {
        match self {
            Self::Launch { function, blocks, threads, args } => {
                let (mut pointers, len) = (args.pointers(), args.len);
                // SAFETY: the caller of `Kernel::launch` guaranteed the arguments and their memory.
                unsafe { function.run(*blocks, *threads, &mut pointers[..len]) };
            }
            &mut Self::Copy { to, from, bytes } => {
                // SAFETY: `Stream::copy` got both places as views of this length, one of them exclusive. Their memory is there: a
                // graph keeps all memory of its device.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sources;

    fn has_compiler() -> bool {
        let found = Compiler::find();
        let required = std::env::var_os("RL_REQUIRE_CXX").is_some_and(|value| value == "1");
        assert!(found.is_ok() || !required, "RL_REQUIRE_CXX=1, but {}", found.err().unwrap());
        found.is_ok()
    }

    #[test]
    fn a_kept_library_is_loaded_in_place_of_a_new_one_and_replaced_if_a_byte_of_it_differs() {
        if !has_compiler() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("rl-cuda-kept-{}", std::process::id()));
        private_dir(&dir, false).unwrap();
        let (emulated, module, kept) = (Emulated::new(HashMap::new()).unwrap(), sources::module("gae"), dir.join("gae.so"));
        let load = || {
            let library = Compiler::find().unwrap().load(Some(&kept), module.name, &emulated.files(module));
            drop(library.unwrap());
            fs::metadata(&kept).unwrap().modified().unwrap()
        };
        let first = load();
        assert_eq!(load(), first, "compiled again");
        let whole = fs::read(&kept).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let half = whole.len() / 2;
        for bytes in
            [b"no library".to_vec(), Vec::new(), whole[..half].to_vec(), flipped(half), flipped(0), flipped(whole.len() - 1)]
        {
            // Another file: a loaded one must not change.
            fs::remove_file(&kept).unwrap();
            fs::write(&kept, &bytes).unwrap();
            load();
            assert!(fs::read(&kept).unwrap() != bytes && is_intact(&kept));
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "a directory is left");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_of_libraries_belongs_to_the_user_alone() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let dir = std::env::temp_dir().join(format!("rl-cuda-private-{}", std::process::id()));
        private_dir(&dir, false).unwrap();
        let kept = |name: &str| kept_dir(Some(dir.join(name).into()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let new = kept("a/new").unwrap().unwrap();
        assert_eq!((mode(&dir), mode(&new)), (0o700, 0o700));
        assert!(kept_dir(None).unwrap().is_none() && kept_dir(Some(OsString::new())).unwrap().is_none());
        let relative = kept_dir(Some("../target".into())).unwrap().unwrap();
        assert!(relative.is_absolute(), "{}", relative.display());

        fs::write(dir.join("file"), "").unwrap();
        symlink("/nowhere/at/all", dir.join("dangling")).unwrap();
        for name in ["file", "dangling"] {
            assert!(kept(name).unwrap().is_none(), "{name}");
        }
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&new, PermissionsExt::from_mode(mode)).unwrap();
            let error = kept("a/new").unwrap_err().to_string();
            assert!(error.contains("others own it or may write to it"), "{mode:o}: {error}");
        }
        fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).unwrap();
        kept("a/new").unwrap();
        // Root alone can give a directory away.
        if rustix::process::geteuid().is_root() {
            chown(&new, Some(65_534), None).unwrap();
            assert!(kept("a/new").is_err());
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_library_that_cannot_be_loaded_says_why() {
        let path = std::env::temp_dir().join(format!("rl-cuda-text-{}.so", std::process::id()));
        fs::write(&path, "a text").unwrap();
        let error = open(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(error.contains("file too short") || error.contains("invalid ELF header"), "{error}");
    }

    #[test]
    fn devices_share_the_libraries_of_the_same_text() {
        if !has_compiler() {
            return;
        }
        let (name, text) = sources::HEADERS.iter().find(|(name, _)| *name == "activation.cuh").unwrap();
        let changed = HashMap::from([((*name).to_owned(), format!("{text}// changed"))]);
        let [plain, changed] = [HashMap::new(), changed].map(|replaced| Emulated::new(replaced).unwrap());
        for (module, shared) in [("gae", true), ("dense", false)] {
            let [a, b] = [&plain, &changed].map(|emulated| emulated.library(sources::module(module)).unwrap());
            assert_eq!(Arc::ptr_eq(&a, &b), shared, "{module}");
        }
    }
}
