"""Of several exit codes the one that says most counts, whatever order the ranks end in."""

from itertools import combinations, permutations

import pytest

from trainer.cli import exit_codes
from trainer.cluster.launch import start_on_hosts

# Each says more than all behind it. A failure may be any other code, or a signal.
ORDER = (78, 77, 2, 1, 76, 75, 0)


@pytest.mark.parametrize(("more", "less"), list(combinations(ORDER, 2)))
def test_the_code_that_says_more_counts_in_either_order(more: int, less: int) -> None:
    for codes in permutations([more, less]):
        assert exit_codes.most_severe(codes) == more


def test_a_signal_is_a_failure_and_of_two_failures_the_first_counts() -> None:
    assert exit_codes.most_severe([76, -9]) == -9
    assert exit_codes.most_severe([77, -9]) == 77
    assert exit_codes.most_severe([-9, 3]) == -9
    assert exit_codes.most_severe([3, -9]) == 3


@pytest.mark.parametrize(("more", "less"), [(1, 76), (76, 75), (77, 2), (78, 77)])
def test_an_attempt_ends_with_the_code_that_says_more_and_not_with_that_of_a_rank_that_was_ended(
    more: int, less: int
) -> None:
    for codes in permutations([more, less]):
        ended = start_on_hosts.Ended(ranks_of={"a": range(3)}, names={"a": "a"}, failure="it ended", rank=0)
        ended.codes = {**dict(enumerate(codes)), 2: -15}
        assert ended.code == more
