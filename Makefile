# pdlog: every target installs what it needs (Debian packages through apt-get,
# Go tools into .tools/), so a fresh clone needs only Go, gcc and make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

BIN   := bin
TOOLS := $(CURDIR)/.tools
GO    := go
export CGO_ENABLED := 1

GOLANGCI_VERSION := v2.15.0
PROTOC_GEN_GO    := v1.36.12
PROTOC_GEN_VT    := v0.6.0
PROTOC_GEN_CONN  := v1.21.1
BUF_VERSION      := v1.75.0
BENCHSTAT_VERSION := v0.0.0-20260908200009-22c9c6c9d4da

.PHONY: all build demo test test-short lint lint-proto check-generated generate scale bench bench-go bench-compare deps-bench bench-rdma bench-store bench-mirror crash mirror-kills sim fuzz interop test-browser test-rxe build-verbs vuln clean deps deps-test deps-generate help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

all: build lint test ## everything

# ---- what is needed

# apt PACKAGES: install what dpkg does not know yet.
define apt
	@missing=""; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
		echo "installing$$missing"; \
		sudo=""; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
endef

deps: ## Debian packages for a build
	$(call apt,libzmq3-dev pkg-config)

deps-generate:
	$(call apt,protobuf-compiler)
	@GOBIN=$(TOOLS) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO)
	@GOBIN=$(TOOLS) $(GO) install github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto@$(PROTOC_GEN_VT)
	@GOBIN=$(TOOLS) $(GO) install connectrpc.com/connect/cmd/protoc-gen-connect-go@$(PROTOC_GEN_CONN)

$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(TOOLS)/golangci-lint $@

$(TOOLS)/buf-$(BUF_VERSION): # some minutes, once
	GOBIN=$(TOOLS) $(GO) install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)
	mv $(TOOLS)/buf $@

# ---- build and run

build: deps ## bin/pdnode and bin/pdreplay
	@mkdir -p $(BIN)
	$(GO) build -trimpath -o $(BIN)/ ./cmd/pdnode ./cmd/pdreplay

demo: build ## the main job on this machine: real processes, every byte checked
	$(BIN)/pdnode demo $(DEMO_FLAGS)

# ---- tests

deps-test: deps
	$(call apt,e2fsprogs strace python3 python3-protobuf python3-zmq)
	-$(call apt,chromium)
	-$(call apt,spin)

# One package more than there are cores at a time: many wait for disks, servers
# and deadlines.
TEST_JOBS ?= $(shell expr $$(nproc) + 1)
# The longest begin first, so that none of them is alone at the end.
TEST_FIRST = ./test/stories ./test/interop ./test/crash ./node ./test/sim ./test/e2e ./cmd/pdreplay/... ./store/mirror ./replay
test: build deps-test ## all tests, with the race detector, those on Soft-RoCE in QEMU (10 rounds), and the ladder's table
	@rows=$$(mktemp); rc=0; PDLOG_LADDER=$$rows PDLOG_BIN=$(CURDIR)/$(BIN) GOFLAGS="$${GOFLAGS:-} -trimpath" $(GO) test -race -count=1 -p $(TEST_JOBS) -timeout 15m $(TEST_FIRST) ./... || rc=$$?; \
	RXE_ROUNDS=$${RXE_ROUNDS:-10} RXE_FAULTS= test/rxe/run.sh || rc=1; \
	$(GO) run ./test/ladder/cmd/pdladder $$rows || rc=1; rm -f $$rows; exit $$rc

# What of it takes long can be set: NIGHT_FUZZ for each of some thirty targets,
# NIGHT_SOAK, NIGHT_FLEETS seeds of 5 to 50 nodes, NIGHT_REVS for the builds before.
NIGHT_FUZZ   ?= 30s
NIGHT_SOAK   ?= 20m
NIGHT_FLEETS ?= 3000
NIGHT_REVS   ?= HEAD~1 HEAD~30
.PHONY: night
night: build deps-test ## the long column: model, 3,000 seeds, a thousand nodes, 50,000 crash images, kills of the mirror, every story, every fuzz target, the soak
	$(call apt,spin iproute2 nftables)
	@rows=$$(mktemp); rc=0; export PDLOG_LADDER=$$rows PDLOG_NIGHT=1 PDLOG_NEED_SPIN=1 PDLOG_MODEL_SEEDS=100 PDLOG_SIM_JOBS=$$(nproc); \
	$(GO) test -count=1 -v -timeout 120m ./test/model || rc=1; \
	PDLOG_SIM_SEEDS=1000 PDLOG_SIM_FLEETS=$(NIGHT_FLEETS) PDLOG_SIM_THOUSAND=1 $(GO) test -count=1 -v -timeout 180m ./test/sim || rc=1; \
	$(MAKE) crash || rc=1; \
	$(MAKE) mirror-kills truth interop test-rxe -k || rc=1; \
	PDLOG_OLD_REVS="$(NIGHT_REVS)" $(GO) test -count=1 -v -timeout 60m ./test/stories || rc=1; \
	$(GO) test -count=1 -v -timeout 10m -run '/StoppedWriter' ./rdma/tcp ./rdma/shm || rc=1; \
	$(MAKE) fuzz FUZZTIME=$(NIGHT_FUZZ) || rc=1; \
	$(MAKE) soak SOAK=$(NIGHT_SOAK) || rc=1; \
	$(GO) run ./test/ladder/cmd/pdladder $$rows || rc=1; rm -f $$rows; exit $$rc

