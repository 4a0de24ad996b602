//! Ways of stepping on the device that must equal one launch per step.
//!
//! Fused, with actions drawn by the kernel, and captured; also actions out of range, and saved states.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use beside::{Driven, check_bound, compare_batches};
use rl_cuda::{
    ActionSource, ActionViews, Buffer, CudaVecEnv, Device, DeviceActions, DeviceObs, DeviceSteps, Element, Error, View,
};
use rl_envs::{ActionRows, Actions, Purpose, RandomActions, Rng, VecEnv, catalog};

const SEED: u64 = 0x1234_5678_9ABC_DEF0;

/// Everything that steps wrote, as bits.
#[derive(Debug, Default, PartialEq)]
struct Written {
    actions: Vec<u32>,
    obs: Vec<u32>,
    rewards: Vec<u32>,
    flags: [Vec<u8>; 2],
    masks: Vec<u8>,
    /// Final observations and masks, where they were written.
    finals: Vec<u32>,
}

fn download<T: Element>(device: &Device, from: &View<'_, T>) -> Vec<T> {
    let mut to = vec![T::default(); from.len()];
    device.stream().unwrap().download(&mut to, from).unwrap();
    to
}

fn written(device: &Device, steps: &DeviceSteps) -> Written {
    device.synchronize().unwrap();
    let steps = &steps.columns;
    let obs = |obs: &DeviceObs| match obs {
        DeviceObs::F32(buffer) => download(device, &buffer.view()).into_iter().map(f32::to_bits).collect::<Vec<_>>(),
        DeviceObs::U8(buffer) => download(device, &buffer.view()).into_iter().map(u32::from).collect(),
    };
    let flags = [download(device, &steps.terminated.view()), download(device, &steps.truncated.view())];
    let masks = steps.masks.as_ref().map(|masks| masks.each_ref().map(|masks| download(device, &masks.view())));
    let [masks, final_masks] = masks.unwrap_or_default();
    let final_obs = obs(&steps.final_obs);
    let (d, a) = (final_obs.len() / flags[0].len(), final_masks.len() / flags[0].len());
    let ended = (0..flags[0].len()).filter(|&i| flags[0][i] | flags[1][i] != 0);
    let row = |i: usize| {
        final_obs[i * d..][..d].iter().copied().chain(final_masks[i * a..][..a].iter().map(|&x| x.into())).collect::<Vec<_>>()
    };
    Written {
        actions: match &steps.actions {
            DeviceActions::Discrete(buffer) => download(device, &buffer.view()),
            DeviceActions::Continuous(buffer) => download(device, &buffer.view()).into_iter().map(f32::to_bits).collect(),
        },
        obs: obs(&steps.obs),
        rewards: download(device, &steps.rewards.view()).into_iter().map(f32::to_bits).collect(),
        finals: ended.flat_map(row).collect(),
        flags,
        masks,
    }
}

fn batch(device: &Device, name: &str, n: usize) -> CudaVecEnv {
    CudaVecEnv::new(device, name, n).unwrap()
}

fn memory(envs: &CudaVecEnv, n_steps: usize) -> DeviceSteps {
    DeviceSteps::zeros(envs.device(), n_steps, envs.n_envs(), envs.observation_space(), envs.action_space()).unwrap()
}

fn reset(envs: &mut CudaVecEnv, seed: u64) {
    let (stream, mut steps) = (envs.device().stream().unwrap(), memory(envs, 1));
    let rows = steps.rows(0..1);
    envs.reset_on(&stream, seed, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks)).unwrap();
    stream.synchronize().unwrap(); // while a graph keeps memory, no buffer's end waits for the device
}

/// Returns the original, stepped with random actions.
fn original(name: &str, n: usize, n_steps: usize) -> Driven {
    let mut driven = Driven::new(catalog::find(name).unwrap().sync(n).unwrap());
    let space = driven.envs.action_space().clone();
    let mut random = RandomActions::new(SEED, n, &space);
    driven.reset(SEED).unwrap();
    let mut actions = ActionRows::zeros(&space, n);
    for _ in 0..n_steps {
        random.fill(actions.as_mut_slice());
        driven.step(actions.as_slice()).unwrap();
    }
    driven
}

