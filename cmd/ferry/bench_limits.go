package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// limitsOf names the limits that a ferry process runs with, by the command that
// it was started with: dev has none, serve has all. It returns "" for any other
// process, and where there is no /proc.
func limitsOf(pid int) string {
	if pid == 0 {
		return ""
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimRight(line, "\x00"), []byte{0}) {
		args = append(args, string(arg))
	}
	return limitsByCommand(args)
}

// limitsByCommand knows the commands of this program.
func limitsByCommand(args []string) string {
	if !strings.HasPrefix(filepath.Base(args[0]), "ferry") || len(args) < 2 {
		return ""
	}
	switch args[1] {
	case "dev":
		return "off (ferry dev)"
	case "serve":
		return "on (ferry serve)"
	}
	return ""
}