# make soak SOAK=60s SOAK_RATE=200 is the short form.
SOAK      ?= 20m
SOAK_RATE ?= 1000
.PHONY: soak stories
soak: deps ## two nodes under load with faults, for 20 minutes: what must not grow does not
	PDLOG_SOAK=$(SOAK) PDLOG_SOAK_RATE=$(SOAK_RATE) $(GO) test -count=1 -v -timeout 120m -run TestSoak ./test/soak

stories: deps ## a fleet of real processes through bad networks, other builds, NATS servers that die (as root)
	$(call apt,iproute2 nftables)
	PDLOG_NIGHT=1 $(GO) test -count=1 -v -timeout 60m ./test/stories

test-short: deps ## what a change needs before a commit
	$(GO) test -short -count=1 ./...

# make fuzz FUZZTIME=3m runs every fuzz target of the tree for that long.
FUZZTIME ?= 10s
fuzz: deps ## every fuzz target, FUZZTIME each; one that fails does not keep the others from running
	$(GO) run ./test/ladder/cmd/pdfuzz -time $(FUZZTIME)

vet-bench: deps ## the benchmarks' own module compiles
	cd test/bench && $(GO) vet ./...

lint: deps $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) check-generated lint-proto vet-bench ## golangci-lint, and that generated code is current
	$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) run ./...
	$(call apt,libibverbs-dev)
	$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) run --build-tags verbs ./rdma/... ./node ./cmd/pdnode/...

# buf lint, and buf breaking against what has been released (buf.yaml).
lint-proto: $(TOOLS)/buf-$(BUF_VERSION) ## the .proto files, and that none of them breaks a reader
	$< lint
	$< breaking --against test/schema/released.binpb

# The pinned compiler is Debian's; its version stands in the generated headers.
generate: deps-generate ## generate Go code from the .proto files
	@export PATH="$(TOOLS):$$PATH"; \
	protoc -I events --go_out=events --go_opt=paths=source_relative \
		--go-vtproto_out=events --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size events.proto; \
	protoc -I backends/wirepb --go_out=backends/wirepb --go_opt=paths=source_relative \
		--go-vtproto_out=backends/wirepb --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size extension.proto; \
	protoc -I node/enginepb --go_out=node/enginepb --go_opt=paths=source_relative \
		--connect-go_out=node/enginepb --connect-go_opt=paths=source_relative --connect-go_opt=package_suffix= engine.proto

check-generated: generate
	@git diff --exit-code --stat -- '*.pb.go' '*.connect.go' || { echo "generated code is not current: run make generate and commit"; exit 1; }

# The whole table, in some 12 minutes: pdnode bench, the mirror, the store beside
# its peers. The rows of the first two are kept in a file until the last prints all.
bench: build deps-bench ## the whole performance table, with pass or short by row
	@rows=$$(mktemp); trap 'rm -f "$$rows"' EXIT; \
	$(BIN)/pdnode bench -o json >"$$rows" || [ $$? = 1 ]; \
	PDLOG_BENCH_ROWS="$$rows" PDLOG_BENCH_SECONDS=$(BENCH_SECONDS) $(GO) test -run '^$$' -bench BenchmarkMirror -benchtime=1x -count=1 -timeout 30m ./store/mirror >/dev/null; \
	cd test/bench && $(GO) run . -rows "$$rows"

deps-bench: deps
	$(call apt,ucx-utils python3-zmq)

bench-go: deps ## the Go benchmarks of every package
	$(GO) test -run '^$$' -bench . -benchmem -count=1 ./...

