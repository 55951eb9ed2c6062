package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats register themselves
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// pack writes the package of one architecture, as package/package.yaml describes it.
func (r *release) pack(out, format string, b binary) error {
	stage := filepath.Join(r.work, "stage-"+b.arch)
	if err := r.stage(stage, b); err != nil {
		return err
	}
	spec, err := os.ReadFile("package/package.yaml")
	if err != nil {
		return err
	}
	values := map[string]string{"VERSION": r.numbered(), "ARCH": b.arch, "STAGE": stage}
	config, err := nfpm.Parse(strings.NewReader(os.Expand(string(spec), func(name string) string { return values[name] })))
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info.MTime = r.time
	if err := nfpm.PrepareForPackager(nfpm.WithDefaults(info), format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var content bytes.Buffer
	if err := packager.Package(info, &content); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, packager.ConventionalFileName(info)), content.Bytes(), 0o644)
}

// stage writes the files of a package to a directory. The units start the binary where
// packages have it, and man pages are compressed, as distributions do.
func (r *release) stage(dir string, b binary) error {
	program, err := os.ReadFile(b.file)
	if err != nil {
		return err
	}
	files := tree{{name: "ferry", mode: 0o755, content: program}}
	for _, n := range r.docs {
		switch {
		case strings.HasSuffix(n.name, ".service"):
			n.content = bytes.ReplaceAll(n.content, []byte("/usr/local/bin/ferry"), []byte("/usr/bin/ferry"))
		case strings.HasPrefix(n.name, "man/"):
			var z bytes.Buffer
			w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
			if err != nil {
				return err
			}
			if _, err := w.Write(n.content); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
			n.name, n.content = n.name+".gz", z.Bytes()
		}
		files = append(files, n)
	}
	for _, n := range files {
		name := filepath.Join(dir, filepath.FromSlash(n.name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, n.content, n.mode); err != nil {
			return err
		}
		if err := os.Chtimes(name, r.time, r.time); err != nil {
			return err
		}
	}
	return nil
}
