//! Dump of the update at which training diverged.
//!
//! The directory `diverged` of a run, complete or absent. `params.safetensors` holds the parameters by name, as they were before
//! the update, which was not applied. `minibatch.safetensors` holds the samples of its last step: observations as the network
//! takes them, actions, rewards, targets. `metrics.json` holds the losses, the gradient's norm, the learning rate and the run's
//! progress; non-finite numbers are strings.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rl_agents::{Agent, Divergence, Schedule};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::Progress;
use crate::config::resumable;
use crate::file::sync_dir;
use crate::print::{program, quoted};
use crate::run::checkpoint;
use crate::run::run_dir::RunDir;
use crate::{Config, Error};

/// Writes the dump and returns the error of a run that diverged after `progress`.
///
/// If the dump cannot be written, the error says so.
pub(crate) fn error(divergence: Box<Divergence>, agent: &dyn Agent, config: &Config, progress: &Progress, dir: &RunDir) -> Error {
    let dump = match write(dir.path(), &divergence, agent, progress) {
        Ok(path) => format!("parameters, minibatch and metrics of that update are in {}", path.display()),
        Err(error) => format!("no dump of that update: {error}"),
    };
    let Progress { env_steps, iterations, .. } = *progress;
    Error::Diverged { divergence, env_steps, iteration: iterations + 1, dump, advice: advice(config, dir) }
}

/// Returns settings that help, and a command that continues the run with one.
fn advice(config: &Config, dir: &RunDir) -> String {
    let algo = config.algo.name();
    let setting = |key: &'static str| key.strip_prefix(algo)?.strip_prefix('.').filter(|name| *name != "micro_batch");
    let settings: Vec<&str> = resumable().filter_map(setting).collect();
    let smaller = match config.traits().learning_rate {
        Schedule::Linear(start) => format!("lin_{:e}", tenth(start)),
        Schedule::Constant(value) => format!("{:e}", tenth(value)),
    };
    let change = format!("--set {algo}.learning_rate={smaller}");
    if checkpoint::list(&dir.checkpoints()).is_ok_and(|all| all.is_empty()) {
        return format!("no checkpoint has been saved: train again with other settings, such as {change}");
    }
    let (settings, dir, program) = (settings.join(", "), quoted(dir.path()), program());
    format!(
        "continue from the last checkpoint with a smaller step (settings that may change: {settings}): {program} train --resume {dir} {change}"
    )
}

/// Returns a tenth of `value`, rounded to three digits.
fn tenth(value: f32) -> f64 {
    let tenth = f64::from(value) / 10.0;
    format!("{tenth:.2e}").parse().unwrap_or(tenth)
}

fn write(dir: &Path, divergence: &Divergence, agent: &dyn Agent, progress: &Progress) -> io::Result<PathBuf> {
    let weights = agent.policy().weights();
    let params = agent.layout().tensors().iter().map(|t| (t.name.as_str(), &t.shape[..], &weights.params[t.range.clone()]));
    let minibatch = divergence.minibatch.iter().map(|t| (t.name, &t.shape[..], &t.values[..]));
    let files = [
        ("params.safetensors", safetensors(params)?),
        ("minibatch.safetensors", safetensors(minibatch)?),
        ("metrics.json", serde_json::to_vec_pretty(&metrics(divergence, progress))?),
    ];
    let (draft, target) = (dir.join("diverged.tmp"), dir.join("diverged"));
    let written = (|| {
        remove(&draft)?;
        fs::create_dir(&draft)?;
        for (name, bytes) in files {
            let mut file = fs::File::create_new(draft.join(name))?;
            file.write_all(&bytes)?;
            file.sync_all()?;
        }
        sync_dir(&draft)?;
        // The dump of an earlier divergence of this run.
        remove(&target)?;
        fs::rename(&draft, &target)
    })();
    if written.is_err() {
        let _ = remove(&draft);
    }
    written.and_then(|()| sync_dir(dir)).map(|()| target)
}

/// Removes a directory if it exists.
fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn metrics(divergence: &Divergence, progress: &Progress) -> Value {
    let number = |x: f32| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
    let losses: serde_json::Map<_, _> = divergence.losses.iter().map(|&(name, x)| (name.into(), number(x))).collect();
    json!({
        "env_steps": progress.env_steps,
        "iteration": progress.iterations + 1,
        "optimizer_steps": divergence.steps,
        "skipped_in_a_row": divergence.skipped,
        "learning_rate": number(divergence.learning_rate),
        "grad_norm": number(divergence.grad_norm),
        "losses": losses,
    })
}

fn safetensors<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>) -> io::Result<Vec<u8>> {
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensors: Vec<_> = tensors.map(|(name, shape, values)| (name, shape.to_vec(), bytes(values))).collect();
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, bytes) in &tensors {
        views.push((*name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(io::Error::other)?));
    }
    safetensors::serialize(views, None).map_err(io::Error::other)
}
