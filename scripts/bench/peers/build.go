package main

import (
	"context"
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
	return fmt.Sprintf("%s is missing; install it with: apt-get install %s, or as root: make peers INSTALL=1",
		r.program, strings.Join(r.packages, " "))
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

// install installs a missing program.
func (r requirement) install(ctx context.Context) error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 {
		return fmt.Errorf("--install needs root and apt-get: %v", r)
	}
	fmt.Println("installing", strings.Join(r.packages, ", "))
	if err := command(ctx, "/", "apt-get", "update", "-qq"); err != nil {
		return err
	}
	args := append([]string{"install", "-y", "-qq", "--no-install-recommends"}, r.packages...)
	if err := command(ctx, "/", "apt-get", args...); err != nil {
		return err
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil && r.program == "turnserver" {
		// The package starts a server on public addresses.
		if err := command(ctx, "/", "systemctl", "disable", "--now", "coturn"); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath(r.program); err != nil {
		return errors.New(r.String())
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
	} {
		if !wants(o.only, step.peer) {
			continue
		}
		fmt.Println("building", filepath.Base(step.argv[len(step.argv)-2]))
		if err := command(ctx, step.dir, step.argv[0], step.argv[1:]...); err != nil {
			return err
		}
	}
	return nil
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
