//! Exported policies act as the originals.
//!
//! In C and for rl-policy bit for bit, as ONNX models up to rounding.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "exported/c.rs"]
mod c;
#[path = "exported/cases.rs"]
mod cases;
#[path = "exported/compiled.rs"]
mod compiled;
#[path = "exported/onnx.rs"]
mod onnx;

use cases::{Case, Seen, cases, originals};
use compiled::EPISODE;
use rl_agents::distributions::log_softmax;
use rl_agents::{Choice, NetConfig, Policy as _, QNetwork, Snapshot};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Dtype, Space, Spaces};
use rl_policy::{Action, Obs, Policy as Loaded, write};

#[test]
fn a_loaded_policy_acts_as_the_original() {
    const N: usize = 300;
    for case in cases() {
        let Case { name, spaces, policy } = &case;
        let file = write::file(&policy.exported(spaces).unwrap());
        let loaded = Loaded::new(&file).unwrap();
        assert_eq!((loaded.obs_len(), loaded.frames()), (spaces.obs.len(), spaces.obs.stack()), "{name}");
        assert_eq!(loaded.reads_bytes(), spaces.obs.dtype() == Dtype::U8, "{name}");
        let (d, seen) = (spaces.obs.len(), Seen::of(spaces, N));
        let mut memory = vec![f32::NAN; loaded.memory_len()];
        let sampled = Choice::Sample { seed: 1 << 40 | 9, step: 1 << 33 | 6, first_env: 5 };
        for choice in [Choice::Greedy, sampled] {
            let is_value = matches!(policy.exported(spaces).unwrap().head, rl_policy::Head::Values { .. });
            if is_value && matches!(choice, Choice::Sample { .. }) {
                continue; // epsilon belongs to the training
            }
            let original = originals(&case, &seen, N, choice);
            for i in 0..N {
                let obs = match seen.obs(spaces.obs.dtype()) {
                    ObsSlice::F32(obs) => Obs::F32(&obs[i * d..(i + 1) * d]),
                    ObsSlice::U8(obs) => Obs::U8(&obs[i * d..(i + 1) * d]),
                };
                if i % EPISODE == 0 {
                    loaded.reset(&mut memory);
                }
                let state = memory[..loaded.state_len()].to_vec();
                let mask = &seen.masks[i * loaded.mask_len()..(i + 1) * loaded.mask_len()];
                let choice = match choice {
                    Choice::Greedy => rl_policy::Choice::Greedy,
                    Choice::Sample { seed, step, first_env } => {
                        rl_policy::Choice::Sample { seed, step, env: first_env + i as u32 }
                    }
                };
                let (mut choices, mut vector) = (vec![0; loaded.action_len()], vec![0.0; loaded.action_len()]);
                if loaded.is_discrete() {
                    loaded.act(obs, mask, choice, &mut memory, Action::Discrete(&mut choices)).unwrap();
                    let sizes = match &spaces.actions {
                        ActionSpace::MultiDiscrete { sizes } => sizes.clone(),
                        _ => vec![spaces.actions.len() as u32],
                    };
                    let number = choices.iter().zip(&sizes).fold(0, |number, (choice, n)| number * n + choice);
                    assert_eq!(number, original.discrete[i], "{name}, observation {i}");
                    memory[..state.len()].copy_from_slice(&state);
                    let outputs = loaded.outputs(obs, &mut memory).unwrap();
                    if is_value {
                        assert_eq!(outputs[number as usize].to_bits(), original.values[i].to_bits(), "{name}, observation {i}");
                        continue;
                    }
                    let mut log_prob = 0.0;
                    let mut rest = outputs;
                    for (choice, n) in choices.iter().zip(sizes) {
                        let (logits, others) = rest.split_at_mut(n as usize);
                        log_softmax(logits, mask);
                        log_prob += logits[*choice as usize];
                        rest = others;
                    }
                    assert_eq!(log_prob.to_bits(), original.log_probs[i].to_bits(), "{name}, observation {i}");
                } else {
                    loaded.act(obs, mask, choice, &mut memory, Action::Continuous(&mut vector)).unwrap();
                    let a = vector.len();
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&vector), bits(&original.vectors[i * a..(i + 1) * a]), "{name}, observation {i}: {vector:?}");
                }
            }
        }
    }
}

#[test]
fn the_tanh_between_layers_has_the_bits_of_the_original() {
    const N: usize = 4096;
    // An action value that is tanh(1 * x + 0) * 1 + 0.
    let (obs, actions) = (Space::vector(&[-1.0], &[1.0]), ActionSpace::Discrete { n: 1, masked: false });
    let mut policy = QNetwork::new(&obs, &actions, &NetConfig { hidden: vec![1], ..NetConfig::default() }, false, 1).unwrap();
    let mut snapshot = Snapshot::from(policy.weights());
    snapshot.params.copy_from_slice(&[1.0, 0.0, 1.0, 0.0]);
    policy.load(&snapshot).unwrap();
    let spaces = Spaces { obs, actions };
    let file = write::file(&policy.exported(&spaces).unwrap());
    let loaded = Loaded::new(&file).unwrap();
    let case = Case { name: "tanh", spaces, policy: Box::new(policy) };
    let mut memory = vec![0.0; loaded.memory_len()];
    // Every exponent with 4,000 significands, and the numbers around 0.55, where the formula changes, one by one.
    let dense = 0.55f32.to_bits() - 50_000..0.55f32.to_bits() + 50_000;
    let numbers: Vec<f32> =
        (0..=u32::MAX / 2039).map(|i| i * 2039).chain(dense).map(f32::from_bits).filter(|x| x.is_finite()).collect();
    for floats in numbers.chunks(N) {
        let seen = Seen { floats: floats.to_vec(), bytes: vec![], masks: vec![] };
        let original = originals(&case, &seen, floats.len(), Choice::Greedy);
        for (x, value) in floats.iter().zip(original.values) {
            let got = loaded.outputs(Obs::F32(&[*x]), &mut memory).unwrap()[0];
            assert_eq!(got.to_bits(), value.to_bits(), "tanh({x:e}): {got:e}, not {value:e}");
        }
    }
}
