package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestStalls(t *testing.T) {
	s := NewStalls()
	if s.Since(time.Time{}) || s.Total() != 0 {
		t.Error("it knows of something that it has not seen")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { s.Run(ctx) })
	testkit.Eventually(t, "it watches", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.lastWakes) > 0
	})
	before := time.Now()
	stop := fmt.Sprintf("kill -STOP %d; sleep 0.3; kill -CONT %[1]d", os.Getpid())
	if err := exec.Command("sh", "-c", stop).Run(); err != nil {
		t.Fatal(err)
	}
	if !s.Since(before) {
		t.Error("it does not know that it stood still")
	}
	testkit.Eventually(t, "the time is added up", func() bool { return s.Total() >= 250*time.Millisecond })
	testkit.Eventually(t, "it is over", func() bool { return !s.Since(time.Now()) })
	cancel()
	run.Wait()
	if s.Since(time.Now()) {
		t.Error("a Stalls without Run reports a stall")
	}
}
