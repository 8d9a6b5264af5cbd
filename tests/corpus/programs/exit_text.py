"""An exit with a text instead of an exception."""

import sys

print("reading the configuration", flush=True)
sys.exit("config error: data folder /data is empty")
