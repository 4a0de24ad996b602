//! Settings in layers: defaults, preset, TOML file, command line.
//!
//! Each layer overrides the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rl_agents::NetConfig;
use rl_envs::catalog::Entry;
use rl_envs::wrappers::Wrappers;
use toml::{Table, Value};

use super::presets::{WORKLOADS, for_pictures, named_conv, preset};
use super::{Config, EnvConfig, Key, Kind, keys};
use crate::config::algo::{Algo, AlgoConfig};
use crate::config::env::{ACTION_REPEAT, TIME_LIMIT};
use crate::file::{MAX_FILE, read_small};
use crate::print::did_you_mean;
use crate::{Error, config::auto, sources::catalog};

/// Sets a setting, such as `ppo.n_steps`, in the table of a file.
#[cfg(feature = "cli")]
pub(crate) fn insert(table: &mut Table, key: &str, value: Value) {
    let Some((section, name)) = key.split_once('.') else { return drop(table.insert(key.into(), value)) };
    let section = table.entry(section).or_insert_with(|| Table::new().into());
    // The name of an environment may stand alone.
    if let Value::String(env) = section {
        *section = Value::Table(Table::from_iter([("name".into(), env.as_str().into())]));
    }
    section.as_table_mut().into_iter().for_each(|section| drop(section.insert(name.into(), value.clone())));
}

