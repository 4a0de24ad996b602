"""Trains PufferLib's PPO with an LSTM: prints its env steps per second and the mean return of greedy episodes, as JSON.

    python train_puffer.py ENV HIDE STEPS SEED EPISODES THREADS

HIDE is the indices of elements that are zeros, separated by commas, or - for none. Time is that of collecting and learning. The
network and the settings are those of `train_recurrent.py`, with one LSTM for policy and value function; the learning rate falls
by a cosine, the LSTM's state is zeroed at the start of a rollout, and not where an episode ends: its trainer has no other way.
"""

import json
import sys
import time

import gymnasium
import numpy as np
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.pytorch
import pufferlib.vector
import torch
from pufferlib.pufferl import PuffeRL

env_id, hide, steps, seed, episodes, threads = sys.argv[1:]
hidden = [] if hide == "-" else [int(i) for i in hide.split(",")]
ENVS, ROLLOUT, WIDTH = 8, 128, 64


def make(buf=None, seed=0):
    """An environment with zeros for what is hidden."""

    def zeros(obs):
        obs = np.array(obs, copy=True)
        obs[hidden] = 0
        return obs

    env = gymnasium.make(env_id)
    env = gymnasium.wrappers.TransformObservation(env, zeros)
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


class Heads(torch.nn.Module):
    """The layers after PufferLib's LSTM, a hidden one and two heads; none before it."""

    is_continuous = False
    hidden_size = WIDTH

    def __init__(self, n_actions):
        super().__init__()
        self.trunk = torch.nn.Sequential(pufferlib.pytorch.layer_init(torch.nn.Linear(WIDTH, WIDTH)), torch.nn.Tanh())
        self.actor = pufferlib.pytorch.layer_init(torch.nn.Linear(WIDTH, n_actions), std=0.01)
        self.critic = pufferlib.pytorch.layer_init(torch.nn.Linear(WIDTH, 1), std=1)

    def encode_observations(self, observations, state=None):
        return observations.float()

    def decode_actions(self, hidden):
        hidden = self.trunk(hidden)
        return self.actor(hidden), self.critic(hidden)


def greedy_return(policy, first_seed, episodes):
    """The mean return of greedy episodes that begin with a state of zeros."""
    total = 0.0
    env = make()
    with torch.no_grad():
        for episode in range(episodes):
            obs, _ = env.env.reset(seed=first_seed + episode)
            state = {"lstm_h": torch.zeros(1, WIDTH), "lstm_c": torch.zeros(1, WIDTH)}
            done = False
            while not done:
                logits, _ = policy.forward_eval(torch.as_tensor(obs)[None], state)
                obs, reward, terminated, truncated, _ = env.env.step(int(logits.argmax()))
                total += reward
                done = terminated or truncated
    return total / episodes


torch.manual_seed(int(seed))
torch.set_num_threads(int(threads))
envs = pufferlib.vector.make(make, num_envs=ENVS, seed=int(seed), backend=pufferlib.vector.Serial)
n_inputs = envs.single_observation_space.shape[0]
policy = pufferlib.models.LSTMWrapper(envs, Heads(int(envs.single_action_space.n)), input_size=n_inputs, hidden_size=WIDTH)
config = {
    "seed": int(seed),
    "env": env_id,
    "torch_deterministic": True,
    "device": "cpu",
    "cpu_offload": False,
    "precision": "float32",
    "use_rnn": True,
    "compile": False,
    "optimizer": "adam",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_eps": 1e-5,
    "learning_rate": 1e-3,
    "anneal_lr": True,
    "total_timesteps": int(steps),
    "batch_size": ENVS * ROLLOUT,
    "bptt_horizon": ROLLOUT,
    "minibatch_size": 256,
    "max_minibatch_size": 256,
    "update_epochs": 10,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "clip_coef": 0.2,
    "vf_coef": 0.004,  # of half the squared error; more, and the policy learns nothing from the LSTM that they share
    "vf_clip_coef": 1e9,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "prio_alpha": 0.0,
    "prio_beta0": 0.0,
    "vtrace_rho_clip": 1.0,
    "vtrace_c_clip": 1.0,
    "checkpoint_interval": 10**9,
    "data_dir": "target/puffer",
}


class Quiet(PuffeRL):
    """Without the dashboard, whose time is not the trainer's, and without checkpoints."""

    def print_dashboard(self, *args, **kwargs):
        pass

    def save_checkpoint(self):
        pass


trainer = Quiet(config, envs, policy)
begin = time.perf_counter()
while trainer.global_step < int(steps):
    trainer.evaluate()
    trainer.train()
answer = {"env_steps_per_s": trainer.global_step / (time.perf_counter() - begin)}
trainer.utilization.stop()
if int(episodes) > 0:
    answer["return_mean"] = greedy_return(policy, int(seed) + 1_000_000, int(episodes))
print(json.dumps(answer, default=float))
