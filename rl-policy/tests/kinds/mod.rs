//! Policies of all kinds with small random weights.

use rl_envs::{Purpose, Rng};
use rl_policy::{Activation, Exported, Head, Input, Layer, LayerKind, Part};

/// Returns numbers of both signs, some of them 0.
fn numbers(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| (rng.below(33) as f32 - 16.0) / 8.0).collect()
}

fn layer(rng: &mut Rng, kind: LayerKind, n_terms: usize, n: usize, activation: Activation) -> Layer {
    Layer { kind, weight: numbers(rng, n_terms * n), bias: numbers(rng, n), activation }
}

/// Returns a policy of each kind of head, layer and observation.
pub(crate) fn policies() -> Vec<Exported> {
    let rng = &mut Rng::new(1, 0, 0, Purpose::Init);
    let dense = |n| LayerKind::Dense { real: n, padded: n };
    let input = |d: usize| Input { shape: vec![d], frames: 1, bytes: None, normalize: None, categories: vec![] };
    let mut bounds = || [numbers(rng, 2), numbers(rng, 2).iter().map(|x| x + 4.0).collect()];
    let (gaussian, squashed, deterministic) = (bounds(), bounds(), bounds());
    let activated = |rng: &mut Rng, d: usize, n: usize, n_out: usize, activation| {
        vec![layer(rng, dense(d), d, n, activation), layer(rng, dense(n), n, n_out, Activation::Identity)]
    };
    let hidden = |rng: &mut Rng, d: usize, n: usize, n_out: usize| activated(rng, d, n, n_out, Activation::Tanh);
    let convolutions = vec![
        layer(rng, LayerKind::Conv { input: [2, 6, 5], kernel: 2, stride: 1, planes: true }, 8, 4, Activation::Relu),
        layer(rng, LayerKind::Conv { input: [4, 5, 4], kernel: 3, stride: 1, planes: false }, 36, 3, Activation::Relu),
        layer(rng, LayerKind::Dense { real: 3, padded: 20 }, 18, 3, Activation::Identity), // 120 places: a long sum
    ];
    let corner = LayerKind::Conv { input: [1, 5, 5], kernel: 2, stride: 5, planes: true }; // of a picture of any size
    let corner = vec![layer(rng, corner, 4, 3, Activation::Tanh)];
    let picture = Input { shape: vec![5, 5], ..input(25) };
    let pixels = Input { shape: vec![2, 6, 5], frames: 2, bytes: Some(1.0 / 255.0), ..input(60) };
    let normalized = Input { normalize: Some([numbers(rng, 3), numbers(rng, 3)]), ..input(3) };
    let cards = Input { categories: vec![0, 5, 1, 7], normalize: Some([numbers(rng, 4), numbers(rng, 4)]), ..input(4) };
    let linear = vec![layer(rng, dense(3), 3, 2, Activation::Identity)];
    let remembers = |rng: &mut Rng, kind, n_gates: usize| {
        let head = layer(rng, dense(2), 2, 2, Activation::Identity);
        let [inputs, h] = [(dense(3), 3), (kind, 2)].map(|(kind, n)| layer(rng, kind, n, 2 * n_gates, Activation::Identity));
        vec![inputs, h, head]
    };
    let eye = layer(rng, LayerKind::Conv { input: [1, 3, 3], kernel: 2, stride: 1, planes: true }, 4, 2, Activation::Elu);
    let hand = Input { categories: vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0], ..input(11) };
    let parts = vec![Part { len: 9, layers: vec![eye] }, Part { len: 2, layers: vec![] }];
    let head = Head::Values { n: 2, masked: false, dueling: false };
    let robot = Exported { about: "robot".into(), input: hand, parts, layers: hidden(rng, 13, 3, 2), head };
    let (gru, lstm) = (remembers(rng, LayerKind::Gru, 3), remembers(rng, LayerKind::Lstm, 4));
    // More numbers than a sum has lanes.
    let mut normed = activated(rng, 3, 40, 2, Activation::Identity);
    normed.insert(1, layer(rng, LayerKind::Norm, 1, 40, Activation::Relu));
    let policy = |about: &str, input, layers, head| Exported { about: about.into(), input, parts: vec![], layers, head };
    vec![
        policy("one head", input(3), hidden(rng, 3, 4, 2), Head::Categorical { sizes: vec![2], masked: true }),
        policy("é", input(130), hidden(rng, 130, 2, 6), Head::Categorical { sizes: vec![3, 1, 2], masked: false }),
        policy("values", cards, hidden(rng, 14, 3, 3), Head::Values { n: 3, masked: true, dueling: false }),
        policy("dueling", pixels, convolutions, Head::Values { n: 2, masked: false, dueling: true }),
        policy("corner", picture, corner, Head::Values { n: 3, masked: false, dueling: false }),
        policy(
            "",
            normalized,
            activated(rng, 3, 4, 2, Activation::Gelu),
            Head::Gaussian { log_std: vec![-1.0, 0.5], bounds: gaussian },
        ),
        policy("squashed", input(3), activated(rng, 3, 4, 4, Activation::Silu), Head::Squashed { bounds: squashed }),
        policy("gru", input(3), gru, Head::Values { n: 2, masked: false, dueling: false }),
        policy("lstm", input(3), lstm, Head::Categorical { sizes: vec![2], masked: false }),
        robot,
        policy("linear", input(3), linear, Head::Deterministic { bounds: deterministic }),
        policy("normed", input(3), normed, Head::Values { n: 2, masked: false, dueling: false }),
    ]
}
