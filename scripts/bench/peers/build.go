package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// requirement is a program that a relay or network needs, and its Debian
// packages.
type requirement struct {
	program  string
	packages []string
	peer     string // "": a network
}

var requirements = []requirement{
	{"gcc", []string{"gcc", "libc6-dev"}, "c"},
	{"turnserver", []string{"coturn"}, "coturn"},
	{"ip", []string{"iproute2"}, ""},
}

// missing returns what the options need and the machine does not have.
func (o *options) missing() (list []requirement) {
	for _, r := range requirements {
		if r.peer == "coturn" && o.coturn != "" {
			r.program, r.packages = "make", []string{"make", "gcc", "libevent-dev", "libssl-dev"}
		}
		needed := o.remote()
		if r.peer != "" {
			needed = wants(o.only, r.peer)
		}
		if _, err := exec.LookPath(r.program); needed && err != nil {
			list = append(list, r)
		}
	}
	return list
}

func (r requirement) String() string {
	return fmt.Sprintf("%s is missing; install it with: apt-get install %s", r.program, strings.Join(r.packages, " "))
}

// leaveOut removes the relays whose program is missing from the options, with a note for each. What the
// command line names is not left out: its program is necessary.
func (o *options) leaveOut() error {
	missing := o.missing()
	for _, r := range missing {
		if r.peer == "" || len(o.only) > 0 {
			return errors.New(r.String())
		}
		o.left = append(o.left, fmt.Sprintf("%s: not measured, %v", title(r.peer), r))
	}
	if len(missing) > 0 {
		o.only = slices.DeleteFunc(peerNames(), func(name string) bool {
			return slices.ContainsFunc(missing, func(r requirement) bool { return r.peer == name })
		})
	}
	return nil
}

// build builds the programs of the selected relays.
func build(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.bin(""), 0o755); err != nil {
		return err
	}
	here := filepath.Join(o.root, "scripts", "bench", "peers")
	for _, step := range []struct {
		peer, dir string
		argv      []string
	}{
		{"c", here, []string{"gcc", "-O2", "-Wall", "-o", o.bin("swap"), filepath.Join("swap", "swap.c")}},
		{"pion", here, []string{"go", "build", "-o", o.bin("pionserver"), "./pionserver"}},
		{"ferry", o.root, []string{"go", "build", "-o", o.bin("ferry"), "./cmd/ferry"}},
		{"coturn", o.bin(""), []string{"sh", "-c", buildCoturn, o.coturn, o.bin("turnserver")}},
	} {
		null := step.peer == "ferry" && wants(o.only, "null")
		if !wants(o.only, step.peer) && !null || step.peer == "coturn" && o.coturn == "" {
			continue
		}
		fmt.Println("building", filepath.Base(step.argv[len(step.argv)-2]))
		if err := command(ctx, step.dir, step.argv[0], step.argv[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// buildCoturn builds a copy of the sources in $0 as the program $1, with the optimisation that Debian's
// has: coturn's own default is none.
const buildCoturn = `dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT && cp -a "$0"/. "$dir" && cd "$dir" || exit
{ CFLAGS=-O2 ./configure && make -j2 bin/turnserver; } >"$1.log" 2>&1 || { tail -n 20 "$1.log" >&2; exit 1; }
cp bin/turnserver "$1"`

// turnserver returns the program of coturn.
func (o *options) turnserver() string {
	if o.coturn == "" {
		return "turnserver"
	}
	return o.bin("turnserver")
}

// coturnHelp returns what coturn says of its options; empty if there is no coturn.
func (o *options) coturnHelp() string {
	text, _ := exec.Command(o.turnserver(), "--help").CombinedOutput()
	return string(text)
}

// versions are the versions of the relays that are not Ferry, by the name of a peer.
var versions = map[string]string{}

// readVersions asks the programs.
func (o *options) readVersions() {
	o.multiplexes = strings.Contains(o.coturnHelp(), "--multiplex-peer")
	if text, err := exec.Command(o.turnserver(), "--version").Output(); err == nil {
		versions["coturn"] = lastLine(string(text))
	}
	if info, err := buildinfo.ReadFile(o.bin("pionserver")); err == nil {
		for _, d := range info.Deps {
			if strings.HasPrefix(d.Path, "github.com/pion/turn/") {
				versions["pion"] = d.Version
			}
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// command runs a program with its output shown.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// commit returns the version to measure; empty outside of a Git repository.
func commit(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
