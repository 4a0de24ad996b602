//! Settings, each declared once.
//!
//! [`settings!`](crate::settings!) makes the struct, its defaults and its keys of one list. Constructors check their
//! configuration against the same keys as programs that read settings from text.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Error;

/// Reaction to a reward or an observation that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonfinite {
    /// The run ends with an error.
    #[default]
    Error,
    /// The episode is truncated at the step before, and the environment is reset.
    Truncate,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name, with the section before a dot.
    pub name: &'static str,
    /// Type and range.
    pub kind: Kind,
    /// First line of the setting's documentation.
    pub doc: &'static str,
    /// True if a resumed run may change the setting.
    pub resumable: bool,
}

/// A struct of settings, as [`settings!`](crate::settings!) declares it.
pub trait Settings {
    /// Names, types, ranges and descriptions of the settings.
    const KEYS: &'static [Key];
}

/// Type and range of a setting.
///
/// Numbers are compared as f32, the type in which most of them are stored.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range.
    Int(i64, i64),
    /// A finite number in a range.
    Float(f64, f64),
    /// A number in a range, or `lin_X` with X in it.
    Schedule(f64, f64),
    /// A number in a range, or "auto".
    OrAuto(f64, f64),
    /// true or false.
    Bool,
    /// One of the given texts.
    Choice(&'static [&'static str]),
    /// A text that the function accepts, with a description of such texts.
    Text(fn(&str) -> bool, &'static str),
    /// A list of layer sizes.
    Sizes,
    /// A list of [channels, kernel, stride].
    Conv,
}

/// Declares a struct of settings, with documentation, defaults and ranges.
///
/// The word `resumable` behind the range marks a setting that a resumed run may change. Serde attributes stand below the
/// documentation.
///
/// Generates the struct, `Default`, and `KEYS`. The text after the struct's name is the section of all names, with a dot.
/// The first line of a setting's documentation describes it to users of a program.
///
/// ```
/// use rl_agents::settings::Kind;
///
/// rl_agents::settings! {
///     /// Settings of an optimizer.
///     pub struct Momentum, "momentum." {
///         /// Learning rate.
///         learning_rate: f32 = 0.01, Kind::Float(0.0, 1.0), resumable;
///         /// Share of the last step in the next one.
///         share: f32 = 0.9, Kind::Float(0.0, 1.0);
///     }
/// }
/// assert_eq!((Momentum::default().share, Momentum::KEYS[1].name), (0.9, "momentum.share"));
/// ```
#[macro_export]
macro_rules! settings {
    ($(#[$attribute:meta])* pub struct $name:ident, $section:literal {
        $(
            $(#[doc = $doc:literal])+
            $(#[serde($($serde:tt)+)])?
            $field:ident: $type:ty = $default:expr, $kind:expr $(, $mark:ident)?;
        )+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                $(#[serde($($serde)+)])?
                pub $field: $type,
            )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: Self::$field(),)+ }
            }
        }

        /// Default of each setting, for files without it too.
        impl $name {
            $(
                fn $field() -> $type {
                    $default
                }
            )+
        }

        impl $crate::settings::Settings for $name {
            const KEYS: &'static [$crate::settings::Key] = $name::KEYS;
        }

        impl $name {
            /// Names, types, ranges and descriptions of the settings.
            pub const KEYS: &'static [$crate::settings::Key] = &[
                $($crate::settings::key(concat!($section, stringify!($field)), $kind, [$($doc),+][0])$(.$mark())?,)+
            ];
        }
    };
}

/// Creates a key for a setting outside of [`settings!`](crate::settings!).
#[must_use]
pub const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, doc, resumable: false }
}

/// Maximum environment steps of a run.
pub const MAX_STEPS: i64 = 1_000_000_000_000;
/// Maximum layers of a network.
const MAX_LAYERS: usize = 64;
/// Maximum units of a hidden layer.
pub const MAX_UNITS: i64 = 65_536;
/// Maximum channels, kernel and stride of a convolution.
pub const MAX_CONV: i64 = 4096;

impl Key {
    /// Marks a setting that a resumed run may change.
    #[must_use]
    pub const fn resumable(self) -> Self {
        Self { resumable: true, ..self }
    }

    /// Name without the section.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Description in a line, without a full stop.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.doc.trim().trim_end_matches('.')
    }
}

