package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/urfave/cli/v3"
)

func manCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "write the man pages of all commands", ArgsUsage: "DIR",
		Description: `Writes ferry.1 and a page for each command, such as ferry-serve.1, to a directory.

Example:
   ferry man /usr/local/share/man/man1`,
		HideHelpCommand: true, OnUsageError: onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			switch {
			case cmd.Args().Len() == 0:
				return usage(cmd, errors.New("DIR is missing"))
			case cmd.Args().Len() > 1:
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(1)))
			}
			return writeManPages(cmd.Root(), cmd.Args().First())
		},
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
