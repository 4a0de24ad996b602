//! The device that `device = auto` chooses.
//!
//! A GPU where `rl bench crossover` has measured on this machine that it pays for a run of this size, else the CPU. The choice
//! never fails a run: a setting that no device supports, a missing driver and a missing measurement are reasons for the CPU.

use std::sync::OnceLock;

use rl_agents::{Activation, LearnerKind, MemoryKind};
use rl_envs::catalog::Entry;

use crate::config::algo::Concern;
use crate::config::crossover::{self, Crossover};
use crate::config::{Device, parse_device};
use crate::{Config, Error, print};

/// Name of the device that `auto` chooses where it pays.
const GPU: &str = "cuda";

/// Returns the device to train on, and for `auto` the reason in a few words.
///
/// `n_ranks` ranks share the training.
pub(crate) fn choose(config: &Config, entry: &Entry, n_ranks: usize) -> (Device, Option<String>) {
    match (config.device(), parse_device(GPU)) {
        (Device::Auto, Some(gpu)) => match pays(config, entry, n_ranks) {
            Ok(why) => (gpu, Some(why)),
            Err(why) => (Device::Cpu, Some(why)),
        },
        (device, _) => (device, None),
    }
}

/// Builds on the CPU what could not be built on the device that `auto` chose.
pub(crate) fn or_on_cpu<T>(
    config: &Config,
    on_device: bool,
    built: Result<T, Error>,
    on_cpu: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    match built {
        Err(error) if on_device && config.device() == Device::Auto => {
            print::err(&format!("warning: {error}; the CPU learns instead, because device is auto"));
            on_cpu()
        }
        built => built,
    }
}

/// Finds a setting that has no effect on the device to train on.
pub(crate) fn without_effect(config: &Config, entry: &Entry) -> Option<Concern> {
    let size = config.traits().micro_batch;
    let key = config.algo.key("micro_batch")?;
    if size == 0 || config.net.learner != LearnerKind::Fused {
        return None;
    }
    let (Device::Cpu, why) = choose(config, entry, 1) else { return None };
    let cpu = why.map_or("the CPU".into(), |why| format!("the CPU, which auto chooses ({why}),"));
    let text = "only learner = \"reference\" cuts minibatches; leave it at 0, or set learner = \"reference\"";
    Some((vec![key, "learner", "device"], format!("{key} is {size}, but on {cpu} {text}")))
}

/// Returns warnings of settings that waste a device, or that need one.
#[cfg(feature = "cli")]
pub(crate) fn warnings(config: &Config, entry: &Entry) -> Vec<String> {
    use rl_cuda::learner::TILE;
    let traits = config.traits();
    if let (Device::Cuda(gpu), None) = (choose(config, entry, 1).0, &traits.replay)
        && let Ok(multiprocessors) = rl_cuda::Device::multiprocessors_of(gpu)
        && traits.minibatch.div_ceil(TILE) * 2 < multiprocessors
    {
        return vec![format!(
            "minibatches of {} samples leave most of the {multiprocessors} multiprocessors idle; --preset many-envs has larger ones",
            print::grouped(traits.minibatch as u64),
        )];
    }
    let keeps = traits.replay.is_some_and(|replay| replay.on_device);
    let replay = config.algo.key("replay_on_device").filter(|_| keeps).map(|key| format!("{key} = true"));
    let envs = (config.run.env_device == "learner").then(|| "env_device = learner".into());
    let set: Vec<String> = envs.into_iter().chain(replay).collect();
    let on_cpu = !set.is_empty() && choose(config, entry, 1).0 == Device::Cpu;
    set.into_iter().filter(|_| on_cpu).map(|setting| format!("{setting} has no effect: the CPU learns")).collect()
}

/// Returns why a GPU pays for a run; the error is the reason for the CPU.
fn pays(config: &Config, entry: &Entry, n_ranks: usize) -> Result<String, String> {
    let gpu = gpu().as_ref().map_err(Clone::clone)?;
    if n_ranks > 1 {
        return Err("ranks share the training".into());
    }
    if let Some(why) = unsupported(config, entry).or_else(|| unmeasured(config, entry)) {
        return Err(why);
    }
    measured(gpu)?.verdict(size(config, entry).map_err(|error| error.to_string())?, config.run.threads)
}

/// Returns the name of this machine's first GPU; the error says why there is none.
fn gpu() -> &'static Result<String, String> {
    static GPU: OnceLock<Result<String, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        rl_cuda::Device::name_of(0).map_err(|error| match error {
            rl_cuda::Error::NoDriver(_) => "there is no GPU: no CUDA driver".into(),
            rl_cuda::Error::NoDevice => "there is no GPU: no CUDA device".into(),
            error => error.to_string(),
        })
    })
}

/// Returns parameters, environments and samples of a minibatch.
fn size(config: &Config, entry: &Entry) -> Result<[usize; 3], Error> {
    let batch_size = config.traits().minibatch;
    Ok([config.layout(entry)?.len(), config.run.n_envs, batch_size])
}

/// Says whether the machine's other device would help a run.
///
/// `None` if there is none, if a run on the GPU is the faster one, or if ranks or devices share the training. Without a
/// measurement, says how to make one.
#[cfg(feature = "cli")]
pub(crate) fn advice(config: &Config, n_ranks: usize) -> Option<String> {
    // Environments that the catalog lacks have no kernels.
    let entry = rl_envs::catalog::find(&config.env.name).ok()?;
    let shared = n_ranks > 1 || config.n_devices() > 1;
    let cannot = shared || unsupported(config, entry).or_else(|| unmeasured(config, entry)).is_some();
    let gpu = gpu().as_ref().ok().filter(|_| !cannot)?;
    let on_gpu = matches!(choose(config, entry, 1).0, Device::Cuda(_));
    match measured(gpu) {
        Ok(measured) => measured.advice(size(config, entry).ok()?, config.run.threads, on_gpu),
        Err(_) if on_gpu => None,
        Err(why) => Some(why),
    }
}