impl Kind {
    /// Allowed values, in words.
    #[must_use]
    pub fn allowed(self) -> String {
        match self {
            Self::Int(low, high) => format!("a whole number from {low} to {high}"),
            Self::Float(f64::MIN, _) => "a finite number".into(),
            Self::Float(low, high) => format!("a number from {low} to {high}"),
            Self::Schedule(low, high) => format!("a number X from {low} to {high}, or \"lin_X\""),
            Self::OrAuto(low, high) => format!("a number from {low} to {high}, or \"auto\""),
            Self::Bool => "true or false".into(),
            Self::Choice(choices) => choices.join(" or "),
            Self::Text(_, about) => about.into(),
            Self::Sizes => {
                format!("a list of at most {MAX_LAYERS} whole numbers from 1 to {MAX_UNITS}, such as [64, 64]")
            }
            Self::Conv => format!(
                "a list of at most {MAX_LAYERS} [channels, kernel, stride], whole numbers from 1 to {MAX_CONV}, such as \
                 [[16, 3, 1], [32, 3, 1]]"
            ),
        }
    }

    /// True if the setting may have this value.
    #[must_use]
    pub fn allows(self, value: &Value) -> bool {
        let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|i| i as f64));
        let within = |x: f64, low: f64, high: f64| x.is_finite() && (low as f32..=high as f32).contains(&(x as f32));
        let sizes = |value: &Value, high: i64| {
            let size = |size: &Value| size.as_integer().is_some_and(|i| (1..=high).contains(&i));
            value.as_array().is_some_and(|sizes| sizes.len() <= MAX_LAYERS && sizes.iter().all(size))
        };
        match self {
            Self::Int(low, high) => value.as_integer().is_some_and(|i| (low..=high).contains(&i)),
            Self::Float(low, high) => number(value).is_some_and(|x| within(x, low, high)),
            Self::Schedule(low, high) => {
                let start = value.as_str().and_then(|text| text.strip_prefix("lin_")).and_then(|start| start.parse().ok());
                number(value).or(start).is_some_and(|x| within(x, low, high))
            }
            Self::OrAuto(low, high) => {
                value.as_str().map_or_else(|| number(value).is_some_and(|x| within(x, low, high)), |text| text == "auto")
            }
            Self::Bool => value.is_bool(),
            Self::Choice(choices) => value.as_str().is_some_and(|text| choices.contains(&text)),
            Self::Text(accepts, _) => value.as_str().is_some_and(accepts),
            Self::Sizes => sizes(value, MAX_UNITS),
            Self::Conv => value.as_array().is_some_and(|layers| {
                let layer = |layer: &Value| layer.as_array().is_some_and(|l| l.len() == 3) && sizes(layer, MAX_CONV);
                layers.len() <= MAX_LAYERS && layers.iter().all(layer)
            }),
        }
    }
}

/// Formats a value as a user writes it: the shortest decimal form of an f32.
fn written(value: &Value) -> String {
    match value {
        Value::Float(x) if f64::from(*x as f32) == *x => format!("{:?}", *x as f32),
        other => other.to_string(),
    }
}

/// Rejects a configuration with a value that its keys do not allow.
pub(crate) fn check(keys: &[Key], config: &impl Serialize) -> Result<(), Error> {
    // Text formats of settings hold whole numbers up to 2^63 - 1, beyond every range.
    let table = Table::try_from(config).map_err(|error| Error::Range {
        name: "a setting",
        value: error.to_string(),
        allowed: format!("at most {}", i64::MAX),
    })?;
    for key in keys {
        if let Some(value) = table.get(key.field()).filter(|value| !key.kind.allows(value)) {
            return Err(Error::Range { name: key.field(), value: written(value), allowed: key.kind.allowed() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{A2cConfig, DqnConfig, NetConfig, PpoConfig};

    #[test]
    fn every_field_has_a_key_and_every_default_is_allowed() {
        let defaults = [
            (PpoConfig::KEYS, Table::try_from(PpoConfig::default())),
            (A2cConfig::KEYS, Table::try_from(A2cConfig::default())),
            (DqnConfig::KEYS, Table::try_from(DqnConfig::default())),
            (NetConfig::KEYS, Table::try_from(NetConfig { critic_hidden: Some(vec![]), ..NetConfig::default() })),
        ];
        for (keys, table) in defaults {
            let table = table.unwrap();
            let mut names: Vec<&str> = keys.iter().map(Key::field).collect();
            let mut fields: Vec<&str> = table.keys().map(String::as_str).collect();
            names.sort_unstable();
            fields.sort_unstable();
            assert_eq!(names, fields);
            check(keys, &table).unwrap();
        }
    }

    #[test]
    fn what_is_out_of_range_is_named_with_its_value_and_range() {
        let error = |config: &PpoConfig| check(PpoConfig::KEYS, config).unwrap_err().to_string();
        let ppo = PpoConfig::default();
        assert_eq!(error(&PpoConfig { gamma: 1.1, ..ppo.clone() }), "gamma is 1.1; it must be a number from 0 to 1");
        assert!(error(&PpoConfig { vf_coef: f32::NAN, ..ppo.clone() }).starts_with("vf_coef is nan; it must be"));
        assert!(error(&PpoConfig { batch_size: usize::MAX, ..ppo }).contains("at most 9223372036854775807"));
    }
}
