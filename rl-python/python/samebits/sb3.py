"""Environments for Stable-Baselines3: ``PPO("MlpPolicy", samebits.sb3.VecEnv("cartpole", 8))``."""

import numpy as np
from stable_baselines3.common.vec_env import VecEnv as _VecEnv

from samebits.vector import make_vec


class VecEnv(_VecEnv):
    """Environments of ``make_vec`` as a ``VecEnv``; the arguments are those of ``make_vec``.

    Stable-Baselines3 keeps observations beyond the next step, so that they are always copied.
    """

    def __init__(self, name, num_envs=1, **settings):
        self.envs = make_vec(name, num_envs, **{**settings, "copy": True, "record_episodes": True})
        self.render_mode = self.envs.render_mode
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)
        self._seed, self._masks = None, None

    def reset(self):
        """Begins new episodes in all environments."""
        obs, info = self.envs.reset(seed=self._seed)
        self._seed = None
        self._masks = info.get("action_mask")
        return obs

    def step_async(self, actions):
        """Keeps the actions for ``step_wait``."""
        self._actions = actions

    def step_wait(self):
        """Steps every environment."""
        obs, rewards, terminated, truncated, info = self.envs.step(self._actions)
        self._masks = info.get("action_mask")
        infos = [{} for _ in range(self.num_envs)]
        ended = terminated | truncated
        for i in np.flatnonzero(ended):
            infos[i] = {
                "terminal_observation": info["final_obs"][i],
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {"r": float(info["episode"]["r"][i]), "l": int(info["episode"]["l"][i])},
            }
        return obs, rewards, ended, infos

    def seed(self, seed=None):
        """Seeds the next reset."""
        self._seed = seed
        return [seed] * self.num_envs

    def action_masks(self):
        """1 for each legal action of the latest observations; None if all are."""
        return self._masks

    def get_images(self):
        """Draws every environment."""
        return [self.envs.frame(i) for i in range(self.num_envs)]

    def close(self):
        """Frees the environments."""
        self.envs.close()

    def get_attr(self, attr_name, indices=None):
        """Returns an attribute for each environment."""
        if attr_name == "action_masks" and self.envs._masks is None:  # MaskablePPO asks
            raise AttributeError("these environments have no masks")
        value = self.action_masks() if attr_name == "action_masks" else getattr(self.envs, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name, value, indices=None):
        """Refused: environments step together and have no attributes of their own."""
        raise AttributeError(f"{attr_name} cannot be set: environments that step together have no attributes of their own")

    def env_method(self, method_name, *args, indices=None, **kwargs):
        """Calls ``action_masks``, for algorithms that mask actions; other methods are refused."""
        if method_name == "action_masks" and self._masks is not None:
            return [self._masks[i] for i in self._get_indices(indices)]
        raise AttributeError(f"{method_name} cannot be called: environments that step together have no methods of their own")

    def env_is_wrapped(self, wrapper_class, indices=None):
        """False, for every wrapper of Gymnasium."""
        return [False for _ in self._get_indices(indices)]
