"""Training, runs and policies."""

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import samebits

SHORT = {"steps": 2048, "num_envs": 8, "device": "cpu", "progress": False}


def test_the_files_are_those_of_the_program(run, tmp_path):
    args = ["train", "cartpole", "--steps", "4096", "--seed", "3", "--envs", "8", "--device", "cpu", "--run-dir", tmp_path / "run"]
    subprocess.run([sys.executable, "-m", "samebits", *args], check=True, capture_output=True)


    def files(of):
        # TensorBoard's are named by the time.
        return {path.relative_to(of) for path in of.rglob("*") if path.is_file() and path.parent.name != "tb"}

    assert files(run.path) == files(tmp_path / "run")
    for file in files(run.path):
        ours, theirs = run.path / file, tmp_path / "run" / file
        if file.name == "metrics.csv":
            theirs = samebits.Run.open(tmp_path / "run").metrics()
            for name, column in run.metrics().items():
                if not name.startswith(("time/", "system/")) or name == "time/total_timesteps":
                    np.testing.assert_array_equal(column, theirs[name], err_msg=name)
        elif file.name in ("state.bin", "manifest.json"):
            # They have the seconds of training, and the hash of those.
            assert ours.stat().st_size == theirs.stat().st_size, file
        else:
            assert ours.read_bytes() == theirs.read_bytes(), file


def test_cartpole_is_learnt(tmp_path):
    run = samebits.train("cartpole", seed=1, settings={"target_return": 150}, run_dir=tmp_path / "run", progress=False)
    assert run.outcome["end"] == "target" and run.outcome["evaluation"]["return_mean"] >= 150
    assert run.evaluate(50)["return_mean"] >= 100


def test_a_policy_is_exported(run, tmp_path):
    for form, name in [("onnx", "cart.onnx"), ("c", "cart.c"), ("rust", "cart.policy")]:
        about = run.export(tmp_path / name)
        assert about["files"][0] == str(tmp_path / name) and (about["checked"], about["differing"]) == (64, 0)
        assert about["bytes"] == [os.path.getsize(file) for file in about["files"]]
        assert run.export(tmp_path / name, form)["multiply_adds"] == about["multiply_adds"] > 0
    assert (tmp_path / "cart.h").is_file()
    for path, form, message in [
        (tmp_path / "cart.txt", None, "must end in .onnx, .c or .policy"),
        (None, "exe", "must be \"onnx\", \"c\" or \"rust\""),
        (tmp_path / "float.c", None, "float_policy.c"),
        (tmp_path / "none" / "cart.onnx", None, "none"),
    ]:
        with pytest.raises((ValueError, OSError, RuntimeError), match=re.escape(message)):
            run.export(path, form)


def test_a_torn_row_of_metrics_is_left_out(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    with open(copy / "metrics.csv", "a") as file:
        file.write("1,2,3")
    whole, torn = run.metrics(), samebits.Run.open(copy).metrics()
    assert list(torn) == list(whole) and len(torn["rollout/ep_rew_mean"]) == len(whole["rollout/ep_rew_mean"])


def test_a_policy_plays_as_in_an_evaluation(run):
    policy, envs = run.policy(), samebits.make_vec("cartpole", 8)
    obs, _ = envs.reset(seed=4)
    actions, state = policy.predict(obs)
    assert actions.shape == (8,) and state is None and envs.single_action_space.contains(int(actions[0]))
    single, _ = policy.predict(obs[0])
    assert single == actions[0]
    sampled = {tuple(policy.predict(obs, deterministic=False)[0]) for _ in range(20)}
    assert len(sampled) > 1
    assert set(policy.parameters()) and all(np.isfinite(p).all() for p in policy.parameters().values())
    parameters = policy.parameters()
    policy.set_parameters({name: np.zeros_like(array) for name, array in parameters.items()})
    assert all((array == 0).all() for array in policy.parameters().values()) and (policy.predict(obs)[0] == 0).all()
    policy.set_parameters(parameters)
    assert (policy.predict(obs)[0] == actions).all()
    name = next(iter(parameters))
    for change in ({name: np.zeros(3)}, {name: parameters[name] * np.nan}, {"other": np.zeros(3)}):
        with pytest.raises(ValueError):
            policy.set_parameters({**parameters, **change})
    with pytest.raises(ValueError, match="missing"):
        policy.set_parameters({})
    packed = np.frombuffer(b"." + obs[0].tobytes(), np.float32, 4, offset=1)
    assert not packed.flags.aligned and policy.predict(packed)[0] == actions[0]
    for wrong, kind in [(obs[:, :3], ValueError), ("text", ValueError), (obs.astype(complex), TypeError)]:
        with pytest.raises(kind):
            policy.predict(wrong)


def test_masks_of_a_policy_are_obeyed(tmp_path):
    settings = {"conv": [], "hidden": [8], "ppo.n_steps": 8, "ppo.batch_size": 16, "eval_episodes": 1, "eval_max_steps": 10}
    run = samebits.train("snake", settings=settings, run_dir=tmp_path / "run", **{**SHORT, "steps": 64})
    policy, envs = run.policy(), samebits.make_vec("snake", 64)
    _, info = envs.reset(seed=1)
    obs, *_, info = envs.step(info["action_mask"].argmax(axis=1))
    actions, _ = policy.predict(obs, deterministic=False, action_masks=info["action_mask"])
    assert info["action_mask"][np.arange(64), actions].all()
    with pytest.raises(ValueError, match="masks"):
        policy.predict(obs, action_masks=info["action_mask"][:3])


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_vectors_stay_in_their_bounds(algo, tmp_path):
    settings = {algo: {"learning_starts": 64, "batch_size": 32}, "hidden": [16, 16], "eval_episodes": 1}
    run = samebits.train("pendulum", algo, 256, num_envs=1, settings=settings, run_dir=tmp_path / "run", progress=False)
    actions, _ = run.policy().predict(np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32), deterministic=False)
    assert actions.shape == (100, 1) and (np.abs(actions) <= 2).all()


