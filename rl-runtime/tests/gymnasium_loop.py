"""Gymnasium's own loop: the referee of the worker.

Reads {"id", "seeds", "actions"} with actions[t][i], and prints for each environment its observations and steps.
"""

import json
import sys

import gymnasium as gym
import numpy as np

ask = json.load(sys.stdin)
if ask["id"].startswith("Spaces"):
    import tests.worker_envs
if ask["id"].startswith("ALE/"):
    import ale_py


def make():
    if ask["id"].startswith("ALE/"):
        return gym.wrappers.AtariPreprocessing(gym.make(ask["id"], frameskip=1))
    return gym.make(ask["id"])


def flat(env, obs):
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 3:
        return np.moveaxis(obs, 2, 0).ravel().tolist()
    flat = gym.spaces.flatten(space, obs).astype(np.float32)
    if ask["id"] == "Spaces-among-v0":
        # The picture, which comes last: channels first, from 0 to 1.
        flat[2:] = np.moveaxis(obs["image"], 2, 0).ravel() / np.float32(255)
    return flat.tolist()


played = []
for i, seed in enumerate(ask["seeds"]):
    env = make()
    discrete = isinstance(env.action_space, gym.spaces.Discrete)
    obs, info = env.reset(seed=seed)
    steps = []
    first = flat(env, obs)
    for actions in ask["actions"]:
        action = actions[i] + int(env.action_space.start) if discrete else np.array(actions[i], env.action_space.dtype)
        obs, reward, terminated, truncated, info = env.step(action)
        final, final_mask = flat(env, obs), info.get("action_mask")
        if terminated or truncated:
            obs, info = env.reset()
        mask = info.get("action_mask")
        steps.append([flat(env, obs), float(np.float32(reward)), bool(terminated), bool(truncated), final, mask.tolist() if mask is not None else None])
    played.append({"first": first, "steps": steps})
print(json.dumps(played))
