//! Corrections for rollouts of an older policy, and Q-learning.

use super::*;
use crate::targets::Steps;

#[test]
fn off_policy_corrections_agree_on_any_numbers() {
    agree("off-policy", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 35);
        let kernels = OffPolicyKernels::new(device).unwrap();
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (t, n_envs) = (bench.corners.pick(&[1, 2, 3, 5, 9]), bench.corners.pick(&[1, 3, 33, 130]));
            let (len, a) = (t * n_envs, bench.corners.pick(&[1, 2, 3, 4, 5, 7, 9]));
            let sizes = match a {
                2 => vec![1, 1],
                5 => vec![2, 3],
                7 => vec![1, 1, 1, 2, 2],
                9 => vec![4, 5],
                _ => vec![a],
            };
            let n_actions = sizes.iter().product::<usize>() as u32;
            let actions: Vec<u32> = (0..len)
                .map(|_| {
                    let action = bench.corners.0.below(a as u32);
                    bench.corners.pick(&[action, action, action, a as u32 - 1, a as u32, u32::MAX])
                })
                .collect();
            let of_heads: Vec<u32> = (0..len).map(|_| bench.corners.0.below(n_actions)).collect();
            let masks: Vec<u8> = (0..len * a).map(|_| bench.corners.pick(&[0, 1, 1, 2])).collect();
            let (actions, of_heads, masks) = (bench.upload(&actions), bench.upload(&of_heads), bench.upload(&masks));
            let outputs: Vec<f32> = (0..len).flat_map(|_| bench.outputs(a, wild)).collect();
            let log_std: Vec<f32> = (0..a).map(|_| bench.corners.pick(&[1.0, -1.0]) * bench.corners.pick(&EXP)).collect();
            let start: Vec<f32> = (0..len)
                .map(|_| {
                    let (near, any) = (bench.corners.0.uniform_in(-2.0, 0.0), bench.any());
                    let exact = -bench.corners.pick(&EXP).abs();
                    if wild { any } else { bench.corners.pick(&[near, exact]) }
                })
                .collect();
            let (outputs, log_std, start) = (bench.upload(&outputs), bench.upload(&log_std), bench.upload(&start));
            let (vectors, heads) = (bench.floats(len * a, wild), HeadSizes::new(device, &sizes).unwrap());
            let rows = bench.rows(len, len);
            let (mut log_probs, mut terms) = (bench.zeros(len), bench.zeros(len));
            let (one_head, many) = (Actions::Discrete(actions.view()), Actions::Discrete(of_heads.view()));
            for (distribution, actions, masks) in [
                (ActionDistribution::Categorical, one_head, None),
                (ActionDistribution::Heads(&heads), many, None),
                (ActionDistribution::Gaussian(log_std.view()), Actions::Continuous(vectors.view()), None),
                (ActionDistribution::Categorical, one_head, Some(masks.view())),
            ] {
                let all = JudgedSamples { outputs: outputs.view(), distribution, rows: None, actions, masks };
                kernels.log_probs(&bench.stream, &all, &log_probs.view_mut()).unwrap();
                let some = JudgedSamples { rows: Some(rows.view()), ..all };
                kernels.divergence(&bench.stream, &some, &start.view(), &terms.view_mut()).unwrap();
                [&log_probs, &terms].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            }

            let [mut rewards, next_values, mut values] = [(); 3].map(|()| bench.floats(len, wild));
            if round % 8 == 5 {
                (rewards, values) = (bench.zeros(len), bench.zeros(len)); // the smallest number is noticed
            }
            let [terminated, truncated] = bench.flags(len);
            let steps = Steps {
                n_envs,
                rewards: rewards.view(),
                terminated: terminated.view(),
                truncated: truncated.view(),
                next_values: next_values.view(),
                values: values.view(),
            };
            let [mut advantages, mut returns, mut weights, mut weighted] = [(); 4].map(|()| bench.zeros(len));
            let (gamma, lambda) = (bench.corners.pick(&[0.99, 1.0, 0.5]), bench.corners.pick(&[0.95, 1.0, 0.0]));
            let of_both = if round % 2 == 0 { [&log_probs.view(), &start.view()] } else { [&start.view(), &log_probs.view()] };
            let to = [&advantages.view_mut(), &returns.view_mut(), &weights.view_mut()];
            kernels.vtrace(&bench.stream, &steps, of_both, gamma, lambda, to).unwrap();
            // Each row once, and one past the end.
            let order: Vec<u32> = (1..=len as u32).rev().collect();
            let order = bench.upload(&order);
            let [sum, squares] = [(); 2].map(|()| {
                let moment = bench.corners.pick(&[0.0, 0.5, 3.0, f64::from(len as u32), 1e-20]);
                bench.upload(&[moment])
            });
            for moments in [None, Some([sum.view(), squares.view()])] {
                kernels
                    .weigh(&bench.stream, &order.view(), &advantages.view(), moments, &weights.view(), &weighted.view_mut())
                    .unwrap();
                bench.digest.floats(&bench.stream, &weighted);
            }
            [&advantages, &returns, &weights].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
        }
        // Loops that are unrolled over heads and over choices, with and without a rest.
        for sizes in [&[2, 3, 2, 2, 3, 2, 2, 2, 2][..], &[2, 2, 2, 3], &[3, 8], &[4, 9, 2], &[2, 5, 4], &[7, 6]] {
            let (a, n_actions) = (sizes.iter().sum(), sizes.iter().product::<usize>() as u32);
            let heads = HeadSizes::new(device, sizes).unwrap();
            for n in [1, 65, 130] {
                let outputs: Vec<f32> = (0..n).flat_map(|_| bench.outputs(a, false)).collect();
                let actions: Vec<u32> = (0..n).map(|_| bench.corners.0.below(n_actions)).collect();
                let (outputs, actions, mut to) = (bench.upload(&outputs), bench.upload(&actions), bench.zeros(n));
                let (outputs, actions) = (outputs.view(), Actions::Discrete(actions.view()));
                let distribution = ActionDistribution::Heads(&heads);
                let samples = JudgedSamples { outputs, distribution, rows: None, actions, masks: None };
                kernels.log_probs(&bench.stream, &samples, &to.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &to);
            }
        }
        // One dimension at a time decides the log-probability, by the last bits of its deviation.
        for (a, at) in (1..=6).flat_map(|a| (0..a).map(move |at| (a, at))) {
            let all = EXP.into_iter().flat_map(|x| [x, -x]).filter(|x| x.abs() < 16.0);
            for (log_std, distance) in all.flat_map(|x| [1000.0, 777.0, 3100.0].map(|distance| (x, distance))) {
                let [mut vector, mut deviations] = [vec![0.0; a], vec![0.0; a]];
                (vector[at], deviations[at]) = (distance, log_std);
                let [vector, outputs] = [&vector, &vec![0.0; a]].map(|numbers| bench.upload(numbers));
                let (deviations, mut to) = (bench.upload(&deviations), bench.zeros(1));
                let distribution = ActionDistribution::Gaussian(deviations.view());
                let (outputs, actions) = (outputs.view(), Actions::Continuous(vector.view()));
                let samples = JudgedSamples { outputs, distribution, rows: None, actions, masks: None };
                kernels.log_probs(&bench.stream, &samples, &to.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &to);
            }
        }
        bench.digest
    });
}

