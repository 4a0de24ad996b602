//! Environment of a run, with its wrappers and settings.

use rl_agents::settings::{Key, Kind, key};
use rl_envs::wrappers::Wrappers;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::sources::worker::{EXEC, GYM};

pub(crate) const TIME_LIMIT: &str = "env.time_limit";
pub(crate) const ACTION_REPEAT: &str = "env.action_repeat";
/// Settings that worker processes apply from their start.
#[cfg(feature = "cli")]
pub(crate) const FROM_START: [&str; 2] = [TIME_LIMIT, ACTION_REPEAT];

/// Environment of a run.
///
/// Written as its name, or as a table of its name and wrappers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenEnv", into = "WrittenEnv")]
pub struct EnvConfig {
    /// Name of the environment.
    pub name: String,
    /// Arguments of its constructor, a JSON object; empty for none.
    ///
    /// Only environments in worker processes take any.
    pub kwargs: String,
    /// Directory of the module that makes it; empty for the current directory.
    pub path: String,
    /// Wrappers in training, evaluations and `rl watch`.
    ///
    /// Rewards are clipped for learning only.
    pub wrappers: Wrappers,
    /// Settings that the environment alone has, by name.
    pub settings: Table,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenEnv {
    Plain(String),
    Wrapped {
        name: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        kwargs: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
        #[serde(flatten)]
        wrappers: Wrappers,
        #[serde(flatten)]
        settings: Table,
    },
}

impl From<WrittenEnv> for EnvConfig {
    fn from(written: WrittenEnv) -> Self {
        match written {
            WrittenEnv::Plain(name) => Self::new(&name),
            WrittenEnv::Wrapped { name, kwargs, path, wrappers, settings } => Self { name, kwargs, path, wrappers, settings },
        }
    }
}

impl From<EnvConfig> for WrittenEnv {
    fn from(EnvConfig { name, kwargs, path, wrappers, settings }: EnvConfig) -> Self {
        let is_plain = kwargs.is_empty() && path.is_empty() && wrappers == Wrappers::default() && settings.is_empty();
        if is_plain { Self::Plain(name) } else { Self::Wrapped { name, kwargs, path, wrappers, settings } }
    }
}

impl EnvConfig {
    /// Environment `name`, without arguments, wrappers or settings.
    pub(crate) fn new(name: &str) -> Self {
        let (kwargs, path) = (String::new(), String::new());
        Self { name: name.into(), kwargs, path, wrappers: Wrappers::default(), settings: Table::new() }
    }

    /// True if the name is code: a command, or a callable of a module.
    #[must_use]
    pub fn is_code(&self) -> bool {
        self.name.starts_with(EXEC) || self.name.strip_prefix(GYM).is_some_and(|id| id.contains(':'))
    }

    /// Describes the environment in a line of JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names, numbers and tables")
    }

    /// Settings of the section `env`, without the name.
    pub(super) fn table(&self) -> Result<Table, toml::ser::Error> {
        let mut table = Table::try_from(self.wrappers)?;
        table.extend(self.settings.clone());
        table.insert("kwargs".into(), self.kwargs.as_str().into());
        table.insert("path".into(), self.path.as_str().into());
        Ok(table)
    }
}

/// The settings of any environment.
pub(super) const ENV: &[Key] = &[
    key(
        "env.kwargs",
        Kind::Text(is_json_object, "a JSON object in quotes"),
        "Arguments of the constructor of a gym: environment",
    ),
    key(
        "env.path",
        Kind::Text(|_| true, "the path of a directory"),
        "Directory of the module of a gym:MODULE:.. environment; empty: the current one, which the run remembers",
    ),
    key("env.frame_stack", Kind::Int(1, 64), "Observations seen at once, the oldest first; 1: the last alone"),
    key(TIME_LIMIT, Kind::Int(0, u32::MAX as i64), "Steps after which an episode is truncated; 0: the environment's own limit"),
    key(ACTION_REPEAT, Kind::Int(1, 1000), "Times that each action is taken; rewards are summed, time_limit counts each"),
    key(
        "env.pixels",
        Kind::Int(0, 512),
        "Width and height of the environment's picture, observed in grey; 0: its own observations",
    ),
    key(
        "env.hide",
        Kind::Choice(&["nothing", "velocities"]),
        "Elements of observations that are 0: nothing, or the velocities, which memory can replace",
    ),
    key("env.reward_clip", Kind::Float(0.0, 1e9), "Bound of the rewards that are learnt from; returns are unclipped; 0: none"),
];

fn is_json_object(text: &str) -> bool {
    text.is_empty() || serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}
