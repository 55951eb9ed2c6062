package testkit

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// Coturn starts coturn with the user u:p on loopback of both families, and for DTLS on the same
// port. It may not answer yet.
func Coturn(t testing.TB, more ...string) (port uint16, log *LogBuffer) {
	t.Helper()
	program := Program(t, "turnserver", "coturn")
	port = netip.MustParseAddrPort(FreeAddr(t, "udp")).Port()
	dir := t.TempDir()
	cert, key := SelfSigned(t).WriteFiles(t, dir)
	log = new(LogBuffer)
	cmd := exec.CommandContext(t.Context(), program, append([]string{
		"-n", "--listening-ip=127.0.0.1", "--listening-ip=::1", "--relay-ip=127.0.0.1", "--relay-ip=::1",
		"--listening-port=" + strconv.Itoa(int(port)), "--no-tcp", "--no-tls", "--no-cli", "--no-rfc5780", "--cert=" + cert, "--pkey=" + key,
		"--lt-cred-mech", "--realm=bench", "--user=u:p", "-m", "1", "--log-file=stdout", "--verbose",
		"--pidfile=" + filepath.Join(dir, "pid"), "--userdb=" + filepath.Join(dir, "db"),
	}, more...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return port, log
}
