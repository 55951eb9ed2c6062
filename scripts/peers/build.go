package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// requirement is a program that a relay or network needs, and its Debian
// packages.
type requirement struct {
	program  string
	packages []string
	needs    func(o options) bool
	without  string // how to run without it
}

var requirements = []requirement{
	{"gcc", []string{"gcc", "libc6-dev"}, func(o options) bool { return wants(o.only, "c") }, `leave the peer "c" out with --only`},
	{"turnserver", []string{"coturn"}, func(o options) bool { return wants(o.only, "coturn") }, `leave the peer "coturn" out with --only`},
	{"ip", []string{"iproute2"}, func(o options) bool { return o.remote() }, "measure over loopback"},
}

// install installs missing programs.
func install(ctx context.Context, o options) error {
	for _, r := range requirements {
		if !r.needs(o) {
			continue
		}
		if _, err := exec.LookPath(r.program); err == nil {
			continue
		}
		if err := r.install(ctx, o.install); err != nil {
			return err
		}
	}
	return nil
}

func (r requirement) install(ctx context.Context, allowed bool) error {
	missing := fmt.Errorf("%s is missing: install %s, or %s", r.program, strings.Join(r.packages, " and "), r.without)
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 || !allowed {
		return missing
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
		return missing
	}
	return nil
}

// build builds the programs of the selected relays.
func build(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.bin(""), 0o755); err != nil {
		return err
	}
	here := filepath.Join(o.root, "scripts", "peers")
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
