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
    print::out("environments");
    for entry in &envs.all {
        print::out(&format!("  {:<12} {}", entry.name, entry.about));
    }
    print::out("\nalgorithms");
    for algo in Algo::all() {
        print::out(&format!("  {:<12} {}", algo.name(), algo.about()));
    }
    print::out("\npresets (environment, * for any other, and algorithm; the rest trains with the defaults)");
    for (env, algo, _) in PRESETS {
        print::out(&format!("  {env} {}", algo.name()));
    }
    print::out("\nworkloads (--preset NAME, for any environment)");
    for (name, _) in WORKLOADS {
        print::out(&format!("  {name}"));
    }
    print::out("\nsettings (--set KEY=VALUE, or in a TOML file)");
    for key in config::keys() {
        let default = defaults.get(key.name).map(|default| format!("; default {default}")).unwrap_or_default();
        print::out(&format!("  {:<24} {}; {}{default}", key.name, key.about(), key.kind.allowed()));
    }
    Ok(ExitCode::SUCCESS)
}
