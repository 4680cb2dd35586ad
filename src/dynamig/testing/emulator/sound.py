"""What in a node's files cannot have been written by us: numbers that lead out of an array, and texts that are none.

The library refuses the same before it follows a number (emulator/src/state.c, process.c); texts it only copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamig.testing.emulator import layout


def wrong_in_models(models: Sequence[layout.Model]) -> Iterator[str]:
    """`model 0 has 4000 profiles`, for each such thing."""
    for number, model in enumerate(models):
        if model.profile_count > layout.MAX_GI_PROFILES:
            yield f"model {number} has {model.profile_count} profiles"
            continue
        if model.memory_slices > layout.MAX_SLICES or model.compute_slices > layout.MAX_SLICES:
            yield f"model {number} has more than {layout.MAX_SLICES} slices"
        profiles = model.profiles[: model.profile_count]
        yield from _no_texts(f"model {number}", key=model.key, product=model.product)
        for profile in profiles:
            yield from _no_texts(f"model {number}, profile {profile.id}", name=profile.name)
            if profile.ci_profile_count > layout.MAX_CI_PROFILES:
                yield f"model {number}, profile {profile.id} can be cut in {profile.ci_profile_count} ways"
            if not 1 <= profile.memory_slices <= layout.MAX_SLICES:
                yield f"model {number}, profile {profile.id} has {profile.memory_slices} memory slices"


def wrong_in_node(head: layout.NodeHead, gpus: Sequence[layout.Gpu], models: Sequence[layout.Model]) -> Iterator[str]:
    """`GPU 1 is of model 7, of 1`, for each such thing."""
    yield from _no_texts("the head", driver_version=head.driver_version, boot_id=head.boot_id)
    for number, gpu in enumerate(gpus):
        yield from _no_texts(f"GPU {number}", uuid=gpu.uuid, bus_id=gpu.bus_id)
        if gpu.model >= len(models):
            yield f"GPU {number} is of model {gpu.model}, of {len(models)}"
        elif gpu.gi_count > layout.MAX_SLICES or gpu.ci_count > layout.MAX_SLICES:
            yield f"GPU {number} has {gpu.gi_count} GPU instances and {gpu.ci_count} compute instances"
        else:
            yield from _wrong_instances(f"GPU {number}", gpu, models[gpu.model])


def _wrong_instances(where: str, gpu: layout.Gpu, model: layout.Model) -> Iterator[str]:
    for gi in gpu.gis[: gpu.gi_count]:
        if gi.profile >= model.profile_count or gi.start >= layout.MAX_SLICES:
            yield f"{where}, GPU instance {gi.id}: profile {gi.profile} at {gi.start}"
    for ci in gpu.cis[: gpu.ci_count]:
        if ci.profile >= layout.MAX_CI_PROFILES or ci.start >= layout.MAX_SLICES:
            yield f"{where}, compute instance {ci.id}: profile {ci.profile} at {ci.start}"


def _no_texts(where: str, **texts: bytes) -> Iterator[str]:
    for what, text in texts.items():
        try:
            text.decode()
        except UnicodeDecodeError:
            yield f"{where}: {what} {text!r} is no text"
