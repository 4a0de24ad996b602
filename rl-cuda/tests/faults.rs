//! Mistakes of the host's side, which the stand-in driver reports by name.
//!
//! Each mistake is made through cudarc, in a process of its own: after an illegal access, a device returns that error to every
//! call.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "the driver's own interface")]

use std::ffi::c_void;
use std::process::Command;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;
use rl_cuda::Device;

const CLOCK: &str = include_str!("../ptx/clock.ptx");
const GAE: &str = include_str!("../ptx/gae.ptx");

/// Mistakes, and what the stand-in says.
const FAULTS: [(&str, &str); 19] = [
    ("beyond a buffer", "STAND-IN: out of bounds: kernel clock_advance, line "),
    ("freed", "STAND-IN: use after free: kernel clock_advance"),
    ("misaligned", "STAND-IN: misaligned: kernel clock_advance"),
    ("uninitialized", "STAND-IN: uninitialized: kernel clock_advance"),
    ("race of two streams", "STAND-IN: race: kernel clock_advance"),
    ("event recorded on the wrong stream", "STAND-IN: race: kernel clock_advance"),
    ("wait before record", "STAND-IN: race: kernel clock_advance"),
    ("copy beyond", "STAND-IN: out of bounds: 72 bytes"),
    ("synchronize in a capture", "STAND-IN: cuStreamSynchronize during a capture"),
    ("allocate in a capture", "STAND-IN: cuMemAlloc during a capture"),
    ("another thread waits in a capture", "STAND-IN: cuCtxSynchronize during a capture"),
    ("buffer of a graph freed", "STAND-IN: use after free: kernel clock_advance"),
    ("argument missing", "STAND-IN: wrong arguments: kernel clock_advance: argument 1 of 2 is missing"),
    ("one argument too many", "STAND-IN: wrong arguments: kernel clock_advance: more than 2 arguments"),
    ("block too big", "STAND-IN: bad launch: kernel clock_advance"),
    ("pinned memory read too early", "STAND-IN: pinned memory in flight"),
    ("pinned memory written too early", "STAND-IN: pinned memory in flight"),
    ("corrupt PTX", "unknown instruction add.rnd.f32"),
    ("no context", "STAND-IN: no current context: cuMemAlloc_v2"),
];

/// Programs without a mistake.
const CONTROLS: [&str; 4] = ["none", "freed under a launch", "ordered by an event", "pinned memory in order"];

/// Runs a case in a process of its own; returns success and standard error.
fn run(case: &str, schedule: &str) -> (bool, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "one_case", "--ignored", "--nocapture"]).env("RL_FAULT", case);
    let output = child.env("RL_STANDIN_SCHEDULE", schedule).env("RUST_BACKTRACE", "0").output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// True if the stand-in is the driver of this process.
fn has_stand_in() -> bool {
    Device::for_tests().iter().any(Device::is_stand_in)
}

#[test]
fn every_planted_mistake_is_reported_by_name_and_nothing_else_is() {
    if !has_stand_in() {
        return;
    }
    for schedule in ["eager", "latest", "random:1"] {
        for (case, expected) in FAULTS {
            let (succeeded, said) = run(case, schedule);
            assert!(!succeeded && said.contains(expected), "{case}, {schedule}: {said}");
        }
        for case in CONTROLS {
            let (succeeded, said) = run(case, schedule);
            assert!(succeeded && !said.contains("STAND-IN"), "{case}, {schedule}: {said}");
        }
    }
}

/// Two streams, and a kernel that adds to the second of two numbers.
struct Case {
    context: std::sync::Arc<CudaContext>,
    streams: [std::sync::Arc<CudaStream>; 2],
    advance: cudarc::driver::CudaFunction,
}

impl Case {
    fn zeros(&self) -> Result<u64, DriverError> {
        // SAFETY: the memory is filled before any read.
        let address = unsafe { result::malloc_sync(64) }?;
        // SAFETY: the memory was just allocated.
        unsafe { result::memset_d8_sync(address, 0, 64) }?;
        self.context.synchronize()?;
        Ok(address)
    }

    /// Launches the kernel with `words` as its arguments.
    fn launch_with(&self, stream: usize, words: &mut [u64], threads: u32) -> Result<(), DriverError> {
        let mut args = [std::ptr::null_mut::<c_void>(); 12];
        words.iter_mut().zip(&mut args).for_each(|(word, arg)| *arg = std::ptr::from_mut(word).cast());
        let (function, stream) = (self.advance.cu_function(), self.streams[stream].cu_stream());
        // SAFETY: the stand-in checks the arguments.
        unsafe { result::launch_kernel(function, (1, 1, 1), (threads, 1, 1), 0, stream, &mut args) }
    }

    fn launch(&self, stream: usize, address: u64) -> Result<(), DriverError> {
        self.launch_with(stream, &mut [address, 3], 32)
    }

    fn wait_for_both(&self) -> Result<(), DriverError> {
        self.streams[1].synchronize()?;
        self.streams[0].synchronize()
    }