#[test]
fn k_steps_in_one_launch_equal_k_launches_and_random_actions_are_those_of_rust() {
    for device in Device::for_tests() {
        for entry in catalog::twinned() {
            for (n, before, k) in [(1, 0, 37), (33, 3, 13), (65, 6, 250), (1000, 1, 21)] {
                let stream = device.stream().unwrap();
                let total = before + k;
                let run = |fused: bool, source: ActionSource, actions: Option<&DeviceSteps>| {
                    let mut envs = batch(&device, entry.name, n).with_block(64);
                    let mut steps = memory(&envs, total);
                    if let Some(from) = actions {
                        match (&mut steps.columns.actions, &from.columns.actions) {
                            (DeviceActions::Discrete(to), DeviceActions::Discrete(from)) => {
                                stream.copy(&to.view_mut(), &from.view()).unwrap();
                            }
                            (DeviceActions::Continuous(to), DeviceActions::Continuous(from)) => {
                                stream.copy(&to.view_mut(), &from.view()).unwrap();
                            }
                            _ => unreachable!("actions of the same space"),
                        }
                    }
                    reset(&mut envs, SEED);
                    let first = if fused { before } else { total };
                    for t in 0..first {
                        envs.step_on(&stream, 1, source, &steps.rows(t..t + 1)).unwrap();
                    }
                    if fused {
                        envs.step_on(&stream, k as u32, source, &steps.rows(before..total)).unwrap();
                    }
                    (written(&device, &steps), envs.save().unwrap(), steps)
                };
                let (single, states, steps) = run(false, ActionSource::Random, None);
                let context = format!("{device}: {}, {n} environments", entry.name);
                let (random, random_states, _) = run(true, ActionSource::Random, None);
                assert!(random == single && random_states == states, "{context}: fused with random actions");
                let (given, given_states, _) = run(true, ActionSource::Given, Some(&steps));
                assert!(given == single && given_states == states, "{context}: fused with given actions");
                assert!(original(entry.name, n, total).envs.save().unwrap() == states, "{context}: the original");
            }
        }
    }
}

impl Written {
    /// Appends what the steps of further environments wrote.
    fn append(&mut self, other: Self) {
        let Self { actions, obs, rewards, flags: [terminated, truncated], masks, finals } = other;
        let to = [&mut self.actions, &mut self.obs, &mut self.rewards, &mut self.finals];
        to.into_iter().zip([actions, obs, rewards, finals]).for_each(|(to, from)| to.extend(from));
        let [all_terminated, all_truncated] = &mut self.flags;
        let to = [all_terminated, all_truncated, &mut self.masks];
        to.into_iter().zip([terminated, truncated, masks]).for_each(|(to, from)| to.extend(from));
    }
}

#[test]
fn slices_of_a_batch_are_those_of_the_whole_and_of_the_original() {
    for device in Device::for_tests() {
        for entry in catalog::twinned() {
            let (stream, k) = (device.stream().unwrap(), if entry.name == "snake" { 60 } else { 250 });
            let random = |envs: &mut CudaVecEnv| {
                let mut steps = memory(envs, 1);
                envs.step_on(&stream, k, ActionSource::Random, &steps.rows(0..1)).unwrap();
                written(&device, &steps)
            };
            let mut whole = batch(&device, entry.name, 65);
            reset(&mut whole, SEED);
            let (expected, mut all) = (random(&mut whole), Written::default());
            for range in [0..1, 1..33, 33..65] {
                let context = format!("{device}: {}, {range:?}", entry.name);
                let slice = || batch(&device, entry.name, range.len()).with_first_env(range.start as u32);
                let both = [entry.slice(range.clone()).unwrap(), Box::new(slice())];
                compare_batches(entry.name, both, SEED, k as usize).unwrap_or_else(|error| panic!("{context}: {error}"));
                let mut envs = slice();
                reset(&mut envs, SEED);
                all.append(random(&mut envs));
                let saved = envs.save().unwrap();
                assert!(whole.save_ranges(std::iter::once(range.clone())).unwrap() == [&saved[..]], "{context}: saved");
                let mut restored = slice();
                restored.load(&saved).unwrap();
                assert!(random(&mut restored) == random(&mut envs), "{context}: restored");
                assert!(batch(&device, entry.name, range.len()).with_first_env(7).load(&saved).is_err(), "{context}: others");
            }
            assert!(all == expected, "{device}: {}", entry.name);
        }
    }
}

