package netsim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// field is a parameter with its name in text.
type field struct {
	name  string
	value func(*Params) any
}

var fields = [...]field{
	{"delay", func(p *Params) any { return &p.Delay }},
	{"jitter", func(p *Params) any { return &p.Jitter }},
	{"ordered", func(p *Params) any { return &p.Ordered }},
	{"loss", func(p *Params) any { return &p.Loss }},
	{"loss-every", func(p *Params) any { return &p.LossEvery }},
	{"duplicate", func(p *Params) any { return &p.Duplicate }},
	{"reorder", func(p *Params) any { return &p.Reorder }},
	{"reorder-by", func(p *Params) any { return &p.ReorderBy }},
	{"corrupt", func(p *Params) any { return &p.Corrupt }},
	{"corrupt-from", func(p *Params) any { return &p.CorruptFrom }},
	{"mtu", func(p *Params) any { return &p.MTU }},
}

// ParseParams reads parameters as a person writes them: settings and names of
// presets with commas between them, such as
//
//	delay=100ms,jitter=10ms,loss=1,duplicate=0.5
//	4g+regional-median,loss=10
//	off
//
// A preset sets everything, so that it stands first; a setting after it
// replaces one value. The empty text and "off" mean the zero Params. Errors
// wrap ErrParams.
func ParseParams(text string) (Params, error) {
	var p Params
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		name, value, setting := strings.Cut(part, "=")
		switch {
		case part == "" || part == "off":
		case setting:
			if err := p.set(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
				return Params{}, err
			}
		default:
			preset, err := Preset(part)
			if err != nil {
				return Params{}, err
			}
			p = preset
		}
	}
	return p, p.Check()
}

// set gives one parameter its value.
func (p *Params) set(name, text string) error {
	var err error
	for _, f := range fields {
		if f.name != name {
			continue
		}
		switch v := f.value(p).(type) {
		case *time.Duration:
			*v, err = time.ParseDuration(text)
		case *float64:
			*v, err = strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		case *int:
			*v, err = strconv.Atoi(text)
		case *bool:
			*v, err = strconv.ParseBool(text)
		}
		if err != nil {
			return fmt.Errorf("%w: %s cannot be %q", ErrParams, name, text)
		}
		return nil
	}
	return fmt.Errorf("%w: there is no %q", ErrParams, name)
}

// String returns the text that ParseParams reads, "off" for the zero Params.
func (p Params) String() string {
	var b strings.Builder
	for _, f := range fields {
		text := ""
		switch v := f.value(&p).(type) {
		case *time.Duration:
			text = textUnless(*v == 0, v.String())
		case *float64:
			text = textUnless(*v == 0, strconv.FormatFloat(*v, 'g', -1, 64))
		case *int:
			text = textUnless(*v == 0, strconv.Itoa(*v))
		case *bool:
			text = textUnless(!*v, "true")
		}
		if text == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(f.name + "=" + text)
	}
	if b.Len() == 0 {
		return "off"
	}
	return b.String()
}

func textUnless(zero bool, text string) string {
	if zero {
		return ""
	}
	return text
}

// MarshalText returns String: so Params are a string in JSON and in YAML, and a
// flag with flag.TextVar.
func (p Params) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParseParams.
func (p *Params) UnmarshalText(text []byte) error {
	parsed, err := ParseParams(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}
