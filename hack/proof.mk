# Demonstrations, benchmarks and what a GPU proves. BENCH and GPU are further arguments of the programs.

.PHONY: demo-recovery
demo-recovery: ## Kill a rank of such a training as make demo and print how it starts again in place
	@$(PYTHON) hack/environment.py requirements/demo.lock
	@$(BIN)/python -m bench.recovery.demo

.PHONY: recording
recording: setup ## Record the picture of the README on the cluster of KUBECONFIG, which has the operator
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m recording docs/images/recording.svg

.PHONY: bench-operator
bench-operator: setup ## Time the operator on a real control plane: make bench-operator BENCH='lives --name mine'
	@$(BIN)/python -m bench.operators $(BENCH)

.PHONY: bench-recovery
bench-recovery: setup ## Time from SIGKILL of a rank to the next step, by tier: make bench-recovery BENCH='--trials 20'
	@$(BIN)/python -m bench.recovery $(BENCH)

.PHONY: bench-recovery-nodes
bench-recovery-nodes: need-root setup ## The same on two real nodes, with new pods (as root)
	@$(BIN)/python -m bench.recovery.nodes $(BENCH)

.PHONY: bench-trainer
bench-trainer: setup ## Time the trainer and plain DDP: make bench-trainer BENCH='speed --ranks 2'
	@$(BIN)/python -m bench.trainer $(or $(BENCH),speed)

# Both need no virtual environment: `gpu` runs where torch is installed already, such as on a rented machine.
.PHONY: gpu-wheels
gpu-wheels: ## Prepare build/gpu for a machine without network: make gpu-wheels GPU='--python 3.12 --torch 2.11'
	@PYTHONPATH=trainer $(PYTHON) -m ddpjob_measure.carry $(GPU)

.PHONY: gpu
gpu: ## Test and measure everything on a GPU (docs/how-to/gpus.md): make gpu GPU='--results DIR'
	@PYTHONPATH=trainer $(PYTHON) -m ddpjob_measure gpu $(GPU)
