# Targets for people and for CI. `make help` lists them.
GO        ?= go
VERSITYGW ?= github.com/versity/versitygw/cmd/versitygw@v1.8.0
GOLANGCI  ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.6.2
BUF       ?= github.com/bufbuild/buf/cmd/buf@v1.70.0
FUZZTIME  ?= 10m
# Tools are built once into a directory of their own, outside the module.
TOOLS     ?= $(CURDIR)/bin/tools
# The race detector needs a C compiler.
RACE      := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo -race)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# make itself ends by the signal of a Ctrl-C that it gets. On a terminal, job control gives what it runs a process group
# that gets the signal instead. A last command would take the shell's place, and have no group of its own.
FOREGROUND := [ ! -t 0 ] || set -m
.PHONY: run
run: SHELL := /bin/bash
run: ## Start a server on 127.0.0.1:7450 with its data in ./seqledger-data
	$(GO) build -o bin/seqledger ./cmd/seqledger
	@$(FOREGROUND); bin/seqledger serve; exit $$?

.PHONY: cluster
cluster: SHELL := /bin/bash
cluster: ## Run three nodes on this machine, for trying out, with their data in ./seqledger-cluster; Ctrl-C ends them
	$(GO) build -o bin/seqledger ./cmd/seqledger
	@$(FOREGROUND); ( set +m; nodes=; ended=; failed=0; trap ended=1 INT; trap 'ended=1; kill $$nodes' TERM; \
	for n in 1 2 3; do \
		join=; [ $$n = 1 ] || join="--join 127.0.0.1:7451 --join-token-file seqledger-cluster/n1/JOIN-TOKEN"; \
		bin/seqledger serve --data seqledger-cluster/n$$n --listen 127.0.0.1:74$$((4 + n))0 \
			--peer-listen 127.0.0.1:74$$((4 + n))1 $$join & nodes="$$nodes $$!"; \
	done; \
	while [ -n "$$(jobs -pr)" ]; do \
		wait -n && [ -z "$$ended" ] && continue; \
		[ -n "$$ended" ] || { failed=1; ended=1; kill $$nodes 2>/dev/null; }; \
	done; \
	for node in $$nodes; do wait $$node || failed=1; done; exit $$failed )

