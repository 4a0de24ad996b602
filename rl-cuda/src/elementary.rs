//! Elementary functions of the kernels, applied number by number.
//!
//! Tests compare the results with the functions of rl-envs.

use crate::driver::args::args;
use crate::{Buffer, Device, Error};

/// An elementary function of the kernels, named as in [`rl_envs::math`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    /// The sine of `sin_cos`.
    Sin = 0,
    /// The cosine of `sin_cos`.
    Cos = 1,
    /// `wrap_angle`.
    WrapAngle = 2,
    /// `exp`.
    Exp = 3,
    /// `ln`.
    Ln = 4,
    /// `tanh`.
    Tanh = 5,
    /// `round_to_byte`, as a number.
    RoundToByte = 6,
}

const BLOCK: u32 = 128;

/// Applies `function` to every element of `x`, (N), on the device.
///
/// # Errors
/// [`Error::Memory`], [`Error::Launch`] or [`Error::Driver`].
#[allow(unsafe_code)]
pub fn apply(device: &Device, function: Function, x: &[f32]) -> Result<Vec<f32>, Error> {
    let kernel = device.kernel("math", "math_apply".into())?;
    let stream = device.stream()?;
    let (from, to) = (Buffer::of(device, x)?, Buffer::<f32>::zeros(device, x.len())?);
    let args = args![function as u32, from, to, x.len() as u32];
    // SAFETY: the parameters are those of `math_apply(u32, const f32*, f32*, u32)`; both buffers hold `x.len()` numbers.
    unsafe { kernel.launch(&stream, x.len() as u64, BLOCK, args)? };
    let mut y = vec![0.0; x.len()];
    stream.download(&mut y, &to.view())?;
    Ok(y)
}

/// Returns words of the random streams 0 to `n` at one step, (count, N).
///
/// # Errors
/// [`Error::Memory`], [`Error::Launch`] or [`Error::Driver`].
#[allow(unsafe_code)]
pub fn random(
    device: &Device,
    seed: u64,
    step: u64,
    purpose: rl_envs::Purpose,
    count: usize,
    n: usize,
) -> Result<Vec<u32>, Error> {
    let kernel = device.kernel("math", "math_random".into())?;
    let stream = device.stream()?;
    let to = Buffer::<u32>::zeros(device, count * n)?;
    let args = args![seed, step, purpose as u32, count as u32, to, n as u32];
    // SAFETY: the parameters are those of `math_random(u64, u64, u32, u32, u32*, u32)`; the buffer holds `count * n` words.
    unsafe { kernel.launch(&stream, n as u64, BLOCK, args)? };
    let mut words = vec![0; count * n];
    stream.download(&mut words, &to.view())?;
    Ok(words)
}
