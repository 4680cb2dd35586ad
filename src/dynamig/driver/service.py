"""The driver of one node: puts the parts together, runs them, and says how it is.

At start: lock the node's state, read the hardware, settle what a crash left (before the kubelet can call), then
register; slices are published once the kubelet has taken the plugin. All loops start anew from journal, hardware
and API each time, so a missed event costs time, never truth.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import structlog

from dynamig.cdi import SpecFiles
from dynamig.driver import catalog as catalogs
from dynamig.driver import recovery
from dynamig.driver.adoption import Adopted
from dynamig.driver.claims import ClaimService
from dynamig.driver.config import DriverConfig, SlurmConfig
from dynamig.driver.control import Ask, Caller
from dynamig.driver.health import Health, OutageFile
from dynamig.driver.journal import FileJournal
from dynamig.driver.lender import Lender, Slurm
from dynamig.driver.loan_asks import loan_asks
from dynamig.driver.loans import LoanFiles, MapFile
from dynamig.driver.locks import InFlight
from dynamig.driver.loop import Loop
from dynamig.driver.map_source import given_for
from dynamig.driver.numbers import NumberFile
from dynamig.driver.outside import Guards, Node, Outside
from dynamig.driver.publish import publish
from dynamig.driver.recall import Recall
from dynamig.driver.repair import Repair
from dynamig.driver.scontrol import Scontrol
from dynamig.driver.settler import Settler
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.kube import ApiClaims, ApiGpuMap, ApiLease, ApiSlices, connect
from dynamig.kube.plugin import WORKERS, Answer, Plugin
from dynamig.mig import GpuUuid
from dynamig.nvml import DeviceTree, NvmlGpus
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.device_map import DeviceMap, Given, Source
from dynamig.protocol.gpus import GpuReading, LiveInstance
from dynamig.protocol.loans import Loan
from dynamig.protocol.node_report import OwnGpu, report_of
from dynamig.protocol.outages import Outages
from dynamig.protocol.records import ClaimRecord, held_devices
from dynamig.protocol.seen import Seen

log = structlog.get_logger(__name__)

RESCAN = 10.0
"""Seconds between looks at hardware and published slices when nothing announces a change."""

RENEW = 10.0
"""Seconds between renewals of the node's Lease."""

RECOVER = 60.0
"""Seconds between looks for what journal, hardware, claims and CDI files do not agree on."""

PREPARE_BUDGET = 40.0
"""Seconds that a prepare may wait in all: the kubelet's call ends at 45."""

PREPARES = WORKERS - 32
"""Claims that may be in prepare at once. The rest of the kubelet's threads is kept for unprepares."""

SHUTDOWN_GRACE = 10.0
"""Seconds that calls in progress have when the driver is asked to stop."""


