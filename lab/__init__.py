"""Real etcd, Kubernetes, containerd and kubelets on one machine, without a container engine.

`python -m lab up` from the repository's root brings a cluster up; `Lab` is the same from Python. How it works and
what it refuses is in README.md beside this file and in docs/decisions/0005-lab-without-containers.md.
"""

from __future__ import annotations

from lab.lab import Lab, Node

__all__ = ["Lab", "Node"]
