"""What must hold on an emulated node, each run in a process of its own by `test_driver_on_emulator`."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from dynamig.cli.driver import adopt_body, plan_body, status_body
from dynamig.driver.catalog import MANAGED, UNHEALTHY
from dynamig.driver.config import DriverConfig, load
from dynamig.driver.lender import Lender
from dynamig.driver.loans import MapFile
from dynamig.driver.recovery import Plan
from dynamig.driver.service import Driver
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import CiId, GiId, GpuUuid
from dynamig.mig.compute import PIECES
from dynamig.nvml import NvmlGpus
from dynamig.protocol import names
from dynamig.protocol.device_map import DeviceMap, Given, Source
from dynamig.protocol.gpus import MigMode
from dynamig.protocol.lifecycle import State
from dynamig.protocol.loans import Borrower
from dynamig.testing.emulator import NvmlReturn
from tests.integration.driver.node import EmulatedNode
from tests.unit.driver.bench_node import claim_object

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: x
"""


def a_mode_switch_that_renumbers_the_gpu_gives_the_container_the_right_node(node: EmulatedNode) -> None:
    uuid = node.gpus.readings()[0].uuid
    before = node.gpus.reading(uuid).minor
    node.prepare("whole", ("n1/gpu-0", "gpu-0"))
    after = node.gpus.reading(uuid).minor
    assert after != before, "the emulator was to renumber"
    assert f"/dev/nvidia{after}" in node.nodes_of("whole")
    assert f"/dev/nvidia{before}" not in node.nodes_of("whole")
    node.service.endings.unprepare("whole")
    node.prepare("part", node.device("1g.10gb", 0))
    again = node.gpus.reading(uuid).minor
    assert f"/dev/nvidia{again}" in node.nodes_of("part")


def capability_nodes_are_those_of_the_instance(node: EmulatedNode) -> None:
    for start in range(7):
        node.prepare(f"c{start}", node.device("1g.10gb", start))
    seen = {i.placement.start: i for i in node.gpus.instances(node.gpus.readings()[0].uuid)}
    assert len(seen) == 7
    assert sorted(i.gi_id for i in seen.values()) != [i.gi_id for _, i in sorted(seen.items())], "ids are scrambled"
    for start, instance in seen.items():
        minor = 3 + instance.gi_id * 9  # the one formula this emulator's driver version uses, for GPU minor 0
        caps = [p for p in node.nodes_of(f"c{start}") if "nvidia-caps" in p]
        assert caps == [f"/dev/nvidia-caps/nvidia-cap{minor}", f"/dev/nvidia-caps/nvidia-cap{minor + 1}"]


def a_compute_instance_that_fails_leaves_nothing(node: EmulatedNode) -> None:
    uuid = node.gpus.readings()[0].uuid
    node.emulator.fail("nvmlGpuInstanceCreateComputeInstance", NvmlReturn.INSUFFICIENT_RESOURCES)
    with pytest.raises(DynamigError, match="compute instance"):
        node.prepare("a", node.device("3g.40gb", 0))
    assert node.gpus.instances(uuid) == ()
    node.prepare("a", node.device("3g.40gb", 0))
    assert [str(i.placement) for i in node.gpus.instances(uuid)] == ["{0}:4"]


