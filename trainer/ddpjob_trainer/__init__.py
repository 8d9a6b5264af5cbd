"""The built-in DDP trainer. Importing the package loads neither torch nor pydantic: the operator reads its configuration."""
