"""The model against a slow reference written out in full, and what must hold for every input."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.stdit import XL_2, STDiT3, STDiT3Config

TINY = STDiT3Config(hidden_size=32, depth=2, num_heads=4, caption_channels=12, model_max_length=6)


def filled(config: STDiT3Config = TINY, seed: int = 0) -> STDiT3:
    """Return a model none of whose parameters is zero, so that every path shows in the output."""
    model = STDiT3(config, seed)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name != "rope.freqs":
                tensor.copy_(torch.randn(tensor.shape, generator=source) * 0.15 + ("norm" in name))
    return model.eval()


def inputs(
    batch: int = 2, frames: int = 3, rows: int = 4, columns: int = 6, tokens: int = 6, seed: int = 1
) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(batch, 4, frames, rows, columns, generator=source),
        "timestep": torch.tensor([321.5, 871.25])[:batch],
        "y": torch.randn(batch, 1, tokens, 12, generator=source),
        "fps": torch.tensor([24.0, 30.0])[:batch],
        "height": torch.full((batch,), 144.0),
        "width": torch.full((batch,), 256.0),
    }


def reference(model: STDiT3, given: dict[str, Tensor], lengths: list[int], x_mask: Tensor) -> Tensor:
    """One sample and one token's frame at a time, plain loops, both modulation branches on activations."""
    p = dict(model.named_parameters())
    config = model.config
    width, heads, hd = config.hidden_size, config.num_heads, config.head_dim

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ p[f"{name}.weight"].flatten(1).T + p[f"{name}.bias"]

    def mlp(name: str, x: Tensor) -> Tensor:
        h = linear(f"{name}.fc1", x)
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        return linear(f"{name}.fc2", h)

    def modulate(z: Tensor, real: Tensor, still: Tensor, noisy: Tensor) -> Tensor:
        return torch.where(noisy, z * (1 + real[1]) + real[0], z * (1 + still[1]) + still[0])

    def embed(name: str, value: Tensor) -> Tensor:
        wave = torch.cat(
            [
                torch.tensor([math.cos(float(value) * 10000 ** (-i / 128)) for i in range(128)]),
                torch.tensor([math.sin(float(value) * 10000 ** (-i / 128)) for i in range(128)]),
            ]
        )
        return linear(f"{name}.mlp.2", F.silu(linear(f"{name}.mlp.0", wave)))

    def wave(place: float) -> Tensor:
        half = width // 2
        angle = torch.tensor([place * 10000 ** (-2 * i / half) for i in range(half // 2)])
        return torch.cat([angle.sin(), angle.cos()])

    def norm(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([((q[:, h] @ k[:, h].T) / hd**0.5).softmax(-1) @ v[:, h] for h in range(heads)], -1)

    def rotate(x: Tensor) -> Tensor:
        out = x.clone()
        for place in range(len(x)):
            for i in range(hd // 2):
                angle = place * 10000 ** (-2 * i / hd)
                a, b = x[place, :, 2 * i], x[place, :, 2 * i + 1]
                out[place, :, 2 * i] = a * math.cos(angle) - b * math.sin(angle)
                out[place, :, 2 * i + 1] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def self_attention(name: str, x: Tensor, *, turn: bool) -> Tensor:
        q, k, v = linear(f"{name}.qkv", x).reshape(len(x), 3, heads, hd).unbind(1)
        q, k = rms(q, p[f"{name}.q_norm.weight"]), rms(k, p[f"{name}.k_norm.weight"])
        return linear(f"{name}.proj", attend(rotate(q), rotate(k), v) if turn else attend(q, k, v))

    outputs = []
    for b in range(len(given["x"])):
        x = given["x"][b]
        channels, frames, height, columns = x.shape
        rows, cols = height // 2, columns // 2
        cells = x.reshape(channels, frames, rows, 2, cols, 2).permute(1, 2, 4, 0, 3, 5)
        tokens = linear("x_embedder.proj", cells.reshape(frames, rows * cols, -1))
        scale = math.sqrt(float(given["height"][0] * given["width"][0])) / config.input_sq_size
        base = round(math.sqrt(rows * cols))
        step = base / scale
        place = [
            torch.cat([wave(step * j / cols), wave(step * i / rows)])
            for i in range(rows)
            for j in range(cols)
        ]
        tokens = tokens + torch.stack(place)
        rate = embed("fps_embedder", given["fps"][b])
        clocks = [
            embed("t_embedder", given["timestep"][b]) + rate,
            embed("t_embedder", torch.tensor(0.0)) + rate,
        ]
        tables = [linear("t_block.1", F.silu(clock)).reshape(6, width) for clock in clocks]
        text = mlp("y_embedder.y_proj", given["y"][b, 0, : lengths[b]])
        noisy = x_mask[b][:, None, None]

        for depth in range(config.depth):
            for kind in ("spatial", "temporal"):
                name = f"{kind}_blocks.{depth}"
                real, still = ((p[f"{name}.scale_shift_table"] + table) for table in tables)

                h = modulate(norm(tokens), real[0:2], still[0:2], noisy)
                if kind == "spatial":
                    h = torch.stack([self_attention(f"{name}.attn", frame, turn=False) for frame in h])
                else:
                    h = torch.stack(
                        [self_attention(f"{name}.attn", place, turn=True) for place in h.unbind(1)], 1
                    )
                tokens = tokens + torch.where(noisy, real[2] * h, still[2] * h)
                q = linear(f"{name}.cross_attn.q_linear", tokens).reshape(-1, heads, hd)
                k, v = linear(f"{name}.cross_attn.kv_linear", text).reshape(-1, 2, heads, hd).unbind(1)
                crossed = linear(f"{name}.cross_attn.proj", attend(q, k, v))
                tokens = tokens + crossed.reshape(tokens.shape)
                h = mlp(f"{name}.mlp", modulate(norm(tokens), real[3:5], still[3:5], noisy))
                tokens = tokens + torch.where(noisy, real[5] * h, still[5] * h)

        shifts = [p["final_layer.scale_shift_table"] + clock for clock in clocks]
        h = norm(tokens) * (1 + shifts[0][1]) + shifts[0][0]
        h = torch.where(noisy, h, norm(h) * (1 + shifts[1][1]) + shifts[1][0])
        out = linear("final_layer.linear", h).reshape(frames, rows, cols, 2, 2, 2 * channels)
        outputs.append(out.permute(5, 0, 1, 3, 2, 4).reshape(2 * channels, frames, height, columns))
    return torch.stack(outputs)


def test_the_model_equals_a_slow_reading_of_the_architecture() -> None:
    model, given = filled(), inputs()
    lengths, x_mask = [6, 2], torch.tensor([[True, False, True], [False, True, True]])
    mask = torch.arange(6)[None] < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        out = model(**given, mask=mask, x_mask=x_mask)
        expected = reference(model, given, lengths, x_mask)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_frames_all_to_be_generated_are_the_same_as_no_frame_mask() -> None:
    model, given = filled(), inputs()
    with torch.no_grad():
        masked = model(**given, x_mask=torch.ones(2, 3, dtype=torch.bool))
        assert torch.equal(masked, model(**given))


def test_the_output_on_given_frames_is_all_that_double_modulation_changes() -> None:
    given, x_mask = inputs(), torch.tensor([[True, False, True], [False, True, True]])
    with torch.no_grad():
        kept = filled()(**given, x_mask=x_mask)
        once = filled(TINY.model_copy(update={"reproduce": ()}))(**given, x_mask=x_mask)
    where = x_mask[:, None, :, None, None].expand_as(kept)
    assert torch.equal(kept[where], once[where])
    assert not torch.allclose(kept[~where], once[~where], atol=0.01)


def test_a_masked_caption_equals_the_caption_cut_short() -> None:
    model, given = filled(), inputs()
    mask = (torch.arange(6) < 4)[None]  # one row, for both samples
    short = {**given, "y": given["y"][:, :, :4]}
    with torch.no_grad():
        torch.testing.assert_close(model(**given, mask=mask), model(**short), rtol=1e-5, atol=1e-5)


def test_a_caption_without_tokens_gives_numbers() -> None:
    given = inputs()
    with torch.no_grad():
        out = filled()(**given, mask=torch.zeros(2, 6, dtype=torch.int64))
    assert bool(out.isfinite().all())


def test_odd_sizes_are_padded_with_zeros_and_cropped() -> None:
    model, given = filled(), inputs(rows=3, columns=5)
    padded = {**given, "x": F.pad(given["x"], (0, 1, 0, 1))}
    with torch.no_grad():
        out = model(**given)
        assert out.shape == (2, 8, 3, 3, 5)
        assert torch.equal(out, model(**padded)[..., :3, :5])


def test_one_token_alone_reads_itself_and_every_parameter_has_a_gradient() -> None:
    attention = filled().temporal_blocks[0].attn
    x = torch.randn(5, 1, 32)
    q, k, v = attention.qkv(x).reshape(5, 1, 3, 4, 8).unbind(2)
    q, k = attention.q_norm(q), attention.k_norm(k)
    weights = torch.einsum("nqhd,nkhd->nhqk", q, k).softmax(-1)
    full = attention.proj(torch.einsum("nhqk,nkhd->nqhd", weights, v).flatten(2))
    alone = attention(x)
    torch.testing.assert_close(alone, full)
    expected = torch.autograd.grad(full.square().sum(), list(attention.parameters()))
    got = torch.autograd.grad(alone.square().sum(), list(attention.parameters()))
    for first, second in zip(got, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_an_image_and_a_video_give_gradients_to_the_same_parameters() -> None:
    found = []
    for frames in (1, 3):
        model = filled()
        model(**inputs(frames=frames)).square().mean().backward()
        found.append({name for name, p in model.named_parameters() if p.grad is not None})
    assert found[0] == found[1] == {name for name, _ in model.named_parameters()} - {"rope.freqs"}


def test_a_dropped_caption_is_the_null_caption_read_whole() -> None:
    model, given = filled(), inputs()
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    null = model.y_embedder.y_embedding
    swapped = given["y"].clone()
    swapped[0, 0] = null
    drop = torch.tensor([True, False])
    with torch.no_grad():
        whole = model(**{**given, "y": swapped}, mask=torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0]]))
        torch.testing.assert_close(model(**given, mask=mask, drop_caption=drop), whole, rtol=0, atol=1e-5)
        # Captions that were stored short leave room for it.
        short = {**given, "y": given["y"][:, :, :3]}
        torch.testing.assert_close(
            model(**short, mask=mask[:, :3], drop_caption=drop), whole, rtol=0, atol=1e-5
        )
        published = filled(TINY.model_copy(update={"reproduce": ("cut_null_caption",)}))
        cut = model(**{**given, "y": swapped}, mask=mask)
        torch.testing.assert_close(published(**given, mask=mask, drop_caption=drop), cut, rtol=0, atol=1e-5)
    assert not torch.allclose(whole[0], cut[0], atol=1e-3)


def test_projected_captions_give_the_same_output() -> None:
    model, given = filled(), inputs()
    skipping = filled(TINY.model_copy(update={"skip_y_embedder": True}))
    drop = torch.tensor([False, True])
    with torch.no_grad():
        projected = {**given, "y": model.y_embedder(given["y"])}
        torch.testing.assert_close(skipping(**projected), model(**given))
        torch.testing.assert_close(
            skipping(**projected, drop_caption=drop), model(**given, drop_caption=drop), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("fault", ["bf16_timesteps", "bf16_metadata", "bf16_rope", "bf16_position"])
def test_each_fault_is_a_switch_that_changes_the_output(fault: str) -> None:
    given = inputs(frames=12) | {"height": torch.tensor([925.0, 925.0]), "fps": torch.tensor([24.0, 23.976])}
    with torch.no_grad():
        exact = filled()(**given)
        rounded = filled(TINY.model_copy(update={"reproduce": (fault,)}))(**given)
    assert 1e-6 < float((exact - rounded).abs().max()) < 2.0


def test_casting_the_model_does_not_round_its_positions() -> None:
    model = filled()
    exact = model.rope(40), model.pos_embed(torch.zeros(1), 3, 5, torch.tensor(1e5))
    model = model.to(torch.bfloat16)
    again = model.rope(40), model.pos_embed(torch.zeros(1), 3, 5, torch.tensor(1e5))
    assert torch.equal(exact[1], again[1])
    assert all(torch.equal(first, second) for first, second in zip(exact[0], again[0], strict=True))


def test_nothing_in_the_forward_pass_asks_for_a_value() -> None:
    # Tensors on the meta device have none: an `.item()`, or a shape that depends on one, would raise.
    with torch.device("meta"):
        model = STDiT3(XL_2)
        out = model(
            torch.empty(2, 4, 15, 31, 53),
            torch.empty(2),
            torch.empty(2, 1, 200, 4096),
            mask=torch.empty(1, 200, dtype=torch.int64),
            x_mask=torch.empty(2, 15, dtype=torch.bool),
            fps=torch.empty(2),
            height=torch.empty(2),
            width=torch.empty(2),
            drop_caption=torch.empty(2, dtype=torch.bool),
        )
    assert out.shape == (2, 8, 15, 31, 53)
    assert out.dtype == torch.float32


def test_the_model_is_one_graph() -> None:
    model, given = filled(), inputs()
    mask, x_mask = torch.tensor([[1, 1, 1, 0, 0, 0]] * 2), torch.tensor([[True, False, True]] * 2)
    traced = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(
            traced(**given, mask=mask, x_mask=x_mask), model(**given, mask=mask, x_mask=x_mask)
        )


def test_rows_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="mask has 3 rows, which do not divide the batch of 2"):
        filled()(**inputs(), mask=torch.ones(3, 6))
