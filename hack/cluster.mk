# Real clusters and images on this machine.

NODES ?= 2
CLUSTER ?= default
# Targets of the Dockerfile.
IMAGES ?= operator trainer trainer-cpu

.PHONY: need-root
need-root:
	@test "$$(id -u)" = 0 || test -n "$${E2E_KUBECONFIG:-}" || { \
		echo "this target runs containerd and the kubelet and needs root;" \
			"only make e2e can use another cluster: set E2E_KUBECONFIG" >&2; exit 1; }

.PHONY: cluster-programs
cluster-programs: setup ## Build the programs of a control plane (the first time 16 minutes on two cores)
	@$(BIN)/python -m testbed build

.PHONY: node-programs
node-programs: cluster-programs ## Build also the programs of real nodes
	@$(BIN)/python -m testbed build --nodes

.PHONY: image
image: setup ## Build all images with buildah (as root, without a registry): make image IMAGES='operator trainer-cpu'
	@$(BIN)/python -m support.images $(IMAGES)

.PHONY: cluster-up
cluster-up: setup ## Bring up a real cluster on this machine: make cluster-up NODES=2 (0: control plane only)
	@$(BIN)/python -m testbed up --name $(CLUSTER) --nodes $(NODES)

.PHONY: load
load: setup ## Build images and put them on the nodes of that cluster: make load IMAGES='operator trainer-cpu'
	@$(BIN)/python -m support.images $(IMAGES) --load $(CLUSTER)

.PHONY: cluster-path
cluster-path: setup ## Print the folders of kubectl and helm, for PATH
	@dirname "$$($(BIN)/python -m testbed path kubectl)" "$$($(BIN)/python -m testbed path helm)" | \
		paste --serial --delimiters=:

.PHONY: cluster-down
cluster-down: setup ## Stop that cluster and remove everything that it made
	@$(BIN)/python -m testbed down --name $(CLUSTER)

.PHONY: demo-cluster
demo-cluster: need-root setup ## Run the README's cluster commands on a real two-node cluster of this machine (as root)
	@$(BIN)/python hack/demo_cluster.py