/// Lists settings in a line.
#[cfg(feature = "cli")]
pub(crate) fn in_words(settings: &[(String, Value)]) -> String {
    settings.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

/// Formats a value for a message, which a long one would drown.
fn in_short(value: &Value) -> String {
    const MAX: usize = 200;
    let text = value.to_string();
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// True for a minibatch that `rl train` halves until it fits.
///
/// It begins as [`Algorithm::auto_batch`](crate::config::algo::Algorithm::auto_batch) says.
fn is_auto_batch(key: &str, value: &Value) -> bool {
    key.ends_with(".batch_size") && value.as_str() == Some("auto")
}

/// True if an algorithm chooses its minibatch where `batch_size` is "auto".
fn has_auto_batch(algo: Option<&str>) -> bool {
    let algo = algo.and_then(|name| Algo::find(name).ok());
    algo.is_some_and(|algo| AlgoConfig::new(algo).settings_mut().auto_batch().is_some())
}

/// Value of a setting, and its origin.
#[derive(Clone)]
struct Setting {
    value: Value,
    origin: String,
    /// True if a file or a preset has set it.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program alone asks"))]
    is_from_file: bool,
}

/// Settings in layers, with the problems found so far.
#[derive(Clone, Default)]
pub struct Layers {
    settings: BTreeMap<String, Setting>,
    problems: Vec<String>,
}

/// Says that a setting has a value that it must not have.
fn not_allowed(known: &Key, origin: &str, value: &Value) -> String {
    format!("{origin}: {} is {}; it must be {}", known.name, in_short(value), known.kind.allowed())
}

impl Layers {
    /// Adds a TOML file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Config`] if it is not TOML.
    pub fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        self.add_toml(&read_small(path, MAX_FILE)?, &path.display().to_string())
    }

    /// Adds one of the [`WORKLOADS`].
    ///
    /// # Errors
    /// [`Error::Config`] with the names that exist.
    pub fn add_workload(&mut self, name: &str) -> Result<(), Error> {
        let known = WORKLOADS.iter().map(|(name, _)| *name);
        let unknown = || {
            let near = did_you_mean(name, known.clone());
            Error::config(format!("unknown preset \"{name}\"; there are: {}{near}", known.clone().collect::<Vec<_>>().join(", ")))
        };
        let (_, text) = WORKLOADS.iter().find(|(of, _)| *of == name).ok_or_else(unknown)?;
        self.add_toml(text, &format!("preset {name}"))
    }

    /// Adds the TOML of a file or preset.
    pub(crate) fn add_toml(&mut self, text: &str, name: &str) -> Result<(), Error> {
        let bad = |e: toml::de::Error| Error::config(format!("{name}: {}", e.to_string().trim_end()));
        let table: Table = toml::from_str(text).map_err(bad)?;
        let spans = toml::de::DeTable::parse(text).map_err(bad)?;
        let line = |at: usize| text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n'));
        for (key, value) in table {
            let span = spans.get_ref().get_key_value(&*key);
            let at = span.map_or(0, |(key, _)| key.span().start);
            if let (Value::Table(section), Some((_, spanned))) = (&value, span) {
                for (inner, value) in section {
                    let inner_span = spanned.get_ref().as_table().and_then(|t| t.get_key_value(&**inner));
                    let at = inner_span.map_or(at, |(key, _)| key.span().start);
                    self.set(&format!("{key}.{inner}"), value.clone(), format!("{name}:{}", line(at)), true);
                }
            } else {
                self.set(&key, value, format!("{name}:{}", line(at)), true);
            }
        }
        Ok(())
    }

    /// Removes a section, which is not of settings.
    #[cfg(feature = "cli")]
    pub(crate) fn forget_section(&mut self, section: &str) {
        self.settings.retain(|key, _| key.split_once('.').is_none_or(|(of, _)| of != section));
    }

    /// Adds `key=value` from the command line.
    ///
    /// A value that is not TOML is a text.
    pub fn add_assignment(&mut self, assignment: &str) {
        match assignment.split_once('=') {
            Some((key, value)) => {
                let parsed = toml::from_str::<Table>(&format!("v = {value}")).ok().and_then(|mut table| table.remove("v"));
                self.add(key.trim(), parsed.unwrap_or_else(|| Value::String(value.into())), "--set".into());
            }
            None => self.problems.push(format!("--set {assignment}: expected key=value")),
        }
    }

    /// Adds one setting.
    pub fn add(&mut self, key: &str, value: impl Into<Value>, origin: String) {
        self.set(key, value.into(), origin, false);
    }

    fn set(&mut self, key: &str, value: Value, origin: String, is_from_file: bool) {
        let key = if key == "env.name" { "env" } else { key };
        let named = value.as_str().filter(|_| key == "conv").and_then(named_conv);
        let value = named.unwrap_or(value);
        self.settings.insert(key.into(), Setting { value, origin, is_from_file });
    }

    /// Returns the line of a file that chooses what an environment executes.
    ///
    /// That is its name, its arguments, or the directory of its module.
    #[cfg(feature = "cli")]
    pub(crate) fn env_in_file(&self) -> Option<&str> {
        let mut chosen = ["env", "env.kwargs", "env.path"].iter().filter_map(|key| self.settings.get(*key));
        chosen.find(|setting| setting.is_from_file).map(|setting| &*setting.origin)
    }

    /// True if `batch_size` is "auto".
    pub(crate) fn auto_batch(&self) -> bool {
        self.settings.iter().any(|(key, setting)| is_auto_batch(key, &setting.value))
    }

    /// True if a setting is given.
    #[cfg(feature = "cli")]
    pub(crate) fn has(&self, key: &str) -> bool {
        self.settings.contains_key(key)
    }

    /// Returns a number, if one is given.
    #[cfg(feature = "cli")]
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        let value = &self.settings.get(key)?.value;
        value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
    }

    /// Returns the name of the environment or algorithm, if one is given.
    ///
    /// # Errors
    /// [`Error::Config`] if the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<String>, Error> {
        let Some(Setting { value, origin, .. }) = self.settings.get(key) else { return Ok(None) };
        let text = value.as_str().map(String::from);
        let what = match key {
            "env.kwargs" => "a JSON object in quotes",
            _ => "a name in quotes; `rl list` shows them all",
        };
        let bad = || Error::config(format!("{origin}: {key} is {}; it must be {what}", in_short(value)));
        text.ok_or_else(bad).map(Some)
    }

    /// Returns the environment, if one is given, with its settings.
    ///
    /// It has the wrappers that worker processes apply, and no others.
    /// Settings that are not allowed are left out: [`Layers::resolve`] reports them.
    ///
    /// # Errors
    /// [`Error::Config`] if the name or the arguments are not a text.
    pub fn env(&self) -> Result<Option<EnvConfig>, Error> {
        let Some(name) = self.text("env")? else { return Ok(None) };
        let kwargs = self.text("env.kwargs")?.unwrap_or_default();
        let path = self.text("env.path")?.unwrap_or_default();
        let given = |key: &Key| self.settings.get(key.name).map(|setting| (key.field().into(), setting.value.clone()));
        let settings = catalog::keys_of(&name)
            .iter()
            .filter(|key| self.settings.get(key.name).is_some_and(|setting| key.kind.allows(&setting.value)));
        let settings = settings.filter_map(given).collect();
        // Worker processes apply these two from their start.
        let number = |name: &str| {
            let known = keys().find(|known| known.name == name)?;
            let setting = self.settings.get(name).filter(|setting| known.kind.allows(&setting.value))?;
            u32::try_from(setting.value.as_integer()?).ok()
        };
        let Wrappers { time_limit, action_repeat, .. } = Wrappers::default();
        let wrappers = Wrappers {
            time_limit: number(TIME_LIMIT).unwrap_or(time_limit),
            action_repeat: number(ACTION_REPEAT).unwrap_or(action_repeat),
            ..Wrappers::default()
        };
        Ok(Some(EnvConfig { kwargs, path, settings, wrappers, ..EnvConfig::new(&name) }))
    }

    /// Checks that each setting has a value that it may have.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    #[cfg(feature = "cli")]
    pub(crate) fn check_values(&self) -> Result<(), Error> {
        let given = keys().filter_map(|known| self.settings.get(known.name).map(|setting| (known, setting)));
        let refused = given.filter(|(known, setting)| !known.kind.allows(&setting.value));
        let refused = refused.map(|(known, setting)| not_allowed(known, &setting.origin, &setting.value));
        let problems: Vec<_> = self.problems.iter().cloned().chain(refused).collect();
        if problems.is_empty() { Ok(()) } else { Err(Error::Config { problems }) }
    }

    /// Puts these settings over preset and defaults, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn resolve(mut self, entry: &Entry, algo: Algo) -> Result<Config, Error> {
        let env = entry.name;
        let own = std::mem::take(&mut self.settings);
        if let Some(preset) = preset(env, algo) {
            self.add_toml(preset, &format!("preset {env}-{}", algo.name()))?;
        }
        self.settings.extend(own);

        let given: BTreeSet<_> = self.settings.keys().cloned().collect();
        let mut config = self.over(&Config::new(env, algo), entry)?;
        if !given.contains("conv") {
            config.see_pictures(entry, |key| given.contains(key));
        }
        if let Some(batches) = entry.batches() {
            config.env.path = batches.path().into();
        }
        Ok(config)
    }

    /// Puts these settings over those of a run, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn over(mut self, base: &Config, entry: &Entry) -> Result<Config, Error> {
        for (key, ours) in [("env", base.env.name.as_str()), ("algo", base.algo.name())] {
            if let Some(Setting { value, origin, .. }) = self.settings.remove(key)
                && value.as_str() != Some(ours)
            {
                self.problems.push(format!("{origin}: {key} is {}, this run's is \"{ours}\"", in_short(&value)));
            }
        }
        let mut table = base.table()?;
        let auto_batch = self.auto_batch();
        let refused = self.apply(base.algo.algo(), &mut table);
        // What is refused keeps the value of `base`, so that the rest can be looked at.
        let mut config = Config::from_table(base.algo.algo(), table).map_err(|e| Error::config(e.to_string()))?;
        if auto_batch && let Some((samples, batch_size)) = config.algo.settings_mut().auto_batch() {
            *batch_size = samples;
        }
        let concerns = config.impossible().into_iter().chain(config.unfit(entry)).chain(config.pointless(base));
        let concerns = concerns.chain(auto::without_effect(&config, entry));
        self.problems.extend(concerns.filter(|(keys, _)| keys.iter().all(|key| !refused.contains(*key))).map(|(_, text)| text));
        if self.problems.is_empty() { Ok(config) } else { Err(Error::Config { problems: self.problems }) }
    }

    /// Moves the allowed settings into `table`.
    ///
    /// Adds a problem for each of the others, and returns their keys.
    fn apply(&mut self, algo: Algo, table: &mut Table) -> BTreeSet<String> {
        let mut refused = BTreeSet::new();
        for (key, Setting { value, origin, .. }) in std::mem::take(&mut self.settings) {
            let section = key.split_once('.').map(|(section, _)| section);
            let known = keys().find(|known| known.name == key);
            let value = match known.map(|known| known.kind) {
                Some(Kind::Int(least, _)) if is_auto_batch(&key, &value) && has_auto_batch(section) => least.into(),
                _ => value,
            };
            let problem = match known {
                None => {
                    let apt =
                        |name: &&str| name.split_once('.').is_none_or(|(section, _)| section == "env" || section == algo.name());
                    // PyTorch's name.
                    let meant = key.strip_suffix("lr").filter(|section| section.is_empty() || section.ends_with('.'));
                    let meant = meant.map_or_else(|| key.clone(), |section| format!("{section}learning_rate"));
                    let near = did_you_mean(&meant, keys().map(|known| known.name).filter(apt));
                    format!("{origin}: unknown setting \"{key}\"{near}; `rl list` shows them all")
                }
                Some(known) if !known.kind.allows(&value) => not_allowed(known, &origin, &value),
                Some(_) if section.is_some_and(|section| section != "env" && section != algo.name()) => {
                    format!("{origin}: {key} has no effect, the algorithm is {}", algo.name())
                }
                Some(known) => {
                    let table = match section {
                        Some(section) => table.get_mut(section).and_then(Value::as_table_mut),
                        None => Some(&mut *table),
                    };
                    table.map(|table| table.insert(known.field().into(), value));
                    continue;
                }
            };
            self.problems.push(problem);
            refused.insert(key);
        }
        refused
    }
}

