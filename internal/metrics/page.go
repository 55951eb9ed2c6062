package metrics

import (
	"fmt"
	"strconv"
	"strings"
)

// The types of metrics that are written here.
const (
	gauge     = "gauge"
	counter   = "counter"
	histogram = "histogram"
)

// family begins a metric; its samples follow.
func (p *page) family(name, kind, help string) {
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one value with labels, given as names and values in turn.
func (p *page) sample(name string, value uint64, labels ...string) {
	p.WriteString(name)
	p.labels(labels)
	p.WriteByte(' ')
	p.WriteString(strconv.FormatUint(value, 10))
	p.WriteByte('\n')
}

// seconds writes one value that is a time.
func (p *page) seconds(name string, value float64, labels ...string) {
	p.WriteString(name)
	p.labels(labels)
	fmt.Fprintf(p, " %g\n", value)
}

// single writes a metric that has one value and no labels.
func (p *page) single(name, kind, help string, value uint64) {
	p.family(name, kind, help)
	p.sample(name, value)
}

// escape is how the text format wants the values of labels.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (p *page) labels(pairs []string) {
	if len(pairs) == 0 {
		return
	}
	for i := 0; i < len(pairs); i += 2 {
		p.WriteByte("{,"[min(i, 1)])
		p.WriteString(pairs[i])
		p.WriteString(`="`)
		_, _ = escape.WriteString(p, pairs[i+1])
		p.WriteByte('"')
	}
	p.WriteByte('}')
}
