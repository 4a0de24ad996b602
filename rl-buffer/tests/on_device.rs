//! Advantages and replayed batches on the device have the same bits as on the host.
#![allow(clippy::unwrap_used, reason = "tests")]

use ndarray::{Array2, ArrayView2};
use rl_buffer::{ActionKind, ActionSlice, Dtype, ObsSlice, ReplayBuffer, StepSlices, TransitionShape, returns};
use rl_cuda::targets::{self, Batch, Row, Targets};
use rl_cuda::{Buffer, Device, Element};
use rl_envs::{Purpose, Rng};

fn upload<T: Element>(device: &Device, from: &[T]) -> Buffer<T> {
    let mut to = Buffer::zeros(device, from.len()).unwrap();
    device.stream().unwrap().upload(&to.view_mut(), from).unwrap();
    to
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

#[test]
fn mistakes_planted_into_gather_are_noticed() {
    let mistakes = [
        ["index < n_rows ? index : n_rows - 1", "index < n_rows ? index : n_rows - 2"],
        ["index < n_rows ? index : n_rows - 1", "index < n_rows ? index : 0"],
        ["(row.mask_len + 3) / 4", "row.mask_len / 4"],
        ["if (i >= (u64)n * len) return;", "if (i >= (u64)n * len - 1) return;"],
        ["8 * (m & 3)", "8 * (m & 1)"],
        ["m < row.mask_len", "m < row.mask_len - 1"],
        [
            "batch.rewards[b] = word;\n    } else if (j == 1) {\n        batch.discounts[b]",
            "batch.discounts[b] = word;\n    } else if (j == 1) {\n        batch.rewards[b]",
        ],
        ["batch.next_obs[b * row.obs + j] = word;", "batch.obs[b * row.obs + j] = word;"],
        ["if (i >= (u64)n * 2 * d) return;", "if (i >= (u64)n * d) return;"],
        ["next_obs[b * d + j - d] = byte;", "next_obs[b * d + j - d] = byte + 1;"],
    ];
    let unnoticed = Device::unnoticed("gather.cu", &mistakes, compare_gather);
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn compare_gae(device: &Device) {
    let (kernels, stream) = (Targets::new(device).unwrap(), device.stream().unwrap());
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
        let steps = returns::Steps {
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
            rewards: rewards.view(),
            terminated: terminated.view(),
            truncated: truncated.view(),
            next_values: next_values.view(),
            values: values.view(),
        };
        kernels.gae(&stream, &steps, n, 0.99, 0.95, &advantages.view_mut()).unwrap();
        assert_eq!(bits(&download(device, &advantages)), bits(expected.as_slice().unwrap()), "{device}: {n_steps} x {n}");
        let mut longer = Buffer::zeros(device, len + n).unwrap();
        assert!(kernels.gae(&stream, &steps, n, 0.99, 0.95, &longer.view_mut()).is_err());
    }
}

/// Returns a full buffer, its rows on a device, and their layout.
fn replay(obs: Dtype, mask: Option<usize>) -> (ReplayBuffer, Vec<u32>, Vec<u8>, Row) {
    let (d, n, capacity, forces_len) = (5, 7, 49, 3);
    let a = mask.unwrap_or(0);
    let actions = if mask.is_some() { ActionKind::Discrete { masked: mask } } else { ActionKind::Continuous { len: forces_len } };
    let shape = TransitionShape { n_envs: n, obs_len: d, obs, stack: 1, actions, n_step: 1, gamma: 0.9 };
    let mut buffer = ReplayBuffer::new(shape, capacity).unwrap();
    let mut rng = Rng::new(1, 2, 3, Purpose::Init);
    let (mut words, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..capacity / n {
        let mut floats = |len: usize| (0..len).map(|_| rng.normal()).collect::<Vec<_>>();
        let [from, next, finals] = std::array::from_fn(|_| floats(n * d));
        let (rewards, forces) = (floats(n), floats(forces_len * n));
        let mut small = |len: usize, below| (0..len).map(|_| rng.below(below) as u8).collect::<Vec<_>>();
        let [from_bytes, next_bytes, final_bytes] = std::array::from_fn(|_| small(n * d, 256));
        let [terminated, truncated] = std::array::from_fn(|_| small(n, 2));
        let [masks, final_masks] = std::array::from_fn(|_| small(n * a, 2));
        let discrete: Vec<u32> = small(n, 4).into_iter().map(u32::from).collect();
        fn of<'a>(kind: Dtype, floats: &'a [f32], bytes: &'a [u8]) -> ObsSlice<'a> {
            if kind == Dtype::F32 { ObsSlice::F32(floats) } else { ObsSlice::U8(bytes) }
        }
        let step = StepSlices {
            obs: of(obs, &next, &next_bytes),
            actions: if mask.is_some() { ActionSlice::Discrete(&discrete) } else { ActionSlice::Continuous(&forces) },
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            final_obs: of(obs, &finals, &final_bytes),
            masks: mask.map(|_| [&masks[..], &final_masks[..]]),
        };
        buffer.push(of(obs, &from, &from_bytes), &step).expect("finite");
        for i in 0..n {
            let ended = terminated[i] | truncated[i] == 1;
            let at = |len: usize| i * len..(i + 1) * len;
            if obs == Dtype::F32 {
                words.extend(bits(&from[at(d)]));
                words.extend(bits(if ended { &finals[at(d)] } else { &next[at(d)] }));
            } else {
                bytes.extend(&from_bytes[at(d)]);
                bytes.extend(if ended { &final_bytes[at(d)] } else { &next_bytes[at(d)] });
            }
            if mask.is_some() {
                words.push(discrete[i]);
            } else {
                words.extend(bits(&forces[at(forces_len)]));
            }
            let discount = if terminated[i] == 1 { 0.0f32 } else { 0.9 };
            words.extend([rewards[i].to_bits(), discount.to_bits()]);
            for four in (if ended { &final_masks[at(a)] } else { &masks[at(a)] }).chunks(4) {
                words.push(four.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)));
            }
        }
    }
    let obs = if obs == Dtype::F32 { d } else { 0 };
    (buffer, words, bytes, Row { obs, action: if mask.is_some() { 1 } else { forces_len }, mask_len: a })
}