impl Config {
    /// Chooses convolutions for pictures that the algorithm can read.
    ///
    /// Settings that are `given` stay.
    fn see_pictures(&mut self, entry: &Entry, given: impl Fn(&str) -> bool) {
        let spaces = self.wrapped(entry).spaces();
        let Some(net) = for_pictures(&self.net, &spaces.obs, &given) else { return };
        let shared = NetConfig { shared_trunk: net.shared_trunk || !given("shared_trunk"), ..net.clone() };
        let fits = |net: &NetConfig| self.algo.settings().fits(entry.name, &spaces, net).is_none();
        // A hidden layer of pictures is large, so actor and critic share it where they can.
        let candidates = if self.replays() { vec![net] } else { vec![shared, net] };
        if let Some(net) = candidates.into_iter().find(fits) {
            self.net = net;
        }
    }

    /// Reads the TOML of a run or a checkpoint.
    ///
    /// `name` is for errors. The environment is not known here, so the settings are not checked against it.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems, each with its line.
    pub fn from_toml(text: &str, name: &str) -> Result<Self, Error> {
        let mut layers = Layers::default();
        layers.add_toml(text, name)?;
        let missing = |key: &str| Error::config(format!("{name}: {key} is missing"));
        let env = layers.text("env")?.ok_or_else(|| missing("env"))?;
        let algo = layers.text("algo")?.ok_or_else(|| missing("algo"))?;
        let algo = Algo::find(&algo).map_err(|error| Error::config(format!("{name}: {error}")))?;
        layers.settings.remove("env");
        layers.settings.remove("algo");
        let mut table = Table::new();
        table.insert("env".into(), Value::Table([("name".into(), env.into())].into_iter().collect()));
        table.insert(algo.name().into(), Value::Table(Table::new()));
        layers.apply(algo, &mut table);
        if layers.problems.is_empty() {
            let config = Self::from_table(algo, table).map_err(|e| Error::config(format!("{name}: {}", e.message())))?;
            layers.problems.extend(config.impossible().into_iter().map(|(_, text)| format!("{name}: {text}")));
            if layers.problems.is_empty() {
                return Ok(config);
            }
        }
        Err(Error::Config { problems: layers.problems })
    }
}
