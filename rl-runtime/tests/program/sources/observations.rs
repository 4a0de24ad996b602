//! Observations of worker processes: parts, pictures, stacked frames, Atari.

use std::path::Path;
use std::process::Command;

use super::worker::{f32s, numbers, open, train, with_tests};
use crate::harness::{finish, python, python_with, rl};
use rl_envs::catalog::Entry;
use rl_envs::wrappers::Wrappers;
use rl_envs::{ObsRows, ObsSliceMut, RandomActions, Space, Steps, VecEnv};
use rl_runtime::checkpoint;
use rl_runtime::worker::{WorkerConfig, WorkerOptions, gym};
use serde_json::{Value, json};

/// Opens an environment with the settings `env.keys` and `env.normalize_images`.
fn open_with(id: &str, keys: &str, normalize_images: bool) -> Result<Entry, rl_runtime::Error> {
    let settings = WorkerConfig { keys: keys.into(), normalize_images, ..WorkerConfig::default() };
    gym(&format!("tests.worker_envs:{id}"), &WorkerOptions { settings, python: python(), ..WorkerOptions::default() })
}

#[test]
fn parts_of_an_observation_keep_their_names_and_shapes() {
    if python().is_none() {
        return;
    }
    let space = |id: &str, keys: &str| open_with(id, keys, true).unwrap().spaces().obs;
    let parts = |space: &Space| space.parts().iter().map(|part| (part.name.clone(), part.shape.clone())).collect::<Vec<_>>();
    let part = |name: &str, shape: &[usize]| (name.to_string(), shape.to_vec());
    let all = space("Spaces-parts-v0", "");
    let of_arm = [part("arm.joints", &[2]), part("arm.closed", &[1])];
    let expected = [&of_arm[..], &[part("depth", &[2, 7, 8]), part("mission", &[1]), part("view", &[3, 6, 5])]].concat();
    assert_eq!(parts(&all), expected);
    assert_eq!((all.len(), all.n_inputs()), (2 + 1 + 112 + 1 + 90, 2 + 2 + 112 + 6 + 90));
    assert_eq!(parts(&space("Spaces-parts-v0", "view, mission")), [part("mission", &[1]), part("view", &[3, 6, 5])]);
    assert_eq!(parts(&space("Spaces-depth-v0", "")), [part("picture", &[2, 7, 8])]);

    assert_eq!(parts(&space("Spaces-empty-v0", "")), [part("x", &[2])]);
    assert_eq!(parts(&space("Spaces-twice-v0", "")), [part("a.b", &[1]), part("a.b'", &[2])]);
    let settings = WorkerConfig { float_images: false, ..WorkerConfig::default() };
    let options = WorkerOptions { settings, python: python(), ..WorkerOptions::default() };
    assert_eq!(parts(&gym("tests.worker_envs:Spaces-depth-v0", &options).unwrap().spaces().obs), []);

    let refused = |id: &str, keys: &str| open_with(id, keys, true).unwrap_err().to_string();
    let error = refused("Spaces-freely-v0", "");
    assert!(error.contains("leave out 'mission' by --set env.keys=arm,depth,view"), "{error}");
    assert_eq!(space("Spaces-freely-v0", "arm,view").len(), 93);
    let error = refused("Spaces-parts-v0", "arm,vew");
    assert!(
        error.contains("env.keys has 'vew', which is no part of the observations; there are arm, depth, mission, view"),
        "{error}"
    );
    let error = refused("Spaces-f32-v0", "arm");
    assert!(error.contains("env.keys names parts of a Dict, but observations are Box"), "{error}");
}