class Driver:
    """Everything that runs on one node. `run` returns when `stop` was called or a bug ended a loop."""

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock_state(config)
        tree = DeviceTree(config.dev_root, config.proc_root)
        self._gpus = NvmlGpus(config.sys_root)
        client = connect(config.kubeconfig)
        edits, with_slurm = config.container_edits.value(), config.slurm is not None
        node = Node(config.node_name, config.driver_name, tree.boot_id(), edits, with_slurm)
        self._node = node
        self._slices = ApiSlices(client, config.driver_name, config.node_name)
        self._lease = ApiLease(client, config.namespace, config.node_name)
        self._gpu_map = ApiGpuMap(client, config.namespace, config.node_name, lambda: self._loops["publish"].poke())
        self._claims = ApiClaims(client, config.driver_name, config.node_name)
        self._journal = FileJournal(config.state_dir / "claims")
        self._cdi = SpecFiles(config.cdi_dir, node.cdi_kind)
        self._numbers = NumberFile(config.state_dir / "gpus.json")
        outside = Outside(self._gpus, tree, self._claims, self._journal, self._cdi, time.monotonic, time.time)
        self._catalog = catalogs.Catalog()
        self._readings: dict[GpuUuid, GpuReading] = {}
        self._foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]] = {}
        outages = OutageFile(config.state_dir / "outages.json", node.boot_id)
        self._health = Health(self._gpus, outages, config.watch_seconds, time.time)
        self._registered = threading.Event()
        self._published = threading.Event()
        self._stopping = threading.Event()
        self._failed = False
        self._sequence = 0
        self._places = threading.BoundedSemaphore(PREPARES)
        self._calls = InFlight()
        self._looked_for_lost = False
        guards = Guards()
        self._lender = self._make_lender(outside, guards)
        self._recall = self._make_recall(self._lender)
        self._service = ClaimService(node, outside, lambda: self._catalog, self._changed, guards, self._lender)
        self._loops = {
            "publish": Loop("publish", self._publish, self._bug),
            "settle": Loop("settle", lambda: self._settler.step(), self._bug),
            "lease": Loop("lease", self._renew, self._bug),
            "recover": Loop("recover", self._recover, self._bug),
        }
        if (lender := self._lender) is not None:
            self._loops["loans"] = Loop("loans", lambda: self._ask_slurm(lender), self._bug)
        if (recall := self._recall) is not None:
            self._loops["recall"] = Loop("recall", recall.step, self._bug)
        self._watcher = Loop("watch", self._watch, self._bug)  # sits in a read: ends with the process
        self._settler = Settler(self._service, outside, config.driver_name, self._loops["settle"].poke)
        self._repair = Repair(node, outside, self._service, lambda: self._catalog, self._settler.failed)
        self._plugin = Plugin(
            config.kubelet_dir, config.driver_name, self._prepare, self._unprepare, self._on_registration
        )

    def _make_lender(self, outside: Outside, guards: Guards) -> Lender | None:
        """None on a node without Slurm; there must be no loan then. Raises Refused LOANS_LEFT."""
        loans = LoanFiles(self._config.state_dir / "loans")
        if self._config.slurm is None:
            if left := [*loans.all(), *loans.damaged()]:
                raise Refused(
                    "LOANS_LEFT",
                    f"{', '.join(left)} lent to native Slurm jobs, and the configuration has no section `slurm`",
                    f"put it back until they end, or remove the files in {self._config.state_dir / 'loans'}",
                )
            return None
        map_file = MapFile(self._config.state_dir / "slurm-devices.json")
        slurm = _slurm(self._config.slurm, self._node.name, self._gpu_map.entry)
        return Lender(outside, guards, loans, map_file, slurm, lambda: self._catalog)

    def _make_recall(self, lender: Lender | None) -> Recall | None:
        slurm = self._config.slurm
        if lender is None or slurm is None:
            return None
        return Recall(lender, Scontrol(slurm.scontrol), slurm.answer_seconds, lambda: self._loops["recall"].poke())

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """True if it ended because it was asked to."""
        self._rescan()
        for path in self._journal.unreadable().values():
            log.error("journal_record_unreadable", path=path, effect="what it owned is quarantined")
        self._repair.run(self._repair.plan().actions)  # before the kubelet can call, and without the API server
        if self._lender is not None:
            self._lender.open()
            self._gpu_map.start()
        self._plugin.start()
        for loop in (*self._loops.values(), self._watcher):
            loop.start()
        log.info("driver_running", node=self._node.name, gpus=len(self._readings), pools=len(self._catalog.offers))
        self._stopping.wait()
        self._shut_down()
        return not self._failed

    def _shut_down(self) -> None:
        """Calls in progress end if they can; slices stay, and so do the devices of running pods.

        Neither the node's lock nor NVML is given up here: a call that outlives its grace still acts on the hardware,
        and only the end of the process ends it. Whoever runs this must end the process next, at once.
        """
        self._plugin.stop(SHUTDOWN_GRACE)
        self._gpu_map.stop()
        for loop in (*self._loops.values(), self._watcher):
            loop.stop()
        for loop in self._loops.values():
            loop.join(SHUTDOWN_GRACE)
        if not self._calls.wait_idle(SHUTDOWN_GRACE):
            log.warning("calls_cut_off", effect="the next start finishes or undoes them")
        log.info("driver_stopped")

    def stop(self) -> None:
        self._stopping.set()

    def _bug(self) -> None:
        self._failed = True
        self._stopping.set()

    # -- the kubelet's calls -----------------------------------------------------------------------------------

    def _prepare(self, ref: ClaimRef) -> Sequence[Answer] | str:
        try:
            with self._calls.counted(), self._room():
                devices = self._service.prepare(ref, deadline=time.monotonic() + PREPARE_BUDGET)
        except DynamigError as error:
            log.warning("prepare_failed", claim=str(ref), code=error.code, error=str(error))
            self._settler.failed(ref, error)
            return str(error)
        return [Answer((d.request,), d.pool, d.device, (d.cdi_id,)) for d in devices]

    def _unprepare(self, ref: ClaimRef) -> str | None:
        try:
            with self._calls.counted():
                self._service.endings.unprepare(ref.uid)
        except DynamigError as error:
            log.warning("unprepare_failed", claim=str(ref), code=error.code, error=str(error))
            return str(error)
        return None

    @contextmanager
    def _room(self) -> Iterator[None]:
        """One of the places for prepares; they may all be waiting, and unprepares still find a thread."""
        if not self._places.acquire(blocking=False):
            raise Unavailable("OVERLOADED", f"{PREPARES} claims are being prepared", "it is tried again")
        try:
            yield
        finally:
            self._places.release()

    def _on_registration(self, registered: bool) -> None:
        if registered:
            self._registered.set()
        else:
            self._registered.clear()
        self._loops["publish"].poke()
        self._loops["lease"].poke()

    def _changed(self, uid: str) -> None:
        self._settler.changed(uid)
        self._loops["lease"].poke()

    # -- loops -------------------------------------------------------------------------------------------------

    def _publish(self) -> float:
        self._rescan()
        if self._registered.is_set():
            pools = [offer.pool for offer in self._catalog.offers.values()]
            keep = {o.pool.name for o in self._catalog.offers.values() if o.reading.uuid in self._health.silent}
            publish(self._slices, pools, driver=self._node.driver_name, node=self._node.name, keep_pools=keep)
            self._published.set()
        return RESCAN

    def _watch(self) -> float:
        for _ in self._slices.changes():
            self._loops["publish"].poke()
            if self._stopping.is_set():
                break
        return 0.0

    def _renew(self) -> float:
        self._sequence += 1
        report = report_of(
            self._node.boot_id,
            self._sequence,
            self._registered.is_set(),
            self._journal.records().values(),
            outages=self._health.outages,
            gpus=(OwnGpu(o.reading.uuid, o.pool.name, o.reading.product_name) for o in self._catalog.offers.values()),
            **({} if self._lender is None else _slurm_report(self._lender)),
        )
        self._lease.renew(report.to_json())
        return RENEW

    def _recover(self) -> float:
        held = () if self._looked_for_lost else self._claims.held_on(self._node.name)
        self._looked_for_lost = True  # a crash loses claims, and a crash means a start: one list of all is enough
        self._repair.run(self._repair.plan(held).actions)
        return RECOVER

    def _ask_slurm(self, lender: Lender) -> float:
        if lender.ask():
            self._loops["lease"].poke()
        assert self._config.slurm is not None
        return self._config.slurm.ask_seconds

    # -- hardware ----------------------------------------------------------------------------------------------

    def _rescan(self) -> None:
        """The catalog is what NVML says now. A GPU that cannot be read keeps the place it had, and is not to be had."""
        fresh = {r.uuid: r for r in self._answering()}
        if news := _left_out_anew(self._readings, fresh):
            log.warning("profiles_left_out", gpus=news, effect="these GPUs are offered without them")
        self._readings = {**self._readings, **fresh}
        unread = self._never_read()
        is_new = self._lender is not None and self._lender.remap(self._readings.values(), unread)
        if self._health.look(self._known_gpus(), fresh.keys(), unread) or is_new:
            self._loops["lease"].poke()  # the bridge goes by it
        self._catalog = self._build({})  # what the look at foreign instances goes by
        looked = self._repair.look()
        if looked.lost:
            self._loops["recover"].poke()  # their pods are to know at once
        if looked.foreign != self._foreign:
            log.warning("foreign_instances", found={g: [str(i) for i in found] for g, found in looked.foreign.items()})
        self._foreign = looked.foreign
        self._catalog = self._build(looked.foreign)

    def _answering(self) -> Sequence[GpuReading]:
        """None where NVML itself does not say which GPUs there are: each that is known is then asked for itself. Raises
        that as long as none is known: a driver that knows nothing publishes nothing, and takes nothing back."""
        try:
            return self._gpus.readings()
        except DynamigError as error:
            if not self._readings:
                raise
            log.warning("nvml_unreadable", code=error.code, error=str(error))
            return ()

    def _never_read(self) -> Mapping[GpuUuid, str]:
        """GPUs that Slurm may give out and of which we know nothing, with what is heard of them; asked for as long as
        there is no map: later, those that are not in it are not Slurm's."""
        if self._lender is None or self._lender.device_map is not None:
            return {}
        try:
            unread = self._gpus.unread()
        except DynamigError as error:
            return {GpuUuid("NVML"): error.code}
        read = {reading.index for reading in self._readings.values()}
        return {GpuUuid(f"NVML index {index}"): heard for index, heard in unread.items() if index not in read}

    def _known_gpus(self) -> set[GpuUuid]:
        """Those that answered this process once, and those that Slurm was told of."""
        device_map = None if self._lender is None else self._lender.device_map
        return {*self._readings, *(device_map.gpus.values() if device_map is not None else ())}

    def _build(self, foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]]) -> catalogs.Catalog:
        readings = self._readings.values()
        records = self._journal.records().values()
        numbers = self._numbers.of(readings)
        managed = self._config.slurm is not None
        return catalogs.build(
            self._node.name,
            readings,
            numbers,
            self._config.gpus,
            foreign,
            held=held_devices(records),
            managed=managed,
            unhealthy=self._health.outages,
        )

    # -- for people --------------------------------------------------------------------------------------------

    def plan(self) -> recovery.Plan:
        return self._repair.plan()

    def loan_asks(self) -> Mapping[str, Ask]:
        """What this driver answers to Slurm's scripts; nothing without Slurm."""
        if self._lender is None or self._recall is None:
            return {}
        asks = loan_asks(self._lender, self._recall, time.monotonic)
        return {name: self._reported(ask) for name, ask in asks.items()}

    def _reported(self, ask: Ask) -> Ask:
        """The same; what it changed stands in the node's Lease at once."""

        def asked(args: Mapping[str, Any], caller: Caller) -> Any:
            try:
                return ask(args, caller)
            finally:
                self._loops["lease"].poke()

        return asked

    def release(self, uid: str) -> None:
        self._service.endings.release(uid)

    def adopt(self, wanted: str) -> Adopted:
        """As `ClaimService.adopt`. Raises also Unavailable STARTING while no GPU was read yet."""
        if not self._catalog.offers:
            raise Unavailable("STARTING", f"the driver of {self._node.name} offers no GPU yet", "ask again")
        adopted = self._service.adopt(wanted)
        self._loops["publish"].poke()  # what was foreign no longer is
        return adopted

    def status(self) -> Status:
        return Status(
            node=self._node.name,
            boot_id=self._node.boot_id,
            registered=self._registered.is_set(),
            published=self._published.is_set(),
            offers=tuple(self._catalog.offers.values()),
            foreign=self._foreign,
            outages=self._health.outages,
            records=tuple(self._journal.records().values()),
            loans=_loan_status(self._lender),
        )


