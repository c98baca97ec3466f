"""The flow's own ground: formulas, and a velocity whose path is known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.model import rectified_flow


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_noise_is_at_1000_and_data_at_0() -> None:
    data, noise = torch.randn(2, 2, 4, 3, 2, 2)
    assert torch.equal(rectified_flow.add_noise(data, noise, column(0, 0)), data)
    assert torch.equal(rectified_flow.add_noise(data, noise, column(1000, 1000)), noise)
    half = rectified_flow.add_noise(data, noise, column(500, 250))
    torch.testing.assert_close(half[1], 0.75 * data[1] + 0.25 * noise[1])


def test_given_frames_stay_clean_and_carry_no_loss() -> None:
    data, noise = torch.randn(2, 2, 4, 3, 2, 2)
    x_mask = torch.tensor([[True, False, True], [False, False, True]])
    x_t = rectified_flow.noised_input(data, noise, column(300, 700), x_mask)
    assert torch.equal(x_t[0, :, 1], data[0, :, 1])
    assert torch.equal(x_t[1, :, :2], data[1, :, :2])
    output = torch.cat([data - noise, torch.randn_like(data)], dim=1)
    output[0, :, 1] += 5
    output[1, :, 2] += 2  # the only frame of the second that counts
    losses = rectified_flow.velocity_loss(output, data, noise, x_mask)
    torch.testing.assert_close(losses, column(0, 4), atol=1e-5, rtol=0)


def test_the_loss_is_the_mean_over_generated_frames() -> None:
    data, noise, prediction = torch.randn(3, 2, 4, 5, 2, 3)
    x_mask = torch.rand(2, 5) > 0.4
    x_mask[:, 0] = True
    losses = rectified_flow.velocity_loss(prediction, data, noise, x_mask)
    for row in range(2):
        error = (prediction - (data - noise))[row][:, x_mask[row]].square().mean()
        torch.testing.assert_close(losses[row], error)
    everything = torch.ones(2, 5, dtype=torch.bool)
    torch.testing.assert_close(
        rectified_flow.velocity_loss(prediction, data, noise, everything),
        rectified_flow.velocity_loss(prediction, data, noise),
    )


def test_a_sample_with_every_frame_given_has_loss_0_not_nan() -> None:
    data, noise = torch.randn(2, 1, 4, 3, 2, 2)
    losses = rectified_flow.velocity_loss(data, data, noise, torch.zeros(1, 3, dtype=torch.bool))
    assert losses.tolist() == [0.0]


def test_the_loss_is_float32_whatever_comes_in() -> None:
    data, noise = torch.randn(2, 1, 4, 3, 2, 2).bfloat16()
    assert rectified_flow.velocity_loss(data, data, noise).dtype == torch.float32
    assert rectified_flow.noised_input(data, noise, column(10)).dtype == torch.float32


def test_timesteps_follow_their_distribution() -> None:
    normal = rectified_flow.draw_timesteps(column(0, 1, -1))
    torch.testing.assert_close(normal, 1000 * torch.sigmoid(column(0, 1, -1)))
    torch.testing.assert_close(rectified_flow.shift_timesteps(column(500), column(3.0)), column(750))
    unshifted = rectified_flow.shift_ratio(column(720), column(1280), column(51), scale=None)
    torch.testing.assert_close(rectified_flow.shift_timesteps(normal, unshifted), normal)


def test_frames_are_counted_as_published_where_that_is_defined() -> None:
    frames = {1: 1, 2: 1, 4: 1, 5: 2, 16: 4, 17: 5, 18: 5, 33: 5, 34: 10, 51: 15, 102: 30, 408: 120}
    counted = rectified_flow.effective_frames(torch.tensor(list(frames), dtype=torch.float32))
    assert counted.tolist() == list(frames.values())


def test_known_ratios_of_the_shift() -> None:
    ratio = rectified_flow.shift_ratio(
        column(144, 360, 720, 720), column(256, 640, 1280, 1280), column(1, 51, 102, 408)
    )
    torch.testing.assert_close(ratio, column(0.375, 3.631, 10.270, 20.54), rtol=2e-4, atol=0)
    torch.testing.assert_close(
        rectified_flow.shift_timesteps(column(500), ratio[2:3]), column(911), rtol=1e-3, atol=0
    )


def test_each_sample_has_its_own_ratio() -> None:
    mixed = rectified_flow.shift_ratio(column(240, 240), column(426, 426), column(1, 51))
    alone = [rectified_flow.shift_ratio(column(240), column(426), column(n)) for n in (1, 51)]
    torch.testing.assert_close(mixed, torch.cat(alone))


@settings(max_examples=100, deadline=None)
@given(
    height=st.integers(8, 2880),
    width=st.integers(8, 5760),
    num_frames=st.integers(1, 900),
    timestep=st.floats(0, 1000),
)
def test_no_clip_makes_the_shift_leave_its_range(
    height: int, width: int, num_frames: int, timestep: float
) -> None:
    ratio = rectified_flow.shift_ratio(column(height), column(width), column(num_frames))
    shifted = float(rectified_flow.shift_timesteps(column(timestep), ratio))
    assert 0 <= shifted <= 1000 * (1 + 1e-5)
    assert (shifted == 0) == (timestep == 0) or timestep < 1e-30


def straight(data: Tensor) -> rectified_flow.Velocity:
    """The velocity of the flow whose data is the one latent `data`."""

    def velocity(x: Tensor, timesteps: Tensor, x_mask: Tensor | None) -> Tensor:
        tau = (timesteps / 1000)[:, None, None, None, None]
        return (data - x) / tau

    return velocity


@pytest.mark.parametrize("steps", [1, 3, 30])
def test_sampling_a_known_velocity_arrives_at_the_data(steps: int) -> None:
    data, noise = torch.randn(2, 2, 4, 5, 3, 3)
    timesteps = rectified_flow.sampling_timesteps(steps, column(1.0, 3.6))
    assert timesteps.shape == (steps, 2)
    out = rectified_flow.sample(straight(data), noise, timesteps)
    torch.testing.assert_close(out, data, atol=1e-5, rtol=0)


def test_conditioning_keeps_edits_and_generates() -> None:
    data, noise, start = torch.randn(3, 1, 4, 4, 3, 3)
    edit = torch.tensor([[0.0, 1.0, 0.5, 0.25]])
    reference = torch.where(edit[:, None, :, None, None] < 1, torch.full_like(start, 7.0), start)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def velocity(x: Tensor, timesteps: Tensor, x_mask: Tensor | None) -> Tensor:
        assert x_mask is not None
        seen.append((x, timesteps, x_mask))
        return straight(data)(x, timesteps, x_mask)

    timesteps = rectified_flow.sampling_timesteps(20, column(1.0))
    out = rectified_flow.sample(velocity, reference, timesteps, edit=edit, noise=noise)
    assert torch.equal(out[:, :, 0], reference[:, :, 0])
    torch.testing.assert_close(out[:, :, 1:], data[:, :, 1:], atol=1e-5, rtol=0)
    for x, now, x_mask in seen:
        assert x_mask[0].tolist() == [False, True, bool(now <= 500), bool(now <= 250)]
        for frame, ratio in ((2, 500), (3, 250)):
            if now > ratio:
                assert torch.equal(x[:, :, frame], reference[:, :, frame])
            elif now == ratio:
                level = (1 - now / 1000) * reference + now / 1000 * noise
                torch.testing.assert_close(x[:, :, frame], level[:, :, frame])


def test_frames_to_generate_move_although_a_shift_rounds_above_1000() -> None:
    data, start = torch.randn(2, 1, 4, 2, 3, 3)
    timesteps = rectified_flow.sampling_timesteps(4, column(1.0)) * 1.0000002
    out = rectified_flow.sample(straight(data), start, timesteps, edit=torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(out[:, :, 0], data[:, :, 0], atol=1e-5, rtol=0)


def test_an_edit_ratio_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="ratios between 0 and 1, which need `noise`"):
        rectified_flow.sample(
            straight(torch.zeros(1)),
            torch.zeros(1, 4, 2, 2, 2),
            rectified_flow.sampling_timesteps(2, column(1.0)),
            edit=torch.tensor([[1.0, 0.5]]),
        )


def test_guidance_leads_from_the_null_caption_over_the_prompt() -> None:
    calls: list[dict[str, Tensor]] = []

    def model(x: Tensor, timesteps: Tensor, y: Tensor, **conditions: Tensor) -> Tensor:
        calls.append({"x": x, "y": y, **conditions})
        level = y.mean(dim=(1, 2, 3))[:, None, None, None, None]
        return torch.cat([x + level, torch.full_like(x, 9.0)], dim=1)

    y, null = torch.full((2, 1, 3, 4), 5.0), torch.full((1, 1, 6, 4), 1.0)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    x, t = torch.randn(2, 4, 2, 3, 3), column(500, 500)
    conditions = {"fps": column(24, 24)}

    cut = rectified_flow.guided(model, y, mask, null, scale=3.0, cut_null_caption=True, conditions=conditions)
    torch.testing.assert_close(cut(x, t, None), x + 1 + 3 * 4)
    assert calls[-1]["mask"].tolist() == [[1, 1, 0], [1, 0, 0]] * 2
    assert calls[-1]["y"].shape == (4, 1, 3, 4)

    whole = rectified_flow.guided(model, y, mask, null, scale=3.0, conditions=conditions)
    whole(x, t, torch.tensor([[True, False], [True, True]]))
    assert calls[-1]["mask"].sum(1).tolist() == [2, 1, 6, 6]
    assert calls[-1]["x_mask"].tolist() == [[True, False], [True, True]] * 2

    alone = rectified_flow.guided(model, y, mask, null, scale=1.0, conditions=conditions)
    torch.testing.assert_close(alone(x, t, None), x + 5)
    assert len(calls[-1]["x"]) == 2