def test_a_callback_hears_rows_and_ends_the_run(tmp_path):
    rows = []

    def callback(row):
        rows.append(row)
        return row["time/total_timesteps"] < 3000

    run = samebits.train("cartpole", callback=callback, run_dir=tmp_path / "run", **{**SHORT, "steps": 10**8})
    assert run.outcome["end"] == "interrupted" and rows[-1]["time/total_timesteps"] >= 3000
    done = run.outcome["env_steps"]
    assert run.resume(done + 1024, progress=False).outcome["env_steps"] >= done + 1024
    assert list(run.metrics()) and (np.diff(run.metrics()["time/total_timesteps"]) > 0).all()


def test_a_training_waits_for_its_callback_and_calls_it_no_more_after_it_said_no(tmp_path):
    rows = []

    def callback(row):
        time.sleep(0.2)
        rows.append(row["time/total_timesteps"])
        return len(rows) < 2

    run = samebits.train("cartpole", callback=callback, run_dir=tmp_path / "run", **{**SHORT, "steps": 10**8})
    metrics = run.metrics()["time/total_timesteps"]
    assert len(rows) == 2 and run.outcome["end"] == "interrupted" and run.outcome["env_steps"] == metrics[-1] and len(metrics) <= 3


def _workers():
    """Counts the processes that this one has started."""
    children = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as file:
            children.update(file.read().split())
    return len(children)


def test_a_training_that_is_refused_leaves_no_worker_processes(tmp_path):
    before = _workers()
    for _ in range(2):
        with pytest.raises(ValueError, match="did you mean"):
            samebits.train("gym:CartPole-v1", settings={"ppo.n_stesp": 4}, run_dir=tmp_path / "run", **SHORT)
    assert _workers() == before


def _train_in_a_child(path, queue):
    run = samebits.train("gym:CartPole-v1", steps=256, num_envs=2, run_dir=path, progress=False)
    queue.put(run.outcome["env_steps"])


def test_a_forked_process_trains_in_worker_processes_of_its_own(tmp_path):
    samebits.train("gym:CartPole-v1", steps=256, num_envs=2, run_dir=tmp_path / "here", progress=False)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_train_in_a_child, args=(tmp_path / "there", queue))
    child.start()
    assert queue.get(timeout=100) >= 256
    child.join()


def test_ctrl_c_ends_an_evaluation(run):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.evaluate(1_000_000, threads=1)
    assert time.monotonic() - begin < 20
    assert run.evaluate(2)["episodes"] == 2


def test_a_checkpoint_that_is_resumed_in_a_run_of_its_own_names_that_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"checkpoint_every": 1024, "keep_checkpoints": 100}
    whole = samebits.train("cartpole", run_dir=tmp_path / "run", settings=settings, **{**SHORT, "steps": 4096})
    first = sorted((whole.path / "checkpoints").glob("ckpt-*"))[0]
    other = samebits.Run.open(first)
    other.resume(progress=False)
    assert other.path != first and other.path == Path(other.outcome["path"])
    assert (other.path / "metrics.csv").is_file()


def test_an_exception_of_a_callback_comes_back(tmp_path):
    def callback(row):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        samebits.train("cartpole", callback=callback, run_dir=tmp_path / "run", **{**SHORT, "steps": 10**8})
    samebits.train("cartpole", run_dir=tmp_path / "next", **SHORT)


def test_an_interrupted_run_is_the_uninterrupted_one(tmp_path):
    whole = samebits.train("cartpole", seed=5, run_dir=tmp_path / "whole", **SHORT)
    halves = samebits.train("cartpole", seed=5, run_dir=tmp_path / "halves", callback=lambda row: False, **SHORT)
    assert halves.outcome["end"] == "interrupted"
    halves.resume(progress=False)
    expected, found = whole.policy().parameters(), halves.policy().parameters()
    assert all((expected[name] == found[name]).all() for name in expected)


