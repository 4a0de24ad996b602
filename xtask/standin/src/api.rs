//! The driver's functions, as cudarc calls them for rl-cuda.
//!
//! Handles are numbers: a stream is its index, everything else counts up. A call that a program may not make is explained on
//! standard error, and returns the driver's code for it.
#![allow(unsafe_code, non_snake_case)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::driver::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURED_EVENT, Capture, Code, Driver, Event, HostMemory, ILLEGAL_ADDRESS,
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND, NOT_READY,
    OUT_OF_MEMORY, Work,
};
use crate::pinned::Slab;
use crate::ptx;
use crate::settings::Settings;

type Handle = *mut c_void;

/// Name of the device; rl-cuda knows the stand-in by it.
const NAME: &[u8] = b"stand-in\0";
/// Version of CUDA that the driver supports: that of driver 525.
const VERSION: c_int = 12000;
/// Length of rl-cuda's array of arguments, which ends in nulls.
const MAX_ARGS: usize = 12;

thread_local! {
    /// Current context: 0, or 1 + device.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    /// Streams that this thread captures.
    static CAPTURES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Locks the driver, and creates it at first use.
fn lock() -> std::sync::MutexGuard<'static, Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    extern "C" fn finish() {
        // A thread that is still in a call keeps the lock; its work is not checked.
        let is_clean = DRIVER.get().and_then(|driver| driver.try_lock().ok()).is_none_or(|mut driver| driver.finish());
        if !is_clean {
            // SAFETY: ends the process at once, with a code that says that its last work was faulty.
            unsafe { libc::_exit(70) };
        }
    }
    let driver = DRIVER.get_or_init(|| {
        // SAFETY: registers a function without arguments.
        unsafe { libc::atexit(finish) };
        Mutex::new(Driver::new(Settings::read()))
    });
    driver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call that needs no context.
fn call(work: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    work(&mut lock()).err().unwrap_or(0)
}

/// Runs a call that needs a context; after a fault it returns that error.
fn call_in_context(name: &str, work: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    let mut driver = lock();
    if CONTEXT.get() == 0 {
        return driver.refuse(INVALID_CONTEXT, &format!("no current context: {name}"));
    }
    if let Some(code) = driver.sticky {
        return code;
    }
    work(&mut driver).err().unwrap_or(0)
}

/// Writes a result to where the caller wants it.
fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the driver's callers pass null or a valid place for each result.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns the text that a caller passes.
fn text(from: *const c_char) -> String {
    // SAFETY: the driver's callers pass texts that end in 0.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn handle(number: u64) -> Handle {
    std::ptr::without_provenance_mut(number as usize)
}

fn refuse_in_capture(driver: &mut Driver, what: &str) -> Result<(), Code> {
    CAPTURES.with_borrow(|captures| driver.refuse_in_capture(captures, what))
}

/// Returns the pinned memory at an address, if it is pinned.
fn pinned(driver: &Driver, address: usize) -> Option<HostMemory> {
    let (_, slab) = driver.slabs.range(..=address).next_back()?;
    Some(HostMemory::Pinned { own: slab.own_address(address)?, slab: slab.address })
}

/// Returns the event's last mark, unless it belongs to a capture.
fn marked(driver: &Driver, event: Handle) -> Result<Option<Arc<crate::driver::Mark>>, Code> {
    match driver.events.get(&(event.addr() as u64)) {
        None => Err(INVALID_HANDLE),
        Some(Event { is_captured: true, .. }) => Err(CAPTURED_EVENT),
        Some(event) => Ok(event.mark.clone()),
    }
}

/// Reads the arguments of a kernel.
///
/// A kernel's arguments have no sizes in CUDA. rl-cuda lays them one behind the other, rounded up to 8 bytes, and ends their
/// array in nulls, so that a wrong number or size can be seen.
fn arguments(driver: &mut Driver, kernel: &ptx::Kernel, args: *mut *mut c_void) -> Result<Arc<[u8]>, Code> {
    let mut bytes = vec![0; kernel.param_bytes()];
    // SAFETY: rl-cuda passes an array of `MAX_ARGS` pointers, and no kernel has more parameters.
    let argument = |i: usize| unsafe { args.add(i).read() }.cast::<u8>();
    let n = kernel.params.len();
    let mut refuse =
        |text: String| Err(driver.refuse(INVALID_VALUE, &format!("wrong arguments: kernel {}: {text}", kernel.name)));
    for (i, param) in kernel.params.iter().enumerate() {
        let from = argument(i);
        if from.is_null() {
            return refuse(format!("argument {i} of {n} is missing"));
        }
        if i + 1 < n && !argument(i + 1).is_null() {
            let found = argument(i + 1).addr().wrapping_sub(from.addr());
            if found != param.size.next_multiple_of(8) {
                return refuse(format!("argument {i} has {found} bytes, not {}", param.size));
            }
        }
        // SAFETY: the argument has the size that was just checked.
        unsafe { from.copy_to_nonoverlapping(bytes[param.offset..].as_mut_ptr(), param.size) };
    }
    if n < MAX_ARGS && !argument(n).is_null() {
        return refuse(format!("more than {n} arguments"));
    }
    Ok(bytes.into())
}

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $of:ty),*) $run:ident |$driver:ident| $body:block)*) => {
        /// Names of the exported functions.
        pub const FUNCTIONS: &[&str] = &["cuGetErrorName", "cuGetErrorString", $(stringify!($name)),*];

        $(#[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $of),*) -> Code {
            api!(@$run $name, |$driver: &mut Driver| $body)
        })*
    };
    (@anywhere $name:ident, $work:expr) => { call($work) };
    (@in_context $name:ident, $work:expr) => { call_in_context(stringify!($name), $work) };
}

