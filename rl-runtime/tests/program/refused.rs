//! Checks of settings from every source, which report all problems at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{finish, load, rl, text};
use rl_agents::settings::{Key, Kind, OnNonfinite};
use rl_agents::{A2c, A2cConfig, ActorCritic, Dqn, DqnConfig, LearnerKind, NetConfig, Ppo, PpoConfig, QNetwork};
use rl_runtime::checkpoint;
use rl_runtime::config::{self, Layers};
use rl_runtime::run_dir::RunDir;
use rl_runtime::{Algo, Config, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

const SMALL: [&str; 6] = ["steps=64", "n_envs=4", "hidden=[2]", "ppo.n_steps=8", "ppo.batch_size=16", "eval_episodes=1"];

fn resolve(env: &str, algo: Algo, assignments: &[&str]) -> Result<Config, Error> {
    let mut layers = Layers::default();
    assignments.iter().for_each(|assignment| layers.add_assignment(assignment));
    layers.resolve(rl_envs::catalog::find(env)?, algo)
}

fn problems(result: Result<Config, Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

/// Runs `rl`, expects this exit code, and returns stderr.
fn ends(code: i32, args: &[&str]) -> String {
    let output = finish(&mut rl(args));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    text
}

/// Trains a small run in `dir`.
fn small_run(dir: &Path) -> PathBuf {
    let run = dir.join("run");
    let settings = SMALL.iter().flat_map(|setting| ["--set", *setting]);
    let args: Vec<&str> = ["train", "cartpole", "--run-dir", text(&run)].into_iter().chain(settings).collect();
    ends(0, &args);
    run
}

/// Replaces the line of a setting.
fn edited(toml: &str, key: &str, value: &str) -> String {
    let line = format!("{key} = {value}");
    let lines: Vec<String> =
        toml.lines().map(|old| if old.split(" =").next() == Some(key) { line.clone() } else { old.into() }).collect();
    assert!(lines.contains(&line), "{key} is no setting of\n{toml}");
    lines.join("\n") + "\n"
}

/// Returns the values at the bounds of a kind, and those just outside.
fn bounds(kind: Kind) -> (Vec<Value>, Vec<Value>) {
    let float = |x: f32| Value::Float(f64::from(x));
    let outside = |low: f64, high: f64| vec![float((low as f32).next_down()), float((high as f32).next_up())];
    match kind {
        Kind::Int(low, high) => {
            (vec![low.into(), high.into()], vec![(low - 1).into(), high.checked_add(1).map_or("many".into(), Value::from)])
        }
        Kind::Float(low, high) => {
            (vec![low.into(), high.into()], [outside(low, high), vec![f64::NAN.into(), f64::INFINITY.into()]].concat())
        }
        Kind::Schedule(low, high) => {
            let lin = |x: f32| Value::from(format!("lin_{x:e}"));
            let numbers = [outside(low, high), vec![f64::NAN.into(), "lin_nan".into()]].concat();
            let lins = vec![lin((low as f32).next_down()), lin((high as f32).next_up())];
            (vec![low.into(), high.into(), format!("lin_{high}").into()], [numbers, lins].concat())
        }
        Kind::OrAuto(low, high) => (
            vec![low.into(), high.into(), "auto".into()],
            [outside(low, high), vec![f64::NAN.into(), "automatic".into()]].concat(),
        ),
        Kind::Sizes => {
            let sizes = |sizes: &[i64]| Value::from(sizes.to_vec());
            (vec![sizes(&[1]), sizes(&[65_536])], vec![sizes(&[0]), sizes(&[65_537]), sizes(&[1; 65])])
        }
        Kind::Conv => {
            let layer = |sizes: [i64; 3]| Value::from(vec![Value::from(sizes.to_vec())]);
            (vec![layer([1, 1, 1]), layer([4096, 4096, 4096])], vec![layer([0, 1, 1]), layer([1, 4097, 1]), layer([1, 1, 0])])
        }
        Kind::Bool => (vec![true.into()], vec![]),
        Kind::Choice(choices) => (choices.iter().map(|&choice| choice.into()).collect(), vec![]),
        Kind::Text(..) => (vec![], vec![]),
    }
}

/// Returns `config` with another value, or `None` if its type cannot hold that.
fn with<C: Serialize + DeserializeOwned>(config: &C, key: &Key, value: &Value) -> Option<C> {
    let mut table = Table::try_from(config).unwrap();
    assert!(table.insert(key.field().into(), value.clone()).is_some(), "{} is no field", key.name);
    table.try_into().ok()
}

/// Returns true unless the constructor rejects the range of a setting.
fn constructs(key: &Key, value: &Value) -> bool {
    let rl_envs::Spaces { obs, actions } = rl_envs::catalog::find("cartpole").unwrap().spaces();
    let small = NetConfig { hidden: vec![2], learner: LearnerKind::Reference, ..NetConfig::default() };
    let policy = || ActorCritic::new(&obs, &actions, &small, 0).unwrap();
    let result = match key.name.split_once('.').map(|(section, _)| section) {
        Some("ppo") => with(&PpoConfig::default(), key, value).map(|config| Ppo::new(policy(), config, 8, 0).map(drop)),
        Some("a2c") => with(&A2cConfig::default(), key, value).map(|config| A2c::new(policy(), config, 8, 0).map(drop)),
        Some(_) => with(&DqnConfig { buffer_size: 100, ..DqnConfig::default() }, key, value).map(|config| {
            let network = QNetwork::new(&obs, &actions, &small, false, 0).unwrap();
            Dqn::new(network, config, &obs, &actions, 8, 0).map(drop)
        }),
        None => with(&NetConfig { critic_hidden: Some(vec![2]), ..small.clone() }, key, value)
            .map(|net| ActorCritic::new(&obs, &actions, &net, 0).map(drop)),
    };
    match result {
        None => false,
        Some(Err(rl_agents::Error::Range { name, .. })) => {
            assert_eq!(name, key.field());
            false
        }
        Some(_) => true,
    }
}

#[test]
fn every_setting_is_judged_alike_by_the_program_and_by_the_constructor() {
    let accepts = |key: &Key, value: &Value| {
        let algo = Algo::all().into_iter().find(|algo| key.name.starts_with(&format!("{}.", algo.name())));
        let mut layers = Layers::default();
        layers.add(key.name, value.clone(), "here".into());
        match layers.resolve(rl_envs::catalog::find("cartpole").unwrap(), algo.unwrap_or(Algo::PPO)) {
            Err(Error::Config { problems }) => !problems.iter().any(|problem| problem.contains("it must be")),
            other => other.is_ok(),
        }
    };
    let of_constructors = [NetConfig::KEYS, PpoConfig::KEYS, A2cConfig::KEYS, DqnConfig::KEYS].concat();
    for key in config::keys() {
        let (inside, outside) = bounds(key.kind);
        let constructed = of_constructors.iter().any(|other| other.name == key.name);
        for (values, allowed) in [(inside, true), (outside, false)] {
            for value in values {
                assert_eq!(accepts(key, &value), allowed, "the program: {} = {value}", key.name);
                assert!(!constructed || constructs(key, &value) == allowed, "the constructor: {} = {value}", key.name);
            }
        }
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = problems(resolve(
        "cartpole",
        Algo::PPO,
        &["ppo.gama=1", "ppo.batch_size=511", "conv=[[1,1,1]]", "collect_threads=100", "threads=2", "keep_checkpoints=0"],
    ));
    for part in [
        "--set: unknown setting \"ppo.gama\" (did you mean \"ppo.gamma\"?)",
        "batch_size 511 does not divide the rollout of 256 samples",
        "conv is [[1, 1, 1]] over observations of shape [4]",
        "collect_threads is 100, more than",
        "--set: keep_checkpoints is 0; it must be a whole number from 1",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(text.lines().count(), 5, "{text}");
    // A minibatch is not compared with a default rollout whose override is invalid.
    assert_eq!(problems(resolve("cartpole", Algo::PPO, &["ppo.n_steps=0", "ppo.batch_size=511"])).lines().count(), 1);
}

#[test]
fn what_an_environment_s_spaces_refuse_is_refused_with_the_settings() {
    let text = problems(resolve("pendulum", Algo::DQN, &["steps=0"]));
    assert!(text.contains("algo is dqn, which needs discrete actions, but pendulum's are continuous"), "{text}");
    assert!(text.contains("steps is 0"), "{text}");
    let text = problems(resolve("cartpole", Algo::DQN, &["normalize_obs=true"]));
    assert!(text.contains("DQN does not normalize observations"), "{text}");
    assert!(problems(resolve("cartpole", Algo::DQN, &["hidden=[]", "dqn.dueling=true"])).contains("needs a hidden layer"));
    assert!(problems(resolve("cartpole", Algo::DQN, &["critic_hidden=[8]"])).contains("DQN has one network; set hidden"));
    let text = problems(resolve("cartpole", Algo::PPO, &["critic_hidden=[8]", "shared_trunk=true"]));
    assert!(text.contains("critic_hidden is [8], but the value function shares"), "{text}");
}

#[test]
fn memory_is_refused_where_nothing_learns_with_it() {
    let named = |name| Algo::all().into_iter().find(|algo| algo.name() == name).unwrap();
    for (env, algo) in [("cartpole", "dqn"), ("pendulum", "sac"), ("pendulum", "td3")] {
        let text = problems(resolve(env, named(algo), &["memory=lstm"]));
        assert!(text.contains("memory is lstm, but only PPO and A2C learn with memory"), "{text}");
    }
    let text = problems(resolve("cartpole", Algo::PPO, &["memory=gru", "ppo.batch_size=16"]));
    assert!(text.contains("batch_size is 16, but with memory a minibatch is made of whole columns"), "{text}");
    let text = problems(resolve("cartpole", Algo::A2C, &["memory=gru", "learner=reference", "a2c.micro_batch=8"]));
    assert!(text.contains("micro_batch is 8, but with memory learner = \"reference\" holds whole minibatches"), "{text}");
    let text = problems(resolve("snake", Algo::PPO, &["env.hide=velocities"]));
    assert!(text.contains("env.hide hides the velocities that an environment names, and snake names none"), "{text}");
    let config = resolve("pendulum", Algo::A2C, &["memory=lstm", "env.hide=velocities", "device=emulated", "learner=reference"]);
    assert_eq!(config.unwrap().net.memory_size, 64);
}

#[test]
fn a_precision_is_refused_for_the_tile_kernel_and_kept_for_the_reference() {
    for algo in [Algo::PPO, Algo::A2C, Algo::DQN] {
        for precision in ["bf16", "f16"] {
            let precision = format!("precision={precision}");
            let text = problems(resolve("cartpole", algo, &[&precision]));
            let named = format!("{}, but the tile kernel computes in f32 only", precision.replace('=', " is "));
            assert!(text.contains(&named) && text.lines().count() == 1, "{text}");
            let config = resolve("cartpole", algo, &[&precision, "learner=reference"]).unwrap();
            assert_eq!(format!("precision={}", config.net.precision.dtype().as_str()), precision);
        }
    }
}

#[test]
fn settings_without_effect_are_refused_and_surprising_ones_are_warned_of() {
    let text = problems(resolve("cartpole", Algo::DQN, &["steps=500", "dqn.learning_starts=1000"]));
    assert!(text.contains("dqn.learning_starts is 1000, but steps is 500"), "{text}");
    for (algo, key) in [(Algo::PPO, "ppo.micro_batch"), (Algo::A2C, "a2c.micro_batch"), (Algo::DQN, "dqn.micro_batch")] {
        // Without a GPU, auto is the CPU.
        let devices = if rl_cuda::Device::name_of(0).is_err() { &["device=cpu", "device=auto"][..] } else { &["device=cpu"] };
        for device in devices {
            let text = problems(resolve("cartpole", algo, &[&format!("{key}=16"), device]));
            assert!(text.contains("micro_batch is 16") && text.contains("learner = \"reference\""), "{text}");
            assert_eq!(text.contains("which auto chooses (there is no GPU: "), *device == "device=auto", "{text}");
        }
        resolve("cartpole", algo, &[&format!("{key}=16"), "device=cpu", "learner=reference"]).unwrap();
        resolve("cartpole", algo, &[&format!("{key}=16"), "device=emulated"]).unwrap();
    }

    for (env, algo, settings, expected) in [
        ("cartpole", Algo::DQN, &["n_envs=32", "dqn.target_update_interval=31"][..], "dqn.target_update_interval is 31"),
        ("cartpole", Algo::DQN, &["n_envs=32", "dqn.target_update_interval=32"], ""),
        // Pictures need convolutions, a board of 12 x 12 does not.
        ("cartpole", Algo::PPO, &["env.pixels=84", "conv=[]"], "pictures of 1 x 84 x 84, and conv is empty"),
        ("cartpole", Algo::PPO, &["env.pixels=84"], ""),
        ("snake", Algo::PPO, &["conv=[]"], ""),
    ] {
        let warnings = resolve(env, algo, settings).unwrap().warnings(rl_envs::catalog::find(env).unwrap());
        assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{settings:?}: {warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(expected)), "{settings:?}: {warnings:?}");
    }
}

#[test]
fn an_automatic_minibatch_of_dqn_learns_from_each_transition_eight_times() {
    for (settings, expected) in [
        (&[][..], 32),
        (&["dqn.train_freq=256"], 2048),
        (&["dqn.train_freq=256", "dqn.gradient_steps=4"], 512),
        (&["dqn.train_freq=1", "dqn.gradient_steps=8"], 32),
        (&["dqn.train_freq=256", "dqn.buffer_size=1000", "dqn.learning_starts=10"], 1000),
    ] {
        let defaults = ["dqn.batch_size=auto", "dqn.gradient_steps=1", "dqn.train_freq=4"];
        let config = resolve("acrobot", Algo::DQN, &[&defaults, settings].concat()).unwrap();
        assert_eq!(config.algo.get::<DqnConfig>().unwrap().batch_size, expected, "{settings:?}");
    }
    assert!(problems(resolve("acrobot", Algo::PPO, &["dqn.batch_size=auto"])).contains("has no effect, the algorithm is ppo"));
}

/// Edits that the configuration of a run or checkpoint must not have.
const EDITS: [(&str, &[&str]); 22] = [
    ("keep_checkpoints", &["0"]),
    ("device", &["\"zzz\"", "5"]),
    ("checkpoint_every", &["-1"]),
    ("log_interval", &["0"]),
    ("eval_episodes", &["0"]),
    ("threads", &["100000000", "0"]),
    ("max_lag", &["100000", "-1"]),
    ("steps", &["0"]),
    ("n_envs", &["0"]),
    ("seed", &["-1"]),
    ("hidden", &["[0]", "[4611686018427387904]"]),
    ("conv", &["[[0, 1, 1]]"]),
    ("gamma", &["-1", "7", "nan"]),
    ("learning_rate", &["-1", "nan", "\"lin_nan\""]),
    ("clip_range", &["nan", "-0.1"]),
    ("n_epochs", &["0"]),
    ("max_grad_norm", &["0", "nan"]),
    ("vf_coef", &["nan", "-1"]),
    ("batch_size", &["-1", "5"]),
    ("env", &["5"]),
    ("algo", &["\"a2c\"", "\"ppq\"", "5"]),
    ("log_std_init", &["inf"]),
];

#[test]
fn an_edited_file_of_a_run_is_refused_with_its_name_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let run = small_run(dir.path());
    let file = run.join("config.toml");
    let good = fs::read_to_string(&file).unwrap();
    let newest = checkpoint::list(&run.join("checkpoints")).unwrap().pop().unwrap();
    let (manifest, saved) = (newest.join("manifest.json"), newest.join("config.toml"));
    let good_manifest = fs::read_to_string(&manifest).unwrap();
    let good_hash = blake3::hash(&fs::read(&saved).unwrap()).to_string();
    let good_len = fs::metadata(&saved).unwrap().len();
    for (key, value) in EDITS.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value))) {
        let bad = edited(&good, key, value);
        fs::write(&file, &bad).unwrap();
        let error = RunDir::open(&run).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{key} = {value}: {error}");
        let text = error.to_string();
        assert!(text.contains("run/config.toml") && text.contains(key), "{key} = {value}: {text}");

        // The same settings in a checkpoint, with a matching hash.
        let bad = edited(&fs::read_to_string(&saved).unwrap(), key, value);
        let hash = blake3::hash(bad.as_bytes()).to_string();
        let forged = good_manifest
            .replace(&good_hash, &hash)
            .replace(&format!("\"bytes\": {good_len},"), &format!("\"bytes\": {},", bad.len()));
        let before = fs::read(&saved).unwrap();
        fs::write(&saved, &bad).unwrap();
        fs::write(&manifest, &forged).unwrap();
        let error = load(&newest).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{key} = {value}: {error}");
        assert!(error.to_string().contains("config.toml") && error.to_string().contains(key), "{key} = {value}: {error}");
        fs::write(&saved, before).unwrap();
        fs::write(&manifest, &good_manifest).unwrap();
    }
    // What does not fit the environment, or names none, contradicts the checkpoint, which is looked at first.
    for (key, value) in [("conv", "[[1, 1, 1]]"), ("env", "\"cartpool\"")] {
        fs::write(&file, edited(&good, key, value)).unwrap();
        let error = ends(3, &["train", "--resume", text(&run), "--steps", "128"]);
        assert!(error.contains(if key == "env" { "cartpool" } else { key }), "{key} = {value}: {error}");
    }
    // Several problems at once through the program, which reports all of them.
    fs::write(&file, edited(&edited(&good, "keep_checkpoints", "0"), "device", "\"zzz\"")).unwrap();
    let error = ends(2, &["train", "--resume", text(&run), "--steps", "128"]);
    assert!(error.contains("keep_checkpoints is 0") && error.contains("device is \"zzz\""), "{error}");
    assert_eq!(load(&newest).unwrap().progress.env_steps, 64);
}