def test_ctrl_c_saves_and_raises(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it from their start
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        samebits.train("cartpole", run_dir=tmp_path / "run", **{**SHORT, "steps": 10**9})
    assert samebits.Run.open(tmp_path / "run").policy().predict(np.zeros(4, np.float32))[0] in (0, 1)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"algo": "pop"}, "pop"),
        ({"steps": -1}, "steps"),
        ({"settings": {"ppo.n_stesp": 4}}, "did you mean"),
        ({"settings": {"ppo": {"n_steps": "many"}}}, "n_steps"),
        ({"settings": {"ppo.n_steps": 0, "gamma": 2.0}}, "ppo.n_steps"),
        ({"device": "abacus"}, "abacus"),
        ({"num_envs": 0}, "n_envs"),
        ({"env_kwargs": {"a": 1}}, "kwargs"),
    ],
)
def test_settings_that_are_not_allowed_are_refused(keywords, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        samebits.train("cartpole", run_dir=tmp_path / "run", **{**SHORT, **keywords})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"ppo.n_steps": object()}, {3: 4}, {"ppo.n_steps": None}, {"hidden": [[64, {}]]}])
def test_settings_of_another_kind_are_refused(settings, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        samebits.train("cartpole", settings=settings, run_dir=tmp_path / "run", **SHORT)


def test_numbers_of_numpy_are_settings(tmp_path):
    settings = {"ppo.n_steps": np.int64(64), "ppo.batch_size": np.int32(128), "ppo.gamma": np.float32(0.5), "normalize_obs": np.bool_(True)}
    samebits.train("cartpole", settings={**settings, "hidden": (np.int64(8), 8)}, run_dir=tmp_path / "run", **SHORT)


def test_what_is_not_a_run_is_refused(tmp_path):
    for call in (
        lambda: samebits.Run.open(tmp_path),
        lambda: samebits.Run(tmp_path).policy(),
        lambda: samebits.Run(tmp_path).evaluate(),
        lambda: samebits.Run(tmp_path).resume(progress=False),
    ):
        with pytest.raises((ValueError, RuntimeError, OSError)):
            call()


class Walk(gymnasium.Env):
    """Walk to the right; a class of this module."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length, self.at = length, 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        self.at += 1 if action else -1
        return np.array([self.at], np.float32), float(self.at), abs(self.at) >= self.length, False, {}


def test_a_class_of_a_module_is_trained_in_processes(tmp_path):
    run = samebits.train(Walk, run_dir=tmp_path / "run", env_kwargs={"length": 3}, **{**SHORT, "steps": 256, "num_envs": 2})
    assert run.policy(trust=True).predict(np.zeros(1, np.float32))[0] in (0, 1)
    with pytest.raises(ValueError, match="trust"):
        run.policy()


def test_a_registered_environment_is_trained(tmp_path):
    run = samebits.train("gym:CartPole-v1", run_dir=tmp_path / "run", **{**SHORT, "steps": 256, "num_envs": 2})
    assert run.evaluate(2)["episodes"] == 2


def test_a_class_that_processes_cannot_find_is_refused():
    class Local(Walk):
        """Not found by its name."""

    for env, text in [(Local, "Local"), (lambda: Walk(), "lambda"), (3, "3")]:
        with pytest.raises((ValueError, TypeError), match=text):
            samebits.train(env, **SHORT)
    script = "import samebits, gymnasium\nclass Mine(gymnasium.Env): pass\nsamebits.train(Mine)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert told.returncode == 1 and "script or notebook" in told.stderr.splitlines()[-1], told.stderr


def test_one_training_at_a_time(tmp_path):
    said = []

    def other(row):
        try:
            samebits.train("cartpole", run_dir=tmp_path / "other", **SHORT)
        except RuntimeError as error:
            said.append(str(error))
        return False

    samebits.train("cartpole", callback=other, run_dir=tmp_path / "run", **SHORT)
    assert said and "another" in said[0]


def test_the_program_is_there(tmp_path):
    program = [sys.executable, "-m", "samebits"]
    assert subprocess.run([*program, "--version"], capture_output=True, text=True, check=True).stdout.startswith("rl ")
    assert subprocess.run([*program, "train", "cartpol"], capture_output=True, check=False, cwd=tmp_path).returncode == 2
    sweep = """
        env = "cartpole"
        steps = 256
        n_envs = 4
        eval_episodes = 1
        [sweep]
        trials = 2
        [sweep.settings]
        "ppo.learning_rate" = [1e-3, 1e-4]
        [ppo]
        n_steps = 16
        batch_size = 32
    """
    (tmp_path / "sweep.toml").write_text(textwrap.dedent(sweep))
    found = subprocess.run([*program, "sweep", "sweep.toml"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
