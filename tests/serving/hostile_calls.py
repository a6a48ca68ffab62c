"""gRPC over a bare socket, for what no client library does: answers that are never read."""

import socket
import struct

INFER = "/inference.GRPCInferenceService/ModelInfer"


class BareCaller:
    """A connection of HTTP/2 that lets the server send no byte of an answer."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        no_window = struct.pack(">HI", 4, 0)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, no_window))
        self._stream = 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()

    def call(self, message=None, key=None, path=INFER):
        """Begin a call; without a message it stalls."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        fields |= {"x-api-key": key} if key else {}
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        sent = _frame(1, 4, self._stream, block)
        if message is not None:
            sent += _frame(0, 1, self._stream, b"\0" + struct.pack(">I", len(message)) + message)
        self.socket.sendall(sent)
        self._stream += 2


def _frame(kind, flags, stream, content):
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _text(word):
    return bytes((len(word),)) + word.encode()  # up to 126 bytes
