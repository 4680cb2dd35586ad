"""Another bridge beside the lab's: the same program, rights and servers, another process."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

import yaml
from prometheus_client.parser import text_string_to_metric_families

from lab import bridge
from lab.commands import clean_env
from lab.components import DYNAMIG
from lab.lab import Lab

LET_GO_S = 15.0
"""Seconds from TERM to KILL, as the lab gives its own bridge."""


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and body; status 0 if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError as error:
        return 0, str(error)


def leads(port: int) -> bool:
    """Whether the bridge there says that it leads; False too if nobody answers."""
    status, body = ask(port, "/metrics")
    families = {f.name: f for f in text_string_to_metric_families(body)} if status == 200 else {}
    return "dynamig_bridge_leading" in families and families["dynamig_bridge_leading"].samples[0].value == 1


class SecondBridge:
    """Runs inside the `with` block. Its log lies beside those of the lab's daemons."""

    def __init__(self, lab: Lab) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._config = yaml.safe_load(bridge.files(lab.layout).config.read_text())
        self._log = lab.layout.logs / "second-bridge.log"

    def __enter__(self) -> SecondBridge:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "bridge.yaml"
        path.write_text(yaml.safe_dump({**self._config, "listen": f"127.0.0.1:{self.port}"}))
        with self._log.open("ab") as log:
            command = [str(DYNAMIG), "bridge", "run", "--config", str(path)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_env())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """A clean stop, if it runs."""
        self.process.terminate()
        try:
            self.process.wait(LET_GO_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the second bridge does not stop: {self._log}") from None
