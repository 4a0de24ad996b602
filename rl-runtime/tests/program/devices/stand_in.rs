//! `rl` with `--device cuda`: on the stand-in, and on drivers that are no use.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{finish, load, newest, rl, text};
use serde_json::Value;

/// Runs `rl bench env` on the device of a driver in `dir`.
fn bench(dir: &Path, name: &str, options: &[&str]) -> Output {
    let args = ["bench", "env", name, "--envs", "33", "--device", "cuda", "--seconds", "1"];
    finish(rl(&args).args(options).env("LD_LIBRARY_PATH", dir))
}

/// Copies a library to the names under which the driver and NVML are looked for.
fn install(library: &Path, dir: &Path) {
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::copy(library, dir.join(name)).unwrap();
    }
}

#[test]
fn every_environment_is_benched_on_the_stand_in_without_a_rate() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    for entry in rl_envs::catalog::twinned() {
        let output = bench(dir.path(), entry.name, &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{}: {}", entry.name, String::from_utf8_lossy(&output.stderr));
        let event: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&event["env"], &event["stand_in"], &event["value"]), (&entry.name.into(), &true.into(), &Value::Null));
    }
    let said = bench(dir.path(), "cartpole", &[]).stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("stand-in") && !said.contains("env_steps/s"), "{said}");
}

#[test]
fn check_env_compares_kernels_on_the_stand_in_with_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let check = |args: &[&str]| finish(rl(&[&["check-env", "cartpole"], args].concat()).env("LD_LIBRARY_PATH", dir.path()));
    let output = check(&["--device", "cuda"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.ends_with("PASS kernels: the kernels give what the environment gives\n"), "{said}");
    for (args, why) in [(&["--device", "cpu"][..], "not cuda, cuda:i or emulated"), (&["--device", "cuda:7"], "no CUDA device 7")]
    {
        let output = check(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }
    let output = finish(&mut rl(&["check-env", "slow_cartpole", "--device", "cuda"]));
    assert!(
        output.status.code() == Some(2)
            && String::from_utf8_lossy(&output.stderr).contains("there are no kernels for slow_cartpole")
    );
}

#[test]
fn a_driver_that_is_no_use_is_one_sentence_and_exit_1() {
    if Command::new("cc").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("RL_REQUIRE_CXX").is_none_or(|value| value != "1"),
            "RL_REQUIRE_CXX=1, but there is no compiler"
        );
        println!("skipped: no compiler");
        return;
    }
    let refused = |dir: &Path, expected: &str| {
        let output = bench(dir, "cartpole", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with(&format!("error: {expected}")), "{said}");
    };
    let dir = tempfile::tempdir().unwrap();
    for (decoy, expected) in standin::DECOYS {
        let (source, library) = (dir.path().join("driver.c"), dir.path().join("driver.so"));
        fs::write(&source, decoy.source()).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        install(&library, dir.path());
        refused(dir.path(), expected);
    }
    fs::write(dir.path().join("driver.so"), "no library").unwrap();
    install(&dir.path().join("driver.so"), dir.path());
    refused(dir.path(), "no CUDA device: ");
    let is_installed = rl_cuda::Device::open(0).is_ok();
    if !is_installed {
        refused(tempfile::tempdir().unwrap().path(), "no CUDA device: ");
    }
}

/// Runs `rl train` on the stand-in in `dir`, with settings of the driver.
fn train(dir: &Path, run: &Path, options: &[&str], driver: &[(&str, &str)]) -> Output {
    let small = ["--set", "ppo.n_steps=8", "--set", "ppo.batch_size=16", "--set", "ppo.n_epochs=2", "--set", "hidden=[8]"];
    let rest = ["--seed", "3", "--set", "eval_episodes=1", "--set", "eval_max_steps=20", "--run-dir"];
    let device = if options.contains(&"--device") { &[][..] } else { &["--device", "cuda"] };
    let args = [&["train", "cartpole", "--steps", "320"], device, &small, &rest, &[text(run)], options].concat();
    finish(rl(&args).env("LD_LIBRARY_PATH", dir).envs(driver.iter().copied()))
}

/// Checks that `metrics.csv` has the readings of NVML's stand-in.
fn sensors_are_recorded(run: &Path) {
    let metrics = fs::read_to_string(run.join("metrics.csv")).unwrap();
    let mut lines = metrics.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (names, values) = (lines.next().unwrap(), lines.next_back().unwrap());
    for (name, expected) in [("percent", "37"), ("memory_mb", "1000"), ("power_w", "250"), ("temperature_c", "61")] {
        let at = names.iter().position(|of| *of == format!("system/gpu_{name}"));
        assert_eq!(at.map(|at| values[at]), Some(expected), "{name}");
    }
}

