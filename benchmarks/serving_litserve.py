"""The network of the serving benchmark for LitServe: a class that its processes can import."""

from pathlib import Path

import litserve
import numpy as np
from serving_contenders import answer_of, open_engine, read_input


class Classifier(litserve.LitAPI):
    """One mode of the network, in dynamic batches."""

    networks: Path
    active: int

    def setup(self, device: str) -> None:
        """Open the network, and run it once."""
        self.engine, self.spec = open_engine(self.networks, self.active)

    def decode_request(self, request: dict) -> np.ndarray:
        """Read one input."""
        return read_input(request, self.spec)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Put inputs side by side."""
        return np.stack(inputs)

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Answer a batch."""
        return np.asarray(self.engine(inputs, self.active)).argmax(axis=1)

    def unbatch(self, outputs: np.ndarray) -> list[int]:
        """Take answers apart."""
        return list(outputs)

    def encode_response(self, output: int) -> dict:
        """Write one answer."""
        return answer_of(output, self.active)
