"""Trained policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from samebits import _samebits, spaces


class Policy:
    """The policy of a run or of a checkpoint; ``Run.policy`` returns one.

    ``predict`` has the signature of Stable-Baselines3's, and is deterministic unless told otherwise. Discrete observations and
    actions count from 0, and vectors of actions are flat: with an environment whose space begins elsewhere or has more axes,
    ``env.step(np.reshape(action, space.shape) + space.start)``.
    """

    def __init__(self, path: str | os.PathLike, *, best: bool = False, trust: bool = False):
        self._policy = _samebits.Policy(os.fspath(path), best, trust, sys.executable)
        obs, actions = self._policy.spaces()
        self.observation_space, self.action_space = spaces.observations(obs), spaces.actions(actions)
        self._row = () if "n" in actions else self.action_space.shape
        self._mask_len = actions["n"] if actions["masked"] else 0

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return Path(self._policy.path)

    def predict(
        self, observation, state=None, episode_start=None, deterministic: bool = True, action_masks=None, *, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Acts on one observation or on a batch of them: actions and the next state.

        Args:
            observation: one observation, or a batch with a first axis more.
            state: what the call before has returned; None at the start, and for a policy without memory.
            episode_start: True where an episode begins, for a policy with memory.
            deterministic: True takes the most likely actions, False samples them.
            action_masks: 1 for each legal action; None: all are.
            seed: seed of sampled actions; each call draws others.
        """
        observation, shape = np.asarray(observation), self.observation_space.shape
        is_single = observation.shape == shape
        if not is_single and observation.shape[1:] != shape:
            raise ValueError(f"the observation has shape {observation.shape}; the policy takes {shape}, or a batch of them")
        if not np.can_cast(observation.dtype, self.observation_space.dtype, "same_kind"):
            raise TypeError(f"the observation is {observation.dtype}; the policy takes {self.observation_space.dtype}")
        reads_bytes = self.observation_space.dtype == np.uint8
        if reads_bytes and observation.dtype != np.uint8 and observation.size and observation.max() > 255:
            raise ValueError("the observation is not all in 0 to 255")
        n, width = 1 if is_single else len(observation), self._policy.state_len
        states = np.zeros((n, width), np.float32)
        if state is not None and width:
            states[:] = np.asarray(state, np.float32).reshape(n, width)
            if episode_start is not None:
                states[np.asarray(episode_start, bool).reshape(n)] = 0
        masks = np.ones(0, np.uint8)
        if action_masks is not None and self._mask_len:
            masks = np.ascontiguousarray(np.asarray(action_masks) != 0).view(np.uint8).reshape(-1)
        flat = np.require(observation, self.observation_space.dtype, "CA").reshape(-1)
        actions, states = self._policy.act(flat, states.reshape(-1), masks, None if deterministic else seed)
        actions = actions.reshape(n, *self._row)
        return actions[0] if is_single else actions, states.reshape(n, width) if width else None

    def parameters(self) -> dict[str, np.ndarray]:
        """Returns copies of the parameters by name, as the checkpoint's ``params.safetensors`` has them."""
        return self._policy.parameters()

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        """Replaces all parameters of this object by arrays of the same names and shapes; the checkpoint stays as it is."""
        self._policy.set_parameters({name: np.require(array, np.float32, "CA") for name, array in parameters.items()})

    def __repr__(self):
        return f"samebits.Policy({str(self.path)!r})"
