"""Trains sb3-contrib's RecurrentPPO: prints its env steps per second and the mean return of greedy episodes, as JSON.

    python train_recurrent.py ENV HIDE STEPS SEED EPISODES THREADS

HIDE is the indices of elements that are zeros, separated by commas, or - for none. Time is that of `learn`.
"""

import json
import sys
import time

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

env_id, hide, steps, seed, episodes, threads = sys.argv[1:]
hidden = [] if hide == "-" else [int(i) for i in hide.split(",")]
torch.set_num_threads(int(threads))


def without(env):
    """The environment with zeros for what is hidden."""

    def zeros(obs):
        obs = np.array(obs, copy=True)
        obs[hidden] = 0
        return obs

    return gymnasium.wrappers.TransformObservation(env, zeros, env.observation_space)


def linear(start):
    return lambda remaining: start * remaining


envs = make_vec_env(env_id, n_envs=8, seed=int(seed), wrapper_class=without, vec_env_cls=DummyVecEnv)
kwargs = {"net_arch": [64], "lstm_hidden_size": 64, "activation_fn": torch.nn.Tanh}
agent = RecurrentPPO(
    "MlpLstmPolicy",
    envs,
    n_steps=128,
    batch_size=256,
    n_epochs=10,
    learning_rate=linear(1e-3),
    gamma=0.98,
    gae_lambda=0.9,
    policy_kwargs=kwargs,
    seed=int(seed),
    device="cpu",
)
begin = time.perf_counter()
agent.learn(int(steps))
answer = {"env_steps_per_s": agent.num_timesteps / (time.perf_counter() - begin)}
if int(episodes) > 0:
    played = make_vec_env(env_id, n_envs=1, seed=int(seed) + 1_000_000, wrapper_class=without, vec_env_cls=DummyVecEnv)
    answer["return_mean"] = evaluate_policy(agent, played, n_eval_episodes=int(episodes))[0]
print(json.dumps(answer, default=float))
