"""The page in a real browser: with a pointer, with keys alone, for screen readers, offline."""

import os
import re
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mimonets._inputs import InputSpec
from mimonets.cli.open_models import find_weights, open_network
from mimonets.cli.serve import write_samples
from mimonets.serving.networks import superposed
from mimonets.serving.site import FOLDER
from serving.fakes import ACCURACIES, FakeEngine, listening_with_page

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or sync_playwright is None,
    reason="no Chromium (apt-get install chromium, or set CHROMIUM) or no playwright",
)
SPEC = InputSpec(
    kind="image", shape=(1, 8, 8), mean=(0.0,), deviation=(1.0,), labels=tuple("0123456789")
)


class Digits(FakeEngine):
    """Answers with the brightness of the whole image."""

    def __call__(self, inputs, active_streams=None):
        self.calls.append((active_streams, inputs.copy()))
        time.sleep(0.002 * -(-len(inputs) // active_streams))
        logits = np.zeros((len(inputs), 10), dtype=np.float32)
        classes = (inputs.mean(axis=(1, 2, 3)) // 25).astype(int).clip(0, 9)
        logits[np.arange(len(inputs)), classes] = 4.0
        return logits


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    samples = tmp_path_factory.mktemp("demo") / "samples.npz"
    labels = np.arange(8)
    images = np.repeat(labels * 26, 64).reshape(8, 1, 8, 8).astype(np.uint8)
    np.savez(samples, inputs=images, labels=labels)
    engine = Digits(spec=SPEC)
    models = {
        "digits": lambda: superposed("digits", engine, ACCURACIES),
        "digits-plain": lambda: superposed("digits-plain", Digits(spec=SPEC), {1: 0.9}, points=[1]),
    }
    with listening_with_page(models, samples) as address:
        yield f"http://{address}", engine


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, served):
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    problems, foreign = [], []
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))

    def watch(request):
        if not request.url.startswith((served[0], "data:")):
            foreign.append(request.url)

    page.on("request", watch)
    page.goto(served[0])
    expect(page.locator("#status")).to_contain_text("Connected to", timeout=15_000)
    yield page
    context.close()
    assert problems == []
    assert foreign == [], "the page works offline"


def test_the_page_has_nothing_from_elsewhere_and_nothing_inline():
    text = "".join(path.read_text() for path in FOLDER.iterdir())
    html = (FOLDER / "index.html").read_text()
    assert "https://" not in text
    assert text.replace("http://www.w3.org/2000/svg", "").count("http://") == 0
    assert "style=" not in html
    assert not re.search(r"<[^>]*\son\w+=", html), "no inline handlers"
    assert "innerHTML" not in (FOLDER / "page.js").read_text()


@needs_browser
def test_samples_are_answered_in_one_pass_beside_the_slow_answers(page, served):
    before = len(served[1].calls)
    page.get_by_role("button", name="Four samples").click()
    page.get_by_role("button", name="Answer").click()
    expect(page.locator("#how")).to_contain_text("one pass", timeout=15_000)
    said = page.locator("#how").text_content()
    assert "0, 1, 2, 3 with 4 in one pass" in said
    assert "0, 1, 2, 3 each alone" in said
    modes = {(active, len(inputs)) for active, inputs in served[1].calls[before:]}
    assert (4, 4) in modes
    assert any(active == 1 for active, _ in modes)
    assert page.locator(".pad dd").first.text_content().startswith("0")


@needs_browser
def test_a_drawing_is_answered(page):
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 20, steps=5)
    expect(page.locator("#how")).to_contain_text("one pass", timeout=15_000)  # while one draws
    page.mouse.up()
    assert "by the plain network" in page.locator("#how").text_content()
    page.get_by_role("button", name="Clear all").click()
    page.get_by_role("button", name="Answer").click()
    assert "All pads are empty" in page.locator("#how").text_content()