#[test]
fn pictures_among_parts_are_planes_that_are_divided_by_255_unless_asked_otherwise() {
    if python().is_none() {
        return;
    }
    let seen = |normalize_images: bool| {
        let mut envs = open_with("Spaces-parts-v0", "", normalize_images).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(1, &mut steps).unwrap();
        assert_eq!(envs.observation_space().high()[205], if normalize_images { 1.0 } else { 255.0 });
        numbers(&steps.obs, 0, 206)
    };
    let (scaled, bytes) = (seen(true), seen(false));
    assert_eq!(scaled[..116], bytes[..116]);
    assert!((0.0..=1.0).contains(&scaled[3]) && (0.0..6.0).contains(&scaled[115]));
    for (x, byte) in scaled[116..].iter().zip(&bytes[116..]) {
        assert!(byte.fract() == 0.0 && (*x - byte / 255.0).abs() < 1e-7, "{x}, {byte}");
    }
    assert!(bytes[116..].iter().any(|byte| *byte > 200.0));
    assert_eq!(open_with("Spaces-image-v0", "", false).unwrap().spaces().obs.scale(), 1.0);
}

#[test]
fn several_inputs_are_learnt_from_with_convolutions_that_fit_them() {
    if python().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, settings: &[&str]| {
        let dir = dir.path().join(name);
        let trained = train("Spaces-parts-v0", &json!({}), &[settings, &["ppo.n_epochs=1"]].concat(), &dir);
        (trained, checkpoint::config(&dir, false).unwrap().net)
    };
    let (one, net) = run("one", &["workers=1"]);
    assert_eq!((net.conv, net.hidden, net.shared_trunk), (vec![[16, 2, 1], [32, 2, 1], [64, 2, 1]], vec![8], true));
    assert_eq!(run("three", &["workers=3"]).0, one, "threads and workers change no bit");
    assert_eq!(run("dense", &["conv=[]"]).1.activation, rl_agents::Activation::Tanh);
    let memory = run("memory", &["memory=gru", "normalize_obs=true", "ppo.batch_size=80"]).0;
    assert!(memory.1.iter().all(|x| x.is_finite()) && memory.1.len() > one.1.len());
    let Some(python) = python() else { return };
    for name in ["one", "memory", "dense"] {
        let mut export = rl(&["export", "--as", "c", "--out", &format!("{name}.c"), "--trust"]);
        let export = export.arg(dir.path().join(name)).env("RL_PYTHON", &python).env("PYTHONPATH", with_tests());
        let output = finish(export.current_dir(dir.path()));
        let [said, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success() && said.contains("check: 64 of 64"), "{name}: {said}{error}");
    }
}

#[test]
fn games_of_atari_are_prepared_unless_their_own_pictures_are_asked_for() {
    let Some(python) = python_with("ale_py, cv2", "RL_REQUIRE_GYM") else { return };
    let open = |atari_preprocessing: bool, kwargs: Value| {
        let settings = WorkerConfig { atari_preprocessing, ..WorkerConfig::default() };
        let options =
            WorkerOptions { settings, kwargs: kwargs.to_string(), python: Some(python.clone()), ..WorkerOptions::default() };
        gym("ALE/Pong-v5", &options)
    };
    let shape = |atari: bool, kwargs: Value| open(atari, kwargs).unwrap().spaces().obs.shape().to_vec();
    assert_eq!(shape(true, json!({})), [1, 84, 84]);
    assert_eq!(shape(true, json!({"frameskip": 5})), [1, 84, 84]);
    assert_eq!(shape(false, json!({})), [3, 210, 160]);
    assert_eq!(shape(true, json!({"obs_type": "ram"})), [128]);
    let error = open(true, json!({"frameskip": [2, 5]})).unwrap_err();
    assert!(
        error.exit_code() == 2 && error.to_string().contains("frameskip is [2, 5]; env.atari_preprocessing takes every"),
        "{error}"
    );
}