#[test]
fn a_batch_gathered_on_the_device_is_the_buffers() {
    Device::for_tests().iter().for_each(compare_gather);
}

fn compare_gather(device: &Device) {
    let (kernels, stream) = (Targets::new(device).unwrap(), device.stream().unwrap());
    for (obs, mask) in [(Dtype::F32, None), (Dtype::F32, Some(4)), (Dtype::U8, Some(6)), (Dtype::U8, None)] {
        let (buffer, words, bytes, row) = replay(obs, mask);
        let (words, bytes) = (upload(device, &words), upload(device, &bytes));
        for n in [1, 31, 33, 65, 1000] {
            let mut expected = buffer.batch(n).unwrap();
            let mut rng = Rng::new(9, n as u32, 0, Purpose::Replay);
            let random: Vec<u32> = (0..n).map(|_| rng.next_u32()).collect();
            buffer.sample(&random, &mut expected).unwrap();
            let expected = expected.columns();
            let indices = upload(device, expected.indices);
            let mut batch = Batch::zeros(device, row, n).unwrap();
            kernels.gather_words(&stream, &words.view(), &indices.view(), &mut batch).unwrap();
            let context = format!("{device}: {obs:?}, {mask:?}, {n}");
            match (expected.obs, expected.next_obs) {
                (ObsSlice::F32(obs), ObsSlice::F32(next_obs)) => {
                    assert_eq!(download(device, &batch.obs), bits(obs), "{context}");
                    assert_eq!(download(device, &batch.next_obs), bits(next_obs), "{context}");
                }
                (ObsSlice::U8(obs), ObsSlice::U8(next_obs)) => {
                    let [mut to, mut next] = std::array::from_fn(|_| Buffer::zeros(device, obs.len()).unwrap());
                    let (to_view, next_view) = (to.view_mut(), next.view_mut());
                    kernels.gather_bytes(&stream, &bytes.view(), &indices.view(), &to_view, &next_view).unwrap();
                    assert_eq!((&*download(device, &to), &*download(device, &next)), (obs, next_obs), "{context}");
                }
                _ => unreachable!("both are of one kind"),
            }
            let actions = match expected.actions {
                ActionSlice::Discrete(actions) => actions.to_vec(),
                ActionSlice::Continuous(actions) => bits(actions),
            };
            assert_eq!(download(device, &batch.actions), actions, "{context}");
            assert_eq!(bits(&download(device, &batch.rewards)), bits(expected.rewards), "{context}");
            assert_eq!(bits(&download(device, &batch.discounts)), bits(expected.discounts), "{context}");
            assert_eq!(download(device, &batch.next_masks), expected.next_masks, "{context}");
        }
    }
    // An index beyond the last row reads the last row.
    let words = upload(device, &[1, 2, 3, 4, 5, 6]);
    let mut batch = Batch::zeros(device, Row { obs: 0, action: 1, mask_len: 0 }, 2).unwrap();
    kernels.gather_words(&stream, &words.view(), &upload(device, &[9, 0]).view(), &mut batch).unwrap();
    assert_eq!(download(device, &batch.actions), [4, 1]);
}
