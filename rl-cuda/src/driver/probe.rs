//! The driver library, looked at before cudarc's first call.
//!
//! cudarc loads it and each function at first use, and panics where one is missing.

use std::ffi::c_int;

use libloading::Library;

use crate::Error;
use crate::driver::api::sys;

/// Functions of the driver that this crate calls.
pub(crate) const FUNCTIONS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Oldest version of CUDA that loads the kernels, as drivers count: 12.0.
const OLDEST: c_int = 12000;

/// Loads the driver library that cudarc calls, if there is one.
#[cfg(not(feature = "linked"))]
#[allow(unsafe_code)]
fn library() -> Option<&'static Library> {
    // SAFETY: loading a library runs its initialisers. The driver's may run at any time: every CUDA program loads them.
    let is_present = unsafe { sys::is_culib_present() };
    // SAFETY: the library is there, so that this does not panic.
    is_present.then(|| unsafe { sys::culib() })
}

/// Returns the driver library that the program is linked with.
#[cfg(feature = "linked")]
#[allow(unsafe_code)]
fn library() -> Option<&'static Library> {
    static LIBRARY: std::sync::OnceLock<Option<Library>> = std::sync::OnceLock::new();
    // SAFETY: it is loaded already, so that no initialiser runs.
    LIBRARY.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.ok()).as_ref()
}

/// Checks that the driver library loads, is new enough and complete.
#[allow(unsafe_code)]
pub(crate) fn probe() -> Result<(), Error> {
    let none = |reason: &str| Err(Error::NoDriver(reason.into()));
    let Some(library) = library() else { return none("the driver library libcuda.so.1 is not installed") };
    // SAFETY: `cuInit` has this type in every version of the driver.
    let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit") };
    // SAFETY: `cuDriverGetVersion` has this type in every version of the driver.
    let version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion") };
    if let (Ok(init), Ok(get_version)) = (init, version) {
        // SAFETY: initializes the driver; 0 is the only valid argument.
        let initialized = unsafe { init(0) };
        if initialized == sys::CUresult::CUDA_ERROR_STUB_LIBRARY as c_int {
            return none(
                "a toolkit's stub is loaded in place of the driver; take the toolkit's stubs folder out of LD_LIBRARY_PATH",
            );
        }
        let mut version = OLDEST;
        // SAFETY: the version is written to a local variable.
        unsafe { get_version(&raw mut version) };
        if version < OLDEST {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return none(&format!("the driver supports CUDA {major}.{minor}, but driver 525 (CUDA 12.0) or newer is needed"));
        }
    }
    // SAFETY: the symbol is looked up, but not called.
    let is_missing = |name: &&&str| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err();
    match FUNCTIONS.iter().find(is_missing) {
        Some(missing) => none(&format!("the driver library lacks {missing}; driver 525 (CUDA 12.0) or newer is needed")),
        None => Ok(()),
    }
}
