"""How fast an operator is that makes pods for a custom resource, seen from outside: `python -m bench.operators --help`."""
