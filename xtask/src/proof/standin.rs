//! The stand-in driver: programs, suites under each schedule, removed waits.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::checks::source::read_sources;

/// Orders in which the stand-in runs queued work.
const SCHEDULES: [&str; 5] = ["eager", "latest", "random:1", "random:2", "random:3"];
/// The schedule that `cargo xtask test` runs in addition to the default one.
const IN_CI: &str = "random:1";
/// Tests that use `Device::for_tests`, and queue work.
const TESTS: [&str; 4] = ["copies", "faults", "on_device", "steps"];
/// Those in which the host waits for each launch: a schedule has little to change.
const WAITING: [&str; 2] = ["modules", "twins"];

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct StandinArgs {
    /// Run the device tests on the stand-in driver under each of its schedules
    #[arg(long)]
    schedules: bool,
    /// Remove each wait of rl-cuda in turn: a test must notice it
    #[arg(long)]
    waits: bool,
    /// Command, such as `rl bench env cartpole --envs 64 --device cuda --seconds 1`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs a command, or the tests under all schedules or without waits.
pub(crate) fn run(root: &Path, args: &StandinArgs) -> Result<()> {
    if args.schedules {
        return SCHEDULES.iter().try_for_each(|schedule| {
            suites(root, schedule, &[&TESTS[..], &WAITING].concat())?;
            under(root, schedule, &["--test", "allocations"])?;
            under(root, schedule, &["--lib", "--", "device_", "device::", "corners", "driver::kernel::", "measure::"])
        });
    }
    if args.waits { remove_waits(root) } else { command(root, &args.command) }
}

/// Runs the suites under the schedule of `cargo xtask test`.
pub(crate) fn check(root: &Path) -> Result<()> {
    suites(root, IN_CI, &TESTS)
}

/// Runs suites under a schedule.
fn suites(root: &Path, schedule: &str, tests: &[&str]) -> Result<()> {
    println!("\n==> stand-in driver, schedule {schedule}");
    let tests: Vec<&str> = tests.iter().flat_map(|test| ["--test", test]).collect();
    under(root, schedule, &tests)
}

/// Runs tests of the workspace under a schedule.
fn under(root: &Path, schedule: &str, tests: &[&str]) -> Result<()> {
    let args = [&["test", "--workspace", "--quiet"], tests].concat();
    crate::cargo(root, &args, &[("RL_STANDIN_SCHEDULE", schedule), ("RL_REQUIRE_STANDIN", "1"), ("RL_SKIP_CXX", "1")])
}

/// Builds the stand-in; returns a folder with it.
///
/// It stands there under the names of the driver and of NVML.
pub(crate) fn folder(root: &Path) -> Result<PathBuf> {
    crate::cargo(root, &["build", "--quiet", "--package", "standin"], &[])?;
    let folder = root.join("target/standin");
    fs::create_dir_all(&folder)?;
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        let draft = folder.join(format!("{name}.draft"));
        fs::copy(root.join("target/debug/libstandin.so"), &draft)?;
        fs::rename(draft, folder.join(name))?; // a program that runs keeps its driver
    }
    Ok(folder)
}

/// Runs a command whose driver is the stand-in; `rl` is this workspace's program.
fn command(root: &Path, args: &[String]) -> Result<()> {
    let folder = folder(root)?;
    let mut program = PathBuf::from(&args[0]);
    if args[0] == "rl" {
        // As the tests build it: other features would compile everything again.
        crate::cargo(root, &["test", "--quiet", "--workspace", "--no-run", "--bin", "rl"], &[])?;
        program = root.join("target/debug/rl");
    }
    let mut path: OsString = folder.into();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(before);
    }
    eprintln!("the stand-in driver takes the place of a GPU: results are checked, and speed means nothing");
    let status = Command::new(&program).args(&args[1..]).env("LD_LIBRARY_PATH", path).current_dir(root).status();
    let status = status.with_context(|| program.display().to_string())?;
    ensure!(status.success(), "{} ended with {status}", args.join(" "));
    Ok(())
}

/// A wait, a record or a synchronization in rl-cuda's source.
struct Wait {
    file: &'static str,
    text: &'static str,
    /// Text without the wait; `None` where nothing is left to compile.
    without: Option<&'static str>,
    /// Why no test notices that it is missing; `None` if a test does.
    reason: Option<&'static str>,
}

