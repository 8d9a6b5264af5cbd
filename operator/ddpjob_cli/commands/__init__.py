"""One module for each command; `application.py` lists them."""
