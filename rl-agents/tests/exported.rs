//! Exported policies act as the originals, bit for bit; as ONNX models, up to rounding.

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
use rl_agents::Choice;
use rl_agents::distributions::log_softmax;
use rl_buffer::ObsSlice;
use rl_envs::ActionSpace;
use rl_policy::{Action, Obs, Policy as Loaded, write};

#[test]
fn a_loaded_policy_acts_as_the_original() {
    const N: usize = 300;
    for case in cases() {
        let Case { name, spaces, policy } = &case;
        let file = write::file(&policy.exported(spaces).unwrap());
        let loaded = Loaded::new(&file).unwrap();
        assert_eq!((loaded.obs_len(), loaded.frames()), (spaces.obs.len(), spaces.obs.stack()), "{name}");
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