#[test]
fn a_lost_life_ends_an_episode_and_returns_are_of_whole_games() {
    let Some(python) = python() else { return };
    let settings = WorkerConfig { episodic_life: true, ..WorkerConfig::default() };
    let open = |id: &str, python: &Path| {
        gym(id, &WorkerOptions { settings: settings.clone(), python: Some(python.into()), ..WorkerOptions::default() })
    };
    let id = "tests.worker_envs:Lives-v0";
    let mut envs = open(id, &python).unwrap().slices(2, 1, 1).unwrap().remove(0);
    let (mut steps, mut ends) = (Steps::new(&*envs), Vec::new());
    envs.reset(7, &mut steps).unwrap();
    for t in 1..=22 {
        envs.step(&mut steps).unwrap();
        let seen = |obs: &ObsRows| numbers(obs, 1, 16)[0];
        assert_eq!((steps.done(1), steps.truncated[1]), (steps.terminated[1] == 1, 0));
        if steps.done(1) {
            ends.push((t, envs.goes_on(1), seen(&steps.final_obs), seen(&steps.obs)));
        }
    }
    let game = [(3, true, 3.0, 3.0), (7, true, 7.0, 7.0), (11, false, 11.0, 0.0)];
    let games: Vec<_> = game.into_iter().chain(game.map(|(t, goes_on, last, next)| (t + 11, goes_on, last, next))).collect();
    assert_eq!(ends, games);
    envs.restart(1, ObsSliceMut::U8(&mut [0; 16]), None).unwrap();
    assert!(!envs.goes_on(1));
    let error = open("CartPole-v1", &python).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("env.episodic_life is for games of the Arcade"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let run = |args: &str| {
        let mut command = rl(&args.split(' ').collect::<Vec<_>>());
        let output = finish(command.env("RL_PYTHON", &python).env("PYTHONPATH", with_tests()).current_dir(dir.path()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (algo, small) in [
        ("ppo", "--set ppo.n_steps=20 --set ppo.batch_size=40"),
        ("dqn", "--set dqn.buffer_size=500 --set dqn.learning_starts=40 --set env.frame_stack=2 --set dqn.n_steps=2"),
    ] {
        let train = format!(
            "train gym:{id} --algo {algo} --steps 400 --envs 2 --set env.episodic_life=true {small} --set hidden=[4] \
             --set eval_episodes=3 --run-dir {algo} --json"
        );
        run(&train);
        let evaluated: Value = serde_json::from_str(&run(&format!("eval {algo} --episodes 2 --trust --json"))).unwrap();
        assert_eq!(evaluated["return_mean"], 22.0, "{algo}: {evaluated}");
        let metrics = std::fs::read_to_string(dir.path().join(algo).join("metrics.csv")).unwrap();
        let mut rows = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = rows.next().unwrap();
        let [n, mean, length] = ["time/episodes", "rollout/ep_rew_mean", "rollout/ep_len_mean"]
            .map(|name| names.iter().position(|other| *other == name).unwrap_or_else(|| panic!("{name} in {names:?}")));
        let last = rows.next_back().unwrap();
        assert_eq!((last[n], last[mean], last[length]), ("36", "22", "11"), "{algo}");
    }

    let Some(python) = python_with("ale_py, cv2", "RL_REQUIRE_GYM") else { return };
    let mut envs = open("ALE/Breakout-v5", &python).unwrap().slices(1, 1, 1).unwrap().remove(0);
    let (mut steps, mut lost, mut games) = (Steps::new(&*envs), 0, 0);
    envs.reset(3, &mut steps).unwrap();
    let mut random = RandomActions::new(5, 1, envs.action_space());
    while games < 2 {
        random.fill_legal(&mut steps);
        envs.step(&mut steps).unwrap();
        lost += u32::from(envs.goes_on(0));
        games += u32::from(steps.done(0) && !envs.goes_on(0));
    }
    assert_eq!(lost, 2 * 4, "a game of Breakout has five lives");
}

#[test]
fn frames_of_workers_are_stacked() {
    if python().is_none() {
        return;
    }
    let wrappers = Wrappers { frame_stack: 3, ..Wrappers::default() };
    let (plain, entry) = (open("Spaces-image-v0", &json!({})), open("Spaces-image-v0", &json!({})).wrapped(wrappers));
    assert_eq!((entry.spaces().obs.shape(), entry.spaces().obs.stack()), (&[9, 6, 5][..], 3));
    let frames = |entry: &Entry| {
        let mut envs = entry.slices(2, 1, 1).unwrap().remove(0);
        let (mut steps, d) = (Steps::new(&*envs), envs.observation_space().len());
        envs.reset(7, &mut steps).unwrap();
        let mut seen = vec![f32s(&steps.obs, 1, d)];
        while !steps.done(1) {
            envs.step(&mut steps).unwrap();
            seen.push(f32s(if steps.done(1) { &steps.final_obs } else { &steps.obs }, 1, d));
        }
        seen
    };
    let (frames, stacks) = (frames(&plain), frames(&entry));
    assert_eq!(frames.len(), stacks.len());
    for (t, stack) in stacks.iter().enumerate() {
        let expected: Vec<f32> = (0..3).flat_map(|back| frames[t.saturating_sub(2 - back)].clone()).collect();
        assert_eq!(*stack, expected, "step {t}");
    }
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, setting: &str| {
        train("Spaces-image-v0", &json!({}), &["env.frame_stack=2", "env.reward_clip=0.5", setting], &dir.path().join(name))
    };
    assert_eq!(run("one", "workers=1"), run("two", "workers=2"));
}

#[test]
fn workers_limit_episodes_repeat_actions_and_make_pictures_smaller() {
    let Some(python) = python_with("cv2", "RL_REQUIRE_GYM") else { return };
    let open = |id: &str, wrappers: Wrappers, grayscale: bool, resize: usize| {
        let settings = WorkerConfig { grayscale, resize, ..WorkerConfig::default() };
        gym(id, &WorkerOptions { settings, wrappers, python: Some(python.clone()), ..WorkerOptions::default() })
    };
    let first_episode = |wrappers: Wrappers| {
        let mut envs = open("Pendulum-v1", wrappers, false, 0).unwrap().slices(1, 1, 1).unwrap().remove(0);
        let mut steps = Steps::new(&*envs);
        envs.reset(7, &mut steps).unwrap();
        let mut rewards = Vec::new();
        while !steps.done(0) {
            envs.step(&mut steps).unwrap();
            rewards.push(steps.rewards[0]);
        }
        assert_eq!((steps.terminated[0], steps.truncated[0]), (0, 1));
        rewards
    };
    let plain = first_episode(Wrappers::default());
    let wrapped = first_episode(Wrappers { time_limit: 10, action_repeat: 3, ..Wrappers::default() });
    assert_eq!((plain.len(), wrapped.len()), (200, 4), "the last action is taken once");
    for (sum, rewards) in wrapped.iter().zip(plain[..10].chunks(3)) {
        assert!((sum - rewards.iter().sum::<f32>()).abs() < 1e-5);
    }

    let image = "tests.worker_envs:Spaces-image-v0";
    let shape = |grayscale, resize| open(image, Wrappers::default(), grayscale, resize).unwrap().spaces().obs.shape().to_vec();
    assert_eq!((shape(true, 0), shape(false, 4), shape(true, 4)), (vec![1, 6, 5], vec![3, 4, 4], vec![1, 4, 4]));
    let planes = "tests.worker_envs:Spaces-planes-v0";
    for (id, grayscale) in [(image, false), (planes, false), (image, true), (planes, true)] {
        let first = |grayscale: bool, resize: usize| {
            let mut envs = open(id, Wrappers::default(), grayscale, resize).unwrap().slices(1, 1, 1).unwrap().remove(0);
            let mut steps = Steps::new(&*envs);
            envs.reset(5, &mut steps).unwrap();
            numbers(&steps.obs, 0, envs.observation_space().len())
        };
        let (whole, one) = (first(false, 0), first(grayscale, 1));
        let means: Vec<_> = whole.chunks(30).map(|plane| plane.iter().sum::<f64>() / 30.0).collect();
        let expected = if grayscale { vec![0.2125 * means[0] + 0.7154 * means[1] + 0.0721 * means[2]] } else { means };
        let is_near = |(x, expected): (&f64, &f64)| (x - expected).abs() < 1.5; // each rounds
        assert!(one.len() == expected.len() && one.iter().zip(&expected).all(is_near), "{id}: {one:?}, not {expected:?}");
    }
    let error = open("CartPole-v1", Wrappers::default(), true, 0).unwrap_err();
    let expected = "env.grayscale is for pictures of three colours, bytes from 0 to 255, and observations are Box([";
    assert!(error.exit_code() == 2 && error.to_string().contains(expected), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = rl(args);
        let output = finish(command.env("RL_PYTHON", &python).env("PYTHONPATH", with_tests()).current_dir(dir.path()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let smaller = ["env.grayscale=true", "env.resize=4", "env.frame_stack=2", "env.time_limit=3", "env.action_repeat=2"];
    let settings = smaller.into_iter().chain(["ppo.n_steps=20", "ppo.batch_size=40", "eval_episodes=1"]);
    let settings: Vec<_> = settings.flat_map(|setting| ["--set", setting]).collect();
    let name = format!("gym:{image}");
    run(&[&["train", &name, "--steps", "80", "--envs", "2", "--run-dir", "run"], &settings[..]].concat());
    assert_eq!(checkpoint::config(&dir.path().join("run"), false).unwrap().net.conv, [[16, 2, 1], [32, 2, 1], [64, 2, 1]]);
    let evaluated: Value = serde_json::from_str(&run(&["eval", "run", "--episodes", "30", "--trust", "--json"])).unwrap();
    let length = evaluated["length_mean"].as_f64().unwrap();
    assert!(length <= 2.0, "{length} steps of two actions each, of which an episode has three");
}

#[test]
fn pictures_among_parts_are_made_smaller_and_an_exported_policy_acts_alike_in_gymnasium() {
    let Some(python) = python_with("cv2", "RL_REQUIRE_GYM") else { return };
    let settings = WorkerConfig { grayscale: true, resize: 4, ..WorkerConfig::default() };
    let options = WorkerOptions { settings, python: Some(python.clone()), ..WorkerOptions::default() };
    let space = gym("tests.worker_envs:Shown-v0", &options).unwrap().spaces().obs;
    let parts: Vec<_> = space.parts().iter().map(|part| (&*part.name, &part.shape[..])).collect();
    let expected: [(_, &[usize]); 5] =
        [("arm.joints", &[2]), ("arm.closed", &[1]), ("depth", &[2, 7, 8]), ("mission", &[1]), ("view", &[1, 4, 4])];
    assert_eq!(parts, expected);

    let dir = tempfile::tempdir().unwrap();
    let run = |command: &mut Command| {
        command.env("RL_PYTHON", &python).env("PYTHONPATH", with_tests()).current_dir(dir.path());
        let output = finish(command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let train = "train gym:tests.worker_envs:Shown-v0 --steps 4096 --envs 2 --set env.grayscale=true --set env.resize=4 \
                 --set conv=[[8,2,1]] --set hidden=[32] --set activation=tanh --set ppo.n_steps=64 --set ppo.batch_size=64 \
                 --set ppo.learning_rate=3e-3 --set ppo.gamma=0 --set eval_episodes=1 --run-dir run";
    run(&mut rl(&train.split_whitespace().collect::<Vec<_>>()));
    let evaluated: Value = serde_json::from_str(&run(&mut rl(&["eval", "run", "--episodes", "1", "--trust", "--json"]))).unwrap();
    let mean = evaluated["return_mean"].as_f64().unwrap();
    assert!(mean > 298.0, "{mean} of 528, of which one action alone gets 298");
    let Some(with_onnx) = python_with("onnxruntime", "RL_REQUIRE_ONNX") else { return };
    run(&mut rl(&["export", "run", "--as", "onnx", "--out", "policy.onnx", "--trust"]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/play_onnx.py");
    let args = ["policy.onnx", "tests.worker_envs:Shown-v0", "--episodes", "2", "--grayscale", "--resize", "4"];
    let played = run(Command::new(with_onnx).arg(script).args(args));
    assert!(played.contains(&format!("return {mean:.1} +- 0.0")), "{played}, not {mean}");
}