api! {
    fn cuInit(_flags: c_uint) anywhere |_driver| { Ok(()) }
    fn cuDriverGetVersion(version: *mut c_int) anywhere |_driver| { give(version, VERSION) }
    fn cuDeviceGetCount(count: *mut c_int) anywhere |driver| { give(count, driver.settings.devices) }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) anywhere |driver| {
        if (0..driver.settings.devices).contains(&ordinal) { give(device, ordinal) } else { Err(INVALID_DEVICE) }
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) anywhere |_driver| {
        let len = NAME.len().min(len.max(0) as usize);
        // SAFETY: the caller's memory has `len` bytes.
        unsafe { NAME.as_ptr().copy_to_nonoverlapping(name.cast(), len) };
        Ok(())
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) anywhere |driver| {
        match attribute {
            16 => give(value, driver.settings.multiprocessors),
            33 => give(value, device), // PCI bus
            34 | 50 => give(value, 0), // PCI slot, domain
            75 => give(value, 7),  // compute capability
            76 => give(value, 5),
            115 => give(value, 1), // memory pools
            _ => Err(driver.refuse(INVALID_VALUE, &format!("unknown attribute {attribute} of a device"))),
        }
    }
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) anywhere |_driver| {
        give(context, handle(1 + device as u64))
    }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) anywhere |_driver| { Ok(()) }
    fn cuCtxGetCurrent(context: *mut Handle) anywhere |_driver| { give(context, handle(CONTEXT.get() as u64)) }
    fn cuCtxSetCurrent(context: Handle) anywhere |_driver| {
        CONTEXT.set(context.addr());
        Ok(())
    }
    fn cuCtxSynchronize() in_context |driver| {
        let captures = driver.capturing(); // those of other threads, too
        driver.refuse_in_capture(&captures, "cuCtxSynchronize")?;
        driver.wait_for_all()
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) in_context |driver| {
        let size = driver.settings.memory;
        give(free, size.saturating_sub(driver.memory.used))?;
        give(total, size)
    }
    fn cuMemAlloc_v2(address: *mut u64, len: usize) in_context |driver| {
        refuse_in_capture(driver, "cuMemAlloc")?;
        match len {
            0 => Err(INVALID_VALUE),
            _ if driver.memory.used.saturating_add(len) > driver.settings.memory => Err(OUT_OF_MEMORY),
            _ => give(address, driver.memory.allocate(len)),
        }
    }
    fn cuMemFree_v2(address: u64) in_context |driver| {
        refuse_in_capture(driver, "cuMemFree")?;
        driver.wait_for_all()?;
        driver.memory.free(address).map_err(|fault| driver.refuse(INVALID_VALUE, &format!("cuMemFree: {fault}")))
    }
    fn cuMemsetD8_v2(to: u64, value: u8, len: usize) in_context |driver| {
        refuse_in_capture(driver, "cuMemsetD8")?;
        driver.queue(0, Work::Fill { to, value, len })
    }
    fn cuMemHostAlloc(address: *mut Handle, len: usize, _flags: c_uint) in_context |driver| {
        refuse_in_capture(driver, "cuMemHostAlloc")?;
        let slab = Slab::new(len.max(1)).ok_or(OUT_OF_MEMORY)?;
        give(address, std::ptr::with_exposed_provenance_mut(slab.address))?;
        driver.slabs.insert(slab.address, slab);
        Ok(())
    }
    fn cuMemFreeHost(address: Handle) in_context |driver| {
        match driver.slabs.get(&address.addr()) {
            None => Err(driver.refuse(INVALID_VALUE, "cuMemFreeHost: no page-locked memory begins there")),
            Some(slab) if slab.is_pending() => {
                driver.sticky = Some(ILLEGAL_ADDRESS);
                Err(driver.refuse(ILLEGAL_ADDRESS, "pinned memory in flight: freed before the host waited for a copy"))
            }
            Some(_) => {
                driver.slabs.remove(&address.addr());
                Ok(())
            }
        }
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        let from = pinned(driver, from.addr()).unwrap_or_else(|| {
            // SAFETY: the caller passes `len` bytes.
            HostMemory::Staged(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.into())
        });
        driver.queue(index, Work::ToDevice { to, from, len })
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        if let Some(to) = pinned(driver, to.addr()) {
            return driver.queue(index, Work::ToHost { to, from, len });
        }
        driver.queue(index, Work::ToHost { to: HostMemory::Pageable(to.expose_provenance()), from, len })?;
        // A copy to pageable memory returns when it is done.
        if driver.streams[index].capture.is_some() { Ok(()) } else { driver.wait_for_stream(index) }
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        driver.queue(index, Work::Within { to, from, len })
    }

    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) in_context |driver| {
        let text = text(image.cast());
        if let Some(mutants) = &mut driver.mutants {
            mutants.load(&text);
        }
        let kernels = ptx::parse(&text).map_err(|error| driver.refuse(INVALID_PTX, &error.to_string()))?;
        let mut functions = Vec::new();
        for kernel in kernels {
            functions.push(driver.new_handle());
            driver.functions.insert(functions[functions.len() - 1], Arc::new(kernel));
        }
        let new = driver.new_handle();
        driver.modules.insert(new, functions);
        give(module, handle(new))
    }
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) in_context |driver| {
        let name = text(name);
        let functions = driver.modules.get(&(module.addr() as u64)).ok_or(INVALID_HANDLE)?;
        let found = functions.iter().find(|id| driver.functions[id].name == name).ok_or(NOT_FOUND)?;
        give(function, handle(*found))
    }
    fn cuModuleUnload(module: Handle) in_context |driver| {
        let functions = driver.modules.remove(&(module.addr() as u64)).ok_or(INVALID_HANDLE)?;
        functions.iter().for_each(|id| {
            driver.functions.remove(id);
        });
        Ok(())
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle) in_context |driver| {
        let kernel = driver.functions.get(&(function.addr() as u64)).ok_or(INVALID_HANDLE)?;
        match attribute {
            0 => give(value, kernel.max_threads as c_int),
            1..=4 => give(value, 0), // shared, constant and local bytes, registers: the driver's assembler decides them
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, function: Handle, _shared: *const c_void,
        _bytes: usize, _limit: c_int, _flags: c_uint) in_context |driver| {
        let kernel = driver.functions.get(&(function.addr() as u64)).cloned();
        let kernel = kernel.ok_or_else(|| driver.refuse(INVALID_HANDLE, "occupancy of a kernel whose module is not loaded"))?;
        give(grid, 1)?;
        give(block, kernel.max_threads as c_int)
    }
    fn cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, args: *mut *mut c_void, extra: *mut *mut c_void) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        let kernel = driver.functions.get(&(function.addr() as u64)).cloned();
        let kernel = kernel.ok_or_else(|| driver.refuse(INVALID_HANDLE, "launch of a kernel whose module is not loaded"))?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let n_threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
        let is_grid = grid_x > 0 && grid_x <= i32::MAX as u32 && [grid_y, grid_z].iter().all(|n| (1..=65535).contains(n));
        if !is_grid || n_threads == 0 || n_threads > kernel.max_threads.into() || block_z > 64 || shared != 0 || !extra.is_null() {
            let text = format!("bad launch: kernel {}, grid {grid:?}, block {block:?}, {shared} bytes shared", kernel.name);
            return Err(driver.refuse(INVALID_VALUE, &text));
        }
        let params = arguments(driver, &kernel, args)?;
        driver.queue(index, Work::Launch { kernel, grid, block, params })
    }

    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) in_context |driver| {
        if flags != 1 {
            return Err(driver.refuse(INVALID_VALUE, "streams that wait for the default stream"));
        }
        let index = driver.new_stream()?;
        give(stream, handle(index as u64))
    }
    fn cuStreamDestroy_v2(stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        driver.streams[index].is_destroyed = true; // what is queued still runs
        Ok(())
    }
    fn cuStreamSynchronize(stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        if driver.streams[index].capture.is_some() {
            refuse_in_capture(driver, "cuStreamSynchronize")?;
        }
        driver.wait_for_stream(index)
    }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        let mark = marked(driver, event)?;
        if driver.streams[index].capture.is_some() {
            return Err(driver.refuse(CAPTURE_ISOLATION, "a captured stream waits for an event from outside of the capture"));
        }
        // The wait is for the recording so far; an event that was never recorded is no reason to wait.
        mark.map_or(Ok(()), |mark| driver.queue(index, Work::Wait(mark)))
    }
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_int) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        if index == 0 || driver.streams[index].capture.is_some() {
            return Err(driver.refuse(INVALID_VALUE, "a capture of the default stream, or within a capture"));
        }
        driver.streams[index].capture = Some(Capture::default());
        CAPTURES.with_borrow_mut(|captures| captures.push(index));
        Ok(())
    }
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        give(graph, std::ptr::null_mut())?;
        let capture = driver.streams[index].capture.take().ok_or(INVALID_VALUE)?;
        CAPTURES.with_borrow_mut(|captures| captures.retain(|&captured| captured != index));
        if capture.is_broken {
            return Err(CAPTURE_INVALIDATED);
        }
        let new = driver.new_handle();
        driver.graphs.insert(new, capture.work.into());
        give(graph, handle(new))
    }
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, _flags: u64) in_context |driver| {
        let work = driver.graphs.get(&(graph.addr() as u64)).cloned().ok_or(INVALID_HANDLE)?;
        if work.len() > driver.settings.nodes {
            return Err(driver.refuse(OUT_OF_MEMORY, &format!("a graph of {} nodes", work.len())));
        }
        let new = driver.new_handle();
        driver.graphs.insert(new, work);
        give(exec, handle(new))
    }
    fn cuGraphLaunch(exec: Handle, stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        let work = driver.graphs.get(&(exec.addr() as u64)).cloned().ok_or(INVALID_HANDLE)?;
        work.iter().try_for_each(|work| driver.queue(index, work.clone()))
    }
    fn cuGraphExecDestroy(exec: Handle) in_context |driver| {
        driver.graphs.remove(&(exec.addr() as u64)).map(drop).ok_or(INVALID_HANDLE)
    }
    fn cuGraphDestroy(graph: Handle) in_context |driver| {
        driver.graphs.remove(&(graph.addr() as u64)).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventCreate(event: *mut Handle, _flags: c_uint) in_context |driver| {
        let new = driver.new_handle();
        driver.events.insert(new, Event::default());
        give(event, handle(new))
    }
    fn cuEventRecord(event: Handle, stream: Handle) in_context |driver| {
        let index = driver.stream(stream.addr())?;
        let id = event.addr() as u64;
        if !driver.events.contains_key(&id) {
            return Err(INVALID_HANDLE);
        }
        if driver.streams[index].capture.is_some() {
            driver.events.insert(id, Event { mark: None, is_captured: true });
            return Ok(());
        }
        let mark = Driver::new_mark(index);
        driver.events.insert(id, Event { mark: Some(mark.clone()), is_captured: false });
        driver.queue(index, Work::Record(mark))
    }
    fn cuEventQuery(event: Handle) in_context |driver| {
        match marked(driver, event)? {
            Some(mark) if !driver.ask_for_mark(&mark)? => Err(NOT_READY),
            _ => Ok(()),
        }
    }
    fn cuEventSynchronize(event: Handle) in_context |driver| {
        marked(driver, event)?.map_or(Ok(()), |mark| driver.wait_for_mark(&mark))
    }
    fn cuEventElapsedTime(milliseconds: *mut f32, begin: Handle, end: Handle) in_context |driver| {
        let (begin, end) = (marked(driver, begin)?, marked(driver, end)?);
        let (Some(begin), Some(end)) = (begin, end) else { return Err(INVALID_HANDLE) };
        let (Some(begin), Some(end)) = (begin.time(), end.time()) else { return Err(NOT_READY) };
        give(milliseconds, end.saturating_duration_since(begin).as_secs_f32() * 1e3)
    }
    fn cuEventDestroy_v2(event: Handle) in_context |driver| {
        driver.events.remove(&(event.addr() as u64)).map(drop).ok_or(INVALID_HANDLE)
    }
}

/// Returns the name and the text of an error.
fn error_texts(code: Code) -> [&'static CStr; 2] {
    match code {
        0 => [c"CUDA_SUCCESS", c"no error"],
        INVALID_VALUE => [c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"],
        OUT_OF_MEMORY => [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"],
        INVALID_PTX => [c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"],
        NOT_READY => [c"CUDA_ERROR_NOT_READY", c"device not ready"],
        LAUNCH_FAILED => [c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"],
        ILLEGAL_ADDRESS => [c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"],
        _ => [c"CUDA_ERROR", c"see the stand-in's message"],
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    give(name, error_texts(code)[0].as_ptr()).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    give(text, error_texts(code)[1].as_ptr()).err().unwrap_or(0)
}
