package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// bom writes the list of the modules in a binary, with their checksums, as CycloneDX. It has
// no time and no serial number, so that the same binary gives the same list.
func (r *release) bom(out string, b binary) error {
	generator, err := bin.NewGenerator(b.file, bin.WithIncludeStdlib(true), bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return err
	}
	list, err := generator.Generate()
	if err != nil {
		return err
	}
	list.SerialNumber = ""
	if list.Metadata != nil {
		list.Metadata.Timestamp = ""
	}
	packages, err := r.consolePackages()
	if err != nil {
		return err
	}
	*list.Components = append(*list.Components, packages...)
	w, err := os.Create(filepath.Join(out, strings.Join([]string{"ferry", r.numbered(), b.os, b.arch}, "_")+".cdx.json"))
	if err != nil {
		return err
	}
	defer w.Close()
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(list)
}

// consolePackages returns the packages of npm in the console, which is in the binary.
func (r *release) consolePackages() (all []cdx.Component, err error) {
	text, err := os.ReadFile(filepath.Join(r.repo, "internal/server/operator/console/web/package-lock.json"))
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct {
			Version, Integrity, License string
			Dev                         bool
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(lock.Packages)) {
		name, ok := strings.CutPrefix(path, "node_modules/")
		p := lock.Packages[path]
		if !ok || p.Dev {
			continue
		}
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.Integrity, "sha512-"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		purl := "pkg:npm/" + name + "@" + p.Version
		all = append(all, cdx.Component{
			BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: p.Version, Scope: cdx.ScopeRequired, PackageURL: purl,
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA512, Value: hex.EncodeToString(sum)}},
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: p.License}}},
		})
	}
	return all, nil
}

// The statement of provenance, in-toto's Statement v1 with SLSA's predicate v1.
type (
	statement struct {
		Type          string    `json:"_type"`
		Subject       []subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
		Predicate     predicate `json:"predicate"`
	}
	subject struct {
		Name   string            `json:"name,omitempty"`
		URI    string            `json:"uri,omitempty"`
		Digest map[string]string `json:"digest,omitempty"`
	}
	predicate struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      runDetails      `json:"runDetails"`
	}
	buildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []subject         `json:"resolvedDependencies"`
	}
	runDetails struct {
		Builder  map[string]string `json:"builder"`
		Metadata map[string]string `json:"metadata"`
	}
)

// provenance writes from which commit and by which Go every file was built. It is not signed:
// whoever publishes a release signs it. Anybody can check it by building the same commit.
func (r *release) provenance(out string) error {
	const repository = "https://github.com/ferryrelay/ferry"
	s := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: predicate{
			BuildDefinition: buildDefinition{
				BuildType:          repository + "/tree/main/scripts/release",
				ExternalParameters: map[string]string{"repository": repository, "version": r.version},
				ResolvedDependencies: []subject{
					{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.commit}},
					{URI: "https://go.dev/dl/#" + runtime.Version(), Name: runtime.Version()},
				},
			},
			RunDetails: runDetails{
				Builder:  map[string]string{"id": repository + "/tree/main/scripts/release"},
				Metadata: map[string]string{"invocationId": r.commit},
			},
		},
	}
	err := eachFile(out, func(name, sum string) {
		s.Subject = append(s.Subject, subject{Name: name, Digest: map[string]string{"sha256": sum}})
	})
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "ferry_"+r.numbered()+".intoto.json"), append(text, '\n'), 0o644)
}

// checksums writes SHA256SUMS, for sha256sum -c.
func checksums(out string) error {
	var text strings.Builder
	if err := eachFile(out, func(name, sum string) { fmt.Fprintf(&text, "%s  %s\n", sum, name) }); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(text.String()), 0o644)
}

// eachFile calls f with each file of a directory, by names.
func eachFile(dir string, f func(name, sum string)) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		f(e.Name(), sum)
	}
	return nil
}
