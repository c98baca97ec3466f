"""Token routing against the blocks taken one by one, and what a draw depends on."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.model.test_stdit import TINY, filled, inputs
from trainer.model import routing
from trainer.model.flops import flops_per_step, forward_flops
from trainer.model.routing import Router, RoutingSpec
from trainer.model.stdit import STDiT3

DEEP = TINY.model_copy(update={"depth": 4})
SPEC = RoutingSpec(share=0.5, pairs=(1, 2), dense_finish=0.25)
IDS = ["a", "b"]


def routed(given: dict[str, Tensor], spec: RoutingSpec | None = SPEC) -> dict[str, object]:
    return routing.conditions(spec, given["x"], (1, 2, 2), seed=3, step=7, clip_ids=IDS)


def by_hand(model: STDiT3, given: dict[str, Tensor], order: Tensor, kept: int) -> Tensor:
    """Return the output, with routed tubes cut out and put back by indexing clip by clip."""
    frames, skipped = 3, {}

    def cut(_: object, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tokens = arguments[0].unflatten(1, (frames, -1))
        skipped["all"] = tokens
        chosen = torch.stack([tokens[b][:, order[b, :kept]] for b in range(len(tokens))])
        return (chosen.flatten(1, 2), *arguments[1:])

    def put(_: object, arguments: object, output: Tensor) -> Tensor:
        whole, part = skipped["all"].clone(), output.unflatten(1, (frames, -1))
        for b in range(len(whole)):
            whole[b][:, order[b, :kept]] = part[b]
        return whole.flatten(1, 2)

    first = model.spatial_blocks[SPEC.pairs[0]].register_forward_pre_hook(cut)
    last = model.temporal_blocks[SPEC.pairs[1]].register_forward_hook(put)
    try:
        found: Tensor = model(**given)
    finally:
        first.remove()
        last.remove()
    return found


def test_kept_tubes_go_through_all_blocks_and_the_others_skip_the_pairs() -> None:
    model, given = filled(DEEP), inputs()
    route = routed(given)
    order = route["route_order"]
    assert isinstance(order, Tensor)
    assert route["route"] == (3, 1, 2)  # half of 2 x 3 places

    found = model(**given, **route)
    found.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected = by_hand(model, given, order, 3)
    expected.square().mean().backward()

    torch.testing.assert_close(found, expected)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, msg=name)
    assert not torch.allclose(found, model(**given), atol=1e-3)


def test_without_a_route_the_numbers_are_the_dense_ones_bit_for_bit() -> None:
    model, given = filled(DEEP), inputs()

    assert torch.equal(model(**given), model(**given, **routed(given, None)))
    one_place = inputs(rows=2, columns=2)
    assert routed(one_place) == {}  # nothing is left over to skip


def test_a_router_gives_every_token_back_and_its_gradient() -> None:
    order = routing.draw_order(5, 2, seed=1, step=2, clip_ids=IDS)
    tokens = torch.randn(2, 3 * 5, 4, dtype=torch.float64, requires_grad=True)

    def there_and_back(x: Tensor) -> Tensor:
        router = Router(order, (2, 0, 0), 3)
        return router.join(router.split(x) * 2)

    whole = there_and_back(tokens).detach().unflatten(1, (3, 5))
    plain = tokens.detach().unflatten(1, (3, 5))
    for b in range(2):
        kept, skipping = order[b, :2], order[b, 2:]
        assert torch.equal(whole[b][:, kept], 2 * plain[b][:, kept])
        assert torch.equal(whole[b][:, skipping], plain[b][:, skipping])
    assert torch.autograd.gradcheck(there_and_back, (tokens,))


def test_a_draw_belongs_to_seed_step_and_clip_alone() -> None:
    drawn = routing.draw_order(12, 5, seed=1, step=2, clip_ids=["a", "b", "c"])

    assert torch.equal(drawn[[2, 0]], routing.draw_order(12, 5, seed=1, step=2, clip_ids=["c", "a"]))
    assert not torch.equal(drawn, routing.draw_order(12, 5, seed=1, step=3, clip_ids=["a", "b", "c"]))
    assert not torch.equal(drawn, routing.draw_order(12, 5, seed=2, step=2, clip_ids=["a", "b", "c"]))
    assert len({tuple(row.tolist()) for row in drawn}) == 3
    for row in drawn:
        assert sorted(row.tolist()) == list(range(12))
        assert row[:5].tolist() == sorted(row[:5].tolist())
    # Kept here so that no library's shuffle can change a run: the draw is the rank of Philox's numbers.
    assert routing.draw_order(6, 3, seed=0, step=0, clip_ids=["x"]).tolist() == [DRAWN]


DRAWN = [0, 2, 5, 1, 3, 4]


def test_every_tube_is_kept_as_often_as_the_share_says() -> None:
    ids = [f"clip-{number}" for number in range(600)]
    kept = routing.draw_order(10, 4, seed=1, step=1, clip_ids=ids)[:, :4]

    assert torch.bincount(kept.flatten(), minlength=10) / 600 == pytest.approx(0.4, abs=0.08)


def test_the_finish_is_dense() -> None:
    assert [routing.at_step(SPEC, step, 8) for step in (0, 5, 6, 7)] == [SPEC, SPEC, None, None]
    assert routing.at_step(None, 0, 8) is None


@pytest.mark.parametrize("change", [{"pairs": (2, 1)}, {"pairs": (-1, 1)}, {"share": 1.0}, {"share": 0.0}])
def test_a_spec_that_routes_nothing_or_all_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RoutingSpec.model_validate({"share": 0.5, "pairs": (1, 2)} | change)


def test_routed_flops_are_those_that_torch_counts() -> None:
    model, given = filled(DEEP), inputs(batch=1)
    route = routing.conditions(SPEC, given["x"], (1, 2, 2), seed=3, step=7, clip_ids=IDS[:1])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(**given, **route)

    found = forward_flops(DEEP, 3, 4, 6, 6, SPEC)
    assert found == counter.get_total_flops()
    assert found < forward_flops(DEEP, 3, 4, 6, 6)
    assert flops_per_step(DEEP, [(3, 4, 6)] * 2, [6, 6], SPEC) == 6 * found
