"""Read the pickles of CIFAR's python version without running what else a pickle could hold."""

import io
import pickle
from typing import Any

from mimonets.data.unpack import damaged

# What an array of numbers is made of, under the names numpy 1 and 2 give it. Nothing here acts.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # bytes, as Python 2's protocol writes them
    ("builtins", "bytes"),
    ("builtins", "bytearray"),
}


def load_pickle(content: bytes, where: str) -> Any:
    """Unpickle lists, dictionaries, bytes and numpy arrays; refuse everything else.

    The files were written by Python 2, so their strings arrive as bytes.

    >>> load_pickle(pickle.dumps({b"labels": [1, 2]}), "a file")
    {b'labels': [1, 2]}
    """
    try:
        return _Restricted(io.BytesIO(content), encoding="bytes").load()
    except Refused as error:
        raise ValueError(
            f"{where} asks for {error}, which no image file needs: it may be harmful and was not "
            f"run. Fetch the file again from its official home."
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise damaged(where, error) from None


class Refused(Exception):  # noqa: N818
    """A pickle wants something that is not on the list."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise Refused(f"{module}.{name}")
        if module.startswith("numpy.core"):  # numpy 1's name for what numpy 2 calls _core
            module = module.replace("numpy.core", "numpy._core")
        return super().find_class(module, name)
