import asyncio

import pytest

from mimonets.loadtest.demo import DemoLoad


def test_two_changes_of_the_load_at_once_start_one_process(monkeypatch):
    started = []

    class Process:
        returncode, stdout = None, None

        class stdin:  # noqa: N801
            write = started.append

            async def drain():
                pass

    async def start(*arguments, **options):
        await asyncio.sleep(0.01)
        started.append("process")
        return Process()

    async def main():
        monkeypatch.setattr("asyncio.create_subprocess_exec", start)
        monkeypatch.setattr(DemoLoad, "_read", lambda self, process: asyncio.sleep(0))
        demo = DemoLoad("", "")
        await asyncio.gather(demo.set_rate(1.0), demo.set_rate(2.0))

    asyncio.run(main())
    assert started == ["process", b"1.0\n", b"2.0\n"]


def test_the_load_stops_when_no_page_is_left(monkeypatch):
    async def main():
        monkeypatch.setattr("mimonets.loadtest.demo.ABSENCE", 0.02)
        demo = DemoLoad("", "")
        demo.rate = 20.0
        with demo.watched():
            with demo.watched():
                pass
            await asyncio.sleep(0.04)
            assert demo.rate == 20.0, "another page looks"
        with demo.watched():  # loaded again
            await asyncio.sleep(0.04)
            assert demo.rate == 20.0
        await asyncio.sleep(0.06)
        assert demo.rate == 0.0

    asyncio.run(main())


@pytest.mark.parametrize(("slow", "fast"), [(480.0, 1900.0), (8000.0, 20000.0), (3.0, 9.0)])
def test_the_slider_fits_the_machine(slow, fast):
    demo = DemoLoad("http://host/v2/models/mine", "")
    demo.scale(slow, fast)
    assert demo.model == "mine"
    assert 1.2 * slow < demo.max_rate <= 4.2 * slow
    assert 15 <= demo.max_rate / demo.step <= 60
    assert demo.max_rate / demo.burst <= 350 or demo.burst == 64  # requests a second
