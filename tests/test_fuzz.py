"""Damaged files and odd settings: a sentence or an answer, never a traceback, never a hang.

A seeded mutator works on a real run folder, a saved model, a plan, results, data files and
``--set`` values. Case 17 is the same on every machine: ``run_case(17, ...)`` brings it back.
"""

import contextlib
import hashlib
import io
import json
import random
import resource
import shutil
import signal
import traceback
from pathlib import Path

import numpy as np
import pytest

from mimonets.cli.main import main

SECONDS = 10  # of processor time, for one command
MEMORY = 6 * 2**30  # of addresses beyond what the process has: a wild size must not hurt others
SAMPLE, ALL = 40, 2000

RECIPE = "digits-mimoconv-dynamic"
SMALL = ("train.epochs=1", "train.batch_size=8", "model.width=1", "model.initial_width=1")
TRAIN = [part for one in (*SMALL, "data.limit=64", "train.threads=1") for part in ("--set", one)]
PLAN = """\
source: mine
title: Digits
effort: a minute
trials:
  - {title: small, recipe: digits-mimoconv-n4, set: {train.epochs: 10}, seeds: 2, paper: {4: 90}}
"""

ODD_VALUES = (
    *("", "[", "[1", "]", "{a: b: c}", "{}", "[]", "[[[]]]", "null", "~", "true", "no", "'", '"x'),
    *("!!python/object/apply:os.system [ls]", "!!binary x", "&a [*a]", "*a", "@", "%", "`", "- 1"),
    *("-1", "0", "1", "3", "0.5", "1e30", "-1e-30", ".inf", "-.inf", ".nan", "1e999", "0x10"),
    *("9" * 400, "9" * 5000, "1000000000000", "100000", "[" * 2000, "a" * 10000, "2001-01-01"),
    *("relu", "hrr", "\N{GRINNING FACE}", "\u202e", "\x00", "../..", "/", "cuda", "foo", "mps"),
    *("[1, 2]", "[2, 2]", "[0, 0]", "[-1, 4]", "[1, 2, 3]", "{1: 0.5, 4: 0.5}", "{x: y}", "{1: x}"),
)
SETTINGS = (
    *("model.kind", "model.depth", "model.width", "model.initial_width", "model.num_streams"),
    *("model.binding", "model.stream_keys", "model.activation", "model.pool", "model.readout"),
    *("model.num_classes", "model.in_channels", "model.image_size", "model.trainable_keys"),
    *("data.name", "data.dir", "data.limit", "data.validation", "data.seed", "data.crop"),
    *("data.sizes", "data.length", "data.standardise", "augment.padding", "augment.flip"),
    *("train.epochs", "train.steps", "train.batch_size", "train.lr", "train.optimizer"),
    *("train.schedule", "train.warmup", "train.momentum", "train.modes", "train.fast_share"),
    *("train.exact", "train.solo", "train.curriculum", "train.retrieval", "train.precision"),
    *("train.accelerator", "train.devices", "train.accumulate", "train.seed"),
    *("train.threads", "train.evaluate_every", "train.ema", "train.mixup", "train.isometry"),
    *("model", "train.", ".", "", "modle.width", "model.widht", "data.dir.x", "=", "model.=1"),
)
# Long or several-process training is what was asked for, not a fault.
ASKED_FOR = ("train.epochs", "train.steps", "train.devices", "train.threads")
ODD_JSON = (None, True, 7, -1, 1e300, 10**12, "x", "", [], [[]], {}, {"a": []}, [1, 2], "\x00")