#[test]
fn one_row_is_overwritten_by_each_of_k_steps() {
    for device in Device::for_tests() {
        for name in ["cartpole", "snake"] {
            let (n, k, stream) = (33, 9, device.stream().unwrap());
            let run = |fused: bool| {
                let mut envs = batch(&device, name, n);
                let mut steps = memory(&envs, 1);
                reset(&mut envs, SEED);
                if fused {
                    envs.step_on(&stream, k, ActionSource::Random, &steps.rows(0..1)).unwrap();
                } else {
                    (0..k).for_each(|_| envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1)).unwrap());
                }
                (written(&device, &steps), envs.save().unwrap())
            };
            assert_eq!(run(true), run(false), "{device}: {name}");
        }
    }
}

#[test]
fn a_replayed_graph_equals_eager_steps() {
    for device in Device::for_tests() {
        for entry in catalog::twinned() {
            let (n, k, stream) = (65, 6, device.stream().unwrap());
            let mut envs = batch(&device, entry.name, n);
            reset(&mut envs, SEED);
            let mut eager = memory(&envs, 1);
            let mut graph = envs.capture(&stream, ActionSource::Random, 1, memory(&envs, k)).unwrap();
            let check = |envs: &CudaVecEnv, steps| {
                assert!(envs.save().unwrap() == original(entry.name, n, steps).envs.save().unwrap(), "{}: {steps}", entry.name);
            };
            check(&envs, 0);
            envs.replay(&mut graph).unwrap();
            check(&envs, k);
            envs.replay(&mut graph).unwrap();
            (0..3).for_each(|_| envs.step_on(&stream, 1, ActionSource::Random, &eager.rows(0..1)).unwrap());
            envs.replay(&mut graph).unwrap();
            check(&envs, 3 * k + 3);
            let rows = written(&device, graph.steps());
            // The same steps without a graph.
            let mut again = batch(&device, entry.name, n);
            reset(&mut again, SEED);
            (0..2 * k + 3).for_each(|_| again.step_on(&stream, 1, ActionSource::Random, &eager.rows(0..1)).unwrap());
            let mut steps = memory(&again, k);
            (0..k).for_each(|t| again.step_on(&stream, 1, ActionSource::Random, &steps.rows(t..t + 1)).unwrap());
            assert!(written(&device, &steps) == rows, "{device}: {}", entry.name);
            let mut other = batch(&device, entry.name, n);
            assert!(matches!(other.replay(&mut graph), Err(Error::Kind { .. })), "a graph belongs to its environments");
        }
    }
}

/// Ends other threads, also when the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_capture_survives_what_other_threads_do_with_the_device() {
    for device in Device::for_tests() {
        let stream = device.stream().unwrap();
        let mut envs = batch(&device, "cartpole", 3);
        reset(&mut envs, SEED);
        let mut steps = memory(&envs, 1);
        envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1)).unwrap(); // loads the kernels
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(Buffer::<f32>::zeros(&device, 3).unwrap());
                    device.synchronize().unwrap();
                    Device::for_tests().iter().for_each(|device| drop(device.stream().unwrap()));
                }
            });
            let end = Ending(&is_over);
            for _ in 0..20 {
                let captured = stream.capture(|| {
                    envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1))?;
                    std::thread::sleep(Duration::from_millis(2));
                    envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1))
                });
                captured.unwrap().launch().unwrap();
            }
            drop(end);
            others.join().unwrap();
        });
        assert!(envs.save().unwrap() == original("cartpole", 3, 41).envs.save().unwrap());
    }
}

