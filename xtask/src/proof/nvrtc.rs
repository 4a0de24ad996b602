//! NVRTC, NVIDIA's runtime compiler: CUDA C++ to PTX without a toolkit or a GPU.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, Result, bail};
use libloading::Library;

/// Loaded NVRTC library.
pub(crate) struct Nvrtc {
    library: Library,
}

type Program = *mut c_void;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Create =
    unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

impl Nvrtc {
    /// Loads the library at `path`.
    #[allow(unsafe_code)]
    pub(crate) fn load(path: &Path) -> Result<Self> {
        // SAFETY: NVRTC's initialisers may run at any time.
        let library = unsafe { Library::new(path) }.with_context(|| path.display().to_string())?;
        Ok(Self { library })
    }

    #[allow(unsafe_code)]
    fn symbol<T: Copy>(&self, name: &str) -> Result<T> {
        // SAFETY: each caller passes the name and type of a function of nvrtc.h.
        Ok(*unsafe { self.library.get::<T>(name.as_bytes()) }.with_context(|| name.to_owned())?)
    }

    /// Returns the version, (major, minor).
    #[allow(unsafe_code)]
    pub(crate) fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: nvrtcVersion writes one number to each of two valid pointers.
        check("nvrtcVersion", unsafe { self.symbol::<Version>("nvrtcVersion")?(&raw mut major, &raw mut minor) })?;
        Ok((major, minor))
    }

    /// Compiles a source to PTX.
    #[allow(unsafe_code)]
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[&str]) -> Result<String> {
        let (name, source) = (CString::new(name)?, CString::new(source)?);
        let options = options.iter().map(|option| CString::new(*option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        let create = self.symbol::<Create>("nvrtcCreateProgram")?;
        // SAFETY: both texts end in 0 and outlive the program; the number of headers is 0.
        let created = unsafe { create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        check("nvrtcCreateProgram", created)?;
        let compile = self.symbol::<Compile>("nvrtcCompileProgram")?;
        // SAFETY: the program was created just above, and `options` holds `options.len()` pointers.
        let compiled = unsafe { compile(program, options.len() as c_int, options.as_ptr()) };
        let log = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        let text = if compiled == 0 { self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX") } else { Ok(String::new()) };
        // SAFETY: the program is not used afterwards.
        check("nvrtcDestroyProgram", unsafe { self.symbol::<Destroy>("nvrtcDestroyProgram")?(&raw mut program) })?;
        if compiled != 0 || !log.trim().is_empty() {
            bail!("NVRTC on {}:\n{log}", name.to_string_lossy());
        }
        text
    }

    #[allow(unsafe_code)]
    fn text(&self, program: Program, size: &str, text: &str) -> Result<String> {
        let mut len = 0;
        // SAFETY: the program exists, and `len` is a valid pointer.
        check(size, unsafe { self.symbol::<Size>(size)?(program, &raw mut len) })?;
        let mut bytes = vec![0u8; len.max(1)];
        // SAFETY: the buffer holds as many bytes as the library has reported.
        check(text, unsafe { self.symbol::<Text>(text)?(program, bytes.as_mut_ptr().cast()) })?;
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
        Ok(String::from_utf8(bytes)?)
    }
}

fn check(what: &str, result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { bail!("{what} failed with {result}") }
}
