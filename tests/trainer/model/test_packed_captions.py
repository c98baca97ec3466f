"""Captions go through fast blocks packed: by their true lengths, without padding, and the numbers stay."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="triton is not installed on this platform")

from triton.runtime import interpreter

from tests.trainer.blocks_for_tests import small_tiles
from tests.trainer.distributed.test_step_cost import clips
from tests.trainer.shards_for_tests import TINY
from trainer.distributed import parallelize
from trainer.distributed.mesh import ALONE
from trainer.model import rng, routing
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.kernels import apply, flash_attention
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import STDiT3, STDiT3Config, lengths_read
from trainer.recipe import recipe as recipes
from trainer.training.micro_batch import StepContext, add_gradient

WIDTH, CHANNELS, LENGTH = 40, 8, 18  # a caption of 18 is more than a tile
CONFIG = STDiT3Config(
    hidden_size=WIDTH,
    depth=1,
    num_heads=1,
    caption_channels=CHANNELS,
    model_max_length=LENGTH,
    input_sq_size=32,
)
OWN, DROPS = (
    [2, 0, 3, LENGTH],
    [False, False, True, False],
)  # a short caption, an empty, a dropped, a full one


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)
    monkeypatch.setattr(flash_attention, "tiles", lambda *_: ((16, 16, 4, 1), (16, 16, 4, 1), (16, 16, 4, 1)))


def _model(config: STDiT3Config, *, is_fast: bool) -> STDiT3:
    model = STDiT3(config, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # none zero: every gradient is
            parameter.add_(0.1 * rng.normal(0, "init", 0, [name], tuple(parameter.shape))[0])
    if is_fast:
        apply.apply_fused_blocks(model)
    return model


def _given(config: STDiT3Config) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(2)
    features = WIDTH if config.skip_y_embedder else CHANNELS
    clock = torch.full((4,), 24.0)
    return {
        "x": torch.randn(4, 4, 1, 2, 4, generator=draw),
        "timestep": torch.tensor([100.0, 300.0, 500.0, 900.0]),
        "y": torch.randn(4, 1, LENGTH, features, generator=draw),
        "mask": torch.arange(LENGTH)[None] < torch.tensor(OWN)[:, None],
        **dict.fromkeys(("fps", "height", "width"), clock),
    }


def _outcome(model: STDiT3, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the output and the gradients of all that is trained."""
    out = model(**given)
    out.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach(), **gradients}