#[test]
fn a_resumed_run_may_change_what_helps_after_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let run = small_run(dir.path());
    let args = ["train", "--resume", text(&run), "--steps", "128", "--set", "ppo.learning_rate=1e-5"];
    ends(0, &[&args[..], &["--set", "ppo.max_grad_norm=0.1", "--set", "ppo.clip_range=0.1", "--set", "log_interval=2"]].concat());
    let algo = ends(2, &["train", "--resume", text(&run), "--algo", "a2c"]);
    assert!(algo.contains("a2c"), "{algo}");
}

#[test]
fn a_configuration_file_that_is_no_small_text_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("my.toml");
    let mut layers = Layers::default();
    fs::write(&file, b"steps = 10 # \xff").unwrap();
    let error = layers.add_file(&file).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("my.toml: is not UTF-8"), "{error}");
    fs::write(&file, vec![b' '; (1 << 20) + 1]).unwrap();
    assert!(layers.add_file(&file).unwrap_err().to_string().contains("is larger than"));
    for path in [Path::new("/dev/zero"), dir.path()] {
        let error = layers.add_file(path).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("not a regular file"), "{error}");
    }
    let fifo = dir.path().join("fifo");
    assert!(finish(Command::new("mkfifo").arg(&fifo)).status.success());
    assert!(ends(2, &["train", "cartpole", "--config", text(&fifo)]).contains("not a regular file"));
    let run_dir = dir.path().join("run");
    fs::create_dir(&run_dir).unwrap();
    assert!(finish(Command::new("mkfifo").arg(run_dir.join("config.toml"))).status.success());
    assert!(ends(2, &["train", "--resume", text(&run_dir)]).contains("not a regular file"));
    assert!(ends(2, &["trace", "cartpole", "--init", text(&fifo), "--actions", "/dev/zero"]).contains("not a regular file"));
    for (key, also) in [("algo", "env = 'cartpole'"), ("env", "")] {
        fs::write(&file, format!("{key} = 5\n{also}")).unwrap();
        let error = ends(2, &["train", "--config", text(&file)]);
        assert!(error.contains(&format!("my.toml:1: {key} is 5; it must be a name in quotes")), "{error}");
    }
    fs::write(&file, format!("n_envs = '{}'", "x".repeat(100_000))).unwrap();
    let error = ends(2, &["train", "cartpole", "--config", text(&file)]);
    assert!(error.contains("xx..; it must be a whole number") && error.len() < 1000, "{} bytes: {error:.1000}", error.len());
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_limit_on_addresses_lets_begin_also_ends() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["hidden=[512,512]", "n_envs=64", "ppo.n_steps=8", "ppo.batch_size=256", "ppo.n_epochs=1", "eval_episodes=1"];
    // Each thread's heap took 64 MB of addresses; how many the program itself has depends on its build.
    for mb in [80, 100, 120, 168, 172, 180, 200] {
        let mut command = Command::new("bash");
        let run_dir = dir.path().join(mb.to_string());
        command.arg("-c").arg(format!("ulimit -c 0; ulimit -v {mb}000; exec \"$@\"")).arg("bash").arg(env!("CARGO_BIN_EXE_rl"));
        command.args(["train", "cartpole", "--steps", "512", "--set", "eval_max_steps=10", "--run-dir"]).arg(run_dir);
        let output = finish(command.args(settings.iter().flat_map(|setting| ["--set", setting])));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{mb} MB: {} {said}", output.status);
        assert!(output.status.success() || said.contains("of memory are needed"), "{mb} MB: {said}");
    }
}

