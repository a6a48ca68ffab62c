"""A model that does not run never takes the place of one that does, and is one sentence."""

import asyncio
import os
import shutil
import signal

import numpy as np
import pytest

from mimonets.cli.open_models import open_network
from mimonets.serving import run
from mimonets.serving.networks import superposed
from mimonets.serving.request_options import RequestOptions
from mimonets.serving.tenants import EVERYONE
from serving.damage import damage, fill_weights
from serving.fakes import ACCURACIES, FakeEngine, make_server

INPUTS = np.sin(np.arange(128, dtype=np.float32)).reshape(2, 1, 8, 8)
SLOW = RequestOptions(timeout=20.0, speed="slow")


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "served")


def served(folder, backend="onnxruntime"):
    return make_server(
        models={"digits": lambda: open_network("digits", [folder], backend, 1)}, slo=20.0
    )


async def answers(server):
    found = await server.answer(server.find("digits"), INPUTS, SLOW, EVERYONE)
    return np.stack([answer.output for answer in found.answers])


def reload_after(folder, change, backend="onnxruntime"):
    """Serve a folder, change it, load it again; returns what was said, and whether it answers."""

    async def main():
        server = served(folder, backend)
        await server.start()
        before = await answers(server)
        change(folder)
        try:
            with pytest.raises(ValueError) as refused:  # noqa: PT011
                await server.load("digits")
            np.testing.assert_array_equal(await answers(server), before)
            assert server.find("digits").number == "1"
        finally:
            await server.stop(timeout=5)
        return str(refused.value)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "not finite"), (0.0, "not as when it was exported")]
)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_weights_with_hashes_that_agree_are_held_to_the_answers_of_the_export(
    folder, value, words, backend
):
    if backend == "openvino":
        pytest.importorskip("openvino")
    said = reload_after(folder, lambda folder: fill_weights(folder, value), backend)
    assert words in said
    assert "\n" not in said


def test_a_network_whose_answers_are_not_finite_is_not_served():
    class NotFinite(FakeEngine):
        def __call__(self, inputs, active_streams=None):
            return np.full((len(inputs), 3), np.inf if active_streams == 4 else 0.0)

    with pytest.raises(ValueError, match="digits gives answers that are not finite at 4 active"):
        superposed("digits", NotFinite()).run_every_graph()


def test_an_export_that_lost_its_manifest_is_not_served_by_pytorch_instead(folder):
    said = reload_after(folder, lambda folder: (folder / "manifest.json").unlink())
    assert "is an export without its manifest.json: export it again" in said


def test_whatever_an_engine_raises_is_one_sentence():
    class Broken(FakeEngine):
        def __call__(self, inputs, active_streams=None):
            raise SystemError("[ONNXRuntimeError] : 1 : FAIL\n  at some line of C++")

    async def main():
        server = make_server(models={"digits": lambda: superposed("digits", Broken())})
        with pytest.raises(ValueError, match=r"^digits does not run: .*FAIL\.$"):
            await server.start()
        await server.stop(timeout=5)

    asyncio.run(main())


def test_on_sighup_the_models_after_a_broken_one_are_loaded_too(capsys):
    loads = []

    def broken():
        if loads.count("broken"):
            raise SystemError("no such operator")
        loads.append("broken")
        return superposed("broken", FakeEngine(), ACCURACIES)

    def fine():
        loads.append("fine")
        return superposed("fine", FakeEngine(), ACCURACIES)

    class Runner:
        async def serve(self):
            os.kill(os.getpid(), signal.SIGHUP)
            for _ in range(500):
                await asyncio.sleep(0.01)
                if loads.count("fine") == 2 and server.find("fine").number == "2":
                    return

    async def main():
        await server.start()
        await run._serve(Runner(), server, None)
        await server.stop(timeout=5)

    server = make_server(models={"broken": broken, "fine": fine})
    asyncio.run(main())
    said = capsys.readouterr().out
    assert "broken stays as it is: broken does not run: no such operator." in said
    assert "fine: version 2" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_damaged_exports_reloaded_under_load(exported, tmp_path):
    said, wrong, asked = [], [], 0

    async def ask_all_the_time(server, wanted):
        nonlocal asked
        while True:
            found = await answers(server)
            asked += 1
            if np.abs(found - wanted).max() > 0.05 * np.abs(wanted).max():
                wrong.append(server.find("digits").number)
            await asyncio.sleep(0.002)

    async def main():
        folder = shutil.copytree(exported, tmp_path / "served")
        server = served(folder)
        await server.start()
        wanted = await answers(server)
        load = [asyncio.create_task(ask_all_the_time(server, wanted)) for _ in range(3)]
        for seed in range(200):
            shutil.rmtree(folder)
            shutil.copytree(exported, folder)
            what = damage(folder, seed)
            before = server.find("digits").number
            try:
                await server.load("digits")
                said.append((what, None))
            except (ValueError, OSError) as error:
                said.append((what, str(error)))
                assert server.find("digits").number == before
        assert not any(task.done() for task in load), "a request was lost"
        for task in load:
            task.cancel()
        await server.stop(timeout=5)

    asyncio.run(main())
    refused = [error for _, error in said if error is not None]
    print(f"{len(refused)} of {len(said)} refused, {asked} requests answered")
    assert not wrong
    assert len(refused) > 150
    assert all(1 <= len(error) < 700 and "\n" not in error for error in refused)
