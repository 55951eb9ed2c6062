package operator

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func fill(v reflect.Value) {
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		*at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]uint64{"reason": 9}))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int:
		v.SetInt(7)
	default:
		v.SetUint(8)
	}
}

// TestJSON: the JSON of the admin API, with all fields and with none, is that of testdata/json,
// which dashboards and older versions read: members may be added.
func TestJSON(t *testing.T) {
	var out strings.Builder
	for _, v := range []any{
		&Nodes{}, &DrainState{}, &Allocations{}, &ActionResult{}, &Matches{}, &Usage{}, &PlayersUsage{}, &Stats{}, &Why{}, &ProjectTimeline{},
	} {
		for range 2 {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString(reflect.TypeOf(v).Elem().Name() + " " + string(text) + "\n")
			fill(reflect.ValueOf(v).Elem())
		}
	}
	want, err := os.ReadFile("testdata/json")
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
