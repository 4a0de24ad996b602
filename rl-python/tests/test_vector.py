"""Environments: Gymnasium's interface, numbers, errors."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import samebits

NAMES = sorted(samebits.catalog())


def play(envs, steps, seed):
    """All columns of random steps."""
    envs.action_space.seed(seed)
    columns = [envs.reset(seed=seed)[0].copy()]
    for _ in range(steps):
        obs, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
        columns += [np.array(column) for column in (obs, rewards, terminated, truncated)]
        ended = terminated | truncated
        assert ("final_obs" in info) == ended.any()
        if ended.any():
            assert (info["_final_obs"] == ended).all()
            columns.append(np.array(info["final_obs"][ended]))
    return columns


@pytest.mark.parametrize("name", NAMES)
def test_an_environment_fits_its_spaces_whatever_the_threads_and_copies(name):
    with samebits.make_vec(name, 16) as envs:
        assert isinstance(envs, gymnasium.vector.VectorEnv) and envs.autoreset_mode == AutoresetMode.SAME_STEP
        assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        obs, _ = envs.reset(seed=7)
        assert obs in envs.observation_space and envs.single_observation_space.contains(obs[0])
        expected = play(envs, 300, 7)
        assert all(envs.single_observation_space.contains(row) for row in expected[1])
    for threads, copy in [(2, True), (1, False), (3, False)]:
        with samebits.make_vec(name, 16, threads=threads, copy=copy) as envs:
            found = play(envs, 300, 7)
            assert len(found) == len(expected)
            assert all((a == b).all() for a, b in zip(found, expected)), (threads, copy)


@pytest.mark.parametrize("name", NAMES)
def test_wrappers_of_gymnasium_accept_the_environments(name):
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(samebits.make_vec(name, 4, time_limit=20))
    envs.action_space.seed(1)
    envs.reset(seed=1)
    lengths = []
    for _ in range(60):
        *_, info = envs.step(envs.action_space.sample())
        lengths += list(info["episode"]["l"][info["_episode"]]) if "episode" in info else []
    envs.close()
    assert lengths and max(lengths) <= 20


def test_episodes_are_recorded():
    envs = samebits.make_vec("snake", 8, record_episodes=True, time_limit=30)
    envs.action_space.seed(1)
    envs.reset(seed=1)
    returns, lengths, seen = np.zeros(8), np.zeros(8, int), 0
    for _ in range(200):
        _, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
        returns, lengths, ended = returns + rewards, lengths + 1, terminated | truncated
        if ended.any():
            assert (info["episode"]["r"][ended] == returns[ended]).all() and (info["episode"]["l"][ended] == lengths[ended]).all()
            assert (info["_episode"] == ended).all()
            seen += ended.sum()
        returns, lengths = np.where(ended, 0, returns), np.where(ended, 0, lengths)
    assert seen > 50


class Single(gymnasium.Env):
    """One environment of a batch of one, as Gymnasium's own checker takes them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, name, render_mode=None):
        self.envs = samebits.make_vec(name, 1, render_mode=render_mode)
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        obs, _ = self.envs.reset(seed=seed)
        return obs[0], {}

    def step(self, action):
        obs, rewards, terminated, truncated, info = self.envs.step(np.array([action]))
        obs = info["final_obs"] if "final_obs" in info else obs
        return obs[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self):
        return self.envs.frame(0)


@pytest.mark.parametrize("name", NAMES)
def test_the_checker_of_gymnasium_passes(name):
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        # It was not made by gymnasium.make, and torques are not in -1 to 1.
        warnings.simplefilter("ignore")
        check_env(Single(name), skip_render_check=True)


