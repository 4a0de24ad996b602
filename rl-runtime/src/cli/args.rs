//! Values of arguments, and numbers of threads.

use rl_agents::Isa;
use rl_agents::settings::{MAX_CONV, MAX_UNITS};

use crate::config::{Device, Layers, parse_device};
use crate::thread::cores;
use crate::{Error, print};

/// Parses an enum by its name in settings.
pub(crate) fn parse_name<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

pub(crate) fn parse_conv(text: &str) -> Result<[usize; 3], String> {
    let size = |size: &str| size.parse().ok().filter(|size| (1..=MAX_CONV as usize).contains(size));
    let sizes: Option<Vec<usize>> = text.split('x').map(size).collect();
    let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
    sizes.ok_or_else(|| format!("not CHANNELSxKERNELxSTRIDE, such as 16x3x1, with numbers from 1 to {MAX_CONV}"))
}

pub(crate) fn parse_units(text: &str) -> Result<usize, String> {
    let units = text.parse().ok().filter(|units| (1..=MAX_UNITS as usize).contains(units));
    units.ok_or_else(|| format!("not a whole number from 1 to {MAX_UNITS}"))
}

pub(crate) fn parse_minibatch(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (2..=1 << 20).contains(n)).ok_or_else(|| "not a whole number from 2 to 1048576".into())
}

pub(crate) fn parse_ms(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ms| (0.0..=3.6e6).contains(ms)).ok_or_else(|| "not a number from 0 to 3600000".into())
}

pub(crate) fn parse_share(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|share| (0.0..1.0).contains(share)).ok_or_else(|| "not a number from 0 to below 1".into())
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=86_400.0).contains(s)).ok_or_else(|| "not a number from 0.01 to 86400".into())
}

pub(crate) fn parse_count(text: &str) -> Result<i64, String> {
    let plain = text.replace('_', "");
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 1e15).then_some(x as i64);
    plain.parse().ok().or_else(|| plain.parse().ok().and_then(whole)).ok_or_else(|| "not a whole number".into())
}

/// Parses a device that runs kernels.
pub(crate) fn parse_kernels_device(text: &str) -> Result<Device, String> {
    let device = parse_device(text).filter(|device| !matches!(device, Device::Auto | Device::Cpu));
    device.ok_or_else(|| "not cuda, cuda:i or emulated".into())
}

/// Limits instruction sets to what the variable `RL_ISA` names.
///
/// For comparisons. Processes of this program inherit it.
///
/// # Errors
/// [`Error::Config`] if it is unknown, or this machine does not have it.
pub(crate) fn limit_isa() -> Result<(), Error> {
    const NAME: &str = "RL_ISA";
    let Some(given) = std::env::var_os(NAME).filter(|given| !given.is_empty()) else { return Ok(()) };
    let given = given.to_string_lossy();
    let isa = parse_name::<Isa>(&given).map_err(|error| Error::config(format!("the variable {NAME}: {error}")))?;
    if !isa.supported() {
        return Err(Error::config(format!("the variable {NAME}: this machine does not have {given}")));
    }
    isa.limit();
    Ok(())
}

/// Sets the number of threads of candle's products, overriding the environment.
///
/// The products run on rayon's global pool, where thousands of threads make the reference learner a hundred times slower.
///
/// Without this variable, candle counts the processor's cores for each product by reading /proc/cpuinfo: A2C on CartPole went
/// from 20 k to 83 k env steps/s with it.
#[allow(unsafe_code)]
pub(crate) fn set_matrix_threads(threads: usize) {
    const NAME: &str = "RAYON_NUM_THREADS";
    let threads = threads.to_string();
    if let Some(given) = std::env::var_os(NAME).filter(|given| *given != *threads) {
        print::err(&format!("warning: {NAME} is {}; threads = {threads} overrides it", given.display()));
    }
    // SAFETY: of other threads, the verbs have started at most those of signals and pauses, which read no environment, and those
    // of worker processes, which read it through std, under its lock.
    unsafe { std::env::set_var(NAME, threads) };
}

pub(crate) fn threads(given: Option<u32>) -> usize {
    given.map_or_else(cores, |n| n as usize)
}

/// Returns the number of worker processes to start before the settings are checked.
///
/// As many as there are cores, or fewer by a given number of threads, workers or environments.
pub(crate) fn ahead(given: &Layers) -> usize {
    let numbers = ["threads", "workers", "n_envs"].into_iter().filter_map(|key| given.number(key));
    numbers.map(|n| n as usize).filter(|n| *n > 0).fold(threads(None), usize::min)
}
