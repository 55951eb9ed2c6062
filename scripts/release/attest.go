package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	w, err := os.Create(filepath.Join(out, strings.Join([]string{"ferry", r.numbered(), b.os, b.arch}, "_")+".cdx.json"))
	if err != nil {
		return err
	}
	defer w.Close()
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(list)
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