#[test]
fn a_file_of_an_earlier_version_is_read() {
    let text = "\
env = \"cartpole\"\nalgo = \"ppo\"\nsteps = 64\nn_envs = 4\nseed = 0\nthreads = 2\ndevice = \"auto\"\npipeline = \"sync\"\n\
max_lag = 1\ncollect_threads = 0\ncheckpoint_every = 64\nkeep_checkpoints = 2\nlog_interval = 1\neval_every = 0\n\
eval_episodes = 1\nconv = []\nhidden = [2]\nactivation = \"tanh\"\nshared_trunk = false\nlearner = \"fused\"\n\
log_std_init = 0.0\nnormalize_obs = false\n\n[ppo]\nn_steps = 8\nbatch_size = 16\nn_epochs = 20\ngamma = 0.98\n\
gae_lambda = 0.8\nclip_range = \"lin_0.2\"\nclip_range_vf = 0.0\nnormalize_reward = false\nnormalize_advantage = true\n\
ent_coef = 0.0\nvf_coef = 0.5\nmax_grad_norm = 0.5\nlearning_rate = \"lin_0.001\"\nmicro_batch = 64\ntarget_kl = 0.0\n";
    let config = Config::from_toml(text, "config.toml").unwrap();
    let ppo = config.algo.get::<PpoConfig>().unwrap();
    assert_eq!((config.run.on_nonfinite, ppo.micro_batch), (OnNonfinite::Error, 64));
}

