"""Replay memories and returns, beside the same in NumPy."""

import numpy as np
import pytest

import samebits

RNG = np.random.default_rng(1)


def add(replay, n, first=0):
    """Adds transitions whose observations are their number."""
    for i in range(first, first + n):
        obs = np.full((1, 3), i, replay.obs_dtype)
        replay.add(obs, [i % 5], [float(i)], obs + 1, [i % 7 == 0])


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_batch_has_what_was_added(dtype):
    replay = samebits.ReplayBuffer(64, (3,), dtype, gamma=0.5)
    add(replay, 100)
    assert len(replay) == 64
    batch = replay.sample(500)
    numbers = batch["obs"][:, 0].astype(int)
    assert set(numbers) <= set(range(36, 100)) and len(set(numbers)) > 50
    assert (batch["obs"] == numbers[:, None]).all() and (batch["next_obs"] == numbers[:, None] + 1).all()
    assert (batch["actions"] == numbers % 5).all() and (batch["rewards"] == numbers).all()
    assert (batch["discounts"] == np.where(numbers % 7 == 0, 0, 0.5)).all() and (batch["weights"] == 1).all()
    assert batch["obs"].dtype == dtype and batch["obs"].flags.owndata or batch["obs"].base.flags.owndata
    replay.clear()
    assert len(replay) == 0
    with pytest.raises(ValueError):
        replay.sample(4)


def test_steps_are_summed_to_the_end_of_an_episode():
    replay = samebits.ReplayBuffer(100, (1,), n_step=3, gamma=0.5)
    for i in range(6):
        replay.add([[float(i)]], [0], [1.0], [[i + 1.0]], [False], [i == 4])
    batch = replay.sample(200)
    found = {float(o): (float(r), float(d), float(n)) for o, r, d, n in zip(batch["obs"][:, 0], batch["rewards"], batch["discounts"], batch["next_obs"][:, 0])}
    assert found == {0: (1.75, 0.125, 3), 1: (1.75, 0.125, 4), 2: (1.75, 0.125, 5), 3: (1.5, 0.25, 5), 4: (1.0, 0.5, 5)}


def test_priorities_decide():
    replay = samebits.PrioritizedReplayBuffer(16, (3,), alpha=1.0, epsilon=0.0)
    add(replay, 16)
    batch = replay.sample(64)
    replay.update_priorities(np.arange(16), np.where(np.arange(16) == 5, 3.0, 0.2))
    batch = replay.sample(6000, beta=1.0)
    counts = np.bincount(batch["obs"][:, 0].astype(int), minlength=16) / 6000
    assert abs(counts[5] - 0.5) < 0.03
    weights = batch["weights"][batch["obs"][:, 0] == 5]
    np.testing.assert_allclose(weights, 0.2 / 3, rtol=1e-5)


def test_vectors_as_actions_and_several_environments():
    replay = samebits.ReplayBuffer(60, (2,), action_len=3, n_envs=4)
    for i in range(20):
        obs = np.arange(8, dtype=np.float32).reshape(4, 2) + i
        replay.add(obs, np.repeat(obs[:, :1], 3, axis=1), obs[:, 0], obs, np.zeros(4, bool))
    batch = replay.sample(32)
    assert batch["actions"].shape == (32, 3) and (batch["actions"] == batch["obs"][:, :1]).all()


@pytest.mark.parametrize(
    "change",
    [
        {"obs": np.zeros(2, np.float32)},
        {"obs": np.zeros(3, np.complex64)},
        {"obs": "text"},
        {"actions": [1.5]},
        {"actions": [-1]},
        {"actions": [2**40]},
        {"rewards": [np.nan]},
        {"rewards": [1.0, 2.0]},
        {"next_obs": None},
        {"terminated": [0.5]},
    ],
)
def test_a_transition_that_does_not_fit_changes_nothing(change):
    replay = samebits.ReplayBuffer(8, (3,))
    step = {"obs": np.zeros(3), "actions": [1], "rewards": [1.0], "next_obs": np.zeros(3), "terminated": [False]}
    with pytest.raises((ValueError, TypeError)):
        replay.add(**{**step, **change})
    assert len(replay) == 0
    replay.add(**step)
    assert len(replay) == 1


@pytest.mark.parametrize("arguments", [(0, (3,)), (8, (0,)), (8, (3,), np.float64), (2**40, (3,)), (8, (3,), np.float32, 0)])
def test_a_memory_that_cannot_be_is_refused(arguments):
    with pytest.raises((ValueError, TypeError)):
        samebits.ReplayBuffer(*arguments)


