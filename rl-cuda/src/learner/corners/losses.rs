//! Losses, for outputs and actions that show each of their terms.

use rl_envs::math;

use super::*;

#[test]
fn objectives_agree_on_any_numbers() {
    agree("objectives", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 25);
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (n, mut a) = (bench.corners.pick(&[1, 3, 33, 130]), bench.corners.pick(&[1, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
            if [24, 29].contains(&round) {
                a = 0; // categorical, and Gaussian
            }
            let len = bench.corners.pick(&[1, n, 2 * n + 1]);
            let state = bench.state();
            let rows = bench.rows(n, len);
            let actions: Vec<u32> = (0..len).map(|_| bench.corners.0.below(a as u32)).collect();
            // Masked are any actions, or a single one.
            let single: Vec<usize> = (0..len).map(|_| bench.corners.0.below(2 * a as u32) as usize).collect();
            let mask = |i: usize| match (i % a, single[i / a]) {
                (at, _) if at == actions[i / a] as usize => 1,
                (at, single) if single < a => u8::from(at != single),
                _ => bench.corners.pick(&[0, 0, 1, 2, 128]),
            };
            let masks: Vec<u8> = (0..len * a).map(mask).collect();
            let (actions, masks) = (bench.upload(&actions), bench.upload(&masks));
            // Actions that are the means, and densities or entropies of exactly 0.
            let exact = round % 8 == 4;
            let vectors = if exact { bench.zeros(len * a) } else { bench.floats(len * a, wild) };
            // With one action, the logarithm of the ratio is any number.
            let log_probs: Vec<f32> = (0..len)
                .map(|_| {
                    let near = bench.corners.0.uniform_in(-1.5, 0.0);
                    let exact = bench.corners.pick(&EXP);
                    let any = bench.any();
                    let [plus, minus] = [exact, -exact];
                    if round % 8 == 4 {
                        bench.corners.pick(&[plus, minus])
                    } else {
                        bench.corners.pick(&[near, near, 0.0, plus, minus, any])
                    }
                })
                .collect();
            let log_probs = bench.upload(&log_probs);
            let [advantages, values, returns] = [(); 3].map(|()| bench.floats(len, wild));
            let mut outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, wild)).collect();
            let mut log_std: Vec<f32> = (0..a).map(|_| bench.corners.pick(&[1.0, -1.0]) * bench.corners.pick(&EXP)).collect();
            if exact {
                outputs.fill(0.0);
                log_std.fill(bench.corners.pick(&[-0.918_938_5, -1.418_938_5]));
            }
            let (outputs, new_values) = (bench.upload(&outputs), bench.floats(n, wild));
            let log_std = bench.upload(&log_std);
            let [sum, squares] = [(); 2].map(|()| {
                let moment = bench.corners.pick(&[0.0, 0.5, 3.0, f64::from(n as u32), 1e-20]);
                bench.upload(&[moment])
            });
            let of_rounds = round / 4;
            let (continuous, masked, normalized) = (of_rounds % 2 == 1, of_rounds % 3 > 0, of_rounds % 5 > 1);
            // The same logits in several heads.
            let several: Vec<_> = [vec![a], vec![a / 2, a - a / 2], vec![a - a / 3, a / 3]]
                .into_iter()
                .filter(|_| !continuous)
                .map(|sizes| {
                    let sizes: Vec<usize> = sizes.into_iter().filter(|&size| size > 0).collect();
                    let n_actions = sizes.iter().product::<usize>() as u32;
                    let actions: Vec<u32> = (0..len as u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 8) % n_actions).collect();
                    (HeadSizes::new(device, &sizes).unwrap(), bench.upload(&actions))
                })
                .collect();
            let objectives = [Objective::ClippedSurrogate, Objective::PolicyGradient];
            let cases = objectives.into_iter().flat_map(|objective| {
                std::iter::once((objective, None)).chain(several.iter().map(move |of_heads| (objective, Some(of_heads))))
            });
            for (objective, of_heads) in cases {
                let columns = LossColumns {
                    rows: rows.view(),
                    actions: match of_heads {
                        Some((_, actions)) => Actions::Discrete(actions.view()),
                        None if continuous => Actions::Continuous(vectors.view()),
                        None => Actions::Discrete(actions.view()),
                    },
                    masks: (masked && of_heads.is_none()).then_some(masks.view()),
                    log_probs: log_probs.view(),
                    advantages: advantages.view(),
                    values: values.view(),
                    returns: returns.view(),
                    moments: normalized.then_some([sum.view(), squares.view()]),
                };
                let distribution = match of_heads {
                    Some((sizes, _)) => ActionDistribution::Heads(sizes),
                    None if continuous => ActionDistribution::Gaussian(log_std.view()),
                    None => ActionDistribution::Categorical,
                };
                bench.objective(objective, &columns, &outputs, &new_values, distribution, &state);
            }
        }
        bench.digest
    });
}

