package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

const (
	// maxBody is the largest body of most calls in bytes.
	maxBody = 16 << 10
	// maxChooseBody has room for the most players with the most measurements, 50 bytes each.
	maxChooseBody = 512 << 10
)

// The most bodies above maxBody that are read and decoded at once, of a player, of a server and of all callers:
// they take 8 MiB, and some times as much while they are decoded. Smaller bodies are bounded by the number of
// connections.
const (
	playersLargeBodies = 2
	serversLargeBodies = 8
	maxLargeBodies     = 16
)

// retryLargeBody is the Retry-After of a call that was refused for other bodies in progress.
const retryLargeBody = time.Second

// largeBodies counts the bodies above maxBody in progress, by the name of the principal. It may be used concurrently.
type largeBodies struct {
	mu     sync.Mutex
	all    int
	byName map[string]int
}

// begin counts a body, or refuses it before it is read.
func (l *largeBodies) begin(p *principal) *api.Problem {
	most := playersLargeBodies
	if p.server {
		most = serversLargeBodies
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byName[p.name] >= most:
		text := fmt.Sprintf("the caller has %d large calls in progress", most)
		return withRetryAfter(statusProblem(http.StatusTooManyRequests, text), retryLargeBody)
	case l.all >= maxLargeBodies:
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "too many large calls are in progress"), retryLargeBody)
	}
	if l.byName == nil {
		l.byName = make(map[string]int)
	}
	l.byName[p.name]++
	l.all++
	return nil
}

func (l *largeBodies) end(p *principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.byName[p.name]--; l.byName[p.name] == 0 {
		delete(l.byName, p.name)
	}
}

func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, *api.Problem) {
	if r.ContentLength > most {
		return nil, tooLarge(most)
	}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, most))
	if err == nil {
		return body.Bytes(), nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(most)
	}
	return nil, invalid("the body could not be read")
}

func decode(body []byte, v any) *api.Problem {
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return invalid("the body is not JSON")
	case wrong.Field == "":
		return invalid("the body is not a JSON object")
	}
	return invalidMember(wrong.Field, "has the wrong type")
}

// decodeList decodes the member that is a list of at most most elements, called what. It counts them while it
// reads, since a list of 200,000 empty ones has 512 KiB and would take 100 times as much as a slice.
func decodeList[T any](list json.RawMessage, member, what string, most int) (all []T, problem *api.Problem) {
	if len(list) == 0 || string(list) == "null" {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(list))
	if t, _ := d.Token(); t != json.Delim('[') {
		return nil, invalidMember(member, "has the wrong type")
	}
	for d.More() {
		if len(all) == most {
			return nil, invalidMember(member, fmt.Sprintf("has more than %d %s", most, what))
		}
		var element T
		err := d.Decode(&element)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, invalidMember(strings.TrimSuffix(fmt.Sprintf("%s[%d].%s", member, len(all), wrong.Field), "."), "has the wrong type")
		}
		if err != nil {
			return nil, invalid("the body is not JSON")
		}
		all = append(all, element)
	}
	return all, nil
}
