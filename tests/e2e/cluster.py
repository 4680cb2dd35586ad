"""What the end-to-end tests say to the cluster and read from it: kubectl, the hardware, the journal.

The hardware is read by `build/nvml-list`, a C program over NVML that shares no code with driver or model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dynamig.dra import read_pools
from dynamig.driver.control import ask
from dynamig.errors import Unavailable
from dynamig.protocol import names
from dynamig.testing.emulator import Emulator
from lab.lab import Lab

T = TypeVar("T")
NAMESPACE = "e2e"
PATIENCE = 60.0
KUBELET_RETRY = 150.0
"""Seconds within which the kubelet has tried a failed prepare again: about 80, tried on 1.37.2. Any pod may need it:
now and then the node authorizer does not know yet that the node may read the claim of a pod just bound to it."""


@dataclass(frozen=True, order=True)
class Instance:
    """One GPU instance as the independent reader tells of it."""

    node: str
    gpu: str
    profile_id: int
    start: int
    size: int
    uuids: tuple[str, ...] = field(compare=False)


def mig(name: str = "mig", *, profile: str | None = None, gpu: str | None = None, count: int = 1) -> dict[str, Any]:
    """A request for partitions: of one profile, on one GPU (UUID), or any."""
    conditions = []
    if profile is not None:
        conditions.append(f"device.attributes['gpu.nvidia.com'].profile == '{profile}'")
    if gpu is not None:
        conditions.append(f"device.attributes['gpu.nvidia.com'].parentUUID == '{gpu}'")
    return request(name, "mig.nvidia.com", " && ".join(conditions), count)


def whole(name: str = "gpu", *, gpu: str | None = None) -> dict[str, Any]:
    return request(name, "gpu.nvidia.com", f"device.attributes['gpu.nvidia.com'].uuid == '{gpu}'" if gpu else "", 1)


def request(name: str, device_class: str, expression: str, count: int = 1) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    if count != 1:
        exactly["count"] = count
    return {"name": name, "exactly": exactly}


class Cluster:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    # -- asking ----------------------------------------------------------------------------------------------

    def apply(self, *objects: Mapping[str, Any]) -> None:
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.lab.kubectl("-n", NAMESPACE, "create", "-f", "-", stdin=json.dumps(bundle))

    def pod(
        self,
        name: str,
        *requests: Mapping[str, Any],
        command: str = "nvml-list && sleep 100000",
        image: str = "lab.local/tool:1",
        **spec: Any,
    ) -> str:
        """A pod with one generated claim of these requests; its name."""
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": list(requests)}}},
        }
        self.apply(template, pod_object(name, {"resourceClaimTemplateName": name}, command, image, **spec))
        return name

    def pod_of_claim(self, name: str, claim: str, command: str = "nvml-list && sleep 100000") -> str:
        self.apply(pod_object(name, {"resourceClaimName": claim}, command, "lab.local/tool:1"))
        return name

    def delete(self, *pods: str, force: bool = False) -> None:
        """The pods are gone from the API."""
        how = ("--force", "--grace-period=0") if force else ("--grace-period=1",)
        self.lab.kubectl("-n", NAMESPACE, "delete", "pod", *pods, *how, "--wait=true", "--timeout=60s")

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.kubectl_json("-n", NAMESPACE, "get", kind, name)
        return found

    def slurm_condition(self, pod: str) -> dict[str, Any]:
        """What the bridge says on the pod. Raises ValueError as long as it has said nothing."""
        conditions = self.get("pod", pod)["status"].get("conditions", ())
        found: dict[str, Any]
        (found,) = [c for c in conditions if c["type"] == names.CONDITION]
        return found

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"].get("phase", ""))

    def container_sees(self, pod: str, container: str = "main") -> dict[str, Any]:
        """What NVML shows inside the container: the last JSON line that nvml-list printed there."""
        lines = self.lab.kubectl("-n", NAMESPACE, "logs", pod, "-c", container).splitlines()
        found: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        return found

    def claim_of(self, pod: str) -> dict[str, Any]:
        statuses = self.get("pod", pod)["status"]["resourceClaimStatuses"]
        return self.get("resourceclaim", statuses[0]["resourceClaimName"])

    def device_of(self, pod: str) -> dict[str, Any]:
        """The one entry of `status.devices` of the pod's claim, once it is there."""

        def reported() -> dict[str, Any]:
            (entry,) = self.claim_of(pod)["status"].get("devices") or [None]
            assert entry is not None, "not reported yet"
            assert isinstance(entry, dict)
            return entry

        return until(reported)

    def instances(self) -> list[Instance]:
        """Every GPU instance on every node's hardware."""
        return sorted(i for node in self.lab.nodes for i in self.instances_on(node))

    def instances_on(self, node: str) -> Iterator[Instance]:
        for gpu in self.lab.node(node).nvml_list()["gpus"]:
            for gi in gpu.get("gpu_instances", ()):
                uuids = tuple(ci["mig_uuid"] for ci in gi["compute_instances"] if ci.get("mig_uuid"))
                yield Instance(node, gpu["uuid"], gi["profile_id"], gi["start"], gi["size"], uuids)

    def gpus(self, node: str) -> list[str]:
        return [g["uuid"] for g in self.lab.node(node).nvml_list()["gpus"]]

    def emulator(self, node: str) -> Emulator:
        return Emulator(self.lab.node(node).emulator_dir)

    def journal(self, node: str) -> dict[str, Any]:
        folder = self.lab.node(node).dir / "dynamig/claims"
        return {p.stem: json.loads(p.read_text()) for p in folder.glob("*.json")}

    def journal_file(self, node: str, uid: str) -> Path:
        return Path(self.lab.node(node).dir) / f"dynamig/claims/{uid}.json"

    def driver(self, node: str, *command: str) -> Any:
        """What `dynamig driver COMMAND --json` of the node answers."""
        program = str(Path(sys.executable).with_name("dynamig"))
        where = ("--socket", str(self.lab.node(node).dir / "run/dynamig.sock"), "--json")
        done = subprocess.run(
            [program, "driver", *command, *where], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def cdi_files(self, node: str) -> list[str]:
        return sorted(p.name for p in (self.lab.node(node).dir / "cdi").glob("*.json"))

    def pools(self) -> dict[str, bool]:
        """Pool names as published, and whether each is complete."""
        slices = self.lab.kubectl_json("get", "resourceslices")["items"]
        return {p.name: p.complete for p in read_pools(slices) if p.driver == names.DRIVER_NAME}

    # -- waiting ---------------------------------------------------------------------------------------------

    def running(self, *pods: str, within: float = KUBELET_RETRY) -> None:
        for pod in pods:
            self._reaches(pod, "Running", within)

    def succeeded(self, *pods: str, within: float = KUBELET_RETRY) -> None:
        for pod in pods:
            self._reaches(pod, "Succeeded", within)

    def _reaches(self, pod: str, phase: str, within: float) -> None:
        def there() -> None:
            assert self.phase(pod) == phase

        until(there, within=within, on_timeout=lambda: self.story(pod))

    def unschedulable(self, pod: str) -> str:
        """The scheduler's reason why the pod waits, once it has looked at it."""

        def reason() -> str:
            conditions = self.get("pod", pod)["status"].get("conditions", ())
            scheduled = next(c for c in conditions if c["type"] == "PodScheduled")
            assert scheduled.get("reason") == "Unschedulable"
            return str(scheduled["message"])

        return until(reason)

    def stays_pending(self, pod: str, seconds: float = 3.0) -> None:
        self.unschedulable(pod)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.phase(pod) == "Pending", self.story(pod)
            time.sleep(0.5)

    def empty(self, within: float = PATIENCE) -> None:
        """Nothing of ours is left: no instance, journal record, CDI file, claim, and the books of the API agree."""

        def nothing() -> None:
            assert self.instances() == []
            for node in self.lab.nodes:
                assert self.journal(node) == {}
                assert self.cdi_files(node) == []
            assert self.lab.kubectl_json("-n", NAMESPACE, "get", "resourceclaims")["items"] == []

        until(nothing, within=within)

    def story(self, pod: str) -> str:
        """Everything that helps to see why a pod is not where it should be."""
        try:
            return self.lab.kubectl("-n", NAMESPACE, "describe", "pod", pod)
        except Unavailable as error:
            return str(error)

    def events(self, pod: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.lab.kubectl_json(
            "-n", NAMESPACE, "get", "events", f"--field-selector=involvedObject.name={pod}"
        )["items"]
        return found

    # -- doing things to it ----------------------------------------------------------------------------------

    def restart_driver(self, node: str) -> None:
        """Up, and known to the kubelet: a pod bound before that would have to wait for the kubelet's next attempt."""
        self.lab.start(f"driver-{node}")
        socket = self.lab.node(node).dir / "run/dynamig.sock"

        def registered() -> None:
            assert ask(socket, "status")["ready"]

        until(registered)

    @contextmanager
    def killed_driver(self, node: str) -> Iterator[None]:
        """The node's driver is dead inside the block (SIGKILL), and up and registered again after it."""
        self.lab.kill(f"driver-{node}")
        try:
            yield
        finally:
            self.restart_driver(node)

    def nvml(self, node: str, code: str) -> str:
        """Python code on the node's NVML, as somebody who is not the driver: `pynvml` is imported and initialised."""
        where = self.lab.node(node)
        environment = {
            "LD_LIBRARY_PATH": str(where.dir / "lib"),
            "DYNAMIG_EMULATOR_DIR": str(where.emulator_dir),
            "PATH": "/usr/bin:/bin",
        }
        script = f"import pynvml\npynvml.nvmlInit()\n{code}\n"
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout


def pod_object(name: str, claim: Mapping[str, str], command: str, image: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "devices", **claim}],
            "containers": [container("main", command, image)],
            **spec,
        },
    }


def container(name: str, command: str, image: str = "lab.local/tool:1", request: str | None = None) -> dict[str, Any]:
    claim = {"name": "devices"} if request is None else {"name": "devices", "request": request}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"claims": [claim]},
    }


def until(
    check: Callable[[], T], *, within: float = PATIENCE, on_timeout: Callable[[], str] = lambda: "", every: float = 0.2
) -> T:
    """What `check` returns once it no longer complains (or finds nothing yet); its last complaint if it never does."""
    end = time.monotonic() + within
    while True:
        try:
            return check()
        except (AssertionError, Unavailable, StopIteration, KeyError, ValueError) as error:
            if time.monotonic() >= end:
                raise AssertionError(f"not within {within:.0f} s: {error!r}\n{on_timeout()}") from error
            time.sleep(every)


def profiles(instances: Sequence[Instance]) -> list[tuple[int, int, int]]:
    return [(i.profile_id, i.start, i.size) for i in instances]
