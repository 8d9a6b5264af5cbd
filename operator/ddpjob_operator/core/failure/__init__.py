"""Why attempts end: the classes of failures, how an end is classified, which end is the cause, and the record of it."""
