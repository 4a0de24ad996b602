//! Policies of every kind, with observations and what the originals do.

use crate::compiled::EPISODE;
use rl_agents::{
    Acted, Acting, Activation, ActorCritic, Choice, DeterministicPolicy, MemoryKind, NetConfig, Policy, QNetwork, Scratch,
    Snapshot, SquashedGaussian,
};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Actions, Dtype, Part, Purpose, Rng, Space, Spaces, math};

/// A policy with its spaces.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) spaces: Spaces,
    pub(crate) policy: Box<dyn Policy>,
}

fn net(hidden: &[usize]) -> NetConfig {
    NetConfig { hidden: hidden.to_vec(), ..NetConfig::default() }
}

/// Returns other parameters than the initial ones, and statistics of observations.
fn moved(policy: &dyn Policy, seed: u64) -> Snapshot {
    let mut snapshot = Snapshot::from(policy.weights());
    let mut rng = Rng::new(seed, 0, 0, Purpose::Init);
    snapshot.params.iter_mut().for_each(|x| *x = 1.5 * *x + 0.1 * rng.normal());
    if let Some(moments) = &mut snapshot.statistics.obs {
        let d = moments.mean().len();
        (0..20).for_each(|_| moments.push((0..d).map(|j| f64::from(rng.normal()) * (1.0 + j as f64) + 0.5)));
    }
    snapshot
}

fn actor_critic(name: &'static str, obs: Space, actions: ActionSpace, net: &NetConfig) -> Case {
    let mut policy = ActorCritic::new(&obs, &actions, net, 1).unwrap();
    policy.load(&moved(&policy, 2)).unwrap();
    Case { name, spaces: Spaces { obs, actions }, policy: Box::new(policy) }
}

fn q_network(name: &'static str, obs: Space, actions: ActionSpace, net: &NetConfig, dueling: bool) -> Case {
    let mut policy = QNetwork::new(&obs, &actions, net, dueling, 1).unwrap();
    policy.load(&moved(&policy, 3)).unwrap();
    Case { name, spaces: Spaces { obs, actions }, policy: Box::new(policy) }
}

