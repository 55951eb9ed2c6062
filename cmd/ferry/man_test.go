package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/urfave/cli/v3"
)

var manDir = flag.String("man", "", "write the man pages to `DIR`")

// TestManPages: each command has a page with its options and the page of its parent. The release has the pages
// that it writes.
func TestManPages(t *testing.T) {
	dir := cmp.Or(*manDir, t.TempDir())
	root := streams{stdout: io.Discard, stderr: io.Discard}.root()
	if err := root.Run(t.Context(), []string{"ferry", "version"}); err != nil { // fills in the names
		t.Fatal(err)
	}
	if err := writeManPages(root, dir); err != nil {
		t.Fatal(err)
	}
	count := 0
	var check func(cmd *cli.Command)
	check = func(cmd *cli.Command) {
		count++
		name := strings.ReplaceAll(cmd.FullName(), " ", "-")
		content, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil {
			t.Fatal(err)
		}
		page := strings.ReplaceAll(string(content), `\`, "")
		for _, want := range []string{".TH", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: %s is missing", name, want)
			}
		}
		for _, f := range cmd.VisibleFlags() {
			if o, ok := describe(cmd, f); ok {
				flag, _, _ := strings.Cut(o.name, " ")
				if !strings.Contains(page, strings.TrimSuffix(flag, ",")) {
					t.Errorf("%s: %s is missing", name, flag)
				}
			}
		}
		for _, c := range cmd.VisibleCommands() {
			check(c)
		}
	}
	check(root)
	if count < 25 {
		t.Errorf("%d pages", count)
	}
}

func writeManPages(cmd *cli.Command, dir string) error {
	name := strings.ReplaceAll(cmd.FullName(), " ", "-") + ".1"
	if err := os.WriteFile(filepath.Join(dir, name), md2man.Render([]byte(manPage(cmd))), 0o644); err != nil {
		return err
	}
	for _, c := range cmd.VisibleCommands() {
		if err := writeManPages(c, dir); err != nil {
			return err
		}
	}
	return nil
}

// markdown quotes what Markdown would read as its own.
var markdown = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`", "[", `\[`)

func manPage(cmd *cli.Command) string {
	var b strings.Builder
	dashed := strings.ReplaceAll(cmd.FullName(), " ", "-")
	fmt.Fprintf(&b, "%% %s 1\n\n# NAME\n\n%s - %s\n\n# SYNOPSIS\n\n**%s** [options] %s\n",
		strings.ToUpper(dashed), dashed, markdown.Replace(cmd.Usage), cmd.FullName(), markdown.Replace(cmd.ArgsUsage))
	if cmd.Description != "" {
		fmt.Fprint(&b, "\n# DESCRIPTION\n\n")
		for _, paragraph := range strings.Split(cmd.Description, "\n\n") {
			if strings.Contains("\n"+paragraph, "\n ") {
				fmt.Fprintf(&b, "```\n%s\n```\n\n", paragraph)
			} else {
				fmt.Fprintf(&b, "%s\n\n", markdown.Replace(paragraph))
			}
		}
	}
	if commands := cmd.VisibleCommands(); len(commands) > 0 {
		fmt.Fprint(&b, "\n# COMMANDS\n\n")
		for _, c := range commands {
			fmt.Fprintf(&b, "**%s**(1)\n: %s\n\n", strings.ReplaceAll(c.FullName(), " ", "-"), markdown.Replace(c.Usage))
		}
	}
	fmt.Fprint(&b, "\n# OPTIONS\n\n")
	for _, f := range cmd.VisibleFlags() {
		if o, ok := describe(cmd, f); ok {
			fmt.Fprintf(&b, "**%s**\n: %s\n\n", markdown.Replace(o.name), markdown.Replace(o.text))
		}
	}
	if parent := cmd.Root(); parent != cmd {
		fmt.Fprintf(&b, "\n# SEE ALSO\n\n**%s**(1)\n", parent.Name)
	}
	return b.String()
}
