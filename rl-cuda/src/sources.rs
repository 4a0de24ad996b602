//! CUDA sources and their compiled PTX, embedded when this crate is built.

/// One `.cu` file of kernels, with its PTX.
pub(crate) struct Module {
    /// Stem of the file name.
    pub(crate) name: &'static str,
    /// CUDA C++ source.
    pub(crate) source: &'static str,
    /// PTX, loaded by the driver.
    pub(crate) ptx: &'static str,
}

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(Module {
            name: $name,
            source: include_str!(concat!("../kernels/", $name, ".cu")),
            ptx: include_str!(concat!("../ptx/", $name, ".ptx")),
        }),*]
    };
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file of kernels.
///
/// `cargo xtask ptx` compiles each file in `kernels` that ends in `.cu`.
pub(crate) const MODULES: &[Module] = modules![
    "acrobot",
    "breakout",
    "cartpole",
    "clock",
    "conv",
    "dense",
    "episodes",
    "gae",
    "gather",
    "learner",
    "math",
    "mountain_car",
    "mountain_car_continuous",
    "normalize",
    "pendulum",
    "permutation",
    "policy_gradient",
    "q_learning",
    "sample",
    "samples",
    "snake",
    "sums",
    "surrogate",
    "targets",
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
    "activation.cuh",
    "actor_critic.cuh",
    "cuda_on_host.h",
    "lanes.cuh",
    "learner.cuh",
    "math.cuh",
    "mountain_car.cuh",
    "numbers.cuh",
    "philox.cuh",
    "phases.cuh",
    "product.cuh",
    "vec_env.cuh",
];

/// Returns the text of a source file or header, and a module that uses it.
///
/// # Panics
/// If there is no such file.
pub(crate) fn text(file: &str) -> (&'static str, &'static str) {
    if let Some(stem) = file.strip_suffix(".cu") {
        let module = module(stem);
        return (module.source, module.name);
    }
    let header = HEADERS.iter().find(|(name, _)| *name == file).expect("a header of this crate");
    (header.1, MODULES.iter().find(|module| module.source.contains(file)).map_or("cartpole", |module| module.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_kernels_is_embedded() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        for entry in std::fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = match name.strip_suffix(".cu") {
                Some(stem) => MODULES.iter().any(|module| module.name == stem),
                None => HEADERS.iter().any(|(header, _)| *header == name),
            };
            assert!(listed, "{name}");
        }
    }
}
