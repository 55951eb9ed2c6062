package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

type setting struct {
	key      string // YAML key
	group    string
	common   bool // see IsCommon
	usage    string
	min, max string   // range of int and time.Duration; empty: no range
	oneOf    []string // choices of a string; empty: no restriction
	index    int      // of the field
	kind     reflect.Type
}

// placeholder replaces the braces of a help text by the back quotes that mark a
// placeholder for package cli. A struct tag cannot contain back quotes.
var placeholder = strings.NewReplacer("{", "`", "}", "`")

// settings returns the settings of a struct in the order of its fields. Fields
// without a key tag are skipped.
func settings(t reflect.Type) []setting {
	var all []setting
	for i := range t.NumField() {
		f := t.Field(i)
		s := setting{
			key: f.Tag.Get("key"), group: f.Tag.Get("group"), common: f.Tag.Get("common") != "",
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

// IsCommon reports whether the setting of a flag is one that most operators set, which the
// short help shows.
func IsCommon(flag string) bool {
	return slices.ContainsFunc(flagSettings(), func(s setting) bool { return s.common && s.flag() == flag })
}

// Keys returns the keys of the settings of Config whose tag has this value.
func Keys(tag, value string) (all []string) {
	for f := range reflect.TypeFor[Config]().Fields() {
		if f.Tag.Get(tag) == value {
			all = append(all, f.Tag.Get("key"))
		}
	}
	return all
}

// flagSettings returns the settings of Config that have a flag and an environment
// variable: all except lists of structs.
func flagSettings() []setting {
	return slices.DeleteFunc(settings(reflect.TypeFor[Config]()), setting.isStructList)
}

func (s setting) flag() string { return strings.ReplaceAll(s.key, "_", "-") }
func (s setting) env() string  { return envPrefix + strings.ToUpper(s.key) }

func (s setting) isStructList() bool {
	return s.kind.Kind() == reflect.Slice && s.kind.Elem().Kind() == reflect.Struct &&
		len(settings(s.kind.Elem())) > 0
}

func (s setting) isList() bool { return s.kind.Kind() == reflect.Slice }

// set parses texts into the field of s in the struct in. It leaves the struct
// unchanged on error.
func (s setting) set(in reflect.Value, texts []string) error {
	value := reflect.New(s.kind).Elem()
	switch {
	case s.isList():
		for _, t := range texts {
			if t == "" {
				return errors.New("has an empty item")
			}
			item := reflect.New(s.kind.Elem()).Elem()
			if err := parse(item, t); err != nil {
				return err
			}
			value = reflect.Append(value, item)
		}
	case len(texts) != 1:
		return fmt.Errorf("expects one value, got %d", len(texts))
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

// bound parses the min or max tag of s. TestTags verifies that all of them parse.
func (s setting) bound(text string) int64 {
	if s.kind == reflect.TypeFor[time.Duration]() {
		d, _ := time.ParseDuration(text)
		return int64(d)
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// parse sets v, an addressable single value, from text. The syntax is the same in
// file, flag and environment.
func parse(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 10s or 1m30s", text)
		}
		*p = d
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		if strings.TrimSpace(text) != text {
			return errors.New("begins or ends with white space, with which it would match nothing")
		}
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		v.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	default:
		return fmt.Errorf("cannot parse a value of type %s", v.Type())
	}
	return nil
}

// format is the inverse of parse, except that it hides secrets.
func format(v reflect.Value) string { return fmt.Sprint(v.Interface()) }

// formats returns the texts of a setting's value: one text, or one per item of a
// list.
func formats(v reflect.Value) []string {
	if v.Kind() != reflect.Slice {
		return []string{format(v)}
	}
	texts := make([]string, v.Len())
	for i := range texts {
		texts[i] = format(v.Index(i))
	}
	return texts
}

func split(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