    fn run(&self, case: &str) -> Result<(), DriverError> {
        let [a, b] = &self.streams;
        let (p, q) = (self.zeros()?, self.zeros()?);
        match case {
            "none" => {
                self.launch(0, p)?;
                let mut numbers = [0u64; 8];
                // SAFETY: the buffer has 64 bytes.
                unsafe { result::memcpy_dtoh_async(&mut numbers, p, a.cu_stream()) }?;
                a.synchronize()?;
                assert_eq!(numbers[1], 3);
                Ok(())
            }
            "beyond a buffer" => self.launch(0, p + 56).and_then(|()| a.synchronize()),
            "misaligned" => self.launch(0, p + 4).and_then(|()| a.synchronize()),
            "freed" => {
                // SAFETY: the mistake that is planted.
                unsafe { result::free_sync(p) }?;
                self.launch(0, p)?;
                a.synchronize()
            }
            "freed under a launch" => {
                self.launch(0, p)?;
                // SAFETY: freeing waits for the device.
                unsafe { result::free_sync(p) }?;
                a.synchronize()
            }
            "uninitialized" => {
                // SAFETY: the mistake that is planted.
                let empty = unsafe { result::malloc_sync(64) }?;
                self.launch(0, empty)?;
                a.synchronize()
            }
            "race of two streams" => {
                self.launch(0, p)?;
                self.launch(1, p)?;
                self.wait_for_both()
            }
            "ordered by an event" => {
                self.launch(0, p)?;
                b.wait(&a.record_event(None)?)?;
                self.launch(1, p)?;
                self.wait_for_both()
            }
            "event recorded on the wrong stream" => {
                self.launch(0, p)?;
                b.wait(&b.record_event(None)?)?;
                self.launch(1, p)?;
                self.wait_for_both()
            }
            "wait before record" => {
                let event = self.context.new_event(None)?;
                b.wait(&event)?;
                self.launch(0, p)?;
                event.record(a)?;
                self.launch(1, p)?;
                self.wait_for_both()
            }
            "copy beyond" => {
                let mut numbers = [0u64; 9];
                // SAFETY: the mistake that is planted.
                unsafe { result::memcpy_dtoh_async(&mut numbers, p, a.cu_stream()) }?;
                a.synchronize()
            }
            "synchronize in a capture"
            | "allocate in a capture"
            | "another thread waits in a capture"
            | "buffer of a graph freed" => {
                a.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
                self.launch(0, p)?;
                match case {
                    "synchronize in a capture" => a.synchronize()?,
                    "another thread waits in a capture" => {
                        std::thread::scope(|scope| scope.spawn(|| self.context.synchronize()).join()).unwrap()?;
                    }
                    // SAFETY: the memory is not used.
                    "allocate in a capture" => drop(unsafe { result::malloc_sync(64) }?),
                    _ => {}
                }
                let graph = a.end_capture(CUgraphInstantiate_flags(0))?.unwrap();
                // SAFETY: the mistake that is planted.
                unsafe { result::free_sync(p) }?;
                graph.launch()?;
                a.synchronize()
            }
            "argument missing" => self.launch_with(0, &mut [p], 32),
            "one argument too many" => self.launch_with(0, &mut [p, 3, 3], 32),
            "block too big" => self.launch_with(0, &mut [p, 3], 2048),
            "pinned memory read too early" | "pinned memory in order" => {
                // SAFETY: the memory is written by the copy before any read.
                let slab = unsafe { result::malloc_host(64, 0) }?.cast::<u64>();
                self.launch(0, p)?;
                // SAFETY: the slab has 64 bytes.
                unsafe { result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(slab, 8), p, a.cu_stream()) }?;
                if case == "pinned memory in order" {
                    a.synchronize()?;
                }
                // SAFETY: the slab has 64 bytes.
                assert_eq!(unsafe { slab.add(1).read_volatile() }, 3);
                Ok(())
            }
            "pinned memory written too early" => {
                // SAFETY: the memory is written before any read.
                let slab = unsafe { result::malloc_host(64, 0) }?.cast::<u64>();
                // SAFETY: the slab has 64 bytes.
                unsafe { slab.write_bytes(0, 8) };
                // SAFETY: the slab has 64 bytes.
                unsafe { result::memcpy_htod_async(q, std::slice::from_raw_parts(slab, 8), a.cu_stream()) }?;
                // SAFETY: the slab has 64 bytes; the mistake that is planted.
                unsafe { slab.write_volatile(7) };
                a.synchronize()
            }
            "corrupt PTX" => self.context.load_module(Ptx::from_src(GAE.replace("add.rn.f32", "add.rnd.f32"))).map(|_| ()),
            "no context" => {
                // SAFETY: the memory is not used.
                std::thread::spawn(|| unsafe { result::malloc_sync(64) }.map(|_| ())).join().unwrap()
            }
            other => panic!("no case {other}"),
        }
    }
}

#[test]
#[ignore = "run by the test above, in processes of its own"]
fn one_case() {
    assert!(has_stand_in());
    let context = CudaContext::new(0).unwrap();
    let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
    let module = context.load_module(Ptx::from_src(CLOCK)).unwrap();
    let advance = module.load_function("clock_advance").unwrap();
    Case { context, streams, advance }.run(&std::env::var("RL_FAULT").unwrap()).unwrap();
}
