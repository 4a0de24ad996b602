//! `rl list`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::json;
use toml::Value;

use crate::cli::envs::Envs;
use crate::config::{self, PRESETS, WORKLOADS};
use crate::{Algo, Config, Error, print};

pub(crate) fn run(envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    let defaults: BTreeMap<String, Value> =
        Algo::all().into_iter().rev().flat_map(|algo| Config::new("cartpole", algo).settings()).collect();
    if json {
        for entry in &envs.all {
            print::out(&json!({"event": "environment", "name": entry.name, "about": entry.about}).to_string());
        }
        for algo in Algo::all() {
            print::out(&json!({"event": "algorithm", "name": algo.name(), "about": algo.about()}).to_string());
        }
        for (env, algo, _) in PRESETS {
            print::out(&json!({"event": "preset", "env": env, "algo": algo.name()}).to_string());
        }
        for (name, _) in WORKLOADS {
            print::out(&json!({"event": "workload", "name": name}).to_string());
        }
        for key in config::keys() {
            let (allowed, default) = (key.kind.allowed(), defaults.get(key.name));
            let setting =
                json!({"event": "setting", "name": key.name, "allowed": allowed, "default": default, "about": key.about()});
            print::out(&setting.to_string());
        }
        print::out(&json!({"event": "list"}).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    table("environments", envs.all.iter().map(|entry| (entry.name, entry.about.to_string())));
    table("\nalgorithms", Algo::all().into_iter().map(|algo| (algo.name(), algo.about().to_string())));
    let presets = PRESETS.iter().map(|(env, algo, _)| (*env, algo.name().to_string()));
    table("\npresets (environment, * for any other, and algorithm; the rest trains with the defaults)", presets);
    table("\nworkloads (--preset NAME, for any environment)", WORKLOADS.iter().map(|(name, _)| (*name, String::new())));
    let setting = |key: &config::Key| {
        let default = defaults.get(key.name).map(|default| format!("; default {default}")).unwrap_or_default();
        (key.name, format!("{}; {}{default}", key.about(), key.kind.allowed()))
    };
    table("\nsettings (--set KEY=VALUE, or in a TOML file)", config::keys().map(setting));
    Ok(ExitCode::SUCCESS)
}

/// Prints names and what they are, in two columns.
fn table<'a>(title: &str, rows: impl Iterator<Item = (&'a str, String)>) {
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    print::out(title);
    for (name, about) in rows {
        print::out(format!("  {name:<width$}  {about}").trim_end());
    }
}
