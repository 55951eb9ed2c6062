package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// passedFile holds the digests of the suites that have passed: lines of a suite's
// name, the digest of its inputs, and the commit of the working tree at that time.
const passedFile = ".ci/passed"

// pass is one line of passedFile.
type pass struct{ digest, commit string }

// readPassed reads the file of the work tree or, with a base, as of that commit, so that a change which edits it
// skips no suite. Without that commit or file, as in a shallow clone, no suite has passed.
func readPassed(dir, base string) (map[string]pass, error) {
	if base == "" {
		data, err := os.ReadFile(filepath.Join(dir, passedFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return parsePassed(data)
	}
	cmd := exec.Command("git", "show", "--end-of-options", base+":"+passedFile)
	cmd.Dir = dir
	data, err := cmd.Output()
	if err != nil {
		fmt.Printf("this clone has no %s of %s: each suite is due\n", passedFile, base)
		return nil, nil
	}
	return parsePassed(data)
}

func parsePassed(data []byte) (map[string]pass, error) {
	all := map[string]pass{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s: %q is not a name, a digest and a commit", passedFile, line)
		}
		all[fields[0]] = pass{fields[1], fields[2]}
	}
	return all, nil
}

// record writes that a suite has passed, unless its inputs have changed since it was
// planned. Another run may have changed the file since then.
func (t *tree) record(p planned) error {
	if p.digest == "" {
		return nil
	}
	if now, _, err := t.digest(p.stage); err != nil || now != p.digest {
		return err
	}
	all, err := readPassed(t.dir, "")
	if err != nil {
		return err
	}
	all[p.name] = pass{p.digest, t.head()}
	var lines []string
	for name, p := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", name, p.digest, p.commit))
	}
	slices.Sort(lines)
	return os.WriteFile(filepath.Join(t.dir, passedFile), []byte(strings.Join(lines, "")), 0o644)
}

// reason says why a suite is due whose digest differs from the one that passed.
func (t *tree) reason(last pass, files []string) string {
	if last.commit == "" {
		return "it has never passed"
	}
	args := append([]string{"diff", "--name-only", last.commit, "--"}, files...)
	cmd := exec.Command("git", args...)
	cmd.Dir = t.dir
	out, err := cmd.Output()
	changed := strings.Fields(string(out))
	switch {
	case err != nil:
		return fmt.Sprintf("its inputs changed since %s, which is not in this clone", last.commit)
	case len(changed) == 0:
		return fmt.Sprintf("inputs were added or removed, or its command changed, since %s", last.commit)
	}
	const most = 3
	more := ""
	if len(changed) > most {
		more = fmt.Sprintf(" and %d more", len(changed)-most)
		changed = changed[:most]
	}
	return fmt.Sprintf("changed since %s: %s%s", last.commit, strings.Join(changed, ", "), more)
}

// head returns the commit of the working tree.
func (t *tree) head() string {
	cmd := exec.Command("git", "rev-parse", "--short=12", "HEAD")
	cmd.Dir = t.dir
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
