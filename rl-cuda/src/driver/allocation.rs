//! Memory of dropped buffers, which graphs may still use.

use std::alloc::{self, Layout};

use crate::driver::Driver;
use crate::driver::api::result;
use crate::driver::captures::no_capture;

/// Memory of a dropped buffer.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    /// Layout on an emulated device.
    pub(crate) layout: Option<Layout>,
}

impl Allocation {
    /// Frees the memory, once the device that it belongs to no longer uses it.
    #[allow(unsafe_code)]
    fn free(self, driver: &Driver) {
        match (driver, self.layout) {
            (Driver::Cuda { context, .. }, _) => {
                let _lock = no_capture();
                // Waits for work in flight. Errors surface at the next call that waits.
                if context.synchronize().is_ok() {
                    // SAFETY: the buffer allocated this memory, and the device no longer uses it.
                    let _ = unsafe { result::free_sync(self.address) };
                }
            }
            (Driver::Emulated(_), Some(layout)) => {
                let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
                // SAFETY: the buffer allocated this memory with the same layout.
                unsafe { alloc::dealloc(memory, layout) };
            }
            (Driver::Emulated(_), None) => {}
        }
    }
}

/// Number of a device's graphs, and memory that they may still use.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    alive: usize,
    dropped: Vec<Allocation>,
}

impl Graphs {
    /// Counts a graph, which keeps memory from now on.
    pub(crate) fn add(&mut self) {
        self.alive += 1;
    }

    /// Counts a graph's end, and frees the memory that was kept for the last one.
    pub(crate) fn remove(&mut self, driver: &Driver) {
        self.alive -= 1;
        if self.alive == 0 {
            self.dropped.drain(..).for_each(|allocation| allocation.free(driver));
        }
    }

    /// Frees the memory of a buffer as soon as no graph may use it.
    pub(crate) fn free(&mut self, allocation: Allocation, driver: &Driver) {
        if self.alive > 0 {
            self.dropped.push(allocation);
        } else {
            allocation.free(driver);
        }
    }
}
