"""Mutants: changes of one expression of the product, each of which a test must notice."""
