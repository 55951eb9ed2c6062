package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// archive writes the archive of one platform: a directory with the binary and the texts.
func (r *release) archive(out string, b binary) error {
	program, err := os.ReadFile(b.file)
	if err != nil {
		return err
	}
	name := "ferry"
	if b.os == "windows" {
		name += ".exe"
	}
	dir := strings.Join([]string{"ferry", r.numbered(), b.os, b.arch}, "_")
	var files tree
	files.add(dir+"/"+name, 0o755, program)
	for _, n := range r.docs {
		if b.os != "linux" && strings.HasPrefix(n.name, "examples/s") {
			continue // systemd and sysctl
		}
		n.name = dir + "/" + n.name
		files = append(files, n)
	}
	var content bytes.Buffer
	if b.os == "windows" {
		if err := writeZip(&content, files, r.time); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(out, dir+".zip"), content.Bytes(), 0o644)
	}
	z, err := gzip.NewWriterLevel(&content, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, files, r.time); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, dir+".tar.gz"), content.Bytes(), 0o644)
}

// writeTar writes a tree with the time of each file, and names of no user.
func writeTar(w io.Writer, files tree, at time.Time) error {
	t := tar.NewWriter(w)
	for _, n := range files {
		h := &tar.Header{Name: n.name, Mode: int64(n.mode), Uid: n.owner, Gid: n.owner, Size: int64(len(n.content)), ModTime: at,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if strings.HasSuffix(n.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(n.content); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeZip(w io.Writer, files tree, at time.Time) error {
	z := zip.NewWriter(w)
	for _, n := range files {
		h := &zip.FileHeader{Name: n.name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(n.mode)
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(n.content); err != nil {
			return err
		}
	}
	return z.Close()
}
