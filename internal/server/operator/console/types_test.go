package console

import (
	"encoding"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

var rewrite = flag.Bool("rewrite", false, "write web/src/types.ts from the types in Go")

// typesOfPage are what the page reads: the types of their members follow.
var typesOfPage = []any{
	Sample{}, Day{}, FleetState{}, Line{}, Source{}, Reason{},
	operator.Allocations{}, operator.Matches{}, operator.Why{}, operator.ProjectTimeline{}, operator.Usage{}, operator.PlayersUsage{},
	operator.Bans{}, operator.Affected{}, operator.Canaries{}, operator.DrainState{}, operator.Settings{},
	operator.ReloadResult{}, operator.LogLevel{}, operator.Login{},
}

// neverNull are lists that the server makes even if they are empty.
var neverNull = map[string]bool{
	"Stats.outcomes": true, "Stats.drops": true, "Stats.workers": true, "Stats.intakes": true, "Sample.conditions": true,
	"Day.points": true, "Day.changes": true, "Allocations.allocations": true, "Matches.matches": true,
	"ProjectTimeline.events": true, "Usage.projects": true,
	"PlayersUsage.players": true, "Bans.bans": true, "Canaries.canaries": true,
	"Settings.settings": true,
}

// TestTypes: the page is compiled with the types of the server, which are written to a file.
func TestTypes(t *testing.T) {
	const file = "web/src/types.ts"
	w := typeWriter{seen: map[reflect.Type]bool{}}
	for _, v := range typesOfPage {
		w.typeOf(reflect.TypeOf(v))
	}
	text := "// Made from the types in Go by go test ./internal/server/operator/console -run TestTypes -rewrite. Do not edit.\n" +
		w.text.String()
	if *rewrite {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(file); err != nil || string(old) != text {
		t.Errorf("%s is not that of the types in Go: go test ./internal/server/operator/console -run TestTypes -rewrite (%v)", file, err)
	}
}

type typeWriter struct {
	seen map[reflect.Type]bool
	text strings.Builder
}

// typeOf returns a type in TypeScript, and writes it if it is an interface that was not written before.
func (w *typeWriter) typeOf(t reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() || t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return "string"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Pointer:
		return w.typeOf(t.Elem())
	case reflect.Slice:
		return w.typeOf(t.Elem()) + "[]"
	case reflect.Map:
		return "Record<string, " + w.typeOf(t.Elem()) + ">"
	case reflect.Struct:
		if !w.seen[t] {
			w.seen[t] = true
			w.writeInterface(t)
		}
		return t.Name()
	}
	return "number"
}

func (w *typeWriter) writeInterface(t reflect.Type) {
	text := "\nexport interface " + t.Name()
	var members, bases []string
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := w.typeOf(f.Type)
		switch {
		case name == "-":
			continue
		case f.Anonymous:
			bases = append(bases, kind)
			continue
		case options != "":
			name += "?"
		case (f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Map) && !neverNull[t.Name()+"."+name]:
			kind += " | null"
		}
		members = append(members, fmt.Sprintf("  %s: %s\n", name, kind))
	}
	if len(bases) > 0 {
		text += " extends " + strings.Join(bases, ", ")
	}
	w.text.WriteString(text + " {\n" + strings.Join(members, "") + "}\n")
}
