package dtls

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/statefile"
)

// killEnv makes the test binary the process that TestKill kills.
const killEnv = "FERRY_DTLS_KILL"

// killSessions is how many sessions that process has, and killRoutines how many
// goroutines use each of them at once.
const (
	killSessions = 8
	killRoutines = 3
)

// fail ends the child with a reason.
func fail(reason ...any) {
	fmt.Fprintln(os.Stderr, reason...)
	os.Exit(1)
}

// killChild resumes the sessions in a file, or makes some, and seals and opens records
// of all of them until it is killed. It writes a line for each number that was used:
// direction, session, number.
func killChild(path string) {
	file, err := statefile.OpenSessions(statefile.SessionsConfig{
		Path: path, Capacity: 2 * killSessions, MaxAge: time.Hour, Machine: "up", OnError: func(err error) { fail(err) },
	})
	if err != nil {
		fail(err)
	}
	r, err := New(Config{PSK: testKey, Sessions: &SessionFile{file}})
	if err != nil {
		fail(err)
	}
	found := file.Found()
	if len(found) == 0 {
		for i := range killSessions {
			found = append(found, killAddSession(r, i))
		}
	}
	if len(found) != killSessions {
		fail(len(found), "sessions in the file")
	}
	var wg sync.WaitGroup
	for i := range found {
		killUse(&wg, r, &found[i])
	}
	wg.Wait()
	fail("the process was not killed")
}

// killAddSession adds a session as a handshake does.
func killAddSession(r *Records, i int) statefile.FoundSession {
	from := home
	from.Lo += uint64(i)
	h := &halfOpen{suite: &suites[i%2]}
	binary.BigEndian.PutUint64(h.client[:], random64())
	key, _ := testKey(testID(i))
	keys, err := derive(h.suite, &key, h.client[:], h.server[:], false, nil)
	if err != nil {
		fail(err)
	}
	s := &session{id: testID(i), from: from, in: keys.in, out: keys.out}
	if _, ok := r.table.add(s, func() { r.store(s, h, 0) }); !ok || s.stored == nil {
		fail("no room")
	}
	return statefile.FoundSession{Session: statefile.Session{ID: s.id, Serial: s.serial, Source: from, Suite: h.suite.id, Client: h.client}}
}

// killUse starts the goroutines that use a session. The client's numbers are
// microseconds, so that they rise from process to process.
func killUse(wg *sync.WaitGroup, r *Records, f *statefile.FoundSession) {
	key, _ := testKey(f.ID)
	keys, err := derive(suiteByID(f.Suite), &key, f.Client[:], f.Server[:], len(f.Hash) > 0, f.Hash)
	if err != nil {
		fail(err)
	}
	name := binary.BigEndian.Uint64(f.Client[:])
	var mu sync.Mutex // one record, one number
	client := &session{out: keys.in}
	next := func() []byte {
		mu.Lock()
		defer mu.Unlock()
		client.sent.Store(max(client.sent.Load(), uint64(time.Now().UnixMicro())&(statefile.MaxSequence>>1)))
		b, _ := client.seal(nil, typeData, []byte("up"))
		return b
	}
	for range killRoutines {
		wg.Go(func() {
			for {
				b := next()
				again := append([]byte(nil), b...)
				number := binary.BigEndian.Uint64(b[3:]) & (1<<seqBits - 1)
				if _, msg := r.Open(f.Source, b); msg != nil {
					fmt.Printf("r %016x %d\n", name, number)
				}
				if _, msg := r.Open(f.Source, again); msg != nil {
					fmt.Printf("r %016x %d\n", name, number)
				}
				if b, _, ok := r.Seal(nil, f.Serial, []byte("down")); ok {
					fmt.Printf("s %016x %d\n", name, binary.BigEndian.Uint64(b[3:])&(1<<seqBits-1))
				}
			}
		})
	}
}

// TestKill kills a process that uses its sessions from many goroutines, again and
// again. No number of a session is used twice in a direction,
// and every session resumes each time.
func TestKill(t *testing.T) {
	t.Parallel()
	path := sessionsConfig(t, false).Path
	used := make(map[string]int)
	perRound := make([]map[string]bool, 8)
	random := rand.New(rand.NewPCG(3, 5))
	for round := range perRound {
		perRound[round] = make(map[string]bool)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, limit := bufio.NewScanner(out), 2000+random.IntN(20_000)
		for n := 0; lines.Scan(); n++ {
			line := lines.Text()
			if before, twice := used[line]; twice {
				t.Errorf("%q in round %d and in round %d", line, before, round)
			}
			used[line] = round
			perRound[round][line[:18]] = true
			if n >= limit && len(perRound[round]) == 2*killSessions {
				limit = 1 << 30
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || limit < 1<<30 {
			t.Fatalf("round %d: the process ended by itself: %v", round, err)
		}
	}
}
