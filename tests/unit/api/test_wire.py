import pytest

from fdl_api.wire import member_of, rank_uid


@pytest.mark.parametrize("member", ["6f1c", "box/7", ""])
def test_the_member_of_a_rank_is_found_in_its_uid(member: str) -> None:
    assert member_of(rank_uid(member, 12)) == member
