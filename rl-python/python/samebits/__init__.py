"""Reinforcement learning that keeps the hardware busy.

- ``make_vec("cartpole", num_envs=4096)``: environments that step together, a ``gymnasium.vector.VectorEnv``.
- ``train("cartpole")``: trains an agent in our environments, in Gymnasium's or in yours; returns a ``Run``.
- ``Run.open(path)``: metrics, evaluations and the policy of a run of ``train`` or of the program ``rl``.
- ``ReplayBuffer``, ``PrioritizedReplayBuffer``, ``gae``, ``vtrace``, ``n_step_returns``: parts for an algorithm of your own.

``samebits.sb3.VecEnv`` wraps environments for Stable-Baselines3. ``settings()`` lists what ``train(settings=..)`` takes.
"""

from samebits._samebits import __version__
from samebits.buffers import PrioritizedReplayBuffer, ReplayBuffer, gae, n_step_returns, vtrace
from samebits.policy import Policy
from samebits.training import Run, settings, train
from samebits.vector import VectorEnv, catalog, make_vec

__all__ = [
    "Policy",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "Run",
    "VectorEnv",
    "__version__",
    "catalog",
    "gae",
    "make_vec",
    "n_step_returns",
    "settings",
    "train",
    "vtrace",
]