#[test]
fn what_does_not_fit_into_memory_ends_at_once_with_the_figures() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let limited = |kilobytes: u64, args: &str| {
        let command = format!("ulimit -v {kilobytes}; exec \"$0\" {args} --run-dir {}", text(&run));
        let output = finish(Command::new("sh").args(["-c", &command, env!("CARGO_BIN_EXE_rl")]));
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args}: {shown}");
        assert!(shown.contains("of memory are needed") && shown.contains("it would fit with"), "{args}: {shown}");
        assert!(!run.exists(), "{args} has begun to work");
        shown
    };
    let million = limited(2 << 20, "train cartpole --envs 1000000 --set ppo.n_epochs=1");
    assert!(million.contains("it would fit with n_envs = "), "{million}");
    let replay = limited(1 << 20, "train snake --algo dqn --set dqn.buffer_size=1000000");
    assert!(replay.contains("it would fit with dqn.buffer_size = "), "{replay}");
    for args in [
        &["train", "cartpole", "--set", "hidden=[65536,65536]"][..],
        &["train", "snake", "--envs", "16777216"],
        &["bench", "env", "snake", "--envs", "4294967295"],
        &["bench", "update", "--hidden", "65536,65536"],
        &["bench", "pipeline", "--hidden", "65536,65536"],
    ] {
        let more = ["--run-dir", text(&run)];
        let args = [args, if args[0] == "train" { &more } else { &[] }].concat();
        assert!(ends(2, &args).contains("of memory are needed"), "{args:?}");
        assert!(!run.exists(), "{args:?} has begun to work");
    }
    for args in [
        ["bench", "update", "--hidden", "18446744073709551615"],
        ["bench", "pipeline", "--hidden", "18446744073709551615"],
        ["bench", "update", "--conv", "18446744073709551615x1x1"],
        ["bench", "env", "--envs", "0"],
        ["bench", "replay", "--capacity", "18446744073709551615"],
    ] {
        let args = if args[1] == "env" { [&args[..2], &["cartpole"], &args[2..]].concat() } else { args.to_vec() };
        ends(2, &args);
    }
}