#[test]
fn q_learning_agrees_on_any_numbers() {
    agree("Q-learning", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 27);
        let kernels = QLearningKernels::new(device).unwrap();
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (n, a) = (bench.corners.pick(&[1, 3, 8, 12, 16, 33, 130]), bench.corners.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
            let [advantages, values] = [n * a, n].map(|len| bench.floats(len, wild));
            let mut q = bench.zeros(n * a);
            kernels.dueling(&bench.stream, [&advantages.view(), &values.view()], &q.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &q);

            // Equal values, values around 0, and rows without a legal action.
            let by: Vec<f32> = (0..n * a)
                .map(|_| {
                    let any = bench.any();
                    let few = [0.0, -0.0, -1.0, 1.0, 1.0, f32::NEG_INFINITY, 1.0 + f32::EPSILON];
                    if wild { any } else { bench.corners.pick(&few) }
                })
                .collect();
            let of_round = bench.corners.pick(&[&[1, 1, 0][..], &[0, 2, 129, 1], &[0, 0, 0, 2, 1], &[0]]);
            let masks: Vec<u8> = (0..n * a).map(|_| bench.corners.pick(of_round)).collect();
            let (by, masks) = (bench.upload(&by), bench.upload(&masks));
            let [rewards, discounts] = [(); 2].map(|()| bench.floats(n, wild));
            let mut targets = bench.zeros(n);
            for masks in [None, Some(masks.view())] {
                let next =
                    NextColumns { q: q.view(), by: by.view(), masks, rewards: rewards.view(), discounts: discounts.view() };
                kernels.targets(&bench.stream, &next, &targets.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &targets);
            }

            // Errors near 1.
            let q: Vec<f32> = (0..n * a)
                .map(|_| {
                    let one = bench.corners.pick(&[1.0, -1.0, 0.5, 3.0]);
                    let (near, any) = (bench.corners.near(one), bench.any());
                    if wild { any } else { near }
                })
                .collect();
            let actions: Vec<u32> = (0..n)
                .map(|_| {
                    let (action, a) = (bench.corners.0.below(a as u32), a as u32);
                    bench.corners.pick(&[action, action, action, a - 1, a, u32::MAX])
                })
                .collect();
            let wanted: Vec<f32> = (0..n).map(|_| bench.corners.pick(&[0.0, 0.0, 2.0, -1e-3])).collect();
            let weights: Vec<f32> = (0..n).map(|_| bench.corners.pick(&[1.0, 1.0, 0.3, 1e-30])).collect();
            let (q, actions, wanted, weights) =
                (bench.upload(&q), bench.upload(&actions), bench.upload(&wanted), bench.upload(&weights));
            let (mut d_q, mut errors, mut terms) = (bench.zeros(n * a), bench.zeros(n), bench.zeros(TD_TERMS * n));
            let columns = TdColumns { q: q.view(), actions: actions.view(), targets: wanted.view(), weights: weights.view() };
            kernels.loss(&bench.stream, &columns, [&d_q.view_mut(), &errors.view_mut(), &terms.view_mut()]).unwrap();
            [&d_q, &errors, &terms].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let gradient = bench.floats(n * a, wild);
            let (mut d_advantages, mut d_values) = (bench.zeros(n * a), bench.zeros(n));
            let to = [&d_advantages.view_mut(), &d_values.view_mut()];
            kernels.dueling_gradient(&bench.stream, &gradient.view(), to).unwrap();
            [&d_advantages, &d_values].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let (slices, mut state) = (bench.slices(n, 1), bench.state());
            let terms = bench.floats(TD_TERMS * n, wild);
            let others = bench.state();
            let other = (round % 2 == 1).then_some(&others);
            kernels.totals(&bench.stream, &slices, &terms.view(), &mut state, other).unwrap();
            bench.add_state(&state);

            let mut target = bench.floats(n * a, wild);
            let tau = bench.corners.pick(&[0.0, 1.0, 0.3, 1e-9]);
            kernels.follow(&bench.stream, &gradient.view(), &target.view_mut(), tau, &state, other).unwrap();
            bench.digest.floats(&bench.stream, &target);
        }
        // No actions.
        let (none, values, mut q) = (bench.zeros(0), bench.floats(3, false), bench.zeros(0));
        let mut d_values = bench.floats(3, false);
        kernels.dueling(&bench.stream, [&none.view(), &values.view()], &q.view_mut()).unwrap();
        kernels.dueling_gradient(&bench.stream, &none.view(), [&q.view_mut(), &d_values.view_mut()]).unwrap();
        bench.digest.floats(&bench.stream, &d_values);
        bench.digest
    });
}

