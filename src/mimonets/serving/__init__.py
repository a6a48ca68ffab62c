"""A server that chooses the superposition by load: accurate when idle, N inputs a pass in a spike.

``policy``, ``batcher`` and ``simulator`` are pure: they have no clock, no socket and no PyTorch.
"""
