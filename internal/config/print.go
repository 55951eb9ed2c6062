package config

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Print writes the settings in force as YAML that Load would take again, with
// the source of each value as a comment and secrets hidden.
func (l Loaded) Print(w io.Writer) error {
	var b strings.Builder
	v := reflect.ValueOf(l.Config)
	for _, s := range settings(v.Type()) {
		if s.nested() {
			l.printItems(&b, s, v.Field(s.index))
			continue
		}
		line := s.key + ": " + scalarOrList(s, v.Field(s.index))
		fmt.Fprintf(&b, "%-40s # %s\n", line, l.Source(s.key))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printItems writes a list of structs, without the members that are empty.
func (l Loaded) printItems(b *strings.Builder, s setting, list reflect.Value) {
	if list.Len() == 0 {
		fmt.Fprintf(b, "%-40s # %s\n", s.key+": []", l.Source(s.key))
		return
	}
	fmt.Fprintf(b, "%-40s # %s\n", s.key+":", l.Source(s.key))
	for i := range list.Len() {
		item, lead := list.Index(i), "  - "
		for _, member := range settings(item.Type()) {
			if value := item.Field(member.index); !value.IsZero() {
				fmt.Fprintf(b, "%s%s: %s\n", lead, member.key, scalarOrList(member, value))
				lead = "    "
			}
		}
	}
}

func scalarOrList(s setting, v reflect.Value) string {
	texts := formats(v)
	for i := range texts {
		texts[i] = quote(texts[i])
	}
	if s.list() {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return texts[0]
}

// plain is what needs no quotes in YAML, wherever it stands.
var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._:-]*[A-Za-z0-9/]$|^[A-Za-z0-9]$`)

func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return strconv.Quote(text)
}
