"""Read the pickles of CIFAR's python version without running what else a pickle could hold."""

import io
import pickle
from typing import Any

from mimonets.data.unpack import reading

# What an array of numbers is made of, under the names numpy 1 and 2 give it. Nothing here acts.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
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
    with reading(where):  # a damaged pickle can raise anything
        return _Restricted(io.BytesIO(content), encoding="bytes").load()


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # numpy 1's name for it
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no image file needs: it may be harmful and "
                f"was not run"
            )
        return super().find_class(module, name)
