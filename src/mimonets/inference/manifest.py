"""``manifest.json``: what an exported folder holds, and the hashes that prove it.

Plain data, read without PyTorch. Every file has its SHA-256 in the manifest, and the manifest has
its own: a folder that was damaged, mixed up or edited is refused before anything runs.
"""

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mimonets._config import hints_of, is_of_type
from mimonets._files import write_text
from mimonets._inputs import InputSpec
from mimonets._messages import short
from mimonets._operating_point import OperatingPoint
from mimonets._renamed import renamed

FORMAT_VERSION = 2  # 1 has no checks
MANIFEST_FILE = "manifest.json"
SMALL = 32 * 2**20  # bytes of graphs and weights

__getattr__ = renamed(__name__)


@dataclass(frozen=True)
class PointRecord:
    """What is known about an operating point."""

    active_streams: int
    macs_per_input: float | None = None  # multiply-accumulates
    accuracy: dict[str, float] = field(default_factory=dict)  # precision -> fraction that is right
    # backend -> [inputs, seconds] of one call, for several numbers of inputs
    service_seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    # cascade, from validation data: what comes of every threshold, and the one that was chosen
    cascade: list[dict[str, float]] = field(default_factory=list)
    confidence: float | None = None


@dataclass(frozen=True)
class Graphs:
    """The files of one format."""

    files: dict[str, str]  # path inside the folder -> SHA-256
    # active streams -> its graph; "masked" takes a mask too
    modes: dict[str, dict[str, str]] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)  # from eager, relative, per mode
    notes: dict[str, Any] = field(default_factory=dict)  # how it was quantised
    # mode, or mode + " masked" -> the first numbers of its answers to `Engine.probe`'s inputs
    checks: dict[str, list[float]] = field(default_factory=dict)

    def graph(self, active_streams: int, *, masked: bool) -> str:
        """Name the file of one mode's graph, with or without a mask."""
        return self.modes[str(active_streams)]["masked" if masked else "plain"]

    def is_small(self, folder: Path) -> bool:
        """Whether the files are small enough for every mode to have its own copy of the weights."""
        return sum((folder / name).stat().st_size for name in self.files) <= SMALL


@dataclass(frozen=True)
class Manifest:
    """All that a server needs to know about an exported network."""

    model: str  # the name of its class
    num_streams: int
    input_spec: InputSpec
    modes: tuple[PointRecord, ...]
    formats: dict[str, Graphs]
    takes_mask: bool = False  # sequences: real tokens are marked
    pairs: bool = False  # two sequences per answer, which share a group
    # The argument of forward that the number of a mode goes to, where it is not active_streams:
    # "point" for a slimmable network, whose modes are widths and take one input per pass.
    argument: str | None = None
    recipe: dict[str, Any] | None = None  # what it was trained with, as Recipe.as_dict gives it
    versions: dict[str, str] = field(default_factory=dict)
    cpu: dict[str, Any] = field(default_factory=dict)  # where it was exported and measured
    threads: int | None = None  # of the measured service times

    @property
    def operating_points(self) -> list[OperatingPoint]:
        """The exported ways to run the network, slow to fast, with their float32 accuracy."""
        return self.points_in("float32")

    def points_in(self, precision: str) -> list[OperatingPoint]:
        """List the operating points with their accuracy in a precision, where it is known."""
        return [
            OperatingPoint(
                number=record.active_streams,
                name=(
                    f"{self.argument} {record.active_streams}"
                    if self.argument
                    else f"{record.active_streams} active"
                ),
                inputs_per_pass=self.answers_per_group(record.active_streams),
                options={"active_streams": record.active_streams},
                accuracy=record.accuracy.get(precision),
            )
            for record in self.modes
        ]

    def mode(self, active_streams: int) -> PointRecord:
        """Find what is known about a number of active streams."""
        return next(mode for mode in self.modes if mode.active_streams == active_streams)

    def answers_per_group(self, active_streams: int) -> int:
        """Say how many answers a whole group gives; a pair of sequences takes two streams."""
        if self.argument:
            return 1
        return max(1, active_streams // 2) if self.pairs else active_streams

    def options(self, active_streams: int) -> dict[str, int]:
        """Give what ``forward`` gets in a mode."""
        return {self.argument or "active_streams": active_streams}

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            **{name: value for name, value in vars(self).items() if value is not None},
            "input_spec": self.input_spec.as_dict(),
            "modes": [_without_nothing(vars(mode)) for mode in self.modes],
            "formats": {name: _without_nothing(vars(g)) for name, g in self.formats.items()},
        }


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write ``manifest.json`` with a hash of its own content."""
    content = manifest.as_dict()
    content["sha256"] = _hash_of(content)
    write_text(folder / MANIFEST_FILE, json.dumps(content, indent=2) + "\n")


def read_manifest(folder: str | Path) -> Manifest:
    """Read what :func:`write_manifest` wrote; raises a ``ValueError`` of one sentence."""
    path = Path(folder) / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {MANIFEST_FILE}: pass a folder that mimonets.export wrote."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): it was cut short or edited.") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"{path} was not written by mimonets: it has no format_version.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, and this mimonets reads up to "
            f"{FORMAT_VERSION}: install a newer mimonets."
        )
    if content.pop("sha256", None) != _hash_of(content):
        raise ValueError(
            f"{path} does not have the hash it was written with: it was edited or damaged, "
            f"export the model again."
        )
    content.pop("format_version")
    try:
        manifest = Manifest(
            **{
                **content,
                "input_spec": InputSpec.from_dict(content["input_spec"]),
                "modes": tuple(PointRecord(**mode) for mode in content["modes"]),
                "formats": {name: Graphs(**g) for name, g in content["formats"].items()},
            }
        )
        _check_fields(path, manifest)
        _check_graphs(path, manifest)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} does not describe an exported model: {error}.") from None
    return manifest


def is_only_an_export(folder: Path) -> bool:
    """Tell whether a folder holds an export, whole or damaged, and no file besides."""
    try:
        content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        ours = {name for graphs in content["formats"].values() for name in graphs["files"]}
        is_ours = isinstance(content["format_version"], int) and "mimonets" in content["versions"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False
    there = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return is_ours and {*there} <= ours | {MANIFEST_FILE}


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Refuse files that are missing or are not the ones that were exported."""
    for name, wanted in files.items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"{folder / MANIFEST_FILE} points outside its folder, to {name}.")
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} holds no {name}, which its {MANIFEST_FILE} names.")
        if hash_file(path) != wanted:
            raise ValueError(
                f"{path} does not have the hash in {MANIFEST_FILE}: it was edited or damaged, or "
                f"belongs to another export; export the model again."
            )


