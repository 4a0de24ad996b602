//! Kernels compiled by the host's C++ compiler, for tests without a GPU.

use std::collections::HashMap;
use std::ffi::{OsString, c_void};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, atomic};

use libloading::Library;

use crate::Error;
use crate::args::Args;
use crate::sources::{HEADERS, Module};

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

/// Host compiler with its compiled modules.
pub(crate) struct Emulated {
    /// Texts that replace embedded source files, by file name.
    replaced: HashMap<String, String>,
    /// Modules that are compiled, by their source.
    libraries: Mutex<HashMap<&'static str, Arc<Library>>>,
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulated").finish_non_exhaustive()
    }
}

impl Emulated {
    pub(crate) fn new(replaced: HashMap<String, String>) -> Result<Self, Error> {
        compiler()?;
        Ok(Self { replaced, libraries: Mutex::default() })
    }

    /// Returns kernel `name` of `module`, compiling the module at first use.
    #[allow(unsafe_code)]
    pub(crate) fn function(&self, module: &Module, name: &str) -> Result<HostKernel, Error> {
        let library = self.library(module)?;
        // SAFETY: HOST_KERNEL in cuda_on_host.h gives every function with this prefix the type `Run`; `CudaVecEnv::with_kernels`
        // asks that of other modules.
        let symbol = unsafe { library.get::<Run>(format!("host_{name}").as_bytes()) };
        let run = *symbol.map_err(|_| Error::NoKernel { module: module.name, kernel: name.into() })?;
        Ok(HostKernel { run, _library: library })
    }

    /// Returns the library of `module`, compiling it at first use.
    pub(crate) fn library(&self, module: &Module) -> Result<Arc<Library>, Error> {
        let mut libraries = self.libraries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = libraries.get(module.source) {
            return Ok(library.clone());
        }
        let library = Arc::new(self.compile(module)?);
        libraries.insert(module.source, library.clone());
        Ok(library)
    }

    /// Compiles a module into a library and loads it.
    #[allow(unsafe_code)]
    fn compile(&self, module: &Module) -> Result<Library, Error> {
        static COUNT: atomic::AtomicU32 = atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rl-cuda-{}-{count}", std::process::id()));
        let failed = |what: String| Error::Emulation(format!("{}: {what}", dir.display()));
        std::fs::create_dir(&dir).map_err(|error| failed(error.to_string()))?;
        let mut files = vec![(format!("{}.cu", module.name), module.source)];
        files.extend(HEADERS.iter().map(|(name, text)| ((*name).to_owned(), *text)));
        let library = files.iter().try_for_each(|(name, text)| {
            let text = self.replaced.get(name).map_or(*text, String::as_str);
            std::fs::write(dir.join(name), text).map_err(|error| failed(error.to_string()))
        });
        let library = library.and_then(|()| compile(&dir, module.name)).and_then(|()| {
            // SAFETY: the library has no initialisers of its own, which `CudaVecEnv::with_kernels` asks of other modules.
            unsafe { Library::new(dir.join("kernels.so")) }.map_err(|error| failed(error.to_string()))
        });
        // A loaded library no longer needs its file.
        std::fs::remove_dir_all(&dir).map_err(|error| failed(error.to_string()))?;
        library
    }
}

/// Returns `CXX`, or the first of the usual names that runs.
fn compiler() -> Result<OsString, Error> {
    let mut names: Vec<OsString> = std::env::var_os("CXX").into_iter().collect();
    names.extend(["c++", "g++", "clang++"].map(OsString::from));
    let runs = |name: &OsString| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    names.into_iter().find(runs).ok_or_else(|| Error::Emulation("no C++ compiler: install g++ or set CXX".into()))
}

/// Compiles a module without contraction, so that each operation rounds once.
fn compile(dir: &Path, module: &str) -> Result<(), Error> {
    const FLAGS: [&str; 7] =
        ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden", "-fPIC", "-shared"];
    // Without the instruction, a fused multiply-add of the learner's kernels is a slow function with the same result.
    #[cfg(target_arch = "x86_64")]
    let fused: &[&str] = if std::arch::is_x86_feature_detected!("fma") { &["-mfma"] } else { &[] };
    #[cfg(not(target_arch = "x86_64"))]
    let fused: &[&str] = &[];
    let mut command = Command::new(compiler()?);
    command.current_dir(dir).args(FLAGS).args(fused).args(["-x", "c++", "-include", "cuda_on_host.h", "-o", "kernels.so"]);
    let output = command.arg(format!("{module}.cu")).output().map_err(|error| Error::Emulation(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Emulation(format!("{module}.cu does not compile:\n{}", String::from_utf8_lossy(&output.stderr))))
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
                // SAFETY: `Stream::copy` got both places as views of this length, one of them exclusive. Their memory is there: a graph
                // keeps all memory of its device.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
            }
        }
    }
}
