//! `rl export`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rl_agents::{Acted, Acting, Choice, LearnerKind, Policy, Scratch};
use rl_envs::{ActionSpace, Actions, Dtype, Obs, Purpose, Rng, Space, Spaces, math};
use rl_policy::write::c::{Sources, Vectors, c, identifier};
use rl_policy::{Policy as Loaded, write};
use serde_json::json;

use crate::cli::envs::{Envs, saved_policy};
use crate::file::{self, Draft};
use crate::run::checkpoint::SavedPolicy;
use crate::{Error, print};

/// Observations that the exported policy is checked with.
const N_CHECKED: usize = 64;
/// Time in which actions are counted.
const MEASURED: Duration = Duration::from_millis(100);

/// Form of an exported policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Export {
    /// For ONNX Runtime, browsers and others; equal up to their rounding
    Onnx,
    /// A C99 source and its header, without libraries; the same bits
    C,
    /// A file for the crate rl-policy, which needs no standard library; the same bits
    Rust,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl export runs/cartpole-ppo-seed0-1 --as onnx --out cartpole.onnx
  rl export runs/cartpole-ppo-seed0-1 --as c --out cartpole.c --best   # and cartpole.h

The exported policy does all that `rl eval` does to an observation and to an action. docs/export.md uses it in C, Rust, Python and a
browser.")]
pub(crate) struct ExportArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// Form of the exported policy
    #[arg(long = "as")]
    form: Export,
    /// File to write, for C with a header beside it [default: named by environment]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &ExportArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    let refuse = |problem: String| Err(Error::Config { problems: vec![problem] });
    let extension = match args.form {
        Export::Onnx => "onnx",
        Export::C => "c",
        Export::Rust => "policy",
    };
    if let (Export::C, Some(out)) = (args.form, &args.out) {
        let name = identifier(&out.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default());
        let source = out.with_file_name(format!("{name}.c"));
        if *out != source {
            return refuse(format!(
                "--out {}: name it {}, because its functions begin with {name}",
                out.display(),
                source.display()
            ));
        }
    }
    let saved = saved_policy(&args.path, args.best, 1, envs, false)?;
    let SavedPolicy { path, config, entry, policy, .. } = &saved;
    let out = args.out.clone().unwrap_or_else(|| Path::new(&identifier(entry.name)).with_extension(extension));
    let draft = Draft::create(&out)?;
    let header = out.with_extension("h");
    let header_draft = if args.form == Export::C { Some(Draft::create(&header)?) } else { None };
    let spaces = entry.spaces();
    let Some(mut exported) = policy.exported(&spaces) else {
        return refuse(format!("{}: its policy cannot be exported: it does not implement Policy::exported", path.display()));
    };
    exported.about = about(&saved)?;
    let file = write::file(&exported);
    let loaded = Loaded::new(&file).expect("a file that was just written");
    let drawn = Drawn::new(&spaces, &loaded);
    let n_differing = drawn.n_differing(&**policy, &spaces, &loaded);
    let mut bytes = vec![(out.display().to_string(), file.len())];
    let mut memory_bytes = None;
    match args.form {
        Export::Rust => {
            draft.publish(&file)?;
            memory_bytes = Some(4 * loaded.memory_len());
        }
        Export::C => {
            let name = out.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
            let Sources { header: text, source, memory_bytes: of_c } = c(&exported, &name, &drawn.vectors());
            header_draft.map(|draft| draft.publish(text.as_bytes())).transpose()?;
            draft.publish(source.as_bytes())?;
            bytes = vec![(out.display().to_string(), source.len()), (header.display().to_string(), text.len())];
            memory_bytes = Some(of_c);
        }
        Export::Onnx => {
            let model = write::onnx(&exported);
            draft.publish(&model)?;
            bytes[0].1 = model.len();
        }
    }
    let seconds = drawn.seconds_of_action(&loaded);
    let (n_params, multiply_adds) = (exported.n_params(), exported.multiply_adds());
    if json {
        let object = json!({
            "event": "export", "env": entry.name, "checkpoint": path.display().to_string(), "as": extension,
            "files": bytes.iter().map(|(file, _)| file).collect::<Vec<_>>(),
            "bytes": bytes.iter().map(|(_, n)| n).collect::<Vec<_>>(), "weights_bytes": 4 * n_params, "memory_bytes": memory_bytes,
            "multiply_adds": multiply_adds, "loader_seconds": seconds, "checked": N_CHECKED, "differing": n_differing,
        });
        print::out(&object.to_string());
    } else {
        for (file, n) in &bytes {
            print::out(&format!("{file}: {n} bytes"));
        }
        let memory = memory_bytes.map_or(String::new(), |n| format!(", {n} bytes of memory"));
        print::out(&format!(
            "{}, {}: {} bytes of weights{memory}, {multiply_adds} multiply-adds an action ({:.1} us with rl-policy here)",
            entry.name,
            path.display(),
            4 * n_params,
            1e6 * seconds
        ));
        print::out(&format!("{} of {N_CHECKED} random observations give the action of `rl eval`", N_CHECKED - n_differing));
    }
    if n_differing > 0 && config.net.learner == LearnerKind::Fused {
        print::err("error: the exported policy acts otherwise; please report this");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Origin of a policy, in words.
fn about(SavedPolicy { path, config, entry, .. }: &SavedPolicy) -> Result<String, Error> {
    let params = path.join("params.safetensors");
    let (mut file, _) = file::open(&params).map_err(Error::io(&params))?;
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut file, &mut hasher).map_err(Error::io(&params))?;
    let hash = hasher.finalize();
    let names: Vec<_> = path.iter().rev().take(3).map(|name| name.to_string_lossy()).collect();
    let checkpoint = names.into_iter().rev().collect::<Vec<_>>().join("/");
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("{} by {}, {checkpoint} (parameters {hash}), rl {version}", entry.name, config.algo.name()))
}