#[test]
fn a_replayed_graph_takes_the_actions_that_were_written_and_repeats_them() {
    for device in Device::for_tests() {
        let (n, k, repeat, stream) = (33, 4, 3, device.stream().unwrap());
        let mut envs = batch(&device, "mountain_car", n);
        reset(&mut envs, SEED);
        let mut graph = envs.capture(&stream, ActionSource::Given, repeat, memory(&envs, k)).unwrap();
        let mut rust = original("mountain_car", n, 0);
        let mut rng = Rng::new(3, 0, 0, Purpose::Init);
        for _ in 0..20 {
            for t in 0..k {
                let actions: Vec<u32> = (0..n).map(|_| rng.below(3)).collect();
                let ActionViews::Discrete(to) = graph.rows(t..t + 1).actions else { unreachable!("mountain_car's are discrete") };
                stream.upload(&to, &actions).unwrap();
                (0..repeat).for_each(|_| rust.step(Actions::Discrete(&actions)).unwrap());
            }
            envs.replay(&mut graph).unwrap();
        }
        envs.check_actions(&stream).unwrap();
        assert!(envs.save().unwrap() == rust.envs.save().unwrap(), "{device}");
    }
}

#[test]
fn an_action_out_of_range_is_noted_and_0_is_taken() {
    for device in Device::for_tests() {
        let (n, stream) = (70, device.stream().unwrap());
        let run = |bad: bool| {
            let mut envs = batch(&device, "acrobot", n);
            let mut steps = memory(&envs, 1);
            reset(&mut envs, SEED);
            let mut actions = vec![2; n];
            for i in [41, 69] {
                actions[i] = if bad { 3 + i as u32 } else { 0 };
            }
            let DeviceActions::Discrete(buffer) = &mut steps.columns.actions else { unreachable!("acrobot's are discrete") };
            stream.upload(&buffer.view_mut(), &actions).unwrap();
            envs.step_on(&stream, 1, ActionSource::Given, &steps.rows(0..1)).unwrap();
            let noted = envs.check_actions(&stream);
            assert!(envs.check_actions(&stream).is_ok(), "it is told once");
            (noted, envs.save().unwrap())
        };
        let ((good, expected), (bad, states)) = (run(false), run(true));
        assert!(good.is_ok());
        assert!(matches!(bad, Err(Error::ActionOutOfRange { env_idx: 41 })), "{bad:?}");
        assert_eq!(states, expected);
        for (name, action, fault) in [
            ("pendulum", 2.0, false),
            ("pendulum", 2.001, true),
            ("pendulum", f32::NAN, true),
            ("mountain_car_continuous", -1.0, false),
            ("mountain_car_continuous", -1.001, true),
        ] {
            let mut envs = batch(&device, name, 1);
            let mut steps = memory(&envs, 1);
            reset(&mut envs, SEED);
            let DeviceActions::Continuous(buffer) = &mut steps.columns.actions else { unreachable!("{name}'s are continuous") };
            stream.upload(&buffer.view_mut(), &[action]).unwrap();
            envs.step_on(&stream, 1, ActionSource::Given, &steps.rows(0..1)).unwrap();
            assert_eq!(envs.check_actions(&stream).is_err(), fault, "{action}");
        }
    }
}

#[test]
fn every_discrete_kernel_refuses_its_first_illegal_action() {
    for device in Device::for_tests() {
        catalog::twinned().for_each(|entry| check_bound(&device, entry.name));
    }
}

#[test]
fn states_go_to_the_device_and_back_and_bad_ones_are_refused() {
    for device in Device::for_tests() {
        for entry in catalog::twinned() {
            let mut rust = original(entry.name, 33, 150);
            let mut envs = batch(&device, entry.name, 33);
            let saved = rust.envs.save().unwrap();
            envs.load(&saved).unwrap();
            assert!(envs.save().unwrap() == saved, "{}", entry.name);
            let mut twin = Driven::new(Box::new(envs));
            let mut random = RandomActions::new(5, 33, rust.envs.action_space());
            let mut actions = ActionRows::zeros(rust.envs.action_space(), 33);
            for _ in 0..40 {
                random.fill(actions.as_mut_slice());
                rust.step(actions.as_slice()).unwrap();
                twin.step(actions.as_slice()).unwrap();
            }
            assert!(twin.envs.save().unwrap() == rust.envs.save().unwrap(), "{}", entry.name);
            let before = twin.envs.save().unwrap();
            assert!(twin.envs.load(&saved[..saved.len() - 1]).is_err(), "cut short");
            assert!(twin.envs.load(&original(entry.name, 31, 1).envs.save().unwrap()).is_err(), "another number");
            assert!(twin.envs.save().unwrap() == before, "what is refused changes nothing");
        }
    }
}

