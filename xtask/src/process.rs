//! The `rl` program as a child process, with signals and with limits.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The program that a harness runs.
#[derive(clap::Args)]
pub(crate) struct RlProgram {
    /// Program to run [default: the release build]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

impl RlProgram {
    /// Returns the program that was given, or builds the release binary.
    ///
    /// `features` are arguments of the build.
    pub(crate) fn get(&self, root: &Path, features: &[&str]) -> Result<PathBuf> {
        if let Some(path) = &self.program {
            return fs::canonicalize(root.join(path)).with_context(|| path.display().to_string());
        }
        crate::cargo(root, &[&["build", "--release", "--package", "rl-runtime", "--bin", "rl"], features].concat(), &[])?;
        Ok(root.join("target/release/rl"))
    }
}

/// Child process, killed on drop.
pub(crate) struct Process {
    child: Child,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command`, discarding stdout and writing stderr to the file `stderr`.
    pub(crate) fn start(command: &mut Command, stderr: &Path) -> Result<Self> {
        let file = File::create(stderr).with_context(|| stderr.display().to_string())?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        Ok(Self { child: child.with_context(|| format!("{command:?}"))?, stderr: stderr.into() })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the exit status if the process ends within `limit`.
    pub(crate) fn ended_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || begin.elapsed() > limit {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the exit status; kills the process and fails after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = self.ended_within(limit)?;
        self.kill();
        status.with_context(|| format!("the process did not end within {} s", limit.as_secs()))
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) -> Result<()> {
        signal(self.id(), "TERM")
    }

    /// Sends SIGKILL and waits.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the process's stderr, up to a MiB.
    pub(crate) fn stderr(&self) -> String {
        let mut bytes = Vec::new();
        let _ = File::open(&self.stderr).map(|file| file.take(1 << 20).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the end of the process's stderr.
    pub(crate) fn complaint(&self) -> String {
        let text = self.stderr();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a process the signal `name`, for instance `TERM`.
pub(crate) fn signal(id: u32, name: &str) -> Result<()> {
    let status =
        Command::new("kill").args([&format!("-{name}"), &id.to_string()]).stderr(Stdio::null()).status().context("kill")?;
    if status.success() { Ok(()) } else { bail!("kill -{name} {id} failed") }
}

/// Processes of this machine.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State and parent of a process.
fn stat(id: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ');
    Some((fields.next()?.into(), fields.next()?.parse().ok()?))
}

/// Running children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    processes().filter(|&id| stat(id).is_some_and(|(state, of)| of == parent && state != "Z")).collect()
}

/// Running processes with the environment variable `mark`, `NAME=value`.
///
/// Descendants inherit it, in whichever group or session they are. Those without variables may have the value as an argument.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let value = mark.split_once('=').map_or(mark, |(_, value)| value);
    let has_mark = |id: &u32| {
        let has = |file: &str, text: &str| {
            let bytes = fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
            bytes.split(|&byte| byte == 0).any(|part| part == text.as_bytes())
        };
        has("environ", mark) || has("cmdline", value)
    };
    processes().filter(has_mark).filter(|&id| stat(id).is_some_and(|(state, _)| state != "Z")).collect()
}

/// Mark of run `index` of a harness, for the variable `RL_MARK`.
///
/// A number, which `sleep` takes as an argument.
pub(crate) fn mark(index: u64) -> String {
    format!("RL_MARK=0.{:08}{index:08}", std::process::id())
}

/// Waits up to `limit` for the end of all processes with `mark`.
///
/// Kills those that are left, and returns their command lines.
pub(crate) fn left(mark: &str, limit: Duration) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let ids = marked(mark);
        if ids.is_empty() || begin.elapsed() > limit {
            let line = |id: &u32| {
                let bytes = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_string()
            };
            let lines = ids.iter().map(line).collect();
            // One that has ended in between needs no signal.
            ids.iter().for_each(|&id| drop(signal(id, "KILL")));
            return lines;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a number of a process's `/proc` status, for instance `VmRSS:` in KiB.
pub(crate) fn status(id: u32, name: &str) -> Result<u32> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{name} in /proc"))?;
    line.split_whitespace().next().and_then(|number| number.parse().ok()).with_context(|| format!("{name}{line}"))
}

/// Energy that the processor's package has used, in joules.
///
/// `None` where the machine does not report it.
pub(crate) fn energy_j() -> Option<f64> {
    let microjoules: f64 = fs::read_to_string("/sys/class/powercap/intel-rapl:0/energy_uj").ok()?.trim().parse().ok()?;
    Some(microjoules / 1e6)
}

/// Creates an empty directory for this process, in memory if possible.
///
/// `rl` syncs every file that it saves, which is slow on a disk.
pub(crate) fn scratch(root: &Path, name: &str) -> Result<PathBuf> {
    let (shared, target) = (Path::new("/dev/shm"), root.join("target"));
    let dir = if shared.is_dir() { shared } else { &target }.join(format!("xtask-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Returns processor, cores and commit, for records.
///
/// Also says that files other than records have changes.
pub(crate) fn machine(root: &Path) -> String {
    let git = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root).output();
    let mut commit = git.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let status =
        Command::new("git").args(["status", "--porcelain", "--untracked-files=no", "--", ":!bench"]).current_dir(root).output();
    if status.is_ok_and(|output| !output.stdout.is_empty()) {
        commit += " with changes";
    }
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| info.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim()));
    let name = field("model name").unwrap_or("unknown processor");
    // Virtual machines hide the generation in the name.
    let [family, model] = ["cpu family", "model\t"].map(|name| field(name).unwrap_or("unknown"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name} (family {family}, model {model}), {cores} cores, commit {commit}")
}

/// Returns the newest checkpoint of a run and its environment steps.
pub(crate) fn newest_checkpoint(run: &Path) -> Option<(PathBuf, u64)> {
    let entries = fs::read_dir(run.join("checkpoints")).ok()?;
    let steps = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("ckpt-")?.parse().ok();
    entries.flatten().filter_map(|entry| steps(&entry.path()).map(|n| (entry.path(), n))).max_by_key(|(_, n)| *n)
}
