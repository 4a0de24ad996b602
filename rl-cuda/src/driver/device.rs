//! Opening a device.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::Driver;
use crate::driver::allocation::{Allocation, Graphs};
use crate::driver::api::{CudaContext, result, sys};
use crate::driver::captures::no_capture;
use crate::driver::emulated::Emulated;
use crate::{Error, Sensors, driver, driver::sources};

/// Open device; clones share it.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Driver,
    name: String,
    /// Major and minor number of the compute capability.
    capability: [i32; 2],
    graphs: Mutex<Graphs>,
    /// Bytes of all buffers.
    allocated: AtomicUsize,
}

impl Device {
    /// Checks that the driver has a device with index `ordinal`.
    fn check(ordinal: usize) -> Result<(), Error> {
        driver::probe()?;
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            Err(error) => return Err(Error::driver("counting devices")(error)),
        };
        match count {
            0 => Err(Error::NoDevice),
            _ if ordinal >= count => Err(Error::NoSuchDevice { ordinal, count }),
            _ => Ok(()),
        }
    }

    /// Returns the name of the device with index `ordinal`, without opening it.
    ///
    /// Opening a GPU takes a part of a second and of its memory.
    ///
    /// # Errors
    /// The errors of [`Device::open`].
    pub fn name_of(ordinal: usize) -> Result<String, Error> {
        Self::check(ordinal)?;
        let name = result::device::get(ordinal as i32).and_then(result::device::get_name);
        name.map_err(Error::driver("asking for the device's name"))
    }

    /// Returns the number of multiprocessors of a device, without opening it.
    ///
    /// # Errors
    /// The errors of [`Device::open`].
    #[allow(unsafe_code)]
    pub fn multiprocessors_of(ordinal: usize) -> Result<usize, Error> {
        Self::check(ordinal)?;
        let asked = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the driver gave this device.
        let count =
            result::device::get(ordinal as i32).and_then(|device| unsafe { result::device::get_attribute(device, asked) });
        Ok(count.map_err(Error::driver("asking for the device's multiprocessors"))?.max(0) as usize)
    }

    /// Opens the device with index `ordinal`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::NoSuchDevice`], or [`Error::Driver`] if a call of the driver fails.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        Self::check(ordinal)?;
        let context = CudaContext::new(ordinal).map_err(Error::driver("opening the device"))?;
        let name = context.name().map_err(Error::driver("asking for the device's name"))?;
        let (major, minor) = context.compute_capability().map_err(Error::driver("asking for the device's capability"))?;
        let driver = Driver::Cuda { context, modules: Mutex::default() };
        Ok(Self::of(driver, name, [major, minor]))
    }

    /// Opens an emulated device: the kernels run on the host.
    ///
    /// The host's C++ compiler compiles the same kernels, and their threads run one after the other. Slow; meant for tests
    /// without a GPU, of the kernels and of their callers.
    ///
    /// # Errors
    /// [`Error::Emulation`] without a C++ compiler.
    pub fn emulated() -> Result<Self, Error> {
        Self::emulated_with(HashMap::new())
    }

    /// Opens an emulated device with some source files of the kernels replaced.
    ///
    /// `replaced` maps file names to texts. Tests use it to plant mistakes.
    ///
    /// # Errors
    /// [`Error::Emulation`] without a C++ compiler.
    pub fn emulated_with(replaced: HashMap<String, String>) -> Result<Self, Error> {
        Emulated::new(replaced).map(Self::new_emulated)
    }

    fn new_emulated(emulated: Emulated) -> Self {
        Self::of(Driver::Emulated(emulated), "the host".into(), [0, 0])
    }

    fn of(driver: Driver, name: String, capability: [i32; 2]) -> Self {
        Self { inner: Arc::new(Inner { driver, name, capability, graphs: Mutex::default(), allocated: AtomicUsize::new(0) }) }
    }

    /// Returns the devices for tests: an emulated one, and a GPU or a stand-in.
    ///
    /// Where there is no driver, the stand-in driver (`xtask/standin`) runs the PTX on the host and checks every access.
    /// `RL_SKIP_CXX=1` leaves out the emulated device. A missing device is reported on standard error.
    ///
    /// # Panics
    /// If a device is missing and `RL_REQUIRE_CXX`, `RL_REQUIRE_GPU` or `RL_REQUIRE_STANDIN` is 1.
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
        match Self::open(0) {
            Err(Error::NoDriver(_)) if !is_set("RL_REQUIRE_GPU") => {
                let stand_in = driver::load_stand_in().and_then(|()| Self::open(0));
                add(stand_in, "by the stand-in driver", "RL_REQUIRE_STANDIN");
            }
            device if device.as_ref().is_ok_and(Self::is_stand_in) => add(device, "by the stand-in driver", "RL_REQUIRE_STANDIN"),
            device => add(device, "on a GPU", "RL_REQUIRE_GPU"),
        }
        devices
    }

    /// Plants mistakes into a source file one at a time, and returns the unnoticed.
    ///
    /// A mistake is `(original text, replacement)`. `compare` panics if it notices one; a comparison that notices none proves
    /// nothing. Without a C++ compiler nothing is planted, as in [`Device::for_tests`].
    ///
    /// # Panics
    /// If the file does not exist or lacks an original text, if a mistake does not compile, or if a required compiler is missing.
    pub fn unnoticed<'a>(file: &str, mistakes: &[[&'a str; 2]], compare: impl Fn(&Self)) -> Vec<[&'a str; 2]> {
        if Self::emulated().is_err() {
            let _ = Self::for_tests(); // reports the missing compiler, or panics
            return Vec::new();
        }
        let (text, module) = sources::text(file);
        let goes_unnoticed = |[original, mistake]: &[&str; 2]| {
            assert!(text.contains(original), "{file} no longer has {original:?}");
            let replaced = HashMap::from([(file.to_owned(), text.replace(original, mistake))]);
            let emulated = Emulated::new(replaced).expect("there is a compiler");
            emulated.library(module).unwrap_or_else(|error| panic!("{mistake:?}: {error}"));
            let device = Self::new_emulated(emulated);
            // The guards behind an emulated device's buffers panic too, if a kernel writes past the end.
            catch_unwind(AssertUnwindSafe(|| compare(&device))).is_ok()
        };
        mistakes.iter().copied().filter(goes_unnoticed).collect()
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.inner.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Defers the freeing of buffers until the last graph has ended.
    pub(crate) fn keep_memory(&self) {
        self.graphs().add();
    }

    /// Frees the memory that was kept for graphs, if this was the last one.
    pub(crate) fn release_memory(&self) {
        self.graphs().remove(self.driver());
    }

    /// Frees the memory of a buffer as soon as no graph may use it.
    pub(crate) fn free(&self, allocation: Allocation) {
        self.graphs().free(allocation, self.driver());
    }

    pub(crate) fn add_allocated(&self, bytes: usize) {
        self.inner.allocated.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_allocated(&self, bytes: usize) {
        self.inner.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all buffers.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    /// Returns the index of the device on this machine, counted from 0.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        match self.driver() {
            Driver::Cuda { context, .. } => context.ordinal(),
            Driver::Emulated(_) => 0,
        }
    }

    /// Returns true if the host emulates the device.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        matches!(self.driver(), Driver::Emulated(_))
    }

    /// Returns true if the driver is the stand-in.
    ///
    /// It runs kernels on the host to check them, and its speed means nothing.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.inner.name == "stand-in"
    }

    /// Returns the driver's name for the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns free and total bytes of memory; zeros for an emulated device.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        match self.driver() {
            Driver::Cuda { context, .. } => context.mem_get_info().map_err(Error::driver("asking for free memory")),
            Driver::Emulated(_) => Ok((0, 0)),
        }
    }

    /// Finds the GPU's sensors: utilization, memory, power, temperature.
    ///
    /// # Errors
    /// [`Error::NoSensors`] without NVML and on an emulated device; [`Error::Driver`].
    pub fn sensors(&self) -> Result<Sensors, Error> {
        let Driver::Cuda { context, .. } = self.driver() else {
            return Err(Error::NoSensors("an emulated device has none".into()));
        };
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        };
        let of = |attribute| context.attribute(attribute).map_err(Error::driver("asking for the device's PCI address"));
        let domain = of(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let (bus, slot) = (of(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?, of(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?);
        Sensors::of(&format!("{domain:08x}:{bus:02x}:{slot:02x}.0"))
    }

    /// Waits for all work on the device.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn synchronize(&self) -> Result<(), Error> {
        match self.driver() {
            Driver::Cuda { context, .. } => {
                let _lock = no_capture();
                context.synchronize().map_err(Error::driver("waiting for the device"))
            }
            Driver::Emulated(_) => Ok(()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_emulated() {
            return f.write_str("emulated device");
        }
        if self.is_stand_in() {
            return f.write_str("stand-in for a device");
        }
        let [major, minor] = self.inner.capability;
        write!(f, "cuda:{} ({}, compute capability {major}.{minor})", self.ordinal(), self.inner.name)
    }
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