class HangError(BaseException):
    """The case took too long; nothing in the package catches this."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """What is damaged: one of everything that the command line reads."""
    folder = tmp_path_factory.mktemp("originals")
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        assert main(["train", RECIPE, "--out", str(folder / "run"), *TRAIN]) == 0
    shutil.copytree(folder / "run" / "model", folder / "model")
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "results").mkdir()
    record = {"rows": [{"verdict": "reproduced", "what": "x", "unit": "%"}]}
    (folder / "results" / "mnist.json").write_text(json.dumps(record))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(folder / "data.npz", images=images, labels=np.arange(40) % 10)
    (folder / "images").mkdir()
    from PIL import Image

    for label in range(10):
        place = folder / "images" / str(label)
        place.mkdir()
        for number in range(2):
            Image.fromarray(images[2 * label + number]).save(place / f"{number}.png")
    return folder


@pytest.fixture
def memory_limit():
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def run_case(number, originals, work):
    """Damage something, run a command on it; returns a complaint, or None if all is well."""
    draw = random.Random(number)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(originals, work)
    kind = KINDS[number % len(KINDS)]
    arguments, writes = kind(draw, work)
    before = snapshot(work)
    complaint = run_command(arguments)
    if complaint is None:
        after = snapshot(work)
        changed = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        foreign = sorted(path for path in changed if not path.startswith(writes))
        complaint = f"changed {foreign}" if foreign else None
    return (
        None
        if complaint is None
        else f"case {number}: mimonets {str(arguments)[:500]}: {complaint}"
    )


def run_command(arguments):
    """Run a command line in this process; returns what is wrong with how it ended."""

    def hang(*_):
        raise HangError

    output, errors = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    except HangError:
        return f"hangs: {''.join(traceback.format_exc().splitlines(keepends=True)[-8:])}"
    except BaseException:
        return "".join(traceback.format_exc().splitlines(keepends=True)[-8:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if code not in (0, 2):
        return f"exit code {code}"
    if code == 2 and not errors.getvalue().strip():
        return "refused without a word"
    if errors.getvalue().count("\n") > 30:
        return f"an error of {errors.getvalue().count(chr(10))} lines"
    return None


def snapshot(folder):
    """What is in a folder: path -> digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def damaged_run(draw, work):
    if draw.random() < 0.4:  # stopped before its end
        (work / "run" / "result.json").unlink()
        shutil.rmtree(work / "run" / "model")
    victim = draw.choice(sorted(p for p in (work / "run").rglob("*") if p.is_file()))
    damage(draw, victim)
    if "tensorboard" in str(victim):
        return ["evaluate", str(work / "run")], ()
    command = draw.choice(("evaluate", "evaluate", "cost", "bench", "train", "again"))
    run = str(work / "run")
    if command == "train":
        return ["train", RECIPE, "--out", run, "--resume", *TRAIN], ("run/",)
    if command == "again":
        return ["train", RECIPE, "--out", run, *TRAIN], ()
    quick = ["--rounds", "1", "--warmup", "0", "--batch-size", "4", "--threads", "1"]
    return [command, run, *(quick if command == "bench" else [])], ()


def damaged_model(draw, work):
    damage(draw, draw.choice(sorted((work / "model").iterdir())))
    return ["cost", str(work / "model")], ()


def damaged_plan(draw, work):
    damage(draw, work / "plan.yaml")
    places = ("--out", str(work / "out"), "--runs", str(work / "runs"))
    what = draw.choice(("--commands", "--report"))
    return ["reproduce", str(work / "plan.yaml"), what, *places], ("out/",)


def damaged_results(draw, work):
    damage(draw, work / "results" / "mnist.json")
    return ["reproduce", "--out", str(work / "results"), "--json"], ()


def damaged_data(draw, work):
    name = draw.choice(("npz", "folder"))
    if name == "npz":
        place = victim = work / "data.npz"
    else:
        place = work / "images"
        victim = draw.choice(sorted(place.rglob("*.png")))
    damage(draw, victim)
    where = ["--set", f"data.name={name}", "--set", f"data.dir={place}"]
    return ["train", RECIPE, *TRAIN, *where, "--out", str(work / "new")], ("new/",)


def odd_setting(draw, work):
    setting, value = draw.choice(SETTINGS), draw.choice(ODD_VALUES)
    odd = ["--set", f"{setting}={value}"]
    if setting in ASKED_FOR or draw.random() < 0.6:
        recipe = draw.choice((RECIPE, "mnist-datamux-n4", "recall-mimoformer-2x2", "lra-text-cpu"))
        return ["cost", recipe, *odd], ()
    return ["train", RECIPE, *TRAIN, *odd, "--out", str(work / "new")], ("new/",)