#[test]
fn a_saved_network_that_does_not_fit_is_refused_before_it_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let run = small_run(dir.path());
    let newest = checkpoint::list(&run.join("checkpoints")).unwrap().pop().unwrap();
    for file in [run.join("config.toml"), newest.join("config.toml")] {
        let huge = edited(&fs::read_to_string(&file).unwrap(), "hidden", "[65536, 65536, 65536]");
        fs::write(&file, huge).unwrap();
    }
    let manifest = newest.join("manifest.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let saved = fs::read(newest.join("config.toml")).unwrap();
    json["files"]["config.toml"]["bytes"] = saved.len().into();
    json["files"]["config.toml"]["blake3"] = blake3::hash(&saved).to_string().into();
    fs::write(&manifest, json.to_string()).unwrap();
    for args in [&["eval", text(&run)][..], &["train", "--resume", text(&run), "--steps", "128"]] {
        let error = ends(2, args);
        assert!(error.contains("of memory are needed") && !error.contains("remove this directory"), "{error}");
    }
}

#[test]
fn a_bench_of_updates_takes_any_minibatch() {
    for minibatch in ["50", "8191", "8193"] {
        ends(0, &["bench", "update", "--minibatch", minibatch, "--hidden", "2", "--seconds", "0.01", "--threads", "1"]);
    }
}

#[test]
fn the_setting_of_threads_counts_not_the_environment_s() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = SMALL.iter().chain(&["learner=reference"]).flat_map(|setting| ["--set", *setting]);
    let args: Vec<&str> = ["train", "cartpole", "--threads", "2", "--run-dir", text(&run)].into_iter().chain(settings).collect();
    let output = finish(rl(&args).env("RAYON_NUM_THREADS", "4096"));
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("RAYON_NUM_THREADS is 4096; threads = 2 overrides it"), "{shown}");
}

#[test]
fn a_dry_run_draws_no_networks() {
    // Drawing them takes a minute.
    let begin = std::time::Instant::now();
    let output = finish(&mut rl(&["train", "cartpole", "--dry-run", "--set", "hidden=[4096,4096]"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}
