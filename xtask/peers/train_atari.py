"""Trains Stable-Baselines3's PPO on a game of Atari: prints its env steps per second as JSON.

    python train_atari.py ENV STEPS SEED THREADS

The settings are those of RL Baselines3 Zoo: 8 environments, four frames, clipped rewards. Episodes do not end with a life. Time is that of
`learn`.
"""

import json
import sys
import time

import ale_py
import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import ClipRewardEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

if __name__ == "__main__":
    env_id, steps, seed, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))

    def make():
        game = gymnasium.make(env_id, frameskip=1)
        return ClipRewardEnv(gymnasium.wrappers.AtariPreprocessing(game, grayscale_newaxis=True))

    envs = VecFrameStack(make_vec_env(make, n_envs=8, seed=int(seed), vec_env_cls=SubprocVecEnv), 4)
    agent = PPO("CnnPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, ent_coef=0.01, seed=int(seed), device="cpu")
    begin = time.perf_counter()
    agent.learn(int(steps))
    print(json.dumps({"env_steps_per_s": agent.num_timesteps / (time.perf_counter() - begin)}))
