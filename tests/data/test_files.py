import builtins
import errno
import functools
import gc
import hashlib
import http.server
import sys
import threading
import zipfile

import numpy as np
import pytest

from mimonets._extras import need
from mimonets.data import DataConfig, load_data
from mimonets.data.files import Remote, cached, fetch, find_or_fetch

# A failed request of pooch leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def _collect_sockets():
    yield
    gc.collect(1)  # they are young: a whole collection takes a quarter of a second


@pytest.fixture
def home(tmp_path):
    """Serve a folder on this machine: give its address and its path."""
    folder = tmp_path / "home"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()
        thread.join()


def publish(home, name="x.gz", content=b"content"):
    (home[1] / name).write_bytes(content)
    return Remote(home[0] + name, hashlib.md5(content).hexdigest())


def test_a_missing_file_is_fetched_once_and_checked(home, tmp_path):
    remote = publish(home)
    config = DataConfig(name="mnist", dir=str(tmp_path))
    path = find_or_fetch(config, ["x.gz"], remote, "mnist")
    assert path == tmp_path / "mnist" / "x.gz"
    assert path.read_bytes() == b"content"
    (home[1] / "x.gz").unlink()
    assert find_or_fetch(config, ["x.gz"], remote, "mnist") == path


def test_a_file_that_arrives_damaged_is_not_kept(home, tmp_path):
    remote = publish(home)
    (home[1] / "x.gz").write_bytes(b"conten")
    with pytest.raises(ValueError, match=r"arrived damaged .* was not kept: try again"):
        fetch(remote, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_not_there_leaves_nothing(home, tmp_path):
    remote = Remote(home[0] + "nothing.gz", "0" * 32)
    message = f"not in .*data.*{home[0]}nothing.gz cannot"
    with pytest.raises(ValueError, match=message) as caught:
        fetch(remote, tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_a_failed_download_keeps_the_folders_that_were_there(home, tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match="cannot be fetched"):
        fetch(Remote(home[0] + "nothing.gz", "0" * 32), tmp_path / "data" / "deep" / "deeper")
    assert list((tmp_path / "data").iterdir()) == []


def test_without_a_network_the_file_the_folder_and_the_address_are_named(tmp_path):
    remote = Remote("http://127.0.0.1:9/x.gz", "0" * 32)  # nobody listens there
    with pytest.raises(ValueError, match="x.gz is not in .*data.*127.0.0.1:9/x.gz"):
        fetch(remote, tmp_path / "data")


def test_with_download_off_nothing_is_fetched(tmp_path):
    config = DataConfig(name="mnist", dir=str(tmp_path), download=False)
    message = rf"train-images.* in {tmp_path}.* off.*https://"
    with pytest.raises(ValueError, match=message):
        load_data(config).read()
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "text", "retrieval", "svhn"])
def test_a_wrong_path_is_answered_in_one_line(name, tmp_path):
    with pytest.raises(ValueError, match="does not exist: give the folder") as caught:
        load_data(DataConfig(name=name, dir=str(tmp_path / "nowhere"))).read()
    assert "\n" not in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file: give the folder"):
        load_data(DataConfig(name=name, dir=str(tmp_path / "file"))).read()


def test_retrieval_says_where_its_files_come_from(tmp_path):
    with pytest.raises(ValueError, match="new_aan_pairs.train.tsv.*out of https"):
        load_data(DataConfig(name="retrieval", dir=str(tmp_path))).read()


def test_a_missing_extra_is_met_with_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ValueError, match=r"needs pooch.*pip install -e '.\[data\]'"):
        need("pooch")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interruption_leaves_nothing_half_written(error, tmp_path, monkeypatch):
    def write_half(file, **arrays):
        file.write(b"half")
        raise error

    monkeypatch.setattr(np, "savez", write_half)
    expected = ValueError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(
        expected, match="No space left.*free some" if expected is ValueError else None
    ):
        cached("x", "key", lambda: {"a": np.arange(3)})
    assert list((tmp_path / "cache" / "derived").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIMONETS_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"cannot make .*: choose another dir"):
        cached("x", 1, lambda: {"a": np.arange(3)})


def test_the_cache_makes_once_and_makes_a_damaged_file_again(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return {"a": np.arange(3)}

    for _ in range(2):
        assert cached("x", "key", make)["a"].tolist() == [0, 1, 2]
    assert len(calls) == 1
    (path,) = (tmp_path / "cache" / "derived").iterdir()
    assert zipfile.is_zipfile(path)
    path.write_bytes(path.read_bytes()[:50])
    assert cached("x", "key", make)["a"].tolist() == [0, 1, 2]
    assert len(calls) == 2
    cached("x", "other key", make)
    assert len(calls) == 3


def test_loading_imports_no_extra_for_what_does_not_need_it(monkeypatch):
    original = builtins.__import__

    def without_extras(name, *rest, **named):
        if name.partition(".")[0] in ("pooch", "sklearn", "scipy", "PIL"):
            raise ImportError(name)
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_extras)
    assert len(load_data(DataConfig(name="recall", limit=5)).train) == 5
