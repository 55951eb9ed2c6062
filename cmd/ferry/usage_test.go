package main

import (
	"errors"
	"strings"
	"testing"
)

// TestPlainErrors: errors of the command line name options as they are typed, and what to type.
func TestPlainErrors(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"dev --workers x":    `--workers: "x" is not a whole number`,
		"bench --rate abc":   `--rate: "abc" is not a number`,
		"bench --duration 5": `--duration: "5" is not a time with its unit, such as 500ms, 10s or 5m`,
		"dev --wrokers 3":    "there is no option --wrokers; did you mean --workers?",
		"dev --nonsense 3":   "there is no option --nonsense\n",
		"dev --workers":      "--workers: its value is missing",
		"ctl alocations":     `ctl has no command "alocations"; did you mean allocations?`,
		"ctl sing":           "ctl has no command \"sing\"\n",
		"dev --gso=maybe":    `--gso: "maybe" is not true or false`,
		"api --acme-dir=/x":  "--acme-dir no longer exists; ACME certificates are in",
		"dev -x":             "there is no option -x\n",
		"ctl capture QX7KPD": "ferry: --write is missing\n",
		"serve":              "ferry: no token is configured",
		"completion tcsh":    `there is no completion script for "tcsh"`,
		"bench --fail p98<5": `ferry: --fail: invalid threshold: "p98<5"`,
		"sevre":              `unknown command "sevre"; did you mean serve?`,
		"bench --shape ring": `shape "ring" is not one of pairs, star, churn, idle`,
	} {
		code, _, stderr := ferry(t.Context(), strings.Fields(args)...)
		wantCode := exitUsage
		if strings.HasPrefix(args, "bench ") {
			wantCode = exitBenchUsage
		}
		if code != wantCode || !strings.Contains(stderr, want) || strings.Contains(stderr, "strconv") {
			t.Errorf("ferry %s: exit code %d\n%s", args, code, stderr)
		}
	}
}

// TestErrorText: names of packages go, also those in the middle and after a line break; words
// that are followed by a colon stay. A refused connection is said without names of Go.
func TestErrorText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"set up ferry: allocate: api: full\nengine: store: is missing\ntls_cert: none": "set up ferry: allocate: full\n" +
			"store: is missing\ntls_cert: none",
		`join: api: Post "http://127.0.0.1:9/v1/join": dial tcp 127.0.0.1:9: connect: connection refused`: "join: nothing listens at http://127.0.0.1:9: " +
			"is ferry running there?",
		`regions: Get "https://relay.example.org:7777/v1/regions": dial tcp ` +
			`[::1]:7777: connect: connection refused`: "regions: nothing listens at https://relay.example.org:7777: is ferry running there?",
	} {
		if got := errorText(errors.New(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