const fn noticed(file: &'static str, text: &'static str, without: &'static str) -> Wait {
    Wait { file, text, without: Some(without), reason: None }
}

const fn unnoticed(file: &'static str, text: &'static str, without: &'static str, reason: &'static str) -> Wait {
    Wait { file, text, without: Some(without), reason: Some(reason) }
}

const TIMING: &str = "orders nothing: begins or ends a measurement of time";

/// Every wait, record and synchronization of rl-cuda.
const WAITS: &[Wait] = &[
    noticed("buffer.rs", "cleared.and_then(|()| context.synchronize())", "cleared"),
    unnoticed(
        "allocation.rs",
        "if context.synchronize().is_ok() {",
        "if context.bind_to_thread().is_ok() {",
        "cuMemFree waits for the device itself; the explicit wait finds a lost device before memory is freed",
    ),
    noticed(
        "device.rs",
        "context.synchronize().map_err(Error::driver(\"waiting for the device\"))",
        "{ let _ = context; Ok(()) }",
    ),
    noticed("pinned.rs", "end.synchronize().inspect_err(|_| self.is_lost = true)", "{ let _ = end; Ok(()) }"),
    noticed("pinned.rs", "self.copies().wait()", "Ok(())"),
    noticed("pinned.rs", "            copies.wait()?;\n        }", "        }"),
    noticed("pinned.rs", "self.wait()?;", ""),
    noticed("pinned.rs", "        copies.wait()?;\n        copies", "        copies"),
    Wait { file: "pinned.rs", text: "self.record().or_else(", without: None, reason: Some("its callers are below") },
    unnoticed(
        "pinned.rs",
        "self.synchronize()?;\n            Err(error)",
        "Err(error)",
        "only where an event cannot be recorded",
    ),
    noticed("pinned.rs", "if self.wait().is_err() || self.copies().is_lost {", "if false {"),
    noticed(
        "pinned.rs",
        ".map_err(Error::driver(\"copying to the device\"))?;\n            self.end_of_copy().map(Some)",
        ".map_err(Error::driver(\"copying to the device\"))?;\n            Ok(None)",
    ),
    noticed(
        "pinned.rs",
        ".map_err(Error::driver(\"copying from the device\"))?;\n            self.end_of_copy().map(Some)",
        ".map_err(Error::driver(\"copying from the device\"))?;\n            Ok(None)",
    ),
    noticed("stream.rs", "event.synchronize().map_err(Error::driver(\"waiting for an event\"))", "{ let _ = event; Ok(()) }"),
    unnoticed("stream.rs", "later.synchronize()?;", "", "cudarc waits for both events before it asks for the time between them"),
    noticed("stream.rs", "|stream| stream.synchronize().map_err(Error::driver(\"waiting for a stream\"))", "|_| Ok(())"),
    noticed("stream.rs", "stream.record_event(Some(", "stream.context().new_event(Some("),
    noticed(
        "stream.rs",
        "stream.wait(event).map_err(Error::driver(\"making a stream wait\"))",
        "{ let _ = (stream, event); Ok(()) }",
    ),
    noticed(
        "stream.rs",
        ".map_err(Error::driver(\"copying to the device\"))?;\n                self.synchronize()",
        ".map_err(Error::driver(\"copying to the device\"))",
    ),
    unnoticed(
        "stream.rs",
        ".map_err(Error::driver(\"copying from the device\"))?;\n                self.synchronize()",
        ".map_err(Error::driver(\"copying from the device\"))",
        "a copy to pageable memory returns when it is complete (CUDA driver API, API synchronization behavior)",
    ),
    noticed("host.rs", "if self.elsewhere {\n            self.device.synchronize()?;", "if self.elsewhere {"),
    noticed("vec_env.rs", "self.device.synchronize()?;\n        let mut words", "let mut words"),
    noticed("host.rs", "self.device.synchronize()?;\n            let stream", "let stream"),
    unnoticed("measure.rs", "stream.synchronize()?;\n        let begin", "let begin", TIMING),
    Wait { file: "measure.rs", text: "let begin = stream.record()?;", without: None, reason: Some(TIMING) },
    Wait { file: "measure.rs", text: "_to(&stream.record()?)?", without: None, reason: Some(TIMING) },
    unnoticed("measure.rs", "second.wait(&stream.record()?)?;", "", TIMING),
    unnoticed("measure.rs", "stream.wait(&second.record()?)", "Ok(())", TIMING),
];