# What the tests of stores in databases need besides Go, and CI has.
.PHONY: test-servers
test-servers: ## Tell which database servers are missing here, whose tests are skipped
	@for server in postgres:postgresql redis-server:redis-server pgbouncer:pgbouncer; do \
	  command -v $${server%%:*} >/dev/null || test -x /usr/sbin/$${server%%:*} || \
	  ls /usr/lib/postgresql/*/bin/$${server%%:*} >/dev/null 2>&1 || \
	  echo "there is no $${server%%:*}: its tests are skipped; apt-get install $${server#*:}"; \
	done
	@command -v versitygw >/dev/null || test -x $(TOOLS)/versitygw || \
	  echo "there is no versitygw: the tests of stores in S3 are skipped; make test-stores builds it"

STORE_TESTS := ./client/idempotency/postgres ./client/idempotency/redis ./client/idempotency/s3/... ./ledger/archive/s3 ./client/follow ./internal/storeurl
.PHONY: test-stores
test-stores: $(TOOLS)/versitygw ## Test the stores of keys over PostgreSQL, Redis and S3, which must be installed
	RACE_FOR=10s SEQLEDGER_TEST_SERVERS=1 PATH="$(TOOLS):$$PATH" $(GO) test -count=1 -timeout 15m $(STORE_TESTS)

.PHONY: bench-stores
bench-stores: $(TOOLS)/versitygw ## Measure a reservation and its result on each store of keys, beside a bare write to it
	PATH="$(TOOLS):$$PATH" $(GO) test -run '^$$' -bench '^BenchmarkStore$$' -count 3 -p 1 ./client/idempotency/...

# What the program says of itself. Archives have no git: give VERSION and REVISION there.
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS   := -X main.version=$(VERSION) -X main.revision=$(REVISION)

.PHONY: build
build: ## Build ./bin/seqledger
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/seqledger ./cmd/seqledger

# In memory, where there is a file system of it with room: what the tests say of syncs, they
# say by failing them and not by their time.
IN_MEMORY := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4194304 {print "TMPDIR=/dev/shm"}')
# Some seventy programs are linked: without tables for debuggers that takes two thirds of the
# time, and stack traces are the same. make lint and make test-long vet.
# Most tests wait for processes and disks: four at a time keep two processors busy. A collector that runs more seldom
# takes less of their time.
TEST_FLAGS := -short -vet=off -ldflags='-s -w' -timeout 15m
.PHONY: test
test: test-servers ## Run the tests, shortened (-short)
	@echo "make test takes some four minutes on two cores; make test-race looks for races, and make test-long"
	@echo "runs at full length what is shortened here"
	$(IN_MEMORY) GOGC=400 $(GO) test $(TEST_FLAGS) -parallel 4 ./...

# The packages whose own goroutines share memory. Not here are the state machine, the simulations and the formats, which
# are one thread, and cmd/seqledger, whose tests start processes that are built without the detector. RACED=./... takes
# all. At its end a program with the detector sleeps for a second by default, and the tests start hundreds.
RACED ?= ./client ./client/internal/... ./client/journal ./client/writer ./client/idempotency/internal/... \
  ./internal/gateway ./internal/mcp/... ./internal/upgrade ./ledger ./ledger/blockfile ./ledger/boltstore \
  ./ledger/raftlog ./ledger/raftlog/transport ./ledger/seed ./ledger/witness ./server/...
.PHONY: test-race
test-race: ## Run the tests of packages whose goroutines share memory with the race detector, shortened
	@test -n "$(RACE)" || { echo "the race detector needs a C compiler"; exit 1; }
	$(IN_MEMORY) GORACE=atexit_sleep_ms=0 $(GO) test $(TEST_FLAGS) $(RACE) $(RACED)

# The directories of packages with tests that -short shortens: they ask testing.Short, or package rapidtest does.
TEST_SOURCES := {{range .TestGoFiles}}{{$$.Dir}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$.Dir}}/{{.}} {{end}}
LONG := $(GO) list -f '$(TEST_SOURCES)' ./... | xargs grep -lE 'testing\.Short\(\)|rapidtest\.' | xargs -n 1 dirname | sort -u
.PHONY: test-long
test-long: ## Run at full length the packages that make test shortens, but for make test-damage
	@echo "make test-long takes some ten minutes longer than make test; make test-damage damages small files in every place"
	$(GO) vet ./...
	$(GO) test -vet=off -ldflags='-s -w' -timeout 30m $$($(LONG))

.PHONY: test-nightly
test-nightly: test-long test-damage ## Run what is too long for .ci/run, for a scheduled job (some three hours)
	$(MAKE) test-race RACED=./...
	$(MAKE) sim COMMANDS=10000000
	$(MAKE) sim-cluster DURATION=1h
	$(MAKE) fuzz FUZZTIME=1m

# Empty means one that nobody has had yet; a failure prints it.
SEED      ?=
COMMANDS  ?= 1000000
.PHONY: sim
sim: ## Simulate COMMANDS commands (default a million) from SEED; a failure prints the line that repeats it
	SIM_SEED=$(SEED) SIM_COMMANDS=$(COMMANDS) $(GO) test -count=1 -v -timeout 60m -run '^TestSimulation$$' ./ledger/sim

.PHONY: sim-cluster
sim-cluster: SEEDS ?= $(if $(DURATION),1,100)
sim-cluster: ## Simulate SEEDS clusters (default 100) from SEED, or new ones for DURATION (3m), and write what they met into SUMMARY
	SIM_SEED=$(SEED) SIM_SEEDS=$(SEEDS) SIM_DURATION=$(DURATION) SIM_SUMMARY=$(abspath $(SUMMARY)) SIM_WITHOUT=$(WITHOUT) \
	  $(GO) test -count=1 -v -timeout $(if $(DURATION),0,60m) -run '^TestCluster$$' ./ledger/sim

# The same tests run with make test, and try some of the bits, cuts and steps. In
# memory, where there is such a file system: nothing is synced, and it takes a third
# of the time.
.PHONY: test-damage
test-damage: ## Damage small files of a ledger in every bit, cut and sector, and kill a restore at every step
	@if [ -w /dev/shm ]; then export TMPDIR=/dev/shm; fi; \
	GOGC=800 GOMEMLIMIT=3GiB SEQLEDGER_DAMAGE_ALL=1 $(GO) test -count=1 -v -timeout 30m -run '^(TestDamage_.*|TestRestoreSurvivesKills)$$' \
	  ./ledger ./ledger/raftlog ./ledger/raftlog/segment ./ledger/blockfile ./ledger/boltstore \
	  ./ledger/archive ./ledger/backupfile ./ledger/internal/boltpage ./server/admission >damage.log 2>&1 || { cat damage.log; rm -f damage.log; exit 1; }
	@grep -E '^ +[a-z]+_test.go:[0-9]+: |^ok ' damage.log; rm -f damage.log

# At the end of its time Go's fuzzer may lose a race and fail without a finding
# (golang/go#75804). That must not keep the targets behind it from running.
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 10m) each
	@set -e; list=$$($(MAKE) -s fuzz-list); log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	echo "$$list" | while read -r pkg f; do \
	  echo "== $$pkg $$f"; \
	  { $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg </dev/null 2>&1 || echo "fuzz: failed"; } | tee "$$log"; \
	  if grep -q '^fuzz: failed$$' "$$log"; then \
	    grep -q '^    context deadline exceeded$$' "$$log" && ! grep -q 'Failing input written\|^panic:' "$$log" || exit 1; \
	    echo "fuzz: nothing was found: the fuzzer ran out of its own time"; \
	  fi; \
	done

# What the packages have is compared with what the sources have: a target in a
# file that is not built here, or in another module, would never be run.
.PHONY: fuzz-list
fuzz-list: ## List the fuzz targets; fail when make fuzz would leave one out
	@set -e; found=0; packages=$$($(GO) list $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u)); \
	for pkg in $$packages; do \
	  list=$$($(GO) test -list '^Fuzz' $$pkg); \
	  for f in $$(echo "$$list" | sed -n '/^Fuzz/p'); do echo "$$pkg $$f"; found=$$((found + 1)); done; \
	done; \
	written=$$(grep -rhE '^func Fuzz' --include='*_test.go' . | wc -l); \
	test $$found -eq $$written || { echo "make fuzz finds $$found of the $$written fuzz targets in the sources" >&2; exit 1; }

.PHONY: bench
bench: ## Measure on this machine and print a table (a few minutes)
	$(GO) run ./bench

.PHONY: bench-peers
bench-peers: ## Measure beside PostgreSQL, Redis, NATS, etcd and Restate (25 minutes; PEERS="-list" tells which are here)
	@$(MAKE) --no-print-directory $(TOOLS)/restate-server || echo "without Restate, whose server npm did not give"
	$(GO) -C bench/peers build -o $(CURDIR)/bin/peers .
	PATH="$(TOOLS):$$PATH" bin/peers -out bench/results $(PEERS)

.PHONY: bench-check
bench-check: ## Fail when this tree is more than 15 % slower than an older revision (CHECK="-baseline v1.2.0")
	$(GO) run ./bench check $(CHECK)

.PHONY: bench-allocs
bench-allocs: ## Fail when a write allocates more often than bench/allocs.json says
	$(GO) run ./bench allocs

# The packages have exact versions and their hashes in the lock file, and run no scripts of theirs.
.PHONY: mcp-peers
mcp-peers: ## Test seqledger mcp guard before an MCP server from npm (needs node and npm)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cp cmd/seqledger/testdata/mcpservers/*.json "$$dir" && \
	  npm ci --prefix "$$dir" --ignore-scripts --no-audit --no-fund && \
	  MCP_PEERS="$$dir" $(GO) test -count=1 -timeout 5m -run '^TestGuardBeforeAServerOfOthers$$' ./cmd/seqledger

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/buf check-words ## Run the linters over Go and proto, and over the words of comments
	$(TOOLS)/golangci-lint run ./...
	cd bench/peers && $(abspath $(TOOLS))/golangci-lint run ./...
	$(TOOLS)/buf lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }

.PHONY: check-words
check-words: ## Fail when comments, help texts or documents have phrases that do not read as plain English
	$(GO) test -count=1 ./internal/words

# bench measures Linux alone, and what starts servers for tests needs a Unix.
CROSS_VET := $(GO) list ./... | grep -v '/bench\(/\|$$\)'
.PHONY: cross
cross: ## Build the command and the clients for macOS and Windows, and vet them with their tests
	for target in darwin/amd64 darwin/arm64 windows/amd64; do echo "cross: $$target"; \
	  GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) build -o /dev/null ./cmd/seqledger || exit 1; done
	GOOS=darwin GOARCH=arm64 $(GO) vet $$($(CROSS_VET))
	GOOS=windows GOARCH=amd64 $(GO) build ./client/...
	GOOS=windows GOARCH=amd64 $(GO) vet ./client ./client/op ./client/failure ./client/proof ./client/writer ./client/journal

# What a build leaves behind stays in every clone for ever once it is committed.
.PHONY: check-tree
check-tree: ## Fail when a tracked file is an executable or has more than 1 MiB
	@git -c core.quotePath=false ls-files | { bad=0; while IFS= read -r f; do \
	  test -f "$$f" || continue; \
	  case $$(od -An -N4 -tx1 "$$f" | tr -d ' ') in \
	    7f454c46|feedface|feedfacf|cefaedfe|cffaedfe|cafebabe|4d5a*) echo "$$f is an executable: git rm --cached it" >&2; bad=1;; \
	  esac; \
	  size=$$(wc -c <"$$f"); \
	  test $$size -le 1048576 || { echo "$$f has $$size bytes, more than 1 MiB: keep it elsewhere" >&2; bad=1; }; \
	done; exit $$bad; }

.PHONY: check-size
check-size: ## Print the lines of each area beside the most that .ci/sizes allows; fail above
	@.ci/check-size

.PHONY: breaking
breaking: $(TOOLS)/buf ## Check that the API stays compatible with proto/released.binpb
	$(TOOLS)/buf breaking --against proto/released.binpb

# Debian's python3-grpc-tools has protoc 3.5, the oldest compiler in common use:
# it knows no optional in proto3.
PYTHON    ?= /usr/bin/python3
.PHONY: check-python
check-python: ## Fail when the compiler of Debian's python3-grpc-tools refuses a .proto file
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	  $(PYTHON) -m grpc_tools.protoc -I proto --python_out="$$out" --grpc_python_out="$$out" proto/seqledger/v1/*.proto

.PHONY: release-api
release-api: $(TOOLS)/buf ## Make the API as it is the one to stay compatible with
	$(TOOLS)/buf build -o proto/released.binpb

.PHONY: generate
generate: $(TOOLS)/buf ## Generate Go from the .proto files
	$(TOOLS)/buf generate

.PHONY: check-generated
check-generated: generate ## Fail when the committed Go is not what the .proto files give
	git diff --exit-code -- proto
	@test -z "$$(git ls-files --others --exclude-standard proto)" || { echo "generated files are not committed"; exit 1; }

# The TypeScript client is apart from make test, which needs Go alone. The packages have exact versions
# and their hashes in the lock file, and run no scripts of theirs. Its tests end with --test-force-exit because
# Node 20 sometimes spins in Environment::CleanupHandles, after all of them, when an HTTP/2 connection was cut.
# Deno and Bun are called themselves: the scripts that npm puts before them outlive a program that is killed.
WEB := client/typescript
.PHONY: test-web
test-web: check-generated-web check-console ## Build and test the TypeScript client against a real server (needs node 20 and npm, which brings Deno and Bun, and chromium for the browser tests)
	$(GO) build -o bin/web/ ./cmd/seqledger ./internal/testkit/gopayer
	npm --prefix $(WEB) run build
	SEQLEDGER=$(CURDIR)/bin/web/seqledger GOPAYER=$(CURDIR)/bin/web/gopayer npm --prefix $(WEB) test
	rm -rf bin/web/conformance && mkdir bin/web/conformance
	$(call conformance,go,--parallel 4 --timeout 5m)
	$(call conformance,node-calls,--parallel 4 --timeout 5m --client 'node $(WEB)/dist/test/driver.js')
	$(call conformance,node-websocket,--parallel 4 --timeout 5m --client 'node --experimental-websocket $(WEB)/dist/test/driver.js --stream')
	$(call conformance,node-http2,--parallel 4 --timeout 5m --client 'node $(WEB)/dist/test/driver.js --http2')
	@missing=; \
	deno=$${DENO:-$$(ls $(WEB)/node_modules/@deno/*/deno 2>/dev/null | head -n 1)}; \
	bun=$${BUN:-$$(ls $(WEB)/node_modules/@oven/bun-*/bin/bun 2>/dev/null | head -n 1)}; \
	if [ -x "$$deno" ]; then \
	  $(call conformance,deno-calls,--parallel 3 --timeout 5m --client "$$deno run -A $(WEB)/dist/test/driver.js"); \
	  $(call conformance,deno-websocket,--parallel 3 --timeout 5m --client "$$deno run -A $(WEB)/dist/test/driver.js --stream"); \
	else missing="$$missing Deno,"; fi; \
	if [ -x "$$bun" ]; then \
	  $(call conformance,bun-calls,--parallel 3 --timeout 5m --client "$$bun $(WEB)/dist/test/driver.js"); \
	  $(call conformance,bun-websocket,--parallel 3 --timeout 5m --client "$$bun $(WEB)/dist/test/driver.js --stream"); \
	else missing="$$missing Bun,"; fi; \
	if [ -x "$${CHROMIUM:-/usr/bin/chromium}" ]; then \
	  $(call conformance,chromium,--parallel 3 --timeout 5m --client 'node $(WEB)/dist/test/browser/driver.js'); \
	else missing="$$missing Chromium,"; fi; \
	if [ -n "$$missing" ]; then \
	  echo "not tested, because it is missing:$${missing%,} (npm brings Deno and Bun; for Chromium apt-get install chromium," \
	    "or set DENO, BUN or CHROMIUM to the path of a program)"; \
	  test "$$SEQLEDGER_TEST_WEB" != 1; fi
	$(GO) test ./cmd/seqledger -count=1 -run TestConformanceTable -conformance $(CURDIR)/bin/web/conformance

