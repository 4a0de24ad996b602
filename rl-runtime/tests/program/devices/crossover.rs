//! `rl bench crossover`, and the device that `auto` chooses by its measurement.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::harness::{can_compare, finish, newest, rl, text};
use serde_json::{Value, json};

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the bench on small sizes, with a cache directory of its own.
fn bench(cache: &Path, device: &str, options: &[&str]) -> Output {
    let small = ["--hidden", "8", "--envs", "2,4", "--seconds", "0.1", "--set", "ppo.n_steps=8", "--set", "ppo.batch_size=32"];
    let args = [&["bench", "crossover", "--device", device], &small[..], options].concat();
    finish(rl(&args).env("XDG_CACHE_HOME", cache))
}

#[test]
fn a_bench_prints_a_table_and_keeps_it_as_a_file() {
    if !can_compare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("not/yet/there");
    let output = bench(&cache, "emulated", &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output.stderr));
    let lines: Vec<String> = said(&output.stdout).lines().map(String::from).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[1].starts_with("hidden") && lines[1].ends_with("ratio  pays"), "{lines:?}");
    let cells = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    // Two networks of 4 inputs, 8 hidden units, and 2 outputs or 1; the settings' 2 minibatches.
    assert_eq!([&cells(&lines[2])[..4], &cells(&lines[3])[..4]], [["8", "107", "2", "8"], ["8", "107", "4", "16"]]);
    let file = cache.join("rl/crossover-the-host.json");
    assert!(lines[4].starts_with(text(&file)), "{lines:?}");
    let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!((&kept["version"], &kept["points"][1]["size"]), (&json!(2), &json!([107, 4, 16])));

    let output = bench(&cache, "emulated", &["--json", "--threads", "1", "--set", "ppo.n_epochs=1"]);
    let events: Vec<Value> = said(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((events.len(), &events[0]["name"], &events[0]["envs"]), (3, &json!("crossover"), &json!(2)));
    let ratio = events[1]["value"].as_f64().unwrap() / events[1]["cpu_value"].as_f64().unwrap();
    assert!((events[1]["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9 && ratio > 0.0, "{events:?}");
    assert_eq!(events[2], json!({"event": "crossover", "file": text(&file), "points": 2}));
    let again: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_ne!(again, kept, "measured again");
}

#[test]
fn what_cannot_be_measured_is_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    for (device, options, code, expected) in [
        ("cpu", &[][..], 2, "not cuda, cuda:i or emulated"),
        ("auto", &[], 2, "not cuda, cuda:i or emulated"),
        ("emulated", &["--set", "hidden=[4]"], 2, "hidden is varied by rl bench crossover"),
        ("emulated", &["--set", "ppo.n_steps=7"], 2, "does not divide the rollout"),
        ("emulated", &["--env", "slow_cartpole"], 2, "slow_cartpole"),
        ("cuda:1000000", &[], 1, "no CUDA device"),
    ] {
        let output = bench(dir.path(), device, options);
        assert_eq!(output.status.code(), Some(code), "{device} {options:?}: {}", said(&output.stderr));
        assert!(said(&output.stderr).contains(expected) && output.stdout.is_empty(), "{}", said(&output.stderr));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A machine with the stand-in as its GPU.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libstandin.so");
        fs::create_dir(dir.path().join("driver")).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            fs::copy(&library, dir.path().join("driver").join(name)).unwrap();
        }
        Self { dir }
    }

    /// Trains, and returns the device in the event `start`.
    fn train(&self, name: &str, args: &[&str], driver: &[(&str, &str)]) -> (String, Output) {
        let run = self.dir.path().join(name);
        let small = ["--envs", "4", "--set", "hidden=[8]", "--set", "ppo.n_steps=8", "--set", "ppo.batch_size=16"];
        let new =
            [&["cartpole", "--steps", "128", "--seed", "3", "--set", "eval_episodes=1"], &small[..], &["--run-dir", text(&run)]];
        let begin = if run.exists() { vec!["--resume", text(&run)] } else { new.concat() };
        let mut command = rl(&[&["train", "--json"], &begin[..], args].concat());
        command.env("LD_LIBRARY_PATH", self.dir.path().join("driver")).env("XDG_CACHE_HOME", self.dir.path());
        let output = finish(command.envs(driver.iter().copied()));
        assert!(output.status.success(), "{name}: {}", said(&output.stderr));
        let start: Value = serde_json::from_str(said(&output.stdout).lines().next().unwrap()).unwrap();
        (start["device"].as_str().unwrap().into(), output)
    }

    /// Writes a measurement of this machine, of one size.
    fn measured(&self, size: [usize; 3], ratio: f64) {
        let machine: toml::Table = fs::read_to_string(self.dir.path().join("first/machine.toml")).unwrap().parse().unwrap();
        let cpu = json!([machine["cpu"].as_str().unwrap(), machine["cores"].as_integer().unwrap()]);
        let points = json!([{"size": size, "cpu": 1000.0, "device": 1000.0 * ratio}]);
        let (device, threads) = ("stand-in", std::thread::available_parallelism().unwrap().get());
        self.write(&json!({"version": 2, "device": device, "cpu": cpu, "threads": threads, "points": points}).to_string());
    }

    fn write(&self, text: &str) {
        fs::create_dir_all(self.dir.path().join("rl")).unwrap();
        fs::write(self.dir.path().join("rl/crossover-stand-in.json"), text).unwrap();
    }
}

/// Returns the advice of the event `profile`.
fn advice(output: &Output) -> String {
    let events = said(&output.stdout);
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.find(|event| event["event"] == "profile").unwrap()["advice"].as_str().unwrap().into()
}

#[test]
fn auto_takes_a_gpu_where_its_measurement_says_that_it_pays() {
    let machine = Machine::new();
    let device = |name: &str, args: &[&str]| machine.train(name, args, &[]).0;
    let none = "cpu (chosen by auto: no measurement of this GPU; rl bench crossover makes one)";
    assert_eq!(device("first", &[]), none);
    machine.measured([107, 4, 16], 5.0);
    let pays = "stand-in for a device (chosen by auto: measured 5.00 times as fast as the CPU)";
    assert_eq!(device("pays", &[]), pays);
    let config = fs::read_to_string(machine.dir.path().join("pays/config.toml")).unwrap();
    assert!(config.contains("device = \"auto\""), "{config}");
    let learnt = |run: &str| fs::read(newest(&machine.dir.path().join(run)).join("params.safetensors")).unwrap();
    assert!(!crate::harness::can_compare() || learnt("pays") == learnt("first"));
    let (given, output) = machine.train("given", &["--device", "cpu", "--profile"], &[]);
    assert_eq!(given, "cpu");
    assert!(advice(&output).ends_with("; the GPU was measured 5.00 times as fast as the CPU: try --device cuda"));
    let reference = "cpu (chosen by auto: the measurement is not for the reference learner)";
    assert_eq!(device("reference", &["--set", "learner=reference"]), reference);
    machine.measured([107, 4, 17], 5.0);
    assert_eq!(device("smaller", &[]), "cpu (chosen by auto: the run is smaller than all that was measured)");
    machine.measured([107, 4, 16], 0.5);
    let (slower, output) = machine.train("slower", &["--profile"], &[]);
    assert_eq!(slower, "cpu (chosen by auto: the GPU was measured 0.50 times as fast as the CPU)");
    assert!(advice(&output).ends_with("; the GPU would hardly help: it was measured 0.50 times as fast as the CPU"));
    let (_, output) = machine.train("asked for", &["--device", "cuda", "--profile"], &[]);
    assert!(advice(&output).ends_with("; the GPU was measured 0.50 times as fast as the CPU: try --device cpu"));
    // A resumed run chooses again.
    assert_eq!(device("pays", &["--steps", "256"]), "cpu (chosen by auto: the GPU was measured 0.50 times as fast as the CPU)");
    machine.write("{\"version\": 1, \"points\": [");
    let damaged = device("damaged", &[]);
    assert!(damaged.starts_with("cpu (chosen by auto: the measurement in ") && damaged.contains(" is damaged; "), "{damaged}");
}

#[test]
fn auto_falls_back_to_the_cpu_where_the_gpu_has_too_little_memory() {
    let machine = Machine::new();
    machine.train("first", &[], &[]);
    machine.measured([1, 1, 1], 5.0);
    let (_, output) = machine.train("small", &[], &[("RL_STANDIN_MEMORY", "2000")]);
    let warning = said(&output.stderr);
    assert!(warning.starts_with("warning: ") && warning.contains("; the CPU learns instead"), "{warning}");
    assert_eq!(warning.lines().count(), 1, "{warning}");
}

#[test]
fn the_stand_in_is_not_measured() {
    let machine = Machine::new();
    let mut command = rl(&["bench", "crossover", "--envs", "2", "--hidden", "8"]);
    command.env("LD_LIBRARY_PATH", machine.dir.path().join("driver")).env("XDG_CACHE_HOME", machine.dir.path());
    let output = finish(&mut command);
    assert_eq!((output.status.code(), output.stdout.starts_with(b"no measurement: the stand-in")), (Some(0), true));
    assert!(!machine.dir.path().join("rl").exists());
}
