"""Environments that step together, as Gymnasium's vector environments."""

from __future__ import annotations

import operator
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from samebits import _samebits, spaces

#: Width and height that a drawn environment fits into.
FRAME = 400


def catalog() -> dict[str, str]:
    """Returns the environments by name, each with a line about its task."""
    return dict(_samebits.catalog())


def make_vec(
    name: str,
    num_envs: int = 1,
    *,
    threads: int = 1,
    seed: int = 0,
    copy: bool = True,
    render_mode: Literal["rgb_array"] | None = None,
    record_episodes: bool = False,
    frame_stack: int = 1,
    time_limit: int = 0,
    action_repeat: int = 1,
    pixels: int = 0,
    reward_clip: float = 0.0,
    hide: str = "nothing",
) -> VectorEnv:
    """Makes ``num_envs`` environments that step together.

    Args:
        name: an environment of ``catalog()``.
        num_envs: their number.
        threads: threads that step them; the numbers do not depend on it.
        seed: seed of the first ``reset`` without one.
        copy: False returns arrays that the next ``step`` or ``reset`` overwrites; True returns copies.
        render_mode: ``"rgb_array"`` to draw, else None.
        record_episodes: True adds ``info["episode"]``, with the return ``"r"`` and the length ``"l"`` of each episode that has ended.
            (Gymnasium 1.3's ``RecordEpisodeStatistics`` leaves out the first step of an episode after a reset in the same step.)
        frame_stack: observations seen at once, the oldest first.
        time_limit: steps after which an episode is truncated; 0: the environment's own limit.
        action_repeat: times that each action is taken.
        pixels: width and height of the environment's picture, observed in grey; 0: its own observations.
        reward_clip: bound of the rewards; 0: none. Recorded returns are unclipped.
        hide: elements of observations that are 0: ``"nothing"`` or ``"velocities"``.
    """
    wrappers = (frame_stack, time_limit, action_repeat, pixels, reward_clip, hide)
    return VectorEnv(name, num_envs, threads, seed, copy, render_mode, record_episodes, wrappers)


