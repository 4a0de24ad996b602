//! `rl export`: policies act as the run's own on the observations of rollouts.
//!
//! With `RL_EXPORT_ALL=1`, all presets of built-in environments, on up to `RL_EXPORT_N` observations, with every compiler and
//! level of optimisation that this machine has. Programs of slow targets see fewer, up to `RL_EXPORT_COST`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rl_agents::distributions::log_softmax;
use rl_agents::{Acted, Acting, Choice, Collector, Scratch};
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::catalog;
use rl_envs::{ActionSpace, Actions, Pool, math};
use rl_policy::{Action, Obs, Policy};
use rl_runtime::checkpoint::{self, SavedPolicy};
use rl_runtime::config::PRESETS;
use serde_json::{Value, json};

use crate::compiled::{Streams, shown, targets};
use crate::harness::{finish, python_with, rl, text};

/// Environments of a rollout.
const N_ENVS: usize = 64;
/// Steps of a rollout.
const N_STEPS: usize = 64;

/// Environments, algorithms and memories: all presets, or two kinds of policies.
///
/// All have every kind of memory, too; an empty one is that of the preset.
fn presets() -> Vec<(String, String, &'static str)> {
    if std::env::var_os("RL_EXPORT_ALL").is_none() {
        return [("cartpole", "ppo"), ("pendulum", "sac")].map(|(env, algo)| (env.into(), algo.into(), "")).to_vec();
    }
    // Four games have the preset of breakout, two grid worlds almost that of empty.
    let others = ["asterix", "freeway", "seaquest", "space_invaders", "door_key", "multi_room"];
    let native = PRESETS.iter().filter(|(env, ..)| catalog::find(env).is_ok() && !others.contains(env));
    let mut presets: Vec<_> = native.map(|(env, algo, _)| (env.to_string(), algo.name().to_string(), "")).collect();
    presets.extend(["gru", "lstm"].map(|memory| ("cartpole".into(), "ppo".into(), memory)));
    presets.sort();
    presets
}

