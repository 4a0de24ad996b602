"""Environment steps per second of Stable-Baselines3's SAC or TD3 on one Pendulum, everything included, from the start.

    python train_sb3_continuous.py sac|td3 HIDDEN THREADS TOTAL
"""

import sys
import time

import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

name, hidden = sys.argv[1], [int(n) for n in sys.argv[2].split(",")]
threads, total = map(int, sys.argv[3:])
torch.set_num_threads(threads)
settings = dict(batch_size=256, train_freq=1, gradient_steps=1, learning_starts=100, buffer_size=100_000, device="cpu")
settings["policy_kwargs"] = dict(net_arch=hidden, activation_fn=torch.nn.ReLU)
if name == "td3":
    settings["action_noise"] = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
algo = {"sac": SAC, "td3": TD3}[name]
algo("MlpPolicy", make_vec_env("Pendulum-v1", 1), **settings).learn(400)  # warm-up
model = algo("MlpPolicy", make_vec_env("Pendulum-v1", 1), **settings)
begin = time.perf_counter()
model.learn(total)
print(total / (time.perf_counter() - begin))
