"""Damage an exported folder in one of many ways, by a seed."""

import json
import random

import numpy as np

from mimonets.inference.manifest import MANIFEST_FILE, _hash_of, hash_file

ODD_VALUES = (None, True, -1, 0, 10**30, 1e300, float("nan"), "", "x" * 300, [], {}, [[]], {"a": 1})


def change_manifest(folder, change):
    """Change what the manifest says, and give it the hash of what it says now."""
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content)
    path.write_text(json.dumps(content | {"sha256": _hash_of(content)}))


def rehash(folder):
    """Make the hashes of all files those of what they hold now."""

    def renew(content):
        for graphs in content["formats"].values():
            graphs["files"] = {
                name: hash_file(folder / name)
                for name in graphs["files"]
                if (folder / name).is_file()
            }

    change_manifest(folder, renew)


def fill_weights(folder, value):
    """Replace all weights of an export by one number, with hashes that agree."""
    path = folder / "weights.bin"
    size = path.stat().st_size // 4
    path.write_bytes(np.full(size, value, dtype=np.float32).tobytes())
    rehash(folder)


def damage(folder, seed):
    """Damage a folder; returns what was done, in words."""
    draw = random.Random(seed)
    how = draw.choice((damage_a_file, damage_and_rehash, damage_the_manifest))
    return f"seed {seed}: {how(folder, draw)}"


def damage_a_file(folder, draw):
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content = path.read_bytes()
    how = draw.choice(("flip", "cut", "empty", "remove", "folder", "double"))
    if how in ("remove", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        cut = content[: draw.randrange(len(content))]
        path.write_bytes({"flip": changed, "cut": cut, "empty": b"", "double": 2 * content}[how])
    return f"{how} {path.name}"


def damage_and_rehash(folder, draw):
    graphs = sorted(folder.glob("mode-*.onnx"))
    how = draw.choice(("nan", "zero", "noise", "graph", "cut", "weights", "swap"))
    if how in ("nan", "zero"):
        fill_weights(folder, np.nan if how == "nan" else 0.0)
    elif how in ("noise", "weights"):
        path = folder / "weights.bin"
        content = path.read_bytes()
        noise = np.random.default_rng(draw.random().as_integer_ratio()[0])
        cut = content[: draw.randrange(len(content))]
        path.write_bytes(noise.bytes(len(content)) if how == "noise" else cut)
    elif how == "swap":
        first, second = draw.sample(graphs, 2)
        contents = first.read_bytes(), second.read_bytes()
        second.write_bytes(contents[0])
        first.write_bytes(contents[1])
    else:
        path = draw.choice(graphs)
        content = bytearray(path.read_bytes())
        if how == "cut":
            content = content[: draw.randrange(len(content))]
        else:
            for _ in range(draw.choice((1, 5, 50))):
                content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
    rehash(folder)
    return f"{how}, with hashes that agree"


def damage_the_manifest(folder, draw):
    words = []

    def change(content):
        place = content
        while True:
            key = draw.choice(sorted(place)) if isinstance(place, dict) else None
            if key is None:
                key = draw.randrange(len(place))
            words.append(str(key))
            inside = place[key]
            if not isinstance(inside, dict | list) or not inside or draw.random() < 0.4:
                break
            place = inside
        if isinstance(place, dict) and draw.random() < 0.2:
            del place[key]
        else:
            place[key] = draw.choice(ODD_VALUES)
        words.append(f"= {place.get(key) if isinstance(place, dict) else place[key]!r}"[:40])

    change_manifest(folder, change)
    return f"manifest {'/'.join(words)}"
