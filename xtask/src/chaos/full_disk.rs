//! Runs on a full disk.
//!
//! `cargo xtask full-disk` mounts a file system of 1 MiB, or limits the size of files where mounting is not allowed. It fills the
//! disk at the start, while saving, while logging and before resuming. The run must end with a documented exit code and without a
//! panic, its last good checkpoint must load and be unchanged, and no half-written file may stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{Process, RlProgram, newest_checkpoint};

const LIMIT: Duration = Duration::from_secs(120);
const SMALL: &str = "train cartpole --threads 1 --set hidden=[16] --set n_envs=2 --set ppo.n_steps=16 --set ppo.batch_size=32 --set \
                     eval_episodes=1 --set keep_checkpoints=1000 --set checkpoint_every=32";

/// Directory with little space.
struct Disk {
    path: PathBuf,
    mounted: bool,
}

impl Disk {
    /// Mounts a file system of 1 MiB at `path`, if allowed.
    fn mount(path: &Path) -> Result<Self> {
        let _ = Command::new("umount").arg(path).output();
        fs::create_dir_all(path)?;
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(path).output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        if !mounted {
            println!("cannot mount a file system here: limiting files to 16 KiB instead");
        }
        Ok(Self { path: path.into(), mounted })
    }

    /// Deletes all contents.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        Ok(())
    }

    /// Fills the disk until `leave` bytes are free.
    fn fill(&self, leave: usize) -> Result<()> {
        if self.mounted {
            let filler = self.path.join("filler");
            let mut size = 1 << 20;
            while size > 0 && fs::write(&filler, vec![0; size]).is_err() {
                size -= 4096;
            }
            fs::write(&filler, vec![0; size.saturating_sub(leave)])?;
        }
        Ok(())
    }

    /// Frees the space again.
    fn free(&self) -> Result<()> {
        if self.mounted { fs::remove_file(self.path.join("filler")).context("filler") } else { Ok(()) }
    }

    /// Runs `rl`; with `full` and nothing mounted, files are limited to 16 KiB.
    fn rl(&self, program: &Path, args: &str, stderr: &Path, full: bool) -> Result<(Option<i32>, String)> {
        let limit = if full && !self.mounted { "trap '' XFSZ; ulimit -f 32; " } else { "" };
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}exec \"$0\" \"$@\"")]).arg(program).args(args.split_whitespace());
        let mut process = Process::start(command.current_dir(&self.path), stderr)?;
        let status = process.wait(LIMIT)?;
        Ok((status.code(), process.complaint()))
    }

    /// Returns the names under `run` of files whose write was interrupted.
    fn leftovers(&self, run: &str) -> Vec<String> {
        let dirs = [self.path.clone(), self.path.join(run), self.path.join(run).join("checkpoints")];
        let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".tmp") || name.contains(".part") || name.contains("draft")).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg(&self.path).output();
        }
    }
}

/// Name of a case, and its function, which returns the exit code.
type DiskCase = (&'static str, fn(&Disk, &Path, &Path) -> Result<Option<i32>>);

const CASES: [DiskCase; 5] = [
    ("full at the start", start),
    ("full while saving", saving),
    ("full while logging, the log on it too", logging),
    ("full at resume", resume),
    ("full at resume, then made room", room),
];

/// Runs every case and prints the table.
pub(crate) fn run(root: &Path, program: &RlProgram) -> Result<()> {
    let program = program.get(root, &[])?;
    let dir = root.join("target/full-disk");
    let disk = Disk::mount(&dir.join("disk"))?;
    let err = dir.join("err");
    let mut failed = 0;
    println!("| disk | exit | |\n|---|---|---|");
    for (name, case) in CASES {
        disk.clear()?;
        match case(&disk, &program, &err) {
            Ok(code) => println!("| {name} | {} | as documented |", code.map_or("signal".into(), |code| code.to_string())),
            Err(error) => {
                failed += 1;
                println!("| {name} | | FAILED: {error:#} |");
            }
        }
    }
    ensure!(failed == 0, "{failed} of {} cases failed", CASES.len());
    Ok(())
}

/// Checks exit code, stderr, leftovers, and that the newest checkpoint loads.
fn judge(disk: &Disk, program: &Path, err: &Path, code: Option<i32>, stderr: &str, allowed: &[i32]) -> Result<Option<i32>> {
    ensure!(!stderr.contains("panicked at"), "{stderr}");
    ensure!(code.is_some_and(|code| allowed.contains(&code)), "exit {code:?} instead of {allowed:?}: {stderr}");
    let leftovers = disk.leftovers("run");
    ensure!(leftovers.is_empty(), "left behind: {}", leftovers.join(", "));
    if newest_checkpoint(&disk.path.join("run")).is_some() {
        let (evaluated, stderr) = disk.rl(program, "eval run --episodes 1", err, false)?;
        ensure!(evaluated == Some(0), "the last checkpoint does not load: {stderr}");
    }
    Ok(code)
}

fn start(disk: &Disk, program: &Path, err: &Path) -> Result<Option<i32>> {
    disk.fill(0)?;
    let (code, stderr) = disk.rl(program, &format!("{SMALL} --steps 64 --run-dir run"), err, true)?;
    if !disk.mounted {
        return judge(disk, program, err, code, &stderr, &[0, 1]);
    }
    ensure!(!disk.path.join("run").exists(), "a run that could not start left its directory behind: {stderr}");
    judge(disk, program, err, code, &stderr, &[1])
}

fn saving(disk: &Disk, program: &Path, err: &Path) -> Result<Option<i32>> {
    let (code, stderr) = disk.rl(program, &format!("{SMALL} --steps 100000 --run-dir run"), err, true)?;
    ensure!(stderr.contains("checkpoint"), "stderr does not mention checkpoints: {stderr}");
    judge(disk, program, err, code, &stderr, &[1])
}

fn logging(disk: &Disk, program: &Path, _: &Path) -> Result<Option<i32>> {
    disk.fill(96 * 1024)?;
    let err = disk.path.join("log");
    let (code, stderr) = disk.rl(
        program,
        &format!("{SMALL} --set log_interval=1 --set checkpoint_every=20000 --steps 40000 --run-dir run"),
        &err,
        true,
    )?;
    judge(disk, program, &disk.path.with_extension("err"), code, &stderr, &[0, 1])
}

/// Saves a run, then resumes it on a full disk.
fn resume(disk: &Disk, program: &Path, err: &Path) -> Result<Option<i32>> {
    let (code, stderr) = disk.rl(program, &format!("{SMALL} --steps 64 --run-dir run"), err, false)?;
    ensure!(code == Some(0), "{stderr}");
    let (checkpoint, _) = newest_checkpoint(&disk.path.join("run")).context("no checkpoint")?;
    let before = fs::read(checkpoint.join("params.safetensors"))?;
    disk.fill(0)?;
    let (code, stderr) = disk.rl(program, "train --resume run --steps 640", err, true)?;
    ensure!(fs::read(checkpoint.join("params.safetensors"))? == before, "the last good checkpoint has changed");
    judge(disk, program, err, code, &stderr, if disk.mounted { &[1] } else { &[0, 1] })
}

fn room(disk: &Disk, program: &Path, err: &Path) -> Result<Option<i32>> {
    resume(disk, program, err)?;
    disk.free()?;
    let (code, stderr) = disk.rl(program, "train --resume run --steps 640", err, false)?;
    judge(disk, program, err, code, &stderr, &[0])
}
