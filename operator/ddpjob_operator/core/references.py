"""References to variables, such as `$(NAME)`, which Kubernetes replaces in the command, the arguments and the variables of a container."""


def as_written(text: str) -> str:
    """The text with which a container is given `text` itself. Kubernetes makes one `$` of two, whatever follows."""
    return text.replace("$", "$$")