#[test]
fn a_training_leaves_the_same_files_under_every_schedule() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    // Overlapped: a second stream copies rollouts while the first one learns.
    for (env_device, pipeline) in [("learner", "sync"), ("cpu", "sync"), ("cpu", "overlapped")] {
        let options = [format!("env_device={env_device}"), format!("pipeline={pipeline}")];
        let learnt = ["eager", "latest", "random:1", "random:2"].map(|schedule| {
            let run = dir.path().join(format!("{env_device}-{pipeline}-{schedule}"));
            let options = ["--set", &options[0], "--set", &options[1]];
            let output = train(dir.path(), &run, &options, &[("RL_STANDIN_SCHEDULE", schedule)]);
            assert!(output.status.success(), "{schedule}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stderr.is_empty(), "{schedule}: {}", String::from_utf8_lossy(&output.stderr));
            sensors_are_recorded(&run);
            let checkpoint = newest(&run);
            ["params.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
        });
        assert!(learnt.windows(2).all(|pair| pair[0] == pair[1]), "{env_device}, {pipeline}");
    }
}

#[test]
fn a_device_that_is_lost_ends_a_training_with_one_sentence_and_its_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    // Overlapped, two threads learn of the loss.
    for (env_device, pipeline, launches, saved) in [
        ("learner", "sync", "1", false),
        ("learner", "sync", "700", true),
        ("cpu", "sync", "10", false),
        ("cpu", "sync", "500", true),
        ("cpu", "overlapped", "500", true),
    ] {
        let run = dir.path().join(format!("{env_device}-{pipeline}-{launches}"));
        let [option, pipeline] = [format!("env_device={env_device}"), format!("pipeline={pipeline}")];
        let options = ["--set", &option, "--set", &pipeline, "--set", "checkpoint_every=64"];
        let output = train(dir.path(), &run, &options, &[("RL_STANDIN_LAUNCHES", launches)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{env_device}, {launches}: {said}");
        assert_eq!(said.lines().count(), 1, "{env_device}, {launches}: {said}");
        assert!(said.starts_with("error: ") && said.contains("CUDA_ERROR_LAUNCH_FAILED"), "{said}");
        let n_saved = fs::read_dir(run.join("checkpoints")).map_or(0, Iterator::count);
        assert_eq!(n_saved > 0, saved, "{env_device}, {launches}: {said}");
        if saved {
            let env_steps = load(&newest(&run)).unwrap().progress.env_steps;
            assert!((64..320).contains(&env_steps), "{env_device}, {launches}: {env_steps}");
            let resumed = finish(&mut rl(&["train", "--resume", text(&run), "--device", "cpu", "--steps", "384"]));
            assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        }
    }
}

#[test]
fn two_devices_leave_the_files_of_one_and_a_lost_one_ends_the_training_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let two = |run: &Path, device: &str, env_device: &str, launches: &str, schedule: &str| {
        // Two slices of environments, and of each minibatch.
        let options = ["--envs", "8", "--device", device, "--set", "ppo.n_steps=16", "--set", "ppo.batch_size=128"];
        let rest = ["--set", env_device, "--set", "checkpoint_every=128"];
        let driver = [("RL_STANDIN_DEVICES", "2"), ("RL_STANDIN_LAUNCHES", launches), ("RL_STANDIN_SCHEDULE", schedule)];
        train(dir.path(), run, &[&options[..], &rest].concat(), &driver)
    };
    let [cpu, learner] = ["env_device=cpu", "env_device=learner"];
    let learnt = [("cuda:1", cpu), ("cuda:0,1", cpu), ("cuda:1,0", cpu), ("cuda:0,1", learner)].map(|(device, env_device)| {
        let run = dir.path().join(format!("{device}-{env_device}"));
        let output = two(&run, device, env_device, "1000000000", "latest");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let checkpoint = newest(&run);
        ["params.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
    });
    assert!(learnt.windows(2).all(|pair| pair[0] == pair[1]));

    let latest = [(cpu, "1"), (cpu, "20"), (cpu, "150"), (learner, "1"), (learner, "300"), (learner, "700")];
    let latest = latest.map(|(env_device, launches)| (env_device, launches, "latest"));
    for (env_device, launches, schedule) in latest.into_iter().chain([(cpu, "1", "eager"), (learner, "1", "eager")]) {
        let run = dir.path().join(format!("{env_device}-{launches}-{schedule}"));
        let output = two(&run, "cuda:0,1", env_device, launches, schedule);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with("error: ") && said.contains("CUDA_ERROR_LAUNCH_FAILED"), "{said}");
    }
    let missing = dir.path().join("missing");
    let output = two(&missing, "cuda:0,7", learner, "1", "latest");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count(), missing.exists()), (Some(1), 1, false), "{said}");
    assert!(said.contains('7'), "{said}");
}

