//! Settings that are allowed, and have no effect or may surprise.

use rl_envs::Space;
use rl_envs::catalog::Entry;
use toml::Value;

use super::{Config, Layers};
use crate::config::algo::Concern;
use crate::print::grouped;
use crate::thread::cores;

/// Describes the shape of observations that are pictures; `None` for any others.
///
/// Pictures have two axes of 16 or more, with 1,024 pixels or more.
pub(crate) fn pictures(obs: &Space) -> Option<String> {
    let is_picture = |shape: &&[usize]| {
        let mut axes = shape.to_vec();
        axes.sort_unstable_by_key(|axis| std::cmp::Reverse(*axis));
        (2..=3).contains(&axes.len()) && axes[1] >= 16 && axes[0] * axes[1] >= 1024
    };
    let shapes = std::iter::once(obs.shape()).chain(obs.parts().iter().map(|part| &part.shape[..]));
    let found = shapes.into_iter().find(is_picture)?;
    Some(found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x "))
}

/// Says why convolutions cannot read pictures as such.
pub(crate) fn unfit_for_conv(obs: &Space) -> Option<&'static str> {
    match *obs.shape() {
        [_, _] => Some("conv reads channels x rows x columns: add an axis of one channel in front"),
        [rows, columns, channels] if channels < rows.min(columns) => {
            Some("conv reads channels x rows x columns: move the channels to the front")
        }
        _ => None,
    }
}

/// A setting that another one can turn off.
struct Dependent {
    field: &'static str,
    /// The other setting, of the same section.
    needs: &'static str,
    /// True for the values of that one that turn this one off.
    turns_off: fn(&Value) -> bool,
}

const fn dependent(field: &'static str, needs: &'static str, turns_off: fn(&Value) -> bool) -> Dependent {
    Dependent { field, needs, turns_off }
}

const DEPENDENT: [Dependent; 8] = [
    dependent("memory_size", "memory", is_none),
    dependent("memory_horizon", "memory", is_none),
    dependent("forget_bias", "memory", is_none),
    dependent("priority_alpha", "prioritized", is_off),
    dependent("priority_beta", "prioritized", is_off),
    dependent("action_noise_std", "action_noise", is_none),
    dependent("target_noise_clip", "target_policy_noise", is_off),
    dependent("target_entropy", "ent_coef", is_number),
];

fn is_none(value: &Value) -> bool {
    value.as_str() == Some("none")
}

fn is_off(value: &Value) -> bool {
    value.as_bool() == Some(false) || value.as_float() == Some(0.0)
}

fn is_number(value: &Value) -> bool {
    value.is_float() || value.is_integer()
}

impl Config {
    /// Finds settings that could be trained with, but to no purpose.
    ///
    /// `base` are the settings of the run that continues, or defaults: older runs with such settings can still be read.
    pub(super) fn pointless(&self, base: &Self) -> Vec<Concern> {
        let mut found = Vec::new();
        let (key, steps) = (self.algo.key("learning_starts"), self.run.steps);
        if let (Some(key), Some(replay)) = (key, self.traits().replay.filter(|replay| replay.learning_starts >= steps)) {
            let starts = replay.learning_starts;
            let text = format!("{key} is {starts}, but steps is {steps}: nothing would be learnt; lower it or raise steps");
            found.push((vec![key, "steps"], text));
        }
        let (net, old) = (&self.net, &base.net);
        let of_rollouts =
            [("shared_trunk", net.shared_trunk != old.shared_trunk), ("log_std_init", net.log_std_init != old.log_std_init)];
        for (key, is_given) in of_rollouts {
            if is_given && self.replays() {
                let text = format!("{key} has no effect: the networks of {} have none; leave it out", self.algo.name());
                found.push((vec![key, "algo"], text));
            }
        }
        found
    }

    /// Warns of settings that differ from the preset's, and that others turn off.
    fn without_effect(&self, entry: &Entry) -> Vec<String> {
        let Ok(preset) = Layers::default().resolve(entry, self.algo.algo()) else { return Vec::new() };
        let (set, preset, mut warnings) = (self.settings(), preset.settings(), Vec::new());
        if self.net.layer_norm && self.net.hidden.is_empty() && self.net.hidden_of_critic().is_empty() {
            warnings.push("layer_norm has no effect without hidden layers".into());
        }
        for section in [String::new(), format!("{}.", self.algo.name())] {
            for Dependent { field, needs, turns_off } in DEPENDENT {
                let [field, needs] = [field, needs].map(|name| format!("{section}{name}"));
                if let Some(value) = set.get(&needs).filter(|value| turns_off(value))
                    && set.get(&field) != preset.get(&field)
                {
                    warnings.push(format!("{field} has no effect while {needs} is {value}"));
                }
            }
        }
        warnings
    }

