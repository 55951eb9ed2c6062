# `make help` lists each target that has a comment after two hashes.
GO ?= go

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## a relay, a host and three players in one process
	$(GO) run ./cmd/demo

.PHONY: build
build: ## bin/ferry
	$(GO) build -o bin/ferry ./cmd/ferry

.PHONY: test
test: ## the tests, as README says
	$(GO) test ./...

.PHONY: check
check: fmt tidy rows subjects vet foreign staticcheck race portable ## gofmt, vet, other systems, staticcheck, go.mod, tests with the race detector

.PHONY: ci
ci: ## what CI runs: checks, tests, and the suites whose inputs changed (root)
	$(GO) run ./scripts/ci

.PHONY: due
due: ## which suites CI would run, and why
	$(GO) run ./scripts/ci -due

.PHONY: nightly
nightly: ## everything but goals of time and rate, with long forms of fuzz, model, race and fast path (root; an hour)
	$(GO) run ./scripts/ci -nightly

.PHONY: fmt
fmt:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }

# SUBJECTS_SINCE is the commit after which subjects are checked; a shallow clone without it has newer ones only.
SUBJECTS_SINCE ?= 704dddc2b021eaa141d56a5f78fc6b7127aa22c3

.PHONY: subjects
subjects: ## commits have subjects of at most 72 characters
	@since=$(SUBJECTS_SINCE); git cat-file -e "$$since^{commit}" 2>/dev/null || since=; \
	! git log --no-merges --format='%h %s' HEAD $${since:+--not $$since} | LC_ALL=C.UTF-8 grep -E '^[^ ]+ .{73}' || \
		{ echo "subjects of more than 72 characters"; exit 1; }

.PHONY: vet
vet:
	$(GO) vet -tags 'lab mutants browser' ./...

.PHONY: foreign
foreign: ## type-check everything for macOS and Windows
	$(GO) run ./scripts/ci/typecheck darwin windows

# CROSS are the systems of developers on which no test here runs; make release builds for the others too.
CROSS = windows/amd64 darwin/arm64

