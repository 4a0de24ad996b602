//! CUDA sources and their compiled PTX, embedded when this crate is built.

use std::fmt;

/// One `.cu` file of kernels, with its PTX.
pub struct Module {
    /// Stem of the file name.
    pub(crate) name: &'static str,
    /// CUDA C++ source, which an emulated device compiles.
    pub(crate) source: &'static str,
    /// PTX, loaded by the driver.
    pub(crate) ptx: &'static str,
}

impl Module {
    /// Declares the kernels of an environment of your own.
    ///
    /// `name` is the stem of the file and the prefix of its kernels. `source` includes no other headers than those of this crate,
    /// and `ptx` is compiled from it. See [`EnvKernels`](crate::EnvKernels).
    ///
    /// # Panics
    /// If `name` is empty, or has other characters than ASCII letters, digits and `_`.
    #[must_use]
    pub const fn new(name: &'static str, source: &'static str, ptx: &'static str) -> Self {
        let (bytes, mut i) = (name.as_bytes(), 0);
        assert!(!bytes.is_empty(), "a module needs a name");
        while i < bytes.len() {
            assert!(bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_', "a module's name must be an identifier");
            i += 1;
        }
        Self { name, source, ptx }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! modules {
    ($($folder:literal: $($name:literal),*;)*) => {
        &[$($(Module {
            name: $name,
            source: include_str!(concat!("../../kernels/", $folder, "/", $name, ".cu")),
            ptx: include_str!(concat!("../../ptx/", $name, ".ptx")),
        }),*),*]
    };
}

macro_rules! headers {
    ($($folder:literal: $($name:literal),*;)*) => {
        &[$($(($name, include_str!(concat!("../../kernels/", $folder, "/", $name)))),*),*]
    };
}

/// Every file of kernels, by folder.
///
/// `cargo xtask ptx` compiles each file below `kernels` that ends in `.cu`.
pub(crate) const MODULES: &[Module] = modules![
    "envs": "acrobot", "cartpole", "clock", "hide", "mountain_car", "mountain_car_continuous", "pendulum", "repeat_first", "snake";
    "grid": "door_key", "empty", "multi_room";
    "minatar": "asterix", "breakout", "freeway", "seaquest", "space_invaders";
    "learner": "continuous", "learner", "off_policy", "policy_gradient", "q_learning", "sample", "surrogate";
    "net": "columns", "conv", "dense", "few", "gated", "layer_norm", "memory", "narrow", "normalize", "samples", "wide";
    "sums": "episodes", "gae", "gather", "math", "permutation", "sums", "targets";
];

/// Returns the module whose file has the stem `name`.
///
/// # Panics
/// If no module has this name.
pub(crate) fn module(name: &str) -> &'static Module {
    MODULES.iter().find(|module| module.name == name).expect("a file of kernels of this crate")
}

/// Headers that the kernels include: (file name, text).
pub(crate) const HEADERS: &[(&str, &str)] = headers![
    "envs": "lanes.cuh", "mountain_car.cuh", "vec_env.cuh";
    "grid": "grid_world.cuh";
    "minatar": "minatar.cuh";
    "learner": "actor_critic.cuh", "learner.cuh";
    "net": "activation.cuh", "product.cuh";
    "sums": "cuda_on_host.h", "math.cuh", "numbers.cuh", "phases.cuh", "philox.cuh";
];

/// Returns the text of a source file or header, and a module that uses it.
///
/// # Panics
/// If there is no such file.
pub(crate) fn text(file: &str) -> (&'static str, &'static Module) {
    if let Some(stem) = file.strip_suffix(".cu") {
        let module = module(stem);
        return (module.source, module);
    }
    let header = HEADERS.iter().find(|(name, _)| *name == file).expect("a header of this crate");
    (header.1, MODULES.iter().find(|of| of.source.contains(file)).unwrap_or_else(|| module("cartpole")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_kernels_is_embedded() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let folders = std::fs::read_dir(dir).unwrap();
        for entry in folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap()) {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = match name.strip_suffix(".cu") {
                Some(stem) => MODULES.iter().any(|module| module.name == stem),
                None => HEADERS.iter().any(|(header, _)| *header == name),
            };
            assert!(listed, "{name}");
        }
    }
}