def destroy_that_is_in_use_stays_retiring_until_it_succeeds(node: EmulatedNode) -> None:
    node.prepare("a", node.device("1g.10gb", 0))
    node.emulator.fail("nvmlGpuInstanceDestroy", NvmlReturn.IN_USE, count=2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            node.service.endings.unprepare("a")
        assert node.journal.records()["a"].state is State.RETIRING
    node.service.endings.unprepare("a")
    assert node.gpus.instances(node.gpus.readings()[0].uuid) == ()


def a_call_that_hangs_costs_its_gpu_only(node: EmulatedNode) -> None:
    node.gpus._deadline = 1.0
    node.emulator.hang("nvmlDeviceCreateGpuInstanceWithPlacement", gpu=0)
    with pytest.raises(Unavailable, match="no answer"):
        node.prepare("stuck", node.device("1g.10gb", 0, gpu=0))
    node.prepare("fine", node.device("1g.10gb", 0, gpu=1))
    with pytest.raises(Unavailable, match="hangs"):
        node.prepare("also-stuck", node.device("1g.10gb", 1, gpu=0))
    node.emulator.clear_faults()


def device_nodes_that_come_late_are_waited_for_by_the_kubelet(node: EmulatedNode) -> None:
    control = node.directory / "dev/nvidia-uvm"
    away = control.with_name("away")
    control.rename(away)
    with pytest.raises(Unavailable, match="nvidia-uvm") as caught:
        node.prepare("a", node.device("1g.10gb", 0))
    assert caught.value.code == "DEVICE_NODE_MISSING"
    assert node.gpus.instances(node.gpus.readings()[0].uuid) == ()
    away.rename(control)
    node.prepare("a", node.device("1g.10gb", 0))
    assert "/dev/nvidia-uvm" in node.nodes_of("a")


def the_driver_beside_slurm_keeps_a_map_lends_and_never_starts_without_its_section_while_lent(
    node: EmulatedNode,
) -> None:
    """The whole driver is put together; no API server and no kubelet are there. A driver that has never asked for the
    administrator's map lends nothing; one that has a map on disk needs neither."""
    with tempfile.TemporaryDirectory() as kubelet:  # a socket's path has to be short
        _lend_with_the_whole_driver(node, _with_slurm(node, Path(kubelet)))


def a_driver_whose_gpus_do_not_answer_is_not_ready_and_says_why(node: EmulatedNode) -> None:
    """The whole driver is put together; it is told that the kubelet and the API server have taken what it gave them."""
    for gpu in (0, 1):
        node.emulator.lose(gpu)
    with tempfile.TemporaryDirectory() as kubelet:  # a socket's path has to be short
        driver = Driver(_config(node, Path(kubelet)))
    assert status_body(driver)["whyNotReady"] == "not registered with the kubelet"
    driver._registered.set()
    assert status_body(driver)["whyNotReady"] == "slices not published yet"
    driver._published.set()
    for lost, ready in ((True, False), (False, True)):
        node.emulator.lose(1, lost=lost)
        driver._rescan()
        body = status_body(driver)
        assert (body["ready"], "no device to offer" in body["whyNotReady"]) == (ready, not ready)


def gpus_that_do_not_answer_are_told_and_offered_to_nobody(node: EmulatedNode) -> None:
    """Those that this driver has read, and those of which it only knows that Slurm gives them out."""
    uuids = [r.uuid for r in node.gpus.readings()]
    with tempfile.TemporaryDirectory() as kubelet:
        config = _with_slurm(node, Path(kubelet))
        config.state_dir.mkdir()
        MapFile(config.state_dir / "slurm-devices.json").write(DeviceMap(dict(enumerate(uuids)), Source.MINORS))
        node.emulator.lose(0)
        driver, _ = _started(config)
    assert _heard(driver) == {uuids[0]: "GPU_LOST"}
    node.emulator.lose(0, lost=False)
    node.emulator.lose(1)
    driver._rescan()
    assert _heard(driver) == {uuids[1]: "GPU_LOST"}
    assert _tainted(driver) == {uuids[1]}
    node.emulator.lose(1, lost=False)
    node.emulator.fail("nvmlDeviceGetCount_v2", NvmlReturn.UNKNOWN, count=0)
    driver._rescan()
    assert _heard(driver) == {}, "each answers for itself"
    node.emulator.lose(0)
    driver._rescan()
    assert _heard(driver) == {uuids[0]: "GPU_LOST"}


def a_gpu_that_never_answered_is_told_by_nvmls_index_until_it_does(node: EmulatedNode) -> None:
    """Slurm gives it out, and nothing of it is known: no map is made in which the others would have its index."""
    uuids = [r.uuid for r in node.gpus.readings()]
    node.emulator.lose(0)
    with tempfile.TemporaryDirectory() as kubelet:
        driver = Driver(_with_slurm(node, Path(kubelet)))
    assert driver._lender is not None
    driver._lender._maps._given = lambda: Given("slurm-n1")  # as the API server would say that there is no ConfigMap
    driver._rescan()
    assert (_heard(driver), driver._lender.device_map) == ({"NVML index 0": "GPU_LOST"}, None)
    assert [o.reading.uuid for o in driver.status().offers] == uuids[1:]
    node.emulator.fail("nvmlDeviceGetCount_v2", NvmlReturn.UNKNOWN, count=0)
    driver._rescan()
    assert (_heard(driver), driver._lender.device_map) == ({"NVML": "NVML_UNAVAILABLE"}, None)
    node.emulator.clear_faults()
    node.emulator.lose(0, lost=False)
    driver._lender._maps._given = _no_answer
    driver._rescan()
    assert (_heard(driver), driver._lender.device_map) == ({}, None)
    node.emulator.lose(0)
    driver._lender._maps._given = lambda: Given("slurm-n1")
    driver._rescan()
    assert _heard(driver) == {uuids[0]: "GPU_LOST"}, "it has answered once: nothing of it need be guessed"
    assert driver._lender.device_map == DeviceMap(dict(enumerate(uuids)), Source.MINORS, "slurm-n1")


def _no_answer() -> Given:
    raise Unavailable("MAP_UNKNOWN", "no API server")


def _heard(driver: Driver) -> dict[str, str]:
    """Of GPUs that are out of use."""
    return {gpu: outage.heard for gpu, outage in driver.status().outages.items()}


def a_gpu_that_answers_again_is_watched_before_it_is_offered_through_restarts_too(node: EmulatedNode) -> None:
    with tempfile.TemporaryDirectory() as kubelet:
        config = _config(node, Path(kubelet), "watchSeconds: 3600")
    uuid = node.gpus.readings()[0].uuid
    driver = Driver(config)
    driver._rescan()
    for lost in (True, False):
        node.emulator.lose(0, lost=lost)
        driver._loops["lease"]._poked.clear()
        driver._rescan()
        assert driver._loops["lease"]._poked.is_set(), "the bridge learns it at once"
        assert [driver.status().outages[uuid].silent, _tainted(driver)] == [lost, {uuid}]
        assert [uuid in line for line in plan_body(driver)["silent"]] == [True] * lost
    watched = driver.status().outages
    driver._loops["lease"]._poked.clear()
    driver._rescan()
    assert not driver._loops["lease"]._poked.is_set(), "nothing is new"
    driver._lock.close()
    driver = Driver(config)
    driver._rescan()
    assert (driver.status().outages, _tainted(driver)) == (watched, {uuid})
    driver._lock.close()
    driver = Driver(config.model_copy(update={"watch_seconds": 0}))
    driver._rescan()
    assert (driver.status().outages, _tainted(driver)) == ({}, set())


def what_a_reset_takes_is_missed_at_the_next_look_and_told(node: EmulatedNode) -> None:
    with tempfile.TemporaryDirectory() as kubelet:
        driver = Driver(_config(node, Path(kubelet)))
    driver._service._out = replace(driver._service._out, claims=node.claims)
    driver._settler._out = driver._service._out
    driver._rescan()
    ref = node.claims.put(claim_object("a", node.device("1g.10gb", 0)))
    driver._service.prepare(ref, deadline=time.monotonic() + 20)
    driver._rescan()
    assert not driver._loops["recover"]._poked.is_set(), "nothing is missed"
    node.emulator.reset(0)
    driver._rescan()
    assert driver._loops["recover"]._poked.is_set()
    driver._repair.run(driver._repair.plan().actions)
    driver._settler.step()
    (entry,) = node.claims.reported["a"]
    (condition,) = entry["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", names.INSTANCE_LOST)
    assert "this will not change by itself" in condition["message"]
    driver._loops["recover"]._poked.clear()
    driver._rescan()
    assert not driver._loops["recover"]._poked.is_set()


def _tainted(driver: Driver) -> set[GpuUuid]:
    """GPUs of which nothing is to be had."""
    return {o.reading.uuid for o in driver.status().offers if all(UNHEALTHY in d.taints for d in o.pool.devices)}


def a_gpu_that_hangs_when_it_is_opened_is_missing_alone(node: EmulatedNode) -> None:
    uuids = [r.uuid for r in node.gpus.readings()]
    node.emulator.hang("nvmlDeviceGetUUID", gpu=1)
    hasty = NvmlGpus(deadline=3.0)
    for _ in range(2):
        assert [r.uuid for r in hasty.readings()] == uuids[:1]
    node.emulator.clear_faults()


def a_claim_whose_record_was_lost_is_adopted_and_ends_like_any_other(node: EmulatedNode) -> None:
    """The whole driver is put together over claims in memory. Of what `node` has prepared its own journal has no more
    than a record that cannot be read."""
    uuid = node.gpus.readings()[0].uuid
    for uid, start in (("lost", 0), ("damaged", 3)):
        node.prepare(uid, node.device("1g.10gb", start))
    running = node.gpus.instances(uuid)
    with tempfile.TemporaryDirectory() as kubelet:  # a socket's path has to be short
        config = _config(node, Path(kubelet))
    damaged = config.state_dir / "claims/damaged.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"v": 1')
    driver = Driver(config)
    _adopt_with_the_whole_driver(driver, node)
    assert node.gpus.instances(uuid) == running
    driver._lock.close()
    driver = Driver(config)
    driver._rescan()
    assert driver.plan() == Plan((), {}, {})
    for uid in ("lost", "damaged"):
        driver._service.endings.unprepare(uid)
    assert node.gpus.instances(uuid) == ()
    assert [p.read_text() for p in damaged.parent.glob("*.damaged")] == ['{"v": 1']


def an_instance_that_its_one_compute_instance_does_not_fill_is_not_adopted(node: EmulatedNode) -> None:
    """`MIG 1c.3g.40gb` where we would have made `MIG 3g.40gb`. What we make is told from it on the double-memory 1g
    too, which has two compute instances of one slice."""
    uuid = node.gpus.readings()[0].uuid
    node.prepare("own", node.device("1g.20gb", 0))
    gi = node.emulator.foreign(0, "3g.40gb", 4, compute_instance=False)
    with pytest.raises(Refused, match="not made by dynamig"):
        node.prepare("lost", node.device("3g.40gb", 4))
    room = _fill(uuid, gi, slices=1)
    found = {i.placement.start: [c.fills for c in i.compute] for i in node.gpus.instances(uuid)}
    assert found == {0: [True], 4: [False]}
    with pytest.raises(Refused, match="leaves room") as told:
        node.service.adopt("lost")
    assert told.value.code == "NOT_ITS_OWN"
    node.gpus.destroy_compute_instance(uuid, GiId(gi), room)
    _fill(uuid, gi, slices=3)
    assert node.service.adopt("lost").fresh


def _fill(uuid: GpuUuid, gi: int, slices: int) -> CiId:
    handle = pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByUUID(uuid), gi)
    made = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, PIECES[slices])
    return CiId(int(pynvml.nvmlComputeInstanceGetInfo_v2(made).id))


