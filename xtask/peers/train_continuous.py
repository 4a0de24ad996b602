"""Environment steps per second of SAC or TD3 of Stable-Baselines3 and SBX.

    python train_continuous.py sac|td3 ENV ENVS HIDDEN THREADS TOTAL

An update of 256 transitions follows each step of the environments. The same model trains before, which compiles SBX's update. SBX uses
all processors, whatever THREADS is.
"""

import json
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import sbx
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

name, env_id, hidden = sys.argv[1], sys.argv[2], [int(n) for n in sys.argv[4].split(",")]
n_envs, threads, total = int(sys.argv[3]), int(sys.argv[5]), int(sys.argv[6])
torch.set_num_threads(threads)


def rate(library, activation, **settings):
    envs = make_vec_env(env_id, n_envs)
    settings |= dict(batch_size=256, train_freq=1, gradient_steps=1, learning_starts=100, buffer_size=100_000)
    settings["policy_kwargs"] = dict(net_arch=hidden, activation_fn=activation)
    if name == "td3":
        n_actions = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(n_actions), 0.1 * np.ones(n_actions))
    model = {"sac": library.SAC, "td3": library.TD3}[name]("MlpPolicy", envs, **settings)
    model.learn(100 + 300 * n_envs)
    begin, before = time.perf_counter(), model.num_timesteps
    model.learn(total, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - begin)


rates = {"Stable-Baselines3": rate(stable_baselines3, torch.nn.ReLU, device="cpu")}
rates["SBX"] = rate(sbx, jax.nn.relu)
print(json.dumps(rates))