#[test]
fn a_batch_on_the_device_keeps_the_contract_of_errors() {
    for device in Device::for_tests() {
        let mut envs = Driven::new(Box::new(batch(&device, "cartpole", 3)));
        envs.reset(1).unwrap();
        let before = envs.envs.save().unwrap();
        let error = envs.step(Actions::Discrete(&[0, 1, 2])).unwrap_err();
        assert!(matches!(error, rl_envs::Error::ActionOutOfRange { env_idx: 2, action: 2, n: 2 }));
        let error = envs.step(Actions::Discrete(&[0, 1])).unwrap_err();
        assert!(matches!(error, rl_envs::Error::Length { .. }));
        let error = envs.step(Actions::Continuous(&[0.0; 3])).unwrap_err();
        assert!(matches!(error, rl_envs::Error::Kind { .. }));
        assert_eq!(envs.envs.save().unwrap(), before);
        assert!(matches!(CudaVecEnv::new(&device, "chess", 1), Err(Error::NoKernels { .. })));
        assert!(matches!(CudaVecEnv::new(&device, "snake", 0), Err(Error::Env(rl_envs::Error::EnvCount { n_envs: 0 }))));
        let (mut envs, stream) = (batch(&device, "cartpole", 4), device.stream().unwrap());
        let mut steps = memory(&envs, 2);
        assert!(matches!(
            envs.step_on(&stream, 3, ActionSource::Random, &steps.rows(0..2)),
            Err(Error::Length { what: "rewards", expected: 12, found: 8 })
        ));
        let mut rows = steps.rows(0..1);
        let mut floats = Buffer::zeros(&device, 4).unwrap();
        rows.actions = ActionViews::Continuous(floats.view_mut());
        assert!(matches!(envs.step_on(&stream, 1, ActionSource::Given, &rows), Err(Error::Kind { what: "actions", .. })));
        let mut envs = envs.with_block(0);
        assert!(matches!(
            envs.step_on(&stream, 1, ActionSource::Random, &steps.rows(0..1)),
            Err(Error::Launch { threads: 0, .. })
        ));
    }
}

#[test]
fn the_host_waits_for_steps_in_flight_on_another_stream() {
    for device in Device::for_tests() {
        let (n, stream) = (65, device.stream().unwrap());
        let stepped = |work: &dyn Fn(&mut CudaVecEnv)| {
            let mut envs = batch(&device, "cartpole", n);
            let mut steps = memory(&envs, 3);
            reset(&mut envs, SEED);
            envs.step_on(&stream, 3, ActionSource::Random, &steps.rows(0..3)).unwrap();
            work(&mut envs);
            envs.save().unwrap()
        };
        let mut rust = original("cartpole", n, 3);
        assert!(stepped(&|_| ()) == rust.envs.save().unwrap(), "{device}: saved");
        let loaded = original("cartpole", n, 7).envs.save().unwrap();
        assert!(stepped(&|envs| envs.load(&loaded).unwrap()) == loaded, "{device}: loaded");
        let actions = vec![1; n];
        (0..3).for_each(|_| rust.step(Actions::Discrete(&actions)).unwrap());
        // The first step by the host allocates memory, which waits in any case.
        let step = |envs: &mut CudaVecEnv| {
            let mut steps = rl_envs::Steps::new(envs);
            steps.actions = Actions::Discrete(actions.clone());
            envs.step(&mut steps).unwrap();
            let mut on_device = memory(envs, 1);
            let ActionViews::Discrete(to) = on_device.rows(0..1).actions else { unreachable!("cartpole's are discrete") };
            stream.upload(&to, &actions).unwrap();
            envs.step_on(&stream, 1, ActionSource::Given, &on_device.rows(0..1)).unwrap();
            envs.step(&mut steps).unwrap();
        };
        assert!(stepped(&step) == rust.envs.save().unwrap(), "{device}: stepped by the host");
    }
}
