package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"
)

// Loaded is a Config with the source of each value.
type Loaded struct {
	Config
	// File is the configuration file, empty if there is none.
	File string

	sources map[string]string // by YAML key; absent: the default
}

// Load merges the defaults, the configuration file, environ (as from os.Environ)
// and the flags of cmd (from [Flags]), in ascending precedence. The file is named by
// --config or FERRY_CONFIG. The error joins all problems, one per line, each with its
// position. With an error the result has all settings that are valid, and the values before them
// for the others; it is zero if the file cannot be read as a whole.
func Load(cmd *cli.Command, environ []string, defaults Config) (Loaded, error) {
	l := Loaded{Config: defaults, sources: make(map[string]string)}
	vars := environment(environ)
	l.File = vars[envFile]
	if cmd.IsSet(fileFlag) {
		l.File = cmd.String(fileFlag)
	}
	var inFile error
	readable := true
	if l.File != "" {
		readable, inFile = readFile(l.File, &l.Config, l.sources)
	}
	err := errors.Join(inFile, readEnv(vars, &l.Config, l.sources), readFlags(cmd, &l.Config, l.sources))
	if !readable {
		return Loaded{}, err
	}
	return l, errors.Join(err, l.validate())
}

// IsZero reports whether nothing was loaded, see [Load].
func (l Loaded) IsZero() bool { return l.sources == nil }

const sourceDefault = "default"

// Source returns the source of the value of a YAML key: "default", FILE:LINE, the
// name of a variable, or a flag.
func (l Loaded) Source(key string) string {
	if s, ok := l.sources[key]; ok {
		return s
	}
	return sourceDefault
}

// IsSet reports whether the file, the environment or a flag sets the key.
func (l Loaded) IsSet(key string) bool { return l.Source(key) != sourceDefault }

const fileFlag = "config"

// Flags returns --config and the flag of every setting. The help shows the
// defaults; they have no other effect.
func Flags(defaults Config) []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{
		Name: fileFlag, Aliases: []string{"c"}, Usage: "read settings from `FILE` (YAML)" + envHint(envFile),
	}}
	v := reflect.ValueOf(defaults)
	for _, s := range flagSettings() {
		text := strings.Join(formats(v.Field(s.index)), ",")
		flags = append(flags, s.cliFlag(text))
	}
	return flags
}

func envHint(name string) string { return " [$" + name + "]" }

// cliFlag returns the flag of one setting. The help only names the environment
// variable: [Load] reads it, since it ranks between flag and file.
func (s setting) cliFlag(defaultText string) cli.Flag {
	usage := s.usage + envHint(s.env())
	switch {
	case s.isList():
		return &cli.StringSliceFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: defaultText}
	case s.kind == reflect.TypeFor[time.Duration]():
		return &cli.DurationFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: defaultText}
	case s.kind.Kind() == reflect.Bool:
		return &cli.BoolFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: defaultText}
	case s.kind.Kind() == reflect.Int:
		return &cli.IntFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: defaultText}
	}
	return &cli.StringFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: defaultText}
}

func readFlags(cmd *cli.Command, c *Config, sources map[string]string) error {
	var errs []error
	for _, s := range flagSettings() {
		if !cmd.IsSet(s.flag()) {
			continue
		}
		sources[s.key] = "--" + s.flag()
		texts := []string{fmt.Sprint(cmd.Value(s.flag()))}
		if s.isList() {
			texts = split(strings.Join(cmd.StringSlice(s.flag()), ","))
		}
		if err := s.set(reflect.ValueOf(c).Elem(), texts); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", s.flag(), err))
		}
	}
	return errors.Join(errs...)
}

const envPrefix = "FERRY_"

// envFile is the variable of the configuration file, as the flag --config.
const envFile = envPrefix + "CONFIG"

// environment returns the variables that begin with envPrefix and are not
// empty.
func environment(environ []string) map[string]string {
	vars := make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && value != "" {
			vars[name] = value
		}
	}
	return vars
}

// setByKubernetes reports whether name is a variable that Kubernetes sets in every
// pod for a service named ferry.
func setByKubernetes(name string) bool {
	return strings.HasPrefix(name, envPrefix+"SERVICE_") ||
		name == envPrefix+"PORT" || strings.HasPrefix(name, envPrefix+"PORT_")
}

func readEnv(vars map[string]string, c *Config, sources map[string]string) error {
	var errs []error
	known := map[string]bool{envFile: true}
	for _, s := range flagSettings() {
		known[s.env()] = true
		text, ok := vars[s.env()]
		if !ok {
			continue
		}
		sources[s.key] = s.env()
		texts := []string{text}
		if s.isList() {
			texts = split(text)
		}
		if err := s.set(reflect.ValueOf(c).Elem(), texts); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.env(), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if known[name] || setByKubernetes(name) {
			continue
		}
		err := goneError(strings.ToLower(strings.TrimPrefix(name, envPrefix)), name)
		if err == nil {
			err = fmt.Errorf("%s: unknown environment variable", name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// maxFile is the maximum size of the configuration file in bytes, enough for ten
// thousand tokens.
const maxFile = 4 << 20

type file struct {
	path    string
	sources map[string]string // by YAML key
	errs    []error
}

// readFile reads the file into c and records the source of every key in it. It reports whether it
// could read keys at all; the error is that of the file, or joins those of single keys.
func readFile(path string, c *Config, sources map[string]string) (readable bool, err error) {
	text, err := readAtMost(path, maxFile)
	if err != nil {
		return false, err
	}
	f := file{path: path, sources: sources}
	root, err := document(text)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if root == nil {
		return true, nil
	}
	for key, line := range f.mapping(root, reflect.ValueOf(c).Elem(), "") {
		sources[key] = f.at(line)
	}
	return root.Kind == yaml.MappingNode, errors.Join(f.errs...)
}

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

// mapping reads a mapping into a struct and returns the line of every key. Errors
// contain prefix before the key.
func (f *file) mapping(n *yaml.Node, into reflect.Value, prefix string) map[string]int {
	if n.Kind != yaml.MappingNode {
		f.fail(n, "%smust be a mapping of keys to values", prefix)
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
			list, _, _ := strings.Cut(prefix, "[") // prefix is LIST[3].
			if err := goneError(strings.TrimPrefix(list+"."+key.Value, "."), prefix+key.Value); err != nil {
				f.fail(key, "%w", err)
				continue
			}
			question := ""
			if best := Similar(key.Value, slices.Sorted(maps.Keys(known))); best != "" {
				question = "; did you mean " + best + "?"
			}
			f.fail(key, "unknown key %q%s", prefix+key.Value, question)
			continue
		}
		if first, twice := lines[s.key]; twice {
			f.fail(key, "%s%s: duplicate key, first in line %d", prefix, s.key, first)
			continue
		}
		lines[s.key] = key.Line
		f.value(value, s, into, prefix+s.key)
	}
	return lines
}

func (f *file) value(n *yaml.Node, s setting, into reflect.Value, name string) {
	if s.isStructList() {
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

func (f *file) items(n *yaml.Node, list reflect.Value, name string) {
	if n.Kind != yaml.SequenceNode {
		f.fail(n, "%s: must be a list", name)
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
	errScalar  = errors.New("must be a plain value")
)

// scalars returns the texts of a value: one text, or one per item of a list.
func scalars(n *yaml.Node, s setting) ([]string, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil, errNoValue
	case n.Kind == yaml.ScalarNode && s.isList():
		return split(n.Value), nil
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}, nil
	case n.Kind != yaml.SequenceNode || !s.isList():
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
