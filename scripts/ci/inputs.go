package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/ferryrelay/ferry"

// tree is the working tree: the files that git tracks, and new ones that it does not
// ignore.
type tree struct {
	dir   string              // the root of the repository
	files map[string]bool     // paths from the root, with slashes
	below map[string][]string // by directory, the files in it

	recipes map[string][]byte // by make target, its commands as read so far
}

func readTree(dir string) (*tree, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	t := &tree{dir: dir, files: map[string]bool{}, below: map[string][]string{}, recipes: map[string][]byte{}}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil { // It may have been deleted.
			t.files[name] = true
			t.below[path.Dir(name)] = append(t.below[path.Dir(name)], name)
		}
	}
	return t, nil
}

// isPackage reports whether Go files lie in the directory.
func (t *tree) isPackage(dir string) bool {
	return slices.ContainsFunc(t.below[dir], func(name string) bool { return path.Ext(name) == ".go" })
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// inputs returns the files of a suite's roots or package, and of the packages that they import, in
// order.
func (t *tree) inputs(s stage) ([]string, error) {
	all := map[string]bool{}
	var imports []string // packages of this repository that are not in all yet
	add := func(name string) error {
		all[name] = true
		if path.Ext(name) != ".go" {
			return nil
		}
		found, err := t.imports(name)
		imports = append(imports, found...)
		return err
	}
	addAll := func(root string, has func(name string) bool) error {
		before := len(all)
		for name := range t.files {
			if has(name) {
				if err := add(name); err != nil {
					return err
				}
			}
		}
		if len(all) == before {
			return fmt.Errorf("no file is in %s", root)
		}
		return nil
	}
	for _, root := range s.roots {
		err := addAll(root, func(name string) bool { return name == root || strings.HasPrefix(name, root+"/") })
		if err != nil {
			return nil, err
		}
	}
	if s.pkg != "" {
		if err := addAll(s.pkg, func(name string) bool { return t.owner(name) == s.pkg }); err != nil {
			return nil, err
		}
	}
	for seen := map[string]bool{}; len(imports) > 0; {
		dir := imports[0]
		imports = imports[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		for name := range t.files {
			if t.owner(name) != dir || isTest(name) || strings.HasSuffix(name, ".md") {
				continue
			}
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	for name := range maps.Clone(all) {
		mod := t.module(name)
		for _, file := range []string{path.Join(mod, "go.mod"), path.Join(mod, "go.sum")} {
			if t.files[file] {
				all[file] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// owner returns the directory of the package that a file belongs to: its own, or the
// next one above with Go files, which embeds it or has it as test data.
func (t *tree) owner(name string) string {
	dir := path.Dir(name)
	for dir != "." && !t.isPackage(dir) {
		dir = path.Dir(dir)
	}
	return dir
}

// module returns the directory of the module that a file belongs to.
func (t *tree) module(name string) string {
	dir := path.Dir(name)
	for dir != "." && !t.files[path.Join(dir, "go.mod")] {
		dir = path.Dir(dir)
	}
	return dir
}

// imports returns the directories of the packages of this repository that a Go file
// imports.
func (t *tree) imports(name string) (dirs []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(t.dir, name), nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	for _, spec := range file.Imports {
		from, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if dir, ok := strings.CutPrefix(from, module+"/"); ok {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// digest returns the digest of a suite's inputs, and the files among them. It is empty
// for a stage that runs each time.
func (t *tree) digest(s stage) (digest string, files []string, err error) {
	if s.runsEachTime() {
		return "", nil, nil
	}
	if files, err = t.inputs(s); err != nil {
		return "", nil, err
	}
	sum := sha256.New()
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(t.dir, name))
		if err != nil {
			return "", nil, err
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(data))
		sum.Write(data)
	}
	commands, err := t.recipe(s.target)
	if err != nil {
		return "", nil, err
	}
	sum.Write(commands)
	return hex.EncodeToString(sum.Sum(nil)[:8]), files, nil
}

// recipe returns the commands of a make target, which are part of what it depends on.
func (t *tree) recipe(target string) ([]byte, error) {
	if known, ok := t.recipes[target]; ok {
		return known, nil
	}
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-n"}, strings.Fields(target)...)...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = t.dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("make -n %s: %w: %s", target, err, &stderr)
	}
	t.recipes[target] = bytes.ReplaceAll(out, []byte(t.dir), nil) // $(CURDIR)
	return t.recipes[target], nil
}
