"""Estimate of what missing answers cost, from the tokens and seconds of a few."""

from collections.abc import Sequence
from dataclasses import dataclass

from vidcurate.curation.captioning.answers import Answer
from vidcurate.errors import InputError

Price = tuple[float, float]  # per million tokens in and out, in any currency


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted cost of `num_answers` missing answers, measured on `num_measured`.

    `tokens_in` and `tokens_out` are None when the server counts no tokens, and `price` then, or without a
    price. `seconds` is for `concurrency` requests at once.
    """

    num_answers: int
    num_measured: int
    tokens_in: int | None
    tokens_out: int | None
    price: float | None
    seconds: float
    concurrency: int

    def text(self) -> str:
        """Return the estimate as one line."""
        minutes, seconds = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        parts = [f"estimate from {self.num_measured} answers: {self.num_answers:,} left"]
        if self.tokens_in is not None and self.tokens_out is not None:
            parts.append(f"{self.tokens_in:,} tokens in, {self.tokens_out:,} out")
        if self.price is not None:
            parts.append(f"price {self.price:,.4g}")
        parts.append(f"{hours}:{minutes:02d}:{seconds:02d} with {self.concurrency} at once")
        return ", ".join(parts)


def parse_price(text: str) -> Price:
    """Return the two prices of `IN,OUT`. Raises InputError."""
    try:
        price_in, price_out = (float(part) for part in text.split(","))
    except ValueError:
        price_in = price_out = -1.0
    if not (0 <= price_in < float("inf") and 0 <= price_out < float("inf")):
        raise InputError(
            f"--price-per-million-tokens {text}: give two prices, in and out, such as 0.15,0.60."
        )
    return price_in, price_out


def price_of(tokens_in: float, tokens_out: float, price: Price) -> float:
    """Return the price of these tokens."""
    return round((tokens_in * price[0] + tokens_out * price[1]) / 1e6, 6)


def estimate(
    measured: Sequence[Answer], num_answers: int, *, concurrency: int, price: Price | None
) -> Estimate | None:
    """Return the predicted cost of `num_answers` more answers like those measured; None without any."""
    if not measured:
        return None
    counted = [
        answer for answer in measured if answer.tokens_in is not None and answer.tokens_out is not None
    ]
    tokens_in = tokens_out = paid = None
    if counted:
        tokens_in = round(num_answers * sum(answer.tokens_in or 0 for answer in counted) / len(counted))
        tokens_out = round(num_answers * sum(answer.tokens_out or 0 for answer in counted) / len(counted))
        paid = None if price is None else price_of(tokens_in, tokens_out, price)
    mean_seconds = sum(answer.seconds for answer in measured) / len(measured)
    return Estimate(
        num_answers=num_answers,
        num_measured=len(measured),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        price=paid,
        seconds=round(mean_seconds * num_answers / min(concurrency, max(1, num_answers)), 3),
        concurrency=concurrency,
    )
