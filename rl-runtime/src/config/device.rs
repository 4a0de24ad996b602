//! Devices to train on, as a setting names them.

use std::collections::BTreeSet;

use crate::Error;

/// Texts that name devices.
pub(super) const DEVICES: &str = "auto, cpu, cuda, cuda:i, a list of different GPUs such as cuda:0,1, emulated or emulated:n";

/// Maximum number of devices, each of which needs a slice of the environments.
const MAX_DEVICES: usize = 16;

/// Reads the devices of a training, one or several that share it.
pub(super) fn parse_devices(text: &str) -> Option<Vec<Device>> {
    let one = match text {
        "auto" => Some(Device::Auto),
        "cpu" => Some(Device::Cpu),
        "cuda" => Some(Device::Cuda(0)),
        "emulated" => Some(Device::Emulated),
        _ => None,
    };
    if let Some(device) = one {
        return Some(vec![device]);
    }
    if let Some(n) = text.strip_prefix("emulated:") {
        let n = n.parse().ok().filter(|n| (1..=MAX_DEVICES).contains(n))?;
        return Some(vec![Device::Emulated; n]);
    }
    let ordinals: Vec<usize> = text.strip_prefix("cuda:")?.split(',').map(|i| i.parse().ok()).collect::<Option<_>>()?;
    let different = ordinals.iter().collect::<BTreeSet<_>>().len() == ordinals.len();
    (different && ordinals.len() <= MAX_DEVICES).then(|| ordinals.into_iter().map(Device::Cuda).collect())
}

/// Reads one device.
pub(crate) fn parse_device(text: &str) -> Option<Device> {
    parse_devices(text).filter(|devices| devices.len() == 1).map(|devices| devices[0])
}

/// Where to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The GPU where a measurement says that it pays, else the CPU.
    Auto,
    Cpu,
    Cuda(usize),
    /// The kernels of a GPU, compiled for the host.
    Emulated,
}

impl Device {
    /// Opens the device; `None` for the CPU.
    ///
    /// # Errors
    /// [`Error::Device`] if it does not exist.
    pub(crate) fn open(self) -> Result<Option<rl_cuda::Device>, Error> {
        Ok(match self {
            Self::Auto | Self::Cpu => None,
            Self::Cuda(ordinal) => Some(rl_cuda::Device::open(ordinal)?),
            Self::Emulated => Some(rl_cuda::Device::emulated()?),
        })
    }

    /// Returns the sensors of a GPU, if it has any that can be read.
    pub(crate) fn sensors(self) -> Option<rl_cuda::Sensors> {
        let Self::Cuda(ordinal) = self else { return None };
        rl_cuda::Device::open(ordinal).and_then(|device| device.sensors()).ok()
    }
}
