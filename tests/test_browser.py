"""The page of the documentation that runs shipped networks in the browser, without a server."""

import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

import browser as builder
from results_files import ROOT
from serving.test_page import CHROMIUM, FLAGS, expect, needs_browser, sync_playwright

NETWORKS = {"digits-keys": (1, 4)}


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def shown():
    """Give a function that opens a folder in Chromium, served as plain files."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        servers = []

        def show(folder):
            handler = partial(Files, directory=folder)
            servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{servers[-1].server_port}/index.html")
            return page

        yield show
        browser.close()
        for server in servers:
            server.shutdown()
            server.server_close()


@needs_browser
def test_without_npm_the_page_says_what_is_missing(tmp_path, monkeypatch, shown):
    monkeypatch.setattr(builder.shutil, "which", lambda _: None)
    assert builder.build(tmp_path / "try").startswith("npm is not installed")
    page = shown(tmp_path / "try")
    expect(page.locator("#status")).to_contain_text("run make docs", timeout=15_000)
    expect(page.locator("#main")).to_be_hidden()


def test_another_package_than_the_pinned_one_is_refused(tmp_path, monkeypatch):
    def pack(command, **_):
        place = command[command.index("--pack-destination") + 1]
        (builder.Path(place) / "package.tgz").write_bytes(b"something else")
        return builder.subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(builder.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(builder.subprocess, "run", pack)
    with pytest.raises(SystemExit, match="is not the package that was pinned"):
        builder.fetch_runtime(tmp_path / "ort")


def test_the_page_brings_nothing_from_elsewhere():
    for path in (ROOT / "docs" / "try").iterdir():
        assert "https://" not in path.read_text()
        assert "innerHTML" not in path.read_text()


@needs_browser
def test_the_browser_answers_as_the_model_card_says_slow_and_fast(made_once, shown):
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    pytest.importorskip("onnxscript")
    folder = made_once("try", lambda folder: builder.build(folder, NETWORKS))
    if not (folder / "data.json").exists():
        pytest.skip("npm cannot fetch onnxruntime-web here")
    page = shown(folder)
    expect(page.locator("#main")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Four samples").click()
    expect(page.locator("#how")).to_contain_text("1, 7, 4, 6, by keys (digits-keys), 4 digits")
    assert page.locator(".right").count() == 4
    page.get_by_label("slow: 1 per pass, 98.3 % right").check()
    expect(page.locator("#how")).to_contain_text("by keys (digits-keys), 1 digit per pass")

    box = page.locator("canvas").first.bounding_box()
    x, top, bottom = box["x"] + box["width"] / 2, box["y"] + 12, box["y"] + box["height"] - 12
    page.mouse.move(x, top)
    page.mouse.down()
    page.mouse.move(x, bottom, steps=5)
    page.mouse.up()
    expect(page.locator("dd").first).to_contain_text("1 ")  # a tall 1 is a 1

    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("button", name="Measure again")).to_be_visible(timeout=120_000)
    rows = [row.split("\t") for row in page.locator("#rows").inner_text().splitlines()]
    assert [row[1:3] for row in rows] == [["1", "98.3 %"], ["4", "97.3 %"]]  # as the cards say
    assert all(int(row[3].replace(",", "")) > 0 for row in rows)
