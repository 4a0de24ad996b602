//! The kernels' sources and what they were compiled to, as they were when this crate was built.

/// One file of kernels.
pub(crate) struct Module {
    /// The stem of its file.
    pub(crate) name: &'static str,
    /// CUDA C++.
    pub(crate) source: &'static str,
    /// What the driver loads.
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

/// Every file of kernels. `cargo xtask ptx` compiles each file in `kernels` that ends in `.cu`.
pub(crate) const MODULES: &[Module] = modules![
    "acrobot",
    "breakout",
    "cartpole",
    "clock",
    "gae",
    "gather",
    "math",
    "mountain_car",
    "mountain_car_continuous",
    "normalize",
    "pendulum",
    "sample",
    "snake",
];

/// The file with this stem.
///
/// # Panics
/// If there is none.
pub(crate) fn module(name: &str) -> &'static Module {
    MODULES.iter().find(|module| module.name == name).expect("a file of kernels of this crate")
}

/// What they include, by file name.
pub(crate) const HEADERS: &[(&str, &str)] =
    headers!["cuda_on_host.h", "lanes.cuh", "math.cuh", "mountain_car.cuh", "numbers.cuh", "philox.cuh", "vec_env.cuh",];

/// The text of a file of kernels, or of one that they include; and a module that it goes into.
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
