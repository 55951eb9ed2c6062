package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// parse sets v, a single value that can be addressed, to what text says. The
// same text means the same in file, flag and environment.
func parse(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a time span such as 10s or 1m30s", text)
		}
		*p = d
		return nil
	}
	switch v.Kind() {
	case reflect.String:
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
		return fmt.Errorf("no text for a %s", v.Type())
	}
	return nil
}

// format is the reverse of parse; secrets come out hidden.
func format(v reflect.Value) string { return fmt.Sprint(v.Interface()) }

// formats returns the texts of a setting's value, one unless it is a list.
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

// split takes a comma list apart.
func split(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
