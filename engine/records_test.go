package engine

import (
	"context"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// fakeRecords has one session, at atStranger: its records are a byte of 23 and
// the message.
type fakeRecords struct{ session Session }

func (f *fakeRecords) Open(from endpoint.Endpoint, pkt []byte) (Session, []byte) {
	if pkt[0] != 23 || !f.Alive(from) {
		return Session{}, nil
	}
	return f.session, pkt[1:]
}

func (f *fakeRecords) Alive(from endpoint.Endpoint) bool {
	return f.session.Serial != 0 && from == endpointAt(atStranger)
}

func (f *fakeRecords) Seal(dst []byte, serial uint64, msg []byte) ([]byte, endpoint.Endpoint, bool) {
	return append(append(dst, 23), msg...), endpointAt(atStranger), serial == f.session.Serial
}

func (f *fakeRecords) MaxMessage() int  { return 1400 }
func (f *fakeRecords) SafeMessage() int { return 1363 }

func (f *fakeRecords) Run(ctx context.Context, _ func(endpoint.Endpoint, []byte)) error {
	<-ctx.Done()
	return nil
}

// secure gives all workers records.
func (s *sim) secure(session Session) {
	for _, w := range s.workers {
		w.records = &fakeRecords{session}
	}
}
