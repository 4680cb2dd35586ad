"""Slurm through slurmrestd: implements `protocol.slurm_jobs.Jobs`, and says what else it knows of jobs and nodes.

`v0_0_45.py` knows the wire, `rest.py` the HTTP, `errors.py` the error numbers, `gres.py` the GRES strings. Decision
0010 says what of Slurm 26.05 this has to survive.
"""

from __future__ import annotations

from collections.abc import Callable

from dynamig.slurm.client import SlurmClient
from dynamig.slurm.holds import ExternalJobs
from dynamig.slurm.rest import Rest, token_file
from dynamig.slurm.values import Controller, HeldGres, JobChanges, NodeInfo, SlurmJob


def connect(url: str, user: str, token: Callable[[], str]) -> SlurmClient:
    """A client of the slurmrestd at `url` (`http://127.0.0.1:6820`, `unix:/run/slurmrestd.sock`). Nothing is sent yet.

    `user` and `token` are SlurmUser's, root's or an operator's; `token_file` reads one that somebody renews.
    """
    return SlurmClient(Rest(url, user, token))


__all__ = [
    "Controller",
    "ExternalJobs",
    "HeldGres",
    "JobChanges",
    "NodeInfo",
    "SlurmClient",
    "SlurmJob",
    "connect",
    "token_file",
]
