"""One node: its folder, and containerd and kubelet inside its machine.

    nodes/<n>/kubelet/  cdi/  run/  log/     kubelet's root, CDI specifications, sockets, logs of pods
              emulator/  dynamig/  lib/      emulated GPUs, the driver's state, the emulated NVML library
              containerd/  cni/  rootfs/     state of the container engine, CNI configuration, the machine's writes

The folder has the same path inside the machine and on the host, so that a driver outside and a kubelet inside agree
on every path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from lab import pki
from lab.cgroups import parent_path
from lab.daemons import KUBE, Artifacts, Daemon, api, machine
from lab.probes import ContainerdProbe, KubeletProbe
from lab.spec import LabSpec, Layout

FOLDERS = ("kubelet", "cdi", "run", "log", "dynamig", "lib", "containerd", "cni")
PYTHON = (Path(__file__).resolve().parents[1], Path(sys.base_prefix))
"""The repository and what runs it: for the `dynamig` that Slurm's prolog calls inside a node's machine."""

PAUSE_IMAGE = "lab.local/pause:1"


def containerd_socket(layout: Layout, node: str) -> Path:
    return layout.node(node) / "run/containerd.sock"


def files(layout: Layout, spec: LabSpec, node: str) -> dict[Path, str]:
    """Configuration of the node's daemons."""
    folder = layout.node(node)
    return {
        folder / "cni/10-lab.conflist": cni_config(spec.pod_subnet(node)),
        folder / "containerd.toml": containerd_config(folder),
        folder / "kubelet.yaml": kubelet_config(layout, spec, node),
    }


def cni_config(subnet: str) -> str:
    """A veth pair per pod. Addresses are kept on the machine's tmpfs: they end with it, as the pods do."""
    ipam = {
        "type": "host-local",
        "subnet": subnet,
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": [plugin]}, indent=2) + "\n"


def containerd_config(folder: Path) -> str:
    """restrict_oom_score_adj: runc may not lower the score below ours without CAP_SYS_RESOURCE, and dies trying."""
    return f"""version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{folder}/run/containerd.sock"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "{folder}/cni"
    bin_dirs = ["/usr/lib/cni"]
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
"""


def kubelet_config(layout: Layout, spec: LabSpec, node: str) -> str:
    folder, keys = layout.node(node), pki.node_folder(layout, node)
    index = spec.index(node)
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": spec.ports.kubelet(index),
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": spec.ports.kubelet_health(index),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{keys}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{keys}/kubelet-serving.crt",
            "tlsPrivateKeyFile": f"{keys}/kubelet-serving.key",
            "containerRuntimeEndpoint": f"unix://{containerd_socket(layout, node)}",
            "podLogsDir": f"{folder}/log/pods",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": parent_path(layout, node),
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,  # the host's packet filter is not ours
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": "4s",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 99,
            "imageGCLowThresholdPercent": 98,
            "resolvConf": "",
        }
    )


def daemons(layout: Layout, spec: LabSpec, node: str, artifacts: Artifacts) -> tuple[Daemon, ...]:
    folder = layout.node(node)
    gpus = spec.nodes[spec.index(node)].gpu_count
    return (
        machine(layout, node, artifacts, gpus, PYTHON if spec.lends else ()),
        _containerd(layout, node, folder),
        _kubelet(layout, spec, node, folder),
    )


def _containerd(layout: Layout, node: str, folder: Path) -> Daemon:
    config = folder / "containerd.toml"
    return Daemon(
        name=f"containerd-{node}",
        argv=("/usr/bin/containerd", "--config", str(config)),
        probe=ContainerdProbe(containerd_socket(layout, node)),
        machine=node,
        files=(config, folder / "cni/10-lab.conflist"),
    )


def _kubelet(layout: Layout, spec: LabSpec, node: str, folder: Path) -> Daemon:
    config, index = folder / "kubelet.yaml", spec.index(node)
    flags = (
        f"--config={config}",
        f"--kubeconfig={folder}/kubelet.kubeconfig",
        f"--root-dir={folder}/kubelet",
        f"--hostname-override={node}",
        "--v=2",
    )
    return Daemon(
        name=f"kubelet-{node}",
        argv=(f"{KUBE}/kubelet", *flags),
        probe=KubeletProbe(spec.ports.kubelet_health(index), api(layout, spec), node),
        machine=node,
        needs=frozenset({f"images-{node}", "kube-apiserver"}),
        files=(config, folder / "kubelet.kubeconfig"),
        ports=(spec.ports.kubelet(index), spec.ports.kubelet_health(index)),
        ready_s=120,
    )
