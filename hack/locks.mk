# The locks of requirements/, made with uv.

UV := $(DDPJOB_CACHE_DIR)/uv/bin/uv
LOCK := $(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --quiet
IMAGE := --excludes requirements/images-exclude.txt --constraint requirements/dev.lock
TRAINER := --extra trainer --extra s3 $(IMAGE) --excludes requirements/trainer-exclude.txt

$(UV):
	@$(PYTHON) -m venv $(DDPJOB_CACHE_DIR)/uv
	@$(DDPJOB_CACHE_DIR)/uv/bin/pip install --quiet --disable-pip-version-check uv

.PHONY: lock
lock: $(UV) ## Update requirements/*.lock from pyproject.toml; versions that still fit are kept
	@$(LOCK) --all-extras --group dev --excludes requirements/dev-exclude.txt --output-file requirements/dev.lock
	@$(LOCK) --extra operator $(IMAGE) --output-file requirements/operator.lock
	@$(LOCK) $(TRAINER) --output-file requirements/trainer.lock
	@$(LOCK) $(TRAINER) --excludes requirements/cpu-exclude.txt --output-file requirements/trainer-cpu.lock
	@$(LOCK) --extra trainer --group build --constraint requirements/dev.lock --output-file requirements/demo.lock

.PHONY: check-arm64
check-arm64: $(UV) ## Check that all packages of the images have wheels for arm64; downloads only their metadata
	@for lock in operator trainer trainer-cpu; do \
		$(UV) pip install --dry-run --quiet --no-deps --require-hashes --only-binary :all: --target build/arm64 \
			--python $(PYTHON) --python-platform aarch64-manylinux_2_28 --requirement requirements/$$lock.lock; \
		echo "requirements/$$lock.lock: wheels for arm64 exist for all packages"; \
	done
