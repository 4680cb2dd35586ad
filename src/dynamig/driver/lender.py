"""Lends GPUs to native Slurm jobs, and takes them back (PROTOCOL P10, P11); the fence that prepares look at.

Locks: the run's of a job (one conversation with a prolog at a time), then those of the GPUs, then the map's. slurmctld
is asked and a prolog is answered without a GPU's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from dynamig.driver.catalog import Catalog
from dynamig.driver.hardware import use_mode
from dynamig.driver.loans import Loans, MapFile
from dynamig.driver.locks import KeyedLocks
from dynamig.driver.map_keeper import InUse, MapKeeper, Trouble
from dynamig.driver.outside import Guards, Outside
from dynamig.driver.scontrol import SlurmWord
from dynamig.driver.shard_lines import shard_lines
from dynamig.errors import DynamigError, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, Given
from dynamig.protocol.gpus import GpuReading
from dynamig.protocol.loans import (
    MAY_BE_OVER,
    Borrower,
    JobSeen,
    Loan,
    NodeFacts,
    check_apart,
    check_lendable,
    judge,
    used_but_for,
    why_it_stands,
)
from dynamig.protocol.outages import ALL_ANSWER
from dynamig.protocol.seen import Seen, Unknown

log = structlog.get_logger(__name__)

POLL = 0.5
"""Seconds between looks while a prolog waits; what is given back or destroyed by us is announced at once."""

ASK_AGAIN = 5.0
"""Seconds for which slurmctld is not asked again about the same loan by those who wait for it."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """How this node is known to Slurm, and how Slurm is asked. `answer`: seconds that it has for one answer; `file`:
    what the driver's file says; `given`: what counts now, as `MapKeeper` has it."""

    word: SlurmWord
    file: Given
    given: Callable[[], Given]
    answer: float = 10.0


