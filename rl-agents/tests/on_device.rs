//! Actions drawn and observations normalized on the device, bit for bit as here.
#![allow(clippy::unwrap_used, reason = "tests")]

use rl_agents::distributions::{log_softmax, sample};
use rl_agents::{Acted, Acting, ActorCritic, Choice, Moments, NetConfig, Policy as _, Scratch};
use rl_buffer::ObsSlice;
use rl_cuda::targets::{ObsSlices, PolicyStreams, TargetKernels};
use rl_cuda::{Buffer, Device, Element};
use rl_envs::{ActionSpace, Actions, Purpose, Rng, Space, math, rng};

fn upload<T: Element>(device: &Device, from: &[T]) -> Buffer<T> {
    Buffer::of(device, from).unwrap()
}

fn download<T: Element>(device: &Device, from: &Buffer<T>) -> Vec<T> {
    device.synchronize().unwrap();
    let mut to = vec![T::default(); from.len()];
    device.stream().unwrap().download(&mut to, &from.view()).unwrap();
    to
}

#[test]
fn actions_drawn_on_the_device_are_the_policys() {
    Device::for_tests().iter().for_each(compare_sampling);
}

#[test]
fn mistakes_planted_into_sampling_are_noticed() {
    let mistakes = [
        ["if (i >= n) return;", "if (i + 1 >= n) return;"],
        ["masks ? masks + i * a : 0", "0"],
        ["mask[j] == 0 ? MASKED", "mask[j] != 0 ? MASKED"],
        ["sum += math::exp(logit - max);", "sum += math::exp(logit) / math::exp(max);"],
        ["clock->steps + t", "clock->steps"],
        ["PURPOSE_POLICY", "PURPOSE_STEP"],
        ["first_env + (u32)i", "(u32)i"],
        ["if (cumulative > drawn) break;", "if (cumulative >= drawn + 1e-3f) break;"],
        ["log_probs[i] = last_log_prob;", "log_probs[i] = row[last] - max - log_sum + 1e-6f;"],
    ];
    let unnoticed = Device::unnoticed("sample.cu", &mistakes, compare_sampling);
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

/// Policy whose means are given: the network has no layers to speak of.
fn compare_gaussian(device: &Device) {
    let (kernels, stream) = (TargetKernels::new(device).unwrap(), device.stream().unwrap());
    for (n, a) in [(1, 1), (33, 2), (65, 5), (300, 9)] {
        let (space, bounds) = (Space::vector(&[-10.0], &[10.0]), (vec![-0.5; a], vec![0.75; a]));
        let actions = ActionSpace::Continuous { low: bounds.0.clone(), high: bounds.1.clone() };
        let mut policy = ActorCritic::new(&space, &actions, &NetConfig { hidden: vec![], ..NetConfig::default() }, 4).unwrap();
        // The mean of dimension j is j / 4 for every observation.
        let mut random = Rng::new(8, n as u32, a as u64, Purpose::Init);
        let log_std: Vec<f32> = (0..a).map(|_| 0.3 * random.normal()).collect();
        policy.change(|params| {
            params.fill(0.0);
            params[a..2 * a].iter_mut().zip(0..).for_each(|(bias, j)| *bias = j as f32 / 4.0);
            let first = params.len() - a;
            params[first..].copy_from_slice(&log_std);
        });
        let (seed, step, t, first_env, obs) = (0xFEDC_BA98_7654_3210, 1 << 32, 5, 70, vec![0.0; n]);
        let (mut expected, mut expected_log_probs, mut values) = (vec![0.0; n * a], vec![0.0; n], vec![0.0; n]);
        let acting = Acting {
            obs: ObsSlice::F32(&obs),
            masks: &[],
            choice: Choice::Sample { seed, step: step + t, first_env },
            envs: &[],
        };
        let acted = Acted {
            actions: Actions::Continuous(&mut expected),
            log_probs: &mut expected_log_probs,
            values: &mut values,
            states: &mut [],
        };
        policy.act(acting, acted, &mut Scratch::default()).unwrap();
        let means: Vec<f32> = (0..n).flat_map(|_| (0..a).map(|j| j as f32 / 4.0)).collect();
        let [means, log_std, bounds] = [&means, &log_std, &[bounds.0, bounds.1].concat()].map(|from| upload(device, from));
        let clock = upload(device, &[seed, step]);
        let [mut actions, mut clipped] = [(); 2].map(|()| Buffer::zeros(device, n * a).unwrap());
        let mut log_probs = Buffer::zeros(device, n).unwrap();
        let [means, log_std, bounds] = [&means, &log_std, &bounds].map(|numbers| numbers.view());
        let to = [&actions.view_mut(), &clipped.view_mut(), &log_probs.view_mut()];
        let streams = PolicyStreams { clock: clock.view(), t, first_env };
        kernels.sample_gaussian(&stream, &means, &log_std, &bounds, streams, to).unwrap();
        stream.synchronize().unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&download(device, &actions)), bits(&expected), "{device}: {n} x {a}");
        let within: Vec<f32> = expected.iter().map(|&x| math::clamp(x, -0.5, 0.75)).collect();
        assert_eq!(bits(&download(device, &clipped)), bits(&within), "{device}: {n} x {a}");
        assert_eq!(bits(&download(device, &log_probs)), bits(&expected_log_probs), "{device}: {n} x {a}");
    }
}

