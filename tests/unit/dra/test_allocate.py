"""What the allocator chooses, case by case. Agreement with Kubernetes is shown in tests/integration/oracle."""

from __future__ import annotations

from itertools import permutations

import pytest

from dynamig.dra import Taint
from dynamig.dra.allocate import (
    Allocation,
    Claim,
    Constraint,
    DeviceClass,
    DeviceId,
    Mode,
    Occupancy,
    Policy,
    Refusal,
    Request,
    Toleration,
    allocate,
    best_node,
)
from tests.unit.dra.allocating import CLASSES, DRIVER, SAME_GPU, A, choice, claim, exactly, mig, node, wants
from tests.unit.mig.models import A30

BOTH = (Policy.FIRST_FIT, Policy.FEWEST_LOST)
FULL = DeviceId(DRIVER, "n1/gpu-0", "gpu-0")


def devices(answer: Allocation | Refusal) -> list[DeviceId]:
    assert isinstance(answer, Allocation), answer
    return [pick.device for picks in answer.picks for pick in picks]


def given(occupancy: Occupancy, *claims: Claim, policy: Policy = Policy.FEWEST_LOST) -> list[DeviceId]:
    return devices(allocate(occupancy, claims, CLASSES, policy))


def refused(occupancy: Occupancy, *claims: Claim, policy: Policy = Policy.FEWEST_LOST) -> Refusal:
    answer = allocate(occupancy, claims, CLASSES, policy)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("order", [*permutations(("4g.40gb", "2g.20gb", "1g.10gb"))])
def test_three_profiles_on_one_gpu_in_any_order(order: tuple[str, ...]) -> None:
    """Case C-55."""
    picked = given(node(gpus=4), wants(*order, same_gpu=True))
    assert set(picked) == {mig("4g.40gb", 0), mig("2g.20gb", 4), mig("1g.10gb", 6)}


def test_one_gpu_is_filled_before_the_next() -> None:
    """Case C-56: seven claims, one after the other, then one for a full GPU."""
    now = node(gpus=4)
    for _ in range(7):
        now = now.changed(hold=given(now, wants("1g.10gb")))
    assert {now.node.ids[i].pool for i in range(len(now.node.ids)) if now.held >> i & 1} == {"n1/gpu-0"}
    assert given(now, claim(exactly("r", device_class="gpu"))) == [DeviceId(DRIVER, "n1/gpu-1", "gpu-1")]


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('4Gi')) >= 0", "1g.10gb"),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('10Gi')) >= 0", "1g.20gb"),
        (f"device.capacity['{DRIVER}'].multiprocessors.asInteger() > 30", "2g.20gb"),
        (f"device.capacity['{DRIVER}'].multiprocessors.asInteger() > 100", "7g.80gb"),
    ],
)
def test_the_smallest_that_fits(policy: Policy, selector: str, expected: str) -> None:
    """Case C-57: requests by capacity only, with all sizes free."""
    (picked,) = given(node(gpus=2), claim(exactly("r", device_class="any", selectors=(selector,))), policy=policy)
    starts = {"1g.10gb": 6, "1g.20gb": 6, "2g.20gb": 4, "7g.80gb": 0}
    assert picked == mig(expected, starts[expected])


def test_the_policy_looks_at_what_is_taken() -> None:
    beside_4g = node(held=[mig("4g.40gb", 0)])
    assert given(beside_4g, wants("1g.10gb")) == [mig("1g.10gb", 6)]
    beside_1g = node(held=[mig("1g.10gb", 0)])
    assert given(beside_1g, wants("1g.10gb")) == [mig("1g.10gb", 1)]
    two_gpus = node(gpus=2, held=[mig("3g.40gb", 4, gpu=1)])
    assert given(two_gpus, wants("1g.10gb")) == [mig("1g.10gb", 0, gpu=1)], (
        "five are lost on either, the second is fuller"
    )


