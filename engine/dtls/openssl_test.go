package dtls

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// openssl starts the client of OpenSSL. Closing the returned writer ends it.
func openssl(t *testing.T, l *loop, key proto.Key, cipher string) (io.WriteCloser, <-chan string) {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is missing; it is not optional under CI=true")
		}
		t.Skip("NOT TESTED against openssl: it is not installed")
	}
	id := testID(8)
	cmd := exec.CommandContext(t.Context(), path, "s_client", "-dtls1_2", "-quiet", "-no_ign_eof",
		"-connect", l.addr().String(), "-psk", hex.EncodeToString(key[:]),
		"-psk_identity", id.String(), "-cipher", cipher)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case lines <- s.Text():
			default:
			}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		for range lines {
		}
		_ = cmd.Wait()
	})
	return in, lines
}

func TestOpenSSL(t *testing.T) {
	for _, c := range []struct {
		cipher string
		direct int
	}{
		{"PSK-AES128-GCM-SHA256", 0},
		{"PSK-AES128-GCM-SHA256", -1},
		{"PSK-AES256-GCM-SHA384", 0},
		{"PSK-AES256-GCM-SHA384", -1},
		{"PSK", 0},
	} {
		t.Run(fmt.Sprintf("%s direct %d", c.cipher, c.direct), func(t *testing.T) {
			l := newLoop(t, Config{Direct: c.direct})
			key, _ := testKey(testID(8))
			in, lines := openssl(t, l, key, c.cipher)
			testkit.Eventually(t, "a session", func() bool { return l.Stats().Counts[Established] == 1 })
			for i := range 3 {
				msg := fmt.Sprintf("message %d of a player", i)
				if _, err := io.WriteString(in, msg+"\n"); err != nil {
					t.Fatal(err)
				}
				awaitLine(t, lines, msg)
			}
			in.Close()
			testkit.Eventually(t, "close_notify", func() bool { return l.Stats().Counts[Closed] == 1 })
			st := l.Stats()
			if (st.Counts[CookieSent] > 0) != (c.direct < 0) {
				t.Errorf("%d cookies", st.Counts[CookieSent])
			}
		})
	}
}

func awaitLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("openssl ended before %q", want)
			}
			if strings.Contains(line, want) {
				return
			}
		case <-limit:
			t.Fatalf("no echo of %q", want)
		}
	}
}

func TestOpenSSLWrongKey(t *testing.T) {
	l := newLoop(t, Config{})
	_, lines := openssl(t, l, proto.Key{7}, "PSK-AES128-GCM-SHA256")
	testkit.Eventually(t, "its Finished", func() bool { return l.Stats().Counts[DropKey] > 0 })
	if st := l.Stats(); st.Sessions != 0 || st.Counts[Established] != 0 {
		t.Fatalf("%+v", st)
	}
	for len(lines) > 0 {
		if line := <-lines; strings.Contains(line, "alert") {
			t.Fatalf("openssl received an alert: %q", line)
		}
	}
}
