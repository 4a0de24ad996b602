//! Hostile input of others: messages of workers, recordings, runs and sweeps.

use serde_json::{Value, json};

use crate::chaos::corpus::{Corpus, Input, OUTSIDE, PLAN, WORKER, words};
use crate::chaos::mutate::{Random, mutate_bytes, mutate_numbers};
use crate::chaos::worker::{DOUBTFUL, FAULTS, FORKS, HARMLESS, PHASES};

/// Settings of trainings that end soon.
const SMALL: &str = "--steps 64 --envs 2 --threads 2 --set hidden=[4] --set eval_episodes=1";
const PPO: &str = "--set ppo.n_steps=16 --set ppo.batch_size=32 --set ppo.n_epochs=1";
const DQN: &str = "--algo dqn --set dqn.buffer_size=100 --set dqn.learning_starts=8 --set dqn.batch_size=8 --set dqn.train_freq=4 \
                   --set dqn.gradient_steps=1";

/// Kinds of inputs about each of [`PHASES`].
pub(crate) const KINDS: [&str; 8] = [
    "worker, start",
    "worker, hello",
    "worker, begin",
    "worker, step",
    "worker, restart",
    "worker, step_one",
    "worker, render",
    "worker, close",
];

/// Environments that make a marker when they are opened: name and arguments.
const COMMANDS: [(&str, &str); 6] = [
    ("exec:touch MARKER", ""),
    ("exec:sh -c 'touch MARKER'", ""),
    ("exec:env touch MARKER", ""),
    ("gym:os:system", r#"{"command": "touch MARKER"}"#),
    ("gym:subprocess:call", r#"{"args": ["touch", "MARKER"]}"#),
    ("gym:evil:Env", ""),
];
/// Module of the last environment, and of Python's own name.
const EVIL: &str = "open('MARKER', 'w')\n";

/// Verbs for a run in `PATH`, a directory of the run or of a checkpoint.
const VERBS: [&str; 14] = [
    "eval PATH --episodes 1",
    "eval PATH --episodes 1 --best --json",
    "watch PATH --gif out.gif --size 16",
    "watch PATH --episodes 1",
    "record PATH --out out.steps --steps 16 --envs 2",
    "train --resume PATH --steps 128",
    "train --resume PATH --steps 128 --dry-run",
    "train --config PATH/config.toml --run-dir new --steps 64",
    "train --config PATH/config.toml --run-dir new --steps 64 --dry-run",
    "train --config PATH/config.toml --set n_envs=3 --run-dir new --dry-run --json",
    "plot PATH",
    "plot run PATH --out out.svg",
    "monitor PATH",
    "monitor PATH --json",
];

/// Verbs for a run or a sweep whose files are no regular ones.
const OWN_FILES: [&str; 13] = [
    "eval run --episodes 1",
    "eval run --episodes 1 --best",
    "watch run --gif out.gif --size 16",
    "record run --out out.steps --steps 16 --envs 2",
    "train --resume run --steps 128",
    "train --resume run --steps 128 --timeline out.json",
    "train cartpole --run-dir run --steps 64 --set hidden=[4]",
    "plot run",
    "plot sw",
    "monitor run",
    "monitor sw --json",
    "sweep sweep.toml --dir sw",
    "sweep sweep.toml --dir sw --parallel 2",
];

/// Names that the program chooses in a run's or a sweep's directory.
const CHOSEN: [&str; 22] = [
    "run/config.toml",
    "run/lock",
    "run/machine.toml",
    "run/metrics.csv",
    "run/plot.svg",
    "run/tb",
    "run/checkpoints",
    "run/checkpoints/best",
    "run/diverged",
    "sw/lock",
    "sw/sweep.toml",
    "sw/trials.csv",
    "sw/best.toml",
    "sw/sweep.svg",
    "sw/plot.svg",
    "sw/trial-000-seed-0",
    "sw/trial-000-seed-0.log",
    "sw/trial-001-seed-0.log",
    "sw/trial-000-seed-0.toml",
    "sw/trial-000-seed-0/lock",
    "sw/trial-000-seed-0/metrics.csv",
    "sw/trial-000-seed-0/config.toml",
];

impl Corpus {
    /// Builds a plan of faults, and a verb that meets them.
    pub(crate) fn worker(&self, random: &mut Random) -> Input {
        let i = random.below(PHASES.len());
        let (phase, kind) = (PHASES[i], KINDS[i]);
        let wide = random.percent(5);
        let observation = match random.below(6) {
            0 => json!({"dtype": "u8", "shape": [1, 8, 8]}),
            1 => json!({"dtype": "f32", "shape": [2, 3], "low": [-5, -5, -5, null, null, null], "high": [5, 5, 5, 5, 5, null]}),
            2 => {
                let len = if wide { 100_000 } else { 8000 };
                json!({"dtype": "f32", "shape": [len], "low": vec![-5; len], "high": vec![5; len]})
            }
            _ => json!({"dtype": "f32", "shape": [1], "low": [-5], "high": [5]}),
        };
        let (action, is_discrete) = match random.below(8) {
            0 => (json!({"kind": "multi_discrete", "sizes": [2, 3]}), false),
            1 => (json!({"kind": "box", "low": [-1, null], "high": [1, null]}), false),
            // Requests that are longer than what a socket holds.
            2 if wide => (json!({"kind": "box", "low": vec![-1; 100_000], "high": vec![1; 100_000]}), false),
            3 => (json!({"kind": "discrete", "n": 5}), true),
            _ => (json!({"kind": "discrete", "n": 2}), true),
        };
        let masked = is_discrete && random.percent(30);
        let in_memory = random.percent(70); // if observations are large
        let act = match random.below(10) {
            0 => *random.pick(&HARMLESS),
            1..4 => random.pick(&FAULTS),
            _ => random.pick(&DOUBTFUL),
        };
        let restarts = ["restart", "step_one"].contains(&phase);
        let nth = if phase == "step" { 1 + random.below(20) } else { 1 + usize::from(random.percent(20)) };
        let ms = if act == "trickle" { 50 + random.below(500) } else { random.below(100) };
        let mut faults = vec![json!({"phase": phase, "nth": nth, "act": act, "ms": ms, "seed": random.next() >> 1})];
        if restarts {
            // An environment alone starts again after a number that is not finite.
            let nans = [3, 7, 11].map(|nth| json!({"phase": "step", "nth": nth, "act": "nan", "seed": random.next() >> 1}));
            faults.extend(nans);
        }
        if random.percent(10) {
            faults.push(json!({"phase": "begin", "nth": 1, "act": random.pick(&FORKS), "holds": random.percent(50)}));
        }
        let first = random.percent(50);
        let plan = json!({
            "greeting": {
                "protocol": 1, "worker": "a walk", "observation": observation, "action": action, "masked": masked,
                "memory": in_memory,
            },
            "faults": faults, "processes": [0, first.then_some(1)], "stubborn": random.percent(5),
        });
        let run = &self.exec;
        let verb = random.below(20);
        // A run needs the spaces that it has been trained in.
        let own: Value = serde_json::from_str(PLAN).expect("a plan is JSON");
        let plan = if phase == "render" || verb == 2 || verb == 3 {
            json!({"greeting": own["greeting"], "faults": plan["faults"], "processes": plan["processes"]})
        } else {
            plan
        };
        let (args, files) = match verb {
            _ if phase == "render" => ("watch run --gif out.gif --size 16".to_string(), run.files.clone()),
            0 => ("record ENV --out out.steps --steps 64 --envs 2 --threads 1".into(), Vec::new()),
            1 => ("check-env ENV".into(), Vec::new()),
            2 => ("eval run --episodes 2 --threads 1".into(), run.files.clone()),
            3 => ("train --resume run --steps 128".into(), run.files.clone()),
            _ => {
                let algo = if is_discrete { *random.pick(&[PPO, "--algo a2c", DQN]) } else { PPO };
                let drive = if restarts { "lockstep --set workers=1" } else { random.pick(&["lockstep", "first_come"]) };
                let nonfinite = if restarts || random.percent(30) { "truncate" } else { "error" };
                let more = random.below(3);
                let args = format!("train ENV --run-dir new {SMALL} {algo} --set drive={drive} --set on_nonfinite={nonfinite}");
                (format!("{args} --set timeout_s=1 --set max_restarts={more}"), Vec::new())
            }
        };
        let trains = args.starts_with("train ENV");
        let trust = if self.trusts && !args.contains("ENV") { " --trust" } else { "" };
        let limits = if trains { self.limits.as_str() } else { "" };
        let args =
            words(&format!("{args}{trust}{limits}")).map(|word| if word == "ENV" { WORKER.into() } else { word }).collect();
        let files = files.into_iter().chain([("plan.json".into(), plan.to_string().into_bytes())]).collect();
        // Starts, pictures and verbs without a setting for it wait longer; while every environment fails, a run first come waits.
        let waits = ["start", "hello", "begin", "render"].contains(&phase) && limits.is_empty() || !trains || !first;
        Input { signals: usize::from(waits), ..Input::new(kind, args, files) }
    }

    /// Builds a damaged recording, to learn from.
    pub(crate) fn recording(&self, random: &mut Random) -> Input {
        let (env, bytes) = random.pick(&self.recordings);
        let mut bytes = bytes.clone();
        // Magic number, length of the head, head; then blocks of length, hash and steps.
        let head = 16 + bytes.get(8..16).map_or(0, |len| u64::from_le_bytes(len.try_into().expect("8 bytes")) as usize);
        let forged = |random: &mut Random| (random.next() >> random.below(64)).to_le_bytes();
        match random.below(10) {
            0 => mutate_bytes(&mut bytes, random),
            1..4 if head < bytes.len() => {
                let rest = bytes.split_off(head);
                let mut forged = bytes.split_off(16);
                mutate_numbers(&mut forged, random);
                bytes[8..16].copy_from_slice(&(forged.len() as u64).to_le_bytes());
                bytes = [bytes, forged, rest].concat();
            }
            4 if head < bytes.len() => {
                let at = *random.pick(&[8, head]);
                bytes[at..at + 8].copy_from_slice(&forged(random));
            }
            5..9 if head + 40 < bytes.len() => {
                // One block under a good hash.
                let mut steps = bytes.split_off(head + 40);
                match random.below(4) {
                    0 => mutate_bytes(&mut steps, random),
                    1 => {
                        let at = random.below(steps.len());
                        steps[at] = 2 + random.below(254) as u8;
                    }
                    _ => mutate_numbers(&mut steps, random),
                }
                bytes.truncate(head);
                bytes.extend((steps.len() as u64).to_le_bytes());
                bytes.extend(blake3::hash(&steps).as_bytes());
                bytes.extend(steps);
            }
            9 if head < bytes.len() => bytes.extend(bytes[head..].to_vec()),
            _ => mutate_numbers(&mut bytes, random),
        }
        let env = if random.percent(95) { env } else { "acrobot" };
        let args = format!("train {env} {SMALL} {DQN} --offline file.steps --run-dir new");
        Input { signals: 0, ..Input::new("recording", words(&args).collect(), vec![("file.steps".into(), bytes)]) }
    }

    /// Builds files of others that name commands.
    pub(crate) fn command(&self, random: &mut Random) -> Input {
        let (env, kwargs) = *random.pick(&COMMANDS);
        let replace = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            let quoted = Value::from(env).to_string();
            let line = match kwargs {
                "" => format!("env = {quoted}"),
                kwargs => format!("env = {{ name = {quoted}, kwargs = {} }}", Value::from(kwargs)),
            };
            let lines: Vec<&str> = text.lines().map(|old| if old.starts_with("env = ") { &line } else { old }).collect();
            (lines.join("\n") + "\n").into_bytes()
        };
        let mut files = vec![("evil.py".into(), EVIL.into())];
        let args = match random.below(10) {
            0 => {
                files.push(("c.toml".into(), replace(self.tomls[0].as_bytes())));
                let dry = if random.percent(50) { " --dry-run" } else { "" };
                format!("train --config c.toml --run-dir new --steps 64{dry}")
            }
            1 | 2 => {
                let mut sweep = self.sweep.clone();
                let all = random.percent(50);
                for (name, bytes) in &mut sweep {
                    if name == "sweep.toml" || all && name.ends_with(".toml") {
                        *bytes = replace(bytes);
                    }
                }
                let fresh = random.percent(40);
                files.extend(sweep.into_iter().filter(|(name, _)| !fresh || name == "sweep.toml"));
                "sweep sweep.toml --dir sw".into()
            }
            3 => {
                // A module of Python's own name beside the user.
                files.push((random.pick(&["json.py", "socket.py", "numpy.py", "gymnasium.py"]).to_string(), EVIL.into()));
                format!("{} gym:CartPole-v1", random.pick(&["check-env", "train --steps 16 --run-dir new"]))
            }
            _ => {
                let run = random.pick(&self.runs);
                let whole = random.below(3);
                let manifest = format!("{}/manifest.json", run.checkpoint);
                files.extend(run.files.clone());
                let mut hash = Value::Null;
                for (name, bytes) in &mut files {
                    // The run's own file, the checkpoints', or both.
                    let is_own = name == "run/config.toml";
                    if name.ends_with("/config.toml") && (whole == 2 || is_own == (whole == 0)) {
                        *bytes = replace(bytes);
                        hash = json!({"bytes": bytes.len(), "blake3": blake3::hash(bytes).to_string()});
                    }
                }
                for (name, bytes) in &mut files {
                    let is_theirs = whole > 0 && (*name == manifest || name.ends_with("/manifest.json"));
                    if is_theirs && let Ok(mut json) = serde_json::from_slice::<Value>(bytes) {
                        json["files"]["config.toml"] = hash.clone();
                        *bytes = json.to_string().into_bytes();
                    }
                }
                random.pick(&VERBS).replace("PATH", if random.percent(70) { "run" } else { &run.checkpoint })
            }
        };
        let signals = usize::from(args.starts_with("monitor"));
        Input { signals, ..Input::new("foreign command", words(&args).collect(), files) }
    }

    /// Builds a run and a sweep with links, FIFOs and devices among their files.
    pub(crate) fn irregular(&self, random: &mut Random) -> Input {
        let run = random.pick(&self.runs);
        let mut files = [run.files.clone(), self.sweep.clone()].concat();
        let verb = *random.pick(&OWN_FILES);
        let of = if verb.contains("sw") { "sw/" } else { "run/" };
        let (mut links, mut fifos) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(2) {
            let chosen: Vec<_> = CHOSEN.iter().filter(|name| name.starts_with(of)).collect();
            let own: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).filter(|name| name.starts_with(of)).collect();
            let name = if random.percent(70) || own.is_empty() { **random.pick(&chosen) } else { *random.pick(&own) }.to_string();
            files.retain(|(other, _)| *other != name && !other.starts_with(&format!("{name}/")));
            links.retain(|(other, _): &(String, String)| *other != name && !other.starts_with(&format!("{name}/")));
            fifos.retain(|other: &String| *other != name && !other.starts_with(&format!("{name}/")));
            let is_below = |other: &str| name.starts_with(&format!("{other}/"));
            if links.iter().any(|(other, _)| is_below(other)) || fifos.iter().any(|other| is_below(other)) {
                continue;
            }
            let up = "../".repeat(name.matches('/').count());
            match random.below(8) {
                0..2 => fifos.push(name),
                2..4 => links.push((name, format!("{up}{OUTSIDE}precious"))),
                4 => links.push((name, format!("{up}{OUTSIDE}new"))),
                5 => links.push((name, format!("{up}{OUTSIDE}"))),
                6 => links.push((name, (*random.pick(&["/dev/zero", "/dev/full", "/dev/null"])).to_string())),
                _ => links.push((name.clone(), name.rsplit('/').next().unwrap_or_default().to_string())),
            }
        }
        if verb.contains("--run-dir run") && random.percent(60) {
            files.retain(|(name, _)| !name.starts_with("run/"));
        }
        files.push((format!("{OUTSIDE}precious"), b"precious\n".into()));
        let signals = usize::from(verb.starts_with("monitor"));
        Input { signals, links, fifos, ..Input::new("irregular files", words(verb).collect(), files) }
    }
}
