package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Change is a setting that differs between two configurations, as the print
// shows both values; secrets are hidden.
type Change struct {
	Key string `json:"key"`
	Was string `json:"was"`
	Now string `json:"now"`
}

// Changes returns what differs, in the order of the settings.
func Changes(was, now *Config) (all []Change) {
	a, b := reflect.ValueOf(was).Elem(), reflect.ValueOf(now).Elem()
	for _, s := range settings(a.Type()) {
		x, y := a.Field(s.index), b.Field(s.index)
		if equal(x, y) {
			continue
		}
		c := Change{Key: s.key, Was: s.brief(x, y), Now: s.brief(y, x)}
		switch {
		case c.Was != c.Now:
		case s.nested() && sameItems(x, y):
			c.Now += " (in another order)"
		default:
			c.Now += " (with another secret)"
		}
		all = append(all, c)
	}
	return all
}

// equal compares two values of one setting. An empty list is no list.
func equal(x, y reflect.Value) bool {
	if x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(x.Interface(), y.Interface())
}

// mostBrief is how many members of a list a change shows.
const mostBrief = 3

// brief returns the value in a line: of a list of structs how many there are,
// and those of them that the other value has not.
func (s setting) brief(v, other reflect.Value) string {
	if !s.nested() {
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

// sameItems reports whether both lists have the same members, in whatever order.
func sameItems(x, y reflect.Value) bool {
	for i := range x.Len() {
		if !has(y, x.Index(i)) {
			return false
		}
	}
	return x.Len() == y.Len()
}

// inline writes a struct in a line of YAML, without the members that are empty
// and without secrets.
func inline(item reflect.Value) string {
	var members []string
	for _, m := range settings(item.Type()) {
		if value := item.Field(m.index); !value.IsZero() && m.kind != reflect.TypeFor[Secret]() {
			members = append(members, m.key+": "+scalarOrList(m, value))
		}
	}
	return "{" + strings.Join(members, ", ") + "}"
}

func has(list, item reflect.Value) bool {
	for i := range list.Len() {
		if equal(list.Index(i), item) {
			return true
		}
	}
	return false
}

// Adopt takes the settings with these keys over from another configuration.
func (c *Config) Adopt(from *Config, keys []string) {
	to, source := reflect.ValueOf(c).Elem(), reflect.ValueOf(from).Elem()
	for _, s := range settings(to.Type()) {
		if slices.Contains(keys, s.key) {
			to.Field(s.index).Set(source.Field(s.index))
		}
	}
}

// Shown is a setting as the operator sees it.
type Shown struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // as in YAML; secrets hidden
	Source string `json:"source"`
}

// Shown returns all settings in force. The members of a list of structs have
// keys such as tokens[0].project.
func (l Loaded) Shown() (all []Shown) {
	v := reflect.ValueOf(l.Config)
	for _, s := range settings(v.Type()) {
		value, source := v.Field(s.index), l.Source(s.key)
		if !s.nested() {
			all = append(all, Shown{s.key, scalarOrList(s, value), source})
			continue
		}
		for i := range value.Len() {
			for _, member := range settings(value.Type().Elem()) {
				if m := value.Index(i).Field(member.index); !m.IsZero() {
					key := fmt.Sprintf("%s[%d].%s", s.key, i, member.key)
					all = append(all, Shown{key, scalarOrList(member, m), source})
				}
			}
		}
	}
	return all
}

// Adopted is Adopt for a configuration that was loaded: the sources of the
// settings come along.
func (l Loaded) Adopted(from Loaded, keys []string) Loaded {
	l.Adopt(&from.Config, keys)
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
