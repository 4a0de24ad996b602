//! Policies of checkpoints for other programs: C, Rust, ONNX.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rl_agents::{Acted, Acting, Choice, LearnerKind, NetConfig, Policy, Precision, Scratch};
use rl_envs::wrappers::{Hidden, Wrappers};
use rl_envs::{ActionSpace, Actions, Dtype, Obs, Purpose, Rng, Space, Spaces, math};
use rl_policy::write::c::{Sources, TestVectors, c, identifier};
use rl_policy::{Exported, Layer, Policy as Loaded, write};

use crate::file::Draft;
use crate::run::checkpoint::opened::SavedPolicy;
use crate::{Config, Error};

/// Number of checked observations.
const N_CHECKED: usize = 64;
/// Greatest difference by rounding, relative to an action above 1.
const ROUNDING: f32 = 1e-4;
/// Duration of the timing loop.
const MEASURED: Duration = Duration::from_millis(100);

/// Format of an exported policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Export {
    /// ONNX model; equal up to rounding
    Onnx,
    /// C99 source and header without libraries; the same bits
    C,
    /// File for the crate rl-policy, also without std; the same bits
    Rust,
}

impl Export {
    /// Name of the format, and extension of its files.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Onnx => ["onnx", "onnx"],
            Self::C => ["c", "c"],
            Self::Rust => ["rust", "policy"],
        }
    }

    /// Name of the format.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Checks the name of a file to write.
    ///
    /// # Errors
    /// [`Error::Config`] for a C source whose functions cannot be named after it.
    pub fn check_name(self, out: &Path) -> Result<(), Error> {
        if self != Self::C {
            return Ok(());
        }
        let name = identifier(&out.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default());
        let name = if HEADERS.contains(&&name[..]) { format!("{name}_policy") } else { name };
        let source = out.with_file_name(format!("{name}.c"));
        if out == source {
            return Ok(());
        }
        let advice = format!("name it {}; the names of its functions begin with {name}_", source.display());
        Err(Error::config(format!("{} is no name for C: {advice}", out.display())))
    }
}

/// Headers of C's library, which a policy's header must not hide.
const HEADERS: [&str; 24] = [
    "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits", "locale", "math", "setjmp", "signal",
    "stdarg", "stdbool", "stddef", "stdint", "stdio", "stdlib", "string", "tgmath", "time", "wchar", "wctype",
];

/// An exported policy.
#[derive(Clone, Debug)]
pub struct ExportReport {
    /// Files that were written, with their bytes.
    pub files: Vec<(PathBuf, usize)>,
    /// Bytes of the weights.
    pub weights_bytes: usize,
    /// Bytes of the caller's memory; `None` for ONNX.
    pub memory_bytes: Option<usize>,
    /// Multiply-adds of an action.
    pub multiply_adds: usize,
    /// Seconds of an action with rl-policy here.
    pub loader_seconds: f64,
    /// Random observations that were compared with the run's own policy.
    pub n_checked: usize,
    /// Those of them whose actions have other bits, by rounding.
    pub n_differing: usize,
    /// Notes for its user.
    pub notes: Vec<String>,
}

