"""Ten thousand calls with garbage: exceptions of Python, never a crash."""

import random
import sys

import numpy as np

import samebits

EXPECTED = (ValueError, TypeError, RuntimeError, OverflowError, AttributeError, IndexError, KeyError, MemoryError, OSError)


def garbage(rng):
    """Something that is mostly not what a call takes."""
    read_only = np.zeros(4, np.float32)
    read_only.flags.writeable = False
    values = [
        None, True, -1, 0, 1, 3, 2**31, 2**64, -(2**70), 1.5, float("nan"), float("inf"), "", "cartpole", "snake", "\\0", "é" * 50, b"x",
        [], [0, 1], [[0]], [None], (), {}, {"a": 1}, {0: 0}, {1, 2}, object(), int, print, lambda *a: a, read_only, ...,
        np.float32(1), np.int64(-5), np.bool_(True), np.array(3), np.zeros(0), np.zeros(4), np.zeros((4, 4)), np.zeros((4, 4))[::2, ::-1],
        np.zeros(8, np.int64)[::2], np.asfortranarray(np.ones((4, 2), np.float32)), np.full(4, np.nan, np.float32), np.zeros(4, np.uint8),
        np.array(["a"]), np.array([None]), np.zeros(4, complex), np.zeros(4, ">f4"), np.zeros(4, np.float16), np.arange(4, dtype=np.int8),
        np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,)), np.zeros(4, "M8[s]"), np.ma.masked_array([1, 2], [True, False]),
    ]
    return rng.choice(values)


def targets(run):
    """Functions and methods, on objects of every kind."""
    envs = [samebits.make_vec(name, 4, copy=copy) for name in ("cartpole", "pendulum", "snake") for copy in (True, False)]
    closed = samebits.make_vec("cartpole", 4)
    closed.close()
    replays = [samebits.ReplayBuffer(16, (4,)), samebits.ReplayBuffer(16, (2, 2), np.uint8, 2, n_envs=4), samebits.PrioritizedReplayBuffer(16, (4,))]
    policy = run.policy()
    calls = [getattr(each, name) for each in [*envs, closed] for name in ("reset", "step", "frame", "set_state", "get_state", "render")]
    calls += [each.close for each in envs[:1]]
    calls += [getattr(each, name) for each in replays for name in ("add", "sample", "update_priorities", "clear") if hasattr(each, name)]
    calls += [policy.predict, policy.set_parameters, samebits.gae, samebits.vtrace, samebits.n_step_returns, samebits.Run.open]
    calls += [samebits.Policy, samebits.ReplayBuffer, samebits.PrioritizedReplayBuffer, run.evaluate, samebits.make_vec]
    native = [each._envs for each in envs] + [each._replay for each in replays] + [policy._policy]
    calls += [getattr(each, name) for each in native for name in dir(each) if not name.startswith("__")]
    return [call for call in calls if callable(call)]


def test_ten_thousand_hostile_calls(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    calls, refused = targets(run), 0
    keywords = ["seed", "options", "state", "episode_start", "deterministic", "action_masks", "num_envs", "threads", "best", "beta", "n_step"]
    for _ in range(10_000):
        call, given = rng.choice(calls), [garbage(rng) for _ in range(rng.randrange(8))]
        named = {rng.choice(keywords): garbage(rng)} if rng.random() < 0.3 else {}
        try:
            call(*given, **named)
        except EXPECTED:
            refused += 1
    assert refused > 5000
    # All of it works as before.
    with samebits.make_vec("cartpole", 4) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 1, 0, 1])[0].shape == (4, 4)
    assert run.policy().predict(np.zeros(4, np.float32))[0] in (0, 1)


def test_references_are_counted():
    envs, replay = samebits.make_vec("cartpole", 4, copy=False), samebits.ReplayBuffer(64, (4,), n_envs=4)
    actions, flags = np.zeros(4, np.int64), np.zeros(4, np.uint8)
    obs, _ = envs.reset(seed=0)
    arrays = [obs, actions, flags, envs._rewards]
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(1000):
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        replay.add(obs, actions, rewards, obs, terminated, flags)
        replay.sample(8)
    del rewards, terminated, truncated
    assert [sys.getrefcount(array) for array in arrays] == before