.PHONY: bench-once
bench-once: deps ## the code of every benchmark runs, once; nothing is timed
	PDLOG_BENCH_SECONDS=1 $(GO) test -run '^$$' -bench . -benchtime 1x -count=1 ./... >/dev/null
	cd test/bench && { $(GO) run . -rounds 1 -slice 10ms -events 20000 >/dev/null || [ $$? = 1 ]; }

# make bench-compare BASE=REV [BENCH=REGEXP] [PKG=./projector/...]: the Go benchmarks
# of a revision and of this tree, in turns, through benchstat.
BENCH ?= .
PKG   ?= ./projector/... ./events/... ./backends/... ./store/...
COUNT ?= 7
bench-compare: deps ## the Go benchmarks of BASE and of this tree through benchstat
	@[ -n "$(BASE)" ] || { echo "say BASE=REV: the revision to compare with"; exit 2; }
	@GOBIN=$(TOOLS) $(GO) install golang.org/x/perf/cmd/benchstat@$(BENCHSTAT_VERSION)
	@work=$$(mktemp -d); trap 'git worktree remove --force "$$work/base"; rm -rf "$$work"' EXIT; \
	git worktree add -q --detach "$$work/base" "$(BASE)"; \
	for round in $$(seq $(COUNT)); do \
		(cd "$$work/base" && $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime 0.2s -count 1 $(PKG)) >>"$$work/base.txt"; \
		$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime 0.2s -count 1 $(PKG) >>"$$work/head.txt"; \
	done; \
	$(TOOLS)/benchstat base="$$work/base.txt" head="$$work/head.txt"

.PHONY: bench-engine
bench-engine: deps-test ## the engine API's round trips and chunk rate, beside a bare Connect echo
	PDLOG_BENCH_ENGINE=1 $(GO) test -run TestEngineAPIFigures -count=1 -timeout 10m ./test/e2e

bench-rdma: build ## the data planes beside raw TCP, memcpy and UCX
	$(call apt,ucx-utils)
	$(BIN)/pdnode bench rdma

bench-store: deps ## the log beside a raw write, pebble, etcd's wal and bbolt, as the README's table
	cd test/bench && $(GO) run .

.PHONY: bench-reopen vet-bench
bench-reopen: deps ## a node's start on ten million events, and their verified replay
	cd test/bench && $(GO) run . -only reopen -events 10000000 -rounds 3 && $(GO) run . -only replay -events 10000000 -rounds 3

# The log's own rate and bare JetStream publishing of the same messages in the same
# run; BENCH_SECONDS of 200,000 events a second.
BENCH_SECONDS ?= 60
bench-mirror: deps ## the mirror beside bare JetStream, one server and three, sync always
	PDLOG_BENCH_SECONDS=$(BENCH_SECONDS) $(GO) test -run '^$$' -bench BenchmarkMirror -benchtime=1x -count=1 -timeout 30m ./store/mirror

crash: deps-test ## 50,000 crash images of the log, 6,000 flipped bits
	PDLOG_FLIPS=6000 $(GO) test -count=1 -v -run 'Flip|Truncated' ./store
	PDLOG_CRASH_IMAGES=50000 $(GO) test -count=1 -v -timeout 60m ./test/crash

.PHONY: truth
truth: deps ## blame against the injected truth: 180 simulated runs, 20 demos
	PDLOG_TRUTH_RUNS=180 PDLOG_TRUTH_DEMOS=20 $(GO) test -count=1 -timeout 60m -v ./test/truth

.PHONY: bench-replay
bench-replay: deps ## reading 10,000,000 events, beside a bare read and decode
	PDLOG_FIGURES=$${PDLOG_FIGURES:-10000000} $(GO) test -run TestFigures -count=1 -timeout 30m -v ./replay

mirror-kills: deps ## 500 nodes and 100 servers killed, on one JetStream server and on three
	PDLOG_MIRROR_KILLS=500 $(GO) test -count=1 -parallel 10 -timeout 60m -v -run TestKills ./store/mirror

# make sim SEED=17 runs one seed again; OUT=run.jsonl keeps its log for pdreplay.
SEED ?= 1
SEEDS ?= 1
sim: deps ## one seed of the fleet simulation, or SEEDS of them
	@$(GO) run ./test/sim/cmd/pdsim -seed $(SEED) -seeds $(SEEDS) -v $(if $(OUT),-out $(OUT)) $(SIM_FLAGS)

