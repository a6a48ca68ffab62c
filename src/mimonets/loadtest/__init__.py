"""Measure a server or simulate one: arrivals, load, and other policies to compare with.

``workloads`` makes arrival times, ``load`` sends requests at these times, ``simulator`` plays them
through the server's own policy without a server. ``comparison`` has other policies and
runs all of them, and ``demo`` is the load behind the slider of the server's page.
"""
