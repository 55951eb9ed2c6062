package admin

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

// readSignOuts returns the ends of sessions that were signed out, by their ids, none without a file.
func readSignOuts(file string) (map[[sessionIDLen]byte]time.Time, error) {
	all := map[[sessionIDLen]byte]time.Time{}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	var ends map[string]int64
	if err == nil {
		err = json.Unmarshal(content, &ends)
	}
	if err != nil {
		return all, fmt.Errorf("admin: sign-outs: %w", err)
	}
	for text, end := range ends {
		id, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(id) != sessionIDLen {
			return all, fmt.Errorf("admin: sign-outs: %s has the session %q", file, text)
		}
		all[[sessionIDLen]byte(id)] = time.Unix(end, 0)
	}
	return all, nil
}

// load is called with the lock held, by the first request: until then another process that hands
// over may have written the file.
func (s *Sessions) load() {
	if s.file == "" || s.loaded {
		return
	}
	s.loaded = true
	before, err := readSignOuts(s.file)
	if err != nil {
		s.log.Warn("sign-outs of the console are forgotten", "error", err)
	}
	maps.Copy(s.revoked, before)
}

// save writes the file, which the next process reads.
func (s *Sessions) save() {
	if s.file == "" {
		return
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	ends, now := map[string]int64{}, s.now()
	s.mu.Lock()
	for id, end := range s.revoked {
		if end.After(now) {
			ends[base64.RawURLEncoding.EncodeToString(id[:])] = end.Unix()
		}
	}
	s.mu.Unlock()
	content, err := json.Marshal(ends)
	if err == nil {
		err = keyfile.Write(s.file, content)
	}
	if err != nil {
		s.log.Warn("a sign-out of the console will be forgotten at the next restart", "error", err)
	}
}
