"""Take a lab down: by its records only, so that it works on whatever an interrupted `up` or `down` has left."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dynamig.errors import Refused
from lab import cgroups, folder, ports, processes
from lab.processes import Record
from lab.progress import Reporter
from lab.spec import CONTROL, Layout

HOST_GRACE_S = 2.0
"""What a driver gets to end by itself. Little: all that it could still save is removed with the lab. Machines get
nothing: they are switched off, and the kernel takes all processes of their pid namespace along."""


def order(records: Sequence[Record]) -> tuple[tuple[Record, ...], ...]:
    """Groups to be stopped one after the other: daemons of the host, machines of nodes, the control plane's machine.

    Daemons inside a machine need no stopping of their own. Pure.
    """
    host = tuple(r for r in records if r.machine is None)
    node_machines = tuple(r for r in records if r.is_machine and r.machine != CONTROL)
    control = tuple(r for r in records if r.is_machine and r.machine == CONTROL)
    return tuple(group for group in (host, node_machines, control) if group)


def records(layout: Layout) -> list[Record]:
    """Of all daemons that were ever started, alive or not."""
    found = [processes.read_record(path) for path in sorted(layout.records.glob("[!.]*.json"))]
    return [record for record in found if record is not None]


def switch_off(layout: Layout, reporter: Reporter) -> None:
    """No process of the lab runs any more."""
    for group in order(records(layout)):
        names = ", ".join(record.name for record in group)
        with reporter.task(f"stop {names}"), ThreadPoolExecutor() as pool:
            for result in [pool.submit(_end, record) for record in group]:
                result.result()


def _end(record: Record) -> None:
    if record.is_machine:
        processes.stop(record.name, record.identity, grace_s=0)
    else:
        processes.stop_session(record.name, record.identity, HOST_GRACE_S)


def _refuse_foreign(found: Sequence[Record]) -> None:
    for record in found:
        try:
            with processes.held(record.identity) as handle:
                if handle is not None:
                    signal.pidfd_send_signal(handle, 0)  # asks for the right, sends nothing
        except ProcessLookupError:
            continue
        except PermissionError as error:
            what = f"{record.name} (process {record.identity.pid}) may not be stopped by this user"
            raise Refused("NOT_ALLOWED", what, "run as who brought the lab up") from error


def take_down(layout: Layout, reporter: Reporter, *, keep_logs: bool) -> None:
    """Processes, cgroups and files of the lab are gone; mounts and networks went with the processes.

    Raises: Refused, before anything is stopped, if one of its processes may not be signalled.
    """
    _refuse_foreign(records(layout))
    switch_off(layout, reporter)
    with reporter.task("remove cgroups and files"):
        cgroups.remove(layout)
        ports.release(layout.root)
        folder.remove(layout, keep_logs=keep_logs)
