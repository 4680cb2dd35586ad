"""Who plays, in which order. What they ask for stands in `examples/manifests`; here is what has to come of it.

The lab has two nodes with two GPUs of 80 GB each. However the scheduler spreads the pods, it comes to the same counts:
`training` and `pipeline` need an empty GPU each, while `notebook` alone is on another. The two GPUs that are left have
three free halves (four memory slices in a row), which `inference`, `team` and `batch` take. `latecomer` needs a half
too and must wait, although memory slices are free here and there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NAMESPACE = "dynamig-demo"


@dataclass(frozen=True, slots=True)
class Role:
    """A pod. `sees`: container -> the profile of the one MIG device that is in it; None: one full GPU."""

    pod: str
    asks: str
    sees: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Act:
    """`manifest` is applied and the `roles` come up."""

    title: str
    sentence: str
    manifest: str
    roles: tuple[Role, ...]


NOTEBOOK = Role("notebook", "profile 1g.10gb", {"main": "1g.10gb"})
TRAINING = Role("training", "a whole GPU", {"main": None})
PIPELINE = Role(
    "pipeline", "4g, 2g and 1g of one GPU", {"encoder": "4g.40gb", "ranker": "2g.20gb", "filter": "1g.10gb"}
)
INFERENCE = Role("inference", "at least 30 GiB", {"main": "3g.40gb"})
ALICE = Role("team-alice", "one claim for two pods", {"server": "4g.40gb", "monitor": "4g.40gb"})
BOB = Role("team-bob", "the same claim", {"main": "4g.40gb"})
BATCH = Role("batch", "profile 3g.40gb", {"main": "3g.40gb"})
LATECOMER = Role("latecomer", "profile 3g.40gb", {"main": "3g.40gb"})

ACTS = (
    Act(
        "One pod, one slice",
        "A notebook asks for profile 1g.10gb. No such instance exists; the driver makes it when the pod starts.",
        "1-notebook.yaml",
        (NOTEBOOK,),
    ),
    Act(
        "A whole GPU",
        "Training asks for a full GPU. It gets one on which nothing is cut, with MIG mode off.",
        "2-training.yaml",
        (TRAINING,),
    ),
    Act(
        "Three slices of one GPU",
        "A pipeline asks for three profiles in one claim, all of one GPU. Each container gets the one it names.",
        "3-pipeline.yaml",
        (PIPELINE,),
    ),
    Act(
        "By capacity",
        "Inference needs 30 GiB, whatever the profile is called. The smallest that is large enough is cut.",
        "4-inference.yaml",
        (INFERENCE,),
    ),
    Act(
        "One instance for several",
        "Alice's two containers and Bob's pod name the same claim: one instance is cut, all three see it.",
        "5-shared.yaml",
        (ALICE, BOB),
    ),
    Act(
        "The last half",
        "A batch job takes the last four memory slices in a row that any GPU has.",
        "6-batch.yaml",
        (BATCH,),
    ),
)
WAITING = Act(
    "One too many",
    "A latecomer asks for the same. Slices are free here and there, but no four in a row: it has to wait.",
    "7-latecomer.yaml",
    (LATECOMER,),
)
ROLES = tuple(role for act in (*ACTS, WAITING) for role in act.roles)
