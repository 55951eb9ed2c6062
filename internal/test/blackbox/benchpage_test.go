//go:build browser

package blackbox

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestBrowserBenchPage opens the page of a run as a file: its plot is drawn, in a window of a
// telephone's width too, where the page does not scroll sideways.
func TestBrowserBenchPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.html")
	cmd := exec.Command(binary, "bench", "--dialect", "direct", "--matches", "2", "--duration", "200ms", "--warmup", "0",
		"--rate", "2000", "--quiet", "--html", file)
	if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != 2 { // of an invalid run
		t.Fatalf("%v\n%s", err, out)
	}
	page := startChromium(t).open("file://"+file, `document.querySelectorAll(".plot canvas").length === 1`)
	page.call(page.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 400, "height": 800, "deviceScaleFactor": 1,
		"mobile": false}, new(struct{}))
	var width struct{ Window, Page, Plot int }
	page.do(&width, `(async () => {
		const widest = () => Math.max(...[...document.querySelectorAll(".plot canvas")].map(c => c.clientWidth))
		while (innerWidth > 400 || widest() > 400) await new Promise(requestAnimationFrame)
		return { window: innerWidth, page: document.documentElement.scrollWidth, plot: widest() }
	})`)
	if width.Window != 400 || width.Page > 400 || width.Plot < 200 {
		t.Errorf("%+v", width)
	}
}
