package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/server/config"
)

// What the parser of the command line says, which names Go's functions.
var (
	badValue   = regexp.MustCompile(`^invalid value ("(?:[^"\\]|\\.)*") for flag -([a-zA-Z0-9-]+): (.*)$`)
	unknown    = regexp.MustCompile(`^flag provided but not defined: -+(.+)$`)
	noArgument = regexp.MustCompile(`^flag needs an argument: -*(.+)$`)
	required   = regexp.MustCompile(`^Required flags? "([^"]+)" not set$`)
)

// packages begins an error, or a part of one, with the name of the package that made it.
var packages = regexp.MustCompile(`(?m)(^|: )(?:(?:alloc|api|bench|client|cluster|config|ctl|engine|kube|netcode|ping|state): )+`)

// refused is a request to an address where nothing listens.
var refused = regexp.MustCompile(`(?:Get|Post|Delete) "(https?://[^/"]+)[^"]*": dial tcp \S+: connect: connection refused`)

// errorText returns the text of an error without the names of packages and of Go's calls.
func errorText(err error) string {
	text := packages.ReplaceAllString(err.Error(), "$1")
	return refused.ReplaceAllString(text, "nothing listens at $1: is ferry running there?")
}

// plain says an error of the parser as a person would: with the option as it is typed, the
// values that it may have, and for an unknown one its likeliest name.
func plain(cmd *cli.Command, err error) error {
	text := err.Error()
	if m := badValue.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("--%s: %s is not %s", m[2], m[1], wanted(m[3]))
	}
	if m := unknown.FindStringSubmatch(text); m != nil {
		if _, ofSettings := settingModes[cmd.Name]; ofSettings {
			name, _, _ := strings.Cut(m[1], "=")
			if err := config.GoneFlag(name); err != nil {
				return err
			}
		}
		var names []string
		for _, f := range cmd.VisibleFlags() {
			names = append(names, f.Names()...)
		}
		return errors.New("there is no option " + dashes(m[1]) + didYouMean(m[1], names, dashes))
	}
	if m := noArgument.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s: its value is missing", dashes(m[1]))
	}
	if m := required.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s is missing", dashes(m[1]))
	}
	return err
}

// wanted says what a value should have been, from the error of the function that parsed it.
func wanted(cause string) string {
	switch {
	case strings.Contains(cause, "value out of range"):
		return "a number that a computer can hold"
	case strings.HasPrefix(cause, "strconv.ParseInt"), strings.HasPrefix(cause, "strconv.ParseUint"):
		return "a whole number"
	case strings.HasPrefix(cause, "strconv.ParseFloat"):
		return "a number"
	case strings.HasPrefix(cause, "strconv.ParseBool"), cause == "parse error": // of the package flag, for a bool
		return "true or false"
	case strings.HasPrefix(cause, "time:"):
		return "a time with its unit, such as 500ms, 10s or 5m"
	}
	return "valid: " + cause
}

// dashes is an option as it is typed.
func dashes(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// didYouMean returns a question about the most similar name, "" if none is similar.
func didYouMean(typed string, names []string, as func(string) string) string {
	best := config.Similar(typed, names)
	if best == "" {
		return ""
	}
	return "; did you mean " + as(best) + "?"
}

func unknownCommand(cmd *cli.Command, format string) error {
	typed := cmd.Args().First()
	var names []string
	for _, c := range cmd.VisibleCommands() {
		names = append(names, c.Name)
	}
	return usage(cmd, errors.New(fmt.Sprintf(format, typed)+didYouMean(typed, names, func(name string) string { return name })))
}
