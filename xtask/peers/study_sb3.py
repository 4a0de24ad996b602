"""Trains with Stable-Baselines3: env steps per second, use of the processor, mean return.

    python study_sb3.py ppo|a2c|sac|td3 ENV ENVS dummy|subproc THREADS STEPS SEED EPISODES

Settings are the defaults, but PPO's rollouts have 2,048 env steps in all, SAC and TD3 learn after 1,000 random env steps, and TD3 explores
with noise of deviation 0.1. The return is that of EPISODES greedy episodes. Prints one JSON object; a point of its curve is env steps,
seconds and the mean return of the last 100 training episodes.
"""

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import A2C, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


class Curve(BaseCallback):
    """Records a point at the end of a rollout, at most every 0.1 s."""

    def __init__(self):
        super().__init__()
        self.points = []
        self.begin = time.perf_counter()

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        seconds = time.perf_counter() - self.begin
        returns = [info["r"] for info in self.model.ep_info_buffer]
        if returns and (not self.points or seconds > self.points[-1][1] + 0.1):
            self.points.append([self.model.num_timesteps, seconds, sum(returns) / len(returns)])


def cpu_s(processes):
    """Processor seconds of this process and of `processes`."""
    seconds = time.process_time()
    for process in processes:
        with open(f"/proc/{process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        seconds += (int(fields[11]) + int(fields[12])) / 100
    return seconds


def main():
    algo, env, envs, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    threads, steps, seed, episodes = map(int, sys.argv[5:])
    torch.set_num_threads(threads)
    vec_env = make_vec_env(env, envs, seed=seed, vec_env_cls={"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind])
    if algo == "ppo":
        model = PPO("MlpPolicy", vec_env, n_steps=2048 // envs, seed=seed, device="cpu")
    elif algo == "a2c":
        model = A2C("MlpPolicy", vec_env, seed=seed, device="cpu")
    elif algo == "sac":
        model = SAC("MlpPolicy", vec_env, learning_starts=1000, seed=seed, device="cpu")
    else:
        n = vec_env.action_space.shape[0]
        noise = NormalActionNoise(np.zeros(n), 0.1 * np.ones(n))
        model = TD3("MlpPolicy", vec_env, learning_starts=1000, action_noise=noise, seed=seed, device="cpu")
    processes = getattr(vec_env, "processes", [])
    curve, used, begin = Curve(), cpu_s(processes), time.perf_counter()
    model.learn(steps, callback=curve)
    elapsed = time.perf_counter() - begin
    cores = (cpu_s(processes) - used) / elapsed
    vec_env.close()
    result = None
    if episodes:
        fresh = make_vec_env(env, 8, seed=seed + 1_000_000)
        result, _ = evaluate_policy(model, fresh, n_eval_episodes=episodes, deterministic=True)
        result = float(result)
    print(json.dumps({"env_steps_per_s": model.num_timesteps / elapsed, "cores": cores, "return_mean": result, "curve": curve.points}))


if __name__ == "__main__":
    main()