/// Exports a policy to `out`, for C with a header beside it.
///
/// Without `out`, the file is named by the environment. The exported policy is compared with the original first.
///
/// # Errors
/// [`Error::Config`] for a policy that cannot be exported, or that would act differently; errors of files. Nothing is written
/// then.
pub fn export(saved: &SavedPolicy, form: Export, out: Option<&Path>) -> Result<ExportReport, Error> {
    let SavedPolicy { path, config, entry, policy, .. } = saved;
    let named = || Path::new(&identifier(entry.name)).with_extension(form.names()[1]);
    let out = out.map_or_else(named, Path::to_path_buf);
    form.check_name(&out)?;
    let draft = Draft::create(&out)?;
    let header = out.with_extension("h");
    let header_draft = if form == Export::C { Some(Draft::create(&header)?) } else { None };
    let spaces = entry.spaces();
    let of = path.display();
    let Some(mut exported) = policy.exported(&spaces) else {
        return Err(Error::config(format!("{of}: this policy cannot be exported: it does not implement Policy::exported")));
    };
    if exported.all_layers().any(|layer| layer.weight.iter().chain(&layer.bias).any(|x| !x.is_finite())) {
        return Err(Error::config(format!("{of}: the policy has parameters that are not finite")));
    }
    if exported.all_layers().any(|layer| layer.weight.len() > rl_policy::MAX_LEN) {
        let most = rl_policy::MAX_LEN;
        return Err(Error::config(format!("{of}: a layer has more than {most} weights, the most that can be exported")));
    }
    exported.about = about(saved);
    let unfit = || Error::config(format!("{of}: the parts of its Policy::exported do not fit together"));
    let mut file = write::file(&exported);
    if config.env.wrappers.hide == Hidden::Velocities {
        Loaded::new(&file).map_err(|_| unfit())?;
        ignore(&mut exported, spaces.obs.velocities());
        file = write::file(&exported);
    }
    let loaded = Loaded::new(&file).ok().filter(|loaded| fits(&spaces, loaded)).ok_or_else(unfit)?;
    let drawn = Drawn::new(&spaces, &loaded);
    // A policy computes in f32 elsewhere, whatever products are rounded to here.
    let in_f32 = match config.net.precision {
        Precision::F32 => None,
        _ => {
            let net = NetConfig { precision: Precision::F32, ..config.net.clone() };
            Some(Config { net, ..config.clone() }.policy(entry, &policy.weights().into())?)
        }
    };
    let [n_differing, n_far] = drawn.n_differing(in_f32.as_deref().unwrap_or(&**policy), &spaces, &loaded);
    if n_far > 0 {
        let why = "the exported policy would act differently; nothing is written";
        return Err(Error::config(format!("{of}: {why} ({n_far} of {N_CHECKED} random observations)")));
    }
    let (files, memory_bytes) = match form {
        Export::Rust => {
            draft.publish(&file)?;
            (vec![(out, file.len())], Some(4 * loaded.memory_len()))
        }
        Export::C => {
            let name = out.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
            let Sources { header: text, source, memory_bytes } = c(&exported, &name, &drawn.vectors());
            header_draft.map(|draft| draft.publish(text.as_bytes())).transpose()?;
            draft.publish(source.as_bytes())?;
            (vec![(out, source.len()), (header, text.len())], Some(memory_bytes))
        }
        Export::Onnx => {
            let model = write::onnx(&exported);
            draft.publish(&model)?;
            (vec![(out, model.len())], None)
        }
    };
    Ok(ExportReport {
        files,
        weights_bytes: 4 * exported.n_params(),
        memory_bytes,
        multiply_adds: exported.multiply_adds(),
        loader_seconds: drawn.seconds_of_action(&loaded),
        n_checked: N_CHECKED,
        n_differing,
        notes: notes(saved, n_differing),
    })
}

/// Notes on an export with `n_differing` actions that are rounded otherwise.
fn notes(SavedPolicy { config, .. }: &SavedPolicy, n_differing: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if n_differing > 0 {
        notes.push(match config.net.learner {
            LearnerKind::Fused => "the others are equal but for rounding".to_string(),
            LearnerKind::Reference => {
                let why = "the others are equal but for rounding: this run acts with candle (learner = \"reference\")";
                format!("{why}, the exported policy sums as the tile kernel does")
            }
        });
    }
    if config.net.precision != Precision::F32 {
        notes.push("this run rounds what it multiplies (precision), the exported policy does not".to_string());
    }
    let Wrappers { action_repeat, pixels, time_limit, .. } = config.env.wrappers;
    let setting = |key: &str| config.env.settings.get(key);
    let is_smaller = setting("grayscale").and_then(|value| value.as_bool()) == Some(true)
        || setting("resize").and_then(|value| value.as_integer()).is_some_and(|n| n > 0);
    if action_repeat > 1 || pixels > 0 || time_limit > 0 || is_smaller {
        let what = "actions are repeated, episodes limited, pictures drawn, made grey or resized";
        notes.push(format!("{what} by the environment's wrappers, which stay here"));
    }
    notes
}

/// Makes a policy ignore elements of observations, which were 0 when it learnt.
fn ignore(exported: &mut Exported, elements: &[usize]) {
    let inputs: Vec<_> = elements.iter().filter_map(|&element| exported.input_of(element)).collect();
    let Layer { weight, bias, .. } = &mut exported.layers[0];
    inputs.into_iter().for_each(|i| weight[i * bias.len()..(i + 1) * bias.len()].fill(0.0));
}

/// Origin of a policy, in words.
fn about(SavedPolicy { path, config, entry, params_hash, .. }: &SavedPolicy) -> String {
    let names: Vec<_> = path.iter().rev().take(3).map(|name| name.to_string_lossy()).collect();
    let checkpoint = names.into_iter().rev().collect::<Vec<_>>().join("/");
    let (hash, version) = (&params_hash[..16], env!("CARGO_PKG_VERSION"));
    format!("{} by {}, {checkpoint} (BLAKE3 of its parameters: {hash}), rl {version}", entry.name, config.algo.name())
}