# Holds a client against its duties, and keeps the report, with which the table in docs/conformance.md is compared.
# Five minutes a case: some start Node sixteen times, which a loaded machine may not do in two.
conformance = bin/web/seqledger conformance --json --short $(2) >bin/web/conformance/$(1).json \
	|| { cat bin/web/conformance/$(1).json; exit 1; }

# Its built files are committed, so that Go alone builds the server.
CONSOLE := server/console
.PHONY: console
console: ## Build the console into server/console/dist (needs node 20 and npm)
	npm ci --prefix $(CONSOLE) --ignore-scripts --no-audit --no-fund
	npm --prefix $(CONSOLE) run build

.PHONY: check-console
check-console: web-modules console ## Fail when the committed console is not what its sources give
	npm --prefix $(CONSOLE) run check
	git diff --exit-code -- $(CONSOLE)/dist
	@test -z "$$(git ls-files --others --exclude-standard $(CONSOLE)/dist)" || { echo "built files are not committed"; exit 1; }

.PHONY: bench-web
bench-web: web-modules ## Measure the TypeScript client in Node against a server on this machine
	$(GO) build -o bin/web/ ./cmd/seqledger
	npm --prefix $(WEB) run build
	bash $(WEB)/bench/run bin/web/seqledger $(WEB)/dist/bench/writes.js

