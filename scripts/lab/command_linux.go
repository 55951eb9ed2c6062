package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ip runs the tool of that name with arguments that contain no spaces.
func ip(args string) error { return run("ip", args) }

func run(name, args string) error {
	out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("lab: %s %s: %w: %s", name, args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Missing says in one sentence what this machine lacks for the laboratory;
// empty means nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "the laboratory makes network namespaces and needs root"
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "the laboratory needs iproute2 (apt-get install iproute2): " + err.Error()
		}
	}
	return ""
}
