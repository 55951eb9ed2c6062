package operator

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// List is a listing: a GET of the admin pages, the same page of each relay of a fleet, and a request of
// ferry ctl. Q is a struct with the parameters, and A the answer. A viewer may read all of them.
type List[Q, A any] struct {
	// Path is that of the page. {name} stands for the field of Q with the tag path:"name".
	Path string
	// Default is the query without parameters.
	Default Q
	// Check checks the parameters together. Nil: there is nothing to check.
	Check func(*Q) error
	// Ask returns what each relay of a fleet is asked. Nil: the same. Its error is that of the query.
	Ask func(Q) (Q, error)
	// Merge adds the answer of a relay, and reports whether no other is needed. Nil: a fleet has no such listing.
	Merge func(all, part *A, of *Node) (done bool)
	// Finish completes the answer of a fleet, from which some relays are missing. Nil: there is nothing to do.
	Finish func(all *A, q *Q, missing []Missing)
}

// ErrQuery is wrapped by the errors of an invalid query.
var ErrQuery = errors.New("admin")

// Parse reads a query, and what value returns of the names in the path.
func (l *List[Q, A]) Parse(query url.Values, value func(name string) string) (q Q, err error) {
	q = l.Default
	for i, f := range fields(q) {
		if name := f.Tag.Get("path"); name != "" {
			reflect.ValueOf(&q).Elem().Field(i).SetString(value(name))
		}
	}
	if err = ParseQuery(query, &q); err == nil && l.Check != nil {
		err = l.Check(&q)
	}
	return q, err
}

// PathOf returns the path of a query, escaped.
func (l *List[Q, A]) PathOf(q Q) string {
	path := l.Path
	for i, f := range fields(q) {
		if name := f.Tag.Get("path"); name != "" {
			path = strings.Replace(path, "{"+name+"}", url.PathEscape(reflect.ValueOf(q).Field(i).String()), 1)
		}
	}
	return path
}

// Target returns the path with the query.
func (l *List[Q, A]) Target(q Q) string {
	if values := Values(q); len(values) > 0 {
		return l.PathOf(q) + "?" + values.Encode()
	}
	return l.PathOf(q)
}

func fields(q any) func(func(int, reflect.StructField) bool) {
	return func(yield func(int, reflect.StructField) bool) {
		t := reflect.TypeOf(q)
		for i := range t.NumField() {
			if !yield(i, t.Field(i)) {
				return
			}
		}
	}
}

const omitEmpty = ",omitempty"

// Values returns the parameters of a query: fields with the tag query:"name", but no empty text, and no 0 of
// one with the option omitempty.
func Values(q any) url.Values {
	all := url.Values{}
	for i, f := range fields(q) {
		name, omit := strings.CutSuffix(f.Tag.Get("query"), omitEmpty)
		text := fmt.Sprint(reflect.ValueOf(q).Field(i))
		if name != "" && text != "" && (text != "0" || !omit) {
			all.Set(name, text)
		}
	}
	return all
}

// ParseQuery reads parameters into the fields of a struct: an encoding.TextUnmarshaler, a text (one of those in
// the tag oneof), or a number up to that in the tag max. Unknown parameters are errors, so that a typing error does
// not change the request.
func ParseQuery(query url.Values, into any) error {
	v := reflect.ValueOf(into).Elem()
	index := make(map[string]int)
	for i, f := range fields(v.Interface()) {
		index[strings.TrimSuffix(f.Tag.Get("query"), omitEmpty)] = i
	}
	delete(index, "")
	for name, values := range query {
		i, ok := index[name]
		if !ok {
			return fmt.Errorf("%w: unknown parameter %q", ErrQuery, name)
		}
		if len(values) != 1 {
			return fmt.Errorf("%w: %s is given %d times", ErrQuery, name, len(values))
		}
		if err := setField(v.Field(i), v.Type().Field(i).Tag, values[0]); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrQuery, name, err)
		}
	}
	return nil
}

func setField(to reflect.Value, tag reflect.StructTag, text string) error {
	if custom, ok := to.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return custom.UnmarshalText([]byte(text))
	}
	if to.Kind() == reflect.String {
		if names := strings.Fields(tag.Get("oneof")); len(names) > 0 && !slices.Contains(names, text) {
			return fmt.Errorf("%q is not one of %s", text, strings.Join(names, ", "))
		}
		to.SetString(text)
		return nil
	}
	most := uint64(math.MaxUint32)
	if limit := tag.Get("max"); limit != "" {
		most, _ = strconv.ParseUint(limit, 10, 64)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return fmt.Errorf("%q is not a number up to %d", text, most)
	}
	to.Set(reflect.ValueOf(n).Convert(to.Type()))
	return nil
}