/// True if the loaded policy reads and writes what these spaces hold.
fn fits(Spaces { obs, actions }: &Spaces, loaded: &Loaded<'_>) -> bool {
    let action_len = match actions {
        ActionSpace::Discrete { .. } => 1,
        ActionSpace::MultiDiscrete { sizes } => sizes.len(),
        ActionSpace::Continuous { low, .. } => low.len(),
    };
    let mask_len = if actions.masked() { actions.len() } else { 0 };
    let found = (loaded.obs_len(), loaded.reads_bytes(), loaded.is_discrete(), loaded.action_len(), loaded.mask_len());
    found == (obs.len(), obs.dtype() == Dtype::U8, actions.n_discrete().is_some(), action_len, mask_len)
}

/// Random observations in a row, and the outputs of the network for them.
struct Drawn {
    floats: Vec<f32>,
    bytes: Vec<u8>,
    masks: Vec<u8>,
    outputs: Vec<f32>,
}

impl Drawn {
    /// Draws observations within their space, and masks that allow an action.
    fn new(spaces: &Spaces, loaded: &Loaded<'_>) -> Self {
        let Spaces { obs, .. } = spaces;
        let (d, m) = (obs.len(), loaded.mask_len());
        let mut rng = Rng::new(0, 0, 0, Purpose::Reset);
        let mut drawn = Self { floats: Vec::new(), bytes: Vec::new(), masks: Vec::new(), outputs: Vec::new() };
        for _ in 0..N_CHECKED {
            if obs.dtype() == Dtype::U8 {
                drawn.bytes.extend((0..d).map(|j| rng.below(obs.high()[j] as u32 + 1) as u8));
            } else {
                drawn.floats.extend((0..d).map(|j| number(obs, j, &mut rng)));
            }
            drawn.masks.extend((0..m).map(|_| rng.below(2) as u8));
            if let Some(legal) = drawn.masks.len().checked_sub(m).filter(|_| m > 0) {
                drawn.masks[legal + rng.below(m as u32) as usize] = 1;
            }
        }
        let mut memory = vec![0.0; loaded.memory_len()];
        loaded.reset(&mut memory);
        for i in 0..N_CHECKED {
            let outputs = loaded.outputs(drawn.obs(i, d), &mut memory).expect("an observation of the policy");
            drawn.outputs.extend_from_slice(outputs);
        }
        drawn
    }

