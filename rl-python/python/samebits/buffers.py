"""Replay memories and returns, for an algorithm of your own."""

from __future__ import annotations

import numpy as np

from samebits import _samebits


def _flat(name, array, dtype, length):
    """A column as the native half takes it; refuses other kinds of numbers and other lengths."""
    array = np.asarray(array)
    if not np.can_cast(array.dtype, dtype, "same_kind") and not (array.dtype.kind in "iu" and np.dtype(dtype).kind in "iu"):
        raise TypeError(f"{name} are {array.dtype}; the memory takes {np.dtype(dtype).name}")
    if array.size != length:
        raise ValueError(f"{name} have {array.size} elements instead of {length}")
    if np.dtype(dtype).kind in "iu" and array.dtype.kind in "iu" and array.size and (array.min() < 0 or array.max() > np.iinfo(dtype).max):
        raise ValueError(f"{name} are not all in 0 to {np.iinfo(dtype).max}")
    return np.require(array, dtype, "CA").reshape(-1)


class ReplayBuffer:
    """The latest transitions of ``n_envs`` environments, drawn with equal probability.

    Args:
        capacity: number of transitions.
        obs_shape: shape of one observation.
        obs_dtype: ``np.float32`` or ``np.uint8``.
        action_len: length of an action; None for one whole number.
        n_envs: number of environments that step together.
        n_step: steps of a transition; rewards are summed with their discounts.
        gamma: discount of a step.
        seed: seed of the draws.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        obs_dtype=np.float32,
        action_len: int | None = None,
        *,
        n_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
    ):
        self._make(capacity, obs_shape, obs_dtype, action_len, n_envs, n_step, gamma, seed)

    def _make(self, capacity, obs_shape, obs_dtype, action_len, n_envs, n_step, gamma, seed, *priorities):
        self.obs_shape, self.obs_dtype, self.action_len, self.n_envs = tuple(obs_shape), np.dtype(obs_dtype), action_len, n_envs
        if self.obs_dtype not in (np.float32, np.uint8):
            raise TypeError(f"obs_dtype is {self.obs_dtype}; it must be float32 or uint8")
        length, is_bytes = int(np.prod(self.obs_shape)), self.obs_dtype == np.uint8
        shape = (capacity, length, is_bytes, action_len, n_envs, n_step, gamma, seed)
        self._replay = _samebits.Replay(*shape, *priorities)

    def __len__(self) -> int:
        """Number of transitions held."""
        return len(self._replay)

    def add(self, obs, actions, rewards, next_obs, terminated, truncated=None) -> None:
        """Adds a step of all environments, the first axis of every array.

        ``next_obs`` has the last observation of an episode where it has ended, not the first of the next one: with
        ``make_vec``, ``if "final_obs" in info: next_obs[ended] = info["final_obs"][ended]`` in a copy of ``next_obs``.
        """
        n, size = self.n_envs, self.n_envs * int(np.prod(self.obs_shape))
        truncated = np.zeros(n, np.uint8) if truncated is None else truncated
        action_dtype, action_len = (np.uint32, 1) if self.action_len is None else (np.float32, self.action_len)
        self._replay.add(
            _flat("obs", obs, self.obs_dtype, size),
            _flat("actions", actions, action_dtype, n * action_len),
            _flat("rewards", rewards, np.float32, n),
            _flat("next_obs", next_obs, self.obs_dtype, size),
            _flat("terminated", terminated, np.uint8, n),
            _flat("truncated", truncated, np.uint8, n),
        )

    def sample(self, batch_size: int) -> dict[str, np.ndarray]:
        """Draws transitions: a dict of new arrays.

        ``obs``, ``actions``, ``rewards``, ``discounts`` (gamma to the number of steps, 0 after termination), ``next_obs``,
        ``weights`` and ``indices``. A target is ``rewards + discounts * value(next_obs)``.
        """
        return self._shaped(self._replay.sample(batch_size, 0.0))

    def clear(self) -> None:
        """Removes everything."""
        self._replay.clear()

    def _shaped(self, batch):
        rows = (-1, *self.obs_shape)
        batch["obs"], batch["next_obs"] = batch["obs"].reshape(rows), batch["next_obs"].reshape(rows)
        batch["actions"] = batch["actions"].view(np.int32) if self.action_len is None else batch["actions"].reshape(-1, self.action_len)
        return batch


class PrioritizedReplayBuffer(ReplayBuffer):
    """Transitions drawn in proportion to priorities (Schaul et al., 2016).

    Args:
        alpha: exponent of an error in its priority; 0 draws uniformly.
        epsilon: added to every error.

    All other arguments are those of :class:`ReplayBuffer`.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        obs_dtype=np.float32,
        action_len: int | None = None,
        *,
        n_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
    ):
        self._make(capacity, obs_shape, obs_dtype, action_len, n_envs, n_step, gamma, seed, alpha, epsilon)

    def sample(self, batch_size: int, beta: float = 0.4) -> dict[str, np.ndarray]:
        """Draws transitions as :meth:`ReplayBuffer.sample`; ``weights`` correct the bias, fully with a ``beta`` of 1."""
        return self._shaped(self._replay.sample(batch_size, beta))

    def update_priorities(self, indices, errors) -> int:
        """Sets priorities from the errors of the latest batch; returns how many.

        Transitions that were overwritten meanwhile are skipped.
        """
        indices = np.asarray(indices)
        return self._replay.update_priorities(
            _flat("indices", indices, np.uint32, indices.size), _flat("errors", errors, np.float32, indices.size)
        )


def _aligned(array):
    """Numbers as the native half takes them: a field of a structured array is copied."""
    return np.require(array, np.float32, "CA")


def _outcomes(rewards, next_values, terminated, truncated):
    """Arrays (T, N) as the native half takes them."""
    rewards = _aligned(rewards)
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape {rewards.shape}; arrays are (steps, environments)")
    flags = (np.asarray(flag) for flag in (terminated, truncated))
    terminated, truncated = (flag.astype(np.bool_).view(np.uint8) for flag in flags)
    next_values = _aligned(next_values)
    return {"rewards": rewards, "next_values": next_values, "terminated": terminated, "truncated": truncated}


def gae(
    rewards, values, next_values, terminated, truncated, gamma: float = 0.99, gae_lambda: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantage estimation (Schulman et al., 2016): advantages and returns, both (steps, environments).

    ``next_values`` are the values of the observations after each step: of the final one where an episode has ended.
    """
    given = _outcomes(rewards, next_values, terminated, truncated)
    return _samebits.gae(given, _aligned(values), gamma, gae_lambda)


def vtrace(
    rewards, values, next_values, ratios, terminated, truncated, gamma: float = 0.99, vtrace_lambda: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace (Espeholt et al., 2018), for steps of another policy: advantages and returns.

    ``ratios`` are the probabilities of the actions under the learning policy over those under the acting one; both clips are 1.
    The policy gradient weights each advantage by ``np.minimum(ratios, 1)``, which is not in it.
    """
    given = _outcomes(rewards, next_values, terminated, truncated)
    return _samebits.vtrace(given, _aligned(values), _aligned(ratios), gamma, vtrace_lambda)


def n_step_returns(rewards, next_values, terminated, truncated, n: int, gamma: float = 0.99) -> np.ndarray:
    """Returns of up to ``n`` steps (Sutton and Barto, 2018, eq. 7.1), (steps, environments)."""
    return _samebits.n_step_returns(_outcomes(rewards, next_values, terminated, truncated), n, gamma)
