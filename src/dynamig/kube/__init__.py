"""The Kubernetes API and the kubelet's plugin protocol: the only room that knows their clients and errors."""

from dynamig.kube.claims import ApiClaims
from dynamig.kube.client import connect
from dynamig.kube.gpu_map import ApiGpuMap
from dynamig.kube.leases import ApiLease
from dynamig.kube.slices import ApiSlices

__all__ = ["ApiClaims", "ApiGpuMap", "ApiLease", "ApiSlices", "connect"]
