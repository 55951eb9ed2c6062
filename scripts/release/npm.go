package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// npm writes client/js as a package for npm, with the version of the release, of which npm
// leaves build metadata such as +dirty out.
func (r *release) npm(ctx context.Context, out string) error {
	stage := filepath.Join(r.work, "npm", "client", "js")
	source := filepath.Join(r.repo, "client", "js")
	license, err := os.ReadFile(filepath.Join(r.repo, "LICENSE"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.work, "npm", "LICENSE"), license, 0o644); err != nil {
		return err
	}
	for _, name := range []string{"package.json", "package-lock.json", "tsconfig.json", "tsconfig.build.json", "README.md"} {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return err
		}
		if name == "package.json" {
			if content, err = r.versioned(content); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(stage, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := os.CopyFS(filepath.Join(stage, "src"), os.DirFS(filepath.Join(source, "src"))); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"},
		{"pack", "--loglevel=error", "--pack-destination", out},
	} {
		cmd := exec.CommandContext(ctx, "npm", args...)
		cmd.Dir = stage
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("npm %s: %w\n%s", args[0], err, text)
		}
	}
	return nil
}

// registryVersion is the version for registries of npm, which have no build metadata.
func (r *release) registryVersion() string {
	version, _, _ := strings.Cut(r.numbered(), "+")
	return version
}

// versioned returns a package.json with the version of the release in place of 0.0.0.
func (r *release) versioned(manifest []byte) ([]byte, error) {
	placeholder := []byte(`"version": "0.0.0"`)
	if bytes.Count(manifest, placeholder) != 1 {
		return nil, errors.New("package.json has no version 0.0.0")
	}
	return bytes.Replace(manifest, placeholder, []byte(`"version": "`+r.registryVersion()+`"`), 1), nil
}
