package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonRoot is the user and group of the image, as of distroless images.
const nonRoot = 65532

// image writes one image for all architectures of Linux, as a layout of OCI in a tar file, and
// its digest. podman, skopeo and containerd load it.
func (r *release) image(out string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range r.binaries {
		if b.os != "linux" {
			continue
		}
		image, err := r.imageOf(b)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: b.os, Architecture: b.arch}}})
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) == 0 {
		return err // A release without Linux has no image.
	}
	dir := filepath.Join(r.work, "image")
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": r.numbered()}
	if err := written.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println("image", digest)
	file := filepath.Join(out, "ferry_"+r.numbered()+"_image")
	return errors.Join(r.tarOf(dir, file+".tar"), os.WriteFile(file+".digest", []byte(digest.String()+"\n"), 0o644))
}

// imageOf is the image of one architecture, with what scripts/deploy/container/Containerfile
// describes: certificates of public authorities, the binary, and a state directory.
func (r *release) imageOf(b binary) (v1.Image, error) {
	program, err := os.ReadFile(b.file)
	if err != nil {
		return nil, err
	}
	system := tree{
		{name: "etc/", mode: 0o755}, {name: "etc/ssl/", mode: 0o755}, {name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil,
			"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%[1]d:nonroot:/:/sbin/nologin\n", nonRoot)},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonRoot)},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()},
		{name: "tmp/", mode: 0o777 | 0o1000},
		{name: "var/", mode: 0o755}, {name: "var/lib/", mode: 0o755}, {name: "var/lib/ferry/", mode: 0o700, owner: nonRoot},
	}
	for _, n := range r.docs {
		if n.name == "LICENSE" || n.name == licensesFile {
			system = append(system, n)
		}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range []tree{system, {{name: "ferry", mode: 0o755, content: program}}} {
		layer, err := r.layer(files)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "scripts/release"}})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = b.os, b.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", nonRoot), Entrypoint: []string{"/ferry"}, Cmd: []string{"serve", "--config", "/etc/ferry/ferry.yaml"},
		Env: []string{"PATH=/"}, WorkingDir: "/", StopSignal: "SIGTERM",
		ExposedPorts: map[string]struct{}{"7777/udp": {}, "7777/tcp": {}, "7779/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/ferry": {}},
		Labels: map[string]string{
			"org.opencontainers.image.source": "https://github.com/ferryrelay/ferry", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version": r.numbered(), "org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.title": "Ferry", "org.opencontainers.image.description": "Relay for multiplayer games",
		},
	}
	return mutate.ConfigFile(image, config)
}

// authorities are the certificate authorities of Mozilla, as golang.org/x/crypto has them, but
// for those that Mozilla trusts under conditions that a file cannot express.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // A buffer takes everything.
		}
	}
	return all.Bytes()
}

func (r *release) layer(files tree) (v1.Layer, error) {
	var content bytes.Buffer
	if err := writeTar(&content, files, r.time); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// tarOf writes a directory to a tar file, by names.
func (r *release) tarOf(dir, file string) error {
	var files tree
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			files.add(filepath.ToSlash(rel)+"/", 0o755, nil)
			return nil
		}
		content, err := os.ReadFile(name)
		files.add(filepath.ToSlash(rel), 0o644, content)
		return err
	})
	if err != nil {
		return err
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(w, files, r.time), w.Close())
}

// sumOf is the SHA-256 of a file, in hexadecimal digits.
func sumOf(file string) (string, error) {
	content, err := os.ReadFile(file)
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), err
}
