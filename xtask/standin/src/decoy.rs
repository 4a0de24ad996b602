//! Drivers that are no use: a toolkit's stub, an old one, one without a function.

use std::fmt::Write as _;

use crate::api::FUNCTIONS;

/// Library in the place of the driver, which answers and does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Decoy {
    /// Function that it lacks; empty for none.
    pub without: &'static str,
    /// Result of `cuInit`.
    pub init: i32,
    /// Version of CUDA that it supports.
    pub version: i32,
}

impl Decoy {
    /// Returns the C source of the library.
    #[must_use]
    pub fn source(&self) -> String {
        let Self { without, init, version } = self;
        let mut source = format!("int cuInit(unsigned flags) {{ return {init}; }}\n");
        let _ = writeln!(source, "int cuDriverGetVersion(int* version) {{ *version = {version}; return {init}; }}");
        for name in FUNCTIONS.iter().filter(|name| ![without, "cuInit", "cuDriverGetVersion"].contains(name)) {
            let _ = writeln!(source, "int {name}(void) {{ return 100; }}");
        }
        source
    }
}

/// Drivers that every program must refuse, and why, as it says.
pub const DECOYS: &[(Decoy, &str)] = &[
    (
        Decoy { without: "", init: 34, version: 12000 },
        "no CUDA device: a toolkit's stub is loaded in place of the driver; take the toolkit's stubs folder out of LD_LIBRARY_PATH",
    ),
    (
        Decoy { without: "", init: 0, version: 11040 },
        "no CUDA device: the driver supports CUDA 11.4, but driver 525 (CUDA 12.0) or newer is needed",
    ),
    (
        Decoy { without: "cuGraphInstantiateWithFlags", init: 0, version: 12000 },
        "no CUDA device: the driver library lacks cuGraphInstantiateWithFlags; driver 525 (CUDA 12.0) or newer is needed",
    ),
    (Decoy { without: "", init: 100, version: 12000 }, "no CUDA device: the driver finds none"),
];
