"""GPU models as data: keys, what is missing, what contradicts itself, ways to cut an instance."""

import os
from pathlib import Path

import pytest
import yaml

from dynamig.errors import Refused
from dynamig.testing.emulator import load_geometry, model_key

COMPLETE = {
    *("a30-24gb", "a100-40gb", "a100-80gb", "h100-80gb-sxm5", "h100-80gb-pcie", "h100-nvl-94gb"),
    *("h100-96gb-on-gh200", "h200-141gb-sxm", "b200-180gb"),
}


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("H100 80GB SXM5", "h100-80gb-sxm5"),
        ("A100 40GB (SXM4, PCIe)", "a100-40gb"),
        ("GH200 144G HBM3e", "gh200-144g-hbm3e"),
        ("RTX PRO 6000 / Max-Q", "rtx-pro-6000-max-q"),
    ],
)
def test_a_key_is_the_model_up_to_the_parenthesis(model: str, key: str) -> None:
    assert model_key(model) == key


def test_the_shipped_file_has_nine_complete_models() -> None:
    catalog = load_geometry()
    assert set(catalog.models) == COMPLETE
    assert all(catalog.incomplete.values())


def test_limits_are_there_only_with_the_source_that_tells_them() -> None:
    shipped = yaml.safe_load((Path(__file__).parents[3] / "src/dynamig/testing/geometry.yaml").read_text())
    with_limits = [gpu for gpu in shipped["gpus"] if gpu.keys() & {"power_limit_watts", "max_clocks_mhz"}]
    assert len(with_limits) == 8
    assert all(gpu["power_and_clocks_source"] for gpu in with_limits)


def test_an_incomplete_model_is_refused_with_its_missing_fields() -> None:
    with pytest.raises(Refused, match="INCOMPLETE_MODEL") as refused:
        load_geometry().model("a800-40gb")
    assert "device_memory_mib" in refused.value.what
    assert "every profile's gi_profile_id" in refused.value.what


def test_an_unknown_model_is_refused_with_the_complete_ones() -> None:
    with pytest.raises(Refused, match="UNKNOWN_MODEL") as refused:
        load_geometry().model("h100")
    assert all(key in refused.value.next_step for key in COMPLETE)


@pytest.mark.parametrize(
    ("profile", "cuts"),
    [
        ("3g.40gb", {(0, 1, 16, 3), (1, 2, 32, 1), (2, 3, 60, 1)}),
        ("4g.40gb", {(0, 1, 16, 4), (1, 2, 32, 2), (3, 4, 64, 1)}),
        ("7g.80gb", {(0, 1, 16, 7), (1, 2, 32, 3), (2, 3, 48, 2), (3, 4, 64, 1), (4, 7, 132, 1)}),
        ("1g.10gb", {(0, 1, 16, 1)}),
        ("1g.20gb", {(0, 1, 16, 1), (7, 1, 26, 1)}),
        ("2g.20gb", {(0, 1, 16, 2), (1, 2, 32, 1), (7, 1, 26, 1)}),
    ],
)
def test_ways_to_cut_an_instance(profile: str, cuts: set[tuple[int, int, int, int]]) -> None:
    found = load_geometry().model("h100-80gb-sxm5").profile(profile).compute_profiles
    assert {(c.id, c.compute_slices, c.multiprocessors, c.max_instances) for c in found} == cuts


def test_without_more_multiprocessors_double_memory_has_one_way() -> None:
    found = load_geometry().model("a100-80gb").profile("1g.20gb").compute_profiles
    assert [c.id for c in found] == [0]


