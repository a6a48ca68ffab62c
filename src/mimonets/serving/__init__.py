"""A server that chooses the operating point by load: accurate when idle, fast in a spike.

One request on its way through the server::

    connections.py          bytes of a client  -> a request of HTTP, in time
    bodies.py, decoders.py  its body           -> bytes, counted; files by images.py, on threads
    infer.py, classify.py   bytes of HTTP      -> RequestHeader and inputs, by protocol.py
    grpc.py                 messages of gRPC   -> the same, through the same checks
    limits.py               shared by tenants  -> there is room, or a refusal of errors.py
    request_options.py      what it asks for   -> InferenceRequest, with a deadline
    batcher.py              admitted           -> QueuedInput, one for each input, in a ModelQueue
    policy.py               chosen to run now  -> Job: groups of inputs, each at a ServedPoint
    worker.py               run by the network -> outputs, on the inference thread
    batcher.py              complete           -> Answer, one for each input
    infer.py, classify.py   response           -> bytes of HTTP, by protocol.py

``policy``, ``jobs``, ``waiting_line``, ``model_queue`` and ``batcher`` are pure: they have no
clock, no socket and no PyTorch. :mod:`mimonets.loadtest` drives them in a simulation, and measures
a running server.
"""
