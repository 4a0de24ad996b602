//! Material of the fuzzer, and inputs that are mutations of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::chaos::mutate::{
    NUMBERS, Random, mutate_bytes, mutate_json, mutate_json_text, mutate_numbers, mutate_safetensors, plausible,
};
use crate::process::newest_checkpoint;

/// File that the commands of a foreign run make.
pub(crate) const MARKER: &str = "MARKER";
/// Directory that no input may change.
pub(crate) const OUTSIDE: &str = "outside/";
/// Environment of planned faults, for the shell.
pub(crate) const WORKER: &str = "exec:\"$RL_XTASK\" worker plan.json";
/// Configurations of the corpus; two at a time are spliced and altered by line.
pub(crate) const TOMLS: [&str; 5] = ["ppo.toml", "a2c.toml", "dqn.toml", "td3.toml", "snake.toml"];

/// Runs of the corpus: name and arguments.
const RUNS: [(&str, &str); 9] = [
    (
        "ppo",
        "cartpole --set n_envs=4 --set ppo.n_steps=8 --set ppo.batch_size=16 --set normalize_obs=true --set ppo.normalize_reward=true",
    ),
    ("a2c", "pendulum --algo a2c --set n_envs=2 --set a2c.n_steps=8"),
    (
        "memory",
        "cartpole --algo a2c --set n_envs=2 --set a2c.n_steps=8 --set memory=lstm --set memory_size=3 --set env.hide=velocities",
    ),
    ("overlapped", "cartpole --algo a2c --set n_envs=2 --set a2c.n_steps=8 --set pipeline=overlapped --set max_lag=2"),
    (
        "dqn",
        "mountain_car --algo dqn --set n_envs=2 --set dqn.buffer_size=60 --set dqn.learning_starts=16 --set dqn.train_freq=4 --set \
         dqn.gradient_steps=1 --set dqn.batch_size=8 --set dqn.prioritized=true --set \
         dqn.acted_priorities=true --set dqn.save_replay=true",
    ),
    (
        "frames",
        "breakout --algo dqn --set conv=[] --set n_envs=2 --set dqn.buffer_size=60 --set dqn.learning_starts=16 --set dqn.train_freq=4 --set \
         dqn.gradient_steps=1 --set dqn.batch_size=8 --set dqn.save_replay=true --set dqn.n_steps=3",
    ),
    (
        "sac",
        "pendulum --algo sac --set n_envs=2 --set sac.buffer_size=60 --set sac.learning_starts=16 --set sac.batch_size=8 --set \
         sac.save_replay=true",
    ),
    (
        "td3",
        "pendulum --algo td3 --set n_envs=2 --set td3.buffer_size=60 --set td3.learning_starts=16 --set td3.batch_size=8 --set \
         td3.prioritized=true --set td3.save_replay=true --set td3.action_noise=ornstein_uhlenbeck",
    ),
    ("snake", "snake --set n_envs=2 --set conv=[[2,3,1]] --set ppo.n_steps=16 --set ppo.batch_size=16"),
];

/// Environments of recordings.
const RECORDED: [&str; 4] = ["cartpole", "mountain_car", "snake", "breakout"];

/// Sweep of the corpus.
pub(crate) const SWEEP: &str = "env = \"cartpole\"\nsteps = 64\nn_envs = 2\nhidden = [4]\neval_episodes = 1\nthreads = 1\nppo.n_steps = 8\n\
                     ppo.batch_size = 16\n\n[sweep]\ntrials = 2\n\n[sweep.settings]\n\"ppo.learning_rate\" = [1e-3, 1e-4]\n";

/// Greeting of the run whose environment is a worker, without faults.
pub(crate) const PLAN: &str = r#"{"greeting": {"protocol": 1, "worker": "a walk", "action": {"kind": "discrete", "n": 2},
    "observation": {"dtype": "f32", "shape": [1], "low": [-5], "high": [5]}}, "faults": [], "processes": [0, 0]}"#;

pub(crate) type FileList = Vec<(String, Vec<u8>)>;

