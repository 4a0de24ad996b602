//! Exported policies act as the originals, bit for bit.

use std::path::Path;
use std::process::Command;

use rl_agents::distributions::log_softmax;
use rl_agents::{
    Acted, Acting, Activation, ActorCritic, Choice, DeterministicPolicy, NetConfig, Policy, QNetwork, Scratch, Snapshot,
    SquashedGaussian,
};
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Actions, Dtype, Purpose, Rng, Space, Spaces, math};
use rl_policy::write::c::{Sources, Vectors, c};
use rl_policy::{Action, Exported, Head, Obs, Policy as Loaded, stack, write};

/// A policy with its spaces.
struct Case {
    name: &'static str,
    spaces: Spaces,
    policy: Box<dyn Policy>,
}

fn net(hidden: &[usize]) -> NetConfig {
    NetConfig { hidden: hidden.to_vec(), ..NetConfig::default() }
}

/// Returns parameters that are not the initial ones, and statistics of observations.
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
fn cases() -> Vec<Case> {
    let vector = |d: usize| Space::vector(&vec![-1.0; d], &vec![1.0; d]);
    let pixels = |stack: usize| Space::bytes(&[1, 20, 17], 255, 1.0 / 255.0).stacked(stack);
    let discrete = |n, masked| ActionSpace::Discrete { n, masked };
    let boxed = ActionSpace::Continuous { low: vec![-2.0, 0.5, -1.0, -0.25, 1.0], high: vec![2.0, 1.0, 3.0, 0.75, 1.5] };
    let open = ActionSpace::Continuous { low: vec![f32::NEG_INFINITY, -0.1], high: vec![f32::INFINITY, 0.1] };
    let relu = NetConfig { activation: Activation::Relu, ..net(&[64]) };
    // Channels that are no multiple of the kernel's lanes.
    let conv = NetConfig { conv: vec![[20, 5, 2], [40, 3, 1]], ..net(&[50]) };
    let normalized = NetConfig { normalize_obs: true, ..net(&[64, 64]) };
    let shared = NetConfig { shared_trunk: true, ..net(&[48, 24]) };
    let mut squashed = SquashedGaussian::new(&vector(11), &boxed, &net(&[256, 256]), 1).unwrap();
    squashed.load(&moved(&squashed, 4)).unwrap();
    let mut linear = SquashedGaussian::new(&vector(11), &boxed, &net(&[]), 1).unwrap();
    linear.load(&moved(&linear, 4)).unwrap();
    let mut deterministic = DeterministicPolicy::new(&vector(11), &boxed, &relu, 1).unwrap();
    deterministic.load(&moved(&deterministic, 5)).unwrap();
    let case = |name, policy| Case { name, spaces: Spaces { obs: vector(11), actions: boxed.clone() }, policy };
    vec![
        actor_critic("dense", vector(4), discrete(2, false), &net(&[64, 64])),
        actor_critic("linear", vector(200), discrete(3, false), &net(&[])),
        actor_critic("long", vector(130), discrete(18, true), &net(&[97, 33])),
        actor_critic("trunk", vector(9), ActionSpace::MultiDiscrete { sizes: vec![3, 1, 5] }, &shared),
        actor_critic("normalized", vector(17), boxed.clone(), &normalized),
        actor_critic("clipped", vector(3), open, &net(&[32])),
        actor_critic("pictures", pixels(4), discrete(6, false), &conv),
        actor_critic("one_plane", pixels(1), discrete(6, true), &NetConfig { normalize_obs: true, ..conv.clone() }),
        actor_critic("bytes", Space::bytes(&[7], 10, 0.1), discrete(4, false), &relu),
        actor_critic("categories", vector(6).with_categories(&[0, 90, 3, 0, 40, 0]), discrete(4, false), &normalized),
        q_network("q", vector(8), discrete(4, true), &net(&[64, 64]), false),
        q_network("dueling", pixels(2), discrete(5, false), &conv, true),
        case("squashed", Box::new(squashed)),
        case("squashed_linear", Box::new(linear)),
        case("deterministic", Box::new(deterministic)),
    ]
}

/// Observations (n, D) and masks (n, A) that an environment could give.
struct Seen {
    floats: Vec<f32>,
    bytes: Vec<u8>,
    masks: Vec<u8>,
}

