//! Kills the processes of runs at random moments: workers, the program, a website.
//!
//! `cargo xtask kills --kills N` trains in worker processes, in lock-step and first come, and in a crawl of a local website, side
//! by side. A worker that is killed is replaced, and counted; a program that is killed leaves no process behind, and is resumed;
//! a website that is killed starts again. After each kill, the run must take further steps within ten seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::chaos::mutate::Random;
use crate::process::{Process, RlProgram, children, marked, newest_checkpoint, scratch};

/// Longest time from a kill to the next steps, and to the end of orphans.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest time of a start.
const START: Duration = Duration::from_secs(60);
/// Port of the website.
const PORT: &str = "8117";

/// Name and arguments of each run.
const RUNS: [(&str, &str); 3] = [
    ("lock-step", "gym:Acrobot-v1 --envs 2 --set workers=2 --set ppo.n_steps=128 --set ppo.batch_size=64"),
    ("first come", "gym:Acrobot-v1 --envs 2 --set drive=first_come --set ppo.n_steps=128 --set ppo.batch_size=64"),
    ("crawl", "crawl --envs 8 --set ppo.n_steps=16 --set ppo.batch_size=64 --set timeout_s=5"),
];
const COMMON: &str = "--steps 1000000000 --threads 1 --set hidden=[8] --set checkpoint_every=2000 --set max_restarts=1000000";

/// A training, with the workers killed since its program started.
struct Run {
    name: &'static str,
    dir: PathBuf,
    process: Process,
    mark: String,
    starts: u32,
    killed: u64,
}

#[derive(clap::Args)]
pub(crate) struct KillsArgs {
    #[arg(long, value_name = "N")]
    kills: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Python of the workers
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: String,
    #[command(flatten)]
    program: RlProgram,
}

