package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/process"
)

// The package cli prints help through this variable, which no test changes.
func init() {
	cli.HelpPrinter = func(w io.Writer, _ string, data any) {
		if cmd, ok := data.(*cli.Command); ok {
			printHelp(w, cmd, false)
		}
	}
}

// helpAll is the flag that shows every option of a command with settings.
const helpAll = "help-all"

var settingModes = map[string]process.Mode{
	"serve": process.Serve, "relay": process.Relay, "api": process.API, "dev": process.Dev, "check": process.Serve,
}

func withHelpAll(cmd *cli.Command) *cli.Command {
	cmd.Flags = append(cmd.Flags, &cli.BoolFlag{Name: helpAll, Usage: "show help with all options"})
	action := cmd.Action
	cmd.Action = func(ctx context.Context, cmd *cli.Command) error {
		if cmd.Bool(helpAll) {
			printHelp(cmd.Root().Writer, cmd, true)
			return nil
		}
		return action(ctx, cmd)
	}
	return cmd
}

const (
	helpIndent  = 3
	helpColumn  = 30 // at which texts begin
	maxHelpWide = 110
	minHelpWide = 40
)

type option struct {
	group string // "" for those that every command may have
	name  string // as it is typed, with its placeholder
	text  string
	brief string // its first clause
}

// printHelp writes the help of a command. Of a command whose options are settings it shows
// the common ones with the first clause of each, or all.
func printHelp(w io.Writer, cmd *cli.Command, all bool) {
	width := min(max(cmp.Or(ctl.Width(w), maxHelpWide), minHelpWide), maxHelpWide)
	section := func(title string) { fmt.Fprintf(w, "%s:\n", title) }
	section("NAME")
	fmt.Fprint(w, ctl.Wrap(cmd.FullName()+" - "+cmd.Usage, width, helpIndent, helpIndent))
	section("\nUSAGE")
	usage := cmd.UsageText
	if usage == "" {
		usage = cmd.FullName()
		if len(cmd.VisibleCommands()) > 0 {
			usage += " COMMAND"
		}
		usage += " [options]"
		if cmd.ArgsUsage != "" {
			usage += " " + cmd.ArgsUsage
		}
	}
	fmt.Fprint(w, indent(usage))
	if cmd.Description != "" {
		section("\nDESCRIPTION")
		fmt.Fprint(w, wrapText(cmd.Description, width))
	}
	for i, c := range cmd.VisibleCommands() {
		if i == 0 || c.Category != cmd.VisibleCommands()[i-1].Category {
			section(groupTitle("COMMANDS", c.Category))
		}
		fmt.Fprint(w, entry(strings.Join(c.Names(), ", "), c.Usage, width, 16))
	}
	printOptions(w, cmd, width, all)
}

// groupTitle is the title of a section, after an empty line.
func groupTitle(section, group string) string {
	if group != "" {
		group = ", " + group
	}
	return "\n" + section + group
}