def changed(tmp_path: Path, **fields: object) -> Path:
    shipped = yaml.safe_load((Path(__file__).parents[3] / "src/dynamig/testing/geometry.yaml").read_text())
    entry = next(gpu for gpu in shipped["gpus"] if gpu["model"] == "A30 24GB")
    for path, value in fields.items():
        where, *rest = path.split("__")
        if rest:
            entry["profiles"][int(where.removeprefix("profile"))][rest[0]] = value
        else:
            entry[where] = value
    (tmp_path / "geometry.yaml").write_text(yaml.safe_dump({"gpus": [entry]}))
    return tmp_path / "geometry.yaml"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"profile1__gi_profile_id": 14}, "profile id 14 appears twice"),
        ({"profile1__name": "1g.6gb"}, "profile name 1g.6gb appears twice"),
        ({"profile0__placements": {"starts": [0, 4], "size": 1}}, "1g.6gb: placement 4:1 leaves the GPU"),
        ({"profile0__placements": {"starts": [0, 1, 1], "size": 1}}, "1g.6gb: a placement is listed twice"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 14, "max_instances": 1, "starts": [0, 7]}
        ]}, "1g.6gb: compute profile 0: placement 7:1 leaves the GPU instance"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 14, "max_instances": 1, "starts": [0, 0]}
        ]}, "1g.6gb: compute profile 0: a placement is listed twice"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 14, "max_instances": 2, "starts": [0]}
        ]}, "1g.6gb: compute profile 0: 2 instances, of which 1 fit beside one another"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": n, "id": 0, "compute_slices": 1, "sms": 14, "max_instances": 1, "starts": [0]}
            for n in (0, 1)
        ]}, "1g.6gb: two compute profiles have the id 0"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": n, "compute_slices": 1, "sms": 14, "max_instances": 1, "starts": [0]}
            for n in (0, 1)
        ]}, "1g.6gb: two compute profiles have the NVML constant 0"),
        ({"profile0__name": "5"}, "the name 5 would be taken for an id"),
        ({"pci_devices": [{"id": "0x12341002"}]}, "pci_devices: 0x12341002 is none of NVIDIA's"),
        ({"total_compute_slices": 2}, "4g.24gb: 1 x 4 compute slices, of the GPU's 2"),
        ({"total_compute_slices": 2}, "1g.6gb: 4 x 1 compute slices, of the GPU's 2"),
        ({"device_memory_mib": 5000}, "1g.6gb: 4 x 5952 MiB, of the GPU's 5000"),
        ({"device_sms": 55}, "1g.6gb: 4 x 14 multiprocessors, of the GPU's 55"),
        ({"profile1__max_instances": 0}, "1g.6gb+me: max_instances 0 is a profile that nobody can use"),
        ({"profile0__memory_slices": 2}, "1g.6gb: 2 memory slices, but placements of 1"),
        ({"profile0__name": "1g\n.6gb"}, "the name '1g\\n.6gb' has a character that cannot be printed"),
        ({"nvidia_smi_names": ["NVIDIA\tA30"]}, "the name 'NVIDIA\\tA30' has a character that cannot be printed"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 14, "max_instances": 1, "starts": [0]},
            {"nvml_profile": 1, "id": 1, "compute_slices": 1, "sms": 15, "max_instances": 1, "starts": [0]},
        ]}, "1g.6gb: compute profile 1: 15 multiprocessors, of 14"),
        ({"total_memory_slices": 65}, "slices must be 1..64"),
        ({"power_limit_watts": 69}, "power_limit_watts: an idle GPU already takes 70"),
        ({"model": "A" * 64}, "the key has more than 63 characters"),
        ({"nvidia_smi_names": ["A30" * 30]}, "a MIG device's name, has more than 95 bytes"),
        ({"profile0__name": "1g." + "6" * 90}, "a MIG device's name, has more than 95 bytes"),
        ({"profile0__compute_profiles": [
            {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 3, "max_instances": 1, "starts": [0]}
        ]}, "1g.6gb: no compute profile fills it"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_their_place(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match="BAD_GEOMETRY") as refused:
        load_geometry(changed(tmp_path, **fields))
    assert said in refused.value.what


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"total_memory_slices": "many"}, "a30-24gb: total_memory_slices: 'many' is not a whole number from 0"),
        ({"device_memory_mib": True}, "device_memory_mib: True is not a whole number"),
        ({"profiles": "none"}, "profiles: 'none' is not a list"),
        ({"power_limit_watts": 0.5}, "power_limit_watts: 0.5 is not a whole number"),
        ({"max_clocks_mhz": {"graphics": 0}}, "max_clocks_mhz.graphics: 0 is not a whole number from 1"),
        ({"profiles": ["1g.6gb"]}, "profiles[0]: '1g.6gb' is not a mapping"),
        ({"profile0__sms": 1.5}, "profiles[0].sms: 1.5 is not a whole number"),
        ({"profile0__placements": {"starts": 0, "size": 1}}, "profiles[0].placements.starts: 0 is not a list"),
        ({"profile0__placements": {"starts": [0], "size": 0}}, "placements.size: 0 is not a whole number from 1"),
        ({"profile0__nvml_profile": 3}, "profiles[0].nvml_profile: 3 is not a mapping"),
        ({"profile0__nvml_profile": {"value": 2**32 - 1}}, "value: 4294967295 is not a whole number from 0 to 4095"),
        (
            {"profile0__compute_profiles": [{"nvml_profile": 4096}]},
            "nvml_profile: 4096 is not a whole number from 0 to",
        ),
        ({"profile0__decoders": 2**31}, "decoders: 2147483648 is not a whole number from 0 to 4095"),
        ({"pci_devices": [{"id": "first"}]}, "pci_devices[0].id: 'first' is not a PCI id"),
        ({"nvidia_smi_names": "A30"}, "nvidia_smi_names: 'A30' is not a list"),
        ({"cuda_compute_capability": 9}, "cuda_compute_capability: 9 is not a version"),
        ({"mig_toggle_needs_reset": "maybe"}, "mig_toggle_needs_reset: 'maybe' is not true or false"),
        ({"profile0__compute_profiles": [{"starts": ["a"]}]}, "compute_profiles[0].starts[0]: 'a' is not"),
    ],
)
def test_a_field_of_another_kind_is_refused_with_its_place(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(Refused, match="BAD_GEOMETRY") as refused:
        load_geometry(changed(tmp_path, **fields))
    assert said in refused.value.what
    assert str(tmp_path / "geometry.yaml") in refused.value.what


def test_a_file_that_is_not_there_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file") as refused:
        load_geometry(tmp_path / "missing.yaml")
    assert refused.value.next_step == "name a file that can be read"


def test_the_example_of_the_readme_is_a_complete_model(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "emulator/README.md").read_text()
    (tmp_path / "g.yaml").write_text(readme.split("```yaml\n")[1].split("```")[0])
    catalog = load_geometry(tmp_path / "g.yaml")
    assert (set(catalog.models), catalog.incomplete) == ({"my-gpu-48gb"}, {})


def test_a_missing_field_makes_the_model_incomplete(tmp_path: Path) -> None:
    catalog = load_geometry(changed(tmp_path, device_sms=None, profile2__sms=None, architecture="Feynman"))
    assert catalog.incomplete == {"a30-24gb": ("device_sms", "cuda_compute_capability", "2g.12gb.sms")}


def test_a_stated_way_to_cut_an_instance_has_all_its_fields(tmp_path: Path) -> None:
    catalog = load_geometry(changed(tmp_path, profile0__compute_profiles=[{"starts": [0]}]))
    assert "1g.6gb.compute_profiles[0].sms" in catalog.incomplete["a30-24gb"]


@pytest.mark.parametrize("text", ["gpus: 3", "[]", "a: [", "gpus: [{}]"])
def test_what_is_no_geometry_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(Refused, match="BAD_GEOMETRY"):
        load_geometry(tmp_path / "x.yaml")


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """Also one of the same size, in the same instant of a coarse clock."""
    for slots in (3, 4, 3):
        path = changed(tmp_path, profile0__max_instances=slots)
        os.utime(path, (0, 0))
        assert load_geometry(path).models["a30-24gb"].profile("1g.6gb").max_instances == slots