    /// Returns warnings of settings that are allowed and may surprise.
    #[must_use]
    pub fn warnings(&self, entry: &Entry) -> Vec<String> {
        let mut warnings = self.algo.settings().warnings(self.run.n_envs);
        warnings.extend(self.without_effect(entry));
        let obs = self.wrapped(entry).spaces().obs;
        if let Some(shape) = pictures(&obs).filter(|_| self.net.conv.is_empty()) {
            let elsewhere = "; make pictures small and grey as well, with Gymnasium's AtariPreprocessing, or ResizeObservation and \
                             GrayscaleObservation, in a function that gym:MODULE:CALLABLE names";
            let unfit = unfit_for_conv(&obs).map_or(String::new(), |why| format!("; {why}"));
            warnings.push(format!(
                "observations are pictures of {shape}, and conv is empty: every unit of the first layer has a weight for each of \
                 {} numbers; set conv, such as --set 'conv=[[32,8,4],[64,4,2],[64,3,1]]' --set 'hidden=[512]'{unfit}{}",
                grouped(obs.len() as u64),
                if entry.batches().is_some() { elsewhere } else { "" }
            ));
        }
        let cores = cores();
        if entry.batches().is_some() && !self.blocks(entry) && self.workers() > cores {
            warnings.push(format!(
                "workers is {}, but there are {cores} cores: more workers than cores pay only where environments wait; try --set \
                 workers={cores}",
                self.workers()
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algo;

    #[test]
    fn settings_without_effect_are_refused_in_new_runs_alone() {
        let entry = rl_envs::catalog::find("cartpole").unwrap();
        for assignment in ["shared_trunk=true", "log_std_init=-1.0"] {
            let mut layers = Layers::default();
            layers.add_assignment(assignment);
            let error = layers.clone().resolve(entry, Algo::DQN).unwrap_err();
            assert!(error.to_string().contains("has no effect: the networks of dqn have none"), "{error}");
            layers.resolve(entry, Algo::PPO).unwrap();
        }
        let mut old = Layers::default().resolve(entry, Algo::DQN).unwrap();
        old.net.shared_trunk = true;
        assert!(Layers::default().over(&old, entry).unwrap().net.shared_trunk);
    }

    #[test]
    fn settings_that_need_another_one_are_warned_of() {
        for (env, algo, settings, expected) in [
            ("cartpole", Algo::PPO, &["memory_size=32"][..], "memory_size has no effect while memory is \"none\""),
            ("cartpole", Algo::PPO, &["memory_size=32", "memory=gru", "ppo.batch_size=256", "ppo.n_steps=32"], ""),
            ("cartpole", Algo::DQN, &["dqn.priority_beta=0.5"], "dqn.priority_beta has no effect while dqn.prioritized is false"),
            ("cartpole", Algo::PPO, &["layer_norm=true", "hidden=[]"], "layer_norm has no effect without hidden layers"),
            ("cartpole", Algo::DQN, &["dqn.priority_beta=0.5", "dqn.prioritized=true"], ""),
            ("pendulum", Algo::SAC, &["sac.target_entropy=-2", "sac.ent_coef=0.2"], "while sac.ent_coef is 0.2"),
            ("pendulum", Algo::SAC, &["sac.target_entropy=-2"], ""),
            ("pendulum", Algo::TD3, &["td3.action_noise_std=0.3", "td3.action_noise=none"], "while td3.action_noise is \"none\""),
            (
                "pendulum",
                Algo::TD3,
                &["td3.target_noise_clip=0.3", "td3.target_policy_noise=0"],
                "td3.target_policy_noise is 0.0",
            ),
            ("pendulum", Algo::TD3, &["td3.action_noise_std=0.3", "td3.target_noise_clip=0.3"], ""),
            // The preset has a deviation of its own.
            ("mountain_car_continuous", Algo::TD3, &["td3.action_noise=none"], ""),
        ] {
            let entry = rl_envs::catalog::find(env).unwrap();
            let mut layers = Layers::default();
            settings.iter().for_each(|setting| layers.add_assignment(setting));
            let warnings = layers.resolve(entry, algo).unwrap().warnings(entry);
            assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{settings:?}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.contains(expected)), "{settings:?}: {warnings:?}");
        }
    }

    #[test]
    fn pictures_are_described_and_those_that_conv_cannot_read_have_a_reason() {
        let of = |shape: &[usize]| Space::bytes(shape, 255, 1.0);
        assert_eq!(pictures(&of(&[64, 48])).unwrap(), "64 x 48");
        assert_eq!((pictures(&of(&[3, 12, 12])), pictures(&Space::vector(&[0.0; 4096], &[1.0; 4096]))), (None, None));
        let parts = [("speed", vec![1]), ("camera", vec![1, 64, 64])];
        let parts = parts.map(|(name, shape)| rl_envs::Part { name: name.into(), shape });
        assert_eq!(pictures(&Space::vector(&[0.0; 4097], &[1.0; 4097]).with_parts(&parts)).unwrap(), "1 x 64 x 64");
        for (shape, why) in [(&[64, 48][..], "add an axis"), (&[64, 48, 3], "move the channels"), (&[3, 64, 48], "")] {
            let found = unfit_for_conv(&of(shape));
            assert!(if why.is_empty() { found.is_none() } else { found.unwrap().contains(why) }, "{shape:?}");
        }
    }
}