/// Trains into `dir/run`; an empty memory is that of the preset.
fn trained(dir: &Path, env: &str, algo: &str, memory: &str) {
    let steps = ["train", env, "--algo", algo, "--steps", "2_000", "--run-dir", "run", "--set", "eval_episodes=1"];
    let mut command = rl(&steps);
    command.args(["--set", "eval_max_steps=100"]).current_dir(dir);
    if ["dqn", "sac", "td3"].contains(&algo) {
        command.args(["--set", &format!("{algo}.learning_starts=1_900")]); // few updates, which are slow in a test
    }
    if !memory.is_empty() {
        command.args(["--set", &format!("memory={memory}")]);
    }
    let output = finish(&mut command);
    assert!(output.status.success(), "{env}, {algo}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Greedy actions of the run's own policy in a rollout.
///
/// Each is the first of an episode.
struct Original {
    discrete: Vec<u32>,
    vectors: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
}

fn greedy(policy: &dyn rl_agents::Policy, rollout: &Rollout, masks: &[u8]) -> Original {
    let n = rollout.len();
    let a = if let Actions::Continuous(actions) = rollout.actions() { actions.len() / n } else { 0 };
    let mut original =
        Original { discrete: vec![0; n], vectors: vec![0.0; n * a], log_probs: vec![0.0; n], values: vec![0.0; n] };
    let Original { discrete, vectors, log_probs, values } = &mut original;
    let actions = if a == 0 { Actions::Discrete(&mut discrete[..]) } else { Actions::Continuous(&mut vectors[..]) };
    let acting = Acting { obs: rollout.obs_rows(0..n), masks, choice: Choice::Greedy, envs: &[] };
    let mut states = vec![0.0; n * policy.state_len()];
    policy.act(acting, Acted { actions, log_probs, values, states: &mut states }, &mut Scratch::default()).unwrap();
    original
}

impl Original {
    /// Compares action `i`, and the output that says why, bit by bit.
    fn compare(&self, i: usize, actions: &ActionSpace, loaded: &Policy<'_>, obs: Obs<'_>, mask: &[u8], memory: &mut [f32]) {
        let (mut choice, mut vector) = ([0], vec![0.0; loaded.action_len()]);
        loaded.reset(memory);
        if let ActionSpace::Continuous { low, high } = actions {
            loaded.act(obs, mask, rl_policy::Choice::Greedy, memory, Action::Continuous(&mut vector)).unwrap();
            let expected = self.vectors[i * vector.len()..].iter().zip(low.iter().zip(high));
            let expected = expected.map(|(x, (low, high))| math::clamp(*x, *low, *high).to_bits());
            assert!(vector.iter().map(|x| x.to_bits()).eq(expected), "{vector:?}");
            return;
        }
        loaded.act(obs, mask, rl_policy::Choice::Greedy, memory, Action::Discrete(&mut choice)).unwrap();
        assert_eq!(choice[0], self.discrete[i]);
        loaded.reset(memory);
        let outputs = loaded.outputs(obs, memory).unwrap();
        // Greedy actions have the greatest action values.
        if self.log_probs == self.values {
            assert_eq!(outputs[choice[0] as usize].to_bits(), self.values[i].to_bits());
        } else {
            log_softmax(outputs, mask);
            assert_eq!(outputs[choice[0] as usize].to_bits(), self.log_probs[i].to_bits());
        }
    }
}

#[test]
fn an_exported_policy_ignores_what_was_hidden_when_it_learnt() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "cartpole", "--steps", "1_000", "--run-dir", "run", "--set", "env.hide=velocities"];
    let more = ["--set", "normalize_obs=true", "--set", "env.frame_stack=2", "--set", "eval_episodes=1"];
    assert!(finish(rl(&[&args[..], &more].concat()).current_dir(dir.path())).status.success());
    assert!(finish(rl(&["export", "run", "--as", "rust"]).current_dir(dir.path())).status.success());
    let file = fs::read(dir.path().join("cartpole.policy")).unwrap();
    let loaded = Policy::new(&file).unwrap();
    let mut memory = vec![0.0; loaded.memory_len()];
    let mut outputs = |obs: [f32; 8]| loaded.outputs(Obs::F32(&obs), &mut memory).unwrap().to_vec();
    let expected = outputs([0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.4, 0.0]);
    assert_eq!(outputs([0.1, 7.0, 0.2, -3.0, 0.3, 0.5, 0.4, 1e9]), expected);
    assert_ne!(outputs([0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.5, 0.0]), expected);
}

#[test]
fn exported_policies_act_as_the_run_on_observations_of_rollouts() {
    let n: usize = std::env::var("RL_EXPORT_N").map_or(2_000, |n| n.parse().unwrap());
    for (env, algo, kind) in presets() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        trained(dir, &env, &algo, kind);
        let mut multiply_adds = 0;
        for form in ["c", "rust", "onnx"] {
            let output = finish(rl(&["export", "run", "--as", form, "--json"]).current_dir(dir));
            assert!(output.status.success(), "{env}, {algo}: {}", String::from_utf8_lossy(&output.stderr));
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&said["checked"], &said["differing"]), (&json!(64), &json!(0)));
            multiply_adds = said["multiply_adds"].as_u64().unwrap() as usize;
        }
        let file = fs::read(dir.join(format!("{env}.policy"))).unwrap();
        let loaded = Policy::new(&file).unwrap();
        assert!(loaded.about().starts_with(&format!("{env} by {algo}, run/checkpoints/ckpt-")), "{}", loaded.about());
        let header = text(&dir.join(format!("{env}.h"))).to_string();
        let mut streams = Streams::new(loaded, header.contains(&format!("{env}_sample(")));
        let SavedPolicy { policy, entry, .. } =
            checkpoint::policy(&dir.join("run"), false, catalog::find(&env).unwrap()).unwrap();
        let mut collector = Collector::of(entry.slices(N_ENVS, 1, 1).unwrap(), &Pool::default(), 3).unwrap();
        collector.remember(policy.state_len());
        let mut rollout = collector.rollout(N_STEPS).unwrap();
        let actions = entry.spaces().actions;
        let (d, m) = (loaded.obs_len(), loaded.mask_len());
        let (mut left, mut memory) = (n, vec![0.0; loaded.memory_len()]);
        while left > 0 {
            collector.collect(&*policy, &mut rollout).unwrap();
            let masks = rollout.masks().map_or(Vec::new(), |masks| masks.iter().copied().collect());
            let original = greedy(&*policy, &rollout, &masks[..rollout.len() * m]);
            for i in 0..rollout.len().min(left) {
                let obs = match rollout.obs_rows(0..rollout.len()) {
                    ObsSlice::F32(obs) => Obs::F32(&obs[i * d..(i + 1) * d]),
                    ObsSlice::U8(obs) => Obs::U8(&obs[i * d..(i + 1) * d]),
                };
                let mask = &masks[i * m..(i + 1) * m];
                original.compare(i, &actions, &loaded, obs, mask, &mut memory);
                streams.push(obs, mask);
            }
            left -= rollout.len().min(left);
        }
        for target in targets() {
            let (n, seconds) = streams.check(dir, &env, &target, multiply_adds);
            let preset = [&env, &algo, kind].join(" ");
            println!("{}: {n} observations, {target}: 0 differ, {seconds:.1} s", preset.trim_end());
        }
    }
}

