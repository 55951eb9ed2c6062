package config

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Print writes the settings as YAML with the source of each value as a comment.
// [Load] accepts the output, except that secrets are hidden.
func (l Loaded) Print(w io.Writer) error {
	var b strings.Builder
	v := reflect.ValueOf(l.Config)
	for _, s := range settings(v.Type()) {
		if s.isStructList() {
			l.printItems(&b, s, v.Field(s.index))
			continue
		}
		line := s.key + ": " + scalarOrList(s, v.Field(s.index))
		fmt.Fprintf(&b, "%-40s # %s\n", line, l.Source(s.key))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (l Loaded) printItems(b *strings.Builder, s setting, list reflect.Value) {
	if list.Len() == 0 {
		fmt.Fprintf(b, "%-40s # %s\n", s.key+": []", l.Source(s.key))
		return
	}
	fmt.Fprintf(b, "%-40s # %s\n", s.key+":", l.Source(s.key))
	for i := range list.Len() {
		item, lead := list.Index(i), "  - "
		for _, field := range settings(item.Type()) {
			if value := item.Field(field.index); !value.IsZero() {
				fmt.Fprintf(b, "%s%s: %s\n", lead, field.key, scalarOrList(field, value))
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
	if s.isList() {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return texts[0]
}

// plain matches texts that need no quotes anywhere in YAML.
var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._:-]*[A-Za-z0-9/]$|^[A-Za-z0-9]$`)

func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return strconv.Quote(text)
}

// Changes returns the settings that differ, in the order of the fields of Config.
func Changes(was, now *Config) (all []operator.SettingChange) {
	a, b := reflect.ValueOf(was).Elem(), reflect.ValueOf(now).Elem()
	for _, s := range settings(a.Type()) {
		x, y := a.Field(s.index), b.Field(s.index)
		if equal(x, y) {
			continue
		}
		c := operator.SettingChange{Key: s.key, Was: s.brief(x, y), Now: s.brief(y, x)}
		switch {
		case c.Was != c.Now:
		case s.isStructList() && sameItems(x, y):
			c.Now += " (in another order)"
		default:
			c.Now += " (with another secret)"
		}
		all = append(all, c)
	}
	return all
}

// equal compares two values of one setting. An empty list equals a nil list.
func equal(x, y reflect.Value) bool {
	if x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(x.Interface(), y.Interface())
}

const mostBrief = 3

// brief returns the value in one line. For a list of structs, that is the number of
// items and the items that other does not contain.
func (s setting) brief(v, other reflect.Value) string {
	if !s.isStructList() {
		return scalarOrList(s, v)
	}
	var own []string
	for i := range v.Len() {
		if item := v.Index(i); !has(other, item) {
			own = append(own, inline(item))
		}
	}
	switch n := len(own); {
	case n == 0:
		return strconv.Itoa(v.Len())
	case n > mostBrief:
		own = append(own[:mostBrief], fmt.Sprintf("and %d more", n-mostBrief))
	}
	return fmt.Sprintf("%d: %s", v.Len(), strings.Join(own, ", "))
}

func sameItems(x, y reflect.Value) bool {
	for i := range x.Len() {
		if !has(y, x.Index(i)) {
			return false
		}
	}
	return x.Len() == y.Len()
}

// inline returns a struct as one line of YAML, without empty fields and secrets.
func inline(item reflect.Value) string {
	var fields []string
	for _, m := range settings(item.Type()) {
		if value := item.Field(m.index); !value.IsZero() && m.kind != reflect.TypeFor[Secret]() {
			fields = append(fields, m.key+": "+scalarOrList(m, value))
		}
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func has(list, item reflect.Value) bool {
	for i := range list.Len() {
		if equal(list.Index(i), item) {
			return true
		}
	}
	return false
}

// CopySettings copies the settings with these keys from another configuration.
func (c *Config) CopySettings(from *Config, keys []string) {
	to, source := reflect.ValueOf(c).Elem(), reflect.ValueOf(from).Elem()
	for _, s := range settings(to.Type()) {
		if slices.Contains(keys, s.key) {
			to.Field(s.index).Set(source.Field(s.index))
		}
	}
}

// Values returns all settings with their sources. The fields of a list of structs
// have keys such as tokens[0].project.
func (l Loaded) Values() (all []operator.Setting) {
	v := reflect.ValueOf(l.Config)
	for _, s := range settings(v.Type()) {
		value, source := v.Field(s.index), l.Source(s.key)
		if !s.isStructList() {
			all = append(all, operator.Setting{Key: s.key, Value: scalarOrList(s, value), Source: source})
			continue
		}
		for i := range value.Len() {
			for _, field := range settings(value.Type().Elem()) {
				if m := value.Index(i).Field(field.index); !m.IsZero() {
					key := fmt.Sprintf("%s[%d].%s", s.key, i, field.key)
					all = append(all, operator.Setting{Key: key, Value: scalarOrList(field, m), Source: source})
				}
			}
		}
	}
	return all
}

// WithSettings returns a copy of l with the settings of these keys, and their sources,
// from another configuration.
func (l Loaded) WithSettings(from Loaded, keys []string) Loaded {
	l.CopySettings(&from.Config, keys)
	sources := make(map[string]string)
	for _, s := range settings(reflect.TypeFor[Config]()) {
		source := l.Source(s.key)
		if slices.Contains(keys, s.key) {
			source = from.Source(s.key)
		}
		sources[s.key] = source
	}
	l.sources = sources
	return l
}