/// Run of the corpus: the files under `run`, and the path of the newest checkpoint.
pub(crate) struct CorpusRun {
    pub(crate) files: FileList,
    pub(crate) checkpoint: String,
}

/// Material for inputs.
pub(crate) struct Corpus {
    pub(crate) tomls: Vec<String>,
    pub(crate) lines: Vec<Vec<String>>,
    pub(crate) traces: Vec<(String, Value)>,
    /// Settings: name, and description of the allowed values.
    pub(crate) keys: Vec<(String, String)>,
    pub(crate) runs: Vec<CorpusRun>,
    /// Run whose environment is a worker.
    pub(crate) exec: CorpusRun,
    /// Environments and recordings of them.
    pub(crate) recordings: Vec<(String, Vec<u8>)>,
    /// `sweep.toml` and the files under `sw`.
    pub(crate) sweep: FileList,
    /// True if the program has `--trust`.
    pub(crate) trusts: bool,
    /// Arguments that limit the start and the end of workers.
    pub(crate) limits: String,
}

/// Command line and the files of its working directory.
pub(crate) struct Input {
    pub(crate) kind: &'static str,
    pub(crate) args: Vec<OsString>,
    pub(crate) files: FileList,
    /// Symbolic links: name and target.
    pub(crate) links: Vec<(String, String)>,
    pub(crate) fifos: Vec<String>,
    /// SIGTERM signals that the process may wait for.
    pub(crate) signals: usize,
}

impl Input {
    /// Input of regular files, whose process may take two signals.
    pub(crate) fn new(kind: &'static str, args: Vec<OsString>, files: FileList) -> Self {
        Self { kind, args, files, links: Vec::new(), fifos: Vec::new(), signals: 2 }
    }
}

/// Command of a program with a home of its own.
pub(crate) fn at_home(program: impl AsRef<OsStr>, home: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.env("HOME", home).env("RL_XTASK", std::env::current_exe()?);
    for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    Ok(command)
}

pub(crate) fn words(text: &str) -> impl Iterator<Item = OsString> {
    text.split_whitespace().map(OsString::from)
}

impl CorpusRun {
    /// Trains in `work`, and reads the run.
    pub(crate) fn new(program: &Path, work: &Path, name: &str, args: impl Iterator<Item = OsString>) -> Result<Self> {
        let dir = work.join(name);
        let mut command = at_home(program, work)?;
        crate::bench::peers::run(command.arg("train").args(args).arg("--run-dir").arg(&dir).current_dir(work))?;
        let (checkpoint, _) = newest_checkpoint(&dir).context("a run without a checkpoint")?;
        let checkpoint = format!("run/{}", checkpoint.strip_prefix(&dir)?.display());
        let mut files = Vec::new();
        collect(&dir, "run", &mut files)?;
        Ok(Self { files, checkpoint })
    }
}

/// Replay memory of a run.
pub(crate) fn replay_memory(runs: &[CorpusRun]) -> Option<Vec<u8>> {
    let mut files = runs.iter().flat_map(|run| &run.files);
    files.find(|(name, _)| name.ends_with("/replay.bin")).map(|(_, bytes)| bytes.clone())
}

