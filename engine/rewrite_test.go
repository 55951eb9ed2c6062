package engine

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// breakStateFile makes the next change of the state file fail, and makes one. The disk
// itself has space.
func breakStateFile(t *testing.T, r *rig) {
	t.Helper()
	if !r.control.stateFile.IsMapped() {
		t.Skip("no mapping on this platform, so nothing to fault")
	}
	r.reserveHost(t) // A later one needs no new space, whose use would extend the file.
	if err := os.Truncate(r.path, 0); err != nil {
		t.Fatal(err)
	}
	r.reserveHost(t)
	r.control.runOnce(r.now)
	if r.control.stateFile.Storing() || r.control.rewrite.complete.Load() {
		t.Fatal("the file is still written")
	}
}

func (r *rig) reserveHost(t *testing.T) proto.AllocationID {
	t.Helper()
	id, err := newID()
	if err == nil {
		err = r.control.reserve(&claims{id: id, role: alloc.RoleHost, match: id, tenant: 7, maxConnections: 2}, nil, r.now)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func tableRecords(r *rig) map[proto.AllocationID]statefile.Record {
	c, all := r.control, map[proto.AllocationID]statefile.Record{}
	for slot := range c.shared.table.Slots() {
		h := c.shared.table.HandleAt(slot)
		if e, ok := c.shared.table.At(h); ok {
			a := c.shared.table.Account(h)
			all[e.ID] = statefile.Record{
				ID: e.ID, Tenant: c.shared.table.Tenant(h), Endpoint: c.endpointDigest(e.Endpoint), Code: c.codes[h],
				Nonce: e.Nonce, Links: a.Links + a.AwaitedLinks, Flags: c.flags(&e),
			}
		}
	}
	return all
}

// TestRewrite: the new file has what changed while nothing was stored, and while it was written,
// and the records that the previous run left.
func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		returning bool // the recovery window is open
	}{{"after the window", false}, {"in the window", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			completed := 0
			r.restart(false)
			code := 0
			setCode := func(id proto.AllocationID) {
				code++
				packed, err := statefile.ParseCode(fmt.Sprintf("6789BC%c%c", "6789BC"[code%6], "DFGHJK"[code/6%6]))
				if err != nil {
					t.Fatal(err)
				}
				if e, ok := r.shared.table.ByID(id); ok {
					r.control.noteCode(e.Handle, packed)
					r.control.stateFile.SetCode(r.control.recordPlace(e.Handle), packed)
				}
			}
			for range 3*rewritePerCall + 10 {
				r.reserveHost(t)
			}
			awaited := map[proto.AllocationID]statefile.Record{}
			if c.returning {
				awaited = tableRecords(r)
				r.restart(true)
				for range rewritePerCall {
					r.reserveHost(t)
				}
			}
			r.control.setStateFile(r.control.stateFile)
			r.control.rewrite.onComplete = func() { completed++ }
			breakStateFile(t, r)
			end := func(n int) { // and one that is reserved
				for slot := range r.shared.table.Slots() {
					if h := r.shared.table.HandleAt(slot); n > 0 && int(slot)%97 == n {
						if _, ok := r.shared.table.At(h); ok {
							r.control.end(h, EndOperator)
						}
					}
				}
				setCode(r.reserveHost(t))
			}
			end(1)
			r.now += rewriteEvery - 1
			r.control.runOnce(r.now)
			if r.control.stateFile.Rewriting() {
				t.Error("it is written at once")
			}
			r.now++
			for n := 2; !r.control.rewrite.complete.Load(); n++ {
				r.control.rewriteSome(r.now)
				end(n % 50)
				for id, before := range awaited { // One is ended, or comes back.
					if n >= 40 {
						break
					}
					delete(awaited, id)
					if n%2 == 0 {
						if err := r.control.abandonRecovery(id, EndOperator, r.now); err != nil {
							t.Fatal(err)
						}
						break
					}
					back := claims{id: id, role: alloc.RoleHost, match: id, tenant: 7, maxConnections: 2, boot: r.ident.sealer(r.run - 1).Boot()}
					if got := r.control.rebuild(&command{kind: proto.TypeBind, claims: back, now: r.now}); got != outcomePending {
						t.Fatalf("an allocation that comes back: %v", got)
					}
					if tableRecords(r)[id] != before {
						t.Errorf("%+v came back as %+v", before, tableRecords(r)[id])
					}
					break
				}
				r.control.runActions(r.now)
				if n > 20 {
					runtime.Gosched()
				}
				if n > 1_000_000 {
					t.Fatal("never complete")
				}
			}
			end(3)
			want := tableRecords(r)
			maps.Copy(want, awaited)
			if completed != 1 || r.control.stateFile.Incomplete() {
				t.Errorf("reported %d times", completed)
			}
			r.restart(true)
			left := r.control.recovery.left
			got := map[proto.AllocationID]statefile.Record{}
			for _, f := range r.control.recovery.records {
				got[f.ID] = f.Record
			}
			if !left.Complete || !maps.Equal(got, want) || len(r.control.recovery.records) != len(want) {
				t.Errorf("complete %v, %d records, want %d: %v", left.Complete, len(r.control.recovery.records), len(want), left.Err)
			}
		})
	}
}

func TestRewriteWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.restart(false)
	r.control.setStateFile(r.control.stateFile)
	breakStateFile(t, r)
	if err := os.Mkdir(r.path+".new", 0o700); err != nil { // The new file cannot be created.
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path+".new/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		r.now += 1000
		r.control.runOnce(r.now)
		r.reserveHost(t)
	}
	if r.control.rewrite.complete.Load() || r.control.stateFile.Rewriting() {
		t.Error("it is complete")
	}
	if err := os.RemoveAll(r.path + ".new"); err != nil {
		t.Fatal(err)
	}
	r.now += rewriteEvery
	testkit.Eventually(t, "it is complete", func() bool { r.control.runOnce(r.now); return r.control.rewrite.complete.Load() })
}

// TestRewriteReturns: an allocation that comes back while the new file has its record, but
// not yet what lives, has one record.
func TestRewriteReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.restart(false)
	id := r.reserveHost(t)
	r.restart(true)
	r.control.setStateFile(r.control.stateFile)
	breakStateFile(t, r)
	if err := r.control.stateFile.Rewrite(3); err != nil {
		t.Fatal(err)
	}
	r.control.rewrite.active = true
	r.control.rewriteNext()
	back := claims{id: id, role: alloc.RoleHost, match: id, tenant: 7, maxConnections: 2, boot: r.ident.sealer(r.run - 1).Boot()}
	if got := r.control.rebuild(&command{kind: proto.TypeBind, claims: back, now: r.now}); got != outcomePending {
		t.Fatal(got)
	}
	testkit.Eventually(t, "it is complete", func() bool { r.control.rewriteSome(r.now); return r.control.rewrite.complete.Load() })
	want := tableRecords(r)
	r.restart(true)
	if left := r.control.recovery; !left.left.Complete || len(left.records) != len(want) {
		t.Errorf("%d records, want %d: %v", len(left.records), len(want), left.left.Err)
	}
}
