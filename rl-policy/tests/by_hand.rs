//! Outputs and actions that are worked out by hand.
#![cfg(feature = "write")]

use rl_policy::write::file;
use rl_policy::{Action, Activation, Choice, Error, Exported, Head, Input, Layer, LayerKind, Obs, Part, Policy, stack};

/// 2^24: the sum with 1 is a midpoint, and rounds back.
const LARGE: f32 = 16_777_216.0;

/// A policy with one linear layer.
fn linear(kind: LayerKind, weight: Vec<f32>, bias: &[f32], head: Head) -> Exported {
    let d = weight.len() / bias.len();
    let input = Input { shape: vec![d], frames: 1, bytes: None, normalize: None, categories: vec![] };
    let layers = vec![Layer { kind, weight, bias: bias.to_vec(), activation: Activation::Identity }];
    Exported { about: String::new(), input, parts: vec![], layers, head }
}

/// A policy whose outputs are the `biases`, for an observation of one element.
fn constant(biases: &[f32], head: Head) -> Exported {
    linear(LayerKind::Dense { real: 1, padded: 1 }, vec![0.0; biases.len()], biases, head)
}

fn outputs(policy: &Exported, obs: &[f32]) -> Vec<f32> {
    let bytes = file(policy);
    let policy = Policy::new(&bytes).expect("a policy");
    policy.outputs(Obs::F32(obs), &mut vec![f32::NAN; policy.memory_len()]).expect("an observation").to_vec()
}

fn discrete<const N: usize>(policy: &Exported, mask: &[u8], choice: Choice) -> [u32; N] {
    let (bytes, mut action) = (file(policy), [u32::MAX; N]);
    let policy = Policy::new(&bytes).expect("a policy");
    let mut memory = vec![f32::NAN; policy.memory_len()];
    policy.act(Obs::F32(&[0.0]), mask, choice, &mut memory, Action::Discrete(&mut action)).expect("an action");
    action
}

fn continuous<const N: usize>(policy: &Exported, choice: Choice) -> [f32; N] {
    let (bytes, mut action) = (file(policy), [f32::NAN; N]);
    let policy = Policy::new(&bytes).expect("a policy");
    let mut memory = vec![f32::NAN; policy.memory_len()];
    policy.act(Obs::F32(&[0.0]), &[], choice, &mut memory, Action::Continuous(&mut action)).expect("an action");
    action
}

/// Sum of [`LARGE`] and ones at some of `n` terms.
///
/// Runs of `real` terms have `padded` places.
fn sum(n: usize, [real, padded]: [usize; 2], ones: &[usize]) -> f32 {
    let mut weight = vec![0.0; n];
    weight[0] = LARGE;
    ones.iter().for_each(|i| weight[*i] = 1.0);
    let policy = linear(LayerKind::Dense { real, padded }, weight, &[0.0], Head::Values { n: 1, masked: false, dueling: false });
    outputs(&policy, &vec![1.0; n])[0]
}

#[test]
fn sums_of_more_than_96_terms_have_parts_of_32() {
    // Ones that are added one after the other to 2^24 are lost; two of them that are a part are not.
    assert_eq!(sum(96, [96, 96], &[32, 33]), LARGE);
    assert_eq!(sum(97, [97, 97], &[32, 33]), LARGE + 2.0);
    assert_eq!(sum(97, [97, 97], &[31, 32]), LARGE);
    assert_eq!(sum(97, [97, 97], &[30, 31]), LARGE);
    assert_eq!(sum(97, [97, 97], &[62, 63]), LARGE + 2.0);
    assert_eq!(sum(97, [97, 97], &[63, 64]), LARGE);
    assert_eq!(sum(98, [98, 98], &[96, 97]), LARGE + 2.0);
    // Runs of 3 terms begin at the places 0, 20, 40, 60, 80 and 100.
    assert_eq!(sum(18, [3, 20], &[6, 7]), LARGE + 2.0);
    assert_eq!(sum(18, [3, 20], &[6, 11]), LARGE + 2.0);
    assert_eq!(sum(18, [3, 20], &[5, 6]), LARGE);
    assert_eq!(sum(18, [3, 16], &[6, 7]), LARGE, "96 places are not many");
}