def test_cartpole_steps_as_gymnasium_s():
    with samebits.make_vec("cartpole", 1) as ours:
        theirs = gymnasium.make("CartPole-v1").unwrapped
        obs, _ = ours.reset(seed=5)
        theirs.reset(seed=0)
        rng = np.random.default_rng(2)
        theirs.state = obs[0].astype(np.float64)
        for _ in range(200):
            action = int(rng.integers(2))
            obs, _, terminated, _, _ = ours.step([action])
            expected, _, over, _, _ = theirs.step(action)
            assert bool(terminated[0]) == over
            if over:
                theirs.reset(seed=0)
                theirs.state = obs[0].astype(np.float64)
            else:
                np.testing.assert_allclose(obs[0], expected, atol=1e-4)
                theirs.state = obs[0].astype(np.float64)


def test_steps_are_those_of_the_program_s_trace(tmp_path):
    with samebits.make_vec("cartpole", 1) as envs:
        obs, _ = envs.reset(seed=11)
        state = dict(zip(("x", "x_dot", "theta", "theta_dot"), (float(x) for x in obs[0])), elapsed=0)
        actions = [int(a) for a in np.random.default_rng(3).integers(2, size=100)]
        (tmp_path / "init.json").write_text(json.dumps(state))
        (tmp_path / "actions.json").write_text(json.dumps(actions))
        program = [sys.executable, "-m", "samebits", "trace", "cartpole", "--init", "init.json", "--actions", "actions.json"]
        told = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        steps = [json.loads(line) for line in told.splitlines()]
        for step, action in zip(steps, actions):
            obs, rewards, terminated, truncated, info = envs.step([action])
            after = info["final_obs"] if "final_obs" in info else obs
            assert (after[0] == np.array(step["obs"], np.float32)).all() and rewards[0] == np.float32(step["reward"])
            assert (bool(terminated[0]), bool(truncated[0])) == (step["terminated"], step["truncated"])
        assert "final_obs" in info and len(steps) < 100


def test_a_seed_decides_and_no_seed_goes_on():
    envs, again = (samebits.make_vec("cartpole", 4, seed=9) for _ in range(2))
    first = [envs.reset()[0] for _ in range(3)]
    assert all((a == b).all() for a, b in zip(first, [again.reset()[0] for _ in range(3)]))
    assert (first[0] != first[1]).any() and (first[1] != first[2]).any()
    assert (envs.reset(seed=9)[0] == first[0]).all()
    fresh = samebits.make_vec("cartpole", 4, seed=9)
    with pytest.raises(ValueError):
        fresh.reset(seed=[1, 2])
    assert (fresh.reset()[0] == first[0]).all(), "what is refused changes nothing"


def test_arrays_are_shared_or_copied_as_asked_and_live_after_close():
    envs = samebits.make_vec("cartpole", 4, copy=False)
    obs, _ = envs.reset(seed=1)
    before = obs.copy()
    assert envs.step([0, 1, 0, 1])[0] is obs and (obs != before).any()
    envs.close()
    del envs
    gc.collect()
    assert obs.sum() == obs.sum()
    envs = samebits.make_vec("cartpole", 4)
    obs, _ = envs.reset(seed=1)
    assert (obs == before).all() and envs.step([0, 1, 0, 1])[0] is not obs and (obs == before).all()


def test_a_state_continues():
    envs, other = samebits.make_vec("snake", 4), samebits.make_vec("snake", 4)
    play(envs, 20, 3)
    other.set_state(envs.get_state())
    for envs_ in (envs, other):
        envs_.action_space.seed(8)
    for _ in range(20):
        ours, theirs = (each.step(each.action_space.sample()) for each in (envs, other))
        assert all((a == b).all() for a, b in zip(ours[:4], theirs[:4]))
    with pytest.raises(RuntimeError):
        other.set_state(b"garbage")


def test_masks_are_those_of_legal_actions():
    with samebits.make_vec("snake", 8) as envs:
        _, info = envs.reset(seed=1)
        for _ in range(50):
            masks = info["action_mask"]
            assert masks.shape == (8, envs.single_action_space.n) and masks.dtype == np.int8 and masks.any(axis=1).all()
            *_, info = envs.step(masks.argmax(axis=1))