/// A policy of every kind, for every kind of observation.
pub(crate) fn cases() -> Vec<Case> {
    let vector = |d: usize| Space::vector(&vec![-1.0; d], &vec![1.0; d]);
    let pixels = |stack: usize| Space::bytes(&[1, 20, 17], 255, 1.0 / 255.0).stacked(stack);
    let discrete = |n, masked| ActionSpace::Discrete { n, masked };
    let boxed = ActionSpace::Continuous { low: vec![-2.0, 0.5, -1.0, -0.25, 1.0], high: vec![2.0, 1.0, 3.0, 0.75, 1.5] };
    let open = ActionSpace::Continuous { low: vec![f32::NEG_INFINITY, -0.1], high: vec![f32::INFINITY, 0.1] };
    let relu = NetConfig { activation: Activation::Relu, ..net(&[64]) };
    let after = |activation| NetConfig { activation, ..net(&[64, 24]) };
    // Channels that are no multiple of the kernel's lanes.
    let conv = NetConfig { conv: vec![[20, 5, 2], [40, 3, 1]], ..net(&[50]) };
    // Two pictures of 6 x 7 and 8 x 5, with numbers between them.
    let parts = |categories: bool| {
        let sizes = [("front", vec![2, 6, 7]), ("joints", vec![2]), ("kind", vec![2]), ("back", vec![1, 8, 5])];
        let parts = sizes.map(|(name, shape)| Part { name: name.into(), shape });
        let mut n_categories = vec![0; 128];
        n_categories[87] = if categories { 5 } else { 0 };
        vector(128).with_categories(&n_categories).with_parts(&parts)
    };
    let several = NetConfig { conv: vec![[20, 3, 2], [17, 2, 1]], ..net(&[50]) };
    let normalized = NetConfig { normalize_obs: true, ..net(&[64, 64]) };
    let shared = NetConfig { shared_trunk: true, ..net(&[48, 24]) };
    let normed = |net: &NetConfig| NetConfig { layer_norm: true, ..net.clone() };
    let remembers = |memory, memory_size, net: &NetConfig| NetConfig { memory, memory_size, ..net.clone() };
    let mut squashed = SquashedGaussian::new(&vector(11), &boxed, &net(&[256, 256]), 1).unwrap();
    squashed.load(&moved(&squashed, 4)).unwrap();
    let mut linear = SquashedGaussian::new(&vector(11), &boxed, &net(&[]), 1).unwrap();
    linear.load(&moved(&linear, 4)).unwrap();
    let mut deterministic = DeterministicPolicy::new(&vector(11), &boxed, &relu, 1).unwrap();
    deterministic.load(&moved(&deterministic, 5)).unwrap();
    let case = |name, policy| Case { name, spaces: Spaces { obs: vector(11), actions: boxed.clone() }, policy };
    let spaces = |obs, actions| Spaces { obs, actions };
    vec![
        Case {
            name: "ties",
            spaces: spaces(vector(3), discrete(5, true)),
            policy: Box::new(ActorCritic::unset(&vector(3), &discrete(5, true), &relu).unwrap()),
        },
        Case {
            name: "q_ties",
            spaces: spaces(vector(3), discrete(5, true)),
            policy: Box::new(QNetwork::unset(&vector(3), &discrete(5, true), &relu, false).unwrap()),
        },
        actor_critic("dense", vector(4), discrete(2, false), &net(&[64, 64])),
        actor_critic("own_critic", vector(4), discrete(2, false), &NetConfig { critic_hidden: Some(vec![9]), ..net(&[32]) }),
        actor_critic("elu", vector(4), discrete(2, false), &after(Activation::Elu)),
        actor_critic("silu", vector(4), discrete(2, false), &after(Activation::Silu)),
        actor_critic("gelu", vector(4), discrete(2, false), &after(Activation::Gelu)),
        actor_critic("normed", vector(4), discrete(2, false), &normed(&after(Activation::Gelu))),
        actor_critic("normed_trunk", pixels(1), discrete(6, true), &normed(&NetConfig { shared_trunk: true, ..conv.clone() })),
        q_network("normed_q", vector(9), discrete(5, true), &normed(&relu), true),
        actor_critic("linear", vector(200), discrete(3, false), &net(&[])),
        actor_critic("long", vector(130), discrete(18, true), &net(&[97, 33])),
        actor_critic("trunk", vector(9), ActionSpace::MultiDiscrete { sizes: vec![3, 1, 5] }, &shared),
        actor_critic("normalized", vector(17), boxed.clone(), &normalized),
        actor_critic("clipped", vector(3), open, &net(&[32])),
        actor_critic("pictures", pixels(4), discrete(6, false), &conv),
        actor_critic("one_plane", pixels(1), discrete(6, true), &NetConfig { normalize_obs: true, ..conv.clone() }),
        actor_critic("few_bytes", Space::bytes(&[7], 10, 0.1), discrete(4, false), &normalized),
        actor_critic("bytes", Space::bytes(&[7], 10, 0.1), discrete(4, false), &relu),
        actor_critic("categories", vector(6).with_categories(&[0, 90, 3, 0, 40, 0]), discrete(4, false), &normalized),
        actor_critic("gru", vector(4), discrete(2, true), &remembers(MemoryKind::Gru, 40, &relu)),
        actor_critic("lstm", vector(17), boxed.clone(), &remembers(MemoryKind::Lstm, 100, &normalized)), // long sums of h
        actor_critic(
            "cards",
            vector(6).with_categories(&[0, 90, 3, 0, 40, 0]),
            discrete(4, false),
            &remembers(MemoryKind::Lstm, 9, &NetConfig { hidden: vec![], ..normalized.clone() }),
        ),
        actor_critic(
            "films",
            pixels(2),
            discrete(6, false),
            &remembers(MemoryKind::Gru, 16, &NetConfig { shared_trunk: true, ..conv.clone() }),
        ),
        actor_critic("parts", parts(true), discrete(4, true), &NetConfig { normalize_obs: true, ..several.clone() }),
        actor_critic("tour", parts(true), boxed.clone(), &remembers(MemoryKind::Lstm, 12, &several)),
        q_network("q_parts", parts(false), discrete(3, false), &NetConfig { activation: Activation::Elu, ..several }, true),
        q_network("q", vector(8), discrete(4, true), &net(&[64, 64]), false),
        q_network("dueling", pixels(2), discrete(5, false), &conv, true),
        case("squashed", Box::new(squashed)),
        case("squashed_linear", Box::new(linear)),
        case("deterministic", Box::new(deterministic)),
    ]
}

