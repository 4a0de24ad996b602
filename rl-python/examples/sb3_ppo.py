"""Stable-Baselines3's PPO on our environments: python sb3_ppo.py"""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from samebits.sb3 import VecEnv

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
# RL Baselines3 Zoo's settings for CartPole-v1.
settings = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
model = PPO("MlpPolicy", VecEnv("cartpole", 8), learning_rate=1e-3, clip_range=0.2, seed=1, device="cpu", **settings)
model.learn(steps)
mean, std = evaluate_policy(model, VecEnv("cartpole", 8, seed=7), n_eval_episodes=100)
print(f"mean return {mean:.1f}, standard deviation {std:.1f}, over 100 episodes")
