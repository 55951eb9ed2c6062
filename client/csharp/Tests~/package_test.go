package csharp

import (
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// assets returns the files and directories that Unity imports: none of or in a directory whose name ends in ~.
func assets(t *testing.T) (all []string) {
	t.Helper()
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case strings.HasSuffix(name, "~") && d.IsDir():
			return fs.SkipDir
		}
		all = append(all, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMeta: each asset has a .meta file, whose GUID follows from its path and so never changes. Without one
// Unity ignores an asset of a package that comes from git.
func TestMeta(t *testing.T) {
	t.Parallel()
	all := assets(t)
	if !slices.Contains(all, "Runtime/FerryRelay.cs") {
		t.Fatalf("%q", all)
	}
	for _, name := range all {
		if asset, ok := strings.CutSuffix(name, ".meta"); ok {
			if !slices.Contains(all, asset) {
				t.Errorf("%s belongs to nothing", name)
			}
			continue
		}
		meta, err := os.ReadFile("../" + name + ".meta")
		if err != nil {
			t.Error(err)
			continue
		}
		want := fmt.Sprintf("fileFormatVersion: 2\nguid: %x\n", md5.Sum([]byte("org.ferryrelay.client/"+name)))
		if !strings.HasPrefix(string(meta), want) {
			t.Errorf("%s.meta has not\n%s", name, want)
		}
		if info, err := os.Stat("../" + name); err != nil || info.IsDir() != strings.Contains(string(meta), "\nfolderAsset: yes\n") {
			t.Errorf("%s.meta does not say whether it is a directory (%v)", name, err)
		}
		if strings.HasSuffix(name, ".go") {
			t.Errorf("%s is no asset of Unity", name)
		}
	}
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(name, err)
	}
}

// TestManifest: package.json names what is there, and the assembly is one for every platform that refers to nothing.
func TestManifest(t *testing.T) {
	t.Parallel()
	var p struct {
		Name, Version, DisplayName, Description, Unity, License string
		Samples                                                 []struct{ DisplayName, Description, Path string }
	}
	readJSON(t, "../package.json", &p)
	if p.Name != "org.ferryrelay.client" || p.DisplayName == "" || p.Description == "" || p.License != "Apache-2.0" ||
		!regexp.MustCompile(`^20\d\d\.\d$`).MatchString(p.Unity) ||
		!regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(p.Version) {
		t.Errorf("%+v", p)
	}
	var named []string
	for _, s := range p.Samples {
		if named = append(named, "../"+s.Path); s.DisplayName == "" || s.Description == "" {
			t.Errorf("%+v", s)
		}
	}
	there, err := filepath.Glob("../Samples~/*")
	slices.Sort(named)
	if err != nil || !slices.Equal(named, there) {
		t.Errorf("package.json names the samples %q, there are %q (%v)", named, there, err)
	}
	var assembly struct {
		Name               string
		References         []string
		NoEngineReferences bool
		AutoReferenced     bool
		AllowUnsafeCode    bool
		IncludePlatforms   []string
	}
	readJSON(t, "../Runtime/Ferry.Relay.asmdef", &assembly)
	if assembly.Name != "Ferry.Relay" || len(assembly.References)+len(assembly.IncludePlatforms) != 0 || !assembly.NoEngineReferences ||
		!assembly.AutoReferenced || assembly.AllowUnsafeCode {
		t.Errorf("%+v", assembly)
	}
	ours, err := os.ReadFile("../LICENSE.md")
	license, err2 := os.ReadFile("../../../LICENSE")
	if err != nil || err2 != nil || string(ours) != string(license) {
		t.Errorf("LICENSE.md is not LICENSE (%v, %v)", err, err2)
	}
	if sources, err := filepath.Glob("../Runtime/*.cs"); err != nil || !slices.Equal(slices.Sorted(slices.Values(sources)),
		slices.Sorted(slices.Values(sourceFiles))) {
		t.Errorf("tests compile %q, the package has %q (%v)", sourceFiles, sources, err)
	}
}

// TestCompiles: the package as a library, with no assembly but the system's, and each sample with the declarations of
// Unity.cs and Entities.cs, for each version of Netcode for Entities. What the library uses is in .NET Standard 2.1: each type
// in testdata was compared with Mono's netstandard.dll of that version (Surface.cs does it), which CI does not have.
func TestCompiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library := filepath.Join(dir, "Ferry.Relay.dll")
	build(t, library, "-target:library")
	samples, err := filepath.Glob("../Samples~/*/*.cs")
	if err != nil || len(samples) == 0 {
		t.Fatal("no samples", err)
	}
	samples = append(samples, "-target:library", "Unity.cs", "Entities.cs")
	build(t, filepath.Join(dir, "samples.dll"), samples...)
	var assembly struct {
		VersionDefines []struct{ Name, Expression, Define string }
	}
	readJSON(t, "../Samples~/Entities/Ferry.Samples.Entities.asmdef", &assembly)
	if d := assembly.VersionDefines; len(d) != 1 || d[0].Name != "com.unity.netcode" || d[0].Expression != "7.0.0" {
		t.Fatalf("%+v", assembly)
	}
	build(t, filepath.Join(dir, "samples7.dll"), append(samples, "-define:"+assembly.VersionDefines[0].Define)...)
	out, err := compile(t, "Surface.cs")(library).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/netstandard.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Fields(string(text))
	used := strings.Fields(string(out))
	if len(used) < 50 {
		t.Fatalf("it uses %q only", used)
	}
	for _, name := range used {
		if !slices.Contains(known, name) {
			t.Errorf("%s: is it in .NET Standard 2.1? Then add it to testdata/netstandard.txt", name)
		}
	}
}
