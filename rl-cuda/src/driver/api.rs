//! The driver's API: cudarc's, or none without the feature `driver`.

#[cfg(not(feature = "driver"))]
pub(crate) use absent::*;
#[cfg(feature = "driver")]
pub(crate) use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaModule, CudaStream, DriverError, result, sys,
};
#[cfg(feature = "driver")]
pub(crate) use cudarc::nvrtc::Ptx;

/// Message of a program without a driver.
#[cfg(not(feature = "driver"))]
pub(crate) const NO_DRIVER: &str = "this program was compiled without the feature `cuda` (`driver` of rl-cuda)";

/// The names of cudarc that this crate uses, for types without values.
///
/// [`probe`](crate::driver::probe) fails first, so that no function of a device is called.
#[cfg(not(feature = "driver"))]
#[allow(unsafe_code, dead_code, clippy::upper_case_acronyms, clippy::missing_safety_doc, clippy::unnecessary_wraps)]
mod absent {
    use std::sync::Arc;

    type Result<T> = std::result::Result<T, DriverError>;

    /// A type without values.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Absent {}

    pub(crate) type CudaContext = Absent;
    pub(crate) type CudaEvent = Absent;
    pub(crate) type CudaFunction = Absent;
    pub(crate) type CudaGraph = Absent;
    pub(crate) type CudaModule = Absent;
    pub(crate) type CudaStream = Absent;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct DriverError(pub(crate) sys::CUresult);

    pub(crate) struct Ptx;

    impl Ptx {
        pub(crate) fn from_src(_: &str) -> Self {
            Self
        }
    }

    const NEVER: &str = "the driver was looked for first";

    /// Methods with these signatures.
    macro_rules! methods {
        ($($name:ident($($arg:ty),*) -> $output:ty;)*) => {
            $(pub(crate) fn $name(&self, $(_: $arg),*) -> $output {
                match *self {}
            })*
        };
    }

    impl Absent {
        pub(crate) fn device_count() -> Result<i32> {
            unreachable!("{NEVER}")
        }

        pub(crate) fn new(_: usize) -> Result<Arc<Self>> {
            unreachable!("{NEVER}")
        }

        methods! {
            attribute(sys::CUdevice_attribute) -> Result<i32>;
            begin_capture(sys::CUstreamCaptureMode) -> Result<()>;
            bind_to_thread() -> Result<()>;
            compute_capability() -> Result<(i32, i32)>;
            context() -> &Arc<CudaContext>;
            cu_function() -> u64;
            cu_stream() -> u64;
            elapsed_ms(&CudaEvent) -> Result<f32>;
            end_capture(sys::CUgraphInstantiate_flags) -> Result<Option<CudaGraph>>;
            launch() -> Result<()>;
            load_function(&str) -> Result<CudaFunction>;
            load_module(Ptx) -> Result<Arc<CudaModule>>;
            local_size_bytes() -> Result<i32>;
            max_threads_per_block() -> Result<i32>;
            mem_get_info() -> Result<(usize, usize)>;
            name() -> Result<String>;
            new_stream() -> Result<Arc<CudaStream>>;
            num_regs() -> Result<i32>;
            occupancy_max_potential_block_size(extern "C" fn(i32) -> usize, usize, u32, Option<u32>) -> Result<(u32, u32)>;
            ordinal() -> usize;
            record_event(Option<sys::CUevent_flags>) -> Result<CudaEvent>;
            synchronize() -> Result<()>;
            try_is_complete() -> Result<bool>;
            wait(&CudaEvent) -> Result<()>;
        }
    }

    /// Functions of a device.
    pub(crate) mod result {
        use super::{NEVER, Result};
        use std::ffi::c_void;

        macro_rules! functions {
            ($($name:ident$(<$element:ident>)?($($arg:ty),*) -> $output:ty;)*) => {
                $(pub(crate) unsafe fn $name$(<$element>)?($(_: $arg),*) -> Result<$output> {
                    unreachable!("{NEVER}")
                })*
            };
        }

        functions! {
            free_host(*mut c_void) -> ();
            free_sync(u64) -> ();
            launch_kernel(u64, (u32, u32, u32), (u32, u32, u32), u32, u64, &mut [*mut c_void]) -> ();
            malloc_host(usize, u32) -> *mut c_void;
            malloc_sync(usize) -> u64;
            memcpy_dtod_async(u64, u64, usize, u64) -> ();
            memcpy_dtoh_async<T>(&mut [T], u64, u64) -> ();
            memcpy_htod_async<T>(u64, &[T], u64) -> ();
            memset_d8_sync(u64, u8, usize) -> ();
        }

        pub(crate) mod device {
            use super::super::Absent;
            use super::{NEVER, Result};

            pub(crate) fn get(_: i32) -> Result<Absent> {
                unreachable!("{NEVER}")
            }

            pub(crate) fn get_name(device: Absent) -> Result<String> {
                match device {}
            }

            pub(crate) unsafe fn get_attribute(device: Absent, _: super::super::sys::CUdevice_attribute) -> Result<i32> {
                match device {}
            }
        }
    }

    /// Constants of the driver.
    #[allow(non_camel_case_types, non_snake_case)]
    pub(crate) mod sys {
        pub(crate) const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
        pub(crate) const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 4;

        macro_rules! constants {
            ($($name:ident { $($variant:ident)* })*) => {
                $(#[derive(Clone, Copy, Debug, PartialEq, Eq)]
                pub(crate) enum $name {
                    $($variant,)*
                })*
            };
        }

        constants! {
            CUdevice_attribute {
                CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
                CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
                CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
                CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
            }
            CUevent_flags { CU_EVENT_DEFAULT }
            CUresult {
                CUDA_ERROR_INVALID_IMAGE
                CUDA_ERROR_INVALID_PTX
                CUDA_ERROR_INVALID_SOURCE
                CUDA_ERROR_INVALID_VALUE
                CUDA_ERROR_JIT_COMPILATION_DISABLED
                CUDA_ERROR_JIT_COMPILER_NOT_FOUND
                CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                CUDA_ERROR_NOT_FOUND
                CUDA_ERROR_NO_BINARY_FOR_GPU
                CUDA_ERROR_NO_DEVICE
                CUDA_ERROR_OUT_OF_MEMORY
                CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            }
            CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL }
        }

        pub(crate) struct CUgraphInstantiate_flags(pub(crate) u32);
    }
}
