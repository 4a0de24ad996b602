//! Trainings on devices: emulated, and on the stand-in driver.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod crossover;
mod device;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stand_in;