def test_wrappers_and_pictures():
    with samebits.make_vec("cartpole", 2, frame_stack=4, render_mode="rgb_array") as envs:
        assert envs.single_observation_space.shape == (16,)
        envs.reset(seed=0)
        frames = envs.render()
        assert len(frames) == 2 and frames[0].ndim == 3 and frames[0].shape[2] == 3 and frames[0].std() > 0
    with samebits.make_vec("cartpole", 2, hide="velocities") as envs:
        obs = np.stack([envs.reset(seed=0)[0], *(envs.step(np.array([0, 1]))[0] for _ in range(30))])
        assert (obs[..., [1, 3]] == 0).all() and (obs[..., [0, 2]] != 0).all()
    with samebits.make_vec("cartpole", 2, pixels=32) as envs:
        assert envs.single_observation_space.dtype == np.uint8 and envs.reset(seed=0)[0].std() > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("cartpol",), ValueError, "cartpol"),
        (("cartpole", 0), ValueError, "0"),
        (("cartpole", -1), OverflowError, "negative"),
        (("cartpole", 2**31), MemoryError, "available"),
        (("cartpole", 1.5), TypeError, "float"),
        ((None,), TypeError, "None"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(arguments, kind, text):
    with pytest.raises(kind, match=text):
        samebits.make_vec(*arguments)


@pytest.mark.parametrize(
    "keywords",
    [
        {"threads": 0},
        {"frame_stack": 0},
        {"pixels": 10**6},
        {"reward_clip": float("nan")},
        {"render_mode": "human"},
        {"hide": "positions"},
        {"hide": "velocities", "pixels": 8},
    ],
)
def test_a_setting_that_cannot_be_is_refused(keywords):
    with pytest.raises(ValueError, match=str(next(iter(keywords)))):
        samebits.make_vec("cartpole", 2, **keywords)


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        ([0, 1, 0], ValueError),
        ([0, 1, 0, 2], ValueError),
        ([0, 1, 0, -1], ValueError),
        ([0.0, 1.0, 0.0, 1.0], TypeError),
        ("left", TypeError),
        (None, TypeError),
        (np.zeros((4, 1), np.int64), TypeError),
        (np.array([0, 1, 0, 2**40]), ValueError),
    ],
)
def test_actions_that_do_not_fit_change_nothing(actions, kind):
    envs, same = (samebits.make_vec("cartpole", 4) for _ in range(2))
    envs.reset(seed=1), same.reset(seed=1)
    with pytest.raises(kind):
        envs.step(actions)
    for dtype in (np.int64, np.int32, np.uint8, np.bool_):
        right = np.array([0, 1, 0, 1]).astype(dtype)
        assert (envs.step(right)[0] == same.step(right)[0]).all()
    strided = np.array([0, 9, 1, 9, 0, 9, 1, 9])[::2]
    assert (envs.step(strided)[0] == same.step([0, 1, 0, 1])[0]).all()


def test_vectors_that_do_not_fit_are_refused():
    envs = samebits.make_vec("pendulum", 3)
    envs.reset(seed=1)
    for actions in (np.zeros(3, np.float32), np.full((3, 1), np.nan, np.float32), np.zeros((4, 1), np.float32)):
        with pytest.raises(ValueError):
            envs.step(actions)
    envs.step(np.zeros((3, 1)))
    envs.step(np.ones((3, 1), np.int64))