def test_demand_decides_what_is_a_loss() -> None:
    now = node(held=[mig("1g.10gb", 6)])
    plain = allocate(now, [wants("2g.20gb")], CLASSES)
    assert devices(plain) == [mig("2g.20gb", 4)]
    only_small = allocate(now, [wants("2g.20gb")], CLASSES, demand={"1g.20gb": 1})
    assert devices(only_small) == [mig("2g.20gb", 4)]
    assert isinstance(only_small, Allocation)
    assert only_small.score.lost == 1


@pytest.mark.parametrize("policy", BOTH)
def test_counters_of_what_is_held_are_gone(policy: Policy) -> None:
    assert refused(node(held=[mig("1g.10gb", 0)]), claim(exactly("r", device_class="gpu")), policy=policy)
    assert refused(node(held=[FULL]), wants("1g.10gb"), policy=policy)
    six_taken = node(held=[mig("1g.10gb", i) for i in range(6)])
    assert given(six_taken, wants("1g.10gb"), policy=policy) == [mig("1g.10gb", 6)]


@pytest.mark.parametrize("policy", BOTH)
def test_several_claims_share_what_there_is(policy: Policy) -> None:
    both = [wants("3g.40gb"), wants("3g.40gb")]
    assert len(set(given(node(), *both, policy=policy))) == 2
    answer = refused(node(), *both, wants("1g.10gb"), policy=policy)
    assert answer.code == "NO_ROOM"
    assert "together they do not fit" in answer.what


def test_it_goes_back_where_the_first_choice_blocks_a_later_request() -> None:
    """The 2g at 4 alone would be best, but then no 3g fits beside the 1g at 0."""
    picked = given(node(held=[mig("1g.10gb", 0)]), wants("2g.20gb", "3g.40gb"))
    assert picked == [mig("2g.20gb", 2), mig("3g.40gb", 4)]


def test_match_attribute_keeps_devices_on_one_gpu() -> None:
    halves = [mig("3g.40gb", 0, gpu=g) for g in (0, 1)]
    apart = given(node(gpus=2, held=halves), wants("3g.40gb", "3g.40gb"))
    assert {device.pool for device in apart} == {"n1/gpu-0", "n1/gpu-1"}
    answer = refused(node(gpus=2, held=halves), claim(exactly("r", "3g.40gb", 2), constraints=(SAME_GPU,)))
    assert "at most 1 agree in gpu.nvidia.com/parentUUID, 2 are free, 2 wanted" in answer.what


def test_a_constraint_concerns_only_the_requests_it_names() -> None:
    apart = Constraint(f"{DRIVER}/parentUUID", True, frozenset({"r0", "r1"}))
    requests = [exactly(f"r{i}", "1g.10gb") for i in range(3)]
    picked = given(node(gpus=2), claim(*requests, constraints=(apart,)))
    assert picked[0].pool != picked[1].pool
    assert isinstance(allocate(node(), [claim(*requests, constraints=(apart,))], CLASSES), Refusal), (
        "one GPU cannot serve two that must differ"
    )


def test_an_attribute_that_nobody_has_fits_nothing() -> None:
    other = Constraint("example.com/parentUUID", False, frozenset())
    answer = refused(node(), claim(exactly("r", "1g.10gb"), constraints=(other,)))
    assert "7 lack an attribute of a constraint" in answer.what


def test_taints_and_tolerations() -> None:
    gone = Taint("dynamig.io/slurm", "", "NoSchedule")
    taints = {device.device: (gone,) for device in (mig("1g.10gb", i) for i in range(7))}
    tainted = node(taints=taints)
    answer = refused(tainted, wants("1g.10gb"))
    assert "7 have taints that are not tolerated (dynamig.io/slurm)" in answer.what
    tolerant = exactly("r", "1g.10gb", tolerations=(Toleration("dynamig.io/slurm", "Exists", "", ""),))
    assert given(tainted, claim(tolerant)) == [mig("1g.10gb", 6)]
    informational = {device: (Taint("k", "", "None"),) for device in taints}
    assert given(node(taints=informational), wants("1g.10gb")) == [mig("1g.10gb", 6)]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("k", "Equal", "v", ""), True),
        (Toleration("k", "", "v", ""), True),
        (Toleration("k", "Equal", "w", ""), False),
        (Toleration("", "Exists", "", ""), True),
        (Toleration("k", "Exists", "", "NoExecute"), False),
        (Toleration("other", "Exists", "", ""), False),
        (Toleration("k", "Unknown", "v", ""), False),
    ],
)
def test_what_a_toleration_tolerates(toleration: Toleration, tolerated: bool) -> None:
    tainted = node(taints={"gpu-0": (Taint("k", "v", "NoSchedule"),)})
    answer = allocate(tainted, [claim(exactly("r", device_class="gpu", tolerations=(toleration,)))], CLASSES)
    assert isinstance(answer, Allocation) is tolerated


