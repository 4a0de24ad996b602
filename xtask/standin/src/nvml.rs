//! A stand-in for NVML with fixed readings.
//!
//! The second GPU reports no power, as some do. A handle is 1 + the GPU's bus.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;

/// `nvmlMemory_v2_t`: version, then bytes in total, reserved, free and used.
#[repr(C)]
struct MemoryInfo {
    version: c_uint,
    bytes: [u64; 4],
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, gpu: *mut *mut c_void) -> c_int {
    // SAFETY: callers pass a text that ends in 0.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy();
    let Some(bus) = address.strip_prefix("00000000:").and_then(|rest| rest.strip_suffix(":00.0")) else { return NOT_FOUND };
    let Ok(bus) = usize::from_str_radix(bus, 16) else { return NOT_FOUND };
    // SAFETY: callers pass a place for the handle.
    unsafe { gpu.write(std::ptr::without_provenance_mut(1 + bus)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(_gpu: *mut c_void, percent: *mut [c_uint; 2]) -> c_int {
    // SAFETY: callers pass a place for the shares of kernels and of memory.
    unsafe { percent.write([37, 5]) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(_gpu: *mut c_void, memory: *mut MemoryInfo) -> c_int {
    // SAFETY: callers pass a place for the memory's sizes.
    unsafe { (*memory).bytes = [4_000_000_000, 0, 3_000_000_000, 1_000_000_000] };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(gpu: *mut c_void, milliwatts: *mut c_uint) -> c_int {
    if gpu.addr() > 1 {
        return NOT_SUPPORTED;
    }
    // SAFETY: callers pass a place for the number.
    unsafe { milliwatts.write(250_000) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(_gpu: *mut c_void, _sensor: c_uint, celsius: *mut c_uint) -> c_int {
    // SAFETY: callers pass a place for the number.
    unsafe { celsius.write(61) };
    0
}
