package dtls

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/statefile"
)

// inPage is how many sessions are in the first page after the header.
const inPage = 4096 / 192

// TestStoreAgain: sessions that were made before, while and after the session file could
// not be written are all in it when it can be again, with bounds above what was used.
func TestStoreAgain(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	var failed, stored atomic.Int32
	cfg.OnError = func(error) { failed.Add(1) }
	file, err := openSessionFile(cfg, func() { stored.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	r, err := newLayer(Config{Sessions: file})
	if err != nil {
		t.Fatal(err)
	}
	var serials []uint64
	for i := range inPage {
		serials = append(serials, killAddSession(r, i).Serial)
	}
	if err := os.Truncate(cfg.Path, 2*4096); err != nil {
		t.Fatal(err)
	}
	serials = append(serials, killAddSession(r, inPage).Serial) // It faults.
	if file.file.Load().Storing() {
		t.Skip("no mapping on this platform, so nothing to fault")
	}
	used := r.table.serial(serials[0])
	if !used.stored.reserveSent(3*sentBlock) || !used.stored.reserveReceived(1000, r.now) {
		t.Fatal("nothing can be used without the file")
	}
	if failed.Load() != 1 {
		t.Errorf("%d errors", failed.Load())
	}
	if err := os.Mkdir(cfg.Path+"x", 0o700); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(cfg.Path)
	if err := os.Rename(cfg.Path+"x", cfg.Path); err != nil { // It cannot be opened again.
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Path+"/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.storeAgain()
	}
	if stored.Load() != 0 || failed.Load() != 1 {
		t.Errorf("%d errors, stored %d times", failed.Load(), stored.Load())
	}
	if err := os.RemoveAll(cfg.Path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.storeAgain()
	}
	serials = append(serials, killAddSession(r, inPage+1).Serial)
	if stored.Load() != 1 || failed.Load() != 1 {
		t.Errorf("with space: %d errors, stored %d times", failed.Load(), stored.Load())
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := statefile.OpenSessions(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	got := map[uint64]statefile.Session{}
	for _, f := range next.Found() {
		got[f.Serial] = f.Session
	}
	if len(got) != len(serials) || len(next.Found()) != len(serials) {
		t.Errorf("%d sessions of %d: %v", len(next.Found()), len(serials), next.Unread())
	}
	if x := got[serials[0]]; x.Sent <= 3*sentBlock || x.Received <= 1000 {
		t.Errorf("bounds %d and %d are not above what was used", x.Sent, x.Received)
	}
}
