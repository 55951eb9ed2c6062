package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setting is what the tags of one field say.
type setting struct {
	key      string // in YAML
	group    string
	usage    string
	min, max string   // range of int and time.Duration; empty: none
	oneOf    []string // choices of a string; empty: any
	index    int      // of the field
	kind     reflect.Type
}

// placeholder turns the braces of a help text into the back quotes that mark a
// placeholder for package cli; a struct tag cannot hold those.
var placeholder = strings.NewReplacer("{", "`", "}", "`")

// settings returns the settings of a struct in the order of its fields. A
// field without a key is no setting.
func settings(t reflect.Type) []setting {
	var all []setting
	for i := range t.NumField() {
		f := t.Field(i)
		s := setting{
			key: f.Tag.Get("key"), group: f.Tag.Get("group"),
			usage: placeholder.Replace(f.Tag.Get("usage")),
			min:   f.Tag.Get("min"), max: f.Tag.Get("max"),
			index: i, kind: f.Type,
		}
		if choices := f.Tag.Get("oneof"); choices != "" {
			s.oneOf = strings.Split(choices, ",")
		}
		if s.key != "" {
			all = append(all, s)
		}
	}
	return all
}

// flagged returns the settings of Config that have a flag and a variable: all
// but lists of structs, which one line of text cannot hold.
func flagged() []setting {
	return slices.DeleteFunc(settings(reflect.TypeFor[Config]()), setting.nested)
}

func (s setting) flag() string { return strings.ReplaceAll(s.key, "_", "-") }
func (s setting) env() string  { return envPrefix + strings.ToUpper(s.key) }

// nested reports whether the setting is a list of structs with settings.
func (s setting) nested() bool {
	return s.kind.Kind() == reflect.Slice && s.kind.Elem().Kind() == reflect.Struct &&
		len(settings(s.kind.Elem())) > 0
}

// list reports whether the setting holds several values.
func (s setting) list() bool { return s.kind.Kind() == reflect.Slice }

// set gives the field of s in the struct to the values that texts hold. The
// struct is not touched on error.
func (s setting) set(in reflect.Value, texts []string) error {
	value := reflect.New(s.kind).Elem()
	switch {
	case s.list():
		for _, t := range texts {
			item := reflect.New(s.kind.Elem()).Elem()
			if err := parse(item, t); err != nil {
				return err
			}
			value = reflect.Append(value, item)
		}
	case len(texts) != 1:
		return fmt.Errorf("takes one value, not %d", len(texts))
	default:
		if err := parse(value, texts[0]); err != nil {
			return err
		}
	}
	if err := s.check(value); err != nil {
		return err
	}
	in.Field(s.index).Set(value)
	return nil
}

// check holds a value against range and choices.
func (s setting) check(v reflect.Value) error {
	if len(s.oneOf) > 0 && !slices.Contains(s.oneOf, v.String()) {
		return fmt.Errorf("%q is not one of %s", v.String(), strings.Join(s.oneOf, ", "))
	}
	if s.min == "" {
		return nil
	}
	low, high := s.bound(s.min), s.bound(s.max)
	if n := v.Int(); n < low || n > high {
		return fmt.Errorf("%s is not within %s to %s", format(v), s.min, s.max)
	}
	return nil
}

// bound reads a limit from a tag. That all of them can be read is tested.
func (s setting) bound(text string) int64 {
	if s.kind == reflect.TypeFor[time.Duration]() {
		d, _ := time.ParseDuration(text)
		return int64(d)
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
