"""Ids of GPU instances: what is known of them before they exist.

The id is the kernel's swizzle id: it tells how large a share of the GPU the instance has, and nothing about where
that share lies (open-gpu-kernel-modules, kmigmgrSwizzIdToSpan; public outputs show every order of positions).
"""

from __future__ import annotations

from dynamig.mig.geometry import Geometry
from dynamig.mig.ids import GiId, GiProfileId


def possible_ids(geometry: Geometry, profile: GiProfileId) -> tuple[GiId, ...]:
    """The ids that an instance of the profile can have: 0 the whole GPU, 1-2 halves, 3-6 quarters, 7-14 eighths.

    As many ids as such instances lie side by side, rounded up to a power of two.
    Raises: Refused UNKNOWN_PROFILE if the GPU does not list it.
    """
    side_by_side = geometry.memory_slices // geometry.profile(profile).size
    pieces = 1 << (side_by_side - 1).bit_length()
    return tuple(GiId(number) for number in range(pieces - 1, 2 * pieces - 1))
