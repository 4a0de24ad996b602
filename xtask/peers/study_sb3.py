"""Stable-Baselines3's PPO with its default settings in 8 environments: env steps per second of `learn`, and the mean return after it.

    python study_sb3.py ENV dummy|subproc THREADS STEPS SEED EPISODES

The return is that of EPISODES greedy episodes. One JSON object is printed.
"""

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

ENVS = 8


def main():
    env, kind = sys.argv[1:3]
    threads, steps, seed, episodes = map(int, sys.argv[3:])
    torch.set_num_threads(threads)
    vec_env = make_vec_env(env, ENVS, seed=seed, vec_env_cls={"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind])
    model = PPO("MlpPolicy", vec_env, n_steps=2048 // ENVS, seed=seed, device="cpu")
    begin = time.perf_counter()
    model.learn(steps)
    rate = model.num_timesteps / (time.perf_counter() - begin)
    vec_env.close()
    result = None
    if episodes:
        fresh = make_vec_env(env, ENVS, seed=seed + 1_000_000)
        result, _ = evaluate_policy(model, fresh, n_eval_episodes=episodes, deterministic=True)
    print(json.dumps({"env_steps_per_s": rate, "return_mean": None if result is None else float(result)}))


if __name__ == "__main__":
    main()
