"""Environment steps per second of Stable-Baselines3's PPO, everything included.

    python train_sb3.py ENVS STEPS BATCH EPOCHS THREADS TOTAL [ENV dummy|subproc]
"""

import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


def main():
    envs, steps, batch, epochs, threads, total = map(int, sys.argv[1:7])
    env, kind = sys.argv[7:9] if len(sys.argv) > 7 else ("CartPole-v1", "dummy")
    torch.set_num_threads(threads)
    vec_env = make_vec_env(env, envs, vec_env_cls={"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind])
    model = PPO("MlpPolicy", vec_env, n_steps=steps, batch_size=batch, n_epochs=epochs, device="cpu")
    model.learn(envs * steps)  # warm-up
    begin = time.perf_counter()
    model.learn(total)
    print(model.num_timesteps / (time.perf_counter() - begin))
    vec_env.close()


if __name__ == "__main__":
    main()
