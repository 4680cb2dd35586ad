"""What the cluster's GPUs look like to people: who holds which memory slices, and what is left. Pure, from API objects.

ResourceSlices say what exists and what is withdrawn, claims say who has it (`holdings`), Leases and Nodes whether
somebody is there who would make it (`nodes`). Slices of other drivers work the same, with one pool for each GPU or one
for all GPUs of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from dynamig.cli import nodes, room
from dynamig.cli.holdings import Holding, HoldingState, Name, holding_json, holdings
from dynamig.cli.nodes import NO_TROUBLE, NOTHING_READ, NodeTrouble, Reports
from dynamig.dra import PublishedDevice, PublishedPool, read_pools, rules_for, tainted
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from dynamig.protocol.loans import Loan
from dynamig.protocol.node_report import OwnGpu
from dynamig.protocol.outages import Outage

UNKNOWN_PRODUCT = "unknown product"
NOT_PUBLISHED = "no longer published, but in claims"
PUBLISHED_NO_MORE = "not published: its driver is to come back first"
CANNOT_LEAVE = "nothing can be destroyed before the GPU answers: an administrator resets it or reboots the node"
OUT_OF_USE = "it does not answer its driver, or not for long enough"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """`devices` devices of a GPU carry the taint `key`, so no new claim gets them."""

    key: str
    devices: int


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU; or, with no `pool`, a node of which something is wrong and no GPU is known.

    `memory_slices`: how many it has, 0 if it is not partitioned. `devices`: how many are published. `free`: memory
    slices that somebody can still get. `withdrawn`: those that only tainted devices would use, so nobody can get them;
    an instance of unknown owner is among them. What is neither held, free nor withdrawn is `unusable`: nothing that is
    published fits there beside what is held. `problem`: what is wrong with the GPU's publication, in words; None if
    nothing is. `trouble`: what is wrong with its node. `loan`: the native job of Slurm that has the GPU whole; then
    nothing of it is free.
    """

    node: str | None
    pool: str
    name: str
    product: str
    uuid: str | None
    memory_slices: int
    devices: int
    holdings: tuple[Holding, ...]
    free: tuple[int, ...] = ()
    withdrawn: tuple[int, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    problem: str | None = None
    trouble: NodeTrouble = NO_TROUBLE
    loan: Loan | None = None

    @property
    def held(self) -> frozenset[int]:
        return frozenset(s for h in self.holdings for s in h.memory_slices)

    @property
    def unusable(self) -> tuple[int, ...]:
        if self.loan is not None:
            return ()
        known = {*self.held, *self.free, *self.withdrawn}
        return tuple(s for s in range(self.memory_slices) if s not in known)

    @property
    def whole_is_free(self) -> bool:
        """A GPU that is offered whole only, and can be had."""
        holders = any(h.state is not HoldingState.ADMIN for h in self.holdings)
        offered = not self.memory_slices and bool(self.devices) and not self.withdrawals
        return offered and not holders and self.loan is None

    @property
    def wrong(self) -> str:
        """All that is wrong, in words; empty if nothing is."""
        return "; ".join(filter(None, (self.trouble.words, self.problem)))


def gpu_views(
    slices: Iterable[Mapping[str, Any]] | None,
    claims: Iterable[Mapping[str, Any]],
    driver: str = names.DRIVER_NAME,
    reports: Reports = NOTHING_READ,
    ending: Collection[Name] = (),
    rules: Sequence[Mapping[str, Any]] = (),
) -> tuple[GpuView, ...]:
    """Every GPU that `driver` publishes, by node and name, with who holds what. `slices`: None if they may not be read;
    then the GPUs are those in claims. `ending`: pods that are over or being deleted;
    `rules`: DeviceTaintRules.

    A GPU that is in claims and no longer published is there too, and says so; and so are the GPUs of a node whose
    driver has reported and does not any more, or that node, where it told of none.
    """
    read = [read_claim(c, driver) for c in claims]
    pools = [tainted(p, rules_for(p, rules)) for p in read_pools(slices or ())]
    held = holdings(pools, read, driver, ending)
    mine = [p for p in pools if p.driver == driver]
    published = [_gpu(pool, gpu, devices, held) for pool in mine for gpu, devices in _gpus_of(pool)]
    shown = {h for view in published for h in view.holdings}
    problem = None if slices is None else NOT_PUBLISHED
    views = [*published, *_unpublished([h for h in held if h not in shown], problem)]
    if driver == names.DRIVER_NAME or any(c.held and c.devices_of(driver) for c in read):
        views = _with_trouble(views, read, reports)  # Leases speak of dynamig's driver only
        views = _lent(_out_of_use(views, reports), reports)
    return tuple(sorted(views, key=lambda v: (v.node or "", v.name)))


def gpu_json(view: GpuView) -> dict[str, Any]:
    """The GPU as `dynamig gpus --json` prints it; fields are only ever added."""
    silent = view.trouble.silent_since
    return {
        "name": view.name,
        "node": view.node,
        "pool": view.pool,
        "product": view.product,
        "uuid": view.uuid,
        "memory_slices": view.memory_slices,
        "free": list(view.free),
        "unusable": list(view.unusable),
        "withdrawn": list(view.withdrawn),
        "withdrawals": [{"taint": w.key, "devices": w.devices} for w in view.withdrawals],
        "devices": view.devices,
        "problem": view.wrong or None,
        "driver_silent_since": silent.isoformat() if silent else None,
        "lent_to": loan_json(view.loan) if view.loan else None,
        "holdings": [holding_json(h) for h in view.holdings],
    }


def loan_json(loan: Loan) -> dict[str, Any]:
    """`since`: ISO 8601 with the offset of UTC."""
    since = datetime.fromtimestamp(loan.since, UTC).isoformat(timespec="seconds")
    return {"slurm_job": loan.borrower.job_id, "restart": loan.borrower.restart, "since": since}


# -- GPUs ------------------------------------------------------------------------------------------------------------


def _gpus_of(pool: PublishedPool) -> list[tuple[str | None, tuple[PublishedDevice, ...]]]:
    """The pool's devices by the GPU that they are of; a pool without any counts as one GPU, so that it is seen."""
    ordered = sorted(pool.devices, key=lambda d: d.gpu or "")
    found = [(gpu or None, tuple(group)) for gpu, group in groupby(ordered, key=lambda d: d.gpu or "")]
    return found or [(None, ())]


def _gpu(
    pool: PublishedPool, gpu: str | None, devices: tuple[PublishedDevice, ...], held: Sequence[Holding]
) -> GpuView:
    alone = len(_gpus_of(pool)) == 1
    in_pool = [h for h in held if h.pool == pool.name]
    mine = _ordered(h for h in in_pool if alone or h.gpu == gpu)
    count = max((s + 1 for d in devices for s in d.memory_slices), default=0)
    taken = {s for h in mine for s in h.memory_slices}
    return GpuView(
        node=pool.node,
        pool=pool.name,
        name=pool.name if alone else f"{pool.name}/{_own_name(gpu, devices)}",
        product=_product(devices),
        uuid=gpu,
        memory_slices=count,
        devices=len(devices),
        holdings=mine,
        free=tuple(sorted(room.reachable(pool, devices, in_pool) - taken)),
        withdrawn=_withdrawn(devices, count),
        withdrawals=_withdrawals(devices),
        problem=pool.problem or _problem(devices),
    )


def _problem(devices: tuple[PublishedDevice, ...]) -> str | None:
    if not devices:
        return "nothing of it is published"
    silent = all(names.UNHEALTHY_TAINT in (t.key for t in d.taints) for d in devices)
    return OUT_OF_USE if silent else None


def _own_name(gpu: str | None, devices: tuple[PublishedDevice, ...]) -> str:
    """What tells the GPU from others of its pool: the full GPU's device name, else the UUID."""
    full = next((d.name for d in devices if d.type == "gpu"), None)
    return full or gpu or devices[0].name


def _product(devices: tuple[PublishedDevice, ...]) -> str:
    told = (d.attributes.get("productName") for d in devices)
    return next((name for name in told if isinstance(name, str)), UNKNOWN_PRODUCT)


def _ordered(held: Iterable[Holding]) -> tuple[Holding, ...]:
    return tuple(sorted(held, key=lambda h: (h.memory_slices, h.namespace, h.claim, h.device)))


def _withdrawn(devices: tuple[PublishedDevice, ...], count: int) -> tuple[int, ...]:
    """Memory slices with at least one device, all of whose devices are tainted.

    The taints do not say where a foreign instance sits, only which devices it is in the way of. It can sit only here,
    since a device over any of its slices is tainted.
    """
    tainted = {s for d in devices if room.withdrawn(d) for s in d.memory_slices}
    usable = {s for d in devices if not room.withdrawn(d) for s in d.memory_slices}
    return tuple(s for s in range(count) if s in tainted - usable)


def _withdrawals(devices: tuple[PublishedDevice, ...]) -> tuple[Withdrawal, ...]:
    counts = Counter(key for d in devices for key in {t.key for t in d.taints if room.keeps_away(t)})
    return tuple(Withdrawal(key, number) for key, number in sorted(counts.items()))


# -- what nobody publishes -------------------------------------------------------------------------------------------


def _unpublished(lost: Iterable[Holding], problem: str | None) -> list[GpuView]:
    """GPUs that claims hold and nobody publishes: the driver is gone, or its administrator took the GPU out."""

    def pool(h: Holding) -> str:
        return h.pool

    by_pool = [(name, list(group)) for name, group in groupby(sorted(lost, key=pool), key=pool)]
    return [_lost(name, gpu, group, problem) for name, found in by_pool for gpu, group in _by_gpu(found).items()]


def _by_gpu(of_pool: Sequence[Holding]) -> dict[str | None, list[Holding]]:
    """One entry for each GPU. A device whose claim names no GPU is of the pool's only known one, if that is so."""
    known = {h.gpu for h in of_pool if h.gpu}
    only = next(iter(known)) if len(known) == 1 else None
    found: dict[str | None, list[Holding]] = {}
    for holding in of_pool:
        found.setdefault(holding.gpu or only, []).append(holding)
    return found


def _lost(pool: str, gpu: str | None, held: Sequence[Holding], problem: str | None) -> GpuView:
    return GpuView(
        node=next((h.node for h in held if h.node), None),
        pool=pool,
        name=pool,
        product=UNKNOWN_PRODUCT,
        uuid=gpu,
        memory_slices=max((s + 1 for h in held for s in h.memory_slices), default=0),
        devices=0,
        holdings=_ordered(held),
        problem=problem,
    )


# -- nodes -----------------------------------------------------------------------------------------------------------


def _with_trouble(views: Sequence[GpuView], claims: Iterable[ClaimView], reports: Reports) -> list[GpuView]:
    """The views with what is wrong with their nodes, and troubled nodes of which no view is."""
    reported, shown = nodes.reporting(reports), {v.node for v in views if v.node is not None}
    expected = {*reported, *(c.held_by_node for c in claims if c.held and c.held_by_node is not None)}
    if reported:  # else the GPUs of this driver name are somebody else's, NVIDIA's own driver's say
        expected |= shown
    told = {node: nodes.trouble(node, reports) for node in expected}
    known = {v.uuid for v in views}
    own = {str(g.uuid): g for n in reported for g in nodes.gpus(n, reports)}
    missing = [view for n in reported if told[n].words for view in _missing(n, told[n], shown, known, reports)]
    named = (replace(v, trouble=told.get(v.node or "", v.trouble), product=_product_of(v, own)) for v in views)
    return [*named, *missing]


def _lent(views: Iterable[GpuView], reports: Reports) -> list[GpuView]:
    """The views, with nothing free on GPUs that native jobs have."""
    loans = nodes.loans(reports)
    return [v if (loan := loans.get(v.uuid or "")) is None else replace(v, loan=loan, free=()) for v in views]


def _product_of(view: GpuView, own: Mapping[str, OwnGpu]) -> str:
    """As published, else as the driver that is gone has told."""
    told = own.get(view.uuid or "")
    return told.product if told is not None and view.product == UNKNOWN_PRODUCT else view.product


def _out_of_use(views: Iterable[GpuView], reports: Reports) -> list[GpuView]:
    """The views, with what the drivers say of GPUs that are out of use."""
    found = nodes.outages(reports)
    told = ((v, found.get(GpuUuid(v.uuid or "")) if v.problem == OUT_OF_USE else None) for v in views)
    return [v if one is None else _with_outage(v, one, reports) for v, one in told]


def _with_outage(view: GpuView, outage: Outage, reports: Reports) -> GpuView:
    """What leaves a GPU that does not answer stays until it does, and its pods with it."""
    stays = [
        replace(h, reason=CANNOT_LEAVE) if outage.silent and h.state is HoldingState.LEAVING and not h.reason else h
        for h in view.holdings
    ]
    return replace(view, problem=nodes.outage_words(outage, reports.now), holdings=tuple(stays))


def _missing(
    node: str, trouble: NodeTrouble, shown: Collection[str], known: Collection[str | None], reports: Reports
) -> list[GpuView]:
    """GPUs that the driver of a troubled node had and that nothing else tells of; the node, if it told of none."""
    own = [g for g in nodes.gpus(node, reports) if g.uuid not in known]
    found = [
        GpuView(node, g.pool, g.pool, g.product, g.uuid, 0, 0, (), problem=PUBLISHED_NO_MORE, trouble=trouble)
        for g in own
    ]
    return found or ([] if node in shown else [_bare_node(node, trouble)])


def _bare_node(node: str, trouble: NodeTrouble) -> GpuView:
    return GpuView(node, "", node, "no GPU published", None, 0, 0, (), trouble=trouble)
