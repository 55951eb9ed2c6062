//go:build lab && linux

package lab

import (
	"testing"
	"time"
)

// attackResult is a line of the table of `make attack`.
type attackResult struct {
	attack, rate, honest string
	p99                  time.Duration
	state                string
	damage               bool
}

// recordAttack logs a line of the table and fails the test if there is damage.
func recordAttack(t *testing.T, r attackResult) {
	t.Helper()
	t.Logf("%s, %s: %s, p99 %v, %s", r.attack, r.rate, r.honest, r.p99, r.state)
	if r.damage {
		t.Errorf("damage: %s, %s: %s", r.attack, r.rate, r.honest)
	}
}
