"""How fast the operator is, seen from outside: `python -m bench.operators --help`."""