#[test]
fn the_reference_learns_on_a_gpu_only_in_a_program_with_candle_for_it() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let run = dir.path().join("run");
    let refused = |options: &[&str], why: &str| {
        let args = ["train", "cartpole", "--device", "cuda", "--set", "learner=reference", "--run-dir", text(&run)];
        let output = finish(rl(&[&args[..], options].concat()).env("LD_LIBRARY_PATH", dir.path()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count(), run.exists()), (Some(2), 1, false), "{options:?}: {said}");
        assert!(said.contains(why), "{options:?}: {said}");
    };
    for algo in ["ppo", "a2c", "dqn"] {
        refused(&["--algo", algo], "build it with --features candle-cuda, or use --device cpu");
    }
    refused(&["--set", "env_device=learner"], "no kernels for cartpole with these wrappers and this learner");
}

#[test]
fn a_training_that_does_not_fit_the_device_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let train_with = |pipeline: &str, n_envs: &str, memory: &str| {
        let run = dir.path().join(format!("{pipeline}-{n_envs}"));
        let pipeline = format!("pipeline={pipeline}");
        let options = ["--envs", n_envs, "--set", &pipeline];
        let output = train(dir.path(), &run, &options, &[("RL_STANDIN_MEMORY", memory)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said.lines().count(), run.exists(), said)
    };
    let largest = ["sync", "overlapped"].map(|pipeline| {
        let (code, n_lines, exists, said) = train_with(pipeline, "4096", "300000");
        assert_eq!((code, n_lines, exists), (Some(1), 1, false), "{said}");
        let fits: usize = said.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(said.contains("the largest n_envs that fits is "), "{said}");
        assert_eq!(train_with(pipeline, &fits.to_string(), "300000").0, Some(0), "{pipeline}, {fits}");
        let (code, _, _, said) = train_with(pipeline, &(fits + 2).to_string(), "300000");
        assert_eq!(code, Some(1), "{said}");
        fits
    });
    // Rollouts on their way take more memory than environments.
    assert!(largest[1] < largest[0], "{largest:?}");
    let (code, _, _, said) = train_with("sync", "8", "2000");
    assert!(code == Some(1) && said.contains("not even one environment fits"), "{said}");
}

#[test]
fn a_dry_run_tells_the_memory_of_the_device_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let replay = ["--algo", "dqn", "--set", "dqn.replay_on_device=true"];
    for options in [&["--envs", "64"][..], &["--algo", "dqn"], &replay, &["--algo", "a2c", "--set", "env_device=cpu"]] {
        let run = dir.path().join("run");
        let train_with = |more: &[&str], memory: &str| {
            let args = ["train", "cartpole", "--device", "cuda", "--run-dir", text(&run)];
            let driver = [("RL_STANDIN_MEMORY", memory)];
            finish(rl(&[&args[..], options, more].concat()).env("LD_LIBRARY_PATH", dir.path()).envs(driver))
        };
        let output = train_with(&["--dry-run", "--json"], "1000000000");
        let event: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success() && !run.exists(), "{}", String::from_utf8_lossy(&output.stderr));
        let total: u64 = event["device_bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
        let said = String::from_utf8(train_with(&["--dry-run"], "1000000000").stdout).unwrap();
        assert!(said.contains("memory of the host") && said.contains("memory of stand-in"), "{said}");
        // The driver allocates no less than the buffers hold.
        let refused = train_with(&["--dry-run"], &(total - 1).to_string());
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(said.contains("it fits with dqn.replay_on_device = false"), options == replay, "{said}");
        assert!(train_with(&["--dry-run"], &(total + total / 4 + 20_000).to_string()).status.success());
    }
}