def _check_fields(path: Path, manifest: Manifest) -> None:
    """Refuse fields of another type than the one that is written, and modes that are none."""
    for record in (manifest, *manifest.modes, *manifest.formats.values()):
        for name, hint in hints_of(type(record)).items():  # type: ignore[arg-type]
            value = getattr(record, name)
            if not is_of_type(value, hint):
                kind = getattr(hint, "__name__", str(hint))
                raise ValueError(f"{path} says {name}={short(value)}, which is no {kind}.")
    numbers = [mode.active_streams for mode in manifest.modes]
    most = numbers[-1] if manifest.argument and numbers else manifest.num_streams
    if not numbers or numbers != sorted({*numbers}) or numbers[0] < 1 or numbers[-1] > most:
        raise ValueError(
            f"{path} has the modes {short(numbers)}: they ascend from 1 or more to at most "
            f"num_streams={most}."
        )


def _check_graphs(path: Path, manifest: Manifest) -> None:
    """Refuse graphs without a hash, and modes without graphs."""
    wanted = ("plain", "masked") if manifest.takes_mask else ("plain",)
    for name, graphs in manifest.formats.items():
        if name == "torch":  # weights, which run in every mode
            continue
        for mode in manifest.modes:
            found = graphs.modes.get(str(mode.active_streams), {})
            for kind in wanted:
                if kind not in found:
                    raise ValueError(
                        f"{path} names no {kind} graph of {name} for {mode.active_streams} active: "
                        f"export the model again."
                    )
        for graph in (graph for found in graphs.modes.values() for graph in found.values()):
            if graph not in graphs.files:
                raise ValueError(
                    f"{path} has no hash for {graph}, a graph of {name}: export the model again."
                )


def find_graphs(backend: str, format_name: str, manifest: Manifest, folder: Path) -> Graphs:
    """Find the files that a backend runs and check them, or say how to make them."""
    if format_name not in manifest.formats:
        how = f"formats=({format_name!r},)"
        if "int8" in format_name:
            how = "int8=... and evaluation=..."
        raise ValueError(
            f"backend={backend!r} needs the format {format_name!r}, and this folder holds "
            f"{', '.join(manifest.formats)}: export the model again with {how}."
        )
    graphs = manifest.formats[format_name]
    check_files(folder, graphs.files)
    for name in graphs.files:
        if name.endswith(".onnx"):
            _check_external_data(folder, name, graphs.files)
    return graphs


def _check_external_data(folder: Path, graph: str, hashed: Mapping[str, str]) -> None:
    """Refuse an ONNX graph that reads its weights from a file without a hash.

    The name of such a file is an entry of protocol buffers with the key ``location``.
    """
    content, key = (folder / graph).read_bytes(), b"\x08location"
    at = content.find(key)
    while at >= 0:
        start = at + len(key) + 2  # a tag and the length of the name
        length = content[start - 1] if content[start - 2 : start - 1] == b"\x12" else 0
        name = content[start : start + length].decode("utf-8", "replace")
        if posixpath.join(posixpath.dirname(graph), name) not in hashed:
            raise ValueError(
                f"{folder / graph} reads weights from {short(name)}, which has no hash in "
                f"{MANIFEST_FILE}: export the model again."
            )
        at = content.find(key, start)


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_nothing(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value not in (None, {}, [])}
