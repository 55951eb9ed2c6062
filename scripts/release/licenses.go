package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const licensesFile = "THIRD_PARTY.txt"

// licenses writes the licenses and notices of what the binaries contain: Go, modules, and the packages of the console.
// Most of them demand that a copy goes with a binary.
func (r *release) licenses(ctx context.Context) error {
	args, seen := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, map[string]bool{}
	for _, b := range r.binaries {
		info, err := buildinfo.ReadFile(b.file)
		if err != nil {
			return err
		}
		for _, module := range info.Deps {
			if !seen[module.Path] {
				seen[module.Path] = true
				args = append(args, module.Path)
			}
		}
	}
	list := exec.CommandContext(ctx, "go", args...)
	list.Dir, list.Stderr = r.repo, os.Stderr
	modules, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	goRoot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	text := bytes.NewBufferString("Ferry contains the following programs and libraries.\n")
	all := fmt.Sprintf("Go %s\t%s\n%s", runtime.Version(), goRoot, modules)
	for line := range strings.Lines(all) {
		name, dir, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		fmt.Fprintf(text, "\n%s\n%s\n", strings.Repeat("=", 80), name)
		if err := appendLicenses(text, dir); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	console, err := os.ReadFile(filepath.Join(r.repo, "internal/server/operator/console/dist/licenses.txt"))
	fmt.Fprintf(text, "\n%s\n%s", strings.Repeat("=", 80), console)
	r.docs.add(licensesFile, 0o644, text.Bytes())
	return err
}

func appendLicenses(to *bytes.Buffer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	before := to.Len()
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && !strings.HasPrefix(name, "NOTICE") {
			continue
		}
		license, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "\n%s\n", bytes.TrimSpace(license))
	}
	if to.Len() == before {
		return errors.New("it has no license")
	}
	return nil
}