impl Seen {
    fn of(spaces: &Spaces, n: usize) -> Self {
        let mut rng = Rng::new(7, 0, 0, Purpose::Reset);
        let (d, a) = (spaces.obs.len(), spaces.actions.len());
        let categories = spaces.obs.categories();
        let mut floats: Vec<f32> = (0..n * d).map(|_| 2.0 * rng.normal()).collect();
        for (i, x) in floats.iter_mut().enumerate() {
            match categories.get(i % d) {
                Some(&n) if n > 0 => *x = rng.below(n + 1) as f32, // the last one is no category
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

    fn obs(&self, dtype: Dtype) -> ObsSlice<'_> {
        if dtype == Dtype::U8 { ObsSlice::U8(&self.bytes) } else { ObsSlice::F32(&self.floats) }
    }
}

/// What the original does: actions (n) or (n, A) as the environment gets them, log-probabilities (n), values (n).
struct Original {
    discrete: Vec<u32>,
    vectors: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
}

fn originals(case: &Case, seen: &Seen, n: usize, choice: Choice) -> Original {
    let Case { spaces, policy, .. } = case;
    let (a, is_discrete) = (spaces.actions.len(), spaces.actions.n_discrete().is_some());
    let (mut discrete, mut vectors) = (vec![0; n], vec![0.0; n * a]);
    let actions = if is_discrete { Actions::Discrete(&mut discrete[..]) } else { Actions::Continuous(&mut vectors[..]) };
    let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
    let acting = Acting { obs: seen.obs(spaces.obs.dtype()), masks: &seen.masks, choice };
    let acted = Acted { actions, log_probs: &mut log_probs, values: &mut values, states: &mut [] };
    policy.act(acting, acted, &mut Scratch::default()).unwrap();
    if let ActionSpace::Continuous { low, high } = &spaces.actions {
        for row in vectors.chunks_exact_mut(a) {
            row.iter_mut().zip(low.iter().zip(high)).for_each(|(x, (low, high))| *x = math::clamp(*x, *low, *high));
        }
    }
    Original { discrete, vectors, log_probs, values }
}

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

#[test]
fn the_tanh_between_layers_has_the_bits_of_the_original() {
    const N: usize = 4096;
    // An action value that is tanh(1 * x + 0) * 1 + 0.
    let (obs, actions) = (Space::vector(&[-1.0], &[1.0]), ActionSpace::Discrete { n: 1, masked: false });
    let mut policy = QNetwork::new(&obs, &actions, &net(&[1]), false, 1).unwrap();
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

/// Returns true if the policy has a distribution of actions.
fn draws(head: &Head) -> bool {
    !matches!(head, Head::Values { .. } | Head::Deterministic { .. })
}

/// A program that acts on observations from its input, and writes actions and outputs.
fn driver(name: &str, Exported { input, head, .. }: &Exported) -> String {
    let upper = name.to_ascii_uppercase();
    let element = if input.bytes.is_some() { "uint8_t" } else { "float" };
    let action = if matches!(head, Head::Categorical { .. } | Head::Values { .. }) { "uint32_t" } else { "float" };
    let (mask, get_mask) = if head.mask_len() > 0 {
        (" mask,", format!("static uint8_t mask[{upper}_MASK];\n        if (fread(mask, sizeof mask, 1, stdin) != 1) return 3;"))
    } else {
        ("", String::new())
    };
    let sample = if draws(head) {
        format!("copy = memory;\n        {name}_sample(&copy, obs,{mask} SEED, 5 + i, STEP, action);\n        PUT(action);")
    } else {
        String::new()
    };
    format!(
        "#include <stdio.h>
#include \"{name}.h\"
#define SEED ((uint64_t)1 << 40 | 9)
#define STEP ((uint64_t)1 << 33 | 6)
#define PUT(x) fwrite(x, sizeof x, 1, stdout)
static {name}_memory memory, copy;
int main(void) {{
    static {element} obs[{upper}_OBS];
    {action} action[{upper}_ACTION];
    uint32_t i;
    for (i = 0; fread(obs, sizeof obs, 1, stdin) == 1; i++) {{
        {get_mask}
        if (i % 7 == 0) {name}_reset(&memory);
        {sample}
        {name}_act(&memory, obs,{mask} action);
        PUT(action);
        fwrite({name}_outputs(&memory), sizeof(float), {upper}_OUTPUTS, stdout);
    }}
    return {name}_test(&copy) ? 1 : 0;
}}
"
    )
}

/// Bytes of an action.
fn action_bytes(loaded: &Loaded<'_>, obs: Obs<'_>, mask: &[u8], choice: rl_policy::Choice, memory: &mut [f32]) -> Vec<u8> {
    let (mut choices, mut vector) = (vec![0; loaded.action_len()], vec![0.0; loaded.action_len()]);
    if loaded.is_discrete() {
        loaded.act(obs, mask, choice, memory, Action::Discrete(&mut choices)).unwrap();
        choices.iter().flat_map(|x| x.to_le_bytes()).collect()
    } else {
        loaded.act(obs, mask, choice, memory, Action::Continuous(&mut vector)).unwrap();
        vector.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// Observations for [`driver`], and what it writes then.
fn streams(loaded: &Loaded<'_>, head: &Head, dtype: Dtype, seen: &Seen, n: usize) -> [Vec<u8>; 2] {
    let (d, m) = (loaded.obs_len(), loaded.mask_len());
    let frame = d / loaded.frames();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let (mut floats, mut bytes) = (vec![0.0; d], vec![0; d]);
    let mut memory = vec![0.0; loaded.memory_len()];
    for i in 0..n {
        let mask = &seen.masks[i * m..(i + 1) * m];
        let obs = match seen.obs(dtype) {
            ObsSlice::F32(all) => {
                let latest = &all[i * d..][..frame];
                input.extend(latest.iter().flat_map(|x| x.to_le_bytes()));
                stack(&mut floats, latest, i % 7 == 0);
                Obs::F32(&floats)
            }
            ObsSlice::U8(all) => {
                let latest = &all[i * d..][..frame];
                input.extend(latest);
                stack(&mut bytes, latest, i % 7 == 0);
                Obs::U8(&bytes)
            }
        };
        input.extend(mask);
        if draws(head) {
            let choice = rl_policy::Choice::Sample { seed: 1 << 40 | 9, env: 5 + i as u32, step: 1 << 33 | 6 };
            output.extend(action_bytes(loaded, obs, mask, choice, &mut memory));
        }
        output.extend(action_bytes(loaded, obs, mask, rl_policy::Choice::Greedy, &mut memory));
        output.extend(loaded.outputs(obs, &mut memory).unwrap().iter().flat_map(|x| x.to_le_bytes()));
    }
    [input, output]
}

/// Compilers that this machine has, each with its flags.
fn compilers() -> Vec<Vec<&'static str>> {
    let all = ["gcc", "clang"].into_iter().filter(|cc| Command::new(cc).arg("--version").output().is_ok());
    let flags: [&[&str]; 4] = [
        &["-O0", "-std=c99", "-pedantic"],
        &["-O2"],
        &["-O3", "-march=native"],
        &["-O3", "-march=native", "-ffp-contract=fast"],
    ];
    all.flat_map(|cc| flags.map(|flags| [&[cc], flags].concat())).collect()
}

#[test]
fn a_policy_in_c_acts_as_the_original() {
    const N: usize = 300;
    let compilers = compilers();
    if compilers.is_empty() {
        assert!(std::env::var_os("RL_REQUIRE_CC").is_none(), "RL_REQUIRE_CC is set, and there is neither gcc nor clang");
        println!("SKIPPED: no policy was compiled, because there is neither gcc nor clang");
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exported");
    std::fs::create_dir_all(&dir).unwrap();
    for Case { name, spaces, policy } in cases() {
        let exported = policy.exported(&spaces).unwrap();
        let file = write::file(&exported);
        let loaded = Loaded::new(&file).unwrap();
        let seen = Seen::of(&spaces, N);
        let mut memory = vec![0.0; loaded.memory_len()];
        let d = spaces.obs.len();
        let outputs: Vec<f32> = (0..64)
            .flat_map(|i| {
                let obs = match seen.obs(spaces.obs.dtype()) {
                    ObsSlice::F32(obs) => Obs::F32(&obs[i * d..(i + 1) * d]),
                    ObsSlice::U8(obs) => Obs::U8(&obs[i * d..(i + 1) * d]),
                };
                loaded.outputs(obs, &mut memory).unwrap().to_vec()
            })
            .collect();
        let (floats, bytes) = (&seen.floats[..64 * d], &seen.bytes[..64 * d]);
        let Sources { header, source, .. } = c(&exported, name, &Vectors { n: 64, floats, bytes, outputs: &outputs });
        let text = [(format!("{name}.h"), header), (format!("{name}.c"), source), (format!("{name}_main.c"), driver(name, &exported))];
        text.iter().for_each(|(file, text)| std::fs::write(dir.join(file), text).unwrap());
        let [input, expected] = streams(&loaded, &exported.head, spaces.obs.dtype(), &seen, N);
        std::fs::write(dir.join("input"), input).unwrap();
        for flags in &compilers {
            let define = format!("-D{}_TEST", name.to_ascii_uppercase());
            let mut cc = Command::new(flags[0]);
            cc.args(&flags[1..]).args(["-Wall", "-Wextra", "-Werror", &define, "-o", "acts"]);
            let compiled = cc.args([&text[1].0, &text[2].0]).current_dir(&dir).output().unwrap();
            assert!(compiled.status.success(), "{name}, {flags:?}: {}", String::from_utf8_lossy(&compiled.stderr));
            let input = std::fs::File::open(dir.join("input")).unwrap();
            let ran = Command::new("./acts").stdin(input).current_dir(&dir).output().unwrap();
            assert!(ran.status.success(), "{name}, {flags:?}: its own test fails");
            let first = ran.stdout.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(ran.stdout.len() == expected.len() && first.is_none(), "{name}, {flags:?}: byte {first:?} differs");
        }
    }
}
