package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v3"
)

func (s streams) version() *cli.Command {
	return s.command(&cli.Command{
		Name:        "version",
		Usage:       "version, commit, Go version and build settings",
		Description: "Example:\n   ferry version",
		Action: func(context.Context, *cli.Command) error {
			_, err := fmt.Fprint(s.stdout, readBuild().String())
			return err
		},
	})
}

// build is what the linker noted about this binary.
type build struct {
	version   string // of the module, "(devel)" or "unknown"
	revision  string // commit, with "+changes" if there were any; "unknown"
	time      string // of the commit, may be empty
	goVersion string
	settings  []string // KEY=VALUE, without those above
}

// readBuild asks the binary itself.
func readBuild() build {
	b := build{version: "unknown", revision: "unknown", goVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.version = info.Main.Version
	}
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs":
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.time":
			b.time = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		default:
			b.settings = append(b.settings, s.Key+"="+s.Value)
		}
	}
	if changed {
		b.revision += "+changes"
	}
	return b
}

// String returns one line per fact.
func (b build) String() string {
	var t strings.Builder
	fmt.Fprintf(&t, "ferry %s\n", b.version)
	fmt.Fprintln(&t, strings.TrimSpace("commit "+b.revision+" "+b.time))
	fmt.Fprintf(&t, "%s %s/%s\n", b.goVersion, runtime.GOOS, runtime.GOARCH)
	for _, s := range b.settings {
		fmt.Fprintln(&t, s)
	}
	return t.String()
}