/// Kills, and prints the table.
pub(crate) fn run(root: &Path, args: &KillsArgs) -> Result<()> {
    let &KillsArgs { kills, ref python, .. } = args;
    let program = args.program.get(root, &["--features", "crawl"])?;
    let random = &mut Random::new(args.seed, 0);
    let dir = scratch(root, "kills")?;
    let start_site = |n: u32| {
        let mut command = Command::new(&program);
        command.args(["site", "--port", PORT, "--latency", "exp", "--latency-ms", "5"]);
        Process::start(&mut command, &dir.join(format!("site-{n}.err")))
    };
    let mut site = start_site(0)?;
    let start = |run: usize, starts: u32| {
        let ((name, args), dir) = (RUNS[run], dir.join(run.to_string()));
        let mut command = Command::new(&program);
        if newest_checkpoint(&dir).is_some() {
            command.arg("train").arg("--resume").arg(&dir);
        } else {
            let _ = fs::remove_dir_all(&dir);
            command.arg("train").args(args.split(' ')).args(COMMON.split(' ')).arg("--run-dir").arg(&dir);
            if name == "crawl" {
                command.args(["--set", &format!("env.url=http://127.0.0.1:{PORT}/{{}}/")]);
            }
        }
        let mark = format!("RL_KILLS={}-{run}-{starts}", std::process::id());
        command
            .args(if name == "crawl" { vec![] } else { vec!["--python", &python] })
            .env("RL_KILLS", &mark["RL_KILLS=".len()..]);
        let process = Process::start(&mut command, &dir.with_extension(format!("{starts}.err")))?;
        let mut run = Run { name, dir, process, mark, starts, killed: 0 };
        // A worker that dies before the first step is an environment that cannot be opened.
        let steps = run.steps();
        run.progress(steps, START)?;
        anyhow::Ok(run)
    };
    let mut runs = (0..RUNS.len()).map(|run| start(run, 0)).collect::<Result<Vec<_>>>()?;
    let (mut counts, mut slowest) = ([0u32; 3], Duration::ZERO);
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(random.below(1000) as u64));
        let (i, victim) = (random.below(RUNS.len()), random.below(3));
        let begin = Instant::now();
        let is_crawl = runs[i].name == "crawl";
        if victim == 0 {
            runs[i].process.kill();
            runs[i].without_orphans().with_context(|| format!("kill {kill}"))?;
            slowest = slowest.max(begin.elapsed());
            runs[i] = start(i, runs[i].starts + 1)?;
            counts[0] += 1;
        } else if is_crawl {
            site.kill();
            site = start_site(kill + 1)?;
            let steps = runs[i].steps();
            runs[i].progress(steps, LIMIT).with_context(|| format!("kill {kill}"))?;
            slowest = slowest.max(begin.elapsed());
            counts[1] += 1;
        } else {
            let workers = children(runs[i].process.id());
            ensure!(!workers.is_empty(), "kill {kill}: {} has no workers", runs[i].name);
            let worker = workers[random.below(workers.len())];
            ensure!(
                Command::new("kill").args(["-KILL", &worker.to_string()]).status()?.success(),
                "kill {kill}: worker {worker}"
            );
            runs[i].killed += 1;
            let steps = runs[i].steps();
            runs[i].progress(steps, LIMIT).with_context(|| format!("kill {kill}"))?;
            if runs[i].name == "first come" {
                runs[i].counted(begin).with_context(|| format!("kill {kill}"))?;
            }
            slowest = slowest.max(begin.elapsed());
            counts[2] += 1;
        }
    }
    for run in &mut runs {
        run.process.terminate()?;
        let status = run.process.wait(LIMIT)?;
        ensure!(status.code() == Some(130), "{}: {status}\n{}", run.name, run.process.complaint());
        run.without_orphans()?;
        if run.name == "lock-step" && run.killed > 0 {
            let (said, expected) =
                (run.process.complaint(), format!("{} episodes were truncated because a worker failed", run.killed));
            ensure!(said.contains(&expected), "{expected}, but it says\n{said}");
        }
    }
    drop(site);
    let _ = fs::remove_dir_all(&dir);
    let [programs, sites, workers] = counts;
    println!(
        "{kills} kills: {workers} workers, {programs} programs, {sites} sites; the longest until further steps, or until the last process \
         had ended, took {:.1} s; every worker was replaced and counted",
        slowest.as_secs_f64()
    );
    Ok(())
}

impl Run {
    /// Env steps of the last row of metrics.
    fn steps(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("metrics.csv")).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.filter_map(|line| line.split(',').next()?.parse().ok()).next_back().unwrap_or(0)
    }

    /// Waits for more than `steps` env steps.
    fn progress(&mut self, steps: u64, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        while self.steps() <= steps {
            if let Some(status) = self.process.ended()? {
                anyhow::bail!("{}: ended, {status}\n{}", self.name, self.process.complaint());
            }
            ensure!(
                begin.elapsed() < limit,
                "{}: no steps within {} s\n{}",
                self.name,
                limit.as_secs(),
                self.process.complaint()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for the end of whatever the program has started.
    fn without_orphans(&self) -> Result<()> {
        let begin = Instant::now();
        while let Some(left) = marked(&self.mark).first() {
            ensure!(begin.elapsed() < LIMIT, "process {left} outlives the program of {}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until the metrics count every worker that was killed.
    fn counted(&self, begin: Instant) -> Result<()> {
        loop {
            let text = fs::read_to_string(self.dir.join("metrics.csv"))?;
            let column = text.lines().next().and_then(|header| header.split(',').position(|name| name == "faults/failures"));
            let last = text.split_inclusive('\n').rfind(|line| line.ends_with('\n')).unwrap_or_default();
            let found = column.and_then(|column| last.split(',').nth(column)?.parse::<f64>().ok()).unwrap_or(0.0);
            if found == self.killed as f64 {
                return Ok(());
            }
            let (killed, complaint) = (self.killed, self.process.complaint());
            ensure!(begin.elapsed() < LIMIT, "{}: {killed} workers were killed, {found} counted\n{complaint}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
