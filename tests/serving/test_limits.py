"""What tenants share: budgets, and turns that end when others wait."""

import asyncio
import time

import pytest

from mimonets.serving.errors import RefusedError, RequestError
from mimonets.serving.limits import Budget, Turns


def test_a_budget_is_shared_and_a_quota_replaces_the_share():
    budget = Budget("files", "open", 10, 0.5, {"small": 2})
    budget.add("a", 5)
    with pytest.raises(RefusedError, match="5 files open; its limit is 5") as caught:
        budget.check("a", 1)
    assert (caught.value.status, caught.value.retry_after) == (429, 1.0)
    budget.check("a", 5, besides=5)  # the only request of its tenant may be larger
    with pytest.raises(RefusedError, match="3 files in one request; the quota is 2") as caught:
        budget.check("small", 3)
    assert caught.value.retry_after is None, "to wait would not help"
    budget.add("small", 2)
    with pytest.raises(RefusedError, match="its quota is 2"):
        budget.check("small", 1)
    with pytest.raises(RefusedError, match="7 files are open"):
        budget.check("b", 4)
    budget.add("a", -5)
    budget.check("b", 8)


def test_whoever_stalls_loses_its_turn_when_others_wait_and_only_then():
    async def main():
        turns, ended = Turns(2, patience=0.2), []

        async def stall(name):
            try:
                async with turns.take(name):
                    await asyncio.sleep(0.6)
                ended.append(f"{name} done")
            except RefusedError:
                ended.append(name)

        stalling = [asyncio.create_task(stall(name)) for name in ("first", "second")]
        await asyncio.sleep(0.3)  # longer than its patience, but nobody waited
        started = time.monotonic()
        async with turns.take("third"):
            assert 0.1 < time.monotonic() - started < 0.3
            assert ended == ["first"]
        await asyncio.gather(*stalling)
        assert ended == ["first", "second done"]

    asyncio.run(main())


def test_a_long_line_of_those_who_stall_is_gone_within_seconds():
    async def main():
        turns = Turns(4, share=0.5, patience=1.0)

        async def stall():
            with pytest.raises(RefusedError):
                async with turns.take("bad"):
                    await asyncio.sleep(60)

        stalling = [asyncio.create_task(stall()) for _ in range(100)]
        await asyncio.sleep(0)
        started = time.monotonic()
        async with turns.take("good"):
            assert time.monotonic() - started < 0.5, "half of the turns are not for one tenant"
        async with turns.take("bad"):
            assert time.monotonic() - started < 10  # 1 + 1/2 + ... + 1/50 s, not 50
        for one in stalling:
            one.cancel()
        await asyncio.gather(*stalling, return_exceptions=True)
        async with turns.take("bad"), turns.take("bad"), turns.take("good"), turns.take("good"):
            pass  # every turn came back

    asyncio.run(main())


def test_a_turn_that_does_not_come_in_time_is_504():
    async def main():
        turns = Turns(1)
        async with turns.take("a"):
            with pytest.raises(RequestError) as caught:
                async with turns.take("b", 0.05):
                    pass
            assert caught.value.status == 504
        async with turns.take("b", 0.05):
            pass

    asyncio.run(main())
