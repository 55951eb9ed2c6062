package app

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// load measures how busy the busiest thread of the process is: a worker that
// has something to do keeps its own. Its one caller owns it.
type load struct {
	at    time.Time
	spent map[string]time.Duration // on a processor, by thread
}

// threadsDir has a directory for each thread, on Linux.
const threadsDir = "/proc/self/task"

// measure returns the part of a processor that the busiest thread has had since
// the last call, 0 to 1; 0 at first, and where the system does not tell.
func (l *load) measure() float64 {
	threads, err := os.ReadDir(threadsDir)
	if err != nil {
		return 0
	}
	now, spent := time.Now(), make(map[string]time.Duration, len(threads))
	passed := now.Sub(l.at)
	var most time.Duration
	for _, t := range threads {
		on, ok := onProcessor(t.Name())
		if !ok {
			continue
		}
		spent[t.Name()] = on
		if before, known := l.spent[t.Name()]; known {
			most = max(most, on-before)
		}
	}
	l.at, l.spent = now, spent
	if passed <= 0 {
		return 0
	}
	return min(float64(most)/float64(passed), 1)
}

// onProcessor returns how long a thread has run: the first number of its
// schedstat, in nanoseconds.
func onProcessor(thread string) (time.Duration, bool) {
	text, err := os.ReadFile(filepath.Join(threadsDir, thread, "schedstat"))
	if err != nil {
		return 0, false // It has ended meanwhile.
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err == nil
}