.PHONY: cross
cross: ## build ferry for Windows and macOS
	@set -e; for to in $(CROSS); do echo "ferry for $$to"; \
		GOOS=$${to%/*} GOARCH=$${to#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/ferry; done

.PHONY: staticcheck
staticcheck:
	$(GO) tool staticcheck ./...

# VULNDB is the database: the address of a mirror, or file:// and the path of a copy.
VULNDB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## known vulnerabilities of called code, if VULNDB (default https://vuln.go.dev) answers
	@if out=$$($(GO) tool govulncheck -db $(VULNDB) ./... 2>&1); then echo "$$out"; \
	elif echo "$$out" | grep -q 'fetching vulnerabilities'; then echo "vulncheck: not run, since the database does not answer: $$out"; \
	else echo "$$out"; exit 1; fi

# Before v1 an incompatible change is listed, for the notes of the release; from v1 on it fails.
APIDIFF = $(GO) run golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4 -m

.PHONY: apidiff
apidiff: ## changes of the public Go packages since the last tag
	@tag=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || { echo "apidiff: there is no tag to compare with yet"; exit 0; }; \
	module=$$($(GO) list -m); old=$$(mktemp -d); trap 'git worktree remove --force "$$old/tree"; rm -rf "$$old"' EXIT; \
	git worktree add -q --detach "$$old/tree" "$$tag" && \
	(cd "$$old/tree" && $(APIDIFF) -w "$$old/api" "$$module" 2>"$$old/log") || { cat "$$old/log"; exit 1; }; \
	$(APIDIFF) "$$old/api" "$$module" >"$$old/all" 2>"$$old/log" || { cat "$$old/log"; exit 1; }; \
	echo "apidiff: since $$tag:"; cat "$$old/all"; \
	case "$$tag" in v0.*) ;; *) ! grep -q '^Incompatible' "$$old/all" ;; esac

.PHONY: tidy
tidy:
	$(GO) mod tidy -diff

# RACED are the packages whose code starts goroutines or is used by several of them.
RACED = $(shell grep -rlE --include='*.go' --exclude='*_test.go' '^\s+go (func|[a-z])|"sync(/atomic)?"' alloc bench client cmd/ferry/internal engine examples internal proto relay | xargs -n 1 dirname | sort -u | sed 's|^|./|')

# RACE are options of go test: CI gives -short, with which simulations that run on one
# goroutine run fewer sequences.
.PHONY: race
race: ## tests with the race detector; the model runs fewer sequences
	$(GO) test -race -vet=off $(RACE) -timeout 20m $(RACED)

.PHONY: raced
raced:
	@echo $(RACED)

.PHONY: portable
portable: ## the portable sockets pass the suites of engine and client; simulations, without sockets, are short
	$(GO) test -short -tags sockportable ./engine/... ./internal/net/... ./client ./client/netcode/...

# MODEL is how many sequences.
MODEL ?= 200000

.PHONY: model
model: ## the reference model against the engine, 200,000 sequences (8 to 15 minutes)
	$(GO) test ./engine -run 'TestModel$$' -model.sequences $(MODEL) -timeout 60m -v

.PHONY: stress
stress: ## workers and control against each other with the race detector, thirty times as long as in a test run, more of other simulations, and waits of a minute (4 to 6 minutes)
	$(GO) test -race ./engine -count=1 -run 'TestStress$$' -stress.rounds 1200 -v
	$(GO) test ./engine ./engine/internal/table ./internal/net/sock -count=1 -run 'TestExpiryMillion|TestRecoverInTime|TestMillion|Scripts' -long -v
	$(GO) test ./internal/server/process -count=1 -run 'TestACMEAuthorityDown$$' -long -v
	$(GO) test ./internal/fleet/placement -count=1 -run 'TestFleetSimulation$$' -allocations 100000
	$(GO) test ./internal/test/storetest -count=1 -run 'TestMigration$$' -migration.seeds 1000

# A fuzz run is limited by executions: a time limit can end in the middle of an
# execution, which fails without a reason.
FUZZ ?= 100000x

# The program in the kernel is compiled by Debian 12's clang, and in the repository, so that
# go build needs no clang. CI compiles it again and compares the bytes.
BPF = engine/internal/program
BPF_CC = clang-14 -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -fdebug-compilation-dir=. -fno-ident \
	-I/usr/include/$$(uname -m)-linux-gnu -c relay.c

.PHONY: fast-path-object
fast-path-object: ## compile the program in the kernel (clang-14, llvm-14, libbpf-dev)
	cd $(BPF) && $(BPF_CC) -o relay.o && llvm-strip-14 -g relay.o

.PHONY: fast-path-check
fast-path-check: ## compile it again and compare with the one in the repository
	@out=$$(mktemp) && trap 'rm -f "$$out"' EXIT && (cd $(BPF) && $(BPF_CC) -o "$$out" && llvm-strip-14 -g "$$out") && \
		cmp "$$out" $(BPF)/relay.o && echo "$(BPF)/relay.o is relay.c as clang-14 compiles it"

# FAST_PATH is how many datagrams, FAST_MODEL how many sequences of the model.
FAST_PATH ?= 5000000
FAST_MODEL ?= 10000

.PHONY: fast-path
fast-path: ## the program in the kernel against the worker, 5,000,000 datagrams and 10,000 sequences of the model (root; 5 minutes)
	FERRY_FAST_PATH=$(FAST_PATH) $(GO) test ./engine -count=1 -v -run 'TestFastPath' -timeout 30m
	$(GO) test ./engine -count=1 -v -run 'TestModelFastPath' -model.sequences $(FAST_MODEL) -timeout 30m

.PHONY: fast-path-lab
fast-path-lab: ## the laboratory with the program in the kernel (root)
	$(LAB) -skip TestWorld -xdp tc -timeout 30m

# The console's bundle is in the repository, so that go build needs no npm. CI builds it again
# and compares. The packages of package-lock.json come from the npm registry.
CONSOLE = internal/server/operator/console/web
CONSOLE_BUILD = cd $(CONSOLE) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npx tsc --noEmit && \
	$(GO) tool esbuild src/app.tsx --bundle --minify --target=es2022 --format=esm --legal-comments=linked \
	--jsx=automatic --jsx-import-source=preact --log-level=warning --outdir=$$out && cp src/index.html src/licenses.txt $$out/
# The page of bench/report has the same uPlot.
REPORT = bench/report/page
UPLOT = $(CONSOLE)/node_modules/uplot

.PHONY: console
console: ## build the operator's console (npm)
	@out=../dist; rm -rf internal/server/operator/console/dist; $(CONSOLE_BUILD)
	@cp $(UPLOT)/dist/uPlot.iife.min.js $(UPLOT)/dist/uPlot.min.css $(REPORT)/ && cp $(UPLOT)/LICENSE $(REPORT)/uPlot.LICENSE

.PHONY: site
site: ## the documentation as static pages in out/site
	rm -rf out/site && mkdir -p out/site/console
	cp docs/html/* docs/*.svg docs/vectors.json out/site && cp docs/console/overview.png out/site/console

.PHONY: console-check
console-check: ## build it again and compare with the one in the repository (npm)
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && ($(CONSOLE_BUILD)) && diff -r "$$out" internal/server/operator/console/dist && \
		cmp $(UPLOT)/dist/uPlot.iife.min.js $(REPORT)/uPlot.iife.min.js && cmp $(UPLOT)/dist/uPlot.min.css $(REPORT)/uPlot.min.css && \
		echo "internal/server/operator/console/dist is $(CONSOLE) as esbuild builds it"

# client/js and examples/browser are type-checked with the compiler of client/js/package-lock.json.
# Their bundles are in no repository: esbuild builds them in the tests.
.PHONY: client-js-install
client-js-install:
	cd client/js && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error

.PHONY: client-js-check
client-js-check: client-js-install ## type-check client/js and examples/browser, build the package and check how it is packed (npm)
	cd client/js && npm run -s check && npm run -s build && npm run -s lint

.PHONY: client-js
client-js: client-js-check ## the same, then their tests in Chromium and Node with the relay (npm, chromium, node)
	$(GO) test -tags browser ./internal/test/blackbox -count=1 -run 'TestJavaScript|TestBrowserExample'

.PHONY: clients
clients: ## situations of the clients in Go, C, C# and GDScript that take up to a minute (gcc, clang-14, mono-mcs, godot3-server)
	$(GO) test -count=1 ./client ./client/c ./client/csharp/... ./client/godot -run 'TestTable|TestSituations|TestHostKilled|TestTwoSessions|TestCPlusPlus' -long

.PHONY: browser-test
browser-test: client-js-install ## browsers as players, client/js and the console in Chromium (chromium, node, npm)
	$(GO) test -tags browser ./internal/test/blackbox -count=1 -run 'TestJavaScript|TestBrowser|TestConsole'

.PHONY: browser-example
browser-example: ## serve examples/browser at http://127.0.0.1:8000
	$(GO) tool esbuild examples/browser/main.ts --bundle --format=esm --target=es2022 --outdir=examples/browser --servedir=examples/browser --serve=127.0.0.1:8000

# PKGS are the packages whose fuzz targets run.
PKGS ?= ./...

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZ executions
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	for dir in $$($(GO) list -f '{{.Dir}}' $(PKGS)); do \
		targets=$$(cat "$$dir"/*_test.go 2>/dev/null | sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p'); \
		if [ -z "$$targets" ]; then continue; fi; \
		$(GO) test -c -fuzz . -o "$$out/fuzz.test" "$$dir"; \
		for target in $$targets; do \
			echo "$$dir $$target"; \
			(cd "$$dir" && "$$out/fuzz.test" -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $(FUZZ) -test.fuzzcachedir "$$out/corpus"); \
		done; \
	done

.PHONY: micro
micro: ## micro-benchmarks of codec, table, step and admission
	$(GO) test -run '^$$' -bench . -benchtime 0.5s -count 3 ./proto ./engine/internal/table ./engine ./internal/net/sock

# The laboratory needs root and iproute2. It creates network namespaces and removes
# them afterwards; no datagram leaves them.
LAB = $(GO) test -tags lab ./scripts/lab -count=1 -v -timeout 20m

.PHONY: lab
lab: ## attacks and faults against the binary in namespaces, quick forms (root)
	$(LAB) -skip TestWorld

.PHONY: lab-some
lab-some: ## a test of each kind, which CI runs when it does not run all (root)
	$(LAB) -run 'TestAttackReflection|TestFloodMalformed|TestReflection$$|TestRecover$$|TestFamilies|TestUpgrade$$'

# WORLD is how many rows run at once: they mostly wait. They need nftables and ethtool.
WORLD ?= 6

.PHONY: world
world: ## a small game in each network, transport and change that players have; a table with verdicts (15 minutes; root)
	$(LAB) -run TestWorld -world.all -long -parallel $(WORLD) -timeout 60m

.PHONY: world-some
world-some: ## every pair of two properties of a network, in 95 rows of the same table, and our clients in 15 (2 minutes; root)
	$(LAB) -run TestWorld -parallel 10 -timeout 10m

# ATTACK is how long each attack and flood lasts.
ATTACK ?= 10s

.PHONY: attack
attack: ## all attacks, with rates and p99, and one table of what each costs honest players (root)
	$(LAB) -run 'TestAttack|TestFlood|TestReflection|TestScan|TestMemoryCap|TestSlowCallers|TestWorldBadDays/no_descriptor' -attack.duration $(ATTACK) -flood.duration $(ATTACK) -long -timeout 40m

# FLOOD is how long the flood of malformed datagrams lasts.
FLOOD ?= 60s

.PHONY: flood
flood: ## floods of 100,000/s for FLOOD, BIND floods for half of that (root)
	$(LAB) -run Flood -flood.duration $(FLOOD) -long -timeout 40m

.PHONY: upgrade
upgrade: ## ten upgrades in a row under 1,000 matches at 20/s, and over IPv6 and with each xdp; counts lost datagrams (root)
	$(LAB) -run 'TestUpgrade' -upgrade.matches 1000 -upgrade.count 10 -long

.PHONY: recover
recover: ## kill -9 under 1,000 matches; counts recovered matches (root)
	$(LAB) -run TestRecover -recover.matches 1000 -long

.PHONY: storm
storm: ## 1,000 clients that change their port each second for a minute (root)
	$(LAB) -run TestRoamStorm -storm.clients 1000 -storm.duration 60s -long

.PHONY: faults
faults: ## the process or the network stops for 25 s (root)
	$(LAB) -run 'TestPause|TestLinkDown|TestRoutes' -fault.duration 25s -long

.PHONY: memory
memory: ## a cap of 256 MiB under flood and reservations, until it is full and a minute more (root)
	$(LAB) -run TestMemoryCap -memory.duration 60s -long

# The fleet needs a store as well: redis-server, or another program with the same settings, for
# example STORE=valkey-server. The tests fail without it.
STORE ?= redis-server
FLEET = REDIS_SERVER=$(STORE) $(GO) test -tags lab ./scripts/fleet -count=1 -v

.PHONY: store
store: ## the tests of packages that use the store, with STORE
	REDIS_SERVER=$(STORE) $(GO) test -count=1 ./internal/fleet/redisstore
	REDIS_SERVER=$(STORE) $(GO) test -count=1 ./internal/server/process -run 'Fleet|Store|Ban|Quota|Migration|KeptCodes|Departure'

.PHONY: fleet
fleet: ## relays, API nodes and Redis die and restart under 1,000 matches (about 2 minutes; root)
	$(FLEET) -fleet.matches 1000 -fleet.pause 60s -fleet.allocate 10s -long -timeout 30m

.PHONY: fleet-quick
fleet-quick: ## the same with 200 matches, decided by counts (root)
	$(FLEET)

.PHONY: fleet-some
fleet-some: ## an API process and a relay are killed, which CI runs when it does not run all (root)
	$(FLEET) -run 'TestFleet$$/^(api_killed|relay_killed)$$'

# SOAK is how long clients come and go.
SOAK ?= 1h

.PHONY: soak
soak: ## clients come and go for SOAK; memory, goroutines and tables afterwards (root)
	$(LAB) -run TestSoak -soak.duration $(SOAK) -long -timeout 26h

# MILLION is how long matches come and go, MATCHES the live ones over sockets (two
# allocations each), REPLACE those that are replaced in a second, RATE datagrams per second.
MILLION ?= 10m
MATCHES ?= 100000
REPLACE ?= 100
RATE ?= 50000
PING ?= 7s

.PHONY: million
million: million-sim ## MATCHES live over sockets for MILLION, REPLACE of them replaced in a second (root), after million-sim
	$(LAB) -run TestMillion -million.matches $(MATCHES) -million.replace $(REPLACE) -million.rate $(RATE) -million.ping $(PING) -million.duration $(MILLION) -long -timeout 3h

.PHONY: million-sim
million-sim: ## a million live allocations without sockets, 5,000 replaced in a second of MILLION in simulated time
	$(GO) test ./engine -count=1 -v -run 'TestTurnover$$' -turnover.matches 500000 -turnover.rate 2500 -turnover.relays 50000 -turnover.time $(MILLION) -timeout 3h

.PHONY: rows
rows: ## check that each row of the mutation table still matches its package (fast)
	$(GO) test -tags mutants -run TestTable ./scripts/ci/mutants

.PHONY: mutants
mutants: ## break the most important rules, one at a time; the test of each must fail (5 to 15 minutes)
	$(GO) test -tags mutants ./scripts/ci/mutants -count=1 -v -timeout 60m

# PEERS are options: make peers PEERS='--only c,ferry'. A relay whose
# package is missing is left out. COTURN=DIRECTORY builds coturn from its sources.
.PHONY: peers
peers: ## Ferry next to coturn, pion/turn and a bare loop in C: one table of ratios (2 minutes on a quiet machine)
	$(GO) -C scripts/bench/peers build -o $(CURDIR)/bin/peers .
	bin/peers $(if $(COTURN),--coturn $(COTURN)) $(PEERS)

.PHONY: ratios
ratios: ## append the ratios of the last make peers to out/ratios.tsv, with day, commit and machine (jq)
	jq -r -f scripts/bench/peers/ratios.jq out/peers.json >>out/ratios.tsv

.PHONY: transports
transports: ## processor time per datagram and latency by transport, udp : dtls : ws : wss, in rounds (2 processors, openssl; 3 minutes)
	$(GO) build -o bin/ferry ./cmd/ferry
	FERRY=bin/ferry scripts/bench/transports/ratios.sh

# FRAMES are options: make fast-path-figures FRAMES='--allocations 1000000 --load 50000x32'
.PHONY: fast-path-figures
fast-path-figures: ## the fast path next to the C loop, with frames from XDP (root, clang-14; 4 minutes)
	$(GO) -C scripts/bench/peers build -o $(CURDIR)/bin/peers .
	bin/peers frames $(FRAMES)

.PHONY: capacity
capacity: ## what a large machine carries, by a model with measured unit costs
	$(GO) run ./scripts/capacity

# IDLE are options: make idle IDLE="--others 'turnserver -n'"
.PHONY: idle
idle: ## processor time of a relay without traffic, with 1 and with 301 interfaces (root; 3 minutes)
	$(GO) run ./scripts/bench/idle $(IDLE)

.PHONY: peers-test
peers-test: ## tests of the module of make peers
	$(GO) -C scripts/bench/peers vet ./...
	$(GO) -C scripts/bench/peers test ./...

.PHONY: openapi-test
openapi-test: ## a client that oapi-codegen generates from openapi.yaml compiles and works
	$(GO) -C scripts/openapi vet ./...
	$(GO) -C scripts/openapi test ./...

# The version is the tag of the commit, or what Go makes of a commit without one.
.PHONY: release
release: ## archives, packages, image, SBOM, provenance and checksums in out/release (git, npm; 3 minutes)
	rm -rf out/release
	$(GO) -C scripts/release run . --out $(CURDIR)/out/release

# The chart's tests are a module of its own, with Helm's and Kubernetes' own packages.
.PHONY: helm-test
helm-test: ## the Helm chart and the manifests against Kubernetes' types and policies; the dashboard and alerts against the metrics
	$(GO) -C scripts/helm vet ./...
	$(GO) -C scripts/helm test ./...

.PHONY: manifests
manifests: ## write scripts/deploy/kubernetes, and the chart's schema and table of values, from the chart
	$(GO) -C scripts/helm test -count=1 -run 'TestManifests|TestSchemaOfSettings|TestValuesPage' . -rewrite

.PHONY: release-test
release-test: ## a release for this platform twice, byte for byte; the package and the image are used (root, dpkg, rpm, npm)
	$(GO) -C scripts/release vet ./...
	$(GO) -C scripts/release test -count=1 .

.PHONY: clean
.PHONY: pins
pins: ## compare the digests of container images in scripts/deploy with their tags (docker buildx; network)
	@grep -rhoE '[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}' scripts/deploy | sort -u | while IFS=@ read -r image pinned; do \
		now=$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}') || exit 1; \
		if [ "$$now" = "$$pinned" ]; then echo "same   $$image"; else echo "moved  $$image  $$pinned -> $$now"; fi; \
	done

clean: ## remove bin and out
	rm -rf bin out