def _assert_near(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert ours.keys() == wanted.keys()
    for name, value in wanted.items():
        off, most = float((ours[name] - value).norm()), float(value.norm())
        assert off < 1e-5 * most + 1e-7, f"{name}: {off:.1e} of {most:.1e}"


@pytest.mark.parametrize(
    ("settings", "drops"),
    [
        ({}, DROPS),
        ({"freeze_y_embedder": True}, None),
        ({"skip_y_embedder": True}, DROPS),
        ({"reproduce": ("cut_null_caption",)}, DROPS),
    ],
    ids=["dropped", "frozen_none_dropped", "projected_ahead", "cut_null_caption"],
)
def test_packed_captions_give_the_output_and_all_gradients_of_the_readable_form(
    settings: dict[str, Any], drops: list[bool] | None
) -> None:
    config = CONFIG.model_copy(update=settings)
    given = _given(config)
    if drops:
        given["drop_caption"] = torch.tensor(drops)
    lengths = lengths_read(config, OWN, drops)
    readable = _outcome(_model(config, is_fast=False), given)
    packed = _outcome(_model(config, is_fast=True), {**given, "text_lengths": lengths})

    _assert_near(packed, readable)
    has_projection = any(name.startswith("y_embedder") for name in packed)
    assert has_projection == (not config.freeze_y_embedder and (not config.skip_y_embedder or bool(drops)))


def test_padded_captions_go_the_same_way_where_the_host_does_not_know_their_lengths() -> None:
    given = {**_given(CONFIG), "drop_caption": torch.tensor(DROPS)}
    model = _model(CONFIG, is_fast=True)
    with torch.no_grad():
        packed = model(**given, text_lengths=lengths_read(CONFIG, OWN, DROPS))
        torch.testing.assert_close(model(**given), packed, rtol=1e-5, atol=1e-5)
        # One row of a mask stands for all, and a caption stored short leaves room for the null caption.
        short = {**given, "mask": given["mask"][:1, :3], "y": given["y"][:, :, :3]}
        shorter = lengths_read(CONFIG, [2] * 4, DROPS)
        torch.testing.assert_close(model(**short), model(**short, text_lengths=shorter), rtol=1e-5, atol=1e-5)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the shapes of all products of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[tuple[int, ...], ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm"):
            self.shapes.append(tuple(tuple(part.shape) for part in args[-2:]))
        return func(*args, **(kwargs or {}))


def test_padding_is_neither_projected_nor_has_it_keys_and_values_nor_gradients() -> None:
    lengths = lengths_read(CONFIG, OWN, DROPS)
    rows, blocks = sum(lengths), 2
    assert rows == 2 + 1 + LENGTH + LENGTH < 4 * LENGTH
    model = _model(CONFIG, is_fast=True)
    given = {**_given(CONFIG), "drop_caption": torch.tensor(DROPS), "text_lengths": lengths}
    with Products() as seen:
        _outcome(model, given)

    assert seen.shapes.count(((rows, CHANNELS), (CHANNELS, WIDTH))) == 1  # y_proj.fc1
    assert seen.shapes.count(((rows, WIDTH), (WIDTH, 2 * WIDTH))) == blocks
    assert seen.shapes.count(((2 * WIDTH, rows), (rows, WIDTH))) == blocks  # the weight's gradient
    assert seen.shapes.count(((rows, 2 * WIDTH), (2 * WIDTH, WIDTH))) == blocks  # the text's
    assert not any(4 * LENGTH in shape for product in seen.shapes for shape in product)


def test_packing_asks_the_device_for_nothing() -> None:
    # Tensors on the meta device have no values: an `.item()`, or a shape that depends on one, would raise.
    for config in (CONFIG, CONFIG.model_copy(update={"skip_y_embedder": True})):
        given = _given(config)
        with torch.device("meta"):
            model, y, drop = STDiT3(config), given["y"].to("meta"), torch.empty(4, dtype=torch.bool)
        text, captions = apply.fast_caption(model, y, None, drop, lengths_read(config, OWN, DROPS))
        assert text.shape == (39, WIDTH)
        assert captions is not None
        assert (captions.longest, captions.has_gaps) == (LENGTH, False)


def _built(model: STDiT3, given: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return what Triton would build for a forward and backward pass: it looks at these facts of a launch.

    No kernel runs, so the numbers are what memory held; the launches do not depend on them.
    """
    found: set[str] = set()

    def fact(value: object) -> object:
        if isinstance(value, Tensor):
            return value.dtype, value.data_ptr() % 16 == 0
        if type(value) is int:
            return value == 1 or (value % 16 == 0, value.bit_length() > 31)
        return value

    def watched(self: Any, *given: object, **named: object) -> None:
        constants = {
            name: value for name, value in named.items() if name.isupper() or name.startswith("num_")
        }
        rest = [fact(value) for value in (*given, *(v for n, v in named.items() if n not in constants))]
        found.add(f"{self.fn.__name__} {constants} {rest}")

    with monkeypatch.context() as patched:
        patched.setattr(interpreter.GridExecutor, "__call__", watched)
        _outcome(model, given)
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are watched in Triton's interpreter")
def test_captions_of_other_lengths_need_no_kernel_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG.model_copy(update={"hidden_size": 48})  # a multiple of 16, as the published widths are
    model, given = _model(config, is_fast=True), _given(config)

    def built(*lengths: int) -> set[str]:
        mask = torch.arange(LENGTH)[None] < torch.tensor(lengths)[:, None]
        return _built(model, {**given, "mask": mask, "text_lengths": lengths}, monkeypatch)

    longest = {
        apply.fast_caption(model, given["y"], None, None, own)[1].longest for own in ((1,) * 4, (9,) * 4)
    }
    assert longest == {LENGTH}, "by it the backward pass of attention is cut into parts"
    usual = built(5, 8, 11, 3)
    assert len(usual) > 15
    for lengths in ((1, 1, 1, 1), (4, 4, 4, 4), (18, 18, 18, 18), (17, 16, 16, 16)):
        assert built(*lengths) == usual, f"captions of {lengths} tokens"


def test_a_copy_of_a_fast_model_packs_with_its_own_weights() -> None:
    # As training in bfloat16 does: it computes in a copy of the model.
    copied = copy.deepcopy(_model(CONFIG, is_fast=True))
    with torch.no_grad():
        for parameter in copied.y_embedder.parameters():
            parameter.zero_()
        text, _ = copied._caption(_given(CONFIG)["y"], None, None, (1, 2, 3, 4))
    assert text.shape == (10, WIDTH)
    assert not text.any()


@pytest.mark.parametrize("lengths", [(1, 2, 3), (1, 2, 3, 0), (1, 2, 3, LENGTH + 1)], ids=str)
def test_lengths_that_the_text_does_not_have_are_refused(lengths: tuple[int, ...]) -> None:
    given = {**_given(CONFIG), "text_lengths": lengths}
    with pytest.raises(ValueError, match=r"must be 4 numbers from 1 to 18"):
        _model(CONFIG, is_fast=True)(**given)


@pytest.mark.parametrize("reproduce", ["[]", "[cut_null_caption]"])
def test_a_step_gives_the_lengths_that_its_masks_and_drops_have(reproduce: str) -> None:
    recipe = recipes.load(TINY, ("stages.0.caption_dropout=0.5", f"model.reproduce={reproduce}"))
    model = STDiT3(recipe.model)
    context = StepContext(
        recipe=recipe,
        world=ALONE,
        layout=parallelize.parallelize_model(model, recipe.parallel, ALONE, torch.float32),
        video=video_encoder(recipe.video_encoder),
        text=text_encoder(recipe.text_encoder),
    )
    seen: list[dict[str, Any]] = []
    context.layout.compute.register_forward_pre_hook(
        lambda _, args, keywords: seen.append(keywords), with_kwargs=True
    )
    add_gradient(context, recipe.stages[0], clips(recipe, 16, False), step=3, num_clips=16)

    (reported,) = seen
    assert 0 < int(reported["drop_caption"].sum()) < 16
    _, mask = model._caption(reported["y"], reported["mask"], reported["drop_caption"])
    assert mask is not None
    assert reported["text_lengths"] == tuple(mask.sum((1, 2, 3)).tolist())
    assert len(set(reported["text_lengths"])) > 2


def test_fast_blocks_route_the_tubes_that_readable_blocks_route() -> None:
    config = CONFIG.model_copy(update={"depth": 3})
    given = {name: value[[0, 3]] for name, value in _given(config).items()}  # Triton's interpreter is slow
    given["x"] = torch.randn(2, 4, 2, 4, 4, generator=torch.Generator().manual_seed(3))
    spec = RoutingSpec(share=0.5, pairs=(1, 1))
    given |= routing.conditions(spec, given["x"], (1, 2, 2), seed=1, step=2, clip_ids=["a", "d"])
    outs, gradients = [], []
    for is_fast in (False, True):
        model = _model(config, is_fast=is_fast)
        out = model(**given)
        out.square().mean().backward()
        outs.append(out.detach())
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)
