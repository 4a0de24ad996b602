"""Environment steps per second of Stable-Baselines3's PPO where each step of CartPole sleeps an exponential time, everything included.

    python latency_sb3.py ENVS MEAN_MS STEPS BATCH EPOCHS HIDDEN THREADS ROLLOUTS
"""

import sys
import time

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv


class Slow(gymnasium.Wrapper):
    def __init__(self, seed, mean):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.random, self.mean = numpy.random.default_rng(seed), mean

    def step(self, action):
        time.sleep(self.random.exponential(self.mean))
        return self.env.step(action)


def main():
    envs, mean, steps, batch, epochs = (int(x) for x in sys.argv[1:6])
    hidden, threads, rollouts = [int(x) for x in sys.argv[6].split(",")], int(sys.argv[7]), int(sys.argv[8])
    torch.set_num_threads(threads)
    vec_env = SubprocVecEnv([lambda i=i: Slow(i, mean / 1000) for i in range(envs)])
    net = {"net_arch": {"pi": hidden, "vf": hidden}}
    model = PPO("MlpPolicy", vec_env, n_steps=steps, batch_size=batch, n_epochs=epochs, policy_kwargs=net, device="cpu")
    begin = time.perf_counter()
    model.learn(rollouts * envs * steps)
    print(model.num_timesteps / (time.perf_counter() - begin))
    vec_env.close()


if __name__ == "__main__":
    main()