impl Corpus {
    pub(crate) fn new(root: &Path, program: &Path, work: &Path) -> Result<Self> {
        let read = |name: &str| fs::read_to_string(root.join("xtask/fuzz").join(name)).with_context(|| name.to_string());
        let list = crate::bench::peers::run(Command::new(program).args(["list", "--json"]))?;
        let keys =
            list.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|line| line["event"] == "setting");
        let traces: BTreeMap<String, Value> = serde_json::from_str(&read("traces.json")?)?;
        let runs = RUNS.iter().map(|(name, args)| {
            let more = "--set hidden=[4] --set steps=64 --set checkpoint_every=32 --set eval_episodes=1 --set threads=1";
            CorpusRun::new(program, work, name, words(args).chain(words(more)))
        });
        let runs: Vec<_> = runs.collect::<Result<_>>()?;
        fs::write(work.join("plan.json"), PLAN)?;
        let small =
            "--set hidden=[4] --set steps=64 --set checkpoint_every=32 --set eval_episodes=1 --set threads=1 --set n_envs=2";
        let exec = CorpusRun::new(program, work, "exec", std::iter::once(WORKER.into()).chain(words(small)))?;
        let record = |env: &&str| {
            let mut command = at_home(program, work)?;
            command.args(["record", env, "--out", "file.steps", "--steps", "64", "--envs", "2"]);
            crate::bench::peers::run(command.current_dir(work))?;
            Ok(((*env).to_string(), fs::read(work.join("file.steps"))?))
        };
        let mut recordings = RECORDED.iter().map(record).collect::<Result<Vec<_>>>()?;
        let replay = replay_memory(&runs).context("a run with its replay memory")?;
        recordings.push(("mountain_car".into(), replay));
        let mut sweep = vec![("sweep.toml".into(), SWEEP.into())];
        fs::write(work.join("sweep.toml"), SWEEP)?;
        crate::bench::peers::run(at_home(program, work)?.args(["sweep", "sweep.toml", "--dir", "sw"]).current_dir(work))?;
        collect(&work.join("sw"), "sw", &mut sweep)?;
        let help = crate::bench::peers::run(Command::new(program).args(["eval", "--help"]))?;
        let keys: Vec<(String, String)> =
            keys.filter_map(|line| Some((line["name"].as_str()?.into(), line["allowed"].as_str()?.into()))).collect();
        let limits = keys.iter().filter(|(name, _)| ["start_timeout_s", "close_timeout_s"].contains(&&**name));
        Ok(Self {
            tomls: TOMLS.iter().map(|name| read(name)).collect::<Result<_>>()?,
            lines: read("lines.txt")?.lines().map(|line| line.split_whitespace().map(String::from).collect()).collect(),
            traces: traces.into_iter().collect(),
            limits: limits.map(|(name, _)| format!(" --set {name}=2")).collect(),
            keys,
            runs,
            exec,
            recordings,
            sweep,
            trusts: help.contains("--trust"),
        })
    }

    /// Builds a mutated configuration.
    pub(crate) fn toml(&self, random: &mut Random) -> Input {
        let text = random.pick(&self.tomls).clone();
        let files = vec![("c.toml".into(), self.mutate_toml(text, random))];
        let small = "train --config c.toml --run-dir new --steps 64 --set eval_episodes=1";
        let more = if random.percent(70) { " --threads 1 --envs 2 --set hidden=[4]" } else { "" };
        Input::new("configuration", words(small).chain(words(more)).collect(), files)
    }

    /// Builds settings on the command line.
    pub(crate) fn set(&self, random: &mut Random) -> Input {
        let bases = [
            "cartpole --set ppo.n_steps=8 --set ppo.batch_size=16",
            "snake --set ppo.n_steps=8 --set ppo.batch_size=16 --set ppo.n_epochs=1",
            "pendulum --algo a2c",
            "pendulum --algo td3 --set td3.buffer_size=100 --set td3.learning_starts=8 --set td3.batch_size=8",
            "mountain_car --algo dqn --set dqn.buffer_size=100 --set dqn.learning_starts=8 --set dqn.batch_size=8",
        ];
        let mut args: Vec<OsString> =
            words("train --run-dir new --steps 64 --set eval_episodes=1 --set hidden=[4] --set n_envs=2").collect();
        args.extend(words(bases[random.below(bases.len())]));
        for _ in 0..1 + random.below(3) {
            args.extend(["--set".into(), self.assignment(random, "=").into()]);
        }
        Input::new("settings", args, Vec::new())
    }

    /// Builds a run with a mutated configuration, to be resumed.
    pub(crate) fn run_config(&self, random: &mut Random) -> Input {
        let run = random.pick(&self.runs);
        let without = random.percent(30);
        let mut files: FileList =
            run.files.iter().filter(|(name, _)| !without || !name.starts_with("run/checkpoints/")).cloned().collect();
        if let Some((_, bytes)) = files.iter_mut().find(|(name, _)| name == "run/config.toml") {
            *bytes = self.mutate_toml(String::from_utf8_lossy(bytes).into_owned(), random);
        }
        let args = if random.percent(80) { "train --resume run --steps 128" } else { "eval run --episodes 2" };
        Input::new("run configuration", words(args).collect(), files)
    }

    /// Builds a damaged checkpoint whose hashes match.
    pub(crate) fn checkpoint(&self, random: &mut Random) -> Input {
        let run = random.pick(&self.runs);
        let mut files = run.files.clone();
        let manifest = format!("{}/manifest.json", run.checkpoint);
        let ours: Vec<usize> = (0..files.len()).filter(|&i| files[i].0.starts_with(&run.checkpoint)).collect();
        let i = *random.pick(&ours);
        let name = files[i].0.rsplit('/').next().unwrap_or_default().to_string();
        let bytes = &mut files[i].1;
        match name.as_str() {
            "config.toml" => *bytes = self.mutate_toml(String::from_utf8_lossy(bytes).into_owned(), random),
            "manifest.json" => *bytes = mutate_json_text(bytes, random),
            _ if name.ends_with(".safetensors") && random.percent(60) => mutate_safetensors(bytes, random),
            _ => mutate_numbers(bytes, random),
        }
        if name != "manifest.json" {
            let info = json!({"bytes": files[i].1.len(), "blake3": blake3::hash(&files[i].1).to_string()});
            if let Some((_, bytes)) = files.iter_mut().find(|(name, _)| *name == manifest)
                && let Ok(mut json) = serde_json::from_slice::<Value>(bytes)
            {
                json["files"][&name] = info;
                *bytes = json.to_string().into_bytes();
            }
        }
        let path = if random.percent(25) { &run.checkpoint } else { "run" };
        let args = match random.below(10) {
            0..5 => format!("train --resume {path} --steps 128 --threads 1"),
            5..9 => format!("eval {path} --episodes 2 --threads 1"),
            _ => format!("watch {path} --gif out.gif --size 16"),
        };
        Input::new("checkpoint", words(&args).collect(), files)
    }

    /// Builds mutated states and actions.
    pub(crate) fn trace(&self, random: &mut Random) -> Input {
        let (env, trace) = random.pick(&self.traces);
        let (mut init, mut actions) = (trace["init"].clone(), trace["actions"].clone());
        if random.percent(30) {
            init = vec![init; actions.as_array().map_or(1, Vec::len)].into();
        } else if random.percent(60)
            && let Some(list) = actions.as_array_mut()
        {
            (0..random.below(200)).for_each(|_| list.push(random.pick(list).clone()));
        }
        (0..random.below(4)).for_each(|_| mutate_json(&mut init, random));
        (0..random.below(2)).for_each(|_| mutate_json(&mut actions, random));
        let mut files: FileList = [("init.json", init), ("actions.json", actions)]
            .map(|(name, json)| (name.into(), json.to_string().into_bytes()))
            .into();
        if random.percent(10) {
            mutate_bytes(&mut files[random.below(2)].1, random);
        }
        let env = if random.percent(95) { env.as_str() } else { "snake" };
        let args = format!("trace {env} --init init.json --actions actions.json");
        Input::new("trace", words(&args).collect(), files)
    }

    /// Builds a mutated command line, and the files that it may name.
    pub(crate) fn line(&self, random: &mut Random) -> Input {
        let mut line = random.pick(&self.lines).clone();
        for _ in 0..1 + random.below(3) {
            let i = random.below(line.len());
            match random.below(7) {
                _ if line.is_empty() => {}
                0 => line[i] = random.value().into(),
                1 => drop(line.remove(i)),
                2 => line.insert(i, line[random.below(line.len())].clone()),
                3 => {
                    let other = random.pick(&self.lines);
                    line.insert(i, other[random.below(other.len())].clone());
                }
                4 => line.extend(["--set".into(), self.assignment(random, "=")]),
                5 => {
                    let other = random.pick(&self.lines);
                    line.truncate(i);
                    line.extend_from_slice(&other[random.below(other.len())..]);
                }
                _ => {
                    let numbers: Vec<usize> = (0..line.len()).filter(|&i| line[i].parse::<f64>().is_ok()).collect();
                    if let Some(&i) = numbers.get(random.below(numbers.len())) {
                        line[i] = (*random.pick(&NUMBERS)).to_string();
                    }
                }
            }
        }
        let mut args: Vec<OsString> = line.into_iter().map(OsString::from).collect();
        if random.percent(15) && !args.is_empty() {
            let i = random.below(args.len());
            let mut bytes = std::mem::take(&mut args[i]).into_vec();
            mutate_bytes(&mut bytes, random);
            args[i] = OsString::from_vec(bytes);
        }
        let run = random.pick(&self.runs);
        let mut files = run.files.clone();
        files.push(("ppo.toml".into(), self.tomls[0].clone().into_bytes()));
        let trace = &self.traces.iter().find(|(name, _)| name == "cartpole").map_or(&Value::Null, |(_, trace)| trace);
        files.push(("init.json".into(), trace["init"].to_string().into_bytes()));
        files.push(("actions.json".into(), trace["actions"].to_string().into_bytes()));
        Input::new("command line", args.iter().map(|arg| stay_here(arg)).collect(), files)
    }

    /// Draws a setting and a value, more often a valid one than not.
    pub(crate) fn assignment(&self, random: &mut Random, equals: &str) -> String {
        let (name, allowed) = random.pick(&self.keys);
        let value = if random.percent(70) { plausible(allowed, random) } else { random.value().into() };
        format!("{name}{equals}{value}")
    }

    pub(crate) fn mutate_toml(&self, text: String, random: &mut Random) -> Vec<u8> {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        for _ in 0..1 + random.below(4) {
            let (i, n) = (random.below(lines.len()), lines.len());
            match random.below(8) {
                _ if n == 0 => {}
                0 => drop(lines.remove(i)),
                1 => lines.insert(i, lines[random.below(n)].clone()),
                2 => lines.swap(i, random.below(n)),
                3 => {
                    let line = self.assignment(random, " = ");
                    let short = random.percent(50);
                    lines.insert(
                        i,
                        line.split_once('.').map_or(line.clone(), |(_, name)| if short { name.into() } else { line.clone() }),
                    );
                }
                4 => {
                    let other: Vec<&str> = random.pick(&self.tomls).lines().collect();
                    lines.insert(i, other[random.below(other.len())].into());
                }
                _ => {
                    if let Some((key, _)) = lines[i].split_once('=') {
                        let name = key.trim();
                        let setting = self.keys.iter().find(|(full, _)| full.rsplit('.').next() == Some(name));
                        let value = match setting {
                            Some((_, allowed)) if random.percent(60) => plausible(allowed, random),
                            _ => random.value().into(),
                        };
                        lines[i] = format!("{key}= {value}");
                    }
                }
            }
        }
        let mut bytes = lines.join("\n").into_bytes();
        if random.percent(15) {
            mutate_bytes(&mut bytes, random);
        }
        bytes
    }
}

/// Collects all files under `dir`, with paths under `name`.
pub(crate) fn collect(dir: &Path, name: &str, files: &mut FileList) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, files)?;
        } else {
            files.push((name, fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// Sanitizes an argument so that it names nothing outside the working directory.
pub(crate) fn stay_here(arg: &OsStr) -> OsString {
    let mut bytes: Vec<u8> = arg.as_bytes().iter().copied().filter(|byte| *byte != 0).collect();
    bytes.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
    while let Some(at) = bytes.windows(2).position(|pair| pair == b"..") {
        bytes[at] = b'_';
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_argument_leaves_the_working_directory() {
        for (arg, safe) in [("/dev/null", "_dev_null"), ("a/../..", "a__.__."), ("--x=/etc", "--x=_etc"), ("....", "___.")] {
            assert_eq!(stay_here(OsStr::new(arg)).to_string_lossy(), safe);
        }
    }
}
