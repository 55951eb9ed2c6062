package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// unity writes the package for Unity's package manager, packed as npm does, with the version of the
// release. Unity installs it from the file, or from a registry of npm.
func (r *release) unity(out string) error {
	var files tree
	root := os.DirFS(filepath.Join(r.repo, "client/csharp"))
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "Tests~":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if name == "package.json" {
			if text, err = r.versioned(text); err != nil {
				return err
			}
		}
		files.add(path.Join("package", name), 0o644, text)
		return nil
	})
	if err != nil {
		return err
	}
	var content bytes.Buffer
	z, err := gzip.NewWriterLevel(&content, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := errors.Join(writeTar(z, files, r.time), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "org.ferryrelay.client-"+r.registryVersion()+".tgz"), content.Bytes(), 0o644)
}