#[test]
fn convolutions_read_planes_or_channels_last() {
    // Two channels of 2 x 3 numbers, and a kernel of 2 x 2: two positions, whose outputs are the sums of 8 terms.
    let conv = |planes| LayerKind::Conv { input: [2, 2, 3], kernel: 2, stride: 1, planes };
    let weight: Vec<f32> = (0..8).map(|i| 10.0f32.powi(i % 4) * if i < 4 { 1.0 } else { 0.0 }).collect();
    let head = Head::Values { n: 2, masked: false, dueling: false };
    let mut policy = linear(conv(true), weight, &[0.5], head);
    policy.input.shape = vec![12];
    let obs: Vec<f32> = (1..=12).map(|x| (x % 10) as f32).collect();
    // The first four terms: rows of the first channel, 1 2 3 and 4 5 6.
    assert_eq!(outputs(&policy, &obs), [5421.5, 6532.5]);
    // Or both channels of two columns, 1 2, 3 4 and 5 6.
    policy.layers[0].kind = conv(false);
    assert_eq!(outputs(&policy, &obs), [4321.5, 6543.5]);
}

#[test]
fn a_normalization_leaves_mean_0_and_deviation_1_before_gain_and_offset() {
    // x, 2 x, 3 x and 6 x: mean 3 x, variance 3.5 x^2.
    let head = Head::Values { n: 4, masked: false, dueling: false };
    let mut policy = linear(LayerKind::Dense { real: 1, padded: 1 }, vec![1.0, 2.0, 3.0, 6.0], &[0.0; 4], head);
    let (weight, bias) = (vec![1.0, 1.0, 5.0, -2.0], vec![0.0, 0.5, 0.25, 0.0]);
    policy.layers.push(Layer { kind: LayerKind::Norm, weight, bias, activation: Activation::Identity });
    for x in [1.0, -0.001, 1e4] {
        let deviation = (3.5 * f64::from(x) * f64::from(x) + 1e-5).sqrt() / f64::from(x);
        let expected = [-2.0 / deviation, -1.0 / deviation + 0.5, 0.25, -6.0 / deviation];
        let got = outputs(&policy, &[x]);
        assert!(
            got.iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-6),
            "{got:?} {expected:?}"
        );
    }
}

#[test]
fn categories_read_one_row_and_other_numbers_none() {
    let head = Head::Values { n: 1, masked: false, dueling: false };
    let mut policy = linear(LayerKind::Dense { real: 5, padded: 5 }, vec![1.0, 10.0, 100.0, 1000.0, 0.5], &[0.25], head);
    (policy.input.shape, policy.input.categories) = (vec![3], vec![3, 1, 0]);
    assert_eq!(outputs(&policy, &[2.0, 0.0, 4.0]), [1102.25]);
    assert_eq!(outputs(&policy, &[0.0, 1.0, -4.0]), [-0.75]);
    for x in [3.0, -1.0, 0.5, 1e30, f32::NAN] {
        assert_eq!(outputs(&policy, &[x, 0.0, 0.0]), [1000.25]);
    }
}

/// A memory of one number over one input `x`.
///
/// Its gates' sums of inputs are `x` times `inputs`; the weights and biases of h are `hidden`.
fn memory(kind: LayerKind, inputs: &[f32], hidden: &[[f32; 2]]) -> Exported {
    let head = Head::Values { n: 1, masked: false, dueling: false };
    let mut policy = linear(LayerKind::Dense { real: 1, padded: 1 }, inputs.to_vec(), &vec![0.0; inputs.len()], head);
    let [weight, bias] = [0, 1].map(|i| hidden.iter().map(|numbers| numbers[i]).collect());
    policy.layers.push(Layer { kind, weight, bias, activation: Activation::Identity });
    policy
}