def _adopt_with_the_whole_driver(driver: Driver, node: EmulatedNode) -> None:
    with pytest.raises(Unavailable) as told:
        driver.adopt("lost")
    assert told.value.code == "STARTING"
    driver._rescan()
    with pytest.raises(Unavailable) as told:
        driver.adopt("lost")
    assert told.value.code == "API_UNAVAILABLE"
    driver._service._out = replace(driver._service._out, claims=node.claims)
    driver._repair.run(driver._repair.plan(node.claims.held_on("n1")).actions)
    body = plan_body(driver)
    other, lost = sorted(body["quarantined"], key=len)
    assert lost.endswith("`dynamig driver adopt lost`")
    assert "1g.10gb on memory slice 3 of n1/gpu-0" in other
    assert other.endswith("left alone")
    (line,) = body["damaged"]
    assert "`dynamig driver adopt damaged`" in line
    assert not driver._loops["publish"]._poked.is_set()
    for wanted in ("ns/claim-lost", "damaged"):
        assert adopt_body(driver.adopt(wanted))["fresh"]
    assert driver._loops["publish"]._poked.is_set(), "what was foreign is offered again at once"
    driver._rescan()
    assert not any(plan_body(driver).values())
    assert not driver.status().foreign


def a_profile_that_cannot_be_used_is_warned_of_once_and_the_others_are_offered(node: EmulatedNode) -> None:
    with tempfile.TemporaryDirectory() as kubelet:
        driver = Driver(_config(node, Path(kubelet)))
    driver._rescan()
    whole = [gpu["devices"] for gpu in status_body(driver)["gpus"]]
    with capture_logs() as logs:
        for _ in range(2):
            node.emulator.fail("nvmlDeviceGetGpuInstancePossiblePlacements*", NvmlReturn.NOT_SUPPORTED, gpu=0)
            driver._rescan()
    assert [line["log_level"] for line in logs if line["event"] == "profiles_left_out"] == ["warning"]
    first, second = status_body(driver)["gpus"]
    assert first["leftOut"] == ["profile '1g.10gb' (ID 19) has no placement"]
    assert [first["devices"], second["devices"]] == [whole[0] - 7, whole[1]]
    driver._rescan()
    assert [gpu["leftOut"] for gpu in status_body(driver)["gpus"]] == [[], []]


