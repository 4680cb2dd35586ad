"""The generated stubs beside the .proto files are what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dynamig.kube.proto
from dynamig.kube.proto import dra_v1_pb2, registration_v1_pb2

FOLDER = Path(dynamig.kube.proto.__file__).parent


def test_the_stubs_are_not_stale(tmp_path: Path) -> None:
    source = FOLDER.parents[2]
    protos = sorted(str(p.relative_to(source)) for p in FOLDER.glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *outputs, *protos], check=True, cwd=source
    )
    made = sorted((tmp_path / "dynamig/kube/proto").iterdir())
    assert len(made) == 3 * len(protos)
    for path in made:
        assert path.read_text() == (FOLDER / path.name).read_text(), f"run `make proto`: {path.name}"


def test_the_wire_names_are_the_kubelets() -> None:
    service = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]
    assert service.full_name == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert (
        registration_v1_pb2.DESCRIPTOR.services_by_name["Registration"].full_name == "pluginregistration.Registration"
    )
