"""Writes the reference parts of documents from the code that they describe."""
