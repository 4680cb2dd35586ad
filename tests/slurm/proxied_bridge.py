"""The bridge behind a proxy on either side, with its identity of production: the program itself, or composed anew.

The program runs as a process of the test, to be killed. Composed in this process a bridge may lack one of its fences.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import yaml
from lightkube import Client

from dynamig import slurm
from dynamig.bridge.config import BridgeConfig, load
from dynamig.bridge.service import Bridge
from dynamig.kube import connect
from dynamig.kube.leader import ApiLeaseObject, Elector
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import Jobs
from lab import bridge, pki
from lab.commands import clean_env
from lab.lab import Lab
from tests.slurm.proxy import Proxy

LET_GO_S = 20.0
"""Seconds from TERM to KILL. It may be waiting for an answer of Slurm (15 s)."""


class Proxies:
    """`api` and `slurm` stand before the API server and slurmrestd; `config` is for a bridge between them. `log` lies
    beside those of the lab's daemons."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        layout, control = lab.layout, pki.control_folder(lab.layout)
        authority = layout.pki / f"{pki.CLUSTER_CA}.crt"
        shown = (control / "apiserver.crt", control / "apiserver.key")
        self.api = Proxy(f"https://127.0.0.1:{lab.spec.ports.apiserver}", trust=authority, identity=shown)
        self.slurm = Proxy(lab.slurmrestd_url)
        self.config = folder / "bridge.yaml"
        self.log = layout.logs / "proxied-bridge.log"
        self._configure(folder / "bridge.kubeconfig", lab, authority)

    def _configure(self, kubeconfig: Path, lab: Lab, authority: Path) -> None:
        """As the lab's own bridge, with its tokens, but for the two addresses. It is asked nothing over HTTP."""
        files = bridge.files(lab.layout)
        pki.write(kubeconfig, pki.kubeconfig(self.api.url, authority, {"tokenFile": str(files.token)}))
        config = bridge.configuration(files, lab.spec) | {"kubeconfig": str(kubeconfig)}
        config["slurm"] |= {"url": self.slurm.url}
        del config["listen"]
        pki.write(self.config, yaml.safe_dump(config))

    def calm(self) -> None:
        """No fault is ordered any more."""
        self.api.clear()
        self.slurm.clear()

    def close(self) -> None:
        """The log ends with all writes as the proxies saw them."""
        self.api.close()
        self.slurm.close()
        writes = sorted([*self.api.writes, *self.slurm.writes], key=lambda exchange: exchange.at)
        with self.log.open("a") as log:
            log.writelines(f"{exchange}\n" for exchange in writes)


@contextmanager
def proxies(lab: Lab) -> Iterator[Proxies]:
    with tempfile.TemporaryDirectory() as folder:
        made = Proxies(lab, Path(folder))
        try:
            yield made
        finally:
            made.close()


class Running(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Process:
    """The program `dynamig bridge run`. From any thread."""

    def __init__(self, between: Proxies) -> None:
        self._between = between
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._start()

    def stop(self) -> None:
        """It has ended, by TERM."""
        with self._lock:
            if self._process is None:
                return
            self._process.terminate()
            try:
                self._process.wait(LET_GO_S)
            finally:
                self._kill()

    def kill_and_start(self) -> None:
        """kill -9, and a new one that knows nothing, and waits until the lead of the dead one has run out (15 s)."""
        with self._lock:
            self._kill()
            self._start()

    def _start(self) -> None:
        with self._between.log.open("ab") as log:
            self._process = subprocess.Popen(
                bridge.command(self._between.config), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_env()
            )

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


Compose = Callable[[BridgeConfig, Client, Jobs, Elector], Bridge]
"""`Bridge` itself, or what lacks one of its fences."""


class Thread:
    """A bridge of this process, made as `dynamig bridge run` makes its own."""

    def __init__(self, between: Proxies, compose: Compose = Bridge) -> None:
        loaded = load(between.config)
        at = loaded.slurm
        jobs = slurm.ExternalJobs(slurm.connect(at.url, at.user, slurm.token_file(at.token_file)))
        lease = ApiLeaseObject(connect(loaded.kubeconfig), loaded.namespace, names.BRIDGE_LEASE)
        self._bridge = compose(loaded, connect(loaded.kubeconfig), jobs, Elector(lease, f"test-{uuid.uuid4()}"))
        self._thread = threading.Thread(target=self._bridge.run, name="bridge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._bridge.stop()
        self._thread.join(LET_GO_S)
        assert not self._thread.is_alive(), "the bridge does not stop"