#[test]
fn an_automatic_minibatch_is_halved_until_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let run = dir.path().join("run");
    let train_with = |more: &[&str], memory: u64| {
        let args = ["train", "cartpole", "--device", "cuda", "--envs", "64", "--steps", "2048", "--run-dir", text(&run)];
        let few = ["--set", "ppo.n_steps=32", "--set", "ppo.n_epochs=1", "--set", "eval_episodes=1"];
        let driver = [("RL_STANDIN_MEMORY", memory.to_string())];
        finish(rl(&[&args[..], &few, more].concat()).env("LD_LIBRARY_PATH", dir.path()).envs(driver))
    };
    let bytes = |batch_size: &str| -> u64 {
        let output = train_with(&["--dry-run", "--json", "--set", batch_size], 1_000_000_000);
        let event: Value = serde_json::from_slice(&output.stdout).unwrap();
        event["device_bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
    };
    let (whole, quarter) = (bytes("ppo.batch_size=auto"), bytes("ppo.batch_size=512"));
    assert_eq!(whole, bytes("ppo.batch_size=2048"));
    // The driver allocates more than the buffers hold.
    let between = quarter + (whole - quarter) / 4;
    let output = train_with(&["--set", "ppo.batch_size=auto"], between);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config: toml::Table = toml::from_str(&fs::read_to_string(run.join("config.toml")).unwrap()).unwrap();
    let batch_size = config["ppo"]["batch_size"].as_integer().unwrap();
    assert!(said.contains(&format!("a minibatch has {batch_size} samples")) && [256, 512].contains(&batch_size), "{said}");

    let dqn =
        ["--algo", "dqn", "--set", "dqn.train_freq=1024", "--set", "dqn.gradient_steps=1", "--set", "dqn.buffer_size=10000"];
    let args = ["train", "cartpole", "--device", "cuda", "--envs", "64", "--steps", "20000", "--dry-run", "--set"];
    let with = |batch_size: &str, memory: u64| {
        let driver = [("RL_STANDIN_MEMORY", memory.to_string())];
        finish(rl(&[&args[..], &[batch_size], &dqn].concat()).env("LD_LIBRARY_PATH", dir.path()).envs(driver))
    };
    // It begins with 8 samples for each env step between updates.
    let said = String::from_utf8(with("dqn.batch_size=auto", 1_000_000_000).stdout).unwrap();
    assert!(said.contains("a minibatch has 8,192 samples, 8 for each env step between updates"), "{said}");
    let fits = |batch_size: &str, memory| with(batch_size, memory).status.success();
    let memory = (16..30).map(|bits| 1 << bits).find(|memory| fits("dqn.batch_size=2048", *memory)).unwrap();
    assert!(!fits("dqn.batch_size=8192", memory), "{memory}");
    let said = String::from_utf8(with("dqn.batch_size=auto", memory).stdout).unwrap();
    let halved =
        ["4,096", "2,048"].iter().any(|n| said.contains(&format!("a minibatch has {n} samples, the largest part that fits")));
    assert!(halved, "{said}");
}

#[test]
fn minibatches_that_leave_a_device_idle_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    for (batch, expected) in [("512", true), ("1024", false)] {
        let batch_size = format!("ppo.batch_size={batch}");
        let args = ["train", "cartpole", "--device", "cuda", "--envs", "64", "--dry-run", "--set", &batch_size];
        let output = finish(rl(&args).env("LD_LIBRARY_PATH", dir.path()).env("RL_STANDIN_MULTIPROCESSORS", "16"));
        let said = String::from_utf8(output.stderr).unwrap();
        let warning = "minibatches of 512 samples leave most of the 16 multiprocessors idle; --preset many-envs has larger ones";
        assert_eq!((output.status.code(), said.contains(warning)), (Some(0), expected), "{said}");
    }
}

#[test]
fn devices_are_listed_with_their_memory() {
    let dir = tempfile::tempdir().unwrap();
    install(&std::env::current_exe().unwrap().with_file_name("libstandin.so"), dir.path());
    let driver = [("RL_STANDIN_DEVICES", "2"), ("RL_STANDIN_MEMORY", "5000000")];
    let output = finish(rl(&["devices", "--json"]).env("LD_LIBRARY_PATH", dir.path()).envs(driver));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((events.len(), &events[0]["event"]), (3, &"cpu".into()));
    assert!(["flops", "flops_one_thread", "copy_bytes_per_s"].iter().all(|key| events[0][key].as_f64().unwrap() > 0.0));
    for (ordinal, event) in events[1..].iter().enumerate() {
        assert_eq!((&event["event"], &event["ordinal"]), (&"device".into(), &ordinal.into()));
        assert_eq!(event["total_bytes"], 5_000_000);
        let power = if ordinal == 0 { 250.0.into() } else { Value::Null };
        assert_eq!([&event["utilization"], &event["power_w"], &event["temperature_c"]], [&0.37.into(), &power, &61.0.into()]);
    }
    let said =
        |driver| String::from_utf8(finish(rl(&["devices"]).env("LD_LIBRARY_PATH", dir.path()).envs(driver)).stdout).unwrap();
    let lines = said(driver);
    assert!(lines.contains("  37% busy, 250 W, 1.0 GB, 61 \u{b0}C\n"), "{lines}");
    fs::remove_file(dir.path().join("libnvidia-ml.so.1")).unwrap();
    if !said(driver).contains("  the GPU's sensors cannot be read: ") {
        assert!(rl_cuda::Device::open(0).is_ok(), "{}", said(driver));
    }
    if rl_cuda::Device::open(0).is_err() {
        let said = finish(&mut rl(&["devices"])).stdout;
        assert!(String::from_utf8_lossy(&said).lines().last().unwrap().starts_with("no CUDA device: "));
    }
}