@dataclass(frozen=True, slots=True)
class LoanStatus:
    """`loans`: each with why it still stands. `damaged`: GPUs whose loan cannot be read, with the file's path.
    `trouble`: why the map is not as wanted."""

    device_map: DeviceMap | None
    trouble: str
    loans: Mapping[Loan, str]
    damaged: Mapping[GpuUuid, str]


@dataclass(frozen=True, slots=True)
class Status:
    """How a driver is, at one moment."""

    node: str
    boot_id: str
    registered: bool
    published: bool
    offers: tuple[catalogs.Offer, ...]
    foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]]
    outages: Outages
    records: tuple[ClaimRecord, ...]
    loans: LoanStatus | None

    @property
    def why_not_ready(self) -> str:
        """Empty for a driver that the kubelet knows and that offers something."""
        if not self.registered:
            return "not registered with the kubelet"
        if not self.published:
            return "slices not published yet"
        if not any(offer.pool.devices for offer in self.offers if offer.reading.uuid not in self.outages):
            return "no device to offer: no GPU answers, or for long enough; see `dynamig driver plan`, `nvidia-smi -L`"
        return ""


def _left_out_anew(
    before: Mapping[GpuUuid, GpuReading], now: Mapping[GpuUuid, GpuReading]
) -> Mapping[GpuUuid, tuple[str, ...]]:
    """What is left out of GPUs now, where that was not so at the last look."""
    known = {gpu: reading.left_out for gpu, reading in before.items()}
    return {gpu: r.left_out for gpu, r in now.items() if r.left_out and known.get(gpu) != r.left_out}


def _slurm(config: SlurmConfig, node: str, entry: Callable[[], Seen[str]]) -> Slurm:
    source = Source.MINORS if config.device_map is None else Source.GIVEN
    file = Given(config.node_name or node, config.device_map, source)
    return Slurm(Scontrol(config.scontrol), file, lambda: given_for(node, entry(), file), config.answer_seconds)


def _slurm_report(lender: Lender) -> Mapping[str, Any]:
    trouble = lender.map_trouble
    return {
        "device_map": lender.device_map,
        "map_trouble": trouble.what if trouble.closed else "",
        "slurm_node": lender.slurm_node,
        "loans": lender.loans().values(),
    }


def _loan_status(lender: Lender | None) -> LoanStatus | None:
    if lender is None:
        return None
    loans = {loan: lender.why_it_stands(loan) for loan in lender.loans().values()}
    return LoanStatus(lender.device_map, lender.map_trouble.what, loans, lender.damaged())


def _lock_state(config: DriverConfig) -> IO[str]:
    """The node's state belongs to this process until it ends, however it ends."""
    lock = (config.state_dir / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(
            "ALREADY_RUNNING",
            f"another driver uses {config.state_dir}",
            "stop it first, or give this one its own stateDir",
        ) from None
    return lock
