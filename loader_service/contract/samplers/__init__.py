"""Samplers: which dataset indices stand in the batch at (epoch, step in epoch) (R23).

Invariant of all: the answer depends on the constructor's arguments and (epoch, step) alone, and any step costs what
step 0 costs.
"""

from loader_service.contract.samplers.bucketed import BucketedSampler
from loader_service.contract.samplers.mixing import MixingSampler
from loader_service.contract.samplers.ordered import SequentialSampler, ShuffledSampler
from loader_service.contract.samplers.sampler import Sampler

__all__ = ["BucketedSampler", "MixingSampler", "Sampler", "SequentialSampler", "ShuffledSampler"]
