package deploy

import (
	"os/exec"
	"strings"
	"testing"
)

func TestKubectl(t *testing.T) {
	t.Parallel()
	path := tool(t, "kubectl")
	out, err := exec.Command(path, "kustomize", "kubernetes").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "\nkind: "); n < 11 {
		t.Errorf("%d objects:\n%s", n, out)
	}
}