def _lend_with_the_whole_driver(node: EmulatedNode, config: DriverConfig) -> None:
    uuids = [r.uuid for r in node.gpus.readings()]
    driver, lender = _started(config)
    with pytest.raises(Unavailable, match=names.GPU_MAP), lender.lending(Borrower(7, "s7", 0), [1], deadline=0):
        pass
    driver._lock.close()
    MapFile(config.state_dir / "slurm-devices.json").write(DeviceMap(dict(enumerate(uuids)), Source.MINORS))
    driver, lender = _started(config)
    status = status_body(driver)["slurm"]
    assert status["deviceMap"]["gpus"] == {str(i): uuid for i, uuid in enumerate(uuids)}
    assert all(MANAGED in d.taints for o in driver.status().offers for d in o.pool.devices)
    with lender.lending(Borrower(7, "s7", 0), [1], deadline=0) as loans:
        assert [loan.gpu for loan in loans] == [uuids[1]]
    assert node.gpus.reading(uuids[1]).mig_mode is MigMode.OFF
    (line,) = plan_body(driver)["lent"]
    assert line.startswith(f"{uuids[1]} to Slurm job 7, until its epilog gives it back: slurmctld has not been asked")
    assert [loan["why"] in line for loan in status_body(driver)["slurm"]["loans"]] == [True]
    assert set(driver.loan_asks()) == {"lend", "give-back", "map"}
    driver._lock.close()
    with pytest.raises(Refused, match=uuids[1]) as caught:
        Driver(config.model_copy(update={"slurm": None}))
    assert caught.value.code == "LOANS_LEFT"


def _started(config: DriverConfig) -> tuple[Driver, Lender]:
    driver = Driver(config)
    driver._rescan()
    assert driver._lender is not None
    driver._lender.open()
    return driver, driver._lender


def _with_slurm(node: EmulatedNode, kubelet: Path) -> DriverConfig:
    return _config(node, kubelet, "watchSeconds: 0\nslurm: {nodeName: slurm-n1, scontrol: /nonexistent/scontrol}")


def _config(node: EmulatedNode, kubelet: Path, more: str = "") -> DriverConfig:
    work = node.directory.parent
    kubeconfig = work / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    (work / "config.yaml").write_text(
        f"""
nodeName: n1
kubeconfig: {kubeconfig}
kubeletDir: {kubelet}
stateDir: {work}/state
cdiDir: {work}/driver-cdi
devRoot: {node.directory}
procRoot: {node.directory}/proc
sysRoot: {node.directory}/sys
{more}
"""
    )
    return load(work / "config.yaml")