#[test]
fn a_memory_takes_a_step_with_each_call_until_it_is_reset() {
    const OPEN: f32 = 1e4; // of a gate whose sigmoid is 1
    // z = 1/2 and r = 1: h' = n + (h - n) / 2 with n = tanh(x + h).
    let gru = memory(LayerKind::Gru, &[0.0, 0.0, 1.0], &[[0.0, OPEN], [0.0, 0.0], [1.0, 0.0]]);
    // All gates are open: c' = c + tanh(x), h' = tanh(c').
    let lstm = memory(LayerKind::Lstm, &[0.0, 0.0, 1.0, 0.0], &[[0.0, OPEN], [0.0, OPEN], [0.0, 0.0], [0.0, OPEN]]);
    let halves = |h: f64, x: f64| (h + (x + h).tanh()) / 2.0;
    let first = halves(0.0, 0.5);
    let (one, two) = (0.5f64.tanh(), 0.5f64.tanh() - 1.5f64.tanh());
    for (policy, state_len, expected) in [(gru, 1, [first, halves(first, -1.5)]), (lstm, 2, [one.tanh(), two.tanh()])] {
        let bytes = file(&policy);
        let loaded = Policy::new(&bytes).expect("a policy");
        assert_eq!((loaded.state_len(), policy.state_len()), (state_len, state_len));
        let mut memory = vec![f32::NAN; loaded.memory_len()];
        for episode in 0..2 {
            loaded.reset(&mut memory);
            for (x, expected) in [0.5, -1.5].into_iter().zip(expected) {
                let h = loaded.outputs(Obs::F32(&[x]), &mut memory).expect("an observation")[0];
                assert!((f64::from(h) - expected).abs() < 1e-6, "{h} in episode {episode}, not {expected}");
            }
        }
    }
}

#[test]
fn parts_have_convolutions_one_hot_vectors_or_stay_as_they_are() {
    // A picture of 1 x 2 x 2 whose numbers are summed, 2 categories of 3, a number.
    let head = Head::Values { n: 1, masked: false, dueling: false };
    let weight = vec![1.0, 10.0, 20.0, 30.0, 100.0, 200.0, 300.0, 0.5];
    let mut policy = linear(LayerKind::Dense { real: 8, padded: 8 }, weight, &[0.25], head);
    let kind = LayerKind::Conv { input: [1, 2, 2], kernel: 2, stride: 1, planes: true };
    let sum = Layer { kind, weight: vec![1.0; 4], bias: vec![-1.0], activation: Activation::Relu };
    policy.parts = vec![Part { len: 4, layers: vec![sum] }, Part { len: 2, layers: vec![] }, Part { len: 1, layers: vec![] }];
    (policy.input.shape, policy.input.categories) = (vec![7], vec![0, 0, 0, 0, 3, 3, 0]);
    assert_eq!(policy.n_features(), 8);
    assert_eq!([0, 3, 4, 5, 6].map(|element| policy.input_of(element)), [None, None, Some(1), Some(4), Some(7)]);
    assert_eq!(outputs(&policy, &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 8.0]), [9.0 + 20.0 + 300.0 + 4.0 + 0.25]);
    assert_eq!(outputs(&policy, &[0.0, 0.5, 0.0, 0.0, 3.0, 0.0, 0.0]), [100.25], "no category");
    policy.input.normalize = Some([vec![1.0; 7], vec![2.0; 7]]);
    assert_eq!(outputs(&policy, &[2.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.5]), [1.0 + 10.0 + 200.0 + 0.5 + 0.25]);
}

#[test]
fn observations_are_normalized_and_clipped() {
    let head = Head::Values { n: 1, masked: false, dueling: false };
    let mut policy = linear(LayerKind::Dense { real: 2, padded: 2 }, vec![1.0, 100.0], &[0.0], head);
    policy.input.normalize = Some([vec![1.0, 0.0], vec![0.5, 1.0]]);
    assert_eq!(outputs(&policy, &[5.0, 3.0]), [302.0]);
    assert_eq!(outputs(&policy, &[99.0, -11.0]), [-990.0]);
}

#[test]
fn the_greedy_action_is_the_first_legal_one_of_equals() {
    let values = |masked| constant(&[1.0, 2.0, 2.0], Head::Values { n: 3, masked, dueling: false });
    let heads = |masked| constant(&[1.0, 2.0, 2.0], Head::Categorical { sizes: vec![3], masked });
    for policy in [values, heads] {
        assert_eq!(discrete(&policy(false), &[], Choice::Greedy), [1]);
        assert_eq!(discrete(&policy(true), &[1, 1, 1], Choice::Greedy), [1]);
        assert_eq!(discrete(&policy(true), &[1, 0, 1], Choice::Greedy), [2]);
        assert_eq!(discrete(&policy(true), &[1, 0, 0], Choice::Greedy), [0]);
        assert_eq!(discrete(&policy(true), &[0, 0, 0], Choice::Greedy), [0], "no legal action");
    }
    let several = constant(&[0.0, 1.0, 5.0, 2.0, 3.0, 3.0], Head::Categorical { sizes: vec![2, 1, 3], masked: false });
    assert_eq!(discrete(&several, &[], Choice::Greedy), [1, 0, 1]);
}