@needs_browser
def test_right_answers_never_look_like_warnings(page):
    """The class of samples is known; of a drawing it is not, and nothing is said of it."""
    page.get_by_role("button", name="Four samples").click()
    expect(page.locator(".pad dd.right")).to_have_count(12, timeout=15_000)
    assert page.locator(".pad .wrong").count() == 0
    colours = [
        page.locator(one).first.evaluate("x => getComputedStyle(x).color")
        for one in (".pad .right", ".chart .second-text")
    ]
    assert colours[0] != colours[1]
    box = page.locator("canvas").first.bounding_box()
    page.mouse.click(box["x"] + 30, box["y"] + 30)
    expect(page.locator(".pad dd.right")).to_have_count(9, timeout=15_000)


@needs_browser
def test_a_photo_is_dropped_and_sent_as_its_middle_square(page, served):
    before = len(served[1].calls)
    page.evaluate(
        """async () => {
          const photo = document.createElement('canvas');
          Object.assign(photo, { width: 600, height: 300 });
          const pen = photo.getContext('2d');
          pen.fillStyle = '#fff'; pen.fillRect(0, 0, 600, 300);
          pen.fillStyle = '#505050'; pen.fillRect(150, 0, 300, 300);
          const blob = await new Promise(done => photo.toBlob(done));
          const data = new DataTransfer();
          data.items.add(new File([blob], 'photo.png', { type: 'image/png' }));
          const pad = document.querySelectorAll('canvas')[2];
          pad.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
        }"""
    )
    pad = page.locator("canvas").nth(2)
    expect(pad).to_have_attribute("aria-label", "Pad 3: your file photo.png", timeout=10_000)
    expect(page.locator("#how")).to_contain_text("3 with 1 in one pass", timeout=15_000)
    assert all(np.all(inputs == 0x50) for _, inputs in served[1].calls[before:])


@pytest.fixture(scope="module")
def real_digits(tmp_path_factory):
    """The network that ships, with its page."""
    pytest.importorskip("sklearn")
    samples = write_samples(
        find_weights("digits-keys"), tmp_path_factory.mktemp("real") / "samples.npz"
    )
    network = partial(open_network, "digits-keys", [find_weights("digits-keys")], "torch", 1)
    with listening_with_page({"digits-keys": network}, samples) as address:
        yield f"http://{address}"


