package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// release is one version of Ferry, built.
type release struct {
	repo     string
	work     string // a directory of its own
	version  string // of the module: the tag, or what Go makes of a commit without one
	commit   string
	time     time.Time // of the commit; every file in an archive has it
	binaries []binary
	docs     tree // what every archive has besides the binary
}

// binary is the program for one platform.
type binary struct {
	platform
	file string
}

// node is a file, or a directory if its name ends in a slash.
type node struct {
	name    string
	mode    fs.FileMode
	owner   int // number of user and group
	content []byte
}

// tree is files and directories, in the order in which they are written.
type tree []node

func (t *tree) add(name string, mode fs.FileMode, content []byte) {
	*t = append(*t, node{name: name, mode: mode, content: content})
}

// build compiles the binaries, and writes the man pages by the test of the commands and the completion scripts by
// a binary that runs on this machine.
func build(ctx context.Context, repo string, wanted []platform, dirty bool) (r *release, err error) {
	if repo, err = filepath.Abs(repo); err != nil {
		return nil, err
	}
	r = &release{repo: repo}
	if r.work, err = os.MkdirTemp("", "ferry-release-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	own, err := r.compile(ctx, platform{runtime.GOOS, runtime.GOARCH})
	if err != nil {
		return nil, err
	}
	if err := r.identify(own.file, dirty); err != nil {
		return nil, err
	}
	for _, p := range wanted {
		b := own
		if p != own.platform {
			if b, err = r.compile(ctx, p); err != nil {
				return nil, err
			}
			of := release{repo: r.repo}
			if err := of.identify(b.file, dirty); err != nil {
				return nil, err
			}
			if of.version != r.version {
				return nil, fmt.Errorf("%w: %s is %s, %s is %s", errChanged, own.platform, r.version, p, of.version)
			}
		}
		r.binaries = append(r.binaries, b)
	}
	return r, r.document(ctx, own.file)
}

func (r *release) close() error { return os.RemoveAll(r.work) }

// compile builds the program. Nothing of this machine gets into it: no paths, no C library. The tag
// leaves out the help of urfave/cli, which ferry replaces: it is a template, and the linker keeps each exported method
// of a program that has one, which are 8 MB.
func (r *release) compile(ctx context.Context, p platform) (binary, error) {
	b := binary{p, filepath.Join(r.work, p.os+"-"+p.arch)}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags=urfave_cli_no_template", "-trimpath", "-buildvcs=true", "-ldflags=-s -w",
		"-o", b.file, "./cmd/ferry")
	cmd.Dir = r.repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1",
		"GOARM64=v8.0", "GOEXPERIMENT=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("build for %s: %w\n%s", p, err, out)
	}
	return b, nil
}

var errDirty = errors.New("the work tree has changes that are not committed: commit them, or use --dirty")

// errChanged: a build of all platforms takes minutes.
var errChanged = errors.New("the work tree has changed during the build")

// identify reads the version and the commit from a binary, as ferry version does.
func (r *release) identify(file string, dirty bool) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	r.version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.commit = s.Value
		case "vcs.time":
			if r.time, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return err
			}
		case "vcs.modified":
			if s.Value == "true" && !dirty {
				return errDirty
			}
		}
	}
	if r.commit == "" || r.time.IsZero() || r.version == "" || r.version == "(devel)" {
		return fmt.Errorf("the binary does not know its version and commit (%q, %q): is git installed, and %s a clone?", r.version, r.commit, r.repo)
	}
	return nil
}

// document collects the texts of the repository, man pages and completion scripts.
func (r *release) document(ctx context.Context, ferry string) error {
	for _, name := range []string{"LICENSE", "README.md", "SECURITY.md"} {
		if err := r.copy(name, name); err != nil {
			return err
		}
	}
	if err := r.licenses(ctx); err != nil {
		return err
	}
	for _, pattern := range []string{"systemd/*", "sysctl/*", "prometheus/*", "grafana/*"} {
		files, err := filepath.Glob(filepath.Join(r.repo, "scripts/deploy", pattern))
		if err != nil || len(files) == 0 {
			return errors.Join(err, fmt.Errorf("no files match scripts/deploy/%s", pattern))
		}
		for _, file := range files {
			name := filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file)
			if err := r.copy("examples/"+name, "scripts/deploy/"+name); err != nil {
				return err
			}
		}
	}
	man := filepath.Join(r.work, "man")
	if err := os.Mkdir(man, 0o755); err != nil {
		return err
	}
	write := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-run=^TestManPages$", "./cmd/ferry", "-man", man)
	write.Dir, write.Env = r.repo, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := write.CombinedOutput(); err != nil {
		return fmt.Errorf("man pages: %w\n%s", err, out)
	}
	pages, err := os.ReadDir(man)
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(man, page.Name()))
		if err != nil {
			return err
		}
		r.docs.add("man/"+page.Name(), 0o644, text)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := exec.CommandContext(ctx, ferry, "completion", shell).Output()
		if err != nil || len(text) == 0 {
			return fmt.Errorf("ferry completion %s: %w", shell, err)
		}
		r.docs.add("completion/ferry."+shell, 0o644, text)
	}
	return nil
}

func (r *release) copy(to, from string) error {
	text, err := os.ReadFile(filepath.Join(r.repo, filepath.FromSlash(from)))
	if err == nil {
		r.docs.add(to, 0o644, text)
	}
	return err
}

// vectors writes the protocol's test vectors, for clients in other languages.
func (r *release) vectors(out string) error {
	text, err := os.ReadFile(filepath.Join(r.repo, "docs", "vectors.json"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "ferry_"+r.numbered()+"_protocol-vectors.json"), text, 0o644)
}

// numbered is the version without the v of a tag, as packages and file names have it.
func (r *release) numbered() string { return strings.TrimPrefix(r.version, "v") }