#[test]
fn continuous_actions_agree_on_any_numbers() {
    agree("continuous actions", |device| {
        let mut bench = KernelBench::new(device, LearnerKernels::new, 23);
        let kernels = ContinuousKernels::new(device).unwrap();
        for round in 0..rounds(64) {
            let wild = round % 4 == 3;
            let (n, a, d) = (bench.corners.pick(&[1, 3, 8, 12, 16, 33, 130]), bench.corners.pick(&[1, 2, 3, 4, 5, 9]), round % 6);
            let [seed, update] = bench.corners.clock();
            let update = bench.upload(&[update]);
            let noise = Noise { seed, update: update.view(), first: bench.corners.pick(&[0, 1, 257, u32::MAX - 40]) };

            // Bounds around the actions, or of one point; rows without observations.
            let bounds: Vec<f32> =
                (0..a).flat_map(|_| [bench.corners.pick(&[0.0, 0.5, -1.0]), bench.corners.pick(&[1.0, 0.25, 0.0])]).collect();
            let taken: Vec<f32> = (0..n * a)
                .map(|_| {
                    let end = bench.corners.pick(&[1.0, -1.0]);
                    let (near, any) = (bench.corners.near(end), bench.any());
                    let within = bench.corners.0.uniform_in(-1.0, 1.0);
                    if wild { any } else { bench.corners.pick(&[near, within]) }
                })
                .collect();
            let (obs, taken, bounds) = (bench.floats(n * d, wild), bench.upload(&taken), bench.upload(&bounds));
            let mut rows = bench.zeros(n * (d + a));
            for bounds in [None, Some(&bounds.view())] {
                kernels.rows(&bench.stream, [&obs.view(), &taken.view()], bounds, n, &rows.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &rows);
            }

            // Logarithms of deviations at the ends of their range.
            let log_stds: Vec<f32> = (0..n * a)
                .map(|_| {
                    let end = bench.corners.pick(&[-20.0, 2.0, 0.0]);
                    let (near, exp, any) = (bench.corners.near(end), bench.corners.pick(&EXP), bench.any());
                    if wild { any } else { bench.corners.pick(&[near, near, exp]) }
                })
                .collect();
            let means = bench.outputs(n * a, wild);
            let (means, log_stds) = (bench.upload(&means), bench.upload(&log_stds));
            let of = SquashedColumns { means: means.view(), log_stds: log_stds.view() };
            let [mut normals, mut actions, mut log_probs] = [n * a, n * a, n].map(|len| bench.zeros(len));
            let to = [&normals.view_mut(), &actions.view_mut(), &log_probs.view_mut()];
            kernels.squash(&bench.stream, &of, noise, to).unwrap();
            [&normals, &actions, &log_probs].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            let (d_rows, temperature) = (bench.floats(n * (d + a), wild), bench.floats(1, wild));
            let [mut d_means, mut d_log_stds] = [(); 2].map(|()| bench.zeros(n * a));
            let columns = [&normals.view(), &d_rows.view(), &temperature.view()];
            let to = [&d_means.view_mut(), &d_log_stds.view_mut()];
            kernels.squash_gradient(&bench.stream, &of, columns, n, to).unwrap();
            [&d_means, &d_log_stds].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let std = bench.corners.pick(&[0.0, 0.2, 3.0]);
            let clip = bench.corners.pick(&[0.0, 0.5, 2.0]);
            for added in [None, Some(ClippedNoise { noise, std, clip })] {
                kernels.choose(&bench.stream, &means.view(), added, n, &actions.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &actions);
            }
            let of = [&means.view(), &d_rows.view()];
            kernels.choose_gradient(&bench.stream, of, n, &d_means.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &d_means);

            // Equal values, and values beside each other.
            let values = |bench: &mut KernelBench<'_, LearnerKernels>| {
                let numbers: Vec<f32> = (0..n)
                    .map(|_| {
                        let any = bench.any();
                        if wild { any } else { bench.corners.pick(&[0.0, 1.0, 1.0 + f32::EPSILON, -1.0]) }
                    })
                    .collect();
                bench.upload(&numbers)
            };
            let [one, other] = [(); 2].map(|()| values(&mut bench));
            let [rewards, discounts] = [n, n].map(|len| bench.floats(len, wild));
            let log_alpha = if wild { bench.any() } else { bench.corners.pick(&EXP) };
            let log_alpha = bench.upload(&[log_alpha]);
            let [mut targets, mut d_one, mut d_other, mut errors] = [(); 4].map(|()| bench.zeros(n));
            let mut terms = bench.zeros(TD_TERMS * n);
            let entropy = Entropy { log_probs: log_probs.view(), temperature: temperature.view(), log_alpha: None };
            let learnt = Entropy { log_alpha: Some(log_alpha.view()), ..entropy };
            for (other, entropy) in [(None, None), (Some(other.view()), Some(entropy)), (Some(other.view()), Some(learnt))] {
                let q = Values { one: one.view(), other };
                let columns = [&rewards.view(), &discounts.view()];
                kernels.targets(&bench.stream, &q, entropy, columns, &targets.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &targets);
                let d_other = other.map(|_| d_other.view_mut());
                let gradients = ValueGradients { one: d_one.view_mut(), other: d_other };
                let (columns, to) = ([&targets.view(), &rewards.view()], [&errors.view_mut(), &terms.view_mut()]);
                let scale = bench.corners.pick(&[0.5, 1.0]);
                kernels.loss(&bench.stream, &q, columns, scale, &gradients, to).unwrap();
                [&errors, &terms].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
                kernels.value(&bench.stream, &q, entropy, round % 2 == 0, &gradients, &terms.view_mut()).unwrap();
                bench.digest.floats(&bench.stream, &terms);
            }
            [&d_one, &d_other].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));

            let (one, other, mut state) = (bench.state(), bench.state(), bench.state());
            let [mut alpha, mut gradient] = [(); 2].map(|()| bench.zeros(1));
            let mut square = Buffer::<f64>::zeros(device, 1).unwrap();
            let (temperature, gradient_of) = (alpha.view_mut(), gradient.view_mut());
            let to = TemperatureStep { temperature, gradient: gradient_of, square: square.view_mut() };
            let of = [&log_probs.view(), &log_alpha.view()];
            kernels.temperature(&bench.stream, of, -(a as f32), &to, [&one, &other], &mut state).unwrap();
            [&alpha, &gradient].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            bench.digest.doubles(&bench.stream, &square);
            bench.add_state(&state);
        }
        // Actions all along tanh, almost without noise, and deviations all along their range.
        let n = 4096;
        let update = bench.upload(&[1]);
        let [means, near] = [3e-3, 3e-4].map(|step| (0..n).map(|i| (i as f32 - 2048.0) * step).collect::<Vec<f32>>());
        let log_stds: Vec<f32> = (0..n).map(|i| i as f32 * 5.4e-3 - 20.1).collect();
        let (zeros, least) = (bench.zeros(n), bench.upload(&vec![-20.0; n]));
        let (means, near, log_stds) = (bench.upload(&means), bench.upload(&near), bench.upload(&log_stds));
        // Without a gradient of Q, or without entropy, so that nothing covers the last bits.
        let d_q = bench.floats(n, false);
        for (of, d_rows, alpha) in
            [([&means, &least], &zeros, 0.3f32), ([&near, &least], &zeros, 0.3), ([&zeros, &log_stds], &d_q, 0.0)]
        {
            let [mut normals, mut actions, mut log_probs, mut d_log_stds] = [(); 4].map(|()| bench.zeros(n));
            let of = SquashedColumns { means: of[0].view(), log_stds: of[1].view() };
            let noise = Noise { seed: 9, update: update.view(), first: 0 };
            let to = [&normals.view_mut(), &actions.view_mut(), &log_probs.view_mut()];
            kernels.squash(&bench.stream, &of, noise, to).unwrap();
            [&normals, &actions, &log_probs].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            let alpha = bench.upload(&[alpha]);
            let columns = [&normals.view(), &d_rows.view(), &alpha.view()];
            let to = [&log_probs.view_mut(), &d_log_stds.view_mut()];
            kernels.squash_gradient(&bench.stream, &of, columns, n, to).unwrap();
            [&log_probs, &d_log_stds].into_iter().for_each(|floats| bench.digest.floats(&bench.stream, floats));
            kernels.choose(&bench.stream, &of.means, None, n, &actions.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &actions);
            kernels.choose_gradient(&bench.stream, [&of.means, &d_q.view()], n, &actions.view_mut()).unwrap();
            bench.digest.floats(&bench.stream, &actions);
        }
        bench.digest
    });
}
