"""Measure a server or simulate one: arrivals, load, other policies, and isolation of inputs.

``workloads`` makes arrival times, ``load`` sends requests at these times, ``simulator`` plays them
through the server's own policy without a server. ``contenders`` are other policies, ``comparison``
runs all of them. ``isolation`` measures how much a neighbour in a group can change an answer, and
``demo`` is the load behind the slider of the server's page.
"""
