//! Finding and opening a device.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaModule, sys};
use cudarc::nvrtc::Ptx;

use crate::emulated::Emulated;
use crate::error::said;
use crate::kernel::{Function, Kernel};
use crate::{Error, Stream, sources};

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Driver,
    name: String,
    capability: (i32, i32),
}

/// What runs kernels.
#[derive(Debug)]
pub(crate) enum Driver {
    /// A GPU.
    Cuda { context: Arc<CudaContext>, modules: Mutex<HashMap<&'static str, Arc<CudaModule>>> },
    /// The host, with kernels that its C++ compiler compiled.
    Emulated(Emulated),
}

impl Device {
    /// Opens device `ordinal`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::NoSuchDevice`], or [`Error::Driver`] if the driver refuses.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        probe_driver()?;
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            Err(error) => return Err(Error::driver("counting devices")(error)),
        };
        if count == 0 {
            return Err(Error::NoDevice);
        }
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(Error::driver("opening the device"))?;
        let name = context.name().map_err(Error::driver("asking for the device's name"))?;
        let capability = context.compute_capability().map_err(Error::driver("asking for the device's capability"))?;
        let driver = Driver::Cuda { context, modules: Mutex::default() };
        Ok(Self { inner: Arc::new(Inner { driver, name, capability }) })
    }

    /// A device that is the host: the same kernels, compiled by its C++ compiler, their threads one after the other. Slow; for
    /// tests on machines without a GPU, of these kernels and of whatever uses them.
    ///
    /// # Errors
    /// [`Error::Emulation`] without a C++ compiler.
    pub fn emulated() -> Result<Self, Error> {
        Self::emulated_with(HashMap::new())
    }

    /// The same with other texts for some of the kernels' source files, by file name: how a test shows that it would notice.
    ///
    /// # Errors
    /// [`Error::Emulation`] without a C++ compiler.
    pub fn emulated_with(replaced: HashMap<String, String>) -> Result<Self, Error> {
        Emulated::new(replaced).map(Self::new_emulated)
    }

    fn new_emulated(emulated: Emulated) -> Self {
        Self { inner: Arc::new(Inner { driver: Driver::Emulated(emulated), name: "the host".into(), capability: (0, 0) }) }
    }

    /// What there is to test with: the emulated device, unless `RL_SKIP_CXX` is 1, and a GPU. What is missing is said on standard error;
    /// it is refused if `RL_REQUIRE_CXX` or `RL_REQUIRE_GPU` is 1.
    ///
    /// # Panics
    /// If something is missing that is required.
    #[must_use]
    pub fn for_tests() -> Vec<Self> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
        let mut devices = Vec::new();
        let mut add = |device: Result<Self, Error>, what: &str, required: &str| match device {
            Ok(device) => devices.push(device),
            Err(error) => {
                assert!(!is_set(required), "{required}=1, but {error}");
                eprintln!("SKIPPED: kernels {what} were not compared with Rust: {error}");
            }
        };
        if !is_set("RL_SKIP_CXX") {
            add(Self::emulated(), "compiled for the host", "RL_REQUIRE_CXX");
        }
        add(Self::open(0), "on a GPU", "RL_REQUIRE_GPU");
        devices
    }

    /// Puts mistakes, `(what stands there, what is put in its place)`, into a source file of kernels, one at a time, and returns those
    /// that `compare`, which panics if it notices, has not noticed: a comparison that notices none would prove nothing. Skipped
    /// without a C++ compiler, as in [`Device::for_tests`].
    ///
    /// # Panics
    /// If there is no such file, it does not hold what a mistake is put in the place of, a mistake does not compile, or a compiler is
    /// missing that is required.
    pub fn unnoticed<'a>(file: &str, mistakes: &[[&'a str; 2]], compare: impl Fn(&Self)) -> Vec<[&'a str; 2]> {
        if Self::emulated().is_err() {
            let _ = Self::for_tests(); // says what is missing, or refuses it
            return Vec::new();
        }
        let (text, module) = sources::text(file);
        let goes_unnoticed = |[original, mistake]: &[&str; 2]| {
            assert!(text.contains(original), "{file} no longer has {original:?}");
            let replaced = HashMap::from([(file.to_owned(), text.replace(original, mistake))]);
            let emulated = Emulated::new(replaced).expect("there is a compiler");
            emulated.library(module).unwrap_or_else(|error| panic!("{mistake:?}: {error}"));
            let device = Self::new_emulated(emulated);
            // The guards behind an emulated device's memory panic, too, where a kernel writes beyond it.
            catch_unwind(AssertUnwindSafe(|| compare(&device))).is_ok()
        };
        mistakes.iter().copied().filter(goes_unnoticed).collect()
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Its place among the devices of the machine, counted from 0.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        match self.driver() {
            Driver::Cuda { context, .. } => context.ordinal(),
            Driver::Emulated(_) => 0,
        }
    }

    /// Whether the host stands in for it.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        matches!(self.driver(), Driver::Emulated(_))
    }

    /// Its name, as the driver has it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Bytes that are free, and all there are; none of an emulated device.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        match self.driver() {
            Driver::Cuda { context, .. } => context.mem_get_info().map_err(Error::driver("asking for free memory")),
            Driver::Emulated(_) => Ok((0, 0)),
        }
    }

    /// A stream of work of its own.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(self)
    }

    /// Waits for everything that was ever given to it.
    ///
    /// # Errors
    /// [`Error::Driver`], also for what went wrong in a kernel.
    pub fn synchronize(&self) -> Result<(), Error> {
        match self.driver() {
            Driver::Cuda { context, .. } => context.synchronize().map_err(Error::driver("waiting for the device")),
            Driver::Emulated(_) => Ok(()),
        }
    }

    /// Kernel `name` of the file `module`.
    pub(crate) fn kernel(&self, module: &'static str, name: String) -> Result<Kernel, Error> {
        let function = match self.driver() {
            Driver::Cuda { context, modules } => {
                let refused = |error| Error::Module { module, reason: said(error) };
                let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
                let loaded = match modules.get(module) {
                    Some(loaded) => loaded.clone(),
                    None => {
                        let loaded = context.load_module(Ptx::from_src(sources::module(module).ptx)).map_err(refused)?;
                        modules.insert(module, loaded.clone());
                        loaded
                    }
                };
                Function::Cuda(loaded.load_function(&name).map_err(refused)?)
            }
            Driver::Emulated(emulated) => Function::Emulated(emulated.function(module, &name)?),
        };
        Ok(Kernel::new(name, function))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_emulated() {
            return f.write_str("emulated device");
        }
        let (major, minor) = self.inner.capability;
        write!(f, "cuda:{} ({}, compute capability {major}.{minor})", self.ordinal(), self.inner.name)
    }
}

/// cudarc panics where the driver's library is missing, so we look for it first.
#[allow(unsafe_code)]
fn probe_driver() -> Result<(), Error> {
    // SAFETY: loading a library runs its initialisers. The driver's, which every CUDA program loads, may be run at any time.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    // The library stays open until here; cudarc opens it for itself.
    library.map(drop).map_err(|error| Error::NoDriver(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_device_is_told_so() {
        match Device::open(0) {
            Ok(device) => assert_eq!(device.ordinal(), 0),
            Err(error) => {
                assert!(error.to_string().starts_with("no CUDA device"), "{error}");
                assert!(std::env::var_os("RL_REQUIRE_GPU").is_none_or(|v| v != "1"), "RL_REQUIRE_GPU=1, but {error}");
                println!("skipped: no CUDA device");
            }
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let error = Device::open(1_000_000).unwrap_err();
        assert!(error.to_string().starts_with("no CUDA device"), "{error}");
    }
}
