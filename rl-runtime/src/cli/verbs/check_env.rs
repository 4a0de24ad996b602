//! `rl check-env`.

use std::process::ExitCode;

use rl_cuda::CudaVecEnv;
use rl_envs::catalog::Entry;
use rl_envs::check::{Check, Outcome};
use rl_envs::{ActionSpace, Dtype, RandomActions, Spaces, Steps, VecEnv};
use serde_json::json;

use crate::cli::envs::Envs;
use crate::config::effects::{pictures, unfit_for_conv};
use crate::config::env::{ACTION_REPEAT, TIME_LIMIT};
use crate::config::{Device, Layers};
use crate::print::grouped;
use crate::sources::catalog::keys_of;
use crate::sources::worker::{GYM, is_one};
use crate::{Error, print};

/// Random steps after which observations and rewards are judged.
const N_STEPS: usize = 300;
/// Numbers of an observation above which dense layers are large.
const LONG: usize = 4096;
/// Numbers of a picture above which a smaller one is advised.
const LARGE_PICTURE: usize = 84 * 84 * 4;
/// Largest observation that networks take as it is.
const LARGE_OBS: f32 = 20.0;
/// Largest reward that networks take as it is.
const LARGE_REWARD: f32 = 100.0;

/// Settings of environments in worker processes beside those of their own.
///
/// All but the first are Gymnasium's alone.
const OF_WORKERS: [&str; 4] = ["env.kwargs", "env.path", TIME_LIMIT, ACTION_REPEAT];

/// Opens an environment with settings of its own.
fn open(name: &str, assignments: &[String], envs: &Envs) -> Result<Entry, Error> {
    let n = if name.starts_with(GYM) { OF_WORKERS.len() } else { usize::from(is_one(name)) };
    let of_workers = OF_WORKERS[..n].iter().copied();
    let known: Vec<_> = keys_of(name).iter().map(|key| key.name).chain(of_workers).collect();
    let mut layers = Layers::default();
    for assignment in assignments {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        if !known.contains(&key) {
            let which = if known.is_empty() { "it has none".into() } else { format!("there are {}", known.join(", ")) };
            return Err(Error::config(format!("--set {assignment}: no setting of {name}; {which}")));
        }
        layers.add_assignment(assignment);
    }
    layers.add("env", name, "the command line".into());
    layers.check_values()?;
    Ok(envs.open_chosen(&layers, 0)?.expect("an environment is given"))
}

/// Opens a device whose kernels are compared.
fn open_device(device: Device, entry: &Entry) -> Result<rl_cuda::Device, Error> {
    if !entry.is_twinned() {
        let how = "leave --device out, or add kernels (docs/gpu.md, \"Your own environment on the device\")";
        return Err(Error::config(format!("--device: there are no kernels for {}; {how}", entry.name)));
    }
    Ok(device.open()?.expect("the argument is no CPU"))
}

/// Makes `n_envs` environments on a device.
fn on_device(device: &rl_cuda::Device, entry: &Entry, n_envs: usize) -> Result<Box<dyn VecEnv>, rl_envs::Error> {
    let envs = CudaVecEnv::of_entry(device, entry, n_envs).map_err(|error| rl_envs::Error::Device(error.to_string()))?;
    Ok(Box::new(envs))
}

pub(crate) fn run(name: &str, settings: &[String], device: Option<Device>, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    let entry = &open(name, settings, envs)?;
    let device = device.map(|device| open_device(device, entry)).transpose()?;
    let (mut n_checks, mut n_failed) = (0, 0);
    let mut each = |check: Check| {
        n_checks += 1;
        n_failed += usize::from(check.failed());
        let (outcome, what) = match &check.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Skipped(why) => ("skipped", Some(why)),
            Outcome::Failed(what) => ("failed", Some(what)),
        };
        print::out(&if json {
            json!({"event": "check", "name": check.name, "about": check.about, "outcome": outcome, "what": what}).to_string()
        } else {
            check.to_string()
        });
    };
    entry.check_each(&mut each)?;
    if let Some(device) = &device {
        each(entry.check_kernels(&|n| on_device(device, entry, n)));
    }
    if n_failed == 0 {
        for text in warnings(entry)? {
            print::err(&format!("warning: {text}"));
            if json {
                print::out(&json!({"event": "warning", "text": text}).to_string());
            }
        }
    }
    if json {
        print::out(&json!({"event": "check-env", "env": entry.name, "checks": n_checks, "failed": n_failed}).to_string());
    }
    if n_failed > 0 { Err(Error::CheckFailed { env: entry.name.into(), n_failed, n_checks }) } else { Ok(ExitCode::SUCCESS) }
}

/// Finds what is allowed, and trains badly.
fn warnings(entry: &Entry) -> Result<Vec<String>, Error> {
    let Spaces { obs, actions } = entry.spaces();
    let mut warnings = Vec::new();
    let numbers = grouped(obs.len() as u64);
    if let (Some(shape), Some(why)) = (pictures(&obs), unfit_for_conv(&obs)) {
        warnings.push(format!("pictures are {shape}, and {why}"));
    }
    match pictures(&obs) {
        Some(shape) if obs.len() > LARGE_PICTURE => warnings.push(format!(
            "pictures of {shape} are {numbers} numbers each: smaller grey ones, such as 84 x 84, train faster; training needs conv"
        )),
        None if obs.len() > LONG => warnings.push(format!(
            "observations have {numbers} numbers, and a unit of the first layer has a weight for each: send fewer, or pictures as \
             bytes (uint8), which conv reads"
        )),
        _ => {}
    }
    if let ActionSpace::Continuous { low, high } = &actions {
        // Policies begin with a mean of 0 and a standard deviation of 1.
        let fits = |low: f32, high: f32| low.max(-high) <= -0.1 && low.min(-high) >= -10.0;
        let unfit = |(low, high): (&f32, &f32)| low.is_finite() && high.is_finite() && !fits(*low, *high);
        if let Some(i) = low.iter().zip(high).position(unfit) {
            warnings.push(format!(
                "action {i} is from {} to {}, but policies begin around 0 with a standard deviation of 1: rescale actions to -1 to 1, \
                 such as with gymnasium.wrappers.RescaleAction",
                low[i], high[i]
            ));
        }
    }
    let (largest_obs, largest_reward) = largest(entry)?;
    if obs.dtype() == Dtype::F32 && largest_obs > LARGE_OBS {
        warnings.push(format!("observations reach {largest_obs:.0} in {N_STEPS} random steps: train with normalize_obs = true"));
    }
    if largest_reward > LARGE_REWARD {
        warnings.push(format!(
            "rewards reach {largest_reward:.0} in {N_STEPS} random steps: train with ppo.normalize_reward = true, or divide them"
        ));
    }
    Ok(warnings)
}

/// Returns the largest sizes of observations and of rewards in random steps.
fn largest(entry: &Entry) -> Result<(f32, f32), Error> {
    let mut envs = entry.sync(1)?;
    let (mut steps, mut random) = (Steps::new(&*envs), RandomActions::new(0, 1, envs.action_space()));
    envs.reset(0, &mut steps)?;
    let (mut obs, mut reward) = (0.0f32, 0.0f32);
    for _ in 0..N_STEPS {
        random.fill_legal(&mut steps);
        envs.step(&mut steps)?;
        if !envs.faults().is_empty() {
            break;
        }
        obs = steps.obs.as_slice().either(|row| row.iter().fold(obs, |most, x| most.max(x.abs())), |_| obs);
        reward = reward.max(steps.rewards[0].abs());
    }
    Ok((obs, reward))
}
