# Trigate: build, run and check. `make help` lists the targets.

SHELL := /bin/bash
BIN := bin
# One setting for builds, tests and checks alike, so that they share one build cache.
export CGO_ENABLED := 0
TOOL := go tool -modfile=.ci/tools/go.mod

# The binaries answer as the Kubernetes version that they are built from.
K8S_VERSION := $(shell go list -m -f '{{.Version}}' k8s.io/kubernetes)
TRIGATE_VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BUILD_DATE := $(shell git log -1 --format=%cd --date=format:%Y-%m-%dT%H:%M:%SZ 2>/dev/null || echo 1970-01-01T00:00:00Z)
GIT_COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
VERSION_FLAGS = $(foreach pkg,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $(pkg).gitVersion=$(K8S_VERSION) \
	-X $(pkg).gitMajor=$(word 1,$(subst ., ,$(K8S_VERSION:v%=%))) \
	-X $(pkg).gitMinor=$(word 2,$(subst ., ,$(K8S_VERSION:v%=%))) \
	-X $(pkg).gitCommit=$(GIT_COMMIT) \
	-X $(pkg).gitTreeState=clean \
	-X $(pkg).buildDate=$(BUILD_DATE)) \
	-X "k8s.io/component-base/version/verflag.programName=Trigate $(TRIGATE_VERSION), commit $(GIT_COMMIT) of $(BUILD_DATE), Kubernetes"
GO_BUILD := go build -ldflags '-s -w $(VERSION_FLAGS)'

# Each binary of `make build` and its package.
BINARIES := trigate-gateway trigate-authn trigate-authz trigate-admission trigate-local trigate-pki kubectl-gates kube-controller-manager
PKG_trigate-gateway := ./gateway
PKG_trigate-authn := ./services/authn
PKG_trigate-authz := ./services/authz
PKG_trigate-admission := ./services/admission
PKG_trigate-local := ./deploy/local
PKG_trigate-pki := ./deploy/trigate-pki
PKG_kubectl-gates := ./deploy/kubectl-gates
PKG_kube-controller-manager := k8s.io/kubernetes/cmd/kube-controller-manager
# Programs that only images have, beside those of ours. The tools of etcd are not of the
# main module.
IMAGES := trigate-gateway trigate-authn trigate-authz trigate-admission kube-controller-manager etcd
PKG_etcd := go.etcd.io/etcd/server/v3
ETCD_TOOLS := etcdctl etcdutl
# Programs of the same module that only tests and newcomers need.
TEST_BINARIES := kubectl kube-apiserver sample-apiserver
PKG_kubectl := k8s.io/kubernetes/cmd/kubectl
PKG_kube-apiserver := k8s.io/kubernetes/cmd/kube-apiserver
PKG_sample-apiserver := k8s.io/sample-apiserver

# Each fuzz target and its package; what they find is kept as a seed beside them.
FUZZ_TARGETS := FuzzAuthenticateTokenRequest FuzzAuthenticateTokenResponse FuzzUser FuzzAttributesFromProto
FUZZ_PKG_FuzzAuthenticateTokenRequest := ./services/authn/internal/convert
FUZZ_PKG_FuzzAuthenticateTokenResponse := ./services/authn/internal/convert
FUZZ_PKG_FuzzUser := ./services/internal/identity
FUZZ_PKG_FuzzAttributesFromProto := ./services/authz/internal/convert

DIR ?= .trigate
PORT ?= 6443
TEST_TIMEOUT ?= 40m
FUZZ_TIME ?= 60s
BENCH ?= .
BENCH_COUNT ?= 2000

.DEFAULT_GOAL := help
.PHONY: help build run test test-unit test-e2e test-packages test-node test-alerts test-ui test-race test-fuzz bench $(addprefix fuzz-,$(FUZZ_TARGETS)) test-binaries kubectl kubectl-gates grpcurl \
	images image-binaries $(ETCD_TOOLS) generate verify fix clean \
	$(addprefix build-,$(BINARIES) $(TEST_BINARIES) etcd) \
	verify-format verify-vet verify-lint verify-errors verify-proto verify-generate verify-openapi verify-tidy verify-repo fix-format fix-proto

help: ## Show the targets.
	@awk 'BEGIN{FS=":.*## "} /^[a-z-]+:.*## /{printf "  %-16s %s\n",$$1,$$2}' $(MAKEFILE_LIST)

build: $(addprefix build-,$(BINARIES)) ## Build the programs into bin/.

$(addprefix build-,$(BINARIES) $(TEST_BINARIES) etcd): build-%:
	@echo "building $(BIN)/$*"
	@$(GO_BUILD) -o $(BIN)/$* $(PKG_$*)

run: build ## Build, and run everything on this machine in ./.trigate.
	@exec $(BIN)/trigate-local --dir $(DIR) --port $(PORT)

kubectl: build-kubectl ## Build the stock kubectl into bin/.

kubectl-gates: build-kubectl-gates ## Build kubectl's plugin, `kubectl gates`, into bin/.

grpcurl: ## Build grpcurl into bin/.
	@echo "building $(BIN)/grpcurl"
	@go build -modfile=.ci/tools/go.mod -ldflags '-s -w' -o $(BIN)/grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl

$(ETCD_TOOLS):
	@echo "building $(BIN)/$@"
	@go build -modfile=.ci/tools/go.mod -ldflags '-s -w' -o $(BIN)/$@ go.etcd.io/etcd/$@/v3

image-binaries: $(addprefix build-,$(IMAGES)) $(ETCD_TOOLS)

images: image-binaries ## Build the images into bin/images/, without a registry.
	deploy/images/build.sh $(IMAGES)

test-binaries: $(addprefix build-,$(TEST_BINARIES)) grpcurl

test: test-unit test-e2e ## Run the unit tests and the end-to-end tests.

test-unit: ## Run the unit tests.
	go test -timeout $(TEST_TIMEOUT) $$(go list ./... | grep -v /deploy/test/)

test-e2e: build test-binaries ## Run the tests that start the real processes.
	TRIGATE_BIN=$(CURDIR)/$(BIN) go test -count=1 -timeout $(TEST_TIMEOUT) -p 1 $$(go list ./deploy/test/... | grep -v -e /deploy/test/node -e /deploy/test/alerts -e /deploy/test/ui)

test-packages: build test-binaries ## Run the tests of PACKAGES, aloud and one after the other.
	TRIGATE_BIN=$(CURDIR)/$(BIN) go test -v -count=1 -timeout $(TEST_TIMEOUT) -p 1 $(PACKAGES)

# The stock programs of a node, and what runs it, lie beside the repository.
NODE_TOOLS ?= ../shared/tools
NODE_TIMEOUT ?= 30m

test-alerts: ## Have promtool read the alert rules and the dashboard; it is in the Debian package prometheus.
	go test -count=1 ./deploy/test/alerts

test-ui: build test-binaries ## Use the page in a real browser; it is in the Debian package chromium.
	TRIGATE_BIN=$(CURDIR)/$(BIN) go test -count=1 -timeout $(TEST_TIMEOUT) ./deploy/test/ui

test-node: build test-binaries images ## Run everything on a real node; needs root, containerd and the like (.ci/run has the list).
	$(NODE_TOOLS)/kube/build.sh $(BIN)/kube
	TRIGATE_BIN=$(CURDIR)/$(BIN) NODE_TOOLS=$(abspath $(NODE_TOOLS)) go test -v -count=1 -timeout $(NODE_TIMEOUT) ./deploy/test/node

# Where goroutines share what decides: caches, streams and what feeds them.
RACE_PACKAGES := ./gateway/decisions ./gateway/identities ./gateway/interest ./services/authz/internal/policy ./services/authz/server \
	./services/authn/internal/revocations ./services/authn/server

test-race: ## Run the tests of what is shared with the race detector, which needs a C compiler.
	CGO_ENABLED=1 go test -race -timeout $(TEST_TIMEOUT) $(RACE_PACKAGES)

test-fuzz: $(addprefix fuzz-,$(FUZZ_TARGETS)) ## Fuzz what comes from outside, for FUZZ_TIME each.

$(addprefix fuzz-,$(FUZZ_TARGETS)): fuzz-%:
	go test -run '^$$' -fuzz '^$*$$' -fuzztime $(FUZZ_TIME) $(FUZZ_PKG_$*)

bench: build test-binaries ## Compare Trigate's CPU time and latency with stock kube-apiserver's.
	TRIGATE_BIN=$(CURDIR)/$(BIN) go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_COUNT)x -timeout $(TEST_TIMEOUT) ./deploy/test/bench

generate: ## Write the generated code anew.
	$(TOOL) buf generate --template proto/buf.gen.yaml
	go run ./gateway/rest/describe

verify: verify-format verify-proto verify-generate verify-openapi verify-tidy verify-vet verify-lint verify-errors verify-repo ## Run every check but the tests.

verify-format:
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go' ':!proto/gen')); [ -z "$$out" ] || { echo "not formatted (make fix-format):"; echo "$$out"; exit 1; }

verify-vet:
	go vet ./...

verify-lint:
	$(TOOL) staticcheck -checks all $$(go list ./... | grep -v /proto/gen/)

verify-errors:
	$(TOOL) errcheck -exclude .ci/tools/errcheck.txt $$(go list ./... | grep -v /proto/gen/)

verify-proto:
	$(TOOL) buf lint
	$(TOOL) buf format --diff --exit-code
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null); if [ -n "$$tag" ]; then \
		echo "buf breaking against $$tag"; $(TOOL) buf breaking --against ".git#tag=$$tag"; \
	else echo "buf breaking: no release tag yet, nothing to compare with"; fi

verify-generate: generate
	@git diff --exit-code --stat -- proto/gen gateway/rest/openapi.json && [ -z "$$(git ls-files --others --exclude-standard -- proto/gen)" ] || { echo "generated code is stale: commit what make generate wrote"; exit 1; }

verify-openapi:
	$(TOOL) validate --multi gateway/rest/openapi.json

verify-tidy:
	go mod tidy -diff

verify-repo:
	go test ./deploy/check/...

fix: fix-format fix-proto ## Repair what can be repaired by itself.

fix-format:
	$(TOOL) gofumpt -w $$(git ls-files '*.go' ':!proto/gen')

fix-proto:
	$(TOOL) buf format -w

clean: ## Remove what make built.
	rm -rf $(BIN)
