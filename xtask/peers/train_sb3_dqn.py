"""Environment steps per second of Stable-Baselines3's DQN on one CartPole, everything included, from the start.

    python train_sb3_dqn.py BATCH EVERY TARGET THREADS TOTAL
"""

import sys
import time

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

batch, every, target, threads, total = map(int, sys.argv[1:])
torch.set_num_threads(threads)
settings = dict(batch_size=batch, train_freq=every, target_update_interval=target, learning_starts=1000, buffer_size=100_000)
DQN("MlpPolicy", make_vec_env("CartPole-v1", 1), device="cpu", **settings).learn(2000)  # warm-up
model = DQN("MlpPolicy", make_vec_env("CartPole-v1", 1), device="cpu", **settings)
begin = time.perf_counter()
model.learn(total)
print(total / (time.perf_counter() - begin))
