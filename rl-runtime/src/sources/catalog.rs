//! Environments of this crate: they block, and have settings.

use rl_agents::settings::Key;
use rl_envs::catalog::Entry;
use serde::Serialize;
use toml::Table;

#[cfg(feature = "crawl")]
use crate::sources::crawl::CrawlConfig;
use crate::sources::env_settings::EnvSettings;
use crate::sources::slow_cartpole::SlowCartPoleConfig;
use crate::sources::worker::{GYM, WorkerConfig};

/// All environments of this crate. A new one adds its line here.
const ENVS: &[Known] = &[
    Known::of::<SlowCartPoleConfig>(SlowCartPoleConfig::KEYS),
    #[cfg(feature = "crawl")]
    Known::of::<CrawlConfig>(CrawlConfig::KEYS),
];

/// Environment of this crate.
struct Known {
    name: &'static str,
    keys: &'static [Key],
    defaults: fn() -> Table,
    entry: fn(Table) -> Result<Entry, toml::de::Error>,
    typed: fn(Table) -> Result<Table, toml::de::Error>,
}

impl Known {
    const fn of<S: EnvSettings>(keys: &'static [Key]) -> Self {
        Self {
            name: S::NAME,
            keys,
            defaults: || table(&S::default()),
            entry: |settings| Ok(settings.try_into::<S>()?.entry()),
            typed: |settings| Ok(table(&settings.try_into::<S>()?)),
        }
    }

    /// Returns all settings: those given, else the defaults.
    fn complete(&self, given: &Table) -> Table {
        let mut settings = (self.defaults)();
        settings.extend(given.clone());
        settings
    }
}

fn table(settings: &impl Serialize) -> Table {
    Table::try_from(settings).expect("settings are numbers and texts")
}

fn find(name: &str) -> Option<&'static Known> {
    ENVS.iter().find(|known| known.name == name)
}

/// Returns the entries of this crate's environments, with default settings.
pub(crate) fn entries() -> impl Iterator<Item = Entry> {
    ENVS.iter().map(|known| (known.entry)((known.defaults)()).expect("defaults are allowed"))
}

/// Returns the settings of all environments of this crate and of Gymnasium.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key> {
    ENVS.iter().flat_map(|known| known.keys).chain(WorkerConfig::KEYS)
}

/// Returns the settings of the environment `name`, if it has any.
pub(crate) fn keys_of(name: &str) -> &'static [Key] {
    if name.starts_with(GYM) { WorkerConfig::KEYS } else { find(name).map_or(&[], |known| known.keys) }
}

/// Creates the entry of an environment of this crate; `None` for any other.
pub(crate) fn open(name: &str, settings: &Table) -> Option<Result<Entry, toml::de::Error>> {
    find(name).map(|known| (known.entry)(known.complete(settings)))
}

/// Completes the settings of a run or a recording that an older version wrote.
///
/// Each missing setting gets the value that leaves observations as the older version had them.
pub(crate) fn complete_old(name: &str, settings: &mut Table) {
    if name.starts_with(GYM) {
        for key in ["atari_preprocessing", "float_images"] {
            settings.entry(key).or_insert(false.into());
        }
    }
}

/// Completes the settings of the environment `name`, in the types of its own.
///
/// Settings of an environment that has none stay as they are.
pub(crate) fn complete(name: &str, settings: Table) -> Result<Table, toml::de::Error> {
    if name.starts_with(GYM) {
        let mut all = table(&WorkerConfig::default());
        all.extend(settings);
        return Ok(table(&all.try_into::<WorkerConfig>()?));
    }
    find(name).map_or(Ok(settings.clone()), |known| (known.typed)(known.complete(&settings)))
}
