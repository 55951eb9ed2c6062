package metrics

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
)

// numbers gives each field a value that no other one has.
type numbers struct {
	last  float64
	field map[string]float64 // what each one got, as Store.Calls
}

func (n *numbers) fill(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	n.last *= 0.97 // What is a part of another one is behind it, and has to be less.
	switch v.Kind() {
	case reflect.Uint64:
		v.SetUint(uint64(n.last))
	case reflect.Int:
		v.SetInt(int64(n.last))
	case reflect.Bool:
		v.SetBool(true)
		return // 1 does not identify the field.
	case reflect.String:
		return
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		n.fill(t, name, v.Index(0))
		return
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]uint64{"full": uint64(n.last)}))
	case reflect.Array:
		for i := range v.Len() {
			n.fill(t, fmt.Sprint(name, ".", i), v.Index(i))
		}
		return
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(n.last), 0)))
			break
		}
		if v.Type() == reflect.TypeFor[placement.RelayStats]() {
			v.FieldByName("Relay").Set(reflect.ValueOf(alloc.RelayID{1}))
			n.fill(t, name+".Silent", v.FieldByName("Silent"))
			v.FieldByName("Dead").SetBool(true)
			v.FieldByName("Region").SetString("eu")
			return
		}
		for i := range v.NumField() {
			n.fill(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
		return
	default:
		t.Fatalf("%s is a %s", name, v.Kind())
	}
	n.field[name] = float64(uint64(n.last))
}

func filled[T any](t *testing.T, n *numbers, name string) func() T {
	t.Helper()
	var v T
	n.fill(t, name, reflect.ValueOf(&v).Elem())
	return func() T { return v }
}

// notThemselves are counts that are shown as a part of others.
var notThemselves = []string{
	"Store.Calls",    // failed ones, and the others
	"Store.Closed",   // as often as it was opened, or once less
	"Dialer.GivenUp", // their sum
	"Dialer.Overflowed",
	"Fleet.Relays",       // live ones, and the others
	"Fleet.Silent",       // by relay
	"Identity.Fetches",   // failed ones, and the others
	"Identity.Documents", // stale and missing ones, and the others
}

// TestEveryCount: the page has all counters of a fleet and of admission.
func TestEveryCount(t *testing.T) {
	n := &numbers{last: 1e7, field: make(map[string]float64)}
	who := filled[identity.Stats](t, n, "Identity")()
	asked := filled[hooks.AdmissionStats](t, n, "Admission")()
	told := filled[hooks.WebhookStats](t, n, "Webhooks")()
	limited := filled[quota.Stats](t, n, "Quota")()
	dialer := filled[rpc.DialerStats](t, n, "Dialer")
	relay := page1(t, New(Config{
		Process:   process,
		Store:     filled[redisstore.Stats](t, n, "Store"),
		Announcer: filled[placement.AnnouncerStats](t, n, "Announcer"),
		Cluster:   filled[rpc.ServerStats](t, n, "Cluster"),
		Players:   func() Players { return Players{&who, &asked, &told, &limited} },
	}))
	// An API process has another certificate than a relay, under the same name.
	front := page1(t, New(Config{Process: process, Fleet: filled[placement.Stats](t, n, "Fleet"), Dialer: dialer}))
	var shown []float64
	for _, p := range []parsed{relay, front} {
		for name, value := range p.values {
			if family, _, _ := strings.Cut(name, "{"); strings.HasPrefix(name, "ferry_") {
				shown = append(shown, value)
				if p.types[family] == "" || strings.HasSuffix(family, "_total") != (p.types[family] == counter) {
					t.Errorf("%s is a %s", name, p.types[family])
				}
			}
		}
	}
	if len(n.field) < 60 {
		t.Fatalf("only %d counts", len(n.field))
	}
	for name, value := range n.field {
		if slices.Contains(shown, value) == slices.Contains(notThemselves, name) {
			t.Errorf("%s: it is shown, or is to be shown as a part of others: not exactly one of both", name)
		}
	}
	for name, want := range map[string]float64{
		`ferry_store_calls_total{result="ok"}`:             n.field["Store.Calls"] - n.field["Store.Failed"],
		"ferry_store_away":                                 1,
		"ferry_store_outages_total":                        n.field["Store.Opened"],
		`ferry_jwks_fetches_total{result="failed"}`:        n.field["Identity.Failures"],
		`ferry_jwks_documents{state="stale"}`:              n.field["Identity.Stale"],
		`ferry_jwks_documents{state="missing"}`:            n.field["Identity.Keyless"],
		`ferry_admission_questions_total{answer="denied"}`: n.field["Admission.Denied"],
		"ferry_admission_resting":                          n.field["Admission.Resting"],
		`ferry_webhook_dropped_total{reason="full"}`:       n.field["Webhooks.Full"],
		`ferry_webhook_dropped_total{reason="failed"}`:     n.field["Webhooks.Failed"],
		"ferry_webhook_waiting":                            n.field["Webhooks.Waiting"],
		`ferry_quota_refused_total{limit="bandwidth"}`:     n.field[fmt.Sprint("Quota.Refused.", int(quota.RefusedBandwidth))],
		`ferry_cluster_refused_total{reason="full"}`:       n.field["Cluster.Refused"],
		`ferry_announcer_discarded_total{what="hosts"}`:    n.field["Announcer.HostsDropped"],
	} {
		if got, ok := relay.values[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	const relayLabels = `{relay="01000000-0000-0000-0000-000000000000",region="eu"`
	for name, want := range map[string]float64{
		"ferry_fleet_relay_dead" + relayLabels + "}":                         1,
		"ferry_fleet_tries_failed_total" + relayLabels + `,reason="silent"}`: n.field["Fleet.PerRelay.Silent"],
		`ferry_fleet_refused_total{region="",reason="no_relay"}`:             n.field["Fleet.Refused.NoRelay"],
		`ferry_fleet_refused_total{region="",reason="full"}`:                 n.field["Fleet.Refused.Full"],
	} {
		if got, ok := front.values[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	if got, want := front.values["ferry_cluster_given_up_total"], n.field["Dialer.GivenUp"]+n.field["Dialer.Overflowed"]; got != want {
		t.Errorf("%v were given up, want %v", got, want)
	}
}

// TestNobodyPlays: what the settings do not ask for has no metrics, and differences
// of counts that are read one after another are never below zero.
func TestNobodyPlays(t *testing.T) {
	p := page1(t, New(Config{
		Stats: func() engine.Stats { return stats(0) }, Process: process,
		Players: func() Players { return Players{Identity: &identity.Stats{Fetches: 1, Failures: 2, Keyless: 1}} },
	}))
	for name, value := range p.values {
		if strings.HasPrefix(name, "ferry_webhook") || strings.HasPrefix(name, "ferry_admission") || strings.HasPrefix(name, "ferry_quota") {
			t.Errorf("%s is shown", name)
		}
		if strings.HasPrefix(name, "ferry_jwks") && value > 2 {
			t.Errorf("%s is %v", name, value)
		}
	}
	if _, ok := p.values[`ferry_jwks_documents{state="fresh"}`]; !ok {
		t.Error("no documents are shown")
	}
}
