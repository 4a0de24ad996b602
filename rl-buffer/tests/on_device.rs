//! Advantages on the device have the same bits as on the host.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::sync::Arc;

use ndarray::{Array2, ArrayView2};
use rl_buffer::{Error, Memory, Pinned, Rollout, RolloutShape, Streamed, returns};
use rl_cuda::targets::{self, TargetKernels};
use rl_cuda::{Buffer, Device, Element};
use rl_envs::{ActionSpace, Purpose, Rng, Space};

fn upload<T: Element>(device: &Device, from: &[T]) -> Buffer<T> {
    Buffer::of(device, from).unwrap()
}

fn download<T: Element>(device: &Device, from: &Buffer<T>) -> Vec<T> {
    device.synchronize().unwrap();
    let mut to = vec![T::default(); from.len()];
    device.stream().unwrap().download(&mut to, &from.view()).unwrap();
    to
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn shaped<T>(shape: (usize, usize), of: &[T]) -> ArrayView2<'_, T> {
    ArrayView2::from_shape(shape, of).unwrap()
}

#[test]
fn gae_on_the_device_has_the_same_bits() {
    Device::for_tests().iter().for_each(compare_gae);
}

#[test]
fn mistakes_planted_into_gae_are_noticed() {
    let mistakes = [
        ["(terminated[at] | truncated[at]) == 0", "terminated[at] == 0"],
        ["terminated[at] == 0;", "(terminated[at] | truncated[at]) == 0;"],
        ["gamma * lambda * next", "gamma * (lambda * next)"],
        ["n >= n_envs", "n + 1 >= n_envs"],
        ["t-- > 0", "t-- > 1"],
    ];
    let unnoticed = Device::unnoticed("gae.cu", &mistakes, compare_gae);
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn compare_gae(device: &Device) {
    let (kernels, stream) = (TargetKernels::new(device).unwrap(), device.stream().unwrap());
    for (n_steps, n) in [(1, 1), (7, 31), (128, 33), (5, 65), (40, 1000)] {
        let (len, shape) = (n_steps * n, (n_steps, n));
        let mut rng = Rng::new(4, n as u32, n_steps as u64, Purpose::Init);
        let mut numbers = || (0..len).map(|_| rng.normal()).collect::<Vec<_>>();
        let (rewards, next_values, values) = (numbers(), numbers(), numbers());
        let mut flags = || (0..len).map(|_| u8::from(rng.uniform() < 0.1)).collect::<Vec<_>>();
        let (terminated, truncated) = (flags(), flags());
        // The value after a terminated step is never read.
        let next_values: Vec<_> =
            next_values.into_iter().zip(&terminated).map(|(v, &end)| if end == 1 { f32::NAN } else { v }).collect();
        let mut expected = Array2::zeros(shape);
        let steps = returns::Outcomes {
            rewards: shaped(shape, &rewards),
            terminated: shaped(shape, &terminated),
            truncated: shaped(shape, &truncated),
            next_values: shaped(shape, &next_values),
        };
        returns::gae(&steps, shaped(shape, &values), 0.99, 0.95, expected.view_mut());
        let [rewards, next_values, values] = [&rewards, &next_values, &values].map(|numbers| upload(device, numbers));
        let [terminated, truncated] = [&terminated, &truncated].map(|flags| upload(device, flags));
        let mut advantages = Buffer::zeros(device, len).unwrap();
        let steps = targets::Steps {
            n_envs: n,
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
            values: values.view(),
        };
        kernels.gae(&stream, &steps, 0.99, 0.95, &advantages.view_mut()).unwrap();
        assert_eq!(bits(&download(device, &advantages)), bits(expected.as_slice().unwrap()), "{device}: {n_steps} x {n}");
        let mut longer = Buffer::zeros(device, len + n).unwrap();
        assert!(kernels.gae(&stream, &steps, 0.99, 0.95, &longer.view_mut()).is_err());
    }
}

#[test]
fn a_lost_device_is_no_lack_of_memory() {
    if !Device::for_tests().iter().any(Device::is_stand_in) {
        return;
    }
    for schedule in ["eager", "latest"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "memory_of_a_lost_device", "--ignored"]);
        let status = child.env("RL_STANDIN_LAUNCHES", "0").env("RL_STANDIN_SCHEDULE", schedule).status().unwrap();
        assert!(status.success(), "{schedule}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn memory_of_a_lost_device() {
    let device = Device::for_tests().into_iter().find(Device::is_stand_in).unwrap();
    let (stream, mut clock) = (device.stream().unwrap(), Buffer::zeros(&device, 2).unwrap());
    let kernels = TargetKernels::new(&device).unwrap();
    // The launch or the wait for it fails, whichever is first to learn of it.
    let error = kernels.advance_clock(&stream, &clock.view_mut(), 1).and_then(|()| device.synchronize()).unwrap_err();
    assert!(error.to_string().contains("LAUNCH_FAILED"), "{error}");
    let shape = RolloutShape::new(2, 1, &Space::vector(&[0.0], &[1.0]), &ActionSpace::Discrete { n: 2, masked: false });
    for memory in [Arc::new(Pinned(device.clone())) as Arc<dyn Memory>, Arc::new(Streamed::new(stream))] {
        let error = Rollout::new_in(shape, &memory).unwrap_err();
        let lost = matches!(&error, Error::Device(rl_cuda::Error::Driver { reason, .. }) if reason.contains("LAUNCH_FAILED"));
        assert!(lost, "{error}");
    }
    let error = Buffer::<f32>::zeros(&device, 1).unwrap_err();
    assert!(matches!(error, rl_cuda::Error::Driver { .. }), "{error}");
}
