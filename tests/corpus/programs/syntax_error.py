"""A mistake in the syntax of the main script, for which Python prints no traceback."""

print("never printed"