class Lender:
    """Implements `fence.Fence`. Thread safe. `guards` are those of the node's ClaimService."""

    def __init__(
        self,
        outside: Outside,
        guards: Guards,
        loans: Loans,
        map_file: MapFile,
        slurm: Slurm,
        catalog: Callable[[], Catalog],
    ) -> None:
        self._gpus, self._journal, self._monotonic = outside.gpus, outside.journal, outside.monotonic
        self._wall = outside.wall
        self._loans = loans
        self._guards = guards
        self._slurm = slurm
        self._maps = MapKeeper(map_file, slurm.file.slurm_node, slurm.given, self._in_use)
        self._catalog = catalog
        self._runs = KeyedLocks()
        self._open = threading.Event()
        self._asked_lock = threading.Lock()
        self._asked: dict[GpuUuid, float] = {}
        self._standing: dict[GpuUuid, tuple[Loan, str]] = {}  # single reads and writes only

    def open(self) -> None:
        """What a crash left has been settled: from now on GPUs are lent."""
        self._open.set()
        self._guards.changes.announce()

    # -- lending ---------------------------------------------------------------------------------------------

    @contextmanager
    def lending(
        self,
        borrower: Borrower,
        indices: Collection[int],
        *,
        deadline: float,
        is_there: Callable[[], bool] = lambda: True,
    ) -> Iterator[Sequence[Loan]]:
        """All GPUs of `indices` are lent to `borrower`, or none; those lent here are taken back if the body raises.

        What will end is waited for until `deadline` (monotonic), or until the asking end is no longer there.
        Raises: Unavailable LENT, CLAIMED, LOAN_UNREADABLE, STARTING and what NVML or the disk say, for what may be
        asked again; Refused UNKNOWN_INDEX, QUARANTINED, MIG_MODE, MAP_OUTDATED for what may not.
        """
        with self._runs.of(borrower.run):
            loans, fresh = self._when_free(borrower, frozenset(indices), deadline, is_there)
            try:
                yield loans
            except BaseException:
                self._take_back(fresh)
                raise

    def _when_free(
        self, borrower: Borrower, indices: Collection[int], deadline: float, is_there: Callable[[], bool]
    ) -> tuple[Sequence[Loan], Sequence[Loan]]:
        while True:
            seen = self._guards.changes.count()
            try:
                return self._lend_now(borrower, indices)
            except Unavailable as error:
                busy = error
            if not is_there():
                raise Unavailable("ABANDONED", f"the prolog of {borrower} is gone", "nothing was lent") from busy
            left = deadline - self._monotonic()
            if left <= 0:
                raise busy
            if busy.code != "LENT" or not self._ask_for(borrower, indices, deadline):
                self._guards.changes.wait_after(seen, min(left, POLL))

    def could_lend(self, borrower: Borrower, indices: Collection[int]) -> bool:
        """Whether nothing stands in the way of lending now. Nothing is lent, and it may be over at once."""
        try:
            with self._free(borrower, indices):
                return True
        except DynamigError:
            return False

    @contextmanager
    def _free(self, borrower: Borrower, indices: Collection[int]) -> Iterator[Sequence[GpuUuid]]:
        """The GPUs of `indices`, locked: nothing stands in the way of lending them."""
        wanted = self._gpus_of(indices)
        with self._guards.gpus.of_all(wanted):
            for gpu in wanted:
                self._check(gpu, borrower)
            yield wanted

    def _lend_now(self, borrower: Borrower, indices: Collection[int]) -> tuple[Sequence[Loan], Sequence[Loan]]:
        """(all loans, those made now)."""
        with self._free(borrower, indices) as wanted:
            had = self._loans.all()
            loans = [had.get(gpu) or Loan(gpu, borrower, self._wall()) for gpu in wanted]
            fresh = [loan for loan in loans if loan.gpu not in had]
            try:
                self._write(fresh, indices, wanted)
                self._make_whole(wanted)
            except DynamigError:
                self._forget(fresh)
                raise
        log.info("lent", to=str(borrower), gpus=[loan.gpu for loan in fresh])
        return loans, fresh

    def _write(self, fresh: Sequence[Loan], indices: Collection[int], wanted: Sequence[GpuUuid]) -> None:
        """On disk, decided by a map that cannot change any more once a loan is there."""
        with self._maps.pinned() as device_map:
            if device_map is None or [device_map.gpu(i) for i in sorted(indices)] != list(wanted):
                raise Unavailable("STARTING", "the device map has just changed", "it is asked again")
            for loan in fresh:
                self._loans.write(loan)
        check_apart(self._loans.all(), self._journal.records().values())

    def _check(self, gpu: GpuUuid, borrower: Borrower) -> None:
        self._check_readable(gpu)
        if unreadable := self._journal.unreadable():
            path = min(unreadable.values())
            raise Unavailable(
                "JOURNAL_DAMAGED", f"{path} cannot be read: it may own any GPU", "see `dynamig driver plan`"
            )
        live = self._gpus.instances(gpu) if self._is_ours(gpu) else ()
        check_lendable(gpu, borrower, self._loans.all(), self._journal.records().values(), live)

    def _check_readable(self, gpu: GpuUuid) -> None:
        if (path := self._loans.damaged().get(gpu)) is not None:
            raise Unavailable(
                "LOAN_UNREADABLE",
                f"{gpu} is lent, but {path} does not say to whom",
                "when no process uses the GPU: stop the driver, remove the file, start it",
            )

    def _make_whole(self, wanted: Sequence[GpuUuid]) -> None:
        """A native job finds whole GPUs, under the device files that Slurm knows."""
        for gpu in wanted:
            if self._is_ours(gpu):
                may_switch = self._catalog().of_gpu(gpu).may_switch_mode
                if use_mode(self._gpus, gpu, partitioned=False, may_switch=may_switch):
                    log.info("mig_mode_switched", gpu=gpu, on=False)
        if (device_map := self._maps.current) is not None:
            device_map.check_order(self._gpus.readings())

    def _is_ours(self, gpu: GpuUuid) -> bool:
        """Whether we manage the GPU: one that policy ignores is lent and never touched."""
        return any(offer.reading.uuid == gpu for offer in self._catalog().offers.values())

    # -- taking back -----------------------------------------------------------------------------------------

    def give_back(self, epilog: Borrower) -> Sequence[Loan]:
        """Loans of the run whose epilog this is; they are free on disk. Nothing lent: nothing to do."""
        return self._end([loan for loan in self._loans.all().values() if loan.borrower.is_ended_by(epilog)], "epilog")

    def give_back_all(self, job_id: int) -> Sequence[Loan]:
        """Loans of every run of the job: an administrator's word that nothing of it lives."""
        return self._end([loan for loan in self._loans.all().values() if loan.borrower.job_id == job_id], "by hand")

    def ask(self, gpus: Collection[GpuUuid] | None = None, *, within: float = 60.0) -> Sequence[Loan]:
        """slurmctld was asked about the loans (of `gpus`), and those that it says are over were returned; which ones.

        Takes at most `within` seconds. Asked for `gpus`, a loan about which it was asked just now is left out.
        """
        until = self._monotonic() + within
        loans = self._to_ask_about(gpus)
        return self._judge_all(loans, self._node(until), until) if loans else []

    def _ask_for(self, borrower: Borrower, indices: Collection[int], until: float) -> Sequence[Loan]:
        """The same about the loans of `indices`, which Slurm has given to `borrower`."""
        if not (loans := self._to_ask_about(self._current_map_gpus(indices))):
            return []
        job = self._slurm.word.job(borrower.job_id, within=self._patience(until))
        return self._judge_all(loans, used_but_for(self._node(until), borrower, indices, job), until)

    def _to_ask_about(self, gpus: Collection[GpuUuid] | None) -> Sequence[Loan]:
        loans = self._loans.all().values()
        return [loan for loan in loans if gpus is None or (loan.gpu in gpus and self._may_ask(loan.gpu))]

    def _node(self, until: float) -> Seen[NodeFacts]:
        return self._slurm.word.node(self._maps.slurm_node, within=self._patience(until))

    def _judge_all(self, loans: Iterable[Loan], node: Seen[NodeFacts], until: float) -> Sequence[Loan]:
        over: list[Loan] = []
        for loan in loans:
            index = None if (device_map := self._maps.current) is None else device_map.index(loan.gpu)
            job = self._slurm.word.job(loan.borrower.job_id, within=self._patience(until))
            seen = judge(loan.borrower, index, job, node)
            why = why_it_stands(seen, self._has_steps(loan, seen, until), self._wall() - loan.since)
            if why is None:
                over += self._end([loan], f"slurmctld says {seen.value}")
            else:
                self._standing[loan.gpu] = (loan, why)
        return over

    def _has_steps(self, loan: Loan, seen: JobSeen, until: float) -> Seen[bool]:
        if seen not in MAY_BE_OVER:
            return Unknown("not asked")
        return self._slurm.word.has_steps(loan.borrower.job_id, self._maps.slurm_node, within=self._patience(until))

    def _may_ask(self, gpu: GpuUuid) -> bool:
        now = self._monotonic()
        with self._asked_lock:
            if now < self._asked.get(gpu, now):
                return False
            self._asked[gpu] = now + ASK_AGAIN
            return True

    def _patience(self, until: float) -> float:
        return min(self._slurm.answer, until - self._monotonic())

    def _end(self, loans: Iterable[Loan], why: str) -> Sequence[Loan]:
        ended: list[Loan] = []
        for loan in loans:
            with self._guards.gpus.of(loan.gpu):
                if self._loans.all().get(loan.gpu) == loan:
                    self._loans.forget(loan.gpu)
                    ended.append(loan)
        if ended:
            self._guards.changes.announce()
            log.info("given_back", by=str(ended[0].borrower), gpus=[loan.gpu for loan in ended], why=why)
        return ended

    def _take_back(self, fresh: Sequence[Loan]) -> None:
        """Never raises: what stays on disk ends by the epilog or by slurmctld's word."""
        try:
            self._end(fresh, "the prolog did not take it")
        except DynamigError as error:
            log.warning("loan_stays", gpus=[loan.gpu for loan in fresh], code=error.code, error=str(error))

    def _forget(self, fresh: Sequence[Loan]) -> None:
        """The same for a caller that holds the GPUs' locks."""
        for loan in fresh:
            try:
                self._loans.forget(loan.gpu)
            except DynamigError as error:
                log.warning("loan_stays", gpus=[loan.gpu], code=error.code, error=str(error))

    # -- the fence -------------------------------------------------------------------------------------------

    def lent(self, gpus: Iterable[GpuUuid]) -> Sequence[str]:
        """Who has borrowed one of `gpus`, in words. Callers hold their locks. Raises LOAN_UNREADABLE."""
        loans = self._loans.all()
        found: list[str] = []
        for gpu in sorted(gpus):
            self._check_readable(gpu)
            if (loan := loans.get(gpu)) is not None:
                found.append(f"{loan.borrower}, to which {gpu} is lent")
        return found

    # -- the map ---------------------------------------------------------------------------------------------

    def remap(self, readings: Iterable[GpuReading], unread: Mapping[GpuUuid, str] = ALL_ANSWER) -> bool:
        """The device map is as P6 wants it for the GPUs that were read now, and those that were not (`unread` of
        `NvmlGpus`); whether anything of it is new."""
        return self._maps.remap(readings, unread)

    def _in_use(self) -> InUse:
        lent = bool(self._loans.all() or self._loans.damaged())
        return InUse(lent=lent, claimed=bool(self._journal.records() or self._journal.unreadable()))

    def _gpus_of(self, indices: Collection[int]) -> Sequence[GpuUuid]:
        device_map, trouble = self._maps.current, self._maps.trouble
        if not self._open.is_set() or device_map is None:
            what = trouble.what or "the driver has just started"
            raise Unavailable("STARTING", f"no GPU is lent yet: {what}", "it is asked again")
        if trouble.closed:
            raise Unavailable("MAP_CLOSED", f"no GPU is lent: {trouble.what}", "see `dynamig driver map`")
        return [device_map.gpu(i) for i in sorted(indices)]

    def _current_map_gpus(self, indices: Collection[int]) -> Collection[GpuUuid]:
        device_map = self._maps.current
        return frozenset() if device_map is None else frozenset(g for i, g in device_map.gpus.items() if i in indices)

    # -- for people and for the bridge -------------------------------------------------------------------------

    def loans(self) -> Mapping[GpuUuid, Loan]:
        return self._loans.all()

    def why_it_stands(self, loan: Loan) -> str:
        """As far as was known when slurmctld was asked last, for people."""
        about, why = self._standing.get(loan.gpu, (None, ""))
        return why if about == loan else "slurmctld has not been asked about it yet"

    def damaged(self) -> Mapping[GpuUuid, str]:
        return self._loans.damaged()

    @property
    def device_map(self) -> DeviceMap | None:
        return self._maps.current

    @property
    def slurm_node(self) -> str:
        """The node's name in Slurm, as administrators have told it; empty as long as that is not known."""
        return self._maps.told_name

    @property
    def map_trouble(self) -> Trouble:
        return self._maps.trouble

    def shard_lines(self) -> Sequence[str]:
        """What gres.conf must say of this node's shards; nothing without a map, or while a GPU is silent."""
        device_map = self._maps.current
        return () if device_map is None else shard_lines(device_map, self._gpus.readings(), self._catalog())