.PHONY: model
model: deps ## the protocol's model under spin; PDLOG_NIGHT=1 for the long searches
	$(call apt,spin)
	PDLOG_NEED_SPIN=1 $(GO) test -count=1 -v -timeout 120m ./test/model

# The figures of docs/scale.md: what a room costs on 10, 100 and 1,000 nodes.
scale: deps ## the same load per node on growing fleets, simulated
	@$(GO) run ./test/sim/cmd/pdscale $(SCALE_FLAGS)

interop: deps-test ## peers written from the wire's description alone; junk for 60 s in each dialect
	PDLOG_INTEROP=1 $(GO) test -count=1 -v ./test/interop
test-browser: deps ## the node's page with 10,000 rooms within 100 ms an interaction, and the pictures of pdreplay, in a real Chromium
	$(call apt,chromium)
	PDLOG_BROWSER=1 PDLOG_PICTURE_EVENTS=1000000 $(GO) test -count=1 -v -timeout 20m -run 'TestInABrowser|TestPageInABrowser|TestALargeFleet' ./replay/picture ./node

.PHONY: page-screenshots
page-screenshots: deps ## the pictures of the node's page in docs/
	$(call apt,chromium)
	PDLOG_SCREENSHOTS=1 $(GO) test -count=1 -run TestPageScreenshots ./node

# A small demo of today's practice: pages freed by a timer, late writes.
.PHONY: screenshots
screenshots: build ## the pictures of an incident report in docs/, of a new incident
	$(call apt,chromium)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(BIN)/pdnode demo --requests 14 --pages 96 --seed 3 --abort-percent 40 --release-policy timeout --ack-timeout 20ms --fault late:500ms:30% --data-dir "$$dir" || [ $$? = 1 ]; \
	PDLOG_SCREENSHOTS=$(CURDIR)/docs PDLOG_SCREENSHOT_LOGS="$$dir" $(GO) test -count=1 -run TestScreenshots ./replay/picture

test-rxe: deps ## rdma/verbs (100 revocations by each method) and a demo over it on kernel verbs (Soft-RoCE under QEMU)
	RXE_TIMEOUT=$${RXE_TIMEOUT:-1200} test/rxe/run.sh

build-verbs: deps ## bin/pdnode with the provider verbs
	$(call apt,libibverbs-dev)
	@mkdir -p $(BIN)
	$(GO) build -trimpath -tags verbs -o $(BIN)/ ./cmd/pdnode

vuln: deps ## govulncheck; its database comes from vuln.go.dev or the module proxy
	@TOOLS=$(TOOLS) GO=$(GO) deploy/vuln.sh

# ---- packages

NFPM_VERSION := v2.45.2
HELM_VERSION := v3.22.0
VERSION      ?= 0.1.0
DEB_ARCH     := $(shell $(GO) env GOARCH)

$(TOOLS)/nfpm-$(NFPM_VERSION):
	GOBIN=$(TOOLS) $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	mv $(TOOLS)/nfpm $@

$(TOOLS)/helm-$(HELM_VERSION): # some minutes, once
	GOBIN=$(TOOLS) $(GO) install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	mv $(TOOLS)/helm $@

.PHONY: package check-packages
package: build $(TOOLS)/nfpm-$(NFPM_VERSION) ## bin/pdlog_VERSION_ARCH.deb, with man pages and completion
	@rm -rf $(BIN)/man $(BIN)/completion && mkdir -p $(BIN)/man $(BIN)/completion
	@for b in pdnode pdreplay; do \
		$(BIN)/$$b man $(BIN)/man; \
		for s in bash zsh fish; do $(BIN)/$$b completion $$s >$(BIN)/completion/$$b.$$s; done; \
	done; gzip -9n $(BIN)/man/*.1
	GOARCH=$(DEB_ARCH) VERSION=$(VERSION) $(TOOLS)/nfpm-$(NFPM_VERSION) package -f deploy/packages/nfpm.yaml -p deb -t $(BIN)/pdlog_$(VERSION)_$(DEB_ARCH).deb

# What cannot be had here is named at the end; what is found wrong fails.
check-packages: ## package, unit, alerts, metrics, chart, manifests, schemas and the Python client, by the tools of their trades
	-$(call apt,mypy)
	@TOOLS=$(TOOLS) GO=$(GO) HELM=$(TOOLS)/helm-$(HELM_VERSION) DEB=$(BIN)/pdlog_$(VERSION)_$(DEB_ARCH).deb deploy/check.sh

clean: ## remove what was built
	rm -rf $(BIN) $(TOOLS)