// printOptions writes the options by group, those without a group first.
func printOptions(w io.Writer, cmd *cli.Command, width int, all bool) {
	groups, hidden := map[string][]option{}, 0
	_, ofSettings := settingModes[cmd.Name]
	short := ofSettings && !all
	for _, f := range cmd.VisibleFlags() {
		o, ok := describe(cmd, f)
		switch {
		case !ok:
		case short && o.group != "" && !config.IsCommon(f.Names()[0]):
			hidden++
		case short:
			o.text = o.brief
			groups[""] = append(groups[""], o)
		default:
			groups[o.group] = append(groups[o.group], o)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(w, "%s:\n", groupTitle("OPTIONS", group))
		for _, o := range groups[group] {
			fmt.Fprint(w, entry(o.name, o.text, width, helpColumn))
		}
	}
	if hidden > 0 {
		fmt.Fprintf(w, "\n%s\n", ctl.Wrap(fmt.Sprintf("%d more options: %s --%s", hidden, cmd.FullName(), helpAll), width, 0, 0))
	}
}

// describe returns the line of a flag, and false for a setting that has no effect in the
// command.
func describe(cmd *cli.Command, f cli.Flag) (o option, ok bool) {
	doc, isDoc := f.(cli.DocGenerationFlag)
	if !isDoc {
		return o, false
	}
	if c, has := f.(cli.CategorizableFlag); has {
		o.group = c.GetCategory()
	}
	mode, isSetting := settingModes[cmd.Name]
	key := strings.ReplaceAll(f.Names()[0], "-", "_")
	if isSetting && cmd.Name != "check" && slices.Contains(process.Inapplicable(mode), key) {
		return o, false
	}
	text, variable := doc.GetUsage(), ""
	if before, after, found := strings.Cut(text, " [$"); found {
		text, variable = before, "$"+strings.TrimSuffix(after, "]")
	}
	if envs := doc.GetEnvVars(); len(envs) > 0 {
		variable = "$" + envs[0]
	}
	value := ""
	if first, rest, found := strings.Cut(text, "`"); found {
		name, last, _ := strings.Cut(rest, "`")
		value, text = name, first+name+last
	} else if doc.TakesValue() {
		value = placeholderOf(f)
	}
	if m, has := f.(cli.DocGenerationMultiValueFlag); has && m.IsMultiValueFlag() {
		value += ",..."
	}
	var names []string
	for _, n := range f.Names() {
		names = append(names, dashes(n))
	}
	o.name = strings.TrimSpace(strings.Join(names, ", ") + " " + value)
	var notes []string
	o.brief, _, _ = strings.Cut(text, ";")
	if def := defaultOf(f, doc); def != "" {
		notes = append(notes, "default "+def)
		o.brief += " (default " + def + ")"
	}
	if variable != "" {
		notes = append(notes, variable)
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	o.text = text
	return o, true
}

// placeholderOf names the value of a flag whose help does not.
func placeholderOf(f cli.Flag) string {
	switch f.(type) {
	case *cli.DurationFlag:
		return "TIME"
	case *cli.IntFlag, *cli.FloatFlag, *cli.UintFlag:
		return "NUMBER"
	}
	return "VALUE"
}

// defaultOf returns the default of a flag in one form for all: times as 10s, names without
// quotes; "" for none, zero and off.
func defaultOf(f cli.Flag, doc cli.DocGenerationFlag) string {
	if v, ok := f.(cli.DocGenerationFlag); ok && !v.IsDefaultVisible() {
		return ""
	}
	text := strings.Trim(cmp.Or(doc.GetDefaultText(), doc.GetValue()), `"`)
	if _, ok := f.(*cli.DurationFlag); ok {
		for _, zero := range []string{"m0s", "h0m"} { // 10m0s is 10m.
			if cut, found := strings.CutSuffix(text, zero); found {
				text = cut + zero[:1]
			}
		}
	}
	switch text {
	case "", "false", "[]":
		return ""
	}
	return text
}

// entry is a name and its text, which begins at a column, on the next line after a long name.
func entry(name, text string, width, column int) string {
	if width < 70 {
		column = 6
	}
	first := strings.Repeat(" ", helpIndent) + name
	if len(first)+2 > column {
		return first + "\n" + ctl.Wrap(text, width, column, column)
	}
	return first + ctl.Wrap(text, width, column, column)[len(first):]
}

// wrapText wraps the paragraphs of a description. Indented lines are examples and stay, and
// so does what follows them without an empty line.
func wrapText(text string, width int) string {
	var b strings.Builder
	for _, paragraph := range strings.Split(text, "\n\n") {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		if strings.Contains("\n"+paragraph, "\n ") {
			b.WriteString(indent(paragraph))
		} else {
			b.WriteString(ctl.Wrap(paragraph, min(width, 90), helpIndent, helpIndent))
		}
	}
	return b.String()
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			b.WriteString(strings.Repeat(" ", helpIndent))
		}
		b.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
