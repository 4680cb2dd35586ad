"""What is wrong with the nodes that GPUs are on: their drivers' reports in Leases, and their Ready condition. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dynamig.errors import Unavailable
from dynamig.protocol import names
from dynamig.protocol.loans import Loan, loan_from_json
from dynamig.protocol.node_report import FRESH_SECONDS, MOST_AHEAD, OwnGpu, gpus_from_json
from dynamig.protocol.outages import Outage, Outages, outages_from_json

LATE_S = 25.0
"""Seconds after which two renewals are lost. The kubelet deletes a dead driver's slices after 30 (defaultWipingDelay in
pkg/kubelet/cm/dra/manager.go of Kubernetes 1.37): GPUs must not vanish before anything is said of their driver."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reports:
    """What was read of the nodes at the time `now`. `leases`, `nodes`: by name; None if they may not be read."""

    leases: Mapping[str, Object] | None
    nodes: Mapping[str, Object] | None
    now: datetime


NOTHING_READ = Reports(None, None, datetime.fromtimestamp(0, UTC))


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """`words`: empty if nothing is known to be wrong. `silent_since`: the last report of a driver that is silent."""

    words: str = ""
    silent_since: datetime | None = None


NO_TROUBLE = NodeTrouble()


def reporting(reports: Reports) -> list[str]:
    """Nodes whose driver has ever reported."""
    leases = reports.leases or {}
    return [name.removeprefix(names.LEASE_PREFIX) for name in leases if name.startswith(names.LEASE_PREFIX)]


def trouble(node: str, reports: Reports) -> NodeTrouble:
    """What is known to be wrong with a node that dynamig's driver is, or ought to be, on."""
    driver = NO_TROUBLE
    if reports.leases is not None:
        driver = _of_driver(reports.leases.get(names.lease_name(node)), reports.now)
    known = (reports.nodes or {}).get(node)
    words = [driver.words, "" if known is None else _not_ready(known, reports.now)]
    if reports.nodes is not None and known is None:
        words.append("the node does not exist")
    return NodeTrouble("; ".join(filter(None, words)), driver.silent_since)


def loans(reports: Reports) -> dict[str, Loan]:
    """Whole GPUs that native jobs of Slurm have, by UUID, as the nodes' drivers last said; a loan outlives silence.

    A report that cannot be read has none here and is trouble.
    """
    read = (_read(lease) for lease in (reports.leases or {}).values())
    return {loan.gpu: loan for report in read if isinstance(report, _Report) for loan in report.loans}


def gpus(node: str, reports: Reports) -> tuple[OwnGpu, ...]:
    """GPUs that the node's driver had when it last reported."""
    report = _read((reports.leases or {}).get(names.lease_name(node), {}))
    return report.gpus if isinstance(report, _Report) else ()


def outages(reports: Reports) -> Outages:
    """Of GPUs that do not answer their drivers, or not for long enough since, as those last said."""
    read = (_read(lease) for lease in (reports.leases or {}).values())
    return {gpu: outage for r in read if isinstance(r, _Report) for gpu, outage in r.outages.items()}


def outage_words(outage: Outage, now: datetime) -> str:
    """How far it is with a GPU, whose driver takes it back by itself once it has answered for long enough."""
    if outage.until is None:
        since = clock(datetime.fromtimestamp(outage.since, UTC), now)
        return f"does not answer its driver since {since} ({outage.heard})"
    until = clock(datetime.fromtimestamp(outage.until, UTC), now)
    return f"answers its driver again after {outage.heard}, offered again at {until} if it goes on"


@dataclass(frozen=True, slots=True)
class _Report:
    renewed: datetime
    registered: bool
    loans: tuple[Loan, ...]
    outages: Outages
    gpus: tuple[OwnGpu, ...]


def _read(lease: Object) -> _Report | NodeTrouble:
    try:
        report = json.loads((lease["metadata"].get("annotations") or {})[names.REPORT])
        return _Report(
            renewed=datetime.fromisoformat(lease["spec"]["renewTime"]),
            registered=bool(report["registered"]),
            loans=tuple(loan_from_json(loan) for loan in report.get("loans", ())),
            outages=outages_from_json(report.get("outages", {})),
            gpus=gpus_from_json(report),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return NodeTrouble(f"its driver's report cannot be read ({error!r})")
    except Unavailable as newer:
        return NodeTrouble(f"its driver's report cannot be read ({newer.what}: {newer.next_step})")


def _of_driver(lease: Object | None, now: datetime) -> NodeTrouble:
    if lease is None:
        return NodeTrouble("no driver of dynamig has reported")
    report = _read(lease)
    if isinstance(report, NodeTrouble):
        return report
    age = (now - report.renewed).total_seconds()
    if age < -MOST_AHEAD:
        return NodeTrouble(f"the node's clock is {-age:.0f} s ahead of this machine's: its driver may be silent")
    if age > FRESH_SECONDS:
        return NodeTrouble(f"driver silent since {clock(report.renewed, now)}", report.renewed)
    if age > LATE_S:
        return NodeTrouble(f"driver last reported at {clock(report.renewed, now)}, {age:.0f} s ago")
    return NodeTrouble("" if report.registered else "driver is not registered with the kubelet")


def _not_ready(node: Object, now: datetime) -> str:
    conditions: Sequence[Object] = (node.get("status") or {}).get("conditions") or ()
    ready: Object = next((c for c in conditions if c["type"] == "Ready"), {})
    if ready.get("status") == "True":
        return ""
    since = ready.get("lastTransitionTime")
    return f"node not ready since {clock(datetime.fromisoformat(since), now)}" if since else "node not ready"


def clock(when: datetime, now: datetime) -> str:
    """The reader's local time, with the date if it was not today."""
    local = when.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S")


def by_name(objects: Iterable[Object] | None) -> dict[str, Object] | None:
    return None if objects is None else {o["metadata"]["name"]: o for o in objects}
