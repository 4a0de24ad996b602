"""Trains PPO on several inputs: prints its env steps per second and the mean return of greedy episodes, as JSON.

    python train_inputs.py ENV CONV SCALED STEPS SEED EPISODES THREADS

ENV is an id of MiniGrid, or robot. CONV is a JSON list of [channels, kernel, stride]; SCALED is 1 if bytes are divided by 255. The
extractor is Stable-Baselines3's CombinedExtractor with these convolutions. Time is that of `learn`.
"""

import json
import sys
import time

import gymnasium
import minigrid
import torch
from robot import Robot
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

env_id, conv, scaled, steps, seed, episodes, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
UNITS = 128


class Extractor(BaseFeaturesExtractor):
    """Convolutions for pictures, all else as it is, and a layer over both."""

    def __init__(self, observation_space, layers):
        super().__init__(observation_space, UNITS)
        self.parts, n = torch.nn.ModuleDict(), 0
        for key, space in observation_space.spaces.items():
            if is_image_space(space, check_channels=False):
                stack, channels = [], space.shape[0]
                for n_out, kernel, stride in layers:
                    stack += [torch.nn.Conv2d(channels, n_out, kernel, stride), torch.nn.ReLU()]
                    channels = n_out
                part = torch.nn.Sequential(*stack, torch.nn.Flatten())
                with torch.no_grad():
                    n += part(torch.zeros(1, *space.shape)).shape[1]
            else:
                part, n = torch.nn.Flatten(), n + get_flattened_obs_dim(space)
            self.parts[key] = part
        self.joined = torch.nn.Sequential(torch.nn.Linear(n, UNITS), torch.nn.ReLU())

    def forward(self, obs):
        return self.joined(torch.cat([part(obs[key]) for key, part in self.parts.items()], dim=1))


def make():
    if env_id == "robot":
        return Robot()
    return gymnasium.wrappers.FilterObservation(gymnasium.make(env_id), ["direction", "image"])


envs = make_vec_env(make, n_envs=16, seed=int(seed), vec_env_cls=DummyVecEnv)
kwargs = {
    "features_extractor_class": Extractor,
    "features_extractor_kwargs": {"layers": json.loads(conv)},
    "net_arch": [],
    "normalize_images": scaled == "1",
}
agent = PPO(
    "MultiInputPolicy",
    envs,
    n_steps=128,
    batch_size=256,
    n_epochs=4,
    learning_rate=1e-3,
    ent_coef=0.01,
    policy_kwargs=kwargs,
    seed=int(seed),
    device="cpu",
)
begin = time.perf_counter()
agent.learn(int(steps))
answer = {"env_steps_per_s": agent.num_timesteps / (time.perf_counter() - begin)}
played = make_vec_env(make, n_envs=1, seed=int(seed) + 1_000_000, vec_env_cls=DummyVecEnv)
answer["return_mean"] = evaluate_policy(agent, played, n_eval_episodes=int(episodes))[0]
print(json.dumps(answer, default=float))