/// Calls that wait, record or synchronize.
const CALLS: [&str; 4] = [".synchronize()", ".record()", ".record_event(", ".wait("];

fn calls(text: &str) -> usize {
    CALLS.iter().map(|call| text.matches(call).count()).sum()
}

/// Fails unless [`WAITS`] names every call of rl-cuda's source that waits.
///
/// Each by a text that is there once.
fn complete(root: &Path) -> Result<()> {
    for source in read_sources(root, "rl-cuda/src")? {
        let file = source.path.rsplit('/').next().unwrap_or_default();
        let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
        let listed: usize = WAITS.iter().filter(|wait| wait.file == file).map(|wait| calls(wait.text)).sum();
        ensure!(
            calls(&code) == listed,
            "{}: {} calls wait, but xtask/src/proof/standin.rs lists {listed}",
            source.path,
            calls(&code)
        );
        let text = fs::read_to_string(root.join(&source.path))?;
        for wait in WAITS.iter().filter(|wait| wait.file == file) {
            ensure!(text.matches(wait.text).count() == 1, "{} has not exactly one {:?}", source.path, wait.text);
        }
    }
    Ok(())
}

/// Removes each wait in a copy of the source; fails if no test notices it.
fn remove_waits(root: &Path) -> Result<()> {
    complete(root)?;
    let copy = root.join("target/waits");
    fs::create_dir_all(copy.join("xtask"))?;
    for folder in ["rl-envs", "rl-cuda", "xtask/standin"] {
        let (from, to) = (root.join(folder), copy.join(folder));
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        let status = Command::new("cp").arg("-r").arg(&from).arg(&to).status().context("cp")?;
        ensure!(status.success(), "{} cannot be copied", from.display());
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let members = manifest.lines().find(|line| line.starts_with("members")).context("Cargo.toml has no members")?;
    let manifest = manifest.replace(members, "members = [\"rl-envs\", \"rl-cuda\", \"xtask/standin\"]");
    let without_default = |line: &&str| !line.starts_with("default-members");
    let manifest: String = manifest.lines().filter(without_default).map(|line| format!("{line}\n")).collect();
    fs::write(copy.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
    let test = || -> Result<bool> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut command = Command::new(cargo);
        command.args("test --quiet --offline --package rl-cuda --lib --test copies --test steps".split(' ')).current_dir(&copy);
        // A test that frees memory waits for the work of the tests beside it.
        command.args(["--", "--test-threads=1"]);
        command.env("CARGO_TARGET_DIR", copy.join("target")).env("RL_SKIP_CXX", "1").env("RL_REQUIRE_STANDIN", "1");
        let output = command.output().context("cargo")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!said.contains("could not compile"), "{said}");
        Ok(output.status.success())
    };
    ensure!(test()?, "the tests fail before any wait is removed: see target/waits");
    let (mut problems, sources) = (Vec::new(), read_sources(&copy, "rl-cuda/src")?);
    for Wait { file, text, without, reason } in WAITS {
        let Some(without) = without else { continue };
        let source = sources.iter().find(|source| source.path.ends_with(&format!("/{file}")));
        let path = copy.join(&source.with_context(|| format!("rl-cuda has no {file}"))?.path);
        let before = fs::read_to_string(&path)?;
        fs::write(&path, before.replace(text, without))?;
        let is_noticed = !test().with_context(|| format!("{file} without {text:?}"))?;
        fs::write(&path, before)?;
        println!("{file}: {text:?}: {}", if is_noticed { "noticed" } else { reason.unwrap_or("NOT NOTICED") });
        if is_noticed == reason.is_some() {
            problems.push(format!("{file}: {text:?} is{} noticed", if is_noticed { "" } else { " not" }));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_of_the_device_is_in_the_table() {
        complete(&crate::root()).unwrap();
    }
}
