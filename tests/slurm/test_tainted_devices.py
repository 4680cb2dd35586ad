"""An administrator taints a GPU with a DeviceTaintRule: as for kube-scheduler, it is nobody's from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig
from tests.slurm.stage import PATIENCE
from tests.slurm.test_rights import told

RULE = "broken"


@pytest.fixture
def taint(lab: Lab, cluster: Cluster) -> Iterator[None]:
    """On every device of node n1."""
    pools = sorted(pool for pool in cluster.pools() if pool.startswith("n1/"))
    spec = {"key": "example.com/broken", "effect": "NoExecute"}
    rules = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": f"{RULE}-{number}"},
            "spec": {"deviceSelector": {"pool": pool}, "taint": spec},
        }
        for number, pool in enumerate(pools)
    ]
    names = [f"{RULE}-{number}" for number in range(len(pools))]
    lab.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": rules}))
    yield
    lab.kubectl("delete", "devicetaintrules", *names, "--ignore-not-found")


@pytest.mark.usefixtures("taint")
def test_devices_that_an_administrator_tainted_are_given_to_nobody(lab: Lab, cluster: Cluster) -> None:
    """A pod there would be ended at once by the taint eviction controller, and its successor, too."""
    cluster.pod("free", mig(profile="7g.80gb"))
    cluster.running("free")
    assert cluster.get("pod", "free")["spec"]["nodeName"] == "n2"
    cluster.pod("pinned", mig(profile="1g.10gb"), nodeSelector={"kubernetes.io/hostname": "n1"})
    told(cluster, "pinned", "NoLegalPlacement")
    lab.kubectl("delete", "devicetaintrules", "--all")
    cluster.running("pinned", within=PATIENCE)