#[test]
fn dueling_values_are_the_value_and_centred_advantages() {
    let policy = constant(&[1.0, 2.0, 6.0, 10.0], Head::Values { n: 3, masked: false, dueling: true });
    assert_eq!(outputs(&policy, &[0.0])[..3], [8.0, 9.0, 13.0]);
}

#[test]
fn draws_have_the_probabilities_of_the_softmax() {
    // Logits 0, ln 3 and ln 4; the second action is illegal under the mask.
    let policy = constant(&[0.0, 1.098_612_3, 1.386_294_4], Head::Categorical { sizes: vec![3], masked: true });
    for (mask, expected) in [([1, 1, 1], [0.125, 0.375, 0.5]), ([1, 0, 1], [0.2, 0.0, 0.8])] {
        let mut counts = [0u32; 3];
        for step in 0..20_000 {
            let [action] = discrete(&policy, &mask, Choice::Sample { seed: 3, env: 1, step });
            counts[action as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip(expected) {
            assert!((count as f32 / 20_000.0 - expected).abs() < 0.015, "{counts:?}"); // four standard errors
            assert!(expected > 0.0 || count == 0, "an illegal action");
        }
    }
}

#[test]
fn continuous_actions_stay_within_their_bounds() {
    let bounds = || [vec![-1.0, 0.0], vec![1.0, 4.0]];
    let gaussian = constant(&[0.25, 9.0], Head::Gaussian { log_std: vec![-20.0, 0.0], bounds: bounds() });
    assert_eq!(continuous(&gaussian, Choice::Greedy), [0.25, 4.0]);
    let squashed = constant(&[0.0, 20.0, -99.0, -99.0], Head::Squashed { bounds: bounds() });
    let deterministic = constant(&[0.0, 20.0], Head::Deterministic { bounds: bounds() });
    for choice in [Choice::Greedy, Choice::Sample { seed: 1, env: 2, step: 3 }] {
        assert_eq!(continuous::<2>(&squashed, choice).map(|x| (x * 1e6).round() / 1e6), [0.0, 4.0]);
        assert_eq!(continuous(&deterministic, choice), [0.0, 4.0]);
    }
    // Rounding must not exceed a bound.
    for i in 1..200 {
        let (low, high) = (-0.1 * i as f32, 0.07 * i as f32);
        let deterministic = constant(&[99.0, -99.0], Head::Deterministic { bounds: [vec![low; 2], vec![high; 2]] });
        let action = continuous::<2>(&deterministic, Choice::Greedy);
        assert!(action.iter().all(|x| (low..=high).contains(x)), "{action:?} is not in {low}..={high}");
    }
    // A logarithm of 99 counts as 2: draws have a standard deviation of 7.4 before the tanh.
    let wide = constant(&[0.0, 99.0], Head::Squashed { bounds: [vec![-1.0], vec![1.0]] });
    let draws = (0..1000).map(|step| continuous::<1>(&wide, Choice::Sample { seed: 1, env: 0, step })[0]);
    let n_inside = draws.filter(|x| x.abs() < 0.76).count(); // tanh(1): 10.8% of a Gaussian
    assert!((70..150).contains(&n_inside), "{n_inside} of 1000");
}

#[test]
fn frames_are_stacked_oldest_first() {
    let mut obs = [0; 6];
    stack(&mut obs, &[1, 2], true);
    assert_eq!(obs, [1, 2, 1, 2, 1, 2]);
    stack(&mut obs, &[3, 4], false);
    assert_eq!(obs, [1, 2, 1, 2, 3, 4]);
    stack(&mut obs, &[5, 6], false);
    assert_eq!(obs, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn errors_say_what_is_wrong() {
    assert_eq!(Error::Version(3).to_string(), "the policy file has version 3 of the format; this loader reads 2");
    assert_eq!(Error::Call("mask").to_string(), "the mask does not fit the policy in length or type");
}
