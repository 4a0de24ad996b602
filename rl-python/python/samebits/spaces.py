"""Spaces of Gymnasium, from descriptions of the native half."""

import numpy as np
from gymnasium import spaces


def observations(described):
    """The space of one observation."""
    shape = tuple(described["shape"])
    low, high = (np.asarray(described[end], described["dtype"]).reshape(shape) for end in ("low", "high"))
    return spaces.Box(low, high, shape, np.dtype(described["dtype"]))


def actions(described):
    """The space of one action."""
    if "n" in described:
        return spaces.Discrete(described["n"])
    if "nvec" in described:
        return spaces.MultiDiscrete(described["nvec"])
    return spaces.Box(np.asarray(described["low"], np.float32), np.asarray(described["high"], np.float32))