def odd_argument(draw, work):
    value = draw.choice(ODD_VALUES).replace("\x00", "")
    options = ("--device", "--threads", "--rounds", "--batch-size", "--active-streams", "--dtype")
    return draw.choice(
        (
            ["cost", value],
            ["recipes", value],
            ["evaluate", value],
            ["reproduce", value, "--commands"],
            ["reproduce", "svhn", "--report", "--scale", value, "--out", str(work / "out")],
            ["train", RECIPE, *TRAIN, "--data-dir", value, "--out", str(work / "new")],
            ["train", RECIPE, *TRAIN, "--out", str(work / "images")],
            ["train", value, "--out", str(work / "new")],
            ["evaluate", str(work / "run"), "--active-streams", value],
            ["cost", RECIPE, "--active-streams", value],
            ["bounds", "plan", "--dim", value, "--streams", "4"],
            ["bench", RECIPE, "--rounds", "1", "--warmup", "0", draw.choice(options), value],
        )
    ), ("new/", "out/")


KINDS = (
    *(damaged_run, odd_setting, damaged_model, odd_argument, damaged_run, odd_setting),
    *(damaged_data, odd_setting, damaged_plan, damaged_results),
)


def damage(draw, path):
    """Damage a file: its bytes or, where it is text, what it says."""
    raw = path.read_bytes()
    ways = [
        lambda: b"",
        lambda: raw[: draw.randrange(len(raw) + 1)],
        lambda: bytes(draw.randrange(256) for _ in range(200)),
        lambda: flipped(draw, raw),
        lambda: raw + raw[: draw.randrange(200)],
        lambda: None,  # deleted
    ]
    if path.suffix in (".json", ".yaml", ".jsonl"):
        ways += [lambda: retyped(draw, raw.decode(), path.suffix).encode()] * 8
        ways += [lambda: b"[" * 100_000, lambda: "\ufeff{}".encode(), lambda: b"\xff\xfe{}"]
    new = draw.choice(ways)()
    path.unlink()
    if new is None:
        if draw.random() < 0.3:
            path.mkdir()
        return
    path.write_bytes(new)


def flipped(draw, raw):
    found = bytearray(raw)
    for _ in range(draw.choice((1, 3, 30))):
        if found:
            found[draw.randrange(min(len(found), 2000))] = draw.randrange(256)
    return bytes(found)


def retyped(draw, text, suffix):
    """Read the file, put something else in one place, and write it again."""
    import yaml

    if suffix == ".jsonl":
        lines = text.splitlines()
        lines[draw.randrange(len(lines))] = retyped(draw, lines[-1], ".json")
        return "\n".join(lines)
    content = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    places = [((), content)]
    for keys, value in places:
        if isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            places += [((*keys, key), one) for key, one in inner]
    keys, _ = draw.choice(places)
    odd = draw.choice(ODD_JSON)
    if not keys:
        content = odd
    else:
        holder = content
        for key in keys[:-1]:
            holder = holder[key]
        if draw.random() < 0.3:
            del holder[keys[-1]]
        else:
            holder[keys[-1]] = odd
    return json.dumps(content) if suffix == ".json" else yaml.safe_dump(content)


def complaints(numbers, originals, work, monkeypatch):
    monkeypatch.chdir(work.parent)
    found = (run_case(number, originals, work) for number in numbers)
    return [complaint for complaint in found if complaint]


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # what a damaged file provokes in other packages
def test_damaged_files_and_odd_settings_get_a_sentence(
    originals, tmp_path, monkeypatch, memory_limit
):
    wrong = complaints(range(SAMPLE), originals, tmp_path / "work", monkeypatch)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")
def test_two_thousand_damaged_files_and_odd_settings_get_a_sentence(
    originals, tmp_path, monkeypatch, memory_limit
):
    wrong = complaints(range(ALL), originals, tmp_path / "work", monkeypatch)
    assert not wrong, f"{len(wrong)} of {ALL}:\n" + "\n\n".join(wrong[:20])