/// Returns the page's block of code in a language.
fn block(language: &str) -> String {
    let page = fs::read_to_string("../docs/export.md").unwrap();
    let start = format!("\n```{language}\n");
    let (_, rest) = page.split_once(&start).unwrap();
    rest.split_once("\n```").unwrap().0.to_string()
}

/// Returns what a command prints, without the newline.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: no {program}");
    }
    found
}

#[test]
fn the_page_on_exported_policies_runs_in_c_a_browser_and_python() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    trained(dir, "cartpole", "ppo", "");
    for form in ["c", "rust", "onnx"] {
        assert!(finish(rl(&["export", "run", "--as", form]).current_dir(dir)).status.success());
    }
    let file = fs::read(dir.join("cartpole.policy")).unwrap();
    let loaded = Policy::new(&file).unwrap();
    let (mut memory, mut action) = (vec![0.0; loaded.memory_len()], [9]);
    let obs = Obs::F32(&[0.0, 0.1, -0.02, 0.3]);
    loaded.act(obs, &[], rl_policy::Choice::Greedy, &mut memory, Action::Discrete(&mut action)).unwrap();
    let expected = action[0].to_string();
    let page = fs::read_to_string("../docs/export.md").unwrap();
    let line = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap().to_string();
    if has("cc") {
        fs::write(dir.join("main.c"), block("c")).unwrap();
        assert_eq!(printed(Command::new("sh").arg("-c").arg(line("cc ")).current_dir(dir)), expected);
    }
    if has("clang") && has("wasm-ld") && has("chromium") {
        let compile = line("clang ").replace("clang ", "clang -DCARTPOLE_TEST ");
        printed(Command::new("sh").arg("-c").arg(compile).current_dir(dir));
        fs::write(dir.join("page.html"), block("html")).unwrap();
        // Instead of the action, the number of test observations with other bits.
        let call = block("html").replace("new Uint32Array(wasm.memory.buffer, action, 1)[0]", "wasm.cartpole_test(memory)");
        fs::write(dir.join("test.html"), call).unwrap();
        for (page, expected) in [("page.html", &expected[..]), ("test.html", "0")] {
            let shown = shown(dir, page);
            assert!(shown.contains(&format!("<body>{expected}</body>")), "{page}: {shown}");
        }
    }
    if let Some(python) = python_with("onnxruntime", "RL_REQUIRE_ONNX") {
        fs::write(dir.join("main.py"), block("python")).unwrap();
        assert_eq!(printed(Command::new(python).arg("main.py").current_dir(dir)), expected);
    }
}