/// Returns the measurement of this machine's first GPU, read once.
fn measured(gpu: &str) -> Result<&'static Crossover, String> {
    static MEASURED: OnceLock<Result<Crossover, String>> = OnceLock::new();
    MEASURED.get_or_init(|| crossover::load(gpu)).as_ref().map_err(Clone::clone)
}

/// Finds a setting of a run that no device supports.
fn unsupported(config: &Config, entry: &Entry) -> Option<String> {
    let mut asked = config.clone();
    asked.run.device = GPU.into();
    let settings = config.settings();
    if let Some((keys, _)) = asked.impossible().into_iter().chain(asked.unfit(entry)).next() {
        let key = keys.into_iter().find(|key| *key != "device" && settings.contains_key(*key));
        return Some(key.map_or_else(
            || format!("no device learns {} so far", entry.name),
            |key| format!("no device supports {key} = {} so far", settings[key]),
        ));
    }
    let channels = config.net.conv.last().map(|[channels, ..]| *channels);
    let unfit = channels.is_some_and(|channels| !channels.is_multiple_of(16));
    unfit.then(|| format!("no device supports conv = {} so far", settings["conv"]))
}

/// Finds what distinguishes a run from those that the measurement stands for.
fn unmeasured(config: &Config, entry: &Entry) -> Option<String> {
    if config.traits().replay.is_some() {
        return Some(format!("the measurement is not for {}", config.algo.name()));
    }
    if config.net.learner == LearnerKind::Reference {
        return Some("the measurement is not for the reference learner".into());
    }
    if config.net.memory != MemoryKind::None {
        return Some("the measurement is not for memory".into());
    }
    if matches!(config.net.activation, Activation::Silu | Activation::Gelu) {
        return Some("the measurement is not for silu and gelu".into());
    }
    if config.net.layer_norm {
        return Some("the measurement is not for layer_norm".into());
    }
    let on_cpu = config.env_on_device(entry).is_ok_and(|env| env.is_none());
    on_cpu.then(|| "the measurement is not for environments on the CPU".into())
}

#[cfg(test)]
mod tests {
    use rl_envs::catalog::find;

    use super::*;
    use crate::Algo;
    use crate::config::Layers;

    fn config(algo: Algo, settings: &[&str]) -> Config {
        let mut layers = Layers::default();
        settings.iter().for_each(|setting| layers.add_assignment(setting));
        layers.resolve(find("cartpole").unwrap(), algo).unwrap()
    }

    #[test]
    fn what_no_device_supports_is_a_reason_for_the_cpu_and_no_error() {
        let entry = find("cartpole").unwrap();
        for (algo, setting, expected) in [
            (Algo::PPO, "learner=reference", "the measurement is not for the reference learner"),
            (Algo::A2C, "learner=reference", "the measurement is not for the reference learner"),
            (Algo::DQN, "n_envs=8", "the measurement is not for dqn"),
            (Algo::PPO, "memory=gru", "the measurement is not for memory"),
            (Algo::PPO, "activation=silu", "the measurement is not for silu and gelu"),
            (Algo::PPO, "layer_norm=true", "the measurement is not for layer_norm"),
            (Algo::PPO, "env_device=cpu", "the measurement is not for environments on the CPU"),
            (Algo::PPO, "env.frame_stack=2", "the measurement is not for environments on the CPU"),
        ] {
            let config = config(algo, &[setting]);
            let why = unsupported(&config, entry).or_else(|| unmeasured(&config, entry));
            assert_eq!(why.as_deref(), Some(expected), "{setting}");
        }
    }

    #[cfg(feature = "cli")]
    #[test]
    fn settings_of_a_device_are_warned_of_where_the_cpu_learns() {
        let entry = find("cartpole").unwrap();
        for (algo, setting, device, n) in [
            (Algo::PPO, "env_device=learner", "device=cpu", 1),
            (Algo::PPO, "env_device=learner", "device=emulated", 0),
            (Algo::DQN, "dqn.replay_on_device=true", "device=cpu", 1),
        ] {
            assert_eq!(warnings(&config(algo, &[setting, device]), entry).len(), n, "{setting} {device}");
        }
    }

    #[test]
    fn without_a_gpu_that_is_the_reason_whatever_the_settings_are() {
        let entry = find("cartpole").unwrap();
        assert_eq!(choose(&config(Algo::PPO, &["device=cpu"]), entry, 1), (Device::Cpu, None));
        assert_eq!(choose(&config(Algo::PPO, &["device=emulated"]), entry, 1), (Device::Emulated, None));
        for (algo, settings, n_ranks) in
            [(Algo::PPO, &[][..], 1), (Algo::DQN, &[], 1), (Algo::PPO, &["env_device=cpu"], 1), (Algo::PPO, &[], 2)]
        {
            let (device, why) = choose(&config(algo, settings), entry, n_ranks);
            assert!(device != Device::Auto);
            if matches!(rl_cuda::Device::name_of(0), Err(rl_cuda::Error::NoDriver(_))) {
                assert_eq!((device, why.as_deref()), (Device::Cpu, Some("there is no GPU: no CUDA driver")), "{settings:?}");
            }
        }
    }
}