    fn obs(&self, i: usize, d: usize) -> rl_policy::Obs<'_> {
        if self.bytes.is_empty() {
            rl_policy::Obs::F32(&self.floats[i * d..(i + 1) * d])
        } else {
            rl_policy::Obs::U8(&self.bytes[i * d..(i + 1) * d])
        }
    }

    fn vectors(&self) -> TestVectors<'_> {
        let Self { floats, bytes, outputs, .. } = self;
        TestVectors { n: N_CHECKED, floats, bytes, outputs }
    }

    /// Greedy actions of `policy`: discrete ones, or vectors.
    fn actions(&self, policy: &dyn Policy, spaces: &Spaces, m: usize) -> (Vec<u32>, Vec<f32>) {
        let (d, a, is_discrete) = (spaces.obs.len(), spaces.actions.len(), spaces.actions.n_discrete().is_some());
        let (mut discrete, mut vectors) = (vec![0; N_CHECKED], vec![0.0; N_CHECKED * a]);
        let (mut states, mut scratch) = (vec![0.0; policy.state_len()], Scratch::default());
        for i in 0..N_CHECKED {
            let obs = match self.obs(i, d) {
                rl_policy::Obs::F32(obs) => Obs::F32(obs),
                rl_policy::Obs::U8(obs) => Obs::U8(obs),
            };
            let row = i * a..(i + 1) * a;
            let actions =
                if is_discrete { Actions::Discrete(&mut discrete[i..=i]) } else { Actions::Continuous(&mut vectors[row]) };
            let acting = Acting { obs, masks: &self.masks[i * m..(i + 1) * m], choice: Choice::Greedy, envs: &[] };
            let acted = Acted { actions, log_probs: &mut [0.0], values: &mut [0.0], states: &mut states };
            policy.act(acting, acted, &mut scratch).expect("the policy's own spaces");
        }
        (discrete, vectors)
    }

    /// Number of observations with other actions than `policy`'s.
    ///
    /// The first number is of actions with other bits, the second of those that differ by more than rounding.
    fn n_differing(&self, policy: &dyn Policy, spaces: &Spaces, loaded: &Loaded<'_>) -> [usize; 2] {
        let (a, m) = (spaces.actions.len(), loaded.mask_len());
        let (discrete, vectors) = self.actions(policy, spaces, m);
        let mut memory = vec![0.0; loaded.memory_len()];
        loaded.reset(&mut memory);
        let (mut choices, mut vector) = (vec![0; loaded.action_len()], vec![0.0; loaded.action_len()]);
        let [mut n_differing, mut n_far] = [0; 2];
        for i in 0..N_CHECKED {
            let (obs, mask) = (self.obs(i, spaces.obs.len()), &self.masks[i * m..(i + 1) * m]);
            let greedy = rl_policy::Choice::Greedy;
            let (differs, is_far) = if let ActionSpace::Continuous { low, high } = &spaces.actions {
                let action = rl_policy::Action::Continuous(&mut vector);
                loaded.act(obs, mask, greedy, &mut memory, action).expect("the policy's own spaces");
                let row = vectors[i * a..(i + 1) * a].iter().zip(low.iter().zip(high));
                let row = row.map(|(x, (low, high))| math::clamp(*x, *low, *high));
                let pairs: Vec<_> = row.zip(vector.iter().copied()).collect();
                let is_far = |(x, y): &(f32, f32)| !are_near(*x, *y);
                (pairs.iter().any(|(x, y)| x.to_bits() != y.to_bits()), pairs.iter().any(is_far))
            } else {
                let mut before = memory.clone();
                let action = rl_policy::Action::Discrete(&mut choices);
                loaded.act(obs, mask, greedy, &mut memory, action).expect("the policy's own spaces");
                let sizes = match &spaces.actions {
                    ActionSpace::MultiDiscrete { sizes } => sizes.clone(),
                    _ => vec![a as u32],
                };
                let differs = choices.iter().zip(&sizes).fold(0, |number, (choice, n)| number * n + choice) != discrete[i];
                let outputs = loaded.outputs(obs, &mut before).expect("the policy's own spaces");
                (differs, differs && !is_tie(outputs, &sizes, &choices, discrete[i]))
            };
            n_differing += usize::from(differs);
            n_far += usize::from(is_far);
        }
        [n_differing, n_far]
    }

    /// Seconds of an action, one observation at a time.
    fn seconds_of_action(&self, loaded: &Loaded<'_>) -> f64 {
        let mut memory = vec![0.0; loaded.memory_len()];
        let (begin, mut n) = (Instant::now(), 0u32);
        while n == 0 || begin.elapsed() < MEASURED {
            let outputs = loaded.outputs(self.obs(n as usize % N_CHECKED, loaded.obs_len()), &mut memory);
            std::hint::black_box(outputs.is_ok());
            n += 1;
        }
        begin.elapsed().as_secs_f64() / f64::from(n)
    }
}

/// True if two outputs are equal up to rounding.
fn are_near(x: f32, y: f32) -> bool {
    (x - y).abs() <= ROUNDING * x.abs().max(1.0)
}

/// True if rounding decides between two actions.
///
/// Their outputs are near in each head. `number` is an action in mixed radix, the last head the fastest.
fn is_tie(outputs: &[f32], sizes: &[u32], choices: &[u32], mut number: u32) -> bool {
    let mut end = sizes.iter().map(|&n| n as usize).sum::<usize>();
    sizes.iter().zip(choices).rev().all(|(&n, &choice)| {
        let other = number % n;
        (number, end) = (number / n, end - n as usize);
        are_near(outputs[end + choice as usize], outputs[end + other as usize])
    })
}

/// Draws element `j` of an observation, within its bounds or 20 of them.
fn number(obs: &Space, j: usize, rng: &mut Rng) -> f32 {
    match obs.categories().get(j) {
        Some(&n) if n > 0 => rng.below(n) as f32,
        _ => {
            let low = obs.low()[j].max(-10.0).min(obs.high()[j]);
            rng.uniform_in(low, obs.high()[j].min(low + 20.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_differs_by_rounding_where_the_outputs_of_each_head_are_near() {
        let outputs = [1.0, 1.00001, 3.0, 0.5, 0.50001, 0.2];
        for (number, is_near) in [(4, true), (0, true), (3, true), (8, false), (5, false)] {
            // Heads of 3 and of 3 choices, of which the greatest are 2 and 1.
            let near_first = [1.0, 1.00001, 0.0, 0.5, 0.50001, 0.2];
            assert_eq!(is_tie(&near_first, &[3, 3], &[1, 1], number), is_near, "{number}");
        }
        assert!(!is_tie(&outputs, &[3, 3], &[2, 1], 4), "another choice of the first head");
        assert!(!is_tie(&[f32::NAN, 0.0], &[2], &[1], 0));
        assert!(are_near(1e6, 1e6 + 50.0) && !are_near(0.0, 2e-4) && !are_near(f32::NAN, f32::NAN));
    }
}