/// Random observations, and the outputs of the network for them.
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

    fn vectors(&self) -> Vectors<'_> {
        let Self { floats, bytes, outputs, .. } = self;
        Vectors { n: N_CHECKED, floats, bytes, outputs }
    }

    /// Number of observations for which `loaded` acts otherwise than `policy`.
    fn n_differing(&self, policy: &dyn Policy, spaces: &Spaces, loaded: &Loaded<'_>) -> usize {
        let (a, m) = (spaces.actions.len(), loaded.mask_len());
        let (mut discrete, mut vectors) = ([0; N_CHECKED], vec![0.0; N_CHECKED * a]);
        let is_discrete = loaded.is_discrete();
        let actions = if is_discrete { Actions::Discrete(&mut discrete[..]) } else { Actions::Continuous(&mut vectors[..]) };
        let obs = if self.bytes.is_empty() { Obs::F32(&self.floats[..]) } else { Obs::U8(&self.bytes[..]) };
        let acting = Acting { obs, masks: &self.masks, choice: Choice::Greedy };
        let (mut log_probs, mut values) = ([0.0; N_CHECKED], [0.0; N_CHECKED]);
        let mut states = vec![0.0; N_CHECKED * policy.state_len()];
        let acted = Acted { actions, log_probs: &mut log_probs, values: &mut values, states: &mut states };
        policy.act(acting, acted, &mut Scratch::default()).expect("the policy's own spaces");
        let mut memory = vec![0.0; loaded.memory_len()];
        let (mut choices, mut vector) = (vec![0; loaded.action_len()], vec![0.0; loaded.action_len()]);
        let differs = |i: &usize| {
            let i = *i;
            let action =
                if is_discrete { rl_policy::Action::Discrete(&mut choices) } else { rl_policy::Action::Continuous(&mut vector) };
            let mask = &self.masks[i * m..(i + 1) * m];
            let greedy = rl_policy::Choice::Greedy;
            loaded.act(self.obs(i, spaces.obs.len()), mask, greedy, &mut memory, action).expect("the policy's own spaces");
            match &spaces.actions {
                ActionSpace::Continuous { low, high } => {
                    let row = vectors[i * a..].iter().zip(low.iter().zip(high));
                    let expected = row.map(|(x, (low, high))| math::clamp(*x, *low, *high).to_bits());
                    expected.ne(vector.iter().map(|x| x.to_bits()))
                }
                ActionSpace::MultiDiscrete { sizes } => {
                    choices.iter().zip(sizes).fold(0, |number, (choice, n)| number * n + choice) != discrete[i]
                }
                ActionSpace::Discrete { .. } => choices[0] != discrete[i],
            }
        };
        (0..N_CHECKED).filter(differs).count()
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

/// Draws element `j` of an observation.
///
/// It is within its bounds, and near 0 if they are far apart.
fn number(obs: &Space, j: usize, rng: &mut Rng) -> f32 {
    match obs.categories().get(j) {
        Some(&n) if n > 0 => rng.below(n) as f32,
        _ => {
            let (low, high) = (obs.low()[j].max(-10.0), obs.high()[j].min(10.0));
            if low < high { rng.uniform_in(low, high) } else { low.clamp(obs.low()[j], obs.high()[j]) }
        }
    }
}
