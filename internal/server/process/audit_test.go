package process

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAuditFile: each change of an operator is a line of the file, also after the file was
// moved and a reload.
func TestAuditFile(t *testing.T) {
	t.Parallel()
	c := local()
	c.AuditFile = filepath.Join(t.TempDir(), "audit.json")
	r := start(t, options(c, Serve))
	const unknown = "/allocations/00000000-0000-4000-8000-000000000001"
	change := func() {
		t.Helper()
		for _, call := range []string{"POST " + unknown + "/kick", "DELETE " + unknown} {
			method, path, _ := strings.Cut(call, " ")
			q, err := http.NewRequestWithContext(t.Context(), method, r.AdminURL()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	lines := func(name string) []string {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	change()
	if got := lines(c.AuditFile); len(got) != 2 || !strings.Contains(got[0], `"msg":"POST `+unknown+`/kick","status":`) {
		t.Errorf("lines %q", got)
	}
	if err := os.Rename(c.AuditFile, c.AuditFile+".1"); err != nil {
		t.Fatal(err)
	}
	change()
	if err := r.operator.audit.file.reopen(); err != nil {
		t.Fatal(err)
	}
	change()
	if before, after := lines(c.AuditFile+".1"), lines(c.AuditFile); len(before) != 4 || len(after) != 2 {
		t.Errorf("%d lines before and %d after it was reopened, want 4 and 2", len(before), len(after))
	}
	if info, err := os.Stat(c.AuditFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if got := r.operator.audit.lines.Lines(); len(got) != 6 {
		t.Errorf("the console shows %d lines", len(got))
	}
	c.AuditFile = filepath.Join(t.TempDir(), "no", "such", "directory")
	if _, err := New(options(c, Serve)); err == nil || !strings.Contains(err.Error(), "audit_file") {
		t.Errorf("a file that cannot be opened: %v", err)
	}
}