@pytest.mark.parametrize("policy", BOTH)
def test_all_devices(policy: Policy) -> None:
    def everything(selector: str) -> Claim:
        return claim(exactly("r", device_class="any", selectors=(selector,), mode=Mode.ALL))

    wholes = everything(f"{A}.type == 'gpu'")
    assert len(given(node(gpus=3), wholes, policy=policy)) == 3
    assert refused(node(gpus=3, held=[mig("1g.10gb", 0, gpu=1)]), wholes, policy=policy).code == "NO_ROOM"
    assert refused(node(), everything(f"{A}.type == 'mig'"), policy=policy).code == "NO_ROOM", "they overlap"
    assert refused(node(), everything(f"{A}.type == 'x'"), policy=policy).code == "NO_MATCH", "there are none"


def test_alternatives_in_their_order() -> None:
    request = Request("r", (choice("r/big", "4g.40gb"), choice("r/small", "1g.10gb")))
    answer = allocate(node(), [claim(request)], CLASSES)
    assert isinstance(answer, Allocation)
    assert [pick.request for pick in answer.picks[0]] == ["r/big"]
    assert given(node(held=[mig("1g.10gb", 0)]), claim(request)) == [mig("1g.10gb", 1)]


def test_admin_access_takes_what_is_held_but_not_its_counters() -> None:
    """Kubernetes charges admin access for counters all the same, so a partition in use is refused."""
    admin = claim(exactly("r", "1g.10gb", admin=True))
    assert refused(node(held=[mig("1g.10gb", i) for i in range(7)]), admin)
    answer = allocate(node(held=[mig("1g.10gb", 6)]), [admin], CLASSES)
    assert isinstance(answer, Allocation)
    assert answer.picks[0][0].admin
    assert answer.held == frozenset()


def test_one_overdrawn_gpu_closes_its_pool_only() -> None:
    overlapping = [mig("1g.10gb", 0), mig("3g.40gb", 0)]
    assert refused(node(held=overlapping), wants("1g.10gb"))
    assert given(node(gpus=2, held=overlapping), wants("1g.10gb")) == [mig("1g.10gb", 6, gpu=1)]


def test_a_device_that_is_not_published_any_more_holds_nothing() -> None:
    gone = DeviceId(DRIVER, "n1/gpu-0", "gpu-0-mig-0")
    elsewhere = DeviceId(DRIVER, "n2/gpu-0", "gpu-0")
    now = node(held=[gone, elsewhere])
    assert now.node.unpublished([gone, elsewhere, FULL]) == (gone,)
    assert given(now, claim(exactly("r", device_class="gpu"))) == [FULL]


def test_no_requests_need_nothing() -> None:
    assert given(node(held=[FULL]), claim()) == []


def test_a_selector_that_fails() -> None:
    broken = claim(exactly("r", selectors=(f"{A}.driverVersion == '580'",)))
    for policy in BOTH:
        answer = refused(node(), broken, policy=policy)
        assert answer.code == "SELECTOR_FAILS"
        assert "claim d/c, request r, on device gpu.nvidia.com/n1/gpu-0/" in answer.what
    assert refused(node(), broken, policy=Policy.FIRST_FIT).fatal
    full = node(held=[FULL])
    assert refused(full, broken, policy=Policy.FIRST_FIT).fatal, "the partitions are free by name"