#[test]
fn objectives_of_several_heads_agree_on_any_numbers() {
    agree("heads", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 29);
        let mut state = LearnerState::new(bench.device).unwrap();
        bench.stream.upload(&state.settings.view_mut(), &[0.1, 0.5, 1.0, 0.5, 0.0, 0.2, 1.0, 0.9, 0.999, 1e-5]).unwrap();
        // Loops that are unrolled over heads and over choices, with and without a rest; heads of a single choice.
        for sizes in [&[2, 3, 2, 2, 3, 2, 2, 2, 2][..], &[2, 2, 2, 3], &[3, 8], &[4, 9, 2], &[2, 5, 4], &[7, 6], &[1, 1]] {
            let (a, n_actions) = (sizes.iter().sum(), sizes.iter().product::<usize>() as u32);
            let of_heads = HeadSizes::new(device, sizes).unwrap();
            for n in [1, 65] {
                let outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, false)).collect();
                let actions: Vec<u32> = (0..n).map(|_| bench.corners.0.below(n_actions)).collect();
                // Without an advantage, the gradient is that of the entropy.
                let advantages = if n == 1 { bench.zeros(1) } else { bench.floats(n, false) };
                let (outputs, actions, log_probs) = (bench.upload(&outputs), bench.upload(&actions), bench.floats(n, false));
                let (rows, values) = (bench.rows(n, n), bench.floats(n, false));
                for objective in [Objective::ClippedSurrogate, Objective::PolicyGradient] {
                    let columns = LossColumns {
                        rows: rows.view(),
                        actions: Actions::Discrete(actions.view()),
                        masks: None,
                        log_probs: log_probs.view(),
                        advantages: advantages.view(),
                        values: values.view(),
                        returns: values.view(),
                        moments: None,
                    };
                    let distribution = ActionDistribution::Heads(&of_heads);
                    bench.objective(objective, &columns, &outputs, &values, distribution, &state);
                }
            }
        }
        bench.digest
    });
}

#[test]
fn objectives_agree_where_coefficients_show() {
    agree("coefficients", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 28);
        let [state, with_entropy] = [0.0, 1.0].map(|ent_coef| {
            let mut state = LearnerState::new(bench.device).unwrap();
            let settings = [0.1, 0.5, ent_coef, 0.5, 0.0, 0.2, 1.0, 0.9, 0.999, 1e-5];
            bench.stream.upload(&state.settings.view_mut(), &settings).unwrap();
            state
        });
        let logits = [&LN[..], &LOG_PROBS, &EXP.map(|x| -x.abs())].concat();
        for a in [2, 3, 4, 5, 7] {
            // Every logit in every place, and one of 0 after it, whose action is taken: with a ratio and an advantage of 1 the
            // gradients are the probabilities, divided by a power of two.
            let n = (logits.len() * a).next_power_of_two();
            let (mut outputs, mut actions, mut log_probs) = (vec![-1000.0; n * a], Vec::new(), Vec::new());
            for (i, row) in outputs.chunks_mut(a).enumerate() {
                let (logit, taken) = (logits[i / a % logits.len()], (i + 1) % a);
                (row[i % a], row[taken]) = (logit, 0.0);
                actions.push(taken as u32);
                log_probs.push(-math::ln(math::exp(logit) + 1.0));
            }
            let (outputs, actions, log_probs) = (bench.upload(&outputs), bench.upload(&actions), bench.upload(&log_probs));
            let (rows, ones) = (bench.upload(&(0..n as u32).collect::<Vec<_>>()), bench.upload(&vec![1.0; n]));
            let one_head = HeadSizes::new(device, &[a]).unwrap();
            let objectives = [Objective::ClippedSurrogate, Objective::PolicyGradient];
            let zeros = bench.zeros(n);
            // Without an advantage, the gradient is that of the entropy.
            let runs = |objective| {
                [(objective, &state, &ones, false), (objective, &state, &ones, true), (objective, &with_entropy, &zeros, true)]
            };
            for (objective, state, advantages, in_heads) in objectives.into_iter().flat_map(runs) {
                let columns = LossColumns {
                    rows: rows.view(),
                    actions: Actions::Discrete(actions.view()),
                    masks: None,
                    log_probs: log_probs.view(),
                    advantages: advantages.view(),
                    values: ones.view(),
                    returns: ones.view(),
                    moments: None,
                };
                let distribution = if in_heads { ActionDistribution::Heads(&one_head) } else { ActionDistribution::Categorical };
                bench.objective(objective, &columns, &outputs, &ones, distribution, state);
            }
        }
        bench.digest
    });
}
