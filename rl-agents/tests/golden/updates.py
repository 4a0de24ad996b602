"""Records two iterations of Stable-Baselines3's PPO and A2C: the rollouts, and the parameters before and after. A minibatch is a whole rollout.

    python updates.py > updates.json

Environments emit noise; their episodes terminate or are truncated at random. Made with Stable-Baselines3 2.9.2 and PyTorch 2.11.
"""

import json

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper


class Noise(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 5).astype(np.float32)

    def step(self, action):
        end = self.np_random.random()
        return self.observe(), float(self.np_random.normal()) + action, end < 0.1, 0.1 <= end < 0.25, {}


class Log(VecEnvWrapper):
    """Remembers the steps as they are, without bootstrapped rewards."""

    def reset(self):
        self.steps = []
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        ends = [
            [n, bool(info["TimeLimit.truncated"]), info["terminal_observation"].tolist()]
            for n, (done, info) in enumerate(zip(dones, infos))
            if done
        ]
        self.steps.append({"rewards": rewards.tolist(), "ends": ends})
        return obs, rewards, dones, infos


def params(model):
    return {name: value.flatten().tolist() for name, value in model.policy.state_dict().items()}


def record(kind, **settings):
    env = Log(DummyVecEnv([Noise] * 3))
    env.seed(7)
    model = kind("MlpPolicy", env, n_steps=16, seed=7, device="cpu", policy_kwargs={"net_arch": [8, 8]}, **settings)
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(1000)
    begin, iterations = params(model), []
    for _ in range(2):
        env.steps = []
        model.collect_rollouts(env, callback, model.rollout_buffer, n_rollout_steps=16)
        buffer = model.rollout_buffer
        steps = [
            {
                "obs": buffer.observations[t].tolist(),
                "actions": buffer.actions[t].flatten().astype(int).tolist(),
                "log_probs": buffer.log_probs[t].tolist(),
                "values": buffer.values[t].tolist(),
                **step,
            }
            for t, step in enumerate(env.steps)
        ]
        with torch.no_grad():
            last_values = model.policy.predict_values(torch.as_tensor(model._last_obs)).flatten().tolist()
        model.train()
        iterations.append({"steps": steps, "last_obs": model._last_obs.tolist(), "last_values": last_values, "params": params(model)})
    return {"params": begin, "iterations": iterations}


def main():
    torch.set_num_threads(1)
    runs = {
        "ppo": record(PPO, batch_size=48, n_epochs=4, learning_rate=0.01, ent_coef=0.02, clip_range=0.1),
        "ppo_clipped_values": record(PPO, batch_size=48, n_epochs=4, learning_rate=0.01, clip_range_vf=0.1, gae_lambda=0.8, gamma=0.9),
        "a2c": record(A2C, learning_rate=0.01, ent_coef=0.02),
        "a2c_normalized": record(A2C, learning_rate=0.01, normalize_advantage=True, gae_lambda=0.9),
    }
    print(json.dumps(runs, separators=(",", ":")))


if __name__ == "__main__":
    main()