def test_a_failing_device_is_passed_over_by_fewest_lost_and_fatal_to_first_fit() -> None:
    """`profile` is missing on full GPUs only, which come last."""
    unchecked = claim(exactly("r", device_class="any", selectors=(f"{A}.profile == '7g.80gb'",)))
    assert given(node(), unchecked) == [mig("7g.80gb", 0)]
    assert given(node(), unchecked, policy=Policy.FIRST_FIT) == [mig("7g.80gb", 0)]
    busy = node(gpus=2, held=[mig("1g.10gb", 0)])
    assert given(busy, unchecked) == [mig("7g.80gb", 0, gpu=1)]
    assert refused(busy, unchecked, policy=Policy.FIRST_FIT).fatal, "gpu-0 itself is reached first"


def test_refusals_that_no_room_could_cure() -> None:
    unknown = claim(exactly("r", device_class="nosuch"))
    assert refused(node(), unknown).code == "UNKNOWN_CLASS"
    assert "DeviceClass nosuch" in refused(node(), unknown).what
    assert refused(node(), claim(exactly("r", "1g.10gb", 33))).code == "TOO_MANY_DEVICES"
    apart = Constraint(f"{DRIVER}/parentUUID", False, frozenset())
    both = claim(
        exactly("r", device_class="gpu", mode=Mode.ALL),
        constraints=(Constraint(f"{DRIVER}/uuid", False, frozenset()),),
    )
    answer = refused(node(gpus=2), both, policy=Policy.FIRST_FIT)
    assert (answer.code, answer.fatal) == ("CONSTRAINT_BREAKS_ALL", True)
    assert refused(node(gpus=2), both).code == "NO_ROOM"
    assert apart.concerns(exactly("r"), choice("r"))


def test_a_refusal_says_what_is_in_the_way() -> None:
    busy = node(gpus=2, held=[mig("1g.10gb", i, gpu=0) for i in range(7)] + [mig("4g.40gb", 0, gpu=1)])
    answer = refused(busy, claim(exactly("r", "1g.10gb", 4)))
    assert answer.code == "NO_ROOM"
    assert answer.what == (
        "claim d/c, request r: 14 of 52 devices of n1 match r, 7 are held, 4 overlap what is held, 3 are free, 4 wanted"
    )
    assert answer.next_step


PROFILES = "profile 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (f"{A}.profile == '1g.10g'", f"devices of class mig have {PROFILES}"),
        (
            f"device.capacity['{DRIVER}'].memory.compareTo(quantity('200Gi')) >= 0",
            f"devices of class mig have memory 9984Mi, 20096Mi, 40448Mi, 81152Mi; {PROFILES}",
        ),
        (f"{A}.profile == '3g.40gb' && {A}.productName == 'A100'", "have productName NVIDIA H100 80GB HBM3; profile"),
        ("device.driver == 'amd.com'", f"devices of class mig have {PROFILES}"),
    ],
)
@pytest.mark.parametrize("held", [[], [FULL]])
def test_a_selector_that_no_device_matches_is_quoted_beside_what_there_is(
    selector: str, said: str, held: list[DeviceId]
) -> None:
    """Whether the devices are free does not matter."""
    answer = refused(node(held=held), claim(exactly("r", selectors=("true", selector))))
    assert answer.code == "NO_MATCH"
    assert f"claim d/c, request r: no device matches the selector `{selector}`; " in answer.what
    assert said in answer.what
    assert "correct the selector" in answer.next_step


def test_what_matches_and_is_taken_is_another_answer() -> None:
    answer = refused(node(held=[FULL]), wants("1g.10gb"))
    assert answer.code == "NO_ROOM"
    assert "7 of 26 devices of n1 match r0" in answer.what
    assert "wait" in answer.next_step


