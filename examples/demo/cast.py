"""Who plays, in which order. What pods ask for stands in `examples/manifests`; here is what has to come of it.

The lab has two nodes with two GPUs of 80 GB each. However Slurm spreads the work, it comes to the same counts: `train`
and `simulate` have a GPU each, whole; `notebook`, `inference` and `embedding` share the third, `training` has the
fourth. So `pipeline`, which needs an empty GPU, must wait for Slurm, and `evaluate`, which came later, must wait too:
the one until `simulate` ends, the other until the last of those who share a GPU has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.bridge import DEMO_NAMESPACE, STUDENT

NAMESPACE = DEMO_NAMESPACE
USER = STUDENT
"""Of the native jobs, and of those that pay for the pods: the lab's bridge says so of the namespace."""

COMMENT = "make demo: "
"""How comments of the demo's native jobs begin: what tells them from other people's."""

HOME_PAGE = ("notebook", 8888)
"""The pod that serves HTTP, and its port."""


@dataclass(frozen=True, slots=True)
class Role:
    """A pod. `sees`: container -> the profile of the one MIG device that is in it; None: one full GPU."""

    pod: str
    asks: str
    sees: Mapping[str, str | None]
    manifest: str


@dataclass(frozen=True, slots=True)
class NativeJob:
    """A job of Slurm's own: it wants one whole GPU and lists what NVML shows, every second."""

    name: str
    does: str

    @property
    def comment(self) -> str:
        return COMMENT + self.does


NOTEBOOK = Role("notebook", "profile 1g.10gb", {"jupyter": "1g.10gb"}, "1-notebook.yaml")
INFERENCE = Role("inference", "at least 30 GiB", {"server": "3g.40gb", "monitor": "3g.40gb"}, "2-inference.yaml")
EMBEDDING = Role("embedding", "profile 1g.20gb", {"main": "1g.20gb"}, "3-embedding.yaml")
TRAINING = Role("training", "a whole GPU", {"main": None}, "4-training.yaml")
PIPELINE = Role(
    "pipeline",
    "4g, 2g and 1g of one GPU",
    {"encoder": "4g.40gb", "ranker": "2g.20gb", "filter": "1g.10gb"},
    "5-pipeline.yaml",
)
ROLES = (NOTEBOOK, INFERENCE, EMBEDDING, TRAINING, PIPELINE)
SHARING = (NOTEBOOK, INFERENCE, EMBEDDING)
"""Those who come to one GPU."""

TRAIN = NativeJob("train", "trains on one whole GPU")
SIMULATE = NativeJob("simulate", "simulates on one whole GPU")
EVALUATE = NativeJob("evaluate", "evaluates on one whole GPU")
JOBS = (TRAIN, SIMULATE, EVALUATE)