class VectorEnv(gymnasium.vector.VectorEnv):
    """Environments that step together; see :func:`make_vec`.

    An environment is reset in the step in which its episode ends (``AutoresetMode.SAME_STEP``): ``info["final_obs"]`` has the last
    observation in the rows of ``info["_final_obs"]``. Where some actions are illegal, ``info["action_mask"]`` has 1 for each legal
    one, and ``info["final_info"]["action_mask"]`` those of final observations.

    With ``copy=False``, the arrays of a step are the memory that the next one writes: keep what you need. Arrays live as long as
    you hold them, also after ``close``.
    """

    def __init__(self, name, num_envs, threads, seed, copy, render_mode, record_episodes, wrappers):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; it must be None or 'rgb_array'")
        self._envs = _samebits.Envs(name, num_envs, threads, *wrappers)
        self.name, self.num_envs, self.copy, self.render_mode = name, num_envs, copy, render_mode
        self.autoreset_mode = AutoresetMode.SAME_STEP  # where TorchRL looks
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": ["rgb_array"], "render_fps": 30}
        obs, actions = self._envs.spaces()
        self.single_observation_space, self.single_action_space = spaces.observations(obs), spaces.actions(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        arrays = self._envs.arrays()
        rows = (num_envs, *self.single_observation_space.shape)
        self._obs, self._final_obs = arrays[0].reshape(rows), arrays[4].reshape(rows)
        self._rewards = arrays[1]
        self._terminated, self._truncated = arrays[2].view(np.bool_), arrays[3].view(np.bool_)
        masks = [mask.reshape(num_envs, -1).view(np.int8) for mask in arrays[5:]]
        self._masks, self._final_masks = masks if masks else (None, None)
        if isinstance(self.single_action_space, gymnasium.spaces.Box):
            self._step, self._dtype, self._shape = self._envs.step_continuous, np.float32, (-1,)
        elif isinstance(self.single_action_space, gymnasium.spaces.Discrete):
            self._step, self._dtype, self._shape = self._envs.step_discrete, np.int64, None
        else:
            self._step, self._dtype, self._shape = self._envs.step_heads, np.int64, None
        self._records, self._clips = record_episodes, wrappers[4] > 0
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._seeds = np.random.default_rng(seed)
        self._first_seed = operator.index(seed)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins new episodes in all environments.

        The episodes depend on ``seed`` and on nothing else. Without one, the first reset takes the seed of ``make_vec``, and every
        later one draws another, which follows from the last one given.
        """
        if options:
            raise ValueError(f"options are {options!r}; these environments have none, and only reset together")
        if isinstance(seed, (list, tuple, np.ndarray)):
            raise ValueError("seed is a list; one seed gives every environment numbers of its own")
        if seed is None:
            seed = self._first_seed
            seed = int(self._seeds.integers(2**63)) if seed is None else seed
        else:
            self._seeds = np.random.default_rng(operator.index(seed) % 2**64)
        self._envs.reset(operator.index(seed) % 2**64)
        self._first_seed = None
        self._returns[:], self._lengths[:] = 0, 0
        return self._column(self._obs), {} if self._masks is None else {"action_mask": self._column(self._masks)}

    def step(self, actions) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps every environment: observations, rewards, terminated, truncated, info."""
        actions = np.require(actions, None, "CA")
        if actions.dtype != self._dtype:
            if not np.can_cast(actions.dtype, self._dtype, "same_kind"):
                raise TypeError(f"actions are {actions.dtype}; these environments take {self._dtype.__name__}")
            actions = actions.astype(self._dtype)
        if self._shape is not None:
            if actions.shape != self.action_space.shape:
                raise ValueError(f"actions have shape {actions.shape} instead of {self.action_space.shape}")
            actions = actions.reshape(self._shape)
        ended = self._step(actions)
        info = {} if self._masks is None else {"action_mask": self._column(self._masks)}
        if self._records:
            self._returns += self._envs.raw_rewards() if self._clips else self._rewards
            self._lengths += 1
        if ended:
            over = info["_final_obs"] = info["_final_info"] = self._terminated | self._truncated
            info["final_obs"] = self._final_obs
            if self.copy:  # most rows are untouched memory
                info["final_obs"] = np.zeros_like(self._final_obs)
                info["final_obs"][over] = self._final_obs[over]
            info["final_info"] = {} if self._masks is None else {"action_mask": self._column(self._final_masks)}
            if self._records:
                info["_episode"] = over
                info["episode"] = {"r": np.where(over, self._returns, 0), "l": np.where(over, self._lengths, 0)}
                self._returns[over], self._lengths[over] = 0, 0
        terminated, truncated = self._column(self._terminated), self._column(self._truncated)
        return self._column(self._obs), self._column(self._rewards), terminated, truncated, info

    def render(self) -> tuple[np.ndarray | None, ...] | None:
        """Draws every environment as (height, width, 3); None without ``render_mode="rgb_array"``."""
        return None if self.render_mode is None else tuple(self.frame(i) for i in range(self.num_envs))

    def frame(self, index: int) -> np.ndarray | None:
        """Draws one environment as (height, width, 3); None if it does not draw itself."""
        height, width, pixels = self._envs.render(index, FRAME)
        return np.frombuffer(bytes(pixels), np.uint8).reshape(height, width, 3).copy() if height else None

    def get_state(self) -> bytes:
        """Encodes the state of all environments, apart from their observations, and of their episodes' statistics."""
        return bytes(self._envs.save()) + self._returns.tobytes() + self._lengths.tobytes()

    def set_state(self, state: bytes) -> None:
        """Continues from a state of ``get_state``; the arrays of the next step are the same as there."""
        at = max(len(state) - self._returns.nbytes - self._lengths.nbytes, 0)
        self._envs.load(state[:at])
        self._returns[:] = np.frombuffer(state, self._returns.dtype, self.num_envs, at)
        self._lengths[:] = np.frombuffer(state, self._lengths.dtype, self.num_envs, at + self._returns.nbytes)

    def close_extras(self, **kwargs):
        """Frees the environments; called by ``close``."""
        self._envs.close()

    def __enter__(self):
        """Closes the environments at the end of a ``with``."""
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        return f"samebits.VectorEnv({self.name!r}, num_envs={self.num_envs})"

    def __reduce__(self):
        raise TypeError("environments cannot be pickled; make them in the process that steps them")

    def _column(self, array):
        return array.copy() if self.copy else array
