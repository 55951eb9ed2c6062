package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// ask sends one command as a line, and returns the answer as it comes, without
// the last line break. It opens a connection of its own.
func ask(addr, command string) (string, error) { return askAll(addr, command) }

// askAll sends commands on one connection, and returns the answer to the last one.
func askAll(addr string, commands ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, strings.Join(commands, "\r\n")+"\r\n"); err != nil {
		return "", err
	}
	var reply strings.Builder
	for in := bufio.NewReader(conn); len(commands) > 0; commands = commands[1:] {
		reply.Reset()
		if err := readReply(in, &reply); err != nil {
			return "", err
		}
	}
	return strings.TrimSuffix(reply.String(), "\r\n"), nil
}

// readReply copies one answer of the protocol, with all that is in it.
func readReply(r *bufio.Reader, reply *strings.Builder) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	reply.WriteString(line)
	kind, count := line[0], 0
	if kind == '$' || kind == '*' {
		if count, err = strconv.Atoi(strings.TrimSpace(line[1:])); err != nil {
			return fmt.Errorf("redis answered %q: %w", line, err)
		}
	}
	switch {
	case kind == '$' && count >= 0:
		_, err = io.CopyN(reply, r, int64(count)+2)
	case kind == '*':
		for ; count > 0 && err == nil; count-- {
			err = readReply(r, reply)
		}
	}
	return err
}
