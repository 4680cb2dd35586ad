"""What a node's driver answers, in words: `driver status`, `driver plan` and `driver adopt`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from dynamig.cli.output import Page
from dynamig.cli.words import Row, aligned, ranges
from dynamig.driver.catalog import Offer
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.outages import Outages
from dynamig.protocol.times import to_rfc3339

Body = Mapping[str, Any]


def foreign_words(instance: LiveInstance, offer: Offer | None) -> str:
    """`2g.20gb on memory slices 2-3`; the number of the profile where the GPU is not offered partitioned."""
    known = offer.table.geometry.profiles if offer is not None and offer.table is not None else ()
    name = next((p.name for p in known if p.id == instance.profile), f"profile {instance.profile}")
    at = instance.placement
    return f"{name} on memory slice{'s' if at.size > 1 else ''} {ranges(range(at.start, at.end))}"


def quarantined_words(gpu: GpuUuid, instance: LiveInstance, offer: Offer | None, claims: Iterable[ClaimRef]) -> str:
    """`claims`: those that are held for exactly its place, and may have had it before their record was lost."""
    pool = gpu if offer is None else f"{offer.pool.name} ({gpu})"
    adopt = (f"; claim {c} is held for it: if its pod runs there, `dynamig driver adopt {c.uid}`" for c in claims)
    return f"foreign {foreign_words(instance, offer)} of {pool}: left alone{''.join(adopt)}"


def damaged_words(uid: str, path: str) -> str:
    return (
        f"{path}: nobody knows what claim {uid} has here; if its pod runs, `dynamig driver adopt {uid}`, "
        "else see docs/reference/by-hand.md"
    )


def silent_words(outages: Outages, offers: Iterable[Offer]) -> Sequence[str]:
    """Of GPUs with which nothing can be compared now; those that answer again are compared like any other."""
    pools = {o.reading.uuid: f"{o.pool.name} ({o.reading.uuid})" for o in offers}
    return [
        f"{pools.get(gpu, gpu)}: no answer since {to_rfc3339(outage.since)} ({outage.heard}), what it has is not known"
        for gpu, outage in sorted(outages.items())
        if outage.silent
    ]


def adopted_text(body: Body) -> Text:
    had = "has" if body["fresh"] else "had already"
    lines = [f"claim {body['claim']} {had} {d['pool']}/{d['device']}: {d['uuid']}" for d in body["devices"]]
    lines += [f"its damaged record is kept as {body['kept']}"] if body["kept"] else []
    return Text("\n".join(lines))


def offered(offer: Offer) -> int:
    """Devices that somebody can get. Slurm's taint takes none away: the bridge allocates what has it."""
    return sum(all(t.key == names.MANAGED_TAINT for t in d.taints) for d in offer.pool.devices)


def status_text(body: Body, page: Page) -> Text:
    """The driver, its GPUs and its claims, a table each; what is offered stands below where it has no room beside."""
    lines = [Text.assemble(f"driver on {body['node']}: ", (_state(body), "green" if body["ready"] else "yellow"))]
    rows: list[Row] = [("POOL", "PRODUCT", "MINOR", "MIG", "OFFER"), *(_gpu(g, body) for g in body["gpus"])]
    wide = aligned(rows)
    if page.width is not None and max(map(len, wide.plain.splitlines())) > page.width:
        gpus = aligned([row[:-1] for row in rows]).split("\n")
        wide = Text("\n").join(
            [gpus[0], *(Text(f"{gpu}\n  {row[-1]}") for gpu, row in zip(gpus[1:], rows[1:], strict=True))]
        )
    lines += [Text(), wide]
    known = {gpu["uuid"] for gpu in body["gpus"]}
    lines += [Text(f"{gpu} {_outage(outage)}") for gpu, outage in body["outages"].items() if gpu not in known]
    if body["claims"]:
        lines += [Text(), aligned([("CLAIM", "STATE", "DEVICES"), *map(_claim, body["claims"])])]
    else:
        lines += [Text(), Text("no claim has anything here", "dim")]
    return Text("\n").join(lines)


def _state(body: Body) -> str:
    return "ready" if body["ready"] else f"not ready: {body['whyNotReady']}"


def _gpu(gpu: Body, body: Body) -> Row:
    return gpu["pool"], gpu["product"], str(gpu["minor"]), gpu["migMode"], "; ".join(_offer(gpu, body))


def _offer(gpu: Body, body: Body) -> Iterator[str]:
    """What is offered, and why not more."""
    slurm: Body = body["slurm"] or {}
    yield f"{gpu['offered']} of {gpu['devices']} devices offered"
    if gpu["note"]:
        yield gpu["note"]
    if outage := body["outages"].get(gpu["uuid"]):
        yield _outage(outage)
    yield from (f"left out: {one}" for one in gpu["leftOut"])
    yield from (f"foreign {one}" for one in gpu["foreign"])
    lent = [loan for loan in slurm.get("loans", ()) if loan["gpu"] == gpu["uuid"]]
    yield from (f"lent to Slurm job {loan['job']['id']}: {loan['why']}" for loan in lent)
    if gpu["uuid"] in slurm.get("damagedLoans", ()):
        yield "lent, its record cannot be read"


def _outage(outage: Body) -> str:
    if until := outage.get("until"):
        return f"answers again after {outage['heard']}, offered again at {until} if it goes on"
    return f"does not answer since {outage['since']}: {outage['heard']}"


def _claim(claim: Body) -> Row:
    return claim["claim"], claim["state"], ", ".join(claim["devices"])