/// Observations (n, D) and masks (n, A) that an environment could give.
pub(crate) struct Seen {
    pub(crate) floats: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) masks: Vec<u8>,
}

impl Seen {
    pub(crate) fn of(spaces: &Spaces, n: usize) -> Self {
        let mut rng = Rng::new(7, 0, 0, Purpose::Reset);
        let (d, a) = (spaces.obs.len(), spaces.actions.len());
        let categories = spaces.obs.categories();
        let mut floats: Vec<f32> = (0..n * d).map(|_| 2.0 * rng.normal()).collect();
        for (i, x) in floats.iter_mut().enumerate() {
            match categories.get(i % d) {
                Some(&n) if n > 0 => *x = rng.below(n + 1) as f32, // the last one is no category
                _ if i % 23 == 0 => *x *= 1e2,                     // clipped after normalization
                _ => {}
            }
        }
        let bytes = (0..n * d).map(|_| rng.below(256) as u8).collect();
        let mut masks = Vec::new();
        if spaces.actions.masked() {
            masks.extend((0..n * a).map(|_| rng.below(2) as u8));
            masks.chunks_exact_mut(a).for_each(|mask| mask[rng.below(a as u32) as usize] = 1);
        }
        Self { floats, bytes, masks }
    }

    pub(crate) fn obs(&self, dtype: Dtype) -> ObsSlice<'_> {
        if dtype == Dtype::U8 { ObsSlice::U8(&self.bytes) } else { ObsSlice::F32(&self.floats) }
    }
}

/// Actions (n) or (n, A) of the original, log-probabilities (n) and values (n).
///
/// Actions are those that the environment gets.
pub(crate) struct Original {
    pub(crate) discrete: Vec<u32>,
    pub(crate) vectors: Vec<f32>,
    pub(crate) log_probs: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

/// Acts on `n` observations; one after the other if the policy remembers.
pub(crate) fn originals(case: &Case, seen: &Seen, n: usize, choice: Choice) -> Original {
    let Case { spaces, policy, .. } = case;
    let (d, a, is_discrete) = (spaces.obs.len(), spaces.actions.len(), spaces.actions.n_discrete().is_some());
    let (mut discrete, mut vectors) = (vec![0; n], vec![0.0; n * a]);
    let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
    let (mut state, mut scratch) = (vec![0.0; policy.state_len()], Scratch::default());
    let n_masks = seen.masks.len() / n.max(1);
    let together = if state.is_empty() { n } else { 1 };
    for first in (0..n).step_by(together) {
        let rows = first..first + together;
        if first % EPISODE == 0 {
            state.fill(0.0);
        }
        let actions = if is_discrete {
            Actions::Discrete(&mut discrete[rows.clone()])
        } else {
            Actions::Continuous(&mut vectors[rows.start * a..rows.end * a])
        };
        let obs = match seen.obs(spaces.obs.dtype()) {
            ObsSlice::F32(obs) => ObsSlice::F32(&obs[rows.start * d..rows.end * d]),
            ObsSlice::U8(obs) => ObsSlice::U8(&obs[rows.start * d..rows.end * d]),
        };
        let choice = match choice {
            Choice::Sample { seed, step, first_env } => Choice::Sample { seed, step, first_env: first_env + first as u32 },
            Choice::Greedy => choice,
        };
        let acting = Acting { obs, masks: &seen.masks[rows.start * n_masks..rows.end * n_masks], choice, envs: &[] };
        let (log_probs, values) = (&mut log_probs[rows.clone()], &mut values[rows]);
        policy.act(acting, Acted { actions, log_probs, values, states: &mut state }, &mut scratch).unwrap();
    }
    if let ActionSpace::Continuous { low, high } = &spaces.actions {
        for row in vectors.chunks_exact_mut(a) {
            row.iter_mut().zip(low.iter().zip(high)).for_each(|(x, (low, high))| *x = math::clamp(*x, *low, *high));
        }
    }
    Original { discrete, vectors, log_probs, values }
}
