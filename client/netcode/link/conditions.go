package link

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrConditions is wrapped by every refusal of Conditions.
var ErrConditions = errors.New("link: conditions are not usable")

// maxDelay bounds each duration: beyond it there is no network.
const maxDelay = time.Minute

// Conditions are a simulated network. They are applied to the datagrams of one direction in this order: MTU,
// loss, corruption, duplication, delay. Chances are percentages from 0 to 100.
type Conditions struct {
	// Delay is how long each datagram takes, at most a minute.
	Delay time.Duration
	// Jitter is added to it, uniform from -Jitter up to but not Jitter; the sum
	// is not below 0. Datagrams may overtake each other.
	Jitter time.Duration
	// Ordered keeps jitter from reordering, as the queue of a router does.
	Ordered bool
	Loss    float64
	// LossEvery loses the first datagram and then every n-th. 0 means none.
	LossEvery int
	// Duplicate is the chance to arrive twice. The copy has a jitter of its own.
	Duplicate float64
	// Reorder is the chance to be held back for up to ReorderBy more, while
	// later datagrams pass.
	Reorder float64
	// ReorderBy bounds that time. 0 means 40 ms, the limit is a minute.
	ReorderBy time.Duration
	// Corrupt is the chance to have 1, 3, 5 or 7 bits flipped.
	Corrupt float64
	// CorruptFrom is the first byte that may be touched.
	CorruptFrom int
	// MTU is the largest datagram in bytes that passes. 0 means all do.
	MTU int
}

// Check reports what is wrong with the conditions. Errors wrap ErrConditions.
func (p Conditions) Check() error {
	for _, f := range fields {
		switch v := f.value(&p).(type) {
		case *time.Duration:
			if *v < 0 || *v > maxDelay {
				return fmt.Errorf("%w: %s is %v, not within 0 and %v", ErrConditions, f.name, *v, maxDelay)
			}
		case *float64:
			if !(*v >= 0 && *v <= 100) {
				return fmt.Errorf("%w: %s is %v, not a percentage", ErrConditions, f.name, *v)
			}
		case *int:
			if *v < 0 {
				return fmt.Errorf("%w: %s is %d, below 0", ErrConditions, f.name, *v)
			}
		}
	}
	return nil
}

// preset is a network with a name, per direction. The numbers of lan,
// no-internet and unplayable, and those that the median and the worst way add,
// are the ones that netcode libraries offer; the others are round numbers of our
// own, pessimistic for what the name says, and no measurement of any network.
type preset struct {
	name          string
	delay, jitter int // ms
	loss, corrupt float64
}

// access are the networks that players sit on, without the way to the server.
var access = [...]preset{
	{"lan", 1, 1, 1, 0},
	{"broadband", 8, 3, 0.5, 0},
	{"wifi", 15, 12, 2, 0},
	{"5g", 12, 6, 1, 0},
	{"4g", 40, 12, 2, 0},
	{"3g", 110, 30, 4, 0},
	{"2g", 300, 80, 6, 0},
	{"unplayable", 300, 400, 30, 0},
	{"no-internet", 1000, 1000, 100, 0},
	{"corruption", 100, 50, 2, 1},
}

// ways are what the way to a server adds: one of the own region or one abroad.
var ways = [...]preset{
	{"regional-good", 10, 3, 0.5, 0},
	{"regional-median", 65, 10, 2, 0},
	{"international-median", 110, 12, 3, 0},
	{"international-worst", 200, 15, 5, 0},
}

// findPreset returns the conditions of a named network, or of several in a row.
func findPreset(name string) (Conditions, error) {
	var sum Conditions
	for part := range strings.SplitSeq(name, "+") {
		p, ok := find(part)
		if !ok {
			return Conditions{}, fmt.Errorf("%w: there is no preset %q, but %s", ErrConditions, part, strings.Join(presetNames(), ", "))
		}
		sum.Delay += time.Duration(p.delay) * time.Millisecond
		sum.Jitter += time.Duration(p.jitter) * time.Millisecond
		sum.Loss = min(sum.Loss+p.loss, 100)
		sum.Corrupt = min(sum.Corrupt+p.corrupt, 100)
	}
	return sum, nil
}

func find(name string) (preset, bool) {
	for _, list := range [][]preset{access[:], ways[:]} {
		for _, p := range list {
			if p.name == name {
				return p, true
			}
		}
	}
	return preset{}, false
}

// presetNames returns the names for UnmarshalText: networks, then ways to a server.
func presetNames() []string {
	names := make([]string, 0, len(access)+len(ways))
	for _, list := range [][]preset{access[:], ways[:]} {
		for _, p := range list {
			names = append(names, p.name)
		}
	}
	return names
}

type field struct {
	name  string
	value func(*Conditions) any
}

var fields = [...]field{
	{"delay", func(p *Conditions) any { return &p.Delay }},
	{"jitter", func(p *Conditions) any { return &p.Jitter }},
	{"ordered", func(p *Conditions) any { return &p.Ordered }},
	{"loss", func(p *Conditions) any { return &p.Loss }},
	{"loss-every", func(p *Conditions) any { return &p.LossEvery }},
	{"duplicate", func(p *Conditions) any { return &p.Duplicate }},
	{"reorder", func(p *Conditions) any { return &p.Reorder }},
	{"reorder-by", func(p *Conditions) any { return &p.ReorderBy }},
	{"corrupt", func(p *Conditions) any { return &p.Corrupt }},
	{"corrupt-from", func(p *Conditions) any { return &p.CorruptFrom }},
	{"mtu", func(p *Conditions) any { return &p.MTU }},
}

func (p *Conditions) set(name, text string) error {
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
			return fmt.Errorf("%w: %s cannot be %q", ErrConditions, name, text)
		}
		return nil
	}
	return fmt.Errorf("%w: there is no %q", ErrConditions, name)
}

// String returns the text that UnmarshalText reads, "off" for the zero Conditions.
func (p Conditions) String() string {
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

// MarshalText returns String: so Conditions are a string in JSON and in YAML, and a
// flag with flag.TextVar.
func (p Conditions) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads parameters as a person writes them: settings and names of
// presets with commas between them, such as
//
//	delay=100ms,jitter=10ms,loss=1,duplicate=0.5
//	4g+regional-median,loss=10
//	off
//
// A preset, such as "4g", sets everything, so that it stands first. Of several in a row, delays, jitters
// and chances add up. The empty text and "off" mean the zero Conditions. Errors wrap ErrConditions, and leave p as it is.
func (p *Conditions) UnmarshalText(text []byte) error {
	var parsed Conditions
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		name, value, setting := strings.Cut(part, "=")
		var err error
		switch {
		case part == "" || part == "off":
		case setting:
			err = parsed.set(strings.TrimSpace(name), strings.TrimSpace(value))
		default:
			parsed, err = findPreset(part)
		}
		if err != nil {
			return err
		}
	}
	if err := parsed.Check(); err != nil {
		return err
	}
	*p = parsed
	return nil
}