@needs_browser
@pytest.mark.parametrize(
    "points",
    [[(0.5, 0.1), (0.5, 0.9)], [(0.55, 0.08), (0.45, 0.95)], [(0.5, 0.35), (0.5, 0.7)]],
    ids=["tall", "slanted", "short"],
)
def test_a_stroke_is_a_one(browser, real_digits, points):
    page = browser.new_page()
    page.goto(real_digits)
    expect(page.locator("#status")).to_contain_text("Connected to", timeout=15_000)
    box = page.locator("canvas").first.bounding_box()
    (x, y), (end_x, end_y) = (
        (box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in points
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(end_x, end_y, steps=4)
    page.mouse.up()
    expect(page.locator("#how")).to_contain_text("1 with 1 in one pass", timeout=15_000)
    expect(page.locator("#how")).to_contain_text("1 each alone")
    page.close()


@needs_browser
def test_files_are_answered(page, tmp_path):
    paths = [tmp_path / f"{level}.png" for level in (30, 80)]
    for path, level in zip(paths, (30, 80), strict=True):
        Image.fromarray(np.full((8, 8), level, np.uint8)).save(path)
    page.get_by_label("images of your own").set_input_files(paths)
    pad = page.locator("canvas").nth(1)
    expect(pad).to_have_attribute("aria-label", "Pad 2: your file 80.png", timeout=10_000)
    page.get_by_role("button", name="Answer").click()
    expect(page.locator("#how")).to_contain_text("1, 3 with 2 in one pass", timeout=15_000)
    (tmp_path / "text.png").write_text("no image")
    page.get_by_label("images of your own").set_input_files(tmp_path / "text.png")
    expect(page.locator("#how")).to_contain_text("text.png is no image", timeout=10_000)


@needs_browser
def test_the_slider_shows_the_load_that_runs(page):
    step = page.locator("#rate").get_attribute("step")
    with page.expect_response("**/v1/demo/load"):
        page.locator("#rate").fill(step)
    page.reload()
    expect(page.locator("#rate-text")).to_contain_text(f"{step} inputs a second", timeout=10_000)
    assert page.locator("#rate").input_value() == step
    with page.expect_response("**/v1/demo/load"):
        page.locator("#rate").fill("0")


@needs_browser
def test_keys_alone_are_enough(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Sample for pad 1"
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "answer":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#how")).to_contain_text("one pass", timeout=15_000)
    assert page.locator("#how").get_attribute("aria-live") == "polite"
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "rate":
            break
    page.keyboard.press("ArrowRight")
    step = page.locator("#rate").get_attribute("step")
    assert page.locator("#rate-text").text_content().startswith(f"{step} inputs a second")
    page.keyboard.press("Home")


@needs_browser
def test_the_chart_lives_and_is_a_table_too(page):
    page.locator("#rate").fill(page.locator("#rate").get_attribute("step"))
    last = page.locator("#rows tr").first.locator("td").last
    expect(last).not_to_have_text("–", timeout=20_000)  # the accuracy of the load's answers
    line = page.locator(".chart").nth(2).locator(".first")
    expect(line).to_have_attribute("d", re.compile("L"), timeout=20_000)
    page.locator("summary").click()
    assert page.locator("#rows tr").count() >= 1
    page.locator("#rate").fill("0")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
    page.emulate_media(color_scheme=scheme)
    page.get_by_role("button", name="Four samples").click()
    page.locator("summary").click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@needs_browser
@pytest.mark.parametrize("width", [320, 768, 1400])
def test_nothing_is_cut_or_overlaps(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_role("button", name="Four samples").click()
    inside = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert inside, "the page scrolls sideways"
    boxes = page.evaluate(
        """[...document.querySelectorAll('button, canvas, .chart, #rate, .pad dl')]
        .filter(one => one.offsetParent !== null)
        .map(one => one.getBoundingClientRect())
        .map(box => [box.left, box.top, box.right, box.bottom])"""
    )
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= width + 0.5
        for other_left, other_top, other_right, other_bottom in boxes[number + 1 :]:
            apart = (
                right <= other_left + 0.5
                or other_right <= left + 0.5
                or bottom <= other_top + 0.5
                or other_bottom <= top + 0.5
            )
            assert apart


@needs_browser
def test_screenshots(page, tmp_path):
    """Set SCREENSHOTS=folder to look at them."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.get_by_role("button", name="Four samples").click()
    page.get_by_role("button", name="Answer").click()
    page.locator("#rate").fill(page.locator("#rate").get_attribute("max"))
    page.wait_for_timeout(int(os.environ.get("SCREENSHOT_WAIT", "200")))
    for width in (380, 1200):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            path = folder / f"page-{width}-{scheme}.png"
            page.screenshot(path=path, full_page=True)
            assert path.stat().st_size > 10_000
    page.locator("#rate").fill("0")


@needs_browser
def test_the_end_of_the_slider_is_more_than_slow_mode_can_do(page):
    most = float(page.locator("#rate").get_attribute("max"))
    page.locator("#rate").fill(str(most))
    words = page.locator("#rate-text").text_content()
    assert int(re.search(r"(\d+) % of what slow mode can do", words)[1]) > 120
    page.locator("#rate").fill("0")


@needs_browser
@pytest.mark.slow  # a busy machine answers nothing in time
def test_the_operating_point_changes_at_the_end_of_the_slider(page):
    page.locator("#rate").fill(page.locator("#rate").get_attribute("max"))
    streams = page.locator(".chart").first.locator(".first-text")
    expect(streams).to_have_text(re.compile(r"mean [234]\."), timeout=20_000)
    page.locator("#rate").fill("0")