def test_priorities_of_nothing_are_refused():
    replay = samebits.PrioritizedReplayBuffer(8, (3,))
    for call in (lambda: replay.update_priorities([0], [1.0]), lambda: replay.sample(4)):
        with pytest.raises(ValueError):
            call()
    add(replay, 4)
    replay.sample(4)
    for indices, errors in [([99], [1.0]), ([0], [np.nan]), ([0, 1], [1.0]), ([-1], [1.0])]:
        with pytest.raises(ValueError):
            replay.update_priorities(indices, errors)
    with pytest.raises(ValueError):
        replay.sample(4, beta=2.0)


def test_errors_are_of_the_latest_batch_that_was_drawn():
    replay = samebits.PrioritizedReplayBuffer(100, (3,), seed=3)
    add(replay, 50)
    batch = replay.sample(8)
    for n in (8, 16):
        with pytest.raises(ValueError):
            replay.sample(n, beta=2.0)
    assert replay.update_priorities(batch["indices"], np.ones(8)) == 8
    other = samebits.PrioritizedReplayBuffer(100, (3,), seed=3)
    add(other, 50)
    other.sample(8)
    other.update_priorities(batch["indices"], np.ones(8))
    assert (replay.sample(8)["indices"] == other.sample(8)["indices"]).all(), "a draw that failed is none"
    replay.clear()
    add(replay, 50)
    with pytest.raises(ValueError):
        replay.update_priorities(batch["indices"], np.ones(8))


def columns(shape=(40, 3)):
    """Random steps."""
    values, rewards, ratios = (RNG.normal(size=shape).astype(np.float32) for _ in range(3))
    terminated, truncated = (RNG.random(shape) < 0.1 for _ in range(2))
    return rewards, values, RNG.normal(size=shape).astype(np.float32), np.exp(ratios), terminated, truncated


def test_gae_and_vtrace_are_the_recursions():
    rewards, values, next_values, ratios, terminated, truncated = columns()
    for given in (None, ratios):
        expected, future = np.zeros_like(rewards), np.zeros(3)
        for t in reversed(range(40)):
            delta = rewards[t] + 0.9 * np.where(terminated[t], 0, next_values[t]) - values[t]
            expected[t] = delta + np.where(terminated[t] | truncated[t], 0, 0.9 * 0.8 * future)
            future = expected[t] * (1 if given is None else np.minimum(given[t], 1))
        if given is None:
            advantages, returns = samebits.gae(rewards, values, next_values, terminated, truncated, 0.9, 0.8)
            np.testing.assert_allclose(returns, expected + values, rtol=1e-4, atol=1e-4)
        else:
            advantages, _ = samebits.vtrace(rewards, values, next_values, ratios, terminated, truncated, 0.9, 0.8)
        np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)


def test_n_step_returns_are_sums():
    rewards, _, next_values, _, terminated, truncated = columns((10, 1))
    found = samebits.n_step_returns(rewards, next_values, terminated, truncated, 1, 0.9)
    np.testing.assert_allclose(found, rewards + 0.9 * np.where(terminated, 0, next_values), rtol=1e-5)
    for call in (
        lambda: samebits.n_step_returns(rewards, next_values, terminated, truncated, 0),
        lambda: samebits.n_step_returns(rewards[0], next_values, terminated, truncated, 1),
        lambda: samebits.gae(rewards, next_values[:3], next_values, terminated, truncated),
    ):
        with pytest.raises(ValueError):
            call()


def test_fields_of_a_packed_array_are_read_where_they_are():
    fields = [("reward", "f4"), ("value", "f4"), ("next", "f4"), ("term", "?"), ("trunc", "?")]
    packed = np.zeros((6, 3), fields)
    for name in ("reward", "value", "next"):
        packed[name] = RNG.random((6, 3))
    packed["term"][2] = True
    columns = [packed[name] for name in ("reward", "value", "next", "term", "trunc")]
    for found, expected in zip(samebits.gae(*columns), samebits.gae(*map(np.array, columns)), strict=True):
        assert (found == expected).all()


def test_whole_numbers_are_rewards_and_observations():
    replay = samebits.ReplayBuffer(8, (3,))
    replay.add(np.array([1, -2, 3]), [1], [-1], np.zeros(3, np.int64), [False])
    batch = replay.sample(2)
    assert (batch["obs"] == [1, -2, 3]).all() and (batch["rewards"] == -1).all()


def test_each_draw_has_random_numbers_of_its_own():
    def draws(seed):
        replay = samebits.ReplayBuffer(1000, (3,), seed=seed)
        add(replay, 1000)
        return [replay.sample(20)["indices"].tolist() for _ in range(50)]

    found = draws(1)
    assert found == draws(1) and found[0] != draws(2)[0]
    assert len({tuple(drawn) for drawn in found}) == 50
