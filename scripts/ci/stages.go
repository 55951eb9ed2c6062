package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// stage is a make target.
type stage struct {
	// name is the stage in the tables, in .ci/passed and for -only.
	name string
	// target is the make target, with its variables.
	target string
	// roots are the inputs of a suite: files or directories from the root of the
	// repository, with the packages that they import. A stage without them runs each
	// time.
	roots []string
	// partOf is the suite that this stage is a part of: it runs when that one does not.
	partOf string
	// long is the target that -nightly runs instead, if there is one.
	long string
	// nightly marks a stage that only -nightly runs.
	nightly bool
	// waits marks a stage that mostly waits: it runs beside those that compute.
	waits bool
	// packages is the variable of the target that names packages, each of which is a suite of its
	// own; those that are due run together. Empty: the stage is one suite.
	packages string
	// in returns the directories of such packages, which have tests.
	in func(*tree) ([]string, error)
	// pkg is the directory of the package whose suite this is; empty: it is not of one package.
	pkg string
}

// runsEachTime reports whether nothing is known that the stage depends on.
func (s stage) runsEachTime() bool { return s.roots == nil && s.pkg == "" }

// of returns the suite of one package of the stage.
func (s stage) of(dir string) stage {
	s.name += "/" + dir
	s.target += " " + s.packages + "=." // The command is the same for each.
	s.pkg, s.in = dir, nil
	return s
}

// stages are in the order in which they run, those that wait beside the others: what takes least
// time comes first.
var stages = []stage{
	{name: "fmt", target: "fmt tidy rows subjects"},
	{name: "vet", target: "vet"},
	{name: "foreign", target: "foreign"},
	{name: "staticcheck", target: "staticcheck"},
	{name: "apidiff", target: "apidiff"},
	{name: "test", target: "test"},
	{name: "race", target: "race RACE=-short", long: "race", packages: "RACED", in: (*tree).raced},
	{name: "lab-some", target: "lab-some", partOf: "lab", waits: true},
	{name: "fleet-some", target: "fleet-some", partOf: "fleet", waits: true},

	{name: "fast-path", target: "fast-path-check", roots: []string{"engine/internal/program/relay.c", "engine/internal/program/relay.o"}},
	{name: "console", target: "console-check", roots: []string{"internal/server/operator/console/web",
		"internal/server/operator/console/dist"}},
	{name: "client-js", target: "client-js-check", roots: []string{"client/js", "examples/browser"}},
	{name: "browser", target: "browser-test", roots: []string{"internal/test/blackbox", "client/js", "examples/browser",
		"internal/server/operator/console", "internal/server/operator/admin", "engine/websocket", "alloc/httpapi"}, waits: true},
	{name: "vulncheck", target: "vulncheck", roots: []string{"go.mod"}},
	{name: "portable", target: "portable", roots: []string{"engine", "internal/net", "client/netcode"}},
	{name: "cross", target: "cross", roots: []string{"cmd/ferry"}},
	{name: "model", target: "model MODEL=6000", roots: []string{"engine"}, long: "model MODEL=60000"},
	{name: "peers", target: "peers-test", roots: []string{"scripts/bench"}, waits: true},
	{name: "openapi", target: "openapi-test", roots: []string{"scripts/openapi", "alloc/httpapi"}},
	{name: "release", target: "release-test", roots: []string{"scripts/release", "scripts/deploy/systemd", "cmd/ferry/main.go",
		"cmd/ferry/man_test.go", "docs/vectors.json", "client/js", "client/csharp"}},
	{name: "helm", target: "helm-test", roots: []string{"scripts/helm", "scripts/deploy", "internal/server/config", "docs/settings.md",
		"internal/server/observe/metrics"}},
	{name: "lab", target: "lab", roots: []string{"scripts/lab", "engine", "alloc/httpapi"}, waits: true},
	{name: "world", target: "world-some", roots: []string{"scripts/lab", "engine", "alloc/httpapi", "client/c", "client/csharp",
		"client/js/src", "client/godot"}, long: "world", waits: true},
	{name: "clients", target: "clients", roots: []string{"client"}, waits: true},
	{name: "fleet", target: "fleet-quick", roots: []string{"scripts/fleet", "internal/fleet/placement", "internal/fleet/rpc",
		"internal/fleet/redisstore"}, waits: true},
	{name: "fuzz", target: "fuzz FUZZ=1000x", long: "fuzz FUZZ=10000x", packages: "PKGS", in: (*tree).fuzzed},

	{name: "mutants", target: "mutants", nightly: true},
	{name: "stress", target: "stress", nightly: true},
	{name: "fast-path-long", target: "fast-path FAST_PATH=1000000 FAST_MODEL=3000", nightly: true},
}

// raced returns the packages that make race tests.
func (t *tree) raced() (dirs []string, err error) {
	cmd := exec.Command("make", "--no-print-directory", "raced")
	cmd.Dir, cmd.Stderr = t.dir, os.Stderr
	out, err := cmd.Output()
	for name := range strings.FieldsSeq(string(out)) {
		dir := strings.TrimPrefix(name, "./")
		if slices.ContainsFunc(t.below[dir], isTest) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, err
}

var fuzzTarget = regexp.MustCompile(`(?m)^func Fuzz`)

// fuzzed returns the packages that have fuzz targets.
func (t *tree) fuzzed() (dirs []string, err error) {
	for dir, files := range t.below {
		for _, name := range files {
			if !isTest(name) || t.module(name) != "." {
				continue
			}
			text, err := os.ReadFile(filepath.Join(t.dir, name))
			if err != nil {
				return nil, err
			}
			if fuzzTarget.Match(text) {
				dirs = append(dirs, dir)
				break
			}
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}