def test_a_class_that_no_device_is_of_says_so() -> None:
    classes = {**CLASSES, "b200": DeviceClass("b200", (f"{A}.productName == 'NVIDIA B200'",))}
    answer = allocate(node(), [claim(exactly("r", device_class="b200"))], classes)
    assert isinstance(answer, Refusal)
    assert answer.code == "NO_MATCH"
    assert f"no device is of class b200: its selector `{A}.productName == 'NVIDIA B200'` matches none" in answer.what


def test_what_is_quoted_and_named_is_bounded() -> None:
    serial = f"{A}.uuid in [{', '.join(repr('GPU-' + str(n) * 20) for n in range(3, 40))}]"
    answer = refused(node(gpus=16), claim(exactly("r", device_class="gpu", selectors=(serial,))))
    assert "uuid GPU-n1-0, GPU-n1-1, GPU-n1-10" in answer.what
    assert "and 4 more" in answer.what
    assert len(answer.what) < 600


def test_of_many_nodes_the_one_that_has_such_devices_is_told_of() -> None:
    nodes = [node(name="a", geometry=A30), node(name="b", held=[DeviceId(DRIVER, "b/gpu-0", "gpu-0")])]
    answer = best_node(nodes, [wants("1g.10gb")], CLASSES)
    assert isinstance(answer, Refusal)
    assert (answer.code, "NO_MATCH on 1, NO_ROOM on 1" in answer.what) == ("NO_ROOM", True)


def test_the_limit_of_the_search_is_an_answer() -> None:
    answer = allocate(node(), [wants("1g.10gb", "1g.10gb")], CLASSES, limit=1)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.fatal) == ("SEARCH_LIMIT", False)


@pytest.mark.parametrize("requests", [True, False])
def test_the_worst_case_of_kubernetes_is_cheap(requests: bool) -> None:
    """Eight GPUs with six free memory slices each, seven 1g on one of them: 31,297 steps and 4.9 s there."""
    full = node(gpus=8, held=[mig("1g.10gb", 6, gpu=g) for g in range(8)])
    seven = claim(*(exactly(f"r{i}", "1g.10gb") for i in range(7)), constraints=(SAME_GPU,))
    one = claim(exactly("r", "1g.10gb", 7), constraints=(SAME_GPU,))
    for policy in BOTH:
        answer = allocate(full, [seven if requests else one], CLASSES, policy, limit=100)
        assert isinstance(answer, Refusal)
        assert answer.code == "NO_ROOM"


def test_answers_are_kept_and_still_name_the_claim() -> None:
    now = node(held=[FULL])
    for name in ("d/a", "d/b", "d/a"):
        assert refused(now, claim(exactly("r", "1g.10gb"), name=name)).what.startswith(f"claim {name}, request r:")
        broken = claim(exactly("r", selectors=(f"{A}.index == 1",)), name=name)
        assert refused(now, broken, policy=Policy.FIRST_FIT).what.startswith(f"claim {name}, request r, on device")


def test_the_best_of_many_nodes() -> None:
    empty, opened = node(name="n0"), node(name="n1", held=[mig("3g.40gb", 4)])
    best = best_node([empty, opened], [wants("1g.10gb")], CLASSES)
    assert isinstance(best, Allocation)
    assert best.node == "n1"
    first = best_node([empty, opened], [wants("1g.10gb")], CLASSES, Policy.FIRST_FIT)
    assert isinstance(first, Allocation)
    assert first.node == "n0"
    equal = best_node([node(name="b"), node(name="a")], [wants("1g.10gb")], CLASSES)
    assert isinstance(equal, Allocation)
    assert equal.node == "b"


def test_no_node_at_all() -> None:
    answer = best_node([node(name=n, geometry=A30) for n in ("a", "b")], [wants("1g.10gb")], CLASSES)
    assert isinstance(answer, Refusal)
    assert answer.what.startswith("none of 2 nodes (NO_MATCH on 2); claim d/c, request r0:")
    assert isinstance(best_node([], [wants("1g.10gb")], CLASSES), Refusal)
    fatal = best_node([node(name="a"), node(name="b")], [claim(exactly("r", device_class="x"))], CLASSES, BOTH[0])
    assert isinstance(fatal, Refusal)
    assert fatal.fatal
