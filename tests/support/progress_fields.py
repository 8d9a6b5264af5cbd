"""The names of all fields that a progress line may have."""

from ddpjob_ranks import contract

PROGRESS_FIELDS = {
    value for name, value in vars(contract).items() if name.startswith("PROGRESS_") and isinstance(value, str)
} - {contract.PROGRESS_PREFIX}
