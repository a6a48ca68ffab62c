"""``mimonets compare``."""
def add_parser(subparsers): pass
