"""Environment steps per second of Stable-Baselines3's PPO on CartPole, everything included.

    python train_sb3.py ENVS STEPS BATCH EPOCHS THREADS TOTAL
"""

import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main():
    envs, steps, batch, epochs, threads, total = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    vec_env = make_vec_env("CartPole-v1", envs)
    model = PPO("MlpPolicy", vec_env, n_steps=steps, batch_size=batch, n_epochs=epochs, device="cpu")
    model.learn(envs * steps)  # warm-up
    begin = time.perf_counter()
    model.learn(total)
    print(model.num_timesteps / (time.perf_counter() - begin))
    vec_env.close()


if __name__ == "__main__":
    main()