.PHONY: web-modules
web-modules:
	npm ci --prefix $(WEB) --ignore-scripts --no-audit --no-fund

.PHONY: generate-web
generate-web: web-modules $(TOOLS)/buf ## Generate TypeScript from the .proto files (needs node 20 and npm)
	$(TOOLS)/buf generate --template $(WEB)/buf.gen.yaml

.PHONY: check-generated-web
check-generated-web: generate-web ## Fail when the committed TypeScript is not what the .proto files give
	git diff --exit-code -- $(WEB)/src/gen
	@test -z "$$(git ls-files --others --exclude-standard $(WEB)/src/gen)" || { echo "generated files are not committed"; exit 1; }

$(TOOLS)/golangci-lint:
	GOBIN=$(TOOLS) $(GO) install $(GOLANGCI)

$(TOOLS)/versitygw:
	GOBIN=$(TOOLS) $(GO) install $(VERSITYGW)

# Its licence (BSL 1.1) permits to run it for tests. The package for this platform has the program.
$(TOOLS)/restate-server:
	npm install --prefix $(TOOLS)/restate --ignore-scripts --no-audit --no-fund --no-save @restatedev/restate-server@1.7.12
	ln -sf $(TOOLS)/restate/node_modules/@restatedev/restate-server-*/bin/restate-server $@

$(TOOLS)/buf:
	GOBIN=$(TOOLS) $(GO) install $(BUF)

.PHONY: release
release: $(TOOLS)/cyclonedx-gomod ## Build the programs of a release into bin/release, with checksums and an SBOM
	@VERSION='$(VERSION:%-dirty=%)' REVISION='$(REVISION)' TOOLS='$(TOOLS)' .ci/release

# Its module has no list of versions at the proxy, without which go install does not work.
$(TOOLS)/cyclonedx-gomod:
	$(GO) build -C .ci/sbom -o $@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
