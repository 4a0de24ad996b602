//! Sensors of a GPU, read by NVML.
//!
//! NVML (`libnvidia-ml.so.1`) comes with the driver and is loaded at the first use.

#[cfg(feature = "driver")]
use std::sync::OnceLock;

#[cfg(feature = "driver")]
use nvml_wrapper::{Nvml, enum_wrappers::device::TemperatureSensor, error::NvmlError};

use crate::Error;

/// Sensors of one GPU.
#[derive(Debug)]
pub struct Sensors {
    #[cfg(feature = "driver")]
    gpu: nvml_wrapper::Device<'static>,
    #[cfg(not(feature = "driver"))]
    gpu: crate::driver::api::Absent,
}

/// Readings at one moment; NaN where a sensor is missing or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Share of the last sample period in which a kernel ran, from 0 to 1.
    ///
    /// A period lasts between a sixth of a second and a second.
    pub utilization: f64,
    /// Bytes of memory in use, by all processes.
    pub memory_used: f64,
    /// Power in watts.
    pub power_w: f64,
    /// Temperature in degrees Celsius.
    pub temperature_c: f64,
}

#[cfg(not(feature = "driver"))]
impl Sensors {
    /// Finds no sensors.
    pub(crate) fn of(_address: &str) -> Result<Self, Error> {
        Err(Error::NoSensors(crate::driver::api::NO_DRIVER.into()))
    }

    /// Reads all sensors.
    #[must_use]
    pub fn read(&self) -> Reading {
        match self.gpu {}
    }
}

#[cfg(feature = "driver")]
impl Sensors {
    /// Finds the sensors of the GPU with the PCI address `address`.
    pub(crate) fn of(address: &str) -> Result<Self, Error> {
        static NVML: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
        let nvml = NVML.get_or_init(Nvml::init).as_ref();
        let gpu = nvml.map(|nvml| nvml.device_by_pci_bus_id(address)).map_err(said)?.map_err(|error| said(&error))?;
        Ok(Self { gpu })
    }

    /// Reads all sensors.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            utilization: or_nan(self.gpu.utilization_rates().map(|rates| 0.01 * f64::from(rates.gpu))),
            memory_used: or_nan(self.gpu.memory_info().map(|memory| memory.used as f64)),
            power_w: or_nan(self.gpu.power_usage().map(|mw| 1e-3 * f64::from(mw))),
            temperature_c: or_nan(self.gpu.temperature(TemperatureSensor::Gpu).map(f64::from)),
        }
    }
}

impl Reading {
    /// Formats utilization, power, memory and temperature, as far as they are known.
    pub fn texts(self) -> impl Iterator<Item = String> {
        let Self { utilization, memory_used, power_w, temperature_c } = self;
        let texts = [
            (utilization, format!("{:.0}% busy", 100.0 * utilization)),
            (power_w, format!("{power_w:.0} W")),
            (memory_used, format!("{:.1} GB", 1e-9 * memory_used)),
            (temperature_c, format!("{temperature_c:.0} \u{b0}C")),
        ];
        texts.into_iter().filter(|(value, _)| value.is_finite()).map(|(_, text)| text)
    }
}

#[cfg(feature = "driver")]
fn or_nan(value: Result<f64, NvmlError>) -> f64 {
    value.unwrap_or(f64::NAN)
}

#[cfg(feature = "driver")]
fn said(error: &NvmlError) -> Error {
    Error::NoSensors(error.to_string())
}
