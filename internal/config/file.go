package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the configuration file, in bytes. Ten thousand tokens fit.
const maxFile = 4 << 20

// file is a YAML file that is being read into a Config.
type file struct {
	path    string
	sources map[string]string // by key, filled in
	errs    []error
}

// readFile reads path into c and notes the source of every key that it names.
func readFile(path string, c *Config, sources map[string]string) error {
	text, err := readAtMost(path, maxFile)
	if err != nil {
		return err
	}
	f := file{path: path, sources: sources}
	root, err := document(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if root == nil {
		return nil
	}
	for key, line := range f.mapping(root, reflect.ValueOf(c).Elem(), "") {
		sources[key] = f.at(line)
	}
	return errors.Join(f.errs...)
}

// document returns the one document of a file, nil when the file is empty.
func document(text []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one document")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

func (f *file) at(line int) string { return f.path + ":" + strconv.Itoa(line) }

func (f *file) fail(n *yaml.Node, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s: %w", f.at(n.Line), fmt.Errorf(format, args...)))
}

// mapping reads a mapping into a struct and returns the line of every key.
// Prefix names the mapping in errors.
func (f *file) mapping(n *yaml.Node, into reflect.Value, prefix string) map[string]int {
	if n.Kind != yaml.MappingNode {
		f.fail(n, "%swants keys and values", prefix)
		return nil
	}
	known := make(map[string]setting)
	for _, s := range settings(into.Type()) {
		known[s.key] = s
	}
	lines := make(map[string]int)
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		s, ok := known[key.Value]
		if !ok || key.Kind != yaml.ScalarNode {
			f.fail(key, "unknown key %q", prefix+key.Value)
			continue
		}
		if first, twice := lines[s.key]; twice {
			f.fail(key, "%s%s: stands in line %d already", prefix, s.key, first)
			continue
		}
		lines[s.key] = key.Line
		f.value(value, s, into, prefix+s.key)
	}
	return lines
}

// value reads the value of one setting.
func (f *file) value(n *yaml.Node, s setting, into reflect.Value, name string) {
	if s.nested() {
		f.items(n, into.Field(s.index), name)
		return
	}
	texts, err := scalars(n, s)
	if err == nil {
		err = s.set(into, texts)
	}
	if err != nil {
		f.fail(n, "%s: %w", name, err)
	}
}

// items reads a list of structs.
func (f *file) items(n *yaml.Node, list reflect.Value, name string) {
	if n.Kind != yaml.SequenceNode {
		f.fail(n, "%s: wants a list", name)
		return
	}
	for i, item := range n.Content {
		v := reflect.New(list.Type().Elem())
		before := len(f.errs)
		f.mapping(item, v.Elem(), fmt.Sprintf("%s[%d].", name, i))
		if r, ok := v.Interface().(interface{ resolve() error }); ok && len(f.errs) == before {
			if err := r.resolve(); err != nil {
				f.fail(item, "%s[%d]: %w", name, i, err)
			}
		}
		list.Set(reflect.Append(list, v.Elem()))
	}
}

var (
	errNoValue = errors.New("has no value")
	errScalar  = errors.New("wants a plain value")
)

// scalars returns the texts of a value: a plain one, or a list of them.
func scalars(n *yaml.Node, s setting) ([]string, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil, errNoValue
	case n.Kind == yaml.ScalarNode && s.list():
		return split(n.Value), nil
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}, nil
	case n.Kind != yaml.SequenceNode || !s.list():
		return nil, errScalar
	}
	texts := make([]string, len(n.Content))
	for i, item := range n.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			return nil, errScalar
		}
		texts[i] = item.Value
	}
	return texts, nil
}
