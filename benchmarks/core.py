"""Rates of the contract's arithmetic: `python -m benchmarks.core [--rounds N] [--lengths N]`.

It measures permutation and keys beside numpy's own means for the same use, the plan of a bucketed epoch beside its sort
alone, and the build rate of the reference workload with and without its augmentation.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.timing import Case, print_results, run
from loader_service import BucketedSampler, Loader, MixingSampler, ShuffledSampler
from loader_service.contract.permutation import permute
from loader_service.contract.rng import RngArray, derive, derive_slots
from loader_service.data import synthetic_lines

_MILLION = 10**6
_BATCH = 128


def _permutation_cases() -> list[Case]:
    positions = np.arange(_MILLION, dtype=np.int64)
    sampler = ShuffledSampler(10**12, _BATCH, seed=1)
    return [
        Case(
            "permutation",
            "numpy Generator.permutation, a table",
            lambda: np.random.default_rng(1).permutation(_MILLION),
            _MILLION,
            "index",
        ),
        Case("permutation", "permute, an array", lambda: permute(positions, _MILLION, 7), _MILLION, "index"),
        Case(
            "permutation", "permute, one by one", lambda: [permute(p, _MILLION, 7) for p in range(1000)], 1000, "index"
        ),
        Case("any step", "a batch of 10^12 at step 0", lambda: sampler.indices(0, 0), _BATCH, "index"),
        Case("any step", "a batch of 10^12 at step 10^9", lambda: sampler.indices(0, 10**9), _BATCH, "index"),
        Case("any step", "a batch of 10^12 in epoch 10^6", lambda: sampler.indices(10**6, 10**9), _BATCH, "index"),
    ]


def _key_cases() -> list[Case]:
    slots = np.arange(_MILLION, dtype=np.uint64)
    keys = derive_slots(1, 2, 3, slots, 0)
    return [
        Case(
            "keys",
            "numpy Generator.integers",
            lambda: np.random.default_rng(1).integers(0, 2**63, _MILLION),
            _MILLION,
            "key",
        ),
        Case("keys", "derive_slots", lambda: derive_slots(1, 2, 3, slots, 0), _MILLION, "key"),
        Case("keys", "derive, one by one", lambda: [derive(1, 2, 3, slot, 0) for slot in range(1000)], 1000, "key"),
        Case(
            "normals",
            "numpy standard_normal, float32",
            lambda: np.random.default_rng(1).standard_normal(_MILLION, np.float32),
            _MILLION,
            "draw",
        ),
        Case("normals", "RngArray.next_normal", lambda: RngArray(keys).next_normal(), _MILLION, "draw"),
    ]


def _sampler_cases(count: int) -> list[Case]:
    lengths = np.random.default_rng(1).integers(0, 2000, count)
    mixing = MixingSampler([10**6, 10**7, 10**8], [1, 2, 3], _BATCH, seed=1)

    def plan() -> object:
        return BucketedSampler(lengths, _BATCH, 100, seed=1).indices(0, 0)

    return [
        Case("plan", f"numpy.argsort of {count:,} lengths", lambda: np.argsort(lengths), count, "index"),
        Case("plan", f"BucketedSampler, {count:,} lengths", plan, count, "index"),
        Case("mixing", "MixingSampler.indices", lambda: mixing.indices(3, 5), _BATCH, "index"),
    ]


def _build_cases() -> list[Case]:
    cases = []
    for name, augment in (("without augmentation", False), ("gain and offset", True)):
        loader = Loader(synthetic_lines(augment=augment))

        def build(loader: Loader = loader) -> None:
            for _ in range(16):
                next(loader).release()

        cases.append(Case("build", f"SyntheticLines, {name}", build, 16, "batch"))
    return cases


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lengths", type=int, default=10**6, help="samples that the bucketed plan sorts")
    arguments = parser.parse_args()
    cases = [*_permutation_cases(), *_key_cases(), *_sampler_cases(arguments.lengths), *_build_cases()]
    print_results(run(cases, arguments.rounds))


if __name__ == "__main__":
    main()