#[test]
fn continuous_actions_drawn_on_the_device_are_the_policys() {
    Device::for_tests().iter().for_each(compare_gaussian);
    let mistakes = [
        ["j >> 2", "0"],
        ["bounds[a + j]", "bounds[j] + 1.5f"],
        ["z = (action - mean) * math::exp(-log_std)", "z = drawn"],
        ["step = clock->steps + t", "step = clock->steps"],
        ["first_env + (u32)i", "(u32)i"],
    ];
    let in_normals = [["words.word(j & 2)", "words.word(0)"], ["j & 1 ? angle.cos : angle.sin", "angle.sin"]];
    for (file, mistakes) in [("sample.cu", &mistakes[..]), ("philox.cuh", &in_normals)] {
        let unnoticed = Device::unnoticed(file, mistakes, compare_gaussian);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}

#[test]
fn mistakes_planted_into_normalization_are_noticed() {
    let mistakes = [
        ["(u32)(i % d)", "(u32)(i % d) / 2"],
        ["-10.0f, 10.0f", "-10.0f, 10.5f"],
        ["if (i >= len) return;", "if (i + 1 >= len) return;"],
        ["end = starts[s + 1];", "end = starts[s + 1] - 1;"],
        ["if (k < len) {", "if (k <= len) {"],
        ["m2 += distance * (x[k] - mean);", "m2 += distance * distance;"],
        ["mean += distance * share[k];", "mean += distance / (f64)(count + k + 1);"],
        ["(obs[i] - mean[j]) * precision[j]", "obs[i] * precision[j] - mean[j] * precision[j]"],
    ];
    let unnoticed = Device::unnoticed("normalize.cu", &mistakes, compare_normalization);
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn compare_sampling(device: &Device) {
    let (kernels, stream) = (TargetKernels::new(device).unwrap(), device.stream().unwrap());
    for (n, a, masked) in [(1, 2, false), (31, 3, true), (33, 4, true), (65, 18, false), (1000, 2, false), (1000, 5, true)] {
        let mut random = Rng::new(8, n as u32, a as u64, Purpose::Init);
        let logits: Vec<f32> = (0..n * a).map(|_| 3.0 * random.normal()).collect();
        let mut masks: Vec<u8> = (0..n * a).map(|_| u8::from(random.uniform() < 0.6)).collect();
        masks.chunks_mut(a).for_each(|mask| mask[random.below(a as u32) as usize] = 1);
        let (seed, step, t, first_env) = (0xFEDC_BA98_7654_3210, 1 << 32, 5, 70);
        let (mut actions, mut log_probs) = (Buffer::zeros(device, n).unwrap(), Buffer::zeros(device, n).unwrap());
        let (logits_there, masks_there) = (upload(device, &logits), upload(device, &masks));
        let clock = upload(device, &[seed, step]);
        let mask_view = masks_there.view();
        kernels
            .sample_categorical(
                &stream,
                &logits_there.view(),
                masked.then_some(&mask_view),
                PolicyStreams { clock: clock.view(), t, first_env },
                &actions.view_mut(),
                &log_probs.view_mut(),
            )
            .unwrap();
        stream.synchronize().unwrap();
        let (actions, log_probs) = (download(device, &actions), download(device, &log_probs));
        for i in 0..n {
            let mut row = logits[i * a..][..a].to_vec();
            log_softmax(&mut row, if masked { &masks[i * a..][..a] } else { &[] });
            let action = sample(&row, rng::uniform(rng::word(seed, first_env + i as u32, step + t, Purpose::Policy)));
            let context = format!("{device}: row {i} of {n}, {a} actions");
            assert_eq!((actions[i], log_probs[i].to_bits()), (action, row[action as usize].to_bits()), "{context}");
        }
    }
}

#[test]
fn statistics_and_normalized_observations_on_the_device_have_the_same_bits() {
    Device::for_tests().iter().for_each(compare_normalization);
}

fn compare_normalization(device: &Device) {
    let (kernels, stream) = (TargetKernels::new(device).unwrap(), device.stream().unwrap());
    for (n_steps, d, starts) in [(1, 1, vec![0, 1]), (9, 4, vec![0, 31, 33]), (50, 6, vec![0, 16, 32, 48, 65])] {
        let n = *starts.last().unwrap() as usize;
        let mut random = Rng::new(2, n as u32, d as u64, Purpose::Init);
        let obs: Vec<f32> = (0..n_steps * n * d).map(|i| random.normal() * 10.0 + (i % d) as f32).collect();
        let mut there = upload(device, &obs);
        let (means, m2s) = kernels.moments(&stream, &there.view(), &mut ObsSlices::new(device, &starts, d).unwrap()).unwrap();
        for (s, slice) in starts.windows(2).enumerate() {
            let mut expected = Moments::new(d);
            for t in 0..n_steps {
                for i in slice[0] as usize..slice[1] as usize {
                    expected.push(obs[(t * n + i) * d..][..d].iter().map(|&x| f64::from(x)));
                }
            }
            assert_eq!(means[s * d..][..d], *expected.mean(), "{device}: {n_steps} x {n}, slice {s}");
            let variances: Vec<f64> = m2s[s * d..][..d].iter().map(|m2| m2 / expected.count()).collect();
            assert_eq!(variances, expected.variance().collect::<Vec<_>>(), "{device}: {n_steps} x {n}, slice {s}");
        }
        let mean: Vec<f32> = (0..d).map(|j| j as f32 + 0.1).collect();
        let precision: Vec<f32> = (0..d).map(|j| 0.7 / (j + 1) as f32).collect();
        let (mean_there, precision_there) = (upload(device, &mean), upload(device, &precision));
        kernels.normalize(&stream, &there.view_mut(), &mean_there.view(), &precision_there.view()).unwrap();
        stream.synchronize().unwrap();
        for (i, (&x, got)) in obs.iter().zip(download(device, &there)).enumerate() {
            let expected = math::clamp((x - mean[i % d]) * precision[i % d], -10.0, 10.0);
            assert_eq!(got.to_bits(), expected.to_bits(), "{device}: {i}");
        }
    }
}
