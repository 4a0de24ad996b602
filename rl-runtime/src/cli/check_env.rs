//! `rl check-env`.

use std::process::ExitCode;

use rl_envs::catalog::Entry;
use rl_envs::check::Outcome;
use serde_json::json;

use crate::{Error, print};

pub(super) fn run(entry: &Entry, json: bool) -> Result<ExitCode, Error> {
    let checks = entry.check()?;
    let n_failed = checks.iter().filter(|check| check.failed()).count();
    for check in &checks {
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
    }
    if json {
        print::out(&json!({"event": "check-env", "env": entry.name, "checks": checks.len(), "failed": n_failed}).to_string());
    }
    if n_failed > 0 {
        Err(Error::CheckFailed { env: entry.name.into(), n_failed, n_checks: checks.len() })
    } else {
        Ok(ExitCode::SUCCESS)
    }
}