def test_closed_environments_say_so():
    envs = samebits.make_vec("cartpole", 2)
    envs.close()
    envs.close()
    for call in (lambda: envs.reset(seed=1), lambda: envs.step([0, 1]), envs.get_state, lambda: envs.frame(0)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_an_array_that_cannot_be_written_is_an_error():
    envs = samebits.make_vec("cartpole", 2, copy=False)
    obs, _ = envs.reset(seed=1)
    obs.base.flags.writeable = False
    with pytest.raises(RuntimeError, match="cannot be written"):
        envs.step([0, 1])


def test_threads_take_turns_or_are_refused():
    envs = samebits.make_vec("snake", 4096, threads=2)
    envs.reset(seed=1)
    actions, said = np.zeros(4096, np.int64), []

    def step():
        for _ in range(50):
            try:
                envs.step(actions)
            except RuntimeError as error:
                said.append(str(error))

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another thread" in text for text in said)
    envs.step(actions)


def _in_a_child(threads, queue):
    envs = samebits.make_vec("cartpole", 64, threads=threads)
    queue.put(envs.reset(seed=1)[0])


def test_a_fork_after_import_works_and_threads_do_not_cross_it():
    expected = samebits.make_vec("cartpole", 64).reset(seed=1)[0]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(2, queue))
    child.start()
    assert (queue.get(timeout=60) == expected).all()
    child.join()
    envs = samebits.make_vec("cartpole", 64, threads=2)
    envs.reset(seed=1)
    pid = os.fork()
    if pid == 0:
        try:
            envs.step(np.zeros(64, np.int64))
        except RuntimeError as error:
            if "fork" not in str(error):
                os._exit(1)
            envs.close()
            del envs
            gc.collect()
            os._exit(0)
        except BaseException:
            pass
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_later_resets_follow_from_the_last_seed():
    def resets(envs, seed):
        return [envs.reset(seed=seed)[0].tolist(), *(envs.reset()[0].tolist() for _ in range(2))]

    envs = samebits.make_vec("cartpole", 2)
    first, again, other = resets(envs, 1), resets(envs, 1), resets(envs, 2)
    assert first == again and all(a != b for a, b in zip(first, other))
    assert resets(samebits.make_vec("cartpole", 2, seed=5), 1) == first


def test_pictures_can_be_drawn_on():
    frame = samebits.make_vec("cartpole", 1, render_mode="rgb_array").frame(0)
    frame[:] = 0
    assert not frame.any()


def test_memory_stays_flat():
    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def work(n):
        for _ in range(n):
            envs = samebits.make_vec("cartpole", 64, copy=False)
            obs, _ = envs.reset(seed=1)
            for _ in range(50):
                envs.step(np.zeros(64, np.int64))
            envs.close()

    work(200)
    before, references = rss(), sys.getrefcount(samebits.VectorEnv)
    work(1000)
    assert rss() - before < 4_000_000 and abs(sys.getrefcount(samebits.VectorEnv) - references) < 5


def test_a_step_needs_a_reset():
    envs = samebits.make_vec("repeat_first", 2)
    with pytest.raises(RuntimeError, match="call reset first"):
        envs.step([0, 0])
    envs.reset(seed=1)
    envs.step([0, 0])


def test_recorded_returns_are_unclipped_and_part_of_a_state():
    def episodes(envs, steps):
        found = []
        for _ in range(steps):
            *_, info = envs.step(np.zeros((2, 1), np.float32))
            if "episode" in info:
                found += [info["episode"]["r"][info["_episode"]], info["episode"]["l"][info["_episode"]]]
        return np.array(found)

    plain, clipped = (samebits.make_vec("pendulum", 2, record_episodes=True, reward_clip=clip) for clip in (0.0, 0.5))
    for envs in (plain, clipped):
        envs.reset(seed=3)
    episodes(clipped, 50)
    state = clipped.get_state()
    expected = episodes(clipped, 150)
    assert (episodes(plain, 200) == expected).all() and (expected[0] < -200).all() and (expected[1] == 200).all()
    clipped.set_state(state)
    assert (episodes(clipped, 150) == expected).all()


def test_fields_of_a_packed_array_are_actions():
    packed = np.ones(4, [("action", "i8"), ("done", "?")])
    envs, others = samebits.make_vec("cartpole", 4), samebits.make_vec("cartpole", 4)
    for each in (envs, others):
        each.reset(seed=1)
    assert (envs.step(packed["action"])[0] == others.step(np.ones(4, np.int64))[0]).all()
