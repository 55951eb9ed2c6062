// Package unset finds required values of a configuration that were not set: constructors report
// them, instead of a panic in the first call.
package unset

import "reflect"

// IsNil reports whether v is nil, or an interface that holds a nil pointer, function or map.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return r.IsNil()
	}
	return false
}

// IsZero reports whether p is nil or points to a zero value, which no constructor has made.
func IsZero[T any](p *T) bool { return p == nil || reflect.ValueOf(p).Elem().IsZero() }
