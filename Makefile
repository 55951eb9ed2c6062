# Every target with a comment behind two hashes shows in `make help`.
GO ?= go

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## a relay, a host and three players in one process
	$(GO) run ./cmd/ferry demo

.PHONY: build
build: ## bin/ferry
	$(GO) build -o bin/ferry ./cmd/ferry

.PHONY: test
test: ## all tests, as README says
	$(GO) test ./...

.PHONY: check
check: fmt vet staticcheck tidy race portable ## what CI runs before the tests: all of it must be green

.PHONY: fmt
fmt:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }

.PHONY: vet
vet:
	$(GO) vet ./...
	$(GO) vet -tags sockportable ./engine/...
	GOOS=darwin $(GO) vet ./...
	GOOS=windows $(GO) vet ./...

.PHONY: staticcheck
staticcheck:
	$(GO) tool staticcheck ./...

.PHONY: tidy
tidy:
	$(GO) mod tidy -diff

.PHONY: race
race: ## all tests with the race detector; the model runs fewer sequences
	$(GO) test -race -timeout 10m ./...

.PHONY: portable
portable: ## the portable sockets pass the engine's suite
	$(GO) test -tags sockportable ./engine/...

.PHONY: model
model: ## the reference model against the engine, 200,000 sequences (about 8 minutes)
	$(GO) test ./engine -run 'TestModel$$' -model.sequences 200000 -timeout 60m -v

# The number of executions bounds a fuzz run: a time can end in the middle of
# one and then fails for no reason.
FUZZ ?= 100000x

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZ executions
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ) $$pkg; \
		done; \
	done

.PHONY: micro
micro: ## micro-benchmarks of codec, table, step and admission
	$(GO) test -run '^$$' -bench . -benchtime 0.5s -count 3 ./proto ./alloc ./engine ./engine/sock

# PEERS are options: make peers PEERS='--quick --only c,ferry'
.PHONY: peers
peers: ## Ferry next to coturn, pion/turn and a bare loop of C: one table of ratios
	$(GO) -C scripts/peers build -o $(CURDIR)/bin/peers .
	bin/peers $(PEERS)

.PHONY: peers-test
peers-test: ## tests of what make peers runs: a module of its own
	$(GO) -C scripts/peers vet ./...
	$(GO) -C scripts/peers test ./...

.PHONY: clean
clean: ## remove what make made
	rm -rf bin out
